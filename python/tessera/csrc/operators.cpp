/* operators.cpp: torch.ops.tessera: matmul, bmm, addmm, baddbmm and linear as views of their arguments and gemm, packed
 * matrices, and the switch of the drop-in. */
#include <torch/library.h>

#include "attention_drop_in.h"
#include "drop_in.h"
#include "gemm.h"
#include "views.h"

namespace tessera {

static void check_layout(const char *name, const at::Tensor &tensor) {
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "tessera multiplies dense tensors, but ", name,
                                " has layout ", tensor.layout(), ": convert it with .to_dense(), or use torch.matmul");
    TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_quantized(), "tessera multiplies float32 tensors, but ", name,
                                " is quantized: convert it with .dequantize()");
}

/* ---- Views ------------------------------------------------------------------------------------------------------- */

static at::Tensor with_rows_folded(const at::Tensor &a) { return a.flatten(0, -2); }

static at::Tensor with_rows_of(const at::Tensor &product, const at::Tensor &a) {
    return with_first_split(product, leading_sizes(a, 1));
}

/* ---- matmul ------------------------------------------------------------------------------------------------------ */

static at::Tensor multiply(const at::Tensor &a, const at::Tensor &b, c10::string_view precision) {
    return gemm({}, a, b, 0, 1, precision);
}

/* Whether a's leading dimensions must become rows of one product, at the price of a copy where they do not continue
 * each other: so that dB is one product, not the sum of a batch of them. */
static bool should_fold(const at::Tensor &a, const at::Tensor &b) {
    return a.dim() > 2 && b.dim() == 2 && at::GradMode::is_enabled() && b.requires_grad();
}

/* Both arguments of matmul as matrices with the same leading sizes; a vector is a row of a or a column of b. */
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
    if (leading_sizes(pair.a, 2) == leading_sizes(pair.b, 2)) return pair;
    const SizeVector leading = broadcast_sizes(leading_sizes(pair.a, 2), leading_sizes(pair.b, 2));
    pair.a = expand_leading(pair.a, leading, 2);
    pair.b = expand_leading(pair.b, leading, 2);
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
        return with_rows_of(multiply(with_rows_folded(a), b, precision), a);
    }
    if (b.dim() > 2 && a.dim() == 2 && at::GradMode::is_enabled() && a.requires_grad() &&
        !arithmetic_named(precision).batch_invariant) { /* the same, mirrored: rows become columns */
        check_matmul(a, b);
        const at::Tensor b_transposed = b.transpose(-2, -1);
        return with_rows_of(multiply(with_rows_folded(b_transposed), a.t(), precision), b_transposed).transpose(-2, -1);
    }
    const Pair pair = pair_of(a, b);
    return without_added(multiply(pair.a, pair.b, precision), pair);
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
    gemm_out({}, pair.a, pair.b, 0, 1, precision, matrices);
}

/* ---- bmm, addmm, baddbmm, linear --------------------------------------------------------------------------------- */

static void check_dims(const char *name, const at::Tensor &tensor, int64_t dims) {
    check_layout(name, tensor);
    TORCH_CHECK(tensor.dim() == dims, name, " must be a ", dims, "D tensor, but it is ", tensor.dim(), "D");
}

static at::Tensor bmm(const at::Tensor &a, const at::Tensor &b, c10::string_view precision) {
    check_dims("a", a, 3);
    check_dims("b", b, 3);
    return multiply(a, b, precision);
}

static at::Tensor addmm(const at::Tensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                        const at::Scalar &alpha, c10::string_view precision) {
    check_dims("a", a, 2);
    check_dims("b", b, 2);
    return gemm(input, a, b, beta, alpha, precision);
}

static at::Tensor baddbmm(const at::Tensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                          const at::Scalar &alpha, c10::string_view precision) {
    check_dims("a", a, 3);
    check_dims("b", b, 3);
    return gemm(input, a, b, beta, alpha, precision);
}

/* Names the argument as the caller does; half precision is gemm's to refuse, for autocast converts it on the way. */
static void check_named_dtype(const char *name, const at::Tensor &tensor) {
    if (tensor.scalar_type() != at::kHalf && tensor.scalar_type() != at::kBFloat16) check_dtype(name, tensor);
}

static void check_bias(const OptionalTensor &bias, const at::Tensor &weight) {
    if (!bias) return;
    TORCH_CHECK(bias->dim() <= 1, "bias must be a 1D tensor, but it is ", bias->dim(), "D");
    TORCH_CHECK(!bias->dim() || size_of(*bias, 0) == size_of(weight, 0) || size_of(*bias, 0) == 1, "bias of ",
                size_of(*bias, 0), " elements cannot be added to ", size_of(weight, 0), " outputs");
}

static at::Tensor linear(const at::Tensor &input, const at::Tensor &weight, const OptionalTensor &bias,
                         c10::string_view precision) {
    check_named_dtype("input", input);
    check_named_dtype("weight", weight);
    if (bias) check_named_dtype("bias", *bias);
    check_layout("input", input);
    check_dims("weight", weight, 2);
    TORCH_CHECK(input.dim(), "input must have at least 1 dimension");
    check_bias(bias, weight);
    const at::Tensor b = weight.t();
    if (input.dim() == 1) return gemm(bias, input.unsqueeze(0), b, 1, 1, precision).squeeze(0);
    if (input.dim() == 2) return gemm(bias, input, b, 1, 1, precision);
    if (should_fold(input, b)) return with_rows_of(gemm(bias, with_rows_folded(input), b, 1, 1, precision), input);
    const Pair pair = pair_of(input, b);
    return gemm(bias, pair.a, pair.b, 1, 1, precision);
}

/* ---- Packed matrices --------------------------------------------------------------------------------------------- */

/* With a packed matrix on the right, or its transpose, as weights are kept; on the left without leading dimensions. */
static at::Tensor matmul_packed(const at::Tensor &a, const PackedPointer &packed, bool transposed,
                                const OptionalTensor &bias, c10::string_view precision) {
    const at::Tensor matrix = packed->matrix();
    if (transposed) check_bias(bias, matrix);
    check_layout("a", a);
    TORCH_CHECK(a.dim(), "both arguments to matmul need to be at least 1D, but a is 0D");
    const at::Tensor b = transposed ? matrix.t() : matrix;
    const at::Tensor rows = a.dim() == 1 ? a.unsqueeze(0) : a.dim() == 2 ? a : with_rows_folded(a);
    const at::Tensor product = gemm_packed(bias, rows, b, packed, false, 1, 1, precision);
    return a.dim() == 1 ? product.squeeze(0) : a.dim() == 2 ? product : with_rows_of(product, a);
}

static at::Tensor packed_matmul(const PackedPointer &packed, const at::Tensor &b, c10::string_view precision) {
    check_layout("b", b);
    TORCH_CHECK(b.dim() == 1 || b.dim() == 2, "with a packed a, b must be a 1D or 2D tensor, but it is ", b.dim(), "D");
    const at::Tensor columns = b.dim() == 1 ? b.unsqueeze(1) : b;
    const at::Tensor product = gemm_packed({}, packed->matrix(), columns, packed, true, 0, 1, precision);
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

    m.def("gemm_packed(Tensor? input, Tensor a, Tensor b, __torch__.torch.classes.tessera.Packed packed, bool "
          "left, " GEMM_FACTORS ") -> Tensor");
    m.def("matmul_packed(Tensor a, __torch__.torch.classes.tessera.Packed packed, bool transposed, Tensor? bias, *, "
          "str precision=\"fp32\") -> Tensor",
          TORCH_FN(tessera::matmul_packed));
    m.def("packed_matmul(__torch__.torch.classes.tessera.Packed packed, Tensor b, *, str precision=\"fp32\") -> Tensor",
          TORCH_FN(tessera::packed_matmul));

    m.def("switch(str device, bool on, str precision, bool always) -> str", TORCH_FN(tessera::switch_drop_in));
    m.def("taken() -> str[]", TORCH_FN(tessera::products_taken));
    m.def("passed() -> str[]", TORCH_FN(tessera::products_passed));
    m.def("attention_taken() -> str[]", TORCH_FN(tessera::attention_taken));
    m.def("attention_passed() -> str[]", TORCH_FN(tessera::attention_passed));
    m.def("forget() -> ()", TORCH_FN(tessera::forget_counts));
}

TORCH_LIBRARY_IMPL(tessera, CPU, m) {
    m.impl("gemm", TORCH_FN(tessera::gemm_kernel));
    m.impl("gemm.out", TORCH_FN(tessera::gemm_out_kernel));
    m.impl("gemm_packed", TORCH_FN(tessera::gemm_packed_kernel));
}

TORCH_LIBRARY_IMPL(tessera, CUDA, m) {
    m.impl("gemm", TORCH_FN(tessera::gemm_kernel));
    m.impl("gemm.out", TORCH_FN(tessera::gemm_out_kernel));
    m.impl("gemm_packed", TORCH_FN(tessera::gemm_packed_kernel));
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

TORCH_LIBRARY_IMPL(tessera, ADInplaceOrView, m) { m.impl("gemm.out", TORCH_FN(tessera::gemm_out_version)); }

TORCH_LIBRARY_IMPL(tessera, AutocastCPU, m) {
    m.impl("gemm", TORCH_FN(tessera::gemm_autocast));
    m.impl("gemm_packed", TORCH_FN(tessera::gemm_packed_autocast));
}

TORCH_LIBRARY_IMPL(tessera, Autocast, m) {
    m.impl("gemm", TORCH_FN(tessera::gemm_autocast));
    m.impl("gemm_packed", TORCH_FN(tessera::gemm_packed_autocast));
}

/* Under vmap these are what they are made of; gemm's own rule is in _torch.py. */
#if TESSERA_TORCH_AT_LEAST(2, 0)
TORCH_LIBRARY_IMPL(tessera, FuncTorchBatchedDecomposition, m) {
    m.impl("matmul", TORCH_FN(tessera::matmul));
    m.impl("bmm", TORCH_FN(tessera::bmm));
    m.impl("addmm", TORCH_FN(tessera::addmm));
    m.impl("baddbmm", TORCH_FN(tessera::baddbmm));
    m.impl("linear", TORCH_FN(tessera::linear));
}
#endif
