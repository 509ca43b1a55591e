"""The packing kernels of the CUDA engine, run on the CPU: src/cuda/kernels/pack/pack.cu itself, each thread of a block
a fiber (emulator/), beside a model in NumPy of what args.h and docs/internals/numerics.md say of panels, exponents and
marks (support/split.py). So scales, components, addresses and the second pass over overflowed panels are tested where
there is no GPU."""

import ctypes
from ctypes import POINTER, c_int32, c_int64, c_uint32, c_void_p

import numpy as np
import pytest

from emulated import emulated, shared
from split import (PACK_ROWS, PANEL_ROWS, ROW_BYTES, SAMPLE_ROWS, SPLIT_K, bits, by_sample, carried_columns,
                   components, depths, exponent_for, fitting, tiny_counts)


NOT_CARRIED = 1 << 30


class PackArgs(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        *((name, c_int64) for name in ("row_stride", "k_stride", "batch_stride")),
        *((name, c_int32) for name in ("rows", "k", "batch", "k_blocks", "components", "by_row", "is_large")),
        *((name, c_void_p) for name in ("panels", "exponents", "row_overflows")),
        *((name, c_void_p) for name in ("tiny_counts", "overflowed_panels", "marks")),
        *((name, c_int64) for name in ("panels_batch_stride", "exponents_batch_stride", "marks_batch_stride")),
    ]


class PackPairArgs(ctypes.Structure):
    _fields_ = [("operand", PackArgs * 2), ("marks", c_void_p * 2), ("mark_counts", c_int32 * 2),
                ("beside_tiles", c_int32), ("progress", c_void_p), ("marked_panels", c_void_p)]


@pytest.fixture(scope="module")
def emulate():
    """emulate(kernel, blocks, pair, seed): runs pack_sample, pack_split, pack_look, pack_scan or, from 4 on, pack_rows
    for rows of 128, 512 and 1024."""
    return emulated("pack", ctypes.c_int, c_uint32, POINTER(PackPairArgs), c_uint32)


# ---- The model ------------------------------------------------------------------------------------------------------

class Model:
    """What packing one matrix comes to, and which of its panels were split twice."""

    def __init__(self, x, count, by_row, looked_at=(), whole_rows=False, met=1):
        """looked_at: rows in which pack_look looks for elements that the samples have no room for. whole_rows: by
        pack_rows. met: the least first_marks of what this operand is multiplied by."""
        self.components, self.counts, self.looked_at = count, count == 2 or by_row, looked_at
        self.marks_decide = count == 2 and not by_row and not whole_rows
        with np.errstate(all="ignore"):
            self.pack(x, np.float32(met))

    def pack(self, x, met):
        rows = len(x)
        panels = -(-rows // PANEL_ROWS)
        panel_of = np.arange(rows) // PANEL_ROWS
        e, most = by_sample(x), np.fmax.reduce(np.abs(x), axis=1)
        outgrown = np.isfinite(most) & ~fitting(most[:, None], e)[:, 0]
        if outgrown[list(self.looked_at)].any():
            e = np.where(outgrown, exponent_for(most, 14), e)
        first = self.marks_of(x, e, panels)
        self.overflowed_panels = np.isinf(first)
        if self.marks_decide:  # what no exponent would help is not packed again
            fits = fitting(x, e)
            self.first_marks = self.marks_of(np.where(~fits & np.isfinite(x), 0, x), e, panels).astype(np.float32)
            hopeless = self.overflowed_panels & np.isinf(self.first_marks * met)
            self.overflowed_panels &= ~hopeless
        wrong = np.where(fitting(x, e), 0, np.abs(x)).astype(np.float32)
        self.row_overflows = bits(wrong).max(axis=1).view(np.float32)  # the bits' order, in which NaN is the largest
        again = self.overflowed_panels[panel_of]
        counted, rescaled = tiny_counts(x, e), again & (self.row_overflows > 0)  # NaN is not
        e = np.where(rescaled, exponent_for(self.row_overflows, 14), e)
        counted += rescaled * tiny_counts(x, e) + NOT_CARRIED * (again & np.isinf(depths(x, e).max(axis=1)))
        self.tiny_counts, self.exponents = counted * self.counts, e
        self.marks = np.where(self.overflowed_panels, self.marks_of(x, e, panels), first).astype(np.float32)
        self.hi, self.lo = components(x, e)

    def marks_of(self, x, e, panels):
        if self.counts:
            of_rows = depths(x, e).max(axis=1)
        else:
            of_rows = np.repeat(np.where(carried_columns(x, e).all(axis=1), 1, np.inf), PACK_ROWS)[:len(x)]
        return np.array([of_rows[p * PANEL_ROWS:(p + 1) * PANEL_ROWS].max() for p in range(panels)])


def component_in(memory, rows, k_blocks, components, component):
    """A component of all rows and k, the padding too, out of the panels."""
    found, at = [], 0
    for first in range(0, rows, PANEL_ROWS):
        stored = min(PANEL_ROWS, -(-(rows - first) // 8) * 8)
        panel = memory[at:at + k_blocks * components * stored * ROW_BYTES]
        panel = panel.reshape(k_blocks, components, stored, 8, 16)[:, component]
        chunks = np.arange(8)[None, :] ^ np.arange(stored)[:, None] % 8
        panel = panel[:, np.arange(stored)[:, None], chunks]  # (k block, row, chunk, byte)
        found.append(panel.transpose(1, 0, 2, 3).reshape(stored, -1).copy().view(np.uint16))
        at += k_blocks * components * PANEL_ROWS * ROW_BYTES
    return np.concatenate(found)


# ---- Operands -------------------------------------------------------------------------------------------------------

def along(batch, rows, k, rng):
    """k contiguous; lines aligned, or not."""
    pitch = k + rng.integers(0, 5)
    memory = np.full(batch * rows * pitch + 8, np.nan, np.float32)[rng.integers(0, 4):]
    return memory, (rows * pitch, pitch, 1)


def across(batch, rows, k, rng):
    """Rows contiguous."""
    pitch = rows + rng.integers(0, 5)
    memory = np.full(batch * k * pitch + 8, np.nan, np.float32)[rng.integers(0, 4):]
    return memory, (k * pitch, 1, pitch)


def aligned(layout):
    def chosen(batch, rows, k, rng):
        pitch = -(-(rows if layout is across else k) // 4) * 4
        memory = np.full(batch * pitch * (k if layout is across else rows) + 8, np.nan, np.float32)
        memory = memory[-memory.ctypes.data % 16 // 4:]
        return memory, (k * pitch, 1, pitch) if layout is across else (rows * pitch, pitch, 1)
    chosen.__name__ = f"aligned_{layout.__name__}"
    return chosen


def stepped(batch, rows, k, rng):
    """Nothing contiguous."""
    return np.full(batch * rows * (2 * k + 1), np.nan, np.float32), (rows * (2 * k + 1), 2 * k + 1, 2)


LAYOUTS = [along, across, aligned(along), aligned(across), stepped]


def normal(rng, shape):
    return rng.standard_normal(shape, np.float32)


def graded(rng, shape):
    return np.ldexp(normal(rng, shape), rng.integers(-149, 120, shape))


def with_huge(rng, shape):
    return normal(rng, shape) * np.where(rng.random(shape) < 0.003, np.float32(1e6), np.float32(1))


def with_tiny(rng, shape):
    return normal(rng, shape) * np.where(rng.random(shape) < 0.003, np.float32(1e-9), np.float32(1))


def tiny_columns(rng, shape):
    """Elements that tf32 takes beside others of their k, and one k whose elements are all tiny."""
    x = normal(rng, shape)
    x[..., rng.random(shape[-1]) < 0.1] *= np.float32(2.0**-40)
    x[:, :, shape[-1] // 2] = np.where(rng.random(shape[:2]) < 0.9, np.float32(2.0**-40), x[:, :, shape[-1] // 2])
    return x


def at_the_limit(rng, shape):
    """Rows whose exponent is 11, and a k that tf32 just takes, or just not: one element of each tile is not tiny."""
    x = (2 * rng.random(shape, np.float32) - 1).astype(np.float32)
    x[:, :, 0] = 3
    x[:, :, shape[-1] // 2] = 2.0**-40
    x[:, ::PACK_ROWS, shape[-1] // 2] = 2.0**-rng.integers(22, 24)
    return x


def sparse(rng, shape):
    return normal(rng, shape) * (rng.random(shape) < 0.02)


def graded_columns(rng, shape):
    """Hard everywhere, and some rows outgrow their samples: of two such operands no panel is packed again."""
    x = normal(rng, shape) * np.ldexp(np.float32(1), rng.integers(-60, 61, shape[-1])).astype(np.float32)
    x[:, ::9, min(shape[-1] // 3 | 8, shape[-1] - 1)] = np.float32(2.0**75)  # where no sample is
    return x


def special(rng, shape):
    x = normal(rng, shape)
    for value in (np.nan, np.inf, -np.inf, 1e-42, np.finfo(np.float32).max):
        x[rng.random(shape) < 1e-4] = value
    x[:, ::17] = np.nan
    x[:, ::13] = -0.0
    return x


DATA = [normal, graded, with_huge, with_tiny, tiny_columns, at_the_limit, sparse, graded_columns, special]
SHAPES = [(1, 200, 300), (1, 64, 64), (2, 70, 129), (1, 7, 1), (1, 129, 31), (3, 9, 500), (1, 300, 65)]


def operand(x, memory, strides, components, by_row, keep):
    """PackArgs of a batch of matrices, which it puts into memory, and the arrays that the kernels write, poisoned.
    keep: holds the arrays."""
    batch, rows, k = x.shape
    np.lib.stride_tricks.as_strided(memory, x.shape, [4 * s for s in strides])[...] = x
    k_blocks, panels = -(-k // SPLIT_K), -(-rows // PANEL_ROWS)
    made = {"panels": shared((batch, panels * k_blocks * components * PANEL_ROWS * ROW_BYTES), np.uint8, 0xa5),
            "overflowed_panels": shared((batch, panels), np.int32, 77),
            "marks": shared((batch, panels), np.float32, np.nan),
            "exponents": shared((batch, rows), np.int32, 77),
            "row_overflows": shared((batch, rows), np.float32, 77),
            "tiny_counts": shared((batch, rows), np.uint32, 77)}
    keep += [memory, *made.values()]
    written = ("panels", "exponents", "row_overflows", "tiny_counts", "overflowed_panels", "marks")
    args = PackArgs(memory.ctypes.data, strides[1], strides[2], strides[0], rows, k, batch, k_blocks, components,
                    by_row, 0, *(made[name].ctypes.data for name in written), made["panels"].shape[1], rows, panels)
    return args, made


def least_first_mark(x, components, by_row):
    """Of a batch of matrices, after the first pass; 1 where marks do not decide."""
    models = [Model(one, components, by_row) for one in x]
    return min(model.first_marks.min() for model in models) if models[0].marks_decide else 1


def check(x, made, components, by_row, looked_at=(), whole_rows=False, met=1):
    """What was made of a batch of matrices is what the model says; returns how many panels are marked. whole_rows: by
    pack_rows, which does not say what it packed anew."""
    marked = 0
    for one in range(len(x)):
        model = Model(x[one], components, by_row, looked_at, whole_rows, met)
        for name in ("exponents", "tiny_counts") + (() if whole_rows else ("overflowed_panels",)):
            assert np.array_equal(made[name][one], getattr(model, name)), name
        for name in ("marks",) + (() if whole_rows else ("row_overflows",)):
            assert np.array_equal(bits(made[name][one]), bits(getattr(model, name))), name
        rows, k = x[one].shape
        blocks = -(-k // SPLIT_K)
        for number, component in enumerate((model.hi, model.lo)[:components]):
            found = component_in(made["panels"][one], rows, blocks, components, number)
            assert not found[rows:].any() and not found[:, k:].any(), "padding"
            good = np.isfinite(model.hi)  # what else is there is nothing to anybody: the panel is marked
            assert np.array_equal(found[:rows, :k][good], component.view(np.uint16)[good]), ("hi", "lo")[number]
        marked += np.isinf(model.marks).sum()
    return marked


@pytest.mark.parametrize("data", DATA, ids=lambda f: f.__name__)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("components, by_row", [(2, 0), (2, 1), (1, 0), (1, 1)],
                         ids=["fp32", "fp32 by row", "tf32", "tf32 by row"])
def test_packed_as_the_model_says(emulate, rng, components, by_row, layout, data):
    turn = LAYOUTS.index(layout) + DATA.index(data) + components + by_row
    for first in [(turn + 2 * i) % len(SHAPES) for i in range(2)]:  # each layout and kind of data meets every shape
        keep, made, matrices = [], [], []
        pair = PackPairArgs()
        progress, marked = shared(5, np.uint32, 0xa5a5a5a5), shared(1, np.uint64, 0)
        for i in range(rng.integers(1, 3)):  # one operand, or two with the same k
            batch, rows, _ = SHAPES[(first + i) % len(SHAPES)]
            shape = batch, rows, SHAPES[first][2]
            matrices.append(data(rng, shape).astype(np.float32))
            pair.operand[i], arrays = operand(matrices[-1], *layout(*shape, rng), components, by_row, keep)
            made.append(arrays)
        pair.progress, pair.marked_panels = progress.ctypes.data, marked.ctypes.data
        tiles = sum(-(-x.shape[1] // PACK_ROWS) * x.shape[0] for x in matrices) * -(-SHAPES[first][2] // SPLIT_K)
        samples = sum(-(-x.shape[1] // SAMPLE_ROWS) * x.shape[0] for x in matrices)
        emulate(0, samples, pair, int(rng.integers(2**31)))
        emulate(1, min(tiles, int(rng.integers(1, 4))), pair, int(rng.integers(2**31)))
        least = [least_first_mark(x, components, by_row) for x in matrices]
        met = least[::-1] if len(matrices) == 2 else [1]
        assert sum(check(x, arrays, components, by_row, met=other)
                   for x, arrays, other in zip(matrices, made, met)) == marked[0]
        assert progress[4] == 0xa5a5a5a5


@pytest.mark.parametrize("data", [normal, with_huge, special], ids=lambda f: f.__name__)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_large_operands(emulate, rng, layout, data):
    """Of an operand that is looked at, rows are scaled by their largest elements if one outgrows its sample."""
    x, keep, pair = data(rng, (1, 150, 700)).astype(np.float32), [], PackPairArgs()
    progress, marked = shared(5, np.uint32, 0xa5a5a5a5), shared(1, np.uint64, 0)
    pair.operand[1], made = operand(x, *layout(*x.shape, rng), 2, 0, keep)
    pair.operand[1].is_large, pair.progress, pair.marked_panels = 1, progress.ctypes.data, marked.ctypes.data
    across_rows = layout(1, 2, 3, rng)[1][1] == 1
    looked_at = {min(150 * block // 128 + i, 149) for block in range(128) for i in range(32 if across_rows else 1)}
    for kernel, blocks in ((0, 19), (2, 128), (3, -(-150 // (32 if across_rows else 4))), (1, 3)):
        emulate(kernel, blocks, pair, int(rng.integers(2**31)))
    assert check(x, made, 2, 0, looked_at) == marked[0]
    assert not made["overflowed_panels"].any()  # what is not finite is not packed again
    assert progress[3] == (0 if data is normal else 2) and progress[4] == 0xa5a5a5a5


@pytest.mark.parametrize("data", [normal, graded, with_huge, with_tiny, sparse, special], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kernel, rows_each, k", [(4, 128, 64), (4, 128, 128), (4, 128, 20), (5, 32, 132), (5, 32, 512),
                                                  (6, 16, 516), (6, 16, 1024)])
def test_whole_rows(emulate, data, kernel, rows_each, k):
    """pack_rows does the same as the other kernels, alone and beside an operand that these pack."""
    rng = np.random.default_rng((DATA.index(data), k))  # other shapes for each
    shapes = [(1, int(rng.integers(1, 300)), k), (int(rng.integers(1, 4)), int(rng.integers(1, 140)), k)]
    matrices, keep, made = [data(rng, shape).astype(np.float32) for shape in shapes], [], []
    tiles, rows, progress, marked = PackPairArgs(), PackPairArgs(), shared(5, np.uint32, 0xa5a5a5a5), shared(
        1, np.uint64, 0)
    by_rows = [(True, True), (True, False), (False, True)][rng.integers(3)]
    samples = blocks = panels = 0
    for i, x in enumerate(matrices):
        args, arrays = operand(x, *(aligned(along) if by_rows[i] else across)(*x.shape, rng), 2, 0, keep)
        made.append(arrays)
        if by_rows[i]:
            rows.operand[i], tiles.marks[i], tiles.mark_counts[i] = args, args.marks, arrays["marks"].size
            blocks, panels = blocks + -(-x.shape[1] // rows_each) * x.shape[0], panels + arrays["marks"].size
        else:
            tiles.operand[i], samples = args, -(-x.shape[1] // SAMPLE_ROWS) * x.shape[0]
    for pair in (tiles, rows):
        pair.progress, pair.marked_panels = progress.ctypes.data, marked.ctypes.data
    rows.beside_tiles = samples > 0
    emulate(0, samples + -(-panels // 128), tiles, int(rng.integers(2**31)))
    if samples:
        emulate(1, 2, tiles, int(rng.integers(2**31)))
    emulate(kernel, blocks, rows, int(rng.integers(2**31)))
    assert marked[0] == sum(check(x, arrays, 2, 0, whole_rows=whole)
                            for x, arrays, whole in zip(matrices, made, by_rows))
