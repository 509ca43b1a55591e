/* amx_loops.c: products on AMX.
 *
 *     for each nc columns of C and B            a block of B (kc x nc) is split and packed by all members together,
 *       for each kc of k                        for the third-level cache
 *         for each mc rows of C and A           one member packs a block of A (mc x kc), for its second-level cache
 *           for each 32 columns, 32 rows        amx.c
 *
 * This is a stage for each block of B: members pack it, wait at a barrier, and multiply. They take blocks of A from a
 * counter; one that finds none left helps another with its block, some columns at a time. Blocks of B are
 * double-buffered: early members pack the next one while late ones still use the current.
 *
 * Sums are added up in C as in loops.c.
 */
#include <assert.h>

#include "cpu/amx.h"
#include "cpu/kernel.h"
#include "cpu/loops.h"
#include "cpu/team.h"
#include "rounding.h"

/* Columns of B that a member packs, or multiplies its block of A with, at a time. */
enum { PART_COLUMNS = 128 };

static_assert(PART_COLUMNS % AMX_LANES == 0, "parts are whole panels");

/* ---- One product ------------------------------------------------------------------------------------------------- */

/* A member's place in its block of rows: block * ONE_BLOCK + the next PART_COLUMNS. In one word, so that others can
 * help with the block: whoever adds one has taken the part that was there. */
enum { ONE_BLOCK = 1 << 20, NO_PART = ONE_BLOCK / 2 };

/* What the members of a team take their work from. */
struct counters {
    int members;             /* the most that it can have */
    _Atomic int64_t *places; /* of each */
    _Atomic int64_t next_pack, next_block;
};

/* One member in the loops. */
struct loops {
    struct cpu_member *self;
    struct counters *counters;
    float *block_a;     /* its own */
    float *block_b[2];  /* the team's, used in turn; the same where one is enough */
    int64_t row0, col0; /* of the whole product that the problem is a part of: where packed operands are read from */
    int64_t recomputed, marked;
};

/* One stage: a k block of some columns of B. */
struct stage {
    const cpu_plan *plan;
    const tsr_problem *p;
    int64_t row0, col0;
    int64_t j, columns;   /* which columns of C */
    int64_t first, terms; /* which terms of k */
    int64_t floats;       /* of a panel of these terms */
    const float *a, *b;   /* panels; A's are NULL where members pack blocks as they take them */
    tsr_operand addend;   /* of this k block: C, which holds the blocks before it, or the problem's */
    float alpha, beta;    /* of this k block */
    bool scales;          /* the last k block of a product whose alpha has waited for it */
};

static void start_counters(void *shared) {
    struct counters *counters = shared;
    atomic_store_explicit(&counters->next_pack, 0, memory_order_relaxed);
    atomic_store_explicit(&counters->next_block, 0, memory_order_relaxed);
    for (int i = 0; i < counters->members; i++)
        atomic_store_explicit(&counters->places[i], NO_PART, memory_order_relaxed);
}

/* The next part, as block * ONE_BLOCK + which columns: of the member's own block, else of a new one, else of one that
 * another member is not about to finish. -1: there is none. */
static int64_t take_part(struct loops *loops, int64_t blocks, int64_t parts) {
    struct counters *counters = loops->counters;
    const int index = loops->self->index;
    int64_t part = cpu_take(&counters->places[index]);
    if (part % ONE_BLOCK < parts) return part;
    const int64_t block = cpu_take(&counters->next_block);
    if (block < blocks) {
        atomic_store_explicit(&counters->places[index], block * ONE_BLOCK + 1, memory_order_relaxed);
        return block * ONE_BLOCK;
    }
    for (int i = 1; i < counters->members; i++) {
        _Atomic int64_t *place = &counters->places[(index + i) % counters->members];
        if (atomic_load_explicit(place, memory_order_relaxed) % ONE_BLOCK + 1 >= parts) continue;
        part = cpu_take(place);
        if (part % ONE_BLOCK < parts) return part;
    }
    return -1;
}

/* Some lanes of an operand as panels of the stage's terms. */
static void pack_lanes(float *panels, const struct stage *s, bool left, int64_t lane, int64_t lanes) {
    const tsr_operand *o = left ? &s->p->a : &s->p->b;
    const int64_t lane_stride = left ? o->row_stride : o->col_stride, k_stride = left ? o->col_stride : o->row_stride;
    amx_pack_panels(panels, o->data + lane * lane_stride + s->first * k_stride, lanes, s->terms, lane_stride, k_stride,
                    left, s->plan->components);
}

static void pack_block(float *block, const struct stage *s, const struct loops *loops) {
    for (int64_t j; (j = cpu_take(&loops->counters->next_pack) * PART_COLUMNS) < s->columns;)
        pack_lanes(block + j / AMX_LANES * s->floats, s, false, s->j + j, min64(PART_COLUMNS, s->columns - j));
}

/* Where an operand's floats are, from a lane on. */
static struct amx_source source_of(const struct stage *s, bool left, int64_t lane) {
    const tsr_operand *o = left ? &s->p->a : &s->p->b;
    if (operand_is_only_packed(o))
        return (struct amx_source){.packed = o->packed, .lane = lane + (left ? s->row0 : s->col0), .term = s->first};
    const int64_t lane_stride = left ? o->row_stride : o->col_stride, k_stride = left ? o->col_stride : o->row_stride;
    return (struct amx_source){o->data + lane * lane_stride + s->first * k_stride, lane_stride, k_stride, NULL, 0, 0};
}

static int64_t marked_among(const float *panels, int64_t lanes, int64_t panel_floats) {
    int64_t marked = 0;
    for (int64_t lane = 0; lane < lanes; lane += AMX_LANES, panels += panel_floats)
        marked += amx_is_marked((const struct amx_marks *)panels);
    return marked;
}

/* Some rows of C, whose panels `a` has, times PART_COLUMNS from j of the stage. */
static void multiply_part(const struct stage *s, const float *a, int64_t i, int64_t rows, int64_t j,
                          struct loops *loops) {
    const tsr_problem *p = s->p;
    const tsr_result *c = &p->c;
    const tsr_operand *addend = &s->addend;
    const int64_t column = s->j + j, columns = min64(PART_COLUMNS, s->columns - j);
    const int64_t next = j + PART_COLUMNS < s->columns ? j + PART_COLUMNS : 0;
    struct amx_block block = {.rows = rows,
                              .columns = columns,
                              .terms = s->terms,
                              .components = s->plan->components,
                              .a = a,
                              .b = s->b + j / AMX_LANES * s->floats,
                              .next_b = s->b + next / AMX_LANES * s->floats,
                              .a_source = source_of(s, true, i),
                              .b_source = source_of(s, false, column),
                              .s_row = addend->row_stride,
                              .s_col = addend->col_stride,
                              .c = c->data + i * c->row_stride + column * c->col_stride,
                              .c_row = c->row_stride,
                              .c_col = c->col_stride,
                              .alpha = s->alpha,
                              .beta = s->beta,
                              .ieee = s->plan->kernel};
    if (!is_zero(s->beta)) block.s = addend->data + i * addend->row_stride + column * addend->col_stride;
    amx_multiply(&block);
    if (s->scales) {
        problem_range range = problem_whole(p);
        range.m0 = i, range.m = rows;
        range.n0 = column, range.n = columns;
        const tsr_problem part = problem_part(p, &range);
        cpu_scale_block(&part.c, part.alpha, &part.addend, part.beta);
    }
    loops->recomputed += block.recomputed;
    if (s->col0 + column == 0) loops->marked += marked_among(a, rows, s->floats);
    if (s->row0 + i == 0) loops->marked += marked_among(block.b, columns, s->floats);
}

/* The member's share of a stage: parts until none is left. */
static void multiply_stage(const struct stage *s, struct loops *loops) {
    const int64_t m = s->p->m, mc = s->plan->mc;
    const int64_t blocks = ceil_div(m, mc), parts = ceil_div(s->columns, PART_COLUMNS);
    int64_t packed = -1; /* which block of rows block_a holds */
    for (int64_t part; (part = take_part(loops, blocks, parts)) >= 0;) {
        const int64_t block = part / ONE_BLOCK, i = block * mc, rows = min64(mc, m - i);
        if (!s->a && block != packed) pack_lanes(loops->block_a, s, true, i, rows);
        packed = block;
        multiply_part(s, s->a ? s->a + i / AMX_LANES * s->floats : loops->block_a, i, rows,
                      part % ONE_BLOCK * PART_COLUMNS, loops);
    }
}

/* The panels of a packed operand of `lanes` lanes, for this k block and from `lane` on. */
static const float *packed_panels(const float *packed, const struct stage *s, int64_t lanes, int64_t lane) {
    const int64_t whole = s->first / s->plan->kc * amx_panel_floats(s->plan->kc, s->plan->components);
    return packed + ceil_div(lanes, AMX_LANES) * whole + lane / AMX_LANES * s->floats;
}

static void multiply_product(const cpu_plan *plan, const tsr_problem *p, struct loops *loops) {
    const float *packed_a = amx_packed_form(&p->a, p->batch), *packed_b = amx_packed_form(&p->b, p->batch);
    const bool waits = cpu_scales_last(plan, p);
    for (int64_t j = 0; j < p->n; j += plan->nc)
        for (int64_t first = 0; first < p->k; first += plan->kc, loops->self->stage++) {
            const enum cpu_stage state = cpu_stage(loops->self);
            if (state == CPU_STAGE_OVER) continue;
            float *block_b = loops->block_b[loops->self->stage % 2];
            struct stage s = {.plan = plan,
                              .p = p,
                              .row0 = loops->row0,
                              .col0 = loops->col0,
                              .j = j,
                              .columns = min64(plan->nc, p->n - j),
                              .first = first,
                              .terms = min64(plan->kc, p->k - first),
                              .b = block_b,
                              .addend = first ? result_as_addend(&p->c) : p->addend,
                              .alpha = waits ? 1 : p->alpha,
                              .beta = first   ? 1
                                      : waits ? 0
                                              : p->beta,
                              .scales = waits && first + plan->kc >= p->k};
            s.floats = amx_panel_floats(s.terms, plan->components);
            if (packed_a) s.a = packed_panels(packed_a, &s, p->a.packed->source.rows, loops->row0);
            if (packed_b) s.b = packed_panels(packed_b, &s, p->b.packed->source.cols, loops->col0 + j);
            if (state == CPU_STAGE_OPEN) {
                if (!packed_b) pack_block(block_b, &s, loops);
                cpu_team_barrier(loops->self->team, start_counters, loops->counters);
            }
            multiply_stage(&s, loops);
        }
}

/* ---- A batch ----------------------------------------------------------------------------------------------------- */

struct job {
    const cpu_plan *plan;
    const tsr_problem *problem;
    float *workspace;
    int64_t row0, col0;
    struct counters counters; /* of the team, where it shares products */
    _Atomic int64_t next;     /* item that no member has taken */
};

/* What a member does with its tiles. */
struct call {
    struct job *job;
    struct cpu_member *self;
};

static void work_by_blocks(struct job *job, struct loops *loops, struct cpu_member *self) {
    const cpu_plan *plan = job->plan;
    loops->self = self;
    loops->counters = &job->counters;
    for (int i = 0; i < 2; i++) loops->block_b[i] = cpu_workspace_b(plan, job->workspace, min64(i, plan->b_copies - 1));
    for (int64_t item = 0; item < job->problem->batch; item++) {
        const tsr_problem one = problem_item(job->problem, item);
        multiply_product(plan, &one, loops);
    }
}

static void work_alone(struct job *job, struct loops *loops, const struct cpu_member *self) {
    const cpu_plan *plan = job->plan;
    struct cpu_team team = cpu_team_of_one();
    struct cpu_member alone = {.team = &team};
    _Atomic int64_t place;
    struct counters counters = {.members = 1, .places = &place};
    start_counters(&counters);
    loops->self = &alone;
    loops->counters = &counters;
    loops->block_b[0] = loops->block_b[1] = cpu_workspace_b(plan, job->workspace, self->index);
    for (int64_t item; (item = cpu_take(&job->next)) < job->problem->batch;) {
        const tsr_problem one = problem_item(job->problem, item);
        multiply_product(plan, &one, loops);
    }
}

static void work_with_tiles(void *argument) {
    const struct call *call = argument;
    struct job *job = call->job;
    const cpu_plan *plan = job->plan;
    struct loops loops = {
        .block_a = cpu_workspace_a(plan, job->workspace, call->self->index), .row0 = job->row0, .col0 = job->col0};
    if (plan->sharing == CPU_BY_BLOCKS)
        work_by_blocks(job, &loops, call->self);
    else
        work_alone(job, &loops, call->self);
    atomic_fetch_add_explicit(&plan->context->marked_panels, (uint_fast64_t)loops.marked, memory_order_relaxed);
    atomic_fetch_add_explicit(&plan->context->fallback_tiles, (uint_fast64_t)loops.recomputed, memory_order_relaxed);
}

static void work(struct cpu_member *self, void *argument) {
    struct call call = {argument, self};
    const uint64_t mode = cpu_rounding_begin();
    amx_with_tiles(work_with_tiles, &call);
    cpu_rounding_end(mode);
}

void amx_execute(const cpu_plan *plan, const tsr_problem *problem, float *workspace, int64_t row0, int64_t col0) {
    _Atomic int64_t places[plan->threads];
    struct job job = {.plan = plan,
                      .problem = problem,
                      .workspace = workspace,
                      .row0 = row0,
                      .col0 = col0,
                      .counters = {.members = plan->threads, .places = places}};
    start_counters(&job.counters);
    struct cpu_team team = {.work = work, .argument = &job};
    cpu_team_run(&team, plan->threads);
}
