"""Building things in tests: compilers, CMake, and where it all goes."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = Path(os.environ["TESSERA_BUILD"])
PATIENCE = 1800  # seconds, before something counts as hanging: a machine may be busy with much else


def run(*command, expect=0, **options):
    """Runs a command; its output becomes the failure's message."""
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=PATIENCE, **options)
    assert ran.returncode == expect, f"{' '.join(map(str, command))}\n{ran.stdout}{ran.stderr}"
    return ran.stdout + ran.stderr


def run_python(source, *arguments, **environment):
    """Runs Python source in a process of its own."""
    return run(sys.executable, "-c", source, *arguments, env={**os.environ, **environment})


def need(program):
    found = shutil.which(program)
    if not found:
        pytest.skip(f"{program} is not installed")
    return found


def cmake_build(name, *flags, targets=("all", "tests")):
    """Configures and builds the project in a folder of the build folder, which is kept for the next run."""
    folder = BUILD / name
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests in another process may want the same
        run("cmake", "-S", ROOT, "-B", folder, "-DTESSERA_CUDA=OFF", *flags)
        run("cmake", "--build", folder, "--parallel", "2", "--target", *targets)
    return folder
