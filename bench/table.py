"""Writes the tables of results in README.md and docs/modules.md from bench/results/, between their markers. With --check: says
whether they are as the results have them, and exits with 1 where not.

    python3 bench/table.py [--check]
"""

import json
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
REFERENCE = ["square", "standard", "irregular", "transposed A", "transposed both"]


def load(name):
    path = ROOT / "bench/results" / name
    return json.loads(path.read_text()) if path.exists() else []


def gpu():
    records = [r for r in load("h200.json") if r["problem"] in REFERENCE]
    if not records:
        return "No GPU results yet: `make bench-gpu`."

    def speed(problem, precision, packed=False):
        (r,) = [r for r in records if (r["problem"], r["precision"], r["packed"], r["data"]) == (problem, precision, packed, "rand")]
        return r

    def mean(precision, packed=False):
        return statistics.geometric_mean(speed(p, precision, packed)["speedup"] for p in REFERENCE)

    lines = ["| problem (M, N, K) | torch float32 | Tessera `fp32` | error, torch / Tessera | `ieee` | `tf32` beside torch's TF32 |",
             "| --- | --- | --- | --- | --- | --- |"]
    for problem in REFERENCE:
        r, ieee, tf32 = speed(problem, "fp32"), speed(problem, "ieee"), speed(problem, "tf32")
        lines.append(f"| {problem} ({r['m']}, {r['n']}, {r['k']} {r['layout']}) | {r['peer_ms']:.2f} ms | **{r['tessera_ms']:.3f} ms, "
                     f"{r['speedup']:.2f} x** | {r['peer_error']:.1e} / {r['error']:.1e} | {ieee['speedup']:.2f} x | {tf32['speedup']:.2f} x |")
    about = records[0]
    lines += [f"| geometric mean | | **{mean('fp32'):.2f} x** ({mean('fp32', True):.2f} x with B packed beforehand) | | "
              f"{mean('ieee'):.2f} x | {mean('tf32'):.2f} x |", "",
              f"{about['gpu']}, driver {about['driver']}, torch {about['torch']}, {about['date']}, commit {about['commit']}; "
              "uniform [0, 1) data, packing and everything else included, both libraries interleaved in one process. Errors are "
              "relative Frobenius errors against float64."]
    return "\n".join(lines)


def cpu():
    paths = sorted((ROOT / "bench/results").glob("cpu-*.json"))
    if not paths:
        return "No CPU results yet: `make bench-cpu`."
    records = json.loads(paths[0].read_text())
    libraries = sorted({r["library"] for r in records} - {"tessera"})
    lines = ["| M, N, K (mean of four layouts) | threads | Tessera | " + " | ".join(libraries) + " | of the best |",
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


def modules():
    records = load("kernelbench-h200.json")
    if not records:
        return "No results yet: `python3 bench/gpu/kernelbench.py`."
    lines = ["| module | torch | `fp32` | `ieee` | error, torch / `fp32` / `ieee` |", "| --- | --- | --- | --- | --- |"]
    for number in dict.fromkeys(r["problem"] for r in records):
        fp32, ieee = ([r for r in records if (r["problem"], r["precision"]) == (number, p)][0] for p in ("fp32", "ieee"))
        lines.append(f"| `{number}_{fp32['name']}.py` | {fp32['torch_ms']:.3g} ms | {fp32['ms']:.3g} ms, **{fp32['speedup']:.2f} x** | "
                     f"{ieee['ms']:.3g} ms, {ieee['speedup']:.2f} x | {fp32['torch_error']:.1e} / {fp32['error']:.1e} / {ieee['error']:.1e} |")
    about = records[0]
    lines += ["", f"KernelBench at {about['kernelbench_commit']}; {about['gpu']}, driver {about['driver']}, torch {about['torch']}, {about['date']}, "
              f"commit {about['commit']}. Each module passes 5 of 5 correctness trials and the checker. A module and torch are timed one after "
              "the other, for each precision anew. Errors are relative Frobenius errors against float64."]
    assert all(r["correct"] == "(5 / 5)" and r["checker"] == "valid" for r in records)
    return "\n".join(lines)


def main():
    for name, tables in (("README.md", {"gpu": gpu, "cpu": cpu}), ("docs/modules.md", {"modules": modules})):
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
