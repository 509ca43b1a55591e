/* gemm.cpp: tessera::gemm as a torch operator: kernels for tensors and for their shapes alone, derivatives of any
 * order, autocast. Arguments keep their strides; nothing is copied. */
#include "gemm.h"

#include "node.h"
#include "views.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

namespace tessera {

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

void check_dtype(const char *name, const at::Tensor &tensor) {
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.scalar_type() == at::kFloat, "tessera multiplies float32 tensors, but ", name,
                                " has dtype ", tensor.scalar_type(),
                                tensor.is_complex() ? ": use torch.matmul"
                                                    : ": convert it with .float(), or use torch.matmul");
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

static void check_expandable(const at::Tensor &input, at::IntArrayRef sizes) {
    TORCH_CHECK(at::is_expandable_to(input.sizes(), sizes), "input of sizes ", input.sizes(),
                " cannot be expanded to the product's ", sizes);
}

/* ---- gemm: kernels ----------------------------------------------------------------------------------------------- */

static Product product_of(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                          const at::Scalar &alpha, c10::string_view precision, at::IntArrayRef sizes) {
    Product product;
    product.a = a;
    product.b = b;
    product.alpha = alpha.toDouble();
    product.arithmetic = arithmetic_named(precision);
    if (!input || !input->defined()) return product;
    check_expandable(*input, sizes);
    product.beta = beta.toDouble();
    if (product.beta != 0) product.s = *input;
    return product;
}

static at::Tensor run(Product &&product, at::IntArrayRef sizes) {
    if (!c10::multiply_integers(sizes)) return at::empty(sizes, product.a.options());
    const PlannedProduct planned = plan_product(product);
    product.c = at::empty(sizes, product.a.options());
    execute(planned, product);
    return product.c;
}

at::Tensor gemm_kernel(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                       const at::Scalar &alpha, c10::string_view precision) {
    check_gemm(given(input), a, b);
    const auto sizes = gemm_sizes(a, b);
    return run(product_of(input, a, b, beta, alpha, precision, sizes), sizes);
}

static bool is_same_memory(const at::Tensor &x, const at::Tensor &y) {
    return x.data_ptr() == y.data_ptr() && x.sizes() == y.sizes() && x.strides() == y.strides();
}

void gemm_out_kernel(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
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
    if (product.s.defined() && !is_same_memory(out, product.s)) at::assert_no_overlap(out, product.s);
    product.c = out;
    if (out.numel()) execute(plan_product(product), product);
}

at::Tensor gemm_packed_kernel(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                              const PackedPointer &packed, bool left, const at::Scalar &beta, const at::Scalar &alpha,
                              c10::string_view precision) {
    check_gemm(given(input), a, b);
    const auto sizes = gemm_sizes(a, b);
    Product product = product_of(input, a, b, beta, alpha, precision, sizes);
    product.packed = packed.get();
    product.packed_side = left ? TSR_LEFT : TSR_RIGHT;
    return run(std::move(product), sizes);
}

#if TESSERA_TORCH_AT_LEAST(2, 1)
static void check_expandable(const at::Tensor &input, c10::SymIntArrayRef sizes) {
    const int64_t missing = static_cast<int64_t>(sizes.size()) - input.dim();
    TORCH_CHECK(missing >= 0, "input of sizes ", input.sym_sizes(), " cannot be expanded to the product's ", sizes);
    for (int64_t d = 0; d < input.dim(); d++) {
        const c10::SymInt size = input.sym_size(d);
        TORCH_SYM_CHECK(size.sym_eq(sizes[static_cast<size_t>(missing + d)]).sym_or(size.sym_eq(1)), "input of sizes ",
                        input.sym_sizes(), " cannot be expanded to the product's ", sizes);
    }
}

static c10::SymDimVector meta_sizes(const at::Tensor &input, const at::Tensor &a, const at::Tensor &b) {
    TORCH_SYM_CHECK(a.sym_size(-1).sym_eq(b.sym_size(-2)), "a and b shapes cannot be multiplied (", a.sym_size(-2), "x",
                    a.sym_size(-1), " and ", b.sym_size(-2), "x", b.sym_size(-1), ")");
    TORCH_CHECK(a.dim() == b.dim(), "the leading sizes of a and b differ: ", a.sym_sizes(), " and ", b.sym_sizes());
    c10::SymDimVector sizes;
    for (int64_t d = 0; d < a.dim() - 2; d++) {
        TORCH_SYM_CHECK(a.sym_size(d).sym_eq(b.sym_size(d)), "the leading sizes of a and b differ: ", a.sym_sizes(),
                        " and ", b.sym_sizes());
        sizes.push_back(a.sym_size(d));
    }
    sizes.push_back(a.sym_size(-2));
    sizes.push_back(b.sym_size(-1));
    if (input.defined()) check_expandable(input, sizes);
    return sizes;
}
static at::Tensor meta_result(c10::SymIntArrayRef sizes, const at::Tensor &a) {
    return at::empty_symint(sizes, a.options());
}
#else
static c10::SmallVector<int64_t, 6> meta_sizes(const at::Tensor &input, const at::Tensor &a, const at::Tensor &b) {
    const auto sizes = gemm_sizes(a, b);
    if (input.defined()) check_expandable(input, sizes);
    return sizes;
}
static at::Tensor meta_result(at::IntArrayRef sizes, const at::Tensor &a) { return at::empty(sizes, a.options()); }
#endif

at::Tensor gemm_meta(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &,
                     const at::Scalar &, c10::string_view precision) {
    check_gemm(given(input), a, b);
    arithmetic_named(precision);
    return meta_result(meta_sizes(given(input), a, b), a);
}

void gemm_out_meta(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                   const at::Scalar &alpha, c10::string_view precision, at::Tensor out) {
    const at::Tensor product = gemm_meta(input, a, b, beta, alpha, precision);
    check_dtype("out", out);
    check_device("out", out, a);
#if TESSERA_TORCH_AT_LEAST(2, 1)
    TORCH_CHECK(out.sym_sizes() == product.sym_sizes(), "out has sizes ", out.sym_sizes(), ", but the product has ",
                product.sym_sizes());
#else
    TORCH_CHECK(out.sizes() == product.sizes(), "out has sizes ", out.sizes(), ", but the product has ",
                product.sizes());
#endif
}

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

at::Tensor gemm(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                const at::Scalar &alpha, c10::string_view precision) {
    return gemm_operator().call(input, a, b, beta, alpha, precision);
}

void gemm_out(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
              const at::Scalar &alpha, c10::string_view precision, const at::Tensor &out) {
    gemm_out_operator().call(input, a, b, beta, alpha, precision, out);
}

at::Tensor gemm_packed(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                       const PackedPointer &packed, bool left, const at::Scalar &beta, const at::Scalar &alpha,
                       c10::string_view precision) {
    return gemm_packed_operator().call(input, a, b, packed, left, beta, alpha, precision);
}

/* ---- gemm: derivative -------------------------------------------------------------------------------------------- */

static at::Tensor summed_to(const at::Tensor &tensor, SizesRef sizes) {
#if TESSERA_TORCH_AT_LEAST(2, 1)
    return tensor.sum_to_size_symint(sizes);
#else
    return tensor.sum_to_size(sizes);
#endif
}

/* For C = beta S + alpha A B and G = dL/dC: dS = beta G, dA = alpha G B^T, dB = alpha A^T G, as far as needed. */
struct Wanted {
    bool input, a, b;
};

static torch::autograd::variable_list gradients_of(const at::Tensor &g, const at::Tensor &a, const at::Tensor &b,
                                                   SizesRef input_sizes, const at::Scalar &beta,
                                                   const at::Scalar &alpha, const std::string &precision,
                                                   Wanted wanted) {
    torch::autograd::variable_list result(3);
    if (!g.defined()) return result;
    if (wanted.input) result[0] = summed_to(beta.equal(1) ? g : g * beta, input_sizes);
    if (wanted.a) result[1] = gemm({}, g, b.transpose(-2, -1), 0, alpha, precision);
    if (wanted.b) result[2] = gemm({}, a.transpose(-2, -1), g, 0, alpha, precision);
    return result;
}

#if TESSERA_COMPILED_AUTOGRAD
/* gradients_of on arguments as apply_with_saved packs them: what the compiler puts into its graph. */
static torch::autograd::variable_list gradients_of_packed(const torch::autograd::variable_list &gradients,
                                                          const std::vector<c10::IValue> &arguments) {
    torch::dynamo::autograd::PackedArgs packed(arguments);
    const auto a = packed.unpack<at::Tensor>(), b = packed.unpack<at::Tensor>();
    const auto input_sizes = packed.unpack<std::vector<c10::SymInt>>();
    const auto beta = packed.unpack<at::Scalar>(), alpha = packed.unpack<at::Scalar>();
    const auto precision = packed.unpack<std::string>();
    const bool wants_input = packed.unpack<bool>(), wants_a = packed.unpack<bool>(), wants_b = packed.unpack<bool>();
    return gradients_of(gradients[0], a, b, input_sizes, beta, alpha, precision, {wants_input, wants_a, wants_b});
}
#endif

struct GemmBackward final : torch::autograd::Node {
    torch::autograd::SavedVariable a, b; /* saved where the other's gradient is wanted */
    SizeVector input_sizes;
    at::Scalar beta, alpha;
    std::string precision;

    Wanted wanted() const {
        return {task_should_compute_output(0), task_should_compute_output(1), task_should_compute_output(2)};
    }

    static at::Tensor unpacked(const torch::autograd::SavedVariable &saved, bool is_wanted) {
        return is_wanted ? saved.unpack() : at::Tensor();
    }

    torch::autograd::variable_list apply(torch::autograd::variable_list &&gradients) override {
        std::lock_guard<std::mutex> guard(mutex_);
        const Wanted w = wanted();
        return gradients_of(gradients[0], unpacked(a, w.b), unpacked(b, w.a), input_sizes, beta, alpha, precision, w);
    }

#if TESSERA_COMPILED_AUTOGRAD
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs &arguments) const override {
        arguments.collect(a, false);
        arguments.collect(b, false);
        arguments.collect(c10::ArrayRef<c10::SymInt>(input_sizes));
        arguments.collect(beta);
        arguments.collect(alpha);
        arguments.collect(precision);
    }

    torch::autograd::variable_list apply_with_saved(const torch::autograd::variable_list &gradients,
                                                    torch::dynamo::autograd::SwapSavedVariables &saved) override {
        saved.before(a);
        saved.before(b);
        saved.before(input_sizes);
        const Wanted w = wanted();
        torch::dynamo::autograd::PackedArgs packed;
        packed.pack(unpacked(a, w.b));
        packed.pack(unpacked(b, w.a));
        packed.pack(std::vector<c10::SymInt>(input_sizes.begin(), input_sizes.end()));
        packed.pack(beta);
        packed.pack(alpha);
        packed.pack(precision);
        packed.pack(w.input);
        packed.pack(w.a);
        packed.pack(w.b);
        auto result = apply_in_graph(*this, saved, gradients_of_packed, gradients, std::move(packed));
        saved.after(a);
        saved.after(b);
        saved.after(input_sizes);
        return result;
    }
#endif

    std::string name() const override { return "TesseraGemmBackward"; }

    void release_variables() override {
        std::lock_guard<std::mutex> guard(mutex_);
        a.reset_data();
        b.reset_data();
    }
};

/* The tangent of the product where one is asked for (forward-mode differentiation). */
static at::Tensor tangent_of(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                             const at::Tensor &result, const at::Scalar &beta, const at::Scalar &alpha,
                             c10::string_view precision) {
    const auto tangent = [](const at::Tensor &t) { return t.defined() ? t._fw_grad(0) : at::Tensor(); };
    const at::Tensor ds = tangent(given(input)), da = tangent(a), db = tangent(b);
    at::Tensor sum = ds.defined() ? (ds * beta).expand_as(result) : at::Tensor();
    const auto add = [&](const at::Tensor &left, const at::Tensor &right) {
        sum = gemm(sum.defined() ? OptionalTensor(sum) : OptionalTensor(), left, right, 1, alpha, precision);
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
        node = make_node<GemmBackward>();
        auto *made = static_cast<GemmBackward *>(node.get());
        node->set_next_edges(torch::autograd::collect_next_edges(given(input), a, b));
        if (made->should_compute_output(0)) made->input_sizes = SizeVector(sizes_of(*input));
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

at::Tensor gemm_autograd(c10::DispatchKeySet keys, const OptionalTensor &input, const at::Tensor &a,
                         const at::Tensor &b, const at::Scalar &beta, const at::Scalar &alpha,
                         c10::string_view precision) {
    return differentiable(input, a, b, beta, alpha, precision, [&] {
        at::AutoDispatchBelowADInplaceOrView below;
        return gemm_operator().redispatch(keys & c10::after_ADInplaceOrView_keyset, input, a, b, beta, alpha,
                                          precision);
    });
}

at::Tensor gemm_packed_autograd(c10::DispatchKeySet keys, const OptionalTensor &input, const at::Tensor &a,
                                const at::Tensor &b, const PackedPointer &packed, bool left, const at::Scalar &beta,
                                const at::Scalar &alpha, c10::string_view precision) {
    return differentiable(input, a, b, beta, alpha, precision, [&] {
        at::AutoDispatchBelowADInplaceOrView below;
        return gemm_packed_operator().redispatch(keys & c10::after_ADInplaceOrView_keyset, input, a, b, packed, left,
                                                 beta, alpha, precision);
    });
}

void gemm_out_autograd(c10::DispatchKeySet keys, const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                       const at::Scalar &beta, const at::Scalar &alpha, c10::string_view precision, at::Tensor out) {
    TORCH_CHECK(!torch::autograd::compute_requires_grad(given(input), a, b, out),
                "functions with out=... arguments don't support automatic differentiation, but one of the arguments "
                "requires grad");
    at::AutoDispatchBelowAutograd below;
    gemm_out_operator().redispatch(keys & c10::after_autograd_keyset, input, a, b, beta, alpha, precision, out);
}

void gemm_out_version(c10::DispatchKeySet keys, const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                      const at::Scalar &beta, const at::Scalar &alpha, c10::string_view precision, at::Tensor out) {
    {
        at::AutoDispatchBelowADInplaceOrView below;
        gemm_out_operator().redispatch(keys & c10::after_ADInplaceOrView_keyset, input, a, b, beta, alpha, precision,
                                       out);
    }
    torch::autograd::increment_version(out);
}

/* ---- gemm under autocast ----------------------------------------------------------------------------------------- */

/* Only float32 is supported, so autocast converts float16 and bfloat16, as it does for torch's float32 functions. */
static at::Tensor cast_to_float(const at::Tensor &tensor) {
    const auto type = tensor.scalar_type();
    return type == at::kHalf || type == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

at::Tensor gemm_autocast(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                         const at::Scalar &alpha, c10::string_view precision) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const OptionalTensor cast = input ? OptionalTensor(cast_to_float(*input)) : OptionalTensor();
    return gemm(cast, cast_to_float(a), cast_to_float(b), beta, alpha, precision);
}

at::Tensor gemm_packed_autocast(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                                const PackedPointer &packed, bool left, const at::Scalar &beta, const at::Scalar &alpha,
                                c10::string_view precision) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const OptionalTensor cast = input ? OptionalTensor(cast_to_float(*input)) : OptionalTensor();
    return gemm_packed(cast, cast_to_float(a), cast_to_float(b), packed, left, beta, alpha, precision);
}

} // namespace tessera
