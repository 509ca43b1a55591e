"""What the results of random products come to."""

import statistics

from figures import bars_figure, mean, of, ratio

BEHIND = 0.95
NOISE = 1.02  # of the quotient of two errors of a sample
LARGE = 1e9  # multiply-adds
KINDS = {
    "any": "sides 32 to 8192", "large": "of these, over 1e9 multiply-adds", "thin": "m or n 2 to 64",
    "vector": "m or n 1", "short k": "k 1 to 96", "batches": "4 to 2000 of 8 to 512",
    "router": "m 1 to 1024, n 64 to 384, k 2048 to 7168",
}


def less_accurate(records, data):
    """The products whose error is above torch's, the worst first."""
    worse = [r for r in of(records, "sweep accuracy", data=data) if r["error"] > NOISE * r["torch_error"]]
    return sorted(worse, key=lambda r: r["torch_error"] / r["error"])


def losses(records, lose):
    for data, name in (("rand", "uniform"), ("randn", "normal")):
        for r in less_accurate(records, data):
            batch = f"{r['batch']} of " if r["batch"] > 1 else ""
            lose(f"fp32 is less accurate than torch float32 on random products of {name} data",
                 f"{batch}{r['m']} x {r['n']} x {r['k']} {r['layout']}", f"{r['error']:.2e}, {r['torch_error']:.2e}")


def figure(records):
    found = {kind: of(records, "sweep", kind=kind) for kind in KINDS}
    found["large"] = [r for r in found["any"] if r["m"] * r["n"] * r["k"] > LARGE]
    found = {kind: rows for kind, rows in found.items() if rows}
    if not found:
        return None
    groups, table = [], []
    for kind, rows in found.items():
        speedups = sorted(r["speedup"] for r in rows)
        behind = sum(speedup < BEHIND for speedup in speedups)
        said = f"{len(rows)} products: geometric mean {ratio(mean(speedups))}, least {ratio(speedups[0])}"
        groups.append((kind, [("tessera fp32", mean(speedups), ratio(mean(speedups)), f"{kind}: {said}")]))
        table.append([kind, KINDS[kind], str(len(rows)), ratio(mean(speedups)), ratio(statistics.median(speedups)),
                      ratio(speedups[0]), str(behind), f"{mean(r['limit_share'] for r in rows):.2f}"])
    shapes = len(of(records, "sweep"))
    ahead = mean(r["speedup"] for r in of(records, "sweep"))
    behind = sum(r["speedup"] < BEHIND for r in of(records, "sweep"))
    said = (f"Of {shapes} random products {behind} are below {BEHIND} x torch float32; the geometric mean is "
            f"{ratio(ahead)}.")
    if of(records, "sweep accuracy"):
        said += (f" The error is above torch's for {len(less_accurate(records, 'rand'))} of them on uniform data, for "
                 f"{len(less_accurate(records, 'randn'))} on normal data.")
    return bars_figure(
        "sweep", "Random products", said, groups,
        (["kind", "sizes", "products", "geometric mean", "median", "least", f"below {BEHIND} x", "share of the limit"],
         table),
        "fp32 beside torch.matmul with TF32 off, the plan choosing, GPU time from CUDA graphs, normal data, four "
        "layouts, odd sizes and padded rows included; one after the other, so that matrices of up to 50 MB stay in "
        "the L2 cache. What is below was measured again for longer. The limit is the copy rate or the tensor cores, "
        "without the two microseconds that a launch takes.")
