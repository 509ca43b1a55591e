/* partition.c: how threads share a product, simulated for 1 to 256 of them on any machine.
 *
 * The engine's files are linked with a pool and a kernel of this file's. The team's members are coroutines with clocks
 * of their own, and the one whose clock is behind runs next; the kernel computes nothing, but counts what it was called
 * for and how long that takes. So the calls that threads would make tell, the same every time, whether each element of
 * C gets each of its terms once, how long the member takes that is done last, and how much of the packed panels members
 * would read from the other of two sockets. Barriers and counters take no time here, and memory is as fast as it has to
 * be.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "cpu/amx.h"
#include "cpu/cpu.h"
#include "cpu/kernel.h"
#include "cpu/pack.h"
#include "cpu/plan.h"
#include "cpu/team.h"

/* ---- Members in virtual time ------------------------------------------------------------------------------------- */

enum { MOST_THREADS = 256, STACK = 128 * 1024 };

static struct {
    ucontext_t context;
    char *stack;
    double clock, busy;
} members[MOST_THREADS];

static double ready_at[MOST_THREADS]; /* the member's clock; INFINITY where it waits or is done */
static ucontext_t scheduler;
static struct cpu_team *running;
static int current, arrived;

static int next_member(void) {
    int next = 0;
    for (int i = 1; i < running->size; i++)
        if (ready_at[i] < ready_at[next]) next = i;
    return next;
}

/* To the member whose clock is behind all others. */
static void leave(void) {
    const int before = current;
    current = next_member();
    if (ready_at[current] == INFINITY)
        swapcontext(&members[before].context, &scheduler);
    else if (current != before)
        swapcontext(&members[before].context, &members[current].context);
}

static void spend(double time) {
    members[current].busy += time;
    ready_at[current] = members[current].clock += time;
    leave();
}

static void member_main(void) {
    struct cpu_member self = {.team = running, .index = current};
    running->work(&self, running->argument);
    ready_at[current] = INFINITY;
    leave();
}

static void start_member(int i) {
    if (!members[i].stack && !(members[i].stack = malloc(STACK))) exit(1);
    getcontext(&members[i].context);
    members[i].context.uc_stack.ss_sp = members[i].stack;
    members[i].context.uc_stack.ss_size = STACK;
    makecontext(&members[i].context, member_main, 0);
    members[i].clock = members[i].busy = ready_at[i] = 0;
}

void cpu_team_run(struct cpu_team *team, int size) {
    running = team;
    team->size = size;
    arrived = 0;
    for (int i = 0; i < size; i++) start_member(i);
    current = 0;
    swapcontext(&scheduler, &members[0].context);
}

static void release(void) {
    double latest = 0;
    for (int i = 0; i < running->size; i++)
        if (members[i].clock > latest) latest = members[i].clock;
    for (int i = 0; i < running->size; i++) ready_at[i] = members[i].clock = latest;
    arrived = 0;
}

void cpu_team_barrier(struct cpu_team *team, void (*reset)(void *shared), void *shared) {
    if (team->size == 1) {
        reset(shared);
    } else if (++arrived == team->size) {
        reset(shared);
        release();
    } else {
        ready_at[current] = INFINITY;
        leave();
    }
}

/* ---- Two sockets ------------------------------------------------------------------------------------------------- */

/* The first half of the members run on one, the rest on the other, and what a member packs is on its socket. A panel of
 * B stays in the caches of a member that has read it, one of A only until the member reads the next. */
static struct panel {
    int packed_by;
    bool read_by[MOST_THREADS];
} * packed_panels; /* by the cache line of the workspace that they begin at */

enum { MOST_WORKSPACE = 128 << 20 };

static float *packed_memory; /* the workspace, which is hardly touched */
static int64_t packed_floats;
static const float *last_a[MOST_THREADS];
static double floats_crossed;

static bool is_packed(const float *panel) { return panel >= packed_memory && panel < packed_memory + packed_floats; }

static struct panel *panel_at(const float *panel) { return &packed_panels[(panel - packed_memory) / CPU_LINE]; }

static void pack(const float *panel) {
    if (!is_packed(panel)) return;
    *panel_at(panel) = (struct panel){.packed_by = current};
}

static int socket_of(int member) { return 2 * member >= running->size; }

static bool is_far(const struct panel *panel) { return socket_of(panel->packed_by) != socket_of(current); }

/* What the current member reads of packed panels for a tile. */
static void read_panels(const struct cpu_tile *t) {
    if (is_packed(t->a) && t->a != last_a[current] && is_far(panel_at(t->a)))
        floats_crossed += (double)t->a_step * (double)t->k;
    last_a[current] = t->a;
    if (!is_packed(t->b)) return;
    struct panel *b = panel_at(t->b);
    if (!b->read_by[current] && is_far(b)) floats_crossed += (double)t->b_step * (double)t->k;
    b->read_by[current] = true;
}

/* ---- What they do, in multiply-adds ------------------------------------------------------------------------------ */

static const double time_to_pack = 25; /* of one element */

/* C holds counts here, of the terms that each element got, and is its own addend. */
static bool counts;

static void count(const struct cpu_tile *t, int m) {
    if (!counts) return;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < t->n; j++) t->c[i * t->c_row + j] += (float)t->k;
}

static void multiply(const struct cpu_tile *t) {
    read_panels(t);
    count(t, t->m);
    spend((double)t->m * ((t->n + 15) / 16 * 16) * (double)t->k);
}

static void multiply_and_pack(const struct cpu_tile *t, float *panel_a, float *panel_b) {
    pack(panel_a);
    pack(panel_b);
    multiply(t);
}

static void multiply_row(const struct cpu_tile *t, int64_t b_col, int64_t kc) {
    (void)b_col, (void)kc;
    count(t, 1);
    spend((double)t->n * (double)t->k);
}

void cpu_pack_panels(float *to, const float *source, int64_t lanes, int64_t terms, int64_t lane_stride,
                     int64_t term_stride, int width) {
    (void)source, (void)lane_stride, (void)term_stride;
    for (int64_t lane = 0; lane < lanes; lane += width) pack(to + lane * terms);
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

/* For up to so many threads: the longest that a member may take, in even shares of what one thread alone would have to
 * do; and the most bytes of packed panels that may come from the other socket for each multiply-add. With more threads,
 * only the terms are looked at. */
static const struct shape {
    int64_t batch, m, n, k;
    bool transposed; /* both operands */
    int threads;
    double longest, bytes;
} shapes[] = {
    {1, 1024, 1024, 1024, false, 256, 1.15, 0.05}, {1, 1024, 1024, 1024, true, 96, 1.20, 0.07},
    {1, 2048, 2048, 640, false, 256, 1.20, 0.06},  {1, 2048, 4096, 640, true, 256, 1.15, 0.06},
    {1, 4096, 4096, 1280, false, 256, 1.10, 0.05}, {1, 2048, 16384, 640, false, 256, 1.05, 0.03},
    {1, 16384, 256, 1024, false, 256, 1.05, 0.01}, {1, 16384, 256, 1024, true, 256, 1.15, 0.01},
    {1, 1031, 743, 517, false, 64, 1.15, 0.04},    {1, 1031, 743, 517, true, 16, 1.10, 0.06},
    {1, 256, 256, 4096, false, 16, 1.10, 0.06},    {1, 8192, 32, 512, false, 64, 1.10, 0},
    {1, 32, 8192, 512, false, 16, 1.10, 0},        {1, 8192, 32, 512, true, 16, 1.10, 0},
    {1, 300, 300, 300, false, 16, 1.30, 0.05},     {1, 1, 8192, 1000, false, 64, 1.15, 0},
    {1, 8192, 1, 1000, false, 64, 1.35, 0},        {1, 200, 200, 200, false, 8, 1.25, 0},
    {1, 97, 128, 100, true, 4, 1.15, 0},           {3, 400, 400, 400, false, 16, 1.10, 0.06},
    {3, 1000, 1000, 1000, true, 64, 1.15, 0.06},   {10, 500, 700, 600, false, 256, 1.35, 0.04},
    {30, 300, 300, 1000, true, 128, 1.50, 0.06},   {100, 24, 600, 700, false, 256, 1.25, 0},
    {300, 500, 30, 400, false, 256, 1.20, 0},      {100, 150, 150, 150, true, 64, 1.30, 0},
    {1000, 32, 32, 32, false, 64, 1.15, 0},        {300, 100, 100, 100, false, 64, 1.20, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Beyond 64 threads: powers of two and sums of them, and numbers beside them, of which some are prime. */
static const int many[] = {65,  72,  80,  96,  97,  112, 127, 128, 129, 144, 160,
                           176, 191, 192, 193, 208, 224, 240, 251, 255, 256};

static double work_of(const struct shape *s) { return (double)s->batch * (double)s->m * (double)s->n * (double)s->k; }

/* Products that take long to simulate are not for every number. */
static int next_threads(const struct shape *s, int threads) {
    const bool is_long = work_of(s) > 2e9;
    if (threads < 64) return is_long ? 2 * threads : threads + 1;
    size_t i = 0;
    while (many[i] <= threads) i += is_long ? 2 : 1;
    return many[i];
}

/* Nor are the terms of every element of a large C counted for every number. */
static bool counts_terms(const struct shape *s, int threads) {
    return s->batch * s->m * s->n <= 1 << 22 || threads % 64 == 1;
}

struct outcome {
    bool is_right;  /* each element has each of its terms once, if they were counted */
    int threads;    /* that the plan has */
    double longest; /* time that a member took */
    double bytes;   /* of packed panels that crossed sockets, for each multiply-add */
};

static bool all_have(const float *c, int64_t elements, float terms) {
    for (int64_t i = 0; i < elements; i++)
        if (c[i] != terms) return false;
    return true;
}

static struct outcome play(const struct shape *shape, int threads, const float *operand, float *c) {
    tsr_context context = {.cpu_kernel = &kernel};
    context.options.threads = threads;
    const int64_t m = shape->m, n = shape->n, k = shape->k, elements = shape->batch * m * n;
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
    counts = counts_terms(shape, threads);
    if (counts) memset(c, 0, (size_t)elements * sizeof *c);
    cpu_plan plan;
    if (cpu_plan_make(&plan, &context, &problem)) exit(1);
    packed_floats = (int64_t)(plan.workspace / sizeof(float));
    if (plan.workspace > MOST_WORKSPACE) exit(1);
    memset(last_a, 0, sizeof last_a);
    floats_crossed = 0;
    if (cpu_execute(&plan, &problem, packed_memory)) exit(1);
    struct outcome outcome = {.is_right = !counts || all_have(c, elements, (float)k),
                              .threads = plan.threads,
                              .bytes = floats_crossed * sizeof(float) / work_of(shape)};
    for (int i = 0; i < plan.threads; i++) outcome.longest = fmax(outcome.longest, members[i].clock);
    return outcome;
}

static void print_shape(const struct shape *s) {
    printf("partition: %lld of %lld x %lld x %lld%s", (long long)s->batch, (long long)s->m, (long long)s->n,
           (long long)s->k, s->transposed ? " tt" : "");
}

static int play_all(const struct shape *s) {
    float *c = malloc((size_t)(s->batch * s->m * s->n) * sizeof *c);
    /* Both A and B: they are read ahead, but nothing is made of what is read. */
    float *operand = calloc((size_t)((s->m > s->n ? s->m : s->n) * s->k), sizeof *operand);
    if (!c || !operand) exit(1);
    double alone = 0, longest = 0, bytes = 0;
    int failures = 0, longest_at = 0, bytes_at = 0;
    for (int threads = 1;; threads = next_threads(s, threads)) {
        const struct outcome x = play(s, threads, operand, c);
        if (threads == 1) alone = x.longest;
        if (!x.is_right) {
            print_shape(s);
            printf(", %d threads: an element does not have its terms\n", threads);
            failures++;
        }
        const double shares = x.longest * x.threads / alone;
        if (threads <= s->threads && shares > longest) {
            longest = shares;
            longest_at = threads;
        }
        if (threads <= s->threads && x.bytes > bytes) {
            bytes = x.bytes;
            bytes_at = threads;
        }
        if (threads == MOST_THREADS) break;
    }
    print_shape(s);
    printf(
        ", up to %d threads: at most %.2f even shares, with %d; allowed %.2f. %.3f bytes from the other socket, with "
        "%d; allowed %.3f\n",
        s->threads, longest, longest_at, s->longest, bytes, bytes_at, s->bytes);
    free(c);
    free(operand);
    return failures + (longest > s->longest) + (bytes > s->bytes);
}

int main(void) {
    int failures = 0;
    packed_memory = malloc(MOST_WORKSPACE);
    packed_panels = calloc(MOST_WORKSPACE / (CPU_LINE * sizeof(float)), sizeof *packed_panels);
    if (!packed_memory || !packed_panels) return 1;
    for (int i = 0; i < SHAPES; i++) failures += play_all(&shapes[i]);
    return failures > 0;
}
