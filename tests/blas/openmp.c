/* openmp.c: products from inside a parallel region, each thread its own, and one outside. Exits with 1 where one is
 * wrong. */
#include <stdio.h>
#include <stdlib.h>

#include "tessera_blas.h"

enum { N = 200 };

static int multiply(int seed) {
    float *a = malloc(N * N * sizeof *a), *b = malloc(N * N * sizeof *b), *c = malloc(N * N * sizeof *c);
    for (int i = 0; i < N * N; i++) {
        a[i] = (float)((i * 7 + seed) % 5);
        b[i] = (float)((i * 3 + seed) % 7);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, a, N, b, N, 0, c, N);
    int wrong = 0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int k = 0; k < N; k++) sum += a[i * N + k] * b[k * N + j];
            wrong += sum != c[i * N + j];
        }
    free(a);
    free(b);
    free(c);
    return wrong;
}

int main(void) {
    int wrong = multiply(0);
#pragma omp parallel for reduction(+ : wrong) num_threads(4)
    for (int i = 0; i < 8; i++) wrong += multiply(i);
    if (wrong) printf("%d elements are wrong\n", wrong);
    return wrong != 0;
}
