/* verbose.c: the line of TESSERA_VERBOSE. */
#include "verbose.h"

#include <stdio.h>
#include <unistd.h>

static char operation(const tsr_operand *packed, bool transpose) { return packed ? 'P' : transpose ? 'T' : 'N'; }

/* One write, so that lines of threads and processes do not mix. */
void blas_verbose_print(const blas_product *p, const blas_outcome *outcome, tsr_precision precision, double seconds) {
    char batch[32] = "", threads[32] = "", line[512];
    if (p->batch != 1) snprintf(batch, sizeof batch, " batch:%lld", (long long)p->batch);
    if (outcome->threads) snprintf(threads, sizeof threads, " NThr:%d", outcome->threads);
    const int length = snprintf(
        line, sizeof line,
        "TESSERA_VERBOSE SGEMM(%c,%c,%lld,%lld,%lld,%g,%p,%lld,%p,%lld,%g,%p,%lld)%s %.2fus %s%s %s%s%s\n",
        operation(p->packed_a, p->transpose_a), operation(p->packed_b, p->transpose_b), (long long)p->m,
        (long long)p->n, (long long)p->k, (double)p->alpha, (const void *)p->a, (long long)p->lda, (const void *)p->b,
        (long long)p->ldb, (double)p->beta, (void *)p->c, (long long)p->ldc, batch, 1e6 * seconds, outcome->device,
        threads, tsr_precision_name(precision), outcome->failure[0] ? ", finished by the CPU: " : "", outcome->failure);
    if (length > 0) {
        const size_t whole = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
        if (write(STDERR_FILENO, line, whole) < 0) return; /* there is nobody to tell */
    }
}
