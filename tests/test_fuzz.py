"""The fuzz targets (fuzz/), a second of each with our own driver. `make fuzz` runs them for two minutes, on libFuzzer
where there is clang."""

import re

import pytest

from toolchain import BUILD, ROOT, need, run

pytestmark = pytest.mark.slow
TARGETS = sorted(path.name for path in (ROOT / "tests" / "fuzz" / "corpus").iterdir())
SECONDS = 1


def test_every_target_has_a_corpus():
    sources = {path.stem for path in (ROOT / "tests" / "fuzz").glob("*.c")} - {"fuzz", "standalone"}
    assert set(TARGETS) == sources


@pytest.mark.parametrize("target", TARGETS)
def test_target(target):
    need("cc")
    out = run("env", "FUZZER=standalone", ROOT / "tests" / "fuzz" / "run", BUILD, SECONDS, target)
    assert int(re.search(rf"^fuzz: {target}: (\d+) inputs, standalone$", out, re.M).group(1)) >= 10
