"""Which CPU kernel runs: options.kernel, the environment variable, the best that runs here."""

import os
import subprocess
import sys

import pytest

import binding
from binding import CPU
from engine import kernel_names

KERNELS = kernel_names(CPU)

SOURCE = """
import binding
x = binding.Operand(None, 100, 100, 100, 1, 0)
print(binding.Plan(binding.Context(), x, x, binding.Result(None, 100, 100, 100, 1, 0)).text())
"""


def planned_kernel(environment):
    ran = subprocess.run([sys.executable, "-c", SOURCE], cwd=os.path.dirname(__file__), capture_output=True, text=True,
                         env={**os.environ, **environment})
    if ran.returncode:
        return ran.stderr.splitlines()[-1]
    return next(line.split()[1] for line in ran.stdout.splitlines() if line.startswith("kernel: "))


def test_the_portable_kernel_is_always_there():
    assert "portable" in KERNELS


def test_instruction_sets_that_the_machine_has_are_used():
    """So that a kernel which quietly stops being offered does not quietly stop being tested."""
    with open("/proc/cpuinfo") as file:
        flags = next((set(line.split()) for line in file if line.startswith("flags")), set())
    assert ("avx2" in KERNELS) == ({"avx2", "fma"} <= flags)
    assert ("avx512" in KERNELS) == ("avx512f" in flags)
    assert ("amx" in KERNELS) == ({"amx_tile", "amx_bf16", "avx512f"} <= flags)


def test_the_best_is_the_default():
    assert planned_kernel({"TESSERA_CPU_KERNEL": ""}) == KERNELS[0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_environment(kernel):
    assert planned_kernel({"TESSERA_CPU_KERNEL": kernel}) == kernel


def test_environment_with_a_name_that_is_none():
    said = planned_kernel({"TESSERA_CPU_KERNEL": "no-such-kernel"})
    assert "TESSERA_CPU_KERNEL" in said and "no-such-kernel" in said and "TSR_INVALID_ARGUMENT" in said


def test_info_lists_what_there_is():
    lines = binding.info().splitlines()
    assert lines[0] == f"tessera: {binding.lib.tsr_version().decode()}"
    assert any(line.startswith("cpu: ") for line in lines)
    assert any(line.startswith("cuda: ") for line in lines)


@pytest.mark.parametrize("kernel", ["no-such-kernel", ""])
def test_option_with_a_name_that_is_none(kernel):
    with pytest.raises(binding.TesseraError, match=rf'options\.kernel is "{kernel}"'):
        binding.Context(kernel=kernel)
