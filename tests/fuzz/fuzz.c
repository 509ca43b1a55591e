/* fuzz.c: see fuzz.h. */
#include "fuzz.h"

#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

void fuzz_wrong(const char *file, int line, const char *condition, const char *format, ...) {
    fprintf(stderr, "%s:%d: %s does not hold: ", file, line, condition);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    abort();
}

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

arena arena_make(size_t floats, bool at_end) {
    const size_t page = page_size(), bytes = floats * sizeof(float);
    const size_t inside = (bytes + page - 1) / page * page;
    arena a = {.map_size = inside + 2 * page, .floats = floats};
    a.map = mmap(NULL, a.map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a.map == MAP_FAILED || (inside && mprotect(a.map + page, inside, PROT_READ | PROT_WRITE))) {
        perror("mmap");
        exit(1);
    }
    a.data = (float *)(void *)(a.map + page + (at_end ? inside - bytes : 0));
    return a;
}

void arena_protect(const arena *a) {
    const size_t page = page_size();
    if (a->map_size > 2 * page) mprotect(a->map + page, a->map_size - 2 * page, PROT_READ);
}

void arena_free(arena *a) { munmap(a->map, a->map_size); }
