"""Attention on an engine under test, and what the contract (docs/internals/numerics.md) says its results may be."""

from dataclasses import dataclass

import numpy as np

import binding
from binding import Heads, HeadsResult
from layouts import assert_guards, row_major
from reference import UNIT


def uniform(rng, *shape):
    return rng.random(shape, np.float32)


def normal(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def data(rng, batch, heads, kv_heads, queries, keys, dim, family=normal):
    """q, k, v and grad_o."""
    return (family(rng, batch, heads, queries, dim), family(rng, batch, kv_heads, keys, dim),
            family(rng, batch, kv_heads, keys, dim), normal(rng, batch, heads, queries, dim))


@dataclass
class Attention:
    """One call's arguments. q is (batch, heads, queries, dim), k and v (batch, kv_heads, keys, dim); the mask is
    anything that can be broadcast to (batch, heads, queries, keys)."""
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    mask: np.ndarray = None
    scale: float = None
    causal: bool = False
    dropout: float = 0.0
    seed: int = 0
    offset: int = 0

    def __post_init__(self):
        self.batch, self.heads, self.queries, self.dim = self.q.shape
        self.kv_heads, self.keys = self.k.shape[1:3]
        if self.scale is None:
            self.scale = self.dim**-0.5
        self.scale = float(np.float32(self.scale))
        if self.mask is not None:
            self.mask = np.broadcast_to(self.mask, (self.batch, self.heads, self.queries, self.keys))

    def inputs(self):
        return [self.q, self.k, self.v] + ([] if self.mask is None else [self.mask])

    def problem(self, engine):
        def heads(view):
            return binding.heads(Heads, view, None if view is None else engine.address(view))

        return binding.AttentionProblem(self.batch, self.heads, self.kv_heads, self.queries, self.keys, self.dim,
                                        heads(self.q), heads(self.k), heads(self.v), heads(self.mask), self.scale,
                                        self.causal, self.dropout, self.seed, self.offset)

    def forward(self, engine, layout=row_major, context=None, launch=None):
        """O and lse, (batch, heads, queries), in new memory whose surroundings are checked."""
        o = layout(*self.q.shape)
        lse = layout(*self.q.shape[:3], 1)
        with engine.resident(*self.inputs(), changed=[o, lse]):
            results = [binding.heads(HeadsResult, view, engine.address(view)) for view in (o, lse)]
            binding.attention(context or engine.context, self.problem(engine), *results, launch)
        assert_guards(o)
        assert_guards(lse)
        return o, lse[..., 0]

    def backward(self, engine, o, lse, grad_o, layout=row_major, context=None, launch=None, wanted="qkv"):
        """grad_q, grad_k and grad_v, those that are wanted."""
        lse = lse[..., None]
        shapes = {"q": self.q.shape, "k": self.k.shape, "v": self.v.shape}
        grads = {name: layout(*shapes[name]) for name in wanted}
        with engine.resident(*self.inputs(), o, lse, grad_o, changed=list(grads.values())):
            operands = [binding.heads(Heads, view, engine.address(view)) for view in (o, lse, grad_o)]
            results = [binding.heads(HeadsResult, grads[name], engine.address(grads[name])) if name in grads
                       else HeadsResult() for name in "qkv"]
            gradients = binding.AttentionGradients(*operands, *results)
            binding.attention_backward(context or engine.context, self.problem(engine), gradients, launch)
        for grad in grads.values():
            assert_guards(grad)
        return [grads[name] for name in wanted]

    # What is computed, in float64. Key-value heads are repeated for the heads that share them.

    def repeated(self, x):
        return np.repeat(x.astype(np.float64), self.heads // self.kv_heads, axis=1)

    def summed(self, x):
        """The sum over the heads that share a key-value head."""
        return x.reshape(self.batch, self.kv_heads, -1, *x.shape[2:]).sum(axis=2)

    def seen(self):
        return np.tril(np.ones((self.queries, self.keys), bool)) if self.causal else np.ones((1, 1), bool)

    def scores(self):
        with np.errstate(invalid="ignore", over="ignore"):
            t = self.scale * (self.q.astype(np.float64) @ np.swapaxes(self.repeated(self.k), -1, -2))
            if self.mask is not None:
                t = t + self.mask
        return np.where(self.seen(), t, -np.inf)

    def weights(self):
        """The weights before dropout, the log-sum-exps, and the scores. Weights of rows without keys are zeros."""
        t = self.scores()
        with np.errstate(invalid="ignore", divide="ignore"):
            largest = t.max(axis=-1, keepdims=True, initial=-np.inf)
            e = np.exp(t - np.where(largest == -np.inf, 0, largest))
            total = e.sum(axis=-1, keepdims=True)
            lse = np.where(total == 0, np.inf, largest + np.log(total))
            p = np.where(total == 0, 0, e / total)
        return np.where(self.seen(), p, 0), lse, t

    def keep(self):
        """What dropout multiplies the weights by."""
        limit = int(np.float32(self.dropout) * np.float32(65536) + np.float32(0.5))
        if not limit:
            return np.ones((1, 1, 1, 1))
        numbers = dropout_numbers(self.seed, self.offset, self.batch * self.heads, self.queries, self.keys)
        kept = np.float64(np.float32(65536) / np.float32(65536 - limit))
        return np.where(numbers < limit, 0, kept).reshape(self.batch, self.heads, self.queries, self.keys)


def dropout_numbers(seed, offset, heads, queries, keys):
    """The 16-bit numbers of weights (head, i, j), as src/dropout.h says: Philox4x32-7."""
    mixed = seed ^ (offset & 0xFFFFFFFF00000000)
    head, i, j = np.ogrid[:heads, :queries, :keys]
    shape = np.broadcast_shapes(head.shape, i.shape, j.shape)
    x = [np.broadcast_to(part, shape).astype(np.uint64) for part in
         (i // 16 * 8 + i % 8, j // 16 * 4 + j % 8 // 2, head, np.array(offset & 0xFFFFFFFF))]
    low = np.uint64(0xFFFFFFFF)
    keys_of_round = [mixed & 0xFFFFFFFF, mixed >> 32]
    for _ in range(7):
        p0, p1 = np.uint64(0xD2511F53) * x[0], np.uint64(0xCD9E8D57) * x[2]
        k0, k1 = (np.uint64(key) for key in keys_of_round)
        x = [p1 >> np.uint64(32) ^ x[1] ^ k0, p1 & low, p0 >> np.uint64(32) ^ x[3] ^ k1, p0 & low]
        keys_of_round = [(keys_of_round[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys_of_round[1] + 0xBB67AE85) & 0xFFFFFFFF]
    word = np.broadcast_to(2 * (i // 8 % 2) + j // 8 % 2, shape)
    chosen = np.choose(word, x)
    return np.where(j % 2 == 0, chosen & np.uint64(0xFFFF), chosen >> np.uint64(16)).astype(np.int64)


# ---- The contract ---------------------------------------------------------------------------------------------------

def row_largest(x):
    return np.abs(x).max(axis=-1, keepdims=True)


def transposed(x):
    return np.swapaxes(x, -1, -2)


class Exact:
    """The exact results of an attention, and how far an engine's may be from them: `o`, `lse` and, given grad_o,
    `grad_q`, `grad_k` and `grad_v`, each as a pair of value and bound."""

    def __init__(self, a, grad_o=None):
        split = 2.0**-25  # what a row of a split operand may lose beside its largest element
        p, lse, t = a.weights()
        z, scale = a.keep(), abs(a.scale)
        q, k, v = a.q.astype(np.float64), a.repeated(a.k), a.repeated(a.v)
        with np.errstate(invalid="ignore", over="ignore"):
            d = scale * self.product_error(a, q, k) + UNIT * (2 * np.abs(t) + 2 * np.abs(lse) + 8)
            grown = np.where(p > 0, np.exp(np.where(p > 0, d, 0)), 1)
            total = (p * grown).sum(axis=-1, keepdims=True)
            rho = np.where(p > 0, grown * np.maximum(total, 1) * (1 + (2 * a.keys + 16) * UNIT) - 1, 0)
        w = p * rho + np.where(t > -np.inf, 2.0**-38, 0)
        allowed = (z * (w + (a.keys + 16) * UNIT * p)) @ np.abs(v) + split * (z * p) @ row_largest(v)
        self.o = (z * p) @ v, allowed
        finite = np.where(np.isfinite(lse), lse, 0)
        allowed = np.log(np.maximum(total, 1)) + (a.keys + 16) * UNIT + 2 * UNIT * np.abs(finite)
        self.lse = lse[..., 0], allowed[..., 0]
        if grad_o is None:
            return
        g = grad_o.astype(np.float64)
        of_each = (a.heads // a.kv_heads) * a.queries  # terms of grad_k and grad_v
        dp, dot = z * (g @ transposed(v)), (g * self.o[0]).sum(axis=-1, keepdims=True)
        dp_error = z * self.product_error(a, g, v)
        dot_error = (np.abs(g) * self.o[1]).sum(axis=-1, keepdims=True) + (a.dim + 16) * UNIT * (
            np.abs(g) * np.abs(self.o[0])).sum(axis=-1, keepdims=True)
        ds = p * (dp - dot)
        ds_error = w * np.abs(dp - dot) + (p + w) * (dp_error + dot_error + 4 * UNIT * (np.abs(dp) + np.abs(dot)))

        def of(weights, error, rows, terms, across):
            """Sums of rows with weights that have an error."""
            lost = error + terms * UNIT * np.abs(weights) + split / 2 * np.abs(weights).max(axis=across, keepdims=True)
            weights = np.abs(weights)
            if across == -2:
                lost, weights = transposed(lost), transposed(weights)
            underflow = 2.0**-148 * terms * (1 + np.abs(rows).max(initial=0))
            return lost @ np.abs(rows) + split * weights @ row_largest(rows) + underflow

        self.grad_q = a.scale * ds @ k, scale * of(ds, ds_error, k, a.keys + 16, -1)
        self.grad_k = (a.summed(a.scale * transposed(ds) @ q),
                       a.summed(scale * of(ds, ds_error, q, of_each + 16, -2)))
        self.grad_v = a.summed(transposed(z * p) @ g), a.summed(of(z * p, z * w, g, of_each + 16, -2))

    @staticmethod
    def product_error(a, x, y):
        """Of x y^T, with terms along dim."""
        return ((a.dim + 16) * UNIT * np.abs(x) @ transposed(np.abs(y)) +
                a.dim * 2.0**-25 * row_largest(x) * transposed(row_largest(y)))

    def check(self, **results):
        for name, result in results.items():
            assert_within(name, result, *getattr(self, name))


def assert_within(name, result, exact, allowed):
    same = (result == exact) | (np.isnan(result) & np.isnan(exact))  # infinities among them
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0, np.abs(result.astype(np.float64) - exact))
    wrong = ~(error <= allowed)
    if wrong.any():
        at = np.unravel_index(np.argmax(np.where(wrong, np.nan_to_num(error / allowed, nan=np.inf), 0)), wrong.shape)
        raise AssertionError(
            f"{name}{list(map(int, at))} is {result[at]!r}, exactly {exact[at]!r}: off by {error[at]:.3g}, allowed "
            f"{allowed[at]:.3g} ({wrong.sum()} of {wrong.size} elements are outside the bound)")


def check_all(engine, a, grad_o, **options):
    """Both passes on an engine, within the contract; returns all results."""
    exact = Exact(a, grad_o)
    o, lse = a.forward(engine, **options)
    grad_q, grad_k, grad_v = a.backward(engine, o, lse, grad_o, **options)
    exact.check(o=o, lse=lse, grad_q=grad_q, grad_k=grad_k, grad_v=grad_v)
    return o, lse, grad_q, grad_k, grad_v
