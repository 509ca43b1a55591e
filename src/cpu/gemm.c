/* gemm.c: plan and loops of the CPU engine.
 *
 * Five loops around the microkernel, as Goto and the BLIS authors taught, with the factors' parts exchanged:
 *
 *     for each mc rows of C and A               a panel of A (mc x kc) is packed, into the third-level cache,
 *       for each kc of depth
 *         for each nc columns of C and B        a thread packs a block of B (kc x nc), into its second-level cache
 *           for each mr rows                    mr x kc of A come into the first, and stay for all of B's block
 *             for each nr columns               the microkernel, from left to right in the rows of C
 *
 * Tiles pack in passing, where the kernel can: the first rows of a panel the columns of B, the first columns of a product
 * the rows of A. A whose rows are contiguous is not packed unless it is large: mr of them are few enough to be read side by
 * side where they lie.
 *
 * Threads that share a product have a block of B each, and meet once when all is packed. One that has finished its own
 * block helps with the others', some rows at a time. There are two panels of A and twice as many blocks of B, taking
 * turns: while the last threads multiply with the ones, the first pack the others. Where A has few rows, each takes slices of
 * C's columns instead, and where it has many, slices of its rows, with packed blocks of its own.
 *
 * Every element of C is summed in an order that k and the kernel fix (kc does not depend on threads, strides, packing
 * or the workspace's limit), so none of those changes a bit of the result; the strides do where C is a single row or
 * column, made by the kernel's multiply_row. The sums of each kc of depth are added up in C: alpha scales each on its way
 * (one fma, as many roundings as without alpha), beta the addend, which only the first takes in.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "amx.h"
#include "blocks.h"
#include "cpu.h"
#include "kernel.h"
#include "pack.h"
#include "rounding.h"
#include "small.h"
#include "threads.h"
#include "workspace.h"

/* B is packed where this many tiles reuse what one packing read, and it has so many elements: fewer stay near anyway. */
enum { REUSE_WORTH_PACKING = 2, FLOATS_WORTH_PACKING = 1 << 16 };

/* Rows of A that one thread packs at a time, in panels of mr. */
enum { PANELS_PER_PACK = 16 };

/* Pieces that a thread's share of products or columns is cut into, and of the rows of a panel, so that threads end nearly
 * together; and the most rows of one, in panels. */
enum { PIECES_PER_THREAD = 8, PIECES_OF_ROWS = 32, PANELS_PER_PIECE = 8 };

/* Blocks that a single row of C is cut into for each thread, between lines of the cache, where it is summed column by
 * column; rows of B are read in longer parts, one for each. */
enum { BLOCKS_OF_A_ROW = 4, LINE = 16 };

/* Where elements of C are not contiguous, this many are made in a buffer, a tile or a part of a few rows. */
enum { BUFFER_FLOATS = 4096 };
static_assert((int)CPU_TILE_FLOATS <= (int)BUFFER_FLOATS, "a tile has room");

/* The most blocks of columns at once: their counters, 64 bytes each, lie on the stack. */
enum { MOST_BLOCKS = 512 };

/* ---- Which way round --------------------------------------------------------------------------------------------- */

/* The product to compute. Strides over a single row or column, which may be any number, are 1. */
static tsr_problem oriented(const tsr_problem *p, bool swapped) {
    tsr_problem q = swapped ? problem_transpose(p) : *p;
    if (q.m == 1) q.a.row_stride = q.c.row_stride = q.addend.row_stride = 1;
    if (q.n == 1) q.b.col_stride = q.c.col_stride = q.addend.col_stride = 1;
    if (q.k == 1) q.a.col_stride = q.b.row_stride = 1;
    return q;
}

/* Whether C is a row that the kernel's multiply_row makes. It reads B once, so that a packed form brings nothing, and is not
 * used where there is B itself. small.c's is_row must agree, or bits would depend on the way a product takes. */
static bool is_row(const struct cpu_kernel *kernel, tsr_problem p) {
    return p.m == 1 && kernel->multiply_row && (p.b.row_stride == 1 || p.b.col_stride == 1) &&
           !operand_is_only_packed(&p.a) && !operand_is_only_packed(&p.b);
}

/* Whether C is a few rows that the kernel's multiply_few makes, for B is too large to be near, and memory the limit. */
static bool is_few_rows(const struct cpu_kernel *kernel, const tsr_problem *p) {
    enum { LONG = 256 };
    return kernel->multiply_few && cpu_is_few_rows(p->m, p->n, p->k) && !operand_panels(&p->a, p->batch) &&
           !operand_panels(&p->b, p->batch) &&
           (p->b.col_stride == 1 ? p->n >= LONG : p->b.row_stride == 1 && p->k >= LONG);
}

/* Whether C is better computed as the transpose it is. A column is, if the kernel makes rows at once; and so is a product of
 * a large factor with one of few rows or columns, where the large one would have to be transposed in packing, which
 * takes as long as multiplying. Else it depends on C, whose rows the kernels write. Packed operands are packed for
 * their side, which settles it. */
static bool is_better_swapped(const struct cpu_kernel *kernel, const tsr_problem *p) {
    enum { FEW = 64, MANY = 256 };
    if (p->m == 1) return false;
    if (p->n == 1 && is_row(kernel, oriented(p, true))) return true;
    if (operand_panels(&p->a, p->batch) || operand_panels(&p->b, p->batch)) return false;
    const tsr_problem transposed = oriented(p, true);
    if (is_few_rows(kernel, p) || is_few_rows(kernel, &transposed)) return !is_few_rows(kernel, p);
    if (p->n <= FEW && p->m >= MANY && p->k >= FEW && p->a.row_stride == 1) return true;
    if (p->m <= FEW && p->n >= MANY && p->k >= FEW && p->b.row_stride == 1 && p->b.col_stride != 1) return true;
    return p->c.row_stride == 1 && p->c.col_stride != 1;
}

/* ---- Plan -------------------------------------------------------------------------------------------------------- */

static int64_t panel_floats_a(const cpu_plan *plan) { return plan->packs_a ? round_up(plan->mc * plan->kc, 16) : 0; }
static int64_t block_floats_b(const cpu_plan *plan) { return plan->packs_b ? round_up(plan->nc * plan->kc, 16) : 0; }

/* Floats of everything packed at once: a panel of A, and the blocks of B. */
static int64_t panel_floats(const cpu_plan *plan) { return panel_floats_a(plan) + plan->blocks * block_floats_b(plan); }

/* How many of those there are: two taking turns where threads share them, else one for each thread. */
static int64_t panels_in_use(const cpu_plan *plan) {
    return plan->shares_products && plan->threads > 1 ? 2 : plan->threads;
}

static size_t workspace_bytes(const cpu_plan *plan) {
    return (size_t)(panels_in_use(plan) * panel_floats(plan)) * sizeof(float);
}

static bool has_few_rows(const struct cpu_kernel *kernel, const tsr_problem *p) {
    return kernel->multiply_and_pack && p->m <= 16 * kernel->mr;
}

/* Whether not so many rows use a block of B that the time it takes to come from memory is nothing to theirs: what comes
 * next is asked for meanwhile then, and blocks are narrow, so that both have room. */
static bool has_narrow_blocks(const struct cpu_kernel *kernel, const tsr_problem *p) {
    return has_few_rows(kernel, p) || (kernel->multiply_and_pack && p->b.col_stride == 1 && p->m <= 128 * kernel->mr);
}

/* Threads that share a product have a block of columns each, as long as there are columns; then pieces of rows. */
static void cut_blocks(cpu_plan *plan, const tsr_problem *p) {
    const struct cpu_kernel *kernel = plan->kernel;
    const int64_t shared = plan->shares_products ? plan->threads : 1;
    if (plan->by_row) {
        plan->mc = plan->piece = kernel->mr;
        const int64_t wanted = shared == 1 || p->b.row_stride != 1 ? shared : BLOCKS_OF_A_ROW * shared;
        plan->blocks = max64(1, min64(min64(wanted, MOST_BLOCKS), p->n / LINE));
        plan->nc = round_up(max64(1, ceil_div(p->n, plan->blocks)), LINE);
        return;
    }
    plan->mc = even_block(p->m, plan->packs_a ? kernel->mc : INT64_MAX / 2, kernel->mr);
    plan->blocks = max64(1, min64(min64(shared, MOST_BLOCKS), ceil_div(p->n, kernel->nr)));
    /* Shallow blocks are wider: as much of the cache, and longer rows of C. */
    const int64_t most = has_narrow_blocks(kernel, p) ? kernel->nr
                                                      : kernel->nc * max64(1, kernel->kc / max64(1, plan->kc));
    const int64_t panels = max64(1, ceil_div(p->n, plan->blocks * most));
    plan->nc = round_up(max64(1, ceil_div(p->n, panels * plan->blocks)), kernel->nr);
    const int64_t tiles = plan->blocks * ceil_div(plan->mc, kernel->mr);
    plan->piece = plan->threads == 1 || !plan->shares_products
                      ? plan->mc
                      : kernel->mr * max64(1, min64(PANELS_PER_PIECE, tiles / (PIECES_OF_ROWS * shared)));
}

/* Some rows or columns of a product, as one of their own. */
static tsr_problem slice_of(const tsr_problem *p, bool of_rows, int64_t first, int64_t count) {
    tsr_problem slice = *p;
    const int64_t row = of_rows ? first : 0, column = of_rows ? 0 : first;
    if (of_rows)
        slice.m = slice.a.rows = slice.c.rows = count;
    else
        slice.n = slice.b.cols = slice.c.cols = count;
    slice.a.data += row * p->a.row_stride;
    slice.b.data += column * p->b.col_stride;
    slice.c.data += row * p->c.row_stride + column * p->c.col_stride;
    if (p->beta != 0) slice.addend.data += row * p->addend.row_stride + column * p->addend.col_stride;
    return slice;
}

/* Whether each thread computes slices of a product by itself: columns, where A's rows are so few that meeting for each block
 * of B would take a good part of the time (A is packed once by each thread then, where it is one panel); rows, where there
 * are enough of them for each thread to pack all of B: rows of A stay near the one thread that reads them, and what others
 * have packed is far. */
static void cut_slices(cpu_plan *plan, const tsr_problem *p) {
    enum { ROWS_WORTH_PACKING_B = 128, ROWS_WORTH_TRANSPOSING_B = 256 };
    const struct cpu_kernel *kernel = plan->kernel;
    plan->slice = 0;
    if (!plan->shares_products || plan->threads == 1 || plan->by_row) return;
    const int64_t columns = ceil_div(p->n, PIECES_PER_THREAD * plan->threads), rows = ceil_div(p->m, plan->threads);
    if (has_few_rows(kernel, p) && columns >= 2 * kernel->nr && !operand_panels(&p->b, p->batch) &&
        (!plan->packs_a || p->k <= plan->kc)) {
        plan->slice = round_up(columns, kernel->nr);
    } else if (plan->packs_b && kernel->multiply_and_pack &&
               rows >= (p->b.col_stride == 1 ? ROWS_WORTH_PACKING_B : ROWS_WORTH_TRANSPOSING_B)) {
        plan->slices_rows = true;
        plan->slice = round_up(rows, kernel->mr);
    }
}

static void share_among_threads(cpu_plan *plan, const tsr_problem *p, int most) {
    const double product = (double)p->m * (double)p->n * (double)p->k;
    plan->threads = cpu_useful_threads(product * (double)p->batch, most);
    if (cpu_useful_threads(product, 2) == 1) plan->threads = (int)min64(plan->threads, max64(1, p->batch));
    plan->shares_products = p->batch < plan->threads || (p->batch < PIECES_PER_THREAD * plan->threads &&
                                                         product >= (double)CPU_WORK_PER_THREAD * plan->threads);
    cut_slices(plan, p);
    if (plan->slice) {
        plan->shares_products = false;
        tsr_problem slice = *p;
        *(plan->slices_rows ? &slice.m : &slice.n) = plan->slice;
        cut_blocks(plan, &slice);
    } else
        cut_blocks(plan, p);
}

/* Smaller blocks, then fewer threads, then less packing until the workspace fits. False where none of it helps. */
static bool fit_workspace(cpu_plan *plan, const tsr_problem *p, size_t limit) {
    const struct cpu_kernel *kernel = plan->kernel;
    while (workspace_bytes(plan) > limit) {
        if (plan->packs_a && plan->mc > kernel->mr)
            plan->mc = round_up(plan->mc / 2, kernel->mr);
        else if (plan->packs_b && plan->nc > kernel->nr)
            plan->nc = round_up(plan->nc / 2, kernel->nr);
        else if (plan->packs_b && plan->blocks > 1)
            plan->blocks /= 2;
        else if (plan->threads > 1)
            plan->threads /= 2;
        else if (plan->packs_a)
            plan->packs_a = false;
        else if (plan->packs_b && p->b.col_stride == 1)
            plan->packs_b = false;
        else
            return false;
    }
    return true;
}

/* A is packed where many columns use what one packing read, and its rows are not contiguous, or so large that they would have
 * to come from memory again for each block of B; the latter only where a tile packs them in passing. Few rows of several
 * depths are left where they are, so that threads can take slices of columns. */
static bool packs_left(const struct cpu_kernel *kernel, const tsr_problem *p) {
    enum { FLOATS_FAR_AWAY = 1 << 20 };
    if (!p->k || operand_panels(&p->a, p->batch) || p->n <= 8 * kernel->nr) return false;
    if (has_few_rows(kernel, p) && p->k > kernel->kc) return false;
    return p->a.col_stride != 1 ||
           (kernel->multiply_and_pack && p->n > 24 * kernel->nr && p->m > FLOATS_FAR_AWAY / p->k);
}

tsr_status cpu_plan_make(cpu_plan *plan, tsr_context *context, const tsr_problem *problem) {
    if (amx_takes(context, problem->m, problem->n, problem->k)) {
        if (amx_plan_make(plan, context, problem)) return TSR_OK;
        if (context->cpu_amx == CPU_AMX_ALWAYS)
            return tsr_fail(TSR_OUT_OF_MEMORY,
                            "options.max_workspace is %zu; this product needs more for the kernel amx",
                            context->options.max_workspace);
    }
    const struct cpu_kernel *kernel = context->cpu_kernel;
    const bool swapped = is_better_swapped(kernel, problem);
    const tsr_problem p = oriented(problem, swapped);
    *plan = (cpu_plan){.kernel = kernel, .swapped = swapped, .threads = 1, .amx_gain = amx_gain(context, &p)};
    plan->kc = even_block(p.k, kernel->kc, 1);
    plan->by_row = is_row(kernel, p) || is_few_rows(kernel, &p);
    plan->packs_a = !plan->by_row && packs_left(kernel, &p); /* a row is as deep as k, a packed block only kc */
    plan->packs_b = p.k && !operand_panels(&p.b, p.batch) && !plan->by_row &&
                    ((p.m > REUSE_WORTH_PACKING * kernel->mr && p.n > FLOATS_WORTH_PACKING / p.k) ||
                     p.b.col_stride != 1);
    share_among_threads(plan, &p, context->options.threads);
    const size_t limit = context->options.max_workspace;
    if (limit && !fit_workspace(plan, &p, limit))
        return tsr_fail(TSR_OUT_OF_MEMORY, "options.max_workspace is %zu; this product needs at least %zu bytes", limit,
                        workspace_bytes(plan));
    plan->workspace = workspace_bytes(plan);
    return TSR_OK;
}

void cpu_plan_print(const cpu_plan *plan, const tsr_problem *problem, tsr_text *text) {
    if (plan->pieces) {
        amx_plan_print(plan, problem, text);
        return;
    }
    const tsr_problem p = oriented(problem, plan->swapped);
    tsr_text_add(text, "engine: cpu\n");
    tsr_text_add(text, "kernel: %s (ieee, which serves fp32 and tf32, too)\n", plan->kernel->name);
    if (plan->amx_gain > 0)
        tsr_text_add(text, "amx: not chosen, at %.2f x the speed by its estimate\n", plan->amx_gain);
    tsr_text_add(text, "tile: %d x %d\n", plan->kernel->mr, plan->kernel->nr);
    tsr_text_add(text, "computes: %s\n", plan->swapped ? "C^T = B^T A^T" : "C = A B");
    tsr_text_add(text, "blocks: %lld x %lld x %lld (mc, nc, kc)\n", (long long)plan->mc, (long long)plan->nc,
                 (long long)plan->kc);
    static const char *const packs[2][2] = {{"nothing", "right"}, {"left", "left and right"}};
    tsr_text_add(text, "packs: %s\n", packs[plan->packs_a][plan->packs_b]);
    if (plan->shares_products)
        tsr_text_add(text, "threads: %d, sharing %lld blocks of at most %lld columns, in pieces of %lld rows\n",
                     plan->threads, (long long)ceil_div(p.n, plan->nc), (long long)plan->nc, (long long)plan->piece);
    else if (plan->slice)
        tsr_text_add(text, "threads: %d, each on %lld %s of its own at a time\n", plan->threads, (long long)plan->slice,
                     plan->slices_rows ? "rows" : "columns");
    else
        tsr_text_add(text, "threads: %d, each on products of its own\n", plan->threads);
}

/* ---- One product ------------------------------------------------------------------------------------------------- */

/* What is left of one block of B: to pack, counted in nr columns, and to multiply with, in pieces of rows. A line of the
 * cache to itself, for others look at it seldom. */
struct block_counters {
    _Alignas(64) _Atomic int64_t next_pack, next_piece;
};

/* Those who work on one product together. */
struct team {
    struct cpu_gang *gang;
    int64_t blocks;
    struct block_counters *of_block;
    _Atomic int64_t next_pack; /* of A, in PANELS_PER_PACK panels */
};

/* One of them. */
struct member {
    struct team *team;
    int64_t index;
    float *panels[2]; /* the team's packed panels, which take turns; the same where one is enough */
    unsigned met;     /* meetings of the team, one for each panel, before it joined */
    unsigned panel;   /* the number of the panel it is at */
    bool has_rows;    /* A is one panel, and packed already: for another slice of this product */
    int64_t first;    /* row of the product that is the first of a slice of rows */
};

/* One depth of some rows of A and some columns of B: what is between two meetings. */
struct panel {
    const cpu_plan *plan;
    const tsr_problem *p;             /* of this product of the batch: data points at its matrices */
    int64_t i, rows;                  /* which rows of C */
    int64_t rows_done;                /* of those, multiplied while B was packed */
    int64_t j, columns;               /* which columns */
    int64_t depth_first, depth;       /* which part of K */
    const float *a;                   /* mr x kc panels, or A itself */
    int64_t a_row, a_step, a_panel;   /* from one row, one depth and one mr rows to the next */
    float *unpacked;                  /* a, where the first tile of each rows is to pack them */
    const float *b;                   /* kc x nr panels, a block of them after the other, or B itself */
    int64_t b_step, b_panel, b_block; /* from one depth, one nr columns and one block to the next */
};

static void start_counters(struct team *team) {
    atomic_store_explicit(&team->next_pack, 0, memory_order_relaxed);
    for (int64_t i = 0; i < team->blocks; i++) {
        atomic_store_explicit(&team->of_block[i].next_pack, 0, memory_order_relaxed);
        atomic_store_explicit(&team->of_block[i].next_piece, 0, memory_order_relaxed);
    }
}

/* After the last of the team is here, and before the first goes on, the counters start again. */
static void meet(struct team *team) {
    if (!cpu_gang_arrive(team->gang)) return;
    start_counters(team);
    cpu_gang_release(team->gang);
}

/* One tile, or a few rows, contiguous in C and in the addend; panels are where rows of A or columns of B are packed. */
static void multiply_contiguous(const struct panel *s, const struct cpu_tile *tile, float *panel_a, float *panel_b) {
    const struct cpu_kernel *kernel = s->plan->kernel;
    if (s->plan->by_row)
        (tile->m == 1 ? kernel->multiply_row : kernel->multiply_few)(tile, s->p->b.col_stride, s->plan->kc);
    else if (panel_a || panel_b)
        kernel->multiply_and_pack(tile, panel_a, panel_b);
    else
        kernel->multiply(tile);
}

/* The same where columns are apart, by so much: it is made in a buffer. */
static __attribute__((noinline)) void multiply_in_buffer(const struct panel *s, const struct cpu_tile *tile,
                                                         int64_t s_col, int64_t c_col, float *panel_a, float *panel_b) {
    float buffer[BUFFER_FLOATS];
    struct cpu_tile inner = *tile;
    if (tile->beta != 0)
        for (int i = 0; i < tile->m; i++)
            for (int j = 0; j < tile->n; j++) buffer[i * tile->n + j] = tile->s[i * tile->s_row + j * s_col];
    inner.s = inner.c = buffer;
    inner.s_row = inner.c_row = tile->n;
    multiply_contiguous(s, &inner, panel_a, panel_b);
    for (int j = 0; j < tile->n; j++)
        for (int i = 0; i < tile->m; i++) tile->c[i * tile->c_row + j * c_col] = buffer[i * tile->n + j];
}

static void multiply_tile(const struct panel *s, const struct cpu_tile *tile, int64_t s_col, int64_t c_col,
                          float *panel_a, float *panel_b) {
    if (c_col == 1 && (tile->beta == 0 || s_col == 1))
        multiply_contiguous(s, tile, panel_a, panel_b);
    else
        multiply_in_buffer(s, tile, s_col, c_col, panel_a, panel_b);
}

/* Where a block's columns end, counted from the panel's first. */
static int64_t block_end(const struct panel *s, int64_t block) { return min64((block + 1) * s->plan->nc, s->columns); }

/* The addend of this depth: those before it are in C, the problem's own with them. */
static tsr_operand addend_of(const struct panel *s) {
    const tsr_result *c = &s->p->c;
    if (!s->depth_first) return s->p->addend;
    return (tsr_operand){c->data, c->rows, c->cols, c->row_stride, c->col_stride, c->batch_stride, NULL};
}

/* One tile's place, and A there: row i of the panel, and column j. */
static struct cpu_tile tile_at(const struct panel *s, const tsr_operand *addend, int64_t i, int64_t j) {
    const tsr_result *c = &s->p->c;
    const float beta = s->depth_first ? 1 : s->p->beta;
    const int64_t row = s->i + i, column = s->j + j;
    return (struct cpu_tile){
        .m = (int)min64(s->plan->kernel->mr, s->rows - i),
        .n = (int)min64(s->plan->kernel->nr, s->columns - j),
        .k = s->depth,
        .a = s->a + i / s->plan->kernel->mr * s->a_panel,
        .a_row = s->a_row,
        .a_step = s->a_step,
        .b_step = s->b_step,
        .s = beta != 0 ? addend->data + row * addend->row_stride + column * addend->col_stride : NULL,
        .s_row = addend->row_stride,
        .c = c->data + row * c->row_stride + column * c->col_stride,
        .c_row = c->row_stride,
        .alpha = s->p->alpha,
        .beta = beta,
    };
}

/* The tile's rows where they lie, unpacked. */
static void read_in_place(const struct panel *s, struct cpu_tile *tile, int64_t i) {
    const tsr_operand *a = &s->p->a;
    tile->a = a->data + (s->i + i) * a->row_stride + s->depth_first * a->col_stride;
    tile->a_row = a->row_stride;
    tile->a_step = a->col_stride;
}

/* What of A comes after the tile's rows from i. Where a line of the cache holds elements of several rows, it is the next
 * line of each column, some of the columns with each tile. Behind the last rows come the first of the next depth. */
static void fetch_next_rows(const struct panel *s, struct cpu_tile *tile, int64_t i) {
    const int mr = s->plan->kernel->mr;
    const bool packed = tile->a_row == 1 && tile->a_step == mr, transposed = !packed && tile->a_row == 1;
    const int64_t after = transposed ? LINE : mr;
    const bool last = i + after >= s->rows;
    if (packed ? last : !transposed && tile->a_step != 1) return;
    if (last && (s->j + s->columns < s->p->n || s->depth_first + s->depth >= s->p->k)) return;
    if (packed) {
        tile->next_a = tile->a + mr * s->depth;
        tile->next_a_row = CPU_FETCH_STEPS;
        tile->next_a_step = CPU_FETCH_STEPS * mr;
        return;
    }
    tile->next_a = tile->a + (last ? s->depth * tile->a_step - i * tile->a_row : after * tile->a_row);
    if (transposed) {
        const int64_t parts = LINE / mr + 1;
        tile->next_a += i / mr % parts * (s->depth / parts) * tile->a_step;
        tile->next_a_row = tile->a_step;
        tile->next_a_step = mr * tile->a_step;
    } else {
        tile->next_a_row = tile->a_row;
        tile->next_a_step = CPU_FETCH_STEPS;
    }
}

/* What of B comes after a narrow block, to its right or below: a part of it with each of the first rows. */
static void fetch_next_columns(const struct panel *s, struct cpu_tile *tile, int64_t i, int64_t j) {
    enum { PARTS = CPU_FETCH_STEPS / CPU_FETCH_ROWS };
    const tsr_operand *b = &s->p->b;
    const int64_t part = (i - s->rows_done) / s->plan->kernel->mr;
    if (!s->rows_done || !has_narrow_blocks(s->plan->kernel, s->p) || part >= PARTS) return;
    int64_t column = s->j + j + s->plan->blocks * s->plan->nc, depth = s->depth_first;
    if (column >= s->p->n) {
        column = j;
        depth += s->depth;
    }
    if (depth >= s->p->k) return;
    tile->next_b = b->data + (depth + part * (s->depth / PARTS)) * b->row_stride + column;
    tile->next_b_step = b->row_stride;
}

/* Some of the panel's rows, from i. */
static void pack_rows(const struct panel *s, float *panels, int64_t i, int64_t rows) {
    const tsr_operand *a = &s->p->a;
    cpu_pack_panels(panels + i * s->depth, a->data + (s->i + i) * a->row_stride + s->depth_first * a->col_stride, rows,
                    s->depth, a->row_stride, a->col_stride, s->plan->kernel->mr);
}

/* Where the first tile of some rows, from i, packs them. NULL: they are packed, some of them now, for only a whole tile can
 * do it. */
static float *rows_to_pack(const struct panel *s, const struct cpu_tile *tile, int64_t i) {
    const struct cpu_kernel *kernel = s->plan->kernel;
    if (!s->unpacked) return NULL;
    if (tile->m == kernel->mr && tile->n == kernel->nr) return s->unpacked + i * s->depth;
    pack_rows(s, s->unpacked, i, tile->m);
    return NULL;
}

/* Some rows of the panel, from i, times the columns of one block. */
static void multiply_piece(const struct panel *s, int64_t block, int64_t i, int64_t i_end) {
    const struct cpu_kernel *kernel = s->plan->kernel;
    const tsr_operand addend = addend_of(s);
    const int64_t c_col = s->p->c.col_stride, s_col = addend.col_stride;
    const int64_t j_first = block * s->plan->nc, j_end = block_end(s, block);
    for (; i < i_end; i += kernel->mr) {
        struct cpu_tile tile = tile_at(s, &addend, i, j_first);
        tile.n = (int)min64(kernel->nr, j_end - j_first);
        float *panel = rows_to_pack(s, &tile, i);
        if (panel) read_in_place(s, &tile, i);
        fetch_next_rows(s, &tile, i);
        fetch_next_columns(s, &tile, i, j_first);
        tile.b = s->b + block * s->b_block;
        for (int64_t j = j_first; j < j_end; j += kernel->nr) {
            tile.n = (int)min64(kernel->nr, j_end - j);
            multiply_tile(s, &tile, s_col, c_col, panel, NULL);
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
    }
}

/* The same where C is one row or a few: as long a part of it at a time as it is contiguous. */
static void multiply_row_piece(const struct panel *s, int64_t block) {
    const tsr_operand addend = addend_of(s);
    const int64_t c_col = s->p->c.col_stride, s_col = addend.col_stride, j_end = block_end(s, block);
    const bool contiguous = c_col == 1 && (s->p->beta == 0 || s_col == 1);
    const int64_t most = contiguous ? INT32_MAX / 2 : BUFFER_FLOATS / CPU_FEW_ROWS;
    for (int64_t j = block * s->plan->nc; j < j_end; j += most) {
        struct cpu_tile tile = tile_at(s, &addend, 0, j);
        tile.n = (int)min64(most, j_end - j);
        tile.b = s->b + j * s->p->b.col_stride;
        multiply_tile(s, &tile, s_col, c_col, NULL, NULL);
    }
}

/* The block that a member turns to when it has helped with so many: its own first. */
static int64_t block_after(const struct member *self, int64_t blocks, int64_t helped) {
    return (self->index + helped) % blocks;
}

/* The member's share of one panel: its own block, then what is left of the others. */
static void multiply_panel(const struct panel *s, const struct member *self) {
    const int64_t blocks = ceil_div(s->columns, s->plan->nc), rows = s->plan->piece;
    for (int64_t helped = 0; helped < blocks; helped++) {
        const int64_t block = block_after(self, blocks, helped);
        for (int64_t i; (i = s->rows_done + cpu_take(&self->team->of_block[block].next_piece) * rows) < s->rows;)
            if (s->plan->by_row)
                multiply_row_piece(s, block);
            else
                multiply_piece(s, block, i, min64(i + rows, s->rows));
    }
}

/* The member's share of the panel's rows. */
static void pack_shared_rows(const struct panel *s, float *panels, const struct member *self) {
    const int64_t rows = PANELS_PER_PACK * s->plan->kernel->mr;
    for (int64_t i; (i = cpu_take(&self->team->next_pack) * rows) < s->rows;)
        pack_rows(s, panels, i, min64(rows, s->rows - i));
}

/* Packs nr columns of B from j, and multiplies the panel's first rows by them, where those are to be done with it: A is
 * read where it lies then, for its panel may not be ready. */
static void pack_strip(const struct panel *s, float *strip, int64_t j, int columns) {
    const struct cpu_kernel *kernel = s->plan->kernel;
    const tsr_operand *b = &s->p->b;
    const float *from = b->data + s->depth_first * b->row_stride + (s->j + j) * b->col_stride;
    const tsr_operand addend = addend_of(s);
    struct cpu_tile tile = tile_at(s, &addend, 0, j);
    tile.n = columns;
    float *const panel = s->rows_done && j == 0 ? rows_to_pack(s, &tile, 0) : NULL;
    if (!operand_panels(&s->p->a, s->p->batch)) read_in_place(s, &tile, 0);
    const bool at_once = s->rows_done && columns == kernel->nr;
    if (at_once) {
        tile.b = from;
        tile.b_step = b->row_stride;
    } else {
        tile.b = strip;
        cpu_pack_panels(strip, from, columns, s->depth, b->col_stride, b->row_stride, kernel->nr);
    }
    if (s->rows_done) multiply_tile(s, &tile, addend.col_stride, s->p->c.col_stride, panel, at_once ? strip : NULL);
}

static void pack_columns(const struct panel *s, float *panels, const struct member *self) {
    const int nr = s->plan->kernel->nr;
    const int64_t blocks = ceil_div(s->columns, s->plan->nc);
    for (int64_t helped = 0; helped < blocks; helped++) {
        const int64_t block = block_after(self, blocks, helped), first = block * s->plan->nc, end = block_end(s, block);
        for (int64_t j; (j = first + cpu_take(&self->team->of_block[block].next_pack) * nr) < end;)
            pack_strip(s, panels + j * s->depth, j, (int)min64(nr, end - j));
    }
}

/* Rows of the panel that are multiplied while B is packed: one tile's, where the kernel can do that. */
static int64_t rows_while_packing(const struct panel *s) {
    const struct cpu_kernel *kernel = s->plan->kernel;
    return kernel->multiply_and_pack && s->p->b.col_stride == 1 && s->rows >= kernel->mr ? kernel->mr : 0;
}

/* Where the kernel reads the panel's rows and columns; what must be packed for that, is, unless the team has done so. */
static void prepare_panel(struct panel *s, const struct member *self, bool packs, int64_t panels_across) {
    const cpu_plan *plan = s->plan;
    const tsr_problem *p = s->p;
    const int mr = plan->kernel->mr, nr = plan->kernel->nr;
    const float *packed_a = plan->by_row ? NULL : operand_panels(&p->a, p->batch);
    const float *packed_b = plan->by_row ? NULL : operand_panels(&p->b, p->batch);
    s->a_row = 1;
    s->a_step = mr;
    s->a_panel = mr * s->depth;
    if (packed_a)
        s->a = packed_a + s->depth_first * round_up(p->a.packed->source.rows, mr) + (self->first + s->i) * s->depth;
    else if (plan->packs_a) {
        float *panels = self->panels[self->panel / panels_across % 2];
        s->a = panels;
        if (packs && s->j == 0 && !self->has_rows) {
            if (plan->kernel->multiply_and_pack && (plan->threads == 1 || !plan->shares_products))
                s->unpacked = panels;
            else
                pack_shared_rows(s, panels, self);
        }
    } else {
        s->a = p->a.data + s->i * p->a.row_stride + s->depth_first * p->a.col_stride;
        s->a_row = p->a.row_stride;
        s->a_step = p->a.col_stride;
        s->a_panel = mr * p->a.row_stride;
    }
    s->b_step = nr;
    s->b_panel = nr * s->depth;
    s->b_block = plan->nc * s->depth;
    if (packed_b)
        s->b = packed_b + s->depth_first * round_up(p->n, nr) + s->j * s->depth;
    else if (plan->packs_b) {
        float *panels = self->panels[self->panel % 2] + panel_floats_a(plan);
        s->b = panels;
        s->rows_done = rows_while_packing(s);
        if (packs) pack_columns(s, panels, self);
    } else {
        s->b = p->b.data + s->depth_first * p->b.row_stride + s->j * p->b.col_stride;
        s->b_step = p->b.row_stride;
        s->b_panel = nr;
        s->b_block = plan->nc;
    }
}

static void multiply_product(const cpu_plan *plan, const tsr_problem *p, struct member *self) {
    const int64_t across = plan->blocks * plan->nc, depth = plan->by_row ? p->k : plan->kc;
    for (int64_t i = 0; i < p->m; i += plan->mc)
        for (int64_t first = 0; first < p->k; first += depth)
            for (int64_t j = 0; j < p->n; j += across) {
                /* Panels before the last that was met for are done, and that one's packing is. */
                const bool packs = self->panel >= self->met;
                if (packs || self->panel + 1 == self->met) {
                    struct panel s = {.plan = plan,
                                      .p = p,
                                      .i = i,
                                      .rows = min64(plan->mc, p->m - i),
                                      .j = j,
                                      .columns = min64(across, p->n - j),
                                      .depth_first = first,
                                      .depth = min64(depth, p->k - first)};
                    prepare_panel(&s, self, packs, ceil_div(p->n, across));
                    if (packs) meet(self->team);
                    multiply_panel(&s, self);
                }
                self->panel++;
            }
}

/* ---- A batch ----------------------------------------------------------------------------------------------------- */

struct job {
    const cpu_plan *plan;
    const tsr_problem *problem;
    float *panels;    /* panel_floats for each of panels_in_use */
    struct team team; /* of all, where they share products */
    _Atomic int64_t next_product;
};

static void work_on_batch(int index, unsigned met, void *argument) {
    struct job *job = argument;
    const cpu_plan *plan = job->plan;
    const int64_t batch = job->problem->batch;
    struct member self = {.index = index};
    const uint64_t mode = cpu_rounding_begin();
    if (plan->shares_products) {
        self.team = &job->team;
        self.met = met;
        self.panels[0] = job->panels;
        self.panels[1] = job->panels + (panels_in_use(plan) - 1) * panel_floats(plan);
        for (int64_t item = 0; item < batch; item++) {
            const tsr_problem one = problem_item(job->problem, item);
            multiply_product(plan, &one, &self);
        }
    } else {
        struct cpu_gang alone = {.size = 1};
        struct block_counters counters;
        struct team team = {.gang = &alone, .blocks = 1, .of_block = &counters};
        start_counters(&team);
        self.team = &team;
        self.panels[0] = self.panels[1] = job->panels + index * panel_floats(plan);
        const bool direct = !plan->slice && cpu_is_direct(plan->kernel, job->problem);
        const int64_t length = plan->slices_rows ? job->problem->m : job->problem->n;
        const int64_t slices = plan->slice ? ceil_div(length, plan->slice) : 1, items = batch * slices;
        const int64_t share = max64(1, items / (plan->threads * PIECES_PER_THREAD));
        const bool is_one_panel = !plan->slices_rows && job->problem->m <= plan->mc && job->problem->k <= plan->kc;
        int64_t before = -1; /* the product last worked on */
        for (int64_t item; (item = cpu_take(&job->next_product) * share) < items;) {
            const int64_t end = min64(item + share, items);
            if (direct) cpu_multiply_directly(plan->kernel, job->problem, item, end);
            for (; !direct && item < end; item++) {
                tsr_problem one = problem_item(job->problem, item / slices);
                self.has_rows = is_one_panel && item / slices == before;
                before = item / slices;
                const int64_t first = item % slices * plan->slice;
                if (plan->slice) one = slice_of(&one, plan->slices_rows, first, min64(plan->slice, length - first));
                if (plan->slices_rows) self.first = first;
                multiply_product(plan, &one, &self);
            }
        }
    }
    cpu_rounding_end(mode);
}

/* C = beta*S. */
static void scale(const tsr_problem *p) {
    const tsr_operand *s = &p->addend;
    if (p->beta == 1 && s->data == p->c.data) return;
    for (int64_t item = 0; item < p->batch; item++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++) {
                float *c = p->c.data + item * p->c.batch_stride + i * p->c.row_stride + j * p->c.col_stride;
                *c = p->beta == 0 ? 0
                                  : p->beta * s->data[item * s->batch_stride + i * s->row_stride + j * s->col_stride];
            }
}

static void execute(const cpu_plan *plan, const tsr_problem *p, float *workspace) {
    if (plan->threads > 1 && p->batch == 1 && !plan->by_row && cpu_is_direct(plan->kernel, p)) {
        cpu_multiply_shared(plan->kernel, p, plan->threads);
        return;
    }
    struct job job = {.plan = plan, .problem = p, .panels = workspace};
    /* Where elements of B are used once, they take longer to come than to be multiplied. */
    const double each = plan->by_row ? 4 : 1,
                 work = each * (double)p->m * (double)p->n * (double)p->k * (double)p->batch;
    struct cpu_gang gang = {.work = work_on_batch, .argument = &job, .brief = work < CPU_BRIEF_WORK};
    struct block_counters counters[plan->blocks];
    job.team = (struct team){.gang = &gang, .blocks = plan->blocks, .of_block = counters};
    start_counters(&job.team);
    cpu_gang_run(&gang, plan->threads);
}

tsr_status cpu_execute(const cpu_plan *plan, const tsr_problem *problem, void *workspace) {
    const tsr_problem p = oriented(problem, plan->swapped);
    if (!p.k) {
        const uint64_t mode = cpu_rounding_begin();
        scale(&p);
        cpu_rounding_end(mode);
        return TSR_OK;
    }
    struct cpu_workspace *own = NULL;
    float nothing; /* where panels of no bytes lie */
    if (!plan->workspace)
        workspace = &nothing;
    else if (!workspace) {
        own = cpu_workspace_take(plan->workspace);
        if (!own) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for a workspace of %zu bytes", plan->workspace);
        workspace = own->panels;
    }
    if (plan->pieces)
        amx_execute(plan, &p, workspace);
    else
        execute(plan, &p, workspace);
    if (own) cpu_workspace_return(own);
    return TSR_OK;
}

/* ---- Packed operands --------------------------------------------------------------------------------------------- */

/* The float panels of a packed operand, a multiple of 16 floats; 0: too many. */
static int64_t packed_floats(const tsr_context *context, tsr_side side, int64_t rows, int64_t cols) {
    const struct cpu_kernel *kernel = context->cpu_kernel;
    const int64_t lanes = side == TSR_LEFT ? round_up(rows, kernel->mr) : round_up(cols, kernel->nr);
    int64_t floats;
    if (__builtin_mul_overflow(lanes, side == TSR_LEFT ? cols : rows, &floats) ||
        floats > INT64_MAX / (int64_t)sizeof(float) - 64)
        return 0;
    return round_up(floats + !floats, 16);
}

int64_t cpu_packed_floats(const tsr_packed *packed) {
    return packed_floats(packed->context, packed->side, packed->source.rows, packed->source.cols);
}

size_t cpu_pack_size(const tsr_context *context, tsr_side side, int64_t rows, int64_t cols) {
    const int64_t floats = packed_floats(context, side, rows, cols);
    const int64_t pieces = amx_packed_floats(context, side == TSR_LEFT ? rows : cols, side == TSR_LEFT ? cols : rows);
    if (!floats || pieces < 0 || pieces > INT64_MAX / (int64_t)sizeof(float) - 64 - floats) return 0;
    return (size_t)(floats + pieces) * sizeof(float);
}

/* The whole operand, one depth of kc after the other, each as the panels that multiply_product reads. */
void cpu_pack(const tsr_packed *packed, float factor) {
    const struct cpu_kernel *kernel = packed->context->cpu_kernel;
    const tsr_operand *o = &packed->source;
    const bool left = packed->side == TSR_LEFT;
    const int64_t lanes = left ? o->rows : o->cols, k = left ? o->cols : o->rows;
    const int64_t lane_stride = left ? o->row_stride : o->col_stride, k_stride = left ? o->col_stride : o->row_stride;
    const int width = left ? kernel->mr : kernel->nr;
    const int64_t kc = even_block(k, kernel->kc, 1);
    float *panels = packed->panels;
    if (factor == 0) {
        memset(panels, 0, (size_t)cpu_packed_floats(packed) * sizeof(float));
        amx_pack(panels + cpu_packed_floats(packed), packed);
        return;
    }
    for (int64_t first = 0; first < k; first += kc)
        cpu_pack_panels(panels + first * round_up(lanes, width), o->data + first * k_stride, lanes,
                        min64(kc, k - first), lane_stride, k_stride, width);
    const uint64_t mode = cpu_rounding_begin();
    for (int64_t i = 0; factor != 1 && i < k * round_up(lanes, width); i++) panels[i] *= factor;
    cpu_rounding_end(mode);
    amx_pack(panels + cpu_packed_floats(packed), packed);
}

void cpu_packed_lanes(float *to, const tsr_packed *packed, int64_t lane, int64_t lanes, int64_t first, int64_t depth,
                      int64_t step) {
    const struct cpu_kernel *kernel = packed->context->cpu_kernel;
    const bool left = packed->side == TSR_LEFT;
    const tsr_operand *o = &packed->source;
    const int64_t all_lanes = left ? o->rows : o->cols, k = left ? o->cols : o->rows;
    const int width = left ? kernel->mr : kernel->nr;
    const int64_t kc = even_block(k, kernel->kc, 1);
    for (int64_t p = first; p < first + depth; p++, to += step) {
        const int64_t block = p / kc * kc, block_depth = min64(kc, k - block);
        const float *panels = (const float *)packed->panels + block * round_up(all_lanes, width) + (p - block) * width;
        for (int64_t i = 0; i < lanes; i++)
            to[i] = panels[(lane + i) / width * width * block_depth + (lane + i) % width];
    }
}
