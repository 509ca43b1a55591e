/* kernel_list.h: every CUDA kernel, declared in one place. The two lists make the enums and tables of kernels.h and
 * kernels.c, the images that CMakeLists.txt builds and embeds, and the constants that each .cu asserts it agrees with.
 * Plain C, for nvcc and the C compiler. How fast kernels are is in cost_table.c. */
#ifndef TESSERA_CUDA_KERNEL_LIST_H
#define TESSERA_CUDA_KERNEL_LIST_H

#include "cuda/kernels/args.h"
#include "cuda/kernels/attention_args.h"

/* clang-format off */

/* MODULE(id, name, GPUs): name.cu, in the folder that the first word of its name says.
 *
 *   FROM_75, FROM_80   that compute capability and every newer one: machine code for those that nvcc knows, PTX for
 *                      later ones. FROM_75 also as PTX of 7.5 alone, for TESSERA_CUDA_PTX
 *   PTX_75             the same GPUs as FROM_75 but Hopper, as PTX: the driver compiles it once
 *   ONLY_90, ONLY_90a  Hopper alone; with "a", its own instructions, too
 *
 * CMakeLists.txt reads these lines: one for each module. */
#define CUDA_MODULE_LIST(MODULE)                                 \
    MODULE(IEEE_MMA_SM90,        ieee_mma_sm90,        ONLY_90)  \
    MODULE(IEEE_TILE_128X128,    ieee_tile_128x128,    FROM_80)  \
    MODULE(IEEE_TILE_128X64,     ieee_tile_128x64,     FROM_75)  \
    MODULE(IEEE_TILE_64X64,      ieee_tile_64x64,      FROM_75)  \
    MODULE(IEEE_THIN_K,          ieee_thin_k,          FROM_75)  \
    MODULE(IEEE_THIN_M,          ieee_thin_m,          FROM_75)  \
    MODULE(IEEE_SMALL,           ieee_small,           ONLY_90)  \
    MODULE(IEEE_WARP,            ieee_warp,            ONLY_90)  \
    MODULE(IEEE_VECTOR,          ieee_vector,          ONLY_90)  \
    MODULE(IEEE_REDUCE,          ieee_reduce,          FROM_75)  \
    MODULE(IEEE_SCALE,           ieee_scale,           FROM_75)  \
    MODULE(PACK,                 pack,                 FROM_80)  \
    MODULE(PACK_ROWS,            pack_rows,            FROM_80)  \
    MODULE(SPLIT_FP32_SM90,      split_fp32_sm90,      ONLY_90a) \
    MODULE(SPLIT_FP32_SM90_T128, split_fp32_sm90_t128, ONLY_90a) \
    MODULE(SPLIT_TF32_SM90,      split_tf32_sm90,      ONLY_90a) \
    MODULE(SPLIT_MMA_SM80,       split_mma_sm80,       FROM_80)  \
    MODULE(SPLIT_DIRECT,         split_direct,         ONLY_90a) \
    MODULE(SPLIT_DIRECT_WIDE,    split_direct_wide,    ONLY_90a) \
    MODULE(SPLIT_REDUCE,         split_reduce,         FROM_80)  \
    MODULE(TF32_SM90,            tf32_sm90,            ONLY_90a) \
    MODULE(TF32_COPY,            tf32_copy,            ONLY_90)  \
    MODULE(ATTENTION_PACK,       attention_pack,       ONLY_90)  \
    MODULE(ATTENTION_FORWARD,    attention_forward_sm90, ONLY_90a) \
    MODULE(ATTENTION_BACKWARD,   attention_backward_sm90, ONLY_90a) \
    MODULE(ATTENTION_SMALL,      attention_small,      ONLY_90)  \
    MODULE(ATTENTION_IEEE,       attention_ieee,       PTX_75)

/* ROW(id, name, module, family, ...), best first: of kernels that could do the same on a GPU the plan takes the first,
 * unless it can tell which is faster.
 *
 *   m, n, k        the tile of C, and the terms of k in a stage; of pack kernels, the rows and terms of a pack tile
 *   threads        of a thread block
 *   blocks         thread blocks resident on an SM; with clusters, clusters for each SM
 *   cluster        thread blocks that compute a tile together; 1: each has tiles of its own
 *   components     of a split element: 2 keeps TSR_FP32's contract, 1 TSR_TF32's; 0: nothing is split
 *   shared, stages how a block's dynamic shared memory is laid out (below), and how many stages it has
 *
 *    id                    name                  module                family     m    n    k  thr  b  cl co shared */
#define CUDA_KERNEL_LIST(ROW) \
  ROW(IEEE_MMA_64X128,      ieee_mma_64x128,      IEEE_MMA_SM90,        TILE,     64, 128,  32, 128, 2, 1, 0, SLABS, 3)\
  ROW(IEEE_MMA_64X64,       ieee_mma_64x64,       IEEE_MMA_SM90,        TILE,     64,  64,  32, 128, 3, 1, 0, SLABS, 3)\
  ROW(IEEE_MMA_32X64,       ieee_mma_32x64,       IEEE_MMA_SM90,        TILE,     32,  64,  32, 128, 3, 1, 0, SLABS, 4)\
  ROW(IEEE_MMA_32X32,       ieee_mma_32x32,       IEEE_MMA_SM90,        TILE,     32,  32,  32, 128, 3, 1, 0, SLABS, 4)\
  ROW(IEEE_TILE_128X128,    ieee_tile_128x128,    IEEE_TILE_128X128,    TILE,    128, 128,  32, 128, 2, 1, 0, SLABS, 2)\
  ROW(IEEE_TILE_128X64,     ieee_tile_128x64,     IEEE_TILE_128X64,     TILE,    128,  64,  32, 128, 3, 1, 0, SLABS, 2)\
  ROW(IEEE_TILE_64X64,      ieee_tile_64x64,      IEEE_TILE_64X64,      TILE,     64,  64,  32, 128, 5, 1, 0, SLABS, 2)\
  ROW(IEEE_MMA_SHORT_K,     ieee_mma_short_k,     IEEE_MMA_SM90,        SHORT,    64,  64,  64, 128, 3, 1, 0, SLABS, 2)\
  ROW(IEEE_MMA_SHORT_96,    ieee_mma_short_96,    IEEE_MMA_SM90,        SHORT,    64,  64,  96, 128, 2, 1, 0, SLABS, 2)\
  ROW(IEEE_SMALL_16,        ieee_small_16,        IEEE_SMALL,           SMALL,    16,  16,  32,  64,10, 1, 0, SMALL, 2)\
  ROW(IEEE_SMALL_32,        ieee_small_32,        IEEE_SMALL,           SMALL,    32,  32,  32,  64,10, 1, 0, SMALL, 2)\
  ROW(IEEE_LONG_16,         ieee_long_16,         IEEE_SMALL,           SMALL,    16,  16, 128, 256, 2, 1, 0, SMALL, 3)\
  ROW(IEEE_LONG_32,         ieee_long_32,         IEEE_SMALL,           SMALL,    32,  32,  64, 256, 2, 1, 0, SMALL, 3)\
  ROW(DIRECT_64X32,         direct_64x32,         SPLIT_DIRECT,         SMALL,    64,  32,  32, 512, 1, 1, 2, DIRECT,4)\
  ROW(DIRECT_64X64,         direct_64x64,         SPLIT_DIRECT,         SMALL,    64,  64,  32, 384, 1, 1, 2, DIRECT,3)\
  ROW(DIRECT_128X64,        direct_128x64,        SPLIT_DIRECT_WIDE,    WIDE,    128,  64,  32, 512, 1, 1, 2, STAGED,4)\
  ROW(DIRECT_128X96,        direct_128x96,        SPLIT_DIRECT_WIDE,    WIDE,    128,  96,  32, 512, 1, 1, 2, STAGED,4)\
  ROW(IEEE_WARP_16X16,      ieee_warp_16x16,      IEEE_WARP,            WARP,     16,  16,  24, 128, 5, 1, 0, WARP,  2)\
  ROW(IEEE_WARP_16X32,      ieee_warp_16x32,      IEEE_WARP,            WARP,     16,  32,  24, 128, 4, 1, 0, WARP,  2)\
  ROW(IEEE_WARP_32X32,      ieee_warp_32x32,      IEEE_WARP,            WARP,     32,  32,  24, 128, 3, 1, 0, WARP,  2)\
  ROW(IEEE_WARP_32X64,      ieee_warp_32x64,      IEEE_WARP,            WARP,     32,  64,  24, 128, 2, 1, 0, WARP,  2)\
  ROW(IEEE_VECTOR_K,        ieee_vector_k,        IEEE_VECTOR,          VECTOR,    8,   1, 256, 128, 6, 1, 0, NONE,  0)\
  ROW(IEEE_VECTOR_M,        ieee_vector_m,        IEEE_VECTOR,          VECTOR,  128,   1,  32, 256, 3, 1, 0, NONE,  0)\
  ROW(IEEE_COLUMNS_K,       ieee_columns_k,       IEEE_VECTOR,          VECTOR,   32,   8,1024, 256, 2, 1, 0, B,     2)\
  ROW(IEEE_COLUMNS_M,       ieee_columns_m,       IEEE_VECTOR,          VECTOR,  128,   8,1024, 256, 2, 1, 0, B,     2)\
  ROW(IEEE_THIN_K,          ieee_thin_k,          IEEE_THIN_K,          THIN,     16,   8, 128, 128, 6, 1, 0, NONE,  0)\
  ROW(IEEE_THIN_M,          ieee_thin_m,          IEEE_THIN_M,          THIN,    128,   8, 128, 128, 5, 1, 0, NONE,  0)\
  ROW(IEEE_REDUCE,          ieee_reduce,          IEEE_REDUCE,          SUPPORT,   0,   0,   0, 128, 0, 1, 0, NONE,  0)\
  ROW(IEEE_SCALE,           ieee_scale,           IEEE_SCALE,           SUPPORT,   0,   0,   0, 128, 0, 1, 0, NONE,  0)\
  ROW(PACK_SAMPLE,          pack_sample,          PACK,                 SUPPORT,   8,   0,   0, 128, 0, 1, 0, NONE,  0)\
  ROW(PACK_LOOK,            pack_look,            PACK,                 SUPPORT,   0,   0,   0, 128, 0, 1, 0, NONE,  0)\
  ROW(PACK_SCAN,            pack_scan,            PACK,                 SUPPORT,   0,   0,   0, 128, 0, 1, 0, NONE,  0)\
  ROW(PACK_SPLIT,           pack_split,           PACK,                 SUPPORT,  64,   0,  64, 128, 4, 1, 0, PACK,  3)\
  ROW(PACK_ROWS_128,        pack_rows_128,        PACK_ROWS,            SUPPORT, 128,   0, 128, 128, 0, 1, 2, NONE,  0)\
  ROW(PACK_ROWS_512,        pack_rows_512,        PACK_ROWS,            SUPPORT,  32,   0, 512, 128, 0, 1, 2, NONE,  0)\
  ROW(PACK_ROWS_1024,       pack_rows_1024,       PACK_ROWS,            SUPPORT,  16,   0,1024, 128, 0, 1, 2, NONE,  0)\
  ROW(SPLIT_FP32_SM90,      split_fp32_sm90,      SPLIT_FP32_SM90,      SPLIT,   128, 128,  64, 384, 1, 1, 2, WGMMA, 3)\
  ROW(SPLIT_FP32_SM90_TURNS,split_fp32_sm90_turns,SPLIT_FP32_SM90,      SUPPORT, 128, 128,  64, 384, 1, 1, 2, WGMMA, 3)\
  ROW(SPLIT_FP32_SM90_PARTS,split_fp32_sm90_parts,SPLIT_FP32_SM90,      SUPPORT, 128, 128,  64, 384, 1, 1, 2, WGMMA, 3)\
  ROW(SPLIT_FP32_SM90_T128, split_fp32_sm90_t128, SPLIT_FP32_SM90_T128, SPLIT,   128, 128,  64, 128, 1, 2, 2, WGMMA, 2)\
  ROW(SPLIT_TF32_SM90,      split_tf32_sm90,      SPLIT_TF32_SM90,      SPLIT,   128, 256,  64, 384, 1, 1, 1, WGMMA, 4)\
  ROW(SPLIT_FP32_MMA_SM80,  split_fp32_mma_sm80,  SPLIT_MMA_SM80,       SPLIT,   128, 128,  64, 256, 1, 1, 2, MMA,   3)\
  ROW(SPLIT_TF32_MMA_SM80,  split_tf32_mma_sm80,  SPLIT_MMA_SM80,       SPLIT,   128, 256,  64, 256, 1, 1, 1, MMA,   3)\
  ROW(SPLIT_REDUCE,         split_reduce,         SPLIT_REDUCE,         SUPPORT,   0,   0,   0, 128, 0, 1, 0, NONE,  0)\
  ROW(TF32_128X256,         tf32_128x256,         TF32_SM90,            TF32,    128, 256,  32, 384, 1, 1, 1, WGMMA, 4)\
  ROW(TF32_128X128,         tf32_128x128,         TF32_SM90,            TF32,    128, 128,  32, 384, 1, 1, 1, WGMMA, 6)\
  ROW(TF32_64X64,           tf32_64x64,           TF32_SM90,            TF32,     64,  64,  32, 256, 2, 1, 1, WGMMA, 6)\
  ROW(TF32_COPY,            tf32_copy,            TF32_COPY,            SUPPORT,  64,   0,  64, 256, 4, 1, 0, NONE,  0)\
  ATTENTION_KERNEL_LIST(ROW)

/* Those of attention: m and n are queries and keys that a thread block has at a time, or keys and queries, k the
 * columns of a head, padded. */
#define ATTENTION_KERNEL_LIST(ROW) \
  ROW(ATTENTION_PACK_64, attention_pack_64,                                                                           \
      ATTENTION_PACK, SUPPORT, 128, 0, 64, 256, 0, 1, 0, NONE, 0)                                                     \
  ROW(ATTENTION_PACK_128, attention_pack_128,                                                                         \
      ATTENTION_PACK, SUPPORT, 128, 0, 128, 256, 0, 1, 0, NONE, 0)                                                    \
  ROW(ATTENTION_PACK_192, attention_pack_192,                                                                         \
      ATTENTION_PACK, SUPPORT, 128, 0, 192, 256, 0, 1, 0, NONE, 0)                                                    \
  ROW(ATTENTION_PACK_256, attention_pack_256,                                                                         \
      ATTENTION_PACK, SUPPORT, 128, 0, 256, 256, 0, 1, 0, NONE, 0)                                                    \
  ROW(ATTENTION_FORWARD_SHORT, attention_forward_short,                                                               \
      ATTENTION_FORWARD, SUPPORT, 128, 128, 64, 512, 1, 1, 2, FORWARD, 3)                                             \
  ROW(ATTENTION_FORWARD_SHORT_GENERAL, attention_forward_short_general,                                               \
      ATTENTION_FORWARD, SUPPORT, 128, 128, 64, 512, 1, 1, 2, FORWARD, 3)                                             \
  ROW(ATTENTION_FORWARD_64, attention_forward_64,                                                                     \
      ATTENTION_FORWARD, SUPPORT, 128, 128, 64, 384, 1, 1, 2, FORWARD, 2)                                             \
  ROW(ATTENTION_FORWARD_64_GENERAL, attention_forward_64_general,                                                     \
      ATTENTION_FORWARD, SUPPORT, 128, 128, 64, 384, 1, 1, 2, FORWARD, 2)                                             \
  ROW(ATTENTION_FORWARD_128, attention_forward_128,                                                                   \
      ATTENTION_FORWARD, SUPPORT, 128, 128, 128, 384, 1, 1, 2, FORWARD, 1)                                            \
  ROW(ATTENTION_FORWARD_128_GENERAL, attention_forward_128_general,                                                   \
      ATTENTION_FORWARD, SUPPORT, 128, 128, 128, 384, 1, 1, 2, FORWARD, 1)                                            \
  ROW(ATTENTION_FORWARD_192, attention_forward_192,                                                                   \
      ATTENTION_FORWARD, SUPPORT, 128, 64, 192, 384, 1, 1, 2, FORWARD, 1)                                             \
  ROW(ATTENTION_FORWARD_192_GENERAL, attention_forward_192_general,                                                   \
      ATTENTION_FORWARD, SUPPORT, 128, 64, 192, 384, 1, 1, 2, FORWARD, 1)                                             \
  ROW(ATTENTION_FORWARD_256, attention_forward_256,                                                                   \
      ATTENTION_FORWARD, SUPPORT, 128, 32, 256, 384, 1, 1, 2, FORWARD, 1)                                             \
  ROW(ATTENTION_FORWARD_256_GENERAL, attention_forward_256_general,                                                   \
      ATTENTION_FORWARD, SUPPORT, 128, 32, 256, 384, 1, 1, 2, FORWARD, 1)                                             \
  ROW(ATTENTION_GRAD_KV_64, attention_grad_kv_64,                                                                     \
      ATTENTION_BACKWARD, SUPPORT, 128, 64, 64, 384, 1, 1, 2, BACKWARD, 3)                                            \
  ROW(ATTENTION_GRAD_KV_64_GENERAL, attention_grad_kv_64_general,                                                     \
      ATTENTION_BACKWARD, SUPPORT, 128, 64, 64, 384, 1, 1, 2, BACKWARD, 3)                                            \
  ROW(ATTENTION_GRAD_KV_128, attention_grad_kv_128,                                                                   \
      ATTENTION_BACKWARD, SUPPORT, 128, 64, 128, 384, 1, 1, 2, BACKWARD, 1)                                           \
  ROW(ATTENTION_GRAD_KV_128_GENERAL, attention_grad_kv_128_general,                                                   \
      ATTENTION_BACKWARD, SUPPORT, 128, 64, 128, 384, 1, 1, 2, BACKWARD, 1)                                           \
  ROW(ATTENTION_GRAD_Q_64, attention_grad_q_64,                                                                       \
      ATTENTION_BACKWARD, SUPPORT, 128, 64, 64, 384, 1, 1, 2, BACKWARD, 3)                                            \
  ROW(ATTENTION_GRAD_Q_64_GENERAL, attention_grad_q_64_general,                                                       \
      ATTENTION_BACKWARD, SUPPORT, 128, 64, 64, 384, 1, 1, 2, BACKWARD, 3)                                            \
  ROW(ATTENTION_GRAD_Q_128, attention_grad_q_128,                                                                     \
      ATTENTION_BACKWARD, SUPPORT, 128, 64, 128, 384, 1, 1, 2, BACKWARD, 1)                                           \
  ROW(ATTENTION_GRAD_Q_128_GENERAL, attention_grad_q_128_general,                                                     \
      ATTENTION_BACKWARD, SUPPORT, 128, 64, 128, 384, 1, 1, 2, BACKWARD, 1)                                           \
  ROW(ATTENTION_GRAD_V_192, attention_grad_v_192,                                                                     \
      ATTENTION_BACKWARD, SUPPORT, 64, 32, 192, 256, 1, 1, 2, WIDE, 0)                                                \
  ROW(ATTENTION_GRAD_V_256, attention_grad_v_256,                                                                     \
      ATTENTION_BACKWARD, SUPPORT, 64, 32, 256, 256, 1, 1, 2, WIDE, 0)                                                \
  ROW(ATTENTION_GRAD_K_192, attention_grad_k_192,                                                                     \
      ATTENTION_BACKWARD, SUPPORT, 64, 32, 192, 256, 1, 1, 2, WIDE, 0)                                                \
  ROW(ATTENTION_GRAD_K_256, attention_grad_k_256,                                                                     \
      ATTENTION_BACKWARD, SUPPORT, 64, 32, 256, 256, 1, 1, 2, WIDE, 0)                                                \
  ROW(ATTENTION_GRAD_Q_192, attention_grad_q_192,                                                                     \
      ATTENTION_BACKWARD, SUPPORT, 64, 32, 192, 256, 1, 1, 2, WIDE, 0)                                                \
  ROW(ATTENTION_GRAD_Q_256, attention_grad_q_256,                                                                     \
      ATTENTION_BACKWARD, SUPPORT, 64, 32, 256, 256, 1, 1, 2, WIDE, 0)                                                \
  ROW(ATTENTION_SMALL_FORWARD_128, attention_small_forward_128,                                                       \
      ATTENTION_SMALL, SUPPORT, 32, 64, 128, 128, 0, 1, 0, PIECES, 1)                                                 \
  ROW(ATTENTION_SMALL_FORWARD_256, attention_small_forward_256,                                                       \
      ATTENTION_SMALL, SUPPORT, 32, 64, 256, 128, 0, 1, 0, PIECES, 1)                                                 \
  ROW(ATTENTION_SMALL_BACKWARD_128, attention_small_backward_128,                                                     \
      ATTENTION_SMALL, SUPPORT, 32, 64, 128, 128, 0, 1, 0, PIECES, 2)                                                 \
  ROW(ATTENTION_SMALL_BACKWARD_256, attention_small_backward_256,                                                     \
      ATTENTION_SMALL, SUPPORT, 32, 64, 256, 128, 0, 1, 0, PIECES, 2)                                                 \
  ROW(ATTENTION_IEEE_FORWARD_128, attention_ieee_forward_128,                                                         \
      ATTENTION_IEEE, SUPPORT, 32, 64, 128, 128, 0, 1, 0, NONE, 0)                                                    \
  ROW(ATTENTION_IEEE_FORWARD_256, attention_ieee_forward_256,                                                         \
      ATTENTION_IEEE, SUPPORT, 32, 64, 256, 128, 0, 1, 0, NONE, 0)                                                    \
  ROW(ATTENTION_IEEE_BACKWARD_128, attention_ieee_backward_128,                                                       \
      ATTENTION_IEEE, SUPPORT, 32, 64, 128, 128, 0, 1, 0, NONE, 0)                                                    \
  ROW(ATTENTION_IEEE_BACKWARD_256, attention_ieee_backward_256,                                                       \
      ATTENTION_IEEE, SUPPORT, 32, 64, 256, 128, 0, 1, 0, NONE, 0)

/* Dynamic shared memory in bytes.
 *
 *   NONE    none
 *   SLABS   a stage is k terms of the tile's lines of A and B, in float32; the lines of a term are padded by 4
 *   SMALL   a stage is k terms of the tile's lines of A and B, in either order, padded by 4
 *   DIRECT  for each warpgroup, as many as the last column says: the components of B in a stage, and three stages
 *   STAGED  the components of B in three stages; a stage is as in DIRECT
 *   WARP    of each of four warps: a stage is k terms of the tile's lines of A and B, in either order, padded
 *   B       a stage is k terms of n columns of B, padded by 4; besides, sums from the cluster's other blocks
 *   PACK    a stage is a pack tile: m lines of k floats, each padded by 4, and an exponent for each row
 *   WGMMA   a stage is one k block of the rows of A that a thread block of the cluster has and of all columns of B,
 *           and two barriers; besides, each warp has a buffer for a check block of its sums
 *   MMA     a stage is the terms of A and B that are promoted together
 *   FORWARD   a tile of Q; a stage is a tile of K and one of V (the last of SHORT: room for two of float32); barriers
 *   BACKWARD  tiles of two fixed operands, twice if there is room; a stage is one of each moving operand; barriers
 *   WIDE      two tiles of fixed operands and three of moving ones; barriers
 *   PIECES    two pieces of 64 columns of m and n rows, each padded by 4; tiles of weights, as many as stages */
#define SHARED_NONE(m, n, k, cluster, components, stages) 0
#define SHARED_SLABS(m, n, k, cluster, components, stages) ((stages) * (k) * ((m) + 4 + (n) + 4) * 4)
#define SHARED_SMALL(m, n, k, cluster, components, stages) ((stages) * 8 * ((m) * (k) + 4 * ((m) > (k) ? (m) : (k))))
#define SHARED_DIRECT(m, n, k, cluster, components, groups) \
    ((groups) * 4 * ((components) * (n) * (k) + 3 * ((k) * ((m) + 4) + (n) * ((k) + 4))))
#define SHARED_STAGED(m, n, k, cluster, components, stages) \
    (4 * (3 * (components) * (n) * (k) + (stages) * ((k) * ((m) + 4) + (n) * ((k) + 4))))
#define SHARED_LARGER(x, y) ((x) > (y) ? (x) : (y))
#define SHARED_WARP_LINES(lines, k) SHARED_LARGER((lines) * ((k) + 4), (k) * ((lines) + 8))
#define SHARED_WARP(m, n, k, cluster, components, stages) \
    ((stages) * 16 * (SHARED_WARP_LINES(m, k) + SHARED_WARP_LINES(n, k)))
#define SHARED_B(m, n, k, cluster, components, stages) (((stages) * (n) * ((k) + 4) + 256 * (n)) * 4)
#define SHARED_PACK(m, n, k, cluster, components, stages) ((stages) * (m) * ((k) + 4 + 1) * 4)
#define SHARED_WGMMA(m, n, k, cluster, components, stages)                           \
    ((stages) * (((m) / (cluster) + (n)) * (components) * SPLIT_ROW_BYTES + 2 * 8) + \
     (m) / (cluster) / CHECK_ROWS * (CHECK_ROWS * OUT_STRIDE * 4))
#define SHARED_FORWARD(m, n, k, cluster, components, stages) \
    (((m) + 2 * (stages) * (n)) * (k) * 2 * (components) + 1024)
#define SHARED_BACKWARD(m, n, k, cluster, components, stages) \
    ((((k) == 64 ? 4 : 2) * (m) + 2 * (stages) * (n)) * (k) * 2 * (components) + (stages) * 1024)
#define SHARED_WIDE(m, n, k, cluster, components, stages) ((2 * (m) + 3 * (n)) * (k) * 2 * (components) + 1024)
#define SHARED_PIECES(m, n, k, cluster, components, stages) \
    ((2 * ((m) + (n)) * (64 + 4) + (stages) * (m) * ((n) + 4) + ((stages) - 1) * 3 * (n)) * 4)
#define SHARED_MMA(m, n, k, cluster, components, stages) ((stages) * ((m) + (n)) * (components) * SPLIT_SUM_K * 2)

/* For each kernel, e.g. IEEE_MMA_64X128_M, _N, _THREADS and _SHARED. */
#define KERNEL_CONSTANTS(id, name, module, family, m, n, k, threads, blocks, cluster, components, shared, stages) \
    id##_M = m, id##_N = n, id##_THREADS = threads,                                                               \
    id##_SHARED = SHARED_##shared(m, n, k, cluster, components, stages),
enum { CUDA_KERNEL_LIST(KERNEL_CONSTANTS) };
#undef KERNEL_CONSTANTS

/* For a .cu: that a kernel is what the list says. */
#define ASSERT_LISTED_AS(id, tile_m, tile_n, threads, shared_bytes)                                               \
    static_assert(tile_m == id##_M && tile_n == id##_N && threads == id##_THREADS && shared_bytes == id##_SHARED, \
                  #id ": tile, threads and shared memory are those of kernel_list.h")

/* clang-format on */

#endif
