/* kernels.c: the tables of CUDA kernels and modules, and the images they are loaded from. */
#include "cuda/kernels.h"

#include <string.h>

/* clang-format off */
#define KERNEL_ROW(id, name, module, family, m, n, k, threads, blocks, cluster, components, shared, stages) \
    [id] = {#name, MODULE_##module, FAMILY_##family, m, n, k, threads, blocks, cluster, components, id##_SHARED},
/* clang-format on */
const cuda_kernel cuda_kernels[CUDA_KERNELS] = {CUDA_KERNEL_LIST(KERNEL_ROW)};
#undef KERNEL_ROW

/* ---- Modules ----------------------------------------------------------------------------------------------------- */

/* Fatbins, embedded by CMakeLists.txt. One that begins with a zero byte was left out of this build. A module that runs
 * on every GPU is there again as PTX of compute capability 7.5 alone. */
#define MODULE_IMAGES(id, name, gpus) extern const unsigned char cuda_image_##name[], cuda_image_##name##_compute_75[];
CUDA_MODULE_LIST(MODULE_IMAGES)
#undef MODULE_IMAGES

enum { ANY_NEWER = 9999 };

/* What the GPUs of a module's row stand for: the oldest and newest compute capability, and the portable image, which is
 * NULL where Turing has too little shared memory for it or lacks its instructions. */
#define GPUS_FROM_75(name) 75, ANY_NEWER, cuda_image_##name##_compute_75
#define GPUS_PTX_75(name) GPUS_FROM_75(name)
#define GPUS_FROM_80(name) 80, ANY_NEWER, NULL
#define GPUS_ONLY_90(name) 90, 90, NULL
#define GPUS_ONLY_90a(name) 90, 90, NULL

static const struct module {
    const char *name;
    const unsigned char *image;
    int oldest, newest; /* compute capabilities, 10*major + minor */
    const unsigned char *portable;
} modules[CUDA_MODULES] = {
#define MODULE_ROW(id, name, gpus) [MODULE_##id] = {#name, cuda_image_##name, GPUS_##gpus(name)},
    CUDA_MODULE_LIST(MODULE_ROW)
#undef MODULE_ROW
};

const char *cuda_module_name(cuda_module module) { return modules[module].name; }

const unsigned char *cuda_module_image(cuda_module module, const cuda_device *device) {
    const unsigned char *image = device->from_ptx ? modules[module].portable : modules[module].image;
    return image && image[0] ? image : NULL;
}

/* ---- Looking up -------------------------------------------------------------------------------------------------- */

bool cuda_kernel_runs_on(const cuda_kernel *kernel, const cuda_device *device) {
    const struct module *module = &modules[kernel->module];
    return device->planned_capability >= module->oldest && device->planned_capability <= module->newest &&
           kernel->shared_bytes <= device->shared_per_block && cuda_module_image(kernel->module, device);
}

const cuda_kernel *cuda_tf32_recompute_kernel(const cuda_device *device) {
    const cuda_kernel *kernel = &cuda_kernels[TF32_128X128]; /* a tile for each two panels */
    return cuda_kernel_runs_on(kernel, device) ? kernel : NULL;
}

static bool keeps(const cuda_kernel *kernel, tsr_precision precision) {
    if (!kernel->components) return true;
    return precision == TSR_TF32 || (precision == TSR_FP32 && kernel->components == 2);
}

tsr_status cuda_kernel_find(const char *name, tsr_precision precision, const cuda_device *device,
                            const cuda_kernel **kernel) {
    for (int i = 0; i < CUDA_KERNELS; i++) {
        const cuda_kernel *row = &cuda_kernels[i];
        if (row->family == FAMILY_SUPPORT || strcmp(row->name, name)) continue;
        if (!cuda_kernel_runs_on(row, device))
            return tsr_fail(TSR_UNSUPPORTED,
                            "options.kernel %s does not run on GPU %d (%s): tsr_info_print lists what does", name,
                            device->ordinal, device->name);
        if (!keeps(row, precision))
            return tsr_fail(TSR_INVALID_ARGUMENT, "options.kernel %s is not accurate enough for options.precision",
                            name);
        *kernel = row;
        return TSR_OK;
    }
    return tsr_fail(TSR_INVALID_ARGUMENT, "options.kernel %s is no CUDA kernel's name: tsr_info_print lists them",
                    name);
}

void cuda_kernels_print(const cuda_device *devices, int count, tsr_text *text) {
    for (int i = 0; i < CUDA_KERNELS; i++) {
        const cuda_kernel *row = &cuda_kernels[i];
        const struct module *module = &modules[row->module];
        if (row->family == FAMILY_SUPPORT) continue;
        bool runs = false;
        for (int d = 0; d < count && !runs; d++) runs = cuda_kernel_runs_on(row, &devices[d]);
        tsr_text_add(text, "cuda kernel: %s, tile %d x %d, %d threads, ", row->name, row->tile_m, row->tile_n,
                     row->threads);
        if (runs)
            tsr_text_add(text, "runs here\n");
        else if (!module->image[0])
            tsr_text_add(text, "does not run here: it was left out of this build\n");
        else
            tsr_text_add(text, "does not run here: it needs compute capability %d.%d%s\n", module->oldest / 10,
                         module->oldest % 10, module->newest == ANY_NEWER ? " or newer" : "");
    }
}
