"""Data to multiply, and what the contract of tessera.h says the result may be."""

import numpy as np

UNIT = 2.0**-24  # half a unit in the last place of 1


# ---- Data -----------------------------------------------------------------------------------------------------------

def integers(rng, *shape, largest=8):
    """Integer-valued: while every sum stays below 2^24, float32 arithmetic in any order is exact."""
    return rng.integers(-largest, largest + 1, shape).astype(np.float32)


def powers_of_two(rng, low, high, *shape):
    return np.ldexp(np.float32(1), rng.integers(low, high + 1, shape)).astype(np.float32)


def signed(rng, *shape):
    """Magnitudes in [1/2, 1), random signs."""
    return (rng.uniform(0.5, 1, shape) * rng.choice([-1, 1], shape)).astype(np.float32)


def uniform(rng, m, n, k):
    return rng.random((m, k), np.float32), rng.random((k, n), np.float32)


def normal(rng, m, n, k):
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


def exponents_20(rng, m, n, k):
    return (signed(rng, m, k) * powers_of_two(rng, -20, 20, m, k),
            signed(rng, k, n) * powers_of_two(rng, -20, 20, k, n))


def exponents_60(rng, m, n, k):
    return (signed(rng, m, k) * powers_of_two(rng, -60, 60, m, k),
            signed(rng, k, n) * powers_of_two(rng, -60, 60, k, n))


def balanced_grading(rng, m, n, k):
    """Column l of A times 2^e, row l of B times 2^-e: every product is near 1, while rows of A span 2^80."""
    grade = powers_of_two(rng, -40, 40, k)
    return signed(rng, m, k) * grade, signed(rng, k, n) / grade[:, None]


def graded_rows(rng, m, n, k):
    """Each row of A and each column of B of a size of its own."""
    return signed(rng, m, k) * powers_of_two(rng, -50, 50, m, 1), signed(rng, k, n) * powers_of_two(rng, -50, 50, 1, n)


def cancellation(rng, m, n, k):
    """The second half of the sum takes away all but a trace of the first."""
    half = k // 2
    a, b = signed(rng, m, k), signed(rng, k, n)
    a[:, half:2 * half] = -a[:, :half]
    b[half:2 * half] = b[:half] * (1 + signed(rng, half, n) * np.float32(2**-14))
    return a, b


FAMILIES = {family.__name__: family for family in
            (uniform, normal, exponents_20, exponents_60, balanced_grading, graded_rows, cancellation)}


# ---- What the result must be ----------------------------------------------------------------------------------------

def product64(a, b):
    with np.errstate(invalid="ignore", over="ignore"):
        return a.astype(np.float64) @ b.astype(np.float64)


def assert_exact(c, a, b, alpha=1, beta=0, c_before=None):
    expected = alpha * product64(a, b)
    if beta:
        expected = expected + beta * c_before.astype(np.float64)
    assert np.abs(expected).max(initial=0) < 2**24, "the test's own data are too large to be exact"
    if not np.array_equal(c, expected):
        wrong = np.argwhere(~(c == expected))
        at = tuple(wrong[0])
        raise AssertionError(
            f"{len(wrong)} of {c.size} elements are wrong; the first, {at}, is {c[at]}, not {expected[at]}")


def assert_componentwise(c, a, b, alpha=1, beta=0, c_before=None, underflow=False):
    """abs(C - AB) <= (K+2) 2^-24 (abs(A) abs(B)); with alpha and beta, two roundings more:
    (K+4) 2^-24 (abs(alpha) abs(A) abs(B) + abs(beta) abs(C)). underflow allows what the header allows: each of the K
    steps may lose 2^-150 where a product is below 2^-126."""
    k = a.shape[-1]
    exact, magnitude = alpha * product64(a, b), abs(alpha) * product64(np.abs(a), np.abs(b))
    if beta:
        exact, magnitude = exact + beta * c_before.astype(np.float64), magnitude + np.abs(
            beta * c_before.astype(np.float64))
    steps = k + 2 if alpha == 1 and beta == 0 else k + 4
    allowed = steps * UNIT * magnitude + k * 2.0**-53 * magnitude  # the last term is the reference's own error
    if underflow:
        allowed = allowed + k * 2.0**-150
    excess = np.abs(c.astype(np.float64) - exact) - allowed
    if not (excess <= 0).all():
        at = np.unravel_index(np.argmax(np.nan_to_num(excess, nan=np.inf)), c.shape)
        error = abs(float(c[at]) - exact[at])
        raise AssertionError(
            f"element {at} is {c[at]!r}, exactly {exact[at]!r}: off by {error:.3g}, allowed {allowed[at]:.3g}"
            f" ({(~(excess <= 0)).sum()} of {c.size} elements are outside the bound)")


def rounded_to_11_bits(x):
    """To the nearest float with 11 significant bits: what TF32 makes of an operand."""
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(fraction * 2**11) / 2**11, exponent)


def frobenius_error(c, exact):
    return np.linalg.norm(c - exact) / np.linalg.norm(exact)


def assert_tf32(c, a, b):
    """No further from the exact product than TF32 is: operands rounded to 11 bits, sums in float32."""
    exact = product64(a, b)
    model = frobenius_error(rounded_to_11_bits(a) @ rounded_to_11_bits(b), exact)
    sums = np.linalg.norm((a.shape[-1] + 2) * UNIT * product64(np.abs(a), np.abs(b))) / np.linalg.norm(exact)
    error = frobenius_error(c, exact)
    assert error <= 1.05 * model + sums, f"relative Frobenius error {error:.3g}; TF32's is {model:.3g} + {sums:.3g}"


def assert_special_values(c, a, b):
    """NaN exactly where IEEE puts it, infinities with their signs; the rest within the bound of the finite terms."""
    exact = product64(a, b)
    assert np.array_equal(np.isnan(c), np.isnan(exact)), "NaN in the wrong places"
    assert np.array_equal(np.isinf(c), np.isinf(exact)), "infinities in the wrong places"
    assert np.array_equal(np.sign(c[np.isinf(c)]), np.sign(exact[np.isinf(exact)])), "an infinity has the wrong sign"
    finite = np.isfinite(exact)
    with np.errstate(invalid="ignore"):
        allowed = (a.shape[-1] + 2) * UNIT * product64(np.abs(a), np.abs(b))
        assert (np.abs(c - exact)[finite] <= allowed[finite]).all(), "a finite element is outside the bound"
