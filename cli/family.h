/* family.h: the matrices and sizes that the numerical contract is put to the test with. */
#ifndef TESSERA_CLI_FAMILY_H
#define TESSERA_CLI_FAMILY_H

#include <stdbool.h>
#include <stdint.h>

#include "random.h"

/* What it says about an engine if it breaks the contract in such a family; docs/internals/numerics.md has the grades
 * that follow. */
typedef enum family_kind {
    ORDINARY, /* well scaled and finite: what any float32 product gets right */
    HARD,     /* finite, but badly scaled or cancelling */
    SPECIAL   /* zeros, subnormals, the ends of the range, NaN and Inf */
} family_kind;

typedef struct family {
    const char *name;
    family_kind kind;
    void (*fill)(random_source *r, float *a, float *b, int64_t m, int64_t n, int64_t k); /* m x k and k x n, C order */
    bool exact;        /* every result must be the exact one */
    bool skipped_tf32; /* tf32 promises nothing here */
    float alpha, beta; /* C = alpha*A*B + beta*C; with beta = 0, C holds NaN before */
} family;

enum { FAMILY_TOTAL = 15 };
extern const family families[FAMILY_TOTAL];

typedef enum scope { QUICK, FULL, GPU } scope; /* each run covers its own scope and those before it */

typedef struct shape {
    int64_t m, n, k;
    int64_t gap; /* floats between the end of a stored row and the next */
    scope scope;
} shape;

enum { SHAPE_TOTAL = 11 };
extern const shape shapes[SHAPE_TOTAL];

int shapes_within(scope limit);

#endif
