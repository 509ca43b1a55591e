/* cost.c: the cost model of the CPU engine, in seconds.
 *
 *     seconds = call + barriers + max(multiplying + packing, bytes / memory rate) / threads
 *
 * Multiplying counts whole tiles. For AMX the same terms, counted in multiply-adds of the ieee kernel, decide whether
 * AMX is chosen; that kernel's rate converts them to seconds.
 */
#include "cpu/cost.h"

#include <string.h>

#include "cpu/amx.h"
#include "cpu/kernel.h"

/* ---- The constants ----------------------------------------------------------------------------------------------- */

/* Rounded. The constants of avx512 and AMX are those of a Xeon (160 GFLOP/s a core; an EPYC has 112); the other rates
 * and the overheads are estimated. That is good enough to choose between the CPU and a GPU; the choice of AMX rests on
 * the AMX constants alone. */

/* Multiply-adds a second of one thread, of large products. */
static const struct {
    const char *kernel;
    double rate;
} rates[] = {{"avx512", 8e10}, {"avx2", 4.5e10}, {"neon", 2e10}, {"portable", 5e9}};

static const double rate_of_others = 5e9;

/* Bytes a second that one thread reads from memory. */
static const double memory_rate = 1.2e10;

/* Seconds of a call without a team, of calling workers that watch, and of one barrier. */
static const double call_seconds = 1e-7, team_seconds = 1e-6, barrier_seconds = 5e-7;

/* Multiply-adds that take as long as packing one element. */
static const double pack_cost = 25;

/* On AMX, in multiply-adds of the AVX-512 kernel: one multiply-add with so many components, splitting one element, and
 * one element of C for each block of k, beyond what that kernel needs. */
static const double amx_multiply_cost[] = {[2] = 0.27, [3] = 0.47}, amx_split_cost = 28, amx_sum_cost = 20;

/* ---- Estimates --------------------------------------------------------------------------------------------------- */

static double rate_of(const struct cpu_kernel *kernel) {
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (!strcmp(rates[i].kernel, kernel->name)) return rates[i].rate;
    return rate_of_others;
}

/* Multiply-adds of the ieee kernel that take as long. */
static double amx_cost(int64_t m, int64_t n, int64_t k, int components) {
    const double rows = (double)round_up(m, AMX_LANES), columns = (double)round_up(n, AMX_LANES);
    const double multiplying = amx_multiply_cost[components] * rows * columns * (double)round_up(k, AMX_STEP);
    const double splitting = amx_split_cost * ((double)m + (double)n) * (double)k;
    const double adding = amx_sum_cost * (double)m * (double)n * (double)ceil_div(k, AMX_KC);
    return multiplying + splitting + adding + COST_AMX_CALL;
}

double cost_amx_gain(int64_t m, int64_t n, int64_t k, int components) {
    return (double)m * (double)n * (double)k / amx_cost(m, n, k, components);
}

/* Stages of a product, each of which ends in a barrier where members share it. */
static double stages(const cpu_plan *plan, const tsr_problem *p) {
    if (plan->threads == 1 || plan->sharing != CPU_BY_BLOCKS) return 0;
    if (plan->by_row) return (double)p->batch;
    const double k_blocks = (double)ceil_div(p->k, plan->kc);
    if (plan->components) return (double)p->batch * k_blocks * (double)ceil_div(p->n, plan->nc);
    return (double)p->batch * k_blocks * (double)ceil_div(p->m, plan->mc) *
           (double)ceil_div(p->n, plan->blocks * plan->nc);
}

double cost_seconds(const cpu_plan *plan, const tsr_problem *p) {
    if (!p->m || !p->n || !p->batch) return call_seconds;
    const double m = (double)p->m, n = (double)p->n, k = (double)p->k, batch = (double)p->batch;
    const double floats = m * k * (double)operand_count(&p->a, p->batch) +
                          k * n * (double)operand_count(&p->b, p->batch) + m * n * batch;
    double work;
    if (plan->components)
        work = batch * amx_cost(p->m, p->n, p->k, plan->components);
    else {
        const double rows = plan->by_row ? m : (double)round_up(p->m, plan->kernel->mr);
        work = batch * (rows * n * k + pack_cost * ((plan->packs_a ? m * k : 0) + (plan->packs_b ? k * n : 0)));
    }
    const double computing = work / rate_of(plan->kernel), reading = floats * sizeof(float) / memory_rate;
    const double threads = (double)plan->threads;
    return call_seconds + (plan->threads > 1 ? team_seconds : 0) + barrier_seconds * stages(plan, p) +
           (computing > reading ? computing : reading) / threads;
}
