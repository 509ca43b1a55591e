/* blas.h: a product as the entry points hand it on, its arguments found legal. */
#ifndef TESSERA_BLAS_PRODUCT_H
#define TESSERA_BLAS_PRODUCT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tessera.h"

/* C = alpha*op(A)*op(B) + beta*C on column-major matrices, as sgemm has it: op(A) is m x k, op(B) k x n. */
typedef struct blas_product {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    float alpha, beta;
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    int64_t batch, stride_a, stride_b, stride_c; /* one product: batch = 1 */
    const tsr_operand *packed_a, *packed_b;      /* packed in blas_packing_context, instead of the above; or NULL */
} blas_product;

/* A row-major product is that of the transposes, C^T = op(B)^T op(A)^T: A and B change places. */
static inline blas_product blas_row_major(const blas_product *p) {
    return (blas_product){p->transpose_b, p->transpose_a, p->n,        p->m,        p->k,       p->alpha, p->beta,
                          p->b,           p->a,           p->c,        p->ldb,      p->lda,     p->ldc,   p->batch,
                          p->stride_b,    p->stride_a,    p->stride_c, p->packed_b, p->packed_a};
}

/* Computes it, on the device that settings and size choose. */
void blas_multiply(const blas_product *product);

/* The same for product->batch products that lie anywhere: the i-th at a[i], b[i] and c[i]. */
void blas_multiply_pointers(const blas_product *product, const float *const *a, const float *const *b, float *const *c);

/* The largest size of a small product. None of these is for a GPU, or worth waking a thread for. */
enum { BLAS_SMALL = 128 };

/* The context for small products, which entry points use without going through blas_multiply; NULL before the first
 * call, and where the settings ask for a GPU or for verbose lines. */
extern tsr_context *_Atomic blas_small_context;

/* The context, on the CPU, in which operands are packed; NULL where there is no memory for it. */
tsr_context *blas_packing_context(void);

/* For a product without a result that the standard's interface cannot report: prints why and aborts. */
_Noreturn void blas_give_up(const char *why);

#endif
