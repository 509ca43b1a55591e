"""batch_invariant=True: rows have the same bits in any batch, through every way to a product."""

import numpy as np
import pytest
import torch

import tessera


def inputs(device):
    return torch.randn(70, 900, device=device), torch.randn(40, 900, device=device), torch.randn(40, device=device)


def ways(weight, bias, precision):
    options = dict(precision=precision, batch_invariant=True)
    packed, columns = tessera.pack(weight), weight.t()
    return {"matmul": lambda x: tessera.matmul(x, columns, **options),
            "linear": lambda x: tessera.linear(x, weight, bias, **options),
            "packed": lambda x: tessera.linear(x, packed, bias, **options),
            "addmm": lambda x: tessera.addmm(bias, x, columns, beta=0.5, alpha=2, **options),
            "bmm": lambda x: tessera.bmm(x[None].expand(3, *x.shape), columns.expand(3, *columns.shape), **options)[1],
            "baddbmm": lambda x: tessera.baddbmm(bias, x[None], columns[None], **options)[0]}


@pytest.mark.parametrize("precision", ["fp32", "ieee", "tf32"])
@pytest.mark.parametrize("way", ["matmul", "linear", "packed", "addmm", "bmm", "baddbmm"])
def test_rows(device, precision, way):
    x, weight, bias = inputs(device)
    function = ways(weight, bias, precision)[way]
    whole = function(x)
    for m in 1, 2, 5, 33:
        assert torch.equal(function(x[7:7 + m].clone()), whole[7:7 + m])


def test_vectors_and_leading_dimensions(device):
    x, weight, _ = inputs(device)
    whole = tessera.matmul(x, weight.t(), batch_invariant=True)
    assert torch.equal(tessera.matmul(x[3], weight.t(), batch_invariant=True), whole[3])
    assert torch.equal(tessera.matmul(x.reshape(7, 2, 5, 900), weight.t(), batch_invariant=True).reshape(70, 40), whole)
    column = tessera.matmul(x, weight[0], batch_invariant=True)
    assert torch.equal(tessera.matmul(x[5:6].clone(), weight[0], batch_invariant=True), column[5:6])
    several = torch.stack([weight.t(), -weight.t()])  # not folded into one product, although torch would
    assert torch.equal(tessera.matmul(x.requires_grad_(), several, batch_invariant=True)[0], whole)


def test_gradients(device):
    x, weight, bias = (tensor.requires_grad_() for tensor in inputs(device))
    tessera.linear(x, weight, bias, batch_invariant=True).square().sum().backward()
    row = x.detach()[9:10].clone().requires_grad_()
    tessera.linear(row, weight, bias, batch_invariant=True).square().sum().backward()
    assert torch.equal(row.grad, x.grad[9:10])


def test_drop_in(device):
    """It takes what torch would run faster, too."""
    x, weight, bias = inputs(device)
    layer = torch.nn.Linear(900, 40, device=device)
    with tessera.enabled(devices=(device,), batch_invariant=True), torch.no_grad():
        whole = layer(x)
        for m in 1, 2, 31:
            assert torch.equal(layer(x[:m]), whole[:m])
    assert tessera.stats().taken == 4 and not any(tessera.stats().passed.values())
    tessera.enable(devices=(device,), batch_invariant=True)
    assert torch.ops.tessera.switch(device, False, "fp32", False) == "fp32 batch_invariant always"


def test_the_environment(device, monkeypatch):
    monkeypatch.setattr(tessera, "_ALWAYS_INVARIANT", True)  # as where TESSERA_BATCH_INVARIANT is 1
    x, weight, _ = inputs(device)
    assert torch.equal(tessera.matmul(x[:1].clone(), weight.t()), tessera.matmul(x, weight.t())[:1])
    with tessera.enabled(devices=(device,)):
        assert torch.equal(x[:1].clone() @ weight.t(), (x @ weight.t())[:1])
    assert tessera.stats().taken == 2


def test_numpy():
    rng = np.random.default_rng(3)
    x, weight = rng.standard_normal((60, 5000), np.float32), rng.standard_normal((30, 5000), np.float32)
    for precision in "fp32", "ieee":
        whole = tessera.linear(x, weight, precision=precision, batch_invariant=True)
        assert np.array_equal(tessera.linear(x[:1], weight, precision=precision, batch_invariant=True), whole[:1])
        assert np.array_equal(tessera.matmul(x[4], weight.T, precision=precision, batch_invariant=True), whole[4])
        assert np.array_equal(tessera.linear(x[:2], tessera.pack(weight), batch_invariant=True, precision=precision),
                              whole[:2])
    assert not np.array_equal(tessera.linear(x[:1], weight, precision="ieee"),
                              tessera.linear(x, weight, precision="ieee")[:1])


def test_an_unknown_precision(device):
    for array in torch.ones(2, 2, device=device), np.ones((2, 2), np.float32):
        with pytest.raises(ValueError, match="precision must be 'fp32', 'ieee' or 'tf32', not 'fp33'"):
            tessera.matmul(array, array, precision="fp33", batch_invariant=True)
