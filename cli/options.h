/* options.h: the options of all subcommands, parsed in one place so that each means the same everywhere. */
#ifndef TESSERA_CLI_OPTIONS_H
#define TESSERA_CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "tessera.h"

enum {
    OPTION_OUTPUT = 1 << 0,
    OPTION_TRANSPOSE_A = 1 << 1,
    OPTION_TRANSPOSE_B = 1 << 2,
    OPTION_PRECISION = 1 << 3,
    OPTION_THREADS = 1 << 4,
    OPTION_DEVICE = 1 << 5,
    OPTION_BATCH = 1 << 6,
    OPTION_KERNEL = 1 << 7,
    OPTION_SEED = 1 << 8,
    OPTION_QUICK = 1 << 9,
    OPTION_SECONDS = 1 << 10,
    OPTION_JSON = 1 << 11,
    OPTION_REPORT = 1 << 12,
    OPTION_LIBRARY = 1 << 13,
    OPTION_INVARIANT = 1 << 14,
    OPTION_RECORD = 1 << 15,
    OPTION_TOTAL_SECONDS = 1 << 16,
    OPTION_PROGRAM = 1 << 17 /* not an option: words from the first non-option on belong to another program */,
    OPTION_TRANSPOSE = OPTION_TRANSPOSE_A | OPTION_TRANSPOSE_B
};

typedef enum device_choice { CHOOSE_AUTO, CHOOSE_CPU, CHOOSE_CUDA } device_choice;

typedef struct options {
    char **arguments; /* what is no option, in order */
    int argument_count;
    const char *output;
    bool transpose_a, transpose_b;
    tsr_precision precision;
    bool precision_given;
    int threads; /* 0: as many as there are cores */
    device_choice device;
    int device_index;
    int64_t batch;
    const char *kernel;
    bool batch_invariant;
    uint64_t seed;
    bool quick;
    double seconds;
    bool json;
    bool record;
    bool report;
    const char *report_file; /* NULL: standard output */
    const char *library;     /* whose products are checked; NULL: Tessera's own */
} options;

/* Parses what follows the subcommand's name; `accepted` are the options it takes. Words that are no options are
 * gathered at the front of `words`. EXIT_OK, or EXIT_USAGE having said why; *help: --help was among the words. */
int options_parse(options *chosen, unsigned accepted, int count, char **words, bool *help);

/* The lines of --help for the options in `accepted`. */
void options_print_help(unsigned accepted);

/* A whole number from `least` to `most`; `name` is what the message calls it. EXIT_OK or EXIT_USAGE. */
int parse_count(int64_t *count, const char *name, const char *text, int64_t least, int64_t most);

/* Which precisions a run covers: the one given, else all three. Returns how many. */
int precisions_chosen(const options *chosen, tsr_precision precisions[3]);

#endif
