"""Tessera in PyTorch beside torch itself, in one run: host time per call, the reference problems, nn.Linear.

    TESSERA_LIBRARY=build/libtessera.so PYTHONPATH=python python3 bench/pytorch/compare.py --save results.json

host        microseconds of host time for one call of tessera.matmul and of torch.matmul
reference   the five reference problems through tessera.matmul and through the C library alone
linear      nn.Linear in float32, the drop-in off, on, and taking everything, interleaved; where it leaves a layer to
            torch, torch beside itself, too, which tells how far two measurements of the same thing can be apart. Layers
            that come out slower with it are measured again, for eight times as long, which is what counts

Ratios are medians of those within a round: the host has slow and quick moments, longer than a round, that would be seen
in medians of times.
"""

import argparse
import itertools
import pathlib
import statistics
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))
from peers import Tessera, context  # noqa: E402  the C library as a framework calls it
from products import REFERENCE, about, host_microseconds, make  # noqa: E402
from harness import results, timing  # noqa: E402

import tessera  # noqa: E402

DEVICE = "cuda"
HOST_SIZES = (64, 1024)
BATCHES = (1, 4, 16, 64, 256, 1024, 4096, 16384)
FEATURES = (64, 256, 1024, 4096, 16384)
ODD_SIZES = 120  # beside that grid
SLOWER = 0.97


def sizes_of_layers():
    """(batch, in, out) of the layers: a grid of powers of two, and sizes in between drawn from the same ranges."""
    random = torch.Generator().manual_seed(1)

    def drawn(least, most):
        return round(least * (most / least) ** torch.rand((), generator=random).item())

    grid = [(batch, inner, outer) for inner, outer, batch in itertools.product(FEATURES, FEATURES, BATCHES)]
    return grid + [(drawn(1, 16384), drawn(64, 16384), drawn(64, 16384)) for _ in range(ODD_SIZES)]


def orders_of(count):
    """Orders of turns in which each follows each other equally often, for a function is faster after itself than after
    another."""
    zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(count)]
    orders = [[(i + shift) % count for i in zigzag] for shift in range(count)]
    return orders if count % 2 == 0 else orders + [order[::-1] for order in orders]


def interleaved(functions, seconds, calls, queued=False):
    """The Timing of each function's calls, as a program sees them: launched one after the other. `queued`: no turn
    waits for the one before, so that the GPU always has work. Turns of long products must be short, for the clock is
    the slower the more power the turn before took."""
    orders = itertools.cycle(orders_of(len(functions)))

    def take_round(_):
        pairs, order = {}, next(orders)
        if queued:
            functions[order[-1]]()
        for i in order:
            pairs[i] = start, end = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            start.record()
            for _ in range(calls):
                functions[i]()
            end.record()
            if not queued:
                end.synchronize()
        torch.cuda.synchronize()
        return [pairs[i][0].elapsed_time(pairs[i][1]) / calls * 1e-3 for i in range(len(functions))]

    for function in functions:
        function()
    torch.cuda.synchronize()
    return timing.interleaved(take_round, seconds)


def ratio(above, below):
    """How many times as long one took as the other: the median of the rounds'."""
    return round(statistics.median(x / y for x, y in zip(above.samples, below.samples)), 3)


def microseconds(measured):
    return round(1e6 * measured.median, 2)


def host(size, precision):
    a, b = make(size, size, size, "nn", "rand")
    few = {"calls": 50, "samples": 4}
    rounds = [(host_microseconds(lambda: tessera.matmul(a, b, precision=precision),
                                 **few), host_microseconds(lambda: torch.matmul(a, b), **few)) for _ in range(25)]
    ours, theirs = (statistics.median(column) for column in zip(*rounds))
    more = statistics.median(x - y for x, y in rounds)
    record = {
        "what": "host", "m": size, "n": size, "k": size, "precision": precision, "tessera_us": round(ours, 2),
        "torch_us": round(theirs, 2), "more_us": round(more, 2)
    }
    return [record
            ], f"host time {size}^3 {precision}: {ours:.2f} us, torch {theirs:.2f} us, {more:+.2f} us within a round"


def reference(seconds, name, m, n, k, layout):
    a, b = make(m, n, k, layout, "rand")
    out = torch.empty(m, n, device="cuda")
    library = Tessera(context("fp32"), a, b, torch.empty(m, n, device="cuda"))
    operator, c, peer = interleaved([lambda: tessera.matmul(a, b), library, lambda: torch.matmul(a, b, out=out)],
                                    seconds, calls=1, queued=True)
    record = {
        "what": "reference", "problem": name, "m": m, "n": n, "k": k, "layout": layout,
        "tessera_us": microseconds(operator), "c_library_us": microseconds(c), "torch_us": microseconds(peer),
        "of_c_library": ratio(c, operator), "speedup": ratio(peer, operator)
    }
    return [record], ("{problem:16s} tessera.matmul {tessera_us:8.1f} us, C library {c_library_us:8.1f} us "
                      "({of_c_library:.3f}), torch {torch_us:8.1f} us "
                      "({speedup:.2f} x)".format(**record))


def setting(layer, x, on, always=False):
    """A call of the layer with the drop-in set so: one atomic store beside it, the same for all."""
    switch = torch.ops.tessera.switch.default

    def call():
        switch(DEVICE, on, "fp32", always)
        layer(x)

    return call


def linear(seconds, batch, inner, outer):
    records, line = measured_layer(seconds, batch, inner, outer)
    return (records, line) if records[0]["speedup"] >= SLOWER else measured_layer(8 * seconds, batch, inner, outer)


def measured_layer(seconds, batch, inner, outer):
    layer, x = torch.nn.Linear(inner, outer, device=DEVICE), torch.randn(batch, inner, device=DEVICE)
    tessera.reset_stats()  # which loads the operator, with its switch
    off, on, everything = setting(layer, x, False), setting(layer, x, True), setting(layer, x, True, True)
    with torch.no_grad():
        on()
        taken = tessera.stats().taken > 0
        # What is taken is taken by "everything", too.
        functions = [off, on] if taken else [off, on, everything, setting(layer, x, False)]
        times = interleaved(functions, seconds, max(1, min(20, round(5e10 / (batch * inner * outer)))))
    tessera.disable()
    theirs, ours, always = times[0], times[1], times[1 if taken else 2]
    record = {
        "what": "linear", "batch": batch, "in": inner, "out": outer, "taken": taken, "torch_us": microseconds(theirs),
        "drop_in_us": microseconds(ours), "always_us": microseconds(always), "speedup": ratio(
            theirs, ours), "always_speedup": ratio(theirs, always)
    }
    if not taken:
        record["torch_beside_itself"] = ratio(theirs, times[3])
    return [record
            ], ("linear {batch:5d} x {in:5d} -> {out:5d}: torch {torch_us:10.1f} us, drop-in {drop_in_us:10.1f} us "
                "({speedup:.2f} x, "
                "taken: {taken}), always {always_us:10.1f} us ({always_speedup:.2f} x)".format(**record))


def main():
    parser = argparse.ArgumentParser(description="Tessera in PyTorch beside torch on this machine's GPU")
    parser.add_argument("--only", action="append", choices=("host", "reference", "linear"))
    parser.add_argument("--seconds", type=float, default=0.1, help="time to spend on each measurement (default 0.1)")
    parser.add_argument("--save", metavar="FILE", help="write the records there as JSON")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    kinds = {"host": (host, list(itertools.product(HOST_SIZES, ("ieee", "fp32")))),
             "reference": (reference, [(options.seconds, *problem) for problem in REFERENCE]),
             "linear": (linear, [(options.seconds, *sizes) for sizes in sizes_of_layers()])}
    jobs = [(name, *job) for name in options.only or kinds for job in kinds[name][1]]
    run = results.Run(options.save, about(), vars(options))
    run.finish(run.measure(jobs, lambda job: options.seconds, lambda job: kinds[job[0]][0](*job[1:])))


if __name__ == "__main__":
    main()
