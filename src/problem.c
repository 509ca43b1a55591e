/* problem.c: parts, transposes and memory ranges of products. */
#include "problem.h"

#include "internal.h"

/* ---- The product ------------------------------------------------------------------------------------------------- */

tsr_operand operand_transpose(const tsr_operand *o) {
    tsr_operand t = *o;
    t.rows = o->cols, t.cols = o->rows;
    t.row_stride = o->col_stride, t.col_stride = o->row_stride;
    return t;
}

tsr_problem problem_transpose(const tsr_problem *p) {
    tsr_problem t = *p;
    t.m = p->n, t.n = p->m;
    t.a = operand_transpose(&p->b), t.b = operand_transpose(&p->a);
    t.c = (tsr_result){p->c.data, p->c.cols, p->c.rows, p->c.col_stride, p->c.row_stride, p->c.batch_stride};
    t.addend = operand_transpose(&p->addend);
    return t;
}

problem_range problem_whole(const tsr_problem *p) {
    return (problem_range){.m = p->m, .n = p->n, .k = p->k, .batch = p->batch};
}

tsr_operand result_as_addend(const tsr_result *c) {
    return (tsr_operand){c->data, c->rows, c->cols, c->row_stride, c->col_stride, c->batch_stride, NULL};
}

static int64_t offset_in(const tsr_operand *o, int64_t row, int64_t col, int64_t item) {
    return item * o->batch_stride + row * o->row_stride + col * o->col_stride;
}

tsr_problem problem_part(const tsr_problem *p, const problem_range *r) {
    tsr_problem part = *p;
    part.m = part.a.rows = part.c.rows = r->m;
    part.n = part.b.cols = part.c.cols = r->n;
    part.k = part.a.cols = part.b.rows = r->k;
    part.batch = r->batch;
    if (p->k && part.a.data) part.a.data += offset_in(&p->a, r->m0, r->k0, r->batch0);
    if (p->k && part.b.data) part.b.data += offset_in(&p->b, r->k0, r->n0, r->batch0);
    const tsr_operand c = result_as_addend(&p->c);
    if (part.c.data) part.c.data += offset_in(&c, r->m0, r->n0, r->batch0);
    if (r->k0) {
        part.beta = 1;
        part.addend = result_as_addend(&part.c);
    } else if (!is_zero(p->beta)) {
        part.addend.rows = r->m, part.addend.cols = r->n;
        if (part.addend.data) part.addend.data += offset_in(&p->addend, r->m0, r->n0, r->batch0);
    }
    return part;
}

tsr_problem problem_item(const tsr_problem *p, int64_t item) {
    tsr_problem one = *p;
    if (p->k) { /* otherwise they may be NULL */
        one.a.data += item * p->a.batch_stride;
        one.b.data += item * p->b.batch_stride;
    }
    one.c.data += item * p->c.batch_stride;
    if (!is_zero(p->beta)) one.addend.data += item * p->addend.batch_stride;
    return one;
}

const void *operand_panels(const tsr_operand *o, int64_t batch) {
    return o->packed && (batch == 1 || !o->batch_stride) ? o->packed->panels : NULL;
}

bool operand_is_only_packed(const tsr_operand *o) { return o->packed && o->packed->source.data == o->packed->panels; }

/* ---- What a matrix covers in memory ------------------------------------------------------------------------------ */

bool span_is_empty(const matrix_span *s) { return !s->count[0] || !s->count[1] || !s->count[2]; }

tsr_status span_make(matrix_span *s, const char *name, const tsr_operand *o, int64_t batch) {
    static const char *const size_name[2] = {"rows", "cols"};
    static const char *const stride_name[3] = {"row_stride", "col_stride", "batch_stride"};
    const int64_t limit = INT64_MAX / (int64_t)(2 * sizeof(float));
    *s = (matrix_span){name, o->data, {o->rows, o->cols, batch}, {o->row_stride, o->col_stride, o->batch_stride}, 0, 0};
    for (int d = 0; d < 2; d++) {
        if (s->count[d] < 0)
            return tsr_fail(TSR_INVALID_ARGUMENT, "%s.%s is %lld: it must not be negative", name, size_name[d],
                            (long long)s->count[d]);
        if (s->count[d] > limit) /* an empty or broadcast matrix may be as large; engines count past its end */
            return tsr_fail(TSR_INVALID_ARGUMENT, "%s.%s is %lld: it must not exceed %lld", name, size_name[d],
                            (long long)s->count[d], (long long)limit);
    }
    if (span_is_empty(s)) return TSR_OK;
    for (int d = 0; d < 3; d++) {
        int64_t reach;
        if (__builtin_mul_overflow(s->count[d] - 1, s->stride[d], &reach) || reach > limit || reach < -limit ||
            (reach > 0 && s->highest > limit - reach) || (reach < 0 && s->lowest < -limit - reach))
            return tsr_fail(TSR_INVALID_ARGUMENT, "%s.%s is %lld: over %lld steps it leaves the address space", name,
                            stride_name[d], (long long)s->stride[d], (long long)s->count[d]);
        if (reach > 0) s->highest += reach;
        if (reach < 0) s->lowest += reach;
    }
    return TSR_OK;
}

static uintptr_t span_begin(const matrix_span *s) {
    return (uintptr_t)s->data + (uintptr_t)(s->lowest * (int64_t)sizeof(float));
}
static uintptr_t span_end(const matrix_span *s) {
    return (uintptr_t)s->data + (uintptr_t)((s->highest + 1) * (int64_t)sizeof(float));
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

/* True where the strides nest: sorted by size, each exceeds what the smaller ones cover. *pitch becomes the largest
 * stride in use and *width what one step of it covers, in floats. */
static bool strides_nest(const matrix_span *s, int64_t *pitch, int64_t *width) {
    bool used[3] = {false, false, false};
    int64_t covered = 1;
    *pitch = *width = 1;
    for (int round = 0; round < 3; round++) {
        int next = -1;
        for (int d = 0; d < 3; d++)
            if (!used[d] && s->count[d] > 1 && (next < 0 || magnitude(s->stride[d]) < magnitude(s->stride[next])))
                next = d;
        if (next < 0) return true;
        used[next] = true;
        const int64_t stride = magnitude(s->stride[next]);
        if (stride < covered) return false;
        *pitch = stride;
        *width = covered;
        covered += (s->count[next] - 1) * stride;
    }
    return true;
}

bool span_is_injective(const matrix_span *s) {
    int64_t pitch, width;
    return span_is_empty(s) || strides_nest(s, &pitch, &width);
}

bool span_may_overlap(const matrix_span *x, const matrix_span *y) {
    if (span_is_empty(x) || span_is_empty(y)) return false;
    if (span_end(x) <= span_begin(y) || span_end(y) <= span_begin(x)) return false;
    int64_t pitch_x, width_x, pitch_y, width_y;
    if (!strides_nest(x, &pitch_x, &width_x) || !strides_nest(y, &pitch_y, &width_y) || pitch_x != pitch_y) return true;
    const uintptr_t pitch = (uintptr_t)pitch_x * sizeof(float);
    const uintptr_t x_to_y = (span_begin(y) % pitch + pitch - span_begin(x) % pitch) % pitch;
    return x_to_y < (uintptr_t)width_x * sizeof(float) || pitch - x_to_y < (uintptr_t)width_y * sizeof(float);
}

bool span_is_same(const matrix_span *x, const matrix_span *y) {
    for (int d = 0; d < 3; d++)
        if (x->count[d] > 1 && x->stride[d] != y->stride[d]) return false;
    return x->data == y->data;
}
