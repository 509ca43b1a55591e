"""The same matrix in different memory: every way strides can describe one."""

import numpy as np

from engine import bits, owner_of
from reference import assert_exact

POISON = np.array([0x7FC0DEAD], np.uint32).view(np.float32)[0]  # a NaN that arithmetic does not produce


def poisoned(*shape):
    return np.full(shape, POISON, np.float32)


# Each takes a shape and returns a view of that shape into poisoned memory: what is read or written beside the matrix
# shows, as a NaN in the result or as a guard element that has changed.

def row_major(*shape):
    return poisoned(np.prod(shape, dtype=int) + 10)[5:-5].reshape(shape)


def column_major(*shape):
    return np.swapaxes(row_major(*shape[:-2], shape[-1], shape[-2]), -1, -2)


def padded(*shape):
    return poisoned(*shape[:-2], shape[-2] + 3, shape[-1] + 5)[..., 1:-2, 3:-2]


def padded_columns(*shape):
    return np.swapaxes(padded(*shape[:-2], shape[-1], shape[-2]), -1, -2)


def stepped(*shape):
    return poisoned(*shape[:-2], 2 * shape[-2] + 1, 3 * shape[-1] + 2)[..., 1::2, 1:-1:3]


def backward_rows(*shape):
    return padded(*shape)[..., ::-1, :]


def backward_columns(*shape):
    return padded(*shape)[..., :, ::-1]


def backward(*shape):
    return stepped(*shape)[..., ::-1, ::-1]


LAYOUTS = {layout.__name__: layout for layout in
           (row_major, column_major, padded, padded_columns, stepped, backward_rows, backward_columns, backward)}


def filled(layout, x):
    view = layout(*x.shape)
    view[...] = x
    return view


def assert_guards(view):
    """Every element of the memory behind a poisoned view that is not the view's own is still poison."""
    owner = owner_of(view)
    expected = np.full(owner.shape, POISON, np.float32)
    inside = np.ndarray(view.shape, np.float32, expected, view.ctypes.data - owner.ctypes.data, view.strides)
    inside[...] = view
    assert np.array_equal(bits(owner), bits(expected)), "memory beside C was written"


def multiply_exactly(engine, a, b, c, alpha=1.0, beta=0.0, context=None):
    """c = alpha*a*b + beta*c: every element is right, and nothing beside them is written."""
    before = c.copy()
    engine.multiply(a, b, c, alpha, beta, context=context)
    assert_exact(c, a, b, alpha, beta, before)
    assert_guards(c)
