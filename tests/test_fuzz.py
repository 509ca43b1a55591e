"""The fuzz targets (fuzz/), a few seconds of them: on libFuzzer where there is clang, else with our own driver. `make
fuzz` runs them for two minutes each."""

import re
import shutil

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
    out = run(ROOT / "tests" / "fuzz" / "run", BUILD, SECONDS, target)
    fuzzer = "libfuzzer" if shutil.which("clang") else "standalone"
    assert int(re.search(rf"^fuzz: {target}: (\d+) inputs, {fuzzer}$", out, re.M).group(1)) >= 10
