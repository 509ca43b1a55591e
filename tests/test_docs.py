"""What the documentation names is there. That its commands and programs work is test_docs_blocks.py's business."""

import re
import subprocess

import pytest

import binding
from documents import DOCUMENTS, blocks
from toolchain import ROOT

TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(path):
    lines = [line for block in blocks(path) if block.language == "sh" for line in block.text.splitlines()] + re.findall(
        r"(?<!`)`([^`\n]+)`(?!`)", path.read_text()
    )
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


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_version_is_in_the_changelog():
    assert f"## [{binding.lib.tsr_version().decode()}]" in (ROOT / "CHANGELOG.md").read_text()


def paths_of_the_tree():
    """The files and folders that design.md's drawings name: its tree, and the right column of each walk."""
    for block in blocks(ROOT / "docs/internals/design.md"):
        folder = ""
        for line in block.text.splitlines():
            names = line.strip().split("  ")[0].split()
            if re.match(r"[\w/]+/(\w+\.\w+)?( |$)", line):  # a folder, or a file by its path
                folder = names[0] if names[0].endswith("/") else ""
                yield names[0]
            elif folder and re.match(r"    [\w/]+(\.\w+|/)", line):  # what is in it
                yield from (folder + name for name in names)
            else:
                yield from re.findall(r"\b(?:src|python|include)/[\w/]*(?:\.\w+)?", line)


def test_the_tree_is_there():
    named = list(paths_of_the_tree())
    assert len(named) > 80
    assert [path for path in named if not (ROOT / path).exists()] == []
