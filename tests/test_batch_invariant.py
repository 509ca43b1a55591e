"""options.batch_invariant: a row of C has the same bits whatever m, its place, its neighbours and the batch are."""

import numpy as np
import pytest

import binding
from binding import RIGHT, Operand, Packed, Plan, Result
from engine import DRIVER, NO_GPU, Engine, bits
from layouts import poisoned
from toolchain import run_python

SIZES = [1, 2, 3, 4, 5, 8, 16, 17, 31, 33, 64, 100, 127, 128, 129, 200, 256, 300, 511, 512, 513, 1000, 2048, 4095]
LARGEST = 4096

# n and k: a column, few columns, short k, several k blocks of every CPU kernel, several tiles and split-K on a GPU.
SHAPES = [(1, 700), (5, 900), (33, 20), (70, 1300), (260, 2100)]


needs_gpu = pytest.mark.skipif(not DRIVER, reason=str(NO_GPU))


@pytest.fixture(scope="module")
def contexts():
    made = {}

    def context(engine, **options):
        key = (engine.name, *sorted(options.items()))
        if key not in made:
            made[key] = engine.new_context(batch_invariant=1, **options)
        if engine.kernel and engine.device == binding.CUDA:
            shape = Operand(None, 9, 9, 1, 9, 0), Operand(None, 9, 9, 1, 9, 0), Result(None, 9, 9, 9, 1, 0)
            try:
                Plan(made[key], *shape)
            except binding.TesseraError as error:
                if "is not for options.batch_invariant" in str(error):
                    pytest.skip(f"{engine.kernel} is not for it")
        return made[key]

    return context


def plain(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def same_bits(found, expected):
    """NaN's own bits are not promised."""
    return np.array_equal(np.where(np.isnan(found), 0, bits(found)), np.where(np.isnan(expected), 0, bits(expected))) \
        and np.array_equal(np.isnan(found), np.isnan(expected))


def assert_rows(engine, context, a, b, expected, sizes, rng, c=poisoned):
    """The product of so many rows of A, from anywhere, and in any order, has the rows of the whole product."""
    for m in sizes:
        rows = rng.permutation(len(a))[:m] if m % 2 else np.arange(m) + rng.integers(len(a) - m + 1)
        found = engine.multiply(np.ascontiguousarray(a[rows]), b, c(m, b.shape[1]), context=context)
        assert same_bits(found, expected[rows]), f"m = {m}"


@pytest.mark.parametrize("n, k", SHAPES)
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_rows(engine, contexts, rng, n, k, transposed):
    """B's rows contiguous, or its columns, as nn.Linear has them; so is C."""
    largest = {"amx": 200, "portable": 1100}.get(engine.kernel, LARGEST)
    sizes = [m for m in SIZES if m < largest]
    a, b = plain(rng, largest, k), plain(rng, n, k).T if transposed else plain(rng, k, n)
    context = contexts(engine)
    expected = engine.product(a, b, context=context)
    assert_rows(engine, context, a, b, expected, sizes, rng)
    if transposed:
        assert_rows(engine, context, a, b, expected, sizes[::5], rng, lambda m, n: poisoned(n, m).T)
        for m in 77, 1:
            columns = np.ascontiguousarray(a[:m].T).T
            assert same_bits(engine.product(columns, b, context=context), expected[:m])


@pytest.mark.parametrize("n, k", SHAPES[1:])
@pytest.mark.parametrize("alpha, beta", [(0.75, 0), (-1, 1), (3, -0.5)])
def test_alpha_and_beta(engine, contexts, rng, n, k, alpha, beta):
    a, b, s = plain(rng, 300, k), plain(rng, k, n), plain(rng, 300, n)
    context = contexts(engine)
    expected = engine.multiply(a, b, s.copy(), alpha, beta, context=context)
    for m in 1, 2, 7, 64, 150:
        rows = rng.permutation(300)[:m]
        assert same_bits(engine.multiply(a[rows].copy(), b, s[rows].copy(), alpha, beta, context=context),
                         expected[rows])


@pytest.mark.parametrize("batch", [2, 9])
def test_batches(engine, contexts, rng, batch):
    """A batch that shares B, one whose items have their own, and one with few rows each."""
    a, b = plain(rng, batch, 40, 300), plain(rng, batch, 300, 50)
    context = contexts(engine)
    shared = engine.product(a, np.broadcast_to(b[0], b.shape), context=context)
    each = engine.product(a, b, context=context)
    thin = engine.product(a[:, :1].copy(), b, context=context)
    for i in range(batch):
        assert same_bits(engine.product(a[i], b[0], context=context), shared[i])
        assert same_bits(engine.product(a[i], b[i], context=context), each[i])
    assert same_bits(thin, each[:, :1])


def odd_rows(rng, a, kind):
    """Every fifth row such that a fast path may not carry it; rows of zeros and tiny ones between them."""
    a = a.copy()
    spread = np.ldexp(1.0, rng.integers(-60, 40, a.shape)).astype(np.float32)
    if kind == "specials":
        a[::5, 3], a[1::10, -1], a[6::10, 7] = np.inf, np.nan, -np.inf
    elif kind == "huge":
        a[::5] *= np.float32(2.0**120)
    elif kind == "tiny":
        a[::5] *= np.float32(2.0**-130)
        a[1::5, ::3] *= np.float32(2.0**-40)
        a[2::5] = 0
    elif kind == "spread":
        a[::5] *= spread[::5]
        a[1::5, 5] = np.float32(2.0**30)  # not in a sample of the row, perhaps
    return a


@pytest.mark.parametrize("kind", ["specials", "huge", "tiny", "spread"])
@pytest.mark.parametrize("of_b", ["plain", "small", "tiny elements"])
@pytest.mark.parametrize("n, k", [(40, 130), (260, 1300)])
def test_neighbours(engine, contexts, rng, kind, of_b, n, k):
    """What a row's neighbours hold does not change it, even where it makes a fast path recompute them."""
    a, b = plain(rng, 320, k), plain(rng, k, n)
    if of_b == "small":
        b *= np.float32(2.0**-60)
    elif of_b == "tiny elements":
        b[::50, ::7] *= np.float32(2.0**-45)
    odd, context = odd_rows(rng, a, kind), contexts(engine)
    expected, found = engine.product(a, b, context=context), engine.product(odd, b, context=context)
    unchanged = (bits(odd) == bits(a)).all(axis=1)
    assert unchanged.any() and not unchanged.all()
    assert same_bits(found[unchanged], expected[unchanged])
    assert_rows(engine, context, odd, b, found, [1, 2, 3, 16, 17, 64, 130, 200], rng)


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 2}, {"threads": 4}, {"max_workspace": 3 << 20}],
                         ids=str)
def test_threads_and_workspace(cpu, contexts, rng, options):
    a, b = plain(rng, 700, 1300), plain(rng, 300, 1300).T
    expected = cpu.product(a, b, context=contexts(cpu))
    assert_rows(cpu, contexts(cpu, **options), a, b, expected, [1, 2, 4, 5, 31, 128, 300, 699, 700], rng)


def test_limited_workspace(cuda, contexts, rng):
    """A limit may choose other kernels, but the same ones for every m."""
    a, b = plain(rng, 1500, 1300), plain(rng, 1300, 600)
    for limit in 1 << 12, 3 << 20, 12 << 20:
        try:
            expected = cuda.product(a, b, context=contexts(cuda, max_workspace=limit))
        except binding.TesseraError as error:
            assert cuda.kernel and error.status == binding.OUT_OF_MEMORY
            continue
        assert_rows(cuda, contexts(cuda, max_workspace=limit), a, b, expected, [1, 129, 512, 1499], rng)


def test_packed(engine, contexts, rng):
    """An operand packed beforehand changes nothing."""
    a, b = plain(rng, 300, 700), plain(rng, 700, 260)
    context = contexts(engine)
    expected = engine.product(a, b, context=context)
    with engine.resident(b):
        packed = Packed(context, RIGHT, engine.operand(b))
        for m in 1, 3, 70, 300:
            part, c = a[:m].copy(), poisoned(m, 260)
            with engine.resident(part, changed=[c]):
                binding.gemm(context, engine.operand(part), engine.operand(b, packed), engine.result(c))
            assert same_bits(c, expected[:m])


def test_the_environment():
    """TESSERA_BATCH_INVARIANT=1 holds for every context."""
    source = """
import numpy as np, binding
from engine import Engine
rng = np.random.default_rng(1)
a, b = rng.standard_normal((40, 5000), np.float32), rng.standard_normal((30, 5000), np.float32).T
engine = Engine(binding.CPU, binding.IEEE)
print(np.array_equal(engine.product(a, b)[:1], engine.product(a[:1].copy(), b)))
"""
    for value, same in ("1", True), ("0", False), ("", False):
        assert run_python(source, TESSERA_BATCH_INVARIANT=value).strip() == str(same)


def test_option_out_of_range():
    with pytest.raises(binding.TesseraError, match=r"options\.batch_invariant is 2; it must be 0 or 1"):
        binding.Context(batch_invariant=2)


def test_the_plan_says_so(engine, contexts):
    shape = Operand(None, 100, 200, 200, 1, 0), Operand(None, 200, 300, 300, 1, 0), Result(None, 100, 300, 300, 1, 0)
    assert "batch invariant: yes\n" in Plan(contexts(engine), *shape).text()
    assert "batch invariant" not in Plan(engine.context, *shape).text()


@pytest.mark.parametrize("n, k", [(1, 5000), (8, 300), (64, 64), (200, 8192), (1024, 4096), (8192, 100), (5000, 3000)])
def test_the_same_plan(cuda, contexts, n, k):
    """The kernel and where k is cut depend on n and k alone; C is never transposed."""
    def choice(m, batch, c_strides, max_workspace):
        plan = Plan(contexts(cuda, max_workspace=max_workspace), Operand(None, m, k, k, 1, m * k),
                    Operand(None, k, n, n, 1, 0), Result(None, m, n, *c_strides, m * n), batch)
        return [line for line in plan.text().splitlines() if line.startswith(("kernel:", "slices:", "reason:"))], plan

    for limit in 0, 1 << 30:
        expected, plan = choice(512, 1, (n, 1), limit)
        assert not limit or "slices:" not in plan.text()
        for m, batch in (1, 1), (2, 7), (8, 1), (129, 1), (1, 5000), (4096, 3), (100000, 1):
            for c_strides in (n, 1), (1, m):
                found, plan = choice(m, batch, c_strides, limit)
                assert found == expected and "transposed" not in plan.text()


@needs_gpu
def test_partial_sums_stay_small(contexts):
    """With many rows, slices of k are added up some rows at a time."""
    cuda = Engine(binding.CUDA, binding.FP32)
    shape = [Operand(None, 3000000, 16384, 16384, 1, 0), Operand(None, 16384, 256, 256, 1, 0),
             Result(None, 3000000, 256, 256, 1, 0)]
    text = Plan(contexts(cuda), *shape).text()
    assert "slices: " in text and "chunks: " in text


@needs_gpu
def test_thin_kernels_are_not_for_it():
    for kernel in "ieee_thin_k", "ieee_thin_m":
        context = binding.Context(device=binding.CUDA, kernel=kernel, batch_invariant=1)
        with pytest.raises(binding.TesseraError, match=f"options.kernel {kernel} is not for options.batch_invariant"):
            Plan(context, Operand(None, 9, 9, 1, 9, 0), Operand(None, 9, 1, 1, 1, 0), Result(None, 9, 1, 1, 1, 0))
