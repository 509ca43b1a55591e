"""Batches: strided, shared, interleaved, empty; each product equal to the same product alone."""

import itertools

import numpy as np
import pytest

import binding
from layouts import LAYOUTS, assert_guards, filled, multiply_exactly, poisoned, row_major
from properties import given, settings, st
from reference import assert_componentwise, assert_exact, integers


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [1, pytest.param(2, marks=pytest.mark.sanitizer), 7])
def test_strided(engine, rng, batch, layout):
    a, b, before = integers(rng, batch, 21, 34), integers(rng, batch, 34, 19), integers(rng, batch, 21, 19)
    c = filled(LAYOUTS[layout], before)
    multiply_exactly(engine, filled(LAYOUTS[layout], a), filled(LAYOUTS[layout], b), c, 2.0, -1.0)


@pytest.mark.parametrize("shared", ["a", "b", "both"])
def test_shared_operand(engine, rng, shared):
    """A batch stride of zero: every product reads the same matrix."""
    a, b = integers(rng, 5, 40, 30), integers(rng, 5, 30, 50)
    if shared in ("a", "both"):
        a = np.broadcast_to(a[0], a.shape)
    if shared in ("b", "both"):
        b = np.broadcast_to(b[0], b.shape)
    c = row_major(5, 40, 50)
    multiply_exactly(engine, a, b, c)


def test_interleaved(engine, rng):
    """The batch as the innermost dimension of all three: a batch stride of one float."""
    batch, m, n, k = 6, 17, 23, 31
    a, b = integers(rng, m, k, batch).transpose(2, 0, 1), integers(rng, k, n, batch).transpose(2, 0, 1)
    c = poisoned(m, n, batch + 1)[..., :batch].transpose(2, 0, 1)
    multiply_exactly(engine, a, b, c)


def test_interleaved_rows(engine, rng):
    """Row i of every product side by side, as attention heads lie in (tokens, heads, width)."""
    a = integers(rng, 33, 4, 16).transpose(1, 0, 2)
    b = integers(rng, 29, 4, 16).transpose(1, 2, 0)
    c = poisoned(33, 4, 29).transpose(1, 0, 2)
    engine.multiply(a, b, c)
    assert_exact(c, a, b)


def test_backwards(engine, rng):
    """A negative batch stride runs through the batch from its end, in every matrix."""
    a, b = integers(rng, 4, 9, 8)[::-1], integers(rng, 4, 8, 7)[::-1]
    c = row_major(4, 9, 7)[::-1]
    multiply_exactly(engine, a, b, c)


@pytest.mark.parametrize("batch, m, n, k", [(0, 5, 5, 5), (3, 0, 5, 5), (3, 5, 0, 5), (3, 5, 5, 0)])
def test_empty(engine, rng, batch, m, n, k):
    c = row_major(batch, m, n)
    engine.multiply(integers(rng, batch, m, k), integers(rng, batch, k, n), c)
    assert (c == 0).all()
    assert_guards(c)


def test_many_small(engine, rng):
    a, b = integers(rng, 3000, 8, 8), integers(rng, 3000, 8, 8)
    c = row_major(3000, 8, 8)
    engine.multiply(a, b, c)
    assert np.array_equal(c, a.astype(np.float64) @ b)


@settings(max_examples=25)
@given(batch=st.integers(0, 9), m=st.integers(0, 90), n=st.integers(0, 90), k=st.integers(0, 90),
       layouts=st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 3), seed=st.integers(0, 2**32 - 1))
def test_random(engine, batch, m, n, k, layouts, seed):
    rng = np.random.default_rng(seed)
    a, b = integers(rng, batch, m, k), integers(rng, batch, k, n)
    of_a, of_b, of_c = (LAYOUTS[name] for name in layouts)
    c = of_c(batch, m, n)
    multiply_exactly(engine, filled(of_a, a), filled(of_b, b), c)


def test_bound_in_a_batch(accurate, rng):
    a, b = rng.standard_normal((4, 65, 200), np.float32), rng.standard_normal((4, 200, 33), np.float32)
    c = accurate.product(a, b)
    for i in range(4):
        assert_componentwise(c[i], a[i], b[i])


# ---- Matrices anywhere ----------------------------------------------------------------------------------------------


def gemm_pointers(engine, a, b, c, order, alpha=1.0, beta=0.0, context=None):
    """Item i of the product is item order[i] of these batches."""
    with engine.resident(a, b, changed=[c]):
        addresses = [[engine.address(x) + int(i) * x.strides[0] for i in order] for x in (a, b, c)]
        matrices = [engine.operand(a[0]), engine.operand(b[0]), engine.result(c[0])]
        binding.gemm_pointers(context or engine.context, len(order), *itertools.chain(*zip(matrices, addresses)), alpha,
                              beta)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (8, 8, 8), (1, 70, 300), (70, 1, 300), (34, 19, 700)])
def test_pointers(engine, rng, layout, m, n, k):
    """In any order; what no pointer names stays as it was."""
    a, b, before = integers(rng, 7, m, k, largest=3), integers(rng, 7, k, n, largest=3), integers(rng, 7, m, n)
    for order, alpha, beta in (rng.permutation(7)[:5], 2, -1), (np.arange(7), 1, 0), (np.arange(6, -1, -2), 3, 1):
        c = filled(LAYOUTS[layout], before)
        gemm_pointers(engine, filled(LAYOUTS[layout], a), filled(LAYOUTS[layout], b), c, order, alpha, beta)
        assert_exact(c[order], a[order], b[order], alpha, beta, before[order])
        others = np.setdiff1d(np.arange(7), order)
        assert np.array_equal(c[others], before[others])
        assert_guards(c)


def test_pointers_have_the_bits_of_single_products(engine, rng):
    """Many small products, shared by threads, and a few larger ones."""
    for batch, m, n, k in (500, 9, 11, 13), (5, 200, 150, 700):
        a, b = rng.standard_normal((batch, m, k), np.float32), rng.standard_normal((batch, k, n), np.float32)
        c = row_major(batch, m, n)
        gemm_pointers(engine, a, b, c, rng.permutation(batch))
        for i in range(0, batch, 1 + batch // 7):
            assert np.array_equal(c[i], engine.product(a[i], b[i]))


def test_pointers_that_are_shared(engine, rng):
    """Operands may be named several times."""
    a, b, c = integers(rng, 3, 20, 30), integers(rng, 3, 30, 40), row_major(4, 20, 40)
    with engine.resident(a, b, changed=[c]):
        named = (a, [2, 2, 0, 2]), (b, [1, 0, 1, 1]), (c, range(4))
        at = [[engine.address(x[i]) for i in which] for x, which in named]
        binding.gemm_pointers(engine.context, 4, engine.operand(a[0]), at[0], engine.operand(b[0]), at[1],
                              engine.result(c[0]), at[2])
    assert_exact(c, a[[2, 2, 0, 2]], b[[1, 0, 1, 1]])


def test_pointers_to_nothing(cpu, rng):
    a, b, c = integers(rng, 2, 3, 4), integers(rng, 2, 4, 5), poisoned(2, 3, 5)
    one = cpu.operand(a[0]), cpu.operand(b[0]), cpu.result(c[0])
    at = [[x[i].ctypes.data for i in range(2)] for x in (a, b, c)]

    def refused(sentence, batch=2, matrices=one, addresses=at, **factors):
        with pytest.raises(binding.TesseraError, match=f"^TSR_INVALID_ARGUMENT: {sentence}"):
            binding.gemm_pointers(cpu.context, batch, *itertools.chain(*zip(matrices, addresses)), **factors)
        assert np.isnan(c).all()

    for i, name in enumerate("abc"):
        for sentence, wrong in ((f"{name}_data is NULL", None), (rf"{name}\.data is NULL", [at[i][0], None]),
                                (rf"{name}\.data is not aligned", [at[i][0], at[i][1] + 1])):
            refused(sentence, addresses=[wrong if j == i else x for j, x in enumerate(at)])
    refused("batch is -1", batch=-1)
    refused("c overlaps b", addresses=[at[0], [at[1][0], at[2][1] + 8], at[2]])
    refused(r"a\.cols \(4\) must equal", matrices=(one[0], cpu.operand(b[0, :3]), one[2]))
    binding.gemm_pointers(cpu.context, 0, one[0], None, one[1], None, one[2], None)
    binding.gemm_pointers(cpu.context, 2, one[0], [None] * 2, one[1], [None] * 2, one[2], at[2], alpha=0.0)
    assert not c.any()
