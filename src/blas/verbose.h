/* verbose.h: the line of TESSERA_VERBOSE that each product gets. */
#ifndef TESSERA_BLAS_VERBOSE_H
#define TESSERA_BLAS_VERBOSE_H

#include "blas.h"

/* Where a product was computed. */
typedef struct blas_outcome {
    char device[16];
    int threads;       /* at most: a small product is for one */
    char failure[160]; /* why the GPU did not do it all; empty where it did, or was not asked */
} blas_outcome;

/* In the manner of MKL_VERBOSE. */
void blas_verbose_print(const blas_product *product, const blas_outcome *outcome, tsr_precision precision,
                        double seconds);

#endif
