"""Packed operands: made once, used often, with the same bits as unpacked ones."""

from ctypes import byref, c_void_p

import numpy as np
import pytest

import binding
import cuda_driver
import engine as engines
from at_once import at_once
from binding import LEFT, RIGHT, Packed, lib
from layouts import LAYOUTS, assert_guards, filled, row_major
from reference import assert_exact, assert_special_values, integers

SHAPES = [(1, 1, 1), (5, 3, 4), (65, 70, 129), (300, 200, 500), (280, 130, 1300), (3, 400, 600), (600, 3, 400)]


def multiply_packed(engine, a, b, c, sides, alpha=1.0, beta=0.0):
    with engine.resident(a, b, changed=[c]):
        packed_a = Packed(engine.context, LEFT, engine.operand(a)) if LEFT in sides else None
        packed_b = Packed(engine.context, RIGHT, engine.operand(b)) if RIGHT in sides else None
        batch = c.shape[0] if c.ndim == 3 else None
        binding.gemm(engine.context, engine.operand(a, packed_a), engine.operand(b, packed_b), engine.result(c), alpha,
                     beta, batch)


@pytest.mark.parametrize("sides", [(LEFT,), (RIGHT,), pytest.param((LEFT, RIGHT), marks=pytest.mark.sanitizer)],
                         ids=["left", "right", "both"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_same_bits_as_unpacked(engine, rng, shape, sides):
    m, n, k = shape
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    c, plain = row_major(m, n), row_major(m, n)
    multiply_packed(engine, a, b, c, sides)
    assert_guards(c)
    engine.multiply(a, b, plain)
    assert np.array_equal(c, plain)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_factors(engine, rng, layout):
    a, b, before = integers(rng, 40, 70), integers(rng, 70, 50), integers(rng, 40, 50)
    for sides in [(LEFT,), (RIGHT,), (LEFT, RIGHT)]:
        for alpha, beta in [(1.0, 0.0), (-2.0, 1.0), (0.0, 2.0), (0.5, -1.0)]:
            c = filled(LAYOUTS[layout], before) if beta else LAYOUTS[layout](40, 50)
            multiply_packed(engine, filled(LAYOUTS[layout], a), filled(LAYOUTS[layout], b), c, sides, alpha, beta)
            assert_exact(c, a, b, alpha, beta, before)
            assert_guards(c)


def test_used_with_many_partners(engine, rng):
    """A weight matrix is packed once and multiplies activations of many sizes, one row among them."""
    b = integers(rng, 120, 90)
    activations = {m: integers(rng, m, 120) for m in (1, 2, 7, 64, 65, 300)}
    results = {m: row_major(m, 90) for m in activations}
    with engine.resident(b, *activations.values(), changed=[*results.values()]):
        packed = Packed(engine.context, RIGHT, engine.operand(b))
        for m, a in activations.items():
            binding.gemm(engine.context, engine.operand(a), engine.operand(b, packed), engine.result(results[m]))
    for m, a in activations.items():
        assert_exact(results[m], a, b)


def test_shared_by_a_batch(engine, rng):
    a, b = integers(rng, 6, 20, 30), np.broadcast_to(integers(rng, 30, 40), (6, 30, 40))
    c = row_major(6, 20, 40)
    multiply_packed(engine, a, b, c, (RIGHT,))
    assert np.array_equal(c, a.astype(np.float64) @ b)


def test_of_one_matrix_cannot_stand_for_a_batch(engine, rng):
    """A packed form is of one matrix: with a batch stride it must be refused or must not be used."""
    a, b = integers(rng, 3, 256, 512), integers(rng, 3, 512, 256)  # which a GPU would split
    c = row_major(3, 256, 256)
    try:
        multiply_packed(engine, a, b, c, (RIGHT,))
    except binding.TesseraError as error:
        assert error.status == binding.INVALID_ARGUMENT and "b.packed" in error.message
    else:
        assert np.array_equal(c, a.astype(np.float64) @ b)


def test_in_a_plan(engine, rng):
    a, b, c = integers(rng, 50, 60), integers(rng, 60, 70), row_major(50, 70)
    with engine.resident(a, b, changed=[c]):
        packed = Packed(engine.context, RIGHT, engine.operand(b))
        plan = binding.Plan(engine.context, engine.operand(a), engine.operand(b, packed), engine.result(c))
        for _ in range(3):
            plan.execute(engine.address(a), engine.address(b), engine.address(c))
    assert_exact(c, a, b)


def test_special_values(engine, rng):
    """What a packed form cannot carry is read from the matrix itself."""
    a, b = rng.integers(1, 9, (70, 130)).astype(np.float32), rng.integers(1, 9, (130, 90)).astype(np.float32)
    a[3, 7], a[69, 129], b[5, 80], b[0, 0] = np.inf, np.nan, -np.inf, 2.0**-140
    for sides in [(LEFT,), (RIGHT,), (LEFT, RIGHT)]:
        c = row_major(70, 90)
        multiply_packed(engine, a, b, c, sides)
        assert_special_values(c, a, b)


@pytest.mark.parametrize("rows, cols", [(0, 5), (5, 0), (0, 0)])
def test_empty(engine, rows, cols):
    x = np.zeros((rows, cols), np.float32)
    with engine.resident(x):
        for side in (LEFT, RIGHT):
            Packed(engine.context, side, engine.operand(x))


def test_shared_between_threads(engine, rng):
    b = integers(rng, 100, 80)
    many = [integers(rng, 30 + i, 100) for i in range(12)]
    results = [row_major(30 + i, 80) for i in range(12)]
    with engine.resident(b, *many, changed=results):
        packed = Packed(engine.context, RIGHT, engine.operand(b))

        def work(i):
            binding.gemm(engine.context, engine.operand(many[i]), engine.operand(b, packed), engine.result(results[i]))

        at_once(work, 12)
    for i in range(12):
        assert_exact(results[i], many[i], b)


# ---- In the caller's memory -----------------------------------------------------------------------------------------

class PackedInWorkspace(Packed):
    """Packed by a CUDA engine into memory that the test takes, of exactly the size, with guards around it."""

    def __init__(self, engine, side, operand):
        self.size = lib.tsr_pack_size(engine.context.handle, side, operand.rows, operand.cols)
        self.buffer = cuda_driver.Buffer(engines.DRIVER, max(1, self.size))
        super().__init__(engine.context, side, operand, binding.Launch(None, self.buffer.address, self.size))

    def free(self):
        self.buffer.get(np.uint8)
        self.buffer.free()


def test_packed_into_the_callers_workspace(engine, rng):
    """The same bits as without, and the memory stays the caller's."""
    if engine.device == binding.CPU:
        pytest.skip("on the CPU tsr_pack_at does so")
    a, b = rng.standard_normal((150, 300), np.float32), rng.standard_normal((300, 200), np.float32)
    c = row_major(150, 200)
    with engine.resident(a, b, changed=[c]):
        left, right = (PackedInWorkspace(engine, side, engine.operand(x)) for side, x in ((LEFT, a), (RIGHT, b)))
        binding.gemm(engine.context, engine.operand(a, left), engine.operand(b, right), engine.result(c))
        if left.size:
            for shift, size, message in ((0, left.size - 1, f"needs {left.size} bytes"),
                                         (64, left.size, "not aligned to 256 bytes")):
                with pytest.raises(binding.TesseraError, match=message):
                    Packed(engine.context, LEFT, engine.operand(a),
                           binding.Launch(None, left.buffer.address + shift, size))
    assert np.array_equal(c, engine.product(a, b))
    for packed in (left, right):
        lib.tsr_packed_destroy(packed.handle)
        packed.handle = c_void_p()
        packed.free()


def pack_at(engine, side, x, factor=1.0):
    """(the operand to use, the memory): x itself is gone afterwards."""
    size = lib.tsr_pack_size(engine.context.handle, side, *x.shape)
    memory = np.full(size + 128, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64
    handle, operand = c_void_p(), binding.matrix(binding.Operand, x)
    binding.check(
        lib.tsr_pack_at(byref(handle), memory.ctypes.data + start, engine.context.handle, side, factor, byref(operand))
    )
    assert (memory[:start] == 0xA5).all() and (memory[start + size:] == 0xA5).all(), "packing wrote beside its memory"
    x[...] = np.nan
    operand.data, operand.packed = memory.ctypes.data + start, handle.value
    return operand, memory


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (13, 33, 7), (100, 90, 1500), (1, 40, 33), (40, 1, 33)])
def test_packed_in_the_callers_memory(cpu, rng, m, n, k):
    a, b = integers(rng, m, k), integers(rng, k, n)
    for sides in (LEFT,), (RIGHT,), (LEFT, RIGHT):
        x, y, c = a.copy(), b.copy(order="F"), row_major(m, n)
        left, left_memory = pack_at(cpu, LEFT, x) if LEFT in sides else (cpu.operand(x), None)
        right, right_memory = pack_at(cpu, RIGHT, y) if RIGHT in sides else (cpu.operand(y), None)
        binding.gemm(cpu.context, left, right, cpu.result(c))
        assert_exact(c, a, b)
        assert_guards(c)


def test_a_result_behind_packed_memory(cpu, rng):
    """The strides of what was packed say nothing about where the panels end."""
    a, b = integers(rng, 20, 30), integers(rng, 30, 10)
    x = np.zeros((20, 4096), np.float32)
    x[:, :30] = a
    size = lib.tsr_pack_size(cpu.context.handle, LEFT, 20, 30)
    memory = np.zeros(64 + size + 4 * 20 * 10, np.uint8)
    start = -memory.ctypes.data % 64
    handle, left = c_void_p(), binding.matrix(binding.Operand, x[:, :30])
    binding.check(
        lib.tsr_pack_at(byref(handle), memory.ctypes.data + start, cpu.context.handle, LEFT, 1.0, byref(left))
    )
    left.data, left.packed = memory.ctypes.data + start, handle.value
    c = memory[start + size:start + size + 4 * 20 * 10].view(np.float32).reshape(20, 10)
    binding.gemm(cpu.context, left, cpu.operand(b), binding.matrix(binding.Result, c))
    assert_exact(c, a, b)
    for first in 0, 20 * 30 - 1:  # of the floats in the panels, which are no fewer than the matrix has
        with pytest.raises(binding.TesseraError, match="c overlaps a"):
            binding.gemm(cpu.context, left, cpu.operand(b), binding.Result(left.data + 4 * first, 20, 10, 10, 1, 0))


def test_packed_memory_of_one_matrix_in_a_batch(cpu, rng):
    a, b = integers(rng, 20, 30), integers(rng, 3, 30, 10)
    left, memory = pack_at(cpu, LEFT, a.copy())
    c = row_major(3, 20, 10)
    binding.gemm(cpu.context, left, cpu.operand(b), cpu.result(c), batch=3)
    assert_exact(c, np.broadcast_to(a, (3, 20, 30)), b)
    left.batch_stride = 600
    with pytest.raises(binding.TesseraError, match=r"a\.batch_stride is 600"):
        binding.gemm(cpu.context, left, cpu.operand(b), cpu.result(c), batch=3)


def test_packed_with_a_factor(cpu, rng):
    a, b = integers(rng, 70, 90), integers(rng, 90, 80)
    for factor in (-2.0, 0.5, 0.0):
        left, left_memory = pack_at(cpu, LEFT, a.copy(), factor)
        c = row_major(70, 80)
        binding.gemm(cpu.context, left, cpu.operand(b), cpu.result(c))
        assert_exact(c, factor * a, b)
    handle, nothing = c_void_p(), binding.Operand(None, 70, 90, 90, 1)
    binding.check(lib.tsr_pack_at(byref(handle), left.data, cpu.context.handle, LEFT, 0.0, byref(nothing)))


def test_packed_in_the_callers_memory_is_refused(engine):
    x, handle = np.ones((3, 4), np.float32), c_void_p()
    operand = binding.matrix(binding.Operand, x)
    memory = np.zeros(4096, np.uint8)
    start = memory.ctypes.data + -memory.ctypes.data % 64

    def said(*arguments):
        status = lib.tsr_pack_at(*arguments)
        return status, lib.tsr_last_error().decode()

    assert said(None, start, engine.context.handle, LEFT, 1.0, byref(operand)) == (binding.INVALID_ARGUMENT,
                                                                                   "packed is NULL")
    if engine.device != binding.CPU:
        status, message = said(byref(handle), start, engine.context.handle, LEFT, 1.0, byref(operand))
        assert status == binding.UNSUPPORTED and "context is on CUDA" in message
        return
    assert said(byref(handle), None, engine.context.handle, LEFT, 1.0, byref(operand)) == (binding.INVALID_ARGUMENT,
                                                                                           "memory is NULL")
    assert (
        said(byref(handle), start + 4, engine.context.handle, LEFT, 1.0, byref(operand))[1]
        == "memory is not aligned to 64 bytes"
    )
    assert lib.tsr_pack_size(None, LEFT, 3, 4) == lib.tsr_pack_size(engine.context.handle, LEFT, -1, 4) == 0
    assert lib.tsr_pack_size(engine.context.handle, LEFT, 2**60, 2**60) == 0
    operand.data, operand.rows, operand.cols, operand.row_stride, operand.col_stride = start, 2**59, 2**59, 0, 0
    status, message = said(byref(handle), start, engine.context.handle, LEFT, 1.0, byref(operand))
    assert status == binding.OUT_OF_MEMORY and "exceeds the address space" in message
