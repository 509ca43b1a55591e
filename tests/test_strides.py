"""Every way strides can describe a matrix, in every combination, with guard elements around and between."""

import itertools

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from layouts import LAYOUTS, assert_guards, filled, multiply_exactly, padded, poisoned
from reference import assert_exact, integers


@pytest.mark.parametrize("shape", [(5, 3, 4), (37, 70, 129), (130, 33, 65)], ids=str)
def test_all_layouts(engine, rng, shape):
    m, n, k = shape
    a, b = integers(rng, m, k), integers(rng, k, n)
    for of_a, of_b, of_c in itertools.product(LAYOUTS.values(), repeat=3):
        va, vb, c = filled(of_a, a), filled(of_b, b), of_c(m, n)
        engine.multiply(va, vb, c)
        try:
            assert_exact(c, a, b)
            assert_guards(c)
        except AssertionError as error:
            raise AssertionError(f"A {of_a.__name__}, B {of_b.__name__}, C {of_c.__name__}: {error}") from None


@pytest.mark.parametrize("m, n, k", [(40, 35, 50), (4, 512, 64)])
@pytest.mark.parametrize("axes", ["rows", "columns", "both"])
def test_broadcast_operands(engine, rng, axes, m, n, k):
    """A stride of zero repeats a row, a column or one element; also beside few rows."""
    shape = {"rows": (1, -1), "columns": (-1, 1), "both": (1, 1)}[axes]
    a_small = integers(rng, *(size if step < 0 else 1 for size, step in zip((m, k), shape)))
    b_small = integers(rng, *(size if step < 0 else 1 for size, step in zip((k, n), shape)))
    a, b = np.broadcast_to(a_small, (m, k)), np.broadcast_to(b_small, (k, n))
    assert_exact(engine.product(a, b), a, b)
    assert_exact(engine.product(b.T, a.T), b.T, a.T)


def test_overlapping_windows(engine, rng):
    """Rows of A may overlap each other: a convolution's sliding windows need no copy."""
    signal = integers(rng, 200)
    windows = as_strided(signal, (150, 51), (4, 4))
    taps = integers(rng, 51, 20)
    assert_exact(engine.product(windows, taps), windows, taps)


@pytest.mark.parametrize("m, n, k", list(itertools.product([0, 5], repeat=3)))
def test_sizes_of_zero(engine, rng, m, n, k):
    """k = 0 is an empty sum, m = 0 or n = 0 an empty result; nothing beside it is touched."""
    a, b = integers(rng, m, k), integers(rng, k, n)
    for layout in LAYOUTS.values():
        c = layout(m, n)
        multiply_exactly(engine, a, b, c)


@pytest.mark.parametrize("beta", [0.0, 1.0, -2.0])
def test_no_terms_scale_c(engine, rng, beta):
    before = integers(rng, 6, 7)
    c = filled(padded, before)
    engine.multiply(np.zeros((6, 0), np.float32), np.zeros((0, 7), np.float32), c, 1.0, beta)
    assert np.array_equal(c, beta * before)
    assert_guards(c)


@pytest.mark.sanitizer
def test_long_vectors(cpu, rng):
    """A vector that is wider and deeper than any block, in every layout, times a matrix, and its transpose times
    another."""
    a, b = integers(rng, 1, 2000), integers(rng, 2000, 1000)
    for of_vector in LAYOUTS.values():
        row, column = poisoned(1, 1000), poisoned(1000, 1)
        cpu.multiply(filled(of_vector, a), b, row)
        cpu.multiply(b.T, filled(of_vector, np.ascontiguousarray(a.T)), column)
        assert np.array_equal(row, a @ b) and np.array_equal(column, row.T), of_vector.__name__


@pytest.mark.sanitizer
@pytest.mark.parametrize("stride", [0, 2**40, -2**40, 2**61, -2**61])
def test_strides_of_single_rows_are_not_used(engine, rng, stride):
    """A stride that is never stepped may be anything, as NumPy leaves it for dimensions of one."""
    a, b = integers(rng, 1, 30), integers(rng, 30, 1)
    c = poisoned(1, 1)
    engine.multiply(as_strided(a, (1, 30), (stride, 4)), as_strided(b, (30, 1), (4, stride)),
                    as_strided(c, (1, 1), (stride, stride)))
    assert_exact(c, a, b)
    outer = poisoned(30, 30)
    engine.multiply(as_strided(a.T, (30, 1), (4, stride)), as_strided(b.T, (1, 30), (stride, 4)), outer)
    assert_exact(outer, a.T, b.T)


def test_operands_and_result_side_by_side(engine, rng):
    """A, B and C as column slices of one wide matrix share no element, so the call must take them."""
    wide = poisoned(40, 120)
    wide[:, :40] = integers(rng, 40, 40)
    wide[:, 80:] = integers(rng, 40, 40)
    a, c, b = wide[:, :40], wide[:, 40:80], wide[:, 80:]
    before = wide.copy()
    engine.multiply(a, b, c)
    assert_exact(c, before[:, :40], before[:, 80:])
    assert np.array_equal(wide[:, :40], before[:, :40]) and np.array_equal(wide[:, 80:], before[:, 80:])


def test_one_matrix_as_both_operands(engine, rng):
    x = integers(rng, 70, 70)
    assert_exact(engine.product(x, x), x, x)
    assert_exact(engine.product(x.T, x), x.T, x)


@pytest.mark.parametrize("offset", range(16))
def test_every_alignment(engine, rng, offset):
    """Each operand at every float offset within 64 bytes: vector loads must not assume more than four."""
    m, n, k = 67, 129, 70
    a, b = integers(rng, m, k), integers(rng, k, n)

    def placed(x, shift):
        owner = poisoned(x.size + 64)
        start = (-owner.ctypes.data // 4) % 16 + shift
        view = owner[start:start + x.size].reshape(x.shape)
        view[...] = x
        return view

    for shifts in [(offset, 0, 0), (0, offset, 0), (0, 0, offset), (offset, 15 - offset, offset)]:
        va, vb, c = (placed(x, shift) for x, shift in zip((a, b, np.full((m, n), np.nan, np.float32)), shifts))
        c[...] = np.nan
        engine.multiply(va, vb, c)
        assert_exact(c, a, b)
