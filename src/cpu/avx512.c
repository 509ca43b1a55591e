/* avx512.c: the AVX-512 microkernel.
 *
 * Tile 12 x 32: 12 rows of A against two vectors of 16 columns of B. Of the 32 vector registers 24 hold sums, two hold
 * the row of B, and one the element of A being broadcast. A step of K is 24 multiply-adds on 14 loads: where
 * two of each are done a cycle, the multiply-adds are the limit, and 24 chains are three times what covers a latency of
 * four cycles.
 *
 *             b[0..15]    b[16..31]
 *     a[0]    sum[0][0]   sum[0][1]
 *      ..        ..          ..
 *     a[11]   sum[11][0]  sum[11][1]
 *
 * Edges: one body per number of rows, compiled for two vectors, for two and for one with the last one masked, and for
 * half of one.
 */
#include <assert.h>
#include <immintrin.h>

#include "kernel.h"

enum { MR = 12, NR = 32, MC = 240, NC = 4096, KC = 640, LANES = 16 };

static_assert(NR == 2 * LANES, "multiply_tile keeps two vectors of B");
static_assert(MR * 2 + 3 <= 32, "the sums, the row of B and the broadcast are in registers");
static_assert(MR % 3 == 0, "multiply_tile addresses the rows of A in groups of three");
static_assert(MR * NR <= CPU_TILE_FLOATS, "gemm.c buffers a tile");
static_assert(CPU_BLOCKS_ARE_WHOLE_TILES(MR, NR, MC, NC), "only the last panel of a matrix is padded");
static_assert(CPU_BLOCKS_FIT_CACHES(NR, MC, NC, KC), "see kernel.h");

static inline __attribute__((always_inline)) void store(float *to, const __mmask16 mask, __m512 x) {
    if (mask == 0xffff)
        _mm512_storeu_ps(to, x);
    else
        _mm512_mask_storeu_ps(to, mask, x);
}

/* The tile of C arrives while the sums are made. */
static inline void prefetch_tile(const float *c, int64_t c_row, int rows, int vectors) {
    for (int i = 0; i < rows; i++, c += c_row) {
        _mm_prefetch((const char *)c, _MM_HINT_T0);
        if (vectors > 1) _mm_prefetch((const char *)(c + LANES), _MM_HINT_T0);
    }
}

/* rows and vectors are constants wherever this is inlined, so that the loops over them unroll and the sums are
 * registers. `last` masks the last vector. */
static inline __attribute__((always_inline)) void multiply_tile(const struct cpu_tile *t, const int rows,
                                                                const int vectors, const __mmask16 last) {
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step, c_row = t->c_row;
    prefetch_tile(t->c, c_row, rows, vectors);
    __m512 sum[MR][2];
    CPU_UNROLL
    for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = _mm512_setzero_ps();

    /* Rows 3g, 3g+1 and 3g+2 are at group[g], + a_row, + 2*a_row: offsets the load instruction scales by itself. */
    const float *group[MR / 3], *b = t->b;
    CPU_UNROLL
    for (int g = 0; g < MR / 3; g++) group[g] = t->a + 3 * g * a_row;

    for (int64_t p = t->k; p > 0; p--) {
        __m512 row[2];
        CPU_UNROLL
        for (int v = 0; v < vectors; v++)
            row[v] = v + 1 < vectors || last == 0xffff ? _mm512_loadu_ps(b + v * LANES)
                                                       : _mm512_maskz_loadu_ps(last, b + v * LANES);
        CPU_UNROLL
        for (int i = 0; i < rows; i++) {
            const __m512 x = _mm512_set1_ps(group[i / 3][i % 3 * a_row]);
            CPU_UNROLL
            for (int v = 0; v < vectors; v++) sum[i][v] = _mm512_fmadd_ps(x, row[v], sum[i][v]);
        }
        CPU_UNROLL
        for (int g = 0; g < MR / 3; g++) group[g] += a_step;
        b += b_step;
    }

    const __m512 alpha = _mm512_set1_ps(t->alpha), beta = _mm512_set1_ps(t->beta);
    float *c = t->c;
    if (t->beta == 0) {
        const bool scales = t->alpha != 1;
        CPU_UNROLL
        for (int i = 0; i < rows; i++, c += c_row) {
            CPU_UNROLL
            for (int v = 0; v < vectors; v++) {
                if (scales) sum[i][v] = _mm512_mul_ps(alpha, sum[i][v]);
                store(c + v * LANES, v + 1 < vectors ? 0xffff : last, sum[i][v]);
            }
        }
        return;
    }
    const float *s = t->s;
    CPU_UNROLL
    for (int i = 0; i < rows; i++, c += c_row, s += t->s_row) {
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) {
            const __mmask16 mask = v + 1 < vectors ? 0xffff : last;
            const __m512 addend = _mm512_maskz_loadu_ps(mask, s + v * LANES);
            store(c + v * LANES, mask, _mm512_fmadd_ps(alpha, sum[i][v], _mm512_mul_ps(beta, addend)));
        }
    }
}

/* A tile of at most eight columns, in vectors of that length, of which a processor does twice as many. */
static inline __attribute__((always_inline)) void multiply_narrow(const struct cpu_tile *t, const int rows) {
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step, c_row = t->c_row;
    const __mmask8 mask = (__mmask8)((1u << t->n) - 1);
    __m256 sum[MR];
    CPU_UNROLL
    for (int i = 0; i < rows; i++) sum[i] = _mm256_setzero_ps();
    const float *group[MR / 3], *b = t->b;
    CPU_UNROLL
    for (int g = 0; g < MR / 3; g++) group[g] = t->a + 3 * g * a_row;

    for (int64_t p = t->k; p > 0; p--) {
        const __m256 row = _mm256_maskz_loadu_ps(mask, b);
        CPU_UNROLL
        for (int i = 0; i < rows; i++)
            sum[i] = _mm256_fmadd_ps(_mm256_set1_ps(group[i / 3][i % 3 * a_row]), row, sum[i]);
        CPU_UNROLL
        for (int g = 0; g < MR / 3; g++) group[g] += a_step;
        b += b_step;
    }

    const __m256 alpha = _mm256_set1_ps(t->alpha), beta = _mm256_set1_ps(t->beta);
    float *c = t->c;
    const float *s = t->s;
    CPU_UNROLL
    for (int i = 0; i < rows; i++, c += c_row) {
        __m256 result = _mm256_mul_ps(alpha, sum[i]);
        if (t->beta != 0) {
            result = _mm256_fmadd_ps(alpha, sum[i], _mm256_mul_ps(beta, _mm256_maskz_loadu_ps(mask, s)));
            s += t->s_row;
        }
        _mm256_mask_storeu_ps(c, mask, result);
    }
}

/* One body for each number of rows. Tiles of at most eight columns have a function to themselves, whose few registers
 * need no saving: that takes as long as some of them do. */
static inline __attribute__((always_inline)) void multiply_rows(const struct cpu_tile *t, const int rows) {
    if (t->n == NR)
        multiply_tile(t, rows, 2, 0xffff);
    else if (t->n > LANES)
        multiply_tile(t, rows, 2, (__mmask16)((1u << (t->n - LANES)) - 1));
    else
        multiply_tile(t, rows, 1, (__mmask16)((1u << t->n) - 1));
}

static __attribute__((noinline)) void multiply_wide_tile(const struct cpu_tile *t) {
    switch (t->m) {
    case 1: multiply_rows(t, 1); break;
    case 2: multiply_rows(t, 2); break;
    case 3: multiply_rows(t, 3); break;
    case 4: multiply_rows(t, 4); break;
    case 5: multiply_rows(t, 5); break;
    case 6: multiply_rows(t, 6); break;
    case 7: multiply_rows(t, 7); break;
    case 8: multiply_rows(t, 8); break;
    case 9: multiply_rows(t, 9); break;
    case 10: multiply_rows(t, 10); break;
    case 11: multiply_rows(t, 11); break;
    default: multiply_rows(t, MR);
    }
}

static __attribute__((noinline)) void multiply_narrow_tile(const struct cpu_tile *t) {
    switch (t->m) {
    case 1: multiply_narrow(t, 1); break;
    case 2: multiply_narrow(t, 2); break;
    case 3: multiply_narrow(t, 3); break;
    case 4: multiply_narrow(t, 4); break;
    case 5: multiply_narrow(t, 5); break;
    case 6: multiply_narrow(t, 6); break;
    case 7: multiply_narrow(t, 7); break;
    case 8: multiply_narrow(t, 8); break;
    case 9: multiply_narrow(t, 9); break;
    case 10: multiply_narrow(t, 10); break;
    case 11: multiply_narrow(t, 11); break;
    default: multiply_narrow(t, MR);
    }
}

static void multiply(const struct cpu_tile *t) {
    if (t->n > LANES / 2)
        multiply_wide_tile(t);
    else
        multiply_narrow_tile(t);
}

const struct cpu_kernel cpu_kernel_avx512 = {"avx512", CPU_AVX512F | CPU_AVX512VL | CPU_FMA, MR, NR, MC, NC, KC,
                                             multiply};
