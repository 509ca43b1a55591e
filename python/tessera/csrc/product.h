/* product.h: a product of float32 tensors as calls of libtessera, for operators.cpp and drop_in.cpp. */
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
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

using OptionalTensor = c10::optional<at::Tensor>;

/* The tensor, or an undefined one. */
inline const at::Tensor &given(const OptionalTensor &tensor) {
    static const at::Tensor none;
    return tensor ? *tensor : none;
}

/* ---- Calls of libtessera ----------------------------------------------------------------------------------------- */

/* Raises an error of torch's kinds unless the status is TSR_OK. */
void check(tsr_status status);

/* The context of a device, which lives as long as the process. The first use makes it, and must not be in a capture. */
tsr_context *context_for(const c10::Device &device, tsr_precision precision);

/* What a call is launched with on the current stream: torch's memory as workspace, which is free again, for what is
 * queued on this stream afterwards, when the object goes. */
struct Launch {
    Launch(const c10::Device &device, size_t workspace_size);
    tsr_launch of = {};

  private:
    c10::OptionalDeviceGuard guard_;
    c10::DataPtr workspace_;
};

/* Whether the device's current stream is recorded into a graph. */
bool is_capturing(const c10::Device &device);

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* The precision that tsr_precision_name calls so, " batch_invariant" behind it or not: what operators call `precision`.
 * Raises ValueError where there is none. */
struct Arithmetic {
    tsr_precision precision = TSR_FP32;
    bool batch_invariant = false;
};
Arithmetic arithmetic_named(c10::string_view name);

/* A matrix in panels, and all that were made of one matrix: product.cpp. */
struct Panels;
struct PanelSet;

/* A matrix that is used many times, with the panels made of it: one set for each side, orientation and precision it
 * has been used with. They are made again when the tensor has been written to since, or has other memory. */
class Packed : public torch::CustomClassHolder {
  public:
    explicit Packed(at::Tensor matrix);
    ~Packed() override;
    at::Tensor matrix() const { return matrix_; }

    /* The panels of `operand`, a view of the whole matrix, ready for the current stream. NULL for inference tensors,
     * which do not record that they are written to, and while a stream is captured: panels do not outlive the tensor's
     * next change, and a graph may. The caller holds them while they are in use. */
    std::shared_ptr<const Panels> panels(tsr_context *context, tsr_side side, const tsr_operand &operand);

  private:
    static void replace_locked_sets();
    at::Tensor matrix_;
    std::unique_ptr<PanelSet> set_;
};

/* C = alpha A B + beta S, for tensors of one device: a (..., m, k), b (..., k, n) and c (..., m, n), all float32 with
 * the same leading sizes and any strides; s broadcasts to c's sizes, and may be undefined if beta is 0. c may be
 * undefined while the product is planned, and then stands for a contiguous tensor. */
struct Product {
    at::Tensor a, b, s, c;
    double alpha = 1, beta = 0;
    Arithmetic arithmetic;
    Packed *packed = nullptr; /* what the operand on packed_side is a view of, or NULL */
    tsr_side packed_side = TSR_RIGHT;
};

/* A plan that is kept for the next product of its kind: product.cpp. */
struct CachedPlan;

/* A product in the form that libtessera takes: one strided batch, in a loop over the leading dimensions that no single
 * stride covers. `cached` belongs to this thread and is valid until its next product. */
struct PlannedProduct {
    struct Loop {
        int64_t size, a, b, s, c; /* steps, and floats from one to the next */
    };
    int64_t batch, m, n, k;
    tsr_operand a, b, s;
    tsr_result c;
    c10::SmallVector<Loop, 4> loops;
    CachedPlan *cached;
    std::shared_ptr<const Panels> panels; /* of the packed operand, held until the product is executed */
};

/* Both raise errors of torch's kinds; until execute has the workspace it needs, nothing has been queued. */
PlannedProduct plan_product(const Product &product);
void execute(const PlannedProduct &planned, const Product &product);

/* How many times as long torch takes, by the estimates of both; 0 where there is none: on the CPU. */
double estimated_gain(const PlannedProduct &planned);

/* Whether torch is known to be faster on a GPU. */
bool is_for_torch(const PlannedProduct &planned);

/* What the driver says of a GPU; all 0 of other devices. */
struct Gpu;
const Gpu &gpu_of(const c10::Device &device);

/* Counts a product that was taken from torch. */
void count_taken(const PlannedProduct &planned, const Product &product);

/* How often products of each kind were taken, a line each: "cuda:0 fp32 1 4096 4096 4096 17 4.4" (device, precision,
 * batch, m, n, k, calls, estimated_gain). */
std::vector<std::string> products_taken();
void forget_products_taken();

} // namespace tessera
