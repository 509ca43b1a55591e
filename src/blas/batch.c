/* batch.c: cblas_sgemm_batch_strided, with oneMKL's arguments. */
#include "blas.h"
#include "tessera_blas.h"
#include "xerbla.h"

/* Strides of 0 for A and B share one matrix among all products; C's must keep its matrices apart. */
static void batch_strided(blas_interface caller, CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb,
                          int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, int64_t stridea,
                          const float *b, int64_t ldb, int64_t strideb, float beta, float *c, int64_t ldc,
                          int64_t stridec, int64_t batch_size) {
    const bool row_major = layout == CblasRowMajor;
    /* The length of what lies lda, ldb and ldc apart, and how many of them C has. */
    const int64_t run_a = (transa == CblasNoTrans) == row_major ? k : m;
    const int64_t run_b = (transb == CblasNoTrans) == row_major ? n : k;
    const int64_t run_c = row_major ? n : m, runs_c = row_major ? m : n;
    const blas_check checks[] = {
        {!row_major && layout != CblasColMajor, 1, "layout", layout},
        {!blas_is_transpose(transa), 2, "TransA", transa},
        {!blas_is_transpose(transb), 3, "TransB", transb},
        {m < 0, 4, "M", m},
        {n < 0, 5, "N", n},
        {k < 0, 6, "K", k},
        {lda < blas_most(1, run_a), 9, "lda", lda},
        {stridea < 0, 10, "stridea", stridea},
        {ldb < blas_most(1, run_b), 12, "ldb", ldb},
        {strideb < 0, 13, "strideb", strideb},
        {ldc < blas_most(1, run_c), 16, "ldc", ldc},
        {batch_size > 1 && run_c > 0 && ldc > 0 && runs_c > stridec / ldc, 17, "stridec", stridec},
        {batch_size < 0, 18, "batch_size", batch_size},
    };
    if (!blas_all_legal(caller, "cblas_sgemm_batch_strided", checks, sizeof checks / sizeof checks[0])) return;
    const bool ta = transa != CblasNoTrans, tb = transb != CblasNoTrans;
    if (row_major)
        blas_multiply(&(blas_product){tb, ta, n, m, k, alpha, beta, b, a, c, ldb, lda, ldc, batch_size, strideb,
                                      stridea, stridec, NULL, NULL});
    else
        blas_multiply(&(blas_product){ta, tb, m, n, k, alpha, beta, a, b, c, lda, ldb, ldc, batch_size, stridea,
                                      strideb, stridec, NULL, NULL});
}

void cblas_sgemm_batch_strided(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k,
                               float alpha, const float *a, int lda, int stridea, const float *b, int ldb, int strideb,
                               float beta, float *c, int ldc, int stridec, int batch_size) {
    batch_strided(CBLAS, layout, transa, transb, m, n, k, alpha, a, lda, stridea, b, ldb, strideb, beta, c, ldc,
                  stridec, batch_size);
}

void cblas_sgemm_batch_strided_64(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int64_t m,
                                  int64_t n, int64_t k, float alpha, const float *a, int64_t lda, int64_t stridea,
                                  const float *b, int64_t ldb, int64_t strideb, float beta, float *c, int64_t ldc,
                                  int64_t stridec, int64_t batch_size) {
    batch_strided(CBLAS_64, layout, transa, transb, m, n, k, alpha, a, lda, stridea, b, ldb, strideb, beta, c, ldc,
                  stridec, batch_size);
}
