/* split_direct.cu: C = alpha*A*B + beta*S at float32 accuracy in one launch, operands in place, on tensor cores: for
 * products too small to pay for packing.
 *
 * A cluster of thread blocks computes a tile of C. Each block has a range of k, and each of its warpgroups a part of
 * that, with stages of its own. At the end the warpgroups' sums meet in shared memory, then the blocks' in the
 * cluster's, in a fixed order.
 *
 * Operands come to shared memory by cp.async, STAGE_K terms at a time. How they are split there, and what happens where
 * that cannot be done: split_direct.cuh. Both halves of a stage are multiplied at once, and their sums added to each
 * other before they are added to all.
 *
 * Limits: direct_64x64 has 168 registers (three times N/2 sums, 32 components of A), direct_64x32 has 128.
 */
#include "cuda/kernels/ieee/ieee_order.cuh"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/split/split_direct.cuh"

constexpr int STAGES = 3; /* of a warpgroup */

template <int TILE_N, int GROUPS> struct direct_tile {
    static constexpr int M = 64, N = TILE_N, THREADS = WARPGROUP * GROUPS, SUMS = N / 2; /* of a thread */
    using stage_a = stage_layout_a<M>;
    using stage_b = stage_layout_b<N>;
    static constexpr int STAGE = stage_a::FLOATS + stage_b::FLOATS, PIECE = N * STAGE_K; /* floats */
    static constexpr int GROUP = STAGES * STAGE;
    static constexpr int SHARED_BYTES = GROUPS * (2 * PIECE + GROUP) * 4;
    static constexpr int SUM_PITCH = N + 8;
    static_assert(M * SUM_PITCH <= GROUP, "sums take the place of the stages");

    template <bool ALONG_K> using operand_a = stage_operand<ALONG_K, false, M, STAGE_K, stage_a::K_PITCH, WARPGROUP>;
    template <bool ALONG_K> using operand_b = stage_operand<ALONG_K, false, N, STAGE_K, stage_b::K_PITCH, WARPGROUP>;

    /* The sums of the warpgroup's terms. */
    template <bool A_ALONG_K, bool B_ALONG_K>
    static __device__ __forceinline__ void sum_terms(const ieee_args &args, float (&sum)[SUMS], int row0, int col0,
                                                     int k0, int terms, float *pieces, float *shared) {
        const int stages = (terms + STAGE_K - 1) / STAGE_K, barrier = 1 + warp_number() / (WARPGROUP / 32);
        int thread = (int)threadIdx.x % WARPGROUP;
        const uint32_t memory = shared_address(shared), b_pieces = tile_address(pieces);
#pragma unroll 1
        for (bool exact = args.k < LEAST_K;; exact = true) {
            operand_a<A_ALONG_K> a(args.a, args.a.row_stride, args.a.col_stride, row0, k0, args.m, thread);
            operand_b<B_ALONG_K> b(args.b, args.b.col_stride, args.b.row_stride, col0, k0, args.n, thread);
            wait_for_previous_kernel(a.from, b.from); /* only now: where to copy from was computed while it ended */
            allow_next_kernel();
#pragma unroll
            for (int i = 0; i < SUMS; i++) sum[i] = 0;
#pragma unroll 1
            for (int i = 1 - STAGES; i < stages; i++) {
                if (i >= 0) {
                    cp_async_wait<STAGES - 2>();
                    named_barrier(barrier, WARPGROUP);
                }
                const int coming = i + STAGES - 1; /* where the stage before was */
                if (coming < stages) {
                    const uint32_t to = memory + coming % STAGES * (STAGE * 4);
                    a.copy(to, terms - coming * STAGE_K);
                    b.copy(to + stage_a::FLOATS * 4, terms - coming * STAGE_K);
                }
                cp_async_commit();
                if (i < 0) continue;
                const float *stage = shared + i % STAGES * STAGE;
                least_magnitude least_a, least_b;
                uint32_t hi[STEPS][4], lo[STEPS][4];
                compute_again(thread); /* or places in a stage are kept in registers, which spill */
                split_b<B_ALONG_K, stage_b, WARPGROUP>(pieces, least_b, stage + stage_a::FLOATS, thread);
                split_a<A_ALONG_K, stage_a>(hi, lo, least_a, stage, sums_place(thread));
                fence_for_wgmma();
                auto any_below = [&](int of_a, int of_b) {
                    return named_barrier_any(barrier, WARPGROUP,
                                             exact || least_a.is_below(of_a) || least_b.is_below(of_b));
                };
                if (any_below(-52, -52) && any_below(-80, -24) && any_below(-24, -80))
                    add_exact<stage_a, stage_b>(sum, stage, stage + stage_a::FLOATS, A_ALONG_K, B_ALONG_K);
                else {
                    float first[SUMS], second[SUMS];
                    begin_products(first, second, hi, lo);
                    issue_first_half<N>(first, hi, lo, b_pieces);
                    issue_second_half<N>(second, hi, b_pieces);
                    wgmma_commit();
                    end_products(first, second);
#pragma unroll
                    for (int j = 0; j < SUMS; j++) sum[j] += first[j] + second[j];
                }
            }
            cp_async_wait<0>();
            if (!named_barrier_any(barrier, WARPGROUP, !exact && any_not_finite(sum))) return;
        }
    }

    /* Adds up the groups' sums, and the blocks', and stores the tile: each block some quads of its columns. All blocks
     * bring the sums of these to its inbox, where the stages were. */
    static __device__ __forceinline__ void store(const ieee_args &args, float (&sum)[SUMS], float *shared,
                                                 const uint64_t *sums_are_here, int row0, int col0) {
        const sums_place at;
        const int group = (int)threadIdx.x / WARPGROUP, blocks = args.cluster, rank = cluster_rank();
        const int each = quads_of_block(blocks), first = rank * each;
        float *mine = shared + group * GROUP + at.row * SUM_PITCH + at.col;
#pragma unroll
        for (int i = 0; i < SUMS; i += 2)
            *(float2 *)(mine + i / 2 % 2 * 8 * SUM_PITCH + i / 4 * 8) = make_float2(sum[i], sum[i + 1]);
        __syncthreads();
        __syncthreads();                            /* for racecheck alone: docs/internals/testing.md */
        if (blocks > 1) cluster_arrive_when_done(); /* all are done with their stages */
        auto of_groups = [&](int quad) {
            const float *from = shared + quad / (N / 4) * SUM_PITCH + quad % (N / 4) * 4;
            float4 total = *(const float4 *)from;
#pragma unroll
            for (int other = 1; other < GROUPS; other++) add_to(total, *(const float4 *)(from + other * GROUP));
            return total;
        };
        float *inbox = shared + M * SUM_PITCH; /* [blocks][each] quads */
        if (blocks > 1) {
            cluster_wait();
#pragma unroll 1
            for (int quad = (int)threadIdx.x; quad < QUADS; quad += THREADS) {
                const int owner = quad / each;
                send_to_block(shared_address(inbox + (rank * each + quad - owner * each) * 4), owner, of_groups(quad),
                              sums_are_here);
            }
            if (first < QUADS) wait_for_cluster(sums_are_here);
        }
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < each && first + i < QUADS; i += THREADS) {
            const int row = row0 + (first + i) / (N / 4), col = col0 + (first + i) % (N / 4) * 4;
            if (row >= args.m || col >= args.n) continue;
            float4 total;
            if (blocks == 1)
                total = of_groups(i);
            else {
                total = *(const float4 *)(inbox + i * 4);
#pragma unroll 1
                for (int other = 1; other < blocks; other++)
                    add_to(total, *(const float4 *)(inbox + (other * each + i) * 4));
            }
            store_four(args, row, col, total);
        }
    }

    static constexpr int QUADS = M * N / 4;
    static_assert(M * SUM_PITCH + (QUADS + 15) * 4 <= GROUP, "sums, and those of up to sixteen blocks, fit there");

    /* The quads of the tile that a block of a cluster stores. */
    static __device__ __forceinline__ int quads_of_block(int blocks) { return (QUADS + blocks - 1) / blocks; }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        __shared__ uint64_t sums_are_here;
        float *shared = (float *)dynamic_shared<1024>();
        const int rank = cluster_rank(), group = warp_number() / (WARPGROUP / 32);
        if (args.cluster > 1 && threadIdx.x == 0) {
            const int each = quads_of_block(args.cluster), quads = min(each, QUADS - rank * each);
            begin_receiving(&sums_are_here);
            barrier_arrive_and_expect(&sums_are_here, args.cluster * max(quads, 0) * 16);
        }
        const int row0 = cluster_number() * M, col0 = (int)blockIdx.y * N;
        const int block_k0 = min(rank * args.k_each, args.k), block_terms = min(args.k_each, args.k - block_k0);
        const int each = ((block_terms + GROUPS - 1) / GROUPS + STAGE_K - 1) / STAGE_K * STAGE_K;
        const int skipped = min(group * each, block_terms), k0 = block_k0 + skipped,
                  terms = min(each, block_terms - skipped);
        float *pieces = shared + group * 2 * PIECE, *stages = shared + GROUPS * 2 * PIECE;
        float sum[SUMS];
        float *mine = stages + group * GROUP;
        const bool a_along_k = args.a.row_stride != 1, b_along_k = args.b.col_stride != 1;
        if (a_along_k)
            b_along_k ? sum_terms<true, true>(args, sum, row0, col0, k0, terms, pieces, mine)
                      : sum_terms<true, false>(args, sum, row0, col0, k0, terms, pieces, mine);
        else
            b_along_k ? sum_terms<false, true>(args, sum, row0, col0, k0, terms, pieces, mine)
                      : sum_terms<false, false>(args, sum, row0, col0, k0, terms, pieces, mine);
        store(args, sum, stages, &sums_are_here, row0, col0);
    }
};

#define DIRECT_KERNEL(name, id, ...)                                                                       \
    using name##_tile = direct_tile<__VA_ARGS__>;                                                          \
    ASSERT_LISTED_AS(id, name##_tile::M, name##_tile::N, name##_tile::THREADS, name##_tile::SHARED_BYTES); \
    extern "C" __global__ void __launch_bounds__(name##_tile::THREADS, 1)                                  \
        name(const __grid_constant__ ieee_args args) {                                                     \
        name##_tile::run(args);                                                                            \
    }

DIRECT_KERNEL(direct_64x32, DIRECT_64X32, 32, 4)
DIRECT_KERNEL(direct_64x64, DIRECT_64X64, 64, 3)
