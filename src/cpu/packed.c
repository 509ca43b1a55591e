/* packed.c: operands packed by the caller, once for many products.
 *
 * One k block after the other, each as the panels that the loops read; behind the floats, where the context uses AMX,
 * their bf16 components (amx_pack).
 */
#include <string.h>

#include "cpu/amx.h"
#include "cpu/pack.h"
#include "cpu/plan.h"
#include "rounding.h"

/* The floats of a packed operand's panels, a multiple of 16; 0: too many. */
static int64_t packed_floats(const tsr_context *context, tsr_side side, int64_t rows, int64_t cols) {
    const struct cpu_kernel *kernel = context->cpu_kernel;
    const int64_t lanes = side == TSR_LEFT ? round_up(rows, kernel->mr) : round_up(cols, kernel->nr);
    int64_t floats;
    if (__builtin_mul_overflow(lanes, side == TSR_LEFT ? cols : rows, &floats) ||
        floats > INT64_MAX / (int64_t)sizeof(float) - 64)
        return 0;
    return round_up(floats + !floats, 16);
}

int64_t cpu_packed_floats(const tsr_packed *packed) {
    return packed_floats(packed->context, packed->side, packed->source.rows, packed->source.cols);
}

size_t cpu_pack_size(const tsr_context *context, tsr_side side, int64_t rows, int64_t cols) {
    const int64_t floats = packed_floats(context, side, rows, cols);
    const int64_t components = amx_packed_floats(context, side == TSR_LEFT ? rows : cols,
                                                 side == TSR_LEFT ? cols : rows);
    if (!floats || components < 0 || components > INT64_MAX / (int64_t)sizeof(float) - 64 - floats) return 0;
    return (size_t)(floats + components) * sizeof(float);
}

void cpu_pack(const tsr_packed *packed, float factor) {
    const struct cpu_kernel *kernel = packed->context->cpu_kernel;
    const tsr_operand *o = &packed->source;
    const bool left = packed->side == TSR_LEFT;
    const int64_t lanes = left ? o->rows : o->cols, k = left ? o->cols : o->rows;
    const int64_t lane_stride = left ? o->row_stride : o->col_stride, k_stride = left ? o->col_stride : o->row_stride;
    const int width = left ? kernel->mr : kernel->nr;
    const int64_t kc = even_block(k, kernel->kc, 1), floats = cpu_packed_floats(packed);
    float *panels = packed->panels;
    const uint64_t mode = cpu_rounding_begin();
    if (is_zero(factor))
        memset(panels, 0, (size_t)floats * sizeof(float));
    else {
        for (int64_t first = 0; first < k; first += kc)
            cpu_pack_panels(panels + first * round_up(lanes, width), o->data + first * k_stride, lanes,
                            min64(kc, k - first), lane_stride, k_stride, width);
        for (int64_t i = 0; factor != 1 && i < k * round_up(lanes, width); i++) panels[i] *= factor;
    }
    amx_pack(panels + floats, packed);
    cpu_rounding_end(mode);
}

void cpu_packed_lanes(float *to, const tsr_packed *packed, int64_t lane, int64_t lanes, int64_t first, int64_t terms,
                      int64_t step) {
    const struct cpu_kernel *kernel = packed->context->cpu_kernel;
    const bool left = packed->side == TSR_LEFT;
    const tsr_operand *o = &packed->source;
    const int64_t all_lanes = left ? o->rows : o->cols, k = left ? o->cols : o->rows;
    const int width = left ? kernel->mr : kernel->nr;
    const int64_t kc = even_block(k, kernel->kc, 1);
    for (int64_t p = first; p < first + terms; p++, to += step) {
        const int64_t block = p / kc * kc, block_terms = min64(kc, k - block);
        const float *panels = (const float *)packed->panels + block * round_up(all_lanes, width) + (p - block) * width;
        for (int64_t i = 0; i < lanes; i++)
            to[i] = panels[(lane + i) / width * width * block_terms + (lane + i) % width];
    }
}
