/* ieee_warp.cu: C = alpha*A*B + beta*S in one launch, for batches of small matrices and products of short k: tiles of C
 * so small that a warp computes one by itself.
 *
 * Like ieee_mma_sm90.cu it multiplies on Hopper's float64 tensor cores, where a product of two float32 is exact: what
 * remains is one rounding to float32 at the end. Thread blocks stay: the warps of all blocks share the tiles of all
 * items of the batch evenly. A warp copies CHUNK terms of a tile at a time to shared memory of its own by cp.async,
 * STAGES - 1 chunks ahead of what it multiplies, and waits for no other warp. Copies pass through the L1 cache: where
 * all warps read the same few lines, L2 would be asked for them too often.
 *
 * Instructions are what limits it. So operands are copied sixteen bytes at a time, aligned or not: a row in shared
 * memory holds neighbours of global memory, from the aligned sixteen bytes on that contain the first of them; the place
 * of that first element within its sixteen bytes is the row's shift. A "line" is an index of m for A and of n for B:
 *
 *     terms of k are neighbours:    [lines][CHUNK + 4], rows are lines
 *     lines are neighbours:         [CHUNK][lines + 8], rows are terms
 *
 * Lane 4g + t has terms t, t + 4, .. of lines g, g + 8, .. (mma.cuh). Rows that are a multiple of four apart have the
 * same shift, so that a lane has one for all its elements of an operand. Loads meet no bank conflict but for shifts.
 * Sums are stored from registers if an SM has few tiles, else by way of shared memory. Where C ends within a tile,
 * multiplications of 16 x 8 that would compute nothing of it are left out.
 *
 * Every element is one chain of sums in the order of k, whatever the tile and its place: the kernels are batch
 * invariant.
 */
#include "cuda/kernels/args.h"
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/ptx.cuh"

enum { WARPS = 4, CHUNK = 24, K_PITCH = CHUNK + 4 };

/* One operand: lines, terms and items of the batch, from its first element on. */
struct warp_operand {
    const float *data;
    int64_t line_stride, k_stride, batch_stride;
    bool along_k, by_vectors; /* rows of shared memory are lines, else terms; one of the strides is 1 */

    __device__ warp_operand(const matrix_in &x, int64_t line_step, int64_t k_step)
        : data(x.data), line_stride(line_step), k_stride(k_step), batch_stride(x.batch_stride), along_k(line_step != 1),
          by_vectors(line_step == 1 || k_step == 1) {}

    __device__ __forceinline__ int64_t row_stride() const { return along_k ? line_stride : k_stride; }

    /* The shift of the row that many rows behind the first one of a tile. */
    __device__ __forceinline__ int shift(int item, int line, int row) const {
        const unsigned first = (unsigned)((uintptr_t)data / 4) + item * (unsigned)batch_stride +
                               line * (unsigned)line_stride;
        return by_vectors ? (first + row * (unsigned)row_stride()) & 3 : 0;
    }
};

/* The tiles of a warp, one after the other: equal steps through the batch, in items, tile rows and tile columns. */
struct warp_cursor {
    unsigned index; /* among all tiles of the batch */
    int item, row, col;

    __device__ __forceinline__ warp_cursor(const ieee_args &args, unsigned tile) : index(tile) {
        const unsigned tiles = args.full_tiles, across = args.tiles_n, of_item = tile % tiles;
        item = (int)(tile / tiles);
        row = (int)(of_item / across);
        col = (int)(of_item % across);
    }
    __device__ __forceinline__ void next(const ieee_args &args, const warp_cursor &step) {
        index += step.index;
        item += step.item;
        row += step.row;
        col += step.col;
        if (col >= args.tiles_n) col -= args.tiles_n, ++row;
        if (row >= args.tiles_m) row -= args.tiles_m, ++item;
    }
};

/* Chunks of LINES lines of an operand on their way to shared memory. Eight lanes share a row, four rows are copied at a
 * time. */
template <int LINES> struct warp_source {
    const warp_operand &x;
    const float *first; /* of the next chunk */
    const char *from;   /* this lane's sixteen bytes of it */
    int lines, shift;

    __device__ __forceinline__ warp_source(const warp_operand &of) : x(of) {}

    __device__ __forceinline__ void begin(int item, int line, int count, int lane) {
        first = x.data + item * x.batch_stride + line * x.line_stride;
        const char *row = (const char *)(first + lane / 8 * x.row_stride());
        lines = min(count - line, LINES);
        shift = (int)(uintptr_t)row & 15;
        from = row - shift + lane % 8 * 16;
    }
    /* Next is the same tile's next chunk. With zeros to the end of eight terms. */
    __device__ __forceinline__ void copy(uint32_t to, int terms, int lane) {
        const int vector = lane % 8 * 16, row = lane / 8, filled = min((terms + 7) & ~7, CHUNK);
        if (!x.by_vectors) {
#pragma unroll 1
            for (int line = row; line < lines; line += 4)
#pragma unroll 1
                for (int i = lane % 8; i < filled; i += 8)
                    cp_async_or_zero<4>(to + (line * K_PITCH + i) * 4, first + line * x.line_stride + i * x.k_stride,
                                        i < terms);
            first += CHUNK * x.k_stride;
            return;
        }
        const char *next = from;
        const int64_t step = x.row_stride() * 16; /* bytes from a lane's row to its next */
        if (x.along_k) {
            to += row * (K_PITCH * 4) + vector;
            if (terms >= K_PITCH && lines == LINES) {
#pragma unroll
                for (int i = 0; i < LINES; i += 4, next += step)
                    cp_async_if<16, true>(to + i * (K_PITCH * 4), next, vector < K_PITCH * 4);
            } else {
                const int bytes = min(max(terms * 4 + shift - vector, 0), 16);
                const int rows = vector < K_PITCH * 4 ? lines - row : 0;
#pragma unroll
                for (int i = 0; i < LINES; i += 8, next += step) {
                    if (i && i >= lines) break;
                    if (i < rows) cp_async_cached(to + i * (K_PITCH * 4), next, bytes);
                    next += step;
                    if (i + 4 < rows) cp_async_cached(to + (i + 4) * (K_PITCH * 4), next, bytes);
                }
            }
            from += CHUNK * 4;
        } else {
            constexpr int PITCH = LINES + 8, VECTORS = (PITCH + 31) / 32;
            to += row * (PITCH * 4) + vector;
#pragma unroll
            for (int j = 0; j < VECTORS; j++) {
                if (j && lines * 4 + 12 <= j * 128) break; /* no lane has any */
                const int bytes = min(max(lines * 4 + shift - vector - j * 128, 0), 16);
                next = from + j * 128;
                if (terms >= CHUNK) {
#pragma unroll
                    for (int i = 0; i < CHUNK; i += 4, next += step)
                        if (bytes) cp_async_cached(to + i * (PITCH * 4) + j * 128, next, bytes);
                } else
#pragma unroll
                    for (int i = 0; i < CHUNK; i += 8, next += step) {
                        if (i >= terms) break;
                        if (bytes) cp_async_cached(to + i * (PITCH * 4) + j * 128, next, row + i < terms ? bytes : 0);
                        next += step;
                        if (bytes)
                            cp_async_cached(to + (i + 4) * (PITCH * 4) + j * 128, next,
                                            row + i + 4 < terms ? bytes : 0);
                    }
            }
            from += CHUNK * 4 * x.k_stride;
        }
    }
};

template <int TILE_M, int TILE_N, int STAGES> struct warp_tile {
    static constexpr int M = TILE_M, N = TILE_N, THREADS = 32 * WARPS;
    static constexpr int ROWS = TILE_M / 16, COLS = TILE_N / 8; /* multiplications for a tile, over 8 terms */
    template <int LINES>
    static constexpr int OPERAND = LINES *K_PITCH > CHUNK *(LINES + 8) ? LINES *K_PITCH : CHUNK *(LINES + 8);
    static constexpr int STAGE = OPERAND<TILE_M> + OPERAND<TILE_N>; /* floats */
    static constexpr int SHARED_BYTES = WARPS * STAGES * STAGE * 4;
    static_assert(TILE_M * (TILE_N + 8) <= STAGE, "results that are not stored from registers take a stage's place");
    using sums = double[ROWS][COLS][4];

    /* Adds the products of a chunk's terms; rows and cols: to the end of the matrix. */
    template <bool A_ALONG_K, bool B_ALONG_K>
    static __device__ __forceinline__ void multiply(sums &sum, const float *a_from, const float *b_from, int terms,
                                                    int rows, int cols, int lane) {
        constexpr int A_LINE = A_ALONG_K ? K_PITCH : 1, A_TERM = A_ALONG_K ? 1 : TILE_M + 8;
        constexpr int B_LINE = B_ALONG_K ? K_PITCH : 1, B_TERM = B_ALONG_K ? 1 : TILE_N + 8;
        a_from += lane / 4 * A_LINE + lane % 4 * A_TERM;
        b_from += lane / 4 * B_LINE + lane % 4 * B_TERM;
#pragma unroll
        for (int step = 0; step < CHUNK; step += 8) {
            if (step && terms <= step) break;
            double a[2 * ROWS][2], b[COLS][2];
#pragma unroll
            for (int i = 0; i < 2 * ROWS; i++)
#pragma unroll
                for (int half = 0; half < 2; half++) a[i][half] = a_from[i * 8 * A_LINE + (step + half * 4) * A_TERM];
#pragma unroll
            for (int i = 0; i < COLS; i++)
#pragma unroll
                for (int half = 0; half < 2; half++) b[i][half] = b_from[i * 8 * B_LINE + (step + half * 4) * B_TERM];
#pragma unroll
            for (int row = 0; row < ROWS; row++)
#pragma unroll
                for (int col = 0; col < COLS; col++)
                    mma_16x8x8_if(sum[row][col], a[2 * row], a[2 * row + 1], b[col], row * 16 < rows && col * 8 < cols);
        }
    }

    /* From registers: lane 4g + t has rows g, g + 8, .. of columns 2t, 2t + 1, 2t + 8, ..; `out` is its first element,
     * rows and cols are from there to the end of C. Few instructions, but half a sector at a time. */
    static __device__ __forceinline__ void store_rows(const sums &sum, float alpha, float *out, int64_t row_stride,
                                                      int rows, int cols) {
#pragma unroll
        for (int i = 0; i < 2 * ROWS; i++, out += 8 * row_stride)
#pragma unroll
            for (int j = 0; j < 2 * COLS; j++)
                if (i * 8 < rows && j / 2 * 8 + j % 2 < cols)
                    out[j / 2 * 8 + j % 2] = alpha * (float)sum[i / 2][j / 2][i % 2 * 2 + j % 2];
    }
    /* The same where rows of C are neighbours: whole sectors. */
    static __device__ __forceinline__ void store_columns(const sums &sum, float alpha, float *out, int64_t col_stride,
                                                         int rows, int cols) {
#pragma unroll
        for (int j = 0; j < 2 * COLS; j++) {
            float *col = out + (j / 2 * 8 + j % 2) * col_stride;
#pragma unroll
            for (int i = 0; i < 2 * ROWS; i++)
                if (i * 8 < rows && j / 2 * 8 + j % 2 < cols)
                    col[i * 8] = alpha * (float)sum[i / 2][j / 2][i % 2 * 2 + j % 2];
        }
    }

    static constexpr int PITCH = TILE_N + 8; /* of results in shared memory */

    /* From shared memory to contiguous rows, neighbouring lanes along a row. A lane loads several elements before it
     * stores any. */
    template <class ELEMENT>
    static __device__ __forceinline__ void store_staged(const float *staging, float *tile, int64_t row_stride, int rows,
                                                        int cols, int lane) {
        constexpr int WIDTH = sizeof(ELEMENT) / 4, INNER = TILE_N / WIDTH, ALONG = INNER < 32 ? INNER : 32;
        constexpr int STEP = 32 / ALONG, PASSES = TILE_M / STEP, EACH = PASSES < 8 ? PASSES : 8;
        const int first = lane / ALONG;
#pragma unroll
        for (int part = 0; part < INNER; part += ALONG) {
            const int col = (part + lane % ALONG) * WIDTH;
            const ELEMENT *from = (const ELEMENT *)(staging + first * PITCH + col);
            ELEMENT *to = (ELEMENT *)(tile + first * row_stride + col);
            const int64_t step = STEP * row_stride / WIDTH;
            int left = col < cols ? rows - first : 0;
#pragma unroll 1
            for (int pass = 0; pass < PASSES && pass * STEP < rows; pass += EACH, left -= EACH * STEP) {
                ELEMENT value[EACH];
#pragma unroll
                for (int i = 0; i < EACH; i++) value[i] = from[(pass + i) * (STEP * PITCH / WIDTH)];
#pragma unroll
                for (int i = 0; i < EACH; i++, to += step)
                    if (i * STEP < left) *to = value[i];
            }
        }
    }

    /* few: an SM has so few tiles that instructions count more than sectors. */
    static __device__ __forceinline__ void store(const ieee_args &args, const sums &sum, const warp_cursor &at,
                                                 float *staging, bool few, int lane) {
        const matrix_out &c = args.c;
        const int group = lane / 4, pair = lane % 4 * 2, row0 = at.row * TILE_M, col0 = at.col * TILE_N;
        const int rows = args.m - row0, cols = args.n - col0; /* to the end of C */
        float *tile = c.data + at.item * c.batch_stride + row0 * c.row_stride + col0 * c.col_stride;
        float *out = tile + group * c.row_stride + pair * c.col_stride;
        if (args.beta == 0 && c.col_stride == 1 && few)
            store_rows(sum, args.alpha, out, c.row_stride, rows - group, cols - pair);
        else if (args.beta == 0 && c.row_stride == 1)
            store_columns(sum, args.alpha, out, c.col_stride, rows - group, cols - pair);
        else {
            const float scale = args.beta == 0 ? args.alpha : 1; /* with beta, alpha comes later */
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2 * ROWS; i++)
#pragma unroll
                for (int j = 0; j < COLS; j++)
                    *(float2 *)(staging + (i * 8 + group) * PITCH + j * 8 + pair) = make_float2(
                        scale * (float)sum[i / 2][j][i % 2 * 2], scale * (float)sum[i / 2][j][i % 2 * 2 + 1]);
            __syncwarp();
            if (args.beta == 0 && c.col_stride == 1) {
                const unsigned odd = (unsigned)((uintptr_t)c.data / 4) | (unsigned)c.row_stride |
                                     (unsigned)c.batch_stride | (unsigned)args.n;
                if (odd & 1)
                    store_staged<float>(staging, tile, c.row_stride, rows, cols, lane);
                else if (odd & 2)
                    store_staged<float2>(staging, tile, c.row_stride, rows, cols, lane);
                else
                    store_staged<float4>(staging, tile, c.row_stride, rows, cols, lane);
                return;
            }
            const matrix_in &s = args.addend;
            const float *addend = s.data + at.item * s.batch_stride + row0 * s.row_stride + col0 * s.col_stride;
#pragma unroll 1
            for (int i = lane; i < TILE_M * TILE_N; i += 32) {
                const int row = i / TILE_N, col = i % TILE_N;
                if (row >= rows || col >= cols) continue;
                float value = staging[row * PITCH + col];
                if (args.beta != 0)
                    value = fmaf(args.alpha, value, args.beta * addend[row * s.row_stride + col * s.col_stride]);
                tile[row * c.row_stride + col * c.col_stride] = value;
            }
        }
    }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        const int warp = warp_number(), lane = (int)threadIdx.x % 32;
        /* Neighbouring tiles go to warps of a block, so that what they share is read at the same time; but if there is
         * only one for each warp, to different blocks. */
        const unsigned tiles = (unsigned)args.full_tiles * args.batch, warps = gridDim.x * WARPS;
        const bool several = tiles > warps;
        warp_cursor at(args, several ? blockIdx.x * WARPS + warp : warp * gridDim.x + blockIdx.x);
        if (at.index >= tiles) return;
        warp_cursor step = at;
        step.index = tiles; /* past the end */
        if (several) step = warp_cursor(args, warps);
        float *stages = (float *)dynamic_shared<16>() + warp * (STAGES * STAGE);
        const uint32_t memory = shared_address(stages);
        const warp_operand a(args.a, args.a.row_stride, args.a.col_stride);
        const warp_operand b(args.b, args.b.col_stride, args.b.row_stride);
        warp_source<TILE_M> from_a(a);
        warp_source<TILE_N> from_b(b);
        warp_cursor coming = at;
        int coming_terms = 0, free = 0;
        const auto fetch = [&](bool first) {
            if (coming_terms <= 0 && coming.index < tiles) {
                from_a.begin(coming.item, coming.row * TILE_M, args.m, lane);
                from_b.begin(coming.item, coming.col * TILE_N, args.n, lane);
                coming_terms = args.k;
                coming.next(args, step);
                if (first) { /* only now: where to copy from was computed while the kernel before ended */
                    wait_for_previous_kernel(from_a.from, from_b.from);
                    allow_next_kernel();
                }
            }
            if (coming_terms > 0) {
                const uint32_t to = memory + free * (STAGE * 4);
                from_a.copy(to, coming_terms, lane);
                from_b.copy(to + OPERAND<TILE_M> * 4, coming_terms, lane);
                coming_terms -= CHUNK;
                free = free == STAGES - 1 ? 0 : free + 1;
            }
            cp_async_commit();
        };
        sums sum = {};
        int terms = 0, stage = 0, shift_a = 0, shift_b = 0;
#pragma unroll 1
        for (int ahead = STAGES - 1;;) {
            if (!ahead) {
                cp_async_wait<STAGES - 2>();
                __syncwarp();
            }
            fetch(ahead == STAGES - 1);
            if (ahead) {
                --ahead;
                continue;
            }
            if (terms <= 0) {
                terms = args.k;
                shift_a = a.shift(at.item, at.row * TILE_M, a.along_k ? lane / 4 : lane % 4);
                shift_b = b.shift(at.item, at.col * TILE_N, b.along_k ? lane / 4 : lane % 4);
#pragma unroll
                for (int i = 0; i < ROWS * COLS * 4; i++) sum[i / (COLS * 4)][i / 4 % COLS][i % 4] = 0;
            }
            float *at_hand = stages + stage * STAGE;
            stage = stage == STAGES - 1 ? 0 : stage + 1;
            const int rows = args.m - at.row * TILE_M, cols = args.n - at.col * TILE_N;
            const float *first_a = at_hand + shift_a, *first_b = at_hand + OPERAND<TILE_M> + shift_b;
            if (a.along_k)
                b.along_k ? multiply<true, true>(sum, first_a, first_b, terms, rows, cols, lane)
                          : multiply<true, false>(sum, first_a, first_b, terms, rows, cols, lane);
            else
                b.along_k ? multiply<false, true>(sum, first_a, first_b, terms, rows, cols, lane)
                          : multiply<false, false>(sum, first_a, first_b, terms, rows, cols, lane);
            terms -= CHUNK;
            if (terms > 0) continue;
            store(args, sum, at, at_hand, tiles <= 2 * gridDim.x, lane);
            at.next(args, step);
            if (at.index >= tiles) break;
        }
    }
};

#define WARP_KERNEL(name, id, BLOCKS, ...)                                                                 \
    using name##_tile = warp_tile<__VA_ARGS__>;                                                            \
    ASSERT_LISTED_AS(id, name##_tile::M, name##_tile::N, name##_tile::THREADS, name##_tile::SHARED_BYTES); \
    extern "C" __global__ void __launch_bounds__(name##_tile::THREADS, BLOCKS)                             \
        name(const __grid_constant__ ieee_args args) {                                                     \
        name##_tile::run(args);                                                                            \
    }

WARP_KERNEL(ieee_warp_16x16, IEEE_WARP_16X16, 5, 16, 16, 2)
WARP_KERNEL(ieee_warp_16x32, IEEE_WARP_16X32, 4, 16, 32, 2)
WARP_KERNEL(ieee_warp_32x32, IEEE_WARP_32X32, 3, 32, 32, 2)
WARP_KERNEL(ieee_warp_32x64, IEEE_WARP_32X64, 2, 32, 64, 2)
