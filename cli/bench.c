/* bench.c: `tessera bench`, GFLOP/s by shape and precision. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "json.h"
#include "progress.h"
#include "workload.h"

typedef struct measurement {
    product_shape shape;
    tsr_precision precision;
    timing time;
    char *plan; /* as tsr_plan_print has it */
} measurement;

/* Measured if no shapes are given: squares small and large, odd sizes, few columns, a long sum. */
static const product_shape cpu_shapes[] = {
    {64, 64, 64, false, false},       {256, 256, 256, false, false},  {1024, 1024, 1024, false, false},
    {2048, 2048, 2048, false, false}, {1031, 743, 517, false, false}, {8192, 32, 512, false, false},
    {256, 256, 16384, false, false},
};

/* One square that is small for a GPU, then the reference problems. */
static const product_shape gpu_shapes[] = {
    {1024, 1024, 1024, false, false}, {4096, 4096, 4096, false, false}, {2048, 4096, 8192, false, false},
    {8205, 5921, 2949, false, false}, {2048, 4096, 8192, true, false},  {2048, 4096, 8192, true, true},
};

/* One shape at each of the precisions. */
static int measure_shape(device *d, measurement *out, const product_shape *p, const tsr_precision *precisions,
                         int count, const options *chosen) {
    workload w;
    int status = workload_make(&w, d, p, chosen->seed);
    for (int i = 0; i < count && !status; i++) {
        progress_step("%lld x %lld x %lld %s %s", (long long)p->m, (long long)p->n, (long long)p->k, shape_layout(p),
                      tsr_precision_name(precisions[i]));
        out[i].shape = *p;
        out[i].precision = precisions[i];
        if (!(status = device_use_precision(d, precisions[i])))
            status = workload_time(&w, d, &out[i].time, chosen->seconds, &out[i].plan);
    }
    workload_free(&w, d);
    return status;
}

/* ---- Printing ---------------------------------------------------------------------------------------------------- */

static double gflops(const product_shape *p, double seconds) {
    return seconds > 0 ? 1e-9 * shape_flops(p) / seconds : 0;
}

static void print_row(const measurement *x) {
    const product_shape *p = &x->shape;
    char shape[72];
    snprintf(shape, sizeof shape, "%lld,%lld,%lld", (long long)p->m, (long long)p->n, (long long)p->k);
    progress_print("%-17s %-6s %-9s  %9.1f %9.1f  %10.4f %10.4f  %7d\n", shape, shape_layout(p),
                   tsr_precision_name(x->precision), gflops(p, x->time.best), gflops(p, x->time.median),
                   1e3 * x->time.best, 1e3 * x->time.median, x->time.samples * x->time.calls_per_sample);
}

/* The plan's lines "name: value" as an object. */
static void print_json_plan(const char *plan) {
    const char *separator = "";
    putchar('{');
    while (*plan) {
        size_t length = strcspn(plan, "\n");
        const char *colon = memchr(plan, ':', length);
        if (colon) {
            const char *value = colon + 1 + strspn(colon + 1, " ");
            printf("%s", separator);
            json_string(stdout, plan, (size_t)(colon - plan));
            printf(": ");
            json_string(stdout, value, (size_t)(plan + length - value));
            separator = ", ";
        }
        plan += length + (plan[length] == '\n');
    }
    putchar('}');
}

static void print_json(const char *device_name, const measurement *measured, int count) {
    char date[32];
    date_now(date);
    printf("{\n  \"version\": \"%s\",\n  \"date\": \"%s\",\n  \"machine\": ", tsr_version(), date);
    json_string(stdout, device_name, strlen(device_name));
    printf(",\n  \"results\": [");
    for (int i = 0; i < count; i++) {
        const measurement *x = &measured[i];
        const product_shape *p = &x->shape;
        printf("%s\n    {\"m\": %lld, \"n\": %lld, \"k\": %lld, \"layout\": \"%s\", \"precision\": \"%s\", ",
               i ? "," : "", (long long)p->m, (long long)p->n, (long long)p->k, shape_layout(p),
               tsr_precision_name(x->precision));
        printf("\"best_ms\": %.6g, \"median_ms\": %.6g, \"best_gflops\": %.6g, \"median_gflops\": %.6g, ",
               1e3 * x->time.best, 1e3 * x->time.median, gflops(p, x->time.best), gflops(p, x->time.median));
        printf("\"samples\": %d, \"calls_per_sample\": %d, \"plan\": ", x->time.samples, x->time.calls_per_sample);
        print_json_plan(x->plan);
        putchar('}');
    }
    printf("\n  ]\n}\n");
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

/* The shapes of the command line; none there: *count is 0. */
static int parse_shapes(product_shape **shapes, int *count, const options *chosen) {
    int words = chosen->argument_count;
    *count = 0;
    *shapes = calloc((size_t)words + 1, sizeof **shapes);
    if (!*shapes) return fail("no memory for %d shapes", words);
    if (!words) return EXIT_OK;
    if (!strchr(chosen->arguments[0], ',')) {
        if (words != 3) return misuse("write one shape as M N K, or any number as M,N,K");
        *count = 1;
        return shape_parse(*shapes, chosen->arguments[0], chosen->arguments[1], chosen->arguments[2]);
    }
    for (int status; *count < words; ++*count)
        if ((status = shape_parse_word(*shapes + *count, chosen->arguments[*count]))) return status;
    return EXIT_OK;
}

static int measure_all(device *d, const options *chosen, const product_shape *shapes, int shape_count) {
    tsr_precision precisions[3];
    int precision_count = precisions_chosen(chosen, precisions), status = EXIT_OK;
    measurement *measured = calloc((size_t)shape_count, 3 * sizeof *measured);
    if (!measured) return fail("no memory for %d measurements", shape_count);
    if (!chosen->json)
        printf("tessera %s on %s\n\n%-17s %-6s %-9s  %19s  %21s\n%-17s %-6s %-9s  %9s %9s  %10s %10s  %7s\n",
               tsr_version(), d->name, "", "", "", "GFLOP/s", "ms", "M,N,K", "layout", "precision", "best", "median",
               "best", "median", "calls");
    progress_begin(shape_count * precision_count);
    int count = 0;
    for (int i = 0; i < shape_count && !status; i++) {
        product_shape p = shapes[i];
        p.transpose_a ^= chosen->transpose_a;
        p.transpose_b ^= chosen->transpose_b;
        status = measure_shape(d, measured + count, &p, precisions, precision_count, chosen);
        for (int j = 0; j < precision_count && !status && !chosen->json; j++) print_row(&measured[count + j]);
        count += precision_count;
    }
    progress_end();
    if (!status && chosen->json) print_json(d->name, measured, count);
    for (int i = 0; i < count; i++) free(measured[i].plan);
    free(measured);
    return status;
}

static int run_bench(const options *chosen) {
    product_shape *shapes = NULL;
    int count, status = parse_shapes(&shapes, &count, chosen);
    device d;
    if (!status && !(status = device_open(&d, chosen, INFINITY, 0))) {
        bool gpu = d.made_from.device == TSR_DEVICE_CUDA;
        if (count)
            status = measure_all(&d, chosen, shapes, count);
        else if (gpu)
            status = measure_all(&d, chosen, gpu_shapes, sizeof gpu_shapes / sizeof gpu_shapes[0]);
        else
            status = measure_all(&d, chosen, cpu_shapes, sizeof cpu_shapes / sizeof cpu_shapes[0]);
        device_close(&d);
    }
    free(shapes);
    return status;
}

const command bench_command = {
    .name = "bench",
    .arguments = "[M N K | M,N,K ...]",
    .summary = "measure GFLOP/s by shape and precision",
    .description = "Times products of uniform random matrices, A (M x K) times B (K x N), at each precision (or the\n"
                   "one given) and prints the best and the median. The matrices lie on the device and are used again\n"
                   "and again, so that small ones come from its caches. Without shapes it takes a list of its own.\n"
                   "`--device auto` takes the GPU where there is one.\n",
    .options = OPTION_TRANSPOSE | OPTION_PRECISION | OPTION_THREADS | OPTION_INVARIANT | OPTION_DEVICE | OPTION_KERNEL |
               OPTION_SECONDS | OPTION_SEED | OPTION_JSON,
    .run = run_bench,
};
