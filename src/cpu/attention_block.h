/* attention_block.h: what the files of attention on the CPU share: the plan, blocks of scores, and their arithmetic.
 *
 * Scores are computed in blocks of some keys x some queries, transposed: element (j, i) is at j*queries + i. So what
 * belongs to a query (largest score, sum, log-sum-exp) is a vector along the contiguous direction. */
#ifndef TESSERA_CPU_ATTENTION_BLOCK_H
#define TESSERA_CPU_ATTENTION_BLOCK_H

#include <stdatomic.h>

#include "attention.h"
#include "cpu/kernel.h"
#include "cpu/team.h"

/* ---- Arithmetic of blocks: attention_softmax.h, compiled for each instruction set -------------------------------- */

struct cpu_softmax {
    /* s = scale*s + mask; mask may be NULL. */
    void (*score)(float *s, const float *mask, float scale, int64_t count);
    /* Raises each query's largest score, makes s the exponentials of what is below it and adds them to the sum. shrink:
     * what the query's sums of earlier blocks have been multiplied by, or have to be. */
    void (*weigh)(float *s, int64_t keys, int64_t queries, float *largest, float *sum, float *shrink);
    /* s = exp(s - lse), added to the sum. */
    void (*reweigh)(float *s, int64_t keys, int64_t queries, const float *lse, float *sum);
    /* With the weights p = s*inverse: d = p*(keep*d - dot), from d = dP, and s = p*keep. keep may be NULL, for ones. */
    void (*differentiate)(float *s, float *d, const float *keep, int64_t keys, int64_t queries, const float *inverse,
                          const float *dot);
};

extern const struct cpu_softmax cpu_softmax_avx512, cpu_softmax_avx2, cpu_softmax_portable;

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

/* What a member has of its own. */
enum attention_buffer {
    BUFFER_Q,     /* queries, transposed: dim x queries */
    BUFFER_G,     /* backward: grad_o, transposed */
    BUFFER_S,     /* scores, then weights */
    BUFFER_D,     /* backward: gradients of weights, then of scores */
    BUFFER_M,     /* the mask, then what dropout multiplies by */
    BUFFER_ROWS0, /* rows of an operand whose columns are not contiguous */
    BUFFER_ROWS1,
    BUFFER_SUM0,  /* sums: O; grad_q; grad_v */
    BUFFER_SUM1,  /* grad_k */
    BUFFER_LANES, /* of each query: largest score, sum, shrink; lse, sum */
    BUFFERS
};

struct attention_plan {
    int64_t queries, keys; /* of a block */
    int threads;
    int64_t shared;              /* floats that all members share, in front of their own */
    int64_t offset[BUFFERS + 1]; /* of a member's buffers; the last is the size of all */
    size_t workspace;            /* bytes */
};

/* One call, as the members of its team see it. */
struct attention_job {
    const struct attention_plan *plan;
    const tsr_attention_problem *p;
    const struct cpu_kernel *kernel;
    const struct cpu_softmax *softmax;
    const tsr_heads_result *o, *lse;  /* forward */
    const tsr_attention_gradients *g; /* backward */
    float *dots, *inverses;           /* backward, of each query: grad_o * O; 1 / the sum of weights */
    float *workspace;
    void (*compute)(const struct attention_job *job, int64_t task, float *const buffer[BUFFERS]);
    int64_t tasks;
    _Atomic int64_t next;
};

/* Members take tasks until all are computed. */
void attention_run(struct attention_job *job, void (*compute)(const struct attention_job *, int64_t, float *const *),
                   int64_t tasks);

void attention_backward(struct attention_job *job);

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* A block of one head: `queries` queries from i0 on and `keys` keys from j0 on. */
struct attention_block {
    int64_t item, head, kv_head;
    int64_t i0, queries, j0, keys;
};

/* The block of queries that a task computes, without keys. With a causal mask, those that see the most keys come
 * first. */
struct attention_block attention_query_block(const struct attention_job *job, int64_t task);

/* How many keys its queries see. */
int64_t attention_seen(const struct attention_job *job, const struct attention_block *b);

/* The rows from `row` on of an operand's matrix. */
const float *attention_rows(const tsr_heads *m, int64_t item, int64_t head, int64_t row);

/* Some rows of a matrix, transposed: dim x rows, without gaps. */
void attention_transpose(float *to, const tsr_heads *m, int64_t item, int64_t head, int64_t row, int64_t rows,
                         int64_t dim);

/* Some rows as a product's right operand: in place or, where their elements are not contiguous, copied. */
tsr_operand attention_operand(float *copy, const tsr_heads *m, int64_t item, int64_t head, int64_t row, int64_t rows,
                              int64_t dim);

/* The block's scores, scaled and masked; -Inf where a query does not see a key. */
void attention_scores(const struct attention_job *job, const struct attention_block *b, float *const buffer[BUFFERS]);

/* What dropout multiplies the block's weights by, in BUFFER_M, which is returned; NULL without dropout. */
const float *attention_keep(const struct attention_job *job, const struct attention_block *b,
                            float *const buffer[BUFFERS]);

/* Sets what belongs to keys that the queries do not see to `with`. */
void attention_clear_unseen(const struct attention_job *job, const struct attention_block *b, float *s, float with);

/* sums (dim columns) += the block's weights times rows. Forward a row of sums is a query's, and the terms are keys;
 * otherwise a key's, and the terms are queries. What a query does not see is no term, even if it is not finite. */
void attention_accumulate(const struct attention_job *job, const struct attention_block *b, const float *weights,
                          const tsr_operand *rows, bool is_for_queries, float *sums);

/* C = A*B + beta*C for a C without gaps. */
void attention_multiply(const struct attention_job *job, const tsr_operand *a, const tsr_operand *b, float beta,
                        float *c);

/* Writes the rows of a result: sums times each row's factor (NULL: ones), times scale. */
void attention_write(const tsr_heads_result *result, int64_t item, int64_t head, int64_t row, int64_t rows, int64_t dim,
                     const float *sums, const float *factors, float scale);

#endif
