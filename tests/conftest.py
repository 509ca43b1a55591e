"""Fixtures: the engines that the general tests run on, and how skipped tests are summed up."""

import collections
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

import engine as engines
from binding import CPU, CUDA, FP32, IEEE, TF32
from toolchain import BUILD, run

SAMPLED = 3  # of each test's parameters, by --quick, or one for each engine


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
# Attention: every CPU kernel, what the plan chooses, and the split kernels where it would not; AMX is for products.
attending_cpu = engines_where(lambda made: made.device == CPU and made.precision == IEEE and made.kernel)
attending = engines_where(lambda made: made.precision != TF32 and made.kernel != "amx" and
                          ((made.device == CUDA) != bool(made.kernel) or made.kernel == "split_fp32_sm90"))


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


# ---- Which tests run ------------------------------------------------------------------------------------------------

def pytest_addoption(parser):
    parser.addoption(
        "--share", metavar="FOLDER", type=Path, help="share the tests with the other processes that have this option; "
        "`alone` ones are left out")
    parser.addoption("--alone", action="store_true", help="only the tests that other processes would disturb")
    parser.addoption("--quick", action="store_true",
                     help="without `slow` tests, and a sample of the parameters of the others")


def function_of(item):
    return item.path, getattr(item, "originalname", item.name)


def engine_of(item):
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((value.name for value in values if isinstance(value, engines.Engine)), None)


def sample(items):
    """Of each test one of its parameters for each engine, or where it has no engine a few, the first and the last among
    them. Documents stay whole: a block needs those before it."""
    counts, seen = collections.Counter(map(function_of, items)), collections.Counter()
    for item in items:
        function, engine = function_of(item), engine_of(item)
        key = function, engine
        number, last = seen[key], counts[function] - 1
        seen[key] += 1
        is_spread = number == last or number * SAMPLED // (last + 1) != (number - 1) * SAMPLED // (last + 1)
        if item.path.name == "test_docs_blocks.py" or (number == 0 if engine else is_spread):
            yield item


@pytest.hookimpl(trylast=True)  # after -k and -m have chosen
def pytest_collection_modifyitems(config, items):
    kept = items[:]
    if config.getoption("--quick"):
        kept = [item for item in kept if not item.get_closest_marker("slow")]
        kept = list(sample(kept))
    if config.getoption("--share"):
        kept = [item for item in kept if not item.get_closest_marker("alone")]
        # Those first: no process is left with one at the end.
        kept.sort(key=lambda item: not item.get_closest_marker("slow"))
    if config.getoption("--alone"):
        kept = [item for item in kept if item.get_closest_marker("alone")]
    left = set(items) - set(kept)
    if left:
        config.hook.pytest_deselected(items=left)
    items[:] = kept


def claimed(items, folder):
    """The items that no other process has claimed, in runs of one test with several parameters, slow ones one by one,
    files marked `together` whole: whoever creates the run's file has it."""

    def run_key(item):
        if item.get_closest_marker("together"):
            return item.path
        return item.nodeid if item.get_closest_marker("slow") else function_of(item)

    for number, (_, run_of_items) in enumerate(itertools.groupby(items, key=run_key)):
        try:
            (folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield from run_of_items


def pytest_runtestloop(session):
    """With --share: pytest's own loop, over what is claimed on the way."""
    folder = session.config.getoption("--share")
    if not folder or session.testsfailed or session.config.option.collectonly:
        return None
    items = claimed(session.items, folder)
    item = next(items, None)
    while item:
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


# ---- What is printed ------------------------------------------------------------------------------------------------

def pytest_report_header():
    gpu = engines.NO_GPU or "GPU of compute capability {}.{}".format(*engines.DRIVER.capability())
    return [
        f"library: {engines.binding.lib._name}", f"engines: {', '.join(e.name for e in engines.all_engines())}", gpu
    ]


def pytest_terminal_summary(terminalreporter):
    """Why tests were skipped, a line a reason: pytest's own list has a line for every place."""
    reasons = collections.Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} {reason.removeprefix('Skipped: ')}")
