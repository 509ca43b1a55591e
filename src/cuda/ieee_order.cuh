/* ieee_order.cuh: which tiles of C, and which terms of k, a block of an ieee kernel computes, and where sums go. */
#pragma once

#include "args.h"

/* Tiles are numbered in bands of 16 tile rows, down each column of a band: blocks that run together then share few
 * panels of A and of B, which the L2 cache holds. */
static __device__ __forceinline__ void find_tile(const ieee_args &args, int tile, int *tile_row, int *tile_col) {
    constexpr int BAND = 16;
    const int band = tile / (BAND * args.tiles_n);
    const int rows = min(BAND, args.tiles_m - band * BAND);
    const int in_band = tile - band * BAND * args.tiles_n;
    *tile_row = band * BAND + in_band % rows;
    *tile_col = in_band / rows;
}

/* A stretch of terms of one tile: what a block computes at a time. */
struct segment {
    int tile;
    int k_begin, terms;
    int index;         /* among the pieces of the tile, along k */
    bool whole;        /* the tile's only piece */
    int64_t next, end; /* what is left of the block's stretch, in runs of the tail */
};

static __device__ __forceinline__ int runs_per_tile(const ieee_args &args) {
    return (args.k + IEEE_RUN - 1) / IEEE_RUN;
}

/* Stretch u of the tail is its runs [u*runs/units, (u+1)*runs/units); this finds u for a run. */
static __device__ __forceinline__ int64_t unit_of_run(const ieee_args &args, int64_t run, int64_t tail_runs) {
    return ((run + 1) * args.tail_units - 1) / tail_runs;
}

static __device__ __forceinline__ int tail_tiles(const ieee_args &args) {
    return args.tiles_m * args.tiles_n - args.full_tiles;
}

/* Sets `s` to the next segment of its stretch; false where there is none. */
static __device__ __forceinline__ bool next_segment(const ieee_args &args, segment *s) {
    if (s->next >= s->end) return false;
    const int runs = runs_per_tile(args);
    const int tail = (int)(s->next / runs), first = (int)(s->next - (int64_t)tail * runs);
    const int count = (int)min((int64_t)(runs - first), s->end - s->next);
    s->tile = args.full_tiles + tail;
    s->k_begin = first * IEEE_RUN;
    s->terms = min(args.k - s->k_begin, count * IEEE_RUN);
    s->whole = count == runs;
    s->index = first == 0 ? 0
                          : (int)(unit_of_run(args, s->next, (int64_t)runs * tail_tiles(args)) -
                                  unit_of_run(args, (int64_t)tail * runs, (int64_t)runs * tail_tiles(args)));
    s->next += count;
    return true;
}

/* The first segment of unit `unit` of the grid: a whole tile, or the start of a stretch of the tail. */
static __device__ __forceinline__ bool first_segment(const ieee_args &args, int unit, segment *s) {
    if (unit < args.full_tiles) {
        *s = segment{unit, 0, args.k, 0, true, 0, 0};
        return true;
    }
    const int64_t tail_runs = (int64_t)runs_per_tile(args) * tail_tiles(args), stretch = unit - args.full_tiles;
    s->next = stretch * tail_runs / args.tail_units;
    s->end = (stretch + 1) * tail_runs / args.tail_units;
    return next_segment(args, s);
}

/* Where the sums of a segment that is not whole go. */
static __device__ __forceinline__ float *partial_tile(const ieee_args &args, int tile, int piece) {
    const int64_t index = ((int64_t)blockIdx.z * tail_tiles(args) + (tile - args.full_tiles)) * args.pieces + piece;
    return args.partial + index * args.tile_m * args.tile_n;
}

/* Element (row, col) of C, from its whole sum. */
static __device__ __forceinline__ void store_element(const ieee_args &args, int row, int col, float sum) {
    const matrix_in &s = args.source;
    const matrix_out &c = args.c;
    float value = args.alpha * sum;
    if (args.beta != 0.0f)
        value = fmaf(args.alpha, sum,
                     args.beta * s.data[blockIdx.z * s.batch_stride + row * s.row_stride + col * s.col_stride]);
    c.data[blockIdx.z * c.batch_stride + row * c.row_stride + col * c.col_stride] = value;
}
