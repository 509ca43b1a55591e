/* no_memory.c: the loops that always work.
 *
 * A block of C is summed in float64: products of two floats are exact there, and of K sums each adds at most 2^-53 of
 * itself, so that one rounding to float32 at the end keeps the contract's bound for any alpha and beta. */
#include "no_memory.h"

#include <string.h>

#include "problem.h"
#include "rounding.h"

/* Of C, and of k at a time: about 7 KiB of stack. */
enum { ROWS = 8, COLUMNS = 32, TERMS = 32 };

/* rows x cols elements from (row, col) of matrix `item`, row-major without gaps. */
static void read_block(float *to, const tsr_operand *o, int64_t item, int64_t row, int64_t col, int64_t rows,
                       int64_t cols) {
    if (o->packed) {
        tsr_packed_read(o->packed, row, col, rows, cols, to);
        return;
    }
    const float *from = o->data + item * o->batch_stride + row * o->row_stride + col * o->col_stride;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            memcpy(to++, from + i * o->row_stride + j * o->col_stride,
                   sizeof *to); /* as it is, signalling NaN or not */
}

static void add_products(double sums[ROWS][COLUMNS], const float *a, const float *b, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < k; p++)
            for (int64_t j = 0; j < n; j++) sums[i][j] += (double)a[i * k + p] * (double)b[p * n + j];
}

/* Elements (i, j).. of C. */
static void multiply_block(int64_t item, float alpha, const tsr_operand *a, const tsr_operand *b, float beta,
                           const tsr_result *c, int64_t i, int64_t j) {
    const int64_t m = min64(ROWS, c->rows - i), n = min64(COLUMNS, c->cols - j), k = is_zero(alpha) ? 0 : a->cols;
    double sums[ROWS][COLUMNS] = {{0}};
    for (int64_t first = 0; first < k; first += TERMS) {
        float a_block[ROWS * TERMS], b_block[TERMS * COLUMNS];
        const int64_t terms = min64(TERMS, k - first);
        read_block(a_block, a, item, i, first, m, terms);
        read_block(b_block, b, item, first, j, terms, n);
        add_products(sums, a_block, b_block, m, n, terms);
    }
    for (int64_t row = 0; row < m; row++)
        for (int64_t col = 0; col < n; col++) {
            float *to = c->data + item * c->batch_stride + (i + row) * c->row_stride + (j + col) * c->col_stride;
            float value = 0;
            if (!is_zero(beta)) memcpy(&value, to, sizeof value); /* BLAS does not ask for aligned floats */
            const double product = k ? (double)alpha * sums[row][col] : 0;
            value = (float)(is_zero(beta) ? product : product + (double)beta * (double)value);
            memcpy(to, &value, sizeof value);
        }
}

void blas_multiply_without_memory(int64_t batch, float alpha, const tsr_operand *a, const tsr_operand *b, float beta,
                                  const tsr_result *c) {
    const uint64_t mode = cpu_rounding_begin();
    for (int64_t item = 0; item < batch; item++)
        for (int64_t i = 0; i < c->rows; i += ROWS)
            for (int64_t j = 0; j < c->cols; j += COLUMNS) multiply_block(item, alpha, a, b, beta, c, i, j);
    cpu_rounding_end(mode);
}

/* Floats from `begin` to before `end`. */
typedef struct run {
    uintptr_t begin, end;
} run;

/* The runs of a matrix, numbered through the batch. */
static run run_of(const tsr_operand *o, int64_t number) {
    const bool columns = o->col_stride != 1;
    const int64_t runs = columns ? o->cols : o->rows, length = columns ? o->rows : o->cols;
    const float *begin = o->data + number / runs * o->batch_stride +
                         number % runs * (columns ? o->col_stride : o->row_stride);
    return (run){(uintptr_t)begin, (uintptr_t)(begin + length)};
}

static int64_t runs_of(const tsr_operand *o, int64_t batch) {
    return operand_count(o, batch) * (o->col_stride != 1 ? o->cols : o->rows);
}

bool blas_shares_memory(const tsr_operand *o, const tsr_result *c, int64_t batch) {
    if (o->packed || !o->rows || !o->cols) return false;
    const tsr_operand result = {c->data, c->rows, c->cols, c->row_stride, c->col_stride, c->batch_stride, NULL};
    for (int64_t i = 0; i < runs_of(o, batch); i++)
        for (int64_t j = 0; j < runs_of(&result, batch); j++) {
            const run x = run_of(o, i), y = run_of(&result, j);
            if (x.begin < y.end && y.begin < x.end) return true;
        }
    return false;
}
