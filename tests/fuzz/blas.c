/* blas.c: sgemm_, cblas_sgemm, batches and packed products with any arguments. An illegal one must be reported by its
 * number, to the handler that the reference would call, and leave C as it was; what is legal must be computed exactly.
 * Operands lie between guard pages. */
#include <string.h>

#include "fuzz.h"
#include "tessera_blas.h"

/* ---- The handlers, which the library looks up -------------------------------------------------------------------- */

static int reports, reported; /* how often, and the argument's number */

#define HANDLER __attribute__((visibility("default"), used))
HANDLER void xerbla_(const char *routine, const int *argument, size_t length);
HANDLER void xerbla_64_(const char *routine, const int64_t *argument, size_t length);
HANDLER void cblas_xerbla(int argument, const char *routine, const char *format, ...);
HANDLER void cblas_xerbla_64(int64_t argument, const char *routine, const char *format, ...);

void xerbla_(const char *routine, const int *argument, size_t length) {
    EXPECT(length == 6 && !memcmp(routine, "SGEMM ", 6), "%.*s", (int)length, routine);
    reports++;
    reported = *argument;
}

void xerbla_64_(const char *routine, const int64_t *argument, size_t length) {
    xerbla_(routine, &(int){(int)*argument}, length);
}

void cblas_xerbla(int argument, const char *routine, const char *format, ...) {
    EXPECT(!strncmp(routine, "cblas_sgemm", 11) && format, "%s", routine);
    reports++;
    reported = argument;
}

void cblas_xerbla_64(int64_t argument, const char *routine, const char *format, ...) {
    cblas_xerbla((int)argument, routine, "%s", format);
}

/* ---- A product --------------------------------------------------------------------------------------------------- */

typedef struct product {
    bool row_major, transpose_a, transpose_b;
    int64_t m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c;
    float alpha, beta;
    arena a, b, c;
    float *before; /* C's memory */
} product;

static int64_t most(int64_t x, int64_t y) { return x > y ? x : y; }

static size_t floats_of(int64_t run, int64_t runs, int64_t ld, int64_t batch, int64_t stride) {
    if (run <= 0 || runs <= 0 || batch <= 0) return 0;
    return (size_t)((batch - 1) * stride + (runs - 1) * ld + run);
}

static bool is_by_rows(bool row_major, bool transposed) { return row_major != transposed; }

static void fill(arena *x) {
    static uint32_t state = 1;
    for (size_t i = 0; i < x->floats; i++) {
        state = state * 1664525 + 1013904223;
        x->data[i] = (float)((int)(state >> 24) % 17 - 8);
    }
}

static float at(const arena *x, bool by_rows, int64_t ld, int64_t i, int64_t j) {
    return x->data[by_rows ? i * ld + j : j * ld + i];
}

static void check_product(const product *p) {
    uint8_t *written = calloc(p->c.floats + 1, 1);
    if (!written) abort();
    for (int64_t item = 0; item < p->batch; item++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++) {
                const arena a = {.data = p->a.data + item * p->stride_a}, b = {.data = p->b.data + item * p->stride_b};
                double sum = 0;
                for (int64_t l = 0; l < p->k; l++)
                    sum += (double)at(&a, is_by_rows(p->row_major, p->transpose_a), p->lda, i, l) *
                           (double)at(&b, is_by_rows(p->row_major, p->transpose_b), p->ldb, l, j);
                const int64_t here = item * p->stride_c + (p->row_major ? i * p->ldc + j : j * p->ldc + i);
                const double expected = (double)p->alpha * sum +
                                        (p->beta == 0 ? 0 : (double)(p->beta * p->before[here]));
                EXPECT((double)p->c.data[here] == expected, "element (%lld, %lld) is %g, not %g", (long long)i,
                       (long long)j, (double)p->c.data[here], expected);
                written[here] = 1;
            }
    for (size_t i = 0; i < p->c.floats; i++)
        EXPECT(written[i] || p->c.data[i] == p->before[i], "float %zu beside C was written", i);
    free(written);
}

/* What a letter, an enumerator or a size becomes when it is spoilt. */
static int64_t spoil(choices *c) {
    static const int64_t values[] = {-1, 0, INT32_MIN, INT32_MAX, 7, 99, -1000000};
    return values[choose(c, 0, sizeof values / sizeof values[0] - 1)];
}

static void call_fortran(const product *p, char ta, char tb, bool wide) {
    const int64_t m = p->m, n = p->n, k = p->k, lda = p->lda, ldb = p->ldb, ldc = p->ldc;
    if (wide)
        sgemm_64_(&ta, &tb, &m, &n, &k, &p->alpha, p->a.data, &lda, p->b.data, &ldb, &p->beta, p->c.data, &ldc);
    else
        sgemm_(&ta, &tb, &(int){(int)m}, &(int){(int)n}, &(int){(int)k}, &p->alpha, p->a.data, &(int){(int)lda},
               p->b.data, &(int){(int)ldb}, &p->beta, p->c.data, &(int){(int)ldc});
}

static void call_cblas(const product *p, int layout, int ta, int tb, bool wide) {
    if (wide)
        cblas_sgemm_64((CBLAS_LAYOUT)layout, (CBLAS_TRANSPOSE)ta, (CBLAS_TRANSPOSE)tb, p->m, p->n, p->k, p->alpha,
                       p->a.data, p->lda, p->b.data, p->ldb, p->beta, p->c.data, p->ldc);
    else
        cblas_sgemm((CBLAS_LAYOUT)layout, (CBLAS_TRANSPOSE)ta, (CBLAS_TRANSPOSE)tb, (int)p->m, (int)p->n, (int)p->k,
                    p->alpha, p->a.data, (int)p->lda, p->b.data, (int)p->ldb, p->beta, p->c.data, (int)p->ldc);
}

static void call_batch(const product *p, int layout, int ta, int tb) {
    cblas_sgemm_batch_strided_64((CBLAS_LAYOUT)layout, (CBLAS_TRANSPOSE)ta, (CBLAS_TRANSPOSE)tb, p->m, p->n, p->k,
                                 p->alpha, p->a.data, p->lda, p->stride_a, p->b.data, p->ldb, p->stride_b, p->beta,
                                 p->c.data, p->ldc, p->stride_c, p->batch);
}

/* A packed, into memory of exactly the size that the library asks for. */
static void call_packed(const product *p, int layout, int ta, int tb) {
    const size_t bytes = cblas_sgemm_pack_get_size_64(CblasAMatrix, p->m, p->n, p->k);
    arena packed = arena_make((bytes + 3) / 4, true);
    cblas_sgemm_pack_64((CBLAS_LAYOUT)layout, CblasAMatrix, (CBLAS_TRANSPOSE)ta, p->m, p->n, p->k, p->alpha, p->a.data,
                        p->lda, packed.data);
    arena_protect(&packed);
    cblas_sgemm_compute_64((CBLAS_LAYOUT)layout, CblasPacked, tb, p->m, p->n, p->k, packed.data, 1, p->b.data, p->ldb,
                           p->beta, p->c.data, p->ldc);
    arena_free(&packed);
}

/* Which argument is spoilt. */
enum {
    SPOIL_NOTHING,
    SPOIL_LAYOUT,
    SPOIL_TRANSA,
    SPOIL_TRANSB,
    SPOIL_M,
    SPOIL_N,
    SPOIL_K,
    SPOIL_LDA,
    SPOIL_LDB,
    SPOIL_LDC
};

/* What the reference reports: cblas_sgemm finds layout and transposes by itself; the rest is found by sgemm, which gets
 * A and B exchanged where C is row-major. */
static int sgemm_number(const product *p, bool exchanged) {
    const bool ta = exchanged ? p->transpose_b : p->transpose_a, tb = exchanged ? p->transpose_a : p->transpose_b;
    const int64_t m = exchanged ? p->n : p->m, n = exchanged ? p->m : p->n;
    const int64_t lda = exchanged ? p->ldb : p->lda, ldb = exchanged ? p->lda : p->ldb;
    return m < 0                          ? 3
           : n < 0                        ? 4
           : p->k < 0                     ? 5
           : lda < most(1, ta ? p->k : m) ? 8
           : ldb < most(1, tb ? n : p->k) ? 10
           : p->ldc < most(1, m)          ? 13
                                          : 0;
}

static int batch_number(const product *p) {
    const int64_t run_a = is_by_rows(p->row_major, p->transpose_a) ? p->k : p->m;
    const int64_t run_b = is_by_rows(p->row_major, p->transpose_b) ? p->n : p->k;
    const int64_t run_c = p->row_major ? p->n : p->m;
    return p->m < 0                  ? 4
           : p->n < 0                ? 5
           : p->k < 0                ? 6
           : p->lda < most(1, run_a) ? 9
           : p->ldb < most(1, run_b) ? 12
           : p->ldc < most(1, run_c) ? 16
                                     : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const float factors[] = {1, 0, -1, 2, 0.5f};
    static const char letters[] = "NnTtCc";
    choices c = {data, data + size};
    product p = {.row_major = choose(&c, 0, 1), .transpose_a = choose(&c, 0, 1), .transpose_b = choose(&c, 0, 1)};
    enum { FORTRAN, CBLAS, BATCH, PACKED };
    const int64_t entry = choose(&c, 0, 3);
    const bool wide = choose(&c, 0, 1);
    if (entry == FORTRAN) p.row_major = false;
    p.m = choose(&c, 0, 70), p.n = choose(&c, 0, 70), p.k = choose(&c, 0, 70);
    const int64_t runs_a = is_by_rows(p.row_major, p.transpose_a) ? p.m : p.k, run_a = p.m + p.k - runs_a;
    const int64_t runs_b = is_by_rows(p.row_major, p.transpose_b) ? p.k : p.n, run_b = p.k + p.n - runs_b;
    const int64_t runs_c = p.row_major ? p.m : p.n, run_c = p.m + p.n - runs_c;
    p.lda = most(1, run_a) + choose(&c, 0, 3), p.ldb = most(1, run_b) + choose(&c, 0, 3);
    p.ldc = most(1, run_c) + choose(&c, 0, 3);
    p.batch = entry == BATCH ? choose(&c, 0, 3) : 1;
    p.stride_a = choose(&c, 0, 1) * runs_a * p.lda, p.stride_b = choose(&c, 0, 1) * runs_b * p.ldb;
    p.stride_c = runs_c * p.ldc + choose(&c, 0, 5);
    p.alpha = factors[choose(&c, 0, 4)], p.beta = factors[choose(&c, 0, 4)];
    p.a = arena_make(floats_of(run_a, runs_a, p.lda, p.batch, p.stride_a), choose(&c, 0, 1));
    p.b = arena_make(floats_of(run_b, runs_b, p.ldb, p.batch, p.stride_b), choose(&c, 0, 1));
    p.c = arena_make(floats_of(run_c, runs_c, p.ldc, p.batch, p.stride_c), choose(&c, 0, 1));
    fill(&p.a), fill(&p.b), fill(&p.c);
    p.before = malloc(p.c.floats * sizeof(float) + 1);
    if (!p.before) abort();
    if (p.c.floats) memcpy(p.before, p.c.data, p.c.floats * sizeof(float));
    arena_protect(&p.a), arena_protect(&p.b);

    char letter_a = letters[(p.transpose_a ? 2 : 0) + choose(&c, 0, 1)];
    char letter_b = letters[(p.transpose_b ? 2 : 0) + choose(&c, 0, 1)];
    int layout = p.row_major ? CblasRowMajor : CblasColMajor;
    int ta = p.transpose_a ? CblasTrans : CblasNoTrans, tb = p.transpose_b ? CblasTrans : CblasNoTrans;
    const int64_t spoilt = entry == PACKED ? SPOIL_NOTHING : choose(&c, 0, 12);
    const int64_t value = spoil(&c);
    int expected = 0;
    switch (spoilt) {
    case SPOIL_LAYOUT: layout = (int)value, expected = entry == FORTRAN ? 0 : 1; break;
    case SPOIL_TRANSA: ta = (int)value, letter_a = (char)('0' + value % 10), expected = entry == FORTRAN ? 1 : 2; break;
    case SPOIL_TRANSB: tb = (int)value, letter_b = (char)('0' + value % 10), expected = entry == FORTRAN ? 2 : 3; break;
    case SPOIL_M: p.m = value < 0 ? value : -1; break;
    case SPOIL_N: p.n = value < 0 ? value : -1; break;
    case SPOIL_K: p.k = value < 0 ? value : -1; break;
    case SPOIL_LDA: p.lda = value <= 0 ? value : 0; break;
    case SPOIL_LDB: p.ldb = value <= 0 ? value : 0; break;
    case SPOIL_LDC: p.ldc = value <= 0 ? value : 0; break;
    default: break;
    }
    if (!expected && entry == BATCH) expected = batch_number(&p);
    if (!expected && entry != BATCH) expected = sgemm_number(&p, p.row_major);
    reports = 0;
    switch (entry) {
    case FORTRAN: call_fortran(&p, letter_a, letter_b, wide); break;
    case CBLAS: call_cblas(&p, layout, ta, tb, wide); break;
    case BATCH: call_batch(&p, layout, ta, tb); break;
    case PACKED: call_packed(&p, layout, ta, tb); break;
    }
    EXPECT(reports == (expected != 0), "%d reports, the last of argument %d; expected %d", reports, reported, expected);
    if (expected) {
        EXPECT(reported == expected, "argument %d is reported, not %d", reported, expected);
        EXPECT(!p.c.floats || !memcmp(p.c.data, p.before, p.c.floats * sizeof(float)),
               "C was written, argument %d is illegal", expected);
    } else {
        check_product(&p);
    }
    free(p.before);
    arena_free(&p.a), arena_free(&p.b), arena_free(&p.c);
    return 0;
}
