/* cuda.h: the CUDA engine as api.c and plan.c see it. In a build without nvcc, absent.c answers for it. */
#ifndef TESSERA_CUDA_H
#define TESSERA_CUDA_H

#include "internal.h"

struct cuda_device; /* cuda/kernels.h */
struct cuda_kernel;

/* Where the parts of a packed operand lie in its memory (kernels/args.h). Offsets in bytes, the panels being at 0;
 * strides from one item of a batch to the next, as split_operand counts them. */
typedef struct panels_layout {
    int64_t panels_stride, exponents_stride, marks_stride;
    size_t exponents, row_overflows, tiny_counts, overflowed_panels, marks, progress;
    size_t bytes; /* in all, a multiple of 256 */
} panels_layout;

/* Where everything lies in the workspace of a call: offsets in bytes. */
typedef struct cuda_workspace_layout {
    panels_layout a, b;        /* split: within the memory of each operand's panels, */
    size_t a_panels, b_panels; /* which begins here where it was not packed beforehand */
    size_t partial_sums;
    size_t recompute_flags; /* split: 16 bits for each check block, one for each of its rows */
    size_t copies;          /* of operands that a TF32 kernel cannot read in place, A's first */
    size_t bytes;           /* in all */
} cuda_workspace_layout;

/* How one product is computed on a GPU. Pure data. Sizes are of the product as it is computed: transposed, where that
 * lets C be written along its contiguous dimension. */
typedef struct cuda_plan {
    const struct cuda_device *device;
    const struct cuda_kernel *multiply; /* the kernel that computes C, or partial sums of it */
    bool transposed;                    /* C^T = B^T A^T is computed */
    bool split;                         /* operands are packed into fp16 components; else read in place */
    bool invariant;                     /* options.batch_invariant: all tiles alike, fallback row by row */
    bool early;                         /* its first kernel may start before what is in front of it has finished */
    int64_t slices, k_per_slice; /* split, TF32 (k_each long), invariant: of k; a second kernel adds several up */
    int64_t full_tiles;          /* tiles that one thread block each computes whole; the others are cut along k: */
    int64_t tail_blocks;         /* ieee: thread blocks that share their k ranges, the stream-K tail; else in slices */
    int64_t cluster, k_each;     /* parts of k: thread blocks that share that of a tile; terms of each */
    int64_t share;               /* vectors: how the threads of a block share its terms (ieee_args) */
    bool turns_b;                /* tf32: the kernel turns a B that lies across k; else it is copied */
    /* Rows, columns, terms and products computed at a time: all, if max_workspace and 32-bit indices allow it. */
    int64_t chunk_m, chunk_n, chunk_k, chunk_batch;
    cuda_workspace_layout workspace;
    const char *reason; /* one clause: why this kernel */
} cuda_plan;

tsr_status cuda_context_create(struct cuda_context **cuda, tsr_options *options);
void cuda_context_destroy(struct cuda_context *cuda);

tsr_status cuda_plan_make(cuda_plan *plan, const tsr_context *context, const tsr_problem *problem);
double cuda_plan_seconds(const cuda_plan *plan, const tsr_problem *problem); /* estimated by the current constants */
void cuda_plan_print(const cuda_plan *plan, const tsr_problem *problem, tsr_text *text);
tsr_status cuda_execute(const cuda_plan *plan, tsr_context *context, const tsr_problem *problem,
                        const tsr_launch *launch);

/* Bytes that an operand's panels take; 0 where this context would not split it. */
size_t cuda_pack_size(const tsr_context *context, tsr_side side, const tsr_operand *operand);

/* Packs into launch->workspace if that is given; it must be large enough. */
tsr_status cuda_pack(tsr_packed *packed, const tsr_launch *launch);
void cuda_packed_destroy(tsr_packed *packed);

tsr_status cuda_stats_read(tsr_context *context, tsr_stats *stats);
tsr_status cuda_trim(tsr_context *context);
void cuda_info_print(tsr_text *text);

#endif
