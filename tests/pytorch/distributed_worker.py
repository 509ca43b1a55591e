"""One process of test_distributed.py, started by torchrun: sharded products with the drop-in on, against unsharded
ones.

Data is integer-valued, so the order of sums across processes does not matter: results are asked to be equal.
"""

import contextlib
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tessera
from tensors import integers

LAYOUTS = {  # placements of a and b, and of their product
    "rows": (Shard(0), Replicate(), Shard(0)),
    "columns": (Replicate(), Shard(1), Shard(1)),
    "partial sums": (Shard(1), Shard(0), Partial()),
    "replicated": (Replicate(), Replicate(), Replicate()),
}


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16, bias=False)
        for parameter in self.parameters():
            parameter.data = torch.randint(-2, 3, parameter.shape).float()

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def new_mlp():
    torch.manual_seed(3)
    return Mlp()


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@contextlib.contextmanager
def products_taken(count):
    """The drop-in is on in this block and no longer, and takes exactly so many products."""
    tessera.reset_stats()
    with tessera.enabled(devices="cpu", always=True):
        yield
    assert tessera.stats().taken == count, str(tessera.stats())


def check_products(mesh):
    a, b, g = integers(16, 32), integers(32, 24), integers(16, 24)
    expected = a @ b, g @ b.t(), a.t() @ g
    for name, (place_a, place_b, place) in LAYOUTS.items():
        left = distribute_tensor(a, mesh, [place_a]).requires_grad_()
        right = distribute_tensor(b, mesh, [place_b]).requires_grad_()
        with products_taken(3):
            product = left @ right
            product.backward(distribute_tensor(g, mesh, [Replicate()]))
        assert product.placements == (place,), (name, product.placements)
        for theirs, ours in zip(expected, (product, left.grad, right.grad)):
            assert torch.equal(theirs, whole(ours)), name


def gradients_of(model, x, g):
    y = model(x)
    whole(y).backward(g)
    return [whole(y).detach()] + [whole(parameter.grad) for parameter in model.parameters()]


def check_tensor_parallel(mesh):
    x, g = integers(8, 16), torch.randint(-2, 3, (8, 16)).float()
    expected = gradients_of(new_mlp(), x, g)
    model = parallelize_module(new_mlp(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    with products_taken(5):
        found = gradients_of(model, x, g)
    for theirs, ours in zip(expected, found):
        assert torch.equal(theirs, ours)


def check_fsdp(mesh):
    """Each process has a part of the batch; gradients are means over processes."""
    x, g = integers(mesh.size() * 4, 16), torch.randint(-2, 3, (mesh.size() * 4, 16)).float()
    expected = gradients_of(new_mlp(), x, g)
    model = new_mlp()
    for layer in (model.up, model.down):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    mine = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    with products_taken(5):
        found = gradients_of(model, x[mine], g[mine])
    assert torch.equal(found[0], expected[0][mine])
    for theirs, ours in zip(expected[1:], found[1:]):
        assert torch.equal(theirs, ours * mesh.size())


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(7)  # the same tensors in every process
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for check in (check_products, check_tensor_parallel, check_fsdp):
        check(mesh)
        if dist.get_rank() == 0:
            print(f"{check.__name__}: right on {mesh.size()} processes", flush=True)
    dist.destroy_process_group()
    os._exit(0)  # past torch's own end, which aborts now and then (test_distributed.py)


if __name__ == "__main__":
    main()
