/* stream.h: products of few terms whose C is large, as small.c sees them. */
#ifndef TESSERA_CPU_STREAM_H
#define TESSERA_CPU_STREAM_H

#include "cpu/kernel.h"

/* Whether a product, a tile of any m and n with B's elements b_col apart along a row, is one of those. */
bool cpu_is_streamed(const struct cpu_kernel *kernel, const struct cpu_tile *product, int64_t b_col);

void cpu_multiply_streamed(const struct cpu_kernel *kernel, const struct cpu_tile *product, int64_t b_col);

#endif
