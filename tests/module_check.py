"""Checks one module of kernelbench/ on the GPU, in a process of its own.

    python3 tests/module_check.py MODULE [CAPABILITY]

prints a line of JSON for each check: its name, and what is wrong, an empty list if nothing is. The exit status says if
anything is. CAPABILITY, such as 8.0, makes the module choose its kernels as on an older GPU. The module is loaded from
where it lies, without the rest of the project, and compared with float64.
"""

import faulthandler
import json
import math
import pathlib
import re
import runpy
import sys
import traceback

import torch

faulthandler.enable()
PATH = pathlib.Path(sys.argv[1])
NUMBER = int(PATH.name.split("_")[0])
if len(sys.argv) > 2:
    torch.cuda.get_device_capability = lambda device=None: tuple(map(int, sys.argv[2].split(".")))
SPLITS = torch.cuda.get_device_capability() == (9, 0)
module = runpy.run_path(str(PATH))
ModelNew = module["ModelNew"]

FORMULAS = {
    14: lambda A, B: torch.triu(A @ B),
    15: lambda A, B: torch.tril(A @ B),
    16: lambda A, B: A.T @ B,
    17: lambda A, B: A @ B.T,
    18: lambda A, B: A.T @ B.T,
}
formula = FORMULAS.get(NUMBER, lambda A, B: A @ B)


def shapes(m, n, k):
    """Of A and B."""
    a = {3: (3, m, k), 10: (3, m, k), 11: (2, 2, m, k), 16: (k, m), 18: (k, m)}.get(NUMBER, (m, k))
    b = {3: (3, k, n), 17: (n, k), 18: (n, k)}.get(NUMBER, (k, n))
    return a, b


SIZES = [(37, 29, 41), (300, 260, 517), (2053, 1539, 2049)]  # the last one large enough for the split kernels
MODELS = {precision: ModelNew(precision=precision) for precision in ("fp32", "ieee")}


def operands(size, make=torch.randn, **options):
    return [make(*shape, device="cuda", **options) for shape in shapes(*size)]


def beyond(got, exact, magnitudes, terms):
    """The largest error in units of the contract's bound, (terms + 2) 2^-24 |A||B|: at most 1 is right; infinity is no
    number where there should be one."""
    assert exact.isfinite().all()
    error = (got.double() - exact).abs() / ((terms + 2) * 2.0**-24 * magnitudes + 1e-300)
    return error.nan_to_num(nan=float("inf")).max().item()


def values(model, A, B):
    """Values and both gradients, against float64. The number of terms and the sum of their magnitudes follow from the
    formula itself, with ones and with magnitudes in the operands' place."""

    def all_of(f, A, B, G=None):
        A, B = A.detach().requires_grad_(), B.detach().requires_grad_()  # no clone: views stay views
        C = f(A, B)
        G = torch.ones_like(C) if G is None else G
        return [C.detach(), *torch.autograd.grad(C, (A, B), G)]

    G = torch.randn(formula(A, B).shape, device="cuda")
    got = all_of(model, A, B, G)
    exact = all_of(formula, A.double(), B.double(), G.double())
    magnitudes = all_of(formula, A.double().abs(), B.double().abs(), G.double().abs())
    terms = [x.max() for x in all_of(formula, torch.ones_like(A), torch.ones_like(B))]
    wrong = []
    for name, *of in zip(("C", "dA", "dB"), got, exact, magnitudes, terms):
        if of[0].shape != of[1].shape or of[0].dtype != torch.float32:
            wrong.append(f"{name}: {of[0].shape} {of[0].dtype} instead of {of[1].shape}")
        elif (worst := beyond(*of)) > 1:
            wrong.append(f"{name} is {worst:.3g} times the bound off")
    return wrong


def check_values():
    return [f"{precision} {size} {make.__name__}: {text}" for precision, model in MODELS.items() for size in SIZES
            for make in (torch.randn, torch.rand) for text in values(model, *operands(size, make))]


def check_exact():
    """Integers whose sums float32 holds: every bit counts."""
    wrong = []
    for precision, model in MODELS.items():
        for size in SIZES:
            A, B = (torch.randint(-8, 9, shape, device="cuda").float() for shape in shapes(*size))
            if not torch.equal(model(A, B), formula(A.double(), B.double()).float()):
                wrong.append(f"{precision} {size}")
    return wrong


def check_views():
    """Operands that are views: transposed, sliced, reversed in storage, broadcast."""
    wrong = []
    for precision, model in MODELS.items():
        for size in SIZES[1:]:
            A, B = operands(size)
            views = {
                "transposed": [x.mT.contiguous().mT for x in (A, B)],
                "sliced": [torch.randn(*x.shape[:-1], 2 * x.shape[-1] + 3, device="cuda")[..., 3::2] for x in (A, B)],
                "broadcast": [A, B[..., :1, :].expand_as(B)],
                "offset": [torch.randn(x.numel() + 1, device="cuda")[1:].view(x.shape) for x in (A, B)],
                "padded": [torch.randn(*x.shape[:-1], x.shape[-1] + 3, device="cuda")[..., :-3] for x in (A, B)],
            }
            wrong += [f"{precision} {size} {name}: {text}" for name, (a, b) in views.items()
                      for text in values(model, a, b)]
    return wrong


def check_extremes():
    """Inf and NaN; and what fp16 cannot hold: elements of all sizes, outliers, zeros, tiny and huge ones."""
    wrong = []
    for precision, model in MODELS.items():
        A, B = operands(SIZES[2])
        A.view(-1)[7], A.view(-1)[-99], B.view(-1)[12345] = float("inf"), float("nan"), float("-inf")
        C, exact = model(A, B), formula(A.double(), B.double())
        if not torch.equal(C.isnan(), exact.isnan()) or not torch.equal(C.isinf(), exact.isinf()):
            wrong.append(f"{precision}: Inf and NaN are not where they should be")
        finite = exact.isfinite()
        magnitudes = formula(*(x.nan_to_num(0, 0, 0).double().abs() for x in (A, B)))
        if beyond(C[finite], exact[finite], magnitudes[finite], SIZES[2][2]) > 1:
            wrong.append(f"{precision}: other elements suffer from Inf and NaN")
        changes = {
            "of all sizes": lambda x: x.mul_(10.0 ** torch.randint(-12, 12, x.shape, device="cuda")),
            "outliers": lambda x: x.view(-1)[::100003].mul_(1e4),
            "sparse": lambda x: x.mul_(torch.rand_like(x) < 0.01),
            "zero rows": lambda x: x[..., ::3, :].zero_(),
            "tiny": lambda x: x.mul_(1e-17),
            "huge": lambda x: x.mul_(1e17),
            "tiny rows": lambda x: x[..., ::5, :].mul_(1e-15),
            "huge columns": lambda x: x[..., ::7].mul_(1e15),
        }
        for name, change in changes.items():
            for which in ((0,), (0, 1)) if name not in ("tiny", "huge") else ((0, 1),):
                both = operands(SIZES[2])
                for i in which:
                    change(both[i])
                wrong += [f"{precision} {name} {which}: {text}" for text in values(model, *both)]
    return wrong


def check_empty():
    wrong = []
    for size in ((0, 5, 7), (5, 0, 7), (5, 7, 0)):
        A, B = operands(size)
        C = MODELS["fp32"](A, B)
        if C.shape != formula(A, B).shape or C.any():
            wrong.append(str(size))
    return wrong


def check_cpu_tensors():
    """They are moved to the GPU; the gradient comes back to where the tensor is."""
    A, B = operands(SIZES[1])
    a, b = A.cpu().requires_grad_(), B.cpu()
    C, both = MODELS["fp32"](a, b), MODELS["fp32"](A, b)
    C.sum().backward()
    expected = MODELS["fp32"](A, B)
    right = C.is_cuda and torch.equal(C, expected) and torch.equal(both, expected)
    right = right and a.grad.shape == a.shape and not a.grad.is_cuda
    return [] if right else ["another result than from the GPU's tensors"]


def check_bad_input():
    A, B = operands(SIZES[0])
    inner = {3: 1, 17: 1, 18: 1}.get(NUMBER, 0)
    cases = {
        "inner dimensions": (lambda: MODELS["fp32"](A, torch.cat([B, B], inner)), RuntimeError,
                             "A must have as many .*, but they have shapes"),
        "float64": (lambda: MODELS["fp32"](A.double(), B), RuntimeError, "A must be float32, but is Double"),
        "half": (lambda: MODELS["ieee"](A, B.half()), RuntimeError, "B must be float32, but is Half"),
        "dimensions of A": (lambda: MODELS["fp32"](A.flatten(), B), RuntimeError, "but they have shapes"),
        "dimensions of B": (lambda: MODELS["fp32"](A, B[0]), RuntimeError, "but they have shapes"),
        "list": (lambda: MODELS["fp32"]([1.0], B), TypeError, "must be tensors, not list"),
        "sparse": (lambda: MODELS["fp32"](A, B.to_sparse()), RuntimeError, "B must be an ordinary"),
        "meta": (lambda: MODELS["fp32"](A, B.to("meta")), RuntimeError, "B must be on a GPU, but is on meta"),
        "precision": (lambda: ModelNew(precision="tf32"), ValueError, 'precision must be "fp32" or "ieee"'),
    }
    wrong = []
    for name, (call, kind, words) in cases.items():
        try:
            call()
            wrong.append(f"{name}: accepted")
        except Exception as error:
            if not isinstance(error, kind) or not re.search(words, str(error)):
                wrong.append(f"{name}: {type(error).__name__}: {error}")
    return wrong


def check_stream():
    """The current stream is used, and the call returns while work before it is still running."""
    wrong = []
    for precision, model in MODELS.items():
        A, B = operands(SIZES[2])
        after = A.clone()
        expected = model(after, B)
        A.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(1_000_000_000)
            slept = torch.cuda.Event()
            slept.record()
            A.copy_(after)
            C = model(A, B)
            if slept.query():
                wrong.append(f"{precision}: the call waited for the GPU")
            torch.cuda.current_stream().synchronize()
        if not torch.equal(C, expected):
            wrong.append(f"{precision}: not in the order of the current stream")
    return wrong


def check_graph():
    A, B = operands(SIZES[2])
    model = MODELS["fp32"]
    model(A, B)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        C = model(A, B)
    for x in (A, B):
        x.normal_()
    graph.replay()
    return [] if torch.equal(C, model(A, B)) else ["the graph's result is another than the call's"]


def check_repeatable():
    A, B = operands(SIZES[2])
    return [precision for precision, model in MODELS.items() if not torch.equal(model(A, B), model(A, B))]


def launched(calls):
    """The kernels that calls() launches, as the profiler saw them: (name, threads of a block)."""
    from torch.profiler import ProfilerActivity, profile

    calls()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        calls()
        torch.cuda.synchronize()
    trace = PATH.parent / f"{PATH.stem}.trace.json"
    profiler.export_chrome_trace(str(trace))
    kernels = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "kernel"]
    return [(event["name"], math.prod(event["args"]["block"])) for event in kernels]


def check_kernels():
    """What runs is the module's own, by name; module 18's kernels have 128 threads to the block, forward and backward,
    small and large, in both precisions."""
    wrong, seen = [], {}
    for precision, model in MODELS.items():
        for size in (SIZES[0], SIZES[2]):
            A, B = operands(size)
            A.requires_grad_(), B.requires_grad_()
            G = torch.randn_like(formula(A, B))
            kernels = launched(lambda: torch.autograd.grad(model(A, B), (A, B), G))
            seen[precision, size] = kernels
            strangers = [name for name, _ in kernels
                         if not name.startswith(("portable_", "multiply_", "pack_")) and "tri" not in name]
            if strangers or not kernels:
                wrong.append(f"{precision} {size}: {strangers or 'no kernel was seen'}")
            if NUMBER == 18:
                wrong += [f"{precision} {size}: {name} has {threads} threads" for name, threads in kernels
                          if threads != 128]
    split = any(name.startswith("multiply_") for name, _ in seen["fp32", SIZES[2]])
    if split != SPLITS:
        wrong.append(f"the Hopper kernel was {'' if split else 'not '}used: {seen['fp32', SIZES[2]]}")
    if any(name.startswith("multiply_") for name, _ in seen["ieee", SIZES[2]]):
        wrong.append("ieee went to the Hopper kernel")
    return wrong


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    right = True
    for check in CHECKS:
        try:
            wrong = check()
        except Exception:
            wrong = [traceback.format_exc()]
        right = right and not wrong
        print(json.dumps({"check": check.__name__[6:], "wrong": wrong}), flush=True)
    sys.exit(not right)
