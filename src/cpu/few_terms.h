/* few_terms.h: whole products of few terms, row after row. Writing C takes longest here, and memory is fastest where it
 * gets one row after the other, from end to end. A vector of C is a sum of a few vectors of B, each times one element
 * of A: the elements are in registers, and B is there or in the first-level cache.
 *
 * The kernel's file defines what row.h wants, transpose of kernel.h, and
 *
 *     FEW_TERMS, FEW_TERMS_OF_TWO, FEW_TERMS_OF_WIDE      the most terms for which this is faster than tiles, where
 *                                                         C has one vector of columns, two, and more
 *
 * before it includes this, which defines
 *
 *     has_few_terms(product, b_col)              whether it is a product of few terms
 *     multiply_few_terms(product, b_col)         which may change it, as multiply_whole may
 */
#ifndef TESSERA_CPU_FEW_TERMS_H
#define TESSERA_CPU_FEW_TERMS_H

#include <assert.h>

#include "cpu/kernel.h"
#include "problem.h"

/* So few terms that C's lines, which a store waits for, are prefetched as far ahead as a page: a processor prefetches
 * for stores, too, but less far. */
static inline __attribute__((always_inline)) void fetch_ahead(const float *c, const int terms) {
    enum { MOST_TERMS = 4, AHEAD = 1024 };
    if (terms <= MOST_TERMS) __builtin_prefetch(c + AHEAD, 1, 3);
}

/* alpha times a vector of sums plus beta times the addend, of `count` columns. plain: alpha = 1 and beta = 0. */
static inline __attribute__((always_inline)) vector scaled(const struct cpu_tile *t, vector sum, const float *s,
                                                           int count, bool plain) {
    if (plain) return sum;
    if (t->beta == 0) return product(every(t->alpha), sum);
    return multiply_add(every(t->alpha), sum, product(every(t->beta), load_first(s, count)));
}

/* One or two vectors of each row of C, B's being in registers. */
static inline __attribute__((always_inline)) void multiply_narrow_terms(const struct cpu_tile *t, const int vectors,
                                                                        const int terms) {
    const int before = (vectors - 1) * LANES, last = t->n - before;
    const bool plain = t->alpha == 1 && t->beta == 0;
    /* Rows that may be written as a whole vector although they are shorter: what lies behind such a row is the next
     * one, which is written later. A store under a mask that has to wait for memory is a slow one. */
    const int spill = vectors == 1 && t->beta == 0 && t->c_row == t->n ? t->m - (LANES - 1) / t->n : 0;
    vector b[FEW_TERMS][2];
    CPU_UNROLL
    for (int p = 0; p < terms; p++) {
        if (vectors > 1) b[p][0] = load(t->b + p * t->b_step);
        b[p][vectors - 1] = load_first(t->b + p * t->b_step + before, last);
    }
    const float *a = t->a, *s = t->s;
    float *c = t->c;
    for (int i = 0; i < t->m; i++) {
        vector sum[2] = {zeros(), zeros()};
        CPU_UNROLL
        for (int p = 0; p < terms; p++) {
            const vector x = every(a[p * t->a_step]);
            CPU_UNROLL
            for (int v = 0; v < vectors; v++) sum[v] = multiply_add(x, b[p][v], sum[v]);
        }
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) fetch_ahead(c + v * LANES, terms);
        if (vectors > 1) store(c, scaled(t, sum[0], s, LANES, plain));
        sum[vectors - 1] = scaled(t, sum[vectors - 1], s + before, last, plain);
        if (i < spill)
            store(c, sum[0]);
        else
            store_first(c + before, sum[vectors - 1], last);
        a += t->a_row;
        c += t->c_row;
        s += t->s_row;
    }
}

/* Any number of vectors; the last one of B's rows, which may not be whole, stays in registers. */
static inline __attribute__((always_inline)) void multiply_wide_terms(const struct cpu_tile *t, const int terms) {
    const int before = (t->n - 1) / LANES * LANES, last = t->n - before;
    const bool plain = t->alpha == 1 && t->beta == 0;
    vector end[FEW_TERMS];
    CPU_UNROLL
    for (int p = 0; p < terms; p++) end[p] = load_first(t->b + p * t->b_step + before, last);
    const float *a = t->a, *s = t->s;
    float *c = t->c;
    for (int i = 0; i < t->m; i++) {
        vector x[FEW_TERMS];
        CPU_UNROLL
        for (int p = 0; p < terms; p++) x[p] = every(a[p * t->a_step]);
        for (int j = 0; j < before; j += LANES) {
            vector sum = zeros();
            CPU_UNROLL
            for (int p = 0; p < terms; p++) sum = multiply_add(x[p], load(t->b + p * t->b_step + j), sum);
            fetch_ahead(c + j, terms);
            store(c + j, scaled(t, sum, s + j, LANES, plain));
        }
        vector sum = zeros();
        CPU_UNROLL
        for (int p = 0; p < terms; p++) sum = multiply_add(x[p], end[p], sum);
        store_first(c + before, scaled(t, sum, s + before, last, plain), last);
        a += t->a_row;
        c += t->c_row;
        s += t->s_row;
    }
}

static inline __attribute__((always_inline)) void multiply_terms(const struct cpu_tile *t, const int terms) {
    if (terms > FEW_TERMS) return; /* not compiled */
    if (t->n <= LANES)
        multiply_narrow_terms(t, 1, terms);
    else if (t->n <= 2 * LANES && terms <= FEW_TERMS_OF_TWO)
        multiply_narrow_terms(t, 2, terms);
    else if (terms <= FEW_TERMS_OF_WIDE)
        multiply_wide_terms(t, terms);
}

static void multiply_these_terms(const struct cpu_tile *t) {
    switch (t->k) {
    case 1: multiply_terms(t, 1); break;
    case 2: multiply_terms(t, 2); break;
    case 3: multiply_terms(t, 3); break;
    case 4: multiply_terms(t, 4); break;
    case 5: multiply_terms(t, 5); break;
    case 6: multiply_terms(t, 6); break;
    case 7: multiply_terms(t, 7); break;
    case 8: multiply_terms(t, 8); break;
    case 9: multiply_terms(t, 9); break;
    case 10: multiply_terms(t, 10); break;
    case 11: multiply_terms(t, 11); break;
    case 12: multiply_terms(t, 12); break;
    case 13: multiply_terms(t, 13); break;
    case 14: multiply_terms(t, 14); break;
    case 15: multiply_terms(t, 15); break;
    case 16: multiply_terms(t, 16); break;
    case 17: multiply_terms(t, 17); break;
    case 18: multiply_terms(t, 18); break;
    case 19: multiply_terms(t, 19); break;
    case 20: multiply_terms(t, 20); break;
    case 21: multiply_terms(t, 21); break;
    case 22: multiply_terms(t, 22); break;
    case 23: multiply_terms(t, 23); break;
    default: multiply_terms(t, 24);
    }
}

static_assert(FEW_TERMS <= 24 && FEW_TERMS_OF_TWO <= FEW_TERMS && FEW_TERMS_OF_WIDE <= FEW_TERMS_OF_TWO,
              "multiply_these_terms has a body for each number");

/* If C is one or two tiles, those are faster from some terms on, unless B has to be transposed. So they are, from fewer
 * terms on, if B's rows are longer than what stays in the first-level cache. */
static inline bool has_few_terms(const struct cpu_tile *t, int64_t b_col) {
    enum { TILE_ROWS = 12, TILE_COLUMNS = 8, LEAST_OF_TILES = 9 };
    enum { LEAST_ROWS = 4, TERMS_OF_ANY = 4, TERMS_OF_ANY_TRANSPOSED = 6 };
    if (t->m <= TILE_ROWS && t->n <= TILE_COLUMNS) return false;
    if (t->m <= 2 * TILE_ROWS && t->k >= LEAST_OF_TILES && b_col == 1) return false;
    if (t->n <= LANES) return t->k <= FEW_TERMS;
    if (t->n <= 2 * LANES) return t->k <= FEW_TERMS_OF_TWO;
    if (t->k == 1 || t->n * t->k <= CPU_NEAR_FLOATS) return t->k <= FEW_TERMS_OF_WIDE;
    return t->m >= LEAST_ROWS && t->k <= (b_col == 1 ? TERMS_OF_ANY : TERMS_OF_ANY_TRANSPOSED);
}

static inline void copy_row(float *to, const float *from, int columns) {
    int j = 0;
    for (; j + LANES <= columns; j += LANES) store(to + j, load(from + j));
    if (j < columns) store(to + j, load_first(from + j, columns - j));
}

/* B is copied if its rows are not contiguous; and if it is used often, so that its vectors are aligned. */
static __attribute__((noinline)) void multiply_few_terms(struct cpu_tile *t, int64_t b_col) {
    enum { USES_WORTH_COPYING = 4 };
    _Alignas(64) float copy[CPU_NEAR_FLOATS];
    const int n = t->n, most = CPU_NEAR_FLOATS / (int)t->k / CPU_LINE * CPU_LINE;
    if (b_col == 1 && (t->m < USES_WORTH_COPYING || n <= 2 * LANES || (n > most && t->k == 1))) {
        multiply_these_terms(t);
        return;
    }
    const float *const b = t->b;
    const int64_t b_step = t->b_step;
    float *const c = t->c;
    for (int j = 0; j < n; j += t->n) {
        t->n = n - j < most ? n - j : most;
        t->b = copy;
        t->b_step = round_up(t->n, CPU_LINE);
        if (b_col != 1)
            transpose(copy, t->b_step, b + j * b_col, b_col, t->n, (int)t->k);
        else
            for (int p = 0; p < t->k; p++) copy_row(copy + p * t->b_step, b + p * b_step + j, t->n);
        t->s = t->c = c + j;
        multiply_these_terms(t);
    }
}

#endif
