/* amx_tiles.c: a thread's AMX tiles are after a product what they were before, in use or not; products in a signal's
 * handler and in a forked child disturb none. For machines with AMX: elsewhere it says that there is none, and exits
 * with 77. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "amx_tile.h"
#include "tessera.h"

enum { N = 200, K = 600, THREADS = 6, ROUNDS = 30 };

static float a[N * K], b[K * N], expected[N * N];
static tsr_context *context;

static void fail(const char *what) {
    fprintf(stderr, "amx_tiles: %s\n", what);
    exit(1);
}

static tsr_operand operand(const float *data, int64_t rows, int64_t cols) {
    return (tsr_operand){data, rows, cols, cols, 1, 0, NULL};
}

static tsr_plan *plan_of(tsr_context *used, float *c) {
    const tsr_operand left = operand(a, N, K), right = operand(b, K, N);
    tsr_plan *plan;
    if (tsr_plan_create(&plan, used, 1, &left, &right, &(tsr_result){c, N, N, N, 1, 0})) fail(tsr_last_error());
    if (!tsr_plan_is_split(plan)) fail("a product that should use AMX does not");
    return plan;
}

static void multiply(float *c) {
    const tsr_operand left = operand(a, N, K), right = operand(b, K, N);
    if (tsr_gemm(context, 1, &left, &right, 0, &(tsr_result){c, N, N, N, 1, 0}, NULL)) fail(tsr_last_error());
    if (memcmp(c, expected, sizeof expected)) fail("a product came out otherwise");
}

static void tiles_stay_released(float *c) {
    struct tile_config config;
    multiply(c);
    tile_config_store(&config);
    if (config.palette) fail("tiles were not in use, and are now");
}

/* Three of the eight, of different sizes. */
static void tiles_stay_in_use(float *c, unsigned seed) {
    struct tile_config config = {.palette = 1}, after;
    config.rows[0] = (uint8_t)(1 + seed % 16), config.row_bytes[0] = 64;
    config.rows[3] = 16, config.row_bytes[3] = (uint16_t)(4 + seed % 16 * 4);
    config.rows[7] = 5, config.row_bytes[7] = 20;
    _Alignas(64) unsigned char before[3][TILE_BYTES], found[3][TILE_BYTES];
    for (int i = 0; i < 3 * TILE_BYTES; i++)
        before[i / TILE_BYTES][i % TILE_BYTES] = (unsigned char)(seed + 31u * (unsigned)i);
    memcpy(found, before, sizeof found); /* bytes outside the tiles are not stored */
    tile_config_load(&config);
    tile_load(0, before[0]);
    tile_load(3, before[1]);
    tile_load(7, before[2]);
    multiply(c);
    tile_config_store(&after);
    if (memcmp(&config, &after, sizeof config)) fail("the tiles have another configuration");
    tile_store(0, found[0], TILE_ROW_BYTES);
    tile_store(3, found[1], TILE_ROW_BYTES);
    tile_store(7, found[2], TILE_ROW_BYTES);
    tile_release();
    if (memcmp(before, found, sizeof found)) fail("the tiles hold something else");
}

static void *work(void *argument) {
    const unsigned seed = *(const unsigned *)argument;
    float *c = malloc(sizeof expected);
    if (!c) fail("no memory");
    for (unsigned i = 0; i < ROUNDS; i++)
        if ((seed + i) % 2)
            tiles_stay_in_use(c, seed + i);
        else
            tiles_stay_released(c);
    free(c);
    return NULL;
}

/* What the handler multiplies with: nothing that allocates. */
static tsr_plan *plan_in_handler;
static float c_in_handler[N * N];
static tsr_launch launch_in_handler;
static volatile sig_atomic_t handled;

static void handle(int number) {
    (void)number;
    if (tsr_plan_execute(plan_in_handler, 1, a, b, 0, c_in_handler, &launch_in_handler)) _exit(2);
    if (memcmp(c_in_handler, expected, sizeof expected)) _exit(3);
    handled++;
}

static void multiply_under_signals(float *c) {
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.kernel = "amx";
    options.threads = 1;
    tsr_context *single;
    if (tsr_context_create(&single, &options)) fail(tsr_last_error());
    plan_in_handler = plan_of(single, c_in_handler);
    launch_in_handler.workspace_size = (tsr_plan_workspace(plan_in_handler) + 255) / 256 * 256;
    launch_in_handler.workspace = aligned_alloc(256, launch_in_handler.workspace_size);
    if (!launch_in_handler.workspace) fail("no memory");
    signal(SIGALRM, handle);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 2000}, {0, 2000}}, NULL);
    for (unsigned i = 0; handled < 20; i++) tiles_stay_in_use(c, i);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    free(launch_in_handler.workspace);
    tsr_plan_destroy(plan_in_handler);
    tsr_context_destroy(single);
}

int main(void) {
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.kernel = "amx";
    options.threads = 2;
    if (tsr_context_create(&context, &options)) {
        puts("amx_tiles: no AMX here");
        return 77;
    }
    for (int i = 0; i < N * K; i++) {
        a[i] = (float)(i % 1009) - 499.5f;
        b[i] = (float)(i % 997) * 0.001f;
    }
    static float c[N * N];
    tsr_plan *plan = plan_of(context, expected);
    if (tsr_plan_execute(plan, 1, a, b, 0, expected, NULL)) fail(tsr_last_error());
    tsr_plan_destroy(plan);
    tiles_stay_released(c);
    tiles_stay_in_use(c, 5);

    pthread_t threads[THREADS];
    unsigned seeds[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = i * 17;
        if (pthread_create(&threads[i], NULL, work, &seeds[i])) fail("no thread");
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);

    multiply_under_signals(c);

    const pid_t child = fork();
    if (!child) {
        tiles_stay_released(c);
        tiles_stay_in_use(c, 9);
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status) fail("a forked child failed");
    tiles_stay_in_use(c, 3);
    tsr_context_destroy(context);
    puts("amx_tiles: as found");
    return 0;
}
