/* plan.h: what the files that carry out a cuda_plan share with plan.c. */
#ifndef TESSERA_CUDA_PLAN_H
#define TESSERA_CUDA_PLAN_H

#include "cuda/cuda.h"
#include "cuda/kernels.h"

/* The kernel by which this context would multiply split operands; NULL where it cannot or may not split. */
const cuda_kernel *cuda_split_kernel(const tsr_context *context);

/* Whether what the plan's split kernel leaves of a product is recomputed by a TF32 kernel; else by an ieee kernel. */
bool cuda_recomputes_in_tf32(const cuda_plan *plan, const tsr_problem *problem);

/* Where the parts of `batch` packed operands lie, each of `rows` rows of length k. */
panels_layout panels_layout_of(int64_t rows, int64_t k, int64_t batch, int components);

/* Thread blocks a split kernel is launched with. They are persistent and share the whole tiles and the slices of all
 * items; each has some (a block that multiplies nothing waits for its first stage all the same). */
int64_t cuda_split_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t tiles, int64_t slices);

/* Thread blocks an ieee kernel is launched with for each item: one for each whole tile and each share of the tail; of a
 * persistent kernel no more than fit on the GPU. */
int64_t cuda_ieee_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t full_tiles, int64_t tail_blocks);

/* Thread blocks a wide kernel is launched with for each item, with `tiles` tiles or slices;
 * with clusters, clusters. They are persistent where there is one item. */
int64_t cuda_wide_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t batch, int64_t tiles);

/* Thread blocks a kernel of one tile for each warp is launched with, for all tiles of all items. */
int64_t cuda_warp_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t tiles);

#endif
