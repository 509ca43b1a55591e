/* pack.cpp: pack.cu as it is, compiled for the CPU, and a function that runs its kernels. */
#include "cuda/kernels/pack/pack.cu"

static const pack_pair_args *launched;

/* Runs pack_split, or pack_sample, its thread blocks one after the other in random order. */
extern "C" void emulate(int splits, unsigned blocks, const pack_pair_args *pair, unsigned seed) {
    std::vector<unsigned> order;
    random_state = seed;
    for (unsigned i = 0; i < blocks; i++) order.insert(order.begin() + random_below(i + 1), i);
    gridDim.x = blocks;
    launched = pair;
    for (unsigned block : order) {
        blockIdx.x = block;
        memset(shared_memory, 0xff, sizeof shared_memory); /* NaN */
        if (splits)
            run_block([] { pack_split(*launched); });
        else
            run_block([] { pack_sample(*launched); });
    }
}
