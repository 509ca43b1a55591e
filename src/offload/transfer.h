/* transfer.h: one product under way, for the files that drive it. */
#ifndef TESSERA_OFFLOAD_TRANSFER_H
#define TESSERA_OFFLOAD_TRANSFER_H

#include "offload/commands.h"
#include "offload/returns.h"

typedef struct transfer {
    tsr_context *context;
    const cuda_driver *driver;
    struct offload *offload;
    tsr_problem p;
    partition partition;
    copier copier;
    command_queue commands;
    return_queue returns;
    int64_t blocks_issued, chunks_issued;
    int64_t a_sent, b_sent; /* strips of the item of the batch for which commands have been issued */
    tsr_packed a_packed[MOST_OPERAND_SLOTS], b_packed[MOST_OPERAND_SLOTS];
    CUdeviceptr workspace;
    tsr_status status; /* of the first call that failed */
} transfer;

/* Sets the status where an error is the first; the message is "`doing` GPU 0: ...". */
void transfer_note(transfer *transfer, CUresult error, const char *doing);

/* cpu_completion.c: computes on the CPU what the GPU has not delivered, in the order it would have. *share: how much it
 * has delivered, 0 to 1. */
tsr_status complete_on_cpu(transfer *transfer, double *share);

#endif
