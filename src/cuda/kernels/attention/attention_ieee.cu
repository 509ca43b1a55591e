/* attention_ieee.cu: attention and its gradients in IEEE float32, on every GPU, and for what the split cannot carry.
 *
 * A thread block of 256 has 64 rows (queries, or keys for dK and dV) and goes through the columns, 64 at a time. Thread
 * 16y + x has rows y + 16a and columns x + 16b, for a and b up to 3, of every matrix of a tile: of the scores and of
 * each 64 columns of O or a gradient. Operands come through shared memory; so do the weights, between the two products.
 *
 * NaN and Inf go where IEEE arithmetic carries them: a weight of 0 multiplies its value, whatever that is. Only keys
 * that a causal mask hides from a query have no part in it.
 */
#include "cuda/kernels/attention/attention.cuh"
#include "cuda/kernels/kernel_list.h"

constexpr int ROWS = ATTENTION_IEEE_ROWS, THREADS = 256, EACH = 4; /* rows and columns of a thread */
constexpr int CHUNK = 32;                                          /* terms of a dot product in shared memory */

struct ieee_shared {
    union {
        float terms[2][ROWS][CHUNK + 1];
        float values[ROWS][ROWS + 1];
    };
    float weights[ROWS][ROWS + 1];
};

struct place {
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
};

/* 64 rows of a head. */
struct rows_of {
    const float *data; /* the first row */
    int64_t row_stride, col_stride;
    int rows; /* those that are there */
    template <typename HEADS>
    __device__ rows_of(const HEADS &x, int batch, int head, int row0, int all)
        : data(head_of(x, batch, head) + row0 * x.row_stride), row_stride(x.row_stride), col_stride(x.col_stride),
          rows(all - row0) {}
    __device__ float at(int i, int c, int dim) const {
        return i < rows && c < dim ? data[i * row_stride + c * col_stride] : 0;
    }
};

/* d = x y^T. */
__device__ static void dot_rows(ieee_shared &s, float (&d)[EACH][EACH], const rows_of &x, const rows_of &y, int dim) {
    const place me;
    for (int a = 0; a < EACH; a++)
        for (int b = 0; b < EACH; b++) d[a][b] = 0;
    for (int c0 = 0; c0 < dim; c0 += CHUNK) {
        __syncthreads();
        for (int n = (int)threadIdx.x; n < ROWS * CHUNK; n += THREADS) {
            s.terms[0][n / CHUNK][n % CHUNK] = x.at(n / CHUNK, c0 + n % CHUNK, dim);
            s.terms[1][n / CHUNK][n % CHUNK] = y.at(n / CHUNK, c0 + n % CHUNK, dim);
        }
        __syncthreads();
#pragma unroll 8
        for (int c = 0; c < CHUNK; c++)
#pragma unroll
            for (int a = 0; a < EACH; a++)
#pragma unroll
                for (int b = 0; b < EACH; b++)
                    d[a][b] = fmaf(s.terms[0][me.y + 16 * a][c], s.terms[1][me.x + 16 * b][c], d[a][b]);
    }
}

/* What a causal mask hides of a tile of weights, by the first query less the first key: row r (or column, if rows are
 * keys) is that many queries on. */
struct diagonal {
    bool causal, rows_are_keys;
    int lead;
    __device__ diagonal(const attention_args &g, int query0, int key0, bool keys)
        : causal(g.causal), rows_are_keys(keys), lead(query0 - key0) {}
    __device__ bool hides_all() const { return causal && lead + ROWS - 1 < 0; }
    __device__ bool hides_some() const { return causal && lead < ROWS - 1; }
    __device__ bool hides(int row, int column) const {
        return rows_are_keys ? row > column + lead : column > row + lead;
    }
};

/* sum += weights x, for all columns of x; weights are the thread's elements w. */
template <int BLOCKS>
__device__ static void add_weighted(ieee_shared &s, float (&sum)[BLOCKS][EACH][EACH], const float (&w)[EACH][EACH],
                                    const rows_of &x, int dim, const diagonal &mask) {
    const place me;
    __syncthreads();
    for (int a = 0; a < EACH; a++)
        for (int b = 0; b < EACH; b++) s.weights[me.y + 16 * a][me.x + 16 * b] = w[a][b];
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        if (block * ROWS >= dim) break;
        __syncthreads();
        for (int n = (int)threadIdx.x; n < ROWS * ROWS; n += THREADS)
            s.values[n / ROWS][n % ROWS] = x.at(n / ROWS, block * ROWS + n % ROWS, dim);
        __syncthreads();
        const bool some = mask.hides_some();
#pragma unroll 8
        for (int j = 0; j < ROWS; j++)
#pragma unroll
            for (int a = 0; a < EACH; a++) {
                if (some && mask.hides(me.y + 16 * a, j)) continue;
#pragma unroll
                for (int b = 0; b < EACH; b++)
                    sum[block][a][b] = fmaf(s.weights[me.y + 16 * a][j], s.values[j][me.x + 16 * b], sum[block][a][b]);
            }
    }
}

/* Stores rows from row0 on, each times its factor. */
template <int BLOCKS>
__device__ static void store(const heads_out &to, int batch, int head, const float (&sum)[BLOCKS][EACH][EACH],
                             const float (&factor)[EACH], int row0, int rows, int dim) {
    const place me;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int a = 0; a < EACH; a++)
#pragma unroll
            for (int b = 0; b < EACH; b++) {
                const int i = row0 + me.y + 16 * a, c = block * ROWS + me.x + 16 * b;
                if (i < rows && c < dim)
                    head_of(to, batch, head)[i * to.row_stride + c * to.col_stride] = sum[block][a][b] * factor[a];
            }
}

__device__ static bool is_dropped(const attention_args &g, int batch, int head, int i, int j) {
    if (!g.drop_below) return false;
    uint32_t numbers[4];
    dropout_numbers(dropout_key_of(g.seed, g.offset, (uint32_t)(batch * g.heads + head)), (uint32_t)i, (uint32_t)j,
                    numbers);
    const uint32_t word = i / 8 % 2 ? (j / 8 % 2 ? numbers[3] : numbers[2]) : (j / 8 % 2 ? numbers[1] : numbers[0]);
    return (word >> 16 * (j % 2) & 0xffff) < g.drop_below;
}

/* The tasks of a thread block: every gridDim-th 64 rows of one head, those that `recompute` wants, or all. */
struct ieee_task {
    int row0, batch, head;
};
template <typename WORK>
__device__ static void for_each_task(const attention_args &g, int rows, int heads, int tiles, const int32_t *recompute,
                                     WORK work) {
    const int blocks = (rows + ROWS - 1) / ROWS, count = g.batch * heads * blocks;
    auto wanted = [&](int index) {
        return !recompute || recompute[index / blocks * (int64_t)tiles + index % blocks * ROWS / ATTENTION_ROWS];
    };
    wait_for_previous_kernel();
    bool any = false; /* mostly there are none: all threads look at once */
    for (int64_t index = blockIdx.x + (int64_t)threadIdx.x * gridDim.x; index < count;
         index += THREADS * (int64_t)gridDim.x)
        any |= wanted((int)index);
    if (!__syncthreads_or(any)) return;
    for (int index = (int)blockIdx.x; index < count; index += (int)gridDim.x)
        if (wanted(index)) work(ieee_task{index % blocks * ROWS, index / blocks / heads, index / blocks % heads});
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

template <int BLOCKS> __device__ static void forward(const attention_args &g, ieee_shared &s, const ieee_task &task) {
    const place me;
    const int batch = task.batch, head = task.head, kv_head = head / (g.heads / g.kv_heads);
    const rows_of q(g.q, batch, head, task.row0, g.queries);
    float o[BLOCKS][EACH][EACH] = {}, largest[EACH], sum[EACH];
    for (int a = 0; a < EACH; a++) largest[a] = -INFINITY, sum[a] = 0;
    for (int j0 = 0; j0 < g.keys; j0 += ROWS) {
        const diagonal mask(g, task.row0, j0, false);
        if (mask.hides_all()) break;
        float p[EACH][EACH];
        dot_rows(s, p, q, rows_of(g.k, batch, kv_head, j0, g.keys), g.dim);
#pragma unroll
        for (int a = 0; a < EACH; a++) {
            const int i = task.row0 + me.y + 16 * a;
            float most = -INFINITY, part = 0;
            for (int b = 0; b < EACH; b++) {
                p[a][b] = score_of(g, p[a][b], batch, head, i, j0 + me.x + 16 * b);
                most = fmaxf(most, p[a][b]);
            }
            most = fmaxf(largest[a], row_max(most));
            const float base = most == -INFINITY ? 0 : most, shrink = expf(largest[a] - base);
            largest[a] = most;
            for (int b = 0; b < EACH; b++) {
                p[a][b] = expf(p[a][b] - base);
                part += p[a][b];
                if (is_dropped(g, batch, head, i, j0 + me.x + 16 * b)) p[a][b] = 0;
            }
            sum[a] = fmaf(sum[a], shrink, row_sum(part));
            for (int block = 0; block < BLOCKS; block++)
                for (int b = 0; b < EACH; b++) o[block][a][b] *= shrink;
        }
        add_weighted(s, o, p, rows_of(g.v, batch, kv_head, j0, g.keys), g.dim, mask);
    }
    float factor[EACH];
    for (int a = 0; a < EACH; a++) {
        const int i = task.row0 + me.y + 16 * a;
        factor[a] = sum[a] == 0 ? 0 : dropout_scale(g.drop_below) / sum[a];
        if (g.lse.data && me.x == 0 && i < g.queries)
            head_of(g.lse, batch, head)[i * g.lse.row_stride] = sum[a] == 0 ? INFINITY : largest[a] + logf(sum[a]);
    }
    store(g.o, batch, head, o, factor, task.row0, g.queries, g.dim);
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* From the dot products q.k and dO.v of a query and a key: dS, and the weight that dV takes. */
__device__ static void weigh(const attention_args &g, int batch, int head, int i, int j, float *dot, float *ds) {
    const int64_t at = ((int64_t)batch * g.heads + head) * g.tiles_q * ATTENTION_ROWS + i;
    const float lse = i < g.queries ? head_of(g.lse, batch, head)[i * g.lse.row_stride] : 0;
    const float p = expf(score_of(g, *dot, batch, head, i, j) - lse) * exp2f(i < g.queries ? g.shift[at] : 0);
    const bool dropped = is_dropped(g, batch, head, i, j);
    const float dp = dropped ? 0 : *ds * dropout_scale(g.drop_below);
    const bool there = i < g.queries && !hidden(g, i, j);
    *ds = there ? p * (dp - g.delta[at]) : 0;
    *dot = there && !dropped ? p : 0;
}

template <int BLOCKS> __device__ static void grad_q(const attention_args &g, ieee_shared &s, const ieee_task &task) {
    const place me;
    const int batch = task.batch, head = task.head, kv_head = head / (g.heads / g.kv_heads);
    const rows_of q(g.q, batch, head, task.row0, g.queries), grad_o(g.grad_o, batch, head, task.row0, g.queries);
    float dq[BLOCKS][EACH][EACH] = {};
    for (int j0 = 0; j0 < g.keys; j0 += ROWS) {
        const diagonal mask(g, task.row0, j0, false);
        if (mask.hides_all()) break;
        const rows_of k(g.k, batch, kv_head, j0, g.keys);
        float p[EACH][EACH], ds[EACH][EACH];
        dot_rows(s, p, q, k, g.dim);
        dot_rows(s, ds, grad_o, rows_of(g.v, batch, kv_head, j0, g.keys), g.dim);
        for (int a = 0; a < EACH; a++)
            for (int b = 0; b < EACH; b++)
                weigh(g, batch, head, task.row0 + me.y + 16 * a, j0 + me.x + 16 * b, &p[a][b], &ds[a][b]);
        add_weighted(s, dq, ds, k, g.dim, mask);
    }
    const float factor[EACH] = {g.scale, g.scale, g.scale, g.scale};
    store(g.grad_q, batch, head, dq, factor, task.row0, g.queries, g.dim);
}

template <int BLOCKS> __device__ static void grad_kv(const attention_args &g, ieee_shared &s, const ieee_task &task) {
    const place me;
    const int batch = task.batch, group = g.heads / g.kv_heads;
    const rows_of k(g.k, batch, task.head, task.row0, g.keys), v(g.v, batch, task.head, task.row0, g.keys);
    float dk[BLOCKS][EACH][EACH] = {}, dv[BLOCKS][EACH][EACH] = {};
    for (int head = task.head * group; head < (task.head + 1) * group; head++)
        for (int i0 = 0; i0 < g.queries; i0 += ROWS) {
            const diagonal mask(g, i0, task.row0, true);
            if (mask.hides_all()) continue;
            const rows_of q(g.q, batch, head, i0, g.queries), grad_o(g.grad_o, batch, head, i0, g.queries);
            float p[EACH][EACH], ds[EACH][EACH];
            dot_rows(s, p, k, q, g.dim);
            dot_rows(s, ds, v, grad_o, g.dim);
            for (int a = 0; a < EACH; a++)
                for (int b = 0; b < EACH; b++)
                    weigh(g, batch, head, i0 + me.x + 16 * b, task.row0 + me.y + 16 * a, &p[a][b], &ds[a][b]);
            add_weighted(s, dv, p, grad_o, g.dim, mask);
            add_weighted(s, dk, ds, q, g.dim, mask);
        }
    const float of_v = dropout_scale(g.drop_below), factor_k[EACH] = {g.scale, g.scale, g.scale, g.scale},
                factor_v[EACH] = {of_v, of_v, of_v, of_v};
    if (g.grad_k.data) store(g.grad_k, batch, task.head, dk, factor_k, task.row0, g.keys, g.dim);
    if (g.grad_v.data) store(g.grad_v, batch, task.head, dv, factor_v, task.row0, g.keys, g.dim);
}

/* delta and shift of every query, a warp for each. */
extern "C" __global__ void __launch_bounds__(THREADS) attention_delta(const __grid_constant__ attention_args g) {
    wait_for_previous_kernel();
    const int64_t index = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int item = (int)(index / g.queries), i = (int)(index % g.queries), lane = (int)threadIdx.x % 32;
    if (item >= g.batch * g.heads) return;
    const rows_of o(g.o, item / g.heads, item % g.heads, i, g.queries);
    const rows_of grad_o(g.grad_o, item / g.heads, item % g.heads, i, g.queries);
    float sum = 0;
    for (int c = lane; c < g.dim; c += 32) sum = fmaf(o.at(0, c, g.dim), grad_o.at(0, c, g.dim), sum);
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const int64_t at = (int64_t)item * g.tiles_q * ATTENTION_ROWS + i;
    const float shift = lse_shift<32>(g, item / g.heads, item % g.heads, i);
    if (lane == 0) g.delta[at] = sum, g.shift[at] = shift;
}

/* The rows that a kernel's tasks are of. */
#define QUERIES(g) g.queries, g.heads, g.tiles_q, g.recompute_q
#define KEYS(g) g.keys, g.kv_heads, g.tiles_k, g.recompute_k
#define KERNEL(name, id, function, blocks, side)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ attention_args g) { \
        __shared__ ieee_shared s;                                                                          \
        for_each_task(g, side(g), [&](const ieee_task &task) { function<blocks>(g, s, task); });           \
    }                                                                                                      \
    ASSERT_LISTED_AS(id, ROWS, ROWS, THREADS, 0)
KERNEL(attention_ieee_forward_128, ATTENTION_IEEE_FORWARD_128, forward, 2, QUERIES);
KERNEL(attention_ieee_forward_256, ATTENTION_IEEE_FORWARD_256, forward, 4, QUERIES);
KERNEL(attention_ieee_grad_q_128, ATTENTION_IEEE_GRAD_Q_128, grad_q, 2, QUERIES);
KERNEL(attention_ieee_grad_q_256, ATTENTION_IEEE_GRAD_Q_256, grad_q, 4, QUERIES);
KERNEL(attention_ieee_grad_kv_128, ATTENTION_IEEE_GRAD_KV_128, grad_kv, 2, KEYS);
KERNEL(attention_ieee_grad_kv_256, ATTENTION_IEEE_GRAD_KV_256, grad_kv, 4, KEYS);
