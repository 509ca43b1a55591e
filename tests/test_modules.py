"""The self-contained modules of kernelbench/: what the generator writes, what older Pythons, compilers and torches take, and on the GPU
each module alone in a fresh process and folder (module_check.py)."""

import ast
import builtins
import concurrent.futures
import importlib.util
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
    source = tmp_path / "src/cuda/split_reduce.cu"
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


# ---- The Python half ----------------------------------------------------------------------------------------------------------

FORMULAS = {3: "A @ B", 14: "torch.triu(A @ B)", 15: "torch.tril(A @ B)", 16: "A.T @ B", 17: "A @ B.T", 18: "A.T @ B.T"}


@each_module
def test_python_half(path):
    """Shapes, gradients and second derivatives are right when the C++ function multiplies as torch does."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Extension:
        @staticmethod
        def multiply(left, left_transposed, right, right_transposed, ieee):
            assert left.dim() == right.dim() and not ieee
            return (left.mT if left_transposed else left) @ (right.mT if right_transposed else right)

    module.extension, module.on_gpu = Extension, lambda A, B: (A, B)
    rand = torch.rand
    number = int(path.name.split("_")[0])
    formula = eval("lambda A, B: " + FORMULAS.get(number, "A @ B"), {"torch": torch})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", lambda *shape: rand(*(size % 3 + 1 for size in shape), dtype=torch.float64))
        A, B = (x.detach().requires_grad_() for x in module.get_inputs())
    assert module.get_init_inputs() == []
    model = module.ModelNew()
    assert torch.equal(model(A, B), formula(A, B)) and torch.equal(model(A.detach(), B.detach()), formula(A, B))
    assert torch.autograd.gradcheck(model, (A, B)) and torch.autograd.gradgradcheck(model, (A, B))
    with pytest.raises(TypeError, match="must be tensors"):
        model([1.0], B)
    with pytest.raises(ValueError, match="precision must be"):
        module.ModelNew(precision="tf32")


# ---- The C++ and CUDA halves, compiled ----------------------------------------------------------------------------------------

def torch_headers():
    """Folders of headers of the torches that are installed: this Python's, Debian's, and those TESSERA_TORCH_HEADERS names."""
    found = [os.path.dirname(spec.origin) + "/include" for spec in [importlib.util.find_spec("torch")] if spec and spec.origin]
    found += ["/usr/lib/python3/dist-packages/torch/include", *os.environ.get("TESSERA_TORCH_HEADERS", "").split(":")]
    return sorted({os.path.realpath(folder) for folder in found if os.path.exists(f"{folder}/c10/cuda/CUDAGuard.h")})


def cuda_headers():
    """nvcc itself knows where they are."""
    said = run(need("nvcc"), "--dryrun", "-E", "-x", "cu", "/dev/null")
    return re.search(r'INCLUDES="-I([^"]+)"', said)[1]


def standard(headers):
    """The C++ these headers are written in."""
    version = open(f"{headers}/../version.py").read()
    major, minor = map(int, re.search(r"__version__ = '(\d+)\.(\d+)", version).groups())
    return "c++17" if (major, minor) < (2, 10) else "c++20"


@pytest.mark.parametrize("headers", torch_headers() or [pytest.param("", marks=pytest.mark.skip(reason="no headers of a torch with c10/cuda"))])
def test_host_half_compiles(headers, tmp_path):
    """With whatever torch's headers are here; for every target, in one file, for the headers take the time. A torch without CUDA lacks
    a generated one, which says nothing."""
    macros = tmp_path / "c10/cuda/impl/cuda_cmake_macros.h"
    macros.parent.mkdir(parents=True)
    macros.write_text("#define C10_CUDA_BUILD_SHARED_LIBS\n")
    halves = {target: strings(BY_NAME[name]) for target, name in ((90, "18_transposed_both"), (80, "3_batched"), (0, "1_square"))}
    included = "".join(sorted(set(re.findall(r"^#include <.*>\n", halves[90]["HOST"], re.M))))
    source = tmp_path / "main.cpp"
    source.write_text(included + halves[90]["ARGUMENTS"] + "".join(
        f"#define TESSERA_SPLIT {target}\nnamespace target_{target} {{\n{half['HOST']}}}\n#undef TESSERA_SPLIT\n" for target, half in halves.items()))
    folders = [headers, f"{headers}/torch/csrc/api/include", tmp_path, cuda_headers()]
    run(need("g++"), "-fsyntax-only", f"-std={standard(headers)}", "-Wall", "-Wno-deprecated-enum-enum-conversion",
        "-Wno-deprecated-enum-float-conversion", "-Werror", *(word for folder in folders for word in ("-isystem", folder)), source)


IEEE, HOPPER, AMPERE = ["IEEE_KERNELS"], ["IEEE_KERNELS", "PACK_KERNELS", "WGMMA_KERNEL"], ["IEEE_KERNELS", "PACK_KERNELS", "MMA_KERNEL"]


@pytest.mark.parametrize("name, parts, architectures", [
    pytest.param("18_transposed_both", HOPPER, ["80", "90a"], id="sm_90a beside what an older torch insists on"),
    pytest.param("8_irregular", AMPERE, ["75", "80"], id="sm_80 beside an older GPU"), pytest.param("1_square", IEEE, ["75"], id="sm_75")])
def test_kernels_compile(name, parts, architectures, tmp_path):
    """As load_inline compiles them, but for the optimisation."""
    of = strings(BY_NAME[name])
    source = tmp_path / "cuda.cu"
    source.write_text("#include <cuda_runtime.h>\n" + of["ARGUMENTS"] + "".join(of[part] for part in parts))
    codes = [f"-gencode=arch=compute_{code},code=compute_{code}" for code in architectures]
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
