/* faults.c: malloc and its relatives, mmap, pthread_create, write and other calls about files, with one that fails.
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
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static const char *const names[FAULT_KINDS] = {"memory", "mmap", "thread", "write", "file"};

static _Atomic int armed = FAULT_KINDS; /* a fault_kind, or FAULT_KINDS for none */
static atomic_long wanted, seen, failed;
static atomic_bool fails_for_good;
static atomic_int error_of_files = ENOSPC;
static const char *hit_path;

/* ---- Who calls --------------------------------------------------------------------------------------------------- */

enum { MOST_RANGES = 8 };
static struct { uintptr_t begin, end; } ranges[MOST_RANGES]; /* written before calls fail, as is: */
static int range_count;

static bool has_word(const char *path, const char *words) {
    for (size_t length; *words; words += length + (words[length] == ':')) {
        length = strcspn(words, ":");
        if (memmem(path, strlen(path), words, length)) return true;
    }
    return false;
}

static int add_range(struct dl_phdr_info *object, size_t size, void *words) {
    (void)size;
    for (int i = 0; i < object->dlpi_phnum && has_word(object->dlpi_name, words); i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X) || range_count == MOST_RANGES) continue;
        ranges[range_count].begin = object->dlpi_addr + segment->p_vaddr;
        ranges[range_count].end = ranges[range_count].begin + segment->p_memsz;
        range_count++;
    }
    return 0;
}

int faults_only_from(const char *words) {
    range_count = 0;
    dl_iterate_phdr(add_range, (void *)words);
    return range_count;
}

static bool counts(const void *caller) {
    for (int i = 0; i < range_count; i++)
        if ((uintptr_t)caller >= ranges[i].begin && (uintptr_t)caller < ranges[i].end) return true;
    return !range_count;
}

/* ---- Which call fails -------------------------------------------------------------------------------------------- */

void faults_error(int error) { atomic_store(&error_of_files, error); }

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

/* In whichever function this stands: who called that. */
#define CALLER __builtin_return_address(0)

static void note_hit(void) {
    const long file = hit_path ? syscall(SYS_openat, AT_FDCWD, hit_path, O_CREAT | O_WRONLY, 0666) : -1;
    if (file >= 0) syscall(SYS_close, file);
}

static bool fails(enum fault_kind kind, const void *caller) {
    if (atomic_load(&armed) != (int)kind || !counts(caller)) return false;
    const long number = atomic_fetch_add(&seen, 1) + 1, from = atomic_load(&wanted);
    if (number != from && !(number > from && atomic_load(&fails_for_good))) return false;
    if (atomic_fetch_add(&failed, 1) == 0) note_hit();
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

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* libstdc++'s operator new, which throws where malloc gives nothing, is told so here. */
static __thread bool next_malloc_fails __attribute__((tls_model("initial-exec")));

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t size) {
    const bool failing = next_malloc_fails || fails(FAULT_MEMORY, CALLER);
    next_malloc_fails = false;
    return failing ? no_memory() : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    return fails(FAULT_MEMORY, CALLER) ? no_memory() : __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size) {
    return fails(FAULT_MEMORY, CALLER) ? no_memory() : __libc_realloc(memory, size);
}

static _Atomic size_t largest;
size_t faults_largest(void) { return atomic_exchange(&largest, 0); }

void *aligned_alloc(size_t alignment, size_t size) {
    for (size_t before = largest; size > before && !atomic_compare_exchange_weak(&largest, &before, size);) continue;
    return fails(FAULT_MEMORY, CALLER) ? no_memory() : __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
    if (fails(FAULT_MEMORY, CALLER)) return ENOMEM;
    *memory = __libc_memalign(alignment, size);
    return *memory ? 0 : ENOMEM;
}

void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset) {
    if (!fails(FAULT_MMAP, CALLER)) return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
    errno = ENOMEM;
    return MAP_FAILED;
}

/* A library's function, looked up once. */
static void *real(void *_Atomic *found, const char *name, void *library) {
    void *address = atomic_load(found);
    if (!address) atomic_store(found, address = dlsym(library, name));
    return address;
}

/* operator new(size_t). Its library may be loaded where RTLD_NEXT does not look. */
void *_Znwm(size_t size);
void *_Znwm(size_t size) {
    static void *_Atomic found;
    union {
        void *address;
        void *(*allocate)(size_t);
    } libstdcxx = {.address = atomic_load(&found)};
    if (!libstdcxx.address)
        libstdcxx.address = real(&found, "_Znwm", dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD));
    next_malloc_fails = range_count && fails(FAULT_MEMORY, CALLER);
    return libstdcxx.allocate(size);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    static void *_Atomic found;
    union {
        void *address;
        int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    } libc = {.address = NULL};
    if (fails(FAULT_THREAD, CALLER)) return EAGAIN;
    libc.address = real(&found, "pthread_create", RTLD_NEXT);
    return libc.create(thread, attributes, start, argument);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* syscall()'s result, or a failure. */
#define FILE_CALL(...) (fails(FAULT_FILE, CALLER) ? file_error() : syscall(__VA_ARGS__))

static long file_error(void) {
    errno = atomic_load(&error_of_files);
    return -1;
}

/* Pipes, on which disks have no influence, do not fail. */
static bool is_on_disk(int file) {
    struct stat about;
    return !fstat(file, &about) && S_ISREG(about.st_mode);
}

ssize_t write(int file, const void *data, size_t size) {
    if (fails(FAULT_WRITE, CALLER) || (is_on_disk(file) && fails(FAULT_FILE, CALLER))) return file_error();
    return syscall(SYS_write, file, data, size);
}

ssize_t read(int file, void *data, size_t size) {
    return is_on_disk(file) && fails(FAULT_FILE, CALLER) ? file_error() : syscall(SYS_read, file, data, size);
}

/* The mode is there only if a file may be made; elsewhere it is ignored. */
#define MODE_AFTER(flags)                                                         \
    ({                                                                            \
        va_list arguments;                                                        \
        va_start(arguments, flags);                                               \
        const mode_t mode = (flags)&O_CREAT ? (mode_t)va_arg(arguments, int) : 0; \
        va_end(arguments);                                                        \
        mode;                                                                     \
    })

int open(const char *path, int flags, ...) {
    return (int)FILE_CALL(SYS_openat, AT_FDCWD, path, flags, MODE_AFTER(flags));
}
int open64(const char *path, int flags, ...) {
    return (int)FILE_CALL(SYS_openat, AT_FDCWD, path, flags, MODE_AFTER(flags));
}
int pipe2(int ends[2], int flags) { return (int)FILE_CALL(SYS_pipe2, ends, flags); }
int mkdir(const char *path, mode_t mode) { return (int)FILE_CALL(SYS_mkdirat, AT_FDCWD, path, mode); }
int chmod(const char *path, mode_t mode) { return (int)FILE_CALL(SYS_fchmodat, AT_FDCWD, path, mode); }
int flock(int file, int operation) { return (int)FILE_CALL(SYS_flock, file, operation); }
int rename(const char *from, const char *to) { return (int)FILE_CALL(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0); }

/* As on a network file system, which may say only now that there is no room: the descriptor is closed all the same. */
int close(int file) {
    const bool failing = is_on_disk(file) && fails(FAULT_FILE, CALLER);
    const long status = syscall(SYS_close, file);
    return (int)(failing ? file_error() : status);
}
