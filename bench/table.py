"""Writes the tables of results in README.md and of several pages in docs/ from bench/results/, between their markers. With --check: says
whether they are as the results have them, and exits with 1 where not.

    python3 bench/table.py [--check]
"""

import json
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/report")]
from charts import shown  # noqa: E402
from harness import data, results  # noqa: E402

REFERENCE = [problem[0] for problem in data.REFERENCE]


def load(name):
    path = ROOT / "bench/results" / name
    return results.load(path) if path.exists() else []


def load_training(name):
    path = ROOT / "bench/results" / name
    return json.loads(path.read_text()) if path.exists() else {}


def gpu():
    records = [r for r in load("h200.json") if r["what"] == "product" and r["problem"] in REFERENCE]
    if not records:
        return "No GPU results yet: `make bench-gpu`."

    def speed(problem, precision, packed=False):
        (r,) = [r for r in records if (r["problem"], r["precision"], r["packed"], r["data"]) == (problem, precision, packed, "rand")]
        return r

    def mean(precision, packed=False):
        return statistics.geometric_mean(speed(p, precision, packed)["speedup"] for p in REFERENCE)

    lines = ["![Speed and error of each library on an H200](docs/results/results-h200.svg)", "",
             "| problem (M, N, K) | torch float32 | Tessera `fp32` | error, torch / Tessera | `ieee` | `tf32` beside torch's TF32 |",
             "| --- | --- | --- | --- | --- | --- |"]
    for problem in REFERENCE:
        r, ieee, tf32 = speed(problem, "fp32"), speed(problem, "ieee"), speed(problem, "tf32")
        lines.append(f"| {problem} ({r['m']}, {r['n']}, {r['k']} {r['layout']}) | {r['peer_ms']:.2f} ms | **{r['tessera_ms']:.3f} ms, "
                     f"{r['speedup']:.2f} x** | {r['peer_error']:.1e} / {r['error']:.1e} | {ieee['speedup']:.2f} x | {tf32['speedup']:.2f} x |")
    about, plain = speed("square", "fp32"), speed("square", "ieee")["commit"]
    commit = about["commit"] + (f" (`ieee`: {plain})" if plain != about["commit"] else "")
    lines += [f"| geometric mean | | **{mean('fp32'):.2f} x** ({mean('fp32', True):.2f} x with B packed beforehand) | | "
              f"{mean('ieee'):.2f} x | {mean('tf32'):.2f} x |", "",
              f"{about['gpu']}, driver {about['driver']}, torch {about['torch']}, {about['date']}, commit {commit}; "
              "uniform [0, 1) data, packing and everything else included, both libraries interleaved in one process. Errors are "
              "relative Frobenius errors against float64. [docs/results/results.md](docs/results/results.md) has everything that was measured, and where Tessera loses; "
              "`make report` makes the same for your machine."]
    return "\n".join(lines)


def cpu():
    records = [r for r in load("cpu-amd-epyc.json") if r["what"] == "library" and r["problem"] not in ("batches", "squares in the caches")]
    layouts = [tuple(r[name] for name in ("m", "n", "k", "threads")) for r in records if r["layout"] == "tt"]
    records = [r for r in records if tuple(r[name] for name in ("m", "n", "k", "threads")) in layouts]  # the shapes measured in all layouts
    if not records:
        return "No CPU results yet: `make bench-cpu`."
    libraries = sorted({r["library"] for r in records} - {"tessera"})
    lines = ["| M, N, K (mean of four layouts) | threads | Tessera | " + " | ".join(map(shown, libraries)) + " | of the best |",
             "| --- " * (len(libraries) + 4) + "|"]
    for shape in dict.fromkeys((r["m"], r["n"], r["k"], r["threads"]) for r in records):
        rows = [r for r in records if (r["m"], r["n"], r["k"], r["threads"]) == shape]
        best = {name: statistics.mean(r["gflops_best"] for r in rows if r["library"] == name) for name in ["tessera", *libraries]}
        ratio = [r["ratio_to_best_peer"] for r in rows if r["library"] == "tessera"]
        lines.append(f"| {shape[0]}, {shape[1]}, {shape[2]} | {shape[3]} | **{best['tessera']:.0f}** | " +
                     " | ".join(f"{best[name]:.0f}" for name in libraries) + f" | {min(ratio):.2f} to {max(ratio):.2f} |")
    about = records[0]
    lines += ["", f"GFLOP/s, best of many interleaved samples; last column: least and most of the four layouts' ratios to the best other "
              f"library. {about['machine']}, {about['date'][:10]}, commit {about['commit']}."]
    return "\n".join(lines)


def amx():
    """docs/internals/tuning.md: fp32 on AMX, the best of the samples and their median."""
    records = load("amx-xeon.json")
    libraries = sorted({r["library"] for r in records} - {"tessera"}, reverse=True)
    lines = ["| m, n, k | threads | Tessera | " + " | ".join(map(shown, libraries)) + " | samples | on quiet cores | of the best |",
             "| --- " * (len(libraries) + 6) + "|"]
    for r in records:
        if r["library"] == "tessera":
            of = {o["library"]: o for o in records if all(o[name] == r[name] for name in ("m", "n", "k", "threads"))}
            rates = [f"{of[name]['gflops_best']:.0f} ({of[name]['gflops_median']:.0f})" for name in ["tessera", *libraries]]
            quiet = f"{100 * r['quiet']:.0f} %" if "quiet" in r else "not looked for"
            lines.append(f"| {r['m']}, {r['n']}, {r['k']} | {r['threads']} | " + " | ".join(rates) + f" | {r['samples']} | {quiet} | "
                         f"**{r['ratio_to_best_peer']:.2f}** |")
    commits = dict.fromkeys((r["commit"], r["date"]) for r in records)
    return "\n".join([*lines, "", f"{records[0]['machine']}, " + ", ".join(f"{date}, commit {commit}" for commit, date in commits) + "."])


def modules():
    records = load("kernelbench-h200.json")
    if not records:
        return "The modules as they are have not been measured yet; the command below does it, on your GPU, too."
    lines = ["| module | torch | `fp32` | `ieee` | error, torch / `fp32` / `ieee` |", "| --- | --- | --- | --- | --- |"]
    for number in dict.fromkeys(r["problem"] for r in records):
        of = {r["precision"]: r for r in records if r["problem"] == number}
        fp32, times = of["fp32"], {precision: f"{r['ms']:.3g} ms, {r['speedup']:.2f} x" for precision, r in of.items()}
        lines.append(f"| `{number}_{fp32['name']}.py` | {fp32['torch_ms']:.3g} ms | **{times['fp32']}** | {times.get('ieee', '')} | "
                     + " / ".join(f"{error:.1e}" for error in [fp32["torch_error"], *(r["error"] for r in of.values())]) + " |")
    about = records[0]
    of_commit = {}
    for record in records:
        of_commit.setdefault(record["commit"], []).append(str(record["problem"]))
    latest, *earlier = of_commit
    commits = latest + "".join(f" (modules {', '.join(dict.fromkeys(of_commit[commit]))}: {commit})" for commit in earlier)
    lines += ["", f"KernelBench at {about['kernelbench_commit']}; {about['gpu']}, driver {about['driver']}, torch {about['torch']}, {about['date']}, "
              f"commit {commits}. Each module passes 5 of 5 correctness trials and the checker. A module and torch are timed one after "
              "the other, for each precision anew. Errors are relative Frobenius errors against float64."]
    assert all(r["correct"] == "(5 / 5)" and r["checker"] == "valid" for r in records)
    return "\n".join(lines)


def packing():
    records = [r for r in load("h200.json") if r["what"] == "packing"]
    if not records:
        return "No results yet: `make bench-gpu`."
    lines = ["| problem | operand | rows x k | contiguous along | packing | | a copy | | of the copy's rate |", "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for r in records:
        along = "k" if (r["operand"] == "a") == (r["layout"] == "n") else "rows"
        moved = 8e-6 * r["rows"] * r["k"]
        lines.append(f"| {r['problem']} | {r['operand'].upper()} | {r['rows']} x {r['k']} | {along} | {r['pack_us']:.1f} us | "
                     f"{moved / r['pack_us']:.2f} TB/s | {r['copy_us']:.1f} us | {moved / r['copy_us']:.2f} TB/s | **{r['of_copy']:.2f}** |")
    about = records[0]
    return "\n".join([*lines, "", f"{about['gpu']}, {about['date'][:10]}, commit {about['commit']}."])


def offload():
    records = [r for r in load("blas-h200.json") if r["what"] == "offload"]
    if not records:
        return "No results yet: `bench/blas/run build --offload 8192`."
    lines = ["| M = N = K | `sgemm_` on the GPU | copies alone | of them | the CPU engine | times quicker |", "| --- | --- | --- | --- | --- | --- |"]
    for r in records:
        lines.append(f"| {r['n']} | **{r['gpu_ms_best']:.2f} ms** | {r['copies_alone_ms']:.2f} ms | {r['ratio_to_copies']:.2f} x | "
                     f"{r['cpu_ms_best']:.1f} ms | {r['speedup_over_cpu']:.1f} |")
    about = records[0]
    return "\n".join([*lines, "", f"Ordinary (pageable) memory to ordinary memory, best of {about['samples']}; copies alone are of the same bytes from and to pinned "
                      f"memory, both ways at once. {about['machine']}, {about['date'][:10]}, commit {about['commit']}."])


def blas():
    records = [r for r in load("blas-small.json") if r["what"] == "cblas_sgemm"]
    if not records:
        return "No results yet: `make bench-blas`."

    def best(library, n, layout):
        return next((r["nanoseconds_best"] for r in records if (r["library"], r["n"], r["layout"]) == (library, n, layout)), None)

    lines = ["| M = N = K | layout | `cblas_sgemm` | of `tsr_gemm`'s rate | of OpenBLAS's |", "| --- | --- | --- | --- | --- |"]
    for n in dict.fromkeys(r["n"] for r in records):
        for layout in ("nn", "tn", "nt", "tt"):
            ours, api, peer = [best(library, n, layout) for library in ("cblas_sgemm", "tsr_gemm", "openblas")]
            time = f"{ours:.0f} ns" if ours < 1e4 else f"{ours / 1e3:.0f} us"
            lines.append(f"| {n} | {layout} | {time} | {api / ours:.2f} | {peer / ours:.2f} |" if peer else
                         f"| {n} | {layout} | {time} | {api / ours:.2f} | |")
    about = records[0]
    return "\n".join([*lines, "", f"{about['threads']} thread, matrices in the caches, best of many interleaved samples; OpenBLAS with its SkylakeX kernels. "
                      f"{about['machine']}, {about['date'][:10]}, commit {about['commit']}."])


def loss_difference(result, run, steps):
    """The furthest a run's loss is from that of the first run, relatively, in its first steps."""
    return max(abs(x - y) / x for x, y in list(zip(result["runs"][0]["loss"], run["loss"]))[:steps])


def gpt2():
    """README.md: the training run in one sentence."""
    result = load_training("gpt2-h200.json")
    if not result:
        return "No training results yet: `make bench-pytorch`."
    torch32, ours = result["runs"][0], result["runs"][-1]
    half = len(ours["loss"]) // 2
    return (f"Training a transformer of GPT-2's size in float32 takes {torch32['ms_per_step']:.0f} ms a step with torch and "
            f"**{ours['ms_per_step']:.0f} ms with Tessera, {ours['speedup']:.2f} x**; over the first {half} steps the losses agree to "
            f"{loss_difference(result, ours, half):.1e} ({result['gpu']}, torch {result['torch']}, {result['date']}, commit {result['commit']}).")


def pytorch():
    """docs/guide/pytorch.md: the training run, host time, the reference problems and nn.Linear through the package."""
    gpt2, records = load_training("gpt2-h200.json"), load("torch-h200.json")
    if not gpt2 or not records:
        return "No results yet: `make bench-pytorch`."
    steps = len(gpt2["runs"][0]["loss"])
    lines = [f"| GPT-2 size, {gpt2['parameters'] / 1e6:.0f}M parameters, {gpt2['batch'] * gpt2['context']} tokens a step | ms a step | tokens/s | | "
             f"loss, at most from torch float32's in {steps // 2} steps | in all {steps} |", "| --- | --- | --- | --- | --- | --- |"]
    for run in gpt2["runs"]:
        lines.append(f"| {run['name']} | {run['ms_per_step']:.1f} | {run['tokens_per_second']:,} | {run['speedup']:.2f} x | "
                     f"{loss_difference(gpt2, run, steps // 2):.1e} | {loss_difference(gpt2, run, steps):.1e} |")
    about = records[0]
    host = {(r["m"], r["precision"]): r for r in records if r["what"] == "host"}
    reference = [r["of_c_library"] for r in records if r["what"] == "reference"]
    layers = [r for r in records if r["what"] == "linear"]
    lines += ["", f"{gpt2['gpu']}, torch {gpt2['torch']}, {gpt2['date']}, commit {gpt2['commit']}.", "",
              f"Host time of one call on a 64 x 64 product: `tessera.matmul` {host[64, 'fp32']['tessera_us']:.1f} us, `torch.matmul` "
              f"{host[64, 'fp32']['torch_us']:.1f} us. The five reference problems through `tessera.matmul` keep {100 * min(reference):.1f} % to "
              f"{100 * max(reference):.1f} % of the C library's rate.", "",
              "Speed of `nn.Linear` with the drop-in, beside torch's own float32:", "",
              "| batch | " + " | ".join(f"{f} features" for f in sorted({r["in"] for r in layers if r["in"] == r["out"]})) + " |"]
    square = {(r["batch"], r["in"]): r["speedup"] for r in layers if r["in"] == r["out"]}
    features = sorted({f for _, f in square})
    lines.append("| --- " * (len(features) + 1) + "|")
    for batch in sorted({b for b, _ in square}):
        lines.append(f"| {batch} | " + " | ".join(f"{square[batch, f]:.2f} x" for f in features) + " |")
    beside_itself = [r["torch_beside_itself"] for r in layers if "torch_beside_itself" in r]
    slow = sorted((r for r in layers if r["speedup"] < 0.95), key=lambda r: r["speedup"])
    lines += ["", f"As many inputs as outputs. Of all {len(layers)} layers measured, rectangular and odd sizes among them, Tessera took "
              f"{sum(r['taken'] for r in layers)}, the least of them {min(r['speedup'] for r in layers if r['taken']):.2f} x; the others were left to torch"
              + (f" (whose own calls, measured beside themselves, came to {min(beside_itself):.2f} to {max(beside_itself):.2f} x)" if beside_itself else "") +
              ". Below 0.95 x: " + (", ".join(f"{r['batch']} x {r['in']} -> {r['out']} ({r['speedup']:.2f} x, {'taken' if r['taken'] else 'left to torch'})"
                                             for r in slow) or "none") + f". {about['gpu']}, driver {about['driver']}, torch {about['torch']}, {about['date']}, commit "
              f"{about['commit']}."]
    return "\n".join(lines)


def certificates():
    """README.md: what `tessera check --report` came to, from the certificates in docs/."""
    lines = ["| certificate | engine | held to | grade | products | most of the bound used | commit |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for path in sorted((ROOT / "docs/results").glob("certificate-*.md")):
        text = path.read_text()
        commit = re.search(r"^\| Tessera \| [^|]*commit (\S+) \|$", text, re.M)[1]
        for engine, precision, grade, _, products, used in re.findall(r"^\| (.+?) \| `?(\w+)`? \| (\*\*\w\*\*) \| (.+?) \| (\d+) \| (\S+) \|$", text, re.M):
            lines.append(f"| [{path.stem.removeprefix('certificate-')}](docs/results/{path.name}) | {engine} | `{precision}` | {grade} | {products} | {used} | {commit} |")
    return "\n".join(lines) if len(lines) > 2 else "No certificates yet: `tessera check --report docs/certificate-MACHINE.md`."


def programs():
    records = load("blas-programs.json")
    if not records:
        return "No results yet: `python3 bench/blas/programs.py build`."
    names = {"octave": "Octave", "numpy": "NumPy", "r": "R, by `.Fortran`"}
    lines = ["| program | its own BLAS | Tessera |", "| --- | --- | --- |"]
    lines += [f"| {names[r['program']]} | {1e3 * r['seconds_own']:.1f} ms | {1e3 * r['seconds_tessera']:.1f} ms |" for r in records]
    about = records[0]
    return "\n".join([*lines, "", f"{about['n']} x {about['n']} matrices, best of many; their own is {pathlib.Path(about['own_blas']).parent.name} with SkylakeX kernels. "
                      f"R converts singles to doubles and back around each call. {about['machine']}, {about['date'][:10]}, commit {about['commit']}."])


def main():
    for name, tables in (("README.md", {"gpu": gpu, "gpt2": gpt2, "certificates": certificates, "cpu": cpu}), ("docs/guide/modules.md", {"modules": modules}),
                         ("docs/guide/blas.md", {"offload": offload, "blas": blas, "programs": programs}),
                         ("docs/guide/pytorch.md", {"pytorch": pytorch}), ("docs/internals/tuning.md", {"packing": packing, "amx": amx})):
        path = ROOT / name
        text = made = path.read_text()
        for marker, table in tables.items():
            made = re.sub(rf"(<!-- results: {marker} -->\n).*?(<!-- end -->)", lambda m: m[1] + table() + "\n" + m[2], made, flags=re.S)
        if "--check" not in sys.argv:
            path.write_text(made)
        elif made != text:
            sys.exit(f"{name}'s tables are not those of bench/results: run python3 bench/table.py")


if __name__ == "__main__":
    main()
