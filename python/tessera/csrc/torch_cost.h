/* torch_cost.h: how long torch takes. The only figures about torch's speed are here.
 *
 * torch_seconds estimates a product on a GPU, as tsr_plan_seconds estimates ours; the drop-in compares the two. It is
 * fitted to 600 random products on an H200 with torch 2.11 (bench/gpu/sweep.py), and scaled to other GPUs by their
 * clocks. Half of its estimates are within 12 %; for thin products and short k they are off by up to a factor of two.
 */
#pragma once

#include <tessera.h>

#include <algorithm>
#include <cmath>

namespace tessera {

struct Sizes {
    double batch, m, n, k;
};

/* A GPU, by what its driver says. */
struct Gpu {
    bool hopper = false; /* compute capability 9: there are kernels for it alone */
    double multiprocessors = 0;
    double flops = 0; /* float32 operations of a multiprocessor in a second, at most */
    double bytes = 0; /* of memory in a second, at most */
};

namespace torch_cost {

/* Its kernels: launch, the reduction where k is cut, shares of the GPU's rates. */
constexpr double LAUNCH = 2.7e-6, REDUCTION = 4.7e-6;
constexpr double LARGE_TILE = 128, LARGE_TILE_RATE = 0.69, SMALL_TILE = 32, SMALL_TILE_RATE = 0.40;
constexpr double BYTES = 0.41, VECTOR_BYTES = 0.81;
constexpr double MOST_SLICES = 32, LEAST_SLICE = 64;

/* Where the estimates are within this of each other, neither is known to be faster. */
constexpr double UNCERTAINTY = 1.1;

/* Host time of a call that Tessera takes. A GPU that is faster than this waits for the host, and longer with torch. */
constexpr double HOST = 8e-6;

/* Attention, forward and backward alike (bench/gpu/attention.py): the least length, and that of dimensions over 128,
 * and the least batch * heads * queries * keys. Shorter ones are often faster, too, but not all; the host decides. */
constexpr int64_t ATTENTION_LENGTH = 64, ATTENTION_WIDE = 128, ATTENTION_WIDE_LENGTH = 128;
constexpr double ATTENTION_SCORES = 1 << 17;
constexpr int64_t ATTENTION_HIDDEN = 8; /* times as many keys as queries: gradients of keys that no query sees cost */

/* The arithmetic of a product in square tiles: a multiprocessor computes one after the other. */
inline double tiles_seconds(const Gpu &gpu, const Sizes &s, double tile, double rate) {
    const double tiles = s.batch * std::ceil(s.m / tile) * std::ceil(s.n / tile);
    double least = INFINITY;
    for (double slices = 1; slices <= MOST_SLICES && (slices == 1 || s.k / slices >= LEAST_SLICE); slices *= 2) {
        const double waves = std::ceil(tiles * slices / gpu.multiprocessors);
        const double seconds = waves * 2 * tile * tile * s.k / slices / (gpu.flops * rate);
        least = std::min(least, slices == 1 ? seconds : seconds + REDUCTION);
    }
    return least;
}

} // namespace torch_cost

inline double torch_seconds(const Gpu &gpu, const Sizes &s) {
    using namespace torch_cost;
    const double bytes = sizeof(float) * s.batch * (s.m * s.k + s.k * s.n + s.m * s.n);
    if (std::min(s.m, s.n) == 1) return LAUNCH + bytes / (gpu.bytes * VECTOR_BYTES);
    const double arithmetic = std::min(tiles_seconds(gpu, s, LARGE_TILE, LARGE_TILE_RATE),
                                       tiles_seconds(gpu, s, SMALL_TILE, SMALL_TILE_RATE));
    return LAUNCH + std::max(arithmetic, bytes / (gpu.bytes * BYTES));
}

/* By the estimates of both. */
inline bool torch_is_faster(double tessera, double torch) {
    return tessera > torch_cost::HOST && tessera > torch_cost::UNCERTAINTY * torch;
}

/* On the CPU Tessera is as fast as torch, except for matrices with next to no width. */
inline bool tessera_is_faster_on_cpu(int64_t m, int64_t n, int64_t k) { return std::min({m, n, k}) >= 16; }

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
