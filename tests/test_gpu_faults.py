"""Faults of a GPU and its driver, made by the stand-in driver (fake_cuda/): fake_cuda/faults.py, and a driver that
lacks a symbol."""

import re

from test_cuda_host import FAKE, HERE, pytest_passes, pytestmark, run  # noqa: F401
from toolchain import ROOT

SYMBOLS = re.findall(r"^    SYMBOL\((cu\w+)\)", (ROOT / "src" / "cuda" / "driver.h").read_text(), re.M)

# A process has one driver, so each folder gets a child.
CREATE = """
import os, sys
import binding
for folder in sys.argv[1:]:
    child = os.fork()
    if not child:
        os.environ["LD_LIBRARY_PATH"] = folder
        for _ in range(2):
            try:
                binding.Context(binding.CUDA)
                print(os.path.basename(folder), "made")
            except binding.TesseraError as error:
                print(os.path.basename(folder), error)
        binding.info()
        binding.Context(binding.CPU)
        sys.stdout.flush()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        print(os.path.basename(folder), "ended with", status)
"""


def test_faults():
    pytest_passes(HERE / "fake_cuda" / "faults.py", FAKE_CUDA_DEVICES="2")


def test_a_driver_that_lacks_a_symbol(tmp_path):
    """Each that the library calls, taken out in turn by another spelling: TSR_NO_DEVICE, by the symbol's name, on every
    call, and the CPU works."""
    driver = (FAKE / "libcuda.so.1").read_bytes()
    assert len(SYMBOLS) > 40
    exported = {}
    for symbol in SYMBOLS:
        spellings = re.findall(rb"\0(" + symbol.encode() + rb"(?:_v\d)?)\0", driver)
        exported[symbol] = max(spellings, key=len).decode()
        folder = tmp_path / symbol
        folder.mkdir()
        changed = exported[symbol].encode()
        changed = b"\0" + changed[:-1] + bytes([changed[-1] ^ 1]) + b"\0"
        (folder / "libcuda.so.1").write_bytes(driver.replace(b"\0" + exported[symbol].encode() + b"\0", changed))
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "libcuda.so.1").write_bytes(driver)

    status, output = run("-c", CREATE, whole, *(tmp_path / symbol for symbol in SYMBOLS), LD_LIBRARY_PATH="")
    said = {
        symbol: [line for line in output.splitlines() if line.startswith(f"{symbol} ")]
        for symbol in [*SYMBOLS, "whole"]
    }
    assert status == 0 and said["whole"] == ["whole made"] * 2, output
    for symbol in SYMBOLS:
        reason = (
            "does not tell its version" if symbol == "cuDriverGetVersion" else f"lacks {exported[symbol]}: reinstall"
        )
        assert len(said[symbol]) == 2 and said[symbol][0] == said[symbol][1], said[symbol]
        assert "TSR_NO_DEVICE" in said[symbol][0] and reason in said[symbol][0], said[symbol]
