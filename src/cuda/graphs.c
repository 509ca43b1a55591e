/* graphs.c: kernels that are queued one after the other again and again, launched as one CUDA graph.
 *
 * A launch takes the host 3 us, a graph of four kernels 1.2, and giving each of its nodes other arguments 0.15
 * (docs/internals/experiments.md). A product that is split is four kernels or five. So what a call queues is collected
 * first; if the same kernels have been queued a few times on this stream, they become a graph, whose nodes from then on
 * get the arguments and grids of each call. There is one for each sequence of kernels, not for each shape.
 *
 * A graph does not run beside itself, so each stream has its own. In a stream that is being captured kernels are
 * launched one by one: they become nodes of the caller's graph.
 */
#include "cuda/graphs.h"

#include <stdlib.h>
#include <string.h>

/* Making one takes as long as it saves in so many calls. */
enum { CALLS_BEFORE_GRAPH = 32, MOST_GRAPHS = 32 };

typedef struct launch_graph {
    CUstream stream;
    int count; /* kernels; 0: free */
    CUfunction functions[MOST_QUEUED];
    unsigned clusters[MOST_QUEUED];
    int calls;          /* until it was made; negative: it cannot be */
    uint64_t last_used; /* in calls of launch_queued */
    CUgraph graph;      /* NULL until it is made, as the rest */
    CUgraphNode nodes[MOST_QUEUED];
    CUgraphExec executable;
} launch_graph;

struct launch_graphs {
    pthread_mutex_t lock;
    CUstream recorder; /* made with the first graph */
    uint64_t calls;
    launch_graph table[MOST_GRAPHS];
};

struct launch_graphs *cuda_graphs_create(void) {
    struct launch_graphs *made = calloc(1, sizeof *made);
    if (made) pthread_mutex_init(&made->lock, NULL);
    return made;
}

static void forget(const cuda_driver *driver, launch_graph *g) {
    if (g->executable) driver->cuGraphExecDestroy(g->executable);
    if (g->graph) driver->cuGraphDestroy(g->graph);
    *g = (launch_graph){0};
}

void cuda_graphs_destroy(struct launch_graphs *graphs, const cuda_driver *driver, bool alive) {
    for (int i = 0; alive && i < MOST_GRAPHS; i++) forget(driver, &graphs->table[i]);
    if (alive && graphs->recorder) driver->cuStreamDestroy(graphs->recorder);
    pthread_mutex_destroy(&graphs->lock);
    free(graphs);
}

/* ---- One by one -------------------------------------------------------------------------------------------------- */

/* Programmatic launch: a kernel that waits by itself for the one before it may start before that has finished. It waits
 * for all that is in front of it in the stream, on Hopper even if the kernel before it, somebody else's, has not. */
static CUresult launch_one(const struct cuda_context *cuda, CUstream stream, const queued_kernel *k, bool overlaps) {
    const bool waits = k->kernel != &cuda_kernels[IEEE_SCALE]; /* all others wait by themselves */
    CUlaunchAttribute attributes[2];
    unsigned count = 0;
    if (overlaps && waits && cuda->overlap_launches)
        attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                                  .value = {.programmaticStreamSerializationAllowed = 1}};
    if (k->cluster > 1)
        attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                                  .value = {.clusterDim = {k->cluster, 1, 1}}};
    CUlaunchConfig config = {
        .gridDimX = k->grid[0],
        .gridDimY = k->grid[1],
        .gridDimZ = k->grid[2],
        .blockDimX = (unsigned)k->kernel->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)k->kernel->shared_bytes,
        .hStream = stream,
        .attrs = attributes,
        .numAttrs = count,
    };
    void *args = (void *)k->args;
    return cuda->driver->cuLaunchKernelEx(&config, k->function, &args, NULL);
}

static CUresult launch_all(const struct cuda_context *cuda, CUstream stream, const queued_kernel *kernels, int count,
                           bool begun, int *failed) {
    CUresult error = CUDA_SUCCESS;
    for (*failed = 0; *failed < count; ++*failed)
        if ((error = launch_one(cuda, stream, &kernels[*failed], begun || *failed > 0))) break;
    return error;
}

/* ---- As a graph -------------------------------------------------------------------------------------------------- */

static bool is_of(const launch_graph *g, CUstream stream, const queued_kernel *kernels, int count) {
    if (g->count != count || g->stream != stream) return false;
    for (int i = 0; i < count; i++)
        if (g->functions[i] != kernels[i].function || g->clusters[i] != kernels[i].cluster) return false;
    return true;
}

/* The sequence's entry, a new one instead of the one unused for longest. */
static launch_graph *entry_of(const cuda_driver *driver, struct launch_graphs *graphs, CUstream stream,
                              const queued_kernel *kernels, int count) {
    launch_graph *oldest = graphs->table;
    for (launch_graph *g = graphs->table; g < graphs->table + MOST_GRAPHS; g++) {
        if (is_of(g, stream, kernels, count)) return g;
        if (g->last_used < oldest->last_used) oldest = g;
    }
    forget(driver, oldest);
    oldest->stream = stream;
    oldest->count = count;
    for (int i = 0; i < count; i++) {
        oldest->functions[i] = kernels[i].function;
        oldest->clusters[i] = kernels[i].cluster;
    }
    return oldest;
}

/* Captures the launches on a stream of its own. False where the driver does not do what is needed. */
static bool record(const struct cuda_context *cuda, struct launch_graphs *graphs, launch_graph *g,
                   const queued_kernel *kernels) {
    const cuda_driver *driver = cuda->driver;
    int failed;
    if (!graphs->recorder && driver->cuStreamCreate(&graphs->recorder, CU_STREAM_NON_BLOCKING)) return false;
    if (driver->cuStreamBeginCapture(graphs->recorder, CU_STREAM_CAPTURE_MODE_RELAXED)) return false;
    const CUresult launched = launch_all(cuda, graphs->recorder, kernels, g->count, false, &failed);
    size_t nodes = MOST_QUEUED;
    if (driver->cuStreamEndCapture(graphs->recorder, &g->graph) || launched ||
        driver->cuGraphGetNodes(g->graph, g->nodes, &nodes) || (int)nodes != g->count)
        return false;
    for (int i = 0; i < g->count; i++) { /* in the order of the launches, which the driver does not promise */
        CUDA_KERNEL_NODE_PARAMS params;
        if (driver->cuGraphKernelNodeGetParams(g->nodes[i], &params) || params.func != g->functions[i]) return false;
    }
    return !driver->cuGraphInstantiateWithFlags(&g->executable, g->graph, 0);
}

static CUresult launch_graph_of(const cuda_driver *driver, launch_graph *g, const queued_kernel *kernels) {
    CUresult error = CUDA_SUCCESS;
    for (int i = 0; i < g->count && !error; i++) {
        void *args = (void *)kernels[i].args;
        const CUDA_KERNEL_NODE_PARAMS params = {
            .func = kernels[i].function,
            .gridDimX = kernels[i].grid[0],
            .gridDimY = kernels[i].grid[1],
            .gridDimZ = kernels[i].grid[2],
            .blockDimX = (unsigned)kernels[i].kernel->threads,
            .blockDimY = 1,
            .blockDimZ = 1,
            .sharedMemBytes = (unsigned)kernels[i].kernel->shared_bytes,
            .kernelParams = &args,
        };
        error = driver->cuGraphExecKernelNodeSetParams(g->executable, g->nodes[i], &params);
    }
    return error ? error : driver->cuGraphLaunch(g->executable, g->stream);
}

static bool is_captured(const cuda_driver *driver, CUstream stream) {
    CUstreamCaptureStatus status;
    return driver->cuStreamIsCapturing(stream, &status) || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUresult cuda_launch_queued(const struct cuda_context *cuda, CUstream stream, const queued_kernel *kernels, int count,
                            bool begun, int *failed) {
    const cuda_driver *driver = cuda->driver;
    struct launch_graphs *graphs = cuda->resident->graphs;
    /* Where a kernel may not overlap with the one before it, launches are as they were. */
    if (count < 2 || !cuda->overlap_launches || is_captured(driver, stream))
        return launch_all(cuda, stream, kernels, count, begun, failed);
    /* Other streams may be captured, by this thread, too: what is done here is no part of that. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    pthread_mutex_lock(&graphs->lock);
    launch_graph *g = entry_of(driver, graphs, stream, kernels, count);
    g->last_used = ++graphs->calls;
    if (!g->executable && g->calls >= 0 && ++g->calls > CALLS_BEFORE_GRAPH && !record(cuda, graphs, g, kernels)) {
        g->executable = NULL;
        g->calls = -1;
    }
    CUresult error = CUDA_SUCCESS;
    if (g->executable) {
        *failed = 0;
        error = launch_graph_of(driver, g, kernels);
    }
    const bool done = g->executable;
    pthread_mutex_unlock(&graphs->lock);
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    return done ? error : launch_all(cuda, stream, kernels, count, begun, failed);
}
