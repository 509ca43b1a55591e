/* cpu.h: the CPU engine as api.c and plan.c see it. */
#ifndef TESSERA_CPU_H
#define TESSERA_CPU_H

#include "internal.h"

struct cpu_kernel; /* cpu/kernel.h */

/* How one product is computed: which microkernel, how the loops are blocked, how threads share the work. Pure data. */
typedef struct cpu_plan {
    const struct cpu_kernel *kernel;
    bool swapped;          /* C^T = B^T A^T is computed, so that rows of tiles are contiguous in C */
    bool by_row;           /* C is one row, or a few, made by the kernel's multiply_row or multiply_few */
    bool packs_a, packs_b; /* false: kernels read the operand, or its packed form, where it lies */
    int64_t mc, nc, kc;    /* cache blocks: rows of a panel of A, columns of a block of B, depth of both */
    int64_t blocks, piece; /* blocks of B that are packed at once; rows of C that a thread multiplies at a time */
    int threads;           /* how many work, at most context->options.threads */
    bool shares_products;  /* true: all threads on each product; false: each takes whole products of the batch, or */
    int64_t slice;         /* where it is not 0, so many columns of one, or */
    bool slices_rows;      /* rows */
    size_t workspace;      /* bytes for packed panels */
    double seconds;        /* estimated */

    /* On AMX: `kernel` makes what the bf16 pieces cannot carry. */
    int pieces;                  /* of each float; 0: the product is not one for AMX */
    double amx_gain;             /* estimated speed, in that of `kernel`; 0: AMX is not to be used */
    struct tsr_context *context; /* whose counters are raised */
} cpu_plan;

/* threads = 0 resolved to the cores this process may run on. */
int cpu_default_threads(void);

tsr_status cpu_plan_make(cpu_plan *plan, tsr_context *context, const tsr_problem *problem);
void cpu_plan_print(const cpu_plan *plan, const tsr_problem *problem, tsr_text *text);

/* workspace: plan->workspace bytes, 64-byte aligned, or NULL to have the engine take its own. */
tsr_status cpu_execute(const cpu_plan *plan, const tsr_problem *problem, void *workspace);

/* Computes C = alpha*A*B + beta*C at once where it is small and its matrices are plainly in order, and returns true. What
 * is not, or not plainly, is left to the calls above: nothing has been done, and false is returned. */
bool cpu_multiply_small(const tsr_context *context, float alpha, const tsr_operand *a, const tsr_operand *b, float beta,
                        const tsr_result *c);

/* The same in two steps, for a plan: whether the product is small, by its shapes and strides; and one whose shapes are,
 * at these addresses. */
bool cpu_is_small(const tsr_context *context, const tsr_operand *a, const tsr_operand *b, const tsr_result *c);
bool cpu_execute_small(const tsr_context *context, const tsr_problem *problem, float alpha, const float *a,
                       const float *b, float beta, float *c);

/* Sets the context's cpu_kernel and cpu_amx by options->kernel or, where that names none, TESSERA_CPU_KERNEL in the
 * environment; else the best that this machine can run, and AMX where it is quicker and options->precision allows it. */
tsr_status cpu_kernels_choose(tsr_context *context, const tsr_options *options);
void cpu_info_print(tsr_text *text);

/* Bytes of the packed form of an operand, a multiple of 64; 0 where they exceed the address space. */
size_t cpu_pack_size(const tsr_context *context, tsr_side side, int64_t rows, int64_t cols);

/* Fills packed->panels, of that size and 64-byte aligned, with factor * the operand, which factor = 0 leaves unread. */
void cpu_pack(const tsr_packed *packed, float factor);

/* The floats at the head of packed->panels; and copying some of its lanes out of these, from a depth on, `step` apart. */
int64_t cpu_packed_floats(const tsr_packed *packed);
void cpu_packed_lanes(float *to, const tsr_packed *packed, int64_t lane, int64_t lanes, int64_t first, int64_t depth,
                      int64_t step);

/* Frees the memory kept from one call to the next. */
void cpu_trim(void);

#endif
