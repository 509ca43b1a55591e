/* amx_gemm.c: plan and loops of products on AMX.
 *
 *     for each nc columns of C and B            a panel of B (kc x nc) is split and packed by all threads together,
 *       for each kc of depth                    into the third-level cache
 *         for each mc rows of C and A           one thread packs a block of A (mc x kc), into its second-level cache
 *           for each 32 columns, 32 rows        amx.c
 *
 * Threads take blocks of A from a counter and meet once per panel; one that finds no block left helps another with its
 * block, some columns at a time. Two panels take turns: while the last threads multiply with one, the first pack the
 * other.
 *
 * Where k is cut follows from k alone, which tiles AMX cannot carry from the operands alone, and the loops are never
 * turned round (C^T = B^T A^T), since pieces are multiplied in an order of their own: so neither threads, strides nor
 * packing change a bit. A limit of workspace below that of the smallest panels does: the ieee kernels compute the product
 * then, for other depths would change bits, too. Sums are added up in C as in gemm.c.
 */
#include <assert.h>

#include "amx.h"
#include "blocks.h"
#include "kernel.h"
#include "rounding.h"
#include "threads.h"

enum { MC = 256, NC = 4096 };

/* 6 bytes for an element. */
static_assert(
    6 * AMX_KC * (MC + AMX_LANES) <= 1 << 20,
    "a block of A and the columns of B in use: half of the 2 MiB that cores with AMX have of second-level cache");
static_assert(6 * AMX_KC * (MC + NC) < 16 << 20, "what a thread may take: see kernel.h");
static_assert(MC % AMX_LANES == 0 && NC % AMX_LANES == 0, "only the last panel of a matrix is padded");

/* Columns of B that one thread packs, or multiplies its block with, at a time. */
enum { PIECE_COLUMNS = 128 };

static_assert(PIECE_COLUMNS % AMX_LANES == 0, "pieces are whole panels");

/* How many pieces a context's operands are split into. */
static int pieces_of(const tsr_context *context) { return context->options.precision == TSR_TF32 ? 2 : 3; }

/* ---- Plan -------------------------------------------------------------------------------------------------------- */

/* What a product takes, in multiply-adds of the AVX-512 kernels: for each multiply-add with so many pieces, for each element
 * that is split, for each of C more than these kernels need, and for a call. */
static const double multiply_cost[] = {[2] = 0.27, [3] = 0.47}, split_cost = 28, sum_cost = 20,
                    call_cost = AMX_CALL_COST;

static double gain(int64_t m, int64_t n, int64_t k, int pieces) {
    const double rows = (double)round_up(m, AMX_LANES), columns = (double)round_up(n, AMX_LANES);
    const double multiplying = multiply_cost[pieces] * rows * columns * (double)round_up(k, AMX_STEP);
    const double splitting = split_cost * ((double)m + (double)n) * (double)k;
    const double adding = sum_cost * (double)m * (double)n * (double)ceil_div(k, AMX_KC);
    return (double)m * (double)n * (double)k / (multiplying + splitting + adding + call_cost);
}

double amx_gain(const tsr_context *context, const tsr_problem *p) {
    return context->cpu_amx == CPU_AMX_NEVER ? 0 : gain(p->m, p->n, p->k, pieces_of(context));
}

bool amx_is_quicker(const tsr_context *context, int64_t m, int64_t n, int64_t k) {
    return gain(m, n, k, pieces_of(context)) > 1;
}

/* What follows the floats of a packed operand, where the call can use it. */
static const float *packed_form(const tsr_operand *o, int64_t batch) {
    if (!o->packed || (batch != 1 && o->batch_stride)) return NULL;
    return (const float *)o->packed->panels + cpu_packed_floats(o->packed);
}

static int64_t block_floats_a(const cpu_plan *plan) {
    return plan->packs_a ? plan->mc / AMX_LANES * amx_panel_floats(plan->kc, plan->pieces) : 0;
}

static int64_t panel_floats_b(const cpu_plan *plan) {
    return plan->packs_b ? plan->nc / AMX_LANES * amx_panel_floats(plan->kc, plan->pieces) : 0;
}

/* Panels of B in use at once: two taking turns where threads share them, else one for each thread. */
static int64_t panels_b(const cpu_plan *plan) { return plan->shares_products && plan->threads > 1 ? 2 : plan->threads; }

static size_t workspace_bytes(const cpu_plan *plan) {
    return (size_t)(plan->threads * block_floats_a(plan) + panels_b(plan) * panel_floats_b(plan)) * sizeof(float);
}

/* Smaller panels, then fewer threads until the workspace fits. False where none of it helps. */
static bool fit_workspace(cpu_plan *plan, size_t limit) {
    while (workspace_bytes(plan) > limit) {
        if (plan->packs_b && plan->nc > AMX_LANES)
            plan->nc = round_up(plan->nc / 2, AMX_LANES);
        else if (plan->packs_a && plan->mc > AMX_LANES)
            plan->mc = round_up(plan->mc / 2, AMX_LANES);
        else if (plan->threads > 1)
            plan->threads /= 2;
        else
            return false;
    }
    return true;
}

/* Work on AMX, in multiply-adds, below which another thread costs more than it brings. */
static const double work_per_thread = 6e6;

/* Threads that share a product begin with equal numbers of blocks of rows, where there are enough rows. */
static void share_among_threads(cpu_plan *plan, const tsr_problem *p, int most) {
    const double work = (double)p->m * (double)p->n * (double)p->k * (double)p->batch / work_per_thread;
    plan->threads = work < 1 ? 1 : work < most ? (int)work : most;
    plan->shares_products = p->batch < plan->threads;
    const int64_t blocks = round_up(ceil_div(p->m, MC), plan->shares_products ? plan->threads : 1);
    plan->mc = round_up(ceil_div(p->m, blocks), AMX_LANES);
}

bool amx_plan_make(cpu_plan *plan, tsr_context *context, const tsr_problem *p) {
    *plan = (cpu_plan){.kernel = context->cpu_kernel,
                       .pieces = pieces_of(context),
                       .amx_gain = amx_gain(context, p),
                       .context = context};
    plan->kc = even_block(p->k, AMX_KC, AMX_STEP);
    plan->nc = even_block(p->n, NC, AMX_LANES);
    plan->packs_a = !packed_form(&p->a, p->batch);
    plan->packs_b = !packed_form(&p->b, p->batch);
    share_among_threads(plan, p, context->options.threads);
    const size_t limit = context->options.max_workspace;
    if (limit && !fit_workspace(plan, limit)) return false;
    plan->workspace = workspace_bytes(plan);
    return true;
}

void amx_plan_print(const cpu_plan *plan, const tsr_problem *problem, tsr_text *text) {
    static const char *const products[] = {
        [2] = "three bf16 products: hh, hm, mh", [3] = "six bf16 products: hh, hm, mh, mm, hl, lh"};
    tsr_text_add(text, "engine: cpu\n");
    tsr_text_add(text, "kernel: amx (%s; what they cannot carry by %s)\n", products[plan->pieces], plan->kernel->name);
    tsr_text_add(text, "amx: chosen, at %.2f x the speed of %s by its estimate\n", plan->amx_gain, plan->kernel->name);
    tsr_text_add(text, "tile: %d x %d\n", AMX_LANES, AMX_LANES);
    tsr_text_add(text, "blocks: %lld x %lld x %lld (mc, nc, kc)\n", (long long)plan->mc, (long long)plan->nc,
                 (long long)plan->kc);
    static const char *const packs[2][2] = {{"nothing", "right"}, {"left", "left and right"}};
    tsr_text_add(text, "packs: %s\n", packs[plan->packs_a][plan->packs_b]);
    if (plan->shares_products)
        tsr_text_add(text, "threads: %d, sharing %lld blocks of at most %lld rows\n", plan->threads,
                     (long long)ceil_div(problem->m, plan->mc), (long long)plan->mc);
    else
        tsr_text_add(text, "threads: %d, each on products of its own\n", plan->threads);
}

/* ---- One product ------------------------------------------------------------------------------------------------- */

/* A member's place in its block of rows: block * ONE_BLOCK + the next PIECE_COLUMNS of the panel. In one word, so that
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
    int64_t recomputed, marked;
};

/* One depth of one panel of B. */
struct panel {
    const cpu_plan *plan;
    const tsr_problem *p; /* of this product of the batch: data points at its matrices */
    int64_t j, columns;   /* which columns of C */
    int64_t first, depth; /* which part of k */
    int64_t floats;       /* of 32 lanes with this depth */
    const float *a, *b;   /* packed forms; A's is NULL where blocks are packed as they are wanted */
};

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

/* The next piece, as block * ONE_BLOCK + which columns: of the member's own block, else of a new one, else of one that
 * another member is not about to finish. -1: there is none. */
static int64_t take_piece(struct member *self, int64_t blocks, int64_t pieces) {
    struct team *team = self->team;
    int64_t piece = cpu_take(&team->places[self->index]);
    if (piece % ONE_BLOCK < pieces) return piece;
    const int64_t block = cpu_take(&team->next_block);
    if (block < blocks) {
        atomic_store_explicit(&team->places[self->index], block * ONE_BLOCK + 1, memory_order_relaxed);
        return block * ONE_BLOCK;
    }
    for (int i = 1; i < team->size; i++) {
        _Atomic int64_t *place = &team->places[(self->index + i) % team->size];
        if (atomic_load_explicit(place, memory_order_relaxed) % ONE_BLOCK + 1 >= pieces) continue;
        piece = cpu_take(place);
        if (piece % ONE_BLOCK < pieces) return piece;
    }
    return -1;
}

/* Some lanes of an operand as panels of this depth. */
static void pack_lanes(float *panels, const struct panel *s, bool left, int64_t lane, int64_t lanes) {
    const tsr_operand *o = left ? &s->p->a : &s->p->b;
    const int64_t lane_stride = left ? o->row_stride : o->col_stride, k_stride = left ? o->col_stride : o->row_stride;
    amx_pack_panels(panels, o->data + lane * lane_stride + s->first * k_stride, lanes, s->depth, lane_stride, k_stride,
                    left, s->plan->pieces);
}

static void pack_panel(float *panel, const struct panel *s, const struct member *self) {
    for (int64_t j; (j = cpu_take(&self->team->next_pack) * PIECE_COLUMNS) < s->columns;)
        pack_lanes(panel + j / AMX_LANES * s->floats, s, false, s->j + j, min64(PIECE_COLUMNS, s->columns - j));
}

/* Where an operand's floats are, from a lane on. */
static struct amx_source source_of(const struct panel *s, bool left, int64_t lane) {
    const tsr_operand *o = left ? &s->p->a : &s->p->b;
    if (operand_is_only_packed(o)) return (struct amx_source){.packed = o->packed, .lane = lane, .depth = s->first};
    const int64_t lane_stride = left ? o->row_stride : o->col_stride, k_stride = left ? o->col_stride : o->row_stride;
    return (struct amx_source){o->data + lane * lane_stride + s->first * k_stride, lane_stride, k_stride, NULL, 0, 0};
}

static int64_t marked_among(const float *panels, int64_t lanes, int64_t panel_floats) {
    int64_t marked = 0;
    for (int64_t lane = 0; lane < lanes; lane += AMX_LANES, panels += panel_floats)
        marked += amx_is_marked((const struct amx_marks *)panels);
    return marked;
}

/* Some rows of C, whose panels `a` has, times PIECE_COLUMNS from j of the panel. */
static void multiply_piece(const struct panel *s, const float *a, int64_t i, int64_t rows, int64_t j,
                           struct member *self) {
    const tsr_problem *p = s->p;
    const tsr_result *c = &p->c;
    /* The depths before this one are in C, the addend with them. */
    const tsr_operand sums = {c->data, c->rows, c->cols, c->row_stride, c->col_stride, c->batch_stride, NULL};
    const tsr_operand *addend = s->first ? &sums : &p->addend;
    const int64_t column = s->j + j;
    struct amx_block block = {.rows = rows,
                              .columns = min64(PIECE_COLUMNS, s->columns - j),
                              .depth = s->depth,
                              .pieces = s->plan->pieces,
                              .a = a,
                              .b = s->b + j / AMX_LANES * s->floats,
                              .next_b = s->b + (j + PIECE_COLUMNS < s->columns ? j + PIECE_COLUMNS : 0) / AMX_LANES *
                                                   s->floats,
                              .a_source = source_of(s, true, i),
                              .b_source = source_of(s, false, column),
                              .s_row = addend->row_stride,
                              .s_col = addend->col_stride,
                              .c = c->data + i * c->row_stride + column * c->col_stride,
                              .c_row = c->row_stride,
                              .c_col = c->col_stride,
                              .alpha = p->alpha,
                              .beta = s->first ? 1 : p->beta,
                              .ieee = s->plan->kernel};
    if (block.beta != 0) block.s = addend->data + i * addend->row_stride + column * addend->col_stride;
    amx_multiply(&block);
    self->recomputed += block.recomputed;
    if (column == 0) self->marked += marked_among(a, rows, s->floats);
    if (i == 0) self->marked += marked_among(block.b, block.columns, s->floats);
}

/* The member's share of one panel: pieces until none is left. */
static void multiply_panel(const struct panel *s, struct member *self) {
    const int64_t m = s->p->m, mc = s->plan->mc;
    const int64_t blocks = ceil_div(m, mc), pieces = ceil_div(s->columns, PIECE_COLUMNS);
    int64_t in_block = -1; /* which block of rows block_a holds */
    for (int64_t piece; (piece = take_piece(self, blocks, pieces)) >= 0;) {
        const int64_t block = piece / ONE_BLOCK, i = block * mc, rows = min64(mc, m - i);
        if (!s->a && block != in_block) pack_lanes(self->block_a, s, true, i, rows);
        in_block = block;
        multiply_piece(s, s->a ? s->a + i / AMX_LANES * s->floats : self->block_a, i, rows,
                       piece % ONE_BLOCK * PIECE_COLUMNS, self);
    }
}

/* The panels of a packed operand that lie at this depth, from a lane on. */
static const float *packed_panels(const float *packed, const struct panel *s, int64_t lanes, int64_t lane) {
    const int64_t whole = s->first / s->plan->kc * amx_panel_floats(s->plan->kc, s->plan->pieces);
    return packed + ceil_div(lanes, AMX_LANES) * whole + lane / AMX_LANES * s->floats;
}

static void multiply_product(const cpu_plan *plan, const tsr_problem *p, struct member *self) {
    const float *packed_a = packed_form(&p->a, p->batch), *packed_b = packed_form(&p->b, p->batch);
    for (int64_t j = 0; j < p->n; j += plan->nc)
        for (int64_t first = 0; first < p->k; first += plan->kc) {
            const unsigned number = self->panel++;
            if (number + 1 < self->met) continue; /* done before this member joined */
            struct panel s = {.plan = plan,
                              .p = p,
                              .j = j,
                              .columns = min64(plan->nc, p->n - j),
                              .first = first,
                              .depth = min64(plan->kc, p->k - first),
                              .b = self->panel_b[number % 2]};
            s.floats = amx_panel_floats(s.depth, plan->pieces);
            if (packed_a) s.a = packed_panels(packed_a, &s, p->m, 0);
            if (packed_b) s.b = packed_panels(packed_b, &s, p->n, j);
            if (number >= self->met) {
                if (!packed_b) pack_panel(self->panel_b[number % 2], &s, self);
                meet(self->team);
            }
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

/* What a thread of the gang is called with. */
struct call {
    struct job *job;
    int index;
    unsigned met;
};

static void work_with_tiles(void *argument) {
    const struct call *call = argument;
    struct job *job = call->job;
    const cpu_plan *plan = job->plan;
    const int64_t batch = job->problem->batch;
    const int index = call->index;
    struct member self = {.index = index, .block_a = job->blocks_a + index * block_floats_a(plan)};
    if (plan->shares_products) {
        self.team = &job->team;
        self.met = call->met;
        self.panel_b[0] = job->panels_b;
        self.panel_b[1] = job->panels_b + (panels_b(plan) - 1) * panel_floats_b(plan);
        for (int64_t item = 0; item < batch; item++) {
            const tsr_problem one = problem_item(job->problem, item);
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
        for (int64_t item; (item = cpu_take(&job->next_product)) < batch;) {
            const tsr_problem one = problem_item(job->problem, item);
            multiply_product(plan, &one, &self);
        }
    }
    atomic_fetch_add_explicit(&plan->context->marked_panels, (uint_fast64_t)self.marked, memory_order_relaxed);
    atomic_fetch_add_explicit(&plan->context->fallback_tiles, (uint_fast64_t)self.recomputed, memory_order_relaxed);
}

static void work_on_batch(int index, unsigned met, void *argument) {
    struct call call = {argument, index, met};
    const uint64_t mode = cpu_rounding_begin();
    amx_with_tiles(work_with_tiles, &call);
    cpu_rounding_end(mode);
}

void amx_execute(const cpu_plan *plan, const tsr_problem *problem, float *workspace) {
    struct job job = {.plan = plan, .problem = problem, .blocks_a = workspace};
    job.panels_b = job.blocks_a + plan->threads * block_floats_a(plan);
    struct cpu_gang gang = {.work = work_on_batch, .argument = &job};
    _Atomic int64_t places[plan->threads];
    job.team = (struct team){.gang = &gang, .size = plan->threads, .places = places};
    start_counters(&job.team);
    cpu_gang_run(&gang, plan->threads);
    atomic_fetch_add_explicit(&plan->context->split_products, (uint_fast64_t)problem->batch, memory_order_relaxed);
}

/* ---- Packed operands --------------------------------------------------------------------------------------------- */

/* An operand of so many lanes may meet one of any number. */
static bool may_be_chosen(const tsr_context *context, int64_t lanes, int64_t k) {
    return amx_takes(context, lanes, INT64_C(1) << 40, k);
}

int64_t amx_packed_floats(const tsr_context *context, int64_t lanes, int64_t k) {
    if (!may_be_chosen(context, lanes, k)) return 0;
    const int pieces = pieces_of(context);
    const int64_t kc = even_block(k, AMX_KC, AMX_STEP);
    const int64_t last = k % kc ? amx_panel_floats(k % kc, pieces) : 0; /* behind the whole blocks of k */
    int64_t floats;
    if (__builtin_mul_overflow(k / kc, amx_panel_floats(kc, pieces), &floats) ||
        __builtin_add_overflow(floats, last, &floats) ||
        __builtin_mul_overflow(floats, ceil_div(lanes, AMX_LANES), &floats))
        return -1;
    return floats;
}

/* One depth of kc after the other, each as the panels of a stage. They are made of the packed floats, which have been
 * scaled. */
void amx_pack(float *panels, const tsr_packed *packed) {
    const tsr_operand *o = &packed->source;
    const bool left = packed->side == TSR_LEFT;
    const int64_t lanes = left ? o->rows : o->cols, k = left ? o->cols : o->rows;
    if (!may_be_chosen(packed->context, lanes, k)) return;
    const int64_t kc = even_block(k, AMX_KC, AMX_STEP);
    const int pieces = pieces_of(packed->context);
    for (int64_t first = 0; first < k; first += kc) {
        const int64_t depth = min64(kc, k - first);
        for (int64_t lane = 0; lane < lanes; lane += AMX_LANES, panels += amx_panel_floats(depth, pieces)) {
            float copy[AMX_KC * AMX_LANES];
            const int64_t count = min64(AMX_LANES, lanes - lane);
            cpu_packed_lanes(copy, packed, lane, count, first, depth, AMX_LANES);
            amx_pack_panels(panels, copy, count, depth, 1, AMX_LANES, left, pieces);
        }
    }
}
