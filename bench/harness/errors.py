"""How far products are from float64's, for NumPy arrays and for torch's tensors alike."""

UNIT = 2.0**-24  # half a unit in the last place of 1: what one rounding to float32 can do


def to_double(x):
    return x.double() if hasattr(x, "double") else x.astype("float64")


def measure(products, a, b, rows=2048):
    """Of each of several products of a and b: the relative Frobenius error, and the worst error of an element in units
    of 2^-24 (|A||B|), of which the contract of `ieee` and `fp32` allows k + 2. By blocks of rows, so that copies in
    float64 stay small."""
    squares, worst, reference_squares = [0.0] * len(products), [0.0] * len(products), 0.0
    right = to_double(b)
    right_magnitude = abs(right)
    for begin in range(0, a.shape[0], rows):
        left = to_double(a[begin:begin + rows])
        reference, magnitude = left @ right, abs(left) @ right_magnitude
        reference_squares += float((reference * reference).sum())
        for i, c in enumerate(products):
            difference = abs(to_double(c[begin:begin + rows]) - reference)
            squares[i] += float((difference * difference).sum())
            worst[i] = max(worst[i], float((difference / magnitude).max()) / UNIT)
    return [((square / reference_squares) ** 0.5, units) for square, units in zip(squares, worst)]
