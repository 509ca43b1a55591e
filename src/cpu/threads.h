/* threads.h: the pool, as gemm.c and amx_gemm.c see it.
 *
 * A gang is the caller and some workers of the pool running one function together. The pool gives what workers are
 * idle, and nobody waits for one to wake up: the caller begins at once, a worker joins when it gets there, and one that
 * has not by the end is sent back. So a gang may be smaller than asked for, down to the caller alone; what the members
 * compute must not depend on how many they are. They share work by taking numbers from counters, and meet in
 * cpu_gang_arrive.
 */
#ifndef TESSERA_CPU_THREADS_H
#define TESSERA_CPU_THREADS_H

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Work, in multiply-adds, that each of many threads must have, or it costs more than it brings. Fewer are sooner brought
 * together: each of two must have twice, each of three three times CPU_WORK_PER_FEW_THREADS. */
enum { CPU_WORK_PER_THREAD = 450000, CPU_WORK_PER_FEW_THREADS = 50000 };

/* How many threads are of use, at most as many as there are. */
static inline int cpu_useful_threads(double multiply_adds, int threads) {
    const double of_many = multiply_adds / CPU_WORK_PER_THREAD, of_few = sqrt(multiply_adds / CPU_WORK_PER_FEW_THREADS);
    const double useful = of_many > of_few ? of_many : of_few;
    return useful < 1 ? 1 : useful < threads ? (int)useful : threads;
}

/* Work that is over before a sleeping thread could be awake. */
enum { CPU_BRIEF_WORK = 3000000 };

/* A number that threads wait for to change, and how many of them sleep: where none does, nobody has to be woken. */
struct cpu_signal {
    atomic_uint value, sleepers;
};

struct cpu_gang {
    /* member: 0 is the caller, workers have numbers below `size`. met: how many meetings took place before it joined.
     * The work between the last of them and the next is still open to it; all that came before is done. */
    void (*work)(int member, unsigned met, void *argument);
    void *argument;
    bool brief;             /* not worth waking workers for: they come only where there are many such in a row */
    int size;               /* the most it can have */
    _Atomic uint64_t state; /* meetings held, members, and how many of those have arrived: see threads.c */
    struct cpu_signal met;  /* meetings held */
    atomic_uint running;    /* workers called that have neither finished nor been sent back; waited on, see threads.c */
};

/* The next number of a counter that members share. */
static inline int64_t cpu_take(_Atomic int64_t *counter) {
    return atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* Runs work(member, met, argument) on a gang of at most `size`; returns when every member has. */
void cpu_gang_run(struct cpu_gang *gang, int size);

/* Waits until every member is here. Returns true to the last, which alone may then change what the members share, and
 * must call cpu_gang_release; false to the others, once it has. */
bool cpu_gang_arrive(struct cpu_gang *gang);
void cpu_gang_release(struct cpu_gang *gang);

#endif
