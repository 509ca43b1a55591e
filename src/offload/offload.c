/* offload.c: products of matrices in host memory, in blocks that keep the bus busy both ways while the GPU computes.
 *
 *     partition.c        how C is cut into blocks, and their order
 *     commands.c         what the GPU is told: send, multiply, bring back
 *     returns.c          blocks of C on their way back
 *     copier.c           threads that copy through the pinned ring
 *     cpu_completion.c   what a failing GPU has left
 *     estimate.c         how long all this takes
 *
 * The GPU cannot copy ordinary memory while others work, so everything passes through a ring of pinned memory, a
 * transfer block at a time. The calling thread drives: it issues commands, carries them out once the copies they depend
 * on are done, and never waits where it can go on. Other threads copy, ahead of the commands; the driving thread does
 * where they are too few.
 */
#include "offload/offload.h"

#include "cpu/cpu.h"
#include "cpu/team.h"
#include "offload/transfer.h"
#include "rounding.h"

void transfer_note(transfer *t, CUresult error, const char *doing) {
    if (error && !t->status) t->status = cuda_fail(error, "%s GPU %d", doing, t->context->cuda->device.ordinal);
}

/* ---- A block ----------------------------------------------------------------------------------------------------- */

static void send_operand(transfer *t, const tsr_operand *o, const float *slot, CUevent used) {
    command_send(t, copy_matrix_of((float *)o->data, o->rows, o->cols, o->row_stride, o->col_stride), o->rows * o->cols,
                 (CUdeviceptr)slot, used);
}

/* Where a matrix in its slot has its packed form; NULL where it has none. */
static const tsr_packed *packed_form(transfer *t, tsr_packed *packed, tsr_side side, const tsr_operand *o, size_t bytes,
                                     size_t packed_bytes) {
    if (!packed_bytes) return NULL;
    *packed = (tsr_packed){
        .context = t->context, .side = side, .source = *o, .panels = (char *)o->data + bytes, .bytes = packed_bytes};
    return packed;
}

/* Waits until the block has left that was in the slot of the one to be issued now. */
static void wait_for_c_slot(transfer *t) {
    while (!t->status && t->blocks_issued - t->returns.first >= t->partition.c_slots) {
        commands_carry_out(t, MOST_COMMANDS);
        returns_go_on(t);
        copier_help(&t->copier);
    }
}

/* Issues all commands of block (w->i, w->j) of product p, which is `item` of the batch. */
static void issue_block(transfer *t, const tsr_problem *p, const block_walk *w, int64_t item) {
    const partition *x = &t->partition;
    struct offload *offload = t->offload;
    const int64_t i = w->i * x->bm, j = w->j * x->bn;
    const int64_t m = min64(x->bm, p->m - i), n = min64(x->bn, p->n - j);
    const size_t a_slot_bytes = x->a_bytes + x->a_packed, b_slot_bytes = x->b_bytes + x->b_packed;
    const CUdeviceptr a_slots = offload->memory, b_slots = a_slots + (size_t)x->a_slots * a_slot_bytes;
    const CUdeviceptr c_slots = b_slots + (size_t)x->b_slots * b_slot_bytes;
    const CUdeviceptr c_memory = c_slots + (size_t)(t->blocks_issued % x->c_slots) * x->c_bytes;
    tsr_problem host = {0}; /* the part of p that is multiplied */
    t->workspace = c_slots + (size_t)x->c_slots * x->c_bytes;
    for (int64_t k0 = 0; k0 < p->k && !t->status; k0 += x->bk) {
        const int64_t k = min64(x->bk, p->k - k0);
        const int64_t set = item % STRIP_SETS, chunk = t->chunks_issued++ % CHUNK_SLOTS;
        const int a_slot = (int)(x->keeps ? set * x->a_strips + w->i : chunk % x->a_slots);
        const int b_slot = (int)(x->keeps ? set * x->b_strips + w->j : chunk % x->b_slots);
        const bool sends_a = !x->keeps || w->i >= t->a_sent, sends_b = !x->keeps || w->j >= t->b_sent;
        host = problem_part(p, &(problem_range){.m0 = i, .n0 = j, .k0 = k0, .m = m, .n = n, .k = k, .batch = 1});
        tsr_problem block = partition_block(p, m, n, k);
        block.a.data = (const float *)(a_slots + (size_t)a_slot * a_slot_bytes);
        block.b.data = (const float *)(b_slots + (size_t)b_slot * b_slot_bytes);
        block.addend.data = block.c.data = (float *)c_memory;
        block.a.packed = packed_form(t, &t->a_packed[a_slot], TSR_LEFT, &block.a, x->a_bytes, x->a_packed);
        block.b.packed = packed_form(t, &t->b_packed[b_slot], TSR_RIGHT, &block.b, x->b_bytes, x->b_packed);
        block.beta = host.beta;
        if (is_zero(block.beta)) block.addend = (tsr_operand){0};
        if (sends_a) send_operand(t, &host.a, block.a.data, offload->events[A_USED + a_slot]);
        if (sends_b) send_operand(t, &host.b, block.b.data, offload->events[B_USED + b_slot]);
        if (!k0) wait_for_c_slot(t);
        if (!k0 && !is_zero(p->beta)) send_operand(t, &host.addend, block.c.data, NULL);
        if (t->status) return;
        t->a_sent += sends_a;
        t->b_sent += sends_b;
        command_issue(t, &(command){.what = MULTIPLY,
                                    .block = block,
                                    .a_slot = a_slot,
                                    .b_slot = b_slot,
                                    .packs_a = sends_a && x->a_packed,
                                    .packs_b = sends_b && x->b_packed});
    }
    command_issue(t, &(command){.what = BRING_BACK, .c = host.c, .from = c_memory});
    t->blocks_issued++;
}

/* ---- The product ------------------------------------------------------------------------------------------------- */

/* Chooses the partition, and takes the memory for it. */
static tsr_status prepare(transfer *t) {
    const struct cuda_context *cuda = t->context->cuda;
    size_t total = 0, limit = t->context->options.max_workspace;
    CUresult error = t->driver->cuDeviceTotalMem(&total, cuda->device.ordinal);
    if (error) return cuda_fail(error, "asking GPU %d for its memory", cuda->device.ordinal);
    if (!limit || limit > total / 2) limit = total / 2;
    for (;;) {
        const tsr_status status = partition_choose(&t->partition, t->context, &t->p, limit);
        if (status) return status;
        const size_t bytes = partition_bytes(&t->partition);
        error = offload_take_memory(cuda, t->offload, bytes);
        if (error != CUDA_ERROR_OUT_OF_MEMORY)
            return error ? cuda_fail(error, "taking %zu bytes on GPU %d", bytes, cuda->device.ordinal) : TSR_OK;
        limit = bytes / 2;
    }
}

/* What the calling thread does. */
static void drive(transfer *t) {
    const tsr_problem *p = &t->p;
    for (int64_t item = 0; item < p->batch && !t->status; item++) {
        const tsr_problem one = problem_item(p, item);
        t->a_sent = t->b_sent = 0;
        for (block_walk w = block_walk_begin(&t->partition); !t->status && block_walk_next(&w, &t->partition);)
            issue_block(t, &one, &w, item);
    }
    commands_carry_out(t, 0);
    while (!t->status && t->returns.first < t->blocks_issued) {
        returns_go_on(t);
        copier_help(&t->copier);
    }
    returns_settle(t);
    copier_end(&t->copier);
}

static void work(struct cpu_member *self, void *argument) {
    transfer *t = argument;
    if (self->index)
        copier_work(&t->copier, self->index);
    else
        drive(t);
}

/* Threads that copy and drive. Fewer than cores: a thread that loses its core to another process holds up the rest. */
static int team_size(const transfer *t) {
    const tsr_problem *p = &t->p;
    const double floats = (double)p->batch *
                          ((double)p->m * (double)p->k + (double)p->k * (double)p->n + (double)p->m * (double)p->n);
    const double useful = floats / OFFLOAD_LEAST_PART / 4 + 1;
    const int most = (int)min64(3 * t->context->options.threads / 4 + 1, COPIER_MOST_THREADS);
    return useful < most ? (int)useful : most;
}

static tsr_status compute_on_gpu(transfer *t) {
    t->status = prepare(t);
    if (t->status) return t->status;
    struct cpu_team team = {.work = work, .argument = t};
    const int size = team_size(t);
    t->copier.threads = size - 1;
    cpu_team_run(&team, size);
    return t->status;
}

/* With A the smaller operand, unless the rows' bits would depend on m, and without packed forms. */
static tsr_problem oriented(const tsr_context *context, const tsr_problem *p) {
    tsr_problem q = p->m > p->n && !context->options.batch_invariant ? problem_transpose(p) : *p;
    q.a.packed = q.b.packed = NULL;
    return q;
}

/* With the lock held and the context current. */
static tsr_status multiply(tsr_context *context, const tsr_problem *problem, double *share) {
    tsr_status status = context->offload ? TSR_OK : offload_create(context, &context->offload);
    if (status) return status;
    transfer t = {.context = context,
                  .driver = context->cuda->driver,
                  .offload = context->offload,
                  .p = oriented(context, problem)};
    status = compute_on_gpu(&t);
    *share = 1;
    if (!status) return TSR_OK;
    /* Nothing may still be on its way into the ring. On a GPU that is lost this fails, too, which is fine. */
    t.driver->cuStreamSynchronize(t.offload->in);
    t.driver->cuStreamSynchronize(t.offload->compute);
    t.driver->cuStreamSynchronize(t.offload->out);
    *share = 0;
    if (!t.returns.done) return status; /* nothing has been written */
    char why[400];
    snprintf(why, sizeof why, "%s", tsr_last_error());
    status = complete_on_cpu(&t, share);
    if (!status) tsr_fail(TSR_OK, "%s", why);
    return status;
}

tsr_status offload_multiply(tsr_context *context, const tsr_problem *problem, double *share) {
    const struct cuda_context *cuda = context->cuda;
    *share = 1;
    if (!problem->m || !problem->n || !problem->batch) return TSR_OK;
    if (!problem->k) return cpu_execute(&(cpu_plan){0}, problem, NULL); /* C = beta*C is not worth copying */
    bool pushed;
    *share = 0;
    tsr_status status = cuda_enter(cuda, &pushed);
    if (status) return status;
    const uint64_t rounding = cpu_rounding_begin();
    /* One at a time: they would share the bus, and need the same memory twice. */
    pthread_mutex_lock(&context->offload_lock);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuda->driver->cuThreadExchangeStreamCaptureMode(&mode);
    status = multiply(context, problem, share);
    cuda->driver->cuThreadExchangeStreamCaptureMode(&mode);
    pthread_mutex_unlock(&context->offload_lock);
    cpu_rounding_end(rounding);
    cuda_leave(cuda, pushed);
    return status;
}

void offload_release(tsr_context *context) {
    bool pushed;
    pthread_mutex_lock(&context->offload_lock);
    if (context->offload) {
        const bool alive = !cuda_enter(context->cuda, &pushed);
        offload_destroy(context->cuda, context->offload, alive);
        context->offload = NULL;
        if (alive) cuda_leave(context->cuda, pushed);
    }
    pthread_mutex_unlock(&context->offload_lock);
}
