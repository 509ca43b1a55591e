/* pack.h: copying a block of an operand into the panels that microkernels read. */
#ifndef TESSERA_CPU_PACK_H
#define TESSERA_CPU_PACK_H

#include <stdint.h>

/* Writes `lanes` x `terms` elements of a matrix as panels of `width` lanes. Lanes are rows of A or columns of B; terms
 * run along k. Element (lane, p) is source[lane*lane_stride + p*term_stride]; strides may be zero or negative. In
 *
 *     panels[lane/width * width*terms  +  p*width  +  lane%width]
 *
 * it lies where a kernel walks through it from the first float to the last. The missing lanes of the last panel become
 * zeros; terms are never padded, so that no 0*Inf arises.
 */
void cpu_pack_panels(float *panels, const float *source, int64_t lanes, int64_t terms, int64_t lane_stride,
                     int64_t term_stride, int width);

#endif
