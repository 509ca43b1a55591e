/* attention.c: queues attention and its gradients.
 *
 *   split   pack (unless the forward kernel splits K and V itself), then forward, or dK with dV and dQ; then an ieee
 *           kernel that computes the rows which the split cannot carry, and returns at once where that is none
 *   ieee    the same kernel for all rows: one launch, and no workspace
 */
#include "attention.h"

#include <math.h>

#include "cuda/launch.h"
#include "dropout.h"

enum { OF_Q, OF_K, OF_V, OF_GRAD_O, OPERANDS };

/* How a call is carried out, and where everything lies in its workspace: offsets in bytes. Only `split` has one. */
typedef struct attention_plan {
    bool split;
    bool packed;       /* split: operands are packed beforehand */
    int column_blocks; /* of 64 columns, in a packed row */
    int64_t tiles_q, tiles_k;
    size_t tiles[OPERANDS], downs[OPERANDS];
    size_t recompute_q, recompute_k, padded_lse, delta, shift;
    size_t bytes;
} attention_plan;

static size_t take(size_t *end, int64_t count, size_t size) {
    const size_t at = *end;
    *end = (size_t)round_up((int64_t)(at + (size_t)count * size), 256);
    return at;
}

static void lay_out(attention_plan *plan, const tsr_attention_problem *p, bool backward) {
    const int64_t of_queries = p->batch * p->heads * plan->tiles_q, of_keys = p->batch * p->kv_heads * plan->tiles_k;
    size_t end = 0;
    const int64_t flags = ATTENTION_ROWS / ATTENTION_FLAG_ROWS; /* of a tile */
    plan->recompute_q = take(&end, flags * of_queries, sizeof(int32_t));
    if (backward) {
        plan->recompute_k = take(&end, flags * of_keys, sizeof(int32_t));
        plan->delta = take(&end, of_queries * ATTENTION_ROWS, sizeof(float));
        plan->shift = take(&end, of_queries * ATTENTION_ROWS, sizeof(float));
        plan->padded_lse = take(&end, of_queries * ATTENTION_ROWS, sizeof(float));
    }
    const int operands = backward ? OPERANDS : OF_GRAD_O;
    for (int i = 0; plan->packed && i < operands; i++) {
        const int64_t tiles = i == OF_Q || i == OF_GRAD_O ? of_queries : of_keys;
        plan->tiles[i] = take(&end, tiles, (size_t)plan->column_blocks * 2 * ATTENTION_BLOCK_BYTES);
        plan->downs[i] = take(&end, tiles, sizeof(float));
    }
    plan->bytes = end;
}

/* Whether rows can be read sixteen bytes at a time. */
static bool in_fours(const tsr_heads *x, int64_t dim) {
    return x->col_stride == 1 && dim % 4 == 0 && (uintptr_t)x->data % 16 == 0 && x->row_stride % 4 == 0 &&
           x->head_stride % 4 == 0 && x->batch_stride % 4 == 0;
}

/* The problem as it is computed: in a forward pass a causal mask leaves no more keys than queries. */
static tsr_attention_problem seen_part(const tsr_attention_problem *problem, bool backward) {
    tsr_attention_problem p = *problem;
    if (p.causal && !backward) p.keys = min64(p.keys, p.queries);
    return p;
}

/* ---- Choosing a plan --------------------------------------------------------------------------------------------- */

/* Estimates in microseconds. Factors were fitted to a hundred random problems on an H200, each computed by every plan
 * (docs/internals/experiments.md). Where two plans are about equally fast, estimates are within 20 %. */

/* How many of `all` steps along rows or columns a task takes on average; `edge`: steps that the diagonal cuts. */
static double mean_steps(const tsr_attention_problem *p, double all, double edge) {
    const double queries = (double)p->queries, keys = (double)p->keys;
    const double seen = keys <= queries ? 1 - keys / queries / 2 : queries / keys / 2; /* of the scores */
    return p->causal ? fmin(all, all * seen + edge / 2) : all;
}

/* The ieee kernel: pieces that its thread blocks wait for, each 64 columns of an operand in shared memory, and terms
 * that they add up, each a multiply-add of one thread. */
static double ieee_microseconds(const tsr_attention_problem *p, bool backward, int multiprocessors) {
    const double resident = multiprocessors * (backward || p->dim > 128 ? 2.0 : 3.0); /* thread blocks */
    const int64_t blocks_of_dim = ceil_div(p->dim, 64);
    double blocks = 0, pieces = 0, terms = 0, longest_pieces = 0, longest_terms = 0;
    for (int of_keys = 0; of_keys <= (backward ? 1 : 0); of_keys++) {
        const int64_t rows = of_keys ? p->keys : p->queries, heads = of_keys ? p->kv_heads : p->heads;
        const int64_t seen = p->causal ? min64(p->keys, p->queries) : p->keys, columns = of_keys ? p->queries : seen;
        const int64_t width = min64(columns, 64), padded = width <= 16 ? 16 : width <= 32 ? 32 : 64;
        const double tasks = (double)p->batch * (double)heads * (double)ceil_div(rows, ATTENTION_IEEE_ROWS);
        const double steps = (double)(of_keys ? p->heads / p->kv_heads : 1) * (double)ceil_div(columns, 64);
        const double mean = mean_steps(p, steps, 1);
        const int dots = backward ? 2 : 1, sums = of_keys ? 2 : 1, mine = rows <= 8 ? 1 : 4; /* rows of a thread */
        const double step_pieces = (double)((dots + sums) * blocks_of_dim);
        blocks += tasks;
        pieces += tasks * mean * step_pieces;
        terms += tasks * mean * 8 * mine * (double)((dots * padded + sums * width) * p->dim);
        longest_pieces = fmax(longest_pieces, steps * step_pieces);
        longest_terms = fmax(longest_terms,
                             steps * (mine > 1 ? 4 : 2) *
                                 (double)(dots * padded / 16 * p->dim + sums * width * 4 * blocks_of_dim));
    }
    const double rounds = ceil(blocks / resident), each = rounds * pieces / blocks, of_sm = terms / multiprocessors;
    return backward ? 4.8 + longest_pieces + 1.4e-3 * longest_terms + 2.15 * rounds + 1.02 * each + 13.9e-6 * of_sm
                    : 0.6 + 1.61e-3 * longest_terms + 3.75 * rounds + 0.51 * each + 9.33e-6 * of_sm;
}

/* Packing and multiplying. Thread blocks, one on each SM, compute the tasks in rounds, each going through its columns
 * step by step. */
static double split_microseconds(const tsr_attention_problem *p, const attention_plan *plan, bool backward,
                                 int multiprocessors) {
    const int64_t items = p->batch * p->heads, kv_items = p->batch * p->kv_heads, operands = backward ? 2 : 1;
    const int64_t of_queries = operands * items, of_keys = 2 * kv_items; /* matrices that are packed */
    const double read = (double)((of_queries * p->queries + of_keys * p->keys + (backward ? items * p->queries : 0)) *
                                 p->dim);
    const double written = (double)((of_queries * plan->tiles_q + of_keys * plan->tiles_k) * ATTENTION_ROWS) *
                           (double)(plan->column_blocks * ATTENTION_COLS);
    const double packing = 1.6e-6 * (read + written);
    const int at = plan->column_blocks - 1;
    const bool wide = plan->column_blocks > 2;
    if (!backward) {
        static const int keys_of_step[] = {128, 128, 64, 32};
        static const double of_step[] = {1.93, 3.4, 5.7, 4.8};
        const int64_t steps = ceil_div(p->keys, keys_of_step[at]), first = min64(steps, 128 / keys_of_step[at]);
        const double mean = mean_steps(p, (double)steps, (double)first);
        const double rounds = (double)ceil_div(items * plan->tiles_q, multiprocessors);
        return plan->packed ? 10.6 + packing + rounds * (0.2 + mean * of_step[at])
                            : 6.4 + rounds * ((p->causal ? 2 : 0) + mean * 5.1);
    }
    static const double of_round[] = {0, 0, 5, 5}, of_step[] = {1.07, 5.6, 3.2, 3.4};
    const int64_t rows = wide ? 64 : ATTENTION_ROWS, columns = wide ? 32 : 64;
    const double rounds_k = (double)ceil_div(kv_items * ceil_div(p->keys, rows), multiprocessors);
    const double rounds_q = (double)ceil_div(items * ceil_div(p->queries, rows), multiprocessors);
    const double all_q = (double)ceil_div(p->queries, columns), all_k = (double)ceil_div(p->keys, columns);
    const double steps_q = mean_steps(p, all_q, 2), steps_k = mean_steps(p, all_k, 2);
    return 16.8 + packing + of_round[at] * ((wide ? 2 : 1) * rounds_k + rounds_q) +
           of_step[at] *
               ((wide ? 1.7 : 1.3) * (double)(p->heads / p->kv_heads) * rounds_k * steps_q + rounds_q * steps_k);
}

/* The most keys that stay in shared memory for all queries of a head. */
enum { KEPT_KEYS = 2 * ATTENTION_ROWS };

/* The fastest plan within max_workspace, by estimate. */
static attention_plan make_plan(const tsr_context *context, const tsr_attention_problem *p, bool backward) {
    const size_t most = context->options.max_workspace ? context->options.max_workspace : SIZE_MAX;
    const cuda_device *device = &context->cuda->device;
    const cuda_kernel *forced = context->cuda->forced; /* a product's: attention is of the same kind */
    const bool forced_split = forced && forced->family == FAMILY_SPLIT;
    const bool can_split = context->options.precision != TSR_IEEE && p->queries && p->keys &&
                           (!forced || forced_split) &&
                           cuda_kernel_runs_on(&cuda_kernels[ATTENTION_FORWARD_64], device);
    const bool in_place = !backward && p->dim <= ATTENTION_COLS && in_fours(&p->q, p->dim) && in_fours(&p->k, p->dim) &&
                          in_fours(&p->v, p->dim);
    attention_plan best = {
        .column_blocks = (int)ceil_div(p->dim, ATTENTION_COLS),
        .tiles_q = ceil_div(p->queries, ATTENTION_ROWS),
        .tiles_k = ceil_div(p->keys, ATTENTION_ROWS),
    };
    if (!can_split) return best;
    double least = forced_split ? INFINITY : ieee_microseconds(p, backward, device->multiprocessors);
    for (int packed = 0; packed <= 1; packed++) {
        attention_plan plan = best;
        plan.split = true;
        plan.packed = packed;
        lay_out(&plan, p, backward);
        const double time = split_microseconds(p, &plan, backward, device->multiprocessors);
        if ((!packed && !in_place) || (packed && in_place && p->keys <= KEPT_KEYS) || plan.bytes > most ||
            time >= least)
            continue;
        best = plan;
        least = time;
    }
    return best;
}

size_t cuda_attention_workspace(const tsr_context *context, const tsr_attention_problem *problem, bool backward) {
    /* Alignment decides which plan it is, and pointers are not known yet: the larger of the two. */
    tsr_attention_problem aligned = seen_part(problem, backward), unaligned;
    aligned.q.data = aligned.k.data = aligned.v.data = NULL;
    unaligned = aligned;
    unaligned.q.data = (const float *)sizeof(float);
    const size_t one = make_plan(context, &aligned, backward).bytes;
    const size_t other = make_plan(context, &unaligned, backward).bytes;
    return one > other ? one : other;
}

/* ---- Queueing ---------------------------------------------------------------------------------------------------- */

static heads_in heads_to_read(const tsr_heads *x) {
    return (heads_in){x->data, x->batch_stride, x->head_stride, x->row_stride, x->col_stride};
}

static heads_out heads_to_write(const tsr_heads_result *x) {
    return (heads_out){x->data, x->batch_stride, x->head_stride, x->row_stride, x->col_stride};
}

static attention_args args_of(const tsr_attention_problem *p, const attention_plan *plan, bool backward,
                              char *workspace) {
    attention_args args = {
        .batch = (int32_t)p->batch,
        .heads = (int32_t)p->heads,
        .kv_heads = (int32_t)p->kv_heads,
        .queries = (int32_t)p->queries,
        .keys = (int32_t)p->keys,
        .dim = (int32_t)p->dim,
        .tiles_q = (int32_t)plan->tiles_q,
        .tiles_k = (int32_t)plan->tiles_k,
        .q = heads_to_read(&p->q),
        .k = heads_to_read(&p->k),
        .v = heads_to_read(&p->v),
        .mask = heads_to_read(&p->mask),
        .scale = p->scale,
        .causal = p->causal != 0,
        .drop_below = dropout_limit(p->dropout),
        .seed = p->seed,
        .offset = p->offset,
    };
    args.general = args.mask.data || args.drop_below || !(args.scale >= 0x1p-20f) || /* smaller ones might underflow */
                   (backward && plan->column_blocks > 2);                            /* there are no others */
    packed_heads *packed[] = {&args.packed_q, &args.packed_k, &args.packed_v, &args.packed_grad_o};
    for (int i = 0; plan->packed && i < OPERANDS; i++)
        *packed[i] = (packed_heads){(uint8_t *)workspace + plan->tiles[i], (float *)(workspace + plan->downs[i])};
    return args;
}

/* One of several kernels that lie together in the list, by 64 columns, the plain one of each before the general one. */
static const cuda_kernel *pick(cuda_kernel_id first, const attention_plan *plan, const attention_args *args) {
    return &cuda_kernels[(int)first + 2 * (plan->column_blocks - 1) + (args->general ? 1 : 0)];
}

static tsr_status queue_packing(launch_queue *q, const attention_plan *plan, attention_args *args, int operands) {
    const cuda_kernel *kernel = &cuda_kernels[ATTENTION_PACK_64 + plan->column_blocks - 1];
    const int64_t of_queries = (int64_t)args->batch * args->heads * plan->tiles_q;
    const int64_t of_keys = (int64_t)args->batch * args->kv_heads * plan->tiles_k;
    return launch_kernel(q, kernel, (launch_grid){max64(of_queries, of_keys), operands, 1}, args, sizeof *args);
}

/* A split kernel. Its thread blocks take several tasks each, unless these differ in length. */
static tsr_status queue_tasks(launch_queue *q, const cuda_kernel *kernel, attention_args *args, int64_t tasks) {
    const int64_t blocks = args->causal ? tasks : min64(tasks, q->cuda->device.multiprocessors);
    return launch_kernel(q, kernel, (launch_grid){blocks, 1, 1}, args, sizeof *args);
}

/* The ieee kernel, forward or backward, for all rows or those that were marked. */
static tsr_status queue_ieee_attention(launch_queue *q, attention_args *args, bool backward) {
    const cuda_device *device = &q->cuda->device;
    const bool hopper = cuda_kernel_runs_on(&cuda_kernels[ATTENTION_SMALL_FORWARD_128], device);
    const cuda_kernel *kernel = &cuda_kernels[hopper ? ATTENTION_SMALL_FORWARD_128 : ATTENTION_IEEE_FORWARD_128] +
                                (backward ? 2 : 0) + (args->dim > 128 ? 1 : 0);
    const bool wants_kv = args->grad_k.data || args->grad_v.data, wants_q = !backward || args->grad_q.data;
    int64_t blocks = 0;
    if (wants_q) blocks += (int64_t)args->heads * ceil_div(args->queries, kernel->tile_m);
    if (wants_kv) blocks += (int64_t)args->kv_heads * ceil_div(args->keys, kernel->tile_m);
    blocks *= args->batch;
    if (args->recompute_q) blocks = min64(blocks, 2 * device->multiprocessors); /* few find anything to do */
    return blocks ? launch_kernel(q, kernel, (launch_grid){blocks, 1, 1}, args, sizeof *args) : TSR_OK;
}

static tsr_status queue_forward(launch_queue *q, const attention_plan *plan, attention_args *args) {
    tsr_status status = TSR_OK;
    if (plan->packed) status = queue_packing(q, plan, args, OF_GRAD_O);
    if (!status && plan->split) {
        const cuda_kernel *kernel = plan->packed ? pick(ATTENTION_FORWARD_64, plan, args)
                                                 : &cuda_kernels[ATTENTION_FORWARD_SHORT + (args->general ? 1 : 0)];
        status = queue_tasks(q, kernel, args, (int64_t)args->batch * args->heads * plan->tiles_q);
    }
    return status ? status : queue_ieee_attention(q, args, false);
}

static tsr_status queue_backward(launch_queue *q, const attention_plan *plan, attention_args *args) {
    const int64_t heads = (int64_t)args->batch * args->heads, kv_heads = (int64_t)args->batch * args->kv_heads;
    const bool wants_kv = args->grad_k.data || args->grad_v.data, wants_q = args->grad_q.data;
    tsr_status status = plan->split ? queue_packing(q, plan, args, OPERANDS) : TSR_OK;
    if (!status && plan->split && plan->column_blocks <= 2) {
        if (wants_kv) status = queue_tasks(q, pick(ATTENTION_GRAD_KV_64, plan, args), args, kv_heads * plan->tiles_k);
        if (!status && wants_q)
            status = queue_tasks(q, pick(ATTENTION_GRAD_Q_64, plan, args), args, heads * plan->tiles_q);
    } else if (!status && plan->split) { /* dK last: it reads all that dV does, and says what has to be recomputed */
        const cuda_kernel *of_192 = &cuda_kernels[ATTENTION_GRAD_V_192] + (plan->column_blocks - 3);
        const int64_t of_keys = kv_heads * ceil_div(args->keys, of_192->tile_m);
        if (args->grad_v.data) status = queue_tasks(q, of_192, args, of_keys);
        if (!status && args->grad_k.data)
            status = queue_tasks(q, of_192 + (ATTENTION_GRAD_K_192 - ATTENTION_GRAD_V_192), args, of_keys);
        if (!status && wants_q)
            status = queue_tasks(q, of_192 + (ATTENTION_GRAD_Q_192 - ATTENTION_GRAD_V_192), args,
                                 heads * ceil_div(args->queries, of_192->tile_m));
    }
    return status ? status : queue_ieee_attention(q, args, true);
}

/* ---- The engine's calls ------------------------------------------------------------------------------------------ */

/* Writes to both: pinned memory gets its address on the GPU. */
static tsr_status check_operands(const struct cuda_context *cuda, tsr_attention_problem *p, attention_args *io) {
    struct {
        const char *name;
        void **data;
        bool used;
    } operands[] = {
        {"q.data", (void **)&p->q.data, p->queries && p->keys},
        {"k.data", (void **)&p->k.data, p->keys},
        {"v.data", (void **)&p->v.data, p->keys},
        {"mask.data", (void **)&p->mask.data, p->mask.data && p->queries && p->keys},
        {"o.data", (void **)&io->o.data, p->queries},
        {"lse.data", (void **)&io->lse.data, io->lse.data && p->queries},
        {"grad_o.data", (void **)&io->grad_o.data, io->grad_o.data && p->queries},
        {"grad_q.data", (void **)&io->grad_q.data, io->grad_q.data && p->queries},
        {"grad_k.data", (void **)&io->grad_k.data, io->grad_k.data && p->keys},
        {"grad_v.data", (void **)&io->grad_v.data, io->grad_v.data && p->keys},
    };
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < sizeof operands / sizeof *operands && !status; i++)
        if (operands[i].used) status = check_memory(cuda, operands[i].name, operands[i].data);
    return status;
}

/* Sizes that kernels count in 32 bits. */
static tsr_status check_counts(const tsr_attention_problem *p) {
    const int64_t longest = max64(p->queries, p->keys), most = INT32_MAX / 4; /* two kinds of tasks in a grid */
    if (longest > most ||
        (double)p->batch * (double)p->heads * (double)ceil_div(longest, ATTENTION_IEEE_ROWS) > (double)most)
        return tsr_fail(TSR_UNSUPPORTED, "batch * heads * max(queries, keys) is more than a GPU's grid may count");
    return TSR_OK;
}

/* `io` has what the call reads and writes beside the problem's operands. */
static tsr_status run_in_context(const tsr_context *context, const tsr_attention_problem *problem, attention_args io,
                                 bool backward, const tsr_launch *given) {
    const struct cuda_context *cuda = context->cuda;
    launch_queue q;
    launch_begin(&q, cuda, given ? given->stream : NULL);
    tsr_attention_problem p = seen_part(problem, backward);
    tsr_status status = check_counts(&p);
    if (!status) status = check_stream(cuda, q.stream);
    if (!status) status = check_operands(cuda, &p, &io);
    if (status) return status;

    const attention_plan plan = make_plan(context, &p, backward);
    void *workspace = given ? given->workspace : NULL;
    const bool take_own = plan.bytes && !workspace;
    CUdeviceptr taken = 0;
    if (take_own)
        status = cuda_workspace_take(cuda, q.stream, plan.bytes, &taken);
    else if (plan.bytes)
        status = check_memory(cuda, "launch.workspace", &workspace);
    if (status) return status;
    if (take_own) workspace = (void *)taken;

    attention_args args = args_of(&p, &plan, backward, workspace);
    args.o = io.o;
    args.lse = io.lse;
    args.grad_o = io.grad_o;
    args.grad_q = io.grad_q;
    args.grad_k = io.grad_k;
    args.grad_v = io.grad_v;
    if (plan.split) {
        args.recompute_q = (int32_t *)((char *)workspace + plan.recompute_q);
        args.recompute_k = (int32_t *)((char *)workspace + plan.recompute_k);
        args.padded_lse = (float *)((char *)workspace + plan.padded_lse);
        args.delta = (float *)((char *)workspace + plan.delta);
        args.shift = (float *)((char *)workspace + plan.shift);
    }
    status = backward ? queue_backward(&q, &plan, &args) : queue_forward(&q, &plan, &args);
    if (!status) status = launch_queued(&q);
    const CUresult error = take_own ? cuda_workspace_give(cuda, q.stream, taken) : CUDA_SUCCESS;
    return error && !status ? cuda_fail(error, "giving workspace back on GPU %d", cuda->device.ordinal) : status;
}

static tsr_status run(const tsr_context *context, const tsr_attention_problem *problem, const attention_args *io,
                      bool backward, const tsr_launch *launch) {
    bool pushed;
    tsr_status status = cuda_enter(context->cuda, &pushed);
    if (status) return status;
    status = run_in_context(context, problem, *io, backward, launch);
    cuda_leave(context->cuda, pushed);
    return status;
}

tsr_status cuda_attention(tsr_context *context, const tsr_attention_problem *problem, const tsr_heads_result *o,
                          const tsr_heads_result *lse, const tsr_launch *launch) {
    const attention_args io = {.o = heads_to_write(o), .lse = lse ? heads_to_write(lse) : (heads_out){0}};
    return run(context, problem, &io, false, launch);
}

tsr_status cuda_attention_backward(tsr_context *context, const tsr_attention_problem *problem,
                                   const tsr_attention_gradients *g, const tsr_launch *launch) {
    const attention_args io = {
        .o = {(float *)g->o.data, g->o.batch_stride, g->o.head_stride, g->o.row_stride, g->o.col_stride},
        .lse = {(float *)g->lse.data, g->lse.batch_stride, g->lse.head_stride, g->lse.row_stride, g->lse.col_stride},
        .grad_o = heads_to_read(&g->grad_o),
        .grad_q = heads_to_write(&g->grad_q),
        .grad_k = heads_to_write(&g->grad_k),
        .grad_v = heads_to_write(&g->grad_v),
    };
    return run(context, problem, &io, true, launch);
}
