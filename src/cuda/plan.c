/* plan.c: problem -> cuda_plan, from the table of kernels, the cost model and what the GPU is. Pure.
 * The plan is the candidate with the least estimated time. */
#include "cuda/plan.h"

#include "cuda/candidates.h"
#include "cuda/context.h"

/* Gradients often have panels that fp16 cannot represent. On average packed products take this many times as long. */
#define TF32_RISK 1.07

/* Kernels index with 32 bits, so larger extents are computed in chunks. A grid has at most MAX_BATCH blocks along z. */
enum { MAX_EXTENT = 1 << 30, MAX_BATCH = 65535 };

/* Chunks that max_workspace forces are whole tiles of every split kernel. */
enum { CHUNK_STEP = 2 * PANEL_ROWS };

/* Whether a call's first kernel may begin before the kernel in front of it has finished, which gains 0.5 us and more:
 * what comes before the first read runs meanwhile. But thread blocks that are placed early land in any order, and some
 * SMs get more than their share. Where a call is long, by estimate, that costs as much as it gains; except with TF32
 * and wide kernels, of which an SM has one or two blocks. Only on Hopper, where measurements show that a kernel which
 * begins early still waits for everything in front of it in the stream. */
static bool begins_early(const cuda_device *device, const cuda_candidate *c) {
    return device->capability == 90 &&
           (c->kernel->family == FAMILY_TF32 || c->kernel->family == FAMILY_WIDE || c->seconds < COST_EARLY);
}

/* Thin kernels want the thin side to be C's columns; the others write best along contiguous rows of C. */
static bool should_transpose(const tsr_problem *p) {
    if (p->m <= CUDA_THIN || p->n <= CUDA_THIN) return p->m < p->n;
    return p->c.col_stride != 1 && p->c.row_stride == 1;
}

const cuda_kernel *cuda_split_kernel(const tsr_context *context) {
    const struct cuda_context *cuda = context->cuda;
    if (cuda->forced) return cuda->forced->family == FAMILY_SPLIT ? cuda->forced : NULL;
    if (context->options.precision == TSR_IEEE) return NULL;
    const int components = context->options.precision == TSR_TF32 ? 1 : 2;
    for (int i = 0; i < CUDA_KERNELS; i++) {
        const cuda_kernel *row = &cuda_kernels[i];
        if (row->family == FAMILY_SPLIT && row->components == components && cuda_kernel_runs_on(row, &cuda->device))
            return row;
    }
    return NULL;
}

/* ---- Workspace --------------------------------------------------------------------------------------------------- */

panels_layout panels_layout_of(int64_t rows, int64_t k, int64_t batch, int components) {
    const int64_t panels = ceil_div(rows, PANEL_ROWS), k_blocks = ceil_div(k, SPLIT_K);
    /* Four bytes for each row, each panel. */
    const size_t row_words = (size_t)round_up(batch * rows * 4, CUDA_ALIGNMENT);
    const size_t panel_words = (size_t)round_up(batch * panels * 4, CUDA_ALIGNMENT);
    panels_layout l = {.exponents_stride = rows, .marks_stride = panels};
    l.panels_stride = round_up(rows, PANEL_ROW_STEP) * k_blocks * components * SPLIT_ROW_BYTES;
    l.exponents = (size_t)round_up(batch * l.panels_stride, CUDA_ALIGNMENT);
    l.row_overflows = l.exponents + row_words;
    l.tiny_counts = l.row_overflows + row_words;
    l.overflowed_panels = l.tiny_counts + row_words;
    l.marks = l.overflowed_panels + panel_words;
    l.progress = l.marks + panel_words;
    l.bytes = l.progress + CUDA_ALIGNMENT;
    return l;
}

/* The largest chunk, by which all are planned. */
static tsr_problem first_chunk(const cuda_plan *plan, const tsr_problem *p) {
    tsr_problem chunk = *p;
    chunk.m = plan->chunk_m, chunk.n = plan->chunk_n, chunk.k = plan->chunk_k, chunk.batch = plan->chunk_batch;
    return chunk;
}

bool cuda_recomputes_in_tf32(const cuda_plan *plan, const tsr_problem *p) {
    return plan->multiply->components == 1 && !plan->invariant && cuda_tf32_recompute_kernel(plan->device) &&
           !tf32_elements_copied(p, true);
}

/* The layout for the plan's chunks. */
static cuda_workspace_layout split_workspace(const cuda_plan *plan, const tsr_problem *p, size_t partial_bytes) {
    const bool a_packed = operand_panels(&p->a, p->batch), b_packed = operand_panels(&p->b, p->batch);
    const int components = plan->multiply->components;
    const int64_t flags = components == 2 || plan->invariant
                              ? plan->chunk_batch * cuda_check_blocks(plan->chunk_m, plan->chunk_n)
                              : 0;
    cuda_workspace_layout w = {
        .a = a_packed
                 ? panels_layout_of(p->a.rows, p->a.cols, 1, components)
                 : panels_layout_of(plan->chunk_m, plan->chunk_k, operand_count(&p->a, plan->chunk_batch), components),
        .b = b_packed
                 ? panels_layout_of(p->b.cols, p->b.rows, 1, components)
                 : panels_layout_of(plan->chunk_n, plan->chunk_k, operand_count(&p->b, plan->chunk_batch), components),
    };
    w.b_panels = w.a_panels + (a_packed ? 0 : w.a.bytes);
    w.partial_sums = w.b_panels + (b_packed ? 0 : w.b.bytes);
    w.recompute_flags = w.partial_sums + partial_bytes;
    w.bytes = w.recompute_flags + (size_t)round_up(flags * 2, CUDA_ALIGNMENT);
    return w;
}

/* Sets the chunks so that what they pack fits into max_workspace beside the partial sums; false where nothing does. */
static bool fit_workspace(cuda_plan *plan, const tsr_problem *p, size_t partial_bytes, size_t max_workspace) {
    for (;;) {
        const cuda_workspace_layout w = plan->workspace = split_workspace(plan, p, partial_bytes);
        const size_t a = w.b_panels - w.a_panels, b = w.partial_sums - w.b_panels;
        if (!max_workspace || w.bytes <= max_workspace) return true;
        if (plan->slices > 1) { /* partial sums serve small products: the first thing to go under a limit */
            plan->slices = 1;
            plan->k_per_slice = plan->chunk_k;
            partial_bytes = 0;
        } else if (plan->chunk_batch > 1)
            plan->chunk_batch = ceil_div(plan->chunk_batch, 2);
        else if (a >= b && plan->chunk_m > CHUNK_STEP)
            plan->chunk_m = round_up(ceil_div(plan->chunk_m, 2), CHUNK_STEP);
        else if (b && plan->chunk_n > CHUNK_STEP)
            plan->chunk_n = round_up(ceil_div(plan->chunk_n, 2), CHUNK_STEP);
        else if (a && plan->chunk_m > CHUNK_STEP)
            plan->chunk_m = round_up(ceil_div(plan->chunk_m, 2), CHUNK_STEP);
        else
            return false;
    }
}

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

static void adopt(cuda_plan *plan, const cuda_candidate *c, const char *reason) {
    plan->multiply = c->kernel;
    plan->split = c->kernel->family == FAMILY_SPLIT;
    plan->slices = c->slices;
    plan->k_per_slice = c->k_per_slice;
    plan->full_tiles = c->full_tiles;
    plan->tail_blocks = c->tail_blocks;
    plan->cluster = c->cluster;
    plan->k_each = c->k_each;
    plan->share = c->share;
    plan->turns_b = c->turns_b;
    plan->workspace = (cuda_workspace_layout){.bytes = c->partial_bytes};
    plan->early = begins_early(plan->device, c);
    plan->reason = reason;
}

static void chunks_of_everything(cuda_plan *plan, const tsr_problem *p) {
    plan->chunk_m = min64(p->m, MAX_EXTENT);
    plan->chunk_n = min64(p->n, MAX_EXTENT);
    plan->chunk_k = min64(p->k, MAX_EXTENT);
    plan->chunk_batch = min64(p->batch, MAX_BATCH);
}

/* Adopts a TF32 kernel for p, which is the transpose of the plan's product if `transposed`. */
static void adopt_tf32(cuda_plan *plan, const cuda_candidate *c, const tsr_problem *p, bool transposed,
                       const char *reason) {
    adopt(plan, c, reason);
    plan->workspace.copies = c->partial_bytes;
    plan->workspace.bytes = c->partial_bytes + tf32_bytes_of_copies(p, c->turns_b);
    if (!transposed) return;
    plan->transposed = !plan->transposed;
    chunks_of_everything(plan, p);
}

static tsr_status plan_forced(cuda_plan *plan, const cuda_kernel *kernel, const tsr_problem *p, size_t max_workspace) {
    const char *reason = "options.kernel asks for it";
    if (kernel->family == FAMILY_SPLIT) {
        const cuda_candidate c = candidate_of(plan->device, kernel, p, max_workspace);
        adopt(plan, &c, reason);
        if (fit_workspace(plan, p, c.partial_bytes, max_workspace)) return TSR_OK;
        return tsr_fail(TSR_OUT_OF_MEMORY, "options.max_workspace is %zu bytes; options.kernel %s needs %zu at least",
                        max_workspace, kernel->name, plan->workspace.bytes);
    }
    if (kernel->family == FAMILY_TF32) {
        const bool transposed = tf32_reads_better_transposed(p);
        const tsr_problem product = transposed ? problem_transpose(p) : *p;
        const cuda_candidate c = candidate_of(plan->device, kernel, &product, max_workspace);
        if (!c.kernel)
            return tsr_fail(TSR_OUT_OF_MEMORY, "options.max_workspace is %zu bytes; options.kernel %s needs %zu",
                            max_workspace, kernel->name, tf32_bytes_of_copies(&product, true));
        adopt_tf32(plan, &c, &product, transposed, reason);
        return TSR_OK;
    }
    if (kernel->family == FAMILY_THIN || kernel->family == FAMILY_VECTOR) {
        if (!cuda_can_read(kernel, p))
            return tsr_fail(TSR_INVALID_ARGUMENT,
                            "options.kernel %s reads a long operand whose %s are neighbours in memory", kernel->name,
                            cuda_reads_along_m(kernel) ? "rows" : "terms of k");
        if (p->n > kernel->tile_n)
            return tsr_fail(TSR_INVALID_ARGUMENT,
                            "options.kernel %s is for at most %d rows or columns of c, not %lld x %lld", kernel->name,
                            kernel->tile_n, (long long)p->m, (long long)p->n);
    } else if (kernel->family != FAMILY_SMALL && kernel->family != FAMILY_WIDE && kernel->family != FAMILY_WARP &&
               !cuda_computes_tiles(kernel, p))
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.kernel %s is for k of at most %d, not %lld", kernel->name,
                        kernel->tile_k, (long long)p->k);
    const cuda_candidate c = candidate_of(plan->device, kernel, p, max_workspace);
    adopt(plan, &c, reason);
    return TSR_OK;
}

/* Adopts a kernel that packs nothing; `reason` is for one that does not split, either. */
static void adopt_in_place(cuda_plan *plan, const cuda_candidate *c, const char *reason) {
    adopt(plan, c, c->kernel->components ? "split as it is multiplied: faster than packing, by estimate" : reason);
}

static void plan_chosen(cuda_plan *plan, const tsr_context *context, const tsr_problem *p) {
    const size_t max_workspace = context->options.max_workspace;
    const bool transposed = tf32_reads_better_transposed(p), thin = p->n <= CUDA_THIN;
    const tsr_problem product = transposed ? problem_transpose(p) : *p; /* as TF32 kernels compute it */
    const cuda_kernel *split = cuda_split_kernel(context);
    const cuda_candidate in_place = candidate_in_place(plan->device, p, max_workspace,
                                                       context->options.precision != TSR_IEEE);
    cuda_candidate in_tf32 = {0};
    if (context->options.precision == TSR_TF32 && p->k >= TF32_K)
        in_tf32 = candidate_tf32(plan->device, &product, max_workspace);
    const bool is_tf32 = in_tf32.kernel && in_tf32.seconds < in_place.seconds;
    const bool on_hopper = split && split->components == 2 && split->module != MODULE_SPLIT_MMA_SM80;
    const int min_k = on_hopper ? CUDA_MIN_HOPPER_K : CUDA_MIN_SPLIT_K;
    const char *reason = context->options.precision == TSR_IEEE ? "least estimated time of the ieee kernels"
                         : !split                               ? "no tensor-core kernel for this GPU"
                         : thin                                 ? "too thin for tensor cores"
                         : p->k < min_k                         ? "k is too short for tensor cores"
                                                                : "faster than packing for tensor cores, by estimate";
    if (split && !thin && p->k >= min_k) {
        const cuda_candidate packed = candidate_split(plan->device, split, p);
        if (is_tf32 ? TF32_RISK * packed.seconds < in_tf32.seconds : packed.seconds < in_place.seconds) {
            adopt(plan, &packed, "tensor cores, faster than float32 units by estimate");
            if (fit_workspace(plan, p, packed.partial_bytes, max_workspace)) return;
            chunks_of_everything(plan, p);
            reason = "options.max_workspace leaves no room to pack for tensor cores";
        }
    }
    if (is_tf32)
        adopt_tf32(plan, &in_tf32, &product, transposed, "tensor cores, operands in place, fastest by estimate");
    else
        adopt_in_place(plan, &in_place, reason);
}

/* ---- Batch-invariant plans --------------------------------------------------------------------------------------- */

/* With options.batch_invariant the kernel and where it cuts k depend on n and k alone. Products of standard_rows rows
 * stand for all m: of each kernel the worst time among them counts, relative to the fastest plan, and the kernel with
 * the least is chosen. Only kernels that sum every row alike are candidates: not the thin ones, and no stream-K tail. C
 * is never transposed. */
static const int64_t standard_rows[] = {512, 2048, 8192};
enum { STANDARDS = sizeof standard_rows / sizeof standard_rows[0] };

enum { INVARIANT_SLICE = 512, INVARIANT_SLICES = 16 }; /* the least k of a slice, and the most slices */
enum { INVARIANT_PARTIAL_BYTES = 256 << 20 };          /* of partial sums at a time */

static tsr_problem standard_product(const tsr_problem *p, int i) {
    tsr_problem standard = *p;
    standard.m = standard_rows[i], standard.batch = 1;
    standard.a.row_stride = p->k; /* bits must not depend on the strides */
    standard.b.row_stride = standard.c.row_stride = p->n;
    standard.a.col_stride = standard.b.col_stride = standard.c.col_stride = 1;
    return standard;
}

/* Every tile in `slices` slices of k. */
static cuda_candidate sliced_candidate(const cuda_kernel *kernel, const tsr_problem *p, int64_t slices) {
    const cuda_candidate whole = candidate_whole(kernel, p);
    if (slices == 1) return whole;
    return kernel->family == FAMILY_SPLIT ? candidate_with_slices(whole, p, 0, slices)
                                          : candidate_with_tail(whole, p, 0, whole.tiles * slices);
}

static double slowdown(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p, int64_t slices,
                       const double fastest[STANDARDS]) {
    double most = 0;
    for (int i = 0; i < STANDARDS; i++) {
        const tsr_problem standard = standard_product(p, i);
        const cuda_candidate c = sliced_candidate(kernel, &standard, slices);
        double seconds = cost_multiply(device, &c, &standard);
        if (kernel->family == FAMILY_SPLIT)
            seconds += cost_split(device, kernel, cuda_elements_of_a(&standard) + cuda_elements_of_b(&standard), 1);
        if (seconds > most * fastest[i]) most = seconds / fastest[i];
    }
    return most;
}

static bool is_invariant_candidate(const cuda_plan *plan, const tsr_context *context, const cuda_kernel *kernel,
                                   const tsr_problem *p) {
    const cuda_kernel *forced = context->cuda->forced;
    if (forced) return kernel == forced;
    if (!cuda_kernel_runs_on(kernel, plan->device)) return false;
    if (kernel != cuda_split_kernel(context)) return cuda_computes_tiles(kernel, p) || kernel->family == FAMILY_WARP;
    if (p->k < CUDA_MIN_SPLIT_K || p->n <= CUDA_THIN) return false;
    cuda_plan trial = *plan; /* with the fewest standard rows: whether max_workspace has room must not depend on m */
    const tsr_problem standard = standard_product(p, 0);
    chunks_of_everything(&trial, &standard);
    trial.multiply = kernel;
    return fit_workspace(&trial, &standard, 0, context->options.max_workspace);
}

/* Sets multiply and slices of the plan. */
static void choose_invariant_kernel(cuda_plan *plan, const tsr_context *context, const tsr_problem *p) {
    const size_t max_workspace = context->options.max_workspace; /* partial sums grow with m: none under a limit */
    const int64_t most_slices = max_workspace ? 1 : min64(max64(1, p->k / INVARIANT_SLICE), INVARIANT_SLICES);
    const cuda_kernel *split = cuda_split_kernel(context);
    double fastest[STANDARDS], least = 0;
    for (int i = 0; i < STANDARDS; i++) {
        const tsr_problem standard = standard_product(p, i);
        fastest[i] = candidate_in_place(plan->device, &standard, 0, split).seconds;
        const double packed = split ? candidate_split(plan->device, split, &standard).seconds : fastest[i];
        if (packed < fastest[i]) fastest[i] = packed;
    }
    plan->multiply = NULL;
    for (int i = 0; i < CUDA_KERNELS; i++) {
        const cuda_kernel *kernel = &cuda_kernels[i];
        if (!is_invariant_candidate(plan, context, kernel, p)) continue;
        const int reduce = kernel->family == FAMILY_SPLIT ? SPLIT_REDUCE : IEEE_REDUCE;
        const bool can_cut = (kernel->family == FAMILY_SPLIT || kernel->family == FAMILY_TILE) &&
                             cuda_kernel_runs_on(&cuda_kernels[reduce], plan->device);
        for (int64_t slices = 1; slices <= (can_cut ? most_slices : 1); slices += (slices + 1) / 2) {
            const double worst = slowdown(plan->device, kernel, p, slices, fastest);
            if (plan->multiply && worst >= least) continue;
            least = worst;
            plan->multiply = kernel;
            plan->slices = slices;
        }
    }
}

static tsr_status plan_invariant(cuda_plan *plan, const tsr_context *context, const tsr_problem *p) {
    const cuda_kernel *forced = context->cuda->forced;
    const size_t max_workspace = context->options.max_workspace;
    const tsr_problem standard = standard_product(p, 0);
    if (forced && forced->family != FAMILY_SPLIT && forced->family != FAMILY_TILE && forced->family != FAMILY_SHORT &&
        forced->family != FAMILY_WARP)
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.kernel %s is not for options.batch_invariant", forced->name);
    const tsr_status status = forced ? plan_forced(plan, forced, &standard, max_workspace) : TSR_OK;
    if (status) return status;
    choose_invariant_kernel(plan, context, p);
    const int64_t slices = plan->slices;
    for (;;) {
        tsr_problem chunk = standard; /* the estimate does not depend on strides, either */
        chunk.m = plan->chunk_m, chunk.n = plan->chunk_n, chunk.k = plan->chunk_k, chunk.batch = plan->chunk_batch;
        cuda_candidate c = sliced_candidate(plan->multiply, &chunk, slices);
        if (c.partial_bytes > INVARIANT_PARTIAL_BYTES && plan->chunk_batch > 1)
            plan->chunk_batch = ceil_div(plan->chunk_batch, 2);
        else if (c.partial_bytes > INVARIANT_PARTIAL_BYTES && plan->chunk_m > CHUNK_STEP)
            plan->chunk_m = round_up(ceil_div(plan->chunk_m, 2), CHUNK_STEP);
        else {
            c.seconds = cost_multiply(plan->device, &c, &chunk);
            adopt(plan, &c, forced ? "options.kernel asks for it" : "the same for every m: options.batch_invariant");
            if (!plan->split) plan->slices = slices;
            if (!plan->split || fit_workspace(plan, p, c.partial_bytes, max_workspace)) return TSR_OK;
            return tsr_fail(TSR_OUT_OF_MEMORY, "options.max_workspace is %zu bytes; the kernel %s needs %zu at least",
                            max_workspace, plan->multiply->name, plan->workspace.bytes);
        }
    }
}

/* The time of the finished plan: its chunks one after the other, without what was packed beforehand. */
double cuda_plan_seconds(const cuda_plan *plan, const tsr_problem *problem) {
    const tsr_problem p = plan->transposed ? problem_transpose(problem) : *problem;
    if (plan->multiply->family == FAMILY_SUPPORT) return cost_scale(plan->device, &p);
    const tsr_problem chunk = first_chunk(plan, &p);
    const double chunks = (double)p.m / (double)chunk.m * ((double)p.n / (double)chunk.n) *
                          ((double)p.k / (double)chunk.k) * ((double)p.batch / (double)chunk.batch);
    cuda_candidate c = candidate_whole(plan->multiply, &chunk);
    if (c.kernel->family == FAMILY_TF32) {
        c = candidate_with_cuts(plan->multiply, &chunk, max64(plan->cluster, plan->slices), plan->cluster > 1);
        c.turns_b = plan->turns_b;
        return chunks * cost_tf32(plan->device, &c, &chunk, tf32_elements_copied(&chunk, plan->turns_b));
    }
    if (c.kernel->family == FAMILY_WIDE) {
        c = candidate_with_cuts(plan->multiply, &chunk, max64(plan->cluster, plan->slices), plan->cluster > 1);
        return chunks * cost_wide(plan->device, &c, &chunk);
    }
    if (plan->tail_blocks) c = candidate_with_tail(c, &chunk, plan->full_tiles, plan->tail_blocks);
    if (plan->split) c.slices = plan->slices, c.k_per_slice = plan->k_per_slice;
    if (plan->split && c.slices > 1) c.full_tiles = plan->full_tiles;
    c.cluster = plan->cluster, c.k_each = plan->k_each, c.share = plan->share;
    if (c.kernel->family == FAMILY_THIN) return chunks * cost_multiply_thin(plan->device, &c, &chunk);
    if (c.kernel->family == FAMILY_VECTOR) c.tiles = plan->full_tiles;
    if (cuda_shares_k(c.kernel)) return chunks * cost_one_launch(plan->device, &c, &chunk);
    const double multiply = cost_multiply(plan->device, &c, &chunk);
    if (!plan->split) return chunks * multiply;
    const double elements = (operand_panels(&p.a, p.batch) ? 0 : cuda_elements_of_a(&chunk)) +
                            (operand_panels(&p.b, p.batch) ? 0 : cuda_elements_of_b(&chunk));
    return chunks * (multiply + cost_split(plan->device, plan->multiply, elements, chunk.batch));
}

tsr_status cuda_plan_make(cuda_plan *plan, const tsr_context *context, const tsr_problem *problem) {
    const struct cuda_context *cuda = context->cuda;
    const bool invariant = context->options.batch_invariant, transposed = !invariant && should_transpose(problem);
    const tsr_problem p = transposed ? problem_transpose(problem) : *problem;
    *plan = (cuda_plan){
        .device = &cuda->device,
        .multiply = &cuda_kernels[IEEE_SCALE],
        .transposed = transposed,
        .invariant = invariant,
        .slices = 1,
        .reason = "a product without terms",
    };
    chunks_of_everything(plan, &p);
    if (!p.m || !p.n || !p.k || !p.batch) return TSR_OK;

    const tsr_problem chunk = first_chunk(plan, &p);
    tsr_status status = TSR_OK;
    if (invariant)
        status = plan_invariant(plan, context, &p);
    else if (cuda->forced)
        status = plan_forced(plan, cuda->forced, &chunk, context->options.max_workspace);
    else
        plan_chosen(plan, context, &chunk);
    return status;
}

int64_t cuda_split_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t tiles, int64_t slices) {
    const int64_t all = tiles + slices, wave = cuda_wave_of(device, kernel);
    const int64_t blocks = tiles && slices ? wave : ceil_div(all, ceil_div(all, wave)); /* slices follow whole waves */
    return blocks * kernel->cluster; /* the fewest that need no more waves: idle blocks would cost power */
}

int64_t cuda_ieee_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t full_tiles,
                         int64_t tail_blocks) {
    const int64_t blocks = full_tiles + tail_blocks;
    return kernel->family == FAMILY_SHORT ? min64(blocks, cuda_wave_of(device, kernel)) : blocks;
}

int64_t cuda_wide_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t batch, int64_t tiles) {
    const int64_t needed = ceil_div(tiles, WIDE_TILES_OF_BLOCK);
    return batch > 1 ? tiles : max64(needed, min64(tiles, cuda_wave_of(device, kernel)));
}

/* The fewest that have a warp for each tile: starting a block takes time. */
int64_t cuda_warp_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t tiles) {
    const int64_t needed = max64(ceil_div(tiles, kernel->threads / 32), device->multiprocessors);
    return min64(min64(tiles, needed), cuda_wave_of(device, kernel));
}
