/* avx512.c: the AVX-512 microkernel, of tiles as avx512_tile.h computes them.
 *
 * Edges: one body per number of rows, compiled for four vectors, for four and for three with the last one masked. Tiles
 * of at most 32 columns may have 12 rows, with bodies for two vectors, for two and for one with the last one masked,
 * and for half of one.
 *
 * Small products, read in place, have tiles of 4 x 64, or of 6 x 64 from 48 terms on, where C is as wide: rows of C are
 * written whole and few at a time, which keeps stores out of the way of the next tile's multiply-adds.
 */
#include "cpu/avx512_tile.h"
#include "cpu/touch.h"

enum { MC = 3072, NC = 256, KC = 640 };
enum { FEW_TERMS = 24, FEW_TERMS_OF_TWO = 16, FEW_TERMS_OF_WIDE = 12 };

/* Rows of a small product's tile. */
enum { SMALL_MR = 4 };

/* The most sums of multiply_by_chains. */
enum { CHAIN_SUMS = 8192 };

/* The fewest terms for which the lines of C are prefetched. */
enum { FETCHES_C = 3 };

static_assert((int)NR <= (int)CPU_STRIP_COLUMNS, "kernel.h leaves no room for wider strips");
static_assert(MR * NR <= CPU_TILE_FLOATS, "loops.c buffers a tile");
static_assert(CPU_BLOCKS_ARE_WHOLE_TILES(MR, NR, MC, NC), "only the last panel of a matrix is padded");
static_assert(CPU_BLOCKS_FIT_CACHES(MR, MC, NC, KC), "see kernel.h");

/* One body for each number of rows. */
static inline __attribute__((always_inline)) void multiply_wide_rows(const struct cpu_tile *t, const int rows) {
    if (t->n == NR)
        multiply_tile_and_fetch(t, rows, 4, 0xffff, NULL, NULL);
    else if (t->n > 3 * LANES)
        multiply_tile_and_fetch(t, rows, 4, last_mask(t->n), NULL, NULL);
    else
        multiply_tile_and_fetch(t, rows, 3, last_mask(t->n), NULL, NULL);
}

static __attribute__((noinline)) void multiply_wide_tile(const struct cpu_tile *t) {
    switch (t->m) {
    case 1: multiply_wide_rows(t, 1); break;
    case 2: multiply_wide_rows(t, 2); break;
    case 3: multiply_wide_rows(t, 3); break;
    case 4: multiply_wide_rows(t, 4); break;
    case 5: multiply_wide_rows(t, 5); break;
    default: multiply_wide_rows(t, MR);
    }
}

static inline __attribute__((always_inline)) void multiply_tall_rows(const struct cpu_tile *t, const int rows) {
    const bool large = t->k > 4 * CPU_FETCH_STEPS;
    if (rows == TALL_MR && t->next_a && t->n > LANES)
        multiply_tile_and_fetch(t, rows, 2, last_mask(t->n), NULL, NULL);
    else if (rows == TALL_MR && t->next_a)
        multiply_tile_and_fetch(t, rows, 1, last_mask(t->n), NULL, NULL);
    else if (t->n == TALL_NR && large)
        multiply_tile_and_fetch(t, rows, 2, 0xffff, NULL, NULL);
    else if (t->n == TALL_NR)
        multiply_tile(t, rows, 2, 0xffff);
    else if (t->n > LANES)
        multiply_tile(t, rows, 2, last_mask(t->n));
    else
        multiply_tile(t, rows, 1, last_mask(t->n));
}

static __attribute__((noinline)) void multiply_tall_tile(const struct cpu_tile *t) {
    switch (t->m) {
    case 1: multiply_tall_rows(t, 1); break;
    case 2: multiply_tall_rows(t, 2); break;
    case 3: multiply_tall_rows(t, 3); break;
    case 4: multiply_tall_rows(t, 4); break;
    case 5: multiply_tall_rows(t, 5); break;
    case 6: multiply_tall_rows(t, 6); break;
    case 7: multiply_tall_rows(t, 7); break;
    case 8: multiply_tall_rows(t, 8); break;
    case 9: multiply_tall_rows(t, 9); break;
    case 10: multiply_tall_rows(t, 10); break;
    case 11: multiply_tall_rows(t, 11); break;
    default: multiply_tall_rows(t, TALL_MR);
    }
}

/* Tiles of at most eight columns have a function of their own: it needs so few registers that none are saved, which
 * would take as long as some of these tiles. */
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
    default: multiply_narrow_rows(t, TALL_MR);
    }
}

static void multiply(const struct cpu_tile *t) {
    if (t->n > TALL_NR)
        multiply_wide_tile(t);
    else if (t->n > LANES / 2)
        multiply_tall_tile(t);
    else
        multiply_narrow_tile(t);
}

static void multiply_and_pack(const struct cpu_tile *t, float *panel_a, float *panel_b) {
    if (!panel_a)
        multiply_tile_and_fetch(t, MR, VECTORS, 0xffff, NULL, panel_b);
    else if (!panel_b)
        multiply_tile_and_fetch(t, MR, VECTORS, 0xffff, panel_a, NULL);
    else
        multiply_tile_and_fetch(t, MR, VECTORS, 0xffff, panel_a, panel_b);
}

/* ---- A few rows of C --------------------------------------------------------------------------------------------- */

typedef __m512 vector;

static inline vector zeros(void) { return _mm512_setzero_ps(); }
static inline vector every(float x) { return _mm512_set1_ps(x); }
static inline vector load(const float *from) { return _mm512_loadu_ps(from); }
static inline vector load_first(const float *from, int count) { return _mm512_maskz_loadu_ps(last_mask(count), from); }
static inline void store(float *to, vector x) { _mm512_storeu_ps(to, x); }
static inline void store_first(float *to, vector x, int count) { _mm512_mask_storeu_ps(to, last_mask(count), x); }
static inline vector multiply_add(vector x, vector y, vector sum) { return _mm512_fmadd_ps(x, y, sum); }
static inline vector product(vector x, vector y) { return _mm512_mul_ps(x, y); }
static inline vector add(vector x, vector y) { return _mm512_add_ps(x, y); }

/* Halves are added until one lane is left. */
static inline float sum_lanes(vector x) {
    const __m256d high = _mm512_extractf64x4_pd(_mm512_castps_pd(x), 1);
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm256_castpd_ps(high));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline void sum_lanes_of_four(const vector x[4], float sums[4]) {
    const vector eight01 = add(_mm512_shuffle_f32x4(x[0], x[1], 0x44), _mm512_shuffle_f32x4(x[0], x[1], 0xee));
    const vector eight23 = add(_mm512_shuffle_f32x4(x[2], x[3], 0x44), _mm512_shuffle_f32x4(x[2], x[3], 0xee));
    const vector four = add(_mm512_shuffle_f32x4(eight01, eight23, 0x88), _mm512_shuffle_f32x4(eight01, eight23, 0xdd));
    const vector two = add(four, _mm512_permute_ps(four, 0x4e)), one = add(two, _mm512_permute_ps(two, 0xb1));
    /* In a register: compressing to memory takes some processors a hundred cycles. */
    _mm_storeu_ps(sums, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one)));
}

/* Pairs of lanes, then pairs of those, and so on: lanes of 4 x 4 elements first, in each quarter of a vector, then
 * quarters. */
static inline __attribute__((always_inline)) void transpose_square(vector x[LANES]) {
    vector y[LANES];
    CPU_UNROLL
    for (int i = 0; i < LANES; i += 4) {
        const vector low01 = _mm512_unpacklo_ps(x[i], x[i + 1]), high01 = _mm512_unpackhi_ps(x[i], x[i + 1]);
        const vector low23 = _mm512_unpacklo_ps(x[i + 2], x[i + 3]), high23 = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
        y[i] = _mm512_shuffle_ps(low01, low23, 0x44);
        y[i + 1] = _mm512_shuffle_ps(low01, low23, 0xee);
        y[i + 2] = _mm512_shuffle_ps(high01, high23, 0x44);
        y[i + 3] = _mm512_shuffle_ps(high01, high23, 0xee);
    }
    CPU_UNROLL
    for (int i = 0; i < 4; i++) {
        const vector even_low = _mm512_shuffle_f32x4(y[i], y[i + 4], 0x88);
        const vector odd_low = _mm512_shuffle_f32x4(y[i], y[i + 4], 0xdd);
        const vector even_high = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0x88);
        const vector odd_high = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0xdd);
        x[i] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
        x[i + 4] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
        x[i + 8] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
        x[i + 12] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
}

enum { VECTOR_REGISTERS = 32 };

#include "cpu/dots.h"
#include "cpu/few_rows.h"

/* The columns of the next panel of so many: without one of a few vectors at the end, which would prefetch nothing. */
static inline int panel_width(int left) {
    enum { THREE = 3 * LANES };
    return left <= NR ? left : left > NR + LANES && left <= NR + TALL_NR ? THREE : NR;
}

/* Prefetches some terms of all rows of A, whose rows are contiguous: columns are near each other as they are. */
static void fetch_terms(const struct cpu_tile *t, int64_t first, int64_t end) {
    for (int i = 0; i < t->m && t->a_step == 1; i++)
        for (int64_t p = first; p < end; p += LANES) ask_for(t->a + i * t->a_row + p);
}

/* One chain of all rows of C and some columns, added to the sums of chains before it unless it is the first of a block.
 * Panels of more than TALL_NR columns prefetch B, `fetched` floats further on with each tile, until `stop`. */
static void add_chain(struct cpu_tile *tile, const struct cpu_tile *t, int columns, const float *next,
                      const float *stop, int64_t fetched, int64_t whole_floats) {
    const float *const a = tile->a, *const b = tile->b;
    float *const sums = tile->c;
    for (int j = 0; j < columns; j += tile->n) {
        tile->n = panel_width(columns - j);
        tile->b = b + j;
        tile->whole = whole_floats ? cpu_whole_steps(tile, LANES, whole_floats - j) : 0;
        const int most = tile->n > TALL_NR ? MR : TALL_MR;
        for (int i = 0, tiles = (t->m + most - 1) / most; i < t->m; i += tile->m, tiles--) {
            tile->m = (t->m - i + tiles - 1) / tiles;
            tile->a = a + i * t->a_row;
            tile->s = tile->c = sums + i * tile->c_row + j;
            tile->next_b = next < stop ? next : NULL;
            multiply(tile);
            if (tile->n > TALL_NR) next += fetched;
        }
    }
}

/* More rows than multiply_few's. Tiles read a strip of 64 columns, a pattern that no prefetcher follows. So one chain
 * after the other is computed for many columns, and while it is, tiles prefetch B's rows of the next one, each from end
 * to end. The sums stay near, and have the order of tiles. */
static __attribute__((noinline)) void multiply_by_chains(const struct cpu_tile *t, int64_t kc) {
    _Alignas(64) float sums[CHAIN_SUMS];
    const int tiles = (t->m + MR - 1) / MR, most = CHAIN_SUMS / t->m / NR * NR;
    const bool is_one_run = t->b_step == t->n && t->n <= most; /* all of B, from end to end */
    /* So long that in each CPU_FETCH_STEPS a tile prefetches about one of B's rows. */
    const int panels = tiles < 3 ? 8 : tiles < 4 ? 6 : 4;
    const int part = is_one_run ? t->n : (int)min64(min64(panels * NR, most), round_up(t->n, NR));
    const int wide_tiles = tiles * ((part + NR - LANES - 1) / NR), sums_row = (int)round_up(part, LANES);
    touch_rows(t->b, cpu_chain(min64(kc, t->k)), min64(part, t->n), t->b_step);
    for (int j = 0; j < t->n; j += part) {
        const int columns = t->n - j < part ? t->n - j : part;
        for (int64_t first = 0; first < t->k; first += kc) {
            const int64_t block_end = min64(first + kc, t->k), chain = cpu_chain(block_end - first);
            for (int64_t begin = first, end; begin < block_end; begin = end) {
                end = min64(begin + chain, block_end);
                const bool is_last = end == t->k; /* then the next columns follow, if there are any */
                const int64_t rows = is_last ? chain : min64(chain, t->k - end);
                const int64_t fetches = ceil_div(end - begin, CPU_FETCH_STEPS);
                const float *const next = is_last ? t->b + j + part : t->b + end * t->b_step + j;
                const float *const stop = is_last && j + part >= t->n ? next : next + rows * t->b_step;
                struct cpu_tile tile = {.k = end - begin,
                                        .a = t->a + begin * t->a_step,
                                        .a_row = t->a_row,
                                        .a_step = t->a_step,
                                        .b = t->b + begin * t->b_step + j,
                                        .b_step = t->b_step,
                                        .s_row = sums_row,
                                        .c = sums,
                                        .c_row = sums_row,
                                        .alpha = 1,
                                        .beta = begin > first,
                                        .next_b_step = NR};
                int64_t skipped = 0;
                if (is_one_run)
                    tile.next_b_rows = (int)ceil_div(rows * part, wide_tiles * fetches * NR);
                else {
                    const int64_t at_once = ceil_div(rows, wide_tiles * fetches);
                    tile.next_b_run = part / NR;
                    tile.next_b_rows = (int)at_once * tile.next_b_run;
                    tile.next_b_skip = t->b_step - part;
                    skipped = at_once * tile.next_b_skip;
                }
                if (!is_last) fetch_terms(t, end, end + rows);
                add_chain(&tile, t, columns, next, stop, fetches * (tile.next_b_rows * NR + skipped),
                          t->b_step == t->n ? (t->k - begin) * t->n - j : 0);
            }
            for (int i = 0; i < t->m; i++) store_sums_of_row(t, i, j, first > 0, sums + i * sums_row, columns);
        }
    }
}

static void multiply_few_or_by_chains(const struct cpu_tile *t, int64_t b_col, int64_t kc) {
    if (t->m > CPU_GROUPED_ROWS)
        multiply_by_chains(t, kc);
    else
        multiply_few(t, b_col, kc);
}

/* ---- Small products ---------------------------------------------------------------------------------------------- */

/* Four terms of eight columns of B, where those are contiguous, become rows. Not whole: fewer of either. */
static inline __attribute__((always_inline)) void transpose_8x4(float *to, int64_t to_step, const float *from,
                                                                int64_t from_col, const bool whole, int columns,
                                                                int terms) {
    const __mmask8 in_terms = (__mmask8)((1u << (terms < 4 ? terms : 4)) - 1);
    __m256 x[4];
    CPU_UNROLL
    for (int i = 0; i < 4; i++) {
        /* Columns that are not there are not read, but an address without a page would take a microsecond, even so. */
        const float *low = from + (whole || i < columns ? i * from_col : 0);
        const float *high = from + (whole || i + 4 < columns ? (i + 4) * from_col : 0);
        x[i] = _mm256_insertf128_ps(
            _mm256_castps128_ps256(whole ? _mm_loadu_ps(low) : _mm_maskz_loadu_ps(i < columns ? in_terms : 0, low)),
            whole ? _mm_loadu_ps(high) : _mm_maskz_loadu_ps(i + 4 < columns ? in_terms : 0, high), 1);
    }
    const __m256 low01 = _mm256_unpacklo_ps(x[0], x[1]), high01 = _mm256_unpackhi_ps(x[0], x[1]);
    const __m256 low23 = _mm256_unpacklo_ps(x[2], x[3]), high23 = _mm256_unpackhi_ps(x[2], x[3]);
    _mm256_storeu_ps(to, _mm256_shuffle_ps(low01, low23, 0x44));
    if (whole || terms > 1) _mm256_storeu_ps(to + to_step, _mm256_shuffle_ps(low01, low23, 0xee));
    if (whole || terms > 2) _mm256_storeu_ps(to + 2 * to_step, _mm256_shuffle_ps(high01, high23, 0x44));
    if (whole || terms > 3) _mm256_storeu_ps(to + 3 * to_step, _mm256_shuffle_ps(high01, high23, 0xee));
}

/* The same for all terms and all columns. */
static void transpose(float *to, int64_t to_step, const float *from, int64_t from_col, int columns, int terms) {
    for (; columns > 0; columns -= 8, from += 8 * from_col, to += 8) {
        int p = 0;
        if (columns >= 8)
            for (; p + 4 <= terms; p += 4) transpose_8x4(to + p * to_step, to_step, from + p, from_col, true, 8, 4);
        for (; p < terms; p += 4)
            transpose_8x4(to + p * to_step, to_step, from + p, from_col, false, columns, terms - p);
    }
}

/* A strip of C: m rows of more than NR / 2 and at most NR columns, `step` rows at a time. Each tile prefetches the next
 * rows of A and, if t says so, part of B's next strip. Where A is transposed, a cache line holds LANES rows of a term,
 * so the tiles of one line share the terms of the next. */
static inline __attribute__((always_inline)) void multiply_wide_strip(struct cpu_tile *t, int m, const int vectors,
                                                                      const __mmask16 last, const int step) {
    const int parts = t->next_b ? CPU_FETCH_STEPS / t->next_b_rows : 0, of_line = (LANES + step - 1) / step;
    const float *const lines = t->next_a;
    for (int part = 0, done = 0; m == step || m > step + 2; m -= step) {
        if (t->k >= FETCHES_C)
            multiply_tile_and_fetch(t, step, vectors, last, NULL, NULL);
        else
            multiply_tile(t, step, vectors, last);
        part++;
        done += step;
        if (m <= 2 * step)
            t->next_a = NULL;
        else if (t->next_a && t->a_step == 1)
            t->next_a += step * t->a_row;
        else if (t->next_a)
            t->next_a = lines + done / LANES * LANES + part % of_line * (t->k / of_line) * t->a_step;
        if (t->next_b) t->next_b = part < parts ? t->next_b + t->k / parts * t->next_b_step : NULL;
        t->a += step * t->a_row;
        t->s = t->c += step * t->c_row;
    }
    if (m > MR) {
        multiply_tile(t, SMALL_MR, vectors, last);
        t->a += SMALL_MR * t->a_row;
        t->s = t->c += SMALL_MR * t->c_row;
        m -= SMALL_MR;
    }
    switch (m) {
    case 1: multiply_tile(t, 1, vectors, last); break;
    case 2: multiply_tile(t, 2, vectors, last); break;
    case 3: multiply_tile(t, 3, vectors, last); break;
    case 4: multiply_tile(t, 4, vectors, last); break;
    case 5: multiply_tile(t, 5, vectors, last); break;
    case 6: multiply_tile(t, 6, vectors, last); break;
    default: break;
    }
}

/* Tiles of six rows read B less often, which matters where a strip of it is larger than the first-level cache. */
static inline int rows_of_strip(const struct cpu_tile *t) {
    enum { DEEP = 48 };
    return t->k < DEEP ? SMALL_MR : MR;
}

static __attribute__((noinline)) void multiply_rows_of_four(struct cpu_tile *t, int m) {
    if (t->n == NR)
        multiply_wide_strip(t, m, 4, 0xffff, SMALL_MR);
    else if (t->n > 3 * LANES)
        multiply_wide_strip(t, m, 4, last_mask(t->n), SMALL_MR);
    else
        multiply_wide_strip(t, m, 3, last_mask(t->n), SMALL_MR);
}

static __attribute__((noinline)) void multiply_rows_of_six(struct cpu_tile *t, int m) {
    if (t->n == NR)
        multiply_wide_strip(t, m, 4, 0xffff, MR);
    else if (t->n > 3 * LANES)
        multiply_wide_strip(t, m, 4, last_mask(t->n), MR);
    else
        multiply_wide_strip(t, m, 3, last_mask(t->n), MR);
}

/* A strip of at most NR columns. */
static __attribute__((noinline)) void multiply_strip(struct cpu_tile *t, int m) {
    if (t->n > TALL_NR && rows_of_strip(t) == MR)
        multiply_rows_of_six(t, m);
    else if (t->n > TALL_NR)
        multiply_rows_of_four(t, m);
    else
        for (int tiles = (m + TALL_MR - 1) / TALL_MR; m > 0; m -= t->m, tiles--) {
            t->m = (m + tiles - 1) / tiles;
            multiply(t);
            t->a += t->m * t->a_row;
            t->s = t->c += t->m * t->c_row;
        }
}

/* The first tile of a wide strip whose columns of B are contiguous. B's rows are made in `copy` four at a time, some
 * steps before they are used here, or reading them would have to wait for their writing: so making them hides behind
 * multiply-adds. */
static inline __attribute__((always_inline)) void
multiply_and_transpose(const struct cpu_tile *t, float *copy, int64_t b_col, const int vectors, const __mmask16 last) {
    enum { AHEAD = 8 };
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step;
    const int terms = (int)t->k;
    const float *a = t->a, *b = copy;
    __m512 sum[TALL_MR][VECTORS];
    CPU_UNROLL
    for (int i = 0; i < SMALL_MR; i++) {
        CPU_UNROLL
        for (int v = 0; v < vectors; v++) sum[i][v] = _mm512_setzero_ps();
    }
    for (int p = -AHEAD; p < terms; p += 4) {
        float *to = copy + (p + AHEAD) * b_step;
        const float *from = t->b + p + AHEAD;
        CPU_UNROLL
        for (int q = 0; q < 4; q++) {
            const int columns = t->n - q * LANES, left = terms - p - AHEAD;
            if (columns >= LANES && left >= 4) {
                transpose_8x4(to, b_step, from, b_col, true, 8, 4);
                transpose_8x4(to + 8, b_step, from + 8 * b_col, b_col, true, 8, 4);
            } else if (columns > 0 && left > 0)
                transpose(to, b_step, from, b_col, columns < LANES ? columns : LANES, left < 4 ? left : 4);
            to += LANES;
            from += LANES * b_col;
            if (p < 0 || p + q >= terms) continue;
            __m512 row[VECTORS];
            load_row(row, b, vectors, last, false);
            CPU_UNROLL
            for (int i = 0; i < SMALL_MR; i++) {
                CPU_UNROLL
                for (int v = 0; v < vectors; v++)
                    sum[i][v] = _mm512_fmadd_ps(_mm512_set1_ps(a[i * a_row]), row[v], sum[i][v]);
            }
            a += a_step;
            b += b_step;
        }
    }
    store_tile(sum, t, SMALL_MR, vectors, last);
}

static __attribute__((noinline)) void multiply_first_tile(const struct cpu_tile *t, float *copy, int64_t b_col) {
    if (t->n == NR)
        multiply_and_transpose(t, copy, b_col, 4, 0xffff);
    else if (t->n > 3 * LANES)
        multiply_and_transpose(t, copy, b_col, 4, last_mask(t->n));
    else
        multiply_and_transpose(t, copy, b_col, 3, last_mask(t->n));
}

/* How many of the columns left the next strip has: a few beyond whole vectors are left to a strip of half a vector,
 * which takes half the time. */
static inline int strip_width(int left) {
    const int over = left % LANES;
    if (left >= NR) return NR;
    return left > LANES && over && over <= LANES / 2 ? left - over : left;
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
        t->n = strip_width(n - j);
        t->a = a;
        t->b = b + j * b_col;
        t->b_step = (t->n + 7) / 8 * 8;
        t->s = t->c = c + j;
        int done = 0;
        touch_rows(t->b, t->n, t->k, b_col);
        if (t->n > TALL_NR && m >= SMALL_MR && t->k <= CPU_CHAIN) {
            multiply_first_tile(t, copy, b_col);
            done = SMALL_MR;
        } else
            transpose(copy, t->b_step, t->b, b_col, t->n, (int)t->k);
        t->a += done * t->a_row;
        t->b = copy;
        t->s = t->c += done * t->c_row;
        multiply_strip(t, m - done);
    }
}

static void multiply_strips(struct cpu_tile *t) {
    enum { DEPTH_WORTH_FETCHING = 16 };
    const int m = t->m, n = t->n, rows = rows_of_strip(t);
    const float *const a = t->a, *const b = t->b;
    float *const c = t->c;
    const bool fetches = t->k >= DEPTH_WORTH_FETCHING, contiguous = t->a_step == 1, is_used_once = m <= TALL_MR;
    t->next_a_row = contiguous ? t->a_row : t->a_step;
    t->next_a_step = contiguous ? CPU_FETCH_STEPS : rows * t->a_step;
    t->next_b_step = t->b_step;
    t->next_b_rows = cpu_fetch_rows(m / rows);
    for (int j = 0; j < n; j += t->n) {
        t->n = strip_width(n - j);
        t->a = a;
        t->b = b + j;
        t->whole = is_used_once && t->b_step == n ? cpu_whole_steps(t, LANES, t->k * n - j) : 0;
        t->s = t->c = c + j;
        t->next_a = !fetches || j                ? NULL
                    : contiguous && m > rows     ? a + rows * t->a_row
                    : t->a_row == 1 && m > LANES ? a + LANES
                                                 : NULL;
        t->next_b = fetches && n - j >= 2 * NR ? t->b + NR : NULL;
        multiply_strip(t, m);
    }
}

#include "cpu/few_terms.h"

static void multiply_whole(struct cpu_tile *t, int64_t b_col) {
    if (has_few_terms(t, b_col)) {
        multiply_few_terms(t, b_col);
        return;
    }
    const bool one_tile = t->m <= TALL_MR && t->n <= TALL_NR;
    if (b_col == 1 && one_tile) {
        t->whole = t->b_step == t->n ? cpu_whole_steps(t, LANES, t->k * t->n) : 0;
        multiply(t);
    } else if (b_col == 1)
        multiply_strips(t);
    else if (one_tile)
        multiply_transposed_tile(t, b_col);
    else
        multiply_transposed_strips(t, b_col);
}

const struct cpu_kernel cpu_kernel_avx512 = {.name = "avx512",
                                             .needs = CPU_AVX512F | CPU_AVX512VL | CPU_FMA,
                                             .mr = MR,
                                             .nr = NR,
                                             .tall_mr = TALL_MR,
                                             .tall_nr = TALL_NR,
                                             .lanes = LANES,
                                             .mc = MC,
                                             .nc = NC,
                                             .kc = KC,
                                             .multiply = multiply,
                                             .multiply_and_pack = multiply_and_pack,
                                             .transpose = transpose,
                                             .multiply_row = multiply_row,
                                             .multiply_few = multiply_few_or_by_chains,
                                             .few_rows = CPU_MANY_ROWS,
                                             .multiply_dots = multiply_dots,
                                             .multiply_row_in_order = multiply_row_in_order,
                                             .multiply_whole = multiply_whole};
