"""What is multiplied: the five reference problems, and random matrices."""

# KernelBench level 1, numbers 1, 2, 8, 16 and 18: name, m, n, k, layout.
REFERENCE = [("square", 4096, 4096, 4096, "nn"), ("standard", 2048, 4096, 8192, "nn"),
             ("irregular", 8205, 5921, 2949, "nn"), ("transposed A", 2048, 4096, 8192, "tn"),
             ("transposed both", 2048, 4096, 8192, "tt")]

FAMILIES = {
    "uniform": "uniform in [0, 1)",
    "normal": "standard normal",
    "wide": "random signs, each element with an exponent of its own from -60 to 60",
}
WIDEST = 60


def matrices(family, seed, *shapes):
    """A float32 matrix of each shape."""
    import numpy
    random = numpy.random.default_rng(seed)

    def matrix(shape):
        if family == "uniform":
            return random.random(shape, numpy.float32)
        if family == "normal":
            return random.standard_normal(shape, numpy.float32)
        magnitude = random.uniform(0.5, 1, shape) * random.choice([-1, 1], shape)
        return numpy.ldexp(magnitude, random.integers(-WIDEST, WIDEST + 1, shape)).astype(numpy.float32)

    return [matrix(shape) for shape in shapes]
