/* no_memory.h: products without any memory beyond their operands. */
#ifndef TESSERA_BLAS_NO_MEMORY_H
#define TESSERA_BLAS_NO_MEMORY_H

#include <stdbool.h>

#include "tessera.h"

/* C = alpha*A*B + beta*C by plain loops on a few kilobytes of stack: any shape, strides and packed forms, and the
 * contract kept. C must not share an element with A or B. */
void blas_multiply_without_memory(int64_t batch, float alpha, const tsr_operand *a, const tsr_operand *b, float beta,
                                  const tsr_result *c);

/* Whether an element of C lies on one of the operand, found run by run. Every run of both is contiguous. */
bool blas_shares_memory(const tsr_operand *operand, const tsr_result *c, int64_t batch);

#endif
