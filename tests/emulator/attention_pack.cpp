/* attention_pack.cpp: attention_pack.cu as it is, compiled for the CPU, and a function that runs its kernels. */
#define EMULATED_THREADS 256
#include "cuda/kernels/attention/attention_pack.cu"

static const attention_args *launched;

/* Packs `operands` of Q, K, V and dO, rows of up to 64*blocks columns, in `tiles` thread blocks each. */
extern "C" void emulate(int blocks, unsigned tiles, unsigned operands, const attention_args *args, unsigned seed) {
    random_state = seed;
    launched = args;
    for (unsigned n = 0; n < tiles * operands; n++) {
        blockIdx = {n % tiles, n / tiles};
        static void (*const kernels[])() = {[] { attention_pack_64(*launched); }, [] { attention_pack_128(*launched); },
                                            [] { attention_pack_192(*launched); },
                                            [] { attention_pack_256(*launched); }};
        run_block(kernels[blocks - 1]);
    }
}
