"""The self-contained modules of kernelbench/ with this torch: the Python part runs, the C++ part compiles. No GPU."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
NAMES = [
    "1_square", "2_standard", "3_batched", "6_large_k", "7_small_k", "8_irregular", "9_tall_skinny", "10_tensor_3d",
    "11_tensor_4d", "13_symmetric", "14_upper_triangular", "15_lower_triangular", "16_transposed_a", "17_transposed_b",
    "18_transposed_both"
]
FORMULAS = {
    14: lambda A, B: torch.triu(A @ B), 15: lambda A, B: torch.tril(A @ B), 16: lambda A, B: A.T @ B,
    17: lambda A, B: A @ B.T, 18: lambda A, B: A.T @ B.T
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """All fifteen modules."""
    folder = tmp_path_factory.mktemp("modules")
    subprocess.run([sys.executable, str(ROOT / "kernelbench/generate.py"), "--all", str(folder)], check=True)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_python_part(name, folder, monkeypatch):
    """Shapes, gradients and second derivatives are right when the C++ function multiplies as torch does."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Extension:
        @staticmethod
        def multiply(left, right, ieee):
            assert left.dim() == right.dim() and not ieee
            return left @ right

    formula = FORMULAS.get(int(name.split("_")[0]), lambda A, B: A @ B)
    rand, to = torch.rand, torch.Tensor.to
    module.extension = Extension
    monkeypatch.setattr(torch.Tensor, "to", lambda x, *to_what, **as_what: x
                        if to_what == ("cuda", ) else to(x, *to_what, **as_what))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "rand", lambda *shape: rand(*(size % 3 + 1 for size in shape), dtype=torch.float64))
        A, B = (x.detach().requires_grad_() for x in module.get_inputs())
    assert module.get_init_inputs() == []
    model = module.ModelNew()
    assert torch.equal(model(A, B), formula(A, B)) and torch.equal(model(A.detach(), B.detach()), formula(A, B))
    assert torch.autograd.gradcheck(model, (A, B)) and torch.autograd.gradgradcheck(model, (A, B))
    with pytest.raises(RuntimeError, match="A must have as many .*, but they have shapes"):
        model(A, B[..., :-1, :-1])
    with pytest.raises(TypeError, match="must be tensors"):
        model([1.0], B)
    with pytest.raises(ValueError, match="precision must be"):
        module.ModelNew(precision="tf32")


def folders_of_headers(tmp_path):
    """torch's, and CUDA's, which nvcc knows. A torch without CUDA lacks a generated header, which says nothing."""
    if not shutil.which("nvcc") or not shutil.which("g++"):
        pytest.skip("nvcc or g++ is not installed")
    said = subprocess.run(["nvcc", "--dryrun", "-E", "-x", "cu", "/dev/null"], capture_output=True, text=True,
                          check=True).stderr
    torch_folder = Path(torch.__file__).parent / "include"
    if not (torch_folder / "c10/cuda/CUDAGuard.h").exists():
        pytest.skip("this torch came without headers for CUDA")
    macros = tmp_path / "c10/cuda/impl/cuda_cmake_macros.h"
    macros.parent.mkdir(parents=True)
    macros.write_text("#define C10_CUDA_BUILD_SHARED_LIBS\n")
    return [
        torch_folder, torch_folder / "torch/csrc/api/include", tmp_path,
        re.search(r'INCLUDES="-I([^"]+)"', said)[1]
    ]


def test_cpp_part(folder, tmp_path):
    """For Hopper and for other GPUs, of matrices and of batches, in one file: it is the headers that take the time."""
    folders = folders_of_headers(tmp_path)
    headers, texts = [], []
    for name, hopper in (("18_transposed_both", 1), ("3_batched", 0), ("1_square", 1)):
        tree = ast.parse((folder / f"{name}.py").read_text())
        of = {
            node.targets[0].id: node.value.value for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        }
        lines = (of["ARGUMENTS"] + of["HOST"]).splitlines()
        # Without pybind, which needs Python.h.
        headers += [line for line in lines if line.startswith("#include") and "torch/csrc" not in line]
        body = "\n".join(line for line in lines if not line.startswith("#include"))
        texts.append(f"#define TESSERA_HOPPER {hopper}\nnamespace of_{name} {{\n" +
                     body.replace('extern "C"', "inline namespace kernels") + "\n}\n#undef TESSERA_HOPPER\n")
    source = tmp_path / "main.cpp"
    source.write_text("\n".join(headers) + "\n" + "".join(texts))
    standard = "c++20" if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10) else "c++17"
    compiled = subprocess.run([
        "g++", "-fsyntax-only", f"-std={standard}", "-Wall", "-Wno-deprecated-enum-enum-conversion",
        "-Wno-deprecated-enum-float-conversion", "-Werror", *(f"-isystem{path}" for path in folders),
        str(source)
    ], capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
