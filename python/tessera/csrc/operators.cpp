/* operators.cpp: torch.ops.tessera, from one primitive.
 *
 *   gemm      beta * input + alpha * a @ b for a (..., m, k) and b (..., k, n) with the same leading sizes. It alone
 *             has kernels (CPU, CUDA, Meta, Autocast) and a derivative, which is made of gemm again.
 *   the rest  matmul, bmm, addmm, baddbmm, linear: views of their arguments, then gemm.
 *
 * Arguments keep their strides: gemm takes any, so nothing is copied on the way.
 */
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include "drop_in.h"
#include "product.h"

namespace tessera {

using OptionalTensor = c10::optional<at::Tensor>;
using PackedPointer = c10::intrusive_ptr<Packed>;

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

static void check_dtype(const char *name, const at::Tensor &tensor) {
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.scalar_type() == at::kFloat, "tessera multiplies float32 tensors, but ", name,
                                " has dtype ", tensor.scalar_type(), ": convert it with .float(), or use torch.matmul");
}

static void check_layout(const char *name, const at::Tensor &tensor) {
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "tessera multiplies dense tensors, but ", name,
                                " has layout ", tensor.layout(), ": convert it with .to_dense(), or use torch.matmul");
    TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_quantized(), "tessera multiplies float32 tensors, but ", name,
                                " is quantized: convert it with .dequantize()");
}

static void check_device(const char *name, const at::Tensor &tensor, const at::Tensor &a) {
    TORCH_CHECK(tensor.device() == a.device(), "Expected all tensors to be on the same device, but a is on ",
                a.device(), " and ", name, " is on ", tensor.device());
}

/* What gemm asks of its arguments; symbolic sizes are compared as such. */
static void check_gemm(const at::Tensor &input, const at::Tensor &a, const at::Tensor &b) {
    check_dtype("a", a);
    check_dtype("b", b);
    check_device("b", b, a);
    TORCH_CHECK(a.dim() >= 2 && b.dim() >= 2, "a and b must have at least 2 dimensions, but they have ", a.dim(),
                " and ", b.dim());
    if (!input.defined()) return;
    check_dtype("input", input);
    check_device("input", input, a);
}

static void check_inner(int64_t a_rows, int64_t a_cols, int64_t b_rows, int64_t b_cols) {
    TORCH_CHECK(a_cols == b_rows, "a and b shapes cannot be multiplied (", a_rows, "x", a_cols, " and ", b_rows, "x",
                b_cols, ")");
}

static c10::SmallVector<int64_t, 6> gemm_sizes(const at::Tensor &a, const at::Tensor &b) {
    check_inner(a.size(-2), a.size(-1), b.size(-2), b.size(-1));
    const auto batch = a.sizes().slice(0, a.dim() - 2);
    TORCH_CHECK(batch == b.sizes().slice(0, b.dim() - 2), "the leading sizes of a and b differ: ", a.sizes(), " and ",
                b.sizes());
    c10::SmallVector<int64_t, 6> sizes(batch.begin(), batch.end());
    sizes.push_back(a.size(-2));
    sizes.push_back(b.size(-1));
    return sizes;
}

/* ---- gemm: kernels ----------------------------------------------------------------------------------------------- */

static Product product_of(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                          const at::Scalar &alpha, c10::string_view precision, at::IntArrayRef sizes) {
    Product product;
    product.a = a;
    product.b = b;
    product.alpha = alpha.toDouble();
    product.precision = precision_named(precision);
    if (input && input->defined()) product.beta = beta.toDouble();
    if (product.beta != 0) {
        TORCH_CHECK(at::is_expandable_to(input->sizes(), sizes), "input of sizes ", input->sizes(),
                    " cannot be expanded to the product's ", sizes);
        product.s = *input;
    }
    return product;
}

static const at::Tensor &given(const OptionalTensor &tensor) {
    static const at::Tensor none;
    return tensor ? *tensor : none;
}

static at::Tensor run(Product &&product, at::IntArrayRef sizes) {
    if (!c10::multiply_integers(sizes)) return at::empty(sizes, product.a.options());
    const Reduced reduced = reduce(product);
    product.c = at::empty(sizes, product.a.options());
    execute(reduced, product);
    return product.c;
}

static at::Tensor gemm(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                       const at::Scalar &alpha, c10::string_view precision) {
    check_gemm(given(input), a, b);
    const auto sizes = gemm_sizes(a, b);
    return run(product_of(input, a, b, beta, alpha, precision, sizes), sizes);
}

static void gemm_out(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                     const at::Scalar &alpha, c10::string_view precision, at::Tensor out) {
    check_gemm(given(input), a, b);
    check_dtype("out", out);
    check_device("out", out, a);
    const auto sizes = gemm_sizes(a, b);
    TORCH_CHECK(out.sizes() == at::IntArrayRef(sizes), "out has sizes ", out.sizes(), ", but the product has ", sizes);
    Product product = product_of(input, a, b, beta, alpha, precision, sizes);
    at::assert_no_internal_overlap(out);
    at::assert_no_overlap(out, a);
    at::assert_no_overlap(out, b);
    if (product.s.defined() && !out.is_same(*input)) at::assert_no_overlap(out, product.s);
    product.c = out;
    if (out.numel()) execute(reduce(product), product);
}

static at::Tensor gemm_packed(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                              const PackedPointer &packed, bool left, const at::Scalar &beta, const at::Scalar &alpha,
                              c10::string_view precision) {
    check_gemm(given(input), a, b);
    const auto sizes = gemm_sizes(a, b);
    Product product = product_of(input, a, b, beta, alpha, precision, sizes);
    product.packed = packed.get();
    product.packed_side = left ? TSR_LEFT : TSR_RIGHT;
    return run(std::move(product), sizes);
}

static at::Tensor gemm_meta(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &,
                            const at::Scalar &, c10::string_view precision) {
    check_gemm(given(input), a, b);
    precision_named(precision);
#if TESSERA_TORCH_AT_LEAST(2, 1)
    TORCH_SYM_CHECK(a.sym_size(-1).sym_eq(b.sym_size(-2)), "a and b shapes cannot be multiplied (", a.sym_size(-2), "x",
                    a.sym_size(-1), " and ", b.sym_size(-2), "x", b.sym_size(-1), ")");
    TORCH_CHECK(a.dim() == b.dim(), "the leading sizes of a and b differ: ", a.sym_sizes(), " and ", b.sym_sizes());
    c10::SymDimVector sizes;
    for (int64_t d = 0; d < a.dim() - 2; d++) {
        TORCH_SYM_CHECK(a.sym_size(d).sym_eq(b.sym_size(d)), "the leading sizes of a and b differ: ", a.sym_sizes(), " and ",
                        b.sym_sizes());
        sizes.push_back(a.sym_size(d));
    }
    sizes.push_back(a.sym_size(-2));
    sizes.push_back(b.sym_size(-1));
    return at::empty_symint(sizes, a.options());
#else
    return at::empty(gemm_sizes(a, b), a.options());
#endif
}

static void gemm_out_meta(const OptionalTensor &, const at::Tensor &, const at::Tensor &, const at::Scalar &,
                          const at::Scalar &, c10::string_view, at::Tensor) {}

/* ---- gemm through the dispatcher --------------------------------------------------------------------------------- */

using GemmSignature = at::Tensor(const OptionalTensor &, const at::Tensor &, const at::Tensor &, const at::Scalar &,
                                 const at::Scalar &, c10::string_view);
using GemmOutSignature = void(const OptionalTensor &, const at::Tensor &, const at::Tensor &, const at::Scalar &,
                              const at::Scalar &, c10::string_view, at::Tensor);
using GemmPackedSignature = at::Tensor(const OptionalTensor &, const at::Tensor &, const at::Tensor &,
                                       const PackedPointer &, bool, const at::Scalar &, const at::Scalar &,
                                       c10::string_view);

static const c10::TypedOperatorHandle<GemmSignature> &gemm_operator() {
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow("tessera::gemm", "").typed<GemmSignature>();
    return handle;
}

static const c10::TypedOperatorHandle<GemmOutSignature> &gemm_out_operator() {
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow("tessera::gemm", "out").typed<GemmOutSignature>();
    return handle;
}

static const c10::TypedOperatorHandle<GemmPackedSignature> &gemm_packed_operator() {
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow("tessera::gemm_packed", "").typed<GemmPackedSignature>();
    return handle;
}

/* ---- gemm: derivative -------------------------------------------------------------------------------------------- */

#if TESSERA_TORCH_AT_LEAST(2, 1)
using Sizes = c10::SymDimVector;
static Sizes sizes_of(const at::Tensor &tensor) { return Sizes(tensor.sym_sizes()); }
static at::Tensor sum_to(const at::Tensor &tensor, const Sizes &sizes) { return tensor.sum_to_size_symint(sizes); }
#else
using Sizes = at::DimVector;
static Sizes sizes_of(const at::Tensor &tensor) { return Sizes(tensor.sizes()); }
static at::Tensor sum_to(const at::Tensor &tensor, const Sizes &sizes) { return tensor.sum_to_size(sizes); }
#endif

/* For C = beta S + alpha A B and G = dL/dC: dS = beta G, dA = alpha G B^T, dB = alpha A^T G. A node of torch's graph like
 * those of its own operators, rather than a torch::autograd::Function: torch.func refuses those. */
struct GemmBackward final : torch::autograd::Node {
    torch::autograd::SavedVariable a, b;
    Sizes input_sizes;
    at::Scalar beta, alpha;
    std::string precision;

    torch::autograd::variable_list apply(torch::autograd::variable_list &&gradients) override {
        torch::autograd::variable_list result(3);
        const at::Tensor &g = gradients[0];
        if (!g.defined()) return result;
        if (task_should_compute_output(0)) result[0] = sum_to(beta.equal(1) ? g : g * beta, input_sizes);
        if (task_should_compute_output(1))
            result[1] = gemm_operator().call({}, g, b.unpack().transpose(-2, -1), 0, alpha, precision);
        if (task_should_compute_output(2))
            result[2] = gemm_operator().call({}, a.unpack().transpose(-2, -1), g, 0, alpha, precision);
        return result;
    }

    std::string name() const override { return "TesseraGemmBackward"; }

    void release_variables() override {
        a.reset_data();
        b.reset_data();
    }
};

/* A node is held by std::shared_ptr, in newer versions of torch by its own counter. */
using NodePointer = decltype(torch::autograd::Edge::function);

template <class Pointer, class Made> static Pointer make_node() {
    if constexpr (std::is_same<Pointer, std::shared_ptr<torch::autograd::Node>>::value)
        return Pointer(new Made, [](auto *node) { deleteNode(node); });
    else
        return c10::make_intrusive<Made>();
}

/* The tangent of the product where one is asked for (forward-mode differentiation). */
static at::Tensor tangent_of(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                             const at::Tensor &result, const at::Scalar &beta, const at::Scalar &alpha,
                             c10::string_view precision) {
    const auto tangent = [](const at::Tensor &t) { return t.defined() ? t._fw_grad(0) : at::Tensor(); };
    const at::Tensor ds = tangent(given(input)), da = tangent(a), db = tangent(b);
    at::Tensor sum = ds.defined() ? (ds * beta).expand_as(result) : at::Tensor();
    const auto add = [&](const at::Tensor &left, const at::Tensor &right) {
        sum = gemm_operator().call(sum.defined() ? OptionalTensor(sum) : OptionalTensor(), left, right, 1, alpha, precision);
    };
    if (da.defined()) add(da, b._fw_primal(0));
    if (db.defined()) add(a._fw_primal(0), db);
    return sum;
}

/* Runs `forward`, below autograd, and puts its result into the graph. */
template <class Forward>
static at::Tensor differentiable(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                                 const at::Scalar &beta, const at::Scalar &alpha, c10::string_view precision,
                                 const Forward &forward) {
    NodePointer node;
    if (torch::autograd::compute_requires_grad(given(input), a, b)) {
        node = make_node<NodePointer, GemmBackward>();
        auto *made = static_cast<GemmBackward *>(node.get());
        node->set_next_edges(torch::autograd::collect_next_edges(given(input), a, b));
        if (made->should_compute_output(0)) made->input_sizes = sizes_of(*input);
        if (made->should_compute_output(1)) made->b = torch::autograd::SavedVariable(b, false);
        if (made->should_compute_output(2)) made->a = torch::autograd::SavedVariable(a, false);
        made->beta = beta;
        made->alpha = alpha;
        made->precision = std::string(precision);
    }
    at::Tensor result = forward();
    if (node) torch::autograd::set_history(result, node);
    if (torch::autograd::isFwGradDefined(input) || torch::autograd::isFwGradDefined(a) ||
        torch::autograd::isFwGradDefined(b))
        result._set_fw_grad(tangent_of(input, a, b, result, beta, alpha, precision), 0, false);
    return result;
}

static at::Tensor gemm_autograd(c10::DispatchKeySet keys, const OptionalTensor &input, const at::Tensor &a,
                                const at::Tensor &b, const at::Scalar &beta, const at::Scalar &alpha,
                                c10::string_view precision) {
    return differentiable(input, a, b, beta, alpha, precision, [&] {
        at::AutoDispatchBelowADInplaceOrView below;
        return gemm_operator().redispatch(keys & c10::after_ADInplaceOrView_keyset, input, a, b, beta, alpha, precision);
    });
}

static at::Tensor gemm_packed_autograd(c10::DispatchKeySet keys, const OptionalTensor &input, const at::Tensor &a,
                                       const at::Tensor &b, const PackedPointer &packed, bool left,
                                       const at::Scalar &beta, const at::Scalar &alpha, c10::string_view precision) {
    return differentiable(input, a, b, beta, alpha, precision, [&] {
        at::AutoDispatchBelowADInplaceOrView below;
        return gemm_packed_operator().redispatch(keys & c10::after_ADInplaceOrView_keyset, input, a, b, packed, left, beta,
                                                 alpha, precision);
    });
}

static void gemm_out_autograd(c10::DispatchKeySet keys, const OptionalTensor &input, const at::Tensor &a,
                              const at::Tensor &b, const at::Scalar &beta, const at::Scalar &alpha,
                              c10::string_view precision, at::Tensor out) {
    TORCH_CHECK(!torch::autograd::compute_requires_grad(given(input), a, b, out),
                "functions with out=... arguments don't support automatic differentiation, but one of the arguments "
                "requires grad");
    {
        at::AutoDispatchBelowAutograd below;
        gemm_out_operator().redispatch(keys & c10::after_autograd_keyset, input, a, b, beta, alpha, precision, out);
    }
    torch::autograd::impl::bump_version(out);
}

/* ---- gemm under autocast ----------------------------------------------------------------------------------------- */

/* float32 is all there is, so autocast turns float16 and bfloat16 into it, as it does for torch's own float32 functions. */
static at::Tensor cast_to_float(const at::Tensor &tensor) {
    const auto type = tensor.scalar_type();
    return type == at::kHalf || type == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

static at::Tensor gemm_autocast(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                                const at::Scalar &beta, const at::Scalar &alpha, c10::string_view precision) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const OptionalTensor cast = input ? OptionalTensor(cast_to_float(*input)) : OptionalTensor();
    return gemm_operator().call(cast, cast_to_float(a), cast_to_float(b), beta, alpha, precision);
}

/* ---- The other operators ----------------------------------------------------------------------------------------- */

static at::Tensor call_gemm(const at::Tensor &a, const at::Tensor &b, c10::string_view precision) {
    return gemm_operator().call({}, a, b, 0, 1, precision);
}

/* Whether a's leading dimensions must become rows of one product, at the price of a copy where they do not continue
 * each other: so that dB is one product, not the sum of a batch of them. */
static bool should_fold(const at::Tensor &a, const at::Tensor &b) {
    return a.dim() > 2 && b.dim() == 2 && at::GradMode::is_enabled() && b.requires_grad();
}

#if TESSERA_TORCH_AT_LEAST(2, 1)
static at::Tensor with_rows_folded(const at::Tensor &a) { return a.flatten(0, -2); }
static at::Tensor with_rows_of(const at::Tensor &product, const at::Tensor &a) {
    return product.unflatten_symint(0, a.sym_sizes().slice(0, a.dim() - 1));
}
static at::Tensor expand_leading(const at::Tensor &tensor, c10::SymIntArrayRef leading) {
    c10::SymDimVector sizes(leading);
    sizes.push_back(tensor.sym_size(-2));
    sizes.push_back(tensor.sym_size(-1));
    return tensor.expand_symint(sizes);
}
static auto leading_sizes(const at::Tensor &a, const at::Tensor &b) {
    return at::infer_size_symdimvector(a.sym_sizes().slice(0, a.dim() - 2), b.sym_sizes().slice(0, b.dim() - 2));
}
static bool have_same_leading(const at::Tensor &a, const at::Tensor &b) {
    return a.dim() == b.dim() && a.sym_sizes().slice(0, a.dim() - 2) == b.sym_sizes().slice(0, b.dim() - 2);
}
#else
static at::Tensor with_rows_folded(const at::Tensor &a) { return a.flatten(0, -2); }
static at::Tensor with_rows_of(const at::Tensor &product, const at::Tensor &a) {
    at::DimVector sizes(a.sizes().slice(0, a.dim() - 1));
    sizes.push_back(product.size(1));
    return product.view(sizes);
}
static at::Tensor expand_leading(const at::Tensor &tensor, at::IntArrayRef leading) {
    at::DimVector sizes(leading);
    sizes.push_back(tensor.size(-2));
    sizes.push_back(tensor.size(-1));
    return tensor.expand(sizes);
}
static auto leading_sizes(const at::Tensor &a, const at::Tensor &b) {
    return at::infer_size_dimvector(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
}
static bool have_same_leading(const at::Tensor &a, const at::Tensor &b) {
    return a.dim() == b.dim() && a.sizes().slice(0, a.dim() - 2) == b.sizes().slice(0, b.dim() - 2);
}
#endif

/* Both arguments of matmul as matrices with the same leading sizes; vectors are a row on the left, a column on the right.
 */
struct Pair {
    at::Tensor a, b;
    bool row, column; /* a, b was a vector */
};

static void check_matmul(const at::Tensor &a, const at::Tensor &b) {
    check_layout("a", a);
    check_layout("b", b);
    TORCH_CHECK(a.dim() && b.dim(), "both arguments to matmul need to be at least 1D, but they are ", a.dim(), "D and ",
                b.dim(), "D");
}

static Pair pair_of(const at::Tensor &a, const at::Tensor &b) {
    check_matmul(a, b);
    Pair pair = {a, b, a.dim() == 1, b.dim() == 1};
    if (pair.row) pair.a = a.unsqueeze(0);
    if (pair.column) pair.b = b.unsqueeze(1);
    if (have_same_leading(pair.a, pair.b)) return pair;
    const auto leading = leading_sizes(pair.a, pair.b);
    pair.a = expand_leading(pair.a, leading);
    pair.b = expand_leading(pair.b, leading);
    return pair;
}

static at::Tensor without_added(at::Tensor product, const Pair &pair) {
    if (pair.column) product = product.squeeze(-1);
    if (pair.row) product = product.squeeze(pair.column ? -1 : -2);
    return product;
}

static at::Tensor matmul(const at::Tensor &a, const at::Tensor &b, c10::string_view precision) {
    if (should_fold(a, b)) {
        check_matmul(a, b);
        return with_rows_of(call_gemm(with_rows_folded(a), b, precision), a);
    }
    if (b.dim() > 2 && a.dim() == 2 && at::GradMode::is_enabled() && a.requires_grad()) { /* the same, mirrored */
        check_matmul(a, b);
        const at::Tensor b_transposed = b.transpose(-2, -1);
        return with_rows_of(call_gemm(with_rows_folded(b_transposed), a.t(), precision), b_transposed).transpose(-2, -1);
    }
    const Pair pair = pair_of(a, b);
    return without_added(call_gemm(pair.a, pair.b, precision), pair);
}

static void matmul_out(const at::Tensor &a, const at::Tensor &b, c10::string_view precision, at::Tensor out) {
    const Pair pair = pair_of(a, b);
    c10::SmallVector<int64_t, 6> sizes(pair.a.sizes().begin(), pair.a.sizes().end() - (pair.row ? 2 : 1));
    if (!pair.column) sizes.push_back(pair.b.size(-1));
    check_layout("out", out);
    TORCH_CHECK(out.sizes() == at::IntArrayRef(sizes), "out has sizes ", out.sizes(), ", but the product has ", sizes);
    at::Tensor matrices = out;
    if (pair.row) matrices = matrices.unsqueeze(pair.column ? -1 : -2);
    if (pair.column) matrices = matrices.unsqueeze(-1);
    gemm_out_operator().call({}, pair.a, pair.b, 0, 1, precision, matrices);
}

static void check_dims(const char *name, const at::Tensor &tensor, int64_t dims) {
    check_layout(name, tensor);
    TORCH_CHECK(tensor.dim() == dims, name, " must be a ", dims, "D tensor, but it is ", tensor.dim(), "D");
}

static at::Tensor bmm(const at::Tensor &a, const at::Tensor &b, c10::string_view precision) {
    check_dims("a", a, 3);
    check_dims("b", b, 3);
    return call_gemm(a, b, precision);
}

static at::Tensor addmm(const at::Tensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                        const at::Scalar &alpha, c10::string_view precision) {
    check_dims("a", a, 2);
    check_dims("b", b, 2);
    return gemm_operator().call(input, a, b, beta, alpha, precision);
}

static at::Tensor baddbmm(const at::Tensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                          const at::Scalar &alpha, c10::string_view precision) {
    check_dims("a", a, 3);
    check_dims("b", b, 3);
    return gemm_operator().call(input, a, b, beta, alpha, precision);
}

static at::Tensor linear(const at::Tensor &input, const at::Tensor &weight, const OptionalTensor &bias,
                         c10::string_view precision) {
    check_layout("input", input);
    check_dims("weight", weight, 2);
    TORCH_CHECK(input.dim(), "input must have at least 1 dimension");
    TORCH_CHECK(!bias || bias->dim() <= 1, "bias must be a 1D tensor, but it is ", bias->dim(), "D");
    const at::Tensor b = weight.t();
    if (input.dim() == 1) return gemm_operator().call(bias, input.unsqueeze(0), b, 1, 1, precision).squeeze(0);
    if (input.dim() == 2) return gemm_operator().call(bias, input, b, 1, 1, precision);
    if (should_fold(input, b))
        return with_rows_of(gemm_operator().call(bias, with_rows_folded(input), b, 1, 1, precision), input);
    const Pair pair = pair_of(input, b);
    return gemm_operator().call(bias, pair.a, pair.b, 1, 1, precision);
}

/* With a packed matrix on the right, or its transpose, as weights are kept; on the left without leading dimensions. */
static at::Tensor matmul_packed(const at::Tensor &a, const PackedPointer &packed, bool transposed,
                                const OptionalTensor &bias, c10::string_view precision) {
    const at::Tensor matrix = packed->matrix();
    check_layout("a", a);
    TORCH_CHECK(a.dim(), "both arguments to matmul need to be at least 1D, but a is 0D");
    const at::Tensor b = transposed ? matrix.t() : matrix;
    const at::Tensor rows = a.dim() == 1 ? a.unsqueeze(0) : a.dim() == 2 ? a : with_rows_folded(a);
    const at::Tensor product = gemm_packed_operator().call(bias, rows, b, packed, false, 1, 1, precision);
    return a.dim() == 1 ? product.squeeze(0) : a.dim() == 2 ? product : with_rows_of(product, a);
}

static at::Tensor packed_matmul(const PackedPointer &packed, const at::Tensor &b, c10::string_view precision) {
    check_layout("b", b);
    TORCH_CHECK(b.dim() == 1 || b.dim() == 2, "with a packed a, b must be a 1D or 2D tensor, but it is ", b.dim(), "D");
    const at::Tensor columns = b.dim() == 1 ? b.unsqueeze(1) : b;
    const at::Tensor product = gemm_packed_operator().call({}, packed->matrix(), columns, packed, true, 0, 1, precision);
    return b.dim() == 1 ? product.squeeze(1) : product;
}

static PackedPointer pack(at::Tensor matrix) {
    check_dims("the matrix to pack", matrix, 2);
    check_dtype("the matrix to pack", matrix);
    TORCH_CHECK(matrix.device().is_cpu() || matrix.is_cuda(), "tessera packs CPU and CUDA tensors, not one on ",
                matrix.device());
    return c10::make_intrusive<Packed>(std::move(matrix));
}

} // namespace tessera

/* ---- Registration ------------------------------------------------------------------------------------------------ */

#define GEMM_FACTORS "*, Scalar beta=1, Scalar alpha=1, str precision=\"fp32\""

TORCH_LIBRARY(tessera, m) {
    m.class_<tessera::Packed>("Packed")
        .def(torch::init([](at::Tensor matrix) { return tessera::pack(std::move(matrix)); }))
        .def("matrix", [](const tessera::PackedPointer &packed) { return packed->matrix(); });

#if TESSERA_TORCH_AT_LEAST(2, 1)
    const std::vector<at::Tag> tags = {
        at::Tag::pt2_compliant_tag,
#if TESSERA_TORCH_AT_LEAST(2, 7)
        at::Tag::flexible_layout,
#endif
    };
    const auto define = [&](const char *schema) { m.def(torch::schema(schema), tags); };
#else
    const auto define = [&](const char *schema) { m.def(schema); };
#endif
    define("gemm(Tensor? input, Tensor a, Tensor b, " GEMM_FACTORS ") -> Tensor");
    define("gemm.out(Tensor? input, Tensor a, Tensor b, " GEMM_FACTORS ", Tensor(a!) out) -> ()");
    define("matmul(Tensor a, Tensor b, *, str precision=\"fp32\") -> Tensor");
    define("matmul.out(Tensor a, Tensor b, *, str precision=\"fp32\", Tensor(a!) out) -> ()");
    define("bmm(Tensor a, Tensor b, *, str precision=\"fp32\") -> Tensor");
    define("addmm(Tensor input, Tensor a, Tensor b, " GEMM_FACTORS ") -> Tensor");
    define("baddbmm(Tensor input, Tensor a, Tensor b, " GEMM_FACTORS ") -> Tensor");
    define("linear(Tensor input, Tensor weight, Tensor? bias=None, *, str precision=\"fp32\") -> Tensor");

    m.impl("matmul", TORCH_FN(tessera::matmul));
    m.impl("matmul.out", TORCH_FN(tessera::matmul_out));
    m.impl("bmm", TORCH_FN(tessera::bmm));
    m.impl("addmm", TORCH_FN(tessera::addmm));
    m.impl("baddbmm", TORCH_FN(tessera::baddbmm));
    m.impl("linear", TORCH_FN(tessera::linear));

    m.def("gemm_packed(Tensor? input, Tensor a, Tensor b, __torch__.torch.classes.tessera.Packed packed, bool left, "
          GEMM_FACTORS ") -> Tensor");
    m.def("matmul_packed(Tensor a, __torch__.torch.classes.tessera.Packed packed, bool transposed, Tensor? bias, *, "
          "str precision=\"fp32\") -> Tensor", TORCH_FN(tessera::matmul_packed));
    m.def("packed_matmul(__torch__.torch.classes.tessera.Packed packed, Tensor b, *, str precision=\"fp32\") -> Tensor",
          TORCH_FN(tessera::packed_matmul));

    m.def("switch(str device, bool on, str precision, bool always) -> str", TORCH_FN(tessera::switch_drop_in));
    m.def("taken() -> str[]", TORCH_FN(tessera::products_taken));
    m.def("passed() -> str[]", TORCH_FN(tessera::products_passed));
    m.def("forget() -> ()", TORCH_FN(tessera::forget_counts));
}

TORCH_LIBRARY_IMPL(tessera, CPU, m) {
    m.impl("gemm", TORCH_FN(tessera::gemm));
    m.impl("gemm.out", TORCH_FN(tessera::gemm_out));
    m.impl("gemm_packed", TORCH_FN(tessera::gemm_packed));
}

TORCH_LIBRARY_IMPL(tessera, CUDA, m) {
    m.impl("gemm", TORCH_FN(tessera::gemm));
    m.impl("gemm.out", TORCH_FN(tessera::gemm_out));
    m.impl("gemm_packed", TORCH_FN(tessera::gemm_packed));
}

TORCH_LIBRARY_IMPL(tessera, Meta, m) {
    m.impl("gemm", TORCH_FN(tessera::gemm_meta));
    m.impl("gemm.out", TORCH_FN(tessera::gemm_out_meta));
}

TORCH_LIBRARY_IMPL(tessera, Autograd, m) {
    m.impl("gemm", TORCH_FN(tessera::gemm_autograd));
    m.impl("gemm.out", TORCH_FN(tessera::gemm_out_autograd));
    m.impl("gemm_packed", TORCH_FN(tessera::gemm_packed_autograd));
}

TORCH_LIBRARY_IMPL(tessera, AutocastCPU, m) { m.impl("gemm", TORCH_FN(tessera::gemm_autocast)); }
TORCH_LIBRARY_IMPL(tessera, Autocast, m) { m.impl("gemm", TORCH_FN(tessera::gemm_autocast)); }
