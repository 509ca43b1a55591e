"""The measuring harness of bench/, saved results, what became worse between two of them, and the report."""

import json
import os
import signal
import pathlib
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

import browser
import debian
from toolchain import BUILD, ROOT

sys.path.insert(0, str(ROOT / "bench"))
from harness import data, errors, machine, results, timing  # noqa: E402

RESULTS = ROOT / "bench/results"
ABOUT = {"gpu": "NVIDIA Test", "driver": "1", "torch": "2", "commit": "abc", "date": "2026-01-02"}


def product(**changed):
    """A record of Tessera beside torch, as bench/gpu/compare.py writes it."""
    return {
        "what": "product", "problem": "square", "m": 4096, "n": 4096, "k": 4096, "layout": "nn", "data": "rand",
        "precision": "fp32", "packed": False, "peer": "torch-fp32", "tessera_ms": 0.5, "peer_ms": 2.0, "speedup": 4.0,
        "tflops": 270.0, "error": 2e-7, "peer_error": 8e-7, **ABOUT, **changed
    }


def cpu_rate(library, gflops, **changed):
    return {
        "what": "library", "library": library, "m": 1024, "n": 1024, "k": 1024, "layout": "nn", "threads": 1,
        "gflops_best": gflops, "gflops_median": gflops, "samples": 3, "machine": "Test CPU", "commit": "abc",
        "date": "2026-01-02", **changed
    }


def program(*words, cwd=ROOT):
    ran = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, cwd=cwd)
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran


# ---- The harness ----------------------------------------------------------------------------------------------------

def test_rounds_are_taken_as_asked():
    taken = []
    timings = timing.interleaved(lambda halfway: taken.append(halfway) or [1.0 + len(taken) % 2, 5.0], seconds=0,
                                 least=4)
    assert len(taken) == 4 and sum(taken) == 1, "four rounds, one of them marked as the middle"
    assert [t.median for t in timings] == [1.5, 5.0] and [t.best for t in timings] == [1.0, 5.0]
    assert timings[1].spread == 0 and timings[0].spread > 0
    taken.clear()
    timing.interleaved(lambda halfway: taken.append(halfway) or [1.0], seconds=60, most=3)
    assert len(taken) == 3 and sum(taken) == 1


@pytest.mark.parametrize("family", data.FAMILIES)
def test_errors_are_those_that_were_made(family):
    a, b = data.matrices(family, 1, (30, 30), (30, 30))
    exact = np.float64(a) @ np.float64(b)
    off = exact.copy()
    magnitude = (np.abs(np.float64(a)) @ np.abs(np.float64(b)))[3, 4]
    off[3, 4] += 7 * errors.UNIT * magnitude
    (none, none_worst), (error, worst) = errors.measure([exact, off], a, b, rows=7)
    assert none < 1e-14 and none_worst < 1e-6
    assert worst == pytest.approx(7, rel=1e-3) and error == pytest.approx(
        7 * errors.UNIT * magnitude / np.linalg.norm(exact), rel=1e-3)


def test_wide_exponents_are_wide():
    made = np.abs(data.matrices("wide", 1, (100, 100))[0])
    assert made.min() < 2.0**-58 and made.max() > 2.0**58


def test_the_machine_is_described():
    about = machine.cpu()
    assert about["cores"] == len(os.sched_getaffinity(0)) and re.fullmatch(r"\d{4}-\d\d-\d\d", about["date"])
    assert machine.slug("NVIDIA H200") == "h200" and machine.slug("Intel(R) Xeon(R) Gold 6") == "intel-xeon-gold-6"


def run_jobs(path, jobs, asked="x", stop_at=None):
    """Measures jobs that are their own result; returns which were measured anew and all records."""
    measured = []

    def measure(job):
        if job == stop_at:
            raise KeyboardInterrupt
        measured.append(job)
        return [product(m=job)], f"job {job}"

    run = results.Run(path, {"gpu": "g", "commit": "c", "date": "d"}, asked)
    records = run.measure(jobs, lambda job: 1.0, measure)
    run.finish(records)
    return measured, records


def test_an_interrupted_run_goes_on(tmp_path, capsys):
    path = tmp_path / "r.json"
    with pytest.raises(SystemExit, match="goes on from there"):
        run_jobs(path, [1, 2, 3, 4], stop_at=3)
    assert not path.exists(), "a file is whole or not there"
    with open(f"{path}.partial", "a") as file:
        file.write('{"job": "3", "rec')  # as a machine that lost its power leaves it
    measured, records = run_jobs(path, [1, 2, 3, 4])
    assert measured == [3, 4] and [r["m"] for r in records] == [1, 2, 3, 4]
    assert results.load(path) == records and not pathlib.Path(f"{path}.partial").exists()
    assert "left]" in capsys.readouterr().out


def test_another_run_does_not_go_on(tmp_path):
    with pytest.raises(SystemExit):
        run_jobs(tmp_path / "r.json", [1, 2], stop_at=2)
    assert run_jobs(tmp_path / "r.json", [1, 2], asked="y")[0] == [1, 2]


# What Python imports at its start in test_the_cpu_benchmark: the benchmark gets Ctrl-C once its first job is noted.
INTERRUPT_AFTER_ONE_JOB = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT / "bench")!r})
from harness import results
note = results.Run.note

def note_and_interrupt(self, value, begin=False):
    note(self, value, begin)
    if "job" in value:
        os.killpg(0, signal.SIGINT)

results.Run.note = note_and_interrupt
"""


@pytest.mark.slow
def test_the_cpu_benchmark(tmp_path):
    """Measured, interrupted, resumed, and shown as a page."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT_AFTER_ONE_JOB)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    save = tmp_path / "results/cpu-here.json"
    command = [ROOT / "bench/cpu/run", BUILD, "--quick", "--seconds", "0.02", "--shape", "96,96,96", "--save", save]
    command += ["--layout", "nn", "--layout", "tt", "--threads", "1", "--threads", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, start_new_session=True,
                         preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in the background
                         env={**os.environ, "PYTHONPATH": path})
    assert ran.returncode and "goes on from there" in ran.stderr and not save.exists(), ran.stdout + ran.stderr
    assert re.search(r"^4 measurements: \d+ s at least", ran.stdout, re.M), "how long it takes is said beforehand"
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0 and "the rest follows" in ran.stdout, ran.stdout + ran.stderr
    records = results.load(save)
    rates = [r for r in records if r["what"] == "library" and r["library"] == "tessera"]
    assert {(r["m"], r["layout"], r["threads"]) for r in rates} == {(96, layout, t) for layout in ("nn", "tt")
                                                                    for t in (1, 2)}
    assert all(0 < r["gflops_median"] <= r["gflops_best"] for r in rates)
    assert {"openblas", "blis", "onednn", "mkl"} <= {r["library"] for r in records}, "those that are not here are named"
    made = program("bench/report", "--results", save.parent, "--docs", tmp_path, "--pages", tmp_path)
    assert made.returncode == 0, made.stderr
    assert "Threads of the CPU engine" in (tmp_path / "here.html").read_text()
    assert program("bench/report", "--measured", save.parent).returncode == 0
    made = program("bench/report", "--here", save.parent, "--docs", tmp_path, "--pages", tmp_path)
    assert made.returncode == 0 and "(this machine)" in (tmp_path / "here-here.html").read_text(), made.stderr
    results.save(save, [{**record, "host": "another of the model"} for record in records])
    assert program("bench/report", "--measured", save.parent).returncode == 3


def test_an_unknown_peer_is_refused():
    ran = program("bench/cpu/compare.py", BUILD, "--peer", "nosuch")
    assert ran.returncode and "no peer called nosuch; those known are openblas" in ran.stderr


def test_the_gpu_benchmark_needs_a_gpu():
    if machine.first_gpu():
        pytest.skip("this machine has a GPU")
    ran = subprocess.run([ROOT / "bench/gpu/run", BUILD], capture_output=True, text=True)
    assert ran.returncode == 1 and "needs a python3 with torch and a GPU" in ran.stderr


class StandInEvent:
    """A CUDA event whose clock moves by 100 us for each product."""

    clock = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.time = StandInEvent.clock

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.time - self.time) / 1e3


def test_a_long_run_is_timed_by_events(monkeypatch):
    """Without torch and a GPU: the median time of a product, the median clock, and the last power."""
    sys.path.insert(0, str(ROOT / "bench/gpu"))
    import sustained

    cuda = types.SimpleNamespace(Event=StandInEvent, synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    states = iter([{"clock_mhz": clock, "power_w": watts} for clock, watts in [(1980, 90), *[(1500, 690)] * 100]])
    monkeypatch.setattr(sustained.machine, "first_gpu", lambda: types.SimpleNamespace(state=lambda: next(states)))

    def multiply():
        StandInEvent.clock += 100

    assert sustained.sustained(multiply, 0) == (100.0, {"clock_mhz": 1500, "watts": 690})


def test_a_long_run_needs_a_gpu():
    if machine.first_gpu():
        pytest.skip("this machine has a GPU")
    ran = program("bench/gpu/sustained.py")
    assert ran.returncode == 1 and "needs a GPU whose clock and power NVML tells" in ran.stderr
    assert program("bench/gpu/sustained.py", "--help").returncode == 0


# ---- Saved results --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", sorted(path for path in RESULTS.glob("*.json") if not path.name.startswith("gpt2")),
                         ids=lambda path: path.name)
def test_saved_results_fit_the_schema(path):
    results.load(path)


WHOLE = json.dumps([product(), product(m=1)])
BAD = {
    "truncated": (WHOLE[:-40], "ends in the middle"), "not JSON": ('[{"what": nonsense}]', "is not JSON"),
    "no list": ('{"a": 1}', "no list of records"), "empty": ("[]", "has no records"), "an older schema": (json.dumps(
        [{"m": 1}]), "another version"), "a newer schema": (json.dumps([{"what": "hologram"}]), "does not know"),
    "a missing field": (json.dumps([{**product(), "what": "accuracy"}]), 'no "library"'), "a wrong type": (json.dumps(
                                         [product(m="many")]), 'as its "m"'), "another machine": (json.dumps(
                                             [product(gpu="NVIDIA Other")]), "another machine")
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_results_are_refused_in_a_sentence(kind, tmp_path):
    text, words = BAD[kind]
    (tmp_path / "test.json").write_text(WHOLE)
    (tmp_path / "peers-test.json").write_text(text)
    ran = program("bench/report", "--results", tmp_path, "--docs", tmp_path / "docs")
    assert (ran.returncode == 1 and words in ran.stderr and len(ran.stderr.splitlines()) == 1 and
            "peers-test.json" in ran.stderr)
    assert not (tmp_path / "docs").exists(), "nothing is written from results that are not whole"


def test_no_results_yet(tmp_path):
    ran = program("bench/report", "--results", tmp_path, "--docs", tmp_path)
    assert ran.returncode == 1 and "`make bench-cpu` or `make bench-gpu`" in ran.stderr
    assert program("bench/report", "--measured", tmp_path).returncode == 3


# ---- What became worse ----------------------------------------------------------------------------------------------

def compare(tmp_path, base, new, *options):
    for name, records in (("base", base), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(records))
    return program("bench/regressions.py", tmp_path / "base.json", tmp_path / "new.json", *options)


def test_nothing_worse(tmp_path):
    """A slower machine slows both sides: the ratio to the peer is what counts."""
    ran = compare(tmp_path, [product()], [product(tessera_ms=0.55, peer_ms=2.2, speedup=3.9, error=2.05e-7)])
    assert ran.returncode == 0 and "2 measurements compared" in ran.stdout and "0 worse" in ran.stdout


@pytest.mark.parametrize("change, words", [({"speedup": 3.7}, "slower: square 4096"),
                                           ({"error": 2.3e-7}, "less accurate: square 4096")])
def test_what_became_worse_is_named(tmp_path, change, words):
    ran = compare(tmp_path, [product()], [product(**change)])
    assert ran.returncode == 1 and words in ran.stdout and "1 worse" in ran.stdout
    assert compare(tmp_path, [product()], [product(**change)], "--margin", "20").returncode == 0


def test_libraries_are_compared_by_the_peers_both_have(tmp_path):
    base = [cpu_rate("tessera", 100), cpu_rate("openblas", 100), cpu_rate("blis", 50)]
    assert compare(tmp_path, base, [cpu_rate("tessera", 50), cpu_rate("openblas", 50)]).returncode == 0
    assert compare(tmp_path, base, [cpu_rate("tessera", 92), cpu_rate("openblas", 100)]).returncode == 1


def test_layers_of_the_package_are_compared(tmp_path):
    layer = {
        "what": "linear", "batch": 64, "in": 1024, "out": 512, "taken": True, "torch_us": 30.0, "drop_in_us": 20.0,
        "always_us": 20.0, "speedup": 1.5, "always_speedup": 1.5, **ABOUT
    }
    ran = compare(tmp_path, [layer], [{**layer, "speedup": 1.2}])
    assert ran.returncode == 1 and "slower: nn.Linear 64 x 1024 -> 512: 1.500 -> 1.200" in ran.stdout


@pytest.mark.parametrize("new, words", [([product(gpu="NVIDIA Other")], "only results of one machine"),
                                        ([product(m=7)], "no measurement in common")])
def test_what_cannot_be_compared(tmp_path, new, words):
    ran = compare(tmp_path, [product()], new)
    assert ran.returncode == 2 and words in ran.stderr


@pytest.mark.parametrize("arguments, words", [([""], "BASE= must name"), (["no.json"], "there is no no.json"),
                                              (["HEAD:no.json"], "git has no"),
                                              (["bench/results/h200.json"], "both BASE and NEW")])
def test_bases_that_are_none(arguments, words):
    ran = program("bench/regressions.py", *arguments)
    assert ran.returncode == 2 and words in ran.stderr


# ---- The report -----------------------------------------------------------------------------------------------------

def test_documents_are_what_the_results_make():
    ran = program("bench/report", "--check")
    assert ran.returncode == 0, ran.stderr


def test_check_sees_a_change(tmp_path):
    shutil.copytree(RESULTS, tmp_path / "results")
    command = ["bench/report", "--results", tmp_path / "results", "--docs", tmp_path]
    assert program(*command).returncode == 0
    assert program(*command, "--check").returncode == 0
    page = tmp_path / "results.md"
    page.write_text(page.read_text().replace("float32", "float64", 1))
    ran = program(*command, "--check")
    assert ran.returncode == 1 and "run `python3 bench/report`" in ran.stderr


def sustained_record(**changed):
    """A record of a long run, as bench/gpu/sustained.py writes it."""
    record = {"what": "sustained", "m": 4096, "n": 4096, "k": 4096, "layout": "nn", "data": "rand", **ABOUT}
    times = {"torch_us": 2680.0, "tessera_us": 697.0, "packed_us": 671.0, "fp16_third_us": 608.0}
    return {**record, **times, "clock_mhz": 1450, "watts": 699, **changed}


def test_a_long_run_is_shown(tmp_path):
    slower = sustained_record(data="randn", tessera_us=718.0)
    results.save(tmp_path / "test.json", [product()])
    results.save(tmp_path / "sustained-test.json", [sustained_record(), slower])
    assert program("bench/report", "--results", tmp_path, "--docs", tmp_path).returncode == 0
    said = (tmp_path / "results.md").read_text()
    for words in ("### In a long run", "| 4096 uniform | 2680 | 697 | 671 | 608 | 3.85 x | 0.87 | 1450 | 699 |",
                  "**3.7 to 3.8 x** as fast in a long run"):
        assert words in said


def random_product(what, **changed):
    """A record as bench/gpu/sweep.py writes it."""
    shape = {"kind": "any", "batch": 1, "m": 300, "n": 200, "k": 100, "layout": "nt", "padding": 1}
    times = {"torch_us": 8.0, "tessera_us": 4.0, "speedup": 2.0, "limit_share": 0.5, "worst_units": 3.0}
    errors = {"data": "rand", "error": 1e-7, "torch_error": 2e-7}
    also = times if what == "sweep" else errors
    return {"what": what, **shape, **also, "kernel": "direct_64x64", "seed": 1, **ABOUT, **changed}


def test_random_products_are_shown(tmp_path):
    results.save(tmp_path / "test.json", [product()])
    results.save(tmp_path / "sweep-test.json", [random_product("sweep")] + [
        random_product("sweep accuracy", data=data, error=error)
        for data, error in (("rand", 1e-7), ("rand", 2.02e-7), ("rand", 2.5e-7), ("rand", 3e-7), ("randn", 2.3e-7))])
    assert program("bench/report", "--results", tmp_path, "--docs", tmp_path).returncode == 0
    said = " ".join((tmp_path / "results.md").read_text().split())
    assert "error is above torch's for 2 of them on uniform data, for 1 on normal data" in said
    assert "on random products of uniform data | 300 x 200 x 100 nt (3.00e-07, 2.00e-07); 300" in said
    assert "on random products of normal data | 300 x 200 x 100 nt (2.30e-07, 2.00e-07) |" in said


def attention_record(direction, **changed):
    """A record as bench/gpu/attention.py writes it."""
    sizes = {"batch": 8, "heads": 12, "kv_heads": 12, "q_length": 1024, "k_length": 1024, "dim": 64, "causal": True}
    times = {"torch_us": 500.0, "tessera_us": 125.0, "speedup": 4.0, "error": 1e-7, "torch_error": 2e-7}
    return {"what": "attention", "problem": "bars", **sizes, "mask": "none", "direction": direction, "taken": True,
            **times, **ABOUT, **changed}


def test_attention_is_shown(tmp_path):
    behind = {"problem": "sweep", "q_length": 7, "speedup": 0.9, "tessera_us": 555.6}
    results.save(tmp_path / "test.json", [product()])
    results.save(tmp_path / "attention-test.json", [
        attention_record(direction, **also) for also in ({}, behind) for direction in ("forward", "backward")])
    assert program("bench/report", "--results", tmp_path, "--docs", tmp_path).returncode == 0
    said = (tmp_path / "results.md").read_text()
    assert "### Attention" in said and "forward 4.0 to 4.0 x, backward 4.0 to 4.0 x" in said
    assert "| 8 x 12 x 1024 x 64 causal | 500 | 125 | 4.00 x | 2.0e-07 / 1.0e-07 | 500 | 125 | 4.00 x |" in said
    assert "1 below 0.95 x" in " ".join(said.split())
    assert "attention, backward, is slower than torch float32 | 8 x 12 x 7 / 1024 x 64 causal (0.90 x)" in said


def test_models_are_shown(tmp_path):
    losses = {"loss_difference_tf32": 1e-4, "loss_difference_tessera": 2e-7}
    steps = {"step_torch_ms": 160.0, "step_tf32_ms": 80.0, "step_tessera_ms": 64.0, **losses, **ABOUT}
    sums = {"products_torch_ms": 120.0, "products_tessera_ms": 30.0, "products_limit_ms": 24.0,
            "products_yardstick_ms": 27.0}
    record = {"what": "model", "model": "GPT", **steps}
    results.save(tmp_path / "test.json", [product()])
    alone = {"batch": 8, "m": 64, "n": 32, "k": 16, "layout": "tn"}
    alone |= {"torch_us": 9.0, "tessera_us": 3.0, "yardstick_us": 2.4}
    results.save(tmp_path / "models-test.json", [{**record, "compiled": False, **sums}, {**record, "compiled": True},
                                                 {"what": "product alone", **alone, **ABOUT}])
    assert program("bench/report", "--results", tmp_path, "--docs", tmp_path).returncode == 0
    said = " ".join((tmp_path / "results.md").read_text().split())
    assert "as fast as torch's float32, geometric mean 4.00 x; whole steps 2.5 to 2.5 x" in said
    assert "| 8 of 64 x 32 x 16 tn | 9.0 | 3.0 | 3.00 x | 2.4 | 0.80 |" in said
    assert ("| GPT | 120.00 | 30.00 | 4.00 x | 0.80 | 0.90 | | 160.0 | 80.0 | 64.0 | 2.50 x | 160.0 / 64.0, 2.50 x | "
            "1.0e-04 / 2.0e-07 |") in said


def test_the_readme_says_what_a_long_run_gets(monkeypatch):
    """A claim has its condition beside it, with the results of a long run and without them."""
    monkeypatch.syspath_prepend(str(ROOT / "bench/report"))
    import tables

    load = tables.load
    for records, words in (([], "`make bench-sustained` measures by how much."), ([
            sustained_record()
    ], "**3.8 to 3.8 x**, at 1450 to 1450 MHz and 699 W")):
        monkeypatch.setattr(tables, "load", lambda name: records if name == "sustained-h200.json" else load(name))
        said = " ".join(tables.sustained(load("h200.json")).split())
        assert "A call among other work" in said and words in said


def test_products_of_the_same_rate(tmp_path):
    """The roofline has a mark for each, though nothing but their layouts tells them apart."""
    ceiling = {"what": "ceiling", "value": 4.0, "unit": "TB/s", "origin": "a copy", **ABOUT}
    (tmp_path / "results").mkdir()
    results.save(tmp_path / "results/test.json", [
        product(problem="transposed A", layout="tn"),
        product(problem="transposed both", layout="tt"), {**ceiling, "name": "copy"},
        {**ceiling, "name": "fp16 tensor cores", "value": 800.0, "unit": "TFLOP/s"}
    ])
    command = ["bench/report", "--results", tmp_path / "results", "--docs", tmp_path, "--pages", tmp_path]
    assert program(*command).returncode == 0
    (page, ) = tmp_path.glob("*.html")
    assert all(f"4096 x 4096 x 4096 {layout}: 270.0 TFLOP/s at" in page.read_text() for layout in ("tn", "tt"))


def test_losses_are_named(tmp_path):
    module = {
        "what": "module", "problem": 7, "name": "small_k", "precision": "fp32", "ms": 5.0, "torch_ms": 4.0,
        "speedup": 0.8, "error": 3e-7, "torch_error": 2e-7, **ABOUT
    }
    (tmp_path / "results").mkdir()
    results.save(
        tmp_path / "results/test.json",
        [product(m=512, n=512, k=512, tessera_ms=2.0, peer_ms=1.0, speedup=0.5, problem="squares"),
         product(), module])
    assert program("bench/report", "--results", tmp_path / "results", "--docs", tmp_path).returncode == 0
    said = (tmp_path / "results.md").read_text()
    for words in ("| fp32 is slower than torch float32 | 512 (0.50 x)",
                  "| a module is slower than eager torch at fp32 | 7 small k (0.80 x)",
                  "| a module is less accurate than torch at fp32 | 7 small k"):
        assert words in said


# What is wrong with the charts of a page, as a list of sentences.
FAULTS = """
[...document.querySelectorAll("figure")].flatMap((figure) => {
    const charts = [...figure.querySelectorAll(".panels svg")].filter((c) => c.getBoundingClientRect().width > 0);
    const faults = charts.length ? [] : [figure.id + " shows no chart"];
    if (figure.querySelectorAll("tbody td").length < 2) faults.push(figure.id + " has no table");
    for (const chart of charts) {
        const box = chart.getBoundingClientRect(), marks = [...chart.querySelectorAll(".mark")];
        if (marks.length < 2) faults.push(figure.id + " is empty");
        if (/NaN|undefined|Infinity/.test(chart.outerHTML)) faults.push(figure.id + " has marks that are nowhere");
        for (const mark of marks) {
            const at = mark.getBoundingClientRect();
            const beside = at.left < box.left - 14 || at.right > box.right + 14;
            if (beside || at.top < box.top - 14 || at.bottom > box.bottom + 14)
                faults.push(figure.id + " has a mark outside: " + mark.textContent);
        }
        for (const mark of marks)
            if (getComputedStyle(mark).fill == "rgb(0, 0, 0)") faults.push(figure.id + " has a mark without a colour");
        const texts = [...chart.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect()]);
        for (const [words, at] of texts)
            if (at.right > document.documentElement.clientWidth + 1)
                faults.push(figure.id + " has text beyond the window: " + words);
        texts.forEach(([words, a], i) => texts.slice(i + 1).forEach(([others, b]) => {
            if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
                Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
                faults.push(figure.id + " has words over words: " + words + ", " + others);
        }));
    }
    return faults;
}).concat(document.querySelectorAll("figure").length ? [] : ["no figures"])
  .concat((({scrollWidth, clientWidth}) => scrollWidth > clientWidth ? ["the page is wider than the window"] : [])(
      document.documentElement))
"""


@pytest.fixture(scope="module")
def chromium():
    if not browser.path():  # hundreds of megabytes, which `make test-programs` installs
        debian.need_packages("chromium", may_install=os.environ.get("TESSERA_INSTALL") == "all")
    opened = browser.Browser(browser.path())
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of each machine, by its name, as `make report` makes them."""
    folder = tmp_path_factory.mktemp("pages")
    made = program("bench/report", "--docs", folder, "--pages", folder)
    assert made.returncode == 0, made.stderr
    return {path.stem: path for path in folder.glob("*.html")}


def test_every_figure_has_marks_and_a_table(pages):
    for name, page in pages.items():
        figures = re.findall(r"<figure.*?</figure>", page.read_text(), re.S)
        assert figures, name
        for figure in figures:
            assert figure.count('<g class="mark') > 1 and "<td" in figure and not re.search(r"\bNaN\b|\binf\b", figure)


def faults(chromium, page, width, dark):
    chromium.open(page, width, dark)
    chromium.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")  # the widest it gets
    links = chromium.evaluate("[...document.querySelectorAll('nav a')].filter((a) => "
                              "!document.querySelector(a.hash)).map((a) => 'nothing is at ' + a.hash)")
    return chromium.evaluate(FAULTS) + links + chromium.said


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["h200", "amd-epyc"])
def test_a_browser_shows_every_chart(chromium, pages, name, width, dark):
    assert faults(chromium, pages[name], width, dark) == []
    colours = chromium.evaluate("(({backgroundColor, color}) => [backgroundColor, color].map((c) => "
                                "c.match(/[0-9]+/g).map(Number)))(getComputedStyle(document.body))")
    paper, ink = (sum(colour) for colour in colours)
    assert (paper < ink) == dark, "dark paper in the dark, and only there"
    hover = ("(() => "
             "{ const mark = [...document.querySelectorAll('.mark')].find((m) => m.getBoundingClientRect().width > 0);"
             "mark.dispatchEvent(new PointerEvent('pointerover', {bubbles: true})); const tip = "
             "document.getElementById('tip');"
             "return tip.hidden ? '' : tip.textContent; })()")
    assert re.search(r"\d", chromium.evaluate(hover)), "numbers on hover"


@pytest.mark.parametrize(
    "breaks, words",
    [(lambda text: text.replace("</script>", "\nnosuch.thing();</script>"), "nosuch"),
     (lambda text: text.replace("</body>", '<img src="http://127.0.0.1:9/x.png"></body>'), "network"),
     (lambda text: re.sub(r'<g class="mark.*?</g>', "", text), "is empty"),
     (lambda text: text.replace("--s-tessera-forward:", "--s-nothing:"), "without a colour"),
     (lambda text: re.sub(r'(<text x=")[\d.]+(" y=")[\d.]+', r"\g<1>99\g<2>99", text), "words over words"),
     (lambda text: re.sub(r'(<g class="mark[^>]*><circle class="reach" cx=")[\d.]+', r"\g<1>-400", text),
      "a mark outside"),
     (lambda text: text.replace(".wide { display: none }", ".wide { min-width: 900px }"), "wider than the window")],
    ids=["script error", "network", "no marks", "no colour", "words over words", "marks outside", "too wide"])
def test_the_browser_sees_what_is_broken(chromium, pages, tmp_path, breaks, words):
    page, text = tmp_path / "page.html", pages["h200"].read_text()
    page.write_text(breaks(text))
    assert page.read_text() != text
    assert any(words in fault for fault in faults(chromium, page, 390, False))


def test_the_picture_of_the_readme(chromium):
    for picture in (ROOT / "docs/results").glob("results-*.svg"):
        chromium.open(picture, 1280)
        assert chromium.evaluate("document.querySelectorAll('rect').length") > 3 and not chromium.said
        assert picture.name in (ROOT / "README.md").read_text() or picture.name != "results-h200.svg"
