/* device.c: contexts, copies and clocks. libtessera takes matrices where they are; bringing them to a GPU is the
 * caller's part, done here with the driver itself, found at run time so that the command starts without one. */
#include "device.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "command.h"

int fail_status(const char *what, tsr_status status) {
    return fail("%s: %s", what, *tsr_last_error() ? tsr_last_error() : tsr_status_name(status));
}

int plan_as_text(char **text, const tsr_plan *plan) {
    size_t size = tsr_plan_print(plan, NULL, 0) + 1;
    *text = malloc(size);
    if (!*text) return fail("no memory for %zu bytes of text", size);
    tsr_plan_print(plan, *text, size);
    return EXIT_OK;
}

int device_kernels(const char *engine, int (*each)(void *data, const char *name), void *data) {
    static const char runs[] = "runs here";
    const size_t size = tsr_info_print(NULL, 0) + 1, ending = sizeof runs - 1;
    char *text = malloc(size), *rest = text, start[32];
    if (!text) return fail("no memory for %zu bytes of text", size);
    tsr_info_print(text, size);
    const int start_length = snprintf(start, sizeof start, "%s kernel: ", engine);
    int status = EXIT_OK;
    for (char *line; !status && (line = strsep(&rest, "\n"));) {
        const size_t length = strlen(line);
        if (length < ending || strcmp(line + length - ending, runs) || strncmp(line, start, (size_t)start_length))
            continue;
        line[strcspn(line, ",")] = '\0';
        status = each(data, line + start_length);
    }
    free(text);
    return status;
}

/* ---- The CUDA driver --------------------------------------------------------------------------------------------- */

/* The driver's functions this command calls: member, symbol, parameters. Pointers are opaque to it, device addresses
 * are 64-bit numbers. */
#define DRIVER_FUNCTIONS(X)                                                                       \
    X(init, "cuInit", unsigned flags)                                                             \
    X(get_error_string, "cuGetErrorString", int error, const char **text)                         \
    X(device_get_count, "cuDeviceGetCount", int *count)                                           \
    X(device_get, "cuDeviceGet", int *device, int ordinal)                                        \
    X(device_get_name, "cuDeviceGetName", char *name, int size, int device)                       \
    X(primary_retain, "cuDevicePrimaryCtxRetain", void **context, int device)                     \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", int device)                                \
    X(set_current, "cuCtxSetCurrent", void *context)                                              \
    X(memory_info, "cuMemGetInfo_v2", size_t *available, size_t *total)                           \
    X(memory_allocate, "cuMemAlloc_v2", uint64_t *address, size_t bytes)                          \
    X(memory_free, "cuMemFree_v2", uint64_t address)                                              \
    X(copy_to_device, "cuMemcpyHtoD_v2", uint64_t address, const void *host, size_t bytes)        \
    X(copy_to_host, "cuMemcpyDtoH_v2", void *host, uint64_t address, size_t bytes)                \
    X(stream_create, "cuStreamCreate", void **stream, unsigned flags)                             \
    X(stream_synchronize, "cuStreamSynchronize", void *stream)                                    \
    X(stream_destroy, "cuStreamDestroy_v2", void *stream)                                         \
    X(capture_begin, "cuStreamBeginCapture_v2", void *stream, int mode)                           \
    X(capture_end, "cuStreamEndCapture", void *stream, void **graph)                              \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", void **made, void *graph, uint64_t flags) \
    X(graph_launch, "cuGraphLaunch", void *graph, void *stream)                                   \
    X(graph_destroy, "cuGraphDestroy", void *graph)                                               \
    X(made_destroy, "cuGraphExecDestroy", void *graph)                                            \
    X(event_create, "cuEventCreate", void **event, unsigned flags)                                \
    X(event_record, "cuEventRecord", void *event, void *stream)                                   \
    X(event_synchronize, "cuEventSynchronize", void *event)                                       \
    X(event_elapsed, "cuEventElapsedTime", float *milliseconds, void *start, void *stop)          \
    X(event_destroy, "cuEventDestroy_v2", void *event)

#define MEMBER(name, symbol, ...) int (*name)(__VA_ARGS__);
static struct driver { DRIVER_FUNCTIONS(MEMBER) } driver;

#define SYMBOL(name, symbol, ...) {symbol, &driver.name},
static const struct {
    const char *symbol;
    void *function; /* a member of `driver` */
} driver_symbols[] = {DRIVER_FUNCTIONS(SYMBOL)};

/* Why there is no GPU to compute on, as a clause; NULL: there is. The driver stays loaded. */
static const char *driver_load(void) {
    static void *library;
    if (library) return NULL;
    tsr_info_print(NULL, 0); /* loads the driver: the library knows where to look, and where not */
    void *opened = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!opened) return "there is no NVIDIA driver (libcuda.so.1)";
    for (size_t i = 0; i < sizeof driver_symbols / sizeof driver_symbols[0]; i++) {
        void *found = dlsym(opened, driver_symbols[i].symbol);
        if (!found) {
            dlclose(opened);
            return "the NVIDIA driver (libcuda.so.1) is too old";
        }
        memcpy(driver_symbols[i].function, &found, sizeof found);
    }
    library = opened;
    return NULL;
}

static const char *driver_error(int error) {
    const char *text = NULL;
    return driver.get_error_string(error, &text) == 0 && text ? text : "an unknown CUDA error";
}

static int fail_driver(const char *what, int error) { return fail("%s: %s", what, driver_error(error)); }

bool device_has_room(device *d, double bytes) {
    size_t available, total;
    return driver.set_current(d->primary) == 0 && driver.memory_info(&available, &total) == 0 &&
           bytes < (double)available;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static bool on_cuda(const device *d) { return d->made_from.device == TSR_DEVICE_CUDA; }

static void describe_cpu(char *name, size_t size, int threads) {
    char line[256];
    const char *model = NULL;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && !model && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "model name", 10) == 0 && (model = strchr(line, ':'))) model += 1 + strspn(model + 1, " ");
    }
    if (file) fclose(file);
    struct utsname machine;
    if (!model) model = uname(&machine) == 0 ? machine.machine : "unknown";
    char count[24] = "all cores";
    if (threads) snprintf(count, sizeof count, "%d thread%s", threads, threads == 1 ? "" : "s");
    snprintf(name, size, "cpu: %.120s, %s", model, count);
}

int device_gpu_count(void) {
    int count = 0;
    if (!tsr_has_cuda() || driver_load() || driver.init(0) || driver.device_get_count(&count)) return 0;
    return count;
}

/* Makes the GPU's primary context current, in which the library works too, and the stream and events for it. `quiet`:
 * say nothing where there is no GPU, for `auto`. */
static int open_cuda(device *d, bool quiet) {
    const char *why = tsr_has_cuda() ? driver_load() : "this build has no CUDA engine";
    int index = d->made_from.device_index, count = 0, gpu = 0, error = 0;
    if (!why && (error = driver.init(0))) why = driver_error(error);
    if (!why && (error = driver.device_get_count(&count))) why = driver_error(error);
    if (!why && count == 0) why = "there is no NVIDIA GPU";
    if (why) return quiet ? EXIT_FAILED : fail("--device cuda: %s; use --device cpu", why);
    if (index >= count) return fail("--device cuda:%d: there is no such GPU, only 0 to %d", index, count - 1);

    char model[128] = "";
    if ((error = driver.device_get(&gpu, index)) || (error = driver.device_get_name(model, sizeof model, gpu)) ||
        (error = driver.primary_retain(&d->primary, gpu)) || (error = driver.set_current(d->primary)) ||
        (error = driver.stream_create(&d->stream, 0)) || (error = driver.event_create(&d->start, 0)) ||
        (error = driver.event_create(&d->stop, 0)))
        return quiet ? EXIT_FAILED : fail_driver("--device cuda", error);
    snprintf(d->name, sizeof d->name, "cuda:%d: %s", index, model);
    return EXIT_OK;
}

static void close_cuda(device *d) {
    int gpu;
    if (d->stop) driver.event_destroy(d->stop);
    if (d->start) driver.event_destroy(d->start);
    if (d->stream) driver.stream_destroy(d->stream);
    if (d->primary && driver.device_get(&gpu, d->made_from.device_index) == 0) driver.primary_release(gpu);
    d->stop = d->start = d->stream = d->primary = NULL;
}

/* Operands, their panels (up to the same size again), and some room. */
static bool fits_in_device(device *d, double bytes) { return device_has_room(d, 2.2 * bytes); }

/* What it takes to start a GPU: the driver, a context, the kernels' images. */
static const double gpu_start_seconds = 0.2;

double device_cpu_seconds(const options *chosen, const product_shape *p, int64_t batch) {
    tsr_options cpu = TSR_OPTIONS_DEFAULT;
    cpu.precision = chosen->precision;
    cpu.threads = chosen->threads;
    cpu.batch_invariant = chosen->batch_invariant;
    tsr_operand a, b;
    tsr_result c;
    tsr_context *context = NULL;
    tsr_plan *plan = NULL;
    double seconds = INFINITY;
    if (shape_batch(p, &a, &b, &c) && !tsr_context_create(&context, &cpu) &&
        !tsr_plan_create(&plan, context, batch, &a, &b, &c))
        seconds = tsr_plan_seconds(plan);
    tsr_plan_destroy(plan);
    tsr_context_destroy(context);
    return seconds;
}

static int fail_to_create(const options *chosen, const char *where, tsr_status status) {
    if (chosen->kernel && (status == TSR_INVALID_ARGUMENT || status == TSR_UNSUPPORTED))
        return fail("--kernel %s: no kernel of this name runs on %s: `tessera info` lists them", chosen->kernel, where);
    return fail("cannot compute on %s: %s", where, *tsr_last_error() ? tsr_last_error() : tsr_status_name(status));
}

int device_open(device *d, const options *chosen, double cpu_seconds, double bytes) {
    *d = (device){.made_from = TSR_OPTIONS_DEFAULT};
    d->made_from.precision = chosen->precision;
    d->made_from.threads = chosen->threads;
    d->made_from.kernel = chosen->kernel;
    d->made_from.batch_invariant = chosen->batch_invariant;
    bool automatic = chosen->device == CHOOSE_AUTO;
    if (chosen->device == CHOOSE_CUDA || (automatic && cpu_seconds > gpu_start_seconds)) {
        d->made_from.device = TSR_DEVICE_CUDA;
        d->made_from.device_index = chosen->device_index;
        int status = open_cuda(d, automatic);
        if (!status && automatic && !fits_in_device(d, bytes)) status = EXIT_FAILED;
        if (!status) {
            tsr_status made = tsr_context_create(&d->context, &d->made_from);
            if (!made) return EXIT_OK;
            status = automatic ? EXIT_FAILED : fail_to_create(chosen, "this GPU", made);
        }
        close_cuda(d);
        if (!automatic) return status;
        d->made_from.device = TSR_DEVICE_CPU;
        d->made_from.device_index = -1;
    }
    describe_cpu(d->name, sizeof d->name, chosen->threads);
    tsr_status made = tsr_context_create(&d->context, &d->made_from);
    return made ? fail_to_create(chosen, "the CPU", made) : EXIT_OK;
}

void device_close(device *d) {
    tsr_context_destroy(d->context);
    d->context = NULL;
    if (on_cuda(d)) close_cuda(d);
}

int device_use_precision(device *d, tsr_precision precision) {
    if (d->made_from.precision == precision) return EXIT_OK;
    tsr_context_destroy(d->context);
    d->context = NULL;
    d->made_from.precision = precision;
    tsr_status made = tsr_context_create(&d->context, &d->made_from);
    return made ? fail_status(tsr_precision_name(precision), made) : EXIT_OK;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* Other devices may have been opened since. */
static int make_current(const device *d) { return driver.set_current(d->primary); }

int device_output(device *d, float **data, float *host, size_t bytes) {
    *data = host;
    if (!on_cuda(d)) return EXIT_OK;
    *data = NULL;
    if (!bytes) return EXIT_OK;
    uint64_t address;
    int error = make_current(d);
    if (!error) error = driver.memory_allocate(&address, bytes);
    if (error) return fail("no GPU memory for %.1f MiB: %s", (double)bytes / (1 << 20), driver_error(error));
    *data = (float *)(uintptr_t)address;
    return EXIT_OK;
}

int device_send(device *d, float *data, const float *host, size_t bytes) {
    if (!on_cuda(d) || !bytes) return EXIT_OK;
    int error = make_current(d);
    if (!error) error = driver.copy_to_device((uint64_t)(uintptr_t)data, host, bytes);
    return error ? fail_driver("cannot copy to the GPU", error) : EXIT_OK;
}

int device_input(device *d, const float **data, const float *host, size_t bytes) {
    *data = host;
    if (!on_cuda(d)) return EXIT_OK;
    float *copy;
    int status = device_output(d, &copy, NULL, bytes);
    *data = copy;
    return status ? status : device_send(d, copy, host, bytes);
}

int device_fetch(device *d, float *host, const float *data, size_t bytes) {
    if (!on_cuda(d) || !bytes) return EXIT_OK;
    int error = make_current(d);
    if (!error) error = driver.stream_synchronize(d->stream);
    if (!error) error = driver.copy_to_host(host, (uint64_t)(uintptr_t)data, bytes);
    return error ? fail_driver("cannot copy from the GPU", error) : EXIT_OK;
}

void device_release(device *d, const float *data) {
    if (on_cuda(d) && data && make_current(d) == 0) driver.memory_free((uint64_t)(uintptr_t)data);
}

int device_multiply(device *d, float alpha, const tsr_operand *a, const tsr_operand *b, float beta,
                    const tsr_result *c) {
    tsr_launch launch = {.stream = d->stream};
    tsr_status status = tsr_gemm(d->context, alpha, a, b, beta, c, &launch);
    if (status) return fail_status("cannot multiply", status);
    int error = on_cuda(d) ? driver.stream_synchronize(d->stream) : 0;
    return error ? fail_driver("cannot multiply", error) : EXIT_OK;
}

/* ---- Clocks ------------------------------------------------------------------------------------------------------ */

double device_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds since d->start, when all is done. */
static int stop_clock(device *d, double *seconds) {
    float milliseconds = 0;
    int error = driver.event_record(d->stop, d->stream);
    if (error || (error = driver.event_synchronize(d->stop)) ||
        (error = driver.event_elapsed(&milliseconds, d->start, d->stop)))
        return fail_driver("cannot multiply", error);
    *seconds = 1e-3 * (double)milliseconds;
    return EXIT_OK;
}

/* Seconds that `calls` executions take together. */
static int time_calls(device *d, double *seconds, int calls, const tsr_plan *plan, const float *a, const float *b,
                      float *c) {
    tsr_launch launch = {.stream = d->stream};
    tsr_status status = TSR_OK;
    int error = on_cuda(d) ? driver.event_record(d->start, d->stream) : 0;
    double begun = device_clock();
    for (int i = 0; i < calls && !status; i++) status = tsr_plan_execute(plan, 1, a, b, 0, c, &launch);
    *seconds = device_clock() - begun;
    if (status) return fail_status("cannot multiply", status);
    if (!on_cuda(d)) return EXIT_OK;
    return error ? fail_driver("cannot multiply", error) : stop_clock(d, seconds);
}

int device_capture(device *d, void **graph, int calls, const tsr_plan *plan, const float *a, const float *b, float *c,
                   const tsr_launch *launch) {
    enum { RELAXED = 2 };
    void *captured = NULL;
    *graph = NULL;
    int error = make_current(d);
    if (!error) error = driver.capture_begin(d->stream, RELAXED);
    if (error) return fail_driver("cannot capture a product", error);
    tsr_status status = TSR_OK;
    for (int i = 0; i < calls && !status; i++) status = tsr_plan_execute(plan, 1, a, b, 0, c, launch);
    error = driver.capture_end(d->stream, &captured);
    if (!error && !status) error = driver.graph_instantiate(graph, captured, 0);
    if (captured) driver.graph_destroy(captured);
    if (status) return fail_status("cannot multiply", status);
    return error ? fail_driver("cannot capture a product", error) : EXIT_OK;
}

int device_replay(device *d, void *graph, double *seconds) {
    int error = driver.event_record(d->start, d->stream);
    if (!error) error = driver.graph_launch(graph, d->stream);
    return error ? fail_driver("cannot multiply", error) : stop_clock(d, seconds);
}

void device_forget(void *graph) {
    if (graph) driver.made_destroy(graph);
}

static int compare_doubles(const void *left, const void *right) {
    double x = *(const double *)left, y = *(const double *)right;
    return (x > y) - (x < y);
}

enum { SAMPLE_LIMIT = 10000 };

int device_time(device *d, timing *t, const tsr_plan *plan, const float *a, const float *b, float *c, double seconds) {
    static double samples[SAMPLE_LIMIT];
    /* A sample is long beside the clock's resolution and, on a GPU, beside the launches before the queue is full. */
    const double sample_seconds = on_cuda(d) ? 2e-3 : 2e-4;
    double begun = device_clock(), elapsed;
    int status = time_calls(d, &elapsed, 1, plan, a, b, c);
    if (status) return status;
    *t = (timing){elapsed, elapsed, 1, 1};
    if (device_clock() - begun >= seconds) return EXIT_OK;

    /* The first call also loads code, wakes threads and touches memory, so it is not used to choose the sample size. */
    if ((status = time_calls(d, &elapsed, 1, plan, a, b, c))) return status;
    t->calls_per_sample = elapsed < sample_seconds ? (int)(sample_seconds / (elapsed > 1e-9 ? elapsed : 1e-9)) + 1 : 1;
    int count = 0;
    while (count < SAMPLE_LIMIT && (count < 3 || device_clock() - begun < seconds)) {
        if ((status = time_calls(d, &elapsed, t->calls_per_sample, plan, a, b, c))) return status;
        samples[count++] = elapsed / t->calls_per_sample;
    }
    qsort(samples, (size_t)count, sizeof samples[0], compare_doubles);
    t->best = samples[0];
    t->median = count % 2 ? samples[count / 2] : (samples[count / 2 - 1] + samples[count / 2]) / 2;
    t->samples = count;
    return EXIT_OK;
}
