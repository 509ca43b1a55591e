/* context.c: contexts, what they count, and what the machine offers. */
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "offload/offload.h"

static tsr_status check_options(const tsr_options *o) {
    if (o->device != TSR_DEVICE_CPU && o->device != TSR_DEVICE_CUDA)
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.device is %d, which is no tsr_device", (int)o->device);
    if (o->precision != TSR_FP32 && o->precision != TSR_IEEE && o->precision != TSR_TF32)
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.precision is %d, which is no tsr_precision", (int)o->precision);
    if (o->threads < 0 || o->threads > 1024)
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.threads is %d; it must be 1 to 1024, or 0 for all cores",
                        o->threads);
    if (o->device_index < -1)
        return tsr_fail(TSR_INVALID_ARGUMENT,
                        "options.device_index is %d; it must be 0 or more, or -1 for the current one", o->device_index);
    if (o->batch_invariant != 0 && o->batch_invariant != 1)
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.batch_invariant is %d; it must be 0 or 1", o->batch_invariant);
    if (o->kernel && strlen(o->kernel) >= sizeof((tsr_context *)0)->kernel_name)
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.kernel is no kernel's name: tsr_info_print lists them");
    return TSR_OK;
}

tsr_status tsr_context_create(tsr_context **context, const tsr_options *options) {
    if (!context) return tsr_fail(TSR_INVALID_ARGUMENT, "context is NULL");
    *context = NULL;
    tsr_options chosen = TSR_OPTIONS_DEFAULT;
    if (options) chosen = *options;
    tsr_status status = check_options(&chosen);
    if (status) return status;

    tsr_context *made = calloc(1, sizeof *made);
    if (!made) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for a context");
    const char *invariant = getenv("TESSERA_BATCH_INVARIANT");
    if (invariant && strcmp(invariant, "1") == 0) chosen.batch_invariant = 1;
    if (!chosen.threads) chosen.threads = cpu_default_threads();
    if (chosen.kernel) {
        strcpy(made->kernel_name, chosen.kernel);
        chosen.kernel = made->kernel_name;
    }
    if (chosen.device == TSR_DEVICE_CUDA)
        status = cuda_context_create(&made->cuda, &chosen);
    else
        status = cpu_kernels_choose(made, &chosen);
    made->options = chosen;
    if (status) {
        free(made);
        return status;
    }
    pthread_mutex_init(&made->offload_lock, NULL);
    *context = made;
    return TSR_OK;
}

void tsr_context_destroy(tsr_context *context) {
    if (!context) return;
    if (context->cuda) {
        offload_release(context);
        cuda_context_destroy(context->cuda);
    }
    pthread_mutex_destroy(&context->offload_lock);
    free(context);
}

int tsr_context_threads(const tsr_context *context) { return context ? context->options.threads : 0; }

tsr_status tsr_stats_read(tsr_context *context, tsr_stats *stats) {
    if (!context) return tsr_fail(TSR_INVALID_ARGUMENT, "context is NULL");
    if (!stats) return tsr_fail(TSR_INVALID_ARGUMENT, "stats is NULL");
    stats->products = atomic_load(&context->products);
    stats->split_products = atomic_load(&context->split_products);
    stats->marked_panels = atomic_load(&context->marked_panels);
    stats->fallback_tiles = atomic_load(&context->fallback_tiles);
    return context->cuda ? cuda_stats_read(context, stats) : TSR_OK;
}

tsr_status tsr_trim(tsr_context *context) {
    if (!context) return tsr_fail(TSR_INVALID_ARGUMENT, "context is NULL");
    if (context->cuda) {
        offload_release(context);
        return cuda_trim(context);
    }
    cpu_trim();
    return TSR_OK;
}

size_t tsr_info_print(char *buffer, size_t size) {
    tsr_text text = {buffer, buffer ? size : 0, 0};
    if (text.size) buffer[0] = '\0';
    tsr_text_add(&text, "tessera: %s\n", tsr_version());
    cpu_info_print(&text);
    cuda_info_print(&text);
    return text.length;
}
