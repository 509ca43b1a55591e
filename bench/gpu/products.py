"""Matrices on the GPU, and the timing of what multiplies them."""

import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import machine, timing  # noqa: E402
from harness.data import REFERENCE  # noqa: E402, F401  (bench/pytorch/compare.py multiplies them, too)

HOST_CLOCK_SECONDS = 0.02  # a sample of what is timed by the host's clock lasts this long


def make(m, n, k, layout, data):
    generate = {"rand": torch.rand, "randn": torch.randn}[data]
    a = generate(k, m, device="cuda").t() if layout[0] == "t" else generate(m, k, device="cuda")
    b = generate(n, k, device="cuda").t() if layout[1] == "t" else generate(k, n, device="cuda")
    return a, b


def replay(function, repeats):
    """A function that does `repeats` calls of this one from a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            function()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def settle(functions):
    """Waits for all that was queued, and for what has a stream of its own."""
    torch.cuda.synchronize()
    for function in functions:
        if hasattr(function, "synchronize"):
            function.synchronize()


class Rounds:
    """Samples of several products by the GPU's clock: CUDA events around each, one product after the other. Short
    products are timed several to a pair of events, from a CUDA graph where they can be captured, so that the GPU and
    not the host is measured. A round begins with an untimed product of the last library, so that the first, like the
    others, is queued before the GPU is ready for it, and finds it at work: after a pause the first product is slower by
    some percent. What has a stream of its own (`synchronize`) is timed by the host's clock."""

    def __init__(self, functions, flops):
        self.repeats = max(1, min(50, round(5e10 / flops)))  # products to a pair of events
        self.functions, self.state = functions, {}
        for function in functions:
            function()
        settle(functions)
        self.launched = [self.several(function) for function in functions]
        self.untimed = [
            launched for function, launched in zip(functions, self.launched) if not hasattr(function, "synchronize")
        ][-1]

    def several(self, function):
        """A function that does as many products as are timed together."""
        if self.repeats == 1 or hasattr(function, "synchronize"):
            return function
        if getattr(function, "can_be_captured", True):
            return replay(function, self.repeats)
        return lambda: [function() for _ in range(self.repeats)]

    def __call__(self, halfway):
        pairs = []
        self.untimed()
        for function, launched in zip(self.functions, self.launched):
            if hasattr(function, "synchronize"):
                pairs.append(None)
                continue
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            launched()
            end.record()
            pairs.append((start, end))
        if halfway:
            self.state = machine.first_gpu().state()
        torch.cuda.synchronize()
        return [pair[0].elapsed_time(pair[1]) / self.repeats / 1e3 if pair else self.by_the_hosts_clock(function)
                for function, pair in zip(self.functions, pairs)]

    @staticmethod
    def by_the_hosts_clock(function):
        begin = time.perf_counter()
        function()
        function.wait()
        calls = int(HOST_CLOCK_SECONDS / (time.perf_counter() - begin)) + 1
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        function.wait()
        return (time.perf_counter() - begin) / calls


def interleaved(functions, seconds, flops):
    """The Timing of each function, and the state of the GPU meanwhile."""
    rounds = Rounds(functions, flops)
    return timing.interleaved(rounds, seconds), rounds.state


def host_microseconds(function, **counts):
    """Host time of one call, the queue kept short enough never to block."""
    return timing.host_microseconds(function, torch.cuda.synchronize, **counts)


def about():
    """What a record says of this machine."""
    return machine.gpu(torch=torch.__version__)
