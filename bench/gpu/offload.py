"""What offloading brings: sgemm_ of N x N matrices in ordinary memory, computed by the GPU, beside the CPU engine, and
beside the time that plain copies of the same bytes, pinned, both ways at once, take.

    bench/gpu/run BUILD --offload N [N ...] [--save FILE]
"""

import argparse
import ctypes
import os
import pathlib
import time

import torch

from peers import binding, operand
from harness import errors, machine, results

SAMPLES = 10


def seconds(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def copy_seconds(n):
    """A and B to the GPU, and C back; the best of several."""
    there, back = [torch.cuda.Stream() for _ in range(2)]
    host_in, host_out = (torch.empty(count, n, n, pin_memory=True) for count in (2, 1))
    gpu_in, gpu_out = (torch.empty(count, n, n, device="cuda") for count in (2, 1))

    def copy():
        with torch.cuda.stream(there):
            gpu_in.copy_(host_in, non_blocking=True)
        with torch.cuda.stream(back):
            host_out.copy_(gpu_out, non_blocking=True)
        torch.cuda.synchronize()

    return min(seconds(copy) for _ in range(7))


def sgemm(library, n, a, b, c):
    """C = B A for matrices stored in rows: the standard's are stored in columns."""
    size, one, zero = ctypes.byref(ctypes.c_int(n)), ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    a, b, c = (ctypes.c_void_p(x.data_ptr()) for x in (a, b, c))
    return lambda: library.sgemm_(b"N", b"N", size, size, size, one, a, size, b, size, zero, c, size)


def measure(library, n):
    limit = copy_seconds(n)
    a, b, c = torch.rand(n, n), torch.rand(n, n), torch.empty(n, n)
    on_gpu = sgemm(library, n, a, b, c)
    first = seconds(on_gpu)
    ((_, worst),) = errors.measure([c.cuda()], b.cuda(), a.cuda())
    if worst > n + 2:
        raise ArithmeticError(f"sgemm_ is wrong by {worst:.3g} units, of which {n + 2} are allowed")
    samples = [seconds(on_gpu) for _ in range(SAMPLES)]
    context, left, right = binding.Context(), operand(binding.Operand, b), operand(binding.Operand, a)
    result = operand(binding.Result, c)
    on_cpu = min(seconds(lambda: binding.gemm(context, left, right, result)) for _ in range(3))
    best, mean = min(samples), sum(samples) / SAMPLES
    record = {
        "what": "offload", "n": n, "gpu_ms_best": round(1e3 * best, 3), "gpu_ms_mean": round(1e3 * mean, 3),
        "copies_alone_ms": round(1e3 * limit, 3), "ratio_to_copies": round(best / limit, 3),
        "cpu_ms_best": round(1e3 * on_cpu, 3), "speedup_over_cpu": round(on_cpu / best, 2), "samples": SAMPLES
    }
    return [record], (
        f"{n:6d}^3  sgemm_ on the GPU {1e3 * best:.2f} ms (mean {1e3 * mean:.2f}, first {1e3 * first:.1f})  "
        f"copies alone {1e3 * limit:.2f} ms, {best / limit:.2f} x  CPU {1e3 * on_cpu:.2f} ms, {on_cpu / best:.2f} x")


def main():
    parser = argparse.ArgumentParser(description="sgemm_ from and to host memory on this machine's GPU")
    parser.add_argument("sizes", type=int, nargs="+", metavar="N", help="rows and columns of the matrices")
    parser.add_argument("--save", metavar="FILE", help="write the records there as JSON")
    options = parser.parse_args()
    os.environ["TESSERA_DEVICE"] = "cuda"
    library = ctypes.CDLL(str(pathlib.Path(os.environ["TESSERA_LIBRARY"]).parent / "libtessera_blas.so"))
    gpu = machine.first_gpu().description()["gpu"]
    about = {**machine.cpu(), "machine": f"{machine.processor()}, {machine.cores()} cores, {gpu}"}
    run = results.Run(options.save, about, options.sizes)
    run.finish(run.measure(options.sizes, lambda n: n**2, lambda n: measure(library, n)))


if __name__ == "__main__":
    main()
