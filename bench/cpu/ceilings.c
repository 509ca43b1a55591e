/* ceilings.c: what this machine's cores and memory can do at most: multiply-adds that stay in registers, and reading.
 *
 *     ceilings THREADS
 *
 * prints GFLOP/s and GB/s, the best of several tries, all threads at work at once. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "chains.h"

enum { ROUNDS = 2000000, TRIES = 5, MAX_THREADS = 1024 };
static const size_t read_bytes = 256u << 20; /* beyond any cache, for each thread */

/* Several streams side by side, and what comes next asked for: one alone leaves memory waiting between its pages. */
__attribute__((target_clones("avx512f", "arch=haswell", "default"))) static float read_all(const vector *data) {
    enum { STREAMS = 8, AHEAD = 32 };
    const size_t each = read_bytes / sizeof(vector) / STREAMS;
    vector sums[STREAMS] = {{0}};
    for (size_t i = 0; i < each; i++) {
#pragma GCC unroll 8
        for (size_t j = 0; j < STREAMS; j++) {
            __builtin_prefetch(data + j * each + i + AHEAD, 0, 2);
            sums[j] += data[j * each + i];
        }
    }
    for (int j = 1; j < STREAMS; j++) sums[0] += sums[j];
    return sums[0][0];
}

static pthread_barrier_t barrier;

struct worker {
    vector *data;
    double begin[2][TRIES], end[2][TRIES]; /* of multiplying and of reading, by the worker's own clock */
    float result;                          /* so that the work is not left out */
};

static void *work(void *argument) {
    struct worker *worker = argument;
    for (size_t i = 0; i < read_bytes / sizeof(vector); i++) worker->data[i] = (vector){1};
    for (int i = 0; i < 2 * TRIES; i++) {
        const int reading = i % 2;
        pthread_barrier_wait(&barrier);
        worker->begin[reading][i / 2] = now();
        worker->result += reading ? read_all(worker->data) : multiply_add(1, ROUNDS);
        worker->end[reading][i / 2] = now();
    }
    return NULL;
}

/* The least time from the first worker's beginning to the last one's end. */
static double best_seconds(const struct worker *workers, int threads, int reading) {
    double best = 1e9;
    for (int i = 0; i < TRIES; i++) {
        double begin = workers[0].begin[reading][i], end = workers[0].end[reading][i];
        for (int t = 1; t < threads; t++) {
            if (workers[t].begin[reading][i] < begin) begin = workers[t].begin[reading][i];
            if (workers[t].end[reading][i] > end) end = workers[t].end[reading][i];
        }
        if (end - begin < best) best = end - begin;
    }
    return best;
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (threads < 1 || threads > MAX_THREADS) return fputs("usage: ceilings THREADS\n", stderr), 2;
    static struct worker workers[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        workers[i].data = aligned_alloc(64, read_bytes);
        if (!workers[i].data || pthread_create(&ids[i], NULL, work, &workers[i]))
            return fputs("ceilings: no memory or no thread\n", stderr), 1;
    }
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    const double flops = 2.0 * CHAINS * LANES * ROUNDS * threads;
    printf("%.1f %.2f\n", 1e-9 * flops / best_seconds(workers, threads, 0),
           1e-9 * (double)read_bytes * threads / best_seconds(workers, threads, 1));
    return 0;
}
