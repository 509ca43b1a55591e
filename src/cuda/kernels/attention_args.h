/* attention_args.h: what the host passes to the attention kernels, by value, as their one parameter. Plain C, for nvcc
 * and the C compiler. */
#ifndef TESSERA_CUDA_ATTENTION_ARGS_H
#define TESSERA_CUDA_ATTENTION_ARGS_H

#include <stdint.h>

/* Packed operands of attention. The rows of a head (queries or keys) are cut into tiles of ATTENTION_ROWS. A tile is
 * scaled by one power of two, so that its largest element lands in [2^14, 2^15), and split into fp16 components
 * x*2^e = hi + lo + a remainder below lo's last bit. It lies in memory as
 *
 *   [hi, lo][block of 64 columns][ATTENTION_ROWS rows of 128 bytes]
 *
 * with the 128-byte swizzle of Hopper's matrix instruction (16-byte chunk j of row r at chunk j ^ (r % 8)). Missing
 * rows and columns are zero. Of a head's last tile, if it has at most ATTENTION_TAIL rows and one block of columns, the
 * kernels use no more rows than that, and the others may hold anything. downs[tile] is 2^-e; NaN where the split cannot
 * carry the tile: something in it is not finite, its largest element is 2^48 or more or below 2^-48, or the largest of
 * a row is below 2^-12 of that and not 0. docs/internals/numerics.md has the bound that follows. */
enum { ATTENTION_ROWS = 128, ATTENTION_COLS = 64, ATTENTION_TAIL = 80, ATTENTION_BLOCK_BYTES = ATTENTION_ROWS * 128 };

/* Queries, or keys, that a thread block of the ieee kernels has at a time, and that are marked to be recomputed. */
enum { ATTENTION_IEEE_ROWS = 32, ATTENTION_FLAG_ROWS = 64 };

/* A matrix for each head of each item of a batch. Strides count floats. */
typedef struct heads_in {
    const float *data;
    int64_t batch_stride, head_stride, row_stride, col_stride;
} heads_in;

typedef struct heads_out {
    float *data;
    int64_t batch_stride, head_stride, row_stride, col_stride;
} heads_out;

typedef struct packed_heads {
    uint8_t *tiles; /* [batch][heads][tiles of a head] */
    float *downs;   /* the same */
} packed_heads;

/* O = softmax(scale Q K^T + mask) V with dropout, and the gradients of it.
 *
 * Forward writes o and, unless its data is NULL, lse. Backward reads those and grad_o. It works on three numbers for
 * each query, [batch][heads][tiles_q*ATTENTION_ROWS]: padded_lse is lse, times log2(e) unless `general`, and +Inf in
 * missing rows; delta is the sum of grad_o*o in the row; shift is 0, or where lse is so large that the logarithm of the
 * sum is lost in it, what the logarithm to base 2 of the row's weights lacks.
 *
 * recompute_q[batch][heads][2*tiles_q] and recompute_k[batch][kv_heads][2*tiles_k], int32, of ATTENTION_FLAG_ROWS each:
 * the split kernels write 1 where queries (O or dQ) or keys (dK and dV) read an operand that the split cannot carry,
 * else 0. The ieee kernels compute only those rows where the pointer is not NULL. */
typedef struct attention_args {
    int32_t batch, heads, kv_heads, queries, keys, dim;
    int32_t tiles_q, tiles_k; /* of ATTENTION_ROWS, in each head */
    heads_in q, k, v, mask;   /* mask.data may be NULL */
    heads_out o, lse;
    heads_in grad_o;
    heads_out grad_q, grad_k, grad_v;                         /* data NULL: not wanted */
    packed_heads packed_q, packed_k, packed_v, packed_grad_o; /* tiles NULL: the kernel splits them itself */
    float *padded_lse, *delta, *shift;
    int32_t *recompute_q, *recompute_k;
    float scale;
    int32_t causal;
    int32_t general;     /* a mask, dropout or an unusual scale: the general kernels */
    uint32_t drop_below; /* dropout_limit; 0: no dropout */
    uint64_t seed, offset;
} attention_args;

#endif
