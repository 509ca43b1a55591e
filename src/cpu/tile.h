/* tile.h: tiles of C in registers and small products of them, for a kernel that has said what its vectors are.
 *
 * A tile of MR x NR has MR rows of A against VECTORS vectors of LANES columns of B. Its MR * VECTORS sums, the row of B
 * and the element of A that is multiplied by it are in registers.
 *
 * Edges: one body per number of rows and of vectors. Tiles of fewer vectors may have more rows, up to TALL_MR, as the
 * sums leave registers free. Where a row of several vectors is not whole, its last one begins LANES before its end: a
 * few elements are computed twice, to the same bits, and nothing is masked. A row shorter than a vector is half of one,
 * or loaded and stored in parts.
 *
 * The kernel's file defines, before it includes this: LANES, the type `vector` of as many floats, MR, NR, VECTORS,
 * TALL_MR, FEW_TERMS and so on (few_terms.h), and besides what row.h wants
 *
 *     scale_add(x, y, sum)                       multiply_add with a float x
 *     load_half(p), store_half(p, x)             the first LANES / 2 lanes; the others may be loaded as anything
 *     load_some(p, count)                        the first 1..LANES - 1; the others may be anything
 *     store_some(p, x, count)
 *     transpose_square(x), load_square(x, p, apart)    LANES vectors; the second loads them so far apart, transposed
 *
 * and afterwards
 *
 *     multiply(tile)                             by multiply_rows, with as many vectors as the tile needs
 *
 * This defines transpose and multiply_whole of kernel.h.
 */
#ifndef TESSERA_CPU_TILE_H
#define TESSERA_CPU_TILE_H

#include <assert.h>

#include "cpu/kernel.h"

static_assert(NR == VECTORS * LANES, "a row of a tile is whole vectors");
static_assert(MR % 3 == 0 && TALL_MR % 3 == 0, "multiply_tile addresses the rows of A in groups of three");
static_assert(MR * NR <= CPU_TILE_FLOATS, "loops.c buffers a tile");
static_assert(CPU_STRIP_COLUMNS % LANES == 0 && 8 % LANES == 0, "transposed strips are whole vectors");

/* How the last vector of a row is read and written. */
enum last_vector { WHOLE, OVERLAPPING, HALF, IN_PARTS };

/* In what follows rows, vectors and `last` are constants wherever it is inlined, so that the loops over them unroll and
 * the sums are registers. */
static inline __attribute__((always_inline)) vector load_vector(const float *row, int columns, const int v,
                                                                const int vectors, const enum last_vector last) {
    if (v + 1 < vectors || last == WHOLE) return load(row + v * LANES);
    if (last == OVERLAPPING) return load(row + columns - LANES);
    return last == HALF ? load_half(row) : load_some(row, columns);
}

static inline __attribute__((always_inline)) void store_vector(float *row, int columns, vector x, const int v,
                                                               const int vectors, const enum last_vector last) {
    if (v + 1 < vectors || last == WHOLE)
        store(row + v * LANES, x);
    else if (last == OVERLAPPING)
        store(row + columns - LANES, x);
    else if (last == HALF)
        store_half(row, x);
    else
        store_some(row, x, columns);
}

/* With `fetches` it also prefetches what is needed later: a row of C and a line of each of the next rows of A at a
 * time, some steps of K apart, so that loads in between do not have to wait. */
static inline __attribute__((always_inline)) void sum_tile(vector sum[TALL_MR][VECTORS], const struct cpu_tile *t,
                                                           const int rows, const int vectors,
                                                           const enum last_vector last, const bool fetches) {
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step, c_row = t->c_row;
    const int64_t chain = cpu_chain(t->k);
    int64_t chain_end = t->k - chain;
    vector partial[TALL_MR][VECTORS]; /* the chains before this one */
    CPU_WRITTEN_BEFORE_READ(partial);
    CPU_UNROLL
    for (int i = 0; i < rows; i++) {
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) sum[i][v] = zeros();
    }

    /* Rows 3g, 3g+1 and 3g+2 are at group[g], + a_row, + 2*a_row: offsets the load instruction scales by itself. */
    const float *group[TALL_MR / 3], *b = t->b, *c = t->next_c ? t->next_c : t->c, *next_a = t->next_a;
    CPU_UNROLL
    for (int g = 0; g < TALL_MR / 3; g++) group[g] = t->a + 3 * g * a_row;
    int c_asked = 0;
    for (int64_t left = t->k; left > 0;) {
        int64_t end = chain_end;
        if (fetches) {
            if (c_asked < rows) {
                __builtin_prefetch(c + c_asked * c_row, 0, 3);
                __builtin_prefetch(c + c_asked * c_row + t->n - 1, 0, 3); /* rows may begin within a line */
                c_asked++;
            }
            if (next_a) {
                CPU_UNROLL
                for (int i = 0; i < rows; i++) __builtin_prefetch(next_a + i * t->next_a_row, 0, 2);
                next_a += t->next_a_step;
            }
            const bool more = next_a || c_asked < rows;
            if (more && left > chain_end + CPU_FETCH_STEPS) end = left - CPU_FETCH_STEPS;
        }
        for (; left > end; left--, b += b_step) {
            vector row[VECTORS];
            CPU_UNROLL
            for (int v = 0; v < vectors; v++) row[v] = load_vector(b, t->n, v, vectors, last);
            CPU_UNROLL
            for (int i = 0; i < rows; i++) {
                const float x = group[i / 3][i % 3 * a_row];
                CPU_UNROLL
                for (int v = 0; v < vectors; v++) sum[i][v] = scale_add(x, row[v], sum[i][v]);
            }
            CPU_UNROLL
            for (int g = 0; g < TALL_MR / 3; g++) group[g] += a_step;
        }
        if (left > chain_end || chain == t->k) continue;
        CPU_UNROLL
        for (int i = 0; i < rows; i++) {
            CPU_UNROLL
            for (int v = 0; v < vectors; v++) {
                if (left + chain < t->k) sum[i][v] = add(partial[i][v], sum[i][v]);
                if (!left) continue;
                partial[i][v] = sum[i][v];
                sum[i][v] = zeros();
            }
        }
        chain_end = left > chain ? left - chain : 0;
    }
}

static inline __attribute__((always_inline)) void store_tile(vector sum[TALL_MR][VECTORS], const struct cpu_tile *t,
                                                             const int rows, const int vectors,
                                                             const enum last_vector last) {
    const vector alpha = every(t->alpha), beta = every(t->beta);
    const int n = t->n;
    const int64_t s_row = t->s_row, c_row = t->c_row;
    const bool adds = t->beta != 0; /* asked once: for all the compiler knows, writing C may change it */
    float *c = t->c;
    const float *s = t->s;
    CPU_UNROLL
    for (int i = 0; i < rows; i++, c += c_row) {
        vector result[VECTORS];
        if (adds) { /* all of a row is read before any of it is written, which may overlap */
            CPU_UNROLL
            for (int v = 0; v < vectors; v++)
                result[v] = multiply_add(alpha, sum[i][v], product(beta, load_vector(s, n, v, vectors, last)));
            s += s_row;
        } else {
            CPU_UNROLL
            for (int v = 0; v < vectors; v++) result[v] = product(alpha, sum[i][v]);
        }
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) store_vector(c, n, result[v], v, vectors, last);
    }
}

static inline __attribute__((always_inline)) void multiply_tile(const struct cpu_tile *t, const int rows,
                                                                const int vectors, const enum last_vector last,
                                                                const bool fetches) {
    vector sum[TALL_MR][VECTORS];
    sum_tile(sum, t, rows, vectors, last, fetches);
    store_tile(sum, t, rows, vectors, last);
}

/* The most rows of a tile whose rows have `vectors` vectors. */
static inline int most_rows(const int vectors) {
    const int rows = MR * VECTORS / vectors;
    return rows < TALL_MR ? rows : TALL_MR;
}

static inline __attribute__((always_inline)) void multiply_columns(const struct cpu_tile *t, const int rows,
                                                                   const int vectors) {
    if (rows > most_rows(vectors)) return; /* not compiled */
    if (t->n == vectors * LANES)
        multiply_tile(t, rows, vectors, WHOLE, vectors == VECTORS);
    else if (vectors > 1)
        multiply_tile(t, rows, vectors, OVERLAPPING, vectors == VECTORS);
    else if (t->n == LANES / 2)
        multiply_tile(t, rows, 1, HALF, false);
    else
        multiply_tile(t, rows, 1, IN_PARTS, false);
}

static inline __attribute__((always_inline)) void multiply_rows(const struct cpu_tile *t, const int vectors) {
    switch (t->m) {
    case 1: multiply_columns(t, 1, vectors); break;
    case 2: multiply_columns(t, 2, vectors); break;
    case 3: multiply_columns(t, 3, vectors); break;
    case 4: multiply_columns(t, 4, vectors); break;
    case 5: multiply_columns(t, 5, vectors); break;
    case 6: multiply_columns(t, 6, vectors); break;
    case 7: multiply_columns(t, 7, vectors); break;
    case 8: multiply_columns(t, 8, vectors); break;
    case 9: multiply_columns(t, 9, vectors); break;
    case 10: multiply_columns(t, 10, vectors); break;
    case 11: multiply_columns(t, 11, vectors); break;
    default: multiply_columns(t, TALL_MR, vectors);
    }
}

static void multiply(const struct cpu_tile *t);

/* ---- Transposing B ----------------------------------------------------------------------------------------------- */

/* A square of fewer columns or terms. */
static void transpose_edge(float *to, int64_t to_step, const float *from, int64_t from_col, int columns, int terms) {
    vector x[LANES];
    CPU_UNROLL
    for (int i = 0; i < LANES; i++) x[i] = i < columns ? load_first(from + i * from_col, terms) : zeros();
    transpose_square(x);
    CPU_UNROLL
    for (int p = 0; p < LANES; p++)
        if (p < terms) store(to + p * to_step, x[p]);
}

static void transpose(float *to, int64_t to_step, const float *from, int64_t from_col, int columns, int terms) {
    for (; columns > 0; columns -= LANES, from += LANES * from_col, to += LANES) {
        int p = 0;
        if (columns >= LANES)
            for (; p + LANES <= terms; p += LANES) {
                vector x[LANES];
                load_square(x, from + p, from_col);
                CPU_UNROLL
                for (int i = 0; i < LANES; i++) store(to + (p + i) * to_step, x[i]);
            }
        for (; p < terms; p += LANES)
            transpose_edge(to + p * to_step, to_step, from + p, from_col, columns,
                           terms - p < LANES ? terms - p : LANES);
    }
}

/* ---- Small products ---------------------------------------------------------------------------------------------- */

/* A tile of one or two rows would wait for its own sums, so it gets some of the rows before it. */
static inline int rows_of_tile(int left, int most) {
    return left <= most ? left : left <= most + 2 ? (left + 1) / 2 : most;
}

/* `columns` columns of C from t's on, one row of tiles after another, each of at most NR columns and `most` rows. t is
 * changed in place: a copy would wait for the fields written last. */
static inline __attribute__((always_inline)) void multiply_strip(struct cpu_tile *t, int m, int columns, int most) {
    const float *const b = t->b;
    float *c = t->c;
    for (int left = m; left > 0; left -= t->m) {
        t->m = rows_of_tile(left, most);
        t->b = b;
        t->s = t->c = c;
        for (int j = columns; j > 0; j -= NR) {
            t->n = j < NR ? j : NR;
            multiply(t);
            t->b += NR;
            t->s = t->c += NR;
        }
        t->a += t->m * t->a_row;
        c += t->m * t->c_row;
    }
}

/* Columns beyond whole tiles are a strip of their own, if its tiles may be taller. */
static void multiply_strips(struct cpu_tile *t) {
    const int m = t->m, n = t->n, over = n % NR, most = over ? most_rows((over + LANES - 1) / LANES) : MR;
    const int apart = most > MR && m > MR ? over : 0;
    const float *const a = t->a, *const b = t->b;
    float *const c = t->c;
    if (n > apart) multiply_strip(t, m, n - apart, MR);
    if (!apart) return;
    t->a = a;
    t->b = b + (n - apart);
    t->s = t->c = c + (n - apart);
    multiply_strip(t, m, apart, most);
}

/* B's columns are contiguous: its rows are made on the stack, a strip at a time. */
static __attribute__((noinline)) void multiply_transposed(struct cpu_tile *t, int64_t b_col) {
    _Alignas(64) float copy[CPU_STRIP_FLOATS];
    const int m = t->m, n = t->n;
    const float *const a = t->a, *const b = t->b;
    float *const c = t->c;
    for (int j = 0; j < n; j += CPU_STRIP_COLUMNS) {
        t->m = m;
        t->n = n - j < CPU_STRIP_COLUMNS ? n - j : CPU_STRIP_COLUMNS;
        t->a = a;
        t->b = copy;
        t->b_step = (t->n + 7) / 8 * 8;
        t->s = t->c = c + j;
        transpose(copy, t->b_step, b + j * b_col, b_col, t->n, (int)t->k);
        multiply_strips(t);
    }
}

#include "cpu/few_terms.h"

static void multiply_whole(struct cpu_tile *t, int64_t b_col) {
    if (has_few_terms(t, b_col))
        multiply_few_terms(t, b_col);
    else if (b_col != 1)
        multiply_transposed(t, b_col);
    else if (t->m <= MR && t->n <= NR)
        multiply(t);
    else
        multiply_strips(t);
}

#endif
