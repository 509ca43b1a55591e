/* portable.cu: C = A*B in IEEE float32 (fma) on any GPU from Turing on, or the tiles of it that the Hopper kernel left.
 *
 * Operands. A "line" is a row of A or a column of B. Lines come to shared memory in slabs of SLAB terms, [SLAB][TILE +
 * 4], two of each operand: one in use, one on its way.
 * Tile map. Each of a block's 2 x 2 warps computes a quarter of the tile, each thread ROWS x COLS results, in groups of
 * four neighbours that one 16-byte load from shared memory brings: row = group*4*LANES_M + lane_m*4 + i.
 * Speed. A scheduler issues one instruction a cycle, and every one that is no fma costs: hence 16 x 8 results for 6
 * loads. An fma reads three registers, and each of two banks (even, odd) delivers one a cycle: neighbouring fma share a
 * factor, which the hardware keeps at hand, and the other two differ in parity (see store). */
namespace portable {

constexpr int THREADS = 128, STEP = 8; /* terms in the main loop's body: more would not stay in the instruction cache */
constexpr int SLAB = PORTABLE_SLAB, PARTS = SLAB / STEP;

/* How the block's threads copy an operand. */
enum reading {
    VECTORS, /* lines are neighbours and 16-byte aligned: a thread takes four */
    LINES,   /* lines are neighbours: 32 threads take as many */
    TERMS    /* terms are neighbours: 8 threads take as many terms of a line, so that a warp fills all 32 banks */
};

/* One operand of a tile, as one thread copies it: a slab takes ROUNDS rounds of ALONG copies each. While a step is
 * multiplied, an equal part of them is issued. */
template <int TILE, reading HOW> struct operand_copy {
    static constexpr int PITCH = TILE + 4, WIDTH = HOW == VECTORS ? 4 : 1;
    static constexpr int ALONG = HOW == TERMS ? SLAB / 8 : HOW == LINES ? TILE / 32 : 1;
    static constexpr int ROUNDS = TILE * SLAB / THREADS / ALONG / WIDTH;
    static constexpr int ROUND_LINES = HOW == TERMS ? THREADS / 8 : 0;
    static constexpr int ROUND_TERMS = HOW == TERMS ? 0 : HOW == LINES ? THREADS / 32 : THREADS * WIDTH / TILE;
    static constexpr bool EDGES = TILE < PANEL_ROWS; /* a tile of 128 never reaches past the matrix: see compute */
    static_assert(ROUNDS % PARTS == 0, "every part is whole rounds");
    const float *next;          /* what this thread copies next */
    int64_t round_step, finish; /* floats from one round to the next, and from the last one's end to the next slab */
    uint32_t offset, to;        /* of its first element in a slab; where the next one goes */
    int lines_left, lines_ahead;
    /* From term `term0` on. `first`: the tile's first line, of `lines` that there are. */
    __device__ __forceinline__ operand_copy(const operand &o, const float *first, int lines, int term0) {
        const int thread = threadIdx.x, across = HOW == LINES ? 32 : TILE / WIDTH;
        const int line = HOW == TERMS ? thread / 8 : thread % across * WIDTH;
        const int term = HOW == TERMS ? thread % 8 : thread / across;
        lines_left = lines - line, offset = (term * PITCH + line) * 4;
        const int there = HOW == VECTORS ? min(line, lines - 4) : line; /* past the edge: the last ones again */
        next = first + there * o.row_stride + (term0 + term) * o.k_stride;
        round_step = ROUND_LINES * o.row_stride + ROUND_TERMS * o.k_stride;
        finish = HOW == TERMS ? SLAB - TILE * o.row_stride : 0;
    }
    __device__ __forceinline__ void begin_slab(uint32_t slab) { to = slab + offset, lines_ahead = lines_left; }
    __device__ __forceinline__ void finish_slab() { next += finish; }
    __device__ __forceinline__ void copy_part(int wanted) {
#pragma unroll
        for (int round = 0; round < ROUNDS / PARTS; ++round) {
#pragma unroll
            for (int i = 0; i < ALONG; ++i) {
                const int line = HOW == LINES ? i * 32 : 0, term = HOW == TERMS ? i * 8 : 0;
                const bool inside = !EDGES || HOW == VECTORS || line < lines_ahead;
                cp_async_if<WIDTH * 4>(to + (term * PITCH + line) * 4, next + line + term, inside ? wanted : 0);
            }
            next += round_step, lines_ahead -= ROUND_LINES, to += (ROUND_TERMS * PITCH + ROUND_LINES) * 4;
        }
    }

    /* The first `terms` terms, to the last rows of a slab; the rows before them, from part `part` on, become zero. */
    static __device__ __forceinline__ void copy_ragged(const operand &o, const float *first, int lines, float *slab,
                                                       int terms, int part) {
#pragma unroll 8
        for (int i = threadIdx.x; i < TILE * (SLAB - part * STEP); i += THREADS) {
            const int line = HOW == TERMS ? i / 8 % TILE : i % TILE;
            const int row = part * STEP + (HOW == TERMS ? i / (8 * TILE) * 8 + i % 8 : i / TILE);
            const int term = row - (SLAB - terms);
            slab[row * PITCH + line] = term >= 0 && line < lines ? first[line * o.row_stride + term * o.k_stride] : 0;
        }
    }
};

template <int TILE, int ROWS, int COLS> struct tile_product {
    static constexpr int WARP = TILE / 2, LANES_M = WARP / ROWS, LANES_N = WARP / COLS, PITCH = TILE + 4;
    static constexpr int SLAB_FLOATS = SLAB * PITCH, STAGE_FLOATS = 2 * SLAB_FLOATS, RESULT_PITCH = WARP + 4;
    static_assert(LANES_M * LANES_N == 32, "the lanes of a warp cover its quarter of the tile");
    static_assert(2 * STAGE_FLOATS * 4 == portable_shared(TILE), "what the host asks for");
    static_assert(4 * LANES_M * RESULT_PITCH <= 2 * STAGE_FLOATS, "results go through the slabs' memory");
    /* Where this thread's results are. Lanes 2i and 2i + 1 have the same rows, lanes i and i ^ 2 the same columns: a
     * warp's 16-byte loads from shared memory are then two wavefronts instead of four. */
    int warp_m, warp_n, lane_m, lane_n;
    float sum[ROWS][COLS];
    __device__ __forceinline__ tile_product() : sum{} {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        warp_m = warp / 2 * WARP, warp_n = warp % 2 * WARP;
        lane_m = lane / 2 % LANES_M, lane_n = lane % 2 + lane / (2 * LANES_M) * 2;
    }
    /* One term's values. */
    static __device__ __forceinline__ void load(float (&a)[ROWS], float (&b)[COLS], const float *from_a,
                                                const float *from_b) {
#pragma unroll
        for (int i = 0; i < ROWS; i += 4) *(float4 *)&a[i] = *(const float4 *)(from_a + i * LANES_M);
#pragma unroll
        for (int i = 0; i < COLS; i += 4) *(float4 *)&b[i] = *(const float4 *)(from_b + i * LANES_N);
    }

    template <reading A, reading B>
    __device__ __forceinline__ void multiply_as(const product &g, const float *a_first, const float *b_first,
                                                int a_lines, int b_lines, float *shared) {
        const int slabs = ceil_div(g.a.k, SLAB), ragged = g.a.k % SLAB;
        operand_copy<TILE, A> a(g.a, a_first, a_lines, ragged);
        operand_copy<TILE, B> b(g.b, b_first, b_lines, ragged);
        const uint32_t memory = shared_address(shared);
        int part = 0; /* the next step of the slab in use; steps without a term are left out */
        if (ragged) {
            part = (SLAB - ragged) / STEP;
            a.copy_ragged(g.a, a_first, a_lines, shared, ragged, part);
            b.copy_ragged(g.b, b_first, b_lines, shared + SLAB_FLOATS, ragged, part);
        } else {
            a.begin_slab(memory), b.begin_slab(memory + SLAB_FLOATS * 4);
#pragma unroll 1
            for (int i = 0; i < PARTS; ++i) a.copy_part(1), b.copy_part(1);
            a.finish_slab(), b.finish_slab();
        }
        int coming = 1, stage = 0, more = coming < slabs;
        cp_async_commit(), cp_async_wait<0>();
        a.begin_slab(memory + STAGE_FLOATS * 4), b.begin_slab(memory + (STAGE_FLOATS + SLAB_FLOATS) * 4);
#pragma unroll 1
        for (int i = 0; i < part; ++i) a.copy_part(more), b.copy_part(more); /* as the steps left out would */
        forget_origin(a.round_step, b.round_step, a.finish, b.finish);       /* in registers: a shorter main loop */
        __syncthreads();
        const int a_offset = warp_m + lane_m * 4, b_offset = SLAB_FLOATS + warp_n + lane_n * 4;
        const float *a_from = shared + a_offset + part * STEP * PITCH;
        const float *b_from = shared + b_offset + part * STEP * PITCH;
        float a_values[2][ROWS], b_values[2][COLS];
        load(a_values[0], b_values[0], a_from, b_from);
#pragma unroll 1
        for (int steps = slabs * PARTS - part; steps > 0; --steps) {
            a.copy_part(more), b.copy_part(more);
            ++part;
#pragma unroll
            for (int term = 0; term < STEP; ++term) {
                float(&a_now)[ROWS] = a_values[term % 2], (&b_now)[COLS] = b_values[term % 2];
                float(&a_next)[ROWS] = a_values[(term + 1) % 2], (&b_next)[COLS] = b_values[(term + 1) % 2];
                if (term + 1 < STEP) {
                    load(a_next, b_next, a_from + (term + 1) * PITCH, b_from + (term + 1) * PITCH);
                } else {
                    a_from += STEP * PITCH, b_from += STEP * PITCH;
                    if (part == PARTS) { /* the slab's last values are in registers: the other slab, which has come */
                        cp_async_commit(), cp_async_wait<0>();
                        __syncthreads();
                        a.finish_slab(), b.finish_slab();
                        a.begin_slab(memory + stage * STAGE_FLOATS * 4);
                        b.begin_slab(memory + (stage * STAGE_FLOATS + SLAB_FLOATS) * 4);
                        part = 0, stage ^= 1, more = ++coming < slabs;
                        a_from = shared + stage * STAGE_FLOATS + a_offset;
                        b_from = shared + stage * STAGE_FLOATS + b_offset;
                    }
                    load(a_next, b_next, a_from, b_from);
                }
                /* Row by row, back and forth: each fma has a factor in common with the one before. */
#pragma unroll
                for (int i = 0; i < ROWS * COLS; ++i) {
                    const int row = i / COLS, col = row % 2 ? COLS - 1 - i % COLS : i % COLS;
                    sum[row][col] = fmaf(a_now[row], b_now[col], sum[row][col]);
                }
            }
        }
        cp_async_commit(), cp_async_wait<0>();
        __syncthreads();
    }

    static __device__ __forceinline__ reading reading_of(const operand &o, const float *first, int lines) {
        const bool aligned = o.k_stride % 4 == 0 && lines % 4 == 0 && (uintptr_t)first % 16 == 0;
        return o.row_stride != 1 ? TERMS : aligned ? VECTORS : LINES;
    }

    /* row0, col0: the first that are read. */
    __device__ __forceinline__ void multiply(const product &g, int batch, int row0, int col0, float *shared) {
        const float *a = g.a.data + batch * g.a.batch_stride + row0 * g.a.row_stride;
        const float *b = g.b.data + batch * g.b.batch_stride + col0 * g.b.row_stride;
        const int a_lines = g.a.rows - row0, b_lines = g.b.rows - col0;
        const reading of_a = reading_of(g.a, a, a_lines), of_b = reading_of(g.b, b, b_lines);
        if (of_a == TERMS && of_b == TERMS) return multiply_as<TERMS, TERMS>(g, a, b, a_lines, b_lines, shared);
        if (of_a == TERMS && of_b == VECTORS) return multiply_as<TERMS, VECTORS>(g, a, b, a_lines, b_lines, shared);
        if (of_a == TERMS) return multiply_as<TERMS, LINES>(g, a, b, a_lines, b_lines, shared);
        if (of_a == VECTORS && of_b == TERMS) return multiply_as<VECTORS, TERMS>(g, a, b, a_lines, b_lines, shared);
        if (of_b == TERMS) return multiply_as<LINES, TERMS>(g, a, b, a_lines, b_lines, shared);
        if (of_a == VECTORS && of_b == VECTORS) return multiply_as<VECTORS, VECTORS>(g, a, b, a_lines, b_lines, shared);
        multiply_as<LINES, LINES>(g, a, b, a_lines, b_lines, shared); /* either may be aligned: that is not used */
    }

    /* Sums go through shared memory, so that a warp writes whole rows. There, columns 2i and 2i + 1 change places: a
     * 16-byte store takes four consecutive registers, so that sum[row][col] is in a register of the other parity than
     * B's value for col, which is what the multiplications want. */
    __device__ __forceinline__ void store(const product &g, const tile &own, int row0, int col0, float *shared) const {
        const int lane = threadIdx.x % 32;
        float *staging = shared + threadIdx.x / 32 * (LANES_M * RESULT_PITCH);
        float *c = g.c + (int64_t)own.batch * g.a.rows * g.b.rows;
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            __syncwarp();
#pragma unroll
            for (int group = 0; group < COLS / 4; ++group)
                *(float4 *)(staging + lane_m * RESULT_PITCH + group * 4 * LANES_N + lane_n * 4) = make_float4(
                    sum[row][group * 4 + 1], sum[row][group * 4], sum[row][group * 4 + 3], sum[row][group * 4 + 2]);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < LANES_M * WARP / 32; ++i) {
                const int line = i * 32 / WARP, in_warp = i * 32 % WARP + lane;
                const int out_row = row0 + warp_m + row / 4 * 4 * LANES_M + line * 4 + row % 4;
                const int out_col = col0 + warp_n + in_warp;
                if (out_row >= own.m0 && out_row < g.a.rows && out_col >= own.n0 && out_col < g.b.rows)
                    c[(int64_t)out_row * g.b.rows + out_col] = staging[line * RESULT_PITCH + (in_warp ^ 1)];
            }
        }
        __syncthreads(); /* the next tile's slabs take the place of these results */
    }
};

/* The last tile begins early enough to end where the matrix does, so that it reads no less than the others; it stores
 * only what is its own. */
template <int TILE, int ROWS, int COLS> __device__ __forceinline__ void compute(const product &g) {
    float *const shared = (float *)shared_memory;
    wait_for_previous_kernel();
    for (int index = blockIdx.x; index < tile_count<TILE>(g); index += gridDim.x) {
        const tile t = tile_at<TILE, 16>(g, index);
        if (g.only_marked && mark_of(g.a, t.batch, t.m0) * mark_of(g.b, t.batch, t.n0) <= g.mark_limit) continue;
        const int row0 = min(t.m0, max(g.a.rows - TILE, 0)), col0 = min(t.n0, max(g.b.rows - TILE, 0));
        tile_product<TILE, ROWS, COLS> sums;
        sums.multiply(g, t.batch, row0, col0, shared);
        sums.store(g, t, row0, col0, shared);
    }
}

} // namespace portable

/* Grid: one block for each tile, or fewer: they take every gridDim-th tile. */
extern "C" __global__ void __launch_bounds__(128, 2) portable_128x128(const __grid_constant__ product g) {
    portable::compute<128, 16, 8>(g);
}

extern "C" __global__ void __launch_bounds__(128, 4) portable_64x64(const __grid_constant__ product g) {
    portable::compute<64, 4, 8>(g);
}
