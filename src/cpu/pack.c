/* pack.c: operands into panels, for any strides. The layout is in pack.h.
 *
 * Two cases carry the load: lanes next to each other in memory (copied a row at a time) and depth next to each other
 * (transposed four by four). Anything else is gathered one by one.
 */
#include "pack.h"

#include <string.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

/* Depth that is transposed at a time: whole cache lines of the source, read once although 32 lanes of a matrix with a
 * large power of two for a stride compete for the same few places of the cache. */
enum { STRIP = 64 };

static void gather(float *panel, const float *source, int lanes, int64_t depth, int64_t lane_stride,
                   int64_t depth_stride, int width) {
    for (int64_t p = 0; p < depth; p++)
        for (int lane = 0; lane < lanes; lane++)
            panel[p * width + lane] = source[lane * lane_stride + p * depth_stride];
}

static void copy_rows(float *panel, const float *source, int lanes, int64_t depth, int64_t depth_stride, int width) {
    for (int64_t p = 0; p < depth; p++) memcpy(panel + p * width, source + p * depth_stride, (size_t)lanes * sizeof *panel);
}

#ifdef __SSE__
/* Four lanes of four steps of depth. */
static void transpose_4x4(float *panel, const float *source, int64_t lane_stride, int width) {
    __m128 x0 = _mm_loadu_ps(source), x1 = _mm_loadu_ps(source + lane_stride);
    __m128 x2 = _mm_loadu_ps(source + 2 * lane_stride), x3 = _mm_loadu_ps(source + 3 * lane_stride);
    _MM_TRANSPOSE4_PS(x0, x1, x2, x3);
    _mm_storeu_ps(panel, x0);
    _mm_storeu_ps(panel + width, x1);
    _mm_storeu_ps(panel + 2 * width, x2);
    _mm_storeu_ps(panel + 3 * width, x3);
}

static void transpose(float *panel, const float *source, int lanes, int64_t depth, int64_t lane_stride, int width) {
    for (int64_t begin = 0; begin < depth; begin += STRIP) {
        const int64_t end = begin + STRIP < depth ? begin + STRIP : depth;
        int lane = 0;
        for (; lane + 4 <= lanes; lane += 4) {
            int64_t p = begin;
            for (; p + 4 <= end; p += 4)
                transpose_4x4(panel + p * width + lane, source + lane * lane_stride + p, lane_stride, width);
            gather(panel + p * width + lane, source + lane * lane_stride + p, 4, end - p, lane_stride, 1, width);
        }
        gather(panel + begin * width + lane, source + lane * lane_stride + begin, lanes - lane, end - begin, lane_stride,
               1, width);
    }
}
#else
static void transpose(float *panel, const float *source, int lanes, int64_t depth, int64_t lane_stride, int width) {
    for (int64_t begin = 0; begin < depth; begin += STRIP)
        gather(panel + begin * width, source + begin, lanes, begin + STRIP < depth ? STRIP : depth - begin, lane_stride, 1,
               width);
}
#endif

static void zero_lanes(float *panel, int first, int64_t depth, int width) {
    for (int64_t p = 0; p < depth; p++)
        memset(panel + p * width + first, 0, (size_t)(width - first) * sizeof *panel);
}

void cpu_pack_panels(float *panels, const float *source, int64_t lanes, int64_t depth, int64_t lane_stride,
                     int64_t depth_stride, int width) {
    for (int64_t first = 0; first < lanes; first += width) {
        const int used = lanes - first < width ? (int)(lanes - first) : width;
        float *panel = panels + first * depth;
        const float *from = source + first * lane_stride;
        if (lane_stride == 1)
            copy_rows(panel, from, used, depth, depth_stride, width);
        else if (depth_stride == 1)
            transpose(panel, from, used, depth, lane_stride, width);
        else
            gather(panel, from, used, depth, lane_stride, depth_stride, width);
        if (used < width) zero_lanes(panel, used, depth, width);
    }
}
