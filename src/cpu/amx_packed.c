/* amx_packed.c: the bf16 components of operands packed by the caller, behind their floats (packed.c). */
#include "cpu/amx.h"
#include "cpu/plan.h"

const float *amx_packed_form(const tsr_operand *o, int64_t batch) {
    const float *floats = operand_panels(o, batch);
    return floats ? floats + cpu_packed_floats(o->packed) : NULL;
}

/* Whether AMX may be chosen for a product of an operand of `lanes` lanes with one of any number. */
static bool may_be_chosen(const tsr_context *context, int64_t lanes, int64_t k) {
    return amx_takes(context, lanes, INT64_C(1) << 40, k);
}

int64_t amx_packed_floats(const tsr_context *context, int64_t lanes, int64_t k) {
    if (!may_be_chosen(context, lanes, k)) return 0;
    const int components = amx_components(context);
    const int64_t kc = even_block(k, AMX_KC, AMX_STEP);
    const int64_t last = k % kc ? amx_panel_floats(k % kc, components) : 0; /* behind the whole blocks of k */
    int64_t floats;
    if (__builtin_mul_overflow(k / kc, amx_panel_floats(kc, components), &floats) ||
        __builtin_add_overflow(floats, last, &floats) ||
        __builtin_mul_overflow(floats, ceil_div(lanes, AMX_LANES), &floats))
        return -1;
    return floats;
}

/* One k block after the other, each as the panels of a stage. They are made of the packed floats, which have been
 * scaled, some terms at a time. */
void amx_pack(float *panels, const tsr_packed *packed) {
    const tsr_operand *o = &packed->source;
    const bool left = packed->side == TSR_LEFT;
    const int64_t lanes = left ? o->rows : o->cols, k = left ? o->cols : o->rows;
    if (!may_be_chosen(packed->context, lanes, k)) return;
    const int64_t kc = even_block(k, AMX_KC, AMX_STEP);
    const int components = amx_components(packed->context);
    for (int64_t first = 0; first < k; first += kc) {
        const int64_t terms = min64(kc, k - first);
        for (int64_t lane = 0; lane < lanes; lane += AMX_LANES, panels += amx_panel_floats(terms, components))
            amx_pack_packed(panels, packed, lane, min64(AMX_LANES, lanes - lane), first, terms, components);
    }
}
