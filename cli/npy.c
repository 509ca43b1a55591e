/* npy.c: NumPy's .npy files.
 *
 * A file is "\x93NUMPY", two version bytes, the length of the header (little-endian, 2 bytes in version 1, 4 in 2 and
 * 3), the header (a Python dict as text: descr, fortran_order, shape), then the data. */
#include "npy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "data goes between file and memory without byte swaps");

static const char magic[] = "\x93NUMPY";
enum { MAGIC_SIZE = sizeof magic - 1, HEADER_ALIGNMENT = 64 };

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

typedef struct npy_header {
    char descr[32];
    bool fortran_order;
    int dimensions;
    int64_t shape[2];
} npy_header;

typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_spaces(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r')) c->at++;
}

static bool take(cursor *c, char expected) {
    skip_spaces(c);
    if (c->at == c->end || *c->at != expected) return false;
    c->at++;
    return true;
}

static bool take_word(cursor *c, const char *word) {
    skip_spaces(c);
    size_t length = strlen(word);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0) return false;
    c->at += length;
    return true;
}

static bool take_string(cursor *c, char *text, size_t size) {
    skip_spaces(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return false;
    char quote = *c->at++;
    size_t length = 0;
    while (c->at < c->end && *c->at != quote) {
        /* Only plain text is ever right here, and messages repeat it. */
        if (length + 1 == size || *c->at < ' ' || *c->at > '~') return false;
        text[length++] = *c->at++;
    }
    text[length] = '\0';
    return take(c, quote);
}

static bool take_size(cursor *c, int64_t *size) {
    skip_spaces(c);
    if (c->at == c->end || *c->at < '0' || *c->at > '9') return false;
    *size = 0;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9')
        if (__builtin_mul_overflow(*size, 10, size) || __builtin_add_overflow(*size, *c->at++ - '0', size))
            return false;
    take(c, 'L'); /* as Python 2 wrote long integers */
    return true;
}

static bool take_shape(cursor *c, npy_header *header) {
    header->dimensions = 0;
    if (!take(c, '(')) return false;
    while (!take(c, ')')) {
        int64_t size;
        if (!take_size(c, &size)) return false;
        if (header->dimensions < 2) header->shape[header->dimensions] = size;
        header->dimensions++;
        if (!take(c, ',')) return take(c, ')');
    }
    return true;
}

static bool take_descr(cursor *c, npy_header *header) {
    skip_spaces(c);
    if (c->at < c->end && *c->at == '[') {
        /* A list of fields. What they are does not matter: the caller refuses it by this name. */
        strcpy(header->descr, "[");
        for (int depth = 0; c->at < c->end; c->at++) {
            if (*c->at == '[') depth++;
            if (*c->at == ']' && --depth == 0) return take(c, ']');
        }
        return false;
    }
    return take_string(c, header->descr, sizeof header->descr);
}

static bool parse_header(npy_header *header, const char *text, size_t length) {
    cursor c = {text, text + length};
    bool has_descr = false, has_order = false, has_shape = false;
    if (!take(&c, '{')) return false;
    while (!take(&c, '}')) {
        char key[16];
        if (!take_string(&c, key, sizeof key) || !take(&c, ':')) return false;
        if (strcmp(key, "descr") == 0) {
            has_descr = take_descr(&c, header);
        } else if (strcmp(key, "fortran_order") == 0) {
            header->fortran_order = take_word(&c, "True");
            has_order = header->fortran_order || take_word(&c, "False");
        } else if (strcmp(key, "shape") == 0) {
            has_shape = take_shape(&c, header);
        } else {
            return false;
        }
        if (take(&c, ',')) continue;
        if (!take(&c, '}')) return false;
        break;
    }
    skip_spaces(&c);
    return has_descr && has_order && has_shape && c.at == c.end;
}

/* `descr` is not '<f4'. */
static int refuse_type(const char *path, const char *descr) {
    if (descr[0] == '[') return fail("%s holds structured records; it must hold float32 ('<f4')", path);
    if (strcmp(descr, ">f4") == 0)
        return fail("%s is big-endian ('>f4'); it must be little-endian: save it with .astype('<f4')", path);
    static const struct {
        char letter;
        const char *name;
    } kinds[] = {{'f', "float"}, {'i', "int"}, {'u', "uint"}, {'c', "complex"}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strlen(descr) <= 4 && descr[0] && descr[1] == kinds[i].letter)
            return fail("%s holds %s%d ('%s'); it must hold float32%s", path, kinds[i].name, 8 * atoi(descr + 2), descr,
                        kinds[i].letter == 'c' ? "" : ": save it with .astype('float32')");
    return fail("%s holds '%s'; it must hold float32 ('<f4')", path, descr);
}

/* Finds the matrix in a mapped file. */
static int locate_matrix(npy_matrix *matrix, const char *path) {
    const unsigned char *bytes = matrix->map;
    size_t size = matrix->map_size;
    if (size < MAGIC_SIZE || memcmp(bytes, magic, MAGIC_SIZE) != 0)
        return fail("%s is not a NumPy .npy file: it does not begin with \\x93NUMPY", path);
    unsigned version = size > MAGIC_SIZE ? bytes[MAGIC_SIZE] : 0;
    size_t prefix = MAGIC_SIZE + (version == 1 ? 4 : 6);
    if (size < prefix) return fail("%s is cut short: it ends within its header", path);
    if (version < 1 || version > 3 || bytes[MAGIC_SIZE + 1] != 0)
        return fail("%s has .npy version %u.%u; 1.0, 2.0 and 3.0 can be read", path, version, bytes[MAGIC_SIZE + 1]);
    size_t length = bytes[MAGIC_SIZE + 2] | (size_t)bytes[MAGIC_SIZE + 3] << 8;
    if (version > 1) length |= (size_t)bytes[MAGIC_SIZE + 4] << 16 | (size_t)bytes[MAGIC_SIZE + 5] << 24;
    if (size - prefix < length)
        return fail("%s is cut short: its header has %zu bytes, the file only %zu after its prefix", path, length,
                    size - prefix);

    npy_header header = {0};
    if (!parse_header(&header, (const char *)bytes + prefix, length))
        return fail("%s has a header that is not NumPy's (descr, fortran_order and shape)", path);
    if (strcmp(header.descr, "<f4") != 0) return refuse_type(path, header.descr);
    if (header.dimensions != 2)
        return fail("%s has %d dimension%s; it must be a matrix, which has 2: reshape it", path, header.dimensions,
                    header.dimensions == 1 ? "" : "s");
    int64_t rows = header.shape[0], cols = header.shape[1], count;
    size_t data_size;
    if (__builtin_mul_overflow(rows, cols, &count) || __builtin_mul_overflow(count, sizeof(float), &data_size))
        return fail("%s says it is %lld x %lld, more than any memory holds", path, (long long)rows, (long long)cols);
    const unsigned char *data = bytes + prefix + length;
    size_t present = size - prefix - length;
    if (present < data_size)
        return fail("%s is cut short: a %lld x %lld float32 matrix takes %zu bytes, the file has %zu", path,
                    (long long)rows, (long long)cols, data_size, present);

    if ((uintptr_t)data % sizeof(float) && data_size) {
        matrix->copy = malloc(data_size);
        if (!matrix->copy) return fail("no memory to read %s (%zu bytes)", path, data_size);
        memcpy(matrix->copy, data, data_size);
    }
    matrix->data = matrix->copy ? matrix->copy : data_size ? (const float *)(const void *)data : NULL;
    matrix->rows = rows;
    matrix->cols = cols;
    matrix->row_stride = header.fortran_order ? 1 : cols;
    matrix->col_stride = header.fortran_order ? rows : 1;
    return EXIT_OK;
}

/* Everything that comes through the pipe `from`, which is closed, as a file in memory; -1: errno says why. */
static int collect(int from) {
    enum { PIECE = 1 << 20 };
    const int file = memfd_create("tessera-input", MFD_CLOEXEC);
    char *piece = malloc(PIECE);
    bool failed = file < 0 || !piece;
    while (!failed) {
        const ssize_t count = read(from, piece, PIECE);
        if (!count) break;
        failed = count < 0 ? errno != EINTR : write(file, piece, (size_t)count) != count;
    }
    const int why = errno;
    free(piece);
    close(from);
    if (failed && file >= 0) close(file);
    errno = why;
    return failed ? -1 : file;
}

int npy_open(npy_matrix *matrix, const char *path) {
    *matrix = (npy_matrix){0};
    const bool is_standard = strcmp(path, "-") == 0;
    if (is_standard) path = "standard input";
    int file = is_standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return fail("cannot open %s: %s", path, strerror(errno));
    struct stat about = {0};
    if (fstat(file, &about) == 0 && (S_ISFIFO(about.st_mode) || S_ISSOCK(about.st_mode)) &&
        ((file = collect(file)) < 0 || fstat(file, &about)))
        return fail("cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode)) {
        close(file);
        return fail("cannot read %s: it is %s, not a file", path, S_ISDIR(about.st_mode) ? "a folder" : "a device");
    }
    if (about.st_size == 0) {
        close(file);
        return fail("%s is empty; it must be a NumPy .npy file", path);
    }
    matrix->map_size = (size_t)about.st_size;
    matrix->map = mmap(NULL, matrix->map_size, PROT_READ, MAP_PRIVATE, file, 0);
    int why = errno;
    close(file);
    if (matrix->map == MAP_FAILED) return fail("cannot map %s into memory: %s", path, strerror(why));
    madvise(matrix->map, matrix->map_size, MADV_WILLNEED);
    int status = locate_matrix(matrix, path);
    if (status) npy_close(matrix);
    return status;
}

void npy_close(npy_matrix *matrix) {
    munmap(matrix->map, matrix->map_size);
    free(matrix->copy);
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* The whole prefix of a version 1.0 file, padded as NumPy pads it. Returns its length. */
static size_t make_prefix(char *text, size_t size, int64_t rows, int64_t cols) {
    memset(text, ' ', size);
    memcpy(text, magic, MAGIC_SIZE);
    int end = MAGIC_SIZE + 4;
    end += snprintf(text + end, size - (size_t)end, "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                    (long long)rows, (long long)cols);
    text[end] = ' '; /* where snprintf ended its string */
    size_t total = ((size_t)end + 1 + HEADER_ALIGNMENT - 1) / HEADER_ALIGNMENT * HEADER_ALIGNMENT;
    text[total - 1] = '\n';
    size_t length = total - MAGIC_SIZE - 4;
    text[MAGIC_SIZE] = 1;
    text[MAGIC_SIZE + 1] = 0;
    text[MAGIC_SIZE + 2] = (char)(length & 0xff);
    text[MAGIC_SIZE + 3] = (char)(length >> 8);
    return total;
}

int npy_create(npy_output *output, const char *path, int64_t rows, int64_t cols) {
    *output = (npy_output){.rows = rows, .cols = cols};
    return output_create(&output->file, path, (off_t)(rows * cols) * (off_t)sizeof(float));
}

int npy_commit(npy_output *output, const float *data) {
    char prefix[3 * HEADER_ALIGNMENT];
    size_t prefix_size = make_prefix(prefix, sizeof prefix, output->rows, output->cols);
    output_write(&output->file, prefix, prefix_size);
    output_write(&output->file, data, (size_t)output->rows * (size_t)output->cols * sizeof(float));
    return output_commit(&output->file);
}

void npy_discard(npy_output *output) { output_discard(&output->file); }
