/* cost.h: the cost model of the CPU engine. The estimate that a plan exports and the choice of AMX both come from here,
 * and all of their constants from one table in cost.c. */
#ifndef TESSERA_CPU_COST_H
#define TESSERA_CPU_COST_H

#include "cpu/cpu.h"

/* Multiply-adds of an ieee kernel that take as long as the overhead of a call on AMX: smaller products are never
 * faster there. */
#define COST_AMX_CALL 2e5

/* The speed of a product on AMX, with this many bf16 components for each float, relative to the ieee kernels. */
double cost_amx_gain(int64_t m, int64_t n, int64_t k, int components);

/* Seconds that a plan takes for a product (oriented as it is computed), on idle cores, with memory warm. */
double cost_seconds(const cpu_plan *plan, const tsr_problem *p);

#endif
