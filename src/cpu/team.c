/* team.c: a pool of worker threads, and teams of them.
 *
 * Workers are started when first wanted, up to the most that one call ever asked for. Between calls each watches a word
 * of its own for a while, because the next product often follows at once, and then sleeps on it. Calling a worker that
 * watches takes 0.2 microseconds; waking one takes it 30, and its caller 7. A caller takes idle workers from a list and
 * never waits for one, so any number of application threads may multiply at once.
 *
 * Workers run where their caller may: see follow_caller. They block the application's signals except those that an
 * instruction of their own raises, which are for the handler that the application has installed.
 *
 * A forked child starts with an empty pool. When the library is unloaded or the process exits, the workers are joined,
 * unless a product is being computed at that moment: the application's thread still needs them.
 */
#include "cpu/team.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- Waiting for a word to change -------------------------------------------------------------------------------- */

/* How long a thread watches a word before it goes to sleep: long enough for the next of many products in a row to find
 * its workers awake, short enough that an idle process shows no load. */
enum { WATCH_NANOSECONDS = 100000, LOOKS_PER_GLANCE_AT_CLOCK = 32 };

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static_assert(sizeof(atomic_uint) == sizeof(unsigned), "a futex is a plain 32-bit word");

/* True where the word changed while it was watched. */
static bool changes_soon(atomic_uint *word, unsigned value) {
    int64_t end = 0;
    do {
        for (int i = 0; i < LOOKS_PER_GLANCE_AT_CLOCK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
            cpu_pause();
        }
        if (!end) end = nanoseconds() + WATCH_NANOSECONDS;
    } while (nanoseconds() < end);
    return false;
}

static void sleep_while(atomic_uint *word, unsigned value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake_sleepers(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0); }

static void wait_while(struct cpu_signal *signal, unsigned value) {
    if (changes_soon(&signal->value, value)) return;
    atomic_fetch_add(&signal->sleepers, 1);
    while (atomic_load(&signal->value) == value) sleep_while(&signal->value, value);
    atomic_fetch_sub(&signal->sleepers, 1);
}

/* Called after the value has changed. All operations on it are sequentially consistent: a thread that is not counted as
 * a sleeper here sees the change. */
static void wake_all(struct cpu_signal *signal) {
    if (atomic_load(&signal->sleepers)) wake_sleepers(&signal->value);
}

/* ---- Teams ------------------------------------------------------------------------------------------------------- */

/* A bit of team->running: the caller sleeps, and the last worker wakes it. */
enum { CALLER_SLEEPS = 1 << 30 };

/* team->state in one word, so that joining and a barrier cannot cross: barriers << 32 | members << 16 | arrived. */
enum { ARRIVED = 0xffff };
static const uint64_t one_member = 1u << 16, one_barrier = 1ull << 32;

static unsigned arrived_in(uint64_t state) { return (unsigned)(state & ARRIVED); }
static unsigned members_in(uint64_t state) { return (unsigned)(state >> 16 & ARRIVED); }
static unsigned barriers_in(uint64_t state) { return (unsigned)(state >> 32); }

/* Becomes a member, except between the last one's arrival and the release. Returns the barriers passed until then. */
static unsigned join(struct cpu_team *team) {
    uint64_t state = atomic_load(&team->state);
    for (;;) {
        if (arrived_in(state) == members_in(state)) {
            sched_yield();
            state = atomic_load(&team->state);
        } else if (atomic_compare_exchange_weak(&team->state, &state, state + one_member))
            return barriers_in(state);
    }
}

void cpu_team_barrier(struct cpu_team *team, void (*reset)(void *shared), void *shared) {
    if (team->size == 1) {
        reset(shared);
        return;
    }
    const uint64_t state = atomic_fetch_add(&team->state, 1) + 1;
    if (arrived_in(state) == members_in(state)) { /* the last: nobody else changes the state until it is released */
        reset(shared);
        atomic_store(&team->state, state - arrived_in(state) + one_barrier);
        atomic_store(&team->barriers.value, barriers_in(state) + 1);
        wake_all(&team->barriers);
        return;
    }
    /* team->barriers may lag behind the state, but cannot pass the barrier that waits for this member. */
    for (unsigned passed;
         (passed = atomic_load_explicit(&team->barriers.value, memory_order_acquire)) != barriers_in(state) + 1;)
        wait_while(&team->barriers, passed);
}

/* ---- The pool ---------------------------------------------------------------------------------------------------- */

/* As many as options.threads allows, less the caller. */
enum { MOST_WORKERS = 1023 };

struct worker {
    pthread_t thread;
    struct worker *next_idle;
    struct cpu_team *_Atomic team; /* what it was called for, until it takes the call or is sent back; NULL: nothing */
    int number;                    /* in the pool */
    int index;                     /* in the team */
    cpu_set_t cores;               /* that it may run on */
    atomic_bool leave;             /* end when there is nothing left to do */
    struct cpu_signal calls;       /* changes when team or leave has been set */
};

static struct {
    pthread_mutex_t lock; /* of everything here */
    struct worker *workers[MOST_WORKERS], *idle;
    int count;
    bool closed;        /* callers work alone: the library is going away, or forks would go unnoticed */
    atomic_int callers; /* in cpu_team_run; grows only under the lock */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void make_idle(struct worker *worker) {
    pthread_mutex_lock(&pool.lock);
    worker->next_idle = pool.idle;
    pool.idle = worker;
    pthread_mutex_unlock(&pool.lock);
}

static void *worker_main(void *argument) {
    struct worker *self = argument;
    for (unsigned seen = 0;;) {
        wait_while(&self->calls, seen);
        seen = atomic_load_explicit(&self->calls.value, memory_order_acquire);
        struct cpu_team *team = atomic_exchange(&self->team, NULL);
        if (team) {
            struct cpu_member member = {.team = team, .index = self->index, .joined = join(team)};
            team->work(&member, team->argument);
            make_idle(self); /* before the caller hears of it, so that its next product finds this worker */
            /* The team may be gone after this, but for its address. */
            if (atomic_fetch_sub(&team->running, 1) == (1 | CALLER_SLEEPS)) wake_sleepers(&team->running);
        }
        if (atomic_load(&self->leave)) return NULL;
    }
}

static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&pool.lock); }

/* The workers did not come along: forget them. */
static void after_fork_in_child(void) {
    for (int i = 0; i < pool.count; i++) free(pool.workers[i]);
    pool.idle = NULL;
    pool.count = 0;
    atomic_store(&pool.callers, 0);
    pthread_mutex_unlock(&pool.lock);
}

/* When the library is loaded: before a thread can hold the lock while another forks. */
static __attribute__((constructor)) void watch_forks(void) {
    pool.closed = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0;
}

/* The rest of this section is called with the pool locked. */

/* What an instruction raises in the thread that executes it. A worker that blocked these would be killed where the
 * application's handler could have helped: a page that is made readable on demand, a truncated file. */
static const int synchronous_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};

static struct worker *start_worker(void) {
    struct worker *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof synchronous_signals / sizeof *synchronous_signals; i++)
        sigdelset(&blocked, synchronous_signals[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int failed = pthread_create(&made->thread, NULL, worker_main, made);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(made);
        return NULL;
    }
    sched_getaffinity(0, sizeof made->cores, &made->cores); /* it has inherited the caller's */
    made->number = pool.count;
    pool.workers[pool.count++] = made;
    return made;
}

static struct worker *take_worker(int most) {
    if (pool.closed) return NULL;
    struct worker *taken = pool.idle;
    if (taken) {
        pool.idle = taken->next_idle;
        return taken;
    }
    return pool.count < most && pool.count < MOST_WORKERS ? start_worker() : NULL;
}

static void call(struct worker *worker) {
    atomic_fetch_add(&worker->calls.value, 1);
    wake_all(&worker->calls);
}

/* ---- Where workers run ------------------------------------------------------------------------------------------- */

/* The cores for a team's workers: the caller's, as long as each member has one. Otherwise those of the process's first
 * thread, because a caller that is bound to one core (OMP_PROC_BIND) does not mean its workers. False if Linux does not
 * say. */
static bool find_cores(cpu_set_t *cores, int size) {
    if (sched_getaffinity(0, sizeof *cores, cores)) return false;
    if (CPU_COUNT(cores) >= size) return true;
    cpu_set_t of_process;
    if (!sched_getaffinity(getpid(), sizeof of_process, &of_process) && CPU_COUNT(&of_process) > CPU_COUNT(cores))
        *cores = of_process;
    return true;
}

/* Moves a worker that another caller's cores still bind. */
static void follow_caller(struct worker *worker, const cpu_set_t *cores) {
    if (!CPU_EQUAL(&worker->cores, cores) && !pthread_setaffinity_np(worker->thread, sizeof *cores, cores))
        worker->cores = *cores;
}

/* ---- Running a team ---------------------------------------------------------------------------------------------- */

static _Atomic int64_t last_end; /* of a team: when its workers began to watch for the next */

/* Whether this is one of many short products in a row, so close together that workers, once awake, stay awake from one
 * to the next. */
static bool is_in_a_row(void) {
    enum { MANY = 4 };
    static atomic_int row;
    const int64_t since = nanoseconds() - atomic_load_explicit(&last_end, memory_order_relaxed);
    const int before = since > WATCH_NANOSECONDS ? 0 : atomic_load_explicit(&row, memory_order_relaxed);
    if (before < MANY) atomic_store_explicit(&row, before + 1, memory_order_relaxed);
    return before == MANY;
}

static void wait_for_workers(atomic_uint *running) {
    for (unsigned left; (left = atomic_load(running)) && left != CALLER_SLEEPS;) {
        if (left & CALLER_SLEEPS)
            sleep_while(running, left);
        else if (!changes_soon(running, left))
            atomic_fetch_or(running, CALLER_SLEEPS);
    }
}

static void work_as_caller(struct cpu_team *team) {
    struct cpu_member caller = {.team = team};
    team->work(&caller, team->argument);
}

static void run_with_workers(struct cpu_team *team, int size) {
    uint16_t called[size - 1]; /* numbers: a worker that is done may be in another team before this one has ended */
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.callers, 1);
    for (struct worker *worker; team->size < size && (worker = take_worker(size - 1)); team->size++)
        called[team->size - 1] = (uint16_t)worker->number;
    pthread_mutex_unlock(&pool.lock);
    atomic_init(&team->state, one_member);
    atomic_init(&team->barriers.value, 0);
    atomic_init(&team->barriers.sleepers, 0);
    atomic_init(&team->running, (unsigned)team->size - 1);
    cpu_set_t cores;
    const bool follows = !team->is_short &&
                         find_cores(&cores, size); /* two system calls: too much for a short product */
    for (int i = 1; i < team->size; i++) {
        struct worker *worker = pool.workers[called[i - 1]];
        if (follows) follow_caller(worker, &cores);
        worker->index = i;
        atomic_store(&worker->team, team);
        call(worker);
    }
    work_as_caller(team);

    for (int i = 1; i < team->size; i++) {
        struct worker *worker = pool.workers[called[i - 1]];
        struct cpu_team *mine = team;
        if (!atomic_compare_exchange_strong(&worker->team, &mine, NULL)) continue;
        make_idle(worker);
        atomic_fetch_sub(&team->running, 1);
    }
    wait_for_workers(&team->running);
    atomic_fetch_sub(&pool.callers, 1);
}

/* ---- Entry points ------------------------------------------------------------------------------------------------ */

void cpu_team_run(struct cpu_team *team, int size) {
    team->size = 1;
    if (size < 2) {
        work_as_caller(team);
        return;
    }
    if (team->is_short && !is_in_a_row())
        work_as_caller(team);
    else
        run_with_workers(team, size);
    atomic_store_explicit(&last_end, nanoseconds(), memory_order_relaxed);
}

static __attribute__((destructor)) void join_workers(void) {
    pthread_mutex_lock(&pool.lock);
    pool.closed = true;
    const int count = atomic_load(&pool.callers) ? 0 : pool.count;
    for (int i = 0; i < count; i++) {
        atomic_store(&pool.workers[i]->leave, true);
        call(pool.workers[i]);
    }
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < count; i++) {
        pthread_join(pool.workers[i]->thread, NULL);
        free(pool.workers[i]);
    }
    if (count) pool.count = 0;
}
