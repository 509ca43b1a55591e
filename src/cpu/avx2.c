/* avx2.c: the AVX2 and FMA microkernel, of tiles as tile.h computes them.
 *
 * Tile 6 x 16: 6 rows of A against two vectors of 8 columns of B. Of the 16 vector registers 12 hold sums, two the row
 * of B and one the element of A being broadcast. The 12 chains cover two multiply-add units of at most five cycles'
 * latency. At most eight columns are one vector, against up to 12 rows.
 */
#include <assert.h>
#include <immintrin.h>

#include "cpu/kernel.h"

enum { MR = 6, NR = 16, MC = 3072, NC = 256, KC = 512, LANES = 8, VECTORS = NR / LANES, TALL_MR = 2 * MR };
enum { FEW_TERMS = 14, FEW_TERMS_OF_TWO = 14, FEW_TERMS_OF_WIDE = 12 };

static_assert(MR * VECTORS + VECTORS + 1 <= 16, "the sums, the row of B and the broadcast are in registers");
static_assert(TALL_MR + 1 + 1 + 1 <= 16, "so are those of a tall tile, and its mask");
static_assert(CPU_BLOCKS_ARE_WHOLE_TILES(MR, NR, MC, NC), "only the last panel of a matrix is padded");
static_assert(CPU_BLOCKS_FIT_CACHES(MR, MC, NC, KC), "see kernel.h");

typedef __m256 vector;

/* A vector whose first `count` lanes, 0 to 8, have the sign bit set: what vmaskmov asks for. */
static inline __m256i mask_of(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vector zeros(void) { return _mm256_setzero_ps(); }
static inline vector every(float x) { return _mm256_set1_ps(x); }
static inline vector load(const float *from) { return _mm256_loadu_ps(from); }
static inline vector load_half(const float *from) { return _mm256_zextps128_ps256(_mm_loadu_ps(from)); }
static inline vector load_first(const float *from, int count) { return _mm256_maskload_ps(from, mask_of(count)); }
static inline vector load_some(const float *from, int count) { return load_first(from, count); }
static inline void store(float *to, vector x) { _mm256_storeu_ps(to, x); }
static inline void store_half(float *to, vector x) { _mm_storeu_ps(to, _mm256_castps256_ps128(x)); }
static inline vector multiply_add(vector x, vector y, vector sum) { return _mm256_fmadd_ps(x, y, sum); }
static inline vector scale_add(float x, vector y, vector sum) { return _mm256_fmadd_ps(_mm256_set1_ps(x), y, sum); }
static inline vector product(vector x, vector y) { return _mm256_mul_ps(x, y); }
static inline vector add(vector x, vector y) { return _mm256_add_ps(x, y); }

static inline void store_first(float *to, vector x, int count) { _mm256_maskstore_ps(to, mask_of(count), x); }

/* In parts: a store under a mask takes some processors as long as a dozen others. */
static inline void store_some(float *to, vector x, int count) {
    __m128 part = _mm256_castps256_ps128(x);
    if (count & 4) {
        _mm_storeu_ps(to, part);
        part = _mm256_extractf128_ps(x, 1);
        to += 4;
    }
    if (count & 2) {
        _mm_storel_pi((__m64 *)to, part);
        part = _mm_movehl_ps(part, part);
        to += 2;
    }
    if (count & 1) _mm_store_ss(to, part);
}

/* Halves are added until one lane is left. */
static inline float sum_lanes(vector x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline void sum_lanes_of_four(const vector x[4], float sums[4]) {
    const vector four01 = add(_mm256_permute2f128_ps(x[0], x[1], 0x20), _mm256_permute2f128_ps(x[0], x[1], 0x31));
    const vector four23 = add(_mm256_permute2f128_ps(x[2], x[3], 0x20), _mm256_permute2f128_ps(x[2], x[3], 0x31));
    const vector two = add(_mm256_shuffle_ps(four01, four23, 0x44), _mm256_shuffle_ps(four01, four23, 0xee));
    const vector one = add(_mm256_shuffle_ps(two, two, 0x88), _mm256_shuffle_ps(two, two, 0xdd));
    _mm_storeu_ps(sums, _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1)));
}

/* Squares of 4 x 4 elements in each half of four vectors. */
static inline __attribute__((always_inline)) void transpose_halves(vector x[4]) {
    const vector low01 = _mm256_unpacklo_ps(x[0], x[1]), high01 = _mm256_unpackhi_ps(x[0], x[1]);
    const vector low23 = _mm256_unpacklo_ps(x[2], x[3]), high23 = _mm256_unpackhi_ps(x[2], x[3]);
    x[0] = _mm256_shuffle_ps(low01, low23, 0x44);
    x[1] = _mm256_shuffle_ps(low01, low23, 0xee);
    x[2] = _mm256_shuffle_ps(high01, high23, 0x44);
    x[3] = _mm256_shuffle_ps(high01, high23, 0xee);
}

static inline __attribute__((always_inline)) void transpose_square(vector x[LANES]) {
    vector y[LANES];
    CPU_UNROLL
    for (int i = 0; i < LANES; i += 4) {
        const vector low01 = _mm256_unpacklo_ps(x[i], x[i + 1]), high01 = _mm256_unpackhi_ps(x[i], x[i + 1]);
        const vector low23 = _mm256_unpacklo_ps(x[i + 2], x[i + 3]), high23 = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
        y[i] = _mm256_shuffle_ps(low01, low23, 0x44);
        y[i + 1] = _mm256_shuffle_ps(low01, low23, 0xee);
        y[i + 2] = _mm256_shuffle_ps(high01, high23, 0x44);
        y[i + 3] = _mm256_shuffle_ps(high01, high23, 0xee);
    }
    CPU_UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x31);
    }
}

/* Halves are loaded to where they belong, which takes fewer shuffles. */
static inline __attribute__((always_inline)) void load_square(vector x[LANES], const float *from, int64_t apart) {
    CPU_UNROLL
    for (int half = 0; half < LANES; half += 4) {
        CPU_UNROLL
        for (int i = 0; i < 4; i++)
            x[half + i] = _mm256_insertf128_ps(load_half(from + i * apart + half),
                                               _mm_loadu_ps(from + (i + 4) * apart + half), 1);
        transpose_halves(x + half);
    }
}

#include "cpu/tile.h"

static __attribute__((noinline)) void multiply_wide_tile(const struct cpu_tile *t) { multiply_rows(t, 2); }

static __attribute__((noinline)) void multiply_tall_tile(const struct cpu_tile *t) { multiply_rows(t, 1); }

static void multiply(const struct cpu_tile *t) {
    if (t->n > LANES)
        multiply_wide_tile(t);
    else
        multiply_tall_tile(t);
}

enum { VECTOR_REGISTERS = 16 };

#include "cpu/dots.h"
#include "cpu/few_rows.h"

const struct cpu_kernel cpu_kernel_avx2 = {.name = "avx2",
                                           .needs = CPU_AVX2 | CPU_FMA,
                                           .mr = MR,
                                           .nr = NR,
                                           .lanes = LANES,
                                           .mc = MC,
                                           .nc = NC,
                                           .kc = KC,
                                           .multiply = multiply,
                                           .transpose = transpose,
                                           .multiply_row = multiply_row,
                                           .multiply_few = multiply_few,
                                           .few_rows = CPU_GROUPED_ROWS,
                                           .multiply_dots = multiply_dots,
                                           .multiply_row_in_order = multiply_row_in_order,
                                           .multiply_whole = multiply_whole};
