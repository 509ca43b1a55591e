/* selftest.h: products whose results are known, on every kernel this machine can run. */
#ifndef TESSERA_CLI_SELFTEST_H
#define TESSERA_CLI_SELFTEST_H

#include <stdio.h>

/* The short form for `tessera info`: a few products on every CPU kernel and, at each precision, on the first GPU.
 * Prints "selftest: passed (N products)", or which kernel and element are wrong. EXIT_OK or EXIT_FAILED. */
int selftest_print_brief(FILE *to);

#endif
