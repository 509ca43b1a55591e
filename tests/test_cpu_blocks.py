"""Products that the CPU engine packs and cuts into blocks: rows and columns that are no whole tiles, depths of several
blocks, all layouts, and little room."""

import numpy as np
import pytest

import binding
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
                                           (8, 1301, 131), (11, 333, 701), (20, 533, 257)])
def test_few_rows_or_columns_of_a_large_matrix(cpu, rng, few, long, k, layout_a, layout_b, layout_c, threads):
    """Which are read where they lie, once."""
    context = cpu.new_context(threads=threads)
    for m, n in [(few, long), (long, few)]:
        a, b, before = integers(rng, m, k), integers(rng, k, n), integers(rng, m, n)
        c = filled(layout_c, before)
        multiply_exactly(cpu, filled(layout_a, a), filled(layout_b, b), c, 0.5, 2.0, context=context)


@pytest.mark.parametrize("layout_a", [row_major, column_major])
@pytest.mark.parametrize("layout_b", [row_major, column_major, padded])
@pytest.mark.parametrize("few, n, k", [(2, 531, 1500), (3, 531, 1500), (4, 531, 1500), (6, 531, 1500), (8, 531, 1500),
                                       (9, 370, 1500), (11, 800, 300), (13, 531, 1500), (18, 97, 700), (24, 330, 700),
                                       (32, 256, 257)])
def test_few_rows_have_the_bits_of_many(cpu, rng, few, n, k, layout_a, layout_b):
    if cpu.precision != IEEE:
        pytest.skip("other precisions may have tiles of another order")
    a, b = rng.standard_normal((40, k), np.float32), filled(layout_b, rng.standard_normal((k, n), np.float32))
    many = cpu.product(a, b)
    rows = filled(layout_a, a[:few])
    for threads in (1, 2):
        assert np.array_equal(cpu.product(rows, b, context=cpu.new_context(threads=threads)), many[:few])
    assert np.array_equal(cpu.product(b.T, filled(column_major, a[:few].T)), many[:few].T)
    before = rng.standard_normal((40, n), np.float32)
    expected = cpu.multiply(a, b, before.copy(), 0.75, -0.5)[:few]
    assert np.array_equal(cpu.multiply(rows, b, filled(padded, before[:few]), 0.75, -0.5), expected)


# Very few sums, of one and of several k blocks; few rows and columns; as many as are computed along k.
ALONG_K = [(2, 2, 16), (2, 3, 5000), (5, 4, 2700), (3, 6, 17), (7, 8, 1000), (3, 60, 100), (10, 20, 640), (31, 17, 333),
           (32, 100, 300)]


@pytest.mark.parametrize("threads", [1, pytest.param(3, marks=pytest.mark.sanitizer)])
@pytest.mark.parametrize("layout_c", [row_major, column_major])
@pytest.mark.parametrize("shape", ALONG_K, ids=str)
def test_products_along_k(cpu, rng, shape, layout_c, threads):
    """Both operands are contiguous along k."""
    context = cpu.new_context(threads=threads)
    m, n, k = shape
    for rows, columns in [(m, n), (n, m)]:
        a, b, before = integers(rng, rows, k), integers(rng, k, columns), integers(rng, rows, columns)
        for alpha, beta in [(1.0, 0.0), (0.5, 2.0), (-3.0, 1.0)]:
            multiply_exactly(cpu, filled(padded, a), filled(column_major, b), filled(layout_c, before), alpha, beta,
                             context=context)


@pytest.mark.parametrize("shape", ALONG_K, ids=str)
def test_bits_of_products_along_k(cpu, rng, shape):
    """They are the same on every path: by a plan, transposed, by several threads, in a batch, of packed operands."""
    m, n, k = shape
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32).T
    expected = cpu.product(a, b)
    assert np.array_equal(cpu.multiply(a, b, column_major(m, n)), expected)
    assert np.array_equal(cpu.product(b.T, a.T), expected.T)
    for threads in (1, 2, 5):
        assert np.array_equal(cpu.product(a, b, context=cpu.new_context(threads=threads)), expected)
    batch = cpu.product(np.stack([a, a]), np.stack([b.T, b.T]).transpose(0, 2, 1))
    assert np.array_equal(batch[0], expected) and np.array_equal(batch[1], expected)
    for side, matrix in ((binding.LEFT, a), (binding.RIGHT, b)):
        packed = binding.Packed(cpu.context, side, cpu.operand(matrix))
        operands = [cpu.operand(a, packed if side == binding.LEFT else None),
                    cpu.operand(b, packed if side == binding.RIGHT else None)]
        c = row_major(m, n)
        binding.gemm(cpu.context, *operands, cpu.result(c))
        assert np.array_equal(c, expected)


@pytest.mark.parametrize("layout_a", [row_major, column_major])
@pytest.mark.parametrize("layout_b", [row_major, column_major])
@pytest.mark.parametrize("m, n, k", [(5, 3100, 2), (17, 2050, 3), (4, 1540, 4), (6, 1030, 6), (9, 3073, 5)])
def test_few_terms_of_long_rows(cpu, rng, m, n, k, layout_a, layout_b):
    """B's rows are longer than the first-level cache: C is written in parts of its rows."""
    a, b, before = integers(rng, m, k), integers(rng, k, n), integers(rng, m, n)
    for alpha, beta in [(1.0, 0.0), (0.5, 2.0)]:
        multiply_exactly(cpu, filled(layout_a, a), filled(layout_b, b), filled(row_major, before), alpha, beta)
        multiply_exactly(cpu, filled(layout_a, a), filled(layout_b, b), filled(padded, before), alpha, beta)
