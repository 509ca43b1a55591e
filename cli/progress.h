/* progress.h: a line on standard error that says how far a run has come. Shown from the second second on, only where
 * standard error is a terminal that is not dumb, and erased afterwards, by Ctrl-C, too. */
#ifndef TESSERA_CLI_PROGRESS_H
#define TESSERA_CLI_PROGRESS_H

/* Begins a run of `total` steps; 0: their number is not known. */
void progress_begin(int total);

/* Begins the next step, which the line then names. */
void progress_step(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* How long the step that has just begun will take, by an estimate. */
void progress_expect(double seconds);

/* Prints to standard output with the line out of the way. */
void progress_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Takes the line away until it is next due. */
void progress_erase(void);

void progress_end(void);

#endif
