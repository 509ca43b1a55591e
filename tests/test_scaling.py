"""alpha and beta: their special values, and what must not be read."""

import itertools

import numpy as np
import pytest

from layouts import LAYOUTS, POISON, filled, multiply_exactly
from reference import assert_exact, integers

FACTORS = [0.0, 1.0, -1.0, 2.0, -0.5, 3.0]


@pytest.mark.parametrize("shape", [(1, 1, 1), (19, 35, 7), (70, 66, 600)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_factors(engine, rng, layout, shape):
    m, n, k = shape
    a, b, before = integers(rng, m, k), integers(rng, k, n), integers(rng, m, n)
    for alpha, beta in itertools.product(FACTORS, repeat=2):
        c = LAYOUTS[layout](m, n)
        if beta:
            c[...] = before
        multiply_exactly(engine, a, b, c, alpha, beta)


@pytest.mark.parametrize("alpha", [1.0, 0.0, -1.0, 2.5])
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_beta_zero_does_not_read_c(engine, rng, garbage, alpha):
    a, b = integers(rng, 33, 700), integers(rng, 700, 50)
    c = np.full((33, 50), garbage, np.float32)
    engine.multiply(a, b, c, alpha, 0.0)
    assert_exact(c, a, b, alpha)


@pytest.mark.parametrize("beta", [1.0, 0.0, -1.0, 2.5])
@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_alpha_zero_does_not_read_a_or_b(engine, rng, garbage, beta):
    a, b = np.full((33, 70), garbage, np.float32), np.full((70, 50), garbage, np.float32)
    before = integers(rng, 33, 50)
    c = before.copy() if beta else np.full((33, 50), np.nan, np.float32)
    engine.multiply(a, b, c, 0.0, beta)
    assert np.array_equal(c, beta * before)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_negative_zero_counts_as_zero(engine, rng, zero):
    a, b = integers(rng, 9, 8), integers(rng, 8, 7)
    c = np.full((9, 7), POISON, np.float32)
    engine.multiply(a, b, c, 1.0, zero)
    assert_exact(c, a, b)
    engine.multiply(np.full_like(a, np.nan), b, c, zero, 0.0)
    assert (c == 0).all()


def test_nan_in_c_stays_with_its_element(engine, rng):
    a, b, before = integers(rng, 40, 30), integers(rng, 30, 50), integers(rng, 40, 50)
    before[3, 7], before[20, 0], before[39, 49] = np.nan, np.inf, -np.inf
    c = filled(LAYOUTS["padded"], before)
    engine.multiply(a, b, c, 1.0, 1.0)
    special = ~np.isfinite(before)
    assert np.array_equal(c[special], before[special], equal_nan=True)
    expected = a.astype(np.float64) @ b + np.where(special, 0, before)
    assert np.array_equal(c[~special], expected[~special])


@pytest.mark.parametrize("alpha, beta", [(np.nan, 1.0), (1.0, np.nan), (np.inf, 0.0), (1.0, np.inf), (-np.inf, 1.0)])
def test_factors_that_are_not_finite(engine, rng, alpha, beta):
    """alpha*(AB) + beta*C as IEEE computes it: a NaN factor makes all of C NaN, an infinite one infinities and NaN."""
    a, b, before = integers(rng, 12, 9), integers(rng, 9, 20), integers(rng, 12, 20)
    c = before.copy()
    engine.multiply(a, b, c, alpha, beta)
    with np.errstate(invalid="ignore"):
        expected = np.float32(alpha) * (a @ b) + (np.float32(beta) * before if beta != 0 else np.float32(0))
    assert np.array_equal(c, expected, equal_nan=True)
