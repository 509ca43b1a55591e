/* output.h: a file that is written whole or not at all. Until output_commit it has a temporary name beside its final
 * one, and is removed when the run fails or a signal ends it. One at a time. It takes over the permissions of the file
 * that it replaces. */
#ifndef TESSERA_CLI_OUTPUT_H
#define TESSERA_CLI_OUTPUT_H

#include <sys/types.h>

typedef struct output_file {
    char *path; /* the final name, links resolved; NULL: standard output */
    int file;
    int error; /* errno of the first write that failed */
} output_file;

/* Creates the file ("-": standard output, which gets what is written at once) and reserves `size` bytes (0: not known
 * yet), so that a full disk is noticed before the work. EXIT_OK, or EXIT_FAILED with the reason printed; then there is
 * nothing to discard. */
int output_create(output_file *output, const char *path, off_t size);

/* output_commit reports a failure. */
void output_write(output_file *output, const void *data, size_t size);

/* Gives the file its name. The output is closed even if that fails. */
int output_commit(output_file *output);
void output_discard(output_file *output);

/* Removes the temporary file, for a signal handler that is about to end the process. */
void output_abandon(void);

#endif
