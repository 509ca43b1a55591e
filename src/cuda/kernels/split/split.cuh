/* split.cuh: what the kernels that multiply split operands (split_*.cu) share, whatever instruction multiplies: the
 * order of the tiles, where their rows lie in the panels (args.h), and the epilogue that turns sums into C.
 *
 * The one-file modules take the region `powers`.
 */
#ifndef TESSERA_CUDA_SPLIT_CUH
#define TESSERA_CUDA_SPLIT_CUH

#include "cuda/kernels/args.h"
#include "cuda/kernels/marks.cuh"
#include "cuda/kernels/ptx.cuh"

// region: powers
constexpr float LO_SCALE = 1.0f / (1 << SPLIT_LO_SHIFT);

__device__ constexpr int ceil_div(int x, int y) { return (x + y - 1) / y; }

__device__ inline float power_of_two(int e) { return __uint_as_float((unsigned)(e + 127) << 23); }
// endregion: powers

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* Tile rows walked together (a band), so that tiles computed at the same time share panels in L2. */
constexpr int GROUP_ROWS = 8;

/* What a thread block computes at a time: a tile of C, and the blocks of k that it sums for it. */
struct work {
    int batch;
    int part;   /* where in `partial` its sums go, counted in tiles; -1: to C */
    int m0, n0; /* first row and column of C */
    int kb_begin, kb_end;
};

/* Tiles that are in slices. */
__device__ inline int cut_tiles(const split_args &g) { return g.tiles_m * g.tiles_n - g.full_tiles; }

__device__ inline int work_count(const split_args &g) { return g.batch * (g.full_tiles + cut_tiles(g) * g.slices); }

/* Where a tile is, counted in tiles: they go in bands of GROUP_ROWS tile rows, down the columns of a band. */
struct tile_place {
    int row, col;
};

__device__ inline tile_place tile_at_number(const split_args &g, int tile) {
    const int group = tile / (GROUP_ROWS * g.tiles_n), first = group * GROUP_ROWS;
    const int rows = min(GROUP_ROWS, g.tiles_m - first), within = tile - first * g.tiles_n;
    return {first + within % rows, within / rows};
}

/* Work number `index`: whole tiles first, then slice after slice of the others; batch is outermost. */
template <int TILE_M, int TILE_N> __device__ work work_at(const split_args &g, int index) {
    const int cut = cut_tiles(g), each = g.full_tiles + cut * g.slices;
    work w;
    w.batch = index / each;
    int tile = index - w.batch * each;
    w.part = -1, w.kb_begin = 0, w.kb_end = g.k_blocks;
    if (tile >= g.full_tiles) {
        const int part = tile - g.full_tiles, slice = part / cut;
        tile -= slice * cut;
        w.part = w.batch * g.slices * cut + part;
        w.kb_begin = slice * g.k_blocks_per_slice;
        w.kb_end = min(g.k_blocks, w.kb_begin + g.k_blocks_per_slice);
    }
    const tile_place at = tile_at_number(g, tile);
    w.m0 = at.row * TILE_M, w.n0 = at.col * TILE_N;
    return w;
}

/* The rows that a panel has room for (args.h); zero or less past the last panel. */
__device__ inline int stored_rows(int rows, int panel) {
    return min(PANEL_ROWS, ceil_div(rows - panel * PANEL_ROWS, PANEL_ROW_STEP) * PANEL_ROW_STEP);
}

/* The rows of one panel that a tile needs, in one block of k: `bytes` contiguous bytes of each component. */
struct panel_rows {
    const uint8_t *from;
    uint32_t component_stride, bytes; /* bytes = 0: the tile reaches past the matrix here */
};

template <int ROWS, int COMPONENTS>
__device__ panel_rows panel_rows_at(const split_operand &o, int rows, int k_blocks, int batch, int row, int kb) {
    static_assert(PANEL_ROWS % ROWS == 0, "they lie within a panel");
    const int panel = row / PANEL_ROWS, skip = row % PANEL_ROWS;
    const int stored = stored_rows(rows, panel);
    const uint32_t component_stride = max(stored, 0) * SPLIT_ROW_BYTES;
    return {o.panels + batch * o.panels_batch_stride +
                (int64_t)panel * k_blocks * COMPONENTS * PANEL_ROWS * SPLIT_ROW_BYTES +
                (int64_t)kb * COMPONENTS * component_stride + skip * SPLIT_ROW_BYTES,
            component_stride, (uint32_t)max(0, min(ROWS, stored - skip)) * SPLIT_ROW_BYTES};
}

/* ---- Epilogue ---------------------------------------------------------------------------------------------------- */

/* Where the sums of one `work` go: to C, or as they are to its part of `partial`. */
struct destination {
    matrix_out c;
    matrix_in addend;
    float alpha, beta;
    bool vectors; /* four neighbours in a row may be written together */

    __device__ destination(const split_args &g, const work &w)
        : c(g.c), addend(g.addend), alpha(g.alpha), beta(g.beta) {
        if (w.part >= 0) {
            const int64_t row = w.m0 / g.tile_m * g.tile_m; /* the tile's, of which w may have a part */
            c = {g.partial + ((int64_t)w.part * g.tile_m - row) * g.tile_n - w.n0, g.tile_n, 1, 0};
            alpha = 1, beta = 0;
        } else {
            c.data += w.batch * c.batch_stride;
            addend.data += w.batch * addend.batch_stride;
        }
        vectors = beta == 0 && c.col_stride == 1 && c.row_stride % 4 == 0 && (uintptr_t)c.data % 16 == 0;
    }
};

__device__ inline float mark_of(const split_operand &o, int batch, int row) {
    return o.marks[batch * o.marks_batch_stride + row / PANEL_ROWS];
}

__device__ inline action action_for(const split_args &g, float mark_a, float mark_b) {
    return action_for(mark_a, mark_b, g.mark_limit, g.by_row, g.recompute);
}

/* The exponent of a row of an operand; 0 past its end. */
__device__ inline int exponent_of(const split_operand &o, int batch, int row, int rows) {
    return row < rows ? o.exponents[batch * o.exponents_batch_stride + row] : 0;
}

/* A row's share of the least size that a sum must have before it is scaled back; the other operand's row adds its
 * share. In a row of zeros any sum is large enough (-Inf). In a row that does not fit none is: no sum compares as large
 * as NaN. */
__device__ inline float least_sum(const split_args &g, const split_operand &o, int batch, int row) {
    const int64_t at = batch * o.exponents_batch_stride + row;
    const uint32_t tiny = o.tiny_counts[at];
    if (tiny & NOT_CARRIED) return NAN;
    return o.exponents[at] == ALL_ZERO ? -INFINITY : g.least_per_tiny * (float)tiny;
}

/* The same of a row of A, for columns from col0 on. by_row: in a row without tiny elements any sum will do unless B's
 * mark is too large, as in a panel of A without any. */
__device__ inline float least_sum_of_a(const split_args &g, int batch, int row, int col0) {
    const float least = least_sum(g, g.a, batch, row);
    return g.by_row && least == 0 && mark_of(g.b, batch, col0) <= g.mark_limit ? -INFINITY : least;
}

/* Where the flags of a check block are; and its rows, as bits. */
__device__ inline uint16_t *flags_at(const split_args &g, int batch, int row0, int col0) {
    const int64_t block = (int64_t)(row0 / CHECK_ROWS) * ceil_div(g.n, CHECK_COLS) + col0 / CHECK_COLS;
    return g.recompute + batch * g.recompute_batch_stride + block;
}
__device__ inline unsigned all_rows(const split_args &g, int row0) { return (1u << min(CHECK_ROWS, g.m - row0)) - 1; }

/* Notes which rows of a check block are left to ieee. */
__device__ inline void note_rows(const split_args &g, int batch, int row0, int col0, unsigned left) {
    if (threadIdx.x % 32 == 0) *flags_at(g, batch, row0, col0) = (uint16_t)left;
}

/* A warp's own part of shared memory, through which it checks and stores its sums, one check block at a time. */
typedef float out_buffer[CHECK_ROWS][OUT_STRIDE];

/* Sums are scaled back by 2^-e for their row and again for their column. A nonzero sum is at least 2^-59, so with
 * exponents up to NEAR_EXPONENT nothing on the way is subnormal. Beyond that scale_far does it. */
constexpr int NEAR_EXPONENT = 62;

__device__ inline int near_exponent(int e) { return max(-NEAR_EXPONENT, min(NEAR_EXPONENT, e)); }
__device__ inline bool is_far(int e) { return near_exponent(e) != e && e != ALL_ZERO; }

/* x * 2^-e for the e of a row and a column together: both steps go the same way, so only the result is rounded. */
__device__ inline float scaled_back(float x, int e) { return x * power_of_two(-(e / 2)) * power_of_two(e / 2 - e); }

/* Scales a warp's sums back by their rows: v[4j + 2h + i] is row lane/4 + 8h, column 8j + lane%4*2 + i of a check
 * block, the matrix instructions' layout of accumulators. exponent_a is that of row number `lane`. */
template <int N> __device__ void scale_rows(float (&v)[N], int exponent_a) {
    const int row = threadIdx.x % 32 / 4;
    const float down_a = power_of_two(-near_exponent(exponent_a));
    const float down[2] = {__shfl_sync(0xffffffffu, down_a, row), __shfl_sync(0xffffffffu, down_a, row + 8)};
#pragma unroll
    for (int i = 0; i < N; i++) v[i] *= down[i / 2 % 2];
}

/* Puts the sums of a check block into the buffer. */
__device__ inline void put_sums(const float *v, out_buffer &sums) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < CHECK_COLS / 8; j++)
            *(float2 *)&sums[lane / 4 + 8 * h][8 * j + lane % 4 * 2] = make_float2(v[4 * j + 2 * h],
                                                                                   v[4 * j + 2 * h + 1]);
}

/* The rows, as bits, of the check block from (row0, col0) on that have a sum too small to keep the bound; notes
 * them. */
__device__ inline unsigned rows_left(const split_args &g, int batch, int row0, int col0, int exponent_a,
                                     const out_buffer &sums) {
    const int lane = threadIdx.x % 32, rows = min(CHECK_ROWS, g.m - row0);
    const float of_row = least_sum_of_a(g, batch, row0 + min(lane, rows - 1), col0); /* row number `lane` */
    const float of_col = least_sum(g, g.b, batch, min(col0 + lane, g.n - 1));
    const float up = power_of_two(near_exponent(exponent_a));
    unsigned left = 0;
#pragma unroll 4
    for (int r = 0; r < CHECK_ROWS; r++) {
        const float sum = sums[r][lane] * __shfl_sync(0xffffffffu, up, r);
        const float least = __shfl_sync(0xffffffffu, of_row, r) + of_col;
        const bool too_small = r < rows && col0 + lane < g.n && !(fabsf(sum) >= least);
        left |= (unsigned)__any_sync(0xffffffffu, too_small) << r;
    }
    note_rows(g, batch, row0, col0, left);
    return left;
}

/* Scales a check block back by rows and columns, after scale_rows. */
__device__ inline void scale_far(out_buffer &sums, int exponent_a, int exponent_b) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int r = 0; r < CHECK_ROWS; r++) {
        const int e = __shfl_sync(0xffffffffu, exponent_a, r);
        sums[r][lane] = scaled_back(sums[r][lane] * power_of_two(near_exponent(e)), e + exponent_b);
    }
    __syncwarp();
}

/* Scales a check block back by its columns and stores it, 32 neighbours of a row at a time, or of four rows where
 * vectors of four columns are possible; rows with a bit in `left` are not. exponent_b is that of column col0 + lane. */
__device__ inline void store_block(const split_args &g, const destination &d, int row0, int col0, int exponent_a,
                                   int exponent_b, unsigned left, out_buffer &sums) {
    if (__any_sync(0xffffffffu, is_far(exponent_a) || is_far(exponent_b))) {
        scale_far(sums, exponent_a, exponent_b);
        exponent_b = 0;
    }
    const int lane = threadIdx.x % 32, rows = min(CHECK_ROWS, g.m - row0);
    const unsigned stored = ((1u << rows) - 1) & ~left;
    const float down = power_of_two(-near_exponent(exponent_b)); /* ALL_ZERO may be left */
    if (d.vectors && col0 + CHECK_COLS <= g.n) {
        constexpr int AT_ONCE = 4; /* rows */
        const int row = lane / 8, col = lane % 8 * 4;
        float downs[4], *to = d.c.data + (row0 + row) * d.c.row_stride + col0 + col;
#pragma unroll
        for (int i = 0; i < 4; i++) downs[i] = __shfl_sync(0xffffffffu, down, col + i);
#pragma unroll
        for (int r = 0; r < CHECK_ROWS; r += AT_ONCE, to += AT_ONCE * d.c.row_stride) {
            const float4 x = *(const float4 *)&sums[r + row][col];
            if (stored >> (r + row) & 1)
                *(float4 *)to = make_float4(d.alpha * (x.x * downs[0]), d.alpha * (x.y * downs[1]),
                                            d.alpha * (x.z * downs[2]), d.alpha * (x.w * downs[3]));
        }
        return;
    }
    if (col0 + lane >= g.n) return;
    float before[CHECK_ROWS]; /* beta*S, all read before any is needed; -0 changes nothing */
    const float *from = d.addend.data + row0 * d.addend.row_stride + (col0 + lane) * d.addend.col_stride;
#pragma unroll
    for (int r = 0; r < CHECK_ROWS; r++, from += d.addend.row_stride)
        before[r] = d.beta != 0 && r < rows ? d.beta * *from : -0.0f;
    float x[CHECK_ROWS], *to = d.c.data + row0 * d.c.row_stride + (col0 + lane) * d.c.col_stride;
#pragma unroll
    for (int r = 0; r < CHECK_ROWS; r++) x[r] = fmaf(d.alpha, sums[r][lane] * down, before[r]);
#pragma unroll
    for (int r = 0; r < CHECK_ROWS; r++, to += d.c.row_stride)
        if (stored >> r & 1) *to = x[r];
}

#endif
