/* cost.h: the cost model of the CUDA engine: how long a product would take, in seconds. Pure. */
#ifndef TESSERA_CUDA_COST_H
#define TESSERA_CUDA_COST_H

#include "cuda/kernels.h"

/* Seconds by estimate, below which a call's first kernel may begin before the kernel in front of it has finished. */
#define COST_EARLY 12e-6

/* The measured constants of a GPU. */
typedef struct device_costs device_costs;

/* Those of the nearest device that was measured, adapted to this one, to be freed; NULL: no memory. */
device_costs *cost_table(const cuda_device *device);
const char *cost_measured_on(const device_costs *costs); /* that device's name */

/* The constants by number, from 0 on; beyond the last the name is NULL. 0: it does not exist, and stays 0. */
const char *cost_constant_name(int i);
double *cost_constant(device_costs *costs, int i);

/* One way to compute a product. */
typedef struct cuda_candidate {
    const cuda_kernel *kernel;       /* NULL: none */
    int64_t tiles;                   /* of C */
    int64_t slices, k_per_slice;     /* of k, for split and TF32 kernels (k_each long) */
    int64_t full_tiles, tail_blocks; /* tiles computed whole; ieee: blocks that share the stream-K tail, or 0 */
    int64_t segments;                /* most of a tile of the tail */
    int64_t cluster, k_each, share;  /* split, tf32, ieee in one launch: as in cuda_plan */
    bool turns_b;                    /* tf32: as in cuda_plan */
    size_t partial_bytes;            /* of partial sums */
    double seconds;                  /* estimated */
} cuda_candidate;

/* Multiplying, by any kernel but the thin ones, and adding up slices or segments where there are several. `candidate`
 * has all but its seconds. */
double cost_multiply(const cuda_device *device, const cuda_candidate *candidate, const tsr_problem *problem);

/* The same by a thin kernel. */
double cost_multiply_thin(const cuda_device *device, const cuda_candidate *candidate, const tsr_problem *problem);

/* The same by a kernel of one launch. */
double cost_one_launch(const cuda_device *device, const cuda_candidate *candidate, const tsr_problem *problem);

/* The same by a wide kernel. */
double cost_wide(const cuda_device *device, const cuda_candidate *candidate, const tsr_problem *problem);

/* The same by a TF32 kernel, after `copied` elements have been copied. */
double cost_tf32(const cuda_device *device, const cuda_candidate *candidate, const tsr_problem *problem, double copied);

/* Whether the thread blocks of a cluster may share the tiles of a split kernel. */
bool cost_has_parts(const cuda_device *device, const cuda_kernel *kernel);

/* How many clusters of `cluster` thread blocks the GPU holds at once. */
int64_t cost_clusters(const cuda_device *device, const cuda_kernel *kernel, int64_t cluster);

/* What split products cost besides multiplying: packing `elements` elements, and launches. */
double cost_split(const cuda_device *device, const cuda_kernel *kernel, double elements, int64_t batch);

/* A product without terms. */
double cost_scale(const cuda_device *device, const tsr_problem *problem);

#endif
