"""The self-contained modules of kernelbench/: what the generator writes, that Python 3.8 and nvcc take it, and on the GPU each module
alone in a fresh process and folder (module_check.py). What they are to each torch, pytorch/test_modules.py asks."""

import ast
import builtins
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from toolchain import ROOT, need, run

MODULES = sorted((ROOT / "kernelbench").glob("[0-9]*.py"), key=lambda path: int(path.name.split("_")[0]))
BY_NAME = {path.stem: path for path in MODULES}
each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
CHECKS = re.findall(r"^def check_(\w+)", (ROOT / "tests/module_check.py").read_text(), re.M)


def tree(path):
    return ast.parse(path.read_text(), feature_version=(3, 8))


def strings(path):
    """The module's texts in other languages, by name."""
    return {node.targets[0].id: node.value.value for node in tree(path).body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)}


# ---- What is written --------------------------------------------------------------------------------------------------------

def test_files_are_what_the_generator_writes():
    run(sys.executable, ROOT / "kernelbench/generate.py", "--check")


def test_the_generator_notices_a_difference(tmp_path):
    for folder in ("kernelbench", "src", "include"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    source = tmp_path / "src/cuda/kernels/split/split_reduce.cu"
    source.write_text(source.read_text() + "/* another line */\n")
    said = run(sys.executable, tmp_path / "kernelbench/generate.py", "--check", expect=1)
    assert all(path.name in said for path in MODULES), said


def test_all_problems_are_there():
    assert [int(path.name.split("_")[0]) for path in MODULES] == [1, 2, 3, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18]


@each_module
def test_names_leave_the_problems_own_alone(path):
    """KernelBench runs the problem and the module in one namespace: a module's M would change the problem's sizes."""
    names = set()
    for node in tree(path).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets)
    assert {"ModelNew", "get_inputs", "get_init_inputs"} <= names
    assert not {name for name in names if len(name) < 4 or name in ("Model", "batch_size") or hasattr(builtins, name)}, names


@each_module
def test_static_rules_of_kernelbench(path):
    """Its checker cuts lines at # and //, and then refuses these wherever they stand; and asks for the two last."""
    text = "\n".join(line.split("#")[0].split("//")[0] for line in path.read_text().split("\n"))
    refused = [r"\btry\s*:", r"\bexcept\s*:", r"\bexcept\s+\w+", r"\bpass\b", r"threading", r"multiprocessing", r"concurrent\.futures",
               r"_make_subclass", r"class\s+\w+.*\(torch\.Tensor\)", r"torch\.cuda\.(Event|synchronize)", r"time\.(time|perf_counter)",
               r"torch\.(mm|bmm|matmul|einsum)\b", r"cudaDeviceSynchronize", r"cudaStreamSynchronize"]
    assert not [pattern for pattern in refused if re.search(pattern, text)]
    assert "__global__" in text and "load_inline" in text


# ---- The CUDA half ------------------------------------------------------------------------------------------------------------

IEEE = ["IEEE_COMMON", "IEEE_TILE_KERNELS"]
HOPPER = ["IEEE_COMMON", "IEEE_MMA_KERNELS", "PACK_KERNELS", "WGMMA_KERNEL"]
AMPERE = [*IEEE, "PACK_KERNELS", "MMA_KERNEL"]


@pytest.mark.slow
@pytest.mark.parametrize("name, parts, architectures", [
    pytest.param("18_transposed_both", HOPPER, ["80", "90a"], id="sm_90a beside what an older torch insists on"),
    pytest.param("8_irregular", AMPERE, ["75", "80"], id="sm_80 beside an older GPU"), pytest.param("1_square", IEEE, ["75"], id="sm_75")])
def test_kernels_compile(name, parts, architectures, tmp_path):
    """As load_inline compiles them, but for the optimisation; to machine code where the instructions are one architecture's alone."""
    of = strings(BY_NAME[name])
    source = tmp_path / "cuda.cu"
    source.write_text("#include <cuda_runtime.h>\n" + of["ARGUMENTS"] + "".join(of[part] for part in parts))
    codes = [f"-gencode=arch=compute_{code},code={'sm' if code == '90a' else 'compute'}_{code}" for code in architectures]
    run(need("nvcc"), "-fatbin", "-std=c++17", "-O1", "--threads", "2", "--expt-relaxed-constexpr", "-D__CUDA_NO_HALF_OPERATORS__",
        "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__", *codes, "-o", tmp_path / "cuda.fatbin", source)


# ---- On the GPU ---------------------------------------------------------------------------------------------------------------

def has_gpu():
    asked = subprocess.run([sys.executable, "-c", "import torch; exit(not (torch.cuda.is_available() and torch.version.cuda))"], capture_output=True)
    return asked.returncode == 0 and shutil.which("nvcc")


# Each module for the GPU that is there; and some as they are for older ones.
CASES = [(name, "") for name in BY_NAME] + [("8_irregular", "8.0"), ("3_batched", "8.0"), ("2_standard", "7.5"), ("18_transposed_both", "8.0")]


@pytest.fixture(scope="session")
def findings(tmp_path_factory):
    """What module_check.py finds of each module, each in a process and folder of its own, some side by side."""
    if not has_gpu():
        pytest.skip("no torch that sees a GPU, or no nvcc")

    def check(case):
        name, capability = case
        folder = tmp_path_factory.mktemp(name)
        shutil.copy(BY_NAME[name], folder)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        ran = subprocess.run([sys.executable, ROOT / "tests/module_check.py", folder / f"{name}.py", *capability.split()], cwd=folder,
                             capture_output=True, text=True, timeout=600,
                             env={"TORCH_EXTENSIONS_DIR": str(folder / "built"), **environment, "MAX_JOBS": "2"})
        lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        return {line["check"]: line["wrong"] for line in lines}, ran.stdout + ran.stderr

    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        return dict(zip(CASES, pool.map(check, CASES)))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_on_gpu(findings, case, check):
    found, output = findings[case]
    assert check in found, output
    assert not found[check], "\n".join(found[check])
