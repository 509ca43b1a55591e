"""Attention and its gradients in float64, and the contract's bound of each element: docs/internals/numerics.md,
Attention, whose names these are."""

import math
from typing import NamedTuple

import torch

UNIT = 2.0**-24


class Expected(NamedTuple):
    """Values and, in the same order, bounds of output and gradients by query, key and value; and both of the gradient
    by the scores, computed from weights that an engine wrote out."""
    values: list
    bounds: list
    by_scores: tuple = ()


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


def t(tensor):
    return tensor.transpose(-2, -1)


def largest(tensor):
    return tensor.abs().amax(-1, keepdim=True)


def product_error(x, y):
    """e(x, y)."""
    dim = x.shape[-1]
    return (dim + 16) * UNIT * (x.abs() @ t(y.abs())) + dim * 2.0**-25 * largest(x) * t(largest(y))


def scores_of(q, k, mask, is_causal, scale):
    scores = scale * (q @ t(k))
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask.detach().double()
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
    return scores


def expected(query, key, value, mask=None, is_causal=False, scale=None, gradient=None, kept=None):
    """kept: the factor of each weight under dropout, 0 or 1 / (1 - p)."""
    q, k, v = (tensor.detach().double() for tensor in (query, key, value))
    heads, dim, keys = q.shape[-3] if q.dim() > 2 else 1, q.shape[-1], k.shape[-2]
    k, v = repeated(k, heads), repeated(v, heads)
    scale = torch.tensor(1 / math.sqrt(dim) if scale is None else scale).float().item()
    scores = scores_of(q, k, mask, is_causal, scale)
    sums = torch.logsumexp(scores, -1, keepdim=True)
    unseen = scores == -math.inf
    scores, sums = scores.masked_fill(unseen, 0), sums.masked_fill(sums == -math.inf, 0)
    p = torch.exp(scores - sums).masked_fill(unseen, 0)
    z = torch.ones_like(p) if kept is None else kept.double()
    d = abs(scale) * product_error(q, k) + UNIT * (2 * scores.abs() + 2 * sums.abs() + 8)
    total = (p * d.exp()).sum(-1, keepdim=True)
    w = (p * (d.exp() * total * (1 + (2 * keys + 16) * UNIT) - 1) + 2.0**-38).masked_fill(unseen, 0)
    output = (z * p) @ v
    output_bound = (z * (w + (keys + 16) * UNIT * p)) @ v.abs() + 2.0**-25 * ((z * p) @ largest(v))
    if gradient is None:
        return Expected([output], [output_bound])

    g = gradient.detach().double()
    by_weights, delta = z * (g @ t(v)), (g * output).sum(-1, keepdim=True)
    f = (g.abs() * output_bound).sum(-1, keepdim=True) + (dim + 16) * UNIT * (g * output).abs().sum(-1, keepdim=True)
    ds = p * (by_weights - delta)
    ds_bound = w * (by_weights - delta).abs() + (p + w) * (z * product_error(g, v) + f + 4 * UNIT *
                                                           (by_weights.abs() + delta.abs()))
    n = q.shape[-2] * heads // (key.shape[-3] if key.dim() > 2 else heads)
    columns = (z * p).amax(-2, keepdim=True)
    value_bound = (t(z * (w + (n + 16) * UNIT * p)) @ g.abs() + 2.0**-25 * (t(z * p) @ largest(g)) +
                   2.0**-26 * t(columns) * g.abs().sum(-2, keepdim=True))
    by_rows = ds_bound + (keys + 16) * UNIT * ds.abs() + 2.0**-26 * ds.abs().amax(-1, keepdim=True)
    by_columns = ds_bound + (n + 16) * UNIT * ds.abs() + 2.0**-26 * ds.abs().amax(-2, keepdim=True)
    query_bound = abs(scale) * (by_rows @ k.abs() + 2.0**-25 * (ds.abs() @ largest(k)))
    key_bound = abs(scale) * (t(by_columns) @ q.abs() + 2.0**-25 * (t(ds.abs()) @ largest(q)))
    gradients = [summed(scale * (ds @ k), query_bound, query), summed(scale * (t(ds) @ q), key_bound, key),
                 summed(t(z * p) @ g, value_bound, value)]
    written = w + ((keys + 16) * UNIT + 2.0**-25) * p  # weights as outputs: the values are 1 and 0
    written_bound = written * (by_weights.abs() + delta.abs()) + ds_bound
    return Expected([output, *(exact for exact, _ in gradients)], [output_bound, *(bound for _, bound in gradients)],
                    (ds, written_bound))


def assert_attention(found, of):
    """Each of the values found lies within its bound."""
    names = ("output", "gradient by query", "gradient by key", "gradient by value")
    for name, value, exact, bound in zip(names, found, of.values, of.bounds):
        assert value.shape == exact.shape, name
        excess = (value.detach().double() - exact).abs() - bound
        assert excess.le(0).all(), f"{name}: {excess.max().item()} above the bound"
