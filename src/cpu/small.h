/* small.h: products so small that nothing is packed for them, as batch.c sees them. */
#ifndef TESSERA_CPU_SMALL_H
#define TESSERA_CPU_SMALL_H

#include "cpu/kernel.h"
#include "internal.h"

/* Whether each product of a batch is small, and its matrices can be read in place. */
bool cpu_is_direct(const struct cpu_kernel *kernel, const tsr_problem *p);

/* Computes the items from `first` to before `end`. */
void cpu_multiply_directly(const struct cpu_kernel *kernel, const tsr_problem *p, int64_t first, int64_t end);

/* Computes the first item, with several threads. */
void cpu_multiply_shared(const struct cpu_kernel *kernel, const tsr_problem *p, int threads);

#endif
