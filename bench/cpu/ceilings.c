/* ceilings.c: what this machine's cores and memory can do at most: multiply-adds that stay in registers, and reading.
 *
 *     ceilings THREADS
 *
 * prints GFLOP/s and GB/s, the best of several tries, all threads at work at once. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef float vector __attribute__((vector_size(64))); /* what AVX2 and older do in two or four steps */

enum { CHAINS = 12, ROUNDS = 2000000, TRIES = 5, MAX_THREADS = 1024 };
static const size_t read_bytes = 256u << 20; /* beyond any cache, for each thread */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Chains of multiply-adds, enough of them to hide their latency. */
__attribute__((target_clones("avx512f", "arch=haswell", "default"))) static float multiply_add(float start) {
    vector sums[CHAINS], factor = {0}, addend = {0};
    factor += 0.5f;
    addend += start;
    for (int i = 0; i < CHAINS; i++) sums[i] = addend * (float)i;
    for (int round = 0; round < ROUNDS; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) sums[i] = sums[i] * factor + addend;
    }
    for (int i = 1; i < CHAINS; i++) sums[0] += sums[i];
    return sums[0][0];
}

__attribute__((target_clones("avx512f", "arch=haswell", "default"))) static float read_all(const vector *data) {
    vector sums[4] = {{0}};
    for (size_t i = 0; i + 4 <= read_bytes / sizeof(vector); i += 4)
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++) sums[j] += data[i + j];
    sums[0] += sums[1] + sums[2] + sums[3];
    return sums[0][0];
}

static pthread_barrier_t barrier;

struct worker {
    vector *data;
    float result; /* so that the work is not left out */
};

static void *work(void *argument) {
    struct worker *worker = argument;
    for (size_t i = 0; i < read_bytes / sizeof(vector); i++) worker->data[i] = (vector){1};
    for (int i = 0; i < TRIES; i++) {
        pthread_barrier_wait(&barrier);
        worker->result += multiply_add(1);
        pthread_barrier_wait(&barrier);
        worker->result += read_all(worker->data);
    }
    pthread_barrier_wait(&barrier);
    return NULL;
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (threads < 1 || threads > MAX_THREADS) return fputs("usage: ceilings THREADS\n", stderr), 2;
    static struct worker workers[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++) {
        workers[i].data = aligned_alloc(64, read_bytes);
        if (!workers[i].data || pthread_create(&ids[i], NULL, work, &workers[i]))
            return fputs("ceilings: no memory or no thread\n", stderr), 1;
    }
    double multiply_best = 1e9, read_best = 1e9;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < TRIES; i++) {
        const double begin = now();
        pthread_barrier_wait(&barrier);
        const double middle = now();
        pthread_barrier_wait(&barrier);
        const double end = now();
        if (middle - begin < multiply_best) multiply_best = middle - begin;
        if (end - middle < read_best) read_best = end - middle;
    }
    const double flops = 2.0 * CHAINS * ROUNDS * (double)(sizeof(vector) / sizeof(float)) * threads;
    printf("%.1f %.2f\n", 1e-9 * flops / multiply_best, 1e-9 * (double)read_bytes * threads / read_best);
    return 0;
}
