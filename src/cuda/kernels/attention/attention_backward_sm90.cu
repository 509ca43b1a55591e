/* attention_backward_sm90.cu: the gradients of attention on Hopper, from packed operands (attention_pack.cu).
 *
 *     P  = exp(score - lse)     dP = dO V^T             dS = P (dP - delta)
 *     dQ = scale dS K           dK = scale dS^T Q       dV = P^T dO
 *
 * Two kernels, so that each sum has one owner and needs no atomic addition: one for dK and dV, whose tasks are tiles of
 * 128 keys and go through the queries, 64 at a time, and one for dQ, which has queries and goes through keys. A thread
 * block takes every gridDim-th task, and brings the next one's operands early.
 * The first computes S and dP transposed: rows are keys. Below, `fixed` are the operands of the rows, K and V or Q and
 * dO, and `moving` those of the columns, in the same order: S is fixed[0] moving[0]^T, dP is fixed[1] moving[1]^T.
 *
 * Two warpgroups multiply, 64 rows each; a thread of the third brings the operands. With dropout, the weights that were
 * dropped count as 0 in dV and dP, and the others' factor is applied to dP, and at the end to dV.
 */
#include "cuda/kernels/attention/attention_wgmma.cuh"
#include "cuda/kernels/kernel_list.h"

constexpr int ROWS = ATTENTION_ROWS, COLS = 64, THREADS = 3 * WARPGROUP;
constexpr int TAIL = ATTENTION_TAIL - COLS; /* the last tile of columns of a head is so wide if it has no more */
constexpr int DS_EXPONENT_LIMIT = 100;      /* of the scale of a row of dS */
constexpr uint32_t MOVING_BLOCK = COLS * 128 / 16;

/* Tasks whose fixed operands have room side by side. */
template <int BLOCKS> constexpr int BUFFERS = BLOCKS == 1 ? 2 : 1;

template <int BLOCKS, int STAGES> struct __align__(1024) backward_shared {
    uint8_t fixed[BUFFERS<BLOCKS>][2][2 * BLOCKS][ROWS * 128];
    uint8_t moving[STAGES][2][2 * BLOCKS][COLS * 128];
    float columns[STAGES][3][COLS]; /* lse, delta and shift of the queries, where those are the columns */
    uint64_t fixed_full[BUFFERS<BLOCKS>], fixed_empty[BUFFERS<BLOCKS>], full[STAGES][2], empty[STAGES][2];
    float fixed_down[BUFFERS<BLOCKS>][2];
    struct {
        alignas(16) float of; /* racecheck sees sixteen bytes as one place */
    } moving_down[STAGES][2];
    int misfits[BUFFERS<BLOCKS>]; /* of a task; not 0: something was read that the split cannot carry */
};

/* The packed operands in their roles. */
template <bool KEYS> __device__ static const packed_heads &fixed_operand(const attention_args &g, int n) {
    return KEYS ? (n ? g.packed_v : g.packed_k) : (n ? g.packed_grad_o : g.packed_q);
}
template <bool KEYS> __device__ static const packed_heads &moving_operand(const attention_args &g, int n) {
    return KEYS ? (n ? g.packed_grad_o : g.packed_q) : (n ? g.packed_v : g.packed_k);
}

/* A task. KEYS: dK and dV of a tile of keys; else dQ of a tile of queries. */
template <bool KEYS> struct backward_task {
    int tile, batch, head;  /* head: of keys and values if KEYS, else of queries */
    int group;              /* heads of queries for each of keys and values */
    int first, after, each; /* tiles of columns of each head, and how many that are */
    int tail;               /* the tile of columns of which only TAIL count; -1: none */

    __device__ static int count(const attention_args &g) {
        return g.batch * (KEYS ? g.kv_heads * g.tiles_k : g.heads * g.tiles_q);
    }
    __device__ backward_task(const attention_args &g, int index) {
        const int tiles = KEYS ? g.tiles_k : g.tiles_q, heads = KEYS ? g.kv_heads : g.heads, item = index / tiles;
        tile = KEYS ? index % tiles : tiles - 1 - index % tiles; /* those with the most columns first, if causal */
        batch = item / heads;
        head = item % heads;
        group = g.heads / g.kv_heads;
        const int all = KEYS ? g.queries : g.keys, columns = (all + COLS - 1) / COLS;
        first = KEYS && g.causal ? min(columns, tile * (ROWS / COLS)) : 0;
        after = !KEYS && g.causal ? min(columns, (tile + 1) * (ROWS / COLS)) : columns;
        each = after - first;
        tail = all - (columns - 1) * COLS <= TAIL ? columns - 1 : -1;
    }
    __device__ int steps() const { return KEYS ? group * each : each; }
    __device__ int column_tile(int step) const { return first + step % each; }
    __device__ int query_head(int step) const { return KEYS ? head * group + step / each : head; }
    __device__ int fixed_item(const attention_args &g) const { return batch * (KEYS ? g.kv_heads : g.heads) + head; }
    __device__ int moving_item(const attention_args &g, int step) const {
        return KEYS ? batch * g.heads + query_head(step) : batch * g.kv_heads + head / group;
    }
};

/* Brings the fixed operands, then the moving ones of every step, task after task. One thread. */
template <bool KEYS, int BLOCKS, int STAGES>
__device__ static void bring(const attention_args &g, backward_shared<BLOCKS, STAGES> &s) {
    constexpr uint32_t TILE_BYTES = 2 * BLOCKS * ATTENTION_BLOCK_BYTES;
    int tasks = 0, steps = 0;
    for (int index = (int)blockIdx.x; index < backward_task<KEYS>::count(g); index += (int)gridDim.x, tasks++) {
        const backward_task<KEYS> task(g, index);
        const int64_t fixed = (int64_t)task.fixed_item(g) * (KEYS ? g.tiles_k : g.tiles_q) + task.tile;
        const int buffer = tasks % BUFFERS<BLOCKS>;
        barrier_wait(&s.fixed_empty[buffer], (tasks / BUFFERS<BLOCKS> & 1) ^ 1);
        s.misfits[buffer] = 0;
        for (int n = 0; n < 2; n++) {
            const float down = fixed_operand<KEYS>(g, n).downs[fixed];
            s.fixed_down[buffer][n] = down;
            if (isnan(down)) s.misfits[buffer] = 1;
        }
        barrier_arrive_and_expect(&s.fixed_full[buffer], 2 * TILE_BYTES);
        for (int n = 0; n < 2; n++)
            bulk_copy(s.fixed[buffer][n], fixed_operand<KEYS>(g, n).tiles + fixed * TILE_BYTES, TILE_BYTES,
                      &s.fixed_full[buffer]);
        for (int step = 0; step < task.steps(); step++, steps++) {
            const int stage = steps % STAGES, columns = task.column_tile(step);
            const int64_t item = task.moving_item(g, step);
            const int64_t tile = item * (KEYS ? g.tiles_q : g.tiles_k) + columns / 2;
            const uint32_t part_bytes = (BLOCKS == 1 && columns == task.tail ? TAIL : COLS) * 128;
            for (int n = 0; n < 2; n++) {
                const packed_heads &from = moving_operand<KEYS>(g, n);
                const float down = from.downs[tile];
                uint64_t *full = &s.full[stage][n];
                barrier_wait(&s.empty[stage][n], (steps / STAGES & 1) ^ 1);
                s.moving_down[stage][n].of = down;
                if (isnan(down)) s.misfits[buffer] = 1;
                barrier_arrive_and_expect(full, 2 * BLOCKS * part_bytes + (KEYS ? (2 - n) * COLS * 4 : 0));
                for (int part = 0; part < 2 * BLOCKS; part++)
                    bulk_copy(s.moving[stage][n][part],
                              from.tiles + tile * TILE_BYTES + part * ATTENTION_BLOCK_BYTES + columns % 2 * COLS * 128,
                              part_bytes, full);
                const int64_t query = item * g.tiles_q * ROWS + columns * COLS;
                if (KEYS) bulk_copy(s.columns[stage][n], (n ? g.delta : g.padded_lse) + query, COLS * 4, full);
                if (KEYS && n == 0) bulk_copy(s.columns[stage][2], g.shift + query, COLS * 4, full);
            }
        }
    }
}

/* Bit n is set where the weight in accumulator n of N was dropped. */
template <bool KEYS, int N>
__device__ static uint32_t dropped(const attention_args &g, dropout_key key, int row, int column0) {
    const int t = (int)threadIdx.x % 4, odd = row % 2;
    uint32_t bits = 0;
#pragma unroll
    for (int n = 0; n < N; n += 8) {
        if (!KEYS) {
            const uint32_t drops = dropped_of_group(g, key, row, column0 + column_of(n, t));
#pragma unroll
            for (int e = 0; e < 8; e++) /* odd columns: e%2; row + 8: e/2%2; eight columns on: e/4 */
                bits |= (drops >> (4 * (e % 2) + 2 * (e / 2 % 2) + e / 4) & 1) << (n + e);
        } else { /* columns are queries: two neighbouring rows share a group for each of two neighbouring columns */
            const uint32_t mine = dropped_of_group(g, key, column0 + column_of(n + odd, t), row);
            const uint32_t others = __shfl_xor_sync(0xffffffffu, mine, 4);
#pragma unroll
            for (int c = 0; c < 2; c++)
#pragma unroll
                for (int e = 0; e < 4; e++) /* row + 8: e%2; eight columns on: e/2 */
                    bits |= ((c == odd ? mine : others) >> (4 * odd + e) & 1) << (n + c + 2 * (e % 2) + 4 * (e / 2));
        }
    }
    return bits;
}

/* One task of a warpgroup that multiplies. `tasks` and `steps` count tasks and tiles of columns before this one. */
template <bool KEYS, int BLOCKS, int STAGES, bool GENERAL>
__device__ static void differentiate(const attention_args &g, backward_shared<BLOCKS, STAGES> &s,
                                     const backward_task<KEYS> &task, int tasks, int steps) {
    const int warp = warp_number(), warpgroup = warp / 4 - 1, lane = (int)threadIdx.x % 32, t = lane % 4;
    const int row = task.tile * ROWS + warpgroup * WG_ROWS + warp % 4 * 16 + lane / 4; /* and row + 8 */
    const int buffer = tasks % BUFFERS<BLOCKS>;
    const float drop_scale = GENERAL ? dropout_scale(g.drop_below) : 1;
    float lse[2], delta[2], shift[2]; /* of the rows, where those are queries */
    if (!KEYS) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t at = (int64_t)task.fixed_item(g) * g.tiles_q * ROWS + row + 8 * half;
            lse[half] = g.padded_lse[at];
            delta[half] = g.delta[at];
            shift[half] = g.shift[at];
        }
    }
    float sum_ds[BLOCKS][32] = {}, sum_p[KEYS ? BLOCKS : 1][32] = {}; /* dQ or dK; dV */
    barrier_wait(&s.fixed_full[buffer], tasks / BUFFERS<BLOCKS> & 1);
    const float down0 = s.fixed_down[buffer][0], down1 = s.fixed_down[buffer][1];
    const uint32_t my_rows = warpgroup * WG_ROWS / 16 * STEP_DOWN;
    const split_tile<BLOCKS> fixed0 = {tile_address(s.fixed[buffer][0]) + my_rows, COLUMN_BLOCK};
    const split_tile<BLOCKS> fixed1 = {tile_address(s.fixed[buffer][1]) + my_rows, COLUMN_BLOCK};

    /* The tile of columns of a step, of which the first WIDTH count. */
    auto add_columns = [&](auto width, int step) {
        constexpr int WIDTH = decltype(width)::value, N = WIDTH / 2;
        const int stage = (steps + step) % STAGES, column0 = task.column_tile(step) * COLS;
        const uint32_t phase = (steps + step) / STAGES & 1;
        const split_tile<BLOCKS> moving0 = {tile_address(s.moving[stage][0]), MOVING_BLOCK};
        const split_tile<BLOCKS> moving1 = {tile_address(s.moving[stage][1]), MOVING_BLOCK};
        float p[N], ds[N];
        barrier_wait(&s.full[stage][0], phase);
        const float moving_down0 = s.moving_down[stage][0].of;
        wgmma_fence();
        multiply_rows<BLOCKS>(p, fixed0, moving0);
        wgmma_commit();
        barrier_wait(&s.full[stage][1], phase);
        const float moving_down1 = s.moving_down[stage][1].of;
        wgmma_fence();
        multiply_rows<BLOCKS>(ds, fixed1, moving1);
        wgmma_commit();
        wgmma_wait<1>();
        hold(p);

        const int query_head = task.query_head(step);
        const float *mask = GENERAL && g.mask.data ? head_of(g.mask, task.batch, query_head) : nullptr;
        const float factor = down0 * moving_down0 * g.scale * (GENERAL ? 1 : LOG2_E);
        const int first_row = task.tile * ROWS + warpgroup * WG_ROWS;
        const int first_query = KEYS ? column0 : first_row, first_key = KEYS ? first_row : column0;
        const bool at_edge = (g.causal && first_key + COLS > first_query) ||
                             first_key + (KEYS ? WG_ROWS : WIDTH) > g.keys;
        /* What is hidden of the thread's rows: keys from a column on, or from a key queries up to a column. */
        int limit[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = row + 8 * half;
            limit[half] = KEYS ? (r >= g.keys ? COLS
                                  : g.causal  ? r - column0
                                              : 0)
                               : (g.causal ? min(g.keys, r + 1) : g.keys) - column0;
        }
        auto is_hidden = [&](int n) {
            const int c = column_of(n, t);
            return KEYS ? c < limit[row_half(n)] : c >= limit[row_half(n)];
        };
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int c = column_of(n, t), half = row_half(n);
            const int i = KEYS ? column0 + c : row + 8 * half, j = KEYS ? row + 8 * half : column0 + c;
            const float l = KEYS ? s.columns[stage][0][c] : lse[half];
            if (GENERAL) {
                p[n] *= factor;
                if (mask && i < g.queries && j < g.keys) p[n] += mask[i * g.mask.row_stride + j * g.mask.col_stride];
                p[n] = fast_exp2(fmaf(p[n] - l, LOG2_E, KEYS ? s.columns[stage][2][c] : shift[half]));
            } else
                p[n] = fast_exp2(fmaf(p[n], factor, -l));
        }
        if (at_edge) {
#pragma unroll
            for (int n = 0; n < N; n++)
                if (is_hidden(n)) p[n] = 0;
        }
        uint32_t drops = 0;
        if (GENERAL && g.drop_below)
            drops = dropped<KEYS, N>(g, dropout_key_of(g.seed, g.offset, (uint32_t)(task.batch * g.heads + query_head)),
                                     row, column0);
        wgmma_wait<0>();
        hold(ds);
        if (!KEYS) warp_arrives(&s.empty[stage][1]);
        const float dp_factor = down1 * moving_down1 * drop_scale;
        float largest[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float d = KEYS ? s.columns[stage][1][column_of(n, t)] : delta[row_half(n)];
            const float dp = GENERAL && (drops >> n & 1) ? 0 : ds[n] * dp_factor;
            ds[n] = p[n] * (dp - d);
            largest[row_half(n)] = fmaxf(largest[row_half(n)], fabsf(ds[n])); /* NaN does not count */
        }
        if (at_edge) { /* delta may be NaN */
#pragma unroll
            for (int n = 0; n < N; n++)
                if (is_hidden(n)) ds[n] = 0;
        }
        float up[2], back[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 1));
            largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 2));
            const int e = exponent_for(largest[half], DS_EXPONENT_LIMIT);
            up[half] = power_of_two(e);
            back[half] = power_of_two(-e) * moving_down0;
        }

        split_registers<WIDTH / 16> x;
        if (KEYS) {
            if (GENERAL && drops) {
#pragma unroll
                for (int n = 0; n < N; n++)
                    if (drops >> n & 1) p[n] = 0;
            }
            x.split(p, 1 << TARGET_EXPONENT, 1 << TARGET_EXPONENT);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                float added[32];
                wgmma_fence();
                multiply_columns<WIDTH / 16>(added, x, 0, moving1, b);
                wgmma_commit();
                wgmma_wait<0>();
                hold(added);
#pragma unroll
                for (int n = 0; n < 32; n++)
                    sum_p[b][n] = fmaf(added[n], moving_down1 / (1 << TARGET_EXPONENT), sum_p[b][n]);
            }
            warp_arrives(&s.empty[stage][1]);
        }
        x.split(ds, up[0], up[1]);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            float added[32];
            wgmma_fence();
            multiply_columns<WIDTH / 16>(added, x, 0, moving0, b);
            wgmma_commit();
            wgmma_wait<0>();
            hold(added);
#pragma unroll
            for (int n = 0; n < 32; n++) sum_ds[b][n] = fmaf(added[n], back[row_half(n)], sum_ds[b][n]);
        }
        warp_arrives(&s.empty[stage][0]);
    };
#pragma unroll 1
    for (int step = 0; step < task.steps(); step++)
        if (BLOCKS == 1 && task.column_tile(step) == task.tail)
            add_columns(integral<TAIL>(), step);
        else
            add_columns(integral<COLS>(), step);

    if (threadIdx.x == WARPGROUP)
        (KEYS ? g.recompute_k
              : g.recompute_q)[(int64_t)task.fixed_item(g) * (KEYS ? g.tiles_k : g.tiles_q) + task.tile] =
            s.misfits[buffer];
    warp_arrives(&s.fixed_empty[buffer]);
    const float ds_factor[2] = {g.scale, g.scale}, p_factor[2] = {drop_scale, drop_scale};
    const heads_out &to = KEYS ? g.grad_k : g.grad_q;
    const int rows = KEYS ? g.keys : g.queries;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        if (to.data)
            store_rows(to, head_of(to, task.batch, task.head), sum_ds[b], ds_factor, row, rows, b * ATTENTION_COLS,
                       g.dim);
        if (KEYS && g.grad_v.data)
            store_rows(g.grad_v, head_of(g.grad_v, task.batch, task.head), sum_p[KEYS ? b : 0], p_factor, row, rows,
                       b * ATTENTION_COLS, g.dim);
    }
}

template <bool KEYS, int BLOCKS, int STAGES, bool GENERAL> __device__ static void backward(const attention_args &g) {
    auto &s = *(backward_shared<BLOCKS, STAGES> *)dynamic_shared<1024>();
    if (threadIdx.x == 0) {
        const int warps = 2 * WARPGROUP / 32;
        for (int i = 0; i < BUFFERS<BLOCKS>; i++) {
            barrier_init(&s.fixed_full[i], 1);
            barrier_init(&s.fixed_empty[i], warps);
        }
        for (int i = 0; i < STAGES; i++)
            for (int n = 0; n < 2; n++) {
                barrier_init(&s.full[i][n], 1);
                barrier_init(&s.empty[i][n], warps);
            }
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_previous_kernel();
    if (warp_number() < WARPGROUP / 32) {
        registers_release_to<24>();
        if (threadIdx.x == 0) bring<KEYS, BLOCKS, STAGES>(g, s);
    } else {
        registers_take<240>();
        int tasks = 0, steps = 0;
        for (int index = (int)blockIdx.x; index < backward_task<KEYS>::count(g); index += (int)gridDim.x) {
            const backward_task<KEYS> task(g, index);
            differentiate<KEYS, BLOCKS, STAGES, GENERAL>(g, s, task, tasks++, steps);
            steps += task.steps();
        }
    }
}

#define BACKWARD(name, id, keys, blocks, stages, general)                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ attention_args g) { \
        backward<keys, blocks, stages, general>(g);                                                           \
    }                                                                                                         \
    ASSERT_LISTED_AS(id, ROWS, COLS, THREADS, sizeof(backward_shared<blocks, stages>))
BACKWARD(attention_grad_kv_64, ATTENTION_GRAD_KV_64, true, 1, 3, false);
BACKWARD(attention_grad_kv_64_general, ATTENTION_GRAD_KV_64_GENERAL, true, 1, 3, true);
BACKWARD(attention_grad_q_64, ATTENTION_GRAD_Q_64, false, 1, 3, false);
BACKWARD(attention_grad_q_64_general, ATTENTION_GRAD_Q_64_GENERAL, false, 1, 3, true);
BACKWARD(attention_grad_kv_128, ATTENTION_GRAD_KV_128, true, 2, 1, false);
BACKWARD(attention_grad_kv_128_general, ATTENTION_GRAD_KV_128_GENERAL, true, 2, 1, true);
BACKWARD(attention_grad_q_128, ATTENTION_GRAD_Q_128, false, 2, 1, false);
BACKWARD(attention_grad_q_128_general, ATTENTION_GRAD_Q_128_GENERAL, false, 2, 1, true);
