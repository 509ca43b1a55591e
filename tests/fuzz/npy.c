/* npy.c: any bytes as a .npy file. cli/npy.c is built with mmap made malloc, so that a read past the file is seen. */
#include "npy.h"

#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "command.h"
#include "fuzz.h"

static char message[1024];

int fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return EXIT_FAILED;
}

void *fuzz_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset);
int fuzz_munmap(void *address, size_t size);

void *fuzz_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
    (void)address, (void)protection, (void)flags;
    char *memory = malloc(size);
    return memory && pread(file, memory, size, offset) == (ssize_t)size ? memory : MAP_FAILED;
}

int fuzz_munmap(void *address, size_t size) {
    (void)size;
    free(address);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int file = -1;
    static char path[64];
    if (file < 0) {
        file = memfd_create("input.npy", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    if (ftruncate(file, 0) || pwrite(file, data, size, 0) != (ssize_t)size) abort();
    npy_matrix matrix;
    message[0] = '\0';
    if (npy_open(&matrix, path)) {
        EXPECT(strstr(message, path), "the message \"%s\" does not name the file", message);
        for (const char *c = message; *c; c++) EXPECT(*c >= ' ' && *c <= '~', "the message has byte %d", *c);
        return 0;
    }
    EXPECT(matrix.rows >= 0 && matrix.cols >= 0, "%lld x %lld", (long long)matrix.rows, (long long)matrix.cols);
    float last = 0;
    for (int64_t i = 0; i < matrix.rows && matrix.cols; i++)
        for (int64_t j = 0; j < matrix.cols; j++) {
            float x;
            memcpy(&x, &matrix.data[i * matrix.row_stride + j * matrix.col_stride], sizeof x);
            last = x;
        }
    volatile float read = last; /* all of it was */
    (void)read;
    npy_close(&matrix);
    return 0;
}
