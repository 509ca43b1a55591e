/* tiles.cuh: in which order kernels walk over the tiles of C, and where rows of packed operands lie (region common);
 * the Hopper kernel's epilogue and stages (region tiles). The modules' own: the library's (split.cuh in
 * src/cuda/kernels/split) also has split-K, alpha, beta and strides of C, and checks sums one by one. */

// region: common
struct tile {
    int batch, m0, n0; /* m0, n0: its first row and column */
};
template <int TILE> __device__ int tile_count(const product &g) {
    return g.batch * ceil_div(g.a.rows, TILE) * ceil_div(g.b.rows, TILE);
}

/* In bands of GROUP tile rows, down the columns of a band, so that tiles in progress share operands in L2. */
template <int TILE, int GROUP> __device__ tile tile_at(const product &g, int index) {
    const int tiles_m = ceil_div(g.a.rows, TILE), tiles_n = ceil_div(g.b.rows, TILE);
    const int batch = index / (tiles_m * tiles_n), in_batch = index - batch * tiles_m * tiles_n;
    const int first = in_batch / (GROUP * tiles_n) * GROUP, within = in_batch - first * tiles_n;
    const int rows = min(GROUP, tiles_m - first);
    return {batch, (first + within % rows) * TILE, within / rows * TILE};
}

/* Rows of one panel, in the first block of k: hi is `bytes` contiguous bytes, lo is component_stride bytes further, and
 * the next block's hi as far behind lo. bytes = 0: past the matrix. */
struct panel_rows {
    uint8_t *from;
    uint32_t component_stride, bytes;
};
template <int ROWS> __device__ panel_rows panel_rows_at(const operand &o, int batch, int row) {
    const int panel = row / PANEL_ROWS, skip = row % PANEL_ROWS, k_blocks = ceil_div(o.k, SPLIT_K);
    const int stored = max(0, min(PANEL_ROWS, ceil_div(o.rows - panel * PANEL_ROWS, 8) * 8));
    const int64_t panel_bytes = (int64_t)k_blocks * 2 * PANEL_ROWS * SPLIT_ROW_BYTES;
    return {o.panels + batch * o.panels_batch_stride + panel * panel_bytes + skip * SPLIT_ROW_BYTES,
            (uint32_t)stored * SPLIT_ROW_BYTES, (uint32_t)max(0, min(ROWS, stored - skip)) * SPLIT_ROW_BYTES};
}
// endregion: common

// region: tiles
constexpr int TILE = 128, GROUP = 8; /* tile rows in a band */

/* Epilogue: a warp's part of shared memory, where 16 x 32 sums wait to be written row by row. A row is 40 floats, so
 * that the accumulators' pattern (8 rows x 4 pairs) falls on all banks. */
constexpr int OUT_ROWS = 16, OUT_COLS = 32, OUT_BLOCKS = TILE / OUT_COLS;
typedef float out_buffer[OUT_ROWS][40];

__device__ int exponent_of(const operand &o, int batch, int row) {
    return row < o.rows ? o.exponents[(int64_t)batch * o.rows + row] : 0;
}

/* What a warp needs to store its 16 rows of a tile. */
struct output {
    int row0, exponent_a, exponent_b[OUT_BLOCKS]; /* exponents of row `lane`; of column `lane` of each 32 columns */
    bool stores;
    __device__ output(const product &g, const tile &t, int wg_row0) {
        const int lane = threadIdx.x % 32;
        row0 = wg_row0 + threadIdx.x / 32 % 4 * OUT_ROWS;
        exponent_a = exponent_of(g.a, t.batch, row0 + lane % OUT_ROWS);
#pragma unroll
        for (int i = 0; i < OUT_BLOCKS; i++) exponent_b[i] = exponent_of(g.b, t.batch, t.n0 + i * OUT_COLS + lane);
        stores = mark_of(g.a, t.batch, t.m0) * mark_of(g.b, t.batch, t.n0) <= g.mark_limit;
    }
    /* Scales sums back and writes them. sums[16*block + 4*j + 2*h + i] is row lane/4 + 8*h, column 8*j + lane%4*2 + i
     * of a block of 32 columns, as wgmma lays accumulators out. */
    __device__ void store(const product &g, const tile &t, const float (&sums)[64], out_buffer &out) const {
        const int lane = threadIdx.x % 32, m = g.a.rows, n = g.b.rows;
        const float down_a[2] = {power_of_two(-__shfl_sync(0xffffffffu, exponent_a, lane / 4)),
                                 power_of_two(-__shfl_sync(0xffffffffu, exponent_a, lane / 4 + 8))};
        float *c = g.c + ((int64_t)t.batch * m + row0) * n + t.n0;
#pragma unroll
        for (int block = 0; block < OUT_BLOCKS; block++, c += OUT_COLS) {
            const int rows = m - row0, cols = n - t.n0 - block * OUT_COLS;
            const float down_b = power_of_two(-exponent_b[block]);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 16; i += 2)
                *(float2 *)&out[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2] = make_float2(
                    sums[block * 16 + i] * down_a[i / 2 % 2], sums[block * 16 + i + 1] * down_a[i / 2 % 2]);
            __syncwarp();
            if (!__any_sync(0xffffffffu, stores && rows > 0 && cols > 0)) continue; /* a vote: known to be uniform */
            if (n % 4 == 0 && cols >= OUT_COLS) { /* four rows of 32 at once, 16 bytes a thread */
                const int row = lane / 8, col = lane % 8 * 4;
                float down[4];
#pragma unroll
                for (int i = 0; i < 4; i++) down[i] = __shfl_sync(0xffffffffu, down_b, col + i);
#pragma unroll
                for (int r = row; r < OUT_ROWS; r += 4) {
                    const float4 x = *(const float4 *)&out[r][col];
                    const float4 y = {x.x * down[0], x.y * down[1], x.z * down[2], x.w * down[3]};
                    if (r < rows) *(float4 *)&c[(int64_t)r * n + col] = y;
                }
            } else {
#pragma unroll
                for (int r = 0; r < OUT_ROWS; r++)
                    if (r < rows && lane < cols) c[(int64_t)r * n + lane] = out[r][lane] * down_b;
            }
        }
    }
};

constexpr int WARPGROUP = 128, WG_ROWS = 64; /* its threads; rows of C that it computes: the instruction's m */
constexpr int STEPS = SPLIT_K / 16;          /* instructions along a block of k */
static_assert(SPLIT_ROW_BYTES == 128, "the descriptors describe rows of 128 bytes, swizzled over 128 bytes");

/* A thread block's shared memory. full[s] completes when stage s has landed, empty[s] when all warps have read it. */
template <int ROWS, int STAGES, int WARPS> struct shared_layout {
    struct {
        uint8_t a[2][ROWS * SPLIT_ROW_BYTES], b[2][TILE * SPLIT_ROW_BYTES]; /* a block of k: hi and lo */
    } stages[STAGES];
    out_buffer out[WARPS];
    uint64_t full[STAGES], empty[STAGES];
    /* `copiers` threads issue the copies of a stage; `readers` warps release it. */
    __device__ void make_barriers(int copiers, int readers) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) barrier_init(&full[i], copiers), barrier_init(&empty[i], readers);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); /* shows them to the copy engine */
        }
        __syncthreads();
    }
};

/* Walks the ring of stages: which one is next, and in which phase its barriers are. */
template <int STAGES> struct ring {
    int index = 0;
    uint32_t phase = 0;
    __device__ void advance() {
        if (++index == STAGES) index = 0, phase ^= 1;
    }
};
// endregion: tiles
