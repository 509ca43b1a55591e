/* offload.c: what offloading brings, on a machine with a GPU.
 *
 *     bench/blas/run BUILD N [N ...] [--output FILE]
 *
 * sgemm_ of N x N matrices in ordinary memory, computed by the GPU, beside the CPU engine, and beside the time that
 * plain copies of the same bytes, pinned, both ways at once, take. */
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tessera.h"
#include "tessera_blas.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static _Noreturn void die(const char *what, const char *why) {
    fprintf(stderr, "bench-blas: %s: %s\n", what, why);
    exit(1);
}

/* ---- Records ----------------------------------------------------------------------------------------------------- */

static struct {
    FILE *file;
    int count;
    char machine[200], commit[64], date[32];
} records;

/* The first line that a command prints; "unknown" where there is none. */
static void first_line(const char *command, char *line, int size) {
    snprintf(line, (size_t)size, "unknown");
    FILE *from = popen(command, "r");
    if (!from) return;
    if (fgets(line, size, from)) line[strcspn(line, "\n")] = '\0';
    pclose(from);
}

static void records_open(const char *path, const char *gpu) {
    char processor[80];
    first_line("sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo", processor, sizeof processor);
    snprintf(records.machine, sizeof records.machine, "%s, %ld cores, %s", processor, sysconf(_SC_NPROCESSORS_ONLN),
             gpu);
    const char *commit = getenv("TESSERA_COMMIT");
    if (commit)
        snprintf(records.commit, sizeof records.commit, "%s", commit);
    else
        first_line("git describe --always --dirty 2>/dev/null", records.commit, sizeof records.commit);
    const time_t t = time(NULL);
    strftime(records.date, sizeof records.date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&t));
    if (!(records.file = fopen(path, "w"))) die(path, "cannot be written");
    fputs("[", records.file);
}

static void records_close(void) {
    fputs("\n]\n", records.file);
    fclose(records.file);
}

/* ---- Matrices ---------------------------------------------------------------------------------------------------- */

static float *matrix(size_t count) {
    float *made = aligned_alloc(4096, (count * sizeof *made + 4095) / 4096 * 4096);
    if (!made) die("matrices", "no memory");
    uint32_t state = 12345;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        made[i] = (float)(state >> 8) * 0x1p-24f;
    }
    return made;
}

/* ---- Offloading -------------------------------------------------------------------------------------------------- */

/* The few driver functions that measuring copies takes: member, symbol, parameters. */
#define DRIVER_FUNCTIONS(X)                                                                         \
    X(init, "cuInit", unsigned flags)                                                               \
    X(get_name, "cuDeviceGetName", char *name, int size, int device)                                \
    X(retain, "cuDevicePrimaryCtxRetain", void **primary, int device)                               \
    X(set_current, "cuCtxSetCurrent", void *primary)                                                \
    X(allocate, "cuMemAlloc_v2", uint64_t *address, size_t bytes)                                   \
    X(release, "cuMemFree_v2", uint64_t address)                                                    \
    X(allocate_host, "cuMemHostAlloc", void **address, size_t bytes, unsigned flags)                \
    X(release_host, "cuMemFreeHost", void *address)                                                 \
    X(create_stream, "cuStreamCreate", void **stream, unsigned flags)                               \
    X(to_device, "cuMemcpyHtoDAsync_v2", uint64_t to, const void *from, size_t bytes, void *stream) \
    X(to_host, "cuMemcpyDtoHAsync_v2", void *to, uint64_t from, size_t bytes, void *stream)         \
    X(synchronize, "cuCtxSynchronize", void)

#define MEMBER(name, symbol, ...) int (*name)(__VA_ARGS__);
static struct { DRIVER_FUNCTIONS(MEMBER) } cuda;

static void open_driver(char *gpu, int size) {
#define SYMBOL(member, symbol, ...) {symbol, &cuda.member},
    static const struct {
        const char *name;
        void *function;
    } symbols[] = {DRIVER_FUNCTIONS(SYMBOL)};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *primary;
    if (!library) die("libcuda.so.1", "no driver");
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol) die(symbols[i].name, "not in the driver");
        memcpy(symbols[i].function, &symbol, sizeof symbol);
    }
    if (cuda.init(0) || cuda.get_name(gpu, size, 0) || cuda.retain(&primary, 0) || cuda.set_current(primary))
        die("GPU 0", "does not start");
}

/* Seconds in which `in` bytes go to the GPU and `out` bytes come back, both ways at once; the best of several. */
static double copy_seconds(size_t in, size_t out) {
    uint64_t to, from;
    void *host_in, *host_out, *stream_in, *stream_out;
    if (cuda.allocate(&to, in) || cuda.allocate(&from, out) || cuda.allocate_host(&host_in, in, 0) ||
        cuda.allocate_host(&host_out, out, 0) || cuda.create_stream(&stream_in, 1) ||
        cuda.create_stream(&stream_out, 1))
        die("copies", "no memory");
    double best = INFINITY;
    for (int i = 0; i < 7; i++) {
        const double begun = now();
        if (cuda.to_device(to, host_in, in, stream_in) || cuda.to_host(host_out, from, out, stream_out) ||
            cuda.synchronize())
            die("copies", "failed");
        if (now() - begun < best) best = now() - begun;
    }
    cuda.release(to);
    cuda.release(from);
    cuda.release_host(host_in);
    cuda.release_host(host_out);
    return best;
}

/* The contract's bound on a sample of C. */
static bool is_right(int n, const float *a, const float *b, const float *c) {
    for (int sample = 0; sample < 200; sample++) {
        const int64_t i = (int64_t)sample * 7919 % n, j = (int64_t)sample * 104729 % n;
        double sum = 0;
        for (int64_t p = 0; p < n; p++) sum += (double)a[i + p * n] * b[p + j * n];
        if (!(fabs(c[i + j * n] - sum) <= (n + 2) * 0x1p-24 * sum)) return false;
    }
    return true;
}

static void offload(int n, int samples) {
    const size_t count = (size_t)n * (size_t)n, bytes = count * sizeof(float);
    const double limit = copy_seconds(2 * bytes, bytes);
    float *a = matrix(count), *b = matrix(count), *c = matrix(count);
    const float one = 1, zero = 0;
    double best = INFINITY, first = 0, sum = 0, on_cpu = INFINITY;
    for (int i = 0; i <= samples; i++) {
        const double begun = now();
        sgemm_("N", "N", &n, &n, &n, &one, a, &n, b, &n, &zero, c, &n);
        const double taken = now() - begun;
        if (!i) {
            first = taken;
            if (!is_right(n, a, b, c)) die("sgemm_", "wrong result");
            continue;
        }
        sum += taken;
        if (taken < best) best = taken;
    }
    tsr_context *cpu;
    if (tsr_context_create(&cpu, NULL)) die("tsr_context_create", tsr_last_error());
    const tsr_operand left = {b, n, n, n, 1, 0, NULL}, right = {a, n, n, n, 1, 0, NULL};
    const tsr_result result = {c, n, n, n, 1, 0};
    for (int i = 0; i < 3 && (!i || on_cpu < 1); i++) { /* one that takes longer than a second is timed once */
        const double begun = now();
        if (tsr_gemm(cpu, 1, &left, &right, 0, &result, NULL)) die("tsr_gemm", tsr_last_error());
        if (now() - begun < on_cpu) on_cpu = now() - begun;
    }
    tsr_context_destroy(cpu);
    printf("%6d^3  sgemm_ on the GPU %8.2f ms (mean %8.2f, first %7.1f)  copies alone %7.2f ms, %5.2f x  CPU %9.2f ms, "
           "%5.2f x\n",
           n, 1e3 * best, 1e3 * sum / samples, 1e3 * first, 1e3 * limit, best / limit, 1e3 * on_cpu, on_cpu / best);
    fprintf(records.file,
            "%s\n{\"what\": \"offload\", \"n\": %d, \"gpu_ms_best\": %.3f, \"gpu_ms_mean\": %.3f, \"copies_alone_ms\": "
            "%.3f, "
            "\"ratio_to_copies\": %.3f, \"cpu_ms_best\": %.3f, \"speedup_over_cpu\": %.2f, \"samples\": %d, "
            "\"machine\": \"%s\", \"commit\": \"%s\", \"date\": \"%s\"}",
            records.count++ ? "," : "", n, 1e3 * best, 1e3 * sum / samples, 1e3 * limit, best / limit, 1e3 * on_cpu,
            on_cpu / best, samples, records.machine, records.commit, records.date);
    free(a);
    free(b);
    free(c);
}

int main(int count, char **words) {
    const char *path = "bench/results/blas-offload.json";
    int sizes[32], size_count = 0;
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "--output") && i + 1 < count) {
            path = words[++i];
        } else if (size_count == 32 || (sizes[size_count++] = atoi(words[i])) < 1) {
            size_count = 0;
            break;
        }
    }
    if (!size_count) {
        fputs("usage: bench/blas/run BUILD N [N ...] [--output FILE]\n", stderr);
        return 2;
    }
    char gpu[80];
    setenv("TESSERA_DEVICE", "cuda", 1);
    open_driver(gpu, sizeof gpu);
    records_open(path, gpu);
    for (int i = 0; i < size_count; i++) offload(sizes[i], 10);
    records_close();
    return 0;
}
