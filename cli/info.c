/* info.c: `tessera info`, what this machine and build offer. */
#include <stdio.h>
#include <stdlib.h>

#include "command.h"
#include "selftest.h"

static int run_info(const options *chosen) {
    if (chosen->argument_count) return misuse("unexpected argument '%s'", chosen->arguments[0]);
    size_t size = tsr_info_print(NULL, 0) + 1;
    char *text = malloc(size);
    if (!text) return fail("no memory for %zu bytes of text", size);
    tsr_info_print(text, size);
    fputs(text, stdout);
    free(text);
    return selftest_print_brief(stdout);
}

const command info_command = {
    .name = "info",
    .arguments = "",
    .summary = "what this machine and build offer: engines, instruction sets, GPUs, kernels",
    .description =
        "Prints the version, the engines, the instruction sets and GPUs they can use here, and the kernels,\n"
        "whose names `tessera check --kernel` and `tessera plan --kernel` take. The last line is a brief\n"
        "`tessera selftest`.\n",
    .run = run_info,
};
