/* attention.c: attention's arguments are checked here, once; then the context's engine computes it. */
#include "attention.h"

#include "check.h"
#include "rounding.h"

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

enum { MOST_DIM = 256 };

static tsr_status check_size(const char *name, int64_t size) {
    if (size < 0)
        return tsr_fail(TSR_INVALID_ARGUMENT, "problem.%s is %lld: it must not be negative", name, (long long)size);
    if (size > INT32_MAX)
        return tsr_fail(TSR_INVALID_ARGUMENT, "problem.%s is %lld: it must not exceed %d", name, (long long)size,
                        INT32_MAX);
    return TSR_OK;
}

static tsr_status check_sizes(const tsr_context *context, const tsr_attention_problem *p) {
    if (!context) return tsr_fail(TSR_INVALID_ARGUMENT, "context is NULL");
    if (!p) return tsr_fail(TSR_INVALID_ARGUMENT, "problem is NULL");
    tsr_status status;
    if ((status = check_size("batch", p->batch)) || (status = check_size("heads", p->heads)) ||
        (status = check_size("queries", p->queries)) || (status = check_size("keys", p->keys)))
        return status;
    if (p->batch * p->heads > INT32_MAX) /* heads are numbered in 32 bits */
        return tsr_fail(TSR_INVALID_ARGUMENT, "problem.batch * problem.heads is %lld: it must not exceed %d",
                        (long long)(p->batch * p->heads), INT32_MAX);
    if (p->kv_heads < (p->heads > 0) || p->kv_heads > p->heads || (p->heads && p->heads % p->kv_heads))
        return tsr_fail(TSR_INVALID_ARGUMENT, "problem.kv_heads is %lld: it must divide problem.heads (%lld)",
                        (long long)p->kv_heads, (long long)p->heads);
    if (p->dim < 1 || p->dim > MOST_DIM)
        return tsr_fail(TSR_INVALID_ARGUMENT, "problem.dim is %lld: it must be 1 to %d", (long long)p->dim, MOST_DIM);
    if (!(p->dropout >= 0 && p->dropout <= 65535 / 65536.0f)) /* and no NaN */
        return tsr_fail(TSR_INVALID_ARGUMENT, "problem.dropout is %g: it must be 0 to 65535/65536", (double)p->dropout);
    return TSR_OK;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* What a call reads and what it writes. */
struct matrices {
    matrix_span operand[7], result[3];
    int operands, results;
};

/* Each argument's size is one of these; `rows` and `cols` are its own. */
static tsr_status add_operand(struct matrices *m, const char *name, const tsr_heads *matrix,
                              const tsr_attention_problem *p, int64_t heads, int64_t rows, int64_t cols) {
    return span_make_heads(&m->operand[m->operands++], name, matrix, p->batch, heads, rows, cols);
}

static tsr_status add_result(struct matrices *m, const char *name, const tsr_heads_result *r,
                             const tsr_attention_problem *p, int64_t heads, int64_t rows, int64_t cols) {
    const tsr_heads matrix = {r->data, r->batch_stride, r->head_stride, r->row_stride, r->col_stride};
    matrix_span *s = &m->result[m->results++];
    const tsr_status status = span_make_heads(s, name, &matrix, p->batch, heads, rows, cols);
    if (status) return status;
    if (!span_is_injective(s))
        return tsr_fail(TSR_INVALID_ARGUMENT,
                        "%s's strides (batch %lld, head %lld, row %lld, col %lld) let elements of it share an address",
                        name, (long long)r->batch_stride, (long long)r->head_stride, (long long)r->row_stride,
                        (long long)r->col_stride);
    return TSR_OK;
}

static tsr_status add_problem(struct matrices *m, const tsr_attention_problem *p) {
    tsr_status status;
    if ((status = add_operand(m, "problem.q", &p->q, p, p->heads, p->queries, p->dim)) ||
        (status = add_operand(m, "problem.k", &p->k, p, p->kv_heads, p->keys, p->dim)) ||
        (status = add_operand(m, "problem.v", &p->v, p, p->kv_heads, p->keys, p->dim)) || !p->mask.data)
        return status;
    return add_operand(m, "problem.mask", &p->mask, p, p->heads, p->queries, p->keys);
}

static tsr_status check_pointer(const matrix_span *s) {
    if (span_is_empty(s)) return TSR_OK;
    if (!s->data) return tsr_fail(TSR_INVALID_ARGUMENT, "%s.data is NULL", s->name);
    if ((uintptr_t)s->data % sizeof(float))
        return tsr_fail(TSR_INVALID_ARGUMENT, "%s.data is not aligned to a float (4 bytes)", s->name);
    return TSR_OK;
}

static tsr_status check_apart(const matrix_span *result, const matrix_span *others, int count) {
    for (int i = 0; i < count; i++)
        if (span_may_overlap(result, &others[i]))
            return tsr_fail(TSR_INVALID_ARGUMENT, "%s overlaps %s: a result needs memory of its own", result->name,
                            others[i].name);
    return TSR_OK;
}

static tsr_status check_memory(const struct matrices *m) {
    tsr_status status;
    for (int i = 0; i < m->operands; i++)
        if ((status = check_pointer(&m->operand[i]))) return status;
    for (int i = 0; i < m->results; i++)
        if ((status = check_pointer(&m->result[i])) || (status = check_apart(&m->result[i], m->operand, m->operands)) ||
            (status = check_apart(&m->result[i], m->result, i)))
            return status;
    return TSR_OK;
}

/* ---- The calls --------------------------------------------------------------------------------------------------- */

static size_t workspace_of(const tsr_context *context, const tsr_attention_problem *p, bool backward) {
    if (!p->batch || !p->heads) return 0;
    const uint64_t mode = cpu_rounding_begin();
    const size_t bytes = context->cuda ? cuda_attention_workspace(context, p, backward)
                                       : cpu_attention_workspace(context, p, backward);
    cpu_rounding_end(mode);
    return bytes;
}

tsr_status tsr_attention(tsr_context *context, const tsr_attention_problem *p, const tsr_heads_result *o,
                         const tsr_heads_result *lse, const tsr_launch *launch) {
    struct matrices m = {.operands = 0};
    tsr_status status = check_sizes(context, p);
    if (status) return status;
    if (!o) return tsr_fail(TSR_INVALID_ARGUMENT, "o is NULL");
    if ((status = add_problem(&m, p)) || (status = add_result(&m, "o", o, p, p->heads, p->queries, p->dim)) ||
        (lse && (status = add_result(&m, "lse", lse, p, p->heads, p->queries, 1))))
        return status;
    if (!p->batch || !p->heads || !p->queries) return TSR_OK;
    if ((status = check_memory(&m)) || (status = check_workspace(launch, "attention", workspace_of(context, p, false))))
        return status;
    const uint64_t mode = cpu_rounding_begin();
    status = context->cuda ? cuda_attention(context, p, o, lse, launch)
                           : cpu_attention(context, p, o, lse, launch ? launch->workspace : NULL);
    cpu_rounding_end(mode);
    return status;
}

tsr_status tsr_attention_backward(tsr_context *context, const tsr_attention_problem *p,
                                  const tsr_attention_gradients *g, const tsr_launch *launch) {
    struct matrices m = {.operands = 0};
    tsr_status status = check_sizes(context, p);
    if (status) return status;
    if (!g) return tsr_fail(TSR_INVALID_ARGUMENT, "gradients is NULL");
    if ((status = add_problem(&m, p)) ||
        (status = add_operand(&m, "gradients.o", &g->o, p, p->heads, p->queries, p->dim)) ||
        (status = add_operand(&m, "gradients.lse", &g->lse, p, p->heads, p->queries, 1)) ||
        (status = add_operand(&m, "gradients.grad_o", &g->grad_o, p, p->heads, p->queries, p->dim)))
        return status;
    if ((g->grad_q.data &&
         (status = add_result(&m, "gradients.grad_q", &g->grad_q, p, p->heads, p->queries, p->dim))) ||
        (g->grad_k.data &&
         (status = add_result(&m, "gradients.grad_k", &g->grad_k, p, p->kv_heads, p->keys, p->dim))) ||
        (g->grad_v.data && (status = add_result(&m, "gradients.grad_v", &g->grad_v, p, p->kv_heads, p->keys, p->dim))))
        return status;
    const bool writes = (g->grad_q.data && p->queries) || ((g->grad_k.data || g->grad_v.data) && p->keys);
    if (!p->batch || !p->heads || !writes) return TSR_OK;
    if ((status = check_memory(&m)) || (status = check_workspace(launch, "attention", workspace_of(context, p, true))))
        return status;
    const uint64_t mode = cpu_rounding_begin();
    status = context->cuda ? cuda_attention_backward(context, p, g, launch)
                           : cpu_attention_backward(context, p, g, launch ? launch->workspace : NULL);
    cpu_rounding_end(mode);
    return status;
}

size_t tsr_attention_workspace(tsr_context *context, const tsr_attention_problem *p, int backward) {
    return check_sizes(context, p) ? 0 : workspace_of(context, p, backward);
}
