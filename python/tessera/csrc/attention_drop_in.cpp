/* attention_drop_in.cpp: torch's float32 scaled_dot_product_attention on CUDA runs on Tessera while it is switched on.
 *
 * On float32 tensors torch has one fused kernel, _scaled_dot_product_efficient_attention, which is taken over at the
 * CUDA key, below autograd, with its backward. Its layouts are kept, for torch.compile relies on them, and so is the
 * meaning of log_sumexp: without dropout either library's backward pass can follow either's forward pass. With dropout
 * it cannot, since the generators differ; the random state says whose it is.
 */
#include "attention_drop_in.h"

#include "attention.h"
#include "drop_in.h"
#include "fork_safe.h"
#include "torch_cost.h"

#if TESSERA_TORCH_AT_LEAST(2, 4) /* earlier versions have other signatures */
#define TESSERA_ATTENTION_DROP_IN
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward_cuda_dispatch.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_cuda_dispatch.h>
namespace at::cuda { /* null without CUDA, see drop_in.cpp */
[[gnu::weak]] tessera::AttentionResult
_scaled_dot_product_efficient_attention(const Tensor &query, const Tensor &key, const Tensor &value,
                                        const tessera::OptionalTensor &attn_bias, bool compute_log_sumexp,
                                        double dropout_p, bool is_causal, c10::optional<double> scale);
[[gnu::weak]] tessera::AttentionGradients _scaled_dot_product_efficient_attention_backward(
    const Tensor &grad_output, const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &attn_bias,
    const Tensor &output, const Tensor &log_sumexp, const Tensor &philox_seed, const Tensor &philox_offset,
    double dropout_p, std::array<bool, 4> wanted, bool is_causal, c10::optional<double> scale);
} // namespace at::cuda
#endif

#include <map>

namespace tessera {

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

using Kind = std::array<int64_t, 8>; /* device index, precision, backward, batch, heads, queries, keys, dimension */

static ReasonCounts passed;
static ForkSafeMutex taken_lock;
static auto &taken = *new std::map<Kind, uint64_t>;

std::vector<std::string> attention_taken() {
    ForkSafeGuard guard(taken_lock);
    std::vector<std::string> lines;
    for (const auto &[kind, calls] : taken) {
        std::string line = "cuda:" + std::to_string(kind[0]) + " ";
        line += tsr_precision_name(static_cast<tsr_precision>(kind[1]));
        line += kind[2] ? " backward" : " forward";
        for (size_t i = 3; i < kind.size(); i++) line += " " + std::to_string(kind[i]);
        lines.push_back(line + " " + std::to_string(calls));
    }
    return lines;
}

std::vector<std::string> attention_passed() { return passed.lines(); }

void forget_attention_counts() {
    passed.forget();
    ForkSafeGuard guard(taken_lock);
    taken.clear();
}

#ifdef TESSERA_ATTENTION_DROP_IN

static void count_taken(const Attention &a, bool backward) {
    enum { MOST_KINDS = 1 << 16 }; /* then the rest is counted together, as all zeros */
    const at::IntArrayRef q = a.query.sizes();
    const Kind kind = {a.query.device().index(), a.precision, backward, q[0], q[1], q[2], a.key.size(2), q[3]};
    ForkSafeGuard guard(taken_lock);
    taken[taken.size() < MOST_KINDS || taken.count(kind) ? kind : Kind{}]++;
}

/* ---- What is taken ----------------------------------------------------------------------------------------------- */

/* Whether a forward pass is taken; the backward pass of a captured one asks again. */
static bool is_taken(const Setting &setting, const Attention &a, ReasonCounts *counts) {
    for (const at::Tensor *tensor : {&a.query, &a.key, &a.value, &a.bias}) {
        if (!tensor->defined()) continue;
        if (tensor->scalar_type() != at::kFloat) return counts->count(OTHER_DTYPE);
        if (tensor->layout() != at::kStrided || tensor->device() != a.query.device())
            return counts->count(OTHER_LAYOUT);
        if (tensor->dim() != 4) return counts->count(OTHER_SHAPE);
    }
    const at::IntArrayRef q = a.query.sizes(), k = a.key.sizes();
    if (k != a.value.sizes() || q[0] != k[0] || q[1] != k[1] || q[3] != k[3] || q[3] > MOST_DIM || !a.query.numel() ||
        !a.key.numel() || !can_drop(a.dropout_p))
        return counts->count(OTHER_SHAPE);
    const bool faster = tessera_attention_is_faster(gpu_of(a.query.device()).hopper, q[0] * q[1], q[2], k[2], q[3],
                                                    a.is_causal);
    if (!setting.always && !faster) return counts->count(TORCH_IS_FASTER);
    /* A captured seed would drop the same weights in every replay. */
    if (a.dropout_p > 0 && is_capturing(a.query.device())) return counts->count(NOT_POSSIBLE);
    /* The gradient of a bias is torch's, which knows nothing of weights that we drop. */
    if (a.dropout_p > 0 && a.bias.defined() && a.bias.requires_grad()) return counts->count(NOT_POSSIBLE);
    return true;
}

/* There are no tf32 kernels of attention. */
static tsr_precision precision_of(const Setting &setting) {
    return setting.precision == TSR_TF32 ? TSR_FP32 : setting.precision;
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

static AttentionResult efficient_attention(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                                           const OptionalTensor &attn_bias, bool compute_log_sumexp, double dropout_p,
                                           bool is_causal, c10::optional<double> scale) {
    const Setting setting = cuda_setting();
    if (setting.on) {
        const Attention attention = {query,     key,       value, given(attn_bias),
                                     dropout_p, is_causal, scale, precision_of(setting)};
        if (is_taken(setting, attention, &passed)) {
            try {
                const AttentionResult result = attention_forward(attention, compute_log_sumexp);
                count_taken(attention, false);
                return result;
            } catch (const c10::Error &) { /* no kernels here, a capture before the first use, too little memory */
                passed.count(NOT_POSSIBLE);
            }
        }
    }
    return at::cuda::_scaled_dot_product_efficient_attention(query, key, value, attn_bias, compute_log_sumexp,
                                                             dropout_p, is_causal, scale);
}

/* Whether the forward pass was ours. In a captured graph the state lies on the GPU and cannot be read; but then there
 * is no dropout, and the rule that chose the forward pass chooses again. */
static bool was_taken(const Setting &setting, const Attention &a, const at::Tensor &philox_seed,
                      const at::Tensor &philox_offset) {
    if (philox_seed.is_cpu()) return is_own_state(philox_seed, philox_offset, a.dropout_p);
    ReasonCounts uncounted;
    return setting.on && !(a.dropout_p > 0) && is_taken(setting, a, &uncounted);
}

static AttentionGradients efficient_attention_backward(const at::Tensor &grad_output, const at::Tensor &query,
                                                       const at::Tensor &key, const at::Tensor &value,
                                                       const at::Tensor &attn_bias, const at::Tensor &output,
                                                       const at::Tensor &log_sumexp, const at::Tensor &philox_seed,
                                                       const at::Tensor &philox_offset, double dropout_p,
                                                       std::array<bool, 4> wanted, bool is_causal,
                                                       c10::optional<double> scale) {
    const Setting setting = cuda_setting();
    const Attention attention = {query, key, value, attn_bias, dropout_p, is_causal, scale, precision_of(setting)};
    if (grad_output.defined() && was_taken(setting, attention, philox_seed, philox_offset)) {
        const bool torch_can = !(dropout_p > 0); /* else it would drop other weights than the forward pass did */
        if (torch_can && wanted[3] && attn_bias.defined()) {
            passed.count(NOT_POSSIBLE);
        } else {
            try {
                const AttentionGradients gradients = attention_backward(
                    attention, grad_output, {output, log_sumexp, philox_seed, philox_offset}, wanted);
                count_taken(attention, true);
                return gradients;
            } catch (const c10::Error &) {
                if (!torch_can) throw;
                passed.count(NOT_POSSIBLE);
            }
        }
    }
    return at::cuda::_scaled_dot_product_efficient_attention_backward(grad_output, query, key, value, attn_bias, output,
                                                                      log_sumexp, philox_seed, philox_offset, dropout_p,
                                                                      wanted, is_causal, scale);
}

void register_attention(torch::Library *library) {
    library->impl("_scaled_dot_product_efficient_attention", TORCH_FN(efficient_attention));
    library->impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(efficient_attention_backward));
}

#else

void register_attention(torch::Library *) {}

#endif

} // namespace tessera
