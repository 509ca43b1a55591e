"""The Turing path on whatever GPU is here: its kernels, from PTX of compute capability 7.5, chosen as for it."""

import os
import subprocess
import sys

import pytest

from toolchain import ROOT, run

ENVIRONMENT = {**os.environ, "TESSERA_CUDA_PTX": "1"}
PLAN = """
import binding
x = binding.Operand(None, 1000, 1000, 1000, 1, 0)
print(binding.Plan(binding.Context(device=binding.CUDA), x, x, binding.Result(None, 1000, 1000, 1000, 1, 0)).text())
"""


@pytest.fixture
def plan_text(driver):
    ran = subprocess.run([sys.executable, "-c", PLAN], cwd=ROOT / "tests", env=ENVIRONMENT, capture_output=True,
                         text=True)
    if "TSR_UNSUPPORTED" in ran.stderr and "TESSERA_CUDA_ARCHITECTURES" in ran.stderr:
        pytest.skip("the library was built without compute capability 7.5")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_variable_is_heeded(plan_text):
    assert "PTX" in plan_text and "split" not in next(line
                                                      for line in plan_text.splitlines() if line.startswith("kernel: "))


def test_reduced_set(plan_text):
    out = run(sys.executable, "-m", "pytest", "-q", "-c", ROOT / "tests" / "pytest.ini", ROOT / "tests", "-m",
              "sanitizer", "-k", "cuda and not ptx", env=ENVIRONMENT)
    assert " passed" in out and "failed" not in out
