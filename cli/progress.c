/* progress.c: a thread that redraws the progress line, since a product of large matrices is one long call. */
#include "progress.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { BAR_WIDTH = 20, REDRAW_NANOSECONDS = 200 * 1000 * 1000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below but the thread */
static pthread_cond_t stopped;                           /* on the monotonic clock */
static bool active, drawn;
static int step, step_total;
static char label[120];
static struct timespec begun;
static pthread_t painter;

static double seconds_since(struct timespec then) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then.tv_sec) + 1e-9 * (double)(now.tv_nsec - then.tv_nsec);
}

static void erase_locked(void) {
    if (drawn) fputs("\r\033[K", stderr);
    drawn = false;
}

static void draw_locked(void) {
    double seconds = seconds_since(begun);
    if (seconds < 1 || !label[0]) return;
    char line[sizeof label + BAR_WIDTH + 96];
    int length = 0;
    if (step_total > 0) {
        int filled = (step - 1) * BAR_WIDTH / step_total;
        line[length++] = '[';
        for (int i = 0; i < BAR_WIDTH; i++) line[length++] = i < filled ? '#' : '.';
        length += snprintf(line + length, sizeof line - (size_t)length, "] %d/%d ", step, step_total);
    }
    length += snprintf(line + length, sizeof line - (size_t)length, "%s, %.0f s", label, seconds);
    /* Steps differ in length: a guess, and none before a tenth is done. */
    if (step_total > 0 && 10 * (step - 1) >= step_total)
        snprintf(line + length, sizeof line - (size_t)length, ", about %.0f s left",
                 seconds * (step_total - step + 1) / (step - 1));
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

void progress_begin(int total) {
    if (active || !isatty(STDERR_FILENO)) return;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&stopped, &monotonic);
    pthread_condattr_destroy(&monotonic);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    step = 0;
    step_total = total;
    label[0] = '\0';
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
