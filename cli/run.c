/* run.c: `tessera run`, a program with libtessera_blas in front of the BLAS it has. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"

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
    if (access(path, R_OK)) return fail("%s: %s", path, strerror(errno));
    if (strpbrk(path, " :")) return fail("%s: the loader takes no path with a space or colon to preload", path);
    return EXIT_OK;
}

static bool set(const char *variable, const char *value) { return setenv(variable, value, 1) == 0; }

/* In front of what is preloaded already. */
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

/* As shells have them. */
enum { EXIT_NOT_RUN = 126, EXIT_NOT_FOUND = 127 };

static int run_run(const options *chosen) {
    if (!chosen->argument_count) return misuse("which program? tessera run -- PROGRAM [ARGUMENT ...]");
    char library[4096];
    const int status = find_library(library, sizeof library);
    if (status) return status;
    if (!set_environment(chosen, library)) return fail("no memory for the environment");
    char **words = chosen->arguments;
    words[chosen->argument_count] = NULL; /* where main's words end, or where an option was before */
    execvp(words[0], words);
    const int why = errno;
    fail("%s: %s", words[0], strerror(why));
    return why == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUN;
}

const command run_command = {
    .name = "run",
    .arguments = "[--] PROGRAM [ARGUMENT ...]",
    .summary = "run a program that calls a BLAS on Tessera",
    .description =
        "Runs PROGRAM with libtessera_blas in front of its own BLAS (by LD_PRELOAD): its sgemm_ and cblas_sgemm\n"
        "are Tessera's, everything else stays its own. The options become TESSERA_PRECISION,\n"
        "TESSERA_NUM_THREADS and TESSERA_DEVICE; with TESSERA_VERBOSE=1 in the environment every product is\n"
        "shown on standard error. The exit code is the program's; 127 where there is none, 126 where it cannot\n"
        "be run.\n",
    .options = OPTION_PRECISION | OPTION_THREADS | OPTION_DEVICE | OPTION_PROGRAM,
    .run = run_run,
};
