"""The library as a file: its symbols, its dependencies, its version."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import binding

ROOT = Path(__file__).parent.parent
LIBRARY = os.environ["TESSERA_LIBRARY"]
HEADER = (ROOT / "include" / "tessera.h").read_text()


def without_comments(source):
    return re.sub(r"/\*.*?\*/", "", source, flags=re.S)


def header_functions():
    return set(re.findall(r"\b(tsr_\w+)\s*\(", without_comments(HEADER)))


def tool(*command):
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_exported_symbols_are_the_headers_functions():
    lines = tool("nm", "-D", "--defined-only", LIBRARY).splitlines()
    exported = {line.split()[-1].split("@")[0] for line in lines}
    assert exported == header_functions()


def test_the_binding_covers_the_header():
    """Every function of the header is declared in binding.py, and so can be tested."""
    declared = set(re.findall(r'declare\("(tsr_\w+)"', (ROOT / "python" / "capi" / "binding.py").read_text()))
    assert declared == header_functions()


def test_dependencies():
    """libc, libm, threads and the dynamic loader: nothing that a machine without CUDA or a BLAS would lack."""
    allowed = re.compile(r"lib(c|m|pthread|dl)\.so\.\d+|ld-linux.*\.so\.\d+")
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", tool("readelf", "-d", LIBRARY))
    assert needed and all(allowed.fullmatch(name) for name in needed), needed


def test_no_run_path_and_no_executable_stack():
    dynamic, segments = tool("readelf", "-d", LIBRARY), tool("readelf", "-lW", LIBRARY)
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic
    stack = next(line for line in segments.splitlines() if "GNU_STACK" in line)
    assert "RWE" not in stack


def test_version():
    numbers = [re.search(rf"#define TSR_VERSION_{part} (\d+)", HEADER).group(1) for part in ("MAJOR", "MINOR", "PATCH")]
    assert binding.lib.tsr_version().decode() == ".".join(numbers)


def test_header_structs_match_the_binding():
    """Field names in order: a struct that changes in the header alone would make every test read the wrong bytes."""
    for name, mirror in [("tsr_options", binding.Options), ("tsr_operand", binding.Operand),
                         ("tsr_result", binding.Result), ("tsr_launch", binding.Launch), ("tsr_stats", binding.Stats)]:
        body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", without_comments(HEADER), re.S).group(1)
        fields = [word.strip(" *").split()[-1].strip("*") for line in body.split(";") if line.strip()
                  for word in line.split(",")]
        assert fields == [field[0] for field in mirror._fields_], name
