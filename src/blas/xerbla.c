/* xerbla.c: errors as the reference implementation reports them.
 *
 * The handlers are the program's: xerbla_ and cblas_xerbla are looked up, not defined here. So errors reach the
 * handlers that the program, or another BLAS of its, defines; only those of a plug-in loaded with RTLD_LOCAL cannot be
 * found. Where there is none, the message goes to standard error.
 *
 * As in the reference, cblas_sgemm itself reports a wrong layout or transpose, to cblas_xerbla. Everything else is
 * found by sgemm, which it calls, and goes to xerbla_, whose CBLAS form adds one to the number and calls cblas_xerbla.
 * A row-major product exchanges A and B before that, so the numbers are those of the exchanged arguments; handlers read
 * RowMajorStrg to know.
 */
#include "xerbla.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The reference's state while a CBLAS function runs, read by handlers. Set while an error is reported, and only
 * then. */
__attribute__((visibility("default"), weak)) int RowMajorStrg, CBLAS_CallFromC;

/* What a handler's address is called as. */
typedef union handler {
    void *address;
    void (*xerbla)(const char *routine, const int *argument, size_t length);
    void (*xerbla_64)(const char *routine, const int64_t *argument, size_t length);
    void (*cblas_xerbla)(int argument, const char *routine, const char *format, ...);
    void (*cblas_xerbla_64)(int64_t argument, const char *routine, const char *format, ...);
} handler;

/* References that may stay open: they make linkers export what a program defines itself. */
#define IF_ANY __attribute__((visibility("default"), weak))
extern IF_ANY void xerbla_(const char *routine, const int *argument, size_t length);
extern IF_ANY void xerbla_64_(const char *routine, const int64_t *argument, size_t length);
extern IF_ANY void cblas_xerbla(int argument, const char *routine, const char *format, ...);
extern IF_ANY void cblas_xerbla64_(int64_t argument, const char *routine, const char *format, ...);
extern IF_ANY void cblas_xerbla_64(int64_t argument, const char *routine, const char *format, ...);

/* What was there when this library was loaded, or what has been loaded since. */
static handler find(handler at_load, const char *name) {
    return at_load.address ? at_load : (handler){.address = dlsym(RTLD_DEFAULT, name)};
}

static bool is_cblas(blas_interface caller) { return caller >= CBLAS; }

/* False where there is no handler. */
static bool tell_cblas_xerbla(blas_interface caller, int argument, const char *routine, const char *text) {
    handler found = find((handler){.cblas_xerbla = cblas_xerbla}, "cblas_xerbla");
    if (caller == CBLAS_64) found = find((handler){.cblas_xerbla_64 = cblas_xerbla_64}, "cblas_xerbla_64");
    if (caller == CBLAS_64_OPENBLAS) found = find((handler){.cblas_xerbla_64 = cblas_xerbla64_}, "cblas_xerbla64_");
    if (!found.address) return false;
    if (caller == CBLAS)
        found.cblas_xerbla(argument, routine, "%s", text);
    else
        found.cblas_xerbla_64(argument, routine, "%s", text);
    return true;
}

static bool tell_xerbla(blas_interface caller, int argument, const char *routine) {
    const bool wide = caller != FORTRAN && caller != CBLAS;
    const handler found = wide ? find((handler){.xerbla_64 = xerbla_64_}, "xerbla_64_")
                               : find((handler){.xerbla = xerbla_}, "xerbla_");
    if (!found.address) return false;
    if (wide)
        found.xerbla_64(routine, &(int64_t){argument}, strlen(routine));
    else
        found.xerbla(routine, &argument, strlen(routine));
    return true;
}

/* The number that the argument has in the call as it was made: the exchange undone, and the layout counted. */
static int number_in_cblas(int argument, bool row_major) {
    static const struct { int told, meant; } exchanged[] = {{4, 5}, {5, 4}, {9, 11}, {11, 9}};
    const int number = argument + 1;
    for (size_t i = 0; row_major && i < sizeof exchanged / sizeof exchanged[0]; i++)
        if (exchanged[i].told == number) return exchanged[i].meant;
    return number;
}

void blas_report_sgemm(blas_interface caller, bool row_major, int argument) {
    CBLAS_CallFromC = is_cblas(caller);
    RowMajorStrg = row_major;
    if (!tell_xerbla(caller, argument, "SGEMM ") && /* six characters, as Fortran names were */
        !(is_cblas(caller) && tell_cblas_xerbla(caller, argument + 1, "cblas_sgemm", ""))) {
        if (is_cblas(caller))
            fprintf(stderr, "Parameter %d to routine cblas_sgemm was incorrect\n",
                    number_in_cblas(argument, row_major));
        else
            fprintf(stderr, " ** On entry to SGEMM  parameter number %2d had an illegal value\n", argument);
    }
    CBLAS_CallFromC = RowMajorStrg = 0;
}

/* Of a Fortran routine, whose first argument is the second of its CBLAS form. */
static void report_to_fortran(blas_interface caller, int argument, const char *routine) {
    if (!tell_xerbla(caller, argument - 1, routine))
        fprintf(stderr, " ** On entry to %s parameter number %2d had an illegal value\n", routine, argument - 1);
}

bool blas_all_legal(blas_interface caller, const char *routine, const blas_check checks[], size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!checks[i].illegal) continue;
        if (!is_cblas(caller)) {
            report_to_fortran(caller, checks[i].argument, routine);
            return false;
        }
        char text[80];
        snprintf(text, sizeof text, "Illegal %s setting, %lld\n", checks[i].name, (long long)checks[i].value);
        CBLAS_CallFromC = 1;
        if (!tell_cblas_xerbla(caller, checks[i].argument, routine, text))
            fprintf(stderr, "Parameter %d to routine %s was incorrect\n%s", checks[i].argument, routine, text);
        CBLAS_CallFromC = 0;
        return false;
    }
    return true;
}
