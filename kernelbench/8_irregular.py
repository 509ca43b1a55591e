"""Product of matrices of irregular sizes, in float32: C = A @ B (KernelBench level 1, problem 8).

    model = ModelNew()      # needs torch, nvcc and an NVIDIA GPU of compute capability 7.5 or newer
    C = model(A, B)         # A: (M, K), B: (K, N), C: (M, N)

It takes any sizes and strides, uses the current stream, and is differentiable; the gradients are products by the same
kernels. Tensors on the CPU are moved to the GPU, where the result stays. The first use compiles the text below, in less
than a minute; torch keeps what it compiled.

precision="fp32", the default, uses Hopper's tensor cores. They multiply half-precision numbers, so each float32 number
is split into two of those:

    x * 2^e = hi + lo * 2^-11       e brings the largest element of a row of A or column of B near fp16's largest

Together hi and lo hold 23 bits of x. A product is then three half-precision products, summed in float32:

    C * 2^(e_a + e_b) = hi_a hi_b + (hi_a lo_b + lo_a hi_b) * 2^-11

Tensor cores truncate when they add, so sums of hi_a hi_b move to ordinary float32 registers every 32 terms, before
truncation matters ("promotion"). The error of each element is at most (K + 2) 2^-24 sum |a||b|, the bound of float32
arithmetic itself, and on ordinary data it is smaller than that of plain float32.

Some rows cannot be split that well: those with Inf or NaN, or with elements too far apart in magnitude. Packing marks
their panels, the Hopper kernel does not store the tiles of C that depend on them, and the portable kernel computes
these in plain float32. All of this happens on the GPU; the CPU does not wait.

precision="ieee" computes everything with plain float32 multiply-adds, as do small products and other GPUs.

Written by Tessera's kernelbench/generate.py: change what that reads, not this file. Apache License 2.0.
"""

import functools
import inspect
import os
from unittest import mock

import torch
from torch.utils.cpp_extension import load_inline

# ---- What the host passes to the kernels (C++ and CUDA) -------------------------------------------------------------

ARGUMENTS = r"""
#include <stdint.h>

/* args.h: what every kernel of a module takes, as its one parameter.
 * An operand is seen as `rows` rows of length k: A as it is, B transposed. Packed, row r is scaled by 2^exponents[r],
 * split into hi and lo, and grouped with others in panels of PANEL_ROWS; k is cut into blocks of SPLIT_K. Block kb of a
 * panel is a tile of hi, then a tile of lo, of stored_rows x 128 bytes each; stored_rows is PANEL_ROWS, or in the last
 * panel its number of rows rounded up to 8. Within a tile, 16-byte chunk j of row r lies at chunk j ^ (r % 8): the
 * 128-byte swizzle that wgmma reads. Missing rows and k are zero.
 *
 * An element's depth is the factor by which it lies, scaled, below fp16's smallest normal number 2^-14; 1 if it does
 * not; infinite if it does not fit at all (Inf, NaN, overflow). A panel's mark is its largest depth. */
enum { PANEL_ROWS = 128, SPLIT_K = 64, SPLIT_ROW_BYTES = 128, SPLIT_LO_SHIFT = 11 };
enum { SPLIT_SUM_K = 32 }; /* terms that tensor cores sum before the sum is promoted to float32 registers */
enum { ALL_ZERO = 63 };    /* the exponent of a row of zeros; those of others are within +-62 */

struct operand {
    const float *data; /* element (row, k) at data[row*row_stride + k*k_stride]; one of the strides is 1 */
    int64_t row_stride, k_stride, batch_stride;
    int32_t rows, k;
    uint8_t *panels;
    int64_t panels_batch_stride; /* bytes */
    int32_t *exponents;          /* [batch][rows] */
    float *marks;                /* [batch][panels] */
    float *overflows;            /* [batch][rows]: a row's largest element that did not fit at first, or 0 */
    int32_t *overflowed;         /* [batch][panels]: 1 if something did not fit at first, else 0 */
};

/* C = A*B, with C [batch][m][n]: m = a.rows, n = b.rows, k = a.k = b.k. The Hopper kernel stores the tiles of C whose
 * marks, of A and of B, multiply to at most mark_limit; only_marked: the portable kernel computes only the others. */
struct product {
    operand a, b;
    float *c;
    int32_t batch, only_marked;
    float mark_limit;
    int32_t *any_overflowed; /* 1 if any panel overflowed, else 0 */
};

/* What the host needs to know for a launch. PORTABLE_SLAB: terms in a slab of the portable kernel. Longer slabs need
 * fewer barriers; with the shorter ones two blocks fit on an SM that has only 100 KB of shared memory. */
enum { SAMPLE_ROWS = 8, PACK_ROWS = 64, PACK_BLOCKS_PER_SM = 8, PORTABLE_SLAB = TESSERA_HOPPER ? 32 : 16 };
constexpr int portable_shared(int tile) { return 2 * 2 * PORTABLE_SLAB * (tile + 4) * (int)sizeof(float); }
enum { MULTIPLY_THREADS = 384, MULTIPLY_CLUSTER = 1, MULTIPLY_SHARED = 217136 };
"""

# ---- Instructions and arithmetic that all kernels use (CUDA) --------------------------------------------------------

COMMON = r"""
#ifdef __CUDA_ARCH__
constexpr int ARCHITECTURE = __CUDA_ARCH__;
#else
constexpr int ARCHITECTURE = 0; /* the compiler's host side, which makes no machine code of this */
#endif

/* Many instructions take shared memory by its 32-bit address. */
__device__ inline uint32_t shared_address(const void *pointer) { return (uint32_t)__cvta_generic_to_shared(pointer); }

extern __shared__ __align__(1024) uint8_t shared_memory[]; /* this thread block's */

/* From Hopper on, a kernel may start before the one in front of it ends. This returns when that one, and all before it,
 * have ended. Every thread calls it before it reads what they write, or writes what they read. */
__device__ inline void wait_for_previous_kernel() {
    if constexpr (ARCHITECTURE >= 900) asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* Once all blocks have called this or ended, blocks of the next kernel may start on free SMs. Never before the wait. */
__device__ inline void allow_next_kernel() {
    if constexpr (ARCHITECTURE >= 900) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Copies BYTES, 4 or 16, to shared memory if `wanted`: by cp.async, where that is a predicate and not a branch, so that
 * copies can stand between multiplications; on Turing by a load and a store. */
template <int BYTES> __device__ inline void cp_async_if(uint32_t to, const void *from, int wanted) {
    if constexpr (ARCHITECTURE >= 800 && BYTES == 16)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}"
                     :: "r"(to), "l"(from), "r"(wanted) : "memory");
    else if constexpr (ARCHITECTURE >= 800)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 4;}"
                     :: "r"(to), "l"(from), "r"(wanted) : "memory");
    else if (BYTES == 16 && wanted)
        *(float4 *)__cvta_shared_to_generic(to) = *(const float4 *)from;
    else if (wanted)
        *(float *)__cvta_shared_to_generic(to) = *(const float *)from;
}

/* Closes a group of copies; cp_async_wait<N> returns when at most the N youngest groups are unfinished. */
__device__ inline void cp_async_commit() {
    if constexpr (ARCHITECTURE >= 800) asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ inline void cp_async_wait() {
    if constexpr (ARCHITECTURE >= 800) asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

/* Hides from the compiler how these were computed, so that it keeps them and does not compute them again. */
__device__ inline void forget_origin(int64_t &w, int64_t &x, int64_t &y, int64_t &z) {
    asm volatile("" : "+l"(w), "+l"(x), "+l"(y), "+l"(z));
}

constexpr float LO_SCALE = 1.0f / (1 << SPLIT_LO_SHIFT);

__device__ constexpr int ceil_div(int x, int y) { return (x + y - 1) / y; }

__device__ inline float power_of_two(int e) { return __uint_as_float((unsigned)(e + 127) << 23); }

struct tile {
    int batch, m0, n0; /* m0, n0: its first row and column */
};
template <int TILE> __device__ int tile_count(const product &g) {
    return g.batch * ceil_div(g.a.rows, TILE) * ceil_div(g.b.rows, TILE);
}

/* In bands of GROUP tile rows, down the columns of a band, so that tiles in progress share operands in L2. */
template <int TILE, int GROUP> __device__ tile tile_at(const product &g, int index) {
    const int tiles_m = ceil_div(g.a.rows, TILE), tiles_n = ceil_div(g.b.rows, TILE);
    const int batch = index / (tiles_m * tiles_n), in_batch = index - batch * tiles_m * tiles_n;
    const int first = in_batch / (GROUP * tiles_n) * GROUP, within = in_batch - first * tiles_n;
    const int rows = min(GROUP, tiles_m - first);
    return {batch, (first + within % rows) * TILE, within / rows * TILE};
}

/* Rows of one panel, in the first block of k: hi is `bytes` contiguous bytes, lo is component_stride bytes further, and
 * the next block's hi as far behind lo. bytes = 0: past the matrix. */
struct panel_rows {
    uint8_t *from;
    uint32_t component_stride, bytes;
};
template <int ROWS> __device__ panel_rows panel_rows_at(const operand &o, int batch, int row) {
    const int panel = row / PANEL_ROWS, skip = row % PANEL_ROWS, k_blocks = ceil_div(o.k, SPLIT_K);
    const int stored = max(0, min(PANEL_ROWS, ceil_div(o.rows - panel * PANEL_ROWS, 8) * 8));
    const int64_t panel_bytes = (int64_t)k_blocks * 2 * PANEL_ROWS * SPLIT_ROW_BYTES;
    return {o.panels + batch * o.panels_batch_stride + panel * panel_bytes + skip * SPLIT_ROW_BYTES,
            (uint32_t)stored * SPLIT_ROW_BYTES, (uint32_t)max(0, min(ROWS, stored - skip)) * SPLIT_ROW_BYTES};
}

/* The mark of the panel that this row is in. */
__device__ inline float mark_of(const operand &o, int batch, int row) {
    return o.marks[batch * ceil_div(o.rows, PANEL_ROWS) + row / PANEL_ROWS];
}
"""

# ---- Packing (CUDA) -------------------------------------------------------------------------------------------------

PACKING = r"""
#include <cuda_fp16.h>

/* pack.cu: float32 operands -> fp16 panels for the Hopper kernel (layout: args.h).
 *   pack_sample    takes a row's exponent e from SAMPLES of its elements, with room above for what it has not seen
 *   pack_split     splits: hi = fp16(x*2^e), lo = fp16((x*2^e - hi) * 2^11)
 *   pack_again     splits panels again in which an element did not fit, with e from the row's largest such element
 *
 * So an operand is read once, unless its sample misleads. Tile map: a pack tile is 64 rows x SPLIT_K; a block of 128
 * threads loads it as it lies in memory, in lines along whichever of rows and k is contiguous, and passes it through
 * shared memory. A thread then splits quads: four neighbours along k, 8 bytes of hi and 8 of lo. */

namespace packing {

constexpr int THREADS = 128, QUAD = 4, QUADS = SPLIT_K / QUAD; /* QUADS: of a row */
constexpr int LINE = 64, LINE_PITCH = LINE + 1;                /* a pack tile is 64 lines of 64; odd, to spread banks */
constexpr int SAMPLES = 128, SAMPLE_EXPONENT = 12; /* their largest lands in [2^12, 2^13): others may be 8 times it */
constexpr int LARGEST_EXPONENT = 14;               /* the row's largest lands in [2^14, 2^15), below fp16's 65504 */
constexpr int EXPONENT_LIMIT = 62;                 /* 2^(e of A + e of B) and its inverse stay normal floats */
constexpr float HALF_LEAST_NORMAL = 1.0f / (1 << 14), HALF_OVERFLOW = 65520; /* fp16's; it rounds that to infinity */
static_assert(PACK_ROWS == LINE && SPLIT_K == LINE, "a pack tile has as many lines whichever way they run");

/* The exponent that scales a row whose largest element is `largest` to [2^at, 2^(at + 1)). */
__device__ int exponent_for(float largest, int at) {
    const int exponent = (int)(__float_as_uint(largest) >> 23) - 127; /* a subnormal's is lower: the limit holds */
    return max(-EXPONENT_LIMIT, min(EXPONENT_LIMIT, at - exponent));
}

/* atomicMax of floats that are not negative: their bits are ordered as they are. */
__device__ void raise(float *number, float to) { atomicMax((int *)number, __float_as_int(to)); }

/* Where a pack tile, or a group of sampled rows, begins. */
struct place {
    bool in_b;
    int batch, row0, kb;
    __device__ const operand &of(const product &g) const { return in_b ? g.b : g.a; }
};

/* Place `index`: group_rows rows in one block of k, those of A first. Thread blocks with neighbouring numbers run at
 * the same time, and get what lies together in memory. */
__device__ place place_at(const product &g, int index, int group_rows, int k_blocks) {
    const int in_a = g.batch * ceil_div(g.a.rows, group_rows) * k_blocks;
    place at = {};
    at.in_b = index >= in_a;
    if (at.in_b) index -= in_a;
    const int groups = ceil_div(at.of(g).rows, group_rows);
    at.batch = index / (groups * k_blocks);
    index -= at.batch * groups * k_blocks;
    const bool across = at.of(g).row_stride == 1;
    at.kb = across ? index / groups : index % k_blocks;
    at.row0 = (across ? index % groups : index / k_blocks) * group_rows;
    return at;
}

struct pack_tile {
    float lines[LINE][LINE_PITCH];
    int exponents[PACK_ROWS];
};

/* A thread's share of a tile: 32 floats, either four neighbours of every 8th line or one of every 2nd. All are loaded
 * before the first is used. What lies past the matrix is zero. */
struct share {
    __align__(16) float x[LINE * LINE / THREADS];
    bool vectors;
    __device__ void load(const operand &o, const place &u) {
        const bool across = o.row_stride == 1; /* lines run across rows, else along k */
        const float *first = o.data + u.batch * o.batch_stride + u.row0 * o.row_stride +
                             (int64_t)u.kb * SPLIT_K * o.k_stride;
        const int64_t stride = across ? o.k_stride : o.row_stride;
        const int rows = min(PACK_ROWS, o.rows - u.row0), depth = min(SPLIT_K, o.k - u.kb * SPLIT_K);
        const int lines = across ? depth : rows, length = across ? rows : depth;
        vectors = lines == LINE && length == LINE && stride % 4 == 0 && (uintptr_t)first % 16 == 0;
        if (vectors) {
            first += threadIdx.x / 16 * stride + threadIdx.x % 16 * 4;
#pragma unroll
            for (int i = 0; i < LINE / 8; i++) *(float4 *)&x[4 * i] = *(const float4 *)(first + i * 8 * stride);
        } else {
            const int line = threadIdx.x / 64, column = threadIdx.x % 64;
            first += line * stride + column;
            _Pragma("unroll") for (int i = 0; i < LINE / 2; i++)
                x[i] = i * 2 + line < lines && column < length ? first[i * 2 * stride] : 0;
        }
    }
    __device__ void store(pack_tile &tile) const {
        _Pragma("unroll") for (int i = 0; i < LINE * LINE / THREADS; i++)
            if (vectors)
                tile.lines[i / 4 * 8 + threadIdx.x / 16][threadIdx.x % 16 * 4 + i % 4] = x[i];
            else
                tile.lines[i * 2 + threadIdx.x / 64][threadIdx.x % 64] = x[i];
    }
};

/* An element's depth with exponent e; infinite also where its row was taken for zeros. */
__device__ float depth_of(float x, int e) {
    const float scaled = fabsf(x * power_of_two(e));
    if (x == 0) return 1;
    return scaled < HALF_OVERFLOW && e != ALL_ZERO ? fmaxf(1, HALF_LEAST_NORMAL / scaled) : INFINITY;
}

/* Splits two neighbours of a row with exponent e; false where one of them is tiny or does not fit. */
__device__ bool split_pair(float x0, float x1, int e, __half2 *hi, __half2 *lo) {
    const float up = power_of_two(e), down = power_of_two(-e), lo_up = power_of_two(e + SPLIT_LO_SHIFT);
    const float least = e == ALL_ZERO ? INFINITY : HALF_LEAST_NORMAL, scaled0 = x0 * up, scaled1 = x1 * up;
    *hi = __floats2half2_rn(scaled0, scaled1);
    const float2 h = __half22float2(*hi);
    *lo = __floats2half2_rn(fmaf(-h.x, down, x0) * lo_up, fmaf(-h.y, down, x1) * lo_up);
    return ((fabsf(scaled0) >= least && fabsf(scaled0) < HALF_OVERFLOW) || x0 == 0) &
           ((fabsf(scaled1) >= least && fabsf(scaled1) < HALF_OVERFLOW) || x1 == 0);
}

/* Splits this thread's quads, of every 8th row (which are swizzled alike), and returns their largest depth. */
__device__ float split(const operand &o, const place &u, const pack_tile &tile) {
    const int quad = threadIdx.x % QUADS, first_row = threadIdx.x / QUADS;
    const panel_rows rows = panel_rows_at<PACK_ROWS>(o, u.batch, u.row0);
    uint8_t *to = rows.from + (int64_t)u.kb * 2 * rows.component_stride + first_row * SPLIT_ROW_BYTES +
                  (quad / 2 ^ first_row) * 16 + quad % 2 * 8;
    float depth = 1;
#pragma unroll 2
    for (int row = first_row; row < PACK_ROWS; row += THREADS / QUADS, to += THREADS / QUADS * SPLIT_ROW_BYTES) {
        const int e = tile.exponents[row];
        float x[QUAD];
        __half2 hi[QUAD / 2], lo[QUAD / 2];
        _Pragma("unroll") for (int k = 0; k < QUAD; k++)
            x[k] = o.row_stride == 1 ? tile.lines[quad * QUAD + k][row] : tile.lines[row][quad * QUAD + k];
        bool ordinary = true;
#pragma unroll
        for (int i = 0; i < QUAD / 2; i++) ordinary &= split_pair(x[2 * i], x[2 * i + 1], e, &hi[i], &lo[i]);
        if (row * SPLIT_ROW_BYTES < rows.bytes) {
            *(uint2 *)to = *(uint2 *)hi;
            *(uint2 *)(to + rows.component_stride) = *(uint2 *)lo;
        }
        if (ordinary) continue;
        for (int k = 0; k < QUAD; k++) {
            const float of_x = depth_of(x[k], e);
            depth = fmaxf(depth, of_x);
            if (of_x == INFINITY) raise(&o.overflows[(int64_t)u.batch * o.rows + u.row0 + row], fabsf(x[k]));
        }
    }
    return depth;
}

/* Packs a tile; AGAIN: only if its panel overflowed. */
template <bool AGAIN> __device__ void pack_one(const product &g, int index) {
    __shared__ pack_tile tile;
    const place u = place_at(g, index, PACK_ROWS, ceil_div(g.a.k, SPLIT_K));
    const operand &o = u.of(g);
    const int panel = u.batch * ceil_div(o.rows, PANEL_ROWS) + u.row0 / PANEL_ROWS;
    if (AGAIN && !o.overflowed[panel]) return;
    share mine;
    mine.load(o, u); /* the matrix was there before the kernel in front of this one, the exponents were not */
    if (!AGAIN) wait_for_previous_kernel();
    if (threadIdx.x < PACK_ROWS) {
        const bool there = u.row0 + threadIdx.x < o.rows;
        const int64_t row = (int64_t)u.batch * o.rows + (there ? u.row0 + threadIdx.x : 0);
        int e = there ? o.exponents[row] : 0;
        if (AGAIN && there && o.overflows[row] > 0) {
            e = exponent_for(o.overflows[row], LARGEST_EXPONENT);
            if (u.kb == 0) o.exponents[row] = e; /* the other tiles of this row find the same */
        }
        tile.exponents[threadIdx.x] = e;
    }
    mine.store(tile);
    __syncthreads();
    const float depth = split(o, u, tile);
    if (depth > 1 && (AGAIN || depth < INFINITY)) raise(&o.marks[panel], depth);
    if (!AGAIN && depth == INFINITY) o.overflowed[panel] = *g.any_overflowed = 1;
    __syncthreads(); /* the next tile takes this one's place */
}

} // namespace packing

/* Grid: batch * ceil(rows / SAMPLE_ROWS) blocks for each operand. The sample is four runs of 32, spread over k. */
extern "C" __global__ void __launch_bounds__(128) pack_sample(const __grid_constant__ product g) {
    using namespace packing;
    __shared__ float largest[SAMPLE_ROWS];
    wait_for_previous_kernel(), allow_next_kernel();
    const place at = place_at(g, blockIdx.x, SAMPLE_ROWS, 1);
    const operand &o = at.of(g);
    const bool across = o.row_stride == 1;
    const int row = across ? threadIdx.x % SAMPLE_ROWS : threadIdx.x / 16;
    const int lane = across ? threadIdx.x / SAMPLE_ROWS : threadIdx.x % 16;
    const float *first = o.data + at.batch * o.batch_stride + min(at.row0 + row, o.rows - 1) * o.row_stride;
    float x[SAMPLES / 16], most = 0;
    _Pragma("unroll") for (int i = 0; i < SAMPLES / 16; i++) {
        const int run = (int)((int64_t)max(0, o.k - 32) * (i / 2) / 3);
        x[i] = first[min(run + i % 2 * 16 + lane, o.k - 1) * o.k_stride];
    }
    if (threadIdx.x < SAMPLE_ROWS) largest[threadIdx.x] = 0;
    __syncthreads();
    _Pragma("unroll") for (int i = 0; i < SAMPLES / 16; i++) most = fmaxf(most, fabsf(x[i]));
    raise(&largest[row], most);
    __syncthreads();
    if (threadIdx.x < SAMPLE_ROWS && at.row0 + threadIdx.x < o.rows) {
        const int64_t i = (int64_t)at.batch * o.rows + at.row0 + threadIdx.x;
        most = largest[threadIdx.x];
        o.exponents[i] = most == 0 ? (int)ALL_ZERO : exponent_for(most, SAMPLE_EXPONENT);
        o.overflows[i] = 0;
    }
    if (threadIdx.x == 0 && at.row0 % PANEL_ROWS == 0) {
        const int panel = at.batch * ceil_div(o.rows, PANEL_ROWS) + at.row0 / PANEL_ROWS;
        o.marks[panel] = 1, o.overflowed[panel] = 0;
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) *g.any_overflowed = 0;
}

/* Grid: one block for each pack tile. */
extern "C" __global__ void __launch_bounds__(128, PACK_BLOCKS_PER_SM) pack_split(const __grid_constant__ product g) {
    packing::pack_one<false>(g, blockIdx.x);
}

/* Grid: as many blocks as are resident; each takes every gridDim-th pack tile. */
extern "C" __global__ void __launch_bounds__(128, PACK_BLOCKS_PER_SM) pack_again(const __grid_constant__ product g) {
    wait_for_previous_kernel(), allow_next_kernel();
    if (!*g.any_overflowed) return;
    const int groups = ceil_div(g.a.rows, PACK_ROWS) + ceil_div(g.b.rows, PACK_ROWS);
    const int tiles = g.batch * groups * ceil_div(g.a.k, SPLIT_K);
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) packing::pack_one<true>(g, index);
}
"""

# ---- The Hopper kernel: three products by wgmma (CUDA) --------------------------------------------------------------

# Its instructions exist on sm_90a alone. The compiler's host side, where __CUDA_ARCH__ is not defined, sees all of it.
HOPPER = r"""
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Barriers in shared memory; threads wait for the end of a phase. */
__device__ inline void barrier_init(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(barrier)) : "memory");
}
/* Arrives, and makes the phase last until `bytes` have been copied as well. */
__device__ inline void barrier_arrive_and_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ inline void barrier_wait(uint64_t *barrier, uint32_t phase) {
    asm volatile("{.reg .pred done; wait: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra wait;}"
                 :: "r"(shared_address(barrier)), "r"(phase) : "memory");
}

/* Copies `bytes` (a multiple of 16); completes on `barrier`. */
__device__ inline void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

/* The number of this thread's warp in its block. Unlike threadIdx.x / 32 the compiler knows it to be uniform: what
 * follows from it, descriptors and loop counters, stays in uniform registers, where matrix instructions want it. */
__device__ inline int warp_number() { return __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); }

/* wgmma, the matrix product of a warpgroup, takes tiles in shared memory by descriptors. This is the low word of one.
 * The tile starts at a multiple of 1024 bytes; what lies n bytes further has the address + n/16. */
__device__ inline uint32_t tile_address(const void *tile) {
    return 1u << 16 /* a stride that is not used */ | (shared_address(tile) & 0x3ffff) >> 4;
}

/* The whole descriptor: rows swizzled over 128 bytes, in groups of 8 that are 1024 bytes apart. */
__device__ inline uint64_t tile_descriptor(uint32_t address) { return (1ull << 30 | 1024 >> 4) << 32 | address; }

/* Orders earlier accesses of the warpgroup to registers and shared memory before the products that follow. */
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/* Closes a group of products; wgmma_wait<N> returns when at most the N youngest groups are unfinished. */
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}

/* Keeps the compiler from moving uses of the accumulators across this point. */
__device__ inline void hold(float (&d)[64]) {
    _Pragma("unroll") for (int i = 0; i < 64; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}

/* Operands of an asm statement: d[i], ... */
#define ACCUMULATORS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACCUMULATORS_16(d, i) \
    ACCUMULATORS_4(d, i), ACCUMULATORS_4(d, i + 4), ACCUMULATORS_4(d, i + 8), ACCUMULATORS_4(d, i + 12)

/* d (64 x 128) = a (64 x 16) * b (128 x 16)^T + (accumulate ? d : 0). */
__device__ inline void wgmma_64x128x16(float (&d)[64], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
                 "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,"
                 "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, 0, 0;}"
                 : ACCUMULATORS_16(d, 0), ACCUMULATORS_16(d, 16), ACCUMULATORS_16(d, 32), ACCUMULATORS_16(d, 48)
                 : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"((int)accumulate));
}

constexpr int TILE = 128, GROUP = 8; /* tile rows in a band */

/* Epilogue: a warp's part of shared memory, where 16 x 32 sums wait to be written row by row. A row is 40 floats, so
 * that the accumulators' pattern (8 rows x 4 pairs) falls on all banks. */
constexpr int OUT_ROWS = 16, OUT_COLS = 32, OUT_BLOCKS = TILE / OUT_COLS;
typedef float out_buffer[OUT_ROWS][40];

__device__ int exponent_of(const operand &o, int batch, int row) {
    return row < o.rows ? o.exponents[(int64_t)batch * o.rows + row] : 0;
}

/* What a warp needs to store its 16 rows of a tile. */
struct output {
    int row0, exponent_a, exponent_b[OUT_BLOCKS]; /* exponents of row `lane`; of column `lane` of each 32 columns */
    bool stores;
    __device__ output(const product &g, const tile &t, int wg_row0) {
        const int lane = threadIdx.x % 32;
        row0 = wg_row0 + threadIdx.x / 32 % 4 * OUT_ROWS;
        exponent_a = exponent_of(g.a, t.batch, row0 + lane % OUT_ROWS);
#pragma unroll
        for (int i = 0; i < OUT_BLOCKS; i++) exponent_b[i] = exponent_of(g.b, t.batch, t.n0 + i * OUT_COLS + lane);
        stores = mark_of(g.a, t.batch, t.m0) * mark_of(g.b, t.batch, t.n0) <= g.mark_limit;
    }
    /* Scales sums back and writes them. sums[16*block + 4*j + 2*h + i] is row lane/4 + 8*h, column 8*j + lane%4*2 + i
     * of a block of 32 columns, as wgmma lays accumulators out. */
    __device__ void store(const product &g, const tile &t, const float (&sums)[64], out_buffer &out) const {
        const int lane = threadIdx.x % 32, m = g.a.rows, n = g.b.rows;
        const float down_a[2] = {power_of_two(-__shfl_sync(0xffffffffu, exponent_a, lane / 4)),
                                 power_of_two(-__shfl_sync(0xffffffffu, exponent_a, lane / 4 + 8))};
        float *c = g.c + ((int64_t)t.batch * m + row0) * n + t.n0;
        _Pragma("unroll") for (int block = 0; block < OUT_BLOCKS; block++, c += OUT_COLS) {
            const int rows = m - row0, cols = n - t.n0 - block * OUT_COLS;
            const float down_b = power_of_two(-exponent_b[block]);
            __syncwarp();
            _Pragma("unroll") for (int i = 0; i < 16; i += 2)
                *(float2 *)&out[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2] = make_float2(
                    sums[block * 16 + i] * down_a[i / 2 % 2], sums[block * 16 + i + 1] * down_a[i / 2 % 2]);
            __syncwarp();
            if (!__any_sync(0xffffffffu, stores && rows > 0 && cols > 0)) continue; /* a vote: known to be uniform */
            if (n % 4 == 0 && cols >= OUT_COLS) { /* four rows of 32 at once, 16 bytes a thread */
                const int row = lane / 8, col = lane % 8 * 4;
                float down[4];
                _Pragma("unroll") for (int i = 0; i < 4; i++) down[i] = __shfl_sync(0xffffffffu, down_b, col + i);
                _Pragma("unroll") for (int r = row; r < OUT_ROWS; r += 4) {
                    const float4 x = *(const float4 *)&out[r][col];
                    const float4 y = {x.x * down[0], x.y * down[1], x.z * down[2], x.w * down[3]};
                    if (r < rows) *(float4 *)&c[(int64_t)r * n + col] = y;
                }
            } else {
                _Pragma("unroll") for (int r = 0; r < OUT_ROWS; r++)
                    if (r < rows && lane < cols) c[(int64_t)r * n + lane] = out[r][lane] * down_b;
            }
        }
    }
};

constexpr int WARPGROUP = 128, WG_ROWS = 64; /* its threads; rows of C that it computes: the instruction's m */
constexpr int STEPS = SPLIT_K / 16;          /* instructions along a block of k */
static_assert(SPLIT_ROW_BYTES == 128, "the descriptors describe rows of 128 bytes, swizzled over 128 bytes");

/* A thread block's shared memory. full[s] completes when stage s has landed, empty[s] when all warps have read it. */
template <int ROWS, int STAGES, int WARPS> struct shared_layout {
    struct {
        uint8_t a[2][ROWS * SPLIT_ROW_BYTES], b[2][TILE * SPLIT_ROW_BYTES]; /* a block of k: hi and lo */
    } stages[STAGES];
    out_buffer out[WARPS];
    uint64_t full[STAGES], empty[STAGES];
    /* `copiers` threads issue the copies of a stage; `readers` warps release it. */
    __device__ void make_barriers(int copiers, int readers) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) barrier_init(&full[i], copiers), barrier_init(&empty[i], readers);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); /* shows them to the copy engine */
        }
        __syncthreads();
    }
};

/* Walks the ring of stages: which one is next, and in which phase its barriers are. */
template <int STAGES> struct ring {
    int index = 0;
    uint32_t phase = 0;
    __device__ void advance() {
        if (++index == STAGES) index = 0, phase ^= 1;
    }
};

/* ---- The products of fp32, by one warpgroup ---------------------------------------------------------------------- */

/* A part is the terms of a block of k that are summed by tensor cores before promotion: instructions in one, and parts
 * in a block. */
constexpr int SUM_STEPS = SPLIT_SUM_K / 16, PARTS = STEPS / SUM_STEPS;

/* A warpgroup's accumulators of a 64 x 128 tile. */
struct accumulators {
    float hi_hi[64]; /* of the current part */
    float corr[64];
    float main[64];

    __device__ void begin() {
        _Pragma("unroll") for (int i = 0; i < 64; i++) main[i] = 0;
    }
};

/* The products of what a warpgroup reads of a stage: its rows of A, all of B. Addresses are those of descriptors, in
 * units of 16 bytes (tile_address): the 16 terms of an instruction are two of these further on. */
struct stage_products {
    uint32_t a[2], b[2]; /* of hi and lo */

    template <typename STAGE> __device__ stage_products(const STAGE *stages, int index, int row) {
        const uint32_t at = tile_address(stages) + index * (uint32_t)(sizeof(STAGE) / 16);
        a[0] = at + row * SPLIT_ROW_BYTES / 16;
        a[1] = a[0] + sizeof stages->a[0] / 16;
        b[0] = at + sizeof stages->a / 16;
        b[1] = b[0] + sizeof stages->b[0] / 16;
    }

    __device__ void issue_hi_hi(float (&hi_hi)[64], int part) const {
        _Pragma("unroll") for (int i = 0; i < SUM_STEPS; i++) {
            const int at = 2 * (part * SUM_STEPS + i);
            wgmma_64x128x16(hi_hi, a[0] + at, b[0] + at, i > 0);
        }
        wgmma_commit();
    }

    __device__ void issue_corrections(float (&corr)[64], int part, bool accumulate) const {
        const int at = 2 * part * SUM_STEPS;
        _Pragma("unroll") for (int i = 0; i < SUM_STEPS; i++)
            wgmma_64x128x16(corr, a[0] + at + 2 * i, b[1] + at + 2 * i, accumulate || i > 0);
#pragma unroll
        for (int i = 0; i < SUM_STEPS; i++) wgmma_64x128x16(corr, a[1] + at + 2 * i, b[0] + at + 2 * i, true);
        wgmma_commit();
    }

    /* All of the stage but the first part's hi*hi. Returns with the last part's corrections under way. */
    __device__ void issue_rest(accumulators &sums, bool accumulate) const {
        _Pragma("unroll") for (int part = 0; part < PARTS; part++) {
            issue_corrections(sums.corr, part, accumulate || part > 0);
            wgmma_wait<1>();
            hold(sums.hi_hi);
            _Pragma("unroll") for (int i = 0; i < 64; i++) sums.main[i] += sums.hi_hi[i];
            if (part + 1 == PARTS) break;
            wgmma_fence();
            issue_hi_hi(sums.hi_hi, part + 1);
        }
    }
};

/* The loop over k: multiplies `blocks` blocks, in the stages from `at` on, and adds to main and corr; `first`: corr
 * begins here. While a part's corrections run, its hi*hi is added to main and the next part's hi*hi is queued behind
 * them, so that the tensor cores are never idle. release(stage) is called when this warp has read it, all_issued() when
 * the last products are under way. FENCE: with a wgmma_fence after release(), needed where release() does more than
 * arrive at a barrier. */
template <bool FENCE, typename STAGE, int STAGES, typename RELEASE, typename ISSUED>
__device__ void multiply_blocks(accumulators &sums, bool first, const STAGE *stages, uint64_t *full, ring<STAGES> &at,
                                int row, int blocks, RELEASE release, ISSUED all_issued) {
    barrier_wait(&full[at.index], at.phase);
    wgmma_fence();
    stage_products(stages, at.index, row).issue_hi_hi(sums.hi_hi, 0);
    _Pragma("unroll 1") for (int left = blocks - 1;; left--) {
        if (FENCE) wgmma_fence();
        stage_products(stages, at.index, row).issue_rest(sums, !first || left + 1 < blocks);
        const int done = at.index;
        at.advance();
        if (left == 0) {
            all_issued();
            wgmma_wait<0>();
            release(done);
            break;
        }
        barrier_wait(&full[at.index], at.phase);
        wgmma_fence();
        stage_products(stages, at.index, row).issue_hi_hi(sums.hi_hi, 0);
        wgmma_wait<1>();
        release(done);
    }
}

/* main += corr 2^-11. */
__device__ inline void add_corrections(accumulators &sums) {
    hold(sums.corr);
    _Pragma("unroll") for (int i = 0; i < 64; i++) sums.main[i] = fmaf(sums.corr[i], LO_SCALE, sums.main[i]);
}

/* The kernel. Of 384 threads, one thread of warpgroup 0 copies; warpgroups 1 and 2 multiply 64 rows of the tile each,
 * with 232 registers, of which 3 x 64 are accumulators. One thread block per SM. */
constexpr int STAGES = 3;
typedef shared_layout<TILE, STAGES, 8> SHARED;
static_assert(sizeof(SHARED) == MULTIPLY_SHARED && 3 * WARPGROUP == MULTIPLY_THREADS, "what the host asks for");

__device__ void produce(const product &g, SHARED &s) {
    ring<STAGES> at;
    for (int index = blockIdx.x; index < tile_count<TILE>(g); index += gridDim.x) {
        const tile t = tile_at<TILE, GROUP>(g, index);
        panel_rows a = panel_rows_at<TILE>(g.a, t.batch, t.m0), b = panel_rows_at<TILE>(g.b, t.batch, t.n0);
        wait_for_previous_kernel(); /* only now: where to copy from was computed while it ended */
        allow_next_kernel();
        _Pragma("unroll 1") for (int kb = ceil_div(g.a.k, SPLIT_K); kb > 0; kb--, at.advance()) {
            uint64_t *full = &s.full[at.index];
            barrier_wait(&s.empty[at.index], at.phase ^ 1);
            barrier_arrive_and_expect(full, 2 * (a.bytes + b.bytes));
            _Pragma("unroll") for (int c = 0; c < 2; c++) {
                bulk_copy(s.stages[at.index].a[c], a.from, a.bytes, full);
                bulk_copy(s.stages[at.index].b[c], b.from, b.bytes, full);
                a.from += a.component_stride, b.from += b.component_stride;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1) multiply_sm90(const __grid_constant__ product g) {
    SHARED &s = *(SHARED *)shared_memory;
    s.make_barriers(1, 8);
    const int wg = warp_number() / (WARPGROUP / 32);
    if (wg == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); /* the other registers go to warpgroups 1 and 2 */
        if (threadIdx.x == 0) produce(g, s);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_for_previous_kernel(), allow_next_kernel();
    const int row = (wg - 1) * WG_ROWS, k_blocks = ceil_div(g.a.k, SPLIT_K);
    const bool short_end = (g.a.k - 1) % SPLIT_K < SPLIT_SUM_K; /* k ends in the first part of its last block */
    const auto release = [&](int stage) {
        if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[stage]);
    };
    ring<STAGES> at;
    for (int index = blockIdx.x; index < tile_count<TILE>(g); index += gridDim.x) {
        const tile t = tile_at<TILE, GROUP>(g, index);
        const output out(g, t, t.m0 + row); /* loaded now, so that nothing waits for it after the products */
        accumulators sums;
        sums.begin();
        multiply_blocks<false>(sums, true, s.stages, s.full, at, row, k_blocks - short_end, release, [] {});
        if (short_end) { /* of the last block only the first part; the rest is zeros */
            barrier_wait(&s.full[at.index], at.phase);
            wgmma_fence();
            const stage_products products(s.stages, at.index, row);
            products.issue_hi_hi(sums.hi_hi, 0);
            products.issue_corrections(sums.corr, 0, true);
            wgmma_wait<0>();
            hold(sums.hi_hi);
            _Pragma("unroll") for (int i = 0; i < 64; i++) sums.main[i] += sums.hi_hi[i];
            release(at.index), at.advance();
        }
        add_corrections(sums);
        out.store(g, t, sums.main, s.out[threadIdx.x / 32 - 4]);
    }
}

#endif
"""

# ---- The portable kernel: plain float32, for everything else (CUDA) -------------------------------------------------

PORTABLE = r"""
/* portable.cu: C = A*B in IEEE float32 (fma) on any GPU from Turing on, or the tiles of it that the Hopper kernel left.
 *
 * Operands. A "line" is a row of A or a column of B. Lines come to shared memory in slabs of SLAB terms, [SLAB][TILE +
 * 4], two of each operand: one in use, one on its way.
 * Tile map. Each of a block's 2 x 2 warps computes a quarter of the tile, each thread ROWS x COLS results, in groups of
 * four neighbours that one 16-byte load from shared memory brings: row = group*4*LANES_M + lane_m*4 + i.
 * Speed. A scheduler issues one instruction a cycle, and every one that is no fma costs: hence 16 x 8 results for 6
 * loads. An fma reads three registers, and each of two banks (even, odd) delivers one a cycle: neighbouring fma share a
 * factor, which the hardware keeps at hand, and the other two differ in parity (see store). */
namespace portable {

constexpr int THREADS = 128, STEP = 8; /* terms in the main loop's body: more would not stay in the instruction cache */
constexpr int SLAB = PORTABLE_SLAB, PARTS = SLAB / STEP;

/* How the block's threads copy an operand. */
enum reading {
    VECTORS, /* lines are neighbours and 16-byte aligned: a thread takes four */
    LINES,   /* lines are neighbours: 32 threads take as many */
    TERMS    /* terms are neighbours: 8 threads take as many terms of a line, so that a warp fills all 32 banks */
};

/* One operand of a tile, as one thread copies it: a slab takes ROUNDS rounds of ALONG copies each. While a step is
 * multiplied, an equal part of them is issued. */
template <int TILE, reading HOW> struct operand_copy {
    static constexpr int PITCH = TILE + 4, WIDTH = HOW == VECTORS ? 4 : 1;
    static constexpr int ALONG = HOW == TERMS ? SLAB / 8 : HOW == LINES ? TILE / 32 : 1;
    static constexpr int ROUNDS = TILE * SLAB / THREADS / ALONG / WIDTH;
    static constexpr int ROUND_LINES = HOW == TERMS ? THREADS / 8 : 0;
    static constexpr int ROUND_TERMS = HOW == TERMS ? 0 : HOW == LINES ? THREADS / 32 : THREADS * WIDTH / TILE;
    static constexpr bool EDGES = TILE < PANEL_ROWS; /* a tile of 128 never reaches past the matrix: see compute */
    static_assert(ROUNDS % PARTS == 0, "every part is whole rounds");
    const float *next;          /* what this thread copies next */
    int64_t round_step, finish; /* floats from one round to the next, and from the last one's end to the next slab */
    uint32_t offset, to;        /* of its first element in a slab; where the next one goes */
    int lines_left, lines_ahead;
    /* From term `term0` on. `first`: the tile's first line, of `lines` that there are. */
    __device__ __forceinline__ operand_copy(const operand &o, const float *first, int lines, int term0) {
        const int thread = threadIdx.x, across = HOW == LINES ? 32 : TILE / WIDTH;
        const int line = HOW == TERMS ? thread / 8 : thread % across * WIDTH;
        const int term = HOW == TERMS ? thread % 8 : thread / across;
        lines_left = lines - line, offset = (term * PITCH + line) * 4;
        const int there = HOW == VECTORS ? min(line, lines - 4) : line; /* past the edge: the last ones again */
        next = first + there * o.row_stride + (term0 + term) * o.k_stride;
        round_step = ROUND_LINES * o.row_stride + ROUND_TERMS * o.k_stride;
        finish = HOW == TERMS ? SLAB - TILE * o.row_stride : 0;
    }
    __device__ __forceinline__ void begin_slab(uint32_t slab) { to = slab + offset, lines_ahead = lines_left; }
    __device__ __forceinline__ void finish_slab() { next += finish; }
    __device__ __forceinline__ void copy_part(int wanted) {
        _Pragma("unroll") for (int round = 0; round < ROUNDS / PARTS; ++round) {
            _Pragma("unroll") for (int i = 0; i < ALONG; ++i) {
                const int line = HOW == LINES ? i * 32 : 0, term = HOW == TERMS ? i * 8 : 0;
                const bool inside = !EDGES || HOW == VECTORS || line < lines_ahead;
                cp_async_if<WIDTH * 4>(to + (term * PITCH + line) * 4, next + line + term, inside ? wanted : 0);
            }
            next += round_step, lines_ahead -= ROUND_LINES, to += (ROUND_TERMS * PITCH + ROUND_LINES) * 4;
        }
    }

    /* The first `terms` terms, to the last rows of a slab; the rows before them, from part `part` on, become zero. */
    static __device__ __forceinline__ void copy_ragged(const operand &o, const float *first, int lines, float *slab,
                                                       int terms, int part) {
        _Pragma("unroll 8") for (int i = threadIdx.x; i < TILE * (SLAB - part * STEP); i += THREADS) {
            const int line = HOW == TERMS ? i / 8 % TILE : i % TILE;
            const int row = part * STEP + (HOW == TERMS ? i / (8 * TILE) * 8 + i % 8 : i / TILE);
            const int term = row - (SLAB - terms);
            slab[row * PITCH + line] = term >= 0 && line < lines ? first[line * o.row_stride + term * o.k_stride] : 0;
        }
    }
};

template <int TILE, int ROWS, int COLS> struct tile_product {
    static constexpr int WARP = TILE / 2, LANES_M = WARP / ROWS, LANES_N = WARP / COLS, PITCH = TILE + 4;
    static constexpr int SLAB_FLOATS = SLAB * PITCH, STAGE_FLOATS = 2 * SLAB_FLOATS, RESULT_PITCH = WARP + 4;
    static_assert(LANES_M * LANES_N == 32, "the lanes of a warp cover its quarter of the tile");
    static_assert(2 * STAGE_FLOATS * 4 == portable_shared(TILE), "what the host asks for");
    static_assert(4 * LANES_M * RESULT_PITCH <= 2 * STAGE_FLOATS, "results go through the slabs' memory");
    /* Where this thread's results are. Lanes 2i and 2i + 1 have the same rows, lanes i and i ^ 2 the same columns: a
     * warp's 16-byte loads from shared memory are then two wavefronts instead of four. */
    int warp_m, warp_n, lane_m, lane_n;
    float sum[ROWS][COLS];
    __device__ __forceinline__ tile_product() : sum{} {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        warp_m = warp / 2 * WARP, warp_n = warp % 2 * WARP;
        lane_m = lane / 2 % LANES_M, lane_n = lane % 2 + lane / (2 * LANES_M) * 2;
    }
    /* One term's values. */
    static __device__ __forceinline__ void load(float (&a)[ROWS], float (&b)[COLS], const float *from_a,
                                                const float *from_b) {
        _Pragma("unroll") for (int i = 0; i < ROWS; i += 4) *(float4 *)&a[i] = *(const float4 *)(from_a + i * LANES_M);
        _Pragma("unroll") for (int i = 0; i < COLS; i += 4) *(float4 *)&b[i] = *(const float4 *)(from_b + i * LANES_N);
    }

    template <reading A, reading B>
    __device__ __forceinline__ void multiply_as(const product &g, const float *a_first, const float *b_first,
                                                int a_lines, int b_lines, float *shared) {
        const int slabs = ceil_div(g.a.k, SLAB), ragged = g.a.k % SLAB;
        operand_copy<TILE, A> a(g.a, a_first, a_lines, ragged);
        operand_copy<TILE, B> b(g.b, b_first, b_lines, ragged);
        const uint32_t memory = shared_address(shared);
        int part = 0; /* the next step of the slab in use; steps without a term are left out */
        if (ragged) {
            part = (SLAB - ragged) / STEP;
            a.copy_ragged(g.a, a_first, a_lines, shared, ragged, part);
            b.copy_ragged(g.b, b_first, b_lines, shared + SLAB_FLOATS, ragged, part);
        } else {
            a.begin_slab(memory), b.begin_slab(memory + SLAB_FLOATS * 4);
            _Pragma("unroll 1") for (int i = 0; i < PARTS; ++i) a.copy_part(1), b.copy_part(1);
            a.finish_slab(), b.finish_slab();
        }
        int coming = 1, stage = 0, more = coming < slabs;
        cp_async_commit(), cp_async_wait<0>();
        a.begin_slab(memory + STAGE_FLOATS * 4), b.begin_slab(memory + (STAGE_FLOATS + SLAB_FLOATS) * 4);
#pragma unroll 1
        for (int i = 0; i < part; ++i) a.copy_part(more), b.copy_part(more); /* as the steps left out would */
        forget_origin(a.round_step, b.round_step, a.finish, b.finish);       /* in registers: a shorter main loop */
        __syncthreads();
        const int a_offset = warp_m + lane_m * 4, b_offset = SLAB_FLOATS + warp_n + lane_n * 4;
        const float *a_from = shared + a_offset + part * STEP * PITCH;
        const float *b_from = shared + b_offset + part * STEP * PITCH;
        float a_values[2][ROWS], b_values[2][COLS];
        load(a_values[0], b_values[0], a_from, b_from);
        _Pragma("unroll 1") for (int steps = slabs * PARTS - part; steps > 0; --steps) {
            a.copy_part(more), b.copy_part(more);
            ++part;
            _Pragma("unroll") for (int term = 0; term < STEP; ++term) {
                float(&a_now)[ROWS] = a_values[term % 2], (&b_now)[COLS] = b_values[term % 2];
                float(&a_next)[ROWS] = a_values[(term + 1) % 2], (&b_next)[COLS] = b_values[(term + 1) % 2];
                if (term + 1 < STEP) {
                    load(a_next, b_next, a_from + (term + 1) * PITCH, b_from + (term + 1) * PITCH);
                } else {
                    a_from += STEP * PITCH, b_from += STEP * PITCH;
                    if (part == PARTS) { /* the slab's last values are in registers: the other slab, which has come */
                        cp_async_commit(), cp_async_wait<0>();
                        __syncthreads();
                        a.finish_slab(), b.finish_slab();
                        a.begin_slab(memory + stage * STAGE_FLOATS * 4);
                        b.begin_slab(memory + (stage * STAGE_FLOATS + SLAB_FLOATS) * 4);
                        part = 0, stage ^= 1, more = ++coming < slabs;
                        a_from = shared + stage * STAGE_FLOATS + a_offset;
                        b_from = shared + stage * STAGE_FLOATS + b_offset;
                    }
                    load(a_next, b_next, a_from, b_from);
                }
                /* Row by row, back and forth: each fma has a factor in common with the one before. */
                _Pragma("unroll") for (int i = 0; i < ROWS * COLS; ++i) {
                    const int row = i / COLS, col = row % 2 ? COLS - 1 - i % COLS : i % COLS;
                    sum[row][col] = fmaf(a_now[row], b_now[col], sum[row][col]);
                }
            }
        }
        cp_async_commit(), cp_async_wait<0>();
        __syncthreads();
    }

    static __device__ __forceinline__ reading reading_of(const operand &o, const float *first, int lines) {
        const bool aligned = o.k_stride % 4 == 0 && lines % 4 == 0 && (uintptr_t)first % 16 == 0;
        return o.row_stride != 1 ? TERMS : aligned ? VECTORS : LINES;
    }

    /* row0, col0: the first that are read. */
    __device__ __forceinline__ void multiply(const product &g, int batch, int row0, int col0, float *shared) {
        const float *a = g.a.data + batch * g.a.batch_stride + row0 * g.a.row_stride;
        const float *b = g.b.data + batch * g.b.batch_stride + col0 * g.b.row_stride;
        const int a_lines = g.a.rows - row0, b_lines = g.b.rows - col0;
        const reading of_a = reading_of(g.a, a, a_lines), of_b = reading_of(g.b, b, b_lines);
        if (of_a == TERMS && of_b == TERMS) return multiply_as<TERMS, TERMS>(g, a, b, a_lines, b_lines, shared);
        if (of_a == TERMS && of_b == VECTORS) return multiply_as<TERMS, VECTORS>(g, a, b, a_lines, b_lines, shared);
        if (of_a == TERMS) return multiply_as<TERMS, LINES>(g, a, b, a_lines, b_lines, shared);
        if (of_a == VECTORS && of_b == TERMS) return multiply_as<VECTORS, TERMS>(g, a, b, a_lines, b_lines, shared);
        if (of_b == TERMS) return multiply_as<LINES, TERMS>(g, a, b, a_lines, b_lines, shared);
        if (of_a == VECTORS && of_b == VECTORS) return multiply_as<VECTORS, VECTORS>(g, a, b, a_lines, b_lines, shared);
        multiply_as<LINES, LINES>(g, a, b, a_lines, b_lines, shared); /* either may be aligned: that is not used */
    }

    /* Sums go through shared memory, so that a warp writes whole rows. There, columns 2i and 2i + 1 change places: a
     * 16-byte store takes four consecutive registers, so that sum[row][col] is in a register of the other parity than
     * B's value for col, which is what the multiplications want. */
    __device__ __forceinline__ void store(const product &g, const tile &own, int row0, int col0, float *shared) const {
        const int lane = threadIdx.x % 32;
        float *staging = shared + threadIdx.x / 32 * (LANES_M * RESULT_PITCH);
        float *c = g.c + (int64_t)own.batch * g.a.rows * g.b.rows;
        _Pragma("unroll") for (int row = 0; row < ROWS; ++row) {
            __syncwarp();
            _Pragma("unroll") for (int group = 0; group < COLS / 4; ++group)
                *(float4 *)(staging + lane_m * RESULT_PITCH + group * 4 * LANES_N + lane_n * 4) = make_float4(
                    sum[row][group * 4 + 1], sum[row][group * 4], sum[row][group * 4 + 3], sum[row][group * 4 + 2]);
            __syncwarp();
            _Pragma("unroll") for (int i = 0; i < LANES_M * WARP / 32; ++i) {
                const int line = i * 32 / WARP, in_warp = i * 32 % WARP + lane;
                const int out_row = row0 + warp_m + row / 4 * 4 * LANES_M + line * 4 + row % 4;
                const int out_col = col0 + warp_n + in_warp;
                if (out_row >= own.m0 && out_row < g.a.rows && out_col >= own.n0 && out_col < g.b.rows)
                    c[(int64_t)out_row * g.b.rows + out_col] = staging[line * RESULT_PITCH + (in_warp ^ 1)];
            }
        }
        __syncthreads(); /* the next tile's slabs take the place of these results */
    }
};

/* The last tile begins early enough to end where the matrix does, so that it reads no less than the others; it stores
 * only what is its own. */
template <int TILE, int ROWS, int COLS> __device__ __forceinline__ void compute(const product &g) {
    float *const shared = (float *)shared_memory;
    wait_for_previous_kernel();
    for (int index = blockIdx.x; index < tile_count<TILE>(g); index += gridDim.x) {
        const tile t = tile_at<TILE, 16>(g, index);
        if (g.only_marked && mark_of(g.a, t.batch, t.m0) * mark_of(g.b, t.batch, t.n0) <= g.mark_limit) continue;
        const int row0 = min(t.m0, max(g.a.rows - TILE, 0)), col0 = min(t.n0, max(g.b.rows - TILE, 0));
        tile_product<TILE, ROWS, COLS> sums;
        sums.multiply(g, t.batch, row0, col0, shared);
        sums.store(g, t, row0, col0, shared);
    }
}

} // namespace portable

/* Grid: one block for each tile, or fewer: they take every gridDim-th tile. */
extern "C" __global__ void __launch_bounds__(128, 2) portable_128x128(const __grid_constant__ product g) {
    portable::compute<128, 16, 8>(g);
}

extern "C" __global__ void __launch_bounds__(128, 4) portable_64x64(const __grid_constant__ product g) {
    portable::compute<64, 4, 8>(g);
}
"""

# ---- Host function (C++) --------------------------------------------------------------------------------------------

HOST = r"""
/* Checks the tensors, chooses a way to compute the product, takes workspace from torch and queues the kernels on the
 * current stream. It never waits for the GPU. */
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

extern "C" {
void pack_sample(product), pack_split(product), pack_again(product), multiply_sm90(product);
void portable_128x128(product), portable_64x64(product);
}

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Queues a kernel. early: it waits by itself for the kernel before it, so its start may overlap that one's end
 * (programmatic launch). Never for a call's first kernel: the one before that is not ours, and may itself have started
 * early, before the work in front of it was done. */
void launch(void (*kernel)(product), product *g, int64_t grid, int block, int shared, bool early) {
    const void *function = (const void *)kernel;
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    void *args[] = {g};
    C10_CUDA_CHECK(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
#if TESSERA_HOPPER
    cudaLaunchAttribute overlap = {cudaLaunchAttributeProgrammaticStreamSerialization};
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {dim3(grid), dim3(block), (size_t)shared, stream, &overlap, early};
    C10_CUDA_CHECK(cudaLaunchKernelExC(&config, function, args));
#else
    C10_CUDA_CHECK(cudaLaunchKernel(function, dim3(grid), dim3(block), args, shared, stream));
#endif
}

/* All of C, or what the Hopper kernel left of it. Tiles of 128 x 128 are faster; a C with fewer of them than there are
 * SMs is cut into smaller ones. k is never cut: a small C with long k does not fill the GPU. */
void multiply_portable(product *g, int64_t sms) {
    const int64_t m = g->a.rows, n = g->b.rows, tiles = g->batch * ceil_div(m, 128) * ceil_div(n, 128);
    const bool large = m >= 128 && n >= 128 && (g->only_marked || tiles >= sms);
    const int tile = large ? 128 : 64;
    int64_t blocks = g->batch * ceil_div(m, tile) * ceil_div(n, tile);
    if (g->only_marked) blocks = std::min(blocks, 2 * sms); /* usually there is nothing to do */
    launch(large ? portable_128x128 : portable_64x64, g, blocks, 128, portable_shared(tile), g->only_marked);
}

#if TESSERA_HOPPER

/* Hands out the workspace, from `next` on, and returns its end; from nullptr on, that is its size. */
char *place_workspace(product *g, char *next) {
    const auto take = [&next](auto *&part, int64_t count) {
        part = (std::remove_reference_t<decltype(part)>)next;
        next += ceil_div(count * (int64_t)sizeof *part, 256) * 256;
    };
    for (operand *o : {&g->a, &g->b}) {
        const int64_t rows = g->batch * o->rows, panels = g->batch * ceil_div(o->rows, PANEL_ROWS);
        o->panels_batch_stride = ceil_div(o->rows, 8) * 8 * ceil_div(o->k, SPLIT_K) * 2 * SPLIT_ROW_BYTES;
        take(o->panels, g->batch * o->panels_batch_stride);
        take(o->exponents, rows), take(o->overflows, rows);
        take(o->marks, panels), take(o->overflowed, panels);
    }
    take(g->any_overflowed, 1);
    return next;
}

void multiply_split(product *g, int64_t sms, const at::TensorOptions &options) {
    const at::Tensor workspace = at::empty({(int64_t)place_workspace(g, nullptr)}, options.dtype(at::kByte));
    place_workspace(g, (char *)workspace.data_ptr()); /* torch keeps this memory for the stream's later work */
    const int64_t m = g->a.rows, n = g->b.rows, k = g->a.k, tiles = g->batch * ceil_div(m, 128) * ceil_div(n, 128);
    const int64_t samples = g->batch * (ceil_div(m, SAMPLE_ROWS) + ceil_div(n, SAMPLE_ROWS));
    const int64_t pack_tiles = g->batch * (ceil_div(m, PACK_ROWS) + ceil_div(n, PACK_ROWS)) * ceil_div(k, SPLIT_K);
    const int64_t clusters = ceil_div(tiles, ceil_div(tiles, sms)); /* no more than needed: idle ones draw power */
    /* What the bound (k + 2) 2^-24 leaves, beside truncation and sums, for elements below fp16's normal numbers. */
    g->mark_limit = (k - k / 32.0f - 76) / (16.1f + k / 800.0f);
    launch(pack_sample, g, samples, 128, 0, false);
    launch(pack_split, g, pack_tiles, 128, 0, true);
    launch(pack_again, g, std::min(pack_tiles, PACK_BLOCKS_PER_SM * sms), 128, 0, true);
    launch(multiply_sm90, g, clusters * MULTIPLY_CLUSTER, MULTIPLY_THREADS, MULTIPLY_SHARED, true);
    g->only_marked = 1;
    multiply_portable(g, sms);
}

#endif

/* Messages are put together as strings: where torch's C++ library and the compiler's are mixed, streams may crash. */
void check_tensor(const at::Tensor &t, const std::string &name, const at::Device &gpu) {
    TORCH_CHECK(t.scalar_type() == at::kFloat, name + " must be float32, but is " + c10::toString(t.scalar_type()));
    TORCH_CHECK(t.layout() == at::kStrided, name + " must be an ordinary (strided) tensor");
    TORCH_CHECK(t.is_cuda(), name + " must be on a GPU, but is on " + t.device().str());
    TORCH_CHECK(t.device() == gpu, "A and B must be on one GPU, but are on " + gpu.str() + " and " + t.device().str());
    for (const int64_t size : t.sizes()) /* kernels count rows and columns with 32 bits */
        TORCH_CHECK(size <= 1 << 30, name + " has " + std::to_string(size) + " rows or columns; the limit is 2^30");
}

/* The matrices of a tensor, k along k_dim. Where neither dimension is contiguous, `t` becomes a copy. */
operand operand_of(at::Tensor &t, int64_t row_dim, int64_t k_dim) {
    t = t.resolve_neg();
    if (t.stride(-1) != 1 && t.stride(-2) != 1) t = t.contiguous();
    operand o = {};
    o.data = t.data_ptr<float>();
    o.row_stride = t.stride(row_dim), o.k_stride = t.stride(k_dim), o.batch_stride = t.dim() == 3 ? t.stride(0) : 0;
    o.rows = (int32_t)t.size(row_dim), o.k = (int32_t)t.size(k_dim);
    return o;
}

} // namespace

/* left @ right, whose shapes match; with plain float32 arithmetic if `ieee`. */
at::Tensor multiply(at::Tensor left, at::Tensor right, bool ieee) {
    check_tensor(left, "A", left.device()), check_tensor(right, "B", left.device());
    const c10::cuda::CUDAGuard guard(left.device());
    std::vector<int64_t> shape = left.sizes().vec();
    shape.back() = right.size(-1);
    if (!left.numel() || !right.numel()) return at::zeros(shape, left.options());
    const at::Tensor result = at::empty(shape, left.options());
    product g = {};
    g.a = operand_of(left, -2, -1), g.b = operand_of(right, -1, -2);
    g.c = result.data_ptr<float>(), g.batch = left.dim() == 3 ? (int32_t)left.size(0) : 1;
    int sms = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, left.get_device()));
#if TESSERA_HOPPER
    /* Splitting takes four more launches and writes and reads panels: large products make up for it. Below k = 128 the
     * error of splitting would show beside float32's own, (k + 2) 2^-24. */
    const double terms = (double)g.batch * g.a.rows * g.b.rows * g.a.k;
    if (!ieee && std::min({g.a.rows, g.b.rows, g.a.k}) >= 128 && terms >= 1 << 27)
        multiply_split(&g, sms, left.options());
    else
#endif
        multiply_portable(&g, sms);
    return result;
}
"""


@functools.lru_cache(maxsize=None)
def extension():
    """The text above, compiled for the GPU that is there."""
    if not (torch.cuda.is_available() and torch.version.cuda):
        raise RuntimeError("this module needs an NVIDIA GPU and a torch with CUDA")
    capability = torch.cuda.get_device_capability()
    if capability < (7, 5):
        raise RuntimeError("this module needs a GPU of compute capability 7.5 or newer, not {}.{}".format(*capability))
    hopper = capability == (9, 0) and int(torch.version.cuda.split(".")[0]) >= 12
    old = int(torch.__version__.split(".")[0]) < 2  # it would compile in an older C++
    flags = ["-DTESSERA_HOPPER={:d}".format(hopper)] + ["-std=c++17"] * old
    # Some releases of torch add architectures from this variable: name one whose code a Hopper GPU will not choose.
    architecture = ["-gencode=arch=compute_90a,code=sm_90a"] if hopper else []
    # Newer releases can leave out torch's own headers, which take longer to compile than all of this.
    lean = {"no_implicit_headers": True} if "no_implicit_headers" in inspect.signature(load_inline).parameters else {}
    with mock.patch.dict(os.environ, {"TORCH_CUDA_ARCH_LIST": "8.0"} if hopper else {}):
        return load_inline(
            name="tessera_8_irregular_for_{}{}".format(*capability), functions=["multiply"],
            cpp_sources=[ARGUMENTS, HOST], extra_cflags=["-O2"] + flags,
            cuda_sources=[ARGUMENTS, COMMON] + ([PACKING, HOPPER] if hopper else []) + [PORTABLE],
            extra_cuda_cflags=["-O3"] + flags + architecture, **lean)


# ---- Autograd and the model -----------------------------------------------------------------------------------------

class Product(torch.autograd.Function):
    """A product whose gradients are products again."""

    @staticmethod
    def forward(context, left, right, ieee):
        context.save_for_backward(left, right)
        context.ieee = ieee
        return extension().multiply(left, right, ieee)

    @staticmethod
    def backward(context, gradient):
        left, right = context.saved_tensors
        of_left = of_right = None
        if context.needs_input_grad[0]:
            of_left = product(gradient, right.mT, context.ieee, like=left)
        if context.needs_input_grad[1]:
            of_right = product(left.mT, gradient, context.ieee, like=right)
        return of_left, of_right, None


def product(left, right, ieee, like=None):
    """left @ right; contiguous along rows, or along columns if `like` is, so that a gradient need not be copied."""
    if like is not None and like.stride(-2) == 1:
        return product(right.mT, left.mT, ieee).mT
    if torch.is_grad_enabled() and (left.requires_grad or right.requires_grad):
        return Product.apply(left, right, ieee)
    return extension().multiply(left, right, ieee)


class ModelNew(torch.nn.Module):
    """C = A @ B. precision: "fp32" or "ieee", see above."""

    def __init__(self, precision="fp32"):
        super().__init__()
        if precision not in ("fp32", "ieee"):
            raise ValueError(f'precision must be "fp32" or "ieee", not {precision!r}')
        self.ieee = precision == "ieee"
        extension()

    def forward(self, A, B):
        if not (isinstance(A, torch.Tensor) and isinstance(B, torch.Tensor)):
            raise TypeError(f"A and B must be tensors, not {type(A).__name__} and {type(B).__name__}")
        if A.dim() != 2 or B.dim() != 2 or A.shape[-1] != B.shape[-2]:
            raise RuntimeError("A must have as many columns as B has rows, "
                               f"but they have shapes {tuple(A.shape)} and {tuple(B.shape)}")
        device = next((x.device for x in (A, B) if x.is_cuda), "cuda")
        A, B = (x.to(device) if x.device.type == "cpu" else x for x in (A, B))
        return product(A, B, self.ieee)


def get_inputs():
    return [torch.rand(8205, 2949), torch.rand(2949, 5921)]


def get_init_inputs():
    return []
