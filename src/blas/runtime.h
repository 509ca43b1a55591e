/* runtime.h: what the first call makes, settings and CPU contexts, and the GPU's context, made for the first product
 * that is worth it. */
#ifndef TESSERA_BLAS_RUNTIME_H
#define TESSERA_BLAS_RUNTIME_H

#include "settings.h"

typedef struct blas_runtime {
    blas_settings settings;
    tsr_context *cpu;        /* with all threads */
    tsr_context *one_thread; /* for calls from inside an OpenMP parallel region, whose threads are busy already */
} blas_runtime;

/* NULL where there is no memory for it; the next call tries again. */
const blas_runtime *blas_runtime_get(void);

/* Whether a GPU may be used, and the context on it, made by the first call; NULL where there is none. */
bool blas_gpu_is_usable(void);
tsr_context *blas_gpu_context(const blas_settings *settings);

/* The GPU has failed and is not used again. True for the first call. */
bool blas_gpu_give_up(void);

bool blas_is_in_parallel_region(void);

#endif
