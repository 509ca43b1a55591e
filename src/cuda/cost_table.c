/* cost_table.c: the measured constants of the cost model, a row for each device, and their names. */
#include "cuda/cost_table.h"

#include <stddef.h>
#include <stdlib.h>

/* One row for each device that was measured.
 *
 * H200: fitted to 3,091 times of 450 random products (bench/gpu/sweep.py), each kernel with the cluster, share and
 * slices that an earlier fit took for its best. That fit was to 18,000 times of 478 products, with all of these. From
 * there are the rates of ieee_mma; `slow` of these, split_fp32_sm90 and what vector kernels have besides `start` are
 * within a few percent of it. The standard deviation of estimates, where a kernel is within 1.25 x of the fastest:
 *
 *   split_fp32_sm90   4 %
 *   ieee_mma          6 % to 9 %
 *   small, long       4 % to 6 %
 *   direct            6 %
 *   warp              7 %
 *   vector            13 % to 16 %
 *   columns           11 %
 *   tf32              7 %, mean deviation for 251 products and kernels of the models of bench/pytorch/models.py
 *
 * The chosen kernel took 1.2 % longer than the fastest on average, 1.4 % for products that were not fitted to.
 *
 * Later, with faster stores of unaligned rows of C: `step` and `unaligned` of short_64 and pipeline_k of 64 x 64 were
 * fitted to 75 more products of short or medium k, 30 of them near where torch is ahead; 64 x 128 was not measured and
 * has the same ratio. Deviation in these: short k 8 %, of up to 96 terms 6 %, 64 x 64 10 % and 7 % too long, warp 7 %
 * to 8 %. The kernel chosen of those measured takes 3.4 % longer than the fastest for the 30, where it took 8.5 %, and
 * 1.0 % for the others, where it took 1.5 %; for products left out of the fit 3.9 % and 1.0 %.
 *
 * `idle` of vector_k was fitted to cuts of 14 vectors of 3 MB to 1.8 GB: the chosen cut takes 1.5 % longer than the
 * fastest, not 2.4 %, and estimates deviate by 7 %. `unaligned` and `narrow` of vector_m, with three thread blocks on
 * an SM, were moved part of the way to what 12 vectors of 20 MB to 1.3 GB asked for: estimates deviate by 16 % and are
 * 9 % too long.
 *
 * Wide kernels: by hand, from 10 products with each kernel forced and 39 of a sweep of 720 in which they were chosen.
 * Estimates of these 39 deviate by 7 %.
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
         [IEEE_MMA_64X128] = {140, 59.3, 2.79e-6, 3.74e-6, 1.08, 0.005, 0.418, 0.0108},
         [IEEE_MMA_64X64] = {140, 68, 1.72e-6, 4.02e-6, 0.971, 0.00502, 0.374, 0.0131},
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
        {.start = 1.58e-6, .tile = 0.175e-6, .step = 0.16e-6, .unaligned = 0.35, .slow = 0.0246, .memory = 1.08},
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
    .direct_128x64 = {2.6e-6, .cluster = 1e-6, .many = 0.1e-6, .stage = 0.9e-6, .slow = 0.14e-6, .tile = 1.8e-6,
                      .memory = 1, .slice = 0.2e-6, .ragged = 2.7e-6, .item = 3e-6},
    .direct_128x96 = {2.6e-6, .cluster = 1e-6, .many = 0.1e-6, .stage = 1.2e-6, .slow = 0.24e-6, .tile = 2.1e-6,
                      .memory = 1, .slice = 0.2e-6, .ragged = 4e-6, .item = 3e-6},
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
                 .narrow = 1,
                 .idle = 0.3},
    .vector_m = {.start = {1.31e-6},
                 .rate = {1},
                 .cluster = 0.54e-6,
                 .many = 0.061e-6,
                 .block = 1.25e-6,
                 .block_bytes = 108e9,
                 .bytes = 4.39e12,
                 .unaligned = 0.5,
                 .narrow = 0.87},
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
#define WIDE(X, of)                                                                                       \
    X(of.start) X(of.cluster) X(of.many) X(of.stage) X(of.slow) X(of.tile) X(of.memory) X(of.slice)        \
    X(of.ragged) X(of.item)
#define WARP(X, of) X(of.start) X(of.latency) X(of.tile) X(of.step) X(of.unaligned) X(of.ragged)
#define VECTOR(X, of)                                                                                          \
    X(of.start[0]) X(of.start[1]) X(of.start[2]) X(of.rate[0]) X(of.rate[1]) X(of.rate[2]) X(of.share)        \
    X(of.cluster) X(of.many) X(of.block) X(of.block_bytes) X(of.bytes) X(of.unaligned) X(of.narrow) X(of.idle)
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
    WIDE(CONSTANT, direct_128x64) WIDE(CONSTANT, direct_128x96)
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
