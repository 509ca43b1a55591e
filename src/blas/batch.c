/* batch.c: batches, strided and of pointers, with oneMKL's arguments. */
#include "blas.h"
#include "tessera_blas.h"
#include "xerbla.h"

/* Strides of 0 for A and B share one matrix among all products; C's must keep its matrices apart. */
static void batch_strided(blas_interface caller, CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb,
                          int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, int64_t stridea,
                          const float *b, int64_t ldb, int64_t strideb, float beta, float *c, int64_t ldc,
                          int64_t stridec, int64_t batch_size) {
    const bool row_major = layout == CblasRowMajor;
    /* A run is what lies contiguous, lda, ldb or ldc apart from the next: its length, and the number of C's. */
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
    blas_product p = {ta,  tb,  m,   n,          k,       alpha,   beta,    a,    b,   c,
                      lda, ldb, ldc, batch_size, stridea, strideb, stridec, NULL, NULL};
    if (row_major) p = blas_row_major(&p);
    blas_multiply(&p);
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

/* ---- Groups of products that lie anywhere ------------------------------------------------------------------------ */

/* Products of a group have the same shape; groups are arrays of their arguments. */
typedef struct groups {
    bool row_major, wide; /* wide: integers have 64 bits */
    const CBLAS_TRANSPOSE *transa, *transb;
    const char *letters_a, *letters_b; /* Fortran's, instead */
    const void *m, *n, *k, *lda, *ldb, *ldc, *size;
    const float *alpha, *beta;
} groups;

static int64_t integer_at(const groups *g, const void *array, int64_t i) {
    return g->wide ? ((const int64_t *)array)[i] : ((const int *)array)[i];
}

/* A CBLAS_TRANSPOSE, or what is none. */
static int transpose_at(const CBLAS_TRANSPOSE *transpose, const char *letters, int64_t i) {
    if (!letters) return transpose[i];
    const char letter = (char)(letters[i] | 0x20);
    return letter == 'n' ? CblasNoTrans : letter == 't' || letter == 'c' ? CblasTrans : 0;
}

/* Group i, its matrices aside; false, having reported it, where an argument is illegal. */
static bool group_at(blas_interface caller, const groups *g, int64_t i, blas_product *p) {
    const int transa = transpose_at(g->transa, g->letters_a, i), transb = transpose_at(g->transb, g->letters_b, i);
    const bool ta = transa != CblasNoTrans, tb = transb != CblasNoTrans;
    const int64_t m = integer_at(g, g->m, i), n = integer_at(g, g->n, i), k = integer_at(g, g->k, i);
    const int64_t lda = integer_at(g, g->lda, i), ldb = integer_at(g, g->ldb, i), ldc = integer_at(g, g->ldc, i);
    const int64_t size = integer_at(g, g->size, i);
    const blas_check checks[] = {
        {!blas_is_transpose(transa), 2, "transa_array", transa},
        {!blas_is_transpose(transb), 3, "transb_array", transb},
        {m < 0, 4, "m_array", m},
        {n < 0, 5, "n_array", n},
        {k < 0, 6, "k_array", k},
        {lda < blas_most(1, ta == g->row_major ? m : k), 9, "lda_array", lda},
        {ldb < blas_most(1, tb == g->row_major ? k : n), 11, "ldb_array", ldb},
        {ldc < blas_most(1, g->row_major ? n : m), 14, "ldc_array", ldc},
        {size < 0, 16, "group_size", size},
    };
    const float alpha = g->alpha[i], beta = g->beta[i];
    *p = (blas_product){ta, tb, m, n, k, alpha, beta, NULL, NULL, NULL, lda, ldb, ldc, size, 0, 0, 0, NULL, NULL};
    if (g->row_major) *p = blas_row_major(p);
    return blas_all_legal(caller, g->letters_a ? "SGEMM_BATCH" : "cblas_sgemm_batch", checks,
                          sizeof checks / sizeof checks[0]);
}

/* Nothing is computed unless all groups are legal. */
static void batch_groups(blas_interface caller, const groups *g, const float *const *a, const float *const *b,
                         float *const *c, int64_t count) {
    const blas_check check = {count < 0, 15, "group_count", count};
    blas_product p;
    if (!blas_all_legal(caller, g->letters_a ? "SGEMM_BATCH" : "cblas_sgemm_batch", &check, 1)) return;
    for (int64_t i = 0; i < count; i++)
        if (!group_at(caller, g, i, &p)) return;
    for (int64_t i = 0; i < count; i++) {
        group_at(caller, g, i, &p);
        blas_multiply_pointers(&p, g->row_major ? b : a, g->row_major ? a : b, c);
        a += p.batch, b += p.batch, c += p.batch;
    }
}

static void batch_c(blas_interface caller, CBLAS_LAYOUT layout, const groups *g, const float **a, const float **b,
                    float **c, int64_t count) {
    const blas_check check = {layout != CblasRowMajor && layout != CblasColMajor, 1, "layout", layout};
    if (blas_all_legal(caller, "cblas_sgemm_batch", &check, 1))
        batch_groups(caller, g, (const float *const *)a, (const float *const *)b, c, count);
}

/* From the arguments that all of these have, and what else is said. */
#define GROUPS(...)                                                                                     \
    {                                                                                                   \
        .m = m_array, .n = n_array, .k = k_array, .lda = lda_array, .ldb = ldb_array, .ldc = ldc_array, \
        .size = group_size, .alpha = alpha_array, .beta = beta_array, __VA_ARGS__                       \
    }

void cblas_sgemm_batch(CBLAS_LAYOUT layout, const CBLAS_TRANSPOSE *transa_array, const CBLAS_TRANSPOSE *transb_array,
                       const int *m_array, const int *n_array, const int *k_array, const float *alpha_array,
                       const float **a_array, const int *lda_array, const float **b_array, const int *ldb_array,
                       const float *beta_array, float **c_array, const int *ldc_array, int group_count,
                       const int *group_size) {
    const groups g = GROUPS(.row_major = layout == CblasRowMajor, .transa = transa_array, .transb = transb_array);
    batch_c(CBLAS, layout, &g, a_array, b_array, c_array, group_count);
}

void cblas_sgemm_batch_64(CBLAS_LAYOUT layout, const CBLAS_TRANSPOSE *transa_array, const CBLAS_TRANSPOSE *transb_array,
                          const int64_t *m_array, const int64_t *n_array, const int64_t *k_array,
                          const float *alpha_array, const float **a_array, const int64_t *lda_array,
                          const float **b_array, const int64_t *ldb_array, const float *beta_array, float **c_array,
                          const int64_t *ldc_array, int64_t group_count, const int64_t *group_size) {
    const groups g = GROUPS(.wide = true, .row_major = layout == CblasRowMajor, .transa = transa_array,
                            .transb = transb_array);
    batch_c(CBLAS_64, layout, &g, a_array, b_array, c_array, group_count);
}

void sgemm_batch_(const char *transa_array, const char *transb_array, const int *m_array, const int *n_array,
                  const int *k_array, const float *alpha_array, const float **a_array, const int *lda_array,
                  const float **b_array, const int *ldb_array, const float *beta_array, float **c_array,
                  const int *ldc_array, const int *group_count, const int *group_size) {
    const groups g = GROUPS(.letters_a = transa_array, .letters_b = transb_array);
    batch_groups(FORTRAN, &g, (const float *const *)a_array, (const float *const *)b_array, c_array, *group_count);
}

void sgemm_batch_64_(const char *transa_array, const char *transb_array, const int64_t *m_array, const int64_t *n_array,
                     const int64_t *k_array, const float *alpha_array, const float **a_array, const int64_t *lda_array,
                     const float **b_array, const int64_t *ldb_array, const float *beta_array, float **c_array,
                     const int64_t *ldc_array, const int64_t *group_count, const int64_t *group_size) {
    const groups g = GROUPS(.wide = true, .letters_a = transa_array, .letters_b = transb_array);
    batch_groups(FORTRAN_64, &g, (const float *const *)a_array, (const float *const *)b_array, c_array, *group_count);
}
