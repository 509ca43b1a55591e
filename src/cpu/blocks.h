/* blocks.h: the arithmetic of cutting matrices into blocks. */
#ifndef TESSERA_CPU_BLOCKS_H
#define TESSERA_CPU_BLOCKS_H

#include <stdint.h>

static inline int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t greatest(int64_t x, int64_t y) { return x > y ? x : y; }
static inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
static inline int64_t round_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }

/* The size of each of the fewest equal blocks, no larger than `most`, that cover `whole` in multiples of `unit`. */
static inline int64_t even_block(int64_t whole, int64_t most, int64_t unit) {
    if (whole <= 0) return unit;
    return round_up(ceil_div(whole, ceil_div(whole, most)), unit);
}

#endif
