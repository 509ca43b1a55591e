/* ieee_reduce.cu: adds up the segments of the tiles of the stream-K tail, and applies alpha and beta.
 *
 * C = alpha * (segment 0 + segment 1 + ...) + beta*S, always in this order: the same problem gives the same bits. A
 * thread has four neighbouring columns, a block 512 elements of one tile of partial (ieee_args). Neighbouring threads
 * have neighbours in C, whichever of rows and columns is contiguous. Limits: 128 threads, no shared memory;
 * tile_m*tile_n a multiple of 128, tile_n of 4; grid.x = tail tiles times
 * ceil(tile_m*tile_n / 512), grid.z = batch.
 */
#include "cuda/kernels/ieee/ieee_order.cuh"
#include "cuda/kernels/ptx.cuh"

/* Four neighbours. Those from `count` on are past the matrix, where nothing was written. */
static __device__ __forceinline__ float4 four_of(const float *from, int count) {
    if (count >= 4) return *(const float4 *)from;
    return make_float4(from[0], count > 1 ? from[1] : 0, count > 2 ? from[2] : 0, 0);
}

extern "C" __global__ void __launch_bounds__(128) ieee_reduce(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    const int tile_size = args.tile_m * args.tile_n, parts = (tile_size + 511) / 512;
    const int tail = blockIdx.x / parts, part = blockIdx.x - tail * parts;
    const int64_t runs = runs_per_tile(args), tail_runs = runs * tail_tiles(args);
    const int64_t first = block_of_run(args, tail * runs, tail_runs);
    const int segments = (int)(block_of_run(args, (tail + 1) * runs - 1, tail_runs) - first) + 1;
    if (segments == 1) return; /* the multiplication has stored it */

    int tile_row, tile_col;
    find_tile(args, args.full_tiles + tail, &tile_row, &tile_col);
    int in_tile = (part * 128 + (int)threadIdx.x) * 4;
    if (args.c.row_stride == 1 && args.tile_m % 32 == 0 && args.tile_n % 16 == 0) { /* 32 rows, 16 columns */
        const int down = args.tile_m / 32, row0 = part % down * 32, col0 = part / down * 16;
        in_tile = (row0 + (int)threadIdx.x % 32) * args.tile_n + col0 + (int)threadIdx.x / 32 * 4;
    }
    const int row_in_tile = in_tile / args.tile_n;
    const int row = tile_row * args.tile_m + row_in_tile;
    const int col = tile_col * args.tile_n + in_tile - row_in_tile * args.tile_n;
    if (in_tile >= tile_size || row >= args.m || col >= args.n) return;

    const float *from = partial_tile(args, args.full_tiles + tail, 0) + in_tile;
    float4 sum = four_of(from, args.n - col);
#pragma unroll 4
    for (int i = 1; i < segments; ++i) {
        const float4 next = four_of(from + (int64_t)i * tile_size, args.n - col);
        sum.x += next.x;
        sum.y += next.y;
        sum.z += next.z;
        sum.w += next.w;
    }
    float *at = args.c.data + blockIdx.z * args.c.batch_stride + row * args.c.row_stride + col * args.c.col_stride;
    const float *add = args.addend.data + blockIdx.z * args.addend.batch_stride + row * args.addend.row_stride +
                       col * args.addend.col_stride;
    const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i, at += args.c.col_stride, add += args.addend.col_stride)
        if (col + i < args.n)
            *at = args.beta == 0.0f ? args.alpha * sums[i] : fmaf(args.alpha, sums[i], args.beta * *add);
}
