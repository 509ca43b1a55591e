/* launch.h: what the files that carry out a cuda_plan share: launch.c queues kernels; ieee.c, tf32.c, split.c and
 * pack.c know the arguments of theirs. */
#ifndef TESSERA_CUDA_LAUNCH_H
#define TESSERA_CUDA_LAUNCH_H

#include "cuda/graphs.h"
#include "cuda/plan.h"

/* ---- launch.c ---------------------------------------------------------------------------------------------------- */

/* The kernels one call queues, one after the other. */
typedef struct launch_queue {
    const struct cuda_context *cuda;
    CUstream stream;
    bool begun; /* the next kernel may start before what is in front of it has finished */
    int count;  /* kernels that are not launched yet */
    queued_kernel kernels[MOST_QUEUED];
} launch_queue;

typedef struct launch_grid {
    int64_t x, y, z;
} launch_grid;

void launch_begin(launch_queue *queue, const struct cuda_context *cuda, CUstream stream);

/* Queues a kernel, with clusters of `cluster` thread blocks along x; 1: as the kernel was compiled. */
tsr_status launch_clusters(launch_queue *queue, const cuda_kernel *kernel, launch_grid grid, int64_t cluster,
                           const void *args, size_t size);
tsr_status launch_kernel(launch_queue *queue, const cuda_kernel *kernel, launch_grid grid, const void *args,
                         size_t size);

/* Launches what is queued. */
tsr_status launch_queued(launch_queue *queue);

/* `*pointer` must be memory this GPU can use; pinned host memory becomes its address on the GPU. */
tsr_status check_memory(const struct cuda_context *cuda, const char *name, void **pointer);
tsr_status check_stream(const struct cuda_context *cuda, CUstream stream);

/* ---- ieee.c ------------------------------------------------------------------------------------------------------ */

/* Matrices as kernels see them. */
matrix_in matrix_in_place(const tsr_operand *operand);
matrix_out matrix_of_result(const tsr_result *c);

/* A product without terms: C = beta*S. */
tsr_status queue_scale(launch_queue *queue, const tsr_problem *problem);

/* A chunk, by the plan's ieee kernel. */
tsr_status queue_ieee(launch_queue *queue, const cuda_plan *plan, const tsr_problem *chunk, char *workspace);

/* Adds up the slices of a TF32 kernel's tiles, in partial (tf32_args). */
tsr_status queue_reduce(launch_queue *queue, const tsr_problem *chunk, const cuda_kernel *kernel, int64_t slices,
                        float *partial);

/* Recomputes as TSR_IEEE what of C the split kernel left. */
tsr_status queue_recompute(launch_queue *queue, const cuda_device *device, const tsr_problem *chunk,
                           const split_args *split);

/* ---- tf32.c ------------------------------------------------------------------------------------------------------ */

/* A chunk, by the plan's TF32 kernel. */
tsr_status queue_tf32(launch_queue *queue, const cuda_plan *plan, const tsr_problem *chunk, char *workspace);

/* Recomputes in TF32 what of C a tf32 split kernel left. */
tsr_status queue_tf32_recompute(launch_queue *queue, const cuda_plan *plan, const tsr_problem *chunk,
                                const split_args *split);

/* ---- pack.c ------------------------------------------------------------------------------------------------------ */

/* An operand as the split kernels see it: `rows` rows of length k, in panels somewhere. */
typedef struct split_source {
    const float *data;
    int64_t rows, k, row_stride, k_stride, batch_stride;
    int64_t batch; /* items with a matrix of their own; 1 where all share it */
    int components;
    bool by_row;
    char *memory; /* the panels, laid out so: */
    const panels_layout *layout;
    int64_t first_row; /* of ours among those in the panels, a multiple of PANEL_ROWS */
} split_source;

split_operand panels_of(const split_source *source);

/* Packs one or two operands; NULL: none. */
tsr_status queue_pack(launch_queue *queue, const split_source *first, const split_source *second);

/* ---- split.c ----------------------------------------------------------------------------------------------------- */

/* One chunk of a product, packed and multiplied by the plan's split kernel. */
tsr_status queue_split(launch_queue *queue, const cuda_plan *plan, const tsr_problem *problem,
                       const problem_range *chunk, char *workspace);

#endif
