/* attention_drop_in.h: torch's own float32 attention on CUDA on Tessera. */
#pragma once

#include <torch/library.h>

#include <string>
#include <vector>

namespace tessera {

/* Registers kernels for aten::_scaled_dot_product_efficient_attention and its backward at `library`'s key, CUDA. */
void register_attention(torch::Library *library);

/* How often attention of each kind was taken, a line each: "cuda:0 fp32 forward 8 12 1024 1024 64 17" (device,
 * precision, direction, batch, heads, queries, keys, dimension, calls). */
std::vector<std::string> attention_taken();

/* Attention that was left to torch, a line for each reason: "dtype 17". */
std::vector<std::string> attention_passed();

void forget_attention_counts();

} // namespace tessera
