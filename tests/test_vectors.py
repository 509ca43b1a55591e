"""A single row or column of C: kernels sum it in orders of its own, which depend on how the matrix lies and on nothing
else."""

import numpy as np
import pytest

import binding
from binding import LEFT, RIGHT, Packed
from layouts import LAYOUTS, column_major, filled, multiply_exactly, padded, row_major, stepped
from reference import assert_componentwise, integers

# Beside vectors' lanes and the depth at which sums are cut; the last are shared by threads.
SHAPES = [(1, 3, 7), (1, 40, 33), (1, 9, 640), (1, 1, 4099), (1, 70, 8200), (5, 1, 4095), (41, 1, 31), (1, 700, 1500),
          (1500, 1, 700), (1, 700, 600), (700, 1, 600), (1, 9000, 30)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout(cpu, rng, shape):
    m, n, k = shape
    a, b, before = integers(rng, m, k, largest=4), integers(rng, k, n, largest=4), integers(rng, m, n)
    for of_matrix in LAYOUTS.values():
        for of_vector in (row_major, stepped):
            of_a, of_b = (of_vector, of_matrix) if m == 1 else (of_matrix, of_vector)
            c = filled(padded, before)
            multiply_exactly(cpu, filled(of_a, a), filled(of_b, b), c, 2.0, -1.0)


@pytest.mark.parametrize("shape", [(1, 300, 9000), (300, 1, 9000), (1, 1, 30000)], ids=str)
@pytest.mark.parametrize("layout", [row_major, column_major], ids=lambda layout: layout.__name__)
def test_bound(accurate, rng, layout, shape):
    m, n, k = shape
    a, b = filled(layout, rng.random((m, k), np.float32)), filled(layout, rng.random((k, n), np.float32))
    assert_componentwise(accurate.product(a, b), a, b)


def results(cpu, a, b):
    """The product by every way to ask for it, each a row of C or a column."""
    m, n = a.shape[0], b.shape[1]
    for threads in (1, 2, 3, 7):
        yield f"{threads} threads", cpu.product(a, b, context=cpu.new_context(threads=threads))
    yield "C in columns", cpu.multiply(a, b, column_major(m, n))
    yield "C's columns not contiguous", cpu.multiply(a, b, stepped(m, n))
    of_batch = [np.lib.stride_tricks.as_strided(x, (3, *x.shape), (0, *x.strides)) for x in (a, b)]
    for c in cpu.multiply(*of_batch, row_major(3, m, n)):
        yield "in a batch", c
    for sides in [(LEFT, ), (RIGHT, ), (LEFT, RIGHT)]:
        c = row_major(m, n)
        packed_a = Packed(cpu.context, LEFT, cpu.operand(a)) if LEFT in sides else None
        packed_b = Packed(cpu.context, RIGHT, cpu.operand(b)) if RIGHT in sides else None
        binding.gemm(cpu.context, cpu.operand(a, packed_a), cpu.operand(b, packed_b), cpu.result(c))
        yield f"packed {sides}", c
    c = row_major(m, n)
    plan = binding.Plan(cpu.context, cpu.operand(a), cpu.operand(b), cpu.result(c))
    plan.execute(a.ctypes.data, b.ctypes.data, c.ctypes.data)
    yield "planned", c


@pytest.mark.parametrize("shape", [*SHAPES, (1, 5, 1), (5, 1, 1)], ids=str)
@pytest.mark.parametrize("layout", [row_major, column_major, padded, stepped], ids=lambda layout: layout.__name__)
def test_same_bits_however_computed(cpu, rng, layout, shape):
    m, n, k = shape
    a, b = (filled(layout, rng.standard_normal((m, k),
                                               np.float32)), filled(layout, rng.standard_normal((k, n), np.float32)))
    first = cpu.product(a, b)
    for how, c in results(cpu, a, b):
        assert np.array_equal(c, first), how
