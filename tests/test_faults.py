"""Calls that fail: each allocation, thread, map and write in turn (tests/faults). The library gives the right result or
a status with a message, the BLAS always the right result, the command a right file or a sentence, and the Python
package the right result or an error with a sentence; none leaves anything behind. tests/pytorch/test_faults.py has the
same for torch tensors."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

import reference
from toolchain import BUILD, PATIENCE, ROOT, run, run_python

FAULTS = BUILD / "tests" / "faults"
pytestmark = pytest.mark.skipif(not (FAULTS / "libfaults.so").exists(),
                                reason="sanitizers have a malloc of their own, and tests/faults was not built")


@pytest.mark.parametrize("after", ["once", "+"])
@pytest.mark.parametrize("program", ["library", "blas"])
@pytest.mark.parametrize("kind, least", [("memory", 5), ("thread", 2)])
def test_each_call_fails(program, kind, least, after):
    """After each fault, once or with all later calls failing too, everything works again."""
    assert int(run(FAULTS / program, kind, after)) >= least, "hardly a call has failed: this test tests nothing"


def multiply_with_fault(folder, fault):
    """(whether a call failed, the exit status, standard error) of `tessera mul`."""
    hit = folder / "hit"
    hit.unlink(missing_ok=True)
    environment = {**os.environ, "LD_PRELOAD": str(FAULTS / "libfaults.so"), "FAULTS": fault, "FAULTS_HIT": str(hit)}
    command = [BUILD / "cli" / "tessera", "mul", "a.npy", "b.npy", "-o", "c.npy", "--device", "cpu", "--threads", "2"]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    return hit.exists(), ran.returncode, ran.stderr


@pytest.mark.parametrize("after", ["", "+"])
@pytest.mark.parametrize("kind, least, may_succeed", [("memory", 5, True), ("mmap", 2, False), ("thread", 1, True),
                                                      ("write", 2, False)])
def test_the_command(tmp_path, rng, kind, least, may_succeed, after):
    a, b = reference.integers(rng, 150, 420), reference.integers(rng, 420, 170)
    old = reference.integers(rng, 2, 3)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", np.asfortranarray(b))
    for number in itertools.count(1):
        np.save(tmp_path / "c.npy", old)
        failed, code, text = multiply_with_fault(tmp_path, f"{kind}:{number}{after}")
        where = f"where {kind} {number}{after} fails: exit status {code}, {text!r}"
        assert set(os.listdir(tmp_path)) <= {"a.npy", "b.npy", "c.npy", "hit"}, "a temporary file was left " + where
        if code == 0:
            assert may_succeed or not failed, where
            reference.assert_exact(np.load(tmp_path / "c.npy"), a, b)
        else:
            assert failed and code == 1 and text.startswith("tessera mul: ") and text.endswith("\n"), where
            assert np.array_equal(np.load(tmp_path / "c.npy"), old), "the old output is gone " + where
        if not failed:
            break
    assert number > least, "hardly a call has failed: this test tests nothing"


def python(script, *words, preload=FAULTS / "libfaults.so"):
    """What a script of tests/faults prints, as numbers."""
    paths = f"{ROOT / 'python'}:{os.environ.get('PYTHONPATH', '')}"
    printed = run(sys.executable, ROOT / "tests" / "faults" / script, *words,
                  env={**os.environ, "PYTHONPATH": paths, "LD_PRELOAD": str(preload)})
    return [int(count) for count in printed.split()]


def test_products_of_numpy_arrays():
    memory_once, memory, threads = python("numpy_products.py", "memory", "once", "memory", "+", "thread", "+")
    assert min(memory_once, memory) >= 6 and (threads or os.cpu_count() == 1), "hardly a call has failed"


LIMITS = """
import ctypes
import numpy as np
import binding
largest = ctypes.CDLL(None).faults_largest
largest.restype = ctypes.c_size_t
a = np.ones((700, 700), np.float32)
for limit in range(100_000, 5_000_000, 150_000):
    context = binding.Context(threads=1, max_workspace=limit)
    binding.check(binding.lib.tsr_trim(context.handle))
    largest()
    binding.gemm(context, binding.matrix(binding.Operand, a.T), binding.matrix(binding.Operand, a.T),
                 binding.matrix(binding.Result, np.empty_like(a)))
    taken = largest()
    assert 0 < taken <= limit, f"{taken} bytes were allocated, and {limit} are allowed"
"""


def test_no_more_is_allocated_than_max_workspace_allows():
    run_python(LIMITS, LD_PRELOAD=str(FAULTS / "libfaults.so"))


def test_interrupts_of_numpy_products():
    """Ctrl-C wherever it can come."""
    [points] = python("interrupts.py", preload="")
    assert points > 100, "hardly a product was interrupted"


def test_the_operator_cache(tmp_path):
    [failed] = python("operator_cache.py", tmp_path)
    assert failed > 200, "hardly a call has failed"
