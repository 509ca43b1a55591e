/* driver.c: finds libcuda at run time, so that one library serves machines with and without a GPU. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The oldest driver that has every symbol of the list (cuCtxGetId is the youngest). */
enum { OLDEST_DRIVER = 12000 };

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static cuda_driver driver;     /* written once, under load_once, as is: */
static char why_unusable[320]; /* empty where the driver can be used */

static void explain(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why_unusable, sizeof why_unusable, format, arguments);
    va_end(arguments);
}

/* ---- Where the driver is ----------------------------------------------------------------------------------------- */

#define LIBRARY "libcuda.so.1"

/* Where distributions, containers and WSL put the driver. */
static const char *const driver_folders[] = {
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib"};

static void *open_in(const char *folder, size_t length) {
    char path[PATH_MAX];
    const int written = snprintf(path, sizeof path, "%.*s/" LIBRARY, (int)length, folder);
    return written > 0 && (size_t)written < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

/* In LD_LIBRARY_PATH, which the loader ignores in a program with more rights than its user, and so do we. */
static void *open_in_library_path(void) {
    const char *folder = secure_getenv("LD_LIBRARY_PATH");
    void *library = NULL;
    while (folder && *folder && !library) {
        const size_t length = strcspn(folder, ":;");
        if (folder[0] == '/' && length < PATH_MAX) library = open_in(folder, length);
        folder += length + (folder[length] != '\0');
    }
    return library;
}

/* A driver that the process has loaded already is the one to use: two of them in a process do not work. Otherwise
 * absolute folders come first. By its bare name the loader would also look in the folders of the program's run path,
 * where an empty or relative one means the current folder, and whoever can write there. */
static void *open_driver(void) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!library) library = open_in_library_path();
    for (size_t i = 0; !library && i < sizeof driver_folders / sizeof *driver_folders; i++)
        library = open_in(driver_folders[i], strlen(driver_folders[i]));
    return library ? library : dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

static void load(void) {
    void *library = open_driver();
    if (!library) {
        explain("no CUDA driver on this machine (" LIBRARY
                " cannot be loaded): install NVIDIA's driver, or use the CPU");
        return;
    }
    /* A driver that is too old may lack symbols: its version is the better explanation, so it comes first. */
    __typeof__(cuDriverGetVersion) *get_version;
    *(void **)&get_version = dlsym(library, "cuDriverGetVersion");
    if (!get_version || get_version(&driver.version) != CUDA_SUCCESS) {
        explain(LIBRARY " does not tell its version: reinstall NVIDIA's driver, or use the CPU");
        return;
    }
    if (driver.version < OLDEST_DRIVER) {
        explain("the CUDA driver supports CUDA %d.%d and Tessera needs %d.%d: update NVIDIA's driver, or use the CPU",
                driver.version / 1000, driver.version % 1000 / 10, OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10);
        return;
    }
#define TEXT_OF(name) #name
#define LOOK_UP(name)                                                                           \
    if (!(*(void **)&driver.name = dlsym(library, TEXT_OF(name)))) {                            \
        explain(LIBRARY " lacks %s: reinstall NVIDIA's driver, or use the CPU", TEXT_OF(name)); \
        return;                                                                                 \
    }
    CUDA_DRIVER_SYMBOLS(LOOK_UP)
#undef LOOK_UP
#undef TEXT_OF
    CUresult error = driver.cuInit(0);
    int devices = 0;
    if (error == CUDA_SUCCESS) error = driver.cuDeviceGetCount(&devices);
    if (error == CUDA_ERROR_NO_DEVICE || (error == CUDA_SUCCESS && !devices))
        explain("no NVIDIA GPU is visible to this process (see nvidia-smi and CUDA_VISIBLE_DEVICES): use the CPU");
    else if (error != CUDA_SUCCESS) {
        const char *text = NULL;
        driver.cuGetErrorString(error, &text);
        explain("the CUDA driver does not start (%s): see nvidia-smi, or use the CPU", text ? text : "unknown error");
    }
}

const cuda_driver *cuda_driver_get(const char **problem) {
    pthread_once(&load_once, load);
    *problem = why_unusable;
    return why_unusable[0] ? NULL : &driver;
}

tsr_status cuda_fail(CUresult error, const char *doing, ...) {
    char action[160];
    va_list arguments;
    va_start(arguments, doing);
    vsnprintf(action, sizeof action, doing, arguments);
    va_end(arguments);
    if (error == CUDA_ERROR_OUT_OF_MEMORY) return tsr_fail(TSR_OUT_OF_MEMORY, "%s: the GPU is out of memory", action);
    const char *name = NULL, *text = NULL;
    driver.cuGetErrorName(error, &name);
    driver.cuGetErrorString(error, &text);
    return tsr_fail(TSR_DEVICE_ERROR, "%s: %s (%s)", action, text ? text : "unknown error", name ? name : "no name");
}
