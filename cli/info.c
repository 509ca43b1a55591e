/* info.c: `tessera info`, what this machine and build offer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "json.h"
#include "selftest.h"

/* The length of a line's name, up to the ": ". */
static size_t name_length(const char *line) { return strcspn(line, ":"); }

static const char *next_line(const char *line) { return line + strcspn(line, "\n") + 1; }

/* Lines "name: value" as members of an object. A name of two words, as "cpu kernel", may have several lines: it becomes
 * a list, "cpu_kernels". Those of CUDA are there even if they are empty. */
static void print_json(const char *lines) {
    const char *former = NULL;
    for (const char *line = lines; *line; former = line, line = next_line(line)) {
        const size_t length = name_length(line);
        const bool is_list = memchr(line, ' ', length) != NULL;
        const bool continues = former && name_length(former) == length && memcmp(former, line, length) == 0;
        if (!continues) {
            char name[64];
            snprintf(name, sizeof name, "%.*s%s", (int)length, line, is_list ? "s" : "");
            for (char *space = name; (space = strchr(space, ' '));) *space = '_';
            printf("%s\n  \"%s\": %s", former ? "," : "{", name, is_list ? "[" : "");
        }
        if (is_list) printf("%s\n    ", continues ? "," : "");
        json_string(stdout, line + length + 2, strcspn(line + length + 2, "\n"));
        const char *after = next_line(line);
        if (is_list && !(name_length(after) == length && memcmp(after, line, length) == 0)) printf("\n  ]");
    }
    if (!strstr(lines, "\ncuda gpu: ")) printf(",\n  \"cuda_gpus\": []");
    if (!strstr(lines, "\ncuda kernel: ")) printf(",\n  \"cuda_kernels\": []");
    printf("\n}\n");
}

static int run_info(const options *chosen) {
    if (chosen->argument_count) return misuse("unexpected argument '%s'", chosen->arguments[0]);
    size_t size = tsr_info_print(NULL, 0) + 1, all_size;
    char *text = malloc(size), *all = NULL;
    FILE *lines = text ? open_memstream(&all, &all_size) : NULL;
    if (!lines) return fail("no memory for %zu bytes of text", size);
    tsr_info_print(text, size);
    fputs(text, lines);
    const int status = selftest_print_brief(lines);
    fclose(lines);
    if (chosen->json)
        print_json(all);
    else
        fputs(all, stdout);
    free(all);
    free(text);
    return status;
}

const command info_command = {
    .name = "info",
    .arguments = "",
    .summary = "what this machine and build offer: engines, instruction sets, GPUs, kernels",
    .description =
        "Prints the version, the engines, the instruction sets and GPUs they can use here, and the kernels,\n"
        "whose names `tessera check --kernel` and `tessera plan --kernel` take. The last line is a brief\n"
        "`tessera selftest`.\n",
    .options = OPTION_JSON,
    .run = run_info,
};
