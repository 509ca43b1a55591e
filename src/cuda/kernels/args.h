/* args.h: what the host passes to each kernel, by value, as its one parameter. Plain C, for nvcc and the C compiler. */
#ifndef TESSERA_CUDA_ARGS_H
#define TESSERA_CUDA_ARGS_H

#include <stdint.h>

/* Rows of A, or columns of B, that are packed, marked and recomputed together. Every multiply kernel's tile is a
 * multiple or a divisor of it, so that a tile of C belongs to one mark of A and one of B. */
enum { PANEL_ROWS = 128 };

/* Dynamic shared memory of a block, in bytes, for who launches it; each kernel asserts that this is what it lays out.
 */
enum {
    IEEE_TILE_128X128_SHARED = 67584,
    IEEE_TILE_128X64_SHARED = 51200,
    IEEE_TILE_64X64_SHARED = 34816,
    IEEE_MMA_64X128_SHARED = 76800,
    IEEE_MMA_64X64_SHARED = 52224,
    IEEE_MMA_32X64_SHARED = 53248,
    IEEE_MMA_32X32_SHARED = 36864,
    IEEE_MMA_SHORT_K_SHARED = 69632,
    PACK_SHARED = 52992,
    SPLIT_FP32_SM90_SHARED = 217136,
    SPLIT_FP32_SM90_T128_SHARED = 108576,
    SPLIT_TF32_SM90_SHARED = 217152,
    SPLIT_FP32_MMA_SM80_SHARED = 98304,
    SPLIT_TF32_MMA_SM80_SHARED = 73728
};

/* Blocks of C that a split kernel writes, or leaves to be recomputed, as a whole. */
enum { DOUBT_ROWS = 16, DOUBT_COLS = 32 };

/* How many of them an m x n matrix has. */
static inline int64_t doubts_in(int64_t m, int64_t n) {
    return (m + DOUBT_ROWS - 1) / DOUBT_ROWS * ((n + DOUBT_COLS - 1) / DOUBT_COLS);
}

/* A matrix in place. Strides count floats. */
typedef struct matrix_in {
    const float *data;
    int64_t row_stride, col_stride, batch_stride;
} matrix_in;

typedef struct matrix_out {
    float *data;
    int64_t row_stride, col_stride, batch_stride;
} matrix_out;

/* C = alpha*A*B + beta*S in IEEE float32, operands read in place with any strides (ieee_*.cu). `source` is S, which may
 * be C: an element of it is read by the thread that writes the same one of C, before. With beta = 0 it is not read.
 * C is tiles_m x tiles_n tiles of tile_m x tile_n, the kernel's own size. Tiles [0, full_tiles) are computed whole, by
 * one block each. The rest, the tail, is shared evenly by tail_units blocks: all its terms of k, tile after tile, are
 * cut into tail_units stretches of whole runs of IEEE_RUN terms. What a stretch covers of a tile is a piece. A tile in
 * more than one piece has their plain sums in partial[batch][tile - full_tiles][piece][tile_m][tile_n], where there is
 * room for `pieces` (at least ieee_pieces); ieee_reduce, given the same arguments, adds them up in order and applies
 * alpha and beta.
 *
 * marks: NULL, or one number per panel of A (marks_a[batch*marks_a_batch_stride + i]) and of B; a tile
 * is computed only where the product of its two marks exceeds mark_limit; where that is finite and there are `doubts`,
 * only those blocks of it that have a nonzero byte there (split_args). A batch stride of 0 of the marks shares them
 * between products. */
enum { IEEE_RUN = 32 };

typedef struct ieee_args {
    matrix_in a, b, source;
    matrix_out c;
    int32_t m, n, k, batch;
    float alpha, beta;
    int32_t tile_m, tile_n;
    int32_t tiles_m, tiles_n;
    int32_t full_tiles;
    int32_t tail_units, pieces;
    float *partial;
    const float *marks_a, *marks_b;
    float mark_limit;
    int64_t marks_a_batch_stride, marks_b_batch_stride;
    const uint8_t *doubts;
    int64_t doubts_batch_stride;
    unsigned long long *fallback_tiles; /* with marks: counts the tiles recomputed */
} ieee_args;

/* The most pieces a tile of the tail can fall into. No more units than the tail has runs. */
static inline int64_t ieee_pieces(int64_t k, int64_t tail_tiles, int64_t tail_units) {
    const int64_t runs = (k + IEEE_RUN - 1) / IEEE_RUN, shortest = tail_tiles * runs / tail_units;
    return tail_units % tail_tiles == 0 ? tail_units / tail_tiles : (runs + shortest - 1) / shortest + 1;
}

/* ---- Split operands ---------------------------------------------------------------------------------------------- */

/* An operand is seen as `rows` rows of length k: A as it is, B transposed, so that k runs along a row of both. Row r,
 * scaled by 2^exponent[r], is split into fp16 pieces: x*2^e = hi + lo*2^-11 (+ what fp16 cannot hold).
 *
 * Panels. Rows go in panels of PANEL_ROWS, k in blocks of SPLIT_K. Block (panel, kb) is `pieces` tiles, hi before lo,
 * each stored rows x 128 bytes, where `stored rows` is PANEL_ROWS, in the last panel the rows it has rounded up to 8.
 * Within a tile, 16-byte chunk j of row r lies at chunk j ^ (r % 8): the 128-byte swizzle of Hopper's matrix
 * instruction, so a tile goes to shared memory as one straight copy. Missing rows and k are zero.
 *
 *   panel p starts at    p * k_blocks * pieces * PANEL_ROWS * 128
 *   block kb of it at  + kb * pieces * stored_rows(p) * 128
 *   its lo tile at     + stored_rows(p) * 128
 *
 * Marks. A panel's mark is its depth: how far its smallest nonzero element, scaled, lies below fp16's least normal
 * number 2^-14, as a factor; 1 where none does, infinite where one does not fit at all (Inf, NaN, overflow). With two
 * pieces `deep` counts the elements below, in each row. Where the marks of A and B multiply to at most mark_limit, which
 * depends on k (docs/internals/numerics.md), the pieces carry every product to the last bit that matters, whatever the sums are.
 * Where to more, a sum is good if it is large beside what the deep elements can have lost; blocks with one that is not,
 * and tiles with an infinite mark, are ieee's.
 */
enum { SPLIT_K = 64, SPLIT_ROW_BYTES = 128, SPLIT_LO_SHIFT = 11 };

/* So much of k tensor cores sum before float32 registers take over (docs/internals/numerics.md, Promotion). */
enum { SPLIT_SUM_K = 32 };

/* The exponent of a row of zeros; those of others are within +-62. */
enum { ALL_ZERO = 63 };

typedef struct split_operand {
    const uint8_t *panels;
    const int32_t *exponents;    /* [rows] */
    const float *marks;          /* [panels] */
    const uint32_t *deep;        /* [rows] */
    int64_t panels_batch_stride; /* bytes; 0: shared by all products of the batch, as are the next two */
    int64_t exponents_batch_stride;
    int64_t marks_batch_stride;
} split_operand;

/* C = alpha*A*B + beta*S from split operands (split_*.cu; `source` is S, as in ieee_args), but for tiles whose marks
 * multiply to more than mark_limit. Of those whose marks are finite, with `doubts`, blocks of DOUBT_ROWS x DOUBT_COLS
 * are computed all the same if no sum in them, before it is scaled back, is below least_per_deep times the number of
 * deep elements there may be behind it; doubts[batch][block row][block column] is 0 for these and 1 for the others.
 * slices > 1: slice s of each tile covers k_blocks_per_slice blocks and writes its sums, the rows' and columns' scales
 * taken out, to partial[batch*slices + s][m][n]; alpha, beta and doubts wait for split_reduce. */
typedef struct split_args {
    split_operand a, b;
    matrix_in source;
    matrix_out c;
    int32_t m, n, batch;
    int32_t k_blocks;
    float alpha, beta;
    float mark_limit, least_per_deep;
    uint8_t *doubts; /* may be NULL */
    int64_t doubts_batch_stride;
    int32_t tiles_m, tiles_n; /* of C, in the kernel's tile */
    int32_t slices, k_blocks_per_slice;
    int32_t short_end; /* not 0: k ends in the first SPLIT_SUM_K of its last block */
    float *partial;
} split_args;

/* Splits one operand into panels (pack.cu). A first pass scales each row by a sample of it, and notes in `misfits` the
 * panels in which something did not fit, in `overflows` the largest such element of each row; a second scales the rows of
 * these panels by that, and splits them again. What depth a panel has in the end is its mark. */
typedef struct pack_args {
    const float *data; /* element (row, k) at data[row*row_stride + k*k_stride] */
    int64_t row_stride, k_stride, batch_stride;
    int32_t rows, k, batch;
    int32_t k_blocks;
    int32_t pieces; /* 2: hi and lo; 1: hi */
    uint8_t *panels;
    int32_t *exponents;
    float *overflows; /* [rows]: 0 where all fits; pack_sample sets these and what follows */
    uint32_t *deep;   /* [rows], counted each time a row is split in two */
    int32_t *misfits; /* [panels]: 1 where a depth was infinite at first, else 0 */
    float *marks;     /* [panels] */
    int64_t panels_batch_stride, exponents_batch_stride, marks_batch_stride;
} pack_args;

/* How far pack_split has come, for its blocks to know of each other. */
typedef struct pack_progress {
    uint32_t blocks; /* how many have nothing left to split; and the bit PACK_MISFITS, if something did not fit */
    uint32_t units;  /* tickets that blocks have taken, for units beyond their first few */
    uint32_t again;  /* and for units to split again */
} pack_progress;
enum { PACK_MISFITS = 1 << 30 };

/* Both operands in one launch; an operand with no rows is passed over. */
typedef struct pack_pair_args {
    pack_args operand[2];
    pack_progress *progress;
    unsigned long long *marked_panels; /* counts, for tsr_stats */
} pack_pair_args;

#endif
