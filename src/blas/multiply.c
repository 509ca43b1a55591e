/* multiply.c: where a product is computed, and what happens when that fails.
 *
 * Contexts are made by the first call: two on the CPU, with all threads and with one (for calls from inside an OpenMP
 * parallel region, whose threads are busy already), and one on a GPU when the first product comes that is worth it.
 * The decision depends on the product's shape and the settings alone, so that the same call gives the same bits every
 * time. A forked child computes on the CPU where its parent had started the GPU, which CUDA does not let it use.
 *
 * The standard has no way to report that a product could not be computed, so everything else is tried first: without a
 * GPU, without memory (in a workspace on the stack), from copies of operands that overlap C.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "blas.h"
#include "settings.h"

/* Products of fewer multiply-adds are computed by one thread however many there are. */
static const double work_for_threads = 3e6;

/* What a second does, for the choice between CPU and GPU: measured on an H200 and the 16 cores beside it. */
static const double flops_of_thread = 1e11, flops_of_gpu = 1.5e14;
static const double bytes_of_thread = 1e10, bytes_of_bus = 4.5e10; /* copied by one core, ordinary memory; at most */
static const double gpu_call_seconds = 2.5e-4;

/* A GPU takes some tenths of a second to start: that is for programs with some work, which smaller products do not show. */
static const double gpu_flops = 4e9;

enum { STACK_WORKSPACE = 96 << 10 };

typedef enum gpu_state { GPU_NOT_STARTED, GPU_STARTED, GPU_UNUSABLE } gpu_state;

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

/* Made by the first call. */
static struct runtime {
    blas_settings settings;
    int threads; /* of `cpu`, at most */
    tsr_context *cpu, *one_thread;
} made;
static struct runtime *_Atomic runtime;
tsr_context *_Atomic blas_small_context;

static tsr_context *gpu; /* under `starting` until gpu_is is GPU_STARTED */
static _Atomic gpu_state gpu_is;

_Noreturn void blas_give_up(const char *why) {
    fprintf(stderr, "libtessera_blas: cannot compute a product: %s\n", why);
    abort();
}

/* ---- The first call ---------------------------------------------------------------------------------------------- */

static tsr_context *cpu_context(const blas_settings *settings, int threads, size_t max_workspace) {
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.precision = settings->precision;
    options.threads = threads;
    options.max_workspace = max_workspace;
    tsr_context *context;
    if (tsr_context_create(&context, &options) == TSR_INVALID_ARGUMENT) {
        fprintf(stderr, "libtessera_blas: %s; taking the portable kernel\n", tsr_last_error());
        options.kernel = "portable";
        tsr_context_create(&context, &options);
    }
    if (!context) blas_give_up(tsr_last_error());
    return context;
}

/* A fork copies the lock as it is: not while another thread is starting something. */
static void before_fork(void) { pthread_mutex_lock(&starting); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&starting); }
static void after_fork_in_child(void) {
    if (atomic_load(&gpu_is) == GPU_STARTED) atomic_store(&gpu_is, GPU_UNUSABLE);
    pthread_mutex_unlock(&starting);
}

/* When the library is loaded: before a thread can hold the lock while another forks. */
static __attribute__((constructor)) void watch_forks(void) {
    if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child))
        atomic_store(&gpu_is, GPU_UNUSABLE); /* a fork would go unnoticed */
}

/* As many as the process has cores to run on, which is what a context takes by itself. */
static int default_threads(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) ? 1 : CPU_COUNT(&allowed);
}

static struct runtime *start(void) {
    pthread_mutex_lock(&starting);
    if (!atomic_load(&runtime)) {
        made.settings = blas_settings_read();
        made.threads = made.settings.threads ? made.settings.threads : default_threads();
        made.cpu = cpu_context(&made.settings, made.settings.threads, 0);
        made.one_thread = cpu_context(&made.settings, 1, 0);
        if (made.settings.device == BLAS_CPU || !tsr_has_cuda()) atomic_store(&gpu_is, GPU_UNUSABLE);
        if (made.settings.device != BLAS_CUDA && !made.settings.verbose)
            atomic_store_explicit(&blas_small_context, made.cpu, memory_order_release);
        if (made.settings.verbose) {
            char device[16];
            blas_device_print(&made.settings, device);
            fprintf(stderr, "TESSERA_VERBOSE Tessera %s, device %s, precision %s\n", tsr_version(), device,
                    blas_precision_name(made.settings.precision));
        }
        atomic_store_explicit(&runtime, &made, memory_order_release);
    }
    pthread_mutex_unlock(&starting);
    return &made;
}

static inline struct runtime *get_runtime(void) {
    struct runtime *ready = atomic_load_explicit(&runtime, memory_order_acquire);
    return ready ? ready : start();
}

tsr_context *blas_packing_context(void) { return get_runtime()->cpu; }

/* ---- The GPU ----------------------------------------------------------------------------------------------------- */

/* The context on the GPU, started by the first who asks; NULL where there is none to use. */
static tsr_context *gpu_context(const blas_settings *settings) {
    if (atomic_load_explicit(&gpu_is, memory_order_acquire) == GPU_NOT_STARTED) {
        pthread_mutex_lock(&starting);
        if (atomic_load(&gpu_is) == GPU_NOT_STARTED) {
            tsr_options options = TSR_OPTIONS_DEFAULT;
            options.device = TSR_DEVICE_CUDA;
            options.device_index = settings->gpu;
            options.precision = settings->precision;
            options.threads = settings->threads;
            const tsr_status status = tsr_context_create(&gpu, &options);
            if (status && (settings->device == BLAS_CUDA || settings->verbose))
                fprintf(stderr, "libtessera_blas: no GPU: %s\n", tsr_last_error());
            atomic_store_explicit(&gpu_is, status ? GPU_UNUSABLE : GPU_STARTED, memory_order_release);
        }
        pthread_mutex_unlock(&starting);
    }
    return atomic_load_explicit(&gpu_is, memory_order_acquire) == GPU_STARTED ? gpu : NULL;
}

/* Whether a GPU computes the product sooner than this many threads of the CPU, copies there and back included. */
static bool is_worth_a_gpu(const blas_product *p, int threads) {
    const double m = (double)p->m, n = (double)p->n, k = (double)p->k, batch = (double)p->batch;
    const double flops = 2 * m * n * k * batch;
    const double bytes = 4 * (m * k + k * n + m * n * (p->beta == 0 ? 1 : 2)) * batch;
    const double bandwidth = bytes_of_thread * threads < bytes_of_bus ? bytes_of_thread * threads : bytes_of_bus;
    const double on_gpu = gpu_call_seconds + bytes / bandwidth + flops / flops_of_gpu;
    return flops >= gpu_flops && flops / (flops_of_thread * threads) > on_gpu;
}

/* ---- OpenMP ------------------------------------------------------------------------------------------------------ */

/* Asks the program's OpenMP runtime, where it has one by now: it may be loaded later than this library. One that was
 * loaded for a plug-in alone (RTLD_LOCAL) is out of reach. */
static bool is_in_parallel_region(void) {
    static void *_Atomic found;
    union {
        void *address;
        int (*function)(void);
    } in_parallel = {.address = atomic_load_explicit(&found, memory_order_relaxed)};
    if (!in_parallel.address) {
        in_parallel.address = dlsym(RTLD_DEFAULT, "omp_in_parallel");
        atomic_store_explicit(&found, in_parallel.address, memory_order_relaxed);
    }
    return in_parallel.address && in_parallel.function();
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

tsr_operand blas_right_operand(const blas_product *p) {
    if (p->packed_a) return *p->packed_a;
    return (tsr_operand){p->a, p->k, p->m, p->transpose_a ? 1 : p->lda, p->transpose_a ? p->lda : 1, p->stride_a, NULL};
}

tsr_operand blas_left_operand(const blas_product *p) {
    if (p->packed_b) return *p->packed_b;
    return (tsr_operand){p->b, p->n, p->k, p->transpose_b ? 1 : p->ldb, p->transpose_b ? p->ldb : 1, p->stride_b, NULL};
}

static tsr_result result(const blas_product *p) { return (tsr_result){p->c, p->n, p->m, p->ldc, 1, p->stride_c}; }

/* ---- When it does not go well ------------------------------------------------------------------------------------ */

/* No memory for panels: blocks small enough for a workspace on the stack, and one thread. */
static tsr_status multiply_on_the_stack(const blas_settings *settings, const blas_product *p, const tsr_operand *left,
                                        const tsr_operand *right, const tsr_result *c) {
    _Alignas(256) char workspace[STACK_WORKSPACE];
    const tsr_launch launch = {.workspace = workspace, .workspace_size = sizeof workspace};
    tsr_context *context = cpu_context(settings, 1, sizeof workspace);
    const tsr_status status = tsr_gemm_batch(context, p->batch, p->alpha, left, right, p->beta, c, &launch);
    tsr_context_destroy(context);
    return status;
}

/* A copy of all that a batch's operand reads, packed tight; the operand then reads the copy. */
static float *copy_operand(tsr_operand *o, int64_t batch) {
    const int64_t copies = o->batch_stride ? batch : 1;
    size_t bytes;
    float *copy = NULL;
    if (!__builtin_mul_overflow((size_t)copies * sizeof *copy, (size_t)o->rows, &bytes) &&
        !__builtin_mul_overflow(bytes, (size_t)o->cols, &bytes))
        copy = malloc(bytes);
    if (!copy) blas_give_up("no memory for a copy of an operand that overlaps C");
    float *to = copy;
    for (int64_t item = 0; item < copies; item++)
        for (int64_t i = 0; i < o->rows; i++)
            for (int64_t j = 0; j < o->cols; j++)
                memcpy(to++, o->data + item * o->batch_stride + i * o->row_stride + j * o->col_stride, sizeof *to);
    *o = (tsr_operand){copy, o->rows, o->cols, o->cols, 1, copies > 1 ? o->rows * o->cols : 0, NULL};
    return copy;
}

/* Operands that overlap C, or may. The standard forbids it; what comes out is what the operands were before. */
static tsr_status multiply_copies(const blas_product *p, tsr_operand left, tsr_operand right, const tsr_result *c,
                                  tsr_context *context) {
    if (!left.data || !right.data || !c->data) return TSR_INVALID_ARGUMENT;
    float *left_copy = copy_operand(&left, p->batch), *right_copy = copy_operand(&right, p->batch);
    const tsr_status status = tsr_gemm_batch(context, p->batch, p->alpha, &left, &right, p->beta, c, NULL);
    free(left_copy);
    free(right_copy);
    return status;
}

/* ---- A product --------------------------------------------------------------------------------------------------- */

/* What one line of TESSERA_VERBOSE says beyond the arguments. */
typedef struct course {
    char device[16];
    int threads;
    char failure[160]; /* why the GPU did not do it all; empty where it did, or was not asked */
} course;

/* Returns false where the GPU has not been asked, or could not begin. */
static bool multiply_on_gpu(const struct runtime *r, const blas_product *p, const tsr_operand *left,
                            const tsr_operand *right, const tsr_result *c, course *taken) {
    tsr_context *context = gpu_context(&r->settings);
    if (!context) return false;
    double share = 0;
    const tsr_status status = tsr_gemm_host(context, p->batch, p->alpha, left, right, p->beta, c, &share);
    if (!status && share > 0) snprintf(taken->device, sizeof taken->device, "cuda:%d", r->settings.gpu);
    if (!status && share == 1) return true;
    snprintf(taken->failure, sizeof taken->failure, "%.*s", (int)sizeof taken->failure - 1, tsr_last_error());
    /* What has failed once is not asked again: a lost GPU stays lost, and one without memory would be asked each time. */
    if (status == TSR_INVALID_ARGUMENT) return false;
    const gpu_state before = atomic_exchange(&gpu_is, GPU_UNUSABLE);
    if (before == GPU_STARTED && r->settings.device == BLAS_CUDA)
        fprintf(stderr, "libtessera_blas: the GPU has failed, the CPU goes on: %s\n", taken->failure);
    return !status;
}

static void multiply_somewhere(const struct runtime *r, const blas_product *p, course *taken) {
    const tsr_operand left = blas_left_operand(p), right = blas_right_operand(p);
    const tsr_result c = result(p);
    const bool large = (double)p->m * (double)p->n * (double)p->k * (double)p->batch >= work_for_threads;
    const bool packed = p->packed_a || p->packed_b;
    if (atomic_load_explicit(&gpu_is, memory_order_relaxed) != GPU_UNUSABLE && !packed && p->k && p->alpha != 0 &&
        (r->settings.device == BLAS_CUDA || (large && is_worth_a_gpu(p, r->threads))) &&
        multiply_on_gpu(r, p, &left, &right, &c, taken))
        return;
    const bool nested = large && !packed && is_in_parallel_region();
    tsr_context *context = nested ? r->one_thread : r->cpu;
    taken->threads = nested ? 1 : r->threads; /* at most: a small product is for one */
    tsr_status status = p->batch == 1 ? tsr_gemm(context, p->alpha, &left, &right, p->beta, &c, NULL)
                                      : tsr_gemm_batch(context, p->batch, p->alpha, &left, &right, p->beta, &c, NULL);
    if (status == TSR_OUT_OF_MEMORY) status = multiply_on_the_stack(&r->settings, p, &left, &right, &c);
    if (status == TSR_INVALID_ARGUMENT && !packed) status = multiply_copies(p, left, right, &c, context);
    if (status) blas_give_up(tsr_last_error());
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char operation(const tsr_operand *packed, bool transpose) { return packed ? 'P' : transpose ? 'T' : 'N'; }

/* In the manner of MKL_VERBOSE. One write, so that lines of threads and processes do not mix. */
static void multiply_and_tell(const struct runtime *r, const blas_product *p) {
    course taken = {"cpu", 0, ""};
    const double begun = now();
    multiply_somewhere(r, p, &taken);
    const double seconds = now() - begun;
    char batch[32] = "", threads[32] = "", line[512];
    if (p->batch != 1) snprintf(batch, sizeof batch, " batch:%lld", (long long)p->batch);
    if (taken.threads) snprintf(threads, sizeof threads, " NThr:%d", taken.threads);
    const int length = snprintf(
        line, sizeof line,
        "TESSERA_VERBOSE SGEMM(%c,%c,%lld,%lld,%lld,%g,%p,%lld,%p,%lld,%g,%p,%lld)%s %.2fus %s%s %s%s%s\n",
        operation(p->packed_a, p->transpose_a), operation(p->packed_b, p->transpose_b), (long long)p->m,
        (long long)p->n, (long long)p->k, (double)p->alpha, (const void *)p->a, (long long)p->lda, (const void *)p->b,
        (long long)p->ldb, (double)p->beta, (void *)p->c, (long long)p->ldc, batch, 1e6 * seconds, taken.device,
        threads, blas_precision_name(r->settings.precision), taken.failure[0] ? ", finished by the CPU: " : "",
        taken.failure);
    if (length > 0) {
        const size_t whole = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
        if (write(STDERR_FILENO, line, whole) < 0) return; /* there is nobody to tell */
    }
}

void blas_multiply(const blas_product *p) {
    if (!p->m || !p->n || !p->batch) return;
    const struct runtime *r = get_runtime();
    if (r->settings.verbose)
        multiply_and_tell(r, p);
    else
        multiply_somewhere(r, p, &(course){"", 0, ""});
}
