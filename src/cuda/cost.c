/* cost.c: estimates from the measured constants of cost_table.c.
 *
 * The estimate is crude: a rate for each kernel, the busiest SM's share of the work, bytes through device memory, a
 * time for each launch. But it knows what matters to a choice: how well the tiles fill the GPU, and what split-K, a
 * stream-K tail or packing costs.
 */
#include "cuda/cost.h"

#include <math.h>

#include "cuda/cost_table.h"

/* ---- Multiplying ------------------------------------------------------------------------------------------------- */

/* The time that an SM takes for `blocks` thread blocks, as many at a time as it holds; the unit is a full SM's time for
 * the work of one. With r resident blocks an SM is busy in r of r + stall cycles. */
static double blocks_in_turn(double stall, const cuda_kernel *kernel, int64_t blocks) {
    const double resident = kernel->blocks;
    const int64_t last = blocks % kernel->blocks;
    return (double)(blocks - last) + (last ? ((double)last + stall) * resident / (resident + stall) : 0);
}

/* Cycles in which an SM does a multiply-add for each of `blocks` thread blocks; the rate is that of a full one. */
static double cycles_for_blocks(const tile_costs *of, const cuda_kernel *kernel, int64_t blocks) {
    return blocks_in_turn(of->stall, kernel, blocks) / of->rate;
}

static double memory_seconds(const device_costs *costs, const cuda_device *device, double bytes) {
    return bytes / (costs->bytes_per_cycle * device->multiprocessors * costs->clock);
}

/* Writing and reading that many partial sums. */
static double partial_seconds(const device_costs *costs, const cuda_device *device, double sums) {
    return memory_seconds(costs, device, 2 * sums * sizeof(float));
}

/* Reading operands and writing C once. */
static double product_seconds(const device_costs *costs, const cuda_device *device, const tsr_problem *p) {
    const double elements = (double)(p->m * p->n + p->m * p->k + p->n * p->k);
    return memory_seconds(costs, device, (double)p->batch * elements * sizeof(float));
}

/* Whether the kernels in one launch copy an operand sixteen bytes at a time. */
static bool copied_by_vectors(int64_t line_stride, int64_t k_stride) {
    return line_stride == 1 ? k_stride % 4 == 0 : k_stride == 1 && line_stride % 4 == 0;
}

static int operands_by_floats(const tsr_problem *p) {
    return !copied_by_vectors(p->a.row_stride, p->a.col_stride) + !copied_by_vectors(p->b.col_stride, p->b.row_stride);
}

/* Whether the ieee kernels that compute tiles copy an operand by single floats. */
static bool copies_singles(int64_t line_stride, int64_t k_stride) { return line_stride != 1 || k_stride % 4; }

/* How much longer an ieee kernel takes where operands are copied by single floats, as they are unless lines are
 * neighbours and aligned; more so if there are fewer lines than a tile has. */
static double reading_factor(const tile_costs *of, const cuda_kernel *kernel, const tsr_problem *p) {
    double factor = 1;
    if (kernel->family != FAMILY_TILE) return factor;
    if (copies_singles(p->a.row_stride, p->a.col_stride)) factor += of->slow + (p->m < kernel->tile_m ? of->edge : 0);
    if (copies_singles(p->b.col_stride, p->b.row_stride)) factor += of->slow + (p->n < kernel->tile_n ? of->edge : 0);
    return factor;
}

/* What a tile costs besides k, in terms of k. */
static double pipeline_terms(const tile_costs *of, const tsr_problem *p) {
    const bool vectors = p->c.col_stride == 1 && p->c.row_stride % 4 == 0 && p->n % 4 == 0;
    return of->pipeline_k * (vectors ? 1 : 1 + of->ragged);
}

/* Multiplying beside memory: about the longer of the two, and more if they are alike, since they overlap in part. */
static double beside_memory(const device_costs *costs, const cuda_device *device, const cuda_kernel *kernel,
                            const tsr_problem *p, double seconds) {
    return kernel->family == FAMILY_TILE ? hypot(seconds, costs->cached * product_seconds(costs, device, p)) : seconds;
}

/* A call that is short by estimate begins early (plan.c). */
static double begun(const device_costs *costs, double seconds) {
    return seconds < COST_EARLY ? seconds : seconds + costs->late;
}

/* Tiles [0, full_tiles) whole, the others in `slices` slices of k. */
static double cost_slices(const device_costs *costs, const cuda_device *device, const cuda_candidate *c,
                          const tsr_problem *p) {
    const cuda_kernel *kernel = c->kernel;
    const tile_costs *of = &costs->tile[cuda_kernel_index(kernel)];
    const double area = (double)kernel->tile_m * kernel->tile_n;
    const int64_t full = c->slices > 1 ? c->full_tiles : c->tiles, parts = (c->tiles - full) * c->slices;
    const int64_t busiest_full = ceil_div(full * p->batch, device->multiprocessors);
    const int64_t busiest_parts = ceil_div(parts * p->batch, device->multiprocessors);
    const double factor = reading_factor(of, kernel, p), pipeline = pipeline_terms(of, p);
    const double cycles = area *
                          (cycles_for_blocks(of, kernel, busiest_full) * ((double)p->k * factor + pipeline) +
                           cycles_for_blocks(of, kernel, busiest_parts) * ((double)c->k_per_slice * factor + pipeline));
    double seconds = of->start + beside_memory(costs, device, kernel, p, cycles / costs->clock);
    if (c->slices > 1) { /* a launch more if only the last tiles are cut: that gains less than their times say */
        seconds += partial_seconds(costs, device, (double)(p->batch * parts) * area);
        seconds += of->reduce + (full ? costs->launch : 0) + (double)c->slices * costs->segment;
    }
    return seconds;
}

/* Tiles of the busiest SM, where thread blocks stay and take one tile after the other. Blocks that begin early land
 * unevenly: of more than one on an SM, some SMs get one more than their share, while they have a place for it. */
static int64_t busiest_of_short(const cuda_device *device, const cuda_kernel *kernel, int64_t tiles) {
    const int64_t blocks = ceil_div(tiles, device->multiprocessors), resident = kernel->blocks;
    if (blocks == 1) return 1;
    if (blocks > resident) return ceil_div(tiles, device->multiprocessors * resident) * resident;
    return min64(resident, blocks + 1);
}

static double cost_short(const device_costs *costs, const cuda_device *device, const cuda_candidate *c,
                         const tsr_problem *p) {
    const short_costs *of = c->kernel == &cuda_kernels[IEEE_MMA_SHORT_K] ? &costs->short_64 : &costs->short_96;
    const int64_t busiest = busiest_of_short(device, c->kernel, c->tiles * p->batch);
    const int slow = copies_singles(p->a.row_stride, p->a.col_stride) +
                     copies_singles(p->b.col_stride, p->b.row_stride);
    const double writing = p->n % 4 ? 1 + of->unaligned : 1;
    const double tile = of->tile * writing + (double)ceil_div(p->k, 8) * of->step * (1 + slow * of->slow);
    return of->start + hypot(blocks_in_turn(costs->short_stall, c->kernel, busiest) * tile,
                             of->memory * writing * product_seconds(costs, device, p));
}

/* Tiles [0, full_tiles) whole, then the segments of the stream-K tail. */
static double cost_tail(const device_costs *costs, const cuda_device *device, const cuda_candidate *c,
                        const tsr_problem *p) {
    const cuda_kernel *kernel = c->kernel;
    const tile_costs *of = &costs->tile[cuda_kernel_index(kernel)];
    const int64_t tail = c->tiles - c->full_tiles;
    const int64_t busiest_full = ceil_div(c->full_tiles * p->batch, device->multiprocessors);
    const int64_t busiest_tail = ceil_div(c->tail_blocks * p->batch, device->multiprocessors);
    const double area = (double)kernel->tile_m * kernel->tile_n;
    const double k_per_block = (double)tail * (double)p->k / (double)c->tail_blocks;
    const int tiles_per_block = c->tail_blocks % tail ? 2 : 1; /* its range of k may end in a second tile */
    const double factor = reading_factor(of, kernel, p), pipeline = pipeline_terms(of, p);
    const double cycles = area * (cycles_for_blocks(of, kernel, busiest_full) * ((double)p->k * factor + pipeline) +
                                  cycles_for_blocks(of, kernel, busiest_tail) *
                                      (k_per_block * factor + tiles_per_block * pipeline));
    double seconds = of->start + beside_memory(costs, device, kernel, p, cycles / costs->clock);
    if (c->segments > 1)
        seconds += of->reduce + (double)c->segments * costs->segment +
                   partial_seconds(costs, device, (double)(p->batch * (c->tail_blocks + tail)) * area);
    return seconds;
}

/* Tiles of the busiest SM: there are blocks enough for a warp for each tile, while they have a place at once. Of more
 * than two on an SM, some SMs get one more than their share. */
static int64_t busiest_of_warps(const cuda_device *device, const cuda_kernel *kernel, int64_t tiles) {
    const int64_t sms = device->multiprocessors, warps = kernel->threads / 32, resident = kernel->blocks;
    const int64_t blocks = ceil_div(ceil_div(tiles, warps), sms); /* on an SM */
    if (blocks == 1) return ceil_div(tiles, sms);
    if (blocks > resident) return ceil_div(tiles, sms * resident * warps) * resident * warps;
    return warps * min64(resident, blocks > 2 ? blocks + 1 : blocks);
}

/* Where a tile reaches past C, the kernel leaves out multiplications, but no copies. SMs share L2 and memory, so that
 * their mean counts for more than the busiest. */
static double cost_warp(const device_costs *costs, const cuda_device *device, const cuda_candidate *c,
                        const tsr_problem *p) {
    const warp_costs *of = &costs->warp[cuda_kernel_index(c->kernel) - IEEE_WARP_16X16];
    const double steps = (double)ceil_div(p->k, 8), items = (double)p->batch;
    const double tiles = items * (double)c->tiles, even = tiles / device->multiprocessors;
    const double busiest = 0.4 * (double)busiest_of_warps(device, c->kernel, c->tiles * p->batch) +
                           0.6 * (even > 1 ? even : 1);
    const double filled = items * (double)(round_up(p->m, 16) * round_up(p->n, 8)) /
                          (tiles * c->kernel->tile_m * c->kernel->tile_n);
    const double odd = operands_by_floats(p) * of->unaligned + (p->n % 4 ? of->ragged : 0);
    const double busy = busiest * (of->tile + steps * of->step) * (0.5 + 0.5 * filled);
    return of->start + steps * of->latency + (1 + odd) * hypot(busy, costs->cached * product_seconds(costs, device, p));
}

/* Every tile by a cluster of thread blocks, all of which run at once, one on an SM. */
static double cost_parts(const device_costs *costs, const cuda_candidate *c) {
    const tile_costs *of = &costs->tile[cuda_kernel_index(c->kernel)];
    const double area = (double)c->kernel->tile_m * c->kernel->tile_n;
    const double cycles = area * cycles_for_blocks(of, c->kernel, 1) * ((double)c->k_each + of->pipeline_k);
    return of->start + cycles / costs->clock + of->cluster;
}

bool cost_has_parts(const cuda_device *device, const cuda_kernel *kernel) {
    return device->costs->tile[cuda_kernel_index(kernel)].cluster > 0;
}

double cost_multiply(const cuda_device *device, const cuda_candidate *c, const tsr_problem *p) {
    const device_costs *costs = device->costs;
    if (c->kernel->family == FAMILY_SPLIT && c->cluster > 1) return cost_parts(costs, c);
    if (c->kernel->family == FAMILY_WARP) return cost_warp(costs, device, c, p);
    if (c->kernel->family == FAMILY_SHORT) return cost_short(costs, device, c, p);
    const double seconds = c->tail_blocks ? cost_tail(costs, device, c, p) : cost_slices(costs, device, c, p);
    return c->kernel->module == MODULE_IEEE_MMA_SM90 ? begun(costs, seconds) : seconds;
}

static int column_class(int64_t columns) { return columns <= 2 ? 0 : columns <= 4 ? 1 : 2; }

/* Every operand is read once, as fast as the resident thread blocks can and as fast as memory can: about the longer of
 * the two, and more if they are alike. */
double cost_multiply_thin(const cuda_device *device, const cuda_candidate *c, const tsr_problem *p) {
    const device_costs *costs = device->costs;
    const thin_costs *of = c->kernel == &cuda_kernels[IEEE_THIN_K] ? &costs->thin_k : &costs->thin_m;
    const double elements = (double)operand_count(&p->a, p->batch) * (double)p->m * (double)p->k +
                            (double)operand_count(&p->b, p->batch) * (double)p->n * (double)p->k +
                            (double)p->batch * (double)p->m * (double)p->n;
    const bool across = p->a.row_stride == 1 && p->a.col_stride != 1;
    const bool aligned = across ? p->a.col_stride % 4 == 0 && p->m % 4 == 0 : p->a.row_stride % 4 == 0;
    const double rate = of->block_bytes[column_class(p->n)] * (across && of->across > 0 ? of->across : 1) *
                        (aligned ? 1 : of->unaligned);
    const int64_t wave = (int64_t)device->multiprocessors * c->kernel->blocks;
    const int64_t all = (c->full_tiles + c->tail_blocks) * p->batch;
    const double bytes = elements * sizeof(float);
    const double blocks = (double)ceil_div(all, wave) * (of->block + bytes / (double)all / (rate * costs->clock));
    const double memory = memory_seconds(costs, device, bytes) / of->memory;
    return of->start + hypot(blocks, memory) + (c->tail_blocks ? of->reduce + (double)c->segments * costs->segment : 0);
}

/* How many clusters find a place at once, with `blocks` thread blocks on an SM. The SMs of a cluster lie in one group
 * of at most sixteen; on an H200 seven such groups are whole, and nine SMs of the rest lie together. */
static int64_t clusters_at_once(const device_costs *costs, const cuda_device *device, int64_t cluster, int64_t blocks) {
    enum { MEASURED = 132, TOGETHER = 16, REST = 9 }; /* SMs */
    if (blocks == 1) return max64(1, costs->clusters[cluster - 1] * device->multiprocessors / MEASURED);
    if (cluster <= 2) return blocks * device->multiprocessors / cluster;
    const int64_t groups = max64(1, device->multiprocessors / TOGETHER - 1);
    return groups * (TOGETHER * blocks / cluster) + (cluster <= REST ? REST * blocks / cluster : 0);
}

/* The thread blocks of the busiest SM. */
static int64_t busiest_of(const device_costs *costs, const cuda_device *device, int64_t clusters, int64_t cluster) {
    int64_t blocks = ceil_div(clusters * cluster, device->multiprocessors);
    while (clusters_at_once(costs, device, cluster, blocks) < clusters) blocks++;
    return blocks;
}

static double cluster_seconds(double cluster, double many, int64_t blocks) {
    return (blocks > 1 ? cluster : 0) + (blocks > 8 ? (double)(blocks - 8) * many : 0);
}

static double cost_small(const small_costs *costs, const cuda_candidate *c, const tsr_problem *p, int64_t busiest) {
    const double stages = (double)ceil_div(c->k_each, c->kernel->tile_k), turns = (double)busiest / costs->together;
    const double stage = costs->stage * (1 + costs->slow * operands_by_floats(p));
    return costs->start + cluster_seconds(costs->cluster, costs->many, c->cluster) +
           stages * stage * (turns > 1 ? turns : 1) + (double)(busiest - 1) * costs->block;
}

static double cost_direct(const direct_costs *costs, const cuda_candidate *c, const tsr_problem *p, int64_t waves) {
    const int64_t groups = c->kernel->threads / 128, steps = ceil_div(c->k_each, c->kernel->tile_k);
    const double stages = 0.5 * (double)ceil_div(steps, groups) + 0.5 * (double)steps / (double)groups;
    return costs->start + cluster_seconds(costs->cluster, costs->many, c->cluster) +
           (double)waves * stages * (costs->stage + operands_by_floats(p) * costs->slow) +
           (double)(waves - 1) * costs->wave;
}

/* One tile on an SM, or in a cluster, at a time; then the longer of multiplying and memory, or a little more if they
 * are alike. */
double cost_wide(const cuda_device *device, const cuda_candidate *c, const tsr_problem *p) {
    const device_costs *costs = device->costs;
    const wide_costs *of = c->kernel == &cuda_kernels[DIRECT_128X64] ? &costs->direct_128x64 : &costs->direct_128x96;
    const bool whole = c->cluster == 1 && c->slices == 1, pairs = p->c.col_stride == 1 && p->c.row_stride % 2 == 0;
    const double stages = (double)ceil_div(min64(c->k_each, p->k), c->kernel->tile_k);
    const int64_t at_once = c->cluster > 1 ? clusters_at_once(costs, device, c->cluster, 1) : device->multiprocessors;
    const double turns = (double)ceil_div(c->tiles * c->slices * p->batch, at_once);
    const double tile = stages * (of->stage + operands_by_floats(p) * of->slow) + of->tile +
                        (whole && !pairs ? of->ragged : 0);
    const double multiply = turns * tile + (p->batch > 1 ? (turns - 1) * of->item : 0);
    const double memory = of->memory * product_seconds(costs, device, p);
    double seconds = of->start + cluster_seconds(of->cluster, of->many, c->cluster) +
                     cbrt(multiply * multiply * multiply + memory * memory * memory);
    if (c->slices > 1)
        seconds += costs->tf32_reduce + (double)c->slices * of->slice +
                   memory_seconds(costs, device, 2 * (double)c->partial_bytes);
    return seconds;
}

/* Reading A, as fast as the busiest SM's thread blocks can and as fast as memory can, in the same way. */
static double cost_vector(const vector_costs *costs, const cuda_candidate *c, const tsr_problem *p, int64_t busiest) {
    const int columns = column_class(p->n);
    const bool along_m = cuda_reads_along_m(c->kernel);
    const bool aligned = along_m ? p->a.col_stride % 4 == 0 && p->m % 4 == 0 : p->a.row_stride % 4 == 0;
    const double rows = (double)cuda_vector_rows(c->kernel, c->share), resident = c->kernel->blocks;
    double rate = costs->rate[columns];
    for (int64_t share = c->share; along_m && share < 32; share *= 2) rate *= costs->narrow;
    double blocks = rows * (double)c->k_each * sizeof(float) /
                    (rate * costs->block_bytes * (aligned ? 1 : costs->unaligned));
    const double turns = (double)busiest > resident ? (double)busiest / resident : 1;
    blocks = blocks * turns + (turns - 1) * resident * costs->block;
    /* In the last turn, some of an SM's places are empty, and fewer loads are under way. */
    const double memory = (double)p->batch * (double)p->m * (double)p->k * sizeof(float) / (rate * costs->bytes) *
                          (1 + costs->idle * (ceil(turns) / turns - 1));
    return costs->start[columns] + (c->share > 1 && !along_m ? costs->share : 0) +
           cluster_seconds(costs->cluster, costs->many, c->cluster) + hypot(blocks, memory);
}

double cost_one_launch(const cuda_device *device, const cuda_candidate *c, const tsr_problem *p) {
    const device_costs *costs = device->costs;
    const int64_t busiest = busiest_of(costs, device, c->tiles * p->batch, c->cluster);
    const int64_t waves = ceil_div(c->tiles * p->batch, clusters_at_once(costs, device, c->cluster, 1));
    switch (cuda_kernel_index(c->kernel)) {
    case IEEE_SMALL_16: return cost_small(&costs->small_16, c, p, busiest);
    case IEEE_SMALL_32: return cost_small(&costs->small_32, c, p, busiest);
    case IEEE_LONG_16: return begun(costs, cost_small(&costs->long_16, c, p, busiest));
    case IEEE_LONG_32: return begun(costs, cost_small(&costs->long_32, c, p, busiest));
    case DIRECT_64X32: return begun(costs, cost_direct(&costs->direct_64x32, c, p, waves));
    case DIRECT_64X64: return begun(costs, cost_direct(&costs->direct_64x64, c, p, waves));
    case IEEE_VECTOR_K: return cost_vector(&costs->vector_k, c, p, busiest);
    case IEEE_VECTOR_M: return cost_vector(&costs->vector_m, c, p, busiest);
    case IEEE_COLUMNS_K: return cost_vector(&costs->columns_k, c, p, busiest);
    default: return cost_vector(&costs->columns_m, c, p, busiest);
    }
}

int64_t cost_clusters(const cuda_device *device, const cuda_kernel *kernel, int64_t cluster) {
    return clusters_at_once(device->costs, device, cluster, kernel->blocks);
}

/* The busiest SM's tiles beside all operands and C through device memory once: a little more than the longer of the
 * two. */
double cost_tf32(const cuda_device *device, const cuda_candidate *c, const tsr_problem *p, double copied) {
    const device_costs *costs = device->costs;
    const cuda_kernel *kernel = c->kernel;
    const tf32_costs *of = kernel == &cuda_kernels[TF32_128X256]   ? &costs->tf32_128x256
                           : kernel == &cuda_kernels[TF32_128X128] ? &costs->tf32_128x128
                                                                   : &costs->tf32_64x64;
    const int reading = c->turns_b ? 2 : p->a.col_stride != 1;
    const bool vectors = p->c.row_stride == 1 ? p->c.col_stride % 4 == 0
                                              : p->c.col_stride == 1 && p->c.row_stride % 4 == 0;
    const int64_t busiest = ceil_div(c->tiles * c->cluster * c->slices * p->batch, device->multiprocessors);
    const double terms = (double)c->k_each + of->pipeline_k[reading] + (vectors || c->slices > 1 ? 0 : of->odd_k);
    const double tiles = (double)(busiest * kernel->tile_m * kernel->tile_n) * terms /
                         (of->rate[reading] * costs->clock);
    const double read = (double)operand_count(&p->a, p->batch) * (double)p->m * (double)p->k +
                        (double)operand_count(&p->b, p->batch) * (double)p->n * (double)p->k;
    const double written = (double)p->batch * (double)p->m * (double)p->n / costs->tf32_writing;
    const double memory = memory_seconds(costs, device, (read + written) * sizeof(float));
    double seconds = of->start + (c->cluster > 1 ? of->cluster : 0) +
                     cbrt(tiles * tiles * tiles + memory * memory * memory);
    if (copied > 0) seconds += costs->tf32_copy + memory_seconds(costs, device, 2 * copied * sizeof(float));
    if (c->slices > 1) seconds += costs->tf32_reduce + memory_seconds(costs, device, 2 * (double)c->partial_bytes);
    return seconds;
}

/* ---- Everything else --------------------------------------------------------------------------------------------- */

double cost_split(const cuda_device *device, const cuda_kernel *kernel, double elements, int64_t batch) {
    const device_costs *costs = device->costs;
    const double bytes = (double)sizeof(float) + 2 * kernel->components;
    return memory_seconds(costs, device, bytes * elements) + costs->split_launches * costs->launch +
           (double)batch * costs->split_item;
}

double cost_scale(const cuda_device *device, const tsr_problem *p) {
    const device_costs *costs = device->costs;
    return costs->launch +
           memory_seconds(costs, device, 2 * sizeof(float) * (double)p->batch * (double)p->m * (double)p->n);
}
