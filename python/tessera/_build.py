"""The operator (csrc/) for the torch that is installed: the one beside the library, or compiled, once, into a cache.

torch's C++ interface differs between releases, and its stable part knows neither autograd nodes nor classes. So wheels
carry an operator for each current release, all builds of it (packaging/wheel.py); one for any other torch is compiled
at the first use of a torch tensor, which takes about a minute; `python -m tessera build` does so beforehand. Needed
then: a C++ compiler, and torch's headers, which its wheels bring along.

What the cache holds is code that this process will run. So the folder and the files must belong to the user (or root)
and be writable by nobody else, links are not followed, and each operator has its checksum beside it (NAME.so.sha256).
An operator that fails any of this is compiled again; a folder that does is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, Optional

from . import _library

# The sources, in groups that are compiled as one: it is torch's headers that take the time.
UNITS = (("gemm.cpp", "operators.cpp"), ("product.cpp", "drop_in.cpp"),
         ("attention.cpp", "attention_operator.cpp", "attention_drop_in.cpp"))
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
    raise BuildError("tessera compiles its operator for the torch that is installed and found no C++ compiler: install "
                     "one (Debian: apt-get install g++) or set CXX")


class Torch(NamedTuple):
    """What an operator is compiled for: a torch that is installed, or the headers of one."""
    folder: Path  # the package
    version: str
    git_version: Optional[str]
    cuda: Optional[str]
    cxx11_abi: bool

    @property
    def release(self) -> tuple[int, int]:
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def shipped_name(self) -> str:
        """The same for all builds of a release: with CUDA, of whichever version, or without."""
        return f"torch-{self.version.partition('+')[0]}-{str(self.git_version)[:12]}.so"


def installed_torch() -> Torch:
    import torch
    return Torch(Path(torch.__file__).resolve().parent, torch.__version__, torch.version.git_version,
                 torch.version.cuda, torch._C._GLIBCXX_USE_CXX11_ABI)


def _loaded_libstdcxx() -> str:
    """The libstdc++ that torch runs on, by its path and in front of all others. Some compilers offer only a static one,
    and a second copy inside the operator crashes where it prints a number; some of torch's libraries export parts of an
    older one."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "/libstdc++.so" in line:
                return line[line.index("/"):].strip()
    return "-lstdc++"


def _flags(torch: Torch) -> tuple[list[str], list[str]]:
    """For compiling and for linking."""
    include = torch.folder / "include"
    compiling = ["-O2", "-fPIC", "-fvisibility=hidden", "-fstack-protector-strong", "-U_FORTIFY_SOURCE",
                 "-D_FORTIFY_SOURCE=2", f"-ffile-prefix-map={FOLDER}/=", f"-ffile-prefix-map={include}/=",
                 f"-std=c++{20 if torch.release >= (2, 9) else 17}",
                 f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}", f"-I{_header_folder()}", "-isystem", str(include),
                 "-isystem", str(include / "torch/csrc/api/include")]
    # libtessera is already loaded when the operator is, and is found by its soname. What torch has only with CUDA are
    # weak symbols, which libtorch brings along.
    linking = ["-Wl,-z,relro,-z,now,-z,noexecstack", "-Wl,--no-as-needed", _loaded_libstdcxx(),
               str(_library.PATH.resolve()), f"-L{torch.folder / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
    if torch.cuda and torch.release < (2, 4):  # the current stream can only be had through CUDA's own headers
        from torch.utils import cpp_extension
        compiling += ["-DTESSERA_TORCH_CUDA", "-isystem",
                      str(Path(cpp_extension.CUDA_HOME or "/usr/local/cuda") / "include")]
        linking += ["-ltorch_cuda", "-lc10_cuda"]
    return compiling, linking


def _texts() -> list[bytes]:
    header = _header_folder() / "tessera.h"
    try:
        return [path.read_bytes() for path in [*sorted(FOLDER.iterdir()), header] if path.is_file()]
    except OSError as error:
        raise BuildError(f"tessera cannot read the sources of its operator: {error}") from None


def _cache() -> Path:
    chosen = os.environ.get("TESSERA_CACHE")
    if chosen:
        return Path(chosen)
    for folder in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(folder):  # any other would depend on the current folder
            return Path(folder) / "tessera"
    raise BuildError("tessera has no home folder for the cache of its operator: set TESSERA_CACHE to a folder")


def operator_path() -> Path:
    """Where the operator for this torch is, or will be once built. Its name covers all that it depends on."""
    torch = installed_torch()
    facts = hashlib.sha256()
    for fact in (torch.version, torch.cuda, torch.git_version, _library.version(), platform.machine(),
                 os.environ.get("CXX", "")):
        facts.update(str(fact).encode() + b"\0")
    for text in _texts():
        facts.update(text)
    return _cache() / f"torch-{torch.version}-{facts.hexdigest()[:16]}.so"


def shipped_path() -> Optional[Path]:
    """The operator for this torch beside the library that is used, if there is one: it came with it."""
    path = _library.PATH.parent / installed_torch().shipped_name
    return path if os.path.exists(path) else None


def state() -> str:
    """Where the operator is, in words."""
    try:
        shipped, path = shipped_path(), operator_path()
        if shipped or is_built(path):
            return str(shipped or path)
        return f"to be compiled at first use into {path.parent}, or by `python -m tessera build`"
    except BuildError as error:
        return str(error)


# ---- What may be loaded ---------------------------------------------------------------------------------------------

def _fault(about: os.stat_result) -> str:
    """Why somebody else may have written it; empty where nobody may."""
    if about.st_uid not in (0, os.geteuid()):
        return f"it belongs to another user (uid {about.st_uid})"
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (mode {stat.S_IMODE(about.st_mode):04o})"
    return ""


def _read_own(path: Path) -> bytes:
    """A file's content; OSError where it is a link, no plain file, or open to others."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        about = os.fstat(file.fileno())
        fault = _fault(about) if stat.S_ISREG(about.st_mode) else "it is no file"
        if fault:
            raise PermissionError(f"{path}: {fault}")
        return file.read()


def _checksum_path(operator: Path) -> Path:
    return operator.with_name(operator.name + ".sha256")


def is_built(operator: Path) -> bool:
    """Whether the cache has this operator as it was compiled, and nobody else can have written it."""
    try:
        if _fault(os.stat(operator.parent)):
            return False
        recorded = _read_own(_checksum_path(operator)).decode("ascii", "replace").split()
        return recorded[:1] == [hashlib.sha256(_read_own(operator)).hexdigest()]
    except OSError:
        return False


def _cannot_write(folder: Path, error: OSError) -> BuildError:
    return BuildError(f"tessera cannot write its cache {folder} ({error.strerror or error}): set TESSERA_CACHE to "
                      "another folder")


def _make_folder(folder: Path) -> None:
    """The cache, for its owner alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fault = _fault(os.stat(folder))
    except OSError as error:
        raise _cannot_write(folder, error) from None
    if fault:
        raise BuildError(f"tessera will not load code from its cache {folder}: {fault}; set TESSERA_CACHE to a folder "
                         "that only you can write to (mode 0700)")


# ---- Compiling ------------------------------------------------------------------------------------------------------

def _fail(command: list[str], output: str, status: int) -> None:
    last = "\n".join([line for line in output.splitlines() if "error" in line][:8] or output.splitlines()[-8:])
    if status < 0:
        last += f"The compiler was ended by signal {-status}, as it is where memory is short."
    hint = ""
    if "torch/library.h" in last or "ATen/core/Tensor.h" in last:
        hint = "torch's C++ headers are not installed (Debian: apt-get install libtorch-dev)\n"
    raise BuildError(f"tessera could not compile its operator for torch.\n{hint}{last}\n"
                     f"The command was: {' '.join(command)}")


def _start(command: list[str]) -> subprocess.Popen:
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    except OSError as error:
        source = "CXX names" if os.environ.get("CXX") else "the C++ compiler is"
        raise BuildError(f"tessera cannot compile its operator for torch: {source} {command[0]}, which cannot be run "
                         f"({error.strerror})") from None


def _run(commands: list[list[str]]) -> None:
    """All at once; raises for the first that fails, when all have ended."""
    with contextlib.ExitStack() as ends:
        running = []
        for command in commands:
            process = ends.enter_context(_start(command))
            ends.callback(process.kill)  # where this is left early: none may go on writing
            running.append((command, process))
        ended = [(command, process.communicate()[0], process.returncode) for command, process in running]
    for command, output, status in ended:
        if status:
            _fail(command, output, status)


def compile_operator(torch: Torch, made: Path, *more_linking: str) -> None:
    """In made's folder."""
    compiler = _compiler()
    compiling, linking = _flags(torch)
    objects, commands = [], []
    for *before, last in UNITS:
        objects.append(str(made.with_name(f"{last}.o")))
        included = [word for source in before for word in ("-include", str(FOLDER / source))]
        commands.append([*compiler, *compiling, *included, "-c", str(FOLDER / last), "-o", objects[-1]])
    _run(commands)
    _run([[*compiler, "-shared", "-o", str(made), *objects, *linking, *more_linking]])


def _compile(torch: Torch, target: Path, folder: Path) -> None:
    """Writes the operator and its checksum: each whole under its name, or not at all."""
    made, checksum = folder / "operator.so", folder / "operator.so.sha256"
    compile_operator(torch, made)
    checksum.write_text(f"{hashlib.sha256(made.read_bytes()).hexdigest()}  {target.name}\n")
    made.chmod(0o700)
    checksum.chmod(0o600)
    os.replace(made, target)
    os.replace(checksum, _checksum_path(target))


@contextlib.contextmanager
def _scratch(cache: Path):
    """An empty folder to compile in. One that is there already was left by a process that was killed."""
    folder = cache / "building"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _say(what: str) -> None:
    print(f"tessera: {what}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _alone(cache: Path):
    """One process at a time: those of a distributed program all come here at once."""
    import fcntl
    path = cache / "lock"
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another process, which compiles the operator (it holds {path})")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(quiet: bool = False) -> Path:
    """The operator's path; compiles it unless it came with the library or the cache has it."""
    shipped = shipped_path()
    if shipped:
        return shipped
    torch, target = installed_torch(), operator_path()
    if is_built(target):
        return target
    _make_folder(target.parent)
    try:
        with _alone(target.parent):
            if not is_built(target):
                if not quiet:
                    _say(f"compiling its operator for torch {torch.version}, once, into {target.parent}: about a "
                         "minute (`python -m tessera build` does so beforehand)")
                with _scratch(target.parent) as folder:
                    _compile(torch, target, folder)
    except OSError as error:
        raise _cannot_write(target.parent, error) from None
    return target


def load() -> None:
    """The operator becomes part of torch.ops."""
    import torch
    operator = build()
    try:
        torch.ops.load_library(str(operator))
    except OSError as error:
        raise BuildError(f"tessera cannot load its operator {operator} ({error.__cause__ or error})") from None
