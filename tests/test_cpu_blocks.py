"""Products that the CPU engine packs and cuts into blocks: rows and columns that are no whole tiles, depths of several blocks, all
layouts, and little room."""

import numpy as np
import pytest

from layouts import assert_guards, column_major, filled, row_major, stepped
from reference import assert_exact, integers

# Rows packed by the tiles that are the first to read them, for one thread and for slices; slices of columns; rows read in place.
SHAPES = [(259, 580, 650), (40, 1110, 90), (301, 200, 650)]


@pytest.mark.sanitizer
@pytest.mark.parametrize("threads, room", [(1, 400_000), (2, 0)])
@pytest.mark.parametrize("layout_b", [row_major, column_major])
@pytest.mark.parametrize("layout_a", [row_major, column_major, stepped])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packing_and_slices(cpu, rng, shape, layout_a, layout_b, threads, room):
    m, n, k = shape
    a, b, before = integers(rng, m, k), integers(rng, k, n), integers(rng, m, n)
    c = filled(row_major, before)
    context = cpu.new_context(threads=threads, max_workspace=room)
    cpu.multiply(filled(layout_a, a), filled(layout_b, b), c, 2.0, -1.0, context=context)
    assert_exact(c, a, b, 2.0, -1.0, before)
    assert_guards(c)


@pytest.mark.parametrize("layout_c", [row_major, stepped])
def test_rows_far_apart(cpu, rng, layout_c):
    """Contiguous rows are packed, too, where there are so many that they would have to come from memory again and again."""
    m, n, k = 617, 1550, 1750
    a, b = integers(rng, m, k), integers(rng, k, n)
    expected = a.astype(np.float64) @ b
    for threads in (1, 2):
        c = layout_c(m, n)
        cpu.multiply(a, b, c, context=cpu.new_context(threads=threads))
        assert np.array_equal(c, expected)
        assert_guards(c)
