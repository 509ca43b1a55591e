/* torch_cost.h: which products torch runs faster than Tessera. The only figures about torch's speed are here.
 *
 * They come from whole calls, host time included, on an H200 with torch 2.11 (bench/pytorch/compare.py). The host and
 * torch's choice of kernel decide how long a small product takes, and tsr_plan_seconds, an estimate of GPU time, knows
 * neither. So these rules name the regions that were measured instead: each compares the time that torch would take at
 * its full rate with a limit in seconds.
 */
#pragma once

#include <tessera.h>

#include <algorithm>

namespace tessera {

struct Sizes {
    double batch, m, n, k;
};

/* What a plan may do: both until the product is planned, one of them afterwards. */
struct Candidates {
    bool split, ieee;
};

namespace torch_cost {

constexpr double FLOPS = 50e12; /* float32 operations a second of torch's kernels that fill the GPU */
constexpr double FLOAT = sizeof(float);

/* Splitting pays if torch's time is at least so long for each element that has to be packed. The shorter k is, the more
 * the launches and the epilogue add to packing. */
struct Packing {
    double least_k, seconds_per_element, least_seconds;
};
constexpr Packing packing[] = {
    {16384, 2.4e-12, 0}, {4096, 4e-12, 0}, {1024, 9e-12, 0}, {256, 14e-12, 32e-6}, {128, 24e-12, 32e-6}};

/* The ieee kernels on Hopper. */
constexpr double THIN = 8;                  /* up to so many rows or columns, a product reads the other operand once */
constexpr double THIN_SECONDS = 0.8e-6;     /* up to which one launch of ours is the faster one, */
constexpr double THIN_BYTES = 20e6;         /* if the operand is in the L2 cache, too; */
constexpr double THIN_K = 4096;             /* from which on split-K makes up for its second launch, */
constexpr double THIN_WIDTH = 512;          /* if C is so small that torch does not fill the GPU */
constexpr double LONG_K = 1024;             /* from which on k is split, which takes a second launch */
constexpr double ONE_LAUNCH_SECONDS = 4e-6; /* up to which one launch of ours takes less host time than torch's */
constexpr double ONE_LAUNCH_BYTES = 48e6;   /* a C beyond the L2 cache is written faster by torch */
constexpr double SPLIT_K_SECONDS = 12e-6;   /* up to which torch does not fill the GPU with a long k, */
constexpr double SPLIT_K = 2048;            /* nor from this k on */
constexpr double FEW_ROWS = 32;             /* below, torch's times vary from 0.6 to 3.9 of ours, */
constexpr double SOME_ROWS = 16;            /* except with as many rows in products */
constexpr double SOME_ROWS_SECONDS = 8e-6;  /* as large as this */

/* Where the ieee kernels are known to gain on other GPUs. */
constexpr double OTHER_GPU_SIDE = 1024, OTHER_GPU_SECONDS = 400e-6;

} // namespace torch_cost

/* The least time torch may take for it: with every SM busy, and operands that cost nothing to read. */
inline double torch_seconds(const Sizes &s) { return 2 * s.batch * s.m * s.n * s.k / torch_cost::FLOPS; }

inline bool split_is_faster(const Sizes &s) {
    const double seconds = torch_seconds(s), elements = s.batch * (s.m + s.n) * s.k;
    for (const torch_cost::Packing &cost : torch_cost::packing)
        if (s.k >= cost.least_k) return seconds >= elements * cost.seconds_per_element && seconds >= cost.least_seconds;
    return false;
}

inline bool ieee_is_faster(tsr_precision precision, bool on_hopper, const Sizes &s) {
    using namespace torch_cost;
    const double narrow = std::min(s.m, s.n), wide = std::max(s.m, s.n), seconds = torch_seconds(s);
    if (!on_hopper) return precision == TSR_IEEE && narrow >= OTHER_GPU_SIDE && seconds >= OTHER_GPU_SECONDS;
    if (precision == TSR_TF32) return false;
    if (narrow <= THIN) {
        if (s.k >= LONG_K) return s.batch == 1 && s.k >= THIN_K && wide <= THIN_WIDTH;
        return seconds <= THIN_SECONDS && FLOAT * s.batch * wide * s.k <= THIN_BYTES;
    }
    if (s.k < LONG_K) return seconds <= ONE_LAUNCH_SECONDS && FLOAT * s.batch * s.m * s.n <= ONE_LAUNCH_BYTES;
    if (narrow < FEW_ROWS) return narrow >= SOME_ROWS && seconds >= SOME_ROWS_SECONDS;
    return seconds <= SPLIT_K_SECONDS || s.k >= SPLIT_K;
}

inline bool tessera_is_faster_on_cuda(tsr_precision precision, bool on_hopper, Candidates candidates, const Sizes &s) {
    return (candidates.split && precision != TSR_IEEE && split_is_faster(s)) ||
           (candidates.ieee && ieee_is_faster(precision, on_hopper, s));
}

/* On the CPU Tessera is as fast as torch, except for matrices with next to no width. */
inline bool tessera_is_faster_on_cpu(const Sizes &s) { return std::min({s.m, s.n, s.k}) >= 16; }

} // namespace tessera
