/* pack.c: queues the packing kernels, for a call's own operands and for packed operands that are kept. */
#include "cuda/launch.h"

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

split_operand panels_of(const split_source *s) {
    const panels_layout *l = s->layout;
    const int64_t first_panel = s->first_row / PANEL_ROWS, k_blocks = ceil_div(s->k, SPLIT_K);
    return (split_operand){
        .panels = (uint8_t *)s->memory + first_panel * k_blocks * s->components * PANEL_ROWS * SPLIT_ROW_BYTES,
        .exponents = (int32_t *)(s->memory + l->exponents) + s->first_row,
        .marks = (float *)(s->memory + l->marks) + first_panel,
        .tiny_counts = (uint32_t *)(s->memory + l->tiny_counts) + s->first_row,
        .panels_batch_stride = s->batch > 1 ? l->panels_stride : 0,
        .exponents_batch_stride = s->batch > 1 ? l->exponents_stride : 0,
        .marks_batch_stride = s->batch > 1 ? l->marks_stride : 0,
    };
}

/* From this many elements on it pays to look for rows that outgrow their samples, as gradients of logits have. Not in a
 * batch-invariant product, where the packing of a row must not depend on its neighbours. */
enum { LARGE_OPERAND = 1 << 27 };

static bool is_large(const split_source *s) {
    return s->batch == 1 && !s->by_row && (double)s->rows * (double)s->k >= LARGE_OPERAND;
}

/* The kernel of pack_rows.cu that can pack the operand, or NULL: rows must be contiguous, aligned and short. With
 * by_row there is none, because a row's bits must not depend on where it begins. */
static const cuda_kernel *rows_kernel(const split_source *s) {
    if (!s) return NULL;
    const bool aligned = (uintptr_t)s->data % 16 == 0 && s->row_stride % 4 == 0 && s->batch_stride % 4 == 0;
    if (s->components != 2 || s->by_row || s->k_stride != 1 || s->k % 4 || !aligned) return NULL;
    for (int i = PACK_ROWS_128; i <= PACK_ROWS_1024; i++)
        if (s->k <= cuda_kernels[i].tile_k) return &cuda_kernels[i];
    return NULL;
}

/* From this many elements on pack_rows packs an operand although pack_split packs the other: one more launch, which
 * gains 1 % in the product of 12608 x 768 and 768 x 768. */
enum { LARGE_BESIDE_TILES = 1 << 23 };

static double elements_of(const split_source *s) { return (double)s->batch * (double)s->rows * (double)s->k; }

static bool takes_whole_rows(const split_source *s, const split_source *other) {
    if (!rows_kernel(s)) return false;
    return !other || rows_kernel(other) || elements_of(s) >= LARGE_BESIDE_TILES;
}

static pack_args pack_args_of(const split_source *s) {
    const panels_layout *l = s->layout;
    return (pack_args){
        .data = s->data,
        .row_stride = s->row_stride,
        .k_stride = s->k_stride,
        .batch_stride = s->batch_stride,
        .rows = (int32_t)s->rows,
        .k = (int32_t)s->k,
        .batch = (int32_t)s->batch,
        .k_blocks = (int32_t)ceil_div(s->k, SPLIT_K),
        .components = s->components,
        .by_row = s->by_row,
        .is_large = is_large(s),
        .panels = (uint8_t *)s->memory,
        .exponents = (int32_t *)(s->memory + l->exponents),
        .row_overflows = (float *)(s->memory + l->row_overflows),
        .tiny_counts = (uint32_t *)(s->memory + l->tiny_counts),
        .overflowed_panels = (int32_t *)(s->memory + l->overflowed_panels),
        .marks = (float *)(s->memory + l->marks),
        .panels_batch_stride = l->panels_stride,
        .exponents_batch_stride = l->exponents_stride,
        .marks_batch_stride = l->marks_stride,
    };
}

tsr_status queue_pack(launch_queue *q, const split_source *first, const split_source *second) {
    if (!first && !second) return TSR_OK;
    /* The smaller operand first: what overflows in it is found while all blocks are at work, and can join the second
     * pass. */
    if (first && second && elements_of(first) > elements_of(second)) {
        const split_source *const larger = first;
        first = second, second = larger;
    }
    const split_source *const sources[2] = {first, second}, *const either = first ? first : second;
    pack_pair_args tiles = {.progress = (pack_progress *)(either->memory + either->layout->progress),
                            .marked_panels = &((cuda_counters *)q->cuda->counters)->marked_panels};
    pack_pair_args whole = tiles;
    const cuda_kernel *sample = &cuda_kernels[PACK_SAMPLE], *split = &cuda_kernels[PACK_SPLIT], *rows = NULL;
    int64_t samples = 0, splits = 0, looks = 0, scans = 0, rows_blocks = 0; /* thread blocks */
    for (int i = 0; i < 2; i++) {
        if (!sources[i]) continue;
        const pack_args o = pack_args_of(sources[i]);
        if (takes_whole_rows(sources[i], sources[1 - i])) {
            rows = rows_kernel(sources[i]);
            rows_blocks += o.batch * ceil_div(o.rows, rows->tile_m);
            tiles.marks[i] = o.marks;
            tiles.mark_counts[i] = (int32_t)(o.batch * o.marks_batch_stride);
            whole.operand[i] = o;
            continue;
        }
        samples += o.batch * ceil_div(o.rows, sample->tile_m);
        splits += o.batch * ceil_div(o.rows, split->tile_m) * o.k_blocks;
        looks += o.is_large ? PACK_LOOKS : 0;
        scans += o.is_large ? ceil_div(o.rows, o.row_stride == 1 ? PACK_SCAN_ACROSS : PACK_SCAN_ALONG) : 0;
        tiles.operand[i] = o;
        whole.beside_tiles = 1;
    }
    samples += ceil_div(tiles.mark_counts[0] + tiles.mark_counts[1], sample->threads);
    /* Blocks of pack_split are persistent, share the work, and may wait for each other: no more than fit on the GPU. An
     * SM has the shared memory of its largest block and 1 KB for each. */
    const cuda_device *device = &q->cuda->device;
    const int64_t room = (device->shared_per_block + 1024) / (split->shared_bytes + 1024);
    splits = min64(splits, device->multiprocessors * min64(split->blocks, room));
    const struct {
        const cuda_kernel *kernel;
        int64_t blocks;
        const pack_pair_args *args;
    } launches[] = {
        {sample, samples, &tiles},
        {&cuda_kernels[PACK_LOOK], looks, &tiles},
        {&cuda_kernels[PACK_SCAN], scans, &tiles},
        {split, splits, &tiles},
        {rows, rows_blocks, &whole},
    };
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < sizeof launches / sizeof *launches && !status; i++)
        if (launches[i].blocks)
            status = launch_kernel(q, launches[i].kernel, (launch_grid){launches[i].blocks, 1, 1}, launches[i].args,
                                   sizeof *launches[i].args);
    return status;
}

/* ---- Packed operands --------------------------------------------------------------------------------------------- */

/* An operand seen with k along its rows. */
static tsr_operand with_k_along_rows(tsr_side side, const tsr_operand *operand) {
    return side == TSR_LEFT ? *operand : operand_transpose(operand);
}

size_t cuda_pack_size(const tsr_context *context, tsr_side side, const tsr_operand *operand) {
    const cuda_kernel *kernel = cuda_split_kernel(context);
    const tsr_operand o = with_k_along_rows(side, operand);
    if (!kernel || !o.rows || !o.cols || o.rows > INT32_MAX / 2 || o.cols > INT32_MAX / 2) return 0;
    return panels_layout_of(o.rows, o.cols, 1, kernel->components).bytes;
}

tsr_status cuda_pack_panels(const tsr_packed *packed, CUstream stream) {
    const struct cuda_context *cuda = packed->context->cuda;
    const tsr_operand o = with_k_along_rows(packed->side, &packed->source);
    const int components = cuda_split_kernel(packed->context)->components;
    const panels_layout layout = panels_layout_of(o.rows, o.cols, 1, components);
    split_source source = {
        .data = o.data,
        .rows = o.rows,
        .k = o.cols,
        .row_stride = o.row_stride,
        .k_stride = o.col_stride,
        .batch = 1,
        .components = components,
        .by_row = packed->context->options.batch_invariant,
        .memory = packed->panels,
        .layout = &layout,
    };
    tsr_status status = check_memory(cuda, "operand.data", (void **)&source.data);
    launch_queue q;
    launch_begin(&q, cuda, stream);
    if (!status) status = queue_pack(&q, &source, NULL);
    return status ? status : launch_queued(&q);
}

static tsr_status pack_in_context(tsr_packed *packed, const tsr_launch *given) {
    const struct cuda_context *cuda = packed->context->cuda;
    tsr_status status = check_stream(cuda, given ? given->stream : NULL);
    if (status) return status;
    CUdeviceptr memory = 0;
    packed->borrowed = given && given->workspace;
    if (packed->borrowed) {
        packed->panels = given->workspace;
        status = check_memory(cuda, "launch.workspace", &packed->panels);
    } else {
        /* Not from the pool: in a captured stream that memory would be the graph's, and freeing it later would not wait
         * for streams that still read it. */
        status = cuda_memory_take(cuda, packed->bytes, &memory);
        packed->panels = (void *)memory;
    }
    if (status) return status;
    status = cuda_pack_panels(packed, given ? given->stream : NULL);
    if (status && !packed->borrowed) cuda_memory_give(cuda, memory);
    return status;
}

/* If products in this context would not be split, a packed operand only refers to the matrix: panels stays NULL. */
tsr_status cuda_pack(tsr_packed *packed, const tsr_launch *given) {
    packed->bytes = cuda_pack_size(packed->context, packed->side, &packed->source);
    if (!packed->bytes) return TSR_OK;
    bool pushed;
    tsr_status status = cuda_enter(packed->context->cuda, &pushed);
    if (status) return status;
    status = pack_in_context(packed, given);
    cuda_leave(packed->context->cuda, pushed);
    return status;
}

void cuda_packed_destroy(tsr_packed *packed) {
    bool pushed;
    if (!packed->panels || packed->borrowed || cuda_enter(packed->context->cuda, &pushed)) return;
    cuda_memory_give(packed->context->cuda, (CUdeviceptr)packed->panels);
    cuda_leave(packed->context->cuda, pushed);
}
