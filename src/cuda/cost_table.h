/* cost_table.h: the measured constants of a GPU, by the kernels they belong to. For cost.c; all others use cost.h. */
#ifndef TESSERA_CUDA_COST_TABLE_H
#define TESSERA_CUDA_COST_TABLE_H

#include "cuda/cost.h"

/* Of kernels that compute tiles, from operands in place or packed ones. */
typedef struct tile_costs {
    double rate;       /* multiply-adds per SM and cycle, all SMs full */
    double pipeline_k; /* filling a thread block's pipeline and writing its tile, as terms of k */
    double start;      /* seconds from the end of the kernel before it to its work */
    double reduce;     /* seconds from its end to the work of the kernel that adds up partial sums, launched early */
    double stall;      /* stall cycles per busy cycle with one resident thread block */
    double slow;       /* added share of its time for each operand that is copied by single floats */
    double edge;       /* the same for each of these if the matrix has fewer lines than a tile */
    double ragged;     /* added share of pipeline_k where C is written by single floats */
    double cluster;    /* seconds added where thread blocks of a cluster add up their sums; 0: they cannot */
} tile_costs;

/* Of the kernel for short k. Seconds, of a thread block that has an SM to itself; a step is eight terms. */
typedef struct short_costs {
    double start, tile, step;
    double unaligned; /* added share of a tile and of memory where rows of C are not of sixteen bytes */
    double slow;      /* of a step, more for each operand that is copied by single floats */
    double memory;    /* reading and writing everything once, in times of product_seconds */
} short_costs;

/* Of kernels in one launch. Seconds and bytes. */
typedef struct small_costs {
    double start;           /* with one thread block on an SM, before its first stage */
    double cluster, many;   /* more, where blocks add up their sums; for each of these beyond eight */
    double stage, together; /* a stage of `together` blocks on an SM at the same time */
    double slow;            /* of a stage, more for each operand that is copied by single floats */
    double block;           /* more, for each further block on an SM */
} small_costs;

/* Of kernels that split what they multiply, one thread block on an SM. Seconds. */
typedef struct direct_costs {
    double start;   /* before the first stage */
    double cluster; /* more, where blocks add up their sums */
    double many;    /* more, for each block beyond eight */
    double stage;   /* of all warpgroups of a block */
    double slow;    /* more, for each operand that is copied by single floats */
    double wave;    /* for each further wave of blocks */
} direct_costs;

/* Of kernels that split what they multiply, with tiles of 128 rows. Seconds. */
typedef struct wide_costs {
    double start;         /* before the first stage */
    double cluster, many; /* as of direct_costs */
    double stage, slow;   /* likewise, of a tile */
    double tile;          /* what a tile costs beside its stages */
    double memory;        /* reading and writing everything once, in times of product_seconds */
    double slice;         /* for each slice of a tile, where ieee_reduce adds them up */
    double ragged;        /* of a tile, more where rows of C are stored by single floats */
    double item;          /* for each further turn of a batch, whose thread blocks are not persistent */
} wide_costs;

/* Of kernels whose warps have tiles of their own. Seconds; a step is eight terms of a tile. */
typedef struct warp_costs {
    double start, latency; /* of a tile that has an SM to itself: before its first step, and each step */
    double tile, step;     /* of each tile, and each of its steps, of an SM full of warps */
    double unaligned;      /* added share of a tile's time for each operand whose lines begin anywhere */
    double ragged;         /* the same where rows of C do */
} warp_costs;

/* Of kernels for few columns that run on every GPU. */
typedef struct thin_costs {
    double start, reduce;  /* as of tiles */
    double block;          /* seconds of a thread block, besides what it reads */
    double block_bytes[3]; /* that a thread block reads in a cycle, by columns: 1 or 2, up to 4, up to 8 */
    double memory;         /* of bytes_per_cycle */
    double across;         /* what is left of block_bytes where the long operand's rows are neighbours; of thin_k */
    double unaligned;      /* the same where its lines begin anywhere */
} thin_costs;

typedef struct vector_costs {
    double start[3], rate[3]; /* by columns: 1 or 2, up to 4, up to 8; how fast A is read */
    double share;             /* more, where warps along k add up their sums */
    double cluster, many;     /* more, where thread blocks do; for each of these beyond eight */
    double block;             /* for each thread block on an SM beyond those that are resident */
    double block_bytes;       /* of A that a thread block reads in a second */
    double bytes;             /* that all of them do */
    double unaligned;         /* what is left of block_bytes where A is read by single floats */
    double narrow;            /* what is left of the rates with half as many rows side by side */
    double idle;              /* added share of memory's time for each share of the last turn that is empty */
} vector_costs;

/* Of a TF32 kernel, by how it reads: A along k, A across k, and with B turned. */
typedef struct tf32_costs {
    double start, cluster; /* seconds: of any launch, and more, where blocks add up their sums */
    double rate[3];        /* multiply-adds of an SM in a cycle */
    double pipeline_k[3];  /* what a tile costs beside multiplying, as terms of k */
    double odd_k;          /* more, where C cannot be written by vectors */
} tf32_costs;

/* From bytes_per_cycle on, everything is a double that `tessera tune` fits; 0: the kernel has no such constant. */
struct device_costs {
    const char *name;
    int capability;
    int clusters[MAX_CLUSTER]; /* of 1, 2, .. thread blocks, one block on an SM, how many have a place at once */
    double clock;              /* Hz, under load */
    double bytes_per_cycle;    /* of device memory, for each SM */
    double launch;             /* seconds from the end of one kernel to the work of the next */
    double late; /* seconds more for a call too long to begin early, by ieee_mma, long, direct kernels of 64 rows */
    double split_launches; /* what packing and recomputing, three kernels, cost a small product, in launches */
    double split_item;     /* the same for each product of a batch, in seconds */
    double segment;        /* seconds for each segment of a tile, or slice, that is added up */
    double short_stall;    /* as of tiles, of the kernels for short k */
    double cached;         /* reading and writing everything once, in times of product_seconds: L2 has a part */
    tile_costs tile[CUDA_KERNELS];
    short_costs short_64, short_96;
    tf32_costs tf32_128x256, tf32_128x128, tf32_64x64;
    double tf32_reduce;  /* seconds from a TF32 or wide kernel's end to the work of ieee_reduce */
    double tf32_copy;    /* seconds from the end of tf32_copy to its work */
    double tf32_writing; /* of bytes_per_cycle, for C */
    small_costs small_16, small_32, long_16, long_32;
    direct_costs direct_64x32, direct_64x64;
    wide_costs direct_128x64, direct_128x96;
    warp_costs warp[IEEE_WARP_32X64 - IEEE_WARP_16X16 + 1];
    vector_costs vector_k, vector_m, columns_k, columns_m;
    thin_costs thin_k, thin_m;
};

#endif
