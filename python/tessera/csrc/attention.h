/* attention.h: attention of float32 tensors as calls of libtessera, with the results that torch's own
 * _scaled_dot_product_efficient_attention and its backward have. For attention_operator.cpp and attention_drop_in.cpp.
 */
#pragma once

#include <array>
#include <tuple>

#include "product.h"

namespace tessera {

/* What is attended to: query (batch, heads, queries, dim), key and value (batch, kv_heads, keys, dim), all float32 with
 * any strides; bias, added to the scores, broadcasts to (batch, heads, queries, keys) and may be undefined. */
struct Attention {
    at::Tensor query, key, value, bias;
    double dropout_p = 0;
    bool is_causal = false;
    c10::optional<double> scale; /* 1 / sqrt(dim) if there is none */
    tsr_precision precision = TSR_FP32;
};

/* output, log_sumexp, philox_seed, philox_offset. The output lies in memory as (batch, queries, heads, dim).
 * log_sumexp is (batch, heads, queries rounded up to LSE_ALIGNMENT), padded with infinity, or (batch, heads, 0). Seed
 * and offset are what the backward pass needs to drop the same weights. */
using AttentionResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using AttentionGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
constexpr int64_t LSE_ALIGNMENT = 32;

/* Raises errors of torch's kinds. */
AttentionResult attention_forward(const Attention &attention, bool compute_log_sumexp);

/* The gradients by query, key, value and bias; undefined where `wanted` is false. `result` is what attention_forward
 * returned for the same attention. The bias's is computed from weights that are written out: right, but slow. */
AttentionGradients attention_backward(const Attention &attention, const at::Tensor &grad_output,
                                      const AttentionResult &result, const std::array<bool, 4> &wanted);

/* Whether attention_forward drew this state: torch's generators are others, and their offsets are multiples of 4. */
bool is_own_state(const at::Tensor &philox_seed, const at::Tensor &philox_offset, double dropout_p);

/* Whether libtessera can drop that share of the weights, all but 1. */
bool can_drop(double dropout_p);

constexpr int64_t MOST_DIM = 256;

} // namespace tessera
