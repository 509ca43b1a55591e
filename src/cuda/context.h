/* context.h: a tsr_context's place on a GPU, for context.c, plan.c and launch.c. */
#ifndef TESSERA_CUDA_CONTEXT_H
#define TESSERA_CUDA_CONTEXT_H

#include "cuda/cuda.h"
#include "cuda/driver.h"
#include "cuda/kernels.h"

/* What the library keeps in one CUcontext: modules, functions, the workspace pool and launch graphs, shared by every
 * tsr_context there. Known by the CUcontext's id, which the driver never gives out twice, because a CUcontext's address
 * may come again. */
typedef struct cuda_resident {
    struct cuda_resident *next;
    unsigned long long context_id;
    int users;                                   /* tsr_contexts */
    CUmodule modules[CUDA_MODULES];              /* NULL until a kernel of it is asked for */
    _Atomic(CUfunction) functions[CUDA_KERNELS]; /* NULL until asked for; read without the lock */
    CUmemoryPool pool;                           /* NULL where the GPU has no stream-ordered memory */
    struct launch_graphs *graphs;
} cuda_resident;

/* Two counters in device memory, which the kernels add to. */
typedef struct cuda_counters {
    unsigned long long marked_panels, fallback_tiles;
} cuda_counters;

struct cuda_context {
    const cuda_driver *driver;
    cuda_device device;
    CUcontext context;
    bool retained;         /* it is the device's primary context, and we hold it */
    bool records;          /* each new product is noted (tuning.h) */
    bool overlap_launches; /* a kernel may be launched before the one in front of it has finished */
    cuda_resident *resident;
    const cuda_kernel *forced; /* options.kernel, or NULL */
    CUdeviceptr counters;      /* a cuda_counters */
};

/* graphs.c: what a CUcontext's launches share. alive: it exists still. */
struct launch_graphs *cuda_graphs_create(void);
void cuda_graphs_destroy(struct launch_graphs *graphs, const cuda_driver *driver, bool alive);

/* Makes the context current on this thread, until cuda_leave with the same *pushed. */
tsr_status cuda_enter(const struct cuda_context *cuda, bool *pushed);
void cuda_leave(const struct cuda_context *cuda, bool pushed);

/* The rest is called between the two. */

/* The kernel's function, its module loaded where it was not. */
tsr_status cuda_function(const struct cuda_context *cuda, const cuda_kernel *kernel, CUfunction *function);

/* Workspace that lives in `stream`'s order: work queued between take and give may use it. Giving it back leaves
 * tsr_last_error alone, for it may come after what went wrong. */
tsr_status cuda_workspace_take(const struct cuda_context *cuda, CUstream stream, size_t bytes, CUdeviceptr *workspace);
CUresult cuda_workspace_give(const struct cuda_context *cuda, CUstream stream, CUdeviceptr workspace);

/* pack.c: fills an operand's panels, at packed->panels, in `stream`'s order. */
tsr_status cuda_pack_panels(const tsr_packed *packed, CUstream stream);

/* Memory that outlives the call, allocated even during a capture. Freeing it waits for work that uses it. */
tsr_status cuda_memory_take(const struct cuda_context *cuda, size_t bytes, CUdeviceptr *memory);
void cuda_memory_give(const struct cuda_context *cuda, CUdeviceptr memory);

#endif
