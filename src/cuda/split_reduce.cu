/* split_reduce.cu: adds up the slices of k that a split kernel left in `partial`, and applies alpha and beta.
 *
 * C = alpha * (slice 0 + slice 1 + ...) + beta*S, always in this order, so that the same problem gives the same bits.
 * A warp has a block of DOUBT_ROWS x DOUBT_COLS of C, a thread one of its columns; blocks that are left to ieee, because
 * of their tile's marks or of a sum that is too small to be good, are left here. Limits: 128 threads, no shared memory;
 * grid.x covers the blocks of one product, four to a block of threads, grid.y is the batch.
 */
#include "args.h"
#include "split.cuh"

constexpr int THREADS = 128;
static_assert(DOUBT_COLS == 32, "a thread of a warp has a column");

extern "C" __global__ void __launch_bounds__(THREADS) split_reduce(const __grid_constant__ split_args g) {
    wait_for_previous_kernel();
    const int batch = blockIdx.y, blocks_n = divide_up(g.n, DOUBT_COLS);
    const int64_t block = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int row0 = (int)(block / blocks_n) * DOUBT_ROWS, col0 = (int)(block % blocks_n) * DOUBT_COLS;
    if (row0 >= g.m) return;
    const verdict on = verdict_on(g, batch, row0, col0);
    if (on == LEAVE) return;

    const int rows = min(DOUBT_ROWS, g.m - row0), col = min(col0 + (int)threadIdx.x % 32, g.n - 1);
    const bool there = col0 + (int)threadIdx.x % 32 < g.n;
    const int64_t size = (int64_t)g.m * g.n;
    const float *part = g.partial + batch * g.slices * size + (int64_t)row0 * g.n + col;
    float sums[DOUBT_ROWS] = {};
    for (int slice = 0; slice < g.slices; slice++, part += size)
#pragma unroll
        for (int r = 0; r < DOUBT_ROWS; r++)
            if (r < rows) sums[r] += part[(int64_t)r * g.n];

    if (on == LOOK) {
        const row_doubt of_b(g, g.b, batch, col);
        const float up_b = power_of_two(exponent_of(g.b, batch, col, g.n));
        bool doubtful = false;
#pragma unroll
        for (int r = 0; r < DOUBT_ROWS; r++)
            if (there && r < rows) {
                const float up_a = power_of_two(exponent_of(g.a, batch, row0 + r, g.m));
                doubtful |= is_doubtful(sums[r] * up_a * up_b, row_doubt(g, g.a, batch, row0 + r), of_b);
            }
        if (note_doubt(g, batch, row0, col0, doubtful)) return;
    }
    if (!there) return;
    float *to = g.c.data + batch * g.c.batch_stride + row0 * g.c.row_stride + col * g.c.col_stride;
    const float *from = g.source.data + batch * g.source.batch_stride + row0 * g.source.row_stride +
                        col * g.source.col_stride;
#pragma unroll
    for (int r = 0; r < DOUBT_ROWS; r++)
        if (r < rows) {
            float *at = to + r * g.c.row_stride;
            *at = g.beta == 0 ? g.alpha * sums[r] : fmaf(g.beta, from[r * g.source.row_stride], g.alpha * sums[r]);
        }
}
