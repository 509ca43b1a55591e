"""No warnings: all C sources, with gcc and with clang, under the project's warnings as errors."""

import json
import shlex

import pytest

from toolchain import BUILD, ROOT, cmake_build, need, run

COMPILERS = ["gcc", "clang"]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_clean_build(compiler):
    cmake_build(f"warnings-{compiler}", f"-DCMAKE_C_COMPILER={need(compiler)}", "-DTESSERA_WERROR=ON")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_clean_cuda_host_code(compiler):
    """The C half of the CUDA engine, which the builds above leave out."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    commands = [one for one in commands if one["file"].startswith(f"{ROOT}/src/cuda/") and one["file"].endswith(".c")]
    need(compiler)
    for one in commands:
        words = shlex.split(one["command"])
        words[words.index("-o"):words.index("-o") + 2] = []
        run(compiler, *words[1:], "-fsyntax-only", "-Werror", cwd=one["directory"])


@pytest.mark.parametrize("compiler, flags", [("gcc", ["-std=c11"]), ("g++", ["-xc++", "-std=c++11"]),
                                             ("clang", ["-std=c11"]), ("clang++", ["-xc++", "-std=c++11"])])
def test_header_alone(compiler, flags):
    """tessera.h needs nothing included before it, and is valid strict C11 and C++11."""
    need(compiler)
    strict = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", "-Wno-pragma-once-outside-header"]
    if compiler.startswith("g"):
        strict.pop()
    run(compiler, *flags, *strict, "-fsyntax-only", ROOT / "include" / "tessera.h")
