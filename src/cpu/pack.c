/* pack.c: operands into panels, for any strides. The layout is in pack.h.
 *
 * Two cases carry the load: lanes next to each other in memory (copied a row at a time) and terms next to each other
 * (transposed four by four). Anything else is gathered one by one.
 */
#include "cpu/pack.h"

#include <string.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

/* Lanes that are transposed side by side: as many streams through memory as processors follow, and prefetch, well. */
enum { LANES_AT_ONCE = 12 };

/* Terms that are transposed at a time: one cache line of each lane, read whole before the next, because lanes a large
 * power of two apart compete for the same few places of the cache. */
enum { TERMS_AT_ONCE = 16 };

static void gather(float *panel, const float *source, int lanes, int64_t terms, int64_t lane_stride,
                   int64_t term_stride, int width) {
    for (int64_t p = 0; p < terms; p++)
        for (int lane = 0; lane < lanes; lane++) panel[p * width + lane] = source[lane * lane_stride + p * term_stride];
}

/* How many rows ahead are prefetched: rows of a matrix are too far apart for the processor to predict the next. */
enum { ROWS_AHEAD = 16 };

/* Lanes that are copied side by side from rows in memory, into several panels: longer reads, yet few enough writes to
 * one place of the cache at a time, for panels tend to lie powers of two apart. */
enum { LANES_IN_A_ROW = 48 };

static inline void copy_lanes(float *to, const float *from, int lanes) {
    int lane = 0;
    for (; lane + 4 <= lanes; lane += 4) memcpy(to + lane, from + lane, 4 * sizeof *to);
    for (; lane + 2 <= lanes; lane += 2) memcpy(to + lane, from + lane, 2 * sizeof *to);
    for (; lane < lanes; lane++) to[lane] = from[lane];
}

static void copy_rows(float *panels, const float *source, int64_t lanes, int64_t terms, int64_t term_stride,
                      int width) {
    for (int64_t p = 0; p < terms; p++) {
        const float *row = source + p * term_stride;
        if (p + ROWS_AHEAD < terms)
            for (int64_t lane = 0; lane < lanes; lane += 16) __builtin_prefetch(row + ROWS_AHEAD * term_stride + lane);
        for (int64_t first = 0; first < lanes; first += width)
            copy_lanes(panels + first * terms + p * width, row + first,
                       lanes - first < width ? (int)(lanes - first) : width);
    }
}

#ifdef __SSE__
/* Four lanes of four terms. */
static void transpose_4x4(float *panel, const float *source, int64_t lane_stride, int width) {
    __m128 x0 = _mm_loadu_ps(source), x1 = _mm_loadu_ps(source + lane_stride);
    __m128 x2 = _mm_loadu_ps(source + 2 * lane_stride), x3 = _mm_loadu_ps(source + 3 * lane_stride);
    _MM_TRANSPOSE4_PS(x0, x1, x2, x3);
    _mm_storeu_ps(panel, x0);
    _mm_storeu_ps(panel + width, x1);
    _mm_storeu_ps(panel + 2 * width, x2);
    _mm_storeu_ps(panel + 3 * width, x3);
}

static void transpose_lanes(float *panel, const float *source, int lanes, int64_t terms, int64_t lane_stride,
                            int width) {
    for (int64_t begin = 0; begin < terms; begin += TERMS_AT_ONCE) {
        const int64_t end = begin + TERMS_AT_ONCE < terms ? begin + TERMS_AT_ONCE : terms;
        int lane = 0;
        for (; lane + 4 <= lanes; lane += 4) {
            int64_t p = begin;
            for (; p + 4 <= end; p += 4)
                transpose_4x4(panel + p * width + lane, source + lane * lane_stride + p, lane_stride, width);
            gather(panel + p * width + lane, source + lane * lane_stride + p, 4, end - p, lane_stride, 1, width);
        }
        gather(panel + begin * width + lane, source + lane * lane_stride + begin, lanes - lane, end - begin,
               lane_stride, 1, width);
    }
}
#else
static void transpose_lanes(float *panel, const float *source, int lanes, int64_t terms, int64_t lane_stride,
                            int width) {
    for (int64_t begin = 0; begin < terms; begin += TERMS_AT_ONCE)
        gather(panel + begin * width, source + begin, lanes,
               begin + TERMS_AT_ONCE < terms ? TERMS_AT_ONCE : terms - begin, lane_stride, 1, width);
}
#endif

static void transpose(float *panel, const float *source, int lanes, int64_t terms, int64_t lane_stride, int width) {
    for (int lane = 0; lane < lanes; lane += LANES_AT_ONCE)
        transpose_lanes(panel + lane, source + lane * lane_stride,
                        lanes - lane < LANES_AT_ONCE ? lanes - lane : LANES_AT_ONCE, terms, lane_stride, width);
}

static void zero_lanes(float *panel, int first, int64_t terms, int width) {
    for (int64_t p = 0; p < terms; p++) memset(panel + p * width + first, 0, (size_t)(width - first) * sizeof *panel);
}

void cpu_pack_panels(float *panels, const float *source, int64_t lanes, int64_t terms, int64_t lane_stride,
                     int64_t term_stride, int width) {
    const int64_t step = lane_stride == 1 && width < LANES_IN_A_ROW ? LANES_IN_A_ROW / width * width : width;
    for (int64_t first = 0; first < lanes; first += step) {
        const int64_t used = lanes - first < step ? lanes - first : step;
        float *panel = panels + first * terms;
        const float *from = source + first * lane_stride;
        if (lane_stride == 1)
            copy_rows(panel, from, used, terms, term_stride, width);
        else if (term_stride == 1)
            transpose(panel, from, (int)used, terms, lane_stride, width);
        else
            gather(panel, from, (int)used, terms, lane_stride, term_stride, width);
    }
    const int in_last = (int)(lanes % width);
    if (in_last) zero_lanes(panels + (lanes - in_last) * terms, in_last, terms, width);
}
