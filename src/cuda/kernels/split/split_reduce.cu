/* split_reduce.cu: adds up the k slices that a split kernel left in `partial`, and applies alpha and beta.
 *
 * C = alpha * (slice 0 + slice 1 + ...) + beta*S, always in this order, so that the same problem gives the same bits.
 * Rows of check blocks that are left to ieee, because of their tile's marks or a sum that is too small, are not stored.
 *
 * Tile map: a warp has a check block of C, a thread one of its columns. grid.x covers the check blocks of one product,
 * four for each thread block; grid.y is the batch.
 * Limits: 128 threads, no shared memory.
 */
#include "cuda/kernels/args.h"
#include "cuda/kernels/split/split.cuh"

constexpr int THREADS = 128;
static_assert(CHECK_COLS == 32, "a thread of a warp has a column");

extern "C" __global__ void __launch_bounds__(THREADS, 8) split_reduce(const __grid_constant__ split_args g) {
    wait_for_previous_kernel();
    allow_next_kernel();
    const int batch = blockIdx.y, lane = threadIdx.x % 32;
    const uint32_t blocks_n = ceil_div(g.n, CHECK_COLS), block = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int row0 = block / blocks_n * CHECK_ROWS, col0 = block % blocks_n * CHECK_COLS;
    if (row0 >= g.m) return;
    const action action = action_for(g, mark_of(g.a, batch, row0), mark_of(g.b, batch, col0));
    const int rows = min(CHECK_ROWS, g.m - row0), col = min(col0 + lane, g.n - 1);
    const bool there = col0 + lane < g.n;
    const int64_t size = (int64_t)g.m * g.n;
    const float *slice = g.partial + batch * g.slices * size + (int64_t)row0 * g.n + col;
    float sums[CHECK_ROWS] = {};
    for (int i = 0; i < g.slices; i++, slice += size) {
        const float *from = slice;
#pragma unroll
        for (int r = 0; r < CHECK_ROWS; r++, from += g.n)
            if (r < rows) sums[r] += *from;
    }
    if (action == RECOMPUTE) return;

    unsigned left = 0;
    if (action == CHECK_SUMS) {
        const int row = row0 + min(lane, rows - 1); /* number `lane` */
        const float of_row = least_sum_of_a(g, batch, row, col0), of_col = least_sum(g, g.b, batch, col);
        const int exponent_a = exponent_of(g.a, batch, row, g.m), exponent_b = exponent_of(g.b, batch, col, g.n);
#pragma unroll
        for (int r = 0; r < CHECK_ROWS; r++) {
            const float least = __shfl_sync(0xffffffffu, of_row, r) + of_col;
            const float sum = scaled_back(sums[r], -(__shfl_sync(0xffffffffu, exponent_a, r) + exponent_b));
            const bool too_small = r < rows && there && !(fabsf(sum) >= least);
            left |= (unsigned)__any_sync(0xffffffffu, too_small) << r;
        }
        note_rows(g, batch, row0, col0, left);
    }
    if (!there) return;
    float *to = g.c.data + batch * g.c.batch_stride + row0 * g.c.row_stride + col * g.c.col_stride;
    const float *from = g.addend.data + batch * g.addend.batch_stride + row0 * g.addend.row_stride +
                        col * g.addend.col_stride;
#pragma unroll
    for (int r = 0; r < CHECK_ROWS; r++, to += g.c.row_stride, from += g.addend.row_stride)
        if (r < rows && !(left >> r & 1))
            *to = g.beta == 0 ? g.alpha * sums[r] : fmaf(g.beta, *from, g.alpha * sums[r]);
}
