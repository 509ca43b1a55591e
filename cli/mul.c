/* mul.c: `tessera mul`, the product of two .npy files. */
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "device.h"
#include "npy.h"
#include "progress.h"
#include "shape.h"

static tsr_operand operand_of(const npy_matrix *matrix, bool transpose) {
    const tsr_operand o = {.data = matrix->data,
                           .rows = matrix->rows,
                           .cols = matrix->cols,
                           .row_stride = matrix->row_stride,
                           .col_stride = matrix->col_stride};
    return transpose ? operand_transposed(&o) : o;
}

static int multiply_files(const options *chosen, const npy_matrix *a_file, const npy_matrix *b_file) {
    tsr_operand a = operand_of(a_file, chosen->transpose_a), b = operand_of(b_file, chosen->transpose_b);
    if (a.cols != b.rows)
        return fail(
            "the shapes do not match: %s is %lld x %lld%s and %s is %lld x %lld%s, but the columns of the first "
            "must equal the rows of the second",
            chosen->arguments[0], (long long)a.rows, (long long)a.cols, chosen->transpose_a ? " (transposed)" : "",
            chosen->arguments[1], (long long)b.rows, (long long)b.cols, chosen->transpose_b ? " (transposed)" : "");
    product_shape p = {a.rows, b.cols, a.cols, chosen->transpose_a, chosen->transpose_b};
    float *product;
    npy_output output;
    device d;
    int status = matrix_allocate(&product, "the result", p.m, p.n);
    if (status) return status;
    if ((status = npy_create(&output, chosen->output, p.m, p.n))) goto free_product;
    if ((status = device_open(&d, chosen, device_cpu_seconds(chosen, &p, 1), 0))) goto discard_output;

    const tsr_result c = {.data = product, .rows = p.m, .cols = p.n, .row_stride = p.n, .col_stride = 1};
    progress_step("multiplying %lld x %lld x %lld on %s", (long long)p.m, (long long)p.n, (long long)p.k, d.name);
    progress_expect(tsr_gemm_host_seconds(d.context, 1, &a, &b, 0, &c));
    const tsr_status multiplied = tsr_gemm_host(d.context, 1, 1, &a, &b, 0, &c, NULL);
    if (multiplied) status = fail_status("cannot multiply", multiplied);
    device_close(&d);
    if (status) goto discard_output;

    progress_step("writing %s", chosen->output);
    status = npy_commit(&output, product);
    goto free_product;

discard_output:
    npy_discard(&output);
free_product:
    free(product);
    return status;
}

static int run_mul(const options *chosen) {
    if (chosen->argument_count != 2)
        return misuse("it takes two files, A.npy B.npy, and got %d", chosen->argument_count);
    if (strcmp(chosen->arguments[0], "-") == 0 && strcmp(chosen->arguments[1], "-") == 0)
        return misuse("standard input can be one of the two matrices, not both");
    if (!chosen->output || !*chosen->output) return misuse("where shall the result go? Name a file with -o");
    progress_begin(0);
    npy_matrix a, b;
    int status = npy_open(&a, chosen->arguments[0]);
    if (status) return status;
    if (!(status = npy_open(&b, chosen->arguments[1]))) {
        status = multiply_files(chosen, &a, &b);
        npy_close(&b);
    }
    npy_close(&a);
    return status;
}

const command mul_command = {
    .name = "mul",
    .arguments = "A.npy B.npy -o C.npy",
    .summary = "multiply two matrices in NumPy files",
    .description = "Multiplies A by B and writes C. The files hold float32 matrices as numpy.save writes them, in C\n"
                   "or Fortran order; C is written in C order. C may be one of the inputs. A run that fails leaves\n"
                   "whatever was at C as it was. `-` is standard input or output; inputs may be pipes.\n"
                   "\n"
                   "--precision   fp32 (default) float32-accurate for every input, on the fastest units that can be\n"
                   "              ieee           every operation in IEEE float32 or wider\n"
                   "              tf32           operands rounded to 11 significant bits\n"
                   "--device      auto takes the GPU if there is one and the CPU would take longer than its start\n",
    .options = OPTION_OUTPUT | OPTION_TRANSPOSE | OPTION_PRECISION | OPTION_THREADS | OPTION_INVARIANT | OPTION_DEVICE,
    .run = run_mul,
};
