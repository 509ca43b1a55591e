"""Products of matrices in host memory (src/offload), on the fake driver, whose streams do nothing until they are waited
for: a copy or product that does not wait for what it needs gives a wrong result. test_cuda_host.py starts it."""

from ctypes import byref, c_double

import numpy as np
import pytest

import binding
import engine as engines
import layouts
from at_once import at_once
from binding import CPU, CUDA, FP32, IEEE, TF32, Context, Operand, Result, lib

DRIVER = engines.DRIVER
fake = DRIVER.lib
OUT_OF_MEMORY, LOST = 2, 719
MIB = 1 << 20


@pytest.fixture(autouse=True)
def lazy():
    DRIVER.use(DRIVER.context)
    DRIVER.free_kept()
    blocks, depth = fake.fake_blocks(), fake.fake_context_depth()
    fake.fake_be_lazy(1)
    yield
    fake.fake_break(b"", 0)
    fake.fake_be_lazy(0)
    assert fake.fake_blocks() == blocks, "memory was left on the GPU, or pinned"
    assert fake.fake_context_depth() == depth


class Problem:
    """Integer-valued matrices in host memory, in given layouts, and what C must become."""

    def __init__(self, m, n, k, beta=0.0, batch=None, layout=("row_major",) * 3):
        rng = np.random.default_rng(m + 2 * n + 3 * k)
        leading = () if batch is None else (batch,)
        self.batch, self.beta = batch or 1, beta
        shapes = [(*leading, m, k), (*leading, k, n), (*leading, m, n)]
        values = [rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes]
        self.a, self.b, self.c = [layouts.filled(layouts.LAYOUTS[name], x) for name, x in zip(layout, values)]
        self.inputs = self.a.copy(), self.b.copy()
        self.before = self.c.copy()
        self.expected = (2 * self.a.astype(np.float64) @ self.b.astype(np.float64) + beta * self.before).astype(
            np.float32)

    def run(self, context):
        """(status, share)."""
        share = c_double(-1)
        status = lib.tsr_gemm_host(context.handle, self.batch, 2.0, byref(binding.matrix(Operand, self.a)),
                                   byref(binding.matrix(Operand, self.b)), self.beta,
                                   byref(binding.matrix(Result, self.c)), byref(share))
        return status, share.value

    def check(self):
        wrong = np.argwhere(self.c != self.expected)
        assert not len(wrong), f"{len(wrong)} of {self.c.size} elements are wrong, the first at {wrong[0]}"
        layouts.assert_guards(self.c)
        assert np.array_equal(self.a, self.inputs[0]) and np.array_equal(self.b, self.inputs[1])

    def untouched(self):
        return np.array_equal(self.c, self.before)


# Which limits on the GPU's memory cut the product into how many blocks and chunks follows from partition.c; together
# they make each loop run once and several times.
SHAPES = [(1, 1, 1, 0), (33, 65, 17, 0), (1500, 1600, 3, 0), (1600, 1500, 3, 0), (3, 5, 400000, 0),
          (200, 300, 500, 1 * MIB), (300, 200, 500, 1 * MIB), (70, 90, 3000, 1 * MIB), (150, 160, 170, 300000),
          (10, 3000, 40, 300000)]


@pytest.mark.parametrize("beta", [0.0, 3.0])
@pytest.mark.parametrize("m, n, k, limit", SHAPES)
def test_products(m, n, k, limit, beta):
    problem = Problem(m, n, k, beta)
    assert problem.run(Context(CUDA, IEEE, max_workspace=limit)) == (0, 1)
    problem.check()


@pytest.mark.parametrize("precision, kernel", [(FP32, "split_fp32_sm90"), (TF32, "split_tf32_sm90")])
@pytest.mark.parametrize("m, n, k, limit", [(200, 300, 500, 4 * MIB), (700, 1100, 130, 0), (1100, 300, 130, 0)])
def test_splitting_kernels(m, n, k, limit, precision, kernel):
    """The second and third in strips that are packed once, for several blocks."""
    problem, context = Problem(m, n, k, 3.0), Context(CUDA, precision, kernel=kernel, max_workspace=limit)
    assert problem.run(context) == (0, 1)
    problem.check()
    assert context.stats().fallback_tiles == 0, "strips that were not packed are recomputed"


@pytest.mark.parametrize("layout", [("row_major", "column_major", "column_major"),
                                    ("column_major", "column_major", "row_major"),
                                    ("padded", "padded_columns", "padded"),
                                    ("padded_columns", "padded", "padded_columns"), ("stepped", "backward", "stepped"),
                                    ("backward_rows", "stepped", "backward_columns")])
def test_layouts(layout):
    problem = Problem(150, 160, 170, 1.0, layout=layout)
    assert problem.run(Context(CUDA, IEEE, max_workspace=MIB)) == (0, 1)
    problem.check()


@pytest.mark.parametrize("limit", [0, MIB])
def test_batch(limit):
    problem = Problem(100, 110, 120, 1.0, batch=7, layout=("padded", "column_major", "padded_columns"))
    assert problem.run(Context(CUDA, IEEE, max_workspace=limit)) == (0, 1)
    problem.check()


@pytest.mark.parametrize("m, n, k", [(411, 5300, 12), (437, 6700, 21), (402, 6100, 17)])
def test_many_transfer_blocks_both_ways(m, n, k):
    """With the library whose copiers stall, copies end in another order than they began."""
    problem = Problem(m, n, k, 1.0)
    assert problem.run(Context(CUDA, IEEE, threads=3, max_workspace=8 * MIB)) == (0, 1)
    problem.check()


def test_many_transfer_blocks_of_more_blocks_than_there_is_room_for():
    problem = Problem(150, 160, 1, batch=100)
    assert problem.run(Context(CUDA, IEEE, threads=3)) == (0, 1)
    problem.check()


def test_nothing_to_do():
    context = Context(CUDA, IEEE)
    for shape in [(0, 5, 5), (5, 0, 5), (5, 5, 0)]:
        problem = Problem(*shape, beta=3.0)
        assert problem.run(context) == (0, 1)
        problem.check()


def test_on_the_cpu():
    problem = Problem(100, 110, 120, 1.0, batch=3)
    assert problem.run(Context(CPU, IEEE)) == (0, 1)
    problem.check()


def test_again_and_again():
    """What is kept from call to call serves larger and smaller products after it."""
    context = Context(CUDA, IEEE, max_workspace=MIB)
    for size in (50, 400, 10, 200):
        problem = Problem(size, size + 3, size + 5, 1.0)
        assert problem.run(context) == (0, 1)
        problem.check()
    assert lib.tsr_trim(context.handle) == 0
    assert problem.run(context) == (0, 1)


def test_at_once_from_many_threads():
    context = Context(CUDA, IEEE, max_workspace=MIB)
    problems = [Problem(150, 160 + i, 170, 1.0) for i in range(6)]

    def work(i):
        assert problems[i].run(context) == (0, 1)
        problems[i].check()

    at_once(work, 6)


def test_less_memory_than_there_should_be():
    """Somebody else has taken it: smaller blocks, the same result."""
    context, problem = Context(CUDA, IEEE, max_workspace=8 * MIB), Problem(300, 400, 500, 1.0)
    fake.fake_break(b"cuMemAlloc", OUT_OF_MEMORY)
    assert problem.run(context) == (0, 1)
    problem.check()


def test_too_little_memory_for_anything():
    problem = Problem(300, 400, 500)
    status, share = problem.run(Context(CUDA, IEEE, max_workspace=4096))
    assert status == binding.OUT_OF_MEMORY and share == 0 and problem.untouched()
    assert "4096 bytes on the GPU are too few" in lib.tsr_last_error().decode()


CALLS = [
    "cuMemAlloc", "cuMemHostAlloc", "cuEventCreate", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuLaunchKernelEx",
    "cuEventRecord", "cuEventQuery"
]


@pytest.mark.parametrize("for_good", [0, 1])
@pytest.mark.parametrize("call", CALLS)
def test_a_gpu_that_fails(call, for_good):
    """At whichever of these calls it fails, once or from then on: the result is right, or nothing has been written and
    the caller is told. Both must come up, or the test tests nothing."""
    outcomes, early = set(), call in ("cuMemAlloc", "cuMemHostAlloc", "cuEventCreate")  # before the first product alone
    context = None
    for calls_before in (0, 1, 2, 3, 5, 8, 13, 21, 34):
        if early or for_good or not context:
            context = Context(CUDA, IEEE, max_workspace=MIB)
        problem = Problem(130, 300, 20, 3.0, batch=6)
        fake.fake_break_later(call.encode(), LOST, calls_before, for_good)
        status, share = problem.run(context)
        message = lib.tsr_last_error().decode()
        fake.fake_break(b"", 0)
        if status:
            assert problem.untouched() and share == 0 and "CUDA_ERROR_719" in message
        else:
            problem.check()
            assert share == 1 or "CUDA_ERROR_719" in message
        outcomes.add("refused" if status else "finished by the CPU" if share < 1 else "done")
    expected = {"refused"} if early else {"refused", "finished by the CPU"}
    assert expected <= outcomes, outcomes


def test_a_failed_context_recovers():
    context = Context(CUDA, IEEE, max_workspace=MIB)
    problem = Problem(300, 400, 500, 1.0)
    fake.fake_break_later(b"cuMemcpyDtoHAsync", LOST, 3, 0)
    status, share = problem.run(context)
    assert status == 0 and 0 < share < 1
    problem.check()
    problem = Problem(300, 400, 500, 1.0)
    assert problem.run(context) == (0, 1)
    problem.check()
