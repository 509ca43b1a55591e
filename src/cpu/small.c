/* small.c: products that are not worth a plan or packing.
 *
 * Kernels read A and B in place, B along its rows: where those are not contiguous, B is first copied, transposed, to
 * the stack. There is no workspace and no barrier; members of a team take parts of C. Every element is
 * summed in the order of loops.c, so the bits are the same.
 */
#include "cpu/small.h"

#include <math.h>
#include <stdatomic.h>

#include "cpu/amx.h"
#include "cpu/cpu.h"
#include "cpu/kernel.h"
#include "cpu/pack.h"
#include "cpu/plan.h"
#include "cpu/stream.h"
#include "cpu/team.h"
#include "cpu/touch.h"
#include "rounding.h"

/* Multiply-adds of a small product; larger ones are worth packing for. Where no side is longer than SHORT, all of it
 * stays in cache without being packed; where k is not longer than SHALLOW, writing C takes longest. */
enum { MOST_WORK = 1 << 22, MOST_WORK_IF_SHORT = 1 << 24, SHORT = 256, MOST_WORK_IF_SHALLOW = 1 << 26, SHALLOW = 128 };

/* Multiply-adds that are worth a plan if C^T is the better product. */
enum { WORTH_TRANSPOSING = 1 << 19 };

/* Where a matrix ends: behind its last element. Unsigned, because it may overflow for a matrix that is not plain. */
static inline uintptr_t end_of(const float *data, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
    const uint64_t last = ((uint64_t)rows - 1) * (uint64_t)row_stride + ((uint64_t)cols - 1) * (uint64_t)col_stride;
    return (uintptr_t)data + (last + 1) * sizeof *data;
}

/* A matrix with elements in front of its first, or whose end might overflow, is not plain. */
static inline bool has_plain_strides(int64_t row_stride, int64_t col_stride) {
    return ((uint64_t)row_stride | (uint64_t)col_stride) < 1u << 31;
}

/* Floats of a panel of B that is copied where the kernel's multiply_whole does not do it. */
enum { PANEL_FLOATS = 6656 };

/* Whether there is room for the transposed strips of B (kernel.h), or panels. */
static inline bool fits_strips(const struct cpu_kernel *kernel, uint64_t n, uint64_t k, int64_t b_row) {
    if (k > (uint64_t)kernel->kc) k = (uint64_t)kernel->kc;
    const uint64_t columns = n < CPU_STRIP_COLUMNS ? (n + 7) / 8 * 8 : CPU_STRIP_COLUMNS;
    if (columns * k > CPU_STRIP_FLOATS) return false;
    return (kernel->multiply_whole && b_row == 1) ||
           (n < (uint64_t)kernel->nr ? n : (uint64_t)kernel->nr) * k <= PANEL_FLOATS;
}

static inline uint64_t most_work(uint64_t m, uint64_t n, uint64_t k) {
    if (k <= SHALLOW) return MOST_WORK_IF_SHALLOW;
    return m <= SHORT && n <= SHORT && k <= SHORT ? MOST_WORK_IF_SHORT : MOST_WORK;
}

/* Whether C has so few rows or columns that a kernel may compute them side by side. */
static inline bool is_few(const struct cpu_kernel *kernel, int64_t m, int64_t n) {
    return kernel->multiply_few && (m <= kernel->few_rows || n <= CPU_FEW_ROWS);
}

/* Whether several k blocks are not worth a plan: one is, if C^T is better, or if A is so large that a plan prefetches
 * its next rows. */
static inline bool is_small_in_blocks(const struct cpu_kernel *kernel, const tsr_operand *a, const tsr_operand *b) {
    enum { NEAR_FLOATS = 1 << 16 };
    const int64_t m = a->rows, n = b->cols, k = a->cols;
    if (m == 1 || n == 1 || cpu_is_dots(kernel, m, n, k, a->col_stride, b->row_stride) ||
        cpu_is_few_rows(kernel->few_rows, m, n, k, b->row_stride, b->col_stride) ||
        (n <= CPU_FEW_ROWS && cpu_is_few_rows(kernel->few_rows, n, m, k, a->col_stride, a->row_stride)))
        return true;
    return (n <= CPU_FEW_ROWS || m * k <= NEAR_FLOATS) &&
           !cpu_is_better_transposed(kernel, m, n, k, a->row_stride, b->col_stride, true);
}

/* Whether the product is small and C row-major, by shapes and strides. */
static inline bool has_small_shape(const struct cpu_kernel *kernel, const tsr_operand *a, const tsr_operand *b,
                                   const tsr_result *c) {
    const uint64_t m = (uint64_t)a->rows, k = (uint64_t)a->cols, n = (uint64_t)b->cols;
    if ((m - 1) >= MOST_WORK || (n - 1) >= MOST_WORK || (k - 1) >= MOST_WORK || m * n > MOST_WORK_IF_SHALLOW ||
        m * n * k > most_work(m, n, k) || (n == 1 && c->row_stride != 1 && kernel->multiply_row))
        return false;
    if (k > (uint64_t)kernel->kc && !is_small_in_blocks(kernel, a, b)) return false;
    if (m * n * k >= WORTH_TRANSPOSING && !is_few(kernel, a->rows, b->cols) &&
        cpu_is_better_transposed(kernel, a->rows, b->cols, a->cols, a->row_stride, b->col_stride, false))
        return false; /* a plan does that */
    return b->rows == a->cols && c->rows == a->rows && c->cols == b->cols && !a->packed && !b->packed &&
           has_plain_strides(a->row_stride, a->col_stride) && has_plain_strides(b->row_stride, b->col_stride) &&
           has_plain_strides(c->row_stride, c->col_stride) && c->col_stride == 1 && c->row_stride >= c->cols &&
           (b->col_stride == 1 || n == 1 || fits_strips(kernel, n, k, b->row_stride) ||
            cpu_is_dots(kernel, a->rows, b->cols, a->cols, a->col_stride, b->row_stride));
}

/* Whether the pointers of such a product are valid and C is apart from A and B, for certain. */
static inline bool are_apart(const tsr_operand *a, const float *a_data, const tsr_operand *b, const float *b_data,
                             const tsr_result *c, const float *c_data) {
    const uintptr_t a_end = end_of(a_data, a->rows, a->cols, a->row_stride, a->col_stride);
    const uintptr_t b_end = end_of(b_data, b->rows, b->cols, b->row_stride, b->col_stride);
    const uintptr_t c_end = end_of(c_data, c->rows, c->cols, c->row_stride, c->col_stride);
    return a_data && b_data && c_data &&
           ((uintptr_t)a_data | (uintptr_t)b_data | (uintptr_t)c_data) % sizeof(float) == 0 &&
           (c_end <= (uintptr_t)a_data || a_end <= (uintptr_t)c_data) &&
           (c_end <= (uintptr_t)b_data || b_end <= (uintptr_t)c_data);
}

/* For a kernel without multiply_whole. B is small enough to stay in the first-level cache for all rows. */
static void multiply_tiles(const struct cpu_kernel *kernel, struct cpu_tile *tile) {
    const int m = tile->m, n = tile->n;
    const float *const a = tile->a, *const b = tile->b;
    float *const c = tile->c;
    for (int i = 0; i < m; i += kernel->mr) {
        tile->m = (int)min64(kernel->mr, m - i);
        tile->a = a + i * tile->a_row;
        for (int j = 0; j < n; j += kernel->nr) {
            tile->n = (int)min64(kernel->nr, n - j);
            tile->b = b + j;
            tile->s = tile->c = c + i * tile->c_row + j;
            kernel->multiply(tile);
        }
    }
}

static __attribute__((noinline)) void multiply_transposed(const struct cpu_kernel *kernel, struct cpu_tile *tile,
                                                          int64_t b_col) {
    float copy[PANEL_FLOATS];
    const int m = tile->m, n = tile->n;
    const float *const a = tile->a, *const b = tile->b;
    float *const c = tile->c;
    const int64_t b_step = tile->b_step;
    for (int j = 0; j < n; j += kernel->nr) {
        const int columns = (int)min64(kernel->nr, n - j);
        cpu_pack_panels(copy, b + j * b_col, columns, tile->k, b_col, b_step, columns);
        tile->m = m;
        tile->n = columns;
        tile->a = a;
        tile->b = copy;
        tile->b_step = columns;
        tile->c = c + j;
        multiply_tiles(kernel, tile);
    }
}

static inline void multiply_block(const struct cpu_kernel *kernel, struct cpu_tile *tile, int64_t b_col) {
    if (kernel->multiply_whole && (b_col == 1 || tile->b_step == 1))
        kernel->multiply_whole(tile, b_col);
    else if (b_col != 1)
        multiply_transposed(kernel, tile, b_col);
    else
        multiply_tiles(kernel, tile);
}

/* The terms of a k block, as a plan has them. */
static inline int64_t block_terms(const struct cpu_kernel *kernel, int64_t k) {
    return k <= kernel->kc ? k : even_block(k, kernel->kc, 1);
}

/* One k block after the other. */
static __attribute__((noinline)) void multiply_blocks(const struct cpu_kernel *kernel, const struct cpu_tile *tile,
                                                      int64_t b_col) {
    const int64_t terms = block_terms(kernel, tile->k);
    for (int64_t first = 0; first < tile->k; first += terms) {
        struct cpu_tile block = *tile;
        block.k = min64(terms, tile->k - first);
        block.a += first * tile->a_step;
        block.b += first * tile->b_step;
        if (first) block.beta = 1;
        multiply_block(kernel, &block, b_col);
    }
}

static inline void multiply_whole(const struct cpu_kernel *kernel, struct cpu_tile *tile, int64_t b_col) {
    if (tile->k > kernel->kc)
        multiply_blocks(kernel, tile, b_col);
    else
        multiply_block(kernel, tile, b_col);
}

/* A row or a column of C, whose sums have the order of the kernel's multiply_row. Its terms are made contiguous: they
 * are read once for every eight elements of C. */
static __attribute__((noinline)) void multiply_row(const struct cpu_kernel *kernel, const struct cpu_tile *tile,
                                                   int64_t b_col) {
    enum { MOST_TERMS = 640 }; /* as many as the longest kc */
    float terms[MOST_TERMS];
    struct cpu_tile row = *tile;
    if (tile->m > 1) {
        row.m = 1;
        row.n = tile->m;
        row.a = tile->b;
        row.a_step = tile->b_step;
        row.b = tile->a;
        row.b_step = tile->a_step;
        b_col = tile->a_row;
    }
    if (row.a_step != 1 && row.k <= MOST_TERMS) {
        for (int64_t p = 0; p < row.k; p++) terms[p] = row.a[p * row.a_step];
        row.a = terms;
        row.a_step = 1;
    }
    kernel->multiply_row(&row, b_col, block_terms(kernel, row.k));
}

/* Whether the product is that. A column is contiguous in C then. */
static inline bool is_row(const struct cpu_kernel *kernel, const struct cpu_tile *tile, int64_t b_col) {
    return cpu_is_row(kernel, tile->m, tile->n, tile->k, tile->b_step, b_col) ||
           (tile->m > 1 && cpu_is_row(kernel, tile->n, tile->m, tile->k, tile->a_step, tile->a_row));
}

/* ---- A few rows or columns of C, in the order of tiles ----------------------------------------------------------- */

enum few { NOT_FEW, DOTS, DOTS_OF_COLUMNS, FEW_ROWS, FEW_COLUMNS, FEW_COLUMNS_BY_TILES };

/* By tiles, where a transposed A is near. */
static inline enum few few_rows_or_columns(const struct cpu_kernel *kernel, const struct cpu_tile *t, int64_t b_col) {
    enum { TILES = 8, LEAST_TERMS = 16 }; /* of all these ways: most tiny products have fewer */
    if (t->k < LEAST_TERMS) return NOT_FEW;
    if (cpu_is_dots(kernel, t->m, t->n, t->k, t->a_step, t->b_step)) return t->m > t->n ? DOTS_OF_COLUMNS : DOTS;
    if (!is_few(kernel, t->m, t->n)) return NOT_FEW;
    const int most = kernel->few_rows;
    if (t->n <= CPU_FEW_ROWS && cpu_is_few_rows(most, t->n, t->m, t->k, t->a_step, t->a_row)) return FEW_COLUMNS;
    if (cpu_is_few_rows(most, t->m, t->n, t->k, t->b_step, b_col)) return FEW_ROWS;
    return t->n <= TILES && t->m > CPU_LINE && t->a_row == 1 ? FEW_COLUMNS_BY_TILES : NOT_FEW;
}

/* C transposed, part by part in a buffer. */
static __attribute__((noinline)) void multiply_few_columns(const struct cpu_kernel *kernel, const struct cpu_tile *tile,
                                                           int64_t b_col, enum few how) {
    _Alignas(64) float buffer[CPU_FEW_FLOATS];
    const int few = tile->n, most = CPU_FEW_FLOATS / few / CPU_LINE * CPU_LINE;
    for (int first = 0; first < tile->m; first += most) {
        const int rows = tile->m - first < most ? tile->m - first : most;
        float *c = tile->c + first * tile->c_row;
        struct cpu_tile part = {.m = few,
                                .n = rows,
                                .k = tile->k,
                                .a = tile->b,
                                .a_row = b_col,
                                .a_step = tile->b_step,
                                .b = tile->a + first * tile->a_row,
                                .b_step = tile->a_step,
                                .s = buffer,
                                .s_row = most,
                                .c = buffer,
                                .c_row = most,
                                .alpha = tile->alpha,
                                .beta = tile->beta};
        for (int j = 0; !is_zero(tile->beta) && j < rows; j++)
            for (int i = 0; i < few; i++) buffer[i * most + j] = c[j * tile->c_row + i];
        if (how == FEW_COLUMNS_BY_TILES)
            multiply_whole(kernel, &part, 1);
        else if (how == DOTS_OF_COLUMNS)
            kernel->multiply_dots(&part, tile->a_row, even_block(part.k, cpu_dot_terms(kernel), 1));
        else
            kernel->multiply_few(&part, tile->a_row, block_terms(kernel, part.k));
        for (int j = 0; j < rows; j++)
            for (int i = 0; i < few; i++) c[j * tile->c_row + i] = buffer[i * most + j];
    }
}

/* ---- A whole product --------------------------------------------------------------------------------------------- */

/* Floats of an operand that is read from end to end before it is multiplied: B, which stays for all of A; A; and
 * either, however it is read. */
enum { TOUCHED_FLOATS_OF_B = 1 << 15, TOUCHED_FLOATS_OF_A = 1 << 17, FEW_FLOATS = 1 << 13 };

/* Whether multiply_few wants its long operand touched: not what it reads along rows; and many columns of middle length
 * it prefetches well by itself. */
static inline bool few_wants_touching(int64_t columns, int64_t terms, bool along_rows) {
    enum { SHORT_COLUMN = 32 };
    return !along_rows && (terms <= SHORT_COLUMN || columns * terms <= FEW_FLOATS);
}

static inline void touch_a(const struct cpu_tile *t) {
    if (t->m * t->k <= TOUCHED_FLOATS_OF_A) touch_matrix(t->a, t->m, t->k, t->a_row, t->a_step);
}

static inline void touch_b(const struct cpu_tile *t, int64_t b_col) {
    const bool short_columns = t->m == 1 && b_col != 1 && t->k <= SHALLOW; /* read side by side */
    if (short_columns && cpu_prefetches_columns(t->n, t->k)) return;
    if (t->k * t->n <= (short_columns ? TOUCHED_FLOATS_OF_A : TOUCHED_FLOATS_OF_B))
        touch_matrix(t->b, t->k, t->n, t->b_step, b_col);
}

/* Whether operands contiguous along k are a few long streams, up to `most` of each: they are prefetched well as they
 * are, and touching them would take as long as reading them. */
static inline bool are_few_streams(const struct cpu_tile *t, int most) {
    enum { LONG = 1024 };
    return t->k > LONG && t->m <= most && t->n <= most;
}

/* The same of a row or column of C. */
static inline bool is_row_of_streams(const struct cpu_tile *t, int64_t b_col) {
    enum { FEW = 4 };
    return are_few_streams(t, FEW) && (t->m == 1 ? t->b_step == 1 && b_col != 1 : t->n == 1 && t->a_step == 1);
}

/* Whether B is read once, from end to end, in vectors that are mostly whole: a processor prefetches that. */
static inline bool reads_b_in_order(const struct cpu_kernel *kernel, const struct cpu_tile *t, int64_t b_col) {
    enum { NARROW = 12, LEAST_TERMS = 64 };
    return b_col == 1 && t->b_step == t->n && t->k >= LEAST_TERMS && t->m <= 2 * kernel->mr && t->n > NARROW &&
           t->n <= kernel->nr;
}

/* A store to a line that is not in cache waits for it, and so would the next product: a small C is prefetched, before
 * anything waits for A or B. Narrow rows of C are written in parts of cache lines, which have to be read first; that
 * matters where there is little else to do. */
static inline void touch_c(const struct cpu_tile *t) {
    enum { FEW_TERMS = 8, LARGE = 1 << 11 };
    enum { VERY_FEW_TERMS = 4, SHORT_ROW = 96, MOST_LINES = 1 << 8, FEW_LINES = 1 << 5 };
    const int64_t floats = t->m * (int64_t)t->n;
    const int64_t lines = t->k <= VERY_FEW_TERMS && t->n <= SHORT_ROW ? MOST_LINES : FEW_LINES;
    if (floats <= lines * CPU_LINE && (t->c_row == t->n || t->m == 1)) {
        for (int64_t i = 0; i < floats; i += CPU_LINE) __builtin_prefetch(t->c + i, 1, 3);
        return;
    }
    const int narrow = floats > LARGE ? 2 * CPU_LINE : CPU_LINE;
    if (t->k <= FEW_TERMS && t->n < narrow && t->n % (CPU_LINE / 2) && floats <= TOUCHED_FLOATS_OF_B)
        touch_rows(t->c, t->m, t->n, t->c_row);
}

/* A larger one is prefetched behind A and B, unless so few terms write it that this takes as long, or so many that it
 * does not matter. */
static inline void fetch_c(const struct cpu_tile *t) {
    enum { FEW_TERMS = 10, MANY_TERMS = 64, NARROW = 12, FEW_LINES = 1 << 5, MANY_LINES = 384 };
    const int64_t floats = t->m * (int64_t)t->n;
    if (t->k <= FEW_TERMS || t->k > MANY_TERMS || t->n <= NARROW || t->c_row != t->n) return;
    if (floats <= FEW_LINES * CPU_LINE || floats > MANY_LINES * CPU_LINE) return;
    for (int64_t i = 0; i < floats; i += CPU_LINE) __builtin_prefetch(t->c + i, 1, 3);
}

/* A is touched before it is multiplied, a larger one some rows at a time. A larger one whose columns are contiguous is
 * prefetched by the kernel instead, line by line of its columns. */
static inline void multiply_touched(const struct cpu_kernel *kernel, struct cpu_tile *product, int64_t b_col) {
    if (cpu_is_streamed(kernel, product, b_col)) {
        cpu_multiply_streamed(kernel, product, b_col);
        return;
    }
    const int64_t most = TOUCHED_FLOATS_OF_A / product->k;
    if (product->m > most && product->a_row == 1) {
        multiply_whole(kernel, product, b_col);
        return;
    }
    for (int64_t first = 0; first < product->m; first += most) {
        struct cpu_tile part = *product;
        part.m = (int)min64(most, product->m - first);
        part.a += first * part.a_row;
        part.c += first * part.c_row;
        part.s = part.c;
        touch_matrix(part.a, part.m, part.k, part.a_row, part.a_step);
        fetch_c(&part);
        multiply_whole(kernel, &part, b_col);
    }
}

static inline void multiply(const struct cpu_kernel *kernel, struct cpu_tile *product, int64_t b_col, enum few few) {
    touch_c(product);
    switch (few) {
    case DOTS:
    case DOTS_OF_COLUMNS:
        if (!are_few_streams(product, CPU_FEW_ROWS)) {
            touch_a(product);
            touch_b(product, b_col);
        }
        break;
    case FEW_ROWS:
        if (few_wants_touching(product->n, product->k, b_col == 1)) touch_b(product, b_col);
        break;
    case FEW_COLUMNS:
        if (few_wants_touching(product->m, product->k, product->a_row == 1)) {
            touch_a(product);
            touch_b(product, b_col);
        }
        break;
    default:
        if (!reads_b_in_order(kernel, product, b_col) && !is_row_of_streams(product, b_col)) touch_b(product, b_col);
    }
    if (is_row(kernel, product, b_col)) {
        const bool short_rows = product->a_row != 1 && product->k <= SHALLOW &&
                                !cpu_prefetches_columns(product->m, product->k);
        if (!is_row_of_streams(product, b_col) && (short_rows || product->m * product->k <= FEW_FLOATS))
            touch_a(product);
        multiply_row(kernel, product, b_col);
    } else if (few == DOTS)
        kernel->multiply_dots(product, b_col, even_block(product->k, cpu_dot_terms(kernel), 1));
    else if (few == DOTS_OF_COLUMNS)
        multiply_few_columns(kernel, product, b_col, few);
    else if (few == FEW_ROWS)
        kernel->multiply_few(product, b_col, block_terms(kernel, product->k));
    else if (few == FEW_COLUMNS)
        multiply_few_columns(kernel, product, b_col, few);
    else if (few == FEW_COLUMNS_BY_TILES && kernel->multiply_whole) {
        touch_a(product);
        multiply_few_columns(kernel, product, b_col, few);
    } else
        multiply_touched(kernel, product, b_col);
}

/* ---- By several threads ------------------------------------------------------------------------------------------ */

struct shared_product {
    const struct cpu_kernel *kernel;
    struct cpu_tile product;
    int64_t b_col;
    bool by_columns, by_tiles;
    int multiple; /* rows or columns, of which parts are multiples */
    _Atomic int next;
    struct cpu_team team;
};

/* Large parts first, then smaller ones, so that members finish together. The caller begins at once, with half of the
 * rows if it has one helper: long parts are read and written best. Columns, of which each member copies its own, are
 * cut finer. Returns how many rows or columns; 0: none is
 * left. */
static int take_part(struct shared_product *s, int *first) {
    const int all = s->by_columns ? s->product.n : s->product.m;
    const int parts = s->team.size == 1 ? 1 : s->by_columns ? 2 * s->team.size : s->team.size;
    int at = atomic_load_explicit(&s->next, memory_order_relaxed), count;
    do {
        const int share = (all - at + parts - 1) / parts;
        count = (int)min64((share + s->multiple - 1) / s->multiple * s->multiple, all - at);
    } while (count > 0 && !atomic_compare_exchange_weak_explicit(&s->next, &at, at + count, memory_order_relaxed,
                                                                 memory_order_relaxed));
    *first = at;
    return count;
}

static void work_on_parts(struct cpu_member *self, void *argument) {
    (void)self;
    struct shared_product *s = argument;
    const uint64_t mode = cpu_rounding_begin();
    for (int first, count; (count = take_part(s, &first)) > 0;) {
        struct cpu_tile part = s->product;
        if (s->by_columns) {
            part.n = count;
            part.b += first * s->b_col;
            part.c += first;
        } else {
            part.m = count;
            part.a += first * part.a_row;
            part.c += first * part.c_row;
        }
        part.s = part.c;
        if (s->by_tiles) {
            touch_a(&part);
            multiply_few_columns(s->kernel, &part, s->b_col, FEW_COLUMNS_BY_TILES);
        } else
            multiply_touched(s->kernel, &part, s->b_col);
    }
    cpu_rounding_end(mode);
}

/* Where B is copied, each member copies columns of its own; of few terms each copies all and writes whole rows. */
static void multiply_shared(const struct cpu_kernel *kernel, const struct cpu_tile *product, int64_t b_col,
                            int threads) {
    enum { ROWS = 4, COLUMNS = 16, FEW_TERMS = 24 }; /* of the tiles of a kernel's multiply_whole */
    const bool by_tiles = kernel->multiply_whole && few_rows_or_columns(kernel, product, b_col) == FEW_COLUMNS_BY_TILES;
    const bool by_columns = product->k <= FEW_TERMS ? product->m < 2 * ROWS * threads
                                                    : product->n > (b_col == 1 ? 4 * product->m : 2 * COLUMNS);
    struct shared_product shared = {.kernel = kernel,
                                    .product = *product,
                                    .b_col = b_col,
                                    .by_columns = by_columns && !by_tiles,
                                    .by_tiles = by_tiles,
                                    .multiple = by_tiles                 ? CPU_STRIP_COLUMNS
                                                : by_columns             ? COLUMNS
                                                : kernel->multiply_whole ? ROWS
                                                                         : kernel->mr};
    const double work = (double)product->m * product->n * (double)product->k;
    shared.team = (struct cpu_team){.work = work_on_parts, .argument = &shared, .is_short = work < SHORT_PRODUCT};
    cpu_team_run(&shared.team, threads);
}

/* ---- Entry points ------------------------------------------------------------------------------------------------ */

bool cpu_is_direct(const struct cpu_kernel *kernel, const tsr_problem *p) {
    const bool adds_to_c = p->addend.data == p->c.data && p->addend.row_stride == p->c.row_stride &&
                           p->addend.batch_stride == p->c.batch_stride && p->addend.col_stride == 1;
    return p->m < MOST_WORK && p->n < MOST_WORK && p->k <= kernel->kc && p->m * p->n < MOST_WORK &&
           (uint64_t)(p->m * p->n * p->k) <= most_work((uint64_t)p->m, (uint64_t)p->n, (uint64_t)p->k) &&
           p->c.col_stride == 1 && (is_zero(p->beta) || adds_to_c) && !p->a.packed && !p->b.packed &&
           (p->b.col_stride == 1 || fits_strips(kernel, (uint64_t)p->n, (uint64_t)p->k, p->b.row_stride));
}

static struct cpu_tile product_at(const tsr_problem *p, int64_t item) {
    const bool anywhere = p->c_items;
    float *const c = anywhere ? p->c_items[item] : p->c.data + item * p->c.batch_stride;
    return (struct cpu_tile){.m = (int)p->m,
                             .n = (int)p->n,
                             .k = p->k,
                             .a = anywhere ? p->a_items[item] : p->a.data + item * p->a.batch_stride,
                             .a_row = p->a.row_stride,
                             .a_step = p->a.col_stride,
                             .b = anywhere ? p->b_items[item] : p->b.data + item * p->b.batch_stride,
                             .b_step = p->b.row_stride,
                             .s = c,
                             .s_row = p->c.row_stride,
                             .c = c,
                             .c_row = p->c.row_stride,
                             .alpha = p->alpha,
                             .beta = p->beta,
                             CPU_NOTHING_AHEAD};
}

void cpu_multiply_directly(const struct cpu_kernel *kernel, const tsr_problem *p, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) {
        struct cpu_tile product = product_at(p, i);
        multiply(kernel, &product, p->b.col_stride, few_rows_or_columns(kernel, &product, p->b.col_stride));
    }
}

void cpu_multiply_shared(const struct cpu_kernel *kernel, const tsr_problem *p, int threads) {
    const struct cpu_tile product = product_at(p, 0);
    multiply_shared(kernel, &product, p->b.col_stride, threads);
}

/* Whether members would mostly wait for memory: each would transpose all of B, for a few terms. */
static inline bool is_too_shallow_to_share(const struct cpu_tile *t, int64_t b_col, int64_t work) {
    enum { FEW_TERMS = 16, LITTLE_WORK = 1 << 20 };
    return b_col != 1 && t->k <= FEW_TERMS && t->n >= t->m && work < LITTLE_WORK;
}

/* A product of small shape, at these addresses; false where they are not plainly valid. */
static inline bool multiply_if_apart(const tsr_context *context, float alpha, const tsr_operand *a, const float *a_data,
                                     const tsr_operand *b, const float *b_data, float beta, const tsr_result *c,
                                     float *c_data) {
    const struct cpu_kernel *kernel = context->cpu_kernel;
    if (!are_apart(a, a_data, b, b_data, c, c_data)) return false;
    const int64_t reading = CPU_WORK_OF_READING * max64(a->rows, b->cols) * a->cols;
    const int64_t work = max64(a->rows * b->cols * a->cols, reading);
    int threads = context->options.threads;
    if (work < 4 * CPU_WORK_PER_FEW_THREADS) threads = 1;
    struct cpu_tile tile = {.m = (int)a->rows,
                            .n = (int)b->cols,
                            .k = a->cols,
                            .a = a_data,
                            .a_row = a->row_stride,
                            .a_step = a->col_stride,
                            .b = b_data,
                            .b_step = b->row_stride,
                            .s = c_data,
                            .s_row = c->row_stride,
                            .c = c_data,
                            .c_row = c->row_stride,
                            .alpha = alpha,
                            .beta = beta,
                            CPU_NOTHING_AHEAD};
    const int64_t b_col = b->cols == 1 ? 1 : b->col_stride;
    const enum few few = few_rows_or_columns(kernel, &tile, b_col);
    const uint64_t mode = cpu_rounding_begin();
    if (threads > 1)
        threads = is_too_shallow_to_share(&tile, b_col, work) ? 1 : cpu_useful_threads((double)work, threads);
    const bool scales_last = tile.k > kernel->kc && !(fabsf(alpha) <= 1);
    const bool by_row = (kernel->multiply_row && (tile.m == 1 || tile.n == 1)) ||
                        (few != NOT_FEW && few != FEW_COLUMNS_BY_TILES);
    const bool needs_plan = scales_last || (threads > 1 && (by_row || cpu_shares_terms(kernel->kc, tile.m, tile.n,
                                                                                       tile.k, threads, false)));
    if (!needs_plan && threads > 1)
        multiply_shared(kernel, &tile, b_col, threads);
    else if (!needs_plan)
        multiply(kernel, &tile, b_col, few);
    cpu_rounding_end(mode);
    return !needs_plan;
}

bool cpu_is_small(const tsr_context *context, const tsr_operand *a, const tsr_operand *b, const tsr_result *c) {
    const struct cpu_kernel *kernel = context->cpu_kernel;
    return kernel && has_small_shape(kernel, a, b, c) && !amx_takes(context, a->rows, b->cols, a->cols);
}

bool cpu_multiply_small(const tsr_context *context, float alpha, const tsr_operand *a, const tsr_operand *b, float beta,
                        const tsr_result *c) {
    return !is_zero(alpha) && cpu_is_small(context, a, b, c) &&
           multiply_if_apart(context, alpha, a, a->data, b, b->data, beta, c, c->data);
}

bool cpu_execute_small(const tsr_context *context, const tsr_problem *p, float alpha, const float *a, const float *b,
                       float beta, float *c) {
    return !is_zero(alpha) && multiply_if_apart(context, alpha, &p->a, a, &p->b, b, beta, &p->c, c);
}
