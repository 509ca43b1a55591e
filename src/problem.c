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
    t.a_items = p->b_items, t.b_items = p->a_items;
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
    if (p->c_items) {
        one.a.data = p->a_items[item], one.b.data = p->b_items[item];
        one.c.data = p->c_items[item], one.addend.data = is_zero(p->beta) ? NULL : one.c.data;
        one.a_items = one.b_items = NULL, one.c_items = NULL;
        return one;
    }
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

enum { ROWS, COLS };

/* The most floats that an offset may count: twice as many bytes are still within 64 bits. */
static const int64_t span_limit = INT64_MAX / (int64_t)(2 * sizeof(float));

bool span_is_empty(const matrix_span *s) {
    for (int d = 0; d < SPAN_STRIDES; d++)
        if (!s->count[d]) return true;
    return false;
}

/* Finds the range of offsets. */
static tsr_status cover(matrix_span *s) {
    static const char *const stride_name[SPAN_STRIDES] = {"row_stride", "col_stride", "batch_stride", "head_stride"};
    if (span_is_empty(s)) return TSR_OK;
    for (int d = 0; d < SPAN_STRIDES; d++) {
        int64_t reach;
        if (__builtin_mul_overflow(s->count[d] - 1, s->stride[d], &reach) || reach > span_limit ||
            reach < -span_limit || (reach > 0 && s->highest > span_limit - reach) ||
            (reach < 0 && s->lowest < -span_limit - reach))
            return tsr_fail(TSR_INVALID_ARGUMENT, "%s.%s is %lld: over %lld steps it leaves the address space", s->name,
                            stride_name[d], (long long)s->stride[d], (long long)s->count[d]);
        if (reach > 0) s->highest += reach;
        if (reach < 0) s->lowest += reach;
    }
    return TSR_OK;
}

tsr_status span_make(matrix_span *s, const char *name, const tsr_operand *o, int64_t batch) {
    static const char *const size_name[2] = {"rows", "cols"};
    *s = (matrix_span){.name = name,
                       .data = o->data,
                       .count = {o->rows, o->cols, batch, 1},
                       .stride = {o->row_stride, o->col_stride, o->batch_stride, 0}};
    for (int d = ROWS; d <= COLS; d++) {
        if (s->count[d] < 0)
            return tsr_fail(TSR_INVALID_ARGUMENT, "%s.%s is %lld: it must not be negative", name, size_name[d],
                            (long long)s->count[d]);
        if (s->count[d] > span_limit) /* an empty or broadcast matrix may be as large; engines count past its end */
            return tsr_fail(TSR_INVALID_ARGUMENT, "%s.%s is %lld: it must not exceed %lld", name, size_name[d],
                            (long long)s->count[d], (long long)span_limit);
    }
    return cover(s);
}

tsr_status span_make_heads(matrix_span *s, const char *name, const tsr_heads *m, int64_t batch, int64_t heads,
                           int64_t rows, int64_t cols) {
    *s = (matrix_span){.name = name,
                       .data = m->data,
                       .count = {rows, cols, batch, heads},
                       .stride = {m->row_stride, m->col_stride, m->batch_stride, m->head_stride}};
    return cover(s);
}

static uintptr_t span_begin(const matrix_span *s) {
    return (uintptr_t)s->data + (uintptr_t)(s->lowest * (int64_t)sizeof(float));
}
static uintptr_t span_end(const matrix_span *s) {
    return (uintptr_t)s->data + (uintptr_t)((s->highest + 1) * (int64_t)sizeof(float));
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

/* The strides in use as positive ones, the smallest first: what the elements are but for their order, counted from the
 * lowest. width[n] is what the first n cover, in floats. */
struct nest {
    int strides;
    int64_t count[SPAN_STRIDES], stride[SPAN_STRIDES], width[SPAN_STRIDES + 1];
};

/* False where the strides do not nest: each must be no less than what the smaller ones cover. */
static bool strides_nest(const matrix_span *s, struct nest *nest) {
    bool used[SPAN_STRIDES] = {false};
    nest->strides = 0;
    nest->width[0] = 1;
    for (;;) {
        int next = -1;
        for (int d = 0; d < SPAN_STRIDES; d++)
            if (!used[d] && s->count[d] > 1 && (next < 0 || magnitude(s->stride[d]) < magnitude(s->stride[next])))
                next = d;
        if (next < 0) return true;
        used[next] = true;
        const int n = nest->strides++;
        nest->count[n] = s->count[next];
        nest->stride[n] = magnitude(s->stride[next]);
        if (nest->stride[n] < nest->width[n]) return false;
        nest->width[n + 1] = nest->width[n] + (nest->count[n] - 1) * nest->stride[n];
    }
}

bool span_is_injective(const matrix_span *s) {
    struct nest nest;
    return span_is_empty(s) || strides_nest(s, &nest);
}

/* Whether elements of x, along its nx smallest strides, may share an address with elements of y, along its ny smallest,
 * where y begins `offset` bytes after x. If the largest strides are equal, such elements are a whole number of steps
 * apart along them. The smaller strides cover less than one step, which leaves two numbers of steps to try. */
static bool may_meet(const struct nest *x, int nx, const struct nest *y, int ny, int64_t offset) {
    const int64_t bytes = sizeof(float);
    if (offset >= x->width[nx] * bytes || offset <= -y->width[ny] * bytes) return false;
    if (!nx || !ny || x->stride[nx - 1] != y->stride[ny - 1]) return true;
    const int64_t pitch = x->stride[nx - 1] * bytes, below = offset / pitch - (offset % pitch < 0);
    for (int64_t steps = below; steps <= below + 1; steps++)
        if (steps < x->count[nx - 1] && -steps < y->count[ny - 1] &&
            may_meet(x, nx - 1, y, ny - 1, offset - steps * pitch))
            return true;
    return false;
}

bool span_may_overlap(const matrix_span *x, const matrix_span *y) {
    if (span_is_empty(x) || span_is_empty(y)) return false;
    if (span_end(x) <= span_begin(y) || span_end(y) <= span_begin(x)) return false;
    struct nest nest_x, nest_y;
    if (!strides_nest(x, &nest_x) || !strides_nest(y, &nest_y)) return true;
    return may_meet(&nest_x, nest_x.strides, &nest_y, nest_y.strides, (int64_t)(span_begin(y) - span_begin(x)));
}

bool span_is_same(const matrix_span *x, const matrix_span *y) {
    for (int d = 0; d < SPAN_STRIDES; d++)
        if (x->count[d] > 1 && x->stride[d] != y->stride[d]) return false;
    return x->data == y->data;
}
