/* few_rows.h: a few rows of C, multiply_few and multiply_row_in_order of kernel.h, with the vectors that row.h has been
 * given. Tiles of so few rows would wait for B most of the time: here it is read once, in place, as row.h reads it.
 *
 * Sums have the chains of tiles. Where B's rows are contiguous, eight of them are read side by side, and the sums stay
 * in the first-level cache; more than CPU_FEW_ROWS rows of C are groups, each of which uses these rows of B. Where B's
 * columns are contiguous, LANES of them are read side by side, and squares of LANES x LANES elements are transposed in
 * registers.
 */
#ifndef TESSERA_CPU_FEW_ROWS_H
#define TESSERA_CPU_FEW_ROWS_H

#include <string.h>

#include "cpu/row.h"

/* Sums that are computed at a time, and the columns that they are of: with two rows, three, four, and more. The more
 * columns, the longer the parts of B's rows that are read from end to end; the stack is the limit (cpu.h). */
enum {
    FEW_SUMS = LANES > 8 ? 4096 : 2048,
    PART_OF_TWO = FEW_SUMS / 2,
    PART_OF_THREE = FEW_SUMS / 4,
    PART_OF_FOUR = 512,
    PART_OF_MORE = FEW_SUMS / CPU_FEW_ROWS
};

/* Columns of more terms are long: LANES of them do not stay in the second-level cache. And how far ahead terms of a
 * long one are prefetched. */
enum { LONG_COLUMN = 2048, TERMS_AHEAD = 128 };

static_assert(PART_OF_MORE % LANES == 0, "the sums of a row are whole vectors");
static_assert((int)PART_OF_FOUR <= (int)PART_OF_THREE, "the sums of four rows fit");

/* Writes the sums of one k block to row i of C, from column j on. */
static void store_sums_of_row(const struct cpu_tile *t, int i, int j, bool adds_to_c, const float *sums, int columns) {
    struct cpu_tile row = *t;
    row.c += i * t->c_row;
    if (t->beta != 0) row.s += i * t->s_row;
    store_sums(&row, j, adds_to_c, sums, columns);
}

/* Adds the products of some rows of B to the sums of some vectors of columns, `part` floats for each row of C. x has
 * the elements of A that belong to these rows, those of one row of C after the other. How many of all these there are
 * is a constant wherever this is inlined; `last` columns are in the last vector. */
static inline __attribute__((always_inline)) void add_rows_to_few(float *sums, int part, const float *x, const float *b,
                                                                  int64_t b_step, int64_t ahead, int last,
                                                                  const int vectors, const int rows, const int m) {
    vector sum[CPU_FEW_ROWS][2];
    CPU_UNROLL
    for (int i = 0; i < m; i++) {
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) sum[i][v] = load(sums + i * part + v * LANES);
    }
    CPU_UNROLL
    for (int p = 0; p < rows; p++) {
        vector y[2];
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) {
            const float *at = b + p * b_step + v * LANES;
            ask_for(at + ahead);
            y[v] = last < LANES ? load_first(at, last) : load(at);
        }
        CPU_UNROLL
        for (int i = 0; i < m; i++) {
            const vector each = every(x[i * rows + p]);
            CPU_UNROLL
            for (int v = 0; v < vectors; v++) sum[i][v] = multiply_add(each, y[v], sum[i][v]);
        }
    }
    CPU_UNROLL
    for (int i = 0; i < m; i++) {
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) store(sums + i * part + v * LANES, sum[i][v]);
    }
}

/* The same for any number of columns. in_registers: a constant; whether vectors of the elements of A are kept. */
static inline __attribute__((always_inline)) void add_rows_to_columns(float *sums, int part, const float *x,
                                                                      const float *b, int64_t b_step, int64_t ahead,
                                                                      int columns, const int rows, const int m,
                                                                      const bool in_registers) {
    int j = 0;
    for (; j + 2 * LANES <= columns; j += 2 * LANES) {
        if (!in_registers) __asm__("" : "+r"(x)::"memory"); /* or the compiler would keep them, in memory */
        add_rows_to_few(sums + j, part, x, b + j, b_step, ahead, LANES, 2, rows, m);
    }
    for (; j < columns; j += LANES)
        add_rows_to_few(sums + j, part, x, b + j, b_step, ahead, columns - j < LANES ? columns - j : LANES, 1, rows, m);
}

/* The same for the elements of A as they lie there. If there are registers for vectors of them, that leaves more loads
 * to B's rows, which pays if these are long. */
static inline __attribute__((always_inline)) void add_rows_to_part(float *sums, int part, const struct cpu_tile *t,
                                                                   const float *a, const float *b, int columns,
                                                                   const int rows, const int m) {
    enum { LEAST_AHEAD = 1024, LONG_ROW = 1024 };
    const int64_t step = t->b_step < 0 ? -t->b_step : t->b_step; /* 0: all rows of B are one */
    const int64_t ahead = step ? rows * t->b_step * (1 + LEAST_AHEAD / (ROWS_AT_ONCE * min64(step, part))) : 0;
    float x[ROWS_AT_ONCE * CPU_FEW_ROWS];
    CPU_UNROLL
    for (int i = 0; i < m; i++) {
        const float *from = a + i * t->a_row;
        if (t->a_step == 1)
            memcpy(x + i * rows, from, (size_t)rows * sizeof *from);
        else
            for (int p = 0; p < rows; p++) x[i * rows + p] = from[p * t->a_step];
    }
    if (rows * m + 2 * (m + 1) <= VECTOR_REGISTERS && t->n >= LONG_ROW)
        add_rows_to_columns(sums, part, x, b, t->b_step, ahead, columns, rows, m, true);
    else
        add_rows_to_columns(sums, part, x, b, t->b_step, ahead, columns, rows, m, false);
}

/* The same for some rows of C. */
static inline __attribute__((always_inline)) void add_rows_to_group(float *sums, int part, const struct cpu_tile *t,
                                                                    const float *a, const float *b, int columns,
                                                                    int64_t rows, const int m) {
    if (rows == 1)
        add_rows_to_part(sums, part, t, a, b, columns, 1, m);
    else
        add_rows_to_part(sums, part, t, a, b, columns, ROWS_AT_ONCE, m);
}

/* For all rows of C, in equal groups: the first reads B's rows, and the others find them in the first-level cache. */
static void add_rows_to_all(float *sums, int part, const struct cpu_tile *t, const float *a, const float *b,
                            int columns, int64_t rows) {
    int m = 0;
    for (int left = t->m, groups = (t->m + CPU_FEW_ROWS - 1) / CPU_FEW_ROWS; left > 0; left -= m, groups--) {
        m = (left + groups - 1) / groups;
        switch (m) {
        case 2: add_rows_to_group(sums, part, t, a, b, columns, rows, 2); break;
        case 3: add_rows_to_group(sums, part, t, a, b, columns, rows, 3); break;
        case 4: add_rows_to_group(sums, part, t, a, b, columns, rows, 4); break;
        case 5: add_rows_to_group(sums, part, t, a, b, columns, rows, 5); break;
        case 6: add_rows_to_group(sums, part, t, a, b, columns, rows, 6); break;
        case 7: add_rows_to_group(sums, part, t, a, b, columns, rows, 7); break;
        default: add_rows_to_group(sums, part, t, a, b, columns, rows, CPU_FEW_ROWS);
        }
        sums += m * part;
        a += m * t->a_row;
    }
}

static inline int columns_of_part(int m) {
    if (m > CPU_FEW_ROWS) return FEW_SUMS / m / LANES * LANES;
    return m == 2 ? PART_OF_TWO : m == 3 ? PART_OF_THREE : m == 4 ? PART_OF_FOUR : PART_OF_MORE;
}

static void multiply_few_by_rows(const struct cpu_tile *t, int64_t kc) {
    const int m = t->m, most = columns_of_part(m);
    const int part = t->n < most ? (int)round_up(t->n, LANES) : most;
    _Alignas(64) float sums[FEW_SUMS], total[FEW_SUMS];
    for (int j = 0; j < t->n; j += part) {
        const int columns = t->n - j < part ? t->n - j : part;
        for (int64_t first = 0; first < t->k; first += kc) {
            const int64_t block_end = min64(first + kc, t->k), chain = cpu_chain(block_end - first);
            for (int64_t begin = first, end; begin < block_end; begin = end) {
                end = min64(begin + chain, block_end);
                for (int v = 0; v < m * part; v += LANES) store(sums + v, zeros());
                for (int64_t p = begin, rows; p < end; p += rows) {
                    rows = end - p < ROWS_AT_ONCE ? 1 : ROWS_AT_ONCE;
                    add_rows_to_all(sums, part, t, t->a + p * t->a_step, t->b + p * t->b_step + j, columns, rows);
                }
                if (chain < block_end - first) end_chain_in_memory(total, sums, m * part, begin == first);
            }
            for (int i = 0; i < m; i++)
                store_sums_of_row(t, i, j, first > 0, (chain < block_end - first ? total : sums) + i * part, columns);
        }
    }
}

/* What is prefetched while LANES columns are read. Of long columns: terms that follow, and at the end the first terms
 * of the next columns. Otherwise the same terms of the next columns. */
struct ahead {
    int64_t until;   /* up to this term of the k block: TERMS_AHEAD after it */
    int64_t to_next; /* from then on: this many floats after it */
};

static inline struct ahead ahead_of(const struct cpu_tile *t, int64_t b_col, int64_t first) {
    if (t->k <= LONG_COLUMN) return (struct ahead){0, LANES * b_col};
    return (struct ahead){t->k - first - TERMS_AHEAD, LANES * b_col + TERMS_AHEAD - t->k};
}

/* The sums of LANES columns of B, or fewer, over one k block. `contiguous` is a constant wherever this is inlined. */
static inline __attribute__((always_inline)) void sum_columns_of_few(float sums[CPU_FEW_ROWS * LANES], const float *a,
                                                                     int64_t a_row, int64_t a_step, const float *b,
                                                                     int64_t b_col, int64_t terms, struct ahead ahead,
                                                                     int columns, const int m, const bool contiguous) {
    const int64_t chain = cpu_chain(terms);
    int64_t chain_end = chain;
    vector sum[CPU_FEW_ROWS], total[CPU_FEW_ROWS];
    CPU_WRITTEN_BEFORE_READ(total);
    CPU_UNROLL
    for (int i = 0; i < m; i++) sum[i] = zeros();
    for (int64_t p = 0; p < terms;) {
        /* Up to where a vector is aligned, if columns begin alike: two lines for each would be too many. */
        const int steps = (int)min64(LANES - (int64_t)((uintptr_t)(b + p) / sizeof *b % LANES), chain_end - p);
        const int64_t further = p < ahead.until ? TERMS_AHEAD : ahead.to_next;
        vector x[LANES];
        CPU_UNROLL
        for (int q = 0; q < LANES; q++) {
            const float *at = b + q * b_col + p;
            if (q < columns) ask_for(at + further);
            x[q] = q >= columns ? zeros() : steps < LANES ? load_first(at, steps) : load(at);
        }
        transpose_square(x);
        CPU_UNROLL
        for (int q = 0; q < LANES; q++) {
            if (q >= steps) continue;
            const int64_t term = contiguous ? p + q : (p + q) * a_step;
            CPU_UNROLL
            for (int i = 0; i < m; i++) sum[i] = multiply_add(every(a[i * a_row + term]), x[q], sum[i]);
        }
        p += steps;
        if (p < chain_end) continue;
        CPU_UNROLL
        for (int i = 0; i < m; i++) {
            total[i] = chain_end == chain ? sum[i] : add(total[i], sum[i]);
            sum[i] = zeros();
        }
        chain_end = min64(chain_end + chain, terms);
    }
    CPU_UNROLL
    for (int i = 0; i < m; i++) store(sums + i * LANES, total[i]);
}

static inline __attribute__((always_inline)) void multiply_few_by_columns(const struct cpu_tile *t, int64_t b_col,
                                                                          int64_t kc, const int m) {
    _Alignas(64) float sums[CPU_FEW_ROWS * LANES];
    touch_rows(t->b, t->n < LANES ? t->n : LANES, t->k <= LONG_COLUMN ? t->k : TERMS_AHEAD, b_col);
    for (int j = 0; j < t->n; j += LANES) {
        const int columns = t->n - j < LANES ? t->n - j : LANES;
        for (int64_t first = 0; first < t->k; first += kc) {
            const float *a = t->a + first * t->a_step, *b = t->b + j * b_col + first;
            const int64_t terms = min64(kc, t->k - first);
            const struct ahead ahead = ahead_of(t, b_col, first);
            if (t->a_step != 1)
                sum_columns_of_few(sums, a, t->a_row, t->a_step, b, b_col, terms, ahead, columns, m, false);
            else if (columns == LANES)
                sum_columns_of_few(sums, a, t->a_row, 1, b, b_col, terms, ahead, LANES, m, true);
            else
                sum_columns_of_few(sums, a, t->a_row, 1, b, b_col, terms, ahead, columns, m, true);
            for (int i = 0; i < m; i++) store_sums_of_row(t, i, j, first > 0, sums + i * LANES, columns);
        }
    }
}

static void multiply_few(const struct cpu_tile *t, int64_t b_col, int64_t kc) {
    if (b_col == 1) {
        multiply_few_by_rows(t, kc);
        return;
    }
    switch (t->m) {
    case 2: multiply_few_by_columns(t, b_col, kc, 2); break;
    case 3: multiply_few_by_columns(t, b_col, kc, 3); break;
    case 4: multiply_few_by_columns(t, b_col, kc, 4); break;
    case 5: multiply_few_by_columns(t, b_col, kc, 5); break;
    case 6: multiply_few_by_columns(t, b_col, kc, 6); break;
    case 7: multiply_few_by_columns(t, b_col, kc, 7); break;
    default: multiply_few_by_columns(t, b_col, kc, CPU_FEW_ROWS);
    }
}

static void multiply_row_in_order(const struct cpu_tile *t, int64_t b_col, int64_t kc) {
    if (b_col == 1)
        multiply_row_by_rows(t, kc);
    else
        multiply_few_by_columns(t, b_col, kc, 1);
}

#endif
