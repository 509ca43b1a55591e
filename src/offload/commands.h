/* commands.h: what the GPU is told, in order, each command as soon as the copies it depends on are done. The driving
 * thread issues commands ahead of that, and never waits where it can go on. */
#ifndef TESSERA_OFFLOAD_COMMANDS_H
#define TESSERA_OFFLOAD_COMMANDS_H

#include "offload/resources.h"

enum { MOST_COMMANDS = 4 * RING_IN };

typedef struct command {
    enum { SEND, MULTIPLY, BRING_BACK } what;
    CUevent after;         /* SEND: an event to wait for first; or NULL */
    int64_t copied, count; /* SEND: the number of the copy into the ring, and its elements */
    CUdeviceptr to;
    int slot;          /* SEND: of the ring */
    tsr_problem block; /* MULTIPLY */
    int a_slot, b_slot;
    bool packs_a, packs_b;
    tsr_result c; /* BRING_BACK: where the block goes */
    CUdeviceptr from;
} command;

typedef struct command_queue {
    command commands[MOST_COMMANDS]; /* a ring */
    int64_t issued, done;
    int64_t blocks_sent;           /* transfer blocks for which a SEND has been issued */
    int64_t sent_by_slot[RING_IN]; /* the number of the command that sends what is in the slot */
} command_queue;

struct transfer;

/* Issues a command. */
void command_issue(struct transfer *transfer, const command *command);

/* Issues the commands that send `count` elements of a matrix, a transfer block at a time; the first of them after an
 * event on the GPU, unless that is NULL. Copying a block into the ring begins as soon as its slot is free. */
void command_send(struct transfer *transfer, copy_matrix matrix, int64_t count, CUdeviceptr to, CUevent after);

/* Carries out the oldest commands until no more than `most` are left, and those after them that need not be waited
 * for. */
void commands_carry_out(struct transfer *transfer, int64_t most);

#endif
