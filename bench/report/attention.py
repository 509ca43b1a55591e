"""What the results of attention come to."""

from figures import bars_figure, mean, of, ratio, span

BEHIND = 0.95


def named(r):
    """An attention's sizes, as short as they can be said."""
    lengths = f"{r['q_length']}" if r["q_length"] == r["k_length"] else f"{r['q_length']} / {r['k_length']}"
    return f"{r['batch']} x {r['heads']} x {lengths} x {r['dim']}{' causal' if r['causal'] else ''}"


def passes(records, problem):
    """The forward and the backward pass of each shape, by its name."""
    found = {}
    for r in of(records, "attention", problem=problem):
        found.setdefault(named(r), {})[r["direction"]] = r
    return {name: pair for name, pair in found.items() if set(pair) == {"forward", "backward"}}


def swept(records):
    """The random shapes in one sentence, or nothing."""
    rows = of(records, "attention", problem="sweep")
    if not rows:
        return ""
    said = []
    for direction in ("forward", "backward"):
        speedups = [r["speedup"] for r in rows if r["direction"] == direction]
        taken = [r["speedup"] for r in rows if r["direction"] == direction and r["taken"]]
        if speedups:
            least = f", of those taken the slowest at {ratio(min(taken))}" if taken else ""
            said.append(f"{direction}: geometric mean {ratio(mean(speedups))}, "
                        f"{sum(speedup < BEHIND for speedup in speedups)} below {BEHIND} x{least}")
    shapes, taken = passes(records, "sweep"), sum(r["taken"] and r["direction"] == "forward" for r in rows)
    return (f"Of {len(shapes)} random shapes (heads 1 to 64, lengths 1 to 8192, dimensions 16 to 256) the drop-in "
            f"takes {taken}; {'; '.join(said)}.")


def figure(records):
    pairs = passes(records, "bars")
    if not pairs:
        return None
    groups, table = [], []
    for name, pair in pairs.items():
        bars, cells = [], []
        for direction, r in pair.items():
            said = (f"{name}, {direction}: {r['tessera_us']:.0f} us, torch {r['torch_us']:.0f} us; error "
                    f"{r['error']:.1e}, torch's {r['torch_error']:.1e}")
            bars.append((f"tessera {direction}", r["speedup"], ratio(r["speedup"]), said))
            cells += [f"{r['torch_us']:.0f}", f"{r['tessera_us']:.0f}", ratio(r["speedup"]),
                      f"{r['torch_error']:.1e} / {r['error']:.1e}"]
        groups.append((name, bars))
        table.append([name, *cells])
    ahead = {direction: [pair[direction]["speedup"] for pair in pairs.values()]
             for direction in ("forward", "backward")}
    says = ", ".join(f"{direction} {span(speedups, 1)}" for direction, speedups in ahead.items())
    heads = [f"{direction}: {column}" for direction in ahead
             for column in ("torch, us", "Tessera, us", "speedup", "error, torch / Tessera")]
    return bars_figure(
        "attention", "Attention", f"Speedup over torch's float32 attention: {says}.", groups,
        (["batch x heads x length x dimension", *heads], table),
        "Beside torch's efficient attention with TF32 off, normal data. Errors are relative Frobenius errors against "
        "float64 of a few heads, for gradients the largest of the three. " + swept(records))


def losses(records, lose):
    """Where torch is ahead although the drop-in takes the attention, or more accurate."""
    for r in of(records, "attention"):
        if r["taken"] and r["speedup"] < 1:
            lose(f"attention, {r['direction']}, is slower than torch float32", named(r), ratio(r["speedup"]))
        if r["error"] > r["torch_error"]:
            lose(f"attention, {r['direction']}, is less accurate than torch float32", named(r),
                 f"{r['error']:.2e}, {r['torch_error']:.2e}")
