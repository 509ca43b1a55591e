"""Programs of other people on libtessera_blas, as Debian has them: netlib's testers of the standard, ScaLAPACK, NumPy,
Octave, R. `make test-programs` installs those that `make test` only runs where they are."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from debian import need_packages
from toolchain import BUILD, PATIENCE, ROOT, run

LIBRARY = Path(os.environ["TESSERA_LIBRARY"]).with_name("libtessera_blas.so")
PRELOADED = LIBRARY.resolve().with_suffix("")  # by its SONAME, which is there without a development package
COMMAND = BUILD / "cli" / "tessera"
LARGE = os.environ.get("TESSERA_INSTALL") == "all"  # some are hundreds of megabytes, others take long

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not COMMAND.exists(), reason="the command was not built")]


def environment(**more):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TESSERA_", "PYTHON"))}
    return {**kept, "OPENBLAS_NUM_THREADS": "2", **more}


def on_tessera(*command, **options):
    """(output, lines of TESSERA_VERBOSE) of a program with the library in front of its BLAS."""
    ran = subprocess.run([str(COMMAND), "run", "--device", "cpu", "--", *map(str, command)], capture_output=True,
                         text=True, timeout=PATIENCE, env=environment(TESSERA_VERBOSE="1"), **options)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    return ran.stdout, [line for line in ran.stderr.splitlines() if line.startswith("TESSERA_VERBOSE SGEMM")]


# ---- The standard's own testers -------------------------------------------------------------------------------------

TESTERS = Path("/usr/lib/x86_64-linux-gnu/blas")


def only_sgemm(settings):
    """Other routines are the program's own library's, and no business of ours."""
    return re.sub(r"^((?:cblas_)?s(?!gemm)\w+ +)T", r"\1F", settings, flags=re.M | re.I)


@pytest.mark.parametrize(
    "tester, settings, passed, calls",
    [("xblat3s", "sblat3.in",
      ["SGEMM  PASSED THE TESTS OF ERROR-EXITS", "SGEMM  PASSED THE COMPUTATIONAL TESTS ( 17496 CALLS)"], 11664),
     ("xscblat3", "sin3", [
         "cblas_sgemm  PASSED THE TESTS OF ERROR-EXITS",
         "cblas_sgemm  PASSED THE COLUMN-MAJOR COMPUTATIONAL TESTS ( 17496 CALLS)",
         "cblas_sgemm  PASSED THE ROW-MAJOR    COMPUTATIONAL TESTS ( 17496 CALLS)"
     ], 23328)])
def test_netlib(tester, settings, passed, calls, tmp_path):
    need_packages("libblas-test")
    out, products = on_tessera(TESTERS / tester, cwd=tmp_path, input=only_sgemm((TESTERS / settings).read_text()))
    out += "".join(path.read_text() for path in tmp_path.iterdir() if path.suffix.lower() == ".out")
    for line in passed:
        assert line in out, out
    assert "FAIL" not in out.replace("FAILURES", "") and len(products) >= calls, len(products)


# ---- ScaLAPACK ------------------------------------------------------------------------------------------------------

def test_scalapack(tmp_path):
    """psgemm_ on four processes, whose local products are Tessera's: together they make up the whole product."""
    need_packages("libscalapack-openmpi-dev", "libopenmpi-dev", "openmpi-bin", may_install=LARGE)
    program, n = tmp_path / "scalapack", 500
    run("mpicc", "-std=c11", "-Wall", "-Wextra", "-Werror", ROOT / "examples" / "scalapack.c", "-o", program,
        "-lscalapack-openmpi")
    # One machine only, so no ssh; as root, in a container, where processes may not read each other's memory.
    settings = environment(TESSERA_VERBOSE="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_plm_rsh_agent="sh", OMPI_MCA_btl_vader_single_copy_mechanism="none")
    start = ["mpirun", "--oversubscribe", "-np", "4"]
    probe = subprocess.run([*start, "true"], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path,
                           env=settings)
    if probe.returncode:
        pytest.skip(f"mpirun does not work here: {probe.stderr.strip().splitlines()[-1:]}")
    command = [*start, str(COMMAND), "run", "--threads", "1", "--device", "cpu", "--", str(program), str(n)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path, env=settings)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{n} x {n} on 2 x 2 processes" in ran.stdout and ", 0 elements wrong" in ran.stdout, ran.stdout
    shapes = re.findall(r"TESSERA_VERBOSE SGEMM\(.,.,(\d+),(\d+),(\d+),", ran.stderr)
    assert sum(int(m) * int(n) * int(k) for m, n, k in shapes) == n**3


# ---- NumPy, Octave, R -----------------------------------------------------------------------------------------------

NUMPY = """
import numpy as np
rng = np.random.default_rng(0)
a, b = rng.integers(-8, 9, (300, 200)).astype(np.float32), rng.integers(-8, 9, (200, 400)).astype(np.float32)
assert np.array_equal(a @ b, a.astype(np.float64) @ b)
assert np.array_equal(a.T.copy().T @ b.T.copy().T, a.astype(np.float64) @ b)
print("equal")
"""


@pytest.mark.parametrize("python", [sys.executable, "/usr/bin/python3"], ids=["wheel", "debian"])
def test_numpy(python):
    """The wheel's OpenBLAS has names of its own, with 64-bit integers; Debian's NumPy has the system's BLAS."""
    if python != sys.executable:
        need_packages("python3-numpy")
    out, products = on_tessera(python, "-c", NUMPY)
    assert out == "equal\n" and len(products) == 2 and "SGEMM(N,N,400,300,200,1," in products[0]


@pytest.mark.skipif(not LARGE, reason="half a minute: make test-programs")
def test_numpys_own_tests_of_linear_algebra(tmp_path):
    need_packages("python3-numpy", "python3-pytest", "python3-hypothesis")
    code = "import sys, numpy.linalg; sys.exit(not numpy.linalg.test(extra_argv=['-s', '-p', 'no:cacheprovider']))"
    out, products = on_tessera("/usr/bin/python3", "-c", code, cwd=tmp_path)  # away from our own conftest.py
    assert re.search(r"\d{3} passed", out) and not re.search(r"\d+ failed", out) and len(products) > 20, out[-2000:]


OCTAVE = """
a = single(mod(reshape(0:59999, 300, 200), 7)); b = single(mod(reshape(0:79999, 200, 400), 5));
assert(isequal(double(a * b), double(a) * double(b)));
assert(isequal(double(a' * a), double(a)' * double(a)));
disp("equal")
"""


def test_octave(tmp_path):
    need_packages("octave", may_install=LARGE)
    (tmp_path / "script.m").write_text(OCTAVE)
    out, products = on_tessera("octave-cli", "--norc", "script.m", cwd=tmp_path)
    assert "equal" in out and any("SGEMM(N,N,300,400,200,1," in line for line in products)


R = """
a <- matrix(0:59999 %% 7, 300, 200); b <- matrix(0:79999 %% 5, 200, 400)
dyn.load(Sys.getenv("TESSERA_BLAS"))
single <- .Fortran("sgemm", "N", "N", 300L, 400L, 200L, as.single(1), as.single(a), 300L, as.single(b),
                   200L, as.single(0),
                   c = as.single(double(300 * 400)), 300L)
stopifnot(all(matrix(single$c, 300, 400) == a %*% b))
cat("equal\\n")
"""


def test_r(tmp_path):
    """R's own matrices are doubles, which stay with R's BLAS; .Fortran passes singles."""
    need_packages("r-base-core", may_install=LARGE)
    (tmp_path / "script.R").write_text(R)
    ran = subprocess.run(["Rscript", "script.R"], capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE,
                         env=environment(TESSERA_VERBOSE="1", TESSERA_BLAS=str(LIBRARY), TESSERA_DEVICE="cpu"))
    assert ran.returncode == 0 and "equal" in ran.stdout, ran.stdout + ran.stderr
    assert "SGEMM(N,N,300,400,200,1," in ran.stderr


# ---- tessera run ----------------------------------------------------------------------------------------------------

def test_run_sets_the_environment():
    ran = subprocess.run([COMMAND, "run", "--threads", "3", "--precision", "ieee", "--device", "cuda:1", "--", "env"],
                         capture_output=True, text=True, env=environment(LD_PRELOAD=""))
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0 and f"LD_PRELOAD={PRELOADED}" in lines
    assert {"TESSERA_NUM_THREADS=3", "TESSERA_PRECISION=ieee", "TESSERA_DEVICE=cuda:1"} <= set(lines)
    ran = subprocess.run([COMMAND, "run", "env"], capture_output=True, text=True, env=environment())
    set_here = [line for line in ran.stdout.splitlines() if line.startswith("TESSERA_")]
    assert ran.returncode == 0 and len(set_here) == 1 and set_here[0].startswith("TESSERA_RUN=/proc/")


def test_run_keeps_what_is_preloaded_and_passes_the_exit_code_on():
    other = shutil.which("true") and next(Path("/lib").rglob("libm.so.6"), None)
    ran = subprocess.run([COMMAND, "run", "--", "sh", "-c", "echo $LD_PRELOAD; exit 7"], capture_output=True, text=True,
                         env=environment(LD_PRELOAD=str(other)))
    assert ran.returncode == 7 and ran.stdout.strip() == f"{PRELOADED}:{other}"


@pytest.mark.parametrize("program, why", [
    ("true", "loaded no BLAS"),
    ("sh -c 'exit 3'", "loaded no BLAS"),
    ("{python} -c 'import numpy as n; n.ones((90, 90)) @ n.ones((90, 90))'", "The program's BLAS is .*blas.*float64"),
    ("{python} -c 'import numpy as n; a = n.ones((90, 90), n.float32); a @ (2 * a)'", ""),
    ("sh -c \"env {python} -c 'import numpy as n; a = n.ones((90, 90), n.float32); a @ (2 * a)'; true\"", ""),
], ids=["true", "shell", "float64", "float32", "grandchild"])
def test_run_says_when_no_product_came(program, why):
    command = shlex.split(program.format(python=sys.executable))
    ran = subprocess.run([COMMAND, "run", "--device", "cpu", *command], capture_output=True, text=True,
                         env=environment(PYTHONPATH=os.environ.get("PYTHONPATH", "")))
    assert ran.returncode == (3 if "exit" in program else 0), ran.stderr
    assert bool(re.search(f"^tessera run: no float32 product came to Tessera.*{why}", ran.stderr, re.S)) == bool(why)


def test_run_ends_as_the_program_does():
    """A signal to the command reaches the program, and what ends the program ends the command."""
    program = "trap 'echo told; kill -KILL $$' TERM; echo ready; while :; do sleep 0.01; done"
    ran = subprocess.Popen([COMMAND, "run", "sh", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                           text=True)
    assert ran.stdout.readline() == "ready\n"
    ran.terminate()
    assert ran.communicate(timeout=PATIENCE)[0] == "told\n" and ran.returncode == -signal.SIGKILL


def test_run_says_what_is_wrong():
    ran = subprocess.run([COMMAND, "run"], capture_output=True, text=True)
    assert ran.returncode == 2 and "tessera run: which program?" in ran.stderr
    ran = subprocess.run([COMMAND, "run", "--", "/"], capture_output=True, text=True)
    assert ran.returncode == 126 and ran.stderr == "tessera run: /: Permission denied\n"
    ran = subprocess.run([COMMAND, "run", "--", "no-such-program"], capture_output=True, text=True)
    assert ran.returncode == 127 and ran.stderr == "tessera run: no-such-program: No such file or directory\n"


def test_run_leaves_the_programs_options_alone():
    ran = subprocess.run([COMMAND, "run", "--threads", "2", "echo", "--threads", "4", "-x", "--help", "--", "y"],
                         capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout == "--threads 4 -x --help -- y\n"


def test_run_from_a_folder_that_cannot_be_preloaded_from(tmp_path):
    folder = tmp_path / "with space" / "cli"
    folder.mkdir(parents=True)
    shutil.copy(COMMAND, folder)
    for library in ("libtessera.so", "libtessera_blas.so"):
        shutil.copy(LIBRARY.with_name(library).resolve(), folder.parent / LIBRARY.with_name(library).resolve().name)
        for name in (library, ".".join(LIBRARY.with_name(library).resolve().name.split(".")[:4])):
            (folder.parent / name).symlink_to(LIBRARY.with_name(library).resolve().name)
    ran = subprocess.run([folder / "tessera", "run", "true"], capture_output=True, text=True,
                         env=environment(LD_LIBRARY_PATH=str(folder.parent)))
    assert ran.returncode == 1 and "the loader takes no path with a space or colon" in ran.stderr, ran.stderr
