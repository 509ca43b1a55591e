/* ptx.cuh: every inline PTX instruction of the kernels, once; those that multiply matrices are in mma.cuh. With
 * TESSERA_EMULATOR defined, the CPU emulator of the tests (tests/emulator) takes their place.
 */
#ifndef TESSERA_CUDA_PTX_CUH
#define TESSERA_CUDA_PTX_CUH

#ifdef TESSERA_EMULATOR
#include "emulator.h"
#else

#include <stdint.h>

/* ---- Shared memory ----------------------------------------------------------------------------------------------- */

/* Many instructions take shared memory by its 32-bit address. */
__device__ inline uint32_t shared_address(const void *pointer) { return (uint32_t)__cvta_generic_to_shared(pointer); }

/* This thread block's dynamic shared memory. */
template <int ALIGNMENT> __device__ inline uint8_t *dynamic_shared() {
    extern __shared__ __align__(ALIGNMENT) uint8_t memory[];
    return memory;
}

__device__ inline float4 load_shared_16(uint32_t from) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/* ---- Programmatic launch: the start of a kernel overlaps the end of the one before, on Hopper and later ---------- */

/* Returns when the previous kernel of the stream, and all before it, have ended. Every thread calls it before it reads
 * what the previous kernel writes, or writes what that one reads. Results of earlier kernels may be read without
 * waiting, but at least one thread of the grid must wait. */
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The same, but not before both addresses, which are not 0, are known: the compiler would have it wait first. */
__device__ inline void wait_for_previous_kernel(const void *a, const void *b) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred p; setp.ne.u64 p, %0, 0; @p griddepcontrol.wait;}" ::"l"((uintptr_t)a | (uintptr_t)b)
                 : "memory");
#endif
}

/* Once all blocks have called this or ended, blocks of the next kernel may start on free SMs. Never before
 * wait_for_previous_kernel. */
__device__ inline void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- cp.async: each thread copies 4 or 16 bytes, aligned; on Turing by a load and a store ------------------------ */

__device__ inline void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most the GROUPS groups that this thread committed last are under way. */
template <int GROUPS> __device__ inline void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
#endif
}

/* Copies BYTES if `wanted`, else writes zeros. */
template <int BYTES> __device__ inline void cp_async_or_zero(uint32_t to, const void *from, bool wanted) {
    static_assert(BYTES == 4 || BYTES == 16, "the sizes that are used");
#if __CUDA_ARCH__ >= 800
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(wanted ? 4 : 0)
                     : "memory");
#else
    if constexpr (BYTES == 16) {
        const float4 v = wanted ? *(const float4 *)from : make_float4(0, 0, 0, 0);
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                     : "memory");
    } else
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(wanted ? *(const float *)from : 0) : "memory");
#endif
}

/* Copies the first `bytes` of 16 and fills the rest with zeros. From Ampere on. */
__device__ inline void cp_async_bytes(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* The same by way of the L1 cache: for what several warps of an SM read, and all SMs at about the same time. */
__device__ inline void cp_async_cached(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* Copies BYTES if `wanted`, sixteen of them by way of the L1 cache if CACHED. That becomes a predicate, not a branch,
 * so that copies can stand between multiplications. */
template <int BYTES, bool CACHED = false>
__device__ inline void cp_async_if(uint32_t to, const void *from, int wanted) {
#if __CUDA_ARCH__ >= 800
    if constexpr (BYTES == 16 && CACHED)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 16;}" ::"r"(to),
                     "l"(from), "r"(wanted)
                     : "memory");
    else if constexpr (BYTES == 16)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(to),
                     "l"(from), "r"(wanted)
                     : "memory");
    else
        asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 4;}" ::"r"(to),
                     "l"(from), "r"(wanted)
                     : "memory");
#else
    if (wanted) cp_async_or_zero<BYTES>(to, from, true);
#endif
}

/* Hides from the compiler how these were computed, so that it keeps them and does not compute them again. */
__device__ inline void forget_origin(int64_t &w, int64_t &x, int64_t &y, int64_t &z) {
    asm volatile("" : "+l"(w), "+l"(x), "+l"(y), "+l"(z));
}
__device__ inline void forget_origin(int64_t &x, int64_t &y) { asm volatile("" : "+l"(x), "+l"(y)); }
__device__ inline void forget_origin(int &x, int &y, uint32_t &z) { asm volatile("" : "+r"(x), "+r"(y), "+r"(z)); }

/* Keeps the compiler from computing in front of a loop, and holding in registers, what follows from x in it. */
__device__ inline void compute_again(int &x) { asm volatile("" : "+r"(x)); }

/* A cache policy: L2 evicts what is read under it before anything else. */
__device__ inline uint64_t evict_first_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Copies the first `bytes` of 16 under a cache policy (0: none) and fills the rest with zeros. From Ampere on. */
__device__ inline void cp_async_part(uint32_t to, const void *from, int bytes, uint64_t policy) {
    asm volatile("{.reg .pred p; setp.ne.b64 p, %3, 0;"
                 " @p cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
                 " @!p cp.async.cg.shared.global [%0], [%1], 16, %2;}" ::"r"(to),
                 "l"(from), "r"(bytes), "l"(policy));
}

/* Loads 16 bytes that are not read again. */
__device__ inline float4 load_once(const float *from) { return __ldcs((const float4 *)from); }

/* The largest in a warp, from Ampere on. */
__device__ inline int warp_max(int x) {
    int most;
    asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(most) : "r"(x));
    return most;
}

/* The least in a warp of numbers that are not negative: as integers such floats have the same order. */
__device__ inline float warp_min_nonnegative(float x) {
    int least;
    asm volatile("redux.sync.min.s32 %0, %1, 0xffffffff;" : "=r"(least) : "r"(__float_as_int(x)));
    return __int_as_float(least);
}

/* ---- Barriers in shared memory, waited on by phase (Hopper) ------------------------------------------------------ */

__device__ inline void barrier_init(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/* Makes freshly initialised barriers visible to the copy engine and to the other blocks of the cluster. */
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Arrives, and makes the phase last until `bytes` have been copied as well. */
__device__ inline void barrier_arrive_and_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ inline void barrier_wait(const uint64_t *barrier, uint32_t phase) {
    asm volatile("{.reg .pred done; wait: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
                 " @!done bra wait;}" ::"r"(shared_address(barrier)),
                 "r"(phase)
                 : "memory");
}

/* Walks a ring of places with barriers, stages for instance: which one is next, and in which phase its barriers are. */
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

/* ---- Bulk copies (Hopper) ---------------------------------------------------------------------------------------- */

/* Copies `bytes` (a multiple of 16); completes on `barrier`. */
__device__ inline void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

/* ---- Copies of a box of a matrix, described by a map that the host made (Hopper) --------------------------------- */

/* Copies the box at (x, y, z), x along the contiguous dimension; zeros where it reaches past the matrix. */
__device__ inline void box_copy(void *to, const void *map, int x, int y, int z, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
                 : "memory");
}

/* ---- Values that the compiler knows to be the same in a warp ----------------------------------------------------- */

/* The number of this thread's warp in its block. Unlike threadIdx.x / 32 the compiler knows it to be uniform, and with
 * it what follows from it: descriptors and loop counters stay in uniform registers, where matrix instructions want
 * them, as long as no branch around them depends on anything else. */
__device__ inline int warp_number() { return __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); }

/* ---- Registers, moved between warpgroups (Hopper) ---------------------------------------------------------------- */

template <int N> __device__ inline void registers_release_to() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ inline void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- Barriers of some of a block's threads ----------------------------------------------------------------------- */

/* Waits for `threads` threads of the block that name the same barrier, 1 to 15. */
__device__ inline void named_barrier(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Counts as one of these threads without waiting. */
__device__ inline void named_barrier_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* named_barrier; whether any of them says `yes`, which the compiler then knows to be the same in a warp. */
__device__ inline bool named_barrier_any(int barrier, int threads, bool yes) {
    int any;
    asm volatile("{.reg .pred p, q; setp.ne.b32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.s32 %0, 1, 0, q;}"
                 : "=r"(any)
                 : "r"(barrier), "r"(threads), "r"((int)yes)
                 : "memory");
    return __any_sync(0xffffffffu, any);
}

/* ---- Arithmetic -------------------------------------------------------------------------------------------------- */

/* sum += a*b, if so: by a predicate, not by a branch. */
__device__ inline void fma_if(bool wanted, float a, float b, float &sum) {
    asm("{.reg .pred p; setp.ne.b32 p, %3, 0; @p fma.rn.f32 %0, %1, %2, %0;}"
        : "+f"(sum)
        : "f"(a), "f"(b), "r"((int)wanted));
}

/* 2^x to 2 ulp; results below 2^-126 are 0. */
__device__ inline float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Volatile, as the products of mma.cuh are, which keep the order the kernel has them in. */
__device__ inline double widen(float x) {
    double y;
    asm volatile("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
}

/* ---- Clusters (Hopper) ------------------------------------------------------------------------------------------- */

/* This block's number in its cluster. */
__device__ inline int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The cluster's number in the grid, and how many thread blocks it has; a block alone is a cluster of one. */
__device__ inline int cluster_number() {
    int number;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(number));
    return number;
}
__device__ inline int cluster_blocks() {
    int blocks;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
}

/* cluster_sync in two halves. That all have arrived says that all have begun, and nothing of what they wrote. */
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

/* The same, and that this thread is done with its block's shared memory: others may write there. Older compilers can
 * only say it of all memory, which takes longer. */
__device__ inline void cluster_arrive_when_done() {
#if __CUDACC_VER_MAJOR__ >= 13
    asm volatile("fence.release.sync_restrict::shared::cta.cluster;\nbarrier.cluster.arrive.relaxed.aligned;" ::
                     : "memory");
#else
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

/* Before a block's first arrival at the cluster's barrier, by one of its threads: `barrier` is to count bytes that
 * blocks of the cluster send. How many, barrier_arrive_and_expect says. */
__device__ inline void begin_receiving(uint64_t *barrier) {
    barrier_init(barrier, 1);
    barrier_init_fence();
}

/* Waits until they have come. */
__device__ inline void wait_for_cluster(const uint64_t *barrier) {
#if __CUDACC_VER_MAJOR__ >= 13
    asm volatile(
        "{.reg .pred done; wait: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 done, [%0], 0;"
        " @!done bra wait; fence.acquire.sync_restrict::shared::cluster.cluster;}" ::"r"(shared_address(barrier))
        : "memory");
#else
    asm volatile("{.reg .pred done; wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;"
                 " @!done bra wait;}" ::"r"(shared_address(barrier))
                 : "memory");
#endif
}

/* Waits for all threads of the cluster. No block may touch another's shared memory before the first call, when the
 * other may not have started, nor after the last, when it may have ended. */
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The float at the same address in block `rank` of the cluster. */
__device__ inline float load_from_block(uint32_t address, int rank) {
    float value;
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %1, %2; ld.shared::cluster.f32 %0, [there];}"
                 : "=f"(value)
                 : "r"(address), "r"(rank)
                 : "memory");
    return value;
}

/* Stores at the same address in block `rank` of the cluster, which has begun. The bytes count as some that the barrier
 * there expects, which needs no fence of all memory, as a release at cluster scope would. */
__device__ inline void send_to_block(uint32_t address, int rank, float value, const uint64_t *barrier) {
    asm volatile("{.reg .b32 there, counts; mapa.shared::cluster.u32 there, %0, %1;"
                 " mapa.shared::cluster.u32 counts, %3, %1;"
                 " st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %2, [counts];}" ::"r"(address),
                 "r"(rank), "f"(value), "r"(shared_address(barrier))
                 : "memory");
}
__device__ inline void send_to_block(uint32_t address, int rank, float4 v, const uint64_t *barrier) {
    asm volatile("{.reg .b32 there, counts; mapa.shared::cluster.u32 there, %0, %1;"
                 " mapa.shared::cluster.u32 counts, %6, %1;"
                 " st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
                 " [there], {%2, %3, %4, %5}, [counts];}" ::"r"(address),
                 "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(shared_address(barrier))
                 : "memory");
}

/* Arrives at the same barrier in block `rank`. It orders reads by products, which have been waited for; an explicit
 * release at cluster scope would cost a fence of all of memory each time. */
__device__ inline void barrier_arrive_in(uint64_t *barrier, int rank) {
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
                 " mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(shared_address(barrier)),
                 "r"(rank)
                 : "memory");
}

/* bulk_copy to the same place, completing on the same barrier, in every block whose bit is set in `blocks`. */
__device__ inline void bulk_copy_to_blocks(void *to, const void *from, uint32_t bytes, uint64_t *barrier, int blocks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"((uint16_t)blocks)
                 : "memory");
}

/* Copies `bytes` (a multiple of 16) into L2. */
__device__ inline void bulk_prefetch(const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* True in one thread of a converged warp. Unlike a comparison of threadIdx.x the compiler knows it to be one thread,
 * and issues a bulk copy there without a loop over threads. */
__device__ inline bool elected() {
    uint32_t yes;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(yes));
    return yes;
}

#endif
#endif
