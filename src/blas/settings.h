/* settings.h: what the environment asks of libtessera_blas. */
#ifndef TESSERA_BLAS_SETTINGS_H
#define TESSERA_BLAS_SETTINGS_H

#include <stdbool.h>

#include "tessera.h"

typedef enum blas_device { BLAS_AUTO, BLAS_CPU, BLAS_CUDA } blas_device;

typedef struct blas_settings {
    int threads; /* 0: as many as the process has cores to run on */
    blas_device device;
    int gpu; /* BLAS_AUTO and BLAS_CUDA: which */
    tsr_precision precision;
    bool verbose;
} blas_settings;

/* Reads the environment. A value that makes no sense is named on standard error and ignored. */
blas_settings blas_settings_read(void);

/* "auto", "cpu" or "cuda:0". */
void blas_device_print(const blas_settings *settings, char text[16]);

#endif
