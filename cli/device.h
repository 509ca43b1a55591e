/* device.h: where a subcommand computes: the CPU, or one GPU with the copies to it and back. */
#ifndef TESSERA_CLI_DEVICE_H
#define TESSERA_CLI_DEVICE_H

#include <stddef.h>

#include "options.h"
#include "shape.h"

typedef struct device {
    tsr_options made_from;
    tsr_context *context;
    char name[160]; /* "cpu: ..." or "cuda:0: ..." */
    void *stream;   /* CUDA alone has these */
    void *primary, *start, *stop;
} device;

/* Seconds that `batch` products would take on the CPU by tsr_plan_seconds; INFINITY if they cannot be planned. */
double device_cpu_seconds(const options *chosen, const product_shape *p, int64_t batch);

/* Opens the device the options choose, with a context at their precision. `auto` takes the GPU if there is one that
 * holds `bytes`, and if the CPU would need longer, `cpu_seconds`, than a GPU to start; otherwise the CPU. EXIT_OK or
 * EXIT_FAILED. */
int device_open(device *d, const options *chosen, double cpu_seconds, double bytes);
void device_close(device *d);

/* How many GPUs there are for it to open; 0 without a driver or without the CUDA engine. */
int device_gpu_count(void);

/* Replaces the context by one at another precision. */
int device_use_precision(device *d, tsr_precision precision);

/* The address at which the device reads a host array: on the CPU its own, on a GPU that of a copy. */
int device_input(device *d, const float **data, const float *host, size_t bytes);

/* The address at which the device writes what device_fetch brings into `host`; device_send goes the other way. */
int device_output(device *d, float **data, float *host, size_t bytes);
int device_send(device *d, float *data, const float *host, size_t bytes);
int device_fetch(device *d, float *host, const float *data, size_t bytes);

/* Undoes device_input or device_output; NULL is allowed. */
void device_release(device *d, const float *data);

/* C = alpha*A*B + beta*C, finished when it returns. */
int device_multiply(device *d, float alpha, const tsr_operand *a, const tsr_operand *b, float beta,
                    const tsr_result *c);

/* Seconds one execution takes. Samples are taken for `seconds` after a warm-up, each long enough for the clock; a
 * product that alone takes longer is executed once. On a GPU its own clock is read. */
typedef struct timing {
    double best, median;
    int samples, calls_per_sample;
} timing;

int device_time(device *d, timing *t, const tsr_plan *plan, const float *a, const float *b, float *c, double seconds);

/* A graph of so many executions, and the seconds that all of them take on a GPU. */
int device_capture(device *d, void **graph, int calls, const tsr_plan *plan, const float *a, const float *b, float *c,
                   const tsr_launch *launch);
int device_replay(device *d, void *graph, double *seconds);
void device_forget(void *graph); /* NULL is allowed */

/* Seconds since some moment. */
double device_clock(void);

/* Whether a GPU has so many bytes of free memory. */
bool device_has_room(device *d, double bytes);

/* Calls `each` with the name of every kernel of an engine, "cpu" or "cuda", that runs here, until one call fails. */
int device_kernels(const char *engine, int (*each)(void *data, const char *name), void *data);

/* The plan as tsr_plan_print has it, to be freed. */
int plan_as_text(char **text, const tsr_plan *plan);

/* What the library says of the last failure, as a sentence of this command. */
int fail_status(const char *what, tsr_status status);

#endif
