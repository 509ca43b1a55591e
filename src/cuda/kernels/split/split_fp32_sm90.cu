/* split_fp32_sm90.cu: C = alpha*A*B + beta*S from split operands (args.h), float32 accuracy, on Hopper's wgmma.
 *
 * Arithmetic and order of the products: split_wgmma.cuh.
 *
 * Tile map: tiles of 128 x 128. Of 384 threads, one thread of warpgroup 0 copies; warpgroups 1 and 2 multiply 64 rows
 * of the tile each.
 *
 * Three variants, because one more branch in the loop over tiles costs split_fp32_sm90 2 % and more:
 *
 *   split_fp32_sm90         tiles, or slices of their k
 *   split_fp32_sm90_turns   for short k. Warpgroups take turns at the end of a tile: warpgroup 2 waits before its last
 *                           TURN blocks of k until warpgroup 1 has issued all its products. So warpgroup 1 stores its
 *                           sums while warpgroup 2 multiplies, and multiplies the next tile while warpgroup 2 stores.
 *                           The stages have room for it: they hold the blocks that warpgroup 2 still has to read
 *   split_fp32_sm90_parts   for few tiles. A cluster of thread blocks shares the k of each (parts in split_args)
 *
 * Names: wg warpgroup; kb block of k.
 * Limits: 232 registers in warpgroups 1 and 2 (3 x 64 of them accumulators), 40 in warpgroup 0; 3 stages of 64 KB; one
 * thread block per SM.
 */
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/split/split_wgmma.cuh"

constexpr int TILE_M = 128, TILE_N = 128, STAGES = 3, WARPS = 8;
constexpr int TURN = 2;
typedef shared_layout<stage<TILE_M, TILE_N, 2>, STAGES, WARPS> SHARED;
static_assert(TILE_M == 2 * WG_ROWS, "two warpgroups share a tile's rows");
static_assert(TURN < STAGES, "warpgroup 1 can finish a tile while warpgroup 2 waits");
static_assert(sizeof(SHARED) + 1024 <= 227 * 1024, "what a block may use on Hopper, with a barrier of its own");

/* ---- Parts of k -------------------------------------------------------------------------------------------------- */

/* Each block of a cluster stores some check blocks of the tile: number i of 32 is for block i % parts. All blocks send
 * it their sums, as each thread has them, to where its stages were. */
typedef float4 received_sums[CHECK_COLS / 8][32]; /* of a check block, from one block of the cluster */
constexpr int CHECK_BLOCKS = WARPS * TILE_N / CHECK_COLS;
static_assert((CHECK_BLOCKS + MAX_SPLIT_PARTS) * sizeof(received_sums) <= sizeof(SHARED::stages), "there is room");

__device__ void expect_parts(const split_args &g, uint64_t *sums_are_here) {
    const int check_blocks = (CHECK_BLOCKS - 1 - cluster_rank()) / g.parts + 1;
    begin_receiving(sums_are_here);
    barrier_arrive_and_expect(sums_are_here, check_blocks * g.parts * (int)sizeof(received_sums));
}

/* Adds up the sums of all blocks of the cluster, in order, for the check blocks that are this block's. Returns which of
 * this warp's four these are, as bits. Called by all threads that multiply; the others wait at the cluster's barrier
 * once. */
__device__ unsigned add_parts(const split_args &g, SHARED &s, const uint64_t *sums_are_here, float (&v)[64]) {
    received_sums *const received = (received_sums *)s.stages; /* [check block of ours][block of the cluster] */
    const int first = (threadIdx.x / 32 - 4) * 4, lane = threadIdx.x % 32, rank = cluster_rank();
    cluster_arrive_when_done(); /* this thread's warpgroup has read the stages */
    cluster_wait();
#pragma unroll
    for (int block = 0; block < 4; block++) {
        const int owner = (first + block) % g.parts, at = (first + block) / g.parts * g.parts + rank;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *const four = v + block * 16 + i * 4;
            send_to_block(shared_address(&received[at][i][lane]), owner,
                          make_float4(four[0], four[1], four[2], four[3]), sums_are_here);
        }
    }
    unsigned mine = 0;
#pragma unroll
    for (int block = 0; block < 4; block++)
        if ((first + block) % g.parts == rank) {
            if (!mine) wait_for_cluster(sums_are_here);
            mine |= 1u << block;
#pragma unroll
            for (int i = 0; i < 16; i++) v[block * 16 + i] = 0;
#pragma unroll 1
            for (int part = 0; part < g.parts; part++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float4 x = received[(first + block) / g.parts * g.parts + part][i][lane];
                    float *const sum = v + block * 16 + i * 4;
                    sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
                }
        }
    return mine;
}

/* ---- Work that is left to ieee ----------------------------------------------------------------------------------- */

/* Whether the marks leave the whole product to ieee. Called by whole warps. The least marks so far decide, whichever
 * panels they belong to: with larger ones more is left. So for most data this is one look at 32 panels. */
__device__ bool leaves_all(const split_args &g) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int batch = 0; batch < g.batch; batch++) {
        float least_a = INFINITY, least_b = INFINITY;
#pragma unroll 1
        for (int first = 0; first < max(g.m, g.n); first += 32 * PANEL_ROWS) {
            const int row = first + lane * PANEL_ROWS;
            const float a = row < g.m ? mark_of(g.a, batch, row) : INFINITY;
            const float b = row < g.n ? mark_of(g.b, batch, row) : INFINITY;
            least_a = fminf(least_a, warp_min_nonnegative(a)), least_b = fminf(least_b, warp_min_nonnegative(b));
            if (__any_sync(0xffffffffu, action_for(g, least_a, least_b) != RECOMPUTE)) return false;
        }
    }
    return true;
}

constexpr int REST_BARRIER = 3; /* 1 and 2 are for turns */

/* Whether a row of this warp's part of a tile, of which each check block was tested, was stored. */
__device__ bool stored_any(const split_args &g, const work &w, int row0) {
    const int lane = threadIdx.x % 32, col0 = w.n0 + lane * CHECK_COLS;
    __syncwarp(); /* lane 0 has noted them */
    const bool there = lane < TILE_N / CHECK_COLS && row0 < g.m && col0 < g.n;
    return __any_sync(0xffffffffu, there && __ldcg(flags_at(g, w.batch, row0, col0)) != all_rows(g, row0));
}

/* Products of two marks from which on leaves_rest is asked, and the factor by which others may be smaller: then they,
 * too, are far above mark_limit, which is below 2^10 for any k. */
constexpr float HARD = 1ull << 32, ALIKE = 1 << 10;

/* If data are graded, nearly all of C is left to ieee. So if no sum of this block's first tile was large enough, and
 * its other tiles have marks about as large, they are left, too, without being multiplied: this flags all their rows.
 * Called by all warps that multiply, after that tile, number `index`; `row`: this warp's first row of a tile; mark: the
 * product of the first tile's marks. True if there is nothing more to multiply. */
__device__ bool leaves_rest(const split_args &g, const work &w, int index, int row, float mark) {
    const int count = work_count(g), step = gridDim.x, lane = threadIdx.x % 32;
    if (index + step >= count) return false;
    bool alike = true;
#pragma unroll 1
    for (int next = index + step; next < count; next += 32 * step) {
        const int mine = next + lane * step;
        const work other = work_at<TILE_M, TILE_N>(g, mine < count ? mine : next);
        alike &= ALIKE * mark_of(g.a, other.batch, other.m0) * mark_of(g.b, other.batch, other.n0) >= mark;
    }
    const bool stored = stored_any(g, w, w.m0 + row), stays = stored || !alike; /* all lanes ask */
    if (named_barrier_any(REST_BARRIER, 2 * WARPGROUP, stays)) return false;
#pragma unroll 1
    for (int next = index + step; next < count; next += step) {
        const work other = work_at<TILE_M, TILE_N>(g, next);
        const int row0 = other.m0 + row, col0 = other.n0 + lane * CHECK_COLS;
        if (lane < TILE_N / CHECK_COLS && row0 < g.m && col0 < g.n)
            *flags_at(g, other.batch, row0, col0) = (uint16_t)all_rows(g, row0);
    }
    return true;
}

/* Called by all warps that multiply, instead of reading the stage `at`, which is still to come: they read no more
 * stages. It must have landed before it is released, for the copying thread waits for earlier releases by their
 * phase. */
template <int STAGES> __device__ void stop(SHARED &s, volatile bool &stopped, ring<STAGES> at) {
    barrier_wait(&s.full[at.index], at.phase);
    if (threadIdx.x % 32 == 0) {
        stopped = true;
        barrier_arrive(&s.empty[at.index]); /* the copying thread looks whenever a stage is empty */
    }
    __syncwarp();
}

/* ---- The fp32 kernels -------------------------------------------------------------------------------------------- */

enum variant { WHOLE, IN_TURNS, IN_PARTS };

template <variant VARIANT> __device__ void multiply(const split_args &g) {
    constexpr bool TURNS = VARIANT == IN_TURNS, PARTS = VARIANT == IN_PARTS;
    SHARED &s = *(SHARED *)dynamic_shared<1024>();
    __shared__ uint64_t sums_are_here;
    __shared__ volatile bool stopped;
    if (PARTS && threadIdx.x == 0) expect_parts(g, &sums_are_here);
    if (threadIdx.x == 0) stopped = false;
    make_barriers(s);

    const int wg = warp_number() / (WARPGROUP / 32);
    if (wg == 0) {
        registers_release_to<40>();
        if (threadIdx.x == 0) produce<PARTS>(g, s, [] { return (bool)stopped; });
        __syncwarp();
        if (PARTS) { /* as in add_parts */
            cluster_arrive();
            cluster_wait();
        }
        return;
    }
    registers_take<232>();
    wait_for_previous_kernel();
    allow_next_kernel();
    const int row = (wg - 1) * WG_ROWS;
    const auto release = [&](int stage) {
        if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[stage]);
    };
    ring<STAGES> at;
    if (leaves_all(g)) { /* known before the first stage has landed */
        stop(s, stopped, at);
        if (PARTS) {
            cluster_arrive();
            cluster_wait();
        }
        return;
    }
    int turn = 0;
    bool may_leave = !PARTS && g.recompute && !g.by_row && g.slices == 1; /* all but the first tile */
    for (int index = first_work<PARTS>(g); index < work_count(g); index += work_step<PARTS>(g)) {
        const work w = work_of_block<TILE_M, TILE_N, PARTS>(g, index);
        const output<TILE_N> out(g, w, w.m0 + row);
        const bool short_end = g.short_end && w.kb_end == g.k_blocks && w.kb_end - w.kb_begin > 1;
        const int whole = w.kb_end - w.kb_begin - short_end;
        accumulators sums;
        sums.begin();
        if (TURNS) {
            const bool has_next = index + gridDim.x < work_count(g); /* to multiply while sums are stored */
            const int last = has_next ? min(TURN, whole - 1) : 0;
            turn ^= 1; /* two barriers: warpgroup 1 may come to its next turn before warpgroup 2 waits for this one */
            const auto all_issued = [&] {
                if (wg == 1 && last) named_barrier_arrive(1 + turn, 2 * WARPGROUP);
            };
            int left = whole;
            do {
                const int now = wg == 2 && left > last ? left - last : left;
                if (left < whole) named_barrier(1 + turn, 2 * WARPGROUP);
                multiply_blocks<false>(sums, left == whole, s.stages, s.full, at, row, now, release, all_issued);
                left -= now;
            } while (left > 0);
        } else
            multiply_blocks<false>(sums, true, s.stages, s.full, at, row, whole, release, [] {});
        if (short_end) { /* of the last block only the first part; the rest is zeros */
            barrier_wait(&s.full[at.index], at.phase);
            wgmma_fence();
            const stage_products products(s.stages, at.index, row);
            products.issue_hi_hi(sums.hi_hi, 0);
            products.issue_corrections(sums.corr, 0, true);
            wgmma_wait<0>();
            hold(sums.hi_hi);
#pragma unroll
            for (int i = 0; i < 64; i++) sums.main[i] += sums.hi_hi[i];
            release(at.index);
            at.advance();
        }
        add_corrections(sums);
        const unsigned mine = PARTS ? add_parts(g, s, &sums_are_here, sums.main) : 0;
        out.template store<PARTS>(g, w, sums.main, s.out[threadIdx.x / 32 - 4], mine);
        const float mark = out.mark_a * out.marks_b[0];
        if (!PARTS && __any_sync(0xffffffffu, may_leave && mark >= HARD && mark < INFINITY) &&
            leaves_rest(g, w, index, out.row0 - w.m0, mark)) {
            stop(s, stopped, at);
            return;
        }
        may_leave = false;
    }
}

ASSERT_LISTED_AS(SPLIT_FP32_SM90, TILE_M, TILE_N, 3 * WARPGROUP, sizeof(SHARED));
ASSERT_LISTED_AS(SPLIT_FP32_SM90_TURNS, TILE_M, TILE_N, 3 * WARPGROUP, sizeof(SHARED));
ASSERT_LISTED_AS(SPLIT_FP32_SM90_PARTS, TILE_M, TILE_N, 3 * WARPGROUP, sizeof(SHARED));

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1) split_fp32_sm90(const __grid_constant__ split_args g) {
    multiply<WHOLE>(g);
}

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1)
    split_fp32_sm90_turns(const __grid_constant__ split_args g) {
    multiply<IN_TURNS>(g);
}

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1)
    split_fp32_sm90_parts(const __grid_constant__ split_args g) {
    multiply<IN_PARTS>(g);
}
