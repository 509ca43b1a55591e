/* bench.c: Tessera's CPU engine beside OpenBLAS, BLIS and oneDNN, interleaved in one run.
 *
 * Each library lives in a process of its own, because they export the same names and read their settings from the
 * environment when loaded. The processes take turns: all but one are stopped (SIGSTOP), so that no library's idle
 * threads spin on the cores another is being timed on. For each problem a process makes fresh matrices, several sets of
 * them, together twice the last-level cache, and goes round the sets, so that every call finds its operands in memory.
 * Sampled elements of each result are checked against float64 before anything is timed.
 *
 * Debian's OpenBLAS and BLIS do not know newer chips and fall back to kernels several times slower, so where there is
 * AVX-512 they are told which to take.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tessera.h"

enum { MAX_LIBRARIES = 4, MAX_SHAPES = 32, MAX_SAMPLES = 64, LAYOUTS = 4 };

/* A sample lasts at least this long, so that it shows a library at work and not its threads being woken. */
static const double sample_seconds = 0.02;

static const char *const layout_names[LAYOUTS] = {"nn", "tn", "nt", "tt"}; /* bit 0: A transposed; bit 1: B */

struct problem {
    int m, n, k, layout, threads;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "bench-cpu: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- The libraries: each multiplies row-major matrices ----------------------------------------------------------- */

typedef void cblas_function(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                            const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef int dnnl_function(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                          const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

static tsr_context *tessera;
static cblas_function *cblas;
static dnnl_function *dnnl;

static void multiply_tessera(const struct problem *p, const float *a, const float *b, float *c) {
    const bool ta = p->layout & 1, tb = p->layout & 2;
    const tsr_operand left = {a, p->m, p->k, ta ? 1 : p->k, ta ? p->m : 1, 0, NULL};
    const tsr_operand right = {b, p->k, p->n, tb ? 1 : p->n, tb ? p->k : 1, 0, NULL};
    const tsr_result result = {c, p->m, p->n, p->n, 1, 0};
    if (tsr_gemm(tessera, 1, &left, &right, 0, &result, NULL)) {
        fprintf(stderr, "bench-cpu: tessera: %s\n", tsr_last_error());
        exit(1);
    }
}

static void multiply_cblas(const struct problem *p, const float *a, const float *b, float *c) {
    const bool ta = p->layout & 1, tb = p->layout & 2;
    enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };
    cblas(ROW_MAJOR, ta ? TRANSPOSED : AS_IS, tb ? TRANSPOSED : AS_IS, p->m, p->n, p->k, 1, a, ta ? p->m : p->k, b,
          tb ? p->k : p->n, 0, c, p->n);
}

static void multiply_dnnl(const struct problem *p, const float *a, const float *b, float *c) {
    const bool ta = p->layout & 1, tb = p->layout & 2;
    if (dnnl(ta ? 'T' : 'N', tb ? 'T' : 'N', p->m, p->n, p->k, 1, a, ta ? p->m : p->k, b, tb ? p->k : p->n, 0, c,
             p->n)) {
        fprintf(stderr, "bench-cpu: dnnl_sgemm failed\n");
        exit(1);
    }
}

static bool open_tessera(int threads) {
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.threads = threads;
    return tsr_context_create(&tessera, &options) == TSR_OK;
}

/* The function's address from the first of the files that is there. */
static bool open_symbol(const char *const files[], const char *name, void *function) {
    for (; *files; files++) {
        void *library = dlopen(*files, RTLD_NOW | RTLD_LOCAL);
        void *symbol = library ? dlsym(library, name) : NULL;
        if (!symbol) continue;
        memcpy(function, &symbol, sizeof symbol);
        return true;
    }
    return false;
}

static void set_threads(const char *variable, int threads) {
    char text[16];
    snprintf(text, sizeof text, "%d", threads);
    setenv(variable, text, 1);
}

static bool open_openblas(int threads) {
    set_threads("OPENBLAS_NUM_THREADS", threads);
    if (__builtin_cpu_supports("avx512f")) setenv("OPENBLAS_CORETYPE", "SkylakeX", 1);
    return open_symbol((const char *const[]){"libopenblas.so.0", "libopenblas.so", NULL}, "cblas_sgemm", &cblas);
}

static bool open_blis(int threads) {
    set_threads("BLIS_NUM_THREADS", threads);
    if (__builtin_cpu_supports("avx512f")) setenv("BLIS_ARCH_TYPE", "0", 1); /* skx */
    return open_symbol((const char *const[]){"libblis.so.4", "libblis.so", NULL}, "cblas_sgemm", &cblas);
}

static bool open_dnnl(int threads) {
    set_threads("OMP_NUM_THREADS", threads);
    return open_symbol((const char *const[]){"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so", NULL}, "dnnl_sgemm", &dnnl);
}

static const struct library {
    const char *name;
    bool (*open)(int threads);
    void (*multiply)(const struct problem *p, const float *a, const float *b, float *c);
} libraries[MAX_LIBRARIES] = {
    {"tessera", open_tessera, multiply_tessera},
    {"openblas", open_openblas, multiply_cblas},
    {"blis", open_blis, multiply_cblas},
    {"onednn", open_dnnl, multiply_dnnl},
};

/* ---- A library's process ----------------------------------------------------------------------------------------- */

/* The matrices of one problem, several times over. */
struct ring {
    float *floats;
    size_t set, sets, next;
    size_t at_b, at_c;
};

static void ring_make(struct ring *ring, const struct problem *p) {
    const size_t a = (size_t)p->m * (size_t)p->k, b = (size_t)p->k * (size_t)p->n, c = (size_t)p->m * (size_t)p->n;
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const size_t total = (cache > 0 ? 2 * (size_t)cache : 64u << 20) / sizeof(float);
    free(ring->floats);
    ring->at_b = (a + 15) / 16 * 16;
    ring->at_c = ring->at_b + (b + 15) / 16 * 16;
    ring->set = ring->at_c + (c + 15) / 16 * 16;
    ring->sets = total / ring->set + 1;
    ring->next = 0;
    ring->floats = aligned_alloc(4096, (ring->sets * ring->set * sizeof(float) + 4095) / 4096 * 4096);
    if (!ring->floats) die("matrices");
    uint32_t state = 12345;
    for (size_t i = 0; i < ring->sets * ring->set; i++) {
        state = state * 1664525u + 1013904223u;
        ring->floats[i] = (float)(state >> 8) * 0x1p-24f;
    }
}

static void multiply_next(const struct library *library, const struct problem *p, struct ring *ring) {
    float *set = ring->floats + ring->next * ring->set;
    ring->next = (ring->next + 1) % ring->sets;
    library->multiply(p, set, set + ring->at_b, set + ring->at_c);
}

/* The contract's bound on a sample of the first set's result. */
static bool result_is_right(const struct problem *p, const struct ring *ring) {
    const float *a = ring->floats, *b = ring->floats + ring->at_b, *c = ring->floats + ring->at_c;
    for (int sample = 0; sample < 64; sample++) {
        const int64_t i = (int64_t)sample * 7919 % p->m, j = (int64_t)sample * 104729 % p->n;
        double sum = 0;
        for (int64_t q = 0; q < p->k; q++)
            sum += (double)a[p->layout & 1 ? q * p->m + i : i * p->k + q] *
                   b[p->layout & 2 ? j * p->k + q : q * p->n + j];
        if (!(fabs(c[i * p->n + j] - sum) <= (p->k + 2) * 0x1p-24 * sum)) return false;
    }
    return true;
}

static bool read_all(int from, void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        const ssize_t got = read(from, (char *)data + done, size - done);
        if (got <= 0 && errno != EINTR) return false;
        if (got > 0) done += (size_t)got;
    }
    return true;
}

static void write_all(int to, const void *data, size_t size) {
    if (write(to, data, size) != (ssize_t)size) die("pipe");
}

/* Answers each request with seconds: a problem it has not just had is set up and checked (0: the result is wrong), the
 * same one again is timed, over enough calls to last sample_seconds. */
static void serve(const struct library *library, int threads, int requests, int replies) {
    const bool open = library->open(threads);
    write_all(replies, &open, sizeof open);
    if (!open) exit(0);
    struct ring ring = {0};
    struct problem current = {0}, p;
    int calls = 1;
    double last = 0; /* how long a call took */
    while (read_all(requests, &p, sizeof p)) {
        double seconds;
        if (memcmp(&p, &current, sizeof p)) {
            current = p;
            ring_make(&ring, &p);
            multiply_next(library, &p, &ring);
            const bool right = result_is_right(&p, &ring);
            const double begin = now();
            multiply_next(library, &p, &ring);
            seconds = right ? now() - begin : 0;
            calls = seconds > 0 && seconds < sample_seconds ? (int)(sample_seconds / seconds) + 1 : 1;
        } else {
            if (last < 10 * sample_seconds) multiply_next(library, &p, &ring); /* awake again after the others' turns */
            const double begin = now();
            for (int i = 0; i < calls; i++) multiply_next(library, &p, &ring);
            seconds = (now() - begin) / calls;
        }
        last = seconds;
        write_all(replies, &seconds, sizeof seconds);
    }
    exit(0);
}

/* ---- The parent: turns, samples, records ------------------------------------------------------------------------- */

struct process {
    pid_t pid;
    int requests, replies;
    bool present;
};

static struct process start(const char *self, int library, int threads) {
    int requests[2], replies[2];
    struct process process;
    /* Closed on exec, or a library's process would keep its neighbours' pipes open. */
    if (pipe2(requests, O_CLOEXEC) || pipe2(replies, O_CLOEXEC)) die("pipe");
    if ((process.pid = fork()) < 0) die("fork");
    if (!process.pid) {
        /* A fresh image, so that libraries read the environment as their process has set it. */
        char arguments[4][16];
        const int values[4] = {library, threads, requests[0], replies[1]};
        for (int i = 0; i < 4; i++) snprintf(arguments[i], sizeof arguments[i], "%d", values[i]);
        if (fcntl(requests[0], F_SETFD, 0) || fcntl(replies[1], F_SETFD, 0)) die("fcntl");
        execl(self, self, "--serve", arguments[0], arguments[1], arguments[2], arguments[3], (char *)NULL);
        die(self);
    }
    close(requests[0]);
    close(replies[1]);
    process.requests = requests[1];
    process.replies = replies[0];
    if (!read_all(process.replies, &process.present, sizeof process.present)) die(libraries[library].name);
    if (process.present) kill(process.pid, SIGSTOP);
    return process;
}

static void stop(struct process *process) {
    close(process->requests);
    close(process->replies);
    kill(process->pid, SIGCONT);
    waitpid(process->pid, NULL, 0);
}

static double request(struct process *process, const struct problem *p, const char *name) {
    double seconds;
    kill(process->pid, SIGCONT);
    write_all(process->requests, p, sizeof *p);
    if (!read_all(process->replies, &seconds, sizeof seconds)) die(name);
    kill(process->pid, SIGSTOP);
    if (seconds == 0) {
        fprintf(stderr, "bench-cpu: %s: wrong result at %d x %d x %d %s\n", name, p->m, p->n, p->k,
                layout_names[p->layout]);
        exit(1);
    }
    return seconds;
}

static int ascending(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* The first line that a command prints; "unknown" where there is none. */
static void first_line(const char *command, char *line, int size) {
    snprintf(line, (size_t)size, "unknown");
    FILE *from = popen(command, "r");
    if (!from) return;
    if (fgets(line, size, from)) line[strcspn(line, "\n")] = '\0';
    pclose(from);
}

struct run {
    char machine[128], commit[64], date[32], file[160];
    double seconds; /* to spend on samples of one problem, by all libraries */
    int least;      /* samples, however long they take */
    FILE *json;
    int records;
};

static void describe_run(struct run *run) {
    first_line("sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo", run->machine, sizeof run->machine);
    first_line("git describe --always --dirty 2>/dev/null", run->commit, sizeof run->commit);
    const time_t t = time(NULL);
    strftime(run->date, sizeof run->date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&t));
    if (run->file[0]) return;
    int length = snprintf(run->file, sizeof run->file, "bench/results/cpu-");
    for (const char *c = run->machine; *c && length < 120; c++)
        if ((*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9'))
            run->file[length++] = *c;
        else if (*c >= 'A' && *c <= 'Z')
            run->file[length++] = (char)(*c - 'A' + 'a');
        else if (run->file[length - 1] != '-')
            run->file[length++] = '-';
    snprintf(run->file + length, sizeof run->file - (size_t)length, ".json");
}

static void measure(struct run *run, struct process processes[], const struct problem *p) {
    static double samples[MAX_LIBRARIES][MAX_SAMPLES];
    double round = 0;
    for (int l = 0; l < MAX_LIBRARIES; l++)
        if (processes[l].present) round += request(&processes[l], p, libraries[l].name);
    int count = (int)(run->seconds / (round > sample_seconds * MAX_LIBRARIES ? round : sample_seconds * MAX_LIBRARIES));
    count = count < run->least ? run->least : count > MAX_SAMPLES ? MAX_SAMPLES : count;
    for (int s = 0; s < count; s++)
        for (int l = 0; l < MAX_LIBRARIES; l++)
            if (processes[l].present) samples[l][s] = request(&processes[l], p, libraries[l].name);

    double best[MAX_LIBRARIES] = {0}, median[MAX_LIBRARIES] = {0}, best_peer = 0;
    const double work = 2e-9 * p->m * p->n * p->k;
    for (int l = 0; l < MAX_LIBRARIES; l++) {
        if (!processes[l].present) continue;
        qsort(samples[l], (size_t)count, sizeof samples[l][0], ascending);
        best[l] = work / samples[l][0];
        median[l] = work / samples[l][count / 2];
        if (l && best[l] > best_peer) best_peer = best[l];
    }
    printf("%7d  %5d %5d %5d  %s  ", p->threads, p->m, p->n, p->k, layout_names[p->layout]);
    for (int l = 0; l < MAX_LIBRARIES; l++) {
        if (!processes[l].present) {
            printf("      absent   ");
            continue;
        }
        printf("%6.1f (%6.1f)", best[l], median[l]);
        fprintf(run->json,
                "%s\n  {\"library\": \"%s\", \"m\": %d, \"n\": %d, \"k\": %d, \"layout\": \"%s\", \"threads\": %d, "
                "\"gflops_best\": %.2f, \"gflops_median\": %.2f, \"samples\": %d, ",
                run->records++ ? "," : "", libraries[l].name, p->m, p->n, p->k, layout_names[p->layout], p->threads,
                best[l], median[l], count);
        if (l == 0 && best_peer > 0) fprintf(run->json, "\"ratio_to_best_peer\": %.3f, ", best[l] / best_peer);
        fprintf(run->json, "\"machine\": \"%s\", \"commit\": \"%s\", \"date\": \"%s\", \"compiler\": \"%s\"}",
                run->machine, run->commit, run->date, COMPILER);
    }
    if (best_peer > 0) printf("  %5.3f", best[0] / best_peer);
    printf("\n");
    fflush(stdout);
}

static const char help[] =
    "usage: bench-cpu [--quick] [--shape M,N,K]... [--threads N]... [--seconds S] [--output FILE]\n"
    "GFLOP/s of Tessera, OpenBLAS, BLIS and oneDNN, best and (median), interleaved, for all four transposes.\n"
    "  --quick        under a minute: fewer samples, and not the largest problem\n"
    "  --shape M,N,K  this problem instead of the four of the standing comparison\n"
    "  --threads N    with N threads; instead of 1 and 2\n"
    "  --seconds S    time for the samples of one problem (default 2; but no fewer than three samples)\n"
    "  --output FILE  where to save the records; default bench/results/cpu-<machine>.json, /dev/null for --quick\n";

int main(int argc, char **argv) {
    if (argc == 6 && !strcmp(argv[1], "--serve"))
        serve(&libraries[atoi(argv[2]) % MAX_LIBRARIES], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    int shapes[MAX_SHAPES][3] = {{1024, 1024, 1024}, {1031, 743, 517}, {2048, 2048, 2048}, {2048, 4096, 8192}};
    int shape_count = 4, own_shapes = 0, threads[MAX_SHAPES] = {1, 2}, thread_count = 2, own_threads = 0;
    bool quick = false;
    struct run run = {.seconds = 2, .least = 3};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        int *shape = shapes[own_shapes];
        if (!strcmp(argv[i], "--quick")) {
            quick = true;
            run.seconds = 0.4;
            run.least = 2;
            if (!run.file[0]) snprintf(run.file, sizeof run.file, "/dev/null");
        } else if (!strcmp(argv[i], "--shape") && own_shapes < MAX_SHAPES - 1 &&
                   sscanf(value, "%d,%d,%d", &shape[0], &shape[1], &shape[2]) == 3 && shape[0] > 0 && shape[1] > 0 &&
                   shape[2] > 0) {
            shape_count = ++own_shapes;
            i++;
        } else if (!strcmp(argv[i], "--threads") && own_threads < MAX_SHAPES - 1 && atoi(value) > 0) {
            threads[own_threads] = atoi(value);
            thread_count = ++own_threads;
            i++;
        } else if (!strcmp(argv[i], "--seconds") && atof(value) > 0) {
            run.seconds = atof(value);
            i++;
        } else if (!strcmp(argv[i], "--output") && *value) {
            snprintf(run.file, sizeof run.file, "%s", value);
            i++;
        } else {
            fputs(help, strcmp(argv[i], "--help") ? stderr : stdout);
            return strcmp(argv[i], "--help") ? 2 : 0;
        }
    }
    describe_run(&run);
    char unfinished[sizeof run.file + 8];
    const bool keeps = strcmp(run.file, "/dev/null") != 0;
    snprintf(unfinished, sizeof unfinished, keeps ? "%s.part" : "%s", run.file);
    run.json = fopen(unfinished, "w");
    if (!run.json) die(unfinished);
    fputs("[", run.json);
    printf("%s, commit %s, %s\nGFLOP/s, best (median)\n", run.machine, run.commit, run.date);
    printf("threads      m     n     k  ab       tessera       openblas           blis         onednn  ratio to best "
           "peer\n");
    for (int t = 0; t < thread_count; t++) {
        struct process processes[MAX_LIBRARIES];
        for (int l = 0; l < MAX_LIBRARIES; l++) {
            processes[l] = start("/proc/self/exe", l, threads[t]);
            if (!processes[l].present) printf("%s is absent\n", libraries[l].name);
        }
        for (int s = 0; s < shape_count; s++)
            for (int layout = 0; layout < LAYOUTS; layout++) {
                const struct problem p = {shapes[s][0], shapes[s][1], shapes[s][2], layout, threads[t]};
                if (quick && 2e-9 * p.m * p.n * p.k > 50) continue;
                measure(&run, processes, &p);
            }
        for (int l = 0; l < MAX_LIBRARIES; l++) stop(&processes[l]);
    }
    fputs("\n]\n", run.json);
    if (ferror(run.json) || fclose(run.json)) die(unfinished);
    if (keeps) {
        if (rename(unfinished, run.file)) die(run.file);
        printf("saved to %s\n", run.file);
    }
    return 0;
}
