/* plan.h: problem -> plan, for api.c and offload/. */
#ifndef TESSERA_PLAN_H
#define TESSERA_PLAN_H

#include "cpu/cpu.h"
#include "cuda/cuda.h"

struct tsr_plan {
    tsr_context *context;
    tsr_problem problem;  /* shapes and strides; an execution brings the pointers, alpha and beta */
    matrix_span spans[3]; /* tsr_plan_create: of A, B and C, as check.h numbers them */
    bool small;           /* tsr_plan_create: an execution tries cpu_execute_small first */
    union {
        cpu_plan cpu;
        cuda_plan cuda;
    };
};

tsr_status plan_make(tsr_plan *plan); /* from context and problem */
size_t plan_workspace(const tsr_plan *plan);
double plan_seconds(const tsr_plan *plan);
bool plan_is_split(const tsr_plan *plan);
void plan_print(const tsr_plan *plan, tsr_text *text);
tsr_status plan_execute(const tsr_plan *plan, const tsr_problem *problem, const tsr_launch *launch);

#endif
