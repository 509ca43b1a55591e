/* attention_pack.cu: splits the operands of attention into tiles of fp16 components (attention_args.h).
 *
 * A thread block packs one tile: its rows stay in registers while the largest elements of the tile and of each row are
 * found. blockIdx.y says which operand: Q, K, V or dO. With dO come the rows' delta, padded lse and shift.
 */
#include "cuda/kernels/attention/attention.cuh"
#include "cuda/kernels/kernel_list.h"

constexpr int THREADS = 256;

/* Columns 4*quad to 4*quad + 3 of a row; zeros past the last. */
__device__ static float4 load_quad(const heads_in &x, const float *row, int quad, int dim, bool fours) {
    if (fours) return 4 * quad < dim ? *(const float4 *)(row + 4 * quad) : make_float4(0, 0, 0, 0);
    float v[4];
#pragma unroll
    for (int c = 0; c < 4; c++) v[c] = 4 * quad + c < dim ? row[(4 * quad + c) * x.col_stride] : 0;
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* BLOCKS: of 64 columns. */
template <int BLOCKS> __device__ static void pack(const attention_args &g) {
    constexpr int LANES = BLOCKS == 1 ? 16 : 32;              /* threads that share a row */
    constexpr int ACROSS = BLOCKS <= 2 ? 1 : 2;               /* quads of a thread in a row: LANES between them */
    constexpr int ROW_STEP = THREADS / LANES;                 /* rows between a thread's rows */
    constexpr int QUADS = ATTENTION_ROWS / ROW_STEP * ACROSS; /* of a thread */
    __shared__ float warp_largest[THREADS / 32];
    wait_for_previous_kernel();

    const int which = (int)blockIdx.y;
    const bool of_queries = which == 0 || which == 3, is_grad = which == 3;
    const heads_in &from = which == 0 ? g.q : which == 1 ? g.k : which == 2 ? g.v : g.grad_o;
    const packed_heads &to = which == 0   ? g.packed_q
                             : which == 1 ? g.packed_k
                             : which == 2 ? g.packed_v
                                          : g.packed_grad_o;
    const int heads = of_queries ? g.heads : g.kv_heads, rows = of_queries ? g.queries : g.keys;
    const int tiles = of_queries ? g.tiles_q : g.tiles_k;
    const int item = (int)blockIdx.x / tiles, row0 = (int)blockIdx.x % tiles * ATTENTION_ROWS;
    if (item >= g.batch * heads) return;
    if (!of_queries && g.causal && row0 >= g.queries) { /* keys that nobody sees: nothing reads the tile */
        if (threadIdx.x == 0) to.downs[blockIdx.x] = 1;
        return;
    }

    const float *head = head_of(from, item / heads, item % heads);
    const float *outputs = is_grad ? head_of(g.o, item / heads, item % heads) : nullptr;
    const bool fours = in_fours(from, g.dim), fours_o = is_grad && in_fours(g.o, g.dim);
    const int quad = (int)threadIdx.x % LANES, first = (int)threadIdx.x / LANES;
    float4 x[QUADS];
    float largest = 0; /* magnitude */
    least_nonzero smallest;
    bool has_nan = false;
#pragma unroll
    for (int n = 0; n < QUADS; n++) {
        const int i = row0 + first + n / ACROSS * ROW_STEP;
        x[n] = i < rows ? load_quad(from, head + i * from.row_stride, quad + n % ACROSS * LANES, g.dim, fours)
                        : make_float4(0, 0, 0, 0);
    }
    if (is_grad) {
        const heads_in o = {g.o.data, g.o.batch_stride, g.o.head_stride, g.o.row_stride, g.o.col_stride};
#pragma unroll
        for (int n = 0; n < QUADS; n += ACROSS) {
            const int i = row0 + first + n / ACROSS * ROW_STEP;
            float sum = 0;
#pragma unroll
            for (int a = 0; a < ACROSS && i < rows; a++) {
                const float4 y = load_quad(o, outputs + i * o.row_stride, quad + a * LANES, g.dim, fours_o),
                             z = x[n + a];
                sum += z.x * y.x + z.y * y.y + (z.z * y.z + z.w * y.w);
            }
#pragma unroll
            for (int lane = LANES / 2; lane; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
            if (quad == 0) {
                const int64_t at = (int64_t)item * tiles * ATTENTION_ROWS + i;
                const float *lse = head_of(g.lse, item / heads, item % heads) + i * g.lse.row_stride;
                g.delta[at] = sum;
                g.shift[at] = 0;
                g.padded_lse[at] = i < rows ? *lse * (g.general ? 1 : LOG2_E) : INFINITY;
            }
        }
    }
#pragma unroll
    for (int n = 0; n < QUADS; n++) {
        const float quad_largest = largest_magnitude(x[n]);
        largest = fmaxf(largest, quad_largest);
        smallest.add(quad_largest);
        has_nan |= isnan(x[n].x + x[n].y + x[n].z + x[n].w); /* or Inf - Inf, which is no better */
    }
#pragma unroll
    for (int lane = 16; lane; lane /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lane));
    if (threadIdx.x % 32 == 0) warp_largest[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) largest = fmaxf(largest, warp_largest[w]);

    bool carried = carries_rows<LANES, QUADS / ACROSS>(largest, smallest, [&](int n) {
        float most = 0; /* x stays in registers: no index that is not known to the compiler */
#pragma unroll
        for (int i = 0; i < QUADS; i++) most = i / ACROSS == n ? fmaxf(most, largest_magnitude(x[i])) : most;
        return most;
    });
    carried &= carries_tile(largest) && !has_nan;
    const bool misfits = __syncthreads_or(!carried);
    const int e = exponent_for(largest);
    if (threadIdx.x == 0) to.downs[blockIdx.x] = misfits ? NAN : power_of_two(-e);
    uint8_t *tile = to.tiles + (int64_t)blockIdx.x * 2 * BLOCKS * ATTENTION_BLOCK_BYTES;
    const int stored = BLOCKS == 1 && rows - row0 <= ATTENTION_TAIL ? ATTENTION_TAIL : ATTENTION_ROWS;
#pragma unroll
    for (int n = 0; n < QUADS; n++) {
        const int r = first + n / ACROSS * ROW_STEP, column_block = (quad + n % ACROSS * LANES) / 16;
        uint8_t *hi = tile + column_block * ATTENTION_BLOCK_BYTES;
        if (r < stored && column_block < BLOCKS)
            store_split(hi, hi + BLOCKS * ATTENTION_BLOCK_BYTES, r, quad % 16, x[n], power_of_two(e));
    }
    if (is_grad && g.mask.data) /* last, when x needs no registers */
        for (int i = row0 + first; i < min(rows, row0 + ATTENTION_ROWS); i += ROW_STEP) {
            const float shift = lse_shift<LANES>(g, item / heads, item % heads, i);
            if (quad == 0) g.shift[(int64_t)item * tiles * ATTENTION_ROWS + i] = shift;
        }
}

#define PACK(name, blocks)                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ attention_args g) { \
        pack<blocks>(g);                                                                                   \
    }
PACK(attention_pack_64, 1)
PACK(attention_pack_128, 2)
PACK(attention_pack_192, 3)
PACK(attention_pack_256, 4)
