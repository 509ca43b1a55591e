/* ieee_tile_128x64.cu: C = alpha*A*B + beta*S in IEEE float32, tiles of 128 x 64: medium and narrow products.
 *
 * Layouts and tile map: ieee_tile.cuh. 2 x 2 warps of 64 x 32, 8 x 4 lanes of 8 x 8: 4 loads of 16 bytes from shared
 * memory for 64 fma.
 * Limits: 128 threads, at most 168 registers, 51,200 bytes of shared memory: 3 blocks per SM (1 before sm_80).
 */
#include "cuda/kernels/ieee/ieee_tile.cuh"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/ptx.cuh"

using tile_128x64 = ieee_tile<128, 64, 2, 2, 8, 8, 32, 8, 2, true>;
ASSERT_LISTED_AS(IEEE_TILE_128X64, tile_128x64::M, tile_128x64::N, tile_128x64::THREADS, tile_128x64::SHARED_BYTES);

extern "C" __global__ void __launch_bounds__(128, 3) ieee_tile_128x64(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    allow_next_kernel();
    tile_128x64::run(args);
}
