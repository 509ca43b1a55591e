"""Integer-valued matrices: float32 arithmetic is exact on them in any order, so results must be equal, not close."""

import numpy as np
import pytest

from binding import CPU
from layouts import LAYOUTS, filled, multiply_exactly, padded, row_major
from properties import given, settings, st
from reference import assert_exact, integers


@pytest.mark.parametrize("k", [*range(1, 10), 16, 17, 31, 33])
def test_every_small_size(engine, k):
    """Every m and n across several times the largest microkernel tile: each edge case of each kernel."""
    largest = 50 if engine.device == CPU else 34
    rng = np.random.default_rng(k)
    a, b = integers(rng, largest, k), integers(rng, k, largest)
    results = {}
    owner = np.full(sum(m * n for m in range(1, largest + 1) for n in range(1, largest + 1)), np.nan, np.float32)
    used = 0
    for m in range(1, largest + 1):
        for n in range(1, largest + 1):
            results[m, n] = owner[used:used + m * n].reshape(m, n)
            used += m * n
    with engine.resident(a, b, changed=[owner]):
        for (m, n), c in results.items():
            engine.multiply(a[:m], b[:, :n], c)
    whole = (a.astype(np.float64) @ b).astype(np.float32)
    for (m, n), c in results.items():
        assert np.array_equal(c, whole[:m, :n]), (m, n, k)


@pytest.mark.parametrize("m, n", [(1, 1), (1, 64), (64, 1), (7, 5), (33, 65)])
def test_every_depth(engine, rng, m, n):
    """Every k from 0 through several unrolled loops."""
    a, b = integers(rng, m, 300), integers(rng, 300, n)
    owner = np.full((301, m, n), np.nan, np.float32)
    with engine.resident(a, b, changed=[owner]):
        for k in range(301):
            engine.multiply(a[:, :k], b[:k], owner[k])
    for k in range(301):
        assert_exact(owner[k], a[:, :k], b[:k])


@pytest.mark.parametrize("m, n, k", [(1, 1000, 1000), (1000, 1, 1000), (1000, 1000, 1), (3, 2000, 5), (2000, 3, 5),
                                     (4, 4, 20000), (1, 1, 100000), (513, 511, 257), (1031, 743, 517), (96, 4100, 33),
                                     (4100, 96, 33), (640, 640, 640)])
def test_shapes_that_cross_cache_blocks(engine, rng, m, n, k):
    a, b = integers(rng, m, k, largest=4), integers(rng, k, n, largest=4)
    c = row_major(m, n)
    multiply_exactly(engine, a, b, c)


@pytest.mark.parametrize("k", range(1, 26))
def test_few_terms(engine, rng, k):
    """Rows that end within each part of a vector, one beside the other in memory and with gaps between them."""
    layouts = [LAYOUTS["row_major"], LAYOUTS["column_major"]]
    for n in (2, 3, 8, 9, 13, 16, 17, 24, 31, 32, 33, 47, 64, 77, 700):
        for m in (2, 3, 12, 13, 30):
            a, b = integers(rng, m, k, largest=8), integers(rng, k, n, largest=8)
            a, b = filled(layouts[rng.integers(2)], a), filled(layouts[rng.integers(2)], b)
            alpha, beta = (1.0, 0.0) if rng.integers(2) else (rng.choice([1.0, -3.0]), rng.choice([0.0, 1.0, 0.5]))
            c = [row_major, padded][rng.integers(2)](m, n)
            if beta:
                c[...] = integers(rng, m, n, largest=8)
            multiply_exactly(engine, a, b, c, alpha, beta)


factors = st.sampled_from([0.0, 1.0, -1.0, 2.0, -3.0, 0.5])


@settings(max_examples=60)
@given(m=st.integers(0, 400), n=st.integers(0, 400), k=st.integers(0, 400), alpha=factors, beta=factors,
       layouts=st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 3), seed=st.integers(0, 2**32 - 1))
def test_random_products(engine, m, n, k, alpha, beta, layouts, seed):
    rng = np.random.default_rng(seed)
    a, b, before = integers(rng, m, k), integers(rng, k, n), integers(rng, m, n)
    va, vb = filled(LAYOUTS[layouts[0]], a), filled(LAYOUTS[layouts[1]], b)
    c = LAYOUTS[layouts[2]](m, n)
    if beta:
        c[...] = before
    multiply_exactly(engine, va, vb, c, alpha, beta)


@settings(max_examples=6)
@given(m=st.integers(1, 1500), n=st.integers(1, 1500), k=st.integers(1, 1500), seed=st.integers(0, 2**32 - 1))
def test_random_large_products(engine, m, n, k, seed):
    rng = np.random.default_rng(seed)
    a, b = integers(rng, m, k, largest=4), integers(rng, k, n, largest=4)
    c = padded(m, n)
    multiply_exactly(engine, a, b, c)


@pytest.mark.sanitizer
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (17, 33, 65), (130, 70, 300)])
def test_reduced_set(engine, rng, m, n, k):
    a, b, before = integers(rng, m, k), integers(rng, k, n), integers(rng, m, n)
    for layout in LAYOUTS.values():
        for alpha, beta in [(1.0, 0.0), (2.0, -1.0)]:
            va, vb, c = filled(layout, a), filled(layout, b), filled(layout, before) if beta else layout(m, n)
            multiply_exactly(engine, va, vb, c, alpha, beta)
