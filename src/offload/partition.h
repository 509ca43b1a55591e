/* partition.h: how C is cut into blocks, in which order they are computed, and how much GPU memory that takes.
 *
 * C is computed in blocks of bm x bn. Where A and B fit into the GPU's memory they stay there, in strips of bm rows and
 * bn columns over all of k, each sent and packed once. Strips are sent in the order that completes blocks of C as early
 * as possible: one of A and one of B in turn, and after each the blocks that it makes with all that are there. So
 * C is on its way back almost as long as A and B are on theirs.
 *
 *         B0 B1 B2          strips are sent in the order A0 B0 B1 A1 B2 A2,
 *     A0   1  2  5          blocks are computed as numbered
 *     A1   3  4  6
 *     A2   7  8  9
 *
 * Where A and B do not fit, blocks follow each other row by row, each a sum over chunks of bk terms, and chunks of A
 * and B are sent for each block anew. (The product is transposed beforehand where that makes A the smaller operand.)
 *
 * The partition follows from the shapes, the GPU's memory and options.max_workspace, not from what is free at the
 * moment: the same product gives the same bits. Only where not even that much is free are blocks made smaller.
 */
#ifndef TESSERA_OFFLOAD_PARTITION_H
#define TESSERA_OFFLOAD_PARTITION_H

#include "internal.h"

enum { MOST_STRIPS = 32 }; /* of A, and of B */
enum { STRIP_SETS = 2 };   /* the next item of a batch is sent while the last one is computed */
enum { MOST_OPERAND_SLOTS = STRIP_SETS * MOST_STRIPS };
enum { MOST_C_SLOTS = 32 };
enum { CHUNK_SLOTS = 3 };

typedef struct partition {
    bool keeps; /* A and B in strips that stay; else in chunks that do not */
    int64_t bm, bn, bk;
    int64_t a_strips, b_strips; /* rows and columns of blocks */
    int a_slots, b_slots, c_slots;
    size_t a_bytes, b_bytes, c_bytes; /* of a matrix in its slot; behind it, in slots of A and B, its packed form */
    size_t a_packed, b_packed;        /* of that; 0 where products do without */
    size_t workspace;                 /* of the kernels */
} partition;

/* The partition of a product into at most `limit` bytes on the context's GPU. */
tsr_status partition_choose(partition *partition, tsr_context *context, const tsr_problem *problem, size_t limit);
size_t partition_bytes(const partition *partition);

/* An m x n x k block of the product with matrices as they lie in their slots, which the caller fills in. */
tsr_problem partition_block(const tsr_problem *problem, int64_t m, int64_t n, int64_t k);

/* Goes through the blocks of C in order. */
typedef struct block_walk {
    int64_t a_strips, b_strips; /* those that have been sent, the one being multiplied among them */
    bool down;    /* the last one sent is of B: it is multiplied by all of A's; else the other way round */
    int64_t i, j; /* the block */
} block_walk;

/* block_walk_begin stands in front of the first block. block_walk_next goes to the next one; false after the last. */
block_walk block_walk_begin(const partition *partition);
bool block_walk_next(block_walk *walk, const partition *partition);

#endif
