/* drop_in.cpp: aten::mm, addmm, bmm and baddbmm on float32 tensors run on Tessera while it is switched on. Attention is
 * in attention_drop_in.cpp.
 *
 * The kernels are registered at torch's CPU and CUDA keys, below autograd, autocast, vmap and tensor subclasses, so a
 * model's products arrive here as plain tensors, backward passes included. A product that is not taken goes to the
 * function that torch had registered. Registration happens when a device is first switched on, and stays. Switching
 * afterwards is one atomic store, so any thread may do it at any time.
 */
#include "drop_in.h"

#include "attention_drop_in.h"
#include "fork_safe.h"
#include "torch_cost.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/addmm_cuda_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cuda_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cuda_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/mm_cuda_dispatch.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>

namespace tessera {

/* ---- The switches ------------------------------------------------------------------------------------------------ */

/* One device's setting in one word: 0 is off; otherwise ON, ALWAYS to take even products that torch runs faster,
 * INVARIANT for batch-invariant ones, and the precision from bit 3 on. */
enum : uint32_t { ON = 1, ALWAYS = 2, INVARIANT = 4, PRECISION_SHIFT = 3 };

struct Switch {
    std::atomic<uint32_t> word{0};
    torch::Library *kernels = nullptr; /* once registered; kept as long as the process */
};

static Switch cpu_switch, cuda_switch;

static uint32_t word_of(Arithmetic arithmetic, bool always) {
    return static_cast<uint32_t>(arithmetic.precision) << PRECISION_SHIFT | (always ? ON | ALWAYS : ON) |
           (arithmetic.batch_invariant ? INVARIANT : 0);
}

static tsr_precision precision_of(uint32_t word) { return static_cast<tsr_precision>(word >> PRECISION_SHIFT); }

Setting cuda_setting() {
    const uint32_t word = cuda_switch.word.load(std::memory_order_relaxed);
    return {word != 0, (word & ALWAYS) != 0, precision_of(word)};
}

/* ---- Counting what is left to torch ------------------------------------------------------------------------------ */

std::vector<std::string> ReasonCounts::lines() const {
    static const char *const names[REASONS] = {"dtype", "layout", "shape", "faster", "impossible"};
    std::vector<std::string> lines;
    for (int i = 0; i < REASONS; i++) lines.push_back(names[i] + (" " + std::to_string(counts_[i].load())));
    return lines;
}

static ReasonCounts passed;

static bool pass(Reason reason) { return passed.count(reason); }

std::vector<std::string> products_passed() { return passed.lines(); }

void forget_counts() {
    passed.forget();
    forget_products_taken();
    forget_attention_counts();
}

/* ---- Taking a product -------------------------------------------------------------------------------------------- */

/* torch matches named dimensions and passes them on; newer versions have none. */
template <class AnyTensor> static auto has_names(const AnyTensor &tensor, int) -> decltype(tensor.has_names()) {
    return tensor.has_names();
}
template <class AnyTensor> static bool has_names(const AnyTensor &, long) { return false; }

static bool is_plain(const at::Tensor &tensor, const at::Tensor &a) {
    return tensor.layout() == at::kStrided && tensor.device() == a.device() && !has_names(tensor, 0);
}

/* Whether C may be written while the others are read. */
static bool is_apart(const Product &p) {
    return at::has_internal_overlap(p.c) == at::MemOverlap::No &&
           at::get_overlap_status(p.c, p.a) == at::MemOverlapStatus::No &&
           at::get_overlap_status(p.c, p.b) == at::MemOverlapStatus::No &&
           (!p.s.defined() || p.s.is_same(p.c) || at::get_overlap_status(p.c, p.s) == at::MemOverlapStatus::No);
}

/* Computes a product of `dims`-dimensional tensors into product->c, which is allocated here if it is undefined. Returns
 * false if the product, or the error it makes, is left to torch. */
static bool take(uint32_t word, Product *product, int64_t dims) {
    Product &p = *product;
    for (const at::Tensor *tensor : {&p.a, &p.b, &p.s, &p.c}) {
        if (!tensor->defined()) continue;
        if (tensor->scalar_type() != at::kFloat) return pass(OTHER_DTYPE);
        if (!is_plain(*tensor, p.a)) return pass(OTHER_LAYOUT);
    }
    if (p.a.dim() != dims || p.b.dim() != dims || p.a.size(-1) != p.b.size(-2) || !p.a.numel() || !p.b.numel() ||
        (dims == 3 && p.a.size(0) != p.b.size(0)))
        return pass(OTHER_SHAPE);
    int64_t sizes[3] = {p.a.size(0), p.a.size(-2), p.b.size(-1)};
    const at::IntArrayRef result_sizes(sizes + (3 - dims), static_cast<size_t>(dims));
    if (p.c.defined() && (p.c.sizes() != result_sizes || !is_apart(p))) return pass(OTHER_SHAPE);
    if (p.s.defined()) {
        if (!at::is_expandable_to(p.s.sizes(), result_sizes)) return pass(OTHER_SHAPE);
        if (p.beta == 0) p.s.reset();
    }
    p.arithmetic = {precision_of(word), (word & INVARIANT) != 0};
    const bool always = word & ALWAYS;
    if (!always && p.a.is_cpu() && !tessera_is_faster_on_cpu(p.a.size(-2), p.b.size(-1), p.a.size(-1)))
        return pass(TORCH_IS_FASTER);
    /* Planning fails if this library or GPU cannot do it, or if a stream is captured before the first product. Memory
     * may be too short for workspace, which torch does not need. Errors of launches come later and reach the caller. */
    c10::optional<PlannedProduct> planned;
    try {
        planned = plan_product(p);
    } catch (const c10::Error &) {
        return pass(NOT_POSSIBLE);
    } catch (const std::bad_alloc &) {
        return pass(NOT_POSSIBLE);
    }
    if (!always && is_for_torch(*planned)) return pass(TORCH_IS_FASTER);
    if (!p.c.defined()) p.c = at::empty(result_sizes, p.a.options());
    try {
        execute(*planned, p);
    } catch (const c10::OutOfMemoryError &) {
        return pass(NOT_POSSIBLE);
    }
    count_taken(*planned, p);
    return true;
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

using at::Scalar;
using at::Tensor;

using Multiply = Tensor(const Tensor &, const Tensor &);
using MultiplyOut = Tensor &(const Tensor &, const Tensor &, Tensor &);
using Add = Tensor(const Tensor &, const Tensor &, const Tensor &, const Scalar &, const Scalar &);
using AddOut = Tensor &(const Tensor &, const Tensor &, const Tensor &, const Scalar &, const Scalar &, Tensor &);
using AddInPlace = Tensor &(Tensor &, const Tensor &, const Tensor &, const Scalar &, const Scalar &);

} // namespace tessera

/* Torch's own, weak, and so null where torch was built without CUDA: one operator serves all builds of a release. */
namespace at::cuda {
[[gnu::weak]] tessera::Multiply mm, bmm;
[[gnu::weak]] tessera::MultiplyOut mm_outf, bmm_outf;
[[gnu::weak]] tessera::Add addmm, baddbmm;
[[gnu::weak]] tessera::AddOut addmm_outf, baddbmm_outf;
[[gnu::weak]] tessera::AddInPlace addmm_, baddbmm_;
} // namespace at::cuda

namespace tessera {

static Product product_of(const Tensor &a, const Tensor &b, const Tensor &c) {
    Product product;
    product.a = a, product.b = b, product.c = c;
    return product;
}

static Product sum_of(const Tensor &s, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha,
                      const Tensor &c) {
    Product product = product_of(a, b, c);
    product.s = s;
    product.alpha = alpha.toDouble();
    product.beta = beta.toDouble();
    return product;
}

/* torch refuses complex factors. */
static bool is_real(const Scalar &beta, const Scalar &alpha) { return !beta.isComplex() && !alpha.isComplex(); }

static uint32_t word_of(const Switch &device) { return device.word.load(std::memory_order_relaxed); }

/* Each takes a product of `dims`-dimensional tensors or passes it on to torch's function. */
template <const Switch &device, int dims, Multiply *torch_function>
static Tensor multiply(const Tensor &a, const Tensor &b) {
    if (const uint32_t word = word_of(device)) {
        Product product = product_of(a, b, {});
        if (take(word, &product, dims)) return product.c;
    }
    return torch_function(a, b);
}

template <const Switch &device, int dims, MultiplyOut *torch_function>
static Tensor &multiply_out(const Tensor &a, const Tensor &b, Tensor &out) {
    if (const uint32_t word = word_of(device)) {
        Product product = product_of(a, b, out);
        if (take(word, &product, dims)) return out;
    }
    return torch_function(a, b, out);
}

template <const Switch &device, int dims, Add *torch_function>
static Tensor add(const Tensor &s, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha) {
    if (const uint32_t word = word_of(device); word && is_real(beta, alpha)) {
        Product product = sum_of(s, a, b, beta, alpha, {});
        if (take(word, &product, dims)) return product.c;
    }
    return torch_function(s, a, b, beta, alpha);
}

template <const Switch &device, int dims, AddOut *torch_function>
static Tensor &add_out(const Tensor &s, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha,
                       Tensor &out) {
    if (const uint32_t word = word_of(device); word && is_real(beta, alpha)) {
        Product product = sum_of(s, a, b, beta, alpha, out);
        if (take(word, &product, dims)) return out;
    }
    return torch_function(s, a, b, beta, alpha, out);
}

template <const Switch &device, int dims, AddInPlace *torch_function>
static Tensor &add_in_place(Tensor &s, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha) {
    if (const uint32_t word = word_of(device); word && is_real(beta, alpha)) {
        Product product = sum_of(s, a, b, beta, alpha, s);
        if (take(word, &product, dims)) return s;
    }
    return torch_function(s, a, b, beta, alpha);
}

/* ---- Registration ------------------------------------------------------------------------------------------------ */

static void register_cpu(torch::Library *library) {
    library->impl("mm", TORCH_FN((multiply<cpu_switch, 2, at::cpu::mm>)));
    library->impl("bmm", TORCH_FN((multiply<cpu_switch, 3, at::cpu::bmm>)));
    library->impl("mm.out", TORCH_FN((multiply_out<cpu_switch, 2, at::cpu::mm_outf>)));
    library->impl("bmm.out", TORCH_FN((multiply_out<cpu_switch, 3, at::cpu::bmm_outf>)));
    library->impl("addmm", TORCH_FN((add<cpu_switch, 2, at::cpu::addmm>)));
    library->impl("baddbmm", TORCH_FN((add<cpu_switch, 3, at::cpu::baddbmm>)));
    library->impl("addmm.out", TORCH_FN((add_out<cpu_switch, 2, at::cpu::addmm_outf>)));
    library->impl("baddbmm.out", TORCH_FN((add_out<cpu_switch, 3, at::cpu::baddbmm_outf>)));
    library->impl("addmm_", TORCH_FN((add_in_place<cpu_switch, 2, at::cpu::addmm_>)));
    library->impl("baddbmm_", TORCH_FN((add_in_place<cpu_switch, 3, at::cpu::baddbmm_>)));
}

static void register_cuda(torch::Library *library) {
    if (!static_cast<Multiply *>(at::cuda::mm)) return;
    library->impl("mm", TORCH_FN((multiply<cuda_switch, 2, at::cuda::mm>)));
    library->impl("bmm", TORCH_FN((multiply<cuda_switch, 3, at::cuda::bmm>)));
    library->impl("mm.out", TORCH_FN((multiply_out<cuda_switch, 2, at::cuda::mm_outf>)));
    library->impl("bmm.out", TORCH_FN((multiply_out<cuda_switch, 3, at::cuda::bmm_outf>)));
    library->impl("addmm", TORCH_FN((add<cuda_switch, 2, at::cuda::addmm>)));
    library->impl("baddbmm", TORCH_FN((add<cuda_switch, 3, at::cuda::baddbmm>)));
    library->impl("addmm.out", TORCH_FN((add_out<cuda_switch, 2, at::cuda::addmm_outf>)));
    library->impl("baddbmm.out", TORCH_FN((add_out<cuda_switch, 3, at::cuda::baddbmm_outf>)));
    library->impl("addmm_", TORCH_FN((add_in_place<cuda_switch, 2, at::cuda::addmm_>)));
    library->impl("baddbmm_", TORCH_FN((add_in_place<cuda_switch, 3, at::cuda::baddbmm_>)));
    register_attention(library);
}

/* torch warns that kernels of its own are overridden, which is what the caller asked for. */
struct Silence final : c10::WarningHandler {
#if TESSERA_TORCH_AT_LEAST(2, 0)
    void process(const c10::Warning &) override {}
#else
    void process(const c10::SourceLocation &, const std::string &, const bool) override {}
#endif
};

#if TESSERA_TORCH_AT_LEAST(2, 0)
using HandlerGuard = c10::WarningUtils::WarningHandlerGuard;
#else
using HandlerGuard = c10::Warning::WarningHandlerGuard;
#endif

static ForkSafeMutex registration_lock;

static void register_once(Switch *device, c10::DispatchKey key, void (*registration)(torch::Library *)) {
    ForkSafeGuard guard(registration_lock);
    if (device->kernels) return;
    Silence silence;
    HandlerGuard quiet(&silence);
    auto kernels = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    registration(kernels.get()); /* all of them, or, without memory for one, none */
    device->kernels = kernels.release();
}

std::string switch_drop_in(c10::string_view device, bool on, c10::string_view precision, bool always) {
    const bool on_cpu = device == "cpu";
    TORCH_CHECK_VALUE(on_cpu || device == "cuda", "devices must be 'cpu' or 'cuda', not '", device, "'");
    const Arithmetic chosen = arithmetic_named(precision);
    Switch &chosen_switch = on_cpu ? cpu_switch : cuda_switch;
    if (on)
        register_once(&chosen_switch, on_cpu ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA,
                      on_cpu ? register_cpu : register_cuda);
    const uint32_t before = chosen_switch.word.exchange(on ? word_of(chosen, always) : 0);
    if (!before) return "off";
    return std::string(tsr_precision_name(precision_of(before))) + (before & INVARIANT ? " batch_invariant" : "") +
           (before & ALWAYS ? " always" : "");
}

} // namespace tessera
