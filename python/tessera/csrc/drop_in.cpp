/* drop_in.cpp: aten::mm, addmm, bmm and baddbmm on float32 tensors through Tessera, while it is switched on.
 *
 * The kernels sit at torch's CPU and CUDA keys, below autograd, autocast, vmap and tensor subclasses: what those make of
 * a model's products arrives here as plain tensors, backward passes included. What is not taken goes to the very
 * function that torch had registered. They are registered when a device is first switched on and stay; switching
 * afterwards is one atomic store, so any thread may do it at any time.
 */
#include "drop_in.h"

#include "fork_safe.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <torch/library.h>
#ifdef TESSERA_TORCH_CUDA
#include <ATen/ops/addmm_cuda_dispatch.h>
#include <ATen/ops/baddbmm_cuda_dispatch.h>
#include <ATen/ops/bmm_cuda_dispatch.h>
#include <ATen/ops/mm_cuda_dispatch.h>
#endif

#include <algorithm>
#include <atomic>
#include <memory>

namespace tessera {

/* ---- The switches ------------------------------------------------------------------------------------------------ */

/* One device's setting in one word: 0 is off, else ON, ALWAYS where even what torch does quicker is taken, and the
 * precision from bit 2 on. */
enum : uint32_t { ON = 1, ALWAYS = 2 };

struct Switch {
    std::atomic<uint32_t> word{0};
    torch::Library *kernels = nullptr; /* once registered; kept as long as the process */
};

static Switch cpu_switch, cuda_switch;

static uint32_t word_of(tsr_precision precision, bool always) {
    return static_cast<uint32_t>(precision) << 2 | (always ? ON | ALWAYS : ON);
}

static tsr_precision precision_of(uint32_t word) { return static_cast<tsr_precision>(word >> 2); }

/* ---- Counting what is left to torch ------------------------------------------------------------------------------ */

enum Reason { OTHER_DTYPE, OTHER_LAYOUT, OTHER_SHAPE, TORCH_IS_QUICKER, NOT_POSSIBLE, REASONS };
static const char *const reason_names[REASONS] = {"dtype", "layout", "shape", "quicker", "impossible"};
static std::atomic<uint64_t> passed[REASONS];

static bool pass(Reason reason) {
    passed[reason].fetch_add(1, std::memory_order_relaxed);
    return false;
}

std::vector<std::string> products_passed() {
    std::vector<std::string> lines;
    for (int i = 0; i < REASONS; i++) lines.push_back(reason_names[i] + (" " + std::to_string(passed[i].load())));
    return lines;
}

void forget_counts() {
    for (auto &count : passed) count = 0;
    forget_products_taken();
}

/* ---- Leaving a product ------------------------------------------------------------------------------------------- */

/* All by measurement (bench/pytorch/compare.py). */

struct Sizes {
    double batch, m, n, k;
    double work() const { return batch * m * n * k; }
};

/* On the CPU our kernels are as good as torch's, but for matrices with next to no width. */
static bool quicker_on_cpu(const Sizes &s) { return std::min({s.m, s.n, s.k}) >= 16; }

/* Split for tensor cores a product must be large enough to pay for packing its operands: their elements, (m + n) k, must
 * be few beside the m n k products, the fewer the shorter k is. */
static bool quicker_split(const Sizes &s) {
    const double reuse = s.m * s.n / (s.m + s.n); /* products to an element packed */
    if (s.k >= 16384) return reuse >= 60;
    if (s.k >= 4096) return reuse >= 100;
    if (s.k >= 1024) return reuse >= 225;
    return s.work() >= 8e8 && (s.k >= 256 ? reuse >= 350 : s.k >= 128 && reuse >= 600);
}

/* As they are, by the ieee kernels. On Hopper, with k below 1024, these take one launch and less of the host's time than
 * torch, so that what is small gains. A longer k is cut, which takes a second launch: there gains what is large, and
 * what has so little of C that torch does not fill the GPU. Thin products (up to 8 rows or columns) are a matter of reading
 * the other operand, for which torch has good kernels; from 9 to 31 rows torch may take 0.6 or 3.9 times as long, unless
 * the product is large. Of a few terms, a C that does not fit into the L2 cache is written quicker by torch. On other
 * GPUs nothing is known to gain but large products, over torch's float32. */
static bool quicker_in_place(tsr_precision precision, bool on_hopper, const Sizes &s) {
    const double narrow = std::min(s.m, s.n), wide = std::max(s.m, s.n), work = s.work();
    if (!on_hopper) return precision == TSR_IEEE && narrow >= 1024 && work >= 1e10;
    if (precision == TSR_TF32) return false;
    const bool cut = s.k >= 1024;
    if (narrow <= 8)
        return cut ? s.batch == 1 && s.k >= 4096 && wide <= 512 : s.batch * wide * s.k <= 5e6 && work <= 2e7;
    if (!cut) return work <= 1e8 && s.batch * s.m * s.n <= 1.2e7;
    if (narrow < 32) return narrow >= 16 && work >= 2e8;
    return work <= 3e8 || s.k >= 2048;
}

/* What a plan may do with a product, as far as it is known. */
struct Ways {
    bool split, in_place;
};

static bool quicker_on_cuda(const c10::Device &device, tsr_precision precision, Ways ways, const Sizes &s) {
    return (ways.split && precision != TSR_IEEE && quicker_split(s)) ||
           (ways.in_place && quicker_in_place(precision, is_hopper(device), s));
}

/* Whether the sizes alone say that torch is quicker. Asked before anything else, and of nothing else: such products are
 * small, so that the host's time shows. */
template <const Switch &device, int dims>
static bool is_small(uint32_t word, const at::Tensor &a, const at::Tensor &b) {
    if (word & ALWAYS || a.dim() != dims || b.dim() != dims || a.scalar_type() != at::kFloat) return false;
    const at::IntArrayRef a_sizes = a.sizes(), b_sizes = b.sizes();
    const Sizes sizes = {dims == 3 ? static_cast<double>(a_sizes[0]) : 1, static_cast<double>(a_sizes[dims - 2]),
                         static_cast<double>(b_sizes[dims - 1]), static_cast<double>(a_sizes[dims - 1])};
    const bool quicker = &device == &cpu_switch ? quicker_on_cpu(sizes)
                                                : quicker_on_cuda(a.device(), precision_of(word), {true, true}, sizes);
    return !quicker && !pass(TORCH_IS_QUICKER);
}

/* ---- Taking a product -------------------------------------------------------------------------------------------- */

/* Named dimensions are torch's to match and to pass on; newer versions of it have none. */
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

/* Computes a product of `dims`-dimensional tensors into product->c, made here where it is undefined; false where it is
 * torch's to compute, errors included. */
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
    p.precision = precision_of(word);
    const bool always = word & ALWAYS;
    /* Planning fails where this library or GPU cannot do it, or a capture is under way before the first product; workspace
     * may be short where torch needs none. Errors of launches, which come after, are the caller's to see. */
    c10::optional<PlannedProduct> planned;
    try {
        planned = plan_product(p);
    } catch (const c10::Error &) {
        return pass(NOT_POSSIBLE);
    }
    if (!always && p.a.is_cuda()) {
        const Sizes sizes = {static_cast<double>(planned->batch), static_cast<double>(planned->m),
                             static_cast<double>(planned->n), static_cast<double>(planned->k)};
        const bool split = is_split(*planned);
        if (!quicker_on_cuda(p.a.device(), p.precision, {split, !split}, sizes)) return pass(TORCH_IS_QUICKER);
    }
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

/* A complex factor is torch's to refuse. */
static bool is_real(const Scalar &beta, const Scalar &alpha) { return !beta.isComplex() && !alpha.isComplex(); }

/* The switch's word where there is a product to look at, or 0. */
template <const Switch &device, int dims> static uint32_t word_for(const Tensor &a, const Tensor &b) {
    const uint32_t word = device.word.load(std::memory_order_relaxed);
    return word && !is_small<device, dims>(word, a, b) ? word : 0;
}

/* Each takes a product of `dims`-dimensional tensors or gives it to torch's own function. */
template <const Switch &device, int dims, Multiply *torch_function>
static Tensor multiply(const Tensor &a, const Tensor &b) {
    if (const uint32_t word = word_for<device, dims>(a, b)) {
        Product product = product_of(a, b, {});
        if (take(word, &product, dims)) return product.c;
    }
    return torch_function(a, b);
}

template <const Switch &device, int dims, MultiplyOut *torch_function>
static Tensor &multiply_out(const Tensor &a, const Tensor &b, Tensor &out) {
    if (const uint32_t word = word_for<device, dims>(a, b)) {
        Product product = product_of(a, b, out);
        if (take(word, &product, dims)) return out;
    }
    return torch_function(a, b, out);
}

template <const Switch &device, int dims, Add *torch_function>
static Tensor add(const Tensor &s, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha) {
    if (const uint32_t word = word_for<device, dims>(a, b); word && is_real(beta, alpha)) {
        Product product = sum_of(s, a, b, beta, alpha, {});
        if (take(word, &product, dims)) return product.c;
    }
    return torch_function(s, a, b, beta, alpha);
}

template <const Switch &device, int dims, AddOut *torch_function>
static Tensor &add_out(const Tensor &s, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha,
                       Tensor &out) {
    if (const uint32_t word = word_for<device, dims>(a, b); word && is_real(beta, alpha)) {
        Product product = sum_of(s, a, b, beta, alpha, out);
        if (take(word, &product, dims)) return out;
    }
    return torch_function(s, a, b, beta, alpha, out);
}

template <const Switch &device, int dims, AddInPlace *torch_function>
static Tensor &add_in_place(Tensor &s, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha) {
    if (const uint32_t word = word_for<device, dims>(a, b); word && is_real(beta, alpha)) {
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
#ifdef TESSERA_TORCH_CUDA
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
#else
    (void)library;
#endif
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
    device->kernels = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    registration(device->kernels);
}

std::string switch_drop_in(c10::string_view device, bool on, c10::string_view precision, bool always) {
    const bool on_cpu = device == "cpu";
    TORCH_CHECK_VALUE(on_cpu || device == "cuda", "devices must be 'cpu' or 'cuda', not '", device, "'");
    const tsr_precision chosen = precision_named(precision);
    Switch &chosen_switch = on_cpu ? cpu_switch : cuda_switch;
    if (on)
        register_once(&chosen_switch, on_cpu ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA,
                      on_cpu ? register_cpu : register_cuda);
    const uint32_t before = chosen_switch.word.exchange(on ? word_of(chosen, always) : 0);
    if (!before) return "off";
    return std::string(tsr_precision_name(precision_of(before))) + (before & ALWAYS ? " always" : "");
}

} // namespace tessera
