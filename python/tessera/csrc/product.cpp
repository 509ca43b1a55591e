/* product.cpp: strides, contexts, plans and workspace of a product of tensors. */
#include "product.h"

#include "fork_safe.h"
#include "torch_cost.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#if TESSERA_TORCH_AT_LEAST(2, 4) /* since then torch offers it to C, and CUDA's headers are not needed */
extern "C" [[gnu::weak]] int32_t aoti_torch_get_current_cuda_stream(int32_t device_index, void **stream);
#elif defined(TESSERA_TORCH_CUDA)
#include <c10/cuda/CUDAStream.h>
#endif

namespace tessera {

Arithmetic arithmetic_named(c10::string_view name) {
    static const std::string suffix = " batch_invariant";
    const bool invariant = name.size() > suffix.size() &&
                           name.substr(name.size() - suffix.size()) == c10::string_view(suffix);
    if (invariant) name.remove_suffix(suffix.size());
    for (const tsr_precision precision : {TSR_FP32, TSR_IEEE, TSR_TF32})
        if (name == tsr_precision_name(precision)) return {precision, invariant};
    TORCH_CHECK_VALUE(false, "precision must be 'fp32', 'ieee' or 'tf32', not '", name, "'");
}

void check(tsr_status status) {
    if (status == TSR_OK) return;
#if TESSERA_TORCH_AT_LEAST(2, 0)
    TORCH_CHECK_WITH(OutOfMemoryError, status != TSR_OUT_OF_MEMORY, "tessera: ", tsr_last_error());
#endif
    TORCH_CHECK(false, "tessera: ", tsr_last_error());
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static void *current_stream(const c10::Device &device) {
    void *stream = nullptr;
#if TESSERA_TORCH_AT_LEAST(2, 4)
    TORCH_CHECK(aoti_torch_get_current_cuda_stream && !aoti_torch_get_current_cuda_stream(device.index(), &stream),
                "tessera: torch has no current stream");
#elif defined(TESSERA_TORCH_CUDA)
    stream = c10::cuda::getCurrentCUDAStream(device.index()).stream();
#else
    (void)device;
#endif
    return stream;
}

/* ---- What only the driver knows ---------------------------------------------------------------------------------- */

/* A function of the CUDA driver, looked up here so that CUDA's headers are not needed; NULL if it is not loaded. */
template <class Function> static Function *driver_function(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return driver ? reinterpret_cast<Function *>(dlsym(driver, name)) : nullptr;
}

/* Whether what is queued on the stream is recorded into a graph. */
static bool is_capturing(void *stream) {
    static auto *const ask = driver_function<int(void *stream, int *status)>("cuStreamIsCapturing");
    int status = 0;
    return ask && !ask(stream, &status) && status;
}

bool is_capturing(const c10::Device &device) { return device.is_cuda() && is_capturing(current_stream(device)); }

static Gpu described_gpu(int index) {
    enum {
        CLOCK = 13,
        MULTIPROCESSORS = 16,
        MEMORY_CLOCK = 36,
        MEMORY_BITS = 37,
        MAJOR = 75,
        MINOR = 76
    }; /* cuda.h's */
    static auto *const ask = driver_function<int(int *value, int attribute, int device)>("cuDeviceGetAttribute");
    const auto value = [&](int attribute) {
        int answer = 0;
        return ask && !ask(&answer, attribute, index) ? static_cast<double>(answer) : 0;
    };
    Gpu gpu;
    gpu.hopper = value(MAJOR) == 9;
    gpu.multiprocessors = value(MULTIPROCESSORS);
    gpu.flops = (value(MAJOR) == 8 && value(MINOR) == 0 ? 2 * 64 : 2 * 128) * value(CLOCK) * 1e3;
    gpu.bytes = 2 * value(MEMORY_CLOCK) * 1e3 * value(MEMORY_BITS) / 8;
    return gpu;
}

const Gpu &gpu_of(const c10::Device &device) {
    enum { MOST_DEVICES = 64 };
    static std::once_flag asked[MOST_DEVICES];
    static Gpu gpus[MOST_DEVICES];
    static const Gpu none;
    const int index = device.index();
    if (!device.is_cuda() || index < 0 || index >= MOST_DEVICES) return none;
    std::call_once(asked[index], [&] { gpus[index] = described_gpu(index); });
    return gpus[index];
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

/* Where products run. On the CPU as many threads as torch uses, so that torch.set_num_threads and torchrun's
 * OMP_NUM_THREADS hold here, too. */
struct Place {
    c10::DeviceType type;
    int index, threads;
    tsr_precision precision;
    bool batch_invariant;
    bool operator<(const Place &o) const {
        return std::tie(type, index, threads, precision, batch_invariant) <
               std::tie(o.type, o.index, o.threads, o.precision, o.batch_invariant);
    }
};

static Place place_of(c10::Device device, Arithmetic arithmetic) {
    const bool on_cpu = device.is_cpu();
    return {device.type(), on_cpu ? 0 : device.index(), on_cpu ? at::get_num_threads() : 0, arithmetic.precision,
            arithmetic.batch_invariant};
}

/* Contexts live as long as the process: plans, graphs and packed matrices refer to them. */
static ForkSafeMutex contexts_lock;
static auto &contexts = *new std::map<Place, tsr_context *>;

static tsr_context *context_of(const Place &place) {
    ForkSafeGuard guard(contexts_lock);
    tsr_context *&context = contexts[place];
    if (!context) {
        if (place.type != c10::kCPU) /* what a context allocates would be refused, and end the capture */
            TORCH_CHECK(!is_capturing({place.type, static_cast<c10::DeviceIndex>(place.index)}),
                        "tessera: the first product on a GPU cannot be captured into a graph: do one before");
        tsr_options options = TSR_OPTIONS_DEFAULT;
        options.device = place.type == c10::kCPU ? TSR_DEVICE_CPU : TSR_DEVICE_CUDA;
        options.device_index = place.type == c10::kCPU ? -1 : place.index;
        options.precision = place.precision;
        options.threads = std::min(place.threads, 1024);
        options.batch_invariant = place.batch_invariant;
        check(tsr_context_create(&context, &options));
    }
    return context;
}

tsr_context *context_for(const c10::Device &device, tsr_precision precision) {
    return context_of(place_of(device, {precision}));
}

Launch::Launch(const c10::Device &device, size_t workspace_size) {
    if (!device.is_cuda()) return;
    guard_.reset_device(device);
    of.stream = current_stream(device);
    if (!workspace_size) return;
    workspace_ = c10::GetAllocator(c10::kCUDA)->allocate(workspace_size);
    of.workspace = workspace_.get();
    of.workspace_size = workspace_size;
}

/* ---- Packed matrices --------------------------------------------------------------------------------------------- */

struct Panels {
    tsr_context *context;
    tsr_side side;
    int64_t row_stride, col_stride;
    tsr_packed *packed = nullptr;
    /* On CUDA: packed on this stream, ready at this event, in this memory of torch's. */
    c10::Stream stream;
    c10::Event ready;
    at::Tensor memory;

    Panels(tsr_context *context, tsr_side side, const tsr_operand &operand, c10::Stream stream)
        : context(context), side(side), row_stride(operand.row_stride), col_stride(operand.col_stride), stream(stream),
          ready(stream.device_type()) {}
    ~Panels() { tsr_packed_destroy(packed); }
    bool are_for(tsr_context *c, tsr_side s, const tsr_operand &o) const {
        return context == c && side == s && row_stride == o.row_stride && col_stride == o.col_stride;
    }
};

static c10::intrusive_ptr<c10::StorageImpl> storage_of(const at::Tensor &tensor) {
    return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl());
}

struct PanelSet {
    std::mutex lock; /* held while panels are made */
    /* The matrix's memory when they were made, by its owner, because an address may come again; and its version. */
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void *data = nullptr;
    uint32_t version = 0;
    std::vector<std::shared_ptr<const Panels>> panels;

    explicit PanelSet(const at::Tensor &matrix) : storage(storage_of(matrix)) {}
    bool are_of(const at::Tensor &matrix) const {
        return storage.lock() == storage_of(matrix) && data == matrix.data_ptr() && version == matrix._version();
    }
};

static ForkSafeMutex packed_lock;
static auto &all_packed = *new std::set<Packed *>;

Packed::Packed(at::Tensor matrix) : matrix_(std::move(matrix)), set_(std::make_unique<PanelSet>(matrix_)) {
    ForkSafeGuard guard(packed_lock);
    static const int registered = pthread_atfork(nullptr, nullptr, replace_locked_sets);
    (void)registered;
    all_packed.insert(this);
}

Packed::~Packed() {
    ForkSafeGuard guard(packed_lock);
    all_packed.erase(this);
}

/* In a forked child: the thread that was making panels is not here to finish. A fork cannot wait for it, since packing
 * takes long. */
void Packed::replace_locked_sets() {
    for (Packed *packed : all_packed) {
        if (packed->set_->lock.try_lock()) {
            packed->set_->lock.unlock();
        } else {
            packed->set_.release(); /* in a state that nobody knows, so not destroyed */
            packed->set_ = std::make_unique<PanelSet>(packed->matrix_);
        }
    }
}

std::shared_ptr<const Panels> Packed::panels(tsr_context *context, tsr_side side, const tsr_operand &operand) {
    const bool on_cuda = matrix_.is_cuda();
    tsr_launch launch = {};
    launch.stream = on_cuda ? current_stream(matrix_.device()) : nullptr;
    if (matrix_.is_inference() || (on_cuda && is_capturing(launch.stream))) return nullptr;
    const c10::Stream stream = c10::impl::VirtualGuardImpl(matrix_.device().type()).getStream(matrix_.device());
    std::lock_guard<std::mutex> guard(set_->lock);
    if (!set_->are_of(matrix_)) {
        set_->panels.clear();
        set_->storage = c10::weak_intrusive_ptr<c10::StorageImpl>(storage_of(matrix_));
        set_->data = matrix_.data_ptr();
        set_->version = matrix_._version();
    }
    for (const auto &made : set_->panels) {
        if (!made->are_for(context, side, operand)) continue;
        if (on_cuda && made->stream != stream) {
            made->ready.block(stream);
            made->memory.record_stream(stream);
        }
        return made;
    }
    const auto made = std::make_shared<Panels>(context, side, operand, stream);
    if (on_cuda) {
        launch.workspace_size = tsr_pack_size(context, side, operand.rows, operand.cols);
        made->memory = at::empty({static_cast<int64_t>(launch.workspace_size)}, matrix_.options().dtype(at::kByte));
        launch.workspace = made->memory.data_ptr();
    }
    check(tsr_pack(&made->packed, context, side, &operand, &launch));
    if (on_cuda) made->ready.record(stream);
    set_->panels.push_back(made);
    return made;
}

/* ---- Products that were taken from torch ------------------------------------------------------------------------- */

using Kind = std::array<int64_t, 7>; /* device type and index, precision, batch, m, n, k */

struct Taken {
    std::atomic<uint64_t> calls{0};
    double gain = 0; /* of the first: strides may make a difference, a small one */
};

static ForkSafeMutex taken_lock;
static auto &taken = *new std::map<Kind, Taken>; /* entries stay: plans point at them */

static std::atomic<uint64_t> *counter_of(const Kind &kind, double gain) {
    enum { MOST_KINDS = 1 << 16 }; /* then the rest is counted together, as all zeros */
    ForkSafeGuard guard(taken_lock);
    Taken &of_kind = taken[taken.size() < MOST_KINDS || taken.count(kind) ? kind : Kind{}];
    if (of_kind.gain == 0) of_kind.gain = gain;
    return &of_kind.calls;
}

std::vector<std::string> products_taken() {
    ForkSafeGuard guard(taken_lock);
    std::vector<std::string> lines;
    for (const auto &entry : taken) {
        const uint64_t calls = entry.second.calls.load(std::memory_order_relaxed);
        if (!calls) continue;
        const Kind &kind = entry.first;
        std::string line =
            c10::Device(static_cast<c10::DeviceType>(kind[0]), static_cast<c10::DeviceIndex>(kind[1])).str();
        line += std::string(" ") + tsr_precision_name(static_cast<tsr_precision>(kind[2]));
        for (int i = 3; i < 7; i++) line += " " + std::to_string(kind[i]);
        lines.push_back(line + " " + std::to_string(calls) + " " + std::to_string(entry.second.gain));
    }
    return lines;
}

void forget_products_taken() {
    ForkSafeGuard guard(taken_lock);
    for (auto &entry : taken) entry.second.calls = 0;
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* All that a plan depends on, as words, so that keys can be compared and hashed as such. */
struct PlanKey {
    std::array<int64_t, 5> place; /* device type and index, threads, precision, whether batch-invariant */
    std::array<int64_t, 4> sizes; /* batch, m, n, k */
    std::array<int64_t, 4> a, b;  /* strides of rows, columns and batch, packed form */
    std::array<int64_t, 3> c;
};

static PlanKey key_of(const Place &place, const PlannedProduct &r) {
    const auto operand = [](const tsr_operand &o) {
        return std::array<int64_t, 4>{o.row_stride, o.col_stride, o.batch_stride, reinterpret_cast<int64_t>(o.packed)};
    };
    return {{static_cast<int64_t>(place.type), place.index, place.threads, place.precision, place.batch_invariant},
            {r.batch, r.m, r.n, r.k},
            operand(r.a),
            operand(r.b),
            {r.c.row_stride, r.c.col_stride, r.c.batch_stride}};
}

struct CachedPlan {
    PlanKey key;
    tsr_plan *plan = nullptr;
    size_t workspace;
    double seconds, torch;                  /* estimated; 0: not */
    std::atomic<uint64_t> *taken = nullptr; /* its counter, once it has been taken from torch */
    ~CachedPlan() { tsr_plan_destroy(plan); }
};

static size_t hash_of(const PlanKey &key) {
    uint64_t hash = 0;
    const int64_t *words = key.place.data();
    for (size_t i = 0; i < sizeof key / sizeof *words; i++)
        hash = (hash ^ static_cast<uint64_t>(words[i])) * 0x9e3779b97f4a7c15u;
    return hash >> 32;
}

static double torch_seconds_of(const Place &place, const PlannedProduct &r) {
    if (place.type == c10::kCPU) return 0;
    const Sizes sizes = {static_cast<double>(r.batch), static_cast<double>(r.m), static_cast<double>(r.n),
                         static_cast<double>(r.k)};
    return torch_seconds(gpu_of({place.type, static_cast<c10::DeviceIndex>(place.index)}), sizes);
}

/* Plans are kept by each thread for itself, so that finding one takes no lock; where two products fall into one slot
 * the later one stays. Making a plan again costs microseconds. */
static CachedPlan *cached_plan_for(const Place &place, const PlannedProduct &r) {
    enum { SLOTS = 1024 };
    const PlanKey key = key_of(place, r);
    static thread_local std::unique_ptr<std::array<std::unique_ptr<CachedPlan>, SLOTS>> slots;
    if (!slots) slots = std::make_unique<std::array<std::unique_ptr<CachedPlan>, SLOTS>>();
    std::unique_ptr<CachedPlan> &slot = (*slots)[hash_of(key) % SLOTS];
    if (slot && !std::memcmp(&slot->key, &key, sizeof key)) return slot.get();
    auto made = std::make_unique<CachedPlan>();
    made->key = key;
    check(tsr_plan_create(&made->plan, context_of(place), r.batch, &r.a, &r.b, &r.c));
    made->workspace = tsr_plan_workspace(made->plan);
    made->seconds = tsr_plan_seconds(made->plan);
    made->torch = torch_seconds_of(place, r);
    slot = std::move(made);
    return slot.get();
}

double estimated_gain(const PlannedProduct &planned) { return planned.cached->torch / planned.cached->seconds; }

bool is_for_torch(const PlannedProduct &planned) {
    return planned.cached->torch > 0 && torch_is_faster(planned.cached->seconds, planned.cached->torch);
}

void count_taken(const PlannedProduct &r, const Product &product) {
    std::atomic<uint64_t> *&counter = r.cached->taken;
    const c10::Device device = product.a.device();
    try {
        if (!counter)
            counter = counter_of({static_cast<int64_t>(device.type()), device.index(), product.arithmetic.precision,
                                  r.batch, r.m, r.n, r.k},
                                 estimated_gain(r));
    } catch (const std::bad_alloc &) {
        return; /* the product is made, if not counted */
    }
    counter->fetch_add(1, std::memory_order_relaxed);
}

/* ---- Strides ----------------------------------------------------------------------------------------------------- */

/* The strides of the last two dimensions, and of the others: of a tensor, or of a contiguous one not yet made. */
struct Strides {
    c10::SmallVector<int64_t, 6> of;
    int64_t row() const { return of[of.size() - 2]; }
    int64_t col() const { return of[of.size() - 1]; }
};

static Strides strides_of(const at::Tensor &tensor) {
    const auto strides = tensor.strides();
    return {{strides.begin(), strides.end()}};
}

/* Those the tensor would have if it were expanded to `dims` dimensions with c's sizes: 0 where it has one element. */
static Strides broadcast_strides(const at::Tensor &tensor, int64_t dims) {
    Strides strides;
    strides.of.resize(static_cast<size_t>(dims), 0);
    const int64_t missing = dims - tensor.dim();
    for (int64_t d = missing; d < dims; d++)
        if (tensor.size(d - missing) != 1) strides.of[static_cast<size_t>(d)] = tensor.stride(d - missing);
    return strides;
}

static Strides contiguous_strides(at::IntArrayRef batch_sizes, int64_t m, int64_t n) {
    Strides strides;
    strides.of.resize(batch_sizes.size() + 2);
    int64_t step = 1;
    for (size_t d = strides.of.size(); d-- > 0;) {
        strides.of[d] = step;
        step *= d == batch_sizes.size() + 1 ? n : d == batch_sizes.size() ? m : batch_sizes[d];
    }
    return strides;
}

/* Puts rows of neighbouring products under each other where they continue each other: then a batch of products with one
 * B is one product with more rows. */
static bool fold_rows(PlannedProduct *r, const PlannedProduct::Loop &loop) {
    const bool one_row = r->m == 1;
    if (loop.b || (!one_row && (loop.a != r->m * r->a.row_stride || loop.c != r->m * r->c.row_stride ||
                                loop.s != r->m * r->s.row_stride)))
        return false;
    if (one_row) r->a.row_stride = loop.a, r->c.row_stride = loop.c, r->s.row_stride = loop.s;
    r->m *= loop.size;
    return true;
}

/* Leading dimensions, innermost last: those that continue each other in every tensor become one, one becomes rows where
 * it can, the longest of the others becomes the batch, and what is left is looped over. */
static void fold_leading(PlannedProduct *r, at::IntArrayRef sizes, const Strides &a, const Strides &b, const Strides &s,
                         const Strides &c) {
    for (size_t d = 0; d < sizes.size(); d++) {
        if (sizes[d] == 1) continue;
        const PlannedProduct::Loop next = {sizes[d], a.of[d], b.of[d], s.of.empty() ? 0 : s.of[d], c.of[d]};
        if (!r->loops.empty()) {
            PlannedProduct::Loop &outer = r->loops.back();
            const int64_t n = next.size;
            if (outer.a == n * next.a && outer.b == n * next.b && outer.s == n * next.s && outer.c == n * next.c) {
                outer = {outer.size * n, next.a, next.b, next.s, next.c};
                continue;
            }
        }
        r->loops.push_back(next);
    }
    if (!r->loops.empty() && fold_rows(r, r->loops.back())) r->loops.pop_back();
    if (r->loops.empty()) return;
    const auto longest = std::max_element(
        r->loops.begin(), r->loops.end(),
        [](const PlannedProduct::Loop &x, const PlannedProduct::Loop &y) { return x.size < y.size; });
    r->batch = longest->size;
    r->a.batch_stride = longest->a;
    r->b.batch_stride = longest->b;
    r->s.batch_stride = longest->s;
    r->c.batch_stride = longest->c;
    r->loops.erase(longest);
}

PlannedProduct plan_product(const Product &p) {
    const int64_t dims = p.a.dim(), m = p.a.size(-2), k = p.a.size(-1), n = p.b.size(-1);
    const auto leading = p.a.sizes().slice(0, dims - 2);
    const Strides a = strides_of(p.a), b = strides_of(p.b);
    const Strides c = p.c.defined() ? strides_of(p.c) : contiguous_strides(leading, m, n);
    const Strides s = p.s.defined() ? broadcast_strides(p.s, dims) : Strides{};
    PlannedProduct r = {1, m, n, k, {}, {}, {}, {}, {}, nullptr, nullptr};
    r.a.row_stride = a.row(), r.a.col_stride = a.col();
    r.b.row_stride = b.row(), r.b.col_stride = b.col();
    r.c.row_stride = c.row(), r.c.col_stride = c.col();
    if (p.s.defined()) r.s.row_stride = s.row(), r.s.col_stride = s.col();
    if (dims > 2) fold_leading(&r, leading, a, b, s, c);
    r.a.rows = r.c.rows = r.s.rows = r.m;
    r.a.cols = r.b.rows = r.k;
    r.b.cols = r.c.cols = r.s.cols = r.n;

    const Place place = place_of(p.a.device(), p.arithmetic);
    if (p.packed) {
        const bool left = p.packed_side == TSR_LEFT;
        tsr_operand &operand = left ? r.a : r.b;
        operand.data = (left ? p.a : p.b).data_ptr<float>();
        if (!operand.batch_stride && r.loops.empty())
            r.panels = p.packed->panels(context_of(place), p.packed_side, operand);
        if (r.panels) operand.packed = r.panels->packed;
    }
    r.cached = cached_plan_for(place, r);
    return r;
}

/* ---- Execution --------------------------------------------------------------------------------------------------- */

void execute(const PlannedProduct &r, const Product &p) {
    const CachedPlan &cached = *r.cached;
    const Launch launch(p.a.device(), cached.workspace);
    tsr_operand s = r.s;
    const float *a = p.a.data_ptr<float>(), *b = p.b.data_ptr<float>();
    float *c = p.c.data_ptr<float>();
    s.data = p.s.defined() ? p.s.data_ptr<float>() : nullptr;

    int64_t steps = 1;
    for (const PlannedProduct::Loop &loop : r.loops) steps *= loop.size;
    for (int64_t step = 0; step < steps; step++) {
        int64_t rest = step, at_a = 0, at_b = 0, at_s = 0, at_c = 0;
        for (const PlannedProduct::Loop &loop : r.loops) {
            const int64_t i = rest % loop.size;
            rest /= loop.size;
            at_a += i * loop.a, at_b += i * loop.b, at_s += i * loop.s, at_c += i * loop.c;
        }
        tsr_operand addend = s;
        if (s.data) addend.data += at_s;
        check(tsr_plan_execute_add(cached.plan, static_cast<float>(p.alpha), a + at_a, b + at_b,
                                   static_cast<float>(p.beta), p.s.defined() ? &addend : nullptr, c + at_c,
                                   &launch.of));
    }
}

} // namespace tessera
