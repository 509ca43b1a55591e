"""The modules of kernelbench/ as KernelBench judges them.

    git clone https://github.com/ScalingIntelligence/KernelBench
    python3 bench/gpu/kernelbench.py KernelBench [--save FILE]
    python3 bench/gpu/kernelbench.py [--only 1 2 8 16 18]

With a clone of KernelBench, its own functions judge each module beside the problem's own model: its static checker,
five correctness trials, then the mean of 100 calls, the L2 cache flushed before each, for the module and for eager
torch. Without one, the same method is used, written here anew, and records say so ("method"); the checker is left out.

The reference problems are measured in both precisions, the others in the default one. Added to that: the errors of both
against float64 on the problem's inputs, and how long the module takes to compile, unless TORCH_EXTENSIONS_DIR names a
folder where it may have been before. The modules are compiled first, side by side, so that nothing else runs while they
are timed.
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
    """KernelBench's modules, without its package's __init__, which asks for clients of language models. What else of
    its packages is not installed is stood in for: nothing here uses it."""
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
    subprocess.run([sys.executable, "-c", "import runpy, sys; runpy.run_path(sys.argv[1])['ModelNew']()",
                    str(path)], check=True)
    return time.monotonic() - begin


def differences(model, reference, inputs):
    """Of both models on the same inputs: relative Frobenius error and largest error against float64, by blocks."""
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
    return [(squares[i] / norm)**0.5 for i in range(2)], largest


FORMULAS = {
    14: lambda A, B: torch.triu(torch.matmul(A, B)), 15: lambda A, B: torch.tril(torch.matmul(A, B)),
    16: lambda A, B: torch.matmul(A.T, B), 17: lambda A, B: torch.matmul(A, B.T),
    18: lambda A, B: torch.matmul(A.T, B.T)
}


class Problem(torch.nn.Module):
    """A problem's own model, as KernelBench has it."""
    def __init__(self, number):
        super().__init__()
        self.forward = FORMULAS.get(number, torch.matmul)


def call_times(model, inputs, trials):
    """KernelBench's timing: events around one Python call, after 256 MB were written. Milliseconds."""
    with torch.no_grad():
        for _ in range(5):
            model(*inputs)
        times = []
        for _ in range(trials):
            torch.cuda.synchronize()
            torch.empty(256 << 20, dtype=torch.uint8, device="cuda").fill_(42)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            model(*inputs)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
    return times


def judge_alone(path, source, precision, trials):
    """What eval_kernel_against_ref finds, without KernelBench."""
    context = {}
    exec(source, context)
    model, reference, correct = context["ModelNew"](), Problem(number_of(path)), 0
    for seed in range(5):
        torch.manual_seed(seed)
        inputs = [x.cuda() for x in context["get_inputs"]()]
        with torch.no_grad():
            result, expected = model(*inputs), reference(*inputs)
        correct += result.shape == expected.shape and torch.allclose(result, expected, atol=1e-4, rtol=1e-4)
    if correct < 5:
        raise RuntimeError(f"{path.name}, {precision}: {correct} of 5 correctness trials passed")
    times = {what: call_times(f, inputs, trials) for what, f in (("", model), ("torch_", reference))}
    record = {"method": "KernelBench timing re-implemented", "correct": f"({correct} / 5)", "checker": "not run"}
    for what, of in times.items():
        record[f"{what}ms"] = float(f"{sum(of) / len(of):.3g}")
        record[f"{what}ms_std"] = float(f"{torch.tensor(of).std().item():.3g}")
    return {**record, "checker_warnings": []}, model, reference, inputs


def judge_by_kernelbench(kernelbench, path, problem, source, trials):
    check = kernelbench.checker.validate_kernel_static
    valid, errors, warnings = check(path.read_text(), backend="cuda", precision="fp32")
    talk = io.StringIO()
    with contextlib.redirect_stdout(talk):
        result = kernelbench.eval.eval_kernel_against_ref(problem.read_text(), source, num_correct_trials=5,
                                                          num_perf_trials=trials, measure_performance=True,
                                                          device=torch.device("cuda:0"), precision=torch.float32)
    if not result or not result.correctness:
        raise RuntimeError(f"{path.name}: KernelBench says {vars(result) if result else None}\n{talk.getvalue()}")
    context = {}
    exec(problem.read_text(), context)
    reference, inputs = context["Model"](), [x.cuda() for x in context["get_inputs"]()]
    exec(source, context)
    record = {
        "ms": result.runtime, "torch_ms": result.ref_runtime, "ms_std": result.runtime_stats["std"],
        "torch_ms_std": result.ref_runtime_stats["std"], "correct": result.metadata["correctness_trials"],
        "checker": "valid" if valid else "; ".join(errors), "checker_warnings": warnings
    }
    return record, context["ModelNew"](), reference, inputs


def judge(kernelbench, path, problem, precision, trials):
    """kernelbench: None if there is no clone of it."""
    source = path.read_text()
    if precision != "fp32":
        source += f'\nModelNew = functools.partial(ModelNew, precision="{precision}")\n'
    if kernelbench:
        record, model, reference, inputs = judge_by_kernelbench(kernelbench, path, problem, source, trials)
    else:
        record, model, reference, inputs = judge_alone(path, source, precision, trials)
    error, largest = differences(model, reference, inputs)
    torch.cuda.empty_cache()
    return {
        "what": "module", "problem": number_of(path), "name": path.stem.split(
            "_", 1)[1], "precision": precision, "speedup": round(record["torch_ms"] / record["ms"], 3),
        "trials": trials, **record, "error": float(f"{error[0]:.3e}"), "torch_error": float(f"{error[1]:.3e}"),
        "largest_error": float(f"{largest[0]:.3e}"), "torch_largest_error": float(f"{largest[1]:.3e}")
    }


def main():
    parser = argparse.ArgumentParser(description="the modules of kernelbench/ by KernelBench's own measure")
    parser.add_argument("kernelbench", type=pathlib.Path, nargs="?", help="a clone of KernelBench")
    parser.add_argument("--commit", help="KernelBench's commit, where the folder is no clone")
    parser.add_argument("--only", type=int, nargs="+", metavar="PROBLEM", help="only these problems, in this order")
    parser.add_argument("--trials", type=int, default=100, help="calls to time (default 100)")
    parser.add_argument("--save", type=pathlib.Path, help="write the records there as JSON")
    options = parser.parse_args()
    kernelbench, commit = None, "none: its timing re-implemented"
    if options.kernelbench:
        asked = ["git", "-C", str(options.kernelbench), "rev-parse", "HEAD"]
        commit = (options.commit or subprocess.run(asked, capture_output=True, text=True, check=True).stdout)[:12]
        kernelbench = load_kernelbench(options.kernelbench)
    about = machine.gpu(torch=torch.__version__, cuda=torch.version.cuda, kernelbench_commit=commit)

    with tempfile.TemporaryDirectory() as folder:
        generated = pathlib.Path(folder, "modules")
        subprocess.run([sys.executable, ROOT / "kernelbench/generate.py", "--all", generated], check=True)
        modules = {number_of(path): path for path in generated.iterdir()}
        numbers = options.only or [*REFERENCE, *sorted(set(modules) - set(REFERENCE))]
        paths = [modules[number] for number in numbers]
        fresh = os.environ.setdefault("TORCH_EXTENSIONS_DIR", folder) == folder
        with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
            seconds = dict(zip(paths, pool.map(build, paths)))

        def measure(job):
            path, precision = modules[job[0]], job[1]
            problem = kernelbench and next((options.kernelbench / "KernelBench/level1").glob(f"{job[0]}_*.py"))
            record = {
                **judge(kernelbench, path, problem, precision, options.trials),
                **({"build_s": round(seconds[path], 1)} if fresh else {})
            }
            return [record
                    ], (f"{job[0]:3d} {record['name']:18s} {precision}  {record['ms']:8.3f} ms  "
                        f"torch {record['torch_ms']:8.3f} ms  {record['speedup']:5.2f} x  "
                        f"error {record['error']:.2e} (torch {record['torch_error']:.2e})  {record['correct']}  "
                        f"{record['checker']} {record['checker_warnings'] or ''}  built in {seconds[path]:.0f} s  "
                        f"{record.get('method', '')}")

        jobs = [[number_of(path), precision] for path in paths
                for precision in (["fp32", "ieee"] if number_of(path) in REFERENCE else ["fp32"])]
        run = results.Run(options.save, about, options.trials)
        run.finish(run.measure(jobs, lambda job: 1.0, measure))


if __name__ == "__main__":
    main()
