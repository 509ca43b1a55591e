/* sgemm.c: a BLAS of one function, right as it stands, or with one fault that -DFAULT=... puts into it, for
 * `tessera check --library` to find. -DNAME and -DINTEGER choose which of the standard's names it has. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum fault {
    NONE,
    DROPS_A_TERM,
    READS_C,
    READS_A_AND_B,     /* although alpha is 0 */
    READS_OUTSIDE,     /* between the columns of A */
    WRITES_OUTSIDE,    /* between the columns of C */
    ROUNDS_OPERANDS,   /* to 11 bits, as TF32 does */
    CUTS_OPERANDS,     /* to 11 bits, without rounding */
    FORGETS_THE_SMALL, /* elements of A far below their row's largest */
    FLUSHES_SUBNORMALS,
    ROUNDS_UP,         /* results, to the next number, exact ones too: within the bound, but wrong for integers */
    LOSES_SIGNS,       /* of infinities */
    CHANGES_ITS_ORDER, /* from call to call */
    CRASHES,
    EXITS
};

#ifndef FAULT
#define FAULT NONE
#endif
#ifndef INTEGER
#define INTEGER int
#endif

static float rounded(float x) {
    unsigned bits;
    if ((FAULT != ROUNDS_OPERANDS && FAULT != CUTS_OPERANDS) || !isfinite(x)) return x;
    memcpy(&bits, &x, sizeof bits);
    if (FAULT == ROUNDS_OPERANDS) bits += 0xfff + (bits >> 13 & 1);
    bits &= ~0x1fffu;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

static float flushed(float x) { return FAULT == FLUSHES_SUBNORMALS && fpclassify(x) == FP_SUBNORMAL ? 0 : x; }

static float faulty(float x) { return flushed(rounded(x)); }

/* C (m x n) = alpha op(A) op(B) + beta C, all stored in columns. */
static void multiply(int transpose_a, int transpose_b, long m, long n, long k, float alpha, const float *a, long lda,
                     const float *b, long ldb, float beta, float *c, long ldc) {
    static int calls;
    int backwards = FAULT == CHANGES_ITS_ORDER && calls++ % 2;
    if (FAULT == CRASHES) abort();
    if (FAULT == EXITS) exit(0);
    if (FAULT == DROPS_A_TERM && k > 1) k--;
    float *plain = malloc(sizeof *plain * (size_t)(m * k + m)), *sums = plain + m * k;
    if (!plain) abort();
    for (long i = 0; i < m; i++) {
        float largest = 0;
        for (long p = 0; p < k; p++) {
            plain[i + p * m] = faulty(transpose_a ? a[p + i * lda] : a[i + p * lda]);
            largest = fmaxf(largest, fabsf(plain[i + p * m]));
        }
        for (long p = 0; p < k && FAULT == FORGETS_THE_SMALL; p++)
            if (fabsf(plain[i + p * m]) < 0x1p-30f * largest) plain[i + p * m] = 0;
    }
    for (long j = 0; j < n; j++) {
        memset(sums, 0, sizeof *sums * (size_t)m);
        for (long step = 0; step < k; step++) {
            long p = backwards ? k - 1 - step : step;
            float y = faulty(transpose_b ? b[j + p * ldb] : b[p + j * ldb]);
            for (long i = 0; i < m; i++) sums[i] += plain[i + p * m] * y;
        }
        for (long i = 0; i < m; i++) {
            float *result = &c[i + j * ldc], scaled = alpha == 0 && FAULT != READS_A_AND_B ? 0 : alpha * sums[i];
            *result = flushed(beta == 0 && FAULT != READS_C ? scaled : scaled + beta * *result);
            if (FAULT == LOSES_SIGNS && isinf(*result)) *result = INFINITY;
            if (FAULT == ROUNDS_UP && isfinite(*result)) *result = nextafterf(*result, INFINITY);
        }
    }
    if (FAULT == READS_OUTSIDE && lda > (transpose_a ? k : m)) c[0] += 0 * a[lda - 1];
    if (FAULT == WRITES_OUTSIDE && ldc > m) c[ldc - 1] = 0;
    free(plain);
}

#ifdef CBLAS
void NAME(int order, int transpose_a, int transpose_b, INTEGER m, INTEGER n, INTEGER k, float alpha, const float *a,
          INTEGER lda, const float *b, INTEGER ldb, float beta, float *c, INTEGER ldc) {
    if (order == 101) /* by rows: C^T = B^T A^T */
        multiply(transpose_b == 112, transpose_a == 112, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc);
    else
        multiply(transpose_a == 112, transpose_b == 112, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
#else
void NAME(const char *transpose_a, const char *transpose_b, const INTEGER *m, const INTEGER *n, const INTEGER *k,
          const float *alpha, const float *a, const INTEGER *lda, const float *b, const INTEGER *ldb, const float *beta,
          float *c, const INTEGER *ldc) {
    multiply(*transpose_a == 'T', *transpose_b == 'T', *m, *n, *k, *alpha, a, *lda, b, *ldb, *beta, c, *ldc);
}
#endif
