"""Products of torch tensors: loads the operator (csrc/), and the switch that runs torch's own products on Tessera."""

from __future__ import annotations

import contextlib
import warnings
from typing import NamedTuple, Optional, Sequence, Union

import torch

from . import _attention, _build, _library
from ._locks import Lock
from ._stats import AttentionCount, ProductCount, Stats

_build.load()
_attention.register()
_ops = torch.ops.tessera

DEVICES = ("cpu", "cuda")


# ---- Products -------------------------------------------------------------------------------------------------------

# `casting` is for NumPy arrays; tessera/__init__.py has refused it for tensors. Passing a precision, or choosing among
# an operator's overloads, takes a microsecond each.

class Packed(_library.Packed):
    """A matrix with the panels made of it for each side, orientation and precision it has been used with; tessera.pack
    makes it. Writing to the tensor is noticed, and the panels are made again."""

    def __init__(self, matrix: torch.Tensor):
        super().__init__(matrix)
        self._object = torch.classes.tessera.Packed(matrix)

    def __reduce__(self):
        return type(self), (self.matrix,)  # a copy is packed anew, of its own copy of the matrix

    def __repr__(self) -> str:
        return f"tessera.Packed(shape={tuple(self.shape)}, {self.matrix.device})"


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor or a numpy.ndarray, not {type(value).__name__}")


_matmul, _matmul_out, _bmm = _ops.matmul.default, _ops.matmul.out, _ops.bmm.default
_addmm, _baddbmm, _linear, _gemm_out = _ops.addmm.default, _ops.baddbmm.default, _ops.linear.default, _ops.gemm.out


def _named(precision: str) -> dict:
    return {} if precision == "fp32" else {"precision": precision}


def _untraced(function):
    """torch.compile breaks its graph around the function: it cannot look into packed matrices. These are the marks that
    torch._dynamo.skip sets; importing torch._dynamo takes over a second, which every process would pay."""
    try:
        from torch._C._dynamo.eval_frame import skip_code
    except ImportError:  # before torch 2.0
        return function
    skip_code(function.__code__)
    function._torchdynamo_disable = True
    return function


@_untraced
def _matmul_packed(a, b, precision: str, out) -> torch.Tensor:
    if out is not None:
        raise TypeError("matmul(): out is not supported with a packed matrix")
    if isinstance(a, Packed):
        _check_tensor("b", b)
        return _ops.packed_matmul(a._object, b, precision=precision)
    _check_tensor("a", a)
    return _ops.matmul_packed(a, b._object, False, None, precision=precision)


def matmul(a, b, *, precision: str = "fp32", out: Optional[torch.Tensor] = None, casting=None) -> torch.Tensor:
    if isinstance(a, Packed) or isinstance(b, Packed):
        return _matmul_packed(a, b, precision, out)
    if out is None:
        return _matmul(a, b, **_named(precision))
    _check_tensor("out", out)
    _matmul_out(a, b, out=out, **_named(precision))
    return out


def _gemm(dims: int, input, a, b, beta, alpha, precision, out) -> torch.Tensor:
    for name, value in (("a", a), ("b", b), ("out", out)):
        _check_tensor(name, value)
        if name != "out" and value.dim() != dims:
            raise RuntimeError(f"{name} must be a {dims}D tensor, but it is {value.dim()}D")
    _gemm_out(input, a, b, beta=beta, alpha=alpha, out=out, **_named(precision))
    return out


def bmm(a, b, *, precision: str = "fp32", out=None, casting=None) -> torch.Tensor:
    if out is not None:
        return _gemm(3, None, a, b, 0, 1, precision, out)
    return _bmm(a, b, **_named(precision))


def addmm(input, a, b, *, beta=1, alpha=1, precision: str = "fp32", out=None, casting=None) -> torch.Tensor:
    if out is not None:
        return _gemm(2, input, a, b, beta, alpha, precision, out)
    return _addmm(input, a, b, beta=beta, alpha=alpha, **_named(precision))


def baddbmm(input, a, b, *, beta=1, alpha=1, precision: str = "fp32", out=None, casting=None) -> torch.Tensor:
    if out is not None:
        return _gemm(3, input, a, b, beta, alpha, precision, out)
    return _baddbmm(input, a, b, beta=beta, alpha=alpha, **_named(precision))


@_untraced
def _linear_packed(input, weight, bias, precision: str) -> torch.Tensor:
    _check_tensor("input", input)
    return _ops.matmul_packed(input, weight._object, True, bias, precision=precision)


def linear(input, weight, bias=None, *, precision: str = "fp32", casting=None) -> torch.Tensor:
    if isinstance(weight, Packed):
        return _linear_packed(input, weight, bias, precision)
    return _linear(input, weight, bias, **_named(precision))


def pack(matrix: torch.Tensor) -> Packed:
    return Packed(matrix)


# ---- Attention ------------------------------------------------------------------------------------------------------

def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p: float = 0.0, is_causal: bool = False, *,
                                 scale: Optional[float] = None, enable_gqa: bool = False) -> torch.Tensor:
    if attn_mask is not None and torch.overrides.has_torch_function((attn_mask,)):
        # A mask that is no plain tensor, as torch.nn.attention.bias has them: only torch knows what it means.
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal,
                                                                scale=scale, enable_gqa=enable_gqa)
    return _ops.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                                             enable_gqa=enable_gqa)


# ---- vmap -----------------------------------------------------------------------------------------------------------

def _gemm_vmap(info, in_dims, input, a, b, *, beta=1, alpha=1, precision="fp32"):
    """The mapped dimension becomes one more leading dimension."""
    dims = a.dim() - (in_dims[1] is not None)

    def lead(tensor, dim):
        if dim is None:
            return tensor.unsqueeze(0).expand(info.batch_size, *tensor.shape)
        return tensor.movedim(dim, 0)

    def lead_broadcast(tensor, dim):
        tensor = lead(tensor, dim)
        return tensor.reshape(tensor.shape[0], *(1,) * (dims + 1 - tensor.dim()), *tensor.shape[1:])

    added = None if input is None else lead_broadcast(input, in_dims[0])
    product = _ops.gemm(added, lead(a, in_dims[1]), lead(b, in_dims[2]), beta=beta, alpha=alpha, precision=precision)
    return product, 0


if hasattr(torch.library, "register_vmap"):
    torch.library.register_vmap("tessera::gemm", _gemm_vmap)


# ---- The drop-in ----------------------------------------------------------------------------------------------------

_REASONS = {"dtype": "not float32", "layout": "not plain strided tensors of one device",
            "shape": "empty or unusual shape or out", "faster": "torch is faster", "impossible": "not possible here"}


def _devices(devices: Union[str, Sequence[str]]) -> tuple[str, ...]:
    chosen = (devices,) if isinstance(devices, str) else tuple(devices)
    for device in chosen:
        if device not in DEVICES:
            raise ValueError(f"devices must be among 'cpu' and 'cuda', not {device!r}")
    return chosen


def _prepare_cuda(precision: str) -> None:
    """Sets the library up on the current GPU now if torch already runs on it: during a capture is too late."""
    if torch.cuda.is_available() and torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        one = torch.ones(1, 1, device="cuda")
        _matmul(one, one, precision=precision)


class _Setting(NamedTuple):
    precision: str
    always: bool


_lock = Lock()
_lasting: dict[str, Optional[_Setting]] = dict.fromkeys(DEVICES)  # by enable() and disable()
_blocks: list[dict[str, _Setting]] = []  # by enabled(), those that are active, the last of which counts


def _apply() -> None:
    """Under the lock: switches each device to what now holds for it."""
    for device in DEVICES:
        setting = next((block[device] for block in reversed(_blocks) if device in block), _lasting[device])
        precision, always = setting if setting else ("fp32", False)
        _ops.switch(device, setting is not None, precision, always)


def _why_no_gpu() -> str:
    """Why nothing can be taken on CUDA here, as a clause; empty where it can."""
    if not _library.LIBRARY.tsr_has_cuda():
        return "this build of Tessera has no CUDA engine"
    return "" if torch.cuda.is_available() else "torch sees no CUDA device here"


ON_THE_CPU = 'tessera.enable(devices=("cpu", "cuda")) takes those on the CPU, too'
_has_warned = False


def _warn_without_gpu() -> None:
    """Once: a program that is written for a GPU enables it on other machines, too."""
    global _has_warned
    why = "" if _has_warned else _why_no_gpu()
    if why:
        _has_warned = True
        warnings.warn(f"tessera is enabled for products on CUDA, but {why}: it will take none. {ON_THE_CPU}",
                      RuntimeWarning, stacklevel=5)


def _settings(precision: str, devices, always: bool) -> dict[str, _Setting]:
    chosen = _devices(devices)
    _library.options_named(precision)
    if "cuda" in chosen:
        _prepare_cuda(precision)
    if chosen == ("cuda",) and not _lasting["cpu"]:
        _warn_without_gpu()
    return dict.fromkeys(chosen, _Setting(precision, bool(always) or precision.endswith(_library.BATCH_INVARIANT)))


def enable(precision: str, devices, always: bool) -> None:
    settings = _settings(precision, devices, always)
    with _lock.held:
        former = dict(_lasting)
        try:
            _lasting.update(settings)
            _apply()
        except BaseException:
            _lasting.update(former)
            raise


def disable() -> None:
    with _lock.held:
        _lasting.update(dict.fromkeys(DEVICES))
        _apply()


@contextlib.contextmanager
def enabled(precision: str, devices, always: bool):
    settings = _settings(precision, devices, always)
    try:
        with _lock.held:
            _blocks.append(settings)
            _apply()
        yield
    finally:
        with _lock.held:
            _blocks[:] = [block for block in _blocks if block is not settings]
            _apply()


def _reasons(lines: list[str]) -> dict[str, int]:
    return {_REASONS[reason]: int(count) for reason, count in (line.split() for line in lines)}


def _advice(passed: dict[str, int]) -> str:
    """Why nothing has been taken, and what would be."""
    with _lock.held:
        on = [device for device in DEVICES if _lasting[device] or any(device in block for block in _blocks)]
    if not on:
        return "tessera is not enabled: tessera.enable() takes products on CUDA, devices=(\"cpu\", \"cuda\") all"
    if on == ["cuda"] and _why_no_gpu():
        return f"tessera is enabled for products on CUDA, but {_why_no_gpu()}. {ON_THE_CPU}"
    if passed[_REASONS["faster"]]:
        return "always=True takes those that torch runs faster, too"
    return "" if any(passed.values()) else f"there was no product on {' or '.join(on)}"


def stats() -> Stats:
    products, attention = [], []
    for line in _ops.taken():
        device, precision, *numbers, gain = line.split()
        batch, m, n, k, calls = map(int, numbers)
        products.append(ProductCount(device, precision, batch, m, n, k, calls, float(gain) or None))
    for line in _ops.attention_taken():
        device, precision, direction, *numbers = line.split()
        attention.append(AttentionCount(device, precision, direction, *map(int, numbers)))
    products.sort(key=lambda product: -product.calls)
    attention.sort(key=lambda kind: -kind.calls)
    passed = _reasons(_ops.passed())
    return Stats(sum(product.calls for product in products), passed, products,
                 sum(kind.calls for kind in attention), _reasons(_ops.attention_passed()), attention,
                 "" if products or attention else _advice(passed))


def reset_stats() -> None:
    _ops.forget()
