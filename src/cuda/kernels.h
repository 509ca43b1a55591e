/* kernels.h: the tables of CUDA kernels and modules, made from kernels/kernel_list.h. */
#ifndef TESSERA_CUDA_KERNELS_H
#define TESSERA_CUDA_KERNELS_H

#include "cuda/kernels/kernel_list.h"
#include "internal.h"

#define MODULE_ID(id, name, gpus) MODULE_##id,
typedef enum cuda_module { CUDA_MODULE_LIST(MODULE_ID) CUDA_MODULES } cuda_module;
#undef MODULE_ID

#define KERNEL_ID(id, ...) id,
typedef enum cuda_kernel_id { CUDA_KERNEL_LIST(KERNEL_ID) CUDA_KERNELS } cuda_kernel_id;
#undef KERNEL_ID

typedef enum cuda_family {
    FAMILY_TILE,   /* multiplies operands in place; ieee_args */
    FAMILY_THIN,   /* the same where C has at most tile_n columns */
    FAMILY_SHORT,  /* the same where k is at most tile_k; persistent */
    FAMILY_SMALL,  /* the same in one launch: clusters of thread blocks share k */
    FAMILY_WIDE,   /* splits operands in place and multiplies them; k in slices or clusters; ieee_args */
    FAMILY_VECTOR, /* as SMALL where C has at most tile_n columns */
    FAMILY_WARP,   /* as TILE: a warp has a tile, persistent thread blocks share those of the whole batch */
    FAMILY_SPLIT,  /* multiplies packed operands; split_args */
    FAMILY_TF32,   /* multiplies operands in place in TF32; tf32_args */
    FAMILY_SUPPORT /* works for the others; a user cannot ask for it */
} cuda_family;

/* A row of kernel_list.h, which says what the columns mean. */
typedef struct cuda_kernel {
    const char *name; /* the user's name for it, and its symbol */
    cuda_module module;
    cuda_family family;
    int tile_m, tile_n, tile_k;
    int threads, blocks, cluster, components;
    int shared_bytes; /* dynamic shared memory of a thread block */
} cuda_kernel;

extern const cuda_kernel cuda_kernels[CUDA_KERNELS];

enum { MAX_CLUSTER = 16, PORTABLE_CLUSTER = 8 }; /* thread blocks: what Hopper allows kernels that ask for it, others */

/* What a plan knows of a GPU: pure data. */
typedef struct cuda_device {
    char name[128];
    int ordinal;
    int capability;         /* 10*major + minor */
    bool from_ptx;          /* TESSERA_CUDA_PTX: kernels are taken from the PTX of the oldest GPU */
    int planned_capability; /* kernels are chosen as for this one: capability, or less in tests (describe_device) */
    int multiprocessors;
    int max_cluster;      /* thread blocks of the largest cluster; a part of a GPU may have few SMs side by side */
    int shared_per_block; /* most dynamic shared memory a block may have, bytes */
    bool has_pools;       /* stream-ordered memory */
    struct device_costs *costs; /* cost.h; tuning_load's */
    char tuning[640];           /* where they are from */
} cuda_device;

/* How many check blocks an m x n matrix has. */
static inline int64_t cuda_check_blocks(int64_t m, int64_t n) {
    return ceil_div(m, CHECK_ROWS) * ceil_div(n, CHECK_COLS);
}

/* The most segments a tile of the tail can have (ieee_args). tail_blocks is at most the tail's number of runs. */
static inline int64_t cuda_ieee_segments(int64_t k, int64_t tail_tiles, int64_t tail_blocks) {
    const int64_t runs = ceil_div(k, IEEE_RUN), shortest = tail_tiles * runs / tail_blocks;
    return tail_blocks % tail_tiles == 0 ? tail_blocks / tail_tiles : ceil_div(runs, shortest) + 1;
}

/* Whether a cluster of thread blocks, as many as the plan says, computes each tile. */
static inline bool cuda_shares_k(const cuda_kernel *kernel) {
    return kernel->family == FAMILY_SMALL || kernel->family == FAMILY_VECTOR || kernel->family == FAMILY_WIDE;
}

/* Whether a kernel for few columns reads a long operand whose rows are neighbours, not the terms of a row. */
static inline bool cuda_reads_along_m(const cuda_kernel *kernel) {
    return kernel == &cuda_kernels[IEEE_THIN_M] || kernel == &cuda_kernels[IEEE_VECTOR_M] ||
           kernel == &cuda_kernels[IEEE_COLUMNS_M];
}

/* Rows of C that a thread block of a vector kernel has (ieee_vector.cu). */
static inline int64_t cuda_vector_rows(const cuda_kernel *kernel, int64_t share) {
    return cuda_reads_along_m(kernel) ? 4 * share : kernel->tile_m / share;
}

static inline int cuda_kernel_index(const cuda_kernel *kernel) { return (int)(kernel - cuda_kernels); }

/* Whether the GPU can run it and this build has it. */
bool cuda_kernel_runs_on(const cuda_kernel *kernel, const cuda_device *device);

/* The kernel that recomputes what a tf32 split kernel could not carry; NULL: the ieee kernel does. */
const cuda_kernel *cuda_tf32_recompute_kernel(const cuda_device *device);

/* The multiply kernel of that name, for options.kernel: refused where there is none, where this GPU cannot run it, or
 * where it does not keep the precision's contract. */
tsr_status cuda_kernel_find(const char *name, tsr_precision precision, const cuda_device *device,
                            const cuda_kernel **kernel);

/* The multiply kernels, one line each, and whether one of the GPUs can run them. */
void cuda_kernels_print(const cuda_device *devices, int count, tsr_text *text);

/* The name of a module, and the fatbin to load for a GPU. */
const char *cuda_module_name(cuda_module module);
const unsigned char *cuda_module_image(cuda_module module, const cuda_device *device);

#endif
