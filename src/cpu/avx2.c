/* avx2.c: the AVX2 and FMA microkernel.
 *
 * Tile 6 x 16: 6 rows of A against two vectors of 8 columns of B. Of the 16 vector registers 12 hold sums, two the row
 * of B and one the element of A being broadcast. The 12 chains cover two multiply-add units of at most five cycles'
 * latency.
 *
 * Edges: one body per number of rows; a tile of fewer than 16 columns loads and stores them under a mask.
 */
#include <assert.h>
#include <immintrin.h>

#include "cpu/kernel.h"

enum { MR = 6, NR = 16, MC = 3072, NC = 256, KC = 512, LANES = 8 };

static_assert(NR == 2 * LANES, "multiply_tile keeps two vectors of B");
static_assert(MR * 2 + 3 <= 16, "the sums, the row of B and the broadcast are in registers");
static_assert(MR % 3 == 0, "multiply_tile addresses the rows of A in groups of three");
static_assert(MR * NR <= CPU_TILE_FLOATS, "loops.c buffers a tile");
static_assert(CPU_BLOCKS_ARE_WHOLE_TILES(MR, NR, MC, NC), "only the last panel of a matrix is padded");
static_assert(CPU_BLOCKS_FIT_CACHES(MR, MC, NC, KC), "see kernel.h");

/* A vector whose first `count` lanes, 0 to 8, have the sign bit set: what vmaskmov asks for. */
static inline __m256i mask_of(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* rows and whole are constants wherever this is inlined, so that the loops over rows unroll and the sums are registers.
 * whole: the tile has all its columns and needs no masks. */
static inline __attribute__((always_inline)) void multiply_tile(const struct cpu_tile *t, const int rows,
                                                                const bool whole) {
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step, c_row = t->c_row;
    float *const c = t->c;
    const __m256i mask0 = mask_of(t->n), mask1 = mask_of(t->n - LANES);
    const int64_t chain = cpu_chain(t->k);
    int64_t chain_end = t->k - chain;
    __m256 sum[MR][2], partial[MR][2]; /* of this chain, and of those before */
    CPU_WRITTEN_BEFORE_READ(partial);
    CPU_UNROLL
    for (int i = 0; i < rows; i++) {
        sum[i][0] = sum[i][1] = _mm256_setzero_ps();
    }

    /* Rows 3g, 3g+1 and 3g+2 are at group[g], + a_row, + 2*a_row: offsets the load instruction scales by itself. */
    const float *group[2] = {t->a, t->a + 3 * a_row}, *b = t->b;
    /* What is needed later is asked for now, a row of C and a line of each of the next rows of A at a time, some steps
     * of K apart, so that loads in between do not have to wait. */
    const float *next_a = t->next_a;
    int c_asked = 0;
    for (int64_t left = t->k; left > 0;) {
        if (c_asked < rows) {
            _mm_prefetch((const char *)(c + c_asked * c_row), _MM_HINT_T0);
            _mm_prefetch((const char *)(c + c_asked * c_row + t->n - 1), _MM_HINT_T0);
            c_asked++;
        }
        if (next_a) {
            CPU_UNROLL
            for (int i = 0; i < rows; i++) _mm_prefetch((const char *)(next_a + i * t->next_a_row), _MM_HINT_T1);
            next_a += t->next_a_step;
        }
        const bool more = next_a || c_asked < rows;
        const int64_t end = more && left > chain_end + CPU_FETCH_STEPS ? left - CPU_FETCH_STEPS : chain_end;
        for (; left > end; left--) {
            const __m256 row0 = whole ? _mm256_loadu_ps(b) : _mm256_maskload_ps(b, mask0);
            const __m256 row1 = whole ? _mm256_loadu_ps(b + LANES) : _mm256_maskload_ps(b + LANES, mask1);
            CPU_UNROLL
            for (int i = 0; i < rows; i++) {
                const __m256 x = _mm256_broadcast_ss(group[i / 3] + i % 3 * a_row);
                sum[i][0] = _mm256_fmadd_ps(x, row0, sum[i][0]);
                sum[i][1] = _mm256_fmadd_ps(x, row1, sum[i][1]);
            }
            group[0] += a_step;
            group[1] += a_step;
            b += b_step;
        }
        if (left > chain_end || chain == t->k) continue;
        CPU_UNROLL
        for (int i = 0; i < rows; i++) {
            CPU_UNROLL
            for (int v = 0; v < 2; v++) {
                if (left + chain < t->k) sum[i][v] = _mm256_add_ps(partial[i][v], sum[i][v]);
                if (!left) continue;
                partial[i][v] = sum[i][v];
                sum[i][v] = _mm256_setzero_ps();
            }
        }
        chain_end = left > chain ? left - chain : 0;
    }

    const __m256 alpha = _mm256_set1_ps(t->alpha), beta = _mm256_set1_ps(t->beta);
    const bool adds = t->beta != 0;
    CPU_UNROLL
    for (int i = 0; i < rows; i++) {
        float *const at = c + i * c_row;
        __m256 result0, result1;
        if (adds) {
            const float *const s = t->s + i * t->s_row;
            const __m256 addend0 = whole ? _mm256_loadu_ps(s) : _mm256_maskload_ps(s, mask0);
            const __m256 addend1 = whole ? _mm256_loadu_ps(s + LANES) : _mm256_maskload_ps(s + LANES, mask1);
            result0 = _mm256_fmadd_ps(alpha, sum[i][0], _mm256_mul_ps(beta, addend0));
            result1 = _mm256_fmadd_ps(alpha, sum[i][1], _mm256_mul_ps(beta, addend1));
        } else {
            result0 = _mm256_mul_ps(alpha, sum[i][0]);
            result1 = _mm256_mul_ps(alpha, sum[i][1]);
        }
        if (whole) {
            _mm256_storeu_ps(at, result0);
            _mm256_storeu_ps(at + LANES, result1);
        } else {
            _mm256_maskstore_ps(at, mask0, result0);
            _mm256_maskstore_ps(at + LANES, mask1, result1);
        }
    }
}

static inline __attribute__((always_inline)) void multiply_rows(const struct cpu_tile *t, const int rows) {
    if (t->n == NR)
        multiply_tile(t, rows, true);
    else
        multiply_tile(t, rows, false);
}

static void multiply(const struct cpu_tile *t) {
    switch (t->m) {
    case 1: multiply_rows(t, 1); break;
    case 2: multiply_rows(t, 2); break;
    case 3: multiply_rows(t, 3); break;
    case 4: multiply_rows(t, 4); break;
    case 5: multiply_rows(t, 5); break;
    default: multiply_rows(t, MR);
    }
}

/* ---- A few rows of C --------------------------------------------------------------------------------------------- */

typedef __m256 vector;

static inline vector zeros(void) { return _mm256_setzero_ps(); }
static inline vector every(float x) { return _mm256_set1_ps(x); }
static inline vector load(const float *from) { return _mm256_loadu_ps(from); }
static inline vector load_first(const float *from, int count) { return _mm256_maskload_ps(from, mask_of(count)); }
static inline void store(float *to, vector x) { _mm256_storeu_ps(to, x); }
static inline void store_first(float *to, vector x, int count) { _mm256_maskstore_ps(to, mask_of(count), x); }
static inline vector multiply_add(vector x, vector y, vector sum) { return _mm256_fmadd_ps(x, y, sum); }
static inline vector product(vector x, vector y) { return _mm256_mul_ps(x, y); }
static inline vector add(vector x, vector y) { return _mm256_add_ps(x, y); }

/* Halves are added until one lane is left. */
static inline float sum_lanes(vector x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Lanes of 4 x 4 elements first, in each half of a vector, then the halves. */
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
                                           .multiply_row = multiply_row,
                                           .multiply_few = multiply_few,
                                           .multiply_row_in_order = multiply_row_in_order};
