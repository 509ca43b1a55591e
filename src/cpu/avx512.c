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
 *
 * Small products, read where they lie, have tiles of 4 x 64 where C is as wide: rows of C are written whole then, and
 * few at a time, which keeps the writing out of the way of the next tile's multiply-adds.
 */
#include <assert.h>
#include <immintrin.h>

#include "kernel.h"

enum { MR = 12, NR = 32, MC = 240, NC = 4096, KC = 640, LANES = 16 };

enum { WIDE_MR = 4, WIDE_NR = 64, MOST_VECTORS = 4 };

static_assert(NR == 2 * LANES, "multiply_tile keeps two vectors of B");
static_assert(WIDE_NR == MOST_VECTORS * LANES, "or four");
static_assert(WIDE_MR * MOST_VECTORS + MOST_VECTORS + 1 <= 32, "these sums are in registers, too");
static_assert((int)WIDE_NR <= (int)CPU_STRIP_COLUMNS, "kernel.h leaves no room for wider strips");
static_assert(MR * 2 + 3 <= 32, "the sums, the row of B and the broadcast are in registers");
static_assert(MR % 3 == 0, "multiply_tile addresses the rows of A in groups of three");
static_assert(MR * NR <= CPU_TILE_FLOATS, "gemm.c buffers a tile");
static_assert(CPU_BLOCKS_ARE_WHOLE_TILES(MR, NR, MC, NC), "only the last panel of a matrix is padded");
static_assert(CPU_BLOCKS_FIT_CACHES(NR, MC, NC, KC), "see kernel.h");

/* The last vector of a row of so many columns. */
static inline __mmask16 last_mask(int columns) { return (__mmask16)((2u << (columns - 1) % LANES) - 1); }

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

/* In what follows rows and vectors are constants wherever it is inlined, so that the loops over them unroll and the sums
 * are registers. `last` masks the last vector. */
static inline __attribute__((always_inline)) void load_row(__m512 row[MOST_VECTORS], const float *b, const int vectors,
                                                           const __mmask16 last) {
    CPU_UNROLL
    for (int v = 0; v < vectors; v++)
        row[v] = v + 1 < vectors || last == 0xffff ? _mm512_loadu_ps(b + v * LANES)
                                                   : _mm512_maskz_loadu_ps(last, b + v * LANES);
}

static inline __attribute__((always_inline)) void sum_tile(__m512 sum[MR][MOST_VECTORS], const struct cpu_tile *t,
                                                           const int rows, const int vectors, const __mmask16 last) {
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step;
    CPU_UNROLL
    for (int i = 0; i < rows; i++) {
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) sum[i][v] = _mm512_setzero_ps();
    }

    /* Rows 3g, 3g+1 and 3g+2 are at group[g], + a_row, + 2*a_row: offsets the load instruction scales by itself. */
    const float *group[MR / 3], *b = t->b;
    CPU_UNROLL
    for (int g = 0; g < MR / 3; g++) group[g] = t->a + 3 * g * a_row;

    for (int64_t p = t->k; p > 0; p--) {
        __m512 row[MOST_VECTORS];
        load_row(row, b, vectors, last);
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
}

static inline __attribute__((always_inline)) void store_tile(__m512 sum[MR][MOST_VECTORS], const struct cpu_tile *t,
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
                store(c + v * LANES, v + 1 < vectors ? 0xffff : last, sum[i][v]);
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
            store(c + v * LANES, mask, _mm512_fmadd_ps(alpha, sum[i][v], _mm512_mul_ps(beta, addend)));
        }
    }
}

static inline __attribute__((always_inline)) void multiply_tile(const struct cpu_tile *t, const int rows,
                                                                const int vectors, const __mmask16 last) {
    __m512 sum[MR][MOST_VECTORS];
    if (vectors <= 2) prefetch_tile(t->c, t->c_row, rows, vectors);
    sum_tile(sum, t, rows, vectors, last);
    store_tile(sum, t, rows, vectors, last);
}

/* A tile of at most eight columns, in vectors of that length, of which a processor does twice as many. */
static inline __attribute__((always_inline)) void multiply_narrow(const struct cpu_tile *t, const int rows,
                                                                  const bool whole) {
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step, c_row = t->c_row;
    const __mmask8 mask = (__mmask8)((1u << t->n) - 1);
    __m256 sum[MR];
    CPU_UNROLL
    for (int i = 0; i < rows; i++) sum[i] = _mm256_setzero_ps();
    const float *group[MR / 3], *b = t->b;
    CPU_UNROLL
    for (int g = 0; g < MR / 3; g++) group[g] = t->a + 3 * g * a_row;

    for (int64_t p = t->k; p > 0; p--) {
        const __m256 row = whole ? _mm256_loadu_ps(b) : _mm256_maskz_loadu_ps(mask, b);
        CPU_UNROLL
        for (int i = 0; i < rows; i++)
            sum[i] = _mm256_fmadd_ps(_mm256_set1_ps(group[i / 3][i % 3 * a_row]), row, sum[i]);
        CPU_UNROLL
        for (int g = 0; g < MR / 3; g++) group[g] += a_step;
        b += b_step;
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

/* One body for each number of rows. Tiles of at most eight columns have a function to themselves, whose few registers
 * need no saving: that takes as long as some of them do. */
static inline __attribute__((always_inline)) void multiply_rows(const struct cpu_tile *t, const int rows) {
    if (t->n == NR)
        multiply_tile(t, rows, 2, 0xffff);
    else if (t->n > LANES)
        multiply_tile(t, rows, 2, last_mask(t->n));
    else
        multiply_tile(t, rows, 1, last_mask(t->n));
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

static inline __attribute__((always_inline)) void multiply_narrow_rows(const struct cpu_tile *t, const int rows) {
    if (t->n == LANES / 2)
        multiply_narrow(t, rows, true);
    else
        multiply_narrow(t, rows, false);
}

static __attribute__((noinline)) void multiply_narrow_tile(const struct cpu_tile *t) {
    switch (t->m) {
    case 1: multiply_narrow_rows(t, 1); break;
    case 2: multiply_narrow_rows(t, 2); break;
    case 3: multiply_narrow_rows(t, 3); break;
    case 4: multiply_narrow_rows(t, 4); break;
    case 5: multiply_narrow_rows(t, 5); break;
    case 6: multiply_narrow_rows(t, 6); break;
    case 7: multiply_narrow_rows(t, 7); break;
    case 8: multiply_narrow_rows(t, 8); break;
    case 9: multiply_narrow_rows(t, 9); break;
    case 10: multiply_narrow_rows(t, 10); break;
    case 11: multiply_narrow_rows(t, 11); break;
    default: multiply_narrow_rows(t, MR);
    }
}

static void multiply(const struct cpu_tile *t) {
    if (t->n > LANES / 2)
        multiply_wide_tile(t);
    else
        multiply_narrow_tile(t);
}

/* ---- Small products ---------------------------------------------------------------------------------------------- */

/* Four steps of depth of eight columns of B, where those are contiguous, become rows. Not whole: fewer of either. */
static inline __attribute__((always_inline)) void transpose_8x4(float *to, int64_t to_step, const float *from,
                                                                int64_t from_col, const bool whole, int columns,
                                                                int depth) {
    const __mmask8 in_depth = (__mmask8)((1u << (depth < 4 ? depth : 4)) - 1);
    __m256 x[4];
    CPU_UNROLL
    for (int i = 0; i < 4; i++) {
        const float *low = from + i * from_col, *high = from + (i + 4) * from_col;
        x[i] = _mm256_insertf128_ps(
            _mm256_castps128_ps256(whole ? _mm_loadu_ps(low) : _mm_maskz_loadu_ps(i < columns ? in_depth : 0, low)),
            whole ? _mm_loadu_ps(high) : _mm_maskz_loadu_ps(i + 4 < columns ? in_depth : 0, high), 1);
    }
    const __m256 low01 = _mm256_unpacklo_ps(x[0], x[1]), high01 = _mm256_unpackhi_ps(x[0], x[1]);
    const __m256 low23 = _mm256_unpacklo_ps(x[2], x[3]), high23 = _mm256_unpackhi_ps(x[2], x[3]);
    _mm256_storeu_ps(to, _mm256_shuffle_ps(low01, low23, 0x44));
    if (whole || depth > 1) _mm256_storeu_ps(to + to_step, _mm256_shuffle_ps(low01, low23, 0xee));
    if (whole || depth > 2) _mm256_storeu_ps(to + 2 * to_step, _mm256_shuffle_ps(high01, high23, 0x44));
    if (whole || depth > 3) _mm256_storeu_ps(to + 3 * to_step, _mm256_shuffle_ps(high01, high23, 0xee));
}

/* The same for all of the depth and all of the columns. */
static void transpose(float *to, int64_t to_step, const float *from, int64_t from_col, int columns, int depth) {
    for (; columns > 0; columns -= 8, from += 8 * from_col, to += 8) {
        int p = 0;
        if (columns >= 8)
            for (; p + 4 <= depth; p += 4) transpose_8x4(to + p * to_step, to_step, from + p, from_col, true, 8, 4);
        for (; p < depth; p += 4)
            transpose_8x4(to + p * to_step, to_step, from + p, from_col, false, columns, depth - p);
    }
}

/* A strip of C, m rows of more than NR and at most WIDE_NR columns. */
static inline __attribute__((always_inline)) void multiply_wide_strip(struct cpu_tile *t, int m, const int vectors,
                                                                      const __mmask16 last) {
    for (; m >= WIDE_MR; m -= WIDE_MR) {
        multiply_tile(t, WIDE_MR, vectors, last);
        t->a += WIDE_MR * t->a_row;
        t->s = t->c += WIDE_MR * t->c_row;
    }
    switch (m) {
    case 1: multiply_tile(t, 1, vectors, last); break;
    case 2: multiply_tile(t, 2, vectors, last); break;
    case 3: multiply_tile(t, 3, vectors, last); break;
    default: break;
    }
}

/* The same of at most WIDE_NR. */
static __attribute__((noinline)) void multiply_strip(struct cpu_tile *t, int m) {
    if (t->n == WIDE_NR)
        multiply_wide_strip(t, m, 4, 0xffff);
    else if (t->n > 3 * LANES)
        multiply_wide_strip(t, m, 4, last_mask(t->n));
    else if (t->n > NR)
        multiply_wide_strip(t, m, 3, last_mask(t->n));
    else
        for (; m > 0; m -= MR) {
            t->m = m < MR ? m : MR;
            multiply(t);
            t->a += MR * t->a_row;
            t->s = t->c += MR * t->c_row;
        }
}

/* The first tile of a wide strip whose columns of B are contiguous. B's rows are made in `copy` four at a time, some
 * steps before they are used here, or reading them would have to wait for their writing: so making them hides behind
 * multiply-adds. */
static inline __attribute__((always_inline)) void
multiply_and_transpose(const struct cpu_tile *t, float *copy, int64_t b_col, const int vectors, const __mmask16 last) {
    enum { AHEAD = 8 };
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step;
    const int depth = (int)t->k;
    const float *a = t->a, *b = copy;
    __m512 sum[MR][MOST_VECTORS];
    CPU_UNROLL
    for (int i = 0; i < WIDE_MR; i++) {
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) sum[i][v] = _mm512_setzero_ps();
    }
    for (int p = -AHEAD; p < depth; p += 4) {
        float *to = copy + (p + AHEAD) * b_step;
        const float *from = t->b + p + AHEAD;
        CPU_UNROLL
        for (int q = 0; q < 4; q++) {
            const int columns = t->n - q * LANES, left = depth - p - AHEAD;
            if (columns >= LANES && left >= 4) {
                transpose_8x4(to, b_step, from, b_col, true, 8, 4);
                transpose_8x4(to + 8, b_step, from + 8 * b_col, b_col, true, 8, 4);
            } else if (columns > 0 && left > 0)
                transpose(to, b_step, from, b_col, columns < LANES ? columns : LANES, left < 4 ? left : 4);
            to += LANES;
            from += LANES * b_col;
            if (p < 0 || p + q >= depth) continue;
            __m512 row[MOST_VECTORS];
            load_row(row, b, vectors, last);
            CPU_UNROLL
            for (int i = 0; i < WIDE_MR; i++) {
                CPU_UNROLL
                for (int v = 0; v < vectors; v++)
                    sum[i][v] = _mm512_fmadd_ps(_mm512_set1_ps(a[i * a_row]), row[v], sum[i][v]);
            }
            a += a_step;
            b += b_step;
        }
    }
    store_tile(sum, t, WIDE_MR, vectors, last);
}

static __attribute__((noinline)) void multiply_first_tile(const struct cpu_tile *t, float *copy, int64_t b_col) {
    if (t->n == WIDE_NR)
        multiply_and_transpose(t, copy, b_col, 4, 0xffff);
    else if (t->n > 3 * LANES)
        multiply_and_transpose(t, copy, b_col, 4, last_mask(t->n));
    else
        multiply_and_transpose(t, copy, b_col, 3, last_mask(t->n));
}

/* B's columns are contiguous: its rows are made on the stack. */
static __attribute__((noinline)) void multiply_transposed_tile(struct cpu_tile *t, int64_t b_col) {
    _Alignas(64) float copy[CPU_STRIP_FLOATS];
    const int64_t step = (t->n + 7) / 8 * 8;
    transpose(copy, step, t->b, b_col, t->n, (int)t->k);
    t->b = copy;
    t->b_step = step;
    multiply(t);
}

/* The same for larger products, a strip at a time. */
static __attribute__((noinline)) void multiply_transposed_strips(struct cpu_tile *t, int64_t b_col) {
    _Alignas(64) float copy[CPU_STRIP_FLOATS];
    const int m = t->m, n = t->n;
    const float *const a = t->a, *const b = t->b;
    float *const c = t->c;
    for (int j = 0; j < n; j += t->n) {
        t->n = n - j < WIDE_NR ? n - j : WIDE_NR;
        t->a = a;
        t->b = b + j * b_col;
        t->b_step = (t->n + 7) / 8 * 8;
        t->s = t->c = c + j;
        int done = 0;
        if (t->n > NR && m >= WIDE_MR) {
            multiply_first_tile(t, copy, b_col);
            done = WIDE_MR;
        } else
            transpose(copy, t->b_step, t->b, b_col, t->n, (int)t->k);
        t->a += done * t->a_row;
        t->b = copy;
        t->s = t->c += done * t->c_row;
        multiply_strip(t, m - done);
    }
}

static void multiply_strips(struct cpu_tile *t) {
    const int m = t->m, n = t->n;
    const float *const a = t->a, *const b = t->b;
    float *const c = t->c;
    for (int j = 0; j < n; j += t->n) {
        t->n = n - j < WIDE_NR ? n - j : WIDE_NR;
        t->a = a;
        t->b = b + j;
        t->s = t->c = c + j;
        multiply_strip(t, m);
    }
}

static void multiply_whole(struct cpu_tile *t, int64_t b_col) {
    const bool one_tile = t->m <= MR && t->n <= NR;
    if (b_col == 1 && one_tile)
        multiply(t);
    else if (b_col == 1)
        multiply_strips(t);
    else if (one_tile)
        multiply_transposed_tile(t, b_col);
    else
        multiply_transposed_strips(t, b_col);
}

const struct cpu_kernel cpu_kernel_avx512 = {
    "avx512", CPU_AVX512F | CPU_AVX512VL | CPU_FMA, MR, NR, MC, NC, KC, multiply, multiply_whole};
