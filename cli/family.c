/* family.c: families of matrices, and shapes. */
#include "family.h"

#include <float.h>
#include <math.h>
#include <string.h>

static float random_sign(random_source *r) { return random_bits(r) & 1 ? 1.0f : -1.0f; }

static float random_signed(random_source *r) { return 2 * random_uniform(r) - 1; }

static void fill_uniform(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    random_fill_uniform(r, a, m * k);
    random_fill_uniform(r, b, k * n);
}

static void fill_normal(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m * k; i++) a[i] = random_normal(r);
    for (int64_t i = 0; i < k * n; i++) b[i] = random_normal(r);
}

/* Each element has its own exponent, from -reach to reach. */
static void fill_exponents(random_source *r, float *x, int64_t count, int reach) {
    for (int64_t i = 0; i < count; i++) {
        float significand = (1 + random_uniform(r)) * random_sign(r);
        x[i] = ldexpf(significand, (int)random_below(r, 2 * reach + 1) - reach);
    }
}

static void fill_exponents_20(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    fill_exponents(r, a, m * k, 20);
    fill_exponents(r, b, k * n, 20);
}

static void fill_exponents_60(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    fill_exponents(r, a, m * k, 60);
    fill_exponents(r, b, k * n, 60);
}

/* Column p of A times 2^e, row p of B times 2^-e: every term matters, however unlike the factors. */
static void fill_graded(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    for (int64_t p = 0; p < k; p++) {
        int exponent = (int)random_below(r, 121) - 60;
        for (int64_t i = 0; i < m; i++) a[i * k + p] = ldexpf(random_signed(r), exponent);
        for (int64_t j = 0; j < n; j++) b[p * n + j] = ldexpf(random_signed(r), -exponent);
    }
}

/* Of three parts of k the second is 2^-40 of the others in B, the third in A. A few columns of B have the third part
 * alone, a few rows of A the second: next to results of ordinary size stand some that are made of small terms. */
static void fill_small_beside_large(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    int64_t second = k - k / 3 * 2, third = k - k / 3;
    fill_normal(r, a, b, m, n, k);
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < k; p++) {
            if (p >= third) a[i * k + p] *= 0x1p-40f;
            if (i % 37 == 5 && (p < second || p >= third)) a[i * k + p] = 0;
        }
    for (int64_t p = 0; p < k; p++)
        for (int64_t j = 0; j < n; j++) {
            if (p >= second && p < third) b[p * n + j] *= 0x1p-40f;
            if (j % 37 == 3 && p < third) b[p * n + j] = 0;
        }
}

/* The second half of the sum nearly takes back the first. */
static void fill_cancelling(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    int64_t half = k / 2;
    fill_uniform(r, a, b, m, n, k);
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < half; p++) a[i * k + half + p] = -a[i * k + p] * (1 + 0x1p-20f * random_signed(r));
    for (int64_t p = 0; p < half; p++) memcpy(b + (half + p) * n, b + p * n, (size_t)n * sizeof *b);
}

/* Small enough that every sum is an integer below 2^24, so that any order of additions is exact. */
static void fill_integers(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    int64_t largest = (int64_t)sqrt(0x1p24 / (double)(k > 256 ? k : 256));
    for (int64_t i = 0; i < m * k; i++) a[i] = (float)(random_below(r, 2 * largest + 1) - largest);
    for (int64_t i = 0; i < k * n; i++) b[i] = (float)(random_below(r, 2 * largest + 1) - largest);
}

static void scale(float *x, int64_t count, float factor) {
    for (int64_t i = 0; i < count; i++) x[i] *= factor;
}

/* Integers times the smallest subnormal: exact still, unless subnormals are flushed. */
static void fill_subnormal_operands(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    fill_integers(r, a, b, m, n, k);
    scale(a, m * k, 0x1p-149f);
}

/* The same, but only the results are that small. */
static void fill_subnormal_results(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    fill_integers(r, a, b, m, n, k);
    scale(a, m * k, 0x1p-75f);
    scale(b, k * n, 0x1p-74f);
}

/* Integers; every third row of A and column of B is zero, and every other element of the rest. Zeros of both signs. */
static void fill_zeros(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    fill_integers(r, a, b, m, n, k);
    for (int64_t i = 0; i < m * k; i++)
        if (i / k % 3 == 0 || random_bits(r) & 1) a[i] = copysignf(0, random_sign(r));
    for (int64_t i = 0; i < k * n; i++)
        if (i % n % 3 == 0 || random_bits(r) & 1) b[i] = copysignf(0, random_sign(r));
}

/* In each row of A one element, the largest or the least normal number, times 0, 1/2, 1 or 2: each result is one
 * product, exact or past the end of the range and so infinite. */
static void fill_range_ends(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    static const float factors[] = {0, 0.5f, 1, 2};
    memset(a, 0, (size_t)(m * k) * sizeof *a);
    for (int64_t i = 0; i < m; i++)
        a[i * k + random_below(r, k)] = random_sign(r) * (random_bits(r) & 1 ? FLT_MAX : FLT_MIN);
    for (int64_t i = 0; i < k * n; i++) b[i] = random_sign(r) * factors[random_below(r, 4)];
}

/* NaN, both infinities and an infinity against zeros, in random places. */
static void fill_nonfinite(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m * k; i++) a[i] = random_signed(r);
    for (int64_t i = 0; i < k * n; i++) b[i] = random_signed(r);
    a[random_below(r, m * k)] = INFINITY;
    a[random_below(r, m * k)] = -INFINITY;
    a[random_below(r, m * k)] = NAN;
    b[random_below(r, k * n)] = -INFINITY;
    int64_t p = random_below(r, k);
    a[random_below(r, m) * k + p] = INFINITY;
    for (int64_t j = 0; j < n; j += 2) b[p * n + j] = 0;
}

/* With alpha = 0 neither A nor B may be read, so that these leave no trace. */
static void fill_nan(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    (void)r;
    for (int64_t i = 0; i < m * k; i++) a[i] = NAN;
    for (int64_t i = 0; i < k * n; i++) b[i] = NAN;
}

const family families[FAMILY_TOTAL] = {
    {"uniform", ORDINARY, fill_uniform, false, false, 1, 0},
    {"normal", ORDINARY, fill_normal, false, false, 1, 0},
    {"integers", ORDINARY, fill_integers, true, false, 1, 0},
    {"alpha and beta", ORDINARY, fill_integers, true, false, -2, 3},
    {"exponents to 20", HARD, fill_exponents_20, false, false, 1, 0},
    {"exponents to 60", HARD, fill_exponents_60, false, false, 1, 0},
    {"graded", HARD, fill_graded, false, false, 1, 0},
    {"small beside large", HARD, fill_small_beside_large, false, false, 1, 0},
    {"cancelling", HARD, fill_cancelling, false, false, 1, 0},
    {"zeros", SPECIAL, fill_zeros, true, false, 1, 0},
    {"subnormal operands", SPECIAL, fill_subnormal_operands, true, true, 1, 0},
    {"subnormal results", SPECIAL, fill_subnormal_results, true, true, 1, 0},
    {"ends of the range", SPECIAL, fill_range_ends, true, true, 1, 0}, /* rounded to 11 bits, the largest overflows */
    {"NaN and Inf", SPECIAL, fill_nonfinite, false, false, 1, 0},
    {"alpha = 0", SPECIAL, fill_nan, true, false, 0, 0.5f},
};

/* Tiles with edges, a single row, a single column, long sums; then sizes at which a GPU's matrix engines are used. */
const shape shapes[SHAPE_TOTAL] = {
    {1, 1, 1, 0, QUICK},       {17, 31, 13, 3, QUICK},     {64, 64, 64, 0, QUICK},    {129, 127, 257, 5, QUICK},
    {1, 512, 700, 0, FULL},    {512, 1, 700, 0, FULL},     {33, 257, 2049, 0, FULL},  {256, 192, 1000, 8, FULL},
    {1031, 743, 517, 0, FULL}, {2048, 1536, 1024, 0, GPU}, {640, 1100, 8192, 4, GPU},
};

int shapes_within(scope limit) {
    int count = 0;
    for (int i = 0; i < SHAPE_TOTAL; i++) count += shapes[i].scope <= limit;
    return count;
}
