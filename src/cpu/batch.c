/* batch.c: the products of a batch, shared among the members of a team as the plan says. */
#include "cpu/batch.h"

#include <math.h>

#include "cpu/amx.h"
#include "cpu/chunks.h"
#include "cpu/loops.h"
#include "cpu/small.h"
#include "cpu/workspace.h"
#include "rounding.h"

struct job {
    const cpu_plan *plan;
    const tsr_problem *problem;
    float *workspace;
    int64_t row0, col0;
    struct cpu_counters counters; /* of the team, where it shares products */
    _Atomic int64_t next;         /* part of the batch that no member has taken */
};

/* All members on one product after the other. */
static void work_by_blocks(struct job *job, struct cpu_member *self) {
    const cpu_plan *plan = job->plan;
    struct cpu_loops loops = {.self = self, .counters = &job->counters, .row0 = job->row0, .col0 = job->col0};
    for (int i = 0; i < 2; i++) {
        const int64_t copy = min64(i, plan->a_copies - 1);
        loops.block_a[i] = cpu_workspace_a(plan, job->workspace, copy);
        loops.blocks_b[i] = cpu_workspace_b(plan, job->workspace, copy);
    }
    for (int64_t item = 0; item < job->problem->batch; item++) {
        const tsr_problem one = problem_item(job->problem, item);
        cpu_multiply_product(plan, &one, &loops);
    }
}

/* The rows or columns from `first` on that the plan lets a member take at once. */
static problem_range share_at(const cpu_plan *plan, const tsr_problem *p, int64_t first) {
    problem_range range = problem_whole(p);
    if (plan->sharing == CPU_BY_ROWS) {
        range.m0 = first;
        range.m = min64(plan->share, p->m - first);
    } else if (plan->sharing == CPU_BY_COLUMNS) {
        range.n0 = first;
        range.n = min64(plan->share, p->n - first);
    }
    return range;
}

/* The sums of one k block, into the workspace. */
static void sum_block(const struct job *job, struct cpu_loops *loops, int64_t block) {
    const cpu_plan *plan = job->plan;
    problem_range range = problem_whole(job->problem);
    range.k0 = block * plan->kc;
    range.k = min64(plan->kc, range.k - range.k0);
    tsr_problem sum = problem_part(job->problem, &range);
    sum.c.data = cpu_workspace_sums(plan, job->workspace, block);
    sum.c.row_stride = sum.n;
    sum.c.col_stride = 1;
    sum.addend = result_as_addend(&sum.c);
    sum.alpha = 1;
    sum.beta = 0;
    enum { NEAR_FLOATS = 1 << 14 }; /* of A, which a plan prefetches otherwise */
    if (sum.m * sum.k <= NEAR_FLOATS && cpu_is_direct(plan->kernel, &sum))
        cpu_multiply_directly(plan->kernel, &sum, 0, 1);
    else
        cpu_multiply_product(plan, &sum, loops);
}

/* C from the sums of all k blocks, as loops.c would have added them up there. */
static void add_blocks(const struct job *job) {
    const cpu_plan *plan = job->plan;
    const tsr_problem *p = job->problem;
    const bool waits = cpu_scales_last(plan, p), adds = !waits && !is_zero(p->beta);
    const float alpha = waits ? 1 : p->alpha;
    for (int64_t i = 0; i < p->m; i++) {
        float *const c = p->c.data + i * p->c.row_stride;
        const float *const s = adds ? p->addend.data + i * p->addend.row_stride : NULL;
        for (int64_t block = 0; block < plan->sums_copies; block++) {
            const float *const sums = cpu_workspace_sums(plan, job->workspace, block) + i * p->n;
            for (int64_t j = 0; j < p->n; j++) {
                float *const at = c + j * p->c.col_stride;
                const float before = block ? *at : adds ? p->beta * s[j * p->addend.col_stride] : 0;
                if (!block && !adds)
                    *at = alpha * sums[j];
                else
                    *at = alpha == 1 ? sums[j] + before : fmaf(alpha, sums[j], before);
            }
        }
    }
    if (waits) cpu_scale_block(&p->c, p->alpha, &p->addend, p->beta);
}

/* Each member takes products, or rows, columns or terms of one, and computes them on its own. */
static void work_alone(struct job *job, const struct cpu_member *self) {
    const cpu_plan *plan = job->plan;
    const tsr_problem *p = job->problem;
    struct cpu_team team = cpu_team_of_one();
    struct cpu_member alone = {.team = &team};
    struct cpu_block_counters of_block;
    struct cpu_counters counters = {.of_block = &of_block, .blocks = 1};
    cpu_counters_start(&counters);
    struct cpu_loops loops = {.self = &alone, .counters = &counters};
    for (int i = 0; i < 2; i++) {
        loops.block_a[i] = cpu_workspace_a(plan, job->workspace, self->index);
        loops.blocks_b[i] = cpu_workspace_b(plan, job->workspace, self->index);
    }
    if (plan->sharing == CPU_BY_TERMS) {
        for (int64_t block; (block = cpu_take(&job->next)) < plan->sums_copies;) sum_block(job, &loops, block);
        return;
    }
    const bool direct = !plan->share && cpu_is_direct(plan->kernel, p);
    const int64_t length = plan->sharing == CPU_BY_ROWS ? p->m : p->n;
    const int64_t shares = plan->share ? ceil_div(length, plan->share) : 1, all = p->batch * shares;
    const int64_t at_once = max64(1, all / (plan->threads * CPU_PARTS_PER_THREAD));
    const bool is_one_block = plan->sharing != CPU_BY_ROWS && p->m <= plan->mc && p->k <= plan->kc;
    int64_t before = -1; /* the item last worked on */
    for (int64_t part; (part = cpu_take(&job->next) * at_once) < all;) {
        const int64_t end = min64(part + at_once, all);
        if (direct) cpu_multiply_directly(plan->kernel, p, part, end);
        for (; !direct && part < end; part++) {
            const int64_t item = part / shares;
            const tsr_problem whole = problem_item(p, item);
            const problem_range range = share_at(plan, &whole, part % shares * plan->share);
            const tsr_problem one = problem_part(&whole, &range);
            loops.has_a = is_one_block && item == before;
            loops.row0 = job->row0 + range.m0;
            loops.col0 = job->col0 + range.n0;
            before = item;
            cpu_multiply_product(plan, &one, &loops);
        }
    }
}

static void work(struct cpu_member *self, void *argument) {
    struct job *job = argument;
    const uint64_t mode = cpu_rounding_begin();
    if (job->plan->sharing == CPU_BY_BLOCKS)
        work_by_blocks(job, self);
    else
        work_alone(job, self);
    cpu_rounding_end(mode);
}

static void run(struct job *job) {
    const tsr_problem *p = job->problem;
    const double each = job->plan->by_row ? CPU_WORK_OF_READING : 1,
                 all = each * (double)p->m * (double)p->n * (double)p->k * (double)p->batch;
    struct cpu_team team = {.work = work, .argument = job, .is_short = all < SHORT_PRODUCT};
    cpu_counters_start(&job->counters);
    cpu_team_run(&team, job->plan->threads);
    if (job->plan->sharing == CPU_BY_TERMS) add_blocks(job);
}

/* The counters of blocks are in a stack frame of their own, because kernels that compute by row need that much stack
 * themselves. */
static __attribute__((noinline)) void run_with_blocks(struct job *job) {
    struct cpu_block_counters of_block[CPU_MOST_BLOCKS];
    job->counters.of_block = of_block;
    run(job);
}

void cpu_batch_execute(const cpu_plan *plan, const tsr_problem *p, float *workspace, int64_t row0, int64_t col0) {
    if (plan->threads > 1 && plan->sharing != CPU_BY_TERMS && p->batch == 1 && !plan->by_row &&
        cpu_is_direct(plan->kernel, p)) {
        cpu_multiply_shared(plan->kernel, p, plan->threads);
        return;
    }
    struct job job = {.plan = plan,
                      .problem = p,
                      .workspace = workspace,
                      .row0 = row0,
                      .col0 = col0,
                      .counters = {.blocks = plan->blocks}};
    if (plan->by_row || plan->sharing != CPU_BY_BLOCKS)
        run(&job);
    else
        run_with_blocks(&job);
}

/* ---- Entry point ------------------------------------------------------------------------------------------------- */

/* C = beta*S. */
static void scale(const tsr_problem *p) {
    if (p->beta == 1 && p->addend.data == p->c.data) return;
    for (int64_t item = 0; item < p->batch; item++) {
        const tsr_problem one = problem_item(p, item);
        const tsr_result *c = &one.c;
        const tsr_operand *s = &one.addend;
        for (int64_t i = 0; i < c->rows; i++)
            for (int64_t j = 0; j < c->cols; j++)
                c->data[i * c->row_stride + j * c->col_stride] =
                    is_zero(p->beta) ? 0 : p->beta * s->data[i * s->row_stride + j * s->col_stride];
    }
}

static void multiply(const cpu_plan *plan, const tsr_problem *p, float *workspace) {
    if (cpu_needs_chunks(plan, p))
        cpu_multiply_in_chunks(plan, p, workspace);
    else if (plan->components)
        amx_execute(plan, p, workspace, 0, 0);
    else
        cpu_batch_execute(plan, p, workspace, 0, 0);
    if (plan->components)
        atomic_fetch_add_explicit(&plan->context->split_products, (uint_fast64_t)p->batch, memory_order_relaxed);
}

static tsr_status execute(const cpu_plan *plan, const tsr_problem *p, void *workspace) {
    if (!p->k) {
        scale(p);
        return TSR_OK;
    }
    float nothing; /* where a workspace of no bytes lies */
    if (!plan->workspace || workspace) {
        multiply(plan, p, workspace ? workspace : &nothing);
        return TSR_OK;
    }
    float *own = cpu_workspace_take(plan->workspace, plan->max_workspace);
    if (!own) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for a workspace of %zu bytes", plan->workspace);
    multiply(plan, p, own);
    cpu_workspace_return(own);
    return TSR_OK;
}

tsr_status cpu_execute(const cpu_plan *plan, const tsr_problem *problem, void *workspace) {
    const uint64_t mode = cpu_rounding_begin();
    const tsr_problem p = cpu_orient(problem, plan->transposed);
    const tsr_status status = execute(plan, &p, workspace);
    cpu_rounding_end(mode);
    return status;
}
