"""tsr_stats and tsr_trim."""

import numpy as np
import pytest

import binding
from reference import integers


def test_products_are_counted(engine, rng):
    context = engine.new_context()
    assert context.stats().products == 0
    a, b = integers(rng, 20, 30), integers(rng, 30, 10)
    for expected in (1, 2, 3):
        engine.product(a, b, context=context)
        assert context.stats().products == expected
    engine.product(np.stack([a] * 5), np.stack([b] * 5), context=context)
    assert context.stats().products == 8


def test_refused_and_empty_products_are_not_counted(engine, rng):
    context = engine.new_context()
    engine.product(np.zeros((0, 5), np.float32), np.zeros((5, 5), np.float32), context=context)
    with pytest.raises(binding.TesseraError):
        engine.multiply(integers(rng, 3, 3), integers(rng, 4, 3), np.zeros((3, 3), np.float32), context=context)
    assert context.stats().products == 0


def test_ieee_takes_no_split_path(ieee, rng):
    context = ieee.new_context()
    ieee.product(integers(rng, 300, 300), integers(rng, 300, 300), context=context)
    stats = context.stats()
    assert (stats.split_products, stats.marked_panels, stats.fallback_tiles) == (0, 0, 0)


def test_fallback_is_counted_where_the_split_is_used(fp32, rng):
    """Plain data mark nothing; one infinity marks something, whenever the split path was taken at all."""
    a, b = rng.random((1024, 1024), np.float32), rng.random((1024, 1024), np.float32)
    context = fp32.new_context()
    fp32.product(a, b, context=context)
    stats = context.stats()
    assert stats.split_products <= stats.products
    assert (stats.marked_panels, stats.fallback_tiles) == (0, 0)
    a[500, 500] = np.inf
    fp32.product(a, b, context=context)
    after = context.stats()
    if after.split_products:
        assert after.marked_panels > 0 and after.fallback_tiles > 0
    else:
        assert (after.marked_panels, after.fallback_tiles) == (0, 0)


def test_trim(engine, rng):
    a, b = integers(rng, 100, 100), integers(rng, 100, 100)
    first = engine.product(a, b)
    binding.check(binding.lib.tsr_trim(engine.context.handle))
    assert np.array_equal(engine.product(a, b), first)
