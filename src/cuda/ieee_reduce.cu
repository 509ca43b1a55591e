/* ieee_reduce.cu: adds up the k slices of the tiles that were cut, and applies alpha and beta.
 *
 * C = alpha * (partial slice 0 + slice 1 + ...) + beta*C, always in this order, so that the same problem gives the same
 * bits. One thread per element of partial[batch][tile - full_tiles][slice][tile_m][tile_n], neighbouring threads on
 * neighbouring columns. Limits: 128 threads, no shared memory; grid.x covers the elements of one product, grid.z is the
 * batch.
 */
#include "ieee_order.cuh"

extern "C" __global__ void __launch_bounds__(128) ieee_reduce(const __grid_constant__ ieee_args args) {
    const int64_t tile_size = (int64_t)args.tile_m * args.tile_n;
    const int64_t tail_tiles = (int64_t)args.tiles_m * args.tiles_n - args.full_tiles;
    const int64_t element = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, batch = blockIdx.z;
    if (element >= tail_tiles * tile_size) return;
    const int tail = (int)(element / tile_size), in_tile = (int)(element % tile_size);
    int tile_row, tile_col;
    find_tile(args, args.full_tiles + tail, &tile_row, &tile_col);
    const int row = tile_row * args.tile_m + in_tile / args.tile_n, col = tile_col * args.tile_n + in_tile % args.tile_n;
    if (row >= args.m || col >= args.n) return;

    const float *from = args.partial + (batch * tail_tiles + tail) * args.slices * tile_size + in_tile;
    float sum = from[0];
#pragma unroll 4
    for (int slice = 1; slice < args.slices; ++slice) sum += from[slice * tile_size];
    float *at = args.c.data + batch * args.c.batch_stride + row * args.c.row_stride + col * args.c.col_stride;
    *at = args.beta == 0.0f ? args.alpha * sum : fmaf(args.alpha, sum, args.beta * *at);
}
