/* plan_print.c: what a plan says of itself, for tsr_plan_print and `tessera plan`. */
#include "cuda/candidates.h"
#include "cuda/plan.h"

static void print_tiles(const cuda_plan *plan, tsr_text *text) {
    const cuda_kernel *kernel = plan->multiply;
    const int64_t tile_m = kernel->family == FAMILY_VECTOR ? cuda_vector_rows(kernel, plan->share) : kernel->tile_m;
    const int64_t tiles_m = ceil_div(plan->chunk_m, tile_m), tiles_n = ceil_div(plan->chunk_n, kernel->tile_n);
    const bool tf32 = kernel->family == FAMILY_TF32 && plan->cluster == 1;
    const bool wide = kernel->family == FAMILY_WIDE && plan->cluster == 1;
    const bool whole_batch = plan->split || tf32 || kernel->family == FAMILY_WARP;
    const int64_t tiles = tiles_m * tiles_n, full = plan->slices > 1 ? plan->full_tiles : tiles, cut = tiles - full;
    const bool parts = plan->split && plan->cluster > 1;
    const int64_t blocks = parts                 ? tiles * plan->chunk_batch
                           : plan->split || tf32 ? cuda_split_blocks(kernel, plan->device, plan->chunk_batch * full,
                                                                     plan->chunk_batch * cut * plan->slices)
                           : wide ? cuda_wide_blocks(kernel, plan->device, plan->chunk_batch, tiles * plan->slices)
                           : whole_batch ? cuda_warp_blocks(kernel, plan->device, tiles * plan->chunk_batch)
                                         : cuda_ieee_blocks(kernel, plan->device, plan->full_tiles, plan->tail_blocks);
    tsr_text_add(text, "tile: %lld x %d x %d (m, n, k)\n", (long long)tile_m, kernel->tile_n, kernel->tile_k);
    tsr_text_add(text, "tiles: %lld x %lld%s\n", (long long)tiles_m, (long long)tiles_n,
                 plan->transposed ? ", of c transposed" : "");
    tsr_text_add(text, "grid: %lld blocks%s\n", (long long)(blocks * (plan->cluster ? plan->cluster : 1)),
                 !whole_batch && plan->chunk_batch > 1 ? " for each item" : "");
    if ((plan->split || tf32 || wide) && plan->slices > 1)
        tsr_text_add(
            text, full ? "slices: %lld of k, %lld long, in the last %lld tiles\n" : "slices: %lld of k, %lld long\n",
            (long long)plan->slices, (long long)(plan->split ? plan->k_per_slice : plan->k_each), (long long)cut);
    if (plan->cluster > 1)
        tsr_text_add(text, "clusters: %lld blocks, %lld terms of k each\n", (long long)plan->cluster,
                     (long long)plan->k_each);
    if (plan->tail_blocks)
        tsr_text_add(text, "tail: all but the first %lld tiles, their k ranges shared by %lld blocks\n",
                     (long long)plan->full_tiles, (long long)plan->tail_blocks);
}

void cuda_plan_print(const cuda_plan *plan, const tsr_problem *problem, tsr_text *text) {
    const cuda_kernel *kernel = plan->multiply;
    const cuda_device *device = plan->device;
    const tsr_problem p = plan->transposed ? problem_transpose(problem) : *problem;
    tsr_text_add(text, "engine: cuda\nGPU: %d, %s, compute capability %d.%d, %d multiprocessors%s\n", device->ordinal,
                 device->name, device->capability / 10, device->capability % 10, device->multiprocessors,
                 device->from_ptx ? " (kernels from PTX, TESSERA_CUDA_PTX)" : "");
    tsr_text_add(text, "kernel: %s\n", kernel->name);
    tsr_text_add(text, "threads: %d\n", kernel->threads);
    if (kernel->tile_m) print_tiles(plan, text);
    if (plan->split) {
        const int packed = !!operand_panels(&p.a, p.batch) + !!operand_panels(&p.b, p.batch);
        tsr_text_add(text, "packing: into %d fp16 component%s, %d of 2 operands packed beforehand\n",
                     kernel->components, kernel->components == 1 ? "" : "s", packed);
        tsr_problem chunk = p;
        chunk.m = plan->chunk_m, chunk.n = plan->chunk_n, chunk.k = plan->chunk_k, chunk.batch = plan->chunk_batch;
        const cuda_kernel *recompute = cuda_recomputes_in_tf32(plan, &p)
                                           ? cuda_tf32_recompute_kernel(device)
                                           : cuda_recompute_kernel(device, &chunk, plan->invariant);
        tsr_text_add(text, "fallback: %s, where a panel cannot be split\n", recompute->name);
    }
    const tf32_reading reading = tf32_reading_of(&p, plan->turns_b);
    if (kernel->family == FAMILY_TF32 && (reading.copies_a || reading.copies_b))
        tsr_text_add(text, "copies: %s%s%s, to rows along k\n",
                     (plan->transposed ? reading.copies_b : reading.copies_a) ? "a" : "",
                     reading.copies_a && reading.copies_b ? " and " : "",
                     (plan->transposed ? reading.copies_a : reading.copies_b) ? "b" : "");
    if (plan->chunk_m < p.m || plan->chunk_n < p.n || plan->chunk_k < p.k || plan->chunk_batch < p.batch)
        tsr_text_add(text, "chunks: %lld x %lld x %lld, batch of %lld\n", (long long)plan->chunk_m,
                     (long long)plan->chunk_n, (long long)plan->chunk_k, (long long)plan->chunk_batch);
    tsr_text_add(text, "reason: %s\ntuning: %s\n", plan->reason, device->tuning);
}
