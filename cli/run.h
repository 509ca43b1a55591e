/* run.h: another program, started and waited for. */
#ifndef TESSERA_CLI_RUN_H
#define TESSERA_CLI_RUN_H

/* Starts it and passes signals on until it ends; then as waitpid says. -1: there is no process for it. Where it cannot
 * be run, that is printed, and the exit code is 126 or 127. */
int program_wait(char **words);

/* A file in memory to which the program's processes add lines, through its name in /proc, which `variable` in their
 * environment has; -1: there is none. */
int program_report(const char *variable);

#endif
