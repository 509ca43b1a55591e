"""Every binary that is built or installed: where it looks for the libraries it loads. An empty or relative element of a
run path means the current folder, where anybody may have put a library."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from toolchain import BUILD, PATIENCE, ROOT, need, run

ELF = b"\x7fELF"
FOREIGN = {"first_hour", "format", "packaging", "python", "pytorch"}  # folders of BUILD: what pip or a test puts there
EVIL = """
#include <stdio.h>
__attribute__((constructor)) static void loaded(void) { fclose(fopen("loaded", "w")); }
"""


def binaries(folder):
    """ELF files under a folder, but for foreign ones, which may come and go at this moment."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - FOREIGN)
        for path in (Path(parent, name) for name in files):
            if path.suffix == ".o" or path.is_symlink() or not path.is_file():
                continue
            with open(path, "rb") as file:
                if file.read(4) == ELF:
                    yield path


def run_path(binary):
    """The elements of its RPATH and RUNPATH."""
    found = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", run(need("readelf"), "-dW", binary))
    return [element for path in found for element in path.split(":")]


def check_run_paths(found):
    found = list(found)
    assert {"tessera", "libtessera.so",
            "libtessera_blas.so"} <= {re.sub(r"\.so\..*", ".so", path.name) for path in found}
    for binary in found:
        for element in run_path(binary):
            assert re.match(r"/|\$ORIGIN(/|$)", element), f"{binary} looks in {element!r}"


def test_run_paths_of_what_is_built():
    check_run_paths(binaries(BUILD))


def test_run_paths_of_what_is_installed(prefix):
    found = list(binaries(prefix))
    check_run_paths(found)
    for binary in found:
        assert all(element.startswith("$ORIGIN") for element in run_path(binary)), f"{binary} cannot be moved"


@pytest.fixture
def folder(tmp_path):
    """A current folder with a driver that leaves a trace where it is loaded."""
    (tmp_path / "evil.c").write_text(EVIL)
    run(need("gcc"), "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "evil.c")
    return tmp_path


def driver_is_loaded(folder, *command, **environment):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
    ran = subprocess.run(command, cwd=folder, env={**kept, **environment}, capture_output=True, text=True,
                         timeout=PATIENCE)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0 or "--device cuda: " in said, said  # refused, where there is no GPU
    return (folder / "loaded").exists()


@pytest.mark.parametrize("arguments", [["info"], ["bench", "64", "64", "64", "--seconds", "0.01"],
                                       ["bench", "64", "64", "64", "--seconds", "0.01", "--device", "cuda"]])
def test_a_driver_in_the_current_folder_is_not_loaded(folder, arguments):
    assert not driver_is_loaded(folder, BUILD / "cli" / "tessera", *arguments)


def test_absolute_folders_come_before_a_program_s_run_path(folder):
    """A program whose own run path has an empty element, which the loader looks in before LD_LIBRARY_PATH; and relative
    folders of LD_LIBRARY_PATH itself."""
    fake = BUILD / "tests" / "fake_cuda"
    if not (fake / "libcuda.so.1").exists():
        pytest.skip("the library was built without the CUDA engine")
    (folder / "program.c").write_text('#include "tessera.h"\nint main(void) { return !tsr_info_print(0, 0); }\n')
    run("gcc", "-I", ROOT / "include", folder / "program.c", "-o", folder / "program", f"-L{BUILD}", "-ltessera",
        f"-Wl,--disable-new-dtags,-rpath,:{BUILD}")
    for path in (f"{fake}", f".:{fake}", f":{fake}"):
        assert not driver_is_loaded(folder, folder / "program", LD_LIBRARY_PATH=path), path
