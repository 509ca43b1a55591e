/* library.h: another BLAS, loaded at run time for its float32 product. */
#ifndef TESSERA_CLI_LIBRARY_H
#define TESSERA_CLI_LIBRARY_H

#include <fenv.h>

#include "shape.h"

typedef struct blas_symbol blas_symbol;

typedef struct library {
    const char *given; /* as the caller named it */
    const blas_symbol *symbol;
    void *function;
    char description[512]; /* the symbol, the file it was found in, and what that says of itself */
    fenv_t environment;    /* rounding and flushing as the library leaves them, for its calls alone */
} library;

/* Loads it and finds the product in it; it stays loaded. threads: how many it is asked to use, by the environment
 * variables of the libraries we know; 0: as it likes. EXIT_OK, or EXIT_FAILED having said why. */
int library_open(library *l, const char *path, int threads);

/* If the library crashes or exits in it, the process prints that and exits. */
void library_multiply(library *l, const stored_product *x);

#endif
