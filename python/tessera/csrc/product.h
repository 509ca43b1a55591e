/* product.h: a product of float32 tensors as calls of libtessera, for operators.cpp and drop_in.cpp. */
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <tessera.h>
#include <torch/custom_class.h>
#include <torch/version.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define TESSERA_TORCH_AT_LEAST(major, minor) \
    (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace tessera {

/* "fp32", "ieee" or "tf32"; raises ValueError for anything else. */
tsr_precision precision_named(c10::string_view name);
const char *name_of(tsr_precision precision);

/* A matrix in panels. */
struct Panels;

/* A matrix that is used many times, with the panels made of it: one set for each side, orientation and precision it
 * has been used with. They are made again when the tensor has been written to since, or has other memory. */
class Packed : public torch::CustomClassHolder {
  public:
    explicit Packed(at::Tensor matrix);
    at::Tensor matrix() const { return matrix_; }

    /* The panels of `operand`, a view of the whole matrix, ready for the current stream; NULL where there can be none: of
     * inference tensors, which do not tell when they are written to, and while a stream is captured, because panels may
     * not outlive the tensor's next change and a graph must. Whoever uses them holds them meanwhile. */
    std::shared_ptr<const Panels> panels(tsr_context *context, tsr_side side, const tsr_operand &operand);

  private:
    bool has_changed() const;
    at::Tensor matrix_;
    /* The matrix's memory when panels were made, by its owner, because an address may come again; and its version. */
    c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
    const void *data_ = nullptr;
    uint32_t version_ = 0;
    std::mutex lock_;
    std::vector<std::shared_ptr<const Panels>> panels_;
};

/* C = alpha A B + beta S, for tensors of one device: a (..., m, k), b (..., k, n) and c (..., m, n), all float32 with the
 * same leading sizes and any strides; s has c's sizes or can be expanded to them. s may be undefined where beta is 0; c
 * may be until it is executed, and stands for a contiguous tensor until then. */
struct Product {
    at::Tensor a, b, s, c;
    double alpha = 1, beta = 0;
    tsr_precision precision = TSR_FP32;
    Packed *packed = nullptr; /* what the operand on packed_side is a view of, or NULL */
    tsr_side packed_side = TSR_RIGHT;
};

/* What is kept of a plan: product.cpp. */
struct Planned;

/* A product reduced to what libtessera takes: one strided batch, in a loop over the leading dimensions that no single
 * stride can stand for. `planned` is this thread's, and good until its next product. */
struct Reduced {
    struct Loop {
        int64_t size, a, b, s, c; /* steps, and floats from one to the next */
    };
    int64_t batch, m, n, k;
    tsr_operand a, b, s;
    tsr_result c;
    c10::SmallVector<Loop, 4> loops;
    Planned *planned;
    std::shared_ptr<const Panels> panels; /* of the packed operand, held until the product is executed */
};

/* Both raise errors of torch's kinds; until execute has the workspace it needs, nothing has been queued. */
Reduced reduce(const Product &product);
void execute(const Reduced &reduced, const Product &product);

/* Whether the plan is to split the operands for tensor cores. */
bool is_split(const Reduced &reduced);

/* Whether the device is a GPU of compute capability 9, for which there are kernels of its own. */
bool is_hopper(const c10::Device &device);

/* Counts a product that was taken from torch. */
void count_taken(const Reduced &reduced, const Product &product);

/* How often products of each kind were taken, a line each: "cuda:0 fp32 1 4096 4096 4096 17" (device, precision,
 * batch, m, n, k, calls). */
std::vector<std::string> products_taken();
void forget_products_taken();

} // namespace tessera
