/* split_reduce.cu: adds up the k slices that a split kernel left in `partial`, and applies alpha and beta.
 *
 * C = alpha * (slice 0 + slice 1 + ...) + beta*S, always in this order, so that the same problem gives the same bits.
 * Rows of check blocks that are left to ieee, because of their tile's marks or a sum that is too small, are not stored.
 *
 * Tile map: a warp has a check block of C, a thread one of its columns. grid.x covers the check blocks of the tiles
 * that are in slices, four for each thread block; grid.y is the batch.
 * Limits: 128 threads, no shared memory.
 */
#include "cuda/kernels/args.h"
#include "cuda/kernels/split/split.cuh"

constexpr int THREADS = 128;
static_assert(CHECK_COLS == 32, "a thread of a warp has a column");

/* Adds a thread's column of all slices, in order. The pitch is a constant and all loads of a slice come before its
 * additions: otherwise each would wait for the one before it. */
template <int PITCH>
__device__ void add_slices(float (&sums)[CHECK_ROWS], const float *slice, int64_t size, int slices, int rows) {
#pragma unroll 1
    for (int i = 0; i < slices; i++, slice += size) {
        float x[CHECK_ROWS];
        if (rows == CHECK_ROWS) {
#pragma unroll
            for (int r = 0; r < CHECK_ROWS; r++) x[r] = slice[r * PITCH];
        } else {
#pragma unroll
            for (int r = 0; r < CHECK_ROWS; r++) x[r] = r < rows ? slice[r * PITCH] : 0;
        }
#pragma unroll
        for (int r = 0; r < CHECK_ROWS; r++) sums[r] += x[r];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 8) split_reduce(const __grid_constant__ split_args g) {
    wait_for_previous_kernel();
    allow_next_kernel();
    const int batch = blockIdx.y, lane = threadIdx.x % 32;
    const int down = g.tile_m / CHECK_ROWS, across = g.tile_n / CHECK_COLS;
    const int block = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, part = block / (down * across);
    const int row_in_tile = block / across % down * CHECK_ROWS, col_in_tile = block % across * CHECK_COLS;
    const tile_place tile = tile_at_number(g, g.full_tiles + part);
    const int row0 = tile.row * g.tile_m + row_in_tile, col0 = tile.col * g.tile_n + col_in_tile;
    if (part >= cut_tiles(g) || row0 >= g.m || col0 >= g.n) return;
    const action action = action_for(g, mark_of(g.a, batch, row0), mark_of(g.b, batch, col0));
    const int rows = min(CHECK_ROWS, g.m - row0), col = min(col0 + lane, g.n - 1);
    const bool there = col0 + lane < g.n;
    const int64_t area = g.tile_m * g.tile_n, size = cut_tiles(g) * area;
    const float *slice = g.partial + batch * g.slices * size + part * area + row_in_tile * g.tile_n + col -
                         tile.col * g.tile_n;
    float sums[CHECK_ROWS] = {};
    if (g.tile_n == PANEL_ROWS)
        add_slices<PANEL_ROWS>(sums, slice, size, g.slices, rows);
    else
        add_slices<2 * PANEL_ROWS>(sums, slice, size, g.slices, rows);
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
