/* ieee_stage.cuh: how the lines of an operand come to shared memory, some terms at a time, by the kernels that compute
 * a product in one launch (ieee_small.cu, split_direct.cu). A "line" is an index of m for A and of n for B. */
#pragma once

#include "cuda/kernels/args.h"
#include "cuda/kernels/ptx.cuh"

/* One operand, from its first line and its first term on. */
struct stage_operand {
    const float *next; /* the stage that is copied next */
    int64_t line_stride, k_stride;
    int lines; /* to the end of the matrix */
    bool along_k, by_vectors;

    __device__ stage_operand(const matrix_in &x, int64_t line_step, int64_t k_step, int line, int k0, int line_count)
        : next(x.data + blockIdx.z * x.batch_stride + line * line_step + k0 * k_step), line_stride(line_step),
          k_stride(k_step), lines(line_count - line), along_k(line_step != 1) {
        by_vectors = (along_k ? k_step == 1 && line_step % 4 == 0 : k_step % 4 == 0) && (uintptr_t)next % 16 == 0;
    }
};

/* Copies OUTER x INNER elements to [OUTER][PITCH], neighbours along INNER, by THREADS threads, of which this is
 * `thread`; zeros where the matrix has none. CACHED: by way of the L1 cache. */
template <bool CACHED, int OUTER, int INNER, int PITCH, int THREADS>
static __device__ __forceinline__ void copy_stage(int thread, uint32_t to, const float *from, int64_t outer_stride,
                                                  int64_t inner_stride, int outer_left, int inner_left, bool vectors) {
    if (vectors) {
        constexpr int ALONG = INNER / 4, STEP = THREADS / ALONG; /* of OUTER, from pass to pass */
        static_assert(OUTER % STEP == 0, "whole passes");
        const int inner = thread % ALONG * 4, outer = thread / ALONG;
        const int bytes = 4 * min(max(inner_left - inner, 0), 4);
        from += outer * outer_stride + inner;
        to += (outer * PITCH + inner) * 4;
#pragma unroll
        for (int pass = 0; pass < OUTER / STEP; pass++, from += STEP * outer_stride) {
            const int wanted = outer + pass * STEP < outer_left ? bytes : 0;
            if (CACHED)
                cp_async_cached(to + pass * (STEP * PITCH * 4), from, wanted);
            else
                cp_async_bytes(to + pass * (STEP * PITCH * 4), from, wanted);
        }
    } else {
        constexpr int STEP = THREADS / INNER;
        static_assert(STEP && OUTER % STEP == 0, "whole passes");
        const int inner = thread % INNER, outer = thread / INNER;
        const int left = inner < inner_left ? outer_left - outer : 0;
        from += outer * outer_stride + inner * inner_stride;
        to += (outer * PITCH + inner) * 4;
#pragma unroll
        for (int pass = 0; pass < OUTER / STEP; pass++, from += STEP * outer_stride)
            cp_async_or_zero<4>(to + pass * (STEP * PITCH * 4), from, pass * STEP < left);
    }
}

/* Copies STAGE_K terms of LINES lines: where terms of k are neighbours to [LINES][K_PITCH], where lines are to
 * [STAGE_K][LINES + 4]. */
template <bool CACHED, int LINES, int STAGE_K, int K_PITCH, int THREADS>
static __device__ __forceinline__ void copy_next_stage(int thread, uint32_t to, stage_operand &x, bool along_k,
                                                       int k_left) {
    if (along_k)
        copy_stage<CACHED, LINES, STAGE_K, K_PITCH, THREADS>(thread, to, x.next, x.line_stride, x.k_stride, x.lines,
                                                             k_left, x.by_vectors);
    else
        copy_stage<CACHED, STAGE_K, LINES, LINES + 4, THREADS>(thread, to, x.next, x.k_stride, 1, k_left, x.lines,
                                                               x.by_vectors);
    x.next += STAGE_K * x.k_stride;
}
