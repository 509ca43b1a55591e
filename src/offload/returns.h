/* returns.h: blocks of C on their way from the GPU to host memory.
 *
 * C is written by the CPU alone, from transfer blocks that have arrived whole. So when the GPU fails, it is known to
 * the element which part of C is done, and the rest of C is as it was.
 */
#ifndef TESSERA_OFFLOAD_RETURNS_H
#define TESSERA_OFFLOAD_RETURNS_H

#include "offload/resources.h"

/* A block of C on its way back, its elements in the order in which they lie on the GPU. */
typedef struct returning_block {
    tsr_result to;
    CUdeviceptr from;
    int64_t queued, copying, done; /* elements: queued on `out`; arrived, being copied to C; in C */
} returning_block;

typedef struct return_queue {
    int64_t queued, posted, done;         /* transfer blocks: queued on `out`; posted as copies; in C */
    int64_t copies[RING_OUT];             /* the numbers of those copies */
    returning_block blocks[MOST_C_SLOTS]; /* the last of them, by number */
    int64_t count, first;                 /* blocks added; those before `first` are in C */
} return_queue;

struct transfer;

/* Adds a block that has been queued on `compute`. */
void returns_add(struct transfer *transfer, const tsr_result *to, CUdeviceptr from);

/* Takes every step of the way back that is possible without waiting. */
void returns_go_on(struct transfer *transfer);

/* Waits until whatever has been posted is copied, so that nobody writes into C any more, and counts it. */
void returns_settle(struct transfer *transfer);

#endif
