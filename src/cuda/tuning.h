/* tuning.h: the cost model's constants from a file that `tessera tune` wrote, and notes of products for it. */
#ifndef TESSERA_CUDA_TUNING_H
#define TESSERA_CUDA_TUNING_H

#include "cuda/kernels.h"

/* Sets device->costs, to be freed, and device->tuning. A file that cannot be used is named there, with the reason, and
 * the built-in table serves. */
tsr_status tuning_load(cuda_device *device);

/* Adds a product that was queued to the file that TESSERA_RECORD names, unless this process has already: "precision
 * batch m n k", then the row, column and batch strides of A, B and C. */
bool tuning_records(void);
void tuning_record(const tsr_context *context, const tsr_problem *problem);

#endif
