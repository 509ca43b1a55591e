"""Tessera in PyTorch beside torch itself, in one run: host time per call, the reference problems, nn.Linear.

    TESSERA_LIBRARY=build/libtessera.so PYTHONPATH=python python3 bench/pytorch/compare.py --save results.json

host        microseconds of host time for one call of tessera.matmul and of torch.matmul
reference   the five reference problems through tessera.matmul and through the C library alone
linear      nn.Linear in float32, the drop-in off, on, and taking everything, interleaved
"""

import argparse
import itertools
import json
import pathlib
import statistics
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/gpu"), str(ROOT / "tests")]
import compare as c_library  # noqa: E402  bench/gpu/compare.py: the C library beside torch
import binding  # noqa: E402

import tessera  # noqa: E402

BATCHES = (1, 4, 16, 64, 256, 1024, 4096, 16384)
FEATURES = (64, 256, 1024, 4096, 16384)
ODD_SIZES = 120  # beside that grid


def sizes_of_layers():
    """(batch, in, out) of the layers: a grid of powers of two, and sizes in between drawn from the same ranges."""
    random = torch.Generator().manual_seed(1)

    def drawn(least, most):
        return round(least * (most / least) ** torch.rand((), generator=random).item())

    grid = [(batch, inner, outer) for inner, outer, batch in itertools.product(FEATURES, FEATURES, BATCHES)]
    return grid + [(drawn(1, 16384), drawn(64, 16384), drawn(64, 16384)) for _ in range(ODD_SIZES)]


def interleaved(functions, seconds, flops):
    """Median microseconds of each function's calls, as a program sees them: launched one after the other, in turn."""
    calls = max(1, min(50, round(2e11 / flops)))
    for function in functions:
        function()
    torch.cuda.synchronize()
    samples = [[] for _ in functions]
    begin = time.monotonic()
    while time.monotonic() - begin < seconds or len(samples[0]) < 5:
        for function, sample in zip(functions, samples):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(calls):
                function()
            end.record()
            end.synchronize()
            sample.append(start.elapsed_time(end) / calls * 1e3)
    return [statistics.median(sample) for sample in samples]


def host(about):
    for size, precision in itertools.product((64, 1024), ("ieee", "fp32")):
        a, b = torch.rand(size, size, device="cuda"), torch.rand(size, size, device="cuda")
        rounds = [(c_library.host_microseconds(lambda: tessera.matmul(a, b, precision=precision)),
                   c_library.host_microseconds(lambda: torch.matmul(a, b))) for _ in range(5)]
        ours, theirs = (statistics.median(column) for column in zip(*rounds))
        print(f"host time {size}^3 {precision}: {ours:.2f} us, torch {theirs:.2f} us", flush=True)
        yield {"what": "host", "m": size, "n": size, "k": size, "precision": precision, "tessera_us": round(ours, 2),
               "torch_us": round(theirs, 2), **about}


def reference(about, seconds):
    context = binding.Context(device=binding.CUDA, precision=binding.FP32)
    for name, m, n, k, layout in c_library.REFERENCE:
        a, b = c_library.make(m, n, k, layout, "rand")
        out = torch.empty(m, n, device="cuda")
        library = c_library.Tessera(context, a, b, torch.empty(m, n, device="cuda"))
        operator, c, peer = interleaved([lambda: tessera.matmul(a, b), library, lambda: torch.matmul(a, b, out=out)], seconds,
                                        2.0 * m * n * k)
        print(f"{name:16s} tessera.matmul {operator:8.1f} us, C library {c:8.1f} us ({c / operator:.3f}), torch {peer:8.1f} us "
              f"({peer / operator:.2f} x)", flush=True)
        yield {"what": "reference", "problem": name, "m": m, "n": n, "k": k, "layout": layout, "tessera_us": round(operator, 2),
               "c_library_us": round(c, 2), "torch_us": round(peer, 2), "of_c_library": round(c / operator, 3), **about}


def setting(layer, x, on, always=False):
    """A call of the layer with the drop-in set so: one atomic store beside it, the same for all."""
    switch = torch.ops.tessera.switch.default

    def call():
        switch("cuda", on, "fp32", always)
        layer(x)

    return call


def linear(about, seconds):
    tessera.reset_stats()  # which loads the operator, with its switch
    for batch, inner, outer in sizes_of_layers():
        flops = 2.0 * batch * inner * outer
        layer = torch.nn.Linear(inner, outer, device="cuda")
        x = torch.randn(batch, inner, device="cuda")

        off, on, everything = setting(layer, x, False), setting(layer, x, True), setting(layer, x, True, True)
        tessera.reset_stats()
        with torch.no_grad():
            on()
            taken = tessera.stats().taken > 0
            torch_us, on_us, always_us = interleaved([off, on, everything], seconds, flops)
        tessera.disable()
        record = {"what": "linear", "batch": batch, "in": inner, "out": outer, "taken": taken, "torch_us": round(torch_us, 2),
                  "drop_in_us": round(on_us, 2), "always_us": round(always_us, 2), "speedup": round(torch_us / on_us, 3),
                  "always_speedup": round(torch_us / always_us, 3), **about}
        print("linear {batch:5d} x {in:5d} -> {out:5d}: torch {torch_us:10.1f} us, drop-in {drop_in_us:10.1f} us ({speedup:.2f} x, "
              "taken: {taken}), always {always_us:10.1f} us ({always_speedup:.2f} x)".format(**record), flush=True)
        yield record
        del layer, x


def main():
    parser = argparse.ArgumentParser(description="Tessera in PyTorch beside torch on this machine's GPU")
    parser.add_argument("--only", action="append", choices=("host", "reference", "linear"))
    parser.add_argument("--seconds", type=float, default=0.1, help="time to spend on each measurement (default 0.1)")
    parser.add_argument("--save", metavar="FILE", help="write the records there as JSON")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    about, records = c_library.machine(), []
    parts = {"host": lambda: host(about), "reference": lambda: reference(about, options.seconds),
             "linear": lambda: linear(about, options.seconds)}
    try:
        for name in options.only or parts:
            for record in parts[name]():
                records.append(record)
    finally:  # what was measured is kept when the rest is interrupted
        if options.save:
            save(records, options.save)


def save(records, name):
    partial = pathlib.Path(name + ".partial")
    partial.write_text("[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n")
    partial.replace(name)
    print(f"{len(records)} records in {name}")


if __name__ == "__main__":
    main()
