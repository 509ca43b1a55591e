/* dropout.h: which weights of attention are dropped. Plain C, for nvcc and the C compiler: every engine drops the same.
 *
 * Weight (i, j) of query i and key j has a 16-bit number, and is dropped where that is below dropout_limit. One call of
 * Philox4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) makes the numbers of the eight
 * weights of queries i and i + 8 with keys j, j + 1, j + 8 and j + 9, for i % 16 < 8 and even j with j % 16 < 8: those
 * are what one thread holds of a matrix instruction's result. */
#ifndef TESSERA_DROPOUT_H
#define TESSERA_DROPOUT_H

#include <stdint.h>

#ifdef __CUDACC__
#define DROPOUT_FUNCTION __device__ inline
#else
#define DROPOUT_FUNCTION static inline
#endif

/* The generator of one head's weights. `head` counts the heads of all items of the batch. */
typedef struct dropout_key {
    uint32_t seed[2], head, offset;
} dropout_key;

DROPOUT_FUNCTION dropout_key dropout_key_of(uint64_t seed, uint64_t offset, uint32_t head) {
    const uint64_t mixed = seed ^ (offset & 0xffffffff00000000u);
    const dropout_key key = {{(uint32_t)mixed, (uint32_t)(mixed >> 32)}, head, (uint32_t)offset};
    return key;
}

/* The eight numbers of the group that (i, j) belongs to, two to a word: word 2*(i/8 % 2) + j/8 % 2, its lower half for
 * even j. */
DROPOUT_FUNCTION void dropout_numbers(dropout_key key, uint32_t i, uint32_t j, uint32_t numbers[4]) {
    uint32_t x0 = i / 16 * 8 + i % 8, x1 = j / 16 * 4 + j % 8 / 2, x2 = key.head, x3 = key.offset;
    uint32_t k0 = key.seed[0], k1 = key.seed[1];
    for (int round = 0; round < 7; round++) {
        const uint64_t p0 = (uint64_t)0xd2511f53u * x0, p1 = (uint64_t)0xcd9e8d57u * x2;
        const uint32_t y0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0, y2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x0 = y0, x1 = (uint32_t)p1, x2 = y2, x3 = (uint32_t)p0;
        k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
    numbers[0] = x0, numbers[1] = x1, numbers[2] = x2, numbers[3] = x3;
}

/* Weights whose number is below this are dropped: probability * 2^16, rounded. */
DROPOUT_FUNCTION uint32_t dropout_limit(float probability) { return (uint32_t)(probability * 65536 + 0.5f); }

/* What the others are multiplied by, so that the expected sum stays. */
DROPOUT_FUNCTION float dropout_scale(uint32_t limit) { return 65536.0f / (float)(65536 - limit); }

#endif
