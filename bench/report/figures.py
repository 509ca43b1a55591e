"""Figures, each with a sentence, a chart and the table behind it: those that GPUs and CPUs have in common. gpu.py and
cpu.py have the others.

Nothing here knows how a chart or a page is written: charts.py and page.py do.
"""

import statistics

import charts
from charts import Axis, Series, shown
from harness.data import FAMILIES, REFERENCE as PROBLEMS

REFERENCE = [problem[0] for problem in PROBLEMS]
CAPTIONS = {"uniform": "uniform in [0, 1)", "normal": "standard normal", "wide": "exponents from -60 to 60"}


class Figure:
    def __init__(self, name, title, says, panels, table, note="", series=(), reading=""):
        """panels: (caption, function from width to SVG); table: (heads, rows); series: the legend of narrow charts;
        reading: how to read the chart, said only beside it."""
        self.name, self.title, self.says, self.note, self.reading = name, title, says, note, reading
        self.panels, self.table, self.series = panels, table, series


def of(records, what, **fields):
    return [r for r in records if r["what"] == what and all(r.get(name) == value for name, value in fields.items())]


def ratio(x):
    return f"{x:.2f} x"


def span(ratios, digits=2):
    return f"{min(ratios):.{digits}f} to {max(ratios):.{digits}f} x"


def size(n):
    return f"{n:.0f}"


def shape(r):
    return f"{r['m']} x {r['n']} x {r['k']} {r['layout']}"


def counted(threads):
    return f"{threads} thread{'s' * (threads > 1)}"


def depth(k):
    return f"{k / 1024:.0f}k" if k >= 1024 else f"{k:.0f}"


def ordered(names):
    """Tessera first, then the peers as charts.SERIES has them."""
    known = list(charts.SERIES)
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))


def mean(values):
    return statistics.geometric_mean(values)


def intensity(r):
    """Operations for each byte of the three matrices, read or written once."""
    return 2.0 * r["m"] * r["n"] * r["k"] / (4.0 * (r["m"] * r["k"] + r["k"] * r["n"] + r["m"] * r["n"]))


def frontier_figure(means, points, unit, note, reading=""):
    """means: (speed, error) of each library; points: (library, problem, speed, error), drawn small beside them."""
    if not means:
        return None
    best = sorted((error, speed, name) for name, (speed, error) in means.items()
                  if not any(s >= speed and e <= error and (s, e) != (speed, error) for s, e in means.values()))
    names = [name for _, _, name in best]

    def draw(width):
        every = [*means.values(), *((speed, error) for _, _, speed, error in points)]
        x = Axis("relative error, smaller to the left", [error for _, error in every], base=10, room=0.12)
        y = Axis(f"{unit}, logarithmic", [speed for speed, _ in every], base=10, room=0.12)
        marks = [(name, error, speed, f"{shown(name)}, {problem}: {speed:.1f} {unit}, error {error:.1e}", False)
                 for name, problem, speed, error in points]
        marks += [(name, error, speed, f"{shown(name)}: {speed:.1f} {unit}, error {error:.2e}", True)
                  for name, (speed, error) in means.items()]
        return charts.scatter(marks, x, y, width, [(error, speed) for error, speed, _ in best],
                              label="speed against accuracy")

    rows = [[shown(name), f"{speed:.1f}", f"{error:.2e}", "yes" if name in names else ""]
            for name, (speed, error) in means.items()]
    return Figure("frontier", "Speed against accuracy",
                  f"No library is better in both speed and error than {', '.join(map(shown, names))}.", [("", draw)],
                  (["library", unit, "relative error", "nobody better in both"], rows), note,
                  reading=f"Up and to the left is better{reading}; the line joins the best.")


def roofline_figure(series, memory, memory_unit, flat, unit, says, ceilings, note):
    """series: (intensity, rate, what was multiplied) of each; memory: the slope; flat: other ceilings, the highest
    first; ceilings: the records of all of them."""
    top = next(iter(flat.values()))

    def draw(width):
        every = [point for points in series.values() for point in points]
        x = Axis("flop for each byte of A, B and C", [min(every)[0] / 2, max(every)[0] * 1.5], base=10)
        y = Axis(f"{unit}, logarithmic", [min(rate for _, rate, _ in every), top], base=10, room=0.08)
        begin = max(x.low, y.low / memory)
        rules = [("", [(begin, begin * memory), (top / memory, top)])] if top / memory > begin else []
        rules += [(f"{name} {value:.0f}", [(max(x.low, value / memory), value), (x.high, value)])
                  for name, value in flat.items()]
        marks = [Series(name, [(i, rate, f"{shown(name)}, {what}: {rate:.1f} {unit} at {i:.0f} flop a byte")
                               for i, rate, what in points]) for name, points in series.items()]
        return charts.lines(marks, x, y, width, label="roofline", rules=rules, joined=False)

    rows = [[r["name"] + (f", {counted(r['threads'])}" if "threads" in r else ""), f"{r['value']:g} {r['unit']}",
             r["origin"]] for r in ceilings]
    return Figure("roofline", "Roofline", says, [("", draw)], (["ceiling", "height", "how it was measured"], rows),
                  note, list(series) if len(series) > 1 else (), f"The slope is memory, {memory:g} {memory_unit}.")


def accuracy_figures(records, edge_note):
    found = of(records, "accuracy")
    if not found:
        return []
    names, depths = ordered(r["library"] for r in found), sorted({r["k"] for r in found})
    by = {(r["library"], r["data"], r["k"]): r for r in found}
    families = [family for family in FAMILIES if any(r["data"] == family for r in found)]

    def panel(family, field, label, bound):
        values = [r[field] for r in found if r["data"] == family and r[field] > 0]
        series = [
            Series(name, [(k, by[name, family, k][field] or
                           None, f"{shown(name)}, {family}, K = {k}: {describe(by[name, family, k])}")
                          for k in depths if (name, family, k) in by]) for name in names
        ]

        def draw(width):
            x = Axis("K", depths, base=2, text=depth, ticks=depths)
            y = Axis(label, values + ([depths[-1] + 2.0] if bound else []), base=10, room=0.08)
            rules = [("", [(k, k + 2.0) for k in depths if y.low <= k + 2.0])] if bound else []
            return charts.lines(series, x, y, width, 280, named=False, rules=rules, label=f"{label}, {family}")

        return draw

    def describe(r):
        return f"relative error {r['error']:.2e}, worst element {r['worst_units']:.3g} of {r['k'] + 2} units"

    def table(field, form):
        return (["data", "K", *map(shown, names)], [[
            family,
            str(k), *(form(by[name, family, k][field]) if (name, family, k) in by else "" for name in names)
        ] for family in families for k in depths])

    return [
        Figure("accuracy", "Accuracy against K", accuracy_sentence(by, families, depths, names),
               [(CAPTIONS[family], panel(family, "error", "relative error", False)) for family in families],
               table("error", lambda v: f"{v:.2e}"), f"Relative Frobenius error against float64{edge_note}.", names),
        Figure(
            "worst", "The worst element", bound_sentence(found),
            [(CAPTIONS[family], panel(family, "worst_units", "units of 2^-24 |A||B|", True)) for family in families],
            table("worst_units", lambda v: f"{v:.3g}"),
            "abs(C - AB) of the worst element, in units of 2^-24 (abs(A) abs(B)). The contract of ieee and fp32 allows "
            "K + 2 of them.", names, reading="The line is float32's bound.")
    ]


def accuracy_sentence(by, families, depths, names):
    """Between which factors the first peer's error lies above Tessera's, family by family."""
    peer = next((name for name in ("torch float32", "openblas", "onednn", "mkl", "blis") if name in names), None)
    ours = "tessera fp32" if "tessera fp32" in names else "tessera"
    if not peer or ours not in names:
        return "Against float64."
    parts = []
    for family in families:
        ratios = [
            by[peer, family, k]["error"] / by[ours, family, k]["error"] for k in depths
            if (ours, family, k) in by and (peer, family, k) in by
        ]
        if ratios:
            parts.append(f"{span(ratios, 1)} on "
                         f"{'wide exponents' if family == 'wide' else family + ' data'}")
    return f"{shown(peer)}'s error beside {shown(ours)}'s: {', '.join(parts)}."


def bound_sentence(found):
    broken = sorted({r["library"] for r in found if r["worst_units"] > r["k"] + 2})
    kept = [name for name in ordered(r["library"] for r in found) if name not in broken]
    promised = [name for name in broken if "tf32" not in name.lower() or "x3" in name]
    return (f"Float32's bound is kept by {', '.join(map(shown, kept))}" +
            (f"; broken by {', '.join(map(shown, broken))}" if broken else "") +
            (", which do not promise it." if broken and not promised else "."))


def overhead_figure(records, unit_note, says):
    calls = of(records, "call")
    if not calls:
        return None
    names, sizes = ordered(r["library"] for r in calls), sorted({r["m"] for r in calls})
    by = {(r["library"], r["m"]): r for r in calls}
    series = [
        Series(name, [(m, by[name, m]["host_us"], f"{shown(name)}, {m} x {m} x {m}: {by[name, m]['host_us']:.3g} us")
                      for m in sizes if (name, m) in by]) for name in names
    ]

    def draw(width):
        x, values = Axis("M = N = K", sizes, base=2, text=size, ticks=sizes), [r["host_us"] for r in calls]
        if max(values) / min(values) > 20:
            return charts.lines(series, x, Axis("microseconds, logarithmic", values, base=10, room=0.05), width,
                                label="cost of a call")
        return charts.lines(series, x, Axis("microseconds", values, zero=True), width, label="cost of a call")

    return Figure("overhead", "The cost of a call", says(by, names, sizes), [("", draw)],
                  (["M = N = K", *(f"{shown(name)}, us" for name in names)
                    ], [[str(m), *(f"{by[name, m]['host_us']:.3g}" if (name, m) in by else "" for name in names)]
                        for m in sizes]), unit_note, names)


def threads_figure(records):
    rates = of(records, "library", layout="nn")
    rates = [r for r in rates if "threads" in r and r["m"] == r["n"] == r["k"]]
    counts = {}
    for r in rates:
        counts.setdefault(r["m"], set()).add(r["threads"])
    if not counts:
        return None
    edge = max(counts, key=lambda m: (len(counts[m]), m))
    rates = [r for r in rates if r["m"] == edge]
    names, threads = ordered(r["library"] for r in rates), sorted({r["threads"] for r in rates})
    if len(threads) < 2:
        return None
    by = {(r["library"], r["threads"]): r["gflops_best"] for r in rates}
    series = [
        Series(name, [(t, by[name, t], f"{shown(name)}, {counted(t)}: {by[name, t]:.0f} GFLOP/s")
                      for t in threads if (name, t) in by]) for name in names
    ]
    ceiling = {r["threads"]: r["value"] for r in of(records, "ceiling", name="multiply-adds") if "threads" in r}

    def draw(width):
        x = Axis("threads", threads, base=2, text=size, ticks=threads)
        y = Axis("GFLOP/s, logarithmic", [*by.values(), *(ceiling[t] for t in threads if t in ceiling)], base=10,
                 room=0.1)
        rules = ([("multiply-adds at most", [(t, ceiling[t]) for t in threads
                                             if t in ceiling])] if len(ceiling) > 1 else [])
        return charts.lines(series, x, y, width, label="scaling with threads", rules=rules)

    first, last = by["tessera", threads[0]], by["tessera", threads[-1]]
    return Figure(
        "threads", "Threads of the CPU engine",
        f"{last / first:.1f} x as fast with {threads[-1]} threads as with {threads[0]}.", [("", draw)],
        (["threads", *(f"{shown(name)}, GFLOP/s" for name in names)
          ], [[str(t), *(f"{by[name, t]:.0f}" if (name, t) in by else "" for name in names)] for t in threads]),
        f"M = N = K = {edge}, best of several interleaved samples. {rates[0].get('machine', '')}, "
        f"{rates[0].get('cores', '')} cores.", names)
