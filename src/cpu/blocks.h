/* blocks.h: the arithmetic of cutting matrices into blocks. */
#ifndef TESSERA_CPU_BLOCKS_H
#define TESSERA_CPU_BLOCKS_H

#include "problem.h"


/* The size of each of the fewest equal blocks, no larger than `most`, that cover `whole` in multiples of `unit`. */
static inline int64_t even_block(int64_t whole, int64_t most, int64_t unit) {
    if (whole <= 0) return unit;
    return round_up(ceil_div(whole, ceil_div(whole, most)), unit);
}

#endif
