/* ieee.c: queues the ieee kernels: products of operands in place, products without terms, and what of a split product
 * must be recomputed. */
#include "cuda/candidates.h"
#include "cuda/launch.h"

matrix_in matrix_in_place(const tsr_operand *o) {
    return (matrix_in){o->data, o->row_stride, o->col_stride, o->batch_stride};
}

matrix_out matrix_of_result(const tsr_result *c) {
    return (matrix_out){c->data, c->row_stride, c->col_stride, c->batch_stride};
}

static ieee_args ieee_args_of(const tsr_problem *p, const cuda_kernel *kernel) {
    ieee_args args = {
        .a = matrix_in_place(&p->a),
        .b = matrix_in_place(&p->b),
        .addend = matrix_in_place(&p->addend),
        .c = matrix_of_result(&p->c),
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

tsr_status queue_scale(launch_queue *q, const tsr_problem *p) {
    const cuda_kernel *kernel = &cuda_kernels[IEEE_SCALE];
    ieee_args args = ieee_args_of(p, kernel);
    const int64_t most = 1 << 20; /* blocks: beyond, each takes several elements */
    return launch_kernel(q, kernel, (launch_grid){min64(ceil_div(p->m * p->n, kernel->threads), most), 1, p->batch},
                         &args, sizeof args);
}

static tsr_status launch_reduce(launch_queue *q, ieee_args *args) {
    const cuda_kernel *reduce = &cuda_kernels[IEEE_REDUCE];
    const int64_t tail = (int64_t)args->tiles_m * args->tiles_n - args->full_tiles;
    const int64_t parts = ceil_div((int64_t)args->tile_m * args->tile_n, 4 * reduce->threads);
    return launch_kernel(q, reduce, (launch_grid){tail * parts, 1, args->batch}, args, sizeof *args);
}

/* Kernels of one launch: tile rows lie along the grid's x, by clusters, tile columns along y. A grid has at most
 * MOST_COLUMNS along y; and which cluster a thread block belongs to, the compiler computes in float, which is exact up
 * to MOST_BLOCKS. Larger products are several launches after all. */
static tsr_status queue_one_launch(launch_queue *q, const cuda_plan *plan, const tsr_problem *p) {
    enum { MOST_BLOCKS = 1 << 23, MOST_COLUMNS = 65535 };
    const cuda_kernel *kernel = plan->multiply;
    const bool by_tiles = kernel->family == FAMILY_SMALL;
    const int64_t rows = by_tiles ? kernel->tile_m : cuda_vector_rows(kernel, plan->share);
    const int64_t most_m = MOST_BLOCKS / plan->cluster * rows;
    const int64_t most_n = by_tiles ? (int64_t)MOST_COLUMNS * kernel->tile_n : p->n;
    problem_range at = {.k = p->k, .batch = p->batch};
    tsr_status status = TSR_OK;
    for (at.n0 = 0; at.n0 < p->n && !status; at.n0 += most_n) {
        at.n = min64(most_n, p->n - at.n0);
        for (at.m0 = 0; at.m0 < p->m && !status; at.m0 += most_m) {
            at.m = min64(most_m, p->m - at.m0);
            const tsr_problem part = problem_part(p, &at);
            ieee_args args = ieee_args_of(&part, kernel);
            args.cluster = (int32_t)plan->cluster;
            args.k_each = (int32_t)min64(plan->k_each, round_up(ceil_div(p->k, plan->cluster), IEEE_RUN));
            args.share = (int32_t)plan->share;
            const launch_grid grid = {ceil_div(at.m, rows) * plan->cluster, by_tiles ? args.tiles_n : 1, p->batch};
            status = launch_clusters(q, kernel, grid, plan->cluster, &args, sizeof args);
        }
    }
    return status;
}

/* A wide kernel, and ieee_reduce where tiles are in slices. A smaller last chunk is computed whole. */
static tsr_status queue_wide(launch_queue *q, const cuda_plan *plan, const tsr_problem *p, char *workspace) {
    const cuda_kernel *kernel = plan->multiply;
    const bool as_planned = p->m == plan->chunk_m && p->n == plan->chunk_n && p->k == plan->chunk_k;
    ieee_args args = ieee_args_of(p, kernel);
    args.full_tiles = 0;
    args.cluster = as_planned ? (int32_t)plan->cluster : 1;
    args.segments = as_planned ? (int32_t)plan->slices : 1;
    args.k_each = (int32_t)(as_planned ? plan->k_each : p->k);
    args.partial = (float *)(workspace + plan->workspace.partial_sums);
    const int64_t tiles = (int64_t)args.tiles_m * args.tiles_n * args.segments;
    const int64_t clusters = args.cluster > 1 ? tiles : cuda_wide_blocks(kernel, plan->device, p->batch, tiles);
    tsr_status status = launch_clusters(q, kernel, (launch_grid){clusters * args.cluster, 1, p->batch}, args.cluster,
                                        &args, sizeof args);
    return status || args.segments == 1 ? status : queue_reduce(q, p, kernel, args.segments, args.partial);
}

tsr_status queue_ieee(launch_queue *q, const cuda_plan *plan, const tsr_problem *p, char *workspace) {
    const cuda_kernel *kernel = plan->multiply;
    if (kernel->family == FAMILY_WIDE) return queue_wide(q, plan, p, workspace);
    if (cuda_shares_k(kernel)) return queue_one_launch(q, plan, p);
    ieee_args args = ieee_args_of(p, kernel);
    const int64_t tiles = (int64_t)args.tiles_m * args.tiles_n;
    const bool as_planned = p->m == plan->chunk_m && p->n == plan->chunk_n && p->k == plan->chunk_k;
    if (kernel->family == FAMILY_WARP) {
        const int64_t blocks = cuda_warp_blocks(kernel, plan->device, tiles * p->batch);
        return launch_kernel(q, kernel, (launch_grid){blocks, 1, 1}, &args, sizeof args);
    }
    const bool sliced = plan->invariant && plan->slices > 1; /* all tiles of all chunks */
    if (sliced || (plan->tail_blocks && as_planned)) {       /* what is left beyond 32-bit extents is computed whole */
        args.full_tiles = (int32_t)plan->full_tiles;
        args.tail_blocks = (int32_t)(sliced ? tiles * plan->slices : plan->tail_blocks);
        args.segments = (int32_t)cuda_ieee_segments(p->k, tiles - plan->full_tiles, args.tail_blocks);
        args.partial = (float *)(workspace + plan->workspace.partial_sums);
    }
    const int64_t blocks = cuda_ieee_blocks(kernel, plan->device, args.full_tiles, args.tail_blocks);
    tsr_status status = launch_kernel(q, kernel, (launch_grid){blocks, 1, p->batch}, &args, sizeof args);
    return status || args.segments <= 1 ? status : launch_reduce(q, &args);
}

tsr_status queue_reduce(launch_queue *q, const tsr_problem *p, const cuda_kernel *kernel, int64_t slices,
                        float *partial) {
    ieee_args args = ieee_args_of(p, kernel);
    args.tail_blocks = (int32_t)(args.full_tiles * slices);
    args.full_tiles = 0;
    args.segments = (int32_t)slices;
    args.partial = partial;
    return launch_reduce(q, &args);
}

tsr_status queue_recompute(launch_queue *q, const cuda_device *device, const tsr_problem *p, const split_args *split) {
    const cuda_kernel *kernel = cuda_recompute_kernel(device, p, split->by_row);
    ieee_args args = ieee_args_of(p, kernel);
    args.marks_a = split->a.marks;
    args.marks_b = split->b.marks;
    args.mark_limit = split->mark_limit;
    args.by_row = split->by_row;
    args.marks_a_batch_stride = split->a.marks_batch_stride;
    args.marks_b_batch_stride = split->b.marks_batch_stride;
    args.recompute = split->recompute;
    args.recompute_batch_stride = split->recompute_batch_stride;
    args.fallback_tiles = &((cuda_counters *)q->cuda->counters)->fallback_tiles;
    const int64_t blocks = min64(args.full_tiles, (int64_t)device->multiprocessors * kernel->blocks);
    return launch_kernel(q, kernel, (launch_grid){blocks, 1, p->batch}, &args, sizeof args);
}
