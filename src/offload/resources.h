/* resources.h: what a context keeps on the GPU, and pinned, from one product in host memory to the next. */
#ifndef TESSERA_OFFLOAD_RESOURCES_H
#define TESSERA_OFFLOAD_RESOURCES_H

#include "cuda/context.h"
#include "offload/copier.h"
#include "offload/partition.h"

/* Where the events of each kind begin. */
enum {
    SLOT_SENT = 0,                   /* a slot of the ring has been copied to the GPU */
    SLOT_BACK = SLOT_SENT + RING_IN, /* or from it */
    A_USED = SLOT_BACK + RING_OUT,   /* the product that read the slot is done */
    B_USED = A_USED + MOST_OPERAND_SLOTS,
    COMPUTED = B_USED + MOST_OPERAND_SLOTS, /* the block of C, by its slot */
    ARRIVED = COMPUTED + MOST_C_SLOTS,      /* what was queued last on `in` */
    EVENTS
};

struct offload {
    CUstream in, compute, out;
    CUevent events[EVENTS];
    float *ring; /* pinned: RING_IN slots, then RING_OUT */
    CUdeviceptr memory;
    size_t bytes;
    tsr_context cpu; /* computes what a failing GPU leaves, with the ring as its workspace */
};

/* All are called with the context current. */
tsr_status offload_create(const tsr_context *context, struct offload **made);

/* `alive`: the CUcontext still exists; else what was in it went with it. */
void offload_destroy(const struct cuda_context *cuda, struct offload *offload, bool alive);

/* At least `bytes` at offload->memory, whose contents are lost. */
CUresult offload_take_memory(const struct cuda_context *cuda, struct offload *offload, size_t bytes);

#endif
