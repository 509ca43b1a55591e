/* plan.c: how the CPU engine computes a product: orientation, blocking, what is packed, how threads share the work. */
#include "cpu/plan.h"

#include "cpu/amx.h"
#include "cpu/cost.h"
#include "cpu/team.h"
#include "rounding.h"

/* B is packed if more than this many panels of A's rows reuse it and it has more than this many elements; a smaller B
 * stays in cache unpacked. */
enum { REUSE_WORTH_PACKING = 2, FLOATS_WORTH_PACKING = 1 << 16 };

/* Parts that the rows of a macro block are cut into, so that members finish nearly together; and the most rows of one,
 * in panels. */
enum { PARTS_OF_ROWS = 32, PANELS_AT_ONCE = 8 };

/* Parts that a single row of C is cut into for each thread where it is summed column by column. Where it is summed row
 * by row of B, longer parts are better, one for each. */
enum { PARTS_OF_A_ROW = 4 };

/* ---- Orientation ------------------------------------------------------------------------------------------------- */

tsr_problem cpu_orient(const tsr_problem *p, bool transposed) {
    tsr_problem q = transposed ? problem_transpose(p) : *p;
    if (q.m == 1) q.a.row_stride = q.c.row_stride = q.addend.row_stride = 1;
    if (q.n == 1) q.b.col_stride = q.c.col_stride = q.addend.col_stride = 1;
    if (q.k == 1) q.a.col_stride = q.b.row_stride = 1;
    return q;
}

/* multiply_row reads B once, so that a packed form brings nothing: it is not used where the matrix itself is there. */
static bool is_row(const struct cpu_kernel *kernel, const tsr_problem *p) {
    return cpu_is_row(kernel, p->m, p->n, p->k, p->b.row_stride, p->b.col_stride) && !operand_is_only_packed(&p->a) &&
           !operand_is_only_packed(&p->b);
}

static bool is_few_rows(const struct cpu_kernel *kernel, const tsr_problem *p) {
    return kernel->multiply_few && (p->m <= CPU_FEW_ROWS || p->c.col_stride == 1) &&
           cpu_is_few_rows(kernel->few_rows, p->m, p->n, p->k, p->b.row_stride, p->b.col_stride) &&
           !operand_panels(&p->a, p->batch) && !operand_panels(&p->b, p->batch);
}

static bool is_dots(const struct cpu_kernel *kernel, const tsr_problem *p) {
    return cpu_is_dots(kernel, p->m, p->n, p->k, p->a.col_stride, p->b.row_stride) && !operand_is_only_packed(&p->a) &&
           !operand_is_only_packed(&p->b);
}

/* Whether C^T = B^T A^T is the better product. It is for a column, if the kernel computes rows; and for a large operand
 * times one of few rows or columns, if the large one would have to be transposed in packing, which takes as long as
 * multiplying. Otherwise C's layout decides, because kernels write rows. Packed operands are packed for their side. */
static bool is_better_transposed(const struct cpu_kernel *kernel, const tsr_problem *p) {
    if (p->m == 1) return false;
    const tsr_problem transposed = cpu_orient(p, true);
    if (p->n == 1 && is_row(kernel, &transposed)) return true;
    if (is_dots(kernel, p)) return p->m > p->n;
    if (operand_panels(&p->a, p->batch) || operand_panels(&p->b, p->batch)) return false;
    if (is_few_rows(kernel, p) || is_few_rows(kernel, &transposed)) return !is_few_rows(kernel, p);
    if (p->c.col_stride == 1 && p->c.row_stride != 1)
        return cpu_is_better_transposed(kernel, p->m, p->n, p->k, p->a.row_stride, p->b.col_stride, true);
    return p->c.row_stride == 1 && p->c.col_stride != 1;
}

/* ---- Blocking ---------------------------------------------------------------------------------------------------- */

static bool has_few_panels(const struct cpu_kernel *kernel, const tsr_problem *p) {
    return kernel->multiply_and_pack && p->m <= 16 * kernel->mr;
}

bool cpu_has_narrow_blocks(const struct cpu_kernel *kernel, const tsr_problem *p) {
    return has_few_panels(kernel, p) || (kernel->multiply_and_pack && p->b.col_stride == 1 && p->m <= 128 * kernel->mr);
}

/* The columns of a single row, or of a few, in parts that begin on cache lines. */
static void cut_row(cpu_plan *plan, const tsr_problem *p, int64_t shared) {
    plan->mc = plan->rows_at_once = max64(plan->kernel->mr, p->m);
    const int64_t wanted = shared == 1 || p->b.row_stride != 1 ? shared : PARTS_OF_A_ROW * shared;
    plan->blocks = max64(1, min64(wanted, p->n / CPU_LINE));
    plan->nc = round_up(max64(1, ceil_div(p->n, plan->blocks)), CPU_LINE);
}

/* Members that share a product have a block of columns each, as long as there are columns, and then parts of its
 * rows. */
static void cut_blocks(cpu_plan *plan, const tsr_problem *p) {
    const struct cpu_kernel *kernel = plan->kernel;
    const int64_t shared = plan->sharing == CPU_BY_BLOCKS ? plan->threads : 1;
    if (plan->by_row) {
        cut_row(plan, p, shared);
        return;
    }
    plan->mc = even_block(p->m, plan->packs_a ? kernel->mc : INT64_MAX / 2, kernel->mr);
    plan->blocks = max64(1, min64(min64(shared, CPU_MOST_BLOCKS), ceil_div(p->n, kernel->nr)));
    /* Shallow blocks are wider: as much of the cache, and longer rows of C. */
    const int64_t most = cpu_has_narrow_blocks(kernel, p) ? kernel->nr
                                                          : kernel->nc * max64(1, kernel->kc / max64(1, plan->kc));
    const int64_t stages = max64(1, ceil_div(p->n, plan->blocks * most));
    plan->nc = round_up(max64(1, ceil_div(p->n, stages * plan->blocks)), kernel->nr);
    const int mr = plan->packs_a ? kernel->mr : cpu_tile_rows(kernel, p->n);
    const int64_t tiles = plan->blocks * ceil_div(plan->mc, mr);
    plan->rows_at_once = shared == 1 ? plan->mc
                                     : mr * max64(1, min64(PANELS_AT_ONCE, tiles / (PARTS_OF_ROWS * shared)));
}

/* A is packed where many columns use what one packing read, and its rows are not contiguous, or so large that each
 * block of B would read them from memory again; the latter only where a tile packs them as it multiplies. Few rows over
 * several k blocks are read in place, so that members can take columns. */
static bool should_pack_a(const struct cpu_kernel *kernel, const tsr_problem *p) {
    enum { FLOATS_BEYOND_CACHE = 1 << 20 };
    if (!p->k || operand_panels(&p->a, p->batch) || p->n <= 8 * kernel->nr) return false;
    if (has_few_panels(kernel, p) && p->k > kernel->kc) return false;
    return p->a.col_stride != 1 ||
           (kernel->multiply_and_pack && p->n > 24 * kernel->nr && p->m > FLOATS_BEYOND_CACHE / p->k);
}

static bool should_pack_b(const struct cpu_kernel *kernel, const tsr_problem *p) {
    if (!p->k || operand_panels(&p->b, p->batch)) return false;
    return p->b.col_stride != 1 || (p->m > REUSE_WORTH_PACKING * kernel->mr && p->n > FLOATS_WORTH_PACKING / p->k);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

/* The columns that a member takes at a time: as few as make the last one finish soonest, and at least two panels. 0:
 * there are too few for each. */
static int64_t share_of_columns(const struct cpu_kernel *kernel, int64_t n, int threads) {
    int64_t best = 0, longest = INT64_MAX;
    for (int64_t parts = min64(CPU_PARTS_PER_THREAD, n / (2 * kernel->nr * threads)); parts > 0; parts--) {
        const int64_t share = round_up(ceil_div(n, parts * threads), kernel->nr);
        const int64_t time = ceil_div(ceil_div(n, share), threads) * share;
        if (time >= longest) continue;
        longest = time;
        best = share;
    }
    return best;
}

/* Whether members take terms, rows or columns of a product as products of their own. Columns, where A has so few rows
 * that barriers would take a good part of the time (each member packs A once, which must be one block). Rows, where
 * there are enough of them for each member to pack all of B, or B is so small that it is read in place: then only one
 * member reads a row of A, and all that it reads of B is in its own cache. */
static enum cpu_sharing share_of_product(const cpu_plan *plan, const tsr_problem *p, int64_t *share) {
    enum { ROWS_WORTH_PACKING_B = 128, ROWS_WORTH_TRANSPOSING_B = 256 };
    const struct cpu_kernel *kernel = plan->kernel;
    *share = 0;
    if (p->alpha == 1 && !operand_panels(&p->a, p->batch) && !operand_panels(&p->b, p->batch) && p->batch == 1 &&
        cpu_shares_terms(plan->by_dots ? cpu_dot_terms(kernel) : kernel->kc, p->m, p->n, p->k, plan->threads,
                         plan->by_row))
        return CPU_BY_TERMS;
    if (plan->threads == 1 || plan->by_row) return CPU_BY_BLOCKS;
    const int64_t rows = ceil_div(p->m, plan->threads);
    if (kernel->multiply_and_pack && p->m < 2 * ROWS_WORTH_PACKING_B && !operand_panels(&p->b, p->batch) &&
        (!plan->packs_a || p->k <= plan->kc) && (*share = share_of_columns(kernel, p->n, plan->threads)))
        return CPU_BY_COLUMNS;
    if (kernel->multiply_and_pack && rows >= (p->b.col_stride == 1 ? ROWS_WORTH_PACKING_B : ROWS_WORTH_TRANSPOSING_B)) {
        *share = round_up(rows, kernel->mr);
        return CPU_BY_ROWS;
    }
    return CPU_BY_BLOCKS;
}

/* How members share a batch where, of all on each product, many would wait: at the barriers of products with few tiles,
 * or for the last products. If it saves an eighth of the time, they take columns or rows of products, or whole ones, as
 * products of their own. Times are in tiles of the same k; packing a panel of B takes TILES_TO_PACK, or one if a tile
 * does it, which has to be a whole one. Two members lose little, as do those of a batch of many products. */
static enum cpu_sharing share_of_batch(const cpu_plan *plan, const tsr_problem *p, int64_t *share) {
    enum { TILES_TO_PACK = 4, MORE_PARTS = 8 };
    const struct cpu_kernel *kernel = plan->kernel;
    if (plan->threads <= 2 || p->batch >= CPU_PARTS_PER_THREAD * plan->threads) return plan->sharing;
    if (operand_panels(&p->a, p->batch) || operand_panels(&p->b, p->batch)) return plan->sharing;
    const int64_t threads = plan->threads, width = plan->by_row ? CPU_LINE : kernel->nr;
    const int64_t rows = plan->by_row ? 1 : ceil_div(p->m, kernel->mr), columns = ceil_div(p->n, width);
    const int64_t packing = !plan->packs_b ? 0 : kernel->multiply_and_pack && p->b.col_stride == 1 ? 1 : TILES_TO_PACK;
    const int64_t slowest = packing && p->n % width ? TILES_TO_PACK : packing;
    const int64_t by_blocks = p->batch * (slowest * ceil_div(columns, threads) + ceil_div(rows * columns, threads));
    const int64_t by_items = ceil_div(p->batch, threads) * columns * (rows + packing);
    enum cpu_sharing best = plan->sharing;
    int64_t least = (best == CPU_BY_BLOCKS ? by_blocks : by_items) * 7 / 8;
    if (by_items < least) {
        least = by_items;
        best = CPU_BY_ITEMS;
    }
    const double work = (double)p->m * (double)p->n * (double)p->k;
    const int64_t most = 2 * ceil_div(threads, p->batch) + MORE_PARTS;
    for (int64_t parts = 2; parts <= most && (double)(parts * CPU_WORK_PER_THREAD) <= work; parts++) {
        const int64_t rounds = ceil_div(p->batch * parts, threads);
        const int64_t wide = ceil_div(columns, parts), high = ceil_div(rows, parts);
        const int64_t by_columns = rounds * wide * (rows + packing), by_rows = rounds * columns * (high + packing);
        if (parts <= columns && by_columns < least) {
            least = by_columns;
            best = CPU_BY_COLUMNS;
            *share = wide * width;
        }
        if (parts <= rows && by_rows < least) {
            least = by_rows;
            best = CPU_BY_ROWS;
            *share = high * kernel->mr;
        }
    }
    return best;
}

static void share_among_threads(cpu_plan *plan, const tsr_problem *p, int most) {
    const double each = (double)(plan->by_row ? max64(p->m, CPU_WORK_OF_READING) : p->m); /* of B's elements */
    const double product = each * (double)p->n * (double)p->k;
    plan->threads = cpu_useful_threads(product * (double)p->batch, most);
    if (cpu_useful_threads(product, 2) == 1) plan->threads = (int)min64(plan->threads, max64(1, p->batch));
    const bool shares_products = p->batch < plan->threads || (p->batch < CPU_PARTS_PER_THREAD * plan->threads &&
                                                              product >= (double)CPU_WORK_PER_THREAD * plan->threads);
    plan->share = 0;
    plan->sharing = shares_products ? share_of_product(plan, p, &plan->share) : CPU_BY_ITEMS;
    if (p->batch > 1 && !plan->share) plan->sharing = share_of_batch(plan, p, &plan->share);
    tsr_problem part = *p;
    if (plan->sharing == CPU_BY_ROWS) part.m = plan->share;
    if (plan->sharing == CPU_BY_COLUMNS) part.n = plan->share;
    cut_blocks(plan, &part);
}

/* ---- Workspace --------------------------------------------------------------------------------------------------- */

/* Where members share blocks there are two copies, used in turn: early members pack the next ones while late ones still
 * use the current. Otherwise each member has its own. */
static void lay_out(cpu_plan *plan, const tsr_problem *p) {
    plan->a_floats = 0;
    if (plan->packs_a) /* otherwise mc may be all of m, and the product overflow */
        plan->a_floats = round_up(plan->by_row ? p->m * p->k : plan->mc * plan->kc, CPU_LINE);
    plan->b_floats = plan->packs_b ? plan->blocks * round_up(plan->nc * plan->kc, CPU_LINE) : 0;
    plan->sums_copies = plan->sharing == CPU_BY_TERMS ? ceil_div(p->k, plan->kc) : 0;
    plan->sums_floats = plan->sums_copies ? round_up(p->m * p->n, CPU_LINE) : 0;
    plan->a_copies = plan->b_copies = plan->sharing == CPU_BY_BLOCKS && plan->threads > 1 ? 2 : plan->threads;
    cpu_plan_size_workspace(plan);
}

/* Smaller blocks, then fewer threads, then less packing until the workspace fits. False where none of it helps. */
static bool fit_workspace(cpu_plan *plan, const tsr_problem *p, size_t limit) {
    const struct cpu_kernel *kernel = plan->kernel;
    for (lay_out(plan, p); plan->workspace > limit; lay_out(plan, p)) {
        if (plan->sharing == CPU_BY_TERMS) {
            plan->sharing = CPU_BY_BLOCKS;
            cut_blocks(plan, p);
        } else if (plan->by_row)
            plan->packs_a = false;
        else if (plan->packs_a && plan->mc > kernel->mr)
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

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

static tsr_status make(cpu_plan *plan, tsr_context *context, const tsr_problem *problem) {
    if (amx_takes(context, problem->m, problem->n, problem->k)) {
        if (amx_plan_make(plan, context, problem)) return TSR_OK;
        if (context->cpu_amx == CPU_AMX_ALWAYS)
            return tsr_fail(TSR_OUT_OF_MEMORY,
                            "options.max_workspace is %zu; this product needs more for the kernel amx",
                            context->options.max_workspace);
    }
    const struct cpu_kernel *kernel = context->cpu_kernel;
    const bool transposed = is_better_transposed(kernel, problem);
    const tsr_problem p = cpu_orient(problem, transposed);
    *plan = (cpu_plan){.kernel = kernel, .transposed = transposed, .amx_gain = amx_gain(context, &p)};
    plan->by_dots = is_dots(kernel, &p);
    plan->kc = even_block(p.k, plan->by_dots ? cpu_dot_terms(kernel) : kernel->kc, 1);
    plan->by_row = plan->by_dots || is_row(kernel, &p) || is_few_rows(kernel, &p);
    /* Of a row, A is copied where the kernel reads it along B's columns, which are as long as k. */
    plan->packs_a = plan->by_row ? p.a.col_stride != 1 && p.b.row_stride == 1 : should_pack_a(kernel, &p);
    plan->packs_b = !plan->by_row && should_pack_b(kernel, &p);
    share_among_threads(plan, &p, context->options.threads);
    const size_t limit = context->options.max_workspace;
    if (!fit_workspace(plan, &p, limit ? limit : SIZE_MAX))
        return tsr_fail(TSR_OUT_OF_MEMORY, "options.max_workspace is %zu; this product needs at least %zu bytes", limit,
                        plan->workspace);
    plan->seconds = cost_seconds(plan, &p);
    return TSR_OK;
}

tsr_status cpu_plan_make(cpu_plan *plan, tsr_context *context, const tsr_problem *problem) {
    const tsr_status status = make(plan, context, problem);
    plan->max_workspace = context->options.max_workspace;
    return status;
}

bool cpu_plan_part(cpu_plan *part, const cpu_plan *whole, const tsr_problem *p, size_t limit) {
    if (whole->components) return amx_plan_part(part, whole, p, limit);
    *part = *whole;
    share_among_threads(part, p, whole->threads);
    return fit_workspace(part, p, limit);
}

/* ---- Printing ---------------------------------------------------------------------------------------------------- */

void cpu_plan_print_blocks(const cpu_plan *plan, tsr_text *text) {
    static const char *const packs[2][2] = {{"nothing", "B"}, {"A", "A and B"}};
    const bool a = plan->transposed ? plan->packs_b : plan->packs_a; /* the caller's A and B */
    const bool b = plan->transposed ? plan->packs_a : plan->packs_b;
    tsr_text_add(text, "blocks: %lld x %lld x %lld (mc, nc, kc)\n", (long long)plan->mc, (long long)plan->nc,
                 (long long)plan->kc);
    tsr_text_add(text, "packs: %s\n", packs[a][b]);
}

static void print_threads(const cpu_plan *plan, const tsr_problem *p, tsr_text *text) {
    tsr_text_add(text, "threads: %d, ", plan->threads);
    switch (plan->sharing) {
    case CPU_BY_BLOCKS:
        tsr_text_add(text, "sharing %lld blocks of at most %lld columns, %lld rows at a time\n",
                     (long long)ceil_div(p->n, plan->nc), (long long)plan->nc, (long long)plan->rows_at_once);
        break;
    case CPU_BY_ROWS: tsr_text_add(text, "each on %lld rows of its own at a time\n", (long long)plan->share); break;
    case CPU_BY_COLUMNS:
        tsr_text_add(text, "each on %lld columns of its own at a time\n", (long long)plan->share);
        break;
    case CPU_BY_TERMS: tsr_text_add(text, "each on %lld terms at a time\n", (long long)plan->kc); break;
    case CPU_BY_ITEMS: tsr_text_add(text, "each on products of its own\n"); break;
    }
}

static void print(const cpu_plan *plan, const tsr_problem *p, tsr_text *text) {
    tsr_text_add(text, "engine: cpu\n");
    tsr_text_add(text, "kernel: %s (ieee, which serves fp32 and tf32, too)\n", plan->kernel->name);
    if (plan->amx_gain > 0)
        tsr_text_add(text, "amx: not chosen, at %.2f x the speed by its estimate\n", plan->amx_gain);
    tsr_text_add(text, "tile: %d x %d\n", plan->kernel->mr, plan->kernel->nr);
    tsr_text_add(text, "computes: %s\n", plan->transposed ? "C^T = B^T A^T" : "C = A B");
    cpu_plan_print_blocks(plan, text);
    print_threads(plan, p, text);
}

void cpu_plan_print(const cpu_plan *plan, const tsr_problem *problem, tsr_text *text) {
    const uint64_t mode = cpu_rounding_begin();
    const tsr_problem p = cpu_orient(problem, plan->transposed);
    if (plan->components)
        amx_plan_print(plan, problem, text);
    else
        print(plan, &p, text);
    cpu_rounding_end(mode);
}
