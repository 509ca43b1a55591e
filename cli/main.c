/* main.c: the `tessera` command. Finds the subcommand, parses its options, runs it. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "progress.h"

static const command *const commands[] = {&mul_command,   &info_command,     &plan_command,
                                          &check_command, &bench_command,    &reference_command,
                                          &run_command,   &selftest_command, &tune_command};

enum { COMMAND_TOTAL = sizeof commands / sizeof commands[0] };

static const command *running; /* messages begin with its name */

static void complain(const char *format, va_list arguments) {
    progress_erase();
    fprintf(stderr, running ? "tessera %s: " : "tessera: ", running ? running->name : "");
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
}

int fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    complain(format, arguments);
    va_end(arguments);
    return EXIT_FAILED;
}

int misuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    complain(format, arguments);
    va_end(arguments);
    fprintf(stderr, "try: tessera %s%s--help\n", running ? running->name : "", running ? " " : "");
    return EXIT_USAGE;
}

static void print_help(void) {
    printf("usage: tessera COMMAND ...\n\nMultiplies float32 matrices, and shows how well.\n\n");
    for (int i = 0; i < COMMAND_TOTAL; i++) printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    printf("\n  --help     print this and stop; `tessera help COMMAND` explains a command\n"
           "  --version  print the version and stop\n\n"
           "exit codes: 0 done, 1 failed (files, memory, device, a check not passed), 2 called wrongly\n");
}

static void print_command_help(const command *c) {
    printf("usage: tessera %s%s%s%s\n\n%s\n", c->name, c->options ? " [options]" : "", c->arguments[0] ? " " : "",
           c->arguments, c->description);
    options_print_help(c->options);
    printf("\nexit codes: 0 done, 1 failed, 2 called wrongly\n");
}

static int run(int count, char **words) {
    if (count < 2) return misuse("which command?");
    const char *name = words[1];
    const bool asks_help = strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0;
    if (asks_help && count == 2) {
        print_help();
        return EXIT_OK;
    }
    if (asks_help) name = words[2];
    if (strcmp(name, "--version") == 0) {
        printf("tessera %s\n", tsr_version());
        return EXIT_OK;
    }
    for (int i = 0; i < COMMAND_TOTAL && !running; i++)
        if (strcmp(name, commands[i]->name) == 0) running = commands[i];
    if (!running) return misuse("there is no command '%s'", name);

    options chosen;
    bool help = asks_help;
    int status = asks_help ? EXIT_OK : options_parse(&chosen, running->options, count - 2, words + 2, &help);
    if (status) return status;
    if (help) {
        print_command_help(running);
        return EXIT_OK;
    }
    return running->run(&chosen);
}

int main(int count, char **words) {
    int status = run(count, words);
    progress_end();
    /* Output that was not written is a failure, even if the work succeeded. */
    if (fflush(stdout) || ferror(stdout)) {
        int why = errno;
        if (!status) status = fail("cannot write standard output: %s", strerror(why));
    }
    return status;
}
