"""NaN, infinities, subnormals, zeros and the largest numbers: exactly where and what IEEE arithmetic makes them."""

import numpy as np
import pytest

from reference import assert_exact, assert_special_values, integers, product64

LARGEST = np.finfo(np.float32).max
TINY = np.float32(2.0**-149)
M, N, K = 70, 90, 130
POSITIONS = [(0, 0), (M - 1, K - 1), (0, K - 1), (M - 1, 0), (M // 2, K // 2), (M // 2, 0), (15, 63), (64, 64)]


def nonzero(rng, *shape):
    """Integers without zero, so that an infinity in the other operand makes no NaN by itself."""
    return (rng.integers(1, 9, shape) * rng.choice([-1, 1], shape)).astype(np.float32)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", POSITIONS, ids=str)
def test_one_special_value(engine, rng, value, position):
    """In A it shows in its whole row and nowhere else; in B in its whole column."""
    a, b = nonzero(rng, M, K), nonzero(rng, K, N)
    a[position] = value
    c = engine.product(a, b)
    assert_special_values(c, a, b)
    c = engine.product(b.T, a.T)
    assert_special_values(c, b.T, a.T)


@pytest.mark.sanitizer
def test_many_special_values(engine, rng):
    for share in (0.001, 0.01, 0.2):
        a, b = nonzero(rng, M, K), nonzero(rng, K, N)
        for x in (a, b):
            x[rng.random(x.shape) < share] = np.nan
            x[rng.random(x.shape) < share] = np.inf
            x[rng.random(x.shape) < share] = -np.inf
            x[rng.random(x.shape) < share] = 0
        assert_special_values(engine.product(a, b), a, b)


def test_infinity_times_zero_and_infinity_less_infinity(engine, rng):
    a, b = nonzero(rng, M, K), nonzero(rng, K, N)
    a[3, 5] = np.inf
    b[5, 7] = 0
    a[9, 1], a[9, 2] = np.inf, np.inf
    b[1], b[2] = 1, 1
    b[2, ::2] = -1
    c = engine.product(a, b)
    assert np.isnan(c[3, 7]) and np.isnan(c[9, 0]) and np.isposinf(c[9, 1])
    assert_special_values(c, a, b)


def test_identity_returns_every_float(accurate, rng):
    """X times the identity is X, for floats of every exponent, subnormals included: no bit may be lost."""
    x = rng.integers(0, 2**32, (64, 100), np.uint32).view(np.float32)
    x[~np.isfinite(x)] = 1
    x[0], x[1], x[2] = TINY, LARGEST, np.float32(2.0**-126)
    x[:, 0] = np.arange(64) * TINY
    for scale in (1.0, -1.0):
        identity = scale * np.eye(100, dtype=np.float32)
        assert np.array_equal(accurate.product(x, identity), scale * x)
        assert np.array_equal(accurate.product(identity, np.ascontiguousarray(x.T)), scale * x.T)


def test_subnormals_survive(accurate, rng):
    """Sums of subnormals are exact: they are integers times 2^-149."""
    whole = rng.integers(-50, 51, (40, 60))
    a = (whole * np.float64(TINY)).astype(np.float32)
    b = integers(rng, 60, 50)
    expected = whole @ b.astype(np.int64)
    assert np.array_equal(accurate.product(a, b).astype(np.float64) / TINY, expected)
    assert np.array_equal(accurate.product(b.T, a.T).astype(np.float64) / TINY, expected.T)


def test_a_subnormal_row_among_normal_ones(accurate, rng):
    a, b = integers(rng, 40, 60), integers(rng, 60, 50)
    a[17] *= TINY
    c = accurate.product(a, b)
    expected = product64(a, b)
    assert np.array_equal(c, expected)


def test_zeros(engine, rng):
    """Rows, columns and whole operands of zeros, of both signs."""
    a, b = integers(rng, M, K), integers(rng, K, N)
    a[::3], b[:, ::5] = 0, -0.0
    a[:, 40:50] = 0
    assert_exact(engine.product(a, b), a, b)
    assert (engine.product(np.zeros_like(a), b) == 0).all()
    assert (engine.product(a, np.zeros_like(b)) == 0).all()


def test_largest_numbers_do_not_overflow_early(accurate):
    """A sum whose every partial sum is finite must be finite, up to the largest float itself."""
    a, b = np.zeros((33, 64), np.float32), np.zeros((64, 40), np.float32)
    a[:, 10] = LARGEST
    b[10] = 1
    b[20] = 1
    a[5, 20] = -LARGEST
    expected = product64(a, b)
    assert np.array_equal(accurate.product(a, b), expected)
    assert np.array_equal(accurate.product(b.T, a.T), expected.T)
    b[10, 3] = 2
    assert np.isposinf(accurate.product(a, b)[0, 3])


def test_overflow_gives_infinity(engine, rng):
    a = np.full((20, 50), np.float32(2.0**70))
    b = np.full((50, 30), np.float32(2.0**70))
    a[3], b[:, 4] = -a[3], -b[:, 4]
    expected = product64(a, b)
    c = engine.product(a, b)
    assert np.isinf(c).all() and np.array_equal(np.sign(c), np.sign(expected))
