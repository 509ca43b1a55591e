/* drop_in.h: torch's own float32 products on Tessera. */
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "product.h"

namespace tessera {

/* Why a call is left to torch. */
enum Reason { OTHER_DTYPE, OTHER_LAYOUT, OTHER_SHAPE, TORCH_IS_FASTER, NOT_POSSIBLE, REASONS };

class ReasonCounts {
  public:
    bool count(Reason reason) { /* false, for a function that returns whether it took the call */
        counts_[reason].fetch_add(1, std::memory_order_relaxed);
        return false;
    }
    std::vector<std::string> lines() const; /* one for each reason: "dtype 17" */
    void forget() {
        for (auto &count : counts_) count = 0;
    }

  private:
    std::atomic<uint64_t> counts_[REASONS] = {};
};

/* What holds for CUDA tensors now. */
struct Setting {
    bool on, always;
    tsr_precision precision;
};
Setting cuda_setting();

/* Switches products on a device type ("cpu" or "cuda") to Tessera, or back. Returns the former setting, as "off" or
 * "fp32 batch_invariant always". The first call registers kernels for aten::mm, addmm, bmm, baddbmm and, on CUDA,
 * attention. */
std::string switch_drop_in(c10::string_view device, bool on, c10::string_view precision, bool always);

/* Products that reached the drop-in while it was on and were left to torch, a line for each reason: "dtype 17". */
std::vector<std::string> products_passed();

void forget_counts();

} // namespace tessera
