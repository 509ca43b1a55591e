"""Plans, and workspace that the caller brings."""

import ctypes
import re

import numpy as np
import pytest

import binding
import cuda_driver
import engine as engines
from binding import CPU, INVALID_ARGUMENT, Launch, Operand, Plan, Result, TesseraError
from layouts import filled, padded, row_major, stepped
from reference import assert_exact, integers


def shape_only(kind, rows, cols):
    return kind(None, rows, cols, cols, 1, 0)


def plan_of(engine, m, n, k, context=None):
    return Plan(context or engine.context, shape_only(Operand, m, k), shape_only(Operand, k, n), shape_only(
        Result, m, n))


class Workspace:
    """Caller's workspace on the engine's device, 256-byte aligned plus `shift`, with guard bytes."""

    def __init__(self, engine, size, shift=0):
        self.size, self.buffer = size, None
        if engine.device == CPU:
            self.bytes = np.full(size + 1024, 0xA5, np.uint8)
            self.at = -self.bytes.ctypes.data % 256 + 256 + shift
            self.address = self.bytes.ctypes.data + self.at
        else:
            self.buffer = cuda_driver.Buffer(engines.DRIVER, size, shift)
            self.address = self.buffer.address
        self.launch = Launch(None, self.address, size)

    def check_guards(self):
        if self.buffer:
            self.buffer.get(np.uint8)
            self.buffer.free()
        else:
            assert (self.bytes[:self.at] == 0xA5).all(), "bytes in front of the workspace were written"
            assert (self.bytes[self.at + self.size:] == 0xA5).all(), "bytes behind the workspace were written"


def execute(engine, plan, a, b, c, alpha=1.0, beta=0.0, launch=None):
    with engine.resident(a, b, changed=[c]):
        plan.execute(engine.address(a), engine.address(b), engine.address(c), alpha, beta, launch)


@pytest.mark.sanitizer
def test_execute_many_times(engine, rng):
    """One plan, other matrices and factors each time."""
    plan = plan_of(engine, 61, 47, 90)
    for alpha, beta in [(1.0, 0.0), (2.0, 1.0), (0.0, -1.0), (-1.0, 3.0), (0.0, 0.0)]:
        a, b, before = integers(rng, 61, 90), integers(rng, 90, 47), integers(rng, 61, 47)
        c = before.copy() if beta else row_major(61, 47)
        execute(engine, plan, a, b, c, alpha, beta)
        assert_exact(c, a, b, alpha, beta, before)


def test_strides_are_the_plans(engine, rng):
    a, b, c = filled(stepped, integers(rng, 30, 40)), filled(padded, integers(rng, 40, 20)), stepped(30, 20)
    with engine.resident(a, b, changed=[c]):
        plan = Plan(engine.context, engine.operand(a), engine.operand(b), engine.result(c))
    execute(engine, plan, a, b, c)
    assert_exact(c, a, b)


def test_batched_plan(engine, rng):
    a, b, c = integers(rng, 3, 20, 30), integers(rng, 3, 30, 10), row_major(3, 20, 10)
    with engine.resident(a, b, changed=[c]):
        plan = Plan(engine.context, engine.operand(a), engine.operand(b), engine.result(c), batch=3)
    execute(engine, plan, a, b, c)
    assert np.array_equal(c, a.astype(np.float64) @ b)


def test_same_bits_as_gemm(engine, rng):
    a, b = rng.standard_normal((300, 500), np.float32), rng.standard_normal((500, 200), np.float32)
    c = row_major(300, 200)
    execute(engine, plan_of(engine, 300, 200, 500), a, b, c)
    assert np.array_equal(c, engine.product(a, b))


@pytest.mark.sanitizer
@pytest.mark.parametrize("m, n, k", [(5, 6, 7), (200, 300, 400), (1, 5000, 33), (700, 10, 900)])
def test_workspace_of_exactly_the_size(engine, rng, m, n, k):
    plan = plan_of(engine, m, n, k)
    workspace = Workspace(engine, plan.workspace())
    a, b, c = integers(rng, m, k), integers(rng, k, n), row_major(m, n)
    for _ in range(2):
        execute(engine, plan, a, b, c, launch=workspace.launch)
        assert_exact(c, a, b)
    workspace.check_guards()


def refuse(engine, rng, plan, workspace, words):
    a, b, c = integers(rng, 200, 400), integers(rng, 400, 300), row_major(200, 300)
    with pytest.raises(TesseraError, match=words) as error:
        execute(engine, plan, a, b, c, launch=workspace.launch)
    assert error.value.status == INVALID_ARGUMENT and np.isnan(c).all()
    workspace.check_guards()


def test_workspace_too_small(engine, rng):
    plan = plan_of(engine, 200, 300, 400)
    size = plan.workspace()
    if not size:
        pytest.skip("this engine needs no workspace here")
    refuse(engine, rng, plan, Workspace(engine, size - 1), rf"launch\.workspace_size is {size - 1}; .* {size} bytes")


@pytest.mark.parametrize("shift", [1, 4, 64, 128, 255])
def test_workspace_misaligned(engine, rng, shift):
    plan = plan_of(engine, 200, 300, 400)
    workspace = Workspace(engine, plan.workspace() + 512, shift)
    refuse(engine, rng, plan, workspace, r"launch\.workspace is not aligned to 256 bytes")


def test_max_workspace_is_kept(engine, rng):
    """With less memory the plan takes less, and the product stays right; what no plan can do is refused, not
    exceeded."""
    a, b = integers(rng, 300, 400), integers(rng, 400, 350)
    free = plan_of(engine, 300, 350, 400).workspace()
    for limit in (free, free // 2, free // 8, 64 * 1024, 4096, 1):
        if not limit:
            continue
        context = engine.new_context(max_workspace=limit)
        try:
            plan = plan_of(engine, 300, 350, 400, context)
        except TesseraError as error:
            assert error.status in (binding.OUT_OF_MEMORY, binding.UNSUPPORTED, INVALID_ARGUMENT), error
            assert "max_workspace" in error.message
            continue
        assert plan.workspace() <= limit
        c = row_major(300, 350)
        execute(engine, plan, a, b, c)
        assert_exact(c, a, b)


def test_print(engine):
    text = plan_of(engine, 123, 456, 789).text()
    lines = text.splitlines()
    assert lines[0] == "problem: 123 x 456 x 789 (m, n, k)"
    assert f"precision: {binding.PRECISIONS[engine.precision]}" in lines
    assert all(": " in line for line in lines) and text.endswith("\n")
    if engine.kernel:
        assert engine.kernel in text


def test_estimate(engine):
    """An estimate grows with the product, and is printed with the plan."""
    seconds = [plan_of(engine, n, n, n).seconds() for n in (64, 512, 4096, 32768)]
    assert seconds == sorted(set(seconds)) and 1e-7 < seconds[0] and seconds[2] < 60, seconds
    number, unit = re.search(r"^estimate: (\S+) (us|ms|s)$", plan_of(engine, 512, 512, 512).text(), re.M).groups()
    assert float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit] == pytest.approx(seconds[1], rel=1e-3)


def test_is_split(engine):
    """What the plan says, and what tsr_stats counts."""
    for m, n, k in ((1, 5, 7), (2000, 2000, 2000), (100, 60, 150)):
        plan = plan_of(engine, m, n, k)
        assert plan.is_split() == ("kernel: split_" in plan.text() or "kernel: amx" in plan.text())
    before = engine.context.stats().split_products
    execute(engine, plan, np.ones((100, 150), np.float32), np.ones((150, 60), np.float32), row_major(100, 60))
    assert engine.context.stats().split_products - before == plan.is_split()


def test_print_is_cut_as_snprintf_cuts(engine):
    plan = plan_of(engine, 10, 20, 30)
    whole = plan.text()
    for size in (1, 2, 10, len(whole), len(whole) + 1):
        text = ctypes.create_string_buffer(b"\xa5" * (len(whole) + 8))
        assert binding.lib.tsr_plan_print(plan.handle, text, size) == len(whole)
        assert text.raw[:size] == whole.encode()[:size - 1] + b"\0"
        assert text.raw[size:len(whole) + 8] == b"\xa5" * (len(whole) + 8 - size)


def test_plans_are_the_same_every_time(engine):
    assert plan_of(engine, 777, 555, 333).text() == plan_of(engine, 777, 555, 333).text()


def test_null_is_allowed_where_the_header_says():
    assert binding.lib.tsr_plan_workspace(None) == 0
    assert binding.lib.tsr_plan_seconds(None) == 0
    assert binding.lib.tsr_plan_is_split(None) == 0
    assert binding.lib.tsr_plan_print(None, None, 0) == 0
    binding.lib.tsr_plan_destroy(None)
    binding.lib.tsr_packed_destroy(None)
    binding.lib.tsr_context_destroy(None)
