/* attention.c: attention and its gradients on the CPU, with every matrix between guard pages.
 *
 * Operands may only be read while a call runs. Q is 0, so a query's weights are equal, and O and grad_v are averages
 * that plain loops compute; of grad_q and grad_k it is checked that nothing beside them is written. Results whose
 * elements might share an address must be refused, and left as they were. */
#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "tessera.h"

enum { BATCH, HEAD, ROW, COL, STRIDES };

typedef struct matrix {
    arena memory;
    float *data; /* of element (0, 0, 0, 0) */
    int64_t count[STRIDES], stride[STRIDES];
    float *before; /* all of the memory */
} matrix;

/* Strides that nest in any order and direction, or any at all. */
static void choose_strides(choices *c, matrix *x) {
    bool used[STRIDES] = {false};
    int64_t width = choose(c, 1, 2);
    const bool any = choose(c, 0, 7) == 0;
    for (int i = 0; i < STRIDES; i++) {
        int d = (int)choose(c, 0, STRIDES - 1);
        while (used[d]) d = (d + 1) % STRIDES;
        used[d] = true;
        x->stride[d] = any ? choose(c, -9, 9) : choose(c, 0, 3) ? width : -width;
        width = width * x->count[d] + choose(c, 0, 3);
    }
}

static matrix matrix_make(choices *c, int64_t batch, int64_t heads, int64_t rows, int64_t cols, int largest) {
    matrix x = {.count = {batch, heads, rows, cols}};
    choose_strides(c, &x);
    int64_t lowest = 0, highest = 0;
    for (int d = 0; d < STRIDES; d++) *(x.stride[d] < 0 ? &lowest : &highest) += (x.count[d] - 1) * x.stride[d];
    x.memory = arena_make((size_t)(highest - lowest + 1), choose(c, 0, 1));
    x.data = x.memory.data - lowest;
    x.before = malloc(x.memory.floats * sizeof(float));
    if (!x.before) abort();
    for (size_t i = 0; i < x.memory.floats; i++)
        x.memory.data[i] = (float)((int)((i * 2654435761u >> 16) % (2 * (unsigned)largest + 1)) - largest);
    memcpy(x.before, x.memory.data, x.memory.floats * sizeof(float));
    return x;
}

static void matrix_free(matrix *x) {
    free(x->before);
    arena_free(&x->memory);
}

static float *element(const matrix *x, int64_t b, int64_t h, int64_t i, int64_t j) {
    return x->data + b * x->stride[BATCH] + h * x->stride[HEAD] + i * x->stride[ROW] + j * x->stride[COL];
}

static tsr_heads operand_of(const matrix *x) {
    return (tsr_heads){x->data, x->stride[BATCH], x->stride[HEAD], x->stride[ROW], x->stride[COL]};
}

static tsr_heads_result result_of(const matrix *x) {
    return (tsr_heads_result){x->data, x->stride[BATCH], x->stride[HEAD], x->stride[ROW], x->stride[COL]};
}

/* Whether the call has a result for x: otherwise it was refused for x's strides, or another's. */
static void check_written(const matrix *x, tsr_status status) {
    uint8_t *own = calloc(x->memory.floats, 1);
    if (!own) abort();
    for (int64_t b = 0; b < x->count[BATCH]; b++)
        for (int64_t h = 0; h < x->count[HEAD]; h++)
            for (int64_t i = 0; i < x->count[ROW]; i++)
                for (int64_t j = 0; j < x->count[COL]; j++) own[element(x, b, h, i, j) - x->memory.data] = 1;
    for (size_t at = 0; at < x->memory.floats; at++)
        if (status || !own[at])
            EXPECT(!memcmp(&x->memory.data[at], &x->before[at], sizeof(float)), "float %zu was written (%s)", at,
                   tsr_last_error());
    free(own);
    if (status)
        EXPECT(status == TSR_INVALID_ARGUMENT && strstr(tsr_last_error(), "share an address"), "%s: %s",
               tsr_status_name(status), tsr_last_error());
}

/* ---- One attention ----------------------------------------------------------------------------------------------- */

typedef struct attention {
    tsr_attention_problem p;
    matrix q, k, v, mask, o, lse, grad_o, grad[3];
} attention;

static bool counts(const attention *a, int64_t b, int64_t h, int64_t i, int64_t j) {
    return (!a->p.causal || j <= i) && (!a->p.mask.data || *element(&a->mask, b, h, i, j) == 0);
}

static int64_t keys_of(const attention *a, int64_t b, int64_t h, int64_t i) {
    int64_t keys = 0;
    for (int64_t j = 0; j < a->p.keys; j++) keys += counts(a, b, h, i, j);
    return keys;
}

static void check_value(const char *name, float got, double exact, double magnitude, int64_t terms) {
    EXPECT(fabs((double)got - exact) <= (double)(3 * terms + 48) * 0x1p-24 * magnitude,
           "%s: an element is %.9g, not %.9g", name, (double)got, exact);
}

static void check_o(const attention *a) {
    const int64_t group = a->p.heads / a->p.kv_heads;
    for (int64_t b = 0; b < a->p.batch; b++)
        for (int64_t h = 0; h < a->p.heads; h++)
            for (int64_t i = 0; i < a->p.queries; i++) {
                const int64_t keys = keys_of(a, b, h, i);
                for (int64_t c = 0; c < a->p.dim; c++) {
                    double sum = 0, magnitude = 0;
                    for (int64_t j = 0; j < a->p.keys; j++) {
                        const double v = counts(a, b, h, i, j) ? (double)*element(&a->v, b, h / group, j, c) : 0;
                        sum += v / (double)keys;
                        magnitude += fabs(v) / (double)keys;
                    }
                    check_value("o", *element(&a->o, b, h, i, c), keys ? sum : 0, keys ? magnitude : 0, a->p.keys);
                }
            }
}

static void check_grad_v(const attention *a) {
    const int64_t group = a->p.heads / a->p.kv_heads;
    for (int64_t b = 0; b < a->p.batch; b++)
        for (int64_t h = 0; h < a->p.kv_heads; h++)
            for (int64_t j = 0; j < a->p.keys; j++)
                for (int64_t c = 0; c < a->p.dim; c++) {
                    double sum = 0, magnitude = 0;
                    for (int64_t n = 0; n < group * a->p.queries; n++) {
                        const int64_t head = h * group + n / a->p.queries, i = n % a->p.queries;
                        if (!counts(a, b, head, i, j)) continue;
                        const double g = (double)*element(&a->grad_o, b, head, i, c) / (double)keys_of(a, b, head, i);
                        sum += g;
                        magnitude += fabs(g);
                    }
                    check_value("grad_v", *element(&a->grad[2], b, h, j, c), sum, magnitude,
                                a->p.keys + group * a->p.queries);
                }
}

static void check_attention(tsr_context *context, const attention *a) {
    const tsr_heads_result o = result_of(&a->o), lse = result_of(&a->lse);
    tsr_status status = tsr_attention(context, &a->p, &o, &lse, NULL);
    check_written(&a->o, status);
    check_written(&a->lse, status);
    if (status) return;
    check_o(a);
    arena_protect(&a->o.memory);
    arena_protect(&a->lse.memory);
    const tsr_attention_gradients gradients = {operand_of(&a->o),      operand_of(&a->lse),    operand_of(&a->grad_o),
                                               result_of(&a->grad[0]), result_of(&a->grad[1]), result_of(&a->grad[2])};
    status = tsr_attention_backward(context, &a->p, &gradients, NULL);
    for (int i = 0; i < 3; i++) check_written(&a->grad[i], status);
    if (!status) check_grad_v(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    choices c = {data, data + size};
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.threads = (int)choose(&c, 1, 3);
    options.kernel = choose(&c, 0, 1) ? "portable" : NULL;
    tsr_context *context;
    EXPECT(!tsr_context_create(&context, &options), "%s", tsr_last_error());

    const int64_t batch = choose(&c, 1, 2), kv_heads = choose(&c, 1, 2), heads = kv_heads * choose(&c, 1, 2);
    const int64_t longest = choose(&c, 0, 3) ? 9 : 140, dim = choose(&c, 1, longest > 9 ? 3 : 20);
    const int64_t queries = choose(&c, 1, longest), keys = choose(&c, 1, longest);
    attention a = {.q = matrix_make(&c, batch, heads, queries, dim, 0),
                   .k = matrix_make(&c, batch, kv_heads, keys, dim, 8),
                   .v = matrix_make(&c, batch, kv_heads, keys, dim, 8),
                   .mask = matrix_make(&c, batch, heads, queries, keys, 1),
                   .o = matrix_make(&c, batch, heads, queries, dim, 8),
                   .lse = matrix_make(&c, batch, heads, queries, 1, 8),
                   .grad_o = matrix_make(&c, batch, heads, queries, dim, 8),
                   .grad = {matrix_make(&c, batch, heads, queries, dim, 8),
                            matrix_make(&c, batch, kv_heads, keys, dim, 8),
                            matrix_make(&c, batch, kv_heads, keys, dim, 8)}};
    for (size_t i = 0; i < a.mask.memory.floats; i++) a.mask.memory.data[i] = a.mask.memory.data[i] > 0 ? -INFINITY : 0;
    a.p = (tsr_attention_problem){.batch = batch,
                                  .heads = heads,
                                  .kv_heads = kv_heads,
                                  .queries = queries,
                                  .keys = keys,
                                  .dim = dim,
                                  .q = operand_of(&a.q),
                                  .k = operand_of(&a.k),
                                  .v = operand_of(&a.v)};
    if (choose(&c, 0, 1)) a.p.mask = operand_of(&a.mask);
    a.p.scale = (float)choose(&c, -2, 2);
    a.p.causal = (int)choose(&c, 0, 1);
    matrix *const operands[] = {&a.q, &a.k, &a.v, &a.mask, &a.grad_o};
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++) arena_protect(&operands[i]->memory);
    check_attention(context, &a);

    tsr_context_destroy(context);
    matrix *const all[] = {&a.q, &a.k, &a.v, &a.mask, &a.grad_o, &a.o, &a.lse, &a.grad[0], &a.grad[1], &a.grad[2]};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) matrix_free(all[i]);
    return 0;
}
