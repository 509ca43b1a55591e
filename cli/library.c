/* library.c: another BLAS, loaded at run time for its float32 product. */
#include "library.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "output.h"

/* ---- The names a float32 product goes by ------------------------------------------------------------------------- */

typedef enum blas_convention { FORTRAN, CBLAS, CBLAS_64 } blas_convention;

struct blas_symbol {
    const char *name;
    blas_convention convention;
};

/* In the order in which they are looked for. Those with 64 in their names take 64-bit integers; numpy's and scipy's
 * wheels carry an OpenBLAS of the last two. */
static const blas_symbol blas_symbols[] = {
    {"sgemm_", FORTRAN},          {"cblas_sgemm", CBLAS},       {"sgemm_64_", FORTRAN},    {"cblas_sgemm64_", CBLAS_64},
    {"cblas_sgemm_64", CBLAS_64}, {"scipy_sgemm_64_", FORTRAN}, {"scipy_sgemm_", FORTRAN},
};

enum { SYMBOL_TOTAL = sizeof blas_symbols / sizeof blas_symbols[0] };

/* Integers are passed by address, and on a little-endian machine the low half of a 64-bit one is the 32-bit one: one
 * call serves both widths. At the end Fortran has the lengths of its strings. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half comes first");
typedef void fortran_sgemm(const char *transpose_a, const char *transpose_b, const int64_t *m, const int64_t *n,
                           const int64_t *k, const float *alpha, const float *a, const int64_t *lda, const float *b,
                           const int64_t *ldb, const float *beta, float *c, const int64_t *ldc, size_t, size_t);

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 }; /* as cblas.h has them */
typedef void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a,
                         int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef void cblas_sgemm_64(int order, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                            const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                            int64_t ldc);

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* Read by the libraries when they are loaded, or at their first product. */
static bool ask_for_threads(int threads) {
    static const char *const variables[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS",
                                            "MKL_NUM_THREADS", "TESSERA_NUM_THREADS"};
    char text[16];
    snprintf(text, sizeof text, "%d", threads);
    for (size_t i = 0; threads && i < sizeof variables / sizeof variables[0]; i++)
        if (setenv(variables[i], text, 1)) return false;
    return true;
}

/* The library's own description, with its version and often its kernels; "" if it has none. */
static const char *self_description(void *handle) {
    static const char *const names[] = {"openblas_get_config", "openblas_get_config64_", "scipy_openblas_get_config64_",
                                        "bli_info_get_version_str"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *found = dlsym(handle, names[i]);
        const char *(*describe)(void);
        memcpy(&describe, &found, sizeof found);
        const char *text = found ? describe() : NULL;
        if (text) return text;
    }
    return "";
}

static int fail_to_load(const char *path) {
    const char *why = dlerror();
    if (!strchr(path, '/') && access(path, F_OK) == 0)
        return fail("--library %s: without a slash the name is looked for among the system's libraries; for the file "
                    "here write ./%s",
                    path, path);
    size_t length = strlen(path); /* the loader's sentence often begins with the name */
    if (why && strncmp(why, path, length) == 0 && why[length] == ':') why += length + 1 + strspn(why + length + 1, " ");
    return fail("--library %s: %s; give the path of a shared library with sgemm_ or cblas_sgemm", path,
                why ? why : "it cannot be loaded");
}

int library_open(library *l, const char *path, int threads) {
    *l = (library){.given = path};
    if (!ask_for_threads(threads)) return fail("no memory for the environment");
    fenv_t ours;
    fegetenv(&ours);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    /* Libraries compiled with -ffast-math switch subnormals off for the thread that loads them. */
    fegetenv(&l->environment);
    fesetenv(&ours);
    if (!handle) return fail_to_load(path);
    for (int i = 0; i < SYMBOL_TOTAL && !l->function; i++) {
        l->symbol = &blas_symbols[i];
        l->function = dlsym(handle, l->symbol->name);
    }
    if (!l->function) {
        dlclose(handle);
        return fail("--library %s: it has neither sgemm_ nor cblas_sgemm, nor one of their 64-bit forms (sgemm_64_, "
                    "cblas_sgemm64_, cblas_sgemm_64); name a library with the BLAS's float32 product",
                    path);
    }
    Dl_info info;
    const char *file = dladdr(l->function, &info) && info.dli_fname ? info.dli_fname : path;
    const char *says = self_description(handle);
    snprintf(l->description, sizeof l->description, "%s of %.300s%s%.150s", l->symbol->name, file, *says ? ": " : "",
             says);
    return EXIT_OK;
}

/* ---- Multiplying ------------------------------------------------------------------------------------------------- */

static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
enum { CRASH_SIGNAL_TOTAL = sizeof crash_signals / sizeof crash_signals[0] };

/* What to print if the library crashes in the current product; empty: it is not running. */
static char last_words[640];

static void say_last_words(void) {
    output_abandon();
    ssize_t written = write(STDERR_FILENO, last_words, strlen(last_words));
    (void)written; /* nothing is left to be done about it */
    _exit(EXIT_FAILED);
}

static void on_crash(int signal_number) {
    (void)signal_number;
    say_last_words();
}

static void on_exit_within(void) {
    if (last_words[0]) say_last_words();
}

/* Fortran's matrices are stored in columns: what is stored in rows is their transpose, and C^T = B^T A^T. */
static void call_fortran(const library *l, const stored_product *x) {
    const product_shape *p = &x->shape;
    fortran_sgemm *function;
    memcpy(&function, &l->function, sizeof function);
    function(p->transpose_b ? "T" : "N", p->transpose_a ? "T" : "N", &p->n, &p->m, &p->k, &x->alpha, x->b, &x->ldb,
             x->a, &x->lda, &x->beta, x->c, &x->ldc, 1, 1);
}

static void call_cblas(const library *l, const stored_product *x) {
    const product_shape *p = &x->shape;
    int transpose_a = p->transpose_a ? TRANSPOSE : NO_TRANSPOSE,
        transpose_b = p->transpose_b ? TRANSPOSE : NO_TRANSPOSE;
    if (l->symbol->convention == CBLAS_64) {
        cblas_sgemm_64 *function;
        memcpy(&function, &l->function, sizeof function);
        function(ROW_MAJOR, transpose_a, transpose_b, p->m, p->n, p->k, x->alpha, x->a, x->lda, x->b, x->ldb, x->beta,
                 x->c, x->ldc);
    } else {
        cblas_sgemm *function;
        memcpy(&function, &l->function, sizeof function);
        function(ROW_MAJOR, transpose_a, transpose_b, (int)p->m, (int)p->n, (int)p->k, x->alpha, x->a, (int)x->lda,
                 x->b, (int)x->ldb, x->beta, x->c, (int)x->ldc);
    }
}

void library_multiply(library *l, const stored_product *x) {
    static bool watching;
    if (!watching) watching = atexit(on_exit_within) == 0;
    struct sigaction crash = {.sa_handler = on_crash}, before[CRASH_SIGNAL_TOTAL];
    fenv_t ours;
    const product_shape *p = &x->shape;
    snprintf(last_words, sizeof last_words,
             "tessera check: --library %s: the library crashed or ended the process in %s, %lld x %lld x %lld %s; it "
             "cannot be graded\n",
             l->given, l->symbol->name, (long long)p->m, (long long)p->n, (long long)p->k, shape_layout(p));
    for (int i = 0; i < CRASH_SIGNAL_TOTAL; i++) sigaction(crash_signals[i], &crash, &before[i]);
    fegetenv(&ours);
    fesetenv(&l->environment);
    if (l->symbol->convention == FORTRAN)
        call_fortran(l, x);
    else
        call_cblas(l, x);
    fegetenv(&l->environment);
    fesetenv(&ours);
    for (int i = 0; i < CRASH_SIGNAL_TOTAL; i++) sigaction(crash_signals[i], &before[i], NULL);
    last_words[0] = '\0';
}
