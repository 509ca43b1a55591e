/* graphs.c: kernels that are queued one after the other again and again, launched as one CUDA graph.
 *
 * A launch takes the host more than 3 us, a graph of four kernels 2, and giving each of its nodes other arguments 0.5
 * (docs/internals/experiments.md). A product that is split is four kernels or five. So what a call queues is collected
 * first; if the same kernels have been queued CALLS_BEFORE_GRAPH times on this stream, they become a graph, whose nodes
 * from then on get the arguments and grids of each call. There is one for each sequence of kernels, not for each shape.
 *
 * A graph does not run beside itself, so each stream has its own. In two cases kernels are launched one by one: on the
 * per-thread default stream, whose handle is the same in all threads, and on a stream that is being captured, where
 * they become nodes of the caller's graph. Graphs are put together node by node: while launches are captured, other
 * threads that synchronise the device would fail.
 */
#include "cuda/graphs.h"

#include <stdlib.h>

/* Making a graph takes as long as it saves in CALLS_BEFORE_GRAPH calls. */
enum { CALLS_BEFORE_GRAPH = 32, MOST_GRAPHS = 32 };

typedef struct launch_graph {
    /* Under the lock of all graphs. */
    CUstream stream;
    int count; /* kernels; 0: free */
    CUfunction functions[MOST_QUEUED];
    unsigned clusters[MOST_QUEUED];
    int users;          /* calls that have it */
    uint64_t last_used; /* in calls of launch_queued */
    /* Under its own lock: a launch waits where the stream is full, and others must not wait with it. */
    pthread_mutex_t lock;
    int calls;     /* before it was made; negative: the driver could not make it */
    CUgraph graph; /* NULL until it is made, as the rest */
    CUgraphNode nodes[MOST_QUEUED];
    CUgraphExec executable;
} launch_graph;

struct launch_graphs {
    pthread_mutex_t lock;
    uint64_t calls;
    launch_graph table[MOST_GRAPHS];
};

struct launch_graphs *cuda_graphs_create(void) {
    struct launch_graphs *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    pthread_mutex_init(&made->lock, NULL);
    for (int i = 0; i < MOST_GRAPHS; i++) pthread_mutex_init(&made->table[i].lock, NULL);
    return made;
}

static void destroy(const cuda_driver *driver, launch_graph *g) {
    if (g->executable) driver->cuGraphExecDestroy(g->executable);
    if (g->graph) driver->cuGraphDestroy(g->graph);
    g->executable = NULL, g->graph = NULL;
}

void cuda_graphs_destroy(struct launch_graphs *graphs, const cuda_driver *driver, bool alive) {
    for (int i = 0; i < MOST_GRAPHS; i++) {
        if (alive) destroy(driver, &graphs->table[i]);
        pthread_mutex_destroy(&graphs->table[i].lock);
    }
    pthread_mutex_destroy(&graphs->lock);
    free(graphs);
}

/* ---- One by one -------------------------------------------------------------------------------------------------- */

static bool waits_by_itself(const queued_kernel *k) { return k->kernel != &cuda_kernels[IEEE_SCALE]; }

/* Programmatic launch: a kernel that waits by itself for the one before it may start before that has finished. On
 * Hopper it waits for all that is in front of it in the stream, even if the kernel before it, somebody else's, does
 * not. */
static CUresult launch_one(const struct cuda_context *cuda, CUstream stream, const queued_kernel *k, bool overlaps) {
    CUlaunchAttribute attributes[2];
    unsigned count = 0;
    if (overlaps && waits_by_itself(k) && cuda->overlap_launches)
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

/* The sequence's entry, a new one instead of the one unused for longest; NULL if all are in use. */
static launch_graph *take_entry(const cuda_driver *driver, struct launch_graphs *graphs, CUstream stream,
                                const queued_kernel *kernels, int count) {
    launch_graph *found = NULL, *oldest = NULL;
    pthread_mutex_lock(&graphs->lock);
    for (launch_graph *g = graphs->table; g < graphs->table + MOST_GRAPHS && !found; g++) {
        if (is_of(g, stream, kernels, count)) found = g;
        if (!g->users && (!oldest || g->last_used < oldest->last_used)) oldest = g;
    }
    if (!found && oldest) { /* nobody has it, so nobody holds its lock */
        found = oldest;
        destroy(driver, found);
        found->stream = stream, found->count = count, found->calls = 0;
        for (int i = 0; i < count; i++) {
            found->functions[i] = kernels[i].function;
            found->clusters[i] = kernels[i].cluster;
        }
    }
    if (found) found->users++, found->last_used = ++graphs->calls;
    pthread_mutex_unlock(&graphs->lock);
    return found;
}

static CUDA_KERNEL_NODE_PARAMS node_params(const queued_kernel *k, void **args) {
    *args = (void *)k->args;
    return (CUDA_KERNEL_NODE_PARAMS){
        .func = k->function,
        .gridDimX = k->grid[0],
        .gridDimY = k->grid[1],
        .gridDimZ = k->grid[2],
        .blockDimX = (unsigned)k->kernel->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)k->kernel->shared_bytes,
        .kernelParams = args,
    };
}

/* Makes the graph. False if the driver cannot. */
static bool make(const cuda_driver *driver, launch_graph *g, const queued_kernel *kernels) {
#if CUDA_VERSION >= 13000 /* dependencies have types */
    if (driver->cuGraphCreate(&g->graph, 0)) return false;
    for (int i = 0; i < g->count; i++) {
        void *args;
        const CUDA_KERNEL_NODE_PARAMS params = node_params(&kernels[i], &args);
        if (driver->cuGraphAddKernelNode(&g->nodes[i], g->graph, NULL, 0, &params)) return false;
        const CUlaunchAttributeValue cluster = {.clusterDim = {kernels[i].cluster, 1, 1}};
        if (kernels[i].cluster > 1 &&
            driver->cuGraphKernelNodeSetAttribute(g->nodes[i], CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &cluster))
            return false;
        const CUgraphEdgeData plain = {0}, early = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                                                    .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
        if (i > 0 && driver->cuGraphAddDependencies(g->graph, &g->nodes[i - 1], &g->nodes[i],
                                                    waits_by_itself(&kernels[i]) ? &early : &plain, 1))
            return false;
    }
    return !driver->cuGraphInstantiateWithFlags(&g->executable, g->graph, 0);
#else
    (void)driver, (void)g, (void)kernels;
    return false;
#endif
}

static bool set_arguments(const cuda_driver *driver, launch_graph *g, const queued_kernel *kernels) {
    for (int i = 0; i < g->count; i++) {
        void *args;
        const CUDA_KERNEL_NODE_PARAMS params = node_params(&kernels[i], &args);
        if (driver->cuGraphExecKernelNodeSetParams(g->executable, g->nodes[i], &params)) return false;
    }
    return true;
}

/* Launches the kernels as the graph, which is made once they have come often enough. False if there is no graph: then
 * nothing was launched. */
static bool launch_graph_of(const cuda_driver *driver, launch_graph *g, CUstream stream, const queued_kernel *kernels,
                            CUresult *error) {
    const bool made = g->executable || (g->calls >= 0 && ++g->calls > CALLS_BEFORE_GRAPH && make(driver, g, kernels));
    if (made && set_arguments(driver, g, kernels)) {
        *error = driver->cuGraphLaunch(g->executable, stream);
        return true;
    }
    if (made || g->graph) {
        destroy(driver, g);
        g->calls = -1;
    }
    return false;
}

static bool is_captured(const cuda_driver *driver, CUstream stream) {
    CUstreamCaptureStatus status;
    return driver->cuStreamIsCapturing(stream, &status) || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUresult cuda_launch_queued(const struct cuda_context *cuda, CUstream stream, const queued_kernel *kernels, int count,
                            bool begun, int *failed) {
    const cuda_driver *driver = cuda->driver;
    struct launch_graphs *graphs = cuda->resident->graphs;
    /* Where launches do not overlap, kernels are launched one by one. */
    const bool as_graph = count > 1 && cuda->overlap_launches && stream != CU_STREAM_PER_THREAD &&
                          !is_captured(driver, stream);
    launch_graph *g = as_graph ? take_entry(driver, graphs, stream, kernels, count) : NULL;
    CUresult error = CUDA_SUCCESS;
    bool done = false;
    if (g) {
        /* Other streams may be captured meanwhile, by this thread or others; what is done here is not captured. */
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        driver->cuThreadExchangeStreamCaptureMode(&mode);
        pthread_mutex_lock(&g->lock);
        done = launch_graph_of(driver, g, stream, kernels, &error);
        pthread_mutex_unlock(&g->lock);
        driver->cuThreadExchangeStreamCaptureMode(&mode);
        pthread_mutex_lock(&graphs->lock);
        g->users--;
        pthread_mutex_unlock(&graphs->lock);
        *failed = 0;
    }
    return done ? error : launch_all(cuda, stream, kernels, count, begun, failed);
}
