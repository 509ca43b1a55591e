"""What is multiplied: the five reference problems, and matrices from NumPy's random numbers or from torch's."""

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


class NumpySource:
    def __init__(self, seed):
        import numpy
        self.numpy, self.random = numpy, numpy.random.default_rng(seed)

    def uniform(self, *shape):
        return self.random.random(shape, self.numpy.float32)

    def normal(self, *shape):
        return self.random.standard_normal(shape, self.numpy.float32)

    def power_of_two(self, exponent):
        return self.numpy.exp2(exponent)

    def floor(self, x):
        return self.numpy.floor(x)


class TorchSource:
    def __init__(self, seed, device):
        import torch
        self.torch, self.device = torch, device
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def uniform(self, *shape):
        return self.torch.rand(*shape, generator=self.generator, device=self.device)

    def normal(self, *shape):
        return self.torch.randn(*shape, generator=self.generator, device=self.device)

    def power_of_two(self, exponent):
        return self.torch.exp2(exponent)

    def floor(self, x):
        return self.torch.floor(x)


def matrix(source, family, rows, columns):
    if family == "uniform":
        return source.uniform(rows, columns)
    if family == "normal":
        return source.normal(rows, columns)
    magnitude = 0.5 + 0.5 * source.uniform(rows, columns)
    sign = 1 - 2 * source.floor(2 * source.uniform(rows, columns))
    exponent = source.floor((2 * WIDEST + 1) * source.uniform(rows, columns)) - WIDEST
    return sign * magnitude * source.power_of_two(exponent)
