/* threads.h: the pool, as gemm.c sees it.
 *
 * A gang is the caller and some workers of the pool running one function together. The pool gives what workers are idle,
 * so a gang may be smaller than asked for, down to the caller alone; what the members compute must not depend on how many
 * they are. They share work by taking numbers from counters and meet in cpu_gang_arrive.
 */
#ifndef TESSERA_CPU_THREADS_H
#define TESSERA_CPU_THREADS_H

#include <stdatomic.h>
#include <stdbool.h>

struct cpu_gang {
    void (*work)(int member, void *argument);
    void *argument;
    int size;             /* members, numbered from 0; 0 is the caller */
    atomic_int arrived;   /* members waiting in cpu_gang_arrive */
    atomic_uint meetings; /* counts releases; waited on */
    atomic_uint running;  /* workers that have not finished; waited on */
};

/* Runs work(member, argument) on a gang of at most `size`; returns when every member has. */
void cpu_gang_run(struct cpu_gang *gang, int size);

/* Waits until every member is here. Returns true to the last, which alone may then change what the members share, and
 * must call cpu_gang_release; false to the others, once it has. */
bool cpu_gang_arrive(struct cpu_gang *gang);
void cpu_gang_release(struct cpu_gang *gang);

#endif
