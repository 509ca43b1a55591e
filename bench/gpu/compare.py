"""Tessera beside torch.matmul on one GPU, interleaved in one process.

For each problem, layout and precision both libraries multiply the same matrices in turn; the time is the median of CUDA
event pairs, everything included (packing, scales, marking, unscaling; torch's own overheads). Matrices are fresh for each
problem, and problems are larger than the L2 cache except where they cannot be. Short products are timed several to a pair of
events, from a CUDA graph, so that the GPU and not the host is measured, in both libraries; host time per call has records of its
own. Errors are against float64.

The records are written as a JSON list, one record a measurement; see --help.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import binding  # noqa: E402  (the ctypes binding the tests use)

PRECISIONS = {"ieee": binding.IEEE, "fp32": binding.FP32, "tf32": binding.TF32}
REFERENCE = [("square", 4096, 4096, 4096, "nn"), ("standard", 2048, 4096, 8192, "nn"),
             ("irregular", 8205, 5921, 2949, "nn"), ("transposed A", 2048, 4096, 8192, "tn"),
             ("transposed both", 2048, 4096, 8192, "tt")]
SQUARES = {"ieee": [*range(512, 8193, 512), 1000, 3000, 5000, 7001],
           "fp32": [256, 512, 1024, 2048, 4096, 8192, 16384, 1000, 3000, 5000, 7001],
           "tf32": [2048, 4096, 8192, 16384, 3000, 5000, 7001]}


def operand(kind, tensor, packed=None):
    made = kind(tensor.data_ptr(), *tensor.shape, *tensor.stride(), 0)
    if packed is not None:
        made.packed = packed.handle
    return made


def make(m, n, k, layout, data):
    generate = {"rand": torch.rand, "randn": torch.randn}[data]
    a = generate(k, m, device="cuda").t() if layout[0] == "t" else generate(m, k, device="cuda")
    b = generate(n, k, device="cuda").t() if layout[1] == "t" else generate(k, n, device="cuda")
    return a, b


class Tessera:
    """A product as the operator of a framework calls it: on torch's current stream, with workspace from torch's allocator."""

    def __init__(self, context, a, b, c, pack_side=None):
        self.context, self.tensors = context, (a, b, c)
        self.a, self.b, self.c = operand(binding.Operand, a), operand(binding.Operand, b), operand(binding.Result, c)
        self.launch = binding.Launch(torch.cuda.current_stream().cuda_stream, None, 0)
        if pack_side is not None:
            chosen = (self.a, self.b)[pack_side]
            self.packed = binding.Packed(context, pack_side, chosen, self.launch)
            chosen.packed = self.packed.handle
        plan = binding.Plan(context, self.a, self.b, self.c)
        self.kernel = dict(line.split(": ", 1) for line in plan.text().splitlines() if ": " in line).get("kernel", "")
        self.workspace = torch.empty(max(1, plan.workspace()), dtype=torch.uint8, device="cuda")
        self.launch.workspace, self.launch.workspace_size = self.workspace.data_ptr(), self.workspace.numel()

    def __call__(self):
        self.launch.stream = torch.cuda.current_stream().cuda_stream
        binding.gemm(self.context, self.a, self.b, self.c, launch=self.launch)


def replay(function, repeats):
    """A function that does `repeats` calls of this one from a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            function()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def interleaved(functions, seconds, flops):
    """Median milliseconds of each function, called in turn."""
    repeats = max(1, min(50, round(1e10 / flops)))  # products to a pair of events
    for function in functions:
        function()
    torch.cuda.synchronize()
    if repeats > 1:
        functions = [replay(function, repeats) for function in functions]
    begin, samples = time.monotonic(), [[] for _ in functions]
    while time.monotonic() - begin < seconds or len(samples[0]) < 7:
        pairs = []
        for function in functions:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            function()
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize()
        for sample, (start, end) in zip(samples, pairs):
            sample.append(start.elapsed_time(end) / repeats)
    return [statistics.median(sample) for sample in samples]


def errors(c, a, b):
    """Relative Frobenius error, and the worst error in units of 2^-24 (|A||B|), against float64, by blocks of rows."""
    squares = reference_squares = 0.0
    worst = 0.0
    for rows in range(0, a.shape[0], 2048):
        block = a[rows:rows + 2048].double()
        reference = block @ b.double()
        difference = (c[rows:rows + 2048].double() - reference).abs()
        squares += difference.square().sum().item()
        reference_squares += reference.square().sum().item()
        worst = max(worst, (difference / (block.abs() @ b.double().abs())).max().item() * 2**24)
    return (squares / reference_squares) ** 0.5, worst


def host_microseconds(function):
    """Host time of one call, the queue kept short enough never to block."""
    samples = []
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(50):
            function()
        samples.append((time.perf_counter() - begin) / 50 * 1e6)
    torch.cuda.synchronize()
    return statistics.median(samples)


def machine():
    query = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True,
                           text=True)
    gpu, driver = (query.stdout.splitlines()[0].split(", ") if query.returncode == 0 else (torch.cuda.get_device_name(), ""))
    commit = os.environ.get("TESSERA_COMMIT") or subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {"gpu": gpu, "driver": driver, "torch": torch.__version__, "commit": commit or "unknown",
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")}


def measure(options, jobs):
    contexts = {name: binding.Context(device=binding.CUDA, precision=value) for name, value in PRECISIONS.items()}
    about, records, begin = machine(), [], time.monotonic()
    for index, (problem, m, n, k, layout, data, precision, packed) in enumerate(jobs):
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        a, b = make(m, n, k, layout, data)
        c, peer_c = (torch.full((m, n), float("nan"), device="cuda") for _ in range(2))
        tessera = Tessera(contexts[precision], a, b, c, binding.RIGHT if packed else None)

        def peer():
            torch.matmul(a, b, out=peer_c)

        flops = 2.0 * m * n * k
        tessera_ms, peer_ms = interleaved([tessera, peer], options.seconds, flops)
        error, worst = errors(c, a, b)
        peer_error, peer_worst = errors(peer_c, a, b)
        records.append({
            "problem": problem, "m": m, "n": n, "k": k, "layout": layout, "data": data, "precision": precision,
            "packed": packed, "peer": "torch-tf32" if precision == "tf32" else "torch-fp32",
            "tessera_ms": round(tessera_ms, 5), "peer_ms": round(peer_ms, 5), "speedup": round(peer_ms / tessera_ms, 3),
            "tflops": round(flops / tessera_ms / 1e9, 2), "peer_tflops": round(flops / peer_ms / 1e9, 2),
            "error": float(f"{error:.3e}"), "peer_error": float(f"{peer_error:.3e}"),
            "worst_units": round(worst, 2), "peer_worst_units": round(peer_worst, 2), "kernel": tessera.kernel, **about})
        r = records[-1]
        left = (time.monotonic() - begin) / (index + 1) * (len(jobs) - index - 1)
        print(f"{problem:16s} {m:5d} {n:5d} {k:5d} {layout} {data:5s} {precision}{' packed' if packed else '':7s} "
              f"{tessera_ms:9.4f} ms  {r['tflops']:6.1f} TF  torch {r['peer_tflops']:6.1f} TF  {r['speedup']:5.2f} x  "
              f"error {error:.2e} (torch {peer_error:.2e})  [{left:3.0f} s left]", flush=True)
        del a, b, c, peer_c, tessera
    if options.host:
        torch.backends.cuda.matmul.allow_tf32 = False
        for size in (64, 1024):
            a, b = make(size, size, size, "nn", "rand")
            c, peer_c = torch.empty(size, size, device="cuda"), torch.empty(size, size, device="cuda")
            for precision in ("ieee", "fp32"):
                tessera = Tessera(contexts[precision], a, b, c)
                ours, theirs = host_microseconds(tessera), host_microseconds(lambda: torch.matmul(a, b, out=peer_c))
                records.append({"problem": "host time per call", "m": size, "n": size, "k": size, "layout": "nn",
                                "data": "rand", "precision": precision, "packed": False, "peer": "torch-fp32",
                                "tessera_host_us": round(ours, 2), "peer_host_us": round(theirs, 2), **about})
                print(f"host time per call {size}^3 {precision}: {ours:.2f} us through ctypes, torch {theirs:.2f} us", flush=True)
    return records


def summary(records):
    for precision, packed in (("ieee", False), ("fp32", False), ("fp32", True), ("tf32", False)):
        ratios = [r["speedup"] for r in records if r["precision"] == precision and r["packed"] == packed
                  and r.get("data") == "rand" and r["problem"] in {p[0] for p in REFERENCE}]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(f"{precision}{', one operand packed' if packed else ''}: geometric mean {mean:.2f} x over the reference "
                  f"problems, least {min(ratios):.2f} x")
    for precision in PRECISIONS:
        squares = [r for r in records if r["problem"] == "squares" and r["precision"] == precision]
        if squares:
            print(f"{precision} squares: " + "  ".join(f"{r['m']}: {r['speedup']:.2f}" for r in sorted(squares, key=lambda r: r["m"])))
    worse = [r for r in records if "error" in r and r["error"] > r["peer_error"]]
    for r in worse:
        print(f"less accurate than torch: {r['problem']} {r['m']} {r['layout']} {r['data']} {r['precision']}: {r['error']} > {r['peer_error']}")


def main():
    parser = argparse.ArgumentParser(description="Tessera beside torch.matmul on this machine's GPU")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="only this one (may be repeated)")
    parser.add_argument("--only", choices=("reference", "squares"), help="only these problems")
    parser.add_argument("--seconds", type=float, default=0.4, help="time to spend on each measurement (default 0.4)")
    parser.add_argument("--no-host", dest="host", action="store_false", help="leave out the host time per call")
    parser.add_argument("--save", metavar="FILE", help="write the records there as JSON")
    options = parser.parse_args()
    jobs = []
    for precision in options.precision or PRECISIONS:
        if options.only != "squares":
            jobs += [(*problem, data, precision, False) for data in ("rand", "randn") for problem in REFERENCE]
            if precision == "fp32":
                jobs += [(*problem, "rand", precision, True) for problem in REFERENCE]
        if options.only != "reference":
            jobs += [("squares", size, size, size, "nn", "rand", precision, False) for size in SQUARES[precision]]
    records = measure(options, jobs)
    summary(records)
    if options.save:
        partial = pathlib.Path(options.save + ".partial")
        partial.write_text("[\n" + ",\n".join(json.dumps(r) for r in records) + "\n]\n")
        partial.replace(options.save)
        print(f"{len(records)} records in {options.save}")


if __name__ == "__main__":
    main()
