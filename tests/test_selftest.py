"""`tessera selftest` passes on a sound machine, and names the kernel and the element where one bit is wrong. The wrong
bit comes from a library loaded in front of libtessera, which changes a result after the kernel has made it."""

import os
import re
import subprocess

import pytest

import binding
import engine as engines
from binding import CPU
from test_cuda_host import FAKE
from toolchain import BUILD, PATIENCE, ROOT, need, run

TESSERA = BUILD / "cli" / "tessera"
CPU_KERNELS = engines.kernel_names(CPU)

# Flips a bit of one element of C in the product FAULT_PRODUCT (counted from 0) that contexts of FAULT_KERNEL compute;
# "beside": of the float in front of C instead.
FAULT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include "tessera.h"

static tsr_context *faulty;

tsr_status tsr_context_create(tsr_context **context, const tsr_options *options) {
    tsr_status (*next)(tsr_context **, const tsr_options *) = dlsym(RTLD_NEXT, "tsr_context_create");
    tsr_status status = next(context, options);
    if (!status && options && options->kernel && !strcmp(options->kernel, getenv("FAULT_KERNEL"))) faulty = *context;
    return status;
}

tsr_status tsr_gemm_add(tsr_context *context, int64_t batch, float alpha, const tsr_operand *a, const tsr_operand *b,
                        float beta, const tsr_operand *addend, const tsr_result *c, const tsr_launch *launch) {
    static int products;
    tsr_status (*next)(tsr_context *, int64_t, float, const tsr_operand *, const tsr_operand *, float,
                       const tsr_operand *, const tsr_result *, const tsr_launch *) = dlsym(RTLD_NEXT, "tsr_gemm_add");
    tsr_status status = next(context, batch, alpha, a, b, beta, addend, c, launch);
    if (context != faulty || products++ != atoi(getenv("FAULT_PRODUCT"))) return status;
    int64_t i = c->rows - 1, j = c->cols / 2;
    float *element = c->data + i * c->row_stride + j * c->col_stride;
    if (!strcmp(getenv("FAULT_KIND"), "beside")) element = c->data - 1;
    unsigned bits;
    memcpy(&bits, element, sizeof bits);
    bits ^= 1u << 22; /* of uniform data, what the bound does not forgive */
    memcpy(element, &bits, sizeof bits);
    return status;
}
"""


@pytest.fixture(scope="session")
def fault(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fault")
    (folder / "fault.c").write_text(FAULT)
    run(need("cc"), "-shared", "-fPIC", "-O1", f"-I{ROOT / 'include'}", folder / "fault.c", "-o", folder / "fault.so",
        "-ldl")
    return folder / "fault.so"


def selftest(*words, command="selftest", **environment):
    ran = subprocess.run([TESSERA, command, *words], capture_output=True, text=True, timeout=PATIENCE,
                         env={**os.environ, **environment})
    return ran.returncode, ran.stdout, ran.stderr


def lines_of(output):
    """{kernel: (precisions, products, verdict)}"""
    found = re.findall(r"^(\w+) kernel (\w+) +((?:\w+ )+|- ) *(\d+) products  (\w+)$", output, re.M)
    return {kernel: (precisions.split(), int(count), verdict) for _, kernel, precisions, count, verdict in found}


def test_every_kernel_passes():
    status, output, errors = selftest("--device", "cpu")
    assert status == 0 and errors == "", output + errors
    lines = lines_of(output)
    assert list(lines) == CPU_KERNELS
    for kernel, (precisions, products, verdict) in lines.items():
        assert precisions == (["fp32", "tf32"] if kernel == "amx" else ["ieee", "fp32", "tf32"])
        assert products >= 17 + 6 * (len(precisions) - 1) and verdict == "passed"
    total = sum(products for _, products, _ in lines.values())
    assert f"verdict: passed, all {total} products have the known result" in output


def test_one_kernel_and_one_thread():
    status, output, _ = selftest("--device", "cpu", "--kernel", "portable", "--threads", "1")
    assert status == 0 and list(lines_of(output)) == ["portable"]
    status, output, errors = selftest("--device", "cpu", "--kernel", "no_such")
    assert status == 1 and "no_such" in errors and "verdict" not in output


def test_amx_passes_in_its_model():
    status, output, errors = selftest("--device", "cpu", "--kernel", "amx",
                                      LD_PRELOAD=str(BUILD / "tests" / "libtessera_amx_model.so"))
    assert status == 0, output + errors
    assert lines_of(output)["amx"][0] == ["fp32", "tf32"]


def test_info_runs_the_brief_form():
    status, output, _ = selftest(command="info")
    assert status == 0 and output.startswith(binding.info())
    assert re.fullmatch(r"selftest: passed \(\d+ products\)\n", output[len(binding.info()) :])


@pytest.mark.parametrize("product, words", [
    ("one element", "(1 x 1 x 1): element (0, 0) of item 0 is "), ("edges", "element (66, 22) "),
    ("batch", "of item 0 "), ("alpha and beta", ""), ("special rows", ""), ("one rounding", ""),
    ("uniform", "by the contract's bound")])
@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_a_wrong_bit_is_found(fault, kernel, product, words):
    names = re.findall(r'^    \{"([^"]+)", ', (ROOT / "cli" / "selftest.c").read_text(), re.M)
    if kernel == "amx":  # it is not for ieee, which comes first and whose product this is
        names.remove("one rounding")
    product = product if product in names else "uniform"
    status, output, errors = selftest("--device", "cpu", LD_PRELOAD=str(fault), FAULT_KERNEL=kernel,
                                      FAULT_PRODUCT=str(names.index(product)), FAULT_KIND="flip")
    assert status == 1
    assert re.match(rf'tessera selftest: cpu kernel {kernel} at \w+, product "{product}" ', errors), errors
    assert words in errors and "must be " in errors, errors
    verdicts = {name: verdict for name, (_, _, verdict) in lines_of(output).items()}
    assert verdicts == {name: "FAILED" if name == kernel else "passed" for name in CPU_KERNELS}
    assert output.endswith("verdict: FAILED\n")


def test_a_write_beside_c_is_found(fault):
    status, _, errors = selftest("--device", "cpu", LD_PRELOAD=str(fault), FAULT_KERNEL="portable", FAULT_PRODUCT="3",
                                 FAULT_KIND="beside")
    assert status == 1 and "cpu kernel portable at ieee" in errors and "memory beside C is written" in errors


def test_info_reports_a_wrong_bit(fault):
    status, output, _ = selftest(command="info", LD_PRELOAD=str(fault), FAULT_KERNEL="portable", FAULT_PRODUCT="1",
                                 FAULT_KIND="flip")
    assert status == 1 and 'selftest: FAILED: cpu kernel portable at ieee, product "edges"' in output


@pytest.mark.skipif(not binding.lib.tsr_has_cuda() or bool(engines.DRIVER),
                    reason="needs the stand-in driver and no GPU")
def test_every_cuda_kernel_is_forced_and_passes():
    """On the stand-in driver: each kernel that can be forced has products, and a launch that fails is named."""
    status, output, errors = selftest("--device", "cuda", LD_LIBRARY_PATH=str(FAKE))
    assert status == 0, output + errors
    lines = lines_of(output)
    assert len(lines) > 10 and all(products and verdict == "passed" for _, products, verdict in lines.values()), output
    status, output, errors = selftest("--device", "cuda", LD_LIBRARY_PATH=str(FAKE),
                                      FAKE_CUDA_BROKEN="cuLaunchKernelEx")
    assert status == 1 and "launching " in errors and "cuda kernel" in errors


@pytest.mark.skipif(not binding.lib.tsr_has_cuda() or bool(engines.DRIVER),
                    reason="needs the stand-in driver and no GPU")
def test_a_gpu_that_is_too_old_is_no_failure_unless_asked_for():
    environment = {"LD_LIBRARY_PATH": str(FAKE), "FAKE_CUDA_CAPABILITY": "70"}
    status, output, _ = selftest(**environment)
    assert status == 0 and "cuda:0 is not tested:" in output and "compute capability 7.0" in output
    status, _, errors = selftest("--device", "cuda", **environment)
    assert status == 1 and "compute capability 7.0" in errors


@pytest.mark.skipif(not engines.DRIVER, reason="no GPU")
def test_every_cuda_kernel_of_this_gpu_passes():
    status, output, errors = selftest("--device", "cuda")
    assert status == 0, output + errors
    assert all(products and verdict == "passed" for _, products, verdict in lines_of(output).values()), output
