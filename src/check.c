/* check.c: arguments are checked here, once; engines receive a valid tsr_problem. */
#include "check.h"

static tsr_status packed_from_another(const char *name) {
    return tsr_fail(TSR_INVALID_ARGUMENT, "%s.packed was packed from another matrix: data, shape or strides differ",
                    name);
}

static tsr_status check_packed(const tsr_operand *o, const char *name, const tsr_context *context, tsr_side side,
                               int64_t batch) {
    const tsr_packed *p = o->packed;
    if (!p) return TSR_OK;
    if (p->context != context) return tsr_fail(TSR_INVALID_ARGUMENT, "%s.packed was made by another context", name);
    if (p->side != side)
        return tsr_fail(TSR_INVALID_ARGUMENT, "%s.packed was packed for the %s side", name,
                        p->side == TSR_LEFT ? "left" : "right");
    const tsr_operand *s = &p->source;
    if (s->rows != o->rows || s->cols != o->cols || s->row_stride != o->row_stride || s->col_stride != o->col_stride ||
        (o->data && s->data != o->data))
        return packed_from_another(name);
    if (operand_is_only_packed(o) && batch > 1 && o->batch_stride)
        return tsr_fail(TSR_INVALID_ARGUMENT,
                        "%s.batch_stride is %lld: tsr_pack_at packed one matrix, which a batch can only share (0)",
                        name, (long long)o->batch_stride);
    return TSR_OK;
}

/* For an operand that is only packed, the memory that a product reads is that of the panels. */
static void cover_panels(matrix_span *s, const tsr_operand *o) {
    if (!operand_is_only_packed(o) || span_is_empty(s)) return;
    const int64_t floats = (int64_t)(o->packed->bytes / sizeof(float));
    *s = (matrix_span){s->name, s->data, {1, floats, 1, 1}, {floats, 1, 0, 0}, 0, floats - 1};
}

tsr_status check_shapes(tsr_problem *p, matrix_span spans[SPAN_ADDEND], const tsr_context *context, int64_t batch,
                        const tsr_operand *a, const tsr_operand *b, const tsr_result *c) {
    if (!context) return tsr_fail(TSR_INVALID_ARGUMENT, "context is NULL");
    if (!a) return tsr_fail(TSR_INVALID_ARGUMENT, "a is NULL");
    if (!b) return tsr_fail(TSR_INVALID_ARGUMENT, "b is NULL");
    if (!c) return tsr_fail(TSR_INVALID_ARGUMENT, "c is NULL");
    if (batch < 0) return tsr_fail(TSR_INVALID_ARGUMENT, "batch is %lld: it must not be negative", (long long)batch);
    const tsr_operand c_matrix = result_as_addend(c);
    tsr_status status;
    if ((status = span_make(&spans[SPAN_A], "a", a, batch)) || (status = span_make(&spans[SPAN_B], "b", b, batch)) ||
        (status = span_make(&spans[SPAN_C], "c", &c_matrix, batch)))
        return status;
    if (a->cols != b->rows)
        return tsr_fail(TSR_INVALID_ARGUMENT, "a.cols (%lld) must equal b.rows (%lld)", (long long)a->cols,
                        (long long)b->rows);
    if (c->rows != a->rows)
        return tsr_fail(TSR_INVALID_ARGUMENT, "c.rows (%lld) must equal a.rows (%lld)", (long long)c->rows,
                        (long long)a->rows);
    if (c->cols != b->cols)
        return tsr_fail(TSR_INVALID_ARGUMENT, "c.cols (%lld) must equal b.cols (%lld)", (long long)c->cols,
                        (long long)b->cols);
    if (!span_is_injective(&spans[SPAN_C]))
        return tsr_fail(TSR_INVALID_ARGUMENT, "c's strides (%lld, %lld, batch %lld) let elements of c share an address",
                        (long long)c->row_stride, (long long)c->col_stride, (long long)c->batch_stride);
    if ((status = check_packed(a, "a", context, TSR_LEFT, batch)) ||
        (status = check_packed(b, "b", context, TSR_RIGHT, batch)))
        return status;
    cover_panels(&spans[SPAN_A], a);
    cover_panels(&spans[SPAN_B], b);
    *p = (tsr_problem){
        .m = a->rows, .n = b->cols, .k = a->cols, .batch = batch, .alpha = 1, .beta = 0, .a = *a, .b = *b, .c = *c};
    return TSR_OK;
}

tsr_status check_sum(tsr_problem *p, matrix_span spans[SPANS], float alpha, float beta, const tsr_operand *addend) {
    p->alpha = alpha;
    p->beta = beta;
    if (is_zero(alpha)) p->k = 0;
    if (is_zero(beta)) return TSR_OK;
    if (!addend) return tsr_fail(TSR_INVALID_ARGUMENT, "addend is NULL; that is allowed where beta is 0");
    tsr_status status = span_make(&spans[SPAN_ADDEND], "addend", addend, p->batch);
    if (status) return status;
    if (addend->rows != p->c.rows || addend->cols != p->c.cols)
        return tsr_fail(TSR_INVALID_ARGUMENT,
                        "addend is %lld x %lld, but c is %lld x %lld: to broadcast it, set a stride to 0",
                        (long long)addend->rows, (long long)addend->cols, (long long)p->c.rows, (long long)p->c.cols);
    p->addend = *addend;
    return TSR_OK;
}

tsr_status check_workspace(const tsr_launch *launch, const char *what, size_t needed) {
    if (!launch || !launch->workspace) return TSR_OK;
    if (launch->workspace_size < needed)
        return tsr_fail(TSR_INVALID_ARGUMENT, "launch.workspace_size is %zu; this %s needs %zu bytes",
                        launch->workspace_size, what, needed);
    if ((uintptr_t)launch->workspace % 256)
        return tsr_fail(TSR_INVALID_ARGUMENT, "launch.workspace is not aligned to 256 bytes");
    return TSR_OK;
}

/* tsr_plan_create has compared packed forms with their operands, except for the data pointer. */
static tsr_status check_packed_data(const tsr_operand *o, const char *name) {
    return o->packed && o->packed->source.data != o->data ? packed_from_another(name) : TSR_OK;
}

tsr_status check_pointers(const tsr_problem *p, const matrix_span spans[SPANS], const tsr_launch *launch,
                          size_t workspace) {
    if (!p->m || !p->n || !p->batch) return TSR_OK;
    const bool adds = !is_zero(p->beta);
    for (int i = p->k ? SPAN_A : SPAN_C; i <= (adds ? SPAN_ADDEND : SPAN_C); i++) {
        if (!spans[i].data) return tsr_fail(TSR_INVALID_ARGUMENT, "%s.data is NULL", spans[i].name);
        if ((uintptr_t)spans[i].data % sizeof(float))
            return tsr_fail(TSR_INVALID_ARGUMENT, "%s.data is not aligned to a float (4 bytes)", spans[i].name);
    }
    tsr_status status;
    if (p->k && ((status = check_packed_data(&p->a, "a")) || (status = check_packed_data(&p->b, "b")))) return status;
    for (int i = SPAN_A; p->k && i <= SPAN_B; i++)
        if (span_may_overlap(&spans[SPAN_C], &spans[i]))
            return tsr_fail(TSR_INVALID_ARGUMENT, "c overlaps %s: the result needs memory of its own", spans[i].name);
    if (adds && !span_is_same(&spans[SPAN_C], &spans[SPAN_ADDEND]) &&
        span_may_overlap(&spans[SPAN_C], &spans[SPAN_ADDEND]))
        return tsr_fail(TSR_INVALID_ARGUMENT,
                        "c overlaps addend: the result needs memory of its own, or that of the whole addend");
    return check_workspace(launch, "product", workspace);
}
