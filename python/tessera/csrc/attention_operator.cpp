/* attention_operator.cpp: tessera::attention and its backward as torch operators, with the signatures of torch's
 * _scaled_dot_product_efficient_attention, and tessera::scaled_dot_product_attention, which gives any attention that
 * they can do to them and the rest to torch. Their shapes and vmap are in _attention.py. */
#include "attention.h"
#include "node.h"
#include "views.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/library.h>
#if TESSERA_TORCH_AT_LEAST(2, 0)
#include <ATen/ops/scaled_dot_product_attention.h>
#endif

#include <limits>

namespace tessera {

using at::Tensor;
using torch::autograd::variable_list;
using Scale = c10::optional<double>;

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

static AttentionResult attention_kernel(const Tensor &query, const Tensor &key, const Tensor &value,
                                        const OptionalTensor &attn_bias, bool compute_log_sumexp, double dropout_p,
                                        bool is_causal, Scale scale) {
    return attention_forward({query, key, value, given(attn_bias), dropout_p, is_causal, scale}, compute_log_sumexp);
}

static AttentionGradients attention_backward_kernel(const Tensor &grad_output, const Tensor &query, const Tensor &key,
                                                    const Tensor &value, const OptionalTensor &attn_bias,
                                                    const Tensor &output, const Tensor &log_sumexp,
                                                    const Tensor &philox_seed, const Tensor &philox_offset,
                                                    double dropout_p, std::array<bool, 4> wanted, bool is_causal,
                                                    Scale scale) {
    return attention_backward({query, key, value, given(attn_bias), dropout_p, is_causal, scale}, grad_output,
                              {output, log_sumexp, philox_seed, philox_offset}, wanted);
}

/* ---- Through the dispatcher -------------------------------------------------------------------------------------- */

static const auto &attention_operator() {
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow("tessera::attention", "").typed<decltype(attention_kernel)>();
    return handle;
}

static const auto &attention_backward_operator() {
    static const auto handle = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("tessera::attention_backward", "")
                                   .typed<decltype(attention_backward_kernel)>();
    return handle;
}

/* ---- Derivative -------------------------------------------------------------------------------------------------- */

static OptionalTensor optional(const Tensor &tensor) {
    return tensor.defined() ? OptionalTensor(tensor) : c10::nullopt;
}

static variable_list gradients_of(const Tensor &gradient, const variable_list &saved, double dropout_p, bool is_causal,
                                  Scale scale, std::array<bool, 4> wanted) {
    if (!gradient.defined()) return variable_list(4);
    const auto [query, key, value, bias] = attention_backward_operator().call(
        gradient, saved[0], saved[1], saved[2], optional(saved[3]), saved[4], saved[5], saved[6], saved[7], dropout_p,
        wanted, is_causal, scale);
    return {query, key, value, bias};
}

#if TESSERA_COMPILED_AUTOGRAD
static variable_list gradients_of_packed(const variable_list &gradients, const std::vector<c10::IValue> &arguments) {
    torch::dynamo::autograd::PackedArgs packed(arguments);
    const auto saved = packed.unpack<variable_list>();
    const auto dropout_p = packed.unpack<double>();
    const bool is_causal = packed.unpack<bool>();
    const auto scale = packed.unpack<Scale>();
    std::array<bool, 4> wanted;
    for (bool &each : wanted) each = packed.unpack<bool>();
    return gradients_of(gradients[0], saved, dropout_p, is_causal, scale, wanted);
}
#endif

struct AttentionBackward final : torch::autograd::Node {
    /* query, key, value, bias, output, log_sumexp, philox_seed, philox_offset */
    std::vector<torch::autograd::SavedVariable> saved;
    double dropout_p;
    bool is_causal;
    Scale scale;

    std::array<bool, 4> wanted() const {
        return {task_should_compute_output(0), task_should_compute_output(1), task_should_compute_output(2),
                task_should_compute_output(3)};
    }

    variable_list unpacked() const {
        variable_list tensors;
        for (const auto &each : saved) tensors.push_back(each.unpack());
        return tensors;
    }

    variable_list apply(variable_list &&gradients) override {
        std::lock_guard<std::mutex> guard(mutex_);
        TORCH_CHECK(!saved.empty(), torch::autograd::ERR_BACKWARD_TWICE);
        return gradients_of(gradients[0], unpacked(), dropout_p, is_causal, scale, wanted());
    }

#if TESSERA_COMPILED_AUTOGRAD
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs &arguments) const override {
        for (const auto &each : saved) arguments.collect(each, false);
        arguments.collect(dropout_p);
        arguments.collect(is_causal);
        arguments.collect(scale);
    }

    variable_list apply_with_saved(const variable_list &gradients,
                                   torch::dynamo::autograd::SwapSavedVariables &swapped) override {
        for (auto &each : saved) swapped.before(each);
        torch::dynamo::autograd::PackedArgs packed;
        packed.pack(unpacked());
        packed.pack(dropout_p);
        packed.pack(is_causal);
        packed.pack(scale);
        for (const bool each : wanted()) packed.pack(each);
        auto result = apply_in_graph(*this, swapped, gradients_of_packed, gradients, std::move(packed));
        for (auto &each : saved) swapped.after(each);
        return result;
    }
#endif

    std::string name() const override { return "TesseraAttentionBackward"; }

    void release_variables() override {
        std::lock_guard<std::mutex> guard(mutex_);
        saved.clear();
    }
};

static AttentionResult attention_autograd(c10::DispatchKeySet keys, const Tensor &query, const Tensor &key,
                                          const Tensor &value, const OptionalTensor &attn_bias, bool compute_log_sumexp,
                                          double dropout_p, bool is_causal, Scale scale) {
    const Tensor &bias = given(attn_bias);
    for (const Tensor *tensor : {&query, &key, &value, &bias})
        TORCH_CHECK_NOT_IMPLEMENTED(!torch::autograd::isFwGradDefined(*tensor),
                                    "tessera::attention has no forward-mode derivative: use torch's "
                                    "scaled_dot_product_attention");
    NodePointer node;
    if (torch::autograd::compute_requires_grad(query, key, value, bias)) {
        node = make_node<AttentionBackward>();
        node->set_next_edges(torch::autograd::collect_next_edges(query, key, value, bias));
    }
    AttentionResult result;
    {
        at::AutoDispatchBelowADInplaceOrView below;
        result = attention_operator().redispatch(keys & c10::after_ADInplaceOrView_keyset, query, key, value, attn_bias,
                                                 compute_log_sumexp || node, dropout_p, is_causal, scale);
    }
    if (!node) return result;
    auto &[output, log_sumexp, philox_seed, philox_offset] = result;
    auto *made = static_cast<AttentionBackward *>(node.get());
    for (const Tensor &each : {query, key, value, bias, output.detach(), log_sumexp, philox_seed, philox_offset})
        made->saved.emplace_back(each, false);
    made->dropout_p = dropout_p;
    made->is_causal = is_causal;
    made->scale = scale;
    torch::autograd::set_history(output, node);
    return result;
}

/* There is no second derivative: whoever asks for one gets a sentence. */
static AttentionGradients attention_backward_autograd(c10::DispatchKeySet keys, const Tensor &grad_output,
                                                      const Tensor &query, const Tensor &key, const Tensor &value,
                                                      const OptionalTensor &attn_bias, const Tensor &output,
                                                      const Tensor &log_sumexp, const Tensor &philox_seed,
                                                      const Tensor &philox_offset, double dropout_p,
                                                      std::array<bool, 4> wanted, bool is_causal, Scale scale) {
    NodePointer node;
    const Tensor &bias = given(attn_bias);
    if (torch::autograd::compute_requires_grad(grad_output, query, key, value, bias))
        node = make_node<torch::autograd::Error>(
            "tessera's attention has no second derivative: use torch's scaled_dot_product_attention with its math "
            "backend (torch.nn.attention.sdpa_kernel)",
            torch::autograd::collect_next_edges(grad_output, query, key, value, bias));
    AttentionGradients gradients;
    {
        at::AutoDispatchBelowADInplaceOrView below;
        gradients = attention_backward_operator().redispatch(
            keys & c10::after_ADInplaceOrView_keyset, grad_output, query, key, value, attn_bias, output, log_sumexp,
            philox_seed, philox_offset, dropout_p, wanted, is_causal, scale);
    }
    if (node)
        for (Tensor *gradient :
             {&std::get<0>(gradients), &std::get<1>(gradients), &std::get<2>(gradients), &std::get<3>(gradients)})
            if (gradient->defined()) torch::autograd::set_history(*gradient, node);
    return gradients;
}

/* ---- scaled_dot_product_attention -------------------------------------------------------------------------------- */

/* What is passed on to torch's function, its errors included. */
static Tensor by_torch(const Tensor &query, const Tensor &key, const Tensor &value, const OptionalTensor &attn_mask,
                       double dropout_p, bool is_causal, Scale scale, bool enable_gqa) {
#if TESSERA_TORCH_AT_LEAST(2, 5)
    /* Torch's fused kernels divide by the number of heads, whatever that is. */
    if (!query.is_nested() && (query.sym_numel() == 0 || key.sym_numel() == 0 || value.sym_numel() == 0))
        return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal,
                                                                  c10::nullopt, scale, enable_gqa));
    return at::scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
#elif TESSERA_TORCH_AT_LEAST(2, 1)
    TORCH_CHECK_NOT_IMPLEMENTED(!enable_gqa, "this attention is left to torch, where enable_gqa needs torch 2.5");
    return at::scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale);
#elif TESSERA_TORCH_AT_LEAST(2, 0)
    TORCH_CHECK_NOT_IMPLEMENTED(!enable_gqa, "this attention is left to torch, where enable_gqa needs torch 2.5");
    TORCH_CHECK_NOT_IMPLEMENTED(!scale, "this attention is left to torch, where scale needs torch 2.1");
    return at::scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal);
#else
    (void)query, (void)key, (void)value, (void)attn_mask, (void)dropout_p, (void)is_causal, (void)scale,
        (void)enable_gqa;
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "tessera attends to nonempty dense float32 tensors with the same dimension, at most ", MOST_DIM,
        ", of queries, keys and values, and a mask without gradient; anything else is left to torch, which has "
        "scaled_dot_product_attention since 2.0");
#endif
}

static bool is_dense(const Tensor &tensor, const Tensor &query) {
    return tensor.layout() == at::kStrided && !tensor.is_nested() && tensor.device() == query.device() &&
           !torch::autograd::isFwGradDefined(tensor);
}

static bool is_operand(const Tensor &tensor, const Tensor &query) {
    if (tensor.scalar_type() != at::kFloat || !is_dense(tensor, query) || tensor.dim() < 2) return false;
    for (const Size &size : sizes_of(tensor))
        if (size == 0) return false;
    return true;
}

/* Whether tessera::attention can do it. */
static bool is_own(const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &mask, double dropout_p,
                   bool is_causal, bool enable_gqa) {
    if (!(query.is_cpu() || query.is_cuda() || query.is_meta())) return false;
    for (const Tensor *tensor : {&query, &key, &value})
        if (!is_operand(*tensor, query)) return false;
    if (size_of(query, -1) > MOST_DIM || size_of(key, -1) != size_of(query, -1) ||
        size_of(value, -1) != size_of(query, -1) || size_of(value, -2) != size_of(key, -2))
        return false;
    if (enable_gqa && (query.dim() < 3 || key.dim() < 3 || value.dim() < 3 || size_of(key, -3) != size_of(value, -3) ||
                       size_of(query, -3) % size_of(key, -3) != 0))
        return false;
    if (!can_drop(dropout_p) || (dropout_p > 0 && is_capturing(query.device()))) return false;
    if (!mask.defined()) return true;
    const int64_t dims = std::max({query.dim(), key.dim(), value.dim()});
    return !is_causal && is_dense(mask, query) && mask.dim() <= dims &&
           (mask.scalar_type() == at::kBool || mask.scalar_type() == at::kFloat) &&
           !(at::GradMode::is_enabled() && mask.requires_grad());
}

/* A tensor as (batch, heads, rows, columns): missing dimensions are 1, the first of many become one. */
static Tensor with_four(Tensor tensor) {
    while (tensor.dim() < 4) tensor = tensor.unsqueeze(0);
    return tensor.dim() > 4 ? tensor.flatten(0, -4) : tensor;
}

static Tensor additive(const Tensor &mask) {
    if (mask.scalar_type() != at::kBool) return mask;
    return at::zeros_like(mask, mask.options().dtype(at::kFloat))
        .masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
}

/* The mask beside tensors of `dims` dimensions. If some leading dimensions are folded into the batch, those of the mask
 * are expanded first, unless it has none of them. */
static Tensor mask_beside(const Tensor &mask, SizesRef batch) {
    const Tensor bias = additive(mask);
    if (batch.size() <= 1 || bias.dim() <= 3) return with_four(bias);
    return with_four(expand_leading(bias, batch, 3));
}

static Tensor scaled_dot_product_attention(const Tensor &query, const Tensor &key, const Tensor &value,
                                           const OptionalTensor &attn_mask, double dropout_p, bool is_causal,
                                           Scale scale, bool enable_gqa) {
    const Tensor &mask = given(attn_mask);
    if (!is_own(query, key, value, mask, dropout_p, is_causal, enable_gqa))
        return by_torch(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
    /* The heads of queries and keys may differ with enable_gqa; everything else broadcasts. */
    const int64_t last = enable_gqa ? 3 : 2;
    const SizeVector of_keys = broadcast_sizes(leading_sizes(key, last), leading_sizes(value, last));
    const SizeVector leading = broadcast_sizes(leading_sizes(query, last), of_keys);
    const Tensor q = expand_leading(query, leading, last);
    const SizesRef batch = q.dim() > 3 ? leading_sizes(q, 3) : SizesRef();
    const bool differentiable = at::GradMode::is_enabled() &&
                                (query.requires_grad() || key.requires_grad() || value.requires_grad());
    const Tensor output = std::get<0>(attention_operator().call(
        with_four(q), with_four(expand_leading(key, leading, last)), with_four(expand_leading(value, leading, last)),
        mask.defined() ? OptionalTensor(mask_beside(mask, batch)) : c10::nullopt, differentiable, dropout_p, is_causal,
        scale));
    if (q.dim() > 4) return with_first_split(output, batch);
    return q.dim() == 4 ? output : q.dim() == 3 ? output.squeeze(0) : output.squeeze(0).squeeze(0);
}

} // namespace tessera

/* ---- Registration ------------------------------------------------------------------------------------------------ */

TORCH_LIBRARY_FRAGMENT(tessera, m) {
#if TESSERA_TORCH_AT_LEAST(2, 1)
    const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag, at::Tag::nondeterministic_seeded};
    const auto define = [&](const char *schema) { m.def(torch::schema(schema), tags); };
#else
    const auto define = [&](const char *schema) { m.def(schema); };
#endif
    define("attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp, float "
           "dropout_p=0.0, bool is_causal=False, *, float? scale=None) -> (Tensor output, Tensor log_sumexp, Tensor "
           "philox_seed, Tensor philox_offset)");
    define("attention_backward(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor? attn_bias, Tensor "
           "output, Tensor log_sumexp, Tensor philox_seed, Tensor philox_offset, float dropout_p, bool[4] "
           "grad_input_mask, bool is_causal=False, *, float? scale=None) -> (Tensor, Tensor, Tensor, Tensor)");
    define("scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float "
           "dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor");
    m.impl("scaled_dot_product_attention", TORCH_FN(tessera::scaled_dot_product_attention));
}

TORCH_LIBRARY_IMPL(tessera, CPU, m) {
    m.impl("attention", TORCH_FN(tessera::attention_kernel));
    m.impl("attention_backward", TORCH_FN(tessera::attention_backward_kernel));
}

TORCH_LIBRARY_IMPL(tessera, CUDA, m) {
    m.impl("attention", TORCH_FN(tessera::attention_kernel));
    m.impl("attention_backward", TORCH_FN(tessera::attention_backward_kernel));
}

TORCH_LIBRARY_IMPL(tessera, Autograd, m) {
    m.impl("attention", TORCH_FN(tessera::attention_autograd));
    m.impl("attention_backward", TORCH_FN(tessera::attention_backward_autograd));
}

#if TESSERA_TORCH_AT_LEAST(2, 0)
TORCH_LIBRARY_IMPL(tessera, FuncTorchBatchedDecomposition, m) {
    m.impl("scaled_dot_product_attention", TORCH_FN(tessera::scaled_dot_product_attention));
}
#endif
