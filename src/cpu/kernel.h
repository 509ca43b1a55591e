/* kernel.h: what a microkernel is. One file per instruction set defines one struct cpu_kernel; kernels.c lists them.
 *
 * A microkernel computes one tile of C, at most mr x nr, over one k block:
 *
 *     c[i*c_row + j] = alpha * sum over p < k of a[i*a_row + p*a_step] * b[p*b_step + j]  +  beta * s[i*s_row + j]
 *
 * Each element has chains of cpu_chain(k) fused multiply-adds from +0 in the order of p, whose sums are added in that
 * order; then one multiply-add more for alpha and beta. So the bits of C depend on where k is cut (kc) and on nothing
 * else: not on the tile, the packing, nor the threads. A single row, multiply_row, and multiply_dots have orders of
 * their own, unless the context is batch-invariant (kernels.c).
 *
 * A is read through two strides: a packed panel has a_row = 1 and a_step = mr, and a matrix that is not worth packing
 * is read in place. B is read along unit stride: a packed panel has b_step = nr.
 *
 * Kernels run between cpu_rounding_begin and cpu_rounding_end (rounding.h), where comparing alpha or beta with 0 is
 * safe: subnormals are not taken for zeros.
 */
#ifndef TESSERA_CPU_KERNEL_H
#define TESSERA_CPU_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "problem.h"

struct cpu_tile {
    int m, n;  /* 1..mr rows, 1..nr columns; nothing outside them is read or written */
    int64_t k; /* at least 1 */
    const float *a;
    int64_t a_row, a_step; /* in floats, as all strides */
    const float *b;
    int64_t b_step;
    /* In this many of the first steps of k, vectors may be read whole beyond column n: B is in place, and what lies
     * there belongs to B. Some processors (Zen 5) do not prefetch for masked loads. In the first-level cache masked
     * loads are better: they leave the prefetchers to A. */
    int64_t whole;
    const float *s; /* addend; either equals c or does not overlap it */
    int64_t s_row;
    float *c;
    int64_t c_row;
    float alpha, beta; /* beta = 0: s is not read */

    /* What is read after this tile, for a kernel to prefetch. In each CPU_FETCH_STEPS of k: of A one cache line for
     * each row of the tile, next_a_row apart, and next_a_step behind those before; of B next_b_rows rows of nr columns,
     * next_b_step apart, and next_b_skip more after each next_b_run of them. NULL: nothing. next_c: where the tile of C
     * lies whose lines are prefetched; NULL: this one's. */
    const float *next_a, *next_b, *next_c;
    int64_t next_a_row, next_a_step, next_b_step, next_b_skip;
    int next_b_rows, next_b_run;
};

/* The last members of a tile that has nothing to prefetch. If an initialiser left them out, the compiler would clear
 * the whole struct by `rep stos`, which takes longer than some products. */
#define CPU_NOTHING_AHEAD                                                                                            \
    .whole = 0, .next_a = NULL, .next_b = NULL, .next_c = NULL, .next_a_row = 0, .next_a_step = 0, .next_b_step = 0, \
    .next_b_skip = 0, .next_b_rows = 0

/* A tile's `whole`, for vectors of `lanes` floats, where `floats` floats of B follow its first element. */
static inline int64_t cpu_whole_steps(const struct cpu_tile *t, int lanes, int64_t floats) {
    const int64_t row = (t->n + lanes - 1) / lanes * lanes, most = floats < row ? 0 : (floats - row) / t->b_step + 1;
    return most < t->k ? most : t->k;
}

enum { CPU_FETCH_STEPS = 16 };

/* next_b_rows where `count` tiles share the prefetching of a panel of B: as few lines with each as that allows, because
 * too many at a time would keep the tile's own loads waiting. The first CPU_FETCH_STEPS / next_b_rows tiles do it. */
static inline int cpu_fetch_rows(int64_t count) { return count >= 16 ? 1 : count >= 8 ? 2 : 4; }

/* Floats of a cache line. */
enum { CPU_LINE = 16 };

/* Floats of B that stay in the first-level cache while C is written. */
enum { CPU_NEAR_FLOATS = 6144 };

/* The most elements that a tile may have. */
enum { CPU_TILE_FLOATS = 512 };

/* The most terms of a chain: short ones have small errors (numerics.md). */
enum { CPU_CHAIN = 128 };

/* The terms of each chain of a k block; the last one may have fewer. */
static inline int64_t cpu_chain(int64_t k) {
    const int64_t chains = (k + CPU_CHAIN - 1) / CPU_CHAIN;
    return chains > 1 ? (k + chains - 1) / chains : k;
}

/* Where a product is not packed and B's rows are not contiguous, strips of B are copied, transposed, to the stack: the
 * most columns of a strip, and the most floats of its copy, whose rows are padded to a multiple of 8. */
enum { CPU_STRIP_COLUMNS = 64, CPU_STRIP_FLOATS = 8192 };

/* Rows of C that multiply_few computes, and where it is better than tiles. B is read once, so that memory is the limit
 * unless B is near. Where B's rows are contiguous, several whole rows are read side by side, where tiles would read a
 * strip of each: better if B is far. Where its columns are contiguous, they are transposed in registers: always better
 * for up to four rows of C. The most rows that are computed together; in groups, which read B from cache; and at all,
 * if the kernel has a better way for those. */
enum { CPU_FEW_ROWS = 8, CPU_GROUPED_ROWS = 11, CPU_MANY_ROWS = 40 };

/* The most elements of a few columns of C that are computed, transposed, in a buffer. Short parts of A's columns would
 * be read more slowly from memory. */
enum { CPU_FEW_FLOATS = 2048 };

/* More than CPU_FEW_ROWS rows. */
static inline bool cpu_is_many_rows(int64_t m, int64_t n, int64_t k) {
    enum { FAR = 1 << 15, FAR_OF_GROUPS = 40000, TERMS_FOR_EACH = 8 };
    enum { NARROWEST = 32, NARROW = 96, TERMS_OF_NARROW = 1000 };
    enum { LONG_ROW = 384, MANY_TERMS = 640, ROWS_OF_ANY = 32, WIDE = 200, TERMS_OF_MORE = 500 };
    if (k < TERMS_FOR_EACH * m) return false;
    if (m <= CPU_GROUPED_ROWS) return n >= NARROW && n >= FAR_OF_GROUPS / k && (n <= LONG_ROW || k <= MANY_TERMS);
    if (n <= NARROW) return n > NARROWEST && k >= TERMS_OF_NARROW;
    return n >= FAR / k && (m <= ROWS_OF_ANY || (n <= WIDE && k >= TERMS_OF_MORE));
}

/* most: few_rows of the kernel. */
static inline bool cpu_is_few_rows(int most, int64_t m, int64_t n, int64_t k, int64_t b_row, int64_t b_col) {
    enum { LEAST_TERMS = 16, FAR = 1 << 15, ENOUGH = 96, FAR_IF_FEW = 1 << 16 };
    enum { ALWAYS_TRANSPOSED = 4, WORTH_TRANSPOSING = 1 << 13 };
    if (m < 2 || m > most || k < LEAST_TERMS) return false;
    if (m > CPU_FEW_ROWS) return b_col == 1 && cpu_is_many_rows(m, n, k);
    if (n < m) return false;
    if (b_col == 1) return n > CPU_STRIP_COLUMNS && n >= (k < ENOUGH || n < ENOUGH ? FAR_IF_FEW : FAR) / k;
    return b_row == 1 &&
           (m <= ALWAYS_TRANSPOSED ? k >= 2 * LEAST_TERMS : k >= 4 * LEAST_TERMS && n >= WORTH_TRANSPOSING / k);
}

/* Bits of struct cpu_kernel.needs. */
enum { CPU_AVX2 = 1, CPU_FMA = 2, CPU_AVX512F = 4, CPU_AVX512VL = 8, CPU_AMX_BF16 = 16 };

struct cpu_kernel {
    const char *name;
    unsigned needs;       /* instruction sets, of the bits above */
    int mr, nr;           /* the tile */
    int tall_mr, tall_nr; /* the most rows and columns of a tile with more rows; 0: there is none */
    int lanes;            /* floats of a vector */
    int64_t mc, nc, kc;   /* the largest macro block: rows of a block of A, columns of a block of B, terms of both */
    void (*multiply)(const struct cpu_tile *tile);
    /* The same for a whole tile of mr x nr, which also packs its rows of A, its columns of B, or both, into the panels
     * given: memory is read while multiply-adds go on. NULL: operands are packed beforehand. */
    void (*multiply_and_pack)(const struct cpu_tile *tile, float *panel_a, float *panel_b);
    /* Packs columns of B, each contiguous and from_col from the next, as rows that are to_step floats apart, a multiple
     * of 8. NULL: pack.c does it. */
    void (*transpose)(float *to, int64_t to_step, const float *from, int64_t from_col, int columns, int terms);
    /* One row of C of any length n over all of k: a tile with B's elements b_col apart along a row. Either b_col or
     * b_step is 1, which may decide the order of the sums. kc is where the sums of tiles are cut. NULL: rows are
     * tiles. */
    void (*multiply_row)(const struct cpu_tile *row, int64_t b_col, int64_t kc);
    /* Two to CPU_FEW_ROWS rows of C in the same way, or to few_rows where B's rows are contiguous, but in the order of
     * tiles; and one row, which is multiply_row in a batch-invariant context. NULL: they are tiles. */
    void (*multiply_few)(const struct cpu_tile *rows, int64_t b_col, int64_t kc);
    int few_rows; /* the most for which that is better than tiles: CPU_GROUPED_ROWS, or CPU_MANY_ROWS */
    void (*multiply_row_in_order)(const struct cpu_tile *row, int64_t b_col, int64_t kc);
    /* Any number of rows and columns of C in the same way, where both operands are contiguous along k: a_step = 1 and
     * b_step = 1. The order of the sums is its own, so a batch-invariant context does without. NULL: so do all. */
    void (*multiply_dots)(const struct cpu_tile *product, int64_t b_col, int64_t kc);
    /* A whole product without packing: a tile of any m and n, which it may change, with B's elements b_col apart along
     * a row. Either b_col or b_step is 1, and unless b_col is, a strip of B has at most CPU_STRIP_FLOATS. NULL: small.c
     * calls multiply for each tile. */
    void (*multiply_whole)(struct cpu_tile *product, int64_t b_col);
};

/* The rows of a tile of this many columns of C, where A is read in place. */
static inline int cpu_tile_rows(const struct cpu_kernel *kernel, int64_t columns) {
    return kernel->tall_nr && columns <= kernel->tall_nr ? kernel->tall_mr : kernel->mr;
}

/* Whether multiply_row by itself prefetches a B whose columns are contiguous, so that nobody need touch it before: they
 * are short, and eight side by side are no pattern for a processor. */
static inline bool cpu_prefetches_columns(int64_t columns, int64_t terms) {
    enum { FEW_TERMS = 64, LEAST_FLOATS = 1 << 13 };
    return terms <= FEW_TERMS && columns * terms > LEAST_FLOATS;
}

/* Whether C is a row that the kernel's multiply_row computes, B's elements being so far apart. The planned path and
 * that of small products must agree, or bits would depend on the path. */
static inline bool cpu_is_row(const struct cpu_kernel *kernel, int64_t m, int64_t n, int64_t k, int64_t b_row,
                              int64_t b_col) {
    return m == 1 && kernel->multiply_row && (b_row == 1 || b_col == 1 || k == 1 || n == 1);
}

/* Whether the kernel's multiply_dots computes C, both operands being contiguous along k. Again for both paths. It is
 * better where sums are so few that tiles would be mostly empty; and where there are so few rows or columns that making
 * rows of B's columns would take a good part of the time, if the sums have terms enough to repay adding their lanes,
 * and the longer operand can be touched beforehand. */
static inline bool cpu_is_dots(const struct cpu_kernel *kernel, int64_t m, int64_t n, int64_t k, int64_t a_col,
                               int64_t b_row) {
    enum { LEAST_TERMS = 16, LONG = 1024, VERY_FEW_SUMS = 20 };
    enum { MOST = 32, ENOUGH_TERMS = 96, TERMS_FOR_EACH = 8, NEAR_OF_FEW = 1 << 13, NEAR = 1 << 15 };
    if (m < 2 || n < 2 || !kernel->multiply_dots || a_col != 1 || b_row != 1) return false;
    const int64_t few = min64(m, n), many = max64(m, n);
    if (many <= CPU_FEW_ROWS) return k >= LEAST_TERMS && (k <= LONG || m * n <= VERY_FEW_SUMS);
    return few <= MOST && k >= max64(ENOUGH_TERMS, TERMS_FOR_EACH * few) &&
           many <= (few <= CPU_FEW_ROWS ? NEAR_OF_FEW : NEAR) / k;
}

/* The most terms of a k block of theirs. */
static inline int64_t cpu_dot_terms(const struct cpu_kernel *kernel) { return (int64_t)CPU_CHAIN * kernel->lanes; }

/* Whether C^T = B^T A^T is the better product, where C has few rows or columns and its rows are contiguous. Kernels
 * load vectors along B's rows; where B's columns are contiguous instead, rows must be made. C^T loads along A's columns
 * and is written element by element. Times are in tenths of a cycle for each term: of a multiply-add of vectors, of an
 * element of an operand that is made contiguous, and of one of C that is written apart. If A is read in place by C^T
 * alone, in the order of memory, C^T may even take a little longer, unless C = A B needs no plan (small.c). Otherwise
 * it has to be clearly better. No floating point: the caller's mode may trap. */
static inline bool cpu_is_better_transposed(const struct cpu_kernel *kernel, int64_t m, int64_t n, int64_t k,
                                            int64_t a_row, int64_t b_col, bool needs_plan) {
    enum { FEW = 64, LEAST_TERMS = 32, LARGE_WORK = 1 << 24, LONGEST = 1 << 30 };
    enum { MULTIPLY = 5, MAKE = 4, WRITE = 15 };
    if ((m > FEW && n > FEW) || k < LEAST_TERMS) return false;
    m = min64(m, LONGEST), n = min64(n, LONGEST); /* longer ones are no different, and products would overflow */
    const int64_t as_is = MULTIPLY * m * ceil_div(n, kernel->lanes) + (b_col == 1 ? 0 : MAKE * n);
    const int64_t transposed = MULTIPLY * n * ceil_div(m, kernel->lanes) + (a_row == 1 ? 0 : MAKE * m) +
                               WRITE * m * n / k;
    const int percent = a_row == 1 && (b_col != 1 || m > n)     ? (needs_plan ? 115 : 88)
                        : b_col == 1 && m * n <= LARGE_WORK / k ? 70
                                                                : 85;
    return 100 * transposed < percent * as_is;
}

extern const struct cpu_kernel cpu_kernel_avx512, cpu_kernel_avx2, cpu_kernel_neon, cpu_kernel_portable;

/* In the table for its name and its needs; its loops are its own (amx.h). */
extern const struct cpu_kernel cpu_kernel_amx;

/* Before a loop over a constant number of rows or vectors: fully unrolled, an array indexed by it becomes registers. */
#ifdef __clang__
#define CPU_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CPU_UNROLL _Pragma("GCC unroll 32")
#endif

/* For the compiler, which does not see that the first chain writes what the second reads. */
#define CPU_WRITTEN_BEFORE_READ(array) __asm__("" : "=m"(array))

/* What every kernel's numbers must satisfy, for a static assert beside them. A block of B (kc x nc) and the panel of A
 * in use (mr x kc) live in the second-level cache, so together they stay under 768 KiB. A block of A (mc x kc) and a
 * block of B stay under the 16 MiB that a thread may take (threads that share a product share its two blocks of A).
 * Blocks are whole tiles so that only the last panel of a matrix is padded. */
#define CPU_BLOCKS_ARE_WHOLE_TILES(mr, nr, mc, nc) ((mc) % (mr) == 0 && (nc) % (nr) == 0)
#define CPU_BLOCKS_FIT_CACHES(mr, mc, nc, kc) \
    (4LL * (kc) * ((nc) + (mr)) <= 768 * 1024 && 4LL * (kc) * ((nc) + (mc)) <= 16 * 1024 * 1024)

#endif
