/* stress.c: random products against a double-precision triple loop, from one thread, from many, and after a fork; exits
 * in the middle of products.
 *
 * Everything is integer-valued and small, so every sum is exact in float32 and results must be equal, not close. It is
 * a C program so that the address, undefined-behaviour and thread sanitizers can watch the library from its first call
 * to its last; tests/test_sanitizers.py builds it with them, tests/test_aarch64.py for another processor. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera.h"

#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#endif
#endif

enum { GUARD = 37 }; /* floats in front of and behind each matrix */
static const float poison = -123456.0f;

static void fail(const char *what) {
    fprintf(stderr, "stress: %s (last error: \"%s\")\n", what, tsr_last_error());
    exit(1);
}

static void expect(tsr_status status, const char *what) {
    if (status) fail(what);
}

/* ---- Random numbers and matrices --------------------------------------------------------------------------------- */

static uint32_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

static int64_t random_from(uint64_t *seed, int64_t low, int64_t high) {
    return low + (int64_t)(next_random(seed) % (uint32_t)(high - low + 1));
}

/* A batch of matrices in a buffer of its own, with poison around and between the elements. */
typedef struct matrix {
    float *buffer;
    size_t size;
    float *data;
    int64_t rows, cols, batch, row_stride, col_stride, batch_stride;
} matrix;

static float *element(const matrix *x, int64_t batch, int64_t i, int64_t j) {
    return x->data + batch * x->batch_stride + i * x->row_stride + j * x->col_stride;
}

/* Row-major, column-major, padded or with gaps between all elements; rows may run backwards. */
static matrix matrix_make(int64_t rows, int64_t cols, int64_t batch, uint64_t *seed) {
    matrix x = {.rows = rows, .cols = cols, .batch = batch};
    int64_t gap = random_from(seed, 0, 3) ? 1 : 2, padding = random_from(seed, 0, 1) * random_from(seed, 1, 9);
    if (random_from(seed, 0, 1)) {
        x.col_stride = gap;
        x.row_stride = gap * cols + padding;
    } else {
        x.row_stride = gap;
        x.col_stride = gap * rows + padding;
    }
    x.batch_stride = rows * x.row_stride > cols * x.col_stride ? rows * x.row_stride : cols * x.col_stride;
    x.size = (size_t)((batch ? batch : 1) * x.batch_stride) +
             2 * GUARD; /* an empty batch's operand may be packed still */
    x.buffer = malloc(x.size * sizeof *x.buffer);
    if (!x.buffer) fail("no memory");
    for (size_t i = 0; i < x.size; i++) x.buffer[i] = poison;
    x.data = x.buffer + GUARD;
    if (rows && random_from(seed, 0, 3) == 0) {
        x.data += (rows - 1) * x.row_stride;
        x.row_stride = -x.row_stride;
    }
    return x;
}

static void matrix_fill(const matrix *x, uint64_t *seed) {
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t i = 0; i < x->rows; i++)
            for (int64_t j = 0; j < x->cols; j++) *element(x, b, i, j) = (float)random_from(seed, -8, 8);
}

static matrix matrix_copy(const matrix *x) {
    matrix y = *x;
    y.buffer = malloc(x->size * sizeof *y.buffer);
    if (!y.buffer) fail("no memory");
    memcpy(y.buffer, x->buffer, x->size * sizeof *y.buffer);
    y.data = y.buffer + (x->data - x->buffer);
    return y;
}

static tsr_operand operand_of(const matrix *x) {
    return (tsr_operand){x->data, x->rows, x->cols, x->row_stride, x->col_stride, x->batch_stride, NULL};
}

/* ---- One product ------------------------------------------------------------------------------------------------- */

static void reference(double alpha, const matrix *a, const matrix *b, double beta, const matrix *c) {
    for (int64_t batch = 0; batch < c->batch; batch++)
        for (int64_t i = 0; i < c->rows; i++)
            for (int64_t j = 0; j < c->cols; j++) {
                double sum = 0;
                for (int64_t k = 0; k < a->cols; k++)
                    sum += (double)*element(a, batch, i, k) * (double)*element(b, batch, k, j);
                float *to = element(c, batch, i, j);
                *to = (float)(alpha * sum + (beta == 0 ? 0 : beta * (double)*to));
            }
}

/* One random product by one of the four ways the interface offers. The whole buffer of C is compared, so anything
 * written beside it shows. */
static void check_product(tsr_context *context, int64_t largest, uint64_t *seed) {
    static const float factors[] = {0, 1, -1, 2, -3};
    int64_t m = random_from(seed, 0, largest), n = random_from(seed, 0, largest), k = random_from(seed, 0, largest);
    int64_t batch = random_from(seed, 0, 3) ? 1 : random_from(seed, 0, 3);
    float alpha = factors[next_random(seed) % 5], beta = factors[next_random(seed) % 5];
    matrix a = matrix_make(m, k, batch, seed), b = matrix_make(k, n, batch, seed), c = matrix_make(m, n, batch, seed);
    matrix_fill(&a, seed);
    matrix_fill(&b, seed);
    if (beta != 0) matrix_fill(&c, seed);
    matrix expected = matrix_copy(&c);
    reference((double)alpha, &a, &b, (double)beta, &expected);

    tsr_operand oa = operand_of(&a), ob = operand_of(&b);
    tsr_result oc = {c.data, m, n, c.row_stride, c.col_stride, c.batch_stride};
    switch (next_random(seed) % 4) {
    case 0: expect(tsr_gemm_batch(context, batch, alpha, &oa, &ob, beta, &oc, NULL), "tsr_gemm_batch"); break;
    case 1: {
        tsr_packed *packed = NULL;
        bool left = next_random(seed) % 2;
        tsr_operand *side = left ? &oa : &ob;
        if (batch > 1) { /* one matrix is packed, so every product shares it */
            side->batch_stride = 0;
            (left ? &a : &b)->batch_stride = 0;
            memcpy(expected.buffer, c.buffer, c.size * sizeof *c.buffer);
            reference((double)alpha, &a, &b, (double)beta, &expected);
        }
        expect(tsr_pack(&packed, context, left ? TSR_LEFT : TSR_RIGHT, side, NULL), "tsr_pack");
        side->packed = packed;
        expect(tsr_gemm_batch(context, batch, alpha, &oa, &ob, beta, &oc, NULL), "tsr_gemm_batch, packed operand");
        tsr_packed_destroy(packed);
        break;
    }
    default: {
        tsr_plan *plan = NULL;
        expect(tsr_plan_create(&plan, context, batch, &oa, &ob, &oc), "tsr_plan_create");
        tsr_launch launch = {NULL, NULL, tsr_plan_workspace(plan)};
        if (launch.workspace_size && next_random(seed) % 2)
            launch.workspace = aligned_alloc(256, (launch.workspace_size + 255) / 256 * 256);
        expect(tsr_plan_execute(plan, alpha, a.data, b.data, beta, c.data, &launch), "tsr_plan_execute");
        free(launch.workspace);
        tsr_plan_destroy(plan);
    }
    }
    for (size_t i = 0; i < c.size; i++)
        if (c.buffer[i] != expected.buffer[i]) {
            fprintf(stderr,
                    "stress: m %lld n %lld k %lld batch %lld alpha %g beta %g: float %zu of C's buffer is %g, not %g\n",
                    (long long)m, (long long)n, (long long)k, (long long)batch, (double)alpha, (double)beta, i,
                    (double)c.buffer[i], (double)expected.buffer[i]);
            exit(1);
        }
    free(a.buffer);
    free(b.buffer);
    free(c.buffer);
    free(expected.buffer);
}

/* ---- Many at once ------------------------------------------------------------------------------------------------ */

/* Small products that follow each other closely, so that threads stay awake for them. */
static void check_products_in_a_row(tsr_context *context, uint64_t *seed) {
    enum { PRODUCTS = 16, M = 70, N = 66, K = 60 };
    matrix a = matrix_make(M, K, 1, seed), b = matrix_make(K, N, 1, seed), c[PRODUCTS], expected[PRODUCTS];
    matrix_fill(&a, seed);
    matrix_fill(&b, seed);
    for (int i = 0; i < PRODUCTS; i++) {
        c[i] = matrix_make(M, N, 1, seed);
        expected[i] = matrix_copy(&c[i]);
        reference(1, &a, &b, 0, &expected[i]);
    }
    const tsr_operand oa = operand_of(&a), ob = operand_of(&b);
    for (int i = 0; i < PRODUCTS; i++) {
        const tsr_result oc = {c[i].data, M, N, c[i].row_stride, c[i].col_stride, 0};
        expect(tsr_gemm(context, 1, &oa, &ob, 0, &oc, NULL), "tsr_gemm");
    }
    for (int i = 0; i < PRODUCTS; i++) {
        if (memcmp(c[i].buffer, expected[i].buffer, c[i].size * sizeof(float))) fail("a product in a row is wrong");
        free(c[i].buffer);
        free(expected[i].buffer);
    }
    free(a.buffer);
    free(b.buffer);
}

typedef struct work {
    tsr_context *context; /* NULL: the thread makes and destroys its own */
    int products;
    uint64_t seed;
} work;

static void *work_run(void *argument) {
    work *w = argument;
    tsr_context *context = w->context;
    if (!context) expect(tsr_context_create(&context, NULL), "tsr_context_create");
    for (int i = 0; i < w->products; i++) check_product(context, i % 4 ? 48 : 200, &w->seed);
    if (!w->context) tsr_context_destroy(context);
    return NULL;
}

static void check_many_threads(tsr_context *shared, int products) {
    enum { THREADS = 24 };
    pthread_t threads[THREADS];
    work works[THREADS];
    for (int i = 0; i < THREADS; i++) {
        works[i] = (work){i % 3 ? shared : NULL, products, 1000 + (uint64_t)i};
        if (pthread_create(&threads[i], NULL, work_run, &works[i])) fail("pthread_create");
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

#ifndef THREAD_SANITIZER /* which cannot follow a fork of a program with threads */
static void check_fork(tsr_context *context) {
    uint64_t seed = 77;
    check_product(context, 90, &seed);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) {
        for (int i = 0; i < 5; i++) check_product(context, 90, &seed);
        _exit(0);
    }
    for (int i = 0; i < 5; i++) check_product(context, 90, &seed);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status) fail("the child of a fork could not multiply");
}
#endif

/* ---- Exits ------------------------------------------------------------------------------------------------------- */

static void *multiply_until_the_end(void *context) {
    enum { SIZE = 200 };
    static float x[SIZE * SIZE];
    float *y = malloc(sizeof x);
    if (!y) fail("no memory");
    const tsr_operand a = {x, SIZE, SIZE, SIZE, 1, 0, NULL};
    const tsr_result c = {y, SIZE, SIZE, SIZE, 1, 0};
    while (tsr_gemm(context, 1, &a, &a, 0, &c, NULL) == TSR_OK) continue;
    fail("tsr_gemm while the process exits");
    return NULL;
}

/* Ends this process while threads of its own are in the middle of products. */
static void exit_while_multiplying(void) {
    alarm(600); /* it hangs, however busy the machine is */
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.threads = 3;
    tsr_context *context;
    expect(tsr_context_create(&context, &options), "tsr_context_create");
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, multiply_until_the_end, context)) fail("pthread_create");
    }
    usleep(20000);
    exit(0);
}

/* It does so without waiting for them and without a fault: a sanitizer would report one, an alarm end the other. A new
 * program each time, because sanitizers cannot follow a fork of one with threads. */
static void check_exits(void) {
    for (int round = 0; round < 10; round++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (!child) {
            execl("/proc/self/exe", "stress", "exit", (char *)NULL);
            _exit(127);
        }
        int status = 0;
        if (waitpid(child, &status, 0) != child || status) fail("a process could not exit while it multiplied");
    }
}

int main(int count, char **words) {
    if (count == 2 && strcmp(words[1], "exit") == 0) exit_while_multiplying();
    const bool brief = count == 2 && strcmp(words[1], "brief") == 0; /* for an emulated processor, or a slow build */
    if (!brief) check_exits();
    for (int threads = brief ? 1 : 0; threads <= 3; threads += brief ? 2 : 1) {
        tsr_options options = TSR_OPTIONS_DEFAULT;
        options.threads = threads;
        tsr_context *context;
        expect(tsr_context_create(&context, &options), "tsr_context_create");
        uint64_t seed = 1 + (uint64_t)threads;
        for (int i = 0; i < (brief ? 30 : 150); i++) check_product(context, i % 10 ? 40 : brief ? 150 : 300, &seed);
        for (int i = 0; i < (brief ? 2 : 8); i++) check_products_in_a_row(context, &seed);
        check_many_threads(context, brief ? 4 : 12);
#ifndef THREAD_SANITIZER
        if (!brief) check_fork(context);
#endif
        tsr_context_destroy(context);
    }
    puts("stress: every product exact");
    return 0;
}
