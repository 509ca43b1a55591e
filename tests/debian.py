"""Debian packages that tests of other people's programs need."""

import functools
import os
import shutil
import subprocess

import pytest


def is_installed(package):
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True, text=True)
    return asked.returncode == 0 and asked.stdout == "installed"


@functools.cache
def install(*packages):
    """True where they are installed now. Only root may, and TESSERA_INSTALL=0 forbids it."""
    if os.geteuid() or not shutil.which("apt-get") or os.environ.get("TESSERA_INSTALL") == "0":
        return False
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    command = ["apt-get", "install", "--yes", "--no-install-recommends", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::Retries=0"]
    try:
        if subprocess.run([*command, *packages], timeout=180, **quiet).returncode:
            subprocess.run(["apt-get", "update", "-o", "Acquire::http::Timeout=20"], timeout=60, **quiet)
            subprocess.run([*command, *packages], timeout=180, **quiet)
    except subprocess.TimeoutExpired:
        pass
    return all(map(is_installed, packages))


def need_packages(*packages, may_install=True):
    """Skips the test where they are not installed and cannot, or by `may_install` shall not, be."""
    if not shutil.which("dpkg-query"):
        pytest.skip(f"this is not Debian, whose {', '.join(packages)} this test runs")
    missing = [package for package in packages if not is_installed(package)]
    if missing and not (may_install and install(*missing)):
        pytest.skip(f"not installed, and not to be installed here: {', '.join(missing)}")
