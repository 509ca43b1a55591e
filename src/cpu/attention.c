/* attention.c: attention on the CPU, in blocks of queries x blocks of keys; memory is linear in their numbers.
 *
 * A task is a block of queries of one head (O, lse, grad_q) or a block of keys of one key-value head (grad_k, grad_v,
 * in attention_backward.c). One member computes it, in a fixed order, so the bits do not depend on the number of
 * threads. O is summed without being divided: whenever a query's largest score rises, its sums so far shrink. */
#include <float.h>
#include <math.h>

#include "cpu/attention_block.h"
#include "cpu/cpu.h"
#include "cpu/plan.h"
#include "cpu/workspace.h"
#include "rounding.h"

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

/* The largest blocks: beside 128 rows of 256 elements each, of the operands and of the sums, a block of scores stays in
 * the second-level cache. The smallest: dropout's groups. */
enum { LARGEST_BLOCK = 128, SMALLEST_BLOCK = 16 };

static void lay_out(struct attention_plan *plan, const tsr_attention_problem *p, bool backward) {
    const int64_t scores = plan->queries * plan->keys, rows = max64(plan->queries, plan->keys) * p->dim;
    const int64_t floats[BUFFERS] = {
        [BUFFER_Q] = plan->queries * p->dim,
        [BUFFER_G] = backward ? plan->queries * p->dim : 0,
        [BUFFER_S] = scores,
        [BUFFER_D] = backward ? scores : 0,
        [BUFFER_M] = scores,
        [BUFFER_ROWS0] = rows,
        [BUFFER_ROWS1] = backward ? rows : 0,
        [BUFFER_SUM0] = rows,
        [BUFFER_SUM1] = backward ? rows : 0,
        [BUFFER_LANES] = 3 * plan->queries,
    };
    plan->offset[0] = 0;
    for (int i = 0; i < BUFFERS; i++) plan->offset[i + 1] = plan->offset[i] + round_up(floats[i], CPU_LINE);
    plan->shared = backward ? 2 * round_up(p->batch * p->heads * p->queries, CPU_LINE) : 0;
    plan->workspace = (size_t)(plan->shared + plan->threads * plan->offset[BUFFERS]) * sizeof(float);
}

/* Fewer threads, then smaller blocks until the workspace fits. False where none of it helps. */
static bool plan_make(struct attention_plan *plan, const tsr_context *context, const tsr_attention_problem *p,
                      bool backward) {
    const size_t limit = context->options.max_workspace;
    const double work = (backward ? 5 : 2) * (double)p->dim * (double)p->queries * (double)p->keys * (double)p->batch *
                        (double)p->heads;
    plan->threads = cpu_useful_threads(work, context->options.threads);
    int64_t block = LARGEST_BLOCK;
    for (;;) {
        plan->queries = min64(block, p->queries);
        plan->keys = min64(block, p->keys);
        lay_out(plan, p, backward);
        if (!limit || plan->workspace <= limit) return true;
        if (plan->threads > 1)
            plan->threads /= 2;
        else if (block > SMALLEST_BLOCK)
            block /= 2;
        else
            return false;
    }
}

size_t cpu_attention_workspace(const tsr_context *context, const tsr_attention_problem *p, bool backward) {
    struct attention_plan plan;
    plan_make(&plan, context, p, backward);
    return plan.workspace;
}

/* ---- The team ---------------------------------------------------------------------------------------------------- */

static void work(struct cpu_member *self, void *argument) {
    struct attention_job *job = argument;
    const struct attention_plan *plan = job->plan;
    float *own = job->workspace + plan->shared + self->index * plan->offset[BUFFERS], *buffer[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) buffer[i] = own + plan->offset[i];
    const uint64_t mode = cpu_rounding_begin();
    for (int64_t task; (task = cpu_take(&job->next)) < job->tasks;) job->compute(job, task, buffer);
    cpu_rounding_end(mode);
}

void attention_run(struct attention_job *job, void (*compute)(const struct attention_job *, int64_t, float *const *),
                   int64_t tasks) {
    const tsr_attention_problem *p = job->p;
    const double all = (double)p->batch * (double)p->heads * (double)p->queries * (double)p->keys * (double)p->dim;
    job->compute = compute;
    job->tasks = tasks;
    atomic_store(&job->next, 0);
    struct cpu_team team = {.work = work, .argument = job, .is_short = 2 * all < SHORT_PRODUCT};
    cpu_team_run(&team, (int)max64(1, min64(job->plan->threads, tasks)));
}

static const struct cpu_softmax *softmax_for(const struct cpu_kernel *kernel) {
#ifdef __x86_64__
    if (kernel->needs & CPU_AVX512F) return &cpu_softmax_avx512;
    if (kernel->needs & CPU_AVX2) return &cpu_softmax_avx2;
#endif
    (void)kernel;
    return &cpu_softmax_portable;
}

/* Plans, takes a workspace, and lets `compute` use it. */
static tsr_status execute(const tsr_context *context, struct attention_job *job, void *workspace,
                          void (*compute)(struct attention_job *job)) {
    struct attention_plan plan;
    if (!plan_make(&plan, context, job->p, job->g != NULL))
        return tsr_fail(TSR_OUT_OF_MEMORY, "options.max_workspace is %zu; this attention needs at least %zu bytes",
                        context->options.max_workspace, plan.workspace);
    float *own = workspace ? NULL : cpu_workspace_take(plan.workspace, context->options.max_workspace);
    if (!workspace && !own)
        return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for a workspace of %zu bytes", plan.workspace);
    job->plan = &plan;
    job->kernel = context->cpu_kernel;
    job->softmax = softmax_for(job->kernel);
    job->workspace = workspace ? workspace : own;
    compute(job);
    if (own) cpu_workspace_return(own);
    return TSR_OK;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

static void shrink_rows(float *sums, const float *shrink, int64_t rows, int64_t dim) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < dim && shrink[i] != 1; c++) sums[i * dim + c] *= shrink[i];
}

static void write_lse(const tsr_heads_result *lse, const struct attention_block *b, const float *largest,
                      const float *sum) {
    float *to = lse->data + b->item * lse->batch_stride + b->head * lse->head_stride + b->i0 * lse->row_stride;
    for (int64_t i = 0; i < b->queries; i++)
        to[i * lse->row_stride] = sum[i] == 0 ? INFINITY : (float)(largest[i] + log(sum[i]));
}

/* One block of queries. */
static void attend(const struct attention_job *job, int64_t task, float *const buffer[BUFFERS]) {
    const tsr_attention_problem *p = job->p;
    struct attention_block b = attention_query_block(job, task);
    float *largest = buffer[BUFFER_LANES], *sum = largest + b.queries, *shrink = sum + b.queries;
    float *o = buffer[BUFFER_SUM0], *s = buffer[BUFFER_S];
    memset(o, 0, (size_t)(b.queries * p->dim) * sizeof *o);
    for (int64_t i = 0; i < b.queries; i++) {
        largest[i] = -FLT_MAX; /* not -Inf, so that -Inf less this is -Inf */
        sum[i] = 0;
    }
    attention_transpose(buffer[BUFFER_Q], &p->q, b.item, b.head, b.i0, b.queries, p->dim);
    const int64_t seen = attention_seen(job, &b);
    for (b.j0 = 0; b.j0 < seen; b.j0 += job->plan->keys) {
        b.keys = min64(job->plan->keys, seen - b.j0);
        attention_scores(job, &b, buffer);
        job->softmax->weigh(s, b.keys, b.queries, largest, sum, shrink);
        shrink_rows(o, shrink, b.queries, p->dim);
        const float *keep = attention_keep(job, &b, buffer);
        for (int64_t at = 0; keep && at < b.keys * b.queries; at++) s[at] *= keep[at];
        const tsr_operand v = attention_operand(buffer[BUFFER_ROWS0], &p->v, b.item, b.kv_head, b.j0, b.keys, p->dim);
        attention_accumulate(job, &b, s, &v, true, o);
    }
    if (job->lse) write_lse(job->lse, &b, largest, sum);
    for (int64_t i = 0; i < b.queries; i++) sum[i] = sum[i] == 0 ? 0 : 1 / sum[i];
    attention_write(job->o, b.item, b.head, b.i0, b.queries, p->dim, o, sum, 1);
}

static void attention_forward(struct attention_job *job) {
    const tsr_attention_problem *p = job->p;
    attention_run(job, attend, p->batch * p->heads * ceil_div(p->queries, job->plan->queries));
}

/* ---- Entry points ------------------------------------------------------------------------------------------------ */

tsr_status cpu_attention(tsr_context *context, const tsr_attention_problem *p, const tsr_heads_result *o,
                         const tsr_heads_result *lse, void *workspace) {
    struct attention_job job = {.p = p, .o = o, .lse = lse};
    return execute(context, &job, workspace, attention_forward);
}

tsr_status cpu_attention_backward(tsr_context *context, const tsr_attention_problem *p,
                                  const tsr_attention_gradients *gradients, void *workspace) {
    struct attention_job job = {.p = p, .g = gradients};
    return execute(context, &job, workspace, attention_backward);
}
