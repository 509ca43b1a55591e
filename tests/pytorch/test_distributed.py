"""More than one process: DTensor, tensor parallelism and FSDP2 with the drop-in on, by torchrun and gloo on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensors import since

pytestmark = pytest.mark.skipif(os.environ.get("TESSERA_INSTALL") != "all",
                                reason="half a minute of processes: TESSERA_INSTALL=all make test-pytorch")
HERE = Path(__file__).parent


# torch 2.13 with gloo says this when processes exit, tessera imported or not: in one of sixteen runs of four processes,
# on a busy machine in one of three.
ABORTED_AT_EXIT = "terminate called without an active exception"


def torchrun(processes, program, *arguments):
    """The output of so many processes; the standalone rendezvous takes a free port."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
        str(program), *arguments
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for _ in range(6):
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, cwd=HERE)
        if ABORTED_AT_EXIT not in ran.stderr:
            break
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return ran.stdout


@since(2, 6)
def test_sharded_products():
    output = torchrun(4, HERE / "distributed_worker.py")
    for check in ("check_products", "check_tensor_parallel", "check_fsdp"):
        assert f"{check}: right on 4 processes" in output


@since(2, 6)
def test_tensor_parallel_example():
    output = torchrun(2, HERE.parents[1] / "examples" / "tensor_parallel.py", "--width", "64", "--steps", "2")
    assert "agrees with one process" in output
