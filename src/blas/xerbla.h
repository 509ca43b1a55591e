/* xerbla.h: how an illegal argument is reported. */
#ifndef TESSERA_BLAS_XERBLA_H
#define TESSERA_BLAS_XERBLA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which of the standard's interfaces was called: it decides which handler hears of an error, and how. */
typedef enum blas_interface {
    FORTRAN,
    FORTRAN_64,        /* sgemm_64_ */
    CBLAS,             /* cblas_sgemm */
    CBLAS_64_OPENBLAS, /* cblas_sgemm64_ */
    CBLAS_64           /* cblas_sgemm_64 */
} blas_interface;

/* Reports an argument that the Fortran routine finds wrong, by its number there (transa is 1, ldc is 13), also if
 * cblas_sgemm called it; row_major: it did so with A and B exchanged. */
void blas_report_sgemm(blas_interface caller, bool row_major, int argument);

/* An argument of a CBLAS function, by its number there (the layout is 1; a Fortran routine has none), its name and the
 * value it has. */
typedef struct blas_check {
    bool illegal;
    int argument;
    const char *name;
    int64_t value;
} blas_check;

/* Reports the first that is illegal; true where none is. */
bool blas_all_legal(blas_interface caller, const char *routine, const blas_check checks[], size_t count);

/* What entry points compare arguments with. */
static inline int64_t blas_most(int64_t x, int64_t y) { return x > y ? x : y; }
static inline bool blas_is_transpose(int64_t value) { return value >= 111 && value <= 113; } /* CblasNoTrans.. */

#endif
