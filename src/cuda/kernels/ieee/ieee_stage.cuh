/* ieee_stage.cuh: how the lines of an operand come to shared memory, some terms at a time, by the kernels of one launch
 * (ieee_small.cu, split_direct.cu) and split_direct_wide.cu. A "line" is an index of m for A and of n for B.
 *
 * These kernels take a few microseconds, and run most of their instructions once. Each that was not run before takes
 * several cycles, so what counts is how many there are on the way, not how many are saved in the end. */
#pragma once

#include "cuda/kernels/args.h"
#include "cuda/kernels/ptx.cuh"

/* One operand, from its first line and its first term on, as a thread copies it: TERMS terms of LINES lines at a time,
 * zeros where the matrix has none. In shared memory a stage has
 *
 *     ALONG_K, terms of k are neighbours:    [LINES][K_PITCH]
 *     else, lines are neighbours:            [TERMS][LINES + 4]
 *
 * Without padding, K_PITCH = TERMS, term j of line r is at stage_term(r, j) of its line: then eight copies of sixteen
 * bytes, and loads of two terms each by four lanes of eight lines, find all banks.
 *
 * CACHED: by way of the L1 cache. */
__device__ __forceinline__ int stage_term(int line, int term) { return term ^ line % 4 * 8; }

template <bool ALONG_K, bool CACHED, int LINES, int TERMS, int K_PITCH, int THREADS> struct stage_operand {
    static constexpr int OUTER = ALONG_K ? LINES : TERMS, INNER = ALONG_K ? TERMS : LINES;
    static constexpr int PITCH = ALONG_K ? K_PITCH : LINES + 4;
    static constexpr int VECTOR_ROWS = THREADS * 4 / INNER, SINGLE_ROWS = THREADS / INNER; /* in a pass */
    static constexpr int VECTOR_PASSES = OUTER / VECTOR_ROWS, SINGLE_PASSES = OUTER / SINGLE_ROWS;
    static constexpr bool PERMUTED = ALONG_K && K_PITCH == TERMS;
    static_assert(!PERMUTED || (VECTOR_ROWS % 4 == 0 && SINGLE_ROWS % 4 == 0), "all passes have the same permutation");
    static_assert(VECTOR_PASSES * VECTOR_ROWS == OUTER && SINGLE_PASSES * SINGLE_ROWS == OUTER, "whole passes");

    bool by_vectors;
    int lines;    /* from the first to the end of the matrix */
    int row, col; /* of a stage in shared memory: where this thread begins */
    uint32_t to;  /* the same in bytes from the stage's beginning */
    const float *from;
    int64_t step, stage_step; /* floats: from a pass to the next, and from a stage */

    __device__ __forceinline__ stage_operand() {}

    __device__ __forceinline__ stage_operand(const matrix_in &x, int64_t line_stride, int64_t k_stride, int line,
                                             int k0, int line_count, int thread)
        : lines(line_count - line) {
        from = x.data + blockIdx.z * x.batch_stride + line * line_stride + k0 * k_stride;
        const int64_t row_stride = ALONG_K ? line_stride : k_stride, col_stride = ALONG_K ? k_stride : 1;
        by_vectors = col_stride == 1 && row_stride % 4 == 0 && (uintptr_t)from % 16 == 0;
        row = by_vectors ? thread / (INNER / 4) : thread / INNER;
        col = by_vectors ? thread % (INNER / 4) * 4 : thread % INNER;
        to = (row * PITCH + (PERMUTED ? stage_term(row, col) : col)) * 4;
        from += row * row_stride + col * col_stride;
        step = row_stride * (by_vectors ? VECTOR_ROWS : SINGLE_ROWS);
        stage_step = TERMS * k_stride;
        forget_origin(step, stage_step);
        forget_origin(row, col, to);
    }

    /* The next stage, of which `terms` terms are left. */
    __device__ __forceinline__ void copy(uint32_t stage, int terms) {
        const float *next = from;
        stage += to;
        const int rows_left = (ALONG_K ? lines : terms) - row, cols_left = (ALONG_K ? terms : lines) - col;
        if (!by_vectors) {
            const int left = cols_left > 0 ? rows_left : 0;
#pragma unroll
            for (int pass = 0; pass < SINGLE_PASSES; pass++, next += step)
                cp_async_or_zero<4>(stage + pass * (SINGLE_ROWS * PITCH * 4), next, pass * SINGLE_ROWS < left);
        } else if (lines >= LINES && terms >= TERMS) {
#pragma unroll
            for (int pass = 0; pass < VECTOR_PASSES; pass++, next += step)
                cp_async_if<16, CACHED>(stage + pass * (VECTOR_ROWS * PITCH * 4), next, true);
        } else {
            const int bytes = 4 * min(max(cols_left, 0), 4);
#pragma unroll
            for (int pass = 0; pass < VECTOR_PASSES; pass++, next += step) {
                const int wanted = pass * VECTOR_ROWS < rows_left ? bytes : 0;
                if (CACHED)
                    cp_async_cached(stage + pass * (VECTOR_ROWS * PITCH * 4), next, wanted);
                else
                    cp_async_bytes(stage + pass * (VECTOR_ROWS * PITCH * 4), next, wanted);
            }
        }
        from += stage_step;
    }
};
