/* split_wgmma_sm90.cu: C = alpha*A*B + beta*S from split operands (args.h) on Hopper's matrix instruction.
 *
 *   split_fp32_sm90        three products, float32 accuracy     tile 128 x 128   384 threads
 *   split_fp32_sm90_t128   the same with blocks of 128 threads  tile 128 x 128   2 x 128 threads, two blocks per SM
 *   split_tf32_sm90        one product                          tile 128 x 256   384 threads
 *
 * Arithmetic of the three products. With A = hi_a + lo_a 2^-11 and B likewise (scaled), a part of a block of k,
 * SPLIT_SUM_K, gives
 *
 *     main += hi_a*hi_b                  a fresh sum for each part, added to `main` by ordinary float32 additions: the
 *                                        tensor cores truncate as they accumulate, so they never do it for long
 *     corr += hi_a*lo_b + lo_a*hi_b      2^11 smaller, so that its truncation does not matter: one sum for all of k
 *
 * and C = (main + corr 2^-11) * 2^-(e_a + e_b). lo_a*lo_b is below float32's last bit. docs/internals/numerics.md has the bound.
 *
 * Who does what. Blocks stay and take every gridDim-th tile. A stage is one k block of both operands' tiles, copied
 * straight from the panels. Of 384 threads, one thread of warpgroup 0 keeps the stages full; warpgroups 1 and 2 compute
 * 64 rows of the tile each. full[s] says a stage has landed, empty[s] that all warps have read it. Blocks of 128
 * threads do both jobs in turn, and compute a tile in pairs (clusters), 64 rows each: both need the same columns of B,
 * of which each copies half, to both, so that L2 is read as often as by one block of 384.
 *
 * Order within a warpgroup: the tensor cores are never idle, because
 *
 *     issue corr(i)   wait hi*hi(i)   main += it   issue hi*hi(i+1)   wait corr(i), and free its stage if it was the last
 *
 * runs the additions of part i under corr(i), and hi*hi(i+1) is queued before corr(i) has drained.
 *
 * Names: d sum of the current part, q corr, v main; kb block of k; wg warpgroup.
 * Limits: fp32 232 registers in warpgroups 1 and 2 (3 x 64 of them accumulators), 40 in 0; 3 stages of 64 KB, one block
 * per SM. With blocks of 128 threads 216 registers, 2 stages of 48 KB.
 */
#include "cuda/kernels/args.h"
#include "cuda/kernels/split/split.cuh"

namespace {

constexpr int WARPGROUP = 128;
constexpr int WG_ROWS = 64;         /* rows of C one warpgroup computes: the instruction's m */
constexpr int STEPS = SPLIT_K / 16; /* instructions along a block of k */
constexpr int SUM_STEPS = SPLIT_SUM_K / 16, PARTS = STEPS / SUM_STEPS;

static_assert(SPLIT_ROW_BYTES == 128, "the descriptors describe rows of 128 bytes, swizzled over 128 bytes");

/* ---- Copying a stage --------------------------------------------------------------------------------------------- */

template <int TILE_M, int TILE_N, int PIECES> struct stage {
    uint8_t a[PIECES][TILE_M * SPLIT_ROW_BYTES];
    uint8_t b[PIECES][TILE_N * SPLIT_ROW_BYTES];
};

template <int PIECES> __device__ void copy_strip(strip &s, uint8_t *to, int tile_bytes, uint64_t *barrier) {
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        if (s.bytes) bulk_copy(to + piece * tile_bytes, s.from, s.bytes, barrier);
        s.from += s.piece_stride;
    }
}

/* The strips of a tile, copied block after block of k. */
template <int TILE_M, int TILE_N, int PIECES> struct tile_source {
    static constexpr int B_ROWS = TILE_N < PANEL_ROWS ? TILE_N : PANEL_ROWS, B_STRIPS = TILE_N / B_ROWS;
    strip a, b[B_STRIPS];
    uint32_t bytes;

    __device__ tile_source(const split_args &g, const work &w) {
        a = strip_at<TILE_M, PIECES>(g.a, g.m, g.k_blocks, w.batch, w.m0, w.kb_begin);
        bytes = a.bytes;
#pragma unroll
        for (int i = 0; i < B_STRIPS; i++) {
            b[i] = strip_at<B_ROWS, PIECES>(g.b, g.n, g.k_blocks, w.batch, w.n0 + i * B_ROWS, w.kb_begin);
            bytes += b[i].bytes;
        }
        bytes *= PIECES;
    }

    __device__ void copy_next(stage<TILE_M, TILE_N, PIECES> &s, uint64_t *full) {
        barrier_arrive_and_expect(full, bytes);
        copy_strip<PIECES>(a, s.a[0], sizeof s.a[0], full);
#pragma unroll
        for (int i = 0; i < B_STRIPS; i++)
            copy_strip<PIECES>(b[i], s.b[0] + i * B_ROWS * SPLIT_ROW_BYTES, sizeof s.b[0], full);
    }
};

/* A ring of stages: which one is next, and in which phase its barriers are. */
template <int STAGES> struct ring {
    int index = 0;
    uint32_t phase = 0;
    __device__ void advance() {
        if (++index == STAGES) {
            index = 0;
            phase ^= 1;
        }
    }
};

/* ---- Products of one warpgroup ----------------------------------------------------------------------------------- */

/* The products of what a warpgroup reads of a stage: its rows of A, all of B. */
struct stage_products {
    uint32_t a[2], b[2]; /* addresses of hi and lo */

    template <typename STAGE> __device__ stage_products(const STAGE *stages, int index, int row = 0) {
        const uint32_t at = tile_address(stages) + index * (uint32_t)(sizeof(STAGE) / 16);
        a[0] = at + row * SPLIT_ROW_BYTES / 16;
        a[1] = a[0] + sizeof stages->a[0] / 16;
        b[0] = at + sizeof stages->a / 16;
        b[1] = b[0] + sizeof stages->b[0] / 16;
    }

    __device__ void issue_hi_hi(float (&d)[64], int part) const {
#pragma unroll
        for (int i = 0; i < SUM_STEPS; i++) {
            const int at = 2 * (part * SUM_STEPS + i);
            wgmma_64x128x16(d, a[0] + at, b[0] + at, i > 0);
        }
        wgmma_commit();
    }

    __device__ void issue_corrections(float (&q)[64], int part, bool accumulate) const {
        const int at = 2 * part * SUM_STEPS;
#pragma unroll
        for (int i = 0; i < SUM_STEPS; i++)
            wgmma_64x128x16(q, a[0] + at + 2 * i, b[1] + at + 2 * i, accumulate || i > 0);
#pragma unroll
        for (int i = 0; i < SUM_STEPS; i++) wgmma_64x128x16(q, a[1] + at + 2 * i, b[0] + at + 2 * i, true);
        wgmma_commit();
    }

    /* All products of the first part, added to q's. */
    __device__ void issue_first_part(float (&d)[64], float (&q)[64]) const {
        issue_hi_hi(d, 0);
        issue_corrections(q, 0, true);
    }

    /* All of the stage but the first part's hi*hi, which is on its way: returns when the last part's corrections are. */
    __device__ void issue_rest(float (&d)[64], float (&q)[64], float (&v)[64], bool accumulate) const {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            issue_corrections(q, part, accumulate || part > 0);
            wgmma_wait<1>();
            hold(d);
#pragma unroll
            for (int i = 0; i < 64; i++) v[i] += d[i];
            if (part + 1 == PARTS) break;
            wgmma_fence();
            issue_hi_hi(d, part + 1);
        }
    }
};

/* ---- Writing a tile ---------------------------------------------------------------------------------------------- */

/* What a warp needs to know to write its 16 rows of a tile. Where a block is alone on its SM this is loaded before the
 * products, so that nothing waits for it after them. */
template <int TILE_N> struct output {
    static constexpr int BLOCKS = TILE_N / OUT_COLS;
    int row0;
    int exponent_a, exponent_b[BLOCKS]; /* of row `lane`; of column `lane` of each block */
    verdict on[TILE_N / PANEL_ROWS];    /* the sums, in each panel of B */

    __device__ output(const split_args &g, const work &w, int wg_row0) {
        const int lane = threadIdx.x % 32;
        row0 = wg_row0 + threadIdx.x / 32 % 4 * OUT_ROWS;
        exponent_a = exponent_of(g.a, w.batch, row0 + lane % OUT_ROWS, g.m);
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) exponent_b[i] = exponent_of(g.b, w.batch, w.n0 + i * OUT_COLS + lane, g.n);
#pragma unroll
        for (int i = 0; i < TILE_N / PANEL_ROWS; i++) {
            const int col = w.n0 + i * PANEL_ROWS;
            on[i] = col < g.n ? verdict_on(g, mark_of(g.a, w.batch, w.m0), mark_of(g.b, w.batch, col)) : LEAVE;
        }
    }

    /* Blocks of OUT_COLS columns, one after the other. Unrolled, one is on its way to memory while the next is made
     * ready; but the instructions of the first tile come from device memory, too. For the eight of a wide tile, which is
     * often a multiprocessor's only one, that takes longer than it saves. */
    __device__ void store(const split_args &g, const work &w, float (&v)[TILE_N / 2], out_buffer &out) const {
        constexpr int AT_ONCE = BLOCKS > 4 ? 1 : BLOCKS;
        const destination d(g, w);
        scale_rows(v, exponent_a);
#pragma unroll AT_ONCE
        for (int block = 0; block < BLOCKS; block++) {
            const int col0 = w.n0 + block * OUT_COLS;
            verdict on_these = LEAVE;
            int exponent = 0;
            __syncwarp();
#pragma unroll
            for (int i = 0; i < BLOCKS; i++)
                if (i == block) { /* registers cannot be indexed */
                    put_sums(v + i * OUT_COLS / 2, out);
                    exponent = exponent_b[i];
                    on_these = on[i * OUT_COLS / PANEL_ROWS];
                }
            __syncwarp();
            /* The same in all lanes; by a vote, so that the compiler knows it (warp_number). */
            if (!__any_sync(0xffffffffu, on_these != LEAVE && row0 < g.m && col0 < g.n)) continue;
            if (on_these == LOOK && g.slices == 1 && in_doubt(g, w.batch, row0, col0, exponent_a, out)) continue;
            write_out(g, d, row0, col0, exponent, out);
        }
    }
};

/* Everything a block shares. WARPS: those that compute. */
template <typename STAGE, int STAGES, int WARPS> struct shared_layout {
    STAGE stages[STAGES];
    out_buffer out[WARPS];
    uint64_t full[STAGES], empty[STAGES];
};

/* A stage is full when its copies, which `copiers` threads issue, have landed; empty when every warp whose products need
 * what we copy has read it, in each block of the cluster. */
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

template <int TILE_M, int TILE_N, int PIECES, int STAGES, int WARPS>
__device__ void produce(const split_args &g, shared_layout<stage<TILE_M, TILE_N, PIECES>, STAGES, WARPS> &s) {
    ring<STAGES> at;
    for (int index = blockIdx.x; index < work_count(g); index += gridDim.x) {
        const work w = work_at<TILE_M, TILE_N>(g, index);
        tile_source<TILE_M, TILE_N, PIECES> source(g, w);
        wait_for_previous_kernel(); /* the first time: where to copy from was found while it ended */
        allow_next_kernel();
#pragma unroll 1
        for (int kb = w.kb_begin; kb < w.kb_end; kb++, at.advance()) {
            barrier_wait(&s.empty[at.index], at.phase ^ 1);
            source.copy_next(s.stages[at.index], &s.full[at.index]);
        }
    }
}

} // namespace

/* ---- fp32, 384 threads ------------------------------------------------------------------------------------------- */

namespace fp32 {
constexpr int TILE_M = 128, TILE_N = 128, STAGES = 3;
typedef stage<TILE_M, TILE_N, 2> STAGE;
typedef shared_layout<STAGE, STAGES, 8> SHARED;
static_assert(TILE_M == 2 * WG_ROWS, "two warpgroups share a tile's rows");
static_assert(sizeof(SHARED) <= 227 * 1024, "what a block may use on Hopper");
static_assert(sizeof(SHARED) == SPLIT_FP32_SM90_SHARED, "what the host asks for");
} // namespace fp32

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1) split_fp32_sm90(const __grid_constant__ split_args g) {
    using namespace fp32;
    SHARED &s = *(SHARED *)dynamic_shared<1024>();
    make_barriers(s);

    const int wg = warp_number() / (WARPGROUP / 32);
    if (wg == 0) {
        registers_release_to<40>();
        if (threadIdx.x == 0) produce(g, s);
    } else {
        registers_take<232>();
        wait_for_previous_kernel();
        allow_next_kernel();
        const int row_offset = (wg - 1) * WG_ROWS;
        ring<STAGES> at;
        for (int index = blockIdx.x; index < work_count(g); index += gridDim.x) {
            const work w = work_at<TILE_M, TILE_N>(g, index);
            const output<TILE_N> out(g, w, w.m0 + row_offset);
            float d[64], q[64], v[64];
#pragma unroll
            for (int i = 0; i < 64; i++) v[i] = 0;

            const bool short_end = g.short_end && w.kb_end == g.k_blocks && w.kb_end - w.kb_begin > 1;
            const int kb_end = w.kb_end - short_end; /* of whole blocks */
            barrier_wait(&s.full[at.index], at.phase);
            wgmma_fence();
            stage_products(s.stages, at.index, row_offset).issue_hi_hi(d, 0);
#pragma unroll 1
            for (int kb = w.kb_begin;; kb++) {
                stage_products(s.stages, at.index, row_offset).issue_rest(d, q, v, kb > w.kb_begin);
                const int done = at.index;
                at.advance();
                if (kb + 1 == kb_end) {
                    wgmma_wait<0>();
                    if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[done]);
                    break;
                }
                barrier_wait(&s.full[at.index], at.phase);
                wgmma_fence();
                stage_products(s.stages, at.index, row_offset).issue_hi_hi(d, 0);
                wgmma_wait<1>();
                if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[done]);
            }
            if (short_end) { /* half a block at most, the rest of which is zeros */
                barrier_wait(&s.full[at.index], at.phase);
                wgmma_fence();
                stage_products(s.stages, at.index, row_offset).issue_first_part(d, q);
                wgmma_wait<0>();
                hold(d);
#pragma unroll
                for (int i = 0; i < 64; i++) v[i] += d[i];
                if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[at.index]);
                at.advance();
            }
            hold(q);
#pragma unroll
            for (int i = 0; i < 64; i++) v[i] = fmaf(q[i], LO_SCALE, v[i]);
            out.store(g, w, v, s.out[threadIdx.x / 32 - 4]);
        }
    }
}

/* ---- fp32, 128 threads ------------------------------------------------------------------------------------------- */

namespace fp32_t128 {
constexpr int TILE_M = 128, TILE_N = 128, CLUSTER = 2; /* the tile is a cluster's */
constexpr int STAGES = 2, WARPS = 4;
typedef stage<WG_ROWS, TILE_N, 2> STAGE;
typedef shared_layout<STAGE, STAGES, WARPS> SHARED;
static_assert(TILE_M == CLUSTER * WG_ROWS, "the warpgroups of a cluster share a tile's rows");
static_assert(TILE_M <= PANEL_ROWS, "so that a block's rows, even past the matrix, have the marks of a panel there is");
static_assert(2 * sizeof(SHARED) <= 226 * 1024, "two blocks share an SM");
static_assert(sizeof(SHARED) == SPLIT_FP32_SM90_T128_SHARED, "what the host asks for");

/* The index-th piece of work of a cluster, as block `rank` of it sees it. */
__device__ work work_of(const split_args &g, int index, int rank) {
    work w = work_at<TILE_M, TILE_N>(g, index);
    w.m0 += rank * WG_ROWS;
    return w;
}

/* Copies one of the four strips of a stage, block after block of k and tile after tile; each warp does one. Issuing a copy
 * takes long enough that products would wait for four in a row. All of a warp goes along, though one thread copies: see
 * warp_number. The strips are hi and lo of our rows of A (warps 0 and 2), and of our half of the columns of B, for all
 * blocks (warps 1 and 3). Two stages cannot cover the way from device memory, so what comes AHEAD blocks later is called
 * to L2; the tiles that share a strip, as neighbours in a group do, call a part each. */
struct strip_copier {
    static constexpr int B_ROWS = TILE_N / CLUSTER, ALL_BLOCKS = (1 << CLUSTER) - 1;
    static constexpr int AHEAD = 4, PARTS = GROUP_ROWS;
    ring<STAGES> at;
    int rank, piece;
    bool of_b, copies;
    int index, blocks_left; /* piece of work, and blocks of k of it to copy; none: there is no more work */
    const uint8_t *from;
    uint32_t step, bytes, landing; /* landing: what comes to our own shared memory, from all blocks */
    uint32_t ahead;                /* from `from` to what to call */

    __device__ strip_copier(const split_args &g, int rank, int warp)
        : rank(rank), piece(warp / 2), of_b(warp % 2), copies(elected()) {
        begin(g, blockIdx.x / CLUSTER);
    }

    __device__ void begin(const split_args &g, int work_index) {
        index = work_index;
        blocks_left = 0;
        if (index >= work_count(g)) return;
        const work w = work_of(g, index, rank);
        blocks_left = w.kb_end - w.kb_begin;
        strip s;
        if (of_b) {
            s = strip_at<B_ROWS, 2>(g.b, g.n, g.k_blocks, w.batch, w.n0 + rank * B_ROWS, w.kb_begin);
            landing = strip_at<TILE_N, 2>(g.b, g.n, g.k_blocks, w.batch, w.n0, w.kb_begin).bytes;
        } else {
            s = strip_at<WG_ROWS, 2>(g.a, g.m, g.k_blocks, w.batch, w.m0, w.kb_begin);
            landing = s.bytes;
        }
        from = s.from + piece * s.piece_stride;
        step = 2 * s.piece_stride;
        bytes = s.bytes;
        ahead = AHEAD * step + (of_b ? w.m0 / TILE_M : w.n0 / TILE_N) % PARTS * (bytes / PARTS);
    }

    __device__ void copy_next(const split_args &g, SHARED &s) {
        if (!blocks_left) return;
        STAGE &to = s.stages[at.index];
        uint64_t *full = &s.full[at.index];
        barrier_wait(&s.empty[at.index], at.phase ^ 1);
        if (copies) {
            barrier_arrive_and_expect(full, landing);
            if (bytes && of_b)
                bulk_copy_to_blocks(to.b[piece] + rank * B_ROWS * SPLIT_ROW_BYTES, from, bytes, full, ALL_BLOCKS);
            else if (bytes)
                bulk_copy(to.a[piece], from, bytes, full);
            if (bytes && blocks_left > AHEAD) bulk_prefetch(from + ahead, bytes / PARTS);
        }
        from += step;
        at.advance();
        if (--blocks_left == 0) begin(g, index + gridDim.x / CLUSTER);
    }
};

/* This warp has read the stage, into which every block of the cluster copies. */
__device__ void release(SHARED &s, int stage) {
    const int lane = threadIdx.x % 32;
    if (lane < CLUSTER) barrier_arrive_in(&s.empty[stage], lane);
}
} // namespace fp32_t128

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(WARPGROUP, 2)
    split_fp32_sm90_t128(const __grid_constant__ split_args g) {
    using namespace fp32_t128;
    SHARED &s = *(SHARED *)dynamic_shared<1024>();
    make_barriers(s, WARPS, CLUSTER);
    cluster_sync();
    wait_for_previous_kernel();
    allow_next_kernel();

    const int rank = cluster_rank(), warp = warp_number();
    strip_copier copier(g, rank, warp);
    for (int i = 0; i < STAGES; i++) copier.copy_next(g, s);

    ring<STAGES> at;
    for (int index = blockIdx.x / CLUSTER; index < work_count(g); index += gridDim.x / CLUSTER) {
        const work w = work_of(g, index, rank);
        float d[64], q[64], v[64];
#pragma unroll
        for (int i = 0; i < 64; i++) v[i] = 0;

        barrier_wait(&s.full[at.index], at.phase);
        wgmma_fence();
        stage_products(s.stages, at.index).issue_hi_hi(d, 0);
#pragma unroll 1
        for (int kb = w.kb_begin;; kb++) {
            wgmma_fence();
            stage_products(s.stages, at.index).issue_rest(d, q, v, kb > w.kb_begin);
            const int done = at.index;
            at.advance();
            if (kb + 1 == w.kb_end) {
                wgmma_wait<0>();
                release(s, done);
                break;
            }
            barrier_wait(&s.full[at.index], at.phase);
            wgmma_fence();
            stage_products(s.stages, at.index).issue_hi_hi(d, 0);
            wgmma_wait<1>();
            release(s, done);
            copier.copy_next(g, s);
        }
        copier.copy_next(g, s);               /* of the next tile, before we write this one */
        const output<TILE_N> out(g, w, w.m0); /* not sooner: while we wait for it, the SM's other block multiplies */
        hold(q);
#pragma unroll
        for (int i = 0; i < 64; i++) v[i] = fmaf(q[i], LO_SCALE, v[i]);
        out.store(g, w, v, s.out[warp]);
    }
    cluster_sync(); /* the other block may still release stages to us */
}

/* ---- tf32, 384 threads ------------------------------------------------------------------------------------------- */

namespace tf32 {
constexpr int TILE_M = 128, TILE_N = 256, STAGES = 4;
typedef stage<TILE_M, TILE_N, 1> STAGE;
typedef shared_layout<STAGE, STAGES, 8> SHARED;
static_assert(TILE_M == 2 * WG_ROWS, "two warpgroups share a tile's rows");
static_assert(sizeof(SHARED) <= 227 * 1024, "what a block may use on Hopper");
static_assert(sizeof(SHARED) == SPLIT_TF32_SM90_SHARED, "what the host asks for");
} // namespace tf32

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1) split_tf32_sm90(const __grid_constant__ split_args g) {
    using namespace tf32;
    SHARED &s = *(SHARED *)dynamic_shared<1024>();
    make_barriers(s);

    const int wg = warp_number() / (WARPGROUP / 32);
    if (wg == 0) {
        registers_release_to<40>();
        if (threadIdx.x == 0) produce(g, s);
    } else {
        registers_take<232>();
        wait_for_previous_kernel();
        allow_next_kernel();
        const int row_offset = (wg - 1) * WG_ROWS, byte_offset = row_offset * SPLIT_ROW_BYTES;
        ring<STAGES> at;
        for (int index = blockIdx.x; index < work_count(g); index += gridDim.x) {
            const work w = work_at<TILE_M, TILE_N>(g, index);
            const output<TILE_N> out(g, w, w.m0 + row_offset);
            float d[128];
            int previous = -1;
#pragma unroll 1
            for (int kb = w.kb_begin; kb < w.kb_end; kb++) {
                barrier_wait(&s.full[at.index], at.phase);
                const uint32_t a = tile_address(s.stages) + (at.index * (int)sizeof(STAGE) + byte_offset) / 16;
                const uint32_t b = tile_address(s.stages) +
                                   (at.index * (int)sizeof(STAGE) + (int)sizeof(s.stages->a)) / 16;
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < STEPS; i++) wgmma_64x256x16(d, a + 2 * i, b + 2 * i, kb > w.kb_begin || i > 0);
                wgmma_commit();
                wgmma_wait<1>(); /* the block before this one is done with its stage */
                if (previous >= 0 && threadIdx.x % 32 == 0) barrier_arrive(&s.empty[previous]);
                previous = at.index;
                at.advance();
            }
            wgmma_wait<0>();
            hold(d);
            if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[previous]);
            out.store(g, w, d, s.out[threadIdx.x / 32 - 4]);
        }
    }
}
