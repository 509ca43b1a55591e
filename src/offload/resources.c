/* resources.c: streams, events, the pinned ring and GPU memory. */
#include "offload/resources.h"

#include <stdlib.h>

#include "cpu/cpu.h"

void offload_destroy(const struct cuda_context *cuda, struct offload *offload, bool alive) {
    const cuda_driver *driver = cuda->driver;
    if (alive) {
        for (int i = 0; i < EVENTS; i++)
            if (offload->events[i]) driver->cuEventDestroy(offload->events[i]);
        if (offload->in) driver->cuStreamDestroy(offload->in);
        if (offload->compute) driver->cuStreamDestroy(offload->compute);
        if (offload->out) driver->cuStreamDestroy(offload->out);
        if (offload->ring) driver->cuMemFreeHost(offload->ring);
        if (offload->memory) driver->cuMemFree(offload->memory);
    }
    free(offload);
}

tsr_status offload_create(const tsr_context *context, struct offload **made) {
    const struct cuda_context *cuda = context->cuda;
    const cuda_driver *driver = cuda->driver;
    struct offload *offload = calloc(1, sizeof *offload);
    if (!offload) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory to prepare copies to the GPU");
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.precision = context->options.precision;
    options.threads = context->options.threads;
    options.max_workspace = RING_BYTES;
    options.batch_invariant = context->options.batch_invariant;
    offload->cpu.options = options;
    tsr_status status = cpu_kernels_choose(&offload->cpu, &options);
    CUresult error = CUDA_SUCCESS;
    if (!status && !(error = driver->cuStreamCreate(&offload->in, CU_STREAM_NON_BLOCKING)) &&
        !(error = driver->cuStreamCreate(&offload->compute, CU_STREAM_NON_BLOCKING)))
        error = driver->cuStreamCreate(&offload->out, CU_STREAM_NON_BLOCKING);
    for (int i = 0; !status && !error && i < EVENTS; i++)
        error = driver->cuEventCreate(&offload->events[i], CU_EVENT_DISABLE_TIMING);
    if (!status && !error) error = driver->cuMemHostAlloc((void **)&offload->ring, RING_BYTES, 0);
    if (error) status = cuda_fail(error, "preparing copies to GPU %d", cuda->device.ordinal);
    if (status)
        offload_destroy(cuda, offload, true);
    else
        *made = offload;
    return status;
}

CUresult offload_take_memory(const struct cuda_context *cuda, struct offload *offload, size_t bytes) {
    if (offload->bytes >= bytes) return CUDA_SUCCESS;
    if (offload->memory) cuda->driver->cuMemFree(offload->memory);
    offload->memory = 0;
    offload->bytes = 0;
    const CUresult error = cuda->driver->cuMemAlloc(&offload->memory, bytes);
    if (error)
        offload->memory = 0;
    else
        offload->bytes = bytes;
    return error;
}
