/* mma.cuh: the matrix instructions of the kernels, each once: wgmma, a warpgroup's, and mma.sync, a warp's. All other
 * PTX is in ptx.cuh. The emulator of the tests has none of these: no kernel that it runs multiplies matrices.
 */
#ifndef TESSERA_CUDA_MMA_CUH
#define TESSERA_CUDA_MMA_CUH

#include "cuda/kernels/ptx.cuh"

/* ---- wgmma: matrix products of a warpgroup from shared memory (Hopper) ------------------------------------------- */

/* The low word of a tile's descriptor. The tile is rows of 128 bytes, swizzled, from a multiple of 1024 bytes on; what
 * lies n bytes further, along k or in another tile, has the address + n/16. */
__device__ inline uint32_t tile_address(const void *tile) {
    const uint32_t unused_stride = 1u << 16;
    return unused_stride | (shared_address(tile) & 0x3ffff) >> 4;
}

/* The whole descriptor: groups of 8 rows are 1024 bytes apart. */
__device__ inline uint64_t tile_descriptor(uint32_t address) {
    const uint32_t swizzle_128 = 1u << 30, group_stride = 1024 >> 4;
    return (uint64_t)(swizzle_128 | group_stride) << 32 | address;
}

/* Orders earlier accesses of the warpgroup to registers and shared memory before the products that follow. */
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

/* The same for components of A that products read from registers. */
template <int N> __device__ inline void hold(uint32_t (&a)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}

/* The registers of an instruction's d, as its text has them. */
#define REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGISTERS_16 REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_32 REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_40 REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define REGISTERS_48 REGISTERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_64                                                                   \
    REGISTERS_32                                                                       \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_128                                                                              \
    REGISTERS_64                                                                                   \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* Operands of an asm statement: d[i], ... */
#define ACCUMULATORS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACCUMULATORS_16(d, i) \
    ACCUMULATORS_4(d, i), ACCUMULATORS_4(d, i + 4), ACCUMULATORS_4(d, i + 8), ACCUMULATORS_4(d, i + 12)
#define ACCUMULATORS_32(d, i) ACCUMULATORS_16(d, i), ACCUMULATORS_16(d, i + 16)

/* d (64 x 128) = a (64 x 16) * b (128 x 16)^T + (accumulate ? d : 0). */
__device__ inline void wgmma_64x128x16(float (&d)[64], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{" REGISTERS_64 "}, %64, %65, p, 1, 1, 0, 0;}"
                 : ACCUMULATORS_32(d, 0), ACCUMULATORS_32(d, 32)
                 : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"((int)accumulate));
}

/* d (64 x 256) = a (64 x 16) * b (256 x 16)^T + (accumulate ? d : 0). */
__device__ inline void wgmma_64x256x16(float (&d)[128], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0; "
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
                 "{" REGISTERS_128 "}, %128, %129, p, 1, 1, 0, 0;}"
                 : ACCUMULATORS_32(d, 0), ACCUMULATORS_32(d, 32), ACCUMULATORS_32(d, 64), ACCUMULATORS_32(d, 96)
                 : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"((int)accumulate));
}

/* d (64 x 80) = a (64 x 16) * b (80 x 16)^T + (accumulate ? d : 0). */
__device__ inline void wgmma_64x80x16(float (&d)[40], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %42, 0; "
                 "wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 "
                 "{" REGISTERS_40 "}, %40, %41, p, 1, 1, 0, 0;}"
                 : ACCUMULATORS_32(d, 0), ACCUMULATORS_4(d, 32), ACCUMULATORS_4(d, 36)
                 : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"((int)accumulate));
}

/* d (64 x 64) = a (64 x 16) * b (64 x 16)^T + (accumulate ? d : 0). */
__device__ inline void wgmma_64x64x16(float (&d)[32], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{" REGISTERS_32 "}, %32, %33, p, 1, 1, 0, 0;}"
                 : ACCUMULATORS_32(d, 0)
                 : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"((int)accumulate));
}

/* d (64 x 16) = a (64 x 16) * b (16 x 16)^T + (accumulate ? d : 0). */
__device__ inline void wgmma_64x16x16(float (&d)[8], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0; "
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {" REGISTERS_8 "}, %8, %9, p, 1, 1, 0, 0;}"
                 : ACCUMULATORS_4(d, 0), ACCUMULATORS_4(d, 4)
                 : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"((int)accumulate));
}

/* d (64 x 32) = a (64 x 16) * b (32 x 16)^T + (accumulate ? d : 0). */
__device__ inline void wgmma_64x32x16(float (&d)[16], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; "
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{" REGISTERS_16 "}, %16, %17, p, 1, 1, 0, 0;}"
                 : ACCUMULATORS_16(d, 0)
                 : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"((int)accumulate));
}

/* d (64 x 64) = a (64 x 16) * b (16 x 64) + (accumulate ? d : 0), with A in registers, as accumulators lie, and B by
 * rows: 16 rows of 128 bytes. */
__device__ inline void wgmma_64x64x16_rows(float (&d)[32], const uint32_t (&a)[4], uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{" REGISTERS_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;}"
                 : ACCUMULATORS_32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile_descriptor(b)), "r"((int)accumulate));
}

/* d (64 x 2N) = a (64 x 8) * b (2N x 8)^T + (accumulate ? d : 0) of tf32, N being the length of d. Lane 4g + t of warp
 * w gives terms t and t + 4 of rows 16w + g (a[0], a[2]) and 16w + g + 8 (a[1], a[3]) of A. */
__device__ inline void wgmma_tf32(float (&d)[16], const uint32_t (&a)[4], uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %21, 0; "
                 "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 "
                 "{" REGISTERS_16 "}, {%16, %17, %18, %19}, %20, p, 1, 1;}"
                 : ACCUMULATORS_16(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile_descriptor(b)), "r"((int)accumulate));
}
__device__ inline void wgmma_tf32(float (&d)[32], const uint32_t (&a)[4], uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
                 "{" REGISTERS_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1;}"
                 : ACCUMULATORS_32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile_descriptor(b)), "r"((int)accumulate));
}
__device__ inline void wgmma_tf32(float (&d)[48], const uint32_t (&a)[4], uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %53, 0; "
                 "wgmma.mma_async.sync.aligned.m64n96k8.f32.tf32.tf32 "
                 "{" REGISTERS_48 "}, {%48, %49, %50, %51}, %52, p, 1, 1;}"
                 : ACCUMULATORS_32(d, 0), ACCUMULATORS_16(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile_descriptor(b)), "r"((int)accumulate));
}
__device__ inline void wgmma_tf32(float (&d)[64], const uint32_t (&a)[4], uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %69, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
                 "{" REGISTERS_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1;}"
                 : ACCUMULATORS_32(d, 0), ACCUMULATORS_32(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile_descriptor(b)), "r"((int)accumulate));
}
__device__ inline void wgmma_tf32(float (&d)[128], const uint32_t (&a)[4], uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %133, 0; "
                 "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 "
                 "{" REGISTERS_128 "}, {%128, %129, %130, %131}, %132, p, 1, 1;}"
                 : ACCUMULATORS_32(d, 0), ACCUMULATORS_32(d, 32), ACCUMULATORS_32(d, 64), ACCUMULATORS_32(d, 96)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile_descriptor(b)), "r"((int)accumulate));
}

/* The same with A in shared memory, as rows of 128 bytes. */
__device__ inline void wgmma_tf32(float (&d)[32], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
                 "{" REGISTERS_32 "}, %32, %33, p, 1, 1;}"
                 : ACCUMULATORS_32(d, 0)
                 : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"((int)accumulate));
}
__device__ inline void wgmma_tf32(float (&d)[64], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
                 "{" REGISTERS_64 "}, %64, %65, p, 1, 1;}"
                 : ACCUMULATORS_32(d, 0), ACCUMULATORS_32(d, 32)
                 : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"((int)accumulate));
}
__device__ inline void wgmma_tf32(float (&d)[128], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0; "
                 "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 "
                 "{" REGISTERS_128 "}, %128, %129, p, 1, 1;}"
                 : ACCUMULATORS_32(d, 0), ACCUMULATORS_32(d, 32), ACCUMULATORS_32(d, 64), ACCUMULATORS_32(d, 96)
                 : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"((int)accumulate));
}

/* Makes shared memory that this thread has written visible to matrix instructions and bulk copies. */
__device__ inline void fence_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- mma.sync on fp16 (Ampere and later) ------------------------------------------------------------------------- */

/* Four 8 x 8 matrices from shared memory; lane l names row l % 8 of matrix l / 8. */
__device__ inline void load_matrices(uint32_t *to, uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

/* d (16 x 8) = a (16 x 16) * b (8 x 16)^T + (accumulate ? d : 0). */
__device__ inline void mma_16x8x16(float *d, const uint32_t *a, const uint32_t *b, bool accumulate = true) {
    const float c0 = accumulate ? d[0] : 0, c1 = accumulate ? d[1] : 0, c2 = accumulate ? d[2] : 0,
                c3 = accumulate ? d[3] : 0;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c0), "f"(c1), "f"(c2),
                   "f"(c3));
}

/* ---- mma.sync on float64 (Hopper). Volatile, so that all stay in the order the kernel has them in ---------------- */

/* d (16 x 8) = a (16 x 8) * b (8 x 8)^T + (accumulate ? d : 0). Lane 4g + t gives terms t and t + 4 of lines g (a0) and
 * g + 8 (a1) of A and of line g of B. */
__device__ inline void mma_16x8x8(double (&d)[4], const double (&a0)[2], const double (&a1)[2], const double (&b)[2],
                                  bool accumulate) {
    if (accumulate)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
                     : "d"(a0[0]), "d"(a1[0]), "d"(a0[1]), "d"(a1[1]), "d"(b[0]), "d"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%10, %10, %10, %10};"
                     : "=d"(d[0]), "=d"(d[1]), "=d"(d[2]), "=d"(d[3])
                     : "d"(a0[0]), "d"(a1[0]), "d"(a0[1]), "d"(a1[1]), "d"(b[0]), "d"(b[1]), "d"(0.0));
}

/* The same, adding to d, if `wanted`, which all lanes agree on. That becomes a predicate, not a branch. */
__device__ inline void mma_16x8x8_if(double (&d)[4], const double (&a0)[2], const double (&a1)[2], const double (&b)[2],
                                     int wanted) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0; @p mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};}"
                 : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
                 : "d"(a0[0]), "d"(a1[0]), "d"(a0[1]), "d"(a1[1]), "d"(b[0]), "d"(b[1]), "r"(wanted));
}

#endif
