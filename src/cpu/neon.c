/* neon.c: the microkernel of 64-bit ARM, whose processors all have it.
 *
 * Tile 6 x 16: 6 rows of A against four vectors of 4 columns of B. Of the 32 vector registers 24 hold sums, four the
 * row of B and one the element of A, which the multiply-add takes from a lane. A step of K is 24 multiply-adds on at
 * most 10 loads: where two to four are done a cycle, with latencies of up to four, 24 chains keep them busy.
 *
 * Edges: one body per number of rows; a tile of fewer than 16 columns reads and writes the last of them one by one.
 */
#include <arm_neon.h>
#include <assert.h>

#include "cpu/kernel.h"

enum { MR = 6, NR = 16, MC = 3072, NC = 256, KC = 384, LANES = 4, VECTORS = NR / LANES };

static_assert(MR * VECTORS + VECTORS + 1 <= 32, "the sums, the row of B and the element of A are in registers");
static_assert(MR * NR <= CPU_TILE_FLOATS, "loops.c buffers a tile");
static_assert(CPU_BLOCKS_ARE_WHOLE_TILES(MR, NR, MC, NC), "only the last panel of a matrix is padded");
static_assert(CPU_BLOCKS_FIT_CACHES(MR, MC, NC, KC), "see kernel.h");

/* The first `count` lanes, or all; none of the others is read. */
static inline float32x4_t load_first(const float *from, int count) {
    if (count >= LANES) return vld1q_f32(from);
    float32x4_t x = vdupq_n_f32(0);
    if (count > 0) x = vld1q_lane_f32(from, x, 0);
    if (count > 1) x = vld1q_lane_f32(from + 1, x, 1);
    if (count > 2) x = vld1q_lane_f32(from + 2, x, 2);
    return x;
}

static inline void store_first(float *to, float32x4_t x, int count) {
    if (count >= LANES) {
        vst1q_f32(to, x);
        return;
    }
    if (count > 0) vst1q_lane_f32(to, x, 0);
    if (count > 1) vst1q_lane_f32(to + 1, x, 1);
    if (count > 2) vst1q_lane_f32(to + 2, x, 2);
}

/* rows is a constant wherever this is inlined, and columns too where the tile is whole, so that the loops unroll and
 * the sums are registers. */
static inline __attribute__((always_inline)) void multiply_tile(const struct cpu_tile *t, const int rows,
                                                                const int columns) {
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step;
    const int64_t chain = cpu_chain(t->k);
    float32x4_t sum[MR][VECTORS], partial[MR][VECTORS]; /* of this chain, and of those before */
    CPU_WRITTEN_BEFORE_READ(partial);
    CPU_UNROLL
    for (int i = 0; i < rows; i++) {
        CPU_UNROLL
        for (int v = 0; v < VECTORS; v++) sum[i][v] = vdupq_n_f32(0);
        __builtin_prefetch(t->c + i * t->c_row);
    }
    const float *a = t->a, *b = t->b;
    for (int64_t left = t->k; left > 0;) {
        const int64_t end = left > chain ? left - chain : 0;
        const bool is_first = left == t->k;
        for (; left > end; left--, a += a_step, b += b_step) {
            float32x4_t row[VECTORS];
            CPU_UNROLL
            for (int v = 0; v < VECTORS; v++) row[v] = load_first(b + v * LANES, columns - v * LANES);
            CPU_UNROLL
            for (int i = 0; i < rows; i++) {
                const float x = a[i * a_row];
                CPU_UNROLL
                for (int v = 0; v < VECTORS; v++) sum[i][v] = vfmaq_n_f32(sum[i][v], row[v], x);
            }
        }
        CPU_UNROLL
        for (int i = 0; i < rows; i++) {
            CPU_UNROLL
            for (int v = 0; v < VECTORS; v++) {
                if (!is_first) sum[i][v] = vaddq_f32(partial[i][v], sum[i][v]);
                if (!end) continue;
                partial[i][v] = sum[i][v];
                sum[i][v] = vdupq_n_f32(0);
            }
        }
    }
    const float32x4_t alpha = vdupq_n_f32(t->alpha), beta = vdupq_n_f32(t->beta);
    const bool adds = t->beta != 0;
    CPU_UNROLL
    for (int i = 0; i < rows; i++) {
        CPU_UNROLL
        for (int v = 0; v < VECTORS; v++) {
            const int count = columns - v * LANES;
            float32x4_t result = vmulq_f32(alpha, sum[i][v]);
            if (adds) {
                const float32x4_t addend = load_first(t->s + i * t->s_row + v * LANES, count);
                result = vfmaq_f32(vmulq_f32(beta, addend), alpha, sum[i][v]);
            }
            store_first(t->c + i * t->c_row + v * LANES, result, count);
        }
    }
}

static inline __attribute__((always_inline)) void multiply_rows(const struct cpu_tile *t, const int rows) {
    if (t->n == NR)
        multiply_tile(t, rows, NR);
    else
        multiply_tile(t, rows, t->n);
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

/* ---- One row of C ------------------------------------------------------------------------------------------------ */

typedef float32x4_t vector;

static inline vector zeros(void) { return vdupq_n_f32(0); }
static inline vector every(float x) { return vdupq_n_f32(x); }
static inline vector load(const float *from) { return vld1q_f32(from); }
static inline void store(float *to, vector x) { vst1q_f32(to, x); }
static inline vector multiply_add(vector x, vector y, vector sum) { return vfmaq_f32(sum, x, y); }
static inline vector product(vector x, vector y) { return vmulq_f32(x, y); }
static inline vector add(vector x, vector y) { return vaddq_f32(x, y); }
static inline float sum_lanes(vector x) { return vaddvq_f32(x); }

#include "cpu/row.h"

const struct cpu_kernel cpu_kernel_neon = {.name = "neon",
                                           .mr = MR,
                                           .nr = NR,
                                           .lanes = LANES,
                                           .mc = MC,
                                           .nc = NC,
                                           .kc = KC,
                                           .multiply = multiply,
                                           .multiply_row = multiply_row};
