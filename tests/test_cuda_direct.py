"""The direct kernels with tiles of 128 rows: tiles that a thread block takes one after the other, slices of k,
clusters; and in each of them what cannot be split."""

import re

import numpy as np
import pytest

from binding import CUDA, FP32, Operand, Plan, Result
from engine import Engine, kernel_names
from layouts import filled, padded, padded_columns, row_major
from reference import assert_componentwise, assert_exact, assert_special_values, integers, normal

KERNELS = [kernel for kernel in kernel_names(CUDA) if kernel.startswith("direct_128")]
pytestmark = pytest.mark.skipif(not KERNELS, reason="no GPU with these kernels")

MANY_TILES = 150 * 128 + 5, 70, 96
LONG_K = 140, 90, 40000  # in slices
CLUSTERS = 140, 90, 1100
LAYOUTS = {"rows": np.ascontiguousarray, "columns": lambda x: np.ascontiguousarray(x.T).T,  # both aligned
           "padded": lambda x: filled(padded, x), "padded columns": lambda x: filled(padded_columns, x)}


@pytest.fixture(params=KERNELS)
def engine(request):
    return Engine(CUDA, FP32, request.param)


def plan_of(engine, a, b):
    c = row_major(a.shape[0], b.shape[1])
    with engine.resident(a, b, changed=[c]):
        return Plan(engine.context, engine.operand(a), engine.operand(b), engine.result(c)).text()


@pytest.mark.parametrize("shape, cut", [(MANY_TILES, None), (LONG_K, "slices"), (CLUSTERS, "clusters")])
def test_cuda_cuts(engine, rng, shape, cut):
    """The shapes of this file are cut as they are meant to be, so that the tests below see each way."""
    m, n, k = shape
    text = plan_of(engine, row_major(m, k), row_major(k, n))
    assert [word for word in ("slices", "clusters") if word in text] == ([cut] if cut else [])


def test_cuda_tiles_of_a_block(engine):
    """A thread block can note so many tiles; if there are more, there are more blocks than the GPU has SMs."""
    def blocks(tiles):
        m, n, k = 128 * tiles, 9, 64
        text = Plan(engine.context, Operand(None, m, k, k, 1, 0), Operand(None, k, n, n, 1, 0),
                    Result(None, m, n, n, 1, 0)).text()
        return [int(re.search(pattern, text)[1]) for pattern in (r"grid: (\d+) blocks", r", (\d+) multiprocessors")]

    grid, sms = blocks(20)
    assert grid == 20
    assert blocks(3 * sms) == [sms, sms]
    assert blocks(1024 * (sms + 7) + 1) == [sms + 8, sms]


@pytest.mark.sanitizer
@pytest.mark.parametrize("layout_a", LAYOUTS)
@pytest.mark.parametrize("layout_b", LAYOUTS)
def test_cuda_layouts(engine, rng, layout_a, layout_b):
    """Operands along k and across it, by vectors and by single floats; tiles that reach past C on two sides."""
    for m, n, k in [(129, 97, 100), (260, 33, 65), CLUSTERS]:
        a, b = LAYOUTS[layout_a](integers(rng, m, k)), LAYOUTS[layout_b](integers(rng, k, n))
        before = integers(rng, m, n)
        assert_exact(engine.multiply(a, b, row_major(m, n)), a, b)
        c = before.copy()
        assert_exact(engine.multiply(a, b, c, alpha=2.0, beta=-1.0), a, b, 2.0, -1.0, before)


@pytest.mark.parametrize("shape", [MANY_TILES, LONG_K, CLUSTERS])
def test_cuda_special_values(engine, rng, shape):
    """A few rows with Inf or NaN: the tiles that have them are computed again when the block has done all others, and
    the addend is added once."""
    m, n, k = shape
    a, b = integers(rng, m, k), integers(rng, k, n)
    for row, value in [(0, np.inf), (70, np.nan), (m // 2, -np.inf), (m - 1, np.inf)]:
        a[row, rng.integers(k)] = value
    assert_special_values(engine.product(a, b), a, b)
    finite = np.isfinite(a).all(axis=1)
    before = integers(rng, m, n)
    c = engine.multiply(a, b, before.copy(), beta=1.0)
    assert_exact(c[finite], a[finite], b, 1.0, 1.0, before[finite])
    assert not np.isfinite(c[~finite]).any()


@pytest.mark.parametrize("shape", [(140, 90, 640), LONG_K, CLUSTERS])
@pytest.mark.parametrize("stages", ["first", "last", "each second", "two of three", "all"])
def test_cuda_tiny_elements(engine, rng, shape, stages):
    """Terms too small to be split, in some stages of 32 of them: these are multiplied by fma, others are not."""
    m, n, k = shape
    a, b = normal(rng, m, n, k)
    stage = np.arange(k) // 32
    low = {"first": stage == 0, "last": stage == stage[-1], "each second": stage % 2 == 1,
           "two of three": stage % 3 > 0, "all": stage >= 0}[stages]
    a[:, low] *= np.float32(2.0**-100)
    for x, y in [(a, b), (b.T, a.T)]:
        assert_componentwise(engine.product(x, y), x, y)


def test_cuda_batches(engine, rng):
    a, b = integers(rng, 5, 300, 130), integers(rng, 5, 130, 100)
    a[3, 200, 7] = np.inf
    c = engine.multiply(a, b, row_major(5, 300, 100))
    for i in range(5):
        assert_special_values(c[i], a[i], b[i])


def test_cuda_same_bits(engine, rng):
    for m, n, k in [MANY_TILES, LONG_K, CLUSTERS]:
        a, b = normal(rng, m, n, k)
        assert np.array_equal(engine.product(a, b).view(np.uint32), engine.product(a, b).view(np.uint32))
