/* plan.c: problem -> cuda_plan, from the table of kernels and what the GPU is. Pure.
 *
 * Each kernel that could compute the product, with k whole or cut, gets an estimate of its time in cycles; the
 * least one is the plan. The estimate is crude (a rate from the table, the busiest multiprocessor's share of the work,
 * bytes through memory, a price for each launch), but it knows what matters: how well the tiles fill the GPU, and what
 * cutting or packing costs.
 */
#include "cuda/plan.h"

#include "cuda/context.h"

/* ---- The numbers of the estimate --------------------------------------------------------------------------------- */

static const double BYTES_PER_CYCLE = 16; /* of device memory, for each multiprocessor */
static const double LAUNCH_CYCLES = 4000; /* from one kernel's end to the next one's work */
static const double IDLE = 0.6;           /* cycles for one of work that a block by itself leaves to others */

/* What differs between kernels besides their rates. */
typedef struct manners {
    double start_k;       /* filling a block's pipeline and writing its tile, in terms of k */
    double begin_cycles;  /* from the end of the kernel before it to its work */
    double reduce_cycles; /* from its end to the work of ieee_reduce, launched early */
} manners;

static manners manners_of(const cuda_kernel *kernel) {
    const manners of_float64_tensor_cores = {64, 6000, 4000}, of_short_k = {16, 6000, 0},
                  of_others = {48, LAUNCH_CYCLES, 2000};
    if (kernel->family == FAMILY_IEEE_SHORT) return of_short_k;
    return kernel->module == MODULE_IEEE_MMA_SM90 ? of_float64_tensor_cores : of_others;
}

enum { SMALL_WORKSPACE = 32 << 20 }; /* bytes of partial sums that need no reason; more is little beside the operands */
enum { SPLIT_LAUNCHES = 5 };         /* what packing and recomputing (three kernels) cost a small product, in launches */
enum { LEAST_SLICE_STEPS = 4 };      /* of a kernel's tile_k, below which another slice costs more than it brings */
enum { LEAST_THIN_SLICE = 512 };     /* the same for thin kernels */
enum { THIN = 8 };                   /* C with as few columns or rows is for the thin kernels */

/* Below this k the error of splitting an operand would show beside float32's own, (k + 2) 2^-24. */
enum { LEAST_SPLIT_K = 128 };

/* Kernels index with 32 bits: larger extents are computed in parts. And a grid has at most so many blocks along z. */
enum { LARGEST_EXTENT = 1 << 30, LARGEST_BATCH = 65535 };

/* Parts of C that max_workspace forces are whole tiles of every split kernel. */
enum { CHUNK_STEP = 2 * PANEL_ROWS };


/* ---- Shapes and layouts ------------------------------------------------------------------------------------------ */

tsr_problem cuda_oriented(const tsr_problem *problem, bool transposed) {
    return transposed ? problem_transpose(problem) : *problem;
}

/* Thin kernels want the thin side to be C's columns; the others write best along contiguous rows of C. */
static bool should_transpose(const tsr_problem *p) {
    if (p->m <= THIN || p->n <= THIN) return p->m < p->n;
    return p->c.col_stride != 1 && p->c.row_stride == 1;
}

panels_layout panels_layout_of(int64_t rows, int64_t k, int64_t batch, int pieces) {
    const int64_t align = 256, panels = ceil_div(rows, PANEL_ROWS);
    panels_layout l = {.k_blocks = ceil_div(k, SPLIT_K), .exponents_stride = rows, .marks_stride = panels};
    l.panels_stride = round_up(rows, 8) * l.k_blocks * pieces * SPLIT_ROW_BYTES;
    l.exponents = (size_t)round_up(batch * l.panels_stride, align);
    const size_t of_rows = (size_t)round_up(batch * rows * 4, align); /* what has 4 bytes for each row, each panel */
    const size_t of_panels = (size_t)round_up(batch * panels * 4, align);
    l.overflows = l.exponents + of_rows;
    l.deep = l.overflows + of_rows;
    l.misfits = l.deep + of_rows;
    l.marks = l.misfits + of_panels;
    l.progress = l.marks + of_panels;
    l.bytes = l.progress + (size_t)align;
    return l;
}

/* ---- Ways to compute a product ----------------------------------------------------------------------------------- */

typedef struct way {
    const cuda_kernel *kernel; /* NULL: none */
    int64_t slices, k_per_slice, full_tiles, tail_units;
    size_t partial_bytes;
    double cycles;
} way;

/* Multiply-adds a cycle on a multiprocessor with `resident` blocks. */
static double rate_of(const cuda_device *device, const cuda_kernel *kernel, int64_t resident) {
    const double all = kernel->blocks, there = (double)resident;
    return cuda_kernel_rate(kernel, device) * (there / (there + IDLE)) / (all / (all + IDLE));
}

/* Cycles in which a multiprocessor does a multiply-add for each of `blocks` blocks, as many at a time as it holds. */
static double cycles_for_blocks(const cuda_device *device, const cuda_kernel *kernel, int64_t blocks) {
    const int64_t last = blocks % kernel->blocks, others = blocks - last;
    return (others ? (double)others / rate_of(device, kernel, kernel->blocks) : 0) +
           (last ? (double)last / rate_of(device, kernel, last) : 0);
}

/* What it costs to write and to read that many floats of partial sums. */
static double partial_cycles(const cuda_device *device, double sums) {
    return 2 * sums * sizeof(float) / (BYTES_PER_CYCLE * device->multiprocessors);
}

static int64_t tiles_of(const cuda_kernel *kernel, const tsr_problem *p) {
    return ceil_div(p->m, kernel->tile_m) * ceil_div(p->n, kernel->tile_n);
}

/* One kernel, every tile in `slices` slices of k (fewer, where rounding leaves none). */
static way sliced_way(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p, int64_t slices) {
    const int64_t area = (int64_t)kernel->tile_m * kernel->tile_n, tiles = tiles_of(kernel, p);
    const manners manner = manners_of(kernel);
    way w = {.kernel = kernel, .slices = 1, .k_per_slice = p->k, .full_tiles = tiles, .cycles = manner.begin_cycles};
    if (slices > 1) {
        w.k_per_slice = round_up(ceil_div(p->k, slices), kernel->tile_k);
        w.slices = ceil_div(p->k, w.k_per_slice);
    }
    const int64_t busiest = ceil_div(tiles * w.slices * p->batch, device->multiprocessors);
    w.cycles += (double)area * cycles_for_blocks(device, kernel, busiest) * ((double)w.k_per_slice + manner.start_k);
    if (w.slices > 1) {
        const int64_t sums = p->batch * w.slices * p->m * p->n;
        w.partial_bytes = (size_t)sums * sizeof(float);
        w.cycles += LAUNCH_CYCLES + partial_cycles(device, (double)sums);
    }
    return w;
}

/* One ieee kernel, tiles [0, full_tiles) whole and the terms of the others shared by `units` blocks. */
static way shared_way(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p, int64_t full_tiles,
                      int64_t units) {
    const int64_t area = (int64_t)kernel->tile_m * kernel->tile_n, tail = tiles_of(kernel, p) - full_tiles;
    const int64_t busiest_whole = ceil_div(full_tiles * p->batch, device->multiprocessors);
    const int64_t busiest_units = ceil_div(units * p->batch, device->multiprocessors);
    const double stretch = (double)tail * (double)p->k / (double)units;
    const manners manner = manners_of(kernel);
    const int starts = units % tail ? 2 : 1; /* a stretch may end in a second tile */
    way w = {.kernel = kernel, .slices = 1, .k_per_slice = p->k, .full_tiles = full_tiles, .tail_units = units};
    w.cycles = manner.begin_cycles +
               (double)area * (cycles_for_blocks(device, kernel, busiest_whole) * ((double)p->k + manner.start_k) +
                               cycles_for_blocks(device, kernel, busiest_units) * (stretch + starts * manner.start_k));
    const int64_t pieces = ieee_segments(p->k, tail, units);
    w.partial_bytes = (size_t)(p->batch * tail * pieces * area) * sizeof(float);
    if (pieces > 1)
        w.cycles += manner.reduce_cycles + partial_cycles(device, (double)(p->batch * (units + tail) * area));
    return w;
}

/* Whether a kernel computes such products tile by tile. */
static bool computes_tiles(const cuda_kernel *kernel, const tsr_problem *p) {
    return kernel->family == FAMILY_IEEE_TILE || (kernel->family == FAMILY_IEEE_SHORT && p->k <= kernel->tile_k);
}

static void keep_quicker(way *best, const way *other, size_t max_workspace) {
    if (max_workspace && other->partial_bytes > max_workspace) return;
    if (!best->kernel || other->cycles < best->cycles) *best = *other;
}

/* A split kernel's best way: k whole, or cut so that the tiles fill the GPU once, twice or three times. */
static void consider_slices(way *best, const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p,
                            size_t max_workspace) {
    const int64_t slots = (int64_t)device->multiprocessors * kernel->blocks;
    const int64_t most_slices = p->k / (LEAST_SLICE_STEPS * kernel->tile_k);
    way w = sliced_way(device, kernel, p, 1);
    keep_quicker(best, &w, max_workspace);
    if (!cuda_kernel_runs_on(&cuda_kernels[SPLIT_REDUCE], device)) return;
    for (int rounds = 1; rounds <= 3; rounds++) {
        const int64_t slices = min64(rounds * slots / (tiles_of(kernel, p) * p->batch), most_slices);
        if (slices < 2) continue;
        w = sliced_way(device, kernel, p, slices);
        keep_quicker(best, &w, max_workspace);
    }
}

/* An ieee kernel's best way: tiles whole; the tiles of the last, incomplete round shared by all blocks of a round; or
 * tiles too few for a round in slices, as many as a round has room for. */
static void consider_tail(way *best, const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p,
                          size_t max_workspace) {
    const int64_t slots = (int64_t)device->multiprocessors * kernel->blocks, tiles = tiles_of(kernel, p);
    const int64_t most_slices = p->k / (LEAST_SLICE_STEPS * IEEE_RUN);
    way w = sliced_way(device, kernel, p, 1);
    keep_quicker(best, &w, max_workspace);
    if (!cuda_kernel_runs_on(&cuda_kernels[IEEE_REDUCE], device) || !most_slices) return;
    const int64_t tail = tiles % slots, units = min64(slots, tail * most_slices);
    if (p->batch == 1 && tail && units > 1) {
        w = shared_way(device, kernel, p, tiles - tail, units);
        keep_quicker(best, &w, max_workspace);
    }
    for (int64_t slices = min64(slots / (tiles * p->batch), most_slices); slices > 1; slices /= 2) {
        w = shared_way(device, kernel, p, 0, tiles * slices);
        keep_quicker(best, &w, max_workspace);
    }
}

/* Thin kernels stream the operands: as many blocks as a multiprocessor holds, however k must be cut for that. */
static way thin_way(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p, size_t max_workspace) {
    const int64_t tiles = tiles_of(kernel, p), slots = (int64_t)device->multiprocessors * kernel->blocks;
    const int64_t slices = min64(ceil_div(slots, tiles * p->batch), p->k / LEAST_THIN_SLICE);
    way whole = sliced_way(device, kernel, p, 1);
    if (slices < 2) return whole;
    way w = shared_way(device, kernel, p, 0, tiles * slices);
    return max_workspace && w.partial_bytes > max_workspace ? whole : w;
}

/* ---- ieee -------------------------------------------------------------------------------------------------------- */

static way ieee_way(const cuda_device *device, const tsr_problem *p, size_t max_workspace) {
    const cuda_kernel *thin = &cuda_kernels[p->a.row_stride == 1 && p->a.col_stride != 1 ? IEEE_THIN_M : IEEE_THIN_K];
    if (p->n <= THIN && cuda_kernel_runs_on(thin, device)) return thin_way(device, thin, p, max_workspace);
    way best = {0};
    for (int i = 0; i < CUDA_KERNELS; i++)
        if (computes_tiles(&cuda_kernels[i], p) && cuda_kernel_runs_on(&cuda_kernels[i], device))
            consider_tail(&best, device, &cuda_kernels[i], p, max_workspace);
    return best;
}

/* ---- split ------------------------------------------------------------------------------------------------------- */

const cuda_kernel *cuda_split_kernel(const tsr_context *context) {
    const struct cuda_context *cuda = context->cuda;
    if (cuda->forced) return cuda->forced->family == FAMILY_SPLIT ? cuda->forced : NULL;
    if (context->options.precision == TSR_IEEE) return NULL;
    const int pieces = context->options.precision == TSR_TF32 ? 1 : 2;
    for (int i = 0; i < CUDA_KERNELS; i++) {
        const cuda_kernel *row = &cuda_kernels[i];
        if (row->family == FAMILY_SPLIT && row->pieces == pieces && cuda_kernel_runs_on(row, &cuda->device)) return row;
    }
    return NULL;
}

/* Bytes to pack `rows` rows of length plan->chunk_k of an operand, of each product of a chunk. */
static size_t panels_bytes(const cuda_plan *plan, const tsr_problem *p, const tsr_operand *o, int64_t rows,
                           int pieces) {
    if (cuda_packed_panels(o, p->batch)) return 0;
    return panels_layout_of(rows, plan->chunk_k, operand_count(o, plan->chunk_batch), pieces).bytes;
}

/* Sets the chunks so that what they pack fits into max_workspace beside the way's partial sums; false where nothing
 * does. */
static bool fit_workspace(cuda_plan *plan, const tsr_problem *p, int pieces, size_t partial_bytes,
                          size_t max_workspace) {
    for (;;) {
        size_t a = panels_bytes(plan, p, &p->a, plan->chunk_m, pieces);
        size_t b = panels_bytes(plan, p, &p->b, plan->chunk_n, pieces);
        const int64_t doubts = pieces == 2 ? plan->chunk_batch * check_blocks_in(plan->chunk_m, plan->chunk_n) : 0;
        plan->workspace = a + b + partial_bytes + (size_t)round_up(doubts, 256);
        if (!max_workspace || plan->workspace <= max_workspace) return true;
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

/* Packing counts even where an operand was packed beforehand: that must not change the kernel, for then it would change
 * the bits of the result. */
static way split_way(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p) {
    const double elements = (double)operand_count(&p->a, p->batch) * (double)p->m * (double)p->k +
                            (double)operand_count(&p->b, p->batch) * (double)p->n * (double)p->k;
    const double bytes = elements * sizeof(float);
    way best = {0};
    consider_slices(&best, device, kernel, p, bytes / 16 > SMALL_WORKSPACE ? (size_t)(bytes / 16) : SMALL_WORKSPACE);
    best.cycles += 2 * bytes / (BYTES_PER_CYCLE * device->multiprocessors) + SPLIT_LAUNCHES * LAUNCH_CYCLES;
    return best;
}

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

static void use(cuda_plan *plan, const way *w, const char *reason) {
    plan->multiply = w->kernel;
    plan->split = w->kernel->family == FAMILY_SPLIT;
    plan->slices = w->slices;
    plan->k_per_slice = w->k_per_slice;
    plan->full_tiles = w->full_tiles;
    plan->tail_units = w->tail_units;
    plan->workspace = w->partial_bytes;
    plan->reason = reason;
}

static tsr_status plan_forced(cuda_plan *plan, const cuda_kernel *kernel, const tsr_problem *p, size_t max_workspace) {
    const char *reason = "options.kernel asks for it";
    way w = {0};
    if (kernel->family == FAMILY_SPLIT) {
        w = split_way(plan->device, kernel, p);
        use(plan, &w, reason);
        if (fit_workspace(plan, p, kernel->pieces, w.partial_bytes, max_workspace)) return TSR_OK;
        return tsr_fail(TSR_OUT_OF_MEMORY, "options.max_workspace is %zu bytes; options.kernel %s needs %zu at least",
                        max_workspace, kernel->name, plan->workspace);
    }
    if (kernel->family == FAMILY_IEEE_THIN) {
        if (kernel == &cuda_kernels[IEEE_THIN_M] && p->a.row_stride != 1)
            return tsr_fail(TSR_INVALID_ARGUMENT,
                            "options.kernel %s reads a long operand whose rows are neighbours in memory", kernel->name);
        if (p->n > kernel->tile_n)
            return tsr_fail(TSR_INVALID_ARGUMENT,
                            "options.kernel %s is for at most %d rows or columns of c, not %lld x %lld", kernel->name,
                            kernel->tile_n, (long long)p->m, (long long)p->n);
        w = thin_way(plan->device, kernel, p, max_workspace);
    } else if (!computes_tiles(kernel, p))
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.kernel %s is for k of at most %d, not %lld", kernel->name,
                        kernel->tile_k, (long long)p->k);
    else
        consider_tail(&w, plan->device, kernel, p, max_workspace);
    use(plan, &w, reason);
    return TSR_OK;
}

static void plan_chosen(cuda_plan *plan, const tsr_context *context, const tsr_problem *p) {
    const size_t max_workspace = context->options.max_workspace;
    way in_place = ieee_way(plan->device, p, max_workspace);
    const cuda_kernel *split = cuda_split_kernel(context);
    if (!split) {
        use(plan, &in_place,
            context->options.precision == TSR_IEEE ? "least estimated time of the ieee kernels"
                                                   : "no tensor-core kernel for this GPU");
        return;
    }
    if (p->k < LEAST_SPLIT_K || p->n <= THIN) {
        use(plan, &in_place, p->n <= THIN ? "too thin for tensor cores" : "k is too short for tensor cores");
        return;
    }
    way packed = split_way(plan->device, split, p);
    if (packed.cycles >= in_place.cycles) {
        use(plan, &in_place, "quicker than packing for tensor cores, by estimate");
        return;
    }
    use(plan, &packed, "tensor cores, quicker than float32 units by estimate");
    if (fit_workspace(plan, p, split->pieces, packed.partial_bytes, max_workspace)) return;
    plan->chunk_m = min64(p->m, LARGEST_EXTENT);
    plan->chunk_n = min64(p->n, LARGEST_EXTENT);
    plan->chunk_batch = min64(p->batch, LARGEST_BATCH);
    use(plan, &in_place, "options.max_workspace leaves no room to pack for tensor cores");
}

tsr_status cuda_plan_make(cuda_plan *plan, const tsr_context *context, const tsr_problem *problem) {
    const struct cuda_context *cuda = context->cuda;
    const bool transposed = should_transpose(problem);
    const tsr_problem p = cuda_oriented(problem, transposed);
    *plan = (cuda_plan){
        .device = &cuda->device,
        .multiply = &cuda_kernels[IEEE_SCALE],
        .transposed = transposed,
        .slices = 1,
        .chunk_m = min64(p.m, LARGEST_EXTENT),
        .chunk_n = min64(p.n, LARGEST_EXTENT),
        .chunk_k = min64(p.k, LARGEST_EXTENT),
        .chunk_batch = min64(p.batch, LARGEST_BATCH),
        .reason = "a product without terms",
    };
    if (!p.m || !p.n || !p.k || !p.batch) return TSR_OK;

    tsr_problem chunk = p; /* the first of them, which stands for all */
    chunk.m = plan->chunk_m, chunk.n = plan->chunk_n, chunk.k = plan->chunk_k, chunk.batch = plan->chunk_batch;
    tsr_status status = TSR_OK;
    if (cuda->forced)
        status = plan_forced(plan, cuda->forced, &chunk, context->options.max_workspace);
    else
        plan_chosen(plan, context, &chunk);
    return status;
}

int64_t cuda_split_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t tiles, int64_t slices,
                          int64_t batch) {
    const int64_t all = tiles * slices * batch, slots = (int64_t)device->multiprocessors * kernel->blocks;
    const int64_t rounds = ceil_div(all, slots);
    return ceil_div(all, rounds) * kernel->cluster; /* as few as need no more rounds: what idles costs no power */
}

int64_t cuda_ieee_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t units) {
    const int64_t slots = (int64_t)device->multiprocessors * kernel->blocks;
    return kernel->family == FAMILY_IEEE_SHORT ? min64(units, slots) : units;
}

void cuda_plan_print(const cuda_plan *plan, const tsr_problem *problem, tsr_text *text) {
    const cuda_kernel *kernel = plan->multiply;
    const cuda_device *device = plan->device;
    const tsr_problem p = cuda_oriented(problem, plan->transposed);
    tsr_text_add(text, "device: GPU %d, %s, compute capability %d.%d, %d multiprocessors%s\n", device->ordinal,
                 device->name, device->capability / 10, device->capability % 10, device->multiprocessors,
                 device->from_ptx ? " (kernels from PTX, TESSERA_CUDA_PTX)" : "");
    tsr_text_add(text, "kernel: %s\n", kernel->name);
    tsr_text_add(text, "threads: %d\n", kernel->threads);
    if (kernel->tile_m) {
        const int64_t tiles_m = ceil_div(plan->chunk_m, kernel->tile_m),
                      tiles_n = ceil_div(plan->chunk_n, kernel->tile_n);
        tsr_text_add(text, "tile: %d x %d x %d (m, n, k)\n", kernel->tile_m, kernel->tile_n, kernel->tile_k);
        tsr_text_add(text, "tiles: %lld x %lld%s\n", (long long)tiles_m, (long long)tiles_n,
                     plan->transposed ? ", of c transposed" : "");
        tsr_text_add(text, "grid: %lld blocks%s\n",
                     (long long)(plan->split ? cuda_split_blocks(kernel, device, tiles_m * tiles_n, plan->slices,
                                                                 plan->chunk_batch)
                                             : cuda_ieee_blocks(kernel, device, plan->full_tiles + plan->tail_units)),
                     !plan->split && plan->chunk_batch > 1 ? " for each product" : "");
    }
    if (plan->slices > 1)
        tsr_text_add(text, "slices: %lld of k, %lld long\n", (long long)plan->slices, (long long)plan->k_per_slice);
    if (plan->tail_units)
        tsr_text_add(text, "cut: all but the first %lld tiles, their terms shared by %lld blocks\n",
                     (long long)plan->full_tiles, (long long)plan->tail_units);
    if (plan->split) {
        const int beforehand = !!cuda_packed_panels(&p.a, p.batch) + !!cuda_packed_panels(&p.b, p.batch);
        tsr_text_add(text, "packing: into %d fp16 piece%s, %d of 2 operands beforehand\n", kernel->pieces,
                     kernel->pieces == 1 ? "" : "s", beforehand);
        tsr_text_add(text, "fallback: %s, where a panel cannot be split\n", cuda_recompute_kernel(device)->name);
    }
    if (plan->chunk_m < p.m || plan->chunk_n < p.n || plan->chunk_k < p.k || plan->chunk_batch < p.batch)
        tsr_text_add(text, "in parts of: %lld x %lld x %lld, batch of %lld\n", (long long)plan->chunk_m,
                     (long long)plan->chunk_n, (long long)plan->chunk_k, (long long)plan->chunk_batch);
    tsr_text_add(text, "reason: %s\n", plan->reason);
}
