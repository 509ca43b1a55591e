/* graphs.h: launching what a call has queued, as a CUDA graph where the same kernels come again and again. */
#ifndef TESSERA_CUDA_GRAPHS_H
#define TESSERA_CUDA_GRAPHS_H

#include "cuda/context.h"

/* Kernels collected before they are launched; bytes of their arguments, at most. */
enum { MOST_QUEUED = 8, MOST_ARGS = 1024 };

typedef struct queued_kernel {
    const cuda_kernel *kernel;
    CUfunction function;
    unsigned grid[3], cluster; /* cluster 1: as the kernel was compiled */
    _Alignas(16) char args[MOST_ARGS];
} queued_kernel;

/* Launches them. begun: the first may start before what is in front of it has finished, as the others may. *failed is
 * the number of the one that an error is about. */
CUresult cuda_launch_queued(const struct cuda_context *cuda, CUstream stream, const queued_kernel *kernels, int count,
                            bool begun, int *failed);

#endif
