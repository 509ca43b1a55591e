/* ieee_scale.cu: C = beta*S, the product without terms. beta = 0 writes zeros and does not read S.
 *
 * One thread per element, in a loop over the grid; neighbouring threads on neighbouring columns. Limits: 128 threads,
 * no shared memory; grid.z is the batch.
 */
#include "cuda/kernels/args.h"

extern "C" __global__ void __launch_bounds__(128) ieee_scale(const __grid_constant__ ieee_args args) {
    const int64_t elements = (int64_t)args.m * args.n, step = (int64_t)gridDim.x * blockDim.x;
    float *c = args.c.data + blockIdx.z * args.c.batch_stride;
    const float *addend = args.addend.data + blockIdx.z * args.addend.batch_stride;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += step) {
        const int64_t row = i / args.n, col = i % args.n;
        c[row * args.c.row_stride + col * args.c.col_stride] =
            args.beta == 0.0f ? 0.0f : args.beta * addend[row * args.addend.row_stride + col * args.addend.col_stride];
    }
}
