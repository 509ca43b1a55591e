/* attention_ieee.cuh: attention and its gradients in IEEE float32.
 *
 * A thread block of 128 has 32 rows (queries, or keys for dK and dV) and goes through the columns, 64 at a time. Thread
 * 16y + x has rows y + 8a and, of a tile of scores, columns x + 16b; of each 64 columns of a result it has four, from
 * 4x on. Operands come through shared memory in pieces, the next one while this one is used; so do the weights, between
 * the two products. Where there are few rows or columns a thread has fewer of them.
 *
 * NaN and Inf go where IEEE arithmetic carries them: a weight of 0 multiplies its value, whatever that is. Only keys
 * that a causal mask hides from a query have no part in it.
 */
#ifndef TESSERA_CUDA_ATTENTION_IEEE_CUH
#define TESSERA_CUDA_ATTENTION_IEEE_CUH

#include "cuda/kernels/attention/attention.cuh"
#include "cuda/kernels/kernel_list.h"

constexpr int ROWS = ATTENTION_IEEE_ROWS, COLS = 64, THREADS = 128;
constexpr int ROW_STEP = THREADS / 16, MOST_ROWS = ROWS / ROW_STEP, MOST_COLS = COLS / 16; /* of a thread */

/* A piece has CHUNK terms of dot products, or CHUNK rows of 64 columns that weights are multiplied by. SUMS:
 * results. */
template <int CHUNK, int SUMS> struct ieee_shared {
    static constexpr int PITCH = CHUNK + 4; /* of rows in a piece */
    alignas(16) float pieces[2][(ROWS + COLS) * PITCH];
    alignas(16) float weights[SUMS][ROWS][COLS + 4];
    float lse[SUMS > 1 ? COLS : 0], delta[SUMS > 1 ? COLS : 0], shift[SUMS > 1 ? COLS : 0]; /* of queries */
};

struct place {
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
};

/* Starts copying `count` rows of 4 << LOG_QUADS columns, four columns a thread: `there` rows and `left` columns are
 * there, and the rest is zeros, as far as its quad. */
template <int LOG_QUADS>
__device__ static void start_copy(float *to, int pitch, const float *from, int64_t row_stride, int64_t col_stride,
                                  int count, int there, int left, bool fours) {
    constexpr int STEP = THREADS >> LOG_QUADS;
    const int r = (int)threadIdx.x >> LOG_QUADS, c = 4 * ((int)threadIdx.x & ((1 << LOG_QUADS) - 1));
    if (c >= left) return;
    const float *at = from + r * row_stride + c * col_stride;
    to += r * pitch + c;
#pragma unroll 2
    for (int i = r; i < count; i += STEP, at += STEP * row_stride, to += STEP * pitch) {
        if (fours)
            cp_async_or_zero<16>(shared_address(to), i < there ? at : from, i < there);
        else
#pragma unroll 1
            for (int e = 0; e < 4; e++) {
                const bool one = i < there && c + e < left;
                cp_async_or_zero<4>(shared_address(to + e), one ? at + e * col_stride : from, one);
            }
    }
}

/* The same, for the gradients, which start copies in so many places that inlined it would take minutes to compile. */
template <int LOG_QUADS>
__device__ static __noinline__ void call_start_copy(float *to, int pitch, const float *from, int64_t row_stride,
                                                    int64_t col_stride, int count, int there, int left, bool fours) {
    start_copy<LOG_QUADS>(to, pitch, from, row_stride, col_stride, count, there, left, fours);
}

/* The matrix of a head. */
struct operand {
    const float *data;
    int64_t head_stride, row_stride, col_stride;
    int rows;
    bool fours;
    template <typename HEADS>
    __device__ operand(const HEADS &x, int batch, int head, int all, int dim)
        : data(head_of(x, batch, head)), head_stride(x.head_stride), row_stride(x.row_stride), col_stride(x.col_stride),
          rows(all), fours(in_fours(x, dim)) {}

    /* Starts copying rows row0 to row0 + count - 1, of the head that is `head` further, and 4 << LOG_QUADS columns from
     * `column` on. */
    template <int LOG_QUADS, bool CALL>
    __device__ void fetch(float *to, int pitch, int head, int row0, int count, int column, int dim) const {
        const float *from = data + head * head_stride + row0 * row_stride + column * col_stride;
        const auto start = CALL ? call_start_copy<LOG_QUADS> : start_copy<LOG_QUADS>;
        start(to, pitch, from, row_stride, col_stride, count, rows - row0, dim - column, fours);
    }
};

/* What a causal mask hides of a tile of weights, by the first query less the first key: row r (or column, if rows are
 * keys) is that many queries on. */
struct diagonal {
    bool causal, rows_are_keys;
    int lead;
    __device__ bool hides_some() const { return causal && lead < (rows_are_keys ? ROWS : COLS) - 1; }
    __device__ bool hides(int row, int column) const {
        return rows_are_keys ? row > column + lead : column > row + lead;
    }
};

/* Adds to sums of a thread's rows, from `row` on, the products of their weights, from column j0 of the tile on, and
 * `count` rows of values. */
template <int A>
__device__ static void add_products(float (&sums)[A][4], const float *weights, const float *values, int count,
                                    const diagonal &mask, int row, int j0) {
    const bool some = mask.hides_some();
#pragma unroll 1
    for (int j = 0; j < count; j += 4) {
        float4 w[A];
#pragma unroll
        for (int a = 0; a < A; a++) w[a] = *(const float4 *)(weights + ROW_STEP * a * (COLS + 4) + j);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float4 v = *(const float4 *)(values + (j + e) * 64);
#pragma unroll
            for (int a = 0; a < A; a++) {
                if (some && mask.hides(row + ROW_STEP * a, j0 + j + e)) continue;
                const float f = e == 0 ? w[a].x : e == 1 ? w[a].y : e == 2 ? w[a].z : w[a].w;
                sums[a][0] = fmaf(f, v.x, sums[a][0]);
                sums[a][1] = fmaf(f, v.y, sums[a][1]);
                sums[a][2] = fmaf(f, v.z, sums[a][2]);
                sums[a][3] = fmaf(f, v.w, sums[a][3]);
            }
        }
    }
}

/* A thread block's task: ROWS rows of one head; A are a thread's. */
struct ieee_task {
    int row0, batch, head;
};

/* The columns that a task goes through: those from `first` on, of each of `heads` heads, in steps of COLS. */
struct ieee_steps {
    int heads, first, after;
    __device__ int of_head() const { return (after - first + COLS - 1) / COLS; }
    __device__ int count() const { return heads * of_head(); }
    __device__ int head(int step) const { return heads == 1 ? 0 : step / of_head(); }
    __device__ int column(int step) const { return first + (step - head(step) * of_head()) * COLS; }
    __device__ int width(int step) const { return min(COLS, after - column(step)); }
};

/* Puts a thread's numbers of DOTS tiles where the other threads can read them. */
template <int DOTS, int A, int B, int CHUNK, int KEPT>
__device__ static void share(ieee_shared<CHUNK, KEPT> &s, const float (&dots)[DOTS][A][B]) {
    const place me;
#pragma unroll
    for (int n = 0; n < DOTS; n++)
#pragma unroll
        for (int a = 0; a < A; a++)
#pragma unroll
            for (int b = 0; b < B; b++) s.weights[n][me.y + ROW_STEP * a][me.x + 16 * b] = dots[n][a][b];
}

/* Goes through the columns of a task. In every step DOTS tiles of dot products are made, of rows and columns of the
 * same number; weigh(dots, step) turns them into SUMS tiles of weights, in shared memory; and these, times columns of
 * operand VALUES[n], are added to the sums. prepare(step) comes before all that. */
template <int DOTS, int SUMS> __device__ constexpr int values_of(int n) {
    return DOTS == 1 ? 1 : SUMS == 1 ? 0 : 1 - n;
}

template <int DOTS, int SUMS, int CHUNK, int KEPT, int BLOCKS, int A, typename PREPARE, typename WEIGH>
__device__ static void go_through(ieee_shared<CHUNK, KEPT> &s, float (&sums)[SUMS][BLOCKS][A][4], int dim, int row0,
                                  const ieee_steps &steps, bool causal, const operand (&rows)[DOTS],
                                  const operand (&columns)[2], PREPARE prepare, WEIGH weigh) {
    constexpr int PITCH = ieee_shared<CHUNK, KEPT>::PITCH;
    const place me;
    struct {
        int step, n, at, j; /* at: a column of the operands, j: a row of the values */
        bool values;
    } next = {0, 0, 0, 0, false}; /* what is fetched next */
    int buffer = 1;
    auto fetch = [&](float *to) {
        if (next.step < steps.count()) {
            const int head = steps.head(next.step), column0 = steps.column(next.step), here = steps.width(next.step);
            if (!next.values) {
                const int there = min(ROW_STEP * A, rows[0].rows - row0);
                const operand of_rows = DOTS > 1 && next.n ? rows[DOTS - 1] : rows[0];
                const operand of_columns = DOTS > 1 && next.n ? columns[1] : columns[0];
                of_rows.fetch<CHUNK == 64 ? 4 : 3, (DOTS > 1)>(to, PITCH, 0, row0, there, next.at, dim);
                of_columns.fetch<CHUNK == 64 ? 4 : 3, (DOTS > 1)>(to + ROWS * PITCH, PITCH, head, column0, here,
                                                                  next.at, dim);
                next.at += CHUNK;
                if (next.at >= dim) {
                    next.at = 0;
                    next.values = ++next.n == DOTS;
                    if (next.values) next.n = 0;
                }
            } else {
                const int count = min(CHUNK, (here - next.j + 3) / 4 * 4);
                const operand of_values = values_of<DOTS, SUMS>(next.n) ? columns[1] : columns[0];
                of_values.fetch<4, (DOTS > 1)>(to, 64, head, column0 + next.j, count, next.at, dim);
                next.j += CHUNK;
                if (next.j >= here) next.j = 0, next.at += 64;
                if (next.at >= dim) {
                    next.at = 0;
                    next.values = ++next.n < SUMS;
                    if (!next.values) next.n = 0, next.step++;
                }
            }
        }
        cp_async_commit();
    };
    auto next_piece = [&]() -> const float * {
        cp_async_wait<0>();
        __syncthreads();
        buffer ^= 1;
        fetch(s.pieces[buffer ^ 1]);
        return s.pieces[buffer];
    };
    auto take = [&](auto count, int step) {
        constexpr int B = decltype(count)::value;
        float dots[DOTS][A][B] = {};
#pragma unroll
        for (int n = 0; n < DOTS; n++)
#pragma unroll 1
            for (int c0 = 0; c0 < dim; c0 += CHUNK) {
                const float *piece = next_piece();
                const int quads = min(CHUNK / 4, (dim - c0 + 3) / 4);
#pragma unroll 2
                for (int c = 0; c < quads; c++) {
                    float4 u[A], v[B];
#pragma unroll
                    for (int a = 0; a < A; a++) u[a] = *(const float4 *)(piece + (me.y + ROW_STEP * a) * PITCH + 4 * c);
#pragma unroll
                    for (int b = 0; b < B; b++)
                        v[b] = *(const float4 *)(piece + (ROWS + me.x + 16 * b) * PITCH + 4 * c);
#pragma unroll
                    for (int a = 0; a < A; a++)
#pragma unroll
                        for (int b = 0; b < B; b++) {
                            float &d = dots[n][a][b];
                            d = fmaf(u[a].x, v[b].x, d);
                            d = fmaf(u[a].y, v[b].y, d);
                            d = fmaf(u[a].z, v[b].z, d);
                            d = fmaf(u[a].w, v[b].w, d);
                        }
                }
            }
        const int column0 = steps.column(step), here = steps.width(step);
        weigh(dots, step, column0);
        const diagonal mask = {causal, SUMS > 1, SUMS > 1 ? column0 - row0 : row0 - column0};
#pragma unroll
        for (int n = 0; n < SUMS; n++)
#pragma unroll 1
            for (int block = 0; block < BLOCKS; block++) {
                if (block * 64 >= dim) break;
#pragma unroll 1
                for (int j0 = 0; j0 < here; j0 += CHUNK) {
                    const float *piece = next_piece() + 4 * me.x;
#pragma unroll
                    for (int i = 0; i < BLOCKS; i++)
                        if (i == block) /* registers cannot be indexed */
                            add_products(sums[n][i], &s.weights[n][me.y][j0], piece, min(CHUNK, here - j0), mask, me.y,
                                         j0);
                }
            }
    };
    __syncthreads(); /* of the task before */
    fetch(s.pieces[0]);
#pragma unroll 1
    for (int step = 0; step < steps.count(); step++) {
        const int here = steps.width(step);
        prepare(step);
        if (here <= 16)
            take(integral<1>(), step);
        else if (here <= 32)
            take(integral<2>(), step);
        else
            take(integral<MOST_COLS>(), step);
    }
    cp_async_wait<0>();
}

/* Stores rows from row0 on, each times its factor. */
template <int BLOCKS, int A>
__device__ static void store(const heads_out &to, int batch, int head, const float (&sum)[BLOCKS][A][4],
                             const float (&factor)[A], int row0, int rows, int dim) {
    const place me;
    const bool fours = in_fours(to, dim);
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int a = 0; a < A; a++) {
            const int i = row0 + me.y + ROW_STEP * a, c = block * 64 + 4 * me.x;
            const float(&x)[4] = sum[block][a];
            const float f = factor[a];
            if (i >= rows || c >= dim) continue;
            float *at = head_of(to, batch, head) + i * to.row_stride + c * to.col_stride;
            if (fours)
                *(float4 *)at = make_float4(x[0] * f, x[1] * f, x[2] * f, x[3] * f);
            else
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (c + e < dim) at[e * to.col_stride] = x[e] * f;
        }
}

__device__ static __noinline__ bool is_dropped(const attention_args &g, int batch, int head, int i, int j) {
    uint32_t numbers[4];
    dropout_numbers(dropout_key_of(g.seed, g.offset, (uint32_t)(batch * g.heads + head)), (uint32_t)i, (uint32_t)j,
                    numbers);
    const uint32_t word = i / 8 % 2 ? (j / 8 % 2 ? numbers[3] : numbers[2]) : (j / 8 % 2 ? numbers[1] : numbers[0]);
    return (word >> 16 * (j % 2) & 0xffff) < g.drop_below;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

/* Over the 16 threads that share a row. */
__device__ static float row_sum(float x) {
    for (int lane = 8; lane; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}
__device__ static float row_max(float x) {
    for (int lane = 8; lane; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    return x;
}

template <int BLOCKS, int A, int CHUNK>
__device__ static void forward(const attention_args &g, ieee_shared<CHUNK, 1> &s, const ieee_task &task) {
    const place me;
    const int batch = task.batch, head = task.head, kv_head = head / (g.heads / g.kv_heads), row0 = task.row0;
    float o[1][BLOCKS][A][4] = {}, largest[A], sum[A];
    for (int a = 0; a < A; a++) largest[a] = -INFINITY, sum[a] = 0;
    auto weigh = [&](auto &dots, int, int column0) {
        constexpr int B = sizeof dots[0][0] / sizeof(float);
        const int j0 = column0 + me.x;
#pragma unroll
        for (int a = 0; a < A; a++) {
            const int i = row0 + me.y + ROW_STEP * a;
            float(&p)[B] = dots[0][a];
            float most = -INFINITY, part = 0;
#pragma unroll
            for (int b = 0; b < B; b++) {
                p[b] = score_of(g, p[b], batch, head, i, j0 + 16 * b);
                most = fmaxf(most, p[b]);
            }
            most = fmaxf(largest[a], row_max(most));
            const float base = most == -INFINITY ? 0 : most, shrink = expf(largest[a] - base);
            largest[a] = most;
#pragma unroll
            for (int b = 0; b < B; b++) {
                p[b] = expf(p[b] - base);
                part += p[b];
                if (g.drop_below && is_dropped(g, batch, head, i, j0 + 16 * b)) p[b] = 0;
            }
            sum[a] = fmaf(sum[a], shrink, row_sum(part));
#pragma unroll
            for (int block = 0; block < BLOCKS; block++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[0][block][a][e] *= shrink;
        }
        share(s, dots);
    };
    const operand rows[1] = {{g.q, batch, head, g.queries, g.dim}};
    const operand columns[2] = {{g.k, batch, kv_head, g.keys, g.dim}, {g.v, batch, kv_head, g.keys, g.dim}};
    const ieee_steps steps = {1, 0, g.causal ? min(g.keys, row0 + ROWS) : g.keys};
    go_through<1, 1>(
        s, o, g.dim, row0, steps, g.causal, rows, columns, [](int) {}, weigh);
    float factor[A];
#pragma unroll
    for (int a = 0; a < A; a++) {
        const int i = row0 + me.y + ROW_STEP * a;
        factor[a] = sum[a] == 0 ? 0 : dropout_scale(g.drop_below) / sum[a];
        if (g.lse.data && me.x == 0 && i < g.queries)
            head_of(g.lse, batch, head)[i * g.lse.row_stride] = sum[a] == 0 ? INFINITY : largest[a] + logf(sum[a]);
    }
    store(g.o, batch, head, o[0], factor, row0, g.queries, g.dim);
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* Finds lse, delta and shift of `count` queries from i0 on. */
template <int CHUNK>
__device__ static __noinline__ void find_numbers(const attention_args &g, ieee_shared<CHUNK, 2> &s, int batch, int head,
                                                 int i0, int count) {
    constexpr int AT_ONCE = 4; /* queries of 16 threads: all that is read of them is under way together */
    const place me;
    const bool fours = in_fours(g.o, g.dim) && in_fours(g.grad_o, g.dim), given = g.recompute_q;
    const float *o = head_of(g.o, batch, head), *grad_o = head_of(g.grad_o, batch, head);
#pragma unroll 1
    for (int first = me.y; first < me.y + count; first += ROW_STEP * AT_ONCE) {
        auto query = [&](int n) { return i0 + min(first + ROW_STEP * n, count - 1); };
        float delta[AT_ONCE] = {};
        for (int c = fours ? 4 * me.x : me.x; c < g.dim && !given; c += fours ? 64 : 16)
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                const float *x = o + query(n) * g.o.row_stride + c * g.o.col_stride;
                const float *y = grad_o + query(n) * g.grad_o.row_stride + c * g.grad_o.col_stride;
                if (fours) {
                    const float4 u = *(const float4 *)x, v = *(const float4 *)y;
                    delta[n] += u.x * v.x + u.y * v.y + (u.z * v.z + u.w * v.w);
                } else
                    delta[n] = fmaf(*x, *y, delta[n]);
            }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int i = query(n), to = first + ROW_STEP * n;
            const int64_t at = ((int64_t)batch * g.heads + head) * g.tiles_q * ATTENTION_ROWS + i;
            const float sum = row_sum(delta[n]);
            const float shift = given ? g.shift[at] : g.mask.data ? lse_shift<16>(g, batch, head, i) : 0;
            if (me.x == 0 && to < count) {
                s.lse[to] = head_of(g.lse, batch, head)[i * g.lse.row_stride];
                s.delta[to] = given ? g.delta[at] : sum;
                s.shift[to] = shift;
            }
        }
    }
}

/* Turns the dot products q.k and dO.v of a thread's queries and keys into weights: dS, and before it, where rows are
 * keys, what dV takes. They are in shared memory, so that one function serves all: it takes long to compile. */
template <bool ROWS_ARE_KEYS, int A, int B, int CHUNK>
__device__ static __noinline__ void weigh(const attention_args &g, ieee_shared<CHUNK, 2> &s, int batch, int head,
                                          int row0, int column0) {
    const place me;
#pragma unroll 2
    for (int a = 0; a < A; a++)
#pragma unroll
        for (int b = 0; b < B; b++) {
            const int row = me.y + ROW_STEP * a, column = me.x + 16 * b, n = ROWS_ARE_KEYS ? column : row;
            const int i = ROWS_ARE_KEYS ? column0 + column : row0 + row,
                      j = ROWS_ARE_KEYS ? row0 + row : column0 + column;
            const float dot = s.weights[0][row][column], grad = s.weights[1][row][column];
            const bool there = i < g.queries && !hidden(g, i, j);
            const float p = there ? expf(score_of(g, dot, batch, head, i, j) - s.lse[n]) * exp2f(s.shift[n]) : 0;
            const bool dropped = g.drop_below && is_dropped(g, batch, head, i, j);
            const float dp = dropped ? 0 : grad * dropout_scale(g.drop_below);
            if (ROWS_ARE_KEYS) s.weights[0][row][column] = dropped ? 0 : p;
            s.weights[ROWS_ARE_KEYS][row][column] = there ? p * (dp - s.delta[n]) : 0;
        }
}

template <int BLOCKS, int A, int CHUNK>
__device__ static void grad_q(const attention_args &g, ieee_shared<CHUNK, 2> &s, const ieee_task &task) {
    const place me;
    const int batch = task.batch, head = task.head, kv_head = head / (g.heads / g.kv_heads), row0 = task.row0;
    float dq[1][BLOCKS][A][4] = {};
    const operand rows[2] = {{g.q, batch, head, g.queries, g.dim}, {g.grad_o, batch, head, g.queries, g.dim}};
    const operand columns[2] = {{g.k, batch, kv_head, g.keys, g.dim}, {g.v, batch, kv_head, g.keys, g.dim}};
    const ieee_steps steps = {1, 0, g.causal ? min(g.keys, row0 + ROWS) : g.keys};
    go_through<2, 1>(
        s, dq, g.dim, row0, steps, g.causal, rows, columns,
        [&](int step) {
            if (step == 0) find_numbers(g, s, batch, head, row0, min(ROWS, g.queries - row0));
        },
        [&](auto &dots, int, int column0) {
            share(s, dots);
            weigh<false, A, sizeof dots[0][0] / sizeof(float)>(g, s, batch, head, row0, column0);
        });
    float factor[A];
    for (int a = 0; a < A; a++) factor[a] = g.scale;
    store(g.grad_q, batch, head, dq[0], factor, row0, g.queries, g.dim);
}

template <int BLOCKS, int A, int CHUNK>
__device__ static void grad_kv(const attention_args &g, ieee_shared<CHUNK, 2> &s, const ieee_task &task) {
    const place me;
    const int batch = task.batch, group = g.heads / g.kv_heads, head0 = task.head * group, row0 = task.row0;
    float sums[2][BLOCKS][A][4] = {}; /* dV, dK */
    const operand rows[2] = {{g.k, batch, task.head, g.keys, g.dim}, {g.v, batch, task.head, g.keys, g.dim}};
    const operand columns[2] = {{g.q, batch, head0, g.queries, g.dim}, {g.grad_o, batch, head0, g.queries, g.dim}};
    const ieee_steps steps = {group, g.causal ? min(row0, g.queries) : 0, g.queries};
    go_through<2, 2>(
        s, sums, g.dim, row0, steps, g.causal, rows, columns,
        [&](int step) { find_numbers(g, s, batch, head0 + steps.head(step), steps.column(step), steps.width(step)); },
        [&](auto &dots, int step, int column0) {
            share(s, dots);
            weigh<true, A, sizeof dots[0][0] / sizeof(float)>(g, s, batch, head0 + steps.head(step), row0, column0);
        });
    const float of_v = dropout_scale(g.drop_below);
    float factor_k[A], factor_v[A];
    for (int a = 0; a < A; a++) factor_k[a] = g.scale, factor_v[a] = of_v;
    if (g.grad_k.data) store(g.grad_k, batch, task.head, sums[1], factor_k, row0, g.keys, g.dim);
    if (g.grad_v.data) store(g.grad_v, batch, task.head, sums[0], factor_v, row0, g.keys, g.dim);
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* Tasks of one kind: rows of each of `heads` heads of all items; those that `recompute` wants, or all. */
struct ieee_tasks {
    int rows, heads, blocks, count;
    int64_t flags; /* of a head */
    const int32_t *recompute;
    __device__ ieee_tasks(int all, int of_heads, int batch, int tiles, const int32_t *wants, bool any)
        : rows(all), heads(of_heads), blocks((all + ROWS - 1) / ROWS), count(any ? batch * of_heads * blocks : 0),
          flags((int64_t)tiles * (ATTENTION_ROWS / ATTENTION_FLAG_ROWS)), recompute(wants) {}
    __device__ bool wanted(int index) const {
        return !recompute || recompute[index / blocks * flags + index % blocks * ROWS / ATTENTION_FLAG_ROWS];
    }
    __device__ ieee_task task(int index) const {
        return {index % blocks * ROWS, index / blocks / heads, index / blocks % heads};
    }
};

/* The thread block's tasks, every gridDim-th of both kinds: work(A, task, first kind). */
template <typename WORK>
__device__ static void for_each_task(const ieee_tasks &first, const ieee_tasks &second, WORK work) {
    const int count = first.count + second.count;
    auto wanted = [&](int index) {
        return index < first.count ? first.wanted(index) : second.wanted(index - first.count);
    };
    wait_for_previous_kernel();
    if (first.recompute) { /* mostly there are none: all threads look at once */
        bool any = false;
        for (int64_t index = blockIdx.x + (int64_t)threadIdx.x * gridDim.x; index < count;
             index += THREADS * (int64_t)gridDim.x)
            any |= wanted((int)index);
        if (!__syncthreads_or(any)) return;
    }
    for (int index = (int)blockIdx.x; index < count; index += (int)gridDim.x) {
        if (!wanted(index)) continue;
        const bool is_first = index < first.count;
        const ieee_task task = is_first ? first.task(index) : second.task(index - first.count);
        if ((is_first ? first : second).rows - task.row0 <= ROW_STEP)
            work(integral<1>(), task, is_first);
        else
            work(integral<MOST_ROWS>(), task, is_first);
    }
}

template <int BLOCKS, int CHUNK>
__device__ static void forward_kernel(const attention_args &g, ieee_shared<CHUNK, 1> &s) {
    const ieee_tasks of_q(g.queries, g.heads, g.batch, g.tiles_q, g.recompute_q, true),
        none(1, 1, 0, 0, nullptr, false);
    for_each_task(of_q, none,
                  [&](auto a, const ieee_task &task, bool) { forward<BLOCKS, decltype(a)::value>(g, s, task); });
}

template <int BLOCKS, int CHUNK>
__device__ static void backward_kernel(const attention_args &g, ieee_shared<CHUNK, 2> &s) {
    const ieee_tasks of_kv(g.keys, g.kv_heads, g.batch, g.tiles_k, g.recompute_k, g.grad_k.data || g.grad_v.data);
    const ieee_tasks of_q(g.queries, g.heads, g.batch, g.tiles_q, g.recompute_q, g.grad_q.data);
    for_each_task(of_kv, of_q, [&](auto a, const ieee_task &task, bool keys) {
        if (keys)
            grad_kv<BLOCKS, decltype(a)::value>(g, s, task);
        else
            grad_q<BLOCKS, decltype(a)::value>(g, s, task);
    });
}

#endif
