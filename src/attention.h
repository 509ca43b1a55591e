/* attention.h: attention as the engines see it. attention.c has checked every argument; nothing is empty but, maybe,
 * the keys or, in the backward pass, the queries: gradients are zeros then. */
#ifndef TESSERA_ATTENTION_H
#define TESSERA_ATTENTION_H

#include "internal.h"

/* src/cpu/attention.c. workspace: cpu_attention_workspace bytes, 64-byte aligned, or NULL to have the engine take its
 * own. */
tsr_status cpu_attention(tsr_context *context, const tsr_attention_problem *problem, const tsr_heads_result *o,
                         const tsr_heads_result *lse, void *workspace);
tsr_status cpu_attention_backward(tsr_context *context, const tsr_attention_problem *problem,
                                  const tsr_attention_gradients *gradients, void *workspace);
size_t cpu_attention_workspace(const tsr_context *context, const tsr_attention_problem *problem, bool backward);

/* src/cuda/attention.c; src/cuda/absent.c in a build without CUDA. lse may be NULL, as in the public calls. */
tsr_status cuda_attention(tsr_context *context, const tsr_attention_problem *problem, const tsr_heads_result *o,
                          const tsr_heads_result *lse, const tsr_launch *launch);
tsr_status cuda_attention_backward(tsr_context *context, const tsr_attention_problem *problem,
                                   const tsr_attention_gradients *gradients, const tsr_launch *launch);
size_t cuda_attention_workspace(const tsr_context *context, const tsr_attention_problem *problem, bool backward);

#endif
