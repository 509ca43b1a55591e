"""tessera::attention for torch's compiler and for vmap: shapes of its results, and mapped dimensions as more batch."""

from __future__ import annotations

from typing import Optional, Sequence

import torch

_ops = torch.ops.tessera

LSE_ALIGNMENT = 32  # log_sumexp has so many rows, or a multiple

# ---- Shapes ---------------------------------------------------------------------------------------------------------


def _empty_like_torch(tensor: torch.Tensor) -> torch.Tensor:
    """As the kernels allocate results: (batch, length, heads, dim) in memory."""
    batch, heads, length, dim = tensor.shape
    return tensor.new_empty((batch, length, heads, dim)).transpose(1, 2)


def _attention_shapes(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
    batch, heads, queries, _ = query.shape
    rows = (queries + LSE_ALIGNMENT - 1) // LSE_ALIGNMENT * LSE_ALIGNMENT if compute_log_sumexp else 0
    seed, offset = (query.new_empty((), dtype=torch.long, device="cpu") for _ in range(2))
    return _empty_like_torch(query), query.new_empty((batch, heads, rows)), seed, offset


def _gradient_shapes(grad_output, query, key, value, attn_bias, output, log_sumexp, philox_seed, philox_offset,
                     dropout_p, grad_input_mask: Sequence[bool], is_causal=False, *, scale=None):
    wanted = zip(grad_input_mask, (query, key, value))
    gradients = [_empty_like_torch(tensor) if is_wanted else None for is_wanted, tensor in wanted]
    bias: Optional[torch.Tensor] = None
    if grad_input_mask[3] and attn_bias is not None:
        *sizes, keys = attn_bias.shape
        bias = attn_bias.new_empty((*sizes, (keys + 15) // 16 * 16))[..., :keys]
    return (*gradients, bias)


# ---- vmap -----------------------------------------------------------------------------------------------------------

def _joined(tensor: Optional[torch.Tensor], dim: Optional[int], size: int) -> Optional[torch.Tensor]:
    """The mapped dimension becomes the outer part of the batch."""
    if tensor is None:
        return None
    if dim is None:
        tensor = tensor.unsqueeze(0).expand(size, *tensor.shape)
    else:
        tensor = tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)


def _separate(tensor: Optional[torch.Tensor], size: int) -> Optional[torch.Tensor]:
    return None if tensor is None else tensor.unflatten(0, (size, tensor.shape[0] // size))


def _bias_of_batch(bias: Optional[torch.Tensor], dim: Optional[int], batch: int, size: int) -> Optional[torch.Tensor]:
    """A bias that all items share, mapped or not, is repeated for each of them, without a copy where it can be."""
    if bias is None:
        return None
    shared = bias.shape[0 if dim is None or dim > 0 else 1] == 1
    if shared and dim is None:
        return bias
    one = bias.unsqueeze(0) if dim is None else bias.movedim(dim, 0)
    return one.expand(size, batch, *one.shape[2:]).flatten(0, 1)


def _attention_vmap(info, in_dims, query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *,
                    scale=None):
    if dropout_p > 0 and info.randomness != "different":
        raise RuntimeError("vmap: attention with dropout drops other weights for each example; ask for that with "
                           "randomness='different'")
    size = info.batch_size
    operands = [_joined(tensor, dim, size) for tensor, dim in zip((query, key, value), in_dims)]
    bias = _bias_of_batch(attn_bias, in_dims[3], operands[0].shape[0] // size, size)
    output, sums, *state = _ops.attention(*operands, bias, compute_log_sumexp, dropout_p, is_causal, scale=scale)
    return (_separate(output, size), _separate(sums, size), *state), (0, 0, None, None)


def _gradients_vmap(info, in_dims, grad_output, query, key, value, attn_bias, output, log_sumexp, philox_seed,
                    philox_offset, dropout_p, grad_input_mask, is_causal=False, *, scale=None):
    size = info.batch_size
    joined = [_joined(tensor, dim, size) for tensor, dim in zip((grad_output, query, key, value), in_dims)]
    results = [_joined(tensor, dim, size) for tensor, dim in zip((output, log_sumexp), in_dims[5:])]
    bias = _bias_of_batch(attn_bias, in_dims[4], joined[0].shape[0] // size, size)
    if bias is not None and grad_input_mask[3]:
        raise RuntimeError("vmap: tessera's attention has no gradient of a mapped mask")
    gradients = _ops.attention_backward(*joined, bias, *results, philox_seed, philox_offset, dropout_p, grad_input_mask,
                                        is_causal, scale=scale)
    return tuple(_separate(gradient, size) for gradient in gradients), tuple(
        None if gradient is None else 0 for gradient in gradients)


# ---- Registration ---------------------------------------------------------------------------------------------------

def register() -> None:
    """With what this torch has of it."""
    fake = getattr(torch.library, "register_fake", None) or getattr(torch.library, "impl_abstract", None)
    if fake:
        fake("tessera::attention", _attention_shapes)
        fake("tessera::attention_backward", _gradient_shapes)
    if hasattr(torch.library, "register_vmap"):
        torch.library.register_vmap("tessera::attention", _attention_vmap)
        torch.library.register_vmap("tessera::attention_backward", _gradients_vmap)
