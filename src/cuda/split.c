/* split.c: queues split products: packing, multiplying, reducing slices, recomputing. */
#include <math.h>

#include "cuda/launch.h"

/* Whether the kernel adds as Ampere's tensor cores do, which truncate more than Hopper's (numerics.md). */
static bool truncates_more(const cuda_kernel *kernel) { return kernel->module == MODULE_SPLIT_MMA_SM80; }

/* The largest product of a mark of A and a mark of B for which the split kernels store a tile without checking its sums
 * (docs/internals/numerics.md). fp32: what the bound (k + 2) 2^-24 leaves for tiny elements, beside truncation and
 * sums. For short k it is below 1, and every tile is recomputed. tf32: a panel is carried or not; in a batch-invariant
 * product it is carried if it has no tiny element. */
static float mark_limit(int64_t k, const cuda_kernel *kernel) {
    if (kernel->components == 1) return 1;
    const float terms = (float)k, lost = truncates_more(kernel) ? 76 : 45;
    return (terms - terms / 32 - lost) / (16.1f + terms / 800);
}

/* For tiles whose marks exceed mark_limit: a sum is good if it is at least this large, before it is scaled back, for
 * each tiny element behind it (docs/internals/numerics.md). Infinite where no sum is good. */
static float least_per_tiny(int64_t k, const cuda_kernel *kernel) {
    if (kernel->components == 1) return 1 << 13;
    const float terms = (float)k, lost = (truncates_more(kernel) ? 94 : 74) + terms / 24;
    return k < 1 << 22 && terms + 2 > lost ? 5 * lost / (terms + 2 - lost) : INFINITY;
}

/* Up to this many blocks of k, taking turns at the end of a tile costs less than it gains
 * (docs/internals/experiments.md). */
enum { TURN_BLOCKS = 16 };

/* The variant of the plan's kernel that is launched. */
static const cuda_kernel *variant_of(const cuda_kernel *kernel, const split_args *args, int64_t blocks) {
    if (kernel != &cuda_kernels[SPLIT_FP32_SM90]) return kernel;
    if (args->parts > 1) return &cuda_kernels[SPLIT_FP32_SM90_PARTS];
    const bool in_turns = args->slices == 1 && args->k_blocks <= TURN_BLOCKS &&
                          (int64_t)args->batch * args->full_tiles > blocks;
    return in_turns ? &cuda_kernels[SPLIT_FP32_SM90_TURNS] : kernel;
}

static tsr_status multiply(launch_queue *q, const cuda_plan *plan, const tsr_problem *p, const split_source *source_a,
                           const split_source *source_b, char *workspace) {
    const cuda_kernel *kernel = plan->multiply, *reduce = &cuda_kernels[SPLIT_REDUCE];
    split_args args = {
        .a = panels_of(source_a),
        .b = panels_of(source_b),
        .addend = matrix_in_place(&p->addend),
        .c = matrix_of_result(&p->c),
        .m = (int32_t)p->m,
        .n = (int32_t)p->n,
        .batch = (int32_t)p->batch,
        .k_blocks = (int32_t)ceil_div(p->k, SPLIT_K),
        .alpha = p->alpha,
        .beta = p->beta,
        .mark_limit = mark_limit(p->k, kernel),
        .least_per_tiny = least_per_tiny(p->k, kernel),
        .by_row = plan->invariant,
        .tile_m = kernel->tile_m,
        .tile_n = kernel->tile_n,
        .tiles_m = (int32_t)ceil_div(p->m, kernel->tile_m),
        .tiles_n = (int32_t)ceil_div(p->n, kernel->tile_n),
        .slices = 1,
        .parts = 1,
        .k_blocks_per_slice = (int32_t)ceil_div(p->k, SPLIT_K),
        .short_end = (p->k - 1) % SPLIT_K < SPLIT_SUM_K,
    };
    const int32_t tiles = args.full_tiles = args.tiles_m * args.tiles_n;
    const bool as_planned = p->m == plan->chunk_m && p->n == plan->chunk_n && p->k == plan->chunk_k;
    if (plan->cluster > 1 && as_planned) {
        args.parts = (int32_t)plan->cluster;
        args.k_blocks_per_slice = (int32_t)(plan->k_each / SPLIT_K);
    } else if (plan->slices > 1 &&
               (as_planned || !plan->full_tiles)) { /* a last, smaller chunk is computed whole, or in slices, too */
        args.full_tiles = (int32_t)plan->full_tiles;
        args.k_blocks_per_slice = (int32_t)(plan->k_per_slice / SPLIT_K);
        args.slices = (int32_t)ceil_div(args.k_blocks, args.k_blocks_per_slice);
        args.partial = (float *)(workspace + plan->workspace.partial_sums);
    }
    const bool can_check = args.mark_limit >= 1 && args.least_per_tiny < INFINITY; /* else no sum is good */
    if (can_check && (kernel->components == 2 || plan->invariant)) {
        args.recompute = (uint16_t *)(workspace + plan->workspace.recompute_flags);
        args.recompute_batch_stride = cuda_check_blocks(p->m, p->n);
    } else if (plan->invariant) /* a panel's mark depends on neighbours, so it must not decide: all is recomputed */
        args.mark_limit = 0;
    const int64_t blocks = args.parts > 1 ? p->batch * tiles * args.parts
                                          : cuda_split_blocks(kernel, plan->device, p->batch * args.full_tiles,
                                                              p->batch * (tiles - args.full_tiles) * args.slices);
    tsr_status status = launch_clusters(q, variant_of(kernel, &args, blocks), (launch_grid){blocks, 1, 1}, args.parts,
                                        &args, sizeof args);
    if (!status && args.slices > 1) {
        const int64_t cut = (int64_t)(tiles - args.full_tiles) * kernel->tile_m * kernel->tile_n;
        const int64_t reduce_blocks = ceil_div(cut / (CHECK_ROWS * CHECK_COLS), reduce->threads / 32);
        status = launch_kernel(q, reduce, (launch_grid){reduce_blocks, p->batch, 1}, &args, sizeof args);
    }
    if (status) return status;
    return cuda_recomputes_in_tf32(plan, p) ? queue_tf32_recompute(q, plan, p, &args)
                                            : queue_recompute(q, plan->device, p, &args);
}

/* One operand of a chunk, with k along its rows, and where its panels are. */
static split_source source_of(const cuda_plan *plan, const tsr_operand *o, int64_t batch, const panels_layout *layout,
                              char *memory, int64_t first_row) {
    return (split_source){
        .data = o->data,
        .rows = o->rows,
        .k = o->cols,
        .row_stride = o->row_stride,
        .k_stride = o->col_stride,
        .batch_stride = o->batch_stride,
        .batch = batch,
        .components = plan->multiply->components,
        .by_row = plan->invariant,
        .memory = memory,
        .layout = layout,
        .first_row = first_row,
    };
}

/* A chunk of B serves all chunks of m that follow; a chunk of A that is the whole of m serves all chunks of n. */
tsr_status queue_split(launch_queue *q, const cuda_plan *plan, const tsr_problem *p, const problem_range *at,
                       char *workspace) {
    const cuda_workspace_layout *w = &plan->workspace;
    const tsr_problem chunk = problem_part(p, at);
    const tsr_operand b_rows = operand_transpose(&chunk.b);
    const void *a_packed = operand_panels(&p->a, p->batch), *b_packed = operand_panels(&p->b, p->batch);
    const split_source a = a_packed ? source_of(plan, &chunk.a, 1, &w->a, (char *)a_packed, at->m0)
                                    : source_of(plan, &chunk.a, operand_count(&p->a, at->batch), &w->a,
                                                workspace + w->a_panels, 0);
    const split_source b = b_packed ? source_of(plan, &b_rows, 1, &w->b, (char *)b_packed, at->n0)
                                    : source_of(plan, &b_rows, operand_count(&p->b, at->batch), &w->b,
                                                workspace + w->b_panels, 0);

    const bool a_is_new = !a_packed && (at->n0 == 0 || plan->chunk_m < p->m);
    const bool b_is_new = !b_packed && at->m0 == 0;
    tsr_status status = queue_pack(q, a_is_new ? &a : NULL, b_is_new ? &b : NULL);
    return status ? status : multiply(q, plan, &chunk, &a, &b, workspace);
}
