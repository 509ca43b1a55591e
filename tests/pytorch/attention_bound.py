"""Attention and its gradients in float64, written out, with the error that float32 may make in each element.

u = 2^-24 is one rounding. A score s = scale * q k + mask errs by at most e = (dim + 8) u S, where S is the row's
largest |scale| |q| |k| + |mask|: the product's bound, the mask, and the subtraction of the row's maximum, at most 2 S.
Weights p = exp(s - lse) then err by the factor 1 +- w, w = 2 e + (keys + 16) u: both exponents, the sum of `keys` of
them, and sixteen roundings for exp, log, the division and dropout's factor. Everything after that is products and sums
of these, whose errors add up as written below."""

import math
from typing import NamedTuple

import torch

UNIT = 2.0**-24


class Expected(NamedTuple):
    """Values and, in the same order, bounds of output and gradients by query, key and value."""
    values: list
    bounds: list
    weights: torch.Tensor  # before dropout


def repeated(tensor, heads):
    """Key-value heads as often as query heads share them."""
    shared = 1 if tensor.dim() < 3 or tensor.shape[-3] == 1 else heads // tensor.shape[-3]
    return tensor.repeat_interleave(shared, -3) if shared > 1 else tensor


def summed(gradient, bound, tensor):
    """The gradient of a tensor that was repeated or broadcast, and its bound: with one rounding more for each term."""
    terms = gradient.numel() // tensor.numel()
    bound = bound + (terms - 1) * UNIT * gradient.abs()
    heads = tensor.shape[-3] if tensor.dim() > 2 else 1
    if heads not in (1, gradient.shape[-3] if gradient.dim() > 2 else 1):
        gradient, bound = (each.unflatten(-3, (heads, -1)).sum(-3) for each in (gradient, bound))
    return gradient.sum_to_size(tensor.shape), bound.sum_to_size(tensor.shape)


def expected(query, key, value, mask=None, is_causal=False, scale=None, gradient=None, kept=None):
    """kept: the factor of each weight under dropout, 0 or 1 / (1 - p)."""
    q, k, v = (tensor.detach().double() for tensor in (query, key, value))
    heads, (queries, dim), keys = q.shape[-3] if q.dim() > 2 else 1, q.shape[-2:], k.shape[-2]
    k, v = repeated(k, heads), repeated(v, heads)
    scale = 1 / math.sqrt(dim) if scale is None else scale
    scores = scale * (q @ k.transpose(-2, -1))
    size = abs(scale) * (q.abs() @ k.abs().transpose(-2, -1))
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=torch.double, device=mask.device).masked_fill(
            ~mask, -math.inf) if mask.dtype == torch.bool else mask.detach().double()
        scores, size = scores + bias, size + torch.where(bias.isinf(), torch.zeros_like(bias), bias.abs())
    if is_causal:
        ones = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(~ones.tril(), -math.inf)
    sums = torch.logsumexp(scores, -1, keepdim=True)
    weights = torch.exp(scores - sums.masked_fill(sums == -math.inf, math.inf))
    factor = 2 * (dim + 8) * UNIT * size.amax(-1, keepdim=True) + (keys + 16) * UNIT
    kept = torch.ones_like(weights) if kept is None else kept.double()
    dropped = weights * kept
    output = dropped @ v
    output_bound = factor * (dropped @ v.abs())
    if gradient is None:
        return Expected([output], [output_bound], weights)
    g = gradient.detach().double()
    grad_value = dropped.transpose(-2, -1) @ g
    value_bound = (dropped * (factor + queries * UNIT)).transpose(-2, -1) @ g.abs()
    by_weights, by_weights_size = g @ v.transpose(-2, -1), g.abs() @ v.abs().transpose(-2, -1)
    delta, delta_size = (g * output).sum(-1, keepdim=True), (g * output).abs().sum(-1, keepdim=True)
    by_scores = dropped * by_weights - weights * delta
    delta_bound = (dim + 4) * UNIT * delta_size + (g.abs() * output_bound).sum(-1, keepdim=True)
    scores_bound = (dropped * (factor * by_weights.abs() + (dim + 4) * UNIT * by_weights_size) + weights *
                    (factor * delta.abs() + delta_bound))
    grad_query, grad_key = scale * (by_scores @ k), scale * (by_scores.transpose(-2, -1) @ q)
    query_bound = abs(scale) * ((scores_bound + (keys + 4) * UNIT * by_scores.abs()) @ k.abs())
    key_bound = abs(scale) * ((scores_bound + (queries + 4) * UNIT * by_scores.abs()).transpose(-2, -1) @ q.abs())
    gradients = [summed(*each) for each in ((grad_query, query_bound, query), (grad_key, key_bound, key),
                                            (grad_value, value_bound, value))]
    return Expected([output, *(value for value, _ in gradients)], [output_bound, *(bound for _, bound in gradients)],
                    weights)


def assert_attention(found, of):
    """Each of the values found lies within its bound."""
    for name, value, exact, bound in zip(("output", "gradient by query", "gradient by key", "gradient by value"), found,
                                         of.values, of.bounds):
        assert value.shape == exact.shape, name
        excess = (value.detach().double() - exact).abs() - bound
        assert excess.le(1e-40).all(), f"{name}: {excess.max().item()} above the bound"
