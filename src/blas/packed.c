/* packed.c: products with operands packed beforehand, with oneMKL's arguments.
 *
 * cblas_sgemm_pack writes a header into the caller's memory, and behind it alpha*op(src) as the CPU engine packs it;
 * products with it are computed on the CPU. A column-major product is computed as that of the transposes, so A is then
 * the operand on the right.
 */
#include <stdlib.h>

#include "blas.h"
#include "problem.h"
#include "rounding.h"
#include "tessera_blas.h"
#include "xerbla.h"

enum { HEADER_ALIGNMENT = 64 };

/* At the first aligned address of the caller's memory. */
struct packed_header {
    _Alignas(HEADER_ALIGNMENT) tsr_operand operand; /* its data are what follows the header */
    CBLAS_LAYOUT layout;
    CBLAS_IDENTIFIER identifier;
    int64_t rows, cols; /* of op(A) or op(B) */
};

static struct packed_header *header_in(const float *memory) {
    return (struct packed_header *)(((uintptr_t)memory + HEADER_ALIGNMENT - 1) / HEADER_ALIGNMENT * HEADER_ALIGNMENT);
}

/* The operand as a product with C row-major sees it, and on which side. */
static tsr_side side_of(CBLAS_LAYOUT layout, CBLAS_IDENTIFIER identifier) {
    return (layout == CblasRowMajor) == (identifier == CblasAMatrix) ? TSR_LEFT : TSR_RIGHT;
}

/* ---- Size -------------------------------------------------------------------------------------------------------- */

static size_t pack_get_size(blas_interface caller, CBLAS_IDENTIFIER identifier, int64_t m, int64_t n, int64_t k) {
    const blas_check checks[] = {
        {identifier != CblasAMatrix && identifier != CblasBMatrix, 1, "identifier", identifier},
        {m < 0, 2, "M", m},
        {n < 0, 3, "N", n},
        {k < 0, 4, "K", k},
    };
    if (!blas_all_legal(caller, "cblas_sgemm_pack_get_size", checks, sizeof checks / sizeof checks[0])) return 0;
    /* The layout, which decides the side, is not known yet: the larger of the two sizes. */
    const int64_t lanes = identifier == CblasAMatrix ? m : n;
    const size_t left = tsr_pack_size(blas_packing_context(), TSR_LEFT, lanes, k);
    const size_t right = tsr_pack_size(blas_packing_context(), TSR_RIGHT, k, lanes);
    if (!left || !right) return 0; /* more than there are addresses, or no memory for a context */
    return HEADER_ALIGNMENT - 1 + sizeof(struct packed_header) + (left > right ? left : right);
}

size_t cblas_sgemm_pack_get_size(CBLAS_IDENTIFIER identifier, int m, int n, int k) {
    return pack_get_size(CBLAS, identifier, m, n, k);
}

size_t cblas_sgemm_pack_get_size_64(CBLAS_IDENTIFIER identifier, int64_t m, int64_t n, int64_t k) {
    return pack_get_size(CBLAS_64, identifier, m, n, k);
}

/* oneMKL's older calls, which take the memory themselves. */
float *cblas_sgemm_alloc(CBLAS_IDENTIFIER identifier, int m, int n, int k) {
    const size_t size = pack_get_size(CBLAS, identifier, m, n, k);
    return size ? malloc(size) : NULL;
}

float *cblas_sgemm_alloc_64(CBLAS_IDENTIFIER identifier, int64_t m, int64_t n, int64_t k) {
    const size_t size = pack_get_size(CBLAS_64, identifier, m, n, k);
    return size ? malloc(size) : NULL;
}

void cblas_sgemm_free(float *dest) { free(dest); }
void cblas_sgemm_free_64(float *dest) { free(dest); }

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

/* factor*operand, row-major, where there is no context to pack it in: products read it as an ordinary matrix. */
static tsr_operand copy_scaled(float *memory, float factor, const tsr_operand *o) {
    const uint64_t mode = cpu_rounding_begin();
    for (int64_t i = 0; i < o->rows; i++)
        for (int64_t j = 0; j < o->cols; j++)
            memory[i * o->cols + j] = is_zero(factor) ? 0 : factor * o->data[i * o->row_stride + j * o->col_stride];
    cpu_rounding_end(mode);
    return (tsr_operand){memory, o->rows, o->cols, o->cols, 1, 0, NULL};
}

/* The operand of later products, in `memory`. */
static tsr_operand pack_operand(void *memory, tsr_side side, float factor, const tsr_operand *operand) {
    tsr_context *context = blas_packing_context();
    if (!context) return copy_scaled(memory, factor, operand);
    tsr_operand packed = *operand;
    tsr_packed *form;
    if (tsr_pack_at(&form, memory, context, side, factor, operand)) blas_give_up(tsr_last_error());
    packed.data = memory;
    packed.packed = form;
    return packed;
}

static void pack(blas_interface caller, CBLAS_LAYOUT layout, CBLAS_IDENTIFIER identifier, CBLAS_TRANSPOSE trans,
                 int64_t m, int64_t n, int64_t k, float alpha, const float *src, int64_t ld, float *dest) {
    const bool row_major = layout == CblasRowMajor, is_a = identifier == CblasAMatrix;
    const int64_t rows = is_a ? m : k, cols = is_a ? k : n; /* of op(src) */
    const blas_check checks[] = {
        {!row_major && layout != CblasColMajor, 1, "layout", layout},
        {!is_a && identifier != CblasBMatrix, 2, "identifier", identifier},
        {!blas_is_transpose(trans), 3, "trans", trans},
        {m < 0, 4, "M", m},
        {n < 0, 5, "N", n},
        {k < 0, 6, "K", k},
        {ld < blas_most(1, (trans == CblasNoTrans) == row_major ? cols : rows), 9, "ld", ld},
    };
    if (!blas_all_legal(caller, "cblas_sgemm_pack", checks, sizeof checks / sizeof checks[0])) return;
    struct packed_header *header = header_in(dest);
    *header = (struct packed_header){.layout = layout, .identifier = identifier, .rows = rows, .cols = cols};
    /* op(src) of a row-major product, and its transpose of a column-major one, are read alike. */
    const bool by_rows = trans == CblasNoTrans;
    tsr_operand operand = {.data = src,
                           .rows = row_major ? rows : cols,
                           .cols = row_major ? cols : rows,
                           .row_stride = by_rows ? ld : 1,
                           .col_stride = by_rows ? 1 : ld};
    header->operand = pack_operand(header + 1, side_of(layout, identifier), alpha, &operand);
}

void cblas_sgemm_pack(CBLAS_LAYOUT layout, CBLAS_IDENTIFIER identifier, CBLAS_TRANSPOSE trans, int m, int n, int k,
                      float alpha, const float *src, int ld, float *dest) {
    pack(CBLAS, layout, identifier, trans, m, n, k, alpha, src, ld, dest);
}

void cblas_sgemm_pack_64(CBLAS_LAYOUT layout, CBLAS_IDENTIFIER identifier, CBLAS_TRANSPOSE trans, int64_t m, int64_t n,
                         int64_t k, float alpha, const float *src, int64_t ld, float *dest) {
    pack(CBLAS_64, layout, identifier, trans, m, n, k, alpha, src, ld, dest);
}

/* ---- Computing --------------------------------------------------------------------------------------------------- */

/* Whether the header, if there is one, is of another operand than this. */
static bool is_another(const struct packed_header *header, CBLAS_LAYOUT layout, CBLAS_IDENTIFIER identifier,
                       int64_t rows, int64_t cols) {
    return header && (header->layout != layout || header->identifier != identifier || header->rows != rows ||
                      header->cols != cols);
}

static void compute(blas_interface caller, CBLAS_LAYOUT layout, int transa, int transb, int64_t m, int64_t n, int64_t k,
                    const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    const bool row_major = layout == CblasRowMajor;
    const struct packed_header *packed_a = transa == CblasPacked ? header_in(a) : NULL;
    const struct packed_header *packed_b = transb == CblasPacked ? header_in(b) : NULL;
    const blas_check checks[] = {
        {!row_major && layout != CblasColMajor, 1, "layout", layout},
        {!packed_a && !blas_is_transpose(transa), 2, "TransA", transa},
        {!packed_b && !blas_is_transpose(transb), 3, "TransB", transb},
        {m < 0, 4, "M", m},
        {n < 0, 5, "N", n},
        {k < 0, 6, "K", k},
        {is_another(packed_a, layout, CblasAMatrix, m, k), 7, "A", transa},
        {!packed_a && lda < blas_most(1, (transa == CblasNoTrans) == row_major ? k : m), 8, "lda", lda},
        {is_another(packed_b, layout, CblasBMatrix, k, n), 9, "B", transb},
        {!packed_b && ldb < blas_most(1, (transb == CblasNoTrans) == row_major ? n : k), 10, "ldb", ldb},
        {ldc < blas_most(1, row_major ? n : m), 13, "ldc", ldc},
    };
    if (!blas_all_legal(caller, "cblas_sgemm_compute", checks, sizeof checks / sizeof checks[0])) return;
    const bool ta = transa != CblasNoTrans, tb = transb != CblasNoTrans;
    blas_product p = {ta, tb, m, n, k, 1, beta, a, b, c, lda, ldb, ldc, 1, 0, 0, 0, NULL, NULL};
    if (packed_a) p.packed_a = &packed_a->operand;
    if (packed_b) p.packed_b = &packed_b->operand;
    if (row_major) p = blas_row_major(&p);
    blas_multiply(&p);
}

void cblas_sgemm_compute(CBLAS_LAYOUT layout, int transa, int transb, int m, int n, int k, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc) {
    compute(CBLAS, layout, transa, transb, m, n, k, a, lda, b, ldb, beta, c, ldc);
}

void cblas_sgemm_compute_64(CBLAS_LAYOUT layout, int transa, int transb, int64_t m, int64_t n, int64_t k,
                            const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                            int64_t ldc) {
    compute(CBLAS_64, layout, transa, transb, m, n, k, a, lda, b, ldb, beta, c, ldc);
}
