"""Edges of the CPU engine: every alpha, long rows with strided addends, results that overlap operands, forks, cores."""

import ctypes
import mmap
import os

import numpy as np
import pytest

import binding
from binding import IEEE, Operand, Plan, Result, gemm, gemm_add
from layouts import assert_guards, column_major, filled, row_major
from reference import integers
from toolchain import run_python

# ---- Every alpha ----------------------------------------------------------------------------------------------------

SHAPES = [(2, 1, 2048), (2, 70, 2048), (1, 500, 3000), (3, 400, 1400), (150, 170, 1500), (20, 1, 9000)]


def cancelling(m, n, k):
    """Operands whose products are 1 in the whole, and large in each block of k."""
    a, b = np.ones((m, k), np.float32), np.full((k, n), 0.25, np.float32)
    b[k // 2:] = -0.25
    b[-1] += 1 if k % 2 == 0 else 1.25
    return a, b


@pytest.mark.parametrize("alpha", [2.0**120, -(2.0**125), 3.0, np.inf, np.nan])
@pytest.mark.parametrize("m, n, k", SHAPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_alpha_is_applied_once(cpu, alpha, m, n, k, threads):
    """Parts of a sum times alpha overflow, the whole does not: with beta = 0, with C as the addend and with another."""
    a, b = cancelling(m, n, k)
    context = cpu.new_context(threads=threads)
    old = np.arange(m * n, dtype=np.float32).reshape(m, n)
    for beta, other in ((0.0, False), (0.5, False), (0.5, True)):
        c = old.copy()
        if other:
            addend = np.asfortranarray(old)
            gemm_add(context, cpu.operand(a), cpu.operand(b), binding.matrix(Operand, addend), cpu.result(c), alpha,
                     beta)
        else:
            gemm(context, cpu.operand(a), cpu.operand(b), cpu.result(c), alpha, beta)
        expected = (np.float64(alpha) + beta * old.astype(np.float64)).astype(np.float32)
        assert np.array_equal(c, expected, equal_nan=True)


@pytest.mark.parametrize("alpha", [3.0, -1.5])
@pytest.mark.parametrize("m, n, k", [(64, 96, 1300), (4, 600, 1300), (1, 700, 2000), (97, 205, 1290)])
def test_room_does_not_change_bits(cpu, rng, alpha, m, n, k):
    """Sums that cannot be added up in C are computed in chunks, as large as the workspace has room for."""
    a, b, old = (rng.standard_normal(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
    results = []
    for room in (0, 3_000_000, 400_000):
        for threads in (1, 2):
            c = old.copy()
            cpu.multiply(a, b, c, alpha, 0.5, context=cpu.new_context(threads=threads, max_workspace=room))
            results.append(c)
    assert all(np.array_equal(c, results[0]) for c in results)
    apart = np.empty_like(old)
    gemm_add(cpu.context, cpu.operand(a), cpu.operand(b), binding.matrix(Operand, old), cpu.result(apart), alpha, 0.5)
    assert np.array_equal(apart, results[0])


@pytest.mark.parametrize("side", [binding.LEFT, binding.RIGHT])
def test_alpha_with_a_packed_operand(cpu, rng, side):
    """Chunks find their rows or columns in operands that were packed whole."""
    m, n, k = 140, 300, 1300
    context = cpu.new_context(threads=2, max_workspace=1_000_000)
    a, b, c = integers(rng, m, k, largest=4), integers(rng, k, n, largest=4), integers(rng, m, n, largest=4)
    operands = [cpu.operand(a), cpu.operand(b)]
    packed = binding.Packed(context, side, operands[side == binding.RIGHT])
    operands[side == binding.RIGHT].packed = packed.handle
    expected = 3 * (a.astype(np.float64) @ b) + 2.0 * c
    gemm(context, *operands, cpu.result(c), 3.0, 2.0)
    assert np.array_equal(c, expected)


# ---- Addends and overlaps -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("b_order", ["C", "F"])
def test_strided_addend_on_a_long_row(cpu, rng, m, b_order):
    """The addend's elements are apart, C's are not: longer than any buffer that it is gathered in."""
    n, k = 20_000, 70
    a, b = integers(rng, m, k), np.asarray(integers(rng, k, n), order=b_order)
    addend, c = integers(rng, m, 2 * n)[:, ::2], row_major(m, n)
    gemm_add(cpu.context, cpu.operand(a), cpu.operand(b), binding.matrix(Operand, addend), cpu.result(c), 1.0, 1.0)
    assert np.array_equal(c, a.astype(np.float64) @ b + addend)
    assert_guards(c)


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("where", ["head", "tail"])
def test_small_result_that_overlaps_an_operand(cpu, operand, where):
    """By one element: refused, however small the product is."""
    side = 8
    memory = np.zeros(4 * side * side, np.float32)
    base, size = memory.ctypes.data, side * side
    shared = base + 4 * size
    c_at = shared + 4 * (size - 1) if where == "tail" else shared - 4 * (size - 1)
    other = np.zeros((side, side), np.float32)
    operands = {
        name: Operand(shared if name == operand else other.ctypes.data, side, side, side, 1, 0) for name in "ab"
    }
    with pytest.raises(binding.TesseraError, match=f"c overlaps {operand}"):
        gemm(cpu.context, operands["a"], operands["b"], Result(c_at, side, side, side, 1, 0))


# ---- Workers --------------------------------------------------------------------------------------------------------

AFTER_FORK = """
import os, sys
import numpy as np, binding
x, c = np.ones((400, 400), np.float32), np.zeros((400, 400), np.float32)
context = binding.Context(threads=3)
def threads_after_a_product():
    operand = binding.matrix(binding.Operand, x)
    binding.gemm(context, operand, operand, binding.matrix(binding.Result, c))
    return len(os.listdir("/proc/self/task"))
before = len(os.listdir("/proc/self/task"))
assert threads_after_a_product() == before + 2
if os.fork() == 0:
    print(threads_after_a_product(), flush=True)
    os._exit(0)
os.wait()
"""


def test_a_child_starts_workers_of_its_own():
    """Those of its parent, idle at the time of the fork, are not in the child."""
    assert run_python(AFTER_FORK).split() == ["3"]


CORES_AFTER_A_BOUND_CALLER = """
import os, threading
import numpy as np, binding
x, c = np.ones((700, 700), np.float32), np.zeros((700, 700), np.float32)
context = binding.Context(threads=2)
def multiply():
    operand = binding.matrix(binding.Operand, x)
    binding.gemm(context, operand, operand, binding.matrix(binding.Result, c))
def bound():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    multiply()
thread = threading.Thread(target=bound)
thread.start()
thread.join()
def masks():
    return {tuple(sorted(os.sched_getaffinity(int(task)))) for task in os.listdir("/proc/self/task")}
for _ in range(10000): # on a busy machine a product may be over before the worker has come
    multiply()
    if len(masks()) == 1: break
print(len(masks()))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_workers_follow_their_caller():
    """A worker that a bound thread has started runs on all cores of the next caller."""
    assert run_python(CORES_AFTER_A_BOUND_CALLER).strip() == "1"


@pytest.mark.parametrize("m, n, k", [(243, 5, 225), (700, 8, 90), (130, 3, 1300), (90, 40, 700), (17, 7, 3000)])
def test_two_threads_share_a_few_columns(cpu, rng, m, n, k):
    """A is transposed. Each member computes rows of C, over one or several k blocks, with the bits of one thread."""
    a, b = rng.standard_normal((k, m), np.float32).T, rng.standard_normal((k, n), np.float32)
    results = []
    for threads in (1, 2):
        c = row_major(m, n)
        cpu.multiply(a, b, c, 0.5, context=cpu.new_context(threads=threads))
        assert_guards(c)
        results.append(c)
    assert np.array_equal(*results)
    assert np.allclose(results[0], 0.5 * (a.astype(np.float64) @ b), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("threads", [2, pytest.param(3, marks=pytest.mark.sanitizer)])
@pytest.mark.parametrize("layout_c", [row_major, column_major])
@pytest.mark.parametrize("m, n, k", [(24, 8, 4000), (4, 109, 2600), (60, 60, 8000), (9, 30, 4500)])
def test_members_share_terms(cpu, rng, m, n, k, layout_c, threads):
    """Members sum k blocks of a small C beside each other. The bits are those of one thread, for every alpha and
    addend."""
    if cpu.precision != IEEE:
        pytest.skip("AMX shares other parts")
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    old = rng.standard_normal((m, n), np.float32)
    contexts = [cpu.new_context(threads=count) for count in (1, threads)]
    text = Plan(contexts[1], cpu.operand(a), cpu.operand(b), cpu.result(layout_c(m, n))).text()
    assert f"threads: {threads}, each on " in text and " terms at a time" in text
    for alpha, beta in [(1, 0), (1, 0.75), (0.3, 0), (0.3, -2), (2.5, 0), (2.5, 0.75)]:
        results = []
        for context in contexts:
            c = filled(layout_c, old)
            cpu.multiply(a, b, c, alpha, beta, context=context)
            assert_guards(c)
            results.append(c)
        assert np.array_equal(*results), (alpha, beta)
# ---- Memory between rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True])
def test_memory_between_rows_is_not_read(cpu, rng, transposed):
    """It may be another's: here pages that nobody may read lie between the rows."""
    rows, length, page = 12, 64, mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * rows * page)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    matrix = np.ndarray((rows, length), np.float32, memory, 0, (2 * page, 4))
    matrix[...] = integers(rng, rows, length)
    expected = matrix.copy()
    for row in range(rows):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + (2 * row + 1) * page), page, 0) == 0
    other = integers(rng, rows if transposed else length, 20)
    c, a = row_major(length if transposed else rows, 20), matrix.T if transposed else matrix
    gemm(cpu.context, binding.matrix(Operand, a), cpu.operand(other), binding.matrix(Result, c))
    assert np.array_equal(c, (expected.T if transposed else expected) @ other)
