/* amx.c: float32 products from bf16 tiles.
 *
 * An operand is three bf16 components, h + m + l (amx.h), and six of the nine products of components make a product
 * that is as accurate as float32; the three left out are below its last bit. A tile of C is 32 x 32: four sums in tiles
 * of their own, two tiles of A, two of B.
 *
 *              b 0..15   b 16..31
 *     a 0..15   sum 0     sum 1        tiles 4, 5: a component of A
 *     a 16..31  sum 2     sum 3        tiles 6, 7: a component of B
 *
 * In the order hl, hm, mm, mh, lh, hh each tile but h_a is loaded once, and h_a twice. Tiles come from the second-level
 * cache in time; the next panel of B and the tile of C are further away and would not. So these are prefetched between
 * products, a few lines at a time: a core has at most sixteen lines on their way, tiles' included. The sums of a tile
 * are written to C between the products of the next, when C's lines have arrived.
 *
 * The sums start from zero for each block of kc and are then added to C, or to the addend, by ordinary float32
 * operations. (With hh in a loop of its own, after the small products of all steps, the sums would be rounded at their
 * full size once a step and not six times: half the error, for 7 % of the time.)
 *
 * AMX flushes subnormals and its sums must stay finite. A panel's marks tell when neither can matter to the bound.
 * Where they might, each row of A is looked at by itself: if all stays finite, sums that are large enough are good;
 * otherwise the ieee kernel makes this row's sums in this tile and this block of k. So no row depends on its
 * neighbours. docs/internals/numerics.md has the bounds.
 *
 * tf32 does without l and what is made of it: three products, hm, mh and hh.
 */
#include "cpu/amx.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "cpu/amx_tile.h"
#include "cpu/cpu.h"
#include "cpu/kernel.h"
#include "cpu/pack.h"

/* The tile. */
enum { MR = AMX_LANES, NR = AMX_LANES };

static_assert((int)AMX_LANES == 2 * (int)TILE_ROWS, "a panel has two tiles a step");
static_assert(AMX_STEP * 2 == TILE_ROW_BYTES, "a step is a tile's row of bf16");

typedef float floats __attribute__((vector_size(64)));
typedef float floats_anywhere __attribute__((vector_size(64), aligned(4), may_alias));

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* What the thread's tiles held before. */
struct tile_state {
    struct tile_config config;
    _Alignas(64) char tiles[TILES][TILE_BYTES];
};

static void configure_tiles(void) {
    struct tile_config ours = {.palette = 1};
    for (int t = 0; t < TILES; t++) {
        ours.rows[t] = TILE_ROWS;
        ours.row_bytes[t] = TILE_ROW_BYTES;
    }
    tile_config_load(&ours);
}

static bool had(const struct tile_state *before, int t) { return before->config.rows[t]; }

static void take_tiles(struct tile_state *before) {
    tile_config_store(&before->config);
    if (had(before, 0)) tile_store(0, before->tiles[0], TILE_ROW_BYTES);
    if (had(before, 1)) tile_store(1, before->tiles[1], TILE_ROW_BYTES);
    if (had(before, 2)) tile_store(2, before->tiles[2], TILE_ROW_BYTES);
    if (had(before, 3)) tile_store(3, before->tiles[3], TILE_ROW_BYTES);
    if (had(before, 4)) tile_store(4, before->tiles[4], TILE_ROW_BYTES);
    if (had(before, 5)) tile_store(5, before->tiles[5], TILE_ROW_BYTES);
    if (had(before, 6)) tile_store(6, before->tiles[6], TILE_ROW_BYTES);
    if (had(before, 7)) tile_store(7, before->tiles[7], TILE_ROW_BYTES);
    configure_tiles();
}

static void give_tiles_back(const struct tile_state *before) {
    tile_config_load(&before->config);
    if (had(before, 0)) tile_load(0, before->tiles[0]);
    if (had(before, 1)) tile_load(1, before->tiles[1]);
    if (had(before, 2)) tile_load(2, before->tiles[2]);
    if (had(before, 3)) tile_load(3, before->tiles[3]);
    if (had(before, 4)) tile_load(4, before->tiles[4]);
    if (had(before, 5)) tile_load(5, before->tiles[5]);
    if (had(before, 6)) tile_load(6, before->tiles[6]);
    if (had(before, 7)) tile_load(7, before->tiles[7]);
}

/* For a thread that uses tiles itself. */
static __attribute__((noinline)) void work_and_restore(void (*work)(void *argument), void *argument) {
    struct tile_state before;
    take_tiles(&before);
    work(argument);
    give_tiles_back(&before);
}

void amx_with_tiles(void (*work)(void *argument), void *argument) {
    struct tile_config config;
    tile_config_store(&config);
    if (config.palette) {
        work_and_restore(work, argument);
        return;
    }
    configure_tiles();
    work(argument);
    tile_release();
}

/* ---- From sums to C ---------------------------------------------------------------------------------------------- */

/* x = x*y + z */
static inline void fuse(floats *x, float y, const floats *z) {
#ifdef __AVX512F__
    *x = (floats)_mm512_fmadd_ps((__m512)*x, _mm512_set1_ps(y), (__m512)*z);
#else
    for (int i = 0; i < 16; i++) (*x)[i] = fmaf((*x)[i], y, (*z)[i]);
#endif
}

/* Sixteen elements of C that are next to each other, as their addends are. */
static inline void put_vector(float *c, const float *s, const float *sums, float alpha, float beta) {
    floats x = *(const floats_anywhere *)sums;
    if (beta != 0) {
        const floats addend = beta * *(const floats_anywhere *)s;
        fuse(&x, alpha, &addend);
    } else if (alpha != 1)
        x *= alpha;
    *(floats_anywhere *)c = x;
}

/* At most 16 x 16 sums, rows of them `stride` apart. */
static void put_sums(float *c, int64_t c_row, int64_t c_col, const float *s, int64_t s_row, int64_t s_col,
                     const float *sums, int64_t stride, int rows, int columns, float alpha, float beta) {
    for (int i = 0; i < rows; i++, c += c_row, s += s_row, sums += stride) {
        if (columns == 16 && c_col == 1 && (beta == 0 || s_col == 1)) {
            put_vector(c, s, sums, alpha, beta);
            continue;
        }
        for (int j = 0; j < columns; j++)
            c[j * c_col] = beta != 0 ? fmaf(alpha, sums[j], beta * s[j * s_col]) : alpha * sums[j];
    }
}

/* A whole tile's sums that are not in C yet: they are written a few rows at a time, while the next is multiplied. */
struct unput {
    const float *sums; /* the next row */
    const float *s;
    int64_t s_row;
    float *c;
    int64_t c_row;
    float alpha, beta;
    int rows; /* how many are left */
};

static inline void put_rows(struct unput *unput, int rows) {
    for (; rows && unput->rows; rows--, unput->rows--) {
        put_vector(unput->c, unput->s, unput->sums, unput->alpha, unput->beta);
        put_vector(unput->c + 16, unput->s + 16, unput->sums + 16, unput->alpha, unput->beta);
        unput->sums += NR;
        unput->s += unput->s_row;
        unput->c += unput->c_row;
    }
}

/* The sums of one tile to C; where its columns are contiguous, transposed. */
static void put_tile(const struct amx_block *block, int64_t row, int rows, int64_t column, int columns,
                     const float *sums) {
    const bool transposes = block->c_row == 1 && block->c_col != 1;
    for (int i = 0; i < rows; i += 16)
        for (int j = 0; j < columns; j += 16) {
            float *c = block->c + (row + i) * block->c_row + (column + j) * block->c_col;
            const float *s = block->beta != 0 ? block->s + (row + i) * block->s_row + (column + j) * block->s_col : c;
            const float *from = sums + i * NR + j;
            const int m = rows - i < 16 ? rows - i : 16, n = columns - j < 16 ? columns - j : 16;
            if (transposes) {
                _Alignas(64) float turned[256];
                amx_transpose(turned, from, NR);
                put_sums(c, block->c_col, 1, s, block->s_col, block->s_row, turned, 16, n, m, block->alpha,
                         block->beta);
            } else
                put_sums(c, block->c_row, block->c_col, s, block->s_row, block->s_col, from, NR, m, n, block->alpha,
                         block->beta);
        }
}

/* ---- Multiplying ------------------------------------------------------------------------------------------------- */

/* sums += the component of A in tiles 4 and 5, times that of B in 6 and 7. A tile is loaded with what is multiplied
 * next, a component of A, of B or of both, as soon as it has been read for the last time. */
#define MULTIPLY_THEN_LOAD_A(a)         \
    do {                                \
        tile_dot(0, 4, 6);              \
        tile_dot(1, 4, 7);              \
        tile_load(4, (a));              \
        tile_dot(2, 5, 6);              \
        tile_dot(3, 5, 7);              \
        tile_load(5, (a) + TILE_BYTES); \
    } while (0)

#define MULTIPLY_THEN_LOAD_B(b)         \
    do {                                \
        tile_dot(0, 4, 6);              \
        tile_dot(2, 5, 6);              \
        tile_load(6, (b));              \
        tile_dot(1, 4, 7);              \
        tile_dot(3, 5, 7);              \
        tile_load(7, (b) + TILE_BYTES); \
    } while (0)

#define MULTIPLY_THEN_LOAD(a, b)        \
    do {                                \
        tile_dot(0, 4, 6);              \
        tile_dot(2, 5, 6);              \
        tile_load(6, (b));              \
        tile_dot(1, 4, 7);              \
        tile_load(4, (a));              \
        tile_dot(3, 5, 7);              \
        tile_load(5, (a) + TILE_BYTES); \
        tile_load(7, (b) + TILE_BYTES); \
    } while (0)

/* What is prefetched between the products of a tile: the tile of C, by rows (or columns, where these are contiguous),
 * and a part of the next panel of B. */
struct wanted {
    const char *c, *b;
    int64_t c_stride;
    int c_rows;  /* in each half of a step */
    int b_lines; /* after each product of components */
};

static inline void ask_for_c(struct wanted *wanted) {
    for (int i = 0; i < wanted->c_rows; i++, wanted->c += wanted->c_stride) {
        __builtin_prefetch(wanted->c, 1);
        __builtin_prefetch(wanted->c + 64, 1);
    }
}

static inline void ask_for_b(struct wanted *wanted) {
    for (int i = 0; i < wanted->b_lines; i++, wanted->b += 64) __builtin_prefetch(wanted->b, 0, 2);
}

/* sums[32][32] = the product of two panels; meanwhile the last tile's are put to C. */
static inline __attribute__((always_inline)) void multiply_panels(float *sums, const float *a_panel,
                                                                  const float *b_panel, int64_t steps,
                                                                  const int components, struct wanted wanted,
                                                                  struct unput *unput) {
    const char *a = (const char *)a_panel + sizeof(struct amx_marks);
    const char *b = (const char *)b_panel + sizeof(struct amx_marks);
    const int64_t m = steps * AMX_STEP_BYTES, l = 2 * m; /* from a component h to its m and l */
    const int64_t least = components == 3 ? l : m;       /* B's component that a step begins with; A's is h */
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    tile_load(4, a);
    tile_load(5, a + TILE_BYTES);
    tile_load(6, b + least);
    tile_load(7, b + least + TILE_BYTES);
    for (int64_t left = steps; left; left--) {
        const int64_t next = left > 1 ? AMX_STEP_BYTES : 0; /* the last step loads its own tiles again, for nothing */
        if (components == 3) {
            MULTIPLY_THEN_LOAD_B(b + m); /* hl */
            ask_for_b(&wanted);
            MULTIPLY_THEN_LOAD_A(a + m); /* hm */
            ask_for_b(&wanted);
            MULTIPLY_THEN_LOAD_B(b); /* mm */
            ask_for_b(&wanted);
            ask_for_c(&wanted);
            put_rows(unput, wanted.c_rows);
            MULTIPLY_THEN_LOAD_A(a + l); /* mh */
            ask_for_b(&wanted);
            MULTIPLY_THEN_LOAD_A(a); /* lh */
        } else {
            MULTIPLY_THEN_LOAD(a + m, b); /* hm */
            ask_for_b(&wanted);
            ask_for_c(&wanted);
            put_rows(unput, wanted.c_rows);
            MULTIPLY_THEN_LOAD_A(a); /* mh */
        }
        ask_for_b(&wanted);
        MULTIPLY_THEN_LOAD(a + next, b + next + least); /* hh */
        ask_for_b(&wanted);
        ask_for_c(&wanted);
        put_rows(unput, wanted.c_rows);
        a += next;
        b += next;
    }
    tile_store(0, sums, NR * sizeof *sums);
    tile_store(1, sums + 16, NR * sizeof *sums);
    tile_store(2, sums + 16 * NR, NR * sizeof *sums);
    tile_store(3, sums + 16 * NR + 16, NR * sizeof *sums);
}

/* ---- What AMX cannot carry --------------------------------------------------------------------------------------- */

/* Larger elements are not split, and sums of larger products might not be finite: AMX_KC of them, whose components'
 * products come to at most 1 + 2^-6 times as much, stay below 2^127. */
static const float most_element = 0x1p126f, most_product = 0x1p117f;

static_assert(AMX_KC <= 512, "most_product counts on it");

/* From here on elements have normal numbers for components, and what is flushed is far below the last bit of a
 * product. */
static const float least_element = 0x1p-103f, least_product = 0x1p-95f;

bool amx_is_marked(const struct amx_marks *marks) { return !(marks->largest <= most_element); }

static bool are_finite(const struct amx_marks *a, const struct amx_marks *b) {
    return !amx_is_marked(a) && !amx_is_marked(b) && a->largest * b->largest <= most_product;
}

static bool are_exact(const struct amx_marks *a, const struct amx_marks *b) {
    return a->least >= least_element && b->least >= least_element && a->least * b->least >= least_product;
}

/* Whether what was flushed cannot matter beside a row of sums as large as these. */
static bool are_large(const float *sums, const struct amx_marks *a, const struct amx_marks *b, int columns) {
    const float least = 0x1p-95f * (a->largest + b->largest + 16);
    for (int j = 0; j < columns; j++)
        if (!(fabsf(sums[j]) >= least)) return false;
    return true;
}

/* Terms of k for which floats are copied at a time. */
enum { COPIED = 128 };

/* The floats of some lanes, from term p on; strides[] are those from lane to lane and from term to term. They are
 * copied, terms `width` apart, where the kernel cannot read them in place. */
static const float *floats_of(const struct amx_source *source, int64_t lane, int lanes, int64_t p, int64_t terms,
                              bool side_by_side, float *copy, int width, int64_t strides[2]) {
    strides[0] = 1;
    strides[1] = width;
    if (source->packed) {
        cpu_packed_lanes(copy, source->packed, source->lane + lane, lanes, source->term + p, terms, width);
        return copy;
    }
    const float *data = source->data + lane * source->lane_stride + p * source->term_stride;
    if (side_by_side && source->lane_stride != 1) {
        cpu_pack_panels(copy, data, lanes, terms, source->lane_stride, source->term_stride, width);
        return copy;
    }
    strides[0] = source->lane_stride;
    strides[1] = source->term_stride;
    return data;
}

/* The sums of one tile by the ieee kernel. */
static void sum_as_ieee(float *sums, const struct amx_block *block, int64_t row, int rows, int64_t column,
                        int columns) {
    enum { MOST_ROWS = 8 };
    const struct cpu_kernel *ieee = block->ieee;
    const int at_once = ieee->mr < MOST_ROWS ? ieee->mr : MOST_ROWS;
    float a_copy[COPIED * MOST_ROWS], b_copy[COPIED * AMX_LANES];
    for (int64_t p = 0; p < block->terms; p += COPIED) {
        const int64_t terms = block->terms - p < COPIED ? block->terms - p : COPIED;
        int64_t a_strides[2], b_strides[2];
        const float *b = floats_of(&block->b_source, column, columns, p, terms, true, b_copy, AMX_LANES, b_strides);
        for (int i = 0; i < rows; i += at_once) {
            const int m = rows - i < at_once ? rows - i : at_once;
            const float *a = floats_of(&block->a_source, row + i, m, p, terms, false, a_copy, MOST_ROWS, a_strides);
            for (int j = 0; j < columns; j += ieee->nr)
                ieee->multiply(&(struct cpu_tile){.m = m,
                                                  .n = columns - j < ieee->nr ? columns - j : ieee->nr,
                                                  .k = terms,
                                                  .a = a,
                                                  .a_row = a_strides[0],
                                                  .a_step = a_strides[1],
                                                  .b = b + j,
                                                  .b_step = b_strides[1],
                                                  .s = sums + i * NR + j,
                                                  .s_row = NR,
                                                  .c = sums + i * NR + j,
                                                  .c_row = NR,
                                                  .alpha = 1,
                                                  .beta = p > 0});
        }
    }
}

/* The marks that a row of A would have as a panel of its own. */
static struct amx_marks marks_of_row(const struct amx_block *block, int64_t row) {
    float copy[COPIED];
    uint32_t largest = 0, least_less_one = UINT32_MAX; /* as in amx_pack.c: zeros count as the largest of the least */
    for (int64_t p = 0; p < block->terms; p += COPIED) {
        const int64_t terms = block->terms - p < COPIED ? block->terms - p : COPIED;
        int64_t strides[2];
        const float *a = floats_of(&block->a_source, row, 1, p, terms, false, copy, 1, strides);
        for (int64_t i = 0; i < terms; i++) {
            uint32_t magnitude;
            memcpy(&magnitude, &a[i * strides[1]], sizeof magnitude);
            magnitude &= 0x7fffffffu;
            if (magnitude > largest) largest = magnitude;
            if (magnitude - 1 < least_less_one) least_less_one = magnitude - 1;
        }
    }
    const uint32_t least = least_less_one + 1;
    struct amx_marks marks = {0};
    memcpy(&marks.largest, &largest, sizeof largest);
    memcpy(&marks.least, &least, sizeof least);
    if (!least) marks.least = INFINITY;
    return marks;
}

/* Replaces the rows of a tile's sums that AMX cannot carry; true if there are any. */
static __attribute__((noinline)) bool replace_rows(float *sums, const struct amx_block *block,
                                                   const struct amx_marks *b_marks, int64_t row, int rows,
                                                   int64_t column, int columns) {
    _Alignas(64) float as_ieee[MR * NR];
    bool any = false;
    for (int i = 0; i < rows; i++) {
        const struct amx_marks a_marks = marks_of_row(block, row + i);
        if (are_finite(&a_marks, b_marks) &&
            (are_exact(&a_marks, b_marks) || are_large(sums + i * NR, &a_marks, b_marks, columns)))
            continue;
        if (!any) sum_as_ieee(as_ieee, block, row, rows, column, columns);
        any = true;
        memcpy(sums + i * NR, as_ieee + i * NR, (size_t)columns * sizeof *sums);
    }
    return any;
}

/* ---- A block ----------------------------------------------------------------------------------------------------- */

/* For the tile at (row, column): all of this tile of C, and an equal part of the next panel of B for each tile of this
 * column. */
static struct wanted wanted_with(const struct amx_block *block, int64_t row, int64_t column, int64_t steps) {
    const int64_t panels = (block->rows + MR - 1) / MR, calls = steps * (block->components == 3 ? 6 : 3);
    const int64_t panel_lines = steps * block->components * AMX_STEP_BYTES / 64;
    const int64_t b_lines = (panel_lines + panels * calls - 1) / (panels * calls);
    const float *next = column + NR < block->columns
                            ? block->b + (column / NR + 1) * amx_panel_floats(block->terms, block->components)
                            : block->next_b;
    const bool turned = block->c_row == 1;
    return (struct wanted){.c = (const char *)(block->c + row * block->c_row + column * block->c_col),
                           .b = (const char *)next + row / MR * calls * b_lines * 64,
                           .c_stride = (turned ? block->c_col : block->c_row) * (int64_t)sizeof(float),
                           .c_rows = (int)((MR + 2 * steps - 1) / (2 * steps)),
                           .b_lines = (int)b_lines};
}

/* Puts the sums of a tile to C while the next is multiplied, where its rows are contiguous; else at once. */
static struct unput put_later(const struct amx_block *block, int64_t row, int rows, int64_t column, int columns,
                              const float *sums) {
    if (rows < MR || columns < NR || block->c_col != 1 || (block->beta != 0 && block->s_col != 1)) {
        put_tile(block, row, rows, column, columns, sums);
        return (struct unput){.rows = 0};
    }
    float *c = block->c + row * block->c_row + column;
    const bool adds = block->beta != 0;
    return (struct unput){.sums = sums,
                          .s = adds ? block->s + row * block->s_row + column : c,
                          .s_row = adds ? block->s_row : block->c_row,
                          .c = c,
                          .c_row = block->c_row,
                          .alpha = block->alpha,
                          .beta = block->beta,
                          .rows = MR};
}

void amx_multiply(struct amx_block *block) {
    const int64_t steps = amx_steps(block->terms), panel_floats = amx_panel_floats(block->terms, block->components);
    _Alignas(64) float both[2][MR * NR]; /* sums of a tile, and of the one before */
    float *sums = both[0], *sums_before = both[1];
    struct unput before = {.rows = 0};
    for (int64_t column = 0; column < block->columns; column += NR)
        for (int64_t row = 0; row < block->rows; row += MR) {
            const int rows = (int)(block->rows - row < MR ? block->rows - row : MR);
            const int columns = (int)(block->columns - column < NR ? block->columns - column : NR);
            const float *a = block->a + row / MR * panel_floats, *b = block->b + column / NR * panel_floats;
            const struct amx_marks *a_marks = (const struct amx_marks *)a, *b_marks = (const struct amx_marks *)b;
            const struct wanted wanted = wanted_with(block, row, column, steps);
            if (block->components == 3)
                multiply_panels(sums, a, b, steps, 3, wanted, &before);
            else
                multiply_panels(sums, a, b, steps, 2, wanted, &before);
            if (!(are_finite(a_marks, b_marks) && are_exact(a_marks, b_marks)))
                block->recomputed += replace_rows(sums, block, b_marks, row, rows, column, columns);
            put_rows(&before, MR);
            before = put_later(block, row, rows, column, columns, sums);
            float *other = sums_before;
            sums_before = sums;
            sums = other;
        }
    put_rows(&before, MR);
}

const struct cpu_kernel cpu_kernel_amx = {
    .name = "amx",
#ifndef TESSERA_AMX_MODEL
    .needs = CPU_AVX512F | CPU_AVX512VL | CPU_AMX_BF16,
#endif
    .mr = MR,
    .nr = NR,
    .lanes = AMX_LANES,
    .kc = AMX_KC,
};
