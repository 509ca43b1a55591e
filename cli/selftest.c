/* selftest.c: `tessera selftest`, products whose results are known, on every kernel this machine can run.
 *
 * Operands are small integers, so that every sum is exact in float32 whatever its order and must be equal, not close.
 * What is expected is computed in 64-bit integers, away from the units under test, and its checksum is a constant
 * below: a processor that gets the reference wrong as well is found out, too. Uniform data, whose rounding depends on
 * the order of the sums, is held to the contract of tessera.h. */
#include "selftest.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "accuracy.h"
#include "command.h"
#include "device.h"
#include "random.h"

/* ---- The products ------------------------------------------------------------------------------------------------ */

typedef enum content {
    INTEGERS,     /* -8 .. 8 */
    SPECIAL_ROWS, /* the same, with rows of A that hold an Inf, a NaN, subnormals, nothing but zeros */
    ONE_ROUNDING, /* 24-bit integers and k = 1: each element is one product, rounded once */
    UNIFORM       /* [0, 1), held to the contract's bound */
} content;

typedef enum addend { NO_ADDEND, SCALED_C, BIAS } addend; /* beta*C, or a row that is added to all rows */

typedef struct known_product {
    const char *name;
    int64_t m, n, k, batch;
    bool transpose_a, transpose_b, transpose_c; /* as stored */
    int64_t gap;                                /* floats between stored rows */
    content content;
    addend addend;
    bool brief;        /* `tessera info` computes it, too, and looser precisions do */
    uint64_t checksum; /* of the expected bits; 0 with UNIFORM */
} known_product;

static const known_product products[] = {
    {"one element", 1, 1, 1, 1, 0, 0, 0, 0, INTEGERS, NO_ADDEND, true, 0x2f63bdbbd281b7dfu},
    {"edges", 67, 45, 300, 1, 0, 0, 0, 0, INTEGERS, NO_ADDEND, true, 0xf507e4340cf293a7u},
    {"A transposed", 129, 65, 33, 1, 1, 0, 0, 1, INTEGERS, NO_ADDEND, false, 0x14e04cb877a314dfu},
    {"B transposed", 31, 97, 64, 1, 0, 1, 0, 5, INTEGERS, NO_ADDEND, false, 0x8002cd2dfa6534c7u},
    {"all transposed", 53, 47, 71, 1, 1, 1, 1, 3, INTEGERS, NO_ADDEND, false, 0x5ec58d6c804f6fd7u},
    {"long sums", 20, 24, 2000, 1, 0, 0, 0, 0, INTEGERS, NO_ADDEND, false, 0x0eaae3dd2459f8a5u},
    {"large", 300, 260, 520, 1, 0, 0, 0, 0, INTEGERS, NO_ADDEND, false, 0x23068c8f74af20e5u},
    {"batch", 17, 19, 23, 5, 0, 1, 0, 2, INTEGERS, NO_ADDEND, true, 0xec8d21303ccb7487u},
    {"few terms", 150, 140, 3, 1, 0, 0, 0, 0, INTEGERS, NO_ADDEND, false, 0x5b2a5d13ac31a1c5u},
    {"one row", 1, 300, 200, 1, 0, 0, 0, 0, INTEGERS, NO_ADDEND, false, 0x13c99000f9e5c315u},
    {"one column", 300, 1, 200, 1, 0, 0, 0, 0, INTEGERS, NO_ADDEND, false, 0x0e903108324c0315u},
    {"few rows", 4, 512, 520, 1, 0, 0, 0, 0, INTEGERS, NO_ADDEND, false, 0xd988d27229e00325u},
    {"few columns", 512, 5, 70, 1, 0, 0, 0, 0, INTEGERS, NO_ADDEND, false, 0xa9875ecdb3466b25u},
    {"alpha and beta", 70, 50, 40, 1, 0, 0, 0, 0, INTEGERS, SCALED_C, true, 0xe847328daa00dd15u},
    {"bias", 33, 130, 65, 2, 0, 0, 0, 0, INTEGERS, BIAS, false, 0xbe4fba61448a51f5u},
    {"special rows", 40, 36, 50, 1, 0, 0, 0, 0, SPECIAL_ROWS, NO_ADDEND, true, 0x4a569f7c716f2629u},
    {"one rounding", 60, 70, 1, 1, 0, 0, 0, 0, ONE_ROUNDING, NO_ADDEND, false, 0xfd34ee3eee8aadb1u},
    {"uniform", 65, 63, 257, 1, 0, 0, 0, 0, UNIFORM, NO_ADDEND, true, 0},
};

enum { PRODUCT_TOTAL = sizeof products / sizeof products[0], GUARD = 16 /* floats on both sides of C */ };

static const float alpha_used = -2, beta_used = 3; /* with SCALED_C */

/* Rows of A in SPECIAL_ROWS, and the power of two that makes integers subnormal. */
enum { INFINITE_ROW = 3, NAN_ROW = 7, SUBNORMAL_ROW = 11, ZERO_ROW = 13, SPECIAL_TERM = 5 };
static const float least_subnormal = 0x1p-149f;

/* A product in host memory. The element (i, j) of item t is data[t*batch_stride + i*row_stride + j*col_stride]. */
typedef struct stored {
    float *data;
    size_t count; /* floats */
    int64_t row_stride, col_stride, batch_stride;
} stored;

typedef struct prepared {
    stored a, b, c; /* c: as it is before, with GUARD poisoned floats on both sides */
    stored bias;
    float *expected; /* c afterwards, the whole of its memory; with UNIFORM what is around the elements */
    float *got;
} prepared;

static const float poison = -123456;

static bool stored_make(stored *x, int64_t rows, int64_t cols, int64_t batch, bool transposed, int64_t gap) {
    int64_t outer = transposed ? cols : rows, inner = (transposed ? rows : cols) + gap;
    x->row_stride = transposed ? 1 : inner;
    x->col_stride = transposed ? inner : 1;
    x->batch_stride = outer * inner;
    x->count = (size_t)(batch * outer * inner) + 2 * GUARD;
    x->data = malloc(x->count * sizeof(float));
    for (size_t i = 0; x->data && i < x->count; i++) x->data[i] = poison;
    return x->data;
}

static size_t at(const stored *x, int64_t item, int64_t i, int64_t j) {
    return (size_t)(GUARD + item * x->batch_stride + i * x->row_stride + j * x->col_stride);
}

static float random_element(random_source *r, content what) {
    if (what == UNIFORM) return random_uniform(r);
    if (what == ONE_ROUNDING) return (float)(random_below(r, 1 << 25) - (1 << 24));
    return (float)(random_below(r, 17) - 8);
}

static void fill(const known_product *p, prepared *x, random_source *r) {
    for (int64_t item = 0; item < p->batch; item++) {
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t l = 0; l < p->k; l++) x->a.data[at(&x->a, item, i, l)] = random_element(r, p->content);
        for (int64_t l = 0; l < p->k; l++)
            for (int64_t j = 0; j < p->n; j++) x->b.data[at(&x->b, item, l, j)] = random_element(r, p->content);
        for (int64_t i = 0; i < p->m && p->addend == SCALED_C; i++)
            for (int64_t j = 0; j < p->n; j++) x->c.data[at(&x->c, item, i, j)] = random_element(r, INTEGERS);
        for (int64_t j = 0; j < p->n && p->addend == BIAS; j++)
            x->bias.data[at(&x->bias, item, 0, j)] = random_element(r, INTEGERS);
    }
    if (p->content != SPECIAL_ROWS) return;
    x->a.data[at(&x->a, 0, INFINITE_ROW, SPECIAL_TERM)] = INFINITY;
    x->a.data[at(&x->a, 0, NAN_ROW, SPECIAL_TERM)] = NAN;
    for (int64_t l = 0; l < p->k; l++) {
        x->a.data[at(&x->a, 0, SUBNORMAL_ROW, l)] *= least_subnormal;
        x->a.data[at(&x->a, 0, ZERO_ROW, l)] = 0;
    }
}

static int64_t exact_sum(const known_product *p, const prepared *x, int64_t item, int64_t i, int64_t j) {
    int64_t sum = 0;
    for (int64_t l = 0; l < p->k; l++)
        sum += (int64_t)x->a.data[at(&x->a, item, i, l)] * (int64_t)x->b.data[at(&x->b, item, l, j)];
    return sum;
}

static float expected_element(const known_product *p, const prepared *x, int64_t item, int64_t i, int64_t j) {
    if (p->content == SPECIAL_ROWS && i == NAN_ROW) return NAN;
    if (p->content == SPECIAL_ROWS && i == INFINITE_ROW) {
        float met = x->b.data[at(&x->b, item, SPECIAL_TERM, j)];
        return met > 0 ? INFINITY : met < 0 ? -INFINITY : NAN;
    }
    if (p->content == SPECIAL_ROWS && i == SUBNORMAL_ROW) {
        int64_t sum = 0;
        for (int64_t l = 0; l < p->k; l++)
            sum += (int64_t)(x->a.data[at(&x->a, item, i, l)] / least_subnormal) *
                   (int64_t)x->b.data[at(&x->b, item, l, j)];
        return (float)sum * least_subnormal;
    }
    int64_t sum = exact_sum(p, x, item, i, j);
    if (p->addend == SCALED_C)
        sum = (int64_t)alpha_used * sum + (int64_t)beta_used * (int64_t)x->c.data[at(&x->c, item, i, j)];
    if (p->addend == BIAS) sum += (int64_t)x->bias.data[at(&x->bias, item, 0, j)];
    return (float)sum;
}

/* All NaN are one, and so are both zeros. */
static uint32_t bits_of(float x) {
    if (isnan(x)) return 0x7fc00000;
    if (x == 0) return 0;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* FNV-1a over the bits of the expected elements. */
static uint64_t checksum_of(const known_product *p, const prepared *x) {
    uint64_t sum = 0xcbf29ce484222325u;
    for (int64_t item = 0; item < p->batch; item++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++)
                sum = (sum ^ bits_of(x->expected[at(&x->c, item, i, j)])) * 0x100000001b3u;
    return sum;
}

static void release(prepared *x) {
    free(x->a.data);
    free(x->b.data);
    free(x->c.data);
    free(x->bias.data);
    free(x->expected);
    free(x->got);
    *x = (prepared){0};
}

static bool prepare(prepared *x, const known_product *p) {
    *x = (prepared){0};
    if (!stored_make(&x->a, p->m, p->k, p->batch, p->transpose_a, p->gap) ||
        !stored_make(&x->b, p->k, p->n, p->batch, p->transpose_b, p->gap) ||
        !stored_make(&x->c, p->m, p->n, p->batch, p->transpose_c, p->gap) ||
        !stored_make(&x->bias, 1, p->n, p->batch, false, 0))
        return false;
    x->expected = malloc(x->c.count * sizeof(float));
    x->got = malloc(x->c.count * sizeof(float));
    if (!x->expected || !x->got) return false;
    random_source r = {(uint64_t)(p - products)};
    fill(p, x, &r);
    memcpy(x->expected, x->c.data, x->c.count * sizeof(float));
    for (int64_t item = 0; item < p->batch && p->content != UNIFORM; item++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++) x->expected[at(&x->c, item, i, j)] = expected_element(p, x, item, i, j);
    return true;
}

/* ---- The kernels ------------------------------------------------------------------------------------------------- */

/* A run over kernels: what was computed, and the first product that is wrong. */
typedef struct selftest {
    prepared inputs[PRODUCT_TOTAL];
    bool brief;
    int products;
    int wrong;
    char sentence[400]; /* about the first wrong one */
} selftest;

static int note(selftest *s, const char *kernel, tsr_precision precision, const known_product *p, const char *format,
                ...) __attribute__((format(printf, 5, 6)));
static int note(selftest *s, const char *kernel, tsr_precision precision, const known_product *p, const char *format,
                ...) {
    if (s->wrong++) return EXIT_FAILED;
    int length = snprintf(s->sentence, sizeof s->sentence, "%s at %s, product \"%s\" (%lld x %lld x %lld): ", kernel,
                          tsr_precision_name(precision), p->name, (long long)p->m, (long long)p->n, (long long)p->k);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->sentence + length, sizeof s->sentence - (size_t)length, format, arguments);
    va_end(arguments);
    return EXIT_FAILED;
}

/* Whether this precision promises this row of these matrices; tf32 says nothing of subnormals. */
static bool is_promised(const known_product *p, tsr_precision precision, int64_t i) {
    return !(precision == TSR_TF32 && p->content == SPECIAL_ROWS && i == SUBNORMAL_ROW);
}

static int compare(selftest *s, const char *kernel, tsr_precision precision, const known_product *p,
                   const prepared *x) {
    float *got = x->got;
    if (p->content == UNIFORM) {
        const tsr_operand a = {x->a.data + GUARD, p->m, p->k, x->a.row_stride, x->a.col_stride, 0, NULL};
        const tsr_operand b = {x->b.data + GUARD, p->k, p->n, x->b.row_stride, x->b.col_stride, 0, NULL};
        const tsr_result c = {got + GUARD, p->m, p->n, x->c.row_stride, x->c.col_stride, 0};
        exact_lines exact;
        int status = exact_make(&exact, &a, &b, 1, 1, true, 1);
        if (status) return status;
        judgement j = judge(&exact, &c);
        exact_free(&exact);
        if (!within_contract(&j, precision))
            return note(s, kernel, precision, p, "element (%lld, %lld) is %.9g, must be %.9g by the contract's bound",
                        (long long)j.row, (long long)j.col, j.got, j.expected);
    }
    for (int64_t item = 0; item < p->batch; item++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++) {
                size_t here = at(&x->c, item, i, j);
                if (p->content != UNIFORM && is_promised(p, precision, i) &&
                    bits_of(got[here]) != bits_of(x->expected[here]))
                    return note(s, kernel, precision, p, "element (%lld, %lld) of item %lld is %.9g, must be %.9g",
                                (long long)i, (long long)j, (long long)item, (double)got[here],
                                (double)x->expected[here]);
                got[here] = x->expected[here];
            }
    for (size_t i = 0; i < x->c.count; i++)
        if (bits_of(got[i]) != bits_of(x->expected[i]))
            return note(s, kernel, precision, p, "memory beside C is written, float %zu of %zu", i, x->c.count);
    return EXIT_OK;
}

/* Copies the operands to the device, multiplies, and brings all memory of C back into x->got. */
static int multiply(selftest *s, device *d, const char *kernel, const known_product *p, const prepared *x) {
    const float *a = NULL, *b = NULL, *bias = NULL;
    float *c = NULL;
    const size_t c_bytes = x->c.count * sizeof(float);
    memcpy(x->got, x->c.data, c_bytes);
    int status = device_input(d, &a, x->a.data, x->a.count * sizeof(float));
    if (!status) status = device_input(d, &b, x->b.data, x->b.count * sizeof(float));
    if (!status) status = device_input(d, &bias, x->bias.data, x->bias.count * sizeof(float));
    if (!status) status = device_output(d, &c, x->got, c_bytes);
    if (!status) status = device_send(d, c, x->got, c_bytes);
    if (!status) {
        const tsr_operand left = {a + GUARD, p->m, p->k, x->a.row_stride, x->a.col_stride, x->a.batch_stride, NULL};
        const tsr_operand right = {b + GUARD, p->k, p->n, x->b.row_stride, x->b.col_stride, x->b.batch_stride, NULL};
        const tsr_result result = {c + GUARD, p->m, p->n, x->c.row_stride, x->c.col_stride, x->c.batch_stride};
        const tsr_operand itself = {c + GUARD, p->m, p->n, x->c.row_stride, x->c.col_stride, x->c.batch_stride, NULL};
        const tsr_operand row = {bias + GUARD, p->m, p->n, 0, 1, x->bias.batch_stride, NULL};
        const tsr_launch launch = {.stream = d->stream};
        const bool scaled = p->addend == SCALED_C;
        tsr_status computed = tsr_gemm_add(d->context, p->batch, scaled ? alpha_used : 1, &left, &right,
                                           scaled ? beta_used : p->addend == BIAS, scaled ? &itself : &row, &result,
                                           &launch);
        if (computed) status = note(s, kernel, d->made_from.precision, p, "%s", tsr_last_error());
    }
    if (!status) status = device_fetch(d, x->got, c, c_bytes);
    device_release(d, a);
    device_release(d, b);
    device_release(d, bias);
    device_release(d, c);
    return status;
}

/* Kernels for thin results or short sums alone refuse other shapes when forced. */
static bool takes(tsr_context *context, const known_product *p, const prepared *x) {
    const tsr_operand a = {NULL, p->m, p->k, x->a.row_stride, x->a.col_stride, x->a.batch_stride, NULL};
    const tsr_operand b = {NULL, p->k, p->n, x->b.row_stride, x->b.col_stride, x->b.batch_stride, NULL};
    const tsr_result c = {NULL, p->m, p->n, x->c.row_stride, x->c.col_stride, x->c.batch_stride};
    tsr_plan *plan;
    tsr_status status = tsr_plan_create(&plan, context, p->batch, &a, &b, &c);
    tsr_plan_destroy(plan);
    return status != TSR_INVALID_ARGUMENT;
}

/* The products, or the brief ones, on one kernel (NULL: the plan chooses) at one precision. */
static int test_precision(selftest *s, const device *opened, const char *label, const char *kernel,
                          tsr_precision precision, bool brief) {
    device d = *opened; /* with a context of its own */
    d.made_from.kernel = kernel;
    d.made_from.precision = precision;
    tsr_status made = tsr_context_create(&d.context, &d.made_from);
    if (made == TSR_INVALID_ARGUMENT) return EXIT_OK; /* not a kernel for this precision */
    if (made) return fail_status(label, made);
    int status = EXIT_OK;
    for (int i = 0; i < PRODUCT_TOTAL; i++) {
        const known_product *p = &products[i];
        if (brief && !p->brief) continue;
        if (p->content == ONE_ROUNDING && precision != TSR_IEEE) continue;
        if (kernel && !takes(d.context, p, &s->inputs[i])) continue;
        status = multiply(s, &d, label, p, &s->inputs[i]);
        if (!status) status = compare(s, label, precision, p, &s->inputs[i]);
        s->products++;
        if (status) break;
    }
    tsr_context_destroy(d.context);
    return status;
}

/* All products at the strictest precision that the kernel keeps, the brief ones at the others. Prints a line unless
 * `to` is NULL. */
static int test_kernel(selftest *s, const device *d, const char *label, const char *kernel, FILE *to) {
    static const tsr_precision precisions[] = {TSR_IEEE, TSR_FP32, TSR_TF32};
    const int before = s->products;
    char tested[24] = "";
    int status = EXIT_OK;
    for (size_t i = 0; i < sizeof precisions / sizeof precisions[0] && !status; i++) {
        const int products_before = s->products;
        status = test_precision(s, d, label, kernel, precisions[i], s->brief || s->products > before);
        if (s->products > products_before) {
            strcat(tested, tested[0] ? " " : "");
            strcat(tested, tsr_precision_name(precisions[i]));
        }
    }
    if (to)
        fprintf(to, "%-32s %-15s %4d products  %s\n", label, tested[0] ? tested : "-", s->products - before,
                status ? "FAILED" : "passed");
    return status;
}

/* Kernels of a device, or the one that is asked for. */
typedef struct kernels_test {
    selftest *s;
    const device *d;
    const char *prefix, *only; /* "cpu" or "cuda"; NULL: all */
    FILE *to;
    int status;
} kernels_test;

/* A kernel that fails does not end the run. */
static int test_one_of(void *data, const char *name) {
    kernels_test *all = data;
    char label[96];
    snprintf(label, sizeof label, "%s kernel %s", all->prefix, name);
    if ((!all->only || strcmp(all->only, name) == 0) && test_kernel(all->s, all->d, label, name, all->to))
        all->status = EXIT_FAILED;
    return EXIT_OK;
}

static int test_kernels(selftest *s, const device *d, const char *prefix, const char *only, FILE *to) {
    kernels_test all = {s, d, prefix, only, to, EXIT_OK};
    const int status = device_kernels(prefix, test_one_of, &all);
    return status ? status : all.status;
}

/* A GPU that the library cannot use is said to be so, and is no failure unless it was asked for. */
static int test_gpu(selftest *s, int index, const options *chosen, FILE *to) {
    options cuda = *chosen;
    cuda.device = CHOOSE_CUDA;
    cuda.device_index = index;
    cuda.kernel = NULL;
    if (chosen->device == CHOOSE_AUTO) {
        tsr_options probe = TSR_OPTIONS_DEFAULT;
        probe.device = TSR_DEVICE_CUDA;
        probe.device_index = index;
        tsr_context *context;
        tsr_status made = tsr_context_create(&context, &probe);
        tsr_context_destroy(context);
        if (made == TSR_UNSUPPORTED || made == TSR_NO_DEVICE) {
            if (to) fprintf(to, "cuda:%d is not tested: %s\n", index, tsr_last_error());
            return EXIT_OK;
        }
    }
    device d;
    int status = device_open(&d, &cuda, 0, 0);
    if (status) return status;
    if (to) fprintf(to, "%s\n", d.name);
    status = s->brief ? test_kernel(s, &d, "cuda, kernel by plan", NULL, NULL)
                      : test_kernels(s, &d, "cuda", chosen->kernel, to);
    device_close(&d);
    return status;
}

static int test_cpu(selftest *s, const options *chosen, FILE *to) {
    options cpu = *chosen;
    cpu.device = CHOOSE_CPU;
    cpu.kernel = NULL;
    device d;
    int status = device_open(&d, &cpu, 0, 0);
    if (status) return status;
    if (to) fprintf(to, "%s\n", d.name);
    status = test_kernels(s, &d, "cpu", chosen->kernel, to);
    device_close(&d);
    return status;
}

/* The reference itself: 64-bit integers on this processor, against constants. */
static int test_reference(selftest *s, FILE *to) {
    for (int i = 0; i < PRODUCT_TOTAL; i++) {
        const known_product *p = &products[i];
        if (!prepare(&s->inputs[i], p)) return fail("no memory for %zu bytes", s->inputs[i].c.count * sizeof(float));
        uint64_t sum = p->content == UNIFORM ? 0 : checksum_of(p, &s->inputs[i]);
        if (sum == p->checksum) continue;
        if (to) fprintf(to, "%-32s FAILED\n", "reference");
        return note(s, "the reference in 64-bit integers", TSR_IEEE, p, "its checksum is %016llx, must be %016llx",
                    (unsigned long long)sum, (unsigned long long)p->checksum);
    }
    return EXIT_OK;
}

static int test_all(selftest *s, const options *chosen, FILE *to) {
    int status = test_reference(s, to);
    if (!status && chosen->device != CHOOSE_CUDA) status = test_cpu(s, chosen, to);
    const int gpus = chosen->device == CHOOSE_AUTO ? device_gpu_count() : 0;
    for (int index = 0; index < (s->brief && gpus ? 1 : gpus); index++)
        if (test_gpu(s, index, chosen, to)) status = EXIT_FAILED;
    if (chosen->device == CHOOSE_CUDA) status = test_gpu(s, chosen->device_index, chosen, to);
    for (int i = 0; i < PRODUCT_TOTAL; i++) release(&s->inputs[i]);
    return status;
}

/* ---- The commands ------------------------------------------------------------------------------------------------ */

int selftest_print_brief(FILE *to) {
    selftest s = {.brief = true};
    const options chosen = {.precision = TSR_FP32, .batch = 1, .seed = 1, .seconds = 1};
    int status = test_all(&s, &chosen, NULL);
    if (!status)
        fprintf(to, "selftest: passed (%d products)\n", s.products);
    else
        fprintf(to, "selftest: FAILED: %s\n", s.wrong ? s.sentence : "it could not run");
    return status;
}

static int run_selftest(const options *chosen) {
    if (chosen->argument_count) return misuse("unexpected argument '%s'", chosen->arguments[0]);
    selftest s = {.brief = false};
    int status = test_all(&s, chosen, stdout);
    if (!status && !s.products)
        return fail("there is no kernel '%s' that runs here: `tessera info` lists them", chosen->kernel);
    if (!status)
        printf("verdict: passed, all %d products have the known result\n", s.products);
    else
        printf("verdict: FAILED\n");
    return s.wrong ? fail("%s", s.sentence) : status;
}

const command selftest_command = {
    .name = "selftest",
    .arguments = "",
    .summary = "products with known results on every kernel this machine can run: is it computing right?",
    .description =
        "Multiplies matrices whose products are known to the bit, on every kernel that runs here, at every\n"
        "precision it keeps: odd sizes, transposes, gaps, a batch, NaN, Inf and subnormals. It takes about a\n"
        "second, and finds a broken processor, GPU or build. `tessera check` measures accuracy.\n",
    .options = OPTION_DEVICE | OPTION_THREADS | OPTION_KERNEL,
    .run = run_selftest,
};
