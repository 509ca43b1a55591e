/* api.c: products and plans. Arguments are checked by check.c; plan.c sends the problem to its engine. */
#include <stdlib.h>
#include <string.h>
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#define HAS_SINGLE_THREADED
#endif

#include "check.h"
#include "offload/offload.h"
#include "plan.h"

/* ---- Products ---------------------------------------------------------------------------------------------------- */

tsr_status tsr_gemm_add(tsr_context *context, int64_t batch, float alpha, const tsr_operand *a, const tsr_operand *b,
                        float beta, const tsr_operand *addend, const tsr_result *c, const tsr_launch *launch) {
    tsr_plan plan;
    matrix_span spans[SPANS];
    tsr_status status;
    if ((status = check_shapes(&plan.problem, spans, context, batch, a, b, c)) ||
        (status = check_sum(&plan.problem, spans, alpha, beta, addend)))
        return status;
    plan.context = context;
    if ((status = plan_make(&plan)) || (status = check_pointers(&plan.problem, spans, launch, plan_workspace(&plan))))
        return status;
    return plan_execute(&plan, &plan.problem, launch);
}

tsr_status tsr_gemm_batch(tsr_context *context, int64_t batch, float alpha, const tsr_operand *a, const tsr_operand *b,
                          float beta, const tsr_result *c, const tsr_launch *launch) {
    if (!c) return tsr_fail(TSR_INVALID_ARGUMENT, "c is NULL");
    const tsr_operand addend = result_as_addend(c);
    return tsr_gemm_add(context, batch, alpha, a, b, beta, &addend, c, launch);
}

/* ---- Products anywhere ------------------------------------------------------------------------------------------- */

/* Item i of a product given by pointers, and its spans. */
static tsr_problem bind_item(const tsr_problem *p, matrix_span spans[SPANS], int64_t i) {
    tsr_problem one = problem_item(p, i);
    one.batch = 1;
    spans[SPAN_A].data = one.a.data;
    spans[SPAN_B].data = one.b.data;
    spans[SPAN_C].data = spans[SPAN_ADDEND].data = one.c.data;
    return one;
}

/* Floats from each pointer to the next; false where that differs. */
static bool is_even(const void *const *pointers, int64_t count, int64_t *stride) {
    const int64_t bytes = count > 1 ? (int64_t)((uintptr_t)pointers[1] - (uintptr_t)pointers[0]) : 0;
    for (int64_t i = 2; i < count; i++)
        if ((int64_t)((uintptr_t)pointers[i] - (uintptr_t)pointers[i - 1]) != bytes) return false;
    *stride = bytes / (int64_t)sizeof(float);
    return bytes % (int64_t)sizeof(float) == 0;
}

/* Turns pointers into one strided batch. False if the matrices are not evenly spaced or those of C may overlap. */
static bool as_strided(tsr_problem *p, matrix_span spans[SPANS]) {
    const tsr_operand c = result_as_addend(&p->c);
    tsr_operand moved = c;
    if (!is_even((const void *const *)p->a_items, p->batch, &p->a.batch_stride) ||
        !is_even((const void *const *)p->b_items, p->batch, &p->b.batch_stride) ||
        !is_even((const void *const *)p->c_items, p->batch, &moved.batch_stride) ||
        span_make(&spans[SPAN_A], "a", &p->a, p->batch) || span_make(&spans[SPAN_B], "b", &p->b, p->batch) ||
        span_make(&spans[SPAN_C], "c", &moved, p->batch) || !span_is_injective(&spans[SPAN_C]))
        return false;
    p->c.batch_stride = p->addend.batch_stride = moved.batch_stride;
    p->a_items = p->b_items = NULL, p->c_items = NULL;
    spans[SPAN_ADDEND] = spans[SPAN_C];
    return true;
}

/* Executes products whose arguments are checked. On CUDA one plan serves all of them, one after the other. */
static tsr_status execute_items(tsr_plan *plan, const tsr_launch *launch) {
    tsr_status status;
    const tsr_problem all = plan->problem;
    if (plan->context->cuda && all.c_items) plan->problem.batch = 1;
    if ((status = plan_make(plan)) || (status = check_workspace(launch, "product", plan_workspace(plan))))
        return status;
    return plan_execute(plan, &all, launch);
}

tsr_status tsr_gemm_pointers(tsr_context *context, int64_t batch, float alpha, const tsr_operand *a,
                             const float *const *a_data, const tsr_operand *b, const float *const *b_data, float beta,
                             const tsr_result *c, float *const *c_data, const tsr_launch *launch) {
    if (!a || !b || !c) return tsr_fail(TSR_INVALID_ARGUMENT, "%s is NULL", !a ? "a" : !b ? "b" : "c");
    if (batch < 0) return tsr_fail(TSR_INVALID_ARGUMENT, "batch is %lld: it must not be negative", (long long)batch);
    tsr_operand one_a = *a, one_b = *b;
    tsr_result one_c = *c;
    one_a.packed = one_b.packed = NULL;
    one_a.data = one_b.data = NULL, one_c.data = NULL;
    one_a.batch_stride = one_b.batch_stride = one_c.batch_stride = 1; /* each item has its own */
    tsr_plan plan = {.context = context};
    tsr_problem *const p = &plan.problem;
    matrix_span spans[SPANS];
    const tsr_operand addend = result_as_addend(&one_c);
    tsr_status status;
    if ((status = check_shapes(p, spans, context, 1, &one_a, &one_b, &one_c)) ||
        (status = check_sum(p, spans, alpha, beta, &addend)))
        return status;
    if (!batch || !p->m || !p->n) return TSR_OK;
    if (!a_data || !b_data || !c_data)
        return tsr_fail(TSR_INVALID_ARGUMENT, "%s is NULL", !a_data ? "a_data" : !b_data ? "b_data" : "c_data");
    p->batch = batch;
    p->a_items = a_data, p->b_items = b_data, p->c_items = c_data;
    for (int64_t i = 0; i < batch; i++) {
        const tsr_problem one = bind_item(p, spans, i);
        if ((status = check_pointers(&one, spans, NULL, 0))) return status;
    }
    p->a.data = a_data[0], p->b.data = b_data[0], p->c.data = c_data[0];
    if (!is_zero(beta)) p->addend.data = p->c.data;
    if (context->cuda) as_strided(p, spans);
    return execute_items(&plan, launch);
}

/* ---- Products in host memory ------------------------------------------------------------------------------------- */

tsr_status tsr_gemm_host(tsr_context *context, int64_t batch, float alpha, const tsr_operand *a, const tsr_operand *b,
                         float beta, const tsr_result *c, double *share) {
    double unwanted;
    if (!share) share = &unwanted;
    *share = 0;
    tsr_problem p;
    matrix_span spans[SPANS];
    tsr_status status = check_shapes(&p, spans, context, batch, a, b, c);
    if (status) return status;
    const tsr_operand addend = result_as_addend(c);
    if ((status = check_sum(&p, spans, alpha, beta, &addend)) || (status = check_pointers(&p, spans, NULL, 0)))
        return status;
    if (context->cuda) return offload_multiply(context, &p, share);
    tsr_plan plan = {.context = context, .problem = p};
    if ((status = plan_make(&plan)) || (status = plan_execute(&plan, &p, NULL))) return status;
    *share = 1;
    return TSR_OK;
}

double tsr_gemm_host_seconds(tsr_context *context, int64_t batch, const tsr_operand *a, const tsr_operand *b,
                             float beta, const tsr_result *c) {
    tsr_plan plan = {.context = context};
    matrix_span spans[SPANS];
    double seconds = 0;
    if (check_shapes(&plan.problem, spans, context, batch, a, b, c)) return 0;
    if (context->cuda) return offload_seconds(context, &plan.problem, !is_zero(beta), &seconds) ? 0 : seconds;
    return plan_make(&plan) ? 0 : plan_seconds(&plan);
}

/* ---- One product ------------------------------------------------------------------------------------------------- */

/* Counting without a locked instruction, where no other thread can count at the same time, takes a tenth off the
 * smallest products. */
static void count_product(tsr_context *context) {
#ifdef HAS_SINGLE_THREADED
    if (__libc_single_threaded) {
        const uint_fast64_t products = atomic_load_explicit(&context->products, memory_order_relaxed);
        atomic_store_explicit(&context->products, products + 1, memory_order_relaxed);
        return;
    }
#endif
    atomic_fetch_add_explicit(&context->products, 1, memory_order_relaxed);
}

tsr_status tsr_gemm(tsr_context *context, float alpha, const tsr_operand *a, const tsr_operand *b, float beta,
                    const tsr_result *c, const tsr_launch *launch) {
    if (context && a && b && c && !launch && cpu_multiply_small(context, alpha, a, b, beta, c)) {
        count_product(context);
        return TSR_OK;
    }
    return tsr_gemm_batch(context, 1, alpha, a, b, beta, c, launch);
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

tsr_status tsr_plan_create(tsr_plan **plan, tsr_context *context, int64_t batch, const tsr_operand *a,
                           const tsr_operand *b, const tsr_result *c) {
    if (!plan) return tsr_fail(TSR_INVALID_ARGUMENT, "plan is NULL");
    *plan = NULL;
    tsr_plan draft = {.context = context};
    tsr_status status = check_shapes(&draft.problem, draft.spans, context, batch, a, b, c);
    if (status || (status = plan_make(&draft))) return status;
    draft.small = batch == 1 && cpu_is_small(context, a, b, c);
    tsr_plan *made = malloc(sizeof *made);
    if (!made) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for a plan");
    *made = draft;
    *plan = made;
    return TSR_OK;
}

void tsr_plan_destroy(tsr_plan *plan) { free(plan); }

size_t tsr_plan_workspace(const tsr_plan *plan) { return plan ? plan_workspace(plan) : 0; }

double tsr_plan_seconds(const tsr_plan *plan) { return plan ? plan_seconds(plan) : 0; }

int tsr_plan_is_split(const tsr_plan *plan) { return plan && plan_is_split(plan); }

size_t tsr_plan_print(const tsr_plan *plan, char *buffer, size_t size) {
    tsr_text text = {buffer, buffer ? size : 0, 0};
    if (text.size) buffer[0] = '\0';
    if (plan) plan_print(plan, &text);
    return text.length;
}

/* The plan's problem and spans with these pointers. */
static void bind_pointers(const tsr_plan *plan, tsr_problem *p, matrix_span spans[SPAN_ADDEND], const float *a,
                          const float *b, float *c) {
    *p = plan->problem;
    memcpy(spans, plan->spans, sizeof plan->spans);
    p->a.data = spans[SPAN_A].data = a;
    p->b.data = spans[SPAN_B].data = b;
    p->c.data = c;
    spans[SPAN_C].data = c;
}

tsr_status tsr_plan_execute_add(const tsr_plan *plan, float alpha, const float *a, const float *b, float beta,
                                const tsr_operand *addend, float *c, const tsr_launch *launch) {
    if (!plan) return tsr_fail(TSR_INVALID_ARGUMENT, "plan is NULL");
    tsr_problem p;
    matrix_span spans[SPANS];
    bind_pointers(plan, &p, spans, a, b, c);
    tsr_status status;
    if ((status = check_sum(&p, spans, alpha, beta, addend)) ||
        (status = check_pointers(&p, spans, launch, plan_workspace(plan))))
        return status;
    return plan_execute(plan, &p, launch);
}

tsr_status tsr_plan_execute(const tsr_plan *plan, float alpha, const float *a, const float *b, float beta, float *c,
                            const tsr_launch *launch) {
    if (!plan) return tsr_fail(TSR_INVALID_ARGUMENT, "plan is NULL");
    if (plan->small && !launch && cpu_execute_small(plan->context, &plan->problem, alpha, a, b, beta, c)) {
        count_product(plan->context);
        return TSR_OK;
    }
    tsr_operand addend = result_as_addend(&plan->problem.c);
    addend.data = c;
    return tsr_plan_execute_add(plan, alpha, a, b, beta, &addend, c, launch);
}
