/* pack.cpp: pack.cu and pack_rows.cu as they are, compiled for the CPU, and a function that runs its kernels. */
#include "cuda/kernels/pack/pack.cu"
#include "cuda/kernels/pack/pack_rows.cu"

static const pack_pair_args *launched;

/* Runs one of the kernels, its thread blocks one after the other in random order. */
extern "C" void emulate(int kernel, unsigned blocks, const pack_pair_args *pair, unsigned seed) {
    std::vector<unsigned> order;
    random_state = seed;
    for (unsigned i = 0; i < blocks; i++) order.insert(order.begin() + random_below(i + 1), i);
    gridDim.x = blocks;
    launched = pair;
    for (unsigned block : order) {
        blockIdx.x = block;
        memset(shared_memory, 0xff, sizeof shared_memory); /* NaN */
        if (kernel == 0) run_block([] { pack_sample(*launched); });
        if (kernel == 1) run_block([] { pack_split(*launched); });
        if (kernel == 2) run_block([] { pack_look(*launched); });
        if (kernel == 3) run_block([] { pack_scan(*launched); });
        if (kernel == 4) run_block([] { pack_rows_128(*launched); });
        if (kernel == 5) run_block([] { pack_rows_512(*launched); });
        if (kernel == 6) run_block([] { pack_rows_1024(*launched); });
    }
}
