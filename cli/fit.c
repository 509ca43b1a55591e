/* fit.c: Levenberg-Marquardt with numerical derivatives. */
#include "fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

enum { MOST_STEPS = 40, MOST_TRIES = 8 };
static const double huber = 0.1;       /* of a logarithm: errors beyond it count linearly */
static const double prior = 1e-2;      /* the weight of each constant's distance from where it began */
static const double difference = 0.02; /* of a constant's logarithm, for derivatives */
static const double longest = 0.7;     /* step of a constant's logarithm */

typedef struct state {
    double *start, *trial;            /* constants */
    double *errors, *changed, *slope; /* samples: logarithms of estimated over measured; constants x samples */
    double *matrix, *step;            /* constants x constants, constants */
} state;

static void errors_of(const fit_problem *f, int i, double value, double *errors) {
    f->estimate(f->model, i, value, errors);
    for (int s = 0; s < f->samples; s++) errors[s] = log(errors[s] / f->seconds[s]);
}

static double loss(const fit_problem *f, const state *x, const double *values, const double *errors) {
    double sum = 0;
    for (int s = 0; s < f->samples; s++) {
        const double e = fabs(errors[s]);
        sum += f->weights[s] * (e < huber ? e * e / 2 : huber * (e - huber / 2));
    }
    for (int i = 0; i < f->constants; i++) sum += prior / 2 * pow(log(values[i] / x->start[i]), 2);
    return sum;
}

/* Solves matrix * step = step, of a symmetric positive definite matrix, which it overwrites: Cholesky. */
static void solve(double *matrix, double *step, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            double sum = matrix[i * n + j];
            for (int k = 0; k < j; k++) sum -= matrix[i * n + k] * matrix[j * n + k];
            matrix[i * n + j] = i == j ? sqrt(sum > 0 ? sum : prior) : sum / matrix[j * n + j];
        }
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++) step[i] -= matrix[i * n + k] * step[k];
        step[i] /= matrix[i * n + i];
    }
    for (int i = n - 1; i >= 0; i--) {
        for (int k = i + 1; k < n; k++) step[i] -= matrix[k * n + i] * step[k];
        step[i] /= matrix[i * n + i];
    }
}

/* The step from the slopes, damped. */
static void find_step(const fit_problem *f, const state *x, double damping) {
    const int n = f->constants, samples = f->samples;
    for (int i = 0; i < n; i++) {
        x->step[i] = -prior * log(f->values[i] / x->start[i]);
        for (int j = 0; j <= i; j++) x->matrix[i * n + j] = 0;
    }
    for (int s = 0; s < samples; s++) {
        const double error = x->errors[s];
        const double weight = f->weights[s] * (fabs(error) > huber ? huber / fabs(error) : 1);
        for (int i = 0; i < n; i++) {
            const double slope = weight * x->slope[(size_t)i * (size_t)samples + (size_t)s];
            if (slope == 0) continue;
            x->step[i] -= slope * error;
            for (int j = 0; j <= i; j++)
                x->matrix[i * n + j] += slope * x->slope[(size_t)j * (size_t)samples + (size_t)s];
        }
    }
    for (int i = 0; i < n; i++) x->matrix[i * n + i] += damping * x->matrix[i * n + i] + prior;
    solve(x->matrix, x->step, n);
}

static void set_all(const fit_problem *f, const double *values, double *errors) {
    for (int i = 1; i < f->constants; i++) f->estimate(f->model, i, values[i], NULL);
    errors_of(f, 0, values[0], errors);
}

static void descend(fit_problem *f, const state *x) {
    double damping = 1e-2;
    errors_of(f, -1, 0, x->errors);
    double least = loss(f, x, f->values, x->errors);
    for (int steps = 0; steps < MOST_STEPS; steps++) {
        for (int i = 0; i < f->constants; i++) {
            double *slope = x->slope + (size_t)i * (size_t)f->samples;
            errors_of(f, i, f->values[i] * exp(difference), slope);
            f->estimate(f->model, i, f->values[i], NULL);
            for (int s = 0; s < f->samples; s++) slope[s] = (slope[s] - x->errors[s]) / difference;
        }
        double now = least;
        for (int tries = 0; tries < MOST_TRIES && now >= least; tries++, damping *= 4) {
            find_step(f, x, damping);
            for (int i = 0; i < f->constants; i++)
                x->trial[i] = f->values[i] * exp(fmax(-longest, fmin(longest, x->step[i])));
            set_all(f, x->trial, x->changed);
            now = loss(f, x, x->trial, x->changed);
        }
        if (!(now < least)) break;
        const bool is_end = least - now < 1e-4 * least;
        least = now;
        damping /= 16;
        memcpy(f->values, x->trial, (size_t)f->constants * sizeof *f->values);
        memcpy(x->errors, x->changed, (size_t)f->samples * sizeof *x->errors);
        if (is_end) break;
    }
    set_all(f, f->values, x->errors);
}

int fit(fit_problem *f) {
    const size_t n = (size_t)f->constants, samples = (size_t)f->samples;
    double *memory = calloc(3 * n + n * n + (2 + n) * samples, sizeof *memory);
    if (!memory) return fail("no memory for %d measurements", f->samples);
    state x = {.start = memory, .trial = memory + n, .step = memory + 2 * n, .matrix = memory + 3 * n};
    x.errors = x.matrix + n * n, x.changed = x.errors + samples, x.slope = x.changed + samples;
    memcpy(x.start, f->values, n * sizeof *f->values);
    if (n && samples) descend(f, &x);
    free(memory);
    return EXIT_OK;
}
