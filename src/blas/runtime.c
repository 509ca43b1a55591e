/* runtime.c: contexts, made by the first call, and what a fork does to them. A forked child computes on the CPU where
 * its parent had started the GPU, because CUDA does not work in a forked child. */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "blas.h"
#include "report.h"

typedef enum gpu_state { GPU_NOT_STARTED, GPU_STARTED, GPU_UNUSABLE } gpu_state;

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static blas_runtime made; /* under `starting` until `runtime` points at it */
static bool has_settings;
static const blas_runtime *_Atomic runtime;
tsr_context *_Atomic blas_small_context;

static tsr_context *gpu; /* under `starting` until gpu_is is GPU_STARTED */
static _Atomic gpu_state gpu_is;

/* ---- Forks ------------------------------------------------------------------------------------------------------- */

/* A fork copies the lock as it is, so it waits while another thread is starting something. */
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

/* ---- The CPU ----------------------------------------------------------------------------------------------------- */

static tsr_context *cpu_context(const blas_settings *settings, int threads) {
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.precision = settings->precision;
    options.threads = threads;
    tsr_context *context;
    if (tsr_context_create(&context, &options) == TSR_INVALID_ARGUMENT) {
        fprintf(stderr, "libtessera_blas: %s; using the portable kernel\n", tsr_last_error());
        options.kernel = "portable";
        tsr_context_create(&context, &options);
    }
    return context;
}

static void read_settings(void) {
    made.settings = blas_settings_read();
    has_settings = true;
    blas_report_product();
    if (made.settings.device == BLAS_CPU || !tsr_has_cuda()) atomic_store(&gpu_is, GPU_UNUSABLE);
    if (!made.settings.verbose) return;
    char device[16];
    blas_device_print(&made.settings, device);
    fprintf(stderr, "TESSERA_VERBOSE Tessera %s, device %s, precision %s\n", tsr_version(), device,
            tsr_precision_name(made.settings.precision));
}

static const blas_runtime *start(void) {
    pthread_mutex_lock(&starting);
    if (!has_settings) read_settings();
    if (!made.cpu) made.cpu = cpu_context(&made.settings, made.settings.threads);
    if (!made.one_thread) made.one_thread = cpu_context(&made.settings, 1);
    if (made.cpu && made.one_thread) {
        if (made.settings.device != BLAS_CUDA && !made.settings.verbose)
            atomic_store_explicit(&blas_small_context, made.cpu, memory_order_release);
        atomic_store_explicit(&runtime, &made, memory_order_release);
    }
    pthread_mutex_unlock(&starting);
    return atomic_load_explicit(&runtime, memory_order_acquire);
}

const blas_runtime *blas_runtime_get(void) {
    const blas_runtime *ready = atomic_load_explicit(&runtime, memory_order_acquire);
    return ready ? ready : start();
}

tsr_context *blas_packing_context(void) {
    const blas_runtime *ready = blas_runtime_get();
    return ready ? ready->cpu : NULL;
}

/* ---- The GPU ----------------------------------------------------------------------------------------------------- */

bool blas_gpu_is_usable(void) { return atomic_load_explicit(&gpu_is, memory_order_relaxed) != GPU_UNUSABLE; }

tsr_context *blas_gpu_context(const blas_settings *settings) {
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

bool blas_gpu_give_up(void) { return atomic_exchange(&gpu_is, GPU_UNUSABLE) == GPU_STARTED; }

/* ---- OpenMP ------------------------------------------------------------------------------------------------------ */

/* Asks the program's OpenMP runtime each time until it has one: it may be loaded later than this library. One that was
 * loaded for a plug-in alone (RTLD_LOCAL) cannot be found. */
bool blas_is_in_parallel_region(void) {
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
