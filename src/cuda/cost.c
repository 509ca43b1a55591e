/* cost.c: estimates from a table of measured constants.
 *
 * The estimate is crude: a rate for each kernel, the busiest SM's share of the work, bytes through device memory, a
 * time for each launch. But it knows what matters to a choice: how well the tiles fill the GPU, and what split-K, a
 * stream-K tail or packing costs.
 */
#include "cuda/cost.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

/* ---- Measured constants ------------------------------------------------------------------------------------------ */

/* Of kernels that compute tiles, from operands in place or packed ones. */
typedef struct tile_costs {
    double rate;       /* multiply-adds per SM and cycle, all SMs full */
    double pipeline_k; /* filling a thread block's pipeline and writing its tile, as terms of k */
    double start;      /* seconds from the end of the kernel before it to its work */
    double reduce;     /* seconds from its end to the work of the kernel that adds up partial sums, launched early */
    double stall;      /* stall cycles per busy cycle with one resident thread block */
    double slow;       /* added share of its time for each operand that is copied by single floats */
    double edge;       /* the same for each of these if the matrix has fewer lines than a tile */
    double ragged;     /* added share of pipeline_k where C is written by single floats */
    double cluster;    /* seconds added where thread blocks of a cluster add up their sums; 0: they cannot */
} tile_costs;

/* Of the kernel for short k. Seconds, of a thread block that has an SM to itself; a step is eight terms. */
typedef struct short_costs {
    double start, tile, step;
    double unaligned; /* added share of a tile and of memory where rows of C are not of sixteen bytes */
    double slow;      /* of a step, more for each operand that is copied by single floats */
    double memory;    /* reading and writing everything once, in times of product_seconds */
} short_costs;

/* Of kernels in one launch. Seconds and bytes. */
typedef struct small_costs {
    double start;           /* with one thread block on an SM, before its first stage */
    double cluster, many;   /* more, where blocks add up their sums; for each of these beyond eight */
    double stage, together; /* a stage of `together` blocks on an SM at the same time */
    double slow;            /* of a stage, more for each operand that is copied by single floats */
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
    double unaligned;      /* added share of a tile's time for each operand whose lines begin anywhere */
    double ragged;         /* the same where rows of C do */
} warp_costs;

/* Of kernels for few columns that run on every GPU. */
typedef struct thin_costs {
    double start, reduce;  /* as of tiles */
    double block;          /* seconds of a thread block, besides what it reads */
    double block_bytes[3]; /* that a thread block reads in a cycle, by columns: 1 or 2, up to 4, up to 8 */
    double memory;         /* of bytes_per_cycle */
    double across;         /* what is left of block_bytes where the long operand's rows are neighbours; of thin_k */
    double unaligned;      /* the same where its lines begin anywhere */
} thin_costs;

typedef struct vector_costs {
    double start[3], rate[3]; /* by columns: 1 or 2, up to 4, up to 8; how fast A is read */
    double share;             /* more, where warps along k add up their sums */
    double cluster, many;     /* more, where thread blocks do; for each of these beyond eight */
    double block;             /* for each thread block on an SM beyond those that are resident */
    double block_bytes;       /* of A that a thread block reads in a second */
    double bytes;             /* that all of them do */
    double unaligned;         /* what is left of block_bytes where A is read by single floats */
    double narrow;            /* what is left of the rates with half as many rows side by side */
} vector_costs;

/* Of a TF32 kernel, by how it reads: A along k, A across k, and with B turned. */
typedef struct tf32_costs {
    double start, cluster; /* seconds: of any launch, and more, where blocks add up their sums */
    double rate[3];        /* multiply-adds of an SM in a cycle */
    double pipeline_k[3];  /* what a tile costs beside multiplying, as terms of k */
    double odd_k;          /* more, where C cannot be written by vectors */
} tf32_costs;

/* From bytes_per_cycle on, everything is a double that `tessera tune` fits; 0: the kernel has no such constant. */
struct device_costs {
    const char *name;
    int capability;
    int clusters[MAX_CLUSTER]; /* of 1, 2, .. thread blocks, one block on an SM, how many have a place at once */
    double clock;              /* Hz, under load */
    double bytes_per_cycle;    /* of device memory, for each SM */
    double launch;             /* seconds from the end of one kernel to the work of the next */
    double late;               /* seconds more for a call too long to begin early, by ieee_mma, long, direct kernels */
    double split_launches;     /* what packing and recomputing, three kernels, cost a small product, in launches */
    double split_item;         /* the same for each product of a batch, in seconds */
    double segment;            /* seconds for each segment of a tile, or slice, that is added up */
    double short_stall;        /* as of tiles, of the kernels for short k */
    double cached;             /* reading and writing everything once, in times of product_seconds: L2 has a part */
    tile_costs tile[CUDA_KERNELS];
    short_costs short_64, short_96;
    tf32_costs tf32_128x256, tf32_128x128, tf32_64x64;
    double tf32_reduce;  /* seconds from a TF32 kernel's end to the work of ieee_reduce */
    double tf32_copy;    /* seconds from the end of tf32_copy to its work */
    double tf32_writing; /* of bytes_per_cycle, for C */
    small_costs small_16, small_32, long_16, long_32;
    direct_costs direct_64x32, direct_64x64;
    warp_costs warp[IEEE_WARP_32X64 - IEEE_WARP_16X16 + 1];
    vector_costs vector_k, vector_m, columns_k, columns_m;
    thin_costs thin_k, thin_m;
};

/* One row for each device that was measured.
 *
 * H200: fitted to 3,091 times of 450 random products (bench/gpu/sweep.py), each kernel with the cluster, share and
 * slices that an earlier fit took for its best. That fit was to 18,000 times of 478 products, with all of these. From
 * there are the rates of ieee_mma; `slow` of these, split_fp32_sm90 and what vector kernels have besides `start` are
 * within a few percent of it. The standard deviation of estimates, where a kernel is within 1.25 x of the fastest:
 *
 *   split_fp32_sm90   4 %
 *   ieee_mma          6 % to 9 %, 64 x 64 12 %; for short k 9 %, of up to 96 terms 8 %
 *   small, long       4 % to 6 %
 *   direct            6 %
 *   warp              7 %
 *   vector            13 % to 16 %
 *   columns           11 %
 *   tf32              7 %, mean deviation for 251 products and kernels of the models of bench/pytorch/models.py
 *
 * The chosen kernel takes 1.2 % longer than the fastest on average, 1.4 % for products that were not fitted to.
 *
 * ieee_tile, thin and the mma_sm80 kernels by `tessera tune`, as Ampere has them: 6 % to 15 %. tf32 split: estimated
 * over measured time 0.9 to 1.1, of the products of models. */
static const device_costs measured[] = {{
    .name = "NVIDIA H200",
    .capability = 90,
    .clusters = {132, 66, 38, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7},
    .clock = 1.755e9,
    .bytes_per_cycle = 16,
    .launch = 2.28e-6,
    .late = 1.37e-6,
    .split_launches = 2.5,
    .split_item = 0.05e-6,
    .segment = 0.0123e-6,
    .short_stall = 0.784,
    .cached = 0.637,
    .tile =
        {/* rate, pipeline_k, start, reduce, stall, slow, edge, ragged, cluster */
         [IEEE_MMA_64X128] = {140, 71.9, 2.79e-6, 3.74e-6, 1.08, 0.005, 0.418, 0.0108},
         [IEEE_MMA_64X64] = {140, 82.4, 1.72e-6, 4.02e-6, 0.971, 0.00502, 0.374, 0.0131},
         [IEEE_MMA_32X64] = {124, 150, 1.58e-6, 3.94e-6, 0.871, 0.05, 0.295, 0.0107},
         [IEEE_MMA_32X32] = {104, 203, 1.33e-6, 3.33e-6, 1.2, 0.0509, 0.164, 0.0107},
         [IEEE_TILE_128X128] = {114, 64, 2.1e-6, 2e-6, 1.7, 0.03, 0.05, 1.2},
         [IEEE_TILE_128X64] = {108, 49, 2.2e-6, 2e-6, 2.3, 0.03, 0.05, 1.1},
         [IEEE_TILE_64X64] = {97, 39, 2.6e-6, 2e-6, 2.2, 0.05, 0.05, 1.1},
         [SPLIT_FP32_SM90] = {642, 255, 2.28e-6, 4.1e-6, 1.25, .cluster = 3e-6},
         [SPLIT_FP32_SM90_T128] = {500, 48, 2.28e-6, 2.28e-6, 1.25},
         [SPLIT_TF32_SM90] = {1700, 540, 2.28e-6, 2.28e-6, 1.25},
         [SPLIT_FP32_MMA_SM80] = {330, 420, 2.4e-6, 3e-6, 1.6},
         [SPLIT_TF32_MMA_SM80] = {1000, 700, 1.8e-6, 3e-6, 1.6}},
    .short_64 =
        {.start = 1.58e-6, .tile = 0.175e-6, .step = 0.135e-6, .unaligned = 0.514, .slow = 0.0246, .memory = 1.08},
    .short_96 =
        {.start = 1.28e-6, .tile = 0.337e-6, .step = 0.184e-6, .unaligned = 0.341, .slow = 0.0614, .memory = 1.1},
    .small_16 = {1.13e-6, .cluster = 0.391e-6, 0.065e-6, 0.294e-6, .together = 2.42, .slow = 0.0567, .block = 0.121e-6},
    .small_32 = {1.5e-6, .cluster = 0.427e-6, 0, 0.756e-6, .together = 2.15, .slow = 0.032, .block = 0.2e-6},
    .long_16 = {1.4e-6, .cluster = 0.469e-6, 0.0431e-6, 0.502e-6, .together = 1.17, .slow = 0.0566, .block = 0.653e-6},
    .long_32 = {1.31e-6, .cluster = 0.53e-6, 0.0389e-6, 0.77e-6, .together = 1.17, .slow = 0.0386, .block = 0.641e-6},
    .tf32_128x256 = {1.9e-6, 3.3e-6, {942, 936, 618}, {213, 246, 105}, 300},
    .tf32_128x128 = {4.4e-6, 2.0e-6, {924, 765, 540}, {180, 172, 47}, 300},
    .tf32_64x64 = {2.8e-6, 2.5e-6, {446, 476, 349}, {21, 23, 14}, 280},
    .tf32_reduce = 2.5e-6,
    .tf32_copy = 0.7e-6,
    .tf32_writing = 0.75,
    .direct_64x32 =
        {.start = 2.45e-6, .cluster = 0.489e-6, .many = 0.071e-6, .stage = 1.48e-6, .slow = 0.072e-6, .wave = 2.74e-6},
    .direct_64x64 =
        {.start = 2.78e-6, .cluster = 0.55e-6, .many = 0.101e-6, .stage = 1.65e-6, .slow = 0.0688e-6, .wave = 3.29e-6},
    .warp = {[IEEE_WARP_16X16 - IEEE_WARP_16X16] = {1.11e-6, 0.144e-6, 0.0548e-6, 0.0156e-6, 0.0352, 0.0749},
             [IEEE_WARP_16X32 - IEEE_WARP_16X16] = {1.44e-6, 0.156e-6, 0.0616e-6, 0.0258e-6, 0.0168, 0.0667},
             [IEEE_WARP_32X32 - IEEE_WARP_16X16] = {1.82e-6, 0.2e-6, 0.103e-6, 0.0402e-6, 0.0534, 0.0291},
             [IEEE_WARP_32X64 - IEEE_WARP_16X16] = {2.17e-6, 0.283e-6, 0.203e-6, 0.0828e-6, 0.0301, 0.0925}},
    .vector_k = {.start = {1.03e-6},
                 .rate = {1},
                 .share = 0.27e-6,
                 .cluster = 0.55e-6,
                 .many = 0.065e-6,
                 .block = 0.25e-6,
                 .block_bytes = 55.4e9,
                 .bytes = 4.49e12,
                 .unaligned = 0.7,
                 .narrow = 1},
    .vector_m = {.start = {1.31e-6},
                 .rate = {1},
                 .cluster = 0.54e-6,
                 .many = 0.061e-6,
                 .block = 1.25e-6,
                 .block_bytes = 108e9,
                 .bytes = 4.39e12,
                 .unaligned = 0.39,
                 .narrow = 0.895},
    .columns_k = {.start = {1.31e-6, 1.55e-6, 2.3e-6},
                  .rate = {1.03, 0.678, 0.558},
                  .share = 0.598e-6,
                  .cluster = 0.476e-6,
                  .many = 0.0504e-6,
                  .block = 1.8e-6,
                  .block_bytes = 59.1e9,
                  .bytes = 6.04e12,
                  .unaligned = 0.905,
                  .narrow = 1},
    .columns_m = {.start = {1.25e-6, 1.35e-6, 2.12e-6},
                  .rate = {1.04, 0.834, 0.688},
                  .cluster = 0.484e-6,
                  .many = 0.0474e-6,
                  .block = 1.83e-6,
                  .block_bytes = 40.9e9,
                  .bytes = 4.48e12,
                  .unaligned = 0.945,
                  .narrow = 0.944},
    .thin_k = {.start = 2.5e-6,
               .reduce = 1.9e-6,
               .block = 0.5e-6,
               .block_bytes = {10, 3.5, 1.8},
               .memory = 0.75,
               .across = 0.7,
               .unaligned = 0.92},
    .thin_m = {.start = 1.9e-6,
               .reduce = 3e-6,
               .block = 0.5e-6,
               .block_bytes = {18, 13, 6.5},
               .memory = 0.86,
               .unaligned = 0.7},
}};

/* Every constant, named as above, in the order of the struct. */
/* clang-format off */
#define TILE(X, of) \
    X(of.rate) X(of.pipeline_k) X(of.start) X(of.reduce) X(of.stall) X(of.slow) X(of.edge) X(of.ragged) \
    X(of.cluster)
#define SHORT(X, of) X(of.start) X(of.tile) X(of.step) X(of.unaligned) X(of.slow) X(of.memory)
#define THIN(X, of)                                                                                      \
    X(of.start) X(of.reduce) X(of.block) X(of.block_bytes[0]) X(of.block_bytes[1]) X(of.block_bytes[2])   \
    X(of.memory) X(of.across) X(of.unaligned)
#define SMALL(X, of) \
    X(of.start) X(of.cluster) X(of.many) X(of.stage) X(of.together) X(of.slow) X(of.block)
#define DIRECT(X, of) X(of.start) X(of.cluster) X(of.many) X(of.stage) X(of.slow) X(of.wave)
#define WARP(X, of) X(of.start) X(of.latency) X(of.tile) X(of.step) X(of.unaligned) X(of.ragged)
#define VECTOR(X, of)                                                                                          \
    X(of.start[0]) X(of.start[1]) X(of.start[2]) X(of.rate[0]) X(of.rate[1]) X(of.rate[2]) X(of.share)        \
    X(of.cluster) X(of.many) X(of.block) X(of.block_bytes) X(of.bytes) X(of.unaligned) X(of.narrow)
#define TF32(X, of)                                                                                       \
    X(of.start) X(of.cluster) X(of.rate[0]) X(of.rate[1]) X(of.rate[2]) X(of.pipeline_k[0])                \
    X(of.pipeline_k[1]) X(of.pipeline_k[2]) X(of.odd_k)
#define TILES(id, ...) TILE(CONSTANT, tile[id])
#define CONSTANT(member) {#member, offsetof(device_costs, member)},
static const struct {
    const char *name;
    size_t offset;
} constants[] = {
    CONSTANT(bytes_per_cycle) CONSTANT(launch) CONSTANT(late) CONSTANT(split_launches) CONSTANT(split_item)
    CONSTANT(segment) CONSTANT(short_stall) CONSTANT(cached)
    CUDA_KERNEL_LIST(TILES)
    SHORT(CONSTANT, short_64) SHORT(CONSTANT, short_96)
    TF32(CONSTANT, tf32_128x256) TF32(CONSTANT, tf32_128x128) TF32(CONSTANT, tf32_64x64)
    CONSTANT(tf32_reduce) CONSTANT(tf32_copy) CONSTANT(tf32_writing)
    SMALL(CONSTANT, small_16) SMALL(CONSTANT, small_32) SMALL(CONSTANT, long_16) SMALL(CONSTANT, long_32)
    DIRECT(CONSTANT, direct_64x32) DIRECT(CONSTANT, direct_64x64)
    WARP(CONSTANT, warp[0]) WARP(CONSTANT, warp[1]) WARP(CONSTANT, warp[2]) WARP(CONSTANT, warp[3])
    VECTOR(CONSTANT, vector_k) VECTOR(CONSTANT, vector_m) VECTOR(CONSTANT, columns_k) VECTOR(CONSTANT, columns_m)
    THIN(CONSTANT, thin_k) THIN(CONSTANT, thin_m)
};
/* clang-format on */
enum { CONSTANTS = sizeof constants / sizeof *constants };
_Static_assert(CONSTANTS * sizeof(double) == sizeof(device_costs) - offsetof(device_costs, bytes_per_cycle),
               "every constant of device_costs is in the list");

const char *cost_constant_name(int i) { return i < CONSTANTS ? constants[i].name : NULL; }
double *cost_constant(device_costs *costs, int i) { return (double *)((char *)costs + constants[i].offset); }
const char *cost_measured_on(const device_costs *costs) { return costs->name; }

/* The nearest device's, by compute capability. Its rates are adapted: the H200 has 128 float32 units on an SM and 1024
 * of mma's fp16 multiply-adds a cycle. */
device_costs *cost_table(const cuda_device *device) {
    const int capability = device->planned_capability;
    const device_costs *nearest = &measured[0];
    for (size_t i = 1; i < sizeof measured / sizeof *measured; i++)
        if (abs(measured[i].capability - capability) < abs(nearest->capability - capability)) nearest = &measured[i];
    device_costs *costs = malloc(sizeof *costs);
    if (!costs) return NULL;
    *costs = *nearest;
    const bool few_float32_units = capability <= 80; /* 64 of them */
    const bool for_graphics = capability / 10 == 12 ||
                              (capability > 80 && capability < 90); /* a quarter of mma's rate */
    for (int i = 0; i < CUDA_KERNELS; i++) {
        if (cuda_kernels[i].family != FAMILY_SPLIT && few_float32_units) costs->tile[i].rate /= 2;
        if (cuda_kernels[i].module == MODULE_SPLIT_MMA_SM80 && for_graphics) costs->tile[i].rate /= 4;
    }
    return costs;
}

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

static double cost_short(const device_costs *costs, const cuda_device *device, const cuda_candidate *c,
                         const tsr_problem *p) {
    const short_costs *of = c->kernel == &cuda_kernels[IEEE_MMA_SHORT_K] ? &costs->short_64 : &costs->short_96;
    const int64_t busiest = ceil_div(c->tiles * p->batch, device->multiprocessors);
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
    if ((double)busiest > resident)
        blocks = blocks * (double)busiest / resident + ((double)busiest - resident) * costs->block;
    const double memory = (double)p->batch * (double)p->m * (double)p->k * sizeof(float) / (rate * costs->bytes);
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
