/* ieee_stage.cuh: how the lines of an operand come to shared memory, some terms at a time, by the kernels that compute
 * a product in one launch (ieee_small.cu, split_direct.cu). A "line" is an index of m for A and of n for B. */
#pragma once

#include "cuda/kernels/args.h"
#include "cuda/kernels/ptx.cuh"

/* One operand, from its first line and its first term on, as a thread copies it: TERMS terms of LINES lines at a time,
 *
 *     terms of k are neighbours:    [LINES][K_PITCH]
 *     lines are neighbours:         [TERMS][LINES + 4]
 *
 * zeros where the matrix has none. CACHED: by way of the L1 cache. What depends on the layout is a number, not a branch:
 * a kernel of a few microseconds runs most of its instructions once, and each that it has not run before takes several
 * cycles. */
template <bool CACHED, int LINES, int TERMS, int K_PITCH, int THREADS> struct stage_operand {
    static constexpr int VECTOR_PASSES = LINES * TERMS / 4 / THREADS, PASSES = LINES * TERMS / THREADS;
    static_assert(VECTOR_PASSES * 4 * THREADS == LINES * TERMS, "whole passes");
    static_assert(THREADS % LINES == 0 && THREADS % TERMS == 0, "a pass is whole rows");

    bool along_k, by_vectors;
    int row, col;         /* of a stage in shared memory: where this thread begins */
    int rows;             /* from a pass to the next */
    int lines;            /* from the first to the end of the matrix */
    uint32_t to, to_step; /* bytes: from the stage's beginning, and from a pass to the next */
    const float *from;
    int64_t step, stage_step; /* floats */

    __device__ __forceinline__ stage_operand(const matrix_in &x, int64_t line_stride, int64_t k_stride, int line,
                                             int k0, int line_count, int thread)
        : along_k(line_stride != 1), lines(line_count - line) {
        from = x.data + blockIdx.z * x.batch_stride + line * line_stride + k0 * k_stride;
        const int64_t row_stride = along_k ? line_stride : k_stride, col_stride = along_k ? k_stride : 1;
        by_vectors = col_stride == 1 && row_stride % 4 == 0 && (uintptr_t)from % 16 == 0;
        const int width = (along_k ? TERMS : LINES) / (by_vectors ? 4 : 1); /* a power of two */
        const int pitch = along_k ? K_PITCH : LINES + 4;
        row = thread >> (31 - __clz(width));
        col = (thread & (width - 1)) * (by_vectors ? 4 : 1);
        rows = THREADS >> (31 - __clz(width));
        to = (row * pitch + col) * 4;
        to_step = rows * pitch * 4;
        from += row * row_stride + col * col_stride;
        step = rows * row_stride;
        stage_step = TERMS * k_stride;
        forget_origin(step, stage_step);
        forget_origin(row, col, rows, to, to_step);
    }

    /* The next stage, of which `terms` terms are left. */
    __device__ __forceinline__ void copy(uint32_t stage, int terms) {
        const float *next = from;
        stage += to;
        if (lines >= LINES && terms >= TERMS) {
            if (by_vectors)
#pragma unroll
                for (int pass = 0; pass < VECTOR_PASSES; pass++, next += step, stage += to_step)
                    cp_async_if<16, CACHED>(stage, next, true);
            else
#pragma unroll
                for (int pass = 0; pass < PASSES; pass++, next += step, stage += to_step)
                    cp_async_if<4>(stage, next, true);
        } else {
            const int rows_left = (along_k ? lines : terms) - row, cols_left = (along_k ? terms : lines) - col;
            if (by_vectors) {
                const int bytes = 4 * min(max(cols_left, 0), 4);
#pragma unroll
                for (int pass = 0; pass < VECTOR_PASSES; pass++, next += step, stage += to_step) {
                    const int wanted = pass * rows < rows_left ? bytes : 0;
                    if (CACHED)
                        cp_async_cached(stage, next, wanted);
                    else
                        cp_async_bytes(stage, next, wanted);
                }
            } else {
                const int left = cols_left > 0 ? rows_left : 0;
#pragma unroll(PASSES > 4 ? 4 : PASSES)
                for (int pass = 0; pass < PASSES; pass++, next += step, stage += to_step)
                    cp_async_or_zero<4>(stage, next, pass * rows < left);
            }
        }
        from += stage_step;
    }
};
