"""The componentwise bound of the contract against float64, on data made to break it."""

import numpy as np
import pytest

from layouts import filled, stepped
from properties import given, settings, st
from reference import FAMILIES, assert_componentwise, assert_tf32, normal, uniform

SHAPES = [(1, 1, 1), (5, 7, 2), (33, 65, 17), (64, 48, 256), (200, 100, 1000), (40, 30, 5000)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_families(accurate, family, shape):
    a, b = FAMILIES[family](np.random.default_rng(shape[2]), *shape)
    assert_componentwise(accurate.product(a, b), a, b)


@settings(max_examples=25)
@given(family=st.sampled_from(sorted(FAMILIES)), m=st.integers(1, 150), n=st.integers(1, 150), k=st.integers(1, 600),
       seed=st.integers(0, 2**32 - 1))
def test_random_shapes(accurate, family, m, n, k, seed):
    a, b = FAMILIES[family](np.random.default_rng(seed), m, n, k)
    assert_componentwise(accurate.product(a, b), a, b)


@pytest.mark.parametrize("k", [*range(1, 40), 64, 100, 128, 129, 300])
def test_few_terms(accurate, k):
    """Where K is small the bound is tightest: three roundings for a single product."""
    for family in FAMILIES.values():
        a, b = family(np.random.default_rng(k), 20, 40, k)
        assert_componentwise(accurate.product(a, b), a, b)


def test_one_huge_value_in_each_row(accurate, rng):
    """Beside a value 2^60 times larger, the others still count where the bound says so: against a zero."""
    a, b = normal(rng, 64, 64, 200)
    a[np.arange(64), rng.integers(0, 200, 64)] *= np.float32(2.0**60)
    b[rng.integers(0, 200, 20)] = 0
    b[:, 1] = (a[1] == np.abs(a[1]).max()) == 0
    assert_componentwise(accurate.product(a, b), a, b)
    assert_componentwise(accurate.product(b.T, a.T), b.T, a.T)


@pytest.mark.parametrize("scale", [-140, -130, -120, -100, -75, -70, -60])
def test_small_numbers(accurate, rng, scale):
    """Products in and below the subnormal range: the header's allowance, 2^-150 for each of K steps, and no more."""
    a, b = normal(rng, 30, 30, 50)
    small = np.ldexp(a, scale).astype(np.float32)
    assert_componentwise(accurate.product(small, b), small, b, underflow=True)
    assert_componentwise(accurate.product(b, small), b, small, underflow=True)
    halves = np.ldexp(a, scale // 2).astype(np.float32), np.ldexp(b, scale - scale // 2).astype(np.float32)
    assert_componentwise(accurate.product(*halves), *halves, underflow=True)


@pytest.mark.parametrize("family", [uniform, normal, FAMILIES["exponents_60"]], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", SHAPES[2:], ids=str)
def test_tf32_error(tf32, family, shape):
    a, b = family(np.random.default_rng(shape[2]), *shape)
    assert_tf32(tf32.product(a, b), a, b)


def test_tf32_error_with_some_large_elements(tf32, rng):
    a, b = normal(rng, 300, 260, 2000)
    a[::5, 700] *= np.float32(2.0**20)
    b[1300, ::7] *= np.float32(2.0**12)
    assert_tf32(tf32.product(a, b), a, b)


@pytest.mark.parametrize("alpha, beta", [(1, 1), (-1, 1), (1, -1), (0.3, 0), (-2.7, 0.7), (1e-3, 1e3), (1, 1e6)])
@pytest.mark.parametrize("k", [3, 100, 2000])
def test_scaled_and_added(accurate, rng, alpha, beta, k):
    alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    a, b = normal(rng, 45, 37, k)
    before = rng.standard_normal((45, 37), np.float32)
    c = filled(stepped, before)
    accurate.multiply(a, b, c, alpha, beta)
    assert_componentwise(c, a, b, alpha, beta, before)
