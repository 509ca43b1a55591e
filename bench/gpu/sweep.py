"""Products of random shapes beside torch float32 on one GPU: is there a shape for which torch is quicker?

    TESSERA_LIBRARY=build/libtessera.so PYTHONPATH=python/capi python3 bench/gpu/sweep.py --save

Shapes are drawn on logarithmic scales from a seed, for each kind of product; layouts, odd sizes and padded rows at
random. Both libraries multiply the same tensors into results of their own, GPU times from CUDA graphs, interleaved in
one process. A product below BEHIND x is measured again for longer. `limit_share` is the least time that the copy rate
and the tensor cores allow, divided by ours.

Errors of both are against float64, on uniform and on normal data, of some elements that lie all over C; of a small C,
of several products.
"""

import argparse
import random
import statistics
import sys

import torch

from peers import Tessera, context
from products import about, interleaved
from harness import results

BEHIND = 0.95
COPY_RATE, SPLIT_RATE = 4.3e12, 230e12  # bytes and float32 operations a second that the H200 reaches at most
MOST_BYTES = 2 << 30
LARGE = 1e9  # multiply-adds
DATA = {"rand": torch.Tensor.uniform_, "randn": torch.Tensor.normal_}
NOISE = 1.02  # of the quotient of two such errors
SIDE = 256  # rows, columns of C looked at
ELEMENTS, MOST_DRAWS = 1 << 14, 64  # of C, over several products if need be; products at most


def drawn(numbers, least, most):
    return round(least * (most / least)**numbers.random())


def any_shape(r):
    return 1, drawn(r, 32, 8192), drawn(r, 32, 8192), drawn(r, 32, 8192)


def thin(r):
    sides = [drawn(r, 2, 64), drawn(r, 128, 16384)]
    r.shuffle(sides)
    return 1, *sides, drawn(r, 128, 16384)


def vector(r):
    sides = [1, drawn(r, 64, 30000)]
    r.shuffle(sides)
    return 1, *sides, drawn(r, 64, 30000)


def short_k(r):
    return 1, drawn(r, 32, 8192), drawn(r, 32, 8192), drawn(r, 1, 96)


def batches(r):
    return drawn(r, 4, 2000), drawn(r, 8, 512), drawn(r, 8, 512), drawn(r, 8, 512)


def router(r):
    return 1, drawn(r, 1, 1024), drawn(r, 64, 384), drawn(r, 2048, 7168)


KINDS = {"any": any_shape, "thin": thin, "vector": vector, "short k": short_k, "batches": batches, "router": router}


def bytes_of(batch, m, n, k):
    return 4.0 * batch * (m * n + m * k + n * k)


def drawn_shapes(kinds, count, seed):
    """(kind, batch, m, n, k, layout, padding of rows), the same for a seed."""
    jobs = []
    for kind in kinds:
        numbers, made = random.Random(f"{seed} {kind}"), 0
        while made < count:
            shape = KINDS[kind](numbers)
            layout = numbers.choice(["nn", "nt", "tn", "tt"])
            padding = numbers.choice([0, 0, 0, 1, 4])
            if bytes_of(*shape) <= MOST_BYTES:
                jobs.append((kind, *shape, layout, padding))
                made += 1
    return jobs


def matrix(batch, rows, cols, transposed, padding):
    """batch x rows x cols, or rows x cols where batch is 1, stored transposed or not, with so many floats behind each
    line."""
    lines, length = (cols, rows) if transposed else (rows, cols)
    stored = torch.randn(*([batch] if batch > 1 else []), lines, length + padding, device="cuda")[..., :length]
    return stored.transpose(-1, -2) if transposed else stored


def make(job):
    _, batch, m, n, k, layout, padding = job
    a, b = matrix(batch, m, k, layout[0] == "t", padding), matrix(batch, k, n, layout[1] == "t", padding)
    outs = [torch.full((*([batch] if batch > 1 else []), m, n), float("nan"), device="cuda") for _ in range(2)]
    return a, b, outs


def worst_error(a, b, c):
    """The largest error in units of 2^-24 |A||B|, against float64, of some rows."""
    rows = slice(0, max(1, int(2e7 / (a[..., 0, :].numel() * b.shape[-1] + 1))))
    a, c = a[..., rows, :].double(), c[..., rows, :].double()
    exact, scale = a @ b.double(), a.abs() @ b.double().abs()
    return ((c - exact).abs() / (scale * 2.0**-24 + 1e-300)).max().item()


def spread(count):
    """Up to SIDE of so many indices, over all of them."""
    wanted = min(count, SIDE)
    return torch.arange(wanted, device="cuda") * count // wanted


def relative_errors(fill, a, b, functions, outs):
    """Relative Frobenius errors of what the functions make in outs, each from a and b filled anew."""
    rows, columns, batch = spread(a.shape[-2]), spread(b.shape[-1]), slice(0, 4) if a.dim() > 2 else slice(None)
    elements = len(rows) * len(columns) * (min(4, a.shape[0]) if a.dim() > 2 else 1)
    squares, norm = [0.0] * len(outs), 0.0
    for _ in range(max(1, min(MOST_DRAWS, ELEMENTS // elements))):
        fill(a), fill(b)
        exact = a[batch].index_select(-2, rows).double() @ b[batch].index_select(-1, columns).double()
        norm += exact.square().sum().item()
        for i, (function, out) in enumerate(zip(functions, outs)):
            function()
            made = out[batch].index_select(-2, rows).index_select(-1, columns).double()
            squares[i] += (made - exact).square().sum().item()
    return [(square / norm)**0.5 for square in squares]


def measure(seconds, seed, job):
    kind, batch, m, n, k, layout, padding = job
    a, b, (ours, theirs) = make(job)
    product = Tessera(context("fp32"), a, b, ours)
    functions = [product, lambda: torch.matmul(a, b, out=theirs)]
    flops = 2.0 * batch * m * n * k
    for again in (1, 4, 16):
        (tessera_time, torch_time), _ = interleaved(functions, again * seconds, flops)
        speedup = torch_time.median / tessera_time.median
        if speedup >= BEHIND:
            break
    limit = max(bytes_of(batch, m, n, k) / COPY_RATE, flops / SPLIT_RATE)
    record = {
        "what": "sweep", "kind": kind, "batch": batch, "m": m, "n": n, "k": k, "layout": layout, "padding": padding,
        "torch_us": round(1e6 * torch_time.median, 2), "tessera_us": round(1e6 * tessera_time.median, 2),
        "speedup": round(speedup, 3), "limit_share": round(limit / tessera_time.median, 3),
        "kernel": product.kernel, "worst_units": round(worst_error(a, b, ours), 2), "seed": seed
    }
    accuracy = []
    for data, fill in DATA.items():
        error, torch_error = relative_errors(fill, a, b, functions, [ours, theirs])
        accuracy.append({
            "what": "sweep accuracy", "kind": kind, "batch": batch, "m": m, "n": n, "k": k, "layout": layout,
            "padding": padding, "data": data, "error": float(f"{error:.3g}"),
            "torch_error": float(f"{torch_error:.3g}"), "kernel": product.kernel, "seed": seed
        })
    return [record, *accuracy], (f"{kind:8s} {batch:4d} of {m:5d} x {n:5d} x {k:5d} {layout} +{padding}: "
                                 f"{record['tessera_us']:9.2f} us, torch {record['torch_us']:9.2f}, {speedup:5.2f} x, "
                                 f"{record['kernel']}; error over torch's "
                                 + ", ".join(f"{r['error'] / (r['torch_error'] or 1):.2f}" for r in accuracy))


def summary(records):
    for data in DATA:
        of = [r for r in records if r["what"] == "sweep accuracy" and r["data"] == data]
        worse = sorted((r["error"] / r["torch_error"] for r in of if r["error"] > NOISE * r["torch_error"] > 0))
        print(f"{data}: error above torch's for {len(worse)} of {len(of)}, at most {max(worse, default=1):.2f} times")
    records = [r for r in records if r["what"] == "sweep"]
    groups = {kind: [r for r in records if r["kind"] == kind] for kind in KINDS}
    groups["large"] = [r for r in groups["any"] if r["m"] * r["n"] * r["k"] > LARGE]
    for kind, of in groups.items():
        speedups = [r["speedup"] for r in of]
        if speedups:
            print(f"{kind:8s} geometric mean {statistics.geometric_mean(speedups):5.2f} x, least {min(speedups):.2f}, "
                  f"{sum(s < BEHIND for s in speedups)} of {len(of)} below {BEHIND}; share of the limit "
                  f"{statistics.geometric_mean(r['limit_share'] for r in of):.2f}; worst error "
                  f"{max(r['worst_units'] / (r['k'] + 2) for r in of):.2f} of the bound")


def main():
    parser = argparse.ArgumentParser(description="random products beside torch float32 on this machine's GPU")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this one (may be repeated)")
    parser.add_argument("--count", type=int, default=120, help="shapes of each kind (default 120)")
    parser.add_argument("--seed", type=int, default=None, help="of the shapes (default: another each time)")
    parser.add_argument("--seconds", type=float, default=0.02, help="time to spend on each shape (default 0.02)")
    parser.add_argument("--save", metavar="FILE", nargs="?", const="",
                        help="write the records there as JSON; without FILE to bench/results/sweep-MACHINE.json")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {options.seed}", file=sys.stderr)
    torch.backends.cuda.matmul.allow_tf32 = False
    here = about()
    save = results.default_path("sweep", here["gpu"]) if options.save == "" else options.save
    jobs = drawn_shapes(options.kind or KINDS, options.count, options.seed)
    run = results.Run(save, here, vars(options))
    records = run.measure(jobs, lambda job: 1.0, lambda job: measure(options.seconds, options.seed, job))
    summary(records)
    run.finish(records)


if __name__ == "__main__":
    main()
