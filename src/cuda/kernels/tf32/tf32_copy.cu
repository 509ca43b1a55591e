/* tf32_copy.cu: copies an operand of a TF32 kernel whose rows it cannot read in place, to rows along k.
 *
 * to[batch][row][k] = from[batch*batch_stride + row*row_stride + k*k_stride], rows `pitch` floats apart, zeros between
 * k and pitch.
 *
 * Tile map: a thread block has tiles of 64 rows x 64 terms, in the order of memory where that is contiguous. grid.y is
 * the batch.
 */
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/split/split.cuh"

constexpr int THREADS = 256, SIDE = 64;

extern "C" __global__ void __launch_bounds__(THREADS, 4) tf32_copy(const __grid_constant__ copy_args o) {
    __shared__ float tile[SIDE][SIDE + 1]; /* of k, of rows, if rows are neighbours; else of rows, of k */
    wait_for_previous_kernel();
    allow_next_kernel();
    const bool across = o.row_stride == 1;
    const int down = ceil_div(o.rows, SIDE), along = ceil_div(o.k, SIDE);
    const int row0 = (across ? blockIdx.x % down : blockIdx.x / along) * SIDE;
    const int k0 = (across ? blockIdx.x / down : blockIdx.x % along) * SIDE;
    const int64_t line_stride = across ? o.k_stride : o.row_stride, step = across ? o.row_stride : o.k_stride;
    const int lines = min(SIDE, across ? o.k - k0 : o.rows - row0),
              length = min(SIDE, across ? o.rows - row0 : o.k - k0);
    const float *from = o.from + blockIdx.y * o.batch_stride + row0 * o.row_stride + k0 * o.k_stride;
    const int i = threadIdx.x % 16 * 4, first = threadIdx.x / 16;
    const bool vectors = step == 1 && line_stride % 4 == 0 && (uintptr_t)from % 16 == 0 && length == SIDE;
    float x[SIDE / 16][4];
#pragma unroll
    for (int j = 0; j < SIDE / 16; j++) {
        const int line = first + j * 16;
        const float *at = from + line * line_stride + i * step;
        if (vectors && line < lines)
            *(float4 *)x[j] = *(const float4 *)at;
        else
#pragma unroll
            for (int v = 0; v < 4; v++) x[j][v] = line < lines && i + v < length ? at[v * step] : 0;
    }
#pragma unroll
    for (int j = 0; j < SIDE / 16; j++)
#pragma unroll
        for (int v = 0; v < 4; v++) tile[first + j * 16][i + v] = x[j][v];
    __syncthreads();
    float *to = o.to + (int64_t)(blockIdx.y * o.rows + row0) * o.pitch + k0;
#pragma unroll
    for (int j = 0; j < SIDE / 16; j++) {
        const int row = first + j * 16;
        if (row0 + row >= o.rows || k0 + i >= o.pitch) continue;
        float4 y;
        if (across)
            y = make_float4(tile[i][row], tile[i + 1][row], tile[i + 2][row], tile[i + 3][row]);
        else
            y = make_float4(tile[row][i], tile[row][i + 1], tile[row][i + 2], tile[row][i + 3]);
        *(float4 *)(to + (int64_t)row * o.pitch + i) = y;
    }
}
