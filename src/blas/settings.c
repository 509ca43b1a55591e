/* settings.c: TESSERA_NUM_THREADS (or OMP_NUM_THREADS), TESSERA_DEVICE, TESSERA_PRECISION, TESSERA_BATCH_INVARIANT,
 * TESSERA_VERBOSE. */
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 1024, MOST_GPUS = 1024 };

/* The variable's text; NULL where it is not set, or empty. */
static const char *value_of(const char *variable) {
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

static void complain(const char *variable, const char *value, const char *expected) {
    fprintf(stderr, "libtessera_blas: %s is \"%.40s\", which is not %s: ignored\n", variable, value, expected);
}

/* The number that `text` begins with, from `least` to `most`; -1 where there is none. *end: what follows it. */
static int number_at(const char *text, const char **end, int least, int most) {
    char *after;
    const long number = strtol(text, &after, 10);
    *end = after;
    return after == text || number < least || number > most ? -1 : (int)number;
}

/* OMP_NUM_THREADS may be a list, one number for each level of nesting: the first is the one for us. */
static int threads_from(const char *variable, bool list) {
    const char *value = value_of(variable), *end;
    if (!value) return 0;
    const int threads = number_at(value, &end, 1, MOST_THREADS);
    if (threads > 0 && (!*end || (list && *end == ','))) return threads;
    complain(variable, value, "a number of threads from 1 to 1024");
    return 0;
}

static void read_device(blas_settings *settings) {
    const char *value = value_of("TESSERA_DEVICE"), *end = "";
    if (!value || !strcmp(value, "auto")) return;
    if (!strcmp(value, "cpu")) {
        settings->device = BLAS_CPU;
        return;
    }
    int gpu = 0;
    if (strcmp(value, "cuda")) gpu = strncmp(value, "cuda:", 5) ? -1 : number_at(value + 5, &end, 0, MOST_GPUS);
    if (gpu < 0 || *end) {
        complain("TESSERA_DEVICE", value, "auto, cpu, cuda or cuda:N");
        return;
    }
    settings->device = BLAS_CUDA;
    settings->gpu = gpu;
}

static tsr_precision read_precision(void) {
    const char *value = value_of("TESSERA_PRECISION");
    if (!value) return TSR_FP32;
    for (tsr_precision precision = TSR_FP32; precision <= TSR_TF32; precision++)
        if (!strcmp(value, tsr_precision_name(precision))) return precision;
    complain("TESSERA_PRECISION", value, "fp32, ieee or tf32");
    return TSR_FP32;
}

blas_settings blas_settings_read(void) {
    blas_settings settings = {.precision = read_precision()};
    settings.threads = threads_from("TESSERA_NUM_THREADS", false);
    if (!settings.threads) settings.threads = threads_from("OMP_NUM_THREADS", true);
    read_device(&settings);
    /* `auto` would choose the device by the size of the batch, and with it the bits. */
    const char *invariant = value_of("TESSERA_BATCH_INVARIANT");
    if (invariant && !strcmp(invariant, "1") && settings.device == BLAS_AUTO) settings.device = BLAS_CPU;
    const char *verbose = value_of("TESSERA_VERBOSE");
    settings.verbose = verbose && strcmp(verbose, "0");
    return settings;
}

void blas_device_print(const blas_settings *settings, char text[16]) {
    if (settings->device == BLAS_CUDA)
        snprintf(text, 16, "cuda:%d", settings->gpu);
    else
        snprintf(text, 16, "%s", settings->device == BLAS_CPU ? "cpu" : "auto");
}
