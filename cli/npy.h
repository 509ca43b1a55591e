/* npy.h: float32 matrices in NumPy's .npy files. Read through a memory map, or whole from a pipe ("-": standard input);
 * written whole or not at all. */
#ifndef TESSERA_CLI_NPY_H
#define TESSERA_CLI_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "output.h"

/* A matrix that was read. Element (i, j) is data[i*row_stride + j*col_stride]. */
typedef struct npy_matrix {
    const float *data;
    int64_t rows, cols;
    int64_t row_stride, col_stride; /* C and Fortran order differ in these alone */
    void *map;
    size_t map_size;
    float *copy; /* where the file's data is not aligned to a float; else NULL */
} npy_matrix;

/* EXIT_OK, or EXIT_FAILED having said what is wrong with the file; then there is nothing to close. */
int npy_open(npy_matrix *matrix, const char *path);
void npy_close(npy_matrix *matrix);

/* A matrix being written. */
typedef struct npy_output {
    output_file file;
    int64_t rows, cols;
} npy_output;

/* Creates the file and reserves its disk space, so that a full disk is noticed before the work. */
int npy_create(npy_output *output, const char *path, int64_t rows, int64_t cols);

/* Writes rows x cols floats in C order and gives the file its name. The output is closed even if that fails. */
int npy_commit(npy_output *output, const float *data);
void npy_discard(npy_output *output);

#endif
