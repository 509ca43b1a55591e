/* cost.c: estimates from a table of measured constants.
 *
 * The estimate is crude: a rate for each kernel, the busiest SM's share of the work, bytes through device memory, a
 * time for each launch. But it knows what matters to a choice: how well the tiles fill the GPU, and what split-K, a
 * stream-K tail or packing costs.
 */
#include "cuda/cost.h"

#include <stdlib.h>

/* ---- Measured constants ------------------------------------------------------------------------------------------ */

/* What differs between kernels besides their rates. */
typedef struct kernel_overheads {
    double pipeline_k; /* filling a thread block's pipeline and writing its tile, as terms of k */
    double start;      /* seconds from the end of the kernel before it to its work */
    double reduce;     /* seconds from its end to the work of ieee_reduce, launched early */
} kernel_overheads;

typedef struct device_costs {
    int capability;
    double clock;              /* Hz, under load */
    double bytes_per_cycle;    /* of device memory, for each SM */
    double launch;             /* seconds from the end of one kernel to the work of the next */
    double split_launches;     /* what packing and recomputing, three kernels, cost a small product, in launches */
    double single_block_stall; /* stall cycles per busy cycle with one resident thread block */
    kernel_overheads ieee_mma, ieee_short_k, other;
    double rates[CUDA_KERNELS];        /* multiply-adds per SM and cycle, all SMs full; not of thin kernels */
    double thin_k_bytes, thin_m_bytes; /* what a thread block of a thin kernel reads in a cycle */
} device_costs;

#define H200_CLOCK 1.755e9

/* One row for each device that was measured.
 *
 * H200: estimated over measured time, for 53 products of bench/results/h200.json and 8 of other shapes:
 *
 *   ieee tiles   1.05 to 1.14; 256 cubed 1.22, 200704 x 384 x 96 1.30
 *   fp32 split   0.94 to 1.11; 1024 cubed 1.36, 12544 x 384 x 1536 0.71
 *   tf32 split   1.10 to 1.31
 *   thin         0.90 to 1.08, of three products */
static const device_costs measured[] = {{
    .capability = 90,
    .clock = H200_CLOCK,
    .bytes_per_cycle = 16,
    .launch = 4000 / H200_CLOCK,
    .split_launches = 5,
    .single_block_stall = 0.6,
    .other = {.pipeline_k = 48, .start = 4000 / H200_CLOCK, .reduce = 2000 / H200_CLOCK},
    .ieee_mma = {.pipeline_k = 64, .start = 6000 / H200_CLOCK, .reduce = 4000 / H200_CLOCK},
    .ieee_short_k = {.pipeline_k = 16, .start = 6000 / H200_CLOCK, .reduce = 0},
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

/* Every tile in `slices` slices of k. */
static double cost_slices(const device_costs *costs, const cuda_device *device, const cuda_candidate *c,
                          const tsr_problem *p) {
    const cuda_kernel *kernel = c->kernel;
    const kernel_overheads overheads = overheads_of(costs, kernel);
    const double area = (double)kernel->tile_m * kernel->tile_n;
    const int64_t busiest = ceil_div(c->tiles * c->slices * p->batch, device->multiprocessors);
    const double cycles = area * cycles_for_blocks(costs, device, kernel, busiest) *
                          ((double)c->k_per_slice + overheads.pipeline_k);
    double seconds = overheads.start + cycles / costs->clock;
    if (c->slices > 1)
        seconds += costs->launch + partial_seconds(costs, device, (double)(p->batch * c->slices * p->m * p->n));
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

double cost_multiply(const cuda_device *device, const cuda_candidate *c, const tsr_problem *p) {
    const device_costs *costs = costs_of(device);
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
    const double of_blocks = resident *
                             (c->kernel == &cuda_kernels[IEEE_THIN_K] ? costs->thin_k_bytes : costs->thin_m_bytes);
    const double of_memory = costs->bytes_per_cycle * device->multiprocessors;
    const double bytes_per_cycle = of_blocks < of_memory ? of_blocks : of_memory;
    return costs->launch + elements * sizeof(float) / (bytes_per_cycle * costs->clock) +
           (c->tail_blocks ? costs->other.reduce : 0);
}

/* ---- Everything else --------------------------------------------------------------------------------------------- */

double cost_split(const cuda_device *device, double elements) {
    const device_costs *costs = costs_of(device);
    return memory_seconds(costs, device, 2 * elements * sizeof(float)) + costs->split_launches * costs->launch;
}

double cost_scale(const cuda_device *device, const tsr_problem *p) {
    const device_costs *costs = costs_of(device);
    return costs->launch +
           memory_seconds(costs, device, 2 * sizeof(float) * (double)p->batch * (double)p->m * (double)p->n);
}
