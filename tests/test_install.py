"""The installed library, used by a program outside the tree: through pkg-config, through CMake, from C and from C++,
shared and static; the man page and completions; what is removed again."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import binding
from toolchain import BUILD, ROOT, need, run

CONSUMER = ROOT / "tests" / "consumer"
VERSION = binding.lib.tsr_version().decode()
SAID = f"tessera {VERSION}: TSR_OK 58 64 139 154\n"


def library_folder(prefix):
    return next(path for path in prefix.rglob("libtessera.*") if not path.is_dir()).parent


def test_what_is_installed(prefix):
    library = library_folder(prefix)
    for name in ("tessera.h", "tessera_blas.h"):
        assert (prefix / "include" / name).read_text() == (ROOT / "include" / name).read_text()
    assert (library / "libtessera.so").resolve().name == f"libtessera.so.{VERSION}"
    names = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}
    interface, place = VERSION.rpartition(".")[0], library.relative_to(prefix)
    libraries = {
        f"{place}/{name}.so{suffix}" for name in ("libtessera", "libtessera_blas")
        for suffix in ("", f".{interface}", f".{VERSION}")
    }
    package = {f"{place}/cmake/tessera/tessera-{part}.cmake" for part in ("config", "config-version", "targets")}
    expected = {
        "bin/tessera", "include/tessera.h", "include/tessera_blas.h", f"{place}/pkgconfig/tessera.pc",
        f"{place}/pkgconfig/tessera_blas.pc", "share/man/man1/tessera.1", "share/zsh/site-functions/_tessera",
        "share/bash-completion/completions/tessera", *libraries, *package
    }
    extra = names - expected
    assert expected <= names and all("/tessera-targets-" in name for name in extra), (expected - names, extra)


def test_command_finds_its_libraries(prefix):
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    assert run(prefix / "bin" / "tessera", "--version", env=environment) == f"tessera {VERSION}\n"
    said = run(prefix / "bin" / "tessera", "run", "--", "sh", "-c", "echo $LD_PRELOAD", env=environment)
    assert said.splitlines()[0] == str(library_folder(prefix) / f"libtessera_blas.so.{VERSION.rpartition('.')[0]}")


def compile_and_run(prefix, folder, compiler, language, *static):
    environment = {**os.environ, "PKG_CONFIG_PATH": str(library_folder(prefix) / "pkgconfig"),
                   "LD_LIBRARY_PATH": str(library_folder(prefix))}
    for name, source, said in (("tessera", "main.c", SAID), ("tessera_blas", "blas.c", "")):
        assert run("pkg-config", "--modversion", name, env=environment).strip() == VERSION
        flags = run("pkg-config", "--cflags", "--libs", *static, name, env=environment).split()
        program = folder / name
        run(compiler, "-Wall", "-Wextra", "-Werror", *language, CONSUMER / source, "-o", program, "-xnone", *flags)
        assert run(program, env=environment) == said


@pytest.mark.parametrize("compiler, language", [("gcc", ["-xc", "-std=c11"]), ("clang", ["-xc", "-std=c11"]),
                                                ("g++", ["-xc++", "-std=c++17"]), ("clang++", ["-xc++", "-std=c++17"])])
def test_pkg_config(prefix, tmp_path, compiler, language):
    need("pkg-config"), need(compiler)
    compile_and_run(prefix, tmp_path, compiler, language)


def find_package(prefix, folder):
    run("cmake", "-S", CONSUMER, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", folder)
    assert run(folder / "consumer") == SAID
    run(folder / "blas_consumer")


def test_find_package(prefix, tmp_path):
    find_package(prefix, tmp_path)


def test_find_package_refuses_another_version(prefix, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(CONSUMER, source)
    listfile = source / "CMakeLists.txt"
    listfile.write_text(listfile.read_text().replace("find_package(tessera 0.1", "find_package(tessera 99.0"))
    said = run("cmake", "-S", source, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}", expect=1)
    assert "tessera" in said and "99.0" in said


def without_nvcc():
    """The environment with a PATH that lacks nvcc, whatever lies in /usr/local/cuda."""
    folders = [folder for folder in os.environ["PATH"].split(":") if not Path(folder, "nvcc").exists()]
    environment = {key: value for key, value in os.environ.items() if key not in ("CUDA_HOME", "CUDA_PATH")}
    if not all(shutil.which(program, path=":".join(folders)) for program in ("cc", "cmake", "make")):
        pytest.skip("nvcc lies beside the compiler")
    return {**environment, "PATH": ":".join(folders)}


@pytest.mark.slow
def test_static_subproject_without_nvcc(tmp_path):
    """add_subdirectory gives the same target name, and brings none of our tests along. Static libraries serve programs
    as shared ones do. Without nvcc on PATH there is no CUDA engine. `make uninstall` leaves no file."""
    environment, build, prefix = without_nvcc(), tmp_path / "build", tmp_path / "prefix"
    (tmp_path / "CMakeLists.txt").write_text(f"""
cmake_minimum_required(VERSION 3.22)
project(outer LANGUAGES C)
add_subdirectory("{ROOT}" tessera)
add_executable(consumer "{CONSUMER}/main.c")
target_link_libraries(consumer PRIVATE tessera::tessera)
""")
    said = run("cmake", "-S", tmp_path, "-B", build, "-DCMAKE_BUILD_TYPE=None", "-DBUILD_SHARED_LIBS=OFF",
               env=environment)
    assert "CUDA engine: left out (no nvcc on PATH or in CUDA_HOME)" in said
    run("cmake", "--build", build, "--parallel", "2", env=environment)
    assert run(build / "consumer") == SAID
    assert not list(tmp_path.rglob("stress"))

    run("cmake", "--install", build, "--prefix", prefix)
    assert {path.name for path in prefix.rglob("lib*.*") if not path.is_dir()} == {"libtessera.a", "libtessera_blas.a"}
    assert run(prefix / "bin" / "tessera", "--version") == f"tessera {VERSION}\n"
    find_package(prefix, tmp_path / "found")
    if shutil.which("pkg-config"):
        compile_and_run(prefix, tmp_path, "cc", ["-xc"], "--static")
    (prefix / "bin" / "another").touch()
    stage = {"DESTDIR": str(tmp_path / "stage")}
    run("cmake", "--install", build, "--prefix", prefix, env={**environment, **stage})
    run("make", "-C", ROOT, "uninstall", f"BUILD={build}", env={**environment, **stage})
    assert (prefix / "bin" / "tessera").exists() and not any(
        path.is_file() for path in (tmp_path / "stage").rglob("*"))
    run("make", "-C", ROOT, "uninstall", f"BUILD={build}")
    run("make", "-C", ROOT, "uninstall", f"BUILD={build}")
    assert [path.name for path in prefix.rglob("*") if not path.is_dir()] == ["another"]
    assert not list(prefix.rglob("cmake/tessera"))


# ---- The manual -----------------------------------------------------------------------------------------------------

def completed(*words):
    """What bash offers for the last word."""
    script = '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tessera; echo "${COMPREPLY[*]}"'
    return run("bash", "-c", script, BUILD / "tessera.bash", "tessera", *words).split()


def test_completion():
    need("bash")
    assert completed("help", "s") == ["selftest"] and completed("he") == ["help"]
    assert completed("s") == ["selftest"] and {"mul", "bench", "--version"} <= set(completed(""))
    assert completed("mul", "--tr") == ["--transpose-a", "--transpose-b"] and completed("info", "--tr") == []
    assert completed("bench", "--precision", "") == ["ieee", "fp32", "tf32"]
    assert completed("mul", "--device", "cu") == ["cuda"] and completed("mul", "A") == []
    if shutil.which("zsh"):
        run("zsh", "-n", BUILD / "_tessera")


def test_man_page():
    text = (BUILD / "tessera.1").read_text().replace("\\-", "-")
    for command in completed("help", ""):
        assert f"\n.SH {command.upper()}\n" in text
        section = text.split(f"\n.SH {command.upper()}\n")[1].split("\n.SH ")[0]
        for line in run(BUILD / "cli" / "tessera", command, "--help").splitlines():
            if line.startswith("  -"):
                assert line[22:].strip() in section, line
    if shutil.which("man"):
        ran = subprocess.run(["man", "--warnings", "-l", str(BUILD / "tessera.1")], capture_output=True, text=True)
        assert ran.returncode == 0 and ran.stderr == ""


# ---- Hardening ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["libtessera.so", "libtessera_blas.so", "cli/tessera"])
def test_hardening(name):
    """No executable stack, no writable tables of functions, checked calls: as the linker left them."""
    need("readelf")
    path = BUILD / name
    segments, dynamic = run("readelf", "-lW", path), run("readelf", "-dW", path)
    assert "GNU_RELRO" in segments and "BIND_NOW" in dynamic and "TEXTREL" not in dynamic
    stack, = [line for line in segments.splitlines() if "GNU_STACK" in line]
    assert " RW " in stack and "E" not in stack.split()[6:]
    symbols = run("readelf", "-sW", "--dyn-syms", path)
    assert "__stack_chk_fail" in symbols and "_chk@" in symbols.replace("__stack_chk", "")
    assert run("readelf", "-hW", path).split("Type:")[1].split()[0] == "DYN"  # position-independent
