/* split_tf32_sm90.cu: C = alpha*A*B + beta*S from the hi components of split operands (args.h), on Hopper's wgmma.
 *
 * The tensor cores sum hi_a*hi_b over all of k. Stages and epilogue: split_wgmma.cuh.
 *
 * Tile map: tiles of 128 x 256. Of 384 threads, one thread of warpgroup 0 copies; warpgroups 1 and 2 multiply 64 rows
 * of the tile each.
 *
 * Names: wg warpgroup; kb block of k.
 * Limits: 232 registers in warpgroups 1 and 2 (128 of them accumulators), 40 in warpgroup 0; 4 stages of 48 KB; one
 * thread block per SM.
 */
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/split/split_wgmma.cuh"

constexpr int TILE_M = 128, TILE_N = 256, STAGES = 4;
typedef stage<TILE_M, TILE_N, 1> STAGE;
typedef shared_layout<STAGE, STAGES, 8> SHARED;
static_assert(TILE_M == 2 * WG_ROWS, "two warpgroups share a tile's rows");
static_assert(sizeof(SHARED) <= 227 * 1024, "what a block may use on Hopper");
ASSERT_LISTED_AS(SPLIT_TF32_SM90, TILE_M, TILE_N, 3 * WARPGROUP, sizeof(SHARED));

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1) split_tf32_sm90(const __grid_constant__ split_args g) {
    SHARED &s = *(SHARED *)dynamic_shared<1024>();
    make_barriers(s);

    const int wg = warp_number() / (WARPGROUP / 32);
    if (wg == 0) {
        registers_release_to<40>();
        if (threadIdx.x == 0) produce<false>(g, s, [] { return false; });
        return;
    }
    registers_take<232>();
    wait_for_previous_kernel();
    allow_next_kernel();
    const int row = (wg - 1) * WG_ROWS;
    ring<STAGES> at;
    for (int index = blockIdx.x; index < work_count(g); index += gridDim.x) {
        const work w = work_at<TILE_M, TILE_N>(g, index);
        const output<TILE_N> out(g, w, w.m0 + row);
        float sums[128];
        int previous = -1;
#pragma unroll 1
        for (int kb = w.kb_begin; kb < w.kb_end; kb++) {
            barrier_wait(&s.full[at.index], at.phase);
            const uint32_t a = tile_address(s.stages) + (at.index * (int)sizeof(STAGE) + row * SPLIT_ROW_BYTES) / 16;
            const uint32_t b = tile_address(s.stages) + (at.index * (int)sizeof(STAGE) + (int)sizeof(s.stages->a)) / 16;
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < STEPS; i++) wgmma_64x256x16(sums, a + 2 * i, b + 2 * i, kb > w.kb_begin || i > 0);
            wgmma_commit();
            wgmma_wait<1>(); /* the products of the stage before this one are done */
            if (previous >= 0 && threadIdx.x % 32 == 0) barrier_arrive(&s.empty[previous]);
            previous = at.index;
            at.advance();
        }
        wgmma_wait<0>();
        hold(sums);
        if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[previous]);
        out.store(g, w, sums, s.out[threadIdx.x / 32 - 4]);
    }
}
