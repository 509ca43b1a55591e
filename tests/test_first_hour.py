"""The first hour of a new user, each way in a home and an environment of its own: the wheel, without a compiler; the
sdist, which gives the same bytes; an editable installation; the Debian packages, installed and removed again.
test_install.py has `make install` and `make uninstall`, static libraries, and programs in C."""

import os
import re
import shutil
import subprocess
import tarfile
import zipfile

import pytest

import binding
from debian import is_installed, need_packages
from toolchain import BUILD, PATIENCE, ROOT, need, run

pytestmark = [pytest.mark.slow, pytest.mark.together]
MADE = BUILD / "first_hour"  # kept for the next run
VERSION = binding.lib.tsr_version().decode()
INTERFACE = VERSION.rpartition(".")[0]
# At -O1 the library compiles in half the time; what is tested here is how it is packed.
FLAGS = ["-DTESSERA_CUDA=OFF", "-DCMAKE_C_FLAGS_RELEASE=-O1"]

PRODUCT = "import numpy as np, tessera; print(tessera.matmul(np.ones((2, 3), 'f4'), np.ones((3, 4), 'f4')).sum())"
TRAINING_STEP = """
import torch, tessera
x = torch.ones(300, 300)
assert (tessera.matmul(x, x) == 300).all()
tessera.enable(devices="cpu", always=True)
layer = torch.nn.Linear(300, 300)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
layer(x).square().mean().backward()
optimizer.step()
print(tessera.stats().taken)
"""


def clean_environment(home, **more):
    """Nothing that points to the source tree, to what its build made, or to the user's own files."""
    foreign = "TESSERA_", "PYTHONPATH", "LD_", "CXX", "MAKE", "MFLAGS", "XDG_"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "HOME": str(home), **more}


def make(target, *settings):
    flags = f"CMAKE_FLAGS={' '.join(FLAGS)}"
    run("make", "-C", ROOT, target, f"BUILD={MADE}", flags, *settings, env=clean_environment(MADE))


class Installation:
    """A virtual environment with one package, and torch from where it is. There is no compiler on PATH."""

    def __init__(self, folder, torch_python, *package):
        self.folder, self.python = folder, folder / "venv/bin/python"
        (folder / "nothing").mkdir()
        self.environment = clean_environment(folder, PATH=str(folder / "nothing"))
        run(torch_python, "-m", "venv", "--without-pip", folder / "venv")
        site, = folder.glob("venv/lib/python3*/site-packages")
        self.package = site / "tessera"
        packages = run(torch_python, "-c", "import os, torch; print(os.path.dirname(torch.__path__[0]))")
        (site / "torch.pth").write_text(packages)
        tools, = MADE.glob("packaging/lib/python3*/site-packages")
        run(MADE / "packaging/bin/python", "-m", "pip", "--disable-pip-version-check", "--python", self.python,
            "install", *package, env=clean_environment(folder, PYTHONPATH=str(tools)))

    def run(self, program, **environment):
        return run(self.python, "-c", program, env={**self.environment, **environment}, cwd=self.folder)

    def command(self, *arguments):
        return run(self.folder / "venv/bin/tessera", *arguments, env=self.environment, cwd=self.folder)


# ---- Wheel, sdist, editable -----------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def torch_python():
    """The one that tests/pytorch uses."""
    said = subprocess.run([ROOT / "tests/pytorch/run", BUILD, "--python"], stdout=subprocess.PIPE, text=True,
                          timeout=PATIENCE, check=True).stdout.strip()
    if not os.access(said, os.X_OK):
        pytest.skip(said)
    return said


@pytest.fixture(scope="module")
def wheel(torch_python):
    if subprocess.run([ROOT / "packaging/wheel.py", MADE, "--tools"]).returncode:
        pytest.skip("auditwheel, or what else `make wheel` needs, could not be installed")
    torch = run(torch_python, "-c", "import torch; print(torch.__path__[0])").strip()
    shutil.rmtree(MADE / "dist", ignore_errors=True)
    make("wheel", f"TORCH={torch}")
    made, = MADE.glob("dist/*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, torch_python, tmp_path_factory):
    return Installation(tmp_path_factory.mktemp("wheel"), torch_python, wheel)


@pytest.fixture(scope="module")
def source(wheel, tmp_path_factory):
    """What the sdist holds."""
    folder = tmp_path_factory.mktemp("sdist")
    run(MADE / "packaging/bin/python", "-c", f"import scikit_build_core.build as b; b.build_sdist({str(folder)!r})",
        cwd=ROOT)
    packed, = folder.glob("tessera-*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder)
    return folder / packed.name[:-len(".tar.gz")]


PIP_SETTINGS = ["--no-build-isolation", "--no-deps", *(f"-Ccmake.args={flag}" for flag in FLAGS)]


@pytest.fixture(scope="module")
def editable(source, torch_python, tmp_path_factory):
    unoptimised = ["-C", "cmake.build-type=Debug", "-C", "build-dir=build/editable"]  # quick to compile
    folder = tmp_path_factory.mktemp("editable")
    return Installation(folder, torch_python, *PIP_SETTINGS, *unoptimised, "-e", source)


def test_wheel_without_a_compiler(installed):
    """Products and a training step, on the operator that it carries: nothing is compiled, nothing written."""
    assert installed.run(PRODUCT).split() == ["24.0"]
    assert int(installed.run(TRAINING_STEP)) >= 2
    assert not (installed.folder / ".cache").exists()
    said = installed.run("import tessera; print(tessera.info())")
    assert f"library: {installed.package}/lib/libtessera.so.{INTERFACE}\n" in said and f"tessera: {VERSION}" in said
    assert re.search(rf"^operator: {installed.package}/lib/torch-.*\.so$", said, re.M), said
    assert installed.run("import importlib.metadata as m; print(m.version('tessera'))").strip() == VERSION


def test_command_of_the_wheel(installed):
    assert installed.command("--version") == f"tessera {VERSION}\n"
    installed.command("check", "--quick", "--device", "cpu")
    said = installed.command("run", "--", "/bin/sh", "-c", "echo $LD_PRELOAD")
    assert said.splitlines()[0] == f"{installed.package}/lib/libtessera_blas.so.{INTERFACE}"


def test_environment_variable_reaches_programs_that_do_not_know(installed):
    program = ("import sys, torch; torch.ones(64, 64) @ torch.ones(64, 64)\n"
               "t = sys.modules.get('tessera'); print(t and t.stats().taken)")
    assert installed.run(program).split() == ["None"]
    assert installed.run(program, TESSERA_ENABLE="1", TESSERA_DEVICES="cpu").split() == ["1"]


def test_sdist(source):
    """What a build needs, and nothing that a build left."""
    assert {path.name for path in source.iterdir()} == {
        "CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "cli", "cmake", "include", "pyproject.toml", "python",
        "src"}
    names = {path.suffix for path in source.rglob("*") if not path.is_dir()}
    assert names <= {"", ".txt", ".md", ".toml", ".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".cmake", ".in", ".typed"}


def test_two_builds_have_the_same_bytes(wheel, source, tmp_path):
    """Of the source tree and of the sdist, in different folders. `make wheel` adds the operator, and the name of the
    oldest system that can run it."""
    commit = re.search(r'"(.*)"', next(MADE.glob("wheel/**/commit.h")).read_text())[1]  # an sdist does not know it
    run(MADE / "packaging/bin/python", "-m", "pip", "wheel", "-w", tmp_path, *PIP_SETTINGS, source,
        env=clean_environment(tmp_path, TESSERA_COMMIT=commit))
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as second:
        names = {name for name in second.namelist() if not name.endswith(("/RECORD", "/WHEEL"))}
        assert {name for name in names if first.read(name) != second.read(name)} == set()
        operator, = [name for name in first.namelist() if name not in second.namelist() and not name.endswith("/")]
        assert re.fullmatch(r"tessera/lib/torch-.*\.so", operator)
        for name in (*names, operator):  # no binary names the folders it was built in
            assert str(ROOT).encode() not in first.read(name), name


def test_editable(source, editable):
    """The modules are those of the source tree, the library that of the build."""
    program = f"{PRODUCT}; print(tessera.__file__); print(tessera._library.PATH)"
    total, module, library = editable.run(program).split()
    assert total == "24.0" and module == str(source / "python/tessera/__init__.py")
    assert library == f"{editable.package}/lib/libtessera.so.{INTERFACE}"
    assert editable.command("--version") == f"tessera {VERSION}\n"


def test_environment_variable_without_a_compiler(editable):
    """A program that only imports torch goes on without tessera, with a warning."""
    said = editable.run("import torch; print((torch.ones(2, 2) @ torch.ones(2, 2)).sum().item())", TESSERA_ENABLE="1")
    assert "8.0\n" in said and "RuntimeWarning: TESSERA_ENABLE is set, but tessera cannot be enabled" in said


# ---- Debian packages ------------------------------------------------------------------------------------------------

PACKAGES = "libtessera0.1", "libtessera-dev", "tessera", "python3-tessera"


@pytest.fixture
def debian_packages():
    """The files, made unless they are newer than the sources."""
    need("pkg-config")
    if os.geteuid():
        pytest.skip("Debian packages are installed by root")
    need_packages("build-essential", "cmake", "debhelper", "dh-python", "lintian", "python3-numpy")
    if any(map(is_installed, PACKAGES)):
        pytest.skip("Tessera's Debian packages are installed here already")
    parts = [ROOT / name for name in ("cli", "cmake", "include", "packaging", "python", "src")]
    changed = max(path.stat().st_mtime for part in parts for path in part.rglob("*"))
    if not any(path.stat().st_mtime > changed for path in MADE.glob(f"deb/tessera_{VERSION}_*.changes")):
        make("deb")
    return [next(MADE.glob(f"deb/{name}_{VERSION}_*.deb")) for name in PACKAGES]


def test_debian_packages_keep_debian_s_rules(debian_packages):
    assert run("lintian", "--allow-root", *MADE.glob(f"deb/tessera_{VERSION}_*.changes")) == ""


@pytest.mark.alone  # programs of other tests would find these libraries
def test_debian_packages(debian_packages, tmp_path):
    """They work, and nothing is left of them."""
    environment = clean_environment(tmp_path)
    try:
        run("dpkg", "-i", *debian_packages)
        run("tessera", "selftest", env=environment)
        assert "Tessera" in run("tessera", "run", "--", "true", env=environment)
        program = f"{PRODUCT}\nimport importlib.metadata as m; print(m.version('tessera'))"
        assert run("/usr/bin/python3", "-c", program, env=environment, cwd=tmp_path).split() == ["24.0", VERSION]
        flags = run("pkg-config", "--cflags", "--libs", "tessera", env=environment).split()
        run("cc", ROOT / "tests/consumer/main.c", "-o", tmp_path / "program", *flags, env=environment)
        assert run(tmp_path / "program", env=environment).startswith(f"tessera {VERSION}: TSR_OK")
    finally:
        run("dpkg", "--purge", *PACKAGES)
    left = [path for folder in ("bin", "include", "lib", "share") for path in
            run("find", f"/usr/{folder}", "-name", "*tessera*", "-not", "-name", "*tesseract*").split()]
    assert left == []
