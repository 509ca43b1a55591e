/* kernels.c: the microkernels of this build, which of them this machine can run, and which one a context gets. */
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "kernel.h"

/* Best first: the first that runs here is the default. */
static const struct cpu_kernel *const kernels[] = {
#ifdef __x86_64__
    &cpu_kernel_avx512,
    &cpu_kernel_avx2,
#endif
    &cpu_kernel_portable,
};

enum { KERNELS = sizeof kernels / sizeof kernels[0] };

/* Instruction sets that both the processor and the operating system support (__builtin_cpu_supports looks at xgetbv,
 * too: a chip's registers are of no use where the system does not save them). */
static unsigned features_here(void) {
    unsigned features = 0;
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
    static const char *const names[] = {"avx2", "fma", "avx512f", "avx512vl"}; /* in the order of the bits */
    for (unsigned bit = 0; bit < sizeof names / sizeof names[0]; bit++)
        if (features >> bit & 1) tsr_text_add(text, " %s", names[bit]);
    if (!features) tsr_text_add(text, " none of those looked for");
}

const struct cpu_kernel *cpu_kernel_find(const char *name) {
    static const char variable[] = "TESSERA_CPU_KERNEL";
    const char *from = "options.kernel";
    if (!name || !*name) {
        name = getenv(variable);
        from = variable;
    }
    if (!name || !*name) {
        int i = 0;
        while (!runs_here(kernels[i])) i++; /* the portable one does */
        return kernels[i];
    }
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
