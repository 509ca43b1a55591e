/* check.h: what a call's arguments must satisfy. Messages name the argument. */
#ifndef TESSERA_CHECK_H
#define TESSERA_CHECK_H

#include "internal.h"

/* The matrices of a product, as their spans are numbered. */
enum { SPAN_A, SPAN_B, SPAN_C, SPAN_ADDEND, SPANS };

/* Everything about shapes, strides and packed forms of A, B and C. Fills the problem, with alpha = 1, beta = 0 and no
 * addend, and the spans of the three. */
tsr_status check_shapes(tsr_problem *problem, matrix_span spans[SPAN_ADDEND], const tsr_context *context, int64_t batch,
                        const tsr_operand *a, const tsr_operand *b, const tsr_result *c);

/* Sets the factors and the addend of a product whose shapes are checked. With alpha = 0 it reads neither A nor B, with
 * beta = 0 no addend. */
tsr_status check_sum(tsr_problem *problem, matrix_span spans[SPANS], float alpha, float beta,
                     const tsr_operand *addend);

/* The pointers of a product whose shapes and sum are checked: not NULL where they are read, aligned, and C's range
 * apart from the others'. `workspace`: the bytes that launch->workspace must have. */
tsr_status check_pointers(const tsr_problem *problem, const matrix_span spans[SPANS], const tsr_launch *launch,
                          size_t workspace);

/* `what` is the thing that needs those bytes: "product" or "operand". */
tsr_status check_workspace(const tsr_launch *launch, const char *what, size_t needed);

#endif
