/* fit.h: the constants of a model from measurements, by least squares of logarithms. */
#ifndef TESSERA_CLI_FIT_H
#define TESSERA_CLI_FIT_H

typedef struct fit_problem {
    int constants, samples;
    double *values;        /* constants, above 0: where to begin, then the result */
    const double *seconds; /* samples: as measured */
    const double *weights; /* samples */
    /* Sets constant i to value (i < 0: nothing), then estimates all samples. */
    void (*estimate)(void *model, int i, double value, double *seconds);
    void *model;
} fit_problem;

/* Levenberg-Marquardt on the constants' logarithms, with Huber's loss: a sample that is far off counts less. A constant
 * that no sample depends on stays as it is. EXIT_OK or EXIT_FAILED (no memory). Leaves the model with the result. */
int fit(fit_problem *f);

#endif
