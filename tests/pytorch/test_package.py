"""The package: what it says of itself, its types, and the examples of the documentation."""

import os
import pydoc
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import tessera
from tensors import RELEASE

ROOT = Path(__file__).parents[2]


def run(*command, **options):
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, **options)
    assert ran.returncode == 0, f"{' '.join(map(str, command))}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def test_numpy_needs_no_torch():
    program = (
        "import sys; sys.modules['torch'] = None\nimport numpy as np, tessera\n"
        "print(tessera.matmul(np.ones((2, 3), 'f4'), np.ones((3, 4), 'f4')).sum(), "
        "'torch: not installed' in tessera.info())\n"
        "for call in (tessera.enable, tessera.stats):\n"
        "    try: call()\n    except TypeError as error: print(error)")
    output = run(sys.executable, "-c", program)
    assert output.startswith("24.0 True\n")
    for words in ("tessera.enable needs PyTorch", "tessera.stats needs PyTorch"):
        assert words in output


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
    """Without a compiler NumPy works, and torch tensors get an error that says what to install; wrong arguments come
    first."""
    program = (
        "import numpy as np, tessera, torch\n"
        "print(tessera.matmul(np.ones((2, 3), 'f4'), np.ones((3, 4), 'f4')).sum())\n"
        "try: tessera.matmul(torch.ones(2, 2), [[1.0]])\nexcept TypeError: print('refused')\n"
        "tessera.matmul(torch.ones(2, 2), torch.ones(2, 2))")
    environment = {**os.environ, "PATH": str(tmp_path), "TESSERA_CACHE": str(tmp_path / "cache")}
    environment.pop("CXX", None)
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ran.stdout.split() == ["24.0", "refused"] and "found no C++ compiler: install one" in ran.stderr
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
