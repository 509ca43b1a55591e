/* module.cpp: the packing and the portable kernel of a module (kernelbench/), compiled for the CPU and run on random
 * problems. arguments.h and kernels.h are a module's text, which test_modules.py writes. Prints what is wrong; the exit
 * status says if anything is. */
#include "cuda_fp16.h"

#include <algorithm>

#define __forceinline__
#define shared_address(pointer) ((uint32_t)((const uint8_t *)(pointer)-shared_memory))

static void forget_origin(int64_t &, int64_t &, int64_t &, int64_t &) {}
template <int BYTES> static void cp_async_if(uint32_t to, const void *from, int wanted) {
    if (wanted) queue_copy((uintptr_t)shared_memory + to, from, BYTES, BYTES);
}

#include "arguments.h"

#include "kernels.h"

/* ---- Problems ---------------------------------------------------------------------------------------------------- */

static int below(int count) { return (int)random_below((uint32_t)count); }

#define REQUIRE(condition, ...)                                           \
    if (!(condition)) {                                                   \
        printf("case %d: %s: ", number, #condition), printf(__VA_ARGS__); \
        exit(1);                                                          \
    }

static product launched;

static void run(void (*kernel)(), unsigned blocks) {
    gridDim.x = blocks;
    for (unsigned block = 0; block < blocks; block++) {
        blockIdx.x = block;
        memset(shared_memory, 0xff, sizeof shared_memory); /* NaN */
        run_block(kernel);
    }
}

/* An operand, contiguous along rows or along k, its lines aligned or not, in memory that ends where it does. */
struct matrix {
    std::vector<float> memory;
    operand o = {};

    template <typename VALUE> matrix(int rows, int k, int batch, VALUE value) {
        const bool across = below(2);
        const int64_t line = (across ? rows : k) + (below(2) ? below(5) : 0), lines = across ? k : rows;
        memory.resize((size_t)(4 + batch * lines * line));
        const size_t misaligned = (uintptr_t)memory.data() / 4 % 4,
                     shift = (4 - misaligned) % 4 + (below(3) ? 0 : below(4));
        o.data = memory.data() + std::min<size_t>(shift, 4);
        for (float &x : memory) x = value();
        o.row_stride = across ? 1 : line, o.k_stride = across ? line : 1, o.batch_stride = lines * line;
        o.rows = rows, o.k = k;
    }
    float at(int batch, int row, int k) const {
        return row < o.rows && k < o.k ? o.data[batch * o.batch_stride + row * o.row_stride + k * o.k_stride] : 0;
    }
};

/* ---- The portable kernel: integers, so that every bit counts ----------------------------------------------------- */

static void test_portable(int number) {
    const bool large = number % 2;
    const int k = below(4) ? 1 + below(100) : 32 * (1 + below(3)), batch = 1 + below(2);
    int m = large ? 128 + below(140) : 1 + below(150), n = large ? 128 + below(140) : 1 + below(150);
    if (below(2)) m = ceil_div(m, 4) * 4, n = ceil_div(n, 4) * 4;
    const auto integer = [] { return (float)(below(17) - 8); };
    matrix a(m, k, batch, integer), b(n, k, batch, integer);
    std::vector<float> c((size_t)batch * m * n, NAN), marks[2];
    launched = {};
    launched.a = a.o, launched.b = b.o, launched.c = c.data(), launched.batch = batch;
    launched.only_marked = number % 3 == 0, launched.mark_limit = 4;
    for (int i = 0; i < 2; i++)
        for (int panel = 0; panel < batch * ceil_div(i ? n : m, PANEL_ROWS); panel++)
            marks[i].push_back(below(4) ? (float)(1 + below(4)) : INFINITY);
    launched.a.marks = marks[0].data(), launched.b.marks = marks[1].data();
    const int tile = large ? 128 : 64, tiles = batch * ceil_div(m, tile) * ceil_div(n, tile);
    const unsigned blocks = (unsigned)(launched.only_marked ? 1 + below(tiles) : tiles);
    if (large)
        run([] { portable_128x128(launched); }, blocks);
    else
        run([] { portable_64x64(launched); }, blocks);
    for (int i = 0; i < batch * m * n; i++) {
        const int item = i / (m * n), row = i / n % m, col = i % n;
        const bool wanted = !launched.only_marked ||
                            mark_of(launched.a, item, row) * mark_of(launched.b, item, col) > 4;
        float sum = 0;
        for (int term = 0; term < k; term++) sum += a.at(item, row, term) * b.at(item, col, term);
        REQUIRE(wanted ? c[i] == sum : isnan(c[i]), "%d x %d x %d, item %d, (%d, %d): %g, not %g\n", m, n, k, item, row,
                col, c[i], sum);
    }
}

/* ---- Packing: panels, exponents and marks against a plain model -------------------------------------------------- */

/* Elements of ordinary size; of all sizes; with outliers; with Inf and NaN; mostly zero; very small; very large. */
static float element(int kind) {
    const float x = (float)(below(1 << 20) - (1 << 19)) / 1e5f;
    switch (kind) {
    case 1: return x * ldexpf(1, below(60) - 30);
    case 2: return below(500) ? x : x * 1e4f;
    case 3: return below(3000) ? x : below(2) ? INFINITY : NAN;
    case 4: return below(50) ? 0 : x;
    case 5: return x * 1e-38f;
    case 6: return x * 1e33f;
    default: return x;
    }
}

static int exponent_for(float largest, int at) {
    return std::max(-62, std::min(62, at + 127 - (int)(__float_as_uint(largest) >> 23)));
}

static bool fits(float x, int e) { return fabsf(x * power_of_two(e)) < 65520 && !(e == ALL_ZERO && x != 0); }

struct packed {
    std::vector<uint8_t> panels;
    std::vector<int32_t> exponents, overflowed;
    std::vector<float> overflows, marks;

    packed(operand *o, int batch) {
        o->panels_batch_stride = (int64_t)ceil_div(o->rows, 8) * 8 * ceil_div(o->k, SPLIT_K) * 2 * SPLIT_ROW_BYTES;
        panels.assign((size_t)(batch * o->panels_batch_stride), 0xcd);
        exponents.assign((size_t)(batch * o->rows), 99), overflows.assign((size_t)(batch * o->rows), -7);
        marks.assign((size_t)(batch * ceil_div(o->rows, PANEL_ROWS)), -1), overflowed.assign(marks.size(), 55);
        o->panels = panels.data(), o->exponents = exponents.data(), o->overflows = overflows.data();
        o->marks = marks.data(), o->overflowed = overflowed.data();
    }
};

static void check_panel(int number, const matrix &x, const operand &o, int item, int panel) {
    const int blocks = ceil_div(o.k, SPLIT_K), stored = std::min(128, ceil_div(o.rows - panel * 128, 8) * 8);
    float mark = 1;
    bool overflowed = false;
    for (int r = 0; r < stored; r++) {
        const int row = panel * 128 + r, e = row < o.rows ? o.exponents[item * o.rows + row] : 0;
        if (row < o.rows) {
            float sample = 0, overflow = 0;
            for (int i = 0; i < 128; i++) /* four runs of 32 */
                sample = fmaxf(
                    sample, fabsf(x.at(item, row, std::min(std::max(0, o.k - 32) * (i / 32) / 3 + i % 32, o.k - 1))));
            int expected = sample == 0 ? (int)ALL_ZERO : exponent_for(sample, 12);
            bool has_nan = false;
            for (int k = 0; k < o.k; k++) {
                if (fits(x.at(item, row, k), expected)) continue;
                has_nan |= isnan(x.at(item, row, k));
                overflow = fmaxf(overflow, fabsf(x.at(item, row, k)));
                overflowed = true;
            }
            if (overflow > 0 && !has_nan) expected = exponent_for(overflow, 14);
            REQUIRE(e == expected, "row %d: %d, not %d\n", row, e, expected);
        }
        for (int k = 0; k < blocks * SPLIT_K; k++) {
            const float value = x.at(item, row, k), scaled = value * power_of_two(e);
            if (value != 0) mark = fmaxf(mark, fits(value, e) ? ldexpf(1, -14) / fabsf(scaled) : INFINITY);
            if (!fits(value, e)) continue;
            const uint16_t hi = half_of(scaled),
                           lo = half_of(fmaf(-float_of(hi), power_of_two(-e), value) * power_of_two(e + 11));
            const uint8_t *at = o.panels + item * o.panels_batch_stride + (int64_t)panel * blocks * 2 * 128 * 128 +
                                (k / 64 * 2 * stored + r) * 128 + (k % 64 / 8 ^ r % 8) * 16 + k % 8 * 2;
            REQUIRE(!memcmp(at, &hi, 2) && !memcmp(at + stored * 128, &lo, 2), "row %d, k %d, %g\n", row, k, value);
        }
    }
    const int index = item * ceil_div(o.rows, 128) + panel;
    REQUIRE(o.overflowed[index] == overflowed, "panel %d\n", panel);
    /* A panel that overflowed has been marked with its first exponents, too. */
    REQUIRE(overflowed ? o.marks[index] >= mark && isinf(o.marks[index]) == isinf(mark) : o.marks[index] == mark,
            "panel %d: %g, not %g\n", panel, o.marks[index], mark);
}

static void test_packing(int number) {
    const int k = below(2) ? 1 + below(300) : 64 * (1 + below(4)), batch = 1 + below(2), kind = below(8);
    const auto rows = [] { return below(3) ? 1 + below(280) : 64 * (1 + below(4)); };
    matrix a(rows(), k, batch, [kind] { return element(kind); }), b(rows(), k, batch, [kind] { return element(kind); });
    const packed of_a(&a.o, batch), of_b(&b.o, batch);
    int32_t any = 77;
    launched = {};
    launched.a = a.o, launched.b = b.o, launched.batch = batch, launched.any_overflowed = &any;
    const auto groups = [&](int size) { return batch * (ceil_div(a.o.rows, size) + ceil_div(b.o.rows, size)); };
    run([] { pack_sample(launched); }, (unsigned)groups(SAMPLE_ROWS));
    run([] { pack_split(launched); }, (unsigned)(groups(PACK_ROWS) * ceil_div(k, SPLIT_K)));
    run([] { pack_again(launched); }, (unsigned)(1 + below(9)));
    for (int item = 0; item < batch; item++) {
        for (int panel = 0; panel < ceil_div(a.o.rows, 128); panel++) check_panel(number, a, a.o, item, panel);
        for (int panel = 0; panel < ceil_div(b.o.rows, 128); panel++) check_panel(number, b, b.o, item, panel);
    }
}

int main(int, char **arguments) {
    random_state = (uint32_t)atoi(arguments[1]);
    for (int number = 0; number < 60; number++) {
        test_portable(number);
        test_packing(number);
    }
}
