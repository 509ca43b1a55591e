/* ieee_mma_sm90.cu: C = alpha*A*B + beta*S on Hopper's float64 tensor cores, a tile of C at a time.
 *
 * A product of two float32 is exact in float64, and sums in float64 lose next to nothing: what remains is one rounding
 * to float32 at the end. It is also faster than the float32 units. An SM's float64 tensor cores do as many
 * multiply-adds a cycle as its float32 units, 128, but one warp instruction is 1024 of them and takes 32 cycles, which
 * leaves the issue slots to everything else.
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
 * What the speed depends on. A warp issues in order, so what stands between two of the instructions must fit into the
 * 32 cycles that the first one takes; see multiply. What does not is hidden by the other warps of the SM, which has two
 * or three for each of its four tensor cores.
 */
#include "cuda/kernels/ieee/ieee_slab.cuh"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/ptx.cuh"

/* ---- The tile ---------------------------------------------------------------------------------------------------- */

template <int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int WARPS_K, int STAGES> struct ieee_mma {
    static constexpr int M = TILE_M, N = TILE_N;
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
    static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
    static constexpr int SLAB = 32, STEP = 8 * WARPS_K;
    using queue = slab_queue<TILE_M, TILE_N, SLAB, SLAB / STEP, STAGES, THREADS>;
    static constexpr int A_PITCH = queue::a_tile::PITCH * 4, B_PITCH = queue::b_tile::PITCH * 4; /* bytes */
    static constexpr int SHARED_BYTES = queue::SHARED_BYTES;
    static constexpr int ROWS = WARP_M / 16, COLS = WARP_N / 8; /* instructions for a warp's part of the tile */
    using sums = double[ROWS][COLS][4];

    static constexpr int STAGING_PITCH = TILE_N + 4; /* floats: results on their way, [TILE_M][STAGING_PITCH] */

    static_assert(WARP_M % 32 == 0 && WARP_N == 32, "lines go in groups of 32, and a lane stores a column");
    static_assert(A_PITCH % 128 == 16 && B_PITCH % 128 == 16, "loads from shared memory have no bank conflicts");
    static_assert(TILE_M * STAGING_PITCH * 4 <= SHARED_BYTES, "results pass through the slabs' memory");
    static_assert(2 * ROWS % WARPS_K == 0, "warps that share a part of the tile have as many rows of it each");
    static_assert(WARPS_K == 1 || THREADS * 2 * ROWS * COLS * 16 <= SHARED_BYTES,
                  "sums pass through the slabs' memory");

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
                    const float4 v = load_shared_16(from + half * 4 * PITCH + i * 32);
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
     * line, its widening for the next. Copies of a part of a slab are spread among them. With BEGINS_SUMS there is
     * nothing to add to yet: a first step of its own, which is worth its code where there are few. */
    template <reading A, reading B, class QUEUE>
    static __device__ __forceinline__ void multiply(sums &sum, const place &my, QUEUE &slabs) {
        constexpr bool SEPARATE = A != READ_ANY;
        constexpr int LAST = ROWS * COLS - 1, COPIES = SEPARATE ? QUEUE::template COPIES<A, B> : 0;
        slabs.template fill<A, B>();
        const int first_term = my.warp_k * 8 + my.term;
        const uint32_t a_offset = first_term * A_PITCH + (my.warp_m + my.line) * 4;
        const uint32_t b_offset = first_term * B_PITCH + (my.warp_n + my.line) * 4;
        uint32_t a_from = slabs.a_slab() + a_offset + slabs.part * STEP * A_PITCH;
        uint32_t b_from = slabs.b_slab() + b_offset + slabs.part * STEP * B_PITCH;
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

        const auto step = [&](bool first) __attribute__((always_inline)) {
#pragma unroll
            for (int i = 0; i <= LAST; ++i) {
                const int row = i / COLS, col = i % COLS;
                mma_16x8x8(sum[row][col], a.wide[2 * row], a.wide[2 * row + 1], b.wide[col], !first);
                if (i == 0) {
                    a.widen_line(2 * ROWS - 2);
                    a.widen_line(2 * ROWS - 1);
                    b.widen_line(COLS - 1);
                }
                if (i == 1) {
                    a_from += STEP * A_PITCH;
                    b_from += STEP * B_PITCH;
                    if (slabs.next_slab()) {
                        a_from = slabs.a_slab() + a_offset;
                        b_from = slabs.b_slab() + b_offset;
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
        };
        if constexpr (QUEUE::BEGINS_SUMS) {
            step(true);
            --steps;
        }
#pragma unroll 1
        for (; steps > 0; --steps) step(false);
    }

    /* Computes one segment's sums and stores them. */
    static __device__ __forceinline__ void compute(const ieee_args &args, const segment &seg, const extent &rows,
                                                   const extent &cols, float *shared, const uint16_t *recompute) {
        const place my;
        queue slabs;
        slabs.begin(args, seg, rows, cols, shared);
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
        results result;
        collect(result, sum, my, (double2 *)shared);
        store(args, target(args, seg, rows, cols), result, my, shared, recompute);
    }

    /* What a lane stores: of ROWS_EACH rows (row_of) four neighbouring columns in two places, 16 apart. */
    static constexpr int ROWS_EACH = 2 * ROWS / WARPS_K;
    using results = double[ROWS_EACH][2][4];

    /* From sums to results. Warps that share a part of the tile add up theirs, each for some of the rows. */
    static __device__ __forceinline__ void collect(results &result, const sums &sum, const place &my, double2 *shared) {
        if constexpr (WARPS_K == 1) {
#pragma unroll
            for (int i = 0; i < ROWS_EACH * 8; ++i)
                result[i / 8][i / 4 % 2][i % 4] = sum[i / 16][i % 4][i / 8 % 2 * 2 + i / 4 % 2];
        } else {
            constexpr int EACH = 2 * ROWS * COLS * 32; /* of a warp: [row][column of four][lane] */
            double2 *mine = shared + threadIdx.x / 32 * EACH + threadIdx.x % 32;
            __syncthreads(); /* the slabs are done with */
#pragma unroll
            for (int i = 0; i < 2 * ROWS * COLS; ++i) {
                const double(&four)[4] = sum[i / COLS / 2][i % COLS];
                const int at = i / COLS % 2 * 2;
                mine[i * 32] = make_double2(four[at], four[at + 1]);
            }
            __syncthreads();
            const double2 *from = mine + (my.warp_k * (ROWS_EACH * COLS * 32) - my.warp_k * EACH);
#pragma unroll
            for (int i = 0; i < ROWS_EACH * COLS; ++i) {
                double2 total = from[i * 32];
#pragma unroll
                for (int k = 1; k < WARPS_K; ++k) {
                    const double2 more = from[k * EACH + i * 32];
                    total.x += more.x;
                    total.y += more.y;
                }
                result[i / COLS][0][i % COLS] = total.x;
                result[i / COLS][1][i % COLS] = total.y;
            }
        }
    }

    static __device__ __forceinline__ int row_of(const place &my, int i) {
        i += my.warp_k * ROWS_EACH;
        return my.warp_m + i / 4 * 32 + my.line + i % 4;
    }

    /* Where a segment's sums go. Of the tile, rows [rows_own, rows_end) and columns [cols_own, cols_end) are stored. */
    struct target {
        float *out; /* of the tile's first element */
        int64_t row_stride, col_stride;
        int row, col; /* the tile's first */
        int rows_own, rows_end, cols_own, cols_end;
        float alpha, beta;

        __device__ __forceinline__ target(const ieee_args &args, const segment &seg, const extent &rows,
                                          const extent &cols)
            : row(rows.first), col(cols.first), rows_own(rows.own - rows.first), cols_own(cols.own - cols.first) {
            if (seg.whole) {
                row_stride = args.c.row_stride;
                col_stride = args.c.col_stride;
                out = args.c.data + blockIdx.z * args.c.batch_stride + row * row_stride + col * col_stride;
                rows_end = min(TILE_M, args.m - row);
                cols_end = min(TILE_N, args.n - col);
                alpha = args.alpha;
                beta = args.beta;
            } else {
                row_stride = TILE_N;
                col_stride = 1;
                out = partial_tile(args, seg.tile, seg.index) - rows_own * TILE_N - cols_own;
                rows_end = TILE_M;
                cols_end = TILE_N;
                alpha = 1;
                beta = 0;
            }
        }
        __device__ __forceinline__ bool is_whole(void) const {
            return rows_own == 0 && rows_end == TILE_M && cols_own == 0 && cols_end == TILE_N;
        }
        __device__ __forceinline__ bool has_row(int i) const { return i >= rows_own && i < rows_end; }
        __device__ __forceinline__ bool has_col(int i) const { return i >= cols_own && i < cols_end; }
        /* Whether four neighbouring columns are 16 aligned bytes, to be stored or left as they are. */
        __device__ __forceinline__ bool takes_vectors(void) const {
            return col_stride == 1 && row_stride % 4 == 0 && cols_own % 4 == 0 && cols_end % 4 == 0 &&
                   (uintptr_t)out % 16 == 0;
        }
    };

    /* All threads of the block call it. What is not stored straight from registers passes through `shared`, so that
     * neighbouring threads store neighbouring columns. */
    static __device__ __forceinline__ void store(const ieee_args &args, const target &to, results &result,
                                                 const place &my, float *shared, const uint16_t *recompute) {
        if (to.alpha != 1 && to.beta == 0)
#pragma unroll
            for (int i = 0; i < ROWS_EACH * 8; ++i) result[i / 8][i / 4 % 2][i % 4] *= to.alpha;
        if (!to.takes_vectors() || to.beta != 0 || recompute) {
            __syncthreads(); /* everybody is done with what was there */
            put(result, my, [&](int row, int col, float4 v) { *(float4 *)(shared + row * STAGING_PITCH + col) = v; });
            __syncthreads();
            store_columns(args, to, shared, recompute);
            return;
        }
        /* __stcs: C, where it is large, is not to drive the operands out of the L2 cache. */
        if (to.is_whole())
            put(result, my,
                [&](int row, int col, float4 v) { __stcs((float4 *)(to.out + row * to.row_stride + col), v); });
        else
            put(result, my, [&](int row, int col, float4 v) {
                if (to.has_row(row) && to.has_col(col)) __stcs((float4 *)(to.out + row * to.row_stride + col), v);
            });
    }

    /* Calls `put_four` with a row and a column of the tile, and the lane's four results from there on. */
    template <class PUT_FOUR>
    static __device__ __forceinline__ void put(const results &result, const place &my, PUT_FOUR put_four) {
#pragma unroll
        for (int i = 0; i < ROWS_EACH * 2; ++i) {
            const double(&four)[4] = result[i / 2][i % 2];
            put_four(row_of(my, i / 2), my.warp_n + i % 2 * 16 + my.term * 4,
                     make_float4((float)four[0], (float)four[1], (float)four[2], (float)four[3]));
        }
    }

    /* From shared memory, [TILE_M][STAGING_PITCH]: a thread has a column, or part of one. With beta, alpha is still to
     * come. */
    static __device__ __forceinline__ void store_columns(const ieee_args &args, const target &to, const float *staging,
                                                         const uint16_t *recompute) {
        constexpr int STEP_ROWS = THREADS / TILE_N, AT_ONCE = 8;
        static_assert(THREADS % TILE_N == 0 && TILE_M % (STEP_ROWS * AT_ONCE) == 0, "threads cover whole rows");
        const int col = threadIdx.x % TILE_N;
        if (!to.has_col(col)) return;
        const matrix_in &s = args.addend;
        const float *addend = s.data + blockIdx.z * s.batch_stride + to.row * s.row_stride +
                              (to.col + col) * s.col_stride;
        int row = threadIdx.x / TILE_N;
        float *out = to.out + row * to.row_stride + col * to.col_stride;
        if (to.beta == 0 && !recompute) { /* the usual case, in half the instructions */
            const unsigned rows = to.rows_end - to.rows_own;
#pragma unroll 1
            for (; row < TILE_M; row += AT_ONCE * STEP_ROWS) {
                float value[AT_ONCE];
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) value[i] = staging[(row + i * STEP_ROWS) * STAGING_PITCH + col];
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i, out += STEP_ROWS * to.row_stride)
                    if ((unsigned)(row + i * STEP_ROWS - to.rows_own) < rows) *out = value[i];
            }
            return;
        }
#pragma unroll 1
        while (row < TILE_M) {
            float value[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) value[i] = staging[(row + i * STEP_ROWS) * STAGING_PITCH + col];
            if (to.beta != 0)
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i)
                    if (to.has_row(row + i * STEP_ROWS))
                        value[i] = fmaf(to.alpha, value[i], to.beta * addend[(row + i * STEP_ROWS) * s.row_stride]);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (to.has_row(row) && (!recompute || is_recomputed(args, recompute, to.row + row, to.col + col)))
                    *out = value[i];
                row += STEP_ROWS;
                out += STEP_ROWS * to.row_stride;
            }
        }
    }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        extern __shared__ __align__(16) float shared[];
        if (args.marks_a) { /* `recompute`, which the split kernel writes, is read before slab_queue waits */
            wait_for_previous_kernel();
            allow_next_kernel();
        }
        compute_segments<ieee_mma, TILE_M, TILE_N>(args, shared);
    }
};

/* ---- Short k ----------------------------------------------------------------------------------------------------- */

/* Where k is short, a tile is multiplied in less time than its first operands take to come, and its results to go. So
 * here blocks stay. Each has a share of all tiles, row after row of them, and while it multiplies one and stores it,
 * the next one's operands are on their way: a panel of B, and one of A where a row begins. A panel has all terms of k,
 * [MOST_K][lines + 4], in whole steps, zeros first. There is room for two of each. */
template <int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int MOST_K> struct ieee_mma_short {
    using tile = ieee_mma<TILE_M, TILE_N, WARPS_M, WARPS_N, 1, 3>;
    using a_tile = typename tile::queue::a_tile;
    using b_tile = typename tile::queue::b_tile;
    static constexpr int A_BYTES = MOST_K * tile::A_PITCH, B_BYTES = MOST_K * tile::B_PITCH;
    static constexpr int SHARED_BYTES = 2 * (A_BYTES + B_BYTES);
    static_assert(MOST_K % tile::STEP == 0, "panels are whole steps");
    static_assert(TILE_M * tile::STAGING_PITCH * 4 <= B_BYTES, "results pass through a panel's memory");

    static __device__ __forceinline__ int steps(const ieee_args &args) {
        return (args.k + tile::STEP - 1) / tile::STEP;
    }

    static __device__ __forceinline__ void copy_a(const ieee_args &args, const extent &rows, uint32_t to) {
        const float *first = args.a.data + blockIdx.z * args.a.batch_stride + rows.first * args.a.row_stride;
        a_tile::copy_terms(to, first, args.a.row_stride, args.a.col_stride, args.m - rows.first, args.k,
                           steps(args) * tile::STEP);
    }
    static __device__ __forceinline__ void copy_b(const ieee_args &args, const extent &cols, uint32_t to) {
        const float *first = args.b.data + blockIdx.z * args.b.batch_stride + cols.first * args.b.col_stride;
        b_tile::copy_terms(to, first, args.b.col_stride, args.b.row_stride, args.n - cols.first, args.k,
                           steps(args) * tile::STEP);
    }

    /* The panels of a tile, as `multiply` sees them: one slab, and nothing to copy meanwhile. */
    struct panels {
        static constexpr bool BEGINS_SUMS = true;
        template <reading A, reading B> static constexpr int COPIES = 0;
        uint32_t a, b;
        int part, left;
        __device__ __forceinline__ uint32_t a_slab(void) const { return a; }
        __device__ __forceinline__ uint32_t b_slab(void) const { return b; }
        __device__ __forceinline__ int steps(void) const { return left; }
        template <reading A, reading B> __device__ __forceinline__ void fill(void) {}
        template <reading A, reading B> __device__ __forceinline__ void copy_part(void) {}
        template <reading A, reading B> __device__ __forceinline__ void copy(int) {}
        template <reading A, reading B> __device__ __forceinline__ void finish_part(void) {}
        /* Behind the last step the first one is loaded again, for nothing. */
        __device__ __forceinline__ bool next_slab(void) { return --left == 0; }
    };

    static __device__ __forceinline__ void run(const ieee_args &args) {
        extern __shared__ __align__(16) float shared[];
        const typename tile::place my;
        const int64_t tiles = args.full_tiles;
        const int end = (int)((blockIdx.x + 1) * tiles / gridDim.x);
        int at = (int)(blockIdx.x * tiles / gridDim.x);
        int row = at / args.tiles_n, col = at % args.tiles_n;
        const uint32_t memory = shared_address(shared);
        uint32_t a = memory, next_a = a + A_BYTES, b = next_a + A_BYTES, next_b = b + B_BYTES;
        extent rows(row * TILE_M, TILE_M, args.m), cols(col * TILE_N, TILE_N, args.n);
        wait_for_previous_kernel(args.a.data + rows.first, args.b.data + cols.first);
        allow_next_kernel();
        copy_a(args, rows, a);
        copy_b(args, cols, b);
#pragma unroll 1
        for (; at < end; ++at) {
            cp_async_commit();
            cp_async_wait<0>();
            __syncthreads(); /* this tile's panels are there, and everybody is done with the last tile's */
            const bool new_row = ++col == args.tiles_n;
            if (new_row) col = 0, ++row;
            const extent next_rows(row * TILE_M, TILE_M, args.m), next_cols(col * TILE_N, TILE_N, args.n);
            if (at + 1 < end) {
                if (new_row) copy_a(args, next_rows, next_a);
                copy_b(args, next_cols, next_b);
            }
            typename tile::sums sum;
            panels both = {a, b, 0, steps(args)};
            tile::template multiply<READ_VECTORS, READ_VECTORS>(sum, my, both);
            const typename tile::target to(args, segment{0, 0, args.k, 0, true, 0, 0}, rows, cols);
            typename tile::results result;
            tile::collect(result, sum, my, nullptr);
            tile::store(args, to, result, my, shared + (b - memory) / 4, nullptr);
            if (new_row) swap(a, next_a);
            swap(b, next_b);
            rows = next_rows;
            cols = next_cols;
        }
    }

    static __device__ __forceinline__ void swap(uint32_t &x, uint32_t &y) {
        const uint32_t was = x;
        x = y;
        y = was;
    }
};

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* With marks, what of a split product is to be computed again. If that is nothing, this is known since before the
 * split kernel in front of us began. */
template <class KERNEL> __device__ void run_or_recompute(const ieee_args &args) {
    if (nothing_marked(args)) {
        if (blockIdx.x == 0 && blockIdx.z == 0) wait_for_previous_kernel(); /* the grid is not to end before it does */
        return;
    }
    KERNEL::run(args);
}

/* Large products, and recomputing. A warp has 64 x 32; 2 blocks per SM. */
using mma_64x128 = ieee_mma<64, 128, 1, 4, 1, 3>;
ASSERT_LISTED_AS(IEEE_MMA_64X128, mma_64x128::M, mma_64x128::N, mma_64x128::THREADS, mma_64x128::SHARED_BYTES);

extern "C" __global__ void __launch_bounds__(128, 2) ieee_mma_64x128(const __grid_constant__ ieee_args args) {
    run_or_recompute<mma_64x128>(args);
}

/* Medium products, and recomputing. A warp has 32 x 32; 3 blocks per SM. */
using mma_64x64 = ieee_mma<64, 64, 2, 2, 1, 3>;
ASSERT_LISTED_AS(IEEE_MMA_64X64, mma_64x64::M, mma_64x64::N, mma_64x64::THREADS, mma_64x64::SHARED_BYTES);

extern "C" __global__ void __launch_bounds__(128, 3) ieee_mma_64x64(const __grid_constant__ ieee_args args) {
    run_or_recompute<mma_64x64>(args);
}

/* Small products: more tiles. Two warps have 32 x 32 together, half of k each; 3 blocks per SM. */
using mma_32x64 = ieee_mma<32, 64, 1, 2, 2, 4>;
ASSERT_LISTED_AS(IEEE_MMA_32X64, mma_32x64::M, mma_32x64::N, mma_32x64::THREADS, mma_32x64::SHARED_BYTES);

extern "C" __global__ void __launch_bounds__(128, 3) ieee_mma_32x64(const __grid_constant__ ieee_args args) {
    mma_32x64::run(args);
}

/* The smallest. Each warp has the whole tile, and a quarter of k; 3 blocks per SM. */
using mma_32x32 = ieee_mma<32, 32, 1, 1, 4, 4>;
ASSERT_LISTED_AS(IEEE_MMA_32X32, mma_32x32::M, mma_32x32::N, mma_32x32::THREADS, mma_32x32::SHARED_BYTES);

extern "C" __global__ void __launch_bounds__(128, 3) ieee_mma_32x32(const __grid_constant__ ieee_args args) {
    mma_32x32::run(args);
}

/* Products of few terms. A warp has 32 x 32; 3 blocks per SM. */
using mma_short_k = ieee_mma_short<64, 64, 2, 2, 64>;
ASSERT_LISTED_AS(IEEE_MMA_SHORT_K, mma_short_k::tile::M, mma_short_k::tile::N, mma_short_k::tile::THREADS,
                 mma_short_k::SHARED_BYTES);

extern "C" __global__ void __launch_bounds__(128, 3) ieee_mma_short_k(const __grid_constant__ ieee_args args) {
    mma_short_k::run(args);
}

using mma_short_96 = ieee_mma_short<64, 64, 2, 2, 96>;
ASSERT_LISTED_AS(IEEE_MMA_SHORT_96, mma_short_96::tile::M, mma_short_96::tile::N, mma_short_96::tile::THREADS,
                 mma_short_96::SHARED_BYTES);

extern "C" __global__ void __launch_bounds__(128, 2) ieee_mma_short_96(const __grid_constant__ ieee_args args) {
    mma_short_96::run(args);
}
