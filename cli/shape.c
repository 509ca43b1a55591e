/* shape.c: shapes, layouts and memory of a product. */
#include "shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"

/* Beyond it the bytes of even one row overflow. */
static const int64_t largest_size = INT64_MAX / 16;

int shape_parse(product_shape *p, const char *m, const char *n, const char *k) {
    int status;
    if ((status = parse_count(&p->m, "M", m, 0, largest_size)) ||
        (status = parse_count(&p->n, "N", n, 0, largest_size)) ||
        (status = parse_count(&p->k, "K", k, 0, largest_size)))
        return status;
    return EXIT_OK;
}

int shape_parse_word(product_shape *p, const char *shape) {
    char m[72];
    if ((size_t)snprintf(m, sizeof m, "%s", shape) >= sizeof m) return misuse("'%s' is no shape M,N,K", shape);
    char *n = strchr(m, ','), *k = n ? strchr(n + 1, ',') : NULL;
    if (!k) return misuse("'%s' is no shape: write M,N,K, as in 1024,1024,512", shape);
    *n++ = '\0';
    *k++ = '\0';
    return shape_parse(p, m, n, k);
}

const char *shape_layout(const product_shape *p) {
    static const char *const names[2][2] = {{"nn", "nt"}, {"tn", "tt"}};
    return names[p->transpose_a][p->transpose_b];
}

double shape_flops(const product_shape *p) { return 2.0 * (double)p->m * (double)p->n * (double)p->k; }

double shape_bytes(const product_shape *p) {
    double m = (double)p->m, n = (double)p->n, k = (double)p->k;
    return sizeof(float) * (m * k + k * n + m * n);
}

static tsr_operand dense_operand(const float *data, int64_t rows, int64_t cols, bool transposed) {
    return (tsr_operand){.data = data,
                         .rows = rows,
                         .cols = cols,
                         .row_stride = transposed ? 1 : cols,
                         .col_stride = transposed ? rows : 1};
}

tsr_operand shape_a(const product_shape *p, const float *data) {
    return dense_operand(data, p->m, p->k, p->transpose_a);
}
tsr_operand shape_b(const product_shape *p, const float *data) {
    return dense_operand(data, p->k, p->n, p->transpose_b);
}

tsr_result shape_c(const product_shape *p, float *data) {
    return (tsr_result){.data = data, .rows = p->m, .cols = p->n, .row_stride = p->n, .col_stride = 1};
}

tsr_operand operand_transposed(const tsr_operand *o) {
    tsr_operand t = *o;
    t.rows = o->cols, t.cols = o->rows;
    t.row_stride = o->col_stride, t.col_stride = o->row_stride;
    return t;
}

bool shape_batch(const product_shape *p, tsr_operand *a, tsr_operand *b, tsr_result *c) {
    *a = shape_a(p, NULL);
    *b = shape_b(p, NULL);
    *c = shape_c(p, NULL);
    return !__builtin_mul_overflow(p->m, p->k, &a->batch_stride) &&
           !__builtin_mul_overflow(p->k, p->n, &b->batch_stride) &&
           !__builtin_mul_overflow(p->m, p->n, &c->batch_stride);
}

int matrix_allocate(float **data, const char *name, int64_t rows, int64_t cols) {
    *data = NULL;
    int64_t count;
    size_t size;
    /* Linux overcommits: an allocation larger than the memory would succeed and kill the process later. */
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (!__builtin_mul_overflow(rows, cols, &count) && !__builtin_mul_overflow(count, sizeof(float), &size) &&
        (double)size <= memory)
        *data = malloc(size ? size : 1);
    if (!*data)
        return fail("no memory for %s, %lld x %lld (%.1f GiB; this machine has %.1f)", name, (long long)rows,
                    (long long)cols, (double)rows * (double)cols * sizeof(float) / (1 << 30), memory / (1 << 30));
    return EXIT_OK;
}
