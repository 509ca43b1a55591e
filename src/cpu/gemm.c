/* gemm.c: plan and loops of the CPU engine.
 *
 * Five loops around the microkernel, as Goto and the BLIS authors taught:
 *
 *     for each nc columns of C and B            a panel of B (kc x nc) is packed by all threads together,
 *       for each kc of depth                    into the third-level cache
 *         for each mc rows of C and A           one thread packs a block of A (mc x kc), into its second-level cache
 *           for each nr columns                 kc x nr of B come nearer, and stay for all of A's block
 *             for each mr rows                  the microkernel
 *
 * Threads take blocks of A from a counter and meet once per panel; one that finds no block left helps another with its
 * block, nr columns at a time. Two panels take turns: while the last threads multiply with one, the first pack the
 * other.
 *
 * Every element of C is summed in an order that k and the kernel fix (kc does not depend on threads, strides, packing
 * or the workspace's limit), so none of those changes a bit of the result. The sums of each kc of depth are added up in
 * C: alpha scales each on its way (one fma, as many roundings as without alpha), beta the addend, which only the first
 * takes in.
 */
#include <stdlib.h>
#include <string.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "cpu.h"
#include "kernel.h"
#include "pack.h"
#include "threads.h"
#include "workspace.h"

/* Work, in multiply-adds, below which another thread costs more than it brings. */
static const double work_per_thread = 3e6;

/* An operand is packed where this many tiles reuse what one packing read. */
enum { REUSE_WORTH_PACKING = 6 };

/* Columns of B that one thread packs at a time, in panels. */
enum { PANELS_PER_PACK = 4 };

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
static int64_t round_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }

/* The size of each of the fewest equal blocks, no larger than `most`, that cover `whole` in multiples of `unit`. */
static int64_t even_block(int64_t whole, int64_t most, int64_t unit) {
    if (whole <= 0) return unit;
    return round_up(ceil_div(whole, ceil_div(whole, most)), unit);
}

/* Where the part with this number begins, of `whole` cut at multiples of `unit` into parts as equal as that allows. */
static int64_t part_begin(int64_t part, int64_t parts, int64_t whole, int64_t unit) {
    const int64_t units = ceil_div(whole, unit);
    return least((units / parts * part + units % parts * part / parts) * unit, whole);
}

/* ---- Which way round --------------------------------------------------------------------------------------------- */

/* The packed form of an operand, where the call can use it: it holds one matrix, not a batch of them. */
static const float *packed_form(const tsr_operand *o, int64_t batch) {
    return o->packed && (batch == 1 || o->batch_stride == 0) ? o->packed->panels : NULL;
}

/* Whether C is better computed as the transpose it is: its columns are contiguous and its rows are not. Packed operands
 * are packed for their side, which settles it. */
static bool is_better_swapped(const tsr_problem *p) {
    if (packed_form(&p->a, p->batch) || packed_form(&p->b, p->batch)) return false;
    return p->c.row_stride == 1 && p->c.col_stride != 1 && p->n > 1;
}

static tsr_operand transposed_operand(const tsr_operand *o) {
    return (tsr_operand){o->data, o->cols, o->rows, o->col_stride, o->row_stride, o->batch_stride, o->packed};
}

/* The product to compute. Strides over a single row or column, which may be any number, are 1. */
static tsr_problem oriented(const tsr_problem *p, bool swapped) {
    tsr_problem q = *p;
    if (swapped) {
        q.m = p->n;
        q.n = p->m;
        q.a = transposed_operand(&p->b);
        q.b = transposed_operand(&p->a);
        q.c = (tsr_result){p->c.data, p->c.cols, p->c.rows, p->c.col_stride, p->c.row_stride, p->c.batch_stride};
        q.addend = transposed_operand(&p->addend);
    }
    if (q.m == 1) q.a.row_stride = q.c.row_stride = q.addend.row_stride = 1;
    if (q.n == 1) q.b.col_stride = q.c.col_stride = q.addend.col_stride = 1;
    if (q.k == 1) q.a.col_stride = q.b.row_stride = 1;
    return q;
}

/* ---- Plan -------------------------------------------------------------------------------------------------------- */

static int64_t block_floats_a(const cpu_plan *plan) { return plan->packs_a ? round_up(plan->mc * plan->kc, 16) : 0; }
static int64_t panel_floats_b(const cpu_plan *plan) { return plan->packs_b ? round_up(plan->nc * plan->kc, 16) : 0; }

/* Panels of B in use at once: two taking turns where threads share them, else one for each thread. */
static int64_t panels_b(const cpu_plan *plan) { return plan->shares_products && plan->threads > 1 ? 2 : plan->threads; }

static size_t workspace_bytes(const cpu_plan *plan) {
    return (size_t)(plan->threads * block_floats_a(plan) + panels_b(plan) * panel_floats_b(plan)) * sizeof(float);
}

/* Threads that share a product begin with equal numbers of blocks of rows, where there are enough rows. */
static void cut_blocks(cpu_plan *plan, const tsr_problem *p) {
    const struct cpu_kernel *kernel = plan->kernel;
    plan->mc = even_block(p->m, kernel->mc, kernel->mr);
    if (plan->threads == 1 || !plan->shares_products) return;
    const int64_t blocks = round_up(ceil_div(p->m, plan->mc), plan->threads);
    plan->mc = round_up(ceil_div(p->m, blocks), kernel->mr);
}

static void share_among_threads(cpu_plan *plan, const tsr_problem *p, int most) {
    const double product = (double)p->m * (double)p->n * (double)p->k;
    const double useful = product * (double)p->batch / work_per_thread;
    plan->threads = useful < 1 ? 1 : useful < most ? (int)useful : most;
    plan->shares_products = p->batch < plan->threads;
    cut_blocks(plan, p);
}

/* Smaller blocks, then fewer threads, then less packing until the workspace fits. False where none of it helps. */
static bool fit_workspace(cpu_plan *plan, const tsr_problem *p, size_t limit) {
    const struct cpu_kernel *kernel = plan->kernel;
    while (workspace_bytes(plan) > limit) {
        if (plan->packs_b && plan->nc > kernel->nr)
            plan->nc = round_up(plan->nc / 2, kernel->nr);
        else if (plan->packs_a && plan->mc > kernel->mr)
            plan->mc = round_up(plan->mc / 2, kernel->mr);
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

tsr_status cpu_plan_make(cpu_plan *plan, const tsr_context *context, const tsr_problem *problem) {
    const bool swapped = is_better_swapped(problem);
    const tsr_problem p = oriented(problem, swapped);
    const struct cpu_kernel *kernel = context->cpu_kernel;
    *plan = (cpu_plan){.kernel = kernel, .swapped = swapped, .threads = 1};
    plan->kc = even_block(p.k, kernel->kc, 1);
    plan->nc = even_block(p.n, kernel->nc, kernel->nr);
    plan->packs_a = p.k && !packed_form(&p.a, p.batch) && p.n > REUSE_WORTH_PACKING * kernel->nr;
    plan->packs_b = p.k && !packed_form(&p.b, p.batch) &&
                    (p.m > REUSE_WORTH_PACKING * kernel->mr || p.b.col_stride != 1);
    share_among_threads(plan, &p, context->options.threads);
    const size_t limit = context->options.max_workspace;
    if (limit && !fit_workspace(plan, &p, limit))
        return tsr_fail(TSR_OUT_OF_MEMORY, "options.max_workspace is %zu; this product needs at least %zu bytes", limit,
                        workspace_bytes(plan));
    plan->workspace = workspace_bytes(plan);
    return TSR_OK;
}

void cpu_plan_print(const cpu_plan *plan, const tsr_problem *problem, tsr_text *text) {
    const tsr_problem p = oriented(problem, plan->swapped);
    tsr_text_add(text, "engine: cpu\n");
    tsr_text_add(text, "kernel: %s (ieee, which serves fp32 and tf32, too)\n", plan->kernel->name);
    tsr_text_add(text, "tile: %d x %d\n", plan->kernel->mr, plan->kernel->nr);
    tsr_text_add(text, "computes: %s\n", plan->swapped ? "C^T = B^T A^T" : "C = A B");
    tsr_text_add(text, "blocks: %lld x %lld x %lld (mc, nc, kc)\n", (long long)plan->mc, (long long)plan->nc,
                 (long long)plan->kc);
    static const char *const packs[2][2] = {{"nothing", "right"}, {"left", "left and right"}};
    tsr_text_add(text, "packs: %s\n", packs[plan->packs_a][plan->packs_b]);
    if (plan->shares_products)
        tsr_text_add(text, "threads: %d, sharing %lld blocks of at most %lld rows\n", plan->threads,
                     (long long)ceil_div(p.m, plan->mc), (long long)plan->mc);
    else
        tsr_text_add(text, "threads: %d, each on products of its own\n", plan->threads);
}

/* ---- One product ------------------------------------------------------------------------------------------------- */

/* A member's place in its block of rows: block * ONE_BLOCK + the next nr columns of the panel. In one word, so that
 * others can help with the block: whoever adds one has taken the piece that was there. */
enum { ONE_BLOCK = 1 << 20, NO_PIECE = ONE_BLOCK / 2 };

/* Those who compute one product together, and what they take their work from. */
struct team {
    struct cpu_gang *gang;
    int size;                /* the most members it can have */
    _Atomic int64_t *places; /* of each */
    _Atomic int64_t next_pack, next_block;
};

/* One of them. */
struct member {
    struct team *team;
    int index;
    float *block_a;    /* its own block of A */
    float *panel_b[2]; /* the team's panels of B, which take turns; the same where one is enough */
    unsigned met;      /* meetings of the team, one for each panel, before it joined */
    unsigned panel;    /* the number of the panel it is at */
};

/* One depth of one panel: rows of A and columns of B from where the kernel reads them. */
struct panel {
    const cpu_plan *plan;
    const tsr_problem *p;       /* of this product of the batch: data points at its matrices */
    int64_t j, columns;         /* which columns of C */
    int64_t depth_first, depth; /* which part of K */
    const float *b;             /* kc x nr panels, or B itself */
    int64_t b_step, b_panel;    /* from one depth to the next; from one nr columns to the next */
};

static int64_t take(_Atomic int64_t *counter) { return atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); }

static void start_counters(struct team *team) {
    atomic_store_explicit(&team->next_pack, 0, memory_order_relaxed);
    atomic_store_explicit(&team->next_block, 0, memory_order_relaxed);
    for (int i = 0; i < team->size; i++) atomic_store_explicit(&team->places[i], NO_PIECE, memory_order_relaxed);
}

/* After the last of the team is here, and before the first goes on, the counters start again. */
static void meet(struct team *team) {
    if (!cpu_gang_arrive(team->gang)) return;
    start_counters(team);
    cpu_gang_release(team->gang);
}

/* A tile whose columns are not contiguous in C, or in the addend, is made in a buffer. */
static void multiply_through_buffer(const struct cpu_kernel *kernel, struct cpu_tile tile, int64_t s_col,
                                    int64_t c_col) {
    float buffer[CPU_TILE_FLOATS];
    float *const c = tile.c;
    const int64_t c_row = tile.c_row;
    if (tile.beta != 0)
        for (int i = 0; i < tile.m; i++)
            for (int j = 0; j < tile.n; j++) buffer[i * tile.n + j] = tile.s[i * tile.s_row + j * s_col];
    tile.s = tile.c = buffer;
    tile.s_row = tile.c_row = tile.n;
    kernel->multiply(&tile);
    for (int i = 0; i < tile.m; i++)
        for (int j = 0; j < tile.n; j++) c[i * c_row + j * c_col] = buffer[i * tile.n + j];
}

/* Rows of A as the kernel reads them: from one row, one depth and one mr rows to the next. */
struct block {
    const float *a;
    int64_t row, step, panel;
};

/* A piece of work: the rows of C from i_first to i_end, made of those in `block`, times nr columns from j of the panel. */
static void multiply_piece(const struct panel *s, const struct block *block, int64_t i_first, int64_t i_end,
                           int64_t j) {
    const struct cpu_kernel *kernel = s->plan->kernel;
    const tsr_result *c = &s->p->c;
    /* The depths before this one are in C, the addend with them. */
    const tsr_operand sums = {c->data, c->rows, c->cols, c->row_stride, c->col_stride, c->batch_stride, NULL};
    const tsr_operand *addend = s->depth_first ? &sums : &s->p->addend;
    struct cpu_tile tile = {.n = (int)least(kernel->nr, s->columns - j),
                            .k = s->depth,
                            .a = block->a,
                            .a_row = block->row,
                            .a_step = block->step,
                            .b = s->b + j / kernel->nr * s->b_panel,
                            .b_step = s->b_step,
                            .s_row = addend->row_stride,
                            .c_row = c->row_stride,
                            .alpha = s->p->alpha,
                            .beta = s->depth_first ? 1 : s->p->beta};
    for (int64_t i = i_first; i < i_end; i += kernel->mr, tile.a += block->panel) {
        tile.m = (int)least(kernel->mr, i_end - i);
        tile.c = c->data + i * c->row_stride + (s->j + j) * c->col_stride;
        if (tile.beta != 0) tile.s = addend->data + i * addend->row_stride + (s->j + j) * addend->col_stride;
        if (c->col_stride == 1 && (tile.beta == 0 || addend->col_stride == 1))
            kernel->multiply(&tile);
        else
            multiply_through_buffer(kernel, tile, addend->col_stride, c->col_stride);
    }
}

/* The next piece, as block * ONE_BLOCK + which nr columns: of the member's own block, else of a new one, else of one
 * that another member is not about to finish. -1: there is none. */
static int64_t take_piece(struct member *self, int64_t blocks, int64_t pieces) {
    struct team *team = self->team;
    int64_t piece = take(&team->places[self->index]);
    if (piece % ONE_BLOCK < pieces) return piece;
    const int64_t block = take(&team->next_block);
    if (block < blocks) {
        atomic_store_explicit(&team->places[self->index], block * ONE_BLOCK + 1, memory_order_relaxed);
        return block * ONE_BLOCK;
    }
    for (int i = 1; i < team->size; i++) {
        _Atomic int64_t *place = &team->places[(self->index + i) % team->size];
        if (atomic_load_explicit(place, memory_order_relaxed) % ONE_BLOCK + 1 >= pieces) continue;
        piece = take(place);
        if (piece % ONE_BLOCK < pieces) return piece;
    }
    return -1;
}

/* The team's share of one panel: pieces until none is left. */
static void multiply_panel(const struct panel *s, struct member *self) {
    const cpu_plan *plan = s->plan;
    const struct cpu_kernel *kernel = plan->kernel;
    const tsr_problem *p = s->p;
    const float *packed = packed_form(&p->a, p->batch);
    const int64_t blocks = ceil_div(p->m, plan->mc), pieces = ceil_div(s->columns, kernel->nr);
    int64_t in_block = -1; /* which rows block_a holds */
    for (int64_t piece; (piece = take_piece(self, blocks, pieces)) >= 0;) {
        const int64_t i = part_begin(piece / ONE_BLOCK, blocks, p->m, kernel->mr);
        const int64_t i_end = part_begin(piece / ONE_BLOCK + 1, blocks, p->m, kernel->mr);
        const float *a = p->a.data + i * p->a.row_stride + s->depth_first * p->a.col_stride;
        struct block block = {NULL, 1, kernel->mr, kernel->mr * s->depth};
        if (packed)
            block.a = packed + s->depth_first * round_up(p->m, kernel->mr) + i * s->depth;
        else if (plan->packs_a) {
            if (in_block != i)
                cpu_pack_panels(self->block_a, a, i_end - i, s->depth, p->a.row_stride, p->a.col_stride, kernel->mr);
            in_block = i;
            block.a = self->block_a;
        } else
            block = (struct block){a, p->a.row_stride, p->a.col_stride, kernel->mr * p->a.row_stride};
        multiply_piece(s, &block, i, i_end, piece % ONE_BLOCK * kernel->nr);
    }
}

static void pack_panel(const struct panel *s, float *panel, struct member *self) {
    const int nr = s->plan->kernel->nr;
    const tsr_operand *b = &s->p->b;
    for (int64_t j; (j = take(&self->team->next_pack) * PANELS_PER_PACK * nr) < s->columns;)
        cpu_pack_panels(panel + j * s->depth, b->data + s->depth_first * b->row_stride + (s->j + j) * b->col_stride,
                        least(PANELS_PER_PACK * nr, s->columns - j), s->depth, b->col_stride, b->row_stride, nr);
}

static void multiply_product(const cpu_plan *plan, const tsr_problem *p, struct member *self) {
    const int nr = plan->kernel->nr;
    const float *packed = packed_form(&p->b, p->batch);
    for (int64_t j = 0; j < p->n; j += plan->nc)
        for (int64_t first = 0; first < p->k; first += plan->kc) {
            const unsigned number = self->panel++;
            if (number + 1 < self->met) continue; /* done before this member joined */
            struct panel s = {plan, p, j, least(plan->nc, p->n - j), first, least(plan->kc, p->k - first), NULL, nr, 0};
            s.b_panel = nr * s.depth;
            if (packed)
                s.b = packed + first * round_up(p->n, nr) + j * s.depth;
            else if (plan->packs_b) {
                s.b = self->panel_b[number % 2];
                if (number >= self->met) pack_panel(&s, self->panel_b[number % 2], self);
            } else {
                s.b = p->b.data + first * p->b.row_stride + j;
                s.b_step = p->b.row_stride;
                s.b_panel = nr;
            }
            if (number >= self->met) meet(self->team);
            multiply_panel(&s, self);
        }
}

/* ---- A batch ----------------------------------------------------------------------------------------------------- */

struct job {
    const cpu_plan *plan;
    const tsr_problem *problem;
    float *blocks_a, *panels_b; /* block_floats_a for each thread; panel_floats_b for each of panels_b */
    struct team team;           /* of all, where they share products */
    _Atomic int64_t next_product;
};

static tsr_problem product_of_batch(const tsr_problem *p, int64_t item) {
    tsr_problem one = *p;
    one.a.data += item * p->a.batch_stride;
    one.b.data += item * p->b.batch_stride;
    one.c.data += item * p->c.batch_stride;
    if (p->beta != 0) one.addend.data += item * p->addend.batch_stride;
    return one;
}

static void work_on_batch(int index, unsigned met, void *argument) {
    struct job *job = argument;
    const cpu_plan *plan = job->plan;
    const int64_t batch = job->problem->batch;
    struct member self = {.index = index, .block_a = job->blocks_a + index * block_floats_a(plan)};
#ifdef __SSE__
    /* Subnormals are kept and rounding is to nearest whatever the calling thread, or the one that started this worker,
     * has set for itself. */
    const unsigned int mode = _mm_getcsr();
    _mm_setcsr(0x1f80);
#endif
    if (plan->shares_products) {
        self.team = &job->team;
        self.met = met;
        self.panel_b[0] = job->panels_b;
        self.panel_b[1] = job->panels_b + (panels_b(plan) - 1) * panel_floats_b(plan);
        for (int64_t item = 0; item < batch; item++) {
            const tsr_problem one = product_of_batch(job->problem, item);
            multiply_product(plan, &one, &self);
        }
    } else {
        struct cpu_gang alone = {.size = 1};
        _Atomic int64_t place;
        struct team team = {.gang = &alone, .size = 1, .places = &place};
        start_counters(&team);
        self.team = &team;
        self.index = 0;
        self.panel_b[0] = self.panel_b[1] = job->panels_b + index * panel_floats_b(plan);
        for (int64_t item; (item = take(&job->next_product)) < batch;) {
            const tsr_problem one = product_of_batch(job->problem, item);
            multiply_product(plan, &one, &self);
        }
    }
#ifdef __SSE__
    _mm_setcsr(mode);
#endif
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

tsr_status cpu_execute(const cpu_plan *plan, const tsr_problem *problem, void *workspace) {
    const tsr_problem p = oriented(problem, plan->swapped);
    if (!p.k) {
        scale(&p);
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
    struct job job = {.plan = plan, .problem = &p, .blocks_a = workspace};
    job.panels_b = job.blocks_a + plan->threads * block_floats_a(plan);
    struct cpu_gang gang = {.work = work_on_batch, .argument = &job};
    _Atomic int64_t places[plan->threads];
    job.team = (struct team){.gang = &gang, .size = plan->threads, .places = places};
    start_counters(&job.team);
    cpu_gang_run(&gang, plan->threads);
    if (own) cpu_workspace_return(own);
    return TSR_OK;
}

/* ---- Packed operands --------------------------------------------------------------------------------------------- */

size_t cpu_pack_size(const tsr_context *context, tsr_side side, int64_t rows, int64_t cols) {
    const struct cpu_kernel *kernel = context->cpu_kernel;
    const int64_t lanes = side == TSR_LEFT ? round_up(rows, kernel->mr) : round_up(cols, kernel->nr);
    int64_t floats;
    if (__builtin_mul_overflow(lanes, side == TSR_LEFT ? cols : rows, &floats) ||
        floats > INT64_MAX / (int64_t)sizeof(float) - 64)
        return 0;
    return (size_t)round_up(floats + !floats, 16) * sizeof(float);
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
        memset(panels, 0, packed->bytes);
        return;
    }
    for (int64_t first = 0; first < k; first += kc)
        cpu_pack_panels(panels + first * round_up(lanes, width), o->data + first * k_stride, lanes,
                        least(kc, k - first), lane_stride, k_stride, width);
    for (int64_t i = 0; factor != 1 && i < k * round_up(lanes, width); i++) panels[i] *= factor;
}
