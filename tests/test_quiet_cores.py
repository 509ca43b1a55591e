"""bench/cpu/run --quiet-cores: which cores a sample gets, and that the benchmark runs so."""

import subprocess
import sys

import pytest

from toolchain import BUILD, ROOT

sys.path += [str(ROOT / "bench"), str(ROOT / "bench/cpu")]
import quiet  # noqa: E402
from harness import results  # noqa: E402


class Machine(quiet.QuietCores):
    """Eight halves of four cores, 0 and 4, 1 and 5, ... being halves of one; a neighbour is on some."""

    def __init__(self, *disturbed):
        super().__init__(None, range(8))
        self.disturbed = set(disturbed)

    def rates(self, groups):
        def rate(group):
            crowded = len({core % 4 for core in group}) < len(group)
            return 100.0 * (0.5 if crowded else 1.0) * (0.4 if self.disturbed & set(group) else 1.0)

        return [rate(list(group)) for group in groups]


def test_a_disturbed_core_is_not_taken():
    machine = Machine(0, 1, 2, 4, 5, 6, 7)
    assert machine.choose(1) == [3] and machine.share() == 1.0


def test_halves_of_one_core_are_not_taken_together():
    machine = Machine(0, 2, 3, 4, 6)  # of 1, 5 and 7 the first two are halves of one
    assert sorted(machine.choose(2)) in ([1, 7], [5, 7])


def test_a_core_that_was_disturbed_is_the_second_choice():
    machine = Machine(0)
    machine.look()
    machine.disturbed = set()
    assert 0 not in machine.choose(3)


def test_where_none_is_quiet_the_least_disturbed_are_taken(monkeypatch):
    monkeypatch.setattr(quiet, "PATIENCE", 0.0)
    machine = Machine(1, 2, 3, 4, 5, 6, 7)
    chosen = machine.choose(2)
    assert len(set(chosen)) == 2 and 0 in chosen and machine.share() == 0.0


def test_all_cores_leave_no_choice():
    assert sorted(Machine(1).choose(16)) == list(range(8))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_the_benchmark_on_quiet_cores(tmp_path, threads):
    save = tmp_path / "cpu-here.json"
    ran = subprocess.run([
        ROOT / "bench/cpu/run", BUILD, "--quick", "--seconds", "0.02", "--shape", "96,96,96", "--layout", "nn",
        "--peer", "blis", "--threads",
        str(threads), "--quiet-cores", "--save", save
    ], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    record, = (r for r in results.load(save) if r["library"] == "tessera")
    assert 0 <= record["quiet"] <= 1 and record["threads"] == threads
