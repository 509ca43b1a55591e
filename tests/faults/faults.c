/* faults.c: malloc and its relatives, mmap, pthread_create and write, with one call that fails.
 *
 *     FAULTS=memory:7   the seventh allocation after the program's start fails; memory:7+: and all after it
 *     FAULTS_HIT=PATH   this file is made when a call fails
 *
 * Allocations are passed on to glibc's own names for them, because dlsym itself may allocate.
 */
#include "faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static const char *const names[FAULT_KINDS] = {"memory", "mmap", "thread", "write"};

static _Atomic int armed = FAULT_KINDS; /* a fault_kind, or FAULT_KINDS for none */
static atomic_long wanted, seen, failed;
static atomic_bool fails_for_good;
static const char *hit_path;

enum fault_kind faults_kind(const char *name) {
    int kind = 0;
    while (kind < FAULT_KINDS && strcmp(name, names[kind])) kind++;
    return (enum fault_kind)kind;
}

void faults_begin(enum fault_kind kind, long number, bool for_good) {
    atomic_store(&wanted, number);
    atomic_store(&seen, 0);
    atomic_store(&failed, 0);
    atomic_store(&fails_for_good, for_good);
    atomic_store(&armed, (int)kind);
}

long faults_end(void) {
    atomic_store(&armed, FAULT_KINDS);
    return atomic_load(&failed);
}

static bool fails(enum fault_kind kind) {
    if (atomic_load(&armed) != (int)kind) return false;
    const long number = atomic_fetch_add(&seen, 1) + 1, from = atomic_load(&wanted);
    if (number != from && !(number > from && atomic_load(&fails_for_good))) return false;
    if (atomic_fetch_add(&failed, 1) == 0 && hit_path) close(open(hit_path, O_CREAT | O_WRONLY, 0666));
    return true;
}

static __attribute__((constructor)) void read_environment(void) {
    const char *what = getenv("FAULTS"), *colon = what ? strchr(what, ':') : NULL;
    if (!colon) return;
    char name[16] = "", *end;
    const size_t length = (size_t)(colon - what);
    if (length < sizeof name) memcpy(name, what, length);
    const long number = strtol(colon + 1, &end, 10);
    hit_path = getenv("FAULTS_HIT");
    faults_begin(faults_kind(name), number, *end == '+');
}

/* ---- The calls --------------------------------------------------------------------------------------------------- */

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t size) { return fails(FAULT_MEMORY) ? no_memory() : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return fails(FAULT_MEMORY) ? no_memory() : __libc_calloc(count, size); }
void *realloc(void *memory, size_t size) { return fails(FAULT_MEMORY) ? no_memory() : __libc_realloc(memory, size); }

void *aligned_alloc(size_t alignment, size_t size) {
    return fails(FAULT_MEMORY) ? no_memory() : __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
    if (fails(FAULT_MEMORY)) return ENOMEM;
    *memory = __libc_memalign(alignment, size);
    return *memory ? 0 : ENOMEM;
}

void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset) {
    if (!fails(FAULT_MMAP)) return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
    errno = ENOMEM;
    return MAP_FAILED;
}

ssize_t write(int file, const void *data, size_t size) {
    if (!fails(FAULT_WRITE)) return (ssize_t)syscall(SYS_write, file, data, size);
    errno = ENOSPC;
    return -1;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    static void *_Atomic found;
    union {
        void *address;
        int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    } real = {.address = atomic_load(&found)};
    if (fails(FAULT_THREAD)) return EAGAIN;
    if (!real.address) {
        real.address = dlsym(RTLD_NEXT, "pthread_create");
        atomic_store(&found, real.address);
    }
    return real.create(thread, attributes, start, argument);
}
