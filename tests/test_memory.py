"""Memory: what a product takes beyond its operands, and what happens when there is none."""

import pytest

from binding import Operand, Plan, Result
from toolchain import run_python

MIB = 2**20


@pytest.mark.parametrize("threads", [1, 2, 5, 16])
@pytest.mark.parametrize("m, n, k", [(4096, 4096, 4096), (2048, 4096, 8192), (8205, 5921, 2949), (64, 64, 10**6),
                                     (10**6, 8, 8), (8, 10**6, 8), (1, 10**6, 100), (100, 1, 10**6)])
def test_workspace_per_thread(cpu, threads, m, n, k):
    """Under 16 MiB for each thread, whatever the shape and strides."""
    context = cpu.new_context(threads=threads)
    row_major = Operand(None, m, k, k, 1, 0), Operand(None, k, n, n, 1, 0), Result(None, m, n, n, 1, 0)
    column_major = Operand(None, m, k, 1, m, 0), Operand(None, k, n, 1, k, 0), Result(None, m, n, 1, m, 0)
    for matrices in (row_major, column_major):
        assert Plan(context, *matrices).workspace() < 16 * MIB * threads


PEAK = """
import resource, sys
import numpy as np
import binding
threads = int(sys.argv[1])
a, b, c = np.ones((1500, 1500), np.float32), np.ones((1500, 1500), np.float32), np.ones((1500, 1500), np.float32)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
context = binding.Context(threads=threads)
binding.gemm(context, *(binding.matrix(binding.Operand, x) for x in (a, b.T)), binding.matrix(binding.Result, c))
assert (c == 1500).all()
print(peak() - before)
"""


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_peak_memory_beyond_the_operands(threads):
    """As the system counts it: panels, stacks and all."""
    assert int(run_python(PEAK, threads)) < 16 * 1024 * threads  # KiB


STARVED = """
import ctypes, resource
import numpy as np
import binding
from layouts import POISON
# M_MMAP_THRESHOLD: what is freed goes back to the system, so that no heap has room left.
ctypes.CDLL(None).mallopt(-3, 2**16)
size = 1200
a = np.random.default_rng(1).integers(-8, 9, (size, size)).astype(np.float32)
expected = a.T.astype(np.float64) @ a
c = np.full((size, size), POISON, np.float32)
left, right = binding.matrix(binding.Operand, a.T), binding.matrix(binding.Operand, a)  # both are packed
result = binding.matrix(binding.Result, c)
def used(): return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
refused = served = 0
for room in (0, 2**16, 2**18, 2**20, 2**22, 2**24, 2**28):
    context = binding.Context(threads=4)
    binding.check(binding.lib.tsr_trim(context.handle))
    c.fill(POISON)
    resource.setrlimit(resource.RLIMIT_AS, (used() + room, resource.RLIM_INFINITY))
    try:
        binding.gemm(context, left, right, result)
        status = None
    except binding.TesseraError as error:
        status, message = error.status, error.message
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if status is None:
        served += 1
        assert np.array_equal(c, expected), room
    else:
        refused += 1
        assert status == binding.OUT_OF_MEMORY and message, (status, message)
        assert (c.view(np.uint32) == POISON.view(np.uint32)).all(), "a call that failed wrote to C"
    binding.gemm(context, left, right, result)
    assert np.array_equal(c, expected), "the context was not usable afterwards"
print(refused, served)
"""


def test_out_of_memory():
    """Under an address-space limit: TSR_OUT_OF_MEMORY with nothing written, or a right result; usable afterwards. Fewer
    threads than asked for is no failure."""
    refused, served = map(int, run_python(STARVED).split())
    assert refused >= 1, "the limit was never felt: this test tests nothing"
    assert served >= 1


def test_a_limit_of_workspace_counts_what_the_call_takes(cpu):
    """max_workspace bounds a plan's workspace even for shapes that would like much more."""
    for limit in (MIB, 256 * 1024):
        context = cpu.new_context(max_workspace=limit, threads=8)
        plan = Plan(context, Operand(None, 4000, 4000, 4000, 1, 0), Operand(None, 4000, 4000, 4000, 1, 0),
                    Result(None, 4000, 4000, 4000, 1, 0))
        assert 0 < plan.workspace() <= limit
