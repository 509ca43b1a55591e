/* cuda_fp16.h: the half precision of CUDA that pack.cu uses, for the emulator. */
#ifndef EMULATOR_CUDA_FP16_H
#define EMULATOR_CUDA_FP16_H

#include "../half.h"
#include "emulator.h"

struct alignas(4) __half2 {
    uint16_t x, y;
};

static __half2 __floats2half2_rn(float x, float y) { return {half_of(x), half_of(y)}; }
static float2 __half22float2(__half2 h) { return {float_of(h.x), float_of(h.y)}; }

#endif
