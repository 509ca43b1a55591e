/* main.c: a program that uses the installed library, valid as C11 and as C++. Exits 0 when the product is right. */
#include <stdio.h>
#include <tessera.h>

int main(void) {
    const float a[2 * 3] = {1, 2, 3, 4, 5, 6}, b[3 * 2] = {7, 8, 9, 10, 11, 12};
    float c[2 * 2] = {0, 0, 0, 0};
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.precision = TSR_IEEE;
    tsr_context *context;
    if (tsr_context_create(&context, &options) != TSR_OK) {
        fprintf(stderr, "%s\n", tsr_last_error());
        return 1;
    }
    const tsr_operand left = {a, 2, 3, 3, 1, 0, NULL}, right = {b, 3, 2, 2, 1, 0, NULL};
    const tsr_result result = {c, 2, 2, 2, 1, 0};
    const tsr_status status = tsr_gemm(context, 1, &left, &right, 0, &result, NULL);
    tsr_context_destroy(context);
    printf("tessera %s: %s %g %g %g %g\n", tsr_version(), tsr_status_name(status), (double)c[0], (double)c[1],
           (double)c[2], (double)c[3]);
    return !(status == TSR_OK && c[0] == 58 && c[1] == 64 && c[2] == 139 && c[3] == 154);
}
