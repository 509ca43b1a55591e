/* dots.h: products both of whose operands are contiguous along k, multiply_dots of kernel.h, with the vectors that
 * row.h has been given. Nothing has to be transposed or padded: vectors lie along k, and an element of C is the sum of
 * the lanes of its own vector.
 *
 * Over each k block an element has LANES chains of multiply-adds: chain i has the terms i, i + LANES and so on. Then
 * the lanes are added as sum_lanes says, and the sums of blocks in order.
 *
 * A tile is DOT_ROWS rows of A against DOT_COLUMNS columns of B. The kernel's file defines, besides what row.h wants,
 *
 *     sum_lanes_of_four(x, sums)                 sum_lanes of four vectors, with the same bits
 */
#ifndef TESSERA_CPU_DOTS_H
#define TESSERA_CPU_DOTS_H

#include "cpu/row.h"

enum { DOT_COLUMNS = 4, DOT_ROWS = (VECTOR_REGISTERS - DOT_COLUMNS - 1) / DOT_COLUMNS };

static_assert((int)DOT_ROWS >= 2 && (int)DOT_ROWS <= 6, "sum_dots_of_rows has a body for each number of rows");
static_assert((int)LANES >= (int)DOT_COLUMNS, "a vector of C is at least a tile's columns");

/* The sums of a tile over one k block. Rows and columns are constants
 * wherever this is inlined. */
static inline __attribute__((always_inline)) void sum_dots(float sums[DOT_ROWS * DOT_COLUMNS], const float *a,
                                                           int64_t a_row, const float *b, int64_t b_col, int64_t terms,
                                                           const int rows, const int columns) {
    vector sum[DOT_ROWS][DOT_COLUMNS], y[DOT_COLUMNS];
    CPU_UNROLL
    for (int i = 0; i < rows; i++) {
        CPU_UNROLL
        for (int q = 0; q < columns; q++) sum[i][q] = zeros();
    }
    int64_t p = 0;
    for (; p + LANES <= terms; p += LANES) {
        CPU_UNROLL
        for (int q = 0; q < columns; q++) {
            y[q] = load(b + q * b_col + p);
        }
        CPU_UNROLL
        for (int i = 0; i < rows; i++) {
            const vector x = load(a + i * a_row + p);
            CPU_UNROLL
            for (int q = 0; q < columns; q++) sum[i][q] = multiply_add(x, y[q], sum[i][q]);
        }
    }
    if (p < terms) {
        const int left = (int)(terms - p);
        CPU_UNROLL
        for (int q = 0; q < columns; q++) y[q] = load_first(b + q * b_col + p, left);
        CPU_UNROLL
        for (int i = 0; i < rows; i++) {
            const vector x = load_first(a + i * a_row + p, left);
            CPU_UNROLL
            for (int q = 0; q < columns; q++) sum[i][q] = multiply_add(x, y[q], sum[i][q]);
        }
    }
    CPU_UNROLL
    for (int i = 0; i < rows; i++) {
        if (columns == DOT_COLUMNS)
            sum_lanes_of_four(sum[i], sums + i * DOT_COLUMNS);
        else {
            CPU_UNROLL
            for (int q = 0; q < columns; q++) sums[i * DOT_COLUMNS + q] = sum_lanes(sum[i][q]);
        }
    }
}

static inline __attribute__((always_inline)) void sum_dots_of_columns(float *sums, const float *a, int64_t a_row,
                                                                      const float *b, int64_t b_col, int64_t terms,
                                                                      const int rows, int columns) {
    if (rows > DOT_ROWS) return; /* not compiled */
    switch (columns) {
    case 1: sum_dots(sums, a, a_row, b, b_col, terms, rows, 1); break;
    case 2: sum_dots(sums, a, a_row, b, b_col, terms, rows, 2); break;
    case 3: sum_dots(sums, a, a_row, b, b_col, terms, rows, 3); break;
    default: sum_dots(sums, a, a_row, b, b_col, terms, rows, DOT_COLUMNS);
    }
}

static void sum_dots_of_rows(float *sums, const float *a, int64_t a_row, const float *b, int64_t b_col, int64_t terms,
                             int rows, int columns) {
    switch (rows) {
    case 1: sum_dots_of_columns(sums, a, a_row, b, b_col, terms, 1, columns); break;
    case 2: sum_dots_of_columns(sums, a, a_row, b, b_col, terms, 2, columns); break;
    case 3: sum_dots_of_columns(sums, a, a_row, b, b_col, terms, 3, columns); break;
    case 4: sum_dots_of_columns(sums, a, a_row, b, b_col, terms, 4, columns); break;
    case 5: sum_dots_of_columns(sums, a, a_row, b, b_col, terms, 5, columns); break;
    default: sum_dots_of_columns(sums, a, a_row, b, b_col, terms, 6, columns);
    }
}

static void store_dots(const struct cpu_tile *t, int i, int j, bool adds_to_c, const float *sums, int rows,
                       int columns) {
    const bool adds = adds_to_c || t->beta != 0;
    const float alpha = t->alpha, beta = adds_to_c ? 1 : t->beta;
    for (int r = 0; r < rows; r++) {
        float *c = t->c + (i + r) * t->c_row + j;
        const float *s = adds_to_c ? c : t->s + (i + r) * t->s_row + j;
        for (int q = 0; q < columns; q++) {
            const float sum = sums[r * DOT_COLUMNS + q];
            c[q] = adds ? fmaf(alpha, sum, beta * s[q]) : alpha * sum;
        }
    }
}

static void multiply_dots(const struct cpu_tile *t, int64_t b_col, int64_t kc) {
    float sums[DOT_ROWS * DOT_COLUMNS];
    for (int j = 0; j < t->n; j += DOT_COLUMNS) {
        const int columns = t->n - j < DOT_COLUMNS ? t->n - j : DOT_COLUMNS;
        for (int64_t first = 0; first < t->k; first += kc) {
            const int64_t terms = min64(kc, t->k - first);
            const float *b = t->b + j * b_col + first;
            for (int i = 0, rows, tiles = (t->m + DOT_ROWS - 1) / DOT_ROWS; i < t->m; i += rows, tiles--) {
                rows = (t->m - i + tiles - 1) / tiles;
                const float *a = t->a + i * t->a_row + first;
                sum_dots_of_rows(sums, a, t->a_row, b, b_col, terms, rows, columns);
                store_dots(t, i, j, first > 0, sums, rows, columns);
            }
        }
    }
}

#endif
