/* internal.h: what api.c, plan.c and the engines share. Nothing here is exported. */
#ifndef TESSERA_INTERNAL_H
#define TESSERA_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "tessera.h"

/* Sets this thread's tsr_last_error and returns `status`, so that a failing line reads `return tsr_fail(...)`. */
tsr_status tsr_fail(tsr_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Text that grows into a caller's buffer the way snprintf does: `length` counts what did not fit, too. */
typedef struct tsr_text {
    char *at;
    size_t size, length;
} tsr_text;

void tsr_text_add(tsr_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A validated product, C = alpha*A*B + beta*S. k = 0 stands for every product without terms (alpha = 0 too): C = beta*S,
 * A and B unread. The addend S is C itself where their data are the same; with beta = 0 it is all zero. */
typedef struct tsr_problem {
    int64_t m, n, k, batch;
    float alpha, beta;
    tsr_operand a, b; /* m x k, k x n */
    tsr_result c;     /* m x n */
    tsr_operand addend;
} tsr_problem;

struct cpu_kernel;   /* src/cpu/kernel.h */
struct cuda_context; /* src/cuda/cuda.h */

struct tsr_context {
    tsr_options options; /* threads and device_index resolved; kernel points at kernel_name or is NULL */
    char kernel_name[64];
    struct cuda_context *cuda;           /* NULL on the CPU */
    const struct cpu_kernel *cpu_kernel; /* NULL on CUDA */
    enum { CPU_AMX_NEVER, CPU_AMX_WHERE_QUICKER, CPU_AMX_ALWAYS } cpu_amx;
    atomic_uint_fast64_t products, split_products, marked_panels, fallback_tiles;
};

/* The packed form of one operand; which engine's member is set follows from context->options.device. */
struct tsr_packed {
    tsr_context *context;
    tsr_side side;
    tsr_operand source; /* the matrix it was made from */
    void *panels;       /* the engine's own layout; see cpu/pack.c and cuda/pack.cu */
    size_t bytes;
    bool borrowed; /* CUDA: panels are memory of the caller's, who frees it */
};

/* Packed by tsr_pack_at: the panels are all there is, and the strides those of a matrix that need not be there any more. */
static inline bool tsr_is_only_packed(const tsr_operand *o) {
    return o->packed && o->packed->source.data == o->packed->panels;
}

#endif
