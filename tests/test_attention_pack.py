"""The packing kernel of attention, run on the CPU (emulator/), beside a model in NumPy of what attention_args.h says of
tiles, scales and rows that the split cannot carry; and the ieee kernels."""

import ctypes
from ctypes import POINTER, c_float, c_int32, c_uint32, c_uint64, c_void_p

import numpy as np
import pytest

from attention import Attention, Exact, data, normal
from binding import Heads
from emulated import emulated, shared
from layouts import column_major, filled, padded, row_major
from reference import powers_of_two

ROWS, TAIL, COLS = 128, 80, 64  # as attention_args.h has them
OPERANDS = ("q", "k", "v", "grad_o")


class PackedHeads(ctypes.Structure):
    _fields_ = [("tiles", c_void_p), ("downs", c_void_p)]


class AttentionArgs(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("batch", "heads", "kv_heads", "queries", "keys", "dim", "tiles_q", "tiles_k")),
        *((name, Heads) for name in ("q", "k", "v", "mask", "o", "lse", "grad_o", "grad_q", "grad_k", "grad_v")),
        *((f"packed_{name}", PackedHeads) for name in OPERANDS),
        *((name, c_void_p) for name in ("padded_lse", "delta", "shift", "recompute_q", "recompute_k")),
        ("scale", c_float), ("causal", c_int32), ("general", c_int32), ("drop_below", c_uint32), ("seed", c_uint64),
        ("offset", c_uint64),
    ]


@pytest.fixture(scope="module")
def emulate():
    """emulate(column blocks, tiles, operands, arguments, seed)"""
    return emulated("attention_pack", ctypes.c_int, c_uint32, c_uint32, POINTER(AttentionArgs), c_uint32)


def heads_of(x):
    return Heads(x.ctypes.data, *(stride // 4 for stride in x.strides)) if x is not None else Heads()


def args_of(a, o, lse, grad_o, general):
    return AttentionArgs(a.batch, a.heads, a.kv_heads, a.queries, a.keys, a.dim, -(-a.queries // ROWS),
                         -(-a.keys // ROWS), heads_of(a.q), heads_of(a.k), heads_of(a.v), heads_of(a.mask), heads_of(o),
                         heads_of(lse), heads_of(grad_o), scale=a.scale, causal=a.causal, general=general,
                         drop_below=round(a.dropout * 65536), seed=a.seed, offset=a.offset)


def packed(emulate, rng, a, grad_o, general=True):
    """What the kernel makes of each operand: (tiles, downs), and of the queries: padded lse, delta, shift; o and lse,
    which it was given."""
    blocks = -(-a.dim // COLS)
    _, lse, _ = a.weights()
    lse, o = lse.astype(np.float32), normal(rng, *a.q.shape)
    args = args_of(a, o, lse, grad_o, general)
    made, of_queries = {}, a.batch * a.heads * args.tiles_q
    of_keys = a.batch * a.kv_heads * args.tiles_k
    for name in OPERANDS:
        tiles = of_keys if name in "kv" else of_queries
        made[name] = (shared((tiles, 2, blocks, ROWS, 8, 16), np.uint8, 0xa5), shared(tiles, np.float32, 77))
        setattr(args, f"packed_{name}", PackedHeads(*(x.ctypes.data for x in made[name])))
    for name in ("padded_lse", "delta", "shift"):
        made[name] = shared((a.batch, a.heads, args.tiles_q * ROWS), np.float32, 77)
        setattr(args, name, made[name].ctypes.data)
    emulate(blocks, max(of_queries, of_keys), len(OPERANDS), args, int(rng.integers(2**31)))
    return made, o, lse[..., 0]


def halves_in(tile):
    """hi and lo of a tile, (ROWS, columns), out of their swizzled places."""
    chunks = np.arange(8)[None, :] ^ np.arange(ROWS)[:, None] % 8
    plain = tile[:, :, np.arange(ROWS)[:, None], chunks]
    return plain.copy().view(np.float16).reshape(2, -1, ROWS, COLS).transpose(0, 2, 1, 3).reshape(2, ROWS, -1)


def check_tile(tile, down, rows):
    """One tile beside its rows, (up to ROWS, dim)."""
    largest = np.abs(rows).max()
    of_rows = np.abs(rows).max(axis=1)
    carried = (np.isfinite(rows).all() and (largest == 0 or 2.0**-48 <= largest < 2.0**48)
               and not ((of_rows < largest * 2.0**-12) & (of_rows > 0)).any())
    if not carried:
        assert np.isnan(down)
        return
    e = 0 if largest == 0 else 14 - int(np.floor(np.log2(largest)))
    assert down == np.float32(2.0**-e)
    scaled = np.zeros((ROWS, tile.shape[1] * COLS), np.float32)
    scaled[:len(rows), :rows.shape[1]] = rows * np.float32(2.0**e)
    hi = scaled.astype(np.float16)
    lo = (scaled - hi.astype(np.float32)).astype(np.float16)
    stored = TAIL if tile.shape[1] == 1 and len(rows) <= TAIL else ROWS
    for found, expected in zip(halves_in(tile), (hi, lo)):
        assert np.array_equal(found[:stored].view(np.uint16), expected[:stored].view(np.uint16))


def check_packed(made, a, grad_o):
    for name in OPERANDS:
        tiles, downs = made[name]
        x = grad_o if name == "grad_o" else getattr(a, name)
        all_tiles = [head[i:i + ROWS] for item in x for head in item for i in range(0, x.shape[2], ROWS)]
        assert len(all_tiles) == len(tiles)
        for index, (tile, down, rows) in enumerate(zip(tiles, downs, all_tiles)):
            first = index % -(-x.shape[2] // ROWS) * ROWS
            if name in "kv" and a.causal and first >= a.queries:  # nobody sees these keys
                assert down == 1 and (tile == 0xa5).all()
            else:
                check_tile(tile, down, rows)


@pytest.mark.parametrize("layout", [row_major, padded, column_major])
@pytest.mark.parametrize("queries, keys, dim", [(1, 1, 1), (69, 130, 64), (197, 80, 40), (81, 300, 100),
                                                (128, 64, 128), (70, 90, 150), (40, 130, 256)])
def test_packed_as_the_model_says(emulate, rng, queries, keys, dim, layout):
    q, k, v, grad_o = (filled(layout, x) for x in data(rng, 1, 2, 1, queries, keys, dim))
    for causal in (False, True):
        a = Attention(q, k, v, causal=causal)
        made, o, lse = packed(emulate, rng, a, grad_o)
        check_packed(made, a, grad_o)
        delta = (grad_o.astype(np.float64) * o).sum(axis=-1)
        allowed = (dim + 2) * 2.0**-24 * np.abs(grad_o * o).sum(axis=-1)
        assert (np.abs(made["delta"][:, :, :queries] - delta) <= allowed).all()
        assert np.array_equal(made["padded_lse"][:, :, :queries], lse)
        assert (made["padded_lse"][:, :, queries:] == np.inf).all() and (made["delta"][:, :, queries:] == 0).all()
        assert (made["shift"] == 0).all()


def test_lse_in_units_of_log2(emulate, rng):
    q, k, v, grad_o = data(rng, 1, 1, 1, 5, 9, 16)
    made, _, lse = packed(emulate, rng, Attention(q, k, v), grad_o, general=False)
    assert np.array_equal(made["padded_lse"][:, :, :5], lse * np.float32(1.44269504))


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**48, 2.0**-30, 0.0])
@pytest.mark.parametrize("dim", [24, 72, 200])
def test_rows_that_the_split_cannot_carry(emulate, rng, dim, value):
    """One row of each operand, in one of two tiles."""
    operands = data(rng, 1, 2, 2, 140, 140, dim)
    for x, row in zip(operands, (3, 127, 128, 139)):
        x[0, 1, row] = value
    a = Attention(*operands[:3])
    made, _, _ = packed(emulate, rng, a, operands[3])
    check_packed(made, a, operands[3])
    assert sum(np.isnan(made[name][1]).sum() for name in OPERANDS) == (0 if value == 0 else len(OPERANDS))


@pytest.mark.parametrize("scale", [2.0**-49, 2.0**-48, 2.0**47, 2.0**49])
def test_ends_of_the_range(emulate, rng, scale):
    """Tiles whose largest element is 1 times a power of two."""
    operands = [np.clip(x, -1, 1) * np.float32(scale) for x in data(rng, 1, 1, 1, 40, 40, 8)]
    a = Attention(*operands[:3], scale=1.0)
    made, _, _ = packed(emulate, rng, a, operands[3])
    check_packed(made, a, operands[3])


def test_elements_of_all_sizes(emulate, rng):
    """Within a row: components below fp16's normal numbers, and below its least."""
    operands = [x * powers_of_two(rng, -40, 0, *x.shape) for x in data(rng, 1, 1, 1, 90, 90, 64)]
    for x in operands:
        x[..., 0] = 1
    a = Attention(*operands[:3])
    made, _, _ = packed(emulate, rng, a, operands[3])
    check_packed(made, a, operands[3])


@pytest.mark.parametrize("dim", [16, 80])
def test_shift_of_rows_with_huge_scores(emulate, rng, dim):
    """A mask of -1e9 leaves no room for the logarithm of the sum in lse: shift has it, to base 2."""
    q, k, v, grad_o = data(rng, 1, 1, 1, 6, 40, dim)
    a = Attention(0 * q, k, v, mask=np.full((1, 1, 6, 40), -1e9, np.float32))
    made, _, lse = packed(emulate, rng, a, grad_o)
    assert (lse == np.float32(-1e9)).all()
    assert np.allclose(made["shift"][:, :, :6], -np.log2(40), rtol=1e-6) and (made["shift"][:, :, 6:] == 0).all()


# ---- The ieee kernels -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[None, "SMALL"], ids=["ieee", "small"])
def emulate_ieee(request):
    """emulate(backward, thread blocks, arguments, seed)"""
    return emulated("attention_ieee", ctypes.c_int, c_uint32, POINTER(AttentionArgs), c_uint32, define=request.param)


@pytest.mark.parametrize("queries, keys, dim, layout", [
    (1, 1, 1, row_major), (5, 40, 36, row_major), (33, 9, 64, padded), (40, 70, 130, row_major),
    (70, 33, 50, column_major), (20, 130, 256, row_major)])
def test_ieee_kernels(emulate_ieee, rng, queries, keys, dim, layout):
    q, k, v, grad_o = (filled(layout, x) for x in data(rng, 1, 4, 2, queries, keys, dim))
    for options in ({"causal": True}, {"mask": normal(rng, 1, 4, queries, keys)}, {"dropout": 0.3, "seed": 5}):
        a = Attention(q, k, v, **options)
        results = {"o": shared(q.shape, np.float32, np.nan), "lse": shared((*q.shape[:3], 1), np.float32, np.nan)}
        results |= {f"grad_{x}": shared(getattr(a, x).shape, np.float32, np.nan) for x in "qkv"}
        args = args_of(a, results["o"], results["lse"], grad_o, True)
        for x in "qkv":
            setattr(args, f"grad_{x}", heads_of(results[f"grad_{x}"]))
        for backward in (0, 1):
            emulate_ieee(backward, 3, args, int(rng.integers(2**31)))
        results["lse"] = results["lse"][..., 0]
        Exact(a, grad_o).check(**results)
