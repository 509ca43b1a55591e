/* loops.c: one product.
 *
 * Five loops around the microkernel, after Goto and the BLIS authors, with the operands' roles exchanged:
 *
 *     for each mc rows of C and A               a block of A (mc x kc) is packed, for the third-level cache
 *       for each kc of k
 *         for each nc columns of C and B        each member packs a block of B (kc x nc), for its second-level cache
 *           for each mr rows                    mr x kc of A are read into the first, and stay for all of B's block
 *             for each nr columns               the microkernel, from left to right in the rows of C
 *
 * Tiles pack as they multiply, where the kernel can: the first rows of a macro block pack B, its first columns pack A.
 * An A whose rows are contiguous is not packed unless it is large: mr rows are few enough to be read side by side in
 * place.
 *
 * A stage is one k block of mc rows and as many columns as the members' blocks of B have together. Members pack, wait
 * at the barrier, and multiply; one that is done with its own block helps with the others', some rows at a time. Packed
 * blocks are double-buffered: early members pack the next ones while late ones still use the current.
 *
 * Every element of C is summed in an order that k and the kernel fix: kc does not depend on threads, strides, packing
 * or the limit of workspace, so none of those changes a bit of the result. The exceptions are a single row or column
 * of C, computed by the kernel's multiply_row, and what multiply_dots computes: their orders depend on strides, too.
 *
 * The sums of the k blocks are added up in C. Where |alpha| <= 1, alpha scales each as it is added (one fma, as many
 * roundings as without alpha), and the first adds beta times the addend. For any other alpha the sums are added up
 * unscaled, and after the last k block C = alpha*C + beta*S, with one rounding (cpu_scales_last says why). S cannot be
 * C then: chunks.c provides other memory.
 */
#include "cpu/loops.h"

#include <assert.h>
#include <math.h>

#include "cpu/pack.h"
#include "cpu/touch.h"

/* Rows of A that a member packs at a time, in panels of mr. */
enum { PANELS_PER_PACK = 16 };

/* Where elements of C are not contiguous, they are computed in a buffer on the stack: a tile, or a part of a few rows.
 * */
static_assert((int)CPU_TILE_FLOATS <= (int)CPU_FEW_FLOATS, "a tile fits");
static_assert(CPU_FEW_FLOATS / CPU_MANY_ROWS >= 2 * CPU_LINE, "parts of a few rows are whole cache lines");

/* One stage: a k block of some rows of A and some columns of B. */
struct stage {
    const cpu_plan *plan;
    const tsr_problem *p;
    int64_t i, rows;                  /* which rows of C */
    int mr;                           /* the rows of a tile */
    int64_t rows_done;                /* of those, multiplied while B was packed */
    int64_t j, columns;               /* which columns */
    int64_t first, terms;             /* which terms of k */
    const float *a;                   /* panels, or A itself */
    int64_t a_row, a_step, a_per_row; /* from one row and one term to the next; between tiles, for each row of one */
    float *unpacked_a;                /* a, where the first tile of each panel has to pack it */
    const float *b;                   /* panels, one block of them after the other, or B itself */
    int64_t b_step, b_panel, b_block; /* from one term, one panel and one block to the next */
    tsr_operand addend;               /* of this k block: C, which holds the blocks before it, or the problem's */
    float alpha, beta;                /* of this k block */
    bool scales;                      /* the last k block of a product whose alpha has waited for it */
};

void cpu_counters_start(struct cpu_counters *counters) {
    atomic_store_explicit(&counters->next_a, 0, memory_order_relaxed);
    atomic_store_explicit(&counters->next_part, 0, memory_order_relaxed);
    for (int64_t i = 0; counters->of_block && i < counters->blocks; i++) {
        atomic_store_explicit(&counters->of_block[i].next_panel, 0, memory_order_relaxed);
        atomic_store_explicit(&counters->of_block[i].next_rows, 0, memory_order_relaxed);
    }
}

static void start_again(void *counters) { cpu_counters_start(counters); }

/* ---- alpha and beta ---------------------------------------------------------------------------------------------- */

bool cpu_scales_last(const cpu_plan *plan, const tsr_problem *p) { return p->k > plan->kc && !(fabsf(p->alpha) <= 1); }

/* In float64 a product of floats is exact and cannot overflow. */
void cpu_scale_block(const tsr_result *c, float alpha, const tsr_operand *addend, float beta) {
    const bool adds = !is_zero(beta);
    for (int64_t i = 0; i < c->rows; i++) {
        float *row = c->data + i * c->row_stride;
        const float *s = adds ? addend->data + i * addend->row_stride : NULL;
        if (!adds)
            for (int64_t j = 0; j < c->cols; j++) row[j * c->col_stride] *= alpha;
        else if (c->col_stride == 1 && addend->col_stride == 1)
            for (int64_t j = 0; j < c->cols; j++) row[j] = (float)((double)alpha * row[j] + (double)beta * s[j]);
        else
            for (int64_t j = 0; j < c->cols; j++) {
                float *at = row + j * c->col_stride;
                *at = (float)((double)alpha * *at + (double)beta * s[j * addend->col_stride]);
            }
    }
}

/* After the last k block: some rows and columns of the stage. */
static void scale_part(const struct stage *s, int64_t i, int64_t rows, int64_t j, int64_t columns) {
    problem_range range = problem_whole(s->p);
    range.m0 = s->i + i, range.m = rows;
    range.n0 = s->j + j, range.n = columns;
    const tsr_problem part = problem_part(s->p, &range);
    cpu_scale_block(&part.c, part.alpha, &part.addend, part.beta);
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* One tile, or a few rows, contiguous in C and in the addend. panel_a and panel_b: where rows of A or columns of B are
 * packed, or NULL. */
static void multiply_contiguous(const struct stage *s, const struct cpu_tile *tile, float *panel_a, float *panel_b) {
    const struct cpu_kernel *kernel = s->plan->kernel;
    if (s->plan->by_dots)
        kernel->multiply_dots(tile, s->p->b.col_stride, s->plan->kc);
    else if (s->plan->by_row)
        (tile->m == 1 ? kernel->multiply_row : kernel->multiply_few)(tile, s->p->b.col_stride, s->plan->kc);
    else if (panel_a || panel_b)
        kernel->multiply_and_pack(tile, panel_a, panel_b);
    else
        kernel->multiply(tile);
}

/* The same where columns of C (c_col apart) or of the addend (s_col apart) are not contiguous, through a buffer. */
static __attribute__((noinline)) void multiply_in_buffer(const struct stage *s, const struct cpu_tile *tile,
                                                         int64_t s_col, int64_t c_col, float *panel_a, float *panel_b) {
    float buffer[CPU_FEW_FLOATS];
    struct cpu_tile inner = *tile;
    if (!is_zero(tile->beta))
        for (int i = 0; i < tile->m; i++)
            for (int j = 0; j < tile->n; j++) buffer[i * tile->n + j] = tile->s[i * tile->s_row + j * s_col];
    inner.s = inner.c = buffer;
    inner.s_row = inner.c_row = tile->n;
    multiply_contiguous(s, &inner, panel_a, panel_b);
    for (int j = 0; j < tile->n; j++)
        for (int i = 0; i < tile->m; i++) tile->c[i * tile->c_row + j * c_col] = buffer[i * tile->n + j];
}

static void multiply_tile(const struct stage *s, const struct cpu_tile *tile, float *panel_a, float *panel_b) {
    const int64_t c_col = s->p->c.col_stride, s_col = s->addend.col_stride;
    if (c_col == 1 && (is_zero(tile->beta) || s_col == 1))
        multiply_contiguous(s, tile, panel_a, panel_b);
    else
        multiply_in_buffer(s, tile, s_col, c_col, panel_a, panel_b);
}

/* Where a block's columns end, counted from the stage's first. */
static int64_t block_end(const struct stage *s, int64_t block) { return min64((block + 1) * s->plan->nc, s->columns); }

/* The tile at row i and column j of the stage, and its rows of A. */
static struct cpu_tile tile_at(const struct stage *s, int64_t i, int64_t j) {
    const tsr_result *c = &s->p->c;
    const tsr_operand *addend = &s->addend;
    const int64_t row = s->i + i, column = s->j + j;
    return (struct cpu_tile){
        .m = (int)min64(s->mr, s->rows - i),
        .n = (int)min64(s->plan->kernel->nr, s->columns - j),
        .k = s->terms,
        .a = s->a + i * s->a_per_row,
        .a_row = s->a_row,
        .a_step = s->a_step,
        .b_step = s->b_step,
        .s = is_zero(s->beta) ? NULL : addend->data + row * addend->row_stride + column * addend->col_stride,
        .s_row = addend->row_stride,
        .c = c->data + row * c->row_stride + column * c->col_stride,
        .c_row = c->row_stride,
        .alpha = s->alpha,
        .beta = s->beta,
    };
}

/* The tile's rows of A in place, unpacked. */
static void read_in_place(const struct stage *s, struct cpu_tile *tile, int64_t i) {
    const tsr_operand *a = &s->p->a;
    tile->a = a->data + (s->i + i) * a->row_stride + s->first * a->col_stride;
    tile->a_row = a->row_stride;
    tile->a_step = a->col_stride;
}

/* ---- Prefetching ------------------------------------------------------------------------------------------------- */

/* Prefetches what is read of A after the tile's rows from i. If a cache line holds elements of several rows, that is
 * the next line of each column, some of the columns with each tile. After the last rows come the first of the next k
 * block. Rows that the panel before has left in the second-level cache need no prefetching. */
static void prefetch_rows(const struct stage *s, struct cpu_tile *tile, int64_t i) {
    enum { NEAR_FLOATS = 1 << 17 };
    const int mr = s->mr;
    const bool packed = tile->a_row == 1 && tile->a_step == mr, transposed = !packed && tile->a_row == 1;
    const int64_t after = transposed ? CPU_LINE : mr;
    const bool last = i + after >= s->rows;
    if (packed ? last : !transposed && tile->a_step != 1) return;
    if (last ? s->j + s->columns < s->p->n || s->first + s->terms >= s->p->k
             : s->j > 0 && s->rows * s->terms <= NEAR_FLOATS)
        return;
    if (packed) {
        tile->next_a = tile->a + mr * s->terms;
        tile->next_a_row = CPU_FETCH_STEPS;
        tile->next_a_step = CPU_FETCH_STEPS * mr;
        return;
    }
    tile->next_a = tile->a + (last ? s->terms * tile->a_step - i * tile->a_row : after * tile->a_row);
    if (transposed) {
        const int64_t parts = CPU_LINE / mr + 1;
        tile->next_a += i / mr % parts * (s->terms / parts) * tile->a_step;
        tile->next_a_row = tile->a_step;
        tile->next_a_step = mr * tile->a_step;
    } else {
        tile->next_a_row = tile->a_row;
        tile->next_a_step = CPU_FETCH_STEPS;
    }
}

/* Whether B is read in place by one or two tiles, which wait for memory unless B is prefetched. */
static bool reads_b_once(const struct stage *s) {
    const int nr = s->plan->kernel->nr;
    return !s->plan->packs_b && s->p->b.col_stride == 1 && !operand_panels(&s->p->b, s->p->batch) &&
           s->rows <= 2 * s->mr && s->p->n > nr;
}

/* The part of B that is read after a narrow block, to its right or below: some of it with each of the first tiles. */
static void prefetch_columns(const struct stage *s, struct cpu_tile *tile, int64_t i, int64_t j) {
    const tsr_operand *b = &s->p->b;
    const bool once = reads_b_once(s);
    const int mr = s->mr, rows = once ? CPU_FETCH_STEPS / 2 : cpu_fetch_rows((s->rows - s->rows_done) / mr);
    const int64_t part = (i - s->rows_done) / mr, parts = CPU_FETCH_STEPS / rows;
    if ((!s->rows_done && !once) || !cpu_has_narrow_blocks(s->plan->kernel, s->p) || part >= parts) return;
    int64_t column = s->j + j + s->plan->blocks * s->plan->nc, term = s->first;
    if (column >= s->p->n) {
        column = j;
        term += s->terms;
    }
    if (term >= s->p->k) return;
    tile->next_b = b->data + (term + part * (s->terms / parts)) * b->row_stride + column;
    tile->next_b_step = b->row_stride;
    tile->next_b_rows = rows;
}

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

/* A tile's `whole`, where it reads B in place. */
static int64_t whole_steps(const struct stage *s, const struct cpu_tile *tile, int64_t j) {
    const tsr_operand *b = &s->p->b;
    if (b->col_stride != 1 || b->row_stride != s->p->n) return 0;
    return cpu_whole_steps(tile, s->plan->kernel->lanes, (s->p->k - s->first) * s->p->n - s->j - j);
}

/* Some of the stage's rows, from i. */
static void pack_rows(const struct stage *s, float *block, int64_t i, int64_t rows) {
    const tsr_operand *a = &s->p->a;
    cpu_pack_panels(block + i * s->terms, a->data + (s->i + i) * a->row_stride + s->first * a->col_stride, rows,
                    s->terms, a->row_stride, a->col_stride, s->plan->kernel->mr);
}

/* The rows of A that C's few rows are computed from, contiguous. */
static void copy_rows(const struct stage *s, float *rows) {
    const tsr_operand *a = &s->p->a;
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t p = 0; p < s->terms; p++) *rows++ = a->data[i * a->row_stride + p * a->col_stride];
}

/* The member's share of the stage's rows. */
static void pack_shared_rows(const struct stage *s, float *block, struct cpu_loops *loops) {
    const int64_t rows = s->plan->by_row ? s->rows : PANELS_PER_PACK * s->plan->kernel->mr;
    for (int64_t i; (i = cpu_take(&loops->counters->next_a) * rows) < s->rows;)
        if (s->plan->by_row)
            copy_rows(s, block);
        else
            pack_rows(s, block, i, min64(rows, s->rows - i));
}

/* Where the first tile of a panel packs its rows, from i. NULL: they are packed, which is done here for tiles that are
 * not whole, because kernels only pack whole ones. */
static float *panel_to_pack(const struct stage *s, const struct cpu_tile *tile, int64_t i) {
    const struct cpu_kernel *kernel = s->plan->kernel;
    if (!s->unpacked_a) return NULL;
    if (tile->m == kernel->mr && tile->n == kernel->nr) return s->unpacked_a + i * s->terms;
    pack_rows(s, s->unpacked_a, i, tile->m);
    return NULL;
}

/* Packs the panel of B from column j, and multiplies the stage's first rows by it if rows_done says so. A is read in
 * place then, because its block may not be ready. */
static void pack_panel(const struct stage *s, float *panel, int64_t j, int columns) {
    const struct cpu_kernel *kernel = s->plan->kernel;
    const tsr_operand *b = &s->p->b;
    const float *from = b->data + s->first * b->row_stride + (s->j + j) * b->col_stride;
    struct cpu_tile tile = tile_at(s, 0, j);
    tile.n = columns;
    float *const panel_a = s->rows_done && j == 0 ? panel_to_pack(s, &tile, 0) : NULL;
    if (!operand_panels(&s->p->a, s->p->batch)) read_in_place(s, &tile, 0);
    const bool at_once = s->rows_done && columns == kernel->nr;
    const int width = (int)s->b_step;
    if (at_once) {
        tile.b = from;
        tile.b_step = b->row_stride;
    } else {
        tile.b = panel;
        if (kernel->transpose && b->row_stride == 1 && b->col_stride != 1)
            kernel->transpose(panel, width, from, b->col_stride, columns, (int)s->terms);
        else
            cpu_pack_panels(panel, from, columns, s->terms, b->col_stride, b->row_stride, width);
    }
    if (!s->rows_done) return;
    multiply_tile(s, &tile, panel_a, at_once ? panel : NULL);
    if (s->scales) scale_part(s, 0, tile.m, j, columns);
}

/* The block that a member turns to after `helped` others: its own first. */
static int64_t block_after(const struct cpu_loops *loops, int64_t blocks, int64_t helped) {
    return (loops->self->index + helped) % blocks;
}

static void pack_columns(const struct stage *s, float *panels, const struct cpu_loops *loops) {
    const int nr = s->plan->kernel->nr;
    const int64_t blocks = ceil_div(s->columns, s->plan->nc);
    for (int64_t helped = 0; helped < blocks; helped++) {
        const int64_t block = block_after(loops, blocks, helped), begin = block * s->plan->nc,
                      end = block_end(s, block);
        for (int64_t j; (j = begin + cpu_take(&loops->counters->of_block[block].next_panel) * nr) < end;)
            pack_panel(s, panels + j * s->terms, j, (int)min64(nr, end - j));
    }
}

/* ---- Multiplying ------------------------------------------------------------------------------------------------- */

/* Some rows of the stage, from i, times the columns of one block. */
static void multiply_rows(const struct stage *s, int64_t block, int64_t i, int64_t i_end) {
    enum { SHORT_ROW = 400, NARROW_BLOCK = 64 }; /* of A's rows, read in place; longer ones are prefetched well */
    const struct cpu_kernel *kernel = s->plan->kernel;
    const int64_t c_col = s->p->c.col_stride, s_col = s->addend.col_stride;
    const int64_t j_first = block * s->plan->nc, j_end = block_end(s, block);
    const bool in_place = !s->plan->packs_b && !operand_panels(&s->p->b, s->p->batch);
    const bool touches = s->a_step == 1 && s->a_row != 1 && s->terms <= SHORT_ROW && j_end - j_first <= NARROW_BLOCK;
    for (; i < i_end; i += s->mr) {
        struct cpu_tile tile = tile_at(s, i, j_first);
        tile.m = (int)min64(tile.m, i_end - i);
        tile.n = (int)min64(kernel->nr, j_end - j_first);
        float *panel = panel_to_pack(s, &tile, i);
        if (panel) read_in_place(s, &tile, i);
        if (touches && !panel) touch_rows(tile.a, tile.m, s->terms, tile.a_row);
        prefetch_rows(s, &tile, i);
        prefetch_columns(s, &tile, i, j_first);
        tile.b = s->b + block * s->b_block;
        for (int64_t j = j_first; j < j_end; j += kernel->nr) {
            tile.n = (int)min64(kernel->nr, j_end - j);
            if (in_place) tile.whole = whole_steps(s, &tile, j);
            multiply_tile(s, &tile, panel, NULL);
            if (panel) {
                tile.a = panel;
                tile.a_row = s->a_row;
                tile.a_step = s->a_step;
                panel = NULL;
            }
            tile.b += s->b_panel;
            tile.c += kernel->nr * c_col;
            if (tile.s) tile.s += kernel->nr * s_col;
            tile.next_a = tile.next_b = NULL;
        }
        if (s->scales) scale_part(s, i, tile.m, j_first, j_end - j_first);
    }
}

/* The same where C is one row or a few: as long a part at a time as is contiguous. */
static void multiply_by_row(const struct stage *s, int64_t block) {
    const int64_t j_end = block_end(s, block);
    const bool contiguous = s->p->c.col_stride == 1 && (is_zero(s->beta) || s->addend.col_stride == 1);
    const int64_t most = contiguous ? INT32_MAX / 2 : CPU_FEW_FLOATS / s->rows / CPU_LINE * CPU_LINE;
    for (int64_t j = block * s->plan->nc; j < j_end; j += most) {
        struct cpu_tile tile = tile_at(s, 0, j);
        tile.m = (int)s->rows;
        tile.n = (int)min64(most, j_end - j);
        tile.b = s->b + j * s->p->b.col_stride;
        multiply_tile(s, &tile, NULL, NULL);
        if (s->scales) scale_part(s, 0, tile.m, j, tile.n);
    }
}

/* The member's share of a stage: its own block, then what is left of the others. */
static void multiply_stage(const struct stage *s, const struct cpu_loops *loops) {
    const int64_t blocks = ceil_div(s->columns, s->plan->nc), rows = s->plan->rows_at_once;
    if (s->plan->by_row) {
        for (int64_t block; (block = cpu_take(&loops->counters->next_part)) < blocks;) multiply_by_row(s, block);
        return;
    }
    for (int64_t helped = 0; helped < blocks; helped++) {
        const int64_t block = block_after(loops, blocks, helped);
        for (int64_t i; (i = s->rows_done + cpu_take(&loops->counters->of_block[block].next_rows) * rows) < s->rows;)
            multiply_rows(s, block, i, min64(i + rows, s->rows));
    }
}

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

/* Rows of the stage that are multiplied while B is packed: one tile's, where the kernel can do that. */
static int64_t rows_while_packing(const struct stage *s) {
    const struct cpu_kernel *kernel = s->plan->kernel;
    return kernel->multiply_and_pack && s->p->b.col_stride == 1 && s->columns >= kernel->nr && s->rows >= kernel->mr
               ? kernel->mr
               : 0;
}

/* The rows of a tile: more where there are few columns, unless A is in panels. */
static int rows_of_tile(const struct stage *s) {
    const struct cpu_kernel *kernel = s->plan->kernel;
    const bool in_place = !s->plan->packs_a && !operand_panels(&s->p->a, s->p->batch);
    return in_place ? cpu_tile_rows(kernel, s->columns) : kernel->mr;
}

/* Sets where the kernel reads A, which is packed here if it has to be. */
static void prepare_a(struct stage *s, struct cpu_loops *loops, bool packs, int64_t stages_across) {
    const cpu_plan *plan = s->plan;
    const tsr_problem *p = s->p;
    const int mr = plan->kernel->mr;
    const float *packed = plan->by_row ? NULL : operand_panels(&p->a, p->batch);
    s->a_row = 1;
    s->a_step = mr;
    s->a_per_row = s->terms;
    if (packed)
        s->a = packed + s->first * round_up(p->a.packed->source.rows, mr) + (loops->row0 + s->i) * s->terms;
    else if (plan->packs_a) {
        float *block = loops->block_a[loops->self->stage / stages_across % 2];
        s->a = block;
        if (plan->by_row) {
            s->a_row = s->terms;
            s->a_step = 1;
        }
        if (!packs || s->j || loops->has_a) return;
        if (plan->kernel->multiply_and_pack && !plan->by_row && (plan->threads == 1 || plan->sharing != CPU_BY_BLOCKS))
            s->unpacked_a = block;
        else
            pack_shared_rows(s, block, loops);
    } else {
        s->a = p->a.data + s->i * p->a.row_stride + s->first * p->a.col_stride;
        s->a_row = p->a.row_stride;
        s->a_step = p->a.col_stride;
        s->a_per_row = p->a.row_stride;
    }
}

/* Sets where the kernel reads B, which is packed here if it has to be. */
static void prepare_b(struct stage *s, const struct cpu_loops *loops, bool packs) {
    const cpu_plan *plan = s->plan;
    const tsr_problem *p = s->p;
    const int nr = plan->kernel->nr;
    const float *packed = plan->by_row ? NULL : operand_panels(&p->b, p->batch);
    s->b_step = nr;
    s->b_panel = nr * s->terms;
    s->b_block = plan->nc * s->terms;
    if (packed)
        s->b = packed + s->first * round_up(p->b.packed->source.cols, nr) + (loops->col0 + s->j) * s->terms;
    else if (plan->packs_b) {
        float *panels = loops->blocks_b[loops->self->stage % 2];
        s->b = panels;
        s->b_step = min64(nr, round_up(s->columns, CPU_LINE)); /* of a narrow panel more stays in cache */
        s->rows_done = rows_while_packing(s);
        if (packs) pack_columns(s, panels, loops);
    } else {
        s->b = p->b.data + s->first * p->b.row_stride + s->j * p->b.col_stride;
        s->b_step = p->b.row_stride;
        s->b_panel = nr;
        s->b_block = plan->nc;
    }
}

/* What this k block is scaled by and added to. */
static void set_sum(struct stage *s) {
    const tsr_problem *p = s->p;
    const bool waits = cpu_scales_last(s->plan, p), is_first = !s->first;
    s->alpha = waits ? 1 : p->alpha;
    s->beta = !is_first ? 1 : waits ? 0 : p->beta;
    s->addend = is_first ? p->addend : result_as_addend(&p->c);
    s->scales = waits && s->first + s->terms >= p->k;
}

void cpu_multiply_product(const cpu_plan *plan, const tsr_problem *p, struct cpu_loops *loops) {
    const int64_t across = plan->blocks * plan->nc, terms = plan->by_row ? p->k : plan->kc;
    for (int64_t i = 0; i < p->m; i += plan->mc)
        for (int64_t first = 0; first < p->k; first += terms)
            for (int64_t j = 0; j < p->n; j += across, loops->self->stage++) {
                const enum cpu_stage state = cpu_stage(loops->self);
                if (state == CPU_STAGE_OVER) continue;
                const bool packs = state == CPU_STAGE_OPEN;
                struct stage s = {.plan = plan,
                                  .p = p,
                                  .i = i,
                                  .rows = min64(plan->mc, p->m - i),
                                  .j = j,
                                  .columns = min64(across, p->n - j),
                                  .first = first,
                                  .terms = min64(terms, p->k - first)};
                s.mr = rows_of_tile(&s);
                set_sum(&s);
                prepare_a(&s, loops, packs, ceil_div(p->n, across));
                prepare_b(&s, loops, packs);
                if (packs) cpu_team_barrier(loops->self->team, start_again, loops->counters);
                multiply_stage(&s, loops);
            }
}
