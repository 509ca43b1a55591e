/* args.h: what the host passes to each kernel, by value, as its one parameter. Plain C, for nvcc and the C compiler. */
#ifndef TESSERA_CUDA_ARGS_H
#define TESSERA_CUDA_ARGS_H

#include <stdint.h>

/* Rows of A, or columns of B, that are packed and marked together. A tile of C has rows of one panel of A and columns
 * of one panel of B, or of two in tf32's 256-wide tile. */
enum { PANEL_ROWS = 128 };

/* A check block: elements of C that a split kernel either stores or leaves to ieee, as a whole. */
enum { CHECK_ROWS = 16, CHECK_COLS = 32 };

/* A matrix in place. Strides count floats. */
typedef struct matrix_in {
    const float *data;
    int64_t row_stride, col_stride, batch_stride;
} matrix_in;

typedef struct matrix_out {
    float *data;
    int64_t row_stride, col_stride, batch_stride;
} matrix_out;

/* C = alpha*A*B + beta*S in IEEE float32, operands read in place with any strides (ieee_*.cu). The addend S may be C:
 * the thread that writes an element of C reads the same element of S before. With beta = 0 the addend is not read.
 *
 * C is tiles_m x tiles_n tiles of tile_m x tile_n, the kernel's own size. One thread block computes each of the tiles
 * [0, full_tiles) whole. The others are the stream-K tail: their k ranges, laid end to end and cut at multiples of
 * IEEE_RUN, are shared evenly by tail_blocks thread blocks. A segment is the part of one tile that one block covers. If
 * a tile has several segments, their plain sums go to partial[batch][tile - full_tiles][segment][tile_m][tile_n], which
 * has room for `segments` of them (at least cuda_ieee_segments); ieee_reduce, given the same arguments, adds them up in
 * order and applies alpha and beta.
 *
 * Kernels in one launch (ieee_small.cu, ieee_vector.cu, split_direct.cu) have no tail: `cluster` thread blocks share a
 * tile, with k_each terms each, and the threads of a block share these as `share` says. Their grid has tile rows along
 * x, a cluster for each, tile columns along y, and the batch along z. In split_direct_wide.cu thread blocks lie along
 * x, tiles are numbered as find_tile says, full_tiles is 0, and each tile has `segments` slices of k_each terms: 1, if
 * it is whole or has a cluster.
 *
 * marks_a, marks_b: NULL, or one mark per panel of A and of B (split_operand). Then only tiles whose two marks multiply
 * to more than mark_limit are computed, and where that product is finite and `recompute` is given, only the rows of
 * their check blocks that have a bit there (split_args); by_row as there. A marks batch stride of 0 shares the marks
 * between products. */
enum { IEEE_RUN = 32 };

/* Tiles, or slices of them, that a thread block of split_direct_wide.cu computes at most. */
enum { WIDE_TILES_OF_BLOCK = 1024 };

typedef struct ieee_args {
    matrix_in a, b, addend;
    matrix_out c;
    int32_t m, n, k, batch;
    float alpha, beta;
    int32_t tile_m, tile_n;
    int32_t tiles_m, tiles_n;
    int32_t full_tiles;
    int32_t tail_blocks, segments;
    float *partial;
    int32_t cluster, k_each, share;
    const float *marks_a, *marks_b;
    float mark_limit;
    int32_t by_row;
    int64_t marks_a_batch_stride, marks_b_batch_stride;
    const uint16_t *recompute;
    int64_t recompute_batch_stride;
    unsigned long long *fallback_tiles; /* with marks: counts the tiles recomputed */
} ieee_args;

/* Split operands. An operand is seen as `rows` rows of length k: A as it is, B transposed, so that k runs along a row
 * of both. Row r, scaled by 2^exponents[r], is split into fp16 components: x*2^e = hi + lo*2^-11 + a remainder below
 * lo's last bit. tf32 keeps hi alone.
 *
 * Panels. Rows are grouped in panels of PANEL_ROWS, k in blocks of SPLIT_K. Block kb of a panel is one tile for each
 * component, hi before lo, of stored_rows x 128 bytes; stored_rows is PANEL_ROWS, or in the last panel its number of
 * rows rounded up to PANEL_ROW_STEP. Within a tile, 16-byte chunk j of row r lies at chunk j ^ (r % 8): the 128-byte
 * swizzle of Hopper's matrix instruction, so that a tile goes to shared memory as one straight copy. Missing rows and k
 * are zero.
 *
 *   panel p starts at    p * k_blocks * components * PANEL_ROWS * 128
 *   block kb of it at  + kb * components * stored_rows(p) * 128
 *   its lo tile at     + stored_rows(p) * 128
 *
 * Marks. An element is tiny if, scaled, it lies below fp16's smallest normal number 2^-14; its depth is by what factor.
 * A panel's mark is the largest depth in it: 1 if nothing is tiny, infinite if an element does not fit at all (Inf,
 * NaN, overflow). With two components, tiny_counts has the number of tiny elements of each row, and NOT_CARRIED where
 * one does not fit. Where the marks of A and B multiply to at most mark_limit, which depends on k
 * (docs/internals/numerics.md), every sum of the split kernels keeps the bound. Where they multiply to more, a sum
 * keeps it if it is large compared with what the tiny elements may have lost; rows of check blocks with a sum that is
 * not, and tiles with an infinite mark, are left to ieee. by_row: what is left of a row depends on that row and on B
 * alone. */
enum { NOT_CARRIED = 1 << 30 };
enum { SPLIT_K = 64, SPLIT_ROW_BYTES = 128, SPLIT_LO_SHIFT = 11 };

/* Rows after which the swizzle repeats. */
enum { PANEL_ROW_STEP = 8 };

/* The terms of k that tensor cores sum before the sum is promoted to float32 registers (docs/internals/numerics.md). */
enum { SPLIT_SUM_K = 32 };

/* Floats between the rows of a check block in the buffer of shared memory through which a warp checks and stores it:
 * the accumulators' pattern (8 rows x 4 pairs) falls on all banks. */
enum { OUT_STRIDE = 40 };

/* The exponents of rows are within +-SPLIT_EXPONENT_LIMIT, so that 2^(e + SPLIT_LO_SHIFT) is a float; that of a row of
 * zeros is ALL_ZERO. */
enum { SPLIT_EXPONENT_LIMIT = 115, ALL_ZERO = SPLIT_EXPONENT_LIMIT + 1 };

typedef struct split_operand {
    const uint8_t *panels;
    const int32_t *exponents;       /* [rows] */
    const float *marks;             /* [panels] */
    const uint32_t *tiny_counts;    /* [rows] */
    int64_t panels_batch_stride;    /* bytes; 0 in this and the next two: shared by all products of the batch */
    int64_t exponents_batch_stride; /* of tiny_counts, too */
    int64_t marks_batch_stride;
} split_operand;

/* C = alpha*A*B + beta*S from split operands (split_*.cu), except for tiles whose marks multiply to more than
 * mark_limit. If those marks are finite and `recompute` is given, each check block is tested: a row of it is stored if
 * every sum, before it is scaled back, is at least least_per_tiny times the number of tiny elements in its row of A and
 * column of B. Of recompute[batch][block row][block column], bit i becomes 0 if row i is stored, else 1. Without by_row
 * a kernel may leave rows whose sums are large enough.
 *
 * by_row: in tiles whose panel of A has a mark above 1, rows without a tiny element are stored, if B's mark is at most
 * mark_limit, and others are tested, also where A's mark is infinite.
 *
 * Tiles are numbered as tile_at_number (split.cuh) says. Those from full_tiles on are in `slices` slices of k: slice s
 * covers k_blocks_per_slice blocks of k and writes its sums, scaled back but without alpha and beta, to
 * partial[batch*slices + s][tile - full_tiles][tile_m][tile_n]; split_reduce adds the slices and does the rest.
 *
 * parts: if it is not 1, no tile is in slices. A cluster of `parts` thread blocks, MAX_SPLIT_PARTS at most, computes
 * each tile. Each block has up to k_blocks_per_slice blocks of k, and at least one; they add up their sums in shared
 * memory. */
enum { MAX_SPLIT_PARTS = 8 };

typedef struct split_args {
    split_operand a, b;
    matrix_in addend; /* S; it equals C or does not overlap it, and is not read with beta = 0 */
    matrix_out c;
    int32_t m, n, batch;
    int32_t k_blocks;
    float alpha, beta;
    float mark_limit, least_per_tiny;
    int32_t by_row;
    uint16_t *recompute; /* may be NULL */
    int64_t recompute_batch_stride;
    int32_t tile_m, tile_n, tiles_m, tiles_n; /* the kernel's tile, and C in these */
    int32_t full_tiles, slices, parts, k_blocks_per_slice;
    int32_t short_end; /* not 0: k ends in the first SPLIT_SUM_K of its last block */
    float *partial;
} split_args;

/* How a matrix lies in memory, for copies of boxes of it; what the driver's cuTensorMapEncodeTiled makes. */
typedef struct tensor_map {
    uint64_t words[16];
} __attribute__((aligned(64))) tensor_map;

/* C = alpha*A*B + beta*S in TF32, from float32 operands in place (tf32_sm90.cu), each along k or across it. k is cut in
 * parts or slices of k_blocks_each blocks of TF32_K, none of them empty: a cluster of `parts` thread blocks adds up the
 * parts of a tile; or the sums of slices go to partial[batch][tile][slice][tile_m][tile_n], as the tail of ieee_args,
 * and ieee_reduce adds them up.
 *
 * marks_a, marks_b: NULL, or those of a split kernel's panels; then only what it left is computed, where two marks
 * multiply to more than 1. */
enum { TF32_K = 32 };

typedef struct tf32_args {
    tensor_map a, b;
    matrix_in addend;
    matrix_out c;
    int32_t m, n, batch;
    int32_t a_across, b_across;   /* not 0: rows of A, columns of B are neighbours in memory */
    int32_t a_batched, b_batched; /* 0: shared by all products of the batch */
    float alpha, beta;
    int32_t tiles_m, tiles_n;
    int32_t k_blocks, k_blocks_each;
    int32_t parts, slices; /* one of them is 1 */
    float *partial;
    const float *marks_a, *marks_b;
    int64_t marks_a_batch_stride, marks_b_batch_stride;
    unsigned long long *fallback_tiles; /* with marks: counts the tiles computed */
} tf32_args;

/* Copies an operand to rows along k, a multiple of four floats apart (tf32_copy.cu). */
typedef struct copy_args {
    const float *from;
    int64_t row_stride, k_stride, batch_stride;
    int32_t rows, k, pitch;
    float *to; /* [batch][rows][pitch] */
} copy_args;

/* Packs one operand into panels (pack.cu). A first pass scales each row by a sample of it. It notes each element that
 * does not fit: the largest of each row in row_overflows, the panel in overflowed_panels. A second pass packs these
 * panels again, their rows scaled by row_overflows. Where marks alone decide about a panel (two components, not by_row)
 * and, with those of the operand packed beside it, already leave all of its tiles to ieee, it is not packed again: its
 * mark is infinite, and the panel, its exponents and tiny_counts mean nothing. */
typedef struct pack_args {
    const float *data; /* element (row, k) at data[row*row_stride + k*k_stride] */
    int64_t row_stride, k_stride, batch_stride;
    int32_t rows, k, batch;
    int32_t k_blocks;
    int32_t components; /* 2: hi and lo; 1: hi */
    int32_t by_row;     /* not 0: with one component, too, marks are depths, and tiny elements are counted */
    int32_t is_large;   /* not 0: pack_look and pack_scan look for rows that outgrow their sample; one product only */
    uint8_t *panels;
    int32_t *exponents;
    float *row_overflows;       /* [rows]: 0 where all fits; pack_sample initialises this and what follows */
    uint32_t *tiny_counts;      /* [rows], added to when a row is split, and again when it is with another exponent */
    int32_t *overflowed_panels; /* [panels]: 1 where the first pass found that it must be packed again, else 0 */
    float *marks;               /* [panels] */
    int64_t panels_batch_stride, exponents_batch_stride, marks_batch_stride;
} pack_args;

/* How far pack_split has come, shared by its thread blocks. */
typedef struct pack_progress {
    uint32_t blocks;         /* thread blocks that finished the first pass, and the bits below */
    uint32_t tickets;        /* pack tiles handed out in the first pass, beyond those each block starts with */
    uint32_t second_tickets; /* groups of pack tiles handed out in the second pass */
    uint32_t outgrown;       /* bit i: pack_look found a row of operand i that outgrows its sample */
} pack_progress;
/* Something did not fit that may with other exponents; then whoever finishes last says whether there is a second
 * pass. */
enum { PACK_OVERFLOWED = 1 << 30, PACK_AGAIN = 1 << 29, PACK_DONE = 1 << 28 };

/* Thread blocks of pack_look, and the elements that each looks at; rows of a block of pack_scan, where rows are
 * neighbours in memory and where they are not. */
enum { PACK_LOOKS = 128, PACK_LOOK_ELEMENTS = 1 << 14, PACK_SCAN_ACROSS = 32, PACK_SCAN_ALONG = 4 };

/* Both operands in one launch; an operand with no rows is skipped. pack_rows (pack_rows.cu) packs those that the other
 * kernels do not, except that pack_sample initialises their marks. */
typedef struct pack_pair_args {
    pack_args operand[2];
    float *marks[2]; /* of operands that pack_rows packs */
    int32_t mark_counts[2];
    int32_t beside_tiles; /* pack_rows: not 0 if pack_split packs the other operand */
    pack_progress *progress;
    unsigned long long *marked_panels; /* counts panels with an infinite mark, for tsr_stats */
} pack_pair_args;

#endif
