/* faults.h: makes one call of a kind fail, or all from one on. A program linked with the library calls these; any other
 * program is run with LD_PRELOAD and the environment variables named in faults.c. */
#ifndef TESSERA_TESTS_FAULTS_H
#define TESSERA_TESTS_FAULTS_H

#include <stdbool.h>

enum fault_kind { FAULT_MEMORY, FAULT_MMAP, FAULT_THREAD, FAULT_WRITE, FAULT_KINDS };

/* "memory", "mmap", "thread" or "write"; FAULT_KINDS for any other name. */
enum fault_kind faults_kind(const char *name);

/* From now on the call of this kind with that number, counted from 1, fails; for_good: and all after it. */
void faults_begin(enum fault_kind kind, long number, bool for_good);

/* Calls succeed again. Returns how many failed. */
long faults_end(void);

#endif
