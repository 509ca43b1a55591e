/* split_model.c: the split arithmetic of the CUDA engine in plain C, so that its numerics are tested without a GPU.
 *
 * What pack.cu and the split kernels do to a row of A and a column of B: scales from a sample or from the largest
 * element, fp16 components, sums in tensor cores that align and truncate, promotion into float32, the correction sum,
 * scaling back. docs/internals/numerics.md derives what must hold; here it is checked, over all significands where that
 * is possible, and on the families of the contract elsewhere, against sums in long double:
 *
 *   representation   x*2^e = hi + lo*2^-11 + r, and how large lo and r may be
 *   bound            |C - AB| <= (K+2) 2^-24 (|A||B|) wherever the depths, or the size of the sum, allow the split
 *   depths           without these rules the bound would be broken; uniform and normal data never need them
 *   promotion        the error is float32's with it, and far larger without
 *   tf32             the hi components alone are no worse than TF32, on graded data too
 *
 * Operands are rows of length k: B is seen transposed, as in the panels. Names as in numerics.md: u = 2^-24.
 */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/cuda/kernels/args.h"

static const double U = 0x1p-24;

static int failures;

static void check(bool holds, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void check(bool holds, const char *format, ...) {
    if (holds) return;
    failures++;
    va_list arguments;
    va_start(arguments, format);
    printf("FAILED: ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

static void *zeroed(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) abort();
    return memory;
}

/* ---- Random numbers ---------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t random_bits(void) { /* splitmix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double random_unit(void) { return (double)(random_bits() >> 11) * 0x1p-53; } /* [0, 1) */
static int random_between(int low, int high) { return low + (int)(random_bits() % (uint64_t)(high - low + 1)); }

static float random_signed(void) { /* magnitude [1/2, 1) */
    const float sign = random_bits() & 1 ? 1.0f : -1.0f;
    return sign * (float)(0.5 + 0.5 * random_unit());
}

static float random_scaled(int low, int high) {
    const float x = random_signed();
    return ldexpf(x, random_between(low, high));
}

static float random_normal(void) {
    const double radius = sqrt(-2 * log(1 - random_unit()));
    return (float)(radius * cos(6.283185307179586 * random_unit()));
}

/* ---- fp16 -------------------------------------------------------------------------------------------------------- */

/* significand * 2^(exponent - 10), |significand| < 2^11. A subnormal has exponent -14, as the tensor cores see it. */
typedef struct half {
    int32_t significand;
    int32_t exponent;
} half;

enum { HALF_LEAST_EXPONENT = -14 };
static const float HALF_LEAST_NORMAL = 0x1p-14f, HALF_OVERFLOW = 65520.0f; /* at and above it rounds to infinity */

static float power_of_two(int e) {
    const uint32_t bits = (uint32_t)(e + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

static int exponent_of(float x) { /* of a normal x */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 23 & 0xff) - 127;
}

static float value_of(half h) { return (float)h.significand * power_of_two(h.exponent - 10); }

/* To nearest, ties to even; |x| below HALF_OVERFLOW. */
static half half_of(float x) {
    const int e = fabsf(x) < HALF_LEAST_NORMAL ? HALF_LEAST_EXPONENT : exponent_of(x);
    half h = {(int32_t)lrintf(x * power_of_two(10 - e)), e};
    if (abs(h.significand) == 1 << 11) {
        h.significand /= 2;
        h.exponent++;
    }
    return h;
}

/* ---- Splitting: pack.cu ------------------------------------------------------------------------------------------ */

enum { SAMPLES = 128, SAMPLE_RUN = 32 };
enum { SAMPLE_EXPONENT = 12, LARGEST_EXPONENT = 14, EXPONENT_LIMIT = 62 };

static int exponent_for(float largest, int target) {
    if (largest == 0) return 0;
    const int e = isinf(largest) ? -EXPONENT_LIMIT : target - exponent_of(largest);
    return e < -EXPONENT_LIMIT ? -EXPONENT_LIMIT : e > EXPONENT_LIMIT ? EXPONENT_LIMIT : e;
}

static int exponent_by_sample(const float *x, int k) {
    const int runs = SAMPLES / SAMPLE_RUN, room = k > SAMPLE_RUN ? k - SAMPLE_RUN : 0;
    float largest = 0;
    for (int run = 0; run < runs; run++)
        for (int i = 0; i < SAMPLE_RUN; i++) {
            const int at = (int)((int64_t)room * run / (runs - 1)) + i;
            largest = fmaxf(largest, fabsf(x[at < k ? at : k - 1]));
        }
    return largest == 0 ? (int)ALL_ZERO : exponent_for(largest, SAMPLE_EXPONENT);
}

/* By what did not fit with exponent e; the same e where all did. */
static int exponent_by_overflow(const float *x, int k, int e) {
    float largest = 0;
    for (int i = 0; i < k; i++)
        if (fabsf(x[i] * power_of_two(e)) >= HALF_OVERFLOW || e == ALL_ZERO) largest = fmaxf(largest, fabsf(x[i]));
    return largest > 0 ? exponent_for(largest, LARGEST_EXPONENT) : e;
}

/* How far an element lies below the least normal half, as a factor: 1 if it does not, infinite if it does not fit. */
static float depth_of(float x, int e) {
    const float scaled = fabsf(x * power_of_two(e));
    if (x == 0) return 1;
    if (!(scaled < HALF_OVERFLOW) || e == ALL_ZERO) return INFINITY; /* a row taken for zeros */
    return scaled >= HALF_LEAST_NORMAL ? 1 : HALF_LEAST_NORMAL / scaled;
}

static void split_element(float x, int e, half *hi, half *lo) {
    *hi = half_of(x * power_of_two(e));
    const float rest = fmaf(-value_of(*hi), power_of_two(-e), x);
    *lo = half_of(rest * power_of_two(e + SPLIT_LO_SHIFT));
}

/* The largest product of the depths of two panels with which k terms keep the bound. */
static float depth_limit(int k) { return ((float)k - (float)k / 32 - 76) / (16.1f + (float)k / 800); }

/* How large a sum, before it is scaled back, must be for each tiny element behind it where the depths are beyond
 * that. */
static float least_per_tiny(int k) {
    const float lost = 94 + (float)k / 24, left = (float)k + 2 - lost;
    return left > 0 ? 5 * lost / left : INFINITY;
}

static size_t padded(int k) { return (size_t)((k + SPLIT_K - 1) / SPLIT_K * SPLIT_K); }

typedef struct split_row {
    int exponent;
    float depth;
    int tiny;     /* elements with a depth above 1, counted each time the row is split */
    bool suspect; /* scaled by its largest element, which the sample's scale had no room for */
    half *hi, *lo;
} split_row;

static float row_depth(const float *x, int k, int e) {
    float depth = 1;
    for (int i = 0; i < k; i++) depth = fmaxf(depth, depth_of(x[i], e));
    return depth;
}

static int tiny_in_row(const float *x, int k, int e) {
    int tiny = 0;
    for (int i = 0; i < k; i++) tiny += depth_of(x[i], e) > 1 && depth_of(x[i], e) < INFINITY;
    return tiny;
}

static split_row split_row_of(const float *x, int k) {
    split_row row = {.exponent = exponent_by_sample(x, k)};
    row.depth = row_depth(x, k, row.exponent);
    row.tiny = tiny_in_row(x, k, row.exponent);
    if (isinf(row.depth)) {
        row.suspect = true;
        row.exponent = exponent_by_overflow(x, k, row.exponent);
        row.depth = row_depth(x, k, row.exponent);
        row.tiny += tiny_in_row(x, k, row.exponent);
    }
    if (isinf(row.depth)) return row;
    row.hi = zeroed(padded(k) * sizeof(half));
    row.lo = zeroed(padded(k) * sizeof(half));
    for (int i = 0; i < k; i++) split_element(x[i], row.exponent, &row.hi[i], &row.lo[i]);
    return row;
}

static void split_row_free(split_row *row) {
    free(row->hi);
    free(row->lo);
}

/* ---- Tensor cores ------------------------------------------------------------------------------------------------ */

/* How a chip adds: `terms` products and the running sum at once, each cut to `fraction_bits` below the largest exponent
 * among them, and the total cut to float32 (the studies are named in numerics.md). */
typedef struct adder {
    const char *name;
    int terms, fraction_bits;
} adder;

static const adder HOPPER = {"Hopper", 16, 25}, AMPERE = {"Ampere", 8, 24};

/* significand * 2^lsb as a multiple of 2^unit, cut towards zero. */
static int64_t aligned(int64_t significand, int lsb, int unit) {
    const int shift = lsb - unit;
    if (!significand) return 0;
    if (shift >= 0) return significand * (1 << shift);
    if (shift <= -63) return 0;
    return significand < 0 ? -(-significand >> -shift) : significand >> -shift;
}

static float add_products(const adder *chip, float sum, const half *a, const half *b) {
    int largest = INT_MIN, sum_lsb = 0;
    int64_t sum_significand = 0;
    if (sum != 0) {
        largest = exponent_of(sum);
        sum_lsb = largest - 23;
        sum_significand = (int64_t)ldexpf(sum, -sum_lsb);
    }
    for (int i = 0; i < chip->terms; i++)
        if (a[i].significand && b[i].significand && a[i].exponent + b[i].exponent > largest)
            largest = a[i].exponent + b[i].exponent;
    if (largest == INT_MIN) return 0;
    const int unit = largest - chip->fraction_bits;
    int64_t total = aligned(sum_significand, sum_lsb, unit);
    for (int i = 0; i < chip->terms; i++)
        total += aligned((int64_t)a[i].significand * b[i].significand, a[i].exponent + b[i].exponent - 20, unit);
    const int bits = total ? 64 - __builtin_clzll((unsigned long long)llabs(total)) : 0;
    const int cut = bits > 24 ? bits - 24 : 0;
    return ldexpf((float)aligned(total, 0, cut), unit + cut);
}

/* sum + the products of SPLIT_SUM_K of k. */
static float add_part(const adder *chip, float sum, const half *a, const half *b) {
    for (int k = 0; k < SPLIT_SUM_K; k += chip->terms) sum = add_products(chip, sum, a + k, b + k);
    return sum;
}

/* ---- One element of C: the split kernels ------------------------------------------------------------------------- */

enum { NEVER = INT_MAX };

/* Before it is scaled back. promote_every: SPLIT_SUM_K of k, so many times, whose hi*hi sum stays in the tensor
 * cores. */
static float split_sum(const adder *chip, const split_row *a, const split_row *b, int k, int promote_every) {
    float main_sum = 0, part_sum = 0, correction = 0;
    const int parts = (int)(padded(k) / SPLIT_SUM_K);
    for (int part = 0; part < parts; part++) {
        const size_t at = (size_t)part * SPLIT_SUM_K;
        part_sum = add_part(chip, part_sum, a->hi + at, b->hi + at);
        if ((part + 1) % promote_every == 0 || part + 1 == parts) {
            main_sum += part_sum;
            part_sum = 0;
        }
        for (size_t i = at; i < at + SPLIT_SUM_K; i += 16) /* an instruction of each kind in turn */
            for (int cross = 0; cross < 2; cross++)
                for (int step = 0; step < 16; step += chip->terms)
                    correction = add_products(chip, correction, (cross ? a->lo : a->hi) + i + step,
                                              (cross ? b->hi : b->lo) + i + step);
    }
    return fmaf(correction, 1.0f / (1 << SPLIT_LO_SHIFT), main_sum);
}

static float scaled_back(float sum, const split_row *a, const split_row *b) {
    return sum * power_of_two(-a->exponent) * power_of_two(-b->exponent);
}

typedef struct exact {
    long double sum, magnitude; /* of the terms; of their absolute values */
} exact;

static exact exact_product(const float *a, const float *b, int k) {
    exact r = {0, 0};
    for (int i = 0; i < k; i++) {
        const long double term = (long double)a[i] * b[i];
        r.sum += term;
        r.magnitude += fabsl(term);
    }
    return r;
}

/* ---- Representation ---------------------------------------------------------------------------------------------- */

static float rounded(float x) { return value_of(half_of(x)); }

/* Every pair of neighbours among the halves: what lies between them goes to the nearer, the middle to the even one. */
static void test_rounding(void) {
    half low = {0, HALF_LEAST_EXPONENT};
    for (int i = 0; i < 0x7bff; i++) { /* as many finite positive halves have one above them */
        half high = {low.significand + 1, low.exponent};
        if (high.significand == 1 << 11) high = (half){1 << 10, low.exponent + 1};
        const float middle = (value_of(low) + value_of(high)) / 2;
        const float even = low.significand % 2 ? value_of(high) : value_of(low);
        check(rounded(middle) == even, "the middle of two halves, %a, rounds to %a", middle, rounded(middle));
        check(rounded(nextafterf(middle, 0)) == value_of(low), "what is below %a rounds up", middle);
        check(rounded(nextafterf(middle, 1e9f)) == value_of(high), "what is above %a rounds down", middle);
        low = high;
    }
    check(value_of(low) == 65504 && rounded(nextafterf(HALF_OVERFLOW, 0)) == 65504, "the largest half is not 65504");
}

/* All significands with exponent t: |lo| 2^-11 <= 2^-11 max(|x|, 2^-14) and |r| <= max(2^-23 |x|, 2^-36); where no
 * component is subnormal, r = 0 for three quarters of them. */
static void test_representation(void) {
    static const int exponents[] = {-20, -14, -13, 0, 15};
    for (size_t i = 0; i < sizeof exponents / sizeof *exponents; i++) {
        const int t = exponents[i];
        int exact_ones = 0, outside = 0;
        for (int32_t significand = 1 << 23; significand < 1 << 24; significand++) {
            const float x = (float)significand * power_of_two(t - 23);
            if (x >= HALF_OVERFLOW) break;
            half hi, lo;
            split_element(x, 0, &hi, &lo);
            const double low = (double)value_of(lo) * 0x1p-11, rest = (double)x - (double)value_of(hi) - low;
            outside += fabs(low) > 0x1p-11 * fmax(x, 0x1p-14) || fabs(rest) > fmax(0x1p-23 * x, 0x1p-36);
            exact_ones += rest == 0;
        }
        check(!outside, "%d elements of exponent %d are further from their components than the bound", outside, t);
        if (t == 0) check(exact_ones == 3 << 21, "%d of 2^23 significands are exact, not three quarters", exact_ones);
    }
}

/* The same with any exponent and scale that pack.cu may meet, in terms of the depth that it would note. */
static void test_depths(void) {
    for (int i = 0; i < 1000000; i++) {
        const int e = random_between(-EXPONENT_LIMIT, EXPONENT_LIMIT);
        const float x = random_scaled(-149, 128);
        const float depth = depth_of(x, e);
        if (isinf(depth)) continue;
        half hi, lo;
        split_element(x, e, &hi, &lo);
        const double scaled = ldexp(x, e), low = (double)value_of(lo) * 0x1p-11,
                     rest = scaled - (double)value_of(hi) - low;
        const double most = (double)depth * (1 + 0x1p-22) * fabs(scaled); /* the depth itself is rounded */
        check(fabs(low) <= 0x1p-11 * most && fabs(rest) <= 0x1p-22 * most,
              "%a scaled by 2^%d has depth %g and loses more than that allows", x, e, depth);
    }
    static const float do_not_fit[] = {INFINITY, -INFINITY, NAN, 0x1p127f, 0x1p-149f, 0x1p-120f};
    for (size_t i = 0; i < sizeof do_not_fit / sizeof *do_not_fit; i++)
        for (int e = -EXPONENT_LIMIT; e <= 20; e++)
            check(depth_of(do_not_fit[i], e) > depth_limit(INT_MAX), "%a fits, scaled by 2^%d", do_not_fit[i], e);
    check(depth_of(0, 5) == 1 && depth_of(-0.0f, -62) == 1, "a zero has a depth");
}

/* ---- The bound --------------------------------------------------------------------------------------------------- */

enum { ROWS = 8 }; /* of A, and columns of B */

typedef struct operands {
    int k;
    float *a, *b;         /* ROWS rows of k each */
    float depth, largest; /* small_meets_small: the product of both operands' depths, and what sets their scales */
} operands;

static float *element_a(operands *o, int row, int i) { return o->a + (size_t)row * (size_t)o->k + i; }
static float *element_b(operands *o, int row, int i) { return o->b + (size_t)row * (size_t)o->k + i; }

static void fill(operands *o, float (*one)(void)) {
    for (int i = 0; i < ROWS * o->k; i++) o->a[i] = one(), o->b[i] = one();
}

static float one_uniform(void) { return (float)(random_bits() >> 40) * 0x1p-24f; }
static float one_of_12(void) { return random_scaled(-12, 12); }
static float one_of_20(void) { return random_scaled(-20, 20); }
static float one_of_60(void) { return random_scaled(-60, 60); }

/* Above a multiple of hi's last bit by just less than half of it: the largest low parts there are, all of one sign. */
static float one_large_low_part(void) { return 1 + 0x1p-9f * (float)random_between(0, 3) + 0x1.ffcp-12f; }

static void uniform(operands *o) { fill(o, one_uniform); }
static void normal(operands *o) { fill(o, random_normal); }
static void exponents_12(operands *o) { fill(o, one_of_12); }
static void exponents_20(operands *o) { fill(o, one_of_20); }
static void exponents_60(operands *o) { fill(o, one_of_60); }
static void large_low_parts(operands *o) { fill(o, one_large_low_part); }

static void graded(operands *o, int grade) {
    fill(o, random_signed);
    for (int i = 0; i < o->k; i++) {
        const int e = random_between(-grade, grade);
        for (int row = 0; row < ROWS; row++) {
            *element_a(o, row, i) *= power_of_two(e);
            *element_b(o, row, i) *= power_of_two(-e);
        }
    }
}

static void balanced_grading_10(operands *o) { graded(o, 10); }
static void balanced_grading_14(operands *o) { graded(o, 14); }
static void balanced_grading_20(operands *o) { graded(o, 20); }

static void cancellation(operands *o) {
    fill(o, random_signed);
    const int half_k = o->k / 2;
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < half_k; i++) {
            *element_a(o, row, half_k + i) = -*element_a(o, row, i);
            *element_b(o, row, half_k + i) = *element_b(o, row, i) * (1 + random_signed() * 0x1p-14f);
        }
}

/* Each row has one value 2^20 times the others, which in half of the columns meets a zero. */
static void one_huge_value(operands *o) {
    fill(o, random_normal);
    for (int row = 0; row < ROWS; row++) {
        const int at = random_between(0, o->k - 1);
        *element_a(o, row, at) = 0x1p20f;
        for (int column = row % 2; column < ROWS; column += 2) *element_b(o, column, at) = 0;
    }
}

/* Each row has a value far above the others where no sample looks, beyond what the sample's scale leaves room for. */
static void unsampled_outliers(operands *o) {
    fill(o, random_normal);
    for (int row = 0; row < ROWS; row++) *element_a(o, row, 40) = 200;
}

static void zero_rows(operands *o) {
    fill(o, random_normal);
    for (int i = 0; i < 3 * o->k; i++) o->a[i] = 0, o->b[i] = -0.0f;
}

/* A third of each row is far below the rest, as where the gradients of different things share a row. */
static void uneven_parts(operands *o) {
    fill(o, random_normal);
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < o->k / 3; i++) *element_a(o, row, i) *= 0x1p-24f;
}

/* Zeros where the sample looks, and elsewhere something, or something tiny. */
static void zeros_sampled(operands *o) {
    fill(o, random_normal);
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < o->k; i++)
            if (i != 40) *element_a(o, row, i) = 0;
    for (int row = 0; row < ROWS; row += 2) *element_a(o, row, 40) *= 0x1p-60f;
}

/* Rows of zeros beside columns with tiny elements. */
static void zeros_meet_tiny(operands *o) {
    uneven_parts(o);
    for (int i = 0; i < ROWS * o->k; i++) o->b[i] = i / o->k % 2 ? 0 : o->b[i];
}

static void subnormals(operands *o) {
    fill(o, random_signed);
    for (int row = 0; row < ROWS; row++) *element_a(o, row, random_between(0, o->k - 1)) *= 0x1p-130f;
}

static void special_values(operands *o) {
    fill(o, random_normal);
    static const float values[] = {INFINITY, -INFINITY, NAN, 0x1.fffffep127f};
    for (int row = 0; row < ROWS; row++) *element_a(o, row, random_between(0, o->k - 1)) = values[row % 4];
}

/* In each block of k one large product and others that are just lost beside it. */
static void swallowed(operands *o) {
    for (int i = 0; i < ROWS * o->k; i++) {
        o->a[i] = i % o->k % SPLIT_K ? 0x1.ff8p-13f : 1;
        o->b[i] = i % o->k % SPLIT_K ? 0x1.ff8p-14f : 1;
    }
}

/* Elements of A far below what sets their row's scale meet ordinary ones of B, and nothing else counts: the one large
 * element meets a zero. */
static void tiny_meets_ordinary(operands *o) {
    fill(o, random_signed);
    for (int row = 0; row < ROWS; row++) {
        const int depth = random_between(0, 30);
        for (int i = 1; i < o->k; i++) *element_a(o, row, i) *= power_of_two(-22 - depth);
        *element_a(o, row, 0) = 1;
        *element_b(o, row, 0) = 0;
    }
}

/* The same, with the large element meeting a small one: how small decides which sums are still good. */
static void tiny_beside_ordinary(operands *o) {
    tiny_meets_ordinary(o);
    for (int row = 0; row < ROWS; row++) *element_b(o, row, 0) = power_of_two(random_between(-40, 0));
}

/* Nothing counts but products of small elements: large ones meet zeros. The depths of both operands multiply to
 * o->depth, and small elements lose as much as their depth allows, always on the same side. */
static void small_meets_small(operands *o) {
    const float depth_a = exp2f((float)random_unit() * log2f(o->depth));
    const float depths[2] = {depth_a, o->depth / depth_a};
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < ROWS * o->k; i++) {
            const float steps = floorf(0x1p10f / depths[side]); /* of 2^-24, hi's last bit there */
            float *to = (side ? o->b : o->a) + i;
            *to = (steps + 0x1.fep-2f + 0x1.fep-13f) * 0x1p-24f;
            if (steps + 0.5f < 0x1p10f / depths[side]) *to += 0x1p-24f; /* no deeper than asked for */
            if (i % o->k == side) *to = o->largest;
            if (i % o->k == 1 - side) *to = 0;
        }
}

typedef enum expectation { ALL_SPLIT, ALL_SPLIT_FROM_128, NONE_SPLIT, AS_IT_COMES } expectation; /* from k = 128 on */

typedef struct family {
    const char *name;
    void (*fill)(operands *o);
    expectation expected; /* which elements of C are left to the split kernels */
} family;

static const family families[] = {
    {"uniform", uniform, ALL_SPLIT},
    {"normal", normal, ALL_SPLIT},
    {"exponents 2^-12..2^12", exponents_12, ALL_SPLIT},
    {"exponents 2^-20..2^20", exponents_20, AS_IT_COMES},
    {"exponents 2^-60..2^60", exponents_60, AS_IT_COMES},
    {"balanced grading 2^+-10", balanced_grading_10, ALL_SPLIT},
    {"balanced grading 2^+-14", balanced_grading_14, AS_IT_COMES},
    {"balanced grading 2^+-20", balanced_grading_20, NONE_SPLIT},
    {"cancellation", cancellation, ALL_SPLIT},
    {"large low parts", large_low_parts, ALL_SPLIT},
    {"one huge value per row", one_huge_value, AS_IT_COMES},
    {"outliers not sampled", unsampled_outliers, ALL_SPLIT},
    {"rows of zeros", zero_rows, ALL_SPLIT},
    {"zeros in the sample", zeros_sampled, ALL_SPLIT},
    {"zeros meet tiny", zeros_meet_tiny, ALL_SPLIT_FROM_128},
    {"subnormals", subnormals, AS_IT_COMES},
    {"Inf, NaN, largest", special_values, NONE_SPLIT},
    {"swallowed terms", swallowed, ALL_SPLIT},
    {"small meets small", small_meets_small, ALL_SPLIT},
    {"tiny meets ordinary", tiny_meets_ordinary, AS_IT_COMES},
    {"tiny beside ordinary", tiny_beside_ordinary, AS_IT_COMES},
    {"uneven parts", uneven_parts, ALL_SPLIT_FROM_128},
};

static operands operands_of(int k, void (*fill_with)(operands *o)) {
    const size_t bytes = (size_t)(ROWS * k) * sizeof(float);
    operands o = {k, zeroed(bytes), zeroed(bytes), depth_limit(k), power_of_two(SAMPLE_EXPONENT)};
    fill_with(&o);
    return o;
}

static void operands_free(operands *o) {
    free(o->a);
    free(o->b);
}

typedef struct split_operands {
    split_row a[ROWS], b[ROWS];
} split_operands;

static split_operands split_both(operands *o) {
    split_operands s;
    for (int row = 0; row < ROWS; row++) {
        s.a[row] = split_row_of(element_a(o, row, 0), o->k);
        s.b[row] = split_row_of(element_b(o, row, 0), o->k);
    }
    return s;
}

static void split_both_free(split_operands *s) {
    for (int row = 0; row < ROWS; row++) {
        split_row_free(&s->a[row]);
        split_row_free(&s->b[row]);
    }
}

typedef struct outcome {
    int split, suspects; /* elements of C by the split kernels; rows and columns that the sample did not serve */
    double worst;        /* error over bound */
} outcome;

/* Every element of C that is left to the split kernels: by the depths, `limit` being what they may multiply to, or
 * because the sum is no less than least_for_each for each tiny element. */
static outcome multiply(const adder *chip, operands *o, float limit, float least_for_each) {
    outcome r = {0, 0, 0};
    split_operands s = split_both(o);
    for (int i = 0; i < ROWS; i++) {
        r.suspects += s.a[i].suspect + s.b[i].suspect;
        for (int j = 0; j < ROWS; j++) {
            if (!s.a[i].hi || !s.b[j].hi) continue;
            const float sum = split_sum(chip, &s.a[i], &s.b[j], o->k, 1), c = scaled_back(sum, &s.a[i], &s.b[j]);
            const bool beyond = s.a[i].depth * s.b[j].depth > limit;
            const bool zero = s.a[i].exponent == ALL_ZERO || s.b[j].exponent == ALL_ZERO;
            if (beyond && !zero && !(fabsf(sum) >= least_for_each * (float)(s.a[i].tiny + s.b[j].tiny))) continue;
            r.split++;
            const exact e = exact_product(element_a(o, i, 0), element_b(o, j, 0), o->k);
            const double error = (double)fabsl((long double)c - e.sum), bound = (o->k + 2) * U * (double)e.magnitude;
            r.worst = fmax(r.worst, error == 0 ? 0 : error / bound);
        }
    }
    split_both_free(&s);
    return r;
}

static void test_families(void) {
    static const int ks[] = {96, 128, 129, 200, 512, 1000, 4096, 16384};
    static const adder *const adders[] = {&HOPPER, &AMPERE};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        double worst = 0;
        int split = 0, elements = 0, suspects = 0;
        for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
            operands o = operands_of(ks[i], families[f].fill);
            for (int which = 0; which < 2; which++) {
                const outcome r = multiply(adders[which], &o, depth_limit(o.k), least_per_tiny(o.k));
                check(r.worst <= 1, "%s, k = %d, %s: an element is off by %g times the bound", families[f].name, o.k,
                      adders[which]->name, r.worst);
                const bool all = families[f].expected == ALL_SPLIT ||
                                 (families[f].expected == ALL_SPLIT_FROM_128 && o.k >= 128);
                check(!all || r.split == ROWS * ROWS, "%s, k = %d: %d of %d elements are split", families[f].name, o.k,
                      r.split, ROWS * ROWS);
                check(families[f].expected != NONE_SPLIT || r.split == 0, "%s, k = %d: %d elements are split",
                      families[f].name, o.k, r.split);
                worst = fmax(worst, r.worst);
                split += r.split, elements += ROWS * ROWS, suspects += r.suspects;
            }
            operands_free(&o);
        }
        printf("  %-26s %4d of %d elements split, %3d suspects, worst error %.3f of the bound\n", families[f].name,
               split, elements, suspects, worst);
    }
}

/* Beyond the limit the bound does not hold, so the limit is no idle caution; a k too short for the split has none. */
static void test_limit(void) {
    for (int k = 1; k < 96; k++) check(depth_limit(k) < 1, "k = %d is split, and too short for it", k);
    for (int k = 128; k <= 4096; k *= 2) {
        operands o = operands_of(k, small_meets_small);
        o.depth = 8 * depth_limit(k);
        o.largest = power_of_two(LARGEST_EXPONENT);
        small_meets_small(&o);
        const outcome r = multiply(&HOPPER, &o, INFINITY, 0);
        check(r.worst > 1, "k = %d: the bound holds far beyond the depths allowed (worst %g)", k, r.worst);
        operands_free(&o);
        o = operands_of(k, tiny_meets_ordinary);
        const outcome tiny = multiply(&HOPPER, &o, depth_limit(k), 0);
        check(tiny.worst > 1, "k = %d: the bound holds whatever the sums are (worst %g)", k, tiny.worst);
        operands_free(&o);
    }
}

/* Panels of uniform and normal data: all fits, and no pair is near the limit. */
static void test_ordinary_data(void) {
    enum { PANEL_K = 4096 };
    static float row[PANEL_K];
    static float (*const kinds[])(void) = {one_uniform, random_normal};
    for (int kind = 0; kind < 2; kind++) {
        float deepest = 1;
        for (int i = 0; i < 2 * PANEL_ROWS; i++) {
            for (int j = 0; j < PANEL_K; j++) row[j] = kinds[kind]();
            deepest = fmaxf(deepest, row_depth(row, PANEL_K, exponent_by_sample(row, PANEL_K)));
        }
        check(deepest <= depth_limit(PANEL_K) / 4, "%s data are tiny: depth %g", kind ? "normal" : "uniform", deepest);
    }
}

/* ---- Promotion --------------------------------------------------------------------------------------------------- */

static double frobenius_error(const adder *chip, operands *o, int promote_every) {
    double error = 0, norm = 0;
    split_operands s = split_both(o);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < ROWS; j++) {
            const exact e = exact_product(element_a(o, i, 0), element_b(o, j, 0), o->k);
            const float sum = split_sum(chip, &s.a[i], &s.b[j], o->k, promote_every);
            const double off = (double)((long double)scaled_back(sum, &s.a[i], &s.b[j]) - e.sum);
            error += off * off;
            norm += (double)(e.sum * e.sum);
        }
    split_both_free(&s);
    return sqrt(error / norm);
}

static void test_promotion(void) {
    operands o = operands_of(8192, uniform);
    const double every = frobenius_error(&HOPPER, &o, 1), second = frobenius_error(&HOPPER, &o, 2);
    const double eighth = frobenius_error(&HOPPER, &o, 8), never = frobenius_error(&HOPPER, &o, NEVER);
    printf("  uniform, k = 8192: relative Frobenius error %.3g with promotion every 32, %.3g every 64, %.3g every 256, "
           "%.3g never\n",
           every, second, eighth, never);
    check(every < 3e-7, "promoted every 32 the error is %g", every);
    check(eighth > 2 * every && never > 50 * every, "without promotion the error is hardly worse: %g, %g", eighth,
          never);
    operands_free(&o);
}

/* ---- tf32 -------------------------------------------------------------------------------------------------------- */

enum { UNIT_ROWS = 64, TF32_K = 256 };

typedef float unit_rows[UNIT_ROWS][TF32_K];

/* Whether the hi components carry these rows: each element fits, and at each k what lost bits below the least normal
 * half, at most 2^-25 (scaled) each, is nothing beside the largest element: sqrt(UNIT_ROWS) 2^-25 <= 2^-11 of it. */
static bool hi_carries(unit_rows x, const int *exponents) {
    for (int k = 0; k < TF32_K; k++) {
        float largest = 0, coarsest = 0; /* coarsest: the largest 2^-e among rows whose element lost bits */
        for (int row = 0; row < UNIT_ROWS; row++) {
            const int e = exponents[row];
            if (!(fabsf(x[row][k]) * power_of_two(e) < HALF_OVERFLOW)) return false;
            largest = fmaxf(largest, fabsf(x[row][k]));
            if (depth_of(x[row][k], e) > 1) coarsest = fmaxf(coarsest, power_of_two(-e));
        }
        if (coarsest > 2048 * largest) return false;
    }
    return true;
}

/* The exponents of the rows; false where the rows are marked. */
static bool scale_for_tf32(unit_rows x, int *exponents, bool *suspect) {
    for (int row = 0; row < UNIT_ROWS; row++) exponents[row] = exponent_by_sample(x[row], TF32_K);
    *suspect = !hi_carries(x, exponents);
    if (!*suspect) return true;
    for (int row = 0; row < UNIT_ROWS; row++) exponents[row] = exponent_by_overflow(x[row], TF32_K, exponents[row]);
    return hi_carries(x, exponents);
}

static double rounded_to_11_bits(float x) {
    int e;
    const double fraction = frexp(x, &e);
    return ldexp(nearbyint(ldexp(fraction, 11)), e - 11);
}

static double hi_part(float x, int e) {
    return fabsf(x) * power_of_two(e) < HALF_OVERFLOW ? ldexp(value_of(half_of(x * power_of_two(e))), -e) : 0;
}

/* The error that the operands' rounding causes, relative to TF32's, in the Frobenius norm. */
static double error_beside_tf32(unit_rows a, unit_rows b, const int *exponents_a, const int *exponents_b) {
    double ours = 0, theirs = 0;
    for (int i = 0; i < UNIT_ROWS; i++)
        for (int j = 0; j < UNIT_ROWS; j++) {
            double off = 0, tf32_off = 0;
            for (int k = 0; k < TF32_K; k++) {
                const double term = (double)a[i][k] * b[j][k];
                off += hi_part(a[i][k], exponents_a[i]) * hi_part(b[j][k], exponents_b[j]) - term;
                tf32_off += rounded_to_11_bits(a[i][k]) * rounded_to_11_bits(b[j][k]) - term;
            }
            ours += off * off;
            theirs += tf32_off * tf32_off;
        }
    return sqrt(ours / theirs);
}

static unit_rows tf32_a, tf32_b;

static void fill_for_tf32(float (*one)(void), int grade) {
    for (int k = 0; k < TF32_K; k++) {
        const int e = random_between(-grade, grade);
        for (int row = 0; row < UNIT_ROWS; row++) {
            tf32_a[row][k] = ldexpf(one(), e);
            tf32_b[row][k] = ldexpf(one(), -e);
        }
    }
}

static void test_tf32(void) {
    static const struct {
        const char *name;
        float (*one)(void);
        int grade;
        expectation expected;
    } kinds[] = {
        {"uniform", one_uniform, 0, ALL_SPLIT},
        {"normal", random_normal, 0, ALL_SPLIT},
        {"exponents 2^-20..2^20", one_of_20, 0, ALL_SPLIT},
        {"exponents 2^-60..2^60", one_of_60, 0, ALL_SPLIT},
        {"balanced grading 2^+-10", random_signed, 10, ALL_SPLIT},
        {"balanced grading 2^+-14", random_signed, 14, AS_IT_COMES},
        {"balanced grading 2^+-15", random_signed, 15, AS_IT_COMES},
        {"balanced grading 2^+-17", random_signed, 17, NONE_SPLIT},
        {"balanced grading 2^+-20", random_signed, 20, NONE_SPLIT},
        {"balanced grading 2^+-40", random_signed, 40, NONE_SPLIT},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int exponents_a[UNIT_ROWS], exponents_b[UNIT_ROWS];
        bool suspect_a, suspect_b;
        fill_for_tf32(kinds[i].one, kinds[i].grade);
        const bool split_a = scale_for_tf32(tf32_a, exponents_a, &suspect_a);
        const bool split = scale_for_tf32(tf32_b, exponents_b, &suspect_b) && split_a;
        const double ratio = error_beside_tf32(tf32_a, tf32_b, exponents_a, exponents_b);
        printf("  tf32, %-26s %s, error %.3g of TF32's%s\n", kinds[i].name, split ? "split" : "marked", ratio,
               split ? "" : " if it were split");
        check(!split || ratio <= 1.02, "tf32, %s: the error is %g times TF32's", kinds[i].name, ratio);
        check(kinds[i].expected != ALL_SPLIT || split, "tf32, %s: marked", kinds[i].name);
        check(kinds[i].expected != NONE_SPLIT || (!split && ratio > 1.2),
              "tf32, %s: %s, and the error would be %g of TF32's", kinds[i].name, split ? "split" : "marked", ratio);
        check(i > 1 || (!suspect_a && !suspect_b), "tf32, %s: suspects", kinds[i].name);
    }
}

int main(void) {
    test_rounding();
    test_representation();
    test_depths();
    test_families();
    test_limit();
    test_ordinary_data();
    test_promotion();
    test_tf32();
    printf(failures ? "split model: %d checks failed\n" : "split model: every check holds\n", failures);
    return failures != 0;
}
