/* packed.c: packed operands. */
#include <stdlib.h>

#include "check.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"

/* reads: the call reads the matrix, so operand->data must not be NULL. */
static tsr_status check_pack(tsr_packed **packed, const tsr_context *context, tsr_side side, const tsr_operand *operand,
                             bool reads) {
    if (!packed) return tsr_fail(TSR_INVALID_ARGUMENT, "packed is NULL");
    *packed = NULL;
    if (!context) return tsr_fail(TSR_INVALID_ARGUMENT, "context is NULL");
    if (!operand) return tsr_fail(TSR_INVALID_ARGUMENT, "operand is NULL");
    if (side != TSR_LEFT && side != TSR_RIGHT)
        return tsr_fail(TSR_INVALID_ARGUMENT, "side is %d: it must be TSR_LEFT or TSR_RIGHT", (int)side);
    matrix_span s;
    tsr_status status = span_make(&s, "operand", operand, 1);
    if (status) return status;
    if (reads && !span_is_empty(&s) && !operand->data) return tsr_fail(TSR_INVALID_ARGUMENT, "operand.data is NULL");
    if ((uintptr_t)operand->data % sizeof(float))
        return tsr_fail(TSR_INVALID_ARGUMENT, "operand.data is not aligned to a float (4 bytes)");
    return TSR_OK;
}

/* Finds packed->bytes, which must be within the address space. */
static tsr_status size_panels(tsr_packed *packed) {
    packed->bytes = cpu_pack_size(packed->context, packed->side, packed->source.rows, packed->source.cols);
    if (packed->bytes) return TSR_OK;
    return tsr_fail(TSR_OUT_OF_MEMORY, "the packed form of operand exceeds the address space");
}

static tsr_status pack_on_cpu(tsr_packed *packed) {
    tsr_status status = size_panels(packed);
    if (status) return status;
    packed->panels = aligned_alloc(64, packed->bytes);
    if (!packed->panels) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for %zu bytes of packed operand", packed->bytes);
    cpu_pack(packed, 1);
    return TSR_OK;
}

tsr_status tsr_pack(tsr_packed **packed, tsr_context *context, tsr_side side, const tsr_operand *operand,
                    const tsr_launch *launch) {
    tsr_status status = check_pack(packed, context, side, operand, true);
    if (!status && context->cuda) status = check_workspace(launch, "operand", cuda_pack_size(context, side, operand));
    if (status) return status;
    tsr_packed *made = calloc(1, sizeof *made);
    if (!made) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for a packed operand");
    made->context = context;
    made->side = side;
    made->source = *operand;
    made->source.packed = NULL;
    status = context->cuda ? cuda_pack(made, launch) : pack_on_cpu(made);
    if (status) {
        free(made);
        return status;
    }
    *packed = made;
    return TSR_OK;
}

void tsr_packed_destroy(tsr_packed *packed) {
    if (!packed) return;
    if (packed->context->cuda)
        cuda_packed_destroy(packed);
    else
        free(packed->panels);
    free(packed);
}

/* In memory of the caller's the panels come first, so that what an operand's data point at is in use, and then this. */
static size_t packed_bytes(void) { return (sizeof(tsr_packed) + 63) / 64 * 64; }

size_t tsr_pack_size(const tsr_context *context, tsr_side side, int64_t rows, int64_t cols) {
    if (!context || rows < 0 || cols < 0) return 0;
    if (context->cuda) return cuda_pack_size(context, side, &(tsr_operand){.rows = rows, .cols = cols});
    const size_t panels = cpu_pack_size(context, side, rows, cols);
    return panels ? panels + packed_bytes() : 0;
}

tsr_status tsr_pack_at(tsr_packed **packed, void *memory, tsr_context *context, tsr_side side, float factor,
                       const tsr_operand *operand) {
    tsr_status status = check_pack(packed, context, side, operand, !is_zero(factor));
    if (status) return status;
    if (context->cuda)
        return tsr_fail(TSR_UNSUPPORTED, "context is on CUDA: tsr_pack_at is for the CPU, tsr_pack for both");
    if (!memory || (uintptr_t)memory % 64)
        return tsr_fail(TSR_INVALID_ARGUMENT, "memory is %s", memory ? "not aligned to 64 bytes" : "NULL");
    tsr_packed draft = {.context = context, .side = side, .source = *operand, .panels = memory};
    draft.source.packed = NULL;
    if ((status = size_panels(&draft))) return status;
    cpu_pack(&draft, factor);
    draft.source.data = memory;
    *packed = (tsr_packed *)((char *)memory + draft.bytes);
    **packed = draft;
    return TSR_OK;
}

tsr_status tsr_packed_read(const tsr_packed *packed, int64_t row, int64_t col, int64_t rows, int64_t cols, float *to) {
    if (!packed) return tsr_fail(TSR_INVALID_ARGUMENT, "packed is NULL");
    if (packed->context->cuda)
        return tsr_fail(TSR_UNSUPPORTED, "packed is on CUDA: only elements of one on the CPU can be read back");
    const tsr_operand *source = &packed->source;
    if (row < 0 || rows < 0 || rows > source->rows || row > source->rows - rows || col < 0 || cols < 0 ||
        cols > source->cols || col > source->cols - cols)
        return tsr_fail(TSR_INVALID_ARGUMENT, "row, col, rows and cols (%lld, %lld, %lld, %lld) leave the matrix",
                        (long long)row, (long long)col, (long long)rows, (long long)cols);
    if (!to && rows && cols) return tsr_fail(TSR_INVALID_ARGUMENT, "to is NULL");
    if (packed->side == TSR_RIGHT) {
        cpu_packed_lanes(to, packed, col, cols, row, rows, cols);
        return TSR_OK;
    }
    for (int64_t i = 0; i < rows; i++) cpu_packed_lanes(to + i * cols, packed, row + i, 1, col, cols, 1);
    return TSR_OK;
}
