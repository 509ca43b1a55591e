/* workload.h: a product of uniform random matrices to be timed, on the host and where the device sees it. */
#ifndef TESSERA_CLI_WORKLOAD_H
#define TESSERA_CLI_WORKLOAD_H

#include "device.h"
#include "shape.h"

typedef struct workload {
    product_shape shape;
    float *a, *b, *c; /* on the host; c is not filled */
    const float *a_data, *b_data;
    float *c_data;
} workload;

/* EXIT_OK or EXIT_FAILED; either way workload_free is due. */
int workload_make(workload *w, device *d, const product_shape *shape, uint64_t seed);
void workload_free(workload *w, device *d);

/* Plans the product in the device's context and times it. *plan_text: the plan as tsr_plan_print has it, to be freed;
 * plan_text may be NULL. */
int workload_time(const workload *w, device *d, timing *t, double seconds, char **plan_text);

#endif
