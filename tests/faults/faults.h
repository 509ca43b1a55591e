/* faults.h: makes one call of a kind fail, or all from one on. A program linked with the library calls these; any other
 * program is run with LD_PRELOAD and the environment variables named in faults.c. */
#ifndef TESSERA_TESTS_FAULTS_H
#define TESSERA_TESTS_FAULTS_H

#include <stdbool.h>
#include <stddef.h>

/* FAULT_FILE: everything done with files and their descriptors; FAULT_WRITE: write() alone. */
enum fault_kind { FAULT_MEMORY, FAULT_MMAP, FAULT_THREAD, FAULT_WRITE, FAULT_FILE, FAULT_KINDS };

/* "memory", "mmap", "thread", "write" or "file"; FAULT_KINDS for any other name. */
enum fault_kind faults_kind(const char *name);

/* Only calls from these shared objects, of those that are loaded, count: words of their paths, with colons in between.
 * operator new then counts as a call of its caller. Returns how many objects there are. */
int faults_only_from(const char *words);

/* errno of calls of FAULT_FILE and FAULT_WRITE that fail; at first ENOSPC. */
void faults_error(int error);

/* From now on the call of this kind with that number, counted from 1, fails; for_good: and all after it. */
void faults_begin(enum fault_kind kind, long number, bool for_good);

/* Calls succeed again. Returns how many failed. */
long faults_end(void);

/* The most bytes that aligned_alloc, which allocates workspace, was asked for at once since this was last called. */
size_t faults_largest(void);

#endif
