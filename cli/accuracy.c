/* accuracy.c: float64 products of sampled lines, and the contract's measures of error. */
#include "accuracy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "random.h"
#include "shape.h"

static const double unit_roundoff = 0x1p-24;
static const double underflow_loss = 0x1p-150; /* what each product or sum below 2^-126 may lose beyond it */

/* out[j] = sum over k of x[k] * b(k, j), and the same of magnitudes, in float64. Rows of C are this with x a row of A;
 * columns, with x a column of B and A transposed. */
static void vector_times_matrix(double *out, double *magnitude, const double *x, const tsr_operand *b) {
    enum { BLOCK = 1024, LANES = 8 }; /* sums of a block stay in the first cache; lanes break the chain of additions */
    if (b->col_stride == 1) {
        for (int64_t begin = 0; begin < b->cols; begin += BLOCK) {
            int64_t width = b->cols - begin < BLOCK ? b->cols - begin : BLOCK;
            double *sum = out + begin, *sum_magnitude = magnitude + begin;
            memset(sum, 0, (size_t)width * sizeof *sum);
            memset(sum_magnitude, 0, (size_t)width * sizeof *sum_magnitude);
            for (int64_t k = 0; k < b->rows; k++) {
                const float *row = b->data + k * b->row_stride + begin;
                for (int64_t j = 0; j < width; j++) {
                    double term = x[k] * (double)row[j];
                    sum[j] += term;
                    sum_magnitude[j] += fabs(term);
                }
            }
        }
        return;
    }
    for (int64_t j = 0; j < b->cols; j++) {
        const float *column = b->data + j * b->col_stride;
        double sum[LANES] = {0}, sum_magnitude[LANES] = {0};
        for (int64_t k = 0; k < b->rows; k += LANES) {
            int64_t width = b->rows - k < LANES ? b->rows - k : LANES;
            for (int64_t lane = 0; lane < width; lane++) {
                double term = x[k + lane] * (double)column[(k + lane) * b->row_stride];
                sum[lane] += term;
                sum_magnitude[lane] += fabs(term);
            }
        }
        out[j] = magnitude[j] = 0;
        for (int lane = 0; lane < LANES; lane++) {
            out[j] += sum[lane];
            magnitude[j] += sum_magnitude[lane];
        }
    }
}

/* Lines of a*b: for each i of `lines`, row lines[i] of a times b. */
static void multiply_lines(double *product, double *magnitude, const int64_t *lines, int64_t count,
                           const tsr_operand *a, const tsr_operand *b, double *x) {
    for (int64_t i = 0; i < count; i++) {
        const float *line = a->data + lines[i] * a->row_stride;
        for (int64_t k = 0; k < a->cols; k++) x[k] = (double)line[k * a->col_stride];
        vector_times_matrix(product + i * b->cols, magnitude + i * b->cols, x, b);
    }
}

static void multiply_sample(double *product, double *magnitude, const exact_lines *exact, const tsr_operand *a,
                            const tsr_operand *b, double *x) {
    tsr_operand a_transposed = operand_transposed(a), b_transposed = operand_transposed(b);
    int64_t offset = exact->row_count * exact->n;
    multiply_lines(product, magnitude, exact->rows, exact->row_count, a, b, x);
    multiply_lines(product + offset, magnitude + offset, exact->cols, exact->col_count, &b_transposed, &a_transposed,
                   x);
}

static int64_t *pick_lines(int64_t *count, int64_t size, int64_t step, random_source *source) {
    *count = step ? (size + step - 1) / step : 0;
    int64_t *lines = malloc((size_t)(*count + 1) * sizeof *lines);
    for (int64_t i = 0; lines && i < *count; i++) {
        int64_t begin = i * step, left = size - begin;
        lines[i] = begin + random_below(source, left < step ? left : step);
    }
    return lines;
}

static int64_t sampled_elements(const exact_lines *exact) {
    return exact->row_count * exact->n + exact->col_count * exact->m;
}

/* To 11 significant bits, to nearest, ties to even. */
static float round_to_tf32(float value) {
    uint32_t bits;
    if (!isfinite(value)) return value;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~(uint32_t)0x1fff;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Operands are dense, in whichever order, so that their elements are the first rows*cols floats. */
static float *rounded_copy(const tsr_operand *o) {
    int64_t count = o->rows * o->cols;
    float *copy = malloc((size_t)count * sizeof *copy + 1);
    for (int64_t i = 0; copy && i < count; i++) copy[i] = round_to_tf32(o->data[i]);
    return copy;
}

static bool find_tf32_error(exact_lines *exact, const tsr_operand *a, const tsr_operand *b, double *x) {
    int64_t count = sampled_elements(exact);
    tsr_operand a_rounded = *a, b_rounded = *b;
    float *a_copy = rounded_copy(a), *b_copy = rounded_copy(b);
    double *product = malloc((size_t)(2 * count + 1) * sizeof *product);
    bool enough = a_copy && b_copy && product;
    if (enough) {
        a_rounded.data = a_copy;
        b_rounded.data = b_copy;
        multiply_sample(product, product + count, exact, &a_rounded, &b_rounded, x);
        double error = 0, norm = 0;
        for (int64_t i = 0; i < count; i++) {
            double difference = product[i] - exact->product[i];
            if (!isfinite(difference)) continue;
            error += difference * difference;
            norm += exact->product[i] * exact->product[i];
        }
        exact->tf32_error = norm > 0 ? sqrt(error / norm) : 0;
    }
    free(product);
    free(b_copy);
    free(a_copy);
    return enough;
}

int exact_make(exact_lines *exact, const tsr_operand *a, const tsr_operand *b, int64_t row_step, int64_t col_step,
               bool tf32, uint64_t seed) {
    random_source source = {seed};
    *exact = (exact_lines){.m = a->rows, .n = b->cols, .k = a->cols, .bound = (double)a->cols + 2};
    exact->rows = pick_lines(&exact->row_count, exact->m, row_step, &source);
    exact->cols = pick_lines(&exact->col_count, exact->n, col_step, &source);
    size_t count = (size_t)sampled_elements(exact);
    exact->product = malloc((count + 1) * sizeof(double));
    exact->magnitude = malloc((count + 1) * sizeof(double));
    double *x = malloc((size_t)(exact->k + 1) * sizeof *x);
    bool enough = exact->rows && exact->cols && exact->product && exact->magnitude && x;
    if (enough) {
        multiply_sample(exact->product, exact->magnitude, exact, a, b, x);
        enough = !tf32 || find_tf32_error(exact, a, b, x);
    }
    free(x);
    if (enough) return EXIT_OK;
    exact_free(exact);
    return fail("no memory for the float64 product to check against");
}

void exact_free(exact_lines *exact) {
    free(exact->rows);
    free(exact->cols);
    free(exact->product);
    free(exact->magnitude);
    *exact = (exact_lines){0};
}

static void scale_element(double *product, double *magnitude, float alpha, float addend) {
    *product = alpha == 0 ? (double)addend : (double)alpha * *product + (double)addend;
    *magnitude = alpha == 0 ? fabs((double)addend) : fabs((double)alpha) * *magnitude + fabs((double)addend);
}

void exact_scale(exact_lines *exact, float alpha, float beta, const tsr_result *c) {
    double *product = exact->product, *magnitude = exact->magnitude;
    for (int64_t i = 0; i < exact->row_count; i++)
        for (int64_t col = 0; col < exact->n; col++)
            scale_element(product++, magnitude++, alpha,
                          beta * c->data[exact->rows[i] * c->row_stride + col * c->col_stride]);
    for (int64_t i = 0; i < exact->col_count; i++)
        for (int64_t row = 0; row < exact->m; row++)
            scale_element(product++, magnitude++, alpha,
                          beta * c->data[row * c->row_stride + exact->cols[i] * c->col_stride]);
    exact->bound = (double)exact->k + 4;
}

/* Sums over the elements judged so far. */
typedef struct tally {
    double error_squares, product_squares, magnitude_squares;
} tally;

/* What is beyond float32's range in float64 is infinite in float32. */
static bool same_kind(float got, double exact) {
    float expected = (float)exact;
    if (isnan(expected)) return isnan(got);
    if (isinf(expected)) return got == expected;
    return isfinite(got);
}

static void judge_element(judgement *j, tally *sums, int64_t k, float got, double expected, double magnitude,
                          int64_t row, int64_t col) {
    bool worse = false;
    if (!same_kind(got, expected)) {
        worse = j->misplaced++ == 0;
    } else if (isfinite((float)expected)) {
        double error = fabs((double)got - expected);
        double counted = error - (double)k * underflow_loss;
        double units = counted <= 0 ? 0 : counted / (unit_roundoff * magnitude);
        worse = units > j->worst && j->misplaced == 0;
        if (units > j->worst) j->worst = units;
        if ((double)got != (double)(float)expected) j->inexact++;
        sums->error_squares += error * error;
        sums->product_squares += expected * expected;
        sums->magnitude_squares += magnitude * magnitude;
    }
    if (!worse) return;
    j->row = row;
    j->col = col;
    j->got = (double)got;
    j->expected = expected;
}

judgement judge(const exact_lines *exact, const tsr_result *c) {
    judgement j = {.bound = exact->bound};
    tally sums = {0, 0, 0};
    const double *product = exact->product, *magnitude = exact->magnitude;
    for (int64_t i = 0; i < exact->row_count; i++) {
        int64_t row = exact->rows[i];
        for (int64_t col = 0; col < exact->n; col++)
            judge_element(&j, &sums, exact->k, c->data[row * c->row_stride + col * c->col_stride], *product++,
                          *magnitude++, row, col);
    }
    for (int64_t i = 0; i < exact->col_count; i++) {
        int64_t col = exact->cols[i];
        for (int64_t row = 0; row < exact->m; row++)
            judge_element(&j, &sums, exact->k, c->data[row * c->row_stride + col * c->col_stride], *product++,
                          *magnitude++, row, col);
    }
    if (sums.product_squares > 0) {
        j.relative = sqrt(sums.error_squares / sums.product_squares);
        /* Rounding the operands, then float32 accumulation. */
        j.tf32_limit = exact->tf32_error +
                       j.bound * unit_roundoff * sqrt(sums.magnitude_squares / sums.product_squares);
    } else {
        j.relative = sums.error_squares > 0 ? INFINITY : 0;
    }
    return j;
}

double contract_share(const judgement *j, tsr_precision precision) {
    if (precision != TSR_TF32) return j->worst / j->bound;
    return j->tf32_limit > 0 ? j->relative / j->tf32_limit : 0;
}

bool within_contract(const judgement *j, tsr_precision precision) {
    if (j->misplaced) return false;
    return precision == TSR_TF32 ? j->relative <= j->tf32_limit : j->worst <= j->bound;
}
