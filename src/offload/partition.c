/* partition.c: how C is cut, and the order of its blocks. */
#include "offload/partition.h"

#include "cuda/cuda.h"
#include "offload/copier.h"
#include "plan.h"

enum { ALIGNMENT = 256 }; /* of slots on the GPU */

/* Strips that stay: large enough for the kernels to be at their best, small enough for blocks to be done early. The
 * last ones sent are of A, so these are smaller: what they complete has no other copies to hide behind. */
enum { LEAST_BM = 512, MOST_BM = 1024, LEAST_BN = 1024, MOST_BN = 2048, STRIP_STEP = 256 };

/* Chunks that do not stay, and the blocks they are for: so large that multiplying takes as long as copying. */
enum { BLOCK = 16384, CHUNK = 1024 };

/* A block is not made smaller than this in any direction. */
enum { LEAST_SIDE = 32 };

static size_t aligned(int64_t floats) { return (size_t)round_up(floats * (int64_t)sizeof(float), ALIGNMENT); }

tsr_problem partition_block(const tsr_problem *p, int64_t m, int64_t n, int64_t k) {
    const bool a_columns = runs_are_columns(p->a.row_stride, p->a.col_stride);
    const bool b_columns = runs_are_columns(p->b.row_stride, p->b.col_stride);
    const bool c_columns = runs_are_columns(p->c.row_stride, p->c.col_stride);
    tsr_problem block = {.m = m, .n = n, .k = k, .batch = 1, .alpha = p->alpha, .beta = 1};
    block.a = (tsr_operand){NULL, m, k, a_columns ? 1 : k, a_columns ? m : 1, 0, NULL};
    block.b = (tsr_operand){NULL, k, n, b_columns ? 1 : n, b_columns ? k : 1, 0, NULL};
    block.c = (tsr_result){NULL, m, n, c_columns ? 1 : n, c_columns ? m : 1, 0};
    block.addend = result_as_addend(&block.c);
    return block;
}

size_t partition_bytes(const partition *x) {
    return (size_t)x->a_slots * (x->a_bytes + x->a_packed) + (size_t)x->b_slots * (x->b_bytes + x->b_packed) +
           (size_t)x->c_slots * x->c_bytes + x->workspace;
}

/* Sizes and numbers of slots, and the workspace, for bm, bn and bk as they are. */
static tsr_status measure(partition *x, tsr_context *context, const tsr_problem *p) {
    x->a_strips = ceil_div(p->m, x->bm);
    x->b_strips = ceil_div(p->n, x->bn);
    const int64_t sets = min64(STRIP_SETS, p->batch), chunks = ceil_div(p->k, x->bk);
    x->a_slots = (int)(x->keeps ? sets * x->a_strips : min64(CHUNK_SLOTS, chunks));
    x->b_slots = (int)(x->keeps ? sets * x->b_strips : min64(CHUNK_SLOTS, chunks));
    const int64_t blocks = x->a_strips * x->b_strips * min64(MOST_C_SLOTS, p->batch);
    x->c_slots = (int)min64(blocks, x->keeps ? MOST_C_SLOTS : CHUNK_SLOTS);
    x->a_bytes = aligned(x->bm * x->bk);
    x->b_bytes = aligned(x->bk * x->bn);
    x->c_bytes = aligned(x->bm * x->bn);
    x->a_packed = x->b_packed = 0;
    tsr_plan plan = {.context = context, .problem = partition_block(p, x->bm, x->bn, x->bk)};
    tsr_status status = plan_make(&plan);
    if (!status && x->keeps && plan_is_split(&plan)) {
        x->a_packed = cuda_pack_size(context, TSR_LEFT, &plan.problem.a);
        x->b_packed = cuda_pack_size(context, TSR_RIGHT, &plan.problem.b);
        const tsr_packed somewhere = {.panels = x}; /* a plan asks whether there are panels, not where */
        plan.problem.a.packed = plan.problem.b.packed = &somewhere;
        status = plan_make(&plan);
    }
    x->workspace = status ? 0 : (size_t)round_up((int64_t)plan_workspace(&plan), ALIGNMENT);
    return status;
}

/* A fourth of the rows or columns, if that is no less than `least` and no more than `most`, in whole steps. */
static int64_t strip_of(int64_t all, int64_t least, int64_t most) {
    const int64_t rows = min64(max64(ceil_div(all, 4), least), most);
    return min64(all, round_up(max64(rows, ceil_div(all, MOST_STRIPS)), STRIP_STEP));
}

static void halve_larger(int64_t *x, int64_t *y) {
    int64_t *larger = *x >= *y ? x : y;
    *larger = ceil_div(*larger, 2);
}

/* Makes the largest of what lies on the GPU smaller. False where nothing can be made smaller. */
static bool shrink(partition *x) {
    const size_t a = (size_t)x->a_slots * x->a_bytes, b = (size_t)x->b_slots * x->b_bytes;
    const size_t c = (size_t)x->c_slots * x->c_bytes;
    if (x->bm <= LEAST_SIDE && x->bn <= LEAST_SIDE && x->bk <= LEAST_SIDE) return false;
    if (c >= a && c >= b)
        halve_larger(&x->bn, &x->bm);
    else if (a >= b)
        halve_larger(&x->bm, &x->bk);
    else
        halve_larger(&x->bn, &x->bk);
    return true;
}

tsr_status partition_choose(partition *x, tsr_context *context, const tsr_problem *p, size_t limit) {
    if (sizeof(float) * ((double)p->m + (double)p->n) * (double)p->k <= (double)limit) {
        *x = (partition){.keeps = true,
                         .bm = strip_of(p->m, LEAST_BM, MOST_BM),
                         .bn = strip_of(p->n, LEAST_BN, MOST_BN),
                         .bk = p->k};
        if (!measure(x, context, p) && partition_bytes(x) <= limit) return TSR_OK;
    }
    *x = (partition){.bm = min64(p->m, BLOCK), .bn = min64(p->n, BLOCK), .bk = min64(p->k, CHUNK)};
    for (;;) {
        const tsr_status status = measure(x, context, p); /* some kernels have room only for smaller blocks */
        if (status && status != TSR_OUT_OF_MEMORY) return status;
        if (!status && partition_bytes(x) <= limit) return TSR_OK;
        if (!shrink(x))
            return tsr_fail(TSR_OUT_OF_MEMORY, "%zu bytes on the GPU are too few for any part of this product", limit);
    }
}

/* Where strips do not stay there is no point in taking turns: all of B counts as sent. */
block_walk block_walk_begin(const partition *x) {
    return (block_walk){.a_strips = 1, .b_strips = x->keeps ? 1 : x->b_strips, .j = -1};
}

bool block_walk_next(block_walk *w, const partition *x) {
    if (w->down ? ++w->i < w->a_strips : ++w->j < w->b_strips) return true;
    if (w->a_strips == x->a_strips && w->b_strips == x->b_strips) return false;
    /* The next strip is of the operand of which less has been sent. */
    w->down = w->a_strips == x->a_strips ||
              (w->b_strips < x->b_strips && w->b_strips * x->a_strips <= w->a_strips * x->b_strips);
    if (w->down) {
        w->i = 0;
        w->j = w->b_strips++;
    } else {
        w->i = w->a_strips++;
        w->j = 0;
    }
    return true;
}
