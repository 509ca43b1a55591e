/* amx.h: float32 products from bf16 tiles. amx_gemm.c has the plan and the loops, amx_pack.c the packing, amx.c the tiles.
 *
 * Each float x becomes three bf16 pieces, x = h + m + l exactly (docs/internals/numerics.md says when not quite):
 *
 *     h = bf16(x)        m = bf16(x - h)        l = x - h - m
 *
 * A panel has AMX_LANES rows of A, or columns of B, over some depth of k in steps of AMX_STEP:
 *
 *     struct amx_marks                            one line of the cache
 *     h: for each step  2 tiles of 16 lanes       1024 bytes each
 *     m: the same
 *     l: the same; tf32 does without
 *
 * A tile of A has a lane in each of its 16 rows, a tile of B has one in each of its 16 columns of pairs. In the places 2i
 * and 2i+1, which an instruction multiplies one after the other, stand the terms i and 16+i of the step: so two vectors of 16
 * floats make one row of a tile without their elements changing places, in A and in B. Missing lanes and terms are zeros.
 */
#ifndef TESSERA_CPU_AMX_H
#define TESSERA_CPU_AMX_H

#include "cpu.h"

#if defined __x86_64__ || defined TESSERA_AMX_MODEL
#define CPU_HAS_AMX
#endif

enum { AMX_LANES = 32, AMX_STEP = 32, AMX_STEP_BYTES = 2048 /* of one piece */ };

/* The most of k between two additions to C. */
enum { AMX_KC = 512 };

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

/* The ends of what a panel holds, as magnitudes: 0 and infinity where it holds zeros alone. */
struct amx_marks {
    float largest, least; /* least but for zeros */
    float unused[14];
};

static inline int64_t amx_steps(int64_t depth) { return (depth + AMX_STEP - 1) / AMX_STEP; }

static inline int64_t amx_panel_floats(int64_t depth, int pieces) {
    return ((int64_t)sizeof(struct amx_marks) + amx_steps(depth) * pieces * AMX_STEP_BYTES) / (int64_t)sizeof(float);
}

/* As cpu_pack_panels (pack.h) does, into panels of so many pieces. left: of A. */
void amx_pack_panels(float *panels, const float *source, int64_t lanes, int64_t depth, int64_t lane_stride,
                     int64_t depth_stride, bool left, int pieces);

/* Sixteen rows of sixteen floats, `stride` apart, into the transposed block. */
void amx_transpose(float *block, const float *from, int64_t stride);

/* ---- Multiplying ------------------------------------------------------------------------------------------------- */

/* The floats that panels were made of: element (lane, p) is data[lane*lane_stride + p*depth_stride]. Where the matrix is
 * gone (tsr_pack_at) they are taken from `packed`, counted from its lane and depth. */
struct amx_source {
    const float *data;
    int64_t lane_stride, depth_stride;
    const tsr_packed *packed;
    int64_t lane, depth;
};

/* A block of C, C = alpha*A*B + beta*S over one depth of k. */
struct amx_block {
    int64_t rows, columns, depth;
    int pieces;
    const float *a, *b;  /* panels */
    const float *next_b; /* the panel of B that is multiplied after these, for memory to bring near */
    struct amx_source a_source, b_source;
    const float *s; /* with beta = 0 not read */
    int64_t s_row, s_col;
    float *c;
    int64_t c_row, c_col;
    float alpha, beta;
    const struct cpu_kernel *ieee; /* for what AMX cannot carry */
    int64_t recomputed;            /* tiles that were that: amx_multiply adds to it */
};

/* Calls work(argument) with the thread's tiles taken, and gives them back as they were. amx_multiply may be called within. A
 * thread that sleeps meanwhile keeps its tiles: the system saves them. */
void amx_with_tiles(void (*work)(void *argument), void *argument);

void amx_multiply(struct amx_block *block);

/* Whether a panel holds what no split carries. */
bool amx_is_marked(const struct amx_marks *marks);

/* ---- Plan and loops: the calls of cpu.h, for products on AMX ----------------------------------------------------- */

#ifdef CPU_HAS_AMX

/* What a call costs, in multiply-adds of the ieee kernels: smaller products are never quicker. */
#define AMX_CALL_COST 2e5

/* Whether a product is one for AMX: by its shape and the context alone, so that its bits depend on nothing else. */
bool amx_is_quicker(const tsr_context *context, int64_t m, int64_t n, int64_t k);

static inline bool amx_takes(const tsr_context *context, int64_t m, int64_t n, int64_t k) {
    if (context->cpu_amx == CPU_AMX_NEVER || !m || !n || !k) return false;
    return context->cpu_amx == CPU_AMX_ALWAYS ||
           ((double)m * (double)n * (double)k > AMX_CALL_COST && amx_is_quicker(context, m, n, k));
}

/* The plan of such a product; false where options.max_workspace has no room for it. */
bool amx_plan_make(cpu_plan *plan, tsr_context *context, const tsr_problem *problem);
void amx_plan_print(const cpu_plan *plan, const tsr_problem *problem, tsr_text *text);
void amx_execute(const cpu_plan *plan, const tsr_problem *problem, float *workspace);

/* Its speed by the same estimate, in that of the ieee kernels; 0 where the context does not use AMX. */
double amx_gain(const tsr_context *context, const tsr_problem *problem);

/* What a packed operand has of pieces, behind its floats: how many floats these take (0: its context, or its shape, has no
 * use for them; -1: too many), and making them. */
int64_t amx_packed_floats(const tsr_context *context, int64_t lanes, int64_t k);
void amx_pack(float *panels, const tsr_packed *packed);

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
static inline void amx_execute(const cpu_plan *plan, const tsr_problem *problem, float *workspace) {
    (void)plan, (void)problem, (void)workspace;
}
static inline int64_t amx_packed_floats(const tsr_context *context, int64_t lanes, int64_t k) {
    (void)context, (void)lanes, (void)k;
    return 0;
}
static inline void amx_pack(float *panels, const tsr_packed *packed) { (void)panels, (void)packed; }

#endif

#endif
