"""The split of float32 into fp16 components, in NumPy: what args.h and docs/internals/numerics.md say of exponents,
depths and components. An operand is seen as rows of length k."""

import numpy as np

# What args.h has.
PANEL_ROWS, SPLIT_K, SPLIT_SUM_K, ROW_BYTES, LO_SHIFT, ALL_ZERO = 128, 64, 32, 128, 11, 116
PACK_ROWS, SAMPLE_ROWS = 64, 8
LEAST_NORMAL, OVERFLOW = np.float32(2.0**-14), np.float32(65520)
SAMPLE_EXPONENT, LARGEST_EXPONENT, EXPONENT_LIMIT = 12, 14, 115


def bits(x):
    return np.ascontiguousarray(x, np.float32).view(np.int32)


def power(e):
    return np.ldexp(np.float32(1), e).astype(np.float32)


def exponent_for(largest, target):
    """What brings a number to [2^target, 2^(target + 1)), within +-EXPONENT_LIMIT; 0 for 0."""
    e = np.clip(target - (bits(largest) >> 23 & 0xff) + 127, -EXPONENT_LIMIT, EXPONENT_LIMIT)
    return np.where(largest == 0, 0, e)


def sampled_columns(k):
    """The places of a row's sample: sixteen runs of eight."""
    step = -(-k // 128) * 8
    return [run * step + i for run in range(16) for i in range(8) if run * step + i < k]


def by_sample(x):
    """The exponents of the rows of x, from samples."""
    k = x.shape[1]
    largest = np.nanmax(np.abs(np.column_stack([x[:, sampled_columns(k)], np.zeros(len(x), np.float32)])), axis=1)
    return np.where(largest == 0, ALL_ZERO, exponent_for(largest, SAMPLE_EXPONENT))


def scaled_by(x, e):
    return x * power(e)[:, None]


def fitting(x, e):
    return (np.abs(scaled_by(x, e)) < OVERFLOW) & ~((e == ALL_ZERO)[:, None] & (x != 0))


def depths(x, e):
    """By what factor each element lies below the least normal half: 1 if it does not, infinite if it does not fit."""
    depth = np.maximum(1, LEAST_NORMAL / np.abs(scaled_by(x, e)))
    return np.where(x == 0, 1, np.where(fitting(x, e), depth, np.inf)).astype(np.float32)


def tiny_counts(x, e):
    depth = depths(x, e)
    return ((depth > 1) & np.isfinite(depth)).sum(axis=1)


def carried_columns(x, e):
    """tf32: whether each k of each pack tile is carried; (tiles, k)."""
    lost = (x != 0) & (np.abs(scaled_by(x, e)) < LEAST_NORMAL)
    coarsest = np.where(lost, power(-e)[:, None], 0)
    tiles = [slice(i, i + PACK_ROWS) for i in range(0, len(x), PACK_ROWS)]
    return np.array([fitting(x[t], e[t]).all(0) & (coarsest[t].max(0) <= 2048 * np.fmax.reduce(np.abs(x[t]), axis=0))
                     for t in tiles])


def components(x, e):
    """hi and lo of the rows of x: x * 2^e = hi + lo * 2^-11 + what is lost."""
    hi = scaled_by(x, e).astype(np.float16)
    rest = (x.astype(np.float64) - np.ldexp(hi.astype(np.float64), -e[:, None])).astype(np.float32)
    return hi, (rest * power(e + LO_SHIFT)[:, None]).astype(np.float16)
