/* shape.h: a product to plan, time or check: its shape, how its matrices lie, and memory for them. */
#ifndef TESSERA_CLI_SHAPE_H
#define TESSERA_CLI_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "tessera.h"

/* C (m x n) = A (m x k) * B (k x n). A transposed matrix is stored the other way round: A as k x m, B as n x k. */
typedef struct product_shape {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
} product_shape;

/* alpha*A*B + beta*C of matrices in host memory, each stored in rows that lie `ld` floats apart. */
typedef struct stored_product {
    product_shape shape;
    float alpha, beta;
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
} stored_product;

/* The three sizes from three words, or from one word "M,N,K". EXIT_OK or EXIT_USAGE. */
int shape_parse(product_shape *p, const char *m, const char *n, const char *k);
int shape_parse_word(product_shape *p, const char *shape);

/* "nn", "tn", "nt" or "tt": how A and B are stored. */
const char *shape_layout(const product_shape *p);

double shape_flops(const product_shape *p); /* 2*m*n*k */
double shape_bytes(const product_shape *p); /* of A, B and C */

/* The matrices at these addresses, densely stored. */
tsr_operand shape_a(const product_shape *p, const float *data);
tsr_operand shape_b(const product_shape *p, const float *data);
tsr_result shape_c(const product_shape *p, float *data);

/* The same matrix seen from its other side. */
tsr_operand operand_transposed(const tsr_operand *o);

/* The matrices of a batch, one behind the other, without addresses; false if their elements cannot be counted in 64
 * bits. */
bool shape_batch(const product_shape *p, tsr_operand *a, tsr_operand *b, tsr_result *c);

/* Memory for rows x cols floats, to be freed; never NULL on success. `name` is the matrix's name in the message. */
int matrix_allocate(float **data, const char *name, int64_t rows, int64_t cols);

#endif
