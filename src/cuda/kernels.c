/* kernels.c: the table of CUDA kernels, and the images they are loaded from. */
#include "cuda/kernels.h"

#include <string.h>

#include "cuda/kernels/args.h"

enum { TURING = 75, AMPERE = 80, HOPPER = 90, ANY_NEWER = 9999 };

/* clang-format off */
const cuda_kernel cuda_kernels[CUDA_KERNELS] = {
/* name                     family            module                    GPUs               tile m,n,k     threads  shared bytes  blocks  cluster  pieces  waits  rate */
[IEEE_MMA_64X128] =
  {"ieee_mma_64x128",       FAMILY_IEEE_TILE, MODULE_IEEE_MMA_SM90,     HOPPER, HOPPER,     64, 128, 32,  128,  IEEE_MMA_64X128_SHARED,      2,  1,  0,  true,   126},
[IEEE_MMA_64X64] =
  {"ieee_mma_64x64",        FAMILY_IEEE_TILE, MODULE_IEEE_MMA_SM90,     HOPPER, HOPPER,     64,  64, 32,  128,  IEEE_MMA_64X64_SHARED,       3,  1,  0,  true,   122},
[IEEE_MMA_32X64] =
  {"ieee_mma_32x64",        FAMILY_IEEE_TILE, MODULE_IEEE_MMA_SM90,     HOPPER, HOPPER,     32,  64, 32,  128,  IEEE_MMA_32X64_SHARED,       3,  1,  0,  true,   112},
[IEEE_MMA_32X32] =
  {"ieee_mma_32x32",        FAMILY_IEEE_TILE, MODULE_IEEE_MMA_SM90,     HOPPER, HOPPER,     32,  32, 32,  128,  IEEE_MMA_32X32_SHARED,       3,  1,  0,  true,    92},
[IEEE_TILE_128X128] =
  {"ieee_tile_128x128",     FAMILY_IEEE_TILE, MODULE_IEEE_TILE_128X128, AMPERE, ANY_NEWER, 128, 128, 32,  128,  IEEE_TILE_128X128_SHARED,    2,  1,  0,  true,   103},
[IEEE_TILE_128X64] =
  {"ieee_tile_128x64",      FAMILY_IEEE_TILE, MODULE_IEEE_TILE_128X64,  TURING, ANY_NEWER, 128,  64, 32,  128,  IEEE_TILE_128X64_SHARED,     3,  1,  0,  true,    97},
[IEEE_TILE_64X64] =
  {"ieee_tile_64x64",       FAMILY_IEEE_TILE, MODULE_IEEE_TILE_64X64,   TURING, ANY_NEWER,  64,  64, 32,  128,  IEEE_TILE_64X64_SHARED,      5,  1,  0,  true,    88},
[IEEE_MMA_SHORT_K] =
  {"ieee_mma_short_k",      FAMILY_IEEE_SHORT, MODULE_IEEE_MMA_SM90,    HOPPER, HOPPER,     64,  64, 64,  128,  IEEE_MMA_SHORT_K_SHARED,     3,  1,  0,  true,   110},
[IEEE_THIN_K] =
  {"ieee_thin_k",           FAMILY_IEEE_THIN, MODULE_IEEE_THIN_K,       TURING, ANY_NEWER,  16,   8, 128, 128,  0,                           6,  1,  0,  true,     4},
[IEEE_THIN_M] =
  {"ieee_thin_m",           FAMILY_IEEE_THIN, MODULE_IEEE_THIN_M,       TURING, ANY_NEWER, 128,   8, 128, 128,  0,                           5,  1,  0,  true,     4},
[IEEE_REDUCE] =
  {"ieee_reduce",           FAMILY_SUPPORT,   MODULE_IEEE_REDUCE,       TURING, ANY_NEWER,   0,   0,   0, 128,  0,                           0,  1,  0,  true,     0},
[IEEE_SCALE] =
  {"ieee_scale",            FAMILY_SUPPORT,   MODULE_IEEE_SCALE,        TURING, ANY_NEWER,   0,   0,   0, 128,  0,                           0,  1,  0,  false,    0},
[PACK_SAMPLE] =
  {"pack_sample",           FAMILY_SUPPORT,   MODULE_PACK,              AMPERE, ANY_NEWER,   8,   0,   0, 128,  0,                           0,  1,  0,  true,     0},
[PACK_SPLIT] =
  {"pack_split",            FAMILY_SUPPORT,   MODULE_PACK,              AMPERE, ANY_NEWER,  64,   0,  64, 128,  PACK_SHARED,                 4,  1,  0,  true,     0},
[SPLIT_FP32_SM90] =
  {"split_fp32_sm90",       FAMILY_SPLIT,     MODULE_SPLIT_FP32_SM90,  HOPPER, HOPPER,    128, 128,  64, 384,  SPLIT_FP32_SM90_SHARED,      1,  1,  2,  true,   570},
[SPLIT_FP32_SM90_T128] =
  {"split_fp32_sm90_t128",  FAMILY_SPLIT,     MODULE_SPLIT_FP32_SM90_T128,  HOPPER, HOPPER,    128, 128,  64, 128,  SPLIT_FP32_SM90_T128_SHARED, 1,  2,  2,  true,   500},
[SPLIT_TF32_SM90] =
  {"split_tf32_sm90",       FAMILY_SPLIT,     MODULE_SPLIT_TF32_SM90,  HOPPER, HOPPER,    128, 256,  64, 384,  SPLIT_TF32_SM90_SHARED,      1,  1,  1,  true,  1400},
[SPLIT_FP32_MMA_SM80] =
  {"split_fp32_mma_sm80",   FAMILY_SPLIT,     MODULE_SPLIT_MMA_SM80,    AMPERE, ANY_NEWER, 128, 128,  64, 256,  SPLIT_FP32_MMA_SM80_SHARED,  1,  1,  2,  true,   250},
[SPLIT_TF32_MMA_SM80] =
  {"split_tf32_mma_sm80",   FAMILY_SPLIT,     MODULE_SPLIT_MMA_SM80,    AMPERE, ANY_NEWER, 128, 256,  64, 256,  SPLIT_TF32_MMA_SM80_SHARED,  1,  1,  1,  true,   650},
[SPLIT_REDUCE] =
  {"split_reduce",          FAMILY_SUPPORT,   MODULE_SPLIT_REDUCE,      AMPERE, ANY_NEWER,   0,   0,   0, 128,  0,                           0,  1,  0,  true,     0},
};
/* clang-format on */

/* ---- Images ------------------------------------------------------------------------------------------------------ */

/* Fatbins, embedded by CMakeLists.txt. One that begins with a zero byte was left out of this build. */
extern const unsigned char cuda_image_ieee_mma_sm90[];
extern const unsigned char cuda_image_ieee_tile_128x128[];
extern const unsigned char cuda_image_ieee_tile_128x64[], cuda_image_ieee_tile_128x64_compute_75[];
extern const unsigned char cuda_image_ieee_tile_64x64[], cuda_image_ieee_tile_64x64_compute_75[];
extern const unsigned char cuda_image_ieee_thin_k[], cuda_image_ieee_thin_k_compute_75[];
extern const unsigned char cuda_image_ieee_thin_m[], cuda_image_ieee_thin_m_compute_75[];
extern const unsigned char cuda_image_ieee_reduce[], cuda_image_ieee_reduce_compute_75[];
extern const unsigned char cuda_image_ieee_scale[], cuda_image_ieee_scale_compute_75[];
extern const unsigned char cuda_image_pack[];
extern const unsigned char cuda_image_split_fp32_sm90[], cuda_image_split_fp32_sm90_t128[];
extern const unsigned char cuda_image_split_tf32_sm90[];
extern const unsigned char cuda_image_split_mma_sm80[];
extern const unsigned char cuda_image_split_reduce[];

/* `portable` is the same as PTX of compute capability 7.5 alone; NULL where that has too little shared memory for it or
 * lacks its instructions. */
static const struct {
    const char *name;
    const unsigned char *image, *portable;
} modules[CUDA_MODULES] = {
    [MODULE_IEEE_MMA_SM90] = {"ieee_mma_sm90", cuda_image_ieee_mma_sm90, NULL},
    [MODULE_IEEE_TILE_128X128] = {"ieee_tile_128x128", cuda_image_ieee_tile_128x128, NULL},
    [MODULE_IEEE_TILE_128X64] = {"ieee_tile_128x64", cuda_image_ieee_tile_128x64,
                                 cuda_image_ieee_tile_128x64_compute_75},
    [MODULE_IEEE_TILE_64X64] = {"ieee_tile_64x64", cuda_image_ieee_tile_64x64, cuda_image_ieee_tile_64x64_compute_75},
    [MODULE_IEEE_THIN_K] = {"ieee_thin_k", cuda_image_ieee_thin_k, cuda_image_ieee_thin_k_compute_75},
    [MODULE_IEEE_THIN_M] = {"ieee_thin_m", cuda_image_ieee_thin_m, cuda_image_ieee_thin_m_compute_75},
    [MODULE_IEEE_REDUCE] = {"ieee_reduce", cuda_image_ieee_reduce, cuda_image_ieee_reduce_compute_75},
    [MODULE_IEEE_SCALE] = {"ieee_scale", cuda_image_ieee_scale, cuda_image_ieee_scale_compute_75},
    [MODULE_PACK] = {"pack", cuda_image_pack, NULL},
    [MODULE_SPLIT_FP32_SM90] = {"split_fp32_sm90", cuda_image_split_fp32_sm90, NULL},
    [MODULE_SPLIT_FP32_SM90_T128] = {"split_fp32_sm90_t128", cuda_image_split_fp32_sm90_t128, NULL},
    [MODULE_SPLIT_TF32_SM90] = {"split_tf32_sm90", cuda_image_split_tf32_sm90, NULL},
    [MODULE_SPLIT_MMA_SM80] = {"split_mma_sm80", cuda_image_split_mma_sm80, NULL},
    [MODULE_SPLIT_REDUCE] = {"split_reduce", cuda_image_split_reduce, NULL},
};

const char *cuda_module_name(cuda_module module) { return modules[module].name; }

const unsigned char *cuda_module_image(cuda_module module, const cuda_device *device) {
    const unsigned char *image = device->from_ptx ? modules[module].portable : modules[module].image;
    return image && image[0] ? image : NULL;
}

/* ---- Looking up -------------------------------------------------------------------------------------------------- */

bool cuda_kernel_runs_on(const cuda_kernel *kernel, const cuda_device *device) {
    return device->planned_capability >= kernel->oldest && device->planned_capability <= kernel->newest &&
           kernel->shared_bytes <= device->shared_per_block && cuda_module_image(kernel->module, device);
}

double cuda_kernel_rate(const cuda_kernel *kernel, const cuda_device *device) {
    const int capability = device->planned_capability;
    const bool few_float32_units = capability <= 80; /* 64 of them */
    const bool for_graphics = capability / 10 == 12 ||
                              (capability > 80 && capability < 90); /* a quarter of mma's rate */
    if (kernel->family != FAMILY_SPLIT) return few_float32_units ? kernel->rate / 2 : kernel->rate;
    return kernel->module == MODULE_SPLIT_MMA_SM80 && for_graphics ? kernel->rate / 4 : kernel->rate;
}

const cuda_kernel *cuda_recompute_kernel(const cuda_device *device) {
    for (int i = 0; i < CUDA_KERNELS; i++)
        if (cuda_kernels[i].family == FAMILY_IEEE_TILE && cuda_kernel_runs_on(&cuda_kernels[i], device))
            return &cuda_kernels[i];
    return NULL;
}

static bool keeps(const cuda_kernel *kernel, tsr_precision precision) {
    if (kernel->family != FAMILY_SPLIT) return true;
    return precision == TSR_TF32 || (precision == TSR_FP32 && kernel->pieces == 2);
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
        if (row->family == FAMILY_SUPPORT) continue;
        bool runs = false;
        for (int d = 0; d < count && !runs; d++) runs = cuda_kernel_runs_on(row, &devices[d]);
        tsr_text_add(text, "cuda kernel: %s, tile %d x %d, %d threads, ", row->name, row->tile_m, row->tile_n,
                     row->threads);
        if (runs)
            tsr_text_add(text, "runs here\n");
        else if (!modules[row->module].image[0])
            tsr_text_add(text, "does not run here: it was left out of this build\n");
        else
            tsr_text_add(text, "does not run here: it needs compute capability %d.%d%s\n", row->oldest / 10,
                         row->oldest % 10, row->newest == ANY_NEWER ? " or newer" : "");
    }
}
