"""The fenced blocks of the documentation, and what the lines around them say. CONTRIBUTING.md has the rules."""

import re
import textwrap
from collections import namedtuple

from toolchain import ROOT

DOCUMENTS = [
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md")))
    if path.exists()
]

# line: of the opening fence, from 1. file: the name under which the block is to be saved, or None. needs: words of a
# comment
# `<!-- needs: ... -->` right before it. tested: `file::test` of a comment `<!-- tested: ... -->`, or None.
Block = namedtuple("Block", "path line language text file needs tested")


def blocks(path):
    lines = path.read_text().splitlines()
    found, start = [], None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if start is None:
            start = number
            continue
        marks = re.fullmatch(r"\s*<!-- (needs|tested): (.+) -->", lines[start - 1]) if start else None
        before = [line for line in lines[: start - 1 if marks else start] if line.strip()]
        named = re.match(r"`([\w.-]+)`.*:$", before[-1]) if before else None
        kind, words = marks.groups() if marks else (None, "")
        text = textwrap.dedent("\n".join(lines[start + 1 : number]) + "\n")
        found.append(
            Block(path, start + 1, lines[start].strip()[3:], text, named and named[1],
                  words.split(", ") if kind == "needs" else [], words if kind == "tested" else None)
        )
        start = None
    assert start is None, f"{path.name}: the block of line {start + 1} does not end"
    return found
