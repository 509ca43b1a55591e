/* command.h: what every subcommand of `tessera` is made of. */
#ifndef TESSERA_CLI_COMMAND_H
#define TESSERA_CLI_COMMAND_H

#include "options.h"

/* What the command returns to the shell. */
enum { EXIT_OK = 0, EXIT_FAILED = 1 /* computation, files or a check */, EXIT_USAGE = 2 };

typedef struct command {
    const char *name;
    const char *arguments;   /* as the usage line shows them */
    const char *summary;     /* one line, for `tessera --help` */
    const char *description; /* the rest, for its own --help; lines end in \n */
    unsigned options;        /* which it takes: OPTION_ bits */
    int (*run)(const options *chosen);
} command;

extern const command mul_command, info_command, plan_command, check_command, bench_command, reference_command,
    run_command, selftest_command, tune_command;

/* Both say on standard error what went wrong, as "tessera NAME: sentence", and return the exit code to pass on. */
int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
int misuse(const char *format, ...) __attribute__((format(printf, 1, 2))); /* and where to find help */

#endif
