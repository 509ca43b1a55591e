/* ieee_vector.cu: C = alpha*A*B + beta*S in IEEE float32 for n <= 8 columns in one launch: a matrix times a vector, or
 * a few. A is read once and everything else is small, so memory is what it takes: many loads are under way at a time.
 *
 * A cluster of thread blocks has some rows of C. Each block has a range of k, whose terms its threads take in turn. The
 * threads' sums meet by shuffles, the warps' in shared memory, the blocks' in the cluster's, each in a fixed order.
 *
 *     ieee_vector_k   A's terms of k are neighbours: lanes along k, a warp has ROWS rows. args.share warps of a block
 *                     lie along k, the others along m.
 *     ieee_vector_m   A's rows are neighbours: args.share lanes along m with 4 rows each, the block's other threads
 *                     along k.
 *
 * One column of B is read where it is needed. Several pass through shared memory, CHUNK terms at a time.
 */
#include "cuda/kernels/ieee/ieee_order.cuh"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/ptx.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32, MAX_COLS = 8, CHUNK = 1024;

/* A block's part of the product. */
struct vector_part {
    const float *a, *b; /* at the block's first row and term */
    int row0, k0, terms;

    __device__ vector_part(const ieee_args &args, int tile_rows) {
        const int rank = (int)blockIdx.x % args.cluster;
        row0 = (int)blockIdx.x / args.cluster * tile_rows;
        k0 = min(rank * args.k_each, args.k);
        terms = min(args.k_each, args.k - k0);
        a = args.a.data + blockIdx.z * args.a.batch_stride + row0 * args.a.row_stride + k0 * args.a.col_stride;
        b = args.b.data + blockIdx.z * args.b.batch_stride + k0 * args.b.row_stride;
    }
};

/* B's terms [begin, begin + CHUNK) to shared memory, element (term, col) at term*TERM + col*COL; columns beyond
 * the matrix are zero. */
template <int COLS, int TERM, int COL>
static __device__ __forceinline__ void stage_b(float *shared, const ieee_args &args, const vector_part &part,
                                               int begin) {
    const bool along_k = args.b.row_stride == 1; /* neighbouring threads take neighbours in memory */
    const int terms = min(CHUNK, part.terms - begin);
    for (int i = (int)threadIdx.x; i < terms * COLS; i += THREADS) {
        const int term = along_k ? i % terms : i / COLS, col = along_k ? i / terms : i % COLS;
        shared[term * TERM + col * COL] = col < args.n
                                              ? part.b[(begin + term) * args.b.row_stride + col * args.b.col_stride]
                                              : 0.0f;
    }
}

/* Stores the tile. sums[parts][tile_rows*COLS] are the block's, to be added up in order. */
template <int COLS>
static __device__ __forceinline__ void store(const ieee_args &args, float *sums, int parts, int tile_rows, int row0) {
    const int count = tile_rows * COLS, blocks = args.cluster;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        float total = sums[i];
        for (int part = 1; part < parts; part++) total += sums[part * count + i];
        if (blocks > 1)
            sums[i] = total;
        else if (row0 + i / COLS < args.m && i % COLS < args.n)
            store_element(args, row0 + i / COLS, i % COLS, total);
    }
    if (blocks == 1) return;
    cluster_sync();
    for (int i = (int)threadIdx.x * blocks + cluster_rank(); i < count; i += THREADS * blocks) {
        const uint32_t at = shared_address(sums + i);
        float total = load_from_block(at, 0);
#pragma unroll 4
        for (int other = 1; other < blocks; other++) total += load_from_block(at, other);
        if (row0 + i / COLS < args.m && i % COLS < args.n) store_element(args, row0 + i / COLS, i % COLS, total);
    }
    cluster_sync(); /* until the others have read our sums */
}

/* ---- Along k ----------------------------------------------------------------------------------------------------- */

template <int COLS> struct vector_k {
    static constexpr int ROWS = 4;

    /* UNROLL steps of FLOATS terms a lane, from term `at` on, of those below `end`. */
    template <int UNROLL, int FLOATS>
    static __device__ __forceinline__ void add(float (&sum)[ROWS][COLS], const ieee_args &args, const vector_part &part,
                                               const float *const (&row)[ROWS], const float *shared, int begin, int at,
                                               int stride, int end) {
        const bool b_vectors = args.b.row_stride == 1 && (uintptr_t)part.b % 16 == 0;
        float a[UNROLL][ROWS][FLOATS], b[UNROLL][COLS][FLOATS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int term = at + u * stride;
            const bool there = term < end;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if constexpr (FLOATS == 4)
                    *(float4 *)a[u][r] = there ? __ldg((const float4 *)(row[r] + term)) : make_float4(0, 0, 0, 0);
                else
                    a[u][r][0] = there ? __ldg(row[r] + term * args.a.col_stride) : 0;
            if (COLS == 1) {
                if (FLOATS == 4 && b_vectors)
                    *(float4 *)b[u][0] = there ? __ldg((const float4 *)(part.b + term)) : make_float4(0, 0, 0, 0);
                else
#pragma unroll
                    for (int f = 0; f < FLOATS; f++)
                        b[u][0][f] = there ? __ldg(part.b + (term + f) * args.b.row_stride) : 0;
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int term = at + u * stride;
            if (COLS > 1) {
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    const float *from = shared + c * CHUNK + term - begin;
                    if constexpr (FLOATS == 4)
                        *(float4 *)b[u][c] = term < end ? *(const float4 *)from : make_float4(0, 0, 0, 0);
                    else
                        b[u][c][0] = term < end ? *from : 0;
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < COLS; c++)
#pragma unroll
                    for (int f = 0; f < FLOATS; f++) sum[r][c] = fmaf(a[u][r][f], b[u][c][f], sum[r][c]);
        }
    }

    static __device__ __forceinline__ void run(const ieee_args &args, float *shared) {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        const int along_k = args.share, tile_rows = WARPS / along_k * ROWS, first = warp / along_k * ROWS;
        const vector_part part(args, tile_rows);
        /* Rows beyond the matrix repeat its last one; their sums are not stored. */
        const float *row[ROWS];
        bool vectors = args.a.col_stride == 1;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            row[r] = part.a + min(first + r, args.m - 1 - part.row0) * args.a.row_stride;
            vectors = vectors && (uintptr_t)row[r] % 16 == 0;
        }
        float sum[ROWS][COLS] = {};
        const int chunk = COLS > 1 ? CHUNK : part.terms;
        for (int begin = 0; begin < part.terms; begin += chunk) {
            const int end = min(begin + chunk, part.terms);
            if (COLS > 1) {
                __syncthreads();
                stage_b<COLS, 1, CHUNK>(shared, args, part, begin);
                __syncthreads();
            }
            int at = begin;
            if (vectors) {
                constexpr int UNROLL = COLS <= 2 ? 4 : 2;
                const int stride = along_k * 128, whole = begin + (end - begin) / 4 * 4;
                for (int term = begin + warp % along_k * 128; term < whole; term += UNROLL * stride) {
                    if (term + stride >= whole) /* the last step */
                        add<1, 4>(sum, args, part, row, shared, begin, term + lane * 4, stride, whole);
                    else
                        add<UNROLL, 4>(sum, args, part, row, shared, begin, term + lane * 4, stride, whole);
                }
                at = whole;
            }
            constexpr int UNROLL = COLS <= 2 ? 8 : 4;
            const int stride = along_k * 32;
            for (int term = at + warp % along_k * 32; term < end; term += UNROLL * stride) {
                if (term + stride >= end)
                    add<1, 1>(sum, args, part, row, shared, begin, term + lane, stride, end);
                else
                    add<UNROLL, 1>(sum, args, part, row, shared, begin, term + lane, stride, end);
            }
        }
        __syncthreads(); /* nobody reads B any more */
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                float total = sum[r][c];
#pragma unroll
                for (int distance = 16; distance; distance /= 2) total += __shfl_xor_sync(~0u, total, distance);
                if (lane == r * COLS + c) shared[(warp % along_k * tile_rows + first + r) * COLS + c] = total;
            }
        store<COLS>(args, shared, along_k, tile_rows, part.row0);
    }
};

/* ---- Along m ----------------------------------------------------------------------------------------------------- */

template <int COLS> struct vector_m {
    static constexpr int ROWS = 4, UNROLL = 8;

    template <bool VECTORS>
    static __device__ __forceinline__ void add(float (&sum)[ROWS][COLS], const ieee_args &args, const vector_part &part,
                                               const int (&row)[ROWS], const float *shared, int begin, int end,
                                               int first, int stride) {
        for (int at = begin + first; at < end; at += UNROLL * stride) {
            float a[UNROLL][ROWS], b[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const int term = at + u * stride;
                const bool there = term < end;
                const float *column = part.a + term * args.a.col_stride;
                if (VECTORS)
                    *(float4 *)a[u] = there ? __ldg((const float4 *)(column + row[0])) : make_float4(0, 0, 0, 0);
                else {
#pragma unroll
                    for (int r = 0; r < ROWS; r++) a[u][r] = there ? __ldg(column + row[r]) : 0;
                }
                if (COLS == 1) b[u] = there ? __ldg(part.b + term * args.b.row_stride) : 0;
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const int term = at + u * stride;
                const float *values = shared + (term - begin) * COLS;
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    const float value = COLS == 1 ? b[u] : term < end ? values[c] : 0;
#pragma unroll
                    for (int r = 0; r < ROWS; r++) sum[r][c] = fmaf(a[u][r], value, sum[r][c]);
                }
            }
        }
    }

    static __device__ __forceinline__ void run(const ieee_args &args, float *shared) {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, lanes = args.share;
        const int place = lane % lanes, tile_rows = lanes * ROWS, stride = THREADS / lanes;
        const vector_part part(args, tile_rows);
        const int rows_left = args.m - part.row0;
        const bool vectors = (uintptr_t)part.a % 16 == 0 && args.a.col_stride % 4 == 0 && args.m % 4 == 0;
        /* Rows beyond the matrix repeat its last ones; their sums are not stored. */
        int row[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            row[r] = vectors ? min(place * ROWS, rows_left - ROWS) + r : min(place + lanes * r, rows_left - 1);
        float sum[ROWS][COLS] = {};
        const int chunk = COLS > 1 ? CHUNK : part.terms;
        for (int begin = 0; begin < part.terms; begin += chunk) {
            const int end = min(begin + chunk, part.terms);
            if (COLS > 1) {
                __syncthreads();
                stage_b<COLS, COLS, 1>(shared, args, part, begin);
                __syncthreads();
            }
            if (vectors)
                add<true>(sum, args, part, row, shared, begin, end, (int)threadIdx.x / lanes, stride);
            else
                add<false>(sum, args, part, row, shared, begin, end, (int)threadIdx.x / lanes, stride);
        }
        __syncthreads(); /* nobody reads B any more */
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                float total = sum[r][c];
                for (int distance = 16; distance >= lanes; distance /= 2)
                    total += __shfl_xor_sync(~0u, total, distance);
                const int my_row = vectors ? place * ROWS + r : place + lanes * r;
                if (lane < lanes) shared[(warp * tile_rows + my_row) * COLS + c] = total;
            }
        store<COLS>(args, shared, WARPS, tile_rows, part.row0);
    }
};

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* Sums of the warps: 128 rows of MAX_COLS columns at most. */
static_assert(WARPS * 128 <= CHUNK, "sums take the place of B");
ASSERT_LISTED_AS(IEEE_VECTOR_K, 32, MAX_COLS, THREADS, MAX_COLS *CHUNK * 4);
ASSERT_LISTED_AS(IEEE_VECTOR_M, 128, MAX_COLS, THREADS, MAX_COLS *CHUNK * 4);

template <template <int> class KERNEL> static __device__ __forceinline__ void run(const ieee_args &args) {
    float *shared = (float *)dynamic_shared<16>();
    wait_for_previous_kernel();
    allow_next_kernel();
    if (args.n == 1)
        KERNEL<1>::run(args, shared);
    else if (args.n == 2)
        KERNEL<2>::run(args, shared);
    else if (args.n <= 4)
        KERNEL<4>::run(args, shared);
    else
        KERNEL<8>::run(args, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) ieee_vector_k(const __grid_constant__ ieee_args args) {
    run<vector_k>(args);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) ieee_vector_m(const __grid_constant__ ieee_args args) {
    run<vector_m>(args);
}
