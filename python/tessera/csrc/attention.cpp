/* attention.cpp: strides, random state, workspace and results of attention. */
#include "attention.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <mutex>

namespace tessera {

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

static void check_argument(const char *name, const at::Tensor &tensor, const at::Tensor &query) {
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.scalar_type() == at::kFloat, "tessera attends to float32 tensors, but ", name,
                                " has dtype ", tensor.scalar_type());
    TORCH_CHECK(tensor.device() == query.device(), "Expected all tensors to be on the same device, but query is on ",
                query.device(), " and ", name, " is on ", tensor.device());
    TORCH_CHECK(tensor.dim() == 4, name, " must be a 4D tensor, but it is ", tensor.dim(), "D");
}

static void check_attention(const Attention &a) {
    check_argument("query", a.query, a.query);
    check_argument("key", a.key, a.query);
    check_argument("value", a.value, a.query);
    if (a.bias.defined()) check_argument("attn_bias", a.bias, a.query);
    const at::IntArrayRef q = a.query.sizes(), k = a.key.sizes();
    TORCH_CHECK(k == a.value.sizes(), "key and value must have the same sizes, but they have ", k, " and ",
                a.value.sizes());
    TORCH_CHECK(q[0] == k[0] && q[3] == k[3], "query of sizes ", q, " and key of sizes ", k,
                " must have the same batch and dimension");
    TORCH_CHECK(k[1] ? q[1] % k[1] == 0 : !q[1], "the heads of query, ", q[1], ", must be a multiple of those of key, ",
                k[1]);
    TORCH_CHECK(can_drop(a.dropout_p), "dropout_p must be in [0, 1), but it is ", a.dropout_p);
}

bool can_drop(double dropout_p) {
    constexpr double STEPS = 1 << 16; /* shares are rounded to one of so many */
    return dropout_p >= 0 && dropout_p <= 1 - 1 / STEPS;
}

/* ---- The random state of dropout --------------------------------------------------------------------------------- */

struct RandomState {
    uint64_t seed, offset;
};

/* An offset of ours is odd. Without dropout nothing is drawn, and the seed says whose attention it was. */
constexpr uint64_t OFFSET_MARK = 1;
constexpr RandomState UNUSED = {0x6172657373657474 /* "ttessera" */, OFFSET_MARK};

static RandomState draw_state(const c10::Device &device) {
    if (device.is_cpu()) {
        at::Generator generator = at::detail::getDefaultCPUGenerator();
        std::lock_guard<std::mutex> guard(generator.mutex());
        auto *cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
        const uint64_t seed = cpu->random64(), offset = cpu->random64();
        return {seed, offset | OFFSET_MARK};
    }
#if TESSERA_TORCH_AT_LEAST(2, 1)
    constexpr uint64_t STEP = 4; /* torch's offsets are multiples of it */
    at::Generator generator = at::globalContext().defaultGenerator(device);
    std::lock_guard<std::mutex> guard(generator.mutex());
    const uint64_t offset = generator.get_offset();
    generator.set_offset(offset + STEP);
    return {generator.current_seed(), offset | OFFSET_MARK};
#else
    TORCH_CHECK_NOT_IMPLEMENTED(false, "attention with dropout on ", device, " needs torch 2.1");
#endif
}

static at::Tensor stored(uint64_t number) { return at::scalar_tensor(static_cast<int64_t>(number), at::kLong); }
static uint64_t read(const at::Tensor &stored) { return static_cast<uint64_t>(stored.item<int64_t>()); }

bool is_own_state(const at::Tensor &philox_seed, const at::Tensor &philox_offset, double dropout_p) {
    return philox_seed.is_cpu() && philox_offset.is_cpu() && read(philox_offset) & OFFSET_MARK &&
           (dropout_p > 0 || read(philox_seed) == UNUSED.seed);
}

/* ---- Calls of libtessera ----------------------------------------------------------------------------------------- */

template <class Heads> static Heads heads_of(const at::Tensor &tensor) {
    const at::IntArrayRef strides = tensor.strides();
    return {tensor.data_ptr<float>(), strides[0], strides[1], strides[2], strides.size() == 4 ? strides[3] : 1};
}

static tsr_heads read_heads(const at::Tensor &tensor) { return heads_of<tsr_heads>(tensor); }
static tsr_heads_result written_heads(const at::Tensor &tensor) {
    return tensor.defined() ? heads_of<tsr_heads_result>(tensor) : tsr_heads_result{};
}

static tsr_attention_problem problem_of(const Attention &a, RandomState state) {
    tsr_attention_problem p = {};
    p.batch = a.query.size(0), p.heads = a.query.size(1), p.queries = a.query.size(2), p.dim = a.query.size(3);
    p.kv_heads = a.key.size(1), p.keys = a.key.size(2);
    p.q = read_heads(a.query), p.k = read_heads(a.key), p.v = read_heads(a.value);
    if (a.bias.defined()) p.mask = read_heads(a.bias.expand({p.batch, p.heads, p.queries, p.keys}));
    p.scale = static_cast<float>(a.scale ? *a.scale : 1 / std::sqrt(static_cast<double>(p.dim)));
    p.causal = a.is_causal;
    p.dropout = static_cast<float>(a.dropout_p);
    p.seed = state.seed, p.offset = state.offset;
    return p;
}

static bool is_empty(const Attention &a) { return !a.query.numel() || !a.key.numel(); }

static void run_forward(const Attention &a, RandomState state, const at::Tensor &output, const at::Tensor &lse) {
    const tsr_attention_problem problem = problem_of(a, state);
    tsr_context *context = context_for(a.query.device(), a.precision);
    const Launch launch(a.query.device(), tsr_attention_workspace(context, &problem, 0));
    const tsr_heads_result o = written_heads(output), sums = written_heads(lse);
    check(tsr_attention(context, &problem, &o, lse.defined() ? &sums : nullptr, &launch.of));
}

/* As torch's kernels write it: what follows, the transpose back and the projection, then reads contiguous memory. */
static at::Tensor empty_like_torch(const at::Tensor &of) {
    return at::empty({of.size(0), of.size(2), of.size(1), of.size(3)}, of.options()).transpose(1, 2);
}

AttentionResult attention_forward(const Attention &a, bool compute_log_sumexp) {
    check_attention(a);
    const int64_t queries = a.query.size(2), heads = a.query.size(1), batch = a.query.size(0);
    const int64_t rows = compute_log_sumexp ? (queries + LSE_ALIGNMENT - 1) / LSE_ALIGNMENT * LSE_ALIGNMENT : 0;
    const at::Tensor output = empty_like_torch(a.query), sums = at::empty({batch, heads, rows}, a.query.options());
    const bool capturing = is_capturing(a.query.device());
    TORCH_CHECK(!capturing || !(a.dropout_p > 0), "attention with dropout cannot be captured into a graph by tessera: "
                                                  "every replay would drop the same weights");
    const RandomState state = a.dropout_p > 0 ? draw_state(a.query.device()) : UNUSED;
    if (is_empty(a)) {
        output.zero_();
        sums.fill_(std::numeric_limits<double>::infinity());
    } else {
        run_forward(a, state, output, compute_log_sumexp ? sums : at::Tensor());
        if (rows > queries) sums.narrow(2, queries, rows - queries).fill_(std::numeric_limits<double>::infinity());
    }
    if (!capturing) return {output, sums, stored(state.seed), stored(state.offset)};
    /* What a graph returns lies on the GPU; nobody reads these. */
    const at::TensorOptions number = a.query.options().dtype(at::kLong);
    return {output, sums, at::empty({}, number), at::empty({}, number)};
}

/* ---- The backward pass ------------------------------------------------------------------------------------------- */

/* The weights themselves, (batch, heads, queries, keys): columns of the identity in place of the values, as many at a
 * time as the dimension allows. */
static at::Tensor weights_of(const Attention &a, RandomState state, double dropout_p) {
    const int64_t keys = a.key.size(2), dim = a.key.size(3);
    Attention columns = a;
    columns.dropout_p = dropout_p;
    const at::Tensor row = at::arange(keys, a.key.options().dtype(at::kLong)).unsqueeze(1);
    std::vector<at::Tensor> parts;
    for (int64_t begin = 0; begin < keys; begin += dim) {
        const at::Tensor column = at::arange(begin, begin + dim, row.options());
        columns.value = row.eq(column).to(at::kFloat).expand_as(a.key);
        parts.push_back(empty_like_torch(a.query));
        run_forward(columns, state, parts.back(), {});
    }
    return at::cat(parts, 3).narrow(3, 0, keys);
}

static at::Tensor with_heads_of(const at::Tensor &key, const at::Tensor &query) {
    return key.size(1) == query.size(1) ? key : key.repeat_interleave(query.size(1) / key.size(1), 1);
}

/* dS = W (dO V^T) - P delta elementwise, for weights P before dropout and W after it, delta = sum(O dO) of each row. */
static at::Tensor bias_gradient(const Attention &a, const at::Tensor &grad_output, const at::Tensor &output,
                                RandomState state) {
    constexpr int64_t ALIGNMENT = 16; /* of rows, as torch's meta function promises */
    const at::IntArrayRef sizes = a.bias.sizes();
    const int64_t aligned = (sizes[3] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const at::Tensor gradient =
        at::empty({sizes[0], sizes[1], sizes[2], aligned}, a.bias.options()).narrow(3, 0, sizes[3]);
    if (is_empty(a)) return gradient.zero_();
    const at::Tensor plain = weights_of(a, state, 0);
    const at::Tensor dropped = a.dropout_p > 0 ? weights_of(a, state, a.dropout_p) : plain;
    const at::Tensor by_weights = at::matmul(grad_output, with_heads_of(a.value, a.query).transpose(2, 3));
    const at::Tensor delta = (output * grad_output).sum(3, true);
    return gradient.copy_((dropped * by_weights - plain * delta).sum_to_size(sizes));
}

AttentionGradients attention_backward(const Attention &a, const at::Tensor &grad_output, const AttentionResult &result,
                                      const std::array<bool, 4> &wanted) {
    const auto &[output, sums, philox_seed, philox_offset] = result;
    if (!grad_output.defined()) return {};
    check_attention(a);
    check_argument("grad_output", grad_output, a.query);
    const int64_t queries = a.query.size(2);
    TORCH_CHECK(grad_output.sizes() == a.query.sizes() && output.sizes() == a.query.sizes() && sums.dim() == 3 &&
                    sums.size(2) >= queries,
                "the gradient and results of attention must have its sizes, ", a.query.sizes(), ", but they have ",
                grad_output.sizes(), ", ", output.sizes(), " and ", sums.sizes());
    const RandomState state = a.dropout_p > 0 ? RandomState{read(philox_seed), read(philox_offset)} : UNUSED;
    const bool has_bias = wanted[3] && a.bias.defined();
    AttentionGradients gradients = {wanted[0] ? empty_like_torch(a.query) : at::Tensor(),
                                    wanted[1] ? empty_like_torch(a.key) : at::Tensor(),
                                    wanted[2] ? empty_like_torch(a.value) : at::Tensor(),
                                    has_bias ? bias_gradient(a, grad_output, output, state) : at::Tensor()};
    const auto &[grad_query, grad_key, grad_value, grad_bias] = gradients;
    if (is_empty(a)) {
        for (const at::Tensor *gradient : {&grad_query, &grad_key, &grad_value})
            if (gradient->defined()) gradient->zero_();
        return gradients;
    }
    if (!wanted[0] && !wanted[1] && !wanted[2]) return gradients;
    const tsr_attention_problem problem = problem_of(a, state);
    tsr_context *context = context_for(a.query.device(), a.precision);
    const Launch launch(a.query.device(), tsr_attention_workspace(context, &problem, 1));
    tsr_attention_gradients g = {};
    g.o = read_heads(output), g.lse = read_heads(sums), g.grad_o = read_heads(grad_output);
    g.grad_q = written_heads(grad_query), g.grad_k = written_heads(grad_key), g.grad_v = written_heads(grad_value);
    check(tsr_attention_backward(context, &problem, &g, &launch.of));
    return gradients;
}

} // namespace tessera
