/* split.cuh: what the kernels that make split operands (pack.cu) and multiply them (split_*.cu) have in common, whatever
 * instruction multiplies: scales, the order of the tiles, where their rows lie in the panels (args.h), and how their
 * sums become C. */
#ifndef TESSERA_CUDA_SPLIT_CUH
#define TESSERA_CUDA_SPLIT_CUH

#include "cuda/kernels/args.h"
#include "cuda/kernels/ptx.cuh"

constexpr float LO_SCALE = 1.0f / (1 << SPLIT_LO_SHIFT);

__device__ constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

__device__ inline float power_of_two(int e) { return __uint_as_float((unsigned)(e + 127) << 23); }

/* ---- Which tile -------------------------------------------------------------------------------------------------- */

constexpr int GROUP_ROWS = 8; /* tile rows walked together, so that neighbours in time share panels in L2 */

struct work {
    int batch, slice;
    int m0, n0; /* first row and column of C */
    int kb_begin, kb_end;
};

__device__ inline int work_count(const split_args &g) { return g.batch * g.slices * g.tiles_m * g.tiles_n; }

/* The index-th piece of work: tiles in groups of GROUP_ROWS tile rows, down the group's columns; slices and batch
 * outermost. */
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

/* ---- Where its rows are ------------------------------------------------------------------------------------------ */

/* Rows of one panel that a tile needs, in one block of k. */
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
    return {o.panels + batch * o.panels_batch_stride +
                (int64_t)panel * k_blocks * PIECES * PANEL_ROWS * SPLIT_ROW_BYTES +
                (int64_t)kb * PIECES * piece_stride + skip * SPLIT_ROW_BYTES,
            piece_stride, (uint32_t)max(0, min(ROWS, stored - skip)) * SPLIT_ROW_BYTES};
}

/* ---- Writing C --------------------------------------------------------------------------------------------------- */

/* Where the sums of a piece of work go: to C, or as they are to its slice's plane of `partial`. */
struct destination {
    matrix_out c;
    matrix_in source; /* what beta scales */
    float alpha, beta;
    bool vectors; /* four neighbours in a row may be written together */

    __device__ destination(const split_args &g, const work &w)
        : c(g.c), source(g.addend), alpha(g.alpha), beta(g.beta) {
        if (g.slices > 1) {
            c = {g.partial + (int64_t)(w.batch * g.slices + w.slice) * g.m * g.n, g.n, 1, 0};
            alpha = 1, beta = 0;
        } else {
            c.data += w.batch * c.batch_stride;
            source.data += w.batch * source.batch_stride;
        }
        vectors = beta == 0 && c.col_stride == 1 && c.row_stride % 4 == 0 && (uintptr_t)c.data % 16 == 0;
    }
};

/* What to do with the sums of this panel of A times this one of B. */
enum verdict { LEAVE, LOOK, WRITE };

__device__ inline float mark_of(const split_operand &o, int batch, int row) {
    return o.marks[batch * o.marks_batch_stride + row / PANEL_ROWS];
}

__device__ inline verdict verdict_on(const split_args &g, float mark_a, float mark_b) {
    const float mark = mark_a * mark_b;
    return mark <= g.mark_limit ? WRITE : g.recompute && mark < INFINITY ? LOOK : LEAVE;
}

/* What the sums of a row of an operand must be at least, before they are scaled back, beside what the other operand's
 * row asks for; less than any number where all of the row is zero, and so its sums are. */
__device__ inline float least_sum(const split_args &g, const split_operand &o, int batch, int row) {
    const int64_t at = batch * o.exponents_batch_stride + row;
    return o.exponents[at] == ALL_ZERO ? -INFINITY : g.least_per_tiny * (float)o.tiny_counts[at];
}

/* Notes what a warp found about a block of C, and returns it to all its threads. */
__device__ inline bool note_doubt(const split_args &g, int batch, int row0, int col0, bool doubtful) {
    doubtful = __any_sync(0xffffffffu, doubtful);
    const int64_t block = (int64_t)(row0 / CHECK_ROWS) * divide_up(g.n, CHECK_COLS) + col0 / CHECK_COLS;
    if (threadIdx.x % 32 == 0) g.recompute[batch * g.recompute_batch_stride + block] = doubtful;
    return doubtful;
}

/* The exponent of a row of an operand; 0 past its end. */
__device__ inline int exponent_of(const split_operand &o, int batch, int row, int rows) {
    return row < rows ? o.exponents[batch * o.exponents_batch_stride + row] : 0;
}

/* A warp's own corner of shared memory, where the sums of a block wait to be looked at and written out row by row. A row
 * is 40 floats, so that the accumulators' pattern (8 rows x 4 pairs) falls on all banks. */
constexpr int OUT_ROWS = CHECK_ROWS, OUT_COLS = CHECK_COLS, OUT_STRIDE = 40;
typedef float out_buffer[OUT_ROWS][OUT_STRIDE];

/* Scales a warp's sums back by their rows: v[4j + 2h + i] is row lane/4 + 8h, column 8j + lane%4*2 + i of a block, as the
 * matrix instructions lay accumulators out. exponent_a is of row number `lane`. */
template <int N> __device__ void scale_rows(float (&v)[N], int exponent_a) {
    const int row = threadIdx.x % 32 / 4;
    const float down[2] = {power_of_two(-__shfl_sync(0xffffffffu, exponent_a, row)),
                           power_of_two(-__shfl_sync(0xffffffffu, exponent_a, row + 8))};
#pragma unroll
    for (int i = 0; i < N; i++) v[i] *= down[i / 2 % 2];
}

/* Puts the sums of a block there. */
__device__ inline void put_sums(const float *v, out_buffer &sums) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < OUT_COLS / 8; j++)
            *(float2 *)&sums[lane / 4 + 8 * h][8 * j + lane % 4 * 2] = make_float2(v[4 * j + 2 * h],
                                                                                   v[4 * j + 2 * h + 1]);
}

/* Whether the block of C from (row0, col0) on is to be left to ieee. */
__device__ inline bool in_doubt(const split_args &g, int batch, int row0, int col0, int exponent_a,
                                const out_buffer &sums) {
    const int lane = threadIdx.x % 32, rows = min(OUT_ROWS, g.m - row0);
    const float of_row = least_sum(g, g.a, batch, row0 + min(lane, rows - 1)); /* number `lane` */
    const float of_col = least_sum(g, g.b, batch, min(col0 + lane, g.n - 1));
    const float up = power_of_two(exponent_a);
    bool doubtful = false;
#pragma unroll 4
    for (int r = 0; r < OUT_ROWS; r++) {
        const float sum = sums[r][lane] * __shfl_sync(0xffffffffu, up, r);
        const float least = __shfl_sync(0xffffffffu, of_row, r) + of_col;
        doubtful |= r < rows && !(fabsf(sum) >= least);
    }
    return note_doubt(g, batch, row0, col0, doubtful && col0 + lane < g.n);
}

/* Scales a block back by its columns and writes it: 32 neighbours of a row at once, whatever C's alignment, or of four
 * rows where four columns may go together. exponent_b is of column col0 + lane. */
__device__ inline void write_out(const split_args &g, const destination &d, int row0, int col0, int exponent_b,
                                 const out_buffer &sums) {
    const int lane = threadIdx.x % 32, rows = g.m - row0;
    const float down = power_of_two(-exponent_b);
    if (d.vectors && col0 + OUT_COLS <= g.n) {
        constexpr int AT_ONCE = 4; /* rows */
        const int row = lane / 8, col = lane % 8 * 4;
        float downs[4], *to = d.c.data + (row0 + row) * d.c.row_stride + col0 + col;
#pragma unroll
        for (int i = 0; i < 4; i++) downs[i] = __shfl_sync(0xffffffffu, down, col + i);
#pragma unroll
        for (int r = 0; r < OUT_ROWS; r += AT_ONCE, to += AT_ONCE * d.c.row_stride) {
            const float4 x = *(const float4 *)&sums[r + row][col];
            if (r + row < rows)
                *(float4 *)to = make_float4(d.alpha * (x.x * downs[0]), d.alpha * (x.y * downs[1]),
                                            d.alpha * (x.z * downs[2]), d.alpha * (x.w * downs[3]));
        }
        return;
    }
    if (col0 + lane >= g.n) return;
    float before[OUT_ROWS]; /* beta*S, read all at once rather than each where it is needed */
    const float *from = d.source.data + row0 * d.source.row_stride + (col0 + lane) * d.source.col_stride;
#pragma unroll
    for (int r = 0; r < OUT_ROWS; r++, from += d.source.row_stride)
        before[r] = d.beta != 0 && r < rows ? d.beta * *from : -0.0f;
    float x[OUT_ROWS], *to = d.c.data + row0 * d.c.row_stride + (col0 + lane) * d.c.col_stride;
#pragma unroll
    for (int r = 0; r < OUT_ROWS; r++) x[r] = fmaf(d.alpha, sums[r][lane] * down, before[r]); /* -0 changes nothing */
#pragma unroll
    for (int r = 0; r < OUT_ROWS; r++, to += d.c.row_stride)
        if (r < rows) *to = x[r];
}

#endif
