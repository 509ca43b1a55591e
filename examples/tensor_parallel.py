"""A feed-forward network split over several GPUs, its products on Tessera. torch does the splitting, Tessera the
products.

    torchrun --nproc-per-node=8 examples/tensor_parallel.py            # GPUs and NCCL; without GPUs the CPU and gloo

The first layer's weight is split by columns, the second's by rows, so each GPU computes its part of both and one sum
over GPUs brings the parts together (torch.distributed.tensor.parallel). DTensor hands plain local matrices to aten::mm
and addmm, where the drop-in takes them: nothing here is about Tessera but the one line that enables it.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tessera


class FeedForward(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def build(width, device):
    torch.manual_seed(0)  # the same weights in every process
    return FeedForward(width).to(device)


def train(model, steps, rows, width, device):
    """The losses of some steps, and the seconds the last ones took."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1)  # every process sees the whole batch
    losses, begin = [], time.perf_counter()
    for step in range(steps):
        if step == steps // 2:
            begin = time.perf_counter()  # the first half is for warming up
        x = torch.randn(rows, width, device=device)
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    mesh = init_device_mesh(device, (dist.get_world_size(),))

    tessera.enable(devices=(device,))  # this is all

    alone, _ = train(build(options.width, device), options.steps, options.rows, options.width, device)
    model = parallelize_module(build(options.width, device), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    together, seconds = train(model, options.steps, options.rows, options.width, device)

    if dist.get_rank() == 0:
        furthest = max(abs(x - y) / abs(x) for x, y in zip(alone, together))
        print(
            f"{mesh.size()} processes on {device}: loss {alone[0]:.4f} -> {together[-1]:.4f}, "
            f"{seconds:.2f} s for the last steps"
        )
        print(
            f"{'agrees' if furthest < 1e-4 else 'DISAGREES'} with one process: losses differ by {furthest:.1e} at most")
        print(tessera.stats())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
