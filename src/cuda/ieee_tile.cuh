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

/* Shared memory is addressed by its 32-bit byte address, as these instructions take it. */
static __device__ __forceinline__ void copy_16_bytes(uint32_t shared, const char *global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
#else
    const float4 v = *(const float4 *)global;
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
#endif
}

static __device__ __forceinline__ void copy_4_bytes(uint32_t shared, const char *global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
#else
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

/* How an operand is read. The branch on it is the same for all threads and stays outside the multiplication. */
enum reading {
    READ_VECTORS, /* lines are contiguous and 16-byte aligned: four lines at a time */
    READ_LINES,   /* lines are contiguous: neighbouring threads take neighbouring lines */
    READ_TERMS,   /* terms of k are contiguous: eight neighbouring threads take eight terms of one line */
    READ_STRIDED  /* anything else */
};

/* What one thread copies of one operand's part of a tile: LINES lines of it. Offsets and strides are in bytes. */
template <int LINES, int SLAB, int PARTS, int THREADS> struct operand_tile {
    static constexpr int PITCH = LINES + 4;
    static constexpr int LANE_TERMS = 8; /* READ_TERMS: 8 threads along k, the others along lines */

    const char *data; /* line 0, term 0 of the tile */
    int64_t line_stride, k_stride;
    int lines_left; /* lines of the matrix from the tile's first on: beyond them nothing is read */
    reading how;

    const char *next;          /* what this thread copies next */
    int64_t pass_stride;       /* from one pass of the block's threads over the slab to the next */
    int64_t slab_stride;       /* what remains to the next slab after the last pass */
    int first_line;            /* this thread's, in the first pass */
    uint32_t shared_offset;    /* where its first element goes in a slab */
    uint32_t part_stride;      /* from one part of a slab to the next in shared memory */

    __device__ __forceinline__ void begin(const float *first, int64_t line_step, int64_t k_step, int lines) {
        const int thread = threadIdx.x;
        data = (const char *)first;
        line_stride = line_step * 4;
        k_stride = k_step * 4;
        lines_left = lines;
        const bool vectors = line_step == 1 && k_step % 4 == 0 && lines % 4 == 0 && (uintptr_t)first % 16 == 0;
        /* Opaque to the compiler, which would otherwise work this out again in every step. */
        int kind = vectors ? READ_VECTORS : line_step == 1 ? READ_LINES : k_step == 1 ? READ_TERMS : READ_STRIDED;
        asm("" : "+r"(kind));
        how = (reading)kind;

        int line, term;
        slab_stride = 0;
        part_stride = SLAB / PARTS * PITCH * 4;
        if (how == READ_VECTORS) {
            line = thread % (LINES / 4) * 4;
            term = thread / (LINES / 4);
            pass_stride = k_stride * (THREADS * 4 / LINES);
        } else if (how == READ_LINES) {
            line = thread % 32;
            term = thread / 32;
            pass_stride = k_stride * (THREADS / 32);
        } else {
            line = thread / LANE_TERMS;
            term = thread % LANE_TERMS;
            pass_stride = line_stride * (THREADS / LANE_TERMS);
            slab_stride = SLAB * k_stride - LINES * line_stride;
            part_stride = LINES / PARTS * 4;
        }
        first_line = line;
        shared_offset = (term * PITCH + line) * 4;
        next = data + line * line_stride + term * k_stride;
    }

    /* Copies part `part` of PARTS of a whole slab whose memory starts at `slab`; parts and slabs are asked for in order.
     * Lines beyond the matrix are skipped: what stands in their place reaches only results that are never stored.
     * Shared-memory banks: neighbouring lines lie in neighbouring banks; with READ_TERMS a warp writes 8 terms of 4
     * lines, and the pitch of LINES + 4 floats puts these into 32 different banks. */
    __device__ __forceinline__ void copy_part(uint32_t slab, int k0, int part) {
        const uint32_t to = slab + shared_offset + part * part_stride;
        if (how == READ_VECTORS) {
            constexpr int TERMS = THREADS * 4 / LINES, PASSES = SLAB / TERMS / PARTS;
            static_assert(SLAB % (TERMS * PARTS) == 0, "every part has whole passes");
#pragma unroll
            for (int pass = 0; pass < PASSES; ++pass, next += pass_stride)
                if (first_line < lines_left) copy_16_bytes(to + pass * TERMS * PITCH * 4, next);
        } else if (how == READ_TERMS) {
            constexpr int PASS_LINES = THREADS / LANE_TERMS, PASSES = LINES / PASS_LINES / PARTS;
            static_assert(LINES % (PASS_LINES * PARTS) == 0, "every part has whole passes");
            const int left = lines_left - first_line - part * (PASSES * PASS_LINES);
#pragma unroll
            for (int pass = 0; pass < PASSES; ++pass, next += pass_stride)
                if (pass * PASS_LINES < left) {
#pragma unroll
                    for (int term = 0; term < SLAB; term += LANE_TERMS)
                        copy_4_bytes(to + (pass * PASS_LINES + term * PITCH) * 4, next + term * 4);
                }
        } else if (how == READ_LINES) {
            constexpr int TERMS = THREADS / 32, PASSES = SLAB / TERMS / PARTS;
            static_assert(SLAB % (TERMS * PARTS) == 0, "every part has whole passes");
#pragma unroll
            for (int pass = 0; pass < PASSES; ++pass, next += pass_stride)
#pragma unroll
                for (int line = 0; line < LINES; line += 32)
                    if (first_line + line < lines_left)
                        copy_4_bytes(to + (pass * TERMS * PITCH + line) * 4, next + line * 4);
        } else if (part == 0) {
            copy_guarded(slab, k0, SLAB);
        }
    }

    __device__ __forceinline__ void finish_slab(void) { next += slab_stride; }

    /* Copies `terms` terms from k0 on of lines that exist, and sets the rest of the slab to zero: terms beyond the end
     * meet each other in both operands, and add 0*0. */
    __device__ __forceinline__ void copy_guarded(uint32_t slab, int k0, int terms) const {
        const int line = threadIdx.x % LINES;
#pragma unroll 1
        for (int term = threadIdx.x / LINES; term < SLAB; term += THREADS / LINES) {
            const uint32_t to = slab + (term * PITCH + line) * 4;
            if (line < lines_left && term < terms)
                copy_4_bytes(to, data + line * line_stride + (k0 + term) * k_stride);
            else
                set_to_zero(to);
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

template <int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int ROWS, int COLS, int SLAB, int STEP, int STAGES>
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

    /* Starts the copies of part `part` of slab `slab`, if there is such a slab. */
    static __device__ __forceinline__ void copy_part(a_tile &a, b_tile &b, uint32_t to, int slab, int part, int whole_slabs,
                                                     int terms) {
        if (slab < whole_slabs) {
            a.copy_part(to, slab * SLAB, part);
            b.copy_part(to + A_SLAB * 4, slab * SLAB, part);
        } else if (part == 0 && slab * SLAB < terms) {
            a.copy_guarded(to, slab * SLAB, terms - slab * SLAB);
            b.copy_guarded(to + A_SLAB * 4, slab * SLAB, terms - slab * SLAB);
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
            a_tile a;
            b_tile b;
            a.begin(args.a.data + batch * args.a.batch_stride + m0 * args.a.row_stride + k_begin * args.a.col_stride,
                    args.a.row_stride, args.a.col_stride, args.m - m0);
            b.begin(args.b.data + batch * args.b.batch_stride + n0 * args.b.col_stride + k_begin * args.b.row_stride,
                    args.b.col_stride, args.b.row_stride, args.n - n0);

            float sum[ROWS][COLS];
#pragma unroll
            for (int row = 0; row < ROWS; ++row)
#pragma unroll
                for (int col = 0; col < COLS; ++col) sum[row][col] = 0.0f;

            const int whole_slabs = terms / SLAB;
            const uint32_t memory = (uint32_t)__cvta_generic_to_shared(shared);
            int coming = 0, part = 0; /* the slab and part of it to be copied next */
            uint32_t to = memory;
#pragma unroll 1
            for (int k = 0; k < (STAGES - 1) * SLAB; k += STEP) {
                copy_part(a, b, to, coming, part, whole_slabs, terms);
                if (++part == PARTS) {
                    close_copy_group();
                    a.finish_slab();
                    b.finish_slab();
                    part = 0;
                    ++coming;
                    to += STAGE * 4;
                }
            }
            wait_for_copy_groups<STAGES - 2>();
            __syncthreads();

            const int a_offset = warp_m + lane_m * 4, b_offset = A_SLAB + warp_n + lane_n * 4;
            const float *a_from = shared + a_offset, *b_from = shared + b_offset;
            float a_values[2][ROWS], b_values[2][COLS];
            load_values(a_values[0], b_values[0], a_from, b_from);

            int stage = 0;
#pragma unroll 1
            for (int k = 0; k < terms; k += STEP) {
                copy_part(a, b, to, coming, part, whole_slabs, terms);
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
                            a.finish_slab();
                            b.finish_slab();
                            part = 0;
                            ++coming;
                            to = memory + stage * (STAGE * 4); /* the slab just used up makes room */
                            stage = stage + 1 == STAGES ? 0 : stage + 1;
                            a_from = shared + stage * STAGE + a_offset;
                            b_from = shared + stage * STAGE + b_offset;
                        }
                        load_values(a_values[0], b_values[0], a_from, b_from);
                    }
#pragma unroll
                    for (int row = 0; row < ROWS; ++row)
#pragma unroll
                        for (int col = 0; col < COLS; ++col)
                            sum[row][col] = fmaf(a_values[term % 2][row], b_values[term % 2][col], sum[row][col]);
                }
            }
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
                *(float4 *)(staging + lane_m * RESULT_PITCH + group * 4 * LANES_N + lane_n * 4) =
                    *(const float4 *)&sum[row][group * 4];
            __syncwarp();
            const int first_row = row / 4 * 4 * LANES_M + row % 4;
#pragma unroll 4
            for (int i = lane; i < LANES_M * WARP_N; i += 32) {
                const int line = i / WARP_N, col = i % WARP_N, out_row = first_row + line * 4;
                if (out_row < rows_left && col < cols_left) {
                    float *at = out + out_row * row_stride + col * col_stride;
                    const float value = staging[line * RESULT_PITCH + col];
                    *at = beta == 0.0f ? alpha * value : fmaf(alpha, value, beta * *at);
                }
            }
        }
    }
};
