/* sgemm.c: sgemm_ and cblas_sgemm, with 32-bit and with 64-bit integers, also as the wheels of NumPy name them. */
#include <stdbool.h>

#include "blas.h"
#include "tessera_blas.h"
#include "xerbla.h"

/* What the reference's sgemm checks, in its order: the number of the first illegal argument, or 0. */
static int first_illegal(const blas_product *p) {
    if (p->m < 0) return 3;
    if (p->n < 0) return 4;
    if (p->k < 0) return 5;
    if (p->lda < blas_most(1, p->transpose_a ? p->k : p->m)) return 8;
    if (p->ldb < blas_most(1, p->transpose_b ? p->n : p->k)) return 10;
    if (p->ldc < blas_most(1, p->m)) return 13;
    return 0;
}

static __attribute__((noinline)) void check_and_multiply(blas_interface caller, bool row_major, blas_product p) {
    const int illegal = first_illegal(&p);
    if (illegal)
        blas_report_sgemm(caller, row_major, illegal);
    else
        blas_multiply(&p);
}

/* Computes a product that is small, legal and for the CPU without the overhead of blas_multiply, which would take
 * longer than the product. Otherwise does nothing and returns false. Sizes are compared as unsigned size - 1, so that
 * none below 1 passes. */
static inline __attribute__((always_inline)) bool multiply_small(bool transpose_a, bool transpose_b, int64_t m,
                                                                 int64_t n, int64_t k, float alpha, const float *a,
                                                                 int64_t lda, const float *b, int64_t ldb, float beta,
                                                                 float *c, int64_t ldc) {
    tsr_context *context = atomic_load_explicit(&blas_small_context, memory_order_acquire);
    if (!context || (uint64_t)m - 1 >= BLAS_SMALL || (uint64_t)n - 1 >= BLAS_SMALL || (uint64_t)k - 1 >= BLAS_SMALL ||
        lda < (transpose_a ? k : m) || ldb < (transpose_b ? n : k) || ldc < m)
        return false;
    const tsr_operand left = {b, n, k, transpose_b ? 1 : ldb, transpose_b ? ldb : 1, 0, NULL};
    const tsr_operand right = {a, k, m, transpose_a ? 1 : lda, transpose_a ? lda : 1, 0, NULL};
    const tsr_result result = {c, n, m, ldc, 1, 0};
    return tsr_gemm(context, alpha, &left, &right, beta, &result, NULL) == TSR_OK;
}

/* ---- Fortran ----------------------------------------------------------------------------------------------------- */

/* 'N', 'T' or 'C' (which for real matrices is 'T'), in either case. */
static bool is_transpose_letter(char letter, bool *transpose) {
    letter = (char)(letter | 0x20);
    *transpose = letter != 'n';
    return letter == 'n' || letter == 't' || letter == 'c';
}

static inline __attribute__((always_inline)) void sgemm(blas_interface caller, char transa, char transb, int64_t m,
                                                        int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                                                        const float *b, int64_t ldb, float beta, float *c,
                                                        int64_t ldc) {
    bool ta, tb;
    if (!is_transpose_letter(transa, &ta))
        blas_report_sgemm(caller, false, 1);
    else if (!is_transpose_letter(transb, &tb))
        blas_report_sgemm(caller, false, 2);
    else if (!multiply_small(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc))
        check_and_multiply(
            caller, false,
            (blas_product){ta, tb, m, n, k, alpha, beta, a, b, c, lda, ldb, ldc, 1, 0, 0, 0, NULL, NULL});
}

void sgemm_(const char *transa, const char *transb, const int *m, const int *n, const int *k, const float *alpha,
            const float *a, const int *lda, const float *b, const int *ldb, const float *beta, float *c,
            const int *ldc) {
    sgemm(FORTRAN, *transa, *transb, *m, *n, *k, *alpha, a, *lda, b, *ldb, *beta, c, *ldc);
}

void sgemm_64_(const char *transa, const char *transb, const int64_t *m, const int64_t *n, const int64_t *k,
               const float *alpha, const float *a, const int64_t *lda, const float *b, const int64_t *ldb,
               const float *beta, float *c, const int64_t *ldc) {
    sgemm(FORTRAN_64, *transa, *transb, *m, *n, *k, *alpha, a, *lda, b, *ldb, *beta, c, *ldc);
}

/* ---- C ----------------------------------------------------------------------------------------------------------- */

static __attribute__((noinline)) void report_enumerators(blas_interface caller, CBLAS_LAYOUT layout,
                                                         CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb) {
    const blas_check checks[] = {
        {layout != CblasRowMajor && layout != CblasColMajor, 1, "layout", layout},
        {!blas_is_transpose(transa), 2, "TransA", transa},
        {!blas_is_transpose(transb), 3, "TransB", transb},
    };
    blas_all_legal(caller, "cblas_sgemm", checks, sizeof checks / sizeof checks[0]);
}

/* A row-major product is that of the transposes: A and B change places. */
static inline __attribute__((always_inline)) void sgemm_c(blas_interface caller, CBLAS_LAYOUT layout,
                                                          CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int64_t m,
                                                          int64_t n, int64_t k, float alpha, const float *a,
                                                          int64_t lda, const float *b, int64_t ldb, float beta,
                                                          float *c, int64_t ldc) {
    const bool row_major = layout == CblasRowMajor, ta = transa != CblasNoTrans, tb = transb != CblasNoTrans;
    if ((!row_major && layout != CblasColMajor) || !blas_is_transpose(transa) || !blas_is_transpose(transb))
        report_enumerators(caller, layout, transa, transb);
    else if (row_major && !multiply_small(tb, ta, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc))
        check_and_multiply(
            caller, true, (blas_product){tb, ta, n, m, k, alpha, beta, b, a, c, ldb, lda, ldc, 1, 0, 0, 0, NULL, NULL});
    else if (!row_major && !multiply_small(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc))
        check_and_multiply(
            caller, false,
            (blas_product){ta, tb, m, n, k, alpha, beta, a, b, c, lda, ldb, ldc, 1, 0, 0, 0, NULL, NULL});
}

void cblas_sgemm(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    sgemm_c(CBLAS, layout, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_sgemm64_(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int64_t m, int64_t n,
                    int64_t k, float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                    float *c, int64_t ldc) {
    sgemm_c(CBLAS_64_OPENBLAS, layout, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_sgemm_64(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int64_t m, int64_t n,
                    int64_t k, float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                    float *c, int64_t ldc) {
    sgemm_c(CBLAS_64, layout, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

/* ---- Wheels ------------------------------------------------------------------------------------------------------ */

/* The wheels of NumPy (64-bit integers) and SciPy (32-bit) carry an OpenBLAS whose names begin with scipy_. */
#define ALIAS(name) __attribute__((visibility("default"), alias(name)))
extern __typeof(sgemm_) scipy_sgemm_ ALIAS("sgemm_");
extern __typeof(sgemm_64_) scipy_sgemm_64_ ALIAS("sgemm_64_");
extern __typeof(cblas_sgemm) scipy_cblas_sgemm ALIAS("cblas_sgemm");
extern __typeof(cblas_sgemm64_) scipy_cblas_sgemm64_ ALIAS("cblas_sgemm64_");
