/* attention_backward_sm90.cu: the gradients of attention on Hopper, from packed operands (attention_pack.cu).
 *
 *     P  = exp(score - lse)     dP = dO V^T             dS = P (dP - delta)
 *     dQ = scale dS K           dK = scale dS^T Q       dV = P^T dO
 *
 * Two kernels, so that each sum has one owner and needs no atomic addition: one for dK and dV, whose tasks are tiles of
 * 128 keys and go through the queries, 64 at a time, and one for dQ, which has queries and goes through keys. With more
 * than 128 columns registers and shared memory hold the sums of one gradient and tiles of 64 rows and 32 columns: dK
 * and dV have a kernel each. A thread block takes every gridDim-th task, and brings the next one's operands early.
 * The first computes S and dP transposed: rows are keys. Below, `fixed` are the operands of the rows, K and V or Q and
 * dO, and `moving` those of the columns, in the same order: S is fixed[0] moving[0]^T, dP is fixed[1] moving[1]^T.
 *
 * A warpgroup multiplies for each 64 rows; a thread of the first brings the operands. With dropout, the weights that
 * were dropped count as 0 in dV and dP, and the others' factor is applied to dP, and at the end to dV.
 */
#include "cuda/kernels/attention/attention_wgmma.cuh"
#include "cuda/kernels/kernel_list.h"

constexpr int TAIL = ATTENTION_TAIL - 64; /* the last tile of columns of a head is so wide if it has no more */
constexpr int DS_EXPONENT_LIMIT = 100;    /* of the scale of a row of dS */

enum gradient { OF_KV, OF_K, OF_V, OF_Q };

/* What a kernel computes for heads of BLOCKS * 64 columns, and in which pieces. */
template <gradient GRADIENT, int BLOCKS_> struct backward_kind {
    static constexpr int BLOCKS = BLOCKS_;
    static constexpr bool KEYS = GRADIENT != OF_Q; /* the rows */
    static constexpr bool SUMS_P = GRADIENT == OF_KV || GRADIENT == OF_V, SUMS_DS = GRADIENT != OF_V;
    static constexpr bool WIDE = BLOCKS > 2;
    static constexpr int ROWS = WIDE ? 64 : ATTENTION_ROWS, COLS = WIDE ? 32 : 64;
    static constexpr int MULTIPLIERS = ROWS / WG_ROWS * WARPGROUP, THREADS = WARPGROUP + MULTIPLIERS;
    static constexpr int FIXED = SUMS_DS ? 2 : 1;                             /* operands */
    static constexpr int BUFFERS = BLOCKS == 1 || !SUMS_DS ? 2 : 1;           /* tasks whose fixed ones have room */
    static constexpr int STAGES0 = BLOCKS == 1 ? 3 : WIDE && SUMS_DS ? 2 : 1; /* tiles of the moving ones that */
    static constexpr int STAGES1 = BLOCKS == 1 ? 3 : SUMS_DS ? 1 : 2;         /* have room */
    static constexpr uint32_t FIXED_BLOCK = ROWS * 128 / 16, MOVING_BLOCK = COLS * 128 / 16;
};

template <typename T> struct apart { alignas(16) T of; /* racecheck sees sixteen bytes as one place */ };

template <typename KIND> struct __align__(1024) backward_shared {
    static constexpr int BUFFERS = KIND::BUFFERS;
    uint8_t fixed[BUFFERS][KIND::FIXED][2 * KIND::BLOCKS][KIND::ROWS * 128];
    uint8_t moving0[KIND::STAGES0][2 * KIND::BLOCKS][KIND::COLS * 128];
    uint8_t moving1[KIND::STAGES1][2 * KIND::BLOCKS][KIND::COLS * 128];
    float columns0[KIND::STAGES0][2][KIND::COLS]; /* lse and shift of the queries, where those are the columns */
    float columns1[KIND::STAGES1][KIND::COLS];    /* delta */
    uint64_t fixed_full[BUFFERS], fixed_empty[BUFFERS], full0[KIND::STAGES0], empty0[KIND::STAGES0],
        full1[KIND::STAGES1], empty1[KIND::STAGES1];
    apart<float> fixed_down[BUFFERS][2], moving_down0[KIND::STAGES0], moving_down1[KIND::STAGES1];
    apart<int> misfits[BUFFERS]; /* of a task; not 0: something was read that the split cannot carry */
};

/* The packed operands in their roles. */
template <bool KEYS> __device__ static const packed_heads &fixed_operand(const attention_args &g, int n) {
    return KEYS ? (n ? g.packed_v : g.packed_k) : (n ? g.packed_grad_o : g.packed_q);
}
template <bool KEYS> __device__ static const packed_heads &moving_operand(const attention_args &g, int n) {
    return KEYS ? (n ? g.packed_grad_o : g.packed_q) : (n ? g.packed_v : g.packed_k);
}

/* A task: the gradients of a tile of keys or of queries. */
template <typename KIND> struct backward_task {
    static constexpr bool KEYS = KIND::KEYS;
    static constexpr int ROWS = KIND::ROWS, COLS = KIND::COLS;
    int tile, batch, head;  /* head: of keys and values if KEYS, else of queries */
    int group;              /* heads of queries for each of keys and values */
    int first, after, each; /* tiles of columns of each head, and how many that are */
    int tail;               /* the tile of columns of which only TAIL count; -1: none */

    __device__ static int tiles(const attention_args &g) { return ((KEYS ? g.keys : g.queries) + ROWS - 1) / ROWS; }
    __device__ static int count(const attention_args &g) { return g.batch * (KEYS ? g.kv_heads : g.heads) * tiles(g); }
    __device__ backward_task(const attention_args &g, int index) {
        const int all_tiles = tiles(g), heads = KEYS ? g.kv_heads : g.heads, item = index / all_tiles;
        tile = KEYS ? index % all_tiles : all_tiles - 1 - index % all_tiles; /* most columns first, if causal */
        batch = item / heads;
        head = item % heads;
        group = g.heads / g.kv_heads;
        const int all = KEYS ? g.queries : g.keys, columns = (all + COLS - 1) / COLS;
        first = KEYS && g.causal ? min(columns, tile * (ROWS / COLS)) : 0;
        after = !KEYS && g.causal ? min(columns, (tile + 1) * (ROWS / COLS)) : columns;
        each = after - first;
        tail = KIND::BLOCKS == 1 && all - (columns - 1) * COLS <= TAIL ? columns - 1 : -1;
    }
    __device__ int steps() const { return KEYS ? group * each : each; }
    __device__ int column_tile(int step) const { return first + step % each; }
    __device__ int query_head(int step) const { return KEYS ? head * group + step / each : head; }
    __device__ int fixed_item(const attention_args &g) const { return batch * (KEYS ? g.kv_heads : g.heads) + head; }
    __device__ int moving_item(const attention_args &g, int step) const {
        return KEYS ? batch * g.heads + query_head(step) : batch * g.kv_heads + head / group;
    }
    /* The first of its rows, counted over all tiles of the packed operand. */
    __device__ int64_t fixed_row(const attention_args &g) const {
        return (int64_t)fixed_item(g) * (KEYS ? g.tiles_k : g.tiles_q) * ATTENTION_ROWS + tile * ROWS;
    }
};

/* Copies rows of a packed operand, `rows` from `row` on, to tiles that have PITCH rows for each block of columns. */
template <int BLOCKS, int PITCH>
__device__ static void copy_rows(uint8_t *to, const packed_heads &from, int64_t row, int rows, uint64_t *full) {
    const uint8_t *source = from.tiles + row / ATTENTION_ROWS * (2 * BLOCKS * ATTENTION_BLOCK_BYTES) +
                            row % ATTENTION_ROWS * 128;
    const int parts = PITCH == ATTENTION_ROWS ? 1 : 2 * BLOCKS;
    const uint32_t bytes = (uint32_t)(2 * BLOCKS / parts * rows * 128);
    for (int part = 0; part < parts; part++)
        bulk_copy(to + part * PITCH * 128, source + part * ATTENTION_BLOCK_BYTES, bytes, full);
}

/* Brings the fixed operands, then the moving ones of every step, task after task. One thread. */
template <typename KIND> __device__ static void bring(const attention_args &g, backward_shared<KIND> &s) {
    constexpr bool KEYS = KIND::KEYS;
    constexpr int BLOCKS = KIND::BLOCKS, COLS = KIND::COLS, STAGES0 = KIND::STAGES0, STAGES1 = KIND::STAGES1;
    int tasks = 0, steps = 0;
    for (int index = (int)blockIdx.x; index < backward_task<KIND>::count(g); index += (int)gridDim.x, tasks++) {
        const backward_task<KIND> task(g, index);
        const int64_t fixed = task.fixed_row(g);
        const int buffer = tasks % KIND::BUFFERS;
        barrier_wait(&s.fixed_empty[buffer], (tasks / KIND::BUFFERS & 1) ^ 1);
        int misfits = 0;
        for (int n = 0; n < KIND::FIXED; n++) {
            const float down = fixed_operand<KEYS>(g, n).downs[fixed / ATTENTION_ROWS];
            s.fixed_down[buffer][n].of = down;
            misfits |= isnan(down);
        }
        s.misfits[buffer].of = misfits;
        barrier_arrive_and_expect(&s.fixed_full[buffer], KIND::FIXED * 2 * BLOCKS * KIND::ROWS * 128);
        for (int n = 0; n < KIND::FIXED; n++)
            copy_rows<BLOCKS, KIND::ROWS>(s.fixed[buffer][n][0], fixed_operand<KEYS>(g, n), fixed, KIND::ROWS,
                                          &s.fixed_full[buffer]);
        for (int step = 0; step < task.steps(); step++, steps++) {
            const int columns = task.column_tile(step);
            const int64_t item = task.moving_item(g, step);
            const int64_t row = item * (KEYS ? g.tiles_q : g.tiles_k) * ATTENTION_ROWS + columns * COLS;
            const int rows = columns == task.tail ? TAIL : COLS;
            auto one = [&](int n, uint8_t *to, float *down, uint64_t *full, uint64_t *empty, uint32_t free) {
                const packed_heads &from = moving_operand<KEYS>(g, n);
                const float factor = from.downs[row / ATTENTION_ROWS];
                barrier_wait(empty, free);
                *down = factor;
                if (isnan(factor)) s.misfits[buffer].of = 1;
                barrier_arrive_and_expect(full, (uint32_t)(2 * BLOCKS * rows * 128 + (KEYS ? (2 - n) * COLS * 4 : 0)));
                copy_rows<BLOCKS, COLS>(to, from, row, rows, full);
            };
            const int at0 = steps % STAGES0, at1 = steps % STAGES1;
            one(0, s.moving0[at0][0], &s.moving_down0[at0].of, &s.full0[at0], &s.empty0[at0],
                (steps / STAGES0 & 1) ^ 1);
            if (KEYS) bulk_copy(s.columns0[at0][0], g.padded_lse + row, COLS * 4, &s.full0[at0]);
            if (KEYS) bulk_copy(s.columns0[at0][1], g.shift + row, COLS * 4, &s.full0[at0]);
            one(1, s.moving1[at1][0], &s.moving_down1[at1].of, &s.full1[at1], &s.empty1[at1],
                (steps / STAGES1 & 1) ^ 1);
            if (KEYS) bulk_copy(s.columns1[at1], g.delta + row, COLS * 4, &s.full1[at1]);
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
template <typename KIND, bool GENERAL>
__device__ static void differentiate(const attention_args &g, backward_shared<KIND> &s, const backward_task<KIND> &task,
                                     int tasks, int steps) {
    constexpr bool KEYS = KIND::KEYS, SUMS_P = KIND::SUMS_P, SUMS_DS = KIND::SUMS_DS;
    constexpr int BLOCKS = KIND::BLOCKS, ROWS = KIND::ROWS, COLS = KIND::COLS;
    const int warp = warp_number(), lane = (int)threadIdx.x % 32, t = lane % 4;
    const int warpgroup = ROWS == WG_ROWS ? 0 : warp / 4 - 1; /* of those that multiply */
    const int first_row = task.tile * ROWS + warpgroup * WG_ROWS;
    const int row = first_row + warp % 4 * 16 + lane / 4; /* and row + 8 */
    const int buffer = tasks % KIND::BUFFERS;
    const float drop_scale = GENERAL ? dropout_scale(g.drop_below) : 1;
    float lse[2], delta[2], shift[2]; /* of the rows, where those are queries */
    if (!KEYS) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t at = (int64_t)task.fixed_item(g) * g.tiles_q * ATTENTION_ROWS + row + 8 * half;
            lse[half] = g.padded_lse[at];
            delta[half] = g.delta[at];
            shift[half] = g.shift[at];
        }
    }
    float sum_ds[SUMS_DS ? BLOCKS : 1][32] = {}, sum_p[SUMS_P ? BLOCKS : 1][32] = {}; /* dQ or dK; dV */
    barrier_wait(&s.fixed_full[buffer], tasks / KIND::BUFFERS & 1);
    const float down0 = s.fixed_down[buffer][0].of, down1 = SUMS_DS ? s.fixed_down[buffer][1].of : 1;
    const uint32_t my_rows = warpgroup * WG_ROWS / 16 * STEP_DOWN;
    const split_tile<BLOCKS> fixed0 = {tile_address(s.fixed[buffer][0]) + my_rows, KIND::FIXED_BLOCK};
    const split_tile<BLOCKS> fixed1 = {tile_address(s.fixed[buffer][KIND::FIXED - 1]) + my_rows, KIND::FIXED_BLOCK};

    /* The tile of columns of a step, of which the first WIDTH count. */
    auto add_columns = [&](auto width, int step) {
        constexpr int WIDTH = decltype(width)::value, N = WIDTH / 2;
        const int at0 = (steps + step) % KIND::STAGES0, at1 = (steps + step) % KIND::STAGES1;
        const uint32_t phase0 = (steps + step) / KIND::STAGES0 & 1, phase1 = (steps + step) / KIND::STAGES1 & 1;
        const int column0 = task.column_tile(step) * COLS;
        const split_tile<BLOCKS> moving0 = {tile_address(s.moving0[at0]), KIND::MOVING_BLOCK};
        const split_tile<BLOCKS> moving1 = {tile_address(s.moving1[at1]), KIND::MOVING_BLOCK};
        float p[N];
        [[maybe_unused]] float ds[SUMS_DS ? N : 1], up[2], back[2]; /* the last: what scales rows of dS */
        barrier_wait(&s.full0[at0], phase0);
        const float moving_down0 = s.moving_down0[at0].of;
        wgmma_fence();
        multiply_rows<BLOCKS>(p, fixed0, moving0);
        wgmma_commit();
        float moving_down1 = 1;
        if constexpr (SUMS_DS) {
            barrier_wait(&s.full1[at1], phase1);
            moving_down1 = s.moving_down1[at1].of;
            wgmma_fence();
            multiply_rows<BLOCKS>(ds, fixed1, moving1);
            wgmma_commit();
            wgmma_wait<1>();
        } else
            wgmma_wait<0>();
        hold(p);

        const int query_head = task.query_head(step);
        const float *mask = GENERAL && g.mask.data ? head_of(g.mask, task.batch, query_head) : nullptr;
        const float factor = down0 * moving_down0 * g.scale * (GENERAL ? 1 : LOG2_E);
        constexpr int KEYS_HERE = KEYS ? WG_ROWS : WIDTH;
        const int first_query = KEYS ? column0 : first_row, first_key = KEYS ? first_row : column0;
        const bool at_edge = (g.causal && first_key + KEYS_HERE > first_query) || first_key + KEYS_HERE > g.keys;
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
            const float l = KEYS ? s.columns0[at0][0][c] : lse[half];
            if (GENERAL) {
                p[n] *= factor;
                if (mask && i < g.queries && j < g.keys) p[n] += mask[i * g.mask.row_stride + j * g.mask.col_stride];
                p[n] = fast_exp2(fmaf(p[n] - l, LOG2_E, KEYS ? s.columns0[at0][1][c] : shift[half]));
            } else
                p[n] = fast_exp2(fmaf(p[n], factor, -l));
        }
        if constexpr (!SUMS_DS) barrier_arrive(&s.empty0[at0]);
        if (at_edge) {
#pragma unroll
            for (int n = 0; n < N; n++)
                if (is_hidden(n)) p[n] = 0;
        }
        uint32_t drops = 0;
        if (GENERAL && g.drop_below)
            drops = dropped<KEYS, N>(g, dropout_key_of(g.seed, g.offset, (uint32_t)(task.batch * g.heads + query_head)),
                                     row, column0);
        if constexpr (SUMS_DS) {
            wgmma_wait<0>();
            hold(ds);
            if (!KEYS) barrier_arrive(&s.empty1[at1]);
            const float dp_factor = down1 * moving_down1 * drop_scale;
            float largest[2] = {0, 0};
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float d = KEYS ? s.columns1[at1][column_of(n, t)] : delta[row_half(n)];
                const float dp = GENERAL && (drops >> n & 1) ? 0 : ds[n] * dp_factor;
                ds[n] = p[n] * (dp - d);
                largest[row_half(n)] = fmaxf(largest[row_half(n)], fabsf(ds[n])); /* NaN does not count */
            }
            if (KEYS && !SUMS_P) barrier_arrive(&s.empty1[at1]);
            if (at_edge) { /* delta may be NaN */
#pragma unroll
                for (int n = 0; n < N; n++)
                    if (is_hidden(n)) ds[n] = 0;
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 1));
                largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 2));
                const int e = exponent_for(largest[half], DS_EXPONENT_LIMIT);
                up[half] = power_of_two(e);
                back[half] = power_of_two(-e) * moving_down0;
            }
        }

        split_registers<WIDTH / 16> x;
        if constexpr (SUMS_P) {
            if (GENERAL && drops) {
#pragma unroll
                for (int n = 0; n < N; n++)
                    if (drops >> n & 1) p[n] = 0;
            }
            x.split(p, 1 << TARGET_EXPONENT, 1 << TARGET_EXPONENT);
            if (!SUMS_DS) {
                barrier_wait(&s.full1[at1], phase1);
                moving_down1 = s.moving_down1[at1].of;
            }
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
            barrier_arrive(&s.empty1[at1]);
        }
        if constexpr (SUMS_DS) {
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
            barrier_arrive(&s.empty0[at0]);
        }
    };
#pragma unroll 1
    for (int step = 0; step < task.steps(); step++)
        if (BLOCKS == 1 && task.column_tile(step) == task.tail)
            add_columns(integral<TAIL>(), step);
        else
            add_columns(integral<COLS>(), step);

    if (threadIdx.x % WARPGROUP == 0)
        (KEYS ? g.recompute_k
              : g.recompute_q)[(task.fixed_row(g) + warpgroup * WG_ROWS) / ATTENTION_FLAG_ROWS] = s.misfits[buffer].of;
    barrier_arrive(&s.fixed_empty[buffer]);
    const float ds_factor[2] = {g.scale, g.scale}, p_factor[2] = {drop_scale, drop_scale};
    const heads_out &to = KEYS ? g.grad_k : g.grad_q;
    const int rows = KEYS ? g.keys : g.queries;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        if (SUMS_DS && to.data)
            store_rows(to, head_of(to, task.batch, task.head), sum_ds[SUMS_DS ? b : 0], ds_factor, row, rows,
                       b * ATTENTION_COLS, g.dim);
        if (SUMS_P && g.grad_v.data)
            store_rows(g.grad_v, head_of(g.grad_v, task.batch, task.head), sum_p[SUMS_P ? b : 0], p_factor, row, rows,
                       b * ATTENTION_COLS, g.dim);
    }
}

template <typename KIND, bool GENERAL> __device__ static void backward(const attention_args &g) {
    auto &s = *(backward_shared<KIND> *)dynamic_shared<1024>();
    if (threadIdx.x == 0) {
        auto init = [](uint64_t *full, uint64_t *empty, int stages) {
            for (int i = 0; i < stages; i++) {
                barrier_init(&full[i], 1);
                barrier_init(&empty[i], KIND::MULTIPLIERS); /* all arrive: racecheck follows nothing else */
            }
        };
        init(s.fixed_full, s.fixed_empty, KIND::BUFFERS);
        init(s.full0, s.empty0, KIND::STAGES0);
        init(s.full1, s.empty1, KIND::STAGES1);
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_previous_kernel();
    constexpr bool MOVES_REGISTERS = KIND::THREADS > 2 * WARPGROUP; /* else all have as many as there may be */
    if (warp_number() < WARPGROUP / 32) {
        if (MOVES_REGISTERS) registers_release_to<24>();
        if (threadIdx.x == 0) bring<KIND>(g, s);
    } else {
        if (MOVES_REGISTERS) registers_take<240>();
        int tasks = 0, steps = 0;
        for (int index = (int)blockIdx.x; index < backward_task<KIND>::count(g); index += (int)gridDim.x) {
            const backward_task<KIND> task(g, index);
            differentiate<KIND, GENERAL>(g, s, task, tasks++, steps);
            steps += task.steps();
        }
    }
}

#define BACKWARD(name, id, gradient, blocks, general)                                         \
    using kind_of_##name = backward_kind<gradient, blocks>;                                   \
    extern "C" __global__ void __launch_bounds__(kind_of_##name::THREADS, 1)                  \
        name(const __grid_constant__ attention_args g) {                                      \
        backward<kind_of_##name, general>(g);                                                 \
    }                                                                                         \
    ASSERT_LISTED_AS(id, kind_of_##name::ROWS, kind_of_##name::COLS, kind_of_##name::THREADS, \
                     sizeof(backward_shared<kind_of_##name>))
BACKWARD(attention_grad_kv_64, ATTENTION_GRAD_KV_64, OF_KV, 1, false);
BACKWARD(attention_grad_kv_64_general, ATTENTION_GRAD_KV_64_GENERAL, OF_KV, 1, true);
BACKWARD(attention_grad_kv_128, ATTENTION_GRAD_KV_128, OF_KV, 2, false);
BACKWARD(attention_grad_kv_128_general, ATTENTION_GRAD_KV_128_GENERAL, OF_KV, 2, true);
BACKWARD(attention_grad_q_64, ATTENTION_GRAD_Q_64, OF_Q, 1, false);
BACKWARD(attention_grad_q_64_general, ATTENTION_GRAD_Q_64_GENERAL, OF_Q, 1, true);
BACKWARD(attention_grad_q_128, ATTENTION_GRAD_Q_128, OF_Q, 2, false);
BACKWARD(attention_grad_q_128_general, ATTENTION_GRAD_Q_128_GENERAL, OF_Q, 2, true);
BACKWARD(attention_grad_v_192, ATTENTION_GRAD_V_192, OF_V, 3, true);
BACKWARD(attention_grad_v_256, ATTENTION_GRAD_V_256, OF_V, 4, true);
BACKWARD(attention_grad_k_192, ATTENTION_GRAD_K_192, OF_K, 3, true);
BACKWARD(attention_grad_k_256, ATTENTION_GRAD_K_256, OF_K, 4, true);
BACKWARD(attention_grad_q_192, ATTENTION_GRAD_Q_192, OF_Q, 3, true);
BACKWARD(attention_grad_q_256, ATTENTION_GRAD_Q_256, OF_Q, 4, true);
