/* attention_block.c: a block of scores, and products with it. */
#include <math.h>

#include "cpu/attention_block.h"
#include "cpu/pack.h"
#include "cpu/small.h"
#include "dropout.h"

struct attention_block attention_query_block(const struct attention_job *job, int64_t task) {
    const tsr_attention_problem *p = job->p;
    const int64_t blocks = ceil_div(p->queries, job->plan->queries), in_head = task % blocks, head = task / blocks;
    struct attention_block b = {.item = head / p->heads,
                                .head = head % p->heads,
                                .kv_head = head % p->heads / (p->heads / p->kv_heads),
                                .i0 = (p->causal ? blocks - 1 - in_head : in_head) * job->plan->queries};
    b.queries = min64(job->plan->queries, p->queries - b.i0);
    return b;
}

int64_t attention_seen(const struct attention_job *job, const struct attention_block *b) {
    return job->p->causal ? min64(job->p->keys, b->i0 + b->queries) : job->p->keys;
}

const float *attention_rows(const tsr_heads *m, int64_t item, int64_t head, int64_t row) {
    return m->data + item * m->batch_stride + head * m->head_stride + row * m->row_stride;
}

void attention_transpose(float *to, const tsr_heads *m, int64_t item, int64_t head, int64_t row, int64_t rows,
                         int64_t dim) {
    cpu_pack_panels(to, attention_rows(m, item, head, row), rows, dim, m->row_stride, m->col_stride, (int)rows);
}

tsr_operand attention_operand(float *copy, const tsr_heads *m, int64_t item, int64_t head, int64_t row, int64_t rows,
                              int64_t dim) {
    const float *data = attention_rows(m, item, head, row);
    if (m->col_stride == 1 || dim == 1) return (tsr_operand){data, rows, dim, m->row_stride, 1, 0, NULL};
    cpu_pack_panels(copy, data, dim, rows, m->col_stride, m->row_stride, (int)dim);
    return (tsr_operand){copy, rows, dim, dim, 1, 0, NULL};
}

/* Blocks are so small that the engine computes them in place (small.h). */
void attention_multiply(const struct attention_job *job, const tsr_operand *a, const tsr_operand *b, float beta,
                        float *c) {
    const tsr_result result = {c, a->rows, b->cols, b->cols, 1, 0};
    tsr_problem product = {.m = a->rows, .n = b->cols, .k = a->cols, .batch = 1, .alpha = 1, .beta = beta};
    product.a = *a, product.b = *b, product.c = result;
    if (beta != 0) product.addend = result_as_addend(&result);
    cpu_multiply_directly(job->kernel, &product, 0, 1);
}

/* ---- Scores ------------------------------------------------------------------------------------------------------ */

/* Keys from this one on, of the block, are not seen by the first of its queries. */
static int64_t first_unseen(const struct attention_job *job, const struct attention_block *b) {
    return job->p->causal ? min64(b->keys, max64(0, b->i0 + 1 - b->j0)) : b->keys;
}

void attention_clear_unseen(const struct attention_job *job, const struct attention_block *b, float *s, float with) {
    for (int64_t j = first_unseen(job, b); j < b->keys; j++)
        for (int64_t i = 0; i < min64(b->queries, b->j0 + j - b->i0); i++) s[j * b->queries + i] = with;
}

void attention_scores(const struct attention_job *job, const struct attention_block *b, float *const buffer[BUFFERS]) {
    const tsr_attention_problem *p = job->p;
    const tsr_operand k = {.data = attention_rows(&p->k, b->item, b->kv_head, b->j0),
                           .rows = b->keys,
                           .cols = p->dim,
                           .row_stride = p->k.row_stride,
                           .col_stride = p->k.col_stride};
    const tsr_operand q = {buffer[BUFFER_Q], p->dim, b->queries, b->queries, 1, 0, NULL};
    attention_multiply(job, &k, &q, 0, buffer[BUFFER_S]);
    float *mask = NULL;
    if (p->mask.data) {
        mask = buffer[BUFFER_M];
        cpu_pack_panels(mask, attention_rows(&p->mask, b->item, b->head, b->i0) + b->j0 * p->mask.col_stride,
                        b->queries, b->keys, p->mask.row_stride, p->mask.col_stride, (int)b->queries);
    }
    job->softmax->score(buffer[BUFFER_S], mask, p->scale, b->keys * b->queries);
    attention_clear_unseen(job, b, buffer[BUFFER_S], -INFINITY);
}

/* ---- Dropout ----------------------------------------------------------------------------------------------------- */

/* Blocks begin at multiples of 16, as the generator's groups of 16 x 16 do. */
const float *attention_keep(const struct attention_job *job, const struct attention_block *b,
                            float *const buffer[BUFFERS]) {
    const tsr_attention_problem *p = job->p;
    const uint32_t limit = dropout_limit(p->dropout);
    if (!limit) return NULL;
    const float kept = dropout_scale(limit);
    const dropout_key key = dropout_key_of(p->seed, p->offset, (uint32_t)(b->item * p->heads + b->head));
    float *keep = buffer[BUFFER_M];
    for (int64_t j = 0; j < b->keys; j += j % 8 == 6 ? 10 : 2)
        for (int64_t i = 0; i < b->queries; i += i % 8 == 7 ? 9 : 1) {
            uint32_t numbers[4];
            dropout_numbers(key, (uint32_t)(b->i0 + i), (uint32_t)(b->j0 + j), numbers);
            for (int n = 0; n < 8; n++) {
                const int64_t at_i = i + n / 4 * 8, at_j = j + n / 2 % 2 * 8 + n % 2;
                const uint32_t number = numbers[n / 2] >> 16 * (n % 2) & 0xffff;
                if (at_i < b->queries && at_j < b->keys) keep[at_j * b->queries + at_i] = number < limit ? 0 : kept;
            }
        }
    return keep;
}

/* ---- Products with weights --------------------------------------------------------------------------------------- */

static bool is_finite(const tsr_operand *o) {
    uint32_t infinite = 0;
    for (int64_t i = 0; i < o->rows; i++)
        for (int64_t j = 0; j < o->cols; j++) {
            uint32_t bits;
            memcpy(&bits, &o->data[i * o->row_stride + j], sizeof bits);
            infinite |= (bits & 0x7f800000u) == 0x7f800000u;
        }
    return !infinite;
}

/* Each row of sums by itself, with the terms that count. */
static void accumulate_seen(const struct attention_job *job, const struct attention_block *b,
                            const tsr_operand *weights, const tsr_operand *rows, bool is_for_queries, float *sums) {
    const int64_t from_j_to_i = b->i0 - b->j0;
    for (int64_t r = 0; r < weights->rows; r++) {
        const int64_t first = is_for_queries ? 0 : max64(0, r - from_j_to_i);
        const int64_t end = is_for_queries ? min64(b->keys, r + from_j_to_i + 1) : b->queries;
        if (first >= end) continue;
        tsr_operand row = *weights, seen = *rows;
        row.data += r * row.row_stride + first * row.col_stride;
        row.rows = 1;
        row.cols = seen.rows = end - first;
        seen.data += first * seen.row_stride;
        attention_multiply(job, &row, &seen, 1, sums + r * rows->cols);
    }
}

void attention_accumulate(const struct attention_job *job, const struct attention_block *b, const float *weights,
                          const tsr_operand *rows, bool is_for_queries, float *sums) {
    const tsr_operand a = is_for_queries ? (tsr_operand){weights, b->queries, b->keys, 1, b->queries, 0, NULL}
                                         : (tsr_operand){weights, b->keys, b->queries, b->queries, 1, 0, NULL};
    if (first_unseen(job, b) == b->keys || is_finite(rows))
        attention_multiply(job, &a, rows, 1, sums);
    else
        accumulate_seen(job, b, &a, rows, is_for_queries, sums);
}

void attention_write(const tsr_heads_result *result, int64_t item, int64_t head, int64_t row, int64_t rows, int64_t dim,
                     const float *sums, const float *factors, float scale) {
    float *to = result->data + item * result->batch_stride + head * result->head_stride + row * result->row_stride;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < dim; c++)
            to[i * result->row_stride + c * result->col_stride] = sums[i * dim + c] * (factors ? factors[i] : 1) *
                                                                  scale;
}
