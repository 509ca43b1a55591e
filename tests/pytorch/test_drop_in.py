"""The drop-in: torch's own float32 products through Tessera while it is on, and nothing else."""

import os
import re
import subprocess
import sys
import threading
import warnings

import pytest
import torch

import tessera
from tensors import RELEASE, integers, outcome, since


def everything(device):
    """On for this device, whichever is faster."""
    return tessera.enabled(devices=(device,), always=True)


def taken():
    return tessera.stats().taken


PRODUCTS = {
    "mm": lambda a, b, s: torch.mm(a[0], b[0]),
    "bmm": lambda a, b, s: torch.bmm(a, b),
    "addmm": lambda a, b, s: torch.addmm(s[0], a[0], b[0], beta=2, alpha=3),
    "addmm, bias": lambda a, b, s: torch.addmm(s[0, 0], a[0], b[0]),
    "addmm, beta 0": lambda a, b, s: torch.addmm(s[0] * float("nan"), a[0], b[0], beta=0),
    "baddbmm": lambda a, b, s: torch.baddbmm(s, a, b, beta=2, alpha=3),
    "mm, out": lambda a, b, s: torch.mm(a[0], b[0], out=torch.empty_like(s[0])),
    "bmm, out": lambda a, b, s: torch.bmm(a, b, out=torch.empty_like(s)),
    "addmm, out": lambda a, b, s: torch.addmm(s[0], a[0], b[0], out=torch.empty_like(s[0])),
    "baddbmm, out": lambda a, b, s: torch.baddbmm(s, a, b, out=torch.empty_like(s)),
    "addmm_": lambda a, b, s: s[0].clone().addmm_(a[0], b[0], beta=2),
    "baddbmm_": lambda a, b, s: s.clone().baddbmm_(a, b, alpha=3),
    "matmul": lambda a, b, s: a @ b,
    "matmul, broadcast": lambda a, b, s: a @ b[0],
    "einsum": lambda a, b, s: torch.einsum("bik,bkj->ibj", a, b),
    "linear": lambda a, b, s: torch.nn.functional.linear(a, b[0].t().contiguous(), s[0, 0]),
    "linear, no bias": lambda a, b, s: torch.nn.functional.linear(a[0], b[0].t()),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_taken(device, name):
    a, b, s = integers(3, 20, 30, device=device), integers(3, 30, 40, device=device), integers(3, 20, 40, device=device)
    expected = PRODUCTS[name](a, b, s)
    assert taken() == 0
    with everything(device):
        product = PRODUCTS[name](a, b, s)
    assert torch.equal(product, expected) and product.stride() == expected.stride()
    assert taken() == 1
    PRODUCTS[name](a, b, s)
    assert taken() == 1


PASSED = {
    "float64": (lambda a, b: a.double() @ b.double(), "not float32"),
    "complex": (lambda a, b: a.to(torch.complex64) @ b.to(torch.complex64), "not float32"),
    "empty": (lambda a, b: a[:0] @ b, "empty or unusual shape or out"),
    "no terms": (lambda a, b: a[:, :0] @ b[:0], "empty or unusual shape or out"),
    "resized out": (lambda a, b: torch.mm(a, b, out=torch.empty(0, device=a.device)), "empty or unusual shape or out"),
}


@pytest.mark.parametrize("name", PASSED)
def test_the_rest_is_left_to_torch(device, name):
    function, reason = PASSED[name]
    a, b = integers(20, 30, device=device), integers(30, 40, device=device)
    expected = function(a, b)
    with everything(device):
        assert torch.equal(function(a, b), expected)
    assert taken() == 0 and tessera.stats().passed[reason] == 1


def test_half_and_integers_are_left_to_torch(device):
    a, b = integers(20, 30, device=device), integers(30, 40, device=device)
    types = [torch.bfloat16] + ([torch.float16] if device == "cuda" else [torch.int32])
    with everything(device):
        for dtype in types:
            assert (a.to(dtype) @ b.to(dtype)).dtype == dtype
    assert taken() == 0


def overlapping(rows, b):
    """A product that is written over a part of its own argument; what then comes out depends on torch's threads."""
    return torch.mm(rows[:30], b, out=rows[10:40]).shape


@pytest.mark.parametrize("name", ["shapes", "dimensions", "types", "devices", "overlapping out"])
def test_odd_calls_do_as_in_torch(device, name):
    a, b, c = integers(20, 30, device=device), integers(30, 30, device=device), integers(60, 30, device=device)
    call = {
        "shapes": lambda: torch.mm(a, a), "dimensions": lambda: torch.bmm(a, b),
        "types": lambda: torch.mm(a, b.double()), "devices": lambda: torch.mm(a, integers(30, 30))
        if device == "cuda" else torch.bmm(a[None], b[None].to("meta")).shape,
        "overlapping out": lambda: overlapping(c.clone(), b),
    }[name]
    expected = outcome(call)
    with everything(device):
        found = outcome(call)
    assert taken() == 0 and found == expected


def test_sparse_is_untouched(device):
    a, b = integers(20, 30, device=device), integers(30, 40, device=device)
    expected = torch.sparse.mm(a.to_sparse(), b)
    with everything(device):
        assert torch.equal(torch.sparse.mm(a.to_sparse(), b), expected)


def test_other_devices_are_untouched():
    a, b = integers(20, 30), integers(30, 40)
    expected = a @ b
    with tessera.enabled(devices="cuda", always=True):
        assert torch.equal(a @ b, expected)
    assert taken() == 0


def test_products_that_torch_runs_faster_are_left_to_it():
    a, b = integers(4, 4096), integers(4096, 4096)
    expected = a @ b
    with tessera.enabled(devices="cpu"):
        assert torch.equal(a @ b, expected)
    assert taken() == 0 and tessera.stats().passed["torch is faster"] == 1


@pytest.mark.parametrize("m, n, k", [(16, 64, 64), (64, 1024, 4096), (4, 1000, 1000), (1, 4096, 4096), (9, 4096, 4096),
                                     (1024, 1024, 256), (2048, 2048, 2048)])
def test_every_kind_of_product_is_taken_on_hopper(m, n, k):
    """Thin, short and small ones, too: with an estimate of the gain."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    a, b = integers(m, k, device="cuda"), integers(k, n, device="cuda")
    with tessera.enabled():
        product = a @ b
    assert torch.equal(product, a @ b)
    (counted,) = tessera.stats().products
    assert (counted.m, counted.n, counted.k, counted.calls) == (m, n, k, 1) and 0.8 < counted.gain < 10
    assert f"about {counted.gain:.2g} x torch's speed" in str(tessera.stats())


def test_the_estimate_decides_on_a_gpu():
    """What is left to torch would be slower by it, and is counted; always=True takes it."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    shapes = [(m, n, k) for m in (8, 300, 2000) for n in (300, 5000) for k in (20, 70, 700)]
    for m, n, k in shapes:
        a, b = integers(m, k, device="cuda"), integers(k, n, device="cuda")
        tessera.reset_stats()
        with tessera.enabled():
            product = a @ b
        left = tessera.stats().passed["torch is faster"]
        with everything("cuda"):
            assert torch.equal(a @ b, product)
        (counted,) = tessera.stats().products
        assert counted.calls == 2 - left and (counted.gain < 1 / 1.1 or not left)


def test_large_products_are_taken(device):
    a, b = integers(1024, 2048, device=device), integers(2048, 1024, device=device)
    with tessera.enabled(devices=device):
        product = a @ b
    assert taken() == 1 and torch.equal(product, a @ b)


def test_switching():
    a, b = integers(20, 30), integers(30, 40)

    def is_on():
        before = taken()
        a @ b
        return taken() > before

    assert not is_on()
    tessera.enable(devices=("cpu",), always=True)
    assert is_on()
    with tessera.enabled("ieee", devices=("cpu",), always=True):
        assert is_on() and tessera.stats().products[0].precision in ("fp32", "ieee")
        with tessera.enabled("tf32", devices=("cpu",), always=True):
            assert is_on()
    assert is_on()
    tessera.disable()
    assert not is_on()
    with pytest.raises(ZeroDivisionError), everything("cpu"):
        assert is_on()
        1 / 0
    assert not is_on()


def test_blocks_may_overlap():
    """Two threads' blocks that end in the order they began: what was before the first holds after the last."""
    first, second = everything("cpu"), tessera.enabled("ieee", devices="cpu", always=True)
    a, b = integers(20, 30), integers(30, 40)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    a @ b
    assert [product.precision for product in tessera.stats().products] == ["ieee"]
    second.__exit__(None, None, None)
    a @ b
    assert taken() == 1


def test_enable_inside_a_block_is_for_after_it():
    a, b = integers(20, 30), integers(30, 40)
    with tessera.enabled("ieee", devices="cpu", always=True):
        tessera.enable("fp32", devices="cpu", always=True)
        a @ b
    a @ b
    assert sorted(product.precision for product in tessera.stats().products) == ["fp32", "ieee"]


def test_arguments_of_enable():
    with pytest.raises(ValueError, match="precision must be"):
        tessera.enable("fp16", devices="cpu")
    with pytest.raises(ValueError, match="'tpu'"):
        tessera.enable(devices=("cpu", "tpu"))
    with pytest.raises(ValueError, match="'tpu'"):
        with tessera.enabled(devices="tpu"):
            pass
    assert torch.equal(torch.ones(2, 2) @ torch.ones(2, 2), torch.full((2, 2), 2.0)) and taken() == 0


def test_stats(device):
    a, b = integers(3, 20, 30, device=device), integers(3, 30, 40, device=device)
    with everything(device):
        for _ in range(4):
            torch.bmm(a, b)
        a[0] @ b[0]
        a.double() @ b.double()
    stats = tessera.stats()
    assert stats.taken == 5 and stats.passed["not float32"] == 1
    first, second = stats.products
    assert (first.batch, first.m, first.n, first.k, first.calls) == (3, 20, 40, 30, 4)
    assert (second.batch, second.m, second.n, second.k, second.calls) == (1, 20, 40, 30, 1)
    assert first.device.startswith(device) and first.precision == "fp32" and (first.gain is None) == (device == "cpu")
    assert "5 products taken" in str(stats) and "3 of 20 x 40 x 30" in str(stats)
    tessera.reset_stats()
    assert tessera.stats().taken == 0 and tessera.stats().products == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said without a GPU")
def test_without_a_gpu(monkeypatch):
    """One warning for all calls, and stats() says why nothing was taken and what would be."""
    monkeypatch.setattr(tessera._torch, "_has_warned", False)
    assert "tessera is not enabled: tessera.enable()" in str(tessera.stats())
    with pytest.warns(RuntimeWarning, match=r"enabled for products on CUDA, but .*enable\(devices=\(\"cpu\"") as warned:
        tessera.enable()
        with tessera.enabled():
            torch.ones(64, 64) @ torch.ones(64, 64)
    assert len(warned) == 1 and warned[0].filename == __file__
    assert re.search(r"0 products .*\n.* CUDA, but .*enable\(devices=\(\"cpu\", \"cuda\"\)\)", str(tessera.stats()))
    with pytest.warns(RuntimeWarning) as warned:
        monkeypatch.setattr(tessera._torch, "_has_warned", False)
        tessera.enable(devices=("cpu", "cuda"))
        warnings.warn("the only one", RuntimeWarning)
    assert len(warned) == 1 and "there was no product on cpu or cuda" in tessera.stats().advice
    torch.ones(8, 8) @ torch.ones(8, 8)
    assert "always=True" in tessera.stats().advice
    with tessera.enabled(devices="cpu", always=True):
        torch.ones(8, 8) @ torch.ones(8, 8)
    assert tessera.stats().advice == ""


def model():
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), layer, torch.nn.Linear(32, 8))


def train(device, steps=5):
    network = model().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    torch.manual_seed(2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = network(torch.randn(4, 10, 16, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_with_and_without(device):
    expected = train(device)
    with everything(device):
        found = train(device)
    assert taken() > 50
    assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-4)


def test_second_order_through_the_drop_in(device):
    a, b = integers(3, 4, device=device, requires_grad=True), integers(4, 2, device=device, requires_grad=True)
    with everything(device):
        assert torch.autograd.gradgradcheck(torch.mm, (a, b), [integers(3, 2, device=device, requires_grad=True)],
                                            eps=1.0, atol=0, rtol=0)
    assert taken() > 0


def test_autocast_stays_half(device):
    a, b = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device)
    with everything(device), torch.autocast(device, dtype=torch.bfloat16):
        assert (a @ b).dtype == torch.bfloat16
    assert taken() == 0


def test_switching_under_threads(device):
    """Results stay right while another thread switches on and off."""
    a, b = integers(40, 50, device=device), integers(50, 60, device=device)
    expected, wrong, done = a @ b, [], threading.Event()

    def multiply():
        while not done.is_set():
            if not torch.equal(a @ b, expected):
                wrong.append(1)

    tessera.enable(devices=(device,), always=True)
    threads = [threading.Thread(target=multiply) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        tessera.disable()
        tessera.enable(devices=(device,), always=True)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong and taken() > 0


# In children of a process that has torch: to import it takes longer than all the rest.
ENVIRONMENTS = """
import os, torch
for variables in ({"TESSERA_ENABLE": "1"}, {"TESSERA_ENABLE": "yes", "TESSERA_DEVICES": "cpu, cuda"},
                  {"TESSERA_ENABLE": "0"}, {"TESSERA_ENABLE": "False"},
                  {"TESSERA_ENABLE": "1", "TESSERA_PRECISION": "half"}):
    child = os.fork()
    if not child:
        os.environ.update(variables)
        import tessera
        torch.ones(64, 64) @ torch.ones(64, 64)
        print(tessera.stats().taken, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_environment_variable():
    """TESSERA_ENABLE=1 does what enable() does, once tessera is imported; what it cannot do is a warning."""
    ran = subprocess.run([sys.executable, "-c", ENVIRONMENTS], env={**os.environ, "TESSERA_DEVICES": "cpu"},
                         capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["1", "1", "0", "0", "0"]
    assert ran.stderr.count("RuntimeWarning: TESSERA_ENABLE is set, but tessera cannot be enabled: precision") == 1


@since(2, 0)
def test_compiled_code_needs_no_recompiling(device):
    """A graph compiled while the drop-in is off uses it once it is on, and the other way round."""
    if RELEASE < (2, 2):
        pytest.skip("torch.compile of this version does not know this Python")
    function = torch.compile(lambda x, y: (x @ y).relu(), fullgraph=True)
    a, b = integers(70, 80, device=device), integers(80, 90, device=device)
    expected = (a @ b).relu()
    assert torch.equal(function(a, b), expected) and taken() == 0
    with everything(device):
        assert torch.equal(function(a, b), expected) and taken() == 1
    assert torch.equal(function(a, b), expected) and taken() == 1
