/* cost.c: estimates from a table of measured constants.
 *
 * The estimate is crude: a rate for each kernel, the busiest SM's share of the work, bytes through device memory, a
 * time for each launch. But it knows what matters to a choice: how well the tiles fill the GPU, and what split-K, a
 * stream-K tail or packing costs.
 */
#include "cuda/cost.h"

#include <math.h>
#include <stdlib.h>

/* ---- Measured constants ------------------------------------------------------------------------------------------ */

/* What differs between kernels besides their rates. */
typedef struct kernel_overheads {
    double pipeline_k; /* filling a thread block's pipeline and writing its tile, as terms of k */
    double start;      /* seconds from the end of the kernel before it to its work */
    double reduce;     /* seconds from its end to the work of ieee_reduce, launched early */
} kernel_overheads;

/* Of kernels in one launch. Seconds and bytes. */
typedef struct small_costs {
    double start;           /* with one thread block on an SM, before its first stage */
    double cluster;         /* more, where blocks add up their sums */
    double stage, together; /* of so many blocks on an SM at the same time */
    double block;           /* more, for each further block on an SM */
} small_costs;

/* Of kernels that split what they multiply, one thread block on an SM. Seconds. */
typedef struct direct_costs {
    double start;   /* before the first stage */
    double cluster; /* more, where blocks add up their sums */
    double many;    /* more, for each block beyond eight */
    double stage;   /* of all warpgroups of a block */
    double slow;    /* more, for each operand that is copied by single floats */
    double wave;    /* for each further wave of blocks */
} direct_costs;

/* Of kernels whose warps have tiles of their own. Seconds; a step is eight terms of a tile. */
typedef struct warp_costs {
    double start, latency; /* of a tile that has an SM to itself: before its first step, and each step */
    double tile, step;     /* of each tile, and each of its steps, of an SM full of warps */
    double crowded;        /* times that, if the tiles of an item are so many that all SMs read the same lines */
} warp_costs;

typedef struct vector_costs {
    double start[3], rate[3]; /* by columns: 1 or 2, up to 4, up to 8; how fast A is read */
    double share;             /* more, where warps along k add up their sums */
    double cluster;           /* more, where thread blocks do */
    double block;             /* for each thread block on an SM beyond those that are resident */
    double block_bytes;       /* of A that a thread block reads in a second */
    double bytes;             /* that all of them do */
    double unaligned;         /* what is left of block_bytes where A is read by single floats */
    double narrow;            /* what is left of the rates with half as many rows side by side */
} vector_costs;

typedef struct device_costs {
    int capability;
    double clock;              /* Hz, under load */
    double bytes_per_cycle;    /* of device memory, for each SM */
    double launch;             /* seconds from the end of one kernel to the work of the next */
    double split_launches;     /* what packing and recomputing, three kernels, cost a small product, in launches */
    double split_item;         /* the same for each product of a batch, in seconds */
    double single_block_stall; /* stall cycles per busy cycle with one resident thread block */
    kernel_overheads ieee_mma, ieee_mma_32x64, ieee_mma_32x32, ieee_short_k, other;
    double rates[CUDA_KERNELS]; /* multiply-adds per SM and cycle, all SMs full; not of thin kernels */
    small_costs small_16, small_32, long_16, long_32;
    direct_costs direct_64x32, direct_64x64;
    warp_costs warp[IEEE_WARP_32X64 - IEEE_WARP_16X16 + 1];
    vector_costs vector_k, vector_m, columns_k, columns_m;
    double thin_k_bytes, thin_m_bytes; /* what a thread block of a thin kernel reads in a cycle */
    double thin_m_memory;              /* of bytes_per_cycle */
} device_costs;

#define H200_CLOCK 1.755e9

/* One row for each device that was measured.
 *
 * H200: estimated over measured time, for 53 products of bench/results/h200.json and 8 of other shapes:
 *
 *   ieee tiles   1.05 to 1.14; 256 cubed 1.22, 200704 x 384 x 96 1.30
 *   fp32 split   0.94 to 1.11; 1024 cubed 1.36, 12544 x 384 x 1536 0.71
 *   tf32 split   1.10 to 1.31
 *   thin         0.90 to 1.08, of three products
 *
 * and of the kernels in one launch, for 240 random products (bench/gpu/sweep.py), the mean deviation:
 *
 *   small, long  5 % to 8 %
 *   direct       5 % to 6 %
 *   warp         8 % to 9 %, where it is within 1.8 x of the fastest
 *   vector       6 % to 13 %, for 230 products */
static const device_costs measured[] = {{
    .capability = 90,
    .clock = H200_CLOCK,
    .bytes_per_cycle = 16,
    .launch = 4000 / H200_CLOCK,
    .split_launches = 5,
    .split_item = 0.1e-6,
    .single_block_stall = 1.6,
    .other = {.pipeline_k = 48, .start = 4000 / H200_CLOCK, .reduce = 2000 / H200_CLOCK},
    .ieee_mma = {.pipeline_k = 72, .start = 6000 / H200_CLOCK, .reduce = 7000 / H200_CLOCK},
    .ieee_mma_32x64 = {.pipeline_k = 120, .start = 6000 / H200_CLOCK, .reduce = 7000 / H200_CLOCK},
    .ieee_mma_32x32 = {.pipeline_k = 180, .start = 6000 / H200_CLOCK, .reduce = 7000 / H200_CLOCK},
    .ieee_short_k = {.pipeline_k = 16, .start = 4300 / H200_CLOCK, .reduce = 0},
    .rates = {[IEEE_MMA_64X128] = 126,
              [IEEE_MMA_64X64] = 122,
              [IEEE_MMA_32X64] = 112,
              [IEEE_MMA_32X32] = 92,
              [IEEE_TILE_128X128] = 103,
              [IEEE_TILE_128X64] = 97,
              [IEEE_TILE_64X64] = 88,
              [IEEE_MMA_SHORT_K] = 110,
              [SPLIT_FP32_SM90] = 570,
              [SPLIT_FP32_SM90_T128] = 500,
              [SPLIT_TF32_SM90] = 1400,
              [SPLIT_FP32_MMA_SM80] = 250,
              [SPLIT_TF32_MMA_SM80] = 650},
    .small_16 = {.start = 2.5e-6, .cluster = 0.9e-6, .stage = 0.3e-6, .together = 2.25, .block = 0.145e-6},
    .small_32 = {.start = 3.8e-6, .cluster = 0.63e-6, .stage = 0.63e-6, .together = 2.05, .block = 0.28e-6},
    .long_16 = {.start = 2.3e-6, .cluster = 1.13e-6, .stage = 0.55e-6, .together = 1.1, .block = 0.75e-6},
    .long_32 = {.start = 2.7e-6, .cluster = 0.9e-6, .stage = 0.73e-6, .together = 1.1, .block = 0.98e-6},
    .direct_64x32 =
        {.start = 3.7e-6, .cluster = 0.95e-6, .many = 0.05e-6, .stage = 1.43e-6, .slow = 0.13e-6, .wave = 3.6e-6},
    .direct_64x64 =
        {.start = 4.3e-6, .cluster = 0.75e-6, .many = 0.05e-6, .stage = 1.66e-6, .slow = 0.12e-6, .wave = 4e-6},
    .warp = {[IEEE_WARP_16X16 - IEEE_WARP_16X16] = {2.24e-6, 0.162e-6, 0.0513e-6, 0.0290e-6, 1.3},
             [IEEE_WARP_16X32 - IEEE_WARP_16X16] = {2.45e-6, 0.202e-6, 0.0655e-6, 0.0439e-6, 1.27},
             [IEEE_WARP_32X32 - IEEE_WARP_16X16] = {2.79e-6, 0.243e-6, 0.1451e-6, 0.0587e-6, 1.21},
             [IEEE_WARP_32X64 - IEEE_WARP_16X16] = {3.58e-6, 0.351e-6, 0.2864e-6, 0.1078e-6, 1.15}},
    .vector_k = {.start = {1.67e-6},
                 .rate = {1},
                 .share = 0.26e-6,
                 .cluster = 0.63e-6,
                 .block = 0.11e-6,
                 .block_bytes = 57e9,
                 .bytes = 4.3e12,
                 .unaligned = 0.81,
                 .narrow = 1},
    .vector_m = {.start = {1.82e-6},
                 .rate = {1},
                 .share = 0,
                 .cluster = 0.69e-6,
                 .block = 0.84e-6,
                 .block_bytes = 104e9,
                 .bytes = 3.98e12,
                 .unaligned = 0.7,
                 .narrow = 0.81},
    .columns_k = {.start = {2.29e-6, 2.26e-6, 3.12e-6},
                  .rate = {1, 0.74, 0.66},
                  .share = 0.73e-6,
                  .cluster = 0.6e-6,
                  .block = 2.4e-6,
                  .block_bytes = 110e9,
                  .bytes = 4.3e12,
                  .unaligned = 0.54,
                  .narrow = 1},
    .columns_m = {.start = {2.53e-6, 2.89e-6, 3.7e-6},
                  .rate = {1, 0.9, 0.65},
                  .share = 0,
                  .cluster = 0.33e-6,
                  .block = 6.1e-6,
                  .block_bytes = 63.5e9,
                  .bytes = 3.75e12,
                  .unaligned = 1.5,
                  .narrow = 0.94},
    .thin_m_memory = 0.72,
    .thin_k_bytes = 1.75,
    .thin_m_bytes = 5,
}};

/* The row of the nearest device, by compute capability. */
static const device_costs *costs_of(const cuda_device *device) {
    const device_costs *nearest = &measured[0];
    for (size_t i = 1; i < sizeof measured / sizeof *measured; i++) {
        const int distance = abs(measured[i].capability - device->planned_capability);
        if (distance < abs(nearest->capability - device->planned_capability)) nearest = &measured[i];
    }
    return nearest;
}

static kernel_overheads overheads_of(const device_costs *costs, const cuda_kernel *kernel) {
    if (kernel->family == FAMILY_SHORT) return costs->ieee_short_k;
    if (kernel == &cuda_kernels[IEEE_MMA_32X64]) return costs->ieee_mma_32x64;
    if (kernel == &cuda_kernels[IEEE_MMA_32X32]) return costs->ieee_mma_32x32;
    return kernel->module == MODULE_IEEE_MMA_SM90 ? costs->ieee_mma : costs->other;
}

/* ---- Multiplying ------------------------------------------------------------------------------------------------- */

/* Multiply-adds per SM and cycle, all SMs full. The table's GPU has 128 float32 units on an SM and 1024 of mma's fp16
 * multiply-adds a cycle. */
static double full_rate(const device_costs *costs, const cuda_device *device, const cuda_kernel *kernel) {
    const int capability = device->planned_capability;
    const double rate = costs->rates[cuda_kernel_index(kernel)];
    const bool few_float32_units = capability <= 80; /* 64 of them */
    const bool for_graphics = capability / 10 == 12 ||
                              (capability > 80 && capability < 90); /* a quarter of mma's rate */
    if (kernel->family != FAMILY_SPLIT) return few_float32_units ? rate / 2 : rate;
    return kernel->module == MODULE_SPLIT_MMA_SM80 && for_graphics ? rate / 4 : rate;
}

/* Cycles in which an SM does a multiply-add for each of `blocks` thread blocks, as many at a time as it holds. With r
 * resident blocks an SM is busy in r of r + stall cycles; full_rate is that with as many as it holds. */
static double cycles_for_blocks(const device_costs *costs, const cuda_device *device, const cuda_kernel *kernel,
                                int64_t blocks) {
    const double stall = costs->single_block_stall, resident = kernel->blocks;
    const int64_t last = blocks % kernel->blocks;
    const double last_wave = last ? ((double)last + stall) * resident / (resident + stall) : 0;
    return ((double)(blocks - last) + last_wave) / full_rate(costs, device, kernel);
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

/* Tiles [0, full_tiles) whole, the others in `slices` slices of k. */
static double cost_slices(const device_costs *costs, const cuda_device *device, const cuda_candidate *c,
                          const tsr_problem *p) {
    const cuda_kernel *kernel = c->kernel;
    const kernel_overheads overheads = overheads_of(costs, kernel);
    const double area = (double)kernel->tile_m * kernel->tile_n;
    const int64_t full = c->slices > 1 ? c->full_tiles : c->tiles, parts = (c->tiles - full) * c->slices;
    const int64_t busiest_full = ceil_div(full * p->batch, device->multiprocessors);
    const int64_t busiest_parts = ceil_div(parts * p->batch, device->multiprocessors);
    const double cycles =
        area *
        (cycles_for_blocks(costs, device, kernel, busiest_full) * ((double)p->k + overheads.pipeline_k) +
         cycles_for_blocks(costs, device, kernel, busiest_parts) * ((double)c->k_per_slice + overheads.pipeline_k));
    double seconds = overheads.start + cycles / costs->clock;
    if (kernel->family == FAMILY_SHORT) { /* with little to multiply, C is written at half of the memory's rate */
        const double writing = 2 * product_seconds(costs, device, p);
        if (seconds < writing) seconds = writing;
    }
    if (c->slices > 1) { /* cutting the last tiles alone gains little where k is short, and costs more than it seems */
        seconds += partial_seconds(costs, device, (double)(p->batch * parts) * area);
        seconds += (full ? 3 : 1) * costs->launch;
    }
    return seconds;
}

/* Tiles [0, full_tiles) whole, and then the segments of the tail. */
static double cost_tail(const device_costs *costs, const cuda_device *device, const cuda_candidate *c,
                        const tsr_problem *p) {
    const cuda_kernel *kernel = c->kernel;
    const kernel_overheads overheads = overheads_of(costs, kernel);
    const int64_t tail = c->tiles - c->full_tiles;
    const int64_t busiest_full = ceil_div(c->full_tiles * p->batch, device->multiprocessors);
    const int64_t busiest_tail = ceil_div(c->tail_blocks * p->batch, device->multiprocessors);
    const double area = (double)kernel->tile_m * kernel->tile_n;
    const double k_per_block = (double)tail * (double)p->k / (double)c->tail_blocks;
    const int tiles_per_block = c->tail_blocks % tail ? 2 : 1; /* its range of k may end in a second tile */
    const double cycles = area * (cycles_for_blocks(costs, device, kernel, busiest_full) *
                                      ((double)p->k + overheads.pipeline_k) +
                                  cycles_for_blocks(costs, device, kernel, busiest_tail) *
                                      (k_per_block + tiles_per_block * overheads.pipeline_k));
    double seconds = overheads.start + cycles / costs->clock;
    if (c->segments > 1)
        seconds += overheads.reduce +
                   partial_seconds(costs, device, (double)(p->batch * (c->tail_blocks + tail)) * area);
    return seconds;
}

/* Multiplications are left out where there is nothing of C; copies and everything else are not. */
static double cost_warp(const device_costs *costs, const cuda_device *device, const cuda_candidate *c,
                        const tsr_problem *p) {
    const warp_costs *of = &costs->warp[cuda_kernel_index(c->kernel) - IEEE_WARP_16X16];
    const double steps = (double)ceil_div(p->k, 8), items = (double)p->batch;
    const double tiles = items * (double)c->tiles, busiest = tiles / device->multiprocessors;
    const double filled = items * (double)(round_up(p->m, 16) * round_up(p->n, 8)) /
                          (tiles * c->kernel->tile_m * c->kernel->tile_n);
    const double busy = (busiest > 1 ? busiest : 1) * (of->tile + steps * of->step * (0.3 + 0.7 * filled)) *
                        (c->tiles < device->multiprocessors ? 1 : of->crowded);
    const double memory = product_seconds(costs, device, p);
    return of->start + steps * of->latency + (busy > memory ? busy : memory);
}

double cost_multiply(const cuda_device *device, const cuda_candidate *c, const tsr_problem *p) {
    const device_costs *costs = costs_of(device);
    if (c->kernel->family == FAMILY_WARP) return cost_warp(costs, device, c, p);
    return c->tail_blocks ? cost_tail(costs, device, c, p) : cost_slices(costs, device, c, p);
}

/* Every operand is read once, as fast as so many resident thread blocks can. */
double cost_multiply_thin(const cuda_device *device, const cuda_candidate *c, const tsr_problem *p) {
    const device_costs *costs = costs_of(device);
    const double elements = (double)operand_count(&p->a, p->batch) * (double)p->m * (double)p->k +
                            (double)operand_count(&p->b, p->batch) * (double)p->n * (double)p->k +
                            (double)p->batch * (double)p->m * (double)p->n;
    const int64_t wave = (int64_t)device->multiprocessors * c->kernel->blocks;
    const double resident = (double)min64(wave, (c->full_tiles + c->tail_blocks) * p->batch);
    const double of_thin_k = p->n > 2 ? costs->thin_k_bytes / 2 : costs->thin_k_bytes; /* many loads of B */
    const double of_blocks = resident * (c->kernel == &cuda_kernels[IEEE_THIN_K] ? of_thin_k : costs->thin_m_bytes);
    const double of_memory = costs->bytes_per_cycle * device->multiprocessors *
                             (c->kernel == &cuda_kernels[IEEE_THIN_K] ? 1 : costs->thin_m_memory);
    const double bytes_per_cycle = of_blocks < of_memory ? of_blocks : of_memory;
    return costs->launch + elements * sizeof(float) / (bytes_per_cycle * costs->clock) +
           (c->tail_blocks ? costs->other.reduce : 0);
}

static double cost_small(const small_costs *costs, const cuda_candidate *c, int64_t busiest) {
    const double stages = (double)ceil_div(c->k_each, c->kernel->tile_k), turns = (double)busiest / costs->together;
    return costs->start + (c->cluster > 1 ? costs->cluster : 0) + stages * costs->stage * (turns > 1 ? turns : 1) +
           (double)(busiest - 1) * costs->block;
}

/* Whether the kernels in one launch copy an operand sixteen bytes at a time. */
static bool copied_by_vectors(int64_t line_stride, int64_t k_stride) {
    return line_stride == 1 ? k_stride % 4 == 0 : k_stride == 1 && line_stride % 4 == 0;
}

/* How many clusters find a place at once, with one thread block on an SM. Their SMs lie together, sixteen at most; on
 * an H200 seven such groups are whole, and nine SMs of the rest lie together. */
static int64_t clusters_at_once(const cuda_device *device, int64_t cluster) {
    enum { TOGETHER = 16, REST = 9 };
    if (cluster <= 2) return device->multiprocessors / cluster;
    return max64(1, (device->multiprocessors / TOGETHER - 1) * (TOGETHER / cluster) + REST / cluster);
}

static double cost_direct(const direct_costs *costs, const cuda_device *device, const cuda_candidate *c,
                          const tsr_problem *p) {
    const double waves = (double)ceil_div(c->tiles * p->batch, clusters_at_once(device, c->cluster));
    const double stages = (double)ceil_div(c->k_each, c->kernel->threads / 128 * c->kernel->tile_k);
    const int slow = !copied_by_vectors(p->a.row_stride, p->a.col_stride) +
                     !copied_by_vectors(p->b.col_stride, p->b.row_stride);
    return costs->start + (c->cluster > 1 ? costs->cluster : 0) +
           (c->cluster > 8 ? (double)(c->cluster - 8) * costs->many : 0) +
           waves * stages * (costs->stage + slow * costs->slow) + (waves - 1) * costs->wave;
}

/* Reading A, as fast as the busiest SM's thread blocks can and as fast as memory can: where the two are near each other,
 * neither is all of it. */
static double cost_vector(const vector_costs *costs, const cuda_candidate *c, const tsr_problem *p, int64_t busiest) {
    const int columns = p->n <= 2 ? 0 : p->n <= 4 ? 1 : 2;
    const bool along_m = cuda_reads_along_m(c->kernel);
    const bool aligned = along_m ? p->a.col_stride % 4 == 0 && p->m % 4 == 0 : p->a.row_stride % 4 == 0;
    const double rows = (double)cuda_vector_rows(c->kernel, c->share), resident = c->kernel->blocks;
    double rate = costs->rate[columns];
    for (int64_t share = c->share; along_m && share < 32; share *= 2) rate *= costs->narrow;
    double blocks = rows * (double)c->k_each * sizeof(float) /
                    (rate * costs->block_bytes * (aligned ? 1 : costs->unaligned));
    if ((double)busiest > resident)
        blocks = blocks * (double)busiest / resident + ((double)busiest - resident) * costs->block;
    const double memory = (double)p->batch * (double)p->m * (double)p->k * sizeof(float) / (rate * costs->bytes);
    return costs->start[columns] + (c->share > 1 && !along_m ? costs->share : 0) +
           (c->cluster > 1 ? costs->cluster : 0) + sqrt(blocks * blocks + memory * memory);
}

double cost_one_launch(const cuda_device *device, const cuda_candidate *c, const tsr_problem *p) {
    const device_costs *costs = costs_of(device);
    const int64_t busiest = ceil_div(c->tiles * c->cluster * p->batch, device->multiprocessors);
    switch (cuda_kernel_index(c->kernel)) {
    case IEEE_SMALL_16: return cost_small(&costs->small_16, c, busiest);
    case IEEE_SMALL_32: return cost_small(&costs->small_32, c, busiest);
    case IEEE_LONG_16: return cost_small(&costs->long_16, c, busiest);
    case IEEE_LONG_32: return cost_small(&costs->long_32, c, busiest);
    case DIRECT_64X32: return cost_direct(&costs->direct_64x32, device, c, p);
    case DIRECT_64X64: return cost_direct(&costs->direct_64x64, device, c, p);
    case IEEE_VECTOR_K: return cost_vector(&costs->vector_k, c, p, busiest);
    case IEEE_VECTOR_M: return cost_vector(&costs->vector_m, c, p, busiest);
    case IEEE_COLUMNS_K: return cost_vector(&costs->columns_k, c, p, busiest);
    default: return cost_vector(&costs->columns_m, c, p, busiest);
    }
}

/* ---- Everything else --------------------------------------------------------------------------------------------- */

double cost_split(const cuda_device *device, double elements, int64_t batch) {
    const device_costs *costs = costs_of(device);
    return memory_seconds(costs, device, 2 * elements * sizeof(float)) + costs->split_launches * costs->launch +
           (double)batch * costs->split_item;
}

double cost_scale(const cuda_device *device, const tsr_problem *p) {
    const device_costs *costs = costs_of(device);
    return costs->launch +
           memory_seconds(costs, device, 2 * sizeof(float) * (double)p->batch * (double)p->m * (double)p->n);
}
