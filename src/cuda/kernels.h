/* kernels.h: the one table of CUDA kernels. A new kernel is a .cu, a line of the enum and a row; a retuned tile is a
 * row. */
#ifndef TESSERA_CUDA_KERNELS_H
#define TESSERA_CUDA_KERNELS_H

#include "internal.h"

/* One .cu each. */
typedef enum cuda_module {
    MODULE_IEEE_MMA_SM90,
    MODULE_IEEE_TILE_128X128,
    MODULE_IEEE_TILE_128X64,
    MODULE_IEEE_TILE_64X64,
    MODULE_IEEE_THIN_K,
    MODULE_IEEE_THIN_M,
    MODULE_IEEE_REDUCE,
    MODULE_IEEE_SCALE,
    MODULE_PACK,
    MODULE_SPLIT_FP32_SM90,
    MODULE_SPLIT_FP32_SM90_T128,
    MODULE_SPLIT_TF32_SM90,
    MODULE_SPLIT_MMA_SM80,
    MODULE_SPLIT_REDUCE,
    CUDA_MODULES
} cuda_module;

typedef enum cuda_kernel_id {
    IEEE_MMA_64X128,
    IEEE_MMA_64X64,
    IEEE_MMA_32X64,
    IEEE_MMA_32X32,
    IEEE_TILE_128X128,
    IEEE_TILE_128X64,
    IEEE_TILE_64X64,
    IEEE_MMA_SHORT_K,
    IEEE_THIN_K,
    IEEE_THIN_M,
    IEEE_REDUCE,
    IEEE_SCALE,
    PACK_SAMPLE,
    PACK_SPLIT,
    SPLIT_FP32_SM90,
    SPLIT_FP32_SM90_T128,
    SPLIT_TF32_SM90,
    SPLIT_FP32_MMA_SM80,
    SPLIT_TF32_MMA_SM80,
    SPLIT_REDUCE,
    CUDA_KERNELS
} cuda_kernel_id;

typedef enum cuda_family {
    FAMILY_IEEE_TILE,  /* multiplies operands in place; ieee_args */
    FAMILY_IEEE_THIN,  /* the same where C has at most tile_n columns */
    FAMILY_IEEE_SHORT, /* the same where k is at most tile_k, by blocks that stay */
    FAMILY_SPLIT,      /* multiplies packed operands; split_args */
    FAMILY_SUPPORT     /* works for the others; no kernel a user can ask for */
} cuda_family;

typedef struct cuda_kernel {
    const char *name; /* the user's name for it, and its symbol */
    cuda_family family;
    cuda_module module;
    int oldest, newest; /* compute capabilities it runs on, 10*major + minor */
    int tile_m, tile_n, tile_k;
    int threads;      /* of a block */
    int shared_bytes; /* dynamic shared memory of a block */
    int blocks;       /* resident on a multiprocessor; with clusters: clusters for each multiprocessor */
    int cluster;      /* blocks that compute a tile together; 1: each block has tiles of its own */
    int pieces;       /* split: of each operand; 2 keeps TSR_FP32's promise, 1 TSR_TF32's */
    bool waits;       /* it waits by itself for the kernel before it, so it may be launched early */
    double rate;      /* multiply-adds per multiprocessor and cycle, all multiprocessors full; guides the plan. On GPUs
                       * with 128 float32 units and 1024 of mma's fp16 multiply-adds: see cuda_kernel_rate */
} cuda_kernel;

/* Of kernels that could do the same on a GPU the plan takes the first, unless it can tell which is quicker. */
extern const cuda_kernel cuda_kernels[CUDA_KERNELS];

/* What a plan knows of a GPU: pure data. */
typedef struct cuda_device {
    char name[128];
    int ordinal;
    int capability; /* 10*major + minor */
    bool from_ptx;  /* TESSERA_CUDA_PTX: kernels are taken from the PTX of the oldest GPU, and chosen as for it: */
    int planned_capability; /* else the same as capability */
    int multiprocessors;
    int shared_per_block; /* most dynamic shared memory a block may have, bytes */
    bool has_pools;       /* stream-ordered memory */
} cuda_device;

static inline int cuda_kernel_index(const cuda_kernel *kernel) { return (int)(kernel - cuda_kernels); }

/* Whether the GPU can run it and this build has it. */
bool cuda_kernel_runs_on(const cuda_kernel *kernel, const cuda_device *device);

/* The kernel's rate on a GPU. */
double cuda_kernel_rate(const cuda_kernel *kernel, const cuda_device *device);

/* The ieee kernel that computes again what a split kernel could not. */
const cuda_kernel *cuda_recompute_kernel(const cuda_device *device);

/* The multiply kernel of that name, for options.kernel: refused where there is none, where this GPU cannot run it, or
 * where it does not keep the precision's promise. */
tsr_status cuda_kernel_find(const char *name, tsr_precision precision, const cuda_device *device,
                            const cuda_kernel **kernel);

/* The multiply kernels, one line each, and whether one of the GPUs can run them. */
void cuda_kernels_print(const cuda_device *devices, int count, tsr_text *text);

/* The name of a module, and the fatbin to load for a GPU. */
const char *cuda_module_name(cuda_module module);
const unsigned char *cuda_module_image(cuda_module module, const cuda_device *device);

#endif
