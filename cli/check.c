/* check.c: `tessera check`, the numerical contract of tessera.h put to the test on this machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accuracy.h"
#include "command.h"
#include "device.h"
#include "problem.h"
#include "progress.h"
#include "random.h"

/* ---- Families of matrices ---------------------------------------------------------------------------------------- */

/* Each fills A (m x k) and B (k x n), both in C order. */

static void fill_uniform(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    random_fill_uniform(r, a, m * k);
    random_fill_uniform(r, b, k * n);
}

static void fill_normal(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m * k; i++) a[i] = random_normal(r);
    for (int64_t i = 0; i < k * n; i++) b[i] = random_normal(r);
}

static float random_signed(random_source *r) { return 2 * random_uniform(r) - 1; }

static float random_wide(random_source *r) {
    float significand = (1 + random_uniform(r)) * (random_bits(r) & 1 ? 1.0f : -1.0f);
    return ldexpf(significand, (int)random_below(r, 121) - 60);
}

/* Exponents from -60 to 60, each element its own. */
static void fill_wide(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m * k; i++) a[i] = random_wide(r);
    for (int64_t i = 0; i < k * n; i++) b[i] = random_wide(r);
}

/* Column p of A times 2^e, row p of B times 2^-e: every term matters, however unlike the factors. */
static void fill_graded(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    for (int64_t p = 0; p < k; p++) {
        int exponent = (int)random_below(r, 121) - 60;
        for (int64_t i = 0; i < m; i++) a[i * k + p] = ldexpf(random_signed(r), exponent);
        for (int64_t j = 0; j < n; j++) b[p * n + j] = ldexpf(random_signed(r), -exponent);
    }
}

/* The second half of the sum nearly takes back the first. */
static void fill_cancelling(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    int64_t half = k / 2;
    fill_uniform(r, a, b, m, n, k);
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < half; p++) a[i * k + half + p] = -a[i * k + p] * (1 + 0x1p-20f * random_signed(r));
    for (int64_t p = 0; p < half; p++) memcpy(b + (half + p) * n, b + p * n, (size_t)n * sizeof *b);
}

/* Small enough that every sum is an integer below 2^24, so that any order of additions is exact. */
static void fill_integers(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    int64_t largest = (int64_t)sqrt(0x1p24 / (double)(k > 256 ? k : 256));
    for (int64_t i = 0; i < m * k; i++) a[i] = (float)(random_below(r, 2 * largest + 1) - largest);
    for (int64_t i = 0; i < k * n; i++) b[i] = (float)(random_below(r, 2 * largest + 1) - largest);
}

/* The same with A scaled to the smallest subnormal: exact still, unless subnormals are flushed. */
static void fill_subnormal(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    fill_integers(r, a, b, m, n, k);
    for (int64_t i = 0; i < m * k; i++) a[i] *= 0x1p-149f;
}

/* NaN, both infinities and an infinity against zeros, in random places. */
static void fill_nonfinite(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m * k; i++) a[i] = random_signed(r);
    for (int64_t i = 0; i < k * n; i++) b[i] = random_signed(r);
    a[random_below(r, m * k)] = INFINITY;
    a[random_below(r, m * k)] = -INFINITY;
    a[random_below(r, m * k)] = NAN;
    b[random_below(r, k * n)] = -INFINITY;
    int64_t p = random_below(r, k);
    a[random_below(r, m) * k + p] = INFINITY;
    for (int64_t j = 0; j < n; j += 2) b[p * n + j] = 0;
}

typedef struct family {
    const char *name;
    void (*fill)(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k);
    bool exact;        /* every result must be the exact one */
    bool skipped_tf32; /* tf32 promises nothing here */
} family;

static const family families[] = {
    {"uniform", fill_uniform, false, false},       {"normal", fill_normal, false, false},
    {"wide exponents", fill_wide, false, false},   {"graded", fill_graded, false, false},
    {"cancelling", fill_cancelling, false, false}, {"integers", fill_integers, true, false},
    {"subnormal", fill_subnormal, true, true},     {"NaN and Inf", fill_nonfinite, false, false},
};

enum { FAMILY_TOTAL = sizeof families / sizeof families[0] };

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

typedef enum scope { QUICK, FULL, GPU } scope; /* each run covers its own scope and those before it */

typedef struct shape {
    int64_t m, n, k;
    scope scope;
} shape;

/* Tiles with edges, a single row, a single column, long sums; then sizes at which a GPU's matrix engines are used. */
static const shape shapes[] = {
    {1, 1, 1, QUICK},       {17, 31, 13, QUICK},     {64, 64, 64, QUICK},    {129, 127, 257, QUICK},
    {1, 512, 700, FULL},    {512, 1, 700, FULL},     {33, 257, 2049, FULL},  {256, 192, 1000, FULL},
    {1031, 743, 517, FULL}, {2048, 1536, 1024, GPU}, {640, 1100, 8192, GPU},
};

enum { SHAPE_TOTAL = sizeof shapes / sizeof shapes[0] };

static int shapes_within(scope limit) {
    int count = 0;
    for (int i = 0; i < SHAPE_TOTAL; i++) count += shapes[i].scope <= limit;
    return count;
}

/* ---- Checking ---------------------------------------------------------------------------------------------------- */

/* What the products of one family at one precision came to. */
typedef struct summary {
    int products, failures;
    judgement worst; /* of the product nearest to what it is allowed, or furthest beyond */
    double share;    /* how much of what it is allowed that one uses */
} summary;

/* One (family, shape): its matrices in both orders, on the host, and the exact product. */
typedef struct material {
    float *a[2], *b[2], *c; /* as stored: [0] plainly, [1] transposed */
    exact_lines exact;
} material;

static void store_transposed(float *out, const float *in, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) out[j * rows + i] = in[i * cols + j];
}

static void material_free(material *x) {
    for (int t = 0; t < 2; t++) {
        free(x->a[t]);
        free(x->b[t]);
    }
    free(x->c);
    exact_free(&x->exact);
}

static int material_make(material *x, const family *f, shape s, bool tf32, uint64_t seed) {
    *x = (material){0};
    int status = EXIT_OK;
    for (int t = 0; t < 2 && !status; t++)
        if (!(status = matrix_allocate(&x->a[t], "A", s.m, s.k))) status = matrix_allocate(&x->b[t], "B", s.k, s.n);
    if (!status) status = matrix_allocate(&x->c, "C", s.m, s.n);
    if (!status) {
        random_source source = {seed};
        f->fill(&source, x->a[0], x->b[0], s.m, s.n, s.k);
        store_transposed(x->a[1], x->a[0], s.m, s.k);
        store_transposed(x->b[1], x->b[0], s.k, s.n);
        problem p = {s.m, s.n, s.k, false, false};
        tsr_operand a = problem_a(&p, x->a[0]), b = problem_b(&p, x->b[0]);
        bool all = (double)s.m * (double)s.n * (double)s.k <=
                   0x1p27; /* above, the float64 product would take seconds */
        status = exact_make(&x->exact, &a, &b, all ? 1 : 16, all ? 0 : 64, tf32, seed);
    }
    if (status) material_free(x);
    return status;
}

/* Multiplies in one layout and brings the product back to x->c, over NaNs, so that what is not written shows. */
static int multiply(device *d, const problem *p, const material *x) {
    size_t a_bytes = (size_t)(p->m * p->k) * sizeof(float), b_bytes = (size_t)(p->k * p->n) * sizeof(float);
    size_t c_bytes = (size_t)(p->m * p->n) * sizeof(float);
    const float *a_data = NULL, *b_data = NULL;
    float *c_data = NULL;
    for (int64_t i = 0; i < p->m * p->n; i++) x->c[i] = NAN;
    int status;
    if (!(status = device_input(d, &a_data, x->a[p->transpose_a], a_bytes)) &&
        !(status = device_input(d, &b_data, x->b[p->transpose_b], b_bytes)) &&
        !(status = device_output(d, &c_data, x->c, c_bytes)) && !(status = device_send(d, c_data, x->c, c_bytes))) {
        tsr_operand a = problem_a(p, a_data), b = problem_b(p, b_data);
        tsr_result c = problem_c(p, c_data);
        if (!(status = device_multiply(d, &a, &b, &c))) status = device_fetch(d, x->c, c_data, c_bytes);
    }
    device_release(d, c_data);
    device_release(d, b_data);
    device_release(d, a_data);
    return status;
}

static void report_failure(const family *f, const problem *p, tsr_precision precision, const judgement *j) {
    progress_print("FAILED: %s, %s, %lld x %lld x %lld %s: C(%lld, %lld) is %.9g, exactly %.9g; "
                   "%.3g units of %.0f, relative error %.2e, %lld inexact, %lld NaN or Inf misplaced\n",
                   f->name, precision_name(precision), (long long)p->m, (long long)p->n, (long long)p->k,
                   problem_layout(p), (long long)j->row, (long long)j->col, j->got, j->expected, j->worst, j->bound,
                   j->relative, (long long)j->inexact, (long long)j->misplaced);
}

/* All four layouts of one material at one precision. */
static int check_layouts(device *d, summary *total, const family *f, shape s, tsr_precision precision,
                         const material *x) {
    int status = device_use_precision(d, precision);
    for (int layout = 0; layout < 4 && !status; layout++) {
        problem p = {s.m, s.n, s.k, layout & 1, layout >> 1};
        if ((status = multiply(d, &p, x))) break;
        tsr_result c = problem_c(&p, x->c);
        judgement j = judge(&x->exact, &c);
        double share = precision != TSR_TF32 ? j.worst / j.bound : j.tf32_limit > 0 ? j.relative / j.tf32_limit : 0;
        if (total->products++ == 0 || share > total->share) {
            total->share = share;
            total->worst = j;
        }
        if (!within_contract(&j, precision) || (f->exact && j.inexact)) {
            if (total->failures++ == 0) report_failure(f, &p, precision, &j);
        }
    }
    return status;
}

/* ieee and fp32 are held to the bound of each element, tf32 to the limit of the whole. */
static void print_summary(const family *f, tsr_precision precision, const summary *s) {
    char bound[16] = "-", limit[16] = "-";
    if (precision == TSR_TF32)
        snprintf(limit, sizeof limit, "%.2e", s->worst.tf32_limit);
    else
        snprintf(bound, sizeof bound, "%.0f", s->worst.bound);
    progress_print("%-9s %-14s %8d  %8.3g %6s  %8.2e %8s  %6.3f  %s\n", precision_name(precision), f->name, s->products,
                   s->worst.worst, bound, s->worst.relative, limit, s->share, s->failures ? "FAILED" : "pass");
}

static int check_family(device *d, const options *chosen, const family *f, const tsr_precision *precisions,
                        int precision_count, scope limit, int *products, int *failures) {
    summary totals[3] = {{0}};
    int status = EXIT_OK;
    for (int i = 0; i < SHAPE_TOTAL && !status; i++) {
        shape s = shapes[i];
        if (s.scope > limit) continue;
        progress_step("%s, %lld x %lld x %lld", f->name, (long long)s.m, (long long)s.n, (long long)s.k);
        material x;
        bool tf32 = precisions[precision_count - 1] == TSR_TF32;
        if ((status = material_make(&x, f, s, tf32, chosen->seed + (uint64_t)i))) return status;
        for (int p = 0; p < precision_count && !status; p++)
            if (!(f->skipped_tf32 && precisions[p] == TSR_TF32))
                status = check_layouts(d, &totals[p], f, s, precisions[p], &x);
        material_free(&x);
    }
    for (int p = 0; p < precision_count && !status; p++) {
        if (!totals[p].products) continue;
        print_summary(f, precisions[p], &totals[p]);
        *products += totals[p].products;
        *failures += totals[p].failures;
    }
    return status;
}

static int run_check(const options *chosen) {
    if (chosen->argument_count) return misuse("unexpected argument '%s'", chosen->arguments[0]);
    device d;
    int status = device_open(&d, chosen, INFINITY, 0);
    if (status) return status;
    scope limit = chosen->quick ? QUICK : d.made_from.device == TSR_DEVICE_CUDA ? GPU : FULL;
    tsr_precision precisions[3];
    int precision_count = precisions_chosen(chosen, precisions), products = 0, failures = 0;
    printf("tessera %s on %s\n\n"
           "Of each family, the product that comes nearest to what is allowed. error: worst |C - AB| of an\n"
           "element in units of 2^-24 (|A||B|), of which ieee and fp32 may have K+2; relative: Frobenius\n"
           "norm of C - AB over that of AB.\n\n"
           "%-9s %-14s %8s  %8s %6s  %8s %8s  %6s\n",
           tsr_version(), d.name, "precision", "family", "products", "error", "bound", "relative", "limit", "used");
    progress_begin(FAMILY_TOTAL * shapes_within(limit));
    for (int i = 0; i < FAMILY_TOTAL && !status; i++)
        status = check_family(&d, chosen, &families[i], precisions, precision_count, limit, &products, &failures);
    device_close(&d);
    if (status) return status;
    if (failures) {
        progress_print("\nverdict: FAILED, %d of %d products break the contract\n", failures, products);
        return EXIT_FAILED;
    }
    progress_print("\nverdict: pass, all %d products keep the contract\n", products);
    return EXIT_OK;
}

const command check_command = {
    .name = "check",
    .arguments = "",
    .summary = "check the numerical contract here, against float64",
    .description = "Multiplies matrices of every family the contract speaks of (uniform, normal, exponents from\n"
                   "2^-60 to 2^60, graded, cancelling, integers, subnormal, NaN and Inf) in several sizes and all\n"
                   "four layouts, and compares with float64. ieee and fp32 must keep |C - AB| <= (K+2) 2^-24\n"
                   "(|A||B|) in every element; tf32 must have no larger relative error than the product of its\n"
                   "rounded operands, summed in float32. Integers and subnormals must come out exact, NaN and Inf\n"
                   "where IEEE arithmetic puts them. Exit code 1 where one product does not. Without --precision all\n"
                   "three are checked; `--device auto` takes the GPU where there is one.\n",
    .options = OPTION_DEVICE | OPTION_PRECISION | OPTION_THREADS | OPTION_KERNEL | OPTION_SEED | OPTION_QUICK,
    .run = run_check,
};
