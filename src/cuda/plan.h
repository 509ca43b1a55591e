/* plan.h: what launch.c needs to carry out the plans of plan.c. */
#ifndef TESSERA_CUDA_PLAN_H
#define TESSERA_CUDA_PLAN_H

#include "cuda/kernels/args.h"
#include "cuda/cuda.h"
#include "cuda/kernels.h"


/* The problem as it is computed: C^T = B^T A^T where `transposed`. */
tsr_problem cuda_oriented(const tsr_problem *problem, bool transposed);

/* The kernel by which this context would multiply split operands; NULL where it cannot or may not split. */
const cuda_kernel *cuda_split_kernel(const tsr_context *context);

/* The panels an operand was packed into beforehand; NULL where there are none, or where they are of the first matrix of
 * a batch alone. */
static inline char *cuda_packed_panels(const tsr_operand *o, int64_t batch) {
    return o->packed && (batch == 1 || !o->batch_stride) ? o->packed->panels : NULL;
}

/* Blocks a split kernel is launched with. They stay, and share all tiles and slices of all products. */
int64_t cuda_split_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t tiles, int64_t slices,
                          int64_t batch);

/* Blocks an ieee kernel is launched with for each product, of as many whole tiles and stretches of the tail: one for
 * each, or as many as there is room for, which stay. */
int64_t cuda_ieee_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t units);

/* Where the parts of a packed operand lie in its memory (args.h), for `batch` products. Offsets in bytes; strides from
 * one product to the next, as split_operand counts them. */
typedef struct panels_layout {
    int64_t k_blocks;
    int64_t panels_stride, exponents_stride, marks_stride;
    size_t exponents, overflows, deep, misfits, marks, progress; /* panels begin at 0 */
    size_t bytes;                                                /* in all, a multiple of 256 */
} panels_layout;

panels_layout panels_layout_of(int64_t rows, int64_t k, int64_t batch, int pieces);

#endif
