/* tessera_blas.h: the functions of libtessera_blas, for programs without a cblas.h of their own (which would declare
 * the first of them, too: include one or the other).
 *
 * sgemm_ and cblas_sgemm are those of the BLAS standard; batches and packed products are those of oneMKL. Names that
 * end in 64_ or _64 take 64-bit integers. Whatever a function finds wrong it reports through xerbla_ or cblas_xerbla,
 * as the reference implementation does, and returns. docs/guide/blas.md says what the environment chooses.
 */
#ifndef TESSERA_BLAS_H
#define TESSERA_BLAS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

typedef enum CBLAS_LAYOUT { CblasRowMajor = 101, CblasColMajor = 102 } CBLAS_LAYOUT;
typedef enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112, CblasConjTrans = 113 } CBLAS_TRANSPOSE;
typedef enum CBLAS_STORAGE { CblasPacked = 151 } CBLAS_STORAGE; /* in the place of a CBLAS_TRANSPOSE */
typedef enum CBLAS_IDENTIFIER { CblasAMatrix = 161, CblasBMatrix = 162 } CBLAS_IDENTIFIER;

/* ---- C = alpha*op(A)*op(B) + beta*C ------------------------------------------------------------------------------ */

void sgemm_(const char *transa, const char *transb, const int *m, const int *n, const int *k, const float *alpha,
            const float *a, const int *lda, const float *b, const int *ldb, const float *beta, float *c,
            const int *ldc);
void sgemm_64_(const char *transa, const char *transb, const int64_t *m, const int64_t *n, const int64_t *k,
               const float *alpha, const float *a, const int64_t *lda, const float *b, const int64_t *ldb,
               const float *beta, float *c, const int64_t *ldc);

void cblas_sgemm(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
void cblas_sgemm64_(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int64_t m, int64_t n,
                    int64_t k, float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                    float *c, int64_t ldc); /* OpenBLAS's name for it */
void cblas_sgemm_64(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int64_t m, int64_t n,
                    int64_t k, float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                    float *c, int64_t ldc); /* the reference's and oneMKL's */

/* ---- A batch: the i-th product at a + i*stridea, b + i*strideb, c + i*stridec ------------------------------------ */

void cblas_sgemm_batch_strided(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k,
                               float alpha, const float *a, int lda, int stridea, const float *b, int ldb, int strideb,
                               float beta, float *c, int ldc, int stridec, int batch_size);
void cblas_sgemm_batch_strided_64(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int64_t m,
                                  int64_t n, int64_t k, float alpha, const float *a, int64_t lda, int64_t stridea,
                                  const float *b, int64_t ldb, int64_t strideb, float beta, float *c, int64_t ldc,
                                  int64_t stridec, int64_t batch_size);

/* Groups of products, whose matrices lie anywhere: group i is group_size[i] products of the same shape, and pointers of
 * one group follow those of the group before. */
void cblas_sgemm_batch(CBLAS_LAYOUT layout, const CBLAS_TRANSPOSE *transa_array, const CBLAS_TRANSPOSE *transb_array,
                       const int *m_array, const int *n_array, const int *k_array, const float *alpha_array,
                       const float **a_array, const int *lda_array, const float **b_array, const int *ldb_array,
                       const float *beta_array, float **c_array, const int *ldc_array, int group_count,
                       const int *group_size);
void cblas_sgemm_batch_64(CBLAS_LAYOUT layout, const CBLAS_TRANSPOSE *transa_array, const CBLAS_TRANSPOSE *transb_array,
                          const int64_t *m_array, const int64_t *n_array, const int64_t *k_array,
                          const float *alpha_array, const float **a_array, const int64_t *lda_array,
                          const float **b_array, const int64_t *ldb_array, const float *beta_array, float **c_array,
                          const int64_t *ldc_array, int64_t group_count, const int64_t *group_size);
void sgemm_batch_(const char *transa_array, const char *transb_array, const int *m_array, const int *n_array,
                  const int *k_array, const float *alpha_array, const float **a_array, const int *lda_array,
                  const float **b_array, const int *ldb_array, const float *beta_array, float **c_array,
                  const int *ldc_array, const int *group_count, const int *group_size);
void sgemm_batch_64_(const char *transa_array, const char *transb_array, const int64_t *m_array, const int64_t *n_array,
                     const int64_t *k_array, const float *alpha_array, const float **a_array, const int64_t *lda_array,
                     const float **b_array, const int64_t *ldb_array, const float *beta_array, float **c_array,
                     const int64_t *ldc_array, const int64_t *group_count, const int64_t *group_size);

/* ---- Packed products: an operand packed once serves many --------------------------------------------------------- */

/* Bytes that cblas_sgemm_pack writes for op(A), m x k, or op(B), k x n; 0 where there is no memory for that many. */
size_t cblas_sgemm_pack_get_size(CBLAS_IDENTIFIER identifier, int m, int n, int k);
size_t cblas_sgemm_pack_get_size_64(CBLAS_IDENTIFIER identifier, int64_t m, int64_t n, int64_t k);

/* Allocates that many bytes, or returns NULL; cblas_sgemm_free frees them. The caller may use its own memory
 * instead. */
float *cblas_sgemm_alloc(CBLAS_IDENTIFIER identifier, int m, int n, int k);
float *cblas_sgemm_alloc_64(CBLAS_IDENTIFIER identifier, int64_t m, int64_t n, int64_t k);
void cblas_sgemm_free(float *dest);
void cblas_sgemm_free_64(float *dest);

/* Packs alpha*op(src) into dest, which must then stay where it is; src may go away. */
void cblas_sgemm_pack(CBLAS_LAYOUT layout, CBLAS_IDENTIFIER identifier, CBLAS_TRANSPOSE trans, int m, int n, int k,
                      float alpha, const float *src, int ld, float *dest);
void cblas_sgemm_pack_64(CBLAS_LAYOUT layout, CBLAS_IDENTIFIER identifier, CBLAS_TRANSPOSE trans, int64_t m, int64_t n,
                         int64_t k, float alpha, const float *src, int64_t ld, float *dest);

/* C = op(A)*op(B) + beta*C. transa or transb is CblasPacked where a or b is what cblas_sgemm_pack wrote; its leading
 * dimension is ignored then. */
void cblas_sgemm_compute(CBLAS_LAYOUT layout, int transa, int transb, int m, int n, int k, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc);
void cblas_sgemm_compute_64(CBLAS_LAYOUT layout, int transa, int transb, int64_t m, int64_t n, int64_t k,
                            const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                            int64_t ldc);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
