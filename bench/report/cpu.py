"""What the results of a CPU come to."""

import math

import charts
from charts import Axis, shown
from figures import (REFERENCE, Figure, accuracy_figures, counted, frontier_figure, intensity, lines_of, mean, of,
                     ordered, overhead_figure, ratio, roofline_figure, shape, size, span, table_of, threads_figure)

LOSSES = "Everything in these results in which another library is ahead by more than 5 %."
LARGE = 512  # the largest size of a product that headlines speak of, at least
METHOD = ("each library has a process of its own, stopped while others run, and goes round matrices that together are "
          "twice the last cache; rates are those of the best sample.")


def squares(records):
    """Of single products that come from memory."""
    return [
        r for r in of(records, "library", layout="nn")
        if r["m"] == r["n"] == r["k"] and r.get("problem") not in ("batches", "squares in the caches")
    ]


def size_figure(records):
    rates = squares(records)
    if len({r["m"] for r in rates}) < 3:
        return None
    threads = sorted({r["threads"] for r in rates if len({o["m"] for o in rates if o["threads"] == r["threads"]}) > 2})
    names, sizes = ordered(r["library"] for r in rates), sorted({r["m"] for r in rates})
    by = {(r["library"], (r["threads"], r["m"])): r["gflops_best"] for r in rates}

    def panel(count):
        here = {(name, m): value for (name, (t, m)), value in by.items() if t == count}
        series = lines_of(here, names, sizes, lambda m, rate: f"{m} x {m} x {m}, {counted(count)}: {rate:.1f} GFLOP/s")

        def draw(width):
            return charts.lines(series, Axis("M = N = K", sizes, base=2, text=size),
                                Axis("GFLOP/s", here.values(), zero=True), width, 300, named=False,
                                label=f"rate by size, {counted(count)}")

        return draw

    keys = [(count, m) for count in threads for m in sizes if any((name, (count, m)) in by for name in names)]
    most = {count: by.get(("tessera", (count, sizes[-1]))) for count in threads}
    says = (", ".join(f"{value:.0f} GFLOP/s with {counted(count)}"
                      for count, value in most.items() if value) + f" at {sizes[-1]}.")
    return Figure("sizes", "Speed by size", says, [(counted(count), panel(count)) for count in threads],
                  table_of(by, names, keys, ["threads", "M = N = K"], ", GFLOP/s", lambda gflops: f"{gflops:.1f}"),
                  "Square matrices from memory, not from the caches; best of several interleaved samples.", names)


def reference_figure(records):
    rates = [r for r in of(records, "library") if r.get("problem") in REFERENCE]
    if not rates:
        return None
    names = ordered(r["library"] for r in rates)
    groups, table = [], []
    for problem in REFERENCE:
        rows = {r["library"]: r for r in rates if r["problem"] == problem}
        if rows:
            best = {name: r["gflops_best"] for name, r in rows.items()}
            groups.append((problem, [(name, best[name], f"{best[name]:.0f}",
                                      f"{problem}, {shown(name)}: {best[name]:.1f} GFLOP/s") for name in names
                                     if name in best]))
            r = rows["tessera"]
            table.append([
                problem,
                shape(r), *(f"{best[name]:.1f}" if name in best else "" for name in names),
                ratio(r["ratio_to_best_peer"]) if "ratio_to_best_peer" in r else ""
            ])
    ratios = [r["ratio_to_best_peer"] for r in rates if "ratio_to_best_peer" in r]
    return Figure("reference", "Five reference problems",
                  f"{span(ratios)} the speed of the best other library." if ratios else "",
                  [("", lambda width: charts.bars(groups, width, "GFLOP/s", "rates on the reference problems"))],
                  (["problem", "M x N x K", *(f"{shown(name)}, GFLOP/s"
                                              for name in names), "beside the best other"], table),
                  f"{rates[0]['threads']} threads.")


def layout_figure(records):
    rates = compared(records)
    sizes = list(dict.fromkeys(
        (r["m"], r["n"], r["k"]) for r in rates if r["layout"] == "tt"))  # those measured in all layouts
    threads = sorted({r["threads"] for r in rates if r["layout"] == "tt"})
    rows, found = [], []
    for count in threads:
        for m, n, k in sizes:
            chosen = of(rates, "library", m=m, n=n, k=k, threads=count)
            rows.append((f"{m} x {n} x {k}, {counted(count)}",
                         [(r["layout"], r["ratio_to_best_peer"],
                           f"{shape(r)}, {counted(count)}: {r['gflops_best']:.1f} GFLOP/s, "
                           f"{ratio(r['ratio_to_best_peer'])} the best other") for r in chosen]))
            found += chosen
    rows = [row for row in rows if row[1]]
    if not rows:
        return None
    ratios = [r["ratio_to_best_peer"] for r in found]

    def draw(width):
        low, high = min(0.9, *ratios), max(1.1, *ratios)
        step = 0.05 if high - low < 0.5 else 0.25
        x = Axis("speed beside the best other library", [low, high],
                 ticks=[round(i * step, 2) for i in range(math.ceil(low / step),
                                                          math.floor(high / step) + 1)])
        return charts.dots(rows, x, width, "ratio to the best")

    return Figure(
        "layouts", "Transposes and odd sizes",
        f"{span(ratios)} the speed of the best other library, over all layouts of these shapes.", [("", draw)],
        (["M x N x K, layout", "threads", "GFLOP/s", "beside the best other"],
         [[shape(r), str(r["threads"]), f"{r['gflops_best']:.1f}", ratio(r["ratio_to_best_peer"])] for r in found]),
        "nn: A and B as they are; t: transposed.", ("nn", "tn", "nt", "tt"))


def rates_and_errors(records):
    """(library, rate of the largest square with all threads, error on uniform data at the nearest K)."""
    rates = squares(records)
    accuracy = of(records, "accuracy", data="uniform")
    if not rates or not accuracy:
        return [], 0, 0
    most = max(r["threads"] for r in rates)
    edge = max(r["m"] for r in rates if r["threads"] == most)
    nearest = min({r["k"] for r in accuracy}, key=lambda k: abs(k - edge))
    return ([(r["library"], r["gflops_best"], e["error"]) for r in rates if r["m"] == edge and r["threads"] == most
             for e in accuracy if e["library"] == r["library"] and e["k"] == nearest], edge, nearest)


def speed_against_accuracy(records):
    points, edge, nearest = rates_and_errors(records)
    return frontier_figure(
        {name: (speed, error) for name, speed, error in points}, [], "GFLOP/s",
        f"Speed at M = N = K = {edge} with all threads; error on uniform data at K = {nearest}. All of them are "
        "float32-accurate.")


def roofline(records):
    most = max((r["threads"] for r in of(records, "ceiling") if "threads" in r), default=0)
    ceilings = {r["name"]: r["value"] for r in of(records, "ceiling", threads=most)}
    rates = of(records, "library", library="tessera", threads=most)
    if not {"multiply-adds", "reading"} <= set(ceilings) or not rates:
        return None
    top, best = ceilings["multiply-adds"], max(r["gflops_best"] for r in rates)
    return roofline_figure({"tessera": sorted((intensity(r), r["gflops_best"], shape(r)) for r in rates)},
                           ceilings["reading"], "GB/s", {"multiply-adds": top}, "GFLOP/s",
                           f"At best {100 * best / top:.0f} % of the multiply-adds that the cores can do.",
                           of(records, "ceiling"), f"{most} threads.")


def overhead_sentence(by, names, sizes):
    peers = [name for name in names if name != "tessera"]
    best = [m for m in sizes if all(by["tessera", m] <= by[name, m] for name in peers if (name, m) in by)]
    return ((f"Quickest of all at {', '.join(map(str, best))}." if best else "Quickest at no size.")
            if peers else "Small products.")


def losses(records):
    """Everything in the results where a peer is ahead by more than 5 %: (in what, [(where, by how much), ...])."""
    said = {}
    for r in of(records, "library", library="tessera"):
        if r.get("ratio_to_best_peer", 1) < 0.95:
            peers = of(records, "library", m=r["m"], n=r["n"], k=r["k"], layout=r["layout"], threads=r["threads"],
                       problem=r["problem"])
            best = max((o for o in peers if o["library"] != "tessera"), key=lambda o: o["gflops_best"])
            said.setdefault(f"slower than {shown(best['library'])}",
                            []).append((f"{shape(r)}, {counted(r['threads'])}", ratio(r["ratio_to_best_peer"])))
    for r in of(records, "accuracy", library="tessera"):
        peers = [o for o in of(records, "accuracy", data=r["data"], k=r["k"]) if o["library"] != "tessera"]
        best = min(peers, key=lambda o: o["error"], default=None)
        if best and r["error"] > 1.05 * best["error"]:
            said.setdefault(f"less accurate than {shown(best['library'])}",
                            []).append((f"{r['data']} data, K = {r['k']}", f"{r['error']:.1e}, {best['error']:.1e}"))
    return said


def figures(records):
    note = "Microseconds of one product, one thread, matrices in the caches."
    return [
        figure for figure in [
            size_figure(records),
            reference_figure(records),
            layout_figure(records),
            speed_against_accuracy(records), *accuracy_figures(records, " of products of 128 x K and K x 128 matrices"),
            roofline(records),
            overhead_figure(records, note, overhead_sentence),
            threads_figure(records)
        ] if figure
    ]


def compared(records):
    """Tessera's records of large products that other libraries have, too."""
    return [r for r in of(records, "library", library="tessera")
            if "ratio_to_best_peer" in r and max(r["m"], r["n"], r["k"]) >= LARGE]


def headlines(records, _training):
    tiles, ratios = [], [r["ratio_to_best_peer"] for r in compared(records)]
    if ratios:
        best = "the speed of the best other library"
        tiles.append((ratio(mean(ratios)), f"{best}, mean over all products with a size of {LARGE} or more"))
        tiles.append((span(ratios), f"{best}, from the worst of these products to the best"))
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


def verdict(records):
    peers = ordered(r["library"] for r in of(records, "library") if r["library"] != "tessera")
    if not peers:
        return "No other library was found on this machine to compare with."
    said = (f"Tessera's CPU engine beside {', '.join(map(shown, peers))}, measured in turns on the same matrices. All "
            "compute in float32 and keep its error bound.")
    means = {}
    for peer in peers:
        ratios = [
            ours["gflops_best"] / theirs["gflops_best"]
            for ours in compared(records) for theirs in of(
                records, "library", library=peer, **{name: ours[name] for name in ("m", "n", "k", "layout", "threads")})
        ]
        if ratios:
            means[peer] = mean(ratios)
    if means:
        factors = ", ".join(f"{x:.2f} x the speed of {shown(peer)}" for peer, x in means.items())
        said += f" With a size of {LARGE} or more it has {factors}, on average."
    return said
