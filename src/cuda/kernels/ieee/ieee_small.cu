/* ieee_small.cu: C = alpha*A*B + beta*S in IEEE float32 in one launch, for products too small to fill the GPU with
 * large tiles: small matrices, batches of them, few rows or columns with a long k.
 *
 * A cluster of thread blocks computes a tile of C; each block has a range of k. In a block, GROUPS groups of threads
 * take the quads of k in turn. A thread has 4 x 4 sums. At the end the groups' sums meet in shared memory, then the
 * blocks' in the cluster's, in a fixed order.
 *
 * Operands come to shared memory by cp.async, BLOCK_K terms at a time, in the order they have in global memory, so that
 * they can be copied sixteen bytes at a time. A "line" is an index of m for A and of n for B:
 *
 *     terms of k are neighbours:    [TILE][BLOCK_K + 4], a thread's lines are TILE/4 apart
 *     lines are neighbours:         [BLOCK_K][TILE + 4], a thread's lines are neighbours
 *
 * Either way a thread's sixteen-byte loads meet no bank conflict.
 *
 *     ieee_small_*   few threads, many blocks on an SM: many tiles
 *     ieee_long_*    many threads and terms under way: few tiles, a long k
 */
#include "cuda/kernels/ieee/ieee_order.cuh"
#include "cuda/kernels/ieee/ieee_stage.cuh"
#include "cuda/kernels/kernel_list.h"

template <int TILE, int GROUPS, int BLOCK_K, int STAGES> struct small_tile {
    static constexpr int M = TILE, LANES = TILE / 4, THREADS = LANES * LANES * GROUPS;
    static constexpr int K_PITCH = BLOCK_K + 4, LINE_PITCH = TILE + 4;
    static constexpr int OPERAND = TILE * BLOCK_K + 4 * (TILE > BLOCK_K ? TILE : BLOCK_K),
                         STAGE = 2 * OPERAND; /* floats */
    static constexpr int SHARED_BYTES = STAGES * STAGE * 4;
    static constexpr int SUM_PITCH = TILE + 4;
    static_assert(BLOCK_K / 4 % (2 * GROUPS) == 0, "every group has as many quads, in pairs");
    static_assert(GROUPS * TILE * SUM_PITCH + (TILE + 15) * TILE <= STAGES * STAGE,
                  "sums of groups, and of up to sixteen blocks, take the place of the stages");

    template <bool ALONG_K> using operand = stage_operand<ALONG_K, true, TILE, BLOCK_K, K_PITCH, THREADS>;

    /* Four terms of a thread's four lines: values[line][term]. */
    template <bool ALONG_K> static __device__ __forceinline__ void load(float (&values)[4][4], const float *from) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (ALONG_K) {
                *(float4 *)values[i] = *(const float4 *)(from + i * LANES * K_PITCH);
            } else {
                const float4 lines = *(const float4 *)(from + i * LINE_PITCH);
                values[0][i] = lines.x, values[1][i] = lines.y, values[2][i] = lines.z, values[3][i] = lines.w;
            }
        }
    }
    static __device__ __forceinline__ void multiply_quad(float (&sum)[4][4], const float (&a)[4][4],
                                                         const float (&b)[4][4]) {
#pragma unroll
        for (int term = 0; term < 4; term++)
#pragma unroll
            for (int row = 0; row < 4; row++)
#pragma unroll
                for (int col = 0; col < 4; col++) sum[row][col] = fmaf(a[row][term], b[col][term], sum[row][col]);
    }

    /* A stage. The next quad is loaded while one is multiplied. */
    template <bool A_ALONG_K, bool B_ALONG_K>
    static __device__ __forceinline__ void multiply(float (&sum)[4][4], const float *stage, int lane_m, int lane_n,
                                                    int group) {
        constexpr int QUADS = BLOCK_K / 4 / GROUPS;
        constexpr int A_QUAD = GROUPS * 4 * (A_ALONG_K ? 1 : LINE_PITCH);
        constexpr int B_QUAD = GROUPS * 4 * (B_ALONG_K ? 1 : LINE_PITCH);
        const float *from_a = stage + (A_ALONG_K ? lane_m * K_PITCH + group * 4 : group * 4 * LINE_PITCH + lane_m * 4);
        const float *from_b = stage + OPERAND +
                              (B_ALONG_K ? lane_n * K_PITCH + group * 4 : group * 4 * LINE_PITCH + lane_n * 4);
        float a[2][4][4], b[2][4][4];
        load<A_ALONG_K>(a[0], from_a);
        load<B_ALONG_K>(b[0], from_b);
#pragma unroll 1
        for (int left = QUADS;;) {
            load<A_ALONG_K>(a[1], from_a + A_QUAD);
            load<B_ALONG_K>(b[1], from_b + B_QUAD);
            multiply_quad(sum, a[0], b[0]);
            if (QUADS > 2) {
                left -= 2; /* behind the last pair it is loaded again, for nothing */
                load<A_ALONG_K>(a[0], from_a += left ? 2 * A_QUAD : 0);
                load<B_ALONG_K>(b[0], from_b += left ? 2 * B_QUAD : 0);
            }
            multiply_quad(sum, a[1], b[1]);
            if (QUADS == 2 || left == 0) break;
        }
    }

    /* The sums of the block's terms, as [GROUPS][TILE][SUM_PITCH] where the stages were. */
    template <bool A_ALONG_K, bool B_ALONG_K>
    static __device__ __forceinline__ void sum_terms(const ieee_args &args, int row0, int col0, int k0, int terms,
                                                     float *shared) {
        operand<A_ALONG_K> a(args.a, args.a.row_stride, args.a.col_stride, row0, k0, args.m, (int)threadIdx.x);
        operand<B_ALONG_K> b(args.b, args.b.col_stride, args.b.row_stride, col0, k0, args.n, (int)threadIdx.x);
        const int lane = (int)threadIdx.x % (LANES * LANES), group = (int)threadIdx.x / (LANES * LANES);
        const int lane_m = lane / LANES, lane_n = lane % LANES;
        const int stages = (terms + BLOCK_K - 1) / BLOCK_K;
        const uint32_t memory = shared_address(shared);
        float sum[4][4] = {};
        wait_for_previous_kernel(a.from, b.from); /* only now: where to copy from was computed while it ended */
        allow_next_kernel();
#pragma unroll 1
        for (int i = 1 - STAGES; i < stages; i++) {
            if (i >= 0) {
                cp_async_wait<STAGES - 2>();
                __syncthreads();
            }
            const int coming = i + STAGES - 1; /* where the stage before was */
            if (coming < stages) {
                const uint32_t to = memory + coming % STAGES * (STAGE * 4);
                a.copy(to, terms - coming * BLOCK_K);
                b.copy(to + OPERAND * 4, terms - coming * BLOCK_K);
            }
            cp_async_commit();
            if (i >= 0) multiply<A_ALONG_K, B_ALONG_K>(sum, shared + i % STAGES * STAGE, lane_m, lane_n, group);
        }
        cp_async_wait<0>();
        __syncthreads();
        float *mine = shared + group * TILE * SUM_PITCH;
#pragma unroll
        for (int row = 0; row < 4; row++) {
            float *to = mine + (A_ALONG_K ? lane_m + row * LANES : lane_m * 4 + row) * SUM_PITCH;
            if (B_ALONG_K) {
#pragma unroll
                for (int col = 0; col < 4; col++) to[lane_n + col * LANES] = sum[row][col];
            } else
                *(float4 *)(to + lane_n * 4) = make_float4(sum[row][0], sum[row][1], sum[row][2], sum[row][3]);
        }
        __syncthreads();
    }

    /* Adds up the groups' sums, and the blocks', and stores the tile: each block some of its rows. All blocks bring the
     * sums of these to its inbox, where the stages were. */
    static __device__ __forceinline__ void store(const ieee_args &args, float *shared, const uint64_t *sums_are_here,
                                                 int row0, int col0) {
        const int blocks = args.cluster, rows = rows_of_block(blocks), rank = cluster_rank();
        auto of_groups = [&](int row, int col) {
            float4 total = *(const float4 *)(shared + row * SUM_PITCH + col);
#pragma unroll
            for (int group = 1; group < GROUPS; group++)
                add_to(total, *(const float4 *)(shared + (group * TILE + row) * SUM_PITCH + col));
            return total;
        };
        float *inbox = shared + GROUPS * TILE * SUM_PITCH; /* [blocks][rows][TILE] */
        if (blocks > 1) {
            cluster_wait(); /* all are done with their stages */
#pragma unroll 1
            for (int i = (int)threadIdx.x; i < TILE * LANES; i += THREADS) {
                const int row = i / LANES, col = i % LANES * 4, owner = row / rows;
                send_to_block(shared_address(inbox + (rank * rows + row - owner * rows) * TILE + col), owner,
                              of_groups(row, col), sums_are_here);
            }
            if (rank * rows < TILE) wait_for_cluster(sums_are_here);
        }
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < rows * LANES; i += THREADS) {
            const int row = rank * rows + i / LANES, col = i % LANES * 4;
            if (row >= TILE || row0 + row >= args.m) break;
            float4 total;
            if (blocks == 1)
                total = of_groups(row, col);
            else {
                const float *from = inbox + i * 4;
                total = *(const float4 *)from;
#pragma unroll 1
                for (int other = 1; other < blocks; other++)
                    add_to(total, *(const float4 *)(from + other * rows * TILE));
            }
            store_four(args, row0 + row, col0 + col, total);
        }
    }

    /* The rows of the tile that a block of a cluster stores. */
    static __device__ __forceinline__ int rows_of_block(int blocks) { return (TILE + blocks - 1) / blocks; }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        __shared__ uint64_t sums_are_here;
        float *shared = (float *)dynamic_shared<16>();
        if (args.cluster > 1 && threadIdx.x == 0) {
            const int rows = rows_of_block(args.cluster), mine = min(rows, TILE - cluster_rank() * rows);
            begin_receiving(&sums_are_here);
            barrier_arrive_and_expect(&sums_are_here, args.cluster * max(mine, 0) * TILE * 4);
        }
        const int row0 = cluster_number() * TILE, col0 = (int)blockIdx.y * TILE;
        const int k0 = min(cluster_rank() * args.k_each, args.k), terms = min(args.k_each, args.k - k0);
        const bool a_along_k = args.a.row_stride != 1, b_along_k = args.b.col_stride != 1;
        if (a_along_k)
            b_along_k ? sum_terms<true, true>(args, row0, col0, k0, terms, shared)
                      : sum_terms<true, false>(args, row0, col0, k0, terms, shared);
        else
            b_along_k ? sum_terms<false, true>(args, row0, col0, k0, terms, shared)
                      : sum_terms<false, false>(args, row0, col0, k0, terms, shared);
        if (args.cluster > 1) cluster_arrive_when_done();
        store(args, shared, &sums_are_here, row0, col0);
    }
};

#define SMALL_KERNEL(name, id, BLOCKS, ...)                                                                \
    using name##_tile = small_tile<__VA_ARGS__>;                                                           \
    ASSERT_LISTED_AS(id, name##_tile::M, name##_tile::M, name##_tile::THREADS, name##_tile::SHARED_BYTES); \
    extern "C" __global__ void __launch_bounds__(name##_tile::THREADS, BLOCKS)                             \
        name(const __grid_constant__ ieee_args args) {                                                     \
        name##_tile::run(args);                                                                            \
    }

SMALL_KERNEL(ieee_small_16, IEEE_SMALL_16, 10, 16, 4, 32, 2)
SMALL_KERNEL(ieee_small_32, IEEE_SMALL_32, 10, 32, 1, 32, 2)
SMALL_KERNEL(ieee_long_16, IEEE_LONG_16, 2, 16, 16, 128, 3)
SMALL_KERNEL(ieee_long_32, IEEE_LONG_32, 2, 32, 4, 64, 3)
