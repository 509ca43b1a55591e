/* kernels.c: what each CUDA kernel promises (src/cuda/kernels/args.h), in plain C. A block computes here what a block
 * computes there, so that a wrong grid, slice, offset or stride of the host gives a wrong result. */
#include "fake.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../half.h"
#include "cuda/kernels.h"

static int least(int a, int b) { return a < b ? a : b; }

/* ---- ieee -------------------------------------------------------------------------------------------------------- */

enum { AT_ONCE = 8 }; /* columns whose sums are independent, so that a processor makes them together */

/* Terms [k_begin, k_end) of `count` elements of a row, at most AT_ONCE, each added up in order. */
static void dots(const ieee_args *g, int64_t batch, int row, int col, int count, int k_begin, int k_end, float *sums) {
    const float *a = g->a.data + batch * g->a.batch_stride + row * g->a.row_stride;
    const float *b = g->b.data + batch * g->b.batch_stride + col * g->b.col_stride;
    float sum[AT_ONCE] = {0};
    int64_t at[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) at[i] = least(i, count - 1) * g->b.col_stride;
    if (g->b.col_stride == 1 && count == AT_ONCE)
        for (int64_t k = k_begin; k < k_end; k++)
            for (int i = 0; i < AT_ONCE; i++) sum[i] = fmaf(a[k * g->a.col_stride], b[k * g->b.row_stride + i], sum[i]);
    else
        for (int64_t k = k_begin; k < k_end; k++)
            for (int i = 0; i < AT_ONCE; i++)
                sum[i] = fmaf(a[k * g->a.col_stride], b[k * g->b.row_stride + at[i]], sum[i]);
    memcpy(sums, sum, sizeof sum);
}

static float *element(const matrix_out *c, int64_t batch, int row, int col) {
    return c->data + batch * c->batch_stride + row * c->row_stride + col * c->col_stride;
}

static float addend(const matrix_in *s, int64_t batch, int row, int col) {
    return s->data[batch * s->batch_stride + row * s->row_stride + col * s->col_stride];
}

static float scaled(float alpha, float sum, float beta, const matrix_in *s, int64_t batch, int row, int col) {
    return beta == 0 ? alpha * sum : fmaf(alpha, sum, beta * addend(s, batch, row, col));
}

/* Tiles in bands of 16 tile rows, down each column of a band. */
static void find_tile(const ieee_args *g, int tile, int *row0, int *col0) {
    const int band = tile / (16 * g->tiles_n), rows = least(16, g->tiles_m - band * 16),
              within = tile - band * 16 * g->tiles_n;
    *row0 = (band * 16 + within % rows) * g->tile_m;
    *col0 = within / rows * g->tile_n;
}

static int64_t tail_runs(const ieee_args *g) {
    return ((int64_t)g->tiles_m * g->tiles_n - g->full_tiles) * ceil_div(g->k, IEEE_RUN);
}

/* Where share `share` of the tail begins, in runs. */
static int64_t share_begin(const ieee_args *g, int64_t share) { return share * tail_runs(g) / g->tail_blocks; }

/* Segments of a tile of the tail that begin before run `run` of it. */
static int segments_before(const ieee_args *g, int tail, int64_t run) {
    const int64_t first = (int64_t)tail * ceil_div(g->k, IEEE_RUN);
    int segments = run > 0;
    for (int64_t share = 0; share < g->tail_blocks; share++)
        segments += share_begin(g, share) > first && share_begin(g, share) < first + run;
    return segments;
}

static float *partial_at(const ieee_args *g, int64_t batch, int tail, int segment) {
    const int64_t tails = (int64_t)g->tiles_m * g->tiles_n - g->full_tiles;
    if (segment >= g->segments) abort();
    return g->partial + ((batch * tails + tail) * g->segments + segment) * g->tile_m * g->tile_n;
}

/* What the marks of two panels say (args.h). */
enum fate { STORED, TESTED, RECOMPUTED };

static enum fate fate_of(float mark_a, float mark_b, float limit, bool by_row, bool can_test) {
    if (by_row && mark_a > 1) return can_test && mark_b < INFINITY ? TESTED : RECOMPUTED;
    const float mark = mark_a * mark_b;
    return mark <= limit ? STORED : can_test && mark < INFINITY ? TESTED : RECOMPUTED;
}

/* Where the bits of an element's check block are (args.h). */
static int64_t flag_at(int n, int row, int col) {
    return (int64_t)(row / CHECK_ROWS) * ceil_div(n, CHECK_COLS) + col / CHECK_COLS;
}

/* Whether a row in the tile from (row0, col0) on is to be recomputed. */
static bool any_flag(const ieee_args *g, const uint16_t *flags, int row0, int col0) {
    for (int row = row0; row < least(row0 + g->tile_m, g->m); row += CHECK_ROWS)
        for (int col = col0; col < least(col0 + g->tile_n, g->n); col += CHECK_COLS)
            if (flags[flag_at(g->n, row, col)]) return true;
    return false;
}

/* Terms [k_begin, k_end) of a tile: all of them, or a segment of one in the tail. */
static void ieee_segment(const ieee_args *g, int64_t batch, int tile, int k_begin, int k_end) {
    const bool whole = k_begin == 0 && k_end == g->k;
    const int tail = tile - g->full_tiles, segment = whole ? 0 : segments_before(g, tail, k_begin / IEEE_RUN);
    int row0, col0;
    find_tile(g, tile, &row0, &col0);
    const uint16_t *flags = NULL; /* of what to store; else the whole tile is */
    if (g->marks_a) {
        const enum fate fate = fate_of(g->marks_a[batch * g->marks_a_batch_stride + row0 / PANEL_ROWS],
                                       g->marks_b[batch * g->marks_b_batch_stride + col0 / PANEL_ROWS], g->mark_limit,
                                       g->by_row, g->recompute);
        if (fate == STORED) return;
        if (fate == TESTED) {
            flags = g->recompute + batch * g->recompute_batch_stride;
            if (!any_flag(g, flags, row0, col0)) return;
        }
        ++*g->fallback_tiles;
    }
    const int cols = least(col0 + g->tile_n, g->n);
    for (int row = row0; row < least(row0 + g->tile_m, g->m); row++)
        for (int col = col0; col < cols; col += AT_ONCE) { /* all in one check block */
            if (flags && !(flags[flag_at(g->n, row, col)] >> row % CHECK_ROWS & 1)) continue;
            const int count = least(AT_ONCE, cols - col);
            float sums[AT_ONCE];
            dots(g, batch, row, col, count, k_begin, k_end, sums);
            for (int i = 0; i < count; i++)
                if (whole)
                    *element(&g->c, batch, row, col + i) = scaled(g->alpha, sums[i], g->beta, &g->addend, batch, row,
                                                                  col + i);
                else
                    partial_at(g, batch, tail, segment)[(row - row0) * g->tile_n + col + i - col0] = sums[i];
        }
}

/* What a thread block computes at a time: a whole tile, or a share of the tail. */
static void ieee_whole_or_share(const ieee_args *g, int64_t batch, int index) {
    if (index < g->full_tiles) {
        ieee_segment(g, batch, index, 0, g->k);
        return;
    }
    const int64_t runs = ceil_div(g->k, IEEE_RUN);
    const int64_t end = share_begin(g, index - g->full_tiles + 1);
    for (int64_t run = share_begin(g, index - g->full_tiles); run < end;) {
        const int tail = (int)(run / runs), first = (int)(run % runs), count = (int)min64(end - run, runs - first);
        ieee_segment(g, batch, g->full_tiles + tail, first * IEEE_RUN, least(g->k, (first + count) * IEEE_RUN));
        run += count;
    }
}

static bool ieee_multiply(const fake_launch *l, const ieee_args *g, int tile_m, int tile_n, char *why, size_t size) {
    const int64_t tails = (int64_t)g->tiles_m * g->tiles_n - g->full_tiles,
                  count = (int64_t)g->full_tiles + g->tail_blocks;
    if (g->tile_m != tile_m || g->tile_n != tile_n || g->tiles_m != ceil_div(g->m, tile_m) ||
        g->tiles_n != ceil_div(g->n, tile_n))
        return snprintf(why, size, "wrong tiles"), false;
    if (tails < 0 || (tails > 0) != (g->tail_blocks > 0) || (tails && g->tail_blocks > tail_runs(g)))
        return snprintf(why, size, "wrong tail"), false;
    if (tails && (g->segments < cuda_ieee_segments(g->k, tails, g->tail_blocks) || !g->partial))
        return snprintf(why, size, "no room for the segments"), false;
    if (l->grid[2] != (unsigned)g->batch) return snprintf(why, size, "grid.z is not the batch"), false;
    for (int64_t batch = 0; batch < g->batch; batch++)
        for (int64_t first = 0; first < l->grid[0]; first++) /* blocks take every gridDim-th */
            for (int64_t index = first; index < count; index += l->grid[0]) ieee_whole_or_share(g, batch, (int)index);
    return true;
}

/* One tile for each warp: blocks share the tiles of all items. */
static bool ieee_warp(const fake_launch *l, const ieee_args *g, int tile_m, int tile_n, char *why, size_t size) {
    const int64_t tiles = ceil_div(g->m, tile_m) * ceil_div(g->n, tile_n);
    if (g->tile_m != tile_m || g->tile_n != tile_n || g->tiles_n != ceil_div(g->n, tile_n) || g->full_tiles != tiles)
        return snprintf(why, size, "wrong tiles"), false;
    if (!l->grid[0] || l->grid[0] > tiles * g->batch || l->grid[2] != 1)
        return snprintf(why, size, "wrong grid"), false;
    for (int64_t batch = 0; batch < g->batch; batch++)
        for (int tile = 0; tile < g->full_tiles; tile++) ieee_segment(g, batch, tile, 0, g->k);
    return true;
}

/* Each element's sums of the ranges of k that the blocks of a cluster have, in their order. */
static void sum_in_parts(const ieee_args *g) {
    for (int64_t batch = 0; batch < g->batch; batch++)
        for (int row = 0; row < g->m; row++)
            for (int col = 0; col < g->n; col += AT_ONCE) {
                const int count = least(AT_ONCE, g->n - col);
                float sums[AT_ONCE], further[AT_ONCE];
                dots(g, batch, row, col, count, 0, least(g->k_each, g->k), sums);
                for (int k0 = g->k_each; k0 < g->k; k0 += g->k_each) {
                    dots(g, batch, row, col, count, k0, least(k0 + g->k_each, g->k), further);
                    for (int i = 0; i < count; i++) sums[i] += further[i];
                }
                for (int i = 0; i < count; i++)
                    *element(&g->c, batch, row, col + i) = scaled(g->alpha, sums[i], g->beta, &g->addend, batch, row,
                                                                  col + i);
            }
}

/* Kernels in one launch. */
static bool ieee_one_launch(const fake_launch *l, const ieee_args *g, int rows, int cols, char *why, size_t size) {
    if (g->cluster < 1 || g->cluster > 16 || l->cluster != (unsigned)g->cluster)
        return snprintf(why, size, "clusters of %u, not %d", l->cluster, g->cluster), false;
    if (l->grid[0] != ceil_div(g->m, rows) * g->cluster || l->grid[1] != ceil_div(g->n, cols) ||
        l->grid[2] != (unsigned)g->batch)
        return snprintf(why, size, "wrong grid"), false;
    if (g->k_each % IEEE_RUN || (int64_t)g->k_each * g->cluster < g->k)
        return snprintf(why, size, "wrong k_each"), false;
    sum_in_parts(g);
    return true;
}

/* Tiles whole, each by a cluster, or in slices of k_each terms. */
static bool direct_wide(const fake_launch *l, const ieee_args *g, int tile_n, char *why, size_t size) {
    const int64_t tiles = ceil_div(g->m, 128) * ceil_div(g->n, tile_n), parts = (int64_t)g->cluster * g->segments;
    if (g->tile_m != 128 || g->tile_n != tile_n || (int64_t)g->tiles_m * g->tiles_n != tiles || g->full_tiles)
        return snprintf(why, size, "wrong tiles"), false;
    if (g->cluster < 1 || g->segments < 1 || (g->cluster > 1 && g->segments > 1) || l->cluster != (unsigned)g->cluster)
        return snprintf(why, size, "clusters of %u, not %d; %d slices", l->cluster, g->cluster, g->segments), false;
    if (g->k_each < 1 || g->k_each * parts < g->k || g->k_each * (parts - 1) >= g->k ||
        (parts > 1 && g->k_each % IEEE_RUN))
        return snprintf(why, size, "wrong k_each"), false;
    const unsigned cluster = (unsigned)g->cluster;
    const int64_t clusters = l->grid[0] / cluster, most = g->cluster > 1 ? 1 : WIDE_TILES_OF_BLOCK;
    if (l->grid[0] % cluster || l->grid[1] != 1 || l->grid[2] != (unsigned)g->batch || clusters < 1 ||
        clusters > tiles * g->segments || clusters * most < tiles * g->segments)
        return snprintf(why, size, "wrong grid"), false;
    if (g->segments == 1) return sum_in_parts(g), true;
    for (int64_t batch = 0; batch < g->batch; batch++)
        for (int tile = 0; tile < tiles; tile++)
            for (int slice = 0; slice < g->segments; slice++) {
                int row0, col0;
                find_tile(g, tile, &row0, &col0);
                for (int row = row0; row < least(row0 + 128, g->m); row++)
                    for (int col = col0; col < least(col0 + tile_n, g->n); col += AT_ONCE) {
                        const int count = least(AT_ONCE, least(col0 + tile_n, g->n) - col), k0 = slice * g->k_each;
                        dots(g, batch, row, col, count, k0, least(k0 + g->k_each, g->k),
                             partial_at(g, batch, tile, slice) + (row - row0) * tile_n + col - col0);
                    }
            }
    return true;
}

/* Warps along k, or lanes along m: a power of two. */
static bool ieee_vector(const fake_launch *l, const ieee_args *g, int rows, int most_cols, char *why, size_t size) {
    const bool along_m = rows == 128;
    if (g->share < (along_m ? 4 : 1) || g->share > (along_m ? 32 : 4) || (g->share & (g->share - 1)))
        return snprintf(why, size, "share is %d", g->share), false;
    if (g->n > most_cols) return snprintf(why, size, "%d columns", g->n), false;
    if (along_m && g->a.row_stride != 1) return snprintf(why, size, "rows of a are not neighbours"), false;
    return ieee_one_launch(l, g, along_m ? 4 * g->share : rows / g->share, most_cols, why, size);
}

static void ieee_reduce(const fake_launch *l, const ieee_args *g) {
    const int64_t area = (int64_t)g->tile_m * g->tile_n, tails = (int64_t)g->tiles_m * g->tiles_n - g->full_tiles;
    for (int64_t batch = 0; batch < l->grid[2]; batch++)
        for (int64_t i = 0; i < (int64_t)l->grid[0] * l->threads * 4 && i < tails * area; i++) {
            const int tail = (int)(i / area), within = (int)(i % area);
            int row, col;
            find_tile(g, g->full_tiles + tail, &row, &col);
            row += within / g->tile_n, col += within % g->tile_n;
            if (row >= g->m || col >= g->n) continue;
            const int segments = segments_before(g, tail, ceil_div(g->k, IEEE_RUN));
            if (segments == 1) continue;
            float sum = partial_at(g, batch, tail, 0)[within];
            for (int segment = 1; segment < segments; segment++) sum += partial_at(g, batch, tail, segment)[within];
            *element(&g->c, batch, row, col) = scaled(g->alpha, sum, g->beta, &g->addend, batch, row, col);
        }
}

static void ieee_scale(const fake_launch *l, const ieee_args *g) {
    for (int64_t batch = 0; batch < l->grid[2]; batch++)
        for (int row = 0; row < g->m; row++)
            for (int col = 0; col < g->n; col++)
                *element(&g->c, batch, row, col) = g->beta == 0 ? 0 : g->beta * addend(&g->addend, batch, row, col);
}

/* ---- Panels ------------------------------------------------------------------------------------------------------ */

static uint16_t *half_at(const uint8_t *panels, int rows, int k_blocks, int components, int row, int k, int component) {
    const int panel = row / PANEL_ROWS, within = row % PANEL_ROWS, kb = k / SPLIT_K;
    const int stored = least(PANEL_ROWS, (int)round_up(rows - panel * PANEL_ROWS, PANEL_ROW_STEP));
    const int64_t tile = (int64_t)panel * k_blocks * components * PANEL_ROWS * SPLIT_ROW_BYTES +
                         ((int64_t)kb * components + component) * stored * SPLIT_ROW_BYTES;
    const int chunk = k % SPLIT_K / 8 ^ within % 8;
    return (uint16_t *)(panels + tile + within * SPLIT_ROW_BYTES + chunk * 16) + k % 8;
}

static float largest_of(const pack_args *o, int64_t batch, int row) {
    float most = 0;
    for (int64_t k = 0; k < o->k; k++)
        most = fmaxf(most, fabsf(o->data[batch * o->batch_stride + row * o->row_stride + k * o->k_stride]));
    return most;
}

/* How far x lies below fp16's least normal number when scaled, as a factor; infinite where it does not fit (args.h). */
static float depth_of(float x, float scaled) {
    if (x == 0) return 1;
    return fabsf(scaled) < 65520 ? fmaxf(1, 0x1p-14f / fabsf(scaled)) : INFINITY;
}

/* Splits a row, counts its tiny elements where there are two components, or rows stand alone, and returns the largest
 * depth in it. tf32's rule looks at columns: here whatever fits is taken to be carried. */
static float split_row(const pack_args *o, int64_t batch, int row) {
    const int e = o->exponents[batch * o->exponents_batch_stride + row];
    uint32_t *tiny = &o->tiny_counts[batch * o->exponents_batch_stride + row];
    const bool counts = o->components == 2 || o->by_row;
    float depth = 1;
    for (int k = 0; k < o->k_blocks * SPLIT_K; k++) {
        const float x = k < o->k ? o->data[batch * o->batch_stride + row * o->row_stride + k * o->k_stride] : 0;
        const float scaled = ldexpf(x, e);
        const uint16_t hi = half_of(scaled);
        *half_at(o->panels + batch * o->panels_batch_stride, o->rows, o->k_blocks, o->components, row, k, 0) = hi;
        if (o->components == 2)
            *half_at(o->panels + batch * o->panels_batch_stride, o->rows, o->k_blocks, o->components, row, k,
                     1) = half_of(ldexpf(scaled - float_of(hi), SPLIT_LO_SHIFT));
        const float of_x = depth_of(x, scaled);
        depth = fmaxf(depth, of_x);
        *tiny += counts && of_x > 1 && of_x < INFINITY;
    }
    if (counts && depth == INFINITY) *tiny |= NOT_CARRIED;
    return counts || depth == INFINITY ? depth : 1;
}

/* A row's scale, by its largest at once. */
static int exponent_of_row(const pack_args *o, int64_t batch, int row) {
    const float most = largest_of(o, batch, row);
    const int e = most > 0 && most < INFINITY ? 14 - ilogbf(most) : 0;
    if (most == 0) return ALL_ZERO;
    return e < -SPLIT_EXPONENT_LIMIT ? -SPLIT_EXPONENT_LIMIT : least(e, SPLIT_EXPONENT_LIMIT);
}

/* pack_sample: the rows' scales; marks set to 1. pack_split: the components and the marks, which no better scale would
 * change. pack_rows_*: all of it but the marks' first value, for operands that the others leave to it. */
static bool pack(const fake_launch *l, const pack_pair_args *pair, char *why, size_t size) {
    const bool sample = !strcmp(l->kernel, "pack_sample"), whole = !strncmp(l->kernel, "pack_rows_", 10);
    const int most_terms = whole ? atoi(l->kernel + 10) : 0;
    int64_t blocks = 0, marks = 0;
    for (int i = 0; i < 2; i++) {
        const pack_args *o = &pair->operand[i];
        for (int panel = 0; sample && panel < pair->mark_counts[i]; panel++) pair->marks[i][panel] = 1;
        marks += sample ? pair->mark_counts[i] : 0;
        if (whole && o->rows &&
            (o->k > most_terms || o->k % 4 || o->k_stride != 1 || o->row_stride % 4 || (uintptr_t)o->data % 16 ||
             (o->batch > 1 && o->batch_stride % 4)))
            return snprintf(why, size, "rows that are too long, or not aligned"), false;
        const int tile_rows = sample ? 8 : !whole ? 64 : most_terms == 128 ? 128 : most_terms == 512 ? 32 : 16;
        blocks += (int64_t)o->batch * ceil_div(o->rows, tile_rows) * (sample || whole ? 1 : o->k_blocks);
        for (int64_t batch = 0; batch < o->batch; batch++)
            for (int row = 0; row < o->rows; row++) {
                const int64_t panel = batch * o->marks_batch_stride + row / PANEL_ROWS;
                const int64_t at = batch * o->exponents_batch_stride + row;
                if (sample || whole) {
                    o->exponents[at] = exponent_of_row(o, batch, row);
                    o->tiny_counts[at] = 0;
                }
                if (sample) {
                    o->overflowed_panels[panel] = 0;
                    o->marks[panel] = 1;
                    o->row_overflows[at] = 0;
                } else {
                    const float before = o->marks[panel];
                    if (!(before >= 1)) return snprintf(why, size, "marks that nobody has begun"), false;
                    o->marks[panel] = fmaxf(before, split_row(o, batch, row));
                    *pair->marked_panels += before < INFINITY && o->marks[panel] == INFINITY;
                }
            }
    }
    /* By itself pack_rows waits for pack_sample, else at its end for pack_split. */
    if (whole && !pair->beside_tiles != !pair->progress->blocks)
        return snprintf(why, size, "beside_tiles is %d", pair->beside_tiles), false;
    *pair->progress = (pack_progress){.blocks = sample ? 0 : l->grid[0]};
    blocks += ceil_div((int)marks, (int)l->threads);
    if (sample || whole ? l->grid[0] != blocks : !l->grid[0] || l->grid[0] > blocks)
        return snprintf(why, size, "%u blocks, not %lld", l->grid[0], (long long)blocks), false;
    return true;
}

/* ---- split ------------------------------------------------------------------------------------------------------- */

/* The rows of one product's operand as numbers, scaled back: element k of row r at [r*row_stride + k*k_stride]. There
 * is room for AT_ONCE more. The caller frees them. */
static double *unpack(const split_operand *o, int rows, int k_blocks, int components, int64_t batch, int64_t row_stride,
                      int64_t k_stride) {
    const int k = k_blocks * SPLIT_K;
    const uint8_t *panels = o->panels + batch * o->panels_batch_stride;
    double *values = calloc((size_t)rows * (size_t)k + AT_ONCE, sizeof *values);
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < k; i++) {
            double x = float_of(*half_at(panels, rows, k_blocks, components, row, i, 0));
            if (components == 2)
                x += ldexp(float_of(*half_at(panels, rows, k_blocks, components, row, i, 1)), -SPLIT_LO_SHIFT);
            values[row * row_stride + i * k_stride] = ldexp(x, -o->exponents[batch * o->exponents_batch_stride + row]);
        }
    return values;
}

/* Both operands of one product: rows of A, columns of B, of k terms each; A's terms are neighbours, and B's columns. */
typedef struct unpacked {
    double *a, *b;
    int k, n;
} unpacked;

/* Terms [k_begin, k_end) of AT_ONCE elements of a row; those past the last column are not to be used. */
static void sums_of(const unpacked *u, int row, int col, int k_begin, int k_end, double *sums) {
    double sum[AT_ONCE] = {0};
    for (int64_t k = k_begin; k < k_end; k++)
        for (int i = 0; i < AT_ONCE; i++) sum[i] += u->a[(int64_t)row * u->k + k] * u->b[k * u->n + col + i];
    memcpy(sums, sum, sizeof sum);
}

/* The number of an element's tile among those in slices; negative where it is computed whole. Groups of 8 tile rows,
 * down the columns of a group. */
static int64_t cut_tile(const split_args *g, int row, int col) {
    const int tile_row = row / g->tile_m, first = tile_row / 8 * 8, rows = least(8, g->tiles_m - first);
    return (int64_t)first * g->tiles_n + (int64_t)(col / g->tile_n) * rows + (tile_row - first) - g->full_tiles;
}

/* Where a slice's sum of an element is. */
static float *partial_sum(const split_args *g, int64_t batch, int slice, int row, int col) {
    const int64_t cut = (int64_t)g->tiles_m * g->tiles_n - g->full_tiles;
    return g->partial +
           (((batch * g->slices + slice) * cut + cut_tile(g, row, col)) * g->tile_m + row % g->tile_m) * g->tile_n +
           col % g->tile_n;
}

/* The whole sum of an element: of its products, or, without `u`, of its slices. */
static double total_of(const split_args *g, int64_t batch, const unpacked *u, int row, int col) {
    double sums[AT_ONCE];
    float sum = 0;
    if (u) return sums_of(u, row, col, 0, u->k, sums), sums[0];
    for (int slice = 0; slice < g->slices; slice++) sum += *partial_sum(g, batch, slice, row, col);
    return sum;
}

/* Whether a sum of a row, from col0 to the end of its check block, is too small, as it is before it is scaled back, for
 * the tiny elements behind it. */
static bool has_small_sum(const split_args *g, int64_t batch, const unpacked *u, int row, int col0, float mark_b) {
    const int64_t at_a = batch * g->a.exponents_batch_stride + row;
    const uint32_t tiny_a = g->a.tiny_counts[at_a];
    if (g->by_row && !tiny_a && mark_b <= g->mark_limit) return false;
    for (int col = col0; col < least(g->n, col0 + CHECK_COLS); col++) {
        const int64_t at_b = batch * g->b.exponents_batch_stride + col;
        const uint32_t tiny_b = g->b.tiny_counts[at_b];
        const int e_a = g->a.exponents[at_a], e_b = g->b.exponents[at_b];
        if ((tiny_a | tiny_b) & NOT_CARRIED) return true;
        if (e_a == ALL_ZERO || e_b == ALL_ZERO) continue;
        if (fabs(ldexp(total_of(g, batch, u, row, col), e_a + e_b)) <
            (double)g->least_per_tiny * ((double)tiny_a + tiny_b))
            return true;
    }
    return false;
}

/* Whether an element is left to ieee. Elements come row by row, so a row's first in a block is asked about before its
 * others; while there are only slices, none is recomputed. */
static bool is_left(const split_args *g, int64_t batch, const unpacked *u, int row, int col) {
    const float mark_b = g->b.marks[batch * g->b.marks_batch_stride + col / PANEL_ROWS];
    const enum fate fate = fate_of(g->a.marks[batch * g->a.marks_batch_stride + row / PANEL_ROWS], mark_b,
                                   g->mark_limit, g->by_row, g->recompute);
    if (fate != TESTED) return fate == RECOMPUTED;
    if (u && cut_tile(g, row, col) >= 0) return false;
    uint16_t *flags = &g->recompute[batch * g->recompute_batch_stride + flag_at(g->n, row, col)];
    const int bit = row % CHECK_ROWS;
    if (col % CHECK_COLS == 0) {
        if (bit == 0) *flags = 0;
        *flags |= (uint16_t)(has_small_sum(g, batch, u, row, col, mark_b) << bit);
    }
    return *flags >> bit & 1;
}

static bool split_multiply(const fake_launch *l, const split_args *g, int tile_m, int tile_n, int components, char *why,
                           size_t size) {
    if (g->tiles_m != ceil_div(g->m, tile_m) || g->tiles_n != ceil_div(g->n, tile_n) || g->tile_m != tile_m ||
        g->tile_n != tile_n)
        return snprintf(why, size, "wrong tiles"), false;
    if (g->slices * g->parts != ceil_div(g->k_blocks, g->k_blocks_per_slice) || (g->slices > 1 && !g->partial) ||
        (g->slices == 1) != (g->full_tiles == g->tiles_m * g->tiles_n))
        return snprintf(why, size, "wrong slices"), false;
    if (l->cluster != (unsigned)g->parts || (g->parts > 1) != !strcmp(l->kernel, "split_fp32_sm90_parts") ||
        (g->parts > 1 && (int64_t)l->grid[0] != (int64_t)g->batch * g->tiles_m * g->tiles_n * g->parts))
        return snprintf(why, size, "%u blocks in clusters of %u for %d parts", l->grid[0], l->cluster, g->parts), false;
    if (l->grid[1] != 1 || l->grid[2] != 1) return snprintf(why, size, "grid is not flat"), false;
    const int k = g->k_blocks * SPLIT_K, slice_k = g->k_blocks_per_slice * SPLIT_K;
    for (int64_t batch = 0; batch < g->batch; batch++) {
        const unpacked u = {unpack(&g->a, g->m, g->k_blocks, components, batch, k, 1),
                            unpack(&g->b, g->n, g->k_blocks, components, batch, 1, g->n), k, g->n};
        double sums[AT_ONCE];
        for (int slice = 0; slice < g->slices; slice++)
            for (int row = 0; row < g->m; row++)
                for (int col = 0; col < g->n; col++) {
                    const bool cut = cut_tile(g, row, col) >= 0;
                    if (!cut && slice) continue;
                    if (col % AT_ONCE == 0) /* all in one tile */
                        sums_of(&u, row, col, cut ? slice * slice_k : 0, cut ? least(k, (slice + 1) * slice_k) : k,
                                sums);
                    if (is_left(g, batch, &u, row, col)) continue;
                    const float sum = (float)sums[col % AT_ONCE];
                    if (cut)
                        *partial_sum(g, batch, slice, row, col) = sum;
                    else
                        *element(&g->c, batch, row, col) = scaled(g->alpha, sum, g->beta, &g->addend, batch, row, col);
                }
        free(u.a);
        free(u.b);
    }
    return true;
}

static bool split_reduce(const fake_launch *l, const split_args *g, char *why, size_t size) {
    const int64_t cut = (int64_t)g->tiles_m * g->tiles_n - g->full_tiles;
    if ((int64_t)l->grid[0] * (l->threads / 32) * CHECK_ROWS * CHECK_COLS < cut * g->tile_m * g->tile_n)
        return snprintf(why, size, "not every block of C has a warp"), false;
    for (int64_t batch = 0; batch < l->grid[1]; batch++)
        for (int row = 0; row < g->m; row++)
            for (int col = 0; col < g->n; col++) {
                if (cut_tile(g, row, col) < 0 || is_left(g, batch, NULL, row, col)) continue;
                const float sum = (float)total_of(g, batch, NULL, row, col);
                *element(&g->c, batch, row, col) = scaled(g->alpha, sum, g->beta, &g->addend, batch, row, col);
            }
    return true;
}

/* ---- tf32 -------------------------------------------------------------------------------------------------------- */

_Static_assert(sizeof(fake_map) <= sizeof(tensor_map), "it takes a map's place");

/* What copies make of some rows of a matrix, so far apart, and its terms: 11 significant bits, to nearest; zeros past
 * its rows and its k. The caller frees it. */
static double *rows_of(const tensor_map *map, bool across, int rows, int64_t row_step, int64_t k, int64_t k_step,
                       int64_t item) {
    fake_map m;
    memcpy(&m, map, sizeof m);
    double *values = calloc((size_t)(row_step == 1 ? k * k_step : rows * row_step), sizeof *values);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < k; i++) {
            const int64_t x = across ? row : i, y = across ? i : row;
            if ((cuuint64_t)x >= m.sizes[0] || (cuuint64_t)y >= m.sizes[1] || (cuuint64_t)item >= m.sizes[2]) continue;
            float value;
            memcpy(&value, m.data + x * 4 + y * (int64_t)m.strides[0] + item * (int64_t)m.strides[1], 4);
            int exponent;
            const double fraction = frexp(value, &exponent);
            values[row * row_step + i * k_step] = isfinite(value) ? ldexp(nearbyint(ldexp(fraction, 11)), exponent - 11)
                                                                  : value;
        }
    return values;
}

/* One tile, or a slice of it. */
static void tf32_tile(const tf32_args *g, const unpacked *u, int64_t index, int tile_m, int tile_n) {
    const ieee_args order = {.tiles_m = g->tiles_m, .tiles_n = g->tiles_n, .tile_m = tile_m, .tile_n = tile_n};
    const int64_t tiles = g->tiles_m * g->tiles_n, batch = index / g->slices / tiles;
    const int each = g->slices > 1 ? g->k_blocks_each * TF32_K : u->k, k_begin = (int)(index % g->slices) * each;
    int row0, col0;
    find_tile(&order, (int)(index / g->slices % tiles), &row0, &col0);
    if (g->marks_a && g->marks_a[batch * g->marks_a_batch_stride + row0 / PANEL_ROWS] *
                              g->marks_b[batch * g->marks_b_batch_stride + col0 / PANEL_ROWS] <=
                          1)
        return;
    if (g->fallback_tiles) ++*g->fallback_tiles;
    for (int row = row0; row < least(g->m, row0 + tile_m); row++)
        for (int first = col0; first < least(g->n, col0 + tile_n); first += AT_ONCE) {
            double sums[AT_ONCE];
            sums_of(u, row, first, k_begin, least(u->k, k_begin + each), sums);
            for (int col = first; col < least(g->n, first + AT_ONCE); col++) {
                const float sum = (float)sums[col - first];
                if (g->slices > 1)
                    g->partial[(index * tile_m + row - row0) * tile_n + col - col0] = sum;
                else
                    *element(&g->c, batch, row, col) = scaled(g->alpha, sum, g->beta, &g->addend, batch, row, col);
            }
        }
}

static bool tf32_multiply(const fake_launch *l, const tf32_args *g, int tile_m, int tile_n, char *why, size_t size) {
    fake_map a, b;
    memcpy(&a, &g->a, sizeof a);
    memcpy(&b, &g->b, sizeof b);
    if (g->tiles_m != ceil_div(g->m, tile_m) || g->tiles_n != ceil_div(g->n, tile_n))
        return snprintf(why, size, "wrong tiles"), false;
    if (a.box[0] != TF32_K || a.box[1] != (g->a_across ? TF32_K : (unsigned)tile_m) || b.box[0] != TF32_K ||
        b.box[1] != (g->b_across ? TF32_K : (unsigned)tile_n))
        return snprintf(why, size, "wrong boxes"), false;
    if (g->parts * g->slices != ceil_div(g->k_blocks, g->k_blocks_each) || l->cluster != (unsigned)g->parts ||
        g->parts > 8)
        return snprintf(why, size, "%d parts and %d slices in clusters of %u", g->parts, g->slices, l->cluster), false;
    const int64_t tiles = (int64_t)g->tiles_m * g->tiles_n * g->slices;
    if (g->parts > 1 ? l->grid[0] != g->batch * tiles * g->parts : l->grid[0] > g->batch * tiles)
        return snprintf(why, size, "%u blocks", l->grid[0]), false;
    const int k = g->k_blocks * TF32_K, n = (int)ceil_div(g->n, AT_ONCE) * AT_ONCE;
    for (int64_t batch = 0; batch < g->batch; batch++) {
        const unpacked u = {rows_of(&g->a, g->a_across, g->m, k, k, 1, g->a_batched ? batch : 0),
                            rows_of(&g->b, g->b_across, g->n, 1, k, n, g->b_batched ? batch : 0), k, n};
        for (int64_t tile = 0; tile < tiles; tile++) tf32_tile(g, &u, batch * tiles + tile, tile_m, tile_n);
        free(u.a);
        free(u.b);
    }
    return true;
}

static bool tf32_copy(const fake_launch *l, const copy_args *o, char *why, size_t size) {
    if (l->grid[0] != (unsigned)(ceil_div(o->rows, 64) * ceil_div(o->k, 64)) || o->pitch % 4 || o->pitch < o->k)
        return snprintf(why, size, "wrong grid or pitch"), false;
    for (int64_t batch = 0; batch < l->grid[1]; batch++)
        for (int row = 0; row < o->rows; row++)
            for (int64_t k = 0; k < o->pitch; k++)
                o->to[(batch * o->rows + row) * o->pitch + k] =
                    k < o->k ? o->from[batch * o->batch_stride + row * o->row_stride + k * o->k_stride] : 0;
    return true;
}

/* ---- By name ----------------------------------------------------------------------------------------------------- */

size_t fake_kernel_args_size(const char *kernel) {
    if (!strncmp(kernel, "ieee_", 5) || !strncmp(kernel, "direct_", 7)) return sizeof(ieee_args);
    if (!strncmp(kernel, "pack_", 5)) return sizeof(pack_pair_args);
    if (!strncmp(kernel, "split_", 6)) return sizeof(split_args);
    if (!strcmp(kernel, "tf32_copy")) return sizeof(copy_args);
    if (!strncmp(kernel, "tf32_", 5)) return sizeof(tf32_args);
    if (!strncmp(kernel, "attention_", 10)) return sizeof(attention_args);
    return 0;
}

bool fake_kernel_run(const fake_launch *l, const void *args, char *why, size_t size) {
    int tile_m, tile_n;
    const char *name = l->kernel;
    if (!strncmp(name, "attention_", 10)) return fake_attention_run(l, args, why, size);
    const bool of_256 = strstr(name, "_mma_sm80") || strstr(name, "_long_") || strstr(name, "_columns_") ||
                        !strcmp(name, "ieee_vector_m") || !strcmp(name, "tf32_copy") || !strcmp(name, "tf32_64x64");
    const bool of_384 = !strcmp(name, "split_fp32_sm90") || !strcmp(name, "split_fp32_sm90_turns") ||
                        !strcmp(name, "split_fp32_sm90_parts") || !strcmp(name, "split_tf32_sm90") ||
                        !strcmp(name, "direct_64x64") || !strncmp(name, "tf32_", 5);
    const unsigned threads = strstr(name, "_small_")                                              ? 64
                             : of_256                                                             ? 256
                             : of_384                                                             ? 384
                             : !strcmp(name, "direct_64x32") || !strncmp(name, "direct_128x", 11) ? 512
                                                                                                  : 128;
    if (l->threads != threads) return snprintf(why, size, "%u threads, not %u", l->threads, threads), false;
    if (sscanf(name, "ieee_tile_%dx%d", &tile_m, &tile_n) == 2 || sscanf(name, "ieee_mma_%dx%d", &tile_m, &tile_n) == 2)
        return ieee_multiply(l, args, tile_m, tile_n, why, size);
    if (!strncmp(name, "ieee_mma_short_", 15)) {
        const int most = strstr(name, "96") ? 96 : 64;
        if (((const ieee_args *)args)->k > most) return snprintf(why, size, "k is too long"), false;
        return ieee_multiply(l, args, 64, 64, why, size);
    }
    if (sscanf(name, "ieee_warp_%dx%d", &tile_m, &tile_n) == 2) return ieee_warp(l, args, tile_m, tile_n, why, size);
    if (!strcmp(name, "ieee_small_16") || !strcmp(name, "ieee_long_16"))
        return ieee_one_launch(l, args, 16, 16, why, size);
    if (!strcmp(name, "ieee_small_32") || !strcmp(name, "ieee_long_32"))
        return ieee_one_launch(l, args, 32, 32, why, size);
    if (sscanf(name, "direct_128x%d", &tile_n) == 1) return direct_wide(l, args, tile_n, why, size);
    if (sscanf(name, "direct_%dx%d", &tile_m, &tile_n) == 2) return ieee_one_launch(l, args, tile_m, tile_n, why, size);
    if (!strcmp(name, "ieee_vector_k")) return ieee_vector(l, args, 8, 1, why, size);
    if (!strcmp(name, "ieee_vector_m")) return ieee_vector(l, args, 128, 1, why, size);
    if (!strcmp(name, "ieee_columns_k")) return ieee_vector(l, args, 32, 8, why, size);
    if (!strcmp(name, "ieee_columns_m")) return ieee_vector(l, args, 128, 8, why, size);
    if (!strcmp(name, "ieee_thin_k")) return ieee_multiply(l, args, 16, 8, why, size);
    if (!strcmp(name, "ieee_thin_m")) {
        if (((const ieee_args *)args)->a.row_stride != 1)
            return snprintf(why, size, "rows of a are not neighbours"), false;
        return ieee_multiply(l, args, 128, 8, why, size);
    }
    if (!strcmp(name, "ieee_reduce")) return ieee_reduce(l, args), true;
    if (!strcmp(name, "ieee_scale")) return ieee_scale(l, args), true;
    if (!strcmp(name, "pack_look") || !strcmp(name, "pack_scan"))
        return true; /* all rows have the best scale already */
    if (!strncmp(name, "pack_", 5)) return pack(l, args, why, size);
    if (!strcmp(name, "split_fp32_sm90") || !strcmp(name, "split_fp32_sm90_turns") ||
        !strcmp(name, "split_fp32_sm90_parts"))
        return split_multiply(l, args, 128, 128, 2, why, size);
    if (!strcmp(name, "split_fp32_sm90_t128")) {
        if (l->grid[0] % 2) return snprintf(why, size, "%u blocks are no clusters of two", l->grid[0]), false;
        return split_multiply(l, args, 128, 128, 2, why, size);
    }
    if (!strcmp(name, "split_tf32_sm90")) return split_multiply(l, args, 128, 256, 1, why, size);
    if (!strcmp(name, "split_fp32_mma_sm80")) return split_multiply(l, args, 128, 128, 2, why, size);
    if (!strcmp(name, "split_tf32_mma_sm80")) return split_multiply(l, args, 128, 256, 1, why, size);
    if (!strcmp(name, "split_reduce")) return split_reduce(l, args, why, size);
    if (!strcmp(name, "tf32_copy")) return tf32_copy(l, args, why, size);
    if (sscanf(name, "tf32_%dx%d", &tile_m, &tile_n) == 2) return tf32_multiply(l, args, tile_m, tile_n, why, size);
    return snprintf(why, size, "no such kernel"), false;
}
