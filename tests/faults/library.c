/* library.c KIND once|+: every call of tessera.h on the CPU while a call of that kind fails. Each must give the right
 * result, or a status with a message and C as it was; and everything must work afterwards. */
#include <math.h>
#include <string.h>

#include "each.h"
#include "matrices.h"
#include "tessera.h"

static bool now_faulty;

/* True where the call succeeded; a failure must be one that a fault explains. */
static bool succeeded(tsr_status status, const char *call) {
    if (!status) return true;
    REQUIRE(now_faulty, "%s failed without a fault: %s", call, tsr_last_error());
    REQUIRE(status == TSR_OUT_OF_MEMORY, "%s returned %s", call, tsr_status_name(status));
    REQUIRE(*tsr_last_error(), "%s failed without a message", call);
    return false;
}

static void check(tsr_status status, const char *call, int batch) {
    const float *want = succeeded(status, call) ? expected : before;
    REQUIRE(!memcmp(c, want, sizeof *c * (size_t)batch * M * N), "%s: C is wrong after %s", call,
            tsr_status_name(status));
    memcpy(c, before, sizeof c);
}

static void check_small(tsr_status status, const char *call) {
    if (!succeeded(status, call)) return;
    for (int i = 0; i < SMALL; i++)
        for (int j = 0; j < SMALL; j++)
            REQUIRE(c[i * N + j] == expected_small(i, j, SMALL), "%s: (%d, %d) is wrong", call, i, j);
    memcpy(c, before, sizeof c);
}

static void multiply_packed(tsr_context *context, tsr_operand left, tsr_operand right, const tsr_result *result) {
    tsr_packed *packed = NULL, *placed = NULL;
    if (succeeded(tsr_pack(&packed, context, TSR_RIGHT, &right, NULL), "tsr_pack")) {
        right.packed = packed;
        check(tsr_gemm(context, 2, &left, &right, 1, result, NULL), "tsr_gemm, packed", 1);
        tsr_packed_destroy(packed);
        right.packed = NULL;
    } else
        REQUIRE(!packed, "a failed tsr_pack left a pointer");
    const size_t size = tsr_pack_size(context, TSR_LEFT, M, K);
    static _Alignas(64) char memory[16 * (M + 64) * K]; /* on AMX three bf16 components beside each float */
    REQUIRE(size <= sizeof memory, "tsr_pack_size is %zu", size);
    if (!succeeded(tsr_pack_at(&placed, memory, context, TSR_LEFT, 1, &left), "tsr_pack_at")) return;
    float element;
    REQUIRE(!tsr_packed_read(placed, 3, 5, 1, 1, &element) && element == a[3 * K + 5], "tsr_packed_read");
    left.data = (const float *)memory;
    left.packed = placed;
    check(tsr_gemm(context, 2, &left, &right, 1, result, NULL), "tsr_gemm, packed in place", 1);
}

static void execute_plan(tsr_context *context, const tsr_operand *left, const tsr_operand *right,
                         const tsr_result *result) {
    tsr_plan *plan;
    if (!succeeded(tsr_plan_create(&plan, context, 1, left, right, result), "tsr_plan_create")) {
        REQUIRE(!plan, "a failed tsr_plan_create left a pointer");
        return;
    }
    char text[16];
    REQUIRE(tsr_plan_print(plan, text, sizeof text) >= sizeof text, "tsr_plan_print");
    check(tsr_plan_execute(plan, 2, a, b, 1, c, NULL), "tsr_plan_execute", 1);
    tsr_plan_destroy(plan);
}

/* Scores of 0 make equal weights, so O is the average of V's rows: exact, for they are integers and 64. */
static void attend(tsr_context *context) {
    enum { HEADS = 2, QUERIES = 200, KEYS = 64, DIM = 16, ALL = HEADS * QUERIES * DIM };
    static float zeros[ALL], ones[ALL], o[ALL], lse[HEADS * QUERIES], grad_v[HEADS * KEYS * DIM];
    const tsr_heads keys = {a, 0, KEYS * DIM, DIM, 1};
    const tsr_attention_problem problem = {.batch = 1,
                                           .heads = HEADS,
                                           .kv_heads = HEADS,
                                           .queries = QUERIES,
                                           .keys = KEYS,
                                           .dim = DIM,
                                           .q = {zeros, 0, QUERIES * DIM, DIM, 1},
                                           .k = keys,
                                           .v = keys,
                                           .scale = 1};
    const tsr_heads_result to_o = {o, 0, QUERIES * DIM, DIM, 1}, to_lse = {lse, 0, QUERIES, 1, 1};
    memset(o, 0xff, sizeof o);
    if (!succeeded(tsr_attention(context, &problem, &to_o, &to_lse, NULL), "tsr_attention")) {
        for (int i = 0; i < ALL; i++) REQUIRE(isnan(o[i]), "a failed tsr_attention wrote O");
        return;
    }
    for (int i = 0; i < ALL; i++) {
        const float *v = a + i / (QUERIES * DIM) * KEYS * DIM + i % DIM;
        float sum = 0;
        for (int j = 0; j < KEYS; j++) sum += v[j * DIM];
        REQUIRE(o[i] == sum / KEYS, "tsr_attention: element %d is %g, not %g", i, o[i], sum / KEYS);
        ones[i] = 1;
    }
    const tsr_attention_gradients gradients = {.o = {o, 0, QUERIES * DIM, DIM, 1},
                                               .lse = {lse, 0, QUERIES, 1, 1},
                                               .grad_o = {ones, 0, QUERIES * DIM, DIM, 1},
                                               .grad_v = {grad_v, 0, KEYS * DIM, DIM, 1}};
    if (!succeeded(tsr_attention_backward(context, &problem, &gradients, NULL), "tsr_attention_backward")) return;
    const float share = (float)QUERIES / KEYS;
    for (int i = 0; i < HEADS * KEYS * DIM; i++)
        REQUIRE(fabsf(grad_v[i] - share) < 1e-4f * share, "tsr_attention_backward: element %d is %g", i, grad_v[i]);
}

static void scenario(bool faulty) {
    now_faulty = faulty;
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.threads = 3;
    tsr_context *context = NULL;
    if (!succeeded(tsr_context_create(&context, &options), "tsr_context_create")) {
        REQUIRE(!context, "a failed tsr_context_create left a pointer");
        return;
    }
    const tsr_operand left = {a, M, K, K, 1, M * K, NULL}, right = {b, K, N, 1, K, K * N, NULL};
    const tsr_operand addend = {before, M, N, N, 1, M * N, NULL};
    const tsr_operand small_left = {a, SMALL, SMALL, K, 1, 0, NULL}, small_right = {b, SMALL, SMALL, 1, K, 0, NULL};
    const tsr_result result = {c, M, N, N, 1, M * N}, small_result = {c, SMALL, SMALL, N, 1, 0};
    memcpy(c, before, sizeof c);
    check_small(tsr_gemm(context, 2, &small_left, &small_right, 1, &small_result, NULL), "tsr_gemm, small");
    check(tsr_gemm(context, 2, &left, &right, 1, &result, NULL), "tsr_gemm", 1);
    check(tsr_gemm_batch(context, BATCH, 2, &left, &right, 1, &result, NULL), "tsr_gemm_batch", BATCH);
    check(tsr_gemm_add(context, BATCH, 2, &left, &right, 1, &addend, &result, NULL), "tsr_gemm_add", BATCH);
    REQUIRE(!tsr_trim(context), "tsr_trim");
    check(tsr_gemm_host(context, BATCH, 2, &left, &right, 1, &result, NULL), "tsr_gemm_host", BATCH);
    execute_plan(context, &left, &right, &result);
    multiply_packed(context, left, right, &result);
    attend(context);
    tsr_stats stats;
    REQUIRE(!tsr_stats_read(context, &stats), "tsr_stats_read");
    REQUIRE(tsr_info_print(NULL, 0) > 0, "tsr_info_print");
    tsr_context_destroy(context);
    REQUIRE(!tsr_context_create(&context, NULL) || faulty, "a second context");
    tsr_context_destroy(context);
}

int main(int count, char **words) {
    make_matrices();
    return each_fault(count, words, scenario);
}
