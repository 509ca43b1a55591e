/* estimate.c: how long a product in host memory takes on a GPU. Copies both ways and products run at once, so that the
 * slowest of them counts. */
#include "offload/offload.h"

#include "plan.h"
#include "rounding.h"

/* Measured on an H200 behind PCIe 5.0 and the 16 cores beside it: cubes of 1024 to 16384 within 5 %. */
static const struct {
    double call;        /* seconds of a product without copies: starting, the first strip, the last block */
    double bus;         /* bytes a second in each direction, the delay of the last strip included */
    double copy_thread; /* bytes a second that one CPU thread copies into the ring, or out of it */
} rates = {4e-4, 4.5e10, 1e10};

tsr_status offload_seconds(tsr_context *context, const tsr_problem *p, bool reads_c, double *seconds) {
    tsr_plan plan = {.context = context, .problem = *p};
    const tsr_status status = plan_make(&plan);
    if (status) return status;
    const uint64_t mode = cpu_rounding_begin();
    const double batch = (double)p->batch, c = sizeof(float) * batch * (double)p->m * (double)p->n;
    const double in = sizeof(float) * (double)p->k *
                          ((double)p->m * (double)operand_count(&p->a, p->batch) +
                           (double)p->n * (double)operand_count(&p->b, p->batch)) +
                      (reads_c ? c : 0);
    const double candidates[] = {in / rates.bus, c / rates.bus,
                                 (in + c) / (rates.copy_thread * context->options.threads), plan_seconds(&plan)};
    double slowest = 0;
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++)
        if (candidates[i] > slowest) slowest = candidates[i];
    *seconds = rates.call + slowest;
    cpu_rounding_end(mode);
    return TSR_OK;
}
