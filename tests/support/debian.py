"""Debian packages that tests of other people's programs need."""

import os
import shutil
import subprocess

import pytest

from toolchain import PATIENCE


def is_installed(package):
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True, text=True)
    return asked.returncode == 0 and asked.stdout == "installed"


gave_up = []  # what could not be installed: nothing is tried after that, for a network that is not there takes its time


def apt_get(*arguments):
    """True where it succeeded. Fails soon without a network, but is given time where it works: it must not end
    halfway."""
    options = ["Acquire::http::Timeout=15", "Acquire::Retries=0", "DPkg::Lock::Timeout=30"]
    command = ["apt-get", "--yes", *[word for option in options for word in ("-o", option)], *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(command, timeout=PATIENCE, env=environment, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def install(*packages):
    """True where they are installed now. Only root may, and TESSERA_INSTALL=0 forbids it."""
    if os.geteuid() or not shutil.which("apt-get") or os.environ.get("TESSERA_INSTALL") == "0" or gave_up:
        return False
    wanted = "install", "--no-install-recommends", *packages
    if not apt_get(*wanted) and not (apt_get("update") and apt_get(*wanted)):
        gave_up.extend(packages)
    return all(map(is_installed, packages))


def need_packages(*packages, may_install=True):
    """Skips the test where they are not installed and cannot, or by `may_install` shall not, be."""
    if not shutil.which("dpkg-query"):
        pytest.skip(f"this is not Debian, whose {', '.join(packages)} this test runs")
    missing = [package for package in packages if not is_installed(package)]
    if missing and not (may_install and install(*missing)):
        pytest.skip(f"not installed, and not to be installed here: {', '.join(missing)}")
