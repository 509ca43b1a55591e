"""Calls that fail: each allocation, thread, map and write in turn (tests/faults). The library gives the right result or
a status with a message, the BLAS always the right result, and the command a right file or a sentence; it leaves nothing
behind."""

import itertools
import os
import subprocess

import numpy as np
import pytest

import reference
from toolchain import BUILD, run

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
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
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
