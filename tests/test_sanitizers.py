"""The C stress test under the address, undefined-behaviour and thread sanitizers, and a reduced set of these tests
under the first two. `make sanitize` also has the stress test under clang's, which sees more, and `tessera selftest`
under clang's memory sanitizer."""

import os
import subprocess
import sys

import pytest

import engine as engines
from binding import CPU
from toolchain import ROOT, cmake_build, need, run

pytestmark = pytest.mark.slow
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1", "UBSAN_OPTIONS": "print_stacktrace=1",
           "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}


# Clang's, which fuzz/run builds, too: one build serves both.
FUZZER = "fuzzer-no-link,address,undefined"
with_clang = pytest.mark.skipif(os.environ.get("TESSERA_SANITIZERS") != "all", reason="two minutes: make sanitize")


def sanitized(sanitizers, tmp_path, compiler="cc", targets=("tessera", "tessera_blas", "stress"), flags=()):
    probe = subprocess.run([need(compiler), "-xc", "-", f"-fsanitize={sanitizers}", "-o", tmp_path / "probe"],
                           input="int main(void) { return 0; }", text=True, capture_output=True)
    if probe.returncode:
        pytest.skip(f"{compiler} cannot link -fsanitize={sanitizers}")
    # Unoptimised with clang, for more takes it two minutes: what is instrumented is slow to optimise.
    level = "-O0" if compiler == "clang" else "-O1"
    folder = "fuzz" if sanitizers == FUZZER else f"sanitize-{compiler}-{sanitizers.replace(',', '-')}"
    own = "-DTESSERA_FUZZER=libfuzzer" if sanitizers == FUZZER else "-DTESSERA_WERROR=ON"
    return cmake_build(folder, f"-DTESSERA_SANITIZE={sanitizers}", f"-DCMAKE_C_COMPILER={compiler}",
                       "-DCMAKE_BUILD_TYPE=RelWithDebInfo", f"-DCMAKE_C_FLAGS_RELWITHDEBINFO={level} -g1", own, *flags,
                       targets=targets)


@pytest.mark.parametrize("kernel", engines.kernel_names(CPU))
@pytest.mark.parametrize("compiler, sanitizers", [("cc", "address,undefined"), ("cc", "thread"),
                                                  pytest.param("clang", FUZZER, marks=with_clang)])
def test_stress(compiler, sanitizers, kernel, tmp_path):
    """Fewer products than ctest's, of the same kinds."""
    build = sanitized(sanitizers, tmp_path, compiler)
    out = run(build / "tests" / "stress", "brief", env={**os.environ, **OPTIONS, "TESSERA_CPU_KERNEL": kernel})
    assert out == "stress: every product exact\n"


@with_clang
def test_selftest_under_memory(tmp_path):
    """Nothing that was never written decides anything or reaches C. The stress test would take it minutes."""
    header = f"-DCMAKE_C_FLAGS=-include {ROOT / 'tests' / 'memory_sanitizer.h'}"
    build = sanitized("memory", tmp_path, "clang", targets=["tessera_cli"], flags=[header])
    kernel = "avx2" if "avx2" in engines.kernel_names(CPU) else "portable"
    out = run(build / "cli" / "tessera", "selftest", "--device", "cpu", "--kernel", kernel)
    assert "verdict: passed" in out


def test_reduced_set_under_address_and_undefined(tmp_path):
    """Python itself is not instrumented, so the sanitizer's runtime is loaded before it, and leaks, which would be
    Python's, are left to the stress test. What the plan chooses, by its default precision, and each other kernel."""
    build = sanitized("address,undefined", tmp_path)
    runtime = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not os.path.isabs(runtime):
        pytest.skip("cc has no shared address-sanitizer runtime to load before Python")
    environment = {**os.environ, **OPTIONS, "ASAN_OPTIONS": "detect_leaks=0", "LD_PRELOAD": runtime,
                   "TESSERA_LIBRARY": str(build / "libtessera.so"), "OPENBLAS_NUM_THREADS": "1"}
    # Only the files that have such tests: to collect all others under the sanitizer takes seconds.
    files = [path for path in (ROOT / "tests").glob("test_*.py") if "mark.sanitizer" in path.read_text()]
    out = run(sys.executable, "-m", "pytest", "-q", "-c", ROOT / "tests" / "pytest.ini", *files, "-m", "sanitizer",
              "-k", "cpu-fp32 or portable or avx2 or amx or attention", env=environment)
    assert " passed" in out and "failed" not in out
