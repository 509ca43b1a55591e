/* matrices.h: integer-valued matrices, and their products by plain loops. */
#ifndef TESSERA_TESTS_MATRICES_H
#define TESSERA_TESTS_MATRICES_H

#include <stdint.h>

enum { BATCH = 3, M = 150, N = 170, K = 420, SMALL = 9 };

static float a[BATCH * M * K], b[BATCH * K * N], before[BATCH * M * N], c[BATCH * M * N], expected[BATCH * M * N];

static void fill(float *x, int64_t count, int64_t seed) {
    for (int64_t i = 0; i < count; i++) x[i] = (float)((i * 7 + seed + i / 13) % 9 - 4);
}

/* C = 2*A*B + before, item by item. B is stored transposed: both operands are then worth packing. */
static void make_matrices(void) {
    fill(a, BATCH * M * K, 1);
    fill(b, BATCH * K * N, 2);
    fill(before, BATCH * M * N, 3);
    for (int64_t item = 0; item < BATCH; item++)
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < N; j++) {
                float sum = 0;
                for (int64_t p = 0; p < K; p++) sum += a[(item * M + i) * K + p] * b[(item * N + j) * K + p];
                expected[(item * M + i) * N + j] = 2 * sum + before[(item * M + i) * N + j];
            }
}

/* The first count x count of the same product, over a depth of count, in rows N apart. */
static float expected_small(int64_t i, int64_t j, int64_t count) {
    float sum = 0;
    for (int64_t p = 0; p < count; p++) sum += a[i * K + p] * b[j * K + p];
    return 2 * sum + before[i * N + j];
}

#endif
