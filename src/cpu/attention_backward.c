/* attention_backward.c: the gradients of attention on the CPU.
 *
 * With the weights P, of which dropout keeps some (Z), and dP = grad_o V^T:
 *
 *     grad_v = (P Z)^T grad_o,   dS = P (Z dP - grad_o O),   grad_q = scale dS K,   grad_k = scale dS^T Q
 *
 * where grad_o O is one number for each query. Weights are computed again, exp(t - lse) divided by their sum: where
 * scores are so large that lse has no room for the logarithm, the sum is not 1. Blocks of queries come first and leave
 * the sums, then blocks of keys. */
#include "cpu/attention_block.h"

static int64_t query_number(const struct attention_job *job, const struct attention_block *b) {
    return (b->item * job->p->heads + b->head) * job->p->queries + b->i0;
}

/* The operands of a block of queries, transposed, and its lse. */
static void take_queries(const struct attention_job *job, const struct attention_block *b, float *const buffer[BUFFERS],
                         float *lse) {
    const tsr_attention_problem *p = job->p;
    attention_transpose(buffer[BUFFER_Q], &p->q, b->item, b->head, b->i0, b->queries, p->dim);
    attention_transpose(buffer[BUFFER_G], &job->g->grad_o, b->item, b->head, b->i0, b->queries, p->dim);
    const float *from = attention_rows(&job->g->lse, b->item, b->head, b->i0);
    for (int64_t i = 0; i < b->queries; i++) lse[i] = from[i * job->g->lse.row_stride];
}

/* dP^T = V grad_o^T, into BUFFER_D. */
static void weight_gradients(const struct attention_job *job, const struct attention_block *b,
                             float *const buffer[BUFFERS]) {
    const tsr_attention_problem *p = job->p;
    const tsr_operand v = {.data = attention_rows(&p->v, b->item, b->kv_head, b->j0),
                           .rows = b->keys,
                           .cols = p->dim,
                           .row_stride = p->v.row_stride,
                           .col_stride = p->v.col_stride};
    const tsr_operand g = {buffer[BUFFER_G], p->dim, b->queries, b->queries, 1, 0, NULL};
    attention_multiply(job, &v, &g, 0, buffer[BUFFER_D]);
}

/* dS, into BUFFER_D, and P Z, into BUFFER_S, from the exponentials there. */
static void differentiate(const struct attention_job *job, const struct attention_block *b,
                          float *const buffer[BUFFERS], const float *inverses, const float *dots) {
    weight_gradients(job, b, buffer);
    const float *keep = attention_keep(job, b, buffer);
    job->softmax->differentiate(buffer[BUFFER_S], buffer[BUFFER_D], keep, b->keys, b->queries, inverses, dots);
    attention_clear_unseen(job, b, buffer[BUFFER_D], 0);
    attention_clear_unseen(job, b, buffer[BUFFER_S], 0); /* NaN where lse is */
}

static void set_dots(const struct attention_job *job, const struct attention_block *b, float *dots) {
    const tsr_heads *g = &job->g->grad_o, *o = &job->g->o;
    for (int64_t i = 0; i < b->queries; i++) {
        const float *x = attention_rows(g, b->item, b->head, b->i0 + i);
        const float *y = attention_rows(o, b->item, b->head, b->i0 + i);
        double dot = 0;
        for (int64_t c = 0; c < job->p->dim; c++) dot += (double)x[c * g->col_stride] * y[c * o->col_stride];
        dots[i] = (float)dot;
    }
}

/* One block of queries: grad_q, unless it is not wanted, and what the blocks of keys need. */
static void differentiate_queries(const struct attention_job *job, int64_t task, float *const buffer[BUFFERS]) {
    const tsr_attention_problem *p = job->p;
    struct attention_block b = attention_query_block(job, task);
    float *lse = buffer[BUFFER_LANES], *sum = lse + b.queries, *ones = sum + b.queries, *grad_q = buffer[BUFFER_SUM0];
    float *dots = job->dots + query_number(job, &b), *inverses = job->inverses + query_number(job, &b);
    take_queries(job, &b, buffer, lse);
    set_dots(job, &b, dots);
    memset(grad_q, 0, (size_t)(b.queries * p->dim) * sizeof *grad_q);
    for (int64_t i = 0; i < b.queries; i++) {
        sum[i] = 0;
        ones[i] = 1;
    }
    const int64_t seen = attention_seen(job, &b);
    for (b.j0 = 0; b.j0 < seen; b.j0 += job->plan->keys) {
        b.keys = min64(job->plan->keys, seen - b.j0);
        attention_scores(job, &b, buffer);
        job->softmax->reweigh(buffer[BUFFER_S], b.keys, b.queries, lse, sum);
        if (!job->g->grad_q.data) continue;
        differentiate(job, &b, buffer, ones, dots);
        const tsr_operand k = attention_operand(buffer[BUFFER_ROWS0], &p->k, b.item, b.kv_head, b.j0, b.keys, p->dim);
        attention_accumulate(job, &b, buffer[BUFFER_D], &k, true, grad_q);
    }
    for (int64_t i = 0; i < b.queries; i++) inverses[i] = sum[i] == 0 ? 0 : 1 / sum[i];
    if (job->g->grad_q.data)
        attention_write(&job->g->grad_q, b.item, b.head, b.i0, b.queries, p->dim, grad_q, inverses, p->scale);
}

/* One block of keys: grad_v and grad_k, from all queries of all heads that share it. */
static void differentiate_keys(const struct attention_job *job, int64_t task, float *const buffer[BUFFERS]) {
    const tsr_attention_problem *p = job->p;
    const int64_t blocks = ceil_div(p->keys, job->plan->keys), kv_head = task / blocks, group = p->heads / p->kv_heads;
    struct attention_block b = {
        .item = kv_head / p->kv_heads, .kv_head = kv_head % p->kv_heads, .j0 = task % blocks * job->plan->keys};
    b.keys = min64(job->plan->keys, p->keys - b.j0);
    float *grad_v = buffer[BUFFER_SUM0], *grad_k = buffer[BUFFER_SUM1];
    memset(grad_v, 0, (size_t)(b.keys * p->dim) * sizeof *grad_v);
    memset(grad_k, 0, (size_t)(b.keys * p->dim) * sizeof *grad_k);
    const int64_t first = p->causal ? b.j0 / job->plan->queries * job->plan->queries : 0;
    for (b.head = b.kv_head * group; b.head < (b.kv_head + 1) * group; b.head++)
        for (b.i0 = first; b.i0 < p->queries; b.i0 += job->plan->queries) {
            b.queries = min64(job->plan->queries, p->queries - b.i0);
            float *lse = buffer[BUFFER_LANES], *sum = lse + b.queries;
            memset(sum, 0, (size_t)b.queries * sizeof *sum);
            take_queries(job, &b, buffer, lse);
            attention_scores(job, &b, buffer);
            job->softmax->reweigh(buffer[BUFFER_S], b.keys, b.queries, lse, sum);
            differentiate(job, &b, buffer, job->inverses + query_number(job, &b), job->dots + query_number(job, &b));
            const tsr_operand g = attention_operand(buffer[BUFFER_ROWS0], &job->g->grad_o, b.item, b.head, b.i0,
                                                    b.queries, p->dim);
            const tsr_operand q = attention_operand(buffer[BUFFER_ROWS1], &p->q, b.item, b.head, b.i0, b.queries,
                                                    p->dim);
            attention_accumulate(job, &b, buffer[BUFFER_S], &g, false, grad_v);
            attention_accumulate(job, &b, buffer[BUFFER_D], &q, false, grad_k);
        }
    if (job->g->grad_v.data) attention_write(&job->g->grad_v, b.item, b.kv_head, b.j0, b.keys, p->dim, grad_v, NULL, 1);
    if (job->g->grad_k.data)
        attention_write(&job->g->grad_k, b.item, b.kv_head, b.j0, b.keys, p->dim, grad_k, NULL, p->scale);
}

void attention_backward(struct attention_job *job) {
    const tsr_attention_problem *p = job->p;
    const struct attention_plan *plan = job->plan;
    job->dots = job->workspace;
    job->inverses = job->workspace + plan->shared / 2;
    if (p->queries)
        attention_run(job, differentiate_queries, p->batch * p->heads * ceil_div(p->queries, plan->queries));
    if (p->keys && (job->g->grad_k.data || job->g->grad_v.data))
        attention_run(job, differentiate_keys, p->batch * p->kv_heads * ceil_div(p->keys, plan->keys));
}
