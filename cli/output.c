/* output.c: files under a temporary name, which goes when the run fails or is ended by a signal. */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"

/* The file under way, for the signal handler; empty: none. */
static char temporary_path[4096];

static const int fatal_signals[] = {SIGHUP, SIGINT, SIGTERM, SIGBUS};
enum { FATAL_SIGNAL_TOTAL = sizeof fatal_signals / sizeof fatal_signals[0] };

void output_abandon(void) {
    if (temporary_path[0]) unlink(temporary_path);
}

static void remove_temporary_and_die(int signal_number) {
    output_abandon();
    if (signal_number == SIGBUS) {
        static const char message[] =
            "tessera: an input file was cut short, or its disk failed, while it was being read\n";
        ssize_t written = write(STDERR_FILENO, message, sizeof message - 1);
        (void)written; /* nothing is left to be done about it */
        _exit(EXIT_FAILED);
    }
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void forget_temporary(bool remove) {
    if (remove) output_abandon();
    temporary_path[0] = '\0';
}

static void catch_fatal_signals(void) {
    struct sigaction action = {.sa_handler = remove_temporary_and_die};
    for (int i = 0; i < FATAL_SIGNAL_TOTAL; i++) {
        struct sigaction before;
        /* What the shell made us ignore (nohup) stays ignored. */
        if (sigaction(fatal_signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(fatal_signals[i], &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN); /* past the file size limit, write() shall fail and be reported */
}

/* Where the output really goes: links followed, and refused unless a file may be put there. NULL: refused, said why. */
static char *resolve_output(const char *path) {
    struct stat about;
    if (stat(path, &about) == 0) {
        if (!S_ISREG(about.st_mode)) {
            fail("cannot write %s: it is %s, not a file", path,
                 S_ISDIR(about.st_mode) ? "a folder" : "a device or pipe");
            return NULL;
        }
        if (access(path, W_OK)) {
            fail("cannot write %s: %s", path, strerror(errno));
            return NULL;
        }
        char *resolved = realpath(path, NULL);
        if (!resolved) fail("cannot write %s: %s", path, strerror(errno));
        return resolved;
    }
    size_t length = strlen(path);
    if (errno != ENOENT || !length || path[length - 1] == '/') {
        fail("cannot write '%s': %s", path, length && path[length - 1] == '/' ? "it names a folder" : strerror(errno));
        return NULL;
    }
    char *copy = strdup(path);
    if (!copy) fail("no memory for a file name");
    return copy;
}

/* Opens a file of a name of its own in the output's folder, permissions as the umask has them. */
static int open_temporary(const char *path) {
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path + 1) : 0;
    sigset_t fatal, before;
    sigemptyset(&fatal);
    for (int i = 0; i < FATAL_SIGNAL_TOTAL; i++) sigaddset(&fatal, fatal_signals[i]);
    sigprocmask(SIG_BLOCK, &fatal, &before); /* no signal between the file's birth and the handler's knowing of it */
    char name[sizeof temporary_path];
    int file = -1;
    for (int attempt = 0; file < 0 && attempt < 1000; attempt++) {
        int length = snprintf(name, sizeof name, "%.*s.tessera-%ld-%d.tmp", folder, path, (long)getpid(), attempt);
        if (length >= (int)sizeof name) {
            errno = ENAMETOOLONG;
            break;
        }
        file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file < 0 && errno != EEXIST) break;
    }
    if (file >= 0) strcpy(temporary_path, name);
    int why = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return file;
}

static int write_all(int file, const void *data, size_t size) {
    const char *at = data;
    while (size) {
        ssize_t written = write(file, at, size < (1u << 30) ? size : 1u << 30);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return -1;
        at += written;
        size -= (size_t)written;
    }
    return 0;
}

int output_create(output_file *output, const char *path, off_t size) {
    *output = (output_file){.file = -1};
    output->path = resolve_output(path);
    if (!output->path) return EXIT_FAILED;
    catch_fatal_signals();
    output->file = open_temporary(output->path);
    if (output->file < 0) {
        int status = fail("cannot write %s: %s", path, errno == ENOENT ? "its folder does not exist" : strerror(errno));
        output_discard(output);
        return status;
    }
    /* Not every file system can reserve space; then write() finds out. */
    if (size && fallocate(output->file, 0, 0, size) && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT)) {
        int status = fail("cannot write %s (%lld bytes): %s", path, (long long)size, strerror(errno));
        output_discard(output);
        return status;
    }
    return EXIT_OK;
}

void output_write(output_file *output, const void *data, size_t size) {
    if (!output->error && write_all(output->file, data, size)) output->error = errno;
}

int output_commit(output_file *output) {
    int status = EXIT_OK;
    if (!output->error && (fsync(output->file) || rename(temporary_path, output->path))) output->error = errno;
    if (output->error)
        status = fail("cannot write %s: %s", output->path, strerror(output->error));
    else
        forget_temporary(false);
    output_discard(output);
    return status;
}

void output_discard(output_file *output) {
    forget_temporary(true);
    if (output->file >= 0) close(output->file);
    free(output->path);
    *output = (output_file){.file = -1};
}
