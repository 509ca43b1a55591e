/* problem.h: a validated product, and what every engine does with one: transpose it, take a part of it, find an
 * operand's packed panels, compare what matrices cover in memory. Nothing here is exported. */
#ifndef TESSERA_PROBLEM_H
#define TESSERA_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "tessera.h"

/* ---- Arithmetic of cutting matrices into blocks ------------------------------------------------------------------ */

static inline int64_t min64(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t max64(int64_t x, int64_t y) { return x > y ? x : y; }
static inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
static inline int64_t round_up(int64_t x, int64_t step) { return ceil_div(x, step) * step; }

/* Whether x is +0 or -0, by its bits: where the caller's thread takes subnormals for zero (denormals-are-zero, as
 * -ffast-math sets it), x == 0 is true for those, too. */
static inline bool is_zero(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits << 1 == 0;
}

/* A short product, in multiply-adds: over before a sleeping thread would wake. */
enum { SHORT_PRODUCT = 3000000 };

/* ---- The product ------------------------------------------------------------------------------------------------- */

/* C = alpha*A*B + beta*S. k = 0 stands for every product without terms (alpha = 0 too): C = beta*S, A and B unread.
 * The addend S is C itself where their data are the same; with beta = 0 it is all zero. */
typedef struct tsr_problem {
    int64_t m, n, k, batch;
    float alpha, beta;
    tsr_operand a, b; /* m x k, k x n */
    tsr_result c;     /* m x n */
    tsr_operand addend;
    /* Where each item's matrices are, or NULL: a batch stride apart. With these the addend is C. */
    const float *const *a_items, *const *b_items;
    float *const *c_items;
} tsr_problem;

tsr_operand operand_transpose(const tsr_operand *operand);

/* C^T = B^T A^T. */
tsr_problem problem_transpose(const tsr_problem *problem);

/* Of a product: m rows from m0 on, n columns from n0, k terms from k0, batch items from batch0. */
typedef struct problem_range {
    int64_t m0, n0, k0, batch0;
    int64_t m, n, k, batch;
} problem_range;

/* The range of the whole product. */
problem_range problem_whole(const tsr_problem *problem);

/* That part as a product of its own. With k0 > 0 it adds to C, which holds the terms before it and the addend. Packed
 * forms are those of the whole operands. */
tsr_problem problem_part(const tsr_problem *problem, const problem_range *range);

/* One product of a batch. */
tsr_problem problem_item(const tsr_problem *problem, int64_t item);

/* C as an operand: the addend of its own product. */
tsr_operand result_as_addend(const tsr_result *c);

/* The panels that an operand was packed into beforehand; NULL where there are none, or where they are those of the
 * first matrix of a batch alone. */
const void *operand_panels(const tsr_operand *operand, int64_t batch);

/* Packed by tsr_pack_at: the panels are all there is, and the matrix need not be there any more. */
bool operand_is_only_packed(const tsr_operand *operand);

/* How many different matrices an operand has in a batch. */
static inline int64_t operand_count(const tsr_operand *operand, int64_t batch) {
    return operand->batch_stride ? batch : 1;
}

/* ---- What a matrix covers in memory ------------------------------------------------------------------------------ */

/* Strides of a span: rows, columns, batch and, in attention, heads. */
enum { SPAN_STRIDES = 4 };

/* A batch of matrices as its strides, and the range of addresses it covers. */
typedef struct matrix_span {
    const char *name; /* the argument, for messages */
    const float *data;
    int64_t count[SPAN_STRIDES], stride[SPAN_STRIDES];
    int64_t lowest, highest; /* offsets from data, in floats */
} matrix_span;

/* Fails where a size is negative or an offset leaves the address space; the message names the argument. */
tsr_status span_make(matrix_span *span, const char *name, const tsr_operand *matrix, int64_t batch);

/* The same for a matrix of each head of each item; the sizes are known to be valid. */
tsr_status span_make_heads(matrix_span *span, const char *name, const tsr_heads *matrix, int64_t batch, int64_t heads,
                           int64_t rows, int64_t cols);

bool span_is_empty(const matrix_span *span);

/* Whether no two elements can share an address: sorted by size, each stride exceeds what the smaller ones cover. */
bool span_is_injective(const matrix_span *span);

/* Whether the two may share an address. Address ranges that are disjoint do not; nor do slices of one wider matrix,
 * which have the same largest strides and lie side by side within one step of the smallest of those. All others are
 * taken to overlap. */
bool span_may_overlap(const matrix_span *x, const matrix_span *y);

/* Whether the two are the same elements. Strides along which there is one element only do not count. */
bool span_is_same(const matrix_span *x, const matrix_span *y);

#endif
