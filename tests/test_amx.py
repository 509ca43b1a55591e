"""Products on AMX: which are computed there, what AMX cannot carry, the same bits however they are computed, and the
tiles that a thread had before.

A machine without AMX runs these tests, and those of every other file that apply, on a library in which plain C does
what the tile instructions do (src/cpu/amx_tile.h): `test_on_the_model`."""

import os
import subprocess
import sys

import numpy as np
import pytest

import binding
from binding import CPU, FP32, IEEE, LEFT, RIGHT, TF32, Operand, Packed, Plan, Result
from engine import Engine, kernel_names
from layouts import row_major
from reference import assert_componentwise, assert_special_values, frobenius_error, normal, product64, uniform
from test_packed import pack_at
from toolchain import BUILD, ROOT, run, run_python

MODEL = BUILD / "tests" / "libtessera_amx_model.so"
HAS_AMX = "amx" in kernel_names(CPU)
ON_THE_MODEL = os.environ["TESSERA_LIBRARY"] == str(MODEL)
needs_amx = pytest.mark.skipif(not HAS_AMX, reason="no AMX here: test_on_the_model runs this")

# What the model runs of the other files: each kind of test, with data that matter to a split.
FAMILIES = ["test_bound.py", "test_special_values.py", "test_exact.py", "test_strides.py", "test_scaling.py",
            "test_packed.py", "test_batch.py", "test_batch_invariant.py", "test_addend.py", "test_plans.py",
            "test_stats.py", "test_threads.py"]


@pytest.mark.slow
@pytest.mark.skipif(ON_THE_MODEL, reason="this is the model")
@pytest.mark.parametrize("files", [["test_amx.py"], FAMILIES], ids=["amx", "families"])
def test_on_the_model(files):
    """All of this file; of the others what has fp32 forced to AMX, without what takes long at a model's speed."""
    general = ("(cpu-fp32-amx or cpu-tf32-amx and (tf32_error or special_value)) "
               "and not all_factors and not at_once and not busy")
    select = "not on_the_model" if files == ["test_amx.py"] else general
    out = run(sys.executable, "-m", "pytest", "-q", "-c", ROOT / "tests" / "pytest.ini", "--rootdir", ROOT / "tests",
              *(ROOT / "tests" / name for name in files), "-k", select, *(["--quick"] if files == FAMILIES else []),
              env={**os.environ, "TESSERA_LIBRARY": str(MODEL)})
    assert " passed" in out and "failed" not in out, out
    print(out)


@pytest.fixture
def amx():
    return Engine(CPU, FP32, "amx")


def plan_text(context, m, n, k):
    return Plan(context, Operand(None, m, k, k, 1, 0), Operand(None, k, n, n, 1, 0), Result(None, m, n, n, 1, 0)).text()


# ---- Which products -------------------------------------------------------------------------------------------------

@needs_amx
@pytest.mark.parametrize("precision, products", [(FP32, "six"), (TF32, "three")])
def test_plan_says_when(precision, products):
    context = binding.Context(precision=precision)
    large, small = plan_text(context, 1024, 1024, 1024), plan_text(context, 20, 20, 20)
    assert f"kernel: amx ({products} bf16 products" in large and "amx: chosen, at " in large
    assert "kernel: amx" not in small and "amx: not chosen, at 0." in small


@needs_amx
def test_ieee_and_other_kernels_never_use_amx():
    for context in binding.Context(precision=IEEE), *(binding.Context(kernel=name)
                                                      for name in kernel_names(CPU) if name != "amx"):
        assert "amx" not in plan_text(context, 2000, 2000, 2000)
    with pytest.raises(binding.TesseraError, match='options.kernel is "amx", which is not for precision ieee'):
        binding.Context(precision=IEEE, kernel="amx")


@needs_amx
@pytest.mark.parametrize("kernel, precision, used", [("amx", "FP32", True), ("amx", "IEEE", False),
                                                     ("portable", "FP32", False)])
def test_environment(kernel, precision, used):
    source = f"""
import binding
x = binding.Operand(None, 1500, 1500, 1500, 1, 0)
result = binding.Result(None, 1500, 1500, 1500, 1, 0)
print(binding.Plan(binding.Context(precision=binding.{precision}), x, x, result).is_split())
"""
    assert run_python(source, TESSERA_CPU_KERNEL=kernel).strip() == str(used)


@pytest.mark.skipif(HAS_AMX, reason="this machine has AMX")
def test_without_amx_it_cannot_be_forced():
    if any(line.startswith("cpu kernel: amx") for line in binding.info().splitlines()):
        with pytest.raises(binding.TesseraError, match='"amx", a kernel that this machine cannot run'):
            binding.Context(kernel="amx")


# ---- What AMX cannot carry ------------------------------------------------------------------------------------------

def counts(amx, a, b):
    """(the product, panels marked, tiles recomputed)."""
    context = amx.new_context()
    c = amx.product(a, b, context=context)
    stats = context.stats()
    assert stats.split_products == 1
    return c, stats.marked_panels, stats.fallback_tiles


@needs_amx
def test_plain_data_are_carried(amx, rng):
    for family in uniform, normal:
        a, b = family(rng, 100, 70, 600)
        c, marked, recomputed = counts(amx, a, b)
        assert (marked, recomputed) == (0, 0)
        assert frobenius_error(c, product64(a, b)) < 1.5e-7


@needs_amx
@pytest.mark.parametrize("value", [np.inf, np.nan, np.finfo(np.float32).max, 2.0**127])
def test_one_value_too_large(amx, rng, value):
    """It costs the tiles of its row and its part of k, no others."""
    a, b = normal(rng, 100, 70, 600)
    a[40, 599] = value
    b *= np.float32(2.0**-20)
    c, marked, recomputed = counts(amx, a, b)
    assert (marked, recomputed) == (1, 3)
    assert_special_values(c, a, b)
    c, marked, recomputed = counts(amx, b.T, a.T)
    assert (marked, recomputed) == (1, 3)
    assert_special_values(c, b.T, a.T)


@needs_amx
@pytest.mark.parametrize("exponents, recomputed", [((-40, -40), 0), ((-49, -48), 0), ((-50, -50), 0), ((-60, -60), 6),
                                                   ((-98, 2), 0), ((-110, 0), 6), ((-130, 60), 6), ((50, 60), 0),
                                                   ((57, 60), 6)])
def test_ends_of_the_range(amx, rng, exponents, recomputed):
    """Where what is flushed might matter, or sums might overflow, all of a product is recomputed."""
    a, b = (np.ldexp(rng.uniform(1, 2, shape), e).astype(np.float32)
            for e, shape in zip(exponents, ((40, 300), (300, 70))))
    b[:, 1] *= -1
    c, _, found = counts(amx, a, b)
    assert found == recomputed
    assert_componentwise(c, a, b, underflow=True)


@needs_amx
def test_tiny_elements_beside_large_sums(amx, rng):
    """Subnormals that no sum can feel do not send it away; where they are all there is, they count."""
    a, b = normal(rng, 64, 64, 200)
    a[:, ::7] = np.float32(2.0**-140)
    c, marked, recomputed = counts(amx, np.abs(a), np.abs(b))
    assert (marked, recomputed) == (0, 0)
    assert_componentwise(c, np.abs(a), np.abs(b))
    a[5] = np.float32(2.0**-130)
    c, marked, recomputed = counts(amx, np.abs(a), np.abs(b))
    assert (marked, recomputed) == (0, 2)
    assert_componentwise(c, np.abs(a), np.abs(b), underflow=True)


@needs_amx
def test_zeros_are_carried(amx, rng):
    a, b = normal(rng, 64, 64, 100)
    a[3], b[:, 9], a[:, 50] = 0, 0, 0
    c, marked, recomputed = counts(amx, a, b)
    assert (marked, recomputed) == (0, 0)
    assert not c[3].any() and not c[:, 9].any() and not np.signbit(c[3]).any()


@needs_amx
def test_every_float_is_its_components(amx, rng):
    """Times one, floats of every exponent come back: the components hold all 24 bits, or ieee takes over."""
    x = rng.integers(0, 2**32, (64, 64), np.uint32).view(np.float32)
    x[~np.isfinite(x)] = 1
    assert np.array_equal(amx.product(np.eye(64, dtype=np.float32), x), x)
    x = np.ldexp(rng.integers(2**23, 2**24, (64, 64)), rng.integers(-60, 60, (64, 64)) - 23).astype(np.float32)
    c, _, recomputed = counts(amx, np.eye(64, dtype=np.float32), x)
    assert recomputed == 0 and np.array_equal(c, x)


# ---- The same bits --------------------------------------------------------------------------------------------------

@needs_amx
@pytest.mark.parametrize("precision", [FP32, TF32])
def test_same_bits_however_computed(rng, precision):
    """Threads, the order of C, a limit of workspace, packing, an element too large elsewhere in the matrix."""
    amx = Engine(CPU, precision, "amx")
    a, b = normal(rng, 150, 200, 1100)
    expected = amx.product(a, b, context=amx.new_context(threads=1))
    for options in {"threads": 2}, {"threads": 7}, {"max_workspace": 250000}:
        assert np.array_equal(amx.product(a, b, context=amx.new_context(**options)), expected)
    columns = row_major(200, 150).T
    assert np.array_equal(amx.multiply(a, b, columns), expected)
    c = row_major(150, 200)
    packed = Packed(amx.context, LEFT, amx.operand(a)), Packed(amx.context, RIGHT, amx.operand(b))
    binding.gemm(amx.context, amx.operand(a, packed[0]), amx.operand(b, packed[1]), amx.result(columns))
    assert np.array_equal(columns, expected)
    for row in 5, 70, 140:  # the first tiles of a block, some between others, the last
        marked, others = a.copy(), np.arange(150) != row
        marked[row, 5] = np.inf
        assert np.array_equal(amx.multiply(marked, b, c)[others], expected[others])


@needs_amx
@pytest.mark.parametrize("precision", [FP32, TF32])
@pytest.mark.parametrize("shape", [(100, 100, 100), (128, 128, 128), (160, 160, 160), (192, 192, 96), (200, 180, 110),
                                   (224, 224, 224)], ids=str)
def test_same_bits_where_amx_begins(rng, precision, shape):
    """Which kernels compute a product depends neither on threads nor on how it is called."""
    a, b = normal(rng, *shape)
    expected = None
    for threads in 1, 2, 5:
        engine = Engine(CPU, precision)
        context = engine.new_context(threads=threads)
        with_gemm, with_batch, with_plan = row_major(*shape[:2]), row_major(1, *shape[:2]), row_major(*shape[:2])
        engine.multiply(a, b, with_gemm, context=context)
        engine.multiply(a[None], b[None], with_batch, context=context)
        plan = Plan(context, engine.operand(a), engine.operand(b), engine.result(with_plan))
        plan.execute(a.ctypes.data, b.ctypes.data, with_plan.ctypes.data)
        expected = with_gemm if expected is None else expected
        for c in with_gemm, with_batch[0], with_plan:
            assert np.array_equal(c, expected)
        assert context.stats().split_products == 3 * plan.is_split()


@needs_amx
def test_forced_without_room(amx):
    """A limit that leaves no room for the smallest panels is an error where AMX is forced; otherwise the ieee kernels
    compute."""
    with pytest.raises(binding.TesseraError,
                       match="options.max_workspace is 100000; this product needs more for the kernel amx"):
        plan_text(amx.new_context(max_workspace=100000), 1000, 1000, 1000)
    assert "kernel: amx" not in plan_text(binding.Context(max_workspace=100000), 1000, 1000, 1000)


@needs_amx
@pytest.mark.parametrize("sides", [(LEFT,), (RIGHT,), (LEFT, RIGHT)], ids=["left", "right", "both"])
def test_packed_in_the_callers_memory(amx, rng, sides):
    """Where the matrix is gone, what AMX cannot carry comes from the packed form."""
    a, b = normal(rng, 70, 90, 700)
    a[3, 600], a[40, 5], b[20, 80] = np.inf, 1e-40, np.nan
    expected, c = amx.product(a, b), row_major(70, 90)
    left, _left_memory = pack_at(amx, LEFT, a.copy()) if LEFT in sides else (amx.operand(a), None)
    right, _right_memory = pack_at(amx, RIGHT, b.copy()) if RIGHT in sides else (amx.operand(b), None)
    binding.gemm(amx.context, left, right, amx.result(c))
    assert np.array_equal(c, expected, equal_nan=True)


@pytest.mark.skipif(not HAS_AMX or ON_THE_MODEL, reason="needs a machine with AMX")
def test_the_model_is_the_machine(rng):
    """Plain C and the tile instructions agree in every bit."""
    source = """
import sys, numpy as np, binding
from engine import Engine
from binding import CPU, FP32
rng = np.random.default_rng(7)
for scale in 1, 2.0**-40:
    a, b = rng.standard_normal((200, 900), np.float32), np.float32(scale) * rng.standard_normal((900, 100), np.float32)
    sys.stdout.buffer.write(Engine(CPU, FP32, "amx").product(a, b).tobytes())
"""
    made = [subprocess.run([sys.executable, "-c", source], cwd=ROOT / "tests", capture_output=True, check=True,
                           env={**os.environ, "TESSERA_LIBRARY": str(library)}).stdout
            for library in (os.environ["TESSERA_LIBRARY"], MODEL)]
    assert len(made[0]) == 2 * 4 * 200 * 100 and made[0] == made[1]


@pytest.mark.skipif(not HAS_AMX or ON_THE_MODEL, reason="needs a machine with AMX")
def test_tiles_are_left_as_found():
    """In use or not, across threads, signals and a fork: see amx_tiles.c."""
    assert run(BUILD / "tests" / "amx_tiles") == "amx_tiles: as found\n"
