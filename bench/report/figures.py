"""What the results of one machine come to: figures, each with a sentence, a chart and the table behind it; headlines; and where Tessera loses.

Nothing here knows how a chart or a page is written: charts.py and page.py do.
"""

import math
import statistics

import charts
from charts import Axis, Series, shown
from harness.data import FAMILIES, REFERENCE as PROBLEMS

REFERENCE = [problem[0] for problem in PROBLEMS]
PRECISIONS = ("fp32", "ieee", "tf32")
PEER_NAMES = {"torch-fp32": "torch float32", "torch-tf32": "torch TF32"}
FLOAT32_ACCURATE = 3e-6  # relative error at most, on uniform data of the reference problems: float32 sums give 1e-7 to 1.2e-6, TF32 5e-5
UNITS = 2.0**-24


class Figure:
    def __init__(self, name, title, says, panels, table, note="", series=()):
        """panels: (caption, function from width to SVG); table: (heads, rows); series: the legend of narrow charts."""
        self.name, self.title, self.says, self.panels, self.table, self.note, self.series = name, title, says, panels, table, note, series


def of(records, what, **fields):
    return [r for r in records if r["what"] == what and all(r.get(name) == value for name, value in fields.items())]


def rate(gflops):
    return f"{gflops / 1e3:.1f} TFLOP/s" if gflops >= 1e4 else f"{gflops:.4g} GFLOP/s"


def ratio(x):
    return f"{x:.2f} x"


def size(n):
    return f"{n:.0f}"


def depth(k):
    return f"{k / 1024:.0f}k" if k >= 1024 else f"{k:.0f}"


def ordered(names):
    """Tessera first, then the peers as charts.SERIES has them."""
    known = list(charts.SERIES)
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))


# ---- A GPU --------------------------------------------------------------------------------------------------------------


def reference_products(records, precision, packed=False, data="rand"):
    found = {r["problem"]: r for r in of(records, "product", precision=precision, packed=packed, data=data) if r["problem"] in REFERENCE}
    return [found[problem] for problem in REFERENCE if problem in found]


def mean(values):
    return statistics.geometric_mean(values)


def reference_figure(records):
    rows = {(precision, packed): {r["problem"]: r for r in reference_products(records, precision, packed)}
            for precision, packed in (("fp32", False), ("fp32", True), ("ieee", False), ("tf32", False))}
    fp32 = rows["fp32", False]
    if not fp32:
        return None
    groups, table = [], []
    for problem, r in fp32.items():
        bars, ieee, tf32, packed = [], rows["ieee", False].get(problem), rows["tf32", False].get(problem), rows["fp32", True].get(problem)
        for name, record in (("tessera fp32", r), ("tessera ieee", ieee), ("tessera tf32", tf32)):
            if record:
                peer = PEER_NAMES.get(record["peer"], record["peer"])
                bars.append((name, record["speedup"], ratio(record["speedup"]), f"{problem}, {shown(name)}: {record['tessera_ms']:.3f} ms, {record['tflops']:.0f} "
                             f"TFLOP/s, {ratio(record['speedup'])} {peer} ({record['peer_ms']:.3f} ms); error {record['error']:.1e}, {peer}'s {record['peer_error']:.1e}"))
        groups.append((problem, bars))
        table.append([problem, f"{r['m']} x {r['n']} x {r['k']} {r['layout']}", f"{r['peer_ms']:.3f}", f"{r['tessera_ms']:.3f}", ratio(r["speedup"]),
                      ratio(packed["speedup"]) if packed else "", ratio(ieee["speedup"]) if ieee else "", ratio(tf32["speedup"]) if tf32 else "",
                      f"{r['peer_error']:.1e}", f"{r['error']:.1e}"])
    least, most = min(r["speedup"] for r in fp32.values()), max(r["speedup"] for r in fp32.values())
    return Figure("reference", "Five reference problems", f"At float32 accuracy {least:.1f} to {most:.1f} times as fast as torch.matmul's float32.",
                  [("", lambda width: charts.bars(groups, width, "times as fast as torch, which is the line", "speed-up on the reference problems",
                                                  baseline=1.0))],
                  (["problem", "M x N x K", "torch float32, ms", "fp32, ms", "fp32", "fp32, B packed beforehand", "ieee", "tf32 beside TF32", "torch's error",
                    "fp32's error"], table),
                  "KernelBench level 1, numbers 1, 2, 8, 16 and 18; uniform data; packing and everything else included. fp32 and ieee beside torch's float32, "
                  "tf32 beside its TF32.")


def size_figure(records):
    products = [r for r in of(records, "product", data="rand", packed=False, layout="nn") if r["m"] == r["n"] == r["k"]]
    rates = {}
    for r in products:
        rates.setdefault("tessera " + r["precision"], {})[r["m"]] = r["tflops"]
        # torch is measured beside each precision: beside fp32 where there is a choice.
        theirs = rates.setdefault(PEER_NAMES.get(r["peer"], r["peer"]), {})
        if r["precision"] != "ieee" or r["m"] not in theirs:
            theirs[r["m"]] = 2e-9 * r["m"]**3 / r["peer_ms"]
    for r in of(records, "library", problem="squares"):
        if r["library"].startswith("Triton") or r["library"] in ("CuPy", "JAX highest"):
            rates.setdefault(r["library"], {})[r["m"]] = r["gflops_median"] / 1e3
    if not rates:
        return None
    names, sizes = ordered(rates), sorted({m for values in rates.values() for m in values})
    series = [Series(name, [(m, rates[name][m], f"{shown(name)}, {m} x {m} x {m}: {rates[name][m]:.1f} TFLOP/s") for m in sorted(rates[name])]) for name in names]

    def draw(width):
        x = Axis("M = N = K", sizes, base=2, text=size)
        y = Axis("TFLOP/s, logarithmic", [v for values in rates.values() for v in values.values()], base=10, room=1.15)
        return charts.lines(series, x, y, width, label="rate by size")

    crossing = [r["m"] for r in sorted(products, key=lambda r: r["m"]) if r["precision"] == "fp32" and r["speedup"] >= 1]
    says = f"fp32 is ahead of torch's float32 from {crossing[0]} on." if crossing else "fp32 is behind torch's float32 at all sizes."
    return Figure("sizes", "Speed by size", says, [("", draw)],
                  (["M = N = K", *(f"{shown(name)}, TFLOP/s" for name in names)],
                   [[str(m), *(f"{rates[name][m]:.1f}" if m in rates[name] else "" for name in names)] for m in sizes]),
                  "Square matrices, uniform data. Products under about 10 GFLOP are timed from a CUDA graph, so that the GPU and not the host is seen.", names)


def library_points(records):
    """(library, problem, rate in TFLOP/s, error): from the survey of all libraries, else from what was measured beside torch."""
    surveyed = [r for r in of(records, "library") if r.get("problem") in REFERENCE and "error" in r]
    if surveyed:
        return [(r["library"], r["problem"], r["gflops_median"] / 1e3, r["error"]) for r in surveyed]
    points = {}
    for precision in PRECISIONS:
        for r in reference_products(records, precision):
            points["tessera " + precision, r["problem"]] = (r["tflops"], r["error"])
            points[PEER_NAMES.get(r["peer"], r["peer"]), r["problem"]] = (2e-9 * r["m"] * r["n"] * r["k"] / r["peer_ms"], r["peer_error"])
    return [(library, problem, *values) for (library, problem), values in points.items()]


def library_means(points):
    """Of each library over the problems: (rate, error), the geometric means."""
    return {name: (mean([p[2] for p in points if p[0] == name]), mean([p[3] for p in points if p[0] == name])) for name in ordered(p[0] for p in points)}


def frontier_of(means):
    """Those that nobody beats in both speed and error, the most accurate first."""
    best = [(error, speed, name) for name, (speed, error) in means.items()
            if not any(s >= speed and e <= error and (s, e) != (speed, error) for s, e in means.values())]
    return sorted(best)


def frontier_figure(records):
    points = library_points(records)
    if not points:
        return None
    means = library_means(points)
    best = frontier_of(means)

    def draw(width):
        x = Axis("relative error, smaller to the left", [p[3] for p in points], base=10, room=1.6)
        y = Axis("TFLOP/s, logarithmic", [p[2] for p in points], base=10, room=1.25)
        marks = [(name, error, speed, f"{shown(name)}, {problem}: {speed:.1f} TFLOP/s, error {error:.1e}", False) for name, problem, speed, error in points]
        marks += [(name, error, speed, f"{shown(name)}, mean of the five: {speed:.1f} TFLOP/s, error {error:.1e}", True) for name, (speed, error) in means.items()]
        return charts.scatter(marks, x, y, width, [(error, speed) for error, speed, _ in best], label="speed against accuracy")

    names = [name for _, _, name in best]
    ours = [name for name in names if name.startswith("tessera")]
    if ours == names:
        says = "Up and to the left is better: everything on the frontier is Tessera."
    else:
        says = "Up and to the left is better. On the frontier: " + ", ".join(map(shown, names)) + "."
    return Figure("frontier", "Speed against accuracy", says, [("", draw)],
                  (["library", "TFLOP/s", "relative error", "on the frontier"],
                   [[shown(name), f"{speed:.1f}", f"{error:.1e}", "yes" if name in names else ""] for name, (speed, error) in means.items()]),
                  "Large marks are geometric means over the five reference problems, small ones the problems; the line joins those that nobody beats in both.")


def roofline_figure(records):
    ceilings = {r["name"]: r for r in of(records, "ceiling")}
    products = [r for r in of(records, "product", data="rand", packed=False) if r["m"] * r["n"] * r["k"] >= 512**3]
    if not {"copy", "fp16 tensor cores"} <= set(ceilings) or not products:
        return None
    copy, fp16 = ceilings["copy"]["value"], ceilings["fp16 tensor cores"]["value"]
    flat = {"fp16 tensor cores": fp16, "three fp16 products": fp16 / 3}
    if "float32 units" in ceilings:
        flat["float32 units"] = ceilings["float32 units"]["value"]

    def intensity(r):
        return 2.0 * r["m"] * r["n"] * r["k"] / (4.0 * (r["m"] * r["k"] + r["k"] * r["n"] + r["m"] * r["n"]))

    names = ["tessera " + p for p in PRECISIONS if any(r["precision"] == p for r in products)]
    series = {name: sorted((intensity(r), r["tflops"], r) for r in products if "tessera " + r["precision"] == name) for name in names}

    def draw(width):
        every = [i for points in series.values() for i, _, _ in points]
        x = Axis("flop for each byte of A, B and C", [min(every) / 2, max(every) * 1.5], base=10)
        y = Axis("TFLOP/s, logarithmic", [min(t for points in series.values() for _, t, _ in points), fp16], base=10, room=1.3)
        begin = max(x.low, y.low / copy)
        rules = [("", [(begin, begin * copy), (fp16 / copy, fp16)] if fp16 / copy > begin else [])]
        rules = [rule for rule in rules if rule[1]]
        rules += [(f"{name} {value:.0f}", [(max(x.low, value / copy), value), (x.high, value)]) for name, value in flat.items()]
        marks = [Series(name, [(i, t, f"{shown(name)}, {r['m']} x {r['n']} x {r['k']} {r['layout']}: {t:.1f} TFLOP/s at {i:.0f} flop a byte") for i, t, r in points])
                 for name, points in series.items()]
        return charts.lines(marks, x, y, width, label="roofline", rules=rules, joined=False)

    table = [[r["name"], f"{r['value']:g} {r['unit']}", r["origin"]] for r in ceilings.values()]
    best = {name: max(t for _, t, _ in points) for name, points in series.items()}
    parts = []
    if "tessera fp32" in best:
        parts.append(f"fp32 reaches {100 * best['tessera fp32'] / flat['three fp16 products']:.0f} % of what three fp16 products allow")
    if "tessera ieee" in best and "float32 units" in flat:
        parts.append(f"ieee {100 * best['tessera ieee'] / flat['float32 units']:.0f} % of the float32 units")
    if "tessera tf32" in best:
        parts.append(f"tf32 {100 * best['tessera tf32'] / fp16:.0f} % of one fp16 product")
    return Figure("roofline", "Roofline", "At best " + ", ".join(parts) + ", packing included.", [("", draw)], (["ceiling", "height", "how it was measured"], table),
                  f"The slope is memory, {copy:g} TB/s. fp32 does three fp16 products for each float32 one.", names)


def accuracy_figures(records, edge_note):
    found = of(records, "accuracy")
    if not found:
        return []
    names, depths = ordered(r["library"] for r in found), sorted({r["k"] for r in found})
    by = {(r["library"], r["data"], r["k"]): r for r in found}
    families = [family for family in FAMILIES if any(r["data"] == family for r in found)]

    def panel(family, field, label, bound):
        values = [r[field] for r in found if r["data"] == family and r[field] > 0]
        series = [Series(name, [(k, by[name, family, k][field] or None, f"{shown(name)}, {family}, K = {k}: {describe(by[name, family, k])}")
                                for k in depths if (name, family, k) in by]) for name in names]

        def draw(width):
            x = Axis("K", depths, base=2, text=depth, ticks=depths)
            y = Axis(label, values + ([depths[-1] + 2.0] if bound else []), base=10, room=1.6)
            rules = [("float32's bound", [(k, k + 2.0) for k in depths if y.low <= k + 2.0])] if bound else []
            return charts.lines(series, x, y, width, 280, named=False, rules=rules, label=f"{label}, {family}")

        return draw

    def describe(r):
        return f"relative error {r['error']:.2e}, worst element {r['worst_units']:.3g} of {r['k'] + 2} units"

    def table(field, form):
        return (["data", "K", *map(shown, names)], [[family, str(k), *(form(by[name, family, k][field]) if (name, family, k) in by else "" for name in names)]
                                        for family in families for k in depths])

    captions = {"uniform": "uniform in [0, 1)", "normal": "standard normal", "wide": "exponents from -60 to 60"}
    return [Figure("accuracy", "Accuracy against K", accuracy_sentence(by, families, depths, names),
                   [(captions[family], panel(family, "error", "relative error", False)) for family in families],
                   table("error", lambda v: f"{v:.2e}"), f"Relative Frobenius error against float64{edge_note}.", names),
            Figure("worst", "The worst element", bound_sentence(found),
                   [(captions[family], panel(family, "worst_units", "units of 2^-24 |A||B|", True)) for family in families],
                   table("worst_units", lambda v: f"{v:.3g}"),
                   "abs(C - AB) of the element that is furthest off, in units of 2^-24 (abs(A) abs(B)). The contract of ieee and fp32 allows K + 2 of them, the line.", names)]


def accuracy_sentence(by, families, depths, names):
    """Between which factors the first peer's error lies above Tessera's, family by family."""
    peer = next((name for name in ("torch float32", "openblas", "onednn", "mkl", "blis") if name in names), None)
    ours = "tessera fp32" if "tessera fp32" in names else "tessera"
    if not peer or ours not in names:
        return "Against float64."
    parts = []
    for family in families:
        ratios = [by[peer, family, k]["error"] / by[ours, family, k]["error"] for k in depths if (ours, family, k) in by and (peer, family, k) in by]
        if ratios:
            parts.append(f"{min(ratios):.1f} to {max(ratios):.1f} times on {'wide exponents' if family == 'wide' else family + ' data'}")
    return f"The error of {shown(peer)} is that of {shown(ours)} {', '.join(parts)}."


def bound_sentence(found):
    broken = sorted({r["library"] for r in found if r["worst_units"] > r["k"] + 2})
    kept = [name for name in ordered(r["library"] for r in found) if name not in broken]
    promised = [name for name in broken if "tf32" not in name.lower() or "x3" in name]
    return (f"Float32's bound is kept by {', '.join(map(shown, kept))}" + (f"; broken by {', '.join(map(shown, broken))}" if broken else "")
            + (", which do not promise it." if broken and not promised else "."))


def overhead_figure(records, unit_note, says):
    calls = of(records, "call")
    if not calls:
        return None
    names, sizes = ordered(r["library"] for r in calls), sorted({r["m"] for r in calls})
    by = {(r["library"], r["m"]): r for r in calls}
    series = [Series(name, [(m, by[name, m]["host_us"], f"{shown(name)}, {m} x {m} x {m}: {by[name, m]['host_us']:.3g} us") for m in sizes if (name, m) in by])
              for name in names]

    def draw(width):
        x, values = Axis("M = N = K", sizes, base=2, text=size, ticks=sizes), [r["host_us"] for r in calls]
        if max(values) / min(values) > 20:
            return charts.lines(series, x, Axis("microseconds, logarithmic", values, base=10, room=1.3), width, label="cost of a call")
        return charts.lines(series, x, Axis("microseconds", values, zero=True), width, label="cost of a call")

    return Figure("overhead", "The cost of a call", says(by, names, sizes), [("", draw)],
                  (["M = N = K", *(f"{shown(name)}, us" for name in names)],
                   [[str(m), *(f"{by[name, m]['host_us']:.3g}" if (name, m) in by else "" for name in names)] for m in sizes]), unit_note, names)


def gpu_overhead_sentence(by, names, sizes):
    if ("torch float32", sizes[0]) not in by or ("tessera fp32", sizes[-1]) not in by:
        return "Small products."
    small, large = sizes[0], sizes[-1]
    return (f"At {small} Tessera's fp32 takes {by['tessera fp32', small]['host_us']:.0f} us of host time, torch {by['torch float32', small]['host_us']:.0f}; at {large}, "
            f"where fp32 is several launches, {by['tessera fp32', large]['host_us']:.0f} and {by['torch float32', large]['host_us']:.0f}.")


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
    series = [Series(name, [(t, by[name, t], f"{shown(name)}, {t} threads: {by[name, t]:.0f} GFLOP/s") for t in threads if (name, t) in by]) for name in names]
    ceiling = {r["threads"]: r["value"] for r in of(records, "ceiling", name="multiply-adds") if "threads" in r}

    def draw(width):
        x = Axis("threads", threads, base=2, text=size, ticks=threads)
        y = Axis("GFLOP/s, logarithmic", [*by.values(), *(ceiling[t] for t in threads if t in ceiling)], base=10, room=1.2)
        rules = [("multiply-adds at most", [(t, ceiling[t]) for t in threads if t in ceiling])] if len(ceiling) > 1 else []
        return charts.lines(series, x, y, width, label="scaling with threads", rules=rules)

    first, last = by["tessera", threads[0]], by["tessera", threads[-1]]
    return Figure("threads", "Threads of the CPU engine", f"{last / first:.1f} times as fast with {threads[-1]} threads as with {threads[0]}.", [("", draw)],
                  (["threads", *(f"{shown(name)}, GFLOP/s" for name in names)],
                   [[str(t), *(f"{by[name, t]:.0f}" if (name, t) in by else "" for name in names)] for t in threads]),
                  f"M = N = K = {edge}, best of several interleaved samples. {rates[0].get('machine', '')}, {rates[0].get('cores', '')} cores.", names)


def modules_figure(records):
    modules = of(records, "module")
    if not modules:
        return None
    by = {(r["problem"], r["precision"]): r for r in modules}
    numbers = list(dict.fromkeys(r["problem"] for r in modules))
    groups = [(f"{number} {by[number, 'fp32']['name'].replace('_', ' ')}",
               [("tessera " + precision, by[number, precision]["speedup"], ratio(by[number, precision]["speedup"]),
                 f"module {number}, {precision}: {by[number, precision]['ms']:.3g} ms, torch {by[number, precision]['torch_ms']:.3g} ms")
                for precision in ("fp32", "ieee") if (number, precision) in by]) for number in numbers if (number, "fp32") in by]
    five = [by[number, "fp32"]["speedup"] for number in (1, 2, 8, 16, 18) if (number, "fp32") in by]
    return Figure("modules", "The modules, as KernelBench measures them",
                  f"{mean(five):.2f} times eager torch on problems 1, 2, 8, 16 and 18." if len(five) == 5 else "Beside eager torch.",
                  [("", lambda width: charts.bars(groups, width, "times as fast as eager torch, which is the line", "modules", baseline=1.0))],
                  (["problem", "precision", "ms", "torch, ms", "times as fast", "error", "torch's error"],
                   [[f"{r['problem']} {r['name']}", r["precision"], f"{r['ms']:.3g}", f"{r['torch_ms']:.3g}", ratio(r["speedup"]), f"{r['error']:.1e}",
                     f"{r['torch_error']:.1e}"] for r in modules]),
                  f"KernelBench at {modules[0].get('kernelbench_commit', 'unknown')}: its own timing, the L2 cache flushed before each call, through Python.")


def gpu_losses(records):
    """Everything in the results where a peer is ahead: (in what, [where, ...])."""
    said = {}

    def lose(what, where):
        said.setdefault(what, []).append(where)

    for r in of(records, "product"):
        peer, ours = PEER_NAMES.get(r["peer"], r["peer"]), r["precision"] + (" with B packed" if r["packed"] else "")
        where = f"{r['m']} x {r['n']} x {r['k']}" if len({r["m"], r["n"], r["k"]}) > 1 else str(r["m"])
        where += f" {r['layout']}" if r["layout"] != "nn" else ""
        if r["speedup"] < 1:
            lose(f"{ours} is slower than {peer}", f"{where} ({ratio(r['speedup'])})")
        if r["error"] > r["peer_error"]:
            lose(f"{ours} is less accurate than {peer}", f"{where}{', normal data' if r['data'] == 'randn' else ''} ({r['error']:.2e}, {r['peer_error']:.2e})")
    for r in of(records, "call"):
        peers = [o for o in of(records, "call", m=r["m"]) if o["library"] == "torch float32"]
        if r["library"] in ("tessera fp32", "tessera ieee") and peers and r["host_us"] > peers[0]["host_us"]:
            lose(f"{r['library'].split()[1]} takes more host time than torch float32", f"{r['m']} ({r['host_us']:.1f} us, {peers[0]['host_us']:.1f})")
    return said


def gpu_figures(records):
    return [figure for figure in [
        frontier_figure(records), reference_figure(records), size_figure(records), *accuracy_figures(records, " of products of 1024 x K and K x 1024 matrices"),
        roofline_figure(records), overhead_figure(records, "Host time to queue one product, through ctypes for Tessera.", gpu_overhead_sentence),
        modules_figure(records), threads_figure(records)] if figure]


def gpu_headlines(records, training):
    """(figure, what it is)."""
    tiles, fp32, tf32 = [], reference_products(records, "fp32"), reference_products(records, "tf32")
    if fp32:
        tiles.append((f"{mean([r['speedup'] for r in fp32]):.2f} x", "as fast as torch.matmul in float32, at float32 accuracy"))
        less = mean([r["peer_error"] / r["error"] for r in fp32])
        tiles.append((f"{less:.1f} x", "smaller error than torch's float32, against float64") if less >= 1 else
                     (f"{1 / less:.1f} x", "torch's float32 error, against float64"))
    means = library_means(library_points(records))
    peers = {name: speed for name, (speed, error) in means.items() if not name.startswith(("tessera", "torch")) and error < FLOAT32_ACCURATE}
    if peers and "tessera fp32" in means:
        best = max(peers, key=peers.get)
        tiles.append((f"{means['tessera fp32'][0] / peers[best]:.1f} x", f"as fast as the best other float32-accurate library here, {shown(best)}"))
    if tf32:
        tiles.append((f"{mean([r['speedup'] for r in tf32]):.2f} x", "as fast as torch's TF32, where TF32 is enough"))
    if training:
        tiles.append((f"{training['runs'][-1]['speedup']:.2f} x", "as fast training a GPT-2 in float32, with one line changed"))
    return tiles


def gpu_verdict(records):
    fp32 = reference_products(records, "fp32")
    if not fp32:
        return "What was measured of Tessera on this machine."
    speed, error = mean([r["speedup"] for r in fp32]), mean([r["error"] / r["peer_error"] for r in fp32])
    behind = max((r["m"] for r in of(records, "product", precision="fp32", packed=False, data="rand") if r["problem"] == "squares" and r["speedup"] < 1), default=0)
    return (f"Tessera multiplies large float32 matrices {speed:.1f} times as fast as torch.matmul on this GPU"
            + (", and its results are nearer to the exact ones" if error < 1 else "") + ". It uses the tensor cores without giving up float32's error bound."
            + (f" On squares up to {behind} torch is quicker." if behind else ""))


# ---- A CPU --------------------------------------------------------------------------------------------------------------


def cpu_ratios(records):
    return [r["ratio_to_best_peer"] for r in of(records, "library", library="tessera") if "ratio_to_best_peer" in r and r["m"] >= 512]


def cpu_size_figure(records):
    rates = [r for r in of(records, "library", layout="nn") if r["m"] == r["n"] == r["k"]]
    if len({r["m"] for r in rates}) < 3:
        return None
    threads = sorted({r["threads"] for r in rates if len({o["m"] for o in rates if o["threads"] == r["threads"]}) > 2})
    names, sizes = ordered(r["library"] for r in rates), sorted({r["m"] for r in rates})
    by = {(r["threads"], r["library"], r["m"]): r["gflops_best"] for r in rates}

    def panel(count):
        series = [Series(name, [(m, by[count, name, m], f"{shown(name)}, {m} x {m} x {m}, {count} thread{'s' * (count > 1)}: {by[count, name, m]:.1f} GFLOP/s")
                                for m in sizes if (count, name, m) in by]) for name in names]
        values = [value for (t, _, _), value in by.items() if t == count]

        def draw(width):
            return charts.lines(series, Axis("M = N = K", sizes, base=2, text=size), Axis("GFLOP/s", values, zero=True), width, 300, named=False,
                                label=f"rate by size, {count} threads")

        return draw

    table = [[str(count), str(m), *(f"{by[count, name, m]:.1f}" if (count, name, m) in by else "" for name in names)]
             for count in threads for m in sizes if any((count, name, m) in by for name in names)]
    most = {count: by.get((count, "tessera", sizes[-1])) for count in threads}
    says = ", ".join(f"{value:.0f} GFLOP/s with {count} thread{'s' * (count > 1)}" for count, value in most.items() if value) + f" at {sizes[-1]}."
    return Figure("sizes", "Speed by size", says, [(f"{count} thread{'s' * (count > 1)}", panel(count)) for count in threads],
                  (["threads", "M = N = K", *(f"{shown(name)}, GFLOP/s" for name in names)], table),
                  "Square matrices from memory, not from the caches; best of several interleaved samples.", names)


def cpu_reference_figure(records):
    rates = [r for r in of(records, "library") if r.get("problem") in REFERENCE]
    if not rates:
        return None
    names = ordered(r["library"] for r in rates)
    groups, table = [], []
    for problem in REFERENCE:
        rows = {r["library"]: r for r in rates if r["problem"] == problem}
        if rows:
            groups.append((problem, [(name, rows[name]["gflops_best"], f"{rows[name]['gflops_best']:.0f}", f"{problem}, {shown(name)}: {rows[name]['gflops_best']:.1f} GFLOP/s")
                                     for name in names if name in rows]))
            r = rows["tessera"]
            table.append([problem, f"{r['m']} x {r['n']} x {r['k']} {r['layout']}", *(f"{rows[name]['gflops_best']:.1f}" if name in rows else "" for name in names),
                          ratio(r["ratio_to_best_peer"]) if "ratio_to_best_peer" in r else ""])
    ratios = [r["ratio_to_best_peer"] for r in rates if "ratio_to_best_peer" in r]
    return Figure("reference", "Five reference problems", f"{min(ratios):.2f} to {max(ratios):.2f} of the best library's rate." if ratios else "", [
        ("", lambda width: charts.bars(groups, width, "GFLOP/s", "rates on the reference problems"))],
                  (["problem", "M x N x K", *(f"{shown(name)}, GFLOP/s" for name in names), "of the best other"], table), f"{rates[0]['threads']} threads.")


def cpu_layout_figure(records):
    rates = [r for r in of(records, "library", library="tessera") if "ratio_to_best_peer" in r and r["m"] >= 512]
    if not rates:
        return None
    keys = list(dict.fromkeys((r["m"], r["n"], r["k"], r["layout"]) for r in rates))
    shapes = list(dict.fromkeys(key[:3] for key in keys if len([o for o in keys if o[:3] == key[:3]]) > 1))
    threads = sorted({r["threads"] for r in rates})
    threads = [threads[0], threads[-1]] if len(threads) > 1 else threads
    if not shapes:
        return None
    by = {(r["m"], r["n"], r["k"], r["layout"], r["threads"]): r for r in rates}
    found = [by[(*shape, layout, count)] for count in threads for shape in shapes for layout in ("nn", "tn", "nt", "tt") if (*shape, layout, count) in by]
    rows = []
    for count in threads:
        for shape in shapes:
            name = f"{shape[0]} x {shape[1]} x {shape[2]}"
            marks = [("tessera", r["ratio_to_best_peer"], r["layout"], f"{name} {r['layout']}, {count} thread{'s' * (count > 1)}: {r['gflops_best']:.1f} GFLOP/s, "
                      f"{r['ratio_to_best_peer']:.3f} of the best other") for r in found if (r["m"], r["n"], r["k"]) == shape and r["threads"] == count]
            if marks:
                rows.append((f"{name}, {count} thread{'s' * (count > 1)}", marks))
    ratios = [r["ratio_to_best_peer"] for r in found]

    def draw(width):
        low, high = min(0.9, *ratios), max(1.1, *ratios)
        step = 0.05 if high - low < 0.5 else 0.25
        x = Axis("of the best other library's rate", [low, high], ticks=[round(i * step, 2) for i in range(math.ceil(low / step), math.floor(high / step) + 1)])
        return charts.dots(rows, x, width, "ratio to the best")

    return Figure("layouts", "Transposes and odd sizes", f"Between {min(ratios):.2f} and {max(ratios):.2f} of the best other library, whatever the layout.", [
        ("", draw)],
                  (["M x N x K", "layout", "threads", "GFLOP/s", "of the best other"],
                   [[f"{r['m']} x {r['n']} x {r['k']}", r["layout"], str(r["threads"]), f"{r['gflops_best']:.1f}", f"{r['ratio_to_best_peer']:.3f}"] for r in found]),
                  "nn: A and B as they are; t: transposed.")


def cpu_points(records):
    """(library, rate of the largest square with all threads, error on uniform data at the nearest K)."""
    rates = [r for r in of(records, "library", layout="nn") if r["m"] == r["n"] == r["k"]]
    accuracy = of(records, "accuracy", data="uniform")
    if not rates or not accuracy:
        return [], 0, 0
    most = max(r["threads"] for r in rates)
    edge = max(r["m"] for r in rates if r["threads"] == most)
    nearest = min({r["k"] for r in accuracy}, key=lambda k: abs(k - edge))
    return ([(r["library"], r["gflops_best"], e["error"]) for r in rates if r["m"] == edge and r["threads"] == most
             for e in accuracy if e["library"] == r["library"] and e["k"] == nearest], edge, nearest)


def cpu_frontier_figure(records):
    points, edge, nearest = cpu_points(records)
    if not points:
        return None
    means = {name: (speed, error) for name, speed, error in points}
    best = frontier_of(means)

    def draw(width):
        x = Axis("relative error, smaller to the left", [p[2] for p in points], base=10, room=1.5)
        y = Axis("GFLOP/s", [p[1] for p in points], zero=True)
        return charts.scatter([(name, error, speed, f"{shown(name)}: {speed:.1f} GFLOP/s, error {error:.2e}", True) for name, speed, error in points], x, y, width,
                              [(error, speed) for error, speed, _ in best], label="speed against accuracy")

    return Figure("frontier", "Speed against accuracy", "Up and to the left is better. On the frontier: " + ", ".join(shown(name) for _, _, name in best) + ".", [("", draw)],
                  (["library", "GFLOP/s", "relative error"], [[shown(name), f"{speed:.1f}", f"{error:.2e}"] for name, (speed, error) in means.items()]),
                  f"Rate at M = N = K = {edge} with all threads; error on uniform data at K = {nearest}. All of them are float32-accurate.")


def cpu_roofline_figure(records):
    most = max((r["threads"] for r in of(records, "ceiling") if "threads" in r), default=0)
    ceilings = {r["name"]: r["value"] for r in of(records, "ceiling", threads=most)}
    rates = [r for r in of(records, "library", library="tessera", threads=most)]
    if not {"multiply-adds", "reading"} <= set(ceilings) or not rates:
        return None
    top, memory = ceilings["multiply-adds"], ceilings["reading"]

    def intensity(r):
        return 2.0 * r["m"] * r["n"] * r["k"] / (4.0 * (r["m"] * r["k"] + r["k"] * r["n"] + r["m"] * r["n"]))

    points = sorted((intensity(r), r["gflops_best"], f"{r['m']} x {r['n']} x {r['k']} {r['layout']}: {r['gflops_best']:.1f} GFLOP/s at {intensity(r):.0f} flop a byte")
                    for r in rates)

    def draw(width):
        x = Axis("flop for each byte of A, B and C", [points[0][0] / 3, points[-1][0] * 1.5], base=10)
        y = Axis("GFLOP/s, logarithmic", [min(p[1] for p in points), top], base=10, room=1.3)
        begin = max(x.low, y.low / memory)
        rules = [("", [(begin, begin * memory), (top / memory, top)])] if top / memory > begin else []
        rules.append((f"multiply-adds {top:.0f}", [(max(x.low, top / memory), top), (x.high, top)]))
        return charts.lines([Series("tessera", points)], x, y, width, label="roofline", rules=rules, joined=False)

    best = max(p[1] for p in points)
    return Figure("roofline", "Roofline", f"At best {100 * best / top:.0f} % of the multiply-adds that the cores can do.", [("", draw)],
                  (["ceiling", "height", "how it was measured"],
                   [[f"{r['name']}, {r['threads']} threads", f"{r['value']:g} {r['unit']}", r["origin"]] for r in of(records, "ceiling")]),
                  f"{most} threads. The slope is memory, {memory:g} GB/s.")


def cpu_overhead_sentence(by, names, sizes):
    peers = [name for name in names if name != "tessera"]
    best = [m for m in sizes if all(by["tessera", m]["host_us"] <= by[name, m]["host_us"] for name in peers if (name, m) in by)]
    return (f"Quickest of all at {', '.join(map(str, best))}." if best else "Quickest at no size.") if peers else "Small products."


def cpu_losses(records):
    """Everything in the results where a peer is ahead by more than a twentieth: (in what, [where, ...])."""
    said = {}
    for r in of(records, "library", library="tessera"):
        if r.get("ratio_to_best_peer", 1) < 0.95:
            peers = of(records, "library", m=r["m"], n=r["n"], k=r["k"], layout=r["layout"], threads=r["threads"])
            best = max((o for o in peers if o["library"] != "tessera"), key=lambda o: o["gflops_best"])
            said.setdefault(f"slower than {shown(best['library'])}", []).append(
                f"{r['m']} x {r['n']} x {r['k']} {r['layout']}, {r['threads']} thread{'s' * (r['threads'] > 1)} ({r['ratio_to_best_peer']:.2f})")
    for r in of(records, "accuracy", library="tessera"):
        peers = [o for o in of(records, "accuracy", data=r["data"], k=r["k"]) if o["library"] != "tessera"]
        best = min(peers, key=lambda o: o["error"], default=None)
        if best and r["error"] > 1.05 * best["error"]:
            said.setdefault(f"less accurate than {shown(best['library'])}", []).append(f"{r['data']} data, K = {r['k']} ({r['error']:.1e}, {best['error']:.1e})")
    return said


def cpu_figures(records):
    note = "Microseconds of one product, one thread, matrices in the caches."
    return [figure for figure in [
        cpu_size_figure(records), cpu_reference_figure(records), cpu_layout_figure(records), cpu_frontier_figure(records),
        *accuracy_figures(records, " of products of 128 x K and K x 128 matrices"), cpu_roofline_figure(records),
        overhead_figure(records, note, cpu_overhead_sentence), threads_figure(records)] if figure]


def cpu_headlines(records):
    tiles, ratios = [], cpu_ratios(records)
    if ratios:
        tiles.append((f"{mean(ratios):.2f}", "of the best library's rate, mean over all products from 512 up"))
        tiles.append((f"{min(ratios):.2f} to {max(ratios):.2f}", "of the best library's rate, from the worst product to the best"))
    best = max((r["gflops_best"] for r in of(records, "library", library="tessera")), default=0)
    if best:
        tiles.append((f"{best:.0f}", "GFLOP/s at best"))
    top = max((r["value"] for r in of(records, "ceiling", name="multiply-adds")), default=0)
    if best and top:
        tiles.append((f"{100 * best / top:.0f} %", "of what the cores' multiply-adds allow"))
    errors = [r["error"] for r in of(records, "accuracy", library="tessera", data="uniform")]
    if errors:
        tiles.append((f"{max(errors):.1e}", "largest relative error on uniform data, K up to 65536"))
    return tiles


def cpu_verdict(records):
    peers = ordered(r["library"] for r in of(records, "library") if r["library"] != "tessera")
    if not peers:
        return "No other library was found on this machine to compare with."
    return f"Tessera's CPU engine beside {', '.join(map(shown, peers))}, measured in turns on the same matrices. All compute in float32; all keep its error bound."
