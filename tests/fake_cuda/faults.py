"""What survives what, on the stand-in driver: memory that runs out at each allocation in turn, launches that fail, a
device that is lost in the middle and reset, 64 threads on 16 streams with graphs. The table in docs/guide/limits.md is
what is asserted here. test_gpu_faults.py starts it."""

import contextlib
import threading
from ctypes import byref, c_int, c_void_p

import numpy as np
import pytest

import binding
from at_once import at_once
from binding import CUDA, FP32, IEEE, RIGHT, Context, Launch, Operand, Result, lib
from cuda_driver import CudaError
from scenarios import DRIVER, OUT_OF_MEMORY_ERROR, Problem, fake, fresh, names, refused  # noqa: F401

ILLEGAL_ADDRESS, ECC_UNCORRECTABLE, LAUNCH_FAILED = 700, 214, 719
LOST = [ILLEGAL_ADDRESS, ECC_UNCORRECTABLE, LAUNCH_FAILED]


def create(precision=FP32, kernel=None):
    """(status, handle)"""
    handle = c_void_p(1)
    status = lib.tsr_context_create(byref(handle), byref(binding.Options(CUDA, -1, precision, 0, 0, kernel)))
    assert (handle.value is None) == (status != 0), "a failed call must set *context to NULL"
    return status, handle


def pack(context, operand):
    handle = c_void_p(1)
    status = lib.tsr_pack(byref(handle), context, RIGHT, byref(operand), None)
    assert (handle.value is None) == (status != 0), "a failed call must set *packed to NULL"
    return status, handle


def multiply(context, problem, operand_b=None):
    return lib.tsr_gemm_batch(context, 1, 1.0, byref(problem.operand_a), byref(operand_b or problem.operand_b), 0.0,
                              byref(problem.result_c), None)


class HostProblem:
    """A product in host memory, for tsr_gemm_host."""
    def __init__(self, m=90, n=80, k=70):
        rng = np.random.default_rng(m)
        self.a, self.b = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        self.c = np.full((m, n), np.nan, np.float32)

    def run(self, context):
        """(status, share): the product is right, or nothing was written."""
        share = binding.c_double(-1)
        a, b = (binding.matrix(Operand, x) for x in (self.a, self.b))
        self.c[...] = -1234
        status = lib.tsr_gemm_host(context, 1, 1.0, byref(a), byref(b), 0.0, byref(binding.matrix(Result, self.c)),
                                   byref(share))
        assert (self.c == -1234).all() if status else np.array_equal(self.c, self.a @ self.b)
        return status, share.value


# ---- Memory ---------------------------------------------------------------------------------------------------------

def everything(problem, host):
    """Each kind of call once; {call: status}. A call whose object could not be made is left out."""
    statuses = {}
    statuses["create"], context = create(FP32, b"split_fp32_sm90")
    if not context:
        return statuses
    statuses["gemm"] = multiply(context, problem)
    if statuses["gemm"] == 0:
        problem.check()
    statuses["pack"], packed = pack(context, problem.operand_b)
    if packed:
        with_packed = Operand.from_buffer_copy(problem.operand_b)
        with_packed.packed = packed
        statuses["gemm with packed B"] = multiply(context, problem, with_packed)
    statuses["stats"] = lib.tsr_stats_read(context, byref(binding.Stats()))
    statuses["gemm_host"], _ = host.run(context)
    lib.tsr_packed_destroy(packed)
    lib.tsr_context_destroy(context)
    return statuses


@pytest.mark.parametrize("call", ["cuMemAlloc", "cuMemAllocFromPoolAsync", "cuMemHostAlloc"])
def test_memory_runs_out_at_each_allocation(call):
    """The call says so, what others need is there, and nothing is left on the GPU."""
    problem, host, failed_calls = Problem(140, 100, 130), HostProblem(), 0
    blocks = fake.fake_blocks()
    for allocations_before in range(8):
        fake.fake_break_later(call.encode(), OUT_OF_MEMORY_ERROR, allocations_before, 0)
        statuses = everything(problem, host)
        assert set(statuses.values()) <= {binding.OK, binding.OUT_OF_MEMORY}, statuses
        failed = [name for name, status in statuses.items() if status]
        assert len(failed) <= 1, "one allocation fails one call"
        failed_calls += len(failed)
        if failed:
            assert "out of memory" in lib.tsr_last_error().decode()
        assert fake.fake_blocks() == blocks, f"{failed} left memory on the GPU"
    fake.fake_break(b"", 0)
    assert 0 < failed_calls < 8, "each allocation has failed, and then none"
    assert not any(everything(problem, host).values())


# ---- Launches -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kernel, shape", [("split_fp32_sm90", (140, 100, 2000)), ("ieee_mma_64x64", (70, 60, 9000))])
def test_each_launch_fails_in_turn(kernel, shape):
    problem, context = Problem(*shape), Context(CUDA, FP32, kernel)
    assert problem.run(context) == 0
    expected, blocks = names(), fake.fake_blocks()
    assert len(expected) >= 2
    for index, name in enumerate(expected):
        fake.fake_break_later(b"cuLaunchKernelEx", 701, index, 0)
        refused(problem.run(context), binding.DEVICE_ERROR, f"launching {name}", "CUDA_ERROR_701")
        assert fake.fake_blocks() == blocks, "workspace is given back"
        problem.forget()
        assert problem.run(context) == 0
        problem.check()


# ---- A lost device --------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def primary_context_of_gpu_1():
    primary = c_void_p()
    DRIVER.call("cuDevicePrimaryCtxRetain", byref(primary), c_int(1))
    DRIVER.use(primary)
    try:
        yield
    finally:
        DRIVER.call("cuDevicePrimaryCtxRelease_v2", c_int(1))
        DRIVER.use(DRIVER.context)


def reset_gpu_1():
    DRIVER.kept = {}  # goes with the context
    DRIVER.call("cuDevicePrimaryCtxReset_v2", c_int(1))


@pytest.mark.parametrize("error", LOST)
@pytest.mark.parametrize("at, calls_before", [("cuLaunchKernelEx", 0), ("cuLaunchKernelEx", 2),
                                              ("cuMemAllocFromPoolAsync", 0), ("cuMemFreeAsync", 0),
                                              ("cuCtxSynchronize", 0)])
@pytest.mark.parametrize("destroyed", ["before the reset", "after it"])
def test_a_device_that_is_lost(error, at, calls_before, destroyed):
    """Every later call that needs the device returns DEVICE_ERROR with the driver's words and writes nothing; plans
    need none; destroying is safe; after a reset a new context works and the old one says why it does not."""
    with primary_context_of_gpu_1():
        problem, host = Problem(140, 100, 130), HostProblem()
        _, context = create(FP32, b"split_fp32_sm90")
        plan = c_void_p()
        assert (lib.tsr_plan_create(byref(plan), context, 1, byref(problem.operand_a), byref(problem.operand_b),
                                    byref(problem.result_c)) == 0)
        _, packed = pack(context, problem.operand_b)
        assert multiply(context, problem) == 0

        fake.fake_break_later(at.encode(), error, calls_before, 1)
        words = binding.DEVICE_ERROR, f"CUDA_ERROR_{error}"
        if at == "cuCtxSynchronize":  # what an earlier kernel did is found out when somebody waits
            refused(lib.tsr_stats_read(context, byref(binding.Stats())), *words)
        elif at != "cuMemFreeAsync":  # after the last launch: nothing to tell yet
            refused(multiply(context, problem), *words)
        else:
            multiply(context, problem)
        refused(multiply(context, problem), *words)
        refused(
            lib.tsr_plan_execute(plan, 1.0, problem.operand_a.data, problem.operand_b.data, 0.0, problem.result_c.data,
                                 None), *words)
        status, none = pack(context, problem.operand_a)
        refused(status, *words)
        refused(lib.tsr_stats_read(context, byref(binding.Stats())), *words)
        refused(create()[0], *words)
        again = c_void_p()
        assert (lib.tsr_plan_create(byref(again), context, 1, byref(problem.operand_a), byref(problem.operand_b),
                                    byref(problem.result_c)) == 0)
        lib.tsr_plan_destroy(again)
        status, share = host.run(context)
        refused(status, *words)
        assert share == 0
        with pytest.raises(CudaError):
            DRIVER.synchronize()

        def destroy():
            lib.tsr_plan_destroy(plan)
            lib.tsr_packed_destroy(packed)
            lib.tsr_context_destroy(context)

        if destroyed == "before the reset":
            destroy()
        del problem
        reset_gpu_1()
        problem = Problem(140, 100, 130)
        if destroyed == "after it":
            refused(multiply(context, problem), binding.DEVICE_ERROR, "destroyed or reset", "make another tsr_context")
            destroy()
        new = Context(CUDA, FP32, "split_fp32_sm90")
        assert problem.run(new) == 0
        problem.check()
        assert host.run(new.handle) == (binding.OK, 1)


# ---- Threads --------------------------------------------------------------------------------------------------------

def test_64_threads_on_16_streams_with_graphs():
    """Each thread multiplies on a stream that it shares with three others, captures a product there while nobody else
    uses the stream, and replays it; every second context is its own."""
    shared = Context(CUDA, FP32)
    streams = [(DRIVER.stream(), threading.Lock()) for _ in range(16)]
    problems = [Problem(70 + index % 5, 60, 200 + index) for index in range(64)]

    def work(index):
        problem, (stream, lock) = problems[index], streams[index % 16]
        DRIVER.use(DRIVER.context)
        context = shared if index % 2 else Context(CUDA, IEEE if index % 4 else FP32)
        for _ in range(3):
            with lock:  # a stream that is captured takes nobody else's work, here as on a GPU
                binding.check(problem.run(context, Launch(stream)))
                problem.check()
                problem.forget()
                graph = DRIVER.capture(stream, lambda: binding.check(problem.run(context, Launch(stream))))
                for _ in range(2):
                    DRIVER.replay(graph, stream)
                problem.check()
                problem.forget()
                DRIVER.graph_destroy(graph)

    at_once(work, 64, released_together=True)
    assert shared.stats().products == 32 * 3 * 2
    for stream, _ in streams:
        DRIVER.stream_destroy(stream)


def test_threads_whose_device_is_lost():
    """Each of 16 threads gets a status, none hangs, and a new context works after the reset."""
    with primary_context_of_gpu_1():
        current = c_void_p()
        DRIVER.call("cuCtxGetCurrent", byref(current))
        _, context = create(FP32, b"split_fp32_sm90")
        problems, statuses = [Problem(100, 90, 300) for _ in range(16)], []
        assert multiply(context, problems[0]) == 0

        def work(index):
            DRIVER.use(current)
            statuses.extend(multiply(context, problems[index]) for _ in range(20))

        fake.fake_break_later(b"cuGraphLaunch", ILLEGAL_ADDRESS, 60, 1)
        at_once(work, 16)
        assert len(statuses) == 320 and set(statuses) == {binding.OK, binding.DEVICE_ERROR}
        lib.tsr_context_destroy(context)
        problems.clear()
        reset_gpu_1()
        problem = Problem(100, 90, 300)
        assert problem.run(Context(CUDA, FP32)) == 0
        problem.check()
