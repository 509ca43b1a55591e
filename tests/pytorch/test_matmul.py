"""tessera.matmul and its kin beside torch's, on integers: equal, whatever the shapes and strides."""

import copy
import pickle
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tessera
from tensors import Calls, assert_within_bound, examples, integers, matmul_shapes, since, strided


@st.composite
def layouts(draw, shape):
    """A tensor of this shape in a layout of hypothesis's choice, as a function of the device."""
    dims = len(shape)
    order = draw(st.permutations(range(dims)))
    steps = [draw(st.integers(1, 3)) for _ in range(dims)]
    expanded = [d for d in range(dims) if draw(st.integers(0, 7)) == 0]
    return lambda device: strided(shape, order, steps, expanded, device)


@examples(200)
@given(arguments=matmul_shapes().flatmap(lambda shapes: st.tuples(*map(layouts, shapes))))
def test_any_shapes_and_strides(device, arguments):
    a, b = (make(device) for make in arguments)
    expected = torch.matmul(a, b)
    product = tessera.matmul(a, b)
    assert product.shape == expected.shape and product.is_contiguous()
    assert torch.equal(product, expected)
    out = torch.full_like(expected, float("nan"))
    assert tessera.matmul(a, b, out=out) is out and torch.equal(out, expected)


@examples(200)
@given(data=st.data(), beta=st.sampled_from([0, 1, -2]), alpha=st.sampled_from([0, 1, 3]))
def test_any_addend(device, data, beta, alpha):
    batch, m, n, k = (data.draw(st.integers(1, 9)) for _ in range(4))
    a, b = (data.draw(layouts(shape))(device) for shape in ([batch, m, k], [batch, k, n]))
    keep = [data.draw(st.booleans()) for _ in range(3)]
    shape = [size if kept else 1 for size, kept in zip((batch, m, n), keep)][data.draw(st.integers(0, 2)):]
    addend = data.draw(layouts(shape))(device)
    assert torch.equal(tessera.baddbmm(addend, a, b, beta=beta, alpha=alpha), beta * addend + alpha * (a @ b))
    if len(shape) < 3:
        assert torch.equal(tessera.addmm(addend, a[0], b[0], beta=beta, alpha=alpha),
                           beta * addend + alpha * (a[0] @ b[0]))
    if len(shape) == 1:
        assert torch.equal(tessera.linear(a, b[0].t(), addend), a @ b[0] + addend)


@pytest.mark.parametrize("precision", ["fp32", "ieee", "tf32"])
def test_precisions(device, precision):
    a, b = integers(150, 200, device=device), integers(200, 130, device=device)
    assert torch.equal(tessera.matmul(a, b, precision=precision), a @ b)
    if precision != "tf32":
        a, b = torch.randn(150, 2000, device=device), torch.randn(2000, 130, device=device)
        assert_within_bound(tessera.matmul(a, b, precision=precision), a, b)


def test_large_operands_of_every_orientation(device):
    """Large enough for the split kernels on a GPU."""
    for make_a in (lambda: integers(700, 900, device=device), lambda: integers(900, 700, device=device).t()):
        for make_b in (lambda: integers(900, 800, device=device), lambda: integers(800, 900, device=device).t()):
            a, b = make_a(), make_b()
            assert torch.equal(tessera.matmul(a, b), a @ b)
            bias = integers(800, device=device)
            assert torch.equal(tessera.linear(a, b.t(), bias), a @ b + bias)


def test_linear_shapes(device):
    weight, bias = integers(6, 5, device=device), integers(6, device=device)
    for shape in ((5,), (3, 5), (2, 3, 5), (4, 2, 3, 5), (0, 5), (2, 0, 5)):
        x = integers(*shape, device=device)
        assert torch.equal(tessera.linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))
        assert torch.equal(tessera.linear(x, weight), torch.nn.functional.linear(x, weight))


def test_bmm_and_out(device):
    a, b, addend = integers(3, 4, 5, device=device), integers(3, 5, 6, device=device), integers(3, 4, 6, device=device)
    assert torch.equal(tessera.bmm(a, b), torch.bmm(a, b))
    out = torch.empty(3, 6, 4, device=device).transpose(1, 2)  # any strides
    assert torch.equal(tessera.bmm(a, b, out=out), torch.bmm(a, b))
    assert torch.equal(tessera.baddbmm(addend, a, b, alpha=2, out=out), torch.baddbmm(addend, a, b, alpha=2))
    expected = torch.addmm(addend[0], a[0], b[0], beta=2)
    assert torch.equal(tessera.addmm(addend[0], a[0], b[0], beta=2, out=out[0]), expected)
    for view in (lambda tensor: tensor, lambda tensor: tensor[:]):
        accumulator = addend[0].clone()
        assert torch.equal(tessera.addmm(view(accumulator), a[0], b[0], beta=2, out=accumulator), expected)


@since(2, 0)
def test_nothing_is_copied(device):
    """A view of a tensor, transposed, sliced and expanded over a batch, arrives at the kernel as it is."""
    base = integers(64, 64, device=device)
    a, b = base[::2, 1:33].t().expand(1000, 32, 32), base[:32, :32]
    with Calls() as calls:
        product = tessera.matmul(a, b)
    assert torch.equal(product, a @ b)
    (_, left, right), = calls.arguments
    assert left.data_ptr() == a.data_ptr() and left.stride() == a.stride()
    assert right.data_ptr() == b.data_ptr() and right.stride()[-2:] == b.stride()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        product = tessera.matmul(a, b)
        assert torch.cuda.max_memory_allocated() - before < product.numel() * 4 * 1.5


def test_packed(device):
    weight, x, bias = integers(300, 200, device=device), integers(400, 200, device=device), integers(300, device=device)
    packed = tessera.pack(weight)
    assert packed.shape == weight.shape and "300" in repr(packed)
    for _ in range(2):
        assert torch.equal(tessera.linear(x, packed), x @ weight.t())
        assert torch.equal(tessera.linear(x, packed, bias), x @ weight.t() + bias)
        assert torch.equal(tessera.linear(x.view(2, 2, 100, 200), packed), (x @ weight.t()).view(2, 2, 100, 300))
        assert torch.equal(tessera.linear(x[0], packed, bias), x[0] @ weight.t() + bias)
        assert torch.equal(tessera.matmul(x.t()[:, :300], packed), x.t()[:, :300] @ weight)
        assert torch.equal(tessera.matmul(packed, x.t()), weight @ x.t())
        assert torch.equal(tessera.matmul(packed, x[0]), weight @ x[0])
        weight.mul_(2)  # noticed: the next round sees the new values


def test_packed_follows_its_tensor(device):
    """Other memory for the same tensor, even at an old address, is noticed like a write."""
    layer, x = torch.nn.Linear(64, 48, bias=False).to(device), integers(8, 64, device=device)
    layer.weight.data = integers(48, 64, device=device)
    packed = tessera.pack(layer.weight)
    for _ in range(6):
        assert torch.equal(tessera.linear(x, packed), x @ layer.weight.t())
        layer.weight.data = layer.weight.data.double() + 1
        layer.float()
    layer.weight.data = integers(30, 64, device=device)
    assert torch.equal(tessera.linear(x, packed), x @ layer.weight.t())


def test_packed_inference_tensors(device):
    """They do not tell when they are written to: nothing of them is kept."""
    with torch.inference_mode():
        weight, x = integers(48, 64, device=device), integers(8, 64, device=device)
        packed = tessera.pack(weight)
        for _ in range(3):
            assert torch.equal(tessera.linear(x, packed), x @ weight.t())
            weight.add_(1)


def test_packed_under_threads(device):
    """Panels that one thread replaces stay as long as another one's product uses them."""
    weight, x, done, wrong = integers(256, 256, device=device), integers(256, 256, device=device), threading.Event(), []
    packed, expected = tessera.pack(weight), None
    expected = x @ weight.t()

    def multiply():
        while not done.is_set():
            if not torch.equal(tessera.linear(x, packed), expected):
                wrong.append(1)

    threads = [threading.Thread(target=multiply) for _ in range(3)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        weight.add_(0)
        tessera.linear(x, packed)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_packed_copies(device):
    weight, x = integers(6, 5, device=device), integers(3, 5, device=device)
    packed = tessera.pack(weight)
    for other in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert torch.equal(tessera.linear(x, other), x @ weight.t()) and other.matrix.data_ptr() != weight.data_ptr()


def test_packed_bits_are_those_of_the_plain_product(device):
    weight, x = torch.randn(512, 768, device=device), torch.randn(300, 768, device=device)
    assert torch.equal(tessera.linear(x, tessera.pack(weight)), tessera.linear(x, weight))


def test_gradient_through_packed(device):
    weight, x = integers(6, 5, device=device), integers(3, 5, device=device, requires_grad=True)
    tessera.linear(x, tessera.pack(weight)).sum().backward()
    assert torch.equal(x.grad, torch.ones(3, 6, device=device) @ weight)


def test_same_bits_every_time(device):
    a, b = torch.randn(300, 1000, device=device), torch.randn(1000, 200, device=device)
    first = tessera.matmul(a, b)
    assert all(torch.equal(tessera.matmul(a, b), first) for _ in range(5))


def test_nan_and_infinity(device):
    a, b = torch.ones(200, 300, device=device), torch.ones(300, 200, device=device)
    a[3, 4], b[5, 6], a[7, 8] = float("nan"), float("inf"), float("-inf")
    assert torch.equal(tessera.matmul(a, b).nan_to_num(1e9), torch.matmul(a, b).nan_to_num(1e9))
