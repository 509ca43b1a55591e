/* ieee_tile.cuh: C = alpha*A*B + beta*S in IEEE float32, a tile of C at a time, for every tile size (ieee_tile_*.cu).
 *
 * Operands come to shared memory as ieee_slab.cuh says.
 *
 * Tile map. A block's warps are WARPS_M x WARPS_N, a warp's lanes LANES_M x LANES_N, a thread's results ROWS x COLS,
 * held in registers. Rows and columns of a thread come in groups of four neighbours, so that one 16-byte load from
 * shared memory brings four of them; the groups of one warp interleave: row of thread = group*4*LANES_M + lane_m*4 +
 * 0..3.
 *
 * k runs in steps of STEP terms, the body of the one main loop. While a step is multiplied, a part of a later slab is
 * on its way from global to shared memory, and the next term's values from shared memory to registers.
 *
 * What the speed depends on. A scheduler issues one instruction a cycle, and an fma is one: every other instruction
 * costs. Per term a thread does ROWS*COLS fma for (ROWS + COLS)/4 loads: large thread tiles. And an fma reads three
 * registers, of which each of the two banks (even, odd) delivers one a cycle: so neighbouring fma must share a factor,
 * which the hardware keeps at hand, and the other two registers must be of different parity. See multiply and store.
 */
#pragma once

#include "cuda/kernels/ieee/ieee_slab.cuh"

/* SEPARATE: the main loop is compiled once for each pair of readings that matters, without a branch in it. */
template <int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int ROWS, int COLS, int SLAB, int STEP, int STAGES,
          bool SEPARATE>
struct ieee_tile {
    static constexpr int M = TILE_M, N = TILE_N;
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
    static constexpr int LANES_M = WARP_M / ROWS, LANES_N = WARP_N / COLS;
    static constexpr int PARTS = SLAB / STEP;
    using queue = slab_queue<TILE_M, TILE_N, SLAB, PARTS, STAGES, THREADS>;
    static constexpr int A_PITCH = queue::a_tile::PITCH, B_PITCH = queue::b_tile::PITCH;
    static constexpr int RESULT_PITCH = WARP_N + 4;
    static constexpr int SHARED_BYTES = queue::SHARED_BYTES;

    static_assert(LANES_M * LANES_N == 32, "the lanes of a warp cover its part of the tile");
    static_assert(ROWS % 4 == 0 && COLS % 4 == 0, "values come from shared memory four at a time");
    static_assert(STEP % 2 == 0, "two register sets alternate between terms, and each step starts with the first");
    static_assert(WARPS_M * WARPS_N * LANES_M * RESULT_PITCH * 4 <= SHARED_BYTES, "results pass through the slabs");

    /* Where a thread's results are. Lanes 2i and 2i+1 have the same rows, lanes i and i^2 the same columns: a warp's
     * 16-byte loads from shared memory then take two passes instead of four. */
    struct place {
        int warp_m, warp_n, lane_m, lane_n;
        __device__ __forceinline__ place() {
            const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
            warp_m = warp / WARPS_N * WARP_M;
            warp_n = warp % WARPS_N * WARP_N;
            lane_m = lane / 2 % LANES_M;
            lane_n = lane % 2 + lane / (2 * LANES_M) * 2;
        }
    };

    /* Four values at a time, `apart` floats from each other in shared memory. */
    template <int COUNT>
    static __device__ __forceinline__ void load(float (&values)[COUNT], const float *from, int apart) {
#pragma unroll
        for (int group = 0; group < COUNT / 4; ++group)
            *(float4 *)&values[group * 4] = *(const float4 *)(from + group * apart);
    }

    /* Which operand comes first changes how the compiler arranges the fma: this is the faster order for each tile. */
    static __device__ __forceinline__ void load_values(float (&a)[ROWS], float (&b)[COLS], const float *a_from,
                                                       const float *b_from) {
        if (ROWS > COLS) load(a, a_from, 4 * LANES_M);
        load(b, b_from, 4 * LANES_N);
        if (ROWS <= COLS) load(a, a_from, 4 * LANES_M);
    }

    /* The main loop: adds the terms of all slabs. */
    template <reading A, reading B>
    static __device__ __forceinline__ void multiply(float (&sum)[ROWS][COLS], const place &my, float *shared,
                                                    queue &slabs) {
        slabs.template fill<A, B>();
        const int a_offset = my.warp_m + my.lane_m * 4, b_offset = queue::A_SLAB + my.warp_n + my.lane_n * 4;
        const float *a_from = shared + a_offset + slabs.part * STEP * A_PITCH;
        const float *b_from = shared + b_offset + slabs.part * STEP * B_PITCH;
        float a_values[2][ROWS], b_values[2][COLS];
        load_values(a_values[0], b_values[0], a_from, b_from);

#pragma unroll 1
        for (int steps = slabs.steps(); steps > 0; --steps) {
            slabs.template copy_part<A, B>();
#pragma unroll
            for (int term = 0; term < STEP; ++term) {
                float(&a_now)[ROWS] = a_values[term % 2], (&b_now)[COLS] = b_values[term % 2];
                if (term + 1 < STEP) {
                    load_values(a_values[(term + 1) % 2], b_values[(term + 1) % 2], a_from + (term + 1) * A_PITCH,
                                b_from + (term + 1) * B_PITCH);
                } else {
                    a_from += STEP * A_PITCH;
                    b_from += STEP * B_PITCH;
                    if (slabs.next_slab()) { /* the last one's values are in registers */
                        a_from = shared + slabs.stage * queue::STAGE + a_offset;
                        b_from = shared + slabs.stage * queue::STAGE + b_offset;
                    }
                    load_values(a_values[0], b_values[0], a_from, b_from);
                }
                /* Row by row, back and forth: each fma has a factor in common with the one before. */
#pragma unroll
                for (int row = 0; row < ROWS; ++row) {
#pragma unroll
                    for (int i = 0; i < COLS; ++i) {
                        const int col = row % 2 ? COLS - 1 - i : i;
                        sum[row][col] = fmaf(a_now[row], b_now[col], sum[row][col]);
                    }
                }
            }
        }
    }

    /* Computes one segment's sums and stores them. */
    static __device__ __forceinline__ void compute(const ieee_args &args, const segment &seg, const extent &rows,
                                                   const extent &cols, float *shared, const uint16_t *recompute) {
        const place my;
        queue slabs;
        slabs.begin(args, seg, rows, cols, shared);
        const reading a = slabs.a.how, b = slabs.b.how;
        float sum[ROWS][COLS] = {};
        if (SEPARATE && a == READ_VECTORS && b == READ_VECTORS)
            multiply<READ_VECTORS, READ_VECTORS>(sum, my, shared, slabs);
        else if (SEPARATE && a == READ_TERMS && b == READ_VECTORS)
            multiply<READ_TERMS, READ_VECTORS>(sum, my, shared, slabs);
        else if (SEPARATE && a == READ_VECTORS && b == READ_TERMS)
            multiply<READ_VECTORS, READ_TERMS>(sum, my, shared, slabs);
        else if (SEPARATE && a == READ_TERMS && b == READ_TERMS)
            multiply<READ_TERMS, READ_TERMS>(sum, my, shared, slabs);
        else if (SEPARATE && a == READ_TERMS && b == READ_LINES)
            multiply<READ_TERMS, READ_LINES>(sum, my, shared, slabs);
        else if (SEPARATE && a == READ_LINES && b == READ_TERMS)
            multiply<READ_LINES, READ_TERMS>(sum, my, shared, slabs);
        else if (SEPARATE && a == READ_LINES && b == READ_LINES)
            multiply<READ_LINES, READ_LINES>(sum, my, shared, slabs);
        else
            multiply<READ_ANY, READ_ANY>(sum, my, shared, slabs);
        slabs.end();
        store(args, sum, seg, rows, cols, my, shared + threadIdx.x / 32 * (LANES_M * RESULT_PITCH), recompute);
    }

    /* Stores a segment's sums. They go through shared memory, LANES_M rows of the warp's part at a time, so that a warp
     * writes whole rows. There, columns 2i and 2i+1 change places: the 16-byte stores need four sums in registers that
     * follow each other, and this order gives sum[row][col] the opposite parity of b's value for that column. */
    static __device__ __forceinline__ void store(const ieee_args &args, const float (&sum)[ROWS][COLS],
                                                 const segment &seg, const extent &rows, const extent &cols,
                                                 const place &my, float *staging, const uint16_t *recompute) {
        const int lane = threadIdx.x % 32;
        /* Of the warp's part: the rows and columns that are this tile's own, and where the matrix ends. */
        const int rows_own = rows.own - rows.first - my.warp_m, cols_own = cols.own - cols.first - my.warp_n;
        int rows_end = args.m - rows.first - my.warp_m, cols_end = args.n - cols.first - my.warp_n;
        float alpha = args.alpha, beta = args.beta;
        int64_t row_stride = args.c.row_stride, col_stride = args.c.col_stride;
        float *out = args.c.data + blockIdx.z * args.c.batch_stride + (rows.first + my.warp_m) * row_stride +
                     (cols.first + my.warp_n) * col_stride;
        if (!seg.whole) {
            out = partial_tile(args, seg.tile, seg.index) - rows_own * TILE_N - cols_own;
            row_stride = TILE_N;
            col_stride = 1;
            rows_end = WARP_M;
            cols_end = WARP_N;
            alpha = 1.0f;
            beta = 0.0f;
        }
        const matrix_in &s = args.addend;
        const float *addend = s.data + blockIdx.z * s.batch_stride + (rows.first + my.warp_m) * s.row_stride +
                              (cols.first + my.warp_n) * s.col_stride;
        const bool vectors = !recompute && col_stride == 1 && row_stride % 4 == 0 && cols_end % 4 == 0 &&
                             cols_own % 4 == 0 && (uintptr_t)out % 16 == 0;
        const bool addend_vectors = s.col_stride == 1 && s.row_stride % 4 == 0 && (uintptr_t)addend % 16 == 0;

#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            __syncwarp();
#pragma unroll
            for (int group = 0; group < COLS / 4; ++group)
                *(float4 *)(staging + my.lane_m * RESULT_PITCH + group * 4 * LANES_N + my.lane_n * 4) = make_float4(
                    sum[row][group * 4 + 1], sum[row][group * 4], sum[row][group * 4 + 3], sum[row][group * 4 + 2]);
            __syncwarp();
            const int first_row = row / 4 * 4 * LANES_M + row % 4;
            if (vectors) {
#pragma unroll
                for (int i = lane; i < LANES_M * WARP_N / 4; i += 32) {
                    const int line = i / (WARP_N / 4), col = i % (WARP_N / 4) * 4, out_row = first_row + line * 4;
                    if (out_row < rows_own || out_row >= rows_end || col < cols_own || col >= cols_end) continue;
                    float4 *at = (float4 *)(out + out_row * row_stride + col);
                    const float4 sums = *(const float4 *)(staging + line * RESULT_PITCH + col);
                    float4 value = {alpha * sums.y, alpha * sums.x, alpha * sums.w, alpha * sums.z};
                    if (beta != 0.0f) {
                        const float *add = addend + out_row * s.row_stride + col * s.col_stride;
                        const float4 old = addend_vectors ? *(const float4 *)add
                                                          : make_float4(add[0], add[s.col_stride],
                                                                        add[2 * s.col_stride], add[3 * s.col_stride]);
                        value = {fmaf(alpha, sums.y, beta * old.x), fmaf(alpha, sums.x, beta * old.y),
                                 fmaf(alpha, sums.w, beta * old.z), fmaf(alpha, sums.z, beta * old.w)};
                    }
                    *at = value;
                }
            } else {
#pragma unroll 4
                for (int i = lane; i < LANES_M * WARP_N; i += 32) {
                    const int line = i / WARP_N, col = i % WARP_N, out_row = first_row + line * 4;
                    if (out_row < rows_own || out_row >= rows_end || col < cols_own || col >= cols_end) continue;
                    if (recompute &&
                        !is_recomputed(args, recompute, rows.first + my.warp_m + out_row, cols.first + my.warp_n + col))
                        continue;
                    float *at = out + out_row * row_stride + col * col_stride;
                    const float value = staging[line * RESULT_PITCH + (col ^ 1)];
                    *at = beta == 0.0f ? alpha * value
                                       : fmaf(alpha, value, beta * addend[out_row * s.row_stride + col * s.col_stride]);
                }
            }
        }
    }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        extern __shared__ __align__(16) float shared[];
        compute_segments<ieee_tile, TILE_M, TILE_N>(args, shared);
    }
};
