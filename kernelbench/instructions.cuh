/* instructions.cuh: the instructions that a module's kernels use. ptx.cuh and mma.cuh of src/cuda/kernels have more of
 * them, and more of their options. Regions: all_kernels; hopper, and in it arrive; clusters. */

// clang-format off
// region: all_kernels
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
// endregion: all_kernels

// region: hopper
/* Barriers in shared memory; threads wait for the end of a phase. */
__device__ inline void barrier_init(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// region: arrive
__device__ inline void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(barrier)) : "memory");
}
// endregion: arrive
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
#pragma unroll
    for (int i = 0; i < 64; i++) asm volatile("" : "+f"(d[i]) :: "memory");
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
// endregion: hopper

// region: clusters
/* Waits for all threads of the cluster. Blocks touch each other's shared memory only between two such calls: before,
 * the other may not have started; after, it may have ended. */
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Arrives at the same barrier in block `rank`. It orders reads by products, which have been waited for; an explicit
 * release at cluster scope would cost a fence of all of memory each time. */
__device__ inline void barrier_arrive_in(uint64_t *barrier, int rank) {
    asm volatile("{.reg .b32 to; mapa.shared::cluster.u32 to, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [to];}"
                 :: "r"(shared_address(barrier)), "r"(rank) : "memory");
}

/* bulk_copy to the same place, completing on the same barrier, in every block whose bit is set in `blocks`. */
__device__ inline void bulk_copy_to_blocks(void *to, const void *from, uint32_t bytes, uint64_t *barrier, int blocks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1], %2, [%3], %4;" :: "r"(shared_address(to)), "l"(from), "r"(bytes),
                 "r"(shared_address(barrier)), "h"((uint16_t)blocks) : "memory");
}

/* Copies `bytes` (a multiple of 16) into L2. */
__device__ inline void bulk_prefetch(const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(bytes) : "memory");
}

/* True in one thread of a converged warp. Unlike a comparison of threadIdx.x the compiler knows it to be one thread,
 * and issues a bulk copy there without a loop over threads. */
__device__ inline bool elected() {
    uint32_t yes;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(yes));
    return yes;
}
// endregion: clusters
// clang-format on
