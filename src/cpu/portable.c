/* portable.c: the microkernel in plain C, for machines without a kernel of their own and as the oracle of the tests.
 *
 * Tile 4 x 8, small enough that a compiler keeps the sums in sixteen registers of four lanes. Where the target has no
 * fused multiply-add, a term is a product rounded and a sum rounded: one rounding more for each term than the
 * contract's chain, which its bound of K + 2 still covers (a term passes one product and at most K sums;
 * docs/internals/numerics.md).
 */
#include <assert.h>
#include <math.h>

#include "cpu/kernel.h"

enum { MR = 4, NR = 8, MC = 3072, NC = 256, KC = 384 };

static_assert(MR * NR / 4 + NR / 4 + 1 <= 16,
              "the sums, the row of B and the broadcast are in registers of four lanes");
static_assert(MR * NR <= CPU_TILE_FLOATS, "loops.c buffers a tile");
static_assert(CPU_BLOCKS_ARE_WHOLE_TILES(MR, NR, MC, NC), "only the last panel of a matrix is padded");
static_assert(CPU_BLOCKS_FIT_CACHES(MR, MC, NC, KC), "see kernel.h");

static inline float multiply_add(float x, float y, float sum) {
#ifdef FP_FAST_FMAF
    return fmaf(x, y, sum);
#else
    return x * y + sum;
#endif
}

static void multiply(const struct cpu_tile *t) {
    float sum[MR][NR] = {{0}};
    for (int64_t begin = 0, chain = cpu_chain(t->k); begin < t->k; begin += chain) {
        const int64_t end = begin + chain < t->k ? begin + chain : t->k;
        float of_chain[MR][NR] = {{0}};
        if (t->m == MR && t->n == NR) {
            for (int64_t p = begin; p < end; p++)
                for (int i = 0; i < MR; i++)
                    for (int j = 0; j < NR; j++)
                        of_chain[i][j] = multiply_add(t->a[i * t->a_row + p * t->a_step], t->b[p * t->b_step + j],
                                                      of_chain[i][j]);
        } else {
            for (int64_t p = begin; p < end; p++)
                for (int i = 0; i < t->m; i++)
                    for (int j = 0; j < t->n; j++)
                        of_chain[i][j] = multiply_add(t->a[i * t->a_row + p * t->a_step], t->b[p * t->b_step + j],
                                                      of_chain[i][j]);
        }
        for (int i = 0; i < t->m; i++)
            for (int j = 0; j < t->n; j++) sum[i][j] = begin ? sum[i][j] + of_chain[i][j] : of_chain[i][j];
    }
    for (int i = 0; i < t->m; i++)
        for (int j = 0; j < t->n; j++) {
            t->c[i * t->c_row + j] = t->beta == 0 ? t->alpha * sum[i][j]
                                                  : multiply_add(t->alpha, sum[i][j], t->beta * t->s[i * t->s_row + j]);
        }
}

const struct cpu_kernel cpu_kernel_portable = {
    .name = "portable", .mr = MR, .nr = NR, .lanes = 4, .mc = MC, .nc = NC, .kc = KC, .multiply = multiply};
