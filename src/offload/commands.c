/* commands.c: issues commands and carries them out.
 *
 * Three streams run at once: `in` carries strips or chunks to the GPU, `compute` packs and multiplies, `out` carries
 * blocks back. Each slot for a strip, chunk or block on the GPU has an event: what is copied into it waits until what
 * was there has been used.
 */
#include "offload/commands.h"

#include "offload/transfer.h"
#include "plan.h"

/* Waits for an event that has been recorded; meanwhile, blocks of C go on. */
static void wait_for(transfer *t, CUevent event, const char *doing) {
    CUresult error;
    while ((error = t->driver->cuEventQuery(event)) == CUDA_ERROR_NOT_READY && !t->status) {
        returns_go_on(t);
        copier_help(&t->copier);
    }
    if (error != CUDA_ERROR_NOT_READY) transfer_note(t, error, doing);
}

static float *slot_in(const transfer *t, int slot) { return t->offload->ring + (int64_t)slot * TRANSFER_BLOCK; }

static void carry_out_send(transfer *t, const command *c) {
    struct offload *offload = t->offload;
    CUresult error = c->after ? t->driver->cuStreamWaitEvent(offload->in, c->after, 0) : CUDA_SUCCESS;
    if (!error)
        error = t->driver->cuMemcpyHtoDAsync(c->to, slot_in(t, c->slot), (size_t)c->count * sizeof(float), offload->in);
    if (!error) error = t->driver->cuEventRecord(offload->events[SLOT_SENT + c->slot], offload->in);
    transfer_note(t, error, "copying to");
}

/* C block = alpha * A chunk * B chunk + beta * C block, on the GPU. */
static void carry_out_multiply(transfer *t, const command *c) {
    struct offload *offload = t->offload;
    CUresult error = t->driver->cuEventRecord(offload->events[ARRIVED], offload->in);
    if (!error) error = t->driver->cuStreamWaitEvent(offload->compute, offload->events[ARRIVED], 0);
    transfer_note(t, error, "ordering products on");
    if (t->status) return;
    if (c->packs_a) t->status = cuda_pack_panels(&t->a_packed[c->a_slot], offload->compute);
    if (c->packs_b && !t->status) t->status = cuda_pack_panels(&t->b_packed[c->b_slot], offload->compute);
    if (t->status) return;
    tsr_plan plan = {.context = t->context, .problem = c->block};
    t->status = plan_make(&plan);
    if (t->status) return;
    /* An edge may be planned with more workspace than a whole block; then it takes its own. */
    const size_t bytes = t->partition.workspace;
    const bool fits = bytes && plan_workspace(&plan) <= bytes;
    const tsr_launch launch = {offload->compute, fits ? (void *)t->workspace : NULL, bytes};
    t->status = plan_execute(&plan, &c->block, &launch);
    if (t->status) return;
    error = t->driver->cuEventRecord(offload->events[A_USED + c->a_slot], offload->compute);
    if (!error) error = t->driver->cuEventRecord(offload->events[B_USED + c->b_slot], offload->compute);
    transfer_note(t, error, "ordering products on");
}

void commands_carry_out(transfer *t, int64_t most) {
    command_queue *queue = &t->commands;
    while (!t->status && queue->done < queue->issued) {
        const command *c = &queue->commands[queue->done % MOST_COMMANDS];
        returns_go_on(t);
        if (c->what == SEND && !copier_is_done(&t->copier, c->copied)) {
            if (queue->issued - queue->done <= most) return;
            copier_help(&t->copier);
            continue;
        }
        if (t->status) return;
        if (c->what == SEND)
            carry_out_send(t, c);
        else if (c->what == MULTIPLY)
            carry_out_multiply(t, c);
        else
            returns_add(t, &c->c, c->from);
        queue->done++;
    }
}

void command_issue(transfer *t, const command *c) {
    commands_carry_out(t, MOST_COMMANDS - 1);
    t->commands.commands[t->commands.issued++ % MOST_COMMANDS] = *c;
}

void command_send(transfer *t, copy_matrix matrix, int64_t count, CUdeviceptr to, CUevent after) {
    command_queue *queue = &t->commands;
    for (int64_t first = 0; first < count && !t->status; first += TRANSFER_BLOCK, after = NULL) {
        const int64_t number = queue->blocks_sent++, end = min64(first + TRANSFER_BLOCK, count);
        const int slot = (int)(number % RING_IN);
        if (number >= RING_IN) {
            /* What was in the slot is on its way once its command has been carried out, and gone when its event says
             * so. */
            commands_carry_out(t, queue->issued - queue->sent_by_slot[slot] - 1);
            if (!t->status) wait_for(t, t->offload->events[SLOT_SENT + slot], "waiting for copies to");
            if (t->status) return;
        }
        const int64_t copied = copier_post(&t->copier, matrix, first, end, slot_in(t, slot), true);
        command_issue(t, &(command){.what = SEND,
                                    .after = after,
                                    .copied = copied,
                                    .count = end - first,
                                    .to = to + (size_t)first * sizeof(float),
                                    .slot = slot});
        queue->sent_by_slot[slot] = queue->issued - 1;
    }
}
