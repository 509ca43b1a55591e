/* surroundings.c: products in threads that do not have the usual surroundings.
 *
 *   - denormals-are-zero, flush-to-zero, each rounding mode, and unmasked traps: the bits are those of the default
 *     mode, and the caller finds its mode again;
 *   - a stack of 32 KiB (48 KiB with avx512 or AMX) beyond the least that a thread can have, with a guard below;
 *   - a page that a signal handler makes readable when a thread touches it.
 *
 * Each with one thread and with several, for every CPU kernel of this machine.
 */
#include <fenv.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "tessera.h"

#define FAIL(...) (fprintf(stderr, "surroundings: " __VA_ARGS__), fputc('\n', stderr), exit(1))

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* Small in place and transposed, rows and columns, a few rows, packed and shared; several k blocks among them. */
static const struct shape {
    int m, n, k;
    int a_transposed, b_transposed;
} shapes[] = {{5, 7, 3, 0, 0},        {40, 50, 60, 0, 1},  {90, 80, 70, 1, 0},   {1, 300, 900, 0, 1},
              {300, 1, 900, 1, 0},    {3, 700, 800, 0, 0}, {4, 600, 1300, 1, 1}, {150, 130, 700, 0, 0},
              {200, 260, 1300, 1, 1}, {24, 8, 1280, 1, 0}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Subnormal factors among them: in a mode where these are zeros the product would be lost. */
static const float factors[][2] = {{1, 0}, {0x1p-130f, 0}, {1, 0x1p-130f}, {3, 0.5f}, {-0.7f, 1}};
enum { FACTORS = sizeof factors / sizeof factors[0] };

enum { ELEMENTS = 800000 };
static float a_data[ELEMENTS], b_data[ELEMENTS], c_before[ELEMENTS], expected[ELEMENTS], found[ELEMENTS];

static float number(unsigned i) {
    i = (i ^ 61 ^ i >> 16) * 2654435769u;
    i = (i ^ i >> 15) * 2246822519u;
    return ((float)(i >> 8) * 0x1p-24f - 0.5f) * (i % 16 ? 1 : 0x1p-120f);
}

static void multiply(tsr_context *context, const struct shape *s, const float factor[2], float *c) {
    memcpy(c, c_before, (size_t)s->m * (size_t)s->n * sizeof *c);
    const tsr_operand a = {a_data, s->m, s->k, s->a_transposed ? 1 : s->k, s->a_transposed ? s->m : 1, 0, NULL};
    const tsr_operand b = {b_data, s->k, s->n, s->b_transposed ? 1 : s->n, s->b_transposed ? s->k : 1, 0, NULL};
    const tsr_result r = {c, s->m, s->n, s->n, 1, 0};
    if (tsr_gemm(context, factor[0], &a, &b, factor[1], &r, NULL)) FAIL("%s", tsr_last_error());
}

static tsr_context *make_context(const char *kernel, int threads) {
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.kernel = kernel;
    options.threads = threads;
    tsr_context *context;
    return tsr_context_create(&context, &options) ? NULL : context;
}

/* ---- Floating-point modes ---------------------------------------------------------------------------------------- */

#ifdef __SSE__
static const struct mode {
    const char *name;
    unsigned register_bits;
} modes[] = {{"denormals-are-zero", 0x1f80 | 0x0040},
             {"flush-to-zero", 0x1f80 | 0x8000},
             {"both", 0x1f80 | 0x8040},
             {"rounding down", 0x1f80 | 0x2000},
             {"rounding up", 0x1f80 | 0x4000},
             {"rounding to zero", 0x1f80 | 0x6000},
             {"traps", 0x0000}};
enum { MODES = sizeof modes / sizeof modes[0] };

static void check_modes(const char *kernel, tsr_context *context) {
    for (int i = 0; i < SHAPES; i++)
        for (int f = 0; f < FACTORS; f++) {
            const size_t bytes = (size_t)shapes[i].m * (size_t)shapes[i].n * sizeof(float);
            multiply(context, &shapes[i], factors[f], expected);
            for (int m = 0; m < MODES; m++) {
                _mm_setcsr(modes[m].register_bits);
                multiply(context, &shapes[i], factors[f], found);
                const unsigned after = _mm_getcsr();
                _mm_setcsr(0x1f80);
                if ((after & ~0x3fu) != modes[m].register_bits)
                    FAIL("%s: the caller's mode was changed", modes[m].name);
                if (memcmp(found, expected, bytes))
                    FAIL("%s, %s: %d x %d x %d with alpha %g, beta %g has other bits", kernel, modes[m].name,
                         shapes[i].m, shapes[i].n, shapes[i].k, (double)factors[f][0], (double)factors[f][1]);
            }
        }
}
#else
static void check_modes(const char *kernel, tsr_context *context) { (void)kernel, (void)context; }
#endif

/* ---- A small stack ----------------------------------------------------------------------------------------------- */

#ifndef TESSERA_SANITIZED

static void *multiply_all(void *context) {
    for (int i = 0; i < SHAPES; i++)
        for (int f = 0; f < FACTORS; f++) multiply(context, &shapes[i], factors[f], found);
    return NULL;
}

static void check_stack(const char *kernel, tsr_context *context) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t room = !strcmp(kernel, "avx512") || !strcmp(kernel, "amx") ? 48 << 10 : 32 << 10;
    const size_t size = ((size_t)PTHREAD_STACK_MIN + room + page - 1) / page * page;
    multiply_all(context);        /* what is bound on the first call takes stack of its own */
    const size_t guard = 1 << 20; /* no frame reaches beyond it */
    char *memory = mmap(NULL, size + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE)) FAIL("no memory for a stack");
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, memory + guard, size) ||
        pthread_create(&thread, &attributes, multiply_all, context) || pthread_join(thread, NULL))
        FAIL("no thread with a stack of %zu bytes", size);
    pthread_attr_destroy(&attributes);
    munmap(memory, size + guard);
}

#else
static void check_stack(const char *kernel, tsr_context *context) { (void)kernel, (void)context; }
#endif

/* ---- Pages on demand --------------------------------------------------------------------------------------------- */

static size_t page_bytes;

static void make_readable(int signal_number, siginfo_t *info, void *unused) {
    (void)signal_number, (void)unused;
    mprotect((void *)((size_t)info->si_addr / page_bytes * page_bytes), page_bytes, PROT_READ);
}

static void check_faults(tsr_context *context) {
    enum { SIDE = 512 };
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    struct sigaction action = {.sa_sigaction = make_readable, .sa_flags = SA_SIGINFO | SA_NODEFER}, before;
    sigaction(SIGSEGV, &action, &before);
    const size_t bytes = SIDE * SIDE * sizeof(float);
    float *lazy = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (lazy == MAP_FAILED) FAIL("no memory");
    const tsr_operand a = {lazy, SIDE, SIDE, SIDE, 1, 0, NULL}, b = {b_data, SIDE, SIDE, SIDE, 1, 0, NULL};
    const tsr_result c = {found, SIDE, SIDE, SIDE, 1, 0};
    if (tsr_gemm(context, 1, &a, &b, 0, &c, NULL)) FAIL("%s", tsr_last_error());
    for (int i = 0; i < SIDE * SIDE; i++)
        if (found[i] != 0) FAIL("zeros times B are not zeros");
    munmap(lazy, bytes);
    sigaction(SIGSEGV, &before, NULL);
}

int main(int count, char **arguments) {
    static const char *const all[] = {"portable", "avx2", "avx512", "neon", "amx"};
    for (unsigned i = 0; i < ELEMENTS; i++) {
        a_data[i] = number(i);
        b_data[i] = number(i + ELEMENTS);
        c_before[i] = number(i + 2 * ELEMENTS);
    }
    int kernels = 0;
    for (int i = 0; i < (int)(sizeof all / sizeof all[0]); i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            if (count > 1 && strcmp(arguments[1], all[i])) continue;
            tsr_context *context = make_context(all[i], threads);
            if (!context) continue;
            check_modes(all[i], context);
            check_stack(all[i], context);
            check_faults(context);
            tsr_context_destroy(context);
            kernels += threads == 1;
        }
    printf("surroundings: %d kernels\n", kernels);
    return kernels == 0;
}
