"""What only a GPU has: its memory, streams, graphs, contexts. The general tests run on it as well, by the engine
fixture."""

from ctypes import byref, c_void_p

import numpy as np
import pytest

import binding
from at_once import at_once
from binding import (CUDA, FP32, IEEE, INVALID_ARGUMENT, LEFT, NO_DEVICE, RIGHT, Launch, Operand, Options, Packed,
                     Result, TesseraError, lib)
from cuda_driver import Buffer
from engine import Engine, kernel_names
from layouts import LAYOUTS, assert_guards, filled, poisoned
from reference import assert_componentwise, assert_exact, assert_special_values, integers
from toolchain import run_python


def placed(driver, array, shift=0):
    return Buffer(driver, array.nbytes, shift).put(array)


def operand(buffer, array):
    return binding.matrix(Operand, array, buffer.address)


def result(buffer, array):
    return binding.matrix(Result, array, buffer.address)


# ---- Pointers -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("m, n, k", [(130, 131, 257), (256, 256, 256), (5, 300, 1000), (300, 5, 1000)])
@pytest.mark.parametrize("offset", range(16))
def test_every_offset(cuda, driver, rng, offset, m, n, k):
    """Each matrix at every float offset within 64 bytes, guard bytes right before and behind it."""
    a, b = integers(rng, m, k, largest=4), integers(rng, k, n, largest=4)
    for shifts in [(offset, 0, 0), (0, offset, 0), (0, 0, offset), (offset, offset, offset)]:
        with placed(driver, a, 4 * shifts[0]) as da, placed(driver, b, 4 * shifts[1]) as db, \
                placed(driver, poisoned(m, n), 4 * shifts[2]) as dc:
            binding.gemm(cuda.context, operand(da, a), operand(db, b), result(dc, poisoned(m, n)))
            assert_exact(dc.get().reshape(m, n), a, b)
            assert np.array_equal(da.get().reshape(a.shape), a) and np.array_equal(db.get().reshape(b.shape), b)


@pytest.mark.parametrize("which", range(3))
def test_host_pointer(cuda, driver, rng, which):
    """Ordinary host memory is refused by the argument's name, and nothing is written."""
    a, b, c = integers(rng, 20, 30), integers(rng, 30, 10), poisoned(20, 10)
    with placed(driver, a) as da, placed(driver, b) as db, placed(driver, c) as dc:
        matrices = [operand(da, a), operand(db, b), result(dc, c)]
        matrices[which].data = (a, b, c)[which].ctypes.data
        with pytest.raises(TesseraError, match=rf"{'abc'[which]}\.data .*host memory") as error:
            binding.gemm(cuda.context, *matrices)
        assert error.value.status == INVALID_ARGUMENT
        assert np.isnan(dc.get()).all() and np.isnan(c).all()
    assert_exact(cuda.product(a, b), a, b)


def test_host_pointer_to_pack(cuda, rng):
    a = rng.random((300, 300), np.float32)
    made = c_void_p(1)
    operand_a = binding.matrix(Operand, a)
    status = lib.tsr_pack(byref(made), cuda.context.handle, LEFT, byref(operand_a), None)
    if status == binding.OK:  # where this engine packs nothing, the first product says it
        lib.tsr_packed_destroy(made)
    else:
        assert status == INVALID_ARGUMENT and made.value is None and b"operand.data" in lib.tsr_last_error()


def test_host_workspace(cuda, driver, rng):
    a, b, c = integers(rng, 512, 2048), integers(rng, 2048, 512), poisoned(512, 512)
    with placed(driver, a) as da, placed(driver, b) as db, placed(driver, c) as dc:
        plan = binding.Plan(cuda.context, operand(da, a), operand(db, b), result(dc, c))
        if not plan.workspace():
            pytest.skip("this engine needs no workspace here")
        memory = np.zeros(plan.workspace() + 256, np.uint8)
        launch = Launch(None, memory.ctypes.data + -memory.ctypes.data % 256, plan.workspace())
        with pytest.raises(TesseraError, match=r"launch\.workspace .*host memory"):
            plan.execute(da.address, db.address, dc.address, launch=launch)
        assert np.isnan(dc.get()).all()


@pytest.mark.parametrize("kind", ["managed", "pinned"])
def test_managed_and_pinned_memory(cuda, driver, rng, kind):
    a, b, c = integers(rng, 150, 200), integers(rng, 200, 170), poisoned(150, 170)
    allocate = driver.allocate_managed if kind == "managed" else driver.allocate_pinned
    free = driver.free if kind == "managed" else driver.free_pinned
    addresses = [allocate(x.nbytes) for x in (a, b, c)]
    try:
        for x, address in zip((a, b, c), addresses):
            driver.upload(address, x)
        binding.gemm(cuda.context, *(binding.matrix(Operand, x, at) for x, at in zip((a, b), addresses)),
                     binding.matrix(Result, c, addresses[2]))
        driver.synchronize()
        driver.download(addresses[2], c)
        assert_exact(c, a, b)
    finally:
        for address in addresses:
            free(address)


def test_freed_pointer(cuda, driver, rng):
    """As far as the driver can tell: memory that was given back to it is refused, or at worst reported later; the
    context must stay usable where it was refused."""
    a, b, c = integers(rng, 20, 30), integers(rng, 30, 10), poisoned(20, 10)
    freed = driver.allocate(2**26)
    driver.free(freed)
    with placed(driver, a) as da, placed(driver, b) as db, placed(driver, c) as dc:
        matrices = operand(da, a), operand(db, b), result(dc, c)
        matrices[0].data = freed
        with pytest.raises(TesseraError, match=r"a\.data"):
            binding.gemm(cuda.context, *matrices)
    assert_exact(cuda.product(a, b), a, b)


# ---- Streams, graphs, threads ---------------------------------------------------------------------------------------

@pytest.mark.sanitizer
def test_concurrent_streams(cuda, driver, rng):
    """Eight streams at once on one context, several products queued on each, nothing waited for in between."""
    jobs = []
    for i in range(8):
        m, n, k = 100 + 37 * i, 300 - 29 * i, 200 + 111 * i
        a, b = integers(rng, m, k, largest=4), integers(rng, k, n, largest=4)
        jobs.append((driver.stream(), a, b, placed(driver, a), placed(driver, b), placed(driver, poisoned(m, n))))
    for _ in range(4):
        for stream, a, b, da, db, dc in jobs:
            binding.gemm(cuda.context, operand(da, a), operand(db, b),
                         result(dc, np.empty((a.shape[0], b.shape[1]), np.float32)), launch=Launch(stream))
    for stream, a, b, da, db, dc in jobs:
        driver.stream_synchronize(stream)
        assert_exact(dc.get().reshape(a.shape[0], b.shape[1]), a, b)
        for buffer in (da, db, dc):
            buffer.free()
        driver.stream_destroy(stream)


def test_a_chain_on_one_stream(cuda, driver, rng):
    """Each product reads what the one before it wrote; order on the stream is all that keeps them apart."""
    stream = driver.stream()
    x = np.eye(200, dtype=np.float32)[rng.permutation(200)]
    start = integers(rng, 200, 200)
    with placed(driver, x) as dx, placed(driver, start) as one, placed(driver, poisoned(200, 200)) as two:
        for source, target in [(one, two), (two, one)] * 5:
            binding.gemm(cuda.context, operand(dx, x), operand(source, start), result(target, start),
                         launch=Launch(stream))
        driver.stream_synchronize(stream)
        expected = start
        for _ in range(10):
            expected = x @ expected
        assert np.array_equal(one.get().reshape(200, 200), expected)
    driver.stream_destroy(stream)


def test_threads_with_streams_of_their_own(cuda, driver, rng):
    """Twenty threads, none of which has a CUDA context of its own current."""
    a, b = integers(rng, 256, 320), integers(rng, 320, 192)
    expected = (a.astype(np.float64) @ b).astype(np.float32)
    streams = [driver.stream() for _ in range(20)]
    outputs = [placed(driver, poisoned(256, 192)) for _ in range(20)]
    with placed(driver, a) as da, placed(driver, b) as db:

        def work(i):
            for _ in range(10):
                binding.gemm(cuda.context, operand(da, a), operand(db, b), result(outputs[i], expected),
                             launch=Launch(streams[i]))

        at_once(work, 20)
        driver.synchronize()
        for output, stream in zip(outputs, streams):
            assert np.array_equal(output.get().reshape(256, 192), expected)
            output.free()
            driver.stream_destroy(stream)


@pytest.mark.parametrize("m, n, k", [(200, 300, 400), (64, 64, 20000), (1024, 1024, 1024), (1, 5000, 3000)])
def test_graph_capture_and_replay(cuda, driver, rng, m, n, k):
    """Captured once, replayed with other data in the same buffers: also the decision to fall back is taken on the
    device."""
    stream = driver.stream()
    a, b = integers(rng, m, k, largest=3), integers(rng, k, n, largest=3)
    with placed(driver, a) as da, placed(driver, b) as db, placed(driver, poisoned(m, n)) as dc:
        graph = driver.capture(stream, lambda: binding.gemm(cuda.context, operand(da, a), operand(db, b),
                                                            result(dc, poisoned(m, n)), launch=Launch(stream)))
        assert np.isnan(dc.get()).all(), "capturing must not execute"
        for seed in range(3):
            a = integers(np.random.default_rng(seed), m, k, largest=3)
            special = seed == 1
            if special:
                a[m // 2, k // 2] = np.inf
            da.put(a)
            dc.put(poisoned(m, n))
            driver.replay(graph, stream)
            driver.stream_synchronize(stream)
            c = dc.get().reshape(m, n)
            assert_special_values(c, a, b) if special else assert_exact(c, a, b)
        driver.graph_destroy(graph)
    driver.stream_destroy(stream)


def test_first_call_may_be_captured(driver, rng):
    """The first product of a kind loads its kernels: that, too, must work while capturing. In a process of its own."""
    run_python(FIRST_CALL_CAPTURED)


FIRST_CALL_CAPTURED = """
import numpy as np
import binding, engine
from cuda_driver import Buffer
driver = engine.DRIVER
stream = driver.stream()
a = np.random.default_rng(1).integers(-4, 5, (1024, 1024)).astype(np.float32)
da, dc = Buffer(driver, a.nbytes).put(a), Buffer(driver, a.nbytes).put(np.full_like(a, np.nan))
context = binding.Context(device=binding.CUDA)
graph = driver.capture(stream, lambda: binding.gemm(
    context, *(binding.matrix(binding.Operand, a, da.address),) * 2, binding.matrix(binding.Result, a, dc.address),
    launch=binding.Launch(stream)))
driver.replay(graph, stream)
driver.stream_synchronize(stream)
assert np.array_equal(dc.get().reshape(a.shape), a.astype(np.float64) @ a)
"""


def test_the_call_does_not_wait(cuda, driver, rng):
    """A product queued on a stream that is held returns although it cannot have begun."""
    stream, done = driver.stream(), driver.event()
    a = np.zeros((1024, 1024), np.float32)
    with placed(driver, a) as da, placed(driver, a) as dc:
        def queue():
            binding.gemm(cuda.context, operand(da, a), operand(da, a), result(dc, a), launch=Launch(stream))
        queue()
        driver.stream_synchronize(stream)
        release = driver.hold(stream)
        queue()
        driver.record(done, stream)
        still_running = driver.lib.cuEventQuery(done)
        release()
        driver.stream_synchronize(stream)
    driver.event_destroy(done)
    driver.stream_destroy(stream)
    assert still_running == 600, "CUDA_ERROR_NOT_READY was expected"


# ---- Contexts and devices -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("index", [99, 2**31 - 1])
def test_device_that_does_not_exist(driver, index):
    handle = c_void_p(1)
    options = Options(CUDA, index, FP32, 0, 0, None)
    assert lib.tsr_context_create(byref(handle), byref(options)) == NO_DEVICE
    assert handle.value is None
    message = lib.tsr_last_error().decode()
    assert str(index) in message and "device_index" in message


def test_device_by_index(driver, rng):
    context = binding.Context(device=CUDA, device_index=0)
    a, b, c = integers(rng, 20, 30), integers(rng, 30, 10), poisoned(20, 10)
    with placed(driver, a) as da, placed(driver, b) as db, placed(driver, c) as dc:
        binding.gemm(context, operand(da, a), operand(db, b), result(dc, c))
        assert_exact(dc.get().reshape(20, 10), a, b)


@pytest.mark.parametrize("name", ["no-such-kernel", "avx512", ""])
def test_kernel_that_is_none(driver, name):
    with pytest.raises(TesseraError) as error:
        binding.Context(device=CUDA, kernel=name)
    assert error.value.status == INVALID_ARGUMENT and "options.kernel" in error.value.message


def test_stream_of_another_context(cuda, driver, rng):
    other = driver.new_context()
    try:
        driver.use(other)
        stream = driver.stream()
        driver.use(driver.context)
        a, b, c = integers(rng, 20, 30), integers(rng, 30, 10), poisoned(20, 10)
        with placed(driver, a) as da, placed(driver, b) as db, placed(driver, c) as dc:
            with pytest.raises(TesseraError, match=r"launch\.stream") as error:
                binding.gemm(cuda.context, operand(da, a), operand(db, b), result(dc, c), launch=Launch(stream))
            assert error.value.status == INVALID_ARGUMENT
            assert np.isnan(dc.get()).all()
    finally:
        driver.context_destroy(other)
        driver.use(driver.context)
    assert_exact(cuda.product(a, b), a, b)


def test_the_callers_context_is_left_current(cuda, driver, rng):
    """Called with another context current: the call works in its own, and the caller's is current afterwards."""
    a, b = integers(rng, 60, 70), integers(rng, 70, 50)
    context = cuda.context  # made here: it takes the context that is current
    other = driver.new_context()
    try:
        with placed(driver, a) as da, placed(driver, b) as db, placed(driver, poisoned(60, 50)) as dc:
            driver.use(other)
            binding.gemm(context, operand(da, a), operand(db, b), result(dc, poisoned(60, 50)))
            current = c_void_p()
            driver.call("cuCtxGetCurrent", byref(current))
            driver.use(driver.context)
            assert current.value == other.value
            assert_exact(dc.get().reshape(60, 50), a, b)
    finally:
        driver.use(driver.context)
        driver.context_destroy(other)


def test_works_in_a_context_that_is_not_the_primary(driver, rng):
    """device_index -1 takes the caller's current context, whatever it is."""
    other = driver.new_context()
    a, b, c = integers(rng, 60, 70), integers(rng, 70, 50), poisoned(60, 50)
    driver.use(other)
    try:
        context = binding.Context(device=CUDA)
        addresses = []
        for x in (a, b, c):
            address = c_void_p()
            driver.call("cuMemAlloc_v2", byref(address), binding.c_size_t(x.nbytes))
            driver.upload(address.value, x)
            addresses.append(address.value)
        binding.gemm(context, binding.matrix(Operand, a, addresses[0]), binding.matrix(Operand, b, addresses[1]),
                     binding.matrix(Result, c, addresses[2]))
        driver.download(addresses[2], c)
        assert context.stats().products == 1
        del context
    finally:
        driver.use(driver.context)
        driver.context_destroy(other)
    assert_exact(c, a, b)


def test_threads_per_block(driver):
    """Every problem can be computed with blocks of 128 threads: a kernel of each precision has them."""
    lines = [
        line for line in binding.info().splitlines() if line.startswith("cuda kernel: ") and line.endswith("runs here")
    ]
    assert any("ieee" in line and " 128 threads" in line for line in lines)
    if driver.capability()[0] == 9:
        assert any("fp32" in line and " 128 threads" in line for line in lines)


# ---- Memory ---------------------------------------------------------------------------------------------------------

OUT_OF_MEMORY = """
import numpy as np
import binding, engine
from binding import Operand, Result, matrix
from cuda_driver import Buffer
driver = engine.DRIVER
rng = np.random.default_rng(1)
refused = 0
for precision in (binding.FP32, binding.IEEE, binding.TF32):
    context = binding.Context(device=binding.CUDA, precision=precision)
    for m, n, k in [(2048, 2048, 2048), (256, 256, 65536), (64, 64, 100000)]:
        a, b = rng.integers(-3, 4, (m, k)).astype(np.float32), rng.integers(-3, 4, (k, n)).astype(np.float32)
        c = np.full((m, n), np.nan, np.float32)
        da, db, dc = (Buffer(driver, x.nbytes).put(x) for x in (a, b, c))
        plan = binding.Plan(context, matrix(Operand, a, da.address), matrix(Operand, b, db.address),
                            matrix(Result, c, dc.address))
        if plan.workspace() <= 2**20:
            continue
        try:
            plan.execute(da.address, db.address, dc.address)
        except binding.TesseraError as error:
            assert error.status == binding.OUT_OF_MEMORY, error
            refused += 1
            assert np.isnan(dc.get()).all(), "a call that failed wrote to C"
        workspace = Buffer(driver, plan.workspace())
        plan.execute(da.address, db.address, dc.address, launch=binding.Launch(None, workspace.address, workspace.size))
        assert np.array_equal(dc.get().reshape(m, n), a.astype(np.float64) @ b), "with workspace of the caller's"
        workspace.get(np.uint8)
        small = rng.integers(-3, 4, (32, 32)).astype(np.float32)
        made = engine.Engine(binding.CUDA, precision)
        assert np.array_equal(made.product(small, small, context=context), small @ small)
print(refused)
"""


@pytest.mark.alone
def test_out_of_memory(driver):
    """A pool limited to 1 MiB: a status, C untouched, and the context goes on working, with the caller's workspace
    too."""
    assert int(run_python(OUT_OF_MEMORY, TESSERA_CUDA_POOL_LIMIT=str(2**20))) >= 1


def test_workspace_is_at_most_a_tenth_more_than_the_operands(driver):
    """fp32: 1.1 x the bytes of A and B; small products may take 32 MiB whatever their size."""
    context = binding.Context(device=CUDA)
    for m, n, k in [(4096, 4096, 4096), (2048, 4096, 8192), (8205, 5921, 2949), (1000, 1000, 1000), (300, 5000, 129)]:
        plan = binding.Plan(context, Operand(None, m, k, k, 1, 0), Operand(None, k, n, n, 1, 0),
                            Result(None, m, n, n, 1, 0))
        assert plan.workspace() <= max(1.1 * 4 * (m * k + k * n), 32 << 20), (m, n, k)


@pytest.mark.alone
def test_trim_gives_memory_back(driver, rng):
    a = rng.random((3000, 3000), np.float32)
    context = binding.Context(device=CUDA)
    with placed(driver, a) as da, placed(driver, a) as dc:
        workspace = binding.Plan(context, operand(da, a), operand(da, a), result(dc, a)).workspace()
        binding.gemm(context, operand(da, a), operand(da, a), result(dc, a))
        driver.synchronize()
        before = driver.free_memory()
        binding.check(lib.tsr_trim(context.handle))
        assert driver.free_memory() >= before + workspace // 2
        binding.gemm(context, operand(da, a), operand(da, a), result(dc, a))
        driver.synchronize()


@pytest.mark.alone
def test_nothing_leaks(driver, rng):
    """A hundred contexts, packed operands and plans later the device has as much free memory as before."""
    a = rng.random((512, 512), np.float32)

    def use():
        context = binding.Context(device=CUDA)
        with placed(driver, a) as da, placed(driver, a) as dc:
            packed = Packed(context, RIGHT, operand(da, a))
            binding.gemm(context, operand(da, a), binding.matrix(Operand, a, da.address, packed), result(dc, a))
            driver.synchronize()

    use()
    driver.synchronize()
    before = driver.free_memory()
    for _ in range(100):
        use()
    assert before - driver.free_memory() < 2**24


# ---- Short k --------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module", params=["ieee_mma_short_k", "ieee_mma_short_96"])
def short_k(request):
    """The kernels that take no other products, so that they are not among the engines of the general tests."""
    if request.param not in kernel_names(CUDA):
        pytest.skip(f"{request.param} does not run here")
    return Engine(CUDA, IEEE, request.param)


SHORT = [(1, 1, 1), (64, 128, 64), (65, 130, 8), (200, 300, 33), (500, 1030, 63), (3000, 100, 40), (100, 5000, 24)]


@pytest.mark.sanitizer
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("m, n, k", SHORT)
def test_short_k_in_every_layout(short_k, rng, m, n, k, layout):
    a, b, before = integers(rng, m, k), integers(rng, k, n), integers(rng, m, n)
    for alpha, beta in [(1.0, 0.0), (2.0, -1.0)]:
        c = filled(layout, before) if beta else layout(m, n)
        short_k.multiply(filled(layout, a), filled(layout, b), c, alpha, beta)
        assert_exact(c, a, b, alpha, beta, before)
        assert_guards(c)


@pytest.mark.sanitizer
@pytest.mark.parametrize("m, n, k", [(128, 256, 32), (2000, 3000, 16), (5000, 128, 64), (64, 20000, 40)])
def test_short_k_aligned(short_k, rng, m, n, k):
    """Rows begin at multiples of 16 bytes: sums are stored from registers."""
    a, b = integers(rng, m, k), integers(rng, k, n)
    for alpha in (1.0, 3.0):
        assert_exact(short_k.product(a, b, alpha), a, b, alpha)


@pytest.mark.sanitizer
@pytest.mark.parametrize("m, n, k", [(64, 64, 65), (130, 190, 90), (1000, 500, 96)])
def test_short_k_of_more_terms(rng, m, n, k):
    """What one of the two takes alone."""
    if "ieee_mma_short_96" not in kernel_names(CUDA):
        pytest.skip("ieee_mma_short_96 does not run here")
    a, b = integers(rng, m, k), integers(rng, k, n)
    assert_exact(Engine(CUDA, IEEE, "ieee_mma_short_96").product(a, b), a, b)


def test_short_k_in_a_batch(short_k, rng):
    a, b = integers(rng, 5, 200, 30), integers(rng, 5, 30, 260)
    assert np.array_equal(short_k.product(a, b), a.astype(np.float64) @ b)


def test_short_k_with_special_values(short_k, rng):
    a, b = rng.standard_normal((200, 50), np.float32), rng.standard_normal((50, 300), np.float32)
    a[3, 7], a[100, 20], b[0, 200], b[30, 5] = np.inf, np.nan, -np.inf, 1e-42
    assert_special_values(short_k.product(a, b), a, b)


# ---- A tile for each warp -------------------------------------------------------------------------------------------

@pytest.mark.sanitizer
@pytest.mark.parametrize("batch, m, n, k", [(3000, 17, 9, 5), (700, 33, 65, 50), (300, 64, 64, 24), (1, 1000, 3000, 7)])
@pytest.mark.parametrize("name", [name for name in kernel_names(CUDA) if name.startswith("ieee_warp_")])
def test_warps_with_several_tiles(driver, rng, name, batch, m, n, k):
    """Tiles follow each other in a warp, in all four layouts, where rows of 16 bytes begin anywhere in them."""
    engine = Engine(CUDA, IEEE, name)
    a, b = integers(rng, batch, m, k), integers(rng, batch, k, n)
    expected = a.astype(np.float64) @ b
    for x, y in [(a, b), (a.swapaxes(1, 2).copy().swapaxes(1, 2), b.swapaxes(1, 2).copy().swapaxes(1, 2))]:
        assert np.array_equal(engine.product(x, b), expected)
        assert np.array_equal(engine.product(x, y), expected)


# ---- Large ----------------------------------------------------------------------------------------------------------

def test_offsets_beyond_32_bits(cuda, driver, rng):
    """Rows so far apart that element offsets pass 2^32: 64-bit arithmetic all the way."""
    stride = 2**28 + 4
    rows, k, n = 20, 64, 48
    size = 4 * ((rows - 1) * stride + k)
    if driver.free_memory() < 2 * size + 2**30:
        pytest.skip(f"{2 * size >> 30} GiB of GPU memory are not free")
    a, b = integers(rng, rows, k), integers(rng, k, n)
    address, spread = driver.allocate(size), driver.allocate(size)
    try:
        for i in range(rows):
            driver.upload(address + 4 * i * stride, a[i])
        with placed(driver, b) as db:
            binding.gemm(cuda.context, Operand(address, rows, k, stride, 1, 0), operand(db, b),
                         Result(spread, rows, n, stride, 1, 0))
            c = poisoned(rows, n)
            for i in range(rows):
                driver.download(spread + 4 * i * stride, c[i])
        assert_exact(c, a, b)
    finally:
        driver.free(address)
        driver.free(spread)


@pytest.mark.parametrize("m, n, k", [(100000, 3, 7), (3, 100000, 7), (1, 1, 1000000), (100000, 1, 100),
                                     (70000, 40, 40)])
def test_long_and_thin(cuda, rng, m, n, k):
    a, b = integers(rng, m, k, largest=2), integers(rng, k, n, largest=2)
    assert_exact(cuda.product(a, b), a, b)


def test_a_batch_of_more_than_65535(cuda, rng):
    """More than one dimension of a grid holds."""
    a, b = integers(rng, 70000, 4, 4), integers(rng, 70000, 4, 4)
    assert np.array_equal(cuda.product(a, b), a.astype(np.float64) @ b)


@pytest.mark.slow
@pytest.mark.parametrize("kernel, m, n", [("ieee_small_16", 9, 65535 * 16 + 1), ("ieee_vector_k", 2**26 + 5, 1)])
def test_more_blocks_than_a_grid_may_have(driver, rng, kernel, m, n):
    """Tile columns beyond the grid's y, and blocks beyond what is exact along x, are launched again."""
    if kernel not in kernel_names(CUDA):
        pytest.skip(f"{kernel} does not run on this GPU")
    a, b, c = integers(rng, m, 1), integers(rng, 1, n), poisoned(m, n)
    with placed(driver, a) as da, placed(driver, b) as db, placed(driver, c) as dc:
        binding.gemm(binding.Context(device=CUDA, precision=IEEE, kernel=kernel), operand(da, a), operand(db, b),
                     result(dc, c))
        assert np.array_equal(dc.get().reshape(m, n), a * b)


@pytest.mark.parametrize("m, n, k", [(2048, 1024, 1024), (1031, 743, 517), (4096, 128, 4096), (256, 256, 16384)])
def test_bound_at_sizes_that_fill_the_gpu(accurate_cuda, rng, m, n, k):
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    c = accurate_cuda.product(a, b)
    rows, columns = rng.choice(m, 64, replace=False), rng.choice(n, 64, replace=False)
    assert_componentwise(c[rows], a[rows], b)
    assert_componentwise(c[:, columns], a, b[:, columns])
