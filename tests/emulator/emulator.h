/* emulator.h: enough of CUDA to compile the packing kernels for a CPU, and to run a thread block of them. With
 * TESSERA_EMULATOR defined, ptx.cuh includes this file in place of its instructions.
 *
 * A thread of the block is a fiber. One runs at a time, until it waits for others at a barrier or a vote. Which one
 * runs next is random, so that what needs a barrier and has none goes wrong. Copies to shared memory arrive when they
 * are waited for and not sooner. Blocks run one after the other.
 */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__ static
#define __noinline__
#ifndef EMULATED_THREADS
#define EMULATED_THREADS 128
#endif

struct dimension {
    unsigned x, y;
};
static dimension threadIdx, blockIdx, gridDim;

/* ---- Fibers ------------------------------------------------------------------------------------------------------ */

struct copy {
    void *to;
    const void *from;
    int bytes, width;
};

struct fiber {
    enum { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, ENDED } state;
    ucontext_t context;
    std::vector<char> stack;
    std::vector<copy> open; /* copies, and those of committed groups, oldest first */
    std::vector<std::vector<copy>> committed;
};

enum { BLOCK_THREADS = EMULATED_THREADS, WARP_THREADS = 32 };
static fiber fibers[BLOCK_THREADS];
static ucontext_t scheduler;

static void wait_as(int state) {
    fiber &me = fibers[threadIdx.x];
    me.state = (decltype(me.state))state;
    swapcontext(&me.context, &scheduler);
}

/* Lets threads [first, first + count) go on, if all of them that have not ended wait like this. */
static bool release(int first, int count, int state) {
    bool any = false;
    for (int i = first; i < first + count; i++) {
        if (fibers[i].state != state && fibers[i].state != fiber::ENDED) return false;
        any |= fibers[i].state == state;
    }
    for (int i = first; i < first + count; i++)
        if (fibers[i].state == state) fibers[i].state = fiber::RUNS;
    return any;
}

static void (*body)();

static void fiber_main() {
    body();
    fibers[threadIdx.x].state = fiber::ENDED;
    swapcontext(&fibers[threadIdx.x].context, &scheduler);
}

static uint32_t random_state = 1;
static uint32_t random_below(uint32_t count) {
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % count;
}

static void run_block(void (*kernel)()) {
    body = kernel;
    for (fiber &f : fibers) {
        f.stack.resize(64 << 10);
        f.open.clear();
        f.committed.clear();
        f.state = fiber::RUNS;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size();
        makecontext(&f.context, fiber_main, 0);
    }
    for (;;) {
        int ready[BLOCK_THREADS], count = 0, ended = 0;
        for (int i = 0; i < BLOCK_THREADS; i++) {
            if (fibers[i].state == fiber::RUNS) ready[count++] = i;
            ended += fibers[i].state == fiber::ENDED;
        }
        if (ended == BLOCK_THREADS) return;
        if (count) {
            threadIdx.x = ready[random_below(count)];
            swapcontext(&scheduler, &fibers[threadIdx.x].context);
            release(threadIdx.x / WARP_THREADS * WARP_THREADS, WARP_THREADS, fiber::WAITS_FOR_WARP);
        } else if (!release(0, BLOCK_THREADS, fiber::WAITS_FOR_BLOCK)) {
            fprintf(stderr, "emulator: threads wait at different barriers\n");
            abort();
        }
    }
}

/* ---- Barriers, votes and shuffles -------------------------------------------------------------------------------- */

static uint32_t said[BLOCK_THREADS]; /* by each thread, for others to hear */

static void __syncthreads() { wait_as(fiber::WAITS_FOR_BLOCK); }
static void __syncwarp() { wait_as(fiber::WAITS_FOR_WARP); }

static bool __syncthreads_or(bool mine) {
    said[threadIdx.x] = mine;
    __syncthreads();
    bool any = false;
    for (uint32_t one : said) any |= one;
    __syncthreads();
    return any;
}

static uint32_t __ballot_sync(uint32_t, bool mine) {
    said[threadIdx.x] = mine;
    __syncwarp();
    uint32_t all = 0;
    for (int i = 0; i < WARP_THREADS; i++) all |= said[threadIdx.x / WARP_THREADS * WARP_THREADS + i] << i;
    __syncwarp();
    return all;
}
static bool __any_sync(uint32_t mask, bool mine) { return __ballot_sync(mask, mine); }

template <typename T> static T of_lane(T mine, int lane) {
    static_assert(sizeof(T) == sizeof said[0], "a word at a time");
    T theirs;
    memcpy(&said[threadIdx.x], &mine, sizeof mine);
    __syncwarp();
    memcpy(&theirs, &said[threadIdx.x / WARP_THREADS * WARP_THREADS + lane], sizeof theirs);
    __syncwarp();
    return theirs;
}
template <typename T> static T __shfl_sync(uint32_t, T mine, int lane) { return of_lane(mine, lane); }
template <typename T> static T __shfl_xor_sync(uint32_t, T mine, int step) {
    return of_lane(mine, (threadIdx.x % WARP_THREADS) ^ step);
}

static int warp_max(int mine) {
    for (int step = WARP_THREADS / 2; step > 0; step /= 2) {
        const int other = __shfl_xor_sync(0xffffffffu, mine, step);
        mine = mine < other ? other : mine;
    }
    return mine;
}

/* ---- ptx.cuh, atomics and time ----------------------------------------------------------------------------------- */

static uintptr_t shared_address(const void *pointer) { return (uintptr_t)pointer; }

alignas(1024) static uint8_t shared_memory[128 << 10]; /* dynamic; more than the kernels use */
template <int ALIGNMENT> static uint8_t *dynamic_shared() { return shared_memory; }

static void wait_for_previous_kernel() {}
static void allow_next_kernel() {}
static uint64_t evict_first_policy() { return 1; }

static void queue_copy(uintptr_t to, const void *from, int bytes, int width) {
    if (to % width || (uintptr_t)from % width || bytes < 0 || bytes > width) {
        fprintf(stderr, "emulator: a copy of %d of %d bytes from %p to %p\n", bytes, width, from, (void *)to);
        abort();
    }
    fibers[threadIdx.x].open.push_back({(void *)to, from, bytes, width});
}

static void cp_async_part(uintptr_t to, const void *from, int bytes, uint64_t) { queue_copy(to, from, bytes, 16); }
template <int BYTES> static void cp_async_or_zero(uintptr_t to, const void *from, bool wanted) {
    queue_copy(to, from, wanted ? BYTES : 0, BYTES);
}

static void cp_async_commit() {
    fiber &me = fibers[threadIdx.x];
    me.committed.push_back(me.open);
    me.open.clear();
}

template <int GROUPS> static void cp_async_wait() {
    std::vector<std::vector<copy>> &committed = fibers[threadIdx.x].committed;
    for (; committed.size() > GROUPS; committed.erase(committed.begin()))
        for (const copy &c : committed.front()) {
            memcpy(c.to, c.from, c.bytes);
            memset((char *)c.to + c.bytes, 0, c.width - c.bytes);
        }
}

template <typename T, typename V> static T atomicAdd(T *at, V x) {
    const T before = *at;
    *at = before + (T)x;
    return before;
}
static uint32_t atomicOr(uint32_t *at, uint32_t x) {
    const uint32_t before = *at;
    *at = before | x;
    return before;
}
static int atomicMax(int *at, int x) {
    const int before = *at;
    *at = before > x ? before : x;
    return before;
}
static void __threadfence() {}
template <typename T> static T __ldcg(const T *at) { return *at; }

static long long clock64() { /* it advances with each call */
    static long long now;
    return now += 1 << 12;
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

template <typename A, typename B> static typename std::common_type<A, B>::type min(A a, B b) { return b < a ? b : a; }
template <typename A, typename B> static typename std::common_type<A, B>::type max(A a, B b) { return a < b ? b : a; }

template <typename TO, typename FROM> static TO bits_as(FROM x) {
    TO y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static float __uint_as_float(uint32_t x) { return bits_as<float>(x); }
static uint32_t __float_as_uint(float x) { return bits_as<uint32_t>(x); }
static float __int_as_float(int x) { return bits_as<float>(x); }
static int __float_as_int(float x) { return bits_as<int>(x); }
static int __ffs(int x) { return __builtin_ffs(x); }

struct uint2 {
    uint32_t x, y;
};
struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static float4 load_once(const float *from) {
    if ((uintptr_t)from % 16) {
        fprintf(stderr, "emulator: a load of 16 bytes from %p\n", (const void *)from);
        abort();
    }
    return *(const float4 *)from;
}

#endif
