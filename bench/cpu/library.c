/* library.c: one library's process. It multiplies when it is told to and says how long that took; bench/cpu/compare.py
 * tells it, in turns with the processes of the other libraries.
 *
 * A process of its own, because libraries export the same names and read their settings from the environment when
 * loaded.
 *
 *     library STYLE SYMBOL THREADS FILE...
 *
 * STYLE is how the function SYMBOL wants to be called: tessera (SYMBOL is the precision), cblas, cblas64 (64-bit
 * integers), fortran or dnnl. The first of the FILEs that has it is taken. It says "here VERSION" or "absent REASON";
 * then it answers requests, a line each:
 *
 *     problem M N K LAYOUT BATCH SETS    makes that many sets of matrices for a batch of products and multiplies twice,
 *                                        answers with the seconds of the second time, or with 0 where a sampled element
 *                                        breaks float32's error bound
 *     time UNTIMED CALLS                 multiplies that often, each time with the next set of matrices, and answers
 *                                        with the seconds of the CALLS
 *     product M N K                      reads A and B, answers with C, as they lie in memory
 *
 * A library without a function for batches is called once for each product.
 */
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

struct problem {
    int m, n, k, batch; /* the matrices of a batch lie one behind the other */
    bool transpose_a, transpose_b;
};

static FILE *answers;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const char *what, const char *why) {
    fprintf(stderr, "bench/cpu: %s: %s\n", what, why);
    exit(1);
}

/* ---- Ways to call a library: each multiplies row-major matrices, one product of the batch or all ----------------- */

typedef void cblas_function(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                            const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef void cblas64_function(int order, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                              const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                              int64_t ldc);
typedef void cblas_batch_function(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                                  const float *a, int lda, int stride_a, const float *b, int ldb, int stride_b,
                                  float beta, float *c, int ldc, int stride_c, int batch);
typedef void fortran_function(const char *transpose_a, const char *transpose_b, const int *m, const int *n,
                              const int *k, const float *alpha, const float *a, const int *lda, const float *b,
                              const int *ldb, const float *beta, float *c, const int *ldc);
typedef int dnnl_function(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                          const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };

static tsr_context *tessera;
static union {
    void *address;
    cblas_function *cblas;
    cblas64_function *cblas64;
    fortran_function *fortran;
    dnnl_function *dnnl;
} function;
static union {
    void *address;
    cblas_batch_function *cblas;
} batch_function; /* none: NULL */

static int lda(const struct problem *p) { return p->transpose_a ? p->m : p->k; }
static int ldb(const struct problem *p) { return p->transpose_b ? p->k : p->n; }

static void multiply_tessera(const struct problem *p, const float *a, const float *b, float *c) {
    const int64_t m = p->m, n = p->n, k = p->k;
    const tsr_operand left = {a, m, k, p->transpose_a ? 1 : k, p->transpose_a ? m : 1, m * k, NULL};
    const tsr_operand right = {b, k, n, p->transpose_b ? 1 : n, p->transpose_b ? k : 1, k * n, NULL};
    const tsr_result result = {c, m, n, n, 1, m * n};
    if (p->batch == 1 ? tsr_gemm(tessera, 1, &left, &right, 0, &result, NULL)
                      : tsr_gemm_batch(tessera, p->batch, 1, &left, &right, 0, &result, NULL))
        fail("tessera", tsr_last_error());
}

static void multiply_cblas(const struct problem *p, const float *a, const float *b, float *c) {
    function.cblas(ROW_MAJOR, p->transpose_a ? TRANSPOSED : AS_IS, p->transpose_b ? TRANSPOSED : AS_IS, p->m, p->n,
                   p->k, 1, a, lda(p), b, ldb(p), 0, c, p->n);
}

static void multiply_cblas_batch(const struct problem *p, const float *a, const float *b, float *c) {
    batch_function.cblas(ROW_MAJOR, p->transpose_a ? TRANSPOSED : AS_IS, p->transpose_b ? TRANSPOSED : AS_IS, p->m,
                         p->n, p->k, 1, a, lda(p), p->m * p->k, b, ldb(p), p->k * p->n, 0, c, p->n, p->m * p->n,
                         p->batch);
}

static void multiply_cblas64(const struct problem *p, const float *a, const float *b, float *c) {
    function.cblas64(ROW_MAJOR, p->transpose_a ? TRANSPOSED : AS_IS, p->transpose_b ? TRANSPOSED : AS_IS, p->m, p->n,
                     p->k, 1, a, lda(p), b, ldb(p), 0, c, p->n);
}

/* Column-major: the transposes of all three matrices, the factors exchanged. */
static void multiply_fortran(const struct problem *p, const float *a, const float *b, float *c) {
    const int left = ldb(p), right = lda(p);
    const float one = 1, zero = 0;
    function.fortran(p->transpose_b ? "T" : "N", p->transpose_a ? "T" : "N", &p->n, &p->m, &p->k, &one, b, &left, a,
                     &right, &zero, c, &p->n);
}

static void multiply_dnnl(const struct problem *p, const float *a, const float *b, float *c) {
    if (function.dnnl(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->m, p->n, p->k, 1, a, lda(p), b, ldb(p),
                      0, c, p->n))
        fail("oneDNN", "dnnl_sgemm failed");
}

static const struct style {
    const char *name;
    void (*multiply)(const struct problem *p, const float *a, const float *b, float *c);
} styles[] = {
    {"tessera", multiply_tessera}, {"cblas", multiply_cblas}, {"cblas64", multiply_cblas64},
    {"fortran", multiply_fortran}, {"dnnl", multiply_dnnl},
};
enum { STYLES = sizeof styles / sizeof styles[0] };

static const struct style *style;

static void multiply(const struct problem *p, const float *a, const float *b, float *c) {
    const int64_t m = p->m, n = p->n, k = p->k;
    if (p->batch > 1 && batch_function.address)
        multiply_cblas_batch(p, a, b, c);
    else if (p->batch == 1 || style->multiply == multiply_tessera)
        style->multiply(p, a, b, c);
    else
        for (int i = 0; i < p->batch; i++) style->multiply(p, a + i * m * k, b + i * k * n, c + i * m * n);
}

/* ---- Opening a library ------------------------------------------------------------------------------------------- */

/* What the library says of its version, by whichever of these functions it has. */
static void print_version(void *library) {
    union {
        void *address;
        const char *(*text)(void);
        void (*fill)(char *text, int size);
        const int *(*numbers)(void);
    } ask;
    if ((ask.address = dlsym(library, "MKL_Get_Version_String"))) {
        char text[200] = "";
        ask.fill(text, sizeof text - 1);
        fprintf(answers, "here %s\n", text);
    } else if ((ask.address = dlsym(library, "openblas_get_config")) ||
               (ask.address = dlsym(library, "scipy_openblas_get_config64_")) ||
               (ask.address = dlsym(library, "bli_info_get_version_str"))) {
        fprintf(answers, "here %s\n", ask.text());
    } else if ((ask.address = dlsym(library, "dnnl_version"))) {
        const int *version = ask.numbers();
        fprintf(answers, "here %d.%d.%d\n", version[0], version[1], version[2]);
    } else {
        fprintf(answers, "here\n");
    }
}

static bool open_tessera(int threads, const char *precision) {
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.threads = threads;
    options.precision = !strcmp(precision, "ieee") ? TSR_IEEE : !strcmp(precision, "tf32") ? TSR_TF32 : TSR_FP32;
    if (tsr_context_create(&tessera, &options)) return false;
    fprintf(answers, "here %s\n", tsr_version());
    return true;
}

static bool open_library(char **files, const char *symbol) {
    const char *why = "none of its files is here";
    for (; *files; files++) {
        void *library = dlopen(*files, RTLD_NOW | RTLD_LOCAL);
        if (!library) continue;
        function.address = dlsym(library, symbol);
        if (function.address) {
            if (!strcmp(symbol, "cblas_sgemm")) batch_function.address = dlsym(library, "cblas_sgemm_batch_strided");
            print_version(library);
            return true;
        }
        why = "its file has no such function";
    }
    fprintf(answers, "absent %s\n", why);
    return false;
}

/* ---- Matrices ---------------------------------------------------------------------------------------------------- */

/* The matrices of one problem, several times over. Memory is kept from one problem to the next: its pages are there. */
static struct {
    struct problem problem;
    float *floats;
    size_t size, at_b, at_c, set, sets, next;
} ring;

static size_t rounded_up(size_t floats) { return (floats + 15) / 16 * 16; }

static void ring_grow(size_t bytes) {
    if (bytes <= ring.size) return;
    free(ring.floats);
    ring.size = (bytes + 4095) / 4096 * 4096;
    ring.floats = aligned_alloc(4096, ring.size);
    if (!ring.floats) fail("matrices", "out of memory");
}

static void ring_make(const struct problem *p, size_t sets) {
    ring.problem = *p;
    ring.at_b = rounded_up((size_t)p->batch * (size_t)p->m * (size_t)p->k);
    ring.at_c = ring.at_b + rounded_up((size_t)p->batch * (size_t)p->k * (size_t)p->n);
    ring.set = ring.at_c + rounded_up((size_t)p->batch * (size_t)p->m * (size_t)p->n);
    ring.sets = sets;
    ring.next = 0;
    ring_grow(sets * ring.set * sizeof(float));
    uint32_t state = 12345;
    for (size_t i = 0; i < ring.set; i++) {
        state = state * 1664525u + 1013904223u;
        ring.floats[i] = (float)(state >> 8) * 0x1p-24f;
    }
    for (size_t i = 1; i < sets; i++) memcpy(ring.floats + i * ring.set, ring.floats, ring.set * sizeof(float));
}

static void multiply_next(void) {
    float *set = ring.floats + ring.next * ring.set;
    ring.next = ring.next + 1 == ring.sets ? 0 : ring.next + 1;
    multiply(&ring.problem, set, set + ring.at_b, set + ring.at_c);
}

/* The contract's bound on a sample of the first set's results, of which the batch's last is looked at. */
static bool result_is_right(void) {
    const struct problem *p = &ring.problem;
    const int64_t m = p->m, n = p->n, k = p->k, last = p->batch - 1;
    const float *a = ring.floats + last * m * k, *b = ring.floats + ring.at_b + last * k * n;
    const float *c = ring.floats + ring.at_c + last * m * n;
    for (int sample = 0; sample < 64; sample++) {
        const int64_t i = (int64_t)sample * 7919 % p->m, j = (int64_t)sample * 104729 % p->n;
        double sum = 0;
        for (int64_t q = 0; q < p->k; q++)
            sum += (double)a[p->transpose_a ? q * p->m + i : i * p->k + q] *
                   (double)b[p->transpose_b ? j * p->k + q : q * p->n + j];
        if (!(fabs((double)c[i * p->n + j] - sum) <= (p->k + 2) * 0x1p-24 * sum)) return false;
    }
    return true;
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static double set_up(const struct problem *p, size_t sets) {
    ring_make(p, sets);
    multiply_next();
    const bool right = result_is_right();
    const double begin = now();
    multiply_next();
    const double seconds = now() - begin;
    return right ? seconds : 0;
}

static double time_calls(int untimed, int calls) {
    for (int i = 0; i < untimed; i++) multiply_next(); /* awake again after the others' turns */
    const double begin = now();
    for (int i = 0; i < calls; i++) multiply_next();
    return now() - begin;
}

static void answer_with_product(const struct problem *p) {
    const size_t a = (size_t)p->m * (size_t)p->k, b = (size_t)p->k * (size_t)p->n, c = (size_t)p->m * (size_t)p->n;
    float *floats = malloc((a + b + c) * sizeof(float));
    if (!floats) fail("matrices", "out of memory");
    if (fread(floats, sizeof(float), a + b, stdin) != a + b) fail("matrices", "they did not arrive whole");
    multiply(p, floats, floats + a, floats + a + b);
    fwrite(floats + a + b, sizeof(float), c, answers);
    free(floats);
}

int main(int argc, char **argv) {
    if (argc < 4) fail("usage", "library STYLE SYMBOL THREADS FILE...");
    /* Answers leave by a copy of standard output, so that what a library may print does not get between them. */
    const int out = dup(STDOUT_FILENO);
    if (out < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0 || !(answers = fdopen(out, "w")))
        fail("standard output", "closed");
    for (int i = 0; i < STYLES; i++)
        if (!strcmp(argv[1], styles[i].name)) style = &styles[i];
    if (!style) fail(argv[1], "no such style");
    const bool open = style == &styles[0] ? open_tessera(atoi(argv[3]), argv[2]) : open_library(argv + 4, argv[2]);
    fflush(answers);
    if (!open) return 0;

    char line[128], layout[3];
    while (fgets(line, sizeof line, stdin)) {
        struct problem p = {.batch = 1};
        int untimed, calls;
        size_t sets;
        if (sscanf(line, "problem %d %d %d %2s %d %zu", &p.m, &p.n, &p.k, layout, &p.batch, &sets) == 6) {
            p.transpose_a = layout[0] == 't';
            p.transpose_b = layout[1] == 't';
            fprintf(answers, "%.9g\n", set_up(&p, sets));
        } else if (sscanf(line, "time %d %d", &untimed, &calls) == 2) {
            fprintf(answers, "%.9g\n", time_calls(untimed, calls));
        } else if (sscanf(line, "product %d %d %d", &p.m, &p.n, &p.k) == 3) {
            answer_with_product(&p);
        } else {
            fail("request", line);
        }
        fflush(answers);
    }
    return 0;
}
