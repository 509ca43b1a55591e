/* output.c: files under a temporary name, removed when the run fails or a signal ends it. */
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

/* The file being written, for the signal handler; empty: none. */
static char temporary_path[4096];

/* Every signal that ends a process by default, except SIGKILL, which nobody catches, and SIGXFSZ, which is ignored. */
static const int fatal_signals[] = {SIGHUP,    SIGINT,  SIGQUIT,   SIGILL,  SIGTRAP, SIGABRT, SIGBUS,
                                    SIGFPE,    SIGUSR1, SIGSEGV,   SIGUSR2, SIGPIPE, SIGALRM, SIGTERM,
                                    SIGSTKFLT, SIGXCPU, SIGVTALRM, SIGPROF, SIGIO,   SIGPWR,  SIGSYS};
enum { FATAL_SIGNAL_TOTAL = sizeof fatal_signals / sizeof fatal_signals[0] };

static struct sigaction former_actions[FATAL_SIGNAL_TOTAL];

void output_abandon(void) {
    if (temporary_path[0]) unlink(temporary_path);
}

/* Runs on whichever thread faulted or was interrupted. */
static void remove_temporary_and_die(int signal_number) {
    output_abandon();
    if (signal_number == SIGBUS) {
        static const char message[] =
            "tessera: an input file was truncated, or its disk failed, while it was being read\n";
        ssize_t written = write(STDERR_FILENO, message, sizeof message - 1);
        (void)written; /* nothing is left to be done about it */
        _exit(EXIT_FAILED);
    }
    for (int i = 0; i < FATAL_SIGNAL_TOTAL; i++)
        if (fatal_signals[i] == signal_number) sigaction(signal_number, &former_actions[i], NULL);
    raise(signal_number); /* blocked until this handler returns */
}

static void forget_temporary(bool remove) {
    if (remove) output_abandon();
    temporary_path[0] = '\0';
}

static void catch_fatal_signals(void) {
    struct sigaction action = {.sa_handler = remove_temporary_and_die};
    for (int i = 0; i < FATAL_SIGNAL_TOTAL; i++) {
        /* What the shell made us ignore (nohup) stays ignored. */
        if (sigaction(fatal_signals[i], NULL, &former_actions[i]) == 0 && former_actions[i].sa_handler != SIG_IGN)
            sigaction(fatal_signals[i], &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN); /* past the file size limit, write() shall fail and be reported */
}

/* What symbolic links at `path` lead to, whether it exists or not; NULL: no memory, or errno says why. */
static char *follow_links(const char *path) {
    enum { MOST_LINKS = 40 /* as the kernel follows */ };
    char *at = strdup(path);
    for (int i = 0; at; i++) {
        char target[sizeof temporary_path];
        ssize_t length = readlink(at, target, sizeof target);
        if (length < 0 && (errno == EINVAL || errno == ENOENT)) return at; /* no link, or not there yet */
        if (length < 0 || length == sizeof target || i == MOST_LINKS) {
            if (length >= 0) errno = i == MOST_LINKS ? ELOOP : ENAMETOOLONG;
            free(at);
            return NULL;
        }
        const char *slash = target[0] == '/' ? NULL
                                             : strrchr(at, '/'); /* a relative target begins in its link's folder */
        char *next = NULL;
        if (asprintf(&next, "%.*s%.*s", slash ? (int)(slash - at + 1) : 0, at, (int)length, target) < 0) next = NULL;
        free(at);
        at = next;
    }
    errno = ENOMEM;
    return NULL;
}

/* Where the output really goes, links followed, and what is there (a mode of 0: nothing yet). NULL: no file may be put
 * there; the reason has been printed. */
static char *resolve_output(const char *path, struct stat *former) {
    *former = (struct stat){0};
    const size_t length = strlen(path);
    if (!length || path[length - 1] == '/') {
        fail("cannot write '%s': %s", path, length ? "it names a folder" : strerror(ENOENT));
        return NULL;
    }
    if (stat(path, former) == 0) {
        if (!S_ISREG(former->st_mode)) {
            fail("cannot write %s: it is %s, not a file", path,
                 S_ISDIR(former->st_mode) ? "a folder" : "a device or pipe");
            return NULL;
        }
        if (access(path, W_OK)) {
            fail("cannot write %s: %s", path, strerror(errno));
            return NULL;
        }
    } else if (errno != ENOENT) {
        fail("cannot write '%s': %s", path, strerror(errno));
        return NULL;
    }
    char *resolved = follow_links(path);
    if (!resolved) fail("cannot write %s: %s", path, strerror(errno));
    return resolved;
}

/* Gives the file the owner and the permissions of the one it will replace, as far as this process may. If the group
 * cannot be kept, its permissions are dropped, since another group would get them. */
static void inherit_permissions(int file, const struct stat *former) {
    mode_t mode = former->st_mode & 07777;
    if (fchown(file, former->st_uid, former->st_gid)) {
        mode &= ~(mode_t)S_ISUID;
        if (fchown(file, (uid_t)-1, former->st_gid)) mode &= ~(mode_t)(S_ISGID | S_IRWXG);
    }
    if (fchmod(file, mode)) return; /* some file systems have no permissions; it stays 0600 on those that do */
}

/* Opens a file with a name of its own in the output's folder: with the permissions of the file that it will replace, or
 * those that the umask leaves. */
static int open_temporary(const char *path, const struct stat *former) {
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path + 1) : 0;
    sigset_t fatal, before;
    sigemptyset(&fatal);
    for (int i = 0; i < FATAL_SIGNAL_TOTAL; i++) sigaddset(&fatal, fatal_signals[i]);
    sigprocmask(SIG_BLOCK, &fatal, &before); /* no signal before the handler knows the file that was just made */
    char name[sizeof temporary_path];
    int file = -1;
    for (int attempt = 0; file < 0 && attempt < 1000; attempt++) {
        int length = snprintf(name, sizeof name, "%.*s.tessera-%ld-%d.tmp", folder, path, (long)getpid(), attempt);
        if (length >= (int)sizeof name) {
            errno = ENAMETOOLONG;
            break;
        }
        file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, former->st_mode ? 0600 : 0666);
        if (file < 0 && errno != EEXIST) break;
    }
    if (file >= 0) strcpy(temporary_path, name);
    int why = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (file >= 0 && former->st_mode) inherit_permissions(file, former);
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
    if (strcmp(path, "-") == 0 || strcmp(path, "/dev/stdout") == 0) {
        if (isatty(STDOUT_FILENO)) return fail("standard output is a terminal: send it to a file or a pipe");
        output->file = STDOUT_FILENO;
        return EXIT_OK;
    }
    struct stat former;
    output->path = resolve_output(path, &former);
    if (!output->path) return EXIT_FAILED;
    catch_fatal_signals();
    output->file = open_temporary(output->path, &former);
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
    if (!output->error && output->path && (fsync(output->file) || rename(temporary_path, output->path)))
        output->error = errno;
    if (output->error)
        status = fail("cannot write %s: %s", output->path ? output->path : "standard output", strerror(output->error));
    else
        forget_temporary(false);
    output_discard(output);
    return status;
}

void output_discard(output_file *output) {
    forget_temporary(true);
    if (output->file >= 0 && output->path) close(output->file);
    free(output->path);
    *output = (output_file){.file = -1};
}
