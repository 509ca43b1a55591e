/* plan.c: plans of products of any size, up to 2^62, on every CPU kernel: made and printed, or refused with a
 * sentence. */
#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "tessera.h"

/* Small, any, or near a power of two. */
static int64_t choose_extent(choices *c) {
    switch (choose(c, 0, 3)) {
    case 0: return choose(c, 0, 300);
    case 1: return (int64_t)choose_bytes(c, 8);
    default: return (int64_t)((uint64_t)1 << choose(c, 0, 62)) + choose(c, -3, 3);
    }
}

static tsr_operand choose_operand(choices *c, int64_t rows, int64_t cols) {
    tsr_operand o = {NULL, rows, cols, cols, 1, 0, NULL};
    switch (choose(c, 0, 7)) {
    case 0: o.row_stride = choose_extent(c), o.col_stride = choose_extent(c); break;
    case 1: o.row_stride = (int64_t)(-(uint64_t)o.row_stride); break;
    case 2: o.row_stride = 1, o.col_stride = rows; break;
    case 3: o.row_stride = 0; break;
    default: break;
    }
    if (choose(c, 0, 3) == 0) o.batch_stride = choose_extent(c);
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const kernels[] = {NULL, "portable", "avx2", "avx512", "neon", "amx", "no such kernel"};
    choices c = {data, data + size};
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.kernel = kernels[choose(&c, 0, sizeof kernels / sizeof kernels[0] - 1)];
    options.precision = (tsr_precision)choose(&c, 0, 3);
    options.threads = (int)choose(&c, -1, 1025);
    options.max_workspace = choose(&c, 0, 1) ? 0 : (size_t)choose_bytes(&c, (int)choose(&c, 1, 8));
    options.device_index = (int)choose(&c, -2, 2);
    tsr_context *context;
    tsr_status status = tsr_context_create(&context, &options);
    if (status) {
        EXPECT(!context && tsr_last_error()[0], "%s without a sentence", tsr_status_name(status));
        return 0;
    }
    const int64_t m = choose_extent(&c), n = choose_extent(&c), k = choose_extent(&c);
    const int64_t batch = choose(&c, 0, 3) ? choose(&c, 0, 9) : choose_extent(&c);
    const tsr_operand a = choose_operand(&c, m, k), b = choose_operand(&c, k, n), like_c = choose_operand(&c, m, n);
    tsr_result result = {NULL, m, n, like_c.row_stride, like_c.col_stride, like_c.batch_stride};
    if (batch > 1 && choose(&c, 0, 3)) __builtin_mul_overflow(m, n, &result.batch_stride);
    tsr_plan *plan = (tsr_plan *)&plan;
    status = tsr_plan_create(&plan, context, batch, &a, &b, &result);
    if (status) {
        EXPECT(!plan && tsr_last_error()[0], "%s without a sentence", tsr_status_name(status));
        EXPECT(status == TSR_INVALID_ARGUMENT || status == TSR_OUT_OF_MEMORY, "%s: %s", tsr_status_name(status),
               tsr_last_error());
    } else {
        char text[64];
        const size_t length = tsr_plan_print(plan, NULL, 0);
        char *whole = malloc(length + 1);
        if (!whole) abort();
        EXPECT(tsr_plan_print(plan, whole, length + 1) == length && strlen(whole) == length, "%zu characters", length);
        EXPECT(tsr_plan_print(plan, text, sizeof text) == length && !strncmp(text, whole, sizeof text - 1),
               "cut to %zu characters it reads %s", sizeof text, text);
        EXPECT(!options.max_workspace || tsr_plan_workspace(plan) <= options.max_workspace,
               "a workspace of %zu, of %zu allowed\n%s", tsr_plan_workspace(plan), options.max_workspace, whole);
        const double seconds = tsr_plan_seconds(plan);
        EXPECT(seconds >= 0 && isfinite(seconds), "an estimate of %g seconds\n%s", seconds, whole);
        EXPECT(tsr_plan_is_split(plan) == 0 || options.precision != TSR_IEEE, "a split plan at ieee\n%s", whole);
        free(whole);
    }
    tsr_plan_destroy(plan);
    tsr_pack_size(context, choose(&c, 0, 1) ? TSR_LEFT : TSR_RIGHT, m, k);
    tsr_context_destroy(context);
    return 0;
}
