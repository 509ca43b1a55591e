"""fp32 on tensor cores keeps the contract for every input: hard data at large K, special values in every place, rows
that the split cannot carry (tf32's rule for these, too), packed operands that are shared."""

import re

import numpy as np
import pytest

import binding
from at_once import at_once
from binding import CUDA, FP32, IEEE, LEFT, RIGHT, TF32, Launch, Operand, Packed, Result
from cuda_driver import Buffer
from engine import Engine, kernel_names
from layouts import assert_guards, column_major, filled, padded, poisoned, row_major, stepped
from reference import (FAMILIES, UNIT, assert_componentwise, assert_exact, assert_special_values, assert_tf32,
                       frobenius_error, integers, normal, powers_of_two, product64, signed, uniform)

LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize("k", [128, 1000, 4096, 16384, 65536])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(accurate_cuda, family, k):
    m, n = (300, 200) if k <= 4096 else (130, 70)
    a, b = FAMILIES[family](np.random.default_rng(k), m, n, k)
    if family == "exponents_60":  # so that the sum of k products of up to 2^120 stays finite
        a, b = a * np.float32(2.0**-8), b * np.float32(2.0**-8)
    assert_componentwise(accurate_cuda.product(a, b), a, b)


@pytest.mark.parametrize("first", range(1, 301, 30))
def test_every_k(accurate_cuda, first):
    """K from 1 to 300; where a kernel is forced, every seventh."""
    for k in range(first, first + 30, 7 if accurate_cuda.kernel else 1):
        rng = np.random.default_rng(k)
        for family in (uniform, FAMILIES["balanced_grading"]):
            a, b = family(rng, 140, 150, k)
            assert_componentwise(accurate_cuda.product(a, b), a, b)


@pytest.mark.parametrize("family", [uniform, normal], ids=lambda f: f.__name__)
@pytest.mark.parametrize("k", [1024, 8192])
def test_more_accurate_than_plain_float32(driver, family, k):
    """fp32 on tensor cores is no further from float64 than a float32 sum in order is. (That it is no further than
    cuBLAS is for the benchmark, which has cuBLAS.)"""
    a, b = family(np.random.default_rng(k), 128, 128, k)
    in_order = np.zeros((128, 128), np.float32)
    for i in range(k):
        in_order += a[:, i:i + 1] * b[i]
    exact = product64(a, b)
    kernels = [kernel for kernel in kernel_names(CUDA) if kernel.startswith(("split_fp32", "direct"))]
    if not kernels:
        pytest.skip("this GPU has no split kernel")
    for kernel in kernels:
        error = frobenius_error(Engine(CUDA, FP32, kernel).product(a, b), exact)
        assert error <= frobenius_error(in_order, exact), kernel


@pytest.mark.parametrize("k", [256, 1024, 4096])
def test_small_meets_small(accurate_cuda, k):
    """Large elements meet zeros, so that only elements near the end of fp16's range count, those of A against those of
    B."""
    for small in (2.0**-25, (4.5 - 2.0**-11) * 2.0**-24, (20.5 - 2.0**-11) * 2.0**-24):
        a, b = np.full((130, k), small, np.float32), np.full((k, 140), (4.5 - 2.0**-11) * 2.0**-24, np.float32)
        a[:, 0], a[:, 1], b[0], b[1] = 2.0**14, 0, 0, 2.0**14
        assert_componentwise(accurate_cuda.product(a, b), a, b)


# ---- Special values in every class of position ----------------------------------------------------------------------

M, N, K = 300, 280, 400  # several panels and tiles with edges, several blocks of k with a remainder
POSITIONS = [(0, 0), (0, K - 1), (M - 1, 0), (M - 1, K - 1), (63, 63), (64, 64), (127, 127), (128, 128), (128, 0),
             (255, 320), (299, 384), (7, 399), (150, 200)]
VALUES = {
    "nan": np.nan, "inf": np.inf, "-inf": -np.inf, "subnormal": np.float32(2.0**-140), "zero": 0.0, "-zero": -0.0,
    "largest": LARGEST, "-largest": -LARGEST, "tiny": np.float32(2.0**-126)
}


def small_factors(rng, rows, cols):
    """Nonzero, below 1, so that the largest float times one of them does not overflow."""
    return (signed(rng, rows, cols) * np.float32(0.25)).astype(np.float32)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("position", POSITIONS, ids=str)
def test_one_value(accurate_cuda, rng, position, value):
    a, b = small_factors(rng, M, K), small_factors(rng, K, N)
    a[position] = VALUES[value]
    for x, y in [(a, b), (np.ascontiguousarray(b.T), np.ascontiguousarray(a.T))]:
        c = accurate_cuda.product(x, y)
        assert_special_values(c, x, y)


@pytest.mark.parametrize("value", ["nan", "inf", "subnormal", "largest"])
def test_untouched_elsewhere(fp32_cuda, rng, value):
    """A value that the split cannot carry changes its own panel's tiles; all other elements keep the bits they had."""
    a, b = rng.standard_normal((600, 512), np.float32), rng.standard_normal((512, 600), np.float32)
    before = fp32_cuda.product(a, b)
    spoiled = a.copy()
    spoiled[130, 100] = VALUES[value]
    after = fp32_cuda.product(spoiled, b)
    rows = np.arange(600)
    outside = (rows < 128) | (rows >= 256)  # no kernel's panel of rows is larger than 128
    assert np.array_equal(before[outside], after[outside])


def test_marked_tiles_equal_the_ieee_kernel(driver, rng):
    """Where every row holds something that the split cannot carry, the result is the ieee kernel's to the bit."""
    a, b = rng.standard_normal((1024, 1024), np.float32), rng.standard_normal((1024, 1024), np.float32)
    a[:, 17] = np.inf
    a[:, 18] = 1
    b[17] = 0
    context = binding.Context(device=CUDA)
    fp32 = Engine(CUDA, FP32)
    c = fp32.product(a, b, context=context)
    stats = context.stats()
    if not stats.split_products:
        pytest.skip("this GPU has no split kernel")
    assert np.isnan(c).all() and stats.fallback_tiles > 0
    a[:, 17] = 2.0**-149
    a[:, 16] = 2.0**100
    b[16] = 0
    c = fp32.product(a, b, context=context)
    ieee = Engine(CUDA, IEEE, kernel_names(CUDA)[0])  # what recomputes sums in the order of the first of them
    whole_k = ieee.new_context(max_workspace=1)  # no room for partial sums, so k is not cut
    assert np.array_equal(c, ieee.product(a, b, context=whole_k))


@pytest.mark.parametrize("alpha, beta", [(1.0, 1.0), (-2.0, 0.5), (0.5, 0.0), (1.0, -1.0)])
def test_fallback_with_alpha_and_beta(accurate_cuda, rng, alpha, beta):
    """A tile that is computed again must not add beta*C twice."""
    a, b, before = integers(rng, M, K), integers(rng, K, N), integers(rng, M, N)
    a[20, 30], a[200, 40] = np.inf, 2.0**-140
    b[30] = np.abs(b[30]) + 1
    for layout in (row_major, stepped):
        c = filled(layout, before) if beta else layout(M, N)
        accurate_cuda.multiply(a, b, c, alpha, beta)
        expected = alpha * product64(a, b) + (beta * before.astype(np.float64) if beta else 0)
        assert np.isinf(c[20]).all()
        finite = np.arange(M) != 20
        assert np.array_equal(c[finite], expected[finite].astype(np.float32))
        assert_guards(c)


# ---- Products of which little or nothing is carried -----------------------------------------------------------------

def inf_in_each_row(rng, m, n, k):
    a, b = normal(rng, m, n, k)
    a[np.arange(m), rng.integers(0, k, m)] = np.inf
    return a, b


def nan_in_each_panel_of_b(rng, m, n, k):
    a, b = normal(rng, m, n, k)
    b[rng.integers(0, k), ::100] = np.nan
    return a, b


def graded(exponent):
    """Column l of A times 2^e, row l of B times 2^-e."""
    def family(rng, m, n, k):
        (a, b), grade = normal(rng, m, n, k), powers_of_two(rng, -exponent, exponent, k)
        return a * grade, b / grade[:, None]
    return family


def spread_over_120(rng, m, n, k):
    a, b = FAMILIES["exponents_60"](rng, m, n, k)
    return a * np.float32(2.0**-8), b * np.float32(2.0**-8)  # so that sums stay finite


NOT_CARRIED = {"inf": inf_in_each_row, "nan": nan_in_each_panel_of_b, "graded 15": graded(15), "graded 25": graded(25),
               "graded 60": graded(60), "spread": spread_over_120}


def assert_product(c, a, b):
    finite = np.isfinite(a).all() and np.isfinite(b).all()
    (assert_componentwise if finite else assert_special_values)(c, a, b)


@pytest.mark.sanitizer
@pytest.mark.parametrize("kind", NOT_CARRIED)
@pytest.mark.parametrize("m, n, k", [(300, 260, 64), (2100, 1300, 66), (2100, 1300, 130), (2100, 1300, 256),
                                     (1500, 2900, 700), (300, 260, 2000), (900, 700, 1536), (130, 70, 20000)])
def test_nothing_is_carried(fp32_cuda, rng, m, n, k, kind):
    """Thread blocks with one tile or several, of fewer blocks of k than there are stages, or more; clusters; slices:
    all of C is computed, whatever they leave out."""
    a, b = NOT_CARRIED[kind](rng, m, n, k)
    assert_product(fp32_cuda.product(a, b), a, b)


@pytest.mark.parametrize("kind", NOT_CARRIED)
@pytest.mark.parametrize("options", [{}, {"batch_invariant": 1}, {"max_workspace": 6 << 20}], ids=str)
def test_nothing_is_carried_where_c_is_the_addend(fp32_cuda, rng, kind, options):
    """Of a batch, too, all items or some."""
    if options.get("batch_invariant") and "direct" in (fp32_cuda.kernel or ""):
        pytest.skip("direct kernels are not for batch_invariant")
    (a, b), before = NOT_CARRIED[kind](rng, 3 * 400, 350, 600), integers(rng, 3, 400, 350)
    a, plain = a.reshape(3, 400, 600), normal(rng, 400, 350, 600)[0]
    for left in (a, np.stack([plain, a[1], plain])):
        c = filled(stepped, before)
        fp32_cuda.multiply(left, b, c, 0.5, 2.0, context=fp32_cuda.new_context(**options))
        assert_guards(c)
        for item in range(3):
            with np.errstate(invalid="ignore"):
                without = (c[item].astype(np.float64) - 2.0 * before[item]) * 2.0
            exact, magnitude = product64(left[item], b), product64(np.abs(left[item]), np.abs(b))
            assert np.array_equal(np.isnan(without), np.isnan(exact))
            finite = np.isfinite(exact)
            assert np.array_equal(without[~finite], exact[~finite], equal_nan=True)
            allowed = 604 * UNIT * (magnitude + 4.0 * np.abs(before[item]))
            assert (np.abs(without - exact)[finite] <= allowed[finite]).all()


MARKED_PANELS = {"first": [0], "last": [16], "every other": range(0, 17, 2), "all but the first": range(1, 17),
                 "all but the last": range(16), "in the middle": [7, 8]}


@pytest.mark.parametrize("panels", MARKED_PANELS)
def test_some_panels_are_not_carried(fp32_cuda, rng, panels):
    """What they leave out is theirs alone: all other elements keep their bits, of A's panels and of B's."""
    a, b = normal(rng, 2100, 1300, 320)
    spoiled, rows = a.copy(), np.zeros(2100, bool)
    for panel in MARKED_PANELS[panels]:
        rows[panel * 128:(panel + 1) * 128] = True
        spoiled[panel * 128:(panel + 1) * 128:50, 3] = np.inf
    if fp32_cuda.kernel == "direct_128x96":  # it has no panels, and computes tiles of 96 columns again
        for tile in range(0, 2100, 96):
            rows[tile:tile + 96] |= rows[tile:tile + 96].any()
    for transposed in (False, True):
        left, right, plain = (b.T, spoiled.T, a.T) if transposed else (spoiled, b, a)
        c = fp32_cuda.product(left, right)
        assert_special_values(c, left, right)
        before = fp32_cuda.product(left, plain) if transposed else fp32_cuda.product(plain, right)
        found, expected = (c.T, before.T) if transposed else (c, before)
        assert np.array_equal(found[~rows], expected[~rows])


@pytest.mark.parametrize("panels", MARKED_PANELS)
@pytest.mark.parametrize("k", [320, 1500])
def test_some_panels_have_sums_too_small(fp32_cuda, rng, panels, k):
    """Graded rows, all of whose sums are tested in vain, before, between and behind rows whose sums are large."""
    a, b = graded(24)(rng, 2100, 1300, k)
    for panel in set(range(17)) - set(MARKED_PANELS[panels]):
        rows = slice(panel * 128, (panel + 1) * 128)
        a[rows] = normal(rng, a[rows].shape[0], 1, k)[0]
    a[5::60, ::3] *= np.float32(2.0**-30)  # so that panels of ordinary rows are tested, too
    assert_componentwise(fp32_cuda.product(a, b), a, b)


# ---- Rows the split finds hard --------------------------------------------------------------------------------------

@pytest.mark.parametrize("exponent", [5, 10, 15, 16, 20, 24, 30, 60, 100])
def test_one_huge_value_in_each_row(accurate_cuda, rng, exponent):
    """The others of the row are that much smaller than its scale, and still count where the huge one meets a zero."""
    a, b = normal(rng, 200, 180, 300)
    where = rng.integers(0, 300, 200)
    a[np.arange(200), where] = np.ldexp(np.float32(1), exponent)
    b[where[::2]] = 0
    assert_componentwise(accurate_cuda.product(a, b), a, b)
    assert_componentwise(accurate_cuda.product(b.T, a.T), b.T, a.T)


@pytest.mark.sanitizer
@pytest.mark.parametrize("k", [64, 128, 132, 512, 516, 1000, 1024])
def test_rows_that_are_packed_whole(accurate_cuda, rng, k):
    """Operands along k are packed row by row, others tile by tile; with the same bits, whatever is in the rows."""
    a, b = normal(rng, 300, 280, k)
    a[3], a[7, 1:] = 0, 0  # rows of zeros, or nearly
    a[::5, k - 1] *= np.float32(2.0**12)  # that outgrow their samples
    b[1, ::3] *= np.float32(2.0**-40)  # tiny elements
    a[140, 20], b[k // 2, 200] = 2.0**-140, 2.0**100  # and what is not carried
    by_rows = accurate_cuda.product(a, np.ascontiguousarray(b.T).T)
    assert_componentwise(by_rows, a, b)
    if (accurate_cuda.kernel or "").startswith("split"):
        assert np.array_equal(by_rows, accurate_cuda.product(np.ascontiguousarray(a.T).T, b))


@pytest.mark.sanitizer
@pytest.mark.parametrize("k", [64, 90, 150, 192, 340, 768, 1024])
def test_warpgroups_take_turns(accurate_cuda, rng, k):
    """More tiles than an H200 has SMs, of short k: a warpgroup stores its sums while the other multiplies. It waits for
    its turn before none, one or two of the last blocks of k; with 340 these and a half block take up all stages."""
    a, b = integers(rng, 2000, k), integers(rng, k, 1300)
    assert_exact(accurate_cuda.product(a, b), a, b)
    a, b = normal(rng, 2000, 1300, k)
    assert_componentwise(accurate_cuda.product(a, b), a, b)


@pytest.mark.sanitizer
@pytest.mark.parametrize("batch, m, n, k", [
    (None, 100, 60, 2000), (None, 260, 129, 1930), (None, 513, 640, 1000), (None, 513, 640, 1050),
    (None, 900, 700, 1536), (3, 300, 200, 1290)])
def test_k_shared_by_clusters(accurate_cuda, rng, batch, m, n, k):
    """C has few tiles, and thread blocks share the k of each: exact on integers, with beta, edges, checked sums. The
    last part of k is as long as the others, or ends in half a block, or has a few terms in all."""
    items = () if batch is None else (batch,)
    a, b, before = integers(rng, *items, m, k), integers(rng, *items, k, n), integers(rng, *items, m, n)
    c = filled(stepped, before)
    accurate_cuda.multiply(a, b, c, 2.0, -1.0)
    assert np.array_equal(c, (2 * product64(a, b) - before).astype(np.float32))
    assert_guards(c)
    a, b = normal(rng, m, n, k)
    a[:, ::7] *= np.float32(2.0**-32)
    assert_componentwise(accurate_cuda.product(a, b), a, b)


@pytest.mark.sanitizer
def test_a_huge_value_wherever_a_sample_may_miss_it(accurate_cuda, rng):
    """Scales that are guessed from a part of each row must be corrected wherever the largest value is."""
    k = 2000
    a, b = normal(rng, 256, 130, k)
    a[np.arange(256), np.arange(256) * 7 % k] *= np.float32(2.0**20)
    b[np.arange(130) * 13 % k, np.arange(130)] *= np.float32(2.0**25)
    assert_componentwise(accurate_cuda.product(a, b), a, b)
    a[:, -1] = 2.0**18
    assert_componentwise(accurate_cuda.product(a, b), a, b)


def test_what_does_not_fit_where_many_blocks_pack(accurate_cuda, rng):
    """More to pack than is packed at a time: one element of one panel, which changes nothing elsewhere; then some of
    all."""
    a, b = normal(rng, 1500, 1400, 2000)
    plain = accurate_cuda.product(a, b)
    a[777, 1234] = 2.0**20
    c = accurate_cuda.product(a, b)
    assert_componentwise(c, a, b)
    elsewhere = np.arange(1500) // 128 != 777 // 128
    assert np.array_equal(c[elsewhere], plain[elsewhere])
    a[:, 1234] = 2.0**20
    b[1001] *= np.float32(2.0**22)
    assert_componentwise(accurate_cuda.product(a, b), a, b)


def test_rows_of_zeros(accurate_cuda, rng):
    a, b = normal(rng, 300, 200, 500)
    a[::3] = 0
    a[128:256] = 0
    b[:, 5:70] = -0.0
    c = accurate_cuda.product(a, b)
    assert_componentwise(c, a, b)
    assert (c[::3] == 0).all() and (c[:, 5:70] == 0).all()


def test_values_that_rounding_carries_over(accurate_cuda):
    """Just below powers of two, where rounding to a component reaches the next one."""
    below = np.nextafter(np.ldexp(np.float32(1), np.arange(-20, 20)), np.float32(0), dtype=np.float32)
    a = np.resize(below, (200, 333)).astype(np.float32)
    b = np.resize(np.float32(1) - np.float32(2.0**-24) * np.arange(1, 4, dtype=np.float32), (333, 150)).astype(
        np.float32)
    assert_componentwise(accurate_cuda.product(a, b), a, b)


@pytest.mark.parametrize("low, high", [(-149, -120), (-126, -100), (-75, -60), (60, 63), (100, 120)])
def test_scales_at_the_ends_of_the_range(accurate_cuda, rng, low, high):
    a = np.ldexp(signed(rng, 150, 256).astype(np.float64), rng.integers(low, high + 1, (150, 1))).astype(np.float32)
    b = signed(rng, 256, 140)
    assert_componentwise(accurate_cuda.product(a, b), a, b, underflow=low < -60)
    assert_componentwise(accurate_cuda.product(b.T, a.T), b.T, a.T, underflow=low < -60)


@pytest.mark.sanitizer
@pytest.mark.parametrize("m, n, k", [(300, 260, 256), (130, 70, 8000)])
def test_rows_at_both_ends_of_the_range(accurate_cuda, rng, m, n, k):
    """If only the scales of rows and columns are extreme, nothing is computed again, tiny elements or not."""
    for family in (uniform, uneven):
        a, b = family(rng, m, n, k)
        a *= np.float32(2.0)**rng.choice([-97, -70, -5], (m, 1)).astype(np.float32)
        b *= np.float32(2.0)**rng.choice([0, 64, 90], n).astype(np.float32)
        for left, right in ((a, b), (b.T, a.T)):
            context = accurate_cuda.new_context()
            assert_componentwise(accurate_cuda.product(left, right, context=context), left, right)
            assert context.stats().marked_panels == 0 or family is uneven


# ---- Elements far below their row's largest --------------------------------------------------------------------------

def uneven(rng, m, n, k):
    """A third of each row of A is far below the rest, as where the gradients of different things share a row."""
    a, b = normal(rng, m, n, k)
    a[:, :k // 3] *= np.float32(2.0**-24)
    return a, b


@pytest.mark.parametrize("m, n, k", [(300, 260, 512), (768, 768, 4096)])
def test_tiny_elements_beside_ordinary_ones(accurate_cuda, m, n, k):
    """They are no reason to compute most of C again, nor are rows and columns of zeros beside them."""
    a, b = uneven(np.random.default_rng(k), m, n, k)
    a[5], b[:, 40:80] = 0, 0
    for left, right in ((a, b), (b.T, a.T)):
        context = accurate_cuda.new_context()
        assert_componentwise(accurate_cuda.product(left, right, context=context), left, right)
        stats, tiles = context.stats(), -(-m // 128) * -(-n // 128)
        assert stats.marked_panels == 0 and stats.fallback_tiles <= tiles // 2


@pytest.mark.parametrize("alpha, beta", [(1.0, 1.0), (-2.0, 0.5), (0.5, 0.0)])
def test_sums_of_tiny_elements_alone(accurate_cuda, rng, alpha, beta):
    """They are computed again, in their blocks of C only, and add beta*C once like the others."""
    (a, b), before = uneven(rng, M, N, 512), integers(rng, M, N)
    alone = [3, 40, 41, N - 1]
    b[512 // 3:, alone] = 0
    for layout in (row_major, stepped):
        c = filled(layout, before) if beta else layout(M, N)
        accurate_cuda.multiply(a, b, c, alpha, beta)
        assert_componentwise(c, a, b, alpha, beta, before)
        assert_guards(c)
        if not beta:
            assert_componentwise(np.ascontiguousarray(c[:, alone]) / alpha, a[:, :512 // 3], b[:512 // 3, alone])


@pytest.mark.sanitizer
@pytest.mark.parametrize("alpha, beta", [(1.0, 0.0), (-2.0, 0.5)])
def test_single_rows_of_small_sums(accurate_cuda, rng, alpha, beta):
    """They are computed again by themselves, whichever way the operands lie."""
    (a, b), before, rows = uneven(rng, M, N, 516), integers(rng, M, N), [3, 100, M - 1]
    b[258:] = -b[:258]
    a[rows, 258:] = a[rows, :258]
    for left, right in ((a, b), (a.T.copy().T, b), (a, b.T.copy().T), (b.T, a.T)):
        size = left.shape[0], right.shape[1]
        old, context = before.reshape(size), accurate_cuda.new_context()
        c = filled(row_major, old) if beta else row_major(*size)
        accurate_cuda.multiply(left, right, c, alpha, beta, context=context)
        assert_componentwise(c, left, right, alpha, beta, old)
        assert_guards(c)
        stats = context.stats()
        assert (stats.fallback_tiles > 0) == (stats.split_products > 0)


@pytest.mark.parametrize("limit", [2**21, 2**22])
def test_tiny_elements_in_parts_of_the_product(fp32_cuda, rng, limit):
    a, b = uneven(rng, 700, 600, 512)
    try:
        assert_componentwise(fp32_cuda.product(a, b, context=fp32_cuda.new_context(max_workspace=limit)), a, b)
    except binding.TesseraError as error:
        assert error.status == binding.OUT_OF_MEMORY and "max_workspace" in error.message and fp32_cuda.kernel


TINY_IN_A_COLUMN = {
    "one": ([35], False), "all rows that one thread packs": (range(3, 64, 8), False),
    "all but one that are packed together": (range(1, 64), False), "all that are packed together": (range(64), True)
}


@pytest.mark.sanitizer
@pytest.mark.parametrize("rows, marked", TINY_IN_A_COLUMN.values(), ids=TINY_IN_A_COLUMN)
@pytest.mark.parametrize("kernel", [name for name in kernel_names(CUDA) if name.startswith("split_tf32")])
def test_tf32_takes_tiny_elements_beside_others_of_their_k(driver, rng, kernel, rows, marked):
    """tf32 promises a norm: a tiny element of A does no harm beside others that meet the same row of B."""
    engine = Engine(CUDA, TF32, kernel)
    a, b = normal(rng, 256, 130, 300)
    a[list(rows), 77] = 2.0**-40
    for layout in (row_major, column_major):
        for x, y in ((a, b), (b.T, a.T)):
            context = engine.new_context()
            assert_tf32(engine.product(filled(layout, x), filled(layout, y), context=context), x, y)
            stats = context.stats()
            assert stats.marked_panels == marked and (stats.fallback_tiles > 0) == marked


@pytest.mark.parametrize("kernel", [None, *(one for one in kernel_names(CUDA) if re.match("split_tf32|tf32_", one))])
@pytest.mark.parametrize("m, n, k", [(130, 150, 260), (300, 520, 1000), (77, 131, 101), (96, 100, 20000)])
def test_tf32_has_float32s_range(driver, rng, kernel, m, n, k):
    """Columns of A and rows of B that fp16 could not hold beside the others, NaN with any payload, Inf."""
    engine = Engine(CUDA, TF32, kernel)
    a, b = FAMILIES["balanced_grading"](rng, m, n, k)
    for layout in (row_major, column_major):
        for x, y in ((a, b), (np.ldexp(a, -60).astype(np.float32), np.ldexp(b, 80).astype(np.float32))):
            assert_tf32(engine.product(filled(layout, x), filled(layout, y)), x, y)
    a[3, 5], a[m - 1, k - 1], b[7, 9] = np.inf, np.nan, -np.inf
    a.view(np.uint32)[70, 1] = 0x7f800001
    assert np.array_equal(np.isnan(engine.product(a, b)), np.isnan(product64(a, b)))


def test_uniform_data_take_the_split_path(driver):
    """And mark nothing: the fallback is for hard data, not for the benchmark's."""
    if driver.capability()[0] != 9:
        pytest.skip("that they are the faster ones is certain on compute capability 9.0 alone")
    rng = np.random.default_rng(3)
    for family in (uniform, normal):
        context = binding.Context(device=CUDA)
        a, b = family(rng, 2048, 2048, 2048)
        Engine(CUDA, FP32).product(a, b, context=context)
        stats = context.stats()
        assert (stats.split_products, stats.marked_panels, stats.fallback_tiles) == (1, 0, 0), family.__name__


@pytest.mark.parametrize("limit", [2**20, 2**22, 2**24])
@pytest.mark.parametrize("m, n, k", [(700, 900, 1100), (2000, 300, 500), (300, 2000, 4000)])
def test_less_workspace_same_contract(fp32_cuda, rng, m, n, k, limit):
    """Worked in panels under max_workspace: special values and all."""
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    a[m // 2, k // 3] = np.inf
    context = fp32_cuda.new_context(max_workspace=limit)
    try:
        c = fp32_cuda.product(a, b, context=context)
    except binding.TesseraError as error:
        assert error.status == binding.OUT_OF_MEMORY and "max_workspace" in error.message and fp32_cuda.kernel
        return
    assert_special_values(c, a, b)


# ---- Packed operands ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("sides", [(LEFT, ), (RIGHT, ), (LEFT, RIGHT)], ids=["left", "right", "both"])
def test_packed_keeps_the_contract(accurate_cuda, rng, sides):
    for family in (*FAMILIES.values(), uneven):
        a, b = family(rng, 300, 280, 600)
        c, plain = padded(300, 280), padded(300, 280)
        with accurate_cuda.resident(a, b, changed=[c]):
            packed_a = Packed(accurate_cuda.context, LEFT, accurate_cuda.operand(a)) if LEFT in sides else None
            packed_b = Packed(accurate_cuda.context, RIGHT, accurate_cuda.operand(b)) if RIGHT in sides else None
            binding.gemm(accurate_cuda.context, accurate_cuda.operand(a, packed_a), accurate_cuda.operand(b, packed_b),
                         accurate_cuda.result(c))
        assert_componentwise(c, a, b)
        assert_guards(c)
        accurate_cuda.multiply(a, b, plain)
        assert np.array_equal(c, plain), "packed and unpacked differ"


def test_packed_shared_between_streams_and_threads(cuda, driver, rng):
    """Packed once on one stream; used from twelve threads, each on a stream of its own that waits for it."""
    b = integers(rng, 512, 400)
    jobs = [integers(rng, 100 + 30 * i, 512) for i in range(12)]
    outputs = [Buffer(driver, 4 * a.shape[0] * 400).put(poisoned(a.shape[0], 400)) for a in jobs]
    inputs = [Buffer(driver, a.nbytes).put(a) for a in jobs]
    first, ready = driver.stream(), driver.event()
    streams = [driver.stream() for _ in jobs]
    with Buffer(driver, b.nbytes) as db:
        db.put(b)
        operand_b = binding.matrix(Operand, b, db.address)
        packed = Packed(cuda.context, RIGHT, operand_b, Launch(first))
        driver.record(ready, first)
        for stream in streams:
            driver.stream_wait(stream, ready)

        def work(i):
            for _ in range(5):
                binding.gemm(cuda.context, binding.matrix(Operand, jobs[i], inputs[i].address),
                             binding.matrix(Operand, b, db.address, packed),
                             Result(outputs[i].address, jobs[i].shape[0], 400, 400, 1, 0), launch=Launch(streams[i]))

        at_once(work, len(jobs))
        driver.synchronize()
        packed = None
        for a, output, held, stream in zip(jobs, outputs, inputs, streams):
            assert_exact(output.get().reshape(-1, 400), a, b)
            output.free(), held.free(), driver.stream_destroy(stream)
    driver.event_destroy(ready)
    driver.stream_destroy(first)


def test_packed_in_a_graph(fp32_cuda, driver, rng):
    """Packed before the capture, replayed after."""
    stream = driver.stream()
    a, b = integers(rng, 300, 512), integers(rng, 512, 256)
    with Buffer(driver, a.nbytes) as da, Buffer(driver, b.nbytes) as db, Buffer(driver, 4 * 300 * 256) as dc:
        da.put(a), db.put(b), dc.put(poisoned(300, 256))
        packed = Packed(fp32_cuda.context, RIGHT, binding.matrix(Operand, b, db.address), Launch(stream))
        driver.stream_synchronize(stream)
        graph = driver.capture(
            stream, lambda: binding.gemm(fp32_cuda.context, binding.matrix(Operand, a, da.address),
                                         binding.matrix(Operand, b, db.address, packed),
                                         Result(dc.address, 300, 256, 256, 1, 0), launch=Launch(stream)))
        for _ in range(3):
            dc.put(poisoned(300, 256))
            driver.replay(graph, stream)
            driver.stream_synchronize(stream)
            assert_exact(dc.get().reshape(300, 256), a, b)
        driver.graph_destroy(graph)
    driver.stream_destroy(stream)


# ---- Bits -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("m, n, k, fits", [(1024, 1024, 1024, True), (300, 400, 5000, True), (128, 128, 30000, True),
                                           (1500, 1400, 2000, False)])
def test_same_bits_under_load(cuda, driver, rng, m, n, k, fits):
    """Again and again while other streams keep the GPU busy: no sum may depend on which block came first, nor on how
    many stay where something does not fit by a row's sample."""
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    if not fits:
        a[::5, k // 3] *= np.float32(2.0**20)
        b[k // 3, ::3] *= np.float32(2.0**15)
    first = cuda.product(a, b)
    streams = [driver.stream() for _ in range(4)]
    outputs = [Buffer(driver, first.nbytes) for _ in streams]
    with Buffer(driver, a.nbytes) as da, Buffer(driver, b.nbytes) as db:
        da.put(a), db.put(b)
        for _ in range(5):
            for stream, output in zip(streams, outputs):
                binding.gemm(cuda.context, binding.matrix(Operand, a, da.address), binding.matrix(
                    Operand, b, db.address), Result(output.address, m, n, n, 1, 0), launch=Launch(stream))
            driver.synchronize()
            for output in outputs:
                assert np.array_equal(output.get().reshape(m, n), first)
    for stream, output in zip(streams, outputs):
        output.free(), driver.stream_destroy(stream)


def test_the_mean_error_has_no_bias(driver):
    """Tensor cores truncate; promotion into float32 must keep that from adding up: on uniform data the mean signed
    error is far below the mean size of the error bound."""
    a, b = uniform(np.random.default_rng(5), 400, 400, 8192)
    exact = product64(a, b)
    c = Engine(CUDA, FP32).product(a, b)
    assert abs(np.mean((c - exact) / exact)) <= 8 * UNIT


def test_powers_of_two_are_exact(accurate_cuda, rng):
    """One nonzero term in each sum: the product of two powers of two, exact at any scale float32 has."""
    a, b = np.zeros((150, 300), np.float32), np.zeros((300, 140), np.float32)
    rows = rng.permutation(300)[:150]
    a[np.arange(150), rows] = powers_of_two(rng, -60, 60, 150)
    b[rows] = powers_of_two(rng, -60, 60, 150, 140)
    assert np.array_equal(accurate_cuda.product(a, b), product64(a, b))
