/* amx_pack.c: operands into the panels of amx.h, for any strides.
 *
 * A step of 16 lanes makes one tile of each component. Where memory runs along the tile's rows (along k in A, across
 * lanes in B), floats are split as they are read. Where it runs the other way, they are transposed first, sixteen by
 * sixteen. Anything else, edges too, is gathered one by one.
 */
#include "cpu/amx.h"

#include <math.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "cpu/kernel.h"

typedef float floats __attribute__((vector_size(64)));
typedef float floats_anywhere __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t bits __attribute__((vector_size(64), may_alias));

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Magnitudes of floats are ordered as their bits are. */
ALWAYS_INLINE void raise(bits *to, const bits *by) {
#ifdef __AVX512F__
    *to = (bits)_mm512_max_epu32((__m512i)*to, (__m512i)*by);
#else
    for (int i = 0; i < 16; i++) (*to)[i] = (*to)[i] > (*by)[i] ? (*to)[i] : (*by)[i];
#endif
}

ALWAYS_INLINE void lower(bits *to, const bits *by) {
#ifdef __AVX512F__
    *to = (bits)_mm512_min_epu32((__m512i)*to, (__m512i)*by);
#else
    for (int i = 0; i < 16; i++) (*to)[i] = (*to)[i] < (*by)[i] ? (*to)[i] : (*by)[i];
#endif
}

/* Of a panel while it is packed: the bits of the largest magnitude, and the least of all magnitudes' bits minus one.
 * Unsigned, so that zeros wrap around and count as the largest there. */
struct range {
    bits largest, least_less_one;
};

static void put_marks(struct amx_marks *marks, const struct range *range) {
    uint32_t largest = 0, least = UINT32_MAX;
    for (int i = 0; i < 16; i++) {
        if (range->largest[i] > largest) largest = range->largest[i];
        if (range->least_less_one[i] < least) least = range->least_less_one[i];
    }
    least++;
    memset(marks, 0, sizeof *marks);
    memcpy(&marks->largest, &largest, sizeof largest);
    memcpy(&marks->least, &least, sizeof least);
    if (!least) marks->least = INFINITY;
}

/* One tile of each component. Row i of it is made of 16 floats at first + i*stride and as many at second + i*stride.
 * Components are rounded by adding half of what is cut off, ties away from zero. */
ALWAYS_INLINE void split(char *to, int64_t component_bytes, int components, const float *first, const float *second,
                         int64_t stride, struct range *range) {
    for (int i = 0; i < 16; i++, to += 64) {
        floats rest[2] = {*(const floats_anywhere *)(first + i * stride),
                          *(const floats_anywhere *)(second + i * stride)};
        CPU_UNROLL
        for (int half = 0; half < 2; half++) {
            bits magnitude = (bits)rest[half] & 0x7fffffffu;
            raise(&range->largest, &magnitude);
            magnitude -= 1;
            lower(&range->least_less_one, &magnitude);
        }
        CPU_UNROLL
        for (int component = 0; component < components; component++) {
            bits rounded[2];
            CPU_UNROLL
            for (int half = 0; half < 2; half++) {
                rounded[half] = ((bits)rest[half] + (component < 2 ? 0x8000u : 0)) & 0xffff0000u;
                rest[half] -= (floats)rounded[half];
            }
            *(bits *)(to + component * component_bytes) = rounded[0] >> 16 | rounded[1];
        }
    }
}

void amx_transpose(float *to, const float *from, int64_t stride) {
    floats x[16], y[16];
    CPU_UNROLL
    for (int i = 0; i < 16; i++) x[i] = *(const floats_anywhere *)(from + i * stride);
    /* First within quarters of four by four ... */
    CPU_UNROLL
    for (int i = 0; i < 16; i += 2) {
        y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
    CPU_UNROLL
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            const floats even = y[i + j], odd = y[i + j + 2];
            x[i + 2 * j] = __builtin_shufflevector(even, odd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
            x[i + 2 * j + 1] = __builtin_shufflevector(even, odd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15,
                                                       30, 31);
        }
    /* ... then the quarters: x[4*g + c] has columns c, c+4, c+8 and c+12 of the rows 4*g to 4*g+3. */
    CPU_UNROLL
    for (int c = 0; c < 4; c++) {
        floats half[2][2]; /* columns c and c+8, or c+4 and c+12; of the upper eight rows, or the lower */
        for (int rows = 0; rows < 2; rows++) {
            const floats upper = x[c + 8 * rows], lower_rows = x[c + 8 * rows + 4];
            half[0][rows] = __builtin_shufflevector(upper, lower_rows, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25,
                                                    26, 27);
            half[1][rows] = __builtin_shufflevector(upper, lower_rows, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28,
                                                    29, 30, 31);
        }
        for (int odd = 0; odd < 2; odd++) {
            float *column = to + 16 * (c + 4 * odd);
            *(floats_anywhere *)column = __builtin_shufflevector(half[odd][0], half[odd][1], 0, 1, 2, 3, 4, 5, 6, 7, 16,
                                                                 17, 18, 19, 20, 21, 22, 23);
            *(floats_anywhere *)(column + 128) = __builtin_shufflevector(half[odd][0], half[odd][1], 8, 9, 10, 11, 12,
                                                                         13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
        }
    }
}

/* A block of sixteen rows of sixteen floats; rows from `rows` on, and elements from `columns` on, are zero. */
static void gather(float *to, const float *from, int64_t rows, int64_t columns, int64_t row_stride, int64_t stride) {
    memset(to, 0, 256 * sizeof *to);
    for (int64_t i = 0; i < rows && i < 16; i++)
        for (int64_t j = 0; j < columns && j < 16; j++) to[16 * i + j] = from[i * row_stride + j * stride];
}

/* Prefetches the next step where its terms are rows of the matrix, too far apart for the processor to predict. */
ALWAYS_INLINE void ask_for_rows(const float *next, int64_t term_stride) {
    for (int i = 0; i < AMX_STEP; i++) __builtin_prefetch(next + i * term_stride);
}

/* A tile of each component from at most 16 lanes and a step. */
ALWAYS_INLINE void pack_tile(char *to, int64_t component_bytes, int components, const float *source, int64_t lanes,
                             int64_t terms, int64_t lane_stride, int64_t term_stride, const bool left,
                             struct range *range) {
    const int64_t row_stride = left ? lane_stride : term_stride, stride = left ? term_stride : lane_stride;
    const bool whole = lanes >= 16 && terms >= AMX_STEP;
    if (whole && lane_stride == 1) ask_for_rows(source + AMX_STEP * term_stride, term_stride);
    if (whole && stride == 1) {
        split(to, component_bytes, components, source, source + 16 * term_stride, row_stride, range);
        return;
    }
    _Alignas(64) float block[2][256];
    for (int half = 0; half < 2; half++, source += 16 * term_stride, terms -= 16)
        if (whole && row_stride == 1)
            amx_transpose(block[half], source, stride);
        else if (terms <= 0)
            memset(block[half], 0, sizeof block[half]);
        else if (left)
            gather(block[half], source, lanes, terms, row_stride, stride);
        else
            gather(block[half], source, terms, lanes, row_stride, stride);
    split(to, component_bytes, components, block[0], block[1], 16, range);
}

/* Panels that are filled side by side where lanes are next to each other in memory: longer reads. */
enum { PANELS_AT_ONCE = 4 };

ALWAYS_INLINE void pack_panels(float *panels, const float *source, int64_t lanes, int64_t terms, int64_t lane_stride,
                               int64_t term_stride, const bool left, const int components) {
    const int64_t panel_floats = amx_panel_floats(terms, components),
                  component_bytes = amx_steps(terms) * AMX_STEP_BYTES;
    struct range ranges[PANELS_AT_ONCE];
    for (int i = 0; i < PANELS_AT_ONCE; i++) ranges[i] = (struct range){(bits){0}, (bits){0} - 1};
    for (int64_t p = 0; p < terms; p += AMX_STEP)
        for (int64_t lane = 0; lane < (lanes + AMX_LANES - 1) / AMX_LANES * AMX_LANES; lane += 16) {
            char *to = (char *)(panels + lane / AMX_LANES * panel_floats) + sizeof(struct amx_marks) +
                       p / AMX_STEP * AMX_STEP_BYTES + lane % AMX_LANES / 16 * 1024;
            const float *from = lane < lanes ? source + lane * lane_stride + p * term_stride : source;
            pack_tile(to, component_bytes, components, from, lanes - lane, terms - p, lane_stride, term_stride, left,
                      &ranges[lane / AMX_LANES]);
        }
    for (int64_t lane = 0; lane < lanes; lane += AMX_LANES, panels += panel_floats)
        put_marks((struct amx_marks *)panels, &ranges[lane / AMX_LANES]);
}

void amx_pack_panels(float *panels, const float *source, int64_t lanes, int64_t terms, int64_t lane_stride,
                     int64_t term_stride, bool left, int components) {
    const int64_t at_once = (lane_stride == 1 ? PANELS_AT_ONCE : 1) * AMX_LANES;
    const int64_t panel_floats = amx_panel_floats(terms, components);
    for (int64_t first = 0; first < lanes; first += at_once, panels += at_once / AMX_LANES * panel_floats) {
        const int64_t count = lanes - first < at_once ? lanes - first : at_once;
        const float *from = source + first * lane_stride;
        if (left && components == 3)
            pack_panels(panels, from, count, terms, lane_stride, term_stride, true, 3);
        else if (left)
            pack_panels(panels, from, count, terms, lane_stride, term_stride, true, 2);
        else if (components == 3)
            pack_panels(panels, from, count, terms, lane_stride, term_stride, false, 3);
        else
            pack_panels(panels, from, count, terms, lane_stride, term_stride, false, 2);
    }
}

void amx_pack_packed(float *panel, const tsr_packed *packed, int64_t lane, int64_t lanes, int64_t first, int64_t terms,
                     int components) {
    const int64_t component_bytes = amx_steps(terms) * AMX_STEP_BYTES;
    const bool left = packed->side == TSR_LEFT;
    struct range range = {(bits){0}, (bits){0} - 1};
    for (int64_t p = 0; p < terms; p += AMX_STEP)
        for (int64_t half = 0; half < AMX_LANES; half += 16) {
            _Alignas(64) float copy[AMX_STEP * 16];
            const int64_t count = lanes - half < 16 ? lanes - half : 16;
            const int64_t in_step = terms - p < AMX_STEP ? terms - p : AMX_STEP;
            if (count > 0) cpu_packed_lanes(copy, packed, lane + half, count, first + p, in_step, 16);
            char *to = (char *)panel + sizeof(struct amx_marks) + p / AMX_STEP * AMX_STEP_BYTES + half / 16 * 1024;
            pack_tile(to, component_bytes, components, copy, count, in_step, 1, 16, left, &range);
        }
    put_marks((struct amx_marks *)panel, &range);
}
