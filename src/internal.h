/* internal.h: contexts, packed operands and messages, which every file of the library knows. Nothing here is
 * exported. */
#ifndef TESSERA_INTERNAL_H
#define TESSERA_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "problem.h"
#include "tessera.h"

/* Sets this thread's tsr_last_error and returns `status`, so that a failing line reads `return tsr_fail(...)`. */
tsr_status tsr_fail(tsr_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Text that grows into a caller's buffer the way snprintf does: `length` counts what did not fit, too. */
typedef struct tsr_text {
    char *at;
    size_t size, length;
} tsr_text;

void tsr_text_add(tsr_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct cpu_kernel;   /* src/cpu/kernel.h */
struct cuda_context; /* src/cuda/cuda.h */
struct offload;      /* src/offload/resources.h */

struct tsr_context {
    tsr_options options; /* threads and device_index resolved; kernel points at kernel_name or is NULL */
    char kernel_name[64];
    struct cuda_context *cuda;           /* NULL on the CPU */
    const struct cpu_kernel *cpu_kernel; /* NULL on CUDA */
    enum { CPU_AMX_NEVER, CPU_AMX_WHERE_FASTER, CPU_AMX_ALWAYS } cpu_amx;
    struct offload *offload; /* what products in host memory keep on the GPU; NULL before the first */
    pthread_mutex_t offload_lock;
    atomic_uint_fast64_t products, split_products, marked_panels, fallback_tiles;
};

/* The packed form of one operand, in its context's engine. */
struct tsr_packed {
    tsr_context *context;
    tsr_side side;
    tsr_operand source; /* the matrix it was made from */
    void *panels;       /* in the engine's own layout */
    size_t bytes;
    bool borrowed; /* CUDA: panels are memory of the caller's, who frees it */
};

#endif
