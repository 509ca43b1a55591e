"""The host code of the CUDA engine on a driver of our own (fake_cuda/), which computes in C what the kernels promise:
plans, launches, arguments, workspace, capture and errors are tested on machines without a GPU. Each test is a process
of its own, for a process has one driver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import binding
from toolchain import BUILD, PATIENCE

HERE = Path(__file__).parent
FAKE = BUILD / "tests" / "fake_cuda"
QUICK = [word for word in sys.argv if word == "--quick"]  # for the tests inside these, too

pytestmark = [
    pytest.mark.skipif(not binding.lib.tsr_has_cuda(), reason="the library was built without the CUDA engine"),
    pytest.mark.skipif("TESSERA_FAKE_CUDA" in os.environ, reason="this is the fake driver already")]


def run(*command, **environment):
    """Runs Python on the fake driver; (exit status, output)."""
    assert (FAKE / "libcuda.so.1").exists(), "the fake driver was not built"
    ran = subprocess.run([sys.executable, *map(str, command)], cwd=HERE, capture_output=True, text=True,
                         timeout=PATIENCE,
                         env={**os.environ, "LD_LIBRARY_PATH": str(FAKE), "TESSERA_FAKE_CUDA": "1", **environment})
    return ran.returncode, ran.stdout + ran.stderr


def pytest_passes(*arguments, **environment):
    status, output = run("-m", "pytest", "-c", HERE / "pytest.ini", "--rootdir", HERE, "-q", "-x", *QUICK, *arguments,
                         **environment)
    assert status == 0, output
    assert " passed" in output, output


# The tests that run on every engine, as far as the host code has a part in them; a sample where many shapes are there
# for the kernels, which the driver stands in for.
GENERAL = ["addend", "attention_calls", "batch", "errors", "packed", "plans", "special_values", "stats", "strides"]
SAMPLED = ["exact", "scaling"]
ENGINES = ("cuda and not ieee_tile and not t128 and not mma and not small_32 and not ieee_long and not direct_64x32 "
           "and not warp_32 and not tf32_128x256")


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERAL)
def test_the_general_tests(name):
    pytest_passes(HERE / f"test_{name}.py", "-k", ENGINES)


def test_pointers_streams_and_contexts():
    """Of test_cuda_engine.py, what the driver knows of a call's arguments."""
    chosen = "host_ or managed or pointer or another_context or left_current or not_the_primary or is_none"
    pytest_passes(HERE / "test_cuda_engine.py", "-k", f"{ENGINES} and ({chosen})")


def test_direct_kernels():
    """How many thread blocks, slices and clusters there are."""
    pytest_passes(HERE / "test_cuda_direct.py", "-k", "cuts or tiles_of_a_block or batches")


@pytest.mark.slow
def test_batch_invariance():
    """Which plan, and which rows fall back; how rows are summed is the kernels'."""
    pytest_passes(HERE / "test_batch_invariant.py", "-k",
                  f"{ENGINES} and (neighbours and 40-130 or same_plan or batches) or thin_kernels or partial_sums")


@pytest.mark.slow
def test_a_sample_of_the_general_tests():
    pytest_passes(*(HERE / f"test_{name}.py" for name in SAMPLED), "--quick", "-k", ENGINES)


@pytest.mark.slow
@pytest.mark.parametrize("capability, environment", [(75, {}), (86, {}), (120, {}), (90, {"TESSERA_CUDA_PTX": "1"})])
def test_products_on_other_gpus(capability, environment):
    pytest_passes(HERE / "test_exact.py", HERE / "test_batch.py", "--quick", "-k", "cuda-fp32 and not split",
                  FAKE_CUDA_CAPABILITY=str(capability), **environment)


def test_scenarios():
    pytest_passes(HERE / "fake_cuda" / "scenarios.py", FAKE_CUDA_DEVICES="2")


@pytest.mark.slow
def test_products_in_host_memory():
    pytest_passes(HERE / "fake_cuda" / "offload.py")


def test_products_in_host_memory_with_copiers_that_stall():
    pytest_passes(HERE / "fake_cuda" / "offload.py", "-k", "many_transfer_blocks", TESSERA_LIBRARY=str(
        FAKE / "libtessera_stalling.so"))


# ---- Machines that cannot -------------------------------------------------------------------------------------------

CREATE = """
import binding
try:
    context = binding.Context(binding.CUDA)
    print("made")
except binding.TesseraError as error:
    print(error)
"""


@pytest.mark.parametrize("environment, words", [
    ({"FAKE_CUDA_DEVICES": "0"}, ["TSR_NO_DEVICE", "no NVIDIA GPU is visible"]),
    ({"FAKE_CUDA_DRIVER": "11080"}, ["TSR_NO_DEVICE", "supports CUDA 11.8", "needs 12.0", "update NVIDIA's driver"]),
    ({"FAKE_CUDA_BROKEN": "cuInit"}, ["TSR_NO_DEVICE", "does not start"]),
    ({"FAKE_CUDA_CAPABILITY": "70"}, ["TSR_UNSUPPORTED", "Fake GPU 0", "compute capability 7.0", "needs 7.5"]),
    ({"FAKE_CUDA_MEMORY": "8"}, ["TSR_OUT_OF_MEMORY", "GPU 0"]),
    ({"FAKE_CUDA_BROKEN": "cuModuleLoadData"}, ["TSR_DEVICE_ERROR", "loading the ieee_scale kernels"]),
    ({}, ["made"])])
def test_making_a_context(environment, words):
    status, output = run("-c", CREATE, **environment)
    assert status == 0 and all(word in output for word in words), output


def test_info_says_what_is_missing():
    status, output = run("-c", "import binding; print(binding.info())", FAKE_CUDA_DEVICES="0")
    assert status == 0 and "cuda: no NVIDIA GPU is visible" in output
    status, output = run("-c", "import binding; print(binding.info())", FAKE_CUDA_CAPABILITY="70")
    assert status == 0 and "Fake GPU 0, compute capability 7.0" in output and "too old to be used" in output
    assert "cuda kernel: split_fp32_sm90, tile 128 x 128, 384 threads, does not run here" in output


def test_info_on_a_turing_gpu():
    status, output = run("-c", "import binding; print(binding.info())", FAKE_CUDA_CAPABILITY="75")
    kernels = {
        line.split(",")[0].removeprefix("cuda kernel: "): line for line in output.splitlines()
        if line.startswith("cuda kernel")
    }
    assert status == 0 and kernels["ieee_tile_128x64"].endswith("runs here")
    assert kernels["ieee_tile_128x128"].endswith(("needs compute capability 8.0 or newer", "left out of this build"))


# ---- Workspace ------------------------------------------------------------------------------------------------------

PRODUCT = """
import numpy as np
import binding, engine as engines
made = engines.Engine(binding.CUDA, binding.FP32, "split_fp32_sm90")
def product(size):
    a = np.ones((size, size), np.float32)
    try:
        print("right" if (made.product(a, a) == size).all() else "wrong")
    except binding.TesseraError as error:
        print(error)
product(300)
product(100)
"""


def test_a_limited_pool():
    status, output = run("-c", PRODUCT, TESSERA_CUDA_POOL_LIMIT="300000")
    lines = output.splitlines()
    assert status == 0 and "TSR_OUT_OF_MEMORY" in lines[0] and "bytes of workspace" in lines[0] and lines[
        1] == "right", output


def test_a_gpu_without_pools():
    status, output = run("-c", PRODUCT, FAKE_CUDA_POOLS="0")
    assert status == 0 and output.count("TSR_UNSUPPORTED") == 2 and "pass launch.workspace" in output, output
