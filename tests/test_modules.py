"""The self-contained modules of kernelbench/: what the generator writes, that Python 3.8 and nvcc accept it, kernels in
the CPU emulator, and on the GPU each module alone in a fresh process and folder (module_check.py).
pytorch/test_modules.py tests them with each torch."""

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

from toolchain import PATIENCE, ROOT, need, run

GENERATE = ROOT / "kernelbench/generate.py"
KEPT = ["1_square", "2_standard", "8_irregular", "16_transposed_a", "18_transposed_both"]


@pytest.fixture(scope="session")
def modules(tmp_path_factory):
    """All fifteen, by name."""
    folder = tmp_path_factory.mktemp("modules")
    run(sys.executable, GENERATE, "--all", folder)
    return {path.stem: path for path in folder.iterdir()}


def tree(path):
    return ast.parse(path.read_text(), feature_version=(3, 8))


def strings(path):
    """The module's texts in other languages, by name."""
    return {
        node.targets[0].id: node.value.value for node in tree(path).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }


# ---- What is written ------------------------------------------------------------------------------------------------

def test_the_files_kept_are_what_the_generator_writes():
    assert sorted(path.stem for path in (ROOT / "kernelbench").glob("[0-9]*.py")) == sorted(KEPT)
    run(sys.executable, GENERATE, "--check")


def test_the_files_kept_are_short_enough_to_read():
    for name in KEPT:
        assert len((ROOT / f"kernelbench/{name}.py").read_text().splitlines()) <= 1500, name


def test_the_generator_notices_a_difference(tmp_path):
    for folder in ("kernelbench", "src"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    source = tmp_path / "src/cuda/kernels/split/split_wgmma.cuh"
    source.write_text(source.read_text().replace("// endregion: fp32_products",
                                                 "/* another line */\n// endregion: fp32_products"))
    said = run(sys.executable, tmp_path / "kernelbench/generate.py", "--check", expect=1)
    assert all(name in said for name in KEPT), said


@pytest.mark.parametrize("text, word", [("/* a second pass */", "pass"), ("/* all except one */", "except"),
                                        ("// region: x", "no end of region")])
def test_the_generator_refuses(text, word, tmp_path):
    for folder in ("kernelbench", "src"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    source = tmp_path / "kernelbench/pack.cu"
    source.write_text(source.read_text() + text + "\n")
    assert word in run(sys.executable, tmp_path / "kernelbench/generate.py", expect=1)


def test_all_problems_are_there(modules):
    assert sorted(int(name.split("_")[0]) for name in modules) == [1, 2, 3, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18]


def test_names_leave_the_problems_own_alone(modules):
    """KernelBench runs the problem and the module in one namespace: a module's M would change the problem's sizes."""
    for path in modules.values():
        names = set()
        for node in tree(path).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                names.update(target.id for target in node.targets)
        assert {"ModelNew", "get_inputs", "get_init_inputs"} <= names
        assert not {
            name for name in names if len(name) < 4 or name in ("Model", "batch_size") or hasattr(builtins, name)
        }, names
        assert "__file__" not in path.read_text()


def test_static_rules_of_kernelbench(modules):
    """Its checker cuts lines at # and //, and then refuses these wherever they stand; and asks for the two last."""
    refused = [
        r"\btry\s*:", r"\bexcept\s*:", r"\bexcept\s+\w+", r"\bpass\b", r"threading", r"multiprocessing",
        r"concurrent\.futures", r"_make_subclass", r"class\s+\w+.*\(torch\.Tensor\)",
        r"torch\.cuda\.(Event|synchronize)", r"time\.(time|perf_counter)", r"torch\.(mm|bmm|matmul|einsum)\b",
        r"cudaDeviceSynchronize", r"cudaStreamSynchronize"
    ]
    for path in modules.values():
        text = "\n".join(line.split("#")[0].split("//")[0] for line in path.read_text().split("\n"))
        assert not [pattern for pattern in refused if re.search(pattern, text)], path.name
        assert "__global__" in text and "load_inline" in text


def test_lines_fit_a_window(modules):
    for path in modules.values():
        assert not [line for line in path.read_text().splitlines() if len(line) > 127], path.name


# ---- The CUDA part --------------------------------------------------------------------------------------------------

def compile_kernels(folder, hopper, architecture, *texts):
    """As load_inline compiles them, to machine code where the instructions are one architecture's alone; elsewhere to
    PTX, which need not be optimised."""
    source = folder / "cuda.cu"
    source.write_text("#include <cuda_runtime.h>\n" + "".join(texts))
    code = ["code=sm_90a"] if architecture == "90a" else [f"code=compute_{architecture}", "-Xcicc", "-O0"]
    run(need("nvcc"), "-fatbin", "-std=c++17", f"-DTESSERA_HOPPER={hopper}", "--expt-relaxed-constexpr",
        "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__",
        f"-gencode=arch=compute_{architecture},{code[0]}", *code[1:], "-o", folder / "cuda.fatbin", source)


@pytest.mark.slow
def test_kernels_compile(modules, tmp_path):
    """For Hopper, with an older architecture that some torches insist on; and for Turing."""
    of = strings(modules["1_square"])
    for architecture in ("90a", "80"):
        compile_kernels(tmp_path, 1, architecture, of["ARGUMENTS"], of["COMMON"], of["PACKING"], of["HOPPER"],
                        of["PORTABLE"])
    compile_kernels(tmp_path, 0, "75", of["ARGUMENTS"], of["COMMON"], of["PORTABLE"])


@pytest.mark.slow
def test_the_kernel_of_128_threads_compiles(modules, tmp_path):
    of = strings(modules["18_transposed_both"])
    compile_kernels(tmp_path, 1, "90a", of["ARGUMENTS"], of["COMMON"], of["HOPPER"])


def test_the_others_have_the_same_kernels(modules):
    square, both = strings(modules["1_square"]), strings(modules["18_transposed_both"])
    for name, path in modules.items():
        of = strings(path)
        assert all(of[part] == square[part] for part in ("COMMON", "PACKING", "PORTABLE")), name
        assert all(of[part] == (both if path == modules["18_transposed_both"] else square)[part]
                   for part in ("ARGUMENTS", "HOPPER")), name


@pytest.mark.slow
@pytest.mark.parametrize("hopper", [0, 1])
def test_kernels_in_the_emulator(modules, hopper, tmp_path):
    """Packing and the portable kernel on the CPU, each thread a fiber: emulator/module.cpp has the problems."""
    of = strings(modules["1_square"])
    (tmp_path / "arguments.h").write_text(of["ARGUMENTS"])
    arithmetic = of["COMMON"][of["COMMON"].index("constexpr float LO_SCALE"):]  # the emulator has its own instructions
    (tmp_path / "kernels.h").write_text(arithmetic + of["PACKING"] + of["PORTABLE"])
    run(need("g++"), "-std=c++17", "-O1", "-ffp-contract=off", "-fsanitize=address", "-w", f"-DTESSERA_HOPPER={hopper}",
        "-I", tmp_path, "-I", ROOT / "tests/emulator", "-o", tmp_path / "module", ROOT / "tests/emulator/module.cpp")
    run(tmp_path / "module", hopper + 1)


# ---- On the GPU -----------------------------------------------------------------------------------------------------

def has_gpu():
    asked = subprocess.run(
        [sys.executable, "-c", "import torch; exit(not (torch.cuda.is_available() and torch.version.cuda))"],
        capture_output=True)
    return asked.returncode == 0 and shutil.which("nvcc")


CHECKS = re.findall(r"^def check_(\w+)", (ROOT / "tests/module_check.py").read_text(), re.M)
# The modules for the GPU that is there, one of each kind; and some as they are for older GPUs.
CASES = [(name, "") for name in [*KEPT, "3_batched", "10_tensor_3d", "14_upper_triangular", "17_transposed_b"]]
CASES += [("8_irregular", "8.0"), ("3_batched", "8.0"), ("2_standard", "7.5"), ("18_transposed_both", "8.0")]


@pytest.fixture(scope="session")
def findings(modules, tmp_path_factory):
    """What module_check.py finds of each module, each in a process and folder of its own, some side by side."""
    if not has_gpu():
        pytest.skip("no torch that sees a GPU, or no nvcc")

    def check(case):
        name, capability = case
        folder = tmp_path_factory.mktemp(name)
        shutil.copy(modules[name], folder)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        ran = subprocess.run(
            [sys.executable, ROOT / "tests/module_check.py", folder / f"{name}.py", *capability.split()], cwd=folder,
            capture_output=True, text=True, timeout=PATIENCE, env={
                "TORCH_EXTENSIONS_DIR": str(folder / "built"), **environment, "MAX_JOBS": "2"
            })
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
