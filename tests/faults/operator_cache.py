"""operator_cache.py FOLDER: the cache of compiled operators (python/tessera/_build.py) while a call about files fails:
every open, read, write, close, mkdir, chmod, rename, flock and pipe in turn. Building gives an operator or a sentence;
what is in the cache is whole; no compiler, no descriptor is left behind; and the next build works.

A stand-in for torch, sources of a few bytes and a compiler that writes its arguments make a build take milliseconds.
"""

import contextlib
import errno
import os
import shutil
import sys
import types
from pathlib import Path

folder = Path(sys.argv[1])
(folder / "csrc").mkdir()
for source in ("one.cpp", "two.cpp"):
    (folder / "csrc" / source).write_text("// nothing\n")
compiler = folder / "c++"
compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho compiled >"$2"\n')
compiler.chmod(0o700)
os.environ.update(CXX=str(compiler), TESSERA_CACHE=str(folder / "cache"))
sys.modules["torch"] = types.SimpleNamespace(__version__="2.9.0", __file__=__file__,
                                             version=types.SimpleNamespace(cuda=None, git_version="none"),
                                             _C=types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True))

from tessera import _build  # noqa: E402

from each import begin, faults  # noqa: E402

_build.FOLDER, _build.UNITS = folder / "csrc", (("one.cpp",), ("two.cpp",))
CACHE, OPERATOR = folder / "cache", _build.operator_path()
BUILT = {OPERATOR.name, OPERATOR.name + ".sha256", "lock"}


def nothing():
    shutil.rmtree(CACHE, ignore_errors=True)


def a_damaged_operator():
    _build.build(quiet=True)
    OPERATOR.write_text("cut sho")


def an_operator():
    _build.build(quiet=True)


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


def build_with_fault(number, error, for_good):
    """Whether a call failed."""
    faults.faults_error(error)
    begin("file", number, for_good)
    try:
        built, said = _build.build(quiet=True), ""
    except _build.BuildError as failure:
        built, said = None, str(failure)
    failed = faults.faults_end()
    assert built == OPERATOR or (failed and said.startswith("tessera c")), said
    return failed


def check_left_behind(before):
    assert descriptors() == before, "a descriptor is left open"
    with contextlib.suppress(ChildProcessError):
        raise AssertionError(f"a compiler is left: {os.waitpid(-1, os.WNOHANG)}")
    assert not CACHE.exists() or set(os.listdir(CACHE)) <= BUILT | {"building"}, os.listdir(CACHE)
    assert not _build.is_built(OPERATOR) or OPERATOR.read_text() == "compiled\n", "half an operator would be loaded"


def each_fault(state, error, for_good):
    number, failed = 0, True
    while failed:
        state()
        before, number = descriptors(), number + 1
        try:
            failed = build_with_fault(number, error, for_good)
            check_left_behind(before)
            assert _build.build(quiet=True) == OPERATOR and OPERATOR.read_text() == "compiled\n"
            # Where the compiler's folder cannot be removed, the next compilation does it.
            assert set(os.listdir(CACHE)) - {"building"} == BUILT and _build.is_built(OPERATOR)
        except BaseException:
            faults.faults_end()
            print(f"wrong where call {number}{'+' * for_good} fails by {errno.errorcode[error]}, beginning with "
                  f"{state.__name__}", file=sys.stderr)
            raise
    return number - 1


print(sum(each_fault(state, error, for_good)
          for state in (nothing, a_damaged_operator, an_operator)
          for error, for_good in ((errno.ENOSPC, False), (errno.EIO, True), (errno.EINTR, False))))
