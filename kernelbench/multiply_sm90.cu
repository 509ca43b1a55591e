// region: kernel
/* The kernel. Of 384 threads, one thread of warpgroup 0 copies; warpgroups 1 and 2 multiply 64 rows of the tile each,
 * with 232 registers, of which 3 x 64 are accumulators. One thread block per SM. */
constexpr int STAGES = 3;
typedef shared_layout<TILE, STAGES, 8> SHARED;
static_assert(sizeof(SHARED) == MULTIPLY_SHARED && 3 * WARPGROUP == MULTIPLY_THREADS, "what the host asks for");

__device__ void produce(const product &g, SHARED &s) {
    ring<STAGES> at;
    for (int index = blockIdx.x; index < tile_count<TILE>(g); index += gridDim.x) {
        const tile t = tile_at<TILE, GROUP>(g, index);
        panel_rows a = panel_rows_at<TILE>(g.a, t.batch, t.m0), b = panel_rows_at<TILE>(g.b, t.batch, t.n0);
        wait_for_previous_kernel(); /* only now: where to copy from was computed while it ended */
        allow_next_kernel();
#pragma unroll 1
        for (int kb = ceil_div(g.a.k, SPLIT_K); kb > 0; kb--, at.advance()) {
            uint64_t *full = &s.full[at.index];
            barrier_wait(&s.empty[at.index], at.phase ^ 1);
            barrier_arrive_and_expect(full, 2 * (a.bytes + b.bytes));
#pragma unroll
            for (int c = 0; c < 2; c++) {
                bulk_copy(s.stages[at.index].a[c], a.from, a.bytes, full);
                bulk_copy(s.stages[at.index].b[c], b.from, b.bytes, full);
                a.from += a.component_stride, b.from += b.component_stride;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1) multiply_sm90(const __grid_constant__ product g) {
    SHARED &s = *(SHARED *)shared_memory;
    s.make_barriers(1, 8);
    const int wg = warp_number() / (WARPGROUP / 32);
    if (wg == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); /* the other registers go to warpgroups 1 and 2 */
        if (threadIdx.x == 0) produce(g, s);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_for_previous_kernel(), allow_next_kernel();
    const int row = (wg - 1) * WG_ROWS, k_blocks = ceil_div(g.a.k, SPLIT_K);
    const bool short_end = (g.a.k - 1) % SPLIT_K < SPLIT_SUM_K; /* k ends in the first part of its last block */
    const auto release = [&](int stage) {
        if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[stage]);
    };
    ring<STAGES> at;
    for (int index = blockIdx.x; index < tile_count<TILE>(g); index += gridDim.x) {
        const tile t = tile_at<TILE, GROUP>(g, index);
        const output out(g, t, t.m0 + row); /* loaded now, so that nothing waits for it after the products */
        accumulators sums;
        sums.begin();
        multiply_blocks<false>(sums, true, s.stages, s.full, at, row, k_blocks - short_end, release, [] {});
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
            release(at.index), at.advance();
        }
        add_corrections(sums);
        out.store(g, t, sums.main, s.out[threadIdx.x / 32 - 4]);
    }
}
// endregion: kernel
