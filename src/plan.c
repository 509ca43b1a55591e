/* plan.c: sends a problem to the engine its context names, and says what was decided. */
#include "plan.h"

#include "rounding.h"

static bool on_cuda(const tsr_plan *plan) { return plan->context->options.device == TSR_DEVICE_CUDA; }

/* Estimates and executions are in the default floating-point mode: the caller's rounding changes no decision, and its
 * traps stay quiet. */
tsr_status plan_make(tsr_plan *plan) {
    const uint64_t mode = cpu_rounding_begin();
    const tsr_status status = on_cuda(plan) ? cuda_plan_make(&plan->cuda, plan->context, &plan->problem)
                                            : cpu_plan_make(&plan->cpu, plan->context, &plan->problem);
    cpu_rounding_end(mode);
    return status;
}

size_t plan_workspace(const tsr_plan *plan) { return on_cuda(plan) ? plan->cuda.workspace.bytes : plan->cpu.workspace; }

double plan_seconds(const tsr_plan *plan) {
    return on_cuda(plan) ? cuda_plan_seconds(&plan->cuda, &plan->problem) : plan->cpu.seconds;
}

bool plan_is_split(const tsr_plan *plan) { return on_cuda(plan) ? plan->cuda.split : plan->cpu.components > 0; }

static void print_seconds(double seconds, tsr_text *text) {
    const char *unit = seconds < 1e-3 ? "us" : seconds < 1 ? "ms" : "s";
    const double of_unit = seconds < 1e-3 ? 1e-6 : seconds < 1 ? 1e-3 : 1;
    tsr_text_add(text, "estimate: %.4g %s\n", seconds / of_unit, unit);
}

void plan_print(const tsr_plan *plan, tsr_text *text) {
    const tsr_problem *p = &plan->problem;
    tsr_text_add(text, "problem: %lld x %lld x %lld (m, n, k)", (long long)p->m, (long long)p->n, (long long)p->k);
    if (p->batch != 1) tsr_text_add(text, ", batch of %lld", (long long)p->batch);
    tsr_text_add(text, "\nprecision: %s\n", tsr_precision_name(plan->context->options.precision));
    if (plan->context->options.batch_invariant) tsr_text_add(text, "batch invariant: yes\n");
    if (on_cuda(plan))
        cuda_plan_print(&plan->cuda, p, text);
    else
        cpu_plan_print(&plan->cpu, p, text);
    tsr_text_add(text, "workspace: %zu bytes\n", plan_workspace(plan));
    const double seconds = plan_seconds(plan);
    if (seconds > 0) print_seconds(seconds, text);
}

tsr_status plan_execute(const tsr_plan *plan, const tsr_problem *problem, const tsr_launch *launch) {
    if (!problem->m || !problem->n || !problem->batch) return TSR_OK;
    const uint64_t mode = cpu_rounding_begin();
    tsr_status status = on_cuda(plan) ? cuda_execute(&plan->cuda, plan->context, problem, launch)
                                      : cpu_execute(&plan->cpu, problem, launch ? launch->workspace : NULL);
    cpu_rounding_end(mode);
    if (!status)
        atomic_fetch_add_explicit(&plan->context->products, (uint_fast64_t)problem->batch, memory_order_relaxed);
    return status;
}
