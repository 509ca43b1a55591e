/* chunks.h: products whose sums cannot be added up in C. */
#ifndef TESSERA_CPU_CHUNKS_H
#define TESSERA_CPU_CHUNKS_H

#include "cpu/plan.h"

/* Whether alpha has to wait for all of k (cpu_scales_last) while the addend lies in C, where the sums would be added
 * up. */
bool cpu_needs_chunks(const cpu_plan *plan, const tsr_problem *p);

/* Computes such a product, oriented as the plan says, in the plan's workspace and a little of the stack. */
void cpu_multiply_in_chunks(const cpu_plan *plan, const tsr_problem *p, float *workspace);

#endif
