/* split_wgmma.cuh: what the split kernels for Hopper (split_*_sm90*.cu) share: stages in shared memory and their
 * barriers, the copies that fill them, the products of fp32, and the epilogue of a warpgroup.
 *
 * Thread blocks are persistent: each takes every gridDim-th tile. A stage holds one block of k of both operands' tiles,
 * copied straight from the panels (args.h). full[s] completes when stage s has landed, empty[s] when all warps have
 * read it.
 *
 * Arithmetic of fp32. With A = hi_a + lo_a 2^-11 and B likewise (scaled), each part of a block of k,
 * SPLIT_SUM_K terms, gives
 *
 *     main += hi_a*hi_b                  a fresh sum for each part, added to `main` by ordinary float32 additions: the
 *                                        tensor cores truncate as they accumulate, so their sums are kept short
 *     corr += hi_a*lo_b + lo_a*hi_b      2^11 smaller, so that its truncation does not matter: one sum for all of k
 *
 * and C = (main + corr 2^-11) * 2^-(e_a + e_b). lo_a*lo_b is below float32's last bit. docs/internals/numerics.md has
 * the bound.
 *
 * Order within a warpgroup: the tensor cores are never idle, because
 *
 *     issue corr(i)   wait hi*hi(i)   main += it   issue hi*hi(i+1)   wait corr(i), free its stage if it was the last
 *
 * runs the additions of part i under corr(i), and hi*hi(i+1) is queued before corr(i) has drained.
 *
 * queue_split (src/cuda/split.c) launches the kernels; docs/internals/design.md draws the way of a call to them. The
 * one-file modules take the region `fp32_products`.
 */
#ifndef TESSERA_CUDA_SPLIT_WGMMA_CUH
#define TESSERA_CUDA_SPLIT_WGMMA_CUH

#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/split/split.cuh"

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

constexpr int WARPGROUP = 128;      /* threads */
constexpr int WG_ROWS = 64;         /* rows of C one warpgroup computes: the instruction's m */
constexpr int STEPS = SPLIT_K / 16; /* instructions along a block of k */

static_assert(SPLIT_ROW_BYTES == 128, "the descriptors describe rows of 128 bytes, swizzled over 128 bytes");

template <int TILE_M, int TILE_N, int COMPONENTS> struct stage {
    uint8_t a[COMPONENTS][TILE_M * SPLIT_ROW_BYTES];
    uint8_t b[COMPONENTS][TILE_N * SPLIT_ROW_BYTES];
};

/* All of a thread block's shared memory. WARPS: those that multiply. */
template <typename STAGE, int STAGES, int WARPS> struct shared_layout {
    STAGE stages[STAGES];
    out_buffer out[WARPS];
    uint64_t full[STAGES], empty[STAGES];
};

/* `copiers` threads issue the copies of a stage; the warps of all blocks of the cluster release it. */
template <typename STAGE, int STAGES, int WARPS>
__device__ void make_barriers(shared_layout<STAGE, STAGES, WARPS> &s, int copiers = 1, int cluster = 1) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s.full[i], copiers);
            barrier_init(&s.empty[i], WARPS * cluster);
        }
        barrier_init_fence();
    }
    __syncthreads();
}

/* ---- A thread block's tiles: number first_work, and then every work_step-th -------------------------------------- */

template <bool PARTS> __device__ int first_work(const split_args &g) { return blockIdx.x / (PARTS ? g.parts : 1); }
template <bool PARTS> __device__ int work_step(const split_args &g) { return gridDim.x / (PARTS ? g.parts : 1); }

/* Work number `index`; PARTS: this block's part of it. */
template <int TILE_M, int TILE_N, bool PARTS> __device__ work work_of_block(const split_args &g, int index) {
    work w = work_at<TILE_M, TILE_N>(g, index);
    if (PARTS) {
        w.kb_begin = cluster_rank() * g.k_blocks_per_slice;
        w.kb_end = min(g.k_blocks, w.kb_begin + g.k_blocks_per_slice);
    }
    return w;
}

/* ---- The producer: one thread that keeps the stages full --------------------------------------------------------- */

/* Copies a tile's operands, block after block of k. */
template <int TILE_M, int TILE_N, int COMPONENTS> struct tile_source {
    static_assert(TILE_M == PANEL_ROWS && TILE_N % PANEL_ROWS == 0, "tiles are whole panels");
    static constexpr int PANELS = 1 + TILE_N / PANEL_ROWS; /* of A, of B */
    panel_rows rows[PANELS];
    uint32_t bytes = 0;

    __device__ tile_source(const split_args &g, const work &w) {
#pragma unroll
        for (int i = 0; i < PANELS; i++) {
            const int row = i == 0 ? w.m0 : w.n0 + (i - 1) * PANEL_ROWS;
            rows[i] = panel_rows_at<PANEL_ROWS, COMPONENTS>(i == 0 ? g.a : g.b, i == 0 ? g.m : g.n, g.k_blocks, w.batch,
                                                            row, w.kb_begin);
            bytes += rows[i].bytes;
        }
        bytes *= COMPONENTS;
    }

    __device__ void copy_next(stage<TILE_M, TILE_N, COMPONENTS> &s, uint64_t *full) {
        barrier_arrive_and_expect(full, bytes);
#pragma unroll
        for (int i = 0; i < PANELS; i++)
#pragma unroll
            for (int c = 0; c < COMPONENTS; c++, rows[i].from += rows[i].component_stride) {
                uint8_t *to = i == 0 ? s.a[c] : s.b[c] + (i - 1) * PANEL_ROWS * SPLIT_ROW_BYTES;
                if (rows[i].bytes) bulk_copy(to, rows[i].from, rows[i].bytes, full);
            }
    }
};

/* A block must not end before what it copies has landed: waits for the last copy to each stage. `at` is the stage that
 * would be next. */
template <typename SHARED, int STAGES> __device__ void wait_for_copies(const SHARED &s, ring<STAGES> at) {
    for (int i = 0; i < STAGES; i++, at.advance()) barrier_wait(&s.full[at.index], at.phase ^ 1);
}

/* stopped(), asked each time a stage is empty: whether nobody reads what is copied from now on. */
template <bool PARTS, int TILE_M, int TILE_N, int COMPONENTS, int STAGES, int WARPS, typename STOPPED>
__device__ void produce(const split_args &g, shared_layout<stage<TILE_M, TILE_N, COMPONENTS>, STAGES, WARPS> &s,
                        STOPPED stopped) {
    ring<STAGES> at;
    for (int index = first_work<PARTS>(g); index < work_count(g); index += work_step<PARTS>(g)) {
        const work w = work_of_block<TILE_M, TILE_N, PARTS>(g, index);
        tile_source<TILE_M, TILE_N, COMPONENTS> source(g, w);
        wait_for_previous_kernel(); /* only now: where to copy from was computed while it ended */
        allow_next_kernel();
#pragma unroll 1
        for (int kb = w.kb_begin; kb < w.kb_end; kb++, at.advance()) {
            barrier_wait(&s.empty[at.index], at.phase ^ 1);
            if (stopped()) return wait_for_copies(s, at);
            source.copy_next(s.stages[at.index], &s.full[at.index]);
        }
    }
    wait_for_copies(s, at); /* they may have stopped since */
}

// region: fp32_products
/* ---- The products of fp32, by one warpgroup ---------------------------------------------------------------------- */

/* A part is the terms of a block of k that are summed by tensor cores before promotion: instructions in one, and parts
 * in a block. */
constexpr int SUM_STEPS = SPLIT_SUM_K / 16, PARTS = STEPS / SUM_STEPS;

/* A warpgroup's accumulators of a 64 x 128 tile. */
struct accumulators {
    float hi_hi[64]; /* of the current part */
    float corr[64];
    float main[64];

    __device__ void begin() {
#pragma unroll
        for (int i = 0; i < 64; i++) main[i] = 0;
    }
};

/* The products of what a warpgroup reads of a stage: its rows of A, all of B. Addresses are those of descriptors, in
 * units of 16 bytes (tile_address): the 16 terms of an instruction are two of these further on. */
struct stage_products {
    uint32_t a[2], b[2]; /* of hi and lo */

    template <typename STAGE> __device__ stage_products(const STAGE *stages, int index, int row) {
        const uint32_t at = tile_address(stages) + index * (uint32_t)(sizeof(STAGE) / 16);
        a[0] = at + row * SPLIT_ROW_BYTES / 16;
        a[1] = a[0] + sizeof stages->a[0] / 16;
        b[0] = at + sizeof stages->a / 16;
        b[1] = b[0] + sizeof stages->b[0] / 16;
    }

    __device__ void issue_hi_hi(float (&hi_hi)[64], int part) const {
#pragma unroll
        for (int i = 0; i < SUM_STEPS; i++) {
            const int at = 2 * (part * SUM_STEPS + i);
            wgmma_64x128x16(hi_hi, a[0] + at, b[0] + at, i > 0);
        }
        wgmma_commit();
    }

    __device__ void issue_corrections(float (&corr)[64], int part, bool accumulate) const {
        const int at = 2 * part * SUM_STEPS;
#pragma unroll
        for (int i = 0; i < SUM_STEPS; i++)
            wgmma_64x128x16(corr, a[0] + at + 2 * i, b[1] + at + 2 * i, accumulate || i > 0);
#pragma unroll
        for (int i = 0; i < SUM_STEPS; i++) wgmma_64x128x16(corr, a[1] + at + 2 * i, b[0] + at + 2 * i, true);
        wgmma_commit();
    }

    /* All of the stage but the first part's hi*hi. Returns with the last part's corrections under way. */
    __device__ void issue_rest(accumulators &sums, bool accumulate) const {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            issue_corrections(sums.corr, part, accumulate || part > 0);
            wgmma_wait<1>();
            hold(sums.hi_hi);
#pragma unroll
            for (int i = 0; i < 64; i++) sums.main[i] += sums.hi_hi[i];
            if (part + 1 == PARTS) break;
            wgmma_fence();
            issue_hi_hi(sums.hi_hi, part + 1);
        }
    }
};

/* The loop over k: multiplies `blocks` blocks, in the stages from `at` on, and adds to main and corr; `first`: corr
 * begins here. While a part's corrections run, its hi*hi is added to main and the next part's hi*hi is queued behind
 * them, so that the tensor cores are never idle. release(stage) is called when this warp has read it, all_issued() when
 * the last products are under way. FENCE: with a wgmma_fence after release(), needed where release() does more than
 * arrive at a barrier. */
template <bool FENCE, typename STAGE, int STAGES, typename RELEASE, typename ISSUED>
__device__ void multiply_blocks(accumulators &sums, bool first, const STAGE *stages, uint64_t *full, ring<STAGES> &at,
                                int row, int blocks, RELEASE release, ISSUED all_issued) {
    barrier_wait(&full[at.index], at.phase);
    wgmma_fence();
    stage_products(stages, at.index, row).issue_hi_hi(sums.hi_hi, 0);
#pragma unroll 1
    for (int left = blocks - 1;; left--) {
        if (FENCE) wgmma_fence();
        stage_products(stages, at.index, row).issue_rest(sums, !first || left + 1 < blocks);
        const int done = at.index;
        at.advance();
        if (left == 0) {
            all_issued();
            wgmma_wait<0>();
            release(done);
            break;
        }
        barrier_wait(&full[at.index], at.phase);
        wgmma_fence();
        stage_products(stages, at.index, row).issue_hi_hi(sums.hi_hi, 0);
        wgmma_wait<1>();
        release(done);
    }
}

/* main += corr 2^-11. */
__device__ inline void add_corrections(accumulators &sums) {
    hold(sums.corr);
#pragma unroll
    for (int i = 0; i < 64; i++) sums.main[i] = fmaf(sums.corr[i], LO_SCALE, sums.main[i]);
}
// endregion: fp32_products

/* ---- The epilogue of a warp -------------------------------------------------------------------------------------- */

/* What a warp needs to know to store its 16 rows of a tile. Where a block is alone on its SM this is loaded before the
 * products, so that nothing waits for it after them. */
template <int TILE_N> struct output {
    static constexpr int BLOCKS = TILE_N / CHECK_COLS;
    int row0;
    int exponent_a, exponent_b[BLOCKS];         /* of row `lane`; of column `lane` of each check block */
    float mark_a, marks_b[TILE_N / PANEL_ROWS]; /* NaN past the last panel of B: nothing is stored there */

    __device__ output(const split_args &g, const work &w, int wg_row0) {
        const int lane = threadIdx.x % 32;
        row0 = wg_row0 + threadIdx.x / 32 % 4 * CHECK_ROWS;
        exponent_a = exponent_of(g.a, w.batch, row0 + lane % CHECK_ROWS, g.m);
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) exponent_b[i] = exponent_of(g.b, w.batch, w.n0 + i * CHECK_COLS + lane, g.n);
#pragma unroll
        for (int i = 0; i < TILE_N / PANEL_ROWS; i++) {
            const int col = w.n0 + i * PANEL_ROWS;
            marks_b[i] = col < g.n ? mark_of(g.b, w.batch, col) : NAN;
        }
        mark_a = mark_of(g.a, w.batch, w.m0);
    }

    /* One check block after the other. If the loop is unrolled, one block is on its way to memory while the next is
     * prepared, but there are more instructions, which the first tile has to fetch from device memory. For the eight
     * blocks of a wide tile, often the only one of an SM, that costs more than it saves. PARTS: only blocks with a bit
     * in `mine`. */
    template <bool PARTS = false>
    __device__ void store(const split_args &g, const work &w, float (&v)[TILE_N / 2], out_buffer &out,
                          unsigned mine = 0) const {
        constexpr int AT_ONCE = BLOCKS > 4 ? 1 : BLOCKS;
        const destination d(g, w);
        scale_rows(v, exponent_a);
#pragma unroll AT_ONCE
        for (int block = 0; block < BLOCKS; block++) {
            if (PARTS && !(mine >> block & 1)) continue;
            const int col0 = w.n0 + block * CHECK_COLS;
            float mark_b = 0;
            int exponent = 0;
            __syncwarp();
#pragma unroll
            for (int i = 0; i < BLOCKS; i++)
                if (i == block) { /* registers cannot be indexed */
                    put_sums(v + i * CHECK_COLS / 2, out);
                    exponent = exponent_b[i];
                    mark_b = marks_b[i * CHECK_COLS / PANEL_ROWS];
                }
            __syncwarp();
            const action action = action_for(g, mark_a, mark_b);
            /* The same in all lanes; by a vote, so that the compiler knows it (warp_number). */
            if (!__any_sync(0xffffffffu, action != RECOMPUTE && row0 < g.m && col0 < g.n)) continue;
            const bool checks = action == CHECK_SUMS && w.part < 0;
            const unsigned left = checks ? rows_left(g, w.batch, row0, col0, exponent_a, out) : 0;
            store_block(g, d, row0, col0, exponent_a, exponent, left, out);
        }
    }
};

#endif
