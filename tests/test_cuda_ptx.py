"""The Turing path on whatever GPU is here: its kernels, from PTX of compute capability 7.5, chosen as for it."""

import os
import sys

from toolchain import ROOT, run


def test_reduced_set_from_turing_ptx(driver):
    out = run(sys.executable, "-m", "pytest", "-q", "-c", ROOT / "tests" / "pytest.ini", ROOT / "tests", "-m", "sanitizer", "-k",
              "cuda and not ptx", env={**os.environ, "TESSERA_CUDA_PTX": "1"})
    assert " passed" in out and "failed" not in out


def test_the_variable_is_heeded(driver):
    source = """
import binding
x = binding.Operand(None, 1000, 1000, 1000, 1, 0)
print(binding.Plan(binding.Context(device=binding.CUDA), x, x, binding.Result(None, 1000, 1000, 1000, 1, 0)).text())
"""
    text = run(sys.executable, "-c", source, cwd=ROOT / "tests", env={**os.environ, "TESSERA_CUDA_PTX": "1"})
    assert "PTX" in text and "split" not in next(line for line in text.splitlines() if line.startswith("kernel: "))
