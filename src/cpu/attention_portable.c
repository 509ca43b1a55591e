/* attention_portable.c: the arithmetic of attention's blocks, compiled for any processor of the target. */
#include "cpu/attention_softmax.h"

const struct cpu_softmax cpu_softmax_portable = {score, weigh, reweigh, differentiate};
