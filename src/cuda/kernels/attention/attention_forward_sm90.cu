/* attention_forward_sm90.cu: O = softmax(scale Q K^T + mask) V on Hopper, from split operands.
 *
 * A task is a tile of 128 queries of one head. A thread block goes through its keys, 128 at a time, and then takes the
 * gridDim-th task on, whose operands it brings while the last sums of the one before are finished. Two warpgroups
 * multiply, 64 queries each, and keep O, the largest score and the sum of exponentials of their rows in registers:
 *
 *     S = Q K^T       from shared memory, into a fresh accumulator
 *     P = 2^14 exp(score - largest so far), split into hi and lo in registers
 *     O = O exp(old largest - new largest) + P V
 *
 * The other warps bring Q, K and V. Either they were packed (attention_pack.cu) and a thread copies them, or two
 * warpgroups split them here (SPLITS): that saves a pass over memory, but every thread block of a head does it again,
 * so it is for short sequences.
 *
 * GENERAL adds masks, dropout and scales that are not positive. Scores are in units of log2, unless GENERAL, where a
 * finite mask may be so large that only the difference from the row's largest may be scaled.
 */
#include "cuda/kernels/attention/attention_wgmma.cuh"
#include "cuda/kernels/kernel_list.h"

constexpr int TILE_Q = ATTENTION_ROWS, TILE_K = ATTENTION_ROWS;
constexpr int SPLITTERS = 2 * WARPGROUP;                             /* threads */
constexpr int ROW_STEP = SPLITTERS / 16, PASSES = TILE_K / ROW_STEP; /* rows between a thread's quads, and quads */
template <bool SPLITS> constexpr int BRINGERS = SPLITS ? SPLITTERS : WARPGROUP; /* threads before those that multiply */
template <bool SPLITS> constexpr int THREADS = BRINGERS<SPLITS> + 2 * WARPGROUP;

template <int BLOCKS> constexpr int TILE_BYTES = 2 * BLOCKS *ATTENTION_BLOCK_BYTES;

template <int BLOCKS, int STAGES, bool SPLITS> struct __align__(1024) forward_shared {
    uint8_t q[TILE_BYTES<BLOCKS>], k[STAGES][TILE_BYTES<BLOCKS>], v[STAGES][TILE_BYTES<BLOCKS>];
    float4 staging[SPLITS ? 2 : 0][PASSES][SPLITTERS];
    uint64_t q_full, q_empty, k_full[STAGES], v_full[STAGES], k_empty[STAGES], v_empty[STAGES];
    float q_down, k_down[STAGES], v_down[STAGES];
    alignas(16) float warp_largest[2][SPLITTERS / 32]; /* racecheck sees sixteen bytes as one place */
    int warp_misfits[2][8];                            /* of the warps that multiply, which may be a task apart */
    int misfits[2]; /* for every other task: not 0 if something was read that the split cannot carry */
};

/* A task: a tile of queries of one head, and how many tiles of keys it sees. */
struct forward_task {
    int tile_q, item, batch, head, kv_head, kv_item, tiles;
    __device__ forward_task(const attention_args &g, int index) {
        tile_q = g.tiles_q - 1 - index % g.tiles_q; /* late ones first: with a causal mask they see the most keys */
        item = index / g.tiles_q;
        batch = item / g.heads;
        head = item % g.heads;
        kv_head = head / (g.heads / g.kv_heads);
        kv_item = batch * g.kv_heads + kv_head;
        tiles = g.causal ? min(g.tiles_k, tile_q + 1) : g.tiles_k;
        static_assert(TILE_Q == TILE_K, "the diagonal goes from corner to corner of a tile");
    }
};
__device__ static int forward_tasks(const attention_args &g) { return g.batch * g.heads * g.tiles_q; }

/* ---- Bringing K and V -------------------------------------------------------------------------------------------- */

/* Fills q, then k and v of every tile of keys, task after task, from packed operands. One thread. */
template <int BLOCKS, int STAGES>
__device__ static void copy_packed(const attention_args &g, forward_shared<BLOCKS, STAGES, false> &s) {
    constexpr int64_t BYTES = TILE_BYTES<BLOCKS>;
    int tasks = 0, step = 0;
    auto bring = [&](const packed_heads &from, int64_t tile, uint8_t *to, float *down, uint64_t *full) {
        const float factor = from.downs[tile];
        *down = factor;
        if (isnan(factor)) s.misfits[tasks % 2] = 1;
        barrier_arrive_and_expect(full, (uint32_t)BYTES);
        bulk_copy(to, from.tiles + tile * BYTES, (uint32_t)BYTES, full);
    };
    for (int index = (int)blockIdx.x; index < forward_tasks(g); index += (int)gridDim.x, tasks++) {
        const forward_task task(g, index);
        barrier_wait(&s.q_empty, (tasks & 1) ^ 1);
        s.misfits[tasks % 2] = 0;
        bring(g.packed_q, (int64_t)task.item * g.tiles_q + task.tile_q, s.q, &s.q_down, &s.q_full);
        for (int n = 0; n < task.tiles; n++, step++) {
            const int stage = step % STAGES;
            const uint32_t free = (step / STAGES & 1) ^ 1;
            const int64_t tile = (int64_t)task.kv_item * g.tiles_k + n;
            barrier_wait(&s.k_empty[stage], free);
            bring(g.packed_k, tile, s.k[stage], &s.k_down[stage], &s.k_full[stage]);
            barrier_wait(&s.v_empty[stage], free);
            bring(g.packed_v, tile, s.v[stage], &s.v_down[stage], &s.v_full[stage]);
        }
    }
}

/* The same from float32 operands in place: rows of at most 64 columns that can be read four floats at a time. All
 * SPLITTERS threads. */
template <int STAGES> struct splitter {
    const attention_args &g;
    forward_shared<1, STAGES, true> &s;
    const int thread = (int)threadIdx.x;
    int count = 0; /* tiles split so far */
    int tasks = 0; /* begun before */

    /* Starts copying a tile: quad thread%16 of rows thread/16 + ROW_STEP*pass. */
    __device__ void fetch(const float *tile, int64_t row_stride, int rows, int slot) {
        const float *from = tile + thread / 16 * row_stride + thread % 16 * 4;
        const int mine = thread % 16 * 4 < g.dim ? rows - thread / 16 : 0;
#pragma unroll 4
        for (int pass = 0; pass < PASSES; pass++, from += ROW_STEP * row_stride) {
            const bool there = ROW_STEP * pass < mine;
            cp_async_or_zero<16>(shared_address(&s.staging[slot][pass][thread]), there ? from : tile, there);
        }
        cp_async_commit();
    }

    /* Splits the tile in `slot`, whose copies have arrived: a thread reads only what it has copied itself. */
    __device__ void split(int slot, uint8_t *to, float *down) {
        auto quad = [&](int pass) { return largest_magnitude(s.staging[slot][pass][thread]); };
        float largest = 0; /* magnitude */
        least_nonzero smallest;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const float most = quad(pass);
            largest = fmaxf(largest, most);
            smallest.add(most);
        }
#pragma unroll
        for (int lane = 16; lane; lane /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lane));
        float *parts = s.warp_largest[count++ % 2];
        if (thread % 32 == 0) parts[thread / 32] = largest;
        named_barrier(1, SPLITTERS);
#pragma unroll
        for (int warp = 0; warp < SPLITTERS / 32; warp++) largest = fmaxf(largest, parts[warp]);
        const bool carries = carries_rows<16, PASSES>(largest, smallest, quad);
        if (!carries || !carries_tile(largest)) s.misfits[tasks % 2] = 1;
        const int e = exponent_for(largest);
        if (thread == 0) *down = power_of_two(-e);
#pragma unroll 4
        for (int pass = 0; pass < PASSES; pass++)
            store_split(to, to + ATTENTION_BLOCK_BYTES, thread / 16 + ROW_STEP * pass, thread % 16,
                        s.staging[slot][pass][thread], power_of_two(e));
        fence_for_wgmma();
    }

    __device__ void run() {
        int step = 0;
        for (int index = (int)blockIdx.x; index < forward_tasks(g); index += (int)gridDim.x, tasks++) {
            const forward_task task(g, index);
            const float *q = head_of(g.q, task.batch, task.head) + (int64_t)task.tile_q * TILE_Q * g.q.row_stride;
            const float *k = head_of(g.k, task.batch, task.kv_head), *v = head_of(g.v, task.batch, task.kv_head);
            fetch(q, g.q.row_stride, g.queries - task.tile_q * TILE_Q, 0);
            fetch(k, g.k.row_stride, g.keys, 1);
            cp_async_wait<1>();
            barrier_wait(&s.q_empty, (tasks & 1) ^ 1);
            if (thread == 0) s.misfits[tasks % 2] = 0; /* before the barrier in split */
            split(0, s.q, &s.q_down);
            barrier_arrive(&s.q_full);
            for (int n = 0; n < task.tiles; n++, step++) {
                const int stage = step % STAGES, next = n + 1;
                const uint32_t free = (step / STAGES & 1) ^ 1;
                fetch(v + (int64_t)n * TILE_K * g.v.row_stride, g.v.row_stride, g.keys - n * TILE_K, 0);
                cp_async_wait<1>();
                barrier_wait(&s.k_empty[stage], free);
                split(1, s.k[stage], &s.k_down[stage]);
                barrier_arrive(&s.k_full[stage]);
                if (next < task.tiles)
                    fetch(k + (int64_t)next * TILE_K * g.k.row_stride, g.k.row_stride, g.keys - next * TILE_K, 1);
                else
                    cp_async_commit();
                cp_async_wait<1>();
                barrier_wait(&s.v_empty[stage], free);
                split(0, s.v[stage], &s.v_down[stage]);
                barrier_arrive(&s.v_full[stage]);
            }
        }
    }
};

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

/* The running softmax of a thread's two rows. */
struct softmax {
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    float shrink[2]; /* what earlier sums are multiplied by */

    /* Turns a tile's dot products into scores and those into weights, 2^TARGET_EXPONENT * exp(score - largest). */
    template <bool GENERAL>
    __device__ void weigh(const attention_args &g, float (&x)[64], float down, const float *mask, int row, int key0,
                          bool at_edge) {
        const int t = (int)threadIdx.x % 4;
        const float factor = down * g.scale * (GENERAL ? 1 : LOG2_E);
        if (GENERAL) {
#pragma unroll
            for (int n = 0; n < 64; n++) {
                const int i = row + 8 * row_half(n), j = key0 + column_of(n, t);
                x[n] *= factor;
                if (mask && i < g.queries && j < g.keys) x[n] += mask[i * g.mask.row_stride + j * g.mask.col_stride];
            }
        }
        if (at_edge) {
#pragma unroll
            for (int n = 0; n < 64; n++)
                if (hidden(g, row + 8 * row_half(n), key0 + column_of(n, t))) x[n] = -INFINITY;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = -INFINITY;
#pragma unroll
            for (int n = 2 * half; n < 64; n += 4) most = fmaxf(most, fmaxf(x[n], x[n + 1]));
            if (!GENERAL) most *= factor; /* which is positive */
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            most = fmaxf(most, largest[half]);
            const float base = most == -INFINITY ? 0 : most;
            shrink[half] = fast_exp2((largest[half] - base) * (GENERAL ? LOG2_E : 1));
            largest[half] = most;
            float part = 0;
#pragma unroll
            for (int n = 2 * half; n < 64; n += 4)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const float power = GENERAL ? fmaf(x[n + c] - base, LOG2_E, TARGET_EXPONENT)
                                                : fmaf(x[n + c], factor, TARGET_EXPONENT - base);
                    x[n + c] = fast_exp2(power);
                    part += x[n + c];
                }
            sum[half] = fmaf(sum[half], shrink[half], part);
        }
    }

    /* Adds up what the four lanes of a row have. */
    __device__ void finish() {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        }
    }
};

/* Drops weights of queries row and row + 8. */
__device__ static void drop(const attention_args &g, float (&x)[64], dropout_key key, int row, int key0) {
#pragma unroll
    for (int n = 0; n < 64; n += 8) {
        const uint32_t drops = dropped_of_group(g, key, row, key0 + column_of(n, (int)threadIdx.x % 4));
#pragma unroll
        for (int e = 0; e < 8; e++) /* odd columns: e%2; row + 8: e/2%2; eight columns on: e/4 */
            if (drops >> (4 * (e % 2) + 2 * (e / 2 % 2) + e / 4) & 1) x[n + e] = 0;
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* One task of a warpgroup that multiplies. `tasks` and `step` count tasks and tiles of keys before this one. */
template <int BLOCKS, int STAGES, bool SPLITS, bool GENERAL>
__device__ static void attend(const attention_args &g, forward_shared<BLOCKS, STAGES, SPLITS> &s,
                              const forward_task &task, int tasks, int step) {
    const int warp = warp_number() - BRINGERS<SPLITS> / 32, warpgroup = warp / 4, lane = (int)threadIdx.x % 32;
    const int first_row = task.tile_q * TILE_Q + warpgroup * WG_ROWS;
    const int row = first_row + warp % 4 * 16 + lane / 4; /* and row + 8 */
    const float *mask = GENERAL && g.mask.data ? head_of(g.mask, task.batch, task.head) : nullptr;
    const dropout_key key = dropout_key_of(g.seed, g.offset, (uint32_t)task.item);
    constexpr int PARTS = BLOCKS == 1 ? 2 : 1; /* of the keys, with sums of their own, where there are registers */
    constexpr int ACCUMULATORS = BLOCKS * PARTS;
    float o[BLOCKS][32] = {};
    int misfits = 0;
    softmax soft;
    barrier_wait(&s.q_full, tasks & 1);
    const float q_down = s.q_down;
    const split_tile<BLOCKS> q = {tile_address(s.q) + warpgroup * WG_ROWS / 16 * STEP_DOWN, COLUMN_BLOCK};
#pragma unroll 1
    for (int n = 0; n < task.tiles; n++, step++) {
        const int stage = step % STAGES;
        const uint32_t phase = step / STAGES & 1;
        float x[64];
        barrier_wait(&s.k_full[stage], phase);
        const float down = q_down * s.k_down[stage];
        wgmma_fence();
        multiply_rows<BLOCKS>(x, q, {tile_address(s.k[stage]), COLUMN_BLOCK});
        wgmma_commit();
        wgmma_wait<0>();
        hold(x);
        warp_arrives(&s.k_empty[stage]);
        if (n + 1 == task.tiles) warp_arrives(&s.q_empty);

        const bool diagonal = g.causal && (n + 1) * TILE_K > first_row;
        soft.weigh<GENERAL>(g, x, down, mask, row, n * TILE_K, diagonal || (n + 1) * TILE_K > g.keys);
        if (GENERAL && g.drop_below) drop(g, x, key, row, n * TILE_K);

        float added[ACCUMULATORS][32];
        split_registers<TILE_K / 16> p;
        p.split(x, 1, 1);
        barrier_wait(&s.v_full[stage], phase);
        const float v_down = s.v_down[stage];
        wgmma_fence();
#pragma unroll
        for (int a = 0; a < ACCUMULATORS; a++) /* column blocks, or the halves of the keys */
            multiply_columns<TILE_K / 16 / PARTS>(added[a], p, a / BLOCKS * (TILE_K / 16 / PARTS),
                                                  split_tile<BLOCKS>{tile_address(s.v[stage]), COLUMN_BLOCK},
                                                  a % BLOCKS);
        wgmma_commit();
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int c = 0; c < 32; c++) o[b][c] *= soft.shrink[row_half(c)];
        wgmma_wait<0>();
#pragma unroll
        for (int a = 0; a < ACCUMULATORS; a++) hold(added[a]);
        if (n + 1 == task.tiles) misfits = s.misfits[tasks % 2];
        warp_arrives(&s.v_empty[stage]);
#pragma unroll
        for (int a = 0; a < ACCUMULATORS; a++)
#pragma unroll
            for (int c = 0; c < 32; c++) o[a % BLOCKS][c] = fmaf(added[a][c], v_down, o[a % BLOCKS][c]);
    }

    soft.finish();
    float factor[2], check = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float sum = soft.sum[half];
        factor[half] = sum == 0 ? 0 : (GENERAL ? dropout_scale(g.drop_below) : 1) / sum;
        if (g.lse.data && lane % 4 == 0 && row + 8 * half < g.queries) {
            const float unit = GENERAL ? 1 : LN_2;
            head_of(g.lse, task.batch, task.head)[(row + 8 * half) * g.lse.row_stride] =
                sum == 0 ? INFINITY : soft.largest[half] * unit + (log2f(sum) - TARGET_EXPONENT) * LN_2;
        }
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
        store_rows(g.o, head_of(g.o, task.batch, task.head), o[b], factor, row, g.queries, b * ATTENTION_COLS, g.dim);

    /* A tile is left to the ieee kernel if a splitter said so, or if NaN shows, which splitting does not look for. */
    if (SPLITS) {
#pragma unroll
        for (int c = 0; c < 32; c++) check = fmaf(o[0][c], 0, check);
        check += soft.sum[0] + soft.sum[1];
        if (isnan(check)) misfits = 1;
    }
    misfits = __any_sync(0xffffffffu, misfits);
    int *warps = s.warp_misfits[tasks % 2];
    if (lane == 0) warps[warp] = misfits;
    named_barrier(2, 2 * WARPGROUP);
    if (threadIdx.x == BRINGERS<SPLITS>) {
        for (int n = 0; n < 8; n++) misfits |= warps[n];
        g.recompute_q[(int64_t)task.item * g.tiles_q + task.tile_q] = misfits;
    }
}

template <int BLOCKS, int STAGES, bool SPLITS, bool GENERAL> __device__ static void forward(const attention_args &g) {
    auto &s = *(forward_shared<BLOCKS, STAGES, SPLITS> *)dynamic_shared<1024>();
    if (threadIdx.x == 0) {
        const int bringers = SPLITS ? SPLITTERS : 1, warps = 2 * WARPGROUP / 32;
        barrier_init(&s.q_full, bringers);
        barrier_init(&s.q_empty, warps);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s.k_full[i], bringers);
            barrier_init(&s.v_full[i], bringers);
            barrier_init(&s.k_empty[i], warps);
            barrier_init(&s.v_empty[i], warps);
        }
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_previous_kernel();
    if (warp_number() < BRINGERS<SPLITS> / 32) {
        if constexpr (SPLITS) {
            registers_release_to<56>();
            splitter<STAGES> brings = {g, s};
            brings.run();
        } else {
            registers_release_to<24>();
            if (threadIdx.x == 0) copy_packed<BLOCKS, STAGES>(g, s);
        }
    } else {
        registers_take<SPLITS ? 200 : 240>();
        int tasks = 0, step = 0;
        for (int index = (int)blockIdx.x; index < forward_tasks(g); index += (int)gridDim.x) {
            const forward_task task(g, index);
            attend<BLOCKS, STAGES, SPLITS, GENERAL>(g, s, task, tasks++, step);
            step += task.tiles;
        }
    }
}

#define FORWARD(name, id, blocks, stages, splits, general)                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS<splits>, 1) name(const __grid_constant__ attention_args g) { \
        forward<blocks, stages, splits, general>(g);                                                                  \
    }                                                                                                                 \
    ASSERT_LISTED_AS(id, TILE_Q, TILE_K, THREADS<splits>, sizeof(forward_shared<blocks, stages, splits>))
FORWARD(attention_forward_short, ATTENTION_FORWARD_SHORT, 1, 2, true, false);
FORWARD(attention_forward_short_general, ATTENTION_FORWARD_SHORT_GENERAL, 1, 2, true, true);
FORWARD(attention_forward_64, ATTENTION_FORWARD_64, 1, 2, false, false);
FORWARD(attention_forward_64_general, ATTENTION_FORWARD_64_GENERAL, 1, 2, false, true);
FORWARD(attention_forward_128, ATTENTION_FORWARD_128, 2, 1, false, false);
FORWARD(attention_forward_128_general, ATTENTION_FORWARD_128_GENERAL, 2, 1, false, true);
