/* ieee_tile.cuh: C = alpha*A*B + beta*S in IEEE float32, a tile of C at a time, for every tile size (ieee_tile_*.cu).
 *
 * Operands are read in place with any strides. They pass through shared memory in slabs of SLAB terms of k, STAGES
 * slabs deep, k-major whatever their layout in global memory:
 *
 *     a slab of A: [SLAB][TILE_M + 4]      a slab of B: [SLAB][TILE_N + 4]      (+4 floats: see copy_part)
 *
 * Tile map. A block's warps are WARPS_M x WARPS_N, a warp's lanes LANES_M x LANES_N, a thread's results ROWS x COLS,
 * held in registers. Rows and columns of a thread come in groups of four neighbours, so that one 16-byte load from
 * shared memory brings four of them; the groups of one warp interleave: row of thread = group*4*LANES_M + lane_m*4 +
 * 0..3.
 *
 * k runs in steps of STEP terms, the body of the one main loop. While a step is multiplied, a part of a later slab (one
 * of PARTS) is on its way from global to shared memory, by cp.async from sm_80 on, and the next term's values from
 * shared memory to registers. What a block multiplies at a time is a segment: a tile, or a piece of one along k
 * (ieee_order.cuh).
 *
 * What the speed hangs on. A scheduler issues one instruction a cycle, and an fma is one: every other instruction
 * costs. Per term a thread does ROWS*COLS fma for (ROWS + COLS)/4 loads: large thread tiles. And an fma reads three
 * registers, of which each of the two banks (even, odd) delivers one a cycle: so neighbouring fma must share a factor,
 * which the hardware keeps at hand, and the other two registers must be of different parity. See multiply and store.
 *
 * Short names: a "line" is an index of m for A and of n for B, so that both operands are the same thing.
 */
#pragma once

#include "ieee_order.cuh"

/* ---- Copies from global to shared memory ------------------------------------------------------------------------- */

/* Shared memory is addressed by its 32-bit byte address, as these instructions take it. `wanted` becomes a predicate of
 * the copy, not a branch around it, so that copies can stand between the multiplications. */
static __device__ __forceinline__ void copy_16_bytes(uint32_t shared, const char *global, int wanted) {
#if __CUDA_ARCH__ >= 800
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(shared),
                 "l"(global), "r"(wanted)
                 : "memory");
#else
    if (!wanted) return;
    const float4 v = *(const float4 *)global;
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
#endif
}

static __device__ __forceinline__ void copy_4_bytes(uint32_t shared, const char *global, int wanted) {
#if __CUDA_ARCH__ >= 800
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 4;}" ::"r"(shared),
                 "l"(global), "r"(wanted)
                 : "memory");
#else
    if (!wanted) return;
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared), "f"(*(const float *)global) : "memory");
#endif
}

static __device__ __forceinline__ void set_to_zero(uint32_t shared) {
    asm volatile("st.shared.f32 [%0], 0f00000000;" ::"r"(shared) : "memory");
}

static __device__ __forceinline__ void close_copy_group(void) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most OPEN of this thread's latest copy groups are still under way. */
template <int OPEN> static __device__ __forceinline__ void wait_for_copy_groups(void) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
#endif
}

/* ---- One operand ------------------------------------------------------------------------------------------------- */

/* How an operand is read. */
enum reading {
    READ_VECTORS,    /* lines are contiguous and 16-byte aligned: four lines at a time */
    READ_TERMS,      /* terms of k are contiguous: eight neighbouring threads take eight terms of one line */
    READ_LINES,      /* lines are contiguous: neighbouring threads take neighbouring lines */
    READ_TERMS_EDGE, /* the same two in a tile at the matrix's edge */
    READ_LINES_EDGE,
    READ_SINGLES, /* any strides */
    READ_ANY      /* one of these, known at run time only */
};

/* One operand of one segment: LINES lines of it, as one thread copies them. Strides of members are in bytes. Lines
 * beyond the matrix are not read: what stands in their place reaches only results that are never stored. */
template <int LINES, int SLAB, int PARTS, int THREADS> struct operand_tile {
    static constexpr int PITCH = LINES + 4;
    static constexpr int LANE_TERMS = 8; /* READ_TERMS: 8 threads along k, the others along lines */

    reading how;
    const char *next;       /* what this thread copies next */
    int64_t pass_stride;    /* from one pass of the block's threads over the slab to the next */
    int64_t slab_stride;    /* what remains to the next slab after the last pass */
    uint32_t shared_offset; /* where its first element goes in a slab */
    uint32_t to;            /* where its next element goes */
    int lines_left;         /* from this thread's first line to the end of the matrix */
    int lines_ahead;        /* READ_TERMS_EDGE: from the line it copies next */

    static __device__ __forceinline__ reading choose(const float *first, int64_t line_stride, int64_t k_stride,
                                                     int lines) {
        const bool inside = lines >= LINES;
        if (line_stride == 1 && k_stride % 4 == 0 && lines % 4 == 0 && (uintptr_t)first % 16 == 0) return READ_VECTORS;
        if (line_stride == 1) return inside ? READ_LINES : READ_LINES_EDGE;
        if (k_stride == 1) return inside ? READ_TERMS : READ_TERMS_EDGE;
        return READ_SINGLES;
    }

    /* Prepares to copy whole slabs from `first` on: line 0 of the tile, term 0 of the first slab. */
    __device__ __forceinline__ void begin(const float *first, int64_t line_stride, int64_t k_stride, int lines) {
        const int thread = threadIdx.x;
        int line, term;
        line_stride *= 4;
        k_stride *= 4;
        slab_stride = 0;
        if (how == READ_VECTORS) {
            line = thread % (LINES / 4) * 4;
            term = thread / (LINES / 4);
            pass_stride = k_stride * (THREADS * 4 / LINES);
        } else if (how == READ_LINES || how == READ_LINES_EDGE) {
            line = thread % 32;
            term = thread / 32;
            pass_stride = k_stride * (THREADS / 32);
        } else if (how == READ_TERMS || how == READ_TERMS_EDGE) {
            line = thread / LANE_TERMS;
            term = thread % LANE_TERMS;
            pass_stride = line_stride * (THREADS / LANE_TERMS);
            slab_stride = SLAB * k_stride - LINES * line_stride;
        } else {
            line = thread % LINES;
            term = thread / LINES;
            pass_stride = k_stride * (THREADS / LINES);
        }
        lines_left = lines - line;
        shared_offset = (term * PITCH + line) * 4;
        /* Vectors past the edge need no test: they are the last one again. */
        if (how == READ_VECTORS) line = min(line, lines - 4);
        next = (const char *)first + line * line_stride + term * k_stride;
    }

    __device__ __forceinline__ void begin_slab(uint32_t slab) {
        to = slab + shared_offset;
        lines_ahead = lines_left;
    }
    __device__ __forceinline__ void finish_slab(void) { next += slab_stride; }

    /* Copies one of PARTS parts of a slab, if `more`; parts and slabs come in order.
     * Shared-memory banks: neighbouring lines lie in neighbouring banks; with READ_TERMS a warp writes 8 terms of 4
     * lines, and the pitch of LINES + 4 floats puts these into 32 different banks. */
    template <reading HOW> __device__ __forceinline__ void copy_part(int more) {
        if constexpr (HOW == READ_VECTORS) {
            constexpr int TERMS = THREADS * 4 / LINES, PASSES = SLAB / TERMS / PARTS;
            static_assert(SLAB % (TERMS * PARTS) == 0, "every part has whole passes");
#pragma unroll
            for (int pass = 0; pass < PASSES; ++pass, next += pass_stride)
                copy_16_bytes(to + pass * TERMS * PITCH * 4, next, more);
            to += PASSES * TERMS * PITCH * 4;
        } else if constexpr (HOW == READ_TERMS || HOW == READ_TERMS_EDGE) {
            constexpr int PASS_LINES = THREADS / LANE_TERMS, PASSES = LINES / PASS_LINES / PARTS;
            static_assert(LINES % (PASS_LINES * PARTS) == 0, "every part has whole passes");
#pragma unroll
            for (int pass = 0; pass < PASSES; ++pass, next += pass_stride, lines_ahead -= PASS_LINES)
#pragma unroll
                for (int term = 0; term < SLAB; term += LANE_TERMS)
                    copy_4_bytes(to + (pass * PASS_LINES + term * PITCH) * 4, next + term * 4,
                                 HOW == READ_TERMS ? more : more & (lines_ahead > 0));
            to += PASSES * PASS_LINES * 4;
        } else if constexpr (HOW == READ_LINES || HOW == READ_LINES_EDGE) {
            constexpr int TERMS = THREADS / 32, PASSES = SLAB / TERMS / PARTS;
            static_assert(SLAB % (TERMS * PARTS) == 0, "every part has whole passes");
#pragma unroll
            for (int pass = 0; pass < PASSES; ++pass, next += pass_stride)
#pragma unroll
                for (int line = 0; line < LINES; line += 32)
                    copy_4_bytes(to + (pass * TERMS * PITCH + line) * 4, next + line * 4,
                                 HOW == READ_LINES ? more : more & (line < lines_left));
            to += PASSES * TERMS * PITCH * 4;
        } else if constexpr (HOW == READ_SINGLES) {
            constexpr int TERMS = THREADS / LINES, PASSES = SLAB / TERMS / PARTS;
            static_assert(SLAB % (TERMS * PARTS) == 0, "every part has whole passes");
#pragma unroll 4
            for (int pass = 0; pass < PASSES; ++pass, next += pass_stride)
                copy_4_bytes(to + pass * TERMS * PITCH * 4, next, more & (lines_left > 0));
            to += PASSES * TERMS * PITCH * 4;
        } else {
            if (how == READ_VECTORS)
                copy_part<READ_VECTORS>(more);
            else if (how == READ_TERMS)
                copy_part<READ_TERMS>(more);
            else if (how == READ_LINES)
                copy_part<READ_LINES>(more);
            else if (how == READ_TERMS_EDGE)
                copy_part<READ_TERMS_EDGE>(more);
            else if (how == READ_LINES_EDGE)
                copy_part<READ_LINES_EDGE>(more);
            else
                copy_part<READ_SINGLES>(more);
        }
    }

    /* Copies a slab of only `terms` terms to the end of its memory and sets the rest to zero, in both operands: what is
     * added for it is 0*0. Strides in floats. */
    static __device__ __forceinline__ void copy_ragged_slab(uint32_t slab, const float *first, int64_t line_stride,
                                                            int64_t k_stride, int lines, int terms) {
        const int line = threadIdx.x % LINES;
#pragma unroll 1
        for (int row = threadIdx.x / LINES; row < SLAB; row += THREADS / LINES) {
            const uint32_t at = slab + (row * PITCH + line) * 4;
            const int term = row - (SLAB - terms);
            if (term < 0)
                set_to_zero(at);
            else if (line < lines)
                copy_4_bytes(at, (const char *)(first + line * line_stride + term * k_stride), 1);
        }
    }
};

/* Whether a tile of the product may be marked: none is where all marks are 1, the least there is, and the limit is no
 * less. All threads of the block call it. */
static __device__ __forceinline__ bool any_mark(const ieee_args &args, const float *marks_a, const float *marks_b) {
    bool seen = !(args.mark_limit >= 1.0f);
    const int panels_m = (args.m + PANEL_ROWS - 1) / PANEL_ROWS, panels_n = (args.n + PANEL_ROWS - 1) / PANEL_ROWS;
    for (int i = threadIdx.x; i < panels_m; i += blockDim.x) seen |= !(marks_a[i] <= 1.0f);
    for (int i = threadIdx.x; i < panels_n; i += blockDim.x) seen |= !(marks_b[i] <= 1.0f);
    return __syncthreads_or(seen);
}

/* Whether a block of C (args.h) is to be recomputed. */
static __device__ __forceinline__ bool is_doubted(const ieee_args &args, const uint8_t *doubts, int row, int col) {
    return doubts[(int64_t)(row / DOUBT_ROWS) * ((args.n + DOUBT_COLS - 1) / DOUBT_COLS) + col / DOUBT_COLS];
}

/* Whether any of the panels' blocks is, whose first element this is. All threads of the block call it. */
static __device__ __forceinline__ bool any_doubt(const ieee_args &args, const uint8_t *doubts, int row, int col) {
    constexpr int ACROSS = PANEL_ROWS / DOUBT_COLS, BLOCKS = PANEL_ROWS / DOUBT_ROWS * ACROSS;
    row += threadIdx.x / ACROSS * DOUBT_ROWS;
    col += threadIdx.x % ACROSS * DOUBT_COLS;
    const bool there = threadIdx.x < BLOCKS && row < args.m && col < args.n;
    return __syncthreads_or(there && is_doubted(args, doubts, row, col));
}

/* ---- The tile ---------------------------------------------------------------------------------------------------- */

/* The rows, or the columns, of C that a tile covers. The last tile begins early enough to end where the matrix does, if
 * that is large enough, so that it reads no less than the others do; it stores only what is its own, from `own` on. */
struct extent {
    int first, own;
    __device__ __forceinline__ extent(int begin, int size, int matrix)
        : first(min(begin, max(matrix - size, 0))), own(begin) {}
};

/* SEPARATE: the main loop is compiled once for each pair of readings that matters, without a branch in it. */
template <int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int ROWS, int COLS, int SLAB, int STEP, int STAGES,
          bool SEPARATE>
struct ieee_tile {
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
    static constexpr int LANES_M = WARP_M / ROWS, LANES_N = WARP_N / COLS;
    static constexpr int PARTS = SLAB / STEP;
    using a_tile = operand_tile<TILE_M, SLAB, PARTS, THREADS>;
    using b_tile = operand_tile<TILE_N, SLAB, PARTS, THREADS>;
    static constexpr int A_SLAB = SLAB * a_tile::PITCH, STAGE = A_SLAB + SLAB * b_tile::PITCH; /* floats */
    static constexpr int RESULT_PITCH = WARP_N + 4;
    static constexpr int SHARED_BYTES = STAGES * STAGE * 4;

    static_assert(LANES_M * LANES_N == 32, "the lanes of a warp cover its part of the tile");
    static_assert(ROWS % 4 == 0 && COLS % 4 == 0, "values come from shared memory four at a time");
    static_assert(STEP % 2 == 0, "two register sets alternate between terms, and each step starts with the first");
    static_assert(IEEE_RUN % SLAB == 0, "a piece of a tile is whole slabs, but for the last of k");
    static_assert(WARPS_M * WARPS_N * LANES_M * RESULT_PITCH <= STAGES * STAGE, "results pass through the slabs");

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

    /* Which operand comes first changes how the compiler arranges the fma: this is the quicker order for each tile. */
    static __device__ __forceinline__ void load_values(float (&a)[ROWS], float (&b)[COLS], const float *a_from,
                                                       const float *b_from) {
        if (ROWS > COLS) load(a, a_from, 4 * LANES_M);
        load(b, b_from, 4 * LANES_N);
        if (ROWS <= COLS) load(a, a_from, 4 * LANES_M);
    }

    /* The main loop: adds the terms of `slabs` slabs, from part `part` of the first one on. All stages are filled but
     * the last, of which the first `part` parts are. */
    template <reading A, reading B>
    static __device__ __forceinline__ void multiply(float (&sum)[ROWS][COLS], const place &my, float *shared, a_tile &a,
                                                    b_tile &b, int part, int slabs) {
        const uint32_t memory = (uint32_t)__cvta_generic_to_shared(shared);
        const int a_offset = my.warp_m + my.lane_m * 4, b_offset = A_SLAB + my.warp_n + my.lane_n * 4;
        const float *a_from = shared + a_offset + part * STEP * a_tile::PITCH;
        const float *b_from = shared + b_offset + part * STEP * b_tile::PITCH;
        float a_values[2][ROWS], b_values[2][COLS];
        load_values(a_values[0], b_values[0], a_from, b_from);

        int stage = 0, coming = STAGES - 1; /* the slab in use is in `stage`; slab `coming` is being copied */
        int more = coming < slabs;
#pragma unroll 1
        for (int steps = slabs * PARTS - part; steps > 0; --steps) {
            a.template copy_part<A>(more);
            b.template copy_part<B>(more);
            ++part;
#pragma unroll
            for (int term = 0; term < STEP; ++term) {
                float(&a_now)[ROWS] = a_values[term % 2], (&b_now)[COLS] = b_values[term % 2];
                if (term + 1 < STEP) {
                    load_values(a_values[(term + 1) % 2], b_values[(term + 1) % 2], a_from + (term + 1) * a_tile::PITCH,
                                b_from + (term + 1) * b_tile::PITCH);
                } else {
                    a_from += STEP * a_tile::PITCH;
                    b_from += STEP * b_tile::PITCH;
                    if (part == PARTS) { /* the slab's last values are in registers: on to the next slab */
                        close_copy_group();
                        wait_for_copy_groups<STAGES - 2>();
                        __syncthreads();
                        part = 0;
                        more = ++coming < slabs;
                        a.finish_slab();
                        b.finish_slab();
                        a.begin_slab(memory + stage * (STAGE * 4)); /* the slab just used up makes room */
                        b.begin_slab(memory + stage * (STAGE * 4) + A_SLAB * 4);
                        stage = stage + 1 == STAGES ? 0 : stage + 1;
                        a_from = shared + stage * STAGE + a_offset;
                        b_from = shared + stage * STAGE + b_offset;
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
    static __device__ __forceinline__ void compute(const ieee_args &args, const segment &piece, const extent &rows,
                                                   const extent &cols, const place &my, float *shared,
                                                   const uint8_t *doubts) {
        const int64_t batch = blockIdx.z;
        const int a_lines = args.m - rows.first, b_lines = args.n - cols.first;
        const int64_t a_line = args.a.row_stride, a_k = args.a.col_stride;
        const int64_t b_line = args.b.col_stride, b_k = args.b.row_stride;
        const float *a_first = args.a.data + batch * args.a.batch_stride + rows.first * a_line + piece.k_begin * a_k;
        const float *b_first = args.b.data + batch * args.b.batch_stride + cols.first * b_line + piece.k_begin * b_k;
        a_tile a;
        b_tile b;
        a.how = a_tile::choose(a_first, a_line, a_k, a_lines);
        b.how = b_tile::choose(b_first, b_line, b_k, b_lines);
        /* Two pairs less to compile: vectors of one operand and lines of the other are lines of both. */
        if (a.how == READ_VECTORS && b.how == READ_LINES && a_lines >= TILE_M) a.how = READ_LINES;
        if (b.how == READ_VECTORS && a.how == READ_LINES && b_lines >= TILE_N) b.how = READ_LINES;

        /* What k leaves over after whole slabs comes first, so that the main loop has whole slabs to copy only. */
        const int slabs = (piece.terms + SLAB - 1) / SLAB, ragged = piece.terms % SLAB;
        const uint32_t memory = (uint32_t)__cvta_generic_to_shared(shared);
        a.begin(a_first + ragged * a_k, a_line, a_k, a_lines);
        b.begin(b_first + ragged * b_k, b_line, b_k, b_lines);
        int part = 0; /* of the first slab, to start with */
        if (ragged) {
            a_tile::copy_ragged_slab(memory, a_first, a_line, a_k, a_lines, ragged);
            b_tile::copy_ragged_slab(memory + A_SLAB * 4, b_first, b_line, b_k, b_lines, ragged);
            close_copy_group();
            part = (SLAB - ragged) / STEP;
        }
#pragma unroll 1
        for (int slab = ragged ? 1 : 0; slab < STAGES; ++slab) {
            a.begin_slab(memory + slab * STAGE * 4);
            b.begin_slab(memory + slab * STAGE * 4 + A_SLAB * 4);
            const int parts = slab < STAGES - 1 ? PARTS : part; /* the main loop copies the rest */
#pragma unroll 1
            for (int i = 0; i < parts; ++i) {
                a.template copy_part<READ_ANY>(slab < slabs);
                b.template copy_part<READ_ANY>(slab < slabs);
            }
            if (slab == STAGES - 1) break; /* its group stays open */
            close_copy_group();
            a.finish_slab();
            b.finish_slab();
        }
        wait_for_copy_groups<STAGES - 2>();
        __syncthreads();

        float sum[ROWS][COLS] = {};
        if (SEPARATE && a.how == READ_VECTORS && b.how == READ_VECTORS)
            multiply<READ_VECTORS, READ_VECTORS>(sum, my, shared, a, b, part, slabs);
        else if (SEPARATE && a.how == READ_TERMS && b.how == READ_VECTORS)
            multiply<READ_TERMS, READ_VECTORS>(sum, my, shared, a, b, part, slabs);
        else if (SEPARATE && a.how == READ_VECTORS && b.how == READ_TERMS)
            multiply<READ_VECTORS, READ_TERMS>(sum, my, shared, a, b, part, slabs);
        else if (SEPARATE && a.how == READ_TERMS && b.how == READ_TERMS)
            multiply<READ_TERMS, READ_TERMS>(sum, my, shared, a, b, part, slabs);
        else if (SEPARATE && a.how == READ_TERMS && b.how == READ_LINES)
            multiply<READ_TERMS, READ_LINES>(sum, my, shared, a, b, part, slabs);
        else if (SEPARATE && a.how == READ_LINES && b.how == READ_TERMS)
            multiply<READ_LINES, READ_TERMS>(sum, my, shared, a, b, part, slabs);
        else if (SEPARATE && a.how == READ_LINES && b.how == READ_LINES)
            multiply<READ_LINES, READ_LINES>(sum, my, shared, a, b, part, slabs);
        else
            multiply<READ_ANY, READ_ANY>(sum, my, shared, a, b, part, slabs);
        wait_for_copy_groups<0>();
        __syncthreads();
        store(args, sum, piece, rows, cols, my, shared + threadIdx.x / 32 * (LANES_M * RESULT_PITCH), doubts);
    }

    /* Stores a segment's sums. They go through shared memory, LANES_M rows of the warp's part at a time, so that a warp
     * writes whole rows. There, columns 2i and 2i+1 change places: the 16-byte stores need four sums in registers that
     * follow each other, and this order gives sum[row][col] the opposite parity of b's value for that column. */
    static __device__ __forceinline__ void store(const ieee_args &args, const float (&sum)[ROWS][COLS],
                                                 const segment &piece, const extent &rows, const extent &cols,
                                                 const place &my, float *staging, const uint8_t *doubts) {
        const int lane = threadIdx.x % 32;
        /* Of the warp's part: the rows and columns that are this tile's own, and where the matrix ends. */
        const int rows_own = rows.own - rows.first - my.warp_m, cols_own = cols.own - cols.first - my.warp_n;
        int rows_end = args.m - rows.first - my.warp_m, cols_end = args.n - cols.first - my.warp_n;
        float alpha = args.alpha, beta = args.beta;
        int64_t row_stride = args.c.row_stride, col_stride = args.c.col_stride;
        float *out = args.c.data + blockIdx.z * args.c.batch_stride + (rows.first + my.warp_m) * row_stride +
                     (cols.first + my.warp_n) * col_stride;
        if (!piece.whole) {
            out = partial_tile(args, piece.tile, piece.index) - rows_own * TILE_N - cols_own;
            row_stride = TILE_N;
            col_stride = 1;
            rows_end = WARP_M;
            cols_end = WARP_N;
            alpha = 1.0f;
            beta = 0.0f;
        }
        const matrix_in &s = args.source;
        const float *source = s.data + blockIdx.z * s.batch_stride + (rows.first + my.warp_m) * s.row_stride +
                              (cols.first + my.warp_n) * s.col_stride;
        const bool vectors = !doubts && col_stride == 1 && row_stride % 4 == 0 && cols_end % 4 == 0 &&
                             cols_own % 4 == 0 && (uintptr_t)out % 16 == 0;
        const bool source_vectors = s.col_stride == 1 && s.row_stride % 4 == 0 && (uintptr_t)source % 16 == 0;

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
                        const float *add = source + out_row * s.row_stride + col * s.col_stride;
                        const float4 old = source_vectors ? *(const float4 *)add
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
                    if (doubts &&
                        !is_doubted(args, doubts, rows.first + my.warp_m + out_row, cols.first + my.warp_n + col))
                        continue;
                    float *at = out + out_row * row_stride + col * col_stride;
                    const float value = staging[line * RESULT_PITCH + (col ^ 1)];
                    *at = beta == 0.0f ? alpha * value
                                       : fmaf(alpha, value, beta * source[out_row * s.row_stride + col * s.col_stride]);
                }
            }
        }
    }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        extern __shared__ __align__(16) float shared[];
        const float *marks_a = args.marks_a, *marks_b = args.marks_b;
        if (marks_a) {
            marks_a += blockIdx.z * args.marks_a_batch_stride;
            marks_b += blockIdx.z * args.marks_b_batch_stride;
            if (!any_mark(args, marks_a, marks_b)) return;
        }
        const place my;
        for (int unit = blockIdx.x; unit < args.full_tiles + args.tail_units; unit += gridDim.x) {
            segment piece;
            for (bool found = first_segment(args, unit, &piece); found; found = next_segment(args, &piece)) {
                int tile_row, tile_col;
                find_tile(args, piece.tile, &tile_row, &tile_col);
                const extent rows(tile_row * TILE_M, TILE_M, args.m), cols(tile_col * TILE_N, TILE_N, args.n);
                const uint8_t *doubts = nullptr; /* of the blocks to store; else the whole tile is */
                if (marks_a) {
                    const float mark = marks_a[rows.own / PANEL_ROWS] * marks_b[cols.own / PANEL_ROWS];
                    if (mark <= args.mark_limit) continue;
                    if (mark < INFINITY && args.doubts) {
                        doubts = args.doubts + blockIdx.z * args.doubts_batch_stride;
                        if (!any_doubt(args, doubts, rows.own, cols.own)) continue;
                    }
                    if (threadIdx.x == 0) atomicAdd(args.fallback_tiles, 1ull);
                }
                compute(args, piece, rows, cols, my, shared, doubts);
                __syncthreads(); /* the next segment's slabs take the place of these results */
            }
        }
    }
};
