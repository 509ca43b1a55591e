/* attention.c: queues attention and its gradients.
 *
 *   split   pack (unless the forward kernel splits K and V itself), then forward, or dK with dV and dQ; then ieee
 *           kernels that compute the tiles which the split cannot carry, and return at once where that is none
 *   ieee    delta (backward only), then the same kernels of the ieee family for all tiles
 */
#include "attention.h"

#include "cuda/launch.h"
#include "dropout.h"

/* Up to so many keys the forward kernel splits K and V itself, again in every thread block. */
enum { SHORT_KEYS = 512 };

enum { OF_Q, OF_K, OF_V, OF_GRAD_O, OPERANDS };

/* How a call is carried out, and where everything lies in its workspace: offsets in bytes. */
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
    if (plan->split) {
        plan->recompute_q = take(&end, of_queries, sizeof(int32_t));
        if (backward) plan->recompute_k = take(&end, of_keys, sizeof(int32_t));
    }
    if (backward) {
        plan->delta = take(&end, of_queries * ATTENTION_ROWS, sizeof(float));
        plan->shift = take(&end, of_queries * ATTENTION_ROWS, sizeof(float));
        if (plan->split) plan->padded_lse = take(&end, of_queries * ATTENTION_ROWS, sizeof(float));
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

/* The quickest way within max_workspace; a lesser one where that allows no more. */
static attention_plan make_plan(const tsr_context *context, const tsr_attention_problem *p, bool backward) {
    const size_t most = context->options.max_workspace ? context->options.max_workspace : SIZE_MAX;
    attention_plan plan = {
        .column_blocks = (int)ceil_div(p->dim, ATTENTION_COLS),
        .tiles_q = ceil_div(p->queries, ATTENTION_ROWS),
        .tiles_k = ceil_div(p->keys, ATTENTION_ROWS),
    };
    const bool can_split = context->options.precision != TSR_IEEE && p->dim <= (backward ? 2 : 4) * ATTENTION_COLS &&
                           p->queries && p->keys &&
                           cuda_kernel_runs_on(&cuda_kernels[ATTENTION_FORWARD_64], &context->cuda->device);
    const bool can_split_in_place = can_split && !backward && plan.column_blocks == 1 && in_fours(&p->q, p->dim) &&
                                    in_fours(&p->k, p->dim) && in_fours(&p->v, p->dim);
    plan.split = can_split;
    plan.packed = can_split && !(can_split_in_place && p->keys <= SHORT_KEYS);
    lay_out(&plan, p, backward);
    if (plan.packed && plan.bytes > most) {
        plan.split = can_split_in_place;
        plan.packed = false;
        lay_out(&plan, p, backward);
    }
    if (plan.split && plan.bytes > most) {
        plan.split = false;
        lay_out(&plan, p, backward);
    }
    return plan;
}

size_t cuda_attention_workspace(const tsr_context *context, const tsr_attention_problem *problem, bool backward) {
    /* Where its data lies is not known yet: the most that it may take. */
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

static attention_args args_of(const tsr_attention_problem *p, const attention_plan *plan, char *workspace) {
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
    args.general = args.mask.data || args.drop_below || !(args.scale >= 0x1p-20f); /* smaller ones might underflow */
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
    return launch_kernel(q, kernel, (launch_grid){max64(of_queries, of_keys), operands, 1}, args);
}

/* A split kernel. Its thread blocks take several tasks each, unless these differ in length. */
static tsr_status queue_tasks(launch_queue *q, const cuda_kernel *kernel, attention_args *args, int64_t tasks) {
    const int64_t blocks = args->causal ? tasks : min64(tasks, q->cuda->device.multiprocessors);
    return launch_kernel(q, kernel, (launch_grid){blocks, 1, 1}, args);
}

/* The ieee kernel that lies at `first` in the list, or the one after it for more than 128 columns. */
static tsr_status queue_ieee_attention(launch_queue *q, cuda_kernel_id first, attention_args *args, bool of_keys) {
    const cuda_kernel *kernel = &cuda_kernels[args->dim <= 128 ? first : first + 1];
    const int64_t items = (int64_t)args->batch * (of_keys ? args->kv_heads : args->heads);
    int64_t blocks = items * ceil_div(of_keys ? args->keys : args->queries, ATTENTION_IEEE_ROWS);
    if (args->recompute_q) blocks = min64(blocks, 2 * q->cuda->device.multiprocessors); /* few find anything to do */
    return blocks ? launch_kernel(q, kernel, (launch_grid){blocks, 1, 1}, args) : TSR_OK;
}

static tsr_status queue_forward(launch_queue *q, const attention_plan *plan, attention_args *args) {
    tsr_status status = TSR_OK;
    if (plan->packed) status = queue_packing(q, plan, args, OF_GRAD_O);
    if (!status && plan->split) {
        const cuda_kernel *kernel = plan->packed ? pick(ATTENTION_FORWARD_64, plan, args)
                                                 : &cuda_kernels[ATTENTION_FORWARD_SHORT + (args->general ? 1 : 0)];
        status = queue_tasks(q, kernel, args, (int64_t)args->batch * args->heads * plan->tiles_q);
    }
    return status ? status : queue_ieee_attention(q, ATTENTION_IEEE_FORWARD_128, args, false);
}

static tsr_status queue_backward(launch_queue *q, const attention_plan *plan, attention_args *args) {
    const int64_t heads = (int64_t)args->batch * args->heads, kv_heads = (int64_t)args->batch * args->kv_heads;
    const bool wants_kv = args->grad_k.data || args->grad_v.data, wants_q = args->grad_q.data;
    tsr_status status;
    if (plan->split)
        status = queue_packing(q, plan, args, OPERANDS);
    else {
        const cuda_kernel *delta = &cuda_kernels[ATTENTION_DELTA];
        const int64_t blocks = ceil_div(heads * args->queries, delta->threads / 32);
        status = blocks ? launch_kernel(q, delta, (launch_grid){blocks, 1, 1}, args) : TSR_OK;
    }
    if (!status && wants_kv && plan->split)
        status = queue_tasks(q, pick(ATTENTION_GRAD_KV_64, plan, args), args, kv_heads * plan->tiles_k);
    if (!status && wants_q && plan->split)
        status = queue_tasks(q, pick(ATTENTION_GRAD_Q_64, plan, args), args, heads * plan->tiles_q);
    if (!status && wants_kv) status = queue_ieee_attention(q, ATTENTION_IEEE_GRAD_KV_128, args, true);
    if (!status && wants_q) status = queue_ieee_attention(q, ATTENTION_IEEE_GRAD_Q_128, args, false);
    return status;
}

/* ---- The engine's calls ------------------------------------------------------------------------------------------ */

/* Pinned memory becomes its address on the GPU, so both are written to. */
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
    const int64_t longest = max64(p->queries, p->keys), most = INT32_MAX / 2; /* kernels go a grid beyond the last */
    if (longest > most ||
        (double)p->batch * (double)p->heads * (double)ceil_div(longest, ATTENTION_IEEE_ROWS) > (double)most)
        return tsr_fail(TSR_UNSUPPORTED, "batch * heads * max(queries, keys) is more than a GPU's grid may count");
    return TSR_OK;
}

/* `io` has what the call reads and writes beside the problem's operands. */
static tsr_status run_in_context(const tsr_context *context, const tsr_attention_problem *problem, attention_args io,
                                 bool backward, const tsr_launch *given) {
    const struct cuda_context *cuda = context->cuda;
    launch_queue q = {cuda, given ? given->stream : NULL, false};
    tsr_attention_problem p = seen_part(problem, backward);
    tsr_status status = check_counts(&p);
    if (!status) status = check_stream(cuda, q.stream);
    if (!status) status = check_operands(cuda, &p, &io);
    if (status) return status;

    const attention_plan plan = make_plan(context, &p, backward);
    if (context->options.max_workspace && plan.bytes > context->options.max_workspace)
        return tsr_fail(TSR_OUT_OF_MEMORY, "attention needs %zu bytes of workspace, options.max_workspace is %zu",
                        plan.bytes, context->options.max_workspace);
    void *workspace = given ? given->workspace : NULL;
    const bool take_own = plan.bytes && !workspace;
    CUdeviceptr taken = 0;
    if (take_own)
        status = cuda_workspace_take(cuda, q.stream, plan.bytes, &taken);
    else if (plan.bytes)
        status = check_memory(cuda, "launch.workspace", &workspace);
    if (status) return status;
    if (take_own) workspace = (void *)taken;

    attention_args args = args_of(&p, &plan, workspace);
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
    }
    if (backward) {
        args.delta = (float *)((char *)workspace + plan.delta);
        args.shift = (float *)((char *)workspace + plan.shift);
    }
    status = backward ? queue_backward(&q, &plan, &args) : queue_forward(&q, &plan, &args);
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
