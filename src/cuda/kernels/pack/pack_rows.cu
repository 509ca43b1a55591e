/* pack_rows.cu: operands with short, contiguous rows -> fp16 panels for the split kernels (layout: args.h).
 *
 * What pack.cu does for any operand, bit for bit, in one pass: a warp holds whole rows in registers, so it knows before
 * it splits a row whether that outgrows its sample.
 *
 * Rows begin at multiples of 16 bytes, and k is a multiple of four. Lane i has the quads i, i + 32, ... of a row.
 *
 * Tile map: a thread block packs ROWS rows, a quarter of them for each of four warps, one group of rows after another.
 * A group is as many rows as 32 registers hold. The next group is loaded while one is split. Blocks of operand 0 come
 * first.
 *
 * Names: QUADS of a row that a lane has; group: rows that a warp holds at once.
 * Limits: 128 threads, no shared memory.
 */
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/pack/pack_tile.cuh"

constexpr int WARPS = PACK_THREADS / 32, GROUPS = 4, QUADS_HELD = 8;

/* Of a row: by its sample, and the one it is packed with. They differ if it outgrows its sample. */
struct row_exponents {
    int sampled, packed;
};

__device__ inline int magnitude_bits(float x) { return __float_as_int(fabsf(x)); }

/* Some rows of one product of one operand. */
template <int QUADS> struct row_group {
    static constexpr int ROWS = QUADS_HELD / QUADS;
    float4 x[ROWS][QUADS];

    /* Zeros past the end of rows and of k. */
    __device__ void load(const pack_args &o, int batch, int row0) {
        const int k = threadIdx.x % 32 * QUAD;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float *from = o.data + batch * o.batch_stride + (row0 + r) * o.row_stride + k;
#pragma unroll
            for (int q = 0; q < QUADS; q++) {
                x[r][q] = make_float4(0, 0, 0, 0);
                if (row0 + r < o.rows && k + q * 32 * QUAD < o.k) x[r][q] = load_once(from + q * 32 * QUAD);
            }
        }
    }

    /* Row r: its exponent by its sample, and as it is packed. */
    __device__ row_exponents exponents(const pack_args &o, int r) const {
        const int runs = sample_step(o.k) / SAMPLE_RUN; /* one in `runs` belongs to the sample */
        int largest = 0; /* as bits: magnitudes have the same order, and NaN comes last */
        float sampled = 0;
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            const float4 v = x[r][q];
            largest = max(max(max(largest, magnitude_bits(v.x)), magnitude_bits(v.y)),
                          max(magnitude_bits(v.z), magnitude_bits(v.w)));
            if ((threadIdx.x % 32 + q * 32) * QUAD / SAMPLE_RUN % runs == 0)
                sampled = fmaxf(fmaxf(fmaxf(sampled, fabsf(v.x)), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
        }
        const float most = __int_as_float(warp_max(largest));
        const int e = sampled_exponent(__int_as_float(warp_max(__float_as_int(sampled))));
        return {e, overflows(most, e) && most > 0 ? exponent_for(most, LARGEST_EXPONENT) : e};
    }

    /* Splits row r; false if one of this lane's elements is not normal. */
    __device__ bool split(const pack_args &o, int batch, int row, int r, int e) const {
        const int lane = threadIdx.x % 32, panel = row / PANEL_ROWS, stored = stored_rows(o.rows, panel);
        const row_scale scale(e);
        const int64_t block = 2 * stored * SPLIT_ROW_BYTES; /* bytes: hi, then lo */
        uint8_t *to = o.panels + batch * o.panels_batch_stride +
                      (int64_t)panel * o.k_blocks * 2 * PANEL_ROWS * SPLIT_ROW_BYTES + lane / QUADS_PER_ROW * block +
                      row % PANEL_ROWS * SPLIT_ROW_BYTES + (lane % QUADS_PER_ROW / 2 ^ row % 8) * 16 + lane % 2 * 8;
        bool normal = true;
#pragma unroll
        for (int q = 0; q < QUADS; q++, to += 32 / QUADS_PER_ROW * block) {
            const float4 v = x[r][q];
            __half2 hi[2], lo[2];
            normal &= split_pair<2>(v.x, v.y, scale, &hi[0], &lo[0]) & split_pair<2>(v.z, v.w, scale, &hi[1], &lo[1]);
            if (lane / QUADS_PER_ROW + q * (32 / QUADS_PER_ROW) < o.k_blocks) {
                *(uint2 *)to = *(uint2 *)hi;
                *(uint2 *)(to + stored * SPLIT_ROW_BYTES) = *(uint2 *)lo;
            }
        }
        return normal;
    }

    __device__ element_check check(int r, int e) const {
        element_check found;
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            const float v[QUAD] = {x[r][q].x, x[r][q].y, x[r][q].z, x[r][q].w};
#pragma unroll
            for (int i = 0; i < QUAD; i++) found.add(v[i], e);
        }
        return found;
    }

    /* What row r has of tiny elements, and of those that do not fit. pack_split counts with both exponents. */
    __device__ void note(const pack_pair_args &pair, const pack_args &o, int batch, int row, int r,
                         row_exponents e) const {
        element_check found = check(r, e.packed);
        if (e.packed != e.sampled) found.tiny += check(r, e.sampled).tiny;
        for (int step = 16; step > 0; step /= 2) {
            found.tiny += __shfl_xor_sync(0xffffffffu, found.tiny, step);
            found.least = fminf(found.least, __shfl_xor_sync(0xffffffffu, found.least, step));
        }
        const bool fit = !__any_sync(0xffffffffu, !found.fit);
        if (threadIdx.x % 32) return;
        o.tiny_counts[batch * o.exponents_batch_stride + row] = found.tiny + (fit ? 0 : NOT_CARRIED);
        const float depth = fit ? HALF_LEAST_NORMAL / found.least : INFINITY;
        if (depth == 1) return;
        float *mark = &o.marks[batch * o.marks_batch_stride + row / PANEL_ROWS];
        if (atomic_max_nonnegative(mark, depth) < INFINITY && depth == INFINITY) atomicAdd(pair.marked_panels, 1ull);
    }
};

/* Grid: for each operand batch * ceil(rows / ROWS) blocks. */
template <int QUADS> __device__ void pack_whole_rows(const pack_pair_args &pair) {
    typedef row_group<QUADS> group;
    constexpr int ROWS = WARPS * GROUPS * group::ROWS; /* of a block */
    const int in_first = pair.operand[0].batch * ceil_div(pair.operand[0].rows, ROWS);
    const bool is_second = (int)blockIdx.x >= in_first;
    const pack_args &o = pair.operand[is_second];
    const int block = blockIdx.x - (is_second ? in_first : 0), down = ceil_div(o.rows, ROWS), batch = block / down;
    const int end = ceil_div(o.rows, PANEL_ROW_STEP) * PANEL_ROW_STEP; /* rows that are stored */
    int row0 = (block - batch * down) * ROWS + threadIdx.x / 32 * GROUPS * group::ROWS;
    /* Alone, it follows pack_sample, which initialises the marks. Else it follows pack_split, which has waited for
     * that; and what comes next must not begin before pack_split has ended. */
    const bool alone = !pair.beside_tiles;
    group now, next;
    now.load(o, batch, row0);
    if (alone) wait_for_previous_kernel();
#pragma unroll 1
    for (int i = 0; i < GROUPS && row0 < end; i++, row0 += group::ROWS) {
        if (i + 1 < GROUPS) next.load(o, batch, row0 + group::ROWS);
#pragma unroll
        for (int r = 0; r < group::ROWS; r++) {
            const int row = row0 + r;
            const row_exponents e = now.exponents(o, r);
            if (row >= end) break;
            const bool normal = now.split(o, batch, row, r, e.packed);
            if (row >= o.rows) continue;
            const int64_t at = batch * o.exponents_batch_stride + row;
            if (threadIdx.x % 32 == 0) o.exponents[at] = e.packed, o.tiny_counts[at] = 0;
            if (__any_sync(0xffffffffu, !normal)) now.note(pair, o, batch, row, r, e);
        }
        now = next;
    }
    if (!alone) wait_for_previous_kernel();
}

ASSERT_LISTED_AS(PACK_ROWS_128, (WARPS * GROUPS * row_group<1>::ROWS), 0, PACK_THREADS, 0);
ASSERT_LISTED_AS(PACK_ROWS_512, (WARPS * GROUPS * row_group<4>::ROWS), 0, PACK_THREADS, 0);
ASSERT_LISTED_AS(PACK_ROWS_1024, (WARPS * GROUPS * row_group<8>::ROWS), 0, PACK_THREADS, 0);

extern "C" __global__ void __launch_bounds__(PACK_THREADS) pack_rows_128(const __grid_constant__ pack_pair_args pair) {
    pack_whole_rows<1>(pair);
}

extern "C" __global__ void __launch_bounds__(PACK_THREADS) pack_rows_512(const __grid_constant__ pack_pair_args pair) {
    pack_whole_rows<4>(pair);
}

extern "C" __global__ void __launch_bounds__(PACK_THREADS) pack_rows_1024(const __grid_constant__ pack_pair_args pair) {
    pack_whole_rows<8>(pair);
}
