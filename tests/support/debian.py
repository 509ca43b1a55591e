"""Debian packages that tests of other people's programs need."""

import shutil
import subprocess

import pytest

from toolchain import BUILD, PATIENCE, ROOT


def is_installed(package):
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True, text=True)
    return asked.returncode == 0 and asked.stdout == "installed"


gave_up = []  # what could not be installed: nothing is tried after that, for a network that is not there takes its time


def install(*packages):
    """True where they are installed now. It is given time where it works: it must not end halfway."""
    if not gave_up and subprocess.run([ROOT / "tests/apt", BUILD, *packages], timeout=PATIENCE).returncode:
        gave_up.extend(packages)
    return not gave_up


def need_packages(*packages, may_install=True):
    """Skips the test where they are not installed and cannot, or by `may_install` shall not, be."""
    if not shutil.which("dpkg-query"):
        pytest.skip(f"this is not Debian, whose {', '.join(packages)} this test runs")
    missing = [package for package in packages if not is_installed(package)]
    if missing and not (may_install and install(*missing)):
        pytest.skip(f"not installed, and not to be installed here: {', '.join(missing)}")
