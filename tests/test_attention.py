"""Attention and its gradients: within the contract on every engine, for every shape, stride and mask; special values,
dropout. test_attention_calls.py has the rest."""

import itertools

import numpy as np
import pytest

import binding
import layouts
from attention import Attention, Exact, assert_within, check_all, data, dropout_numbers, normal, uniform
from engine import bits
from layouts import LAYOUTS, filled
from reference import integers, powers_of_two

LOWEST = np.float32(-3.4028235e38)  # what transformers' masks have in place of -Inf
LENGTHS = (1, 7, 63, 64, 65, 127, 129, 197, 300)
DIMS = (1, 16, 40, 64, 80, 96, 128, 200, 256)


# ---- The contract ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("family", ["uniform", "normal", "large"])
def test_bound(attending, rng, family, causal):
    q, k, v, grad_o = data(rng, 1, 4, 2, 150, 197, 64, uniform if family == "uniform" else normal)
    if family == "large":
        q *= np.float32(30)
    check_all(attending, Attention(q, k, v, causal=causal), grad_o)


@pytest.mark.parametrize("family", ["uniform", "normal", "large"])
def test_error_is_that_of_float32(attending, rng, family):
    """Worst cases are far from what happens: in the norm, no more than twice the error of plain float32 arithmetic,
    with the same formulas."""
    q, k, v, grad_o = data(rng, 1, 2, 2, 300, 300, 64, uniform if family == "uniform" else normal)
    if family == "large":
        q *= np.float32(10)
    a = Attention(q, k, v)
    exact = Exact(a, grad_o)
    o, lse = a.forward(attending)
    grads = a.backward(attending, o, lse, grad_o)

    t = np.float32(a.scale) * (q @ np.swapaxes(k, -1, -2))
    p = np.exp(t - t.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    plain_o = p @ v
    dp = grad_o @ np.swapaxes(v, -1, -2)
    ds = p * (dp - (grad_o * plain_o).sum(axis=-1, keepdims=True)) * np.float32(a.scale)
    plain_grads = ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ grad_o
    for name, mine, plain in zip(("o", "grad_q", "grad_k", "grad_v"), (o, *grads), (plain_o, *plain_grads)):
        true = getattr(exact, name)[0]
        assert np.linalg.norm(mine - true) <= 2 * np.linalg.norm(plain - true), name


@pytest.mark.sanitizer
@pytest.mark.parametrize("queries, keys", [*zip(LENGTHS, LENGTHS), (1, 300), (300, 1), (7, 129), (129, 7), (64, 197),
                                           (197, 64), (65, 63), (300, 127)])
def test_lengths(attending, rng, queries, keys):
    q, k, v, grad_o = data(rng, 1, 2, 1, queries, keys, 24)
    for causal in (False, True):
        check_all(attending, Attention(q, k, v, causal=causal), grad_o)


@pytest.mark.parametrize("dim", DIMS)
def test_dims(attending, rng, dim):
    q, k, v, grad_o = data(rng, 1, 2, 2, 65, 130, dim)
    check_all(attending, Attention(q, k, v, mask=normal(rng, 1, 2, 65, 130)), grad_o)


@pytest.mark.parametrize("dim", [132, 192, 256])
def test_wide_heads(attending, rng, dim):
    q, k, v, grad_o = data(rng, 1, 2, 1, 150, 300, dim)
    for causal in (False, True):
        check_all(attending, Attention(q, k, v, causal=causal), grad_o)
    k *= powers_of_two(rng, -40, 0, 1, 1, 300, 1)  # rows of some tiles are too small to be split
    k[:, :, :128] = v[:, :, :128]
    check_all(attending, Attention(q, k, v), grad_o)


@pytest.mark.parametrize("heads, kv_heads", [(1, 1), (6, 1), (6, 2), (6, 3), (6, 6)])
def test_grouped_heads(attending, rng, heads, kv_heads):
    q, k, v, grad_o = data(rng, 2, heads, kv_heads, 20, 33, 16)
    check_all(attending, Attention(q, k, v, causal=True), grad_o)


@pytest.mark.parametrize("scale", [0.0, -0.0, -0.3, 1.0, 2.5])
def test_scales(attending, rng, scale):
    q, k, v, grad_o = data(rng, 1, 1, 1, 17, 70, 32)
    check_all(attending, Attention(q, k, v, scale=scale), grad_o)


@pytest.mark.sanitizer
def test_weights_that_are_exact(attending, rng):
    """Scores of zero make equal weights; of a power of two of keys, averages of integers are exact."""
    q, k, v = np.zeros((1, 2, 5, 8), np.float32), integers(rng, 1, 2, 64, 8), integers(rng, 1, 2, 64, 8)
    o, lse = Attention(q, k, v).forward(attending)
    assert np.array_equal(o, np.broadcast_to(v.astype(np.float64).mean(axis=2, keepdims=True), o.shape))
    assert_within("lse", lse, np.full(lse.shape, np.log(64)), 64 * 2.0**-24 * np.ones(lse.shape))


@pytest.mark.parametrize("spread", [20, 60])
@pytest.mark.parametrize("spoiled", ["q", "k", "v", "grad_o", "all"])
def test_rows_of_all_sizes(attending, rng, spoiled, spread):
    """Rows of one tile whose sizes differ by up to 2^spread, and so more than fp16 components carry."""
    arrays = dict(zip(("q", "k", "v", "grad_o"), data(rng, 1, 2, 2, 130, 140, 40)))
    for name in arrays if spoiled == "all" else [spoiled]:
        arrays[name] = arrays[name] * powers_of_two(rng, -spread, 0, *arrays[name].shape[:3], 1)
    grad_o = arrays.pop("grad_o")
    check_all(attending, Attention(**arrays), grad_o)


@pytest.mark.parametrize("spread", [20, 60])
def test_large_rows_of_values(attending, rng, spread):
    q, k, v, grad_o = data(rng, 1, 1, 1, 100, 100, 64)
    v *= powers_of_two(rng, -spread, spread, 1, 1, 100, 1)
    grad_o *= powers_of_two(rng, -spread // 2, spread // 2, 1, 1, 100, 1)
    check_all(attending, Attention(q, k, v), grad_o)


def test_columns_of_all_sizes(attending, rng):
    """Within rows, too: scores are sums of terms of like size."""
    q, k, v, grad_o = data(rng, 1, 1, 1, 64, 64, 64)
    grade = powers_of_two(rng, -10, 10, 64)
    check_all(attending, Attention(q * grade, k / grade, v * grade), grad_o)


# ---- Strides --------------------------------------------------------------------------------------------------------


def length_first(*shape):
    """(batch, length, heads, dim) in memory, as PyTorch's projections leave it."""
    return np.swapaxes(layouts.row_major(shape[0], shape[2], shape[1], shape[3]), 1, 2)


def backward_heads(*shape):
    return layouts.padded(*shape)[::-1, ::-1]


ALL_LAYOUTS = {**LAYOUTS, "length_first": length_first, "backward_heads": backward_heads}


@pytest.mark.sanitizer
@pytest.mark.parametrize("layout", ALL_LAYOUTS.values(), ids=ALL_LAYOUTS)
def test_strides(attending, rng, layout):
    q, k, v, grad_o = (filled(layout, x) for x in data(rng, 2, 4, 2, 19, 37, 24))
    mask = filled(layout, normal(rng, 2, 4, 19, 37))
    check_all(attending, Attention(q, k, v, mask=mask), grad_o, layout=layout)


def test_mixed_strides(attending, rng):
    """Each argument with strides of its own."""
    for shift in range(3):
        order = itertools.islice(itertools.cycle(ALL_LAYOUTS.values()), 3 * shift, 3 * shift + 4)
        q, k, v, grad_o = (filled(layout, x) for layout, x in zip(order, data(rng, 1, 2, 1, 40, 33, 20)))
        check_all(attending, Attention(q, k, v), grad_o)


@pytest.mark.parametrize("shape", [(1, 1, 30, 50), (2, 1, 1, 50), (1, 3, 1, 1), (2, 3, 30, 1), (1, 1, 1, 1)])
def test_broadcast_masks(attending, rng, shape):
    q, k, v, grad_o = data(rng, 2, 3, 3, 30, 50, 16)
    check_all(attending, Attention(q, k, v, mask=normal(rng, *shape)), grad_o)


def test_broadcast_operands(attending, rng):
    """Strides of 0: one query for all, one key and value for each head."""
    q = np.broadcast_to(normal(rng, 1, 2, 1, 16), (2, 2, 20, 16))
    k, v = (np.broadcast_to(normal(rng, 1, 1, 30, 16), (2, 2, 30, 16)) for _ in range(2))
    grad_o = np.broadcast_to(np.float32(1), q.shape).astype(np.float32)
    check_all(attending, Attention(q, k, v), grad_o)


def test_gradients_of_a_packed_projection(attending, rng):
    """q, k and v as slices of one tensor (batch, length, 3, heads, dim), and so are their gradients."""
    batch, heads, length, dim = 2, 2, 20, 16
    qkv = normal(rng, batch, length, 3, heads, dim)
    grads = np.full_like(qkv, np.nan)
    q, k, v = (np.swapaxes(qkv[:, :, n], 1, 2) for n in range(3))
    a, grad_o = Attention(q, k, v), normal(rng, batch, heads, length, dim)
    o, lse = a.forward(attending)
    slices = [np.swapaxes(grads[:, :, n], 1, 2) for n in range(3)]
    with attending.resident(qkv, o, lse, grad_o, changed=[grads]):
        heads_of = [binding.heads(binding.Heads, x, attending.address(x)) for x in (o, lse[..., None], grad_o)]
        results = [binding.heads(binding.HeadsResult, x, attending.address(x)) for x in slices]
        binding.attention_backward(attending.context, a.problem(attending),
                                   binding.AttentionGradients(*heads_of, *results))
    Exact(a, grad_o).check(grad_q=slices[0], grad_k=slices[1], grad_v=slices[2])


@pytest.mark.parametrize("wanted", ["q", "k", "v", "qk", "kv"])
def test_unwanted_gradients(attending, rng, wanted):
    q, k, v, grad_o = data(rng, 1, 2, 2, 40, 50, 16)
    a = Attention(q, k, v)
    o, lse = a.forward(attending)
    exact = Exact(a, grad_o)
    for name, grad in zip(wanted, a.backward(attending, o, lse, grad_o, wanted=wanted)):
        exact.check(**{f"grad_{name}": grad})


# ---- Masks and special values ---------------------------------------------------------------------------------------


def check_special(engine, a, grad_o):
    """NaN and infinities as torch's math path has them, but for keys that a causal query does not see, which do not
    count; finite results within the bound."""
    p, lse, _ = a.weights()
    with np.errstate(invalid="ignore", over="ignore"):
        k, v = a.repeated(a.k), a.repeated(a.v)
        o, dp = np.empty(a.q.shape), grad_o.astype(np.float64) @ np.swapaxes(v, -1, -2)
        grad_q = np.empty(a.q.shape)
        ds = np.empty(p.shape)
        for i in range(a.queries):
            seen = min(a.keys, i + 1) if a.causal else a.keys
            row = p[:, :, i, None, :seen]
            o[:, :, i] = (row @ v[:, :, :seen])[:, :, 0]
            dot = (grad_o[:, :, i] * o[:, :, i]).sum(axis=-1)[..., None]
            ds[:, :, i] = np.where(np.arange(a.keys) < seen, p[:, :, i] * (dp[:, :, i] - dot), 0)
            grad_q[:, :, i] = a.scale * (ds[:, :, i, None, :seen] @ k[:, :, :seen])[:, :, 0]
        grad_k, grad_v = np.empty(k.shape), np.empty(v.shape)
        for j in range(a.keys):
            first = min(j, a.queries) if a.causal else 0
            column = np.s_[:, :, None, first:, j]
            grad_k[:, :, j] = a.scale * (ds[column] @ a.q[:, :, first:].astype(np.float64))[:, :, 0]
            grad_v[:, :, j] = (p[column] @ grad_o[:, :, first:].astype(np.float64))[:, :, 0]
        grad_k, grad_v = a.summed(grad_k), a.summed(grad_v)
    mine_o, mine_lse = a.forward(engine)
    mine = mine_o, mine_lse, *a.backward(engine, mine_o, mine_lse, grad_o)
    finite = [np.where(np.isfinite(x), x, 0) for x in (a.q, a.k, a.v)]
    mask = a.mask if a.mask is None else np.where(a.mask < np.inf, a.mask, 0)
    bounds = Exact(Attention(*finite, mask=mask, scale=a.scale, causal=a.causal),
                   np.where(np.isfinite(grad_o), grad_o, 0))
    for name, result, true in zip(("o", "lse", "grad_q", "grad_k", "grad_v"), mine,
                                  (o, lse[..., 0], grad_q, grad_k, grad_v)):
        assert np.array_equal(np.isnan(result), np.isnan(true)), f"{name}: NaN in the wrong places"
        infinite = np.isinf(true)
        assert np.array_equal(result[infinite], true[infinite]), f"{name}: wrong infinities"
        allowed = np.nan_to_num(getattr(bounds, name)[1], nan=0)
        assert_within(name, result, true, np.where(np.isfinite(true), allowed, 0))
    return mine


@pytest.mark.sanitizer
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_masked_keys(attending, rng, causal):
    """Keys and whole rows masked by -Inf: weights of exactly 0, zeros and +Inf for rows that see nothing."""
    q, k, v, grad_o = data(rng, 1, 2, 2, 70, 150, 16)
    mask = np.where(rng.random((1, 2, 70, 150)) < 0.5, np.float32(-np.inf), normal(rng, 1, 2, 70, 150))
    mask[:, :, [0, 13, 69]] = -np.inf
    mask[:, :, :, 20] = -np.inf
    a = Attention(q, k, v, mask=mask, causal=causal)
    o, lse, grad_q, grad_k, grad_v = check_special(attending, a, grad_o)
    assert (o[:, :, [0, 13, 69]] == 0).all() and (lse[:, :, [0, 13, 69]] == np.inf).all()
    assert (grad_q[:, :, [0, 13, 69]] == 0).all()
    assert (grad_k[:, :, 20] == 0).all() and (grad_v[:, :, 20] == 0).all()


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_masks_that_are_not_finite(attending, rng, value, causal):
    """Also where causal hides keys in the same tile: these have no part in it."""
    q, k, v, grad_o = data(rng, 1, 1, 1, 20, 140, 16)
    mask = normal(rng, 1, 1, 20, 140)
    mask[0, 0, 3, 5] = mask[0, 0, 7, 139] = value
    mask[0, 0, 9] = value
    mask[0, 0, 11] = -np.inf
    mask[0, 0, 11, 130] = value
    o, lse, grad_q, grad_k, _ = check_special(attending, Attention(q, k, v, mask=mask, causal=causal), grad_o)
    rows = [9] if causal else [3, 7, 9, 11]  # row 11 sees nothing then
    assert np.isnan(o[0, 0, rows]).all() and np.isnan(o).sum() == len(rows) * 16
    assert np.isnan(lse).sum() == len(rows) and np.isnan(grad_q).sum() == len(rows) * 16
    assert np.isnan(grad_k).sum() == (10 if causal else 140) * 16


def test_lowest_finite_masks(attending, rng):
    """A mask of -3.4e38: weights of 0 beside other keys; a row masked so everywhere averages the values."""
    q, k, v, grad_o = data(rng, 1, 2, 2, 30, 150, 16)
    mask = np.where(rng.random((1, 2, 30, 150)) < 0.5, LOWEST, np.float32(0))
    mask[:, :, 4] = mask[:, :, 29] = LOWEST
    a = Attention(q, k, v, mask=mask)
    o, lse = a.forward(attending)
    grads = a.backward(attending, o, lse, grad_o)
    # The same with weights that float64 gets right: a row of equal scores has score 0 everywhere.
    mask = np.where(mask == LOWEST, -np.inf, 0).astype(np.float32)
    mask[:, :, [4, 29]] = 0
    q = q.copy()
    q[:, :, [4, 29]] = 0
    exact = Exact(Attention(q, k, v, mask=mask), grad_o)
    exact.check(o=o, grad_v=grads[2], grad_q=grads[0])
    assert (lse[:, :, [4, 29]] == LOWEST).all()


SPECIALS = [("q", np.nan), ("q", np.inf), ("k", np.nan), ("k", -np.inf), ("v", np.nan), ("v", np.inf),
            ("grad_o", np.nan), ("grad_o", np.inf)]


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("where, value", SPECIALS)
def test_special_values(attending, rng, where, value, causal):
    """One element that is not finite, in a block that causal queries see in part."""
    arrays = dict(zip(("q", "k", "v", "grad_o"), data(rng, 1, 1, 1, 150, 150, 8)))
    arrays[where][0, 0, 140, 3] = value
    grad_o = arrays.pop("grad_o")
    check_special(attending, Attention(**arrays, causal=causal), grad_o)


def test_keys_that_nobody_sees(attending, rng):
    """Queries whose O is NaN do not reach keys behind the last query."""
    q, k, v, grad_o = data(rng, 1, 1, 1, 150, 200, 8)
    v[0, 0, 5, 3] = np.nan
    grad_k = check_special(attending, Attention(q, k, v, causal=True), grad_o)[3]
    assert np.isnan(grad_k[0, 0, :150]).all() and (grad_k[0, 0, 150:] == 0).all()


def test_values_that_are_masked_but_not_finite(attending, rng):
    """0 * Inf is NaN, as in torch's math path: a mask multiplies by 0."""
    q, k, v, grad_o = data(rng, 1, 1, 1, 20, 30, 8)
    v[0, 0, 7, 2], v[0, 0, 9, 3] = np.nan, np.inf
    mask = np.zeros((1, 1, 1, 30), np.float32)
    mask[..., [7, 9]] = -np.inf
    o = check_special(attending, Attention(q, k, v, mask=mask), grad_o)[0]
    assert np.isnan(o[..., [2, 3]]).all() and np.isnan(o).sum() == 2 * 20


def test_scores_of_minus_infinity(attending):
    """From the data, not from a mask: they weigh as masked keys do."""
    q, k = np.full((1, 1, 2, 1), 3e38, np.float32), np.full((1, 1, 3, 1), -3e38, np.float32)
    k[0, 0, 0], q[0, 0, 1] = 1, 3e-38
    v = np.array([[[[1.0], [2.0], [4.0]]]], np.float32)
    o, lse = Attention(q, k, v, scale=1.0).forward(attending)
    assert o[0, 0, 0, 0] == 1 and np.isfinite(o).all() and np.isfinite(lse).all()
    k[0, 0, 0] = -1e38
    o, lse = Attention(q[:, :, :1], k, v, scale=1.0).forward(attending)
    assert o[0, 0, 0, 0] == 0 and lse[0, 0, 0] == np.inf


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_scales_that_are_not_finite(attending, rng, scale):
    q, k, v, _ = data(rng, 1, 1, 1, 3, 5, 8)
    assert np.isnan(Attention(q, k, v, scale=scale).forward(attending)[0]).all()


# ---- Dropout --------------------------------------------------------------------------------------------------------


@pytest.mark.sanitizer
@pytest.mark.parametrize("seed, offset", [(0, 0), (2**64 - 1, 5), (12345, 2**40 + 7)])
def test_dropped_weights(attending, seed, offset):
    """Scores of 0 and the identity for V show the weights: dropped are those that src/dropout.h says."""
    q, k = np.zeros((2, 3, 50, 64), np.float32), np.zeros((2, 3, 64, 64), np.float32)
    v = np.broadcast_to(np.eye(64, dtype=np.float32), (2, 3, 64, 64))
    a = Attention(q, k, v, dropout=0.5, seed=seed, offset=offset)
    o, _ = a.forward(attending)
    assert np.array_equal(o, a.keep() / 64)


def test_dropout_of_blocks(attending, rng):
    """The same numbers whichever block a weight is in; other probabilities."""
    q, k = np.zeros((1, 1, 300, 256), np.float32), np.zeros((1, 1, 256, 256), np.float32)
    v = np.eye(256, dtype=np.float32)[None, None]
    for probability in (0.1, 0.9, 2.0**-16, 65535 / 65536):
        a = Attention(q, k, v, dropout=probability, seed=7)
        o, _ = a.forward(attending)
        assert np.array_equal(o == 0, a.keep() == 0)
        Exact(a).check(o=o)


def test_dropout_of_none(attending, rng):
    """Less than half of 2^-16 is nothing."""
    q, k, v, _ = data(rng, 1, 1, 1, 33, 34, 16)
    plain, _ = Attention(q, k, v).forward(attending)
    dropped, _ = Attention(q, k, v, dropout=2.0**-18, seed=3).forward(attending)
    assert np.array_equal(bits(plain), bits(dropped))


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_gradients_with_dropout(attending, rng, causal):
    q, k, v, grad_o = data(rng, 2, 4, 2, 77, 140, 32)
    check_all(attending, Attention(q, k, v, causal=causal, dropout=0.2, seed=99, offset=1), grad_o)


def test_share_of_dropped_weights():
    """The generator itself: shares of a million weights, within five standard deviations, and no two heads alike."""
    numbers = dropout_numbers(1, 2, 4, 512, 512)
    for probability in (0.1, 0.5):
        dropped = numbers < round(probability * 65536)
        deviation = (probability * (1 - probability) / dropped.size)**0.5
        assert abs(dropped.mean() - probability) < 5 * deviation
        together = (dropped[0] & dropped[1]).mean()
        assert abs(together - probability**2) < 5 * (probability**2 / dropped[0].size)**0.5
