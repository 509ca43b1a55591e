/* stream.c: products of few terms whose C is large: writing it takes longest.
 *
 * A store to a line that is not in cache waits for the line. So each tile prefetches the lines of C of the tile below
 * it. C is computed in parts as wide as the panels of B that fit into the first-level cache.
 */
#include "cpu/stream.h"

#include "cpu/pack.h"
#include "cpu/touch.h"
#include "problem.h"

/* Elements of C from which on it is far, and the most terms: with more, multiplying takes longer than writing. */
enum { LEAST_FLOATS = 1 << 15, MOST_TERMS = 64, MOST_TERMS_IN_PLACE = 40 };

/* Columns that are written at a time. */
enum { MOST_COLUMNS = 512 };

/* Very few terms are computed row after row (few_terms.h). With more terms a B that nearly fits into the first-level
 * cache is left in place, and where its rows are contiguous any B for few rows of C, because tiles prefetch it as they
 * go. Where B has to be transposed, that must be worth while: small.c hides it behind multiply-adds. */
bool cpu_is_streamed(const struct cpu_kernel *kernel, const struct cpu_tile *t, int64_t b_col) {
    enum { BY_ROWS = 10, LEAST_PANELS = 3, LEAST_USES = 4, LEAST_ROWS = 64, ENOUGH_TERMS = 24, NEAR = 12 << 10 };
    if (t->k == 1 || (t->k <= BY_ROWS && t->n * t->k <= CPU_NEAR_FLOATS)) return false;
    if (!kernel->transpose || t->n < LEAST_PANELS * kernel->nr || t->m * (int64_t)t->n < LEAST_FLOATS) return false;
    if (t->k >= ENOUGH_TERMS && t->n * t->k <= NEAR) return false;
    return b_col == 1 ? t->k <= MOST_TERMS_IN_PLACE && t->m >= LEAST_ROWS
                      : t->k <= MOST_TERMS && t->m >= LEAST_USES * t->k;
}

static void pack_columns(const struct cpu_kernel *kernel, float *panels, const struct cpu_tile *t, int64_t b_col,
                         int first, int columns) {
    const int nr = kernel->nr, terms = (int)t->k;
    if (t->b_step != 1 || b_col == 1) {
        cpu_pack_panels(panels, t->b + first * b_col, columns, terms, b_col, t->b_step, nr);
        return;
    }
    for (int j = 0; j < columns; j += nr)
        kernel->transpose(panels + j * terms, nr, t->b + (first + j) * b_col, b_col,
                          columns - j < nr ? columns - j : nr, terms);
}

void cpu_multiply_streamed(const struct cpu_kernel *kernel, const struct cpu_tile *t, int64_t b_col) {
    _Alignas(64) float panels[CPU_NEAR_FLOATS];
    const int mr = kernel->mr, nr = kernel->nr;
    const int most = (int)min64(CPU_NEAR_FLOATS / t->k, MOST_COLUMNS) / nr * nr;
    const int parts = (t->n + most - 1) / most, width = ((t->n + parts - 1) / parts + nr - 1) / nr * nr;
    for (int first = 0; first < t->n; first += width) {
        const int columns = t->n - first < width ? t->n - first : width;
        pack_columns(kernel, panels, t, b_col, first, columns);
        struct cpu_tile tile = *t;
        tile.b_step = nr;
        for (int left = t->m; left > 0; left -= mr) {
            tile.m = left < mr ? left : mr;
            if (!first) touch_matrix(tile.a, tile.m, t->k, t->a_row, t->a_step);
            for (int j = 0; j < columns; j += nr) {
                tile.n = columns - j < nr ? columns - j : nr;
                tile.b = panels + j * t->k;
                tile.s = tile.c = t->c + (t->m - left) * t->c_row + first + j;
                tile.next_c = left > mr ? tile.c + mr * t->c_row : NULL;
                kernel->multiply(&tile);
            }
            tile.a += tile.m * t->a_row;
        }
    }
}
