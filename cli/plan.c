/* plan.c: `tessera plan`, how a product of this shape would be computed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "device.h"
#include "shape.h"

static int print_plan(const device *d, const product_shape *p, int64_t batch) {
    tsr_operand a, b;
    tsr_result c;
    if (!shape_batch(p, &a, &b, &c))
        return fail("the matrices of M,N,K = %lld,%lld,%lld have more elements than 64 bits count", (long long)p->m,
                    (long long)p->n, (long long)p->k);
    tsr_plan *plan;
    tsr_status made = tsr_plan_create(&plan, d->context, batch, &a, &b, &c);
    if (made) return fail_status("cannot plan this product", made);
    char *text;
    int status = plan_as_text(&text, plan);
    if (!status) printf("device: %s\n%s", d->name, text);
    free(text);
    tsr_plan_destroy(plan);
    return status;
}

static int run_plan(const options *chosen) {
    char **words = chosen->arguments;
    const bool is_one_word = chosen->argument_count == 1 && strchr(words[0], ',');
    if (chosen->argument_count != 3 && !is_one_word)
        return misuse("it takes three sizes, M N K or M,N,K, and got %d", chosen->argument_count);
    product_shape p = {.transpose_a = chosen->transpose_a, .transpose_b = chosen->transpose_b};
    int status = is_one_word ? shape_parse_word(&p, words[0]) : shape_parse(&p, words[0], words[1], words[2]);
    if (status) return status;
    device d;
    const double seconds = device_cpu_seconds(chosen, &p, chosen->batch);
    if ((status = device_open(&d, chosen, seconds, (double)chosen->batch * shape_bytes(&p)))) return status;
    status = print_plan(&d, &p, chosen->batch);
    device_close(&d);
    return status;
}

const command plan_command = {
    .name = "plan",
    .arguments = "M N K | M,N,K",
    .summary = "how a product of this shape would be computed",
    .description = "Prints how A (M x K) times B (K x N) would be computed: device, kernel, blocking, threads,\n"
                   "workspace, estimated time. Nothing is multiplied. `--device auto` chooses as `tessera mul` does.\n",
    .options = OPTION_TRANSPOSE | OPTION_PRECISION | OPTION_THREADS | OPTION_INVARIANT | OPTION_DEVICE | OPTION_BATCH |
               OPTION_KERNEL,
    .run = run_plan,
};
