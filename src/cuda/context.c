/* context.c: which GPU and CUcontext a tsr_context works in, and what it keeps there. */
#include "cuda/context.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/tuning.h"

enum { OLDEST_CAPABILITY = 75, OLDEST_SHARED_LIMIT = 64 << 10 }; /* Turing, and the bytes a block may have there */
enum { DEFAULT_SHARED_LIMIT = 48 << 10 };                        /* bytes a block may have without asking */

/* Launches overlap by programmatic dependence, which Hopper introduced and which drivers before 12.3 do not capture
 * into graphs. */
enum { OVERLAP_CAPABILITY = 90, OVERLAP_DRIVER = 12030 };

static pthread_mutex_t residents_lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_resident *residents; /* under residents_lock, as is everything in them but `functions` */

/* ---- Stream capture ---------------------------------------------------------------------------------------------- */

/* A caller who captures does not want module loading or allocations captured, and the driver refuses them on a thread
 * whose capture mode is not relaxed. In relaxed mode they run as usual. Call again with the returned mode. */
static CUstreamCaptureMode exchange_capture_mode(const cuda_driver *driver, CUstreamCaptureMode mode) {
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

/* ---- The GPU ----------------------------------------------------------------------------------------------------- */

static bool is_set(const char *variable) {
    const char *value = getenv(variable);
    return value && value[0] && strcmp(value, "0");
}

static tsr_status describe_device(const cuda_driver *driver, CUdevice handle, cuda_device *device) {
    *device = (cuda_device){.ordinal = handle};
    int major = 0, minor = 0, pools = 0;
    const struct {
        CUdevice_attribute attribute;
        int *value;
    } wanted[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &device->multiprocessors},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &device->shared_per_block},
        {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, &pools},
    };
    CUresult error = driver->cuDeviceGetName(device->name, (int)sizeof device->name, handle);
    for (size_t i = 0; !error && i < sizeof wanted / sizeof *wanted; i++)
        error = driver->cuDeviceGetAttribute(wanted[i].value, wanted[i].attribute, handle);
    if (error) return cuda_fail(error, "asking GPU %d what it is", handle);
    device->capability = device->planned_capability = 10 * major + minor;
    device->has_pools = pools;
    /* For testing on a newer GPU what one of this compute capability gets: its kernels, and no early launches. */
    const char *capability = getenv("TESSERA_CUDA_CAPABILITY");
    const int wanted_capability = capability ? atoi(capability) : 0;
    if (wanted_capability >= OLDEST_CAPABILITY && wanted_capability < device->capability)
        device->planned_capability = wanted_capability;
    /* For testing on a newer GPU what the oldest one gets: its kernels, from its PTX, in its shared memory. */
    if (is_set("TESSERA_CUDA_PTX")) {
        device->from_ptx = true;
        device->planned_capability = OLDEST_CAPABILITY;
        if (device->shared_per_block > OLDEST_SHARED_LIMIT) device->shared_per_block = OLDEST_SHARED_LIMIT;
    }
    return TSR_OK;
}

static tsr_status too_old(const cuda_device *device) {
    return tsr_fail(
        TSR_UNSUPPORTED,
        "GPU %d (%s) has compute capability %d.%d and Tessera needs %d.%d (Turing) or newer: use another GPU, "
        "or the CPU",
        device->ordinal, device->name, device->capability / 10, device->capability % 10, OLDEST_CAPABILITY / 10,
        OLDEST_CAPABILITY % 10);
}

/* ---- What is kept in a CUcontext --------------------------------------------------------------------------------- */

static bool load_failed_for_age(CUresult error) {
    return error == CUDA_ERROR_NO_BINARY_FOR_GPU || error == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
           error == CUDA_ERROR_INVALID_PTX || error == CUDA_ERROR_INVALID_IMAGE || error == CUDA_ERROR_INVALID_SOURCE;
}

static tsr_status not_in_this_build(cuda_module module, const cuda_device *device) {
    return tsr_fail(TSR_UNSUPPORTED,
                    "this libtessera has no %s kernels for compute capability %d.%d (GPU %d, %s): build it with that "
                    "architecture in TESSERA_CUDA_ARCHITECTURES",
                    cuda_module_name(module), device->planned_capability / 10, device->planned_capability % 10,
                    device->ordinal, device->name);
}

/* Under residents_lock. */
static tsr_status load_module(const struct cuda_context *cuda, cuda_module module) {
    const cuda_driver *driver = cuda->driver;
    const cuda_device *device = &cuda->device;
    const unsigned char *image = cuda_module_image(module, device);
    if (!image) return not_in_this_build(module, device);
    CUstreamCaptureMode mode = exchange_capture_mode(driver, CU_STREAM_CAPTURE_MODE_RELAXED);
    CUresult error = driver->cuModuleLoadData(&cuda->resident->modules[module], image);
    exchange_capture_mode(driver, mode);
    if (!error) return TSR_OK;
    cuda->resident->modules[module] = NULL;
    if (load_failed_for_age(error) && driver->version < CUDA_VERSION)
        return tsr_fail(TSR_NO_DEVICE,
                        "the CUDA driver supports CUDA %d.%d and cannot load kernels compiled by CUDA %d.%d: update "
                        "NVIDIA's driver, or build Tessera with an older CUDA toolkit",
                        driver->version / 1000, driver->version % 1000 / 10, CUDA_VERSION / 1000,
                        CUDA_VERSION % 1000 / 10);
    if (error == CUDA_ERROR_NO_BINARY_FOR_GPU) return not_in_this_build(module, device);
    return cuda_fail(error, "loading the %s kernels", cuda_module_name(module));
}

/* Under residents_lock. */
static tsr_status load_function(const struct cuda_context *cuda, const cuda_kernel *kernel, CUfunction *function) {
    const cuda_driver *driver = cuda->driver;
    if (!cuda->resident->modules[kernel->module]) {
        tsr_status status = load_module(cuda, kernel->module);
        if (status) return status;
    }
    CUstreamCaptureMode mode = exchange_capture_mode(driver, CU_STREAM_CAPTURE_MODE_RELAXED);
    CUresult error = driver->cuModuleGetFunction(function, cuda->resident->modules[kernel->module], kernel->name);
    if (!error && kernel->shared_bytes > DEFAULT_SHARED_LIMIT)
        error = driver->cuFuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                           kernel->shared_bytes);
    if (!error && cuda_shares_k(kernel)) /* of sixteen thread blocks */
        error = driver->cuFuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    exchange_capture_mode(driver, mode);
    if (error) return cuda_fail(error, "loading %s", kernel->name);
    atomic_store_explicit(&cuda->resident->functions[cuda_kernel_index(kernel)], *function, memory_order_release);
    return TSR_OK;
}

tsr_status cuda_function(const struct cuda_context *cuda, const cuda_kernel *kernel, CUfunction *function) {
    _Atomic(CUfunction) *slot = &cuda->resident->functions[cuda_kernel_index(kernel)];
    *function = atomic_load_explicit(slot, memory_order_acquire);
    if (*function) return TSR_OK;
    pthread_mutex_lock(&residents_lock);
    tsr_status status = TSR_OK;
    *function = atomic_load_explicit(slot, memory_order_relaxed);
    if (!*function) status = load_function(cuda, kernel, function);
    pthread_mutex_unlock(&residents_lock);
    return status;
}

static tsr_status make_pool(const struct cuda_context *cuda, CUmemoryPool *pool) {
    CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .handleTypes = CU_MEM_HANDLE_TYPE_NONE,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->device.ordinal},
    };
    /* For testing what happens when memory runs out. */
    const char *limit = getenv("TESSERA_CUDA_POOL_LIMIT");
    if (limit) properties.maxSize = strtoull(limit, NULL, 10);
    CUresult error = cuda->driver->cuMemPoolCreate(pool, &properties);
    if (error) return cuda_fail(error, "making a memory pool on GPU %d", cuda->device.ordinal);
    cuuint64_t keep = UINT64_MAX; /* freed workspace stays for the next call, until tsr_trim */
    error = cuda->driver->cuMemPoolSetAttribute(*pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    if (!error) return TSR_OK;
    cuda->driver->cuMemPoolDestroy(*pool);
    return cuda_fail(error, "setting up a memory pool on GPU %d", cuda->device.ordinal);
}

/* Finds or makes what is kept in cuda->context, which is current. */
static tsr_status resident_acquire(struct cuda_context *cuda) {
    unsigned long long id;
    CUresult error = cuda->driver->cuCtxGetId(cuda->context, &id);
    if (error) return cuda_fail(error, "asking the CUDA context for its id");
    pthread_mutex_lock(&residents_lock);
    cuda_resident *found = residents;
    while (found && found->context_id != id) found = found->next;
    tsr_status status = TSR_OK;
    if (!found) {
        found = calloc(1, sizeof *found);
        if (!found || !(found->graphs = cuda_graphs_create()))
            status = tsr_fail(TSR_OUT_OF_MEMORY, "no memory for a context");
        else if (cuda->device.has_pools)
            status = make_pool(cuda, &found->pool);
        if (status) {
            if (found) free(found->graphs);
            free(found);
        } else {
            found->context_id = id;
            found->next = residents;
            residents = found;
        }
    }
    if (!status) {
        found->users++;
        cuda->resident = found;
    }
    pthread_mutex_unlock(&residents_lock);
    return status;
}

/* `alive`: the CUcontext still exists and is current; else what was in it went with it. The pool is no part of it, but
 * belongs to the device: it outlives a CUcontext that was destroyed. A primary context can only have been reset; then
 * CUDA says that everything of the device is gone, and the pool's handle may be, too. */
static void resident_release(const struct cuda_context *cuda, bool alive) {
    const cuda_driver *driver = cuda->driver;
    cuda_resident *resident = cuda->resident;
    pthread_mutex_lock(&residents_lock);
    if (--resident->users == 0) {
        cuda_resident **link = &residents;
        while (*link != resident) link = &(*link)->next;
        *link = resident->next;
        cuda_graphs_destroy(resident->graphs, driver, alive);
        for (int i = 0; alive && i < CUDA_MODULES; i++)
            if (resident->modules[i]) driver->cuModuleUnload(resident->modules[i]);
        if (resident->pool && (alive || !cuda->retained)) driver->cuMemPoolDestroy(resident->pool);
        free(resident);
    }
    pthread_mutex_unlock(&residents_lock);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

tsr_status cuda_memory_take(const struct cuda_context *cuda, size_t bytes, CUdeviceptr *memory) {
    CUstreamCaptureMode mode = exchange_capture_mode(cuda->driver, CU_STREAM_CAPTURE_MODE_RELAXED);
    CUresult error = cuda->driver->cuMemAlloc(memory, bytes);
    exchange_capture_mode(cuda->driver, mode);
    return error ? cuda_fail(error, "allocating %zu bytes on GPU %d", bytes, cuda->device.ordinal) : TSR_OK;
}

void cuda_memory_give(const struct cuda_context *cuda, CUdeviceptr memory) {
    CUstreamCaptureMode mode = exchange_capture_mode(cuda->driver, CU_STREAM_CAPTURE_MODE_RELAXED);
    cuda->driver->cuMemFree(memory);
    exchange_capture_mode(cuda->driver, mode);
}

/* In a stream that is being captured these two become an allocation and a free node: the memory is then the graph's
 * own, taken and given back by each of its launches, so a graph replayed later never touches memory the pool has since
 * given to somebody else. */
tsr_status cuda_workspace_take(const struct cuda_context *cuda, CUstream stream, size_t bytes, CUdeviceptr *workspace) {
    if (!cuda->resident->pool)
        return tsr_fail(TSR_UNSUPPORTED, "GPU %d (%s) has no stream-ordered memory: pass launch.workspace, %zu bytes",
                        cuda->device.ordinal, cuda->device.name, bytes);
    CUresult error = cuda->driver->cuMemAllocFromPoolAsync(workspace, bytes, cuda->resident->pool, stream);
    return error ? cuda_fail(error, "taking %zu bytes of workspace on GPU %d", bytes, cuda->device.ordinal) : TSR_OK;
}

CUresult cuda_workspace_give(const struct cuda_context *cuda, CUstream stream, CUdeviceptr workspace) {
    return cuda->driver->cuMemFreeAsync(workspace, stream);
}

static tsr_status make_counters(struct cuda_context *cuda) {
    const cuda_driver *driver = cuda->driver;
    tsr_status status = cuda_memory_take(cuda, sizeof(cuda_counters), &cuda->counters);
    if (status) return status;
    /* A stream of its own, for the default one may not be used while another that waits on it is captured. */
    CUstreamCaptureMode mode = exchange_capture_mode(driver, CU_STREAM_CAPTURE_MODE_RELAXED);
    CUstream stream;
    CUresult error = driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (!error) {
        error = driver->cuMemsetD8Async(cuda->counters, 0, sizeof(cuda_counters), stream);
        if (!error) error = driver->cuStreamSynchronize(stream);
        driver->cuStreamDestroy(stream);
    }
    exchange_capture_mode(driver, mode);
    if (!error) return TSR_OK;
    cuda_memory_give(cuda, cuda->counters);
    return cuda_fail(error, "clearing the counters on GPU %d", cuda->device.ordinal);
}

/* ---- The CUcontext ----------------------------------------------------------------------------------------------- */

static tsr_status context_is_gone(const struct cuda_context *cuda) {
    return tsr_fail(TSR_DEVICE_ERROR,
                    "the CUDA context on GPU %d in which this tsr_context was made has been destroyed or reset: make "
                    "another tsr_context",
                    cuda->device.ordinal);
}

tsr_status cuda_enter(const struct cuda_context *cuda, bool *pushed) {
    const cuda_driver *driver = cuda->driver;
    CUcontext current = NULL;
    unsigned long long id;
    CUresult error = driver->cuCtxGetCurrent(&current);
    *pushed = !error && current != cuda->context;
    if (*pushed) error = driver->cuCtxPushCurrent(cuda->context);
    if (error) *pushed = false;
    if (error == CUDA_ERROR_INVALID_CONTEXT || error == CUDA_ERROR_CONTEXT_IS_DESTROYED) return context_is_gone(cuda);
    if (error) return cuda_fail(error, "entering the CUDA context on GPU %d", cuda->device.ordinal);
    if (!driver->cuCtxGetId(cuda->context, &id) && id == cuda->resident->context_id) return TSR_OK;
    cuda_leave(cuda, *pushed);
    return context_is_gone(cuda);
}

void cuda_leave(const struct cuda_context *cuda, bool pushed) {
    CUcontext popped;
    if (pushed) cuda->driver->cuCtxPopCurrent(&popped);
}

/* Takes the device's primary context and keeps it. */
static tsr_status retain_primary(struct cuda_context *cuda, CUdevice handle) {
    CUresult error = cuda->driver->cuDevicePrimaryCtxRetain(&cuda->context, handle);
    if (error) return cuda_fail(error, "taking the primary context of GPU %d", handle);
    cuda->retained = true;
    return TSR_OK;
}

/* Takes the current context; where it is the device's primary one (as the CUDA runtime's and PyTorch's is), it is held
 * so that it lives as long as this. */
static tsr_status adopt_current(struct cuda_context *cuda, CUcontext current, CUdevice *handle) {
    CUresult error = cuda->driver->cuCtxGetDevice(handle);
    unsigned flags;
    int active = 0;
    if (!error) error = cuda->driver->cuDevicePrimaryCtxGetState(*handle, &flags, &active);
    if (error) return cuda_fail(error, "asking the current CUDA context for its GPU");
    cuda->context = current;
    if (!active) return TSR_OK;
    tsr_status status = retain_primary(cuda, *handle);
    if (status || cuda->context == current) return status;
    cuda->driver->cuDevicePrimaryCtxRelease(*handle);
    cuda->retained = false;
    cuda->context = current;
    return TSR_OK;
}

static tsr_status choose_context(struct cuda_context *cuda, int device_index, CUdevice *handle) {
    const cuda_driver *driver = cuda->driver;
    if (device_index < 0) {
        CUcontext current = NULL;
        CUresult error = driver->cuCtxGetCurrent(&current);
        if (error) return cuda_fail(error, "asking for the current CUDA context");
        if (current) return adopt_current(cuda, current, handle);
        device_index = 0;
    }
    int count = 0;
    CUresult error = driver->cuDeviceGetCount(&count);
    if (!error && device_index >= count)
        return tsr_fail(TSR_NO_DEVICE, "options.device_index is %d, but this process sees %d GPU%s, counted from 0",
                        device_index, count, count == 1 ? "" : "s");
    if (!error) error = driver->cuDeviceGet(handle, device_index);
    if (error) return cuda_fail(error, "looking for GPU %d", device_index);
    return retain_primary(cuda, *handle);
}

/* What the driver allows kernels that ask for large clusters; where it does not say, what any GPU with clusters has. */
static tsr_status ask_max_cluster(struct cuda_context *cuda) {
    const cuda_kernel *kernel = &cuda_kernels[IEEE_LONG_32];
    CUfunction function;
    cuda->device.max_cluster = 1;
    if (!cuda_kernel_runs_on(kernel, &cuda->device)) return TSR_OK;
    tsr_status status = cuda_function(cuda, kernel, &function);
    if (status) return status;
    const CUlaunchConfig config = {
        .gridDimX = MAX_CLUSTER,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = (unsigned)kernel->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)kernel->shared_bytes,
    };
    int most = 0;
    const CUresult error = cuda->driver->cuOccupancyMaxPotentialClusterSize(&most, function, &config);
    cuda->device.max_cluster = error || most < 1 ? PORTABLE_CLUSTER : (int)min64(most, MAX_CLUSTER);
    return TSR_OK;
}

/* With the context current: everything that can go wrong later for want of a kernel goes wrong here. */
static tsr_status settle(struct cuda_context *cuda, const tsr_options *options) {
    CUfunction function;
    tsr_status status = resident_acquire(cuda);
    if (status) return status;
    if (options->kernel) status = cuda_kernel_find(options->kernel, options->precision, &cuda->device, &cuda->forced);
    /* Every precision needs the ieee kernels, so a driver that cannot load them is of no use. */
    if (!status) status = cuda_function(cuda, &cuda_kernels[IEEE_SCALE], &function);
    if (!status) status = ask_max_cluster(cuda);
    if (!status) status = make_counters(cuda);
    if (status) resident_release(cuda, true);
    return status;
}

tsr_status cuda_context_create(struct cuda_context **made, tsr_options *options) {
    *made = NULL;
    const char *problem;
    const cuda_driver *driver = cuda_driver_get(&problem);
    if (!driver) return tsr_fail(TSR_NO_DEVICE, "%s", problem);
    struct cuda_context *cuda = calloc(1, sizeof *cuda);
    if (!cuda) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for a context");
    cuda->driver = driver;
    CUdevice handle;
    tsr_status status = choose_context(cuda, options->device_index, &handle);
    if (!status) status = describe_device(driver, handle, &cuda->device);
    if (!status && cuda->device.capability < OLDEST_CAPABILITY) status = too_old(&cuda->device);
    if (!status) status = tuning_load(&cuda->device);
    if (!status) {
        cuda->records = tuning_records();
        cuda->overlap_launches = cuda->device.planned_capability >= OVERLAP_CAPABILITY &&
                                 driver->version >= OVERLAP_DRIVER;
        CUresult error = driver->cuCtxPushCurrent(cuda->context);
        status = error ? cuda_fail(error, "entering the CUDA context on GPU %d", handle) : settle(cuda, options);
        if (!error) cuda_leave(cuda, true);
    }
    if (status) {
        if (cuda->retained) driver->cuDevicePrimaryCtxRelease(handle);
        free(cuda->device.costs);
        free(cuda);
        return status;
    }
    options->device_index = handle;
    *made = cuda;
    return TSR_OK;
}

void cuda_context_destroy(struct cuda_context *cuda) {
    bool pushed;
    bool alive = !cuda_enter(cuda, &pushed);
    if (alive) cuda_memory_give(cuda, cuda->counters);
    resident_release(cuda, alive);
    if (alive) cuda_leave(cuda, pushed);
    if (cuda->retained) cuda->driver->cuDevicePrimaryCtxRelease(cuda->device.ordinal);
    free(cuda->device.costs);
    free(cuda);
}

/* ---- Counters, trimming, information ----------------------------------------------------------------------------- */

tsr_status cuda_stats_read(tsr_context *context, tsr_stats *stats) {
    const struct cuda_context *cuda = context->cuda;
    bool pushed;
    tsr_status status = cuda_enter(cuda, &pushed);
    if (status) return status;
    cuda_counters counted;
    CUresult error = cuda->driver->cuCtxSynchronize();
    if (!error) error = cuda->driver->cuMemcpyDtoH(&counted, cuda->counters, sizeof counted);
    cuda_leave(cuda, pushed);
    if (error) return cuda_fail(error, "reading the counters on GPU %d", cuda->device.ordinal);
    stats->marked_panels += counted.marked_panels;
    stats->fallback_tiles += counted.fallback_tiles;
    return TSR_OK;
}

/* What queued work still uses stays; it does not wait for it. */
tsr_status cuda_trim(tsr_context *context) {
    struct cuda_context *cuda = context->cuda;
    bool pushed;
    tsr_status status = cuda_enter(cuda, &pushed);
    if (status) return status;
    CUresult error = cuda->resident->pool ? cuda->driver->cuMemPoolTrimTo(cuda->resident->pool, 0) : CUDA_SUCCESS;
    cuda_leave(cuda, pushed);
    return error ? cuda_fail(error, "trimming the memory pool on GPU %d", cuda->device.ordinal) : TSR_OK;
}

void cuda_info_print(tsr_text *text) {
    const char *problem;
    const cuda_driver *driver = cuda_driver_get(&problem);
    if (!driver) {
        tsr_text_add(text, "cuda: %s\n", problem);
        return;
    }
    tsr_text_add(text, "cuda: driver for CUDA %d.%d, kernels compiled by CUDA %d.%d\n", driver->version / 1000,
                 driver->version % 1000 / 10, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
    enum { MOST = 64 };
    cuda_device devices[MOST];
    int count = 0, described = 0;
    if (driver->cuDeviceGetCount(&count)) count = 0;
    for (int i = 0; i < count && described < MOST; i++) {
        CUdevice handle;
        cuda_device *device = &devices[described];
        size_t bytes = 0;
        if (driver->cuDeviceGet(&handle, i) || describe_device(driver, handle, device)) continue;
        driver->cuDeviceTotalMem(&bytes, handle);
        tsr_text_add(text, "cuda gpu: %d, %s, compute capability %d.%d, %d multiprocessors, %.1f GiB%s\n",
                     device->ordinal, device->name, device->capability / 10, device->capability % 10,
                     device->multiprocessors, (double)bytes / (1 << 30),
                     device->capability < OLDEST_CAPABILITY ? ", too old to be used" : "");
        described++;
    }
    for (int i = 0; i < described; i++) {
        if (devices[i].capability < OLDEST_CAPABILITY || tuning_load(&devices[i])) continue;
        tsr_text_add(text, "cuda tuning: %d, %s\n", devices[i].ordinal, devices[i].tuning);
        free(devices[i].costs);
    }
    cuda_kernels_print(devices, described, text);
}
