/* driver.c: finds libcuda at run time, so that one library serves machines with and without a GPU. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>

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

static void load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        explain(
            "no CUDA driver on this machine (libcuda.so.1 cannot be loaded): install NVIDIA's driver, or use the CPU");
        return;
    }
    /* A driver that is too old may lack symbols: its version is the better explanation, so it comes first. */
    __typeof__(cuDriverGetVersion) *get_version;
    *(void **)&get_version = dlsym(library, "cuDriverGetVersion");
    if (!get_version || get_version(&driver.version) != CUDA_SUCCESS) {
        explain("libcuda.so.1 does not tell its version: reinstall NVIDIA's driver, or use the CPU");
        return;
    }
    if (driver.version < OLDEST_DRIVER) {
        explain("the CUDA driver supports CUDA %d.%d and Tessera needs %d.%d: update NVIDIA's driver, or use the CPU",
                driver.version / 1000, driver.version % 1000 / 10, OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10);
        return;
    }
#define TEXT_OF(name) #name
#define LOOK_UP(name)                                                                               \
    if (!(*(void **)&driver.name = dlsym(library, TEXT_OF(name)))) {                                \
        explain("libcuda.so.1 lacks %s: reinstall NVIDIA's driver, or use the CPU", TEXT_OF(name)); \
        return;                                                                                     \
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
