"""tsr_gemm_add and tsr_plan_execute_add: C = alpha*A*B + beta*S with a matrix S of its own."""

from ctypes import byref

import numpy as np
import pytest

import binding
from binding import INVALID_ARGUMENT, Operand, Plan, Result, TesseraError, lib
from layouts import LAYOUTS, POISON, assert_guards, filled, padded, row_major
from reference import assert_componentwise, assert_exact, integers

# What a bias may look like: which of its rows and columns are one and the same.
BROADCASTS = {"row": (1, 0), "column": (0, 1), "scalar": (0, 0), "full": (1, 1)}


def broadcast(rng, shape, kind):
    """Integers of this shape, with strides of 0 where `kind` shares them."""
    rows, cols = BROADCASTS[kind]
    small = integers(rng, *shape[:-2], shape[-2] if cols or kind == "full" else 1, shape[-1] if rows else 1)
    return np.broadcast_to(small, shape)


def add(engine, a, b, addend, c, alpha=1.0, beta=1.0, context=None):
    with engine.resident(a, b, addend, changed=[c]):
        binding.gemm_add(context or engine.context, engine.operand(a), engine.operand(b), engine.operand(addend),
                         engine.result(c), alpha, beta, c.shape[0] if c.ndim == 3 else 1)
    return c


# The last two are cut along k by the CUDA plan, or by the CPU's blocks; the thin ones have kernels of their own.
SHAPES = [(1, 1, 1), (19, 35, 7), (5, 300, 90), (300, 3, 70), (130, 140, 300), (70, 66, 1500)]


@pytest.mark.sanitizer
@pytest.mark.parametrize("kind", BROADCASTS)
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_broadcast(engine, rng, m, n, k, kind):
    a, b, addend = integers(rng, m, k), integers(rng, k, n), broadcast(rng, (m, n), kind)
    for alpha, beta in [(1.0, 1.0), (-1.0, 0.5), (0.0, 2.0), (2.0, -1.0)]:
        c = add(engine, a, b, addend, row_major(m, n), alpha, beta)
        assert_exact(c, a, b, alpha, beta, addend)
        assert_guards(c)


@pytest.mark.parametrize("addend_layout", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(engine, rng, layout, addend_layout):
    """Every layout of C with every one of S, C transposed or not; long enough in k to be cut."""
    a, b, values = integers(rng, 67, 900), integers(rng, 900, 45), integers(rng, 67, 45)
    addend = filled(LAYOUTS[addend_layout], values)
    c = add(engine, a, b, addend, LAYOUTS[layout](67, 45), 1.0, -2.0)
    assert_exact(c, a, b, 1.0, -2.0, values)
    assert_guards(c)
    assert_guards(addend)


@pytest.mark.parametrize("addend_layout", LAYOUTS)
@pytest.mark.parametrize("m, n", [(1, 45), (67, 1)])
def test_layouts_of_one_row_or_column(engine, rng, m, n, addend_layout):
    a, b, values = integers(rng, m, 50), integers(rng, 50, n), integers(rng, m, n)
    c = add(engine, a, b, filled(LAYOUTS[addend_layout], values), row_major(m, n), 1.0, -2.0)
    assert_exact(c, a, b, 1.0, -2.0, values)
    assert_guards(c)


@pytest.mark.parametrize("kind", [*BROADCASTS, "shared", "backward"])
def test_batch(engine, rng, kind):
    shape = 4, 33, 29
    a, b = integers(rng, 4, 33, 50), integers(rng, 4, 50, 29)
    if kind == "shared":
        addend = np.broadcast_to(integers(rng, 33, 29), shape)
    elif kind == "backward":
        addend = integers(rng, *shape)[::-1]
    else:
        addend = broadcast(rng, shape, kind)
    c = add(engine, a, b, addend, padded(*shape), 1.0, 3.0)
    assert np.array_equal(c, np.matmul(a.astype(np.float64), b) + 3.0 * addend)
    assert_guards(c)


def test_in_parts(engine, rng):
    """A product that max_workspace cuts into parts: each takes its part of S."""
    m, n, k = 700, 650, 256
    a, b, addend = integers(rng, m, k), integers(rng, k, n), integers(rng, m, n)
    context = engine.new_context(max_workspace=1 << 20)
    assert_exact(add(engine, a, b, addend, row_major(m, n), context=context), a, b, 1, 1, addend)


def test_bound(accurate, rng):
    a, b = rng.standard_normal((150, 400), np.float32), rng.standard_normal((400, 140), np.float32)
    addend = np.broadcast_to(rng.standard_normal(140, np.float32), (150, 140))
    c = add(accurate, a, b, addend, row_major(150, 140), 1.25, -0.75)
    assert_componentwise(c, a, b, 1.25, -0.75, addend)


def test_same_bits_as_in_place(engine, rng):
    """S beside C and S in C: the same arithmetic."""
    a, b = rng.standard_normal((140, 700), np.float32), rng.standard_normal((700, 90), np.float32)
    addend = rng.standard_normal((140, 90), np.float32)
    in_place = addend.copy()
    engine.multiply(a, b, in_place, 1.5, -0.5)
    assert np.array_equal(add(engine, a, b, addend, row_major(140, 90), 1.5, -0.5), in_place)
    aliased = addend.copy()
    with engine.resident(a, b, changed=[aliased]):
        binding.gemm_add(engine.context, engine.operand(a), engine.operand(b), engine.operand(aliased),
                         engine.result(aliased), 1.5, -0.5)
    assert np.array_equal(aliased, in_place)


def test_marked_tiles(engine, rng):
    """Elements that tensor cores cannot carry: their tiles are computed again, and S is added once."""
    a, b = rng.standard_normal((260, 256), np.float32), rng.standard_normal((256, 260), np.float32)
    a[3, 5] = np.inf
    addend = integers(rng, 260, 260)
    c = add(engine, a, b, addend, row_major(260, 260))
    expected = a.astype(np.float64) @ b + addend
    assert np.array_equal(np.isfinite(c), np.isfinite(expected))
    assert np.allclose(c[4:], expected[4:], rtol=1e-2, atol=1e-1)


def test_plan_takes_any_addend(engine, rng):
    a, b, c = integers(rng, 61, 90), integers(rng, 90, 47), row_major(61, 47)
    with engine.resident(a, b, changed=[c]):
        plan = Plan(engine.context, engine.operand(a), engine.operand(b), engine.result(c))
    for kind in [*BROADCASTS, None]:
        addend = integers(rng, 61, 47) if kind is None else broadcast(rng, (61, 47), kind)
        with engine.resident(a, b, addend, changed=[c]):
            plan.execute_add(engine.address(a), engine.address(b), engine.operand(addend), engine.address(c), -1.0, 2.0)
        assert_exact(c, a, b, -1.0, 2.0, addend)
    with engine.resident(a, b, changed=[c]):
        plan.execute_add(engine.address(a), engine.address(b), None, engine.address(c), 1.0, 0.0)
    assert_exact(c, a, b)


@pytest.mark.parametrize("beta", [1.0, -2.0])
def test_alone_where_alpha_is_zero(engine, rng, beta):
    a, b, addend = integers(rng, 20, 30), integers(rng, 30, 40), integers(rng, 20, 40)
    c = add(engine, a, b, addend, row_major(20, 40), 0.0, beta)
    assert np.array_equal(c, np.float32(beta) * addend)


@pytest.mark.parametrize("alpha", [1.0, 0.0])
def test_beta_zero_does_not_look_at_it(engine, rng, alpha):
    a, b, c = integers(rng, 20, 30), integers(rng, 30, 40), row_major(20, 40)
    with engine.resident(a, b, changed=[c]):
        for addend in [None, Operand(None, -1, -1, 0, 0, 0), Operand(3, 7, 7, 1, 1, 1)]:
            binding.gemm_add(engine.context, engine.operand(a), engine.operand(b), addend, engine.result(c), alpha, 0.0)
    assert_exact(c, a, b, alpha)


def test_nan_in_it_stays_with_its_elements(engine, rng):
    a, b, values = integers(rng, 40, 30), integers(rng, 30, 50), integers(rng, 1, 50)
    values[0, 7] = np.nan
    c = add(engine, a, b, np.broadcast_to(values, (40, 50)), row_major(40, 50))
    assert np.isnan(c[:, 7]).all()
    assert np.isfinite(np.delete(c, 7, axis=1)).all()


# ---- Refusals -------------------------------------------------------------------------------------------------------

class Sum:
    """A valid 3x4 by 4x5 product and its 3x5 addend, to be spoiled in one place."""

    def __init__(self, engine):
        self.engine = engine
        self.keep = [np.ones(shape, np.float32) for shape in ((3, 4), (4, 5), (3, 5))]
        self.c_array = np.full((3, 5), POISON, np.float32)
        a, b, addend = self.keep
        self.a, self.b = binding.matrix(Operand, a), binding.matrix(Operand, b)
        self.addend, self.c = binding.matrix(Operand, addend), binding.matrix(Result, self.c_array)

    def refused(self, *words):
        """By tsr_gemm_add and tsr_plan_execute_add alike."""
        plan = Plan(self.engine.context, self.a, self.b, self.c)
        for call in (lambda: binding.gemm_add(self.engine.context, self.a, self.b, self.addend, self.c),
                     lambda: plan.execute_add(self.a.data, self.b.data, self.addend, self.c.data)):
            with pytest.raises(TesseraError) as caught:
                call()
            assert caught.value.status == INVALID_ARGUMENT
            for word in words:
                assert word in caught.value.message
        assert (self.c_array.view(np.uint32) == POISON.view(np.uint32)).all(), "a refused call wrote to C"


@pytest.fixture
def spoiled(engine):
    return Sum(engine)


def test_null(spoiled):
    spoiled.addend = None
    spoiled.refused("addend is NULL")


def test_null_data(spoiled):
    spoiled.addend.data = None
    spoiled.refused("addend.data is NULL")


def test_misaligned(spoiled):
    spoiled.addend.data += 2
    spoiled.refused("addend.data is not aligned")


@pytest.mark.parametrize("size", ["rows", "cols"])
@pytest.mark.parametrize("value", [1, 6])
def test_wrong_size(spoiled, size, value):
    setattr(spoiled.addend, size, value)
    spoiled.refused("addend is", "c is 3 x 5")


@pytest.mark.parametrize("name, value", [("rows", -1), ("cols", -2), ("row_stride", 2**62), ("col_stride", -2**62)])
def test_impossible_matrix(spoiled, name, value):
    setattr(spoiled.addend, name, value)
    spoiled.refused(f"addend.{name}")


@pytest.mark.parametrize("change", ["shifted", "transposed", "broadcast"])
def test_partly_in_c(spoiled, change):
    """S is C, or shares no address with it."""
    spoiled.addend.data = spoiled.c.data
    if change == "shifted":
        spoiled.addend.data += 4
    elif change == "transposed":
        spoiled.addend.row_stride, spoiled.addend.col_stride = 1, 3
    else:
        spoiled.addend.row_stride = 0
    spoiled.refused("c overlaps addend")


def test_strides_along_one_element_do_not_count(engine, rng):
    a, b, c = integers(rng, 1, 9), integers(rng, 9, 8), integers(rng, 1, 8)
    before = c.copy()
    with engine.resident(a, b, changed=[c]):
        addend = engine.operand(c)
        addend.row_stride, addend.batch_stride = 12345, -7
        binding.gemm_add(engine.context, engine.operand(a), engine.operand(b), addend, engine.result(c))
    assert_exact(c, a, b, 1, 1, before)


def test_empty_products_read_no_addend(engine):
    empty = Operand(None, 0, 5, 5, 1, 0)
    a, b, c = Operand(None, 0, 4, 4, 1, 0), Operand(None, 4, 5, 5, 1, 0), Result(None, 0, 5, 5, 1, 0)
    binding.gemm_add(engine.context, a, b, empty, c)
    assert lib.tsr_gemm_add(engine.context.handle, 1, 1.0, byref(a), byref(b), 1.0, None, byref(c), None)
