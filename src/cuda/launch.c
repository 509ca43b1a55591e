/* launch.c: carries out a cuda_plan: checks what only the driver knows, takes workspace, queues the kernels.
 *
 *   ieee    multiply, and where k was cut ieee_reduce
 *   split   pack_sample, pack_split, multiply, where k was cut split_reduce, and an ieee kernel for the tiles of marked
 *           panels, which returns at once where there are none
 */
#include <math.h>

#include "cuda/context.h"
#include "cuda/plan.h"


/* ---- Launching --------------------------------------------------------------------------------------------------- */

/* The kernels one call queues, one after the other. */
typedef struct queue {
    const struct cuda_context *cuda;
    CUstream stream;
    bool begun; /* the last thing in the stream is a kernel of this call */
} queue;

typedef struct grid {
    int64_t x, y, z;
} grid;

/* A kernel that waits by itself for the one before it may be launched early, its start overlapping that one's end. Not
 * so the call's first: the stranger before it may have let us start early without having waited for what is before
 * *it*. */
static tsr_status launch(queue *q, const cuda_kernel *kernel, grid blocks, void *args) {
    CUfunction function;
    tsr_status status = cuda_function(q->cuda, kernel, &function);
    if (status) return status;
    if (blocks.x > INT32_MAX || blocks.y > UINT16_MAX || blocks.z > UINT16_MAX)
        return tsr_fail(TSR_UNSUPPORTED, "%s would need %lld x %lld x %lld blocks, more than a grid may have",
                        kernel->name, (long long)blocks.x, (long long)blocks.y, (long long)blocks.z);
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value = {.programmaticStreamSerializationAllowed = 1}};
    CUlaunchConfig config = {
        .gridDimX = (unsigned)blocks.x,
        .gridDimY = (unsigned)blocks.y,
        .gridDimZ = (unsigned)blocks.z,
        .blockDimX = (unsigned)kernel->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)kernel->shared_bytes,
        .hStream = q->stream,
        .attrs = &early,
        .numAttrs = q->begun && kernel->waits && q->cuda->overlap_launches,
    };
    CUresult error = q->cuda->driver->cuLaunchKernelEx(&config, function, &args, NULL);
    if (error) return cuda_fail(error, "launching %s", kernel->name);
    q->begun = true;
    return TSR_OK;
}

/* ---- Checking pointers and stream -------------------------------------------------------------------------------- */

/* `*pointer` must be memory this GPU can use; pinned host memory becomes its address on the GPU. */
static tsr_status check_memory(const struct cuda_context *cuda, const char *name, void **pointer) {
    CUmemorytype type = 0;
    CUdeviceptr address = 0;
    int ordinal = -1, managed = 0;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void *answers[] = {&type, &address, &ordinal, &managed};
    CUresult error = cuda->driver->cuPointerGetAttributes(sizeof asked / sizeof *asked, asked, answers,
                                                          (CUdeviceptr)*pointer);
    if (error) return cuda_fail(error, "asking the driver about %s", name);
    if (!type)
        return tsr_fail(TSR_INVALID_ARGUMENT,
                        "%s is host memory, or has been freed: copy it to the GPU, or use a CPU context", name);
    if (type == CU_MEMORYTYPE_DEVICE && !managed && ordinal != cuda->device.ordinal)
        return tsr_fail(TSR_INVALID_ARGUMENT, "%s is memory of GPU %d, but the context works on GPU %d", name, ordinal,
                        cuda->device.ordinal);
    if (address) *pointer = (void *)address;
    return TSR_OK;
}

static tsr_status check_stream(const struct cuda_context *cuda, CUstream stream) {
    /* The default streams belong to whatever context is current, which is ours. */
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return TSR_OK;
    CUcontext owner = NULL;
    CUresult error = cuda->driver->cuStreamGetCtx(stream, &owner);
    if (error == CUDA_ERROR_INVALID_HANDLE || error == CUDA_ERROR_INVALID_CONTEXT ||
        error == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return tsr_fail(TSR_INVALID_ARGUMENT, "launch.stream is no stream, or has been destroyed");
    if (error) return cuda_fail(error, "asking the driver about launch.stream");
    if (owner != cuda->context)
        return tsr_fail(
            TSR_INVALID_ARGUMENT,
            "launch.stream belongs to another CUDA context than this one on GPU %d: use a stream of this GPU's",
            cuda->device.ordinal);
    return TSR_OK;
}

/* ---- ieee -------------------------------------------------------------------------------------------------------- */

static matrix_in in_place(const tsr_operand *o) {
    return (matrix_in){o->data, o->row_stride, o->col_stride, o->batch_stride};
}

static matrix_out result(const tsr_result *c) {
    return (matrix_out){c->data, c->row_stride, c->col_stride, c->batch_stride};
}

static ieee_args ieee_args_of(const tsr_problem *p, const cuda_kernel *kernel) {
    ieee_args args = {
        .a = in_place(&p->a),
        .b = in_place(&p->b),
        .addend = in_place(&p->addend),
        .c = result(&p->c),
        .m = (int32_t)p->m,
        .n = (int32_t)p->n,
        .k = (int32_t)p->k,
        .batch = (int32_t)p->batch,
        .alpha = p->alpha,
        .beta = p->beta,
    };
    if (kernel->tile_m) {
        args.tile_m = kernel->tile_m;
        args.tile_n = kernel->tile_n;
        args.tiles_m = (int32_t)ceil_div(p->m, kernel->tile_m);
        args.tiles_n = (int32_t)ceil_div(p->n, kernel->tile_n);
        args.full_tiles = args.tiles_m * args.tiles_n;
    }
    return args;
}

static tsr_status scale(queue *q, const tsr_problem *p) {
    const cuda_kernel *kernel = &cuda_kernels[IEEE_SCALE];
    ieee_args args = ieee_args_of(p, kernel);
    const int64_t most = 1 << 20; /* blocks: beyond, each takes several elements */
    return launch(q, kernel, (grid){min64(ceil_div(p->m * p->n, kernel->threads), most), 1, p->batch}, &args);
}

static tsr_status multiply_in_place(queue *q, const cuda_plan *plan, const tsr_problem *p, char *workspace) {
    const cuda_kernel *kernel = plan->multiply, *reduce = &cuda_kernels[IEEE_REDUCE];
    ieee_args args = ieee_args_of(p, kernel);
    const int64_t tiles = (int64_t)args.tiles_m * args.tiles_n;
    const bool as_planned = p->m == plan->chunk_m && p->n == plan->chunk_n && p->k == plan->chunk_k;
    if (plan->tail_units && as_planned) { /* what is left of a product beyond 32-bit extents is computed whole */
        args.full_tiles = (int32_t)plan->full_tiles;
        args.tail_blocks = (int32_t)plan->tail_units;
        args.segments = (int32_t)ieee_segments(p->k, tiles - plan->full_tiles, plan->tail_units);
        args.partial = (float *)workspace;
    }
    const int64_t blocks = cuda_ieee_blocks(kernel, plan->device, args.full_tiles + args.tail_blocks);
    tsr_status status = launch(q, kernel, (grid){blocks, 1, p->batch}, &args);
    if (status || args.segments <= 1) return status;
    const int64_t parts = ceil_div(kernel->tile_m * kernel->tile_n, 4 * reduce->threads);
    return launch(q, reduce, (grid){(tiles - args.full_tiles) * parts, 1, p->batch}, &args);
}

/* ---- split ------------------------------------------------------------------------------------------------------- */

/* What the marks of A and B may multiply to in a tile that the split kernels compute (docs/internals/numerics.md). fp32: what the
 * bound (k + 2) 2^-24 leaves, beside truncation and sums, for elements below fp16's least normal number; below 1, as it
 * is for short k, every tile is recomputed. tf32: a panel is carried or it is not. */
static float mark_limit(int64_t k, int pieces) {
    if (pieces == 1) return 1;
    const float terms = (float)k;
    return (terms - terms / 32 - 76) / (16.1f + terms / 800);
}

/* How large a sum, before it is scaled back, must be for each deep element behind it, to be good although its tile's
 * marks exceed mark_limit (docs/internals/numerics.md); infinite where no sum is. */
static float least_per_deep(int64_t k) {
    const float terms = (float)k, lost = 94 + terms / 24;
    return k < 1 << 22 && terms + 2 > lost ? 5 * lost / (terms + 2 - lost) : INFINITY;
}

/* An operand as the split kernels see it: `rows` rows of length k, in panels somewhere. */
typedef struct split_source {
    const float *data;
    int64_t rows, k, row_stride, k_stride, batch_stride;
    int64_t batch; /* products with a matrix of their own; 1 where all share it */
    int pieces;
    char *memory;        /* the panels, laid out as panels_layout_of says for: */
    int64_t packed_rows; /* all the rows there are */
    int64_t first_row;   /* of ours among those, a multiple of PANEL_ROWS */
} split_source;

static split_operand panels_of(const split_source *s) {
    const panels_layout l = panels_layout_of(s->packed_rows, s->k, s->batch, s->pieces);
    const int64_t first_panel = s->first_row / PANEL_ROWS;
    return (split_operand){
        .panels = (uint8_t *)s->memory + first_panel * l.k_blocks * s->pieces * PANEL_ROWS * SPLIT_ROW_BYTES,
        .exponents = (int32_t *)(s->memory + l.exponents) + s->first_row,
        .marks = (float *)(s->memory + l.marks) + first_panel,
        .tiny_counts = (uint32_t *)(s->memory + l.deep) + s->first_row,
        .panels_batch_stride = s->batch > 1 ? l.panels_stride : 0,
        .exponents_batch_stride = s->batch > 1 ? l.exponents_stride : 0,
        .marks_batch_stride = s->batch > 1 ? l.marks_stride : 0,
    };
}

static pack_args pack_args_of(const split_source *s) {
    const panels_layout l = panels_layout_of(s->rows, s->k, s->batch, s->pieces);
    return (pack_args){
        .data = s->data,
        .row_stride = s->row_stride,
        .k_stride = s->k_stride,
        .batch_stride = s->batch_stride,
        .rows = (int32_t)s->rows,
        .k = (int32_t)s->k,
        .batch = (int32_t)s->batch,
        .k_blocks = (int32_t)l.k_blocks,
        .components = s->pieces,
        .panels = (uint8_t *)s->memory,
        .exponents = (int32_t *)(s->memory + l.exponents),
        .row_overflows = (float *)(s->memory + l.overflows),
        .tiny_counts = (uint32_t *)(s->memory + l.deep),
        .overflowed_panels = (int32_t *)(s->memory + l.misfits),
        .marks = (float *)(s->memory + l.marks),
        .panels_batch_stride = l.panels_stride,
        .exponents_batch_stride = l.exponents_stride,
        .marks_batch_stride = l.marks_stride,
    };
}

/* Packs one or two operands; NULL stands for none. */
static tsr_status pack(queue *q, const split_source *first, const split_source *second) {
    if (!first && !second) return TSR_OK;
    pack_pair_args pair = {.marked_panels = &((cuda_counters *)q->cuda->counters)->marked_panels};
    if (first) pair.operand[0] = pack_args_of(first);
    if (second) pair.operand[1] = pack_args_of(second);
    const split_source *either = first ? first : second;
    const size_t at = panels_layout_of(either->rows, either->k, either->batch, either->pieces).progress;
    pair.progress = (pack_progress *)(either->memory + at);
    const cuda_kernel *sample = &cuda_kernels[PACK_SAMPLE], *split = &cuda_kernels[PACK_SPLIT];
    int64_t samples = 0, splits = 0; /* blocks */
    for (int i = 0; i < 2; i++) {
        const pack_args *o = &pair.operand[i];
        samples += o->batch * ceil_div(o->rows, sample->tile_m);
        splits += o->batch * ceil_div(o->rows, split->tile_m) * o->k_blocks;
    }
    /* They stay, share the work, and may wait for each other: no more than there is room for. A multiprocessor has the
     * shared memory of its largest block and 1 KB for each. */
    const cuda_device *device = &q->cuda->device;
    const int64_t room = (device->shared_per_block + 1024) / (split->shared_bytes + 1024);
    splits = min64(splits, device->multiprocessors * min64(split->blocks, room));
    tsr_status status = launch(q, sample, (grid){samples, 1, 1}, &pair);
    return status ? status : launch(q, split, (grid){splits, 1, 1}, &pair);
}

/* Computes as TSR_IEEE what of C the split kernel left. */
static tsr_status recompute_marked(queue *q, const cuda_plan *plan, const tsr_problem *p, const split_args *split) {
    const cuda_kernel *kernel = cuda_recompute_kernel(plan->device);
    ieee_args args = ieee_args_of(p, kernel);
    args.marks_a = split->a.marks;
    args.marks_b = split->b.marks;
    args.mark_limit = split->mark_limit;
    args.marks_a_batch_stride = split->a.marks_batch_stride;
    args.marks_b_batch_stride = split->b.marks_batch_stride;
    args.recompute = split->recompute;
    args.recompute_batch_stride = split->recompute_batch_stride;
    args.fallback_tiles = &((cuda_counters *)q->cuda->counters)->fallback_tiles;
    const int64_t blocks = min64(args.full_tiles, (int64_t)plan->device->multiprocessors * kernel->blocks);
    return launch(q, kernel, (grid){blocks, 1, p->batch}, &args);
}

static tsr_status multiply_split(queue *q, const cuda_plan *plan, const tsr_problem *p, const split_source *source_a,
                                 const split_source *source_b, char *workspace) {
    const cuda_kernel *kernel = plan->multiply, *reduce = &cuda_kernels[SPLIT_REDUCE];
    split_args args = {
        .a = panels_of(source_a),
        .b = panels_of(source_b),
        .addend = in_place(&p->addend),
        .c = result(&p->c),
        .m = (int32_t)p->m,
        .n = (int32_t)p->n,
        .batch = (int32_t)p->batch,
        .k_blocks = (int32_t)ceil_div(p->k, SPLIT_K),
        .alpha = p->alpha,
        .beta = p->beta,
        .mark_limit = mark_limit(p->k, kernel->pieces),
        .least_per_tiny = least_per_deep(p->k),
        .tiles_m = (int32_t)ceil_div(p->m, kernel->tile_m),
        .tiles_n = (int32_t)ceil_div(p->n, kernel->tile_n),
        .slices = 1,
        .k_blocks_per_slice = (int32_t)ceil_div(p->k, SPLIT_K),
        .short_end = (p->k - 1) % SPLIT_K < SPLIT_SUM_K,
    };
    if (plan->slices > 1) {
        args.k_blocks_per_slice = (int32_t)(plan->k_per_slice / SPLIT_K);
        args.slices = (int32_t)ceil_div(args.k_blocks, args.k_blocks_per_slice);
        args.partial = (float *)workspace;
        workspace += p->batch * args.slices * p->m * p->n * (int64_t)sizeof(float);
    }
    if (kernel->pieces == 2 && args.mark_limit >= 1 && args.least_per_tiny < INFINITY) /* else no sum is good */
        args.recompute = (uint8_t *)workspace, args.recompute_batch_stride = check_blocks_in(p->m, p->n);
    const int64_t tiles = (int64_t)args.tiles_m * args.tiles_n;
    const int64_t blocks = cuda_split_blocks(kernel, plan->device, tiles, args.slices, p->batch);
    tsr_status status = launch(q, kernel, (grid){blocks, 1, 1}, &args);
    if (!status && args.slices > 1)
        status = launch(q, reduce, (grid){ceil_div(check_blocks_in(p->m, p->n), reduce->threads / 32), p->batch, 1}, &args);
    return status ? status : recompute_marked(q, plan, p, &args);
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

/* What one chunk covers of the oriented problem. */
typedef struct chunk {
    int64_t m0, n0, k0, batch0;
    int64_t m, n, k, batch;
} chunk;

static tsr_problem part_of(const tsr_problem *p, const chunk *at) {
    tsr_problem part = *p;
    part.m = at->m, part.n = at->n, part.k = at->k, part.batch = at->batch;
    if (p->k) {
        part.a.data += at->batch0 * p->a.batch_stride + at->m0 * p->a.row_stride + at->k0 * p->a.col_stride;
        part.b.data += at->batch0 * p->b.batch_stride + at->k0 * p->b.row_stride + at->n0 * p->b.col_stride;
    }
    part.c.data += at->batch0 * p->c.batch_stride + at->m0 * p->c.row_stride + at->n0 * p->c.col_stride;
    if (at->k0) { /* the chunks of k before this one are in C, the addend with them */
        part.beta = 1;
        part.addend = (tsr_operand){part.c.data,         part.m, part.n, part.c.row_stride, part.c.col_stride,
                                    part.c.batch_stride, NULL};
    } else if (p->beta != 0)
        part.addend.data += at->batch0 * p->addend.batch_stride + at->m0 * p->addend.row_stride +
                            at->n0 * p->addend.col_stride;
    return part;
}

/* Rows first_row.. of one side of the problem, `o` seen with k along its rows: where they are, and where packed. */
static split_source source_of(const tsr_problem *p, const tsr_operand *o, const float *data, int64_t rows,
                              int64_t first_row, const chunk *at, int pieces, char *memory) {
    char *packed = cuda_packed_panels(o, p->batch);
    return (split_source){
        .data = data,
        .rows = rows,
        .k = at->k,
        .row_stride = o->row_stride,
        .k_stride = o->col_stride,
        .batch_stride = o->batch_stride,
        .batch = o->batch_stride && !packed ? at->batch : 1,
        .pieces = pieces,
        .memory = packed ? packed : memory,
        .packed_rows = packed ? o->rows : rows,
        .first_row = packed ? first_row : 0,
    };
}

/* One chunk by the split path. A chunk of B serves all chunks of m that follow; a chunk of A that is the whole of m
 * serves all chunks of n. */
static tsr_status execute_split(queue *q, const cuda_plan *plan, const tsr_problem *p, const chunk *at,
                                char *workspace) {
    const int pieces = plan->multiply->pieces;
    const tsr_problem part = part_of(p, at);
    const tsr_operand b_rows = operand_transpose(&p->b);
    const bool a_packed = cuda_packed_panels(&p->a, p->batch), b_packed = cuda_packed_panels(&p->b, p->batch);
    const split_source a = source_of(p, &p->a, part.a.data, at->m, at->m0, at, pieces, workspace);
    if (!a_packed) workspace += panels_layout_of(plan->chunk_m, plan->chunk_k, a.batch, pieces).bytes;
    const split_source b = source_of(p, &b_rows, part.b.data, at->n, at->n0, at, pieces, workspace);
    if (!b_packed) workspace += panels_layout_of(plan->chunk_n, plan->chunk_k, b.batch, pieces).bytes;

    const bool a_is_new = !a_packed && (at->n0 == 0 || plan->chunk_m < p->m);
    const bool b_is_new = !b_packed && at->m0 == 0;
    tsr_status status = pack(q, a_is_new ? &a : NULL, b_is_new ? &b : NULL);
    return status ? status : multiply_split(q, plan, &part, &a, &b, workspace);
}

static tsr_status execute_chunk(queue *q, const cuda_plan *plan, const tsr_problem *p, const chunk *at,
                                char *workspace) {
    const tsr_problem part = part_of(p, at);
    if (!at->k) return scale(q, &part);
    if (plan->split) return execute_split(q, plan, p, at, workspace);
    return multiply_in_place(q, plan, &part, workspace);
}

/* Every chunk, those of m innermost. */
static tsr_status execute_chunks(queue *q, const cuda_plan *plan, const tsr_problem *p, char *workspace) {
    tsr_status status = TSR_OK;
    chunk at = {0};
    for (at.batch0 = 0; at.batch0 < p->batch && !status; at.batch0 += plan->chunk_batch) {
        at.batch = min64(plan->chunk_batch, p->batch - at.batch0);
        at.k0 = 0;
        do { /* once at least: a product without terms has k = 0 */
            at.k = min64(plan->chunk_k, p->k - at.k0);
            for (at.n0 = 0; at.n0 < p->n && !status; at.n0 += plan->chunk_n) {
                at.n = min64(plan->chunk_n, p->n - at.n0);
                for (at.m0 = 0; at.m0 < p->m && !status; at.m0 += plan->chunk_m) {
                    at.m = min64(plan->chunk_m, p->m - at.m0);
                    status = execute_chunk(q, plan, p, &at, workspace);
                }
            }
            at.k0 += plan->chunk_k;
        } while (at.k0 < p->k && !status);
    }
    return status;
}

/* ---- The engine's calls ------------------------------------------------------------------------------------------ */

static tsr_status check_operands(const struct cuda_context *cuda, tsr_problem *p) {
    const bool in_c = p->addend.data == p->c.data;
    tsr_status status = check_memory(cuda, "c.data", (void **)&p->c.data);
    if (in_c)
        p->addend.data = p->c.data;
    else if (!status && p->beta != 0)
        status = check_memory(cuda, "addend.data", (void **)&p->addend.data);
    if (!status && p->k) status = check_memory(cuda, "a.data", (void **)&p->a.data);
    if (!status && p->k) status = check_memory(cuda, "b.data", (void **)&p->b.data);
    return status;
}

static tsr_status execute_in_context(const struct cuda_context *cuda, const cuda_plan *plan, const tsr_problem *problem,
                                     const tsr_launch *given) {
    queue q = {cuda, given ? given->stream : NULL, false};
    tsr_problem p = *problem;
    tsr_status status = check_stream(cuda, q.stream);
    if (!status) status = check_operands(cuda, &p);
    if (status) return status;
    p = cuda_oriented(&p, plan->transposed);

    void *workspace = given ? given->workspace : NULL;
    const bool take = plan->workspace && p.k && !workspace;
    CUdeviceptr taken = 0;
    if (take)
        status = cuda_workspace_take(cuda, q.stream, plan->workspace, &taken);
    else if (workspace && plan->workspace)
        status = check_memory(cuda, "launch.workspace", &workspace);
    if (status) return status;
    status = execute_chunks(&q, plan, &p, take ? (char *)taken : workspace);
    const CUresult error = take ? cuda_workspace_give(cuda, q.stream, taken) : CUDA_SUCCESS;
    return error && !status ? cuda_fail(error, "giving workspace back on GPU %d", cuda->device.ordinal) : status;
}

tsr_status cuda_execute(const cuda_plan *plan, tsr_context *context, const tsr_problem *problem,
                        const tsr_launch *given) {
    bool pushed;
    tsr_status status = cuda_enter(context->cuda, &pushed);
    if (status) return status;
    status = execute_in_context(context->cuda, plan, problem, given);
    cuda_leave(context->cuda, pushed);
    if (!status && plan->split && problem->k)
        atomic_fetch_add_explicit(&context->split_products, (uint_fast64_t)problem->batch, memory_order_relaxed);
    return status;
}

/* An operand seen with k along its rows. */
static tsr_operand with_k_along_rows(tsr_side side, const tsr_operand *operand) {
    return side == TSR_LEFT ? *operand : operand_transpose(operand);
}

size_t cuda_pack_size(const tsr_context *context, tsr_side side, const tsr_operand *operand) {
    const cuda_kernel *kernel = cuda_split_kernel(context);
    const tsr_operand o = with_k_along_rows(side, operand);
    if (!kernel || !o.rows || !o.cols || o.rows > INT32_MAX / 2 || o.cols > INT32_MAX / 2) return 0;
    return panels_layout_of(o.rows, o.cols, 1, kernel->pieces).bytes;
}

tsr_status cuda_pack_panels(const tsr_packed *packed, CUstream stream) {
    const struct cuda_context *cuda = packed->context->cuda;
    const tsr_operand o = with_k_along_rows(packed->side, &packed->source);
    split_source source = {
        .data = o.data,
        .rows = o.rows,
        .k = o.cols,
        .row_stride = o.row_stride,
        .k_stride = o.col_stride,
        .batch = 1,
        .pieces = cuda_split_kernel(packed->context)->pieces,
        .memory = packed->panels,
    };
    const tsr_status status = check_memory(cuda, "operand.data", (void **)&source.data);
    queue q = {cuda, stream, false};
    return status ? status : pack(&q, &source, NULL);
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

/* Where products in this context would not be split, a packed operand is only a name for the matrix: panels stays NULL.
 */
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
