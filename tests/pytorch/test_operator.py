"""torch.ops.tessera as torch wants an operator to be: opcheck, meta tensors, torch.compile, vmap, autocast."""

import os
import subprocess
import sys

import pytest
import torch

import tessera
from tensors import RELEASE, Calls, integers, since

CALLS = {
    "gemm": lambda d:
    (torch.ops.tessera.gemm.default,
     (integers(6, device=d), integers(4, 5, device=d), integers(5, 6, device=d)), {"beta": 2, "alpha": 3.0}),
    "gemm, no input": lambda d: (torch.ops.tessera.gemm.default,
                                 (None, integers(2, 4, 5, device=d), integers(2, 5, 6, device=d)), {}),
    "gemm, out": lambda d:
    (torch.ops.tessera.gemm.out,
     (None, integers(4, 5, device=d), integers(5, 6, device=d)), {"out": torch.empty(4, 6, device=d)}),
    "gemm, gradients": lambda d:
    (torch.ops.tessera.gemm.default,
     (integers(6, device=d, requires_grad=True), integers(4, 5, device=d, requires_grad=True), integers(6, 5, device=d).
      t().requires_grad_()), {"precision": "ieee"}), "matmul": lambda d:
    (torch.ops.tessera.matmul.default,
     (integers(2, 1, 4, 5, device=d, requires_grad=True), integers(3, 5, 6, device=d)), {}), "matmul, folded": lambda d:
    (torch.ops.tessera.matmul.default, (integers(2, 4, 5, device=d), integers(5, 6, device=d, requires_grad=True)), {}),
    "bmm": lambda d: (torch.ops.tessera.bmm.default,
                      (integers(2, 4, 5, device=d), integers(2, 5, 6, device=d)), {}), "addmm": lambda d:
    (torch.ops.tessera.addmm.default,
     (integers(4, 6, device=d), integers(4, 5, device=d), integers(5, 6, device=d)), {"beta": 3}), "baddbmm": lambda d:
    (torch.ops.tessera.baddbmm.default,
     (integers(2, 4, 6, device=d), integers(2, 4, 5, device=d), integers(2, 5, 6, device=d)), {}), "linear": lambda d:
    (torch.ops.tessera.linear.default,
     (integers(2, 4, 5, device=d), integers(6, 5, device=d, requires_grad=True), integers(6, device=d)), {}),
}


@since(2, 4)
@pytest.mark.parametrize("name", CALLS)
def test_opcheck(device, name):
    operator, arguments, keywords = CALLS[name](device)
    results = torch.library.opcheck(operator, arguments, keywords)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("shapes", [((4, 5), (5, 6)), ((2, 4, 5), (5, 6)), ((5, ), (5, )), ((3, 1, 4, 5), (2, 5, 6)),
                                    ((0, 5), (5, 6))])
def test_meta(shapes):
    a, b = (torch.empty(shape, device="meta") for shape in shapes)
    product = tessera.matmul(a, b)
    assert product.device.type == "meta" and product.shape == torch.matmul(a, b).shape
    assert tessera.linear(a, torch.empty(7, 5, device="meta")).shape == (*a.shape[:-1], 7)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        tessera.matmul(torch.empty(4, 5, device="meta"), torch.empty(4, 5, device="meta"))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("beta", [0, 1])
def test_input_must_fit(device, beta):
    """Shapes alone refuse what tensors refuse."""
    a, b = torch.empty(4, 5, device=device), torch.empty(5, 6, device=device)
    for sizes in ((6,), (1, 6), (4, 1), (4, 6), ()):
        assert tessera.addmm(torch.empty(sizes, device=device), a, b, beta=beta).shape == (4, 6)
    for sizes in ((4,), (5, 6), (2, 4, 6), (1, 1, 1)):
        with pytest.raises(RuntimeError, match="cannot be expanded"):
            tessera.addmm(torch.empty(sizes, device=device), a, b, beta=beta)


def test_meta_out():
    a, b = torch.empty(4, 5, device="meta"), torch.empty(5, 6, device="meta")
    tessera.matmul(a, b, out=torch.empty(4, 6, device="meta"))
    with pytest.raises(RuntimeError, match="same device"):
        tessera.addmm(b[:1], a, b, out=torch.empty(4, 6))


needs_compile = pytest.mark.skipif(RELEASE < (2, 4), reason="torch 2.4 is the first whose compiler is tested")


def mlp(x, w1, c1, w2):
    return tessera.matmul(torch.relu(tessera.linear(x, w1, c1)), w2) + 1


@needs_compile
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile(device, dynamic):
    """One graph, the same bits as without it, forward and backward; with dynamic shapes one graph for all sizes."""
    torch._dynamo.reset()
    compiled = torch.compile(mlp, fullgraph=True, dynamic=dynamic)
    torch._dynamo.utils.counters.clear()
    for rows in (9, 11, 23):
        x, factors = integers(2, rows, 16, device=device), integers(2, rows, 8, device=device)
        parameters = [integers(*shape, device=device) for shape in ((32, 16), (32,), (32, 8))]
        results = []
        for function in (mlp, compiled):
            inputs = [tensor.clone().requires_grad_() for tensor in (x, *parameters)]
            result = function(*inputs)
            (result * factors).sum().backward()
            results.append([result.detach()] + [tensor.grad for tensor in inputs])
        for eager, graph in zip(*results):
            assert torch.equal(eager, graph)
    if dynamic:
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@since(2, 11)
def test_compiled_autograd(device):
    """The backward pass as a graph of its own, with the same bits."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for rows in (9, 11):
        parameters = [integers(*shape, device=device) for shape in ((2, rows, 16), (32, 16), (32,), (32, 8))]
        gradients = []
        for compiled in (False, True):
            inputs = [tensor.clone().requires_grad_(i != 1) for i, tensor in enumerate(parameters)]
            with torch._dynamo.config.patch(compiled_autograd=compiled):
                torch.compile(lambda *tensors: mlp(*tensors).square().sum().backward(), backend="eager")(*inputs)
            gradients.append([tensor.grad for tensor in inputs])
        for eager, graph in zip(*gradients):
            assert eager is graph is None or torch.equal(eager, graph)
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] > 0


@needs_compile
def test_compile_keeps_layouts(device):
    """Transposed and sliced views go through a compiled graph as they are."""
    torch._dynamo.reset()
    a, b = integers(40, 30, device=device), integers(50, 80, device=device)
    compiled = torch.compile(lambda x, y: tessera.matmul(x.t() * 2, y.t()[::2]), fullgraph=True)
    assert torch.equal(compiled(a, b), (a.t() * 2) @ b.t()[::2])


@needs_compile
def test_compile_with_out(device):
    torch._dynamo.reset()

    def function(x, y, result):
        tessera.matmul(x * 2, y, out=result)
        return result + 1

    a, b, out = integers(20, 30, device=device), integers(30, 40, device=device), torch.empty(20, 40, device=device)
    assert torch.equal(torch.compile(function, fullgraph=True)(a, b, out), 2 *
                       (a @ b) + 1) and torch.equal(out, 2 * (a @ b))


@needs_compile
def test_compile_goes_around_packed_matrices(device):
    torch._dynamo.reset()
    x, weight = integers(20, 30, device=device), integers(40, 30, device=device)
    packed = tessera.pack(weight)
    compiled = torch.compile(lambda t: tessera.linear(t * 2, packed) + tessera.matmul(t, packed.matrix.t()))
    assert torch.equal(compiled(x), 3 * (x @ weight.t()))


needs_vmap = pytest.mark.skipif(not hasattr(torch.library, "register_vmap"),
                                reason="this torch has no torch.library.register_vmap")

MAPPED = {
    "both": (lambda a, b: tessera.matmul(a, b), (0, 0), (3, 4, 5), (3, 5, 6)),
    "left": (lambda a, b: tessera.matmul(a, b), (0, None), (3, 4, 5), (5, 6)),
    "right": (lambda a, b: tessera.matmul(a, b), (None, 2), (4, 5), (5, 6, 3)),
    "vectors": (lambda a, b: tessera.matmul(a, b), (0, 1), (3, 5), (5, 3)),
    "batches": (lambda a, b: tessera.matmul(a, b), (1, 0), (2, 3, 4, 5), (3, 2, 5, 6)),
    "linear": (lambda x, w, c: tessera.linear(x, w, c), (0, None, None), (3, 2, 5), (6, 5), (6,)),
    "linear, its bias": (lambda x, w, c: tessera.linear(x, w, c), (None, None, 0), (2, 5), (6, 5), (3, 6)),
    "addmm": (lambda s, a, b: tessera.addmm(s, a, b, beta=2), (0, None, 0), (3, 6), (4, 5), (3, 5, 6)),
    "bmm": (lambda a, b: tessera.bmm(a, b), (0, None), (3, 2, 4, 5), (2, 5, 6)),
}


@needs_vmap
@pytest.mark.parametrize("name", MAPPED)
def test_vmap(device, name):
    function, in_dims, *shapes = MAPPED[name]
    tensors = [integers(*shape, device=device) for shape in shapes]
    with Calls() as calls:
        mapped = torch.vmap(function, in_dims=in_dims)(*tensors)
    assert len(calls) == 1  # and not one for each sample
    for i in range(3):
        row = [tensor if dim is None else tensor.select(dim, i) for tensor, dim in zip(tensors, in_dims)]
        assert torch.equal(mapped[i], function(*row))


@needs_vmap
def test_gradients_of_each_sample(device):
    w, x = integers(6, 5, device=device), integers(7, 5, device=device)
    gradient = torch.func.grad(lambda weight, sample: tessera.linear(sample, weight).square().sum())
    each = torch.vmap(gradient, in_dims=(None, 0))(w, x)
    assert torch.equal(each, torch.stack([gradient(w, sample) for sample in x]))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_computes_in_float32(device, half):
    """Under autocast what arrives in half precision is converted to float32, gradients flow back through the
    conversion."""
    if device == "cpu" and half == torch.float16 and RELEASE < (2, 4):
        pytest.skip("this torch has no float16 autocast on the CPU")
    a, b = integers(20, 30, device=device).to(half).requires_grad_(), integers(30, 40, device=device)
    with torch.autocast(device, dtype=half):
        product = tessera.matmul(a, b)
    assert product.dtype == torch.float32 and torch.equal(product, a.float() @ b)
    product.sum().backward()
    assert a.grad.dtype == half


def test_deterministic_mode(device):
    a, b = torch.randn(100, 200, device=device), torch.randn(200, 50, device=device)
    expected = tessera.matmul(a, b)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(tessera.matmul(a, b), expected)
    finally:
        torch.use_deterministic_algorithms(False)


def test_inference_mode(device):
    with torch.inference_mode():
        a, b = integers(4, 5, device=device), integers(5, 6, device=device)
        assert torch.equal(tessera.matmul(a, b), a @ b)
        assert torch.equal(tessera.linear(a, tessera.pack(b.t().contiguous())), a @ b)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_torch_s(threads):
    """The CPU engine takes as many threads as torch does: with one there is none but the caller's."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("only one core")
    program = f"""
import os, torch, tessera
torch.set_num_threads({threads})
a = torch.ones(600, 600)
tessera.matmul(a[:1, :1], a[:1, :1])
before = len(os.listdir("/proc/self/task"))
tessera.matmul(a, a)
print(len(os.listdir("/proc/self/task")) - before)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (int(ran.stdout) > 0) == (threads > 1)


def test_autocast_of_packed(device):
    weight, x = integers(40, 30, device=device), integers(20, 30, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        product = tessera.linear(x.bfloat16(), tessera.pack(weight))
    assert product.dtype == torch.float32 and torch.equal(product, x @ weight.t())


def test_out_counts_as_a_write(device):
    """A tensor written through out= cannot then be used for a gradient that needs its old values, in inference mode or
    not."""
    a, b, out = integers(4, 4, device=device), integers(4, 4, device=device), integers(4, 4, device=device)
    for mode in (torch.no_grad, torch.inference_mode):
        version = out._version
        with mode():
            tessera.matmul(a, b, out=out)
        assert out._version == version + 1
