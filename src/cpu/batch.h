/* batch.h: the products of a batch among a team's members. The call that starts it is cpu_execute, in cpu.h. */
#ifndef TESSERA_CPU_BATCH_H
#define TESSERA_CPU_BATCH_H

#include "cpu/plan.h"

/* Computes all products of a batch with the ieee kernels. The problem is oriented and its k is not 0; row0 and col0 say
 * where in the whole product it begins, for operands packed whole. */
void cpu_batch_execute(const cpu_plan *plan, const tsr_problem *p, float *workspace, int64_t row0, int64_t col0);

#endif
