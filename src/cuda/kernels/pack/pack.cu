/* pack.cu: float32 operands -> fp16 panels for the split kernels (layout: args.h).
 *
 * Row r of an operand is scaled by 2^e, e its exponent, and each element x*2^e is split:
 *
 *     hi = fp16(x*2^e)      lo = fp16((x*2^e - hi) * 2^11)      x*2^e = hi + lo*2^-11 + a remainder below lo's last bit
 *
 * hi carries 11 bits and lo 11 more with a sign of its own: 23 bits, as long as neither leaves fp16's range. Which e
 * does that depends on the row's largest element, and finding it first would read the operand twice. So:
 *
 *   pack_sample    takes e from a sample of 128 elements of the row, with room above for larger ones
 *   pack_look      of a large operand: looks at more of some rows, for one that is larger than its sample has room for
 *   pack_scan      if there is one, finds the largest element of every row, which costs less than packing all twice
 *   pack_split     splits with that e. It records the panels' marks, the number of tiny elements of each row, and which
 *                  panels overflowed. A second pass packs these again, with e from the largest element of each row
 *
 * An operand without overflows is read once. One with short rows, contiguous and aligned, is packed by pack_rows.cu.
 *
 * Tile map: pack tiles (pack_tile.cuh) of operand 0, then of operand 1; thread blocks take them one by one. A block of
 * 128 threads copies two tiles ahead of the one it splits, so that memory is always busy. Threads take four neighbours
 * along k ("quads"), which become 8 bytes of a row of each component. Copies are 16 bytes wide for any contiguous
 * matrix, however its lines are aligned, and 4 bytes for general strides.
 *
 * Limits: 53 KB of shared memory, 128 registers, 4 thread blocks per SM.
 */
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/pack/pack_tf32.cuh"
#include "cuda/kernels/pack/pack_tile.cuh"

/* ---- Exponents from a sample ------------------------------------------------------------------------------------- */

/* Initialises the marks of operands that pack_rows packs, one for each thread of the blocks from first_block on. */
__device__ inline void begin_marks(const pack_pair_args &pair, int first_block) {
    const int i = (blockIdx.x - first_block) * PACK_THREADS + threadIdx.x, second = i - pair.mark_counts[0];
    if (second < 0)
        pair.marks[0][i] = 1;
    else if (second < pair.mark_counts[1])
        pair.marks[1][second] = 1;
}

/* Grid: for each operand batch * ceil(rows / SAMPLE_ROWS) blocks, and a thread for each panel of one that pack_rows
 * packs. Computes the rows' exponents and initialises what the next kernels add to. */
extern "C" __global__ void __launch_bounds__(PACK_THREADS) pack_sample(const __grid_constant__ pack_pair_args pair) {
    constexpr int READS = SAMPLE_ROWS * SAMPLES / PACK_THREADS, QUARTERS = SAMPLES / 32;
    static_assert(PACK_THREADS / 32 == QUARTERS && READS == 2 * QUARTERS,
                  "a warp has a quarter of the sample of all rows, or the whole of two rows");
    __shared__ float largest[SAMPLE_ROWS];
    if (threadIdx.x < SAMPLE_ROWS) largest[threadIdx.x] = 0;
    __syncthreads();
    wait_for_previous_kernel();
    allow_next_kernel();
    pack_tile t;
    if (!tile_at(pair, blockIdx.x, SAMPLE_ROWS, false, &t)) {
        begin_marks(pair,
                    tiles_in(pair.operand[0], SAMPLE_ROWS, false) + tiles_in(pair.operand[1], SAMPLE_ROWS, false));
        return;
    }
    const pack_args &o = pair.operand[t.operand];
    const int rows = min(SAMPLE_ROWS, o.rows - t.row0), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool across = runs_across(o);
    const int step = sample_step(o.k);

    float x[READS]; /* all loaded before any is used; past the end of rows the last again, of k the first */
    const float *first = o.data + t.batch * o.batch_stride + t.row0 * o.row_stride;
#pragma unroll
    for (int i = 0; i < READS; i++) {
        const int row = across ? lane % SAMPLE_ROWS : warp * 2 + i / QUARTERS;
        const int sample = across ? warp * 32 + lane / SAMPLE_ROWS + i * (32 / SAMPLE_ROWS) : i % QUARTERS * 32 + lane;
        const int k = sample / SAMPLE_RUN * step + sample % SAMPLE_RUN;
        x[i] = first[min(row, rows - 1) * o.row_stride + (k < o.k ? k : 0) * o.k_stride];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = 0;
#pragma unroll
        for (int i = 0; i < QUARTERS; i++) most = fmaxf(most, fabsf(x[half * QUARTERS + i]));
        for (int step = 16; step >= (across ? SAMPLE_ROWS : 1); step /= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        if (lane < (across ? SAMPLE_ROWS : 1)) atomic_max_nonnegative(&largest[across ? lane : warp * 2 + half], most);
    }
    __syncthreads();
    if (threadIdx.x < rows) {
        const float most = largest[threadIdx.x];
        const int64_t row = t.batch * o.exponents_batch_stride + t.row0 + threadIdx.x;
        o.exponents[row] = sampled_exponent(most);
        o.row_overflows[row] = 0;
        o.tiny_counts[row] = 0;
    }
    if (threadIdx.x == 0 && t.row0 % PANEL_ROWS == 0) {
        o.overflowed_panels[panel_of(o, t)] = 0;
        o.marks[panel_of(o, t)] = 1;
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) *pair.progress = {};
}

/* ---- Large operands ---------------------------------------------------------------------------------------------- */

constexpr int SCAN_WARPS = PACK_THREADS / 32, SCAN_AT_ONCE = 16;

/* Where rows are neighbours in memory, lanes have the rows and warps the terms in turn; else all threads have one. */
__device__ inline int scanned_rows(const pack_args &o) { return runs_across(o) ? 32 : 1; }
static_assert(PACK_SCAN_ACROSS % 32 == 0, "a block scans whole groups of rows");

/* The largest magnitude among the first `terms` terms of row row0 + threadIdx.x, for threads below scanned_rows. All
 * threads of the block call it. */
__device__ float largest_in_rows(const pack_args &o, int row0, int terms) {
    __shared__ float of_warps[SCAN_WARPS][32];
    const bool across = runs_across(o);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, stride = across ? SCAN_WARPS : PACK_THREADS;
    const float *row = o.data + min(row0 + (across ? lane : 0), o.rows - 1) * o.row_stride;
    float most = 0;
    for (int k = across ? warp : threadIdx.x; k < terms; k += SCAN_AT_ONCE * stride) {
        float x[SCAN_AT_ONCE]; /* past the end the last again */
#pragma unroll
        for (int i = 0; i < SCAN_AT_ONCE; i++) x[i] = row[min(k + i * stride, terms - 1) * o.k_stride];
#pragma unroll
        for (int i = 0; i < SCAN_AT_ONCE; i++) most = fmaxf(most, fabsf(x[i]));
    }
    if (!across)
        for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    __syncthreads(); /* the last call's have been read */
    of_warps[warp][lane] = most;
    __syncthreads();
    for (int i = 0; i < SCAN_WARPS; i++) most = fmaxf(most, of_warps[i][lane]);
    return most;
}

/* The operand that this block looks at: of those to be looked at, each has blocks_of(it) blocks. `block` becomes the
 * block's number among these. NULL past the last. */
template <typename COUNT>
__device__ const pack_args *scanned_by(const pack_pair_args &pair, int *block, COUNT blocks_of) {
    for (const pack_args &o : pair.operand) {
        const int blocks = o.is_large ? blocks_of(o) : 0;
        if (*block < blocks) return &o;
        *block -= blocks;
    }
    return nullptr;
}

/* Whether this thread's row has an element that its sample leaves no room for. */
__device__ inline bool outgrows(const pack_args &o, int row, float most) {
    return threadIdx.x < scanned_rows(o) && row < o.rows && most < INFINITY && overflows(most, o.exponents[row]);
}

/* Grid: PACK_LOOKS blocks for each large operand, which look at rows spread over it. */
extern "C" __global__ void __launch_bounds__(PACK_THREADS) pack_look(const __grid_constant__ pack_pair_args pair) {
    wait_for_previous_kernel();
    allow_next_kernel();
    int block = blockIdx.x;
    const pack_args *o = scanned_by(pair, &block, [](const pack_args &) { return (int)PACK_LOOKS; });
    if (!o) return;
    const int row0 = (int)((int64_t)o->rows * block / PACK_LOOKS), most_terms = PACK_LOOK_ELEMENTS / scanned_rows(*o);
    const float most = largest_in_rows(*o, row0, min(o->k, most_terms));
    if (outgrows(*o, row0 + threadIdx.x, most)) atomicOr(&pair.progress->outgrown, 1u << (o - pair.operand));
}

__device__ inline int scan_rows(const pack_args &o) { return runs_across(o) ? PACK_SCAN_ACROSS : PACK_SCAN_ALONG; }

/* Grid: for each large operand ceil(rows / scan_rows) blocks. */
extern "C" __global__ void __launch_bounds__(PACK_THREADS) pack_scan(const __grid_constant__ pack_pair_args pair) {
    wait_for_previous_kernel();
    allow_next_kernel();
    int block = blockIdx.x;
    const pack_args *o = scanned_by(pair, &block, [](const pack_args &p) { return ceil_div(p.rows, scan_rows(p)); });
    if (!o || !(pair.progress->outgrown >> (o - pair.operand) & 1)) return;
    for (int i = 0; i < scan_rows(*o); i += scanned_rows(*o)) {
        const int row0 = block * scan_rows(*o) + i;
        if (row0 >= o->rows) return;
        const float most = largest_in_rows(*o, row0, o->k);
        const int row = row0 + threadIdx.x;
        if (outgrows(*o, row, most)) o->exponents[row] = exponent_for(most, LARGEST_EXPONENT);
    }
}

/* ---- Splitting a tile -------------------------------------------------------------------------------------------- */

template <int COMPONENTS> struct counted_components {
    static constexpr int COUNT = COMPONENTS;

    /* The depth of a thread's quads, negative if the panel is to be packed again. Called by warps that have an element
     * that is not normal. Counts the tiny elements of each row and notes what overflowed. In the second pass it counts
     * only in rows that have another exponent now, and notes what does not fit: so a row's count does not depend on the
     * other rows of its panel. */
    template <typename READ>
    static __device__ float depth(const pack_args &o, const pack_tile &t, const pack_stage &from, READ read) {
        const int quad = threadIdx.x % QUADS_PER_ROW;
        float least = HALF_LEAST_NORMAL;
        bool all_fit = true, may_fit = true;
#pragma unroll 1
        for (int row = threadIdx.x / QUADS_PER_ROW; row < PACK_ROWS; row += QUAD_ROW_STEP) {
            const int e = from.exponents[row];
            const int64_t at = t.batch * o.exponents_batch_stride + t.row0 + row;
            float x[QUAD];
            element_check found;
            read(row, quad, x);
#pragma unroll
            for (int k = 0; k < QUAD; k++) found.add(x[k], e);
            least = fminf(least, found.least);
            all_fit &= found.fit;
            may_fit &= found.may_fit;
            int tiny = found.tiny, overflow = found.overflow;
            for (int step = QUADS_PER_ROW / 2; step > 0; step /= 2) {
                tiny += __shfl_xor_sync(0xffffffffu, tiny, step);
                overflow = max(overflow, __shfl_xor_sync(0xffffffffu, overflow, step));
            }
            if (quad == 0 && overflow) atomic_max_nonnegative(&o.row_overflows[at], __int_as_float(overflow));
            if (quad == 0 && tiny && (!t.again || __ldcg(&o.row_overflows[at]) > 0))
                atomicAdd(&o.tiny_counts[at], tiny);
            const unsigned lost = __ballot_sync(0xffffffffu, !found.fit) >> (threadIdx.x % 32 - quad);
            if (quad == 0 && t.again && lost << (32 - QUADS_PER_ROW))
                atomicOr(&o.tiny_counts[at], (uint32_t)NOT_CARRIED);
        }
        const float depth = may_fit ? HALF_LEAST_NORMAL / least : INFINITY;
        return all_fit || (!may_fit && !o.by_row) ? depth : -depth;
    }
};

/* Splits a thread's quads of a tile and returns their depth. read(row, quad, x) reads a quad from shared memory.
 * Without branches as long as all elements are normal, so that the loads and arithmetic of several quads overlap. */
template <class COMPONENTS, typename READ>
__device__ float split_quads(const pack_args &o, const pack_tile &t, const pack_stage &from, READ read) {
    constexpr int COUNT = COMPONENTS::COUNT;
    constexpr int QUADS_AT_ONCE = 2; /* more would overlap more, but miss the instruction cache longer */
    const int panel = t.row0 / PANEL_ROWS, skip = t.row0 % PANEL_ROWS;
    const int stored = stored_rows(o.rows, panel);
    const int quad = threadIdx.x % QUADS_PER_ROW, row0 = threadIdx.x / QUADS_PER_ROW;
    uint8_t *to = o.panels + t.batch * o.panels_batch_stride +
                  (int64_t)panel * o.k_blocks * COUNT * PANEL_ROWS * SPLIT_ROW_BYTES +
                  ((int64_t)t.kb * COUNT * stored + skip + row0) * SPLIT_ROW_BYTES + (quad / 2 ^ row0 % 8) * 16 +
                  quad % 2 * 8;
    const int lo_offset = stored * SPLIT_ROW_BYTES;
    bool all_normal = true;
#pragma unroll QUADS_AT_ONCE
    for (int i = 0; i < PACK_ROWS / QUAD_ROW_STEP; i++, to += QUAD_ROW_STEP * SPLIT_ROW_BYTES) {
        const int row = i * QUAD_ROW_STEP + row0;
        const row_scale scale(from.exponents[row]);
        float x[QUAD];
        __half2 hi[QUAD / 2], lo[QUAD / 2];
        read(row, quad, x);
#pragma unroll
        for (int j = 0; j < QUAD / 2; j++)
            all_normal &= split_pair<COUNT>(x[2 * j], x[2 * j + 1], scale, &hi[j], &lo[j]);
        if (row < stored - skip) {
            *(uint2 *)to = *(uint2 *)hi;
            if (COUNT == 2) *(uint2 *)(to + lo_offset) = *(uint2 *)lo;
        }
    }
    return __any_sync(0xffffffffu, !all_normal) ? COMPONENTS::depth(o, t, from, read) : 1;
}

/* Splits a tile that has landed into its panel. Every thread of the block calls it and gets the depth of its quads. */
template <class COMPONENTS>
__device__ float split_tile(const pack_args &o, const pack_tile &t, const pack_stage &from) {
    const tile_view view(o, t);
    if (runs_across(o) && view.aligned())
        return split_quads<COMPONENTS>(o, t, from, [&](int row, int quad, float(&x)[QUAD]) {
#pragma unroll
            for (int k = 0; k < QUAD; k++) x[k] = from.lines[quad * QUAD + k][(row / 4 ^ quad % 8) * 4 + row % 4];
        });
    if (runs_across(o)) {
        const int my_quad = threadIdx.x % QUADS_PER_ROW, row0 = threadIdx.x / QUADS_PER_ROW;
        int begin[QUAD]; /* where row0 is in the four lines that hold this thread's quads */
#pragma unroll
        for (int k = 0; k < QUAD; k++) begin[k] = view.shift(my_quad * QUAD + k) + row0;
        return split_quads<COMPONENTS>(o, t, from, [&](int row, int quad, float(&x)[QUAD]) {
#pragma unroll
            for (int k = 0; k < QUAD; k++) {
                const int line = quad * QUAD + k, vector = begin[k] / 4 + (row - row0) / 4;
                x[k] = from.lines[line][from.place_of(line, vector) + begin[k] % 4];
            }
        });
    }
    if (view.aligned())
        return split_quads<COMPONENTS>(o, t, from, [&](int row, int quad, float(&x)[QUAD]) {
            const float4 v = *(const float4 *)&from.lines[row][from.place_of(row, quad)];
            x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        });
    return split_quads<COMPONENTS>(o, t, from, [&](int row, int quad, float(&x)[QUAD]) {
        const int shift = view.shift(row);
        const int in_first = from.place_of(row, quad) + shift, in_second = from.place_of(row, quad + 1) + shift - 4;
#pragma unroll
        for (int k = 0; k < QUAD; k++) x[k] = from.lines[row][(shift + k < 4 ? in_first : in_second) + k];
    });
}

/* ---- Both passes ------------------------------------------------------------------------------------------------- */

constexpr int PACK_STAGES = 3; /* one tile that is split and two that come */

/* The matrices are read once. If L2 has room for the panels, it should evict the matrices before them. */
__device__ uint64_t policy_for(const pack_pair_args &pair) {
    constexpr int64_t ROOM = 40 << 20; /* bytes, of the 50 MB of L2 that an H100 or H200 has */
    int64_t panels = 0;
    for (int i = 0; i < 2; i++) panels += pair.operand[i].batch * pair.operand[i].panels_batch_stride;
    return panels <= ROOM ? evict_first_policy() : 0;
}

/* Raises the mark of a tile's panel to the largest depth in a warp, all of whose lanes call it, by one atomic
 * operation: those of all tiles go to a few cache lines. What the mark was is only asked, and waited for, where it may
 * be counted. */
__device__ void mark_panel(const pack_pair_args &pair, const pack_args &o, const pack_tile &t, float depth) {
    const float deepest = __int_as_float(warp_max(__float_as_int(depth)));
    if (threadIdx.x % 32 || deepest <= 1) return;
    float *const mark = &o.marks[panel_of(o, t)];
    if (deepest < INFINITY)
        atomic_max_nonnegative(mark, deepest);
    else if (atomic_max_nonnegative(mark, deepest) < INFINITY)
        atomicAdd(pair.marked_panels, 1ull);
}

/* The first pass: splits all tiles, copying two tiles ahead. Tiles are handed out by tickets, because memory serves
 * some SMs twice as fast as others. A ticket is asked for before a tile is split and needed after it; a block's
 * first FIXED tiles, copied before a ticket can have arrived, are fixed. The loop begins with two rounds that only
 * copy, before the previous kernel has computed the exponents: one copy of the loop body keeps instruction-cache
 * misses down. */
template <typename SPLIT>
__device__ void pack_all(const pack_pair_args &pair, pack_stage (&stages)[PACK_STAGES], SPLIT split) {
    constexpr int FIXED = PACK_STAGES;
    __shared__ int tickets[2];
    const uint64_t policy = policy_for(pair);
    pack_tile now = {}, next = {}, after = {};
    bool has_now = false, has_next = false, has_after = true, overflowed = false;
    int free = 0, ticket = 0; /* free: the stage for tile round + 2 */
#pragma unroll 1
    for (int round = -2; round < 0 || has_now; round++) {
        if (round >= 0) {
            if (round == 0)
                cp_async_wait<0>(); /* its exponents came with the second tile */
            else
                cp_async_wait<1>();
            __syncthreads(); /* this tile has landed for all, and all have left the one before it */
        }
        const int index = round + 2 < FIXED ? blockIdx.x + (round + 2) * gridDim.x : tickets[round % 2];
        has_after = has_after && tile_at(pair, index, PACK_ROWS, true, &after);
        const pack_args &of_after = pair.operand[after.operand];
        if (has_after) fetch_elements(of_after, after, stages[free], policy);
        if (round == -1) {
            wait_for_previous_kernel();
            if (!has_after) allow_next_kernel();
            if (has_next) fetch_exponents<false>(pair.operand[next.operand], next, stages[0]);
        }
        if (has_after && round > -2) fetch_exponents<false>(of_after, after, stages[free]);
        const bool asks = has_after && round >= 0 && threadIdx.x == 0;
        if (asks) ticket = FIXED * gridDim.x + atomicAdd(&pair.progress->tickets, 1);
        cp_async_commit();
        free = (free + 1) % PACK_STAGES; /* now the stage of tile `round` */
        if (has_now) {
            const pack_args &o = pair.operand[now.operand];
            const float depth = split(o, now, stages[free]);
            if (__any_sync(0xffffffffu, depth != 1)) {
                if (__any_sync(0xffffffffu, depth < 0)) {
                    o.overflowed_panels[panel_of(o, now)] = 1;
                    if (!overflowed && threadIdx.x % 32 == 0)
                        atomicOr(&pair.progress->blocks, (uint32_t)PACK_OVERFLOWED);
                    overflowed = true;
                }
                mark_panel(pair, o, now, fabsf(depth));
            }
        }
        if (asks) tickets[(round + 1) % 2] = ticket;
        now = next, has_now = has_next;
        next = after, has_next = has_after;
    }
}

/* The second pass: splits the tiles of overflowed panels again. A ticket is for up to 32 tiles far from each other, so
 * that those of one panel go to many blocks; each lane looks at one. There are two tickets for each block, as all
 * panels may have overflowed. No copies ahead: the SM's other blocks hide the latency. */
template <typename SPLIT> __device__ void pack_overflowed(const pack_pair_args &pair, pack_stage &stage, SPLIT split) {
    __shared__ int ticket;
    const int tiles = tiles_in(pair.operand[0], PACK_ROWS, true) + tiles_in(pair.operand[1], PACK_ROWS, true);
    const int each = min(32, ceil_div(tiles, 2 * gridDim.x)), tickets = ceil_div(tiles, each), lane = threadIdx.x % 32;
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) ticket = (int)atomicAdd(&pair.progress->second_tickets, 1);
        __syncthreads();
        if (ticket >= tickets) return;
        pack_tile t;
        bool again = lane < each && tile_at(pair, ticket + lane * tickets, PACK_ROWS, true, &t);
        if (again) { /* from L2: other blocks wrote it */
            const pack_args &o = pair.operand[t.operand];
            again = __ldcg(&o.overflowed_panels[panel_of(o, t)]);
        }
        for (unsigned left = __ballot_sync(0xffffffffu, again); left; left &= left - 1) {
            tile_at(pair, ticket + (__ffs((int)left) - 1) * tickets, PACK_ROWS, true, &t);
            const pack_args &o = pair.operand[t.operand];
            fetch_elements(o, t, stage, 0);
            fetch_exponents<true>(o, t, stage);
            cp_async_commit();
            cp_async_wait<0>();
            __syncthreads();
            t.again = true;
            const float depth = split(o, t, stage);
            mark_panel(pair, o, t, depth < 0 ? INFINITY : depth);
            __syncthreads();
        }
    }
}

/* Whether an infinite mark leaves a whole panel to ieee, so that nobody asks about its single rows. */
__device__ inline bool marks_decide(const pack_args &o) { return o.components == 2 && !o.by_row; }

/* The least mark of an operand's panels so far; 1, the least there is, of an operand that is not packed here. All
 * threads of the block call it, also the next function. */
__device__ float least_mark(const pack_args &o) {
    __shared__ float of_warps[PACK_THREADS / 32];
    const int panels = ceil_div(o.rows, PANEL_ROWS);
    float least = o.rows && marks_decide(o) ? INFINITY : 1;
    for (int i = threadIdx.x; least > 1 && i < o.batch * panels; i += PACK_THREADS)
        least = fminf(least, __ldcg(&o.marks[i / panels * o.marks_batch_stride + i % panels]));
    for (int step = 16; step > 0; step /= 2) least = fminf(least, __shfl_xor_sync(0xffffffffu, least, step));
    __syncthreads(); /* the last call's have been read */
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = least;
    __syncthreads();
    for (int i = 0; i < PACK_THREADS / 32; i++) least = fminf(least, of_warps[i]);
    return least;
}

/* Looks, after the first pass, for overflowed panels that need no second one: whatever their rows' exponents were, no
 * sum of theirs would be stored, because the product of their mark and that of any panel they meet is infinite, and
 * with smaller exponents marks only rise. Their marks become infinite. True if there are others. */
__device__ bool needs_second_pass(const pack_pair_args &pair) {
    const float least[2] = {least_mark(pair.operand[0]), least_mark(pair.operand[1])};
    bool needed = false;
    for (int i = 0; i < 2; i++) {
        const pack_args &o = pair.operand[i];
        const int panels = ceil_div(o.rows, PANEL_ROWS);
        for (int j = threadIdx.x; j < o.batch * panels; j += PACK_THREADS) {
            const int64_t at = j / panels * o.marks_batch_stride + j % panels;
            if (!__ldcg(&o.overflowed_panels[at])) continue;
            const float mark = __ldcg(&o.marks[at]);
            if (marks_decide(o) && mark * least[1 - i] == INFINITY) {
                o.overflowed_panels[at] = 0;
                o.marks[at] = INFINITY;
                if (mark < INFINITY) atomicAdd(pair.marked_panels, 1ull);
            } else
                needed = true;
        }
    }
    return __syncthreads_or(needed);
}

/* Called by each block after its last tile; true if the block should join the second pass. The last block to call knows
 * whether something overflowed, and decides whether there is a second pass. Blocks that already know of an overflow
 * wait for that, but hardly longer than they worked: on a GPU with other work some blocks may start only when others
 * have left. */
__device__ bool joins_second_pass(const pack_pair_args &pair, long long begun) {
    __shared__ uint32_t seen;
    __shared__ bool joins;
    pack_progress *const progress = pair.progress;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence(); /* what this block wrote, and then that it has */
        seen = atomicAdd(&progress->blocks, 1) + 1;
        __threadfence();
    }
    __syncthreads();
    if (!(seen & PACK_OVERFLOWED)) return false;
    if (seen == (gridDim.x | PACK_OVERFLOWED)) {
        const bool needed = needs_second_pass(pair);
        if (threadIdx.x == 0) {
            __threadfence();
            atomicOr(&progress->blocks, (uint32_t)(needed ? PACK_AGAIN : PACK_DONE));
        }
        return needed;
    }
    if (threadIdx.x == 0) {
        const long long now = clock64(), patience = max(1ll << 16, now - begun); /* cycles */
        uint32_t blocks;
        do blocks = *(volatile uint32_t *)&progress->blocks;
        while (!(blocks & (PACK_AGAIN | PACK_DONE)) && clock64() - now < patience);
        __threadfence();
        joins = blocks & PACK_AGAIN;
    }
    __syncthreads();
    return joins;
}

/* Packs both operands; split(operand, tile, stage) splits a tile and returns the depth of the thread's part, negative
 * where something did not fit that may with other exponents. */
template <typename SPLIT> __device__ void pack_both(const pack_pair_args &pair, SPLIT split) {
    pack_stage(&stages)[PACK_STAGES] = *(pack_stage(*)[PACK_STAGES])dynamic_shared<16>();
    const long long begun = clock64();
    pack_all(pair, stages, split);
    if (joins_second_pass(pair, begun)) pack_overflowed(pair, stages[0], split);
}

ASSERT_LISTED_AS(PACK_SAMPLE, SAMPLE_ROWS, 0, PACK_THREADS, 0);
ASSERT_LISTED_AS(PACK_LOOK, 0, 0, PACK_THREADS, 0);
ASSERT_LISTED_AS(PACK_SCAN, 0, 0, PACK_THREADS, 0);
ASSERT_LISTED_AS(PACK_SPLIT, PACK_ROWS, 0, PACK_THREADS, sizeof(pack_stage[PACK_STAGES]));

/* Grid: any; 4 blocks per SM fill the memory. The next kernel starts early only if no block has more than one tile. Its
 * blocks start wherever one of these ends, and then blocks that share panels are not neighbours on the chip
 * (docs/internals/experiments.md). */
extern "C" __global__ void __launch_bounds__(PACK_THREADS, 4) pack_split(const __grid_constant__ pack_pair_args pair) {
    pack_both(pair, [](const pack_args &o, const pack_tile &t, const pack_stage &from) {
        if (o.components == 2) return split_tile<counted_components<2>>(o, t, from);
        if (o.by_row) return split_tile<counted_components<1>>(o, t, from);
        const float depth = split_tile<tf32_components>(o, t, from);
        if (!__syncthreads_or(depth > 1)) return depth;
        return column_depth(o, t, from) == 1 ? 1.0f : t.again ? INFINITY : -1.0f;
    });
}
