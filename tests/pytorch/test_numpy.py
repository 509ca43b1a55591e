"""NumPy arrays: numpy.matmul's results on integers, whatever the strides; and its kin."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tessera
from tensors import examples, matmul_shapes

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


@examples(150)
@given(arguments=matmul_shapes().flatmap(lambda shapes: st.tuples(*map(arrays, shapes))))
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
    with pytest.raises(TypeError, match="a is a masked array.*filled"):
        tessera.matmul(np.ma.masked_array(a, a > 2), b)
    with pytest.raises(TypeError, match="b has masked arrays.*filled"):
        tessera.matmul(a, [[1.0, 2.0, 3.0], (2, 3, np.ma.masked)])
    with pytest.raises(TypeError, match="out is a masked array"):
        tessera.matmul(a, b, out=np.ma.zeros((4, 6), np.float32))
    with pytest.raises(TypeError, match="b is a packed matrix, too: only one operand"):
        tessera.matmul(tessera.pack(a), tessera.pack(b))
    with pytest.raises(TypeError, match="pack has dtype float64: convert it with .astype.numpy.float32., or use NumPy"):
        tessera.pack(a.astype(np.float64))
    with pytest.raises(TypeError, match="subscripts must be a string"):
        tessera.einsum(a, [0, 1], b, [1, 2])
    with pytest.raises(TypeError, match="b has dtype complex64: use numpy.matmul$"):  # not to drop half of it
        tessera.matmul(a, b.astype(np.complex64))
    for tensor in (torch.ones(5, 6), tessera.pack(torch.ones(5, 6))):
        with pytest.raises(TypeError, match=r"a is NumPy's, but b is torch's: .*from_numpy\(a\) or b.numpy\(\)"):
            tessera.matmul(a, tensor)
    with pytest.raises(TypeError, match="weight is NumPy's, but input is torch's"):
        tessera.linear(torch.ones(4, 5), b.T)
    with pytest.raises(TypeError, match="casting is for NumPy"):
        tessera.matmul(torch.ones(2, 2), torch.ones(2, 2), casting="unsafe")
    with pytest.raises(TypeError, match="tessera.einsum is for NumPy arrays: for tensors use torch.einsum"):
        tessera.einsum("ij,jk", torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"have sizes \[5\] in a, but \[6\] in b"):
        tessera.tensordot(a, b, ([1], [1]))
    for axes in (([0, 0], [0, 0]), ([2], [0])):
        with pytest.raises(ValueError, match="different axes of a"):
            tessera.tensordot(a, b, axes)
    with pytest.raises(ValueError, match="for 3 operands, but there are 2"):
        tessera.einsum("ij,jk,kl", a, b)
    with pytest.raises(ValueError, match="4 != 5"):  # what NumPy says
        tessera.einsum("ii,ij", a, b)
    with pytest.raises(ValueError, match="do not fit an operand of 2 dimensions"):
        tessera.einsum("ijk,kl", a, b)


def unaligned(array):
    """The same values in records of five bytes."""
    records = np.zeros(array.shape, dtype=np.dtype([("flag", "u1"), ("value", "<f4")]))
    records["value"] = array
    return records["value"]


def test_arrays_that_are_not_aligned():
    a, b, input = integers(14, 15), integers(15, 16), integers(14, 16)
    assert np.array_equal(tessera.matmul(unaligned(a), unaligned(b)), a @ b)
    assert np.array_equal(tessera.matmul(a, tessera.pack(unaligned(b))), a @ b)
    out = unaligned(input)
    assert tessera.addmm(out, unaligned(a), b, out=out) is out and np.array_equal(out, a @ b + input)


class WithArray:
    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def test_what_is_no_array():
    """Lists and whatever NumPy takes for an array, subclasses and other byte orders."""
    a, b = integers(4, 5), integers(5, 6)
    expected = a @ b
    for left in (a.tolist(), tuple(map(tuple, a.astype(int).tolist())), WithArray(a), np.asmatrix(a), a.astype(">f4")):
        for right in (b, b.tolist()):
            product = tessera.matmul(left, right)
            assert type(product) is np.ndarray and product.dtype == np.float32 and np.array_equal(product, expected)
    assert np.array_equal(tessera.linear(a.tolist(), b.T, [1] * 6), expected + 1)
    with pytest.raises(TypeError, match="a has dtype object"):
        tessera.matmul(object(), b)


def test_a_vector_times_a_vector_is_a_scalar():
    a, b = integers(9), integers(9)
    assert type(tessera.matmul(a, b)) is type(a @ b) is np.float32 and tessera.matmul(a, b) == a @ b
    out = np.zeros((), np.float32)
    assert tessera.matmul(a, b, out=out) is out and out == a @ b


def test_casting():
    a, b = integers(4, 5), integers(5, 6)
    for kind, least in ("float16", "safe"), ("int8", "safe"), ("float64", "same_kind"), ("int64", "same_kind"):
        with pytest.raises(TypeError, match=f"b has dtype {kind}: convert it .* casting=\"same_kind\""):
            tessera.matmul(a, b.astype(kind))
        assert np.array_equal(tessera.matmul(a, b.astype(kind), casting=least), a @ b)
        assert np.array_equal(tessera.linear(a.astype(kind), b.T, b[0].astype(kind), casting=least), a @ b + b[0])
    with pytest.raises(TypeError, match="b has dtype complex64"):
        tessera.matmul(a, b.astype(np.complex64), casting="same_kind")


@pytest.mark.parametrize("subscripts, shapes", [
    ("ij,jk->ik", "34 45"), ("ij,jk", "34 45"), ("ba,cb", "34 53"), ("bij,bjk->bik", "234 245"),
    ("ij,jk,kl->il", "34 45 56"), ("...ij,...jk->...ik", "234 45"), ("...ij,...jk", "2134 745"), ("ii->i", "44"),
    ("i...,ij->j...", "345 32"),
    ("ii,ij->j", "44 43"), ("ij,ij->i", "34 34"), ("ij,ij->ij", "34 34"), ("i,j->ij", "3 4"), ("ij,kl->", "34 45"),
    ("ij->", "34"), ("i,i", "5 5"), ("bhqd,bhkd->bhqk", "2345 2365"), ("ij,jk->ik", "31 45"), ("i,i,i->", "3 3 3"),
    ("abc,bad,cde->ea", "234 325 456"), ("ij,jk->ik", "30 05"), ("iij,jk -> ki", "334 45")])
def test_einsum(subscripts, shapes):
    operands = [integers(*map(int, shape)) for shape in shapes.split()]
    expected, found = np.einsum(subscripts, *operands), tessera.einsum(subscripts, *operands)
    assert found.dtype == np.float32 and found.shape == expected.shape and np.array_equal(found, expected)


def test_dot_and_tensordot():
    for a, b in ("3", "3"), ("34", "4"), ("234", "546"), ("4", "546"), ("", "3"):
        a, b = (integers(*map(int, shape)) for shape in (a, b))
        assert np.array_equal(tessera.dot(a, b), np.dot(a, b)) and type(tessera.dot(a, b)) is type(np.dot(a, b))
    for a, b, axes in ("345", "456", 2), ("34", "56", 0), ("345", "53", ([0, 2], [1, 0])), ("345", "74", (1, -1)):
        a, b = (integers(*map(int, shape)) for shape in (a, b))
        assert np.array_equal(tessera.tensordot(a, b, axes), np.tensordot(a, b, axes))


def test_threads():
    """By function, and by the environment as the BLAS reads it."""
    before, (a, b) = tessera.get_num_threads(), (integers(300, 200), integers(200, 300))
    packed = tessera.pack(b)
    for threads in (1, 3, before):
        tessera.set_num_threads(threads)
        assert tessera.get_num_threads() == threads and np.array_equal(tessera.matmul(a, packed), a @ b)
    for threads in (0, 1025):
        with pytest.raises(ValueError, match="from 1 to 1024"):
            tessera.set_num_threads(threads)
    with pytest.raises(TypeError):
        tessera.set_num_threads(2.5)
    program = ("import numpy as np, tessera, os; a = np.ones((800, 800), 'f4'); tessera.matmul(a, a)\n"
               "print(tessera.get_num_threads(), len(os.listdir('/proc/self/task')))")
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    for variables, threads, warned in (({"OMP_NUM_THREADS": "3,2"}, 3, False),
                                       ({"OMP_NUM_THREADS": "2", "TESSERA_NUM_THREADS": "5"}, 5, False),
                                       ({"OMP_NUM_THREADS": "1", "TESSERA_NUM_THREADS": "x"}, 1, True)):
        ran = subprocess.run([sys.executable, "-c", program], env={**kept, **variables, "OPENBLAS_NUM_THREADS": "1"},
                             capture_output=True, text=True)
        assert ran.stdout.split()[0] == str(threads), ran.stderr
        assert int(ran.stdout.split()[1]) <= threads
        assert ("TESSERA_NUM_THREADS is 'x', which is not a number of threads" in ran.stderr) == warned, ran.stderr
