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
    static_assert(BLOCK_K / 4 % GROUPS == 0, "every group has as many quads");
    static_assert(GROUPS * TILE * SUM_PITCH <= STAGES * STAGE, "sums take the place of the stages");

    static __device__ __forceinline__ void copy(uint32_t to, stage_operand &x, int k_left) {
        copy_next_stage<true, TILE, BLOCK_K, K_PITCH, THREADS>((int)threadIdx.x, to, x, x.along_k, k_left);
    }

    /* Four terms of a thread's four lines: values[line][term]. */
    template <bool ALONG_K>
    static __device__ __forceinline__ void load(float (&values)[4][4], const float *stage, int lane, int quad) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (ALONG_K) {
                *(float4 *)values[i] = *(const float4 *)(stage + (lane + i * LANES) * K_PITCH + quad * 4);
            } else {
                const float4 lines = *(const float4 *)(stage + (quad * 4 + i) * LINE_PITCH + lane * 4);
                values[0][i] = lines.x, values[1][i] = lines.y, values[2][i] = lines.z, values[3][i] = lines.w;
            }
        }
    }

    template <bool A_ALONG_K, bool B_ALONG_K>
    static __device__ __forceinline__ void multiply(float (&sum)[4][4], const float *stage, int lane_m, int lane_n,
                                                    int group) {
#pragma unroll
        for (int i = 0; i < BLOCK_K / 4 / GROUPS; i++) {
            float a[4][4], b[4][4];
            load<A_ALONG_K>(a, stage, lane_m, group + i * GROUPS);
            load<B_ALONG_K>(b, stage + OPERAND, lane_n, group + i * GROUPS);
#pragma unroll
            for (int term = 0; term < 4; term++)
#pragma unroll
                for (int row = 0; row < 4; row++)
#pragma unroll
                    for (int col = 0; col < 4; col++) sum[row][col] = fmaf(a[row][term], b[col][term], sum[row][col]);
        }
    }

    /* The sums of the block's terms, as [GROUPS][TILE][SUM_PITCH] where the stages were. */
    template <bool A_ALONG_K, bool B_ALONG_K>
    static __device__ __forceinline__ void sum_terms(stage_operand &a, stage_operand &b, int terms, float *shared) {
        const int lane = (int)threadIdx.x % (LANES * LANES), group = (int)threadIdx.x / (LANES * LANES);
        const int lane_m = lane / LANES, lane_n = lane % LANES;
        const int stages = (terms + BLOCK_K - 1) / BLOCK_K;
        const uint32_t memory = shared_address(shared);
        int coming = 0;
        auto fetch = [&] {
            if (coming < stages) {
                const uint32_t to = memory + coming % STAGES * (STAGE * 4);
                copy(to, a, terms - coming * BLOCK_K);
                copy(to + OPERAND * 4, b, terms - coming * BLOCK_K);
            }
            coming++;
            cp_async_commit();
        };
        float sum[4][4] = {};
#pragma unroll 1
        while (coming < STAGES - 1) fetch();
#pragma unroll 1
        for (int i = 0; i < stages; i++) {
            cp_async_wait<STAGES - 2>();
            __syncthreads();
            fetch(); /* where the stage before was */
            multiply<A_ALONG_K, B_ALONG_K>(sum, shared + i % STAGES * STAGE, lane_m, lane_n, group);
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

    /* Adds up the groups' sums, and the blocks', and stores the tile: each block some of its rows. */
    static __device__ __forceinline__ void store(const ieee_args &args, float *shared, int row0, int col0) {
        const int blocks = args.cluster, rows = (TILE + blocks - 1) / blocks, first = cluster_rank() * rows;
        auto of_groups = [&](int row, int col) {
            float total = shared[row * SUM_PITCH + col];
#pragma unroll
            for (int group = 1; group < GROUPS; group++) total += shared[(group * TILE + row) * SUM_PITCH + col];
            return total;
        };
        if (blocks > 1) {
            for (int i = (int)threadIdx.x; i < TILE * TILE; i += THREADS)
                shared[i / TILE * SUM_PITCH + i % TILE] = of_groups(i / TILE, i % TILE);
            cluster_sync();
        }
        for (int i = (int)threadIdx.x; i < rows * TILE; i += THREADS) {
            const int row = first + i / TILE, col = i % TILE;
            if (row >= TILE || row0 + row >= args.m || col0 + col >= args.n) continue;
            float total;
            if (blocks == 1)
                total = of_groups(row, col);
            else {
                const uint32_t at = shared_address(shared + row * SUM_PITCH + col);
                total = load_from_block(at, 0);
#pragma unroll 4
                for (int other = 1; other < blocks; other++) total += load_from_block(at, other);
            }
            store_element(args, row0 + row, col0 + col, total);
        }
        if (blocks > 1) cluster_sync(); /* until the others have read our sums */
    }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        float *shared = (float *)dynamic_shared<16>();
        const int rank = cluster_rank();
        int tile_row, tile_col;
        find_tile(args, cluster_number(), &tile_row, &tile_col);
        const int row0 = tile_row * TILE, col0 = tile_col * TILE;
        const int k0 = min(rank * args.k_each, args.k), terms = min(args.k_each, args.k - k0);
        stage_operand a(args.a, args.a.row_stride, args.a.col_stride, row0, k0, args.m);
        stage_operand b(args.b, args.b.col_stride, args.b.row_stride, col0, k0, args.n);
        if (a.along_k)
            b.along_k ? sum_terms<true, true>(a, b, terms, shared) : sum_terms<true, false>(a, b, terms, shared);
        else
            b.along_k ? sum_terms<false, true>(a, b, terms, shared) : sum_terms<false, false>(a, b, terms, shared);
        store(args, shared, row0, col0);
    }
};

#define SMALL_KERNEL(name, id, BLOCKS, ...)                                                                \
    using name##_tile = small_tile<__VA_ARGS__>;                                                           \
    ASSERT_LISTED_AS(id, name##_tile::M, name##_tile::M, name##_tile::THREADS, name##_tile::SHARED_BYTES); \
    extern "C" __global__ void __launch_bounds__(name##_tile::THREADS, BLOCKS)                             \
        name(const __grid_constant__ ieee_args args) {                                                     \
        wait_for_previous_kernel();                                                                        \
        allow_next_kernel();                                                                               \
        name##_tile::run(args);                                                                            \
    }

SMALL_KERNEL(ieee_small_16, IEEE_SMALL_16, 10, 16, 4, 32, 2)
SMALL_KERNEL(ieee_small_32, IEEE_SMALL_32, 10, 32, 1, 32, 2)
SMALL_KERNEL(ieee_long_16, IEEE_LONG_16, 2, 16, 16, 128, 3)
SMALL_KERNEL(ieee_long_32, IEEE_LONG_32, 2, 32, 4, 64, 3)
