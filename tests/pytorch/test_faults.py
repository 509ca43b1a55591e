"""Memory and threads that are not there, in the library and in the operator: tests/faults/torch_products.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tessera
from tensors import since

PRELOADED = tessera._library.PATH.parent / "tests" / "faults" / "libfaults.so"
SCRIPT = Path(__file__).parents[1] / "faults" / "torch_products.py"


@since(2, 0)
@pytest.mark.skipif(not PRELOADED.exists(), reason="tests/faults was not built (make tests)")
def test_products_of_tensors():
    ran = subprocess.run([sys.executable, SCRIPT, "memory", "once", "memory", "+", "thread", "+"], text=True,
                         capture_output=True, timeout=1800, env={**os.environ, "LD_PRELOAD": str(PRELOADED)})
    assert ran.returncode == 0, ran.stderr
    memory_once, memory, threads = map(int, ran.stdout.split())
    assert min(memory_once, memory) >= 30 and threads, "hardly a call has failed"
