/* split_fp32_sm90.cu: C = alpha*A*B + beta*S from split operands (args.h), float32 accuracy, on Hopper's wgmma.
 *
 * Arithmetic and order of the products: split_wgmma.cuh.
 *
 * Tile map: tiles of 128 x 128. Of 384 threads, one thread of warpgroup 0 copies; warpgroups 1 and 2 multiply 64 rows
 * of the tile each.
 *
 * Names: wg warpgroup; kb block of k.
 * Limits: 232 registers in warpgroups 1 and 2 (3 x 64 of them accumulators), 40 in warpgroup 0; 3 stages of 64 KB; one
 * thread block per SM.
 */
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/split/split_wgmma.cuh"

/* ---- The fp32 kernel --------------------------------------------------------------------------------------------- */

constexpr int TILE_M = 128, TILE_N = 128, STAGES = 3;
typedef shared_layout<stage<TILE_M, TILE_N, 2>, STAGES, 8> SHARED;
static_assert(TILE_M == 2 * WG_ROWS, "two warpgroups share a tile's rows");
static_assert(sizeof(SHARED) <= 227 * 1024, "what a block may use on Hopper");

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1) split_fp32_sm90(const __grid_constant__ split_args g) {
    SHARED &s = *(SHARED *)dynamic_shared<1024>();
    make_barriers(s);

    const int wg = warp_number() / (WARPGROUP / 32);
    if (wg == 0) {
        registers_release_to<40>();
        if (threadIdx.x == 0) produce(g, s);
        return;
    }
    registers_take<232>();
    wait_for_previous_kernel();
    allow_next_kernel();
    const int row = (wg - 1) * WG_ROWS;
    const auto release = [&](int stage) {
        if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[stage]);
    };
    ring<STAGES> at;
    for (int index = blockIdx.x; index < work_count(g); index += gridDim.x) {
        const work w = work_at<TILE_M, TILE_N>(g, index);
        const output<TILE_N> out(g, w, w.m0 + row);
        const bool short_end = g.short_end && w.kb_end == g.k_blocks && w.kb_end - w.kb_begin > 1;
        accumulators sums;
        multiply_blocks<false>(sums, s.stages, s.full, at, row, w.kb_begin, w.kb_end - short_end, release);
        if (short_end) { /* of the last block only the first part; the rest is zeros */
            barrier_wait(&s.full[at.index], at.phase);
            wgmma_fence();
            const stage_products products(s.stages, at.index, row);
            products.issue_hi_hi(sums.hi_hi, 0);
            products.issue_corrections(sums.corr, 0, true);
            wgmma_wait<0>();
            hold(sums.hi_hi);
#pragma unroll
            for (int i = 0; i < 64; i++) sums.main[i] += sums.hi_hi[i];
            release(at.index);
            at.advance();
        }
        add_corrections(sums);
        out.store(g, w, sums.main, s.out[threadIdx.x / 32 - 4]);
    }
}

ASSERT_LISTED_AS(SPLIT_FP32_SM90, TILE_M, TILE_N, 3 * WARPGROUP, sizeof(SHARED));
