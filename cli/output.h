/* output.h: a file that is written whole or not at all. Until output_commit it lies beside its final name under a
 * temporary one, which goes when the run fails or is interrupted. One at a time. */
#ifndef TESSERA_CLI_OUTPUT_H
#define TESSERA_CLI_OUTPUT_H

#include <sys/types.h>

typedef struct output_file {
    char *path; /* the final name, links resolved */
    int file;
    int error; /* errno of the first write that failed */
} output_file;

/* Makes the file and takes disk space for `size` bytes (0: not known yet), so that a full disk is found out before the
 * work and not after. EXIT_OK, or EXIT_FAILED having said why; then there is nothing to discard. */
int output_create(output_file *output, const char *path, off_t size);

/* A failure is kept for output_commit to tell. */
void output_write(output_file *output, const void *data, size_t size);

/* Gives the file its name. Success or not, the output is done with. */
int output_commit(output_file *output);
void output_discard(output_file *output);

/* Removes what lies under the temporary name, for a signal handler that is about to end the process. */
void output_abandon(void);

#endif
