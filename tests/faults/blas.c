/* blas.c KIND once|+: products by the BLAS's names while a call of that kind fails. Every result must be right: the
 * standard has no way to report a failure. The first calls of a process are among those that fail. */
#include <string.h>

#include "each.h"
#include "matrices.h"
#include "tessera_blas.h"

static void check(const char *call, int batch) {
    REQUIRE(!memcmp(c, expected, sizeof *c * (size_t)batch * M * N), "%s: C is wrong", call);
    memcpy(c, before, sizeof c);
}

static void multiply_small(void) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, SMALL, SMALL, SMALL, 2, a, K, b, K, 1, c, N);
    for (int i = 0; i < SMALL; i++)
        for (int j = 0; j < SMALL; j++)
            REQUIRE(c[i * N + j] == expected_small(i, j, SMALL), "cblas_sgemm, small: (%d, %d) is wrong", i, j);
    memcpy(c, before, sizeof c);
}

/* A and C share the rows of one memory, side by side, with leading dimensions that differ: the library takes that for
 * overlap, and the operands are copied. */
static void multiply_interleaved(void) {
    enum { COUNT = 20 };
    static float memory[200 * COUNT];
    for (int i = 0; i < COUNT; i++) memcpy(memory + 200 * i, a + K * i, COUNT * sizeof *a);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, COUNT, COUNT, COUNT, 2, memory, 200, b, K, 0, memory + 50,
                100);
    for (int i = 0; i < COUNT; i++)
        for (int j = 0; j < COUNT; j++)
            REQUIRE(memory[50 + 100 * i + j] == expected_small(i, j, COUNT) - before[i * N + j],
                    "interleaved: (%d, %d) is wrong", i, j);
}

/* pack: op(A) or op(B) is packed beforehand, which may find no memory for its size; then there is no product to
 * make. */
static void multiply_packed(CBLAS_IDENTIFIER identifier) {
    static float memory[4 * (M + N) * K];
    const bool is_a = identifier == CblasAMatrix;
    const size_t size = cblas_sgemm_pack_get_size(identifier, M, N, K);
    REQUIRE(size <= sizeof memory, "cblas_sgemm_pack_get_size is %zu", size);
    cblas_sgemm_pack(CblasRowMajor, identifier, is_a ? CblasNoTrans : CblasTrans, M, N, K, 2, is_a ? a : b, K, memory);
    cblas_sgemm_compute(CblasRowMajor, is_a ? (int)CblasPacked : (int)CblasNoTrans,
                        is_a ? (int)CblasTrans : (int)CblasPacked, M, N, K, is_a ? memory : a, K, is_a ? b : memory, K,
                        1, c, N);
    check("cblas_sgemm_compute", 1);
}

/* As a program with OpenMP has it: inside a region, products are computed by another context. */
static int in_parallel;
int omp_in_parallel(void);
int omp_in_parallel(void) { return in_parallel; }

static void scenario(bool faulty) {
    (void)faulty;
    memcpy(c, before, sizeof c);
    multiply_packed(CblasBMatrix);
    multiply_small();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 2, a, K, b, K, 1, c, N);
    check("cblas_sgemm", 1);
    in_parallel = 1;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 2, a, K, b, K, 1, c, N);
    check("cblas_sgemm in a parallel region", 1);
    in_parallel = 0;
    const int m = N, n = M, k = K;
    const float alpha = 2, beta = 1;
    sgemm_("T", "N", &m, &n, &k, &alpha, b, &k, a, &k, &beta, c, &m); /* C^T = B^T A^T, column-major */
    check("sgemm_", 1);
    cblas_sgemm_batch_strided(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 2, a, K, M * K, b, K, K * N, 1, c, N,
                              M * N, BATCH);
    check("cblas_sgemm_batch_strided", BATCH);
    multiply_interleaved();
    multiply_packed(CblasAMatrix);
}

int main(int count, char **words) {
    setenv("TESSERA_NUM_THREADS", "3", 1);
    setenv("TESSERA_DEVICE", "cpu", 1);
    make_matrices();
    return each_fault(count, words, scenario);
}
