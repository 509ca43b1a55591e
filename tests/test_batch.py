"""Batches: strided, shared, interleaved, empty; each product equal to the same product alone."""

import numpy as np
import pytest

from layouts import LAYOUTS, assert_guards, filled, poisoned, row_major
from properties import given, settings, st
from reference import assert_componentwise, assert_exact, integers


def assert_each_exact(c, a, b, alpha=1, beta=0, before=None):
    for i in range(c.shape[0]):
        assert_exact(c[i], a[i], b[i], alpha, beta, None if before is None else before[i])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [1, pytest.param(2, marks=pytest.mark.sanitizer), 7])
def test_strided(engine, rng, batch, layout):
    a, b, before = integers(rng, batch, 21, 34), integers(rng, batch, 34, 19), integers(rng, batch, 21, 19)
    c = filled(LAYOUTS[layout], before)
    engine.multiply(filled(LAYOUTS[layout], a), filled(LAYOUTS[layout], b), c, 2.0, -1.0)
    assert_each_exact(c, a, b, 2, -1, before)
    assert_guards(c)


@pytest.mark.parametrize("shared", ["a", "b", "both"])
def test_shared_operand(engine, rng, shared):
    """A batch stride of zero: every product reads the same matrix."""
    a, b = integers(rng, 5, 40, 30), integers(rng, 5, 30, 50)
    if shared in ("a", "both"):
        a = np.broadcast_to(a[0], a.shape)
    if shared in ("b", "both"):
        b = np.broadcast_to(b[0], b.shape)
    c = row_major(5, 40, 50)
    engine.multiply(a, b, c)
    assert_each_exact(c, a, b)
    assert_guards(c)


def test_interleaved(engine, rng):
    """The batch as the innermost dimension of all three: a batch stride of one float."""
    batch, m, n, k = 6, 17, 23, 31
    a, b = integers(rng, m, k, batch).transpose(2, 0, 1), integers(rng, k, n, batch).transpose(2, 0, 1)
    c = poisoned(m, n, batch + 1)[..., :batch].transpose(2, 0, 1)
    engine.multiply(a, b, c)
    assert_each_exact(c, a, b)
    assert_guards(c)


def test_interleaved_rows(engine, rng):
    """Row i of every product side by side, as attention heads lie in (tokens, heads, width)."""
    a = integers(rng, 33, 4, 16).transpose(1, 0, 2)
    b = integers(rng, 29, 4, 16).transpose(1, 2, 0)
    c = poisoned(33, 4, 29).transpose(1, 0, 2)
    engine.multiply(a, b, c)
    assert_each_exact(c, a, b)


def test_backwards(engine, rng):
    """A negative batch stride runs through the batch from its end, in every matrix."""
    a, b = integers(rng, 4, 9, 8)[::-1], integers(rng, 4, 8, 7)[::-1]
    c = row_major(4, 9, 7)[::-1]
    engine.multiply(a, b, c)
    assert_each_exact(c, a, b)
    assert_guards(c)


@pytest.mark.parametrize("batch, m, n, k", [(0, 5, 5, 5), (3, 0, 5, 5), (3, 5, 0, 5), (3, 5, 5, 0)])
def test_empty(engine, rng, batch, m, n, k):
    c = row_major(batch, m, n)
    engine.multiply(integers(rng, batch, m, k), integers(rng, batch, k, n), c)
    assert (c == 0).all()
    assert_guards(c)


def test_many_small(engine, rng):
    a, b = integers(rng, 3000, 8, 8), integers(rng, 3000, 8, 8)
    c = row_major(3000, 8, 8)
    engine.multiply(a, b, c)
    assert np.array_equal(c, a.astype(np.float64) @ b)


@settings(max_examples=25)
@given(batch=st.integers(0, 9), m=st.integers(0, 90), n=st.integers(0, 90), k=st.integers(0, 90),
       layouts=st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 3), seed=st.integers(0, 2**32 - 1))
def test_random(engine, batch, m, n, k, layouts, seed):
    rng = np.random.default_rng(seed)
    a, b = integers(rng, batch, m, k), integers(rng, batch, k, n)
    of_a, of_b, of_c = (LAYOUTS[name] for name in layouts)
    c = of_c(batch, m, n)
    engine.multiply(filled(of_a, a), filled(of_b, b), c)
    assert_each_exact(c, a, b)
    assert_guards(c)


def test_bound_in_a_batch(accurate, rng):
    a, b = rng.standard_normal((4, 65, 200), np.float32), rng.standard_normal((4, 200, 33), np.float32)
    c = accurate.product(a, b)
    for i in range(4):
        assert_componentwise(c[i], a[i], b[i])
