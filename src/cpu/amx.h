/* amx.h: float32 products from bf16 tiles. amx_plan.c has the plan, amx_loops.c the loops, amx_pack.c the packing,
 * amx.c the tiles and amx_packed.c operands packed by the caller.
 *
 * Each float x becomes three bf16 components, x = h + m + l exactly (docs/internals/numerics.md says when not quite):
 *
 *     h = bf16(x)        m = bf16(x - h)        l = x - h - m
 *
 * A panel has AMX_LANES rows of A, or columns of B, over some terms of k in steps of AMX_STEP:
 *
 *     struct amx_marks                            one cache line
 *     h: for each step  2 tiles of 16 lanes       1024 bytes each
 *     m: the same
 *     l: the same; tf32 does without
 *
 * A tile of A has a lane in each of its 16 rows, a tile of B has one in each of its 16 columns of pairs. Places 2i and
 * 2i+1, which an instruction multiplies one after the other, hold the terms i and 16+i of the step: so two vectors of
 * 16 floats make one row of a tile without a shuffle, in A and in B. Missing lanes and terms are zeros.
 */
#ifndef TESSERA_CPU_AMX_H
#define TESSERA_CPU_AMX_H

#include "cpu/cpu.h"

#if defined __x86_64__ || defined TESSERA_AMX_MODEL
#define CPU_HAS_AMX
#endif

enum { AMX_LANES = 32, AMX_STEP = 32, AMX_STEP_BYTES = 2048 /* of one component */ };

/* The most terms of k between two additions to C. */
enum { AMX_KC = 512 };

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

/* The largest and least magnitude in a panel: 0 and infinity where it holds zeros alone. */
struct amx_marks {
    float largest, least; /* least but for zeros */
    float unused[14];
};

static inline int64_t amx_steps(int64_t terms) { return (terms + AMX_STEP - 1) / AMX_STEP; }

static inline int64_t amx_panel_floats(int64_t terms, int components) {
    return ((int64_t)sizeof(struct amx_marks) + amx_steps(terms) * components * AMX_STEP_BYTES) /
           (int64_t)sizeof(float);
}

/* The m for which a batch-invariant context decides whether AMX is faster, whatever m is. */
enum { AMX_INVARIANT_M = 512 };

/* The most threads of a team: their places are on the caller's stack. */
enum { AMX_MOST_THREADS = 256 };

/* How many components a context's operands are split into. */
static inline int amx_components(const tsr_context *context) { return context->options.precision == TSR_TF32 ? 2 : 3; }

/* As cpu_pack_panels (pack.h) does, into panels of `components` components. left: of A. */
void amx_pack_panels(float *panels, const float *source, int64_t lanes, int64_t terms, int64_t lane_stride,
                     int64_t term_stride, bool left, int components);

/* The same for one panel, from the packed floats of an operand: lanes from `lane` and terms from `first` on. */
void amx_pack_packed(float *panel, const tsr_packed *packed, int64_t lane, int64_t lanes, int64_t first, int64_t terms,
                     int components);

/* Sixteen rows of sixteen floats, `stride` apart, into the transposed block. */
void amx_transpose(float *block, const float *from, int64_t stride);

/* ---- Multiplying ------------------------------------------------------------------------------------------------- */

/* The floats that panels were made of: element (lane, p) is data[lane*lane_stride + p*term_stride]. Where the matrix
 * is gone (tsr_pack_at) they are taken from `packed`, counted from its lane and term. */
struct amx_source {
    const float *data;
    int64_t lane_stride, term_stride;
    const tsr_packed *packed;
    int64_t lane, term;
};

/* A block of C, C = alpha*A*B + beta*S over one k block. */
struct amx_block {
    int64_t rows, columns, terms;
    int components;
    const float *a, *b;  /* panels */
    const float *next_b; /* the panel of B that is multiplied after these, to be prefetched */
    struct amx_source a_source, b_source;
    const float *s; /* addend; not read with beta = 0 */
    int64_t s_row, s_col;
    float *c;
    int64_t c_row, c_col;
    float alpha, beta;
    const struct cpu_kernel *ieee; /* for what AMX cannot carry */
    int64_t recomputed;            /* tiles that were recomputed for that reason: amx_multiply adds to it */
};

/* Calls work(argument), within which amx_multiply may be called, and restores the thread's tiles afterwards. A thread
 * that sleeps meanwhile keeps its tiles: the system saves them. */
void amx_with_tiles(void (*work)(void *argument), void *argument);

void amx_multiply(struct amx_block *block);

/* Whether a panel holds an element that no split carries. */
bool amx_is_marked(const struct amx_marks *marks);

/* ---- Plan and loops: the calls of cpu.h, for products on AMX ----------------------------------------------------- */

#ifdef CPU_HAS_AMX

/* Whether AMX is estimated to be faster (cost.h): by shape and precision alone, so that bits depend on nothing else; in
 * a batch-invariant context not on m either. */
bool amx_is_faster(const tsr_context *context, int64_t m, int64_t n, int64_t k);

static inline bool amx_takes(const tsr_context *context, int64_t m, int64_t n, int64_t k) {
    if (context->cpu_amx == CPU_AMX_NEVER || !m || !n || !k) return false;
    if (context->options.batch_invariant) m = AMX_INVARIANT_M;
    return context->cpu_amx == CPU_AMX_ALWAYS || amx_is_faster(context, m, n, k);
}

/* The plan of such a product; false where options.max_workspace has no room for it. */
bool amx_plan_make(cpu_plan *plan, tsr_context *context, const tsr_problem *problem);
void amx_plan_print(const cpu_plan *plan, const tsr_problem *problem, tsr_text *text);

/* As cpu_plan_part (plan.h). */
bool amx_plan_part(cpu_plan *part, const cpu_plan *whole, const tsr_problem *p, size_t limit);

/* Computes all products of a batch; row0 and col0 as in cpu_batch_execute (batch.h). */
void amx_execute(const cpu_plan *plan, const tsr_problem *problem, float *workspace, int64_t row0, int64_t col0);

/* The estimated speed relative to the ieee kernels; 0 where the context does not use AMX. */
double amx_gain(const tsr_context *context, const tsr_problem *problem);

/* The components of a packed operand, behind its floats: how many floats they take (0: its context, or its shape, has
 * no use for them; -1: too many), making them, and where they are for a product that can use them, else NULL. */
int64_t amx_packed_floats(const tsr_context *context, int64_t lanes, int64_t k);
void amx_pack(float *panels, const tsr_packed *packed);
const float *amx_packed_form(const tsr_operand *operand, int64_t batch);

#else

static inline bool amx_takes(const tsr_context *context, int64_t m, int64_t n, int64_t k) {
    (void)context, (void)m, (void)n, (void)k;
    return false;
}
static inline bool amx_plan_make(cpu_plan *plan, tsr_context *context, const tsr_problem *problem) {
    (void)plan, (void)context, (void)problem;
    return false;
}
static inline double amx_gain(const tsr_context *context, const tsr_problem *problem) {
    (void)context, (void)problem;
    return 0;
}
static inline void amx_plan_print(const cpu_plan *plan, const tsr_problem *problem, tsr_text *text) {
    (void)plan, (void)problem, (void)text;
}
static inline bool amx_plan_part(cpu_plan *part, const cpu_plan *whole, const tsr_problem *p, size_t limit) {
    (void)part, (void)whole, (void)p, (void)limit;
    return false;
}
static inline void amx_execute(const cpu_plan *plan, const tsr_problem *problem, float *workspace, int64_t row0,
                               int64_t col0) {
    (void)plan, (void)problem, (void)workspace, (void)row0, (void)col0;
}
static inline int64_t amx_packed_floats(const tsr_context *context, int64_t lanes, int64_t k) {
    (void)context, (void)lanes, (void)k;
    return 0;
}
static inline void amx_pack(float *panels, const tsr_packed *packed) { (void)panels, (void)packed; }

#endif

#endif
