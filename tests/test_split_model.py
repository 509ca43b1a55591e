"""The split arithmetic of the CUDA engine in NumPy, so that its numerics are tested without a GPU.

What pack.cu and the split kernels do to a row of A and a column of B: exponents, fp16 components (support/split.py),
sums in tensor cores that align and truncate, promotion into float32, the correction sum, scaling back. numerics.md
derives what must hold; here it is checked, over all significands where that is possible, and on families of data
elsewhere. Operands are rows of length k: B is seen transposed, as in the panels."""

from typing import NamedTuple

import numpy as np
import pytest

from reference import UNIT, powers_of_two, rounded_to_11_bits, signed
from split import (ALL_ZERO, EXPONENT_LIMIT, LARGEST_EXPONENT, LO_SHIFT, OVERFLOW, PACK_ROWS, PANEL_ROWS,
                   SAMPLE_EXPONENT, SPLIT_K, SPLIT_SUM_K, by_sample, carried_columns, components, depths, exponent_for,
                   fitting, power, scaled_by, tiny_counts)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN, infinities and overflows are among the data


def depth_limit(chip, k):
    """The largest product of the depths of two panels with which k terms keep the bound."""
    return (k - k / 32 - (76 if chip is AMPERE else 45)) / (16.1 + k / 800)


def least_per_tiny(chip, k):
    """How large a sum, before it is scaled back, must be for each tiny element behind it where the depths are beyond
    that."""
    lost = (94 if chip is AMPERE else 74) + k / 24
    return 5 * lost / (k + 2 - lost) if k + 2 > lost else np.inf


# ---- Tensor cores ---------------------------------------------------------------------------------------------------

class Adder(NamedTuple):
    """How a chip adds: `terms` products and the running sum at once, each cut to `fraction_bits` below the largest
    exponent among them, and the total cut to float32 (the studies are named in numerics.md)."""
    name: str
    terms: int
    fraction_bits: int


HOPPER, AMPERE = Adder("Hopper", 16, 25), Adder("Ampere", 8, 24)
NOTHING = -500  # the exponent of a zero: below those of all others


class Halves(NamedTuple):
    """fp16 numbers (..., row, k) and their exponents; a subnormal has -14, as tensor cores see it."""
    values: np.ndarray
    exponents: np.ndarray

    def at(self, k, count):
        return Halves(self.values[..., k:k + count], self.exponents[..., k:k + count])


def halves_of(x):
    values = x.astype(np.float64)
    return Halves(values, np.where(values == 0, NOTHING, np.maximum(np.frexp(values)[1] - 1, -14)))


def add_products(chip, total, a, b):
    """total[..., i, j] + the products of a's row i and b's row j."""
    for at in range(0, a.values.shape[-1], chip.terms):
        left, right = a.at(at, chip.terms), b.at(at, chip.terms)
        products = left.values[..., :, None, :] * right.values[..., None, :, :]
        largest = (left.exponents[..., :, None, :] + right.exponents[..., None, :, :]).max(axis=-1)
        largest = np.maximum(largest, np.where(total == 0, NOTHING, np.frexp(total)[1] - 1))
        unit = np.ldexp(1.0, np.maximum(largest, NOTHING) - chip.fraction_bits)
        aligned = np.trunc(products / unit[..., None]).sum(axis=-1) + np.trunc(total / unit)
        fraction, exponent = np.frexp(aligned)
        total = np.ldexp(np.trunc(np.ldexp(fraction, 24)), exponent - 24) * unit
    return total


# ---- One element of C -----------------------------------------------------------------------------------------------

class Split:
    """The rows of x (..., row, k), split."""

    def __init__(self, x):
        rows = x.reshape(-1, x.shape[-1])
        e = by_sample(rows)
        self.suspect = np.isinf(depths(rows, e).max(axis=1))  # what the sample's scale had no room for
        overflow = np.fmax.reduce(np.where(fitting(rows, e), 0, np.abs(rows)), axis=1)
        tiny = tiny_counts(rows, e)
        e = np.where(self.suspect & (overflow > 0), exponent_for(overflow, LARGEST_EXPONENT), e)
        shape = x.shape[:-1]
        self.exponents, self.depth = e.reshape(shape), depths(rows, e).max(axis=1).reshape(shape)
        self.tiny = (tiny + self.suspect * tiny_counts(rows, e)).reshape(shape)
        whole = np.where(np.isinf(self.depth)[..., None], 0, x).reshape(rows.shape).astype(np.float32)
        whole = np.pad(whole, [(0, 0), (0, -rows.shape[1] % SPLIT_K)])
        self.hi, self.lo = (halves_of(part.reshape(*shape, -1)) for part in components(whole, e))


def split_sums(chip, a, b, promote_every=1):
    """Before they are scaled back. promote_every: how many times SPLIT_SUM_K of k have their hi*hi sum stay in the
    tensor cores."""
    shape = (*a.depth.shape, b.depth.shape[-1])
    main, part_sum, correction = np.zeros(shape, np.float32), np.zeros(shape), np.zeros(shape)
    parts = a.hi.values.shape[-1] // SPLIT_SUM_K
    for part in range(parts):
        at = part * SPLIT_SUM_K
        part_sum = add_products(chip, part_sum, a.hi.at(at, SPLIT_SUM_K), b.hi.at(at, SPLIT_SUM_K))
        if (part + 1) % promote_every == 0 or part + 1 == parts:
            main, part_sum = main + part_sum.astype(np.float32), np.zeros(shape)
        for k in range(at, at + SPLIT_SUM_K, 16):  # an instruction of each kind in turn
            correction = add_products(chip, correction, a.hi.at(k, 16), b.lo.at(k, 16))
            correction = add_products(chip, correction, a.lo.at(k, 16), b.hi.at(k, 16))
    return (correction * 2.0**-LO_SHIFT + main).astype(np.float32)


def scaled_back(sums, a, b):
    e = a.exponents[..., :, None] + b.exponents[..., None, :]
    return sums * power(-(e // 2)) * power(e // 2 - e)


def product64(a, b):
    return a.astype(np.float64) @ np.swapaxes(b, -1, -2).astype(np.float64)


def multiply(chip, a, b, limit, least):
    """(which elements of C are left to the split kernels, error over bound of those): by the depths, `limit` being what
    they may multiply to, or because the sum is no less than `least` for each tiny element."""
    left, right = Split(a), Split(b)

    def pairs(of_a, of_b, combine):
        return combine(of_a[..., :, None], of_b[..., None, :])

    sums, depth = split_sums(chip, left, right), pairs(left.depth, right.depth, np.multiply)
    zero = pairs(left.exponents == ALL_ZERO, right.exponents == ALL_ZERO, np.logical_or)
    large = np.abs(sums) >= least * pairs(left.tiny, right.tiny, np.add)
    split = ~pairs(np.isinf(left.depth), np.isinf(right.depth), np.logical_or) & ((depth <= limit) | zero | large)
    c, exact = scaled_back(sums, left, right), product64(a, b)
    error = np.where(np.isinf(c) & (np.abs(exact) > LARGEST), 0, np.abs(c - exact))
    bound = (a.shape[-1] + 2) * UNIT * product64(np.abs(a), np.abs(b))
    return split, np.where(split & (error > 0), error / bound, 0)


# ---- The direct kernels ---------------------------------------------------------------------------------------------

HOPPER_TF32 = Adder("Hopper, tf32", 8, 25)
STAGE_K, DIRECT_SUM_K = 32, 16  # terms that are split together, and whose hi*hi tensor cores sum


def tf32_of(x):
    values = x.astype(np.float64)
    return Halves(values, np.where(values == 0, NOTHING, np.frexp(values)[1] - 1))


def tf32_components(x):
    """hi and lo, of which tensor cores read the upper 19 bits."""
    upper = np.uint32(0xffffe000)
    hi = ((x.view(np.uint32) + np.uint32(0x1000)) & upper).view(np.float32)
    return tf32_of(hi), tf32_of(((x - hi).view(np.uint32) & upper).view(np.float32))


def direct_product(a, b, wide, sum_k=DIRECT_SUM_K):
    """The sums of one warpgroup: each stage's, from zero, to a float32 sum. hi*hi of its first sum_k terms is added to
    the corrections, that of others is summed apart. Wide kernels add each of these sums to that of all, others their
    sum."""
    a, b = (np.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, -x.shape[-1] % STAGE_K)]) for x in (a, b))
    (a_hi, a_lo), (b_hi, b_lo) = tf32_components(a), tf32_components(b)
    total = np.zeros((*a.shape[:-1], b.shape[-2]), np.float32)
    for k in range(0, a.shape[-1], STAGE_K):
        zero = np.zeros(total.shape)
        part = add_products(HOPPER_TF32, zero, a_lo.at(k, STAGE_K), b_hi.at(k, STAGE_K))
        part = add_products(HOPPER_TF32, part, a_hi.at(k, STAGE_K), b_lo.at(k, STAGE_K))
        parts = [add_products(HOPPER_TF32, zero if i else part, a_hi.at(k + i, sum_k), b_hi.at(k + i, sum_k))
                 for i in range(0, STAGE_K, sum_k)]
        for part in parts if wide else [sum(part.astype(np.float32) for part in parts)]:
            total += part.astype(np.float32)
    return total


# ---- Data -----------------------------------------------------------------------------------------------------------

LARGEST = np.finfo(np.float32).max
ROWS = 8  # of A, and columns of B
ALL, ALL_FROM_128, NONE, AS_IT_COMES = "all", "all from k = 128", "none", "as it comes"


def both(make):
    return lambda rng, k: (make(rng, (ROWS, k)), make(rng, (ROWS, k)))


def uniform(rng, shape):
    return rng.random(shape, np.float32)


def normal(rng, shape):
    return rng.standard_normal(shape, np.float32)


def exponents(most):
    return lambda rng, shape: signed(rng, *shape) * powers_of_two(rng, -most, most, *shape)


def large_low_parts(rng, shape):
    """Above a multiple of hi's last bit by just less than half of it: the largest low parts there are, of one sign."""
    return (1 + 2.0**-9 * rng.integers(0, 4, shape) + float.fromhex("0x1.ffcp-12")).astype(np.float32)


def graded(most, rows=ROWS):
    def balanced(rng, k):
        grade = powers_of_two(rng, -most, most, k)
        return signed(rng, rows, k) * grade, signed(rng, rows, k) / grade

    return balanced


def cancellation(rng, k):
    a, b, half = signed(rng, ROWS, k), signed(rng, ROWS, k), k // 2
    a[:, half:2 * half] = -a[:, :half]
    b[:, half:2 * half] = b[:, :half] * (1 + signed(rng, ROWS, half) * np.float32(2**-14))
    return a, b


def one_huge_value(rng, k):
    """Each row has one value 2^20 times the others, which in half of the columns meets a zero."""
    a, b = both(normal)(rng, k)
    for row, at in enumerate(rng.integers(0, k, ROWS)):
        a[row, at] = 2**20
        b[row % 2::2, at] = 0
    return a, b


def unsampled_outliers(rng, k):
    """A value far above the others where no sample looks, beyond what the sample's scale leaves room for."""
    a, b = both(normal)(rng, k)
    a[:, 20] = 200
    return a, b


def far_scales(rng, k):
    """Rows near both ends of float32's range, whose products are ordinary."""
    a, b = both(uniform)(rng, k)
    return a * power(rng.choice([-98, -70, -5], (ROWS, 1))), b * power(rng.choice([0, 64, 90], (ROWS, 1)))


def zero_rows(rng, k):
    a, b = both(normal)(rng, k)
    a[:3], b[:3] = 0, -0.0
    return a, b


def zeros_sampled(rng, k):
    """Zeros where the sample looks, and elsewhere something, or something tiny."""
    a, b = both(normal)(rng, k)
    a[:, np.arange(k) != 20] = 0
    a[::2, 20] *= np.float32(2.0**-60)
    return a, b


def uneven_parts(rng, k):
    """A third of each row is far below the rest, as where the gradients of different things share a row."""
    a, b = both(normal)(rng, k)
    a[:, :k // 3] *= np.float32(2.0**-24)
    return a, b


def zeros_meet_tiny(rng, k):
    a, b = uneven_parts(rng, k)
    b[1::2] = 0
    return a, b


def at_random_places(values):
    def placed(rng, k):
        a, b = both(normal)(rng, k)
        a[np.arange(ROWS), rng.integers(0, k, ROWS)] = np.resize(np.float32(values), ROWS)
        return a, b

    return placed


def swallowed(rng, k):
    """In each block of k one large product and others that are just lost beside it."""
    first = np.arange(k) % SPLIT_K == 0
    row = np.where(first, 1, float.fromhex("0x1.ff8p-13")).astype(np.float32)
    return np.tile(row, (ROWS, 1)), np.tile(np.where(first, 1, row / 2).astype(np.float32), (ROWS, 1))


def tiny_meets_ordinary(rng, k):
    """Elements of A far below what sets their row's scale meet ordinary ones of B, and nothing else counts: the one
    large element meets a zero."""
    a, b = signed(rng, ROWS, k) * powers_of_two(rng, -52, -22, ROWS, 1), signed(rng, ROWS, k)
    a[:, 0], b[:, 0] = 1, 0
    return a, b


def tiny_beside_ordinary(rng, k):
    """The same, with the large element meeting a small one: how small decides which sums are still good."""
    a, b = tiny_meets_ordinary(rng, k)
    b[:, 0] = powers_of_two(rng, -40, 0, ROWS)
    return a, b


def small_meets_small(rng, k, depth=None, largest=2.0**SAMPLE_EXPONENT):
    """Nothing counts but products of small elements: large ones, which set the scales, meet zeros. The depths of both
    operands multiply to `depth`, and small elements lose as much as their depth allows, always on the same side."""
    depth, made = depth or depth_limit(AMPERE, k), []
    share = rng.random()
    for side, own in enumerate((max(depth, 1)**share, max(depth, 1)**(1 - share))):
        steps = np.floor(2.0**10 / own)  # of 2^-24, hi's last bit there
        x = steps + float.fromhex("0x1.fep-2") + float.fromhex("0x1.fep-13")
        x += steps + 0.5 < 2.0**10 / own  # no deeper than asked for
        made.append(np.full((ROWS, k), x * 2.0**-24, np.float32))
        made[side][:, side], made[side][:, 1 - side] = largest, 0
    return made


FAMILIES = {  # and which elements of C are left to the split kernels
    "uniform": (both(uniform), ALL),
    "normal": (both(normal), ALL),
    "exponents 2^-12..2^12": (both(exponents(12)), ALL),
    "exponents 2^-20..2^20": (both(exponents(20)), AS_IT_COMES),
    "exponents 2^-60..2^60": (both(exponents(60)), AS_IT_COMES),
    "balanced grading 2^+-10": (graded(10), ALL),
    "balanced grading 2^+-14": (graded(14), AS_IT_COMES),
    "balanced grading 2^+-20": (graded(20), NONE),
    "cancellation": (cancellation, ALL),
    "large low parts": (both(large_low_parts), ALL),
    "one huge value per row": (one_huge_value, AS_IT_COMES),
    "outliers not sampled": (unsampled_outliers, ALL),
    "far scales": (far_scales, ALL),
    "rows of zeros": (zero_rows, ALL),
    "zeros in the sample": (zeros_sampled, ALL),
    "zeros meet tiny": (zeros_meet_tiny, ALL_FROM_128),
    "subnormals": (at_random_places([2.0**-130, -2.0**-131]), AS_IT_COMES),
    "Inf, NaN": (at_random_places([np.inf, -np.inf, np.nan]), NONE),
    "largest": (at_random_places([LARGEST, -LARGEST]), AS_IT_COMES),
    "swallowed terms": (swallowed, ALL),
    "small meets small": (small_meets_small, ALL),
    "small meets small, Hopper": (lambda rng, k: small_meets_small(rng, k, depth_limit(HOPPER, k)), AS_IT_COMES),
    "tiny meets ordinary": (tiny_meets_ordinary, AS_IT_COMES),
    "tiny beside ordinary": (tiny_beside_ordinary, AS_IT_COMES),
    "uneven parts": (uneven_parts, ALL_FROM_128),
}


# ---- Tests ----------------------------------------------------------------------------------------------------------

def parts_of(x, e):
    """Scaled elements, what lo carries of them, and what neither component does."""
    hi, lo = (part.astype(np.float64) for part in components(x, e))
    scaled, low = np.ldexp(x.astype(np.float64), e[:, None]), lo * 2.0**-LO_SHIFT
    return scaled, low, scaled - hi - low


@pytest.mark.parametrize("t", [-20, -14, -13, 0, 15])
def test_representation(t):
    """All significands with exponent t: |lo| 2^-11 <= 2^-11 max(|x|, 2^-14) and |r| <= max(2^-23 |x|, 2^-36); where no
    component is subnormal, r = 0 for three quarters of them."""
    exact = 0
    for first in range(1 << 23, 1 << 24, 1 << 15):
        x = np.ldexp(np.arange(first, first + (1 << 15), dtype=np.float32), t - 23)
        x, low, rest = parts_of(x[None, x < OVERFLOW], np.zeros(1, np.int64))
        assert (np.abs(low) <= 2.0**-11 * np.maximum(x, 2.0**-14)).all()
        assert (np.abs(rest) <= np.maximum(2.0**-23 * x, 2.0**-36)).all()
        exact += (rest == 0).sum()
    assert t != 0 or exact == 3 << 21


def test_depths(rng):
    """The same with any exponent and scale that pack.cu may meet, in terms of the depth that it would note."""
    e = np.arange(-EXPONENT_LIMIT, EXPONENT_LIMIT + 1)
    x = signed(rng, len(e), 8000) * powers_of_two(rng, -149, 127, len(e), 8000)
    depth, (scaled, low, rest) = depths(x, e), parts_of(x, e)
    most = depth * (1 + 2.0**-22) * np.abs(scaled)  # the depth itself is rounded
    fits = np.isfinite(depth)
    assert (np.abs(low) <= 2.0**-11 * most)[fits].all() and (np.abs(rest) <= 2.0**-22 * most)[fits].all()
    e = np.arange(-100, 21)
    do_not_fit = np.tile(np.float32([np.inf, -np.inf, np.nan, 2.0**127, 2.0**-149, 2.0**-120]), (len(e), 1))
    assert (depths(do_not_fit, e) > depth_limit(HOPPER, 2**31)).all()
    assert (depths(np.float32([[0.0, -0.0]] * 2), np.array([5, -62])) == 1).all()


@pytest.mark.parametrize("chip, k", [*((HOPPER, k) for k in (64, 75, 76, 96, 128, 129, 200, 512, 1000, 4096, 16384)),
                                     *((AMPERE, k) for k in (96, 128, 129, 200, 512, 1000, 4096))],
                         ids=lambda value: getattr(value, "name", None))
def test_the_bound(rng, chip, k):
    """|C - AB| <= (K+2) 2^-24 (|A||B|) wherever the depths, or the size of the sum, allow the split."""
    for group in np.array_split(list(FAMILIES), 3):  # arrays that fit into a cache
        a, b = (np.stack(side) for side in zip(*(FAMILIES[name][0](rng, k) for name in group)))
        for name, split, worst in zip(group, *multiply(chip, a, b, depth_limit(chip, k), least_per_tiny(chip, k))):
            expected, exempt = FAMILIES[name][1], (ALL_FROM_128,) if k < 128 else ()
            assert worst.max() <= 1, f"{name}: an element is off by {worst.max():.3g} times the bound"
            assert split.all() or expected in (NONE, AS_IT_COMES, *exempt), f"{name}: not all are split"
            assert not split.any() or expected != NONE, f"{name}: {split.sum()} elements are split"


def test_a_short_k_is_not_split():
    assert all(depth_limit(chip, k) < 1 for chip, least in ((HOPPER, 64), (AMPERE, 96)) for k in range(1, least))


@pytest.mark.parametrize("k", [128, 256, 512, 1024, 2048, 4096])
def test_the_rules_are_needed(rng, k):
    """Far beyond the depths allowed the bound does not hold, nor whatever the sums are."""
    a, b = small_meets_small(rng, k, 8 * depth_limit(HOPPER, k), 2.0**LARGEST_EXPONENT)
    assert multiply(HOPPER, a, b, np.inf, 0)[1].max() > 1
    assert multiply(HOPPER, *tiny_meets_ordinary(rng, k), depth_limit(HOPPER, k), 0)[1].max() > 1


@pytest.mark.parametrize("make", [uniform, normal])
def test_ordinary_data_are_not_tiny(rng, make):
    """Panels of uniform and normal data: all fits, and no pair is near the limit."""
    x = make(rng, (2 * PANEL_ROWS, 4096))
    assert depths(x, by_sample(x)).max() <= depth_limit(AMPERE, 4096) / 4


def test_promotion(rng):
    """The error is float32's with it, and far larger without."""
    a, b = both(uniform)(rng, 8192)
    left, right, exact = Split(a), Split(b), product64(a, b)

    def error(promote_every):
        c = scaled_back(split_sums(HOPPER, left, right, promote_every), left, right)
        return np.linalg.norm(c - exact) / np.linalg.norm(exact)

    every = error(1)
    assert every < 3e-7 and error(8) > 2 * every and error(8192) > 50 * every


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("k", [64, 65, 96, 200, 1000])
def test_direct_kernels(rng, k, wide):
    """The bound, where no stage is left to fma: what is split has components and products that are no subnormals."""
    names = ["uniform", "normal", "exponents 2^-12..2^12", "balanced grading 2^+-10", "cancellation", "large low parts",
             "one huge value per row", "swallowed terms"]
    a, b = (np.stack(side) for side in zip(*(FAMILIES[name][0](rng, k) for name in names)))
    error = np.abs(direct_product(a, b, wide) - product64(a, b)) / (UNIT * product64(np.abs(a), np.abs(b)))
    for name, worst in zip(names, error.max(axis=(1, 2))):
        assert worst <= k + 2, f"{name}: an element is off by {worst:.3g} units"


@pytest.mark.parametrize("wide", [False, True])
def test_direct_sums_are_short(rng, wide):
    """On uniform data tensor cores truncate half as much of sums of 16 terms as of 32."""
    a, b = (uniform(rng, (40, 256)) for _ in range(2))
    exact = product64(a, b)
    short, long = (np.linalg.norm(direct_product(a, b, wide, sum_k) - exact) / np.linalg.norm(exact)
                   for sum_k in (16, 32))
    assert short < 0.95e-7 and long > 1.2e-7


TF32_KINDS = {  # and whether the hi components carry them
    "uniform": (uniform, ALL), "normal": (normal, ALL), "exponents 2^-20..2^20": (exponents(20), ALL),
    "exponents 2^-60..2^60": (exponents(60), ALL), "balanced grading 2^+-10": (10, ALL),
    "balanced grading 2^+-14": (14, AS_IT_COMES),
    "balanced grading 2^+-15": (15, AS_IT_COMES), "balanced grading 2^+-17": (17, NONE),
    "balanced grading 2^+-20": (20, NONE), "balanced grading 2^+-40": (40, NONE),
}


@pytest.mark.parametrize("kind", TF32_KINDS)
def test_tf32(rng, kind):
    """The hi components alone are no worse than TF32 where they carry the operands, and elsewhere would be."""
    (make, expected), shape = TF32_KINDS[kind], (PACK_ROWS, 256)
    rows = [make(rng, shape) for _ in range(2)] if callable(make) else graded(make, PACK_ROWS)(rng, 256)
    split, suspect, parts = True, False, []
    for x in rows:
        e = by_sample(x)
        if not carried_columns(x, e).all():
            suspect, overflow = True, np.where(fitting(x, e), 0, np.abs(x)).max(axis=1)
            e = np.where(overflow > 0, exponent_for(overflow, LARGEST_EXPONENT), e)
        split &= carried_columns(x, e).all()
        hi = np.where(np.abs(scaled_by(x, e)) < OVERFLOW, components(x, e)[0], 0)
        parts.append(np.ldexp(hi.astype(np.float64), -e[:, None]))
    exact = product64(*rows)
    theirs = np.linalg.norm(product64(*map(rounded_to_11_bits, rows)) - exact)
    ratio = np.linalg.norm(product64(*parts) - exact) / theirs
    assert not split or ratio <= 1.02
    assert split or expected != ALL
    assert expected != NONE or not split and ratio > 1.2
    assert not suspect or kind not in ("uniform", "normal")
