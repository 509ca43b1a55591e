"""`tessera check`: its certificate, and what it finds in libraries, right ones and wrong ones."""

import glob
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import binding
from toolchain import BUILD, PATIENCE, ROOT, run

TESSERA = BUILD / "cli" / "tessera"
BLAS = Path(os.environ["TESSERA_LIBRARY"]).with_name("libtessera_blas.so")
ORDINARY = ["uniform", "normal", "integers", "alpha and beta"]
HARD = ["exponents to 20", "exponents to 60", "graded", "small beside large", "cancelling"]
SPECIAL = ["zeros", "subnormal operands", "subnormal results", "ends of the range", "NaN and Inf", "alpha = 0"]
ATTENTION = ["uniform", "normal", "large scores", "rows of all sizes", "masked", "NaN and Inf"]
NOT_TF32 = ["subnormal operands", "subnormal results", "ends of the range"]
OK, FAILED, MISUSED = range(3)

pytestmark = pytest.mark.skipif(not TESSERA.exists(), reason="the command was not built")


def check(*words, expect=OK, **options):
    """(standard output, standard error) of a quick check."""
    ran = subprocess.run([TESSERA, "check", "--quick", *map(str, words)], capture_output=True, text=True,
                         timeout=PATIENCE, **options)
    assert ran.returncode == expect, ran.stdout + ran.stderr
    return ran.stdout, ran.stderr


def certificate(*words, expect=OK):
    return json.loads(check("--json", *words, expect=expect)[0])


# ---- Our own engines ------------------------------------------------------------------------------------------------

def assert_whole(report):
    """Every family in every size and layout, and nothing beyond what is allowed."""
    assert report["schema"] == "tessera-certificate-1" and report["version"] == binding.lib.tsr_version().decode()
    assert re.fullmatch(r"[0-9a-f]{12}\+?|unknown", report["commit"]) and re.fullmatch(
        r"\d{4}-\d\d-\d\dT[\d:]{8}Z", report["date"])
    assert any(line.startswith("cpu: ") for line in report["machine"])
    for grading in report["gradings"]:
        tf32 = grading["precision"] == "tf32"
        families = {family["family"]: family for family in grading["families"]}
        assert set(families) == {*ORDINARY, *HARD, *SPECIAL} - ({*NOT_TF32} if tf32 else set())
        assert grading["grade"] == "A" and grading["broken"] == grading["unrepeatable"] == 0
        assert grading["products"] == sum(family["products"] for family in families.values())
        for family in families.values():
            assert family["products"] == 4 * len(family["sizes"]) and 0 <= family["used"] <= 1
            assert family["used"] == max(size["used"] for size in family["sizes"])
            for size in family["sizes"]:
                if tf32:
                    assert size["relative"] <= size["limit"]
                else:
                    assert (size["error"] <= size["bound"] == size["k"] +
                            (4 if family["family"].startswith("alpha") else 2))
        assert all(families[name]["error"] > 0 for name in ("uniform", "normal", *HARD)), "nobody is that exact"
        if grading["description"].startswith(("cpu", "cuda")):
            assert [family["family"] for family in grading["attention"]] == ATTENTION
        for family in grading.get("attention", []):
            assert family["calls"] >= 2 and not family["broken"] and not family["unrepeatable"]
            assert 0 < family["used"] <= 1 and 0 < family["relative"] < 1e-3 and "failure" not in family


def test_certificate():
    """Without --device: of every engine there is, at every precision."""
    report = certificate()
    assert_whole(report)
    engines = [grading["engine"] for grading in report["gradings"]]
    assert (engines[:3] == ["cpu"] * 3 and all(re.fullmatch(r"cuda:\d+", engine) for engine in engines[3:]) and
            len(engines) % 3 == 0)
    assert [grading["precision"] for grading in report["gradings"][:3]] == ["ieee", "fp32", "tf32"]


def test_certificate_to_read():
    text, _ = check("--report", "--device", "cpu")
    for family in (*ORDINARY, *HARD, *SPECIAL):
        assert re.search(rf"^\| {family} \|.* pass \|$", text, re.M), family
    for words in ("# Numerical certificate", f"| Tessera | {binding.lib.tsr_version().decode()}, commit ",
                  "| seed | 1 |", "FAILED"):
        assert (words in text) == (words != "FAILED")
    assert re.findall(r"^## cpu, (\w+): grade A$", text, re.M) == ["ieee", "fp32", "tf32"]
    command = re.search(r"^\| reproduce with \| `tessera check (.*)` \|$", text, re.M)[1]
    again, _ = check(*command.split())
    assert re.sub("date .*", "", again) == re.sub("date .*", "", text)
    assert re.sub("date .*|seed .*", "",
                  check(*command.replace("--seed 1", "--seed 2").split())[0]) != re.sub("date .*|seed .*", "", text)


@pytest.mark.skipif(not binding.lib.tsr_has_cuda(), reason="the library was built without the CUDA engine")
@pytest.mark.parametrize("capability, engines", [("90", ["cpu", "cuda:0", "cuda:1"]), ("61", ["cpu"])])
def test_certificate_of_several_gpus(capability, engines):
    """On the driver of tests/fake_cuda: each GPU has its own grades, and one that is too old none."""
    out, _ = check(
        "--json", "--precision", "fp32", env={
            **os.environ, "LD_LIBRARY_PATH": str(BUILD / "tests" / "fake_cuda"), "FAKE_CUDA_DEVICES": "2",
            "FAKE_CUDA_CAPABILITY": capability
        })
    report = json.loads(out)
    assert [grading["engine"] for grading in report["gradings"]] == engines
    assert_whole(report)


@pytest.mark.parametrize("json_too", [False, True])
def test_certificate_in_a_file(tmp_path, json_too):
    (tmp_path / "certificate").write_text("an older one")
    said, _ = check("--report", tmp_path / "certificate", "--device", "cpu", "--precision", "fp32",
                    *(["--json"] if json_too else []))
    assert "grade of cpu at fp32: A" in said and "verdict: pass" in said and "certificate: " in said
    text = (tmp_path / "certificate").read_text()
    if json_too:
        assert_whole(json.loads(text))
    else:
        assert text.startswith("# Numerical certificate\n")
    assert [path.name for path in tmp_path.iterdir()] == ["certificate"]


FAULTS = {
    "changes O": ("o->data[5] *= 1.001f;", ""),
    "changes grad_k": ("", "g->grad_k.data[7] += 0.01f;"),
    "writes between rows": ("if (o->row_stride > p->dim) o->data[p->dim] = 1;", ""),
    "has other bits": ("static int n; if (n++ % 2) lse->data[0] = nextafterf(lse->data[0], 0);", ""),
    "forgets NaN": ("for (int i = 0; i < p->queries; i++) if (isnan(lse->data[i])) lse->data[i] = 1;", ""),
}


@pytest.mark.parametrize("fault, grade", zip(FAULTS, "FFFBC"))
def test_wrong_attention(tmp_path, fault, grade):
    """Tessera's own, with something done to its results."""
    after = dict(zip(("FORWARD", "BACKWARD"), FAULTS[fault]))
    (tmp_path / "wrong.c").write_text("""
#include <dlfcn.h>
#include <math.h>
#include <tessera.h>
tsr_status tsr_attention(tsr_context *c, const tsr_attention_problem *p, const tsr_heads_result *o,
                         const tsr_heads_result *lse, const tsr_launch *l) {
    tsr_status (*real)() = dlsym(RTLD_NEXT, "tsr_attention"), status = real(c, p, o, lse, l);
    FORWARD
    return status;
}
tsr_status tsr_attention_backward(tsr_context *c, const tsr_attention_problem *p, const tsr_attention_gradients *g,
                                  const tsr_launch *l) {
    tsr_status (*real)() = dlsym(RTLD_NEXT, "tsr_attention_backward"), status = real(c, p, g, l);
    BACKWARD
    return status;
}
""".replace("FORWARD", after["FORWARD"]).replace("BACKWARD", after["BACKWARD"]))
    run("cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-w", "-I", ROOT / "include", tmp_path / "wrong.c", "-o",
        tmp_path / "wrong.so", "-lm", "-ldl")
    report, _ = check("--json", "--device", "cpu", "--precision", "fp32", expect=FAILED,
                      env={**os.environ, "LD_PRELOAD": str(tmp_path / "wrong.so")})
    graded = json.loads(report)["gradings"][0]
    assert graded["grade"] == grade and graded["broken"] == 0
    assert any("failure" in family for family in graded["attention"])


# ---- Other libraries ------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """Compiles tests/peer/sgemm.c with the definitions given."""
    folder = tmp_path_factory.mktemp("peer")

    def make(fault="NONE", name="sgemm_", *definitions):
        library = folder / "-".join(["lib", fault.lower(), name, *definitions, ".so"])
        if not library.exists():
            run("cc", "-O3", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-DFAULT={fault}",
                f"-DNAME={name}", *definitions, ROOT / "tests" / "peer" / "sgemm.c", "-o", library, "-lm")
        return library

    return make


@pytest.mark.parametrize("name, definitions", [("sgemm_", []), ("cblas_sgemm", ["-DCBLAS"]),
                                               ("sgemm_64_", ["-DINTEGER=long"]),
                                               ("cblas_sgemm64_", ["-DCBLAS", "-DINTEGER=long"]),
                                               ("sgemm_", ["-DINTEGER=long"])])
def test_a_right_library(peer, tmp_path, name, definitions):
    """By every name and with integers of both widths; Fortran's even without knowing which."""
    library = shutil.copy(peer("NONE", name, *definitions), tmp_path / 'a "library".so')
    report = certificate("--library", library)
    assert_whole(report)
    assert len(report["gradings"]) == 1 and report["gradings"][0]["engine"] == 'a "library".so'
    assert report["gradings"][0]["description"].startswith(f"{name} of {library}")


@pytest.mark.parametrize(
    "fault, grade, broken",
    [("DROPS_A_TERM", "F", {"uniform", "normal", "integers"}),
     ("READS_C", "F", {*ORDINARY, *HARD, *SPECIAL} - {"alpha and beta", "alpha = 0"}),
     ("READS_A_AND_B", "C", {"alpha = 0"}), ("READS_OUTSIDE", "F", {"uniform", "normal", "integers"}),
     ("WRITES_OUTSIDE", "F", {*ORDINARY, *HARD, *SPECIAL}), ("ROUNDS_OPERANDS", "F", {"uniform", "normal"}),
     ("FORGETS_THE_SMALL", "D", {"graded", "exponents to 20", "exponents to 60", "small beside large", "NaN and Inf"}),
     ("FLUSHES_SUBNORMALS", "C", {"subnormal operands", "subnormal results", "ends of the range"}),
     ("LOSES_SIGNS", "C", {"ends of the range", "NaN and Inf"}),
     ("ROUNDS_UP", "F", {"integers", "alpha and beta", "zeros"}), ("CHANGES_ITS_ORDER", "B", set())])
def test_a_wrong_library(peer, fault, grade, broken):
    library = peer(fault)
    report = certificate("--library", library, expect=FAILED)["gradings"][0]
    found = {family["family"] for family in report["families"] if family["broken"]}
    assert report["grade"] == grade and broken <= found, found
    if grade in "BCD":
        assert found == broken
    if fault == "ROUNDS_UP":
        assert not found & {"uniform", "normal", *HARD}
    assert (report["unrepeatable"] > 0) == (fault == "CHANGES_ITS_ORDER")
    assert all(
        ("failure" in family) == bool(family["broken"] or family["unrepeatable"]) for family in report["families"])


def test_a_wrong_library_as_a_table(peer):
    library = peer("READS_A_AND_B")
    text, _ = check("--library", library, expect=FAILED)
    assert re.search(r"^fp32 +alpha = 0 .* FAILED\nFAILED: 1 x 1 x 1 nn: C\(0, 0\) is nan, exactly ", text, re.M)
    assert f"grade of {library.name} at fp32: C, " in text and "verdict: FAILED, 16 of 240 products" in text


def test_tf32_is_a_contract_of_its_own(peer):
    """What rounds to 11 bits breaks float32's contract and keeps that of tf32; what cuts to them or drops a term keeps
    neither."""
    assert certificate("--library", peer("ROUNDS_OPERANDS"), "--precision", "tf32")["gradings"][0]["grade"] == "A"
    for fault in ("CUTS_OPERANDS", "DROPS_A_TERM"):
        assert (certificate("--library", peer(fault), "--precision", "tf32",
                            expect=FAILED)["gradings"][0]["grade"] == "F")


def test_a_library_that_switches_subnormals_off(peer, tmp_path):
    """As -ffast-math does for whoever loads what was linked with it: found, and not catching."""
    if os.uname().machine != "x86_64":
        pytest.skip("the switch is x86's")
    (tmp_path / "switch.c").write_text(
        "#include <xmmintrin.h>\n"
        "__attribute__((constructor)) static void off(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }")
    library = tmp_path / "libfastmath.so"
    run("cc", "-O2", "-shared", "-fPIC", "-DNAME=sgemm_", tmp_path / "switch.c", ROOT / "tests" / "peer" / "sgemm.c",
        "-o", library, "-lm")
    report = certificate("--library", library, expect=FAILED)["gradings"][0]
    assert report["grade"] == "C"
    assert {family["family"] for family in report["families"]
            if family["broken"]} >= {"subnormal operands", "subnormal results"}


@pytest.mark.parametrize("fault", ["CRASHES", "EXITS"])
def test_a_library_that_does_not_come_back(peer, tmp_path, fault):
    out, said = check("--library", peer(fault), "--report", tmp_path / "certificate", expect=FAILED)
    assert out == "" and re.fullmatch(
        r"tessera check: --library \S+: the library crashed or ended the process in sgemm_, 1 x 1 x 1 nn; "
        r"it cannot be graded\n", said)
    assert not list(tmp_path.iterdir())


def test_our_own_library():
    report = certificate("--library", BLAS)
    assert_whole(report)
    assert "sgemm_ of " in report["gradings"][0]["description"]


def pypi_openblas():
    found = glob.glob(str(Path(np.__file__).parent.parent / "numpy.libs" / "libscipy_openblas*.so*"))
    return found[0] if found else "libscipy_openblas64_.so"


@pytest.mark.parametrize("library",
                         ["libopenblas.so.0", "libblis.so.4", pypi_openblas()], ids=["openblas", "blis", "numpy"])
def test_libraries_of_others(library):
    """They keep the bound. OpenBLAS's kernels for small matrices read A and B although alpha is 0."""
    ran = subprocess.run([TESSERA, "check", "--quick", "--json", "--threads", "1", "--library", library],
                         capture_output=True, text=True)
    if "cannot open shared object file" in ran.stderr:
        pytest.skip(f"{os.path.basename(library)} is not here")
    report = json.loads(ran.stdout)["gradings"][0]
    assert {family["family"] for family in report["families"] if family["broken"]} <= {"alpha = 0"}
    assert report["grade"] == ("A" if not report["broken"] else "C")
    assert ran.returncode == (OK if report["grade"] == "A" else FAILED)
    assert not report["unrepeatable"]


# ---- Bad input ------------------------------------------------------------------------------------------------------

def test_libraries_that_are_none(tmp_path):
    (tmp_path / "text.so").write_text("no library")
    (tmp_path / "empty.so").write_text("")
    for words, says in [(["no-such-library.so"], ["no-such-library.so", "No such file", "give the path"]),
                        ([tmp_path / "nothing.so"], ["nothing.so", "No such file", "give the path"]),
                        ([tmp_path / "text.so"], ["text.so", "give the path of a shared library"]),
                        ([tmp_path / "empty.so"], ["empty.so", "give the path of a shared library"]),
                        ([tmp_path], ["give the path of a shared library"]),
                        (["libm.so.6"], ["libm.so.6", "neither sgemm_ nor cblas_sgemm", "sgemm_64_"])]:
        out, said = check("--library", *words, expect=FAILED)
        assert out == "" and said.startswith("tessera check: --library ") and all(word in said for word in says), said
    out, said = check("--library", "text.so", expect=FAILED, cwd=tmp_path)
    assert "write ./text.so" in said


@pytest.mark.parametrize(
    "words, says", [(["--library"], "--library needs a value"), (["--library", ""], "--library is empty"),
                    (["--library", "x.so", "--device", "cpu"], "--device and --kernel are for Tessera's own engines"),
                    (["--library", "x.so", "--kernel", "avx2"], "--device and --kernel are for Tessera's own engines"),
                    (["--report", ""], "--report's file has no name"),
                    (["--report", "a", "b"], "unexpected argument 'b'"),
                    (["--seed", "x"], "--seed is 'x'")], ids=lambda value: " ".join(value)
    if isinstance(value, list) else "")
def test_misuse(words, says, tmp_path):
    out, said = check(*words, expect=MISUSED, cwd=tmp_path)
    assert out == "" and says in said and "try: tessera check --help" in said and not list(tmp_path.iterdir())


def test_files_that_cannot_be_written(tmp_path):
    """Found out before the work, and nothing is left behind."""
    for path, says in [(tmp_path / "no" / "certificate", "its folder does not exist"), (tmp_path, "it is a folder")]:
        out, said = check("--report", path, expect=FAILED)
        assert out == "" and says in said
    check("--report", tmp_path / "certificate", "--library", "no-such-library.so", expect=FAILED)
    check("--report", tmp_path / "certificate", "--device", "cpu", "--kernel", "no-such-kernel", expect=FAILED)
    assert not list(tmp_path.iterdir())
