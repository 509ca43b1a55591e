"""Fixtures: the engines that the general tests run on, and how skipped tests are summed up."""

import collections
import shutil

import numpy as np
import pytest

import engine as engines
from binding import CPU, CUDA, FP32, IEEE, TF32
from toolchain import BUILD, run


def engines_where(condition):
    """A fixture over the engines that meet a condition. On a machine without a GPU those of CUDA are skipped tests."""
    def parameter(made):
        marks = [pytest.mark.skip(reason=engines.NO_GPU)] if made.device == CUDA and not engines.DRIVER else []
        return pytest.param(made, id=made.name, marks=marks)

    @pytest.fixture(scope="session", params=[parameter(made) for made in engines.all_engines() if condition(made)])
    def chosen(request):
        return request.param

    return chosen


engine = engines_where(lambda made: True)
accurate = engines_where(lambda made: made.precision != TF32)  # those that promise the componentwise bound
ieee = engines_where(lambda made: made.precision == IEEE)
fp32 = engines_where(lambda made: made.precision == FP32)
tf32 = engines_where(lambda made: made.precision == TF32)
cpu = engines_where(lambda made: made.device == CPU)
cuda = engines_where(lambda made: made.device == CUDA)
fp32_cuda = engines_where(lambda made: made.device == CUDA and made.precision == FP32)
accurate_cuda = engines_where(lambda made: made.device == CUDA and made.precision != TF32)


@pytest.fixture
def driver():
    if not engines.DRIVER:
        pytest.skip(engines.NO_GPU)
    return engines.DRIVER


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    """An installed tree that has been moved since: nothing in it may depend on where it was put first."""
    first, moved = tmp_path_factory.mktemp("installed") / "first", tmp_path_factory.mktemp("moved") / "prefix"
    run("cmake", "--install", BUILD, "--prefix", first)
    shutil.move(first, moved)
    return moved


@pytest.fixture
def rng():
    return np.random.default_rng(20260)


def pytest_addoption(parser):
    parser.addoption("--shard", metavar="I/N", help="the I-th of N parts of the tests, which may run side by side, or `alone`: those that may not")


@pytest.hookimpl(trylast=True)  # after -k and -m have chosen
def pytest_collection_modifyitems(config, items):
    shard = config.getoption("--shard")
    if not shard:
        return
    if shard == "alone":
        kept = [item for item in items if item.get_closest_marker("alone")]
    else:
        part, parts = map(int, shard.split("/"))
        kept = [item for item in items if not item.get_closest_marker("alone")][part - 1::parts]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_report_header():
    gpu = engines.NO_GPU or "GPU of compute capability {}.{}".format(*engines.DRIVER.capability())
    return [f"library: {engines.binding.lib._name}", f"engines: {', '.join(e.name for e in engines.all_engines())}", gpu]


def pytest_terminal_summary(terminalreporter):
    """Why tests were skipped, a line a reason: pytest's own list has a line for every place."""
    reasons = collections.Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} {reason.removeprefix('Skipped: ')}")
