/* cpu_completion.c: what the GPU has not delivered of a product, computed by the CPU in the pinned ring: no memory is
 * taken. */
#include "offload/transfer.h"
#include "plan.h"

/* Rows i.. and columns j.. of C. */
static tsr_status compute_part(const transfer *t, const tsr_problem *p, int64_t i, int64_t j, int64_t m, int64_t n) {
    if (!m || !n) return TSR_OK;
    const problem_range range = {.m0 = i, .n0 = j, .m = m, .n = n, .k = p->k, .batch = 1};
    tsr_plan plan = {.context = &t->offload->cpu, .problem = problem_part(p, &range)};
    const tsr_launch launch = {.workspace = t->offload->ring, .workspace_size = RING_BYTES};
    const tsr_status status = plan_make(&plan);
    return status ? status : plan_execute(&plan, &plan.problem, &launch);
}

/* What is missing of the block at (i, j) of which `done` elements are in C. */
static tsr_status complete_block(const transfer *t, const tsr_problem *p, int64_t i, int64_t j, int64_t done) {
    const int64_t m = min64(t->partition.bm, p->m - i), n = min64(t->partition.bn, p->n - j);
    tsr_status status;
    if (runs_are_columns(p->c.row_stride, p->c.col_stride)) {
        const int64_t column = done / m, row = done % m;
        if (!row) return compute_part(t, p, i, j + column, m, n - column);
        status = compute_part(t, p, i + row, j + column, m - row, 1);
        return status ? status : compute_part(t, p, i, j + column + 1, m, n - column - 1);
    }
    const int64_t row = done / n, column = done % n;
    if (!column) return compute_part(t, p, i + row, j, m - row, n);
    status = compute_part(t, p, i + row, j + column, 1, n - column);
    return status ? status : compute_part(t, p, i + row + 1, j, m - row - 1, n);
}

tsr_status complete_on_cpu(transfer *t, double *share) {
    const tsr_problem *p = &t->p;
    const partition *x = &t->partition;
    const return_queue *returns = &t->returns;
    int64_t block = 0;
    double done_by_gpu = 0;
    tsr_status status = TSR_OK;
    for (int64_t item = 0; item < p->batch && !status; item++) {
        const tsr_problem one = problem_item(p, item);
        for (block_walk w = block_walk_begin(x); !status && block_walk_next(&w, x); block++) {
            const int64_t i = w.i * x->bm, j = w.j * x->bn;
            const int64_t all = min64(x->bm, p->m - i) * min64(x->bn, p->n - j);
            const int64_t done = block < returns->first   ? all
                                 : block < returns->count ? returns->blocks[block % MOST_C_SLOTS].done
                                                          : 0;
            done_by_gpu += (double)done;
            status = complete_block(t, &one, i, j, done);
        }
    }
    *share = done_by_gpu / ((double)p->m * (double)p->n * (double)p->batch);
    return status;
}
