/* drop_in.h: torch's own float32 products on Tessera. */
#pragma once

#include <string>
#include <vector>

#include "product.h"

namespace tessera {

/* Switches products on a device type ("cpu" or "cuda") to Tessera, or back. Returns the former setting: "off", "fp32"
 * or "fp32 always". The first call registers kernels for aten::mm, addmm, bmm and baddbmm. */
std::string switch_drop_in(c10::string_view device, bool on, c10::string_view precision, bool always);

/* Products that reached the drop-in while it was on and were left to torch, a line for each reason: "dtype 17". */
std::vector<std::string> products_passed();

void forget_counts();

} // namespace tessera
