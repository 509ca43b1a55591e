/* torch_cost.h: what torch runs faster than Tessera. The only figures about torch's speed are here.
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
    bool split = true, ieee = true;
};
constexpr Candidates UNPLANNED = {};

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

/* The ieee kernels on Hopper: ieee_is_faster has the rules. Seconds are torch's. */
constexpr double THIN = 8;      /* rows or columns */
constexpr double LONG_K = 1024; /* from here on k is split, which takes a second launch */
constexpr double THIN_LONG_K = 4096, THIN_LONG_WIDTH = 512;
constexpr double THIN_SECONDS = 0.8e-6, THIN_BYTES = 20e6;
constexpr double ONE_LAUNCH_SECONDS = 4e-6, ONE_LAUNCH_BYTES = 48e6;
constexpr double SPLIT_K_SECONDS = 12e-6, SPLIT_K = 2048;
constexpr double FEW_ROWS = 32, SOME_ROWS = 16, SOME_ROWS_SECONDS = 8e-6;

/* Where the ieee kernels are known to gain on other GPUs. */
constexpr double OTHER_GPU_SIDE = 1024, OTHER_GPU_SECONDS = 400e-6;

/* Attention, forward and backward alike (bench/gpu/attention.py): the least length, and that of dimensions over 128,
 * and the least batch * heads * queries * keys. Shorter ones are often faster, too, but not all; the host decides. */
constexpr int64_t ATTENTION_LENGTH = 64, ATTENTION_WIDE = 128, ATTENTION_WIDE_LENGTH = 128;
constexpr double ATTENTION_SCORES = 1 << 17;
constexpr int64_t ATTENTION_HIDDEN = 8; /* times as many keys as queries: gradients of keys that no query sees cost */

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
        /* A thin product reads the wide operand once. With a long k, splitting it makes up for the second launch only
         * if k is longer still and C so small that torch does not fill the GPU. */
        if (s.k >= LONG_K) return s.batch == 1 && s.k >= THIN_LONG_K && wide <= THIN_LONG_WIDTH;
        /* Our one launch is faster for short products whose wide operand is in the L2 cache. */
        return seconds <= THIN_SECONDS && FLOAT * s.batch * wide * s.k <= THIN_BYTES;
    }
    /* One launch of ours takes less host time than torch's. A C beyond the L2 cache is written faster by torch. */
    if (s.k < LONG_K) return seconds <= ONE_LAUNCH_SECONDS && FLOAT * s.batch * s.m * s.n <= ONE_LAUNCH_BYTES;
    /* With few rows torch takes between 0.6 and 3.9 times our time: left to torch, except larger products of some
     * rows. */
    if (narrow < FEW_ROWS) return narrow >= SOME_ROWS && seconds >= SOME_ROWS_SECONDS;
    /* Torch does not fill the GPU with a short product of long k, nor with any product where k is SPLIT_K or more. */
    return seconds <= SPLIT_K_SECONDS || s.k >= SPLIT_K;
}

inline bool tessera_is_faster_on_cuda(tsr_precision precision, bool on_hopper, Candidates candidates, const Sizes &s) {
    return (candidates.split && precision != TSR_IEEE && split_is_faster(s)) ||
           (candidates.ieee && ieee_is_faster(precision, on_hopper, s));
}

/* On the CPU Tessera is as fast as torch, except for matrices with next to no width. */
inline bool tessera_is_faster_on_cpu(const Sizes &s) { return std::min({s.m, s.n, s.k}) >= 16; }

/* There are kernels for tensor cores on Hopper alone. Few scores leave most of its SMs without work. */
inline bool tessera_attention_is_faster(bool on_hopper, int64_t heads, int64_t queries, int64_t keys, int64_t dim,
                                        bool causal) {
    if (causal && keys > torch_cost::ATTENTION_HIDDEN * queries) return false;
    if (causal) keys = std::min(keys, queries); /* no query sees more */
    const double scores = static_cast<double>(heads) * static_cast<double>(queries) * static_cast<double>(keys);
    const int64_t least = dim > torch_cost::ATTENTION_WIDE ? torch_cost::ATTENTION_WIDE_LENGTH
                                                           : torch_cost::ATTENTION_LENGTH;
    return on_hopper && std::min(queries, keys) >= least && scores >= torch_cost::ATTENTION_SCORES;
}

} // namespace tessera
