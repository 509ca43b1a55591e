// region: kernel
/* The kernel. A block has 128 threads. A tile of C belongs to a cluster of two blocks, 64 rows each; a block's one
 * warpgroup copies and multiplies in turn, and two blocks share an SM. Both blocks need the same columns of B, of which
 * each copies half, to both. */
constexpr int CLUSTER = 2, STAGES = 2, WARPS = 4;
typedef shared_layout<WG_ROWS, STAGES, WARPS> SHARED;
static_assert(sizeof(SHARED) == MULTIPLY_SHARED && WARPGROUP == MULTIPLY_THREADS && CLUSTER == MULTIPLY_CLUSTER,
              "what the host asks for");

/* Copies a quarter of each stage, block after block of k and tile after tile: hi or lo of this block's rows of A (warps
 * 0 and 2), or of its half of the columns of B, for both blocks (warps 1 and 3). Issuing a copy takes long, hence a
 * quarter for each warp. What is needed AHEAD blocks later is prefetched into L2, since two stages do not cover the
 * latency of device memory; the tiles that share these rows, neighbours in a band, prefetch a part each. */
struct quarter_copier {
    static constexpr int B_ROWS = TILE / CLUSTER, AHEAD = 4, PREFETCH_PARTS = GROUP;
    ring<STAGES> at;
    int rank, component, index, blocks_left; /* blocks_left: of k, in tile `index`; 0: there are no more tiles */
    bool of_b, copies;
    const uint8_t *from;
    uint32_t step, bytes, landing, ahead; /* landing: bytes that come from both blocks; ahead: to what to prefetch */

    __device__ quarter_copier(const product &g, int rank, int warp)
        : rank(rank), component(warp / 2), of_b(warp % 2), copies(elected()) {
        begin(g, blockIdx.x / CLUSTER);
    }
    __device__ void begin(const product &g, int tile_index) {
        index = tile_index, blocks_left = 0;
        if (index >= tile_count<TILE>(g)) return;
        const tile t = tile_at<TILE, GROUP>(g, index);
        blocks_left = ceil_div(g.a.k, SPLIT_K);
        const panel_rows rows = of_b ? panel_rows_at<B_ROWS>(g.b, t.batch, t.n0 + rank * B_ROWS)
                                     : panel_rows_at<WG_ROWS>(g.a, t.batch, t.m0 + rank * WG_ROWS);
        from = rows.from + component * rows.component_stride;
        step = 2 * rows.component_stride, bytes = rows.bytes;
        landing = of_b ? panel_rows_at<TILE>(g.b, t.batch, t.n0).bytes : bytes;
        ahead = AHEAD * step + (of_b ? t.m0 / TILE : t.n0 / TILE) % PREFETCH_PARTS * (bytes / PREFETCH_PARTS);
    }
    __device__ void copy_next(const product &g, SHARED &s) {
        if (!blocks_left) return;
        auto &to = s.stages[at.index];
        uint64_t *full = &s.full[at.index];
        barrier_wait(&s.empty[at.index], at.phase ^ 1);
        if (copies) {
            barrier_arrive_and_expect(full, landing);
            if (bytes && of_b)
                bulk_copy_to_blocks(to.b[component] + rank * B_ROWS * SPLIT_ROW_BYTES, from, bytes, full, 3);
            else if (bytes)
                bulk_copy(to.a[component], from, bytes, full);
            if (bytes && blocks_left > AHEAD) bulk_prefetch(from + ahead, bytes / PREFETCH_PARTS);
        }
        from += step, at.advance();
        if (--blocks_left == 0) begin(g, index + gridDim.x / CLUSTER);
    }
};

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(WARPGROUP, 2)
    multiply_sm90_t128(const __grid_constant__ product g) {
    SHARED &s = *(SHARED *)shared_memory;
    s.make_barriers(WARPS, CLUSTER * WARPS);
    cluster_sync();
    wait_for_previous_kernel(), allow_next_kernel();
    const int warp = warp_number();
    int rank; /* of this block in its cluster */
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    quarter_copier copier(g, rank, warp);
    for (int i = 0; i < STAGES; i++) copier.copy_next(g, s);
    /* Releases a stage in both blocks, which copy into it; then this warp copies its next quarter. */
    const auto release = [&](int stage) {
        if (threadIdx.x % 32 < CLUSTER) barrier_arrive_in(&s.empty[stage], threadIdx.x % 32);
        copier.copy_next(g, s);
    };
    ring<STAGES> at;
    for (int index = blockIdx.x / CLUSTER; index < tile_count<TILE>(g); index += gridDim.x / CLUSTER) {
        const tile t = tile_at<TILE, GROUP>(g, index);
        accumulators sums;
        sums.begin();
        multiply_blocks<true>(sums, true, s.stages, s.full, at, 0, ceil_div(g.a.k, SPLIT_K), release, [] {});
        const output out(g, t, t.m0 + rank * WG_ROWS); /* only now: while this waits, the SM's other block multiplies */
        add_corrections(sums);
        out.store(g, t, sums.main, s.out[warp]);
    }
    cluster_sync(); /* the other block may still release stages to this one */
}
// endregion: kernel
