/* attention.cuh: what the attention kernels share: where a head lies, which weights count, splitting into fp16.
 *
 * Names, in all of them:
 *   score   scale * q.k + mask           weight   exp(score - lse), what a value is multiplied by
 *   i, j    a query and a key            item     one (batch, head)
 */
#ifndef TESSERA_CUDA_ATTENTION_CUH
#define TESSERA_CUDA_ATTENTION_CUH

#include <cuda_fp16.h>

#include "cuda/kernels/attention_args.h"
#include "cuda/kernels/ptx.cuh"
#include "dropout.h"

constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

/* A number of rows or columns that is a type, for a generic lambda. */
template <int N> struct integral { static constexpr int value = N; };

/* ---- Heads ------------------------------------------------------------------------------------------------------- */

template <typename HEADS> __device__ inline auto head_of(const HEADS &x, int batch, int head) -> decltype(x.data) {
    return x.data + batch * x.batch_stride + head * x.head_stride;
}

/* Whether rows of it can be read or written four floats at a time. */
template <typename HEADS> __device__ inline bool in_fours(const HEADS &x, int dim) {
    return x.col_stride == 1 && dim % 4 == 0 && (uintptr_t)x.data % 16 == 0 && x.row_stride % 4 == 0 &&
           x.head_stride % 4 == 0 && x.batch_stride % 4 == 0;
}

/* The bits 4*(j % 2) + word of the numbers of a group that are below the limit (dropout.h): dropped weights. */
__device__ inline uint32_t dropped_of_group(const attention_args &g, dropout_key key, int i, int j) {
    uint32_t numbers[4], bits = 0;
    dropout_numbers(key, (uint32_t)i, (uint32_t)j, numbers);
#pragma unroll
    for (int word = 0; word < 4; word++) {
        if ((numbers[word] & 0xffff) < g.drop_below) bits |= 1u << word;
        if (numbers[word] < g.drop_below << 16) bits |= 16u << word;
    }
    return bits;
}

__device__ inline bool hidden(const attention_args &g, int i, int j) { return j >= g.keys || (g.causal && j > i); }

/* The score of a query and a key, from their dot product. What is hidden counts as masked. */
__device__ inline float score_of(const attention_args &g, float dot, int batch, int head, int i, int j) {
    if (i >= g.queries || hidden(g, i, j)) return -INFINITY;
    if (!g.mask.data) return g.scale * dot;
    return fmaf(g.scale, dot, head_of(g.mask, batch, head)[i * g.mask.row_stride + j * g.mask.col_stride]);
}

/* Where a mask makes |lse| so large that the logarithm of the sum is lost in it, minus that logarithm to base 2; else
 * 0. LANES neighbouring threads share the work. */
template <int LANES> __device__ __noinline__ float lse_shift(const attention_args &g, int batch, int head, int i) {
    const float lse = head_of(g.lse, batch, head)[i * g.lse.row_stride];
    if (!(fabsf(lse) > 65536) || isinf(lse)) return 0; /* there the sum's logarithm has two digits left */
    const int lane = (int)threadIdx.x % LANES, kv_head = head / (g.heads / g.kv_heads);
    const uint32_t together = LANES == 32 ? 0xffffffffu : 0xffffu << threadIdx.x % 32 / LANES * LANES;
    const float *q = head_of(g.q, batch, head) + i * g.q.row_stride;
    float sum = 0;
    for (int j = lane; j < g.keys; j += LANES) {
        const float *k = head_of(g.k, batch, kv_head) + j * g.k.row_stride;
        float dot = 0;
        for (int c = 0; c < g.dim; c++) dot = fmaf(q[c * g.q.col_stride], k[c * g.k.col_stride], dot);
        sum += expf(score_of(g, dot, batch, head, i, j) - lse);
    }
    for (int step = LANES / 2; step; step /= 2) sum += __shfl_xor_sync(together, sum, step);
    return -log2f(sum);
}

/* ---- Splitting --------------------------------------------------------------------------------------------------- */

constexpr int TARGET_EXPONENT = 14, EXPONENT_LIMIT = 62, ROW_RANGE = 12;

__device__ inline float power_of_two(int e) { return __uint_as_float((uint32_t)(127 + e) << 23); }
/* Of a quad. NaN does not count here: it reaches the results, where it is found. */
__device__ inline float largest_magnitude(float4 x) {
    return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
}

/* The exponent that brings the largest magnitude of a tile or row to [2^14, 2^15). */
__device__ inline int exponent_for(float largest, int limit = EXPONENT_LIMIT) {
    const int e = TARGET_EXPONENT + 127 - (int)(__float_as_uint(largest) >> 23);
    return largest == 0 ? 0 : max(-limit, min(limit, e));
}

/* Whether the split carries a tile at all, by its largest magnitude. */
__device__ inline bool carries_tile(float largest) {
    return largest == 0 || (largest < power_of_two(EXPONENT_LIMIT - TARGET_EXPONENT) && /* no score overflows */
                            largest >= power_of_two(TARGET_EXPONENT - EXPONENT_LIMIT));
}

/* The least of several positive floats, where 0 does not count: their bits, less 1, as unsigned numbers. */
struct least_nonzero {
    uint32_t bits = UINT32_MAX;
    __device__ void add(float x) { bits = min(bits, __float_as_uint(x) - 1); }
    __device__ bool is_below(float x) const { return bits + 1 < __float_as_uint(x) && bits != UINT32_MAX; }
};

/* Whether it carries the rows of a tile that a thread has quads of: quad(n) is the largest magnitude in the n-th, and
 * `smallest` knows the least of these. LANES neighbouring threads have the quads of a row, in the same order. A row
 * is rarely so small as one of its quads. */
template <int LANES, int QUADS, typename QUAD>
__device__ inline bool carries_rows(float largest, const least_nonzero &smallest, QUAD quad) {
    const float least = largest * power_of_two(-ROW_RANGE);
    if (!__any_sync(0xffffffffu, smallest.is_below(least))) return true;
    bool carries = true;
    for (int n = 0; n < QUADS; n++) {
        float row = quad(n);
        for (int lane = LANES / 2; lane; lane /= 2) row = fmaxf(row, __shfl_xor_sync(0xffffffffu, row, lane));
        carries &= row >= least || row == 0;
    }
    return carries;
}

/* x and y as a pair of fp16 components. */
__device__ inline void split_pair(float x, float y, uint32_t *hi, uint32_t *lo) {
    const __half2 h = __floats2half2_rn(x, y);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn(x - back.x, y - back.y);
    *hi = *(const uint32_t *)&h;
    *lo = *(const uint32_t *)&l;
}

/* Four columns from 4*quad on of row r, times `up`, into a block of 64 columns of hi and of lo. */
__device__ inline void store_split(uint8_t *hi, uint8_t *lo, int r, int quad, float4 x, float up) {
    uint2 h, l;
    split_pair(x.x * up, x.y * up, &h.x, &l.x);
    split_pair(x.z * up, x.w * up, &h.y, &l.y);
    const int at = r * 128 + ((quad / 2) ^ (r % 8)) * 16 + quad % 2 * 8;
    *(uint2 *)(hi + at) = h;
    *(uint2 *)(lo + at) = l;
}

#endif
