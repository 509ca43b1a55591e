/* attention_ieee.cpp: attention_ieee.cu, or attention_small.cu, as it is, compiled for the CPU, and a function that
 * runs its kernels. */
#ifdef SMALL
#include "cuda/kernels/attention/attention_small.cu"
static void (*const kernels[2][2])(attention_args) = {{attention_small_forward_128, attention_small_forward_256},
                                                      {attention_small_backward_128, attention_small_backward_256}};
#else
#include "cuda/kernels/attention/attention_ieee.cu"
static void (*const kernels[2][2])(attention_args) = {{attention_ieee_forward_128, attention_ieee_forward_256},
                                                      {attention_ieee_backward_128, attention_ieee_backward_256}};
#endif

static void (*launched)(attention_args);
static const attention_args *launched_with;

extern "C" void emulate(int backward, unsigned blocks, const attention_args *args, unsigned seed) {
    random_state = seed;
    launched = kernels[backward][args->dim > 128];
    launched_with = args;
    gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) run_block([] { launched(*launched_with); });
}
