/* chunks.c: C = alpha*A*B + beta*C where alpha must not be applied before all of k is summed.
 *
 * C holds the addend until the end, so that the sums need other memory. A chunk of C is computed there as a product of
 * its own, whose addend is that chunk, and is then copied to C. The memory is half of the plan's workspace, with the
 * plan's blocks made smaller; where these do not fit, it is a buffer on the stack, as large as a tile. So no more
 * workspace is taken than the plan says, which does not know alpha.
 *
 * A chunk is cut from rows and columns, never from k, and its sums have the order of the whole: the bits are the same
 * for every size of the workspace.
 */
#include "cpu/chunks.h"

#include "cpu/amx.h"
#include "cpu/batch.h"
#include "cpu/loops.h"

/* Floats of the buffer on the stack: one tile. */
static int64_t stack_floats(const cpu_plan *plan) { return plan->components ? AMX_LANES * AMX_LANES : CPU_TILE_FLOATS; }

bool cpu_needs_chunks(const cpu_plan *plan, const tsr_problem *p) {
    return cpu_scales_last(plan, p) && !is_zero(p->beta) && p->addend.data == p->c.data;
}

/* Rows and columns of a chunk of at most `floats` elements: whole tiles, except where C ends. All rows, if that leaves
 * at least a few panels of columns, because B is then packed once. */
static void size_chunk(const cpu_plan *plan, const tsr_problem *p, int64_t floats, int64_t *rows, int64_t *columns) {
    enum { PANELS = 4 };
    const int64_t mr = plan->components ? AMX_LANES : plan->by_row ? p->m : plan->kernel->mr;
    const int64_t nr = plan->components ? AMX_LANES : plan->by_row ? CPU_LINE : plan->kernel->nr;
    const int64_t most = floats / min64(p->m, mr), wanted = max64(floats / p->m, PANELS * nr);
    *columns = min64(p->n, max64(nr, min64(most, wanted) / nr * nr));
    *rows = min64(p->m, max64(mr, floats / *columns / mr * mr));
}

/* One chunk into `sums`, row-major, and from there to C. */
static void multiply_chunk(const cpu_plan *whole, const cpu_plan *plan, const tsr_problem *p,
                           const problem_range *range, float *sums, float *workspace) {
    const tsr_problem chunk = problem_part(p, range);
    tsr_problem apart = chunk;
    apart.c.data = sums;
    apart.c.row_stride = chunk.n;
    apart.c.col_stride = 1;
    if (whole->components)
        amx_execute(plan, &apart, workspace, range->m0, range->n0);
    else
        cpu_batch_execute(plan, &apart, workspace, range->m0, range->n0);
    for (int64_t i = 0; i < chunk.m; i++)
        for (int64_t j = 0; j < chunk.n; j++)
            chunk.c.data[i * chunk.c.row_stride + j * chunk.c.col_stride] = sums[i * chunk.n + j];
}

/* Each chunk of each product in turn, with a plan for its size: those at the end of a row or a column are smaller,
 * which the plan's blocks allow for. */
static void multiply_chunks(const cpu_plan *whole, const cpu_plan *plan, const tsr_problem *p, int64_t rows,
                            int64_t columns, float *sums, float *workspace) {
    for (int64_t item = 0; item < p->batch; item++) {
        const tsr_problem one = problem_item(p, item);
        for (int64_t i = 0; i < p->m; i += rows)
            for (int64_t j = 0; j < p->n; j += columns) {
                problem_range range = problem_whole(p);
                range.batch = 1;
                range.m0 = i, range.m = min64(rows, p->m - i);
                range.n0 = j, range.n = min64(columns, p->n - j);
                multiply_chunk(whole, plan, &one, &range, sums, workspace);
            }
    }
}

/* A plan for chunks of `floats` elements, in `bytes` bytes. */
static bool plan_chunks(cpu_plan *plan, const cpu_plan *whole, const tsr_problem *p, int64_t floats, size_t bytes,
                        int64_t *rows, int64_t *columns) {
    size_chunk(whole, p, floats, rows, columns);
    problem_range range = problem_whole(p);
    range.m = *rows, range.n = *columns, range.batch = 1;
    const tsr_problem chunk = problem_part(p, &range);
    return cpu_plan_part(plan, whole, &chunk, bytes);
}

static __attribute__((noinline)) void multiply_on_stack(const cpu_plan *whole, const tsr_problem *p, float *workspace) {
    const int64_t floats = stack_floats(whole);
    float sums[floats];
    cpu_plan plan;
    int64_t rows, columns;
    plan_chunks(&plan, whole, p, floats, whole->workspace, &rows, &columns);
    multiply_chunks(whole, &plan, p, rows, columns, sums, workspace);
}

void cpu_multiply_in_chunks(const cpu_plan *whole, const tsr_problem *p, float *workspace) {
    const int64_t floats = (int64_t)(whole->workspace / sizeof(float)) / 2 / CPU_LINE * CPU_LINE;
    const size_t left = whole->workspace - (size_t)floats * sizeof(float);
    cpu_plan plan;
    int64_t rows, columns;
    if (floats > stack_floats(whole) && plan_chunks(&plan, whole, p, floats, left, &rows, &columns))
        multiply_chunks(whole, &plan, p, rows, columns, workspace, workspace + floats);
    else
        multiply_on_stack(whole, p, workspace);
}
