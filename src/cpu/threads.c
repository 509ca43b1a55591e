/* threads.c: a pool of worker threads.
 *
 * Workers are started when first wanted, up to the most that one call ever asked for, and then wait on a futex of their
 * own: they look at it for a while, because the next product often follows at once, before they sleep. To be called costs
 * one that looks 0.2 microseconds; to be woken 30, and its caller 7. A caller takes idle workers from
 * a list and never waits for one, so any number of application threads may multiply at once. A forked child starts with
 * an empty pool. When the library is unloaded or the process exits, the workers are joined, except where a process exits
 * in the middle of a product: the application's thread that computes it still counts on them.
 */
#include "threads.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cpu.h"

/* ---- Waiting for a word to change -------------------------------------------------------------------------------- */

/* How long a word is looked at before its reader goes to sleep: long enough for the next of many products in a row to find
 * its workers awake, short enough that an idle process shows no load. */
enum { WATCH_NANOSECONDS = 100000, LOOKS_PER_GLANCE_AT_CLOCK = 32 };

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void pause_briefly(void) {
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static_assert(sizeof(atomic_uint) == sizeof(unsigned), "a futex is a plain 32-bit word");

/* True where the word changed while its reader looked. */
static bool changes_soon(atomic_uint *word, unsigned value) {
    int64_t end = 0;
    do {
        for (int i = 0; i < LOOKS_PER_GLANCE_AT_CLOCK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
            pause_briefly();
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

/* After a change of the value, in the one order of all such operations: a thread that this finds awake sees the change. */
static void wake_all(struct cpu_signal *signal) {
    if (atomic_load(&signal->sleepers)) wake_sleepers(&signal->value);
}

/* ---- Gangs ------------------------------------------------------------------------------------------------------- */

/* A bit of gang->running: its caller has to be woken by the last worker. */
enum { CALLER_SLEEPS = 1 << 30 };

/* gang->state in one word, so that joining and meeting cannot cross: meetings << 32 | members << 16 | arrived. */
enum { ARRIVED = 0xffff };
static const uint64_t one_member = 1u << 16, one_meeting = 1ull << 32;

static unsigned arrived_in(uint64_t state) { return (unsigned)(state & ARRIVED); }
static unsigned members_in(uint64_t state) { return (unsigned)(state >> 16 & ARRIVED); }
static unsigned meetings_in(uint64_t state) { return (unsigned)(state >> 32); }

/* Becomes a member, except between the last one's arrival and the release. Returns the meetings held until then. */
static unsigned join(struct cpu_gang *gang) {
    uint64_t state = atomic_load(&gang->state);
    for (;;) {
        if (arrived_in(state) == members_in(state)) {
            sched_yield();
            state = atomic_load(&gang->state);
        } else if (atomic_compare_exchange_weak(&gang->state, &state, state + one_member))
            return meetings_in(state);
    }
}

bool cpu_gang_arrive(struct cpu_gang *gang) {
    if (gang->size == 1) return true;
    const uint64_t state = atomic_fetch_add(&gang->state, 1) + 1;
    if (arrived_in(state) == members_in(state)) return true;
    /* gang->met may lag behind the state, but cannot pass the meeting that waits for this member. */
    for (unsigned met; (met = atomic_load_explicit(&gang->met.value, memory_order_acquire)) != meetings_in(state) + 1;)
        wait_while(&gang->met, met);
    return false;
}

void cpu_gang_release(struct cpu_gang *gang) {
    if (gang->size == 1) return;
    const uint64_t state = atomic_load(&gang->state); /* nobody else changes it now */
    atomic_store(&gang->state, state - arrived_in(state) + one_meeting);
    atomic_store(&gang->met.value, meetings_in(state) + 1);
    wake_all(&gang->met);
}

/* ---- The pool ---------------------------------------------------------------------------------------------------- */

struct worker {
    pthread_t thread;
    struct worker *next; /* of all workers */
    struct worker *next_idle;
    struct cpu_gang *_Atomic gang; /* what it was called for, until it takes the call or is sent back; NULL: nothing */
    int member;
    atomic_bool leave;       /* end when there is nothing left to do */
    struct cpu_signal calls; /* changes when gang or leave has been set */
};

static struct {
    pthread_mutex_t lock; /* of everything here */
    struct worker *all, *idle;
    int count;
    bool closed;        /* callers work alone: the library is going away, or forks would go unnoticed */
    atomic_int callers; /* in cpu_gang_run; grows only under the lock */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *worker_main(void *argument) {
    struct worker *self = argument;
    for (unsigned seen = 0;;) {
        wait_while(&self->calls, seen);
        seen = atomic_load_explicit(&self->calls.value, memory_order_acquire);
        struct cpu_gang *gang = atomic_exchange(&self->gang, NULL);
        if (gang) {
            gang->work(self->member, join(gang), gang->argument);
            /* Idle before the caller hears of it, so that its next product finds this worker. */
            pthread_mutex_lock(&pool.lock);
            self->next_idle = pool.idle;
            pool.idle = self;
            pthread_mutex_unlock(&pool.lock);
            /* The gang may be gone after this, but for its address. */
            if (atomic_fetch_sub(&gang->running, 1) == (1 | CALLER_SLEEPS)) wake_sleepers(&gang->running);
        }
        if (atomic_load(&self->leave)) return NULL;
    }
}

static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&pool.lock); }

/* The workers did not come along: forget them. */
static void after_fork_in_child(void) {
    while (pool.all) {
        struct worker *gone = pool.all;
        pool.all = gone->next;
        free(gone);
    }
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

static struct worker *start_worker(void) {
    struct worker *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    /* The application's signals are for its own threads. */
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    const int failed = pthread_create(&made->thread, NULL, worker_main, made);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(made);
        return NULL;
    }
    made->next = pool.all;
    pool.all = made;
    pool.count++;
    return made;
}

static struct worker *take_worker(int most) {
    if (pool.closed) return NULL;
    struct worker *taken = pool.idle;
    if (taken) {
        pool.idle = taken->next_idle;
        return taken;
    }
    return pool.count < most ? start_worker() : NULL;
}

static void call(struct worker *worker) {
    atomic_fetch_add(&worker->calls.value, 1);
    wake_all(&worker->calls);
}

/* ---- The end of a gang ------------------------------------------------------------------------------------------- */

static void wait_for_workers(atomic_uint *running) {
    for (unsigned left; (left = atomic_load(running)) && left != CALLER_SLEEPS;) {
        if (left & CALLER_SLEEPS)
            sleep_while(running, left);
        else if (!changes_soon(running, left))
            atomic_fetch_or(running, CALLER_SLEEPS);
    }
}

/* ---- Running a gang ---------------------------------------------------------------------------------------------- */

static _Atomic int64_t last_end; /* of a gang: when its workers began to watch for the next */

/* Whether this is one of many brief gangs in a row, so close together that their workers, once awake, stay so from one to the
 * next. */
static bool is_in_a_row(void) {
    enum { MANY = 4 };
    static atomic_int row;
    const int64_t since = nanoseconds() - atomic_load_explicit(&last_end, memory_order_relaxed);
    const int before = since > WATCH_NANOSECONDS ? 0 : atomic_load_explicit(&row, memory_order_relaxed);
    if (before < MANY) atomic_store_explicit(&row, before + 1, memory_order_relaxed);
    return before == MANY;
}

static void run_with_workers(struct cpu_gang *gang, int size) {
    struct worker *called[size - 1];
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.callers, 1);
    while (gang->size < size && (called[gang->size - 1] = take_worker(size - 1))) gang->size++;
    pthread_mutex_unlock(&pool.lock);
    atomic_init(&gang->state, one_member);
    atomic_init(&gang->met.value, 0);
    atomic_init(&gang->met.sleepers, 0);
    atomic_init(&gang->running, (unsigned)gang->size - 1);
    for (int i = 1; i < gang->size; i++) {
        called[i - 1]->member = i;
        atomic_store(&called[i - 1]->gang, gang);
        call(called[i - 1]);
    }
    gang->work(0, 0, gang->argument);

    for (int i = 1; i < gang->size; i++) {
        struct cpu_gang *mine = gang;
        if (!atomic_compare_exchange_strong(&called[i - 1]->gang, &mine, NULL)) continue;
        pthread_mutex_lock(&pool.lock);
        called[i - 1]->next_idle = pool.idle;
        pool.idle = called[i - 1];
        pthread_mutex_unlock(&pool.lock);
        atomic_fetch_sub(&gang->running, 1);
    }
    wait_for_workers(&gang->running);
    atomic_fetch_sub(&pool.callers, 1);
}

/* ---- Entry points ------------------------------------------------------------------------------------------------ */

void cpu_gang_run(struct cpu_gang *gang, int size) {
    gang->size = 1;
    if (size < 2) {
        gang->work(0, 0, gang->argument);
        return;
    }
    if (gang->brief && !is_in_a_row())
        gang->work(0, 0, gang->argument);
    else
        run_with_workers(gang, size);
    atomic_store_explicit(&last_end, nanoseconds(), memory_order_relaxed);
}

int cpu_default_threads(void) {
    cpu_set_t allowed;
    long cores = sched_getaffinity(0, sizeof allowed, &allowed) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&allowed);
    return cores < 1 ? 1 : cores > 1024 ? 1024 : (int)cores;
}

static __attribute__((destructor)) void join_workers(void) {
    pthread_mutex_lock(&pool.lock);
    pool.closed = true;
    struct worker *all = NULL;
    if (!atomic_load(&pool.callers)) {
        all = pool.all;
        pool.all = NULL;
    }
    for (struct worker *worker = all; worker; worker = worker->next) {
        atomic_store(&worker->leave, true);
        call(worker);
    }
    pthread_mutex_unlock(&pool.lock);
    while (all) {
        struct worker *worker = all;
        all = worker->next;
        pthread_join(worker->thread, NULL);
        free(worker);
    }
}
