/* attention_avx2.c: the arithmetic of attention's blocks, compiled for AVX2 and FMA. */
#include "cpu/attention_softmax.h"

const struct cpu_softmax cpu_softmax_avx2 = {score, weigh, reweigh, differentiate};
