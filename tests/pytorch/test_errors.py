"""Bad arguments: the kind of error a torch user expects, and a message that names the argument."""

import numpy as np
import pytest
import torch

import tessera
from tensors import integers

A, B = (4, 5), (5, 6)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.complex64],
    ids=str)
@pytest.mark.parametrize("name", ["a", "b", "input", "out"])
def test_dtypes(device, name, dtype):
    tensors = {
        "a": torch.ones(A, device=device), "b": torch.ones(B, device=device), "input": torch.ones(6, device=device),
        "out": None
    }
    tensors[name] = torch.ones((4, 6), device=device, dtype=dtype) if name == "out" else tensors[name].to(dtype)
    advice = ": use torch.matmul" if dtype.is_complex else ": convert it with .float"  # not to drop half of it
    with pytest.raises(NotImplementedError, match=rf"float32 tensors, but {name} has dtype \w+{advice}"):
        tessera.addmm(tensors["input"], tensors["a"], tensors["b"], out=tensors["out"])
    if name != "input":
        with pytest.raises(NotImplementedError, match=rf"float32 tensors, but {name} has dtype"):
            tessera.matmul(tensors["a"], tensors["b"], out=tensors["out"])


def test_sparse(device):
    a, b = torch.ones(A, device=device), torch.ones(B, device=device)
    with pytest.raises(NotImplementedError, match="dense tensors, but a has layout Sparse"):
        tessera.matmul(a.to_sparse(), b)
    with pytest.raises(NotImplementedError, match="dense tensors, but b has layout Sparse"):
        tessera.addmm(torch.ones(6, device=device), a, b.to_sparse())
    with pytest.raises(NotImplementedError, match="dense tensors, but weight has layout Sparse"):
        tessera.linear(a, torch.ones(6, 5, device=device).to_sparse())


def test_quantized():
    a = torch.quantize_per_tensor(torch.ones(A), 0.1, 0, torch.quint8)
    with pytest.raises(NotImplementedError, match="a is quantized"):
        tessera.matmul(a, torch.ones(B))


def test_devices(device):
    with pytest.raises(RuntimeError,
                       match="Expected all tensors to be on the same device, but a is on .* and b is on meta"):
        tessera.matmul(torch.ones(A, device=device), torch.ones(B, device="meta"))
    if device == "cuda":
        with pytest.raises(RuntimeError,
                           match="Expected all tensors to be on the same device, but a is on cuda:0 and b is on cpu"):
            tessera.matmul(torch.ones(A, device=device), torch.ones(B))
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            tessera.linear(torch.ones(A), torch.ones(6, 5), torch.ones(6, device=device))


@pytest.mark.parametrize("a, b, words", [
    ((4, 5), (4, 5), r"\(4x5 and 4x5\)"), ((5,), (4,), r"\(1x5 and 4x1\)"), ((2, 4, 5), (2, 4, 5), r"\(4x5 and 4x5\)"),
    ((3,), (2, 4, 5), r"\(1x3 and 4x5\)")])
def test_shapes(device, a, b, words):
    with pytest.raises(RuntimeError, match="a and b shapes cannot be multiplied " + words):
        tessera.matmul(torch.ones(a, device=device), torch.ones(b, device=device))


def test_dimensions(device):
    one, three, matrix = torch.ones((), device=device), torch.ones(2, 4, 5, device=device), torch.ones(B, device=device)
    with pytest.raises(RuntimeError, match="at least 1D, but they are 0D and 2D"):
        tessera.matmul(one, matrix)
    with pytest.raises(RuntimeError, match=r"must match the size of tensor b|The size of tensor"):
        tessera.matmul(three, torch.ones(3, 5, 6, device=device))
    with pytest.raises(RuntimeError, match="b must be a 3D tensor, but it is 2D"):
        tessera.bmm(three, matrix)
    with pytest.raises(RuntimeError, match="the leading sizes of a and b differ"):
        tessera.bmm(three, torch.ones(3, 5, 6, device=device))
    with pytest.raises(RuntimeError, match="a must be a 2D tensor, but it is 3D"):
        tessera.addmm(one, three, matrix)
    with pytest.raises(RuntimeError, match=r"input of sizes \[3\] cannot be expanded to the product's"):
        tessera.addmm(torch.ones(3, device=device), torch.ones(A, device=device), matrix)
    with pytest.raises(RuntimeError, match="bias must be a 1D tensor, but it is 2D"):
        tessera.linear(torch.ones(A, device=device), torch.ones(6, 5, device=device), torch.ones(4, 6, device=device))
    for weight in (torch.ones(6, 5, device=device), tessera.pack(torch.ones(6, 5, device=device))):
        with pytest.raises(RuntimeError, match="bias of 5 elements cannot be added to 6 outputs"):
            tessera.linear(torch.ones(A, device=device), weight, torch.ones(5, device=device))
    with pytest.raises(RuntimeError, match="the matrix to pack must be a 2D tensor"):
        tessera.pack(three)


def test_out(device):
    a, b = integers(5, 5, device=device), integers(5, 5, device=device)
    with pytest.raises(RuntimeError, match=r"out has sizes \[4, 5\], but the product has"):
        tessera.matmul(a, b, out=torch.empty(4, 5, device=device))
    with pytest.raises(RuntimeError, match=r"out has sizes \[25\], but the product has"):
        tessera.addmm(a, a, b, out=torch.empty(25, device=device))
    for out in (a, b):
        with pytest.raises(RuntimeError, match="unsupported operation.*single memory location|overlaps"):
            tessera.matmul(a, b, out=out)
    with pytest.raises(RuntimeError, match="unsupported operation"):
        tessera.matmul(a, b, out=torch.empty(1, 5, device=device).expand(5, 5))
    shared = torch.zeros(6, 5, device=device)
    with pytest.raises(RuntimeError, match="unsupported operation|overlaps"):
        tessera.matmul(shared[:5], b, out=shared[1:])
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        tessera.matmul(a.clone().requires_grad_(), b, out=torch.empty(5, 5, device=device))


def test_precision(device):
    with pytest.raises(ValueError, match="precision must be 'fp32', 'ieee' or 'tf32', not 'half'"):
        tessera.matmul(torch.ones(A, device=device), torch.ones(B, device=device), precision="half")


def test_names_of_linear(device):
    x, weight, bias = torch.ones(A, device=device), torch.ones(6, 5, device=device), torch.ones(6, device=device)
    for name, tensors in {
            "input": (x.double(), weight, bias), "weight": (x, weight.double(), bias),
            "bias": (x, weight, bias.double())
    }.items():
        with pytest.raises(NotImplementedError, match=f"float32 tensors, but {name} has dtype Double"):
            tessera.linear(*tensors)


def test_types():
    tensor, array = torch.ones(A), np.ones(B, np.float32)
    with pytest.raises(TypeError, match="b is NumPy's, but a is torch's: convert one of them"):
        tessera.matmul(tensor, array)
    with pytest.raises(TypeError, match="a must be a torch.Tensor or a numpy.ndarray, not list"):
        tessera.matmul([[1.0]], tensor)
    with pytest.raises(TypeError, match="b must be a torch.Tensor or a numpy.ndarray, not NoneType"):
        tessera.matmul(tensor, None)
