"""`tessera tune` and the files it writes, on the driver of fake_cuda/, whose kernels can take time instead of
computing."""

import json
import os
import signal
import struct
import subprocess
import sys
import time

import pytest

import binding
from engine import NO_GPU
from toolchain import BUILD, PATIENCE

TESSERA, FAKE = BUILD / "cli" / "tessera", BUILD / "tests" / "fake_cuda"
OK, FAILED, MISUSED = range(3)
CUT = "<cut>"  # no newline follows
BUILT_IN = "built in, measured on NVIDIA H200"
PROGRAM = """
import binding, cuda_driver
driver = cuda_driver.Driver()
places = [driver.allocate(4 * 700 * 200) for _ in range(3)]
context = binding.Context(device=binding.CUDA)
for n in (700, 300, 700, 500):
    a, b, c = (kind(None, n, 200, 200, 1, 0) for kind in (binding.Operand, binding.Operand, binding.Result))
    b.rows = 200
    plan = binding.Plan(context, a, b, c)
    if n != 500:  # which is only estimated
        plan.execute(*places)
"""
HALF_LINES = """
import os
open(os.environ["TESSERA_RECORD"], "a").write("\\nfp32\\nfp32 1 700 200 200\\nfp32 1 9 9 9 x 1 0 9 1 0 9 1 0\\n")
"""
IN_OTHER_LOCALE = """
import binding, locale
locale.setlocale(locale.LC_NUMERIC, "comma")
assert locale.localeconv()["decimal_point"] == ","
context = binding.Context(device=binding.CUDA)
print(binding.printed(binding.lib.tsr_tuning_print, context.handle), end="")
"""
RECORDED = ["fp32 1 700 200 200 200 1 0 200 1 0 200 1 0", "fp32 1 300 200 200 200 1 0 200 1 0 200 1 0"]

fake_gpu = pytest.mark.skipif(not binding.lib.tsr_has_cuda() or not (FAKE / "libcuda.so.1").exists(),
                              reason="the library was built without the CUDA engine, or the fake driver was not")


def on_fake(environment):
    given = {**os.environ, "LD_LIBRARY_PATH": str(FAKE), "FAKE_CUDA_TIMED": "1", "FAKE_CUDA_MEMORY": "400000000",
             **environment}
    return {name: value for name, value in given.items() if value is not None}


def run(*words, expect=OK, **environment):
    """Runs a command on the fake driver; what it printed, or said on standard error."""
    ran = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=PATIENCE, env=on_fake(environment))
    assert ran.returncode == expect, ran.stdout + ran.stderr
    return ran.stderr if expect else ran.stdout


def planned(path, *words, **environment):
    """The lines of a plan, as a dict."""
    text = run(TESSERA, "plan", 1000, 1000, 1000, "--device", "cuda", *words, TESSERA_TUNING=str(path), **environment)
    return dict(line.split(": ", 1) for line in text.splitlines())


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """(what tune printed, as JSON; the folder; the file)"""
    folder = tmp_path_factory.mktemp("cache")
    said = run(TESSERA, "tune", "--seconds", "0.5", "--json", XDG_CACHE_HOME=str(folder), TESSERA_TUNING=None)
    return json.loads(said), folder, folder / "tessera" / "Fake-GPU-0-90.tuning"


@fake_gpu
def test_estimates_and_choices_follow_the_gpu(tuned):
    """The fake GPU is nothing like an H200: the built-in table is far off."""
    said, folder, file = tuned
    assert said["file"] == str(file) and said["verified"] > 0
    assert said["deviation"] < 0.2
    assert said["now"]["within_5_percent"] > said["before"]["within_5_percent"]
    assert said["now"]["mean_excess"] < said["before"]["mean_excess"]
    lines = file.read_text().splitlines()
    assert lines[0] == "tessera-tuning 1" and lines[2] == "gpu Fake GPU 0"
    assert {line.split()[0]: float(line.split()[1]) for line in lines[5:]} == said["constants"]
    assert list(folder.rglob("*.tmp")) == []


@fake_gpu
def test_the_library_finds_its_file(tuned):
    _, folder, file = tuned
    for place in ({"XDG_CACHE_HOME": str(folder), "TESSERA_TUNING": None}, {"TESSERA_TUNING": str(file)}):
        assert f"cuda tuning: 0, {file}\n" in run(TESSERA, "info", FAKE_CUDA_TIMED=None, **place)
    plan, built_in = planned(file), planned("")
    assert plan["tuning"] == str(file) and built_in["tuning"] == BUILT_IN
    assert plan["estimate"] != built_in["estimate"]


@fake_gpu
@pytest.mark.parametrize("change, said", [
    (lambda lines: ["tessera-tuning 2", *lines[1:]], ":1: 'tessera-tuning 2' is not 'tessera-tuning 1'"),
    (lambda lines: [lines[0], "library 0.0.1", *lines[2:]], ":2: 'library 0.0.1' is not 'library "),
    (lambda lines: [*lines[:2], "gpu NVIDIA H200", *lines[3:]], ":3: 'gpu NVIDIA H200' is not 'gpu Fake GPU 0'"),
    (lambda lines: [*lines[:3], "capability 80", *lines[4:]], ":4: 'capability 80' is not 'capability 90'"),
    (lambda lines: [*lines[:5], "no_such.start 1", *lines[6:]], ":6: there is no constant 'no_such.start'"),
    (lambda lines: [*lines[:5], "launch -1", *lines[6:]], ":6: 'launch -1' is no name and number above 0"),
    (lambda lines: [*lines[:5], "launch 1 2", *lines[6:]], ":6: 'launch 1 2' is no name and number above 0"),
    (lambda lines: [*lines[:5], "launch nan", *lines[6:]], ":6: 'launch nan' is no name and number above 0"),
    (lambda lines: [*lines[:5], "launch", *lines[6:]], ":6: 'launch' is no name and number above 0"),
    (lambda lines: [*lines[:5], "x" * 1000, *lines[6:]], ":6: 'xxx"),
    (lambda lines: [*lines[:5], "launch 1e-13", *lines[6:]], ":6: 'launch 1e-13' is too far from the built-in 2.28e"),
    (lambda lines: [*lines[:5], "launch 3", *lines[6:]], ":6: 'launch 3' is too far from the built-in 2.28e-06"),
    (lambda lines: [*lines[:5], "launch 3e-6" + CUT], ":6: 'launch 3e-6' is cut short"),
    (lambda lines: lines[:-1], ": it lacks thin_m.unaligned"),
    (lambda lines: lines[:3], ": it ends before 'capability 90'"),
    (lambda lines: [], ": it ends before 'tessera-tuning 1'"),
])
def test_files_that_are_refused(tuned, tmp_path, change, said):
    """The file and line are named, and the built-in table serves."""
    file = tmp_path / "changed.tuning"
    file.write_text("".join(line + "\n" for line in change(tuned[2].read_text().splitlines())).replace(CUT + "\n", ""))
    plan = planned(file)
    assert plan["tuning"].startswith(f"{BUILT_IN}; refused {file}{said}"), plan["tuning"]
    assert plan["estimate"] == planned("")["estimate"]


@fake_gpu
def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("pipe", "it is not a file"), ("none", "No such file or directory"), (".", "it is not a file")):
        assert planned(tmp_path / name)["tuning"] == f"{BUILT_IN}; refused {tmp_path / name}: {why}"


@fake_gpu
def test_constants_decide(tuned, tmp_path):
    """A kernel whose rate is tiny is not chosen any more."""
    run(TESSERA, "tune", "--seconds", "0.1", "-o", tmp_path / "x", TESSERA_TUNING="")
    text = (tmp_path / "x").read_text()
    for kernel in {planned("")["kernel"], planned(tmp_path / "x")["kernel"]}:
        (tmp_path / "x").write_text(text := "".join(
            f"tile[{kernel.upper()}].rate 1e-2\n" if line.startswith(f"tile[{kernel.upper()}].rate") else line
            for line in text.splitlines(keepends=True)))
        if f"tile[{kernel.upper()}].rate 1e-2\n" in text:
            assert planned(tmp_path / "x")["tuning"] == str(tmp_path / "x")
            assert planned(tmp_path / "x")["kernel"] != kernel


@fake_gpu
def test_numbers_have_a_point_in_any_locale(tmp_path):
    """A locale of glibc's format with nothing but a decimal comma: six strings behind their offsets."""
    (tmp_path / "comma").mkdir()
    (tmp_path / "comma" / "LC_NUMERIC").write_bytes(
        struct.pack("=8I4s2I6s", 0x20031115 ^ 1, 6, 32, 34, 35, 36, 40, 44, b",", 44, 0, b"UTF-8"))
    text = run(sys.executable, "-c", IN_OTHER_LOCALE, LOCPATH=str(tmp_path), TESSERA_TUNING="")
    assert "\ntf32_writing 0.75\n" in text and "," not in text


@fake_gpu
def test_a_driver_that_does_not_say_how_large_clusters_are():
    assert planned("", FAKE_CUDA_BROKEN="cuOccupancyMaxPotentialClusterSize")["tuning"] == BUILT_IN


@fake_gpu
def test_kernels_of_an_older_gpu():
    """TESSERA_CUDA_CAPABILITY: what an Ampere GPU gets, where a newer one is."""
    assert planned("")["kernel"] != planned("", TESSERA_CUDA_CAPABILITY="80")["kernel"]
    said = run(TESSERA, "plan", 64, 64, 64, "--device", "cuda", "--kernel", "ieee_small_16", expect=FAILED,
               TESSERA_CUDA_CAPABILITY="80")
    assert "ieee_small_16" in said


# ---- Recording ------------------------------------------------------------------------------------------------------

@fake_gpu
def test_each_product_is_noted_once(tmp_path):
    for _ in range(2):
        run(sys.executable, "-c", PROGRAM, TESSERA_RECORD=str(tmp_path / "products"))
    assert (tmp_path / "products").read_text().splitlines() == 2 * RECORDED


@fake_gpu
def test_a_place_that_cannot_be_written_changes_nothing(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # that nobody reads
    for place in (tmp_path / "no" / "folder", tmp_path / "pipe", "/dev/stdout"):
        assert run(sys.executable, "-c", PROGRAM, TESSERA_RECORD=str(place)) == ""


@fake_gpu
def test_tuned_for_a_program(tmp_path):
    said = json.loads(run(TESSERA, "tune", "--json", "--seconds", "0.2", "-o", tmp_path / "x", "--record",
                          sys.executable, "-c", PROGRAM))
    assert said["recorded"] == 2 and said["verified"] > 0 and (tmp_path / "x").exists()


@fake_gpu
@pytest.mark.parametrize("program, says", [("raise SystemExit(3)", "ended with 3: nothing is tuned"),
                                           ("pass", "made no product on a GPU"),
                                           (HALF_LINES, "made no product on a GPU")],
                         ids=["fails", "idle", "half lines"])
def test_a_program_without_products(tmp_path, program, says):
    said = run(TESSERA, "tune", "-o", tmp_path / "x", "--record", sys.executable, "-c", program, expect=FAILED)
    assert says in said and list(tmp_path.iterdir()) == []


# ---- What may go wrong ----------------------------------------------------------------------------------------------

@fake_gpu
def test_an_interrupted_run_leaves_nothing(tmp_path):
    process = subprocess.Popen([TESSERA, "tune", "-o", tmp_path / "x"], stdout=subprocess.DEVNULL, env=on_fake({}),
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # else ignored
    end = time.monotonic() + PATIENCE
    while not list(tmp_path.iterdir()) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == -signal.SIGINT and list(tmp_path.iterdir()) == []


@fake_gpu
@pytest.mark.parametrize("words, says", [(["x"], "--record"), (["--record"], "--record needs a program"),
                                         (["--device", "cpu"], "only a GPU is tuned")])
def test_misuse(words, says):
    assert says in run(TESSERA, "tune", *words, expect=MISUSED)


def test_without_a_gpu():
    assert "no GPU to tune" in run(TESSERA, "tune", expect=FAILED, FAKE_CUDA_DEVICES="0")


@fake_gpu
def test_a_driver_that_fails(tmp_path):
    said = run(TESSERA, "tune", "-o", tmp_path / "x", expect=FAILED, FAKE_CUDA_BROKEN="cuGraphLaunch")
    assert "cannot multiply: " in said and list(tmp_path.iterdir()) == []
    said = run(TESSERA, "tune", "-o", tmp_path / "no" / "x", expect=FAILED)
    assert "its folder does not exist" in said


def test_the_functions_on_a_cpu():
    context = binding.Context()
    assert binding.lib.tsr_tuning_path(context.handle, None, 0) == binding.lib.tsr_tuning_print(None, None, 0) == 0
    assert binding.lib.tsr_tuning_set(context.handle, b"launch", 1.0) == binding.UNSUPPORTED
    assert binding.lib.tsr_tuning_set(None, b"launch", 1.0) != 0


@pytest.mark.skipif(bool(NO_GPU), reason=str(NO_GPU))
def test_on_this_gpu(tmp_path):
    """Its own file is accepted, and products by it are right."""
    file = tmp_path / "x"
    subprocess.run([TESSERA, "tune", "--seconds", "3", "-o", file], check=True, timeout=PATIENCE)
    environment = {**os.environ, "TESSERA_TUNING": str(file)}
    plan = subprocess.run([TESSERA, "plan", "64", "64", "64", "--device", "cuda"], capture_output=True, text=True,
                          env=environment, check=True)
    assert f"tuning: {file}\n" in plan.stdout
    subprocess.run([TESSERA, "check", "--quick", "--device", "cuda"], env=environment, check=True, timeout=PATIENCE)
