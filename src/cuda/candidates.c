/* candidates.c: what each kernel could do for a product, with k whole or cut, and how long that would take. Pure. */
#include "cuda/candidates.h"

/* The most bytes that partial sums of a split product may take; or 1/PARTIAL_FRACTION of the operands', if more. */
enum { PARTIAL_BYTES = 32 << 20, PARTIAL_FRACTION = 16 };

enum { MIN_SLICE_STEPS = 4 };  /* of a kernel's tile_k, below which another slice costs more than it gains */
enum { MIN_WIDE_STAGES = 2 };  /* the same of a wide kernel, for slices and clusters */
enum { MAX_WAVES = 3 };        /* that slices of its k may fill */
enum { MIN_THIN_SLICE = 512 }; /* the same in terms of k, for thin kernels */

/* ---- ieee candidates --------------------------------------------------------------------------------------------- */

bool cuda_computes_tiles(const cuda_kernel *kernel, const tsr_problem *p) {
    return kernel->family == FAMILY_TILE || (kernel->family == FAMILY_SHORT && p->k <= kernel->tile_k);
}

int64_t cuda_wave_of(const cuda_device *device, const cuda_kernel *kernel) {
    return (int64_t)device->multiprocessors * kernel->blocks;
}

cuda_candidate candidate_whole(const cuda_kernel *kernel, const tsr_problem *p) {
    const int64_t tiles = ceil_div(p->m, kernel->tile_m) * ceil_div(p->n, kernel->tile_n);
    return (cuda_candidate){.kernel = kernel, .tiles = tiles, .full_tiles = tiles, .slices = 1, .k_per_slice = p->k};
}

cuda_candidate candidate_with_tail(cuda_candidate c, const tsr_problem *p, int64_t full_tiles, int64_t tail_blocks) {
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
    const cuda_candidate whole = candidate_whole(kernel, p);
    const int64_t wave = cuda_wave_of(device, kernel), tiles = whole.tiles;
    const int64_t max_slices = p->k / (MIN_SLICE_STEPS * IEEE_RUN);
    consider(best, device, whole, p, max_workspace);
    if (!cuda_kernel_runs_on(&cuda_kernels[IEEE_REDUCE], device) || !max_slices) return;
    const int64_t tail = tiles % wave, tail_blocks = min64(wave, tail * max_slices);
    if (p->batch == 1 && tail_blocks > tail)
        consider(best, device, candidate_with_tail(whole, p, tiles - tail, tail_blocks), p, max_workspace);
    for (int64_t slices = min64(wave / (tiles * p->batch), max_slices); slices > 1; slices /= 2)
        consider(best, device, candidate_with_tail(whole, p, 0, tiles * slices), p, max_workspace);
}

/* Thin kernels stream the operands: as many thread blocks as the GPU holds, and k is cut as that needs. */
static cuda_candidate thin_candidate(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p,
                                     size_t max_workspace) {
    const cuda_candidate whole = candidate_whole(kernel, p);
    const int64_t slices = min64(ceil_div(cuda_wave_of(device, kernel), whole.tiles * p->batch), p->k / MIN_THIN_SLICE);
    cuda_candidate c = slices < 2 ? whole : candidate_with_tail(whole, p, 0, whole.tiles * slices);
    if (max_workspace && c.partial_bytes > max_workspace) c = whole;
    c.seconds = cost_multiply_thin(device, &c, p);
    return c;
}

/* ---- Candidates of one launch ------------------------------------------------------------------------------------ */

/* k shared by `cluster` thread blocks; fewer, if rounding leaves some without terms. */
static cuda_candidate with_cluster(cuda_candidate c, const tsr_problem *p, int64_t cluster) {
    c.k_each = round_up(ceil_div(p->k, cluster), IEEE_RUN);
    c.cluster = ceil_div(p->k, c.k_each);
    return c;
}

/* The cluster sizes to try: powers of two and three quarters of these; any size for direct kernels. */
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

bool cuda_can_read(const cuda_kernel *kernel, const tsr_problem *p) {
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

/* ---- Wide candidates --------------------------------------------------------------------------------------------- */

_Static_assert((int)TF32_K == (int)IEEE_RUN, "candidate_with_cuts cuts where ieee_reduce expects it");

static void consider_wide_cut(cuda_candidate *best, const cuda_device *device, const cuda_kernel *kernel,
                              const tsr_problem *p, int64_t cuts, bool parts, size_t max_workspace) {
    if (cuts > 1 && cuts * MIN_WIDE_STAGES * kernel->tile_k > p->k) return;
    cuda_candidate c = candidate_with_cuts(kernel, p, cuts, parts);
    if (max_workspace && c.partial_bytes > max_workspace) return;
    c.seconds = cost_wide(device, &c, p);
    if (!best->kernel || c.seconds < best->seconds) *best = c;
}

/* Tiles whole; in slices of k that fill the GPU once or more; or their k shared by clusters, all of which run at
 * once. */
static void consider_wide(cuda_candidate *best, const cuda_device *device, const cuda_kernel *kernel,
                          const tsr_problem *p, size_t max_workspace) {
    const int64_t tiles = candidate_whole(kernel, p).tiles * p->batch;
    consider_wide_cut(best, device, kernel, p, 1, false, max_workspace);
    for (int waves = 1; waves <= MAX_WAVES && cuda_kernel_runs_on(&cuda_kernels[IEEE_REDUCE], device); waves++) {
        const int64_t slices = waves * device->multiprocessors / tiles;
        if (slices > 1) consider_wide_cut(best, device, kernel, p, slices, false, max_workspace);
    }
    for (int64_t cluster = 2; cluster <= device->max_cluster; cluster++)
        if (tiles <= cost_clusters(device, kernel, cluster))
            consider_wide_cut(best, device, kernel, p, cluster, true, max_workspace);
}

/* ---- Operands in place ------------------------------------------------------------------------------------------- */

cuda_candidate candidate_in_place(const cuda_device *device, const tsr_problem *p, size_t max_workspace, bool split) {
    const bool along_m = p->a.row_stride == 1 && p->a.col_stride != 1;
    const cuda_kernel *vector = &cuda_kernels[p->n == 1 ? (along_m ? IEEE_VECTOR_M : IEEE_VECTOR_K)
                                                        : (along_m ? IEEE_COLUMNS_M : IEEE_COLUMNS_K)];
    const bool vectors = cuda_kernel_runs_on(vector, device);
    cuda_candidate best = {0};
    if (p->n <= CUDA_THIN && vectors && cuda_can_read(vector, p)) vector_candidates(&best, device, vector, p);
    if (best.kernel && p->n == 1) return best; /* nothing reads a matrix for one vector faster */
    const bool by_vectors = best.kernel;
    for (int i = 0; i < CUDA_KERNELS; i++) {
        const cuda_kernel *kernel = &cuda_kernels[i];
        if (!cuda_kernel_runs_on(kernel, device)) continue;
        if (kernel->family == FAMILY_THIN && p->n <= CUDA_THIN && !by_vectors && cuda_can_read(kernel, p)) {
            const cuda_candidate thin = thin_candidate(device, kernel, p, max_workspace);
            if (!best.kernel || thin.seconds < best.seconds) best = thin;
        }
        if (cuda_computes_tiles(kernel, p) &&
            (p->n > CUDA_THIN || !vectors)) /* with few columns tile kernels read the long operand slowly */
            consider_ieee(&best, device, kernel, p, max_workspace);
        if (kernel->family == FAMILY_WARP) consider(&best, device, candidate_whole(kernel, p), p, 0);
        const bool splits = kernel->components, may_split = split && p->k >= CUDA_MIN_HOPPER_K;
        if (kernel->family == FAMILY_SMALL && (!splits || may_split))
            consider_one_launch(&best, device, candidate_whole(kernel, p), p);
        if (kernel->family == FAMILY_WIDE && may_split && p->n > CUDA_THIN)
            consider_wide(&best, device, kernel, p, max_workspace);
    }
    return best;
}

/* ---- Recomputing ------------------------------------------------------------------------------------------------- */

/* The first that runs here; on Hopper the smaller tile, if whole tiles of that size take less time. In whole tiles
 * both sum the terms of an element in the same order, so that its bits are the same. */
const cuda_kernel *cuda_recompute_kernel(const cuda_device *device, const tsr_problem *p, bool invariant) {
    const cuda_kernel *first = NULL, *smaller = &cuda_kernels[IEEE_MMA_64X64];
    for (int i = 0; i < CUDA_KERNELS && !first; i++)
        if (cuda_kernels[i].family == FAMILY_TILE && cuda_kernel_runs_on(&cuda_kernels[i], device))
            first = &cuda_kernels[i];
    if (first != &cuda_kernels[IEEE_MMA_64X128] || invariant) return first;
    cuda_candidate best = {0};
    consider(&best, device, candidate_whole(first, p), p, 0);
    consider(&best, device, candidate_whole(smaller, p), p, 0);
    return best.kernel;
}

/* ---- Split candidates -------------------------------------------------------------------------------------------- */

double cuda_elements_of_a(const tsr_problem *p) {
    return (double)operand_count(&p->a, p->batch) * (double)p->m * (double)p->k;
}

double cuda_elements_of_b(const tsr_problem *p) {
    return (double)operand_count(&p->b, p->batch) * (double)p->n * (double)p->k;
}

cuda_candidate candidate_with_slices(cuda_candidate c, const tsr_problem *p, int64_t full_tiles, int64_t slices) {
    const int64_t area = (int64_t)c.kernel->tile_m * c.kernel->tile_n;
    c.k_per_slice = round_up(ceil_div(p->k, slices), c.kernel->tile_k);
    c.slices = ceil_div(p->k, c.k_per_slice);
    if (c.slices == 1) return c;
    c.full_tiles = full_tiles;
    c.partial_bytes = (size_t)(p->batch * c.slices * (c.tiles - full_tiles) * area) * sizeof(float);
    return c;
}

/* Every tile computed by a cluster of `parts` thread blocks that share its k; fewer, if rounding leaves some without
 * terms. */
static cuda_candidate candidate_with_parts(cuda_candidate c, const tsr_problem *p, int64_t parts) {
    c.k_each = round_up(ceil_div(p->k, parts), c.kernel->tile_k);
    c.cluster = ceil_div(p->k, c.k_each);
    return c;
}

/* A split kernel's best: k whole; k shared by the blocks of clusters, all of which run at once; k cut so that the tiles
 * fill the GPU once, twice or three times; or k cut in the tiles of the last, incomplete wave alone, so that these fill
 * the GPU once. The estimate includes packing even for an operand that was packed beforehand: packing must not change
 * the kernel, and with it the bits. */
cuda_candidate candidate_split(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p) {
    const double elements = cuda_elements_of_a(p) + cuda_elements_of_b(p);
    const double fraction = elements * sizeof(float) / PARTIAL_FRACTION;
    const size_t max_partial_bytes = fraction > PARTIAL_BYTES ? (size_t)fraction : PARTIAL_BYTES;
    const int64_t max_slices = p->k / (MIN_SLICE_STEPS * kernel->tile_k);
    const cuda_candidate whole = candidate_whole(kernel, p);
    const bool can_cut = cuda_kernel_runs_on(&cuda_kernels[SPLIT_REDUCE], device);
    const int64_t wave = cuda_wave_of(device, kernel), last = whole.tiles % wave;
    cuda_candidate best = {0};
    consider(&best, device, whole, p, max_partial_bytes);
    for (int64_t parts = 2; parts <= min64(min64(MAX_SPLIT_PARTS, device->max_cluster), max_slices); parts++)
        if (cost_has_parts(device, kernel) && whole.tiles * p->batch <= cost_clusters(device, kernel, parts))
            consider(&best, device, candidate_with_parts(whole, p, parts), p, 0);
    for (int waves = 1; waves <= 3 && can_cut; waves++) {
        const int64_t slices = min64(waves * wave / (whole.tiles * p->batch), max_slices);
        if (slices > 1) consider(&best, device, candidate_with_slices(whole, p, 0, slices), p, max_partial_bytes);
    }
    const int64_t slices = last ? min64(wave / last, max_slices) : 1;
    if (can_cut && p->batch == 1 && whole.tiles > wave && slices > 1)
        consider(&best, device, candidate_with_slices(whole, p, whole.tiles - last, slices), p, max_partial_bytes);
    best.seconds += cost_split(device, kernel, elements, p->batch);
    return best;
}

/* ---- TF32 candidates --------------------------------------------------------------------------------------------- */

/* Parts of k that thread blocks of a cluster share, slices that they do not; blocks of k in each. */
enum { MAX_PARTS = 8, MAX_SLICES = 8, MIN_PART_BLOCKS = 4 };

/* Whether a TF32 kernel can copy `lines` lines of each of `items` matrices. */
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

double tf32_elements_copied(const tsr_problem *p, bool turns_b) {
    const tf32_reading reading = tf32_reading_of(p, turns_b);
    return (reading.copies_a ? cuda_elements_of_a(p) : 0) + (reading.copies_b ? cuda_elements_of_b(p) : 0);
}

bool tf32_reads_better_transposed(const tsr_problem *p) {
    const tsr_problem transposed = problem_transpose(p);
    return tf32_elements_copied(&transposed, false) < tf32_elements_copied(p, false);
}

size_t tf32_copy_bytes(int64_t rows, int64_t k, int64_t items) {
    return (size_t)round_up(items * rows * round_up(k, 4) * (int64_t)sizeof(float), CUDA_ALIGNMENT);
}

size_t tf32_bytes_of_copies(const tsr_problem *p, bool turns_b) {
    const tf32_reading reading = tf32_reading_of(p, turns_b);
    return (reading.copies_a ? tf32_copy_bytes(p->m, p->k, operand_count(&p->a, p->batch)) : 0) +
           (reading.copies_b ? tf32_copy_bytes(p->n, p->k, operand_count(&p->b, p->batch)) : 0);
}

cuda_candidate candidate_with_cuts(const cuda_kernel *kernel, const tsr_problem *p, int64_t cuts, bool parts) {
    cuda_candidate c = candidate_whole(kernel, p);
    c.k_each = round_up(ceil_div(p->k, cuts), TF32_K);
    cuts = ceil_div(p->k, c.k_each);
    c.cluster = parts ? cuts : 1;
    c.slices = parts ? 1 : cuts;
    if (c.slices == 1) return c;
    c.full_tiles = 0;
    c.partial_bytes = (size_t)(p->batch * c.tiles * c.slices * kernel->tile_m * kernel->tile_n) * sizeof(float);
    return c;
}

/* A TF32 kernel's candidates: tiles whole; shared by clusters, all of which run at once; in slices. An operand across k
 * is turned or copied. */
static void consider_tf32(cuda_candidate *best, const cuda_device *device, const cuda_kernel *kernel,
                          const tsr_problem *p, size_t max_workspace) {
    const int64_t tiles = candidate_whole(kernel, p).tiles * p->batch, wave = cuda_wave_of(device, kernel);
    const int64_t most = max64(1, p->k / (MIN_PART_BLOCKS * TF32_K));
    const bool reduces = cuda_kernel_runs_on(&cuda_kernels[IEEE_REDUCE], device);
    const double operands = (cuda_elements_of_a(p) + cuda_elements_of_b(p)) * sizeof(float);
    const size_t room = operands / 2 > PARTIAL_BYTES ? (size_t)(operands / 2) : PARTIAL_BYTES;
    for (int turns_b = tf32_elements_copied(p, true) < tf32_elements_copied(p, false); turns_b >= 0; turns_b--) {
        const size_t copies = tf32_bytes_of_copies(p, turns_b);
        for (int parts = 0; parts <= 1; parts++)
            for (int64_t i = 1; i <= (parts ? min64(MAX_PARTS, device->max_cluster) : MAX_SLICES + 2); i++) {
                const int64_t cuts = i <= MAX_SLICES ? i : (i - MAX_SLICES) * wave / tiles; /* fill the GPU */
                if (cuts > most || cuts < i || (parts && cuts == 1)) continue;
                if (parts ? tiles > cost_clusters(device, kernel, cuts) : cuts > 1 && !reduces) continue;
                cuda_candidate c = candidate_with_cuts(kernel, p, cuts, parts);
                c.turns_b = turns_b;
                if (c.partial_bytes > room || (max_workspace && copies + c.partial_bytes > max_workspace)) continue;
                c.seconds = cost_tf32(device, &c, p, tf32_elements_copied(p, turns_b));
                if (!best->kernel || c.seconds < best->seconds) *best = c;
            }
    }
}

cuda_candidate candidate_tf32(const cuda_device *device, const tsr_problem *p, size_t max_workspace) {
    cuda_candidate best = {0};
    for (int i = 0; i < CUDA_KERNELS; i++)
        if (cuda_kernels[i].family == FAMILY_TF32 && cuda_kernel_runs_on(&cuda_kernels[i], device))
            consider_tf32(&best, device, &cuda_kernels[i], p, max_workspace);
    return best;
}

/* ---- Any kernel -------------------------------------------------------------------------------------------------- */

cuda_candidate candidate_of(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p,
                            size_t max_workspace) {
    cuda_candidate best = {0};
    switch (kernel->family) {
    case FAMILY_SPLIT: return candidate_split(device, kernel, p);
    case FAMILY_THIN: return thin_candidate(device, kernel, p, max_workspace);
    case FAMILY_VECTOR: vector_candidates(&best, device, kernel, p); break;
    case FAMILY_SMALL: consider_one_launch(&best, device, candidate_whole(kernel, p), p); break;
    case FAMILY_WIDE: consider_wide(&best, device, kernel, p, max_workspace); break;
    case FAMILY_WARP: consider(&best, device, candidate_whole(kernel, p), p, 0); break;
    case FAMILY_TF32: consider_tf32(&best, device, kernel, p, max_workspace); break;
    default: consider_ieee(&best, device, kernel, p, max_workspace);
    }
    return best;
}
