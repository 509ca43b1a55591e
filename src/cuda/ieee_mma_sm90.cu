/* ieee_mma_sm90.cu: C = alpha*A*B + beta*S on Hopper's float64 tensor cores, a tile of C at a time.
 *
 * A product of two float32 is exact in float64, and sums in float64 lose next to nothing: what remains is one rounding
 * to float32 in the end. And it is quicker than float32 units are. An SM's float64 tensor cores do no more
 * multiply-adds a cycle, 128, but one warp instruction is 1024 of them and takes 32 cycles, which leaves the issue
 * slots to all that must happen besides.
 *
 * Operands come to shared memory as float32, as ieee_slab.cuh says, and are widened in registers.
 *
 * Tile map. A block's warps are WARPS_M x WARPS_N parts of the tile x WARPS_K warps, which share a part: each takes 8
 * terms of every step, and their sums meet in the end. The instruction multiplies 16 lines of A by 8 lines of B over 8
 * terms: lane 4g + t gives terms t and t + 4 of lines g and g + 8 of A and of line g of B, and gets rows g and g + 8 of
 * columns 2t and 2t + 1. Which lines of the tile these are is ours to choose. Of every 32 lines, lane 4g + t has the
 * four from line(g) = g/2*4 + g%2*16 on, one for an instruction (B) or two (A):
 *
 *   - one 16-byte load from shared memory brings a term of four lines; the eight lanes served together, two g and four
 *     t, read at 4*t + line(g) floats modulo 32 (the pitch being 4), which are all banks once;
 *   - the instruction's columns 2t and 2t + 1 are then columns 4t and 4t + 16, and those of four instructions 4t..4t+3
 *     and the same 16 further on.
 *
 * What the speed hangs on. A warp issues in order, so what stands between two of the instructions must fit into the 32
 * cycles that the first one takes; see multiply. What does not is hidden by the other warps of the SM, which has two or
 * three for each of its four tensor cores.
 */
#include "ieee_slab.cuh"
#include "overlap.cuh"

/* ---- Instructions ------------------------------------------------------------------------------------------------ */

/* Volatile, all of them: they stay in the order of multiply, which has been chosen with care. */

/* 16 rows x 8 columns of C: adds 8 terms. A lane gives terms t and t + 4 of lines g (a0) and g + 8 (a1) of A and of
 * line g of B. */
static __device__ __forceinline__ void multiply_8_terms(double (&sum)[4], const double (&a0)[2], const double (&a1)[2],
                                                        const double (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
                 : "d"(a0[0]), "d"(a1[0]), "d"(a0[1]), "d"(a1[1]), "d"(b[0]), "d"(b[1]));
}

static __device__ __forceinline__ double widen(float x) {
    double y;
    asm volatile("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float4 load_16_bytes(uint32_t shared) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(shared)
                 : "memory");
    return v;
}

/* ---- The tile ---------------------------------------------------------------------------------------------------- */

template <int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int WARPS_K, int STAGES> struct ieee_mma {
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
    static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
    static constexpr int SLAB = 32, STEP = 8 * WARPS_K;
    using queue = slab_queue<TILE_M, TILE_N, SLAB, SLAB / STEP, STAGES, THREADS>;
    static constexpr int A_PITCH = queue::a_tile::PITCH * 4, B_PITCH = queue::b_tile::PITCH * 4; /* bytes */
    static constexpr int SUM_PITCH = TILE_N + 2;                                                 /* doubles */
    static constexpr int SHARED_BYTES = queue::SHARED_BYTES;
    static constexpr int ROWS = WARP_M / 16, COLS = WARP_N / 8; /* instructions for a warp's part of the tile */
    using sums = double[ROWS][COLS][4];

    static_assert(WARP_M % 32 == 0 && WARP_N % 32 == 0, "lines go in groups of 32");
    static_assert(A_PITCH % 128 == 16 && B_PITCH % 128 == 16, "loads from shared memory have no bank conflicts");
    static_assert(WARPS_K * TILE_M * SUM_PITCH * 8 <= SHARED_BYTES, "sums pass through the slabs' memory");

    /* Where in the tile a warp works, and in a group of 32 lines a lane. */
    struct place {
        int warp_m, warp_n, warp_k, line, term;
        __device__ __forceinline__ place() {
            const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4;
            warp_k = warp % WARPS_K;
            warp_n = warp / WARPS_K % WARPS_N * WARP_N;
            warp_m = warp / WARPS_K / WARPS_N * WARP_M;
            line = group / 2 * 4 + group % 2 * 16;
            term = lane % 4;
        }
    };

    /* One operand's values for a step: of each group of 32 lines the lane's four, and of each of these two terms. */
    template <int LINES, int PITCH> struct values {
        float narrow[LINES][2];
        double wide[LINES][2];

        __device__ __forceinline__ void load(uint32_t from) {
#pragma unroll
            for (int i = 0; i < LINES; i += 4)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float4 v = load_16_bytes(from + half * 4 * PITCH + i * 32);
                    narrow[i][half] = v.x;
                    narrow[i + 1][half] = v.y;
                    narrow[i + 2][half] = v.z;
                    narrow[i + 3][half] = v.w;
                }
        }
        __device__ __forceinline__ void widen_line(int i) {
            wide[i][0] = widen(narrow[i][0]);
            wide[i][1] = widen(narrow[i][1]);
        }
    };

    /* The main loop: adds the terms of all slabs. A step is ROWS x COLS instructions. Behind the first one the last
     * widenings for this step are done, behind the second the loads for the next; then, as the step is done with a
     * line, its widening for the next. Copies of a part of a slab are spread among them. */
    template <reading A, reading B>
    static __device__ __forceinline__ void multiply(sums &sum, const place &my, queue &slabs) {
        constexpr bool SEPARATE = A != READ_ANY;
        constexpr int LAST = ROWS * COLS - 1, COPIES = SEPARATE ? queue::template COPIES<A, B> : 0;
        const int first_term = my.warp_k * 8 + my.term;
        const uint32_t a_offset = first_term * A_PITCH + (my.warp_m + my.line) * 4;
        const uint32_t b_offset = queue::A_SLAB * 4 + first_term * B_PITCH + (my.warp_n + my.line) * 4;
        uint32_t a_from = slabs.memory + a_offset + slabs.part * STEP * A_PITCH;
        uint32_t b_from = slabs.memory + b_offset + slabs.part * STEP * B_PITCH;
        int steps = slabs.steps();
        values<2 * ROWS, A_PITCH> a;
        values<COLS, B_PITCH> b;
        a.load(a_from);
        b.load(b_from);
#pragma unroll
        for (int i = 0; i < 2 * ROWS - 2; ++i) a.widen_line(i);
#pragma unroll
        for (int i = 0; i < COLS - 1; ++i) b.widen_line(i);
        slabs.template copy_part<A, B>();

#pragma unroll 1
        for (; steps > 0; --steps) {
#pragma unroll
            for (int i = 0; i <= LAST; ++i) {
                const int row = i / COLS, col = i % COLS;
                multiply_8_terms(sum[row][col], a.wide[2 * row], a.wide[2 * row + 1], b.wide[col]);
                if (i == 0) {
                    a.widen_line(2 * ROWS - 2);
                    a.widen_line(2 * ROWS - 1);
                    b.widen_line(COLS - 1);
                }
                if (i == 1) {
                    a_from += STEP * A_PITCH;
                    b_from += STEP * B_PITCH;
                    if (slabs.next_slab()) {
                        a_from = slabs.memory + slabs.stage * (queue::STAGE * 4) + a_offset;
                        b_from = slabs.memory + slabs.stage * (queue::STAGE * 4) + b_offset;
                    }
                    a.load(a_from);
                    b.load(b_from);
                    if (!SEPARATE) slabs.template copy_part<READ_ANY, READ_ANY>();
                }
                if (row > 0 && col < 2) a.widen_line(2 * (row - 1) + col);
                if (row == ROWS - 1 && col > 0) b.widen_line(col - 1);
                if constexpr (SEPARATE) {
                    if (i >= 2)
#pragma unroll
                        for (int copy = (i - 2) * COPIES / (LAST - 1); copy < (i - 1) * COPIES / (LAST - 1); ++copy)
                            slabs.template copy<A, B>(copy);
                    if (i == LAST) slabs.template finish_part<A, B>();
                }
            }
        }
    }

    /* Computes one segment's sums and stores them. */
    static __device__ __forceinline__ void compute(const ieee_args &args, const segment &piece, const extent &rows,
                                                   const extent &cols, float *shared, const uint8_t *doubts) {
        const place my;
        queue slabs;
        slabs.begin(args, piece, rows, cols, shared);
        const reading a = slabs.a.how, b = slabs.b.how;
        sums sum = {};
        if (a == READ_VECTORS && b == READ_VECTORS)
            multiply<READ_VECTORS, READ_VECTORS>(sum, my, slabs);
        else if (a == READ_TERMS && b == READ_VECTORS)
            multiply<READ_TERMS, READ_VECTORS>(sum, my, slabs);
        else if (a == READ_VECTORS && b == READ_TERMS)
            multiply<READ_VECTORS, READ_TERMS>(sum, my, slabs);
        else if (a == READ_TERMS && b == READ_TERMS)
            multiply<READ_TERMS, READ_TERMS>(sum, my, slabs);
        else if (a == READ_TERMS && b == READ_LINES)
            multiply<READ_TERMS, READ_LINES>(sum, my, slabs);
        else if (a == READ_LINES && b == READ_TERMS)
            multiply<READ_LINES, READ_TERMS>(sum, my, slabs);
        else if (a == READ_LINES && b == READ_LINES)
            multiply<READ_LINES, READ_LINES>(sum, my, slabs);
        else
            multiply<READ_ANY, READ_ANY>(sum, my, slabs);
        slabs.end();
        put(sum, my, (double *)shared);
        __syncthreads();
        store(args, piece, rows, cols, (const double *)shared, doubts);
    }

    /* Sums to shared memory, [WARPS_K][TILE_M][SUM_PITCH]. */
    static __device__ __forceinline__ void put(const sums &sum, const place &my, double *shared) {
        double *at = shared + (my.warp_k * TILE_M + my.warp_m + my.line) * SUM_PITCH + my.warp_n + my.term * 4;
#pragma unroll
        for (int row = 0; row < 2 * ROWS; ++row)
#pragma unroll
            for (int col = 0; col < COLS; col += 2)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    *(double2 *)(at + (row / 4 * 32 + row % 4) * SUM_PITCH + col / 4 * 32 + half * 16 + col % 4) =
                        make_double2(sum[row / 2][col][row % 2 * 2 + half], sum[row / 2][col + 1][row % 2 * 2 + half]);
    }

    /* Stores a segment's sums: a thread four neighbouring columns, or one where these are not 16 aligned bytes of C. */
    static __device__ __forceinline__ void store(const ieee_args &args, const segment &piece, const extent &rows,
                                                 const extent &cols, const double *sum, const uint8_t *doubts) {
        /* Of the tile: the rows and columns that are its own, and where the matrix ends. */
        const int rows_own = rows.own - rows.first, cols_own = cols.own - cols.first;
        int rows_end = min(TILE_M, args.m - rows.first), cols_end = min(TILE_N, args.n - cols.first);
        double alpha = args.alpha, beta = args.beta;
        int64_t row_stride = args.c.row_stride, col_stride = args.c.col_stride;
        float *out = args.c.data + blockIdx.z * args.c.batch_stride + rows.first * row_stride + cols.first * col_stride;
        if (!piece.whole) {
            out = partial_tile(args, piece.tile, piece.index) - rows_own * TILE_N - cols_own;
            row_stride = TILE_N;
            col_stride = 1;
            rows_end = TILE_M;
            cols_end = TILE_N;
            alpha = 1;
            beta = 0;
        }
        const matrix_in &s = args.source;
        const float *source = s.data + blockIdx.z * s.batch_stride + rows.first * s.row_stride +
                              cols.first * s.col_stride;
        const auto value = [&](int row, int col) {
            double total = sum[row * SUM_PITCH + col];
#pragma unroll
            for (int k = 1; k < WARPS_K; ++k) total += sum[(k * TILE_M + row) * SUM_PITCH + col];
            return beta == 0 ? (float)(alpha * total)
                             : (float)fma(alpha, total, beta * source[row * s.row_stride + col * s.col_stride]);
        };
        const bool vectors = !doubts && col_stride == 1 && row_stride % 4 == 0 && cols_end % 4 == 0 &&
                             cols_own % 4 == 0 && (uintptr_t)out % 16 == 0;
        if (vectors) {
#pragma unroll 4
            for (int i = threadIdx.x; i < TILE_M * TILE_N / 4; i += THREADS) {
                const int row = i / (TILE_N / 4), col = i % (TILE_N / 4) * 4;
                if (row < rows_own || row >= rows_end || col < cols_own || col >= cols_end) continue;
                *(float4 *)(out + row * row_stride + col) = make_float4(value(row, col), value(row, col + 1),
                                                                        value(row, col + 2), value(row, col + 3));
            }
        } else {
#pragma unroll 4
            for (int i = threadIdx.x; i < TILE_M * TILE_N; i += THREADS) {
                const int row = i / TILE_N, col = i % TILE_N;
                if (row < rows_own || row >= rows_end || col < cols_own || col >= cols_end) continue;
                if (doubts && !is_doubted(args, doubts, rows.first + row, cols.first + col)) continue;
                out[row * row_stride + col * col_stride] = value(row, col);
            }
        }
    }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        extern __shared__ __align__(16) float shared[];
        compute_segments<ieee_mma, TILE_M, TILE_N>(args, shared);
    }
};

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* Large products, and what of a split product is to be computed again. A warp has 64 x 32; 2 blocks per SM. */
using mma_64x128 = ieee_mma<64, 128, 1, 4, 1, 3>;
static_assert(mma_64x128::SHARED_BYTES == IEEE_MMA_64X128_SHARED, "what the host asks for");

extern "C" __global__ void __launch_bounds__(128, 2) ieee_mma_64x128(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    let_next_kernel_come();
    mma_64x128::run(args);
}

/* Medium products. A warp has 32 x 32; 3 blocks per SM. */
using mma_64x64 = ieee_mma<64, 64, 2, 2, 1, 3>;
static_assert(mma_64x64::SHARED_BYTES == IEEE_MMA_64X64_SHARED, "what the host asks for");

extern "C" __global__ void __launch_bounds__(128, 3) ieee_mma_64x64(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    let_next_kernel_come();
    mma_64x64::run(args);
}

/* Small products: more tiles. Two warps have 32 x 32 together, half of k each; 3 blocks per SM. */
using mma_32x64 = ieee_mma<32, 64, 1, 2, 2, 4>;
static_assert(mma_32x64::SHARED_BYTES == IEEE_MMA_32X64_SHARED, "what the host asks for");

extern "C" __global__ void __launch_bounds__(128, 3) ieee_mma_32x64(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    let_next_kernel_come();
    mma_32x64::run(args);
}

/* The smallest. Each warp has the whole tile, and a quarter of k; 3 blocks per SM. */
using mma_32x32 = ieee_mma<32, 32, 1, 1, 4, 4>;
static_assert(mma_32x32::SHARED_BYTES == IEEE_MMA_32X32_SHARED, "what the host asks for");

extern "C" __global__ void __launch_bounds__(128, 3) ieee_mma_32x32(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    let_next_kernel_come();
    mma_32x32::run(args);
}
