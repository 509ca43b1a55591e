"""Tessera beside torch.matmul on one GPU, interleaved in one process.

For each problem, layout and precision both libraries multiply the same matrices in turn; the time is the median of CUDA
event pairs, everything included (packing, scales, marking, unscaling; torch's own overheads). Matrices are fresh for
each problem, and problems are larger than the L2 cache except where they cannot be. Short products are timed several to
a pair of events, from a CUDA graph, so that the GPU and not the host is measured, in both libraries; survey.py has the
host time of a call. Errors are against float64. Packing by itself is timed in turns with a copy of a matrix of that
size, which reads and writes as much.

The records are written as a JSON list, one record a measurement; see --help. An interrupted run goes on where it was.
"""

import argparse
import statistics

import torch

from peers import Packing, Tessera, binding, context, torch_float32, torch_tf32
from products import about as machine, interleaved, make
from harness import errors, results
from harness.data import REFERENCE

SQUARES = {"ieee": [*range(512, 8193, 512), 1000, 3000, 5000, 7001],
           "fp32": [256, 512, 1024, 2048, 4096, 8192, 16384, 1000, 3000, 5000, 7001],
           "tf32": [2048, 4096, 8192, 16384, 3000, 5000, 7001]}
SHORT = 5e9  # flop: timed ten to a pair of events


def measure_product(seconds, problem, m, n, k, layout, data, precision, packed):
    a, b = make(m, n, k, layout, data)
    c, peer_c = (torch.full((m, n), float("nan"), device="cuda") for _ in range(2))
    tessera = Tessera(context(precision), a, b, c, binding.RIGHT if packed else None)
    peer = (torch_tf32 if precision == "tf32" else torch_float32)(a, b, peer_c)
    flops = 2.0 * m * n * k
    (ours, theirs), state = interleaved([tessera, peer], seconds, flops)
    (error, worst), (peer_error, peer_worst) = errors.measure([c, peer_c], a, b)
    record = {
        "what": "product", "problem": problem, "m": m, "n": n, "k": k, "layout": layout, "data": data,
        "precision": precision, "packed": packed, "peer": "torch-tf32" if precision == "tf32" else "torch-fp32",
        "tessera_ms": round(1e3 * ours.median, 5), "peer_ms": round(1e3 * theirs.median, 5),
        "speedup": round(theirs.median / ours.median, 3), "tflops": round(flops / ours.median / 1e12, 2),
        "peer_tflops": round(flops / theirs.median / 1e12, 2), "error": float(f"{error:.3e}"),
        "peer_error": float(f"{peer_error:.3e}"), "worst_units": round(worst, 2),
        "peer_worst_units": round(peer_worst, 2), "kernel": tessera.kernel, "samples": len(ours.samples),
        "spread": round(ours.spread, 4), "peer_spread": round(theirs.spread, 4), **state
    }
    return [record], (
        f"{problem:16s} {m:5d} {n:5d} {k:5d} {layout} {data:5s} {precision}{' packed' if packed else '':7s} "
        f"{record['tessera_ms']:9.4f} ms  {record['tflops']:6.1f} TF  torch {record['peer_tflops']:6.1f} TF  "
        f"{record['speedup']:5.2f} x  error {error:.2e} (torch {peer_error:.2e})")


def measure_packing(seconds, problem, m, n, k, layout, side):
    tensor = make(m, n, k, layout, "rand")[side]
    source = torch.rand(-(-tensor.numel() // 1024) * 1024, device="cuda")  # an odd number would be copied slowly
    target = torch.empty_like(source)
    (packing, copying), state = interleaved([Packing(context("fp32"), side, tensor), lambda: target.copy_(source)],
                                            seconds, SHORT)
    record = {
        "what": "packing", "problem": problem, "operand": "ab"[side], "layout": layout[side],
        "rows": m if side == 0 else n, "k": k, "precision": "fp32", "pack_us": round(1e6 * packing.median, 2),
        "copy_us": round(1e6 * copying.median, 2), "of_copy": round(copying.median / packing.median, 3),
        "samples": len(packing.samples), "spread": round(packing.spread, 4), "copy_spread": round(copying.spread, 4),
        **state
    }
    return [
        record
    ], (f"packing {problem}'s {record['operand']}: {record['pack_us']:.1f} us, a copy {record['copy_us']:.1f} us: "
        f"{record['of_copy']:.2f} of its rate")


def summary(records):
    for precision, packed in (("ieee", False), ("fp32", False), ("fp32", True), ("tf32", False)):
        ratios = [
            r["speedup"] for r in records if r["what"] == "product" and r["precision"] == precision and
            r["packed"] == packed and r["data"] == "rand" and r["problem"] in {p[0] for p in REFERENCE}
        ]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(f"{precision}{', one operand packed' if packed else ''}: geometric mean {mean:.2f} x "
                  f"over the reference problems, least {min(ratios):.2f} x")
    packing = [r for r in records if r["what"] == "packing"]
    if packing:
        print("packing, of a copy's rate: " + "  ".join(f"{r['problem']} {r['operand']}: {r['of_copy']:.2f}"
                                                        for r in packing))
    for precision in binding.PRECISIONS:
        squares = [r for r in records if r["problem"] == "squares" and r["precision"] == precision]
        if squares:
            print(f"{precision} squares: " + "  ".join(f"{r['m']}: {r['speedup']:.2f}"
                                                       for r in sorted(squares, key=lambda r: r["m"])))
    worse = [r for r in records if "error" in r and r["error"] > r["peer_error"]]
    for r in worse:
        print(f"less accurate than torch: {r['problem']} {r['m']} {r['layout']} {r['data']} {r['precision']}: "
              f"{r['error']} > {r['peer_error']}")


def jobs_of(options):
    jobs = []
    for precision in options.precision or binding.PRECISIONS:
        if options.only != "squares":
            jobs += [["product", *problem, data, precision, False] for data in ("rand", "randn")
                     for problem in REFERENCE]
            if precision == "fp32":
                jobs += [["product", *problem, "rand", precision, True] for problem in REFERENCE]
                jobs += [["packing", *problem, side] for problem in REFERENCE for side in (binding.LEFT, binding.RIGHT)]
        if options.only != "reference":
            jobs += [["product", "squares", size, size, size, "nn", "rand", precision, False]
                     for size in SQUARES[precision]]
    return jobs


def main():
    parser = argparse.ArgumentParser(description="Tessera beside torch.matmul on this machine's GPU")
    parser.add_argument("--precision", action="append", choices=binding.PRECISIONS,
                        help="only this one (may be repeated)")
    parser.add_argument("--only", choices=("reference", "squares"), help="only these problems")
    parser.add_argument("--seconds", type=float, default=0.4, help="time to spend on each measurement (default 0.4)")
    parser.add_argument("--save", metavar="FILE", nargs="?", const="",
                        help="write the records there as JSON; without FILE to bench/results/MACHINE.json")
    options = parser.parse_args()
    here = machine()
    save = results.default_path("", here["gpu"]) if options.save == "" else options.save

    def measure(job):
        kind, *of = job
        return (measure_product if kind == "product" else measure_packing)(options.seconds, *of)

    jobs, run = jobs_of(options), results.Run(save, here, options.seconds)
    records = run.measure(jobs, lambda job: options.seconds + 0.3, measure)
    summary(records)
    run.finish(records)


if __name__ == "__main__":
    main()
