/* split.cuh: what the kernels that make split operands (pack.cu) and multiply them (split_*.cu) have in common, whatever
 * instruction multiplies: scales, the order of the tiles, where their rows lie in the panels (args.h), and how their
 * sums become C. */
#ifndef TESSERA_CUDA_SPLIT_CUH
#define TESSERA_CUDA_SPLIT_CUH

#include "args.h"
#include "overlap.cuh"

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
};

__device__ inline destination destination_of(const split_args &g, const work &w) {
    if (g.slices > 1) return {{g.partial + (int64_t)(w.batch * g.slices + w.slice) * g.m * g.n, g.n, 1, 0}, {}, 1, 0};
    destination d = {g.c, g.source, g.alpha, g.beta};
    d.c.data += w.batch * g.c.batch_stride;
    d.source.data += w.batch * g.source.batch_stride;
    return d;
}

/* What to do with the sums of this panel of A times this one of B. */
enum verdict { LEAVE, LOOK, WRITE };

__device__ inline verdict verdict_on(const split_args &g, int batch, int row, int col) {
    const float mark = g.a.marks[batch * g.a.marks_batch_stride + row / PANEL_ROWS] *
                       g.b.marks[batch * g.b.marks_batch_stride + col / PANEL_ROWS];
    return mark <= g.mark_limit ? WRITE : g.doubts && mark < INFINITY ? LOOK : LEAVE;
}

/* What a row of an operand means for its sums. */
struct row_doubt {
    bool zero;   /* all of it, and so its sums are */
    float least; /* they must be, beside what the other operand's row asks for */

    __device__ row_doubt(const split_args &g, const split_operand &o, int batch, int row) {
        const int64_t at = batch * o.exponents_batch_stride + row;
        zero = o.exponents[at] == ALL_ZERO;
        least = g.least_per_deep * (float)o.deep[at];
    }
};

/* Whether a sum, as it is before it is scaled back, is too small to be good. */
__device__ inline bool is_doubtful(float sum, const row_doubt &a, const row_doubt &b) {
    return !a.zero && !b.zero && !(fabsf(sum) >= a.least + b.least);
}

/* Notes what a warp found about a block of C, and returns it to all its threads. */
__device__ inline bool note_doubt(const split_args &g, int batch, int row0, int col0, bool doubtful) {
    doubtful = __any_sync(0xffffffffu, doubtful);
    const int64_t block = (int64_t)(row0 / DOUBT_ROWS) * divide_up(g.n, DOUBT_COLS) + col0 / DOUBT_COLS;
    if (threadIdx.x % 32 == 0) g.doubts[batch * g.doubts_batch_stride + block] = doubtful;
    return doubtful;
}

/* The exponent of a row of an operand; 0 past its end. */
__device__ inline int exponent_of(const split_operand &o, int batch, int row, int rows) {
    return row < rows ? o.exponents[batch * o.exponents_batch_stride + row] : 0;
}

/* Whether the sums of a block, v being as in write_out, are to be left to ieee. */
__device__ inline bool in_doubt(const split_args &g, int batch, int row0, int col0, const float *v) {
    const int lane = threadIdx.x % 32;
    bool doubtful = false;
#pragma unroll
    for (int j = 0; j < DOUBT_COLS / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int col = col0 + 8 * j + lane % 4 * 2 + i;
            if (col >= g.n) continue;
            const row_doubt of_b(g, g.b, batch, col);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = row0 + lane / 4 + 8 * h;
                if (row < g.m) doubtful |= is_doubtful(v[4 * j + 2 * h + i], row_doubt(g, g.a, batch, row), of_b);
            }
        }
    return note_doubt(g, batch, row0, col0, doubtful);
}

/* A warp's own corner of shared memory, where 16 rows of 32 columns wait to be written out row by row. A row is 40
 * floats, so that the accumulators' pattern (8 rows x 4 pairs) falls on all banks. */
constexpr int OUT_ROWS = DOUBT_ROWS, OUT_COLS = DOUBT_COLS, OUT_STRIDE = 40;
typedef float out_buffer[OUT_ROWS][OUT_STRIDE];

/* Scales back and writes 16 rows of 32 columns of C, from (row0, col0) on. v[4j + 2h + i] is row lane/4 + 8h, column
 * 8j + lane%4*2 + i, as the matrix instructions lay accumulators out; the warp then writes 32 neighbouring columns of a
 * row at once, whatever C's alignment. exponent_a is of row row0 + lane (lane < 16), exponent_b of column col0 + lane.
 */
__device__ inline void write_out(const split_args &g, const destination &d, int row0, int col0, const float *v,
                                 int exponent_a, int exponent_b, out_buffer &out) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float scale = power_of_two(-__shfl_sync(0xffffffffu, exponent_a, lane / 4 + 8 * h));
#pragma unroll
        for (int j = 0; j < OUT_COLS / 8; j++)
            *(float2 *)&out[lane / 4 + 8 * h][8 * j + lane % 4 * 2] = make_float2(v[4 * j + 2 * h] * scale,
                                                                                  v[4 * j + 2 * h + 1] * scale);
    }
    __syncwarp();
    if (col0 + lane >= g.n) return;
    const int rows = g.m - row0;
    const float scale = power_of_two(-exponent_b);
    float *to = d.c.data + row0 * d.c.row_stride + (col0 + lane) * d.c.col_stride;
    float before[OUT_ROWS]; /* beta*S, read all at once rather than each where it is needed */
    const float *from = d.source.data + row0 * d.source.row_stride + (col0 + lane) * d.source.col_stride;
#pragma unroll
    for (int r = 0; r < OUT_ROWS; r++, from += d.source.row_stride)
        before[r] = d.beta != 0 && r < rows ? d.beta * *from : -0.0f;
#pragma unroll
    for (int r = 0; r < OUT_ROWS; r++, to += d.c.row_stride)
        if (r < rows) *to = fmaf(d.alpha, out[r][lane] * scale, before[r]); /* -0 changes nothing, not even -0 */
}

#endif
