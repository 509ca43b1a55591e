/* split_direct_wide.cu: C = alpha*A*B + beta*S at float32 accuracy, operands in place, on tensor cores: for products
 * with a narrow C, or so small that packing would take as long as multiplying.
 *
 * How operands are split, and what happens where that cannot be done: split_direct.cuh. Unlike in split_direct.cu, the
 * warps of a thread block share a tile of 128 rows. Half of them, the producers, copy stages of STAGE_K terms to shared
 * memory by cp.async, and split those of B there. The others, two warpgroups of consumers, have 64 rows of A each,
 * which they split in registers, and multiply. They take turns to issue products, so that one splits while the other
 * multiplies. A turn is the first half of a stage; its sums are added to those of all before the second half is
 * multiplied in the same registers.
 *
 *   landed[s]      stage s has come
 *   split[p]       B's components are in place p
 *   read[s]        consumers have read what they need of stage s. Producers are not counted: between their splitting of
 *                  a stage and the next copy to its place they meet at a barrier
 *   multiplied[p]  consumers have multiplied by the components in place p
 *
 * Tile map: thread blocks are persistent: each takes every gridDim.x-th tile, or slice of a tile's k. The sums of
 * slices go to `partial`, for ieee_reduce. Or, if there are few tiles, a cluster of thread blocks computes each, k_each
 * terms a block, and their sums meet in shared memory, in order. grid.z is the batch.
 *
 * A warpgroup whose sums are not all finite does not store them, but notes the tile. When a block has come to the end
 * of its tiles it computes those again, by fma.
 *
 * Names: wg number of a warpgroup of consumers, 0 or 1; mine number of a tile among those of this block.
 * Limits: 176 registers in consumers (N/2 sums of a stage and N/2 of all, 32 components of A), 80 in producers; 4
 * stages of up to 31 KB, 3 places of up to 24 KB; one thread block per SM. Tiles of 128 columns have no registers to
 * spare, and were slower.
 */
#include "cuda/kernels/ieee/ieee_order.cuh"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/split/split_direct.cuh"

constexpr int STAGES = 4, PLACES = 3, AHEAD = 2; /* stages that are copied ahead of the one that is split */
constexpr int PRODUCERS = 2 * WARPGROUP, CONSUMERS = 2 * WARPGROUP, THREADS = PRODUCERS + CONSUMERS, WG_ROWS = 64;
constexpr int BARRIER_OF_ALL = 1, BARRIER_OF_CONSUMERS = 2, BARRIER_OF_PRODUCERS = 3, BARRIER_OF_WG = 4, TURN_OF_WG = 6;

/* What a thread block computes at a time: a tile, and the terms of k that it sums for it. */
struct wide_work {
    int tile, slice;
    int row0, col0; /* of C */
    int k0, terms;
    __device__ __forceinline__ int stages() const { return (terms + STAGE_K - 1) / STAGE_K; }
};

template <int TILE_N> struct wide_tile {
    static constexpr int M = 128, N = TILE_N, SUMS = N / 2; /* of a thread */
    using stage_a = stage_layout_a<M>;
    using stage_b = stage_layout_b<N>;
    static constexpr int PRODUCERS_OF_B = N % 64 ? 2 * N : PRODUCERS; /* threads: they share B's lines evenly */
    template <bool ALONG_K> using operand_a = stage_operand<ALONG_K, false, M, STAGE_K, stage_a::K_PITCH, PRODUCERS>;
    template <bool ALONG_K>
    using operand_b = stage_operand<ALONG_K, false, N, STAGE_K, stage_b::K_PITCH, PRODUCERS_OF_B>;

    struct memory {
        float b_components[PLACES][2 * N * STAGE_K];
        float stages[STAGES][stage_a::FLOATS + stage_b::FLOATS];
    };

    struct barriers {
        uint64_t landed[STAGES], read[STAGES], split[PLACES], multiplied[PLACES], sums_are_here;
        uint32_t least_b[PLACES][PRODUCERS / 32]; /* of each warp's part of B: least_magnitude */
        int low_stage[2][2]; /* of each warpgroup: the last with what cannot be split, of odd and even numbers, because
                              * some warps may be one ahead of others */
        uint32_t noted[2][WIDE_TILES_OF_BLOCK / 32]; /* by warpgroup: a bit for each tile of this block */
    };

    static __device__ __forceinline__ int work_count(const ieee_args &args) {
        return args.tiles_m * args.tiles_n * args.segments;
    }
    static __device__ __forceinline__ int first_work(const ieee_args &args) { return (int)blockIdx.x / args.cluster; }
    static __device__ __forceinline__ int work_step(const ieee_args &args) { return (int)gridDim.x / args.cluster; }

    /* Number `index` of all tiles and slices. Tiles of a slice follow each other, so that what they read is in L2. */
    static __device__ __forceinline__ wide_work work_number(const ieee_args &args, int index) {
        const int tiles = args.tiles_m * args.tiles_n;
        wide_work w;
        w.slice = index / tiles;
        w.tile = index - w.slice * tiles;
        int row, col;
        find_tile(args, w.tile, &row, &col);
        w.row0 = row * M, w.col0 = col * N;
        w.k0 = (args.cluster > 1 ? cluster_rank() : w.slice) * args.k_each;
        w.terms = min(args.k_each, args.k - w.k0);
        return w;
    }

    /* Whether the block's tile number `mine` was noted, by that warpgroup, or by one of the two. */
    static __device__ __forceinline__ bool is_noted(const barriers &s, int wg, int mine) {
        return __any_sync(0xffffffffu, s.noted[wg][mine / 32] >> mine % 32 & 1); /* see warp_number */
    }
    static __device__ __forceinline__ bool is_noted(const barriers &s, int mine) {
        return is_noted(s, 0, mine) || is_noted(s, 1, mine);
    }
    /* Waits until all threads have done their tiles; whether any warpgroup has noted one. */
    static __device__ __forceinline__ bool tiles_to_repeat(bool noted) {
        if (!named_barrier_any(BARRIER_OF_ALL, THREADS, noted)) return false;
        named_barrier(BARRIER_OF_ALL, THREADS); /* for racecheck alone: docs/internals/testing.md */
        return true;
    }

    /* ---- Producers: copy, split B -------------------------------------------------------------------------------- */

    template <bool A_ALONG_K, bool B_ALONG_K>
    static __device__ __forceinline__ void produce(const ieee_args &args, barriers &s, memory &m) {
        const int thread = (int)threadIdx.x;
        ring<STAGES> copied, split;
        ring<PLACES> place;
#pragma unroll 1
        for (bool again = false;; again = true) {
            int index = first_work(args) - work_step(args), mine = -1; /* of the tile that is copied */
            int stages_left = 0, terms_left = 0;
            int under_way = 0; /* stages that are copied, but not yet split */
            operand_a<A_ALONG_K> a;
            operand_b<B_ALONG_K> b;
#pragma unroll 1
            for (int i = 0;; i++) {
                if (i >= AHEAD) {
                    if (under_way == 0) break;
                    cp_async_wait<AHEAD - 1>();
                    named_barrier(BARRIER_OF_PRODUCERS, PRODUCERS);
                    if (thread == 0) barrier_arrive(&s.landed[split.index]);
                    barrier_wait(&s.multiplied[place.index], place.phase ^ 1);
                    least_magnitude least;
                    if (thread < PRODUCERS_OF_B)
                        split_b<B_ALONG_K, stage_b, PRODUCERS_OF_B>(m.b_components[place.index], least,
                                                                    m.stages[split.index] + stage_a::FLOATS, thread);
                    const uint32_t of_warp = __reduce_min_sync(0xffffffffu, least.bits);
                    if (thread % 32 == 0) s.least_b[place.index][thread / 32] = of_warp;
                    fence_for_wgmma();
                    barrier_arrive(&s.split[place.index]);
                    under_way--;
                    split.advance();
                    place.advance();
                }
                if (stages_left == 0 && index < work_count(args)) {
                    do {
                        index += work_step(args), mine++;
                    } while (again && index < work_count(args) && !is_noted(s, mine));
                    if (index < work_count(args)) {
                        const wide_work w = work_number(args, index);
                        stages_left = w.stages(), terms_left = w.terms;
                        a = {args.a, args.a.row_stride, args.a.col_stride, w.row0, w.k0, args.m, thread};
                        b = {args.b, args.b.col_stride, args.b.row_stride, w.col0, w.k0, args.n, thread};
                        wait_for_previous_kernel(a.from, b.from); /* only now: addresses were computed while it ended */
                        allow_next_kernel();
                    }
                }
                if (stages_left) {
                    barrier_wait(&s.read[copied.index], copied.phase ^ 1);
                    const uint32_t to = shared_address(m.stages[copied.index]);
                    a.copy(to, terms_left);
                    if (thread < PRODUCERS_OF_B) b.copy(to + stage_a::FLOATS * 4, terms_left);
                    terms_left -= STAGE_K, stages_left--, under_way++;
                    copied.advance();
                }
                cp_async_commit();
            }
            if (!tiles_to_repeat(false) || again) break;
        }
        if (args.cluster > 1) { /* as in add_blocks */
            cluster_arrive_when_done();
            cluster_wait();
        }
    }

    /* ---- Consumers: split A, multiply, store --------------------------------------------------------------------- */

    /* Adds a stage, the block's number `number`, to the sums. A thread that sees what cannot be split says so before
     * the warpgroup's turn; then its products are not used. Each way from there waits for them itself: with one
     * end_products in front of both, ptxas finds too few registers and waits for every product (C7511). */
    template <bool A_ALONG_K>
    static __device__ __forceinline__ void add_stage(const ieee_args &args, float (&sum)[SUMS], bool exact, barriers &s,
                                                     memory &m, ring<STAGES> &at, ring<PLACES> &place, int number,
                                                     int wg) {
        barrier_wait(&s.landed[at.index], at.phase);
        const float *stage = m.stages[at.index] + wg * WG_ROWS * (A_ALONG_K ? stage_a::K_PITCH : 1);
        least_magnitude least_a, least_b;
        uint32_t hi[STEPS][4], lo[STEPS][4];
        split_a<A_ALONG_K, stage_a>(hi, lo, least_a, stage, sums_place());
        barrier_wait(&s.split[place.index], place.phase);
#pragma unroll
        for (int i = 0; i < PRODUCERS / 32; i++) least_b.bits = min(least_b.bits, s.least_b[place.index][i]);
        const auto are_low = [&](int of_a, int of_b) { return least_a.is_below(of_a) || least_b.is_below(of_b); };
        if (exact || (are_low(-52, -52) && are_low(-80, -24) && are_low(-24, -80)))
            s.low_stage[wg][number % 2] = number;
        const bool leads = threadIdx.x % 32 == 0;
        named_barrier(TURN_OF_WG + wg, CONSUMERS);
        const uint32_t b_hi = tile_address(m.b_components[place.index]);
        float part[SUMS];
        begin_products(part, hi, lo);
        issue_first_half<N>(part, hi, lo, b_hi);
        wgmma_commit();
        named_barrier_arrive(TURN_OF_WG + 1 - wg, CONSUMERS);
        if (__any_sync(0xffffffffu, s.low_stage[wg][number % 2] == number)) { /* see warp_number */
            end_products(part);
            add_exact<stage_a, stage_b>(sum, stage, m.stages[at.index] + stage_a::FLOATS, A_ALONG_K,
                                        args.b.col_stride != 1);
            __syncwarp();
        } else {
            end_products(part);
            add_sums(sum, part);
            begin_products(part, hi);
            issue_second_half<N>(part, hi, b_hi);
            wgmma_commit();
            end_products(part);
            add_sums(sum, part);
        }
        if (leads) barrier_arrive(&s.read[at.index]);
        if (leads) barrier_arrive(&s.multiplied[place.index]);
        at.advance();
        place.advance();
    }

    /* Stores a warpgroup's sums, of a whole tile or of a slice. */
    static __device__ __forceinline__ void store(const ieee_args &args, const float (&sum)[SUMS], const wide_work &w,
                                                 int wg) {
        const sums_place at;
        const int row_of_tile = wg * WG_ROWS + at.row;
        if (args.segments > 1) {
            float *to = partial_tile(args, w.tile, w.slice) + row_of_tile * N + at.col;
#pragma unroll
            for (int i = 0; i < SUMS; i += 2)
                *(float2 *)(to + i / 2 % 2 * 8 * N + i / 4 * 8) = make_float2(sum[i], sum[i + 1]);
            return;
        }
        const int row = w.row0 + row_of_tile, col = w.col0 + at.col, cols = args.n - col;
        const int64_t c_step = args.c.col_stride, s_step = args.addend.col_stride;
        float *c = args.c.data + blockIdx.z * args.c.batch_stride + row * args.c.row_stride + col * c_step;
        const float *s = args.addend.data + blockIdx.z * args.addend.batch_stride + row * args.addend.row_stride +
                         col * s_step;
        const bool in_pairs = args.beta == 0 && c_step == 1 && args.c.row_stride % 2 == 0 && (uintptr_t)c % 8 == 0;
        if (in_pairs && w.col0 + N <= args.n) { /* a path of its own: code that runs once for a tile must be short */
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (row + 8 * half >= args.m) break;
                float *to = c + 8 * half * args.c.row_stride;
#pragma unroll
                for (int j = 0; j < N; j += 8)
                    *(float2 *)(to + j) = make_float2(args.alpha * sum[j / 2 + 2 * half],
                                                      args.alpha * sum[j / 2 + 2 * half + 1]);
            }
            return;
        }
        if (cols <= 0) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row + 8 * half >= args.m) break;
            float *to = c + 8 * half * args.c.row_stride;
            const float *from = s + 8 * half * args.addend.row_stride;
            constexpr int AT_ONCE = N / 8; /* elements whose addends are all read before any is needed */
#pragma unroll
            for (int first = 0; first < N / 4; first += AT_ONCE) {
                float before[AT_ONCE]; /* past the end the last again */
                if (args.beta != 0)
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i++)
                        before[i] = from[min((first + i) / 2 * 8 + i % 2, cols - 1) * s_step];
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++, to += i % 2 ? c_step : 7 * c_step) {
                    const float x = sum[(first + i) / 2 * 4 + 2 * half + i % 2];
                    if ((first + i) / 2 * 8 + i % 2 < cols)
                        *to = args.beta == 0 ? args.alpha * x : fmaf(args.alpha, x, args.beta * before[i]);
                }
            }
        }
    }

    static constexpr int QUADS = M * N / 4, SUM_PITCH = N + 8;
    static_assert((M * SUM_PITCH + (QUADS + 15) * 4) * 4 <= sizeof(memory::stages),
                  "sums of up to 16 blocks fit there");

    /* The quads of the tile that a block of a cluster stores. */
    static __device__ __forceinline__ int quads_of_block(int blocks) { return (QUADS + blocks - 1) / blocks; }

    /* Adds up the blocks' sums, in order, and stores the tile: each block some quads of its columns. All blocks bring
     * the sums of these to its inbox; both lie where the stages were. */
    static __device__ __forceinline__ void add_blocks(const ieee_args &args, const float (&sum)[SUMS], barriers &s,
                                                      memory &m, int wg) {
        const wide_work w = work_number(args, first_work(args));
        const int blocks = args.cluster, rank = cluster_rank(), thread = (int)threadIdx.x - PRODUCERS;
        const int each = quads_of_block(blocks), first = rank * each;
        float *sums = &m.stages[0][0], *inbox = sums + M * SUM_PITCH; /* [blocks][each] quads */
        const sums_place at;
        float *own = sums + (wg * WG_ROWS + at.row) * SUM_PITCH + at.col;
#pragma unroll
        for (int i = 0; i < SUMS; i += 2)
            *(float2 *)(own + i / 2 % 2 * 8 * SUM_PITCH + i / 4 * 8) = make_float2(sum[i], sum[i + 1]);
        named_barrier(BARRIER_OF_CONSUMERS, CONSUMERS);
        cluster_arrive_when_done();
        cluster_wait();
#pragma unroll 1
        for (int quad = thread; quad < QUADS; quad += CONSUMERS) {
            const int owner = quad / each;
            send_to_block(shared_address(inbox + (rank * each + quad - owner * each) * 4), owner,
                          *(const float4 *)(sums + quad / (N / 4) * SUM_PITCH + quad % (N / 4) * 4), &s.sums_are_here);
        }
        if (first < QUADS) wait_for_cluster(&s.sums_are_here);
#pragma unroll 1
        for (int i = thread; i < each && first + i < QUADS; i += CONSUMERS) {
            const int row = w.row0 + (first + i) / (N / 4), col = w.col0 + (first + i) % (N / 4) * 4;
            if (row >= args.m || col >= args.n) continue;
            float4 total = *(const float4 *)(inbox + i * 4);
#pragma unroll 1
            for (int other = 1; other < blocks; other++)
                add_to(total, *(const float4 *)(inbox + (other * each + i) * 4));
            store_four(args, row, col, total);
        }
    }

    template <bool A_ALONG_K>
    static __device__ __forceinline__ void multiply(const ieee_args &args, barriers &s, memory &m, int wg) {
        wait_for_previous_kernel();
        allow_next_kernel();
        if (wg == 1) named_barrier_arrive(TURN_OF_WG, CONSUMERS); /* the first turn is the other's */
        ring<STAGES> at;
        ring<PLACES> place;
        float sum[SUMS];
        int stage = 0;
#pragma unroll 1
        for (bool again = false;; again = true) {
            const bool exact = again || args.k < LEAST_K;
            bool noted = false;
            int mine = 0;
#pragma unroll 1
            for (int index = first_work(args); index < work_count(args); index += work_step(args), mine++) {
                if (again && !is_noted(s, mine)) continue;
                const wide_work w = work_number(args, index);
#pragma unroll
                for (int i = 0; i < SUMS; i++) sum[i] = 0;
#pragma unroll 1
                for (int left = __shfl_sync(0xffffffffu, w.stages(), 0); left > 0; left--) /* see warp_number */
                    add_stage<A_ALONG_K>(args, sum, exact, s, m, at, place, ++stage, wg);
                if (named_barrier_any(BARRIER_OF_WG + wg, WARPGROUP, !exact && any_not_finite(sum))) {
                    noted = true;
                    if (threadIdx.x % WARPGROUP == 0) s.noted[wg][mine / 32] |= 1u << mine % 32;
                } else if (args.cluster == 1 && (!again || is_noted(s, wg, mine)))
                    store(args, sum, w, wg);
            }
            if (!tiles_to_repeat(noted) || again) break;
        }
        if (wg == 0) named_barrier(TURN_OF_WG, CONSUMERS); /* what would be its next */
        if (args.cluster > 1) add_blocks(args, sum, s, m, wg);
    }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        memory &m = *(memory *)dynamic_shared<1024>();
        __shared__ barriers s;
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) {
                barrier_init(&s.landed[i], 1);
                barrier_init(&s.read[i], CONSUMERS / 32);
            }
            for (int i = 0; i < PLACES; i++) {
                barrier_init(&s.split[i], PRODUCERS);
                barrier_init(&s.multiplied[i], CONSUMERS / 32);
            }
            for (int i = 0; i < 4; i++) s.low_stage[i / 2][i % 2] = 0;
            begin_receiving(&s.sums_are_here);
            if (args.cluster > 1) {
                const int each = quads_of_block(args.cluster), quads = min(each, QUADS - cluster_rank() * each);
                barrier_arrive_and_expect(&s.sums_are_here, args.cluster * max(quads, 0) * 16);
            }
        }
        for (int i = (int)threadIdx.x; i < 2 * WIDE_TILES_OF_BLOCK / 32; i += THREADS) (&s.noted[0][0])[i] = 0;
        __syncthreads();

        const bool a_along_k = args.a.row_stride != 1, b_along_k = args.b.col_stride != 1;
        const int wg = (warp_number() - PRODUCERS / 32) / (WARPGROUP / 32);
        if (warp_number() < PRODUCERS / 32) {
            registers_release_to<80>();
            if (a_along_k)
                b_along_k ? produce<true, true>(args, s, m) : produce<true, false>(args, s, m);
            else
                b_along_k ? produce<false, true>(args, s, m) : produce<false, false>(args, s, m);
        } else {
            registers_take<176>();
            a_along_k ? multiply<true>(args, s, m, wg) : multiply<false>(args, s, m, wg);
        }
    }
};

#define WIDE_KERNEL(name, id, n)                                                                            \
    ASSERT_LISTED_AS(id, wide_tile<n>::M, n, THREADS, (int)sizeof(wide_tile<n>::memory));                   \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ ieee_args args) { \
        wide_tile<n>::run(args);                                                                            \
    }

WIDE_KERNEL(direct_128x64, DIRECT_128X64, 64)
WIDE_KERNEL(direct_128x96, DIRECT_128X96, 96)
