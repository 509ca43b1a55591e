/* half.h: fp16 in plain C, for what stands in for a GPU (fake_cuda, emulator). */
#ifndef TESSERA_TESTS_HALF_H
#define TESSERA_TESTS_HALF_H

#include <math.h>
#include <stdint.h>

/* Rounds to nearest even, subnormals kept, overflow to Inf. */
static uint16_t half_of(float x) {
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const float magnitude = fabsf(x);
    if (isnan(x)) return 0x7e00;
    if (magnitude >= 65520) return sign | 0x7c00;
    int e = -14;
    if (magnitude >= 0x1p-14f) e = ilogbf(magnitude);
    const int steps = (int)rintf(ldexpf(magnitude, 10 - e)); /* of 2^(e-10); 1024 and more for normal numbers */
    return (uint16_t)(sign + ((e + 14) << 10) + steps);
}

static float float_of(uint16_t h) {
    const int e = h >> 10 & 31, fraction = h & 1023;
    const float magnitude = e == 31 ? (fraction ? NAN : INFINITY)
                            : e     ? ldexpf((float)(1024 + fraction), e - 25)
                                    : ldexpf((float)fraction, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

#endif
