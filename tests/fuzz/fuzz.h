/* fuzz.h: what the fuzz targets share. A target turns bytes into arguments, calls, and compares with an answer of its
 * own; what is wrong aborts, which libFuzzer and standalone.c report with the bytes that caused it. */
#ifndef TESSERA_FUZZ_H
#define TESSERA_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define EXPECT(condition, ...) ((condition) ? (void)0 : fuzz_wrong(__FILE__, __LINE__, #condition, __VA_ARGS__))

/* ---- Bytes as choices; past the end all are 0 -------------------------------------------------------------------- */

typedef struct choices {
    const uint8_t *at, *end;
} choices;

static inline uint8_t choose_byte(choices *c) { return c->at < c->end ? *c->at++ : 0; }

static inline uint64_t choose_bytes(choices *c, int count) {
    uint64_t value = 0;
    for (int i = 0; i < count; i++) value = value << 8 | choose_byte(c);
    return value;
}

static inline int64_t choose(choices *c, int64_t low, int64_t high) {
    const uint64_t span = (uint64_t)(high - low) + 1;
    return low + (int64_t)(choose_bytes(c, span <= 256 ? 1 : span <= 65536 ? 2 : 8) % span);
}

/* ---- Memory between guard pages ---------------------------------------------------------------------------------- */

/* `floats` of memory that ends, or begins, where a page begins that nobody may touch. */
typedef struct arena {
    char *map;
    size_t map_size;
    float *data;
    size_t floats;
} arena;

arena arena_make(size_t floats, bool at_end);
void arena_protect(const arena *a); /* from now on it may only be read */
void arena_free(arena *a);

void fuzz_wrong(const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 4, 5), noreturn));

#endif
