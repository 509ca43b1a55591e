#include "ieee_tile.cuh"
using tile = ieee_tile<64, 64, 2, 2, 8, 4, 32, 8, 2, false>;
extern "C" __global__ void __launch_bounds__(128, 5) ieee_tile_64x64(const __grid_constant__ ieee_args args) {
    tile::run(args);
}
