/* ieee_order.cuh: the order in which the ieee kernels number the tiles of C. */
#pragma once

#include "args.h"

/* Tiles are numbered in bands of 16 tile rows, down each column of a band: blocks that run together then share few
 * panels of A and of B, which the L2 cache holds. */
static __device__ __forceinline__ void find_tile(const ieee_args &args, int tile, int *tile_row, int *tile_col) {
    constexpr int BAND = 16;
    const int band = tile / (BAND * args.tiles_n);
    const int rows = min(BAND, args.tiles_m - band * BAND);
    const int in_band = tile - band * BAND * args.tiles_n;
    *tile_row = band * BAND + in_band % rows;
    *tile_col = in_band / rows;
}
