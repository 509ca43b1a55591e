/* split_fp32_sm90_t128.cu: C = alpha*A*B + beta*S from split operands (args.h), float32 accuracy, on Hopper's wgmma,
 * with 128 threads per thread block.
 *
 * Arithmetic and order of the products: split_wgmma.cuh.
 *
 * Tile map: tiles of 128 x 128, computed by clusters of two thread blocks, 64 rows each. A block's one warpgroup copies
 * and multiplies in turn. Both blocks need the same columns of B. Each copies half of them, to both, so that L2 is read
 * as often as by one block of 384 threads.
 *
 * Names: rank number of a block in its cluster; kb block of k.
 * Limits: 216 registers; 2 stages of 48 KB; two thread blocks per SM.
 */
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/split/split_wgmma.cuh"

/* ---- The fp32 kernel of 128 threads ------------------------------------------------------------------------------ */

constexpr int TILE_M = 128, TILE_N = 128, CLUSTER = 2; /* the tile is a cluster's */
constexpr int STAGES = 2, WARPS = 4;
typedef stage<WG_ROWS, TILE_N, 2> STAGE;
typedef shared_layout<STAGE, STAGES, WARPS> SHARED;
static_assert(TILE_M == CLUSTER * WG_ROWS, "the warpgroups of a cluster share a tile's rows");
static_assert(TILE_M <= PANEL_ROWS, "so that a block's rows, even past the matrix, have the marks of a panel there is");
static_assert(2 * sizeof(SHARED) <= 226 * 1024, "two blocks share an SM");

/* work_at of a cluster, as block `rank` of it sees it. */
__device__ work work_of(const split_args &g, int index, int rank) {
    work w = work_at<TILE_M, TILE_N>(g, index);
    w.m0 += rank * WG_ROWS;
    return w;
}

/* Copies a quarter of each stage, block after block of k and tile after tile: every warp has one, because issuing a
 * copy takes so long that products would wait for four in a row. The quarters are hi and lo of this block's rows of A
 * (warps 0 and 2), and of its half of the columns of B, for both blocks (warps 1 and 3). All lanes take part, though
 * one issues the copy: see warp_number. Two stages are too few to cover the latency of device memory, so what is needed
 * AHEAD blocks later is prefetched into L2; the tiles that share these rows, neighbours in a band, prefetch a part
 * each. */
struct quarter_copier {
    static constexpr int B_ROWS = TILE_N / CLUSTER, ALL_BLOCKS = (1 << CLUSTER) - 1;
    static constexpr int AHEAD = 4, PREFETCH_PARTS = GROUP_ROWS;
    ring<STAGES> at;
    int rank, component;
    bool of_b, copies;
    int index, blocks_left; /* of `work`; blocks of k of it to copy, 0: there is no more work */
    const uint8_t *from;
    uint32_t step, bytes, landing; /* landing: bytes that arrive in this block's shared memory, from all blocks */
    uint32_t ahead;                /* from `from` to what to prefetch */

    __device__ quarter_copier(const split_args &g, int rank, int warp)
        : rank(rank), component(warp / 2), of_b(warp % 2), copies(elected()) {
        begin(g, blockIdx.x / CLUSTER);
    }

    __device__ void begin(const split_args &g, int work_index) {
        index = work_index;
        blocks_left = 0;
        if (index >= work_count(g)) return;
        const work w = work_of(g, index, rank);
        blocks_left = w.kb_end - w.kb_begin;
        panel_rows rows;
        if (of_b) {
            rows = panel_rows_at<B_ROWS, 2>(g.b, g.n, g.k_blocks, w.batch, w.n0 + rank * B_ROWS, w.kb_begin);
            landing = panel_rows_at<TILE_N, 2>(g.b, g.n, g.k_blocks, w.batch, w.n0, w.kb_begin).bytes;
        } else {
            rows = panel_rows_at<WG_ROWS, 2>(g.a, g.m, g.k_blocks, w.batch, w.m0, w.kb_begin);
            landing = rows.bytes;
        }
        from = rows.from + component * rows.component_stride;
        step = 2 * rows.component_stride;
        bytes = rows.bytes;
        const int tile = of_b ? w.m0 / TILE_M : w.n0 / TILE_N;
        ahead = AHEAD * step + tile % PREFETCH_PARTS * (bytes / PREFETCH_PARTS);
    }

    __device__ void copy_next(const split_args &g, SHARED &s) {
        if (!blocks_left) return;
        STAGE &to = s.stages[at.index];
        uint64_t *full = &s.full[at.index];
        barrier_wait(&s.empty[at.index], at.phase ^ 1);
        if (copies) {
            barrier_arrive_and_expect(full, landing);
            if (bytes && of_b)
                bulk_copy_to_blocks(to.b[component] + rank * B_ROWS * SPLIT_ROW_BYTES, from, bytes, full, ALL_BLOCKS);
            else if (bytes)
                bulk_copy(to.a[component], from, bytes, full);
            if (bytes && blocks_left > AHEAD) bulk_prefetch(from + ahead, bytes / PREFETCH_PARTS);
        }
        from += step;
        at.advance();
        if (--blocks_left == 0) begin(g, index + gridDim.x / CLUSTER);
    }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WARPGROUP, 2)
    split_fp32_sm90_t128(const __grid_constant__ split_args g) {
    SHARED &s = *(SHARED *)dynamic_shared<1024>();
    make_barriers(s, WARPS, CLUSTER);
    cluster_sync();
    wait_for_previous_kernel();
    allow_next_kernel();

    const int rank = cluster_rank(), warp = warp_number();
    quarter_copier copier(g, rank, warp);
    for (int i = 0; i < STAGES; i++) copier.copy_next(g, s);
    /* Both blocks copy into the stage, so both are told; then this warp refills its quarter. */
    const auto release = [&](int stage) {
        const int lane = threadIdx.x % 32;
        if (lane < CLUSTER) barrier_arrive_in(&s.empty[stage], lane);
        copier.copy_next(g, s);
    };

    ring<STAGES> at;
    for (int index = blockIdx.x / CLUSTER; index < work_count(g); index += gridDim.x / CLUSTER) {
        const work w = work_of(g, index, rank);
        accumulators sums;
        sums.begin();
        multiply_blocks<true>(sums, true, s.stages, s.full, at, 0, w.kb_end - w.kb_begin, release, [] {});
        const output<TILE_N> out(g, w, w.m0); /* not sooner: while we wait for it, the SM's other block multiplies */
        add_corrections(sums);
        out.store(g, w, sums.main, s.out[warp]);
    }
    cluster_sync(); /* the other block may still release stages to this one */
}

ASSERT_LISTED_AS(SPLIT_FP32_SM90_T128, TILE_M, TILE_N, WARPGROUP, sizeof(SHARED));
