/* libcuda.c: the driver functions that libtessera and its tests call, over malloc. Device memory is host memory that is
 * in a list; a kernel runs when it is launched, or with the graph it was captured into. Rules that a real driver
 * enforces and the library must respect are enforced here: current contexts, streams of their contexts, what may be
 * called during a capture, limits of pools and memory, shared memory asked for.
 *
 * After fake_be_lazy, streams do nothing until somebody waits for them, and then only as much as that asks for: what is
 * queued in the wrong order, or not waited for, gives a wrong result.
 *
 * The environment describes the machine:
 *   FAKE_CUDA_DEVICES     GPUs (1)                        FAKE_CUDA_CAPABILITY   of each, 10*major + minor (90)
 *   FAKE_CUDA_DRIVER      version (13000)                 FAKE_CUDA_MEMORY       bytes of each (4 GiB)
 *   FAKE_CUDA_POOLS       0: no stream-ordered memory     FAKE_CUDA_BROKEN       a function that fails with error 999
 */
#include "fake.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { MOST_DEVICES = 8, MULTIPROCESSORS = 132, SHARED_LIMIT = 232448, ALIGNMENT = 512 };

/* Handles are checked by what they point to begins with. */
enum {
    CONTEXT = 0x43545831,
    STREAM = 0x5354524d,
    MODULE = 0x4d4f4431,
    FUNCTION = 0x46554e43,
    POOL = 0x504f4f4c,
    GRAPH = 0x47524146,
    EVENT = 0x45564e54
};

struct CUctx_st {
    int kind;
    CUdevice device;
    unsigned long long id;
    int retained; /* a primary one: how often */
};

struct CUgraph_st {
    int kind;
    int count;
    struct node {
        CUfunction function;
        fake_launch launch;
        void *args;
        void *freed; /* a free node */
    } * nodes;
};

/* What a lazy stream has yet to do. */
typedef struct operation {
    struct operation *next;
    enum { LAUNCH, COPY, WAIT, FREE } what;
    fake_launch launch;
    void *args, *to;
    const void *from;
    size_t size;
    CUstream other; /* WAIT: until that stream has done so many of its operations */
    long other_count;
    CUdeviceptr freed;
} operation;

struct CUstream_st {
    int kind;
    CUcontext context;
    bool blocking;
    CUgraph capture; /* NULL: not capturing */
    CUstreamCaptureMode mode;
    pthread_t captured_by;
    operation *first, *last;
    long queued, done; /* operations */
    CUresult error;    /* of one that failed */
};

struct CUevent_st {
    int kind;
    CUstream stream; /* NULL: never recorded, or on a stream that is not lazy */
    long count;      /* operations of the stream that come before it */
    double time;
};

struct CUmod_st {
    int kind;
    CUcontext context;
};

struct CUfunc_st {
    int kind;
    char name[48];
    CUcontext context;
    int shared_limit, large_clusters;
    struct CUfunc_st *next;
};

struct CUmemPoolHandle_st {
    int kind;
    CUdevice device;
    size_t limit, used; /* bytes; no limit: 0 */
};

typedef struct block {
    struct block *next;
    char *begin;
    size_t size;
    CUmemorytype type;
    bool managed;
    CUdevice device;
    CUmemoryPool pool;
    unsigned long long context_id; /* it dies with that context; 0: with none */
} block;

/* Everything below is under `lock`; calls are short. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialised;
static unsigned long long next_id = 1;
static struct CUctx_st *primaries[MOST_DEVICES];
static block *blocks;
static size_t used[MOST_DEVICES];
static CUstream captures[16];
static fake_launch *launches;
static int launch_count;
static char broken_rule[160];
static char broken_call[64];
static int broken_error, calls_before_broken;
static bool lost; /* as after an illegal address: every call that asks injected() fails, until the device is reset */
static bool loses_device;
static bool lazy;
static _Atomic int calls_of_load;

static _Thread_local CUcontext stack[16];
static _Thread_local int depth;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static long setting(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value && value[0] ? atol(value) : otherwise;
}

static int devices(void) { return (int)setting("FAKE_CUDA_DEVICES", 1); }
static CUcontext current(void) { return depth ? stack[depth - 1] : NULL; }

/* A test has asked for this call to fail: once, or as the first of all that follow. */
static CUresult injected(const char *call) {
    static pthread_mutex_t injecting = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&injecting);
    bool fails = lost;
    if (!lost && !strcmp(broken_call, call) && calls_before_broken-- <= 0) {
        broken_call[0] = '\0';
        lost = loses_device;
        fails = true;
    }
    pthread_mutex_unlock(&injecting);
    return fails ? (CUresult)broken_error : CUDA_SUCCESS;
}

/* ---- For the tests ----------------------------------------------------------------------------------------------- */

EXPORT void fake_break(const char *call, int error) {
    snprintf(broken_call, sizeof broken_call, "%s", call);
    broken_error = error;
    calls_before_broken = 0;
    lost = loses_device = false;
}
EXPORT void fake_break_later(const char *call, int error, int calls_before, int for_good) {
    fake_break(call, error);
    calls_before_broken = calls_before;
    loses_device = for_good;
}
EXPORT void fake_be_lazy(int on) { lazy = on; }
EXPORT int fake_launches(void) { return launch_count; }
EXPORT const fake_launch *fake_launch_at(int index) { return &launches[index]; }
EXPORT void fake_forget_launches(void) { launch_count = 0; }
EXPORT const char *fake_broken_rule(void) { return broken_rule; }
EXPORT int fake_modules_loaded(void) { return calls_of_load; }
EXPORT int fake_blocks(void) {
    int count = 0;
    for (block *b = blocks; b; b = b->next) count++;
    return count;
}

/* ---- Start, devices ---------------------------------------------------------------------------------------------- */

EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = (int)setting("FAKE_CUDA_DRIVER", 13000);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuInit(unsigned flags) {
    (void)flags;
    if (!devices()) return CUDA_ERROR_NO_DEVICE;
    const char *broken = getenv("FAKE_CUDA_BROKEN");
    if (broken && !strcmp(broken, "cuInit")) return CUDA_ERROR_UNKNOWN;
    if (broken) fake_break(broken, CUDA_ERROR_UNKNOWN);
    initialised = true;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name) {
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "CUDA_ERROR_%d", (int)error);
    *name = text;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
    switch ((int)error) {
    case CUDA_ERROR_OUT_OF_MEMORY: *text = "out of memory"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *text = broken_rule; break;
    default: *text = "error of the fake driver"; break;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    *count = devices();
    return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    (void)device;
    *bytes = (size_t)setting("FAKE_CUDA_MEMORY", 1l << 32);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    const int capability = (int)setting("FAKE_CUDA_CAPABILITY", 90);
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = capability / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = capability % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = MULTIPROCESSORS; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = capability < 80 ? 65536 : SHARED_LIMIT; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = (int)setting("FAKE_CUDA_POOLS", 1); break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

static CUcontext context_new(CUdevice device) {
    CUcontext made = calloc(1, sizeof *made);
    *made = (struct CUctx_st){CONTEXT, device, next_id++, 0};
    return made;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    pthread_mutex_lock(&lock);
    if (!primaries[device]) primaries[device] = context_new(device);
    primaries[device]->retained++;
    *context = primaries[device];
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    pthread_mutex_lock(&lock);
    CUresult error = CUDA_ERROR_INVALID_CONTEXT;
    if (primaries[device] && primaries[device]->retained) {
        primaries[device]->retained--;
        error = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = primaries[device] && primaries[device]->retained;
    return CUDA_SUCCESS;
}
EXPORT int fake_primary_retained(int device) { return primaries[device] ? primaries[device]->retained : 0; }

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    (void)flags;
    *context = context_new(device);
    stack[depth++] = *context;
    return CUDA_SUCCESS;
}

static CUresult give(CUdeviceptr address);

static void free_memory_of(CUcontext context) {
    for (block *b = blocks, *next; b; b = next) {
        next = b->next;
        if (b->context_id == context->id) give((CUdeviceptr)b->begin);
    }
}

static void free_memory_of_pools(CUdevice device) {
    for (block *b = blocks, *next; b; b = next) {
        next = b->next;
        if (b->pool && b->device == device) {
            b->pool = NULL; /* it may be gone */
            give((CUdeviceptr)b->begin);
        }
    }
}

EXPORT CUresult cuCtxDestroy(CUcontext context) {
    free_memory_of(context);
    context->kind = 0; /* never freed: its handle stays recognisably dead */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { /* the context dies, and its address comes again */
    free_memory_of(primaries[device]);
    free_memory_of_pools(device);
    primaries[device]->id = next_id++;
    lost = loses_device = false;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current();
    return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    if (depth) depth--;
    if (context) stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext context) {
    if (!context || context->kind != CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *context) {
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[--depth];
    return CUDA_SUCCESS;
}
EXPORT int fake_context_depth(void) { return depth; }

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current()->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    if (!context) context = current();
    if (!context || context->kind != CONTEXT) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *id = context->id;
    return CUDA_SUCCESS;
}

/* ---- Capture ----------------------------------------------------------------------------------------------------- */

/* True where a call that may not happen during a capture is made all the same: by a thread not relaxed, while a stream
 * is captured in global mode anywhere, or by this thread. */
static bool unsafe_now(void) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    bool is_unsafe = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof captures / sizeof *captures; i++)
        if (captures[i] && (captures[i]->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
                            (captures[i]->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
                             pthread_equal(captures[i]->captured_by, pthread_self()))))
            is_unsafe = true;
    pthread_mutex_unlock(&lock);
    return is_unsafe;
}

static bool legacy_is_blocked(void) {
    bool is_blocked = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof captures / sizeof *captures; i++)
        if (captures[i] && captures[i]->blocking) is_blocked = true;
    pthread_mutex_unlock(&lock);
    return is_blocked;
}

static bool is_default(CUstream stream) {
    return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* The checks every call on a stream makes. */
static CUresult check_stream(CUstream stream) {
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    if (is_default(stream)) return legacy_is_blocked() ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
    if (stream->kind != STREAM) return CUDA_ERROR_INVALID_HANDLE;
    return stream->context == current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static struct node *add_node(CUgraph graph) {
    graph->nodes = realloc(graph->nodes, (size_t)(graph->count + 1) * sizeof *graph->nodes);
    struct node *node = &graph->nodes[graph->count++];
    memset(node, 0, sizeof *node);
    return node;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    const CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    if (is_default(stream) || stream->capture) return CUDA_ERROR_INVALID_VALUE;
    CUresult error = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof captures / sizeof *captures && error; i++)
        if (!captures[i]) {
            stream->capture = calloc(1, sizeof *stream->capture);
            stream->capture->kind = GRAPH;
            stream->mode = mode;
            stream->captured_by = pthread_self();
            captures[i] = stream;
            error = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return error;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    *graph = stream->capture;
    if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    pthread_mutex_lock(&lock);
    stream->capture = NULL;
    for (size_t i = 0; i < sizeof captures / sizeof *captures; i++)
        if (captures[i] == stream) captures[i] = NULL;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
    (void)flags;
    *executable = (CUgraphExec)graph; /* one executable a graph, which then belongs to it */
    return injected("cuGraphInstantiate");
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    (void)graph;
    return CUDA_SUCCESS;
}

/* With FAKE_CUDA_TIMED kernels take time, by their blocks and threads, and compute nothing. */
static double milliseconds_passed;
static bool takes_time(const fake_launch *launch) {
    if (!setting("FAKE_CUDA_TIMED", 0)) return false;
    const unsigned grid = launch->grid[0] * launch->grid[1] * launch->grid[2];
    milliseconds_passed += 2e-3 + 2e-8 * (double)launch->threads * (132 + grid);
    return true;
}

static CUresult run(const fake_launch *launch, const void *args) {
    char why[100] = "";
    if (takes_time(launch)) return CUDA_SUCCESS;
    if (fake_kernel_run(launch, args, why, sizeof why)) return CUDA_SUCCESS;
    snprintf(broken_rule, sizeof broken_rule, "%s: %s", launch->kernel, why);
    return CUDA_ERROR_LAUNCH_FAILED;
}

/* ---- Lazy streams ------------------------------------------------------------------------------------------------ */

static bool is_lazy(CUstream stream) { return lazy && !is_default(stream) && !stream->capture; }

static CUresult queue(CUstream stream, operation op) {
    operation *made = malloc(sizeof *made);
    *made = op;
    made->next = NULL;
    *(stream->first ? &stream->last->next : &stream->first) = made;
    stream->last = made;
    stream->queued++;
    return CUDA_SUCCESS;
}

/* The first `count` operations of the stream's life, and what they wait for. */
static CUresult catch_up(CUstream stream, long count) {
    while (stream->done < count) {
        operation *op = stream->first;
        stream->first = op->next;
        stream->done++;
        CUresult error = CUDA_SUCCESS;
        if (op->what == WAIT)
            error = catch_up(op->other, op->other_count);
        else if (op->what == COPY)
            memcpy(op->to, op->from, op->size);
        else if (op->what == FREE)
            error = give(op->freed);
        else
            error = run(&op->launch, op->args);
        if (error && !stream->error) stream->error = error;
        free(op->args);
        free(op);
    }
    return stream->error;
}

static CUresult copy(void *to, const void *from, size_t size, CUstream stream) {
    CUresult error = check_stream(stream);
    if (error) return error;
    if (is_lazy(stream)) return queue(stream, (operation){.what = COPY, .to = to, .from = from, .size = size});
    memcpy(to, from, size);
    return CUDA_SUCCESS;
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

enum { MOST_NODES = 16 };

static void *copy_of_args(const void *args, size_t size) {
    void *copy = aligned_alloc(64, (size + 63) / 64 * 64); /* maps need it */
    return memcpy(copy, args, size);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
    CUgraph graph = (CUgraph)executable;
    CUresult error = injected("cuGraphLaunch");
    if (!error) error = check_stream(stream);
    for (int i = 0; i < graph->count && !error; i++) {
        const struct node *node = &graph->nodes[i];
        if (node->args && is_lazy(stream)) {
            const size_t size = fake_kernel_args_size(node->launch.kernel);
            void *args = memcpy(malloc(size), node->args, size);
            error = queue(stream, (operation){.what = LAUNCH, .launch = node->launch, .args = args});
        } else if (node->args)
            error = run(&node->launch, node->args);
    }
    return error;
}

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
    (void)flags;
    *graph = calloc(1, sizeof **graph);
    (*graph)->kind = GRAPH;
    (*graph)->nodes = malloc(MOST_NODES * sizeof *(*graph)->nodes); /* a node's handle is where it lies */
    return injected("cuGraphCreate");
}

EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                     const CUDA_KERNEL_NODE_PARAMS *params) {
    if (dependencies || count || graph->count == MOST_NODES || params->func->kind != FUNCTION)
        return CUDA_ERROR_INVALID_VALUE;
    struct node *node = &graph->nodes[graph->count++];
    *node = (struct node){.function = params->func};
    node->launch = (fake_launch){.grid = {params->gridDimX, params->gridDimY, params->gridDimZ},
                                 .threads = params->blockDimX,
                                 .cluster = 1,
                                 .shared_bytes = params->sharedMemBytes};
    snprintf(node->launch.kernel, sizeof node->launch.kernel, "%s", params->func->name);
    node->args = copy_of_args(params->kernelParams[0], fake_kernel_args_size(node->launch.kernel));
    *handle = (CUgraphNode)node;
    return injected("cuGraphAddKernelNode");
}

EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                              const CUkernelNodeAttrValue *value) {
    struct node *node = (struct node *)handle;
    if (attribute != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION || node->launch.grid[0] % value->clusterDim.x)
        return CUDA_ERROR_INVALID_VALUE;
    node->launch.cluster = value->clusterDim.x;
    return CUDA_SUCCESS;
}

/* Each node depends on the one before it: they are launched in the order in which they were made. */
EXPORT CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                       const CUgraphEdgeData *edges, size_t count) {
    struct node *node = (struct node *)*to;
    if (count != 1 || node != (struct node *)*from + 1 || node != &graph->nodes[graph->count - 1])
        return CUDA_ERROR_INVALID_VALUE;
    node->launch.early = edges->type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
    return injected("cuGraphAddDependencies");
}

EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode handle,
                                               const CUDA_KERNEL_NODE_PARAMS *params) {
    (void)executable; /* which is the graph */
    struct node *node = (struct node *)handle;
    if (params->func != node->function || !params->gridDimX || !params->gridDimY || !params->gridDimZ ||
        params->gridDimX % node->launch.cluster || params->sharedMemBytes != node->launch.shared_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(node->launch.grid, (unsigned[]){params->gridDimX, params->gridDimY, params->gridDimZ}, sizeof(unsigned[3]));
    memcpy(node->args, params->kernelParams[0], fake_kernel_args_size(node->launch.kernel));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable) {
    CUgraph graph = (CUgraph)executable;
    for (int i = 0; i < graph->count; i++) {
        free(graph->nodes[i].args);
        free(graph->nodes[i].freed);
    }
    free(graph->nodes);
    free(graph);
    return CUDA_SUCCESS;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static block *block_at(CUdeviceptr address) {
    for (block *b = blocks; b; b = b->next)
        if ((char *)address >= b->begin && (char *)address < b->begin + b->size) return b;
    return NULL;
}

static CUresult take(CUdeviceptr *address, size_t size, CUmemorytype type, bool managed, CUdevice device,
                     CUmemoryPool pool) {
    pthread_mutex_lock(&lock);
    CUresult error = CUDA_ERROR_OUT_OF_MEMORY;
    const size_t limit = (size_t)setting("FAKE_CUDA_MEMORY", 1l << 32);
    const bool fits = used[device] + size <= limit && (!pool || !pool->limit || pool->used + size <= pool->limit);
    block *b = fits ? calloc(1, sizeof *b) : NULL;
    if (b) {
        const size_t rounded = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        *b = (block){blocks, aligned_alloc(ALIGNMENT, rounded), size, type, managed, device,
                     pool,   pool ? 0 : current()->id};
        memset(b->begin, 0xff, rounded); /* memory is what it was: here NaN */
        blocks = b;
        used[device] += size;
        if (pool) pool->used += size;
        *address = (CUdeviceptr)b->begin;
        error = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static CUresult give(CUdeviceptr address) {
    pthread_mutex_lock(&lock);
    CUresult error = CUDA_ERROR_INVALID_VALUE;
    for (block **link = &blocks; *link; link = &(*link)->next) {
        block *b = *link;
        if (b->begin != (char *)address) continue;
        *link = b->next;
        used[b->device] -= b->size;
        if (b->pool) b->pool->used -= b->size;
        free(b->begin);
        free(b);
        error = CUDA_SUCCESS;
        break;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr *address, size_t size) {
    CUresult error = injected("cuMemAlloc");
    if (error) return error;
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    if (unsafe_now()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return take(address, size, CU_MEMORYTYPE_DEVICE, false, current()->device, NULL);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags) {
    (void)flags;
    return take(address, size, CU_MEMORYTYPE_DEVICE, true, current()->device, NULL);
}

EXPORT CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    (void)flags;
    CUresult error = injected("cuMemHostAlloc");
    return error ? error : take((CUdeviceptr *)address, size, CU_MEMORYTYPE_HOST, false, current()->device, NULL);
}

EXPORT CUresult cuMemFree(CUdeviceptr address) {
    CUresult error = injected("cuMemFree");
    if (error) return error;
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    return unsafe_now() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : give(address);
}

EXPORT CUresult cuMemFreeHost(void *address) { return give((CUdeviceptr)address); }

EXPORT CUresult cuMemGetInfo(size_t *free_bytes, size_t *total) {
    *total = (size_t)setting("FAKE_CUDA_MEMORY", 1l << 32);
    *free_bytes = *total - used[current()->device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size) {
    CUresult error = injected("cuMemcpyHtoD");
    if (error) return error;
    memcpy((void *)to, from, size);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size) {
    CUresult error = injected("cuMemcpyDtoH");
    if (error) return error;
    if (unsafe_now()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    memcpy(to, (void *)from, size);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    CUresult error = injected("cuMemcpyHtoDAsync");
    return error ? error : copy((void *)to, from, size, stream);
}

EXPORT CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    CUresult error = injected("cuMemcpyDtoHAsync");
    return error ? error : copy(to, (void *)from, size, stream);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) {
    CUresult error = injected("cuMemsetD8Async");
    if (!error) error = check_stream(stream);
    if (!error) memset((void *)to, value, size);
    return error;
}

EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *asked, void **answers,
                                       CUdeviceptr address) {
    pthread_mutex_lock(&lock);
    const block *b = block_at(address);
    for (unsigned i = 0; i < count; i++) switch ((int)asked[i]) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(CUmemorytype *)answers[i] = b ? b->type : 0; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)answers[i] = b ? address : 0; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)answers[i] = b ? b->device : -2; break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(int *)answers[i] = b && b->managed; break;
        default: abort();
        }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static _Atomic int pools;
EXPORT int fake_pools(void) { return pools; }
EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = calloc(1, sizeof **pool);
    **pool = (struct CUmemPoolHandle_st){POOL, properties->location.id, properties->maxSize, 0};
    pools++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    pools--;
    free(pool);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    (void)value;
    return pool->kind == POOL && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? CUDA_SUCCESS
                                                                                : CUDA_ERROR_INVALID_VALUE;
}

static _Atomic int trims;
EXPORT int fake_trims(void) { return trims; }
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    trims += pool->kind == POOL && !keep;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream) {
    CUresult error = injected("cuMemAllocFromPoolAsync");
    if (!error) error = check_stream(stream);
    if (error || !is_default(stream)) {
        if (error || !stream->capture)
            return error ? error : take(address, size, CU_MEMORYTYPE_DEVICE, false, pool->device, pool);
        /* The graph's own memory, freed with it. */
        *address = (CUdeviceptr)aligned_alloc(ALIGNMENT, (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
        return CUDA_SUCCESS;
    }
    return take(address, size, CU_MEMORYTYPE_DEVICE, false, pool->device, pool);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    CUresult error = injected("cuMemFreeAsync");
    if (!error) error = check_stream(stream);
    if (error) return error;
    if (is_lazy(stream)) return queue(stream, (operation){.what = FREE, .freed = address});
    if (is_default(stream) || !stream->capture) return give(address);
    add_node(stream->capture)->freed = (void *)address;
    return CUDA_SUCCESS;
}

/* ---- Modules ----------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CUresult error = injected("cuModuleLoadData");
    if (error) return error;
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    if (unsafe_now()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (*(const uint32_t *)image != 0xba55ed50u) return CUDA_ERROR_INVALID_IMAGE; /* what a fatbin begins with */
    *module = calloc(1, sizeof **module);
    **module = (struct CUmod_st){MODULE, current()};
    calls_of_load++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
    CUresult error = injected("cuModuleUnload");
    if (error) return error;
    if (module->kind != MODULE || module->context != current()) return CUDA_ERROR_INVALID_HANDLE;
    free(module);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    static CUfunction all; /* kept for the life of the process, so that a stale one is recognised */
    if (module->kind != MODULE || module->context != current()) return CUDA_ERROR_INVALID_HANDLE;
    if (!fake_kernel_args_size(name)) return CUDA_ERROR_NOT_FOUND;
    CUfunction made = calloc(1, sizeof *made);
    made->kind = FUNCTION;
    snprintf(made->name, sizeof made->name, "%s", name);
    made->context = module->context;
    made->shared_limit = 48 << 10;
    made->next = all;
    all = made;
    *function = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) {
        function->large_clusters = value;
        return CUDA_SUCCESS;
    }
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value > SHARED_LIMIT)
        return CUDA_ERROR_INVALID_VALUE;
    function->shared_limit = value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function, const CUlaunchConfig *config) {
    CUresult error = injected("cuOccupancyMaxPotentialClusterSize");
    if (error) return error;
    if (config->sharedMemBytes > (unsigned)function->shared_limit) return CUDA_ERROR_INVALID_VALUE;
    *size = function->large_clusters ? 16 : 8;
    return CUDA_SUCCESS;
}

/* The rules of copies that this library uses. */
EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                                       const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                       const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                       CUtensorMapFloatOOBfill fill) {
    (void)promotion;
    CUresult error = injected("cuTensorMapEncodeTiled");
    if (error) return error;
    fake_map made = {.data = data};
    bool valid = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 && rank == 3 && (uintptr_t)data % 16 == 0 && !interleave &&
                 swizzle == CU_TENSOR_MAP_SWIZZLE_128B && !fill && (uintptr_t)map % 64 == 0 && box[0] * 4 <= 128;
    for (int i = 0; i < 3; i++) {
        valid = valid && sizes[i] && sizes[i] <= 1ull << 32 && box[i] && box[i] <= 256 && steps[i] == 1;
        if (i < 2) valid = valid && strides[i] % 16 == 0 && strides[i] < 1ull << 40;
        made.sizes[i] = sizes[i];
        made.box[i] = box[i];
        if (i < 2) made.strides[i] = strides[i];
    }
    memcpy(map, &made, sizeof made);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    CUresult error = injected("cuLaunchKernelEx");
    if (!error) error = check_stream(config->hStream);
    if (error) return error;
    if (extra || function->kind != FUNCTION || function->context != current()) return CUDA_ERROR_INVALID_HANDLE;
    if (!config->gridDimX || !config->gridDimY || !config->gridDimZ || config->gridDimY > 65535 ||
        config->gridDimZ > 65535 || config->gridDimX > INT32_MAX ||
        (int)config->sharedMemBytes > function->shared_limit)
        return CUDA_ERROR_INVALID_VALUE;
    fake_launch launch = {.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                          .threads = config->blockDimX * config->blockDimY * config->blockDimZ,
                          .cluster = 1,
                          .shared_bytes = config->sharedMemBytes};
    snprintf(launch.kernel, sizeof launch.kernel, "%s", function->name);
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            launch.early = config->attrs[i].value.programmaticStreamSerializationAllowed;
        else if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            launch.cluster = config->attrs[i].value.clusterDim.x;
    if (config->gridDimX % launch.cluster || launch.cluster > (function->large_clusters ? 16 : 8))
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph capture = is_default(config->hStream) ? NULL : config->hStream->capture;
    launch.captured = capture != NULL;
    pthread_mutex_lock(&lock);
    launches = realloc(launches, (size_t)(launch_count + 1) * sizeof *launches);
    launches[launch_count++] = launch;
    pthread_mutex_unlock(&lock);
    const size_t size = fake_kernel_args_size(launch.kernel);
    if (is_lazy(config->hStream)) {
        void *args = copy_of_args(parameters[0], size);
        return queue(config->hStream, (operation){.what = LAUNCH, .launch = launch, .args = args});
    }
    if (!capture) return run(&launch, parameters[0]);
    struct node *node = add_node(capture);
    node->function = function;
    node->launch = launch;
    node->args = copy_of_args(parameters[0], size);
    return CUDA_SUCCESS;
}

/* ---- Streams and events ------------------------------------------------------------------------------------------ */

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    CUresult error = injected("cuStreamCreate");
    if (error) return error;
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    *stream = calloc(1, sizeof **stream);
    (*stream)->kind = STREAM;
    (*stream)->context = current();
    (*stream)->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy(CUstream stream) {
    stream->kind = 0; /* never freed: its handle stays recognisably dead */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    *status = !is_default(stream) && stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    if (stream->kind != STREAM) return CUDA_ERROR_INVALID_HANDLE;
    *context = stream->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    CUresult error = injected("cuStreamSynchronize");
    if (!error && !is_default(stream)) error = catch_up(stream, stream->queued);
    if (error) return error;
    if (!is_default(stream) && stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return unsafe_now() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

static _Atomic int synchronizations;
EXPORT int fake_synchronizations(void) { return synchronizations; }
EXPORT CUresult cuCtxSynchronize(void) {
    synchronizations++;
    CUresult error = injected("cuCtxSynchronize");
    if (error) return error;
    return unsafe_now() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    CUresult error = injected("cuEventCreate");
    if (error) return error;
    *event = calloc(1, sizeof **event);
    (*event)->kind = EVENT;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    CUresult error = injected("cuEventRecord");
    if (!error) error = check_stream(stream);
    if (error || event->kind != EVENT) return error ? error : CUDA_ERROR_INVALID_HANDLE;
    event->stream = is_default(stream) ? NULL : stream;
    event->count = event->stream ? stream->queued : 0;
    event->time = milliseconds_passed;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    CUresult error = check_stream(stream);
    if (error || !event->stream || !is_lazy(stream)) return error;
    return queue(stream, (operation){.what = WAIT, .other = event->stream, .other_count = event->count});
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    CUresult error = injected("cuEventSynchronize");
    if (error || !event->stream) return error;
    return catch_up(event->stream, event->count);
}

/* Of a lazy stream every third answer is that it is done, and then it is. */
EXPORT CUresult cuEventQuery(CUevent event) {
    static _Atomic int asked;
    CUresult error = injected("cuEventQuery");
    if (error || !event->stream) return error;
    if (event->stream->done < event->count && ++asked % 3) return CUDA_ERROR_NOT_READY;
    return catch_up(event->stream, event->count);
}

/* Newer headers mean another function by this name. */
#undef cuEventElapsedTime
EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    *milliseconds = setting("FAKE_CUDA_TIMED", 0) ? (float)(end->time - start->time) : 1;
    return start->kind == EVENT && end->kind == EVENT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuEventDestroy(CUevent event) {
    event->kind = 0;
    free(event);
    return CUDA_SUCCESS;
}
