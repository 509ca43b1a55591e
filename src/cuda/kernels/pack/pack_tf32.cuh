/* pack_tf32.cuh: how tf32 packs a tile: hi alone, and a rule of its own for tiny elements.
 *
 * tf32 promises a norm, not each element: bits lost below fp16's smallest normal number do no harm beside a larger
 * element of the same k. 64 errors of up to 2^-25 (scaled) together stay below 2^-11 of the largest element, if
 * sqrt(64) 2^-25 coarsest <= 2^-11 largest. Where that holds in each part of a tile's rows, it does in the whole.
 */
#ifndef TESSERA_CUDA_PACK_TF32_CUH
#define TESSERA_CUDA_PACK_TF32_CUH

#include "cuda/kernels/pack/pack_tile.cuh"

/* One k of some rows of a tile. */
struct column {
    float largest = 0, coarsest = 0; /* coarsest: the largest 2^-e among rows whose element lost bits */
    bool all_fit = true;

    __device__ bool add(float x, int e) { /* returns whether it fits */
        const bool fits = !overflows(x, e);
        largest = fmaxf(largest, fabsf(x));
        if (x != 0 && fabsf(x * power_of_two(e)) < HALF_LEAST_NORMAL) coarsest = fmaxf(coarsest, power_of_two(-e));
        all_fit &= fits;
        return fits;
    }
    __device__ bool carried() const { return all_fit && coarsest <= 2048 * largest; }
};

struct tf32_components {
    static constexpr int COUNT = 1;

    /* The depth of a thread's quads, where one of its warp is not normal: 1 if tf32 carries them by themselves, as it
     * does all but odd data, else infinity, until column_depth has looked at the whole tile. */
    template <typename READ>
    static __device__ float depth(const pack_args &, const pack_tile &, const pack_stage &from, READ read) {
        column columns[QUAD];
#pragma unroll 1
        for (int row = threadIdx.x / QUADS_PER_ROW; row < PACK_ROWS; row += QUAD_ROW_STEP) {
            float x[QUAD];
            read(row, threadIdx.x % QUADS_PER_ROW, x);
#pragma unroll
            for (int k = 0; k < QUAD; k++) columns[k].add(x[k], from.exponents[row]);
        }
        bool carried = true;
        for (int k = 0; k < QUAD; k++) carried &= columns[k].carried();
        return carried ? 1 : INFINITY;
    }
};

/* The depth of one k of a tile, for each thread that has one: 1 where hi carries it, else infinity. Notes what did not
 * fit. All threads of a block call it. */
__device__ inline float column_depth(const pack_args &o, const pack_tile &t, const pack_stage &from) {
    if (threadIdx.x >= SPLIT_K) return 1;
    const tile_view view(o, t);
    const int64_t at = t.batch * o.exponents_batch_stride + t.row0;
    column all;
#pragma unroll 1
    for (int row = 0; row < PACK_ROWS; row++) {
        const int line = runs_across(o) ? threadIdx.x : row,
                  i = view.shift(line) + (runs_across(o) ? row : threadIdx.x);
        const float x = from.lines[line][from.place_of(line, i / 4) + i % 4];
        if (!all.add(x, from.exponents[row])) atomic_max_nonnegative(&o.row_overflows[at + row], fabsf(x));
    }
    return all.carried() ? 1 : INFINITY;
}

#endif
