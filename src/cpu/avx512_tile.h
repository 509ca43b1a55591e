/* avx512_tile.h: a tile of C in the registers of AVX-512.
 *
 * Tile 6 x 64: 6 rows of A against four vectors of 16 columns of B. Of the 32 vector registers 24 hold sums, four hold
 * the row of B, and one the element of A being broadcast. A step of K is 24 multiply-adds on 10 loads: where
 * two of each are done a cycle, the multiply-adds are the limit, and 24 chains are three times what covers a latency of
 * four cycles.
 *
 *             b[0..15]    b[16..31]   b[32..47]   b[48..63]
 *     a[0]    sum[0][0]   sum[0][1]   sum[0][2]   sum[0][3]
 *      ..        ..          ..          ..          ..
 *     a[5]    sum[5][0]   sum[5][1]   sum[5][2]   sum[5][3]
 */
#ifndef TESSERA_CPU_AVX512_TILE_H
#define TESSERA_CPU_AVX512_TILE_H

#include <assert.h>
#include <immintrin.h>

#include "cpu/kernel.h"

enum { MR = 6, NR = 64, LANES = 16, VECTORS = NR / LANES };

/* A tile of at most half as many columns may have twice as many rows. */
enum { TALL_MR = 2 * MR, TALL_NR = NR / 2 };

static_assert(NR == VECTORS * LANES, "multiply_tile keeps four vectors of B");
static_assert(MR * VECTORS + VECTORS + 1 <= 32, "the sums, the row of B and the broadcast are in registers");
static_assert(MR % 3 == 0, "multiply_tile addresses the rows of A in groups of three");

/* The columns of a row's last vector. */
static inline __mmask16 last_mask(int columns) { return (__mmask16)((2u << (columns - 1) % LANES) - 1); }

static inline __attribute__((always_inline)) void store_masked(float *to, const __mmask16 mask, __m512 x) {
    if (mask == 0xffff)
        _mm512_storeu_ps(to, x);
    else
        _mm512_mask_storeu_ps(to, mask, x);
}

/* In what follows rows and vectors are constants wherever it is inlined, so that the loops over them unroll and the
 * sums are registers. `last` masks the last vector. */
static inline __attribute__((always_inline)) void load_row(__m512 row[VECTORS], const float *b, const int vectors,
                                                           const __mmask16 last, const bool whole) {
    CPU_UNROLL
    for (int v = 0; v < vectors; v++)
        row[v] = v + 1 < vectors || whole ? _mm512_loadu_ps(b + v * LANES) : _mm512_maskz_loadu_ps(last, b + v * LANES);
}

/* The last steps of K, in which the last vector is read under its mask. */
static inline __attribute__((always_inline)) int64_t masked_steps(const struct cpu_tile *t, const __mmask16 last) {
    return last == 0xffff ? 0 : t->k - t->whole;
}

/* One step of K. `panel`, where there is one, gets the elements of A. */
static inline __attribute__((always_inline)) void add_step(__m512 sum[TALL_MR][VECTORS], const __m512 row[VECTORS],
                                                           const float *const group[TALL_MR / 3], int64_t a_row,
                                                           const int rows, const int vectors, float *panel) {
    CPU_UNROLL
    for (int i = 0; i < rows; i++) {
        const __m512 x = _mm512_set1_ps(group[i / 3][i % 3 * a_row]);
        if (panel) _mm_store_ss(panel + i, _mm512_castps512_ps128(x));
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) sum[i][v] = _mm512_fmadd_ps(x, row[v], sum[i][v]);
    }
}

/* Where sum_tile begins: no sums yet; rows 3g, 3g+1 and 3g+2 of A at group[g], + a_row, + 2*a_row, offsets which the
 * load instruction scales by itself. */
static inline __attribute__((always_inline)) void start_tile(__m512 sum[TALL_MR][VECTORS],
                                                             const float *group[TALL_MR / 3], const struct cpu_tile *t,
                                                             const int rows, const int vectors) {
    CPU_UNROLL
    for (int i = 0; i < rows; i++) {
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) sum[i][v] = _mm512_setzero_ps();
    }
    CPU_UNROLL
    for (int g = 0; g < TALL_MR / 3; g++) group[g] = t->a + 3 * g * t->a_row;
}

/* At the end of a chain: its sums are added to those of the chains before, and put aside if another one follows. */
static inline __attribute__((always_inline)) void end_chain(__m512 sum[TALL_MR][VECTORS], float *partial,
                                                            const bool is_first, const bool is_last, const int rows,
                                                            const int vectors) {
    CPU_UNROLL
    for (int i = 0; i < rows; i++) {
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) {
            float *const at = partial + (i * vectors + v) * LANES;
            if (!is_first) sum[i][v] = _mm512_add_ps(_mm512_load_ps(at), sum[i][v]);
            if (is_last) continue;
            _mm512_store_ps(at, sum[i][v]);
            sum[i][v] = _mm512_setzero_ps();
        }
    }
}

static inline __attribute__((always_inline)) void sum_tile(__m512 sum[TALL_MR][VECTORS], const struct cpu_tile *t,
                                                           const int rows, const int vectors, const __mmask16 last) {
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step, chain = cpu_chain(t->k);
    const float *group[TALL_MR / 3], *b = t->b;
    _Alignas(64) float partial[TALL_MR * TALL_NR];
    CPU_WRITTEN_BEFORE_READ(partial);
    const int64_t masked = masked_steps(t, last);
    start_tile(sum, group, t, rows, vectors);
    for (int64_t left = t->k; left > 0;) {
        const int64_t end = left > chain ? left - chain : 0;
        const bool is_first = left == t->k;
        for (; left > end && left > masked; left--, b += b_step) {
            __m512 row[VECTORS];
            load_row(row, b, vectors, last, true);
            add_step(sum, row, group, a_row, rows, vectors, NULL);
            CPU_UNROLL
            for (int g = 0; g < TALL_MR / 3; g++) group[g] += a_step;
        }
        for (; left > end; left--, b += b_step) {
            __m512 row[VECTORS];
            load_row(row, b, vectors, last, false);
            add_step(sum, row, group, a_row, rows, vectors, NULL);
            CPU_UNROLL
            for (int g = 0; g < TALL_MR / 3; g++) group[g] += a_step;
        }
        if (!is_first || end) end_chain(sum, partial, is_first, !end, rows, vectors);
    }
}

/* The same for large products. It prefetches what is needed later, a row of C and a line of each of the next rows of A
 * at a time, some steps of K apart, so that loads in between do not have to wait. The panels, where there are any, get
 * the tile's part of A and of B, packed. */
static inline __attribute__((always_inline)) void sum_tile_and_fetch(__m512 sum[TALL_MR][VECTORS],
                                                                     const struct cpu_tile *t, const int rows,
                                                                     const int vectors, const __mmask16 last,
                                                                     float *panel_a, float *panel_b) {
    enum { ROWS_AHEAD = 32, STEPS_AHEAD = 24 };
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step;
    const float *group[TALL_MR / 3], *b = t->b, *c = t->next_c ? t->next_c : t->c;
    const float *next_a = t->next_a, *next_b = t->next_b;
    _Alignas(64) float partial[TALL_MR * TALL_NR];
    CPU_WRITTEN_BEFORE_READ(partial);
    const int64_t chain = cpu_chain(t->k), masked = masked_steps(t, last);
    int64_t chain_end = t->k - chain;
    start_tile(sum, group, t, rows, vectors);
    int c_left = rows;
    const int c_at_once = t->k < rows * CPU_FETCH_STEPS ? (int)((rows * CPU_FETCH_STEPS + t->k - 1) / t->k) : 1;
    for (int64_t left = t->k; left > 0;) {
        for (int i = 0; i < c_at_once && c_left > 0; i++, c_left--) {
            CPU_UNROLL
            for (int v = 0; v < vectors; v++) _mm_prefetch((const char *)(c + v * LANES), _MM_HINT_T0);
            _mm_prefetch((const char *)(c + vectors * LANES - 1), _MM_HINT_T0); /* rows may begin within a line */
            c += t->c_row;
        }
        if (next_a) {
            CPU_UNROLL
            for (int i = 0; i < rows; i++) _mm_prefetch((const char *)(next_a + i * t->next_a_row), _MM_HINT_T1);
            next_a += t->next_a_step;
        }
        for (int i = 0, run = t->next_b_run; next_b && i < t->next_b_rows; i++, next_b += t->next_b_step) {
            CPU_UNROLL
            for (int v = 0; v < VECTORS; v++) _mm_prefetch((const char *)(next_b + v * LANES), _MM_HINT_T1);
            _mm_prefetch((const char *)(next_b + NR - 1), _MM_HINT_T1); /* rows may begin within a line */
            if (--run == 0) {
                run = t->next_b_run;
                next_b += t->next_b_skip;
            }
        }
        const bool more = next_a || next_b || c_left > 0;
        int64_t end = more && left > chain_end + CPU_FETCH_STEPS ? left - CPU_FETCH_STEPS : chain_end;
        if (left > masked) end = max64(end, masked);
        for (; left > end && left <= masked; left--, b += b_step) {
            __m512 row[VECTORS];
            load_row(row, b, vectors, last, false);
            add_step(sum, row, group, a_row, rows, vectors, NULL);
            CPU_UNROLL
            for (int g = 0; g < TALL_MR / 3; g++) group[g] += a_step;
        }
        for (; left > end; left--, b += b_step) {
            __m512 row[VECTORS];
            load_row(row, b, vectors, last, true);
            if (panel_b) {
                CPU_UNROLL
                for (int v = 0; v < vectors; v++) {
                    _mm512_store_ps(panel_b + v * LANES, row[v]);
                    if (left > ROWS_AHEAD)
                        _mm_prefetch((const char *)(b + ROWS_AHEAD * b_step + v * LANES), _MM_HINT_T0);
                }
                if (left > ROWS_AHEAD) _mm_prefetch((const char *)(b + ROWS_AHEAD * b_step + NR - 1), _MM_HINT_T0);
                panel_b += vectors * LANES;
            }
            if (panel_a && left > STEPS_AHEAD)
                _mm_prefetch((const char *)(group[0] + STEPS_AHEAD * a_step), _MM_HINT_T0);
            add_step(sum, row, group, a_row, rows, vectors, panel_a);
            if (panel_a) panel_a += rows;
            CPU_UNROLL
            for (int g = 0; g < TALL_MR / 3; g++) group[g] += a_step;
        }
        if (left == chain_end && chain < t->k) {
            end_chain(sum, partial, left + chain == t->k, !left, rows, vectors);
            chain_end = left > chain ? left - chain : 0;
        }
    }
}

static inline __attribute__((always_inline)) void store_tile(__m512 sum[TALL_MR][VECTORS], const struct cpu_tile *t,
                                                             const int rows, const int vectors, const __mmask16 last) {
    const __m512 alpha = _mm512_set1_ps(t->alpha), beta = _mm512_set1_ps(t->beta);
    float *c = t->c;
    if (t->beta == 0) {
        const bool scales = t->alpha != 1;
        CPU_UNROLL
        for (int i = 0; i < rows; i++, c += t->c_row) {
            CPU_UNROLL
            for (int v = 0; v < vectors; v++) {
                if (scales) sum[i][v] = _mm512_mul_ps(alpha, sum[i][v]);
                store_masked(c + v * LANES, v + 1 < vectors ? 0xffff : last, sum[i][v]);
            }
        }
        return;
    }
    const float *s = t->s;
    CPU_UNROLL
    for (int i = 0; i < rows; i++, c += t->c_row, s += t->s_row) {
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) {
            const __mmask16 mask = v + 1 < vectors ? 0xffff : last;
            const __m512 addend = _mm512_maskz_loadu_ps(mask, s + v * LANES);
            store_masked(c + v * LANES, mask, _mm512_fmadd_ps(alpha, sum[i][v], _mm512_mul_ps(beta, addend)));
        }
    }
}

static inline __attribute__((always_inline)) void multiply_tile(const struct cpu_tile *t, const int rows,
                                                                const int vectors, const __mmask16 last) {
    __m512 sum[TALL_MR][VECTORS];
    sum_tile(sum, t, rows, vectors, last);
    store_tile(sum, t, rows, vectors, last);
}

static inline __attribute__((always_inline)) void multiply_tile_and_fetch(const struct cpu_tile *t, const int rows,
                                                                          const int vectors, const __mmask16 last,
                                                                          float *panel_a, float *panel_b) {
    __m512 sum[TALL_MR][VECTORS];
    sum_tile_and_fetch(sum, t, rows, vectors, last, panel_a, panel_b);
    store_tile(sum, t, rows, vectors, last);
}

static inline __attribute__((always_inline)) void add_narrow_step(__m256 sum[TALL_MR], const float *group[TALL_MR / 3],
                                                                  int64_t a_row, int64_t a_step, __m256 row,
                                                                  const int rows) {
    CPU_UNROLL
    for (int i = 0; i < rows; i++) sum[i] = _mm256_fmadd_ps(_mm256_set1_ps(group[i / 3][i % 3 * a_row]), row, sum[i]);
    CPU_UNROLL
    for (int g = 0; g < TALL_MR / 3; g++) group[g] += a_step;
}

/* A tile of at most eight columns, in vectors of eight floats: a processor does twice as many of these. */
static inline __attribute__((always_inline)) void multiply_narrow(const struct cpu_tile *t, const int rows,
                                                                  const bool whole) {
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step, c_row = t->c_row, chain = cpu_chain(t->k);
    const __mmask8 mask = (__mmask8)((1u << t->n) - 1);
    const int64_t masked = whole ? 0 : t->k - t->whole;
    __m256 sum[TALL_MR], partial[TALL_MR];
    CPU_WRITTEN_BEFORE_READ(partial);
    CPU_UNROLL
    for (int i = 0; i < rows; i++) sum[i] = _mm256_setzero_ps();
    const float *group[TALL_MR / 3], *b = t->b;
    CPU_UNROLL
    for (int g = 0; g < TALL_MR / 3; g++) group[g] = t->a + 3 * g * a_row;

    for (int64_t left = t->k; left > 0;) {
        const int64_t end = left > chain ? left - chain : 0;
        const bool is_first = left == t->k;
        for (; left > end && left > masked; left--, b += b_step)
            add_narrow_step(sum, group, a_row, a_step, _mm256_loadu_ps(b), rows);
        for (; left > end; left--, b += b_step)
            add_narrow_step(sum, group, a_row, a_step, _mm256_maskz_loadu_ps(mask, b), rows);
        CPU_UNROLL
        for (int i = 0; i < rows; i++) {
            if (!is_first) sum[i] = _mm256_add_ps(partial[i], sum[i]);
            if (!end) continue;
            partial[i] = sum[i];
            sum[i] = _mm256_setzero_ps();
        }
    }

    const __m256 alpha = _mm256_set1_ps(t->alpha), beta = _mm256_set1_ps(t->beta);
    const bool adds = t->beta != 0; /* asked once: for all the compiler knows, writing C may change it */
    float *c = t->c;
    const float *s = t->s;
    CPU_UNROLL
    for (int i = 0; i < rows; i++, c += c_row) {
        __m256 result = _mm256_mul_ps(alpha, sum[i]);
        if (adds) {
            result = _mm256_fmadd_ps(alpha, sum[i], _mm256_mul_ps(beta, _mm256_maskz_loadu_ps(mask, s)));
            s += t->s_row;
        }
        if (whole)
            _mm256_storeu_ps(c, result);
        else
            _mm256_mask_storeu_ps(c, mask, result);
    }
}

#endif
