/* workload.c: matrices to time a product with. */
#include "workload.h"

#include <stdlib.h>

#include "command.h"
#include "random.h"

int workload_make(workload *w, device *d, const product_shape *shape, uint64_t seed) {
    *w = (workload){.shape = *shape};
    int64_t m = shape->m, n = shape->n, k = shape->k;
    int status;
    if ((status = matrix_allocate(&w->a, "A", m, k)) || (status = matrix_allocate(&w->b, "B", k, n)) ||
        (status = matrix_allocate(&w->c, "C", m, n)))
        return status;
    random_source source = {seed};
    random_fill_uniform(&source, w->a, m * k);
    random_fill_uniform(&source, w->b, k * n);
    if ((status = device_input(d, &w->a_data, w->a, (size_t)(m * k) * sizeof(float))) ||
        (status = device_input(d, &w->b_data, w->b, (size_t)(k * n) * sizeof(float))))
        return status;
    return device_output(d, &w->c_data, w->c, (size_t)(m * n) * sizeof(float));
}

void workload_free(workload *w, device *d) {
    device_release(d, w->c_data);
    device_release(d, w->b_data);
    device_release(d, w->a_data);
    free(w->c);
    free(w->b);
    free(w->a);
}

int workload_time(const workload *w, device *d, timing *t, double seconds, char **plan_text) {
    tsr_operand a = shape_a(&w->shape, w->a_data), b = shape_b(&w->shape, w->b_data);
    tsr_result c = shape_c(&w->shape, w->c_data);
    tsr_plan *plan;
    tsr_status made = tsr_plan_create(&plan, d->context, 1, &a, &b, &c);
    if (made) return fail_status("cannot plan this product", made);
    int status = plan_text ? plan_as_text(plan_text, plan) : EXIT_OK;
    if (!status) status = device_time(d, t, plan, w->a_data, w->b_data, w->c_data, seconds);
    tsr_plan_destroy(plan);
    return status;
}
