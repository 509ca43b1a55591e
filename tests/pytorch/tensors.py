"""Tensors for tests: integer-valued, so that every sum is exact and results can be asked to be equal; and any
layout."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

RELEASE = tuple(int(number) for number in torch.__version__.split(".")[:2])
SMALL = 8  # entries are in -SMALL..SMALL: sums of 2^17 products stay below 2^24


def since(major, minor):
    """Skips a test of what older versions of torch do not have."""
    return pytest.mark.skipif(RELEASE < (major, minor), reason=f"torch {major}.{minor} is the first to have it")


def examples(count):
    """So many drawn examples, the same every time; TESSERA_EXAMPLES is for those who have less time."""
    return settings(max_examples=int(os.environ.get("TESSERA_EXAMPLES", count)), deadline=None, database=None,
                    derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@st.composite
def matmul_shapes(draw):
    """The shapes of two tensors or arrays that matmul takes."""
    size = st.integers(0, 9) if draw(st.booleans()) else st.integers(1, 40)
    m, n, k = draw(size), draw(size), draw(size)
    batch = [draw(st.integers(0, 4)) for _ in range(draw(st.integers(0, 3)))]
    shapes = []
    for matrix in ([m, k], [k, n]):
        leading = [1 if draw(st.booleans()) else size for size in batch]
        shapes.append(leading[draw(st.integers(0, len(batch))):] + matrix)
    return [[k] if draw(st.integers(0, 5)) == 0 else shape for shape in shapes]


def integers(*shape, device="cpu", requires_grad=False):
    made = torch.randint(-SMALL, SMALL + 1, shape, device=device).float()
    return made.requires_grad_(requires_grad)


def strided(shape, order, steps, expanded=(), device="cpu"):
    """An integer-valued tensor of this shape: dimensions lie in memory in this order, outermost first, each taken with
    its step, and those in `expanded` have stride 0."""
    stored = [1 if d in expanded else shape[d] * steps[d] for d in order]
    base = integers(*stored, device=device)
    inverse = [order.index(d) for d in range(len(shape))]
    view = base.permute(inverse)
    index = tuple(slice(None) if d in expanded else slice(None, None, steps[d]) for d in range(len(shape)))
    view = view[index]
    return view.expand([-1 if d not in expanded else shape[d] for d in range(len(shape))])


def outcome(function):
    """What a call returns, or the first line of its error."""
    try:
        return function()
    except Exception as error:
        return type(error), str(error).splitlines()[0]


def assert_within_bound(product, a, b, addend=None, beta=1.0, alpha=1.0):
    """abs(C - AB) <= (K+4) 2^-24 (abs(alpha) abs(A) abs(B) + abs(beta S)) in each element, against float64."""
    a, b, product = a.detach().double(), b.detach().double(), product.detach().double()
    exact, size = alpha * (a @ b), abs(alpha) * (a.abs() @ b.abs())
    if addend is not None:
        exact, size = exact + beta * addend.detach().double(), size + abs(beta) * addend.detach().double().abs()
    bound = (a.shape[-1] + 4) * 2.0**-24 * size
    assert (product - exact).abs().le(bound).all(), ((product - exact).abs() - bound).max().item()


class Calls(TorchDispatchMode):
    """The tensors that each call of tessera::gemm gets inside this block."""

    def __init__(self):
        super().__init__()
        self.arguments = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.tessera.gemm.default:
            self.arguments.append(args)
        return function(*args, **(kwargs or {}))

    def __len__(self):
        return len(self.arguments)
