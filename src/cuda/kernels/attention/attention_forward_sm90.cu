/* attention_forward_sm90.cu: O = softmax(scale Q K^T + mask) V on Hopper, from split operands.
 *
 * A task is a tile of 128 queries of one head. A thread block goes through its keys, 128 at a time (64 or 32 with more
 * than 128 or 192 columns: shared memory has no room for more), and then takes the gridDim-th task on, whose operands
 * it brings while the last sums of the one before are finished. Two warpgroups multiply, 64 queries each, and keep O,
 * the largest score and the sum of exponentials of their rows in registers:
 *
 *     S = Q K^T       from shared memory, into a fresh accumulator
 *     P = 2^14 exp(score - largest so far), split into hi and lo in registers
 *     O = O exp(old largest - new largest) + P V
 *
 * The other warps bring Q, K and V. Either they were packed (attention_pack.cu) and a thread copies them, or two
 * warpgroups split them here (SPLITS): that saves a pass over memory, but every thread block of a head does it again,
 * so it is for short sequences. Where K and V of a head have room in shared memory they stay for its other queries.
 *
 * GENERAL adds masks, dropout and scales that are not positive. Scores are in units of log2, unless GENERAL, where a
 * finite mask may be so large that only the difference from the row's largest may be scaled.
 */
#include "cuda/kernels/attention/attention_wgmma.cuh"
#include "cuda/kernels/kernel_list.h"

constexpr int TILE_Q = ATTENTION_ROWS, TILE_K = ATTENTION_ROWS;
template <int BLOCKS> constexpr int KEYS = BLOCKS <= 2 ? TILE_K : BLOCKS == 3 ? 64 : 32; /* in a stage */
constexpr int TAIL = ATTENTION_TAIL;      /* keys, or queries, of the last tile, if it has no more */
constexpr int SPLITTERS = 2 * WARPGROUP;  /* threads */
constexpr int ROW_STEP = SPLITTERS / 16;  /* rows between a thread's quads */
constexpr int PASSES = TILE_K / ROW_STEP; /* a thread's quads of a tile */
template <bool SPLITS> constexpr int BRINGERS = SPLITS ? SPLITTERS : WARPGROUP; /* threads before those that multiply */
template <bool SPLITS> constexpr int THREADS = BRINGERS<SPLITS> + 2 * WARPGROUP;

template <int BLOCKS> constexpr int TILE_BYTES = 2 * BLOCKS *ATTENTION_BLOCK_BYTES;
template <int BLOCKS> constexpr int STAGE_BYTES = 2 * BLOCKS *KEYS<BLOCKS> * 128; /* of K or V */

/* Of a tile in shared memory. Apart, because racecheck sees sixteen bytes as one place. */
struct tile_state {
    alignas(16) uint64_t full, empty;
    alignas(16) float down;
    alignas(16) int misfit; /* not 0: the split cannot carry it */
};

template <int BLOCKS, int STAGES, bool SPLITS> struct __align__(1024) forward_shared {
    uint8_t q[TILE_BYTES<BLOCKS>], k[STAGES][STAGE_BYTES<BLOCKS>], v[STAGES][STAGE_BYTES<BLOCKS>];
    float4 staging[SPLITS ? 2 : 0][PASSES][SPLITTERS];
    tile_state of_q, of_k[STAGES], of_v[STAGES];
    alignas(16) float warp_largest[2][SPLITTERS / 32];
    int warp_misfits[2][8]; /* of the warps that multiply, which may be a task apart */
};

/* A task: a tile of queries of one head, and how many stages of keys it sees. */
template <int BLOCKS> struct forward_task {
    int tile_q, item, batch, head, kv_item, stages;
    int kv_after; /* the first task with other keys */
    __device__ forward_task(const attention_args &g, int index) {
        const int group = g.heads / g.kv_heads;
        item = index / g.tiles_q;
        tile_q = (item + 1) * g.tiles_q - 1 - index; /* late ones first: with a causal mask they see the most keys */
        batch = item / g.heads;
        head = item - batch * g.heads;
        kv_item = item / group;
        kv_after = (kv_item + 1) * group * g.tiles_q;
        stages = ((g.causal ? min(g.keys, (tile_q + 1) * TILE_Q) : g.keys) + KEYS<BLOCKS> - 1) / KEYS<BLOCKS>;
    }
};

/* The tasks of a thread block: every gridDim-th, so that blocks that run together read the same keys. If all keys of a
 * head have room in shared memory, neighbouring ones, so that K and V stay there from one to the next. */
template <int STAGES, bool SPLITS> struct forward_tasks {
    int index, after, step;
    bool near; /* neighbouring ones */
    __device__ forward_tasks(const attention_args &g) {
        const int64_t all = (int64_t)g.batch * g.heads * g.tiles_q;
        near = SPLITS && !g.causal && g.tiles_k <= STAGES;
        index = near ? (int)(all * blockIdx.x / gridDim.x) : (int)blockIdx.x;
        after = near ? (int)(all * (blockIdx.x + 1) / gridDim.x) : (int)all;
        step = near ? 1 : (int)gridDim.x;
    }
    /* Whether K and V of the present task stay for the next. */
    __device__ bool keeps(int kv_after) const { return near && index + 1 < min(after, kv_after); }
};

/* ---- Bringing K and V -------------------------------------------------------------------------------------------- */

/* Fills q, then k and v of every tile of keys, task after task, from packed operands. One thread. */
template <int BLOCKS, int STAGES>
__device__ static void copy_packed(const attention_args &g, forward_shared<BLOCKS, STAGES, false> &s) {
    int count = 0, step = 0;
    auto bring = [&](const packed_heads &from, int64_t row, int rows, uint8_t *to, tile_state *state, uint32_t free) {
        const int64_t tile = row / ATTENTION_ROWS;
        const uint8_t *source = from.tiles + tile * TILE_BYTES<BLOCKS> + row % ATTENTION_ROWS * 128;
        barrier_wait(&state->empty, free);
        const float factor = from.downs[tile];
        state->down = factor;
        state->misfit = isnan(factor);
        barrier_arrive_and_expect(&state->full, (uint32_t)(2 * BLOCKS * rows * 128));
        const int copies = rows == ATTENTION_ROWS ? 1 : 2 * BLOCKS, bytes = 2 * BLOCKS * rows * 128 / copies;
        for (int part = 0; part < copies; part++)
            bulk_copy(to + part * bytes, source + part * ATTENTION_BLOCK_BYTES, (uint32_t)bytes, &state->full);
    };
    for (forward_tasks<STAGES, false> tasks(g); tasks.index < tasks.after; tasks.index += tasks.step, count++) {
        const forward_task<BLOCKS> task(g, tasks.index);
        bring(g.packed_q, ((int64_t)task.item * g.tiles_q + task.tile_q) * TILE_Q, TILE_Q, s.q, &s.of_q,
              (count & 1) ^ 1);
        for (int n = 0; n < task.stages; n++, step++) {
            const int stage = step % STAGES;
            const uint32_t free = (step / STAGES & 1) ^ 1;
            const int64_t row = (int64_t)task.kv_item * g.tiles_k * TILE_K + n * KEYS<BLOCKS>;
            bring(g.packed_k, row, KEYS<BLOCKS>, s.k[stage], &s.of_k[stage], free);
            bring(g.packed_v, row, KEYS<BLOCKS>, s.v[stage], &s.of_v[stage], free);
        }
    }
}

/* The same from float32 operands in place: rows of at most 64 columns that can be read four floats at a time. All
 * SPLITTERS threads. Tiles come in the order K, Q, V, K, V, ...: the first K has room before Q has. */
template <int STAGES> struct splitter {
    const attention_args &g;
    forward_shared<1, STAGES, true> &s;
    const int thread = (int)threadIdx.x;
    int count = 0; /* tiles split so far */

    /* A tile to be split. */
    struct job {
        const float *from;
        int64_t row_stride;
        int rows;
        uint8_t *to;
        tile_state *state;
        uint32_t free; /* the phase of state->empty */
    };

    /* Starts copying a tile: quad thread%16 of rows thread/16 + ROW_STEP*pass. */
    __device__ void fetch(const job &tile, int slot) {
        const float *from = tile.from + thread / 16 * tile.row_stride + thread % 16 * 4;
        const int mine = thread % 16 * 4 < g.dim ? tile.rows - thread / 16 : 0;
#pragma unroll 4
        for (int pass = 0; pass < PASSES; pass++, from += ROW_STEP * tile.row_stride) {
            const bool there = ROW_STEP * pass < mine;
            cp_async_or_zero<16>(shared_address(&s.staging[slot][pass][thread]), there ? from : tile.from, there);
        }
    }

    /* Splits the rows of the tile in `slot`, whose copies have arrived: a thread reads only what it has copied itself.
     * Rows past the last are zeros. */
    template <int ROWS> __device__ void split(int slot, const job &tile) {
        constexpr int MINE = ROWS / ROW_STEP;
        tile_state *state = tile.state;
        auto quad = [&](int pass) { return largest_magnitude(s.staging[slot][pass][thread]); };
        float largest = 0; /* magnitude */
        least_nonzero smallest;
#pragma unroll
        for (int pass = 0; pass < MINE; pass++) {
            const float most = quad(pass);
            largest = fmaxf(largest, most);
            smallest.add(most);
        }
#pragma unroll
        for (int lane = 16; lane; lane /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lane));
        float *parts = s.warp_largest[count++ % 2];
        if (thread % 32 == 0) parts[thread / 32] = largest;
        barrier_wait(&state->empty, tile.free);
        if (thread == 0) state->misfit = 0;
        named_barrier(1, SPLITTERS);
#pragma unroll
        for (int warp = 0; warp < SPLITTERS / 32; warp++) largest = fmaxf(largest, parts[warp]);
        const bool carries = carries_rows<16, MINE>(largest, smallest, quad);
        if (!carries || !carries_tile(largest)) state->misfit = 1;
        const int e = exponent_for(largest);
        if (thread == 0) state->down = power_of_two(-e);
#pragma unroll 4
        for (int pass = 0; pass < MINE; pass++)
            store_split(tile.to, tile.to + ATTENTION_BLOCK_BYTES, thread / 16 + ROW_STEP * pass, thread % 16,
                        s.staging[slot][pass][thread], power_of_two(e));
        fence_for_wgmma();
        barrier_arrive(&state->full);
    }

    /* Where run() is: tiles of a task are the first of K, Q, the first of V, the second of K, ... */
    forward_tasks<STAGES, true> tasks = {g};
    forward_task<1> task = {g, tasks.index};
    int part = 0, begun = 0; /* tasks begun before */
    int step = 0;            /* tiles of K and V before those of the task */
    bool kept = false;       /* the task has K and V of the one before */

    /* The tile after the last one; false: there is none. */
    __device__ bool next(job &tile) {
        if (tasks.index >= tasks.after) return false;
        const int n = max(part - 1, 0) / 2, stage = (step + n) % STAGES;
        const bool of_q = part == 1, of_v = part && part % 2 == 0;
        const heads_in &from = of_q ? g.q : of_v ? g.v : g.k;
        const int row0 = (of_q ? task.tile_q : n) * TILE_K;
        tile.from = head_of(from, task.batch, of_q ? task.head : task.kv_item - task.batch * g.kv_heads) +
                    row0 * from.row_stride;
        tile.row_stride = from.row_stride;
        tile.rows = (of_q ? g.queries : g.keys) - row0;
        tile.to = of_q ? s.q : of_v ? s.v[stage] : s.k[stage];
        tile.state = of_q ? &s.of_q : of_v ? &s.of_v[stage] : &s.of_k[stage];
        tile.free = ((of_q ? begun : (step + n) / STAGES) & 1) ^ 1;
        if (++part > (kept ? 1 : 2 * task.stages)) {
            kept = tasks.keeps(task.kv_after);
            if (!kept) step += task.stages;
            part = kept ? 1 : 0;
            begun++;
            tasks.index += tasks.step;
            task = forward_task<1>(g, tasks.index);
        }
        return true;
    }

    __device__ void run() {
        job now, then;
        bool more = next(now);
        fetch(now, 0);
        cp_async_commit();
        for (int slot = 0; more; slot ^= 1) {
            more = next(then);
            if (more) fetch(then, slot ^ 1);
            cp_async_commit();
            cp_async_wait<1>();
            if (now.rows <= TAIL)
                split<TAIL>(slot, now);
            else
                split<TILE_K>(slot, now);
            now = then;
        }
    }
};

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

/* The running softmax of a thread's two rows. */
struct softmax {
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    float shrink[2]; /* what earlier sums are multiplied by */

    /* Turns a tile's dot products into scores and those into weights, 2^TARGET_EXPONENT * exp(score - largest). */
    template <bool GENERAL, int N>
    __device__ void weigh(const attention_args &g, float (&x)[N], float down, const float *mask, int row, int key0,
                          bool at_edge) {
        const int t = (int)threadIdx.x % 4;
        const float factor = down * g.scale * (GENERAL ? 1 : LOG2_E);
        if (GENERAL) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                const int i = row + 8 * row_half(n), j = key0 + column_of(n, t);
                x[n] *= factor;
                if (mask && i < g.queries && j < g.keys) x[n] += mask[i * g.mask.row_stride + j * g.mask.col_stride];
            }
        }
        if (at_edge) {
            int seen[2]; /* of the tile's keys */
#pragma unroll
            for (int half = 0; half < 2; half++)
                seen[half] = (g.causal ? min(g.keys, row + 8 * half + 1) : g.keys) - key0;
#pragma unroll
            for (int n = 0; n < N; n++)
                if (column_of(n, t) >= seen[row_half(n)]) x[n] = -INFINITY;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = -INFINITY;
#pragma unroll
            for (int n = 2 * half; n < N; n += 4) most = fmaxf(most, fmaxf(x[n], x[n + 1]));
            if (!GENERAL) most *= factor; /* which is positive */
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            most = fmaxf(most, largest[half]);
            const float base = most == -INFINITY ? 0 : most;
            shrink[half] = fast_exp2((largest[half] - base) * (GENERAL ? LOG2_E : 1));
            largest[half] = most;
            float part = 0;
#pragma unroll
            for (int n = 2 * half; n < N; n += 4)
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
template <int N>
__device__ static void drop(const attention_args &g, float (&x)[N], dropout_key key, int row, int key0) {
#pragma unroll
    for (int n = 0; n < N; n += 8) {
        const uint32_t drops = dropped_of_group(g, key, row, key0 + column_of(n, (int)threadIdx.x % 4));
#pragma unroll
        for (int e = 0; e < 8; e++) /* odd columns: e%2; row + 8: e/2%2; eight columns on: e/4 */
            if (drops >> (4 * (e % 2) + 2 * (e / 2 % 2) + e / 4) & 1) x[n + e] = 0;
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* One task of a warpgroup that multiplies. `begun` and `step` count tasks and tiles of keys before those of this one;
 * `keeps`: the next has the same keys. */
template <int BLOCKS, int STAGES, bool SPLITS, bool GENERAL>
__device__ static void attend(const attention_args &g, forward_shared<BLOCKS, STAGES, SPLITS> &s,
                              const forward_task<BLOCKS> &task, int begun, int step, bool keeps) {
    const int warp = warp_number() - BRINGERS<SPLITS> / 32, warpgroup = warp / 4, lane = (int)threadIdx.x % 32;
    const int first_row = task.tile_q * TILE_Q + warpgroup * WG_ROWS;
    const int row = first_row + warp % 4 * 16 + lane / 4; /* and row + 8 */
    const float *mask = GENERAL && g.mask.data ? head_of(g.mask, task.batch, task.head) : nullptr;
    const dropout_key key = dropout_key_of(g.seed, g.offset, (uint32_t)task.item);
    constexpr uint32_t STAGE_BLOCK = KEYS<BLOCKS> * 128 / 16; /* between column blocks of a stage, as COLUMN_BLOCK */
    float o[BLOCKS][32] = {};
    softmax soft;
    barrier_wait(&s.of_q.full, begun & 1);
    const float q_down = s.of_q.down;
    int misfits = s.of_q.misfit;
    const split_tile<BLOCKS> q = {tile_address(s.q) + warpgroup * WG_ROWS / 16 * STEP_DOWN, COLUMN_BLOCK};

    /* A stage of which the first WIDTH keys count. */
    auto add_keys = [&](auto width, int n) {
        constexpr int WIDTH = decltype(width)::value;
        constexpr int PARTS = BLOCKS == 1 && WIDTH == TILE_K ? 2 : 1; /* of the keys, with sums of their own */
        constexpr int SUMS = BLOCKS * PARTS, AT_ONCE = BLOCKS <= 2 ? SUMS : 1, STEPS = WIDTH / 16 / PARTS;
        const int stage = (step + n) % STAGES, key0 = n * KEYS<BLOCKS>;
        const uint32_t phase = (step + n) / STAGES & 1;
        float x[WIDTH / 2];
        barrier_wait(&s.of_k[stage].full, phase);
        const float down = q_down * s.of_k[stage].down;
        misfits |= s.of_k[stage].misfit;
        wgmma_fence();
        multiply_rows<BLOCKS>(x, q, {tile_address(s.k[stage]), STAGE_BLOCK});
        wgmma_commit();
        wgmma_wait<0>();
        hold(x);
        if (!keeps) barrier_arrive(&s.of_k[stage].empty);
        if (n + 1 == task.stages) barrier_arrive(&s.of_q.empty);

        const bool diagonal = g.causal && key0 + WIDTH > first_row;
        soft.weigh<GENERAL>(g, x, down, mask, row, key0, diagonal || key0 + WIDTH > g.keys);
        if (GENERAL && g.drop_below) drop(g, x, key, row, key0);

        split_registers<WIDTH / 16> p;
        p.split(x, 1, 1);
        barrier_wait(&s.of_v[stage].full, phase);
        const float v_down = s.of_v[stage].down;
        misfits |= s.of_v[stage].misfit;
#pragma unroll
        for (int first = 0; first < SUMS; first += AT_ONCE) {
            float added[AT_ONCE][32];
            wgmma_fence();
#pragma unroll
            for (int a = 0; a < AT_ONCE; a++) /* column blocks, or the halves of the keys */
                multiply_columns<STEPS>(added[a], p, (first + a) / BLOCKS * STEPS,
                                        split_tile<BLOCKS>{tile_address(s.v[stage]), STAGE_BLOCK},
                                        (first + a) % BLOCKS);
            wgmma_commit();
            if (first == 0) {
#pragma unroll
                for (int b = 0; b < BLOCKS; b++)
#pragma unroll
                    for (int c = 0; c < 32; c++) o[b][c] *= soft.shrink[row_half(c)];
            }
            wgmma_wait<0>();
#pragma unroll
            for (int a = 0; a < AT_ONCE; a++) hold(added[a]);
            if (!keeps && first + AT_ONCE == SUMS) barrier_arrive(&s.of_v[stage].empty);
#pragma unroll
            for (int a = 0; a < AT_ONCE; a++)
#pragma unroll
                for (int c = 0; c < 32; c++)
                    o[(first + a) % BLOCKS][c] = fmaf(added[a][c], v_down, o[(first + a) % BLOCKS][c]);
        }
    };
    const bool short_tail = KEYS<BLOCKS> == TILE_K && g.keys - (task.stages - 1) * TILE_K <= TAIL;
    const int whole = task.stages - (short_tail ? 1 : 0);
#pragma unroll 1
    for (int n = 0; n < whole; n++) add_keys(integral<KEYS<BLOCKS>>(), n);
    if constexpr (KEYS<BLOCKS> == TILE_K)
        if (short_tail) add_keys(integral<TAIL>(), whole);

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

    /* A tile is left to the ieee kernel if a splitter said so, or if NaN shows, which splitting does not look for. Rows
     * past the last may have anything. */
    if (SPLITS) {
#pragma unroll
        for (int c = 0; c < 32; c++)
            if (row + 8 * row_half(c) < g.queries) check = fmaf(o[0][c], 0, check);
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (row + 8 * half < g.queries) check += soft.sum[half];
        if (isnan(check)) misfits = 1;
    }
    misfits = __any_sync(0xffffffffu, misfits);
    int *warps = s.warp_misfits[begun % 2];
    if (lane == 0) warps[warp] = misfits;
    named_barrier(2, 2 * WARPGROUP);
    if (threadIdx.x < BRINGERS<SPLITS> + TILE_Q / ATTENTION_FLAG_ROWS) {
        for (int n = 0; n < 8; n++) misfits |= warps[n];
        g.recompute_q[((int64_t)task.item * g.tiles_q + task.tile_q) * (TILE_Q / ATTENTION_FLAG_ROWS) + threadIdx.x -
                      BRINGERS<SPLITS>] = misfits;
    }
}

template <int BLOCKS, int STAGES, bool SPLITS, bool GENERAL> __device__ static void forward(const attention_args &g) {
    auto &s = *(forward_shared<BLOCKS, STAGES, SPLITS> *)dynamic_shared<1024>();
    if (threadIdx.x == 0) {
        const int bringers = SPLITS ? SPLITTERS : 1, readers = 2 * WARPGROUP; /* every thread arrives */
        auto init = [=](tile_state *state) {
            barrier_init(&state->full, bringers);
            barrier_init(&state->empty, readers);
        };
        init(&s.of_q);
        for (int i = 0; i < STAGES; i++) {
            init(&s.of_k[i]);
            init(&s.of_v[i]);
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
        int begun = 0, step = 0;
        for (forward_tasks<STAGES, SPLITS> tasks(g); tasks.index < tasks.after; tasks.index += tasks.step) {
            const forward_task<BLOCKS> task(g, tasks.index);
            const bool keeps = tasks.keeps(task.kv_after);
            attend<BLOCKS, STAGES, SPLITS, GENERAL>(g, s, task, begun++, step, keeps);
            if (!keeps) step += task.stages;
        }
    }
}

#define FORWARD(name, id, blocks, stages, splits, general)                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS<splits>, 1) name(const __grid_constant__ attention_args g) { \
        forward<blocks, stages, splits, general>(g);                                                                  \
    }                                                                                                                 \
    ASSERT_LISTED_AS(id, TILE_Q, KEYS<blocks>, THREADS<splits>, sizeof(forward_shared<blocks, stages, splits>))
FORWARD(attention_forward_short, ATTENTION_FORWARD_SHORT, 1, 2, true, false);
FORWARD(attention_forward_short_general, ATTENTION_FORWARD_SHORT_GENERAL, 1, 2, true, true);
FORWARD(attention_forward_64, ATTENTION_FORWARD_64, 1, 2, false, false);
FORWARD(attention_forward_64_general, ATTENTION_FORWARD_64_GENERAL, 1, 2, false, true);
FORWARD(attention_forward_128, ATTENTION_FORWARD_128, 2, 1, false, false);
FORWARD(attention_forward_128_general, ATTENTION_FORWARD_128_GENERAL, 2, 1, false, true);
FORWARD(attention_forward_192, ATTENTION_FORWARD_192, 3, 1, false, false);
FORWARD(attention_forward_192_general, ATTENTION_FORWARD_192_GENERAL, 3, 1, false, true);
FORWARD(attention_forward_256, ATTENTION_FORWARD_256, 4, 1, false, false);
FORWARD(attention_forward_256_general, ATTENTION_FORWARD_256_GENERAL, 4, 1, false, true);
