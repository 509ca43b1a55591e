/* neon.c: the microkernel of 64-bit ARM, whose processors all have it, of tiles as tile.h computes them.
 *
 * Tile 6 x 16: 6 rows of A against four vectors of 4 columns of B. Of the 32 vector registers 24 hold sums, four the
 * row of B and one the element of A, which the multiply-add takes from a lane. A step of K is 24 multiply-adds on at
 * most 10 loads: where two to four are done a cycle, with latencies of up to four, 24 chains keep them busy. Tiles of
 * at most 12, 8 and 4 columns are three vectors against up to 8 rows, two against 12, and one against 12.
 */
#include <arm_neon.h>
#include <assert.h>

#include "cpu/kernel.h"

enum { MR = 6, NR = 16, MC = 3072, NC = 256, KC = 384, LANES = 4, VECTORS = NR / LANES, TALL_MR = 2 * MR };
enum { FEW_TERMS = 14, FEW_TERMS_OF_TWO = 14, FEW_TERMS_OF_WIDE = 12 }; /* as for AVX2: not measured */

static_assert(MR * VECTORS + VECTORS + 1 <= 32, "the sums, the row of B and the element of A are in registers");
static_assert(CPU_BLOCKS_ARE_WHOLE_TILES(MR, NR, MC, NC), "only the last panel of a matrix is padded");
static_assert(CPU_BLOCKS_FIT_CACHES(MR, MC, NC, KC), "see kernel.h");

typedef float32x4_t vector;

static inline vector zeros(void) { return vdupq_n_f32(0); }
static inline vector every(float x) { return vdupq_n_f32(x); }
static inline vector load(const float *from) { return vld1q_f32(from); }
static inline vector load_half(const float *from) { return vcombine_f32(vld1_f32(from), vdup_n_f32(0)); }
static inline void store(float *to, vector x) { vst1q_f32(to, x); }
static inline void store_half(float *to, vector x) { vst1_f32(to, vget_low_f32(x)); }
static inline vector multiply_add(vector x, vector y, vector sum) { return vfmaq_f32(sum, x, y); }
static inline vector scale_add(float x, vector y, vector sum) { return vfmaq_n_f32(sum, y, x); }
static inline vector product(vector x, vector y) { return vmulq_f32(x, y); }
static inline vector add(vector x, vector y) { return vaddq_f32(x, y); }
static inline float sum_lanes(vector x) { return vaddvq_f32(x); }
static inline void sum_lanes_of_four(const vector x[4], float sums[4]) {
    store(sums, vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])));
}

static inline vector load_first(const float *from, int count) {
    if (count >= LANES) return load(from);
    vector x = zeros();
    if (count > 0) x = vld1q_lane_f32(from, x, 0);
    if (count > 1) x = vld1q_lane_f32(from + 1, x, 1);
    if (count > 2) x = vld1q_lane_f32(from + 2, x, 2);
    return x;
}

/* Without branches: lanes beyond the last are it again. */
static inline vector load_some(const float *from, int count) {
    const vector x = vld1q_lane_f32(from + (count > 1), vld1q_dup_f32(from), 1);
    return vld1q_lane_f32(from + count - 1, x, 2);
}

static inline void store_first(float *to, vector x, int count) {
    if (count >= LANES) {
        store(to, x);
        return;
    }
    if (count > 0) vst1q_lane_f32(to, x, 0);
    if (count > 1) vst1q_lane_f32(to + 1, x, 1);
    if (count > 2) vst1q_lane_f32(to + 2, x, 2);
}

static inline void store_some(float *to, vector x, int count) { store_first(to, x, count); }

/* Squares of 2 x 2 elements first. */
static inline __attribute__((always_inline)) void transpose_square(vector x[LANES]) {
    const float32x4x2_t low = vtrnq_f32(x[0], x[1]), high = vtrnq_f32(x[2], x[3]);
    x[0] = vcombine_f32(vget_low_f32(low.val[0]), vget_low_f32(high.val[0]));
    x[1] = vcombine_f32(vget_low_f32(low.val[1]), vget_low_f32(high.val[1]));
    x[2] = vcombine_f32(vget_high_f32(low.val[0]), vget_high_f32(high.val[0]));
    x[3] = vcombine_f32(vget_high_f32(low.val[1]), vget_high_f32(high.val[1]));
}

static inline __attribute__((always_inline)) void load_square(vector x[LANES], const float *from, int64_t apart) {
    CPU_UNROLL
    for (int i = 0; i < LANES; i++) x[i] = load(from + i * apart);
    transpose_square(x);
}

#include "cpu/tile.h"

static __attribute__((noinline)) void multiply_4_vectors(const struct cpu_tile *t) { multiply_rows(t, 4); }
static __attribute__((noinline)) void multiply_3_vectors(const struct cpu_tile *t) { multiply_rows(t, 3); }
static __attribute__((noinline)) void multiply_2_vectors(const struct cpu_tile *t) { multiply_rows(t, 2); }
static __attribute__((noinline)) void multiply_1_vector(const struct cpu_tile *t) { multiply_rows(t, 1); }

static void multiply(const struct cpu_tile *t) {
    if (t->n > 3 * LANES)
        multiply_4_vectors(t);
    else if (t->n > 2 * LANES)
        multiply_3_vectors(t);
    else if (t->n > LANES)
        multiply_2_vectors(t);
    else
        multiply_1_vector(t);
}

enum { VECTOR_REGISTERS = 32 };

#include "cpu/dots.h"
#include "cpu/few_rows.h"

const struct cpu_kernel cpu_kernel_neon = {.name = "neon",
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
