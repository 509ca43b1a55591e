"""tsr_gemm_host: matrices in host memory, on every engine. What a failing GPU leaves, and the order of copies and
products, are tested on the fake driver (fake_cuda/offload.py)."""

from ctypes import byref, c_double, c_float, c_int64

import numpy as np
import pytest

import binding
import layouts
import reference
from binding import CPU, Operand, Result, lib

MIB = 1 << 20


def multiply(context, a, b, c, alpha=1.0, beta=0.0):
    share = c_double()
    batch = c.shape[0] if c.ndim == 3 else 1
    binding.check(
        lib.tsr_gemm_host(context.handle, batch, alpha, byref(binding.matrix(Operand, a)),
                          byref(binding.matrix(Operand, b)), beta, byref(binding.matrix(Result, c)), byref(share)))
    assert share.value == 1


def check(context, rng, m, n, k, layout):
    a, b, before = [reference.integers(rng, *shape, largest=4) for shape in ((m, k), (k, n), (m, n))]
    a, b, c = (layouts.filled(layouts.LAYOUTS[layout], x) for x in (a, b, before))
    multiply(context, a, b, c, 2, 3)
    reference.assert_exact(c, a, b, 2, 3, before)
    layouts.assert_guards(c)


@pytest.mark.parametrize("layout", ["row_major", "padded_columns", "backward"])
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (65, 33, 129), (300, 500, 700)])
def test_products(engine, rng, m, n, k, layout):
    check(engine.context, rng, m, n, k, layout)


@pytest.mark.parametrize("layout", ["row_major", "column_major"])
@pytest.mark.parametrize("m, n, k", [(1300, 2500, 300), (2600, 700, 200)])
def test_several_panels(cuda, rng, m, n, k, layout):
    """A and B stay on the GPU in panels, which are packed once and come in turns."""
    check(cuda.context, rng, m, n, k, layout)


@pytest.mark.parametrize("limit", [2 * MIB, 12 * MIB])
def test_more_than_the_device_may_take(cuda, rng, limit):
    check(cuda.new_context(max_workspace=limit), rng, 1100, 1300, 1500, "padded")


def test_the_bound(accurate, rng):
    a, b = reference.exponents_60(rng, 257, 300, 1000)
    c = np.full((257, 300), np.nan, np.float32)
    multiply(accurate.context, a, b, c)
    reference.assert_componentwise(c, a, b)


def test_special_values(accurate, rng):
    a, b = reference.normal(rng, 50, 60, 70)
    a[3, 5], a[7, 9], b[11, 13], a[20] = np.inf, np.nan, -np.inf, 0
    c = np.zeros((50, 60), np.float32)
    multiply(accurate.context, a, b, c)
    reference.assert_special_values(c, a, b)


def test_a_batch_and_the_same_bits_again(engine, rng):
    a, b = rng.standard_normal((5, 70, 90), np.float32), rng.standard_normal((5, 90, 80), np.float32)
    first, second = np.zeros((2, 5, 70, 80), np.float32)
    multiply(engine.context, a, b, first)
    multiply(engine.context, a, b, second)
    assert np.array_equal(first, second)
    assert np.allclose(first, a.astype(np.float64) @ b, rtol=0, atol=2e-2)


def seconds(context, m, n, k, beta=0.0, batch=1):
    function = lib.tsr_gemm_host_seconds
    function.restype = c_double
    a, b, c = Operand(None, m, k, k, 1, m * k), Operand(None, k, n, n, 1, k * n), Result(None, m, n, n, 1, m * n)
    return function(context.handle, c_int64(batch), byref(a), byref(b), c_float(beta), byref(c))


def test_estimate(engine):
    """A GPU's has its copies in it, so that it grows with them; what cannot be planned has none."""
    context = engine.context
    plan = binding.Plan(context, *[kind(None, 2000, 2000, 2000, 1, 0) for kind in (Operand, Operand, Result)])
    lib.tsr_plan_seconds.restype = c_double
    planned = lib.tsr_plan_seconds(plan.handle)
    if engine.device == CPU:
        assert seconds(context, 2000, 2000, 2000) == planned
    else:
        assert seconds(context, 2000, 2000, 2000) > planned
        once = seconds(context, 9000, 9000, 20)
        assert seconds(context, 9000, 9000, 20, beta=1.0) > once >= seconds(context, 5000, 9000, 20)
        assert seconds(context, 500, 500, 500, batch=100) > seconds(context, 500, 500, 500)
    assert seconds(context, -1, 5, 5) == 0 and "a.rows is -1" in lib.tsr_last_error().decode()


def test_refusals(engine):
    x = np.zeros((4, 4), np.float32)
    with pytest.raises(binding.TesseraError, match="c overlaps a"):
        multiply(engine.context, x, x.copy(), x)
    with pytest.raises(binding.TesseraError, match="must equal b.rows"):
        multiply(engine.context, x, np.zeros((3, 4), np.float32), np.zeros((4, 4), np.float32))
