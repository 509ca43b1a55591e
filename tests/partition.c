/* partition.c: how threads share a product, simulated for 1 to 64 of them on any machine.
 *
 * The engine's files are linked with a pool and a kernel of this file's. The team's members are coroutines with clocks
 * of their own, and the one whose clock is behind runs next; the kernel computes nothing, but counts what it was called
 * for and how long that takes. So the calls that threads would make tell, the same every time, whether each element of
 * C gets each of its terms once, and how much of the time the members had something to do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include "cpu/amx.h"
#include "cpu/cpu.h"
#include "cpu/kernel.h"
#include "cpu/pack.h"
#include "cpu/team.h"

/* ---- Members in virtual time ------------------------------------------------------------------------------------- */

enum { MOST_THREADS = 64, STACK = 128 * 1024 };

static struct {
    ucontext_t context;
    char *stack;
    double clock, busy;
    enum { READY, WAITING, DONE } state;
} members[MOST_THREADS];

static ucontext_t scheduler;
static struct cpu_team *running;
static int current, arrived;

static void leave(void) { swapcontext(&members[current].context, &scheduler); }

static void spend(double time) {
    members[current].clock += time;
    members[current].busy += time;
    leave();
}

static void member_main(void) {
    struct cpu_member self = {.team = running, .index = current};
    running->work(&self, running->argument);
    members[current].state = DONE;
    leave();
}

static void start_member(int i) {
    if (!members[i].stack && !(members[i].stack = malloc(STACK))) exit(1);
    getcontext(&members[i].context);
    members[i].context.uc_stack.ss_sp = members[i].stack;
    members[i].context.uc_stack.ss_size = STACK;
    makecontext(&members[i].context, member_main, 0);
    members[i].clock = members[i].busy = 0;
    members[i].state = READY;
}

static int next_member(void) {
    int next = -1;
    for (int i = 0; i < running->size; i++)
        if (members[i].state == READY && (next < 0 || members[i].clock < members[next].clock)) next = i;
    return next;
}

void cpu_team_run(struct cpu_team *team, int size) {
    running = team;
    team->size = size;
    arrived = 0;
    for (int i = 0; i < size; i++) start_member(i);
    while ((current = next_member()) >= 0) swapcontext(&scheduler, &members[current].context);
}

static void release(void) {
    double latest = 0;
    for (int i = 0; i < running->size; i++)
        if (members[i].clock > latest) latest = members[i].clock;
    for (int i = 0; i < running->size; i++) {
        members[i].clock = latest;
        members[i].state = READY;
    }
    arrived = 0;
}

void cpu_team_barrier(struct cpu_team *team, void (*reset)(void *shared), void *shared) {
    if (team->size == 1) {
        reset(shared);
    } else if (++arrived == team->size) {
        reset(shared);
        release();
    } else {
        members[current].state = WAITING;
        leave();
    }
}

/* ---- What they do, in multiply-adds ------------------------------------------------------------------------------ */

static const double time_to_pack = 25; /* of one element */

/* C holds counts here, of the terms that each element got, and is its own addend. */
static void count(const struct cpu_tile *t, int m) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < t->n; j++) t->c[i * t->c_row + j] += (float)t->k;
}

static void multiply(const struct cpu_tile *t) {
    count(t, t->m);
    spend((double)t->m * ((t->n + 15) / 16 * 16) * (double)t->k);
}

static void multiply_and_pack(const struct cpu_tile *t, float *panel_a, float *panel_b) {
    (void)panel_a, (void)panel_b;
    multiply(t);
}

static void multiply_row(const struct cpu_tile *t, int64_t b_col, int64_t kc) {
    (void)b_col, (void)kc;
    count(t, 1);
    spend((double)t->n * (double)t->k);
}

void cpu_pack_panels(float *panels, const float *source, int64_t lanes, int64_t terms, int64_t lane_stride,
                     int64_t term_stride, int width) {
    (void)panels, (void)source, (void)lane_stride, (void)term_stride, (void)width;
    spend(time_to_pack * (double)lanes * (double)terms);
}

static const struct cpu_kernel kernel = {.name = "counting",
                                         .mr = 6,
                                         .nr = 64,
                                         .lanes = 16,
                                         .mc = 3072,
                                         .nc = 256,
                                         .kc = 640,
                                         .multiply = multiply,
                                         .multiply_and_pack = multiply_and_pack,
                                         .multiply_row = multiply_row};

/* ---- What else the engine calls ---------------------------------------------------------------------------------- */

tsr_status tsr_fail(tsr_status status, const char *format, ...) {
    (void)format;
    return status;
}
void tsr_text_add(tsr_text *text, const char *format, ...) { (void)text, (void)format; }

#ifdef CPU_HAS_AMX
bool amx_is_faster(const tsr_context *context, int64_t m, int64_t n, int64_t k) {
    (void)context, (void)m, (void)n, (void)k;
    return false;
}
bool amx_plan_make(cpu_plan *plan, tsr_context *context, const tsr_problem *problem) {
    (void)plan, (void)context, (void)problem;
    return false;
}
double amx_gain(const tsr_context *context, const tsr_problem *problem) {
    (void)context, (void)problem;
    return 0;
}
void amx_plan_print(const cpu_plan *plan, const tsr_problem *problem, tsr_text *text) {
    (void)plan, (void)problem, (void)text;
}
bool amx_plan_part(cpu_plan *part, const cpu_plan *whole, const tsr_problem *p, size_t limit) {
    (void)part, (void)whole, (void)p, (void)limit;
    return false;
}
void amx_execute(const cpu_plan *plan, const tsr_problem *problem, float *workspace, int64_t row0, int64_t col0) {
    (void)plan, (void)problem, (void)workspace, (void)row0, (void)col0;
}
int64_t amx_packed_floats(const tsr_context *context, int64_t lanes, int64_t k) {
    (void)context, (void)lanes, (void)k;
    return 0;
}
void amx_pack(float *panels, const tsr_packed *packed) { (void)panels, (void)packed; }
#endif

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* The longest that a member may take, in shares of the mean, and for how many threads; with more, only the counts are
 * looked at. */
static const struct shape {
    int64_t batch, m, n, k;
    bool transposed; /* both operands */
    int threads;
    double most;
} shapes[] = {
    {1, 1024, 1024, 1024, false, 64, 1.10}, {1, 1024, 1024, 1024, true, 32, 1.10},
    {1, 2048, 2048, 640, false, 64, 1.05},  {1, 1031, 743, 517, false, 32, 1.15},
    {1, 1031, 743, 517, true, 16, 1.10},    {1, 256, 256, 4096, false, 16, 1.10},
    {1, 8192, 32, 512, false, 64, 1.10},    {1, 32, 8192, 512, false, 16, 1.10},
    {1, 8192, 32, 512, true, 16, 1.10},     {1, 300, 300, 300, false, 16, 1.30},
    {1, 1, 8192, 1000, false, 64, 1.15},    {1, 8192, 1, 1000, false, 64, 1.15},
    {3, 400, 400, 400, false, 16, 1.10},    {1000, 32, 32, 32, false, 64, 1.15},
    {100, 150, 150, 150, true, 16, 1.15},   {1, 200, 200, 200, false, 8, 1.25},
    {1, 97, 128, 100, true, 4, 1.15},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static double play(const struct shape *shape, int threads, const float *operand, float *c) {
    tsr_context context = {.cpu_kernel = &kernel};
    context.options.threads = threads;
    const int64_t m = shape->m, n = shape->n, k = shape->k;
    const tsr_problem problem = {
        .m = m,
        .n = n,
        .k = k,
        .batch = shape->batch,
        .alpha = 1,
        .beta = 1,
        .a = {operand, m, k, shape->transposed ? 1 : k, shape->transposed ? m : 1, 0, NULL},
        .b = {operand, k, n, shape->transposed ? 1 : n, shape->transposed ? k : 1, 0, NULL},
        .c = {c, m, n, n, 1, m * n},
        .addend = {c, m, n, n, 1, m * n, NULL},
    };
    for (int64_t i = 0; i < shape->batch * m * n; i++) c[i] = 0;
    cpu_plan plan;
    if (cpu_plan_make(&plan, &context, &problem) || cpu_execute(&plan, &problem, NULL)) return -1;
    for (int64_t i = 0; i < shape->batch * m * n; i++)
        if (c[i] != (float)k) return -1;
    double busy = 0, longest = 0;
    for (int i = 0; i < plan.threads; i++) {
        busy += members[i].busy;
        if (members[i].clock > longest) longest = members[i].clock;
    }
    return plan.threads == 1 ? 1 : longest / (busy / plan.threads);
}

int main(void) {
    int failures = 0;
    for (int i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        float *c = malloc((size_t)(s->batch * s->m * s->n) * sizeof(float));
        /* Both A and B: they are read ahead, but nothing is made of what is read. */
        float *operand = calloc((size_t)((s->m > s->n ? s->m : s->n) * s->k), sizeof(float));
        if (!c || !operand) return 1;
        double worst = 0;
        int at = 0;
        for (int threads = 1; threads <= MOST_THREADS; threads++) {
            const double ratio = play(s, threads, operand, c);
            if (ratio < 0) {
                printf("partition: %lld x %lld x %lld, %d threads: an element does not have its terms\n",
                       (long long)s->m, (long long)s->n, (long long)s->k, threads);
                failures++;
            } else if (threads <= s->threads && ratio > worst) {
                worst = ratio;
                at = threads;
            }
        }
        printf("partition: %lld of %lld x %lld x %lld%s: at most %.2f of the mean, with %d threads; allowed %.2f up to "
               "%d\n",
               (long long)s->batch, (long long)s->m, (long long)s->n, (long long)s->k, s->transposed ? " tt" : "",
               worst, at, s->most, s->threads);
        failures += worst > s->most;
        free(c);
        free(operand);
    }
    return failures > 0;
}
