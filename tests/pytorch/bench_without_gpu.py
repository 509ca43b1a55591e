"""The benchmarks of bench/gpu and bench/pytorch without a GPU: bench_without_gpu.py PROGRAM [its arguments]. Tensors
lie in host memory, Tessera's CPU engine multiplies them, and torch.cuda's streams, events and graphs are stand-ins, so
that everything but the times is real. Problems are a thirty-second of their size."""

import contextlib
import functools
import pathlib
import sys
import time
import types

import torch

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "gpu"), str(BENCH.parent / "python/capi")]
WORKSPACE_ALIGNMENT = 256


def in_host_memory(function):
    @functools.wraps(function)
    def wrapped(*arguments, **options):
        if options.get("device") == "cuda":
            options["device"] = "cpu"
        options.pop("pin_memory", None)
        made = function(*arguments, **options)
        if getattr(made, "dtype", None) == torch.uint8:  # workspace, which torch aligns better on a GPU
            made = function(made.numel() + WORKSPACE_ALIGNMENT, **options)
            made = made[-made.data_ptr() % WORKSPACE_ALIGNMENT:][:arguments[0]]
        return made

    return wrapped


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def synchronize(self):
        pass

    def record(self):
        self.seconds = time.perf_counter()

    def elapsed_time(self, end):
        return 1e3 * (end.seconds - self.seconds)


class Graph:
    """Does not record; replaying does nothing, in almost no time."""

    def replay(self):
        time.sleep(1e-6)


torch.set_num_threads(1)  # which two cores' worth of small products would only wait for
for name in ("rand", "randn", "full", "empty"):
    setattr(torch, name, in_host_memory(getattr(torch, name)))
torch.Tensor.cuda = lambda tensor: tensor
torch.cuda.synchronize = lambda: None
torch.cuda.Stream, torch.cuda.stream = object, lambda stream: contextlib.nullcontext()
torch.cuda.current_stream = lambda: types.SimpleNamespace(cuda_stream=0)
torch.cuda.Event, torch.cuda.CUDAGraph, torch.cuda.graph = Event, Graph, lambda graph: contextlib.nullcontext()

import binding  # noqa: E402
from harness import data, machine  # noqa: E402

binding.CUDA = binding.CPU
data.REFERENCE[:] = [(name, m // 32, n // 32, k // 32, layout) for name, m, n, k, layout in data.REFERENCE]

import attention  # noqa: E402
import compare  # noqa: E402
sys.path.append(str(BENCH / "pytorch"))  # behind bench/gpu: it has a compare.py, too
import models  # noqa: E402
import offload  # noqa: E402
import peers  # noqa: E402
import survey  # noqa: E402
import sustained  # noqa: E402

compare.SQUARES = {precision: [16, 48] for precision in compare.SQUARES}
survey.SMALL = (16, 32)
attention.DEVICE, attention.MOST_LENGTH, attention.MOST_ELEMENTS = "cpu", 64, 1 << 14
attention.BARS = [(2, heads, length // 64, dim, causal) for _, heads, length, dim, causal in attention.BARS]
attention.is_taken = lambda *arguments: True
attention.torch_forward, attention.torch_backward = attention.tessera_forward, attention.tessera_backward
peers.TRIAL = (64, 48, 40)
survey.SQUARES, survey.DEPTHS, survey.EDGE = (16, 48), (64, 256), 32
sustained.LARGE, sustained.WARM_UP_SECONDS = ("64 cubed", 64, 64, 64, "nn"), 0.0

models.DEVICE = "cpu"
models.MODELS = {"PINN": (models.pinn, 40, 2, 30), "encoder layer": (models.encoder_layer, 32, 2, 2, 5)}
package = types.ModuleType("package")  # bench/pytorch has a compare.py, too
package.__file__ = str(BENCH / "pytorch/compare.py")
exec(pathlib.Path(package.__file__).read_text(), package.__dict__)
package.DEVICE, package.HOST_SIZES, package.BATCHES, package.FEATURES, package.ODD_SIZES = "cpu", (16, ), (1, 64), (
    64, ), 0

sys.argv = sys.argv[1:]
if sys.argv[0] == "sustained":  # a GPU that tells its clock and power
    gpu = types.SimpleNamespace(state=lambda: {"clock_mhz": 1500, "power_w": 700},
                                description=machine.Gpu().description)
    machine.first_gpu = lambda: gpu
programs = {"attention": attention, "compare": compare, "offload": offload, "survey": survey, "sustained": sustained,
            "package": package, "models": models}
programs[sys.argv[0]].main()
