/* kernels.c: the microkernels of this build, which of them this machine can run, and which one a context gets. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "cpu/amx.h"
#include "cpu/cpu.h"
#include "cpu/kernel.h"

/* Best first: the first that runs here is the default. AMX, which is not for every product, is last. */
static const struct cpu_kernel *const kernels[] = {
#ifdef __x86_64__
    &cpu_kernel_avx512,   &cpu_kernel_avx2,
#endif
#ifdef __aarch64__
    &cpu_kernel_neon,
#endif
    &cpu_kernel_portable,
#ifdef CPU_HAS_AMX
    &cpu_kernel_amx,
#endif
};

enum { KERNELS = sizeof kernels / sizeof kernels[0] };

#if defined __x86_64__ && !defined TESSERA_AMX_MODEL

enum { TILE_DATA = 18 }; /* among the states that Linux saves */

static bool has_amx(void) {
    enum { GET_SUPPORTED = 0x1021, TILE = 1 << 24, BF16 = 1 << 22 };
    unsigned eax, ebx, ecx, edx;
    uint64_t supported = 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && edx & TILE && edx & BF16 &&
           !syscall(SYS_arch_prctl, GET_SUPPORTED, &supported) && supported >> TILE_DATA & 1;
}

static bool amx_allowed;

static void ask_for_amx(void) {
    enum { REQUEST_PERMISSION = 0x1023 };
    amx_allowed = !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

/* Linux lets a process use tiles once it has asked. From then on its signals need larger stacks, so only contexts that
 * will use tiles ask. */
static bool may_use_amx(void) {
    static pthread_once_t asked = PTHREAD_ONCE_INIT;
    pthread_once(&asked, ask_for_amx);
    return amx_allowed;
}

#else

static bool may_use_amx(void) { return true; }

#endif

/* Instruction sets that both the processor and the operating system support (__builtin_cpu_supports reads xgetbv, too:
 * registers that the system does not save cannot be used). */
static unsigned features_here(void) {
    unsigned features = 0;
#ifdef TESSERA_AMX_MODEL
    features |= CPU_AMX_BF16;
#elif defined __x86_64__
    if (has_amx()) features |= CPU_AMX_BF16;
#endif
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) features |= CPU_AVX2;
    if (__builtin_cpu_supports("fma")) features |= CPU_FMA;
    if (__builtin_cpu_supports("avx512f")) features |= CPU_AVX512F;
    if (__builtin_cpu_supports("avx512vl")) features |= CPU_AVX512VL;
#endif
    return features;
}

static bool runs_here(const struct cpu_kernel *kernel) { return (kernel->needs & ~features_here()) == 0; }

static void print_features(unsigned features, tsr_text *text) {
    /* In the order of the bits. */
    static const char *const names[] = {"avx2", "fma", "avx512f", "avx512vl", "amx_bf16"};
    for (unsigned bit = 0; bit < sizeof names / sizeof names[0]; bit++)
        if (features >> bit & 1) tsr_text_add(text, " %s", names[bit]);
    if (!features) tsr_text_add(text, " none of those looked for");
}

static const struct cpu_kernel *best_here(void) {
    int i = 0;
    while (!runs_here(kernels[i])) i++; /* the portable one does */
    return kernels[i];
}

/* Among those that this machine can run. NULL where there is none, with a message that says where the name is from. */
static const struct cpu_kernel *kernel_named(const char *name, const char *from) {
    for (int i = 0; i < KERNELS; i++) {
        if (strcmp(kernels[i]->name, name)) continue;
        if (runs_here(kernels[i])) return kernels[i];
        tsr_fail(TSR_INVALID_ARGUMENT,
                 "%s is \"%s\", a kernel that this machine cannot run: tsr_info_print says what it needs", from, name);
        return NULL;
    }
    tsr_fail(TSR_INVALID_ARGUMENT, "%s is \"%.80s\", which is no CPU kernel: tsr_info_print lists them", from, name);
    return NULL;
}

static bool is_amx(const struct cpu_kernel *kernel) { return !kernel->multiply; }

/* The kernels as a batch-invariant context has them: a single row is summed in the order of tiles, too. */
static struct cpu_kernel invariant_kernels[KERNELS];

static void make_invariant_kernels(void) {
    for (int i = 0; i < KERNELS; i++) {
        invariant_kernels[i] = *kernels[i];
        invariant_kernels[i].multiply_row = kernels[i]->multiply_row_in_order;
        invariant_kernels[i].multiply_dots = NULL;
    }
}

static const struct cpu_kernel *invariant_kernel(const struct cpu_kernel *kernel) {
    static pthread_once_t made = PTHREAD_ONCE_INIT;
    pthread_once(&made, make_invariant_kernels);
    int i = 0;
    while (kernels[i] != kernel) i++;
    return &invariant_kernels[i];
}

static tsr_status choose(tsr_context *context, const tsr_options *options) {
    static const char variable[] = "TESSERA_CPU_KERNEL";
    const bool is_option = options->kernel;
    const char *name = is_option ? options->kernel : getenv(variable);
    const bool ieee = options->precision == TSR_IEEE;
    context->cpu_amx = CPU_AMX_NEVER;
    if (!is_option && (!name || !*name)) {
        context->cpu_kernel = best_here();
#ifdef CPU_HAS_AMX
        if (!ieee && runs_here(&cpu_kernel_amx) && may_use_amx()) context->cpu_amx = CPU_AMX_WHERE_FASTER;
#endif
        return TSR_OK;
    }
    context->cpu_kernel = kernel_named(name, is_option ? "options.kernel" : variable);
    if (!context->cpu_kernel) return TSR_INVALID_ARGUMENT;
    if (!is_amx(context->cpu_kernel)) return TSR_OK;
    if (ieee && is_option)
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.kernel is \"%s\", which is not for precision ieee", name);
    if (!ieee && !may_use_amx())
        return tsr_fail(TSR_UNSUPPORTED, "the system does not let this process use the kernel \"%s\"", name);
    context->cpu_kernel = best_here();
    if (!ieee) context->cpu_amx = CPU_AMX_ALWAYS;
    return TSR_OK;
}

tsr_status cpu_kernels_choose(tsr_context *context, const tsr_options *options) {
    const tsr_status status = choose(context, options);
    if (!status && options->batch_invariant) context->cpu_kernel = invariant_kernel(context->cpu_kernel);
    return status;
}

void cpu_info_print(tsr_text *text) {
    tsr_text_add(text, "cpu: %d cores for this process, with", cpu_default_threads());
    print_features(features_here(), text);
    tsr_text_add(text, "\n");
    for (int i = 0; i < KERNELS; i++) {
        const struct cpu_kernel *k = kernels[i];
        tsr_text_add(text, "cpu kernel: %s, tile %d x %d, %s", k->name, k->mr, k->nr,
                     runs_here(k) ? "runs here" : "does not run here: it needs");
        if (!runs_here(k)) print_features(k->needs, text);
        tsr_text_add(text, "\n");
    }
}
