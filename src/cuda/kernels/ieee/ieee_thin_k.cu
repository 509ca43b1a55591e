/* ieee_thin_k.cu: C = alpha*A*B + beta*S in IEEE float32 for n <= 8 columns, A read along k.
 *
 * The matrix-vector shape: A is read once and everything else is small, so memory is the limit. For A with
 * contiguous terms (col_stride 1), and for strides that no other kernel reads.
 *
 * Tile map: a block of 4 warps has TILE_M = 16 rows of C, a warp 4 of them. A warp's lanes run along k, four terms each
 * where A's rows are 16-byte aligned, one otherwise; their sums meet at the end, by shuffles in a fixed order. B passes
 * through shared memory, CHUNK terms at a time, as [COLS][CHUNK]; COLS is n rounded up to 1, 2, 4 or 8. k may be cut
 * into segments as in ieee_args: tile_m = 16, tile_n = 8, tiles_n = 1, and every tile of the tail has the same number
 * of segments, one for each block. Marks are ignored.
 *
 * Limits: 128 threads, 16 KB of shared memory, 6 blocks per SM.
 */
#include "cuda/kernels/ieee/ieee_order.cuh"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/ptx.cuh"

template <int COLS> struct thin_k {
    static constexpr int TILE_M = 16, TILE_N = 8, WARP_ROWS = 4, CHUNK = 512, THREADS = 128;
    static_assert(TILE_M == WARP_ROWS * THREADS / 32, "the warps' rows make up the tile");
    static_assert(CHUNK % 128 == 0, "a warp takes 128 terms of a chunk at a time");

    /* B's terms [k0, k0 + terms) as [COLS][CHUNK]; what lies beyond stays unread. */
    static __device__ __forceinline__ void stage_b(float *shared_b, const ieee_args &args, const float *b, int k0,
                                                   int terms) {
        for (int i = threadIdx.x; i < CHUNK * COLS; i += THREADS) {
            /* Neighbouring threads take neighbours in memory where B has any. */
            const int col = args.b.row_stride == 1 ? i / CHUNK : i % COLS;
            const int term = args.b.row_stride == 1 ? i % CHUNK : i / COLS;
            shared_b[col * CHUNK + term] = term < terms && col < args.n
                                               ? b[(k0 + term) * args.b.row_stride + col * args.b.col_stride]
                                               : 0.0f;
        }
    }

    static __device__ __forceinline__ void multiply(const ieee_args &args, float *shared_b, const segment &part) {
        const int64_t batch = blockIdx.z;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int first_row = part.tile * TILE_M + warp * WARP_ROWS;
        const int k_begin = part.k_begin, k_end = k_begin + part.terms;
        const int64_t k_stride = args.a.col_stride;
        const float *b = args.b.data + batch * args.b.batch_stride;

        /* Rows beyond the matrix repeat its last one; their sums are not stored. */
        const float *row_at[WARP_ROWS];
        bool vectors = k_stride == 1;
#pragma unroll
        for (int row = 0; row < WARP_ROWS; ++row) {
            row_at[row] = args.a.data + batch * args.a.batch_stride +
                          min(first_row + row, args.m - 1) * args.a.row_stride;
            vectors = vectors && (uintptr_t)(row_at[row] + k_begin) % 16 == 0;
        }

        float sum[WARP_ROWS][COLS] = {};
        for (int k0 = k_begin; k0 < k_end; k0 += CHUNK) {
            const int terms = min(CHUNK, k_end - k0);
            __syncthreads();
            stage_b(shared_b, args, b, k0, terms);
            __syncthreads();

            int term = 0;
            if (vectors) {
#pragma unroll(COLS <= 2 ? 2 : 1)
                for (; term + 128 <= terms; term += 128) {
                    float4 a[WARP_ROWS];
#pragma unroll
                    for (int row = 0; row < WARP_ROWS; ++row)
                        a[row] = *(const float4 *)(row_at[row] + k0 + term + lane * 4);
#pragma unroll
                    for (int col = 0; col < COLS; ++col) {
                        const float4 x = *(const float4 *)(shared_b + col * CHUNK + term + lane * 4);
#pragma unroll
                        for (int row = 0; row < WARP_ROWS; ++row) {
                            sum[row][col] = fmaf(a[row].x, x.x, sum[row][col]);
                            sum[row][col] = fmaf(a[row].y, x.y, sum[row][col]);
                            sum[row][col] = fmaf(a[row].z, x.z, sum[row][col]);
                            sum[row][col] = fmaf(a[row].w, x.w, sum[row][col]);
                        }
                    }
                }
            }
#pragma unroll(COLS <= 2 ? 4 : 1)
            for (int i = term + lane; i < terms; i += 32) {
                float a[WARP_ROWS];
#pragma unroll
                for (int row = 0; row < WARP_ROWS; ++row) a[row] = row_at[row][(k0 + i) * k_stride];
#pragma unroll
                for (int col = 0; col < COLS; ++col)
#pragma unroll
                    for (int row = 0; row < WARP_ROWS; ++row)
                        sum[row][col] = fmaf(a[row], shared_b[col * CHUNK + i], sum[row][col]);
            }
        }

        float *partial = partial_tile(args, part.tile, part.index);
#pragma unroll
        for (int row = 0; row < WARP_ROWS; ++row)
#pragma unroll
            for (int col = 0; col < COLS; ++col) {
                float total = sum[row][col];
#pragma unroll
                for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(~0u, total, distance);
                if (lane != row * COLS + col || first_row + row >= args.m || col >= args.n) continue;
                if (part.whole) {
                    store_element(args, first_row + row, col, total);
                } else {
                    partial[(warp * WARP_ROWS + row) * TILE_N + col] = total;
                }
            }
    }
};

ASSERT_LISTED_AS(IEEE_THIN_K, thin_k<8>::TILE_M, thin_k<8>::TILE_N, thin_k<8>::THREADS, 0);

extern "C" __global__ void __launch_bounds__(128, 6) ieee_thin_k(const __grid_constant__ ieee_args args) {
    __shared__ __align__(16) float shared_b[8 * thin_k<8>::CHUNK];
    segment part;
    wait_for_previous_kernel();
    allow_next_kernel();
    first_segment(args, blockIdx.x, &part);
    if (args.n == 1)
        thin_k<1>::multiply(args, shared_b, part);
    else if (args.n == 2)
        thin_k<2>::multiply(args, shared_b, part);
    else if (args.n <= 4)
        thin_k<4>::multiply(args, shared_b, part);
    else
        thin_k<8>::multiply(args, shared_b, part);
}
