/* ieee_vector.cu: C = alpha*A*B + beta*S in IEEE float32 for n <= 8 columns in one launch: a matrix times a vector, or
 * a few. A is read once and everything else is small, so memory is the limit: while a thread multiplies, its next loads
 * are under way.
 *
 * A cluster of thread blocks has some rows of C. Each block has a range of k, whose terms its threads take in turn. The
 * threads' sums meet by shuffles, the warps' in shared memory, the blocks' in the cluster's, each in a fixed order.
 *
 *     ieee_vector_k, ieee_columns_k   A's terms of k are neighbours: lanes along k, a warp has ROWS rows. args.share
 *                                     warps of a block lie along k, the others along m.
 *     ieee_vector_m, ieee_columns_m   A's rows are neighbours: a block has 4*args.share rows, lanes along m, and the
 *                                     threads that are left along k.
 *
 * One column of B (ieee_vector_*) is read where it is needed. Several (ieee_columns_*) pass through shared memory,
 * CHUNK terms at a time.
 */
#include "cuda/kernels/ieee/ieee_order.cuh"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/ptx.cuh"

constexpr int CHUNK = 1024, B_PITCH = CHUNK + 4;

/* A block's part of the product: some rows, and `terms` terms of k. */
struct vector_part {
    const float *a, *b; /* at the block's first row and term */
    int row0, rows_left, terms;

    __device__ vector_part(const ieee_args &args, int rows) {
        const int k0 = min(cluster_rank() * args.k_each, args.k);
        row0 = cluster_number() * rows;
        rows_left = args.m - row0;
        terms = min(args.k_each, args.k - k0);
        a = args.a.data + blockIdx.z * args.a.batch_stride + row0 * args.a.row_stride + k0 * args.a.col_stride;
        b = args.b.data + blockIdx.z * args.b.batch_stride + k0 * args.b.row_stride;
    }
};

/* Rounded down. Rows, lanes and warps are powers of two; only a cluster's blocks need not be. Dividing takes long. */
static __device__ __forceinline__ int log2_of(int number) { return 31 - __clz(number); }

/* ---- Multiplying ------------------------------------------------------------------------------------------------- */

/* How a thread reads A. It has ROWS rows and, at a time, UNROLL times FLOATS neighbouring terms of them. VECTORS: its
 * loads are of 16 bytes, of four terms or, with FLOATS = 1, of its four rows. */
template <int ROWS_, int FLOATS_, int UNROLL_, bool VECTORS_> struct reading {
    static constexpr int ROWS = ROWS_, FLOATS = FLOATS_, UNROLL = UNROLL_;
    static constexpr bool VECTORS = VECTORS_;
};

/* Adds to `sum` what a thread has of the block's terms: of every `span` of them, from `first` on, UNROLL times FLOATS
 * that are `stride` apart. B has COLS columns; several are in shared memory, element (term, col) at term*TERM +
 * col*COL of a chunk. */
template <class R, int COLS, bool ALONG_M, int THREADS>
static __device__ __forceinline__ void add_terms(float (&sum)[R::ROWS][COLS], const ieee_args &args,
                                                 const vector_part &part, const float *const (&row)[R::ROWS], int first,
                                                 int stride, int span, float *shared) {
    constexpr int ROWS = R::ROWS, FLOATS = R::FLOATS, UNROLL = R::UNROLL;
    constexpr int TERM = ALONG_M ? COLS : 1, COL = ALONG_M ? 1 : B_PITCH;
    const int end = part.terms / FLOATS * FLOATS;
    const int64_t b_stride = args.b.row_stride;
    const bool b_vectors = FLOATS == 4 && b_stride == 1 && (uintptr_t)part.b % 16 == 0;
    struct values {
        float a[UNROLL][ROWS][FLOATS], b[UNROLL][FLOATS];
    };

    /* `all`: every one of these terms is there. Else those beyond the end repeat the last, and multiply leaves them
     * out. */
    const int64_t a_step = ALONG_M ? args.a.col_stride : 1;
    auto load = [&](values &x, int at, bool all) {
        const float *a = row[0] + at * a_step, *b = part.b + at * b_stride; /* where all are there */
#pragma unroll
        for (int u = 0; u < UNROLL; u++, a += stride * a_step, b += stride * b_stride) {
            if (!all) {
                const int term = min(at + u * stride, end - FLOATS);
                a = row[0] + term * a_step;
                b = part.b + term * b_stride;
            }
            if constexpr (R::VECTORS && FLOATS == 1) {
                const float4 rows = __ldg((const float4 *)a);
                x.a[u][0][0] = rows.x, x.a[u][1][0] = rows.y, x.a[u][2][0] = rows.z, x.a[u][3][0] = rows.w;
            } else {
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float *from = ALONG_M ? a + (int)(row[r] - row[0]) : row[r] + (a - row[0]);
                    if constexpr (FLOATS == 4)
                        *(float4 *)x.a[u][r] = __ldg((const float4 *)from);
                    else
                        x.a[u][r][0] = __ldg(from);
                }
            }
            if constexpr (COLS == 1) {
                if (b_vectors)
                    *(float4 *)x.b[u] = __ldg((const float4 *)b);
                else
#pragma unroll
                    for (int f = 0; f < FLOATS; f++) x.b[u][f] = __ldg(b + f * b_stride);
            }
        }
    };
    auto multiply = [&](const values &x, int at, bool all) {
        const float *chunk = shared + at / CHUNK % 2 * (COLS * B_PITCH);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const float *from = chunk + (at % CHUNK + u * stride) * TERM;
            float b[FLOATS][COLS];
            if constexpr (COLS == 1) {
#pragma unroll
                for (int f = 0; f < FLOATS; f++) b[f][0] = x.b[u][f];
            } else if constexpr (FLOATS == 4) {
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    const float4 terms = *(const float4 *)(from + c * COL);
                    b[0][c] = terms.x, b[1][c] = terms.y, b[2][c] = terms.z, b[3][c] = terms.w;
                }
            } else {
#pragma unroll
                for (int c = 0; c < COLS; c++) b[0][c] = from[c * COL];
            }
            const bool there = at + u * stride < end;
#pragma unroll
            for (int f = 0; f < FLOATS; f++)
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int c = 0; c < COLS; c++)
                        if (all)
                            sum[r][c] = fmaf(x.a[u][r][f], b[f][c], sum[r][c]);
                        else
                            fma_if(there, x.a[u][r][f], b[f][c], sum[r][c]);
        }
    };
    /* B's terms from `begin` on, CHUNK of them at most. */
    auto stage = [&](int begin) {
        const uint32_t to = shared_address(shared) + begin / CHUNK % 2 * (COLS * B_PITCH * 4);
        const int count = min(CHUNK, part.terms - begin);
        const float *from = part.b + begin * b_stride;
        auto copy = [&](int term, int col) {
            cp_async_or_zero<4>(to + (term * TERM + col * COL) * 4, from + term * b_stride + col * args.b.col_stride,
                                true);
        };
        if (b_stride == 1) { /* neighbouring threads take neighbours in memory */
#pragma unroll 1
            for (int col = 0; col < args.n; col++)
#pragma unroll 1
                for (int term = (int)threadIdx.x; term < count; term += THREADS) copy(term, col);
        } else
#pragma unroll 1
            for (int i = (int)threadIdx.x; i < count * COLS; i += THREADS)
                if (i % COLS < args.n) copy(i / COLS, i % COLS);
        cp_async_commit();
    };

    /* Fewer than four terms, which a lane each takes; one column's are loaded before the others are multiplied. */
    float last_a[ROWS], last_b = 0;
    const bool last = FLOATS == 4 && first < 3 * FLOATS && end + first / FLOATS < part.terms;
    wait_for_previous_kernel(row[0], part.b); /* only now: where to read was computed while it ended */
    allow_next_kernel();
    auto load_last = [&] {
#pragma unroll
        for (int r = 0; r < ROWS; r++) last_a[r] = last ? __ldg(row[r] + end + first / FLOATS) : 0;
    };
    if (COLS == 1 && FLOATS == 4) {
        load_last();
        if (last) last_b = __ldg(part.b + (end + first / FLOATS) * b_stride);
    }

    values x, y; /* in turn */
    auto fetch = [&](values &x, int begin) {
        if (begin + span <= end)
            load(x, begin + first, true);
        else if (begin < end)
            load(x, begin + first, false);
    };
    fetch(x, 0);
    if (COLS > 1) stage(0);
    auto step = [&](const values &current, values &next, int begin) {
        if (COLS > 1 && begin % CHUNK == 0) {
            cp_async_wait<0>();
            __syncthreads();
            if (begin + CHUNK < end) stage(begin + CHUNK); /* where all have read the chunk before */
        }
        fetch(next, begin + span);
        if (begin + span <= end)
            multiply(current, begin + first, true);
        else
            multiply(current, begin + first, false);
    };
#pragma unroll 1
    for (int begin = 0; begin < end; begin += 2 * span) {
        step(x, y, begin);
        if (begin + span >= end) break;
        step(y, x, begin + span);
    }
    cp_async_wait<0>();
    if constexpr (FLOATS == 4) {
        if (COLS > 1 && end < part.terms) load_last();
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            if (COLS > 1)
                last_b = last && c < args.n ? __ldg(part.b + (end + first / FLOATS) * b_stride + c * args.b.col_stride)
                                            : 0;
            if (COLS == 1 || end < part.terms)
#pragma unroll
                for (int r = 0; r < ROWS; r++) sum[r][c] = fmaf(last_a[r], last_b, sum[r][c]);
        }
    }
}

/* ---- Adding up --------------------------------------------------------------------------------------------------- */

/* Adds up `values` over the lanes of the warp. Returns the total of value *index, one of COUNT. */
template <int COUNT> static __device__ __forceinline__ float add_lanes(float (&values)[COUNT], int lane, int *index) {
    *index = 0;
    int left = COUNT;
#pragma unroll
    for (int distance = 16; distance; distance /= 2) {
        const bool upper = lane & distance;
        if (left > 1) { /* a lane keeps half of its values and gives the others away */
            left /= 2;
#pragma unroll
            for (int i = 0; i < COUNT / 2; i++)
                if (i < left) {
                    const float other = __shfl_xor_sync(~0u, upper ? values[i] : values[i + left], distance);
                    values[i] = (upper ? values[i + left] : values[i]) + other;
                }
            *index += upper ? left : 0;
        } else
            values[0] += __shfl_xor_sync(~0u, values[0], distance);
    }
    return values[0];
}

/* Of a tile's elements only the first blocks of the cluster store any, a power of two of them, each the same number. */
static __device__ __forceinline__ int elements_of_block(int count) {
    return max(count >> log2_of(cluster_blocks()), 1);
}

/* Before the blocks of a cluster bring one another their sums. */
static __device__ __forceinline__ void expect_sums(uint64_t *sums_are_here, int count) {
    if (cluster_blocks() == 1) return;
    if (threadIdx.x == 0) {
        const int each = elements_of_block(count);
        begin_receiving(sums_are_here);
        barrier_arrive_and_expect(sums_are_here, cluster_rank() * each < count ? cluster_blocks() * each * 4 : 0);
    }
    cluster_arrive();
}

/* Stores the block's tile of rows x COLS. sums[parts][rows*COLS] are its own, to be added up in order. Of a cluster
 * only the first blocks store, `each` elements. All blocks bring the sums of these to their `inbox`: fewer than
 * 2*rows*COLS, or one of each block. */
template <int COLS, int THREADS>
static __device__ __forceinline__ void store_tile(const ieee_args &args, const float *sums, float *inbox,
                                                  const uint64_t *sums_are_here, int parts, int rows, int row0) {
    const int count = rows * COLS, blocks = cluster_blocks(), rank = cluster_rank();
    const int each = elements_of_block(count), log = log2_of(each);
    auto store = [&](int i, float total) {
        if (row0 + i / COLS < args.m && i % COLS < args.n) store_element(args, row0 + i / COLS, i % COLS, total);
    };
    __syncthreads();
    if (blocks > 1) cluster_wait(); /* all have begun */
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        float total = sums[i];
        for (int part = 1; part < parts; part++) total += sums[part * count + i];
        if (blocks > 1)
            send_to_block(shared_address(inbox + rank * each + (i & (each - 1))), i >> log, total, sums_are_here);
        else
            store(i, total);
    }
    if (blocks == 1 || rank * each >= count) return;
    wait_for_cluster(sums_are_here);
    for (int i = (int)threadIdx.x; i < each; i += THREADS) {
        float total = inbox[i];
        for (int block = 1; block < blocks; block++) total += inbox[block * each + i];
        store(rank * each + i, total);
    }
}

/* ---- Along k ----------------------------------------------------------------------------------------------------- */

template <int COLS, int THREADS, int ROWS>
static __device__ __forceinline__ void run_along_k(const ieee_args &args, float *shared, float *inbox) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, along_k = args.share, log = log2_of(along_k);
    const int rows = THREADS / 32 * ROWS >> log, first_row = (warp >> log) * ROWS, place = warp & (along_k - 1);
    __shared__ uint64_t sums_are_here;
    const vector_part part(args, rows);
    expect_sums(&sums_are_here, rows * COLS);
    const float *row[ROWS]; /* those beyond the matrix repeat its last one; their sums are not stored */
    bool vectors = part.terms >= along_k * 128;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        row[r] = part.a + min(first_row + r, part.rows_left - 1) * args.a.row_stride;
        vectors = vectors && (uintptr_t)row[r] % 16 == 0;
    }
    if (COLS > 1) vectors = __syncthreads_and(vectors); /* all wait for B together */
    float sum[ROWS][COLS] = {};
    /* A warp's terms are neighbours: of rows that begin anywhere, each sector is then read by one warp alone. */
    using by_vectors = reading<ROWS, 4, (COLS > 2) ? 1 : 2, true>;
    using by_floats = reading<ROWS, 1, (COLS > 1) ? 4 : 8, false>;
    constexpr int VECTORS_SPAN = 128 * by_vectors::UNROLL, FLOATS_SPAN = 32 * by_floats::UNROLL; /* of a warp */
    if (vectors)
        add_terms<by_vectors, COLS, false, THREADS>(sum, args, part, row, place * VECTORS_SPAN + lane * 4, 128,
                                                    along_k * VECTORS_SPAN, shared);
    else
        add_terms<by_floats, COLS, false, THREADS>(sum, args, part, row, place * FLOATS_SPAN + lane, 32,
                                                   along_k * FLOATS_SPAN, shared);
    int index;
    const float total = add_lanes<ROWS * COLS>(*(float(*)[ROWS * COLS]) & sum, lane, &index);
    const bool first = lane % (32 / (ROWS * COLS)) == 0; /* of the lanes that have this total */
    if (COLS == 1 && along_k == 1 && cluster_blocks() == 1) {
        if (first && first_row + index < part.rows_left) store_element(args, part.row0 + first_row + index, 0, total);
        return;
    }
    if (COLS > 1) __syncthreads(); /* nobody reads B any more */
    if (first) shared[(place * rows + first_row) * COLS + index] = total;
    store_tile<COLS, THREADS>(args, shared, inbox, &sums_are_here, along_k, rows, part.row0);
}

/* ---- Along m ----------------------------------------------------------------------------------------------------- */

template <int COLS, int THREADS, class R>
static __device__ __forceinline__ void add_along_m(const ieee_args &args, const vector_part &part, float *shared,
                                                   float *inbox, const uint64_t *sums_are_here) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, rows = args.share * 4, lanes = rows / R::ROWS;
    const int place = lane & (lanes - 1), log = log2_of(lanes);
    const float *row[R::ROWS]; /* those beyond the matrix repeat its last ones; their sums are not stored */
#pragma unroll
    for (int r = 0; r < R::ROWS; r++)
        row[r] = part.a + (R::VECTORS ? min(place * R::ROWS, part.rows_left - R::ROWS) + r
                                      : min(place + lanes * r, part.rows_left - 1));
    float sum[R::ROWS][COLS] = {};
    const int stride = THREADS >> log;
    add_terms<R, COLS, true, THREADS>(sum, args, part, row, (int)threadIdx.x >> log, stride, R::UNROLL * stride,
                                      shared);
    if (COLS > 1) __syncthreads(); /* nobody reads B any more */
#pragma unroll
    for (int r = 0; r < R::ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            for (int distance = 16; distance >= lanes; distance /= 2)
                sum[r][c] += __shfl_xor_sync(~0u, sum[r][c], distance);
            const int my_row = R::VECTORS ? place * R::ROWS + r : place + lanes * r;
            if (lane < lanes) shared[(warp * rows + my_row) * COLS + c] = sum[r][c];
        }
    store_tile<COLS, THREADS>(args, shared, inbox, sums_are_here, THREADS / 32, rows, part.row0);
}

template <int COLS, int THREADS>
static __device__ __forceinline__ void run_along_m(const ieee_args &args, float *shared, float *inbox) {
    constexpr int LOADS = COLS == 1 ? 16 : 8;
    __shared__ uint64_t sums_are_here;
    const vector_part part(args, args.share * 4);
    expect_sums(&sums_are_here, args.share * 4 * COLS);
    if ((uintptr_t)part.a % 16 == 0 && args.a.col_stride % 4 == 0 && args.m % 4 == 0)
        add_along_m<COLS, THREADS, reading<4, 1, COLS == 1 ? 4 : 2, true>>(args, part, shared, inbox, &sums_are_here);
    else if (args.share == 32) /* a warp's loads are of neighbouring rows */
        add_along_m<COLS, THREADS, reading<4, 1, LOADS / 4, false>>(args, part, shared, inbox, &sums_are_here);
    else if (args.share == 16)
        add_along_m<COLS, THREADS, reading<2, 1, LOADS / 2, false>>(args, part, shared, inbox, &sums_are_here);
    else
        add_along_m<COLS, THREADS, reading<1, 1, LOADS, false>>(args, part, shared, inbox, &sums_are_here);
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

constexpr int K_THREADS = 128, K_ROWS = 2, M_THREADS = 256, COLUMN_THREADS = 256, COLUMN_ROWS = 4, MOST_COLS = 8,
              MOST_ROWS = 128, MOST_BLOCKS = 16; /* of a cluster */
constexpr int COLUMNS_SHARED = (2 * MOST_COLS * B_PITCH + 2 * MOST_ROWS * MOST_COLS) * 4;
static_assert(M_THREADS / 32 * MOST_ROWS <= 2 * B_PITCH, "sums take the place of B");
ASSERT_LISTED_AS(IEEE_VECTOR_K, K_THREADS / 32 * K_ROWS, 1, K_THREADS, 0);
ASSERT_LISTED_AS(IEEE_VECTOR_M, MOST_ROWS, 1, M_THREADS, 0);
ASSERT_LISTED_AS(IEEE_COLUMNS_K, COLUMN_THREADS / 32 * COLUMN_ROWS, MOST_COLS, COLUMN_THREADS, COLUMNS_SHARED);
ASSERT_LISTED_AS(IEEE_COLUMNS_M, MOST_ROWS, MOST_COLS, COLUMN_THREADS, COLUMNS_SHARED);

extern "C" __global__ void __launch_bounds__(K_THREADS, 6) ieee_vector_k(const __grid_constant__ ieee_args args) {
    __shared__ float sums[K_THREADS / 32 * K_ROWS], inbox[MOST_BLOCKS];
    run_along_k<1, K_THREADS, K_ROWS>(args, sums, inbox);
}

extern "C" __global__ void __launch_bounds__(M_THREADS, 3) ieee_vector_m(const __grid_constant__ ieee_args args) {
    __shared__ float sums[M_THREADS / 32 * MOST_ROWS], inbox[2 * MOST_ROWS];
    run_along_m<1, M_THREADS>(args, sums, inbox);
}

extern "C" __global__ void __launch_bounds__(COLUMN_THREADS, 2) ieee_columns_k(const __grid_constant__ ieee_args args) {
    float *shared = (float *)dynamic_shared<16>(), *inbox = shared + 2 * MOST_COLS * B_PITCH;
    if (args.n <= 2)
        run_along_k<2, COLUMN_THREADS, COLUMN_ROWS>(args, shared, inbox);
    else if (args.n <= 4)
        run_along_k<4, COLUMN_THREADS, COLUMN_ROWS>(args, shared, inbox);
    else
        run_along_k<8, COLUMN_THREADS, COLUMN_ROWS>(args, shared, inbox);
}

extern "C" __global__ void __launch_bounds__(COLUMN_THREADS, 2) ieee_columns_m(const __grid_constant__ ieee_args args) {
    float *shared = (float *)dynamic_shared<16>(), *inbox = shared + 2 * MOST_COLS * B_PITCH;
    if (args.n <= 2)
        run_along_m<2, COLUMN_THREADS>(args, shared, inbox);
    else if (args.n <= 4)
        run_along_m<4, COLUMN_THREADS>(args, shared, inbox);
    else
        run_along_m<8, COLUMN_THREADS>(args, shared, inbox);
}
