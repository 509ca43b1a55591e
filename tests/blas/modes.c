/* modes.c: the same bits in every floating-point mode of the caller: denormals-are-zero and flush-to-zero, as
 * -ffast-math sets them, the four rounding modes, and unmasked traps. Subnormal alpha and beta are among the factors.
 * Exits with 1 where a result differs, or the caller's mode is not as it was. */
#include <stdio.h>
#include <string.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "tessera_blas.h"

#ifdef __SSE__
enum { MOST = 300, DEFAULT_MODE = 0x1f80, FLAGS = 0x3f };

static float a[MOST * MOST], b[MOST * MOST], c[MOST * MOST], plain[MOST * MOST];

static void multiply(int size, float alpha, float beta, float *to) {
    for (int i = 0; i < size * size; i++) to[i] = 1e30f;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, size, size, size, alpha, a, size, b, size, beta, to, size);
}

static float subnormal(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

int main(void) {
    static const unsigned modes[] = {0x9fc0, 0x3f80, 0x5f80, 0x7f80, 0x0000, 0xffc0};
    static const int sizes[] = {5, 100, MOST};
    const float factors[] = {1, subnormal(1), subnormal(0x7fffff), 0};
    for (int i = 0; i < MOST * MOST; i++) a[i] = b[i] = (float)(i % 7 - 3) * 1e15f + 0.1f;
    for (int s = 0; s < 3; s++)
        for (int f = 0; f < 16; f++) {
            multiply(sizes[s], factors[f / 4], factors[f % 4], plain);
            for (int i = 0; i < 6; i++) {
                const size_t bytes = sizeof *c * (size_t)(sizes[s] * sizes[s]);
                for (int j = 0; j < sizes[s] * sizes[s]; j++) c[j] = 1e30f;
                _mm_setcsr(modes[i]);
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, sizes[s], sizes[s], sizes[s], factors[f / 4], a,
                            sizes[s], b, sizes[s], factors[f % 4], c, sizes[s]);
                const unsigned after = _mm_getcsr();
                _mm_setcsr(DEFAULT_MODE);
                if (memcmp(c, plain, bytes) || (after & ~(unsigned)FLAGS) != modes[i]) {
                    printf("size %d, factors %d, mode %x: %s\n", sizes[s], f, modes[i],
                           (after & ~(unsigned)FLAGS) != modes[i] ? "the mode has changed" : "other bits");
                    return 1;
                }
            }
        }
    return 0;
}
#else
int main(void) { return 0; }
#endif
