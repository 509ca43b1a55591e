#include "ieee_tile.cuh"
using tile = ieee_tile<128, 64, 2, 2, 8, 8, 32, 8, 2, false>;
extern "C" __global__ void __launch_bounds__(128, 3) ieee_tile_128x64(const __grid_constant__ ieee_args args) {
    tile::run(args);
}
