/* stall.h: included in front of src/offload/copier.c. Every so often a thread that copies stops for a while, as a
 * thread does that loses its core. */
#include <string.h>
#include <time.h>

static inline void *stalling_memcpy(void *to, const void *from, size_t size) {
    static _Thread_local size_t copied;
    copied += size;
    if (copied > 300000) {
        copied = 0;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return memcpy(to, from, size);
}

#define OFFLOAD_MEMCPY stalling_memcpy
