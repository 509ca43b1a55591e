/* absent.c: stands in for offloading in a library built without the CUDA engine, where no context is on a GPU. */
#include "offload/offload.h"

tsr_status offload_multiply(tsr_context *context, const tsr_problem *problem, double *share) {
    (void)context, (void)problem, (void)share;
    return TSR_UNSUPPORTED;
}

tsr_status offload_seconds(tsr_context *context, const tsr_problem *problem, bool reads_c, double *seconds) {
    (void)context, (void)problem, (void)reads_c, (void)seconds;
    return TSR_UNSUPPORTED;
}

void offload_release(tsr_context *context) { (void)context; }
