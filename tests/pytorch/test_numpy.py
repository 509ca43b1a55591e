"""NumPy arrays: numpy.matmul's results on integers, whatever the strides; and its kin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera
from tensors import examples

RANDOM = np.random.default_rng(20260)


def integers(*shape):
    return RANDOM.integers(-8, 9, shape).astype(np.float32)


@st.composite
def arrays(draw, shape):
    """An array of this shape in any layout: permuted, sliced, reversed, broadcast."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 2, -1, -2])) for _ in shape]
    spread = [draw(st.integers(0, 7)) == 0 for _ in shape]
    stored = [1 if spread[d] else shape[d] * abs(steps[d]) for d in order]
    view = integers(*stored).transpose([order.index(d) for d in range(len(shape))])
    view = view[tuple(slice(None) if spread[d] else slice(None, None, steps[d]) for d in range(len(shape)))]
    return np.broadcast_to(view, shape)


@st.composite
def matmul_arguments(draw):
    size = st.integers(0, 9) if draw(st.booleans()) else st.integers(1, 40)
    m, n, k = draw(size), draw(size), draw(size)
    batch = [draw(st.integers(0, 4)) for _ in range(draw(st.integers(0, 3)))]
    shapes = []
    for matrix in ([m, k], [k, n]):
        leading = [1 if draw(st.booleans()) else size for size in batch]
        shapes.append(leading[draw(st.integers(0, len(batch))):] + matrix)
    for side in range(2):
        if draw(st.integers(0, 5)) == 0:
            shapes[side] = [k]
    return [draw(arrays(shape)) for shape in shapes]


@examples(150)
@given(arguments=matmul_arguments())
def test_any_shapes_and_strides(arguments):
    a, b = arguments
    expected = np.matmul(a, b)
    product = tessera.matmul(a, b)
    assert product.dtype == np.float32 and product.shape == expected.shape and np.array_equal(product, expected)
    out = np.full(expected.shape, np.nan, np.float32)
    assert tessera.matmul(a, b, out=out) is out and np.array_equal(out, expected)


@examples(150)
@given(data=st.data(), beta=st.sampled_from([0, 1, -2]), alpha=st.sampled_from([0, 1, 3]))
def test_any_addend(data, beta, alpha):
    batch, m, n, k = (data.draw(st.integers(1, 9)) for _ in range(4))
    a, b = (data.draw(arrays(shape)) for shape in ([batch, m, k], [batch, k, n]))
    addend = data.draw(arrays([size if data.draw(st.booleans()) else 1 for size in (batch, m, n)]))
    assert np.array_equal(tessera.baddbmm(addend, a, b, beta=beta, alpha=alpha), beta * addend + alpha * (a @ b))
    assert np.array_equal(tessera.addmm(addend[0], a[0], b[0], beta=beta, alpha=alpha),
                          beta * addend[0] + alpha * (a[0] @ b[0]))
    assert np.array_equal(tessera.linear(a, b[0].T, addend[0, 0]), a @ b[0] + addend[0, 0])
    assert np.array_equal(tessera.bmm(a, b), a @ b)


@pytest.mark.parametrize("precision", ["fp32", "ieee", "tf32"])
def test_precisions(precision):
    a, b = integers(150, 200), integers(200, 130)
    assert np.array_equal(tessera.matmul(a, b, precision=precision), a @ b)


def test_packed():
    weight, x, bias = integers(300, 200), integers(400, 200), integers(300)
    packed = tessera.pack(weight)
    for _ in range(2):
        assert np.array_equal(tessera.linear(x, packed), x @ weight.T)
        assert np.array_equal(tessera.linear(x, packed, bias), x @ weight.T + bias)
        assert np.array_equal(tessera.linear(x[0], packed, bias[:1]), x[0] @ weight.T + bias[0])
        assert np.array_equal(tessera.linear(x[0], packed), x[0] @ weight.T)
        assert np.array_equal(tessera.matmul(x.T[:, :300], packed), x.T[:, :300] @ weight)
        assert np.array_equal(tessera.matmul(packed, x.T), weight @ x.T)
    batch = integers(2, 3, 4, 200).swapaxes(0, 1)  # which takes several calls
    assert np.array_equal(tessera.linear(batch, packed, bias), batch @ weight.T + bias)
    assert np.array_equal(tessera.matmul(packed, batch.swapaxes(2, 3)), weight @ batch.swapaxes(2, 3))
    assert packed.shape == (300, 200) and "300" in repr(packed)


def test_out_beside_an_argument():
    """Two slices of one array that share no element."""
    memory, b = integers(4, 12), integers(5, 5)
    a, out = memory[:, :5], memory[:, 6:11]
    expected = a @ b
    assert np.array_equal(tessera.matmul(a, b, out=out), expected)


def test_errors():
    a, b = np.ones((4, 5), np.float32), np.ones((5, 6), np.float32)
    with pytest.raises(TypeError, match="float32 arrays, but b has dtype float64"):
        tessera.matmul(a, b.astype(float))
    with pytest.raises(TypeError, match="out has dtype int32"):
        tessera.matmul(a, b, out=np.ones((4, 6), np.int32))
    with pytest.raises(ValueError, match=r"a and b shapes cannot be multiplied \(4x5 and 4x5\)"):
        tessera.matmul(a, a)
    with pytest.raises(ValueError, match="at least 1D, but they are 0D and 2D"):
        tessera.matmul(np.ones((), np.float32), b)
    with pytest.raises(ValueError, match=r"out has shape \(6, 4\), but the product has \(4, 6\)"):
        tessera.matmul(a, b, out=np.ones((6, 4), np.float32))
    with pytest.raises(ValueError, match="out overlaps an argument"):
        tessera.matmul(a[:, :4], a[:, :4].T[:4], out=a[:, :4])
    for first, second in ((a[:, :4], b[:4, :4]), (b[:4, :4], a[:, :4])):  # which the library would say in its words
        with pytest.raises(ValueError, match="out overlaps an argument"):
            tessera.matmul(first, second, out=a[:, :4])
    square = np.ones((4, 4), np.float32)
    with pytest.raises(ValueError, match="tessera: .*overlap"):  # what the library says
        tessera.matmul(square, b[:4, :4], out=square)
    with pytest.raises(ValueError, match="read-only"):
        tessera.matmul(a, b, out=np.broadcast_to(np.float32(0), (4, 6)))
    with pytest.raises(ValueError, match="precision must be"):
        tessera.matmul(a, b, precision="half")
    with pytest.raises(ValueError, match="precision must be"):
        tessera.matmul(a[:0], b, precision="half")
    with pytest.raises(ValueError, match=r"input of shape \(3,\) cannot be expanded"):
        tessera.addmm(np.ones(3, np.float32), a, b)
    with pytest.raises(ValueError, match=r"bias of shape \(4, 6\) cannot be added"):
        tessera.linear(a, b.T, np.ones((4, 6), np.float32))
    with pytest.raises(ValueError, match="must have 3 dimensions"):
        tessera.bmm(a, b)
    with pytest.raises(ValueError, match="multiples of 4 bytes"):
        records = np.zeros((4, 5), dtype=np.dtype([("flag", "u1"), ("value", "<f4")]))
        tessera.matmul(records["value"], b)
