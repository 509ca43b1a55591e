"""Products of random shapes beside OpenBLAS, BLIS, oneDNN and MKL on the CPU: where is another library faster?

    bench/cpu/run BUILD --sweep [--count N] [--seed N] [--threads N]... [--peer NAME]... [--save FILE]

m, n and k are drawn on logarithmic scales from 1 to MOST, the layout at random; each product is measured with one
thread and with all. Libraries take turns as in compare.py, with operands in memory. A product below BEHIND is measured
again, each time for longer, and the last measurement counts.
"""

import argparse
import pathlib
import random
import statistics
import sys

import compare
from compare import LAYOUTS, Libraries, measure_rate
from harness import machine, results

BEHIND = 0.97
MOST = 4096


class Effort:
    least = 3

    def __init__(self, seconds):
        self.seconds = seconds


def drawn_shapes(count, seed):
    """(m, n, k, layout), the same for a seed."""
    numbers = random.Random(seed)
    return [(*(round(MOST**numbers.random()) for _ in range(3)), numbers.choice(LAYOUTS)) for _ in range(count)]


def measure(libraries, options, m, n, k, layout, threads):
    for again in range(options.again + 1):
        records, line = measure_rate(libraries, Effort(4**again * options.seconds), "sweep", m, n, k, layout, threads)
        ours = records[0]
        if ours["ratio_to_best_peer"] >= BEHIND:
            break
    best = max(records[1:], key=lambda r: r["gflops_best"])
    return [{
        "what": "cpu_sweep", "m": m, "n": n, "k": k, "layout": layout, "threads": threads, "seed": options.seed,
        "gflops_best": ours["gflops_best"], "peer": best["library"], "peer_gflops": best["gflops_best"],
        "ratio_to_best_peer": ours["ratio_to_best_peer"], "samples": ours["samples"]
    }], line


def summary(records):
    for threads in sorted({r["threads"] for r in records}):
        ratios = sorted(r["ratio_to_best_peer"] for r in records if r["threads"] == threads)
        print(f"{threads} threads: {len(ratios)} products, geometric mean {statistics.geometric_mean(ratios):.3f}, "
              f"{100 * sum(ratio >= BEHIND for ratio in ratios) / len(ratios):.1f} % at {BEHIND} or above, least "
              f"{ratios[0]:.2f}")


def main():
    parser = argparse.ArgumentParser(description="random products beside other libraries on the CPU")
    parser.add_argument("programs", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--compiler", default="unknown", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=300, help="shapes (default 300)")
    parser.add_argument("--seed", type=int, help="of the shapes (default: another each time)")
    parser.add_argument("--threads", action="append", type=int, metavar="N", help="default 1 and all")
    parser.add_argument("--peer", action="append", metavar="NAME", help="beside Tessera only this one")
    parser.add_argument("--precision", choices=compare.PRECISIONS, default="fp32")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each product at first (default 0.5)")
    parser.add_argument("--again", type=int, default=2, help="times that what is behind is measured again (default 2)")
    parser.add_argument("--save", metavar="FILE", help="write the records there as JSON")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {options.seed}")
    known = [name for name in compare.ways(options.precision, options.programs) if name != "tessera blas"]
    libraries = Libraries(options.programs / "bench-cpu-library",
                          ["tessera", *options.peer] if options.peer else known, options.precision)
    threads = options.threads or sorted({1, machine.cores()})
    if len(libraries.with_threads(threads[0])) < 2:
        sys.exit("bench/cpu: no other library is here")
    about = {**machine.cpu(), "compiler": options.compiler, "precision": options.precision,
             "peers": ", ".join(f"{library.name} {library.version}" for library in libraries.here[1:])}
    jobs = [(*shape, count) for count in threads for shape in drawn_shapes(options.count, options.seed)]
    run = results.Run(options.save, about, vars(options))
    try:
        records = run.measure(jobs, lambda job: options.seconds + 1e-10 * job[0] * job[1] * job[2],
                              lambda job: measure(libraries, options, *job))
    finally:
        libraries.end()
    summary(records)
    run.finish(records)


if __name__ == "__main__":
    try:
        main()
    except results.BadResults as error:
        sys.exit(f"bench/cpu: {error}")
