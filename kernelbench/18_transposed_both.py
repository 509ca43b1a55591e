"""Matrix product, both transposed, in float32: C = A.T @ B.T (KernelBench level 1, problem 18).

    model = ModelNew()      # needs torch, nvcc and an NVIDIA GPU of compute capability 7.5 or newer
    C = model(A, B)         # A: (K, M), B: (N, K), C: (M, N)

Any sizes and strides; the current stream; differentiable, the gradients by the same kernels. Tensors on the CPU are
moved to the GPU, where the result stays. The first use compiles the source below (under a minute); torch keeps the
result.

How it computes. precision="fp32", the default, is as accurate as float32 arithmetic, and uses tensor cores: on Hopper
(compute capability 9.0, CUDA 12 or newer) through wgmma. There each row of A and column of B is scaled by a power of
two and split into two half-precision pieces, x = hi + lo, which together hold 23 bits. The tensor cores multiply hi*hi,
hi*lo and lo*hi: three half-precision products, not one. Their sums of hi*hi are added to float32 registers every 32
terms, before the tensor cores' rounding could show. So each element's error is at most (K + 2) 2^-24 times the sum of
its terms' magnitudes, the bound of float32 arithmetic itself, and on ordinary data it is smaller than plain float32's.
Where an operand cannot be split that well (Inf, NaN, elements too far apart in magnitude), the kernels notice, and the
tiles of C concerned are computed in plain float32, without the CPU taking part. precision="ieee" computes everything in
plain float32 (on Hopper with sums in float64), and so do other GPUs. Every kernel has blocks of exactly 128 threads.

Written by kernelbench/generate.py of Tessera from the library's own sources: change those, not this file. Apache
License 2.0.
"""

import functools
import inspect
import os
from unittest import mock

import torch
from torch.utils.cpp_extension import load_inline


class ModelNew(torch.nn.Module):
    """C = A.T @ B.T. precision: "fp32" or "ieee", see above."""

    def __init__(self, precision="fp32"):
        super().__init__()
        if precision not in ("fp32", "ieee"):
            raise ValueError(f'precision must be "fp32" or "ieee", not {precision!r}')
        self.ieee = precision == "ieee"
        extension()

    def forward(self, A, B):
        if not (isinstance(A, torch.Tensor) and isinstance(B, torch.Tensor)):
            raise TypeError(f"A and B must be tensors, not {type(A).__name__} and {type(B).__name__}")
        if not (A.is_cuda and B.is_cuda):
            A, B = on_gpu(A, B)
        return product(A, True, B, True, self.ieee)


def get_inputs():
    return [torch.rand(8192, 2048), torch.rand(4096, 8192)]


def get_init_inputs():
    return []


def on_gpu(A, B):
    """Both on one GPU: that of the one which is on one, else the current one."""
    device = A.device if A.is_cuda else B.device if B.is_cuda else torch.device("cuda", torch.cuda.current_device())
    return tuple(x.to(device) if x.device.type == "cpu" else x for x in (A, B))


def product(left, left_transposed, right, right_transposed, ieee):
    """op(left) @ op(right), op a transposition where asked for."""
    if torch.is_grad_enabled() and (left.requires_grad or right.requires_grad):
        return Product.apply(left, left_transposed, right, right_transposed, ieee)
    return extension().multiply(left, left_transposed, right, right_transposed, ieee)


class Product(torch.autograd.Function):
    """A product whose gradients are products again."""

    @staticmethod
    def forward(context, left, left_transposed, right, right_transposed, ieee):
        context.save_for_backward(left, right)
        context.options = left_transposed, right_transposed, ieee
        return extension().multiply(left, left_transposed, right, right_transposed, ieee)

    @staticmethod
    def backward(context, gradient):
        left, right = context.saved_tensors
        left_transposed, right_transposed, ieee = context.options
        of_left = of_right = None
        if context.needs_input_grad[0]:
            if left_transposed:
                of_left = product(right, right_transposed, gradient, True, ieee)
            else:
                of_left = product(gradient, False, right, not right_transposed, ieee)
        if context.needs_input_grad[2]:
            if right_transposed:
                of_right = product(gradient, True, left, left_transposed, ieee)
            else:
                of_right = product(left, not left_transposed, gradient, False, ieee)
        return of_left, None, of_right, None, None


@functools.lru_cache(maxsize=None)
def extension():
    """The sources below, compiled for the GPU that is there."""
    if not (torch.cuda.is_available() and torch.version.cuda):
        raise RuntimeError("this module needs an NVIDIA GPU and a torch with CUDA")
    capability = torch.cuda.get_device_capability()
    if capability < (7, 5):
        raise RuntimeError("this module needs a GPU of compute capability 7.5 or newer, not {}.{}".format(*capability))
    if capability == (9, 0) and int(torch.version.cuda.split(".")[0]) >= 12:
        target, kernels = 90, [IEEE_MMA_KERNELS, PACK_KERNELS, WGMMA_KERNEL]
    else:
        target, kernels = 0, [IEEE_TILE_KERNELS]
    flags = ["-DTESSERA_SPLIT={}".format(target)]
    if int(torch.__version__.split(".")[0]) < 2:
        flags.append("-std=c++17")  # older torches compile in an older C++
    # Hopper's matrix instruction is for sm_90a alone. A torch that adds architectures of its own to these flags takes
    # them from the environment; there it finds one that no Hopper GPU would run instead.
    architecture = ["-gencode=arch=compute_90a,code=sm_90a"] if target == 90 else []
    # Newer torches can leave out headers of their own, which take longer to compile than all of this.
    lean = {"no_implicit_headers": True} if "no_implicit_headers" in inspect.signature(load_inline).parameters else {}
    with mock.patch.dict(os.environ, {"TORCH_CUDA_ARCH_LIST": "8.0"} if target == 90 else {}):
        return load_inline(
            name="tessera_18_transposed_both_{}_for_{}{}".format(target, *capability),
            cpp_sources=[BINDING, ARGUMENTS, HOST],
            cuda_sources=[ARGUMENTS, IEEE_COMMON] + kernels,
            functions=["multiply"],
            extra_cflags=["-O2"] + flags,
            extra_cuda_cflags=["-O3"] + flags + architecture,
            **lean,
        )


# ---- Host side, C++ ------------------------------------------------------------------------------------------------

BINDING = r"""
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
"""

HOST = r"""
/* The host side: checks the tensors, plans the product, takes memory from torch and queues the kernels on the current
 * stream. It never waits for the GPU. What stands under "From src/..." is the library's own code, word for word; the
 * rest is what that code expects around it, and the way from torch to it. */
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <string>
#include <vector>

extern "C" void ieee_reduce(ieee_args);
#if TESSERA_SPLIT == 90
extern "C" void ieee_mma_64x128(ieee_args);
extern "C" void ieee_mma_64x64(ieee_args);
extern "C" void ieee_mma_32x64(ieee_args);
extern "C" void ieee_mma_32x32(ieee_args);
extern "C" void ieee_mma_short_k(ieee_args);
extern "C" void split_fp32_sm90_t128(split_args);
#else
extern "C" void ieee_tile_128x128(ieee_args);
extern "C" void ieee_tile_128x64(ieee_args);
extern "C" void ieee_tile_64x64(ieee_args);
#endif
#if TESSERA_SPLIT
extern "C" void pack_sample(pack_pair_args);
extern "C" void pack_split(pack_pair_args);
extern "C" void split_reduce(split_args);
#endif

namespace {

/* Errors are thrown (TORCH_CHECK), so that the status of the library's functions is always this. */
enum tsr_status { TSR_OK };
struct tsr_packed;

/* From include/tessera.h. */

/* A matrix to read: element (i, j) is data[i*row_stride + j*col_stride]. A transpose is two strides exchanged, a slice
 * is a larger stride, a reversed view has a negative one, a broadcast one of zero. Strides count floats, not bytes. */
typedef struct tsr_operand {
    const float *data;
    int64_t rows, cols;
    int64_t row_stride, col_stride;
    int64_t batch_stride;     /* from one product's matrix to the next; 0: every product shares this one */
    const tsr_packed *packed; /* from tsr_pack of this same matrix, or NULL; of use where all products share it */
} tsr_operand;

/* A matrix to write. No two of its elements may share an address, nor may it overlap an operand. */
typedef struct tsr_result {
    float *data;
    int64_t rows, cols;
    int64_t row_stride, col_stride;
    int64_t batch_stride;
} tsr_result;

/* From src/internal.h. */

/* A validated product, C = alpha*A*B + beta*S. k = 0 stands for every product without terms (alpha = 0 too): C = beta*S,
 * A and B unread. The addend S is C itself where their data are the same; with beta = 0 it is all zero. */
typedef struct tsr_problem {
    int64_t m, n, k, batch;
    float alpha, beta;
    tsr_operand a, b; /* m x k, k x n */
    tsr_result c;     /* m x n */
    tsr_operand addend;
} tsr_problem;

/* From src/cuda/kernels.h. */

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
    MODULE_SPLIT_WGMMA_SM90,
    MODULE_SPLIT_MMA_SM80,
    MODULE_SPLIT_REDUCE,
    CUDA_MODULES
} cuda_module;

typedef enum cuda_family {
    FAMILY_IEEE_TILE,  /* multiplies operands in place; ieee_args */
    FAMILY_IEEE_THIN,  /* the same where C has at most tile_n columns */
    FAMILY_IEEE_SHORT, /* the same where k is at most tile_k, by blocks that stay */
    FAMILY_SPLIT,      /* multiplies packed operands; split_args */
    FAMILY_SUPPORT     /* works for the others; no kernel a user can ask for */
} cuda_family;

enum { TURING = 75, AMPERE = 80, HOPPER = 90, ANY_NEWER = 9999 }; /* compute capabilities, 10*major + minor */

struct cuda_kernel {
    const char *name;
    const void *function;
    cuda_family family;
    cuda_module module; /* the file it is from */
    int oldest, newest; /* GPUs */
    int tile_m, tile_n, tile_k;
    int threads, shared_bytes; /* of a block */
    int blocks;                /* resident on a multiprocessor; with clusters: clusters for each multiprocessor */
    int cluster;               /* blocks that compute a tile together; 1: each block has tiles of its own */
    int pieces;
    bool waits;  /* it waits by itself for the kernel before it, so it may be launched early */
    double rate; /* multiply-adds per multiprocessor and cycle */
};

struct cuda_device {
    int planned_capability; /* the GPU's own */
    int multiprocessors, shared_per_block;
};

struct cuda_counters {
    unsigned long long marked_panels, fallback_tiles;
};

struct cuda_context {
    cuda_device device;
    cuda_counters *counters;
};

enum cuda_kernel_id {
    IEEE_REDUCE,
#if TESSERA_SPLIT == 90
    IEEE_MMA_64X128, IEEE_MMA_64X64, IEEE_MMA_32X64, IEEE_MMA_32X32, IEEE_MMA_SHORT_K, SPLIT_FP32_SM90_T128,
#else
    IEEE_TILE_128X128, IEEE_TILE_128X64, IEEE_TILE_64X64,
#endif
#if TESSERA_SPLIT
    PACK_SAMPLE, PACK_SPLIT, SPLIT_REDUCE,
#endif
    CUDA_KERNELS
};

/* The rows of src/cuda/kernels.c, each with its function behind the name. */
const cuda_kernel cuda_kernels[CUDA_KERNELS] = {
    {"ieee_reduce", (const void *)ieee_reduce, FAMILY_SUPPORT, MODULE_IEEE_REDUCE, TURING, ANY_NEWER, 0, 0, 0, 128, 0, 0, 1, 0, true, 0},
#if TESSERA_SPLIT == 90
    {"ieee_mma_64x128", (const void *)ieee_mma_64x128, FAMILY_IEEE_TILE, MODULE_IEEE_MMA_SM90, HOPPER, HOPPER, 64, 128, 32, 128, IEEE_MMA_64X128_SHARED, 2, 1, 0, true, 126},
    {"ieee_mma_64x64", (const void *)ieee_mma_64x64, FAMILY_IEEE_TILE, MODULE_IEEE_MMA_SM90, HOPPER, HOPPER, 64, 64, 32, 128, IEEE_MMA_64X64_SHARED, 3, 1, 0, true, 122},
    {"ieee_mma_32x64", (const void *)ieee_mma_32x64, FAMILY_IEEE_TILE, MODULE_IEEE_MMA_SM90, HOPPER, HOPPER, 32, 64, 32, 128, IEEE_MMA_32X64_SHARED, 3, 1, 0, true, 112},
    {"ieee_mma_32x32", (const void *)ieee_mma_32x32, FAMILY_IEEE_TILE, MODULE_IEEE_MMA_SM90, HOPPER, HOPPER, 32, 32, 32, 128, IEEE_MMA_32X32_SHARED, 3, 1, 0, true, 92},
    {"ieee_mma_short_k", (const void *)ieee_mma_short_k, FAMILY_IEEE_SHORT, MODULE_IEEE_MMA_SM90, HOPPER, HOPPER, 64, 64, 64, 128, IEEE_MMA_SHORT_K_SHARED, 3, 1, 0, true, 110},
    {"split_fp32_sm90_t128", (const void *)split_fp32_sm90_t128, FAMILY_SPLIT, MODULE_SPLIT_WGMMA_SM90, HOPPER, HOPPER, 128, 128, 64, 128, SPLIT_FP32_SM90_T128_SHARED, 1, 2, 2, true, 500},
#else
    {"ieee_tile_128x128", (const void *)ieee_tile_128x128, FAMILY_IEEE_TILE, MODULE_IEEE_TILE_128X128, AMPERE, ANY_NEWER, 128, 128, 32, 128, IEEE_TILE_128X128_SHARED, 2, 1, 0, true, 103},
    {"ieee_tile_128x64", (const void *)ieee_tile_128x64, FAMILY_IEEE_TILE, MODULE_IEEE_TILE_128X64, TURING, ANY_NEWER, 128, 64, 32, 128, IEEE_TILE_128X64_SHARED, 3, 1, 0, true, 97},
    {"ieee_tile_64x64", (const void *)ieee_tile_64x64, FAMILY_IEEE_TILE, MODULE_IEEE_TILE_64X64, TURING, ANY_NEWER, 64, 64, 32, 128, IEEE_TILE_64X64_SHARED, 5, 1, 0, true, 88},
#endif
#if TESSERA_SPLIT
    {"pack_sample", (const void *)pack_sample, FAMILY_SUPPORT, MODULE_PACK, AMPERE, ANY_NEWER, 8, 0, 0, 128, 0, 0, 1, 0, true, 0},
    {"pack_split", (const void *)pack_split, FAMILY_SUPPORT, MODULE_PACK, AMPERE, ANY_NEWER, 64, 0, 64, 128, PACK_SHARED, 4, 1, 0, true, 0},
    {"split_reduce", (const void *)split_reduce, FAMILY_SUPPORT, MODULE_SPLIT_REDUCE, AMPERE, ANY_NEWER, 0, 0, 0, 128, 0, 0, 1, 0, true, 0},
#endif
};

bool cuda_kernel_runs_on(const cuda_kernel *kernel, const cuda_device *device) {
    return device->planned_capability >= kernel->oldest && device->planned_capability <= kernel->newest &&
           kernel->shared_bytes <= device->shared_per_block;
}

/* From src/cuda/kernels.c. */

double cuda_kernel_rate(const cuda_kernel *kernel, const cuda_device *device) {
    const int capability = device->planned_capability;
    const bool few_float32_units = capability <= 80; /* 64 of them */
    const bool for_graphics = capability / 10 == 12 ||
                              (capability > 80 && capability < 90); /* a quarter of mma's rate */
    if (kernel->family != FAMILY_SPLIT) return few_float32_units ? kernel->rate / 2 : kernel->rate;
    return kernel->module == MODULE_SPLIT_MMA_SM80 && for_graphics ? kernel->rate / 4 : kernel->rate;
}

const cuda_kernel *cuda_recompute_kernel(const cuda_device *device) {
    for (int i = 0; i < CUDA_KERNELS; i++)
        if (cuda_kernels[i].family == FAMILY_IEEE_TILE && cuda_kernel_runs_on(&cuda_kernels[i], device))
            return &cuda_kernels[i];
    return NULL;
}

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

/* From src/cuda/cuda.h. */

/* How one product is computed on a GPU. Pure data. Sizes are of the product as it is computed: transposed, where that
 * lets C be written along its contiguous dimension. */
typedef struct cuda_plan {
    const struct cuda_device *device;
    const struct cuda_kernel *multiply; /* the kernel that computes C, or parts of its sums */
    bool transposed;                    /* C^T = B^T A^T is computed */
    bool split;                         /* operands are packed into fp16 pieces; else read in place */
    int64_t slices, k_per_slice;  /* split: of k; more than one: their sums are added in order by a second kernel */
    int64_t full_tiles;           /* ieee: tiles of C computed whole, by a block each; all others' terms are shared */
    int64_t tail_units;           /* evenly by so many blocks, and their sums added in order by a second kernel */
    int64_t chunk_m, chunk_n;     /* rows and columns computed at a time: all of them, unless max_workspace or */
    int64_t chunk_k, chunk_batch; /* 32-bit indices in kernels do not allow it */
    size_t workspace;
    const char *reason; /* one clause: why this kernel */
} cuda_plan;

/* From src/cuda/plan.h. */

static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* From src/cuda/plan.c. */

static const double BYTES_PER_CYCLE = 16; /* of device memory, for each multiprocessor */
static const double LAUNCH_CYCLES = 4000; /* from one kernel's end to the next one's work */
static const double IDLE = 0.6;           /* cycles for one of work that a block by itself leaves to others */

/* What differs between kernels besides their rates. */
typedef struct manners {
    double start_k;       /* filling a block's pipeline and writing its tile, in terms of k */
    double begin_cycles;  /* from the end of the kernel before it to its work */
    double reduce_cycles; /* from its end to the work of ieee_reduce, launched early */
} manners;

static manners manners_of(const cuda_kernel *kernel) {
    const manners of_float64_tensor_cores = {64, 6000, 4000}, of_short_k = {16, 6000, 0},
                  of_others = {48, LAUNCH_CYCLES, 2000};
    if (kernel->family == FAMILY_IEEE_SHORT) return of_short_k;
    return kernel->module == MODULE_IEEE_MMA_SM90 ? of_float64_tensor_cores : of_others;
}

enum { SMALL_WORKSPACE = 32 << 20 }; /* bytes of partial sums that need no reason; more is little beside the operands */
enum { SPLIT_LAUNCHES = 5 };         /* what packing and recomputing (three kernels) cost a small product, in launches */
enum { LEAST_SLICE_STEPS = 4 };      /* of a kernel's tile_k, below which another slice costs more than it brings */
enum { LEAST_THIN_SLICE = 512 };     /* the same for thin kernels */
enum { THIN = 8 };                   /* C with as few columns or rows is for the thin kernels */

/* Below this k the error of splitting an operand would show beside float32's own, (k + 2) 2^-24. */
enum { LEAST_SPLIT_K = 128 };

/* Kernels index with 32 bits: larger extents are computed in parts. And a grid has at most so many blocks along z. */
enum { LARGEST_EXTENT = 1 << 30, LARGEST_BATCH = 65535 };

/* Parts of C that max_workspace forces are whole tiles of every split kernel. */
enum { CHUNK_STEP = 2 * PANEL_ROWS };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t round_up(int64_t a, int64_t step) { return divide_up(a, step) * step; }

/* From src/cuda/plan.c. */

typedef struct way {
    const cuda_kernel *kernel; /* NULL: none */
    int64_t slices, k_per_slice, full_tiles, tail_units;
    size_t partial_bytes;
    double cycles;
} way;

/* Multiply-adds a cycle on a multiprocessor with `resident` blocks. */
static double rate_of(const cuda_device *device, const cuda_kernel *kernel, int64_t resident) {
    const double all = kernel->blocks, there = (double)resident;
    return cuda_kernel_rate(kernel, device) * (there / (there + IDLE)) / (all / (all + IDLE));
}

/* Cycles in which a multiprocessor does a multiply-add for each of `blocks` blocks, as many at a time as it holds. */
static double cycles_for_blocks(const cuda_device *device, const cuda_kernel *kernel, int64_t blocks) {
    const int64_t last = blocks % kernel->blocks, others = blocks - last;
    return (others ? (double)others / rate_of(device, kernel, kernel->blocks) : 0) +
           (last ? (double)last / rate_of(device, kernel, last) : 0);
}

/* What it costs to write and to read that many floats of partial sums. */
static double partial_cycles(const cuda_device *device, double sums) {
    return 2 * sums * sizeof(float) / (BYTES_PER_CYCLE * device->multiprocessors);
}

static int64_t tiles_of(const cuda_kernel *kernel, const tsr_problem *p) {
    return divide_up(p->m, kernel->tile_m) * divide_up(p->n, kernel->tile_n);
}

/* One kernel, every tile in `slices` slices of k (fewer, where rounding leaves none). */
static way sliced_way(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p, int64_t slices) {
    const int64_t area = (int64_t)kernel->tile_m * kernel->tile_n, tiles = tiles_of(kernel, p);
    const manners manner = manners_of(kernel);
    way w = {.kernel = kernel, .slices = 1, .k_per_slice = p->k, .full_tiles = tiles, .cycles = manner.begin_cycles};
    if (slices > 1) {
        w.k_per_slice = round_up(divide_up(p->k, slices), kernel->tile_k);
        w.slices = divide_up(p->k, w.k_per_slice);
    }
    const int64_t busiest = divide_up(tiles * w.slices * p->batch, device->multiprocessors);
    w.cycles += (double)area * cycles_for_blocks(device, kernel, busiest) * ((double)w.k_per_slice + manner.start_k);
    if (w.slices > 1) {
        const int64_t sums = p->batch * w.slices * p->m * p->n;
        w.partial_bytes = (size_t)sums * sizeof(float);
        w.cycles += LAUNCH_CYCLES + partial_cycles(device, (double)sums);
    }
    return w;
}

/* One ieee kernel, tiles [0, full_tiles) whole and the terms of the others shared by `units` blocks. */
static way shared_way(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p, int64_t full_tiles,
                      int64_t units) {
    const int64_t area = (int64_t)kernel->tile_m * kernel->tile_n, tail = tiles_of(kernel, p) - full_tiles;
    const int64_t busiest_whole = divide_up(full_tiles * p->batch, device->multiprocessors);
    const int64_t busiest_units = divide_up(units * p->batch, device->multiprocessors);
    const double stretch = (double)tail * (double)p->k / (double)units;
    const manners manner = manners_of(kernel);
    const int starts = units % tail ? 2 : 1; /* a stretch may end in a second tile */
    way w = {.kernel = kernel, .slices = 1, .k_per_slice = p->k, .full_tiles = full_tiles, .tail_units = units};
    w.cycles = manner.begin_cycles +
               (double)area * (cycles_for_blocks(device, kernel, busiest_whole) * ((double)p->k + manner.start_k) +
                               cycles_for_blocks(device, kernel, busiest_units) * (stretch + starts * manner.start_k));
    const int64_t pieces = ieee_pieces(p->k, tail, units);
    w.partial_bytes = (size_t)(p->batch * tail * pieces * area) * sizeof(float);
    if (pieces > 1)
        w.cycles += manner.reduce_cycles + partial_cycles(device, (double)(p->batch * (units + tail) * area));
    return w;
}

/* Whether a kernel computes such products tile by tile. */
static bool computes_tiles(const cuda_kernel *kernel, const tsr_problem *p) {
    return kernel->family == FAMILY_IEEE_TILE || (kernel->family == FAMILY_IEEE_SHORT && p->k <= kernel->tile_k);
}

static void keep_quicker(way *best, const way *other, size_t max_workspace) {
    if (max_workspace && other->partial_bytes > max_workspace) return;
    if (!best->kernel || other->cycles < best->cycles) *best = *other;
}

/* An ieee kernel's best way: tiles whole; the tiles of the last, incomplete round shared by all blocks of a round; or
 * tiles too few for a round in slices, as many as a round has room for. */
static void consider_tail(way *best, const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p,
                          size_t max_workspace) {
    const int64_t slots = (int64_t)device->multiprocessors * kernel->blocks, tiles = tiles_of(kernel, p);
    const int64_t most_slices = p->k / (LEAST_SLICE_STEPS * IEEE_RUN);
    way w = sliced_way(device, kernel, p, 1);
    keep_quicker(best, &w, max_workspace);
    if (!cuda_kernel_runs_on(&cuda_kernels[IEEE_REDUCE], device) || !most_slices) return;
    const int64_t tail = tiles % slots, units = least(slots, tail * most_slices);
    if (p->batch == 1 && tail && units > 1) {
        w = shared_way(device, kernel, p, tiles - tail, units);
        keep_quicker(best, &w, max_workspace);
    }
    for (int64_t slices = least(slots / (tiles * p->batch), most_slices); slices > 1; slices /= 2) {
        w = shared_way(device, kernel, p, 0, tiles * slices);
        keep_quicker(best, &w, max_workspace);
    }
}

int64_t cuda_ieee_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t units) {
    const int64_t slots = (int64_t)device->multiprocessors * kernel->blocks;
    return kernel->family == FAMILY_IEEE_SHORT ? least(units, slots) : units;
}

way ieee_way(const cuda_device *device, const tsr_problem *p) {
    way best = {};
    for (const cuda_kernel &kernel : cuda_kernels)
        if (computes_tiles(&kernel, p) && cuda_kernel_runs_on(&kernel, device))
            consider_tail(&best, device, &kernel, p, 0);
    return best;
}

#if TESSERA_SPLIT /* kernels that multiply split operands are there: 90, with wgmma; 80, with mma.sync; 0, none */
/* From src/cuda/plan.h. */

/* Where the parts of a packed operand lie in its memory (args.h), for `batch` products. Offsets in bytes; strides from
 * one product to the next, as split_operand counts them. */
typedef struct panels_layout {
    int64_t k_blocks;
    int64_t panels_stride, exponents_stride, marks_stride;
    size_t exponents, overflows, deep, misfits, marks, progress; /* panels begin at 0 */
    size_t bytes;                                                /* in all, a multiple of 256 */
} panels_layout;

/* From src/cuda/plan.c. */

panels_layout panels_layout_of(int64_t rows, int64_t k, int64_t batch, int pieces) {
    const int64_t align = 256, panels = divide_up(rows, PANEL_ROWS);
    panels_layout l = {.k_blocks = divide_up(k, SPLIT_K), .exponents_stride = rows, .marks_stride = panels};
    l.panels_stride = round_up(rows, 8) * l.k_blocks * pieces * SPLIT_ROW_BYTES;
    l.exponents = (size_t)round_up(batch * l.panels_stride, align);
    const size_t of_rows = (size_t)round_up(batch * rows * 4, align); /* what has 4 bytes for each row, each panel */
    const size_t of_panels = (size_t)round_up(batch * panels * 4, align);
    l.overflows = l.exponents + of_rows;
    l.deep = l.overflows + of_rows;
    l.misfits = l.deep + of_rows;
    l.marks = l.misfits + of_panels;
    l.progress = l.marks + of_panels;
    l.bytes = l.progress + (size_t)align;
    return l;
}

static int64_t operand_batch(const tsr_operand *o, int64_t batch) { return o->batch_stride ? batch : 1; }

/* A split kernel's best way: k whole, or cut so that the tiles fill the GPU once, twice or three times. */
static void consider_slices(way *best, const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p,
                            size_t max_workspace) {
    const int64_t slots = (int64_t)device->multiprocessors * kernel->blocks;
    const int64_t most_slices = p->k / (LEAST_SLICE_STEPS * kernel->tile_k);
    way w = sliced_way(device, kernel, p, 1);
    keep_quicker(best, &w, max_workspace);
    if (!cuda_kernel_runs_on(&cuda_kernels[SPLIT_REDUCE], device)) return;
    for (int rounds = 1; rounds <= 3; rounds++) {
        const int64_t slices = least(rounds * slots / (tiles_of(kernel, p) * p->batch), most_slices);
        if (slices < 2) continue;
        w = sliced_way(device, kernel, p, slices);
        keep_quicker(best, &w, max_workspace);
    }
}

/* Packing counts even where an operand was packed beforehand: that must not change the kernel, for then it would change
 * the bits of the result. */
static way split_way(const cuda_device *device, const cuda_kernel *kernel, const tsr_problem *p) {
    const double elements = (double)operand_batch(&p->a, p->batch) * (double)p->m * (double)p->k +
                            (double)operand_batch(&p->b, p->batch) * (double)p->n * (double)p->k;
    const double bytes = elements * sizeof(float);
    way best = {0};
    consider_slices(&best, device, kernel, p, bytes / 16 > SMALL_WORKSPACE ? (size_t)(bytes / 16) : SMALL_WORKSPACE);
    best.cycles += 2 * bytes / (BYTES_PER_CYCLE * device->multiprocessors) + SPLIT_LAUNCHES * LAUNCH_CYCLES;
    return best;
}

int64_t cuda_split_blocks(const cuda_kernel *kernel, const cuda_device *device, int64_t tiles, int64_t slices,
                          int64_t batch) {
    const int64_t all = tiles * slices * batch, slots = (int64_t)device->multiprocessors * kernel->blocks;
    const int64_t rounds = divide_up(all, slots);
    return divide_up(all, rounds) * kernel->cluster; /* as few as need no more rounds: what idles costs no power */
}

#endif

cuda_plan plan_of(const cuda_device *device, const tsr_problem *p, bool ieee) {
    way best = ieee_way(device, p);
    cuda_plan plan = {};
#if TESSERA_SPLIT
    for (const cuda_kernel &kernel : cuda_kernels)
        if (!ieee && p->k >= LEAST_SPLIT_K && kernel.family == FAMILY_SPLIT && cuda_kernel_runs_on(&kernel, device)) {
            const way packed = split_way(device, &kernel, p);
            if (packed.cycles < best.cycles) {
                best = packed;
                plan.split = true;
            }
        }
#endif
    plan.device = device;
    plan.multiply = best.kernel;
    plan.slices = best.slices;
    plan.k_per_slice = best.k_per_slice;
    plan.full_tiles = best.full_tiles;
    plan.tail_units = best.tail_units;
    plan.chunk_m = p->m, plan.chunk_n = p->n, plan.chunk_k = p->k, plan.chunk_batch = p->batch;
    plan.workspace = best.partial_bytes;
    return plan;
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

/* Messages are put together as strings: where torch's C++ library and the compiler's are mixed, streams may crash. */
void check(cudaError_t error, const char *doing, const char *what) {
    TORCH_CHECK(error == cudaSuccess, std::string(doing) + " " + what + ": " + cudaGetErrorString(error));
}

/* A GPU as the plan sees it, its kernels ready to be launched. */
const cuda_device *device_of(int ordinal) {
    static std::once_flag made[64];
    static cuda_device devices[64];
    TORCH_CHECK(ordinal < 64, "this module keeps track of 64 GPUs at most");
    std::call_once(made[ordinal], [ordinal] {
        auto attribute = [ordinal](cudaDeviceAttr which) {
            int value = 0;
            check(cudaDeviceGetAttribute(&value, which, ordinal), "asking about", "the GPU");
            return value;
        };
        cuda_device &d = devices[ordinal];
        d.planned_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
                               attribute(cudaDevAttrComputeCapabilityMinor);
        d.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
        d.shared_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
        TORCH_CHECK(TESSERA_SPLIT != 90 || d.planned_capability == HOPPER,
                    "this module was compiled for a GPU of compute capability 9.0, and the tensors are on another");
        for (const cuda_kernel &kernel : cuda_kernels)
            if (cuda_kernel_runs_on(&kernel, &d))
                check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           kernel.shared_bytes),
                      "preparing", kernel.name);
    });
    return &devices[ordinal];
}

/* The kernels one call queues, one after the other. */
struct queue {
    const cuda_context *cuda;
    cudaStream_t stream;
    bool begun; /* the last thing in the stream is a kernel of this call */
};

struct grid {
    int64_t x, y, z;
};

/* A kernel that waits by itself for the one before it may be launched early, its start overlapping that one's end; not
 * so the call's first, which knows nothing of the kernel before it. */
tsr_status launch(queue *q, const cuda_kernel *kernel, grid blocks, void *args) {
    TORCH_CHECK(blocks.x <= INT32_MAX && blocks.y <= UINT16_MAX && blocks.z <= UINT16_MAX,
                std::string(kernel->name) + " would need more blocks than a grid may have");
    const dim3 size((unsigned)blocks.x, (unsigned)blocks.y, (unsigned)blocks.z), threads((unsigned)kernel->threads);
#if TESSERA_SPLIT == 90 && CUDART_VERSION >= 12000
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = size;
    config.blockDim = threads;
    config.dynamicSmemBytes = (size_t)kernel->shared_bytes;
    config.stream = q->stream;
    config.attrs = &early;
    config.numAttrs = q->begun && kernel->waits;
    check(cudaLaunchKernelExC(&config, kernel->function, &args), "launching", kernel->name);
#else
    check(cudaLaunchKernel(kernel->function, size, threads, &args, (size_t)kernel->shared_bytes, q->stream),
          "launching", kernel->name);
#endif
    q->begun = true;
    return TSR_OK;
}

/* From src/cuda/launch.c. */

static matrix_in in_place(const tsr_operand *o) {
    return (matrix_in){o->data, o->row_stride, o->col_stride, o->batch_stride};
}

static matrix_out result(const tsr_result *c) {
    return (matrix_out){c->data, c->row_stride, c->col_stride, c->batch_stride};
}

static ieee_args ieee_args_of(const tsr_problem *p, const cuda_kernel *kernel) {
    ieee_args args = {
        .a = in_place(&p->a),
        .b = in_place(&p->b),
        .source = in_place(&p->addend),
        .c = result(&p->c),
        .m = (int32_t)p->m,
        .n = (int32_t)p->n,
        .k = (int32_t)p->k,
        .batch = (int32_t)p->batch,
        .alpha = p->alpha,
        .beta = p->beta,
    };
    if (kernel->tile_m) {
        args.tile_m = kernel->tile_m;
        args.tile_n = kernel->tile_n;
        args.tiles_m = (int32_t)divide_up(p->m, kernel->tile_m);
        args.tiles_n = (int32_t)divide_up(p->n, kernel->tile_n);
        args.full_tiles = args.tiles_m * args.tiles_n;
    }
    return args;
}

static tsr_status multiply_in_place(queue *q, const cuda_plan *plan, const tsr_problem *p, char *workspace) {
    const cuda_kernel *kernel = plan->multiply, *reduce = &cuda_kernels[IEEE_REDUCE];
    ieee_args args = ieee_args_of(p, kernel);
    const int64_t tiles = (int64_t)args.tiles_m * args.tiles_n;
    const bool as_planned = p->m == plan->chunk_m && p->n == plan->chunk_n && p->k == plan->chunk_k;
    if (plan->tail_units && as_planned) { /* what is left of a product beyond 32-bit extents is computed whole */
        args.full_tiles = (int32_t)plan->full_tiles;
        args.tail_units = (int32_t)plan->tail_units;
        args.pieces = (int32_t)ieee_pieces(p->k, tiles - plan->full_tiles, plan->tail_units);
        args.partial = (float *)workspace;
    }
    const int64_t blocks = cuda_ieee_blocks(kernel, plan->device, args.full_tiles + args.tail_units);
    tsr_status status = launch(q, kernel, (grid){blocks, 1, p->batch}, &args);
    if (status || args.pieces <= 1) return status;
    const int64_t parts = divide_up(kernel->tile_m * kernel->tile_n, 4 * reduce->threads);
    return launch(q, reduce, (grid){(tiles - args.full_tiles) * parts, 1, p->batch}, &args);
}

#if TESSERA_SPLIT
/* From src/cuda/launch.c. */

/* What the marks of A and B may multiply to in a tile that the split kernels compute (docs/numerics.md). fp32: what the
 * bound (k + 2) 2^-24 leaves, beside truncation and sums, for elements below fp16's least normal number; below 1, as it
 * is for short k, every tile is recomputed. tf32: a panel is carried or it is not. */
static float mark_limit(int64_t k, int pieces) {
    if (pieces == 1) return 1;
    const float terms = (float)k;
    return (terms - terms / 32 - 76) / (16.1f + terms / 800);
}

/* How large a sum, before it is scaled back, must be for each deep element behind it, to be good although its tile's
 * marks exceed mark_limit (docs/numerics.md); infinite where no sum is. */
static float least_per_deep(int64_t k) {
    const float terms = (float)k, lost = 94 + terms / 24;
    return k < 1 << 22 && terms + 2 > lost ? 5 * lost / (terms + 2 - lost) : INFINITY;
}

/* An operand as the split kernels see it: `rows` rows of length k, in panels somewhere. */
typedef struct split_source {
    const float *data;
    int64_t rows, k, row_stride, k_stride, batch_stride;
    int64_t batch; /* products with a matrix of their own; 1 where all share it */
    int pieces;
    char *memory;        /* the panels, laid out as panels_layout_of says for: */
    int64_t packed_rows; /* all the rows there are */
    int64_t first_row;   /* of ours among those, a multiple of PANEL_ROWS */
} split_source;

static split_operand panels_of(const split_source *s) {
    const panels_layout l = panels_layout_of(s->packed_rows, s->k, s->batch, s->pieces);
    const int64_t first_panel = s->first_row / PANEL_ROWS;
    return (split_operand){
        .panels = (uint8_t *)s->memory + first_panel * l.k_blocks * s->pieces * PANEL_ROWS * SPLIT_ROW_BYTES,
        .exponents = (int32_t *)(s->memory + l.exponents) + s->first_row,
        .marks = (float *)(s->memory + l.marks) + first_panel,
        .deep = (uint32_t *)(s->memory + l.deep) + s->first_row,
        .panels_batch_stride = s->batch > 1 ? l.panels_stride : 0,
        .exponents_batch_stride = s->batch > 1 ? l.exponents_stride : 0,
        .marks_batch_stride = s->batch > 1 ? l.marks_stride : 0,
    };
}

static pack_args pack_args_of(const split_source *s) {
    const panels_layout l = panels_layout_of(s->rows, s->k, s->batch, s->pieces);
    return (pack_args){
        .data = s->data,
        .row_stride = s->row_stride,
        .k_stride = s->k_stride,
        .batch_stride = s->batch_stride,
        .rows = (int32_t)s->rows,
        .k = (int32_t)s->k,
        .batch = (int32_t)s->batch,
        .k_blocks = (int32_t)l.k_blocks,
        .pieces = s->pieces,
        .panels = (uint8_t *)s->memory,
        .exponents = (int32_t *)(s->memory + l.exponents),
        .overflows = (float *)(s->memory + l.overflows),
        .deep = (uint32_t *)(s->memory + l.deep),
        .misfits = (int32_t *)(s->memory + l.misfits),
        .marks = (float *)(s->memory + l.marks),
        .panels_batch_stride = l.panels_stride,
        .exponents_batch_stride = l.exponents_stride,
        .marks_batch_stride = l.marks_stride,
    };
}

/* Packs one or two operands; NULL stands for none. */
static tsr_status pack(queue *q, const split_source *first, const split_source *second) {
    if (!first && !second) return TSR_OK;
    pack_pair_args pair = {.marked_panels = &((cuda_counters *)q->cuda->counters)->marked_panels};
    if (first) pair.operand[0] = pack_args_of(first);
    if (second) pair.operand[1] = pack_args_of(second);
    const split_source *either = first ? first : second;
    const size_t at = panels_layout_of(either->rows, either->k, either->batch, either->pieces).progress;
    pair.progress = (pack_progress *)(either->memory + at);
    const cuda_kernel *sample = &cuda_kernels[PACK_SAMPLE], *split = &cuda_kernels[PACK_SPLIT];
    int64_t samples = 0, splits = 0; /* blocks */
    for (int i = 0; i < 2; i++) {
        const pack_args *o = &pair.operand[i];
        samples += o->batch * divide_up(o->rows, sample->tile_m);
        splits += o->batch * divide_up(o->rows, split->tile_m) * o->k_blocks;
    }
    /* They stay, share the work, and may wait for each other: no more than there is room for. A multiprocessor has the
     * shared memory of its largest block and 1 KB for each. */
    const cuda_device *device = &q->cuda->device;
    const int64_t room = (device->shared_per_block + 1024) / (split->shared_bytes + 1024);
    splits = least(splits, device->multiprocessors * least(split->blocks, room));
    tsr_status status = launch(q, sample, (grid){samples, 1, 1}, &pair);
    return status ? status : launch(q, split, (grid){splits, 1, 1}, &pair);
}

/* Computes as TSR_IEEE what of C the split kernel left. */
static tsr_status recompute_marked(queue *q, const cuda_plan *plan, const tsr_problem *p, const split_args *split) {
    const cuda_kernel *kernel = cuda_recompute_kernel(plan->device);
    ieee_args args = ieee_args_of(p, kernel);
    args.marks_a = split->a.marks;
    args.marks_b = split->b.marks;
    args.mark_limit = split->mark_limit;
    args.marks_a_batch_stride = split->a.marks_batch_stride;
    args.marks_b_batch_stride = split->b.marks_batch_stride;
    args.doubts = split->doubts;
    args.doubts_batch_stride = split->doubts_batch_stride;
    args.fallback_tiles = &((cuda_counters *)q->cuda->counters)->fallback_tiles;
    const int64_t blocks = least(args.full_tiles, (int64_t)plan->device->multiprocessors * kernel->blocks);
    return launch(q, kernel, (grid){blocks, 1, p->batch}, &args);
}

static tsr_status multiply_split(queue *q, const cuda_plan *plan, const tsr_problem *p, const split_source *source_a,
                                 const split_source *source_b, char *workspace) {
    const cuda_kernel *kernel = plan->multiply, *reduce = &cuda_kernels[SPLIT_REDUCE];
    split_args args = {
        .a = panels_of(source_a),
        .b = panels_of(source_b),
        .source = in_place(&p->addend),
        .c = result(&p->c),
        .m = (int32_t)p->m,
        .n = (int32_t)p->n,
        .batch = (int32_t)p->batch,
        .k_blocks = (int32_t)divide_up(p->k, SPLIT_K),
        .alpha = p->alpha,
        .beta = p->beta,
        .mark_limit = mark_limit(p->k, kernel->pieces),
        .least_per_deep = least_per_deep(p->k),
        .tiles_m = (int32_t)divide_up(p->m, kernel->tile_m),
        .tiles_n = (int32_t)divide_up(p->n, kernel->tile_n),
        .slices = 1,
        .k_blocks_per_slice = (int32_t)divide_up(p->k, SPLIT_K),
        .short_end = (p->k - 1) % SPLIT_K < SPLIT_SUM_K,
    };
    if (plan->slices > 1) {
        args.k_blocks_per_slice = (int32_t)(plan->k_per_slice / SPLIT_K);
        args.slices = (int32_t)divide_up(args.k_blocks, args.k_blocks_per_slice);
        args.partial = (float *)workspace;
        workspace += p->batch * args.slices * p->m * p->n * (int64_t)sizeof(float);
    }
    if (kernel->pieces == 2 && args.mark_limit >= 1 && args.least_per_deep < INFINITY) /* else no sum is good */
        args.doubts = (uint8_t *)workspace, args.doubts_batch_stride = doubts_in(p->m, p->n);
    const int64_t tiles = (int64_t)args.tiles_m * args.tiles_n;
    const int64_t blocks = cuda_split_blocks(kernel, plan->device, tiles, args.slices, p->batch);
    tsr_status status = launch(q, kernel, (grid){blocks, 1, 1}, &args);
    if (!status && args.slices > 1)
        status = launch(q, reduce, (grid){divide_up(doubts_in(p->m, p->n), reduce->threads / 32), p->batch, 1}, &args);
    return status ? status : recompute_marked(q, plan, p, &args);
}

/* An operand with k along its rows (B transposed), to be packed at `memory`. */
split_source source_of(const tsr_operand &o, int64_t rows, int64_t k, int64_t row_stride, int64_t k_stride,
                       int64_t batch, char *memory) {
    split_source s = {};
    s.data = o.data;
    s.rows = s.packed_rows = rows;
    s.k = k;
    s.row_stride = row_stride;
    s.k_stride = k_stride;
    s.batch_stride = o.batch_stride;
    s.batch = operand_batch(&o, batch);
    s.pieces = 2;
    s.memory = memory;
    return s;
}

size_t panels_bytes(const split_source &s) { return panels_layout_of(s.rows, s.k, s.batch, s.pieces).bytes; }

enum { COUNTERS_ROOM = 256 }; /* bytes, so that what follows is aligned; nobody reads the counters here */
#endif

/* Takes workspace from torch, which keeps it for the stream's later work, and queues the product. */
void execute(const tsr_problem *p, bool ieee, int ordinal, cudaStream_t stream, const at::TensorOptions &options) {
    const cuda_device *device = device_of(ordinal);
    const cuda_plan plan = plan_of(device, p, ieee);
    size_t bytes = plan.workspace;
#if TESSERA_SPLIT
    split_source a = source_of(p->a, p->m, p->k, p->a.row_stride, p->a.col_stride, p->batch, nullptr);
    split_source b = source_of(p->b, p->n, p->k, p->b.col_stride, p->b.row_stride, p->batch, nullptr);
    if (plan.split) bytes += COUNTERS_ROOM + panels_bytes(a) + panels_bytes(b) + p->batch * doubts_in(p->m, p->n);
#endif
    const at::Tensor workspace = at::empty({(int64_t)bytes}, options.dtype(at::kByte));
    char *memory = (char *)workspace.data_ptr();
    cuda_context cuda = {*device, nullptr};
    queue q = {&cuda, stream, false};
    if (!plan.split) {
        multiply_in_place(&q, &plan, p, memory);
        return;
    }
#if TESSERA_SPLIT
    cuda.counters = (cuda_counters *)memory, memory += COUNTERS_ROOM;
    a.memory = memory, memory += panels_bytes(a);
    b.memory = memory, memory += panels_bytes(b);
    pack(&q, &a, &b);
    multiply_split(&q, &plan, p, &a, &b, memory);
#endif
}

/* ---- Between torch and the above --------------------------------------------------------------------------------- */

std::string shape_of(const at::Tensor &t) {
    std::string text;
    for (const int64_t size : t.sizes()) text += (text.empty() ? "(" : ", ") + std::to_string(size);
    return text.empty() ? "()" : text + ")";
}

void check_tensor(const at::Tensor &t, const std::string &name, const at::Device &device) {
    TORCH_CHECK(t.scalar_type() == at::kFloat, name + " must be float32, but is " + c10::toString(t.scalar_type()));
    TORCH_CHECK(t.layout() == at::kStrided, name + " must be an ordinary (strided) tensor");
    TORCH_CHECK(t.is_cuda(), name + " must be on a GPU, but is on " + t.device().str());
    TORCH_CHECK(t.device() == device,
                "A and B must be on one GPU, but are on " + device.str() + " and " + t.device().str());
    TORCH_CHECK(t.dim() == 2, name + " must have 2 dimensions, but has shape " + shape_of(t));
}

/* The last two dimensions as a matrix, exchanged where `transposed`. */
tsr_operand operand_of(const at::Tensor &t, bool transposed) {
    const int64_t row = transposed ? -1 : -2, col = transposed ? -2 : -1;
    tsr_operand o = {};
    o.data = t.data_ptr<float>();
    o.rows = t.size(row), o.cols = t.size(col);
    o.row_stride = t.stride(row), o.col_stride = t.stride(col);
    if (t.dim() == 3 && t.size(0) > 1) o.batch_stride = t.stride(0);
    return o;
}

} // namespace

/* op(left) @ op(right), op being a transposition where asked for; plain IEEE float32 where `ieee`. */
at::Tensor multiply(at::Tensor left, bool left_transposed, at::Tensor right, bool right_transposed,
                       bool ieee) {
    check_tensor(left, "A", left.device());
    check_tensor(right, "B", left.device());
    left = left.resolve_neg(), right = right.resolve_neg();
    tsr_problem p = {};
    p.a = operand_of(left, left_transposed), p.b = operand_of(right, right_transposed);
    p.m = p.a.rows, p.k = p.a.cols, p.n = p.b.cols;
    p.batch = left.dim() == 3 ? left.size(0) : 1;
    p.alpha = 1;
    TORCH_CHECK(p.k == p.b.rows && (left.dim() < 3 || right.size(0) == p.batch),
                "A must have as many rows as B has columns, but they have shapes " + shape_of(left) + " and " + shape_of(right));
    TORCH_CHECK(p.m <= LARGEST_EXTENT && p.n <= LARGEST_EXTENT && p.k <= LARGEST_EXTENT,
                "A and B may have at most 2^30 rows and columns, but have shapes " + shape_of(left) + " and " +
                    shape_of(right));

    const c10::cuda::CUDAGuard guard(left.device());
    std::vector<int64_t> shape = {p.m, p.n};
    if (left.dim() == 3) shape.insert(shape.begin(), p.batch);
    if (!p.k) return at::zeros(shape, left.options());
    const at::Tensor product = at::empty(shape, left.options());
    p.c = {product.data_ptr<float>(), p.m, p.n, p.n, 1, p.m * p.n};
    const int64_t batch = product.numel() ? p.batch : 0;
    for (int64_t done = 0; done < batch; done += LARGEST_BATCH) { /* what a grid can hold at a time */
        p.batch = least(batch - done, LARGEST_BATCH);
        execute(&p, ieee, left.get_device(), c10::cuda::getCurrentCUDAStream(), left.options());
        p.a.data += LARGEST_BATCH * p.a.batch_stride;
        p.b.data += LARGEST_BATCH * p.b.batch_stride;
        p.c.data += LARGEST_BATCH * p.c.batch_stride;
    }
    return product;
}
"""

# ---- What the host hands to the kernels, C -------------------------------------------------------------------------

ARGUMENTS = r"""
/* args.h: what the host passes to each kernel, by value, as its one parameter. Plain C, for nvcc and the C compiler. */

#include <stdint.h>

/* Rows of A, or columns of B, that are packed, marked and recomputed together. Every multiply kernel's tile is a
 * multiple or a divisor of it, so that a tile of C belongs to one mark of A and one of B. */
enum { PANEL_ROWS = 128 };

/* Dynamic shared memory of a block, in bytes, for who launches it; each kernel asserts that this is what it lays out.
 */
enum {
    IEEE_TILE_128X128_SHARED = 67584,
    IEEE_TILE_128X64_SHARED = 51200,
    IEEE_TILE_64X64_SHARED = 34816,
    IEEE_MMA_64X128_SHARED = 76800,
    IEEE_MMA_64X64_SHARED = 52224,
    IEEE_MMA_32X64_SHARED = 53248,
    IEEE_MMA_32X32_SHARED = 36864,
    IEEE_MMA_SHORT_K_SHARED = 69632,
    PACK_SHARED = 52992,
    SPLIT_FP32_SM90_SHARED = 217136,
    SPLIT_FP32_SM90_T128_SHARED = 108576,
    SPLIT_TF32_SM90_SHARED = 217152,
    SPLIT_FP32_MMA_SM80_SHARED = 98304,
    SPLIT_TF32_MMA_SM80_SHARED = 73728
};

/* Blocks of C that a split kernel writes, or leaves to be recomputed, as a whole. */
enum { DOUBT_ROWS = 16, DOUBT_COLS = 32 };

/* How many of them an m x n matrix has. */
static inline int64_t doubts_in(int64_t m, int64_t n) {
    return (m + DOUBT_ROWS - 1) / DOUBT_ROWS * ((n + DOUBT_COLS - 1) / DOUBT_COLS);
}

/* A matrix in place. Strides count floats. */
typedef struct matrix_in {
    const float *data;
    int64_t row_stride, col_stride, batch_stride;
} matrix_in;

typedef struct matrix_out {
    float *data;
    int64_t row_stride, col_stride, batch_stride;
} matrix_out;

/* C = alpha*A*B + beta*S in IEEE float32, operands read in place with any strides (ieee_*.cu). `source` is S, which may
 * be C: an element of it is read by the thread that writes the same one of C, before. With beta = 0 it is not read.
 * C is tiles_m x tiles_n tiles of tile_m x tile_n, the kernel's own size. Tiles [0, full_tiles) are computed whole, by
 * one block each. The rest, the tail, is shared evenly by tail_units blocks: all its terms of k, tile after tile, are
 * cut into tail_units stretches of whole runs of IEEE_RUN terms. What a stretch covers of a tile is a piece. A tile in
 * more than one piece has their plain sums in partial[batch][tile - full_tiles][piece][tile_m][tile_n], where there is
 * room for `pieces` (at least ieee_pieces); ieee_reduce, given the same arguments, adds them up in order and applies
 * alpha and beta.
 *
 * marks: NULL, or one number per panel of A (marks_a[batch*marks_a_batch_stride + i]) and of B; a tile
 * is computed only where the product of its two marks exceeds mark_limit; where that is finite and there are `doubts`,
 * only those blocks of it that have a nonzero byte there (split_args). A batch stride of 0 of the marks shares them
 * between products. */
enum { IEEE_RUN = 32 };

typedef struct ieee_args {
    matrix_in a, b, source;
    matrix_out c;
    int32_t m, n, k, batch;
    float alpha, beta;
    int32_t tile_m, tile_n;
    int32_t tiles_m, tiles_n;
    int32_t full_tiles;
    int32_t tail_units, pieces;
    float *partial;
    const float *marks_a, *marks_b;
    float mark_limit;
    int64_t marks_a_batch_stride, marks_b_batch_stride;
    const uint8_t *doubts;
    int64_t doubts_batch_stride;
    unsigned long long *fallback_tiles; /* with marks: counts the tiles recomputed */
} ieee_args;

/* The most pieces a tile of the tail can fall into. No more units than the tail has runs. */
static inline int64_t ieee_pieces(int64_t k, int64_t tail_tiles, int64_t tail_units) {
    const int64_t runs = (k + IEEE_RUN - 1) / IEEE_RUN, shortest = tail_tiles * runs / tail_units;
    return tail_units % tail_tiles == 0 ? tail_units / tail_tiles : (runs + shortest - 1) / shortest + 1;
}

/* ---- Split operands ---------------------------------------------------------------------------------------------- */

/* An operand is seen as `rows` rows of length k: A as it is, B transposed, so that k runs along a row of both. Row r,
 * scaled by 2^exponent[r], is split into fp16 pieces: x*2^e = hi + lo*2^-11 (+ what fp16 cannot hold).
 *
 * Panels. Rows go in panels of PANEL_ROWS, k in blocks of SPLIT_K. Block (panel, kb) is `pieces` tiles, hi before lo,
 * each stored rows x 128 bytes, where `stored rows` is PANEL_ROWS, in the last panel the rows it has rounded up to 8.
 * Within a tile, 16-byte chunk j of row r lies at chunk j ^ (r % 8): the 128-byte swizzle of Hopper's matrix
 * instruction, so a tile goes to shared memory as one straight copy. Missing rows and k are zero.
 *
 *   panel p starts at    p * k_blocks * pieces * PANEL_ROWS * 128
 *   block kb of it at  + kb * pieces * stored_rows(p) * 128
 *   its lo tile at     + stored_rows(p) * 128
 *
 * Marks. A panel's mark is its depth: how far its smallest nonzero element, scaled, lies below fp16's least normal
 * number 2^-14, as a factor; 1 where none does, infinite where one does not fit at all (Inf, NaN, overflow). With two
 * pieces `deep` counts the elements below, in each row. Where the marks of A and B multiply to at most mark_limit, which
 * depends on k (docs/numerics.md), the pieces carry every product to the last bit that matters, whatever the sums are.
 * Where to more, a sum is good if it is large beside what the deep elements can have lost; blocks with one that is not,
 * and tiles with an infinite mark, are ieee's.
 */
enum { SPLIT_K = 64, SPLIT_ROW_BYTES = 128, SPLIT_LO_SHIFT = 11 };

/* So much of k tensor cores sum before float32 registers take over (docs/numerics.md, Promotion). */
enum { SPLIT_SUM_K = 32 };

/* The exponent of a row of zeros; those of others are within +-62. */
enum { ALL_ZERO = 63 };

typedef struct split_operand {
    const uint8_t *panels;
    const int32_t *exponents;    /* [rows] */
    const float *marks;          /* [panels] */
    const uint32_t *deep;        /* [rows] */
    int64_t panels_batch_stride; /* bytes; 0: shared by all products of the batch, as are the next two */
    int64_t exponents_batch_stride;
    int64_t marks_batch_stride;
} split_operand;

/* C = alpha*A*B + beta*S from split operands (split_*.cu; `source` is S, as in ieee_args), but for tiles whose marks
 * multiply to more than mark_limit. Of those whose marks are finite, with `doubts`, blocks of DOUBT_ROWS x DOUBT_COLS
 * are computed all the same if no sum in them, before it is scaled back, is below least_per_deep times the number of
 * deep elements there may be behind it; doubts[batch][block row][block column] is 0 for these and 1 for the others.
 * slices > 1: slice s of each tile covers k_blocks_per_slice blocks and writes its sums, the rows' and columns' scales
 * taken out, to partial[batch*slices + s][m][n]; alpha, beta and doubts wait for split_reduce. */
typedef struct split_args {
    split_operand a, b;
    matrix_in source;
    matrix_out c;
    int32_t m, n, batch;
    int32_t k_blocks;
    float alpha, beta;
    float mark_limit, least_per_deep;
    uint8_t *doubts; /* may be NULL */
    int64_t doubts_batch_stride;
    int32_t tiles_m, tiles_n; /* of C, in the kernel's tile */
    int32_t slices, k_blocks_per_slice;
    int32_t short_end; /* not 0: k ends in the first SPLIT_SUM_K of its last block */
    float *partial;
} split_args;

/* Splits one operand into panels (pack.cu). A first sweep scales each row by a sample of it, and notes in `misfits` the
 * panels in which something did not fit, in `overflows` the largest such element of each row; a second scales the rows of
 * these panels by that, and splits them again. What depth a panel has in the end is its mark. */
typedef struct pack_args {
    const float *data; /* element (row, k) at data[row*row_stride + k*k_stride] */
    int64_t row_stride, k_stride, batch_stride;
    int32_t rows, k, batch;
    int32_t k_blocks;
    int32_t pieces; /* 2: hi and lo; 1: hi */
    uint8_t *panels;
    int32_t *exponents;
    float *overflows; /* [rows]: 0 where all fits; pack_sample sets these and what follows */
    uint32_t *deep;   /* [rows], counted each time a row is split in two */
    int32_t *misfits; /* [panels]: 1 where a depth was infinite at first, else 0 */
    float *marks;     /* [panels] */
    int64_t panels_batch_stride, exponents_batch_stride, marks_batch_stride;
} pack_args;

/* How far pack_split has come, for its blocks to know of each other. */
typedef struct pack_progress {
    uint32_t blocks; /* how many have nothing left to split; and the bit PACK_MISFITS, if something did not fit */
    uint32_t units;  /* tickets that blocks have taken, for units beyond their first few */
    uint32_t again;  /* and for units to split again */
} pack_progress;
enum { PACK_MISFITS = 1 << 30 };

/* Both operands in one launch; an operand with no rows is passed over. */
typedef struct pack_pair_args {
    pack_args operand[2];
    pack_progress *progress;
    unsigned long long *marked_panels; /* counts, for tsr_stats */
} pack_pair_args;
"""

# ---- What kernels of unsplit operands have in common, CUDA ---------------------------------------------------------

IEEE_COMMON = r"""
/* ieee_order.cuh: which tiles of C, and which terms of k, a block of an ieee kernel computes, and where sums go. */

/* Tiles are numbered in bands of 16 tile rows, down each column of a band: blocks that run together then share few
 * panels of A and of B, which the L2 cache holds. */
static __device__ __forceinline__ void find_tile(const ieee_args &args, int tile, int *tile_row, int *tile_col) {
    constexpr int BAND = 16;
    const int band = tile / (BAND * args.tiles_n);
    const int rows = min(BAND, args.tiles_m - band * BAND);
    const int in_band = tile - band * BAND * args.tiles_n;
    *tile_row = band * BAND + in_band % rows;
    *tile_col = in_band / rows;
}

/* A stretch of terms of one tile: what a block computes at a time. */
struct segment {
    int tile;
    int k_begin, terms;
    int index;         /* among the pieces of the tile, along k */
    bool whole;        /* the tile's only piece */
    int64_t next, end; /* what is left of the block's stretch, in runs of the tail */
};

static __device__ __forceinline__ int runs_per_tile(const ieee_args &args) {
    return (args.k + IEEE_RUN - 1) / IEEE_RUN;
}

/* Stretch u of the tail is its runs [u*runs/units, (u+1)*runs/units); this finds u for a run. */
static __device__ __forceinline__ int64_t unit_of_run(const ieee_args &args, int64_t run, int64_t tail_runs) {
    return ((run + 1) * args.tail_units - 1) / tail_runs;
}

static __device__ __forceinline__ int tail_tiles(const ieee_args &args) {
    return args.tiles_m * args.tiles_n - args.full_tiles;
}

/* Sets `s` to the next segment of its stretch; false where there is none. */
static __device__ __forceinline__ bool next_segment(const ieee_args &args, segment *s) {
    if (s->next >= s->end) return false;
    const int runs = runs_per_tile(args);
    const int tail = (int)(s->next / runs), first = (int)(s->next - (int64_t)tail * runs);
    const int count = (int)min((int64_t)(runs - first), s->end - s->next);
    s->tile = args.full_tiles + tail;
    s->k_begin = first * IEEE_RUN;
    s->terms = min(args.k - s->k_begin, count * IEEE_RUN);
    s->whole = count == runs;
    s->index = first == 0 ? 0
                          : (int)(unit_of_run(args, s->next, (int64_t)runs * tail_tiles(args)) -
                                  unit_of_run(args, (int64_t)tail * runs, (int64_t)runs * tail_tiles(args)));
    s->next += count;
    return true;
}

/* The first segment of unit `unit` of the grid: a whole tile, or the start of a stretch of the tail. */
static __device__ __forceinline__ bool first_segment(const ieee_args &args, int unit, segment *s) {
    if (unit < args.full_tiles) {
        *s = segment{unit, 0, args.k, 0, true, 0, 0};
        return true;
    }
    const int64_t tail_runs = (int64_t)runs_per_tile(args) * tail_tiles(args), stretch = unit - args.full_tiles;
    s->next = stretch * tail_runs / args.tail_units;
    s->end = (stretch + 1) * tail_runs / args.tail_units;
    return next_segment(args, s);
}

/* Where the sums of a segment that is not whole go. */
static __device__ __forceinline__ float *partial_tile(const ieee_args &args, int tile, int piece) {
    const int64_t index = ((int64_t)blockIdx.z * tail_tiles(args) + (tile - args.full_tiles)) * args.pieces + piece;
    return args.partial + index * args.tile_m * args.tile_n;
}

/* Element (row, col) of C, from its whole sum. */
static __device__ __forceinline__ void store_element(const ieee_args &args, int row, int col, float sum) {
    const matrix_in &s = args.source;
    const matrix_out &c = args.c;
    float value = args.alpha * sum;
    if (args.beta != 0.0f)
        value = fmaf(args.alpha, sum,
                     args.beta * s.data[blockIdx.z * s.batch_stride + row * s.row_stride + col * s.col_stride]);
    c.data[blockIdx.z * c.batch_stride + row * c.row_stride + col * c.col_stride] = value;
}

/* The rows, or the columns, of C that a tile covers. The last tile begins early enough to end where the matrix does, if
 * that is large enough, so that it reads no less than the others do; it stores only what is its own, from `own` on. */
struct extent {
    int first, own;
    __device__ __forceinline__ extent(int begin, int size, int matrix)
        : first(min(begin, max(matrix - size, 0))), own(begin) {}
};

/* With marks, whether no tile of this product can be marked: where all marks are 1, the least there is, and the limit is
 * no less. All threads of the block call it. */
static __device__ __forceinline__ bool nothing_marked(const ieee_args &args) {
    if (!args.marks_a) return false;
    const float *marks_a = args.marks_a + blockIdx.z * args.marks_a_batch_stride;
    const float *marks_b = args.marks_b + blockIdx.z * args.marks_b_batch_stride;
    bool seen = !(args.mark_limit >= 1.0f);
    const int panels_m = (args.m + PANEL_ROWS - 1) / PANEL_ROWS, panels_n = (args.n + PANEL_ROWS - 1) / PANEL_ROWS;
    for (int i = threadIdx.x; i < panels_m + panels_n; i += blockDim.x)
        seen |= !((i < panels_m ? marks_a[i] : marks_b[i - panels_m]) <= 1.0f);
    return !__syncthreads_or(seen);
}

/* Whether a block of C (args.h) is to be recomputed. */
static __device__ __forceinline__ bool is_doubted(const ieee_args &args, const uint8_t *doubts, int row, int col) {
    return doubts[(int64_t)(row / DOUBT_ROWS) * ((args.n + DOUBT_COLS - 1) / DOUBT_COLS) + col / DOUBT_COLS];
}

/* Whether any block of a tile is, whose first element this is. All threads of the block call it. */
template <int TILE_M, int TILE_N>
static __device__ __forceinline__ bool any_doubt(const ieee_args &args, const uint8_t *doubts, int row, int col) {
    constexpr int ACROSS = TILE_N / DOUBT_COLS, BLOCKS = TILE_M / DOUBT_ROWS * ACROSS;
    static_assert(TILE_M % DOUBT_ROWS == 0 && TILE_N % DOUBT_COLS == 0 && BLOCKS <= 128, "a thread for each block");
    row += threadIdx.x / ACROSS * DOUBT_ROWS;
    col += threadIdx.x % ACROSS * DOUBT_COLS;
    const bool there = threadIdx.x < BLOCKS && row < args.m && col < args.n;
    return __syncthreads_or(there && is_doubted(args, doubts, row, col));
}

/* Computes the segments of this block, by KERNEL::compute, which all its threads call. */
template <class KERNEL, int TILE_M, int TILE_N>
static __device__ __forceinline__ void compute_segments(const ieee_args &args, float *shared) {
    if (nothing_marked(args)) return;
    const float *marks_a = args.marks_a, *marks_b = args.marks_b;
    if (marks_a) {
        marks_a += blockIdx.z * args.marks_a_batch_stride;
        marks_b += blockIdx.z * args.marks_b_batch_stride;
    }
    for (int unit = blockIdx.x; unit < args.full_tiles + args.tail_units; unit += gridDim.x) {
        segment piece;
        for (bool found = first_segment(args, unit, &piece); found; found = next_segment(args, &piece)) {
            int tile_row, tile_col;
            find_tile(args, piece.tile, &tile_row, &tile_col);
            const extent rows(tile_row * TILE_M, TILE_M, args.m);
            const extent cols(tile_col * TILE_N, TILE_N, args.n);
            const uint8_t *doubts = nullptr; /* of the blocks to store; else the whole tile is */
            if (marks_a) {
                const float mark = marks_a[rows.own / PANEL_ROWS] * marks_b[cols.own / PANEL_ROWS];
                if (mark <= args.mark_limit) continue;
                if (mark < INFINITY && args.doubts) {
                    doubts = args.doubts + blockIdx.z * args.doubts_batch_stride;
                    if (!any_doubt<TILE_M, TILE_N>(args, doubts, rows.own, cols.own)) continue;
                }
                if (threadIdx.x == 0) atomicAdd(args.fallback_tiles, 1ull);
            }
            KERNEL::compute(args, piece, rows, cols, shared, doubts);
            __syncthreads(); /* the next segment's slabs take the place of these results */
        }
    }
}

/* ieee_slab.cuh: how operands come to shared memory, for the ieee kernels that compute C by tiles.
 *
 * Operands are read in place with any strides. They sweep through shared memory in slabs of SLAB terms of k, STAGES
 * slabs deep, k-major whatever their layout in global memory:
 *
 *     a slab of A: [SLAB][TILE_M + 4]      a slab of B: [SLAB][TILE_N + 4]      (+4 floats: see copy_part)
 *
 * A slab is used in PARTS steps. During each, a part of a later slab is on its way, by cp.async from sm_80 on.
 *
 * Short names: a "line" is an index of m for A and of n for B, so that both operands are the same thing.
 */

/* ---- Copies from global to shared memory ------------------------------------------------------------------------- */

/* Shared memory is addressed by its 32-bit byte address, as these instructions take it. `wanted` becomes a predicate of
 * the copy, not a branch around it, so that copies can stand between the multiplications. */
static __device__ __forceinline__ void copy_16_bytes(uint32_t shared, const char *global, int wanted) {
#if __CUDA_ARCH__ >= 800
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(shared),
                 "l"(global), "r"(wanted)
                 : "memory");
#else
    if (!wanted) return;
    const float4 v = *(const float4 *)global;
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
#endif
}

static __device__ __forceinline__ void copy_4_bytes(uint32_t shared, const char *global, int wanted) {
#if __CUDA_ARCH__ >= 800
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 4;}" ::"r"(shared),
                 "l"(global), "r"(wanted)
                 : "memory");
#else
    if (!wanted) return;
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared), "f"(*(const float *)global) : "memory");
#endif
}

/* 4 or 16 bytes, or zeros where nothing is wanted. */
template <int BYTES>
static __device__ __forceinline__ void copy_or_zero(uint32_t shared, const float *global, bool wanted) {
#if __CUDA_ARCH__ >= 800
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(wanted ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(wanted ? 4 : 0)
                     : "memory");
#else
    if (wanted && BYTES == 16)
        copy_16_bytes(shared, (const char *)global, 1);
    else if (wanted)
        copy_4_bytes(shared, (const char *)global, 1);
    else
        for (int i = 0; i < BYTES; i += 4) asm volatile("st.shared.f32 [%0], 0f00000000;" ::"r"(shared + i) : "memory");
#endif
}

static __device__ __forceinline__ void close_copy_group(void) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most OPEN of this thread's latest copy groups are still under way. */
template <int OPEN> static __device__ __forceinline__ void wait_for_copy_groups(void) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
#endif
}

/* ---- One operand ------------------------------------------------------------------------------------------------- */

/* How an operand is read. */
enum reading {
    READ_VECTORS,    /* lines are contiguous and 16-byte aligned: four lines at a time */
    READ_TERMS,      /* terms of k are contiguous: eight neighbouring threads take eight terms of one line */
    READ_LINES,      /* lines are contiguous: neighbouring threads take neighbouring lines */
    READ_TERMS_EDGE, /* the same two in a tile at the matrix's edge */
    READ_LINES_EDGE,
    READ_SINGLES, /* any strides */
    READ_ANY      /* one of these, known at run time only */
};

/* One operand of one segment: LINES lines of it, as one thread copies them. Strides of members are in bytes. Lines
 * beyond the matrix are not read: what stands in their place reaches only results that are never stored. */
template <int LINES, int SLAB, int PARTS, int THREADS> struct operand_tile {
    static constexpr int PITCH = LINES + 4;
    static constexpr int LANE_TERMS = 8; /* READ_TERMS: 8 threads along k, the others along lines */

    reading how;
    const char *next;       /* what this thread copies next */
    int64_t pass_stride;    /* from one sweep of the block's threads over the slab to the next */
    int64_t slab_stride;    /* what remains to the next slab after the last sweep */
    uint32_t shared_offset; /* where its first element goes in a slab */
    uint32_t to;            /* where its next element goes */
    int lines_left;         /* from this thread's first line to the end of the matrix */
    int lines_ahead;        /* READ_TERMS_EDGE: from the line it copies next */

    static __device__ __forceinline__ reading choose(const float *first, int64_t line_stride, int64_t k_stride,
                                                     int lines) {
        const bool inside = lines >= LINES;
        if (line_stride == 1 && k_stride % 4 == 0 && lines % 4 == 0 && (uintptr_t)first % 16 == 0) return READ_VECTORS;
        if (line_stride == 1) return inside ? READ_LINES : READ_LINES_EDGE;
        if (k_stride == 1) return inside ? READ_TERMS : READ_TERMS_EDGE;
        return READ_SINGLES;
    }

    /* Prepares to copy whole slabs from `first` on: line 0 of the tile, term 0 of the first slab. */
    __device__ __forceinline__ void begin(const float *first, int64_t line_stride, int64_t k_stride, int lines) {
        const int thread = threadIdx.x;
        int line, term;
        line_stride *= 4;
        k_stride *= 4;
        slab_stride = 0;
        if (how == READ_VECTORS) {
            line = thread % (LINES / 4) * 4;
            term = thread / (LINES / 4);
            pass_stride = k_stride * (THREADS * 4 / LINES);
        } else if (how == READ_LINES || how == READ_LINES_EDGE) {
            line = thread % 32;
            term = thread / 32;
            pass_stride = k_stride * (THREADS / 32);
        } else if (how == READ_TERMS || how == READ_TERMS_EDGE) {
            line = thread / LANE_TERMS;
            term = thread % LANE_TERMS;
            pass_stride = line_stride * (THREADS / LANE_TERMS);
            slab_stride = SLAB * k_stride - LINES * line_stride;
        } else {
            line = thread % LINES;
            term = thread / LINES;
            pass_stride = k_stride * (THREADS / LINES);
        }
        lines_left = lines - line;
        shared_offset = (term * PITCH + line) * 4;
        /* Vectors past the edge need no test: they are the last one again. */
        if (how == READ_VECTORS) line = min(line, lines - 4);
        next = (const char *)first + line * line_stride + term * k_stride;
    }

    __device__ __forceinline__ void begin_slab(uint32_t slab) {
        to = slab + shared_offset;
        lines_ahead = lines_left;
    }
    __device__ __forceinline__ void finish_slab(void) { next += slab_stride; }

    /* What a thread copies of one of PARTS parts of a slab. */
    template <reading HOW> static constexpr int COPIES = SLAB / PARTS *LINES / THREADS / (HOW == READ_VECTORS ? 4 : 1);

    /* Copy `i` of a part, if `more`. Copies, parts and slabs come in order, and finish_part behind a part's last copy.
     * Shared-memory banks: neighbouring lines lie in neighbouring banks; with READ_TERMS a warp writes 8 terms of 4
     * lines, and the pitch of LINES + 4 floats puts these into 32 different banks. */
    template <reading HOW> __device__ __forceinline__ void copy(int i, int more) {
        if constexpr (HOW == READ_VECTORS) {
            copy_16_bytes(to + i * (THREADS * 4 / LINES * PITCH * 4), next, more);
            next += pass_stride;
        } else if constexpr (HOW == READ_TERMS || HOW == READ_TERMS_EDGE) {
            constexpr int PASS_LINES = THREADS / LANE_TERMS, ALONG = SLAB / LANE_TERMS;
            static_assert(LINES % (PASS_LINES * PARTS) == 0, "every part has whole passes");
            const int sweep = i / ALONG, term = i % ALONG * LANE_TERMS;
            copy_4_bytes(to + (sweep * PASS_LINES + term * PITCH) * 4, next + term * 4,
                         HOW == READ_TERMS ? more : more & (lines_ahead > 0));
            if (i % ALONG == ALONG - 1) next += pass_stride, lines_ahead -= PASS_LINES;
        } else if constexpr (HOW == READ_LINES || HOW == READ_LINES_EDGE) {
            constexpr int TERMS = THREADS / 32, ALONG = LINES / 32;
            static_assert(SLAB % (TERMS * PARTS) == 0, "every part has whole passes");
            const int sweep = i / ALONG, line = i % ALONG * 32;
            copy_4_bytes(to + (sweep * TERMS * PITCH + line) * 4, next + line * 4,
                         HOW == READ_LINES ? more : more & (line < lines_left));
            if (i % ALONG == ALONG - 1) next += pass_stride;
        } else {
            static_assert(HOW == READ_SINGLES && SLAB % (THREADS / LINES * PARTS) == 0, "every part has whole passes");
            copy_4_bytes(to + i * (THREADS / LINES * PITCH * 4), next, more & (lines_left > 0));
            next += pass_stride;
        }
    }

    template <reading HOW> __device__ __forceinline__ void finish_part(void) {
        to += HOW == READ_TERMS || HOW == READ_TERMS_EDGE ? LINES / PARTS * 4 : SLAB / PARTS * PITCH * 4;
    }

    /* A whole part. */
    template <reading HOW> __device__ __forceinline__ void copy_part(int more) {
        if constexpr (HOW != READ_ANY) {
#pragma unroll
            for (int i = 0; i < COPIES<HOW>; ++i) copy<HOW>(i, more);
            finish_part<HOW>();
        } else if (how == READ_VECTORS)
            copy_part<READ_VECTORS>(more);
        else if (how == READ_TERMS)
            copy_part<READ_TERMS>(more);
        else if (how == READ_LINES)
            copy_part<READ_LINES>(more);
        else if (how == READ_TERMS_EDGE)
            copy_part<READ_TERMS_EDGE>(more);
        else if (how == READ_LINES_EDGE)
            copy_part<READ_LINES_EDGE>(more);
        else
            copy_part<READ_SINGLES>(more);
    }

    /* Copies `terms` terms, strides in floats, to the last of `rows` rows of shared memory; those before become zero. */
    static __device__ __forceinline__ void copy_terms(uint32_t shared, const float *first, int64_t line_stride,
                                                      int64_t k_stride, int lines, int terms, int rows) {
        const reading how = choose(first, line_stride, k_stride, lines);
        if (how == READ_VECTORS)
            copy_terms_by<4, LINES / 4>(shared, first, line_stride, k_stride, lines, terms, rows);
        else if (k_stride == 1)
            copy_terms_by<1, THREADS / LANE_TERMS>(shared, first, line_stride, k_stride, lines, terms, rows);
        else
            copy_terms_by<1, 32>(shared, first, line_stride, k_stride, lines, terms, rows);
    }

    /* A thread copies FLOATS lines at a time; LINE_THREADS threads lie along the lines, the others along k. */
    template <int FLOATS, int LINE_THREADS>
    static __device__ __forceinline__ void copy_terms_by(uint32_t shared, const float *first, int64_t line_stride,
                                                         int64_t k_stride, int lines, int terms, int rows) {
        constexpr int TERM_THREADS = THREADS / LINE_THREADS;
        constexpr bool ALONG_K = TERM_THREADS == LANE_TERMS && FLOATS == 1; /* neighbours take neighbouring terms */
        const int thread = threadIdx.x;
        const int line = (ALONG_K ? thread / TERM_THREADS : thread % LINE_THREADS) * FLOATS;
        const int first_row = ALONG_K ? thread % TERM_THREADS : thread / LINE_THREADS;
        const float *from = first + line * line_stride + (first_row - (rows - terms)) * k_stride;
        shared += (first_row * PITCH + line) * 4;
#pragma unroll 2
        for (int row = first_row; row < rows; row += TERM_THREADS) {
#pragma unroll
            for (int i = 0; i < LINES; i += LINE_THREADS * FLOATS)
                copy_or_zero<FLOATS * 4>(shared + i * 4, from + i * line_stride,
                                         row >= rows - terms && line + i < lines);
            from += TERM_THREADS * k_stride;
            shared += TERM_THREADS * PITCH * 4;
        }
    }
};

/* ---- Both operands ----------------------------------------------------------------------------------------------- */

/* The slabs of one segment, from begin and fill on: the one in use and those on their way. All threads of the block call
 * these functions together. */
template <int TILE_M, int TILE_N, int SLAB, int PARTS, int STAGES, int THREADS> struct slab_queue {
    using a_tile = operand_tile<TILE_M, SLAB, PARTS, THREADS>;
    using b_tile = operand_tile<TILE_N, SLAB, PARTS, THREADS>;
    static constexpr int A_SLAB = SLAB * a_tile::PITCH, STAGE = A_SLAB + SLAB * b_tile::PITCH; /* floats */
    static constexpr int SHARED_BYTES = STAGES * STAGE * 4;
    static constexpr int STEP = SLAB / PARTS; /* terms */
    static_assert(IEEE_RUN % SLAB == 0, "a piece of a tile is whole slabs, but for the last of k");

    static constexpr bool BEGINS_SUMS = false; /* for ieee_mma_sm90.cu */

    a_tile a;
    b_tile b;
    uint32_t memory;
    int slabs;  /* in all */
    int part;   /* of the slab in use: the step that comes next */
    int stage;  /* of the slab in use */
    int coming; /* the slab being copied, */
    int more;   /* if there is one */

    /* What k leaves over after whole slabs comes first, so that there are whole slabs to copy only from then on; steps
     * without a term of it are left out. */
    __device__ __forceinline__ void begin(const ieee_args &args, const segment &piece, const extent &rows,
                                          const extent &cols, float *shared) {
        const int64_t batch = blockIdx.z;
        const int a_lines = args.m - rows.first, b_lines = args.n - cols.first;
        const int64_t a_line = args.a.row_stride, a_k = args.a.col_stride;
        const int64_t b_line = args.b.col_stride, b_k = args.b.row_stride;
        const float *a_first = args.a.data + batch * args.a.batch_stride + rows.first * a_line + piece.k_begin * a_k;
        const float *b_first = args.b.data + batch * args.b.batch_stride + cols.first * b_line + piece.k_begin * b_k;
        a.how = a_tile::choose(a_first, a_line, a_k, a_lines);
        b.how = b_tile::choose(b_first, b_line, b_k, b_lines);
        /* Two pairs less to compile: vectors of one operand and lines of the other are lines of both. */
        if (a.how == READ_VECTORS && b.how == READ_LINES && a_lines >= TILE_M) a.how = READ_LINES;
        if (b.how == READ_VECTORS && a.how == READ_LINES && b_lines >= TILE_N) b.how = READ_LINES;

        const int ragged = piece.terms % SLAB;
        memory = (uint32_t)__cvta_generic_to_shared(shared);
        slabs = (piece.terms + SLAB - 1) / SLAB;
        a.begin(a_first + ragged * a_k, a_line, a_k, a_lines);
        b.begin(b_first + ragged * b_k, b_line, b_k, b_lines);
        part = coming = 0;
        if (ragged) {
            part = (SLAB - ragged) / STEP;
            const int used = SLAB - part * STEP;
            const uint32_t a_shared = memory + part * STEP * a_tile::PITCH * 4;
            const uint32_t b_shared = memory + (A_SLAB + part * STEP * b_tile::PITCH) * 4;
            a_tile::copy_terms(a_shared, a_first, a_line, a_k, a_lines, ragged, used);
            b_tile::copy_terms(b_shared, b_first, b_line, b_k, b_lines, ragged, used);
            close_copy_group();
            coming = 1;
        }
    }

    /* Fills all stages but the last, and of that one what belongs to the steps left out: the main loop copies the rest.
     * Then waits for the first slab. */
    template <reading A, reading B> __device__ __forceinline__ void fill(void) {
#pragma unroll 1
        for (; coming < STAGES - 1; ++coming) {
            if (coming < slabs) {
                begin_slab(coming);
#pragma unroll(A == READ_ANY ? 1 : PARTS)
                for (int i = 0; i < PARTS; ++i) {
                    a.template copy_part<A>(1);
                    b.template copy_part<B>(1);
                }
                a.finish_slab();
                b.finish_slab();
            }
            close_copy_group();
        }
        more = coming < slabs;
        begin_slab(coming);
#pragma unroll 1
        for (int i = 0; i < part; ++i) {
            a.template copy_part<A>(more);
            b.template copy_part<B>(more);
        }
        /* What these are made of is to be forgotten: the main loops would be longer for it. */
        asm volatile("" : "+l"(a.pass_stride), "+l"(b.pass_stride), "+l"(a.slab_stride), "+l"(b.slab_stride));
        wait_for_copy_groups<STAGES - 2>(); /* the last one's group stays open */
        __syncthreads();
        stage = 0;
    }

    __device__ __forceinline__ void begin_slab(int to_stage) {
        a.begin_slab(memory + to_stage * (STAGE * 4));
        b.begin_slab(memory + to_stage * (STAGE * 4) + A_SLAB * 4);
    }

    /* Where the slab in use is. */
    __device__ __forceinline__ uint32_t a_slab(void) const { return memory + stage * (STAGE * 4); }
    __device__ __forceinline__ uint32_t b_slab(void) const { return a_slab() + A_SLAB * 4; }

    __device__ __forceinline__ int steps(void) const { return slabs * PARTS - part; }

    /* Copies a part of the slab that is coming: once in each step of the slab in use. */
    template <reading A, reading B> __device__ __forceinline__ void copy_part(void) {
        a.template copy_part<A>(more);
        b.template copy_part<B>(more);
        ++part;
    }

    /* The same a copy at a time, COPIES of them; finish_part behind the last. */
    template <reading A, reading B>
    static constexpr int COPIES = a_tile::template COPIES<A> + b_tile::template COPIES<B>;

    template <reading A, reading B> __device__ __forceinline__ void copy(int i) {
        if (i < a_tile::template COPIES<A>)
            a.template copy<A>(i, more);
        else
            b.template copy<B>(i - a_tile::template COPIES<A>, more);
    }

    template <reading A, reading B> __device__ __forceinline__ void finish_part(void) {
        a.template finish_part<A>();
        b.template finish_part<B>();
        ++part;
    }

    /* Where all steps of the slab in use have begun and nobody will read it again: on to the next slab. True then. */
    __device__ __forceinline__ bool next_slab(void) {
        if (part < PARTS) return false;
        close_copy_group();
        wait_for_copy_groups<STAGES - 2>();
        __syncthreads();
        part = 0;
        more = ++coming < slabs;
        a.finish_slab();
        b.finish_slab();
        begin_slab(stage); /* the slab just used up makes room */
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        return true;
    }

    /* All copies have arrived, and the block's threads are done with the slabs. */
    static __device__ __forceinline__ void end(void) {
        wait_for_copy_groups<0>();
        __syncthreads();
    }
};

/* overlap.cuh: kernels of one call that overlap on Hopper and later, the start of one with the end of the one before
 * (launch.c, `waits` of kernels.h). A kernel that may be launched early calls wait_for_previous_kernel in every thread
 * before it touches device memory that the one before writes, or writes what that one reads; then the one before has
 * ended, and with it all that came before that. What kernels before that one wrote is there, and may be read at once;
 * but one thread of the grid at least must wait. Earlier GPUs launch one kernel after the other, and nothing is to be done. */

__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel's blocks may take places on the multiprocessors as soon as all of this one's have called it or ended.
 * Never before wait_for_previous_kernel. */
__device__ inline void let_next_kernel_come() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

namespace ieee_reduce {
/* ieee_reduce.cu: adds up the pieces of the tiles that were cut along k, and applies alpha and beta.
 *
 * C = alpha * (piece 0 + piece 1 + ...) + beta*S, always in this order: the same problem gives the same bits. A thread
 * has four neighbouring columns, a block 512 elements of one tile of partial (ieee_args). Limits: 128 threads, no
 * shared memory; tile_m*tile_n a multiple of 128, tile_n a power of two from 4 on; grid.x = tail tiles times
 * ceil(tile_m*tile_n / 512), grid.z = batch.
 */

/* Four neighbours, of which those from `count` on are past the matrix: nobody has written them. */
static __device__ __forceinline__ float4 four_of(const float *from, int count) {
    if (count >= 4) return *(const float4 *)from;
    return make_float4(from[0], count > 1 ? from[1] : 0, count > 2 ? from[2] : 0, 0);
}

extern "C" __global__ void __launch_bounds__(128) ieee_reduce(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    const int tile_size = args.tile_m * args.tile_n, parts = (tile_size + 511) / 512;
    const int tail = blockIdx.x / parts, part = blockIdx.x - tail * parts;
    const int64_t runs = runs_per_tile(args), tail_runs = runs * tail_tiles(args);
    const int64_t first = unit_of_run(args, tail * runs, tail_runs);
    const int pieces = (int)(unit_of_run(args, (tail + 1) * runs - 1, tail_runs) - first) + 1;
    if (pieces == 1) return; /* the multiplication has stored it */

    int tile_row, tile_col;
    find_tile(args, args.full_tiles + tail, &tile_row, &tile_col);
    const int in_tile = (part * 128 + (int)threadIdx.x) * 4, shift = __ffs(args.tile_n) - 1;
    const int row = tile_row * args.tile_m + (in_tile >> shift);
    const int col = tile_col * args.tile_n + (in_tile & (args.tile_n - 1));
    if (in_tile >= tile_size || row >= args.m || col >= args.n) return;

    const float *from = partial_tile(args, args.full_tiles + tail, 0) + in_tile;
    float4 sum = four_of(from, args.n - col);
#pragma unroll 4
    for (int piece = 1; piece < pieces; ++piece) {
        const float4 next = four_of(from + (int64_t)piece * tile_size, args.n - col);
        sum.x += next.x;
        sum.y += next.y;
        sum.z += next.z;
        sum.w += next.w;
    }
    float *at = args.c.data + blockIdx.z * args.c.batch_stride + row * args.c.row_stride + col * args.c.col_stride;
    const float *add = args.source.data + blockIdx.z * args.source.batch_stride + row * args.source.row_stride +
                       col * args.source.col_stride;
    const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i, at += args.c.col_stride, add += args.source.col_stride)
        if (col + i < args.n)
            *at = args.beta == 0.0f ? args.alpha * sums[i] : fmaf(args.alpha, sums[i], args.beta * *add);
}
} // namespace ieee_reduce
"""

# ---- Kernels in plain float32, CUDA --------------------------------------------------------------------------------

IEEE_TILE_KERNELS = r"""
/* ieee_tile.cuh: C = alpha*A*B + beta*S in IEEE float32, a tile of C at a time, for every tile size (ieee_tile_*.cu).
 *
 * Operands come to shared memory as ieee_slab.cuh says.
 *
 * Tile map. A block's warps are WARPS_M x WARPS_N, a warp's lanes LANES_M x LANES_N, a thread's results ROWS x COLS,
 * held in registers. Rows and columns of a thread come in groups of four neighbours, so that one 16-byte load from
 * shared memory brings four of them; the groups of one warp interleave: row of thread = group*4*LANES_M + lane_m*4 +
 * 0..3.
 *
 * k runs in steps of STEP terms, the body of the one main loop. While a step is multiplied, a part of a later slab is
 * on its way from global to shared memory, and the next term's values from shared memory to registers.
 *
 * What the speed hangs on. A scheduler issues one instruction a cycle, and an fma is one: every other instruction
 * costs. Per term a thread does ROWS*COLS fma for (ROWS + COLS)/4 loads: large thread tiles. And an fma reads three
 * registers, of which each of the two banks (even, odd) delivers one a cycle: so neighbouring fma must share a factor,
 * which the hardware keeps at hand, and the other two registers must be of different parity. See multiply and store.
 */

/* SEPARATE: the main loop is compiled once for each pair of readings that matters, without a branch in it. */
template <int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int ROWS, int COLS, int SLAB, int STEP, int STAGES,
          bool SEPARATE>
struct ieee_tile {
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
    static constexpr int LANES_M = WARP_M / ROWS, LANES_N = WARP_N / COLS;
    static constexpr int PARTS = SLAB / STEP;
    using queue = slab_queue<TILE_M, TILE_N, SLAB, PARTS, STAGES, THREADS>;
    static constexpr int A_PITCH = queue::a_tile::PITCH, B_PITCH = queue::b_tile::PITCH;
    static constexpr int RESULT_PITCH = WARP_N + 4;
    static constexpr int SHARED_BYTES = queue::SHARED_BYTES;

    static_assert(LANES_M * LANES_N == 32, "the lanes of a warp cover its part of the tile");
    static_assert(ROWS % 4 == 0 && COLS % 4 == 0, "values come from shared memory four at a time");
    static_assert(STEP % 2 == 0, "two register sets alternate between terms, and each step starts with the first");
    static_assert(WARPS_M * WARPS_N * LANES_M * RESULT_PITCH * 4 <= SHARED_BYTES, "results sweep through the slabs");

    /* Where a thread's results are. Lanes 2i and 2i+1 have the same rows, lanes i and i^2 the same columns: a warp's
     * 16-byte loads from shared memory then take two passes instead of four. */
    struct place {
        int warp_m, warp_n, lane_m, lane_n;
        __device__ __forceinline__ place() {
            const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
            warp_m = warp / WARPS_N * WARP_M;
            warp_n = warp % WARPS_N * WARP_N;
            lane_m = lane / 2 % LANES_M;
            lane_n = lane % 2 + lane / (2 * LANES_M) * 2;
        }
    };

    /* Four values at a time, `apart` floats from each other in shared memory. */
    template <int COUNT>
    static __device__ __forceinline__ void load(float (&values)[COUNT], const float *from, int apart) {
#pragma unroll
        for (int group = 0; group < COUNT / 4; ++group)
            *(float4 *)&values[group * 4] = *(const float4 *)(from + group * apart);
    }

    /* Which operand comes first changes how the compiler arranges the fma: this is the quicker order for each tile. */
    static __device__ __forceinline__ void load_values(float (&a)[ROWS], float (&b)[COLS], const float *a_from,
                                                       const float *b_from) {
        if (ROWS > COLS) load(a, a_from, 4 * LANES_M);
        load(b, b_from, 4 * LANES_N);
        if (ROWS <= COLS) load(a, a_from, 4 * LANES_M);
    }

    /* The main loop: adds the terms of all slabs. */
    template <reading A, reading B>
    static __device__ __forceinline__ void multiply(float (&sum)[ROWS][COLS], const place &my, float *shared,
                                                    queue &slabs) {
        slabs.template fill<A, B>();
        const int a_offset = my.warp_m + my.lane_m * 4, b_offset = queue::A_SLAB + my.warp_n + my.lane_n * 4;
        const float *a_from = shared + a_offset + slabs.part * STEP * A_PITCH;
        const float *b_from = shared + b_offset + slabs.part * STEP * B_PITCH;
        float a_values[2][ROWS], b_values[2][COLS];
        load_values(a_values[0], b_values[0], a_from, b_from);

#pragma unroll 1
        for (int steps = slabs.steps(); steps > 0; --steps) {
            slabs.template copy_part<A, B>();
#pragma unroll
            for (int term = 0; term < STEP; ++term) {
                float(&a_now)[ROWS] = a_values[term % 2], (&b_now)[COLS] = b_values[term % 2];
                if (term + 1 < STEP) {
                    load_values(a_values[(term + 1) % 2], b_values[(term + 1) % 2], a_from + (term + 1) * A_PITCH,
                                b_from + (term + 1) * B_PITCH);
                } else {
                    a_from += STEP * A_PITCH;
                    b_from += STEP * B_PITCH;
                    if (slabs.next_slab()) { /* the last one's values are in registers */
                        a_from = shared + slabs.stage * queue::STAGE + a_offset;
                        b_from = shared + slabs.stage * queue::STAGE + b_offset;
                    }
                    load_values(a_values[0], b_values[0], a_from, b_from);
                }
                /* Row by row, back and forth: each fma has a factor in common with the one before. */
#pragma unroll
                for (int row = 0; row < ROWS; ++row) {
#pragma unroll
                    for (int i = 0; i < COLS; ++i) {
                        const int col = row % 2 ? COLS - 1 - i : i;
                        sum[row][col] = fmaf(a_now[row], b_now[col], sum[row][col]);
                    }
                }
            }
        }
    }

    /* Computes one segment's sums and stores them. */
    static __device__ __forceinline__ void compute(const ieee_args &args, const segment &piece, const extent &rows,
                                                   const extent &cols, float *shared, const uint8_t *doubts) {
        const place my;
        queue slabs;
        slabs.begin(args, piece, rows, cols, shared);
        const reading a = slabs.a.how, b = slabs.b.how;
        float sum[ROWS][COLS] = {};
        if (SEPARATE && a == READ_VECTORS && b == READ_VECTORS)
            multiply<READ_VECTORS, READ_VECTORS>(sum, my, shared, slabs);
        else if (SEPARATE && a == READ_TERMS && b == READ_VECTORS)
            multiply<READ_TERMS, READ_VECTORS>(sum, my, shared, slabs);
        else if (SEPARATE && a == READ_VECTORS && b == READ_TERMS)
            multiply<READ_VECTORS, READ_TERMS>(sum, my, shared, slabs);
        else if (SEPARATE && a == READ_TERMS && b == READ_TERMS)
            multiply<READ_TERMS, READ_TERMS>(sum, my, shared, slabs);
        else if (SEPARATE && a == READ_TERMS && b == READ_LINES)
            multiply<READ_TERMS, READ_LINES>(sum, my, shared, slabs);
        else if (SEPARATE && a == READ_LINES && b == READ_TERMS)
            multiply<READ_LINES, READ_TERMS>(sum, my, shared, slabs);
        else if (SEPARATE && a == READ_LINES && b == READ_LINES)
            multiply<READ_LINES, READ_LINES>(sum, my, shared, slabs);
        else
            multiply<READ_ANY, READ_ANY>(sum, my, shared, slabs);
        slabs.end();
        store(args, sum, piece, rows, cols, my, shared + threadIdx.x / 32 * (LANES_M * RESULT_PITCH), doubts);
    }

    /* Stores a segment's sums. They go through shared memory, LANES_M rows of the warp's part at a time, so that a warp
     * writes whole rows. There, columns 2i and 2i+1 change places: the 16-byte stores need four sums in registers that
     * follow each other, and this order gives sum[row][col] the opposite parity of b's value for that column. */
    static __device__ __forceinline__ void store(const ieee_args &args, const float (&sum)[ROWS][COLS],
                                                 const segment &piece, const extent &rows, const extent &cols,
                                                 const place &my, float *staging, const uint8_t *doubts) {
        const int lane = threadIdx.x % 32;
        /* Of the warp's part: the rows and columns that are this tile's own, and where the matrix ends. */
        const int rows_own = rows.own - rows.first - my.warp_m, cols_own = cols.own - cols.first - my.warp_n;
        int rows_end = args.m - rows.first - my.warp_m, cols_end = args.n - cols.first - my.warp_n;
        float alpha = args.alpha, beta = args.beta;
        int64_t row_stride = args.c.row_stride, col_stride = args.c.col_stride;
        float *out = args.c.data + blockIdx.z * args.c.batch_stride + (rows.first + my.warp_m) * row_stride +
                     (cols.first + my.warp_n) * col_stride;
        if (!piece.whole) {
            out = partial_tile(args, piece.tile, piece.index) - rows_own * TILE_N - cols_own;
            row_stride = TILE_N;
            col_stride = 1;
            rows_end = WARP_M;
            cols_end = WARP_N;
            alpha = 1.0f;
            beta = 0.0f;
        }
        const matrix_in &s = args.source;
        const float *source = s.data + blockIdx.z * s.batch_stride + (rows.first + my.warp_m) * s.row_stride +
                              (cols.first + my.warp_n) * s.col_stride;
        const bool vectors = !doubts && col_stride == 1 && row_stride % 4 == 0 && cols_end % 4 == 0 &&
                             cols_own % 4 == 0 && (uintptr_t)out % 16 == 0;
        const bool source_vectors = s.col_stride == 1 && s.row_stride % 4 == 0 && (uintptr_t)source % 16 == 0;

#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            __syncwarp();
#pragma unroll
            for (int group = 0; group < COLS / 4; ++group)
                *(float4 *)(staging + my.lane_m * RESULT_PITCH + group * 4 * LANES_N + my.lane_n * 4) = make_float4(
                    sum[row][group * 4 + 1], sum[row][group * 4], sum[row][group * 4 + 3], sum[row][group * 4 + 2]);
            __syncwarp();
            const int first_row = row / 4 * 4 * LANES_M + row % 4;
            if (vectors) {
#pragma unroll
                for (int i = lane; i < LANES_M * WARP_N / 4; i += 32) {
                    const int line = i / (WARP_N / 4), col = i % (WARP_N / 4) * 4, out_row = first_row + line * 4;
                    if (out_row < rows_own || out_row >= rows_end || col < cols_own || col >= cols_end) continue;
                    float4 *at = (float4 *)(out + out_row * row_stride + col);
                    const float4 sums = *(const float4 *)(staging + line * RESULT_PITCH + col);
                    float4 value = {alpha * sums.y, alpha * sums.x, alpha * sums.w, alpha * sums.z};
                    if (beta != 0.0f) {
                        const float *add = source + out_row * s.row_stride + col * s.col_stride;
                        const float4 old = source_vectors ? *(const float4 *)add
                                                          : make_float4(add[0], add[s.col_stride],
                                                                        add[2 * s.col_stride], add[3 * s.col_stride]);
                        value = {fmaf(alpha, sums.y, beta * old.x), fmaf(alpha, sums.x, beta * old.y),
                                 fmaf(alpha, sums.w, beta * old.z), fmaf(alpha, sums.z, beta * old.w)};
                    }
                    *at = value;
                }
            } else {
#pragma unroll 4
                for (int i = lane; i < LANES_M * WARP_N; i += 32) {
                    const int line = i / WARP_N, col = i % WARP_N, out_row = first_row + line * 4;
                    if (out_row < rows_own || out_row >= rows_end || col < cols_own || col >= cols_end) continue;
                    if (doubts &&
                        !is_doubted(args, doubts, rows.first + my.warp_m + out_row, cols.first + my.warp_n + col))
                        continue;
                    float *at = out + out_row * row_stride + col * col_stride;
                    const float value = staging[line * RESULT_PITCH + (col ^ 1)];
                    *at = beta == 0.0f ? alpha * value
                                       : fmaf(alpha, value, beta * source[out_row * s.row_stride + col * s.col_stride]);
                }
            }
        }
    }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        extern __shared__ __align__(16) float shared[];
        compute_segments<ieee_tile, TILE_M, TILE_N>(args, shared);
    }
};

namespace ieee_tile_128x128 {
/* ieee_tile_128x128.cu: C = alpha*A*B + beta*S in IEEE float32, tiles of 128 x 128: large products, and the tiles of a
 * split product that are marked to be computed again.
 *
 * Layouts and tile map: ieee_tile.cuh. 2 x 2 warps of 64 x 64, 4 x 8 lanes of 16 x 8: 6 loads of 16 bytes from shared
 * memory for 128 fma.
 * Limits: 128 threads, at most 255 registers, 67,584 bytes of shared memory (more than Turing has): 2 blocks per SM
 * (1 with 100 KB of shared memory: sm_86, sm_89, sm_120).
 */

using tile_128x128 = ieee_tile<128, 128, 2, 2, 16, 8, 32, 8, 2, true>;
static_assert(tile_128x128::SHARED_BYTES == IEEE_TILE_128X128_SHARED, "what the host asks for");

extern "C" __global__ void __launch_bounds__(128, 2) ieee_tile_128x128(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    let_next_kernel_come();
    tile_128x128::run(args);
}
} // namespace ieee_tile_128x128

namespace ieee_tile_128x64 {
/* ieee_tile_128x64.cu: C = alpha*A*B + beta*S in IEEE float32, tiles of 128 x 64: medium and narrow products.
 *
 * Layouts and tile map: ieee_tile.cuh. 2 x 2 warps of 64 x 32, 8 x 4 lanes of 8 x 8: 4 loads of 16 bytes from shared
 * memory for 64 fma.
 * Limits: 128 threads, at most 168 registers, 51,200 bytes of shared memory: 3 blocks per SM (1 before sm_80).
 */

using tile_128x64 = ieee_tile<128, 64, 2, 2, 8, 8, 32, 8, 2, true>;
static_assert(tile_128x64::SHARED_BYTES == IEEE_TILE_128X64_SHARED, "what the host asks for");

extern "C" __global__ void __launch_bounds__(128, 3) ieee_tile_128x64(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    let_next_kernel_come();
    tile_128x64::run(args);
}
} // namespace ieee_tile_128x64

namespace ieee_tile_64x64 {
/* ieee_tile_64x64.cu: C = alpha*A*B + beta*S in IEEE float32, tiles of 64 x 64: small products.
 *
 * Layouts and tile map: ieee_tile.cuh. 2 x 2 warps of 32 x 32, 8 x 4 lanes of 4 x 8: 3 loads of 16 bytes from shared
 * memory for 32 fma.
 * Limits: 128 threads, at most 96 registers, 34,816 bytes of shared memory: 5 blocks per SM (1 before sm_80).
 */

using tile_64x64 = ieee_tile<64, 64, 2, 2, 4, 8, 32, 8, 2, true>;
static_assert(tile_64x64::SHARED_BYTES == IEEE_TILE_64X64_SHARED, "what the host asks for");

extern "C" __global__ void __launch_bounds__(128, 5) ieee_tile_64x64(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    let_next_kernel_come();
    tile_64x64::run(args);
}
} // namespace ieee_tile_64x64
"""

# ---- On Hopper instead: kernels of unsplit operands in float64 on tensor cores, CUDA -------------------------------

IEEE_MMA_KERNELS = r"""
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

namespace ieee_mma_sm90 {
/* ieee_mma_sm90.cu: C = alpha*A*B + beta*S on Hopper's float64 tensor cores, a tile of C at a time.
 *
 * A product of two float32 is exact in float64, and sums in float64 lose next to nothing: what remains is one rounding
 * to float32 in the end. And it is quicker than float32 units are. An SM's float64 tensor cores do no more
 * multiply-adds a cycle, 128, but one warp instruction is 1024 of them and takes 32 cycles, which leaves the issue
 * slots to all that must happen besides.
 *
 * Operands come to shared memory as float32, as ieee_slab.cuh says, and are widened in registers.
 *
 * Tile map. A block's warps are WARPS_M x WARPS_N parts of the tile x WARPS_K warps, which share a part: each takes 8
 * terms of every step, and their sums meet in the end. The instruction multiplies 16 lines of A by 8 lines of B over 8
 * terms: lane 4g + t gives terms t and t + 4 of lines g and g + 8 of A and of line g of B, and gets rows g and g + 8 of
 * columns 2t and 2t + 1. Which lines of the tile these are is ours to choose. Of every 32 lines, lane 4g + t has the
 * four from line(g) = g/2*4 + g%2*16 on, one for an instruction (B) or two (A):
 *
 *   - one 16-byte load from shared memory brings a term of four lines; the eight lanes served together, two g and four
 *     t, read at 4*t + line(g) floats modulo 32 (the pitch being 4), which are all banks once;
 *   - the instruction's columns 2t and 2t + 1 are then columns 4t and 4t + 16, and those of four instructions 4t..4t+3
 *     and the same 16 further on.
 *
 * What the speed hangs on. A warp issues in order, so what stands between two of the instructions must fit into the 32
 * cycles that the first one takes; see multiply. What does not is hidden by the other warps of the SM, which has two or
 * three for each of its four tensor cores.
 */

/* ---- Instructions ------------------------------------------------------------------------------------------------ */

/* Volatile, all of them: they stay in the order of multiply, which has been chosen with care. */

/* 16 rows x 8 columns of C: adds 8 terms, or begins with them. A lane gives terms t and t + 4 of lines g (a0) and g + 8
 * (a1) of A and of line g of B. */
static __device__ __forceinline__ void multiply_8_terms(double (&sum)[4], bool begin, const double (&a0)[2],
                                                        const double (&a1)[2], const double (&b)[2]) {
    if (begin)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%10, %10, %10, %10};"
                     : "=d"(sum[0]), "=d"(sum[1]), "=d"(sum[2]), "=d"(sum[3])
                     : "d"(a0[0]), "d"(a1[0]), "d"(a0[1]), "d"(a1[1]), "d"(b[0]), "d"(b[1]), "d"(0.0));
    else
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
                     : "d"(a0[0]), "d"(a1[0]), "d"(a0[1]), "d"(a1[1]), "d"(b[0]), "d"(b[1]));
}

static __device__ __forceinline__ double widen(float x) {
    double y;
    asm volatile("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float4 load_16_bytes(uint32_t shared) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(shared)
                 : "memory");
    return v;
}

/* ---- The tile ---------------------------------------------------------------------------------------------------- */

template <int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int WARPS_K, int STAGES> struct ieee_mma {
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
    static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
    static constexpr int SLAB = 32, STEP = 8 * WARPS_K;
    using queue = slab_queue<TILE_M, TILE_N, SLAB, SLAB / STEP, STAGES, THREADS>;
    static constexpr int A_PITCH = queue::a_tile::PITCH * 4, B_PITCH = queue::b_tile::PITCH * 4; /* bytes */
    static constexpr int SHARED_BYTES = queue::SHARED_BYTES;
    static constexpr int ROWS = WARP_M / 16, COLS = WARP_N / 8; /* instructions for a warp's part of the tile */
    using sums = double[ROWS][COLS][4];

    static constexpr int STAGING_PITCH = TILE_N + 4; /* floats: results on their way, [TILE_M][STAGING_PITCH] */

    static_assert(WARP_M % 32 == 0 && WARP_N == 32, "lines go in groups of 32, and a lane stores a column");
    static_assert(A_PITCH % 128 == 16 && B_PITCH % 128 == 16, "loads from shared memory have no bank conflicts");
    static_assert(TILE_M * STAGING_PITCH * 4 <= SHARED_BYTES, "results sweep through the slabs' memory");
    static_assert(2 * ROWS % WARPS_K == 0, "warps that share a part of the tile have as many rows of it each");
    static_assert(WARPS_K == 1 || THREADS * 2 * ROWS * COLS * 16 <= SHARED_BYTES,
                  "sums sweep through the slabs' memory");

    /* Where in the tile a warp works, and in a group of 32 lines a lane. */
    struct place {
        int warp_m, warp_n, warp_k, line, term;
        __device__ __forceinline__ place() {
            const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4;
            warp_k = warp % WARPS_K;
            warp_n = warp / WARPS_K % WARPS_N * WARP_N;
            warp_m = warp / WARPS_K / WARPS_N * WARP_M;
            line = group / 2 * 4 + group % 2 * 16;
            term = lane % 4;
        }
    };

    /* One operand's values for a step: of each group of 32 lines the lane's four, and of each of these two terms. */
    template <int LINES, int PITCH> struct values {
        float narrow[LINES][2];
        double wide[LINES][2];

        __device__ __forceinline__ void load(uint32_t from) {
#pragma unroll
            for (int i = 0; i < LINES; i += 4)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float4 v = load_16_bytes(from + half * 4 * PITCH + i * 32);
                    narrow[i][half] = v.x;
                    narrow[i + 1][half] = v.y;
                    narrow[i + 2][half] = v.z;
                    narrow[i + 3][half] = v.w;
                }
        }
        __device__ __forceinline__ void widen_line(int i) {
            wide[i][0] = widen(narrow[i][0]);
            wide[i][1] = widen(narrow[i][1]);
        }
    };

    /* The main loop: adds the terms of all slabs. A step is ROWS x COLS instructions. Behind the first one the last
     * widenings for this step are done, behind the second the loads for the next; then, as the step is done with a
     * line, its widening for the next. Copies of a part of a slab are spread among them. With BEGINS_SUMS there is
     * nothing to add to yet: a first step of its own, which is worth its code where there are few. */
    template <reading A, reading B, class QUEUE>
    static __device__ __forceinline__ void multiply(sums &sum, const place &my, QUEUE &slabs) {
        constexpr bool SEPARATE = A != READ_ANY;
        constexpr int LAST = ROWS * COLS - 1, COPIES = SEPARATE ? QUEUE::template COPIES<A, B> : 0;
        slabs.template fill<A, B>();
        const int first_term = my.warp_k * 8 + my.term;
        const uint32_t a_offset = first_term * A_PITCH + (my.warp_m + my.line) * 4;
        const uint32_t b_offset = first_term * B_PITCH + (my.warp_n + my.line) * 4;
        uint32_t a_from = slabs.a_slab() + a_offset + slabs.part * STEP * A_PITCH;
        uint32_t b_from = slabs.b_slab() + b_offset + slabs.part * STEP * B_PITCH;
        int steps = slabs.steps();
        values<2 * ROWS, A_PITCH> a;
        values<COLS, B_PITCH> b;
        a.load(a_from);
        b.load(b_from);
#pragma unroll
        for (int i = 0; i < 2 * ROWS - 2; ++i) a.widen_line(i);
#pragma unroll
        for (int i = 0; i < COLS - 1; ++i) b.widen_line(i);
        slabs.template copy_part<A, B>();

        const auto step = [&](bool first) __attribute__((always_inline)) {
#pragma unroll
            for (int i = 0; i <= LAST; ++i) {
                const int row = i / COLS, col = i % COLS;
                multiply_8_terms(sum[row][col], first, a.wide[2 * row], a.wide[2 * row + 1], b.wide[col]);
                if (i == 0) {
                    a.widen_line(2 * ROWS - 2);
                    a.widen_line(2 * ROWS - 1);
                    b.widen_line(COLS - 1);
                }
                if (i == 1) {
                    a_from += STEP * A_PITCH;
                    b_from += STEP * B_PITCH;
                    if (slabs.next_slab()) {
                        a_from = slabs.a_slab() + a_offset;
                        b_from = slabs.b_slab() + b_offset;
                    }
                    a.load(a_from);
                    b.load(b_from);
                    if (!SEPARATE) slabs.template copy_part<READ_ANY, READ_ANY>();
                }
                if (row > 0 && col < 2) a.widen_line(2 * (row - 1) + col);
                if (row == ROWS - 1 && col > 0) b.widen_line(col - 1);
                if constexpr (SEPARATE) {
                    if (i >= 2)
#pragma unroll
                        for (int copy = (i - 2) * COPIES / (LAST - 1); copy < (i - 1) * COPIES / (LAST - 1); ++copy)
                            slabs.template copy<A, B>(copy);
                    if (i == LAST) slabs.template finish_part<A, B>();
                }
            }
        };
        if constexpr (QUEUE::BEGINS_SUMS) {
            step(true);
            --steps;
        }
#pragma unroll 1
        for (; steps > 0; --steps) step(false);
    }

    /* Computes one segment's sums and stores them. */
    static __device__ __forceinline__ void compute(const ieee_args &args, const segment &piece, const extent &rows,
                                                   const extent &cols, float *shared, const uint8_t *doubts) {
        const place my;
        queue slabs;
        slabs.begin(args, piece, rows, cols, shared);
        const reading a = slabs.a.how, b = slabs.b.how;
        sums sum = {};
        if (a == READ_VECTORS && b == READ_VECTORS)
            multiply<READ_VECTORS, READ_VECTORS>(sum, my, slabs);
        else if (a == READ_TERMS && b == READ_VECTORS)
            multiply<READ_TERMS, READ_VECTORS>(sum, my, slabs);
        else if (a == READ_VECTORS && b == READ_TERMS)
            multiply<READ_VECTORS, READ_TERMS>(sum, my, slabs);
        else if (a == READ_TERMS && b == READ_TERMS)
            multiply<READ_TERMS, READ_TERMS>(sum, my, slabs);
        else if (a == READ_TERMS && b == READ_LINES)
            multiply<READ_TERMS, READ_LINES>(sum, my, slabs);
        else if (a == READ_LINES && b == READ_TERMS)
            multiply<READ_LINES, READ_TERMS>(sum, my, slabs);
        else if (a == READ_LINES && b == READ_LINES)
            multiply<READ_LINES, READ_LINES>(sum, my, slabs);
        else
            multiply<READ_ANY, READ_ANY>(sum, my, slabs);
        results result;
        collect(result, sum, my, (double2 *)shared);
        store(args, target(args, piece, rows, cols), result, my, shared, doubts);
    }

    /* What a lane stores: of ROWS_EACH rows (row_of) four neighbouring columns in two places, 16 apart. */
    static constexpr int ROWS_EACH = 2 * ROWS / WARPS_K;
    using results = double[ROWS_EACH][2][4];

    /* From sums to results. Warps that share a part of the tile add up theirs, each for some of the rows. */
    static __device__ __forceinline__ void collect(results &result, const sums &sum, const place &my, double2 *shared) {
        if constexpr (WARPS_K == 1) {
#pragma unroll
            for (int i = 0; i < ROWS_EACH * 8; ++i)
                result[i / 8][i / 4 % 2][i % 4] = sum[i / 16][i % 4][i / 8 % 2 * 2 + i / 4 % 2];
        } else {
            constexpr int EACH = 2 * ROWS * COLS * 32; /* of a warp: [row][column of four][lane] */
            double2 *mine = shared + threadIdx.x / 32 * EACH + threadIdx.x % 32;
            __syncthreads(); /* the slabs are done with */
#pragma unroll
            for (int i = 0; i < 2 * ROWS * COLS; ++i) {
                const double(&four)[4] = sum[i / COLS / 2][i % COLS];
                const int at = i / COLS % 2 * 2;
                mine[i * 32] = make_double2(four[at], four[at + 1]);
            }
            __syncthreads();
            const double2 *from = mine + (my.warp_k * (ROWS_EACH * COLS * 32) - my.warp_k * EACH);
#pragma unroll
            for (int i = 0; i < ROWS_EACH * COLS; ++i) {
                double2 total = from[i * 32];
#pragma unroll
                for (int k = 1; k < WARPS_K; ++k) {
                    const double2 more = from[k * EACH + i * 32];
                    total.x += more.x;
                    total.y += more.y;
                }
                result[i / COLS][0][i % COLS] = total.x;
                result[i / COLS][1][i % COLS] = total.y;
            }
        }
    }

    static __device__ __forceinline__ int row_of(const place &my, int i) {
        i += my.warp_k * ROWS_EACH;
        return my.warp_m + i / 4 * 32 + my.line + i % 4;
    }

    /* Where a segment's sums go. Of the tile, rows [rows_own, rows_end) and columns [cols_own, cols_end) are stored. */
    struct target {
        float *out; /* of the tile's first element */
        int64_t row_stride, col_stride;
        int row, col; /* the tile's first */
        int rows_own, rows_end, cols_own, cols_end;
        float alpha, beta;

        __device__ __forceinline__ target(const ieee_args &args, const segment &piece, const extent &rows,
                                          const extent &cols)
            : row(rows.first), col(cols.first), rows_own(rows.own - rows.first), cols_own(cols.own - cols.first) {
            if (piece.whole) {
                row_stride = args.c.row_stride;
                col_stride = args.c.col_stride;
                out = args.c.data + blockIdx.z * args.c.batch_stride + row * row_stride + col * col_stride;
                rows_end = min(TILE_M, args.m - row);
                cols_end = min(TILE_N, args.n - col);
                alpha = args.alpha;
                beta = args.beta;
            } else {
                row_stride = TILE_N;
                col_stride = 1;
                out = partial_tile(args, piece.tile, piece.index) - rows_own * TILE_N - cols_own;
                rows_end = TILE_M;
                cols_end = TILE_N;
                alpha = 1;
                beta = 0;
            }
        }
        __device__ __forceinline__ bool is_whole(void) const {
            return rows_own == 0 && rows_end == TILE_M && cols_own == 0 && cols_end == TILE_N;
        }
        __device__ __forceinline__ bool has_row(int i) const { return i >= rows_own && i < rows_end; }
        __device__ __forceinline__ bool has_col(int i) const { return i >= cols_own && i < cols_end; }
        /* Whether four neighbouring columns are 16 aligned bytes, to be stored or left as they are. */
        __device__ __forceinline__ bool takes_vectors(void) const {
            return col_stride == 1 && row_stride % 4 == 0 && cols_own % 4 == 0 && cols_end % 4 == 0 &&
                   (uintptr_t)out % 16 == 0;
        }
    };

    /* All threads of the block call it. What is not stored straight from registers passes through `shared`, so that
     * neighbouring threads store neighbouring columns. */
    static __device__ __forceinline__ void store(const ieee_args &args, const target &to, results &result,
                                                 const place &my, float *shared, const uint8_t *doubts) {
        if (to.alpha != 1 && to.beta == 0)
#pragma unroll
            for (int i = 0; i < ROWS_EACH * 8; ++i) result[i / 8][i / 4 % 2][i % 4] *= to.alpha;
        if (!to.takes_vectors() || to.beta != 0 || doubts) {
            __syncthreads(); /* everybody is done with what was there */
            put(result, my, [&](int row, int col, float4 v) { *(float4 *)(shared + row * STAGING_PITCH + col) = v; });
            __syncthreads();
            store_columns(args, to, shared, doubts);
            return;
        }
        /* __stcs: C, where it is large, is not to drive the operands out of the L2 cache. */
        if (to.is_whole())
            put(result, my,
                [&](int row, int col, float4 v) { __stcs((float4 *)(to.out + row * to.row_stride + col), v); });
        else
            put(result, my, [&](int row, int col, float4 v) {
                if (to.has_row(row) && to.has_col(col)) __stcs((float4 *)(to.out + row * to.row_stride + col), v);
            });
    }

    /* Calls `put_four` with a row and a column of the tile, and the lane's four results from there on. */
    template <class PUT_FOUR>
    static __device__ __forceinline__ void put(const results &result, const place &my, PUT_FOUR put_four) {
#pragma unroll
        for (int i = 0; i < ROWS_EACH * 2; ++i) {
            const double(&four)[4] = result[i / 2][i % 2];
            put_four(row_of(my, i / 2), my.warp_n + i % 2 * 16 + my.term * 4,
                     make_float4((float)four[0], (float)four[1], (float)four[2], (float)four[3]));
        }
    }

    /* From shared memory, [TILE_M][STAGING_PITCH]: a thread has a column, or part of one. With beta, alpha is still to
     * come. */
    static __device__ __forceinline__ void store_columns(const ieee_args &args, const target &to, const float *staging,
                                                         const uint8_t *doubts) {
        constexpr int STEP_ROWS = THREADS / TILE_N, AT_ONCE = 8;
        static_assert(THREADS % TILE_N == 0 && TILE_M % (STEP_ROWS * AT_ONCE) == 0, "threads cover whole rows");
        const int col = threadIdx.x % TILE_N;
        if (!to.has_col(col)) return;
        const matrix_in &s = args.source;
        const float *source = s.data + blockIdx.z * s.batch_stride + to.row * s.row_stride +
                              (to.col + col) * s.col_stride;
        int row = threadIdx.x / TILE_N;
        float *out = to.out + row * to.row_stride + col * to.col_stride;
#pragma unroll 1
        while (row < TILE_M) {
            float value[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) value[i] = staging[(row + i * STEP_ROWS) * STAGING_PITCH + col];
            if (to.beta != 0)
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i)
                    if (to.has_row(row + i * STEP_ROWS))
                        value[i] = fmaf(to.alpha, value[i], to.beta * source[(row + i * STEP_ROWS) * s.row_stride]);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (to.has_row(row) && (!doubts || is_doubted(args, doubts, to.row + row, to.col + col)))
                    *out = value[i];
                row += STEP_ROWS;
                out += STEP_ROWS * to.row_stride;
            }
        }
    }

    static __device__ __forceinline__ void run(const ieee_args &args) {
        extern __shared__ __align__(16) float shared[];
        compute_segments<ieee_mma, TILE_M, TILE_N>(args, shared);
    }
};

/* ---- Short k ----------------------------------------------------------------------------------------------------- */

/* Where k is short, a tile is multiplied in less time than its first operands take to come, and its results to go. So
 * here blocks stay. Each has a share of all tiles, row after row of them, and while it multiplies one and stores it, the
 * next one's operands are on their way: a panel of B, and one of A where a row begins. A panel has all terms of k,
 * [MOST_K][lines + 4], in whole steps, zeros first. There is room for two of each. */
template <int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int MOST_K> struct ieee_mma_short {
    using tile = ieee_mma<TILE_M, TILE_N, WARPS_M, WARPS_N, 1, 3>;
    using a_tile = typename tile::queue::a_tile;
    using b_tile = typename tile::queue::b_tile;
    static constexpr int A_BYTES = MOST_K * tile::A_PITCH, B_BYTES = MOST_K * tile::B_PITCH;
    static constexpr int SHARED_BYTES = 2 * (A_BYTES + B_BYTES);
    static_assert(MOST_K % tile::STEP == 0, "panels are whole steps");
    static_assert(TILE_M * tile::STAGING_PITCH * 4 <= B_BYTES, "results sweep through a panel's memory");

    static __device__ __forceinline__ int steps(const ieee_args &args) {
        return (args.k + tile::STEP - 1) / tile::STEP;
    }

    static __device__ __forceinline__ void copy_a(const ieee_args &args, const extent &rows, uint32_t to) {
        const float *first = args.a.data + blockIdx.z * args.a.batch_stride + rows.first * args.a.row_stride;
        a_tile::copy_terms(to, first, args.a.row_stride, args.a.col_stride, args.m - rows.first, args.k,
                           steps(args) * tile::STEP);
    }
    static __device__ __forceinline__ void copy_b(const ieee_args &args, const extent &cols, uint32_t to) {
        const float *first = args.b.data + blockIdx.z * args.b.batch_stride + cols.first * args.b.col_stride;
        b_tile::copy_terms(to, first, args.b.col_stride, args.b.row_stride, args.n - cols.first, args.k,
                           steps(args) * tile::STEP);
    }

    /* The panels of a tile, as `multiply` sees them: one slab, and nothing to copy meanwhile. */
    struct panels {
        static constexpr bool BEGINS_SUMS = true;
        template <reading A, reading B> static constexpr int COPIES = 0;
        uint32_t a, b;
        int part, left;
        __device__ __forceinline__ uint32_t a_slab(void) const { return a; }
        __device__ __forceinline__ uint32_t b_slab(void) const { return b; }
        __device__ __forceinline__ int steps(void) const { return left; }
        template <reading A, reading B> __device__ __forceinline__ void fill(void) {}
        template <reading A, reading B> __device__ __forceinline__ void copy_part(void) {}
        template <reading A, reading B> __device__ __forceinline__ void copy(int) {}
        template <reading A, reading B> __device__ __forceinline__ void finish_part(void) {}
        /* Behind the last step the first one is loaded again, for nothing. */
        __device__ __forceinline__ bool next_slab(void) { return --left == 0; }
    };

    static __device__ __forceinline__ void run(const ieee_args &args) {
        extern __shared__ __align__(16) float shared[];
        const typename tile::place my;
        const int64_t tiles = args.full_tiles;
        const int end = (int)((blockIdx.x + 1) * tiles / gridDim.x);
        int at = (int)(blockIdx.x * tiles / gridDim.x);
        int row = at / args.tiles_n, col = at % args.tiles_n;
        const uint32_t memory = (uint32_t)__cvta_generic_to_shared(shared);
        uint32_t a = memory, next_a = a + A_BYTES, b = next_a + A_BYTES, next_b = b + B_BYTES;
        extent rows(row * TILE_M, TILE_M, args.m), cols(col * TILE_N, TILE_N, args.n);
        copy_a(args, rows, a);
        copy_b(args, cols, b);
#pragma unroll 1
        for (; at < end; ++at) {
            close_copy_group();
            wait_for_copy_groups<0>();
            __syncthreads(); /* this tile's panels are there, and everybody is done with the last tile's */
            const bool new_row = ++col == args.tiles_n;
            if (new_row) col = 0, ++row;
            const extent next_rows(row * TILE_M, TILE_M, args.m), next_cols(col * TILE_N, TILE_N, args.n);
            if (at + 1 < end) {
                if (new_row) copy_a(args, next_rows, next_a);
                copy_b(args, next_cols, next_b);
            }
            typename tile::sums sum;
            panels both = {a, b, 0, steps(args)};
            tile::template multiply<READ_VECTORS, READ_VECTORS>(sum, my, both);
            const typename tile::target to(args, segment{0, 0, args.k, 0, true, 0, 0}, rows, cols);
            typename tile::results result;
            tile::collect(result, sum, my, nullptr);
            tile::store(args, to, result, my, shared + (b - memory) / 4, nullptr);
            if (new_row) swap(a, next_a);
            swap(b, next_b);
            rows = next_rows;
            cols = next_cols;
        }
    }

    static __device__ __forceinline__ void swap(uint32_t &x, uint32_t &y) {
        const uint32_t was = x;
        x = y;
        y = was;
    }
};

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* Large products, and what of a split product is to be computed again. A warp has 64 x 32; 2 blocks per SM. */
using mma_64x128 = ieee_mma<64, 128, 1, 4, 1, 3>;
static_assert(mma_64x128::SHARED_BYTES == IEEE_MMA_64X128_SHARED, "what the host asks for");

extern "C" __global__ void __launch_bounds__(128, 2) ieee_mma_64x128(const __grid_constant__ ieee_args args) {
    if (nothing_marked(args)) { /* known since before the split kernel in front of us began */
        if (blockIdx.x == 0 && blockIdx.z == 0) wait_for_previous_kernel(); /* the grid is not to end before it does */
        return;
    }
    wait_for_previous_kernel();
    let_next_kernel_come();
    mma_64x128::run(args);
}

/* Medium products. A warp has 32 x 32; 3 blocks per SM. */
using mma_64x64 = ieee_mma<64, 64, 2, 2, 1, 3>;
static_assert(mma_64x64::SHARED_BYTES == IEEE_MMA_64X64_SHARED, "what the host asks for");

extern "C" __global__ void __launch_bounds__(128, 3) ieee_mma_64x64(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    let_next_kernel_come();
    mma_64x64::run(args);
}

/* Small products: more tiles. Two warps have 32 x 32 together, half of k each; 3 blocks per SM. */
using mma_32x64 = ieee_mma<32, 64, 1, 2, 2, 4>;
static_assert(mma_32x64::SHARED_BYTES == IEEE_MMA_32X64_SHARED, "what the host asks for");

extern "C" __global__ void __launch_bounds__(128, 3) ieee_mma_32x64(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    let_next_kernel_come();
    mma_32x64::run(args);
}

/* The smallest. Each warp has the whole tile, and a quarter of k; 3 blocks per SM. */
using mma_32x32 = ieee_mma<32, 32, 1, 1, 4, 4>;
static_assert(mma_32x32::SHARED_BYTES == IEEE_MMA_32X32_SHARED, "what the host asks for");

extern "C" __global__ void __launch_bounds__(128, 3) ieee_mma_32x32(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    let_next_kernel_come();
    mma_32x32::run(args);
}

/* Products of few terms. A warp has 32 x 32; 3 blocks per SM. */
using mma_short_k = ieee_mma_short<64, 64, 2, 2, 64>;
static_assert(mma_short_k::SHARED_BYTES == IEEE_MMA_SHORT_K_SHARED, "what the host asks for");

extern "C" __global__ void __launch_bounds__(128, 3) ieee_mma_short_k(const __grid_constant__ ieee_args args) {
    wait_for_previous_kernel();
    let_next_kernel_come();
    mma_short_k::run(args);
}
} // namespace ieee_mma_sm90

#endif
"""

# ---- Kernels that split operands, and that add up sums, CUDA -------------------------------------------------------

PACK_KERNELS = r"""
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

/* split.cuh: what the kernels that make split operands (pack.cu) and multiply them (split_*.cu) have in common, whatever
 * instruction multiplies: scales, the order of the tiles, where their rows lie in the panels (args.h), and how their
 * sums become C. */

constexpr float LO_SCALE = 1.0f / (1 << SPLIT_LO_SHIFT);

__device__ constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

__device__ inline float power_of_two(int e) { return __uint_as_float((unsigned)(e + 127) << 23); }

/* ---- Which tile -------------------------------------------------------------------------------------------------- */

constexpr int GROUP_ROWS = 8; /* tile rows walked together, so that neighbours in time share panels in L2 */

struct work {
    int batch, slice;
    int m0, n0; /* first row and column of C */
    int kb_begin, kb_end;
};

__device__ inline int work_count(const split_args &g) { return g.batch * g.slices * g.tiles_m * g.tiles_n; }

/* The index-th piece of work: tiles in groups of GROUP_ROWS tile rows, down the group's columns; slices and batch
 * outermost. */
template <int TILE_M, int TILE_N> __device__ work work_at(const split_args &g, int index) {
    const int tiles = g.tiles_m * g.tiles_n, tile = index % tiles, outer = index / tiles;
    const int group = tile / (GROUP_ROWS * g.tiles_n), first = group * GROUP_ROWS;
    const int rows = min(GROUP_ROWS, g.tiles_m - first), within = tile - first * g.tiles_n;
    work w;
    w.slice = outer % g.slices;
    w.batch = outer / g.slices;
    w.m0 = (first + within % rows) * TILE_M;
    w.n0 = within / rows * TILE_N;
    w.kb_begin = w.slice * g.k_blocks_per_slice;
    w.kb_end = min(g.k_blocks, w.kb_begin + g.k_blocks_per_slice);
    return w;
}

/* ---- Where its rows are ------------------------------------------------------------------------------------------ */

/* Rows of one panel that a tile needs, in one block of k. */
struct strip {
    const uint8_t *from;
    uint32_t piece_stride, bytes; /* bytes = 0: the tile reaches past the matrix here */
};

template <int ROWS, int PIECES>
__device__ strip strip_at(const split_operand &o, int rows, int k_blocks, int batch, int row, int kb) {
    static_assert(PANEL_ROWS % ROWS == 0, "a strip lies within a panel");
    const int panel = row / PANEL_ROWS, skip = row % PANEL_ROWS;
    const int stored = min(PANEL_ROWS, divide_up(rows - panel * PANEL_ROWS, 8) * 8);
    const uint32_t piece_stride = max(stored, 0) * SPLIT_ROW_BYTES;
    return {o.panels + batch * o.panels_batch_stride +
                (int64_t)panel * k_blocks * PIECES * PANEL_ROWS * SPLIT_ROW_BYTES +
                (int64_t)kb * PIECES * piece_stride + skip * SPLIT_ROW_BYTES,
            piece_stride, (uint32_t)max(0, min(ROWS, stored - skip)) * SPLIT_ROW_BYTES};
}

/* ---- Writing C --------------------------------------------------------------------------------------------------- */

/* Where the sums of a piece of work go: to C, or as they are to its slice's plane of `partial`. */
struct destination {
    matrix_out c;
    matrix_in source; /* what beta scales */
    float alpha, beta;
    bool vectors; /* four neighbours in a row may be written together */

    __device__ destination(const split_args &g, const work &w)
        : c(g.c), source(g.source), alpha(g.alpha), beta(g.beta) {
        if (g.slices > 1) {
            c = {g.partial + (int64_t)(w.batch * g.slices + w.slice) * g.m * g.n, g.n, 1, 0};
            alpha = 1, beta = 0;
        } else {
            c.data += w.batch * c.batch_stride;
            source.data += w.batch * source.batch_stride;
        }
        vectors = beta == 0 && c.col_stride == 1 && c.row_stride % 4 == 0 && (uintptr_t)c.data % 16 == 0;
    }
};

/* What to do with the sums of this panel of A times this one of B. */
enum verdict { LEAVE, LOOK, WRITE };

__device__ inline float mark_of(const split_operand &o, int batch, int row) {
    return o.marks[batch * o.marks_batch_stride + row / PANEL_ROWS];
}

__device__ inline verdict verdict_on(const split_args &g, float mark_a, float mark_b) {
    const float mark = mark_a * mark_b;
    return mark <= g.mark_limit ? WRITE : g.doubts && mark < INFINITY ? LOOK : LEAVE;
}

/* What the sums of a row of an operand must be at least, before they are scaled back, beside what the other operand's
 * row asks for; less than any number where all of the row is zero, and so its sums are. */
__device__ inline float least_sum(const split_args &g, const split_operand &o, int batch, int row) {
    const int64_t at = batch * o.exponents_batch_stride + row;
    return o.exponents[at] == ALL_ZERO ? -INFINITY : g.least_per_deep * (float)o.deep[at];
}

/* Notes what a warp found about a block of C, and returns it to all its threads. */
__device__ inline bool note_doubt(const split_args &g, int batch, int row0, int col0, bool doubtful) {
    doubtful = __any_sync(0xffffffffu, doubtful);
    const int64_t block = (int64_t)(row0 / DOUBT_ROWS) * divide_up(g.n, DOUBT_COLS) + col0 / DOUBT_COLS;
    if (threadIdx.x % 32 == 0) g.doubts[batch * g.doubts_batch_stride + block] = doubtful;
    return doubtful;
}

/* The exponent of a row of an operand; 0 past its end. */
__device__ inline int exponent_of(const split_operand &o, int batch, int row, int rows) {
    return row < rows ? o.exponents[batch * o.exponents_batch_stride + row] : 0;
}

/* A warp's own corner of shared memory, where the sums of a block wait to be looked at and written out row by row. A row
 * is 40 floats, so that the accumulators' pattern (8 rows x 4 pairs) falls on all banks. */
constexpr int OUT_ROWS = DOUBT_ROWS, OUT_COLS = DOUBT_COLS, OUT_STRIDE = 40;
typedef float out_buffer[OUT_ROWS][OUT_STRIDE];

/* Scales a warp's sums back by their rows: v[4j + 2h + i] is row lane/4 + 8h, column 8j + lane%4*2 + i of a block, as the
 * matrix instructions lay accumulators out. exponent_a is of row number `lane`. */
template <int N> __device__ void scale_rows(float (&v)[N], int exponent_a) {
    const int row = threadIdx.x % 32 / 4;
    const float down[2] = {power_of_two(-__shfl_sync(0xffffffffu, exponent_a, row)),
                           power_of_two(-__shfl_sync(0xffffffffu, exponent_a, row + 8))};
#pragma unroll
    for (int i = 0; i < N; i++) v[i] *= down[i / 2 % 2];
}

/* Puts the sums of a block there. */
__device__ inline void put_sums(const float *v, out_buffer &sums) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < OUT_COLS / 8; j++)
            *(float2 *)&sums[lane / 4 + 8 * h][8 * j + lane % 4 * 2] = make_float2(v[4 * j + 2 * h],
                                                                                   v[4 * j + 2 * h + 1]);
}

/* Whether the block of C from (row0, col0) on is to be left to ieee. */
__device__ inline bool in_doubt(const split_args &g, int batch, int row0, int col0, int exponent_a,
                                const out_buffer &sums) {
    const int lane = threadIdx.x % 32, rows = min(OUT_ROWS, g.m - row0);
    const float of_row = least_sum(g, g.a, batch, row0 + min(lane, rows - 1)); /* number `lane` */
    const float of_col = least_sum(g, g.b, batch, min(col0 + lane, g.n - 1));
    const float up = power_of_two(exponent_a);
    bool doubtful = false;
#pragma unroll 4
    for (int r = 0; r < OUT_ROWS; r++) {
        const float sum = sums[r][lane] * __shfl_sync(0xffffffffu, up, r);
        const float least = __shfl_sync(0xffffffffu, of_row, r) + of_col;
        doubtful |= r < rows && !(fabsf(sum) >= least);
    }
    return note_doubt(g, batch, row0, col0, doubtful && col0 + lane < g.n);
}

/* Scales a block back by its columns and writes it: 32 neighbours of a row at once, whatever C's alignment, or of four
 * rows where four columns may go together. exponent_b is of column col0 + lane. */
__device__ inline void write_out(const split_args &g, const destination &d, int row0, int col0, int exponent_b,
                                 const out_buffer &sums) {
    const int lane = threadIdx.x % 32, rows = g.m - row0;
    const float down = power_of_two(-exponent_b);
    if (d.vectors && col0 + OUT_COLS <= g.n) {
        constexpr int AT_ONCE = 4; /* rows */
        const int row = lane / 8, col = lane % 8 * 4;
        float downs[4], *to = d.c.data + (row0 + row) * d.c.row_stride + col0 + col;
#pragma unroll
        for (int i = 0; i < 4; i++) downs[i] = __shfl_sync(0xffffffffu, down, col + i);
#pragma unroll
        for (int r = 0; r < OUT_ROWS; r += AT_ONCE, to += AT_ONCE * d.c.row_stride) {
            const float4 x = *(const float4 *)&sums[r + row][col];
            if (r + row < rows)
                *(float4 *)to = make_float4(d.alpha * (x.x * downs[0]), d.alpha * (x.y * downs[1]),
                                            d.alpha * (x.z * downs[2]), d.alpha * (x.w * downs[3]));
        }
        return;
    }
    if (col0 + lane >= g.n) return;
    float before[OUT_ROWS]; /* beta*S, read all at once rather than each where it is needed */
    const float *from = d.source.data + row0 * d.source.row_stride + (col0 + lane) * d.source.col_stride;
#pragma unroll
    for (int r = 0; r < OUT_ROWS; r++, from += d.source.row_stride)
        before[r] = d.beta != 0 && r < rows ? d.beta * *from : -0.0f;
    float x[OUT_ROWS], *to = d.c.data + row0 * d.c.row_stride + (col0 + lane) * d.c.col_stride;
#pragma unroll
    for (int r = 0; r < OUT_ROWS; r++) x[r] = fmaf(d.alpha, sums[r][lane] * down, before[r]); /* -0 changes nothing */
#pragma unroll
    for (int r = 0; r < OUT_ROWS; r++, to += d.c.row_stride)
        if (r < rows) *to = x[r];
}

#include <cuda_fp16.h>
namespace pack {
/* pack.cu: float32 operands -> fp16 panels for the split kernels (layout: args.h).
 *
 * Row r of an operand is scaled by 2^e, e its exponent, and each element x*2^e is split:
 *
 *     hi = fp16(x*2^e)        lo = fp16((x*2^e - hi) * 2^11)        x*2^e = hi + lo*2^-11 + what fp16 cannot hold
 *
 * hi carries 11 bits and lo 11 more with a sign of its own: 23 bits, as long as neither leaves fp16's range. Which e
 * does that depends on the row's largest element, and looking at a whole row before splitting it would read the operand
 * twice. So:
 *
 *   pack_sample    takes e from SAMPLES elements of the row, with room above for what it has not seen
 *   pack_split     splits with that e, and notes how deep below fp16's normal numbers the elements of each panel lie, and
 *                  how many. Panels in which something does not fit above them are split again when all is done once, the
 *                  rows in question with an e from their largest element. The depths in the end, infinite for Inf and NaN,
 *                  are the panels' marks, by which tiles of C are left to ieee
 *
 * Where all fits the operand is read once.
 *
 * Tile map: a unit is UNIT_ROWS rows x SPLIT_K of an operand, half a block of a panel; operand 0's units come first,
 * then operand 1's, and blocks take them one by one. A block of 128 threads copies units to shared memory
 * asynchronously, two ahead of the one it splits, so that memory is always busy. In shared memory a unit lies as it does
 * in the matrix, lines of 64 floats along whichever of k and rows is contiguous; threads take four neighbours along k
 * each ("quads"), which is what makes 8 bytes of a tile's row. Copies are 16 bytes wide for any contiguous matrix,
 * however its lines are aligned, and 4 bytes for general strides.
 *
 * Limits: 53 KB of shared memory, 128 registers, 4 blocks per SM.
 */

namespace {

constexpr int THREADS = 128;
constexpr int UNIT_ROWS = 64;
constexpr int QUAD = 4; /* neighbours along k that a thread reads, splits and writes together */
constexpr int QUADS_PER_ROW = SPLIT_K / QUAD;
constexpr int ROWS_AT_ONCE = THREADS / QUADS_PER_ROW; /* a thread's quads are so many rows apart */
constexpr int QUADS_AT_ONCE = 2; /* more would overlap more, but take longer to come to the instruction cache */
constexpr int LINE = 64,
              LINE_PITCH = LINE + 4; /* a unit is 64 lines of 64 floats; a pitch of 68 has room for a shift */
constexpr int VECTORS = LINE / 4;    /* of a line; one more where it is not aligned */
constexpr int STAGES = 3;
constexpr int SAMPLES = 128, SAMPLE_ROWS = 8;
constexpr int SAMPLE_EXPONENT = 12;  /* the sample's largest lands in [2^12, 2^13): the row may be 8 times larger */
constexpr int LARGEST_EXPONENT = 14; /* the row's largest lands in [2^14, 2^15), below fp16's 65504 */
constexpr int EXPONENT_LIMIT = 62;   /* 2^(e of A + e of B) and its inverse stay normal floats */
constexpr float HALF_LEAST_NORMAL = 1.0f / (1 << 14), HALF_OVERFLOW = 65520; /* from there on fp16 rounds to infinity */

static_assert(PANEL_ROWS % UNIT_ROWS == 0 && PANEL_ROWS % SAMPLE_ROWS == 0, "a unit belongs to one panel");
static_assert(SAMPLES == THREADS, "a warp samples one run of all rows, or all runs of its rows");
static_assert(UNIT_ROWS == LINE && SPLIT_K == LINE, "a unit is 64 lines of 64, whichever way they run");
static_assert(ROWS_AT_ONCE % 8 == 0, "the rows of a thread are swizzled alike");
static_assert(SPLIT_K * 2 == SPLIT_ROW_BYTES, "a row of a tile is SPLIT_K fp16 values");

/* A place in an operand: a row group of one product and, where the kernel counts them, a block of k. */
struct place {
    int operand, batch, row0, kb;
};

__device__ int places_in(const pack_args &o, int group_rows, bool with_k_blocks) {
    return o.batch * divide_up(o.rows, group_rows) * (with_k_blocks ? o.k_blocks : 1);
}

/* The index-th place, counted through operand 0 and then 1. False past the last. */
__device__ bool place_at(const pack_pair_args &pair, int index, int group_rows, bool with_k_blocks, place *at) {
    const int in_first = places_in(pair.operand[0], group_rows, with_k_blocks);
    at->operand = index >= in_first;
    if (at->operand) index -= in_first;
    const pack_args &o = pair.operand[at->operand];
    if (index >= places_in(o, group_rows, with_k_blocks)) return false;
    const int groups = divide_up(o.rows, group_rows), per_group = with_k_blocks ? o.k_blocks : 1;
    const bool across = o.row_stride == 1; /* neighbours in time are neighbours in memory */
    const int inner = across ? groups : per_group;
    at->batch = index / (groups * per_group);
    const int within = index - at->batch * groups * per_group, quotient = within / inner,
              remainder = within - quotient * inner;
    at->row0 = (across ? remainder : quotient) * group_rows;
    at->kb = across ? quotient : remainder;
    return true;
}

__device__ int exponent_for(float largest, int target) {
    if (largest == 0) return 0;
    int e = target - (int)(__float_as_uint(largest) >> 23 & 0xff) + 127;
    return max(-EXPONENT_LIMIT, min(EXPONENT_LIMIT, e));
}

/* The largest x of a warp's lanes that are a multiple of LEAST_STEP away. */
template <int LEAST_STEP> __device__ float lanes_max(float x) {
    for (int step = 16; step >= LEAST_STEP; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Raises a number that is not negative, and returns what it was: the bits of such floats are ordered as they are. */
__device__ float raise(float *number, float to) { return __int_as_float(atomicMax((int *)number, __float_as_int(to))); }

/* Whether fp16 has no room for an element, or its row was taken for zeros. */
__device__ bool does_not_fit(float x, int e) {
    return !(fabsf(x * power_of_two(e)) < HALF_OVERFLOW) || (e == ALL_ZERO && x != 0);
}

/* An element's depth (args.h) with exponent e; where the scaling sends x to zero it is infinite. */
__device__ float depth_of(float x, int e) {
    if (x == 0) return 1;
    return does_not_fit(x, e) ? INFINITY : fmaxf(1, HALF_LEAST_NORMAL / fabsf(x * power_of_two(e)));
}

/* The factors of a row with exponent e; and the least scaled element that is not deep, which in a row taken for zeros
 * none is. */
struct row_scale {
    float up, down, lo_up, least;
    __device__ explicit row_scale(int e)
        : up(power_of_two(e)), down(power_of_two(-e)), lo_up(power_of_two(e + SPLIT_LO_SHIFT)),
          least(e == ALL_ZERO ? INFINITY : HALF_LEAST_NORMAL) {}
};

/* Splits two neighbours of a row; false where one of them is deep. */
template <int PIECES> __device__ bool split_pair(float x0, float x1, const row_scale &scale, __half2 *hi, __half2 *lo) {
    const float scaled0 = x0 * scale.up, scaled1 = x1 * scale.up;
    *hi = __floats2half2_rn(scaled0, scaled1);
    if (PIECES == 2) {
        const float2 h = __half22float2(*hi);
        *lo = __floats2half2_rn(fmaf(-h.x, scale.down, x0) * scale.lo_up, fmaf(-h.y, scale.down, x1) * scale.lo_up);
    }
    return ((fabsf(scaled0) >= scale.least && fabsf(scaled0) < HALF_OVERFLOW) || x0 == 0) &
           ((fabsf(scaled1) >= scale.least && fabsf(scaled1) < HALF_OVERFLOW) || x1 == 0);
}

/* One k of a unit, or of a part of its rows. tf32 promises a norm, not each element: what lost bits below fp16's least
 * normal number does no harm beside a larger element of the same k. 64 errors of up to 2^-25 (scaled) together stay below
 * 2^-11 of the largest element, if sqrt(64) 2^-25 coarsest <= 2^-11 largest. Where that holds in each part, it does in
 * the whole. */
struct column {
    float largest = 0, coarsest = 0; /* coarsest: the largest 2^-e among rows whose element lost bits */
    bool all_fit = true;

    __device__ bool see(float x, int e) { /* and say if it fits */
        const bool fits = !does_not_fit(x, e);
        largest = fmaxf(largest, fabsf(x));
        if (x != 0 && fabsf(x * power_of_two(e)) < HALF_LEAST_NORMAL) coarsest = fmaxf(coarsest, power_of_two(-e));
        all_fit &= fits;
        return fits;
    }
    __device__ bool carried() const { return all_fit && coarsest <= 2048 * largest; }
};

/* ---- Copying units to shared memory ------------------------------------------------------------------------------ */

/* A unit on its way. A line's vectors of four floats lie exchanged, vector v of line i at v ^ (i/4 % 8), so that reading
 * along a line finds its floats in different banks, and reading two floats of each of sixteen lines, four apart, in
 * sixteen banks at least. */
struct __align__(16) stage {
    float lines[LINE][LINE_PITCH];
    int32_t exponents[UNIT_ROWS];

    __device__ static int place_of(int line, int vector) {
        return vector < VECTORS ? (vector ^ line / 4 % 8) * 4 : vector * 4;
    }
    __device__ float *vector(int line, int v) { return &lines[line][place_of(line, v)]; }
    __device__ float4 four(int line, int v) const { return *(const float4 *)&lines[line][place_of(line, v)]; }
    __device__ float one(int line, int i) const { return lines[line][place_of(line, i / 4) + i % 4]; }
};

/* What the L2 cache is to do with the matrices, which are read once: where it has room for the panels, forget them before
 * these; 0: nothing in particular. */
__device__ uint64_t policy_for(const pack_pair_args &pair) {
    constexpr int64_t ROOM = 40 << 20; /* bytes */
    int64_t panels = 0;
    for (int i = 0; i < 2; i++) panels += pair.operand[i].batch * pair.operand[i].panels_batch_stride;
    uint64_t policy = 0;
    if (panels <= ROOM) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Copies `bytes` of 16 and fills the rest with zeros. */
__device__ void copy_16(void *to, const void *from, int bytes, uint64_t policy) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b64 p, %3, 0;\n"
                 "@p cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;\n"
                 "@!p cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
                 "}\n" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(bytes), "l"(policy));
}

__device__ void copy_4(void *to, const void *from, bool there) { /* zero where nothing is there */
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(there ? 4 : 0));
}

__device__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

/* How a unit lies in memory: `lines` lines of `length` floats, the longer side of which is contiguous if anything is. A
 * line is copied in aligned vectors of four floats, so it begins `shift` floats into the first of them: what is before
 * it there belongs to a neighbour in the same matrix or allocation and is never looked at. */
struct unit_view {
    const float *first;
    int64_t line_stride, step;
    int lines, length;

    __device__ unit_view(const pack_args &o, const place &u) {
        first = o.data + u.batch * o.batch_stride + u.row0 * o.row_stride + (int64_t)u.kb * SPLIT_K * o.k_stride;
        const int rows = min(UNIT_ROWS, o.rows - u.row0), depth = min(SPLIT_K, o.k - u.kb * SPLIT_K);
        const bool across = o.row_stride == 1; /* lines run across rows, else along k */
        line_stride = across ? o.k_stride : o.row_stride;
        step = across ? 1 : o.k_stride;
        lines = across ? depth : rows;
        length = across ? rows : depth;
    }

    __device__ bool aligned() const { return step != 1 || (line_stride % 4 == 0 && (uintptr_t)first % 16 == 0); }
    __device__ int shift(int line) const { /* 0 wherever aligned() */
        return step == 1 ? (int)(((uintptr_t)first / 4 + (unsigned)line * (unsigned)line_stride) % 4) : 0;
    }
};

__device__ void fetch_vector(const unit_view &view, int line, int vector, stage &to, uint64_t policy) {
    const int shift = view.shift(line), begin = vector * 4 - shift; /* begin: of this vector, within the line */
    const int floats = line < view.lines ? max(0, min(4, view.length - begin)) : 0;
    const float *from = view.first +
                        (floats > 0 ? line * view.line_stride + begin : -view.shift(0)); /* aligned, also for none */
    copy_16(to.vector(line, vector), from, floats * 4, policy);
}

/* What a row that did not fit is scaled by; the others stay as they were. From L2: other blocks wrote it. */
__device__ int exponent_again(const pack_args &o, int64_t row) {
    const float overflow = __ldcg(&o.overflows[row]);
    return overflow > 0 ? exponent_for(overflow, LARGEST_EXPONENT) : __ldcg(&o.exponents[row]);
}

/* Starts copying a unit. */
__device__ void fetch_elements(const pack_args &o, const place &u, stage &to, uint64_t policy) {
    const unit_view view(o, u);
    if (view.step == 1 && view.aligned() && view.lines == LINE && view.length == LINE) { /* as nearly all are */
        constexpr int LINES_AT_ONCE = THREADS / VECTORS;
        const int line = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
        const float *from_line = view.first + line * view.line_stride + vector * 4;
#pragma unroll
        for (int i = 0; i < LINE / LINES_AT_ONCE; i++) {
            copy_16(to.vector(i * LINES_AT_ONCE + line, vector), from_line, 16, policy);
            from_line += LINES_AT_ONCE * view.line_stride;
        }
    } else if (view.step == 1) {
#pragma unroll
        for (int i = 0; i < LINE * VECTORS / THREADS; i++) {
            const int index = i * THREADS + threadIdx.x;
            fetch_vector(view, index / VECTORS, index % VECTORS, to, policy);
        }
        if (!view.aligned() && threadIdx.x < LINE) fetch_vector(view, threadIdx.x, VECTORS, to, policy);
    } else {
        const int column = threadIdx.x % LINE;
#pragma unroll 8
        for (int line = threadIdx.x / LINE; line < LINE; line += THREADS / LINE) {
            const bool there = column < view.length && line < view.lines;
            copy_4(to.vector(line, column / 4) + column % 4,
                   there ? view.first + line * view.line_stride + column * view.step : o.data, there);
        }
    }
}

/* Starts copying its rows' exponents; AGAIN: finds new ones, and keeps them. */
template <bool AGAIN> __device__ void fetch_exponents(const pack_args &o, const place &u, stage &to) {
    if (threadIdx.x >= UNIT_ROWS) return;
    const bool there = u.row0 + threadIdx.x < o.rows;
    const int64_t row = u.batch * o.exponents_batch_stride + (there ? u.row0 + threadIdx.x : 0);
    if (AGAIN) {
        const int e = there ? exponent_again(o, row) : 0;
        to.exponents[threadIdx.x] = e;
        if (there && u.kb == 0) o.exponents[row] = e; /* what others see, before or after, gives them the same */
    } else
        copy_4(&to.exponents[threadIdx.x], o.exponents + row, there);
}

/* ---- Splitting a unit -------------------------------------------------------------------------------------------- */

/* A thread's quads of a unit: this one, of rows first_row(), first_row() + ROWS_AT_ONCE and so on. */
__device__ int my_quad() { return threadIdx.x % QUADS_PER_ROW; }
__device__ int first_row() { return threadIdx.x / QUADS_PER_ROW; }

/* How deep they are, read(row, quad, x) being how they lie in shared memory; fp32, where one has turned out to be deep.
 * Counts the deep ones of each row, and notes what did not fit. */
template <typename READ> __device__ float depth_fp32(const pack_args &o, const place &u, const stage &from, READ read) {
    float depth = 1;
#pragma unroll 1
    for (int row = first_row(); row < UNIT_ROWS; row += ROWS_AT_ONCE) {
        const int e = from.exponents[row];
        const int64_t at = u.batch * o.exponents_batch_stride + u.row0 + row;
        float x[QUAD];
        int deep = 0;
        read(row, my_quad(), x);
        for (int k = 0; k < QUAD; k++) {
            const float of_x = depth_of(x[k], e);
            depth = fmaxf(depth, of_x);
            deep += of_x > 1 && of_x < INFINITY;
            if (does_not_fit(x[k], e)) raise(&o.overflows[at], fabsf(x[k]));
        }
        if (deep) atomicAdd(&o.deep[at], deep);
    }
    return depth;
}

/* Whether they are carried by themselves; tf32, where one has turned out to be deep. But for odd data they are. */
template <typename READ> __device__ bool carried_tf32(const stage &from, READ read) {
    column columns[QUAD];
#pragma unroll 1
    for (int row = first_row(); row < UNIT_ROWS; row += ROWS_AT_ONCE) {
        float x[QUAD];
        read(row, my_quad(), x);
#pragma unroll
        for (int k = 0; k < QUAD; k++) columns[k].see(x[k], from.exponents[row]);
    }
    bool carried = true;
    for (int k = 0; k < QUAD; k++) carried &= columns[k].carried();
    return carried;
}

/* Splits this thread's quads of a unit, and returns their depth; in tf32, where they are not carried by themselves,
 * infinity, until column_depth has looked. Without branches where they are not deep, so that the quads' loads and
 * arithmetic overlap. */
template <int PIECES, typename READ>
__device__ float split_quads(const pack_args &o, const place &u, const stage &from, READ read) {
    const int panel = u.row0 / PANEL_ROWS, skip = u.row0 % PANEL_ROWS;
    const int stored = min(PANEL_ROWS, divide_up(o.rows - panel * PANEL_ROWS, 8) * 8);
    const int quad = my_quad(), row0 = first_row();
    uint8_t *to = o.panels + u.batch * o.panels_batch_stride +
                  (int64_t)panel * o.k_blocks * PIECES * PANEL_ROWS * SPLIT_ROW_BYTES +
                  ((int64_t)u.kb * PIECES * stored + skip + row0) * SPLIT_ROW_BYTES + (quad / 2 ^ row0 % 8) * 16 +
                  quad % 2 * 8;
    const int lo_offset = stored * SPLIT_ROW_BYTES;
    bool shallow = true;
#pragma unroll QUADS_AT_ONCE
    for (int i = 0; i < UNIT_ROWS / ROWS_AT_ONCE; i++, to += ROWS_AT_ONCE * SPLIT_ROW_BYTES) {
        const int row = i * ROWS_AT_ONCE + row0;
        const row_scale scale(from.exponents[row]);
        float x[QUAD];
        __half2 hi[QUAD / 2], lo[QUAD / 2];
        read(row, quad, x);
#pragma unroll
        for (int j = 0; j < QUAD / 2; j++) shallow &= split_pair<PIECES>(x[2 * j], x[2 * j + 1], scale, &hi[j], &lo[j]);
        if (row < stored - skip) {
            *(uint2 *)to = *(uint2 *)hi;
            if (PIECES == 2) *(uint2 *)(to + lo_offset) = *(uint2 *)lo;
        }
    }
    if (shallow) return 1;
    if (PIECES == 2) return depth_fp32(o, u, from, read);
    return carried_tf32(from, read) ? 1 : INFINITY;
}

/* Splits a unit that has landed into its panel. Every thread of the block calls it and gets the depth of its part. */
template <int PIECES> __device__ float split(const pack_args &o, const place &u, const stage &from) {
    const unit_view view(o, u);
    if (o.row_stride == 1 && view.aligned())
        return split_quads<PIECES>(o, u, from, [&](int row, int quad, float(&x)[QUAD]) {
#pragma unroll
            for (int k = 0; k < QUAD; k++) x[k] = from.lines[quad * QUAD + k][(row / 4 ^ quad % 8) * 4 + row % 4];
        });
    if (o.row_stride == 1) {
        int begin[QUAD]; /* where first_row() is in the four lines that hold this thread's quads */
#pragma unroll
        for (int k = 0; k < QUAD; k++) begin[k] = view.shift(my_quad() * QUAD + k) + first_row();
        return split_quads<PIECES>(o, u, from, [&](int row, int quad, float(&x)[QUAD]) {
#pragma unroll
            for (int k = 0; k < QUAD; k++) {
                const int line = quad * QUAD + k, vector = begin[k] / 4 + (row - first_row()) / 4;
                x[k] = from.lines[line][from.place_of(line, vector) + begin[k] % 4];
            }
        });
    }
    if (view.aligned())
        return split_quads<PIECES>(o, u, from, [&](int row, int quad, float(&x)[QUAD]) {
            const float4 v = from.four(row, quad);
            x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        });
    return split_quads<PIECES>(o, u, from, [&](int row, int quad, float(&x)[QUAD]) {
        const int shift = view.shift(row);
        const int in_first = from.place_of(row, quad) + shift, in_second = from.place_of(row, quad + 1) + shift - 4;
#pragma unroll
        for (int k = 0; k < QUAD; k++) x[k] = from.lines[row][(shift + k < 4 ? in_first : in_second) + k];
    });
}

/* tf32: the depth of one k of a unit, for each thread that has one: 1 where the hi pieces carry it, else infinite. All
 * threads of a block call it, where one's quads are not carried by themselves. Notes what did not fit. */
__device__ float column_depth(const pack_args &o, const place &u, const stage &from) {
    if (threadIdx.x >= SPLIT_K) return 1;
    const unit_view view(o, u);
    const bool across = o.row_stride == 1;
    const int64_t at = u.batch * o.exponents_batch_stride + u.row0;
    column all;
#pragma unroll 1
    for (int row = 0; row < UNIT_ROWS; row++) {
        const int line = across ? threadIdx.x : row, i = across ? row : threadIdx.x, e = from.exponents[row];
        const float x = from.one(line, view.shift(line) + i);
        if (!all.see(x, e)) raise(&o.overflows[at + row], fabsf(x));
    }
    return all.carried() ? 1 : INFINITY;
}

/* Splits the units that source.next() names, one after the other, until it returns false; source.found(unit, depth) is
 * called by each thread that found a depth above 1. Copies run two units ahead; of the first two before the kernel in
 * front of this one has found their exponents. Two rounds that only copy come first, in the same loop: instructions that
 * are there once come to a multiprocessor once. From then on, what next() will name in the round after this one is asked
 * for, source.ask(), before a unit is split, and heard, source.hear(), when it has been. */
template <typename SOURCE>
__device__ void split_units(const pack_pair_args &pair, stage (&stages)[STAGES], SOURCE source) {
    constexpr bool AGAIN = SOURCE::AGAIN;
    const uint64_t policy = policy_for(pair);
    place now = {}, ahead = {}, further = {};
    bool has_now = false, has_ahead = false, has_further = true;
    int free = 0; /* the stage that unit round + 2 comes to */
#pragma unroll 1
    for (int round = -2; round < 0 || has_now; round++) {
        if (round >= 0) {
            if (round == 0)
                wait_copies<0>(); /* its exponents came with the second unit */
            else
                wait_copies<1>();
            __syncthreads(); /* this unit has landed for all, and all have left the one before it */
        }
        has_further = has_further && source.next(&further);
        const pack_args &of_further = pair.operand[further.operand];
        if (has_further) fetch_elements(of_further, further, stages[free], policy);
        if (round == -1) {
            wait_for_previous_kernel();
            if (!AGAIN && !has_further) let_next_kernel_come();
            if (has_ahead) fetch_exponents<AGAIN>(pair.operand[ahead.operand], ahead, stages[0]);
        }
        if (has_further && round > -2) fetch_exponents<AGAIN>(of_further, further, stages[free]);
        const bool asks = has_further && round >= 0;
        if (asks) source.ask();
        close_copies();
        free = (free + 1) % STAGES; /* now the stage of unit `round` */
        if (has_now) {
            const pack_args &o = pair.operand[now.operand];
            float depth = o.pieces == 2 ? split<2>(o, now, stages[free]) : split<1>(o, now, stages[free]);
            if (o.pieces == 1 && __syncthreads_or(depth > 1)) depth = column_depth(o, now, stages[free]);
            if (depth > 1) source.found(now, depth);
        }
        if (asks) source.hear();
        now = ahead, has_now = has_ahead;
        ahead = further, has_ahead = has_further;
    }
}

static_assert(STAGES == 3, "a unit that is split and two that come");
static_assert(sizeof(stage[STAGES]) == PACK_SHARED, "what the host asks for");
extern __shared__ __align__(16) uint8_t shared_memory[]; /* pack_split: STAGES stages */

__device__ int64_t panel_of(const pack_pair_args &pair, const place &u) {
    return u.batch * pair.operand[u.operand].marks_batch_stride + u.row0 / PANEL_ROWS;
}

/* Every block asks when it has split its units, having begun at that time: whether it is to take part in splitting again
 * what did not fit. The block that asks last knows if there is anything. Those that know before wait for it, but hardly
 * longer than they worked: on a GPU that has other work as well, some blocks may begin only when others have left. */
__device__ bool stays(pack_progress *progress, long long begun) {
    __shared__ bool answer;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence(); /* what this block wrote, and then that it has */
        uint32_t blocks = atomicAdd(&progress->blocks, 1) + 1;
        answer = blocks & PACK_MISFITS;
        if (answer) {
            const uint32_t all = gridDim.x | PACK_MISFITS;
            const long long now = clock64(), patience = max(1ll << 16, now - begun); /* cycles */
            while (blocks != all && clock64() - now < patience) blocks = *(volatile uint32_t *)&progress->blocks;
            __threadfence();
            answer = blocks == all;
        }
    }
    __syncthreads();
    return answer;
}

} // namespace

/* Grid: for each operand batch * ceil(rows / SAMPLE_ROWS) blocks. Exponents from a sample; what the next kernel counts
 * and raises is set to its least. */
extern "C" __global__ void __launch_bounds__(THREADS) pack_sample(const __grid_constant__ pack_pair_args pair) {
    constexpr int WARPS = THREADS / 32, RUNS = SAMPLES / 32, READS = SAMPLE_ROWS * SAMPLES / THREADS;
    __shared__ float largest[WARPS][SAMPLE_ROWS];
    wait_for_previous_kernel();
    let_next_kernel_come();
    place at;
    if (!place_at(pair, blockIdx.x, SAMPLE_ROWS, false, &at)) return;
    const pack_args &o = pair.operand[at.operand];
    const int row0 = at.row0, rows = min(SAMPLE_ROWS, o.rows - row0), last = o.k - 1;
    const float *source = o.data + at.batch * o.batch_stride + row0 * o.row_stride;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    /* The sample: RUNS runs of 32 along k, spread evenly over it (over each other where k is short). A warp reads a run of
     * all rows, where rows are neighbours in memory, else all runs of its rows; a thread READS floats, all before it looks
     * at one. What is not there is read as the last that is. */
    auto run_begin = [&](int run) { return (int)((int64_t)max(0, o.k - 32) * run / (RUNS - 1)); };
    float x[READS];
    if (o.row_stride == 1) {
        const int row = lane % SAMPLE_ROWS, k = run_begin(warp) + lane / SAMPLE_ROWS;
#pragma unroll
        for (int i = 0; i < READS; i++)
            x[i] = source[min(row, rows - 1) + min(k + i * (32 / SAMPLE_ROWS), last) * o.k_stride];
        float most = 0;
#pragma unroll
        for (int i = 0; i < READS; i++) most = fmaxf(most, fabsf(x[i]));
        most = lanes_max<SAMPLE_ROWS>(most);
        if (lane < SAMPLE_ROWS) largest[warp][lane] = most;
    } else {
        constexpr int ROWS_PER_WARP = SAMPLE_ROWS / WARPS;
#pragma unroll
        for (int i = 0; i < READS; i++) {
            const int row = min(warp * ROWS_PER_WARP + i / RUNS, rows - 1), k = min(run_begin(i % RUNS) + lane, last);
            x[i] = source[row * o.row_stride + k * o.k_stride];
        }
#pragma unroll
        for (int r = 0; r < ROWS_PER_WARP; r++) {
            float most = 0;
#pragma unroll
            for (int run = 0; run < RUNS; run++) most = fmaxf(most, fabsf(x[r * RUNS + run]));
            most = lanes_max<1>(most);
            if (lane < WARPS) largest[lane][warp * ROWS_PER_WARP + r] = most;
        }
    }
    __syncthreads();
    if (threadIdx.x < rows) {
        float most = 0;
        for (int w = 0; w < WARPS; w++) most = fmaxf(most, largest[w][threadIdx.x]);
        const int64_t row = at.batch * o.exponents_batch_stride + row0 + threadIdx.x;
        o.exponents[row] = most == 0 ? (int)ALL_ZERO
                                     : exponent_for(most, SAMPLE_EXPONENT); /* until something is seen */
        o.overflows[row] = 0;
        o.deep[row] = 0;
    }
    if (threadIdx.x == 0 && row0 % PANEL_ROWS == 0) {
        const int64_t panel = at.batch * o.marks_batch_stride + row0 / PANEL_ROWS;
        o.misfits[panel] = 0;
        o.marks[panel] = 1;
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) *pair.progress = {};
}

/* All units, handed out one by one: memory serves some multiprocessors twice as fast as others. A block's first, which
 * it copies before it can have asked, are known beforehand. */
struct all_units {
    static constexpr bool AGAIN = false;
    static constexpr int KNOWN = STAGES; /* of the two rounds that only copy, and the first that asks */
    const pack_pair_args &pair;
    int (&tickets)[2]; /* shared */
    int count = 0, answer = 0;
    bool misfits = false; /* this thread has found some */

    __device__ bool next(place *u) {
        const int index = count < KNOWN ? blockIdx.x + count * gridDim.x : tickets[count % 2];
        count++;
        return place_at(pair, index, UNIT_ROWS, true, u);
    }
    __device__ void ask() {
        if (threadIdx.x == 0) answer = KNOWN * gridDim.x + atomicAdd(&pair.progress->units, 1);
    }
    __device__ void hear() {
        if (threadIdx.x == 0) tickets[count % 2] = answer;
    }
    __device__ void found(const place &u, float depth) {
        const pack_args &o = pair.operand[u.operand];
        if (depth < INFINITY) {
            raise(&o.marks[panel_of(pair, u)], depth);
            return;
        }
        o.misfits[panel_of(pair, u)] = 1;
        if (!misfits) atomicOr(&pair.progress->blocks, (uint32_t)PACK_MISFITS);
        misfits = true;
    }
};

/* Those of panels with misfits. A ticket is 32 units far from each other, so that those of a panel come to many blocks;
 * each lane looks at one. */
struct misfit_units {
    static constexpr bool AGAIN = true;
    const pack_pair_args &pair;
    int &ticket;       /* shared */
    unsigned left = 0; /* of this ticket, a bit for each unit to split again */

    __device__ bool next(place *u) {
        const int units = places_in(pair.operand[0], UNIT_ROWS, true) + places_in(pair.operand[1], UNIT_ROWS, true);
        const int tickets = divide_up(units, 32), lane = threadIdx.x % 32;
        while (!left) {
            __syncthreads();
            if (threadIdx.x == 0) ticket = (int)atomicAdd(&pair.progress->again, 1);
            __syncthreads();
            if (ticket >= tickets) return false;
            left = __ballot_sync(0xffffffffu, place_at(pair, ticket + lane * tickets, UNIT_ROWS, true, u) &&
                                                  __ldcg(&pair.operand[u->operand].misfits[panel_of(pair, *u)]));
        }
        const int first = __ffs((int)left) - 1;
        left &= left - 1;
        return place_at(pair, ticket + first * tickets, UNIT_ROWS, true, u);
    }
    __device__ void ask() {}
    __device__ void hear() {}
    __device__ void found(const place &u, float depth) {
        const float before = raise(&pair.operand[u.operand].marks[panel_of(pair, u)], depth);
        if (before < INFINITY && depth == INFINITY) atomicAdd(pair.marked_panels, 1ull);
    }
};

/* Grid: any; all units are shared out. 4 blocks per SM fill the memory. The kernel after this one comes early only where
 * no block has more than one: its blocks take places as they become free, and then those that share panels are not
 * neighbours on the chip (docs/tuning.md). */
extern "C" __global__ void __launch_bounds__(THREADS, 4) pack_split(const __grid_constant__ pack_pair_args pair) {
    stage(&stages)[STAGES] = *(stage(*)[STAGES])shared_memory;
    __shared__ int tickets[2];
    const long long begun = clock64();
    split_units(pair, stages, all_units{pair, tickets});
    if (stays(pair.progress, begun)) split_units(pair, stages, misfit_units{pair, tickets[0]});
}
} // namespace pack

namespace split_reduce {
/* split_reduce.cu: adds up the slices of k that a split kernel left in `partial`, and applies alpha and beta.
 *
 * C = alpha * (slice 0 + slice 1 + ...) + beta*S, always in this order, so that the same problem gives the same bits.
 * A warp has a block of DOUBT_ROWS x DOUBT_COLS of C, a thread one of its columns; blocks that are left to ieee, because
 * of their tile's marks or of a sum that is too small to be good, are left here. Limits: 128 threads, no shared memory;
 * grid.x covers the blocks of one product, four to a block of threads, grid.y is the batch.
 */

constexpr int THREADS = 128;
static_assert(DOUBT_COLS == 32, "a thread of a warp has a column");

extern "C" __global__ void __launch_bounds__(THREADS, 8) split_reduce(const __grid_constant__ split_args g) {
    wait_for_previous_kernel();
    let_next_kernel_come();
    const int batch = blockIdx.y, lane = threadIdx.x % 32;
    const uint32_t blocks_n = divide_up(g.n, DOUBT_COLS), block = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int row0 = block / blocks_n * DOUBT_ROWS, col0 = block % blocks_n * DOUBT_COLS;
    if (row0 >= g.m) return;
    const verdict on = verdict_on(g, mark_of(g.a, batch, row0), mark_of(g.b, batch, col0));
    const int rows = min(DOUBT_ROWS, g.m - row0), col = min(col0 + lane, g.n - 1);
    const bool there = col0 + lane < g.n;
    const int64_t size = (int64_t)g.m * g.n;
    const float *slice = g.partial + batch * g.slices * size + (int64_t)row0 * g.n + col;
    float sums[DOUBT_ROWS] = {};
    for (int i = 0; i < g.slices; i++, slice += size) {
        const float *from = slice;
#pragma unroll
        for (int r = 0; r < DOUBT_ROWS; r++, from += g.n)
            if (r < rows) sums[r] += *from;
    }
    if (on == LEAVE) return;

    if (on == LOOK) {
        const int row = row0 + min(lane, rows - 1); /* number `lane` */
        const float of_row = least_sum(g, g.a, batch, row), of_col = least_sum(g, g.b, batch, col);
        const float up_a = power_of_two(exponent_of(g.a, batch, row, g.m));
        const float up_b = power_of_two(exponent_of(g.b, batch, col, g.n));
        bool doubtful = false;
#pragma unroll
        for (int r = 0; r < DOUBT_ROWS; r++) {
            const float least = __shfl_sync(0xffffffffu, of_row, r) + of_col;
            const float up = __shfl_sync(0xffffffffu, up_a, r);
            doubtful |= r < rows && !(fabsf(sums[r] * up * up_b) >= least);
        }
        if (note_doubt(g, batch, row0, col0, doubtful && there)) return;
    }
    if (!there) return;
    float *to = g.c.data + batch * g.c.batch_stride + row0 * g.c.row_stride + col * g.c.col_stride;
    const float *from = g.source.data + batch * g.source.batch_stride + row0 * g.source.row_stride +
                        col * g.source.col_stride;
#pragma unroll
    for (int r = 0; r < DOUBT_ROWS; r++, to += g.c.row_stride, from += g.source.row_stride)
        if (r < rows) *to = g.beta == 0 ? g.alpha * sums[r] : fmaf(g.beta, *from, g.alpha * sums[r]);
}
} // namespace split_reduce

#endif
"""

# ---- The kernel that multiplies split operands on Hopper, CUDA -----------------------------------------------------

WGMMA_KERNEL = r"""
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* wgmma.cuh: the few Hopper instructions the split kernels are made of: matrix products of a warpgroup from shared
 * memory, straight copies from device to shared memory, and the barriers between them. */

#include <stdint.h>

__device__ inline uint32_t shared_address(const void *pointer) { return (uint32_t)__cvta_generic_to_shared(pointer); }

/* ---- Barriers in shared memory, waited on by phase --------------------------------------------------------------- */

__device__ inline void barrier_init(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/* Makes freshly initialised barriers visible to the copy engine. */
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Arrives, and makes the phase last until `bytes` have been copied as well. */
__device__ inline void barrier_arrive_and_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ inline void barrier_wait(uint64_t *barrier, uint32_t phase) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "wait:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra wait;\n"
                 "}\n" ::"r"(shared_address(barrier)),
                 "r"(phase)
                 : "memory");
}

/* A straight copy of `bytes` (a multiple of 16) that completes on `barrier`. */
__device__ inline void copy_to_shared(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

/* Brings `bytes` (a multiple of 16) as near as L2. */
__device__ inline void prefetch_to_l2(const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* ---- Clusters ---------------------------------------------------------------------------------------------------- */

/* This block's number in its cluster. */
__device__ inline int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Waits for all threads of the cluster. Before it, no block may touch another's shared memory, nor after the last one:
 * the other may not have begun, or have ended. */
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Arrives at this barrier's like in block `rank`. It orders reads by products, which have been waited for; an explicit
 * release at cluster scope would cost a fence of all of memory each time. */
__device__ inline void barrier_arrive_in(uint64_t *barrier, int rank) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}\n" ::"r"(shared_address(barrier)),
                 "r"(rank)
                 : "memory");
}

/* copy_to_shared to the same place, and completing on the same barrier, in every block whose bit is set in `blocks`. */
__device__ inline void copy_to_blocks(void *to, const void *from, uint32_t bytes, uint64_t *barrier, int blocks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"((uint16_t)blocks)
                 : "memory");
}

/* ---- What is the same in a warp ---------------------------------------------------------------------------------- */

/* The number of this thread's warp in its block. The compiler knows it to be the same in all lanes, as it does not of
 * threadIdx.x / 32, and with it what follows from it: descriptors and loop counters stay in uniform registers, which is
 * where matrix instructions want them, as long as no branch around them depends on anything but such values. */
__device__ inline int warp_number() { return __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); }

/* True in one thread of a converged warp. The compiler knows it to be one, as it does not of a comparison of
 * threadIdx, and issues a copy there without a loop over threads. */
__device__ inline bool elected() {
    uint32_t yes;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(yes));
    return yes;
}

/* ---- Warpgroup matrix products ----------------------------------------------------------------------------------- */

/* Where a tile of rows of 128 bytes, swizzled, lies in shared memory: the low word of its descriptor. The tile begins at a
 * multiple of 1024 bytes; n bytes further, along k or in another tile, is the address + n/16. */
__device__ inline uint32_t tile_address(const void *tile) {
    const uint32_t unused_stride = 1u << 16;
    return unused_stride | (shared_address(tile) & 0x3ffff) >> 4;
}

/* The whole of it: groups of 8 rows are 1024 bytes apart. */
__device__ inline uint64_t tile_descriptor(uint32_t address) {
    const uint32_t swizzle_128 = 1u << 30, group_stride = 1024 >> 4;
    return (uint64_t)(swizzle_128 | group_stride) << 32 | address;
}

/* Orders what the warpgroup did to registers and shared memory before the products that follow. */
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/* Closes a group of products; wgmma_wait<N> returns when at most the N youngest groups are unfinished. */
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int N> __device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving uses of the accumulators across this point. */
template <int N> __device__ inline void hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* d (64 x 128) = a (64 x 16) * b (128 x 16)^T + (accumulate ? d : 0). */
__device__ inline void wgmma_64x128x16(float (&d)[64], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
                 " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
                 " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, 0, 0;\n"
                 "}\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
                   "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),
                   "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
                   "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
                   "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]),
                   "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"((int)accumulate));
}

/* ---- Registers between warpgroups -------------------------------------------------------------------------------- */

template <int N> __device__ inline void registers_release_to() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ inline void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

namespace split_wgmma_sm90 {
/* split_wgmma_sm90.cu: C = alpha*A*B + beta*S from split operands (args.h) on Hopper's matrix instruction.
 *
 *   split_fp32_sm90        three products, float32 accuracy     tile 128 x 128   384 threads
 *   split_fp32_sm90_t128   the same with blocks of 128 threads  tile 128 x 128   2 x 128 threads, two blocks per SM
 *   split_tf32_sm90        one product                          tile 128 x 256   384 threads
 *
 * Arithmetic of the three products. With A = hi_a + lo_a 2^-11 and B likewise (scaled), a part of a block of k,
 * SPLIT_SUM_K, gives
 *
 *     main += hi_a*hi_b                  a fresh sum for each part, added to `main` by ordinary float32 additions: the
 *                                        tensor cores truncate as they accumulate, so they never do it for long
 *     corr += hi_a*lo_b + lo_a*hi_b      2^11 smaller, so that its truncation does not matter: one sum for all of k
 *
 * and C = (main + corr 2^-11) * 2^-(e_a + e_b). lo_a*lo_b is below float32's last bit. docs/numerics.md has the bound.
 *
 * Who does what. Blocks stay and take every gridDim-th tile. A stage is one k block of both operands' tiles, copied
 * straight from the panels. Of 384 threads, one thread of warpgroup 0 keeps the stages full; warpgroups 1 and 2 compute
 * 64 rows of the tile each. full[s] says a stage has landed, empty[s] that all warps have read it. Blocks of 128
 * threads do both jobs in turn, and compute a tile in pairs (clusters), 64 rows each: both need the same columns of B,
 * of which each copies half, to both, so that L2 is read as often as by one block of 384.
 *
 * Order within a warpgroup: the tensor cores are never idle, because
 *
 *     issue corr(i)   wait hi*hi(i)   main += it   issue hi*hi(i+1)   wait corr(i), and free its stage if it was the last
 *
 * runs the additions of part i under corr(i), and hi*hi(i+1) is queued before corr(i) has drained.
 *
 * Names: d sum of the current part, q corr, v main; kb block of k; wg warpgroup.
 * Limits: fp32 232 registers in warpgroups 1 and 2 (3 x 64 of them accumulators), 40 in 0; 3 stages of 64 KB, one block
 * per SM. With blocks of 128 threads 216 registers, 2 stages of 48 KB.
 */

namespace {

constexpr int WARPGROUP = 128;
constexpr int WG_ROWS = 64;         /* rows of C one warpgroup computes: the instruction's m */
constexpr int STEPS = SPLIT_K / 16; /* instructions along a block of k */
constexpr int SUM_STEPS = SPLIT_SUM_K / 16, PARTS = STEPS / SUM_STEPS;

static_assert(SPLIT_ROW_BYTES == 128, "the descriptors describe rows of 128 bytes, swizzled over 128 bytes");

/* ---- Copying a stage --------------------------------------------------------------------------------------------- */

template <int TILE_M, int TILE_N, int PIECES> struct stage {
    uint8_t a[PIECES][TILE_M * SPLIT_ROW_BYTES];
    uint8_t b[PIECES][TILE_N * SPLIT_ROW_BYTES];
};

template <int PIECES> __device__ void copy_strip(strip &s, uint8_t *to, int tile_bytes, uint64_t *barrier) {
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        if (s.bytes) copy_to_shared(to + piece * tile_bytes, s.from, s.bytes, barrier);
        s.from += s.piece_stride;
    }
}

/* The strips of a tile, copied block after block of k. */
template <int TILE_M, int TILE_N, int PIECES> struct tile_source {
    static constexpr int B_ROWS = TILE_N < PANEL_ROWS ? TILE_N : PANEL_ROWS, B_STRIPS = TILE_N / B_ROWS;
    strip a, b[B_STRIPS];
    uint32_t bytes;

    __device__ tile_source(const split_args &g, const work &w) {
        a = strip_at<TILE_M, PIECES>(g.a, g.m, g.k_blocks, w.batch, w.m0, w.kb_begin);
        bytes = a.bytes;
#pragma unroll
        for (int i = 0; i < B_STRIPS; i++) {
            b[i] = strip_at<B_ROWS, PIECES>(g.b, g.n, g.k_blocks, w.batch, w.n0 + i * B_ROWS, w.kb_begin);
            bytes += b[i].bytes;
        }
        bytes *= PIECES;
    }

    __device__ void copy_next(stage<TILE_M, TILE_N, PIECES> &s, uint64_t *full) {
        barrier_arrive_and_expect(full, bytes);
        copy_strip<PIECES>(a, s.a[0], sizeof s.a[0], full);
#pragma unroll
        for (int i = 0; i < B_STRIPS; i++)
            copy_strip<PIECES>(b[i], s.b[0] + i * B_ROWS * SPLIT_ROW_BYTES, sizeof s.b[0], full);
    }
};

/* A ring of stages: which one is next, and in which phase its barriers are. */
template <int STAGES> struct ring {
    int index = 0;
    uint32_t phase = 0;
    __device__ void advance() {
        if (++index == STAGES) {
            index = 0;
            phase ^= 1;
        }
    }
};

/* ---- Products of one warpgroup ----------------------------------------------------------------------------------- */

/* The products of what a warpgroup reads of a stage: its rows of A, all of B. */
struct stage_products {
    uint32_t a[2], b[2]; /* addresses of hi and lo */

    template <typename STAGE> __device__ stage_products(const STAGE *stages, int index, int row = 0) {
        const uint32_t at = tile_address(stages) + index * (uint32_t)(sizeof(STAGE) / 16);
        a[0] = at + row * SPLIT_ROW_BYTES / 16;
        a[1] = a[0] + sizeof stages->a[0] / 16;
        b[0] = at + sizeof stages->a / 16;
        b[1] = b[0] + sizeof stages->b[0] / 16;
    }

    __device__ void issue_hi_hi(float (&d)[64], int part) const {
#pragma unroll
        for (int i = 0; i < SUM_STEPS; i++) {
            const int at = 2 * (part * SUM_STEPS + i);
            wgmma_64x128x16(d, a[0] + at, b[0] + at, i > 0);
        }
        wgmma_commit();
    }

    __device__ void issue_corrections(float (&q)[64], int part, bool accumulate) const {
        const int at = 2 * part * SUM_STEPS;
#pragma unroll
        for (int i = 0; i < SUM_STEPS; i++)
            wgmma_64x128x16(q, a[0] + at + 2 * i, b[1] + at + 2 * i, accumulate || i > 0);
#pragma unroll
        for (int i = 0; i < SUM_STEPS; i++) wgmma_64x128x16(q, a[1] + at + 2 * i, b[0] + at + 2 * i, true);
        wgmma_commit();
    }

    /* All products of the first part, added to q's. */
    __device__ void issue_first_part(float (&d)[64], float (&q)[64]) const {
        issue_hi_hi(d, 0);
        issue_corrections(q, 0, true);
    }

    /* All of the stage but the first part's hi*hi, which is on its way: returns when the last part's corrections are. */
    __device__ void issue_rest(float (&d)[64], float (&q)[64], float (&v)[64], bool accumulate) const {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            issue_corrections(q, part, accumulate || part > 0);
            wgmma_wait<1>();
            hold(d);
#pragma unroll
            for (int i = 0; i < 64; i++) v[i] += d[i];
            if (part + 1 == PARTS) break;
            wgmma_fence();
            issue_hi_hi(d, part + 1);
        }
    }
};

/* ---- Writing a tile ---------------------------------------------------------------------------------------------- */

/* What a warp needs to know to write its 16 rows of a tile. Where a block is alone on its SM this is loaded before the
 * products, so that nothing waits for it after them. */
template <int TILE_N> struct output {
    static constexpr int BLOCKS = TILE_N / OUT_COLS;
    int row0;
    int exponent_a, exponent_b[BLOCKS]; /* of row `lane`; of column `lane` of each block */
    verdict on[TILE_N / PANEL_ROWS];    /* the sums, in each panel of B */

    __device__ output(const split_args &g, const work &w, int wg_row0) {
        const int lane = threadIdx.x % 32;
        row0 = wg_row0 + threadIdx.x / 32 % 4 * OUT_ROWS;
        exponent_a = exponent_of(g.a, w.batch, row0 + lane % OUT_ROWS, g.m);
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) exponent_b[i] = exponent_of(g.b, w.batch, w.n0 + i * OUT_COLS + lane, g.n);
#pragma unroll
        for (int i = 0; i < TILE_N / PANEL_ROWS; i++) {
            const int col = w.n0 + i * PANEL_ROWS;
            on[i] = col < g.n ? verdict_on(g, mark_of(g.a, w.batch, w.m0), mark_of(g.b, w.batch, col)) : LEAVE;
        }
    }

    /* Blocks of OUT_COLS columns, one after the other. Unrolled, one is on its way to memory while the next is made
     * ready; but the instructions of the first tile come from device memory, too. For the eight of a wide tile, which is
     * often a multiprocessor's only one, that takes longer than it saves. */
    __device__ void store(const split_args &g, const work &w, float (&v)[TILE_N / 2], out_buffer &out) const {
        constexpr int AT_ONCE = BLOCKS > 4 ? 1 : BLOCKS;
        const destination d(g, w);
        scale_rows(v, exponent_a);
#pragma unroll AT_ONCE
        for (int block = 0; block < BLOCKS; block++) {
            const int col0 = w.n0 + block * OUT_COLS;
            verdict on_these = LEAVE;
            int exponent = 0;
            __syncwarp();
#pragma unroll
            for (int i = 0; i < BLOCKS; i++)
                if (i == block) { /* registers cannot be indexed */
                    put_sums(v + i * OUT_COLS / 2, out);
                    exponent = exponent_b[i];
                    on_these = on[i * OUT_COLS / PANEL_ROWS];
                }
            __syncwarp();
            /* The same in all lanes; by a vote, so that the compiler knows it (warp_number). */
            if (!__any_sync(0xffffffffu, on_these != LEAVE && row0 < g.m && col0 < g.n)) continue;
            if (on_these == LOOK && g.slices == 1 && in_doubt(g, w.batch, row0, col0, exponent_a, out)) continue;
            write_out(g, d, row0, col0, exponent, out);
        }
    }
};

/* Everything a block shares. WARPS: those that compute. */
template <typename STAGE, int STAGES, int WARPS> struct shared_layout {
    STAGE stages[STAGES];
    out_buffer out[WARPS];
    uint64_t full[STAGES], empty[STAGES];
};

/* A stage is full when its copies, which `copiers` threads issue, have landed; empty when every warp whose products need
 * what we copy has read it, in each block of the cluster. */
template <typename STAGE, int STAGES, int WARPS>
__device__ void make_barriers(shared_layout<STAGE, STAGES, WARPS> &s, int copiers = 1, int cluster = 1) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s.full[i], copiers);
            barrier_init(&s.empty[i], WARPS * cluster);
        }
        barrier_init_fence();
    }
    __syncthreads();
}

template <int TILE_M, int TILE_N, int PIECES, int STAGES, int WARPS>
__device__ void produce(const split_args &g, shared_layout<stage<TILE_M, TILE_N, PIECES>, STAGES, WARPS> &s) {
    ring<STAGES> at;
    for (int index = blockIdx.x; index < work_count(g); index += gridDim.x) {
        const work w = work_at<TILE_M, TILE_N>(g, index);
        tile_source<TILE_M, TILE_N, PIECES> source(g, w);
        wait_for_previous_kernel(); /* the first time: where to copy from was found while it ended */
        let_next_kernel_come();
#pragma unroll 1
        for (int kb = w.kb_begin; kb < w.kb_end; kb++, at.advance()) {
            barrier_wait(&s.empty[at.index], at.phase ^ 1);
            source.copy_next(s.stages[at.index], &s.full[at.index]);
        }
    }
}

extern __shared__ __align__(1024) uint8_t shared_memory[];

} // namespace

/* ---- fp32, 128 threads ------------------------------------------------------------------------------------------- */

namespace fp32_t128 {
constexpr int TILE_M = 128, TILE_N = 128, CLUSTER = 2; /* the tile is a cluster's */
constexpr int STAGES = 2, WARPS = 4;
typedef stage<WG_ROWS, TILE_N, 2> STAGE;
typedef shared_layout<STAGE, STAGES, WARPS> SHARED;
static_assert(TILE_M == CLUSTER * WG_ROWS, "the warpgroups of a cluster share a tile's rows");
static_assert(TILE_M <= PANEL_ROWS, "so that a block's rows, even past the matrix, have the marks of a panel there is");
static_assert(2 * sizeof(SHARED) <= 226 * 1024, "two blocks share an SM");
static_assert(sizeof(SHARED) == SPLIT_FP32_SM90_T128_SHARED, "what the host asks for");

/* The index-th piece of work of a cluster, as block `rank` of it sees it. */
__device__ work work_of(const split_args &g, int index, int rank) {
    work w = work_at<TILE_M, TILE_N>(g, index);
    w.m0 += rank * WG_ROWS;
    return w;
}

/* Copies one of the four strips of a stage, block after block of k and tile after tile; each warp does one. Issuing a copy
 * takes long enough that products would wait for four in a row. All of a warp goes along, though one thread copies: see
 * warp_number. The strips are hi and lo of our rows of A (warps 0 and 2), and of our half of the columns of B, for all
 * blocks (warps 1 and 3). Two stages cannot cover the way from device memory, so what comes AHEAD blocks later is called
 * to L2; the tiles that share a strip, as neighbours in a group do, call a part each. */
struct strip_copier {
    static constexpr int B_ROWS = TILE_N / CLUSTER, ALL_BLOCKS = (1 << CLUSTER) - 1;
    static constexpr int AHEAD = 4, PARTS = GROUP_ROWS;
    ring<STAGES> at;
    int rank, piece;
    bool of_b, copies;
    int index, blocks_left; /* piece of work, and blocks of k of it to copy; none: there is no more work */
    const uint8_t *from;
    uint32_t step, bytes, landing; /* landing: what comes to our own shared memory, from all blocks */
    uint32_t ahead;                /* from `from` to what to call */

    __device__ strip_copier(const split_args &g, int rank, int warp)
        : rank(rank), piece(warp / 2), of_b(warp % 2), copies(elected()) {
        begin(g, blockIdx.x / CLUSTER);
    }

    __device__ void begin(const split_args &g, int work_index) {
        index = work_index;
        blocks_left = 0;
        if (index >= work_count(g)) return;
        const work w = work_of(g, index, rank);
        blocks_left = w.kb_end - w.kb_begin;
        strip s;
        if (of_b) {
            s = strip_at<B_ROWS, 2>(g.b, g.n, g.k_blocks, w.batch, w.n0 + rank * B_ROWS, w.kb_begin);
            landing = strip_at<TILE_N, 2>(g.b, g.n, g.k_blocks, w.batch, w.n0, w.kb_begin).bytes;
        } else {
            s = strip_at<WG_ROWS, 2>(g.a, g.m, g.k_blocks, w.batch, w.m0, w.kb_begin);
            landing = s.bytes;
        }
        from = s.from + piece * s.piece_stride;
        step = 2 * s.piece_stride;
        bytes = s.bytes;
        ahead = AHEAD * step + (of_b ? w.m0 / TILE_M : w.n0 / TILE_N) % PARTS * (bytes / PARTS);
    }

    __device__ void copy_next(const split_args &g, SHARED &s) {
        if (!blocks_left) return;
        STAGE &to = s.stages[at.index];
        uint64_t *full = &s.full[at.index];
        barrier_wait(&s.empty[at.index], at.phase ^ 1);
        if (copies) {
            barrier_arrive_and_expect(full, landing);
            if (bytes && of_b)
                copy_to_blocks(to.b[piece] + rank * B_ROWS * SPLIT_ROW_BYTES, from, bytes, full, ALL_BLOCKS);
            else if (bytes)
                copy_to_shared(to.a[piece], from, bytes, full);
            if (bytes && blocks_left > AHEAD) prefetch_to_l2(from + ahead, bytes / PARTS);
        }
        from += step;
        at.advance();
        if (--blocks_left == 0) begin(g, index + gridDim.x / CLUSTER);
    }
};

/* This warp has read the stage, into which every block of the cluster copies. */
__device__ void release(SHARED &s, int stage) {
    const int lane = threadIdx.x % 32;
    if (lane < CLUSTER) barrier_arrive_in(&s.empty[stage], lane);
}
} // namespace fp32_t128

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(WARPGROUP, 2)
    split_fp32_sm90_t128(const __grid_constant__ split_args g) {
    using namespace fp32_t128;
    SHARED &s = *(SHARED *)shared_memory;
    make_barriers(s, WARPS, CLUSTER);
    cluster_sync();
    wait_for_previous_kernel();
    let_next_kernel_come();

    const int rank = cluster_rank(), warp = warp_number();
    strip_copier copier(g, rank, warp);
    for (int i = 0; i < STAGES; i++) copier.copy_next(g, s);

    ring<STAGES> at;
    for (int index = blockIdx.x / CLUSTER; index < work_count(g); index += gridDim.x / CLUSTER) {
        const work w = work_of(g, index, rank);
        float d[64], q[64], v[64];
#pragma unroll
        for (int i = 0; i < 64; i++) v[i] = 0;

        barrier_wait(&s.full[at.index], at.phase);
        wgmma_fence();
        stage_products(s.stages, at.index).issue_hi_hi(d, 0);
#pragma unroll 1
        for (int kb = w.kb_begin;; kb++) {
            wgmma_fence();
            stage_products(s.stages, at.index).issue_rest(d, q, v, kb > w.kb_begin);
            const int done = at.index;
            at.advance();
            if (kb + 1 == w.kb_end) {
                wgmma_wait<0>();
                release(s, done);
                break;
            }
            barrier_wait(&s.full[at.index], at.phase);
            wgmma_fence();
            stage_products(s.stages, at.index).issue_hi_hi(d, 0);
            wgmma_wait<1>();
            release(s, done);
            copier.copy_next(g, s);
        }
        copier.copy_next(g, s);               /* of the next tile, before we write this one */
        const output<TILE_N> out(g, w, w.m0); /* not sooner: while we wait for it, the SM's other block multiplies */
        hold(q);
#pragma unroll
        for (int i = 0; i < 64; i++) v[i] = fmaf(q[i], LO_SCALE, v[i]);
        out.store(g, w, v, s.out[warp]);
    }
    cluster_sync(); /* the other block may still release stages to us */
}
} // namespace split_wgmma_sm90

#endif
"""
