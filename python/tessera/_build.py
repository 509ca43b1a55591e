"""Compiles csrc/ for the torch that is installed, once, into a cache.

torch's C++ interface differs between versions, so no binary of it is shipped. The first use of a torch tensor compiles
it (20 to 40 seconds); `python -m tessera build` does so beforehand. Needed: a C++ compiler, and torch's headers, which
its wheels bring along.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import _library

SOURCES = ("gemm.cpp", "operators.cpp", "product.cpp", "drop_in.cpp")
FOLDER = _library.PACKAGE / "csrc"
HEADERS = (_library.PACKAGE / "include", _library.PACKAGE.parents[1] / "include")  # installed, or in the source tree


class BuildError(ImportError):
    """The operator could not be compiled; the message says why and what to do."""


def _header_folder() -> Path:
    for folder in HEADERS:
        if (folder / "tessera.h").exists():
            return folder
    raise BuildError(f"tessera.h is missing: looked in {' and '.join(map(str, HEADERS))}")


def _compiler() -> list[str]:
    chosen = os.environ.get("CXX")
    if chosen:
        return chosen.split()
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError("tessera compiles its operator for the torch that is installed and found no C++ compiler: install one "
                     "(Debian: apt-get install g++) or set CXX")


def _release(torch) -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def has_cuda(torch) -> bool:
    return torch.version.cuda is not None


def _loaded_libstdcxx() -> str:
    """The libstdc++ that torch runs on, by its path and in front of all others: some compilers have only the static one to
    offer, and a second copy inside the operator crashes where it prints a number; some of torch's libraries export parts of
    an older one."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "/libstdc++.so" in line:
                return line[line.index("/"):].strip()
    return "-lstdc++"


def _flags(torch) -> tuple[list[str], list[str]]:
    """For compiling and for linking."""
    root = Path(torch.__file__).resolve().parent
    release = _release(torch)
    compiling = ["-O2", "-fPIC", "-fvisibility=hidden", f"-std=c++{20 if release >= (2, 9) else 17}",
                 f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", f"-I{_header_folder()}",
                 "-isystem", str(root / "include"), "-isystem", str(root / "include/torch/csrc/api/include")]
    # libtessera is already loaded when the operator is, and is found by its soname.
    linking = ["-Wl,--no-as-needed", _loaded_libstdcxx(), str(_library.PATH.resolve()), f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu",
               "-ltorch"]
    if has_cuda(torch):
        compiling.append("-DTESSERA_TORCH_CUDA")
        linking += ["-ltorch_cuda", "-lc10_cuda"]
        if release < (2, 4):  # where the current stream can only be had through CUDA's own headers
            from torch.utils import cpp_extension
            compiling += ["-isystem", str(Path(cpp_extension.CUDA_HOME or "/usr/local/cuda") / "include")]
    return compiling, linking


def _texts() -> list[bytes]:
    return [path.read_bytes() for path in [*sorted(FOLDER.iterdir()), _header_folder() / "tessera.h"] if path.is_file()]


def operator_path() -> Path:
    """Where the operator for this torch is, or will be once built. Its name covers all that it depends on."""
    import torch
    facts = hashlib.sha256()
    for fact in (torch.__version__, str(torch.version.cuda), torch.version.git_version, _library.version(), platform.machine(), os.environ.get("CXX", "")):
        facts.update(str(fact).encode() + b"\0")
    for text in _texts():
        facts.update(text)
    cache = os.environ.get("TESSERA_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tessera")
    return Path(cache) / f"torch-{torch.__version__}-{facts.hexdigest()[:16]}.so"


def _fail(command: list[str], output: str) -> None:
    last = "\n".join([line for line in output.splitlines() if "error" in line][:8] or output.splitlines()[-8:])
    hint = "torch's C++ headers are not installed (Debian: apt-get install libtorch-dev)\n" if "torch/library.h" in last or \
        "ATen/core/Tensor.h" in last else ""
    raise BuildError(f"tessera could not compile its operator for torch.\n{hint}{last}\nThe command was: {' '.join(command)}")


def _compile(torch, target: Path, folder: Path) -> None:
    compiler = _compiler()
    compiling, linking = _flags(torch)
    objects, running = [], []
    for source in SOURCES:
        objects.append(str(folder / f"{source}.o"))
        command = [*compiler, *compiling, "-c", str(FOLDER / source), "-o", objects[-1]]
        running.append((command, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)))
    results = [(command, process.communicate()[0], process.returncode) for command, process in running]
    for command, output, status in results:
        if status:
            _fail(command, output)
    made = str(folder / "operator.so")
    command = [*compiler, "-shared", "-o", made, *objects, *linking]
    linked = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if linked.returncode:
        _fail(command, linked.stdout)
    os.replace(made, target)


@contextlib.contextmanager
def _alone(cache: Path):
    """One process at a time: those of a distributed program all come here at once."""
    import fcntl
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(quiet: bool = False) -> Path:
    """Compiles the operator unless the cache has it; its path."""
    import torch
    target = operator_path()
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"tessera cannot write its cache {target.parent} ({error}): set TESSERA_CACHE to another folder") from error
    with _alone(target.parent):
        if not target.exists():
            if not quiet:
                print(f"tessera: compiling its operator for torch {torch.__version__}, once", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                _compile(torch, target, Path(folder))
    return target
