/* attention.c: attention and its gradients, held to the bounds of docs/internals/numerics.md. Names are those of that
 * page: t scores, p weights, w how far these are off, ds and g the same of dS. Key-value heads are shared by heads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "grade.h"
#include "progress.h"

static const double UNIT = 0x1p-24, SPLIT = 0x1p-25; /* SPLIT: what a row of a split operand may lose of its largest */

typedef struct attention_shape {
    int64_t batch, heads, kv_heads, queries, keys, dim;
    int causal;
    int64_t gap; /* floats between the end of a stored row and the next */
    scope scope;
} attention_shape;

static const attention_shape attention_shapes[] = {
    {1, 2, 1, 33, 70, 24, 0, 0, QUICK},  {1, 1, 1, 65, 40, 72, 1, 3, QUICK},   {2, 2, 2, 197, 197, 64, 0, 4, FULL},
    {1, 4, 2, 150, 300, 64, 1, 0, FULL}, {1, 2, 2, 130, 260, 128, 1, 0, FULL}, {1, 1, 1, 1, 300, 40, 0, 0, FULL},
    {1, 2, 1, 40, 90, 200, 0, 0, FULL},  {1, 2, 2, 700, 700, 64, 0, 0, GPU},
};
enum { ATTENTION_SHAPES = sizeof attention_shapes / sizeof *attention_shapes };

int attention_shapes_within(scope limit) {
    int count = 0;
    for (int i = 0; i < ATTENTION_SHAPES; i++) count += attention_shapes[i].scope <= limit;
    return count;
}

/* ---- Operands and results ---------------------------------------------------------------------------------------- */

enum { Q, K, V, GRAD_O, MASK, O, LSE, GRAD_Q, GRAD_K, GRAD_V, MATRICES };
static const char *const names[MATRICES] = {"q", "k", "v", "grad_o", "mask", "o", "lse", "grad_q", "grad_k", "grad_v"};

/* Of one matrix for each head, its rows `stride` floats apart. */
typedef struct heads_size {
    int64_t heads, rows, cols, stride;
} heads_size;

static heads_size size_of(const attention_shape *s, int matrix) {
    const bool of_keys = matrix == K || matrix == V || matrix == GRAD_K || matrix == GRAD_V;
    const int64_t cols = matrix == MASK ? s->keys : matrix == LSE ? 1 : s->dim;
    return (heads_size){s->batch * (of_keys ? s->kv_heads : s->heads), of_keys ? s->keys : s->queries, cols,
                        cols + (matrix == LSE ? 0 : s->gap)};
}
static int64_t count_of(const attention_shape *s, int matrix) {
    const heads_size size = size_of(s, matrix);
    return size.heads * size.rows * size.stride;
}

typedef struct attention_material {
    const attention_shape *shape;
    bool masked;
    float *data[MATRICES], *again[MATRICES];           /* again: results of the second time */
    double *exact[MATRICES], *allowed[MATRICES], *row; /* of results; room for one head */
} attention_material;

static void material_free(attention_material *x) {
    for (int m = 0; m < MATRICES; m++) {
        free(x->data[m]);
        free(x->again[m]);
        free(x->exact[m]);
        free(x->allowed[m]);
    }
    free(x->row);
}

static int material_allocate(attention_material *x) {
    for (int m = 0; m < MATRICES; m++) {
        const size_t count = (size_t)count_of(x->shape, m);
        x->data[m] = malloc(count * sizeof(float));
        if (m >= O) x->again[m] = malloc(count * sizeof(float));
        if (m >= O) x->exact[m] = malloc(count * sizeof(double));
        if (m >= O) x->allowed[m] = malloc(count * sizeof(double));
        if (!x->data[m] || (m >= O && (!x->again[m] || !x->exact[m] || !x->allowed[m])))
            return fail("no memory for attention's %s", names[m]);
    }
    x->row = malloc((size_t)(4 * x->shape->queries * x->shape->keys) * sizeof(double));
    return x->row ? EXIT_OK : fail("no memory for attention's weights");
}

static float *row_of(const attention_material *x, int matrix, int64_t head, int64_t row) {
    const heads_size size = size_of(x->shape, matrix);
    return x->data[matrix] + (head * size.rows + row) * size.stride;
}

/* ---- Families ---------------------------------------------------------------------------------------------------- */

enum { UNIFORM, NORMAL, LARGE, ROWS, MASKED, NOT_FINITE };
const attention_family attention_families[ATTENTION_FAMILY_TOTAL] = {
    [UNIFORM] = {"uniform", ORDINARY},    [NORMAL] = {"normal", ORDINARY}, [LARGE] = {"large scores", HARD},
    [ROWS] = {"rows of all sizes", HARD}, [MASKED] = {"masked", SPECIAL},  [NOT_FINITE] = {"NaN and Inf", SPECIAL},
};

static void fill(attention_material *x, int which, random_source *r) {
    for (int m = 0; m < MATRICES; m++)
        for (int64_t i = 0; i < count_of(x->shape, m); i++) x->data[m][i] = NAN; /* between rows, too */
    for (int m = Q; m <= MASK; m++) {
        const heads_size size = size_of(x->shape, m);
        for (int64_t row = 0; row < size.heads * size.rows; row++) {
            const bool hides_all = m == MASK && random_below(r, 10) == 0;
            const float grade = which == ROWS && m != MASK ? ldexpf(1, -(int)random_below(r, 21)) : 1;
            for (int64_t c = 0; c < size.cols; c++) {
                float value = which == UNIFORM ? random_uniform(r) : random_normal(r) * grade;
                if (which == LARGE && m == Q) value *= 30;
                if (m == MASK && (hides_all || random_below(r, 2))) value = -INFINITY;
                x->data[m][row * size.stride + c] = value;
            }
        }
    }
    x->masked = which == MASKED;
    if (which == NOT_FINITE) { /* one operand of each head */
        for (int64_t head = 0; head < x->shape->batch * x->shape->kv_heads; head++) {
            const int m = (int)random_below(r, V + 1);
            const heads_size size = size_of(x->shape, m);
            row_of(x, m, head, random_below(r, size.rows))[random_below(r, size.cols)] = random_below(r, 2) ? NAN
                                                                                         : random_below(r, 2)
                                                                                             ? INFINITY
                                                                                             : -INFINITY;
        }
    }
}

/* ---- What is exact, and what is allowed -------------------------------------------------------------------------- */

/* NaN aside. Not by fmax, at which gcc 12 fails for 64-bit ARM. */
static double largest_of(const float *row, int64_t count) {
    float largest = 0;
    for (int64_t c = 0; c < count; c++) largest = fabsf(row[c]) > largest ? fabsf(row[c]) : largest;
    return largest;
}

/* x y, and in *error how far an engine's may be off. */
static double product_of(const float *x, const float *y, int64_t dim, double *error) {
    double sum = 0, magnitude = 0;
    for (int64_t c = 0; c < dim; c++) {
        sum += (double)x[c] * y[c];
        magnitude += fabs((double)x[c] * y[c]);
    }
    *error = (double)(dim + 16) * UNIT * magnitude + (double)dim * SPLIT * largest_of(x, dim) * largest_of(y, dim);
    return sum;
}

/* exact += weight * row; allowed += off*|row| + share * max |row|. */
static void add_row(double *exact, double *allowed, double weight, double off, double share, const float *row,
                    int64_t dim) {
    const double largest = share * largest_of(row, dim);
    for (int64_t c = 0; c < dim; c++) {
        exact[c] += weight * row[c];
        allowed[c] += off * fabs(row[c]) + largest;
    }
}

/* Weights of query i of a head, how far they are off, and the exact o and lse. Returns how many keys it sees. */
static int64_t weigh(attention_material *x, int64_t head, int64_t kv_head, int64_t i, double *p, double *w) {
    const attention_shape *s = x->shape;
    const int64_t seen = s->causal && i + 1 < s->keys ? i + 1 : s->keys, at = head * s->queries + i;
    const double scale = (float)(1 / sqrt((double)s->dim));
    double largest = -INFINITY, total = 0, grown = 0;
    for (int64_t j = 0; j < seen; j++) { /* p is t here, w the error of q k */
        p[j] = scale * product_of(row_of(x, Q, head, i), row_of(x, K, kv_head, j), s->dim, &w[j]);
        if (x->masked) p[j] += row_of(x, MASK, head, i)[j];
        if (!(p[j] <= largest)) largest = p[j];
    }
    for (int64_t j = 0; j < seen; j++) total += exp(p[j] - (largest == -INFINITY ? 0 : largest));
    const double lse = total == 0 ? INFINITY : largest + log(total), of_lse = isfinite(lse) ? fabs(lse) : 0;
    for (int64_t j = 0; j < seen; j++) {
        const double t = p[j], d = scale * w[j] + UNIT * (2 * fabs(t) + 2 * of_lse + 8);
        p[j] = total == 0 ? 0 : exp(t - lse);
        w[j] = t == -INFINITY ? -1 : exp(d); /* -1: no weight, and exactly so */
        grown += p[j] > 0 ? p[j] * w[j] : 0;
    }
    grown = fmax(grown, 1);
    double *o = x->exact[O] + at * (s->dim + s->gap), *off = x->allowed[O] + at * (s->dim + s->gap);
    for (int64_t j = 0; j < seen; j++) {
        const double lost = p[j] * (w[j] * grown * (1 + (double)(2 * s->keys + 16) * UNIT) - 1);
        w[j] = w[j] < 0 ? 0 : lost + 0x1p-38;
        add_row(o, off, p[j], w[j] + (double)(s->keys + 16) * UNIT * p[j], SPLIT * p[j], row_of(x, V, kv_head, j),
                s->dim);
    }
    x->exact[LSE][at] = lse;
    x->allowed[LSE][at] = log(grown) + (double)(s->keys + 16) * UNIT + 2 * UNIT * of_lse;
    return seen;
}

/* Exact results of one head and how far each may be off; those of keys are added to. */
static void make_head(attention_material *x, int64_t head) {
    const attention_shape *s = x->shape;
    const int64_t group = s->heads / s->kv_heads, kv_head = head / s->heads * s->kv_heads + head % s->heads / group;
    const int64_t all = s->queries * s->keys, width = s->dim + s->gap;
    const double scale = (float)(1 / sqrt((double)s->dim));
    const double of_query = (double)(s->keys + 16) * UNIT, of_key = (double)(group * s->queries + 16) * UNIT;
    double *p = x->row, *w = p + all, *ds = w + all, *g = ds + all;
    for (int64_t n = 0; n < 4 * all; n++) x->row[n] = 0;
    for (int64_t i = 0; i < s->queries; i++, p += s->keys, w += s->keys, ds += s->keys, g += s->keys) {
        const int64_t seen = weigh(x, head, kv_head, i, p, w), at = (head * s->queries + i) * width;
        const float *grad_o = row_of(x, GRAD_O, head, i);
        const double *o = x->exact[O] + at, *o_off = x->allowed[O] + at;
        double dot = 0, f = 0, largest = 0;
        for (int64_t c = 0; c < s->dim; c++) {
            dot += grad_o[c] * o[c];
            f += fabs(grad_o[c]) * (o_off[c] + (double)(s->dim + 16) * UNIT * fabs(o[c]));
        }
        for (int64_t j = 0; j < seen; j++) {
            double error;
            const double dp = product_of(grad_o, row_of(x, V, kv_head, j), s->dim, &error);
            ds[j] = p[j] * (dp - dot);
            g[j] = w[j] * fabs(dp - dot) + (p[j] + w[j]) * (error + f + 4 * UNIT * (fabs(dp) + fabs(dot)));
            largest = fmax(largest, fabs(ds[j]));
        }
        for (int64_t j = 0; j < seen; j++)
            add_row(x->exact[GRAD_Q] + at, x->allowed[GRAD_Q] + at, scale * ds[j],
                    scale * (g[j] + of_query * fabs(ds[j]) + SPLIT / 2 * largest), scale * SPLIT * fabs(ds[j]),
                    row_of(x, K, kv_head, j), s->dim);
    }
    p = x->row, w = p + all, ds = w + all, g = ds + all;
    for (int64_t j = 0; j < s->keys; j++) {
        const int64_t at = (kv_head * s->keys + j) * width, first = s->causal ? j : 0;
        double most_p = 0, most_ds = 0;
        for (int64_t i = first; i < s->queries; i++) {
            most_p = fmax(most_p, p[i * s->keys + j]);
            most_ds = fmax(most_ds, fabs(ds[i * s->keys + j]));
        }
        for (int64_t i = first; i < s->queries; i++) {
            const int64_t n = i * s->keys + j;
            add_row(x->exact[GRAD_V] + at, x->allowed[GRAD_V] + at, p[n], w[n] + of_key * p[n] + SPLIT / 2 * most_p,
                    SPLIT * p[n], row_of(x, GRAD_O, head, i), s->dim);
            add_row(x->exact[GRAD_K] + at, x->allowed[GRAD_K] + at, scale * ds[n],
                    scale * (g[n] + of_key * fabs(ds[n]) + SPLIT / 2 * most_ds), scale * SPLIT * fabs(ds[n]),
                    row_of(x, Q, head, i), s->dim);
        }
    }
}

static void make_exact(attention_material *x) {
    for (int m = O; m < MATRICES; m++)
        for (int64_t i = 0; i < count_of(x->shape, m); i++) x->exact[m][i] = 0, x->allowed[m][i] = 0x1p-140;
    for (int64_t head = 0; head < x->shape->batch * x->shape->heads; head++) make_head(x, head);
}

/* Where operands are not finite, elements that are finite nevertheless are held to the bounds of the same attention
 * with zeros there. */
static int make_exact_of_specials(attention_material *x) {
    double *exact[MATRICES] = {NULL};
    float *given[V + 1] = {NULL};
    int status = EXIT_OK;
    make_exact(x);
    for (int m = O; m < MATRICES; m++) {
        const size_t bytes = (size_t)count_of(x->shape, m) * sizeof(double);
        if (!(exact[m] = malloc(bytes)))
            status = fail("no memory for attention's %s", names[m]);
        else
            memcpy(exact[m], x->exact[m], bytes);
    }
    for (int m = Q; m <= V && !status; m++) {
        const int64_t count = count_of(x->shape, m);
        if (!(given[m] = malloc((size_t)count * sizeof(float))))
            status = fail("no memory for attention's %s", names[m]);
        for (int64_t i = 0; i < count && !status; i++) {
            given[m][i] = x->data[m][i];
            if (!isfinite(given[m][i])) x->data[m][i] = 0;
        }
    }
    if (!status) make_exact(x);
    for (int m = O; m < MATRICES && !status; m++) memcpy(x->exact[m], exact[m], (size_t)count_of(x->shape, m) * 8);
    for (int m = Q; m <= V && !status; m++) memcpy(x->data[m], given[m], (size_t)count_of(x->shape, m) * 4);
    for (int m = 0; m < MATRICES; m++) free(exact[m]);
    for (int m = Q; m <= V; m++) free(given[m]);
    return status;
}

/* ---- Computing --------------------------------------------------------------------------------------------------- */

static tsr_heads heads_at(const attention_shape *s, int matrix, const float *data) {
    const heads_size size = size_of(s, matrix);
    const int64_t head = size.rows * size.stride;
    return (tsr_heads){data, size.heads / s->batch * head, head, size.stride, 1};
}
static tsr_heads_result result_at(const attention_shape *s, int matrix, float *data) {
    const tsr_heads x = heads_at(s, matrix, NULL);
    return (tsr_heads_result){data, x.batch_stride, x.head_stride, x.row_stride, x.col_stride};
}

static int compute(const attention_material *x, device *d, float *const results[MATRICES]) {
    const attention_shape *s = x->shape;
    float *data[MATRICES] = {NULL};
    int status = EXIT_OK;
    for (int m = 0; m < MATRICES && !status; m++) {
        float *host = m < O ? x->data[m] : results[m];
        const size_t bytes = (size_t)count_of(s, m) * sizeof(float);
        if (!(status = device_output(d, &data[m], host, bytes))) status = device_send(d, data[m], host, bytes);
    }
    if (!status) {
        const tsr_attention_problem problem = {.batch = s->batch,
                                               .heads = s->heads,
                                               .kv_heads = s->kv_heads,
                                               .queries = s->queries,
                                               .keys = s->keys,
                                               .dim = s->dim,
                                               .q = heads_at(s, Q, data[Q]),
                                               .k = heads_at(s, K, data[K]),
                                               .v = heads_at(s, V, data[V]),
                                               .mask = heads_at(s, MASK, x->masked ? data[MASK] : NULL),
                                               .scale = (float)(1 / sqrt((double)s->dim)),
                                               .causal = s->causal};
        const tsr_heads_result o = result_at(s, O, data[O]), lse = result_at(s, LSE, data[LSE]);
        const tsr_attention_gradients gradients = {.o = heads_at(s, O, data[O]),
                                                   .lse = heads_at(s, LSE, data[LSE]),
                                                   .grad_o = heads_at(s, GRAD_O, data[GRAD_O]),
                                                   .grad_q = result_at(s, GRAD_Q, data[GRAD_Q]),
                                                   .grad_k = result_at(s, GRAD_K, data[GRAD_K]),
                                                   .grad_v = result_at(s, GRAD_V, data[GRAD_V])};
        const tsr_launch launch = {.stream = d->stream};
        tsr_status failed = tsr_attention(d->context, &problem, &o, &lse, &launch);
        if (!failed) failed = tsr_attention_backward(d->context, &problem, &gradients, &launch);
        if (failed) status = fail_status("cannot compute attention", failed);
    }
    for (int m = O; m < MATRICES && !status; m++)
        status = device_fetch(d, results[m], data[m], (size_t)count_of(s, m) * sizeof(float));
    for (int m = 0; m < MATRICES; m++) device_release(d, data[m]);
    return status;
}

/* ---- Judging ----------------------------------------------------------------------------------------------------- */

/* One result of an attention, added to the outcome. False: an element breaks the contract, and `failure` says which. */
static bool judge_result(const attention_material *x, int matrix, attention_outcome *total, char failure[400]) {
    const heads_size size = size_of(x->shape, matrix);
    double squares = 0, errors = 0, worst = -1;
    for (int64_t n = 0; n < count_of(x->shape, matrix); n++) {
        const float got = x->data[matrix][n];
        const double exact = x->exact[matrix][n], allowed = x->allowed[matrix][n];
        const int64_t col = n % size.stride;
        if (col >= size.cols) {
            if (isnan(got)) continue; /* as it was */
            snprintf(failure, 400, "memory between the rows of %s was written", names[matrix]);
            return false;
        }
        if (got == exact || (isnan(got) && isnan(exact))) continue;
        const double error = fabs(got - exact), share = error <= allowed ? error / allowed : INFINITY;
        if (isfinite(error)) {
            squares += exact * exact;
            errors += error * error;
        }
        if (share > total->used) {
            total->used = share;
            total->result = names[matrix];
        }
        if (share > worst) {
            worst = share;
            const int64_t row = n / size.stride;
            snprintf(failure, 400,
                     "%lld x %lld x %lld x %lld x %lld: %s(head %lld, row %lld, column %lld) is %.9g, exactly %.9g; "
                     "allowed is %.3g",
                     (long long)x->shape->batch, (long long)x->shape->heads, (long long)x->shape->queries,
                     (long long)x->shape->keys, (long long)x->shape->dim, names[matrix], (long long)(row / size.rows),
                     (long long)(row % size.rows), (long long)col, got, exact, allowed);
        }
    }
    if (squares > 0) total->relative = fmax(total->relative, sqrt(errors / squares));
    return worst <= 1;
}

static int grade_shape(grading *g, attention_material *x, int family_index) {
    attention_outcome *total = &g->attention[family_index];
    for (int m = O; m < MATRICES; m++)
        for (int64_t i = 0; i < count_of(x->shape, m); i++) x->data[m][i] = x->again[m][i] = NAN;
    int status = device_use_precision(g->device, g->precision);
    if (!status) status = compute(x, g->device, x->data);
    if (!status) status = compute(x, g->device, x->again);
    if (status) return status;
    bool kept = true, repeated = true;
    for (int m = O; m < MATRICES; m++) {
        char failure[400] = "";
        const bool fits = judge_result(x, m, total, failure);
        const bool same = memcmp(x->data[m], x->again[m], (size_t)count_of(x->shape, m) * sizeof(float)) == 0;
        if (!same && fits) snprintf(failure, sizeof failure, "%s has other bits when computed again", names[m]);
        if (!(fits && same) && !total->failure[0]) memcpy(total->failure, failure, sizeof failure);
        kept &= fits;
        repeated &= same;
    }
    total->calls++;
    total->broken += !kept;
    total->unrepeatable += !repeated;
    return EXIT_OK;
}

int grade_attention(grading *gradings, int count, int family_index, scope limit, uint64_t seed) {
    int status = EXIT_OK;
    for (int i = 0; i < ATTENTION_SHAPES && !status; i++) {
        const attention_shape *s = &attention_shapes[i];
        if (s->scope > limit) continue;
        progress_step("attention, %s, %lld x %lld x %lld", attention_families[family_index].name, (long long)s->queries,
                      (long long)s->keys, (long long)s->dim);
        attention_material x = {.shape = s};
        random_source source = {seed + (uint64_t)i};
        if (!(status = material_allocate(&x))) {
            fill(&x, family_index, &source);
            if (family_index == NOT_FINITE)
                status = make_exact_of_specials(&x);
            else
                make_exact(&x);
        }
        for (int n = 0; n < count && !status; n++) status = grade_shape(&gradings[n], &x, family_index);
        material_free(&x);
    }
    return status;
}
