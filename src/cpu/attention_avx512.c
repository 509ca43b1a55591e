/* attention_avx512.c: the arithmetic of attention's blocks, compiled for AVX-512. */
#include "cpu/attention_softmax.h"

const struct cpu_softmax cpu_softmax_avx512 = {score, weigh, reweigh, differentiate};
