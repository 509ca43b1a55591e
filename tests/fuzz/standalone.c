/* standalone.c: a driver for the fuzz targets without libFuzzer.
 *
 *     TARGET FOLDER [SECONDS [SEED]]
 *
 * Replays the files of FOLDER, then runs mutations of them for so many seconds, at least LEAST_RUNS; the same ones for
 * the same seed. Before each input it writes the bytes to `crash-input` in the current folder, which a target that dies
 * leaves behind. */
#include <dirent.h>
#include <string.h>
#include <time.h>

#include "fuzz.h"

enum { MOST_BYTES = 4096, MOST_FILES = 512, LEAST_RUNS = 100 };

typedef struct input {
    uint8_t bytes[MOST_BYTES];
    size_t size;
} input;

static uint64_t state;

static uint64_t next_random(uint64_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % limit;
}

static void read_input(input *to, const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    to->size = fread(to->bytes, 1, sizeof to->bytes, file);
    fclose(file);
}

static void mutate(input *x) {
    for (uint64_t changes = 1 + next_random(6); changes; changes--) {
        const size_t at = x->size ? next_random(x->size) : 0;
        switch (next_random(6)) {
        case 0:
            if (x->size) x->bytes[at] = (uint8_t)next_random(256);
            break;
        case 1:
            if (x->size) x->bytes[at] ^= (uint8_t)(1u << next_random(8));
            break;
        case 2:
            if (x->size < MOST_BYTES) {
                memmove(x->bytes + at + 1, x->bytes + at, x->size - at);
                x->bytes[at] = (uint8_t)next_random(256);
                x->size++;
            }
            break;
        case 3:
            if (x->size) {
                memmove(x->bytes + at, x->bytes + at + 1, x->size - at - 1);
                x->size--;
            }
            break;
        case 4: x->size = at; break;
        default: /* random bytes at the end */
            for (uint64_t count = next_random(32); count && x->size < MOST_BYTES; count--)
                x->bytes[x->size++] = (uint8_t)next_random(256);
        }
    }
}

static void run_input(const input *x) {
    FILE *file = fopen("crash-input", "wb");
    if (file) {
        fwrite(x->bytes, 1, x->size, file);
        fclose(file);
    }
    /* A copy of the exact size: reading past it is an error that the address sanitizer sees. */
    uint8_t *copy = malloc(x->size ? x->size : 1);
    if (!copy) exit(1);
    memcpy(copy, x->bytes, x->size);
    LLVMFuzzerTestOneInput(copy, x->size);
    free(copy);
}

static double seconds_since(const struct timespec *begun) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begun->tv_sec) + 1e-9 * (double)(now.tv_nsec - begun->tv_nsec);
}

int main(int count, char **words) {
    if (count < 2) {
        fprintf(stderr, "usage: %s FOLDER [SECONDS [SEED]]\n", words[0]);
        return 2;
    }
    const double seconds = count > 2 ? atof(words[2]) : 0;
    state = count > 3 ? strtoull(words[3], NULL, 10) : 1;
    struct dirent **entries;
    const int entry_count = scandir(words[1], &entries, NULL, alphasort); /* sorted: the same runs everywhere */
    static input files[MOST_FILES];
    int file_count = 0;
    for (int i = 0; i < entry_count; i++) {
        if (entries[i]->d_name[0] != '.' && file_count < MOST_FILES)
            read_input(&files[file_count++], words[1], entries[i]->d_name);
        free(entries[i]);
    }
    if (entry_count >= 0) free(entries);
    if (!file_count) {
        fprintf(stderr, "%s: no inputs in %s\n", words[0], words[1]);
        return 1;
    }
    for (int i = 0; i < file_count; i++) run_input(&files[i]);
    struct timespec begun;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    long runs = 0;
    for (; runs < LEAST_RUNS || seconds_since(&begun) < seconds; runs++) {
        input x = files[next_random((uint64_t)file_count)];
        mutate(&x);
        run_input(&x);
    }
    remove("crash-input");
    printf("%d inputs and %ld mutations\n", file_count, runs);
    return 0;
}
