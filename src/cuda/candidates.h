/* candidates.h: the candidates for a plan. Each kernel that could compute a product, with k whole or cut, is one. */
#ifndef TESSERA_CUDA_CANDIDATES_H
#define TESSERA_CUDA_CANDIDATES_H

#include "cuda/cost.h"

enum { CUDA_THIN = 8 }; /* C with as few columns or rows is for the thin kernels */

/* Below this k the error of splitting an operand would show beside float32's own, (k + 2) 2^-24. Hopper's tensor cores
 * truncate less; but tiny elements in an operand of fewer than CUDA_MIN_SPLIT_K terms cost much time, or in a
 * batch-invariant product any (docs/internals/numerics.md). */
enum { CUDA_MIN_SPLIT_K = 128, CUDA_MIN_HOPPER_K = 64 };

enum { CUDA_ALIGNMENT = 256 }; /* of everything in a workspace that kernels read by vectors */

/* Whether a kernel computes such products tile by tile. */
bool cuda_computes_tiles(const cuda_kernel *kernel, const tsr_problem *problem);

/* Whether the long operand lies as a kernel for few columns reads it. */
bool cuda_can_read(const cuda_kernel *kernel, const tsr_problem *problem);

/* As many thread blocks as fit on the GPU at once. */
int64_t cuda_wave_of(const cuda_device *device, const cuda_kernel *kernel);

double cuda_elements_of_a(const tsr_problem *problem);
double cuda_elements_of_b(const tsr_problem *problem);

/* How a TF32 kernel reads a product's operands. Those with lines that are not a multiple of four floats apart are
 * copied first, to rows along k; and so is a B that lies across k, unless the kernel is to turn it. */
typedef struct tf32_reading {
    bool a_across, b_across; /* rows of A, columns of B are neighbours in memory */
    bool copies_a, copies_b;
} tf32_reading;

tf32_reading tf32_reading_of(const tsr_problem *problem, bool turns_b);

/* How many elements of both operands are copied. */
double tf32_elements_copied(const tsr_problem *problem, bool turns_b);
size_t tf32_bytes_of_copies(const tsr_problem *problem, bool turns_b);

/* Bytes of the copy of an operand, seen as rows along k. */
size_t tf32_copy_bytes(int64_t rows, int64_t k, int64_t items);

/* Whether less is copied for C^T = B^T A^T. */
bool tf32_reads_better_transposed(const tsr_problem *problem);

/* The candidate that computes every tile whole. */
cuda_candidate candidate_whole(const cuda_kernel *kernel, const tsr_problem *problem);

/* The same with tiles [0, full_tiles) whole and the k ranges of the others shared by `tail_blocks` thread blocks. */
cuda_candidate candidate_with_tail(cuda_candidate whole, const tsr_problem *problem, int64_t full_tiles,
                                   int64_t tail_blocks);

/* The same with the tiles from full_tiles on in `slices` slices of k; fewer if rounding would leave one empty. */
cuda_candidate candidate_with_slices(cuda_candidate whole, const tsr_problem *problem, int64_t full_tiles,
                                     int64_t slices);

/* A TF32 kernel with every tile's k in `cuts` parts, for the thread blocks of a cluster, or, without `parts`, slices;
 * fewer if rounding would leave one empty. */
cuda_candidate candidate_with_cuts(const cuda_kernel *kernel, const tsr_problem *problem, int64_t cuts, bool parts);

/* The fastest way of one kernel, which must be able to compute the product; none where max_workspace leaves no room for
 * a TF32 kernel's copies. */
cuda_candidate candidate_of(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *problem,
                            size_t max_workspace);

/* The same of a split kernel. */
cuda_candidate candidate_split(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *problem);

/* The fastest kernel that packs nothing. `split`: those that split what they multiply may be chosen, too. */
cuda_candidate candidate_in_place(const cuda_device *device, const tsr_problem *problem, size_t max_workspace,
                                  bool split);

/* The ieee kernel that recomputes what a split kernel left of a product. `invariant`: the same for every m. */
const cuda_kernel *cuda_recompute_kernel(const cuda_device *device, const tsr_problem *problem, bool invariant);

/* The best of the TF32 kernels; none where the copies they need have no room. */
cuda_candidate candidate_tf32(const cuda_device *device, const tsr_problem *problem, size_t max_workspace);

#endif
