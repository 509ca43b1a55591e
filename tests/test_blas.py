"""libtessera_blas: the standard's interface, held to more than netlib's testers ask (those are in
test_blas_programs.py). Every product lies in poisoned memory with gaps between its columns; inputs and gaps must be as
they were, to the bit."""

import ctypes
import itertools
import os
import re
import subprocess
import sys
from ctypes import POINTER, byref, c_char, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import pytest

import binding
import engine as engines
import layouts
import reference
from at_once import at_once
from binding import CPU
from toolchain import BUILD, PATIENCE, ROOT, need, run

LIBRARY = Path(os.environ["TESSERA_LIBRARY"]).with_name("libtessera_blas.so")
HERE = Path(__file__).parent
ROW, COLUMN = 101, 102
NO, YES, CONJUGATE, PACKED = 111, 112, 113, 151
A_MATRIX, B_MATRIX = 161, 162
SCALARS = [0.0, 1.0, -1.0, 0.7, 1.3]

os.environ.setdefault("TESSERA_DEVICE", "cpu")  # read by the library's first call
blas = ctypes.CDLL(str(LIBRARY))


def declare(name, result, *arguments):
    function = getattr(blas, name)
    function.restype, function.argtypes = result, arguments


for suffix, integer in ("", c_int), ("_64", c_int64):
    declare(f"cblas_sgemm_batch_strided{suffix}", None, *[c_int] * 3, *[integer] * 3, c_float, c_void_p, integer,
            integer, c_void_p, integer, integer, c_float, c_void_p, integer, integer, integer)
    declare(f"cblas_sgemm_alloc{suffix}", c_void_p, c_int, *[integer] * 3)
    declare(f"cblas_sgemm_free{suffix}", None, c_void_p)
    declare(f"cblas_sgemm_pack_get_size{suffix}", c_size_t, c_int, *[integer] * 3)
    declare(f"cblas_sgemm_pack{suffix}", None, *[c_int] * 3, *[integer] * 3, c_float, c_void_p, integer, c_void_p)
    declare(f"cblas_sgemm_compute{suffix}", None, *[c_int] * 3, *[integer] * 3, c_void_p, integer, c_void_p, integer,
            c_float, c_void_p, integer)
WHEELS = {"scipy_cblas_sgemm": c_int, "scipy_cblas_sgemm64_": c_int64}
WHEELS.update(scipy_sgemm_=c_int, scipy_sgemm_64_=c_int64)
CBLAS = {"cblas_sgemm": c_int, "cblas_sgemm64_": c_int64, "cblas_sgemm_64": c_int64}
CBLAS.update((name, integer) for name, integer in WHEELS.items() if "cblas" in name)
FORTRAN = {"sgemm_": c_int, "sgemm_64_": c_int64}
FORTRAN.update((name, integer) for name, integer in WHEELS.items() if "cblas" not in name)
for name, integer in CBLAS.items():
    declare(name, None, *[c_int] * 3, *[integer] * 3, c_float, c_void_p, integer, c_void_p, integer, c_float, c_void_p,
            integer)
for name, integer in FORTRAN.items():
    declare(name, None, POINTER(c_char), POINTER(c_char), *[POINTER(integer)] * 3, POINTER(c_float), c_void_p,
            POINTER(integer), c_void_p, POINTER(integer), POINTER(c_float), c_void_p, POINTER(integer))


class Matrix:
    """A matrix as the standard stores it: rows (columns, if column-major) `ld` apart, in poisoned memory."""

    def __init__(self, values, layout, transposed=False, gap=3):
        stored = values.T if (layout == COLUMN) != transposed else values  # what is contiguous along its rows
        self.memory = layouts.poisoned(stored.shape[0], stored.shape[1] + gap)
        self.view = self.memory[:, :stored.shape[1]]
        self.view[...] = stored
        self.seen_transposed = (layout == COLUMN) != transposed
        self.ld, self.address = max(self.memory.shape[1], 1), self.memory.ctypes.data
        self.before = self.memory.copy()

    def values(self):
        return self.view.T if self.seen_transposed else self.view

    def assert_unchanged(self):
        assert np.array_equal(engines.bits(self.memory), engines.bits(self.before)), "an input was changed"


def call(routine, layout, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    if routine in CBLAS:
        getattr(blas, routine)(layout, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
        return
    assert layout == COLUMN
    integer, letter = FORTRAN[routine], {NO: b"n", YES: b"T", CONJUGATE: b"c"}
    numbers = [integer(x) for x in (m, n, k, lda, ldb, ldc)]
    getattr(blas, routine)(letter[ta], letter[tb], *map(byref, numbers[:3]), byref(c_float(alpha)), a, byref(
        numbers[3]), b, byref(numbers[4]), byref(c_float(beta)), c, byref(numbers[5]))


def multiply(rng, m, n, k, layout=COLUMN, ta=NO, tb=NO, alpha=1.0, beta=0.0, routine="cblas_sgemm", gap=3, values=None):
    """One product, checked: exactly where alpha and beta are whole numbers, else by the contract's bound."""
    make = values or (lambda *shape: reference.integers(rng, *shape, largest=4))
    plain_a, plain_b, before = make(m, k), make(k, n), make(m, n)
    a, b = Matrix(plain_a, layout, ta != NO, gap), Matrix(plain_b, layout, tb != NO, gap)
    c = Matrix(before, layout, gap=gap)
    call(routine, layout, ta, tb, m, n, k, alpha, a.address, a.ld, b.address, b.ld, beta, c.address, c.ld)
    a.assert_unchanged(), b.assert_unchanged()
    layouts.assert_guards(c.view)
    if values is None and alpha in (0, 1, -1) and beta in (0, 1, -1):
        reference.assert_exact(c.values(), plain_a, plain_b, alpha, beta, before)
    else:
        reference.assert_componentwise(c.values(), plain_a, plain_b,
                                       np.float32(alpha).item(),
                                       np.float32(beta).item(), before)
    return c.values()


# ---- Products -------------------------------------------------------------------------------------------------------

# What straddles the tiles (4, 6 and 12 rows, 8 to 64 columns), the blocks (240 and 336 rows, 384 and 640 of depth, 4096
# columns) and the limits of the short way (128 each way, 2^20 multiply-adds, 8192 elements copied of 64 columns) of the
# kernels.
SIZES = [
    *itertools.product((1, 5, 6, 7, 11, 12, 13), (1, 7, 8, 9, 15, 16, 17, 31, 32, 33), (1, 2, 5)), *itertools.product(
        (1, 3, 4, 6), (33, 47, 48, 49, 63, 64, 65, 97), (1, 3, 4, 5, 11)), *itertools.product((63, 64, 65), repeat=3),
    (127, 128, 63), (128, 129, 65), (129, 128, 64), (128, 128, 64), (128, 128, 65), (12, 64, 64), (12, 64, 65),
    (12, 65, 64), (7, 64, 127), (7, 65, 128), (7, 64, 129), (5, 8, 1024), (5, 9, 1024), (5, 8, 1025), (239, 33, 383),
    (240, 32, 384), (241, 31, 385), (335, 17, 639), (336, 16, 640), (337, 15, 641), (13, 4095, 9), (7, 4096, 9),
    (13, 4097, 9), (4097, 13, 9), (25, 33, 1281), (300, 400, 500)
]


@pytest.mark.parametrize("layout", [ROW, COLUMN])
@pytest.mark.parametrize("ta", [NO, YES])
@pytest.mark.parametrize("tb", [NO, YES])
def test_sizes(rng, layout, ta, tb):
    scalars = itertools.cycle(itertools.product(SCALARS[:3], repeat=2))
    for m, n, k in SIZES:
        alpha, beta = next(scalars)
        multiply(rng, m, n, k, layout, ta, tb, alpha or 1.0, beta)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", engines.kernel_names(CPU))
def test_sizes_with_each_kernel(kernel):
    if "TESSERA_CPU_KERNEL" in os.environ:
        pytest.skip("this is one kernel's run already")
    out = run(sys.executable, "-m", "pytest", "-q", "-c", HERE / "pytest.ini", "--rootdir", HERE, __file__, "-k",
              "test_sizes or test_scalars", env={**os.environ, "TESSERA_CPU_KERNEL": kernel})
    assert " passed" in out


@pytest.mark.parametrize("alpha, beta", itertools.product(SCALARS, repeat=2))
def test_scalars(rng, alpha, beta):
    for layout, ta, tb in itertools.product((ROW, COLUMN), (NO, YES), (NO, YES)):
        for size in (9, 7, 5), (65, 33, 17), (13, 200, 700):
            multiply(rng, *size, layout, ta, tb, alpha, beta)
            multiply(rng, *size, layout, ta, tb, alpha, beta,
                     values=lambda *shape: rng.standard_normal(shape, np.float32))


@pytest.mark.parametrize("routine", [*CBLAS, *FORTRAN])
def test_names(rng, routine):
    for ta, tb in itertools.product((NO, YES, CONJUGATE), repeat=2):
        for gap in (0, 7):
            multiply(rng, 40, 50, 60, COLUMN, ta, tb, -1.0, 1.0, routine, gap)
            if routine in CBLAS:
                multiply(rng, 40, 50, 60, ROW, ta, tb, -1.0, 1.0, routine, gap)


def test_nothing_is_touched_where_there_is_nothing_to_do():
    for m, n, k, alpha, beta in (0, 5, 5, 1, 0), (5, 0, 5, 1, 0), (5, 5, 0, 1, 1), (5, 5, 5, 0, 1):
        c = layouts.poisoned(5, 5)
        call("cblas_sgemm", ROW, NO, NO, m, n, k, alpha, None, 5, None, 5, beta, c.ctypes.data if m and n else None, 5)
        assert np.array_equal(engines.bits(c), engines.bits(layouts.poisoned(5, 5)))


@pytest.mark.parametrize("size", [4, 300])
def test_alpha_zero_reads_neither_operand_and_beta_zero_not_c(size):
    c = layouts.poisoned(size, size)
    call("cblas_sgemm", ROW, NO, NO, size, size, size, 0, None, size, None, size, 0, c.ctypes.data, size)
    assert (c == 0).all() and not np.signbit(c).any()
    c[...] = 3
    call("cblas_sgemm", ROW, NO, YES, size, size, 0, 1, None, size, None, size, -2, c.ctypes.data, size)
    assert (c == -6).all()
    a = np.full((size, size), np.nan, np.float32)
    call("cblas_sgemm", ROW, NO, NO, size, size, size, 0, a.ctypes.data, size, a.ctypes.data, size, 0.5, c.ctypes.data,
         size)
    assert (c == -3).all()
    c = layouts.poisoned(size, size)
    ones = np.ones((size, size), np.float32)
    call("cblas_sgemm", ROW, NO, NO, size, size, size, 1, ones.ctypes.data, size, ones.ctypes.data, size, 0,
         c.ctypes.data, size)
    assert (c == size).all()


@pytest.mark.parametrize("m, n, k", [(8, 8, 8), (20, 30, 40), (150, 160, 170)])
def test_nan_infinity_and_subnormals(rng, m, n, k):
    a, b = reference.normal(rng, m, n, k)
    a[3, 5], a[5, 2], b[1, 4], a[6] = np.inf, np.nan, -np.inf, 0
    c = np.zeros((m, n), np.float32)
    call("cblas_sgemm", ROW, NO, NO, m, n, k, 1, a.ctypes.data, k, b.ctypes.data, n, 0, c.ctypes.data, n)
    reference.assert_special_values(c, a, b)
    a = reference.integers(rng, m, k) * np.float32(2.0**-149)
    b = reference.integers(rng, k, n)
    call("cblas_sgemm", ROW, NO, NO, m, n, k, 1, a.ctypes.data, k, b.ctypes.data, n, 0, c.ctypes.data, n)
    assert np.array_equal(c, reference.product64(a, b))


@pytest.mark.parametrize("size", [6, 200])
def test_an_operand_that_overlaps_c(rng, size):
    """The standard forbids it. What comes out is what the operands were before."""
    x, b = reference.integers(rng, size, size), reference.integers(rng, size, size)
    before = x.copy()
    call("cblas_sgemm", ROW, NO, NO, size, size, size, 1, x.ctypes.data, size, b.ctypes.data, size, 1, x.ctypes.data,
         size)
    reference.assert_exact(x, before, b, 1, 1, before)


@pytest.mark.parametrize("overlaps", ["a", "b"])
def test_a_batch_whose_operands_overlap_c(rng, overlaps):
    """Each item reads its own matrix of the copies."""
    size, batch = 7, 4
    x, other = [reference.integers(rng, batch, size, size) for _ in range(2)]
    before, address, step = x.copy(), x.ctypes.data, size * size
    left, right = (address, other.ctypes.data) if overlaps == "a" else (other.ctypes.data, address)
    blas.cblas_sgemm_batch_strided(ROW, NO, NO, size, size, size, 1, left, size, step, right, size, step, 1, address,
                                   size, step, batch)
    for i in range(batch):
        operands = (before[i], other[i]) if overlaps == "a" else (other[i], before[i])
        reference.assert_exact(x[i], *operands, 1, 1, before[i])


def test_matrices_that_interleave(rng):
    """A and C share columns of one memory, with leading dimensions that have nothing in common: they are apart all the
    same."""
    memory = np.zeros(200, np.float32)
    a_view = np.lib.stride_tricks.as_strided(memory, (2, 5), (400, 4))
    c_view = np.lib.stride_tricks.as_strided(memory[5:], (2, 5), (200, 4))
    a_view[...] = reference.integers(rng, 2, 5)
    before, b = a_view.copy(), reference.integers(rng, 5, 5)
    call("cblas_sgemm", ROW, NO, NO, 2, 5, 5, 1, memory.ctypes.data, 100, b.ctypes.data, 5, 0, memory.ctypes.data + 20,
         50)
    reference.assert_exact(c_view, before, b)
    assert np.array_equal(a_view, before)


# ---- Batches and packed products ------------------------------------------------------------------------------------

@pytest.mark.parametrize("suffix", ["", "_64"])
@pytest.mark.parametrize("layout", [ROW, COLUMN])
@pytest.mark.parametrize("ta, tb", itertools.product((NO, YES), repeat=2))
def test_batch(rng, layout, ta, tb, suffix):
    m, n, k, batch = 13, 17, 19, 6
    for shares_a, alpha, beta in (False, 1.0, 0.0), (True, -1.0, 1.0):
        plain_a = reference.integers(rng, 1 if shares_a else batch, m, k)
        plain_b, before = reference.integers(rng, batch, k, n), reference.integers(rng, batch, m, n)

        def stored(x, transposed):
            return np.array(np.swapaxes(x, 1, 2) if (layout == COLUMN) != transposed else x, order="C")

        a, b, c = stored(plain_a, ta == YES), stored(plain_b, tb == YES), stored(before, False)
        getattr(blas, f"cblas_sgemm_batch_strided{suffix}")(layout, ta, tb, m, n, k, alpha, a.ctypes.data, a.shape[2],
                                                            0 if shares_a else m * k, b.ctypes.data, b.shape[2], k * n,
                                                            beta, c.ctypes.data, c.shape[2], m * n, batch)
        got = np.swapaxes(c, 1, 2) if layout == COLUMN else c
        for i in range(batch):
            reference.assert_exact(got[i], plain_a[0 if shares_a else i], plain_b[i], alpha, beta, before[i])


@pytest.mark.parametrize("suffix", ["", "_64"])
@pytest.mark.parametrize("layout", [ROW, COLUMN])
@pytest.mark.parametrize("ta, tb", itertools.product((NO, YES), repeat=2))
@pytest.mark.parametrize("packs", ["a", "b", "ab"])
def test_packed(rng, packs, layout, ta, tb, suffix):
    for m, n, k in (1, 1, 1), (13, 33, 7), (70, 90, 700), (5, 5, 0):
        plain_a, plain_b, before = [reference.integers(rng, *shape, largest=3) for shape in ((m, k), (k, n), (m, n))]
        a, b, c = Matrix(plain_a, layout, ta == YES), Matrix(plain_b, layout, tb == YES), Matrix(before, layout)
        size, pack, compute = [
            getattr(blas, f"cblas_sgemm_{name}{suffix}") for name in ("pack_get_size", "pack", "compute")
        ]
        alpha, passed, kept = 1, {}, []
        for name, identifier, matrix, transpose in ("a", A_MATRIX, a, ta), ("b", B_MATRIX, b, tb):
            passed[name] = matrix.address, matrix.ld, transpose
            if name not in packs:
                continue
            bytes_needed = size(identifier, m, n, k)
            memory = np.full(bytes_needed + 68, 0xA5, np.uint8)
            aligned = memory[-memory.ctypes.data % 4 + 4:][:bytes_needed]  # no better than to a float
            pack(layout, identifier, transpose, m, n, k, -2.0, matrix.address, matrix.ld, aligned.ctypes.data)
            assert (memory[-8:] == 0xA5).all(), "packing wrote beyond its size"
            passed[name], alpha = (aligned.ctypes.data, 0, PACKED), alpha * -2
            kept.append(memory)
            matrix.assert_unchanged()
            matrix.memory[...] = np.nan  # it may go
        compute(layout, passed["a"][2], passed["b"][2], m, n, k, passed["a"][0], passed["a"][1], passed["b"][0],
                passed["b"][1], 1.0, c.address, c.ld)
        layouts.assert_guards(c.view)
        reference.assert_exact(c.values(), plain_a, plain_b, alpha, 1, before)


def test_packed_by_small_factors(rng):
    """Each factor is of its own operand: together they would underflow, where the scaled operands do not."""
    a, b, c = np.full((5, 6), 1e20, np.float32), np.full((6, 7), 1e20, np.float32), layouts.poisoned(5, 7)
    passed = []
    for identifier, x in (A_MATRIX, a), (B_MATRIX, b):
        memory = blas.cblas_sgemm_alloc(identifier, 5, 7, 6)
        blas.cblas_sgemm_pack(ROW, identifier, NO, 5, 7, 6, 1e-24, x.ctypes.data, x.shape[1], memory)
        passed.append(memory)
    blas.cblas_sgemm_compute(ROW, PACKED, PACKED, 5, 7, 6, passed[0], 0, passed[1], 0, 0.0, c.ctypes.data, 7)
    assert np.allclose(c, 6e-8, rtol=1e-6, atol=0)
    blas.cblas_sgemm_pack(ROW, A_MATRIX, NO, 5, 7, 6, 0.0, None, 6, passed[0])
    blas.cblas_sgemm_compute(ROW, PACKED, PACKED, 5, 7, 6, passed[0], 0, passed[1], 0, 0.0, c.ctypes.data, 7)
    assert (c == 0).all(), "alpha = 0 does not read the matrix"
    for memory in passed:
        blas.cblas_sgemm_free(memory)
    assert blas.cblas_sgemm_pack_get_size_64(A_MATRIX, 2**61, 5, 2 **
                                             61) == 0 and not blas.cblas_sgemm_alloc_64(A_MATRIX, 2**61, 5, 2**61)


# ---- Errors ---------------------------------------------------------------------------------------------------------

def compiled(tmp_path, source, *flags):
    program = tmp_path / "program"
    run(need("cc"), "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", HERE / "blas" / source,
        "-o", program, *flags, f"-L{LIBRARY.parent}", "-ltessera_blas", f"-Wl,-rpath,{LIBRARY.parent}",
        f"-Wl,-rpath-link,{LIBRARY.parent}")
    return program


def fortran_reports(line):
    """The number of the argument that the reference's SGEMM finds illegal first; 0 for none."""
    ta, tb, m, n, k, lda, ldb, ldc = re.match(r"(.)(.) (-?\d+) (-?\d+) (-?\d+), (\d+) (\d+) (\d+)", line).groups()
    m, n, k, lda, ldb, ldc = map(int, (m, n, k, lda, ldb, ldc))
    rows_a, rows_b = m if ta in "Nn" else k, k if tb in "Nn" else n
    checks = [
        ta not in "NnTtCc", tb not in "NnTtCc", m < 0, n < 0, k < 0, lda < max(1, rows_a), ldb < max(1, rows_b), ldc
        < max(1, m)
    ]
    return next((number for number, bad in zip((1, 2, 3, 4, 5, 8, 10, 13), checks) if bad), 0)


def test_error_exits(tmp_path):
    """The reference's order and numbers, its handlers, and its state while they run."""
    lines = run(compiled(tmp_path, "errors.c")).splitlines()
    checked = 0
    for line in lines:
        if not re.match(r"[NTtcCX/]{2} ", line):
            continue
        number = fortran_reports(line)
        said = f"xerbla_ <SGEMM > {number}, row-major 0, from C 0" if number else ""
        assert line.partition(": ")[2] == said, line
        checked += 1
    assert checked == 42
    text = "\n".join(lines)
    assert "100 111 111 -1 0 0, 1 1 1: cblas_xerbla cblas_sgemm 1: Illegal layout setting, 100\n" in text
    for layout, row in (101, 1), (102, 0):
        assert f"{layout} 110 111 -1 0 0, 1 1 1: cblas_xerbla cblas_sgemm 2: Illegal TransA setting, 110\n" in text
        assert f"{layout} 111 114 -1 0 0, 1 1 1: cblas_xerbla cblas_sgemm 3: Illegal TransB setting, 114\n" in text
        # Arguments of the exchanged product, if row-major: n is the first size there, ldb the first leading dimension.
        expected = {
            "-1 -1 -1, 0 0 0": 3, "2 -1 -1, 0 0 0": 3 if row else 4, "2 4 -1, 0 0 0": 5,
            "2 4 3, 1 9 9": 10 if row else 8, "2 4 3, 9 2 9": 8 if row else 10, "2 4 3, 9 9 1": 13, "2 4 3, 1 1 1": 8
        }
        for sizes, number in expected.items():
            assert f"{layout} 111 112 {sizes}: xerbla_ <SGEMM > {number}, row-major {row}, from C 1\n" in text, sizes
    assert text.rstrip().endswith("64 bits: xerbla_64_ <SGEMM > 4, row-major 0, from C 0\n"
                                  "xerbla_64_ <SGEMM > 10, row-major 1, from C 1\n"
                                  "cblas_xerbla64_ cblas_sgemm 2: Illegal TransA setting, 0")


def test_errors_without_handlers(tmp_path):
    """Where a program has none, standard error is told, in numbers of the call as it was made."""
    program = compiled(tmp_path, "errors.c", "-DNO_HANDLERS")
    ran = subprocess.run([program], capture_output=True, text=True)
    assert ran.returncode == 0
    said = ran.stderr.splitlines()
    assert said[0] == " ** On entry to SGEMM  parameter number  1 had an illegal value"
    assert "Parameter 1 to routine cblas_sgemm was incorrect" in said and "Illegal layout setting, 100" in said
    # m, n, k, lda, ldb and ldc of a row-major call, and of a column-major one.
    numbers = [int(re.search(r"Parameter (\d+)", line).group(1)) for line in said if line.startswith("Parameter")]
    assert numbers[1:10] == [2, 3, 5, 5, 6, 9, 11, 14, 11] and numbers[10:19] == [2, 3, 4, 5, 6, 9, 11, 14, 9]


BATCH_ERRORS = [(1, dict(layout=100)), (2, dict(ta=0)), (3, dict(tb=0)), (4, dict(m=-1)), (5, dict(n=-1)),
                (6, dict(k=-1)), (9, dict(lda=2)), (10, dict(stride_a=-1)), (12, dict(ldb=3)), (13, dict(stride_b=-1)),
                (16, dict(ldc=3)), (16, dict(ldc=0)), (16, dict(ldc=-1, stride_c=-2**31)), (17, dict(stride_c=7)),
                (18, dict(batch=-1))]


@pytest.mark.parametrize("number, wrong", BATCH_ERRORS)
def test_errors_of_batches(capfd, number, wrong):
    right = dict(layout=ROW, ta=NO, tb=NO, m=2, n=4, k=3, lda=3, stride_a=6, ldb=4, stride_b=12, ldc=4, stride_c=8,
                 batch=2)
    x = {**right, **wrong}
    c = layouts.poisoned(4, 4)
    blas.cblas_sgemm_batch_strided(x["layout"], x["ta"], x["tb"], x["m"], x["n"], x["k"], 1, None, x["lda"],
                                   x["stride_a"], None, x["ldb"], x["stride_b"], 0, c.ctypes.data, x["ldc"],
                                   x["stride_c"], x["batch"])
    assert f"Parameter {number} to routine cblas_sgemm_batch_strided was incorrect" in capfd.readouterr().err
    assert np.array_equal(engines.bits(c), engines.bits(layouts.poisoned(4, 4)))


def test_errors_of_packed_products(capfd):
    x = np.zeros(64, np.float32)
    memory = np.zeros(blas.cblas_sgemm_pack_get_size(A_MATRIX, 2, 4, 3), np.uint8)
    blas.cblas_sgemm_pack(ROW, A_MATRIX, NO, 2, 4, 3, 1, x.ctypes.data, 3, memory.ctypes.data)

    def said(function, *arguments):
        getattr(blas, function)(*arguments)
        return re.findall(rf"Parameter (\d+) to routine {function} was incorrect", capfd.readouterr().err)

    for number, arguments in enumerate([(160, 1, 1, 1), (161, -1, 1, 1), (161, 1, -1, 1), (161, 1, 1, -1)], 1):
        assert said("cblas_sgemm_pack_get_size", *arguments) == [str(number)]
    for number, at, bad in (1, 0, 0), (2, 1, 0), (3, 2, PACKED), (4, 3, -1), (5, 4, -1), (6, 5, -1), (9, 8, 2):
        arguments = [ROW, A_MATRIX, NO, 2, 4, 3, 1.0, x.ctypes.data, 3, memory.ctypes.data]
        arguments[at] = bad
        assert said("cblas_sgemm_pack", *arguments) == [str(number)]
    right = [ROW, PACKED, NO, 2, 4, 3, memory.ctypes.data, 0, x.ctypes.data, 4, 0.0, x.ctypes.data + 128, 4]
    wrong = [(1, 0, 7), (2, 1, 7), (3, 2, 7), (4, 3, -1), (5, 4, -1), (6, 5, -1), (7, 3, 1), (7, 0, COLUMN), (10, 9, 3),
             (13, 12, 3)]
    for number, at, bad in wrong:
        assert said("cblas_sgemm_compute", *right[:at], bad, *right[at + 1:]) == [str(number)]
    assert said("cblas_sgemm_compute", ROW, NO, PACKED, 2, 4, 3, x.ctypes.data, 3, memory.ctypes.data, 0, 0.0,
                x.ctypes.data + 128, 4) == ["9"]
    assert said("cblas_sgemm_compute", *right) == []


# ---- Processes, threads, memory -------------------------------------------------------------------------------------

PRODUCT = """
import ctypes, os, sys
import numpy as np
blas = ctypes.CDLL(sys.argv[1])
def multiply(n, seed=0):
    rng = np.random.default_rng(seed)
    a, b = [rng.integers(-4, 5, (n, n)).astype(np.float32) for _ in range(2)]
    c = np.full((n, n), 1, np.float32)
    a_data, b_data = ctypes.c_void_p(a.ctypes.data), ctypes.c_void_p(b.ctypes.data)
    blas.cblas_sgemm(101, 111, 111, n, n, n, ctypes.c_float(1), a_data, n, b_data, n,
                     ctypes.c_float(2), ctypes.c_void_p(c.ctypes.data), n)
    assert np.array_equal(c, a.astype(np.float64) @ b + 2), "wrong"
"""


def python(code, **environment):
    """(output, standard error) of PRODUCT and then code, in a process of its own."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("TESSERA_", "OMP_"))}
    ran = subprocess.run([sys.executable, "-c", PRODUCT + code, LIBRARY], env={**inherited, **environment},
                         capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout, ran.stderr


def test_verbose():
    out, err = python("multiply(10); multiply(300)", TESSERA_VERBOSE="1", TESSERA_NUM_THREADS="2", TESSERA_DEVICE="cpu")
    header, *lines = err.splitlines()
    assert header == "TESSERA_VERBOSE Tessera 0.1.0, device cpu, precision fp32" and out == ""
    pattern = (r"TESSERA_VERBOSE SGEMM\(N,N,(\d+),\1,\1,1,0x[0-9a-f]+,\1,0x[0-9a-f]+,\1,2,0x[0-9a-f]+,\1\) "
               r"[0-9.]+us cpu NThr:2 fp32")
    assert [re.fullmatch(pattern, line).group(1) for line in lines] == ["10", "300"]
    assert python("multiply(10)", TESSERA_VERBOSE="0") == ("", "")


@pytest.mark.parametrize(
    "environment, expected",
    [({"TESSERA_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, "NThr:3"), ({"OMP_NUM_THREADS": "5,2"}, "NThr:5"),
     ({"TESSERA_PRECISION": "ieee"}, "ieee"), ({"TESSERA_DEVICE": "cpu"}, "device cpu"),
     ({"TESSERA_DEVICE": "cuda:3"}, "device cuda:3"),
     ({"TESSERA_NUM_THREADS": "many"}, 'TESSERA_NUM_THREADS is "many", which is not a number of threads'),
     ({"TESSERA_NUM_THREADS": "0"}, 'TESSERA_NUM_THREADS is "0"'),
     ({"TESSERA_PRECISION": "bf16"}, 'TESSERA_PRECISION is "bf16", which is not'),
     ({"TESSERA_DEVICE": "tpu"}, 'TESSERA_DEVICE is "tpu", which is not auto'),
     ({"TESSERA_DEVICE": "cuda:x"}, 'TESSERA_DEVICE is "cuda:x"'),
     ({"TESSERA_CPU_KERNEL": "none"}, "using the portable kernel")])
def test_settings(environment, expected):
    assert expected in python("multiply(50)", TESSERA_VERBOSE="1", **environment)[1]


def test_from_many_threads():
    def work(seed):
        own = np.random.default_rng(seed)
        for size in (9, 65, 150, 300):
            multiply(own, size, size, size, beta=1.0)

    at_once(work, 8)


def test_after_fork():
    python("""
multiply(300)
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        multiply(300); multiply(9)
        os._exit(0)
    children.append(child)
multiply(300)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
""", TESSERA_NUM_THREADS="2")


def test_forks_while_the_first_call_is_made(tmp_path):
    program = compiled(tmp_path, "fork.c", "-pthread")
    for delay in range(0, 20000, 400):
        run(program, delay)


def test_handlers_that_are_loaded_later(tmp_path):
    plug = tmp_path / "plug.so"
    (tmp_path / "plug.c").write_text("""#include <stdio.h>
void xerbla_(const char *routine, const int *argument, long length) {
    printf("plug %.5s %d %ld\\n", routine, *argument, length);
    fflush(stdout);
}
int omp_in_parallel(void) { return 1; }""")
    run(need("cc"), "-shared", "-fPIC", tmp_path / "plug.c", "-o", plug)
    out, err = python(f"""
multiply(200)
def wrong():
    blas.cblas_sgemm(102, 111, 111, -1, 1, 1, ctypes.c_float(1), None, 1, None, 1, ctypes.c_float(1), None, 1)
wrong()
ctypes.CDLL({str(plug)!r}, ctypes.RTLD_GLOBAL)
wrong()
multiply(200)
""", TESSERA_VERBOSE="1", TESSERA_NUM_THREADS="2", TESSERA_DEVICE="cpu")
    assert out == "plug SGEMM 3 6\n" and "Parameter 4 to routine cblas_sgemm was incorrect" in err
    assert re.findall(r"NThr:(\d)", err) == ["2", "1"]


def test_in_an_openmp_region(tmp_path):
    probe = subprocess.run([need("cc"), "-xc", "-", "-fopenmp", "-o", tmp_path / "probe"],
                           input="int main(void) { return 0; }", text=True, capture_output=True)
    if probe.returncode:
        pytest.skip("cc cannot link OpenMP programs")
    program = compiled(tmp_path, "openmp.c", "-fopenmp")
    ran = subprocess.run([program], capture_output=True, text=True,
                         env={**os.environ, "TESSERA_VERBOSE": "1", "TESSERA_NUM_THREADS": "2"})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    threads = re.findall(r"NThr:(\d)", ran.stderr)
    assert threads == ["2"] + ["1"] * 8, "inside a region each product has one thread"


def test_without_memory():
    """No memory for panels, nor for threads: slower, but right."""
    python(
        """
import resource
blas.cblas_sgemm(101, 111, 111, 0, 0, 0, ctypes.c_float(1), None, 1, None, 1, ctypes.c_float(2), None, 1)
multiply(3)
n = 700
rng = np.random.default_rng(0)
a, b = [rng.integers(-4, 5, (n, n), np.int8).astype(np.float32) for _ in range(2)]
c = np.full((n, n), 1, np.float32)
ctypes.CDLL(None).malloc_trim(0)  # what has been freed would do for the panels
arguments = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)]
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + 100000, resource.RLIM_INFINITY))
one, two = ctypes.c_float(1), ctypes.c_float(2)
blas.cblas_sgemm(101, 111, 112, n, n, n, one, arguments[0], n, arguments[1], n, two, arguments[2], n)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert np.array_equal(c, a.astype(np.float64) @ b.T + 2)
""", TESSERA_NUM_THREADS="1")


def test_the_callers_floating_point_mode(tmp_path):
    run(compiled(tmp_path, "modes.c"))


@pytest.fixture(scope="module")
def without_memory(tmp_path_factory):
    """The loops that a product falls back to when there is no memory at all."""
    library = tmp_path_factory.mktemp("no_memory") / "no_memory.so"
    run(need("cc"), "-std=gnu11", "-O2", "-shared", "-fPIC", f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}",
        ROOT / "src" / "blas" / "no_memory.c", "-o", library, f"-L{LIBRARY.parent}", "-ltessera",
        f"-Wl,-rpath,{LIBRARY.parent}")
    function = ctypes.CDLL(str(library)).blas_multiply_without_memory
    function.restype = None
    operand = POINTER(binding.Operand)
    function.argtypes = c_int64, c_float, operand, operand, c_float, POINTER(binding.Result)

    def multiply(a, b, c, alpha=1.0, beta=0.0, packed=None):
        operands = [binding.matrix(binding.Operand, a, packed=packed), binding.matrix(binding.Operand, b)]
        batch, result = c.shape[0] if c.ndim == 3 else 1, binding.matrix(binding.Result, c)
        function(batch, alpha, *map(byref, operands), beta, byref(result))

    return multiply


@pytest.mark.parametrize("alpha, beta", [(1.0, 0.0), (-1.0, 1.0), (0.0, 0.5), (0.7, 1.3), (2.0**120, 0.0)])
@pytest.mark.parametrize("layout", ["row_major", "column_major", "padded"])
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (8, 32, 32), (9, 33, 65), (7, 31, 0), (30, 70, 500)])
def test_loops_without_memory(without_memory, rng, m, n, k, layout, alpha, beta):
    make = layouts.LAYOUTS[layout]
    scale = np.float32(2.0**-60 if alpha > 2 else 1)
    values = [rng.standard_normal(shape, np.float32) * scale for shape in ((m, k), (k, n), (m, n))]
    a, b, c = [layouts.filled(make, x) for x in values]
    without_memory(a, b, c, alpha, beta)
    reference.assert_componentwise(c, a, b, np.float32(alpha).item(), np.float32(beta).item(), values[2])
    layouts.assert_guards(c)


def test_loops_without_memory_on_batches_packed_operands_and_special_values(without_memory, rng):
    a, b = rng.standard_normal((3, 20, 40), np.float32), rng.standard_normal((1, 40, 50), np.float32)
    c = np.full((3, 20, 50), np.nan, np.float32)
    without_memory(a, np.broadcast_to(b, (3, 40, 50)), c)
    for i in range(3):
        reference.assert_componentwise(c[i], a[i], b[0])
    packed = binding.Packed(binding.Context(), binding.LEFT, binding.matrix(binding.Operand, a[0]))
    without_memory(a[0], b[0], c[0], packed=packed)
    reference.assert_componentwise(c[0], a[0], b[0])
    a[0, 3, 5], a[0, 5, 2], b[0, 1, 4], a[0, 6] = np.inf, np.nan, -np.inf, 0
    without_memory(a[0], b[0], c[0])
    reference.assert_special_values(c[0], a[0], b[0])
    small = reference.integers(rng, 20, 40) * np.float32(2.0**-149)
    whole = reference.integers(rng, 40, 50)
    without_memory(small, whole, c[0])
    assert np.array_equal(c[0], reference.product64(small, whole))


# ---- A GPU ----------------------------------------------------------------------------------------------------------

FAKE = BUILD / "tests" / "fake_cuda"
on_fake = pytest.mark.skipif(not binding.lib.tsr_has_cuda() or not FAKE.exists(),
                             reason="the library was built without the CUDA engine")


def python_on_fake_gpu(code, **environment):
    """(lines of TESSERA_VERBOSE, everything on standard error)."""
    _, err = python(code, LD_LIBRARY_PATH=str(FAKE), TESSERA_VERBOSE="1", TESSERA_PRECISION="ieee", **environment)
    return [line for line in err.splitlines() if "SGEMM(" in line], err


@on_fake
def test_offloading():
    """All products where the GPU is asked for; by itself it takes only those that are worth it."""
    lines, _ = python_on_fake_gpu("multiply(5); multiply(150)", TESSERA_DEVICE="cuda")
    assert len(lines) == 2 and all(re.search(r"us cuda:0 ieee$", line) for line in lines)
    lines, _ = python_on_fake_gpu("multiply(150)", FAKE_CUDA_DEVICES="2", TESSERA_DEVICE="cuda:1")
    assert lines[0].endswith("us cuda:1 ieee")
    lines, _ = python_on_fake_gpu("multiply(150)")
    assert " cpu NThr:" in lines[0]


@on_fake
@pytest.mark.parametrize("call, finished", [("cuMemcpyHtoDAsync", True), ("cuMemcpyDtoHAsync", True),
                                            ("cuLaunchKernelEx", True), ("cuMemHostAlloc", True),
                                            ("cuModuleLoadData", False)])
def test_a_gpu_that_fails(call, finished):
    """The result is the CPU's, and later products are."""
    lines, err = python_on_fake_gpu("multiply(150); multiply(100)", TESSERA_DEVICE="cuda", FAKE_CUDA_BROKEN=call)
    assert len(lines) == 2 and " cpu " in lines[1] and "error of the fake driver" in err
    assert err.count("libtessera_blas: the GPU has failed, the CPU goes on: ") == finished
    assert ("finished by the CPU" in lines[0]) == finished


@on_fake
def test_no_such_gpu():
    lines, err = python_on_fake_gpu("multiply(150)", TESSERA_DEVICE="cuda:7")
    assert " cpu NThr:" in lines[0] and "libtessera_blas: no GPU: options.device_index is 7" in err


@on_fake
def test_a_fork_after_the_gpu_has_started():
    lines, _ = python_on_fake_gpu("""
multiply(100)
child = os.fork()
multiply(150 if child else 120)
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""", TESSERA_DEVICE="cuda")
    where = {re.search(r"N,N,(\d+)", line).group(1): " cuda:0 " in line for line in lines}
    assert where == {"100": True, "150": True, "120": False}, "CUDA is not for forked children"


def test_on_a_real_gpu(driver):
    _, err = python("multiply(700); multiply(3000)", TESSERA_VERBOSE="1", TESSERA_DEVICE="cuda")
    assert len(re.findall(r"us cuda:0 fp32$", err, re.M)) == 2
    _, err = python("multiply(20); multiply(5000)", TESSERA_VERBOSE="1")
    assert re.search(r"N,N,20,.* cpu ", err) and re.search(r"N,N,5000,.* cuda:0 ", err)


# ---- The library as a file ------------------------------------------------------------------------------------------

def test_exported_symbols():
    """The header's functions, those of wheels and the reference's two words of state: no other name that another
    library of the program might have."""
    lines = run(need("nm"), "-D", "--defined-only", LIBRARY).splitlines()
    header = (ROOT / "include" / "tessera_blas.h").read_text()
    declared = set(re.findall(r"^(?:void |size_t |float \*)(\w+)\(", header, re.M))
    state = {"RowMajorStrg", "CBLAS_CallFromC"}
    assert {line.split()[-1].partition("@")[0] for line in lines} == declared | set(WHEELS) | state


@pytest.mark.parametrize("compiler, flags", [("gcc", ["-std=c11"]), ("g++", ["-xc++", "-std=c++11"])])
def test_header_alone(compiler, flags):
    run(need(compiler), *flags, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only",
        ROOT / "include" / "tessera_blas.h")


# ---- Groups of products that lie anywhere ---------------------------------------------------------------------------


def call_groups(name, layout, groups, count=None, integer=c_int):
    """groups: (ta, tb, m, n, k, alpha, beta, lda, ldb, ldc, [(a, b, c) addresses])."""
    def array(kind, values):
        return (kind * max(1, len(values)))(*values)

    column = list(zip(*groups)) or [()] * 11
    pointers = [array(c_void_p, [item[i] for products in column[10] for item in products]) for i in range(3)]
    transposes = [array(c_int, column[i]) if name.startswith("cblas") else
                  b"".join({NO: b"n", YES: b"T", CONJUGATE: b"c"}.get(t, b"x") for t in column[i]) for i in range(2)]
    m, n, k, lda, ldb, ldc = [array(integer, column[i]) for i in (2, 3, 4, 7, 8, 9)]
    sizes = array(integer, [len(products) for products in column[10]])
    count = integer(len(groups) if count is None else count)
    arguments = [*transposes, m, n, k, array(c_float, column[5]), pointers[0], lda, pointers[1], ldb,
                 array(c_float, column[6]), pointers[2], ldc]
    function = getattr(blas, name)
    function.restype = None
    if name.startswith("cblas"):
        function(layout, *arguments, count, sizes)
    else:
        function(*arguments, byref(count), sizes)


@pytest.mark.parametrize("name, integer", [("cblas_sgemm_batch", c_int), ("cblas_sgemm_batch_64", c_int64),
                                           ("sgemm_batch_", c_int), ("sgemm_batch_64_", c_int64)])
@pytest.mark.parametrize("layout", [ROW, COLUMN])
def test_groups(rng, name, integer, layout):
    layout = layout if name.startswith("cblas") else COLUMN
    groups, expected = [], []
    for size, m, n, k, ta, tb in (3, 7, 5, 9, NO, NO), (0, 4, 4, 4, NO, NO), (1, 70, 60, 500, YES, CONJUGATE), \
            (20, 6, 8, 3, NO, YES), (2, 5, 0, 3, YES, NO), (2, 5, 6, 0, NO, NO):
        products, alpha, beta = [], *rng.choice(SCALARS, 2)
        for _ in range(size):
            a, b, before = (reference.integers(rng, *shape, largest=3) for shape in ((m, k), (k, n), (m, n)))
            stored = Matrix(a, layout, ta != NO), Matrix(b, layout, tb != NO), Matrix(before, layout)
            products.append(stored)
            expected.append((stored[2], a, b, alpha, beta, before))
        lines = [x.ld for x in products[0]] if products else [4] * 3
        groups.append((ta, tb, m, n, k, alpha, beta, *lines, [[x.address for x in one] for one in products]))
    call_groups(name, layout, groups, integer=integer)
    for c, a, b, alpha, beta, before in expected:
        reference.assert_componentwise(c.values(), a, b, alpha, beta, before)


@pytest.mark.parametrize("name, number, changed", [
    ("cblas_sgemm_batch", 1, {}), ("cblas_sgemm_batch", 2, {0: 0}), ("cblas_sgemm_batch", 3, {1: 5}),
    ("cblas_sgemm_batch", 4, {2: -1}), ("cblas_sgemm_batch", 5, {3: -1}), ("cblas_sgemm_batch", 6, {4: -1}),
    ("cblas_sgemm_batch", 9, {7: 2}), ("cblas_sgemm_batch", 11, {8: 3}), ("cblas_sgemm_batch", 14, {9: 3}),
    ("cblas_sgemm_batch", 15, {}), ("sgemm_batch_", 1, {0: 0}), ("sgemm_batch_", 8, {7: 1}),
    ("sgemm_batch_", 14, {})])
def test_errors_of_groups(capfd, name, number, changed):
    """Found before anything is computed, in whichever group they are."""
    c = layouts.poisoned(2, 4)
    right = [NO, NO, 2, 4, 3, 1.0, 0.0, 3, 4, 4, [[c.ctypes.data + 4096, c.ctypes.data + 8192, c.ctypes.data]]]
    wrong = [changed.get(i, value) for i, value in enumerate(right)]
    count = -1 if not changed and number > 1 else 2
    call_groups(name, 100 if number == 1 and name.startswith("cblas") else ROW, [right, wrong], count)
    told = capfd.readouterr().err
    if name.startswith("cblas"):
        assert f"Parameter {number} to routine cblas_sgemm_batch was incorrect" in told
    else:
        assert f"On entry to SGEMM_BATCH parameter number {number:2} had an illegal value" in told
    assert np.array_equal(engines.bits(c), engines.bits(layouts.poisoned(2, 4)))
