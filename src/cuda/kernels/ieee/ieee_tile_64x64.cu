/* ieee_tile_64x64.cu: C = alpha*A*B + beta*S in IEEE float32, tiles of 64 x 64: small products.
 *
 * Layouts and tile map: ieee_tile.cuh. 2 x 2 warps of 32 x 32, 8 x 4 lanes of 4 x 8: 3 loads of 16 bytes from shared
 * memory for 32 fma.
 * Limits: 128 threads, at most 96 registers, 34,816 bytes of shared memory: 5 blocks per SM (1 before sm_80).
 */
#include "cuda/kernels/ieee/ieee_tile.cuh"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/ptx.cuh"

using tile_64x64 = ieee_tile<64, 64, 2, 2, 4, 8, 32, 8, 2, true>;
ASSERT_LISTED_AS(IEEE_TILE_64X64, tile_64x64::M, tile_64x64::N, tile_64x64::THREADS, tile_64x64::SHARED_BYTES);

extern "C" __global__ void __launch_bounds__(128, 5) ieee_tile_64x64(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    allow_next_kernel();
    tile_64x64::run(args);
}
