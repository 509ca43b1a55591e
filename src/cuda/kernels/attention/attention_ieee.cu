/* attention_ieee.cu: attention and its gradients in IEEE float32 (attention_ieee.cuh), on every GPU, and for what the
 * split cannot carry. */
#include "cuda/kernels/attention/attention_ieee.cuh"

#define KERNEL(name, id, function, blocks, sums)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ attention_args g) { \
        __shared__ ieee_shared<32, sums> s;                                                                \
        function<blocks>(g, s);                                                                            \
    }                                                                                                      \
    ASSERT_LISTED_AS(id, ROWS, COLS, THREADS, 0)
KERNEL(attention_ieee_forward_128, ATTENTION_IEEE_FORWARD_128, forward_kernel, 2, 1);
KERNEL(attention_ieee_forward_256, ATTENTION_IEEE_FORWARD_256, forward_kernel, 4, 1);
KERNEL(attention_ieee_backward_128, ATTENTION_IEEE_BACKWARD_128, backward_kernel, 2, 2);
KERNEL(attention_ieee_backward_256, ATTENTION_IEEE_BACKWARD_256, backward_kernel, 4, 2);
