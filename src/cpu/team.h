/* team.h: the threads that compute one product together, and the pool they come from.
 *
 * A team is the caller and some workers of the pool running one function. Nobody waits for a worker to wake up: the
 * caller begins at once, a worker joins when it gets there, and one that has not by the end is sent back. So a team may
 * be smaller than asked for, down to the caller alone; what the members compute must not depend on how many they are.
 * They share work by taking numbers from counters, and wait for each other at barriers.
 *
 * Products are computed in stages: all members pack, wait at a barrier, and multiply. A member that joins late skips
 * the stages that are over, and helps to multiply in the one that is packed.
 */
#ifndef TESSERA_CPU_TEAM_H
#define TESSERA_CPU_TEAM_H

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Multiply-adds that each of many threads must have to be worth its overhead. Small teams assemble faster: each of two
 * threads needs twice CPU_WORK_PER_FEW_THREADS, each of three threads three times as much. */
enum { CPU_WORK_PER_THREAD = 450000, CPU_WORK_PER_FEW_THREADS = 50000 };

/* Multiply-adds that take as long as reading an element from memory: where C has few rows or columns, that is the
 * limit. */
enum { CPU_WORK_OF_READING = 4 };

/* How many threads are of use, at most as many as there are. */
static inline int cpu_useful_threads(double multiply_adds, int threads) {
    const double of_many = multiply_adds / CPU_WORK_PER_THREAD, of_few = sqrt(multiply_adds / CPU_WORK_PER_FEW_THREADS);
    const double useful = of_many > of_few ? of_many : of_few;
    return useful < 1 ? 1 : useful < threads ? (int)useful : threads;
}

/* A number that threads wait on until it changes, and how many of them sleep: if none does, there is nobody to wake. */
struct cpu_signal {
    atomic_uint value, sleepers;
};

struct cpu_member;

struct cpu_team {
    void (*work)(struct cpu_member *self, void *argument);
    void *argument;
    bool is_short;              /* not worth waking workers for: called only if such products follow each other */
    int size;                   /* the most members it can have; set by cpu_team_run */
    _Atomic uint64_t state;     /* barriers passed, members, and how many of those have arrived: see team.c */
    struct cpu_signal barriers; /* barriers passed */
    atomic_uint running;        /* workers called that have neither finished nor been sent back; see team.c */
};

struct cpu_member {
    struct cpu_team *team;
    int index;       /* 0 is the caller; workers have numbers below team->size */
    unsigned joined; /* barriers that the team had passed when it joined */
    unsigned stage;  /* the number of the stage it is at: one barrier each */
};

/* Whether a member packs and multiplies in the stage it is at, multiplies only, or skips it. */
enum cpu_stage { CPU_STAGE_OPEN, CPU_STAGE_PACKED, CPU_STAGE_OVER };

static inline enum cpu_stage cpu_stage(const struct cpu_member *self) {
    if (self->stage >= self->joined) return CPU_STAGE_OPEN;
    return self->stage + 1 == self->joined ? CPU_STAGE_PACKED : CPU_STAGE_OVER;
}

/* The next number of a counter that members share. */
static inline int64_t cpu_take(_Atomic int64_t *counter) {
    return atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* Between two looks at a word that another thread will change. */
static inline void cpu_pause(void) {
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* Runs team->work on a team of at most `size`; returns when every member has. */
void cpu_team_run(struct cpu_team *team, int size);

/* A team whose only member works on its own. */
static inline struct cpu_team cpu_team_of_one(void) { return (struct cpu_team){.size = 1}; }

/* Waits until every member is here. The last to arrive calls reset(shared), which alone may then change what the
 * members share, before any of them goes on. */
void cpu_team_barrier(struct cpu_team *team, void (*reset)(void *shared), void *shared);

#endif
