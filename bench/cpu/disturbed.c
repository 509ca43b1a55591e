/* disturbed.c: how quick some cores are at this moment, for quiet.py to know which of them a neighbour slows.
 *
 *     disturbed CORES...
 *
 * CORES are numbers with commas between: those of one argument work at once, one argument after the other. For each it
 * prints the rate of its slowest core, in units of 10^9 multiply-adds a second: of AMX's tile instructions where there
 * are any, since the threads of a core share one unit for them, else of float32 vectors. A core is looked at for about
 * a millisecond. */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "chains.h"

/* ---- The work ---------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 50000 };

#ifdef __x86_64__
#include "amx_tile.h"

enum { PERMIT = 0x1023, TILE_DATA = 18, TILE_ROUNDS = 20000, TILE_PRODUCTS = 16 * 16 * 32 };

static bool may_use_tiles(void) {
    return __builtin_cpu_supports("avx512f") && !syscall(SYS_arch_prctl, PERMIT, TILE_DATA);
}

static void multiply_tiles(void) {
    _Alignas(64) unsigned short numbers[4 * TILE_BYTES / 2];
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        numbers[i] = (unsigned short)(0x3f00 + i * 7 % 256); /* bf16, from 0.5 to 2: zeros would be faster */
    const char *data = (const char *)numbers;
    tile_load(4, data);
    tile_load(5, data + TILE_BYTES);
    tile_load(6, data + 2 * TILE_BYTES);
    tile_load(7, data + 3 * TILE_BYTES);
    for (int i = 0; i < TILE_ROUNDS; i++) {
        tile_dot(0, 4, 6);
        tile_dot(2, 5, 6);
        tile_dot(1, 4, 7);
        tile_dot(3, 5, 7);
    }
}

static double rate_of_tiles(void) {
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < TILES; i++) {
        config.rows[i] = TILE_ROWS;
        config.row_bytes[i] = TILE_ROW_BYTES;
    }
    tile_config_load(&config);
    const double begin = now();
    multiply_tiles();
    const double seconds = now() - begin;
    tile_release();
    return 4e-9 * TILE_ROUNDS * TILE_PRODUCTS / seconds;
}
#else
static bool may_use_tiles(void) { return false; }
static double rate_of_tiles(void) { return 0; }
#endif

static bool tiles;

/* ---- Cores at once ----------------------------------------------------------------------------------------------- */

enum { MOST = 1024 };

static pthread_barrier_t barrier;

struct worker {
    int core;
    double rate; /* 0 where the thread may not run there */
    float result;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)worker->core, &one);
    const bool here = !sched_setaffinity(0, sizeof one, &one);
    pthread_barrier_wait(&barrier);
    const double begin = now();
    if (tiles) {
        worker->rate = rate_of_tiles();
    } else {
        worker->result = multiply_add((float)worker->core, ROUNDS);
        worker->rate = 1e-9 * CHAINS * ROUNDS * LANES / (now() - begin);
    }
    if (!here) worker->rate = 0;
    return NULL;
}

static double slowest(char *cores) {
    static struct worker workers[MOST];
    static pthread_t ids[MOST];
    int count = 0;
    for (char *core = strtok(cores, ","); core && count < MOST; core = strtok(NULL, ","))
        workers[count++].core = atoi(core);
    pthread_barrier_init(&barrier, NULL, (unsigned)count);
    for (int i = 0; i < count; i++)
        if (pthread_create(&ids[i], NULL, work, &workers[i])) {
            fputs("disturbed: no thread\n", stderr);
            exit(1);
        }
    double least = 0;
    for (int i = 0; i < count; i++) {
        pthread_join(ids[i], NULL);
        if (!i || workers[i].rate < least) least = workers[i].rate;
    }
    pthread_barrier_destroy(&barrier);
    return least;
}

int main(int argc, char **argv) {
    tiles = may_use_tiles();
    for (int i = 1; i < argc; i++) printf("%.1f\n", slowest(argv[i]));
    return 0;
}
