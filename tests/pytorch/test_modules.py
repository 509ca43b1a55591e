"""The self-contained modules of kernelbench/ and this torch: their Python half runs, their C++ half compiles. No GPU is needed."""

import ast
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

MODULES = sorted((Path(__file__).parents[2] / "kernelbench").glob("[0-9]*.py"), key=lambda path: int(path.name.split("_")[0]))
FORMULAS = {14: lambda A, B: torch.triu(A @ B), 15: lambda A, B: torch.tril(A @ B), 16: lambda A, B: A.T @ B, 17: lambda A, B: A @ B.T,
            18: lambda A, B: A.T @ B.T}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_python_half(path, monkeypatch):
    """Shapes, gradients and second derivatives are right when the C++ function multiplies as torch does."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Extension:
        @staticmethod
        def multiply(left, left_transposed, right, right_transposed, ieee):
            assert left.dim() == right.dim() and not ieee
            return (left.mT if left_transposed else left) @ (right.mT if right_transposed else right)

    formula = FORMULAS.get(int(path.name.split("_")[0]), lambda A, B: A @ B)
    rand = torch.rand
    module.extension, module.on_gpu = Extension, lambda A, B: (A, B)
    with monkeypatch.context() as patch:
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


def folders_of_headers(tmp_path):
    """torch's, and CUDA's, which nvcc knows. A torch without CUDA lacks a generated header, which says nothing."""
    if not shutil.which("nvcc") or not shutil.which("g++"):
        pytest.skip("nvcc or g++ is not installed")
    said = subprocess.run(["nvcc", "--dryrun", "-E", "-x", "cu", "/dev/null"], capture_output=True, text=True, check=True).stderr
    torch_folder = Path(torch.__file__).parent / "include"
    if not (torch_folder / "c10/cuda/CUDAGuard.h").exists():
        pytest.skip("this torch came without headers for CUDA")
    macros = tmp_path / "c10/cuda/impl/cuda_cmake_macros.h"
    macros.parent.mkdir(parents=True)
    macros.write_text("#define C10_CUDA_BUILD_SHARED_LIBS\n")
    return [torch_folder, torch_folder / "torch/csrc/api/include", tmp_path, re.search(r'INCLUDES="-I([^"]+)"', said)[1]]


def test_cpp_half(tmp_path):
    """For every target, in one file: it is the headers that take the time."""
    folders = folders_of_headers(tmp_path)
    halves = {}
    for target, name in ((90, "18_transposed_both"), (80, "3_batched"), (0, "1_square")):
        (path,) = [path for path in MODULES if path.stem == name]
        halves[target] = {node.targets[0].id: node.value.value for node in ast.parse(path.read_text()).body
                          if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)}
    included = "".join(re.findall(r"^#include <.*>\n", halves[90]["HOST"], re.M))
    source = tmp_path / "main.cpp"
    source.write_text(included + halves[90]["ARGUMENTS"] + "".join(
        f"#define TESSERA_SPLIT {target}\nnamespace target_{target} {{\n{half['HOST']}}}\n#undef TESSERA_SPLIT\n" for target, half in halves.items()))
    standard = "c++20" if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10) else "c++17"
    compiled = subprocess.run(["g++", "-fsyntax-only", f"-std={standard}", "-Wall", "-Wno-deprecated-enum-enum-conversion",
                               "-Wno-deprecated-enum-float-conversion", "-Werror", *(f"-isystem{folder}" for folder in folders), str(source)],
                              capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
