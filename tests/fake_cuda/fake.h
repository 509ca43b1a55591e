/* fake.h: a CUDA driver for tests of the host code on machines without a GPU. libcuda.c is the driver: contexts,
 * memory, streams, capture, graphs, over malloc. kernels.c and attention.c compute in plain C what each kernel
 * promises in src/cuda/kernels/args.h and attention_args.h. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <cuda.h>
#include <stdbool.h>

/* One launch, as recorded for the tests. */
typedef struct fake_launch {
    char kernel[48];
    unsigned grid[3], threads, cluster, shared_bytes;
    int early;    /* launched with programmatic stream serialization */
    int captured; /* into a graph: not run when it was launched */
} fake_launch;

/* What cuTensorMapEncodeTiled makes of a matrix here: sizes and strides, in bytes, contiguous dimension first. */
typedef struct fake_map {
    const char *data;
    cuuint64_t sizes[3], strides[2];
    cuuint32_t box[3];
} fake_map;

/* Bytes of a kernel's one parameter; 0 for a name that is no kernel's. */
size_t fake_kernel_args_size(const char *kernel);

/* Computes it. False, with `why`, where the launch breaks the kernel's rules. */
bool fake_attention_run(const fake_launch *launch, const void *args, char *why, size_t why_size); /* attention.c */
bool fake_kernel_run(const fake_launch *launch, const void *args, char *why, size_t why_size);

#endif
