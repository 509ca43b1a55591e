/* returns.c: blocks of C from the GPU to host memory. */
#include "offload/returns.h"

#include "offload/transfer.h"

static returning_block *block_numbered(return_queue *queue, int64_t number) {
    return &queue->blocks[number % MOST_C_SLOTS];
}

static float *slot_out(const transfer *t, int slot) {
    return t->offload->ring + (int64_t)(RING_IN + slot) * TRANSFER_BLOCK;
}

void returns_add(transfer *t, const tsr_result *to, CUdeviceptr from) {
    const int64_t slot = t->returns.count % MOST_C_SLOTS;
    struct offload *offload = t->offload;
    transfer_note(t, t->driver->cuEventRecord(offload->events[COMPUTED + slot], offload->compute),
                  "ordering copies from");
    if (t->status) return;
    t->returns.blocks[slot] = (returning_block){*to, from, 0, 0, 0};
    t->returns.count++;
}

/* The first block of which not all is queued, or NULL. */
static returning_block *next_to_queue(return_queue *queue) {
    for (int64_t i = queue->first; i < queue->count; i++) {
        returning_block *block = block_numbered(queue, i);
        if (block->queued < block->to.rows * block->to.cols) return block;
    }
    return NULL;
}

/* Tells the GPU to copy the block's next transfer block into the ring; the first of them when the block has been
 * computed. (Not before its turn: transfer blocks of earlier blocks, queued after that, would wait for it, too.) */
static void queue_copy(transfer *t, returning_block *block) {
    struct offload *offload = t->offload;
    const int slot = (int)(t->returns.queued++ % RING_OUT);
    const int64_t end = min64(block->queued + TRANSFER_BLOCK, block->to.rows * block->to.cols);
    CUresult error = CUDA_SUCCESS;
    if (!block->queued)
        error = t->driver->cuStreamWaitEvent(offload->out, offload->events[COMPUTED + (block - t->returns.blocks)], 0);
    if (!error)
        error = t->driver->cuMemcpyDtoHAsync(slot_out(t, slot), block->from + (size_t)block->queued * sizeof(float),
                                             (size_t)(end - block->queued) * sizeof(float), offload->out);
    if (!error) error = t->driver->cuEventRecord(offload->events[SLOT_BACK + slot], offload->out);
    transfer_note(t, error, "copying from");
    block->queued = end;
}

/* Posts the copy to C of the oldest transfer block that has arrived. */
static void post_copy(transfer *t) {
    return_queue *queue = &t->returns;
    int64_t number = queue->first;
    while (block_numbered(queue, number)->copying == block_numbered(queue, number)->queued) number++;
    returning_block *block = block_numbered(queue, number);
    const tsr_result *c = &block->to;
    const int slot = (int)(queue->posted++ % RING_OUT);
    const int64_t end = min64(block->copying + TRANSFER_BLOCK, c->rows * c->cols);
    queue->copies[slot] = copier_post(&t->copier,
                                      copy_matrix_of(c->data, c->rows, c->cols, c->row_stride, c->col_stride),
                                      block->copying, end, slot_out(t, slot), false);
    block->copying = end;
}

static bool oldest_copy_is_done(const transfer *t) {
    return copier_is_done(&t->copier, t->returns.copies[t->returns.done % RING_OUT]);
}

/* Counts the oldest transfer block whose copy is done as being in C. */
static void count_copy(return_queue *queue) {
    returning_block *block = block_numbered(queue, queue->first);
    const int64_t count = block->to.rows * block->to.cols;
    block->done = min64(block->done + TRANSFER_BLOCK, count);
    queue->done++;
    if (block->done == count) queue->first++;
}

void returns_go_on(transfer *t) {
    return_queue *queue = &t->returns;
    while (queue->done < queue->posted && oldest_copy_is_done(t)) count_copy(queue);
    for (returning_block *block;
         !t->status && queue->queued - queue->done < RING_OUT && (block = next_to_queue(queue));)
        queue_copy(t, block);
    while (!t->status && queue->posted < queue->queued) {
        const CUresult error = t->driver->cuEventQuery(t->offload->events[SLOT_BACK + queue->posted % RING_OUT]);
        if (error == CUDA_ERROR_NOT_READY) return;
        transfer_note(t, error, "waiting for copies from");
        if (!error) post_copy(t);
    }
}

void returns_settle(transfer *t) {
    while (t->returns.done < t->returns.posted) {
        if (oldest_copy_is_done(t))
            count_copy(&t->returns);
        else
            copier_help(&t->copier);
    }
}
