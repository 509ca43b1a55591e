/* plan.h: what the files of the CPU engine share of a plan: orientation, blocking, and where things lie in the
 * workspace. The calls that make and print plans are in cpu.h. */
#ifndef TESSERA_CPU_PLAN_H
#define TESSERA_CPU_PLAN_H

#include "cpu/cpu.h"
#include "cpu/kernel.h"

/* Parts that each member's share of the items of a batch, or of a product's columns, is cut into, so that members
 * finish nearly together. */
enum { CPU_PARTS_PER_THREAD = 8 };

/* The most blocks of B that are packed at once: their counters, 64 bytes each, are on the caller's stack. */
enum { CPU_MOST_BLOCKS = 64 };

/* The size of each of the fewest equal blocks, no larger than `most`, that cover `whole` in multiples of `multiple`. */
static inline int64_t even_block(int64_t whole, int64_t most, int64_t multiple) {
    if (whole <= 0) return multiple;
    return round_up(ceil_div(whole, ceil_div(whole, most)), multiple);
}

/* Whether members share a product by its k blocks, which have so many terms at most: C is so small that adding up their
 * sums takes little, and the blocks suffice for even shares, or C has too few tiles to be shared otherwise, or B would
 * be read in short parts of its rows. Then each element of A and B is read by one member, from end to end. */
static inline bool cpu_shares_terms(int64_t most_terms, int64_t m, int64_t n, int64_t k, int threads, bool by_row) {
    enum { MOST_SUMS = 1 << 12, FEW_SUMS = 1 << 10, MOST_FLOATS = 1 << 20 };
    if (threads == 1 || k <= most_terms || m == 1 || n == 1 || m > MOST_SUMS / n) return false;
    const int64_t blocks = ceil_div(k, most_terms), even = ceil_div(blocks, threads) * threads;
    if (blocks > MOST_FLOATS / (m * n)) return false;
    return m * n <= FEW_SUMS || (by_row && m > CPU_FEW_ROWS) ? 3 * even <= 4 * blocks : 5 * even <= 6 * blocks;
}

/* The product as it is computed. Strides over a single row or column, which may be any number, become 1. */
tsr_problem cpu_orient(const tsr_problem *problem, bool transposed);

/* Whether so few rows use a block of B that reading it from memory takes a good part of the time: blocks are narrow
 * then, and the next one is prefetched. */
bool cpu_has_narrow_blocks(const struct cpu_kernel *kernel, const tsr_problem *p);

/* Sets plan->workspace from the numbers of the layout. */
static inline void cpu_plan_size_workspace(cpu_plan *plan) {
    const int64_t floats = plan->a_copies * plan->a_floats + plan->b_copies * plan->b_floats +
                           plan->sums_copies * plan->sums_floats;
    plan->workspace = (size_t)floats * sizeof(float);
}

/* Where one copy of a packed block of A, or of the packed blocks of B, begins. */
static inline float *cpu_workspace_a(const cpu_plan *plan, float *workspace, int64_t copy) {
    return workspace + copy * plan->a_floats;
}
static inline float *cpu_workspace_b(const cpu_plan *plan, float *workspace, int64_t copy) {
    return workspace + plan->a_copies * plan->a_floats + copy * plan->b_floats;
}

/* Where the sums of a k block begin, row after row. */
static inline float *cpu_workspace_sums(const cpu_plan *plan, float *workspace, int64_t block) {
    return cpu_workspace_b(plan, workspace, plan->b_copies) + block * plan->sums_floats;
}

/* The plan for some rows and columns of a product, all of k, in at most `limit` bytes: the bits are those of the whole.
 * False where there is no room. */
bool cpu_plan_part(cpu_plan *part, const cpu_plan *whole, const tsr_problem *p, size_t limit);

/* The lines of a plan's text that the ieee kernels and AMX share: macro block, what is packed, and the estimate. */
void cpu_plan_print_blocks(const cpu_plan *plan, tsr_text *text);

#endif
