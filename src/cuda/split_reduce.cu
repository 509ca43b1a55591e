/* split_reduce.cu: adds up the slices of k that a split kernel left in `partial`, and applies alpha and beta.
 *
 * C = alpha * (slice 0 + slice 1 + ...) + beta*S, always in this order, so that the same problem gives the same bits.
 * One thread per element of C, neighbouring threads on neighbouring columns; tiles the split kernels left alone are
 * left alone here too. Limits: 128 threads, no shared memory; grid.x covers the elements of one product, grid.y is the
 * batch.
 */
#include "args.h"
#include "split.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS) split_reduce(const __grid_constant__ split_args g) {
    wait_for_previous_kernel();
    const int batch = blockIdx.y;
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x, size = (int64_t)g.m * g.n;
    if (index >= size) return;
    const int row = (int)(index / g.n), col = (int)(index % g.n);
    if (least_sum(g, batch, row, col) < 0) return;
    const float *part = g.partial + batch * g.slices * size + index;
    float sum = 0;
    for (int slice = 0; slice < g.slices; slice++) sum += part[slice * size];
    float *to = g.c.data + batch * g.c.batch_stride + row * g.c.row_stride + col * g.c.col_stride;
    const float *from = g.source.data + batch * g.source.batch_stride + row * g.source.row_stride +
                        col * g.source.col_stride;
    *to = g.beta == 0 ? g.alpha * sum : fmaf(g.beta, *from, g.alpha * sum);
}
