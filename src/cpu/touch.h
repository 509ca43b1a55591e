/* touch.h: reading matrices in the order of memory before a kernel reads them in another.
 *
 * Kernels read several rows of an operand side by side, and the ends of rows under masks. If a small operand comes from
 * memory, it is at its end before a processor's prefetchers have seen a pattern in that, and some (Zen 5's) do not look
 * at masked loads at all. A load of one float of each line, one line after the other, costs next to nothing, and the
 * prefetchers follow it: products that come from memory take down to a quarter of the time. Loads and not prefetches,
 * because prefetches that miss the TLB may be dropped.
 */
#ifndef TESSERA_CPU_TOUCH_H
#define TESSERA_CPU_TOUCH_H

#include <stdint.h>

static inline void touch_line(const float *from) { (void)*(const volatile float *)from; }

/* Rows of `length` floats. What lies between them may be another's. */
static inline void touch_rows(const float *from, int64_t rows, int64_t length, int64_t apart) {
    enum { LINE = 16 };
    if (apart == length) length *= rows, rows = 1;
    for (; rows > 0; rows--, from += apart)
        for (int64_t i = 0; i < length; i += LINE) touch_line(from + i);
}

/* A matrix whose rows or columns are contiguous; others are left alone. */
static inline void touch_matrix(const float *from, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
    if (col_stride == 1)
        touch_rows(from, rows, cols, row_stride);
    else if (row_stride == 1)
        touch_rows(from, cols, rows, col_stride);
}

#endif
