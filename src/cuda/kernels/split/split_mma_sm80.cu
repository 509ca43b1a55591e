/* split_mma_sm80.cu: C = alpha*A*B + beta*S from split operands (args.h) on the matrix instruction every GPU since
 * Ampere has.
 *
 *   split_fp32_mma_sm80   three products, float32 accuracy   tile 128 x 128   256 threads
 *   split_tf32_mma_sm80   one product                        tile 128 x 256   256 threads
 *
 * Arithmetic of the three products, as in split_wgmma.cuh: with A = hi_a + lo_a 2^-11 and B likewise (scaled),
 *
 *     hi_hi = hi_a*hi_b               a fresh sum for each stage of k: the tensor cores truncate as they accumulate
 *     main += hi_hi                   by ordinary float32 additions
 *     corr += hi_a*lo_b + lo_a*hi_b   one sum for all of k: 2^11 smaller, so its truncation does not matter
 *
 * and C = (main + corr 2^-11) * 2^-(e_a + e_b). tf32 sums hi_a*hi_b over all of k.
 *
 * Tile map. Eight warps, two down and four across, compute 64 x 32 (fp32) or 64 x 64 (tf32) each, in fragments of 16
 * x 8. Thread blocks are persistent: each takes every gridDim-th tile.
 *
 * Stages. A stage is half a block of k, STAGE_K, of both operands' tiles: rows of 64 bytes, in which 16-byte chunk c of
 * row r lies at c ^ (r/2 % 4), so that the eight rows that ldmatrix reads at once fall on all banks. (The panels' own
 * order within half a row, c ^ (r % 4), would let rows r and r + 4 meet.) Copies run two stages ahead of the products,
 * into the next tile where this one ends, and go on while C is written through the stage that is free.
 *
 * Fragments are read from shared memory one group of products ahead of those that need them, the next stage's too: a
 * stage's last reads come before its last products, and its one barrier stands between, so that there is work left to
 * issue behind it.
 *
 * Names: t stage; i, j fragment along m and n; e element of a thread's fragment.
 * Limits: 255 registers; 97 KB of shared memory (every one of these GPUs has 99); one block per SM.
 */
#include <stddef.h>

#include "cuda/kernels/args.h"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/split/split.cuh"

namespace {

constexpr int THREADS = 256;
constexpr int WARPS_M = 2, WARP_M = 64;
constexpr int FRAGMENT_M = 16, FRAGMENT_N = 8, FRAGMENT_K = 16; /* of the instruction */
constexpr int FRAGMENTS_M = WARP_M / FRAGMENT_M;                /* of a warp */
constexpr int STAGES = 3, AHEAD = STAGES - 1, STAGE_K = SPLIT_SUM_K, STEPS = STAGE_K / FRAGMENT_K;
constexpr int ROW_BYTES = STAGE_K * 2, CHUNK = 16, CHUNKS = ROW_BYTES / CHUNK;
constexpr int COPY_ROWS = THREADS / CHUNKS; /* rows the block copies at once */

static_assert(STEPS == 2 && CHUNKS == 4, "the order of chunks in a row is made for four of them, two for each step");
static_assert(COPY_ROWS % 8 == 0, "a thread copies the same chunk of all its rows");

/* ---- Copying stages ---------------------------------------------------------------------------------------------- */

template <int TILE_M, int TILE_N, int COMPONENTS> struct stage {
    uint8_t a[COMPONENTS][TILE_M * ROW_BYTES];
    uint8_t b[COMPONENTS][TILE_N * ROW_BYTES];
};

/* A tile, and where its rows are in the first block of k. A tile that does not exist has no rows. */
template <int TILE_M, int TILE_N, int COMPONENTS> struct tile {
    static_assert(TILE_M == PANEL_ROWS && TILE_N % PANEL_ROWS == 0, "tiles are whole panels");
    static constexpr int PANELS = 1 + TILE_N / PANEL_ROWS; /* of A, of B */
    work at;
    panel_rows panels[PANELS];

    __device__ void find(const split_args &g, int index) {
        const bool exists = index < work_count(g);
        at = work_at<TILE_M, TILE_N>(g, exists ? index : 0);
        panels[0] = panel_rows_at<PANEL_ROWS, COMPONENTS>(g.a, g.m, g.k_blocks, at.batch, at.m0, at.kb_begin);
        for (int i = 1; i < PANELS; i++)
            panels[i] = panel_rows_at<PANEL_ROWS, COMPONENTS>(g.b, g.n, g.k_blocks, at.batch,
                                                              at.n0 + (i - 1) * PANEL_ROWS, at.kb_begin);
        if (!exists)
            for (int i = 0; i < PANELS; i++) panels[i].bytes = 0;
    }

    __device__ int stages() const { return (at.kb_end - at.kb_begin) * (SPLIT_K / STAGE_K); }
};

/* What one thread copies of a tile, stage after stage: a chunk of every COPY_ROWS-th row. In the panels, where a row is
 * two stages long, chunk c of half h of row r lies in half h ^ (r/4 % 2) at c ^ (r % 4). */
template <int TILE_M, int TILE_N, int COMPONENTS> struct tile_source {
    typedef tile<TILE_M, TILE_N, COMPONENTS> TILE;
    typedef stage<TILE_M, TILE_N, COMPONENTS> STAGE;
    const uint8_t *from[TILE::PANELS];
    uint32_t component_stride[TILE::PANELS];
    int rows[TILE::PANELS]; /* from this thread's first on */
    uint32_t to;            /* in a stage */
    int half;               /* that comes next */

    __device__ tile_source() {
        const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS ^ row % 4;
        to = row * ROW_BYTES + (chunk ^ row / 2 % 4) * CHUNK;
    }

    __device__ void begin(const TILE &t) {
        const int row = threadIdx.x / CHUNKS;
#pragma unroll
        for (int i = 0; i < TILE::PANELS; i++) {
            const panel_rows rows_i = t.panels[i];
            from[i] = rows_i.from + row * SPLIT_ROW_BYTES + row / 4 % 2 * ROW_BYTES + threadIdx.x % CHUNKS * CHUNK;
            component_stride[i] = rows_i.component_stride;
            rows[i] = (int)(rows_i.bytes / SPLIT_ROW_BYTES) - row;
        }
        half = 0;
    }

    __device__ void copy_next(uint32_t stage) {
#pragma unroll
        for (int i = 0; i < TILE::PANELS; i++) {
            const uint32_t component_bytes = i == 0 ? sizeof(STAGE::a[0]) : sizeof(STAGE::b[0]);
            const uint32_t there = stage + to + (i == 0 ? 0 : offsetof(STAGE, b) + (i - 1) * PANEL_ROWS * ROW_BYTES);
#pragma unroll
            for (int component = 0; component < COMPONENTS; component++)
#pragma unroll
                for (int r = 0; r < PANEL_ROWS; r += COPY_ROWS)
                    cp_async_if<16>(there + component * component_bytes + r * ROW_BYTES,
                                    from[i] + component * component_stride[i] + r * SPLIT_ROW_BYTES, r < rows[i]);
            from[i] = (const uint8_t *)((uintptr_t)from[i] ^ ROW_BYTES) + (half ? COMPONENTS * component_stride[i] : 0);
        }
        half ^= 1;
        cp_async_commit();
    }
};

/* ---- Fragments --------------------------------------------------------------------------------------------------- */

/* Where a lane reads a warp's fragments in a stage, 16 rows and 16 of k at a time: one fragment of A, two of B. The
 * second step's chunks are the first's with bit 1 of their place turned, which is bit 5 of the address. */
template <typename STAGE> struct fragment_reader {
    uint32_t a, b;

    __device__ fragment_reader(int row, int col) {
        const int lane = threadIdx.x % 32;
        a = offsetof(STAGE, a) + (row + lane % 16) * ROW_BYTES + (lane / 16 ^ lane / 2 % 4) * CHUNK;
        b = offsetof(STAGE, b) + (col + lane / 16 * 8 + lane % 8) * ROW_BYTES + (lane / 8 % 2 ^ lane / 2 % 4) * CHUNK;
    }

    __device__ void load_a(uint32_t (&to)[4], uint32_t stage, int component, int step, int i) const {
        load_matrices(to,
                      ((stage + a) ^ step * 2 * CHUNK) + component * sizeof(STAGE::a[0]) + i * FRAGMENT_M * ROW_BYTES);
    }

    template <int N> __device__ void load_b(uint32_t (&to)[N][2], uint32_t stage, int component, int step) const {
#pragma unroll
        for (int j = 0; j < N; j += 2)
            load_matrices(to[j], ((stage + b) ^ step * 2 * CHUNK) + component * sizeof(STAGE::b[0]) +
                                     j * FRAGMENT_N * ROW_BYTES);
    }
};

/* ---- Writing a tile ---------------------------------------------------------------------------------------------- */

/* A warp's part of a tile, WARP_M rows from row0 and 8 N columns from col0, which lie in one panel of A and one of B.
 */
template <int N>
__device__ void store(const split_args &g, const work &w, int row0, int col0, float (&sums)[FRAGMENTS_M][N][4],
                      out_buffer &out) {
    constexpr int ACROSS = CHECK_COLS / FRAGMENT_N; /* fragments of a block */
    if (row0 >= g.m || col0 >= g.n) return;
    const action action = action_for(g, mark_of(g.a, w.batch, row0), mark_of(g.b, w.batch, col0));
    if (action == RECOMPUTE) return;
    const int lane = threadIdx.x % 32;
    const destination d(g, w);
#pragma unroll 1 /* fewer instructions to fetch */
    for (int block = 0; block < FRAGMENTS_M * (N / ACROSS); block++) {
        const int row = row0 + block % FRAGMENTS_M * FRAGMENT_M, col = col0 + block / FRAGMENTS_M * CHECK_COLS;
        if (row >= g.m || col >= g.n) continue;
        const int exponent_a = exponent_of(g.a, w.batch, row + lane % FRAGMENT_M, g.m);
        const int exponent_b = exponent_of(g.b, w.batch, col + lane, g.n);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < FRAGMENTS_M; i++)
#pragma unroll
            for (int j = 0; j < N; j += ACROSS)
                if (i + j / ACROSS * FRAGMENTS_M == block) {
                    float(&of_block)[ACROSS * 4] = *(float(*)[ACROSS * 4]) & sums[i][j][0];
                    scale_rows(of_block, exponent_a);
                    put_sums(of_block, out);
                }
        __syncwarp();
        const bool checks = action == CHECK_SUMS && w.part < 0;
        const unsigned left = checks ? rows_left(g, w.batch, row, col, exponent_a, out) : 0;
        store_block(g, d, row, col, exponent_a, exponent_b, left, out);
    }
}

/* ---- The ring of stages ------------------------------------------------------------------------------------------ */

template <typename STAGE> struct stage_ring {
    static constexpr uint32_t BYTES = sizeof(STAGE);
    static_assert(STAGES * BYTES <= 97 * 1024,
                  "what a block may use on every GPU since Ampere, less what the tiles take");
    static_assert(THREADS / 32 * sizeof(out_buffer) <= BYTES, "C is written through one stage");
    uint32_t first, now, free; /* addresses: of the ring, of stage t, of the place that t - 1 left to t + AHEAD */

    __device__ stage_ring() {
        first = now = shared_address(dynamic_shared<128>());
        free = first + AHEAD * BYTES;
    }

    /* Goes on to stage t + 1 once it has landed and all have read the last of t. */
    __device__ void advance() {
        cp_async_wait<AHEAD - 1>();
        __syncthreads();
        free = now;
        now = now == first + AHEAD * BYTES ? first : now + BYTES;
    }

    __device__ out_buffer &free_as_out(int warp) const {
        return ((out_buffer *)(dynamic_shared<128>() + (free - first)))[warp];
    }
};

/* Finds a block's first two tiles and copies the first AHEAD stages; returns when one has landed. */
template <class TILE, class SOURCE, class STAGE>
__device__ void start_copies(const split_args &g, TILE (&tiles)[2], SOURCE &source, const stage_ring<STAGE> &ring) {
    wait_for_previous_kernel();
    allow_next_kernel();
    if (threadIdx.x < 2) tiles[threadIdx.x].find(g, blockIdx.x + threadIdx.x * gridDim.x);
    __syncthreads();
    source.begin(tiles[0]);
    for (int t = 0; t < AHEAD; t++) source.copy_next(ring.first + t * sizeof(STAGE));
    cp_async_wait<AHEAD - 1>();
    __syncthreads();
}

} // namespace

/* ---- fp32 -------------------------------------------------------------------------------------------------------- */

namespace fp32 {
constexpr int TILE_M = 128, TILE_N = 128, WARP_N = 32, N = WARP_N / FRAGMENT_N;
typedef stage<TILE_M, TILE_N, 2> STAGE;
typedef tile<TILE_M, TILE_N, 2> TILE;
static_assert(TILE_M == WARPS_M * WARP_M && TILE_N == THREADS / 32 / WARPS_M * WARP_N, "the warps share the tile");
static_assert(PANEL_ROWS % WARP_N == 0, "a warp's columns are of one panel, which is marked or not");
ASSERT_LISTED_AS(SPLIT_FP32_MMA_SM80, TILE_M, TILE_N, THREADS, STAGES * sizeof(STAGE));
} // namespace fp32

extern "C" __global__ void __launch_bounds__(THREADS, 1) split_fp32_mma_sm80(const __grid_constant__ split_args g) {
    using namespace fp32;
    const int warp = threadIdx.x / 32, row = warp % WARPS_M * WARP_M, col = warp / WARPS_M * WARP_N;
    const fragment_reader<STAGE> read(row, col);
    stage_ring<STAGE> ring;
    __shared__ TILE tiles[2];              /* the current one and the next, alternating */
    tile_source<TILE_M, TILE_N, 2> source; /* AHEAD stages ahead of the products */
    start_copies(g, tiles, source, ring);

    uint32_t a_hi[STEPS][4], a_lo[STEPS][4], b_hi[STEPS][N][2], b_lo[STEPS][N][2]; /* of one i; of the whole stage */
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        read.load_a(a_hi[step], ring.now, 0, step, 0);
        read.load_a(a_lo[step], ring.now, 1, step, 0);
        read.load_b(b_hi[step], ring.now, 0, step);
        read.load_b(b_lo[step], ring.now, 1, step);
    }
    for (int index = blockIdx.x, turn = 0; index < work_count(g); index += gridDim.x, turn ^= 1) {
        const int stages = tiles[turn].stages();
        float corr[FRAGMENTS_M][N][4] = {}, main[FRAGMENTS_M][N][4] = {};
#pragma unroll 1
        for (int t = 0; t < stages; t++) {
            if (t + AHEAD == stages) source.begin(tiles[turn ^ 1]);
            source.copy_next(ring.free);
#pragma unroll
            for (int i = 0; i < FRAGMENTS_M; i++) {
                float hi_hi[N][4];
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
#pragma unroll
                    for (int j = 0; j < N; j++) mma_16x8x16(corr[i][j], a_hi[step], b_lo[step][j]);
#pragma unroll
                    for (int j = 0; j < N; j++) mma_16x8x16(hi_hi[j], a_hi[step], b_hi[step][j], step > 0);
#pragma unroll
                    for (int j = 0; j < N; j++) mma_16x8x16(corr[i][j], a_lo[step], b_hi[step][j]);
                    if (i + 1 < FRAGMENTS_M) {
                        read.load_a(a_hi[step], ring.now, 0, step, i + 1);
                        read.load_a(a_lo[step], ring.now, 1, step, i + 1);
                        continue;
                    }
                    if (step == 0) ring.advance();
                    read.load_a(a_hi[step], ring.now, 0, step, 0);
                    read.load_a(a_lo[step], ring.now, 1, step, 0);
                    read.load_b(b_hi[step], ring.now, 0, step);
                    read.load_b(b_lo[step], ring.now, 1, step);
                }
#pragma unroll
                for (int j = 0; j < N; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) main[i][j][e] += hi_hi[j][e];
            }
        }
#pragma unroll
        for (int i = 0; i < FRAGMENTS_M; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) main[i][j][e] = fmaf(corr[i][j][e], LO_SCALE, main[i][j][e]);
        const work w = tiles[turn].at;
        __syncthreads(); /* all have read their tile: its place is free for the tile after next */
        if (threadIdx.x == 0) tiles[turn].find(g, index + 2 * gridDim.x);
        store(g, w, w.m0 + row, w.n0 + col, main, ring.free_as_out(warp));
        __syncthreads(); /* the stage is free again */
    }
}

/* ---- tf32 -------------------------------------------------------------------------------------------------------- */

namespace tf32 {
constexpr int TILE_M = 128, TILE_N = 256, WARP_N = 64, N = WARP_N / FRAGMENT_N;
typedef stage<TILE_M, TILE_N, 1> STAGE;
typedef tile<TILE_M, TILE_N, 1> TILE;
static_assert(TILE_M == WARPS_M * WARP_M && TILE_N == THREADS / 32 / WARPS_M * WARP_N, "the warps share the tile");
static_assert(PANEL_ROWS % WARP_N == 0, "a warp's columns are of one panel, which is marked or not");
ASSERT_LISTED_AS(SPLIT_TF32_MMA_SM80, TILE_M, TILE_N, THREADS, STAGES * sizeof(STAGE));
} // namespace tf32

extern "C" __global__ void __launch_bounds__(THREADS, 1) split_tf32_mma_sm80(const __grid_constant__ split_args g) {
    using namespace tf32;
    const int warp = threadIdx.x / 32, row = warp % WARPS_M * WARP_M, col = warp / WARPS_M * WARP_N;
    const fragment_reader<STAGE> read(row, col);
    stage_ring<STAGE> ring;
    __shared__ TILE tiles[2];
    tile_source<TILE_M, TILE_N, 1> source;
    start_copies(g, tiles, source, ring);

    uint32_t a[2][FRAGMENTS_M][4], b[2][N][2]; /* of this step and the next */
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; i++) read.load_a(a[0][i], ring.now, 0, 0, i);
    read.load_b(b[0], ring.now, 0, 0);
    for (int index = blockIdx.x, turn = 0; index < work_count(g); index += gridDim.x, turn ^= 1) {
        const int stages = tiles[turn].stages();
        float sums[FRAGMENTS_M][N][4] = {};
#pragma unroll 1
        for (int t = 0; t < stages; t++) {
            if (t + AHEAD == stages) source.begin(tiles[turn ^ 1]);
            source.copy_next(ring.free);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const int next = (step + 1) % STEPS;
                if (next == 0) ring.advance();
#pragma unroll
                for (int i = 0; i < FRAGMENTS_M; i++) read.load_a(a[next][i], ring.now, 0, next, i);
                read.load_b(b[next], ring.now, 0, next);
#pragma unroll
                for (int i = 0; i < FRAGMENTS_M; i++)
#pragma unroll
                    for (int j = 0; j < N; j++) mma_16x8x16(sums[i][j], a[step][i], b[step][j]);
            }
        }
        const work w = tiles[turn].at;
        __syncthreads();
        if (threadIdx.x == 0) tiles[turn].find(g, index + 2 * gridDim.x);
        store(g, w, w.m0 + row, w.n0 + col, sums, ring.free_as_out(warp));
        __syncthreads();
    }
}
