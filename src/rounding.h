/* rounding.h: the arithmetic of the contract. Between cpu_rounding_begin and cpu_rounding_end subnormals are kept,
 * rounding is to nearest and no exception traps, whatever the calling thread, or the one that started a worker, has set
 * for itself. Its own mode is restored afterwards. */
#ifndef TESSERA_ROUNDING_H
#define TESSERA_ROUNDING_H

#include <stdint.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

/* Writing the register stalls the processor, so it is only written if more than the flags of past exceptions
 * differs. */
#if defined __SSE__

enum { CPU_ROUNDING_FLAGS = 0x3f, CPU_ROUNDING_DEFAULT = 0x1f80 };

static inline uint64_t cpu_rounding_begin(void) {
    const unsigned mode = _mm_getcsr();
    if ((mode & ~(unsigned)CPU_ROUNDING_FLAGS) != CPU_ROUNDING_DEFAULT) _mm_setcsr(CPU_ROUNDING_DEFAULT);
    return mode;
}

static inline void cpu_rounding_end(uint64_t mode) {
    if ((mode & ~(uint64_t)CPU_ROUNDING_FLAGS) != CPU_ROUNDING_DEFAULT) _mm_setcsr((unsigned)mode);
}

#elif defined __aarch64__

static inline uint64_t cpu_rounding_begin(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    if (mode) __asm__ volatile("msr fpcr, xzr");
    return mode;
}

static inline void cpu_rounding_end(uint64_t mode) {
    if (mode) __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}

#else

static inline uint64_t cpu_rounding_begin(void) { return 0; }
static inline void cpu_rounding_end(uint64_t mode) { (void)mode; }

#endif

#endif
