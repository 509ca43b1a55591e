/* driver.h: the CUDA driver, loaded when it is first asked for. No other file names libcuda. */
#ifndef TESSERA_CUDA_DRIVER_H
#define TESSERA_CUDA_DRIVER_H

#include <cuda.h>

#include "internal.h"

#if CUDA_VERSION < 12020 /* the first whose CUmemPoolProps has a maxSize */
#error "Tessera's CUDA engine needs the headers of CUDA 12.2 or newer"
#endif

/* What makes a graph whose kernels start early; older headers do not declare it (graphs.c). */
#if CUDA_VERSION >= 13000
#define CUDA_GRAPH_SYMBOLS(SYMBOL) \
    SYMBOL(cuGraphAddDependencies) \
    SYMBOL(cuGraphAddKernelNode)   \
    SYMBOL(cuGraphCreate)          \
    SYMBOL(cuGraphKernelNodeSetAttribute)
#else
#define CUDA_GRAPH_SYMBOLS(SYMBOL)
#endif

/* Every driver function the library calls. <cuda.h> renames some of them by macro (cuMemAlloc is cuMemAlloc_v2): the
 * renamed symbol is the one whose prototype that header declares, so it is the one that is looked up. */
#define CUDA_DRIVER_SYMBOLS(SYMBOL)            \
    SYMBOL(cuCtxGetCurrent)                    \
    SYMBOL(cuCtxGetDevice)                     \
    SYMBOL(cuCtxGetId)                         \
    SYMBOL(cuCtxPopCurrent)                    \
    SYMBOL(cuCtxPushCurrent)                   \
    SYMBOL(cuCtxSynchronize)                   \
    SYMBOL(cuDeviceGet)                        \
    SYMBOL(cuDeviceGetAttribute)               \
    SYMBOL(cuDeviceGetCount)                   \
    SYMBOL(cuDeviceGetName)                    \
    SYMBOL(cuDevicePrimaryCtxGetState)         \
    SYMBOL(cuDevicePrimaryCtxRelease)          \
    SYMBOL(cuDevicePrimaryCtxRetain)           \
    SYMBOL(cuDeviceTotalMem)                   \
    SYMBOL(cuDriverGetVersion)                 \
    SYMBOL(cuEventCreate)                      \
    SYMBOL(cuEventDestroy)                     \
    SYMBOL(cuEventQuery)                       \
    SYMBOL(cuEventRecord)                      \
    SYMBOL(cuFuncSetAttribute)                 \
    SYMBOL(cuGetErrorName)                     \
    SYMBOL(cuGetErrorString)                   \
    CUDA_GRAPH_SYMBOLS(SYMBOL)                 \
    SYMBOL(cuGraphDestroy)                     \
    SYMBOL(cuGraphExecDestroy)                 \
    SYMBOL(cuGraphExecKernelNodeSetParams)     \
    SYMBOL(cuGraphInstantiateWithFlags)        \
    SYMBOL(cuGraphLaunch)                      \
    SYMBOL(cuInit)                             \
    SYMBOL(cuLaunchKernelEx)                   \
    SYMBOL(cuMemAlloc)                         \
    SYMBOL(cuMemAllocFromPoolAsync)            \
    SYMBOL(cuMemFree)                          \
    SYMBOL(cuMemFreeAsync)                     \
    SYMBOL(cuMemFreeHost)                      \
    SYMBOL(cuMemHostAlloc)                     \
    SYMBOL(cuMemPoolCreate)                    \
    SYMBOL(cuMemPoolDestroy)                   \
    SYMBOL(cuMemPoolSetAttribute)              \
    SYMBOL(cuMemPoolTrimTo)                    \
    SYMBOL(cuMemcpyDtoH)                       \
    SYMBOL(cuMemcpyDtoHAsync)                  \
    SYMBOL(cuMemcpyHtoDAsync)                  \
    SYMBOL(cuMemsetD8Async)                    \
    SYMBOL(cuModuleGetFunction)                \
    SYMBOL(cuModuleLoadData)                   \
    SYMBOL(cuModuleUnload)                     \
    SYMBOL(cuOccupancyMaxPotentialClusterSize) \
    SYMBOL(cuPointerGetAttributes)             \
    SYMBOL(cuStreamCreate)                     \
    SYMBOL(cuStreamDestroy)                    \
    SYMBOL(cuStreamGetCtx)                     \
    SYMBOL(cuStreamIsCapturing)                \
    SYMBOL(cuStreamSynchronize)                \
    SYMBOL(cuStreamWaitEvent)                  \
    SYMBOL(cuTensorMapEncodeTiled)             \
    SYMBOL(cuThreadExchangeStreamCaptureMode)

typedef struct cuda_driver {
#define DRIVER_MEMBER(name) __typeof__(name) *name;
    CUDA_DRIVER_SYMBOLS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
    int version; /* 1000*major + 10*minor: the newest CUDA it runs */
} cuda_driver;

/* The driver, loaded and initialised by the first call in the process; NULL where there is none to use, and then
 * *problem is the sentence that says why and what to do. */
const cuda_driver *cuda_driver_get(const char **problem);

/* Turns a driver's error into a status and a message that begins with `doing`, e.g. "launching ieee_scale". */
tsr_status cuda_fail(CUresult error, const char *doing, ...) __attribute__((format(printf, 2, 3)));

#endif
