/* amx_plan.c: how a product is computed on AMX.
 *
 * Where k is cut follows from k alone, and the product is never transposed (C^T = B^T A^T), because components are
 * multiplied in an order of their own: so neither threads, strides nor packing change a bit. If max_workspace is too
 * small even for the smallest blocks, the ieee kernels compute the product: that does change bits, but so would other
 * k blocks.
 */
#include <assert.h>

#include "cpu/amx.h"
#include "cpu/cost.h"
#include "cpu/plan.h"
#include "rounding.h"

enum { MC = 256, NC = 4096 };

/* 6 bytes for an element. */
static_assert(
    6 * AMX_KC * (MC + AMX_LANES) <= 1 << 20,
    "a block of A and the columns of B in use: half of the 2 MiB that cores with AMX have of second-level cache");
static_assert(6 * AMX_KC * (MC + NC) < 16 << 20, "what a thread may take: see kernel.h");
static_assert(MC % AMX_LANES == 0 && NC % AMX_LANES == 0, "only the last panel of a matrix is padded");

/* ---- Which products ---------------------------------------------------------------------------------------------- */

double amx_gain(const tsr_context *context, const tsr_problem *p) {
    return context->cpu_amx == CPU_AMX_NEVER ? 0 : cost_amx_gain(p->m, p->n, p->k, amx_components(context));
}

bool amx_is_faster(const tsr_context *context, int64_t m, int64_t n, int64_t k) {
    if ((double)m * (double)n * (double)k <= COST_AMX_CALL) return false;
    const uint64_t mode = cpu_rounding_begin(); /* the same choice, and the same bits, whatever the caller's */
    const bool faster = cost_amx_gain(m, n, k, amx_components(context)) > 1;
    cpu_rounding_end(mode);
    return faster;
}

/* ---- Plan -------------------------------------------------------------------------------------------------------- */

/* Each member has a block of A. Where members share panels of B there are two copies, used in turn; otherwise each has
 * its own. */
static void lay_out(cpu_plan *plan) {
    const int64_t floats = amx_panel_floats(plan->kc, plan->components);
    plan->a_floats = plan->packs_a ? plan->mc / AMX_LANES * floats : 0;
    plan->b_floats = plan->packs_b ? plan->nc / AMX_LANES * floats : 0;
    plan->a_copies = plan->threads;
    plan->b_copies = plan->sharing == CPU_BY_BLOCKS && plan->threads > 1 ? 2 : plan->threads;
    cpu_plan_size_workspace(plan);
}

/* Smaller blocks, then fewer threads until the workspace fits. False where none of it helps. */
static bool fit_workspace(cpu_plan *plan, size_t limit) {
    for (lay_out(plan); plan->workspace > limit; lay_out(plan)) {
        if (plan->packs_b && plan->nc > AMX_LANES)
            plan->nc = round_up(plan->nc / 2, AMX_LANES);
        else if (plan->packs_a && plan->mc > AMX_LANES)
            plan->mc = round_up(plan->mc / 2, AMX_LANES);
        else if (plan->threads > 1)
            plan->threads /= 2;
        else
            return false;
    }
    return true;
}

/* Multiply-adds on AMX that a thread must have to be worth its overhead. */
static const double work_per_thread = 6e6;

/* Members that share a product begin with equal numbers of blocks of rows, where there are enough rows. */
static void share_among_threads(cpu_plan *plan, const tsr_problem *p, int most) {
    const double work = (double)p->m * (double)p->n * (double)p->k * (double)p->batch / work_per_thread;
    plan->threads = work < 1 ? 1 : work < most ? (int)work : most;
    plan->threads = (int)min64(plan->threads, AMX_MOST_THREADS);
    plan->sharing = p->batch < plan->threads ? CPU_BY_BLOCKS : CPU_BY_ITEMS;
    const int64_t blocks = round_up(ceil_div(p->m, MC), plan->sharing == CPU_BY_BLOCKS ? plan->threads : 1);
    plan->mc = round_up(ceil_div(p->m, blocks), AMX_LANES);
    plan->nc = even_block(p->n, NC, AMX_LANES);
}

bool amx_plan_make(cpu_plan *plan, tsr_context *context, const tsr_problem *p) {
    *plan = (cpu_plan){.kernel = context->cpu_kernel,
                       .components = amx_components(context),
                       .amx_gain = amx_gain(context, p),
                       .context = context};
    plan->kc = even_block(p->k, AMX_KC, AMX_STEP);
    plan->packs_a = !amx_packed_form(&p->a, p->batch);
    plan->packs_b = !amx_packed_form(&p->b, p->batch);
    share_among_threads(plan, p, context->options.threads);
    const size_t limit = context->options.max_workspace;
    if (!fit_workspace(plan, limit ? limit : SIZE_MAX)) return false;
    plan->seconds = cost_seconds(plan, p);
    return true;
}

bool amx_plan_part(cpu_plan *part, const cpu_plan *whole, const tsr_problem *p, size_t limit) {
    *part = *whole;
    share_among_threads(part, p, whole->threads);
    return fit_workspace(part, limit);
}

void amx_plan_print(const cpu_plan *plan, const tsr_problem *problem, tsr_text *text) {
    static const char *const products[] = {
        [2] = "three bf16 products: hh, hm, mh", [3] = "six bf16 products: hh, hm, mh, mm, hl, lh"};
    tsr_text_add(text, "engine: cpu\n");
    tsr_text_add(text, "kernel: amx (%s; what they cannot carry by %s)\n", products[plan->components],
                 plan->kernel->name);
    tsr_text_add(text, "amx: chosen, at %.2f x the speed of %s by its estimate\n", plan->amx_gain, plan->kernel->name);
    tsr_text_add(text, "tile: %d x %d\n", AMX_LANES, AMX_LANES);
    cpu_plan_print_blocks(plan, text);
    if (plan->sharing == CPU_BY_BLOCKS)
        tsr_text_add(text, "threads: %d, sharing %lld blocks of at most %lld rows\n", plan->threads,
                     (long long)ceil_div(problem->m, plan->mc), (long long)plan->mc);
    else
        tsr_text_add(text, "threads: %d, each on products of its own\n", plan->threads);
}
