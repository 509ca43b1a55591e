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


def bars_figure(name, title, says, groups, table, note, unit="speedup over torch, which is the line"):
    """Bars beside what they are compared with, a line at 1."""
    draw = [("", lambda width: charts.bars(groups, width, unit, title, baseline=1.0))]
    return Figure(name, title, says, draw, table, note)


def lines_of(by, names, keys, words):
    """A series for each library of what `by` has: (library, key): value."""
    return [Series(name, [(key, by[name, key], f"{shown(name)}, {words(key, by[name, key])}")
                          for key in keys if (name, key) in by]) for name in names]


def table_of(by, names, keys, first, unit, form):
    """The same as a table with a column for each library."""
    cells = [[form(by[name, key]) if (name, key) in by else "" for name in names] for key in keys]
    heads = [*first, *(f"{shown(name)}{unit}" for name in names)]
    return heads, [[*map(str, key if isinstance(key, tuple) else (key,)), *row] for key, row in zip(keys, cells)]


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
    by = {(r["library"], (r["data"], r["k"])): r for r in found}
    families = [family for family in FAMILIES if any(r["data"] == family for r in found)]

    def words(r):
        return (f"{shown(r['library'])}, {r['data']}, K = {r['k']}: relative error {r['error']:.2e}, worst element "
                f"{r['worst_units']:.3g} of {r['k'] + 2} units")

    def panel(family, field, label, bound):
        values = [r[field] for r in found if r["data"] == family and r[field] > 0]
        rows = [[by[name, (family, k)] for k in depths if (name, (family, k)) in by] for name in names]
        series = [Series(name, [(r["k"], r[field] or None, words(r)) for r in row]) for name, row in zip(names, rows)]

        def draw(width):
            x = Axis("K", depths, base=2, text=depth, ticks=depths)
            y = Axis(label, values + ([depths[-1] + 2.0] if bound else []), base=10, room=0.08)
            rules = [("", [(k, k + 2.0) for k in depths if y.low <= k + 2.0])] if bound else []
            return charts.lines(series, x, y, width, 280, named=False, rules=rules, label=f"{label}, {family}")

        return draw

    def figure(name, title, says, field, label, form, note, reading=""):
        panels = [(CAPTIONS[family], panel(family, field, label, bool(reading))) for family in families]
        keys = [(family, k) for family in families for k in depths]
        table = table_of(by, names, keys, ["data", "K"], "", lambda r: form(r[field]))
        return Figure(name, title, says, panels, table, note, names, reading)

    return [
        figure("accuracy", "Accuracy against K", accuracy_sentence(by, families, depths, names), "error",
               "relative error", lambda v: f"{v:.2e}", f"Relative Frobenius error against float64{edge_note}."),
        figure("worst", "The worst element", bound_sentence(found), "worst_units", "units of 2^-24 |A||B|",
               lambda v: f"{v:.3g}", "abs(C - AB) of the worst element, in units of 2^-24 (abs(A) abs(B)). The "
               "contract of ieee and fp32 allows K + 2 of them.", "The line is float32's bound.")
    ]


def accuracy_sentence(by, families, depths, names):
    """Between which factors the first peer's error lies above Tessera's, family by family."""
    peer = next((name for name in ("torch float32", "openblas", "onednn", "mkl", "blis") if name in names), None)
    ours = "tessera fp32" if "tessera fp32" in names else "tessera"
    if not peer or ours not in names:
        return "Against float64."
    parts = []
    for family in families:
        ratios = [by[peer, key]["error"] / by[ours, key]["error"] for key in ((family, k) for k in depths)
                  if (ours, key) in by and (peer, key) in by]
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
    by = {(r["library"], r["m"]): r["host_us"] for r in calls}
    series = lines_of(by, names, sizes, lambda m, us: f"{m} x {m} x {m}: {us:.3g} us")

    def draw(width):
        x = Axis("M = N = K", sizes, base=2, text=size, ticks=sizes)
        wide = max(by.values()) / min(by.values()) > 20
        y = (Axis("microseconds, logarithmic", by.values(), base=10, room=0.05)
             if wide else Axis("microseconds", by.values(), zero=True))
        return charts.lines(series, x, y, width, label="cost of a call")

    return Figure("overhead", "The cost of a call", says(by, names, sizes), [("", draw)],
                  table_of(by, names, sizes, ["M = N = K"], ", us", lambda us: f"{us:.3g}"), unit_note, names)


def threads_figure(records):
    rates = [r for r in of(records, "library", layout="nn") if "threads" in r and r["m"] == r["n"] == r["k"]]
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
    series = lines_of(by, names, threads, lambda t, gflops: f"{counted(t)}: {gflops:.0f} GFLOP/s")
    ceiling = {r["threads"]: r["value"] for r in of(records, "ceiling", name="multiply-adds") if "threads" in r}

    def draw(width):
        most = [(t, ceiling[t]) for t in threads if t in ceiling]
        x = Axis("threads", threads, base=2, text=size, ticks=threads)
        y = Axis("GFLOP/s, logarithmic", [*by.values(), *(value for _, value in most)], base=10, room=0.1)
        rules = [("multiply-adds at most", most)] if len(ceiling) > 1 else []
        return charts.lines(series, x, y, width, label="scaling with threads", rules=rules)

    first, last = by["tessera", threads[0]], by["tessera", threads[-1]]
    return Figure(
        "threads", "Threads of the CPU engine",
        f"{last / first:.1f} x as fast with {threads[-1]} threads as with {threads[0]}.", [("", draw)],
        table_of(by, names, threads, ["threads"], ", GFLOP/s", lambda gflops: f"{gflops:.0f}"),
        f"M = N = K = {edge}, best of several interleaved samples. {rates[0].get('machine', '')}, "
        f"{rates[0].get('cores', '')} cores.", names)
