"""Every library that multiplies float32 matrices on this GPU, beside Tessera: rates, accuracy against K, the cost of a
call, and what the hardware can do at most.

    bench/gpu/run BUILD --survey [--topic TOPIC]... [--seconds S]

A file for each topic, FOLDER/TOPIC-MACHINE.json; an interrupted run goes on where it was. Peers that are not here are
named in each.
"""

import argparse
import time

import torch

from peers import COMPILED_FOR_EACH_SHAPE, LIBRARIES, TRIAL, prepare, present, triton
from products import about, host_microseconds, interleaved, make, settle
from harness import data, errors, results

import peers

SQUARES = (1024, 2048, 4096, 8192)
DEPTHS = (64, 256, 1024, 4096, 16384, 65536)
EDGE = 1024  # rows and columns of the products whose accuracy is measured
SMALL = (16, 64, 256, 512, 1024)


def products_of(libraries, a, b):
    """Each library's product, bound to a result of its own."""
    results_of = [torch.full((a.shape[0], b.shape[1]), float("nan"), device="cuda") for _ in libraries]
    return [LIBRARIES[name](a, b, out) for name, out in zip(libraries, results_of)], results_of


def quick_to_start(libraries):
    return [name for name in libraries if name not in COMPILED_FOR_EACH_SHAPE]


def rates(libraries, seconds):
    """The five reference problems and a few squares."""
    def measure(job):
        problem, m, n, k, layout = job
        a, b = make(m, n, k, layout, "rand")
        chosen = quick_to_start(libraries) if problem == "squares" else libraries
        functions, outs = products_of(chosen, a, b)
        flops = 2.0 * m * n * k
        timings, state = interleaved(functions, seconds, flops)
        settle(functions)
        records = [{
            "what": "library", "library": name, "problem": problem, "m": m, "n": n, "k": k, "layout": layout,
            "data": "rand", "gflops_best": round(flops / t.best / 1e9, 1),
            "gflops_median": round(flops / t.median / 1e9, 1), "samples": len(t.samples), "spread": round(t.spread, 4),
            "error": float(f"{error:.3e}"), "worst_units": round(worst, 2), **state
        } for name, t, (error, worst) in zip(chosen, timings, errors.measure(outs, a, b))]
        line = "  ".join(f"{r['library']} {r['gflops_median'] / 1e3:.1f}" for r in records)
        return records, f"{problem:16s} {m:5d} {n:5d} {k:5d} {layout}  TF: {line}"

    jobs = [list(problem) for problem in data.REFERENCE] + [["squares", size, size, size, "nn"] for size in SQUARES]
    return jobs, measure


def accuracy(libraries, _seconds):
    """Errors against K, on each family of data."""
    libraries = quick_to_start(libraries)

    def measure(job):
        family, k = job
        a, b = (torch.from_numpy(x).cuda() for x in data.matrices(family, k, (EDGE, k), (k, EDGE)))
        functions, outs = products_of(libraries, a, b)
        for function in functions:
            function()
        settle(functions)
        records = [{
            "what": "accuracy", "library": name, "m": EDGE, "n": EDGE, "k": k, "data": family,
            "error": float(f"{error:.3e}"), "worst_units": float(f"{worst:.3g}")
        } for name, (error, worst) in zip(libraries, errors.measure(outs, a, b))]
        return records, f"{family:8s} K {k:5d}  " + "  ".join(f"{r['library']} {r['error']:.1e}" for r in records)

    return [[family, k] for family in data.FAMILIES for k in DEPTHS], measure


def overhead(libraries, _seconds):
    """Small squares: host time to queue a call."""
    libraries = quick_to_start(libraries)

    def measure(job):
        (size,) = job
        a, b = make(size, size, size, "nn", "rand")
        functions, _ = products_of(libraries, a, b)
        records = []
        for name, function in zip(libraries, functions):
            function()
            records.append({
                "what": "call", "library": name, "m": size, "n": size, "k": size,
                "host_us": round(host_microseconds(function), 2)
            })
        return records, f"{size:5d}^3  host us: " + "  ".join(f"{r['library']} {r['host_us']:.1f}" for r in records)

    return [[size] for size in SMALL], measure


def ceilings(_libraries, seconds):
    """What the memory and the units can do at most."""
    def ceiling(name, value, unit, origin):
        return [{"what": "ceiling", "name": name, "value": float(f"{value:.4g}"), "unit": unit,
                 "origin": origin}], f"{name}: {value:.4g} {unit}"

    def measure(job):
        (name,) = job
        if name == "copy":
            source = torch.rand(1 << 28, device="cuda")
            target = torch.empty_like(source)
            (timing,), _ = interleaved([lambda: target.copy_(source)], seconds, 1e12)
            return ceiling(name, 8 * source.numel() / timing.best / 1e12, "TB/s",
                           "a copy of 1 GiB on the device, bytes read and written")
        if name == "fp16 tensor cores":
            best = 0.0
            for size in (4096, 8192):
                a, b = (torch.rand(size, size, device="cuda").half() for _ in range(2))
                out = torch.empty_like(a)
                (timing,), _ = interleaved([lambda: torch.matmul(a, b, out=out)], seconds, 2.0 * size**3)
                best = max(best, 2.0 * size**3 / timing.median / 1e12)
            return ceiling(name, best, "TFLOP/s",
                           "torch.matmul of fp16 squares of 4096 and 8192, uniform data, the better median")
        blocks, width, times = 132 * 64, 1024, 256
        out = torch.empty(blocks * width, device="cuda")
        (timing, ), _ = interleaved([lambda: peers.fma_kernel[(blocks, )](out, times, width=width, num_warps=4)],
                                    seconds, 1e12)
        return ceiling(name, 2.0 * 64 * times * blocks * width / timing.best / 1e12, "TFLOP/s",
                       "a Triton kernel of multiply-adds in registers")

    return [["copy"], ["fp16 tensor cores"], *([["float32 units"]] if triton else [])], measure


TOPICS = {"accuracy": accuracy, "overhead": overhead, "ceilings": ceilings, "peers": rates}


def main():
    parser = argparse.ArgumentParser(description="Tessera and its peers on this machine's GPU")
    parser.add_argument("--topic", action="append", choices=TOPICS, help="only this one (may be repeated)")
    parser.add_argument("--peer", action="append", metavar="NAME",
                        help="beside Tessera only this one (may be repeated)")
    parser.add_argument("--seconds", type=float, default=0.3,
                        help="time to spend on each measurement of a rate (default 0.3)")
    options = parser.parse_args()
    begin, here = time.monotonic(), {**about(), **({"triton": triton.__version__} if triton else {})}
    wanted = [name
              for name in LIBRARIES if name.startswith("tessera")] + options.peer if options.peer else list(LIBRARIES)
    topics = options.topic or list(TOPICS)
    if "peers" in topics:
        prepare(wanted, [tuple(problem[1:]) for problem in data.REFERENCE])
    else:
        prepare(quick_to_start(wanted), [(*TRIAL, "nn")])
    print(f"compiled what others compile at first use, on all cores, in {time.monotonic() - begin:.0f} s", flush=True)
    libraries, absent = present(wanted)
    for name, why in absent.items():
        print(f"{name} is not here ({why})")
    for topic in topics:
        path = results.default_path(topic, here["gpu"])
        jobs, measure = TOPICS[topic](libraries, options.seconds)
        run = results.Run(path, here, [options.seconds, libraries])
        records = run.measure(jobs, lambda job: len(libraries) * (options.seconds + 0.1), measure)
        run.finish(records + [{"what": "absent", "library": name, "why": why, **here} for name, why in absent.items()])
    print(f"{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
