"""Fixtures: the devices tests run on, and how skipped tests are summed up."""

import collections

import pytest
import torch

import tessera

NO_GPU = "no GPU that torch can see"
DEVICES = [
    pytest.param("cpu"),
    pytest.param("cuda", marks=[] if torch.cuda.is_available() else pytest.mark.skip(reason=NO_GPU))
]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def gpu():
    if not torch.cuda.is_available():
        pytest.skip(NO_GPU)


@pytest.fixture(autouse=True)
def clean():
    """Each test begins with the drop-in off and nothing counted, and with the same random numbers."""
    torch.manual_seed(20260)
    tessera.disable()
    tessera.reset_stats()
    tessera._torch._has_warned = True  # that there is no GPU; test_drop_in.py has a test of it
    yield
    tessera.disable()


def pytest_report_header():
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else NO_GPU
    return [f"torch: {torch.__version__}, {gpu}", f"library: {tessera._library.PATH}"]


def pytest_terminal_summary(terminalreporter):
    """Why tests were skipped, a line a reason: pytest's own list has a line for every place."""
    reasons = collections.Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} {reason.replace('Skipped: ', '')}")
