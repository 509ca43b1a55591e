/* chains.h: multiply-adds that stay in registers, as many as a core can do, and a clock; for ceilings.c and
 * disturbed.c. */
#ifndef TESSERA_BENCH_CHAINS_H
#define TESSERA_BENCH_CHAINS_H

#include <time.h>

typedef float vector __attribute__((vector_size(64))); /* what AVX2 and older do in two or four steps */

enum { CHAINS = 12, LANES = sizeof(vector) / sizeof(float) }; /* enough chains to hide an instruction's latency */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* CHAINS * LANES multiply-adds in each round. Its result is there so that the work is not left out. */
__attribute__((target_clones("avx512f", "arch=haswell", "default"))) static float multiply_add(float start,
                                                                                               int rounds) {
    vector sums[CHAINS], factor = {0}, addend = {0};
    factor += 0.5f;
    addend += start;
    for (int i = 0; i < CHAINS; i++) sums[i] = addend * (float)i;
    for (int round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) sums[i] = sums[i] * factor + addend;
    }
    for (int i = 1; i < CHAINS; i++) sums[0] += sums[i];
    return sums[0][0];
}

#endif
