/* offload.h: products of matrices in host memory on a GPU, as api.c sees them. Above both engines: the GPU computes,
 * and the CPU finishes what a failing GPU leaves. In a build without the CUDA engine, absent.c answers for it. */
#ifndef TESSERA_OFFLOAD_H
#define TESSERA_OFFLOAD_H

#include "internal.h"

/* The product, done when it returns. *share: how much of C the GPU has computed, 0 to 1. */
tsr_status offload_multiply(tsr_context *context, const tsr_problem *problem, double *share);

/* Seconds that would take, estimated; C is read where `reads_c`. */
tsr_status offload_seconds(tsr_context *context, const tsr_problem *problem, bool reads_c, double *seconds);

/* Frees what is kept from one product to the next. */
void offload_release(tsr_context *context);

#endif
