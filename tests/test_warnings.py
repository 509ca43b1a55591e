"""No warnings: all C sources, with gcc and with clang, under the project's warnings as errors."""

import json
import os
import shlex

import pytest

from toolchain import BUILD, ROOT, need, run

# Clang's warnings come before it optimises, some of gcc's while it does.
COMPILERS = {"gcc": ["-O1", "-S", "-o", os.devnull], "clang": ["-fsyntax-only"]}


def c_commands():
    """How each C source of the build is compiled, once for each set of definitions: the library, the C half of its CUDA
    engine, the command and the tests."""
    found = {}
    for one in json.loads((BUILD / "compile_commands.json").read_text()):
        words = shlex.split(one["command"])
        if one["file"].endswith(".c"):
            defined = frozenset(word for word in words if word.startswith("-D") and not word.endswith("_EXPORTS"))
            words[words.index("-o"):words.index("-o") + 2] = []
            found[one["file"], defined] = words, one["directory"]
    return found.values()


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_warnings(compiler):
    need(compiler)
    for words, folder in c_commands():
        run(compiler, *words[1:], *COMPILERS[compiler], "-Wno-pass-failed", "-Werror", cwd=folder)


@pytest.mark.parametrize("compiler, flags", [("gcc", ["-std=c11"]), ("g++", ["-xc++", "-std=c++11"]),
                                             ("clang", ["-std=c11"]), ("clang++", ["-xc++", "-std=c++11"])])
def test_header_alone(compiler, flags):
    """tessera.h needs nothing included before it, and is valid strict C11 and C++11."""
    need(compiler)
    strict = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", "-Wno-pragma-once-outside-header"]
    if compiler.startswith("g"):
        strict.pop()
    run(compiler, *flags, *strict, "-fsyntax-only", ROOT / "include" / "tessera.h")
