/* reference.c: `tessera reference`, the five reference problems at full size, timed and checked against float64. */
#include <math.h>
#include <stdio.h>

#include "accuracy.h"
#include "command.h"
#include "progress.h"
#include "workload.h"

/* KernelBench level 1, numbers 1, 2, 8, 16 and 18. */
static const struct {
    const char *name;
    product_shape shape;
} references[] = {
    {.name = "square", .shape = {4096, 4096, 4096, false, false}},
    {.name = "standard", .shape = {2048, 4096, 8192, false, false}},
    {.name = "irregular", .shape = {8205, 5921, 2949, false, false}},
    {.name = "transposed A", .shape = {2048, 4096, 8192, true, false}},
    {.name = "transposed both", .shape = {2048, 4096, 8192, true, true}},
};

enum { REFERENCE_TOTAL = sizeof references / sizeof references[0] };

/* Bands of the float64 check: close enough to meet every large block of C, for about a second of float64 work. */
enum { ROW_STEP = 128, COL_STEP = 512 };

static int judge_product(judgement *j, const workload *w, tsr_precision precision, uint64_t seed) {
    tsr_operand a = shape_a(&w->shape, w->a), b = shape_b(&w->shape, w->b);
    tsr_result c = shape_c(&w->shape, w->c);
    exact_lines exact;
    int status = exact_make(&exact, &a, &b, ROW_STEP, COL_STEP, precision == TSR_TF32, seed);
    if (status) return status;
    *j = judge(&exact, &c);
    exact_free(&exact);
    return EXIT_OK;
}

static int run_problem(device *d, int index, const options *chosen, bool *kept) {
    const char *name = references[index].name;
    const product_shape *p = &references[index].shape;
    workload w;
    timing t;
    judgement j;
    progress_step("%s: filling", name);
    int status = workload_make(&w, d, p, chosen->seed + (uint64_t)index);
    if (!status) {
        progress_step("%s: multiplying", name);
        status = workload_time(&w, d, &t, chosen->seconds, NULL);
    }
    if (!status) {
        progress_step("%s: checking", name);
        status = device_fetch(d, w.c, w.c_data, (size_t)(p->m * p->n) * sizeof(float));
    }
    if (!status) status = judge_product(&j, &w, chosen->precision, chosen->seed);
    workload_free(&w, d);
    if (status) return status;
    *kept = within_contract(&j, chosen->precision);
    double share = contract_share(&j, chosen->precision);
    char shape[32];
    snprintf(shape, sizeof shape, "%lld,%lld,%lld", (long long)p->m, (long long)p->n, (long long)p->k);
    progress_print("%-16s %-15s %-6s %10.3f %10.1f %10.2e %8.4f  %s\n", name, shape, shape_layout(p), 1e3 * t.median,
                   1e-9 * shape_flops(p) / t.median, j.relative, share, *kept ? "pass" : "FAILED");
    return EXIT_OK;
}

static int run_reference(const options *chosen) {
    if (chosen->argument_count) return misuse("unexpected argument '%s'", chosen->arguments[0]);
    device d;
    double bytes = 0;
    for (int i = 0; i < REFERENCE_TOTAL; i++) bytes = fmax(bytes, shape_bytes(&references[i].shape));
    int status = device_open(&d, chosen, INFINITY, bytes), failures = 0;
    if (status) return status;
    printf("tessera %s on %s, precision %s\n\n%-16s %-15s %-6s %10s %10s %10s %8s\n", tsr_version(), d.name,
           tsr_precision_name(chosen->precision), "problem", "M,N,K", "layout", "ms", "GFLOP/s", "rel. error",
           "of bound");
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
    .description = "Multiplies the five reference problems (KernelBench level 1, numbers 1, 2, 8, 16 and 18) on\n"
                   "uniform random matrices and compares a row in every 128 and a column in every 512 with float64.\n"
                   "Prints the median time, the relative error, and how much of what the contract allows the worst\n"
                   "element uses. `--device auto` takes the GPU where there is one. Exit code 1 where a product\n"
                   "breaks the contract.\n",
    .options = OPTION_PRECISION | OPTION_THREADS | OPTION_DEVICE | OPTION_KERNEL | OPTION_SECONDS | OPTION_SEED,
    .run = run_reference,
};
