"""Octave, NumPy and R with their own BLAS and with Tessera's: seconds for a float32 product of two N x N matrices, best
of several, runs of both taking turns.

    python3 bench/blas/programs.py BUILD [--size N] [--output FILE]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from harness import machine, results  # noqa: E402

OCTAVE = ("a = single(rand({n})); b = single(rand({n})); t = 1e9; "
          "for i = 1:{repeats} tic; c = a * b; t = min(t, toc); end; printf('%.6f\\n', t)")
NUMPY = """
import time, numpy as np
a, b, best = np.random.rand({n}, {n}).astype('f4'), np.random.rand({n}, {n}).astype('f4'), 1e9
for _ in range({repeats}):
    begun = time.perf_counter(); a @ b; best = min(best, time.perf_counter() - begun)
print('%.6f' % best)
"""
R = """
dyn.load(Sys.getenv("BLAS")); n <- {n}L; best <- 1e9
a <- as.single(runif(n * n)); b <- as.single(runif(n * n)); c <- as.single(double(n * n))
for (i in 1:{repeats}) {{
    t <- system.time(.Fortran("sgemm", "N", "N", n, n, n, as.single(1), a, n, b, n, as.single(0), c = c, n))
    best <- min(best, t[["elapsed"]]) }}
cat(sprintf("%.6f\\n", best))
"""


def programs(build, n, repeats):
    """(name, command with its own BLAS, command with Tessera's); environments differ for R, which loads the library
    itself."""
    command, own = [build / "cli" / "tessera", "run", "--"], "/usr/lib/x86_64-linux-gnu/libblas.so.3"
    if shutil.which("octave-cli"):
        script = ["octave-cli", "--norc", "--eval", OCTAVE.format(n=n, repeats=repeats)]
        yield "octave", ({}, script), ({}, [*command, *script])
    if subprocess.run(["/usr/bin/python3", "-c", "import numpy"], capture_output=True).returncode == 0:
        script = ["/usr/bin/python3", "-c", NUMPY.format(n=n, repeats=repeats)]
        yield "numpy", ({}, script), ({}, [*command, *script])
    if shutil.which("Rscript"):
        script = ["Rscript", "-e", R.format(n=n, repeats=repeats)]
        yield "r", ({"BLAS": own}, script), ({"BLAS": str(build / "libtessera_blas.so")}, script)


def seconds(environment, command):
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                         env={**os.environ, **environment})
    found = re.search(r"^\d+\.\d+$", ran.stdout, re.M)
    if not found:
        sys.exit(f"{command[0]}: {ran.stdout}{ran.stderr}")
    return float(found.group())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--size", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--output", type=Path, default=ROOT / "bench/results/blas-programs.json")
    options = parser.parse_args()
    if " avx512f " in machine.read("/proc/cpuinfo"):
        os.environ["OPENBLAS_CORETYPE"] = "SkylakeX"  # which Debian's OpenBLAS does not choose by itself on newer chips
    about = {
        "machine": f"{machine.processor()}, {machine.cores()} cores", "commit": machine.commit(),
        "date": machine.date(), "own_blas": str(Path("/usr/lib/x86_64-linux-gnu/libblas.so.3").resolve())
    }
    records = []
    for name, own, tessera in programs(options.build.resolve(), options.size, options.repeats):
        times = {"own": 1e9, "tessera": 1e9}
        for _ in range(3):
            times["own"], times["tessera"] = min(times["own"], seconds(*own)), min(times["tessera"], seconds(*tessera))
        print(f"{name:8} own BLAS {times['own']:.4f} s, Tessera {times['tessera']:.4f} s")
        records.append({
            "what": "program", "program": name, "n": options.size, "seconds_own": times["own"],
            "seconds_tessera": times["tessera"], **about
        })
    results.save(options.output, records)


if __name__ == "__main__":
    main()
