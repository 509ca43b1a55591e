/* blas.c: a program that calls the installed libtessera_blas, in C11 and C++. Exits 0 when the product is right. */
#include <tessera_blas.h>

int main(void) {
    const float a[2 * 3] = {1, 2, 3, 4, 5, 6}, b[3 * 2] = {7, 8, 9, 10, 11, 12};
    float c[2 * 2] = {0, 0, 0, 0};
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 2, 2, 3, 1, a, 3, b, 2, 0, c, 2);
    return !(c[0] == 58 && c[1] == 64 && c[2] == 139 && c[3] == 154);
}
