/* reference.c: `tessera reference`, the five reference problems at full size, timed and checked against float64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "accuracy.h"
#include "command.h"
#include "device.h"
#include "problem.h"
#include "progress.h"
#include "random.h"

/* KernelBench level 1, numbers 1, 2, 8, 16 and 18. */
static const struct {
    const char *name;
    problem shape;
} references[] = {
    {"square", {4096, 4096, 4096, false, false}},        {"standard", {2048, 4096, 8192, false, false}},
    {"irregular", {8205, 5921, 2949, false, false}},     {"transposed A", {2048, 4096, 8192, true, false}},
    {"transposed both", {2048, 4096, 8192, true, true}},
};

enum { REFERENCE_TOTAL = sizeof references / sizeof references[0] };

/* Bands of the float64 check: a row in each 128 rows crosses every tile of C there is, columns cross-check. */
enum { ROW_STEP = 128, COL_STEP = 512 };

/* The matrices of one problem, on the host and where the device sees them. */
typedef struct arena {
    float *a, *b, *c;
    const float *a_data, *b_data;
    float *c_data;
} arena;

static int arena_make(arena *x, device *d, const problem *p, uint64_t seed) {
    *x = (arena){0};
    int status;
    if ((status = matrix_allocate(&x->a, "A", p->m, p->k)) || (status = matrix_allocate(&x->b, "B", p->k, p->n)) ||
        (status = matrix_allocate(&x->c, "C", p->m, p->n)))
        return status;
    random_source source = {seed};
    random_fill_uniform(&source, x->a, p->m * p->k);
    random_fill_uniform(&source, x->b, p->k * p->n);
    size_t bytes = sizeof(float);
    if ((status = device_input(d, &x->a_data, x->a, (size_t)(p->m * p->k) * bytes)) ||
        (status = device_input(d, &x->b_data, x->b, (size_t)(p->k * p->n) * bytes)))
        return status;
    return device_output(d, &x->c_data, x->c, (size_t)(p->m * p->n) * bytes);
}

static void arena_free(arena *x, device *d) {
    device_release(d, x->c_data);
    device_release(d, x->b_data);
    device_release(d, x->a_data);
    free(x->c);
    free(x->b);
    free(x->a);
}

static int time_problem(device *d, timing *t, const problem *p, const arena *x, double seconds) {
    tsr_operand a = problem_a(p, x->a_data), b = problem_b(p, x->b_data);
    tsr_result c = problem_c(p, x->c_data);
    tsr_plan *plan;
    tsr_status made = tsr_plan_create(&plan, d->context, 1, &a, &b, &c);
    if (made) return fail_status("cannot plan this product", made);
    int status = device_time(d, t, plan, x->a_data, x->b_data, x->c_data, seconds);
    tsr_plan_destroy(plan);
    if (status) return status;
    return device_fetch(d, x->c, x->c_data, (size_t)(p->m * p->n) * sizeof(float));
}

static int judge_problem(judgement *j, const problem *p, const arena *x, tsr_precision precision, uint64_t seed) {
    tsr_operand a = problem_a(p, x->a), b = problem_b(p, x->b);
    tsr_result c = problem_c(p, x->c);
    exact_lines exact;
    int status = exact_make(&exact, &a, &b, ROW_STEP, COL_STEP, precision == TSR_TF32, seed);
    if (status) return status;
    *j = judge(&exact, &c);
    exact_free(&exact);
    return EXIT_OK;
}

static int run_problem(device *d, int index, const options *chosen, bool *kept) {
    const char *name = references[index].name;
    const problem *p = &references[index].shape;
    arena x;
    timing t;
    judgement j;
    progress_step("%s: filling", name);
    int status = arena_make(&x, d, p, chosen->seed + (uint64_t)index);
    if (!status) {
        progress_step("%s: multiplying", name);
        status = time_problem(d, &t, p, &x, chosen->seconds);
    }
    if (!status) {
        progress_step("%s: checking", name);
        status = judge_problem(&j, p, &x, chosen->precision, chosen->seed);
    }
    arena_free(&x, d);
    if (status) return status;
    *kept = within_contract(&j, chosen->precision);
    double share = chosen->precision == TSR_TF32 ? j.relative / j.tf32_limit : j.worst / j.bound;
    char shape[32];
    snprintf(shape, sizeof shape, "%lld,%lld,%lld", (long long)p->m, (long long)p->n, (long long)p->k);
    progress_print("%-16s %-15s %-6s %10.3f %10.1f %10.2e %8.4f  %s\n", name, shape, problem_layout(p), 1e3 * t.median,
                   1e-9 * problem_flops(p) / t.median, j.relative, share, *kept ? "pass" : "FAILED");
    return EXIT_OK;
}

static int run_reference(const options *chosen) {
    if (chosen->argument_count) return misuse("unexpected argument '%s'", chosen->arguments[0]);
    device d;
    double bytes = 0;
    for (int i = 0; i < REFERENCE_TOTAL; i++) bytes = fmax(bytes, problem_bytes(&references[i].shape));
    int status = device_open(&d, chosen, INFINITY, bytes), failures = 0;
    if (status) return status;
    printf("tessera %s on %s, precision %s\n\n%-16s %-15s %-6s %10s %10s %10s %8s\n", tsr_version(), d.name,
           precision_name(chosen->precision), "problem", "M,N,K", "layout", "ms", "GFLOP/s", "rel. error", "of bound");
    fflush(stdout);
    progress_begin(3 * REFERENCE_TOTAL);
    for (int i = 0; i < REFERENCE_TOTAL && !status; i++) {
        bool kept = false;
        status = run_problem(&d, i, chosen, &kept);
        failures += !kept;
    }
    device_close(&d);
    if (status) return status;
    if (failures) {
        progress_print("\nverdict: FAILED, %d of %d products break the contract\n", failures, REFERENCE_TOTAL);
        return EXIT_FAILED;
    }
    progress_print("\nverdict: pass, all %d products keep the contract\n", REFERENCE_TOTAL);
    return EXIT_OK;
}

const command reference_command = {
    .name = "reference",
    .arguments = "",
    .summary = "run the five reference problems at full size, timed and checked",
    .description =
        "Multiplies the five reference problems (KernelBench level 1, numbers 1, 2, 8, 16 and 18) on uniform random\n"
        "matrices and compares a row in every 128 and a column in every 512 with float64. Prints the median time, the\n"
        "relative error, and how much of what the contract allows the worst element uses. `--device auto` takes the "
        "GPU\n"
        "where there is one. Exit code 1 where a product breaks the contract.\n",
    .options = OPTION_PRECISION | OPTION_THREADS | OPTION_DEVICE | OPTION_KERNEL | OPTION_SECONDS | OPTION_SEED,
    .run = run_reference,
};
