/* split_direct.cuh: how the direct kernels (split_direct.cu, split_direct_wide.cu) split what they multiply, a stage of
 * STAGE_K terms at a time, and what they do where that cannot be done.
 *
 * An element is split into hi + lo, both tf32: 11 significant bits each and float32's range, so that nothing has to be
 * scaled. Tensor cores compute lo*hi + hi*lo + hi*hi of a stage, from zero, hi*hi of its second half apart, and both
 * sums are added to float32 registers (docs/internals/numerics.md). What cannot be split is multiplied by fma instead:
 * a stage with an element so small that lo, or a product with it, would underflow; everything, if a sum is not finite
 * or k is short.
 *
 * A stage has the order of global memory. A "line" is an index of m for A and of n for B:
 *
 *     terms of k are neighbours:    of A [lines][STAGE_K], permuted (stage_term), of B [lines][STAGE_K + 4]
 *     lines are neighbours:         [STAGE_K][lines + 4]
 *
 * A's components stay in registers. B's go to shared memory as rows of 128 bytes, swizzled, for wgmma. Of eight terms
 * the even ones come first there, so that a thread finds its two terms of A beside each other.
 */
#pragma once

#include "cuda/kernels/ieee/ieee_stage.cuh"
#include "cuda/kernels/mma.cuh"

constexpr int STAGE_K = 32, STEPS = STAGE_K / 8; /* terms of a stage, products along it */
constexpr int WARPGROUP = 128;
constexpr int LEAST_K = 64; /* docs/internals/numerics.md */

/* How an operand's lines of a stage lie in shared memory, so that a warp's loads find all banks. */
template <int LINES_OF_TILE, int PADDING> struct stage_layout {
    static constexpr int LINES = LINES_OF_TILE, K_PITCH = STAGE_K + PADDING, LINE_PITCH = LINES + 4;
    static constexpr int BY_LINES = LINES * K_PITCH, BY_TERMS = STAGE_K * LINE_PITCH;
    static constexpr int FLOATS = BY_LINES > BY_TERMS ? BY_LINES : BY_TERMS;

    static __device__ __forceinline__ int at(bool along_k, int line, int term) {
        return along_k ? line * K_PITCH + (PADDING ? term : stage_term(line, term)) : term * LINE_PITCH + line;
    }
};
template <int M> using stage_layout_a = stage_layout<M, 0>;
template <int N> using stage_layout_b = stage_layout<N, 4>;

/* An element's components. Tensor cores read the upper 19 bits of each. */
struct components {
    uint32_t hi, lo;
    __device__ __forceinline__ components() {}
    __device__ __forceinline__ components(float x)
        : hi((__float_as_uint(x) + 0x1000) & 0xffffe000u) /* to nearest */,
          lo(__float_as_uint(x - __uint_as_float(hi))) {}
};

/* The least magnitude of what was split: twice the bits of a float, which drops the sign, less 1, so that zeros do not
 * count. */
struct least_magnitude {
    uint32_t bits = ~0u;
    __device__ __forceinline__ bool is_below(int exponent) const { return bits < 2u * ((127u + exponent) << 23) - 1; }
    __device__ __forceinline__ void add(float x, float y) {
        bits = __vimin3_u32(bits, 2 * __float_as_uint(x) - 1, 2 * __float_as_uint(y) - 1);
    }
};

/* What a thread has of a warpgroup's sums: rows `row` and `row` + 8 of its 64, pairs of columns from `col` on, 8
 * apart. */
struct sums_place {
    int row, col;
    __device__ __forceinline__ sums_place(int thread = (int)threadIdx.x % WARPGROUP)
        : row(thread / 32 * 16 + thread % 32 / 4), col(thread % 4 * 2) {}
};

/* The components of a stage's terms of A: those of a row, then of the row eight below, of an even term, then of the odd
 * one. `stage` is where the warpgroup's first row is. */
template <bool ALONG_K, typename LAYOUT>
static __device__ __forceinline__ void split_a(uint32_t (&hi)[STEPS][4], uint32_t (&lo)[STEPS][4],
                                               least_magnitude &least, const float *stage, sums_place at) {
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int line = at.row + 8 * half, term = 8 * step + at.col;
            float x[2];
            if constexpr (ALONG_K)
                *(float2 *)x = *(const float2 *)(stage + LAYOUT::at(true, line, term));
            else
                x[0] = stage[LAYOUT::at(false, line, term)], x[1] = stage[LAYOUT::at(false, line, term + 1)];
            least.add(x[0], x[1]);
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                const components c(x[odd]);
                hi[step][half + 2 * odd] = c.hi;
                lo[step][half + 2 * odd] = c.lo;
            }
        }
}

/* The components of a stage's terms of B, by THREADS threads: [lines][STAGE_K] of hi, then of lo. All loads come before
 * the first store, past which the compiler would not move them. */
template <bool ALONG_K, typename LAYOUT, int THREADS>
static __device__ __forceinline__ void split_b(float *pieces, least_magnitude &least, const float *stage, int thread) {
    constexpr int N = LAYOUT::LINES, UNITS = N * STEPS / THREADS; /* eight terms of a line each */
    static_assert(UNITS * THREADS == N * STEPS, "threads have equal shares");
    float x[UNITS][8];
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
        const int unit = thread + i * THREADS, line = unit % N, step = unit / N;
        if constexpr (ALONG_K) {
            const float4 *from = (const float4 *)(stage + LAYOUT::at(true, line, 8 * step));
            *(float4 *)x[i] = from[0];
            *(float4 *)(x[i] + 4) = from[1];
        } else {
#pragma unroll
            for (int term = 0; term < 8; term++) x[i][term] = stage[LAYOUT::at(false, line, 8 * step + term)];
        }
    }
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
        const int unit = thread + i * THREADS, line = unit % N, step = unit / N;
        components c[8];
#pragma unroll
        for (int term = 0; term < 8; term++) c[term] = components(x[i][term]);
#pragma unroll
        for (int term = 0; term < 8; term += 2) least.add(x[i][term], x[i][term + 1]);
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            float *to = pieces + line * STAGE_K + ((2 * step + odd) ^ line % 8) * 4;
            *(uint4 *)to = make_uint4(c[odd].hi, c[2 + odd].hi, c[4 + odd].hi, c[6 + odd].hi);
            *(uint4 *)(to + N * STAGE_K) = make_uint4(c[odd].lo, c[2 + odd].lo, c[4 + odd].lo, c[6 + odd].lo);
        }
    }
}

/* Products of a stage on tensor cores, in two sums from zero, because each step truncates what came before:
 *
 *     first half      lo*hi + hi*lo of the stage + hi*hi of its first terms
 *     second half     hi*hi of the others
 *
 * begin_products comes first, for all that they read and write; end_products when they are issued. b_hi is the
 * tile_address of B's components. */
template <typename... ARRAYS> static __device__ __forceinline__ void begin_products(ARRAYS &...arrays) {
    (hold(arrays), ...);
    wgmma_fence();
}
template <int N>
static __device__ __forceinline__ void issue_first_half(float (&part)[N / 2], uint32_t (&hi)[STEPS][4],
                                                        uint32_t (&lo)[STEPS][4], uint32_t b_hi) {
    const uint32_t b_lo = b_hi + N * STAGE_K * 4 / 16;
#pragma unroll
    for (int step = 0; step < STEPS; step++) wgmma_tf32(part, lo[step], b_hi + step * 2, step > 0);
#pragma unroll
    for (int step = 0; step < STEPS; step++) wgmma_tf32(part, hi[step], b_lo + step * 2, true);
#pragma unroll
    for (int step = 0; step < STEPS / 2; step++) wgmma_tf32(part, hi[step], b_hi + step * 2, true);
}
template <int N>
static __device__ __forceinline__ void issue_second_half(float (&part)[N / 2], uint32_t (&hi)[STEPS][4],
                                                         uint32_t b_hi) {
#pragma unroll
    for (int step = STEPS / 2; step < STEPS; step++) wgmma_tf32(part, hi[step], b_hi + step * 2, step > STEPS / 2);
}
template <typename... ARRAYS> static __device__ __forceinline__ void end_products(ARRAYS &...parts) {
    wgmma_wait<0>();
    (hold(parts), ...);
}

template <int SUMS> static __device__ __forceinline__ void add_sums(float (&sum)[SUMS], const float (&part)[SUMS]) {
#pragma unroll
    for (int i = 0; i < SUMS; i++) sum[i] += part[i];
}

/* sum += A*B of a stage by fma, from zero, in little code: it happens rarely. */
template <typename LAYOUT_A, typename LAYOUT_B, int SUMS>
static __device__ __forceinline__ void add_exact(float (&sum)[SUMS], const float *stage_a, const float *stage_b,
                                                 bool a_along_k, bool b_along_k) {
    const int b_line = b_along_k ? LAYOUT_B::K_PITCH : 1, b_term = b_along_k ? 1 : LAYOUT_B::LINE_PITCH;
    const sums_place at;
    const float *b = stage_b + at.col * b_line;
    float part[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) part[i] = 0;
#pragma unroll 1
    for (int term = 0; term < STAGE_K; term++, b += b_term) {
        const float x[2] = {stage_a[LAYOUT_A::at(a_along_k, at.row, term)], /* of two rows */
                            stage_a[LAYOUT_A::at(a_along_k, at.row + 8, term)]};
#pragma unroll
        for (int i = 0; i < SUMS; i += 4) {
            const float y[2] = {b[2 * i * b_line], b[(2 * i + 1) * b_line]}; /* of two columns */
#pragma unroll
            for (int j = 0; j < 4; j++) part[i + j] = fmaf(x[j / 2], y[j % 2], part[i + j]);
        }
    }
    add_sums(sum, part);
}

/* Whether a sum is not finite. */
template <int SUMS> static __device__ __forceinline__ bool any_not_finite(const float (&sum)[SUMS]) {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < SUMS; i++) zero = fmaf(sum[i], 0.0f, zero);
    return zero != 0;
}
