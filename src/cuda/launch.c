/* launch.c: carries out a cuda_plan: checks what only the driver knows, takes workspace, queues the kernels of each
 * chunk on the caller's stream.
 *
 *   ieee    multiply, and where k was cut ieee_reduce
 *   tf32    tf32_copy of operands that cannot be read in place, multiply, and where k is in slices ieee_reduce
 *   split   pack_sample and pack_split, or pack_rows; multiply; where k was cut split_reduce; and a kernel that
 *           recomputes what the split kernel left (ieee, or for tf32 on Hopper a TF32 kernel), which returns at once
 *           if that is nothing
 */
#include "cuda/launch.h"

#include <string.h>

#include "cuda/tuning.h"

/* ---- Launching --------------------------------------------------------------------------------------------------- */

void launch_begin(launch_queue *q, const struct cuda_context *cuda, CUstream stream) {
    q->cuda = cuda;
    q->stream = stream;
    q->begun = false;
    q->count = 0;
}

tsr_status launch_kernel(launch_queue *q, const cuda_kernel *kernel, launch_grid grid, const void *args, size_t size) {
    return launch_clusters(q, kernel, grid, 1, args, size);
}

tsr_status launch_clusters(launch_queue *q, const cuda_kernel *kernel, launch_grid grid, int64_t cluster,
                           const void *args, size_t size) {
    CUfunction function;
    tsr_status status = cuda_function(q->cuda, kernel, &function);
    if (!status && q->count == MOST_QUEUED) status = launch_queued(q);
    if (status) return status;
    if (grid.x > INT32_MAX || grid.y > UINT16_MAX || grid.z > UINT16_MAX)
        return tsr_fail(TSR_UNSUPPORTED, "%s would need %lld x %lld x %lld blocks, more than a grid may have",
                        kernel->name, (long long)grid.x, (long long)grid.y, (long long)grid.z);
    queued_kernel *const k = &q->kernels[q->count++];
    k->kernel = kernel;
    k->function = function;
    k->grid[0] = (unsigned)grid.x, k->grid[1] = (unsigned)grid.y, k->grid[2] = (unsigned)grid.z;
    k->cluster = (unsigned)cluster;
    memcpy(k->args, args, size);
    return TSR_OK;
}

tsr_status launch_queued(launch_queue *q) {
    int failed;
    const CUresult error = cuda_launch_queued(q->cuda, q->stream, q->kernels, q->count, q->begun, &failed);
    if (error) return cuda_fail(error, "launching %s", q->kernels[failed].kernel->name);
    q->begun |= q->count > 0;
    q->count = 0;
    return TSR_OK;
}

/* ---- Checking pointers and stream -------------------------------------------------------------------------------- */

tsr_status check_memory(const struct cuda_context *cuda, const char *name, void **pointer) {
    CUmemorytype type = 0;
    CUdeviceptr address = 0;
    int ordinal = -1, managed = 0;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void *answers[] = {&type, &address, &ordinal, &managed};
    CUresult error = cuda->driver->cuPointerGetAttributes(sizeof asked / sizeof *asked, asked, answers,
                                                          (CUdeviceptr)*pointer);
    if (error) return cuda_fail(error, "asking the driver about %s", name);
    if (!type)
        return tsr_fail(TSR_INVALID_ARGUMENT,
                        "%s is host memory, or has been freed: copy it to the GPU, or use a CPU context", name);
    if (type == CU_MEMORYTYPE_DEVICE && !managed && ordinal != cuda->device.ordinal)
        return tsr_fail(TSR_INVALID_ARGUMENT, "%s is memory of GPU %d, but the context works on GPU %d", name, ordinal,
                        cuda->device.ordinal);
    if (address) *pointer = (void *)address;
    return TSR_OK;
}

tsr_status check_stream(const struct cuda_context *cuda, CUstream stream) {
    /* The default streams belong to whatever context is current, which is ours. */
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return TSR_OK;
    CUcontext owner = NULL;
    CUresult error = cuda->driver->cuStreamGetCtx(stream, &owner);
    if (error == CUDA_ERROR_INVALID_HANDLE || error == CUDA_ERROR_INVALID_CONTEXT ||
        error == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return tsr_fail(TSR_INVALID_ARGUMENT, "launch.stream is no stream, or has been destroyed");
    if (error) return cuda_fail(error, "asking the driver about launch.stream");
    if (owner != cuda->context)
        return tsr_fail(
            TSR_INVALID_ARGUMENT,
            "launch.stream belongs to another CUDA context than this one on GPU %d: use a stream of this GPU's",
            cuda->device.ordinal);
    return TSR_OK;
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

static tsr_status queue_chunk(launch_queue *q, const cuda_plan *plan, const tsr_problem *p, const problem_range *at,
                              char *workspace) {
    if (at->k && plan->split) return queue_split(q, plan, p, at, workspace);
    const tsr_problem chunk = problem_part(p, at);
    if (!at->k) return queue_scale(q, &chunk);
    return plan->multiply->family == FAMILY_TF32 ? queue_tf32(q, plan, &chunk, workspace)
                                                 : queue_ieee(q, plan, &chunk, workspace);
}

/* Every chunk, those of m innermost. */
static tsr_status queue_chunks(launch_queue *q, const cuda_plan *plan, const tsr_problem *p, char *workspace) {
    tsr_status status = TSR_OK;
    problem_range at = {0};
    for (at.batch0 = 0; at.batch0 < p->batch && !status; at.batch0 += plan->chunk_batch) {
        at.batch = min64(plan->chunk_batch, p->batch - at.batch0);
        at.k0 = 0;
        do { /* once at least: a product without terms has k = 0 */
            at.k = min64(plan->chunk_k, p->k - at.k0);
            for (at.n0 = 0; at.n0 < p->n && !status; at.n0 += plan->chunk_n) {
                at.n = min64(plan->chunk_n, p->n - at.n0);
                for (at.m0 = 0; at.m0 < p->m && !status; at.m0 += plan->chunk_m) {
                    at.m = min64(plan->chunk_m, p->m - at.m0);
                    status = queue_chunk(q, plan, p, &at, workspace);
                }
            }
            at.k0 += plan->chunk_k;
        } while (at.k0 < p->k && !status);
    }
    return status;
}

/* ---- The engine's calls ------------------------------------------------------------------------------------------ */

static tsr_status check_operands(const struct cuda_context *cuda, tsr_problem *p) {
    const bool in_c = p->addend.data == p->c.data;
    tsr_status status = check_memory(cuda, "c.data", (void **)&p->c.data);
    if (in_c)
        p->addend.data = p->c.data;
    else if (!status && !is_zero(p->beta))
        status = check_memory(cuda, "addend.data", (void **)&p->addend.data);
    if (!status && p->k) status = check_memory(cuda, "a.data", (void **)&p->a.data);
    if (!status && p->k) status = check_memory(cuda, "b.data", (void **)&p->b.data);
    return status;
}

static tsr_status execute_in_context(const struct cuda_context *cuda, const cuda_plan *plan, const tsr_problem *problem,
                                     const tsr_launch *given) {
    launch_queue q;
    launch_begin(&q, cuda, given ? given->stream : NULL);
    q.begun = plan->early;
    tsr_status status = check_stream(cuda, q.stream);
    if (status) return status;

    void *workspace = given ? given->workspace : NULL;
    const size_t bytes = plan->workspace.bytes;
    const bool take = bytes && problem->k && !workspace;
    CUdeviceptr taken = 0;
    if (take)
        status = cuda_workspace_take(cuda, q.stream, bytes, &taken);
    else if (workspace && bytes)
        status = check_memory(cuda, "launch.workspace", &workspace);
    if (status) return status;
    const int64_t items = problem->c_items ? problem->batch : 1; /* with pointers of their own, or one batch */
    for (int64_t i = 0; i < items && !status; i++) {
        tsr_problem p = *problem;
        if (problem->c_items) {
            p = problem_item(problem, i);
            p.batch = 1;
        }
        status = check_operands(cuda, &p);
        if (plan->transposed) p = problem_transpose(&p);
        if (!status) status = queue_chunks(&q, plan, &p, take ? (char *)taken : workspace);
    }
    if (!status) status = launch_queued(&q);
    const CUresult error = take ? cuda_workspace_give(cuda, q.stream, taken) : CUDA_SUCCESS;
    return error && !status ? cuda_fail(error, "giving workspace back on GPU %d", cuda->device.ordinal) : status;
}

tsr_status cuda_execute(const cuda_plan *plan, tsr_context *context, const tsr_problem *problem,
                        const tsr_launch *given) {
    bool pushed;
    tsr_status status = cuda_enter(context->cuda, &pushed);
    if (status) return status;
    status = execute_in_context(context->cuda, plan, problem, given);
    cuda_leave(context->cuda, pushed);
    if (!status && context->cuda->records && problem->k) tuning_record(context, problem);
    if (!status && plan->split && problem->k)
        atomic_fetch_add_explicit(&context->split_products, (uint_fast64_t)problem->batch, memory_order_relaxed);
    return status;
}
