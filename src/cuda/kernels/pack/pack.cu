/* pack.cu: float32 operands -> fp16 panels for the split kernels (layout: args.h).
 *
 * Row r of an operand is scaled by 2^e, e its exponent, and each element x*2^e is split:
 *
 *     hi = fp16(x*2^e)        lo = fp16((x*2^e - hi) * 2^11)        x*2^e = hi + lo*2^-11 + what fp16 cannot hold
 *
 * hi carries 11 bits and lo 11 more with a sign of its own: 23 bits, as long as neither leaves fp16's range. Which e
 * does that depends on the row's largest element, and looking at a whole row before splitting it would read the operand
 * twice. So:
 *
 *   pack_sample    takes e from SAMPLES elements of the row, with room above for what it has not seen
 *   pack_split     splits with that e, and notes how deep below fp16's normal numbers the elements of each panel lie, and
 *                  how many. Panels in which something does not fit above them are split again when all is done once, the
 *                  rows in question with an e from their largest element. The depths in the end, infinite for Inf and NaN,
 *                  are the panels' marks, by which tiles of C are left to ieee
 *
 * Where all fits the operand is read once.
 *
 * Tile map: a unit is UNIT_ROWS rows x SPLIT_K of an operand, half a block of a panel; operand 0's units come first,
 * then operand 1's, and blocks take them one by one. A block of 128 threads copies units to shared memory
 * asynchronously, two ahead of the one it splits, so that memory is always busy. In shared memory a unit lies as it does
 * in the matrix, lines of 64 floats along whichever of k and rows is contiguous; threads take four neighbours along k
 * each ("quads"), which is what makes 8 bytes of a tile's row. Copies are 16 bytes wide for any contiguous matrix,
 * however its lines are aligned, and 4 bytes for general strides.
 *
 * Limits: 53 KB of shared memory, 128 registers, 4 blocks per SM.
 */
#include <cuda_fp16.h>

#include "cuda/kernels/args.h"
#include "cuda/kernels/split/split.cuh"

namespace {

constexpr int THREADS = 128;
constexpr int UNIT_ROWS = 64;
constexpr int QUAD = 4; /* neighbours along k that a thread reads, splits and writes together */
constexpr int QUADS_PER_ROW = SPLIT_K / QUAD;
constexpr int ROWS_AT_ONCE = THREADS / QUADS_PER_ROW; /* a thread's quads are so many rows apart */
constexpr int QUADS_AT_ONCE = 2; /* more would overlap more, but take longer to come to the instruction cache */
constexpr int LINE = 64,
              LINE_PITCH = LINE + 4; /* a unit is 64 lines of 64 floats; a pitch of 68 has room for a shift */
constexpr int VECTORS = LINE / 4;    /* of a line; one more where it is not aligned */
constexpr int STAGES = 3;
constexpr int SAMPLES = 128, SAMPLE_ROWS = 8;
constexpr int SAMPLE_EXPONENT = 12;  /* the sample's largest lands in [2^12, 2^13): the row may be 8 times larger */
constexpr int LARGEST_EXPONENT = 14; /* the row's largest lands in [2^14, 2^15), below fp16's 65504 */
constexpr int EXPONENT_LIMIT = 62;   /* 2^(e of A + e of B) and its inverse stay normal floats */
constexpr float HALF_LEAST_NORMAL = 1.0f / (1 << 14), HALF_OVERFLOW = 65520; /* from there on fp16 rounds to infinity */

static_assert(PANEL_ROWS % UNIT_ROWS == 0 && PANEL_ROWS % SAMPLE_ROWS == 0, "a unit belongs to one panel");
static_assert(SAMPLES == THREADS, "a warp samples one run of all rows, or all runs of its rows");
static_assert(UNIT_ROWS == LINE && SPLIT_K == LINE, "a unit is 64 lines of 64, whichever way they run");
static_assert(ROWS_AT_ONCE % 8 == 0, "the rows of a thread are swizzled alike");
static_assert(SPLIT_K * 2 == SPLIT_ROW_BYTES, "a row of a tile is SPLIT_K fp16 values");

/* A place in an operand: a row group of one product and, where the kernel counts them, a block of k. */
struct place {
    int operand, batch, row0, kb;
};

__device__ int places_in(const pack_args &o, int group_rows, bool with_k_blocks) {
    return o.batch * divide_up(o.rows, group_rows) * (with_k_blocks ? o.k_blocks : 1);
}

/* The index-th place, counted through operand 0 and then 1. False past the last. */
__device__ bool place_at(const pack_pair_args &pair, int index, int group_rows, bool with_k_blocks, place *at) {
    const int in_first = places_in(pair.operand[0], group_rows, with_k_blocks);
    at->operand = index >= in_first;
    if (at->operand) index -= in_first;
    const pack_args &o = pair.operand[at->operand];
    if (index >= places_in(o, group_rows, with_k_blocks)) return false;
    const int groups = divide_up(o.rows, group_rows), per_group = with_k_blocks ? o.k_blocks : 1;
    const bool across = o.row_stride == 1; /* neighbours in time are neighbours in memory */
    const int inner = across ? groups : per_group;
    at->batch = index / (groups * per_group);
    const int within = index - at->batch * groups * per_group, quotient = within / inner,
              remainder = within - quotient * inner;
    at->row0 = (across ? remainder : quotient) * group_rows;
    at->kb = across ? quotient : remainder;
    return true;
}

__device__ int exponent_for(float largest, int target) {
    if (largest == 0) return 0;
    int e = target - (int)(__float_as_uint(largest) >> 23 & 0xff) + 127;
    return max(-EXPONENT_LIMIT, min(EXPONENT_LIMIT, e));
}

/* The largest x of a warp's lanes that are a multiple of LEAST_STEP away. */
template <int LEAST_STEP> __device__ float lanes_max(float x) {
    for (int step = 16; step >= LEAST_STEP; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Raises a number that is not negative, and returns what it was: the bits of such floats are ordered as they are. */
__device__ float raise(float *number, float to) { return __int_as_float(atomicMax((int *)number, __float_as_int(to))); }

/* Whether fp16 has no room for an element, or its row was taken for zeros. */
__device__ bool does_not_fit(float x, int e) {
    return !(fabsf(x * power_of_two(e)) < HALF_OVERFLOW) || (e == ALL_ZERO && x != 0);
}

/* An element's depth (args.h) with exponent e; where the scaling sends x to zero it is infinite. */
__device__ float depth_of(float x, int e) {
    if (x == 0) return 1;
    return does_not_fit(x, e) ? INFINITY : fmaxf(1, HALF_LEAST_NORMAL / fabsf(x * power_of_two(e)));
}

/* The factors of a row with exponent e; and the least scaled element that is not deep, which in a row taken for zeros
 * none is. */
struct row_scale {
    float up, down, lo_up, least;
    __device__ explicit row_scale(int e)
        : up(power_of_two(e)), down(power_of_two(-e)), lo_up(power_of_two(e + SPLIT_LO_SHIFT)),
          least(e == ALL_ZERO ? INFINITY : HALF_LEAST_NORMAL) {}
};

/* Splits two neighbours of a row; false where one of them is deep. */
template <int PIECES> __device__ bool split_pair(float x0, float x1, const row_scale &scale, __half2 *hi, __half2 *lo) {
    const float scaled0 = x0 * scale.up, scaled1 = x1 * scale.up;
    *hi = __floats2half2_rn(scaled0, scaled1);
    if (PIECES == 2) {
        const float2 h = __half22float2(*hi);
        *lo = __floats2half2_rn(fmaf(-h.x, scale.down, x0) * scale.lo_up, fmaf(-h.y, scale.down, x1) * scale.lo_up);
    }
    return ((fabsf(scaled0) >= scale.least && fabsf(scaled0) < HALF_OVERFLOW) || x0 == 0) &
           ((fabsf(scaled1) >= scale.least && fabsf(scaled1) < HALF_OVERFLOW) || x1 == 0);
}

/* One k of a unit, or of a part of its rows. tf32 promises a norm, not each element: what lost bits below fp16's least
 * normal number does no harm beside a larger element of the same k. 64 errors of up to 2^-25 (scaled) together stay below
 * 2^-11 of the largest element, if sqrt(64) 2^-25 coarsest <= 2^-11 largest. Where that holds in each part, it does in
 * the whole. */
struct column {
    float largest = 0, coarsest = 0; /* coarsest: the largest 2^-e among rows whose element lost bits */
    bool all_fit = true;

    __device__ bool see(float x, int e) { /* and say if it fits */
        const bool fits = !does_not_fit(x, e);
        largest = fmaxf(largest, fabsf(x));
        if (x != 0 && fabsf(x * power_of_two(e)) < HALF_LEAST_NORMAL) coarsest = fmaxf(coarsest, power_of_two(-e));
        all_fit &= fits;
        return fits;
    }
    __device__ bool carried() const { return all_fit && coarsest <= 2048 * largest; }
};

/* ---- Copying units to shared memory ------------------------------------------------------------------------------ */

/* A unit on its way. A line's vectors of four floats lie exchanged, vector v of line i at v ^ (i/4 % 8), so that reading
 * along a line finds its floats in different banks, and reading two floats of each of sixteen lines, four apart, in
 * sixteen banks at least. */
struct __align__(16) stage {
    float lines[LINE][LINE_PITCH];
    int32_t exponents[UNIT_ROWS];

    __device__ static int place_of(int line, int vector) {
        return vector < VECTORS ? (vector ^ line / 4 % 8) * 4 : vector * 4;
    }
    __device__ float *vector(int line, int v) { return &lines[line][place_of(line, v)]; }
    __device__ float4 four(int line, int v) const { return *(const float4 *)&lines[line][place_of(line, v)]; }
    __device__ float one(int line, int i) const { return lines[line][place_of(line, i / 4) + i % 4]; }
};

/* What the L2 cache is to do with the matrices, which are read once: where it has room for the panels, forget them before
 * these; 0: nothing in particular. */
__device__ uint64_t policy_for(const pack_pair_args &pair) {
    constexpr int64_t ROOM = 40 << 20; /* bytes */
    int64_t panels = 0;
    for (int i = 0; i < 2; i++) panels += pair.operand[i].batch * pair.operand[i].panels_batch_stride;
    return panels <= ROOM ? evict_first_policy() : 0;
}

/* How a unit lies in memory: `lines` lines of `length` floats, the longer side of which is contiguous if anything is. A
 * line is copied in aligned vectors of four floats, so it begins `shift` floats into the first of them: what is before
 * it there belongs to a neighbour in the same matrix or allocation and is never looked at. */
struct unit_view {
    const float *first;
    int64_t line_stride, step;
    int lines, length;

    __device__ unit_view(const pack_args &o, const place &u) {
        first = o.data + u.batch * o.batch_stride + u.row0 * o.row_stride + (int64_t)u.kb * SPLIT_K * o.k_stride;
        const int rows = min(UNIT_ROWS, o.rows - u.row0), depth = min(SPLIT_K, o.k - u.kb * SPLIT_K);
        const bool across = o.row_stride == 1; /* lines run across rows, else along k */
        line_stride = across ? o.k_stride : o.row_stride;
        step = across ? 1 : o.k_stride;
        lines = across ? depth : rows;
        length = across ? rows : depth;
    }

    __device__ bool aligned() const { return step != 1 || (line_stride % 4 == 0 && (uintptr_t)first % 16 == 0); }
    __device__ int shift(int line) const { /* 0 wherever aligned() */
        return step == 1 ? (int)(((uintptr_t)first / 4 + (unsigned)line * (unsigned)line_stride) % 4) : 0;
    }
};

__device__ void fetch_vector(const unit_view &view, int line, int vector, stage &to, uint64_t policy) {
    const int shift = view.shift(line), begin = vector * 4 - shift; /* begin: of this vector, within the line */
    const int floats = line < view.lines ? max(0, min(4, view.length - begin)) : 0;
    const float *from = view.first +
                        (floats > 0 ? line * view.line_stride + begin : -view.shift(0)); /* aligned, also for none */
    cp_async_part(shared_address(to.vector(line, vector)), from, floats * 4, policy);
}

/* What a row that did not fit is scaled by; the others stay as they were. From L2: other blocks wrote it. */
__device__ int exponent_again(const pack_args &o, int64_t row) {
    const float overflow = __ldcg(&o.row_overflows[row]);
    return overflow > 0 ? exponent_for(overflow, LARGEST_EXPONENT) : __ldcg(&o.exponents[row]);
}

/* Starts copying a unit. */
__device__ void fetch_elements(const pack_args &o, const place &u, stage &to, uint64_t policy) {
    const unit_view view(o, u);
    if (view.step == 1 && view.aligned() && view.lines == LINE && view.length == LINE) { /* as nearly all are */
        constexpr int LINES_AT_ONCE = THREADS / VECTORS;
        const int line = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
        const float *from_line = view.first + line * view.line_stride + vector * 4;
#pragma unroll
        for (int i = 0; i < LINE / LINES_AT_ONCE; i++) {
            cp_async_part(shared_address(to.vector(i * LINES_AT_ONCE + line, vector)), from_line, 16, policy);
            from_line += LINES_AT_ONCE * view.line_stride;
        }
    } else if (view.step == 1) {
#pragma unroll
        for (int i = 0; i < LINE * VECTORS / THREADS; i++) {
            const int index = i * THREADS + threadIdx.x;
            fetch_vector(view, index / VECTORS, index % VECTORS, to, policy);
        }
        if (!view.aligned() && threadIdx.x < LINE) fetch_vector(view, threadIdx.x, VECTORS, to, policy);
    } else {
        const int column = threadIdx.x % LINE;
#pragma unroll 8
        for (int line = threadIdx.x / LINE; line < LINE; line += THREADS / LINE) {
            const bool there = column < view.length && line < view.lines;
            cp_async_or_zero<4>(shared_address(to.vector(line, column / 4) + column % 4),
                                there ? view.first + line * view.line_stride + column * view.step : o.data, there);
        }
    }
}

/* Starts copying its rows' exponents; AGAIN: finds new ones, and keeps them. */
template <bool AGAIN> __device__ void fetch_exponents(const pack_args &o, const place &u, stage &to) {
    if (threadIdx.x >= UNIT_ROWS) return;
    const bool there = u.row0 + threadIdx.x < o.rows;
    const int64_t row = u.batch * o.exponents_batch_stride + (there ? u.row0 + threadIdx.x : 0);
    if (AGAIN) {
        const int e = there ? exponent_again(o, row) : 0;
        to.exponents[threadIdx.x] = e;
        if (there && u.kb == 0) o.exponents[row] = e; /* what others see, before or after, gives them the same */
    } else
        cp_async_or_zero<4>(shared_address(&to.exponents[threadIdx.x]), o.exponents + row, there);
}

/* ---- Splitting a unit -------------------------------------------------------------------------------------------- */

/* A thread's quads of a unit: this one, of rows first_row(), first_row() + ROWS_AT_ONCE and so on. */
__device__ int my_quad() { return threadIdx.x % QUADS_PER_ROW; }
__device__ int first_row() { return threadIdx.x / QUADS_PER_ROW; }

/* How deep they are, read(row, quad, x) being how they lie in shared memory; fp32, where one has turned out to be deep.
 * Counts the deep ones of each row, and notes what did not fit. */
template <typename READ> __device__ float depth_fp32(const pack_args &o, const place &u, const stage &from, READ read) {
    float depth = 1;
#pragma unroll 1
    for (int row = first_row(); row < UNIT_ROWS; row += ROWS_AT_ONCE) {
        const int e = from.exponents[row];
        const int64_t at = u.batch * o.exponents_batch_stride + u.row0 + row;
        float x[QUAD];
        int deep = 0;
        read(row, my_quad(), x);
        for (int k = 0; k < QUAD; k++) {
            const float of_x = depth_of(x[k], e);
            depth = fmaxf(depth, of_x);
            deep += of_x > 1 && of_x < INFINITY;
            if (does_not_fit(x[k], e)) raise(&o.row_overflows[at], fabsf(x[k]));
        }
        if (deep) atomicAdd(&o.tiny_counts[at], deep);
    }
    return depth;
}

/* Whether they are carried by themselves; tf32, where one has turned out to be deep. But for odd data they are. */
template <typename READ> __device__ bool carried_tf32(const stage &from, READ read) {
    column columns[QUAD];
#pragma unroll 1
    for (int row = first_row(); row < UNIT_ROWS; row += ROWS_AT_ONCE) {
        float x[QUAD];
        read(row, my_quad(), x);
#pragma unroll
        for (int k = 0; k < QUAD; k++) columns[k].see(x[k], from.exponents[row]);
    }
    bool carried = true;
    for (int k = 0; k < QUAD; k++) carried &= columns[k].carried();
    return carried;
}

/* Splits this thread's quads of a unit, and returns their depth; in tf32, where they are not carried by themselves,
 * infinity, until column_depth has looked. Without branches where they are not deep, so that the quads' loads and
 * arithmetic overlap. */
template <int PIECES, typename READ>
__device__ float split_quads(const pack_args &o, const place &u, const stage &from, READ read) {
    const int panel = u.row0 / PANEL_ROWS, skip = u.row0 % PANEL_ROWS;
    const int stored = min(PANEL_ROWS, divide_up(o.rows - panel * PANEL_ROWS, 8) * 8);
    const int quad = my_quad(), row0 = first_row();
    uint8_t *to = o.panels + u.batch * o.panels_batch_stride +
                  (int64_t)panel * o.k_blocks * PIECES * PANEL_ROWS * SPLIT_ROW_BYTES +
                  ((int64_t)u.kb * PIECES * stored + skip + row0) * SPLIT_ROW_BYTES + (quad / 2 ^ row0 % 8) * 16 +
                  quad % 2 * 8;
    const int lo_offset = stored * SPLIT_ROW_BYTES;
    bool shallow = true;
#pragma unroll QUADS_AT_ONCE
    for (int i = 0; i < UNIT_ROWS / ROWS_AT_ONCE; i++, to += ROWS_AT_ONCE * SPLIT_ROW_BYTES) {
        const int row = i * ROWS_AT_ONCE + row0;
        const row_scale scale(from.exponents[row]);
        float x[QUAD];
        __half2 hi[QUAD / 2], lo[QUAD / 2];
        read(row, quad, x);
#pragma unroll
        for (int j = 0; j < QUAD / 2; j++) shallow &= split_pair<PIECES>(x[2 * j], x[2 * j + 1], scale, &hi[j], &lo[j]);
        if (row < stored - skip) {
            *(uint2 *)to = *(uint2 *)hi;
            if (PIECES == 2) *(uint2 *)(to + lo_offset) = *(uint2 *)lo;
        }
    }
    if (shallow) return 1;
    if (PIECES == 2) return depth_fp32(o, u, from, read);
    return carried_tf32(from, read) ? 1 : INFINITY;
}

/* Splits a unit that has landed into its panel. Every thread of the block calls it and gets the depth of its part. */
template <int PIECES> __device__ float split(const pack_args &o, const place &u, const stage &from) {
    const unit_view view(o, u);
    if (o.row_stride == 1 && view.aligned())
        return split_quads<PIECES>(o, u, from, [&](int row, int quad, float(&x)[QUAD]) {
#pragma unroll
            for (int k = 0; k < QUAD; k++) x[k] = from.lines[quad * QUAD + k][(row / 4 ^ quad % 8) * 4 + row % 4];
        });
    if (o.row_stride == 1) {
        int begin[QUAD]; /* where first_row() is in the four lines that hold this thread's quads */
#pragma unroll
        for (int k = 0; k < QUAD; k++) begin[k] = view.shift(my_quad() * QUAD + k) + first_row();
        return split_quads<PIECES>(o, u, from, [&](int row, int quad, float(&x)[QUAD]) {
#pragma unroll
            for (int k = 0; k < QUAD; k++) {
                const int line = quad * QUAD + k, vector = begin[k] / 4 + (row - first_row()) / 4;
                x[k] = from.lines[line][from.place_of(line, vector) + begin[k] % 4];
            }
        });
    }
    if (view.aligned())
        return split_quads<PIECES>(o, u, from, [&](int row, int quad, float(&x)[QUAD]) {
            const float4 v = from.four(row, quad);
            x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        });
    return split_quads<PIECES>(o, u, from, [&](int row, int quad, float(&x)[QUAD]) {
        const int shift = view.shift(row);
        const int in_first = from.place_of(row, quad) + shift, in_second = from.place_of(row, quad + 1) + shift - 4;
#pragma unroll
        for (int k = 0; k < QUAD; k++) x[k] = from.lines[row][(shift + k < 4 ? in_first : in_second) + k];
    });
}

/* tf32: the depth of one k of a unit, for each thread that has one: 1 where the hi pieces carry it, else infinite. All
 * threads of a block call it, where one's quads are not carried by themselves. Notes what did not fit. */
__device__ float column_depth(const pack_args &o, const place &u, const stage &from) {
    if (threadIdx.x >= SPLIT_K) return 1;
    const unit_view view(o, u);
    const bool across = o.row_stride == 1;
    const int64_t at = u.batch * o.exponents_batch_stride + u.row0;
    column all;
#pragma unroll 1
    for (int row = 0; row < UNIT_ROWS; row++) {
        const int line = across ? threadIdx.x : row, i = across ? row : threadIdx.x, e = from.exponents[row];
        const float x = from.one(line, view.shift(line) + i);
        if (!all.see(x, e)) raise(&o.row_overflows[at + row], fabsf(x));
    }
    return all.carried() ? 1 : INFINITY;
}

/* Splits the units that source.next() names, one after the other, until it returns false; source.found(unit, depth) is
 * called by each thread that found a depth above 1. Copies run two units ahead; of the first two before the kernel in
 * front of this one has found their exponents. Two rounds that only copy come first, in the same loop: instructions that
 * are there once come to a multiprocessor once. From then on, what next() will name in the round after this one is asked
 * for, source.ask(), before a unit is split, and heard, source.hear(), when it has been. */
template <typename SOURCE>
__device__ void split_units(const pack_pair_args &pair, stage (&stages)[STAGES], SOURCE source) {
    constexpr bool AGAIN = SOURCE::AGAIN;
    const uint64_t policy = policy_for(pair);
    place now = {}, ahead = {}, further = {};
    bool has_now = false, has_ahead = false, has_further = true;
    int free = 0; /* the stage that unit round + 2 comes to */
#pragma unroll 1
    for (int round = -2; round < 0 || has_now; round++) {
        if (round >= 0) {
            if (round == 0)
                cp_async_wait<0>(); /* its exponents came with the second unit */
            else
                cp_async_wait<1>();
            __syncthreads(); /* this unit has landed for all, and all have left the one before it */
        }
        has_further = has_further && source.next(&further);
        const pack_args &of_further = pair.operand[further.operand];
        if (has_further) fetch_elements(of_further, further, stages[free], policy);
        if (round == -1) {
            wait_for_previous_kernel();
            if (!AGAIN && !has_further) allow_next_kernel();
            if (has_ahead) fetch_exponents<AGAIN>(pair.operand[ahead.operand], ahead, stages[0]);
        }
        if (has_further && round > -2) fetch_exponents<AGAIN>(of_further, further, stages[free]);
        const bool asks = has_further && round >= 0;
        if (asks) source.ask();
        cp_async_commit();
        free = (free + 1) % STAGES; /* now the stage of unit `round` */
        if (has_now) {
            const pack_args &o = pair.operand[now.operand];
            float depth = o.components == 2 ? split<2>(o, now, stages[free]) : split<1>(o, now, stages[free]);
            if (o.components == 1 && __syncthreads_or(depth > 1)) depth = column_depth(o, now, stages[free]);
            if (depth > 1) source.found(now, depth);
        }
        if (asks) source.hear();
        now = ahead, has_now = has_ahead;
        ahead = further, has_ahead = has_further;
    }
}

static_assert(STAGES == 3, "a unit that is split and two that come");
static_assert(sizeof(stage[STAGES]) == PACK_SHARED, "what the host asks for");

__device__ int64_t panel_of(const pack_pair_args &pair, const place &u) {
    return u.batch * pair.operand[u.operand].marks_batch_stride + u.row0 / PANEL_ROWS;
}

/* Every block asks when it has split its units, having begun at that time: whether it is to take part in splitting again
 * what did not fit. The block that asks last knows if there is anything. Those that know before wait for it, but hardly
 * longer than they worked: on a GPU that has other work as well, some blocks may begin only when others have left. */
__device__ bool stays(pack_progress *progress, long long begun) {
    __shared__ bool answer;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence(); /* what this block wrote, and then that it has */
        uint32_t blocks = atomicAdd(&progress->blocks, 1) + 1;
        answer = blocks & PACK_OVERFLOWED;
        if (answer) {
            const uint32_t all = gridDim.x | PACK_OVERFLOWED;
            const long long now = clock64(), patience = max(1ll << 16, now - begun); /* cycles */
            while (blocks != all && clock64() - now < patience) blocks = *(volatile uint32_t *)&progress->blocks;
            __threadfence();
            answer = blocks == all;
        }
    }
    __syncthreads();
    return answer;
}

} // namespace

/* Grid: for each operand batch * ceil(rows / SAMPLE_ROWS) blocks. Exponents from a sample; what the next kernel counts
 * and raises is set to its least. */
extern "C" __global__ void __launch_bounds__(THREADS) pack_sample(const __grid_constant__ pack_pair_args pair) {
    constexpr int WARPS = THREADS / 32, RUNS = SAMPLES / 32, READS = SAMPLE_ROWS * SAMPLES / THREADS;
    __shared__ float largest[WARPS][SAMPLE_ROWS];
    wait_for_previous_kernel();
    allow_next_kernel();
    place at;
    if (!place_at(pair, blockIdx.x, SAMPLE_ROWS, false, &at)) return;
    const pack_args &o = pair.operand[at.operand];
    const int row0 = at.row0, rows = min(SAMPLE_ROWS, o.rows - row0), last = o.k - 1;
    const float *source = o.data + at.batch * o.batch_stride + row0 * o.row_stride;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    /* The sample: RUNS runs of 32 along k, spread evenly over it (over each other where k is short). A warp reads a run of
     * all rows, where rows are neighbours in memory, else all runs of its rows; a thread READS floats, all before it looks
     * at one. What is not there is read as the last that is. */
    auto run_begin = [&](int run) { return (int)((int64_t)max(0, o.k - 32) * run / (RUNS - 1)); };
    float x[READS];
    if (o.row_stride == 1) {
        const int row = lane % SAMPLE_ROWS, k = run_begin(warp) + lane / SAMPLE_ROWS;
#pragma unroll
        for (int i = 0; i < READS; i++)
            x[i] = source[min(row, rows - 1) + min(k + i * (32 / SAMPLE_ROWS), last) * o.k_stride];
        float most = 0;
#pragma unroll
        for (int i = 0; i < READS; i++) most = fmaxf(most, fabsf(x[i]));
        most = lanes_max<SAMPLE_ROWS>(most);
        if (lane < SAMPLE_ROWS) largest[warp][lane] = most;
    } else {
        constexpr int ROWS_PER_WARP = SAMPLE_ROWS / WARPS;
#pragma unroll
        for (int i = 0; i < READS; i++) {
            const int row = min(warp * ROWS_PER_WARP + i / RUNS, rows - 1), k = min(run_begin(i % RUNS) + lane, last);
            x[i] = source[row * o.row_stride + k * o.k_stride];
        }
#pragma unroll
        for (int r = 0; r < ROWS_PER_WARP; r++) {
            float most = 0;
#pragma unroll
            for (int run = 0; run < RUNS; run++) most = fmaxf(most, fabsf(x[r * RUNS + run]));
            most = lanes_max<1>(most);
            if (lane < WARPS) largest[lane][warp * ROWS_PER_WARP + r] = most;
        }
    }
    __syncthreads();
    if (threadIdx.x < rows) {
        float most = 0;
        for (int w = 0; w < WARPS; w++) most = fmaxf(most, largest[w][threadIdx.x]);
        const int64_t row = at.batch * o.exponents_batch_stride + row0 + threadIdx.x;
        o.exponents[row] = most == 0 ? (int)ALL_ZERO
                                     : exponent_for(most, SAMPLE_EXPONENT); /* until something is seen */
        o.row_overflows[row] = 0;
        o.tiny_counts[row] = 0;
    }
    if (threadIdx.x == 0 && row0 % PANEL_ROWS == 0) {
        const int64_t panel = at.batch * o.marks_batch_stride + row0 / PANEL_ROWS;
        o.overflowed_panels[panel] = 0;
        o.marks[panel] = 1;
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) *pair.progress = {};
}

/* All units, handed out one by one: memory serves some multiprocessors twice as fast as others. A block's first, which
 * it copies before it can have asked, are known beforehand. */
struct all_units {
    static constexpr bool AGAIN = false;
    static constexpr int KNOWN = STAGES; /* of the two rounds that only copy, and the first that asks */
    const pack_pair_args &pair;
    int (&tickets)[2]; /* shared */
    int count = 0, answer = 0;
    bool misfits = false; /* this thread has found some */

    __device__ bool next(place *u) {
        const int index = count < KNOWN ? blockIdx.x + count * gridDim.x : tickets[count % 2];
        count++;
        return place_at(pair, index, UNIT_ROWS, true, u);
    }
    __device__ void ask() {
        if (threadIdx.x == 0) answer = KNOWN * gridDim.x + atomicAdd(&pair.progress->tickets, 1);
    }
    __device__ void hear() {
        if (threadIdx.x == 0) tickets[count % 2] = answer;
    }
    __device__ void found(const place &u, float depth) {
        const pack_args &o = pair.operand[u.operand];
        if (depth < INFINITY) {
            raise(&o.marks[panel_of(pair, u)], depth);
            return;
        }
        o.overflowed_panels[panel_of(pair, u)] = 1;
        if (!misfits) atomicOr(&pair.progress->blocks, (uint32_t)PACK_OVERFLOWED);
        misfits = true;
    }
};

/* Those of panels with misfits. A ticket is 32 units far from each other, so that those of a panel come to many blocks;
 * each lane looks at one. */
struct misfit_units {
    static constexpr bool AGAIN = true;
    const pack_pair_args &pair;
    int &ticket;       /* shared */
    unsigned left = 0; /* of this ticket, a bit for each unit to split again */

    __device__ bool next(place *u) {
        const int units = places_in(pair.operand[0], UNIT_ROWS, true) + places_in(pair.operand[1], UNIT_ROWS, true);
        const int tickets = divide_up(units, 32), lane = threadIdx.x % 32;
        while (!left) {
            __syncthreads();
            if (threadIdx.x == 0) ticket = (int)atomicAdd(&pair.progress->second_tickets, 1);
            __syncthreads();
            if (ticket >= tickets) return false;
            left = __ballot_sync(0xffffffffu,
                                 place_at(pair, ticket + lane * tickets, UNIT_ROWS, true, u) &&
                                     __ldcg(&pair.operand[u->operand].overflowed_panels[panel_of(pair, *u)]));
        }
        const int first = __ffs((int)left) - 1;
        left &= left - 1;
        return place_at(pair, ticket + first * tickets, UNIT_ROWS, true, u);
    }
    __device__ void ask() {}
    __device__ void hear() {}
    __device__ void found(const place &u, float depth) {
        const float before = raise(&pair.operand[u.operand].marks[panel_of(pair, u)], depth);
        if (before < INFINITY && depth == INFINITY) atomicAdd(pair.marked_panels, 1ull);
    }
};

/* Grid: any; all units are shared out. 4 blocks per SM fill the memory. The kernel after this one comes early only where
 * no block has more than one: its blocks take places as they become free, and then those that share panels are not
 * neighbours on the chip (docs/internals/tuning.md). */
extern "C" __global__ void __launch_bounds__(THREADS, 4) pack_split(const __grid_constant__ pack_pair_args pair) {
    stage(&stages)[STAGES] = *(stage(*)[STAGES])dynamic_shared<16>();
    __shared__ int tickets[2];
    const long long begun = clock64();
    split_units(pair, stages, all_units{pair, tickets});
    if (stays(pair.progress, begun)) split_units(pair, stages, misfit_units{pair, tickets[0]});
}
