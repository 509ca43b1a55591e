/* gemm.h: tessera::gemm, the operator that all others are made of, through torch's dispatcher. */
#pragma once

#include "product.h"

namespace tessera {

using PackedPointer = c10::intrusive_ptr<Packed>;

/* beta * input + alpha * a @ b for a (..., m, k) and b (..., k, n) with the same leading sizes; input broadcasts. */
at::Tensor gemm(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                const at::Scalar &alpha, c10::string_view precision);

/* The same, written to `out`. */
void gemm_out(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
              const at::Scalar &alpha, c10::string_view precision, const at::Tensor &out);

/* The same, with a (left) or b a view of a packed matrix. */
at::Tensor gemm_packed(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                       const PackedPointer &packed, bool left, const at::Scalar &beta, const at::Scalar &alpha,
                       c10::string_view precision);

/* Refuses a tensor whose type Tessera does not multiply; `name` is the argument's. */
void check_dtype(const char *name, const at::Tensor &tensor);

/* ---- Kernels, for operators.cpp to register at the dispatch keys they are for ------------------------------------ */

at::Tensor gemm_kernel(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                       const at::Scalar &alpha, c10::string_view precision);
void gemm_out_kernel(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                     const at::Scalar &alpha, c10::string_view precision, at::Tensor out);
at::Tensor gemm_packed_kernel(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                              const PackedPointer &packed, bool left, const at::Scalar &beta, const at::Scalar &alpha,
                              c10::string_view precision);
at::Tensor gemm_meta(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &,
                     const at::Scalar &, c10::string_view precision);
void gemm_out_meta(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                   const at::Scalar &alpha, c10::string_view precision, at::Tensor out);
at::Tensor gemm_autograd(c10::DispatchKeySet keys, const OptionalTensor &input, const at::Tensor &a,
                         const at::Tensor &b, const at::Scalar &beta, const at::Scalar &alpha,
                         c10::string_view precision);
at::Tensor gemm_packed_autograd(c10::DispatchKeySet keys, const OptionalTensor &input, const at::Tensor &a,
                                const at::Tensor &b, const PackedPointer &packed, bool left, const at::Scalar &beta,
                                const at::Scalar &alpha, c10::string_view precision);
void gemm_out_autograd(c10::DispatchKeySet keys, const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                       const at::Scalar &beta, const at::Scalar &alpha, c10::string_view precision, at::Tensor out);
void gemm_out_version(c10::DispatchKeySet keys, const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                      const at::Scalar &beta, const at::Scalar &alpha, c10::string_view precision, at::Tensor out);
at::Tensor gemm_autocast(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                         const at::Scalar &alpha, c10::string_view precision);
at::Tensor gemm_packed_autocast(const OptionalTensor &input, const at::Tensor &a, const at::Tensor &b,
                                const PackedPointer &packed, bool left, const at::Scalar &beta, const at::Scalar &alpha,
                                c10::string_view precision);

} // namespace tessera
