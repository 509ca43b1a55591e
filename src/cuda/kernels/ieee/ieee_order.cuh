/* ieee_order.cuh: which tiles of C, and which terms of k a thread block of an ieee kernel computes, and where sums
 * go. */
#pragma once

#include "cuda/kernels/args.h"
#include "cuda/kernels/marks.cuh"

/* Tiles are numbered in bands of 16 tile rows, down each column of a band: blocks that run together then share few
 * panels of A and of B, which the L2 cache holds. */
static __device__ __forceinline__ void find_tile(const ieee_args &args, int tile, int *tile_row, int *tile_col) {
    constexpr int BAND = 16;
    const int band = tile / (BAND * args.tiles_n);
    const int rows = min(BAND, args.tiles_m - band * BAND);
    const int in_band = tile - band * BAND * args.tiles_n;
    *tile_row = band * BAND + in_band % rows;
    *tile_col = in_band / rows;
}

/* A segment: the terms of one tile that a block computes at a time. */
struct segment {
    int tile;
    int k_begin, terms;
    int index;         /* among the tile's segments, along k */
    bool whole;        /* the tile's only segment */
    int64_t next, end; /* what is left of the block's share of the tail, in runs */
};

static __device__ __forceinline__ int runs_per_tile(const ieee_args &args) {
    return (args.k + IEEE_RUN - 1) / IEEE_RUN;
}

/* Of the tail, block u computes runs [u*runs/blocks, (u+1)*runs/blocks). This finds u for a run. */
static __device__ __forceinline__ int64_t block_of_run(const ieee_args &args, int64_t run, int64_t tail_runs) {
    return ((run + 1) * args.tail_blocks - 1) / tail_runs;
}

static __device__ __forceinline__ int tail_tiles(const ieee_args &args) {
    return args.tiles_m * args.tiles_n - args.full_tiles;
}

/* Sets `s` to the next segment of the block's share of the tail; false if there is none. */
static __device__ __forceinline__ bool next_segment(const ieee_args &args, segment *s) {
    if (s->next >= s->end) return false;
    const int runs = runs_per_tile(args);
    const int tail = (int)(s->next / runs), first = (int)(s->next - (int64_t)tail * runs);
    const int count = (int)min((int64_t)(runs - first), s->end - s->next);
    s->tile = args.full_tiles + tail;
    s->k_begin = first * IEEE_RUN;
    s->terms = min(args.k - s->k_begin, count * IEEE_RUN);
    s->whole = count == runs;
    s->index = first == 0 ? 0
                          : (int)(block_of_run(args, s->next, (int64_t)runs * tail_tiles(args)) -
                                  block_of_run(args, (int64_t)tail * runs, (int64_t)runs * tail_tiles(args)));
    s->next += count;
    return true;
}

/* The first segment of share `share`: shares [0, full_tiles) are whole tiles, the others parts of the tail. */
static __device__ __forceinline__ bool first_segment(const ieee_args &args, int share, segment *s) {
    if (share < args.full_tiles) {
        *s = segment{share, 0, args.k, 0, true, 0, 0};
        return true;
    }
    const int64_t tail_runs = (int64_t)runs_per_tile(args) * tail_tiles(args), block = share - args.full_tiles;
    s->next = block * tail_runs / args.tail_blocks;
    s->end = (block + 1) * tail_runs / args.tail_blocks;
    return next_segment(args, s);
}

/* Where the sums of a segment that is not whole go. */
static __device__ __forceinline__ float *partial_tile(const ieee_args &args, int tile, int segment_index) {
    const int64_t index = ((int64_t)blockIdx.z * tail_tiles(args) + (tile - args.full_tiles)) * args.segments +
                          segment_index;
    return args.partial + index * args.tile_m * args.tile_n;
}

/* Element (row, col) of C, from its whole sum. */
static __device__ __forceinline__ void store_element(const ieee_args &args, int row, int col, float sum) {
    const matrix_in &s = args.addend;
    const matrix_out &c = args.c;
    float value = args.alpha * sum;
    if (args.beta != 0.0f)
        value = fmaf(args.alpha, sum,
                     args.beta * s.data[blockIdx.z * s.batch_stride + row * s.row_stride + col * s.col_stride]);
    c.data[blockIdx.z * c.batch_stride + row * c.row_stride + col * c.col_stride] = value;
}

static __device__ __forceinline__ void add_to(float4 &sum, float4 more) {
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
}

/* Four neighbouring elements of a row of C, those that there are, from their whole sums. */
static __device__ __forceinline__ void store_four(const ieee_args &args, int row, int col, float4 sums) {
    const matrix_in &s = args.addend;
    const matrix_out &c = args.c;
    float *out = c.data + blockIdx.z * c.batch_stride + row * c.row_stride + col * c.col_stride;
    float four[4] = {args.alpha * sums.x, args.alpha * sums.y, args.alpha * sums.z, args.alpha * sums.w};
    const int cols = args.n - col;
    if (args.beta != 0.0f) {
        const float sum[4] = {sums.x, sums.y, sums.z, sums.w};
        const float *addend = s.data + blockIdx.z * s.batch_stride + row * s.row_stride + col * s.col_stride;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < cols) four[i] = fmaf(args.alpha, sum[i], args.beta * addend[i * s.col_stride]);
    }
    if (c.col_stride == 1 && cols >= 4 && (uintptr_t)out % 16 == 0)
        *(float4 *)out = make_float4(four[0], four[1], four[2], four[3]);
    else
#pragma unroll
        for (int i = 0; i < 4; i++, out += c.col_stride)
            if (i < cols) *out = four[i];
}

/* The rows, or the columns, of C that a tile reads. If the matrix is large enough, the last tile begins so early that
 * it ends with the matrix and is as large as the others; it stores only what no other tile has, from `own` on. */
struct extent {
    int first, own;
    __device__ __forceinline__ extent(int begin, int size, int matrix)
        : first(min(begin, max(matrix - size, 0))), own(begin) {}
};

/* With marks, whether no tile of this product needs recomputing because all marks are 1, the least there is, and the
 * limit is no less. All threads of the block call it. */
static __device__ __forceinline__ bool nothing_marked(const ieee_args &args) {
    if (!args.marks_a) return false;
    const float *marks_a = args.marks_a + blockIdx.z * args.marks_a_batch_stride;
    const float *marks_b = args.marks_b + blockIdx.z * args.marks_b_batch_stride;
    bool seen = !(args.mark_limit >= 1.0f);
    const int panels_m = (args.m + PANEL_ROWS - 1) / PANEL_ROWS, panels_n = (args.n + PANEL_ROWS - 1) / PANEL_ROWS;
    for (int i = threadIdx.x; i < panels_m + panels_n; i += blockDim.x)
        seen |= !((i < panels_m ? marks_a[i] : marks_b[i - panels_m]) <= 1.0f);
    return !__syncthreads_or(seen);
}

/* The rows that are recomputed, as bits, of the check block (args.h) of an element; and whether that is one of them. */
static __device__ __forceinline__ unsigned rows_recomputed(const ieee_args &args, const uint16_t *recompute, int row,
                                                           int col) {
    return recompute[(int64_t)(row / CHECK_ROWS) * ((args.n + CHECK_COLS - 1) / CHECK_COLS) + col / CHECK_COLS];
}
static __device__ __forceinline__ bool is_recomputed(const ieee_args &args, const uint16_t *recompute, int row,
                                                     int col) {
    return rows_recomputed(args, recompute, row, col) >> row % CHECK_ROWS & 1;
}

/* ---- Few rows ---------------------------------------------------------------------------------------------------- */

/* At most this many rows of a tile's check blocks are computed by themselves: that takes less time than the tile. */
enum { FEW_ROWS = 4 };

/* One of them, from column col0 on, by all threads of the block: float64 sums, added in a fixed order. Not inline: its
 * registers are not to be the tile's. No load depends on a condition, for such loads wait for each other: past the end
 * of k the last term is read again, and not added. */
static __device__ __noinline__ void compute_row(const ieee_args &args, int row, int col0, double *shared) {
    constexpr int WARPS = 4, COLS = CHECK_COLS / WARPS, AT_ONCE = 32, TERMS = AT_ONCE / COLS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, cols = min(CHECK_COLS, args.n - col0), terms = args.k;
    const int64_t a_step = args.a.col_stride, b_step = args.b.row_stride, b_stride = args.b.col_stride;
    const float *a = args.a.data + blockIdx.z * args.a.batch_stride + row * args.a.row_stride;
    const float *b = args.b.data + blockIdx.z * args.b.batch_stride + col0 * b_stride;
    if (b_step == 1) { /* lanes along k, a warp has some of the columns */
        double sums[COLS] = {};
        for (int k = lane; k < terms; k += 32 * TERMS) {
            float x[TERMS], y[TERMS][COLS];
#pragma unroll
            for (int i = 0; i < TERMS; i++) {
                const int at = min(k + 32 * i, terms - 1);
                x[i] = a[at * a_step];
#pragma unroll
                for (int j = 0; j < COLS; j++) y[i][j] = b[at + min(warp * COLS + j, cols - 1) * b_stride];
            }
#pragma unroll
            for (int i = 0; i < TERMS * COLS; i++)
                if (k + 32 * (i / COLS) < terms)
                    sums[i % COLS] = fma((double)x[i / COLS], (double)y[i / COLS][i % COLS], sums[i % COLS]);
        }
#pragma unroll
        for (int j = 0; j < COLS; j++) {
            for (int step = 16; step > 0; step /= 2) sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], step);
            if (lane == j) shared[warp * COLS + j] = sums[j];
        }
        __syncthreads();
    } else { /* lanes have the columns, warps the terms in turn */
        double sums[4] = {};
        b += min(lane, cols - 1) * b_stride;
        for (int k = warp; k < terms; k += WARPS * AT_ONCE) {
            float x[AT_ONCE], y[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int at = min(k + WARPS * i, terms - 1);
                x[i] = a[at * a_step];
                y[i] = b[at * b_step];
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (k + WARPS * i < terms) sums[i % 4] = fma((double)x[i], (double)y[i], sums[i % 4]);
        }
        double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        shared[warp * CHECK_COLS + lane] = sum;
        __syncthreads();
        if (warp == 0) {
            for (int i = 1; i < WARPS; i++) sum += shared[i * CHECK_COLS + lane];
            shared[lane] = sum;
        }
        __syncwarp();
    }
    if (warp == 0 && lane < cols) store_element(args, row, col0 + lane, (float)shared[lane]);
    __syncthreads();
}

/* What of a tile is still to be computed: nothing, the rows that have a bit, or all of it. */
enum rest { NOTHING, SOME_ROWS, ALL_ROWS };

/* If at most FEW_ROWS rows of the tile that begins with this element are to be recomputed, computes them: then nothing
 * is left. by_row: how a row is computed must not depend on the others, so not here. All threads of the block call
 * it. */
template <int TILE_M, int TILE_N>
static __device__ __forceinline__ rest compute_few_rows(const ieee_args &args, const uint16_t *recompute, int row,
                                                        int col, float *shared) {
    constexpr int ACROSS = TILE_N / CHECK_COLS, BLOCKS = TILE_M / CHECK_ROWS * ACROSS;
    static_assert(TILE_M % CHECK_ROWS == 0 && TILE_N % CHECK_COLS == 0 && BLOCKS <= 128,
                  "a thread for each check block");
    row += threadIdx.x / ACROSS * CHECK_ROWS;
    col += threadIdx.x % ACROSS * CHECK_COLS;
    const bool there = threadIdx.x < BLOCKS && row < args.m && col < args.n;
    const unsigned left = there ? rows_recomputed(args, recompute, row, col) : 0;
    const int blocks = __syncthreads_count(left);
    if (blocks == 0) return NOTHING;
    if (args.by_row) return SOME_ROWS;
    if (blocks > FEW_ROWS || __syncthreads_or(left & (left - 1))) { /* or more than one row of a check block */
        const unsigned all = there ? (1u << min((int)CHECK_ROWS, args.m - row)) - 1 : 0;
        return __syncthreads_or(left != all) ? SOME_ROWS : ALL_ROWS;
    }
    struct few {
        int count, row[FEW_ROWS], col[FEW_ROWS];
    } &found = *(few *)shared;
    if (threadIdx.x == 0) found.count = 0, atomicAdd(args.fallback_tiles, 1ull);
    __syncthreads();
    if (left) {
        const int at = atomicAdd(&found.count, 1);
        found.row[at] = row + __ffs((int)left) - 1;
        found.col[at] = col;
    }
    __syncthreads();
    const int count = found.count;
    for (int i = 0; i < count; i++) compute_row(args, found.row[i], found.col[i], (double *)(shared + 64));
    return NOTHING;
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* Computes the segments of this block, by KERNEL::compute, which all its threads call. */
template <class KERNEL, int TILE_M, int TILE_N>
static __device__ __forceinline__ void compute_segments(const ieee_args &args, float *shared) {
    if (nothing_marked(args)) return;
    const float *marks_a = args.marks_a, *marks_b = args.marks_b;
    if (marks_a) {
        marks_a += blockIdx.z * args.marks_a_batch_stride;
        marks_b += blockIdx.z * args.marks_b_batch_stride;
    }
    for (int share = blockIdx.x; share < args.full_tiles + args.tail_blocks; share += gridDim.x) {
        segment seg;
        for (bool found = first_segment(args, share, &seg); found; found = next_segment(args, &seg)) {
            int tile_row, tile_col;
            find_tile(args, seg.tile, &tile_row, &tile_col);
            const extent rows(tile_row * TILE_M, TILE_M, args.m);
            const extent cols(tile_col * TILE_N, TILE_N, args.n);
            const uint16_t *recompute = nullptr; /* bits of the rows to store; NULL: the whole tile is stored */
            if (marks_a) {
                const action action = action_for(marks_a[rows.own / PANEL_ROWS], marks_b[cols.own / PANEL_ROWS],
                                                 args.mark_limit, args.by_row, args.recompute);
                if (action == STORE) continue;
                if (action == CHECK_SUMS) {
                    recompute = args.recompute + blockIdx.z * args.recompute_batch_stride;
                    const rest left = compute_few_rows<TILE_M, TILE_N>(args, recompute, rows.own, cols.own, shared);
                    if (left == NOTHING) continue;
                    if (left == ALL_ROWS) recompute = nullptr;
                }
                if (threadIdx.x == 0) atomicAdd(args.fallback_tiles, 1ull);
            }
            KERNEL::compute(args, seg, rows, cols, shared, recompute);
            __syncthreads(); /* the next segment's slabs take the place of these results */
        }
    }
}
