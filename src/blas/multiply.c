/* multiply.c: where a product is computed, and what happens when that fails.
 *
 * The CPU or the GPU, by the library's cost model: the choice depends on the product's shape and the settings alone, so
 * that the same call gives the same bits every time.
 *
 * The standard has no way to report that a product could not be computed, so everything else is tried first: without a
 * GPU, without memory, from copies of operands that overlap C.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "blas.h"
#include "no_memory.h"
#include "problem.h"
#include "rounding.h"
#include "runtime.h"
#include "verbose.h"
#include "xerbla.h"

/* A GPU takes some tenths of a second to start. Programs whose products all have fewer multiply-adds and additions than
 * this never start it. */
static const double gpu_start_flops = 4e9;

_Noreturn void blas_give_up(const char *why) {
    fprintf(stderr, "libtessera_blas: cannot compute a product: %s\n", why);
    abort();
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

/* tessera.h has C row-major, so C^T is computed: its right operand is op(A)^T, its left one op(B)^T. */
static tsr_operand right_operand(const blas_product *p) {
    if (p->packed_a) return *p->packed_a;
    return (tsr_operand){p->a, p->k, p->m, p->transpose_a ? 1 : p->lda, p->transpose_a ? p->lda : 1, p->stride_a, NULL};
}

static tsr_operand left_operand(const blas_product *p) {
    if (p->packed_b) return *p->packed_b;
    return (tsr_operand){p->b, p->n, p->k, p->transpose_b ? 1 : p->ldb, p->transpose_b ? p->ldb : 1, p->stride_b, NULL};
}

/* A product as tessera.h has it. */
typedef struct product {
    int64_t batch;
    float alpha, beta;
    tsr_operand left, right;
    tsr_result c;
    bool packed, reads_operands;
} product;

static product product_of(const blas_product *p) {
    return (product){p->batch,
                     p->alpha,
                     p->beta,
                     left_operand(p),
                     right_operand(p),
                     {p->c, p->n, p->m, p->ldc, 1, p->stride_c},
                     p->packed_a || p->packed_b,
                     p->k && !is_zero(p->alpha)};
}

static double multiply_adds(const product *x) {
    return (double)x->batch * (double)x->c.rows * (double)x->c.cols * (double)x->left.cols;
}

static tsr_status multiply_in(tsr_context *context, const product *x) {
    return x->batch == 1 ? tsr_gemm(context, x->alpha, &x->left, &x->right, x->beta, &x->c, NULL)
                         : tsr_gemm_batch(context, x->batch, x->alpha, &x->left, &x->right, x->beta, &x->c, NULL);
}

/* ---- The GPU ----------------------------------------------------------------------------------------------------- */

static double seconds_in(tsr_context *context, const product *x) {
    return tsr_gemm_host_seconds(context, x->batch, &x->left, &x->right, x->beta, &x->c);
}

/* The context on the GPU where that is asked for, or faster than the CPU, copies included; else NULL. */
static tsr_context *gpu_for(const blas_runtime *r, const product *x) {
    if (!blas_gpu_is_usable() || x->packed || !x->reads_operands) return NULL;
    if (r->settings.device == BLAS_CUDA) return blas_gpu_context(&r->settings);
    if (2 * multiply_adds(x) < gpu_start_flops) return NULL;
    tsr_context *gpu = blas_gpu_context(&r->settings);
    if (!gpu) return NULL;
    const double on_gpu = seconds_in(gpu, x), on_cpu = seconds_in(r->cpu, x);
    return on_gpu > 0 && on_gpu < on_cpu ? gpu : NULL;
}

/* False where the GPU could not begin. */
static bool multiply_on_gpu(tsr_context *gpu, const blas_settings *settings, const product *x, blas_outcome *outcome) {
    double share = 0;
    const tsr_status status = tsr_gemm_host(gpu, x->batch, x->alpha, &x->left, &x->right, x->beta, &x->c, &share);
    if (!status && share > 0) snprintf(outcome->device, sizeof outcome->device, "cuda:%d", settings->gpu);
    if (!status && share == 1) return true;
    snprintf(outcome->failure, sizeof outcome->failure, "%.*s", (int)sizeof outcome->failure - 1, tsr_last_error());
    if (status == TSR_INVALID_ARGUMENT) return false;
    /* What has failed once is not asked again: a lost GPU stays lost, and one without memory would be asked each
     * time. */
    if (blas_gpu_give_up() && settings->device == BLAS_CUDA)
        fprintf(stderr, "libtessera_blas: the GPU has failed, the CPU goes on: %s\n", outcome->failure);
    return !status;
}

/* ---- Fallbacks --------------------------------------------------------------------------------------------------- */

static void multiply_without_memory(const product *x) {
    blas_multiply_without_memory(x->batch, x->alpha, &x->left, &x->right, x->beta, &x->c);
}

/* A copy of all that a batch's operand reads, packed tight, which the operand then reads; NULL where there is no
 * memory. */
static float *copy_operand(tsr_operand *o, int64_t batch) {
    const int64_t copies = operand_count(o, batch);
    size_t bytes;
    if (__builtin_mul_overflow((size_t)copies * sizeof(float), (size_t)o->rows, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)o->cols, &bytes))
        return NULL;
    float *copy = malloc(bytes), *to = copy;
    if (!copy) return NULL;
    for (int64_t item = 0; item < copies; item++)
        for (int64_t i = 0; i < o->rows; i++)
            for (int64_t j = 0; j < o->cols; j++)
                memcpy(to++, o->data + item * o->batch_stride + i * o->row_stride + j * o->col_stride, sizeof *to);
    *o = (tsr_operand){copy, o->rows, o->cols, o->cols, 1, copies > 1 ? o->rows * o->cols : 0, NULL};
    return copy;
}

/* Operands that overlap C, or may. The standard forbids it; the result is that of the operands as they were before. */
static void multiply_copies(tsr_context *context, const product *x) {
    product copied = *x;
    float *left = copy_operand(&copied.left, x->batch);
    float *right = left ? copy_operand(&copied.right, x->batch) : NULL;
    if (!right && (blas_shares_memory(&x->left, &x->c, x->batch) || blas_shares_memory(&x->right, &x->c, x->batch)))
        blas_give_up("no memory for a copy of an operand that overlaps C");
    if (!right)
        multiply_without_memory(x);
    else if (!context || multiply_in(context, &copied))
        multiply_without_memory(&copied);
    free(left);
    free(right);
}

/* After `status`, or without a context. */
static void multiply_anyway(tsr_context *context, const product *x, tsr_status status) {
    const bool is_null = !x->c.data || (x->reads_operands && (!x->left.data || !x->right.data));
    if (is_null) blas_give_up(context ? tsr_last_error() : "a matrix is NULL");
    if (context && (status != TSR_OUT_OF_MEMORY && (status != TSR_INVALID_ARGUMENT || x->packed)))
        blas_give_up(tsr_last_error());
    /* The library looks for overlap before it takes memory. */
    const bool is_apart = context ? status == TSR_OUT_OF_MEMORY
                                  : !x->reads_operands || (!blas_shares_memory(&x->left, &x->c, x->batch) &&
                                                           !blas_shares_memory(&x->right, &x->c, x->batch));
    if (is_apart)
        multiply_without_memory(x);
    else
        multiply_copies(context, x);
}

/* ---- A product --------------------------------------------------------------------------------------------------- */

static void multiply(const blas_runtime *r, const product *x, blas_outcome *outcome) {
    tsr_context *gpu = gpu_for(r, x);
    if (gpu && multiply_on_gpu(gpu, &r->settings, x, outcome)) return;
    /* A short product is the caller's alone, whatever OpenMP says: it need not be asked. */
    const bool nested = !x->packed && multiply_adds(x) >= SHORT_PRODUCT && blas_is_in_parallel_region();
    tsr_context *cpu = nested ? r->one_thread : r->cpu;
    outcome->threads = tsr_context_threads(cpu);
    const tsr_status status = multiply_in(cpu, x);
    if (status) multiply_anyway(cpu, x, status);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void blas_multiply(const blas_product *p) {
    if (!p->m || !p->n || !p->batch) return;
    const blas_runtime *r = blas_runtime_get();
    const product x = product_of(p);
    blas_outcome outcome = {"cpu", 0, ""};
    if (!r) {
        multiply_anyway(NULL, &x, TSR_OUT_OF_MEMORY);
        return;
    }
    const uint64_t mode = cpu_rounding_begin(); /* for the choice of a device, and seconds in doubles */
    const double begun = r->settings.verbose ? now() : 0;
    multiply(r, &x, &outcome);
    if (r->settings.verbose) blas_verbose_print(p, &outcome, r->settings.precision, now() - begun);
    cpu_rounding_end(mode);
}

/* On the CPU all at once, unless a single product is large enough for a GPU or needs a line of its own (verbose). If
 * that fails, which it does before anything is written, one by one. */
void blas_multiply_pointers(const blas_product *p, const float *const *a, const float *const *b, float *const *c) {
    const blas_runtime *r = blas_runtime_get();
    if (!p->m || !p->n) return;
    const product x = product_of(p);
    const double all = multiply_adds(&x), each = all / (double)blas_most(1, p->batch);
    if (r && r->settings.device != BLAS_CUDA && !r->settings.verbose && 2 * each < gpu_start_flops) {
        tsr_context *cpu = all >= SHORT_PRODUCT && blas_is_in_parallel_region() ? r->one_thread : r->cpu;
        if (!tsr_gemm_pointers(cpu, p->batch, p->alpha, &x.left, b, &x.right, a, p->beta, &x.c, c, NULL)) return;
    }
    for (int64_t i = 0; i < p->batch; i++) {
        blas_product one = *p;
        one.batch = 1;
        one.a = a[i], one.b = b[i], one.c = c[i];
        blas_multiply(&one);
    }
}
