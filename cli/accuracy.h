/* accuracy.h: float32 products judged by float64 ones, against the contract of tessera.h. */
#ifndef TESSERA_CLI_ACCURACY_H
#define TESSERA_CLI_ACCURACY_H

#include <stdbool.h>

#include "tessera.h"

/* Some rows and some columns of A*B, and of |A|*|B|, in float64. */
typedef struct exact_lines {
    int64_t m, n, k;
    int64_t row_count, col_count;
    int64_t *rows, *cols;        /* which */
    double *product, *magnitude; /* row_count x n, then col_count x m */
    double bound;                /* what each element's error may be, in units of 2^-24 times its magnitude */
    double tf32_error;           /* relative Frobenius error of the exact product of operands rounded to TF32 */
} exact_lines;

/* Picks one row in each band of row_step rows, and one column in each band of col_step columns (0: none), at random, so
 * that no tile of C larger than the bands goes unseen; a step of 1 takes all. tf32: find tf32_error as well, at twice
 * the work. EXIT_OK or EXIT_FAILED. */
int exact_make(exact_lines *exact, const tsr_operand *a, const tsr_operand *b, int64_t row_step, int64_t col_step,
               bool tf32, uint64_t seed);
void exact_free(exact_lines *exact);

/* Makes alpha*A*B + beta*C of A*B, for C as it is before; with alpha = 0 whatever A*B was is forgotten. */
void exact_scale(exact_lines *exact, float alpha, float beta, const tsr_result *c);

/* How far a product is from the exact one, on those lines. */
typedef struct judgement {
    double worst;      /* largest |C - AB| in units of 2^-24 (|A||B|), past what underflow is allowed to lose */
    double relative;   /* Frobenius norm of C - AB over that of AB, finite elements alone */
    double bound;      /* what `worst` may be at TSR_IEEE and TSR_FP32: K+2, or K+4 with alpha and beta */
    double tf32_limit; /* what `relative` may be at TSR_TF32 */
    int64_t inexact;   /* elements that are not AB rounded to float32 */
    int64_t misplaced; /* NaN or Inf where IEEE arithmetic has none, or the reverse */
    int64_t row, col;  /* of the first misplaced element, else of the worst */
    double got, expected;
} judgement;

judgement judge(const exact_lines *exact, const tsr_result *c);

/* How much of what the contract allows is used: 1 is all of it. */
double contract_share(const judgement *j, tsr_precision precision);
bool within_contract(const judgement *j, tsr_precision precision);

#endif
