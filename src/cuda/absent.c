/* absent.c: stands in for the CUDA engine in a library built without nvcc. */
#include "attention.h"
#include "cuda/cuda.h"

static tsr_status absent(void) {
    return tsr_fail(TSR_UNSUPPORTED, "this libtessera was built without the CUDA engine: build it with nvcc on PATH");
}

tsr_status cuda_context_create(struct cuda_context **cuda, tsr_options *options) {
    (void)options;
    *cuda = NULL;
    return absent();
}

void cuda_context_destroy(struct cuda_context *cuda) { (void)cuda; }

tsr_status cuda_plan_make(cuda_plan *plan, const tsr_context *context, const tsr_problem *problem) {
    (void)plan, (void)context, (void)problem;
    return absent();
}

double cuda_plan_seconds(const cuda_plan *plan, const tsr_problem *problem) {
    (void)plan, (void)problem;
    return 0;
}

void cuda_plan_print(const cuda_plan *plan, const tsr_problem *problem, tsr_text *text) {
    (void)plan, (void)problem, (void)text;
}

tsr_status cuda_execute(const cuda_plan *plan, tsr_context *context, const tsr_problem *problem,
                        const tsr_launch *launch) {
    (void)plan, (void)context, (void)problem, (void)launch;
    return absent();
}

size_t cuda_pack_size(const tsr_context *context, tsr_side side, const tsr_operand *operand) {
    (void)context, (void)side, (void)operand;
    return 0;
}

tsr_status cuda_pack(tsr_packed *packed, const tsr_launch *launch) {
    (void)packed, (void)launch;
    return absent();
}

void cuda_packed_destroy(tsr_packed *packed) { (void)packed; }

tsr_status cuda_attention(tsr_context *context, const tsr_attention_problem *problem, const tsr_heads_result *o,
                          const tsr_heads_result *lse, const tsr_launch *launch) {
    (void)context, (void)problem, (void)o, (void)lse, (void)launch;
    return absent();
}

tsr_status cuda_attention_backward(tsr_context *context, const tsr_attention_problem *problem,
                                   const tsr_attention_gradients *gradients, const tsr_launch *launch) {
    (void)context, (void)problem, (void)gradients, (void)launch;
    return absent();
}

size_t cuda_attention_workspace(const tsr_context *context, const tsr_attention_problem *problem, bool backward) {
    (void)context, (void)problem, (void)backward;
    return 0;
}

tsr_status cuda_stats_read(tsr_context *context, tsr_stats *stats) {
    (void)context, (void)stats;
    return absent();
}

tsr_status cuda_trim(tsr_context *context) {
    (void)context;
    return absent();
}

void cuda_info_print(tsr_text *text) {
    tsr_text_add(text, "cuda: not in this build (TESSERA_CUDA off, or no nvcc when it was built)\n");
}

size_t tsr_tuning_path(const tsr_context *context, char *path, size_t size) {
    (void)context;
    if (path && size) path[0] = '\0';
    return 0;
}

size_t tsr_tuning_print(const tsr_context *context, char *text, size_t size) {
    return tsr_tuning_path(context, text, size);
}

tsr_status tsr_tuning_set(tsr_context *context, const char *name, double value) {
    (void)context, (void)name, (void)value;
    return absent();
}
