/* marks.cuh: what the marks of a panel of A and of one of B (args.h) say about the sums of the two. */
#ifndef TESSERA_CUDA_MARKS_CUH
#define TESSERA_CUDA_MARKS_CUH

#include "cuda/kernels/ptx.cuh"

/* What happens to the sums of a tile: ieee recomputes them all, each check block is tested, or all are stored. */
enum action { RECOMPUTE, CHECK_SUMS, STORE };

/* checks: whether there are flags for check blocks. by_row: a row must be stored, or recomputed, whatever the other
 * rows of its panel are. So if the mark says that some row has a tiny element, or one that does not fit, the counts of
 * each row decide. */
__device__ inline action action_for(float mark_a, float mark_b, float mark_limit, bool by_row, bool checks) {
    const bool rows_decide = by_row && mark_a > 1.0f;
    if (!rows_decide && mark_a * mark_b <= mark_limit) return STORE;
    return checks && (rows_decide ? mark_b : mark_a * mark_b) < INFINITY ? CHECK_SUMS : RECOMPUTE;
}

#endif
