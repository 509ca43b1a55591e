/* ieee_thin_m.cu: C = alpha*A*B + beta*S in IEEE float32 for n <= 8 columns, A read along m.
 *
 * The matrix-vector shape with a transposed matrix: A's rows are neighbours in memory (row_stride 1). A is read once,
 * all else is small, so memory is the limit.
 *
 * Tile map: a block has TILE_M = 128 rows of C. A thread has 4 of them, neighbours where A's columns are 16-byte
 * aligned and m is a multiple of 4, otherwise 32 apart; the block's 4 warps share out the terms of k. Their sums meet
 * in shared memory at the end, in the order of the warps. B passes through shared memory, CHUNK terms at a time, as
 * [CHUNK][COLS]; COLS is n rounded up to 1, 2, 4 or 8. k may be cut into segments as in ieee_args: tile_m = 128, tile_n
 * = 8, tiles_n = 1, and every tile of the tail has the same number of segments, one for each block. Marks are ignored.
 *
 * Limits: 128 threads, 16 KB of shared memory, 5 blocks per SM.
 */
#include "cuda/kernels/ieee/ieee_order.cuh"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/ptx.cuh"

template <int COLS> struct thin_m {
    static constexpr int TILE_M = 128, TILE_N = 8, ROWS = 4, CHUNK = 256, THREADS = 128, WARPS = THREADS / 32;
    static_assert(TILE_M == 32 * ROWS, "each warp covers all rows of the tile");
    /* Of B's chunk; at the end, of the sums of the warps. */
    static constexpr int SHARED = CHUNK > WARPS *TILE_M ? CHUNK *COLS : WARPS *TILE_M *COLS;

    static __device__ __forceinline__ void multiply(const ieee_args &args, float *shared, const segment &part) {
        const int64_t batch = blockIdx.z;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int m0 = part.tile * TILE_M, rows_left = args.m - m0;
        const int k_begin = part.k_begin, k_end = k_begin + part.terms;
        const float *a = args.a.data + batch * args.a.batch_stride + m0;
        const float *b = args.b.data + batch * args.b.batch_stride;
        const bool vectors = (uintptr_t)a % 16 == 0 && args.a.col_stride % 4 == 0 && args.m % 4 == 0;

        /* Rows beyond the matrix repeat its last ones; their sums are not stored. */
        int row[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            row[i] = vectors ? min(lane * ROWS, rows_left - ROWS) + i : min(lane + 32 * i, rows_left - 1);

        float sum[ROWS][COLS] = {};
        for (int k0 = k_begin; k0 < k_end; k0 += CHUNK) {
            const int terms = min(CHUNK, k_end - k0);
            __syncthreads();
            for (int i = threadIdx.x; i < terms * COLS; i += THREADS) {
                const int term = i / COLS, col = i % COLS;
                shared[i] = col < args.n ? b[(k0 + term) * args.b.row_stride + col * args.b.col_stride] : 0.0f;
            }
            __syncthreads();
            const float *column = a + k0 * args.a.col_stride;
#pragma unroll 4
            for (int term = warp; term < terms; term += WARPS) {
                const float *at = column + term * args.a.col_stride;
                float value[ROWS];
                if (vectors) {
                    *(float4 *)value = *(const float4 *)(at + row[0]);
                } else {
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) value[i] = at[row[i]];
                }
#pragma unroll
                for (int col = 0; col < COLS; ++col)
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) sum[i][col] = fmaf(value[i], shared[term * COLS + col], sum[i][col]);
            }
        }

        __syncthreads();
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int col = 0; col < COLS; ++col) {
                const int my_row = vectors ? lane * ROWS + i : lane + 32 * i;
                shared[(warp * COLS + col) * TILE_M + my_row] = sum[i][col];
            }
        __syncthreads();
        float *partial = partial_tile(args, part.tile, part.index);
        const int my_row = threadIdx.x;
        for (int col = 0; col < args.n && my_row < rows_left; ++col) {
            float total = shared[col * TILE_M + my_row];
#pragma unroll
            for (int other = 1; other < WARPS; ++other) total += shared[(other * COLS + col) * TILE_M + my_row];
            if (part.whole) {
                store_element(args, m0 + my_row, col, total);
            } else {
                partial[my_row * TILE_N + col] = total;
            }
        }
    }
};

ASSERT_LISTED_AS(IEEE_THIN_M, thin_m<8>::TILE_M, thin_m<8>::TILE_N, thin_m<8>::THREADS, 0);

extern "C" __global__ void __launch_bounds__(128, 5) ieee_thin_m(const __grid_constant__ ieee_args args) {
    __shared__ __align__(16) float shared[thin_m<8>::SHARED];
    segment part;
    wait_for_previous_kernel();
    allow_next_kernel();
    first_segment(args, blockIdx.x, &part);
    if (args.n == 1)
        thin_m<1>::multiply(args, shared, part);
    else if (args.n == 2)
        thin_m<2>::multiply(args, shared, part);
    else if (args.n <= 4)
        thin_m<4>::multiply(args, shared, part);
    else
        thin_m<8>::multiply(args, shared, part);
}
