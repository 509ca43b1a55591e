"""The modules of kernelbench/ as KernelBench judges them: its static checker, its correctness trials, its timing, unchanged.

    git clone https://github.com/ScalingIntelligence/KernelBench
    python3 bench/gpu/kernelbench.py KernelBench [--save FILE]

Each module is loaded by KernelBench's eval_kernel_against_ref beside the problem's own model: five correctness trials, then the mean of
100 calls, the L2 cache flushed before each, for the module and for eager torch; the reference problems in both precisions, the others
in the default one. Added to that: the errors of both against float64 on the problem's inputs, and how long the module takes to compile,
unless TORCH_EXTENSIONS_DIR names a folder where it may have been before. The modules are compiled first, side by side, so that nothing
else runs while they are timed.
"""

import argparse
import concurrent.futures
import contextlib
import importlib
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types
from unittest import mock

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from harness import machine, results  # noqa: E402

REFERENCE = (1, 2, 8, 16, 18)


class Record:
    """What KernelBench needs of pydantic.BaseModel."""

    def __init__(self, **values):
        self.__dict__.update(values)


def load_kernelbench(folder):
    """KernelBench's modules, without its package's __init__, which asks for clients of language models; what else of its packages is not
    installed is stood in for, for nothing here uses it."""
    package = types.ModuleType("kernelbench")
    package.__path__ = [str(folder / "src/kernelbench")]
    sys.modules["kernelbench"] = package
    for name in ("dotenv", "tqdm", "openai", "litellm", "requests", "pydantic"):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = mock.MagicMock(BaseModel=Record)
    return types.SimpleNamespace(eval=importlib.import_module("kernelbench.eval"),
                                 checker=importlib.import_module("kernelbench.kernel_static_checker"))


def number_of(path):
    return int(path.name.split("_")[0])


def build(path):
    """Compiles a module in a process of its own; returns the seconds it took."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "import runpy, sys; runpy.run_path(sys.argv[1])['ModelNew']()", str(path)], check=True)
    return time.monotonic() - begin


def differences(model, reference, inputs):
    """Of both models on the same inputs: relative Frobenius error and largest error, against float64, by blocks of rows."""
    def blocks(A, B):  # of the product, and what they are computed from
        if A.dim() == 3 and B.dim() == 3:
            return [(slice(i, i + 8), A[i:i + 8], B[i:i + 8]) for i in range(0, len(A), 8)]
        return [(slice(None), A, B)]

    with torch.no_grad():
        results = [f(*inputs) for f in (model, reference)]
        squares, largest, norm = [0.0, 0.0], [0.0, 0.0], 0.0
        for where, A, B in blocks(*inputs):
            exact = reference(A.double(), B.double())
            norm += exact.square().sum().item()
            for i, result in enumerate(results):
                difference = (result[where].double() - exact).abs_()
                largest[i] = max(largest[i], difference.max().item())
                squares[i] += difference.square_().sum().item()
                del difference
    return [(squares[i] / norm) ** 0.5 for i in range(2)], largest


def judge(kernelbench, path, problem, precision, trials):
    source = path.read_text()
    valid, errors, warnings = kernelbench.checker.validate_kernel_static(source, backend="cuda", precision="fp32")
    if precision != "fp32":
        source += f'\nModelNew = functools.partial(ModelNew, precision="{precision}")\n'
    talk = io.StringIO()
    with contextlib.redirect_stdout(talk):
        result = kernelbench.eval.eval_kernel_against_ref(
            problem.read_text(), source, num_correct_trials=5, num_perf_trials=trials, measure_performance=True,
            device=torch.device("cuda:0"), precision=torch.float32)
    if not result or not result.correctness:
        raise RuntimeError(f"{path.name}: KernelBench says {vars(result) if result else None}\n{talk.getvalue()}")
    context = {}
    exec(problem.read_text(), context)
    reference, inputs = context["Model"](), [x.cuda() for x in context["get_inputs"]()]
    exec(source, context)
    error, largest = differences(context["ModelNew"](), reference, inputs)
    torch.cuda.empty_cache()
    return {"what": "module", "problem": number_of(path), "name": path.stem.split("_", 1)[1], "precision": precision,
            "ms": result.runtime, "torch_ms": result.ref_runtime, "speedup": round(result.ref_runtime / result.runtime, 3),
            "ms_std": result.runtime_stats["std"], "torch_ms_std": result.ref_runtime_stats["std"], "trials": trials,
            "correct": result.metadata["correctness_trials"], "checker": "valid" if valid else "; ".join(errors),
            "checker_warnings": warnings, "error": float(f"{error[0]:.3e}"), "torch_error": float(f"{error[1]:.3e}"),
            "largest_error": float(f"{largest[0]:.3e}"), "torch_largest_error": float(f"{largest[1]:.3e}")}


def main():
    parser = argparse.ArgumentParser(description="the modules of kernelbench/ by KernelBench's own measure")
    parser.add_argument("kernelbench", type=pathlib.Path, help="a clone of KernelBench")
    parser.add_argument("--commit", help="KernelBench's commit, where the folder is no clone")
    parser.add_argument("--only", type=int, nargs="+", metavar="PROBLEM", help="only these problems, in this order")
    parser.add_argument("--trials", type=int, default=100, help="calls to time (default 100)")
    parser.add_argument("--save", type=pathlib.Path, help="write the records there as JSON")
    options = parser.parse_args()
    commit = options.commit or subprocess.run(["git", "-C", str(options.kernelbench), "rev-parse", "HEAD"], capture_output=True, text=True,
                                              check=True).stdout.strip()
    kernelbench = load_kernelbench(options.kernelbench)
    about = machine.gpu(torch=torch.__version__, cuda=torch.version.cuda, kernelbench_commit=commit[:12])

    modules = {number_of(path): path for path in (ROOT / "kernelbench").glob("[0-9]*.py")}
    paths = [modules[number] for number in options.only or [*REFERENCE, *sorted(set(modules) - set(REFERENCE))]]
    with tempfile.TemporaryDirectory() as folder:
        fresh = os.environ.setdefault("TORCH_EXTENSIONS_DIR", folder) == folder
        with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
            seconds = dict(zip(paths, pool.map(build, paths)))

        def measure(job):
            path, precision = modules[job[0]], job[1]
            (problem,) = (options.kernelbench / "KernelBench/level1").glob(f"{job[0]}_*.py")
            record = {**judge(kernelbench, path, problem, precision, options.trials), **({"build_s": round(seconds[path], 1)} if fresh else {})}
            return [record], (
                f"{job[0]:3d} {record['name']:18s} {precision}  {record['ms']:8.3f} ms  torch {record['torch_ms']:8.3f} ms  {record['speedup']:5.2f} x  "
                f"error {record['error']:.2e} (torch {record['torch_error']:.2e})  {record['correct']}  {record['checker']} "
                f"{record['checker_warnings'] or ''}  built in {seconds[path]:.0f} s")

        jobs = [[number_of(path), precision] for path in paths for precision in (["fp32", "ieee"] if number_of(path) in REFERENCE else ["fp32"])]
        run = results.Run(options.save, about, options.trials)
        run.finish(run.measure(jobs, lambda job: 1.0, measure))


if __name__ == "__main__":
    main()
