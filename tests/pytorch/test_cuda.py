"""What only a GPU has: streams, graphs, torch's allocator, several devices."""

import subprocess
import sys

import pytest
import torch

import tessera
from tensors import integers

pytestmark = pytest.mark.usefixtures("gpu")


def test_current_stream():
    """Products are queued on the stream that is current, behind what is already there."""
    a, b = integers(2000, 3000, device="cuda"), integers(3000, 2000, device="cuda")
    expected = a @ b
    stream = torch.cuda.Stream()
    for _ in range(5):
        late = torch.zeros_like(a)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            late.copy_(a)
            product = tessera.matmul(late, b)
            with tessera.enabled(always=True):
                other = late @ b
        stream.synchronize()
        assert torch.equal(product, expected) and torch.equal(other, expected)


def test_nothing_waits():
    """The host goes on while the GPU is busy."""
    a, b = integers(1000, 1000, device="cuda"), integers(1000, 1000, device="cuda")
    tessera.matmul(a, b)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    done = torch.cuda.Event()
    tessera.matmul(a, b)
    done.record()
    assert not done.query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("size", [64, 1000, 2048])
def test_graph(size):
    """A product captured in a CUDA graph sees the values of each replay."""
    a, b, s = (integers(size, size, device="cuda") for _ in range(3))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tessera.matmul(a, b)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product = tessera.addmm(s, tessera.matmul(a, b), b)
    for _ in range(3):
        a.copy_(torch.randint(-1, 2, a.shape, device="cuda"))
        b.copy_(torch.randint(-1, 2, b.shape, device="cuda"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(product.double(), s.double() + a.double() @ b.double() @ b.double())


def test_graph_of_a_training_step():
    """The drop-in inside a captured step, backward pass and all."""
    network = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).cuda()
    x = torch.randn(512, 256, device="cuda")

    def step():
        network.zero_grad(set_to_none=False)
        network(x).square().mean().backward()

    tessera.enable(always=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    expected = [parameter.grad.clone() for parameter in network.parameters()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for parameter in network.parameters():
        parameter.grad.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    for parameter, gradient in zip(network.parameters(), expected):
        assert torch.equal(parameter.grad, gradient)


def test_workspace_is_torch_s():
    """Workspace comes from torch's allocator and goes back to it."""
    a, b = torch.randn(4096, 4096, device="cuda"), torch.randn(4096, 4096, device="cuda")
    tessera.matmul(a, b)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    product = tessera.matmul(a, b)
    assert torch.cuda.max_memory_allocated() - before > product.numel() * 4  # the result and more
    assert torch.cuda.memory_allocated() - before == product.numel() * 4


def test_panels_are_torch_s():
    """Packed matrices are kept in torch's memory, which they give back."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU packs nothing")
    x, weight = torch.randn(1024, 2048, device="cuda"), torch.randn(2048, 2048, device="cuda")
    packed = tessera.pack(weight)
    before = torch.cuda.memory_allocated()
    product = tessera.linear(x, packed)
    assert torch.cuda.memory_allocated() - before >= (product.numel() + weight.numel()) * 4
    del packed
    assert torch.cuda.memory_allocated() - before == product.numel() * 4


def test_other_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("only one GPU")
    a, b = integers(300, 400, device="cuda:1"), integers(400, 300, device="cuda:1")
    assert torch.equal(tessera.matmul(a, b), a @ b)


def test_cpu_and_gpu_agree():
    a, b = integers(300, 400), integers(400, 300)
    assert torch.equal(tessera.matmul(a.cuda(), b.cuda()).cpu(), tessera.matmul(a, b))


def test_packed_on_another_stream():
    """Panels that one stream is still making are waited for by another."""
    weight, x = integers(2048, 2048, device="cuda"), integers(2048, 2048, device="cuda")
    expected = x @ weight.t()
    tessera.linear(x, weight)  # the library is set up
    torch.cuda.synchronize()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    packed = tessera.pack(weight)
    with torch.cuda.stream(first):
        torch.cuda._sleep(100_000_000)
        tessera.linear(x, packed)
    with torch.cuda.stream(second):
        product = tessera.linear(x, packed)
    torch.cuda.synchronize()
    assert torch.equal(product, expected)


def test_packed_in_a_graph():
    """A graph keeps to the tensor, whatever happens to the panels after it was captured."""
    weight, x = integers(1024, 1024, device="cuda"), integers(1024, 1024, device="cuda")
    packed = tessera.pack(weight)
    tessera.linear(x, packed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product = tessera.linear(x, packed)
    for _ in range(3):
        weight.add_(1)
        tessera.linear(x, packed)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(product, x @ weight.t())


def test_too_little_memory_for_workspace_leaves_it_to_torch():
    a, b = integers(4096, 4096, device="cuda"), integers(4096, 4096, device="cuda")
    expected = a @ b
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    # The result fits, workspace does not.
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (100 << 20)) / total)
    try:
        with tessera.enabled():
            product = a @ b
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(product, expected)
    assert tessera.stats().taken == 0 and tessera.stats().passed["not possible here"] == 1


def test_enable_does_not_start_cuda():
    """A process of a distributed program chooses its GPU after it has imported torch and tessera."""
    program = "import torch, tessera; tessera.enable(); print(torch.cuda.is_initialized())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          check=True).stdout.split() == ["False"]


def test_first_product_of_all_in_a_capture():
    """The library cannot be set up during a capture: torch computes that product."""
    program = """
import torch, tessera
tessera.enable()
a = torch.ones(2048, 2048, device="cuda")
torch.mm(a[:8], a)  # torch sets itself up; too thin for the drop-in
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    c = a @ a
graph.replay()
torch.cuda.synchronize()
print(c.unique().tolist(), tessera.stats().taken, tessera.stats().passed["not possible here"])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.split() == ["[2048.0]", "0", "1"]
