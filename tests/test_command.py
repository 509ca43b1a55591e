"""The command: every subcommand, every bad input of a file or an option, and output that is whole or not there."""

import fcntl
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import stat
import struct
import subprocess
import termios
import threading
import time

import numpy as np
import pytest

import binding
from engine import NO_GPU
from reference import assert_exact, integers
from toolchain import BUILD, PATIENCE, need

TESSERA = BUILD / "cli" / "tessera"
COMMANDS = ["mul", "info", "plan", "check", "bench", "reference", "selftest", "tune"]
OK, FAILED, MISUSED = range(3)


def tessera(*words, expect=OK, **options):
    """Runs the command; returns what it printed, or on failure what it said on standard error."""
    ran = subprocess.run([str(TESSERA), *map(str, words)], capture_output=True, text=True, timeout=PATIENCE, **options)
    assert ran.returncode == expect, ran.stdout + ran.stderr
    if expect == OK:
        assert ran.stderr == "", "progress or complaints where nobody watches"
        return ran.stdout
    assert ran.stdout == "" or words[0] == "bench", "results before the failure"
    assert ran.stderr.startswith("tessera")
    return ran.stderr


@pytest.fixture
def files(tmp_path, rng):
    """A folder with a.npy (30 x 40) and b.npy (40 x 20)."""
    np.save(tmp_path / "a.npy", integers(rng, 30, 40))
    np.save(tmp_path / "b.npy", integers(rng, 40, 20))
    return tmp_path


def assert_product(folder, c="c.npy", a="a.npy", b="b.npy"):
    c, a, b = (np.load(folder / name) for name in (c, a, b))
    assert c.dtype == np.float32 and c.flags.c_contiguous
    assert_exact(c, a, b)


def mul_fails(folder, a="a.npy", b="b.npy", c="c.npy", *more, says=(), expect=FAILED, **options):
    """The run fails with these words and leaves the folder as it was."""
    before = {path: (path.read_bytes() if path.is_file() else None) for path in folder.iterdir()}
    said = tessera("mul", a, b, "-o", c, *more, expect=expect, cwd=folder, **options)
    for word in says:
        assert word in said, said
    assert {path: (path.read_bytes() if path.is_file() else None) for path in folder.iterdir()} == before
    return said


# ---- Every subcommand -----------------------------------------------------------------------------------------------


def test_help():
    text = tessera("--help")
    assert tessera("-h") == text
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", text, re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each(command):
    text = tessera(command, "--help")
    assert text.startswith(f"usage: tessera {command}")
    assert "--help" in text and "exit codes" in text
    assert all(len(line) <= 120 for line in text.splitlines())

    assert tessera("help", command) == text


def test_version():
    assert tessera("--version") == f"tessera {binding.lib.tsr_version().decode()}\n"


def test_info():
    assert tessera("info").startswith(binding.info())  # and a selftest: test_selftest.py
    about = json.loads(tessera("info", "--json"))
    assert about["tessera"] == binding.lib.tsr_version().decode() and about["selftest"].startswith("passed")
    kernels = [line.partition(": ")[2] for line in binding.info().splitlines() if line.startswith("cpu kernel: ")]
    assert about["cpu_kernels"] == kernels and len(kernels) > 1
    gpus = [line for line in binding.info().splitlines() if line.startswith("cuda gpu: ")]
    assert len(about["cuda_gpus"]) == len(gpus) and isinstance(about["cuda_kernels"], list)


@pytest.mark.parametrize("options", [[], ["--precision", "ieee"], ["--threads", "1"], ["--transpose-a"],
                                     ["--batch", "7"], ["--kernel", "portable", "--device", "cpu"]], ids=" ".join)
def test_plan(options):
    text = tessera("plan", 300, 200, 100, *options)
    assert "problem: 300 x 200 x 100 (m, n, k)" in text and "workspace: " in text
    assert len(re.findall(r"^estimate: [\d.e+-]+ (?:us|ms|s)$", text, re.M)) == 1
    assert tessera("plan", "300,200,100", *options) == text
    if "--kernel" in options:
        assert "portable" in text
    if "--batch" in options:
        assert "batch of 7" in text


def test_check():
    text = tessera("check", "--quick", "--device", "cpu")
    assert "verdict: pass" in text and "FAILED" not in text
    for family in ("uniform", "normal", "graded", "cancelling", "integers", "subnormal", "NaN and Inf"):
        assert family in text


@pytest.mark.parametrize("kernel", ["portable"])
def test_check_of_one_kernel_and_precision(kernel):
    text = tessera("check", "--quick", "--device", "cpu", "--kernel", kernel, "--precision", "ieee")
    assert "verdict: pass" in text and not re.search("^(fp32|tf32) ", text, re.M)


def test_bench_table():
    text = tessera("bench", 64, 64, 64, "--seconds", "0.01", "--device", "cpu")
    rows = [line.split() for line in text.splitlines() if line.startswith("64,64,64")]
    assert sorted(row[2] for row in rows) == ["fp32", "ieee", "tf32"]
    assert all(float(row[3]) > 0 for row in rows)


def test_bench_json():
    report = json.loads(tessera("bench", "64,32,16", "8,8,8", "--seconds", "0.01", "--json", "--precision", "ieee",
                                "--device", "cpu"))
    assert report["version"] == binding.lib.tsr_version().decode()
    shapes = [(record["m"], record["n"], record["k"]) for record in report["results"]]
    assert shapes == [(64, 32, 16), (8, 8, 8)]
    for record in report["results"]:
        assert record["precision"] == "ieee" and record["layout"] == "nn"
        flops = 2 * record["m"] * record["n"] * record["k"]
        assert record["best_gflops"] == pytest.approx(flops / record["best_ms"] / 1e6, rel=1e-4)
        assert record["median_ms"] >= record["best_ms"] > 0


@pytest.mark.slow
@pytest.mark.skipif(NO_GPU is not None and os.environ.get("TESSERA_INSTALL") != "all",
                    reason="the five problems take a CPU a minute of both cores: make test-programs")
def test_reference():
    """`make run`: the five problems at full size, checked against float64."""
    text = tessera("reference", "--precision", "fp32", "--seconds", "0.01")
    rows = [line for line in text.splitlines() if re.search(r"\d+,\d+,\d+", line)]
    assert len(rows) == 5
    for shape in ("4096,4096,4096", "2048,4096,8192", "8205,5921,2949"):
        assert shape in text
    assert "FAILED" not in text


# ---- Multiplying files ----------------------------------------------------------------------------------------------


def test_mul(files):
    assert tessera("mul", "a.npy", "b.npy", "-o", "c.npy", cwd=files) == ""
    assert_product(files)
    assert {path.name for path in files.iterdir()} == {"a.npy", "b.npy", "c.npy"}, "something is left beside the output"


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("flags", [[], ["--transpose-a"], ["--transpose-b"], ["--transpose-a", "--transpose-b"]],
                         ids=" ".join)
def test_orders_and_transposes(tmp_path, rng, order, flags):
    a, b = integers(rng, 33, 21), integers(rng, 21, 45)
    np.save(tmp_path / "a.npy", np.asarray(a.T if "--transpose-a" in flags else a, order=order))
    np.save(tmp_path / "b.npy", np.asarray(b.T if "--transpose-b" in flags else b, order=order))
    tessera("mul", "a.npy", "b.npy", "-o", "c.npy", *flags, cwd=tmp_path)
    assert_exact(np.load(tmp_path / "c.npy"), a, b)


@pytest.mark.parametrize("flags", [["--precision", "ieee"], ["--precision=tf32"], ["--threads", "1"], ["--threads=3"],
                                   ["--device", "cpu"], ["--device=auto"]], ids=" ".join)
def test_mul_options(files, flags):
    tessera("mul", *flags, "a.npy", "b.npy", "--output", "c.npy", cwd=files)
    assert_product(files)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_file_versions(files, version):
    a = np.load(files / "a.npy")
    with open(files / "a.npy", "wb") as file:
        np.lib.format.write_array(file, a, version)
    tessera("mul", "a.npy", "b.npy", "-o", "c.npy", cwd=files)
    assert_product(files)


def test_data_at_an_odd_address(files):
    """A header whose length is no multiple of 4, which NumPy reads, too."""
    a = np.load(files / "a.npy")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (30, 40), }"
    header += b" " * (3 - len(header) % 4) + b"\n\n\n"[:1]
    (files / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + a.tobytes())
    assert np.array_equal(np.load(files / "a.npy"), a)
    tessera("mul", "a.npy", "b.npy", "-o", "c.npy", cwd=files)
    assert_product(files)


@pytest.mark.parametrize("m, n, k", [(0, 5, 4), (5, 0, 4), (5, 4, 0), (1, 1, 1)])
def test_sizes_of_zero_and_one(tmp_path, m, n, k):
    np.save(tmp_path / "a.npy", np.ones((m, k), np.float32))
    np.save(tmp_path / "b.npy", np.ones((k, n), np.float32))
    tessera("mul", "a.npy", "b.npy", "-o", "c.npy", cwd=tmp_path)
    c = np.load(tmp_path / "c.npy")
    assert c.shape == (m, n) and (c == k).all()


def test_output_may_be_an_input(tmp_path, rng):
    a, b = integers(rng, 50, 50), integers(rng, 50, 50)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    tessera("mul", "a.npy", "b.npy", "-o", "a.npy", cwd=tmp_path)
    assert_exact(np.load(tmp_path / "a.npy"), a, b)


def test_output_through_a_link(files):
    (files / "real.npy").write_bytes(b"old")
    (files / "c.npy").symlink_to("real.npy")
    tessera("mul", "a.npy", "b.npy", "-o", "c.npy", cwd=files)
    assert (files / "c.npy").is_symlink()
    assert_product(files, "real.npy")


def test_output_through_a_dangling_link(files):
    """As `cp` would write through links that lead to a file; here to one that is not there yet, over two folders."""
    (files / "results").mkdir()
    (files / "c.npy").symlink_to("results/link.npy")
    (files / "results" / "link.npy").symlink_to("real.npy")
    tessera("mul", "a.npy", "b.npy", "-o", "c.npy", cwd=files)
    assert (files / "c.npy").is_symlink() and (files / "results" / "link.npy").is_symlink()
    assert_product(files, "results/real.npy")
    (files / "loop.npy").symlink_to("loop.npy")
    mul_fails(files, c="loop.npy", says=["loop.npy", "symbolic links"])


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755], ids=oct)
def test_output_replaces_a_file_with_its_permissions(files, mode):
    (files / "c.npy").write_bytes(b"old")
    (files / "c.npy").chmod(mode)
    tessera("mul", "a.npy", "b.npy", "-o", "c.npy", cwd=files, preexec_fn=lambda: os.umask(0o027))
    assert stat.S_IMODE((files / "c.npy").stat().st_mode) == mode
    tessera("mul", "a.npy", "b.npy", "-o", "new.npy", cwd=files, preexec_fn=lambda: os.umask(0o027))
    assert stat.S_IMODE((files / "new.npy").stat().st_mode) == 0o640
    assert_product(files)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_output_keeps_its_owner(files):
    (files / "c.npy").write_bytes(b"old")
    (files / "c.npy").chmod(0o600)
    os.chown(files / "c.npy", 1234, 5678)
    tessera("mul", "a.npy", "b.npy", "-o", "c.npy", cwd=files)
    about = (files / "c.npy").stat()
    assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (1234, 5678, 0o600)


def pipe(*words, folder, **options):
    """The command between pipes, as bytes."""
    return subprocess.run([TESSERA, *words], capture_output=True, cwd=folder, timeout=PATIENCE, **options)


@pytest.mark.parametrize("output", ["-", "/dev/stdout"])
@pytest.mark.parametrize("given", ["-", "/dev/stdin", "pipe"])
def test_standard_input_and_output(files, given, output):
    a = (files / "a.npy").read_bytes()
    if given == "pipe":
        os.mkfifo(files / "pipe")
        threading.Thread(target=(files / "pipe").write_bytes, args=[a]).start()
    ran = pipe("mul", given, "b.npy", "-o", output, folder=files, input=a)
    assert ran.returncode == OK and ran.stderr == b"", ran.stderr
    (files / "c.npy").write_bytes(ran.stdout)
    assert_product(files)
    with open(files / "a.npy") as redirected, open(files / "d.npy", "wb") as result:
        words = ["mul", "-", "b.npy", "-o", "-"]
        subprocess.run([TESSERA, *words], stdin=redirected, stdout=result, cwd=files, check=True)
    assert_product(files, "d.npy")


def test_standard_input_and_output_that_cannot_be_used(files):
    for given, says in ((b"", b"standard input is empty"), (b"1 2 3", b"standard input is not a NumPy .npy file")):
        ran = pipe("mul", "-", "b.npy", "-o", "-", folder=files, input=given)
        assert ran.returncode == FAILED and says in ran.stderr and ran.stdout == b""
    words = ["mul", "a.npy", "b.npy", "-o", "-"]
    with open("/dev/full", "wb") as full:
        ran = subprocess.run([TESSERA, *words], cwd=files, stdout=full, stderr=subprocess.PIPE)
    assert ran.returncode == FAILED and b"cannot write standard output: No space left" in ran.stderr
    ours, theirs = pty.openpty()
    ran = subprocess.run([TESSERA, *words], cwd=files, stdout=theirs, stderr=subprocess.PIPE)
    assert ran.returncode == FAILED and b"standard output is a terminal" in ran.stderr
    os.close(ours), os.close(theirs)


# ---- Bad files ------------------------------------------------------------------------------------------------------


def saved(array):
    return lambda path: np.save(path, array)


def cut(keep):
    return lambda path: path.write_bytes(path.read_bytes()[:keep])


def text(content):
    return lambda path: path.write_bytes(content)


def header(fields, data=b""):
    return text(b"\x93NUMPY\x01\x00\x76\x00" + fields.ljust(117) + b"\n" + data)


ONES = np.ones((30, 40), np.float32)
BAD_FILES = {  # what makes a file bad, and the words that the complaint must have beside the file's name
    "not npy": (text(b"1 2 3\n4 5 6\n" * 50), "not a NumPy .npy file"),
    "empty": (text(b""), "empty"),
    "one byte": (text(b"\x93"), "not a NumPy .npy file"),
    "magic only": (text(b"\x93NUMPY"), "cut short"),
    "cut in the header": (cut(40), "cut short"),
    "cut in the data": (cut(500), "cut short", "{shape}"),
    "cut by one byte": (cut(-1), "cut short"),
    "version 9": (text(b"\x93NUMPY\x09\x00" + b"\x76\x00" + b" " * 500), "version 9.0"),
    "header that is none": (header(b"x" * 117, b"x" * 382), "header"),
    "header without shape": (header(b"{'descr': '<f4', 'fortran_order': False, }", b"\0" * 4800), "header"),
    "negative shape": (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 4), }", b"\0" * 4800), "header"),
    "enormous shape": (header(b"{'descr': '<f4', 'fortran_order': False, "
                              b"'shape': (4611686018427387904, 4611686018427387904), }"), "4611686018427387904",
                       "more than any memory"),
    "large shape, no data": (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }"),
                             "cut short"),
    **{name: (saved(ONES.astype(name)), name, "astype('float32')") for name in ("float64", "float16", "int32")},
    "complex64": (saved(ONES.astype("complex64")), "complex64", "must hold float32\n"),  # no half of it is advised
    "big-endian": (saved(ONES.astype(">f4")), "big-endian"),
    "records": (saved(np.zeros(3, [("x", "<f4")])), "records"),
    "3-D": (saved(np.ones((3, 10, 40), np.float32)), "3 dimensions"),
    "1-D": (saved(np.ones(40, np.float32)), "1 dimension"),
    "0-D": (saved(np.float32(1)), "0 dimensions"),
    "missing": (lambda path: path.unlink(), "No such file"),
}


@pytest.mark.parametrize("which", ["a.npy", "b.npy"])
@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_file(files, kind, which):
    damage, *words = BAD_FILES[kind]
    shape = "30 x 40" if which == "a.npy" else "40 x 20"
    damage(files / which)
    mul_fails(files, says=[which, *(word.format(shape=shape) for word in words)])


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_that_ends_within_its_header(files, version):
    """However few bytes are missing, and where the file ends with a page of memory, behind which there is nothing to
    read."""
    whole = (files / "a.npy").read_bytes()[10:128]
    for size in (len(whole), 4096 - (10 if version == 1 else 12)):
        header = whole.rstrip(b" \n").ljust(size + 16) + b"\n"
        for missing in (1, 2, 9, 10, 11, 12, 13, 17):
            length = size + missing
            prefix = b"\x93NUMPY" + bytes([version, 0]) + length.to_bytes(2 if version == 1 else 4, "little")
            (files / "a.npy").write_bytes(prefix + header[:size])
            mul_fails(files, says=["a.npy", "cut short", f"its header has {length} bytes, the file only {size}"])


def test_input_that_is_a_folder_or_a_device(files):
    (files / "folder").mkdir()
    mul_fails(files, a="folder", says=["folder"])
    mul_fails(files, a="/dev/zero", says=["/dev/zero", "device"])


def test_mismatched_shapes(files):
    said = mul_fails(files, a="b.npy", b="a.npy", says=["a.npy", "b.npy", "40 x 20", "30 x 40"])
    assert "match" in said
    mul_fails(files, a="a.npy", b="a.npy", says=["30 x 40", "must equal the rows of the second"])
    mul_fails(files, "a.npy", "b.npy", "c.npy", "--transpose-a", says=["transposed"])


# ---- Bad outputs ----------------------------------------------------------------------------------------------------


def test_output_in_a_folder_that_is_not_there(files):
    mul_fails(files, c="nowhere/c.npy", says=["nowhere/c.npy", "folder"])


def test_output_that_is_a_folder(files):
    (files / "folder").mkdir()
    mul_fails(files, c="folder", says=["folder"])
    mul_fails(files, c="folder/", says=["folder"])


def test_output_name_empty_or_too_long(files):
    mul_fails(files, c="", says=["-o"], expect=MISUSED)
    mul_fails(files, c="x" * 300 + ".npy", says=["cannot write"])


def test_output_on_a_device(files):
    mul_fails(files, c="/dev/null", says=["/dev/null", "device"])


def test_output_without_permission(files):
    if os.geteuid() == 0:
        mul_fails(files, c="/proc/c.npy", says=["/proc/c.npy"])  # root may write everywhere else
        return
    (files / "closed").mkdir(mode=0o500)
    mul_fails(files, c="closed/c.npy", says=["closed/c.npy", "ermission"])


def test_file_size_limit(files):
    """As a full disk is, but without one: nothing left behind and the earlier file kept."""
    (files / "c.npy").write_bytes(b"earlier")
    np.save(files / "a.npy", np.ones((2000, 40), np.float32))
    before = {path.name for path in files.iterdir()}
    said = tessera("mul", "a.npy", "b.npy", "-o", "c.npy", expect=FAILED, cwd=files,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000)))
    assert "c.npy" in said and "too large" in said
    assert {path.name for path in files.iterdir()} == before and (files / "c.npy").read_bytes() == b"earlier"


def test_a_write_that_fails(files):
    """With room for the numbers, which is reserved beforehand, but not for the header as well."""
    (files / "c.npy").write_bytes(b"earlier")
    limit = 30 * 20 * 4 + 10
    mul_fails(files, says=["c.npy", "too large"],
              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))


def test_full_disk(files):
    mounted = files / "disk"
    mounted.mkdir()
    if subprocess.run([need("mount"), "-t", "tmpfs", "-o", "size=64k", "tmpfs", mounted],
                      capture_output=True).returncode:
        pytest.skip("a small file system to fill can only be mounted by root")
    try:
        np.save(files / "a.npy", np.ones((2000, 40), np.float32))
        (mounted / "c.npy").write_bytes(b"earlier")
        said = tessera("mul", "a.npy", "b.npy", "-o", "disk/c.npy", expect=FAILED, cwd=files)
        assert "disk/c.npy" in said and "No space left" in said
        assert [path.name for path in mounted.iterdir()] == ["c.npy"]
        assert (mounted / "c.npy").read_bytes() == b"earlier"
    finally:
        subprocess.run(["umount", mounted], check=True)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["info"], ["--help"], ["plan", "1", "2", "3"]], ids=" ".join)
def test_standard_output_that_is_full(words):
    with open("/dev/full", "w") as full:
        ran = subprocess.run([TESSERA, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ran.returncode == FAILED and "standard output" in ran.stderr


# ---- Interrupted runs -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_product(tmp_path_factory):
    """Files whose product takes the portable kernel on one thread many seconds."""
    folder = tmp_path_factory.mktemp("long")
    x = np.ones((6000, 6000), np.float32)
    np.save(folder / "x.npy", x)
    yield folder
    shutil.rmtree(folder)


# Those that end a process unless it catches them; SIGBUS has a test of its own.
FATAL_SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM, signal.SIGPIPE,
                 signal.SIGXCPU, signal.SIGUSR1, signal.SIGSEGV, signal.SIGABRT]


def heed_signals():
    """As a shell starts a command, whatever these tests inherited (in the background, SIGINT is ignored)."""
    for number in FATAL_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def start_long_product(folder, threads=1, a="x.npy", **options):
    """Returns once the temporary file is there."""
    (folder / "c.npy").write_bytes(b"earlier")
    command = [TESSERA, "mul", a, "x.npy", "-o", "c.npy", "--threads", str(threads), "--device", "cpu"]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "TESSERA_CPU_KERNEL": "portable"},
                               preexec_fn=heed_signals, **options)
    while not list(folder.glob(".tessera-*.tmp")):
        assert process.poll() is None, "no temporary file was ever seen"
        time.sleep(0.005)
    return process


def assert_untouched(folder):
    assert not list(folder.glob(".tessera-*.tmp"))
    assert (folder / "c.npy").read_bytes() == b"earlier"


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("number", FATAL_SIGNALS, ids=lambda n: n.name)
def test_ended_by_a_signal(long_product, number, threads):
    process = start_long_product(long_product, threads)
    process.send_signal(number)
    assert process.wait(PATIENCE) == -number
    assert_untouched(long_product)


@pytest.mark.parametrize("attempt", range(4))
def test_truncated_input(long_product, attempt):
    """A file that shrinks while threads read it: whichever thread meets the gap, the command says so and tidies up."""
    shrinking = long_product / "shrinking.npy"
    shutil.copy(long_product / "x.npy", shrinking)
    process = start_long_product(long_product, threads=8, a=shrinking.name, stderr=subprocess.PIPE, text=True)
    time.sleep(0.1 * attempt)  # so that other threads are first to meet it
    os.truncate(shrinking, 4096)
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == FAILED and "truncated" in said, said
    shrinking.unlink()
    assert_untouched(long_product)


def test_killed(long_product):
    """Nothing can tidy up after SIGKILL, but what was at the output's name is still there, whole."""
    process = start_long_product(long_product)
    process.kill()
    process.wait(PATIENCE)
    assert (long_product / "c.npy").read_bytes() == b"earlier"
    for path in long_product.iterdir():
        if path.name not in ("x.npy", "c.npy"):
            path.unlink()


@pytest.mark.parametrize("waits", [True, False])
def test_progress_on_a_terminal(long_product, monkeypatch, waits):
    """A run of more than a second says how long it will take and what it does, on a terminal only, in one line however
    narrow the terminal is; Ctrl-C takes the line away, and where there is none yet the ^C."""
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    columns = 40
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    seen, started = b"", time.monotonic()
    process = start_long_product(long_product, stdout=theirs, stderr=theirs)
    while waits and not re.search(rb"\d+ s, about \d+ s left: multiplying.*\x1b", seen):
        if select.select([ours], [], [], 0.5)[0]:
            seen += os.read(ours, 4096)
        assert process.poll() is None, seen
    assert not waits or time.monotonic() - started >= 1, "progress for a run that might have been short"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == -signal.SIGINT
    while select.select([ours], [], [], 0)[0]:
        seen += os.read(ours, 4096)
    assert seen.endswith(b"\r\x1b[K"), seen
    assert all(len(line) < columns for line in re.split(rb"\r|\x1b\[K", seen)), seen
    assert_untouched(long_product)
    os.close(ours), os.close(theirs)


def test_no_escape_codes_on_a_dumb_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    ours, theirs = pty.openpty()
    words = ["bench", "64,64,64", "--seconds", "0.5", "--device", "cpu"]
    assert subprocess.run([TESSERA, *words], stdout=theirs, stderr=theirs, timeout=PATIENCE).returncode == OK
    seen = os.read(ours, 1 << 16)
    assert b"64,64,64" in seen and b"\x1b" not in seen
    os.close(ours), os.close(theirs)


# ---- Called wrongly -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words, says", [
    ([], "which command"),
    (["multiply"], "multiply"),
    (["mul"], "two files"),
    (["mul", "a.npy", "-o", "c.npy"], "two files"),
    (["mul", "a.npy", "b.npy", "d.npy", "-o", "c.npy"], "two files"),
    (["mul", "-", "-", "-o", "c.npy"], "not both"),
    (["mul", "a.npy", "b.npy"], "-o"),
    (["mul", "a.npy", "b.npy", "-o"], "needs a value"),
    (["mul", "a.npy", "b.npy", "-o", "c.npy", "--fast"], "--fast"),
    (["mul", "a.npy", "b.npy", "-o", "c.npy", "--transpose-a=yes"], "--transpose-a"),
    (["mul", "a.npy", "b.npy", "-o", "c.npy", "--precision", "fp64"], "fp64"),
    (["mul", "a.npy", "b.npy", "-o", "c.npy", "--precision", ""], "--precision"),
    (["mul", "a.npy", "b.npy", "-o", "c.npy", "--device", "tpu"], "tpu"),
    (["mul", "a.npy", "b.npy", "-o", "c.npy", "--device", "cuda:x"], "cuda:"),
    (["mul", "a.npy", "b.npy", "-o", "c.npy", "--device", "cuda:-1"], "cuda:"),
    *[(["mul", "a.npy", "b.npy", "-o", "c.npy", "--threads", value], "--threads")
      for value in ("0", "-1", "1025", "1000000", "99999999999999999999", "two", "2.5", "")],
    (["info", "more"], "more"),
    (["help", "multiply"], "multiply"),
    (["plan"], "three sizes"),
    (["plan", "1", "2"], "three sizes"),
    (["plan", "1", "2", "3", "4"], "three sizes"),
    (["plan", "1,2"], "M,N,K"),
    (["plan", "1", "-2", "3"], "-2"),
    (["plan", "1", "x", "3"], "x"),
    (["plan", "1", "2", "99999999999999999999"], "99999999999999999999"),
    (["plan", "1", "2", "3", "--batch", "-1"], "--batch"),
    (["plan", "1", "2", "3", "--batch", "99999999999999999999"], "--batch"),
    (["check", "quick"], "quick"),
    (["check", "--seed", "-1"], "--seed"),
    (["bench", "1", "2"], "M N K"),
    (["bench", "1,2"], "1,2"),
    (["bench", "1,2,3,4"], "3,4"),
    (["bench", "--seconds", "0"], "--seconds"),
    (["bench", "--seconds", "nan"], "--seconds"),
    (["bench", "--seconds", "1e9"], "--seconds"),
    (["reference", "4096"], "4096"),
], ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "")
def test_misuse(files, words, says):
    said = tessera(*words, expect=MISUSED, cwd=files)
    assert says in said and "--help" in said
    assert not (files / "c.npy").exists()


@pytest.mark.parametrize("command", ["plan 8 8 8", "check --quick", "bench 8,8,8", "reference"])
def test_a_kernel_that_is_none(command):
    said = tessera(*command.split(), "--kernel", "no-such-kernel", "--device", "cpu", expect=FAILED)
    assert "--kernel no-such-kernel: no kernel of this name runs on the CPU: `tessera info` lists them" in said


def test_sizes_beyond_memory():
    said = tessera("bench", "1000000,1000000,1000000", expect=FAILED)
    assert "memory" in said or "1000000" in said
    assert "64 bits" in tessera("plan", 2**40, 2**40, 2**40, expect=FAILED)


def test_a_device_that_is_not_there(files):
    said = mul_fails(files, "a.npy", "b.npy", "c.npy", "--device", "cuda:99")
    assert "cuda" in said.lower() or "GPU" in said


def test_environment_kernel_reaches_the_command():
    text = tessera("plan", 100, 100, 100, "--device", "cpu", env={**os.environ, "TESSERA_CPU_KERNEL": "portable"})
    assert "kernel: portable" in text
