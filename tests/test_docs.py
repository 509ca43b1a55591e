"""Every command and program in the documentation works. CONTRIBUTING.md says how blocks are marked."""

import os
import re
import subprocess
import sys

import pytest

import binding
from toolchain import BUILD, ROOT, run

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS = [path for path in DOCUMENTS if path.exists()]
BUILDING = re.compile(r"(sudo )?(make|cmake|ctest|git|cd|apt-get|pip|export|#)(\s|$)")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))


def blocks(path, language):
    """The texts of a document's fenced blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.M | re.S)


def is_building(text):
    return all(BUILDING.match(line) for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_shell(path, tmp_path):
    """A document's commands run in order, in one empty folder, with the command that was built first on the path."""
    environment = {**os.environ, "PATH": f"{BUILD / 'cli'}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    for text in blocks(path, "sh"):
        if not is_building(text):
            run("sh", "-e", "-c", text, cwd=tmp_path, env=environment)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_programs(path, tmp_path):
    """Each C block is a whole program that compiles without warnings, links and exits with 0."""
    for number, text in enumerate(blocks(path, "c")):
        source, program = tmp_path / f"block{number}.c", tmp_path / f"block{number}"
        source.write_text(text)
        run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", source, "-o", program, f"-L{BUILD}", "-ltessera",
            "-lm", f"-Wl,-rpath,{BUILD}")
        run(program, cwd=tmp_path)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(path):
    lines = [line for text in blocks(path, "sh") for line in text.splitlines()] + re.findall(r"(?<!`)`([^`\n]+)`(?!`)", path.read_text())
    named = {target for line in lines for target in re.findall(r"^make ([a-z][a-z-]+)", line)}
    assert named <= TARGETS, named - TARGETS


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}, which is not there"


def test_make_offers_what_it_says():
    """Every target has its recipe: make can print what it would do."""
    for target in sorted(TARGETS - {"build"}):
        ran = subprocess.run(["make", "-n", "-C", ROOT, target], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr


def test_version_is_in_the_changelog():
    assert f"## [{binding.lib.tsr_version().decode()}]" in (ROOT / "CHANGELOG.md").read_text()


def test_tables_are_those_of_the_results():
    run(sys.executable, ROOT / "bench/table.py", "--check")
