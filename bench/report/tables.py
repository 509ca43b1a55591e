"""The tables of README.md and of pages in docs/, from bench/results, between their markers:

<!-- results: NAME -->
...
<!-- end -->
"""

import json
import pathlib
import re
import statistics

import gpu as of_gpu
import models as of_models
from charts import shown
from figures import mean, of, ratio, span
from harness import results
from summary import markdown_table, prose

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(name):
    """The records of a file; none where it is not there."""
    path = ROOT / "bench/results" / name
    if not path.exists():
        return []
    return json.loads(path.read_text()) if name.startswith("gpt2-") else results.load(path)


def measured(about, *also):
    """Where, when and of which commit, or commits where there are several records."""
    records = about if isinstance(about, list) else [about]
    where = records[0].get("gpu") or records[0]["machine"]
    when = dict.fromkeys(f"{r['date'][:10]}, commit {r['commit'][:8]}" for r in records)
    return ", ".join([where, *also, *when]) + "."


def with_note(heads, rows, *sentences):
    return f"{markdown_table(heads, rows)}\n\n{prose(*sentences)}"


# ---- README.md ------------------------------------------------------------------------------------------------------

def reference_products(records, precision, packed=False):
    """The record of each reference problem, of uniform data."""
    return {r["problem"]: r for r in of_gpu.reference_products(records, precision, packed)}


def mean_speedup(products):
    return mean([r["speedup"] for r in products.values()])


def gpu(records):
    fp32, ieee, tf32 = (reference_products(records, precision) for precision in ("fp32", "ieee", "tf32"))
    packed = reference_products(records, "fp32", packed=True)
    rows = [[
        f"{problem} ({r['m']}, {r['n']}, {r['k']} {r['layout']})", f"{r['peer_ms']:.2f} ms",
        f"**{r['tessera_ms']:.3f} ms, {ratio(r['speedup'])}**", f"{r['peer_error']:.1e} / {r['error']:.1e}",
        ratio(ieee[problem]["speedup"]),
        ratio(tf32[problem]["speedup"])
    ] for problem, r in fp32.items()]
    fp32_mean = f"**{ratio(mean_speedup(fp32))}** ({ratio(mean_speedup(packed))} with B packed beforehand)"
    rows.append(["geometric mean", "", fp32_mean, "", ratio(mean_speedup(ieee)), ratio(mean_speedup(tf32))])
    about, plain = fp32["square"], ieee["square"]["commit"]
    also = f" (`ieee`: {plain})" if plain != about["commit"] else ""
    return "![Speed and error of each library on an H200](docs/results/results-h200.svg)\n\n" + with_note(
        ["problem (M, N, K)", "torch float32", "Tessera `fp32`", "error, torch / Tessera", "`ieee`",
         "`tf32` beside torch's TF32"], rows,
        f"{about['gpu']}, torch {about['torch']}, {about['date']}, commit {about['commit']}{also}. Uniform data, "
        "packing included; the two libraries alternate. Errors: relative, Frobenius, against float64. t: transposed.")


def sustained(products):
    """What a call among other work gets, and what a long run gets."""
    fp32, records = reference_products(products, "fp32"), load("sustained-h200.json")
    call = (f"**A call among other work** gets the {ratio(mean_speedup(fp32))} of this table. **A long run** of large "
            "products gets less: it draws all the power that the GPU is allowed, and the clock falls.")
    if not records:
        return prose(call, "`make bench-sustained` measures by how much.")
    clocks, about = [r["clock_mhz"] for r in records], records[0]
    return prose(
        call,
        f"With each library alone for seconds, the speedup is **{span(of_gpu.sustained_speedups(records), 1)}**, at "
        f"{min(clocks)} to {max(clocks)} MHz and {max(r['watts'] for r in records)} W",
        f"([all rows](docs/results/results.md#in-a-long-run); {about['date']}, commit {about['commit']}).")


def models(records):
    """Training steps of models: their products, and whole steps."""
    rows = [[r["model"], f"**{ratio(of_models.products_speedup(r))}**", f"{r['step_torch_ms']:.1f}",
             f"{r['step_tf32_ms']:.1f}", f"**{r['step_tessera_ms']:.1f}, {ratio(of_models.step_speedup(r))}**"]
            for r in of_models.eager(records)]
    headings = ["a training step of", "its products: speedup", "step: torch float32, ms", "torch TF32", "Tessera"]
    return with_note(headings, rows,
                     measured(of_models.eager(records), f"torch {records[0]['torch']}"), "Eager, `tessera.enable()`.")


# ---- docs/guide/modules.md ------------------------------------------------------------------------------------------

def modules(records):
    assert all(r["correct"] == "(5 / 5)" and r["checker"] in ("valid", "not run") for r in records)
    rows, commits = [], {}
    for number in dict.fromkeys(r["problem"] for r in records):
        found = {r["precision"]: r for r in records if r["problem"] == number}
        times = {precision: f"{r['ms']:.3g} ms, {ratio(r['speedup'])}" for precision, r in found.items()}
        fp32, errors = found["fp32"], [found["fp32"]["torch_error"], *(r["error"] for r in found.values())]
        name, said = f"`{number}_{fp32['name']}.py`", " / ".join(f"{error:.1e}" for error in errors)
        rows.append([name, f"{fp32['torch_ms']:.3g} ms", f"**{times['fp32']}**", times.get("ieee", ""), said])
    for record in records:
        commits.setdefault(record["commit"], []).append(str(record["problem"]))
    (latest, _), *earlier = commits.items()
    also = "".join(f" (modules {', '.join(dict.fromkeys(numbers))}: {commit})" for commit, numbers in earlier)
    about = records[0]
    method = about.get("method", f"KernelBench at {about['kernelbench_commit']}")
    checked = " and the checker" if all(r["checker"] == "valid" for r in records) else ""
    return with_note(
        ["module", "torch", "`fp32`", "`ieee`", "error, torch / `fp32` / `ieee`"], rows,
        f"{method}; {about['gpu']}, driver {about['driver']}, torch {about['torch']}, {about['date']}, commit "
        f"{latest}{also}. Each module passes 5 of 5 correctness trials{checked}. A module and torch are timed one "
        "after the other, for each precision anew. Errors are relative Frobenius errors against float64.")


# ---- docs/results/cpu.md --------------------------------------------------------------------------------------------

def cpu(records):
    """The shapes measured in all four layouts."""
    def shape(r):
        return r["m"], r["n"], r["k"], r["threads"]

    cached = ("batches", "squares in the caches")
    records = [r for r in of(records, "library") if r["problem"] not in cached]
    shapes = list(dict.fromkeys(shape(r) for r in records if r["layout"] == "tt"))
    records = [r for r in records if shape(r) in shapes]
    libraries, rows = sorted({r["library"] for r in records} - {"tessera"}), []
    for m, n, k, threads in shapes:
        here = of(records, "library", m=m, n=n, k=k, threads=threads)
        best = [f"{statistics.mean(r['gflops_best'] for r in of(here, 'library', library=name)):.0f}"
                for name in ("tessera", *libraries)]
        ratios = [r["ratio_to_best_peer"] for r in of(here, "library", library="tessera")]
        rows.append([f"{m}, {n}, {k}", str(threads), f"**{best[0]}**", *best[1:], span(ratios)])
    heads = ["M, N, K (mean of four layouts)", "threads", "Tessera", *map(shown, libraries), "beside the best"]
    return with_note(heads, rows, "GFLOP/s, best of many interleaved samples. Last column: the least and the largest "
                     "of the four layouts' ratios to the best other library.", measured(records[0]))


def cpu_sweep(records):
    """Random products by their least side, and those that are slowest beside the best other library."""
    least = {"1": lambda r: min(r["m"], r["n"]) == 1,
             "2 to 8": lambda r: 2 <= min(r["m"], r["n"]) <= 8,
             "9 to 200": lambda r: 9 <= min(r["m"], r["n"]) <= 200,
             "more": lambda r: min(r["m"], r["n"]) > 200,
             "any": lambda r: True}
    rows = []
    for threads in sorted({r["threads"] for r in records}):
        for name, has in least.items():
            ratios = [r["ratio_to_best_peer"] for r in records if r["threads"] == threads and has(r)]
            if ratios:
                rows.append([name, str(threads), str(len(ratios)), ratio(mean(ratios)),
                             f"{100 * sum(x >= 0.97 for x in ratios) / len(ratios):.0f} %",
                             f"{100 * sum(x < 0.9 for x in ratios) / len(ratios):.0f} %", ratio(min(ratios))])
    heads = ["M or N", "threads", "products", "geometric mean", "0.97 x or more", "below 0.90 x", "least"]
    slowest = sorted((r for r in records if r["m"] * r["n"] * r["k"] > 1000), key=lambda r: r["ratio_to_best_peer"])
    losses = [[f"{r['m']} x {r['n']} x {r['k']} {r['layout']}", str(r["threads"]), f"{r['gflops_best']:.1f}",
               f"{r['peer_gflops']:.1f} ({shown(r['peer'])})", ratio(r["ratio_to_best_peer"])] for r in slowest[:16]]
    return (with_note(heads, rows, f"Speed beside the best other library; M, N and K at random from 1 to 4096 on "
                      f"logarithmic scales, seed {records[0]['seed']}; matrices in memory, not in the caches.",
                      measured(records[0])) + "\n\nThe slowest of more than 1000 multiply-adds:\n\n" +
            markdown_table(["M x N x K", "threads", "GFLOP/s", "best other", "beside it"], losses))


def amx(records):
    """The best of the samples and their median."""
    libraries, rows = sorted({r["library"] for r in records} - {"tessera"}, reverse=True), []
    for r in of(records, "library", library="tessera"):
        found = {o["library"]: o for o in of(records, "library", m=r["m"], n=r["n"], k=r["k"], threads=r["threads"])}
        rates = [f"{found[name]['gflops_best']:.0f} ({found[name]['gflops_median']:.0f})"
                 for name in ("tessera", *libraries)]
        quiet = f"{100 * r['quiet']:.0f} %" if "quiet" in r else "not measured"
        of_best = f"**{ratio(r['ratio_to_best_peer'])}**"
        rows.append([f"{r['m']}, {r['n']}, {r['k']}", str(r["threads"]), *rates, str(r["samples"]), quiet, of_best])
    heads = ["M, N, K", "threads", "Tessera", *map(shown, libraries), "samples", "on quiet cores", "beside the best"]
    return with_note(heads, rows, measured(records))


# ---- docs/results/blas.md -------------------------------------------------------------------------------------------

def offload(records):
    rows = [[
        str(r["n"]), f"**{r['gpu_ms_best']:.2f} ms**", f"{r['copies_alone_ms']:.2f} ms",
        ratio(r["ratio_to_copies"]), f"{r['cpu_ms_best']:.1f} ms", f"{r['speedup_over_cpu']:.1f} x"
    ] for r in records]
    heads = ["M = N = K", "`sgemm_` on the GPU", "copies alone", "time / copies", "the CPU engine", "speedup"]
    note = (f"From pageable memory to pageable memory, best of {records[0]['samples']}. Copies alone: the same bytes "
            "from and to pinned memory, both directions at once.")
    return with_note(heads, rows, note, measured(records[0]))


def blas(records):
    best = {(r["library"], r["n"], r["layout"]): r["nanoseconds_best"] for r in records}
    layouts = ("nn", "tn", "nt", "tt")

    def times(n):
        unit, scale = ("ns", 1) if best["cblas_sgemm", n, "nn"] < 1e4 else ("us", 1e3)
        return ", ".join(f"{best['cblas_sgemm', n, layout] / scale:.0f}" for layout in layouts) + f" {unit}"

    def beside(n, library):
        return ", ".join(f"{best[library, n, layout] / best['cblas_sgemm', n, layout]:.2f}" for layout in layouts
                         if (library, n, layout) in best) + " x"

    rows = [[str(n), times(n), beside(n, "tsr_gemm"), beside(n, "openblas")]
            for n in dict.fromkeys(r["n"] for r in records)]
    heads = ["M = N = K", "`cblas_sgemm`", "speed beside `tsr_gemm`", "beside OpenBLAS"]
    note = (f"Of the layouts {', '.join(layouts)}. {records[0]['threads']} thread, matrices in the caches, best of "
            "many interleaved samples; OpenBLAS with its SkylakeX kernels.")
    return with_note(heads, rows, note, measured(records[0]))


def programs(records):
    names = {"octave": "Octave", "numpy": "NumPy", "r": "R, through `.Fortran`"}
    rows = [[names[r["program"]], f"{1e3 * r['seconds_own']:.1f} ms", f"{1e3 * r['seconds_tessera']:.1f} ms"]
            for r in records]
    about = records[0]
    note = (f"{about['n']} x {about['n']} matrices, best of many. Their own BLAS is "
            f"{pathlib.Path(about['own_blas']).parent.name} "
            "with SkylakeX kernels. R converts singles to doubles and back around each call.")
    return with_note(["program", "its own BLAS", "Tessera"], rows, note, measured(about))


# ---- docs/results/pytorch.md ----------------------------------------------------------------------------------------

def loss_difference(result, run, steps):
    """The furthest a run's loss is from that of the first run, relatively, in its first steps."""
    return max(abs(x - y) / x for x, y in list(zip(result["runs"][0]["loss"], run["loss"]))[:steps])


def training(result):
    steps = len(result["runs"][0]["loss"])
    rows = [[
        run["name"], f"{run['ms_per_step']:.1f}", f"{run['tokens_per_second']:,}",
        ratio(run["speedup"]), f"{loss_difference(result, run, steps // 2):.1e}",
        f"{loss_difference(result, run, steps):.1e}"
    ] for run in result["runs"]]
    heads = ["", "ms a step", "tokens/s", "speedup", f"loss difference in {steps // 2} steps", f"in all {steps}"]
    note = (f"{result['parameters'] / 1e6:.0f}M parameters, {result['batch'] * result['context']} tokens a step. Loss "
            f"difference: the largest relative difference from torch float32's loss. {result['gpu']}, torch "
            f"{result['torch']}, {result['date']}, commit {result['commit']}.")
    return with_note(heads, rows, note)


def host(records):
    (small, ) = (r for r in records if r["what"] == "host" and (r["m"], r["precision"]) == (64, "fp32"))
    kept = [100 * r["of_c_library"] for r in records if r["what"] == "reference"]
    return prose(
        f"Host time of one call on a 64 x 64 product: `tessera.matmul` {small['tessera_us']:.1f} us, `torch.matmul`",
        f"{small['torch_us']:.1f} us. The five reference problems through `tessera.matmul` keep {min(kept):.1f} % to "
        f"{max(kept):.1f} % of the C library's speed.")


def linear(records):
    layers = [r for r in records if r["what"] == "linear"]
    square = {(r["batch"], r["in"]): r["speedup"] for r in layers if r["in"] == r["out"]}
    features = sorted({f for _, f in square})
    rows = [[str(batch), *(ratio(square[batch, f]) for f in features)]
            for batch in sorted({batch for batch, _ in square})]
    beside = [r["torch_beside_itself"] for r in layers if "torch_beside_itself" in r]
    noise = f" (torch measured beside itself: {min(beside):.2f} to {max(beside):.2f} x)" if beside else ""
    slow = ", ".join(
        f"{r['batch']} x {r['in']} -> {r['out']} ({ratio(r['speedup'])}, {'taken' if r['taken'] else 'left to torch'})"
        for r in sorted(layers, key=lambda r: r["speedup"]) if r["speedup"] < 0.95)
    about, taken = layers[0], [r["speedup"] for r in layers if r["taken"]]
    note = (f"As many inputs as outputs. Of all {len(layers)} layers measured, rectangular and odd sizes among them, "
            f"Tessera took {len(taken)}; the slowest of these is at {ratio(min(taken))}. The others were left to "
            f"torch{noise}. Below 0.95 x: {slow or 'none'}. {about['gpu']}, driver {about['driver']}, torch "
            f"{about['torch']}, {about['date']}, commit {about['commit']}.")
    return with_note(["batch", *(f"{f} features" for f in features)], rows, note)


# ---- docs/results/certificates.md -----------------------------------------------------------------------------------

def certificates(paths):
    """What `tessera check --report --json` came to."""
    rows = []
    for path in paths:
        certificate = json.loads(path.read_text())
        name = f"[{path.stem.removeprefix('certificate-')}]({path.name})"
        for grading in certificate["gradings"]:
            rows.append([name, grading["engine"], f"`{grading['precision']}`", f"**{grading['grade']}**",
                         str(grading["products"]), f"{grading['used']:.3f}", certificate["commit"]])
    heads = ["machine", "engine", "precision", "grade", "products", "largest share of the bound used", "commit"]
    return markdown_table(heads, rows)


# ---- Writing --------------------------------------------------------------------------------------------------------

# Of each document the tables by their markers: the function, the results it is made of, and what measures them.
PLACES = {
    "README.md": {
        "gpu": (gpu, "h200.json", "make bench-gpu"),
        "sustained": (sustained, "h200.json", "make bench-gpu"),
        "models": (models, "models-h200.json", "make bench-models"),
    },
    "docs/guide/modules.md": {
        "modules": (modules, "kernelbench-h200.json", "python3 bench/gpu/kernelbench.py"),
    },
    "docs/results/cpu.md": {
        "cpu": (cpu, "cpu-amd-epyc.json", "make bench-cpu"),
        "sweep": (cpu_sweep, "sweep-cpu.json", "make bench-cpu-sweep"),
        "amx": (amx, "amx-xeon.json", "make bench-cpu"),
    },
    "docs/results/blas.md": {
        "offload": (offload, "blas-h200.json", "bench/gpu/run build --offload 8192"),
        "blas": (blas, "blas-small.json", "make bench-blas"),
        "programs": (programs, "blas-programs.json", "python3 bench/blas/programs.py build"),
    },
    "docs/results/pytorch.md": {
        "training": (training, "gpt2-h200.json", "make bench-pytorch"),
        "host": (host, "torch-h200.json", "make bench-pytorch"),
        "linear": (linear, "torch-h200.json", "make bench-pytorch"),
    },
    "docs/results/certificates.md": {
        "certificates": (certificates, "certificate-*.json", "tessera check --report --json"),
    },
}


def made_anew(table, name, command):
    found = sorted((ROOT / "docs/results").glob(name)) if name.startswith("certificate-") else load(name)
    return table(found) if found else f"No results yet: `{command}`."


def documents(root):
    """The text of each document with its tables made anew, by path."""
    made = {}
    for name, tables in PLACES.items():
        text = (root / name).read_text()
        for marker, table in tables.items():
            place = re.compile(rf"(<!-- results: {marker} -->\n).*?(<!-- end -->)", re.S)
            if not place.search(text):
                raise results.BadResults(
                    f"{name} has no place for its table: <!-- results: {marker} --> and <!-- end -->")
            text = place.sub(lambda found: found[1] + made_anew(*table) + "\n" + found[2], text)
        made[root / name] = text
    return made
