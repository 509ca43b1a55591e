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

constexpr int STAGE_K = 32, STEPS = STAGE_K / 8; /* terms of a stage, products along it */
constexpr int STAGES = 3;                        /* of a warpgroup */
constexpr int WARPGROUP = 128;
constexpr int LEAST_K = 64; /* docs/internals/numerics.md */

/* How an operand's LINES lines of a stage lie in shared memory. */
template <int LINES, int PADDING> struct operand_stage {
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
    using stage_a = operand_stage<M, 8>;
    using stage_b = operand_stage<N, 4>;
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

    /* A stage by fma. */
    template <bool A_ALONG_K, bool B_ALONG_K>
    static __device__ __forceinline__ void multiply_exact(float (&sum)[SUMS], const float *stage) {
        constexpr int A_LINE = A_ALONG_K ? stage_a::K_PITCH : 1, A_TERM = A_ALONG_K ? 1 : stage_a::LINE_PITCH;
        constexpr int B_LINE = B_ALONG_K ? stage_b::K_PITCH : 1, B_TERM = B_ALONG_K ? 1 : stage_b::LINE_PITCH;
        const place at;
        const float *a = stage + at.row * A_LINE, *b = stage + stage_a::FLOATS + at.col * B_LINE;
#pragma unroll 1
        for (int term = 0; term < STAGE_K; term += 2, a += 2 * A_TERM, b += 2 * B_TERM) {
            float x[2][2]; /* of two terms, of two rows */
#pragma unroll
            for (int row = 0; row < 2; row++)
#pragma unroll
                for (int t = 0; t < 2; t++) x[t][row] = a[8 * row * A_LINE + t * A_TERM];
#pragma unroll
            for (int i = 0; i < SUMS; i += 4) {
                float y[2][2]; /* of two columns */
#pragma unroll
                for (int t = 0; t < 2; t++)
#pragma unroll
                    for (int col = 0; col < 2; col++) y[t][col] = b[(2 * i + col) * B_LINE + t * B_TERM];
#pragma unroll
                for (int t = 0; t < 2; t++)
#pragma unroll
                    for (int j = 0; j < 4; j++) sum[i + j] = fmaf(x[t][j / 2], y[t][j % 2], sum[i + j]);
            }
        }
    }

    /* The sums of the warpgroup's terms. */
    template <bool A_ALONG_K, bool B_ALONG_K>
    static __device__ __forceinline__ void sum_terms(const ieee_args &args, float (&sum)[SUMS], int row0, int col0,
                                                     int k0, int terms, float *pieces, float *shared) {
        const int stages = (terms + STAGE_K - 1) / STAGE_K, barrier = 1 + warp_number() / 4;
        const uint32_t memory = shared_address(shared), b_hi = tile_address(pieces), b_lo = b_hi + PIECE * 4 / 16;
        for (bool exact = args.k < LEAST_K;; exact = true) {
            stage_operand a(args.a, args.a.row_stride, args.a.col_stride, row0, k0, args.m);
            stage_operand b(args.b, args.b.col_stride, args.b.row_stride, col0, k0, args.n);
            int coming = 0;
            auto fetch = [&] {
                if (coming < stages) {
                    const uint32_t to = memory + coming % STAGES * (STAGE * 4);
                    const int thread = (int)threadIdx.x % WARPGROUP, left = terms - coming * STAGE_K;
                    copy_next_stage<false, M, STAGE_K, stage_a::K_PITCH, WARPGROUP>(thread, to, a, A_ALONG_K, left);
                    copy_next_stage<false, N, STAGE_K, stage_b::K_PITCH, WARPGROUP>(thread, to + stage_a::FLOATS * 4, b,
                                                                                    B_ALONG_K, left);
                }
                coming++;
                cp_async_commit();
            };
#pragma unroll
            for (int i = 0; i < SUMS; i++) sum[i] = 0;
#pragma unroll 1
            while (coming < STAGES - 1) fetch();
#pragma unroll 1
            for (int i = 0; i < stages; i++) {
                cp_async_wait<STAGES - 2>();
                named_barrier(barrier, WARPGROUP);
                fetch(); /* where the stage before was */
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
                    multiply_exact<A_ALONG_K, B_ALONG_K>(sum, stage);
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

    /* Adds up the groups' sums, and the blocks', and stores the tile: each block some quads of its columns. */
    static __device__ __forceinline__ void store(const ieee_args &args, float (&sum)[SUMS], float *shared, int row0,
                                                 int col0) {
        const place at;
        const int group = (int)threadIdx.x / WARPGROUP;
        float *mine = shared + group * GROUP + at.row * SUM_PITCH + at.col;
        auto put = [&] {
#pragma unroll
            for (int i = 0; i < SUMS; i += 2)
                *(float2 *)(mine + i / 2 % 2 * 8 * SUM_PITCH + i / 4 * 8) = make_float2(sum[i], sum[i + 1]);
        };
        if (GROUPS > 1) {
            if (group) put();
            __syncthreads();
            if (group == 0)
                for (int other = 1; other < GROUPS; other++)
#pragma unroll
                    for (int i = 0; i < SUMS; i += 2) {
                        const float2 more = *(const float2 *)(mine + other * GROUP + i / 2 % 2 * 8 * SUM_PITCH +
                                                              i / 4 * 8);
                        sum[i] += more.x, sum[i + 1] += more.y;
                    }
        }
        if (group == 0) put();
        const int blocks = cluster_blocks(), quads = M * N / 4, each = (quads + blocks - 1) / blocks;
        if (blocks > 1)
            cluster_sync();
        else
            __syncthreads();
        const int first = cluster_rank() * each, end = min(first + each, quads);
        for (int quad = first + (int)threadIdx.x; quad < end; quad += THREADS) {
            const int row = quad / (N / 4), col = quad % (N / 4) * 4;
            if (row0 + row >= args.m || col0 + col >= args.n) continue;
            const uint32_t from = shared_address(shared + row * SUM_PITCH + col);
            float4 total = load_shared_16(from);
            if (blocks > 1) {
                total = load_16_from_block(from, 0);
#pragma unroll 1
                for (int other = 1; other < blocks; other += 4) {
                    float4 more[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) more[i] = load_16_from_block(from, min(other + i, blocks - 1));
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (other + i < blocks)
                            total.x += more[i].x, total.y += more[i].y, total.z += more[i].z, total.w += more[i].w;
                }
            }
            const float values[4] = {total.x, total.y, total.z, total.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (col0 + col + i < args.n) store_element(args, row0 + row, col0 + col + i, values[i]);
        }
        if (blocks > 1) cluster_sync(); /* until the others have read our sums */
    }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        float *shared = (float *)dynamic_shared<1024>();
        const int rank = cluster_rank(), group = (int)threadIdx.x / WARPGROUP;
        int tile_row, tile_col;
        find_tile(args, cluster_number(), &tile_row, &tile_col);
        const int row0 = tile_row * M, col0 = tile_col * N;
        const int block_k0 = min(rank * args.k_each, args.k), block_terms = min(args.k_each, args.k - block_k0);
        const int each = ((block_terms + GROUPS - 1) / GROUPS + STAGE_K - 1) / STAGE_K * STAGE_K;
        const int skipped = min(group * each, block_terms), k0 = block_k0 + skipped,
                  terms = min(each, block_terms - skipped);
        float *pieces = shared + group * 2 * PIECE, *stages = shared + GROUPS * 2 * PIECE,
              *mine = stages + group * GROUP;
        const bool a_along_k = args.a.row_stride != 1, b_along_k = args.b.col_stride != 1; /* as in stage_operand */
        float sum[SUMS];
        if (a_along_k)
            b_along_k ? sum_terms<true, true>(args, sum, row0, col0, k0, terms, pieces, mine)
                      : sum_terms<true, false>(args, sum, row0, col0, k0, terms, pieces, mine);
        else
            b_along_k ? sum_terms<false, true>(args, sum, row0, col0, k0, terms, pieces, mine)
                      : sum_terms<false, false>(args, sum, row0, col0, k0, terms, pieces, mine);
        store(args, sum, stages, row0, col0);
    }
};

#define DIRECT_KERNEL(name, id, ...)                                                                       \
    using name##_tile = direct_tile<__VA_ARGS__>;                                                          \
    ASSERT_LISTED_AS(id, name##_tile::M, name##_tile::N, name##_tile::THREADS, name##_tile::SHARED_BYTES); \
    extern "C" __global__ void __launch_bounds__(name##_tile::THREADS, 1)                                  \
        name(const __grid_constant__ ieee_args args) {                                                     \
        wait_for_previous_kernel();                                                                        \
        allow_next_kernel();                                                                               \
        name##_tile::run(args);                                                                            \
    }

DIRECT_KERNEL(direct_64x32, DIRECT_64X32, 32, 4)
DIRECT_KERNEL(direct_64x64, DIRECT_64X64, 64, 3)
