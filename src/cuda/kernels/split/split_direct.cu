/* split_direct.cu: C = alpha*A*B + beta*S at float32 accuracy in one launch, operands in place, on tensor cores: for
 * products too small to pay for packing.
 *
 * A cluster of thread blocks computes a tile of C. Each block has a range of k, and each of its warpgroups a part of
 * that, with stages of its own. At the end the warpgroups' sums meet in shared memory, then the blocks' in the
 * cluster's, in a fixed order.
 *
 * An element is split into hi + lo, both tf32: 11 significant bits each and float32's range, so that nothing has to be
 * scaled. Tensor cores compute lo*hi + hi*lo + hi*hi of a stage, from zero, and the sums are added to float32 registers
 * (docs/internals/numerics.md). What cannot be split is multiplied by fma instead: a stage with an element so small
 * that lo, or a product with it, would underflow; everything, if a sum is not finite or k is short.
 *
 * Operands come to shared memory by cp.async, STAGE_K terms at a time, in the order they have in global memory. A
 * "line" is an index of m for A and of n for B:
 *
 *     terms of k are neighbours:    [lines][STAGE_K + 8], of B [lines][STAGE_K + 4]
 *     lines are neighbours:         [STAGE_K][lines + 4]
 *
 * A's components stay in registers. B's go to shared memory as rows of 128 bytes, swizzled, for wgmma. Of eight terms
 * the even ones come first there, so that a thread finds its two terms of A beside each other.
 */
#include "cuda/kernels/ieee/ieee_order.cuh"
#include "cuda/kernels/ieee/ieee_stage.cuh"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/mma.cuh"

constexpr int STAGE_K = 32, STEPS = STAGE_K / 8; /* terms of a stage, products along it */
constexpr int STAGES = 3;                        /* of a warpgroup */
constexpr int WARPGROUP = 128;
constexpr int LEAST_K = 64; /* docs/internals/numerics.md */

/* How an operand's LINES lines of a stage lie in shared memory. */
template <int LINES, int PADDING> struct stage_layout {
    static constexpr int K_PITCH = STAGE_K + PADDING, LINE_PITCH = LINES + 4;
    static constexpr int BY_LINES = LINES * K_PITCH, BY_TERMS = STAGE_K * LINE_PITCH;
    static constexpr int FLOATS = BY_LINES > BY_TERMS ? BY_LINES : BY_TERMS;
};

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

template <int TILE_N, int GROUPS> struct direct_tile {
    static constexpr int M = 64, N = TILE_N, THREADS = WARPGROUP * GROUPS, SUMS = N / 2; /* of a thread */
    using stage_a = stage_layout<M, 8>;
    using stage_b = stage_layout<N, 4>;
    static constexpr int STAGE = stage_a::FLOATS + stage_b::FLOATS, PIECE = N * STAGE_K; /* floats */
    static constexpr int GROUP = STAGES * STAGE;
    static constexpr int SHARED_BYTES = GROUPS * (2 * PIECE + GROUP) * 4;
    static constexpr int SUM_PITCH = N + 8;
    static_assert(M * SUM_PITCH <= GROUP, "sums take the place of the stages");

    /* What a thread has of a warpgroup's sums: rows `row` and `row` + 8, pairs of columns from `col` on, 8 apart. */
    struct place {
        int row, col;
        __device__ __forceinline__ place() {
            const int thread = (int)threadIdx.x % WARPGROUP;
            row = thread / 32 * 16 + thread % 32 / 4;
            col = thread % 4 * 2;
        }
    };

    /* The components of the stage's terms of A: those of a row, then of the row eight below, of an even term, then of
     * the odd one. */
    template <bool ALONG_K>
    static __device__ __forceinline__ void split_a(uint32_t (&hi)[STEPS][4], uint32_t (&lo)[STEPS][4],
                                                   least_magnitude &least, const float *stage) {
        const place at;
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int line = at.row + 8 * half, term = 8 * step + at.col;
                float x[2];
                if constexpr (ALONG_K)
                    *(float2 *)x = *(const float2 *)(stage + line * stage_a::K_PITCH + term);
                else
                    x[0] = stage[term * stage_a::LINE_PITCH + line],
                    x[1] = stage[(term + 1) * stage_a::LINE_PITCH + line];
                least.add(x[0], x[1]);
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    const components c(x[odd]);
                    hi[step][half + 2 * odd] = c.hi;
                    lo[step][half + 2 * odd] = c.lo;
                }
            }
    }

    /* The components of the stage's terms of B: [N][STAGE_K] of hi, then of lo. */
    template <bool ALONG_K>
    static __device__ __forceinline__ void split_b(float *pieces, least_magnitude &least, const float *stage) {
#pragma unroll
        for (int i = 0; i < N * STEPS / WARPGROUP; i++) {
            const int unit = (int)threadIdx.x % WARPGROUP + i * WARPGROUP, line = unit % N, step = unit / N;
            float x[8];
            if constexpr (ALONG_K) {
                const float4 *from = (const float4 *)(stage + line * stage_b::K_PITCH + 8 * step);
                *(float4 *)x = from[0];
                *(float4 *)(x + 4) = from[1];
            } else {
#pragma unroll
                for (int term = 0; term < 8; term++) x[term] = stage[(8 * step + term) * stage_b::LINE_PITCH + line];
            }
            components c[8];
#pragma unroll
            for (int term = 0; term < 8; term++) c[term] = components(x[term]);
#pragma unroll
            for (int term = 0; term < 8; term += 2) least.add(x[term], x[term + 1]);
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                float *to = pieces + line * STAGE_K + ((2 * step + odd) ^ line % 8) * 4;
                *(uint4 *)to = make_uint4(c[odd].hi, c[2 + odd].hi, c[4 + odd].hi, c[6 + odd].hi);
                *(uint4 *)(to + PIECE) = make_uint4(c[odd].lo, c[2 + odd].lo, c[4 + odd].lo, c[6 + odd].lo);
            }
        }
    }

    /* A stage by fma, in little code: it happens rarely. */
    static __device__ __forceinline__ void multiply_exact(float (&sum)[SUMS], const float *stage, bool a_along_k,
                                                          bool b_along_k) {
        const int a_line = a_along_k ? stage_a::K_PITCH : 1, a_term = a_along_k ? 1 : stage_a::LINE_PITCH;
        const int b_line = b_along_k ? stage_b::K_PITCH : 1, b_term = b_along_k ? 1 : stage_b::LINE_PITCH;
        const place at;
        const float *a = stage + at.row * a_line, *b = stage + stage_a::FLOATS + at.col * b_line;
#pragma unroll 1
        for (int term = 0; term < STAGE_K; term++, a += a_term, b += b_term) {
            const float x[2] = {a[0], a[8 * a_line]}; /* of two rows */
#pragma unroll
            for (int i = 0; i < SUMS; i += 4) {
                const float y[2] = {b[2 * i * b_line], b[(2 * i + 1) * b_line]}; /* of two columns */
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i + j] = fmaf(x[j / 2], y[j % 2], sum[i + j]);
            }
        }
    }

    template <bool ALONG_K> using operand_a = stage_operand<ALONG_K, false, M, STAGE_K, stage_a::K_PITCH, WARPGROUP>;
    template <bool ALONG_K> using operand_b = stage_operand<ALONG_K, false, N, STAGE_K, stage_b::K_PITCH, WARPGROUP>;

    /* The sums of the warpgroup's terms. */
    template <bool A_ALONG_K, bool B_ALONG_K>
    static __device__ __forceinline__ void sum_terms(const ieee_args &args, float (&sum)[SUMS], int row0, int col0,
                                                     int k0, int terms, float *pieces, float *shared) {
        const int stages = (terms + STAGE_K - 1) / STAGE_K, barrier = 1 + warp_number() / 4;
        const int thread = (int)threadIdx.x % WARPGROUP;
        const uint32_t memory = shared_address(shared), b_hi = tile_address(pieces), b_lo = b_hi + PIECE * 4 / 16;
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
                split_b<B_ALONG_K>(pieces, least_b, stage + stage_a::FLOATS);
                split_a<A_ALONG_K>(hi, lo, least_a, stage);
                fence_for_wgmma();
                auto any_below = [&](int of_a, int of_b) {
                    return named_barrier_any(barrier, WARPGROUP,
                                             exact || least_a.is_below(of_a) || least_b.is_below(of_b));
                };
                if (any_below(-52, -52) && any_below(-80, -24) && any_below(-24, -80)) {
                    multiply_exact(sum, stage, A_ALONG_K, B_ALONG_K);
                    continue;
                }
                float part[SUMS];
                hold(part);
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < STEPS; step++) wgmma_tf32(part, lo[step], b_hi + step * 2, step > 0);
#pragma unroll
                for (int step = 0; step < STEPS; step++) wgmma_tf32(part, hi[step], b_lo + step * 2, true);
#pragma unroll
                for (int step = 0; step < STEPS; step++) wgmma_tf32(part, hi[step], b_hi + step * 2, true);
                wgmma_commit();
                wgmma_wait<0>();
                hold(part);
#pragma unroll
                for (int j = 0; j < SUMS; j++) sum[j] += part[j];
            }
            cp_async_wait<0>();
            float zero = 0;
#pragma unroll
            for (int i = 0; i < SUMS; i++) zero = fmaf(sum[i], 0.0f, zero);
            if (!named_barrier_any(barrier, WARPGROUP, !exact && zero != 0)) return;
        }
    }

    /* Adds up the groups' sums, and the blocks', and stores the tile: each block some quads of its columns. All blocks
     * bring the sums of these to its inbox, where the stages were. */
    static __device__ __forceinline__ void store(const ieee_args &args, float (&sum)[SUMS], float *shared,
                                                 const uint64_t *sums_are_here, int row0, int col0) {
        const place at;
        const int group = (int)threadIdx.x / WARPGROUP, blocks = args.cluster, rank = cluster_rank();
        const int each = quads_of_block(blocks), first = rank * each;
        float *mine = shared + group * GROUP + at.row * SUM_PITCH + at.col;
#pragma unroll
        for (int i = 0; i < SUMS; i += 2)
            *(float2 *)(mine + i / 2 % 2 * 8 * SUM_PITCH + i / 4 * 8) = make_float2(sum[i], sum[i + 1]);
        __syncthreads();
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
        const int rank = cluster_rank(), group = (int)threadIdx.x / WARPGROUP;
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
