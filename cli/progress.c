/* progress.c: a thread that redraws the progress line, since a product of large matrices is one long call. */
#include "progress.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define ERASE "\r\033[K"
enum { BAR_WIDTH = 20, REDRAW_NANOSECONDS = 200 * 1000 * 1000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below but the thread */
static pthread_cond_t stopped;                           /* on the monotonic clock */
static bool active;
static bool drawn;
static volatile sig_atomic_t interrupted; /* the signal handler's */
static int step, step_total;
static char label[120];
static struct timespec begun, step_begun;
static double step_seconds; /* expected; 0: nobody knows */
static pthread_t painter;

static double seconds_since(struct timespec then) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then.tv_sec) + 1e-9 * (double)(now.tv_nsec - then.tv_nsec);
}

static void erase_locked(void) {
    if (drawn) fputs(ERASE, stderr);
    drawn = false;
}

/* Seconds that are left by the step's estimate, or by the number of steps: those differ in length, so that it is a
 * guess, and none before a tenth is done. Negative: unknown. */
static double seconds_left(double elapsed) {
    if (step_seconds > 0) return step_seconds - seconds_since(step_begun);
    const bool is_early = step_total <= 0 || 10 * (step - 1) < step_total;
    return is_early ? -1 : elapsed * (step_total - step + 1) / (step - 1);
}

static void draw_locked(void) {
    double seconds = seconds_since(begun);
    if (seconds < 1 || !label[0] || interrupted) return;
    char line[sizeof label + BAR_WIDTH + 96];
    /* The times first: a terminal cuts the end of a long line. */
    int length = snprintf(line, sizeof line, "%.0f s", seconds);
    const double left = seconds_left(seconds);
    if (left >= 0)
        length += snprintf(line + length, sizeof line - (size_t)length, ", about %.0f s left", left);
    else if (step_seconds > 0)
        length += snprintf(line + length, sizeof line - (size_t)length, ", longer than estimated");
    if (step_total > 0) {
        int filled = (step - 1) * BAR_WIDTH / step_total;
        line[length++] = ' ';
        line[length++] = '[';
        for (int i = 0; i < BAR_WIDTH; i++) line[length++] = i < filled ? '#' : '.';
        length += snprintf(line + length, sizeof line - (size_t)length, "] %d/%d", step, step_total);
    }
    snprintf(line + length, sizeof line - (size_t)length, ": %s", label);
    struct winsize window;
    int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 ? window.ws_col - 1 : 79;
    fprintf(stderr, "\r%.*s\033[K", width, line);
    drawn = true;
}

static void *paint(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    while (active) {
        draw_locked();
        struct timespec due;
        clock_gettime(CLOCK_MONOTONIC, &due);
        due.tv_nsec += REDRAW_NANOSECONDS;
        if (due.tv_nsec >= 1000000000) {
            due.tv_nsec -= 1000000000;
            due.tv_sec++;
        }
        pthread_cond_timedwait(&stopped, &lock, &due);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* The shell's prompt shall not begin behind the line, nor behind the ^C that the terminal writes. */
static void erase_and_die(int number) {
    interrupted = true;
    const ssize_t written = write(STDERR_FILENO, ERASE, sizeof ERASE - 1);
    (void)written; /* nothing is left to be done about it */
    signal(number, SIG_DFL);
    raise(number);
}

static void erase_on_signals(void) {
    static const int signals[] = {SIGINT, SIGQUIT, SIGTERM};
    struct sigaction former, action = {.sa_handler = erase_and_die};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (sigaction(signals[i], NULL, &former) == 0 && former.sa_handler == SIG_DFL)
            sigaction(signals[i], &action, NULL);
}

void progress_begin(int total) {
    const char *terminal = getenv("TERM");
    if (active || !isatty(STDERR_FILENO) || !terminal || !*terminal || !strcmp(terminal, "dumb")) return;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&stopped, &monotonic);
    pthread_condattr_destroy(&monotonic);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    step = 0;
    step_total = total;
    label[0] = '\0';
    erase_on_signals();
    active = true;
    if (pthread_create(&painter, NULL, paint, NULL)) active = false; /* a run without a progress line is still a run */
}

void progress_step(const char *format, ...) {
    if (!active) return;
    pthread_mutex_lock(&lock);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(label, sizeof label, format, arguments);
    va_end(arguments);
    step++;
    step_seconds = 0;
    pthread_mutex_unlock(&lock);
}

void progress_expect(double seconds) {
    if (!active) return;
    pthread_mutex_lock(&lock);
    step_seconds = seconds;
    clock_gettime(CLOCK_MONOTONIC, &step_begun);
    pthread_mutex_unlock(&lock);
}

void progress_print(const char *format, ...) {
    pthread_mutex_lock(&lock);
    erase_locked();
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    fflush(stdout);
    pthread_mutex_unlock(&lock);
}

void progress_erase(void) {
    pthread_mutex_lock(&lock);
    erase_locked();
    pthread_mutex_unlock(&lock);
}

void progress_end(void) {
    if (!active) return;
    pthread_mutex_lock(&lock);
    active = false;
    erase_locked();
    pthread_cond_signal(&stopped);
    pthread_mutex_unlock(&lock);
    pthread_join(painter, NULL);
    pthread_cond_destroy(&stopped);
}
