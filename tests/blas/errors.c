/* errors.c: every error exit of sgemm_ and cblas_sgemm, with handlers of the program's own or, compiled with
 * -DNO_HANDLERS, without. Prints what each call reports; test_blas.py knows what it must be. */
#include <stdarg.h>
#include <stdio.h>

#include "tessera_blas.h"

#ifndef NO_HANDLERS
int RowMajorStrg, CBLAS_CallFromC;

void xerbla_(const char *routine, const int *argument, size_t length) {
    printf("xerbla_ <%.*s> %d, row-major %d, from C %d\n", (int)length, routine, *argument, RowMajorStrg,
           CBLAS_CallFromC);
}

void xerbla_64_(const char *routine, const int64_t *argument, size_t length) {
    printf("xerbla_64_ <%.*s> %d, row-major %d, from C %d\n", (int)length, routine, (int)*argument, RowMajorStrg,
           CBLAS_CallFromC);
}

void cblas_xerbla(int argument, const char *routine, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("cblas_xerbla %s %d: ", routine, argument);
    vprintf(format, arguments);
    va_end(arguments);
}

void cblas_xerbla64_(int64_t argument, const char *routine, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("cblas_xerbla64_ %s %d: ", routine, (int)argument);
    vprintf(format, arguments);
    va_end(arguments);
}
#endif

static float a[16], b[16], c[16];

static void fortran(char ta, char tb, int m, int n, int k, int lda, int ldb, int ldc) {
    const float one = 1;
    printf("%c%c %d %d %d, %d %d %d: ", ta, tb, m, n, k, lda, ldb, ldc);
    fflush(stdout);
    sgemm_(&ta, &tb, &m, &n, &k, &one, a, &lda, b, &ldb, &one, c, &ldc);
    printf("\n");
    fflush(stdout);
}

static void from_c(int layout, int ta, int tb, int m, int n, int k, int lda, int ldb, int ldc) {
    printf("%d %d %d %d %d %d, %d %d %d: ", layout, ta, tb, m, n, k, lda, ldb, ldc);
    fflush(stdout);
    cblas_sgemm((CBLAS_LAYOUT)layout, (CBLAS_TRANSPOSE)ta, (CBLAS_TRANSPOSE)tb, m, n, k, 1, a, lda, b, ldb, 1, c, ldc);
    printf("\n");
    fflush(stdout);
}

int main(void) {
    fortran('X', 'N', -1, 0, 0, 1, 1, 1);
    fortran('N', '/', -1, 0, 0, 1, 1, 1);
    for (int i = 0; i < 4; i++) {
        const char ta = "NNTc"[i], tb = "NtNC"[i];
        const int rows_a = ta == 'N' ? 2 : 3, rows_b = tb == 'N' ? 3 : 4;
        fortran(ta, tb, -1, -1, -1, 0, 0, 0);
        fortran(ta, tb, 2, -1, -1, 0, 0, 0);
        fortran(ta, tb, 2, 4, -1, 0, 0, 0);
        fortran(ta, tb, 2, 4, 3, rows_a - 1, 0, 0);
        fortran(ta, tb, 2, 4, 3, rows_a, rows_b - 1, 0);
        fortran(ta, tb, 2, 4, 3, rows_a, rows_b, 1);
        fortran(ta, tb, 0, 0, 0, 0, 1, 1);
        fortran(ta, tb, 0, 0, 0, 1, 0, 1);
        fortran(ta, tb, 0, 0, 0, 1, 1, 0);
        fortran(ta, tb, 2, 4, 3, rows_a, rows_b, 2);
    }
    from_c(100, 111, 111, -1, 0, 0, 1, 1, 1);
    for (int layout = 101; layout <= 102; layout++) {
        from_c(layout, 110, 111, -1, 0, 0, 1, 1, 1);
        from_c(layout, 111, 114, -1, 0, 0, 1, 1, 1);
        from_c(layout, 111, 112, -1, -1, -1, 0, 0, 0);
        from_c(layout, 111, 112, 2, -1, -1, 0, 0, 0);
        from_c(layout, 111, 112, 2, 4, -1, 0, 0, 0);
        from_c(layout, 111, 112, 2, 4, 3, 1, 9, 9);
        from_c(layout, 111, 112, 2, 4, 3, 9, 2, 9);
        from_c(layout, 111, 112, 2, 4, 3, 9, 9, 1);
        from_c(layout, 111, 112, 2, 4, 3, 1, 1, 1);
    }
    printf("64 bits: ");
    fflush(stdout);
    const int64_t none = -1, one = 1;
    const float zero = 0;
    sgemm_64_("N", "N", &one, &none, &one, &zero, a, &one, b, &one, &zero, c, &one);
    fflush(stdout);
    cblas_sgemm64_(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, a, 0, b, 1, 1, c, 1);
    fflush(stdout);
    cblas_sgemm64_(CblasRowMajor, (CBLAS_TRANSPOSE)0, CblasNoTrans, 1, 1, 1, 1, a, 0, b, 1, 1, c, 1);
    printf("\n");
    fflush(stdout);
    for (int i = 0; i < 16; i++)
        if (c[i] != 0) return 1; /* nothing illegal has written anything, and the operands are zero */
    return 0;
}
