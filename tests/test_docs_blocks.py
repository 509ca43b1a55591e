"""Every block of the documentation is run, in order, in one folder a document. CONTRIBUTING.md has the rules."""

import os
import re
import shutil
import subprocess
import sys

import pytest

import engine as engines
from documents import DOCUMENTS, blocks
from toolchain import BUILD, ROOT, run

BLOCKS = [block for path in DOCUMENTS for block in blocks(path)]
RUN = {"sh", "c", "cmake", "python", "r"}
SHOWN = {"text"}  # output, drawings
TREE = ["bench", "examples", "kernelbench", "tests"]  # what commands may name from where they run

# `make` is asked what it would do, since the tests are one of the things it does; who installs is not root.
PRELUDE = f"""
make() {{ command make -n -C '{ROOT}' "$@" >/dev/null; }}
sudo() {{ case $1 in make) "$@" ;; ldconfig) ;; *) echo "sudo $*: not in a test" >&2; return 1 ;; esac; }}
"""


def name(block):
    return f"{block.path.name}-{block.line}-{block.language}"


def python_can(statement):
    return subprocess.run([sys.executable, "-c", statement], capture_output=True).returncode == 0


def skip_unless_there(block):
    for need in block.needs:
        if need == "network":
            pytest.skip("needs the network")
        if need == "gpu" and not engines.DRIVER:
            pytest.skip(engines.NO_GPU)
        if need == "torch" and not python_can("import torch"):
            pytest.skip("needs torch")
        if ".so" in need and not python_can(f"import ctypes; ctypes.CDLL('{need}')"):
            pytest.skip(f"{need} is not installed")
        if need not in ("gpu", "torch") and ".so" not in need and not shutil.which(need):
            pytest.skip(f"{need} is not installed")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """document -> the folder its commands run in."""
    made = {}

    def folder(path):
        if path not in made:
            made[path] = tmp_path_factory.mktemp(path.stem)
            for entry in TREE:
                (made[path] / entry).symlink_to(ROOT / entry)
            (made[path] / "build").symlink_to(BUILD)
        return made[path]

    return folder


@pytest.fixture
def environment(prefix, tmp_path):
    """Tessera as `make install` leaves it, in a home of its own."""
    library = next(prefix.rglob("libtessera.so")).parent
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}
    return {
        **kept, "HOME": str(tmp_path),
        "PATH": f"{prefix / 'bin'}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(library), "PKG_CONFIG_PATH": str(library / "pkgconfig"),
        "CMAKE_PREFIX_PATH": str(prefix),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TESSERA_LIBRARY": str(library / "libtessera.so")
    }


def run_block(block, folder, environment):
    if block.file:
        (folder / block.file).write_text(block.text)
    elif block.language == "sh":
        run("sh", "-e", "-c", PRELUDE + block.text, cwd=folder, env=environment)
    elif block.language == "c":
        source, program = folder / f"block{block.line}.c", folder / f"block{block.line}"
        source.write_text(block.text)
        run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", source, "-o", program,
            f"-L{BUILD}", "-ltessera", "-lm", f"-Wl,-rpath,{BUILD}")
        run(program, cwd=folder, env=environment)
    else:
        (folder / "program.py").write_text(block.text)
        run(sys.executable, "program.py", cwd=folder, env=environment)


def is_torchs(block):
    """A document's python blocks are one program; where that imports torch, tests/pytorch runs it."""
    program = [other for other in BLOCKS if other.path == block.path and other.language == "python" and not other.needs]
    return block in program and any("import torch" in other.text for other in program)


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language in RUN and not block.tested and not is_torchs(block)],
    ids=name)
def test_block(block, folders, environment):
    skip_unless_there(block)
    run_block(block, folders(block.path), environment)


def test_every_block_says_what_it_is():
    for block in BLOCKS:
        where = f"{block.path.name}, line {block.line}"
        assert block.language in RUN | SHOWN, (
            f"{where}: write ```sh, ```c, ```cmake or ```python, or ```text for what is not run")
        assert block.language != "cmake" or block.file, f"{where}: say what file that is, as in `CMakeLists.txt`:"
        assert block.language != "r" or block.tested, f"{where}: name the test that runs it"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.tested], ids=name)
def test_tested_elsewhere(block):
    """Who says that another test runs it names one that is there."""
    file, test = block.tested.split("::")
    assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.M), block.tested
