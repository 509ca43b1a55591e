/* views.h: sizes of tensors as their type is in this torch: from 2.1 on torch.compile may leave them symbolic. */
#pragma once

#include <ATen/ExpandUtils.h>

#include "product.h"

namespace tessera {

#if TESSERA_TORCH_AT_LEAST(2, 1)
using Size = c10::SymInt;
using SizeVector = c10::SymDimVector;
using SizesRef = c10::SymIntArrayRef;
inline SizesRef sizes_of(const at::Tensor &tensor) { return tensor.sym_sizes(); }
inline Size size_of(const at::Tensor &tensor, int64_t dim) { return tensor.sym_size(dim); }
inline at::Tensor expanded(const at::Tensor &tensor, SizesRef sizes) { return tensor.expand_symint(sizes); }
inline SizeVector broadcast_sizes(SizesRef a, SizesRef b) { return at::infer_size_symdimvector(a, b); }
inline at::Tensor with_first_split(const at::Tensor &tensor, SizesRef sizes) {
    return tensor.unflatten_symint(0, sizes);
}
#else
using Size = int64_t;
using SizeVector = at::DimVector;
using SizesRef = at::IntArrayRef;
inline SizesRef sizes_of(const at::Tensor &tensor) { return tensor.sizes(); }
inline Size size_of(const at::Tensor &tensor, int64_t dim) { return tensor.size(dim); }
inline at::Tensor expanded(const at::Tensor &tensor, SizesRef sizes) { return tensor.expand(sizes); }
inline SizeVector broadcast_sizes(SizesRef a, SizesRef b) { return at::infer_size_dimvector(a, b); }
inline at::Tensor with_first_split(const at::Tensor &tensor, SizesRef sizes) {
    SizeVector all(sizes);
    for (int64_t d = 1; d < tensor.dim(); d++) all.push_back(tensor.size(d));
    return tensor.view(all);
}
#endif

/* The sizes in front of the last `last`. */
inline SizesRef leading_sizes(const at::Tensor &tensor, int64_t last) {
    return sizes_of(tensor).slice(0, static_cast<size_t>(tensor.dim() - last));
}

/* The tensor with its sizes in front of the last `last` expanded to these. */
inline at::Tensor expand_leading(const at::Tensor &tensor, SizesRef leading, int64_t last) {
    SizeVector sizes(leading.begin(), leading.end());
    for (int64_t d = -last; d < 0; d++) sizes.push_back(size_of(tensor, d));
    return expanded(tensor, sizes);
}

} // namespace tessera
