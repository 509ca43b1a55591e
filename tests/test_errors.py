"""Every refusal of src/check.c, context.c and packed.c: the status, a message that names the argument, and nothing
written."""

import ctypes
from ctypes import byref, c_int64, c_void_p

import numpy as np
import pytest

import binding
from at_once import at_once
from binding import (CPU, FP32, INVALID_ARGUMENT, LEFT, OK, RIGHT, Context, Launch, Operand, Options, Packed, Plan,
                     Result, lib)
from layouts import POISON, poisoned

BIG = 2**62


def refused(status, *words):
    message = lib.tsr_last_error().decode()
    assert status == INVALID_ARGUMENT, (lib.tsr_status_name(status), message)
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"


class Product:
    """A valid 3x4 by 4x5 product, to be spoiled in one place and then refused by every call that takes it."""

    def __init__(self, engine):
        self.context = engine.context.handle
        self.keep = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32), poisoned(3, 5)
        a, b, c = self.keep
        self.a, self.b = binding.matrix(Operand, a), binding.matrix(Operand, b)
        self.c = binding.matrix(Result, c)
        self.batch, self.launch = 1, Launch()

    def gemm(self):
        return lib.tsr_gemm_batch(self.context, self.batch, 1.0, self.a and byref(self.a), self.b and byref(self.b),
                                  0.0, self.c and byref(self.c), byref(self.launch))

    def plan(self):
        handle = c_void_p(12345)
        status = lib.tsr_plan_create(byref(handle), self.context, self.batch, self.a and byref(self.a),
                                     self.b and byref(self.b), self.c and byref(self.c))
        if status == OK:
            lib.tsr_plan_destroy(handle)
        else:
            assert handle.value is None, "a failed tsr_plan_create left a pointer"
        return status

    def refused(self, *words):
        """By tsr_gemm_batch, tsr_gemm and tsr_plan_create alike."""
        refused(self.gemm(), *words)
        if self.batch == 1:
            refused(lib.tsr_gemm(self.context, 1.0, self.a and byref(self.a), self.b and byref(self.b), 0.0,
                                 self.c and byref(self.c), None), *words)
        refused(self.plan(), *words)
        assert (self.keep[2].view(np.uint32) == POISON.view(np.uint32)).all(), "a refused call wrote to C"

    def refused_pointer(self, *words):
        """By tsr_gemm_batch alone: a plan does not look at pointers."""
        refused(self.gemm(), *words)
        assert self.plan() == OK
        assert (self.keep[2].view(np.uint32) == POISON.view(np.uint32)).all(), "a refused call wrote to C"


@pytest.fixture
def product(engine):
    return Product(engine)


# ---- Products -------------------------------------------------------------------------------------------------------

def test_null_context(product):
    product.context = None
    product.refused("context is NULL")


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_null_matrix(product, name):
    setattr(product, name, None)
    product.refused(f"{name} is NULL")


@pytest.mark.parametrize("size", ["rows", "cols"])
@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("value", [-1, -2**63])
def test_negative_size(product, name, size, value):
    setattr(getattr(product, name), size, value)
    product.refused(f"{name}.{size} is {value}", "must not be negative")


@pytest.mark.parametrize("value", [-1, -2**63])
def test_negative_batch(product, value):
    product.batch = value
    product.refused(f"batch is {value}", "must not be negative")


@pytest.mark.parametrize("stride", ["row_stride", "col_stride", "batch_stride"])
@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("value", [BIG, -BIG, 2**63 - 1, -2**63])
def test_overflowing_stride(product, name, stride, value):
    product.batch = 3
    product.a.batch_stride, product.b.batch_stride, product.c.batch_stride = 12, 20, 15
    setattr(getattr(product, name), stride, value)
    product.refused(f"{name}.{stride} is {value}", "leaves the address space")


@pytest.mark.parametrize("first, second", [("row_stride", "col_stride"), ("col_stride", "batch_stride")])
@pytest.mark.parametrize("sign", [1, -1])
def test_strides_that_overflow_together(product, first, second, sign):
    product.batch = 2
    product.c.batch_stride = 15
    setattr(product.a, first, sign * 2**58)
    setattr(product.a, second, sign * 2**59)
    product.refused("a.", "leaves the address space")


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_overflowing_size(product, name):
    getattr(product, name).rows = 2**59
    product.refused(f"{name}.row_stride", "leaves the address space")


@pytest.mark.sanitizer
@pytest.mark.parametrize("size", ["rows", "cols"])
@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("value", [2**60, 2**63 - 1])
def test_size_beyond_any_memory(product, name, size, value):
    """Refused even where strides of zero, or nothing in the other direction, would make the matrix small."""
    matrix = getattr(product, name)
    matrix.row_stride = matrix.col_stride = 0
    setattr(matrix, size, value)
    setattr(matrix, {"rows": "cols", "cols": "rows"}[size], 0)
    product.refused(f"{name}.{size} is {value}", "must not exceed")


@pytest.mark.sanitizer
@pytest.mark.parametrize("m, n, k", [(2**59, 0, 5), (0, 2**59, 5), (1, 1, 2**59), (0, 0, 2**59)])
def test_large_sizes_are_planned(cpu, m, n, k):
    """The largest sizes that are not refused, as empty and broadcast matrices have them, overflow nothing."""
    product = Product(cpu)
    product.a, product.b = Operand(None, m, k, 0, 0, 0), Operand(None, k, n, 0, 0, 0)
    product.c = Result(None, m, n, 1, 1, 0)
    assert product.plan() == OK


@pytest.mark.parametrize("name, size, words", [
    ("a", "cols", ["a.cols (9)", "b.rows (4)"]), ("b", "rows", ["a.cols (4)", "b.rows (9)"]),
    ("a", "rows", ["c.rows (3)", "a.rows (9)"]), ("c", "rows", ["c.rows (9)", "a.rows (3)"]),
    ("b", "cols", ["c.cols (5)", "b.cols (9)"]), ("c", "cols", ["c.cols (9)", "b.cols (5)"])])
def test_mismatched_sizes(product, name, size, words):
    setattr(getattr(product, name), size, 9)
    product.refused(*words)


def test_mismatch_is_refused_in_empty_products_too(product):
    product.a.rows = product.c.rows = 0
    product.b.rows = 7
    product.refused("a.cols (4)", "b.rows (7)")


@pytest.mark.parametrize("row_stride, col_stride, batch_stride, batch", [
    (0, 1, 15, 1), (5, 0, 15, 1), (4, 1, 15, 1), (1, 1, 15, 1), (-4, 1, 15, 1), (5, 1, 14, 2), (5, 1, 0, 2),
    (5, 1, 1, 2), (-5, -1, -14, 2)])
def test_elements_of_c_that_share_an_address(product, row_stride, col_stride, batch_stride, batch):
    product.batch = batch
    product.c.row_stride, product.c.col_stride, product.c.batch_stride = row_stride, col_stride, batch_stride
    product.refused(f"c's strides ({row_stride}, {col_stride}, batch {batch_stride})", "share an address")


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_null_data(product, name):
    getattr(product, name).data = None
    product.refused_pointer(f"{name}.data is NULL")


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_misaligned_data(product, name, shift):
    getattr(product, name).data += shift
    product.refused_pointer(f"{name}.data is not aligned to a float")


def test_c_on_top_of_an_operand(product):
    for name in ("a", "b"):
        operand = getattr(product, name)
        kept = operand.data
        last_of_c, last_of_operand = 14, operand.rows * operand.cols - 1
        for shift in (0, 4, -4, 4 * last_of_c, -4 * last_of_operand):
            operand.data = product.c.data + shift
            product.refused_pointer(f"c overlaps {name}")
        operand.data = kept


def test_c_interleaved_with_an_operand_in_one_element(product):
    """Column slices of one wide matrix that share a single column."""
    wide = poisoned(4, 20)
    product.a.data, product.a.row_stride = wide.ctypes.data, 20
    product.c.data, product.c.row_stride = wide.ctypes.data + 4 * 3, 20
    refused(product.gemm(), "c overlaps a")
    product.c.data = wide.ctypes.data + 4 * 16  # its last column wraps into A's first of the next row
    refused(product.gemm(), "c overlaps a")
    assert (wide.view(np.uint32) == POISON.view(np.uint32)).all()


def test_data_of_empty_products_may_be_null(engine):
    product = Product(engine)
    product.a.data = product.b.data = product.c.data = None
    product.a.rows = product.c.rows = 0
    assert product.gemm() == OK
    product = Product(engine)
    product.batch = 0
    product.a.data = product.b.data = product.c.data = None
    assert product.gemm() == OK


def test_a_and_b_may_be_null_when_they_are_not_read():
    context = Context()
    c = poisoned(3, 5)
    a, b = Operand(None, 3, 4, 4, 1, 0), Operand(None, 4, 5, 5, 1, 0)
    binding.gemm(context, a, b, binding.matrix(Result, c), alpha=0.0)
    assert (c == 0).all()
    c[...] = POISON
    a.cols = b.rows = 0
    binding.gemm(context, a, b, binding.matrix(Result, c))
    assert (c == 0).all()


# ---- Contexts -------------------------------------------------------------------------------------------------------

def create_refused(options, *words):
    handle = c_void_p(12345)
    status = lib.tsr_context_create(byref(handle), byref(options))
    assert handle.value is None, "a failed tsr_context_create left a pointer"
    refused(status, *words)


def test_context_pointer_null():
    refused(lib.tsr_context_create(None, None), "context is NULL")


def test_default_options():
    handle = c_void_p()
    assert lib.tsr_context_create(byref(handle), None) == OK
    lib.tsr_context_destroy(handle)


@pytest.mark.parametrize("value", [-1, 2, 99])
def test_bad_device(value):
    create_refused(Options(value, -1, FP32, 0, 0, None), f"options.device is {value}")


@pytest.mark.parametrize("value", [-1, 3, 99])
def test_bad_precision(value):
    create_refused(Options(CPU, -1, value, 0, 0, None), f"options.precision is {value}")


@pytest.mark.parametrize("value", [-1, 1025, 1000000, 2**31 - 1, -2**31])
def test_bad_threads(value):
    create_refused(Options(CPU, -1, FP32, value, 0, None), f"options.threads is {value}", "1 to 1024")


@pytest.mark.parametrize("value", [-2, -2**31])
def test_bad_device_index(value):
    create_refused(Options(CPU, value, FP32, 0, 0, None), f"options.device_index is {value}")


@pytest.mark.parametrize("name", [b"no-such-kernel", b"avx512 ", b"x" * 63, b"x" * 64, b"x" * 100000])
def test_bad_kernel(name):
    create_refused(Options(CPU, -1, FP32, 0, 0, name), "kernel")


@pytest.mark.skipif(binding.lib.tsr_has_cuda() != 0, reason="the library was built with the CUDA engine")
def test_cuda_in_a_build_without_it():
    handle = c_void_p(12345)
    options = Options(binding.CUDA, -1, FP32, 0, 0, None)
    assert lib.tsr_context_create(byref(handle), byref(options)) == binding.UNSUPPORTED
    assert handle.value is None and "CUDA" in lib.tsr_last_error().decode()


@pytest.mark.skipif(binding.lib.tsr_has_cuda() == 0, reason="the library was built without the CUDA engine")
def test_cuda_without_a_gpu():
    import engine as engines
    if engines.DRIVER:
        pytest.skip("there is a GPU here")
    handle = c_void_p(12345)
    options = Options(binding.CUDA, -1, FP32, 0, 0, None)
    assert lib.tsr_context_create(byref(handle), byref(options)) == binding.NO_DEVICE
    assert handle.value is None and lib.tsr_last_error()


def test_stats_and_trim_refuse_null(engine):
    stats = binding.Stats()
    refused(lib.tsr_stats_read(None, byref(stats)), "context is NULL")
    refused(lib.tsr_stats_read(engine.context.handle, None), "stats is NULL")
    refused(lib.tsr_trim(None), "context is NULL")


# ---- Plans ----------------------------------------------------------------------------------------------------------

def test_plan_null(product):
    refused(lib.tsr_plan_create(None, product.context, 1, byref(product.a), byref(product.b), byref(product.c)),
            "plan is NULL")
    refused(lib.tsr_plan_execute(None, 1.0, None, None, 0.0, None, None), "plan is NULL")


@pytest.mark.parametrize("spoiled", ["a", "b", "c"])
def test_execute_refuses_bad_pointers(engine, spoiled):
    product = Product(engine)
    plan = Plan(engine.context, product.a, product.b, product.c)
    addresses = {name: getattr(product, name).data for name in "abc"}

    def execute(address):
        changed = {**addresses, spoiled: address}
        return lib.tsr_plan_execute(plan.handle, 1.0, changed["a"], changed["b"], 0.0, changed["c"], None)

    refused(execute(None), f"{spoiled}.data is NULL")
    refused(execute(addresses[spoiled] + 2), f"{spoiled}.data is not aligned")
    if spoiled != "c":
        refused(execute(addresses["c"]), f"c overlaps {spoiled}")
    assert np.isnan(product.keep[2]).all()


# ---- Packed operands ------------------------------------------------------------------------------------------------

def pack_refused(engine, operand, *words, side=LEFT, context=True):
    handle = c_void_p(12345)
    status = lib.tsr_pack(byref(handle), engine.context.handle if context else None, side, operand and byref(operand),
                          None)
    assert handle.value is None, "a failed tsr_pack left a pointer"
    refused(status, *words)


def test_pack_refusals(engine):
    x = np.ones((3, 4), np.float32)

    def operand(**changes):
        made = binding.matrix(Operand, x)
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    refused(lib.tsr_pack(None, engine.context.handle, LEFT, byref(operand()), None), "packed is NULL")
    pack_refused(engine, operand(), "context is NULL", context=False)
    pack_refused(engine, None, "operand is NULL")
    pack_refused(engine, operand(), "side is 2", side=2)
    pack_refused(engine, operand(), "side is -1", side=-1)
    pack_refused(engine, operand(rows=-3), "operand.rows is -3")
    pack_refused(engine, operand(cols=-4), "operand.cols is -4")
    pack_refused(engine, operand(row_stride=BIG), f"operand.row_stride is {BIG}")
    pack_refused(engine, operand(col_stride=-BIG), f"operand.col_stride is {-BIG}")
    pack_refused(engine, operand(data=None), "operand.data is NULL")
    pack_refused(engine, operand(data=x.ctypes.data + 2), "operand.data is not aligned")


def test_packed_for_something_else(engine, rng):
    a = rng.random((6, 6), np.float32)
    other, c = a.copy(), poisoned(6, 6)
    with engine.resident(a, other, c):
        left, right = Packed(engine.context, LEFT, engine.operand(a)), Packed(engine.context, RIGHT, engine.operand(a))
        stranger = Packed(engine.new_context(), LEFT, engine.operand(a))
        plain, result = engine.operand(a), engine.result(c)

        def attempt(x, y, *words):
            refused(lib.tsr_gemm(engine.context.handle, 1.0, byref(x), byref(y), 0.0, byref(result), None), *words)

        attempt(engine.operand(a, right), plain, "a.packed was packed for the right side")
        attempt(plain, engine.operand(a, left), "b.packed was packed for the left side")
        attempt(engine.operand(a, stranger), plain, "a.packed was made by another context")
        attempt(engine.operand(other, left), plain, "a.packed was packed from another matrix")
        attempt(engine.operand(a.T, left), plain, "a.packed was packed from another matrix")
        attempt(plain, engine.operand(a.T, right), "b.packed was packed from another matrix")
        plan = Plan(engine.context, engine.operand(a, left), plain, result)
        addresses = [engine.address(x) for x in (other, a, c)]
        refused(lib.tsr_plan_execute(plan.handle, 1.0, *addresses[:2], 0.0, addresses[2], None),
                "a.packed was packed from another matrix")


def packed_read(packed, *arguments):
    return lib.tsr_packed_read(packed, *map(c_int64, arguments[:4]), arguments[4])


@pytest.mark.parametrize("side", [LEFT, RIGHT])
def test_elements_of_several_k_blocks(cpu, rng, side):
    x = rng.random((1301, 19) if side == RIGHT else (19, 1301), np.float32)  # the last block of k is the shortest
    packed, whole = Packed(cpu.context, side, binding.matrix(Operand, x)), np.zeros_like(x)
    assert packed_read(packed.handle, 0, 0, *x.shape, c_void_p(whole.ctypes.data)) == OK and np.array_equal(whole, x)


@pytest.mark.parametrize("side", [LEFT, RIGHT])
def test_elements_of_a_packed_operand(cpu, rng, side):
    x, whole, part = rng.random((45, 500), np.float32), np.zeros((45, 500), np.float32), np.zeros((3, 7), np.float32)
    packed = Packed(cpu.context, side, binding.matrix(Operand, x))
    assert packed_read(packed.handle, 0, 0, 45, 500, c_void_p(whole.ctypes.data)) == OK and np.array_equal(whole, x)
    to = c_void_p(part.ctypes.data)
    assert packed_read(packed.handle, 41, 490, 3, 7, to) == OK and np.array_equal(part, x[41:44, 490:497])
    assert packed_read(packed.handle, 45, 500, 0, 0, None) == OK
    refused(packed_read(None, 0, 0, 1, 1, to), "packed is NULL")
    refused(packed_read(packed.handle, 0, 0, 1, 1, None), "to is NULL")
    negative = [(-1, 0, 1, 1), (0, -1, 1, 1), (0, 0, -1, 1), (0, 0, 1, -1)]
    for outside in [*negative, (44, 0, 2, 1), (0, 499, 1, 2), (2**62, 0, 2**62, 1)]:
        refused(packed_read(packed.handle, *outside, to), "leave the matrix")


# ---- Messages -------------------------------------------------------------------------------------------------------

def test_status_names():
    names = [
        "TSR_OK", "TSR_INVALID_ARGUMENT", "TSR_OUT_OF_MEMORY", "TSR_UNSUPPORTED", "TSR_NO_DEVICE", "TSR_DEVICE_ERROR"
    ]
    assert [lib.tsr_status_name(i).decode() for i in range(6)] == names
    for status in (-1, 6, 1000):
        assert lib.tsr_status_name(status) == b"unknown status"


def test_last_error_belongs_to_its_thread():
    refused(lib.tsr_trim(None), "context is NULL")
    seen = []
    at_once(lambda _: seen.append(lib.tsr_last_error()), 1)
    assert seen == [b""]
    assert lib.tsr_last_error() == b"context is NULL"


def test_last_error_survives_a_success():
    refused(lib.tsr_trim(None), "context is NULL")
    Context()
    assert lib.tsr_last_error() == b"context is NULL"


def test_info_is_cut_as_snprintf_cuts():
    whole = binding.info()
    assert lib.tsr_info_print(None, 100) == len(whole)
    text = ctypes.create_string_buffer(b"\xa5" * 20)
    assert lib.tsr_info_print(text, 10) == len(whole)
    assert text.raw[:10] == whole.encode()[:9] + b"\0" and text.raw[10:20] == b"\xa5" * 10
    assert lib.tsr_info_print(text, 0) == len(whole)
