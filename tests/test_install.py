"""The installed library, used by a program outside the tree: through pkg-config, through CMake, from C and from C++."""

import os
import shutil
from pathlib import Path

import pytest

import binding
from toolchain import ROOT, need, run

CONSUMER = ROOT / "tests" / "consumer"
VERSION = binding.lib.tsr_version().decode()


def library_folder(prefix):
    return next(prefix.rglob("libtessera.so")).parent


def test_what_is_installed(prefix):
    library = library_folder(prefix)
    assert (prefix / "include" / "tessera.h").read_text() == (ROOT / "include" / "tessera.h").read_text()
    assert (prefix / "bin" / "tessera").exists()
    assert (library / "libtessera.so").resolve().name == f"libtessera.so.{VERSION}"
    names = {path.name for path in prefix.rglob("*") if not path.is_dir()}
    interface = VERSION.rpartition(".")[0]
    libraries = {
        f"{name}.so{suffix}" for name in ("libtessera", "libtessera_blas")
        for suffix in ("", f".{interface}", f".{VERSION}")
    }
    expected = {
        "tessera", "tessera.h", "tessera_blas.h", "tessera.pc", "tessera-config.cmake", "tessera-config-version.cmake",
        *libraries
    }
    extra = names - expected
    assert expected <= names and all(name.startswith("tessera-config-") for name in extra), extra


def test_command_finds_its_library(prefix):
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    assert run(prefix / "bin" / "tessera", "--version", env=environment) == f"tessera {VERSION}\n"


@pytest.mark.parametrize("compiler, language", [("gcc", ["-xc", "-std=c11"]), ("clang", ["-xc", "-std=c11"]),
                                                ("g++", ["-xc++", "-std=c++17"]), ("clang++", ["-xc++", "-std=c++17"])])
def test_pkg_config(prefix, tmp_path, compiler, language):
    need("pkg-config"), need(compiler)
    environment = {**os.environ, "PKG_CONFIG_PATH": str(library_folder(prefix) / "pkgconfig")}
    assert run("pkg-config", "--modversion", "tessera", env=environment).strip() == VERSION
    flags = run("pkg-config", "--cflags", "--libs", "tessera", env=environment).split()
    program = tmp_path / "consumer"
    run(compiler, "-Wall", "-Wextra", "-Werror", *language, CONSUMER / "main.c", "-o", program, *flags)
    out = run(program, env={**os.environ, "LD_LIBRARY_PATH": str(library_folder(prefix))})
    assert out == f"tessera {VERSION}: TSR_OK 58 64 139 154\n"


def test_find_package(prefix, tmp_path):
    run("cmake", "-S", CONSUMER, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    assert run(tmp_path / "consumer") == f"tessera {VERSION}: TSR_OK 58 64 139 154\n"


def test_find_package_refuses_another_version(prefix, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(CONSUMER, source)
    listfile = source / "CMakeLists.txt"
    listfile.write_text(listfile.read_text().replace("find_package(tessera 0.1", "find_package(tessera 99.0"))
    said = run("cmake", "-S", source, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}", expect=1)
    assert "tessera" in said and "99.0" in said


@pytest.mark.slow
def test_as_a_subproject(tmp_path):
    """add_subdirectory gives the same target name, and brings none of our tests along."""
    (tmp_path / "CMakeLists.txt").write_text(f"""
cmake_minimum_required(VERSION 3.22)
project(outer LANGUAGES C)
set(TESSERA_CUDA OFF CACHE BOOL "")
add_subdirectory("{ROOT}" tessera)
add_executable(consumer "{CONSUMER}/main.c")
target_link_libraries(consumer PRIVATE tessera::tessera)
""")
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", "-DCMAKE_BUILD_TYPE=None")
    run("cmake", "--build", tmp_path / "build", "--parallel", "2")
    assert "TSR_OK" in run(tmp_path / "build" / "consumer")
    assert not list(Path(tmp_path).rglob("stress"))
