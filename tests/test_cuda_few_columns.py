"""Kernels for a matrix times a vector, or a few: each one forced, wherever it reads the long operand."""

import numpy as np
import pytest

from binding import CUDA, IEEE, INVALID_ARGUMENT, TesseraError
from engine import Engine, kernel_names
from layouts import column_major, filled, padded, padded_columns, row_major
from reference import assert_exact, integers

pytestmark = pytest.mark.skipif("ieee_vector_k" not in kernel_names(CUDA), reason="no GPU with these kernels")
ONE = ["ieee_vector_k", "ieee_vector_m"]
KERNELS = [(kernel, 1) for kernel in ONE] + [(kernel, n) for kernel in ("ieee_columns_k", "ieee_columns_m")
                                             for n in (2, 3, 5, 8)]


def long_operand(kernel, rng, *shape):
    """As the kernel reads it: terms of a row side by side, or rows. What lies between is poison."""
    return filled(padded_columns if kernel.endswith("_m") else padded, integers(rng, *shape))


@pytest.mark.sanitizer
@pytest.mark.parametrize("kernel, n", KERNELS)
@pytest.mark.parametrize("m, k", [(1, 1), (9, 4), (33, 127), (130, 128), (257, 129), (64, 1023), (40, 3001)])
def test_cuda_products(rng, kernel, n, m, k):
    """Rows and terms that fill no tile, chunk or vector; long k is shared by clusters."""
    m = max(m, n)
    a, b, before = long_operand(kernel, rng, m, k), integers(rng, k, n), integers(rng, m, n)
    engine = Engine(CUDA, IEEE, kernel)
    for b in (b, filled(column_major, b)):
        c = row_major(m, n)
        engine.multiply(a, b, c)
        assert_exact(c, a, b)
        c = before.copy()
        engine.multiply(a, b, c, alpha=2.0, beta=-1.0)
        assert_exact(c, a, b, 2.0, -1.0, before)


@pytest.mark.parametrize("kernel, n", KERNELS)
def test_cuda_batches(rng, kernel, n):
    shape = (5, 70, 210)
    a = integers(rng, 5, 210, 70).transpose(0, 2, 1) if kernel.endswith("_m") else integers(rng, *shape)
    b, c = integers(rng, 5, 210, n), row_major(5, 70, n)
    Engine(CUDA, IEEE, kernel).multiply(a, b, c)
    assert np.array_equal(c, a.astype(np.float64) @ b)


@pytest.mark.parametrize("kernel, n", KERNELS)
def test_cuda_nothing_beyond_is_multiplied(rng, kernel, n):
    """What lies behind the matrices, and the terms that are loaded twice at the end of k, are Inf; nothing of it shows
    where they meet a zero, and everything where they belong."""
    m, k = 67, 391
    a, b, c = long_operand(kernel, rng, m, k), filled(padded, integers(rng, k, n)), row_major(m, n)
    a[:, -1], b[-1] = np.inf, 1
    a[3, -1] = 0
    Engine(CUDA, IEEE, kernel).multiply(a, b, c)
    assert np.isinf(np.delete(c, 3, 0)).all()
    assert_exact(c[3:4], a[3:4], b)


@pytest.mark.parametrize("kernel, n", KERNELS)
def test_cuda_other_layouts_are_refused(rng, kernel, n):
    a, b, c = long_operand(kernel, rng, 60, 50), integers(rng, 50, n), row_major(60, n)
    a = filled(row_major if kernel.endswith("_m") else column_major, a)
    with pytest.raises(TesseraError, match=f"{kernel} reads a long operand whose") as error:
        Engine(CUDA, IEEE, kernel).multiply(a, b, c)
    assert error.value.status == INVALID_ARGUMENT
