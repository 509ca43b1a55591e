/* ieee_tile_128x128.cu: C = alpha*A*B + beta*S in IEEE float32, tiles of 128 x 128: large products, and the tiles of a
 * split product that are marked to be computed again.
 *
 * Layouts and tile map: ieee_tile.cuh. 2 x 2 warps of 64 x 64, 4 x 8 lanes of 16 x 8: 6 loads of 16 bytes from shared
 * memory for 128 fma.
 * Limits: 128 threads, at most 255 registers, 67,584 bytes of shared memory (more than Turing has): 2 blocks per SM
 * (1 with 100 KB of shared memory: sm_86, sm_89, sm_120).
 */
#include "cuda/kernels/ieee/ieee_tile.cuh"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/ptx.cuh"

using tile_128x128 = ieee_tile<128, 128, 2, 2, 16, 8, 32, 8, 2, true>;
ASSERT_LISTED_AS(IEEE_TILE_128X128, tile_128x128::M, tile_128x128::N, tile_128x128::THREADS,
                 tile_128x128::SHARED_BYTES);

extern "C" __global__ void __launch_bounds__(128, 2) ieee_tile_128x128(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    allow_next_kernel();
    tile_128x128::run(args);
}
