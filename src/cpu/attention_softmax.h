/* attention_softmax.h: struct cpu_softmax of attention_block.h in plain C, which the compiler makes vectors of. A file
 * for each instruction set includes it and names the struct. */
#ifndef TESSERA_CPU_ATTENTION_SOFTMAX_H
#define TESSERA_CPU_ATTENTION_SOFTMAX_H

#include <math.h>
#include <string.h>

#include "cpu/attention_block.h"

static inline float multiply_add(float x, float y, float sum) {
#ifdef FP_FAST_FMAF
    return fmaf(x, y, sum);
#else
    return x * y + sum;
#endif
}

/* 2^n, for -126 <= n <= 127. */
static inline float power_of_two(int32_t n) {
    const uint32_t bits = (uint32_t)(n + 127) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* e^x within 1.1 units in the last place; subnormals, 0, Inf and NaN as they should be. x = n ln 2 + r with
 * |r| <= ln(2)/2, n from the last bits of a sum with 3 * 2^22. ln 2 is cut in two, so that n times its first part is
 * exact. The polynomial is Cephes'. 2^n is applied in two steps because n may lie outside the range of exponents. */
static inline float exponential(float x) {
    enum { ROUNDER_BITS = 0x4b400000 };
    const float rounder = 0x1.8p23f;
    x = x < -104 ? -104 : x;
    x = x > 89 ? 89 : x;
    const float rounded = multiply_add(x, 0x1.715476p0f, rounder), n = rounded - rounder;
    const float r = multiply_add(n, 0x1.bd0106p-13f, multiply_add(n, -0x1.63p-1f, x));
    float y = 1.9875691500e-4f;
    y = multiply_add(y, r, 1.3981999507e-3f);
    y = multiply_add(y, r, 8.3334519073e-3f);
    y = multiply_add(y, r, 4.1665795894e-2f);
    y = multiply_add(y, r, 1.6666665459e-1f);
    y = multiply_add(y, r, 5.0000001201e-1f);
    y = multiply_add(y, r * r, r) + 1;
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    const int32_t exponent = (int32_t)(bits - ROUNDER_BITS), half = exponent >> 1;
    return y * power_of_two(half) * power_of_two(exponent - half);
}

static void score(float *restrict s, const float *restrict mask, float scale, int64_t count) {
    if (mask)
        for (int64_t i = 0; i < count; i++) s[i] = multiply_add(scale, s[i], mask[i]);
    else
        for (int64_t i = 0; i < count; i++) s[i] *= scale;
}

/* A NaN is no largest score, and makes the sum NaN. */
static void weigh(float *restrict s, int64_t keys, int64_t queries, float *restrict largest, float *restrict sum,
                  float *restrict shrink) {
    for (int64_t i = 0; i < queries; i++) shrink[i] = largest[i];
    for (int64_t j = 0; j < keys; j++)
        for (int64_t i = 0; i < queries; i++) {
            const float x = s[j * queries + i];
            largest[i] = x > largest[i] ? x : largest[i];
        }
    for (int64_t i = 0; i < queries; i++) {
        shrink[i] = exponential(shrink[i] - largest[i]);
        sum[i] *= shrink[i];
    }
    for (int64_t j = 0; j < keys; j++)
        for (int64_t i = 0; i < queries; i++) {
            const float x = exponential(s[j * queries + i] - largest[i]);
            s[j * queries + i] = x;
            sum[i] += x;
        }
}

static void reweigh(float *restrict s, int64_t keys, int64_t queries, const float *restrict lse, float *restrict sum) {
    for (int64_t j = 0; j < keys; j++)
        for (int64_t i = 0; i < queries; i++) {
            const float x = exponential(s[j * queries + i] - lse[i]);
            s[j * queries + i] = x;
            sum[i] += x;
        }
}

static void differentiate(float *restrict s, float *restrict d, const float *restrict keep, int64_t keys,
                          int64_t queries, const float *restrict inverse, const float *restrict dot) {
    for (int64_t j = 0; j < keys; j++)
        for (int64_t i = 0; i < queries; i++) {
            const int64_t at = j * queries + i;
            const float p = s[at] * inverse[i];
            if (keep) {
                d[at] = p * multiply_add(keep[at], d[at], -dot[i]);
                s[at] = p * keep[at];
            } else {
                d[at] = p * (d[at] - dot[i]);
                s[at] = p;
            }
        }
}

#endif
