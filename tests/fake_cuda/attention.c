/* attention.c: what each kernel of attention promises (src/cuda/kernels/attention_args.h), in plain C.
 * Packed tiles are filled with a pattern that the kernels which read them look for, so that a workspace laid out
 * wrongly shows; results come from the operands themselves. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/attention_args.h"
#include "dropout.h"
#include "fake.h"

enum { PATTERN = 0x5a };

static const float *row_of(const heads_in *x, int batch, int head, int row) {
    return x->data + batch * x->batch_stride + head * x->head_stride + row * x->row_stride;
}
static float *row_to(const heads_out *x, int batch, int head, int row) {
    return x->data + batch * x->batch_stride + head * x->head_stride + row * x->row_stride;
}
static double dot(const float *x, int64_t x_stride, const float *y, int64_t y_stride, int dim) {
    double sum = 0;
    for (int c = 0; c < dim; c++) sum += (double)x[c * x_stride] * y[c * y_stride];
    return sum;
}
static int seen_by(const attention_args *g, int i) { return g->causal && i + 1 < g->keys ? i + 1 : g->keys; }
static int kv_head_of(const attention_args *g, int head) { return head / (g->heads / g->kv_heads); }

static double score(const attention_args *g, int batch, int head, int i, int j) {
    const double mask = g->mask.data ? row_of(&g->mask, batch, head, i)[j * g->mask.col_stride] : 0;
    return mask + g->scale * dot(row_of(&g->q, batch, head, i), g->q.col_stride,
                                 row_of(&g->k, batch, kv_head_of(g, head), j), g->k.col_stride, g->dim);
}

/* What dropout multiplies a weight by. */
static double kept(const attention_args *g, int batch, int head, int i, int j) {
    uint32_t numbers[4];
    if (!g->drop_below) return 1;
    dropout_numbers(dropout_key_of(g->seed, g->offset, (uint32_t)(batch * g->heads + head)), (uint32_t)i, (uint32_t)j,
                    numbers);
    const uint32_t number = numbers[2 * (i / 8 % 2) + j / 8 % 2] >> 16 * (j % 2) & 0xffff;
    return number < g->drop_below ? 0 : dropout_scale(g->drop_below);
}

static void forward(const attention_args *g, int batch, int head, int i) {
    double largest = -INFINITY, total = 0, *sums = calloc((size_t)g->dim, sizeof *sums);
    const int seen = seen_by(g, i);
    for (int j = 0; j < seen; j++) largest = fmax(largest, score(g, batch, head, i, j));
    for (int j = 0; j < seen; j++) {
        const double weight = exp(score(g, batch, head, i, j) - (largest == -INFINITY ? 0 : largest));
        const float *v = row_of(&g->v, batch, kv_head_of(g, head), j);
        total += weight;
        const double factor = weight * kept(g, batch, head, i, j);
        for (int c = 0; c < g->dim; c++) sums[c] += factor * v[c * g->v.col_stride];
    }
    for (int c = 0; c < g->dim; c++)
        row_to(&g->o, batch, head, i)[c * g->o.col_stride] = total == 0 ? 0 : (float)(sums[c] / total);
    if (g->lse.data) *row_to(&g->lse, batch, head, i) = total == 0 ? INFINITY : (float)(largest + log(total));
    free(sums);
}

/* The weight of a key after dropout, and dS, from what the forward pass wrote. */
static double differentiate(const attention_args *g, int batch, int head, int i, int j, double *ds) {
    const float *grad_o = row_of(&g->grad_o, batch, head, i);
    const double weight = exp(score(g, batch, head, i, j) - *row_to(&g->lse, batch, head, i));
    const double delta = dot(grad_o, g->grad_o.col_stride, row_to(&g->o, batch, head, i), g->o.col_stride, g->dim);
    const double dp = dot(grad_o, g->grad_o.col_stride, row_of(&g->v, batch, kv_head_of(g, head), j), g->v.col_stride,
                          g->dim);
    const double factor = kept(g, batch, head, i, j);
    *ds = weight * (factor * dp - delta);
    return factor * weight;
}

static void grad_q(const attention_args *g, int batch, int head, int i) {
    double *sums = calloc((size_t)g->dim, sizeof *sums), ds;
    for (int j = 0; j < seen_by(g, i); j++) {
        const float *k = row_of(&g->k, batch, kv_head_of(g, head), j);
        differentiate(g, batch, head, i, j, &ds);
        for (int c = 0; c < g->dim; c++) sums[c] += ds * k[c * g->k.col_stride];
    }
    for (int c = 0; c < g->dim; c++)
        row_to(&g->grad_q, batch, head, i)[c * g->grad_q.col_stride] = (float)(g->scale * sums[c]);
    free(sums);
}

static void grad_kv(const attention_args *g, int batch, int kv_head, int j) {
    const int group = g->heads / g->kv_heads;
    double *dk = calloc(2 * (size_t)g->dim, sizeof *dk), *dv = dk + g->dim, ds;
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int i = g->causal ? j : 0; i < g->queries; i++) {
            const double weight = differentiate(g, batch, head, i, j, &ds);
            for (int c = 0; c < g->dim; c++) {
                dk[c] += ds * row_of(&g->q, batch, head, i)[c * g->q.col_stride];
                dv[c] += weight * row_of(&g->grad_o, batch, head, i)[c * g->grad_o.col_stride];
            }
        }
    for (int c = 0; c < g->dim; c++) {
        if (g->grad_k.data) row_to(&g->grad_k, batch, kv_head, j)[c * g->grad_k.col_stride] = (float)(g->scale * dk[c]);
        if (g->grad_v.data) row_to(&g->grad_v, batch, kv_head, j)[c * g->grad_v.col_stride] = (float)dv[c];
    }
    free(dk);
}

/* Every packed operand: filled, or looked at. False: it is not as it was filled. */
static bool packed(const attention_args *g, int operands, bool fill) {
    const packed_heads *all[] = {&g->packed_q, &g->packed_k, &g->packed_v, &g->packed_grad_o};
    for (int n = 0; n < operands; n++) {
        const bool of_queries = n == 0 || n == 3;
        const int64_t tiles = (int64_t)g->batch * (of_queries ? g->heads * g->tiles_q : g->kv_heads * g->tiles_k);
        const int64_t bytes = tiles * 2 * ((g->dim + ATTENTION_COLS - 1) / ATTENTION_COLS) * ATTENTION_BLOCK_BYTES;
        if (fill) memset(all[n]->tiles, PATTERN, (size_t)bytes);
        for (int64_t i = 0; i < tiles && fill; i++) all[n]->downs[i] = 1;
        for (int64_t i = 0; i < bytes; i++)
            if (all[n]->tiles[i] != PATTERN) return false;
        for (int64_t i = 0; i < tiles; i++)
            if (all[n]->downs[i] != 1) return false;
    }
    const int64_t queries = (int64_t)g->batch * g->heads * g->tiles_q * ATTENTION_ROWS;
    for (int64_t i = 0; i < queries && operands > 3; i++) {
        if (fill) g->delta[i] = 2, g->padded_lse[i] = 3, g->shift[i] = 4;
        if (g->delta[i] != 2 || g->padded_lse[i] != 3 || g->shift[i] != 4) return false;
    }
    return true;
}

/* Every row, of the split kernels, or where nothing says which; false: carried rows are to be computed again. */
static bool run_rows(const attention_args *g, bool ieee, int heads, int rows, int tiles, int32_t *recompute,
                     void (*compute)(const attention_args *, int, int, int)) {
    if (ieee && recompute) return !recompute[0];
    for (int64_t n = 0; !ieee && n < (int64_t)g->batch * heads * tiles * 2; n++) recompute[n] = 0;
    for (int batch = 0; batch < g->batch; batch++)
        for (int head = 0; head < heads; head++)
            for (int row = 0; row < rows; row++) compute(g, batch, head, row);
    return true;
}

bool fake_attention_run(const fake_launch *l, const void *args, char *why, size_t size) {
    const attention_args *g = args;
    const char *name = l->kernel;
    const bool ieee = strstr(name, "_ieee_") || strstr(name, "_small_"),
               wide = strstr(name, "_192") || strstr(name, "_256");
    const bool backward = strstr(name, "_grad_") || strstr(name, "_backward_");
    const unsigned threads = ieee                                               ? 128
                             : strstr(name, "_short")                           ? 512
                             : strstr(name, "_forward_") || (backward && !wide) ? 384
                                                                                : 256;
    if (l->threads != threads) return snprintf(why, size, "%u threads", l->threads), false;
    if (strstr(name, "_pack_")) return packed(g, (int)l->grid[1], true);
    if (!ieee && !strstr(name, "_short") && !packed(g, backward ? 4 : 3, false))
        return snprintf(why, size, "packed operands were overwritten"), false;
    const bool of_q = ieee || !backward || strstr(name, "_q_"), of_k = backward && (ieee || !strstr(name, "_q_"));
    if (of_q && (!backward || g->grad_q.data))
        if (!run_rows(g, ieee, g->heads, g->queries, g->tiles_q, g->recompute_q, backward ? grad_q : forward))
            return snprintf(why, size, "recomputes a tile that was carried"), false;
    if (of_k && (g->grad_k.data || g->grad_v.data))
        if (!run_rows(g, ieee, g->kv_heads, g->keys, g->tiles_k, g->recompute_k, grad_kv))
            return snprintf(why, size, "recomputes a tile that was carried"), false;
    return true;
}
