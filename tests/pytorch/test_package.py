"""The package: sdist and wheel and what is in them, its command, its types, and the examples of the documentation."""

import os
import pydoc
import re
import shutil
import subprocess
import sys
import tarfile
import typing
from pathlib import Path

import pytest

import tessera
from tensors import RELEASE
from tessera import _build

ROOT = Path(__file__).parents[2]
SOURCE_TREE = str(ROOT / "python")


def run(*command, **options):
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, **options)
    assert ran.returncode == 0, f"{' '.join(map(str, command))}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """What the sdist holds."""
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-c", f"import scikit_build_core.build as b; b.build_sdist({str(folder)!r})", cwd=ROOT)
    packed, = folder.glob("tessera-*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder)
    return folder / packed.name[:-len(".tar.gz")]


def pip_settings(source):
    """Unoptimized: quick to compile."""
    return ["--no-build-isolation", "--no-deps", "-C", f"build-dir={source.parent / 'build'}", "-C",
            "cmake.build-type=Debug", "-C", "cmake.define.TESSERA_CUDA=OFF"]


@pytest.fixture(scope="module")
def installed(source, tmp_path_factory):
    """An environment in which the wheel, and nothing of the source tree, is importable."""
    folder = tmp_path_factory.mktemp("package")
    run(sys.executable, "-m", "pip", "wheel", "-w", folder, source, *pip_settings(source))
    wheel, = folder.glob("tessera-*-py3-none-*.whl")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", folder / "site", wheel)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    environment["TESSERA_CACHE"] = os.environ.get("TESSERA_CACHE", str(folder / "cache"))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != SOURCE_TREE]
    environment["PYTHONPATH"] = os.pathsep.join([str(folder / "site"), *paths])
    return folder, environment


INTERFACE = tessera.__version__.rpartition(".")[0]
PRODUCT = "import numpy as np, tessera; print(tessera.matmul(np.ones((2, 3), 'f4'), np.ones((3, 4), 'f4')).sum())"


def test_sdist(source):
    """What a build needs, and nothing that a build left."""
    assert {path.name for path in source.iterdir()} == {
        "CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "cli", "cmake", "include", "pyproject.toml", "python",
        "src"}
    names = {path.suffix for path in source.rglob("*") if not path.is_dir()}
    assert names <= {"", ".txt", ".md", ".toml", ".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".cmake", ".in", ".typed"}


def test_wheel(installed):
    folder, environment = installed
    output = run(sys.executable, "-m", "tessera", "info", env=environment, cwd=folder)
    assert f"library: {folder / 'site/tessera/lib/libtessera.so'}.{INTERFACE}\n" in output
    assert f"tessera: {tessera.__version__}" in output
    assert run(sys.executable, "-c", PRODUCT, env=environment, cwd=folder).split() == ["24.0"]
    command = folder / "site/bin/tessera"
    assert run(command, "--version", env=environment) == f"tessera {tessera.__version__}\n"
    assert run(command, "run", "--", "sh", "-c", "echo $LD_PRELOAD",
               env=environment).strip() == f"{folder}/site/tessera/lib/libtessera_blas.so.{INTERFACE}"


def test_editable(source, tmp_path):
    """The modules are those of the source tree, the library that of the build."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python, packages = tmp_path / "venv/bin/python", os.path.dirname(os.path.dirname(pytest.__file__))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    environment["PYTHONPATH"] = packages
    run(sys.executable, "-m", "pip", "--python", python, "install", *pip_settings(source), "-e", source,
        env=environment)
    program = f"{PRODUCT}; print(tessera.__file__); print(tessera._library.PATH)"
    total, module, library = run(python, "-c", program, env=environment, cwd=tmp_path).split()
    assert total == "24.0" and module == str(source / "python/tessera/__init__.py")
    assert library.startswith(str(tmp_path / "venv")) and library.endswith(f"/tessera/lib/libtessera.so.{INTERFACE}")
    assert run(tmp_path / "venv/bin/tessera", "--version", env=environment) == f"tessera {tessera.__version__}\n"


TRAINING_STEP = """
import sys, torch, tessera
tessera.enable(devices="cpu", always=True)
layer = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
layer(torch.ones(8, 64)).square().mean().backward()
optimizer.step()
print(tessera.stats().taken, tessera.matmul(torch.ones(2, 3), torch.ones(3, 4)).sum().item())
"""


def test_operator_of_the_wheel(installed, tmp_path):
    """With the operator beside the library no compiler is needed, and nothing is written to the cache. Here it is the
    one of these tests; packaging/wheel.py links such a one."""
    folder, environment = installed
    site = tmp_path / "site"
    shutil.copytree(folder / "site", site)
    operator = site / "tessera/lib" / _build.installed_torch().shipped_name
    shutil.copy(_build.build(), operator)
    environment = {**environment, "PATH": str(tmp_path), "TESSERA_CACHE": str(tmp_path / "cache"),
                   "PYTHONPATH": str(site)}
    ran = subprocess.run([sys.executable, "-c", TRAINING_STEP], env=environment, cwd=tmp_path, capture_output=True,
                         text=True)
    taken, total = ran.stdout.split() or [0, ran.stderr]
    assert int(taken) >= 2 and total == "24.0" and "compiling" not in ran.stderr
    assert not (tmp_path / "cache").exists()
    assert f"operator: {operator}" in run(sys.executable, "-m", "tessera", "info", env=environment, cwd=tmp_path)


def test_numpy_needs_no_torch(installed):
    folder, environment = installed
    program = (
        "import sys; sys.modules['torch'] = None\nimport numpy as np, tessera\n"
        "print(tessera.matmul(np.ones((2, 3), 'f4'), np.ones((3, 4), 'f4')).sum(), "
        "'torch: not installed' in tessera.info())\n"
        "for call in (tessera.enable, tessera.stats):\n"
        "    try: call()\n    except TypeError as error: print(error)")
    output = run(sys.executable, "-c", program, env=environment, cwd=folder)
    assert output.startswith("24.0 True\n")
    for words in ("tessera.enable needs PyTorch", "tessera.stats needs PyTorch"):
        assert words in output


@pytest.mark.skipif(RELEASE < (2, 5), reason="torch 2.5 is the first to call packages when it is imported")
def test_environment_variable_reaches_programs_that_do_not_know(installed):
    folder, environment = installed
    program = ("import sys, torch; torch.ones(64, 64) @ torch.ones(64, 64)\n"
               "t = sys.modules.get('tessera'); print(t and t.stats().taken)")
    assert run(sys.executable, "-c", program, env=environment, cwd=folder).split() == ["None"]
    environment = {**environment, "TESSERA_ENABLE": "1", "TESSERA_DEVICES": "cpu"}
    assert run(sys.executable, "-c", program, env=environment, cwd=folder).split() == ["1"]


@pytest.mark.skipif(RELEASE < (2, 5), reason="torch 2.5 is the first to call packages when it is imported")
def test_environment_variable_without_a_compiler(installed):
    """A program that only imports torch goes on without tessera, with a warning."""
    folder, environment = installed
    environment = {**environment, "TESSERA_ENABLE": "1", "TESSERA_CACHE": str(folder / "empty"), "PATH": str(folder)}
    environment.pop("CXX", None)
    ran = subprocess.run(
        [sys.executable, "-c", "import torch; print((torch.ones(2, 2) @ torch.ones(2, 2)).sum().item())"],
        env=environment, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.split() == ["8.0"], ran.stderr
    assert "RuntimeWarning: TESSERA_ENABLE is set, but tessera cannot be enabled" in ran.stderr


def test_info():
    output = run(sys.executable, "-m", "tessera", "info")
    for line in ("tessera: ", "cpu kernel: ", "cuda: ", "library: ", "torch: ", "operator: "):
        assert re.search(f"^{line}", output, re.M), output
    assert output.strip() == tessera.info().strip()


def test_first_product_does_not_import_the_compiler():
    """torch._dynamo takes over a second, in every process."""
    program = ("import sys, torch, tessera\nbefore = 'torch._dynamo' in sys.modules\nx = torch.ones(2, 2)\n"
               "tessera.linear(tessera.matmul(x, x), tessera.pack(x))\n"
               "print(before or 'torch._dynamo' not in sys.modules)")
    assert run(sys.executable, "-c", program).split() == ["True"]


def test_missing_library():
    ran = subprocess.run([sys.executable, "-c", "import tessera"],
                         env={**os.environ, "TESSERA_LIBRARY": "/nowhere/libtessera.so"}, capture_output=True,
                         text=True)
    assert ran.returncode and "cannot find its library: looked for /nowhere/libtessera.so" in ran.stderr


def test_missing_compiler(tmp_path):
    """Without a compiler NumPy works, and torch tensors get an error that says what to install."""
    program = (
        "import numpy as np, tessera, torch\n"
        "print(tessera.matmul(np.ones((2, 3), 'f4'), np.ones((3, 4), 'f4')).sum())\n"
        "tessera.matmul(torch.ones(2, 2), torch.ones(2, 2))")
    environment = {**os.environ, "PATH": str(tmp_path), "TESSERA_CACHE": str(tmp_path / "cache")}
    environment.pop("CXX", None)
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ran.stdout.split() == ["24.0"] and "found no C++ compiler: install one" in ran.stderr
    ran = subprocess.run([sys.executable, "-c", program], env={**environment, "CXX": "/bin/false"}, capture_output=True,
                         text=True)
    assert "could not compile its operator for torch" in ran.stderr


def test_types(tmp_path):
    """mypy finds nothing in the package, and what is wrong in a program that uses it."""
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text("import numpy as np, tessera\na: np.ndarray = np.ones((2, 2), np.float32)\n"
                       "tessera.matmul(a, tessera.pack(a), precision='ieee').sum()\n"
                       "tessera.matmul(a, a, precision='half')\ntessera.enable('tf31')\n"
                       "tessera.enable(devices='gpu')\n")
    ran = subprocess.run([sys.executable, "-m", "mypy", "--follow-imports=skip", "--ignore-missing-imports",
                          "--no-incremental", "--cache-dir", os.devnull, ROOT / "python/tessera", program],
                         capture_output=True, text=True)
    assert re.findall(r"(\w+).py:(\d+): error", ran.stdout) == [("program", line) for line in "456"], ran.stdout


def test_type_hints():
    """They can be evaluated, and help() shows each once."""
    for name in tessera.__all__:
        typing.get_type_hints(getattr(tessera, name))
    assert typing.get_type_hints(tessera.enable)["precision"] == typing.Literal["fp32", "ieee", "tf32"]
    text = pydoc.plain(pydoc.render_doc(tessera.matmul))
    assert "Union[~Array, tessera.Packed]" in text and "'Union" not in text and "torch.Tensor" not in text


def test_train_gpt2_example(tmp_path):
    if RELEASE < (2, 0):
        pytest.skip("torch 2.0 is the first to have scaled_dot_product_attention")
    output = run(sys.executable, ROOT / "examples/train_gpt2.py", "--tiny", "--steps", "4", "--save",
                 tmp_path / "result.json")
    difference = float(re.search(r"Tessera fp32 .* at most (\S+) from", output)[1])
    assert difference < 1e-5 and (tmp_path / "result.json").exists()


def python_blocks(document):
    """Of those that need nothing but torch."""
    return re.findall(r"(?<! -->\n)^```python\n(.*?)^```$", document.read_text(), re.M | re.S)


PROGRAMS = [document.relative_to(ROOT) for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
            if "import torch" in "".join(python_blocks(document))]


@pytest.mark.skipif(RELEASE < (2, 5), reason="the documentation is that of a current torch")
@pytest.mark.parametrize("name", PROGRAMS, ids=str)
def test_documentation(name, tmp_path):
    """The python blocks of a document run, in order, as one program."""
    (tmp_path / "program.py").write_text("\n".join(python_blocks(ROOT / name)))
    run(sys.executable, "program.py", cwd=tmp_path)
