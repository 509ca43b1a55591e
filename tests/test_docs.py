"""Every command and program in the documentation works. CONTRIBUTING.md says how blocks are marked."""

import os
import re
import subprocess

import pytest

import binding
from toolchain import BUILD, ROOT, run

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS = [path for path in DOCUMENTS if path.exists()]
NOT_RUN = re.compile(r"(sudo )?(make|cmake|ctest|git|cd|apt-get|pip|export|#)(\s|$)")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))


def blocks(path):
    """(language, whether it is marked to be run, text) of each fenced block."""
    for opening, text in re.findall(r"^```([^\n]*)\n(.*?)^```$", path.read_text(), re.M | re.S):
        words = opening.split()
        yield (words or [""])[0], "run" in words[1:], text


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_blocks(path, tmp_path):
    """A document's blocks run in order, in one empty folder, with the command that was built first on the path."""
    environment = {**os.environ, "PATH": f"{BUILD / 'cli'}:{os.environ['PATH']}"}
    for number, (language, marked, text) in enumerate(blocks(path)):
        if not marked:
            continue
        if language == "sh":
            run("sh", "-e", "-c", text, cwd=tmp_path, env=environment)
        elif language == "c":
            source, program = tmp_path / f"block{number}.c", tmp_path / f"block{number}"
            source.write_text(text)
            run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", source, "-o", program, f"-L{BUILD}", "-ltessera",
                "-lm", f"-Wl,-rpath,{BUILD}")
            run(program, cwd=tmp_path)
        else:
            raise AssertionError(f"{path.name}: a {language!r} block cannot be run")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_what_is_not_run(path):
    """Blocks of shell or C that are not marked hold building commands alone, whose targets exist."""
    for language, marked, text in blocks(path):
        if language == "c":
            assert marked, f"{path.name}: a C program that no test runs:\n{text}"
        if language == "sh" and not marked:
            for line in filter(None, map(str.strip, text.splitlines())):
                assert NOT_RUN.match(line), f"{path.name}: a command that no test runs: {line}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(path):
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)\b", " ".join(re.findall(r"`[^`]+`|^make .*$", path.read_text(), re.M))))
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
