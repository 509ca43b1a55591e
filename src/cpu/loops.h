/* loops.h: the loops around the microkernel, for one product. */
#ifndef TESSERA_CPU_LOOPS_H
#define TESSERA_CPU_LOOPS_H

#include "cpu/plan.h"
#include "cpu/team.h"

/* What is left of one block of B in the current stage: panels to pack, and rows to multiply with it. One cache line
 * each, because other members rarely look at it. */
struct cpu_block_counters {
    _Alignas(64) _Atomic int64_t next_panel;
    _Atomic int64_t next_rows;
};

/* What the members of a team take their work from. */
struct cpu_counters {
    struct cpu_block_counters *of_block; /* NULL where C is computed by row */
    int64_t blocks;
    _Atomic int64_t next_a;    /* rows of A to pack */
    _Atomic int64_t next_part; /* columns to compute by row */
};

void cpu_counters_start(struct cpu_counters *counters);

/* One member in the loops. */
struct cpu_loops {
    struct cpu_member *self;
    struct cpu_counters *counters;
    float *block_a[2], *blocks_b[2]; /* packed blocks, used in turn; the same where one is enough */
    bool has_a;                      /* A is one block, and packed already: for other columns of this product */
    int64_t row0, col0; /* of the whole product that the problem is a part of: where packed operands are read from */
};

/* C = alpha*A*B + beta*S for a single product, with the other members of the team. If k has several blocks and |alpha|
 * is above 1, S must not be C. */
void cpu_multiply_product(const cpu_plan *plan, const tsr_problem *p, struct cpu_loops *loops);

/* C = alpha*C + beta*S for a block of C, with one rounding. */
void cpu_scale_block(const tsr_result *c, float alpha, const tsr_operand *addend, float beta);

/* Whether alpha has to wait until all of k is summed. Where |alpha| <= 1 the sum of each k block is scaled as it is
 * added to C, which cannot overflow unless alpha*A*B or beta*S does. A larger alpha, or one that is not finite, could
 * make Inf or NaN of a part of a sum whose whole is small. */
bool cpu_scales_last(const cpu_plan *plan, const tsr_problem *p);

#endif
