/* attention_wgmma.cuh: products of split tiles, for the attention kernels of Hopper.
 *
 * An operand X is in shared memory as its components hi and lo (attention_args.h); its product with Y is
 * lo_x*hi_y + hi_x*lo_y + hi_x*hi_y, in this order: small terms first, while the accumulator is small, because tensor
 * cores truncate as they accumulate. Every product starts a fresh accumulator, which ordinary float32 arithmetic adds
 * to what it belongs to.
 */
#ifndef TESSERA_CUDA_ATTENTION_WGMMA_CUH
#define TESSERA_CUDA_ATTENTION_WGMMA_CUH

#include "cuda/kernels/attention/attention.cuh"
#include "cuda/kernels/mma.cuh"

constexpr int WARPGROUP = 128, WG_ROWS = 64; /* threads; rows that one computes */

/* Distances between descriptors' addresses, which count 16 bytes. */
constexpr uint32_t COLUMN_BLOCK = ATTENTION_BLOCK_BYTES / 16; /* to the next 64 columns, at ATTENTION_ROWS rows */
constexpr uint32_t STEP_ALONG = 2;                            /* 16 columns on */
constexpr uint32_t STEP_DOWN = 16 * 128 / 16;                 /* 16 rows on */

/* A tile's address and how far its column blocks and its lo component are away. */
template <int BLOCKS> struct split_tile {
    uint32_t at, block;
    __device__ uint32_t hi(int column_block) const { return at + column_block * block; }
    __device__ uint32_t lo(int column_block) const { return at + (BLOCKS + column_block) * block; }
};

/* d = x y^T: rows of both along the columns. */
template <int BLOCKS, int N>
__device__ inline void multiply_rows(float (&d)[N], split_tile<BLOCKS> x, split_tile<BLOCKS> y) {
#pragma unroll
    for (int part = 0; part < 3; part++)
#pragma unroll
        for (int i = 0; i < 4 * BLOCKS; i++) {
            const uint32_t a = (part == 0 ? x.lo(i / 4) : x.hi(i / 4)) + i % 4 * STEP_ALONG;
            const uint32_t b = (part == 1 ? y.lo(i / 4) : y.hi(i / 4)) + i % 4 * STEP_ALONG;
            if constexpr (N == 64)
                wgmma_64x128x16(d, a, b, part || i);
            else if constexpr (N == 40)
                wgmma_64x80x16(d, a, b, part || i);
            else if constexpr (N == 16)
                wgmma_64x32x16(d, a, b, part || i);
            else if constexpr (N == 8)
                wgmma_64x16x16(d, a, b, part || i);
            else
                wgmma_64x64x16(d, a, b, part || i);
        }
}

/* A matrix of the accumulators' layout, 64 rows by 16*STEPS columns, as two fp16 components. */
template <int STEPS> struct split_registers {
    uint32_t hi[STEPS][4], lo[STEPS][4];

    /* From x, rows 0 to 7 of each warp's 16 times up0, the others times up1. */
    __device__ void split(const float (&x)[8 * STEPS], float up0, float up1) {
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float up = e % 2 ? up1 : up0;
                split_pair(x[8 * i + 2 * e] * up, x[8 * i + 2 * e + 1] * up, &hi[i][e], &lo[i][e]);
            }
    }
};

/* d = x y for 64 columns of y and 16*STEPS of its rows, from 16*first on: those that x's columns stand for. */
template <int STEPS, int ALL, int BLOCKS>
__device__ inline void multiply_columns(float (&d)[32], const split_registers<ALL> &x, int first, split_tile<BLOCKS> y,
                                        int column_block) {
    const uint32_t hi = y.hi(column_block) + first * STEP_DOWN, lo = y.lo(column_block) + first * STEP_DOWN;
#pragma unroll
    for (int i = 0; i < STEPS; i++) wgmma_64x64x16_rows(d, x.lo[first + i], hi + i * STEP_DOWN, i);
#pragma unroll
    for (int i = 0; i < STEPS; i++) wgmma_64x64x16_rows(d, x.hi[first + i], lo + i * STEP_DOWN, true);
#pragma unroll
    for (int i = 0; i < STEPS; i++) wgmma_64x64x16_rows(d, x.hi[first + i], hi + i * STEP_DOWN, true);
}

/* Where accumulator n of a thread lies in a warp's 16 rows: row g + 8*row_half(n), column column_of(n, t), for lane
 * 4g + t. */
__device__ inline int row_half(int n) { return n / 2 % 2; }
__device__ inline int column_of(int n, int t) { return n / 4 * 8 + 2 * t + n % 2; }

/* Stores the 64 columns of a block that a warpgroup has in its accumulators, each row times its factor. `row` is the
 * thread's first, its second is 8 further. */
__device__ inline void store_rows(const heads_out &to, float *head, const float (&d)[32], const float (&factor)[2],
                                  int row, int rows, int column0, int dim) {
    const int t = (int)threadIdx.x % 4;
    const bool pairs = to.col_stride == 1 && dim % 2 == 0 && (uintptr_t)head % 8 == 0 && to.row_stride % 2 == 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row + 8 * half;
        float *at = head + i * to.row_stride;
        if (i >= rows) continue;
#pragma unroll
        for (int n = 2 * half; n < 32; n += 4) {
            const int c = column0 + column_of(n, t);
            const float x = d[n] * factor[half], y = d[n + 1] * factor[half];
            if (pairs) {
                if (c < dim) *(float2 *)(at + c) = make_float2(x, y);
            } else {
                if (c < dim) at[c * to.col_stride] = x;
                if (c + 1 < dim) at[(c + 1) * to.col_stride] = y;
            }
        }
    }
}

#endif
