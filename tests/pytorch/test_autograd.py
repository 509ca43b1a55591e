"""Gradients: first and second order, forward mode, only those asked for, and by our own kernels."""

import pytest
import torch

import tessera
from tensors import Calls, assert_within_bound, integers, since

# A product is linear in each argument: differences of integers are exact.
EXACT = {"eps": 1.0, "atol": 0.0, "rtol": 0.0}

FUNCTIONS = {
    "matmul": (lambda a, b: tessera.matmul(a, b), (3, 4), (4, 2)),
    "matmul, batches": (lambda a, b: tessera.matmul(a, b), (2, 3, 4), (2, 4, 2)),
    "matmul, shared right": (lambda a, b: tessera.matmul(a, b), (2, 2, 3, 4), (4, 2)),
    "matmul, shared left": (lambda a, b: tessera.matmul(a, b), (3, 4), (2, 2, 4, 2)),
    "matmul, broadcast": (lambda a, b: tessera.matmul(a, b), (2, 1, 3, 4), (2, 4, 2)),
    "matmul, vectors": (lambda a, b: tessera.matmul(a, b), (4,), (4,)),
    "matmul, vector and matrix": (lambda a, b: tessera.matmul(a, b), (4,), (2, 4, 3)),
    "matmul, matrix and vector": (lambda a, b: tessera.matmul(a, b), (2, 3, 4), (4,)),
    "transposed": (lambda a, b: tessera.matmul(a.t(), b.t()), (4, 3), (2, 4)),
    "expanded": (lambda a, b: tessera.matmul(a.expand(2, 3, 4), b), (1, 3, 4), (2, 4, 2)),
    "bmm": (lambda a, b: tessera.bmm(a, b), (2, 3, 4), (2, 4, 2)),
    "addmm": (lambda s, a, b: tessera.addmm(s, a, b, beta=2, alpha=3), (3, 1), (3, 4), (4, 2)),
    "baddbmm": (lambda s, a, b: tessera.baddbmm(s, a, b, beta=2, alpha=3), (1, 2), (2, 3, 4), (2, 4, 2)),
    "linear": (lambda x, w, c: tessera.linear(x, w, c), (2, 3, 4), (5, 4), (5,)),
    "linear, vector": (lambda x, w, c: tessera.linear(x, w, c), (4,), (5, 4), (5,)),
}


@pytest.fixture(params=FUNCTIONS, ids=str)
def case(request, device):
    function, *shapes = FUNCTIONS[request.param]
    return function, tuple(integers(*shape, device=device, requires_grad=True) for shape in shapes)


def test_gradcheck(case):
    function, inputs = case
    assert torch.autograd.gradcheck(function, inputs, **EXACT)


def test_forward_mode(case):
    function, inputs = case
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, check_backward_ad=False, **EXACT)


def test_gradgradcheck(case):
    function, inputs = case
    gradients = [integers(*function(*inputs).shape, device=inputs[0].device, requires_grad=True)]
    assert torch.autograd.gradgradcheck(function, inputs, gradients, **EXACT)


@pytest.mark.parametrize("precision", ["fp32", "ieee"])
def test_gradients_against_float64(device, precision):
    a = torch.randn(300, 700, device=device, requires_grad=True)
    b = torch.randn(700, 200, device=device, requires_grad=True)
    g = torch.randn(300, 200, device=device)
    tessera.matmul(a, b, precision=precision).backward(g)
    assert_within_bound(a.grad, g, b.t())
    assert_within_bound(b.grad, a.t(), g)


def test_only_what_is_asked_for(device):
    """A gradient that is not asked for is not computed: its inputs need not even be kept."""
    a, b = integers(3, 4, device=device, requires_grad=True), integers(4, 2, device=device)
    product = tessera.matmul(a, b)
    a.detach().mul_(0)  # not needed for a's own gradient, so torch has no reason to refuse
    product.sum().backward()
    assert torch.equal(a.grad, b.sum(1).expand(3, 4)) and b.grad is None
    assert not tessera.matmul(a.detach(), b).requires_grad
    with torch.no_grad():
        assert not tessera.matmul(a, b).requires_grad


def test_changing_a_saved_tensor_is_noticed(device):
    a, b = integers(3, 4, device=device, requires_grad=True), integers(4, 2, device=device, requires_grad=True)
    product = tessera.matmul(a, b)
    b.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_graph_is_freed_and_kept(device):
    a, b = integers(3, 4, device=device, requires_grad=True), integers(4, 2, device=device, requires_grad=True)
    product = tessera.matmul(a, b).sum()
    product.backward(retain_graph=True)
    product.backward()
    assert torch.equal(a.grad, 2 * b.detach().sum(1).expand(3, 4))
    with pytest.raises(RuntimeError, match="second time"):
        product.backward()


@since(2, 0)
@pytest.mark.parametrize("mirrored", [False, True], ids=["right", "left"])
def test_gradient_of_a_shared_weight_is_one_product(device, mirrored):
    """With a batch of inputs dW is not a batch of products that is then summed: on large batches that would not fit."""
    x = integers(512, 4, 64, device=device).transpose(0, 1)  # leading dimensions that do not continue each other
    w = integers(64, 64, device=device, requires_grad=True)
    g = integers(4, 512, 64, device=device)
    product = tessera.matmul(w, x.transpose(1, 2)).transpose(1, 2) if mirrored else tessera.matmul(x, w)
    with Calls() as calls:
        product.backward(g)
    assert torch.equal(
        w.grad,
        torch.einsum("bso,bsi->oi" if mirrored else "bsi,bso->io", x if not mirrored else g, g if not mirrored else x))
    (_, left, right), = calls.arguments
    assert left.dim() == right.dim() == 2


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (0, 4)], ids=str)
def test_empty(device, shape):
    a, b = integers(*shape, device=device, requires_grad=True), integers(4, 2, device=device, requires_grad=True)
    tessera.matmul(a, b).sum().backward()
    assert a.grad.shape == a.shape and torch.equal(b.grad, torch.zeros_like(b))


@since(2, 0)
def test_torch_func(device):
    a, b = integers(3, 4, device=device), integers(4, 2, device=device)
    ours = torch.func.grad(lambda x: tessera.matmul(x, b).pow(2).sum())(a)
    assert torch.equal(ours, torch.func.grad(lambda x: (x @ b).pow(2).sum())(a))
    ours = torch.func.jacrev(lambda x: tessera.matmul(x, b))(a) if hasattr(torch.library, "register_vmap") else None
    assert ours is None or torch.equal(ours, torch.func.jacrev(lambda x: x @ b)(a))
    ours = torch.func.jvp(lambda x: tessera.matmul(x, b), (a,), (torch.ones_like(a),))[1]
    assert torch.equal(ours, torch.ones_like(a) @ b)
