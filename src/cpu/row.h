/* row.h: one row of C, multiply_row of kernel.h, for a kernel that has said what its vectors are. Memory is the limit
 * of these products, so the loops keep as many cache lines in flight as possible.
 *
 * Where a column of B is contiguous, its sum has 2 * LANES chains of multiply-adds: chain i has the terms i, i + 2 *
 * LANES and so on. The two vectors of chains are added, then the lanes of the sum as sum_lanes says. Columns are read
 * eight side by side, ROW_TERMS at a time, so that A's part stays in the first-level cache; sums of so many terms are
 * added to those before.
 *
 * Where B's rows are contiguous instead, a sum has the chains of a tile: a short row is one, and of a long one eight
 * rows of B are read side by side, from end to end, and the sums stay in the first-level cache.
 *
 * The kernel's file defines, before it includes this: LANES, the type `vector` of as many floats, and
 *
 *     VECTOR_REGISTERS                           how many there are (few_rows.h)
 *     NR, multiply(tile)                         the microkernel and the columns of its tile
 *     zeros(), every(x)                          all lanes
 *     load(p), load_first(p, count)              lanes from memory; the first 1..LANES, the others being zero
 *     store(p, x), store_first(p, x, count)
 *     product(x, y), multiply_add(x, y, sum)     lane by lane; the second rounds once
 *     add(x, y), sum_lanes(x)
 *     transpose_square(x)                        LANES vectors
 */
#ifndef TESSERA_CPU_ROW_H
#define TESSERA_CPU_ROW_H

#include <math.h>

#include "cpu/kernel.h"
#include "cpu/touch.h"
#include "problem.h"

enum { ROW_CHAINS = 2, ROW_COLUMNS = 8, ROW_TERMS = 4096, ROWS_AT_ONCE = 8, ROW_SUMS = 2048, LINE_FLOATS = 16 };

/* Floats of B that may be in cache already: more are prefetched. */
enum { NEAR = 1 << 18 };

static bool is_far(const struct cpu_tile *t) { return t->k > NEAR / t->n; }

/* Into the second-level cache: the first is full of A, or of sums. */
static inline __attribute__((always_inline)) void ask_for(const float *line) { __builtin_prefetch(line, 0, 2); }

/* Up to LANES elements, so far apart. */
static inline __attribute__((always_inline)) vector load_apart(const float *from, int64_t apart, int count) {
    float x[LANES] = {0};
    for (int i = 0; i < count; i++) x[i] = from[i * apart];
    return load(x);
}

/* The sums of some columns of B over ROW_TERMS of k, or fewer. How many, whether B is far and whether A's elements are
 * contiguous are constants wherever this is inlined. */
static inline __attribute__((always_inline)) void sum_columns(float sums[ROW_COLUMNS], const float *a, int64_t a_step,
                                                              const float *b, int64_t b_col, int64_t terms,
                                                              const int columns, const bool far,
                                                              const bool contiguous) {
    enum { AHEAD = 512 };
    vector sum[ROW_COLUMNS][ROW_CHAINS];
    const float *column[ROW_COLUMNS];
    CPU_UNROLL
    for (int i = 0; i < columns; i++) {
        column[i] = b + i * b_col;
        CPU_UNROLL
        for (int h = 0; h < ROW_CHAINS; h++) sum[i][h] = zeros();
    }
    int64_t p = 0;
    for (; p + ROW_CHAINS * LANES <= terms; p += ROW_CHAINS * LANES) {
        CPU_UNROLL
        for (int h = 0; h < ROW_CHAINS; h++) {
            const int64_t at_a = p + h * LANES;
            const vector x = contiguous ? load(a + at_a) : load_apart(a + at_a * a_step, a_step, LANES);
            CPU_UNROLL
            for (int i = 0; i < columns; i++) {
                const float *at = column[i] + p + h * LANES;
                if (far && h * LANES % LINE_FLOATS == 0) ask_for(at + AHEAD);
                sum[i][h] = multiply_add(x, load(at), sum[i][h]);
            }
        }
    }
    CPU_UNROLL
    for (int h = 0; h < ROW_CHAINS; h++, p += LANES) {
        const int left = (int)min64(LANES, terms - p);
        if (left <= 0) break;
        const vector x = contiguous ? load_first(a + p, left) : load_apart(a + p * a_step, a_step, left);
        CPU_UNROLL
        for (int i = 0; i < columns; i++) sum[i][h] = multiply_add(x, load_first(column[i] + p, left), sum[i][h]);
    }
    CPU_UNROLL
    for (int i = 0; i < columns; i++) sums[i] = sum_lanes(add(sum[i][0], sum[i][1]));
}

/* Of any number of columns up to ROW_COLUMNS. */
static inline void sum_so_many_columns(float sums[ROW_COLUMNS], const float *a, const float *b, int64_t b_col,
                                       int64_t terms, int columns, bool far) {
    switch (columns) {
    case 1: sum_columns(sums, a, 1, b, b_col, terms, 1, true, true); break;
    case 2: sum_columns(sums, a, 1, b, b_col, terms, 2, true, true); break;
    case 3: sum_columns(sums, a, 1, b, b_col, terms, 3, true, true); break;
    case 4: sum_columns(sums, a, 1, b, b_col, terms, 4, true, true); break;
    case 5: sum_columns(sums, a, 1, b, b_col, terms, 5, true, true); break;
    case 6: sum_columns(sums, a, 1, b, b_col, terms, 6, true, true); break;
    case 7: sum_columns(sums, a, 1, b, b_col, terms, 7, true, true); break;
    default:
        if (far)
            sum_columns(sums, a, 1, b, b_col, terms, ROW_COLUMNS, true, true);
        else
            sum_columns(sums, a, 1, b, b_col, terms, ROW_COLUMNS, false, true);
    }
}

/* An A whose elements are apart was made contiguous by the caller, unless there was no memory for it. */
static void multiply_row_by_columns(const struct cpu_tile *t, int64_t b_col) {
    const bool far = is_far(t);
    float sums[ROW_COLUMNS];
    for (int64_t first = 0; first < t->k; first += ROW_TERMS) {
        const int64_t terms = min64(ROW_TERMS, t->k - first);
        const float *a = t->a + first * t->a_step;
        const float beta = first ? 1 : t->beta, *s = first ? t->c : t->s;
        for (int j = 0, columns; j < t->n; j += columns) {
            const float *b = t->b + first + j * b_col;
            columns = t->a_step != 1 ? 1 : t->n - j < ROW_COLUMNS ? t->n - j : ROW_COLUMNS;
            if (t->a_step != 1)
                sum_columns(sums, a, t->a_step, b, b_col, terms, 1, true, false);
            else
                sum_so_many_columns(sums, a, b, b_col, terms, columns, far);
            for (int i = 0; i < columns; i++)
                t->c[j + i] = beta == 0 ? t->alpha * sums[i] : fmaf(t->alpha, sums[i], beta * s[j + i]);
        }
    }
}

/* The same for columns that cpu_prefetches_columns names: some at a time, while those are prefetched that come DISTANCE
 * floats later. */
static void multiply_row_by_prefetched_columns(const struct cpu_tile *t, int64_t b_col) {
    enum { COLUMNS = 32, DISTANCE = 1024 };
    const int64_t skipped = COLUMNS + DISTANCE / t->k;
    struct cpu_tile part = *t;
    for (int j = 0; j < t->n; j += COLUMNS) {
        part.n = t->n - j < COLUMNS ? t->n - j : COLUMNS;
        part.b = t->b + j * b_col;
        part.c = t->c + j;
        part.s = t->s + j;
        const int64_t count = min64(COLUMNS, t->n - j - skipped);
        const float *const next = part.b + skipped * b_col;
        if (b_col == t->k)
            for (int64_t p = 0; p < count * b_col; p += LINE_FLOATS) ask_for(next + p);
        else
            for (int64_t i = 0; i < count; i++)
                for (int64_t p = 0; p < t->k; p += LINE_FLOATS) ask_for(next + i * b_col + p);
        multiply_row_by_columns(&part, b_col);
    }
}

/* Writes the sums of one k block to C's columns from j on, as a tile does; adds_to_c: C holds those of the blocks
 * before. */
static void store_sums(const struct cpu_tile *t, int j, bool adds_to_c, const float *sums, int columns) {
    const vector alpha = every(t->alpha), beta = every(adds_to_c ? 1 : t->beta);
    const bool adds = adds_to_c || t->beta != 0;
    const float *s = adds_to_c ? t->c : t->s;
    int v = 0;
    for (; v + LANES <= columns; v += LANES) {
        const vector sum = load(sums + v);
        store(t->c + j + v, adds ? multiply_add(alpha, sum, product(beta, load(s + j + v))) : product(alpha, sum));
    }
    if (v == columns) return;
    const vector sum = load(sums + v);
    store_first(t->c + j + v,
                adds ? multiply_add(alpha, sum, product(beta, load_first(s + j + v, columns - v)))
                     : product(alpha, sum),
                columns - v);
}

/* Columns of at most LANES terms: as many of them are transposed in registers, and sums have the chain of a tile. */
static void multiply_row_by_short_columns(const struct cpu_tile *t, int64_t b_col) {
    enum { TOUCHED_FLOATS = 4096 };
    const int terms = (int)t->k, at_once = TOUCHED_FLOATS / terms;
    float sums[LANES];
    for (int first = 0; first < t->n; first += at_once) {
        const int end = t->n - first < at_once ? t->n : first + at_once;
        touch_rows(t->b + first * b_col, end - first, terms, b_col);
        for (int j = first, columns; j < end; j += columns) {
            const float *b = t->b + j * b_col;
            vector x[LANES], sum = zeros();
            columns = end - j < LANES ? end - j : LANES;
            CPU_UNROLL
            for (int q = 0; q < LANES; q++) x[q] = q < columns ? load_first(b + q * b_col, terms) : zeros();
            transpose_square(x);
            CPU_UNROLL
            for (int p = 0; p < LANES; p++)
                if (p < terms) sum = multiply_add(every(t->a[p * t->a_step]), x[p], sum);
            store(sums, sum);
            store_sums(t, j, false, sums, columns);
        }
    }
}

/* Adds the products of some rows of B, constants as above, to the sums of some columns. */
static inline __attribute__((always_inline)) void add_rows(float *sums, const float *a, int64_t a_step, const float *b,
                                                           int64_t b_step, int columns, const int rows,
                                                           const bool far) {
    vector x[ROWS_AT_ONCE];
    CPU_UNROLL
    for (int i = 0; i < rows; i++) x[i] = every(a[i * a_step]);
    for (; columns >= LANES; columns -= LANES, sums += LANES, b += LANES) {
        vector sum = load(sums);
        CPU_UNROLL
        for (int i = 0; i < rows; i++) {
            if (far) ask_for(b + (rows + i) * b_step);
            sum = multiply_add(x[i], load(b + i * b_step), sum);
        }
        store(sums, sum);
    }
    if (columns <= 0) return;
    vector sum = load(sums);
    CPU_UNROLL
    for (int i = 0; i < rows; i++) sum = multiply_add(x[i], load_first(b + i * b_step, columns), sum);
    store(sums, sum);
}

/* The same for any number of rows up to ROWS_AT_ONCE, and for a constant `far`. */
static inline __attribute__((always_inline)) void add_so_many_rows(float *sums, const float *a, int64_t a_step,
                                                                   const float *b, int64_t b_step, int columns,
                                                                   int rows, const bool far) {
    switch (rows) {
    case 1: add_rows(sums, a, a_step, b, b_step, columns, 1, false); break;
    case 2: add_rows(sums, a, a_step, b, b_step, columns, 2, false); break;
    case 3: add_rows(sums, a, a_step, b, b_step, columns, 3, false); break;
    case 4: add_rows(sums, a, a_step, b, b_step, columns, 4, false); break;
    case 5: add_rows(sums, a, a_step, b, b_step, columns, 5, false); break;
    case 6: add_rows(sums, a, a_step, b, b_step, columns, 6, false); break;
    case 7: add_rows(sums, a, a_step, b, b_step, columns, 7, false); break;
    default: add_rows(sums, a, a_step, b, b_step, columns, ROWS_AT_ONCE, far);
    }
}

/* At the end of a chain: its sums are added to those of the chains before, if there are any. */
static void end_chain_in_memory(float *total, const float *sums, int count, bool is_first) {
    for (int v = 0; v < count; v += LANES)
        store(total + v, is_first ? load(sums + v) : add(load(total + v), load(sums + v)));
}

/* A row no longer than a tile's: its sums stay in registers. */
static void multiply_row_by_tiles(const struct cpu_tile *t, int64_t kc) {
    struct cpu_tile tile = *t;
    for (int64_t first = 0; first < t->k; first += kc) {
        tile.k = min64(kc, t->k - first);
        tile.a = t->a + first * t->a_step;
        tile.b = t->b + first * t->b_step;
        tile.whole = t->b_step == t->n ? cpu_whole_steps(&tile, LANES, (t->k - first) * t->n) : 0;
        multiply(&tile);
        tile.beta = 1;
        tile.s = t->c;
    }
}

static void multiply_row_by_rows(const struct cpu_tile *t, int64_t kc) {
    if (t->n <= NR) {
        multiply_row_by_tiles(t, kc);
        return;
    }
    const bool far = is_far(t);
    _Alignas(64) float sums[ROW_SUMS], total[ROW_SUMS];
    for (int j = 0; j < t->n; j += ROW_SUMS) {
        const int columns = t->n - j < ROW_SUMS ? t->n - j : ROW_SUMS;
        for (int64_t first = 0; first < t->k; first += kc) {
            const int64_t block_end = min64(first + kc, t->k), chain = cpu_chain(block_end - first);
            for (int64_t begin = first, end; begin < block_end; begin = end) {
                end = min64(begin + chain, block_end);
                for (int v = 0; v < columns; v += LANES) store(sums + v, zeros());
                for (int64_t p = begin, rows; p < end; p += rows) {
                    const float *a = t->a + p * t->a_step, *b = t->b + p * t->b_step + j;
                    rows = min64(end - p, ROWS_AT_ONCE);
                    if (far)
                        add_so_many_rows(sums, a, t->a_step, b, t->b_step, columns, (int)rows, true);
                    else
                        add_so_many_rows(sums, a, t->a_step, b, t->b_step, columns, (int)rows, false);
                }
                if (chain < block_end - first) end_chain_in_memory(total, sums, columns, begin == first);
            }
            store_sums(t, j, first > 0, chain < block_end - first ? total : sums, columns);
        }
    }
}

/* A single term is both a row and a column of B: it has the bits of a column, where zeros are added, whatever the
 * strides. */
static void multiply_row_of_one_term(const struct cpu_tile *t, int64_t b_col) {
    const vector a = every(t->a[0]);
    float sums[ROW_SUMS];
    for (int j = 0; j < t->n; j += ROW_SUMS) {
        const int columns = t->n - j < ROW_SUMS ? t->n - j : ROW_SUMS;
        for (int v = 0; v < columns; v += LANES) {
            const float *const at = t->b + (j + v) * b_col;
            const int count = columns - v < LANES ? columns - v : LANES;
            const vector b = b_col != 1      ? load_apart(at, b_col, count)
                             : count < LANES ? load_first(at, count)
                                             : load(at);
            store(sums + v, add(multiply_add(a, b, zeros()), zeros()));
        }
        store_sums(t, j, false, sums, columns);
    }
}

static void multiply_row(const struct cpu_tile *t, int64_t b_col, int64_t kc) {
    if (t->k == 1)
        multiply_row_of_one_term(t, b_col);
    else if (t->b_step == 1 && t->k <= LANES)
        multiply_row_by_short_columns(t, b_col);
    else if (t->b_step == 1 && cpu_prefetches_columns(t->n, t->k))
        multiply_row_by_prefetched_columns(t, b_col);
    else if (t->b_step == 1)
        multiply_row_by_columns(t, b_col);
    else
        multiply_row_by_rows(t, kc);
}

#endif
