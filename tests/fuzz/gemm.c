/* gemm.c: products through every entry point of tessera.h on every CPU kernel, with operands between guard pages.
 *
 * Operands may only be read while the call runs, C has a known pattern around and between its elements, and the result
 * is compared with a loop in float64: exactly for integers, by the contract's bound for floats of any size. What must
 * be refused (NULL, shapes that do not agree, elements of C that share an address, an operand in C) must leave C as it
 * was. */
#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "tessera.h"

enum { MOST_KERNELS = 8, MOST_FLOATS = 1 << 16, MOST_WORK = 40000 };

static char kernels[MOST_KERNELS][32];
static int kernel_count;

static void find_kernels(void) {
    static char text[16384];
    tsr_info_print(text, sizeof text);
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        static const char start[] = "cpu kernel: ";
        if (strncmp(line, start, sizeof start - 1) || !strstr(line, "runs here") || kernel_count == MOST_KERNELS)
            continue;
        line += sizeof start - 1;
        snprintf(kernels[kernel_count++], sizeof kernels[0], "%.*s", (int)strcspn(line, ","), line);
    }
}

/* ---- Matrices ---------------------------------------------------------------------------------------------------- */

typedef struct matrix {
    arena memory;
    float *data; /* of element (0, 0) of item 0 */
    int64_t rows, cols, batch, row_stride, col_stride, batch_stride;
} matrix;

static float *element(const matrix *x, int64_t item, int64_t i, int64_t j) {
    return x->data + item * x->batch_stride + i * x->row_stride + j * x->col_stride;
}

static void choose_strides(choices *c, matrix *x) {
    const int64_t gap = choose(c, 1, 3), padding = choose(c, 0, 5);
    switch (choose(c, 0, 5)) {
    case 0: x->col_stride = gap, x->row_stride = gap * x->cols + padding; break;
    case 1: x->row_stride = gap, x->col_stride = gap * x->rows + padding; break;
    case 2: x->col_stride = -gap, x->row_stride = gap * x->cols + padding; break;
    case 3: x->row_stride = -(x->cols + padding), x->col_stride = 1; break;
    case 4: x->row_stride = choose(c, -40, 40), x->col_stride = choose(c, -40, 40); break;
    default: x->row_stride = choose(c, 0, 1) ? 0 : x->cols, x->col_stride = choose(c, 0, 1); break;
    }
    const int64_t outer = llabs(x->row_stride) * x->rows, inner = llabs(x->col_stride) * x->cols;
    x->batch_stride = choose(c, 0, 3) ? (outer > inner ? outer : inner) + padding : choose(c, -20, 20);
}

static int64_t reach(int64_t count, int64_t stride) { return count ? (count - 1) * stride : 0; }

/* Where the lowest element lies below (0, 0), and how many floats the matrix spans. */
static int64_t span_of(const matrix *x, int64_t *below) {
    const int64_t reaches[3] = {reach(x->rows, x->row_stride), reach(x->cols, x->col_stride),
                                reach(x->batch, x->batch_stride)};
    int64_t lowest = 0, highest = 0;
    for (int i = 0; i < 3; i++) *(reaches[i] < 0 ? &lowest : &highest) += reaches[i];
    *below = -lowest;
    return x->rows && x->cols && x->batch ? highest - lowest + 1 : 0;
}

static matrix matrix_make(choices *c, int64_t rows, int64_t cols, int64_t batch) {
    matrix x = {.rows = rows, .cols = cols, .batch = batch};
    choose_strides(c, &x);
    int64_t below, floats = span_of(&x, &below);
    if (floats > MOST_FLOATS) {
        x.col_stride = 1, x.row_stride = cols, x.batch_stride = rows * cols;
        floats = span_of(&x, &below);
    }
    x.memory = arena_make((size_t)floats, choose(c, 0, 1));
    x.data = x.memory.data + below;
    return x;
}

static uint64_t seed;

static uint32_t next_random(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

/* Small integers, or floats of which `spread` says how far their exponents lie apart; 0 is any bits. */
static float random_value(bool integers, int spread) {
    if (integers) return (float)((int)(next_random() % 17) - 8);
    uint32_t bits = next_random();
    if (spread)
        bits = (bits & 0x807fffff) | (uint32_t)(127 - spread + (int)(next_random() % (2 * (uint32_t)spread + 1))) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- One product ------------------------------------------------------------------------------------------------- */

typedef struct product {
    bool integers;
    float alpha, beta;
    matrix a, b, c, addend;
    bool has_addend; /* of its own */
    tsr_precision precision;
    float *before;    /* all of C's memory */
    uint8_t *written; /* by the product: one for each float of C's memory */
    bool shared;      /* elements of C share an address, or A lies in C */
} product;

static void check_element(const product *p, int64_t item, int64_t i, int64_t j) {
    double sum = 0, magnitude = 0, added = 0;
    for (int64_t l = 0; l < p->a.cols && p->alpha != 0; l++) {
        const double term = (double)*element(&p->a, item, i, l) * (double)*element(&p->b, item, l, j);
        sum += term;
        magnitude += fabs(term);
    }
    const size_t at = (size_t)(element(&p->c, item, i, j) - p->c.memory.data);
    if (p->beta != 0) added = (double)(p->has_addend ? *element(&p->addend, item, i, j) : p->before[at]);
    const double exact = (double)p->alpha * sum + (double)p->beta * added, got = (double)p->c.memory.data[at];
    if (p->integers) {
        EXPECT(got == exact, "element (%lld, %lld) of item %lld is %.9g, not %.9g", (long long)i, (long long)j,
               (long long)item, got, exact);
        return;
    }
    const double total = fabs((double)p->alpha) * magnitude + fabs((double)p->beta * added);
    const double terms = (double)p->a.cols;
    const double underflow = 0x1p-149 * (2 + terms * (1 + fabs((double)p->alpha)) + fabs((double)p->beta));
    /* Beyond this a partial sum may overflow, and float64 has nothing to say about it. */
    if (!(total < 1e37) || !(magnitude < 1e37) || p->precision == TSR_TF32) return;
    EXPECT(fabs(got - exact) <= (terms + 4) * 0x1p-24 * total + underflow,
           "element (%lld, %lld) of item %lld is %.9g, not %.9g: alpha %g, beta %g, k %lld", (long long)i, (long long)j,
           (long long)item, got, exact, (double)p->alpha, (double)p->beta, (long long)p->a.cols);
}

static void check_result(const product *p, tsr_status status) {
    for (size_t at = 0; at < p->c.memory.floats; at++)
        if (status || !p->written[at])
            EXPECT(!memcmp(&p->c.memory.data[at], &p->before[at], sizeof(float)),
                   "float %zu of %zu %s was written (%s)", at, p->c.memory.floats,
                   status ? "of a refused product" : "beside C", tsr_last_error());
    for (int64_t item = 0; item < p->c.batch && !status; item++)
        for (int64_t i = 0; i < p->c.rows; i++)
            for (int64_t j = 0; j < p->c.cols; j++) check_element(p, item, i, j);
}

static tsr_operand operand_of(const matrix *x) {
    return (tsr_operand){x->data, x->rows, x->cols, x->row_stride, x->col_stride, x->batch_stride, NULL};
}

/* By plan, perhaps with a workspace of exactly the size it asks for. */
static tsr_status by_plan(choices *c, tsr_context *context, const product *p, const tsr_operand *a,
                          const tsr_operand *b, const tsr_operand *addend, const tsr_result *result) {
    tsr_plan *plan;
    tsr_status status = tsr_plan_create(&plan, context, p->c.batch, a, b, result);
    if (status) return status;
    const size_t bytes = tsr_plan_workspace(plan);
    const bool own = choose(c, 0, 1) && bytes <= (16 << 20);
    arena workspace = arena_make(own ? (bytes + 3) / 4 : 0, false);
    const tsr_launch launch = {.workspace = own && bytes ? workspace.data : NULL, .workspace_size = bytes};
    status = addend ? tsr_plan_execute_add(plan, p->alpha, a->data, b->data, p->beta, addend, result->data, &launch)
                    : tsr_plan_execute(plan, p->alpha, a->data, b->data, p->beta, result->data, &launch);
    arena_free(&workspace);
    tsr_plan_destroy(plan);
    return status;
}

/* With one operand packed: by the library, or into memory between guard pages. */
static tsr_status by_packed(choices *c, tsr_context *context, const product *p, tsr_operand a, tsr_operand b,
                            const tsr_operand *addend, const tsr_result *result) {
    const tsr_side side = choose(c, 0, 1) ? TSR_LEFT : TSR_RIGHT;
    tsr_operand *operand = side == TSR_LEFT ? &a : &b;
    operand->batch_stride = 0;
    tsr_packed *packed;
    tsr_status status;
    if (choose(c, 0, 1)) {
        status = tsr_pack(&packed, context, side, operand, NULL);
        if (status) return status;
        operand->packed = packed;
        status = tsr_gemm_add(context, p->c.batch, p->alpha, &a, &b, p->beta, addend, result, NULL);
        tsr_packed_destroy(packed);
        return status;
    }
    const size_t bytes = tsr_pack_size(context, side, operand->rows, operand->cols);
    arena memory = arena_make((bytes + 3) / 4, false);
    status = tsr_pack_at(&packed, memory.data, context, side, 1, operand);
    if (!status) {
        operand->packed = packed;
        operand->data = memory.data;
        status = tsr_gemm_add(context, p->c.batch, p->alpha, &a, &b, p->beta, addend, result, NULL);
    }
    arena_free(&memory);
    return status;
}

/* Calls, having spoilt an argument where `spoilt` says so; *must_fail: it has to be refused. */
static tsr_status call(choices *c, tsr_context *context, product *p, int64_t spoilt, bool *must_fail) {
    tsr_operand a = operand_of(&p->a), b = operand_of(&p->b), addend = operand_of(p->has_addend ? &p->addend : &p->c);
    tsr_result result = {p->c.data, p->c.rows, p->c.cols, p->c.row_stride, p->c.col_stride, p->c.batch_stride};
    const bool is_empty = !p->c.rows || !p->c.cols || !p->c.batch, reads = !is_empty && p->a.cols && p->alpha != 0;
    const int64_t entry = choose(c, 0, 7), batch = p->c.batch;
    *must_fail = p->shared;
    switch (spoilt) {
    case 1: a.data = NULL, *must_fail |= reads; break;
    case 2: b.data = NULL, *must_fail |= reads; break;
    case 3: result.data = NULL, *must_fail |= !is_empty; break;
    case 4: a.rows++, *must_fail = true; break;
    case 5: b.rows += 1 + choose(c, 0, 3), *must_fail = true; break;
    case 6: result.cols = -1, *must_fail = true; break;
    case 7: a.data = (const float *)((const char *)a.data + choose(c, 1, 3)), *must_fail |= reads; break;
    case 8: a.row_stride = INT64_MAX / 2, *must_fail |= p->a.rows > 1 && p->a.cols && batch; break;
    case 9: *must_fail = true; return tsr_gemm(choose(c, 0, 1) ? context : NULL, 1, NULL, &b, 0, &result, NULL);
    case 10: *must_fail = true; return tsr_gemm_batch(NULL, batch, 1, &a, &b, 0, &result, NULL);
    case 11: *must_fail = true; return tsr_gemm_batch(context, -1 - choose(c, 0, 9), 1, &a, &b, 0, &result, NULL);
    case 12:
        *must_fail |= p->beta != 0;
        return tsr_gemm_add(context, batch, p->alpha, &a, &b, p->beta, NULL, &result, NULL);
    default: break;
    }
    if (p->has_addend || entry == 2)
        return entry & 1 ? by_plan(c, context, p, &a, &b, &addend, &result)
                         : tsr_gemm_add(context, batch, p->alpha, &a, &b, p->beta, &addend, &result, NULL);
    double share;
    switch (entry) {
    case 0:
        if (batch == 1) return tsr_gemm(context, p->alpha, &a, &b, p->beta, &result, NULL);
        break;
    case 3: return tsr_gemm_host(context, batch, p->alpha, &a, &b, p->beta, &result, &share);
    case 4: return by_plan(c, context, p, &a, &b, NULL, &result);
    case 5:
        if (!spoilt && !p->shared && (batch == 1 || (p->a.batch_stride == 0 && p->b.batch_stride == 0)))
            return by_packed(c, context, p, a, b, &addend, &result);
        break;
    default: break;
    }
    return tsr_gemm_batch(context, batch, p->alpha, &a, &b, p->beta, &result, NULL);
}

static void fill(product *p, int spread) {
    for (size_t i = 0; i < p->a.memory.floats; i++) p->a.memory.data[i] = random_value(p->integers, spread);
    for (size_t i = 0; i < p->b.memory.floats; i++) p->b.memory.data[i] = random_value(p->integers, spread);
    for (size_t i = 0; i < p->addend.memory.floats; i++) p->addend.memory.data[i] = random_value(p->integers, spread);
    const bool poisoned = p->beta == 0 || p->has_addend;
    for (size_t i = 0; i < p->c.memory.floats; i++)
        p->c.memory.data[i] = poisoned ? NAN : random_value(p->integers, spread);
}

/* Which floats of C's memory are elements of C, and whether two are the same or one is A's. */
static void mark_written(product *p) {
    for (int64_t item = 0; item < p->c.batch; item++)
        for (int64_t i = 0; i < p->c.rows; i++)
            for (int64_t j = 0; j < p->c.cols; j++) {
                uint8_t *mark = &p->written[element(&p->c, item, i, j) - p->c.memory.data];
                p->shared |= *mark;
                *mark = 1;
            }
    const bool in_c = p->a.data >= p->c.memory.data && p->a.data < p->c.memory.data + p->c.memory.floats;
    for (int64_t item = 0; item < p->c.batch && in_c && p->alpha != 0; item++)
        for (int64_t i = 0; i < p->a.rows; i++)
            for (int64_t l = 0; l < p->a.cols; l++)
                p->shared |= p->written[element(&p->a, item, i, l) - p->c.memory.data];
}

static int64_t choose_size(choices *c) {
    const int64_t kind = choose(c, 0, 7);
    return kind < 5 ? choose(c, 0, 20) : kind < 7 ? choose(c, 0, 100) : choose(c, 0, 900);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const float factors[] = {1, 0, -1, 2, 0.5f, -3, 1, 1};
    choices c = {data, data + size};
    if (!kernel_count) find_kernels();
    const char *kernel = kernels[choose(&c, 0, kernel_count - 1)];
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.kernel = choose(&c, 0, 3) ? kernel : NULL;
    options.precision = (tsr_precision)choose(&c, 0, 2);
    options.threads = (int)choose(&c, 1, 3);
    options.max_workspace = choose(&c, 0, 3) ? 0 : (size_t)choose(&c, 1, 1 << 20);
    tsr_context *context;
    if (tsr_context_create(&context, &options)) return 0; /* amx at ieee */

    product p = {.precision = options.precision};
    int64_t m = choose_size(&c), n = choose_size(&c), k = choose_size(&c), batch = choose(&c, 0, 5);
    batch = batch < 4 ? 1 : choose(&c, 0, 6);
    if (m * n > 20000) n = 20000 / m;
    const int64_t elements = m * n * batch;
    if (elements > 0 && elements * k > MOST_WORK) k = MOST_WORK / elements;
    const int64_t kind = choose(&c, 0, 3);
    const int spread = kind < 2 ? 1 : kind == 2 ? (int)choose(&c, 1, 60) : 0;
    p.integers = kind < 2;
    p.alpha = factors[choose(&c, 0, 7)];
    p.beta = factors[choose(&c, 0, 7)];
    p.has_addend = !choose(&c, 0, 3);
    seed = choose_bytes(&c, 2);
    if (!p.integers && choose(&c, 0, 3) == 0) p.alpha = random_value(false, 60);
    p.a = matrix_make(&c, m, k, batch);
    p.b = matrix_make(&c, k, n, batch);
    p.c = matrix_make(&c, m, n, batch);
    p.addend = p.has_addend ? matrix_make(&c, m, n, batch) : (matrix){.memory = arena_make(0, false)};
    fill(&p, spread);
    int64_t below;
    if (choose(&c, 0, 15) == 0 && span_of(&p.a, &below) <= (int64_t)p.c.memory.floats)
        p.a.data = p.c.memory.data + below;
    p.before = malloc(p.c.memory.floats * sizeof(float) + 1);
    p.written = calloc(p.c.memory.floats + 1, 1);
    if (!p.before || !p.written) abort();
    if (p.c.memory.floats) memcpy(p.before, p.c.memory.data, p.c.memory.floats * sizeof(float));
    mark_written(&p);
    arena_protect(&p.a.memory);
    arena_protect(&p.b.memory);
    arena_protect(&p.addend.memory);

    const int64_t spoilt = choose(&c, 0, 40);
    bool must_fail;
    const tsr_status status = call(&c, context, &p, spoilt, &must_fail);
    const bool no_room = options.max_workspace && status == TSR_OUT_OF_MEMORY;
    if (must_fail && !no_room)
        EXPECT(status == TSR_INVALID_ARGUMENT, "%s for an argument that is illegal (%lld)", tsr_status_name(status),
               (long long)spoilt);
    if (!must_fail && status && !no_room) /* C's strides need not be understood */
        EXPECT(status == TSR_INVALID_ARGUMENT &&
                   (strstr(tsr_last_error(), "share an address") || strstr(tsr_last_error(), "overlaps")),
               "%s: %s", tsr_status_name(status), tsr_last_error());
    check_result(&p, status);

    tsr_context_destroy(context);
    free(p.before);
    free(p.written);
    arena_free(&p.a.memory);
    arena_free(&p.b.memory);
    arena_free(&p.c.memory);
    arena_free(&p.addend.memory);
    return 0;
}
