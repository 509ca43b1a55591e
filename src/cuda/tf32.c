/* tf32.c: queues products in TF32 of operands in place, and the copies of those that cannot be read so. */
#include "cuda/candidates.h"
#include "cuda/launch.h"

enum { MAX_K_EACH = 1 << 30 };

_Static_assert(sizeof(tensor_map) == sizeof(CUtensorMap) && _Alignof(tensor_map) >= 64, "what the driver fills");

/* An operand, its rows along k, as the copies of a kernel see it: in boxes of `rows` rows and TF32_K terms, or, with
 * rows that are neighbours, of TF32_K of both. */
static tsr_status map_operand(launch_queue *q, const tsr_operand *o, int64_t batch, bool across, int rows,
                              tensor_map *map) {
    const int64_t lines = across ? o->cols : o->rows, length = across ? o->rows : o->cols;
    const int64_t pitch = lines > 1 ? (across ? o->col_stride : o->row_stride) : 4, items = operand_count(o, batch);
    const cuuint64_t sizes[] = {(cuuint64_t)length, (cuuint64_t)lines, (cuuint64_t)items};
    const cuuint64_t strides[] = {(cuuint64_t)pitch * sizeof(float),
                                  (cuuint64_t)(items > 1 ? o->batch_stride : 4) * sizeof(float)};
    const cuuint32_t box[] = {TF32_K, across ? TF32_K : (cuuint32_t)rows, 1}, steps[] = {1, 1, 1};
    const CUresult error = q->cuda->driver->cuTensorMapEncodeTiled(
        (CUtensorMap *)map, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 3, (void *)o->data, sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return error ? cuda_fail(error, "making the tensor map of an operand") : TSR_OK;
}

/* Copies an operand, its rows along k, to *to, in rows that kernels can read. Then *o is the copy, and *to points
 * behind it. */
static tsr_status copy_operand(launch_queue *q, tsr_operand *o, int64_t batch, char **to) {
    const cuda_kernel *kernel = &cuda_kernels[TF32_COPY];
    const int64_t items = operand_count(o, batch);
    copy_args args = {
        .from = o->data,
        .row_stride = o->row_stride,
        .k_stride = o->col_stride,
        .batch_stride = o->batch_stride,
        .rows = (int32_t)o->rows,
        .k = (int32_t)o->cols,
        .pitch = (int32_t)round_up(o->cols, 4),
        .to = (float *)*to,
    };
    *to += tf32_copy_bytes(o->rows, o->cols, items);
    *o = (tsr_operand){args.to, o->rows, o->cols, args.pitch, 1, items > 1 ? o->rows * args.pitch : 0, NULL};
    const int64_t tiles = ceil_div(args.rows, kernel->tile_m) * ceil_div(args.k, kernel->tile_k);
    return launch_kernel(q, kernel, (launch_grid){tiles, items, 1}, &args, sizeof args);
}

/* Whether a kernel's copies can begin where an operand begins; one that was copied begins well. */
static bool begins_well(const tsr_operand *o, bool copied) { return copied || (uintptr_t)o->data % 16 == 0; }

static tf32_args args_of(const tsr_problem *p, const cuda_kernel *kernel, const tf32_reading *reading) {
    return (tf32_args){
        .addend = matrix_in_place(&p->addend),
        .c = matrix_of_result(&p->c),
        .m = (int32_t)p->m,
        .n = (int32_t)p->n,
        .batch = (int32_t)p->batch,
        .a_across = reading->a_across,
        .b_across = reading->b_across,
        .a_batched = p->a.batch_stride != 0,
        .b_batched = p->b.batch_stride != 0,
        .alpha = p->alpha,
        .beta = p->beta,
        .tiles_m = (int32_t)ceil_div(p->m, kernel->tile_m),
        .tiles_n = (int32_t)ceil_div(p->n, kernel->tile_n),
        .k_blocks = (int32_t)ceil_div(p->k, TF32_K),
        .k_blocks_each = (int32_t)ceil_div(p->k, TF32_K),
        .parts = 1,
        .slices = 1,
    };
}

/* Launches the kernel for operands, rows along k, that it can read so. */
static tsr_status launch(launch_queue *q, const cuda_plan *plan, const cuda_kernel *kernel, tf32_args *args,
                         const tsr_operand *a, const tsr_operand *b) {
    tsr_status status = map_operand(q, a, args->batch, args->a_across, kernel->tile_m, &args->a);
    if (!status) status = map_operand(q, b, args->batch, args->b_across, kernel->tile_n, &args->b);
    if (status) return status;
    const int64_t tiles = (int64_t)args->tiles_m * args->tiles_n * args->batch;
    const int64_t blocks = args->parts > 1 ? tiles * args->parts
                                           : cuda_split_blocks(kernel, plan->device, tiles * args->slices, 0);
    return launch_clusters(q, kernel, (launch_grid){blocks, 1, 1}, args->parts, args, sizeof *args);
}

/* The product by a direct kernel, which reads operands that begin anywhere. */
static tsr_status queue_unaligned(launch_queue *q, const cuda_plan *plan, const tsr_problem *p) {
    cuda_plan other = *plan;
    other.multiply = &cuda_kernels[DIRECT_64X64];
    other.cluster = 1;
    other.k_each = MAX_K_EACH;
    return queue_ieee(q, &other, p, NULL);
}

tsr_status queue_tf32(launch_queue *q, const cuda_plan *plan, const tsr_problem *p, char *workspace) {
    const tf32_reading reading = tf32_reading_of(p, plan->turns_b);
    char *copies = workspace + plan->workspace.copies;
    tsr_operand a = p->a, b = operand_transpose(&p->b);
    if (!begins_well(&a, reading.copies_a) || !begins_well(&b, reading.copies_b)) return queue_unaligned(q, plan, p);
    tf32_args args = args_of(p, plan->multiply, &reading);
    args.k_blocks_each = (int32_t)ceil_div(args.k_blocks, max64(plan->cluster, plan->slices));
    *(plan->slices > 1 ? &args.slices : &args.parts) = (int32_t)ceil_div(args.k_blocks, args.k_blocks_each);
    args.partial = (float *)(workspace + plan->workspace.partial_sums);
    tsr_status status = TSR_OK;
    if (reading.copies_a) status = copy_operand(q, &a, p->batch, &copies);
    if (!status && reading.copies_b) status = copy_operand(q, &b, p->batch, &copies);
    if (!status) status = launch(q, plan, plan->multiply, &args, &a, &b);
    return status || args.slices == 1 ? status : queue_reduce(q, p, plan->multiply, args.slices, args.partial);
}

tsr_status queue_tf32_recompute(launch_queue *q, const cuda_plan *plan, const tsr_problem *problem,
                                const split_args *split) {
    const cuda_kernel *kernel = cuda_tf32_recompute_kernel(plan->device);
    const bool transposed = tf32_reads_better_transposed(problem);
    const tsr_problem p = transposed ? problem_transpose(problem) : *problem;
    const split_operand *marked_a = transposed ? &split->b : &split->a, *marked_b = transposed ? &split->a : &split->b;
    const tf32_reading reading = tf32_reading_of(&p, true);
    const tsr_operand a = p.a, b = operand_transpose(&p.b);
    if (!begins_well(&a, false) || !begins_well(&b, false)) return queue_recompute(q, plan->device, problem, split);
    tf32_args args = args_of(&p, kernel, &reading);
    args.marks_a = marked_a->marks;
    args.marks_b = marked_b->marks;
    args.marks_a_batch_stride = marked_a->marks_batch_stride;
    args.marks_b_batch_stride = marked_b->marks_batch_stride;
    args.fallback_tiles = &((cuda_counters *)q->cuda->counters)->fallback_tiles;
    return launch(q, plan, kernel, &args, &a, &b);
}
