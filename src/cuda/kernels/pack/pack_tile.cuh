/* pack_tile.cuh: a pack tile: which part of an operand it is, how its rows are scaled, and how it is copied to shared
 * memory.
 *
 * A pack tile is PACK_ROWS rows x SPLIT_K of an operand, half a block of a panel. In shared memory it lies as it does
 * in the matrix: 64 lines of 64 floats along whichever of k and rows is contiguous.
 */
#ifndef TESSERA_CUDA_PACK_TILE_CUH
#define TESSERA_CUDA_PACK_TILE_CUH

#include <cuda_fp16.h>

#include "cuda/kernels/args.h"
#include "cuda/kernels/split/split.cuh"

/* ---- Pack tiles -------------------------------------------------------------------------------------------------- */

constexpr int PACK_THREADS = 128, PACK_ROWS = 64, SAMPLE_ROWS = 8;
constexpr int QUAD = 4; /* neighbours along k that a thread reads, splits and writes together */
constexpr int QUADS_PER_ROW = SPLIT_K / QUAD;
constexpr int QUAD_ROW_STEP = PACK_THREADS / QUADS_PER_ROW; /* rows between a thread's quads */
constexpr int LINE = 64, VECTORS = LINE / 4;                /* floats, and vectors of four, of a line */

static_assert(PANEL_ROWS % PACK_ROWS == 0 && PANEL_ROWS % SAMPLE_ROWS == 0, "a pack tile belongs to one panel");
static_assert(PACK_ROWS == LINE && SPLIT_K == LINE, "a pack tile is 64 lines of 64, whichever way they run");
static_assert(QUAD_ROW_STEP % 8 == 0, "the rows of a thread are swizzled alike");
static_assert(SPLIT_K * 2 == SPLIT_ROW_BYTES, "a row of a component is SPLIT_K fp16 values");

/* Whether rows are neighbours in memory; then lines run across rows, else along k. */
__device__ inline bool runs_across(const pack_args &o) { return o.row_stride == 1; }

/* Which one: some rows of one product and, where the kernel counts them, a block of k. again: in the second pass. */
struct pack_tile {
    int operand, batch, row0, kb;
    bool again;
};

__device__ inline int tiles_in(const pack_args &o, int tile_rows, bool with_k_blocks) {
    return o.batch * ceil_div(o.rows, tile_rows) * (with_k_blocks ? o.k_blocks : 1);
}

/* Number `index` of both operands' tiles, operand 0's first, in the order of memory. False past the last. */
__device__ inline bool tile_at(const pack_pair_args &pair, int index, int tile_rows, bool with_k_blocks, pack_tile *t) {
    const int in_first = tiles_in(pair.operand[0], tile_rows, with_k_blocks);
    t->operand = index >= in_first;
    if (t->operand) index -= in_first;
    const pack_args &o = pair.operand[t->operand];
    if (index >= tiles_in(o, tile_rows, with_k_blocks)) return false;
    const int down = ceil_div(o.rows, tile_rows), along = with_k_blocks ? o.k_blocks : 1;
    const int inner = runs_across(o) ? down : along;
    t->batch = index / (down * along);
    const int within = index - t->batch * down * along, quotient = within / inner,
              remainder = within - quotient * inner;
    t->row0 = (runs_across(o) ? remainder : quotient) * tile_rows;
    t->kb = runs_across(o) ? quotient : remainder;
    t->again = false;
    return true;
}

__device__ inline int64_t panel_of(const pack_args &o, const pack_tile &t) {
    return t.batch * o.marks_batch_stride + t.row0 / PANEL_ROWS;
}

/* ---- Scaling ----------------------------------------------------------------------------------------------------- */

/* Of each row SAMPLES elements are looked at first: runs as long as what memory delivers at once, spread over k. */
constexpr int SAMPLES = 128, SAMPLE_RUN = 8, SAMPLE_RUNS = SAMPLES / SAMPLE_RUN;
constexpr int SAMPLE_EXPONENT = 12;  /* the sample's largest lands in [2^12, 2^13): the row may be 8 times larger */
constexpr int LARGEST_EXPONENT = 14; /* the row's largest lands in [2^14, 2^15), below fp16's 65504 */
constexpr float HALF_LEAST_NORMAL = 1.0f / (1 << 14), HALF_OVERFLOW = 65520; /* from there on fp16 rounds to infinity */

__device__ inline int exponent_for(float largest, int target) {
    if (largest == 0) return 0;
    int e = target - (int)(__float_as_uint(largest) >> 23 & 0xff) + 127;
    return max(-SPLIT_EXPONENT_LIMIT, min(SPLIT_EXPONENT_LIMIT, e));
}

/* Elements from one run to the next. */
__device__ inline int sample_step(int k) { return ceil_div(ceil_div(k, SAMPLE_RUN), SAMPLE_RUNS) * SAMPLE_RUN; }

/* The exponent of a row whose sample's largest is this. */
__device__ inline int sampled_exponent(float largest) {
    return largest == 0 ? (int)ALL_ZERO : exponent_for(largest, SAMPLE_EXPONENT);
}

/* The exponent of a row in the second pass; only rows that overflowed get a new one. From L2: other blocks wrote it. */
__device__ inline int second_exponent(const pack_args &o, int64_t row) {
    const float overflow = __ldcg(&o.row_overflows[row]);
    return overflow > 0 ? exponent_for(overflow, LARGEST_EXPONENT) : __ldcg(&o.exponents[row]);
}

/* Whether x overflows fp16, or is not zero in a row whose sample was. */
__device__ inline bool overflows(float x, int e) {
    return !(fabsf(x * power_of_two(e)) < HALF_OVERFLOW) || (e == ALL_ZERO && x != 0);
}

/* A row's factors, and the smallest scaled element that is not tiny. `least` is infinite in a row whose sample was all
 * zero, so every nonzero element there counts as not normal. */
struct row_scale {
    float up, down, lo_up, least;
    __device__ explicit row_scale(int e)
        : up(power_of_two(e)), down(power_of_two(-e)), lo_up(power_of_two(e + SPLIT_LO_SHIFT)),
          least(e == ALL_ZERO ? INFINITY : HALF_LEAST_NORMAL) {}
    __device__ bool is_normal(float x) const {
        return (fabsf(x * up) >= least && fabsf(x * up) < HALF_OVERFLOW) || x == 0;
    }
};

/* Splits two neighbours of a row; false if one of them is not normal. */
template <int COMPONENTS>
__device__ inline bool split_pair(float x0, float x1, const row_scale &scale, __half2 *hi, __half2 *lo) {
    *hi = __floats2half2_rn(x0 * scale.up, x1 * scale.up);
    if (COMPONENTS == 2) {
        const float2 h = __half22float2(*hi);
        *lo = __floats2half2_rn(fmaf(-h.x, scale.down, x0) * scale.lo_up, fmaf(-h.y, scale.down, x1) * scale.lo_up);
    }
    return scale.is_normal(x0) & scale.is_normal(x1);
}

/* What elements that are not all normal mean for their row. */
struct element_check {
    static constexpr float INFINITELY_DEEP = 0x1p-142f; /* HALF_LEAST_NORMAL / 2^128: as if it did not fit */
    int tiny = 0, overflow = 0; /* how many are tiny; the bits of the largest that overflows: Inf and NaN come last */
    float least = HALF_LEAST_NORMAL; /* of the tiny ones, scaled */
    bool fit = true, may_fit = true; /* may_fit: with the exponents of the second pass, which are smaller */

    __device__ void add(float x, int e) {
        const float scaled = fabsf(x * power_of_two(e));
        const bool too_large = overflows(x, e), carried = scaled > INFINITELY_DEEP || x == 0;
        if (too_large) overflow = max(overflow, __float_as_int(fabsf(x)));
        fit &= !too_large && carried;
        may_fit &= too_large ? fabsf(x) < INFINITY : carried;
        if (x != 0 && carried && !too_large && scaled < HALF_LEAST_NORMAL) tiny++, least = fminf(least, scaled);
    }
};

/* Neither number may be negative: as integers such floats have the same order. Returns what the first was. */
__device__ inline float atomic_max_nonnegative(float *number, float other) {
    return __int_as_float(atomicMax((int *)number, __float_as_int(other)));
}

/* ---- Copying a tile to shared memory ----------------------------------------------------------------------------- */

/* A tile in shared memory. A line's vectors of four floats are swizzled, vector v of line i at v ^ (i/4 % 8): then
 * reading along a line finds its floats in different banks, and reading two floats of each of sixteen lines, four
 * apart, finds them in sixteen banks at least. The pitch has room for a line that is not aligned. */
struct __align__(16) pack_stage {
    float lines[LINE][LINE + 4];
    int32_t exponents[PACK_ROWS];

    __device__ static int place_of(int line, int vector) {
        return vector < VECTORS ? (vector ^ line / 4 % 8) * 4 : vector * 4;
    }
    __device__ auto address(int line, int i) { return shared_address(&lines[line][place_of(line, i / 4) + i % 4]); }
};

/* A tile in memory: `lines` lines of `length` floats. Contiguous lines are copied in aligned vectors of four floats, so
 * a line begins `shift` floats into the first vector. What is before it there belongs to the same allocation and is
 * ignored. */
struct tile_view {
    const float *first;
    int64_t line_stride, step;
    int lines, length;

    __device__ tile_view(const pack_args &o, const pack_tile &t) {
        first = o.data + t.batch * o.batch_stride + t.row0 * o.row_stride + (int64_t)t.kb * SPLIT_K * o.k_stride;
        const int rows = min(PACK_ROWS, o.rows - t.row0), terms = min(SPLIT_K, o.k - t.kb * SPLIT_K);
        line_stride = runs_across(o) ? o.k_stride : o.row_stride;
        step = runs_across(o) ? 1 : o.k_stride;
        lines = runs_across(o) ? terms : rows;
        length = runs_across(o) ? rows : terms;
    }

    __device__ bool aligned() const { return step != 1 || (line_stride % 4 == 0 && (uintptr_t)first % 16 == 0); }
    __device__ int shift(int line) const { /* 0 wherever aligned() */
        return step == 1 ? (int)(((uintptr_t)first / 4 + (unsigned)line * (unsigned)line_stride) % 4) : 0;
    }

    __device__ void fetch_vector(int line, int vector, pack_stage &to, uint64_t policy) const {
        const int begin = vector * 4 - shift(line); /* of this vector, within the line */
        const int floats = line < lines ? max(0, min(4, length - begin)) : 0;
        const float *from = first + (floats > 0 ? line * line_stride + begin : -shift(0)); /* aligned, also for none */
        cp_async_part(to.address(line, vector * 4), from, floats * 4, policy);
    }
};

/* Starts copying a tile's elements; zeros where it reaches past the matrix. */
__device__ inline void fetch_elements(const pack_args &o, const pack_tile &t, pack_stage &to, uint64_t policy) {
    const tile_view view(o, t);
    if (view.step == 1 && view.aligned() && view.lines == LINE && view.length == LINE) { /* nearly all tiles */
        constexpr int LINES_AT_ONCE = PACK_THREADS / VECTORS;
        const int line = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
        const float *from_line = view.first + line * view.line_stride + vector * 4;
#pragma unroll
        for (int i = 0; i < LINE; i += LINES_AT_ONCE, from_line += LINES_AT_ONCE * view.line_stride)
            cp_async_part(to.address(i + line, vector * 4), from_line, 16, policy);
    } else if (view.step == 1) {
#pragma unroll
        for (int i = 0; i < LINE * VECTORS / PACK_THREADS; i++) {
            const int index = i * PACK_THREADS + threadIdx.x;
            view.fetch_vector(index / VECTORS, index % VECTORS, to, policy);
        }
        if (!view.aligned() && threadIdx.x < LINE) view.fetch_vector(threadIdx.x, VECTORS, to, policy);
    } else {
        const int i = threadIdx.x % LINE;
#pragma unroll 8
        for (int line = threadIdx.x / LINE; line < LINE; line += PACK_THREADS / LINE) {
            const bool there = i < view.length && line < view.lines;
            cp_async_or_zero<4>(to.address(line, i),
                                there ? view.first + line * view.line_stride + i * view.step : o.data, there);
        }
    }
}

/* Starts copying its rows' exponents; SECOND: computes those of the second pass, and keeps them. */
template <bool SECOND> __device__ void fetch_exponents(const pack_args &o, const pack_tile &t, pack_stage &to) {
    if (threadIdx.x >= PACK_ROWS) return;
    const bool there = t.row0 + threadIdx.x < o.rows;
    const int64_t row = t.batch * o.exponents_batch_stride + (there ? t.row0 + threadIdx.x : 0);
    if (SECOND) {
        const int e = there ? second_exponent(o, row) : 0;
        to.exponents[threadIdx.x] = e;
        if (there && t.kb == 0) o.exponents[row] = e; /* other blocks compute the same from the old one and the new */
    } else
        cp_async_or_zero<4>(shared_address(&to.exponents[threadIdx.x]), o.exponents + row, there);
}

#endif
