/* ieee_tile.cuh: C = alpha*A*B + beta*C in IEEE float32, one tile of C per block, for every tile size (ieee_tile_*.cu).
 *
 * Operands are read in place with any strides. A tile's operands pass through shared memory in slabs of SLAB terms of k,
 * STAGES slabs deep, stored k-major whatever their layout in global memory:
 *
 *     a slab of A: [SLAB][TILE_M + 4]      a slab of B: [SLAB][TILE_N + 4]      (+4 floats: see copy_slab_part)
 *
 * Tile map. A block's warps are WARPS_M x WARPS_N, a warp's lanes LANES_M x LANES_N, a thread's results ROWS x COLS, held
 * in registers. Rows and columns of a thread come in groups of four neighbours, so that one 16-byte load from shared
 * memory brings four of them; the groups of one warp interleave: row of thread = group*4*LANES_M + lane_m*4 + 0..3.
 * Per term of k a thread does ROWS*COLS fma for (ROWS + COLS)/4 loads.
 *
 * k runs in steps of STEP terms, the body of the one main loop. While a step is multiplied, part of a later slab is on
 * its way from global to shared memory (cp.async from sm_80 on), and the next term's values from shared memory to
 * registers.
 *
 * Short names: "line" is an index of m for A and of n for B: the two operands are the same thing seen along their lines.
 */
#pragma once

#include "ieee_order.cuh"

/* ---- Copies from global to shared memory ----------------------------------------------------------------------------- */

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

/* ---- One operand ------------------------------------------------------------------------------------------------------- */

/* How an operand is read. */
enum reading {
    READ_VECTORS, /* lines are contiguous and 16-byte aligned: four lines at a time */
    READ_TERMS,   /* terms of k are contiguous: eight neighbouring threads take eight terms of one line */
    READ_LINES,   /* lines are contiguous: neighbouring threads take neighbouring lines */
    READ_SINGLES  /* anything else, and what is contiguous in a tile at the matrix's edge */
};

/* Of one operand in one tile: LINES lines, as one thread copies them. Strides are in bytes. */
template <int LINES, int SLAB, int PARTS, int THREADS> struct operand_tile {
    static constexpr int PITCH = LINES + 4;
    static constexpr int LANE_TERMS = 8; /* READ_TERMS: 8 threads along k, the others along lines */

    const char *next;       /* what this thread copies next */
    int64_t pass_stride;    /* from one pass of the block's threads over the slab to the next */
    int64_t slab_stride;    /* what remains to the next slab after the last pass */
    uint32_t shared_offset; /* where its first element goes in a slab */
    uint32_t to;            /* where its next element goes */
    int wanted;             /* READ_SINGLES: whether this thread's line exists */

    static __device__ __forceinline__ reading choose(const float *first, int64_t line_stride, int64_t k_stride, int lines) {
        if (line_stride == 1 && k_stride % 4 == 0 && lines % 4 == 0 && (uintptr_t)first % 16 == 0) return READ_VECTORS;
        if (lines < LINES) return READ_SINGLES;
        return line_stride == 1 ? READ_LINES : k_stride == 1 ? READ_TERMS : READ_SINGLES;
    }

    /* Prepares to copy whole slabs from `first`, the tile's line 0 and the first slab's term 0. */
    __device__ __forceinline__ void begin(reading how, const float *first, int64_t line_stride, int64_t k_stride, int lines) {
        const int thread = threadIdx.x;
        int line, term;
        line_stride *= 4;
        k_stride *= 4;
        slab_stride = 0;
        wanted = 1;
        if (how == READ_VECTORS) {
            line = thread % (LINES / 4) * 4;
            term = thread / (LINES / 4);
            pass_stride = k_stride * (THREADS * 4 / LINES);
        } else if (how == READ_LINES) {
            line = thread % 32;
            term = thread / 32;
            pass_stride = k_stride * (THREADS / 32);
        } else if (how == READ_TERMS) {
            line = thread / LANE_TERMS;
            term = thread % LANE_TERMS;
            pass_stride = line_stride * (THREADS / LANE_TERMS);
            slab_stride = SLAB * k_stride - LINES * line_stride;
        } else {
            line = thread % LINES;
            term = thread / LINES;
            pass_stride = k_stride * (THREADS / LINES);
            wanted = line < lines;
        }
        shared_offset = (term * PITCH + line) * 4;
        /* Vectors past the matrix's edge repeat its last one: they reach only results that are never stored. */
        if (how == READ_VECTORS) line = min(line, lines - 4);
        next = (const char *)first + line * line_stride + term * k_stride;
    }

    __device__ __forceinline__ void begin_slab(uint32_t slab) { to = slab + shared_offset; }
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
        } else if constexpr (HOW == READ_TERMS) {
            constexpr int PASS_LINES = THREADS / LANE_TERMS, PASSES = LINES / PASS_LINES / PARTS;
            static_assert(LINES % (PASS_LINES * PARTS) == 0, "every part has whole passes");
#pragma unroll
            for (int pass = 0; pass < PASSES; ++pass, next += pass_stride)
#pragma unroll
                for (int term = 0; term < SLAB; term += LANE_TERMS)
                    copy_4_bytes(to + (pass * PASS_LINES + term * PITCH) * 4, next + term * 4, more);
            to += PASSES * PASS_LINES * 4;
        } else if constexpr (HOW == READ_LINES) {
            constexpr int TERMS = THREADS / 32, PASSES = SLAB / TERMS / PARTS;
            static_assert(SLAB % (TERMS * PARTS) == 0, "every part has whole passes");
#pragma unroll
            for (int pass = 0; pass < PASSES; ++pass, next += pass_stride)
#pragma unroll
                for (int line = 0; line < LINES; line += 32)
                    copy_4_bytes(to + (pass * TERMS * PITCH + line) * 4, next + line * 4, more);
            to += PASSES * TERMS * PITCH * 4;
        } else {
            constexpr int TERMS = THREADS / LINES, PASSES = SLAB / TERMS / PARTS;
            static_assert(SLAB % (TERMS * PARTS) == 0, "every part has whole passes");
#pragma unroll 4
            for (int pass = 0; pass < PASSES; ++pass, next += pass_stride)
                copy_4_bytes(to + pass * TERMS * PITCH * 4, next, more & wanted);
            to += PASSES * TERMS * PITCH * 4;
        }
    }

    __device__ __forceinline__ void copy_part(reading how, int more) {
        if (how == READ_VECTORS)
            copy_part<READ_VECTORS>(more);
        else if (how == READ_TERMS)
            copy_part<READ_TERMS>(more);
        else if (how == READ_LINES)
            copy_part<READ_LINES>(more);
        else
            copy_part<READ_SINGLES>(more);
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

/* ---- Tiles of C ---------------------------------------------------------------------------------------------------------- */

/* Whether any panel of the product is marked. All threads of the block call it. */
static __device__ __forceinline__ bool any_mark(const ieee_args &args, const uint32_t *marks_a, const uint32_t *marks_b) {
    uint32_t seen = 0;
    for (int i = threadIdx.x; i < (args.m + PANEL_ROWS - 1) / PANEL_ROWS; i += blockDim.x) seen |= marks_a[i];
    for (int i = threadIdx.x; i < (args.n + PANEL_ROWS - 1) / PANEL_ROWS; i += blockDim.x) seen |= marks_b[i];
    return __syncthreads_or(seen != 0);
}

template <int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int ROWS, int COLS, int SLAB, int STEP, int STAGES,
          bool SPECIAL>
struct ieee_tile {
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
    static constexpr int LANES_M = WARP_M / ROWS, LANES_N = WARP_N / COLS;
    static constexpr int PARTS = SLAB / STEP;
    using a_tile = operand_tile<TILE_M, SLAB, PARTS, THREADS>;
    using b_tile = operand_tile<TILE_N, SLAB, PARTS, THREADS>;
    static constexpr int A_SLAB = SLAB * a_tile::PITCH, STAGE = A_SLAB + SLAB * b_tile::PITCH;
    static constexpr int RESULT_PITCH = WARP_N + 4;
    static constexpr int SHARED_BYTES = STAGES * STAGE * 4;

    static_assert(LANES_M * LANES_N == 32, "the lanes of a warp cover its part of the tile");
    static_assert(ROWS % 4 == 0 && COLS % 4 == 0, "values come from shared memory four at a time");
    static_assert(STEP % 2 == 0, "two register sets alternate between terms, and each step starts with the first");
    static_assert(WARPS_M * WARPS_N * LANES_M * RESULT_PITCH <= STAGES * STAGE, "results pass through the slabs' memory");

    static __device__ __forceinline__ void load_values(float (&a)[ROWS], float (&b)[COLS], const float *a_from,
                                                       const float *b_from) {
#pragma unroll
        for (int group = 0; group < ROWS / 4; ++group)
            *(float4 *)&a[group * 4] = *(const float4 *)(a_from + group * 4 * LANES_M);
#pragma unroll
        for (int group = 0; group < COLS / 4; ++group)
            *(float4 *)&b[group * 4] = *(const float4 *)(b_from + group * 4 * LANES_N);
    }

    /* The main loop, once for each pair of ways to read the operands. */
    template <reading A, reading B, bool CHOSEN>
    static __device__ __forceinline__ void multiply(float (&sum)[ROWS][COLS], float *shared, a_tile &a, b_tile &b, reading a_how,
                                                    reading b_how, int a_offset, int b_offset, int part, int slabs) {
        const uint32_t memory = (uint32_t)__cvta_generic_to_shared(shared);
        const float *a_from = shared + a_offset + part * STEP * a_tile::PITCH;
        const float *b_from = shared + b_offset + part * STEP * b_tile::PITCH;
        float a_values[2][ROWS], b_values[2][COLS];
        load_values(a_values[0], b_values[0], a_from, b_from);

        int stage = 0, coming = STAGES - 1;
        int more = coming < slabs;
#pragma unroll 1
        for (int steps = slabs * PARTS - part; steps > 0; --steps) {
            if constexpr (CHOSEN) {
                a.template copy_part<A>(more);
                b.template copy_part<B>(more);
            } else {
                a.copy_part(a_how, more);
                b.copy_part(b_how, more);
            }
            ++part;
#pragma unroll
            for (int term = 0; term < STEP; ++term) {
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
#pragma unroll
                for (int row = 0; row < ROWS; ++row)
#pragma unroll
                    for (int i = 0; i < COLS; ++i) {
                        const int col = row % 2 ? COLS - 1 - i : i;
                        sum[row][col] = fmaf(a_values[term % 2][row], b_values[term % 2][col], sum[row][col]);
                    }
            }
        }
    }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        extern __shared__ __align__(16) float shared[];
        const int64_t batch = blockIdx.z;
        const uint32_t *marks_a = args.marks_a, *marks_b = args.marks_b;
        if (marks_a) {
            marks_a += batch * args.marks_a_batch_stride;
            marks_b += batch * args.marks_b_batch_stride;
            if (!any_mark(args, marks_a, marks_b)) return;
        }

        /* Lanes 2i and 2i+1 read the same rows of A, lanes i and i^2 the same columns of B: a warp's 16-byte loads from
         * shared memory then take two passes instead of four. */
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int lane_m = lane / 2 % LANES_M, lane_n = lane % 2 + lane / (2 * LANES_M) * 2;
        const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;

        const int tail_tiles = args.tiles_m * args.tiles_n - args.full_tiles;
        const int units = args.full_tiles + tail_tiles * args.slices;
        for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
            const bool whole = unit < args.full_tiles;
            const int tail = whole ? 0 : (unit - args.full_tiles) / args.slices;
            const int slice = whole ? 0 : unit - args.full_tiles - tail * args.slices;
            int tile_row, tile_col;
            find_tile(args, whole ? unit : args.full_tiles + tail, &tile_row, &tile_col);
            const int m0 = tile_row * TILE_M, n0 = tile_col * TILE_N;
            if (marks_a) {
                if (!(marks_a[m0 / PANEL_ROWS] | marks_b[n0 / PANEL_ROWS])) continue;
                if (threadIdx.x == 0) atomicAdd(args.fallback_tiles, 1ull);
            }

            const int k_begin = slice * args.k_per_slice;
            const int terms = whole ? args.k : min(args.k_per_slice, args.k - k_begin);
            const int64_t a_line = args.a.row_stride, a_k = args.a.col_stride;
            const int64_t b_line = args.b.col_stride, b_k = args.b.row_stride;
            const float *a_first = args.a.data + batch * args.a.batch_stride + m0 * a_line + k_begin * a_k;
            const float *b_first = args.b.data + batch * args.b.batch_stride + n0 * b_line + k_begin * b_k;
            reading a_how = a_tile::choose(a_first, a_line, a_k, args.m - m0);
            reading b_how = b_tile::choose(b_first, b_line, b_k, args.n - n0);
            if (a_how == READ_VECTORS && b_how == READ_LINES) a_how = args.m - m0 < TILE_M ? READ_VECTORS : READ_LINES;
            if (b_how == READ_VECTORS && a_how == READ_LINES) b_how = args.n - n0 < TILE_N ? READ_VECTORS : READ_LINES;

            float sum[ROWS][COLS];
#pragma unroll
            for (int row = 0; row < ROWS; ++row)
#pragma unroll
                for (int col = 0; col < COLS; ++col) sum[row][col] = 0.0f;

            /* What k leaves over after whole slabs comes first, so that the main loop has whole slabs to copy only. */
            const int slabs = (terms + SLAB - 1) / SLAB, ragged = terms % SLAB;
            const uint32_t memory = (uint32_t)__cvta_generic_to_shared(shared);
            a_tile a;
            b_tile b;
            a.begin(a_how, a_first + ragged * a_k, a_line, a_k, args.m - m0);
            b.begin(b_how, b_first + ragged * b_k, b_line, b_k, args.n - n0);
            int part = 0; /* of the first slab, to start with */
            if (ragged) {
                a_tile::copy_ragged_slab(memory, a_first, a_line, a_k, args.m - m0, ragged);
                b_tile::copy_ragged_slab(memory + A_SLAB * 4, b_first, b_line, b_k, args.n - n0, ragged);
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
                    a.copy_part(a_how, slab < slabs);
                    b.copy_part(b_how, slab < slabs);
                }
                if (slab == STAGES - 1) break;
                close_copy_group();
                a.finish_slab();
                b.finish_slab();
            }
            wait_for_copy_groups<STAGES - 2>();
            __syncthreads();

            const int a_offset = warp_m + lane_m * 4, b_offset = A_SLAB + warp_n + lane_n * 4;
#define WITH(A, B, CHOSEN) \
    multiply<A, B, CHOSEN>(sum, shared, a, b, a_how, b_how, a_offset, b_offset, part, slabs)
            if (SPECIAL && a_how == READ_VECTORS && b_how == READ_VECTORS)
                WITH(READ_VECTORS, READ_VECTORS, true);
            else if (SPECIAL && a_how == READ_TERMS && b_how == READ_VECTORS)
                WITH(READ_TERMS, READ_VECTORS, true);
            else if (SPECIAL && a_how == READ_VECTORS && b_how == READ_TERMS)
                WITH(READ_VECTORS, READ_TERMS, true);
            else if (SPECIAL && a_how == READ_TERMS && b_how == READ_TERMS)
                WITH(READ_TERMS, READ_TERMS, true);
            else if (SPECIAL && a_how == READ_TERMS && b_how == READ_LINES)
                WITH(READ_TERMS, READ_LINES, true);
            else if (SPECIAL && a_how == READ_LINES && b_how == READ_TERMS)
                WITH(READ_LINES, READ_TERMS, true);
            else if (SPECIAL && a_how == READ_LINES && b_how == READ_LINES)
                WITH(READ_LINES, READ_LINES, true);
            else
                WITH(READ_SINGLES, READ_SINGLES, false);
#undef WITH
            wait_for_copy_groups<0>();
            __syncthreads();

            store(args, sum, shared + warp * (LANES_M * RESULT_PITCH), whole, tail, slice, m0, n0, warp_m, warp_n, lane_m,
                  lane_n);
            __syncthreads(); /* the next unit's slabs take the place of these results */
        }
    }

    /* Results go through shared memory, LANES_M rows of the warp's part at a time, so that a warp writes whole rows. */
    static __device__ __forceinline__ void store(const ieee_args &args, const float (&sum)[ROWS][COLS], float *staging,
                                                 bool whole, int tail, int slice, int m0, int n0, int warp_m, int warp_n,
                                                 int lane_m, int lane_n) {
        const int64_t batch = blockIdx.z;
        const int lane = threadIdx.x % 32;
        int rows_left = args.m - m0 - warp_m, cols_left = args.n - n0 - warp_n;
        float alpha = args.alpha, beta = args.beta;
        int64_t row_stride = args.c.row_stride, col_stride = args.c.col_stride;
        float *out = args.c.data + batch * args.c.batch_stride + m0 * row_stride + n0 * col_stride;
        if (!whole) {
            const int64_t tail_tiles = args.tiles_m * args.tiles_n - args.full_tiles;
            out = args.partial + ((batch * tail_tiles + tail) * args.slices + slice) * (TILE_M * TILE_N);
            row_stride = TILE_N;
            col_stride = 1;
            rows_left = WARP_M;
            cols_left = WARP_N;
            alpha = 1.0f;
            beta = 0.0f;
        }
        out += warp_m * row_stride + warp_n * col_stride;

#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            __syncwarp();
#pragma unroll
            for (int group = 0; group < COLS / 4; ++group)
                *(float4 *)(staging + lane_m * RESULT_PITCH + group * 4 * LANES_N + lane_n * 4) = make_float4(
                    sum[row][group * 4 + 1], sum[row][group * 4], sum[row][group * 4 + 3], sum[row][group * 4 + 2]);
            __syncwarp();
            const int first_row = row / 4 * 4 * LANES_M + row % 4;
#pragma unroll 4
            for (int i = lane; i < LANES_M * WARP_N; i += 32) {
                const int line = i / WARP_N, col = i % WARP_N, out_row = first_row + line * 4;
                if (out_row < rows_left && col < cols_left) {
                    float *at = out + out_row * row_stride + col * col_stride;
                    const float value = staging[line * RESULT_PITCH + (col ^ 1)];
                    *at = beta == 0.0f ? alpha * value : fmaf(alpha, value, beta * *at);
                }
            }
        }
    }
};
