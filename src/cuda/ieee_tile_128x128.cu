#include "ieee_tile.cuh"
using tile = ieee_tile<128, 128, 2, 2, 16, 8, 32, 8, 2, true>;
extern "C" __global__ void __launch_bounds__(128, 2) ieee_tile_128x128(const __grid_constant__ ieee_args args) {
    tile::run(args);
}
