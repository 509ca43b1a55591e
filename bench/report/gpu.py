"""What the results of a GPU come to."""

import attention
import charts
import models
import sweep
from charts import Axis, shown
from figures import (REFERENCE, Figure, accuracy_figures, bars_figure, frontier_figure, intensity, lines_of, mean, of,
                     ordered, overhead_figure, ratio, roofline_figure, shape, size, span, table_of)

PRECISIONS = ("fp32", "ieee", "tf32")
PEER_NAMES = {"torch-fp32": "torch float32", "torch-tf32": "torch TF32"}
# Relative error at most, on uniform data of the reference problems: float32 sums give 1e-7 to 1.2e-6, TF32 5e-5.
FLOAT32_ACCURATE = 3e-6
LOSSES = "Everything in these results in which another library is ahead."
METHOD = "times are medians of CUDA events, inputs lie on the GPU, and nothing is left out (packing, scales, fallback)."


def reference_products(records, precision, packed=False, data="rand"):
    found = {
        r["problem"]: r for r in of(records, "product", precision=precision, packed=packed, data=data)
        if r["problem"] in REFERENCE
    }
    return [found[problem] for problem in REFERENCE if problem in found]


def reference_figure(records):
    rows = {(precision, packed): {r["problem"]: r for r in reference_products(records, precision, packed)}
            for precision, packed in (("fp32", False), ("fp32", True), ("ieee", False), ("tf32", False))}
    fp32 = rows["fp32", False]
    if not fp32:
        return None
    groups, table = [], []
    for problem, r in fp32.items():
        bars = []
        for precision in PRECISIONS:
            record, name = rows[precision, False].get(problem), f"tessera {precision}"
            if record:
                peer = PEER_NAMES.get(record["peer"], record["peer"])
                said = (f"{problem}, {shown(name)}: {record['tessera_ms']:.3f} ms, {record['tflops']:.0f} TFLOP/s, "
                        f"{ratio(record['speedup'])} {peer} ({record['peer_ms']:.3f} ms); error {record['error']:.1e}, "
                        f"{peer}'s {record['peer_error']:.1e}")
                bars.append((name, record["speedup"], ratio(record["speedup"]), said))
        groups.append((problem, bars))
        speedups = [ratio(found[problem]["speedup"]) if problem in found else "" for found in rows.values()]
        table.append([problem, shape(r), f"{r['peer_ms']:.3f}", f"{r['tessera_ms']:.3f}", *speedups,
                      f"{r['peer_error']:.1e}", f"{r['error']:.1e}"])
    return bars_figure(
        "reference", "Five reference problems", f"At float32 accuracy {span([r['speedup'] for r in fp32.values()], 1)} "
        "as fast as torch.matmul's float32.", groups,
        (["problem", "M x N x K", "torch float32, ms", "fp32, ms", "fp32", "fp32, B packed beforehand", "ieee"] +
         ["tf32 beside TF32", "torch's error", "fp32's error"], table),
        "KernelBench level 1, numbers 1, 2, 8, 16 and 18; uniform data; packing and everything else included. fp32 and "
        "ieee beside torch's float32, tf32 beside its TF32.")


def sustained_speedups(records):
    return [r["torch_us"] / r["tessera_us"] for r in of(records, "sustained")]


def sustained_figure(records):
    rows = of(records, "sustained")
    if not rows:
        return None
    names = {"rand": "uniform", "randn": "normal"}
    groups, table = [], []
    for r in rows:
        name = f"{briefly(r)} {names[r['data']]}"
        said = (f"{name}: fp32 {r['tessera_us']:.0f} us, torch {r['torch_us']:.0f} us, {r['clock_mhz']} MHz, "
                f"{r['watts']} W")
        speedup = r["torch_us"] / r["tessera_us"]
        groups.append((name, [("tessera fp32", speedup, ratio(speedup), said)]))
        times = [f"{r[field]:.0f}" for field in ("torch_us", "tessera_us", "packed_us", "fp16_third_us")]
        share = f"{r['fp16_third_us'] / r['tessera_us']:.2f}"
        table.append([name, *times, ratio(speedup), share, str(r["clock_mhz"]), str(r["watts"])])
    speedups = sustained_speedups(records)
    return bars_figure(
        "sustained", "In a long run",
        f"Each library alone for seconds, fp32 is {span(speedups, 1)} as fast as torch's float32.", groups,
        (["product", "torch, us", "fp32, us", "B packed, us", "three fp16 products, us", "fp32 / torch"] +
         ["of three fp16 products", "MHz", "W"], table),
        "At its power limit the GPU lowers its clock, for Tessera more than for torch, whose float32 units draw less. "
        "Three fp16 products: three times cuBLAS's fp16 product of the size, rounded up to multiples of 8, which is "
        "what the power limit allows. Clock and power are those of fp32.")


def packing_figure(records):
    packed = list({(r["problem"], r["operand"]): r for r in of(records, "packing")}.values())  # the latest of each
    if not packed:
        return None
    groups, table = [], []
    for r in packed:
        along = "k" if (r["operand"] == "a") == (r["layout"] == "n") else "rows"
        name, moved = f"{r['problem']}: {r['operand'].upper()}", 8e-6 * r["rows"] * r["k"]
        said = f"{name}: packing {r['pack_us']:.1f} us, a copy {r['copy_us']:.1f} us"
        groups.append((name, [("tessera fp32", r["of_copy"], f"{r['of_copy']:.2f}", said)]))
        rates = [text for us in (r["pack_us"], r["copy_us"]) for text in (f"{us:.1f}", f"{moved / us:.2f}")]
        table.append([name, f"{r['rows']} x {r['k']}", along, *rates, f"{r['of_copy']:.2f}"])
    heads = ["operand", "rows x k", "contiguous along", "packing, us", "TB/s", "a copy, us", "TB/s"]
    return bars_figure(
        "packing", "Packing an operand",
        f"{span([r['of_copy'] for r in packed])} the speed of a copy, which reads and writes as many bytes.", groups,
        (heads + ["of the copy's speed"], table), "By itself, in turns with a copy of a matrix of the same size.",
        "of a copy's speed, which is the line")


def size_figure(records):
    products = [r for r in of(records, "product", data="rand", packed=False, layout="nn") if r["m"] == r["n"] == r["k"]]
    by = {}
    for r in products:
        by["tessera " + r["precision"], r["m"]] = r["tflops"]
        # torch is measured beside each precision: beside fp32 where there is a choice.
        theirs = PEER_NAMES.get(r["peer"], r["peer"]), r["m"]
        if r["precision"] != "ieee" or theirs not in by:
            by[theirs] = 2e-9 * r["m"]**3 / r["peer_ms"]
    for r in of(records, "library", problem="squares"):
        if r["library"].startswith("Triton") or r["library"] in ("CuPy", "JAX highest"):
            by[r["library"], r["m"]] = r["gflops_median"] / 1e3
    if not by:
        return None
    names, sizes = ordered(name for name, _ in by), sorted({m for _, m in by})
    series = lines_of(by, names, sizes, lambda m, tflops: f"{m} x {m} x {m}: {tflops:.1f} TFLOP/s")

    def draw(width):
        x = Axis("M = N = K", sizes, base=2, text=size)
        y = Axis("TFLOP/s, logarithmic", by.values(), base=10, room=0.05)
        return charts.lines(series, x, y, width, label="rate by size")

    crossing = sorted(r["m"] for r in products if r["precision"] == "fp32" and r["speedup"] >= 1)
    says = (f"fp32 is ahead of torch's float32 from {crossing[0]} on."
            if crossing else "fp32 is behind torch's float32 at all sizes.")
    return Figure(
        "sizes", "Speed by size", says, [("", draw)],
        table_of(by, names, sizes, ["M = N = K"], ", TFLOP/s", lambda tflops: f"{tflops:.1f}"),
        "Square matrices, uniform data. Products under about 10 GFLOP are timed from a CUDA graph, so that the GPU "
        "and not the host is seen.", names)


def library_points(records):
    """(library, problem, rate in TFLOP/s, error): from the survey of all libraries, else from products beside torch."""
    surveyed = [r for r in of(records, "library") if r.get("problem") in REFERENCE and "error" in r]
    if surveyed:
        return [(r["library"], r["problem"], r["gflops_median"] / 1e3, r["error"]) for r in surveyed]
    points = {}
    for precision in PRECISIONS:
        for r in reference_products(records, precision):
            points["tessera " + precision, r["problem"]] = (r["tflops"], r["error"])
            points[PEER_NAMES.get(r["peer"], r["peer"]),
                   r["problem"]] = (2e-9 * r["m"] * r["n"] * r["k"] / r["peer_ms"], r["peer_error"])
    return [(library, problem, *values) for (library, problem), values in points.items()]


def library_means(points):
    """Of each library over the problems: (rate, error), the geometric means."""
    return {
        name: (mean([p[2] for p in points if p[0] == name]), mean([p[3] for p in points if p[0] == name]))
        for name in ordered(p[0] for p in points)
    }


def speed_against_accuracy(records):
    points = library_points(records)
    means = library_means(points)
    triton = " Triton: the kernel of its tutorial with the best of a few tiles; an expert's would be faster."
    return frontier_figure(means, points, "TFLOP/s", "Geometric means over the five reference problems." +
                           triton * ("Triton tf32x3" in means), ". Large marks are the means, small ones the problems")


def roofline(records):
    ceilings = {r["name"]: r for r in of(records, "ceiling")}
    products = [r for r in of(records, "product", data="rand", packed=False) if r["m"] * r["n"] * r["k"] >= 512**3]
    if not {"copy", "fp16 tensor cores"} <= set(ceilings) or not products:
        return None
    fp16 = ceilings["fp16 tensor cores"]["value"]
    flat = {"fp16 tensor cores": fp16, "three fp16 products": fp16 / 3}
    if "float32 units" in ceilings:
        flat["float32 units"] = ceilings["float32 units"]["value"]
    series = {}
    for precision in PRECISIONS:
        rates = sorted((intensity(r), r["tflops"], shape(r)) for r in products if r["precision"] == precision)
        if rates:
            series["tessera " + precision] = rates
    best = {name: max(rate for _, rate, _ in rates) for name, rates in series.items()}
    parts = []
    if "tessera fp32" in best:
        share = 100 * best["tessera fp32"] / flat["three fp16 products"]
        parts.append(f"fp32 reaches {share:.0f} % of what three fp16 products allow")
    if "tessera ieee" in best and "float32 units" in flat:
        parts.append(f"ieee {100 * best['tessera ieee'] / flat['float32 units']:.0f} % of the float32 units")
    if "tessera tf32" in best:
        parts.append(f"tf32 {100 * best['tessera tf32'] / fp16:.0f} % of one fp16 product")
    by_float64 = any(r["precision"] == "ieee" and r.get("kernel", "").startswith("ieee_mma") for r in products)
    float64 = " ieee runs on the float64 tensor cores here, by NVIDIA's figures as fast as the float32 units."
    return roofline_figure(series, ceilings["copy"]["value"], "TB/s", flat, "TFLOP/s",
                           "At best " + ", ".join(parts) + ", packing included.", ceilings.values(),
                           "fp32 does three fp16 products for each float32 one." + float64 * by_float64)


def overhead_sentence(by, names, sizes):
    if ("torch float32", sizes[0]) not in by or ("tessera fp32", sizes[-1]) not in by:
        return "Small products."
    (small, torch_small), (large, torch_large) = ([by[name, m] for name in ("tessera fp32", "torch float32")]
                                                  for m in (sizes[0], sizes[-1]))
    return (f"At {sizes[0]} Tessera's fp32 takes {small:.0f} us of host time, torch {torch_small:.0f}; at {sizes[-1]}, "
            f"where fp32 is several launches, {large:.0f} and {torch_large:.0f}.")


def modules_figure(records):
    modules = of(records, "module")
    if not modules:
        return None
    by = {(r["problem"], r["precision"]): r for r in modules}
    numbers = list(dict.fromkeys(r["problem"] for r in modules))
    groups = [(f"{number} {by[number, 'fp32']['name'].replace('_', ' ')}",
               [("tessera " + r["precision"], r["speedup"], ratio(r["speedup"]),
                 f"module {number}, {r['precision']}: {r['ms']:.3g} ms, torch {r['torch_ms']:.3g} ms")
                for r in (by.get((number, precision)) for precision in ("fp32", "ieee")) if r])
              for number in numbers if (number, "fp32") in by]
    five = [by[number, "fp32"]["speedup"] for number in (1, 2, 8, 16, 18) if (number, "fp32") in by]
    return bars_figure(
        "modules", "The modules, as KernelBench measures them",
        f"{ratio(mean(five))} as fast as eager torch on problems 1, 2, 8, 16 and 18."
        if len(five) == 5 else "Beside eager torch.", groups,
        (["problem", "precision", "ms", "torch, ms", "speedup", "error", "torch's error"], [[
            f"{r['problem']} {r['name']}", r["precision"], f"{r['ms']:.3g}", f"{r['torch_ms']:.3g}",
            ratio(r["speedup"]), f"{r['error']:.1e}", f"{r['torch_error']:.1e}"
        ] for r in modules]),
        f"KernelBench at {modules[0].get('kernelbench_commit', 'unknown')}: its own timing, the L2 cache flushed "
        "before each call, through Python.", "speedup over eager torch, which is the line")


def briefly(r):
    """A product's sizes and layout, as short as they can be said."""
    sizes = f"{r['m']} x {r['n']} x {r['k']}" if len({r["m"], r["n"], r["k"]}) > 1 else str(r["m"])
    return sizes + (f" {r['layout']}" if r["layout"] != "nn" else "")


def losses(records):
    """Everything in the results where a peer is ahead: (in what, [(where, by how much), ...])."""
    said = {}

    def lose(what, where, how):
        said.setdefault(what, []).append((where, how))

    def same_shape(r, **fields):
        return of(records, "library", **{name: r[name] for name in ("m", "n", "k", "layout")}, **fields)

    def slower(what, ours, theirs):
        if theirs["gflops_median"] > ours["gflops_median"]:
            lose(what, briefly(ours), ratio(ours["gflops_median"] / theirs["gflops_median"]))

    for r in of(records, "product"):
        peer, ours = PEER_NAMES.get(r["peer"], r["peer"]), r["precision"] + (" with B packed" if r["packed"] else "")
        if r["speedup"] < 1:
            lose(f"{ours} is slower than {peer}", briefly(r), ratio(r["speedup"]))
        if r["error"] > r["peer_error"]:
            lose(f"{ours} is less accurate than {peer}", briefly(r) + ", normal data" * (r["data"] == "randn"),
                 f"{r['error']:.2e}, {r['peer_error']:.2e}")
    attention.losses(records, lose)
    sweep.losses(records, lose)
    for r in of(records, "call"):
        peers = of(records, "call", m=r["m"], library="torch float32")
        if r["library"] in ("tessera fp32", "tessera ieee") and peers and r["host_us"] > peers[0]["host_us"]:
            lose(f"{r['library'].split()[1]} takes more host time than torch float32", str(r["m"]),
                 f"{r['host_us']:.1f} us, {peers[0]['host_us']:.1f}")
    for r in of(records, "library", library="tessera fp32"):
        for other in same_shape(r):
            if not other["library"].startswith(("tessera", "torch")) and other["error"] < FLOAT32_ACCURATE:
                slower(f"fp32 is slower than {other['library']}", r, other)
    for precision, theirs in (("fp32", "torch float32"), ("ieee", "torch float32"), ("tf32", "torch TF32")):
        for r in of(records, "library", library=f"tessera {precision}"):
            for other in same_shape(r, library=theirs):
                slower(f"{precision} is slower than {theirs} in the survey of all libraries", r, other)
    for r in of(records, "module"):
        name = f"{r['problem']} {r['name'].replace('_', ' ')}"
        if r["speedup"] < 1:
            lose(f"a module is slower than eager torch at {r['precision']}", name, ratio(r["speedup"]))
        if r["error"] > r["torch_error"]:
            lose(f"a module is less accurate than torch at {r['precision']}", name,
                 f"{r['error']:.2e}, {r['torch_error']:.2e}")
    for r in of(records, "accuracy"):
        peers = [o for o in of(records, "accuracy", data=r["data"], k=r["k"]) if not o["library"].startswith("tessera")]
        best = min(peers, key=lambda o: o["error"], default=None)
        if r["library"] in ("tessera fp32", "tessera ieee") and best and r["error"] > 1.05 * best["error"]:
            lose(f"{r['library'].split()[1]} is less accurate than the most accurate peer by more than 5 %",
                 f"{r['data']} data, K = {r['k']}", f"{r['error']:.1e}, {best['library']} {best['error']:.1e}")
    return said


def figures(records):
    return [
        figure for figure in [
            speed_against_accuracy(records),
            reference_figure(records),
            sustained_figure(records),
            sweep.figure(records),
            attention.figure(records),
            models.figure(records),
            models.alone(records),
            size_figure(records), *accuracy_figures(records, " of products of 1024 x K and K x 1024 matrices"),
            roofline(records),
            packing_figure(records),
            overhead_figure(records, "Host time to queue one product, through ctypes for Tessera.", overhead_sentence),
            modules_figure(records)
        ] if figure
    ]


def headlines(records, training):
    """(figure, what it is)."""
    tiles, (fp32, ieee, tf32) = [], (reference_products(records, precision) for precision in PRECISIONS)
    if fp32:
        tiles.append((f"{mean([r['speedup'] for r in fp32]):.2f} x",
                      "as fast as torch.matmul in float32, in turns of one product"))
        less = mean([r["peer_error"] / r["error"] for r in fp32])
        tiles.append((f"{less:.1f} x", "smaller error than torch's float32, against float64") if less >= 1 else (
            f"{1 / less:.1f} x", "torch's float32 error, against float64"))
    long = sustained_speedups(records)
    if long:
        tiles.append((span(long, 1), "as fast in a long run, at the GPU's power limit"))
    if ieee:
        less = mean([r["peer_error"] / r["error"] for r in ieee])
        tiles.append((f"{mean([r['speedup'] for r in ieee]):.2f} x", "as fast as torch's float32 with ieee" +
                      (f", whose error is {less:.1f} x smaller" if less > 1 else "")))
    means = library_means(library_points(records))
    if {"Triton tf32x3", "tessera fp32"} <= set(means):
        tiles.append((f"{means['tessera fp32'][0] / means['Triton tf32x3'][0]:.1f} x",
                      "as fast as the kernel of Triton's tutorial at float32 accuracy (tf32x3)"))
    if tf32:
        tiles.append((f"{mean([r['speedup'] for r in tf32]):.2f} x", "as fast as torch's TF32, where TF32 is enough"))
    if training:
        older = ("" if any(
            r.get("commit", "").startswith(training["commit"]) for r in records) else f" (commit {training['commit']})")
        tiles.append((f"{training['runs'][-1]['speedup']:.2f} x",
                      f"as fast training a GPT-2 in float32, with one line of Python{older}"))
    return tiles


def verdict(records):
    fp32 = reference_products(records, "fp32")
    if not fp32:
        return "What was measured of Tessera on this machine."
    speed, error = mean([r["speedup"] for r in fp32]), mean([r["error"] / r["peer_error"] for r in fp32])
    squares = of(records, "product", precision="fp32", packed=False, data="rand", problem="squares")
    behind = max((r["m"] for r in squares if r["speedup"] < 1), default=0)
    return (f"In turns of one product Tessera multiplies large float32 matrices {speed:.1f} x as fast as "
            "torch.matmul on this GPU" + (", and its results are nearer to the exact ones" if error < 1 else "") +
            ". It uses the tensor cores without giving up float32's error bound." +
            (f" On squares up to {behind} torch is faster." if behind else ""))
