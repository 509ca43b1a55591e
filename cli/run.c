/* run.c: `tessera run`, a program with libtessera_blas in front of the BLAS it has. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command.h"
#include "run.h"

/* The library beside the libtessera that this process runs on. */
static int find_library(char *path, size_t size) {
    Dl_info info;
    union {
        const char *(*function)(void);
        void *address;
    } version = {.function = tsr_version};
    if (!dladdr(version.address, &info) || !info.dli_fname) return fail("cannot tell where libtessera.so is");
    char *library = realpath(info.dli_fname, NULL);
    if (!library) return fail("%s: %s", info.dli_fname, strerror(errno));
    char *slash = strrchr(library, '/');
    const int length = snprintf(path, size, "%.*s/" TESSERA_BLAS_FILE, (int)(slash - library), library);
    free(library);
    if (length < 0 || (size_t)length >= size) return fail("the path of " TESSERA_BLAS_FILE " is too long");
    if (access(path, R_OK))
        return fail("%s: %s%s", path, strerror(errno), errno == ENOENT ? "; a build of static libraries has none" : "");
    if (strpbrk(path, " :")) return fail("%s: the loader takes no path with a space or colon to preload", path);
    return EXIT_OK;
}

static bool set(const char *variable, const char *value) { return setenv(variable, value, 1) == 0; }

/* Puts the library in front of what is preloaded already. */
static bool preload(const char *library) {
    const char *others = getenv("LD_PRELOAD");
    if (!others || !*others) return set("LD_PRELOAD", library);
    char *both = NULL;
    const bool made = asprintf(&both, "%s:%s", library, others) >= 0 && set("LD_PRELOAD", both);
    free(both);
    return made;
}

static bool set_environment(const options *chosen, const char *library) {
    char text[32];
    if (!preload(library)) return false;
    if (chosen->precision_given && !set("TESSERA_PRECISION", tsr_precision_name(chosen->precision))) return false;
    snprintf(text, sizeof text, "%d", chosen->threads);
    if (chosen->threads && !set("TESSERA_NUM_THREADS", text)) return false;
    snprintf(text, sizeof text, "cuda:%d", chosen->device_index);
    if (chosen->device == CHOOSE_AUTO) return true;
    return set("TESSERA_DEVICE", chosen->device == CHOOSE_CPU ? "cpu" : text);
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

/* Exit codes as shells have them. */
enum { EXIT_NOT_RUN = 126, EXIT_NOT_FOUND = 127 };

static _Noreturn void become(char **words) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* whoever kills this command means the program */
    execvp(words[0], words);
    const int why = errno;
    fail("%s: %s", words[0], strerror(why));
    _exit(why == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUN);
}

static volatile pid_t program;

/* What a terminal sends reaches the program by itself. */
static void pass_on(int number, siginfo_t *info, void *context) {
    (void)context;
    if (info->si_code <= 0 && program > 0) kill(program, number);
}

static const int passed_on[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM};
enum { PASSED_ON_TOTAL = sizeof passed_on / sizeof passed_on[0] };

int program_wait(char **words) {
    sigset_t signals, before;
    sigemptyset(&signals);
    for (int i = 0; i < PASSED_ON_TOTAL; i++) sigaddset(&signals, passed_on[i]);
    sigprocmask(SIG_BLOCK, &signals, &before); /* none is lost before there is a program to pass it on to */
    program = fork();
    if (program) {
        struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO | SA_RESTART}, former;
        for (int i = 0; i < PASSED_ON_TOTAL; i++)
            if (sigaction(passed_on[i], NULL, &former) == 0 && former.sa_handler != SIG_IGN)
                sigaction(passed_on[i], &action, NULL);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (!program) become(words);
    int ended = -1;
    while (program > 0 && waitpid(program, &ended, 0) < 0 && errno == EINTR) {}
    return ended;
}

/* Exits as the program did, or is ended by the same signal. */
static int exit_code(int ended) {
    if (!WIFSIGNALED(ended)) return WEXITSTATUS(ended);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); /* the program's own is the one to look at */
    signal(WTERMSIG(ended), SIG_DFL);
    raise(WTERMSIG(ended));
    return 128 + WTERMSIG(ended); /* a signal that is blocked, or that ends nothing */
}

/* ---- What became of its products --------------------------------------------------------------------------------- */

int program_report(const char *variable) {
    char path[64];
    const int file = memfd_create("tessera-run", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), file);
    if (file >= 0 && access(path, W_OK) == 0 && set(variable, path)) return file;
    unsetenv(variable);
    return -1;
}

/* Says so if no product came to Tessera, and why. */
static void explain(int file) {
    char *text = NULL;
    FILE *report = file >= 0 ? fdopen(file, "r") : NULL;
    size_t size = 0;
    const bool is_empty = !report || fseek(report, 0, SEEK_SET) || getdelim(&text, &size, '\0', report) < 0;
    const char *of = is_empty ? "" : text, *unused = strstr(of, "unused "), *closed = strstr(of, "closed ");
    const char *path = unused ? unused + 7 : closed ? closed + 7 : "";
    const int length = (int)strcspn(path, "\n");
    if (!report || strstr(of, "product\n"))
        ;
    else if (unused)
        fail("no float32 product came to Tessera. The program's BLAS is %.*s: it was asked for none, or for other\n"
             "functions and types than sgemm (in NumPy: float64, a matrix times a vector or its own transpose)",
             length, path);
    else if (closed)
        fail("no float32 product came to Tessera. The program's BLAS is %.*s, whose products go by names that cannot\n"
             "be replaced; a Python program can use `import tessera` instead",
             length, path);
    else
        fail("no float32 product came to Tessera. The program loaded no BLAS, or it is linked statically");
    free(text);
    if (report) fclose(report);
}

static int run_run(const options *chosen) {
    if (!chosen->argument_count) return misuse("which program? tessera run -- PROGRAM [ARGUMENT ...]");
    char library[4096];
    const int status = find_library(library, sizeof library);
    if (status) return status;
    if (!set_environment(chosen, library)) return fail("no memory for the environment");
    const int report = program_report("TESSERA_RUN");
    char **words = chosen->arguments;
    words[chosen->argument_count] = NULL; /* where main's words end, or where an option was before */
    const int ended = program_wait(words);
    if (ended < 0) return fail("cannot start a process: %s", strerror(errno));
    const bool has_run = !WIFEXITED(ended) || WEXITSTATUS(ended) < EXIT_NOT_RUN;
    if (has_run) explain(report);
    return exit_code(ended);
}

const command run_command = {
    .name = "run",
    .arguments = "[--] PROGRAM [ARGUMENT ...]",
    .summary = "run a program that calls a BLAS on Tessera",
    .description =
        "Runs PROGRAM with libtessera_blas in front of its own BLAS (by LD_PRELOAD): its sgemm_ and cblas_sgemm\n"
        "are Tessera's, everything else stays its own. The options become TESSERA_PRECISION,\n"
        "TESSERA_NUM_THREADS and TESSERA_DEVICE; with TESSERA_VERBOSE=1 in the environment every product is\n"
        "shown on standard error. Without a product for Tessera it says so at the end, and why. The exit code is\n"
        "the program's; 127 where there is none, 126 where it cannot be run.\n",
    .options = OPTION_PRECISION | OPTION_THREADS | OPTION_DEVICE | OPTION_PROGRAM,
    .run = run_run,
};
