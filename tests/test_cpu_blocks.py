"""Products that the CPU engine packs and cuts into blocks: rows and columns that are no whole tiles, depths of several
blocks, all layouts, and little room."""

import numpy as np
import pytest

from binding import IEEE
from layouts import assert_guards, column_major, filled, multiply_exactly, padded, row_major, stepped
from reference import integers

# Rows packed by the tiles that are the first to read them, for one thread and for slices; slices of columns; rows read
# in place.
SHAPES = [(259, 580, 650), (40, 1110, 90), (301, 200, 650)]


@pytest.mark.parametrize("threads, room", [(1, 400_000), pytest.param(2, 0, marks=pytest.mark.sanitizer)])
@pytest.mark.parametrize("layout_b", [row_major, column_major])
@pytest.mark.parametrize("layout_a", [row_major, column_major, stepped])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packing_and_slices(cpu, rng, shape, layout_a, layout_b, threads, room):
    m, n, k = shape
    a, b, before = integers(rng, m, k), integers(rng, k, n), integers(rng, m, n)
    c = filled(row_major, before)
    context = cpu.new_context(threads=threads, max_workspace=room)
    multiply_exactly(cpu, filled(layout_a, a), filled(layout_b, b), c, 2.0, -1.0, context=context)


@pytest.mark.parametrize("layout_c", [row_major, stepped])
def test_rows_far_apart(cpu, rng, layout_c):
    """Contiguous rows are packed, too, where there are so many that they would have to come from memory again and
    again."""
    m, n, k = 617, 1550, 1750
    a, b = integers(rng, m, k), integers(rng, k, n)
    expected = a.astype(np.float64) @ b
    for threads in (1, 2):
        c = layout_c(m, n)
        cpu.multiply(a, b, c, context=cpu.new_context(threads=threads))
        assert np.array_equal(c, expected)
        assert_guards(c)


@pytest.mark.parametrize("threads", [1, pytest.param(3, marks=pytest.mark.sanitizer)])
@pytest.mark.parametrize("layout_c", [row_major, column_major])
@pytest.mark.parametrize("layout_b", [row_major, column_major])
@pytest.mark.parametrize("layout_a", [row_major, column_major])
@pytest.mark.parametrize("few, long, k", [(2, 533, 701), (3, 75, 5003), (4, 1301, 331), (3, 1301, 99), (6, 413, 701),
                                           (8, 1301, 131)])
def test_few_rows_or_columns_of_a_large_matrix(cpu, rng, few, long, k, layout_a, layout_b, layout_c, threads):
    """Which are read where they lie, once."""
    context = cpu.new_context(threads=threads)
    for m, n in [(few, long), (long, few)]:
        a, b, before = integers(rng, m, k), integers(rng, k, n), integers(rng, m, n)
        c = filled(layout_c, before)
        multiply_exactly(cpu, filled(layout_a, a), filled(layout_b, b), c, 0.5, 2.0, context=context)


@pytest.mark.parametrize("layout_b", [row_major, column_major, padded])
@pytest.mark.parametrize("few", [2, 3, 4, 6, 8])
def test_few_rows_have_the_bits_of_many(cpu, rng, few, layout_b):
    if cpu.precision != IEEE:
        pytest.skip("other precisions may have tiles of another order")
    n, k = 531, 1500
    a, b = rng.standard_normal((40, k), np.float32), filled(layout_b, rng.standard_normal((k, n), np.float32))
    many = cpu.product(a, b)
    for threads in (1, 2):
        assert np.array_equal(cpu.product(a[:few], b, context=cpu.new_context(threads=threads)), many[:few])
    assert np.array_equal(cpu.product(b.T, filled(column_major, a[:few].T)), many[:few].T)
