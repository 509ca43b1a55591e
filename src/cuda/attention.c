/* attention.c: attention on CUDA. */
#include "attention.h"

static tsr_status missing(void) { return tsr_fail(TSR_UNSUPPORTED, "attention is computed on the CPU only"); }

tsr_status cuda_attention(tsr_context *context, const tsr_attention_problem *problem, const tsr_heads_result *o,
                          const tsr_heads_result *lse, const tsr_launch *launch) {
    (void)context, (void)problem, (void)o, (void)lse, (void)launch;
    return missing();
}

tsr_status cuda_attention_backward(tsr_context *context, const tsr_attention_problem *problem,
                                   const tsr_attention_gradients *gradients, const tsr_launch *launch) {
    (void)context, (void)problem, (void)gradients, (void)launch;
    return missing();
}

size_t cuda_attention_workspace(const tsr_context *context, const tsr_attention_problem *problem, bool backward) {
    (void)context, (void)problem, (void)backward;
    return 0;
}
