"""The library on 64-bit ARM: built by Debian's cross-compiler, run by an emulated processor, compared with double
precision. `make test-programs` runs it."""

import os

import pytest

from debian import need_packages
from toolchain import ROOT, cmake_build, run

pytestmark = pytest.mark.skipif(os.environ.get("TESSERA_INSTALL") != "all",
                                reason="an emulated processor takes minutes: make test-programs")
EMULATOR = "qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"


@pytest.fixture(scope="module")
def build():
    need_packages("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user")
    return cmake_build("aarch64", f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake' / 'aarch64.cmake'}", "-DTESSERA_WERROR=ON",
                       targets=["stress", "tessera_cli"])


def test_stress(build):
    assert run(*EMULATOR, build / "tests" / "stress", "brief") == "stress: every product exact\n"


def test_the_contract(build):
    """On numbers that are no integers, and on special values."""
    out = run(*EMULATOR, build / "cli" / "tessera", "check", "--quick", "--precision", "ieee", "--threads", "1")
    assert "grade of cpu at ieee: A" in out, out


def test_neon_is_chosen(build):
    out = run(*EMULATOR, build / "cli" / "tessera", "plan", "100", "100", "100")
    assert "kernel: neon" in out, out
