"""What the host code of the CUDA engine asks of the driver, seen from the driver's side. Runs on the fake driver alone:
test_cuda_host.py starts it with LD_LIBRARY_PATH naming it."""

import ctypes
import functools
import re
from ctypes import byref, c_char, c_char_p, c_int, c_uint, c_void_p

import numpy as np
import pytest

import binding
import cuda_driver
import engine as engines
from at_once import at_once
from binding import CUDA, FP32, IEEE, LEFT, RIGHT, TF32, Context, Launch, Operand, Packed, Plan, Result, lib
from toolchain import ROOT

DRIVER = engines.DRIVER
OUT_OF_MEMORY_ERROR, NO_BINARY = 2, 209
CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED = range(3)


class Recorded(ctypes.Structure):
    _fields_ = [("kernel", c_char * 48), ("grid", c_uint * 3), ("threads", c_uint), ("cluster", c_uint),
                ("shared_bytes", c_uint), ("early", c_int), ("captured", c_int)]


fake = DRIVER.lib
fake.fake_launch_at.restype = ctypes.POINTER(Recorded)
fake.fake_broken_rule.restype = c_char_p


def launches():
    return [fake.fake_launch_at(i).contents for i in range(fake.fake_launches())]


def names():
    return [one.kernel.decode() for one in launches()]


class Problem:
    """Integer-valued matrices on the GPU, so that any order of summing gives the same bits, and what A*B is."""

    def __init__(self, m, n, k, batch=None, driver=DRIVER):
        rng = np.random.default_rng(m * 7 + n * 5 + k)
        leading = () if batch is None else (batch,)
        self.batch = batch
        self.a = rng.integers(-8, 9, (*leading, m, k)).astype(np.float32)
        self.b = rng.integers(-8, 9, (*leading, k, n)).astype(np.float32)
        self.c = np.full((*leading, m, n), np.nan, np.float32)
        self.expected = (self.a.astype(np.float64) @ self.b.astype(np.float64)).astype(np.float32)
        self.buffers = [cuda_driver.Buffer(driver, x.nbytes).put(x) for x in (self.a, self.b, self.c)]
        addresses = [buffer.address for buffer in self.buffers]
        self.operand_a = binding.matrix(Operand, self.a, addresses[0])
        self.operand_b = binding.matrix(Operand, self.b, addresses[1])
        self.result_c = binding.matrix(Result, self.c, addresses[2])

    def run(self, context, launch=None):
        return lib.tsr_gemm_batch(context.handle, self.batch or 1, 1.0, byref(self.operand_a), byref(self.operand_b),
                                  0.0, byref(self.result_c), launch and byref(launch))

    def got(self):
        return self.buffers[2].get().reshape(self.c.shape)

    def forget(self):
        self.buffers[2].put(self.c)

    def check(self):
        assert np.array_equal(self.got(), self.expected)

    def free(self):
        for buffer in self.buffers:
            buffer.free()

    __del__ = free


@pytest.fixture(autouse=True)
def fresh():
    """Every test leaves the driver as it found it: current context, memory, nothing broken."""
    DRIVER.use(DRIVER.context)
    DRIVER.free_kept()
    fake.fake_forget_launches()
    blocks, retained, depth = fake.fake_blocks(), fake.fake_primary_retained(0), fake.fake_context_depth()
    yield
    DRIVER.free_kept()
    assert fake.fake_context_depth() == depth, "a context was left on the thread, or taken from it"
    assert fake.fake_blocks() == blocks, "memory was left on the GPU"
    assert fake.fake_primary_retained(0) == retained, "the primary context is held, or was released too often"
    assert not fake.fake_broken_rule(), fake.fake_broken_rule()


@pytest.fixture
def problem(request):
    made = Problem(*getattr(request, "param", (300, 200, 700)))
    yield made
    made.free()


@pytest.fixture
def own_context():
    """A CUcontext of the test's own, current, in which nothing has been loaded yet."""
    made = DRIVER.new_context()
    DRIVER.use(made)
    yield made
    DRIVER.free_kept()
    DRIVER.use(DRIVER.context)
    DRIVER.context_destroy(made)


def refused(status, expected, *words):
    message = lib.tsr_last_error().decode()
    assert status == expected, (status, message)
    for word in words:
        assert word in message, message


SPLIT = ["pack_sample", "pack_split", "split_fp32_sm90", "ieee_mma_64x64"]


# ---- Launches -------------------------------------------------------------------------------------------------------

def test_an_ieee_product_is_one_launch(problem):
    context = Context(CUDA, IEEE, "ieee_tile_128x128", max_workspace=1)
    assert problem.run(context) == 0
    assert names() == ["ieee_tile_128x128"]
    assert list(launches()[0].grid) == [3 * 2, 1, 1] and launches()[0].threads == 128
    problem.check()


@pytest.mark.parametrize("problem", [(100, 100, 20000)], indirect=True)
def test_few_tiles_and_long_k_are_cut(problem):
    assert problem.run(Context(CUDA, IEEE)) == 0
    assert len(names()) == 2 and names()[1] == "ieee_reduce"
    assert launches()[0].grid[0] > 100
    problem.check()


def test_a_split_product_is_packed_multiplied_and_recomputed(problem):
    context = Context(CUDA, FP32, "split_fp32_sm90", max_workspace=8 << 20)
    assert problem.run(context) == 0
    assert names() == [*SPLIT[:2], "split_fp32_sm90_parts", SPLIT[3]]
    problem.check()
    stats = context.stats()
    assert (stats.products, stats.split_products, stats.marked_panels, stats.fallback_tiles) == (1, 1, 0, 0)


@pytest.mark.parametrize("m, n, k, options, kernel", [
    (1024, 1024, 1024, {}, "ieee_mma_64x64"), (4096, 4096, 4096, {}, "ieee_mma_64x128"),
    (1024, 1024, 1024, {"batch_invariant": 1}, "ieee_mma_64x128")], ids=["small", "large", "batch-invariant"])
def test_what_recomputes(m, n, k, options, kernel):
    """The tile that takes less time; in batch-invariant products always the same."""
    context = Context(CUDA, FP32, "split_fp32_sm90", **options)
    operands = Operand(4096, m, k, k, 1, 0), Operand(4096, k, n, n, 1, 0), Result(4096, m, n, n, 1, 0)
    assert f"fallback: {kernel}," in Plan(context, *operands).text()


def along_k(problem):
    """Lays B out so that its columns are contiguous, as the rows of A are."""
    problem.buffers[1].put(np.ascontiguousarray(problem.b.swapaxes(-1, -2)))
    problem.operand_b.row_stride, problem.operand_b.col_stride = 1, problem.b.shape[-2]


@pytest.mark.parametrize("pitch, k, start, batch, packed_by", [
    (100, 100, 0, None, "pack_rows_128"), (132, 132, 0, None, "pack_rows_512"), (1024, 1024, 0, 1, "pack_rows_1024"),
    (104, 100, 4, 3, "pack_rows_128"), (1028, 1028, 0, None, "pack_split"), (130, 128, 0, None, "pack_split"),
    (132, 130, 0, None, "pack_split"), (104, 100, 1, None, "pack_split")])
def test_short_rows_are_packed_whole(pitch, k, start, batch, packed_by):
    """Both operands have contiguous rows along k, `pitch` floats apart; those of A begin `start` floats later."""
    problem = Problem(130, 70, pitch, batch)
    along_k(problem)
    problem.operand_a.data += 4 * start
    problem.operand_a.cols = problem.operand_b.rows = k
    assert problem.run(Context(CUDA, FP32, "split_fp32_sm90")) == 0
    assert names()[:2] == ["pack_sample", packed_by] and names()[2].startswith("split_fp32_sm90")
    assert np.array_equal(problem.got(), problem.a[..., start:start + k] @ problem.b[..., :k, :])


def test_items_that_are_not_aligned_are_not_packed_whole():
    problem = Problem(130, 70, 100, 3)
    along_k(problem)
    problem.operand_a.batch_stride += 2
    problem.batch = 2
    values = np.lib.stride_tricks.as_strided(problem.a, (2, 130, 100), (4 * (130 * 100 + 2), 400, 4))
    assert problem.run(Context(CUDA, FP32, "split_fp32_sm90")) == 0
    assert names()[:2] == ["pack_sample", "pack_split"]
    assert np.array_equal(problem.got()[:2], values @ problem.b[:2])


@pytest.mark.parametrize("problem", [(8192, 16, 1024)], indirect=True)
def test_long_operand_is_packed_whole_beside_one_that_is_not(problem):
    """A alone has contiguous rows along k, and is large enough for a launch of its own."""
    assert problem.run(Context(CUDA, FP32, "split_fp32_sm90")) == 0
    assert names()[:3] == ["pack_sample", "pack_split", "pack_rows_1024"]
    assert set(names()) <= kernels_that_wait()
    problem.check()


@pytest.mark.parametrize("m, n, k, batch, options", [(300, 260, 256, 1, {}), (130, 70, 1024, 1, {}),
                                                     (130, 70, 20000, 1, {}), (300, 260, 256, 3, {}),
                                                     (600, 260, 256, 1, {"max_workspace": 700000})],
                         ids=["whole", "clusters", "slices", "batch", "chunks"])
def test_flagged_blocks_are_recomputed_alone(m, n, k, batch, options):
    """Columns of B that meet nothing but elements far below their rows' largest; C is its own addend, so that what is
    written twice, or not at all, shows."""
    rng = np.random.default_rng(k + batch)
    a, b, before = (rng.integers(-8, 9, (batch, *shape)).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    a[..., :k // 4] *= np.float32(2.0**-40)
    b[:, k // 4:, [3, 40, n - 1]] = 0
    engine, c = engines.Engine(CUDA, FP32, "split_fp32_sm90"), before.copy()
    context = engine.new_context(**options)
    engine.multiply(*((a, b, c) if batch > 1 else (a[0], b[0], c[0])), 1.0, 1.0, context=context)
    exact = a.astype(np.float64) @ b + before
    # The driver's sums are in float64.
    bound = 4 * 2.0**-24 * (np.abs(a.astype(np.float64)) @ np.abs(b) + np.abs(before))
    assert (np.abs(c - exact) <= bound).all()
    assert ("split_reduce" in names()) == (k > 10000) and ("split_fp32_sm90_parts" in names()) == (k == 1024)
    stats = context.stats()
    assert stats.marked_panels == 0 and stats.fallback_tiles > 0


def early():
    """Which launches may begin before the one in front of them has ended."""
    return [bool(one.early) for one in launches()]


def source_of(path, seen):
    """A .cu with its headers in place, each once."""
    seen.add(path)
    text = path.read_text()
    for header in re.findall(r'^#include "(cuda/kernels/.*)"$', text, re.M):
        if ROOT / "src" / header not in seen:
            text = text.replace(f'#include "{header}"', source_of(ROOT / "src" / header, seen))
    return text


@functools.cache
def kernels_that_wait():
    """By their sources: those that wait for the kernel before them, or use a function or struct that does."""
    found = set()
    for path in (ROOT / "src" / "cuda" / "kernels").rglob("*.cu"):
        waiting = ["wait_for_previous_kernel"]
        for definition in re.split(r"\n};?\n", source_of(path, set())):
            if not any(re.search(rf"\b{name}[<(]", definition) for name in waiting):
                continue
            kernel = re.search(r'extern "C" __global__ .*?(\w+)\(const __grid_constant__', definition, re.S)
            struct = re.search(r"^(?:template [^\n]*)?struct (\w+)", definition, re.M)
            functions = re.findall(r"^(?:\S[^\n]*)?__device__[^\n]*?(\w+)\(", definition, re.M)
            if kernel:
                found.add(kernel.group(1))
            elif struct:
                waiting.append(struct.group(1))
            elif functions:
                waiting.append(functions[-1])  # behind those of one line
    return found


@pytest.mark.parametrize("problem", [(300, 200, 700), (100, 100, 3000)], indirect=True)
@pytest.mark.parametrize("kernel", ["split_fp32_sm90", "split_fp32_sm90_t128", "split_fp32_mma_sm80"])
def test_the_first_kernel_of_a_long_call_is_not_launched_early(problem, kernel):
    context = Context(CUDA, FP32, kernel)
    for _ in range(2):
        fake.fake_forget_launches()
        assert problem.run(context) == 0
        assert early() == [False] + [True] * (len(launches()) - 1)
        assert set(names()) <= kernels_that_wait()


def test_a_short_call_is_launched_early():
    problem = Problem(40, 50, 60)
    assert problem.run(Context(CUDA, IEEE)) == 0
    assert early() == [True]
    problem.check()


def test_sums_are_added_up_by_a_kernel_launched_early():
    problem = Problem(100, 100, 20000)
    for kernel in ("ieee_tile_64x64", "ieee_tile_128x128", "ieee_mma_64x64"):
        fake.fake_forget_launches()
        assert problem.run(Context(CUDA, IEEE, kernel)) == 0
        assert names() == [kernel, "ieee_reduce"] and early() == [False, True]
        assert set(names()) <= kernels_that_wait()


def test_more_columns_of_tiles_than_a_grid_has_are_launched_again():
    problem = Problem(9, 65535 * 16 + 1, 1)
    assert problem.run(Context(CUDA, IEEE, "ieee_small_16")) == 0
    assert [tuple(one.grid) for one in launches()] == [(1, 65535, 1), (1, 1, 1)]
    problem.check()


def test_all_blocks_have_128_threads_where_the_kernel_promises_it(problem):
    assert problem.run(Context(CUDA, FP32, "split_fp32_sm90_t128")) == 0
    assert {one.threads for one in launches()} == {128}
    problem.check()


def test_what_cannot_be_split_is_recomputed(problem):
    values = problem.a.copy()
    values[130, 5] = np.inf
    problem.buffers[0].put(values)
    context = Context(CUDA, FP32, "split_fp32_sm90")
    assert problem.run(context) == 0
    stats = context.stats()
    assert stats.marked_panels == 1 and stats.fallback_tiles == 8
    got, others = problem.got(), np.arange(300) != 130
    assert np.array_equal(got[others], problem.expected[others])
    with np.errstate(invalid="ignore"):
        assert np.array_equal(got[130], values[130] @ problem.b, equal_nan=True)


@pytest.mark.parametrize("shape, copies", [((260, 200, 700), 0), ((260, 202, 700), 1), ((260, 200, 702), 1),
                                           ((260, 202, 702), 2)])
@pytest.mark.parametrize("kernel", ["tf32_128x256", "tf32_128x128", "tf32_64x64"])
def test_tf32_in_place_copies_what_has_odd_lines(kernel, shape, copies):
    """B lies across k: the product is transposed instead."""
    problem = Problem(*shape)
    context = Context(CUDA, TF32, kernel)
    text = Plan(context, problem.operand_a, problem.operand_b, problem.result_c).text()
    assert ("copies: " in text) == (copies > 0) and ("of c transposed" in text) == (shape[1] % 4 == 0)
    assert problem.run(context) == 0
    assert [name for name in names() if name != "ieee_reduce"] == ["tf32_copy"] * copies + [kernel]
    assert all(early()) and set(names()) <= kernels_that_wait()
    problem.check()


def test_tf32_in_place_begins_anywhere():
    problem = Problem(130, 140, 64)
    problem.operand_a.data += 4
    problem.operand_a.cols = problem.operand_b.rows = 63
    assert problem.run(Context(CUDA, TF32, "tf32_128x128")) == 0
    assert names() == ["direct_64x64"]
    assert np.array_equal(problem.got(), problem.a[:, 1:] @ problem.b[:63])


@pytest.mark.parametrize("m, n, k, batch, start", [(300, 200, 700, None, 0), (300, 202, 700, None, 0),
                                                   (300, 200, 700, None, 4), (130, 200, 300, 3, 0)])
def test_what_tf32_cannot_pack_is_recomputed_by_its_instruction(m, n, k, batch, start):
    """By an ieee kernel where an operand's lines, or its start, are not for copies of boxes."""
    problem = Problem(m, n, k, batch)
    values = problem.a.copy()
    values[..., 129, 5] = np.inf
    problem.buffers[0].put(values)
    problem.operand_a.data += start
    problem.operand_a.cols = problem.operand_b.rows = k - start // 4
    context = Context(CUDA, TF32, "split_tf32_sm90")
    assert problem.run(context) == 0
    assert names()[-1] == ("ieee_mma_64x64" if start or n % 4 else "tf32_128x128")
    assert context.stats().fallback_tiles
    with np.errstate(invalid="ignore"):
        expected = values[..., start // 4:] @ problem.b[..., :k - start // 4, :]
        assert np.array_equal(problem.got(), expected, equal_nan=True)


def test_large_results_of_few_terms_are_for_blocks_that_stay():
    problem = Problem(2500, 2100, 17)
    assert problem.run(Context(CUDA, FP32)) == 0
    assert names() == ["ieee_mma_short_k"] and launches()[0].grid[0] == 3 * 132
    problem.check()


@pytest.mark.parametrize("batch, blocks", [(5, 5), (300, 132), (1000, 250), (4000, 5 * 132)])
def test_warps_share_the_tiles_of_a_batch(batch, blocks):
    """A warp for each tile, a block for each SM first, and no more blocks than fit."""
    problem = Problem(11, 13, 7, batch=batch)
    assert problem.run(Context(CUDA, IEEE, "ieee_warp_16x16")) == 0
    assert [(one.grid[0], one.grid[2]) for one in launches()] == [(blocks, 1)]
    problem.check()


def test_nothing_synchronises(problem):
    context = Context(CUDA, FP32)
    before = fake.fake_synchronizations()
    assert problem.run(context) == 0
    assert fake.fake_synchronizations() == before


def test_a_batch_larger_than_a_grid():
    problem = Problem(2, 3, 4, batch=70000)
    assert problem.run(Context(CUDA, IEEE, "ieee_tile_64x64")) == 0
    assert [one.grid[2] for one in launches()] == [65535, 70000 - 65535]
    problem.check()


@pytest.mark.parametrize("m, n, k", [(2**31 + 5, 9, 3), (9, 2**31 + 5, 3), (4, 4, 2**31 + 5), (2**31 + 5, 1, 7)])
def test_extents_beyond_32_bits(m, n, k):
    """Captured, not run: operands are one element broadcast."""
    one, c = sorted((DRIVER.allocate(4), DRIVER.allocate(4)))  # C reaches far beyond its address
    a, b = Operand(one, m, k, 0, 0, 0), Operand(one, k, n, 0, 0, 0)
    context, stream = Context(CUDA, IEEE), DRIVER.stream()
    graph = DRIVER.capture(stream, lambda: binding.gemm(context, a, b, Result(c, m, n, n, 1, 0), launch=Launch(stream)))
    assert sum(not name.startswith("ieee_reduce") for name in names()) == 3
    DRIVER.graph_destroy(graph)
    DRIVER.free(one)
    DRIVER.free(c)


# ---- Forced kernels -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kernel, precision, status, word", [
    (b"no_such_kernel", FP32, binding.INVALID_ARGUMENT, "no CUDA kernel's name"),
    (b"ieee_reduce", FP32, binding.INVALID_ARGUMENT, "no CUDA kernel's name"),
    (b"split_fp32_sm90", IEEE, binding.INVALID_ARGUMENT, "not accurate enough"),
    (b"split_tf32_sm90", FP32, binding.INVALID_ARGUMENT, "not accurate enough")])
def test_kernels_that_cannot_be_forced(kernel, precision, status, word):
    handle = c_void_p(1)
    options = binding.Options(CUDA, -1, precision, 0, 0, kernel)
    refused(lib.tsr_context_create(byref(handle), byref(options)), status, "options.kernel", word)
    assert handle.value is None


@pytest.mark.parametrize("kernel", engines.kernel_names(CUDA))
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 700, 300), (700, 5, 300), (129, 257, 65), (64, 64, 5000)])
def test_every_kernel_forced(kernel, shape):
    problem = Problem(*shape)
    status = problem.run(Context(CUDA, TF32, kernel))
    m, n, k = shape
    most = 1 if "vector" in kernel else 8 if "thin" in kernel or "columns" in kernel else 999  # columns, or rows
    along_m = kernel.endswith("_m") and m >= n and k > 1
    along_k = kernel in ("ieee_vector_k", "ieee_columns_k") and m < n and k > 1
    if min(m, n) > most or along_m or along_k or "short" in kernel and k > (96 if "96" in kernel else 64):
        refused(status, binding.INVALID_ARGUMENT, kernel)
    else:
        assert status == 0 and kernel in names()
        problem.check()


# ---- Contexts -------------------------------------------------------------------------------------------------------

def test_without_a_current_context_the_primary_one_is_taken(problem):
    DRIVER.use(None)
    context = Context(CUDA, IEEE)
    assert problem.run(context) == 0
    del context
    DRIVER.use(DRIVER.context)
    problem.check()


def test_device_index():
    handle = c_void_p()
    options = binding.Options(CUDA, 2, FP32, 0, 0, None)
    refused(lib.tsr_context_create(byref(handle), byref(options)), binding.NO_DEVICE, "options.device_index is 2",
            "2 GPUs")
    before = fake.fake_primary_retained(1)
    context = Context(CUDA, device_index=1)
    assert fake.fake_primary_retained(1) == before + 1
    del context
    assert fake.fake_primary_retained(1) == before


def test_memory_of_another_gpu(problem):
    refused(problem.run(Context(CUDA, device_index=1)), binding.INVALID_ARGUMENT, "c.data", "memory of GPU 0", "GPU 1")


def test_a_context_that_was_reset():
    """As by cudaDeviceReset: the same CUcontext address, another context."""
    primary = c_void_p()
    DRIVER.call("cuDevicePrimaryCtxRetain", byref(primary), c_int(1))
    DRIVER.use(primary)
    problem, context = Problem(50, 60, 70), Context(CUDA, FP32)
    assert problem.run(context) == 0
    del problem
    DRIVER.kept = {}  # goes with the context
    DRIVER.call("cuDevicePrimaryCtxReset_v2", c_int(1))
    problem = Problem(50, 60, 70)
    refused(problem.run(context), binding.DEVICE_ERROR, "destroyed or reset", "make another tsr_context")
    refused(lib.tsr_stats_read(context.handle, byref(binding.Stats())), binding.DEVICE_ERROR, "destroyed or reset")
    again = Context(CUDA, FP32)
    assert problem.run(again) == 0
    problem.check()
    del context, again, problem
    DRIVER.free_kept()
    DRIVER.call("cuDevicePrimaryCtxRelease_v2", c_int(1))
    DRIVER.use(DRIVER.context)


def test_a_context_that_was_destroyed(problem):
    """Its memory pool is the device's and outlives it: destroyed with the tsr_context."""
    pools, own = fake.fake_pools(), DRIVER.new_context()
    DRIVER.use(own)
    context = Context(CUDA, IEEE)
    assert fake.fake_pools() == pools + 1
    DRIVER.use(DRIVER.context)
    DRIVER.context_destroy(own)
    refused(problem.run(context), binding.DEVICE_ERROR, "destroyed or reset")
    del context
    assert fake.fake_pools() == pools


def test_modules_are_loaded_once_for_a_context(problem, own_context):
    first = Context(CUDA, FP32, "split_fp32_sm90")
    assert problem.run(first) == 0
    loaded = fake.fake_modules_loaded()
    second = Context(CUDA, FP32, "split_fp32_sm90")
    assert problem.run(second) == 0 and problem.run(first) == 0
    assert fake.fake_modules_loaded() == loaded
    del first, second
    assert problem.run(Context(CUDA, FP32, "split_fp32_sm90")) == 0  # unloaded with the last, loaded again
    assert fake.fake_modules_loaded() > loaded


def test_threads_load_modules_once(own_context):
    problem = Problem(40, 50, 60)
    context, before = Context(CUDA, IEEE, "ieee_tile_64x64"), fake.fake_modules_loaded()
    at_once(lambda _: binding.check(problem.run(context)), 32)  # no context is current on these threads
    assert fake.fake_modules_loaded() == before + 1
    problem.check()


# ---- Streams and graphs ---------------------------------------------------------------------------------------------

def test_streams(problem):
    context, stream = Context(CUDA, FP32), DRIVER.stream()
    for handle in (None, 1, 2, stream):
        problem.forget()
        assert problem.run(context, Launch(handle)) == 0
        problem.check()
    DRIVER.stream_destroy(stream)
    refused(problem.run(context, Launch(stream)), binding.INVALID_ARGUMENT, "launch.stream", "destroyed")


@pytest.mark.parametrize("mode", [CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED])
@pytest.mark.parametrize("kernel", ["split_fp32_sm90", "ieee_tile_64x64"])
@pytest.mark.parametrize("problem", [(100, 100, 3000)], indirect=True)
def test_capture(problem, own_context, mode, kernel):
    """Even the first call, which loads modules, even making a context."""
    stream = DRIVER.stream()
    graph, executable = c_void_p(), c_void_p()
    DRIVER.call("cuStreamBeginCapture_v2", stream, c_int(mode))
    context = Context(CUDA, FP32, kernel)
    assert problem.run(context, Launch(stream)) == 0
    DRIVER.call("cuStreamEndCapture", stream, byref(graph))
    assert all(one.captured for one in launches()) and len(launches()) >= 2
    assert np.isnan(problem.got()).all()
    DRIVER.call("cuGraphInstantiateWithFlags", byref(executable), graph, ctypes.c_ulonglong(0))
    for _ in range(3):
        problem.forget()
        DRIVER.replay(executable, stream)
        problem.check()
    DRIVER.graph_destroy(executable)


def test_packing_under_capture(problem):
    context, stream, made = Context(CUDA, FP32, "split_fp32_sm90"), DRIVER.stream(), []

    def work():
        made.append(Packed(context, RIGHT, problem.operand_b, Launch(stream)))
        problem.operand_b.packed = made[0].handle
        assert problem.run(context, Launch(stream)) == 0

    executable = DRIVER.capture(stream, work)
    DRIVER.replay(executable, stream)
    problem.check()
    DRIVER.graph_destroy(executable)


def test_the_default_stream_beside_a_capture(problem):
    """The driver's refusal comes through, and nothing is left behind."""
    stream = c_void_p()
    DRIVER.call("cuStreamCreate", byref(stream), c_uint(0))  # one that waits for the default stream
    context = Context(CUDA, FP32, "split_fp32_sm90")
    DRIVER.call("cuStreamBeginCapture_v2", stream, c_int(CAPTURE_RELAXED))
    refused(problem.run(context), binding.DEVICE_ERROR)
    graph = c_void_p()
    DRIVER.call("cuStreamEndCapture", stream, byref(graph))
    DRIVER.call("cuGraphExecDestroy", graph)
    assert problem.run(context) == 0
    problem.check()


# ---- Graphs of kernels that come again -------------------------------------------------------------------------------

BEFORE_GRAPH = 33  # calls


def repeat(problems, context, calls, launch=None):
    """So often each; how many kernels were launched one by one."""
    before = fake.fake_launches()
    for problem in problems * calls:
        problem.forget()
        assert problem.run(context, launch) == 0
        problem.check()
    return fake.fake_launches() - before


def test_kernels_that_come_again_are_a_graph(own_context):
    """One for all shapes and arguments; other kernels, other streams and captured streams do without it."""
    context, stream, other = Context(CUDA, FP32, "split_fp32_sm90"), DRIVER.stream(), DRIVER.stream()
    problems = [Problem(100, 90, 200), Problem(60, 70, 130, batch=2)]
    assert repeat(problems, context, BEFORE_GRAPH, Launch(stream)) == 4 * (BEFORE_GRAPH - 1)
    assert repeat(problems, context, 2, Launch(stream)) == 0
    assert repeat(problems, context, 1, Launch(other)) == 8
    assert repeat(problems[:1], Context(CUDA, IEEE), 1, Launch(stream)) > 0
    executable = DRIVER.capture(other, lambda: problems[0].run(context, Launch(other)))
    assert [one.captured for one in launches()[-4:]] == [1] * 4
    problems[0].forget()
    DRIVER.replay(executable, other)
    problems[0].check()
    DRIVER.graph_destroy(executable)
    assert repeat(problems, context, 1, Launch(stream)) == 0


def test_products_by_pointers_share_launches(own_context):
    """Eight to a graph, if matrices are not evenly spaced: 32 times eight launches, and what is left of 300."""
    rng, batch = np.random.default_rng(1), 300
    problem = Problem(5, 6, 7, batch)
    order, strides = rng.permutation(batch), (5 * 7, 7 * 6, 5 * 6)
    data = [[buffer.address + 4 * int(i) * stride for i in order] for buffer, stride in zip(problem.buffers, strides)]
    matrices = problem.operand_a, problem.operand_b, problem.result_c
    binding.gemm_pointers(Context(CUDA), batch, *(x for pair in zip(matrices, data) for x in pair))
    problem.check()
    assert fake.fake_launches() == 8 * (BEFORE_GRAPH - 1) + batch % 8


def test_a_graph_in_many_threads(own_context):
    context, problems = Context(CUDA, FP32, "split_fp32_sm90"), [Problem(100 + i, 90, 200) for i in range(4)]

    def work(index):
        DRIVER.use(own_context)
        repeat([problems[index]], context, BEFORE_GRAPH)

    at_once(work, len(problems))
    assert repeat(problems, context, 1) == 0


@pytest.mark.parametrize("problem", [(100, 90, 200)], indirect=True)
def test_a_graph_that_fails(problem, own_context):
    context = Context(CUDA, FP32, "split_fp32_sm90")
    repeat([problem], context, BEFORE_GRAPH)
    fake.fake_break(b"cuGraphLaunch", 701)
    refused(problem.run(context), binding.DEVICE_ERROR, "launching pack_sample", "CUDA_ERROR_701")
    assert repeat([problem], context, 1) == 0


@pytest.mark.parametrize("problem", [(100, 90, 200)], indirect=True)
@pytest.mark.parametrize("call", [b"cuGraphCreate", b"cuGraphAddKernelNode", b"cuGraphAddDependencies",
                                  b"cuGraphInstantiate"])
def test_a_graph_that_cannot_be_made(problem, own_context, call):
    """Kernels go on being launched one by one."""
    context = Context(CUDA, FP32, "split_fp32_sm90")
    kernels = repeat([problem], context, 1)
    repeat([problem], context, BEFORE_GRAPH - 2)
    fake.fake_break(call, 801)
    repeat([problem], context, 1)
    assert repeat([problem], context, 3) == 3 * kernels


# ---- Memory ---------------------------------------------------------------------------------------------------------

def test_host_memory_is_refused_as_addend(problem):
    context = Context(CUDA, FP32)
    host, c = np.zeros(problem.result_c.rows * problem.result_c.cols, np.float32), problem.result_c
    addend = Operand(host.ctypes.data, c.rows, c.cols, c.cols, 1, 0)
    refused(lib.tsr_gemm_add(context.handle, 1, 1.0, byref(problem.operand_a), byref(problem.operand_b), 1.0,
                             byref(addend), byref(c), None), binding.INVALID_ARGUMENT, "addend.data is host memory")
    assert names() == []


@pytest.mark.parametrize("call", ["cuMemAllocFromPoolAsync", "cuMemAlloc"])
def test_out_of_memory(problem, call):
    context = Context(CUDA, FP32, "split_fp32_sm90")
    fake.fake_break(call.encode(), OUT_OF_MEMORY_ERROR)
    if call == "cuMemAlloc":
        handle = c_void_p(1)
        status = lib.tsr_pack(byref(handle), context.handle, LEFT, byref(problem.operand_a), None)
        assert handle.value is None
    else:
        status = problem.run(context)
    refused(status, binding.OUT_OF_MEMORY, "out of memory", "GPU 0")
    assert names() == [] and problem.run(context) == 0
    problem.check()


def test_out_of_memory_while_a_context_is_made():
    fake.fake_break(b"cuMemAlloc", OUT_OF_MEMORY_ERROR)
    handle = c_void_p(1)
    options = binding.Options(CUDA, -1, FP32, 0, 0, None)
    refused(lib.tsr_context_create(byref(handle), byref(options)), binding.OUT_OF_MEMORY)
    assert handle.value is None
    Context(CUDA)


def test_a_workspace_of_the_callers(problem):
    context = Context(CUDA, FP32, "split_fp32_sm90")
    plan = Plan(context, problem.operand_a, problem.operand_b, problem.result_c)
    with cuda_driver.Buffer(DRIVER, plan.workspace()) as workspace:
        fake.fake_break(b"cuMemAllocFromPoolAsync", OUT_OF_MEMORY_ERROR)  # which is not called
        assert problem.run(context, Launch(None, workspace.address, plan.workspace())) == 0
        fake.fake_break(b"", 0)
        problem.check()
        workspace.get()


@pytest.mark.parametrize("limit", [500000, 1000000, 2000000])
@pytest.mark.parametrize("precision, kernel", [(FP32, "split_fp32_sm90"), (TF32, "split_tf32_sm90")])
def test_max_workspace_computes_in_parts(limit, precision, kernel):
    problem = Problem(1000, 1100, 130)
    context = Context(CUDA, precision, kernel, max_workspace=limit)
    plan = Plan(context, problem.operand_a, problem.operand_b, problem.result_c)
    whole = Plan(Context(CUDA, precision, kernel), problem.operand_a, problem.operand_b, problem.result_c).workspace()
    assert plan.workspace() <= limit and ("chunks: " in plan.text()) == (limit < whole)
    assert problem.run(context) == 0
    problem.check()


def test_max_workspace_too_small_for_a_forced_kernel(problem):
    refused(problem.run(Context(CUDA, FP32, "split_fp32_sm90", max_workspace=1000)), binding.OUT_OF_MEMORY,
            "options.max_workspace is 1000", "split_fp32_sm90")


def test_trim(problem):
    context, before = Context(CUDA), fake.fake_trims()
    assert lib.tsr_trim(context.handle) == 0 and fake.fake_trims() == before + 1


# ---- Errors of the driver -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kernel, first", [("split_fp32_sm90", "pack_sample"), ("ieee_tile_64x64", "ieee_tile_64x64")])
def test_a_launch_that_fails(problem, kernel, first):
    context = Context(CUDA, FP32, kernel)
    fake.fake_break(b"cuLaunchKernelEx", 701)
    refused(problem.run(context), binding.DEVICE_ERROR, f"launching {first}", "error of the fake driver",
            "CUDA_ERROR_701")
    assert problem.run(context) == 0
    problem.check()


def test_a_module_that_does_not_load(problem, own_context):
    context = Context(CUDA, IEEE, "ieee_tile_64x64")
    fake.fake_break(b"cuModuleLoadData", 304)
    refused(problem.run(context), binding.DEVICE_ERROR, "loading the ieee_tile_64x64 kernels")
    assert problem.run(context) == 0
    fake.fake_break(b"cuModuleLoadData", NO_BINARY)
    refused(problem.run(Context(CUDA, IEEE, "ieee_tile_128x64")), binding.UNSUPPORTED, "compute capability 9.0",
            "TESSERA_CUDA_ARCHITECTURES")
    problem.check()


@pytest.mark.parametrize("n, k", [(1, 3000), (5, 700), (64, 3072), (256, 4096), (512, 512), (2048, 768)])
def test_strides_change_no_batch_invariant_plan(n, k):
    """A row's bits are the same in a copy, a slice or a transposed matrix: so must be what cuts k."""

    def plan(a_strides, b_strides):
        context = binding.Context(device=CUDA, precision=binding.FP32, batch_invariant=True)
        made = binding.Plan(context, binding.Operand(None, 300, k, *a_strides, 0), binding.Operand(
            None, k, n, *b_strides, 0), binding.Result(None, 300, n, n, 1, 0))
        return [line for line in made.text().splitlines() if not line.startswith(("workspace", "estimate"))]

    expected = plan((k, 1), (n, 1))
    for a in (k + 1, 1), (k + 4, 1), (1, 301):
        for b in (n + 1, 1), (1, k + 1):
            assert plan(a, b) == expected
