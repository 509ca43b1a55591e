/* cpu.h: the CPU engine as api.c and plan.c see it.
 *
 * A call needs at most 32 KiB of the caller's stack, for the sums of rows and transposed small operands; with the
 * avx512 kernel and on AMX 48 KiB. Less would cost speed. tests/surroundings.c runs products with no more. */
#ifndef TESSERA_CPU_H
#define TESSERA_CPU_H

#include "internal.h"

struct cpu_kernel; /* cpu/kernel.h */

/* How the members of a team share the products of a batch. */
enum cpu_sharing {
    CPU_BY_ITEMS,   /* each takes whole products, or */
    CPU_BY_ROWS,    /* some rows of one, */
    CPU_BY_COLUMNS, /* or some columns, as products of their own, without barriers */
    CPU_BY_TERMS,   /* each takes k blocks of one, whose sums are added up in order at the end */
    CPU_BY_BLOCKS,  /* all work on each product: they pack a block of B each, wait at a barrier, and multiply */
};

/* How one product is computed: which microkernel, how the loops are blocked, how threads share the work. Pure data. */
typedef struct cpu_plan {
    const struct cpu_kernel *kernel;
    bool transposed;       /* C^T = B^T A^T is computed, so that rows of tiles are contiguous in C */
    bool by_row;           /* C is one row, or a few, computed by the kernel's multiply_row or multiply_few */
    bool by_dots;          /* by_row, and by its multiply_dots */
    bool packs_a, packs_b; /* false: kernels read the operand, or its packed form, in place */
    int64_t mc, nc, kc;    /* the macro block: rows of a block of A, columns of a block of B, and the k block */
    int64_t blocks;        /* blocks of B that are packed at once */
    int64_t rows_at_once;  /* rows of a macro block that a member multiplies at a time */
    int threads;           /* members of the team, at most context->options.threads */
    enum cpu_sharing sharing;
    int64_t share; /* rows or columns that a member takes at a time; 0: whole products */

    /* The workspace: a_copies packed blocks of A, then b_copies times the packed blocks of B, then where members share
     * terms the sums of each k block; in floats. */
    int64_t a_floats, b_floats, sums_floats, a_copies, b_copies, sums_copies;
    size_t workspace;     /* bytes of it */
    size_t max_workspace; /* the context's limit; 0: none */
    double seconds;       /* estimated: cost.h */

    /* On AMX: `kernel` computes what the bf16 components cannot carry. */
    int components;              /* of each float; 0: the product is not one for AMX */
    double amx_gain;             /* estimated speed, relative to `kernel`; 0: the context does not use AMX */
    struct tsr_context *context; /* whose counters are raised */
} cpu_plan;

/* What threads = 0 means: the cores that this process may run on, or fewer where its container's share of time is
 * less. */
int cpu_default_threads(void);

/* In the default floating-point mode (rounding.h), so that every choice is the same whatever the caller's. */
tsr_status cpu_plan_make(cpu_plan *plan, tsr_context *context, const tsr_problem *problem);
void cpu_plan_print(const cpu_plan *plan, const tsr_problem *problem, tsr_text *text);

/* workspace: plan->workspace bytes, 64-byte aligned, or NULL to have the engine take its own. */
tsr_status cpu_execute(const cpu_plan *plan, const tsr_problem *problem, void *workspace);

/* Computes C = alpha*A*B + beta*C without a plan and returns true, if the product is small and its matrices are plainly
 * valid. Otherwise does nothing and returns false: such products are for the calls above. */
bool cpu_multiply_small(const tsr_context *context, float alpha, const tsr_operand *a, const tsr_operand *b, float beta,
                        const tsr_result *c);

/* The same in two steps, for a plan: whether the product is small, by its shapes and strides; and one whose shapes are,
 * at these addresses. */
bool cpu_is_small(const tsr_context *context, const tsr_operand *a, const tsr_operand *b, const tsr_result *c);
bool cpu_execute_small(const tsr_context *context, const tsr_problem *problem, float alpha, const float *a,
                       const float *b, float beta, float *c);

/* Sets the context's cpu_kernel and cpu_amx by options->kernel or, where that names none, TESSERA_CPU_KERNEL in the
 * environment; else the best that this machine can run, and AMX where it is faster and options->precision allows it. */
tsr_status cpu_kernels_choose(tsr_context *context, const tsr_options *options);
void cpu_info_print(tsr_text *text);

/* Bytes of the packed form of an operand, a multiple of 64; 0 where they exceed the address space. */
size_t cpu_pack_size(const tsr_context *context, tsr_side side, int64_t rows, int64_t cols);

/* Fills packed->panels, of that size and 64-byte aligned, with factor * the operand, which factor = 0 leaves unread. */
void cpu_pack(const tsr_packed *packed, float factor);

/* The floats at the head of packed->panels. cpu_packed_lanes copies some lanes out of them, from term `first` of k on:
 * at `to` the lanes of one term lie together, and terms `step` floats apart. */
int64_t cpu_packed_floats(const tsr_packed *packed);
void cpu_packed_lanes(float *to, const tsr_packed *packed, int64_t lane, int64_t lanes, int64_t first, int64_t terms,
                      int64_t step);

/* Frees the memory kept from one call to the next. */
void cpu_trim(void);

#endif
