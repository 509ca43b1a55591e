/* attention_small.cu: attention and its gradients in IEEE float32 (attention_ieee.cuh) for small problems on Hopper:
 * one launch, and pieces so large that few have to be waited for. */
#include "cuda/kernels/attention/attention_ieee.cuh"

#define KERNEL(name, id, function, blocks, sums, resident)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, resident) name(const __grid_constant__ attention_args g) { \
        function<blocks>(g, *(ieee_shared<64, sums> *)dynamic_shared<16>());                                         \
    }                                                                                                                \
    ASSERT_LISTED_AS(id, ROWS, COLS, THREADS, sizeof(ieee_shared<64, sums>))
KERNEL(attention_small_forward_128, ATTENTION_SMALL_FORWARD_128, forward_kernel, 2, 1, 3);
KERNEL(attention_small_forward_256, ATTENTION_SMALL_FORWARD_256, forward_kernel, 4, 1, 2);
KERNEL(attention_small_backward_128, ATTENTION_SMALL_BACKWARD_128, backward_kernel, 2, 2, 2);
KERNEL(attention_small_backward_256, ATTENTION_SMALL_BACKWARD_256, backward_kernel, 4, 2, 2);
