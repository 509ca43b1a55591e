/* grade.c: products of every family and shape, held to the contract, and the grade that follows. */
#include "grade.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "progress.h"

/* ---- Matrices ---------------------------------------------------------------------------------------------------- */

/* One (family, shape): its matrices on the host, as they are stored in both orders, and the exact result. */
typedef struct material {
    float *a, *b;                     /* dense, in C order */
    float *a_stored[2], *b_stored[2]; /* [0] plainly, [1] transposed, rows `gap` further apart than they are long */
    float *before, *c, *again;        /* m x (n + gap): C before the product, after it, and after it once more */
    size_t c_count;
    exact_lines exact;
} material;

static int64_t stored_rows(bool transposed, int64_t rows, int64_t cols) { return transposed ? cols : rows; }
static int64_t stored_width(bool transposed, int64_t rows, int64_t cols) { return transposed ? rows : cols; }

/* Between the rows are NaNs, which nobody may read. */
static void store(float *out, const float *in, int64_t rows, int64_t cols, int64_t gap, bool transposed) {
    int64_t height = stored_rows(transposed, rows, cols), width = stored_width(transposed, rows, cols);
    for (int64_t i = 0; i < height; i++) {
        float *row = out + i * (width + gap);
        for (int64_t j = 0; j < width; j++) row[j] = transposed ? in[j * cols + i] : in[i * cols + j];
        for (int64_t j = width; j < width + gap; j++) row[j] = NAN;
    }
}

static void material_free(material *x) {
    free(x->a);
    free(x->b);
    for (int t = 0; t < 2; t++) {
        free(x->a_stored[t]);
        free(x->b_stored[t]);
    }
    free(x->before);
    free(x->c);
    free(x->again);
    exact_free(&x->exact);
}

static int material_allocate(material *x, shape s) {
    int status;
    if ((status = matrix_allocate(&x->a, "A", s.m, s.k)) || (status = matrix_allocate(&x->b, "B", s.k, s.n)))
        return status;
    for (int t = 0; t < 2; t++)
        if ((status = matrix_allocate(&x->a_stored[t], "A", s.m + s.gap, s.k + s.gap)) ||
            (status = matrix_allocate(&x->b_stored[t], "B", s.k + s.gap, s.n + s.gap)))
            return status;
    if ((status = matrix_allocate(&x->before, "C", s.m, s.n + s.gap)) ||
        (status = matrix_allocate(&x->c, "C", s.m, s.n + s.gap)))
        return status;
    return matrix_allocate(&x->again, "C", s.m, s.n + s.gap);
}

static int material_make(material *x, const family *f, shape s, bool tf32, uint64_t seed) {
    *x = (material){.c_count = (size_t)(s.m * (s.n + s.gap))};
    int status = material_allocate(x, s);
    if (!status) {
        random_source source = {seed};
        f->fill(&source, x->a, x->b, s.m, s.n, s.k);
        for (int t = 0; t < 2; t++) {
            store(x->a_stored[t], x->a, s.m, s.k, s.gap, t);
            store(x->b_stored[t], x->b, s.k, s.n, s.gap, t);
        }
        /* What is not written shows, and so does C where it is read although beta is 0. */
        for (size_t i = 0; i < x->c_count; i++)
            x->before[i] = f->beta == 0 ? NAN : (float)(random_below(&source, 201) - 100);
        product_shape p = {s.m, s.n, s.k, false, false};
        tsr_operand a = shape_a(&p, x->a), b = shape_b(&p, x->b);
        /* Above, the float64 product would take seconds. */
        bool all = (double)s.m * (double)s.n * (double)s.k <= 0x1p27;
        status = exact_make(&x->exact, &a, &b, all ? 1 : 16, all ? 0 : 64, tf32, seed);
    }
    if (!status && !(f->alpha == 1 && f->beta == 0)) {
        tsr_result c = {.data = x->before, .rows = s.m, .cols = s.n, .row_stride = s.n + s.gap, .col_stride = 1};
        exact_scale(&x->exact, f->alpha, f->beta, &c);
    }
    if (status) material_free(x);
    return status;
}

/* ---- Multiplying ------------------------------------------------------------------------------------------------- */

static tsr_operand operand_of(const float *data, int64_t rows, int64_t cols, bool transposed, int64_t ld) {
    return (tsr_operand){
        .data = data, .rows = rows, .cols = cols, .row_stride = transposed ? 1 : ld, .col_stride = transposed ? ld : 1};
}

static int multiply_on_device(device *d, const stored_product *x) {
    const product_shape *p = &x->shape;
    size_t a_bytes = (size_t)(stored_rows(p->transpose_a, p->m, p->k) * x->lda) * sizeof(float);
    size_t b_bytes = (size_t)(stored_rows(p->transpose_b, p->k, p->n) * x->ldb) * sizeof(float);
    size_t c_bytes = (size_t)(p->m * x->ldc) * sizeof(float);
    const float *a_data = NULL, *b_data = NULL;
    float *c_data = NULL;
    int status;
    if (!(status = device_input(d, &a_data, x->a, a_bytes)) && !(status = device_input(d, &b_data, x->b, b_bytes)) &&
        !(status = device_output(d, &c_data, x->c, c_bytes)) && !(status = device_send(d, c_data, x->c, c_bytes))) {
        tsr_operand a = operand_of(a_data, p->m, p->k, p->transpose_a, x->lda);
        tsr_operand b = operand_of(b_data, p->k, p->n, p->transpose_b, x->ldb);
        tsr_result c = {.data = c_data, .rows = p->m, .cols = p->n, .row_stride = x->ldc, .col_stride = 1};
        if (!(status = device_multiply(d, x->alpha, &a, &b, x->beta, &c)))
            status = device_fetch(d, x->c, c_data, c_bytes);
    }
    device_release(d, c_data);
    device_release(d, b_data);
    device_release(d, a_data);
    return status;
}

static int multiply(const grading *g, const stored_product *x) {
    if (!g->library) return multiply_on_device(g->device, x);
    library_multiply(g->library, x);
    return EXIT_OK;
}

/* ---- Judging ----------------------------------------------------------------------------------------------------- */

static void describe_failure(char text[400], const product_shape *p, const judgement *j, bool outside, bool repeated) {
    int length = snprintf(text, 400, "%lld x %lld x %lld %s: ", (long long)p->m, (long long)p->n, (long long)p->k,
                          shape_layout(p));
    size_t left = (size_t)(400 - length);
    if (outside)
        snprintf(text + length, left, "memory between the rows of C was written");
    else if (!repeated)
        snprintf(text + length, left, "other bits when computed again");
    else
        snprintf(text + length, left,
                 "C(%lld, %lld) is %.9g, exactly %.9g; %.3g units of %.0f, relative error %.2e, %lld inexact, %lld NaN "
                 "or Inf misplaced",
                 (long long)j->row, (long long)j->col, j->got, j->expected, j->worst, j->bound, j->relative,
                 (long long)j->inexact, (long long)j->misplaced);
}

static bool gaps_unchanged(const material *x, shape s) {
    for (int64_t i = 0; i < s.m; i++) {
        size_t gap = (size_t)(i * (s.n + s.gap) + s.n);
        if (memcmp(x->c + gap, x->before + gap, (size_t)s.gap * sizeof(float)) != 0) return false;
    }
    return true;
}

static void outcome_add(outcome *total, const outcome *part) {
    if (part->products && (!total->products || part->used > total->used)) {
        total->shape = part->shape;
        total->layout = part->layout;
        total->worst = part->worst;
        total->used = part->used;
    }
    total->products += part->products;
    total->broken += part->broken;
    total->unrepeatable += part->unrepeatable;
    total->relative = fmax(total->relative, part->relative);
}

/* One product, twice. */
static int grade_product(grading *g, int family_index, int shape_index, const product_shape *p, const material *x) {
    const family *f = &families[family_index];
    shape s = shapes[shape_index];
    stored_product asked = {.shape = *p,
                            .alpha = f->alpha,
                            .beta = f->beta,
                            .a = x->a_stored[p->transpose_a],
                            .b = x->b_stored[p->transpose_b],
                            .lda = stored_width(p->transpose_a, s.m, s.k) + s.gap,
                            .ldb = stored_width(p->transpose_b, s.k, s.n) + s.gap,
                            .ldc = s.n + s.gap};
    float *results[] = {x->c, x->again};
    for (int i = 0; i < 2; i++) {
        memcpy(results[i], x->before, x->c_count * sizeof(float));
        asked.c = results[i];
        int status = multiply(g, &asked);
        if (status) return status;
    }
    tsr_result c = {.data = x->c, .rows = s.m, .cols = s.n, .row_stride = s.n + s.gap, .col_stride = 1};
    judgement j = judge(&x->exact, &c);
    bool outside = !gaps_unchanged(x, s), repeated = memcmp(x->c, x->again, x->c_count * sizeof(float)) == 0;
    bool kept = within_contract(&j, g->precision) && !(f->exact && j.inexact) && !outside;
    outcome one = {.products = 1,
                   .broken = !kept,
                   .unrepeatable = !repeated,
                   .shape = shape_index,
                   .layout = *p,
                   .worst = j,
                   .used = contract_share(&j, g->precision),
                   .relative = j.relative};
    outcome_add(&g->outcomes[family_index][shape_index], &one);
    g->wrote_outside |= outside;
    char *failure = g->failures[family_index];
    if (!failure[0] && !(kept && repeated)) describe_failure(failure, p, &j, outside, repeated || !kept);
    return EXIT_OK;
}

static bool is_held_to(const family *f, tsr_precision precision) { return !(f->skipped_tf32 && precision == TSR_TF32); }

int grade_family(grading *gradings, int count, int family_index, scope limit, uint64_t seed) {
    const family *f = &families[family_index];
    int status = EXIT_OK;
    bool tf32 = false;
    for (int i = 0; i < count; i++) tf32 |= gradings[i].precision == TSR_TF32;
    for (int i = 0; i < SHAPE_TOTAL && !status; i++) {
        shape s = shapes[i];
        if (s.scope > limit) continue;
        progress_step("%s, %lld x %lld x %lld", f->name, (long long)s.m, (long long)s.n, (long long)s.k);
        material x;
        if ((status = material_make(&x, f, s, tf32, seed + (uint64_t)i))) return status;
        for (int g = 0; g < count && !status; g++) {
            if (!is_held_to(f, gradings[g].precision)) continue;
            if (gradings[g].device) status = device_use_precision(gradings[g].device, gradings[g].precision);
            for (int layout = 0; layout < 4 && !status; layout++) {
                product_shape p = {s.m, s.n, s.k, layout & 1, layout >> 1};
                status = grade_product(&gradings[g], family_index, i, &p, &x);
            }
        }
        material_free(&x);
    }
    return status;
}

/* ---- Sums and grades --------------------------------------------------------------------------------------------- */

outcome outcome_of_family(const grading *g, int family_index) {
    outcome total = {0};
    for (int i = 0; i < SHAPE_TOTAL; i++) outcome_add(&total, &g->outcomes[family_index][i]);
    return total;
}

outcome outcome_of_shape(const grading *g, int shape_index) {
    outcome total = {0};
    for (int i = 0; i < FAMILY_TOTAL; i++) outcome_add(&total, &g->outcomes[i][shape_index]);
    return total;
}

outcome outcome_of_all(const grading *g) {
    outcome total = {0};
    for (int i = 0; i < SHAPE_TOTAL; i++) {
        outcome part = outcome_of_shape(g, i);
        outcome_add(&total, &part);
    }
    return total;
}

attention_outcome attention_of_all(const grading *g) {
    attention_outcome total = {0};
    for (int i = 0; i < ATTENTION_FAMILY_TOTAL; i++) {
        total.calls += g->attention[i].calls;
        total.broken += g->attention[i].broken;
        total.unrepeatable += g->attention[i].unrepeatable;
        total.used = fmax(total.used, g->attention[i].used);
    }
    return total;
}

char grade_of(const grading *g) {
    bool broken[] = {[ORDINARY] = g->wrote_outside, [HARD] = false, [SPECIAL] = false};
    for (int i = 0; i < FAMILY_TOTAL; i++) broken[families[i].kind] |= outcome_of_family(g, i).broken > 0;
    for (int i = 0; i < ATTENTION_FAMILY_TOTAL; i++) broken[attention_families[i].kind] |= g->attention[i].broken > 0;
    if (broken[ORDINARY]) return 'F';
    if (broken[HARD]) return 'D';
    if (broken[SPECIAL]) return 'C';
    return outcome_of_all(g).unrepeatable || attention_of_all(g).unrepeatable ? 'B' : 'A';
}

const char *grade_meaning(char grade) {
    switch (grade) {
    case 'A': return "the contract is kept everywhere, with the same bits when computed again";
    case 'B': return "the contract is kept everywhere, but the bits differ when computed again";
    case 'C': return "kept on finite, normal numbers; zeros, subnormals, range ends, NaN or Inf come out otherwise";
    case 'D': return "kept on well-scaled data; broken where exponents spread or terms cancel";
    default: return "broken on ordinary, well-scaled data";
    }
}
