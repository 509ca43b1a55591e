/* plan.c: problem -> cuda_plan, from the table of kernels, the cost model and what the GPU is. Pure.
 *
 * Each kernel that could compute the product, with k whole or cut, is a candidate. The plan is the candidate with the
 * least estimated time.
 */
#include "cuda/plan.h"

#include "cuda/context.h"
#include "cuda/cost.h"

/* Partial sums of a split product may take so many bytes, or this fraction of the operands' bytes if that is more. */
enum { PARTIAL_BYTES = 32 << 20, PARTIAL_FRACTION = 16 };

enum { MIN_SLICE_STEPS = 4 };  /* of a kernel's tile_k, below which another slice costs more than it gains */
enum { MIN_THIN_SLICE = 512 }; /* the same in terms of k, for thin kernels */
enum { THIN = 8 };             /* C with as few columns or rows is for the thin kernels */

/* Gradients often have panels that fp16 cannot represent: packed, they cost this much more on average. */
#define TF32_RISK 1.07

/* Below this k the error of splitting an operand would show beside float32's own, (k + 2) 2^-24. Hopper's tensor cores
 * truncate less; but tiny elements in an operand of fewer than MIN_SPLIT_K terms cost much time, or in a
 * batch-invariant product any (docs/internals/numerics.md). */
enum { MIN_SPLIT_K = 128, MIN_HOPPER_K = 64 };

/* Kernels index with 32 bits: larger extents are computed in chunks. And a grid has at most so many blocks along z. */
enum { MAX_EXTENT = 1 << 30, MAX_BATCH = 65535 };

/* Chunks that max_workspace forces are whole tiles of every split kernel. */
enum { CHUNK_STEP = 2 * PANEL_ROWS };

enum { ALIGNMENT = 256 }; /* of everything in a workspace that kernels read by vectors */

/* A call that takes no longer, by estimate, may begin before the kernel in front of it has finished: 0.3 us are gained.
 * Thread blocks that are placed early land in any order, some SMs get more than their share, and longer kernels lose
 * more by that. On Hopper it was measured that a kernel waits for all that is in front of it. */
static bool begins_early(const cuda_device *device, double seconds) {
    return seconds < 5e-6 && device->capability == 90;
}

/* Thin kernels want the thin side to be C's columns; the others write best along contiguous rows of C. */
static bool should_transpose(const tsr_problem *p) {
    if (p->m <= THIN || p->n <= THIN) return p->m < p->n;
    return p->c.col_stride != 1 && p->c.row_stride == 1;
}

/* ---- ieee candidates --------------------------------------------------------------------------------------------- */

/* Whether a kernel computes such products tile by tile. */
static bool computes_tiles(const cuda_kernel *kernel, const tsr_problem *p) {
    return kernel->family == FAMILY_TILE || (kernel->family == FAMILY_SHORT && p->k <= kernel->tile_k);
}

/* As many thread blocks as fit on the GPU at once. */
static int64_t wave_of(const cuda_device *device, const cuda_kernel *kernel) {
    return (int64_t)device->multiprocessors * kernel->blocks;
}

/* Every tile whole. */
static cuda_candidate whole_candidate(const cuda_kernel *kernel, const tsr_problem *p) {
    const int64_t tiles = ceil_div(p->m, kernel->tile_m) * ceil_div(p->n, kernel->tile_n);
    return (cuda_candidate){.kernel = kernel, .tiles = tiles, .full_tiles = tiles, .slices = 1, .k_per_slice = p->k};
}

/* The same with tiles [0, full_tiles) whole and the k ranges of the others shared by `tail_blocks` thread blocks. */
static cuda_candidate with_tail(cuda_candidate c, const tsr_problem *p, int64_t full_tiles, int64_t tail_blocks) {
    const int64_t area = (int64_t)c.kernel->tile_m * c.kernel->tile_n, tail = c.tiles - full_tiles;
    c.full_tiles = full_tiles;
    c.tail_blocks = tail_blocks;
    c.segments = cuda_ieee_segments(p->k, tail, tail_blocks);
    c.partial_bytes = (size_t)(p->batch * tail * c.segments * area) * sizeof(float);
    return c;
}

static void consider(cuda_candidate *best, const cuda_device *device, cuda_candidate c, const tsr_problem *p,
                     size_t max_partial_bytes) {
    if (max_partial_bytes && c.partial_bytes > max_partial_bytes) return;
    c.seconds = cost_multiply(device, &c, p);
    if (!best->kernel || c.seconds < best->seconds) *best = c;
}

/* An ieee kernel's candidates: tiles whole; the tiles of the last, incomplete wave shared by all thread blocks of a
 * wave; or tiles too few for a wave in slices, as many as a wave has room for. */
static void consider_ieee(cuda_candidate *best, const cuda_device *device, const cuda_kernel *kernel,
                          const tsr_problem *p, size_t max_workspace) {
    const cuda_candidate whole = whole_candidate(kernel, p);
    const int64_t wave = wave_of(device, kernel), tiles = whole.tiles;
    const int64_t max_slices = p->k / (MIN_SLICE_STEPS * IEEE_RUN);
    consider(best, device, whole, p, max_workspace);
    if (!cuda_kernel_runs_on(&cuda_kernels[IEEE_REDUCE], device) || !max_slices) return;
    const int64_t tail = tiles % wave, tail_blocks = min64(wave, tail * max_slices);
    if (p->batch == 1 && tail_blocks > tail)
        consider(best, device, with_tail(whole, p, tiles - tail, tail_blocks), p, max_workspace);
    for (int64_t slices = min64(wave / (tiles * p->batch), max_slices); slices > 1; slices /= 2)
        consider(best, device, with_tail(whole, p, 0, tiles * slices), p, max_workspace);
}

/* Thin kernels stream the operands: as many thread blocks as the GPU holds, however k must be cut for that. */
static cuda_candidate thin_candidate(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p,
                                     size_t max_workspace) {
    const cuda_candidate whole = whole_candidate(kernel, p);
    const int64_t slices = min64(ceil_div(wave_of(device, kernel), whole.tiles * p->batch), p->k / MIN_THIN_SLICE);
    cuda_candidate c = slices < 2 ? whole : with_tail(whole, p, 0, whole.tiles * slices);
    if (max_workspace && c.partial_bytes > max_workspace) c = whole;
    c.seconds = cost_multiply_thin(device, &c, p);
    return c;
}

/* ---- Candidates of one launch ------------------------------------------------------------------------------------ */

/* k shared by as many thread blocks as cluster says, or fewer, where rounding leaves none. */
static cuda_candidate with_cluster(cuda_candidate c, const tsr_problem *p, int64_t cluster) {
    c.k_each = round_up(ceil_div(p->k, cluster), IEEE_RUN);
    c.cluster = ceil_div(p->k, c.k_each);
    return c;
}

/* Clusters of powers of two and three quarters of these; those that split what they multiply, of any size. */
static int64_t next_cluster(const cuda_kernel *kernel, int64_t cluster) {
    if (kernel->components || cluster < 3) return cluster + 1;
    return cluster % 3 ? cluster + cluster / 2 : cluster / 3 * 4;
}

static void consider_one_launch(cuda_candidate *best, const cuda_device *device, cuda_candidate c,
                                const tsr_problem *p) {
    for (int64_t cluster = 1; cluster <= device->max_cluster && (cluster == 1 || cluster * IEEE_RUN <= p->k);
         cluster = next_cluster(c.kernel, cluster)) {
        c = with_cluster(c, p, cluster);
        c.seconds = cost_one_launch(device, &c, p);
        if (!best->kernel || c.seconds < best->seconds) *best = c;
    }
}

/* Whether the long operand lies as a kernel for few columns reads it. */
static bool can_read(const cuda_kernel *kernel, const tsr_problem *p) {
    if (cuda_reads_along_m(kernel)) return p->a.row_stride == 1;
    return kernel->family == FAMILY_THIN || p->a.col_stride == 1;
}

/* A kernel for few columns: warps or lanes of a thread block along m, as many as leave enough thread blocks. */
static void vector_candidates(cuda_candidate *best, const cuda_device *device, const cuda_kernel *kernel,
                              const tsr_problem *p) {
    const bool along_m = cuda_reads_along_m(kernel);
    for (int64_t share = along_m ? 4 : 1; share <= (along_m ? 32 : 4); share *= 2) {
        cuda_candidate c = {.kernel = kernel, .slices = 1, .share = share};
        c.tiles = c.full_tiles = ceil_div(p->m, cuda_vector_rows(kernel, c.share));
        consider_one_launch(best, device, c, p);
    }
}

/* The fastest kernel that packs nothing; `split`: also of those that split what they multiply. */
static cuda_candidate in_place_candidate(const cuda_device *device, const tsr_problem *p, size_t max_workspace,
                                         bool split) {
    const bool along_m = p->a.row_stride == 1 && p->a.col_stride != 1;
    const cuda_kernel *vector = &cuda_kernels[p->n == 1 ? (along_m ? IEEE_VECTOR_M : IEEE_VECTOR_K)
                                                        : (along_m ? IEEE_COLUMNS_M : IEEE_COLUMNS_K)];
    const bool vectors = cuda_kernel_runs_on(vector, device);
    cuda_candidate best = {0};
    if (p->n <= THIN && vectors && can_read(vector, p)) vector_candidates(&best, device, vector, p);
    if (best.kernel && p->n == 1) return best; /* nothing reads a matrix for one vector faster */
    const bool by_vectors = best.kernel;
    for (int i = 0; i < CUDA_KERNELS; i++) {
        const cuda_kernel *kernel = &cuda_kernels[i];
        if (!cuda_kernel_runs_on(kernel, device)) continue;
        if (kernel == &cuda_kernels[IEEE_MMA_SHORT_96] && p->k <= cuda_kernels[IEEE_MMA_SHORT_K].tile_k) continue;
        if (kernel->family == FAMILY_THIN && p->n <= THIN && !by_vectors && can_read(kernel, p)) {
            const cuda_candidate thin = thin_candidate(device, kernel, p, max_workspace);
            if (!best.kernel || thin.seconds < best.seconds) best = thin;
        }
        if (computes_tiles(kernel, p) && (p->n > THIN || !vectors)) /* tiles read few columns' long operand slowly */
            consider_ieee(&best, device, kernel, p, max_workspace);
        if (kernel->family == FAMILY_WARP) consider(&best, device, whole_candidate(kernel, p), p, 0);
        if (kernel->family == FAMILY_SMALL && (!kernel->components || (split && p->k >= MIN_HOPPER_K)))
            consider_one_launch(&best, device, whole_candidate(kernel, p), p);
    }
    return best;
}

/* ---- Split candidates -------------------------------------------------------------------------------------------- */

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

static double elements_of_a(const tsr_problem *p) {
    return (double)operand_count(&p->a, p->batch) * (double)p->m * (double)p->k;
}

static double elements_of_b(const tsr_problem *p) {
    return (double)operand_count(&p->b, p->batch) * (double)p->n * (double)p->k;
}

/* The same with the tiles from full_tiles on in `slices` slices of k; fewer, where rounding leaves none. */
static cuda_candidate with_slices(cuda_candidate c, const tsr_problem *p, int64_t full_tiles, int64_t slices) {
    const int64_t area = (int64_t)c.kernel->tile_m * c.kernel->tile_n;
    c.k_per_slice = round_up(ceil_div(p->k, slices), c.kernel->tile_k);
    c.slices = ceil_div(p->k, c.k_per_slice);
    if (c.slices == 1) return c;
    c.full_tiles = full_tiles;
    c.partial_bytes = (size_t)(p->batch * c.slices * (c.tiles - full_tiles) * area) * sizeof(float);
    return c;
}

/* A split kernel's best: k whole, or cut so that the tiles fill the GPU once, twice or three times, or cut in the tiles
 * of the last, incomplete wave alone, so that these fill the GPU once. Packing counts even where an operand was packed
 * beforehand: that must not change the kernel, for then it would change the bits of the result. */
static cuda_candidate split_candidate(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p) {
    const double elements = elements_of_a(p) + elements_of_b(p);
    const double fraction = elements * sizeof(float) / PARTIAL_FRACTION;
    const size_t max_partial_bytes = fraction > PARTIAL_BYTES ? (size_t)fraction : PARTIAL_BYTES;
    const int64_t max_slices = p->k / (MIN_SLICE_STEPS * kernel->tile_k);
    const cuda_candidate whole = whole_candidate(kernel, p);
    const bool can_cut = cuda_kernel_runs_on(&cuda_kernels[SPLIT_REDUCE], device);
    const int64_t wave = wave_of(device, kernel), last = whole.tiles % wave;
    cuda_candidate best = {0};
    consider(&best, device, whole, p, max_partial_bytes);
    for (int waves = 1; waves <= 3 && can_cut; waves++) {
        const int64_t slices = min64(waves * wave / (whole.tiles * p->batch), max_slices);
        if (slices > 1) consider(&best, device, with_slices(whole, p, 0, slices), p, max_partial_bytes);
    }
    const int64_t slices = last ? min64(wave / last, max_slices) : 1;
    if (can_cut && p->batch == 1 && whole.tiles > wave && slices > 1)
        consider(&best, device, with_slices(whole, p, whole.tiles - last, slices), p, max_partial_bytes);
    best.seconds += cost_split(device, kernel, elements, p->batch);
    return best;
}

/* ---- TF32 candidates --------------------------------------------------------------------------------------------- */

/* Parts of k that thread blocks of a cluster share, slices that they do not; blocks of k in each. */
enum { MAX_PARTS = 8, MAX_SLICES = 8, MIN_PART_BLOCKS = 4 };

/* Whether the copies of a kernel can read so many lines, and as many of these as there are items. */
static bool lines_are_readable(int64_t lines, int64_t line_stride, int64_t step, int64_t items, int64_t item_stride) {
    const int64_t most = (int64_t)1 << 37; /* floats */
    return step == 1 && (lines == 1 || (line_stride > 0 && line_stride < most && line_stride % 4 == 0)) &&
           (items == 1 || (item_stride > 0 && item_stride < most && item_stride % 4 == 0));
}

tf32_reading tf32_reading_of(const tsr_problem *p, bool turns_b) {
    const tsr_operand *a = &p->a, *b = &p->b;
    const int64_t items_a = operand_count(a, p->batch), items_b = operand_count(b, p->batch);
    const bool a_along = lines_are_readable(p->m, a->row_stride, a->col_stride, items_a, a->batch_stride);
    const bool b_along = lines_are_readable(p->n, b->col_stride, b->row_stride, items_b, b->batch_stride);
    tf32_reading reading = {
        .a_across = !a_along && lines_are_readable(p->k, a->col_stride, a->row_stride, items_a, a->batch_stride),
        .b_across = !b_along && turns_b &&
                    lines_are_readable(p->k, b->row_stride, b->col_stride, items_b, b->batch_stride),
    };
    reading.copies_a = !a_along && !reading.a_across;
    reading.copies_b = !b_along && !reading.b_across;
    return reading;
}

static double elements_copied(const tsr_problem *p, bool turns_b) {
    const tf32_reading reading = tf32_reading_of(p, turns_b);
    return (reading.copies_a ? elements_of_a(p) : 0) + (reading.copies_b ? elements_of_b(p) : 0);
}

bool tf32_reads_better_transposed(const tsr_problem *p) {
    const tsr_problem transposed = problem_transpose(p);
    return elements_copied(&transposed, false) < elements_copied(p, false);
}

size_t tf32_copy_bytes(int64_t rows, int64_t k, int64_t items) {
    return (size_t)round_up(items * rows * round_up(k, 4) * (int64_t)sizeof(float), ALIGNMENT);
}

static size_t bytes_of_copies(const tsr_problem *p, bool turns_b) {
    const tf32_reading reading = tf32_reading_of(p, turns_b);
    return (reading.copies_a ? tf32_copy_bytes(p->m, p->k, operand_count(&p->a, p->batch)) : 0) +
           (reading.copies_b ? tf32_copy_bytes(p->n, p->k, operand_count(&p->b, p->batch)) : 0);
}

/* Every tile's k cut so many times, for the thread blocks of a cluster (parts) or not (slices; then tiles before
 * full_tiles are whole); fewer times, where rounding leaves none. */
static cuda_candidate with_cuts(const cuda_kernel *kernel, const tsr_problem *p, int64_t cuts, bool parts,
                                int64_t full_tiles) {
    cuda_candidate c = whole_candidate(kernel, p);
    c.k_each = round_up(ceil_div(p->k, cuts), TF32_K);
    cuts = ceil_div(p->k, c.k_each);
    c.cluster = parts ? cuts : 1;
    c.slices = parts ? 1 : cuts;
    if (c.slices == 1) return c;
    c.full_tiles = full_tiles;
    c.partial_bytes = (size_t)(p->batch * (c.tiles - full_tiles) * c.slices * kernel->tile_m * kernel->tile_n) *
                      sizeof(float);
    return c;
}

/* A TF32 kernel's candidates: tiles whole; shared by clusters, all of which run at once; in slices, or those of the
 * last, incomplete wave alone, so that these fill the GPU. An operand across k is turned or copied. */
static void consider_tf32(cuda_candidate *best, const cuda_device *device, const cuda_kernel *kernel,
                          const tsr_problem *p, size_t max_workspace) {
    const int64_t tiles = whole_candidate(kernel, p).tiles * p->batch, wave = wave_of(device, kernel);
    const int64_t last = p->batch == 1 ? tiles % wave : 0; /* tiles of the last wave */
    const int64_t most = max64(1, p->k / (MIN_PART_BLOCKS * TF32_K));
    const bool reduces = cuda_kernel_runs_on(&cuda_kernels[IEEE_REDUCE], device);
    const double operands = (elements_of_a(p) + elements_of_b(p)) * sizeof(float);
    const size_t room = operands / 2 > PARTIAL_BYTES ? (size_t)(operands / 2) : PARTIAL_BYTES;
    for (int turns_b = elements_copied(p, true) < elements_copied(p, false); turns_b >= 0; turns_b--) {
        const size_t copies = bytes_of_copies(p, turns_b);
        for (int parts = 0; parts <= 1; parts++)
            for (int64_t i = 1; i <= (parts ? min64(MAX_PARTS, device->max_cluster) : MAX_SLICES + 3); i++) {
                const bool tail = i == MAX_SLICES + 3;
                const int64_t cuts = i <= MAX_SLICES ? i
                                     : tail          ? (tiles > wave && last ? min64(wave / last, most) : 1)
                                                     : (i - MAX_SLICES) * wave / tiles; /* fill the GPU */
                if (cuts > most || (cuts < i && !tail) || ((parts || tail) && cuts == 1)) continue;
                if (parts ? tiles > cost_clusters(device, kernel, cuts) : cuts > 1 && !reduces) continue;
                cuda_candidate c = with_cuts(kernel, p, cuts, parts, tail ? tiles - last : 0);
                c.turns_b = turns_b;
                if (c.partial_bytes > room || (max_workspace && copies + c.partial_bytes > max_workspace)) continue;
                c.seconds = cost_tf32(device, &c, p, elements_copied(p, turns_b));
                if (!best->kernel || c.seconds < best->seconds) *best = c;
            }
    }
}

/* The best of the TF32 kernels; none where the copies they need have no room. */
static cuda_candidate tf32_candidate(const cuda_device *device, const tsr_problem *p, size_t max_workspace) {
    cuda_candidate best = {0};
    for (int i = 0; i < CUDA_KERNELS; i++)
        if (cuda_kernels[i].family == FAMILY_TF32 && cuda_kernel_runs_on(&cuda_kernels[i], device))
            consider_tf32(&best, device, &cuda_kernels[i], p, max_workspace);
    return best;
}

/* ---- Workspace --------------------------------------------------------------------------------------------------- */

panels_layout panels_layout_of(int64_t rows, int64_t k, int64_t batch, int components) {
    const int64_t panels = ceil_div(rows, PANEL_ROWS), k_blocks = ceil_div(k, SPLIT_K);
    const size_t row_words = (size_t)round_up(batch * rows * 4, ALIGNMENT); /* four bytes for each row, each panel */
    const size_t panel_words = (size_t)round_up(batch * panels * 4, ALIGNMENT);
    panels_layout l = {.exponents_stride = rows, .marks_stride = panels};
    l.panels_stride = round_up(rows, PANEL_ROW_STEP) * k_blocks * components * SPLIT_ROW_BYTES;
    l.exponents = (size_t)round_up(batch * l.panels_stride, ALIGNMENT);
    l.row_overflows = l.exponents + row_words;
    l.tiny_counts = l.row_overflows + row_words;
    l.overflowed_panels = l.tiny_counts + row_words;
    l.marks = l.overflowed_panels + panel_words;
    l.progress = l.marks + panel_words;
    l.bytes = l.progress + ALIGNMENT;
    return l;
}

/* Its largest, which stands for all. */
static tsr_problem first_chunk(const cuda_plan *plan, const tsr_problem *p) {
    tsr_problem chunk = *p;
    chunk.m = plan->chunk_m, chunk.n = plan->chunk_n, chunk.k = plan->chunk_k, chunk.batch = plan->chunk_batch;
    return chunk;
}

bool cuda_recomputes_in_tf32(const cuda_plan *plan, const tsr_problem *p) {
    return plan->multiply->components == 1 && !plan->invariant && cuda_tf32_recompute_kernel(plan->device) &&
           !elements_copied(p, true);
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
    w.bytes = w.recompute_flags + (size_t)round_up(flags * 2, ALIGNMENT);
    return w;
}

/* Sets the chunks so that what they pack fits into max_workspace beside the partial sums; false where nothing does. */
static bool fit_workspace(cuda_plan *plan, const tsr_problem *p, size_t partial_bytes, size_t max_workspace) {
    for (;;) {
        const cuda_workspace_layout w = plan->workspace = split_workspace(plan, p, partial_bytes);
        const size_t a = w.b_panels - w.a_panels, b = w.partial_sums - w.b_panels;
        if (!max_workspace || w.bytes <= max_workspace) return true;
        if (plan->slices > 1) { /* partial sums are for small products: the caller's limit forbids these first */
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
    plan->early = begins_early(plan->device, c->seconds);
    plan->reason = reason;
}

static void chunks_of_everything(cuda_plan *plan, const tsr_problem *p) {
    plan->chunk_m = min64(p->m, MAX_EXTENT);
    plan->chunk_n = min64(p->n, MAX_EXTENT);
    plan->chunk_k = min64(p->k, MAX_EXTENT);
    plan->chunk_batch = min64(p->batch, MAX_BATCH);
}

/* Adopts a TF32 kernel for a product that is transposed, or not, once more. */
static void adopt_tf32(cuda_plan *plan, const cuda_candidate *c, const tsr_problem *p, bool transposed,
                       const char *reason) {
    adopt(plan, c, reason);
    plan->workspace.copies = c->partial_bytes;
    plan->workspace.bytes = c->partial_bytes + bytes_of_copies(p, c->turns_b);
    if (!transposed) return;
    plan->transposed = !plan->transposed;
    chunks_of_everything(plan, p);
}

static tsr_status plan_forced(cuda_plan *plan, const cuda_kernel *kernel, const tsr_problem *p, size_t max_workspace) {
    const char *reason = "options.kernel asks for it";
    cuda_candidate c = {0};
    if (kernel->family == FAMILY_SPLIT) {
        c = split_candidate(plan->device, kernel, p);
        adopt(plan, &c, reason);
        if (fit_workspace(plan, p, c.partial_bytes, max_workspace)) return TSR_OK;
        return tsr_fail(TSR_OUT_OF_MEMORY, "options.max_workspace is %zu bytes; options.kernel %s needs %zu at least",
                        max_workspace, kernel->name, plan->workspace.bytes);
    }
    if (kernel->family == FAMILY_TF32) {
        const bool transposed = tf32_reads_better_transposed(p);
        const tsr_problem product = transposed ? problem_transpose(p) : *p;
        consider_tf32(&c, plan->device, kernel, &product, max_workspace);
        if (!c.kernel)
            return tsr_fail(TSR_OUT_OF_MEMORY, "options.max_workspace is %zu bytes; options.kernel %s needs %zu",
                            max_workspace, kernel->name, bytes_of_copies(&product, true));
        adopt_tf32(plan, &c, &product, transposed, reason);
        return TSR_OK;
    }
    if (kernel->family == FAMILY_THIN || kernel->family == FAMILY_VECTOR) {
        if (!can_read(kernel, p))
            return tsr_fail(TSR_INVALID_ARGUMENT,
                            "options.kernel %s reads a long operand whose %s are neighbours in memory", kernel->name,
                            cuda_reads_along_m(kernel) ? "rows" : "terms of k");
        if (p->n > kernel->tile_n)
            return tsr_fail(TSR_INVALID_ARGUMENT,
                            "options.kernel %s is for at most %d rows or columns of c, not %lld x %lld", kernel->name,
                            kernel->tile_n, (long long)p->m, (long long)p->n);
        if (kernel->family == FAMILY_VECTOR)
            vector_candidates(&c, plan->device, kernel, p);
        else
            c = thin_candidate(plan->device, kernel, p, max_workspace);
    } else if (kernel->family == FAMILY_SMALL)
        consider_one_launch(&c, plan->device, whole_candidate(kernel, p), p);
    else if (kernel->family == FAMILY_WARP)
        consider(&c, plan->device, whole_candidate(kernel, p), p, 0);
    else if (!computes_tiles(kernel, p))
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.kernel %s is for k of at most %d, not %lld", kernel->name,
                        kernel->tile_k, (long long)p->k);
    else
        consider_ieee(&c, plan->device, kernel, p, max_workspace);
    adopt(plan, &c, reason);
    return TSR_OK;
}

/* Adopts a kernel that packs nothing, for such a reason; or because it splits what it multiplies. */
static void adopt_in_place(cuda_plan *plan, const cuda_candidate *c, const char *reason) {
    adopt(plan, c, c->kernel->components ? "split as it is multiplied: too small to be packed, by estimate" : reason);
}

static void plan_chosen(cuda_plan *plan, const tsr_context *context, const tsr_problem *p) {
    const size_t max_workspace = context->options.max_workspace;
    const bool transposed = tf32_reads_better_transposed(p), thin = p->n <= THIN;
    const tsr_problem product = transposed ? problem_transpose(p) : *p; /* as TF32 kernels compute it */
    const cuda_kernel *split = cuda_split_kernel(context);
    const cuda_candidate in_place = in_place_candidate(plan->device, p, max_workspace,
                                                       context->options.precision != TSR_IEEE);
    cuda_candidate in_tf32 = {0};
    if (context->options.precision == TSR_TF32 && p->k >= TF32_K)
        in_tf32 = tf32_candidate(plan->device, &product, max_workspace);
    const bool is_tf32 = in_tf32.kernel && in_tf32.seconds < in_place.seconds;
    const bool on_hopper = split && split->components == 2 && split->module != MODULE_SPLIT_MMA_SM80;
    const int min_k = on_hopper ? MIN_HOPPER_K : MIN_SPLIT_K;
    const char *reason = context->options.precision == TSR_IEEE ? "least estimated time of the ieee kernels"
                         : !split                               ? "no tensor-core kernel for this GPU"
                         : thin                                 ? "too thin for tensor cores"
                         : p->k < min_k                         ? "k is too short for tensor cores"
                                                                : "faster than packing for tensor cores, by estimate";
    if (split && !thin && p->k >= min_k) {
        const cuda_candidate packed = split_candidate(plan->device, split, p);
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

/* With options.batch_invariant the kernel and where it cuts k depend on n and k alone. Products of so many rows stand
 * for all: that kernel is chosen whose worst time among them, relative to the fastest plan, is least. Only kernels that
 * sum every row alike are candidates: not the thin ones, and no stream-K tail. C is never transposed. */
static const int64_t standard_rows[] = {512, 2048, 8192};
enum { STANDARDS = sizeof standard_rows / sizeof standard_rows[0] };

enum { INVARIANT_SLICE = 512, INVARIANT_SLICES = 16 }; /* the least k of a slice, and the most slices */
enum { INVARIANT_PARTIAL_BYTES = 256 << 20 };          /* of partial sums at a time */

static tsr_problem standard_product(const tsr_problem *p, int i) {
    tsr_problem standard = *p;
    standard.m = standard_rows[i], standard.batch = 1;
    standard.a.row_stride = p->k; /* whatever the strides are: bits do not depend on them */
    standard.b.row_stride = standard.c.row_stride = p->n;
    standard.a.col_stride = standard.b.col_stride = standard.c.col_stride = 1;
    return standard;
}

/* Every tile in so many slices of k. */
static cuda_candidate sliced_candidate(const cuda_kernel *kernel, const tsr_problem *p, int64_t slices) {
    const cuda_candidate whole = whole_candidate(kernel, p);
    if (slices == 1) return whole;
    return kernel->family == FAMILY_SPLIT ? with_slices(whole, p, 0, slices)
                                          : with_tail(whole, p, 0, whole.tiles * slices);
}

static double slowdown(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p, int64_t slices,
                       const double fastest[STANDARDS]) {
    double most = 0;
    for (int i = 0; i < STANDARDS; i++) {
        const tsr_problem standard = standard_product(p, i);
        const cuda_candidate c = sliced_candidate(kernel, &standard, slices);
        double seconds = cost_multiply(device, &c, &standard);
        if (kernel->family == FAMILY_SPLIT)
            seconds += cost_split(device, kernel, elements_of_a(&standard) + elements_of_b(&standard), 1);
        if (seconds > most * fastest[i]) most = seconds / fastest[i];
    }
    return most;
}

static bool is_invariant_candidate(const cuda_plan *plan, const tsr_context *context, const cuda_kernel *kernel,
                                   const tsr_problem *p) {
    const cuda_kernel *forced = context->cuda->forced;
    if (forced) return kernel == forced;
    if (!cuda_kernel_runs_on(kernel, plan->device)) return false;
    if (kernel != cuda_split_kernel(context)) return computes_tiles(kernel, p) || kernel->family == FAMILY_WARP;
    if (p->k < MIN_SPLIT_K || p->n <= THIN) return false;
    cuda_plan trial = *plan; /* by a product of few rows: whether max_workspace has room must not depend on m */
    const tsr_problem standard = standard_product(p, 0);
    chunks_of_everything(&trial, &standard);
    trial.multiply = kernel;
    return fit_workspace(&trial, &standard, 0, context->options.max_workspace);
}

/* Sets the plan's kernel and slices. */
static void choose_invariant_kernel(cuda_plan *plan, const tsr_context *context, const tsr_problem *p) {
    const size_t max_workspace = context->options.max_workspace; /* partial sums grow with m: none beside it */
    const int64_t most_slices = max_workspace ? 1 : min64(max64(1, p->k / INVARIANT_SLICE), INVARIANT_SLICES);
    const cuda_kernel *split = cuda_split_kernel(context);
    double fastest[STANDARDS], least = 0;
    for (int i = 0; i < STANDARDS; i++) {
        const tsr_problem standard = standard_product(p, i);
        fastest[i] = in_place_candidate(plan->device, &standard, 0, split).seconds;
        const double packed = split ? split_candidate(plan->device, split, &standard).seconds : fastest[i];
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
        tsr_problem chunk = standard; /* nor does the estimate look at strides */
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

/* The time of the plan as it came out: its chunks one after the other, without what was packed beforehand. */
double cuda_plan_seconds(const cuda_plan *plan, const tsr_problem *problem) {
    const tsr_problem p = plan->transposed ? problem_transpose(problem) : *problem;
    if (plan->multiply->family == FAMILY_SUPPORT) return cost_scale(plan->device, &p);
    const tsr_problem chunk = first_chunk(plan, &p);
    const double chunks = (double)p.m / (double)chunk.m * ((double)p.n / (double)chunk.n) *
                          ((double)p.k / (double)chunk.k) * ((double)p.batch / (double)chunk.batch);
    cuda_candidate c = whole_candidate(plan->multiply, &chunk);
    if (c.kernel->family == FAMILY_TF32) {
        c = with_cuts(plan->multiply, &chunk, max64(plan->cluster, plan->slices), plan->cluster > 1, plan->full_tiles);
        c.turns_b = plan->turns_b;
        return chunks * cost_tf32(plan->device, &c, &chunk, elements_copied(&chunk, plan->turns_b));
    }
    if (plan->tail_blocks) c = with_tail(c, &chunk, plan->full_tiles, plan->tail_blocks);
    if (plan->split) c.slices = plan->slices, c.k_per_slice = plan->k_per_slice;
    if (plan->split && c.slices > 1) c.full_tiles = plan->full_tiles;
    c.cluster = plan->cluster, c.k_each = plan->k_each, c.share = plan->share;
    if (c.kernel->family == FAMILY_THIN) return chunks * cost_multiply_thin(plan->device, &c, &chunk);
    if (c.kernel->family == FAMILY_VECTOR) c.tiles = plan->full_tiles;
    if (cuda_shares_k(c.kernel)) return chunks * cost_one_launch(plan->device, &c, &chunk);
    const double multiply = cost_multiply(plan->device, &c, &chunk);
    if (!plan->split) return chunks * multiply;
    const double elements = (operand_panels(&p.a, p.batch) ? 0 : elements_of_a(&chunk)) +
                            (operand_panels(&p.b, p.batch) ? 0 : elements_of_b(&chunk));
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
    const int64_t all = tiles + slices, wave = wave_of(device, kernel);
    const int64_t blocks = tiles && slices ? wave : ceil_div(all, ceil_div(all, wave)); /* slices follow whole waves */
    return blocks * kernel->cluster; /* as few as need no more waves: idle blocks would cost power */
}

int64_t cuda_ieee_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t full_tiles,
                         int64_t tail_blocks) {
    const int64_t blocks = full_tiles + tail_blocks;
    return kernel->family == FAMILY_SHORT ? min64(blocks, wave_of(device, kernel)) : blocks;
}

/* As few as have a warp for each tile: to start a block takes time. */
int64_t cuda_warp_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t tiles) {
    const int64_t needed = max64(ceil_div(tiles, kernel->threads / 32), device->multiprocessors);
    return min64(min64(tiles, needed), wave_of(device, kernel));
}
