/* split_wgmma_sm90.cu: C = alpha*A*B + beta*C from split operands (args.h) on Hopper's matrix instruction.
 *
 *   split_fp32_sm90        three products, float32 accuracy     tile 128 x 128   384 threads
 *   split_fp32_sm90_t128   the same with blocks of 128 threads  tile  64 x 128   128 threads, two blocks per SM
 *   split_tf32_sm90        one product                          tile 128 x 256   384 threads
 *   split_reduce           sums the slices of k                                  128 threads
 *
 * Arithmetic of the three products. With A = hi_a + lo_a 2^-11 and B likewise (scaled), a block of SPLIT_K of k gives
 *
 *     main += hi_a*hi_b           a fresh sum for each block, added to `main` by ordinary float32 additions: the tensor cores
 *                                 truncate as they accumulate, so they are never let to do it for longer than a block
 *     corr += hi_a*lo_b + lo_a*hi_b   2^11 smaller than main, so its truncation does not matter: one sum for all of k
 *
 * and C = (main + corr 2^-11) * 2^-(e_a + e_b). lo_a*lo_b is below float32's last bit. docs/numerics.md has the bound.
 *
 * Who does what. Blocks stay and take every gridDim-th tile. A stage is one k block of both operands' tiles, copied straight
 * from the panels. Of 384 threads, one thread of warpgroup 0 keeps the stages full; warpgroups 1 and 2 compute 64 rows of the tile
 * each. full[s] says a stage has landed, empty[s] that all warps have read it. A block of 128 threads does both jobs in turn.
 *
 * Order within a warpgroup: the tensor cores are never idle, because
 *
 *     issue corr(kb)   wait hi*hi(kb)   main += it   issue hi*hi(kb+1)   wait corr(kb)   free the stage
 *
 * runs the additions under corr(kb), and hi*hi(kb+1) is queued before corr(kb) has drained.
 *
 * Names: d sum of the current block, q corr, v main; kb block of k; wg warpgroup.
 * Limits: fp32 232 registers in warpgroups 1 and 2 (3 x 64 of them accumulators), 40 in 0; 3 stages of 64 KB, one block per SM.
 */
#include "args.h"
#include "wgmma.cuh"

namespace {

constexpr int WARPGROUP = 128;
constexpr int WG_ROWS = 64;         /* rows of C one warpgroup computes: the instruction's m */
constexpr int GROUP_ROWS = 8;       /* tile rows walked together, so that neighbours in time share panels in L2 */
constexpr int STEPS = SPLIT_K / 16; /* instructions along a block of k */
constexpr float LO_SCALE = 1.0f / (1 << SPLIT_LO_SHIFT);

static_assert(SPLIT_ROW_BYTES == 128, "the descriptors describe rows of 128 bytes, swizzled over 128 bytes");

__device__ constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

/* ---- Which tile --------------------------------------------------------------------------------------------------------- */

struct work {
    int batch, slice;
    int m0, n0;            /* first row and column of C */
    int kb_begin, kb_end;
};

__device__ int work_count(const split_args &g) { return g.batch * g.slices * g.tiles_m * g.tiles_n; }

/* The index-th piece of work: tiles in groups of GROUP_ROWS tile rows, down the group's columns; slices and batch outermost. */
template <int TILE_M, int TILE_N> __device__ work work_at(const split_args &g, int index) {
    const int tiles = g.tiles_m * g.tiles_n, tile = index % tiles, outer = index / tiles;
    const int group = tile / (GROUP_ROWS * g.tiles_n), first = group * GROUP_ROWS;
    const int rows = min(GROUP_ROWS, g.tiles_m - first), within = tile - first * g.tiles_n;
    work w;
    w.slice = outer % g.slices;
    w.batch = outer / g.slices;
    w.m0 = (first + within % rows) * TILE_M;
    w.n0 = within / rows * TILE_N;
    w.kb_begin = w.slice * g.k_blocks_per_slice;
    w.kb_end = min(g.k_blocks, w.kb_begin + g.k_blocks_per_slice);
    return w;
}

/* ---- Copying a stage ------------------------------------------------------------------------------------------------------ */

template <int TILE_M, int TILE_N, int PIECES> struct stage {
    uint8_t a[PIECES][TILE_M * SPLIT_ROW_BYTES];
    uint8_t b[PIECES][TILE_N * SPLIT_ROW_BYTES];
};

/* Rows of one panel that go into a stage, from block to block of k. */
struct strip {
    const uint8_t *from;
    uint32_t piece_stride, bytes; /* bytes = 0: the tile reaches past the matrix here */
};

template <int ROWS, int PIECES>
__device__ strip strip_at(const split_operand &o, int rows, int k_blocks, int batch, int row, int kb) {
    static_assert(PANEL_ROWS % ROWS == 0, "a strip lies within a panel");
    const int panel = row / PANEL_ROWS, skip = row % PANEL_ROWS;
    const int stored = min(PANEL_ROWS, divide_up(rows - panel * PANEL_ROWS, 8) * 8);
    const uint32_t piece_stride = max(stored, 0) * SPLIT_ROW_BYTES;
    return {o.panels + batch * o.panels_batch_stride + (int64_t)panel * k_blocks * PIECES * PANEL_ROWS * SPLIT_ROW_BYTES +
                (int64_t)kb * PIECES * piece_stride + skip * SPLIT_ROW_BYTES,
            piece_stride, (uint32_t)max(0, min(ROWS, stored - skip)) * SPLIT_ROW_BYTES};
}

template <int PIECES> __device__ void copy_strip(strip &s, uint8_t *to, int tile_bytes, uint64_t *barrier) {
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        if (s.bytes) copy_to_shared(to + piece * tile_bytes, s.from, s.bytes, barrier);
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
        for (int i = 0; i < B_STRIPS; i++) copy_strip<PIECES>(b[i], s.b[0] + i * B_ROWS * SPLIT_ROW_BYTES, sizeof s.b[0], full);
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

/* ---- Products of one warpgroup ---------------------------------------------------------------------------------------------- */

__device__ void issue_hi_hi(float (&d)[64], const uint8_t *a_hi, const uint8_t *b_hi) {
    const uint64_t a = tile_descriptor(a_hi), b = tile_descriptor(b_hi);
#pragma unroll
    for (int i = 0; i < STEPS; i++) wgmma_64x128x16(d, a + 2 * i, b + 2 * i, i > 0);
    wgmma_commit();
}

__device__ void issue_corrections(float (&q)[64], const uint8_t *a_hi, const uint8_t *a_lo, const uint8_t *b_hi,
                                  const uint8_t *b_lo, bool accumulate) {
    const uint64_t ah = tile_descriptor(a_hi), al = tile_descriptor(a_lo);
    const uint64_t bh = tile_descriptor(b_hi), bl = tile_descriptor(b_lo);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        wgmma_64x128x16(q, ah + 2 * i, bl + 2 * i, accumulate || i > 0);
        wgmma_64x128x16(q, al + 2 * i, bh + 2 * i, true);
    }
    wgmma_commit();
}

/* ---- Writing a tile ------------------------------------------------------------------------------------------------------------ */

__device__ float power_of_two(int e) { return __uint_as_float((unsigned)(e + 127) << 23); }

/* A warp's own corner of shared memory, where its 16 rows of 32 columns wait to be written out row by row. A row is 40 floats, so
 * that the accumulators' pattern (8 rows x 4 pairs) falls on all banks. */
constexpr int OUT_ROWS = 16, OUT_COLS = 32, OUT_STRIDE = 40;
typedef float out_buffer[OUT_ROWS][OUT_STRIDE];

/* What a warp needs to know to write its 16 rows of a tile. Loaded before the products, so that nothing waits for it after them. */
template <int TILE_N> struct output {
    int row0;
    int exponent_a, exponent_b[TILE_N / OUT_COLS]; /* of row `lane`; of column `lane` of each run of OUT_COLS */
    static constexpr int PANELS = (TILE_N + PANEL_ROWS - 1) / PANEL_ROWS;
    uint32_t marks[PANELS]; /* of A's panel or one of B's; where not zero, C is not ours to write */

    __device__ output(const split_args &g, const work &w, int wg_row0) {
        const int lane = threadIdx.x % 32;
        row0 = wg_row0 + threadIdx.x / 32 % 4 * OUT_ROWS;
        exponent_a = lane < OUT_ROWS && row0 + lane < g.m ? g.a.exponents[w.batch * g.a.exponents_batch_stride + row0 + lane] : 0;
        const uint32_t mark_a = g.a.marks[w.batch * g.a.marks_batch_stride + w.m0 / PANEL_ROWS];
#pragma unroll
        for (int i = 0; i < TILE_N / OUT_COLS; i++) {
            const int col = w.n0 + i * OUT_COLS + lane;
            exponent_b[i] = col < g.n ? g.b.exponents[w.batch * g.b.exponents_batch_stride + col] : 0;
        }
#pragma unroll
        for (int i = 0; i < PANELS; i++) {
            const int n = w.n0 + i * PANEL_ROWS;
            marks[i] = mark_a | (n < g.n ? g.b.marks[w.batch * g.b.marks_batch_stride + n / PANEL_ROWS] : 0);
        }
    }

    /* Scales back and writes. v[4j + 2h + i] is row (lane/4 + 8h), column (8j + lane%4*2 + i), as the instruction lays accumulators
     * out; a warp then writes 32 neighbouring columns of a row at once, whatever C's alignment. */
    __device__ void store(const split_args &g, const work &w, const float (&v)[TILE_N / 2], out_buffer &out) const {
        const int lane = threadIdx.x % 32, rows = min(OUT_ROWS, g.m - row0);
        matrix_out c = g.c;
        float alpha = g.alpha, beta = g.beta;
        c.data += w.batch * c.batch_stride;
        if (g.slices > 1) {
            c = {g.partial + (int64_t)(w.batch * g.slices + w.slice) * g.m * g.n, g.n, 1, 0};
            alpha = 1, beta = 0;
        }
        float *first = c.data + row0 * c.row_stride + (w.n0 + lane) * c.col_stride;
        const float scale_a = power_of_two(-exponent_a);
#pragma unroll
        for (int i = 0; i < TILE_N / OUT_COLS; i++) {
            if (marks[i * OUT_COLS / PANEL_ROWS]) continue;
            __syncwarp();
#pragma unroll
            for (int j = 0; j < OUT_COLS / 8; j++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int at = OUT_COLS / 2 * i + 4 * j + 2 * h;
                    *(float2 *)&out[lane / 4 + 8 * h][8 * j + lane % 4 * 2] = make_float2(v[at], v[at + 1]);
                }
            __syncwarp();
            const bool in_c = w.n0 + i * OUT_COLS + lane < g.n;
            const float scale_b = power_of_two(-exponent_b[i]);
            float *to = first + i * OUT_COLS * c.col_stride;
#pragma unroll
            for (int r = 0; r < OUT_ROWS; r++, to += c.row_stride) {
                const float scale = __shfl_sync(0xffffffffu, scale_a, r) * scale_b;
                if (!in_c || r >= rows) continue;
                const float x = alpha * (out[r][lane] * scale);
                *to = beta == 0 ? x : fmaf(beta, *to, x);
            }
        }
    }
};

__device__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/* Everything a block shares. WARPS: those that compute. */
template <typename STAGE, int STAGES, int WARPS> struct shared_layout {
    STAGE stages[STAGES];
    out_buffer out[WARPS];
    uint64_t full[STAGES], empty[STAGES];
};

template <int TILE_M, int TILE_N, int PIECES, int STAGES, int WARPS>
__device__ void produce(const split_args &g, shared_layout<stage<TILE_M, TILE_N, PIECES>, STAGES, WARPS> &s) {
    ring<STAGES> at;
    for (int index = blockIdx.x; index < work_count(g); index += gridDim.x) {
        const work w = work_at<TILE_M, TILE_N>(g, index);
        tile_source<TILE_M, TILE_N, PIECES> source(g, w);
#pragma unroll 1
        for (int kb = w.kb_begin; kb < w.kb_end; kb++, at.advance()) {
            barrier_wait(&s.empty[at.index], at.phase ^ 1);
            source.copy_next(s.stages[at.index], &s.full[at.index]);
        }
    }
}

extern __shared__ __align__(1024) uint8_t shared_memory[];

} // namespace

/* ---- fp32, 384 threads ------------------------------------------------------------------------------------------------------------ */

namespace fp32 {
constexpr int TILE_M = 128, TILE_N = 128, STAGES = 3;
typedef stage<TILE_M, TILE_N, 2> STAGE;
typedef shared_layout<STAGE, STAGES, 8> SHARED;
static_assert(TILE_M == 2 * WG_ROWS, "two warpgroups share a tile's rows");
static_assert(sizeof(SHARED) <= 227 * 1024, "what a block may use on Hopper");
} // namespace fp32

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1) split_fp32_sm90(const __grid_constant__ split_args g) {
    using namespace fp32;
    SHARED &s = *(SHARED *)shared_memory;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s.full[i], 1);
            barrier_init(&s.empty[i], 8); /* warps that read a stage */
        }
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_previous_kernel();

    const int wg = threadIdx.x / WARPGROUP;
    if (wg == 0) {
        registers_release_to<40>();
        if (threadIdx.x == 0) produce(g, s);
    } else {
        registers_take<232>();
        const int row_offset = (wg - 1) * WG_ROWS, byte_offset = row_offset * SPLIT_ROW_BYTES;
        ring<STAGES> at;
        for (int index = blockIdx.x; index < work_count(g); index += gridDim.x) {
            const work w = work_at<TILE_M, TILE_N>(g, index);
            const output<TILE_N> out(g, w, w.m0 + row_offset);
            float d[64], q[64], v[64];
#pragma unroll
            for (int i = 0; i < 64; i++) v[i] = 0;

            barrier_wait(&s.full[at.index], at.phase);
            wgmma_fence();
            issue_hi_hi(d, s.stages[at.index].a[0] + byte_offset, s.stages[at.index].b[0]);
#pragma unroll 1
            for (int kb = w.kb_begin;; kb++) {
                const STAGE &now = s.stages[at.index];
                issue_corrections(q, now.a[0] + byte_offset, now.a[1] + byte_offset, now.b[0], now.b[1], kb > w.kb_begin);
                wgmma_wait<1>();
                hold(d);
#pragma unroll
                for (int i = 0; i < 64; i++) v[i] += d[i];
                const int done = at.index;
                at.advance();
                if (kb + 1 == w.kb_end) {
                    wgmma_wait<0>();
                    if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[done]);
                    break;
                }
                barrier_wait(&s.full[at.index], at.phase);
                wgmma_fence();
                issue_hi_hi(d, s.stages[at.index].a[0] + byte_offset, s.stages[at.index].b[0]);
                wgmma_wait<1>();
                if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[done]);
            }
            hold(q);
#pragma unroll
            for (int i = 0; i < 64; i++) v[i] = fmaf(q[i], LO_SCALE, v[i]);
            out.store(g, w, v, s.out[threadIdx.x / 32 - 4]);
        }
    }
}

/* ---- fp32, 128 threads ------------------------------------------------------------------------------------------------------------ */

namespace fp32_t128 {
constexpr int TILE_M = 64, TILE_N = 128, STAGES = 2;
typedef stage<TILE_M, TILE_N, 2> STAGE;
typedef shared_layout<STAGE, STAGES, 4> SHARED;
static_assert(TILE_M == WG_ROWS, "one warpgroup computes the tile");
static_assert(2 * sizeof(SHARED) <= 226 * 1024, "two blocks share an SM");
} // namespace fp32_t128

extern "C" __global__ void __launch_bounds__(WARPGROUP, 2) split_fp32_sm90_t128(const __grid_constant__ split_args g) {
    using namespace fp32_t128;
    SHARED &s = *(SHARED *)shared_memory;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s.full[i], 1);
            barrier_init(&s.empty[i], 4);
        }
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_previous_kernel();

    ring<STAGES> at, filling;
    for (int index = blockIdx.x; index < work_count(g); index += gridDim.x) {
        const work w = work_at<TILE_M, TILE_N>(g, index);
        const output<TILE_N> out(g, w, w.m0);
        float d[64], q[64], v[64];
#pragma unroll
        for (int i = 0; i < 64; i++) v[i] = 0;

        tile_source<TILE_M, TILE_N, 2> source(g, w);
        int next_fill = w.kb_begin; /* thread 0 fills a stage as soon as the block's four warps have left it */
        if (threadIdx.x == 0)
            for (; next_fill < min(w.kb_end, w.kb_begin + STAGES); next_fill++, filling.advance()) {
                barrier_wait(&s.empty[filling.index], filling.phase ^ 1);
                source.copy_next(s.stages[filling.index], &s.full[filling.index]);
            }
        barrier_wait(&s.full[at.index], at.phase);
        wgmma_fence();
        issue_hi_hi(d, s.stages[at.index].a[0], s.stages[at.index].b[0]);
#pragma unroll 1
        for (int kb = w.kb_begin;; kb++) {
            const STAGE &now = s.stages[at.index];
            issue_corrections(q, now.a[0], now.a[1], now.b[0], now.b[1], kb > w.kb_begin);
            wgmma_wait<1>();
            hold(d);
#pragma unroll
            for (int i = 0; i < 64; i++) v[i] += d[i];
            const int done = at.index;
            at.advance();
            if (kb + 1 == w.kb_end) {
                wgmma_wait<0>();
                if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[done]);
                break;
            }
            barrier_wait(&s.full[at.index], at.phase);
            wgmma_fence();
            issue_hi_hi(d, s.stages[at.index].a[0], s.stages[at.index].b[0]);
            wgmma_wait<1>();
            if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[done]);
            if (threadIdx.x == 0 && next_fill < w.kb_end) {
                barrier_wait(&s.empty[filling.index], filling.phase ^ 1);
                source.copy_next(s.stages[filling.index], &s.full[filling.index]);
                next_fill++;
                filling.advance();
            }
        }
        hold(q);
#pragma unroll
        for (int i = 0; i < 64; i++) v[i] = fmaf(q[i], LO_SCALE, v[i]);
        out.store(g, w, v, s.out[threadIdx.x / 32]);
    }
}

/* ---- tf32, 384 threads ------------------------------------------------------------------------------------------------------------ */

namespace tf32 {
constexpr int TILE_M = 128, TILE_N = 256, STAGES = 4;
typedef stage<TILE_M, TILE_N, 1> STAGE;
typedef shared_layout<STAGE, STAGES, 8> SHARED;
static_assert(TILE_M == 2 * WG_ROWS, "two warpgroups share a tile's rows");
static_assert(sizeof(SHARED) <= 227 * 1024, "what a block may use on Hopper");
} // namespace tf32

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1) split_tf32_sm90(const __grid_constant__ split_args g) {
    using namespace tf32;
    SHARED &s = *(SHARED *)shared_memory;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s.full[i], 1);
            barrier_init(&s.empty[i], 8);
        }
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_previous_kernel();

    const int wg = threadIdx.x / WARPGROUP;
    if (wg == 0) {
        registers_release_to<40>();
        if (threadIdx.x == 0) produce(g, s);
    } else {
        registers_take<232>();
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
                const uint64_t a = tile_descriptor(s.stages[at.index].a[0] + byte_offset);
                const uint64_t b = tile_descriptor(s.stages[at.index].b[0]);
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

/* ---- Slices of k -------------------------------------------------------------------------------------------------------------------- */

/* C = alpha * (sum of the slices, in order) + beta*C, but for marked panels. Grid: ceil(m*n / 128), batch. */
extern "C" __global__ void __launch_bounds__(WARPGROUP) split_reduce(const __grid_constant__ split_args g) {
    wait_for_previous_kernel();
    const int batch = blockIdx.y;
    const int64_t index = (int64_t)blockIdx.x * WARPGROUP + threadIdx.x, size = (int64_t)g.m * g.n;
    if (index >= size) return;
    const int row = (int)(index / g.n), col = (int)(index % g.n);
    if (g.a.marks[batch * g.a.marks_batch_stride + row / PANEL_ROWS] | g.b.marks[batch * g.b.marks_batch_stride + col / PANEL_ROWS])
        return;
    const float *part = g.partial + batch * g.slices * size + index;
    float sum = 0;
    for (int slice = 0; slice < g.slices; slice++) sum += part[slice * size];
    float *to = g.c.data + batch * g.c.batch_stride + row * g.c.row_stride + col * g.c.col_stride;
    *to = g.beta == 0 ? g.alpha * sum : fmaf(g.beta, *to, g.alpha * sum);
}
