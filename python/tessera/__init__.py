"""Tessera: float32 matrix multiplication for NumPy arrays and PyTorch tensors.

    import tessera
    c = tessera.matmul(a, b)      # torch.matmul's semantics, on torch tensors (CPU, CUDA) or NumPy arrays
    tessera.enable()              # from now on torch's float32 products run on Tessera, backward passes included

On a GPU with tensor cores operands are split into fp16 components, and products are accurate to float32 (precision
"fp32", the default). "ieee" is plain IEEE float32, "tf32" as accurate as TF32.
"""

import os
import sys
import warnings
from typing import TYPE_CHECKING, ContextManager, Literal, Optional, Sequence, TypeVar, Union

import numpy as np

from tessera_autoload import is_set

from . import _library, _numpy
from ._library import Packed
from ._stats import Stats

if TYPE_CHECKING:
    import torch

__all__ = ["Packed", "Stats", "addmm", "baddbmm", "bmm", "disable", "dot", "einsum", "enable", "enabled",
           "get_num_threads", "info", "linear", "matmul", "pack", "reset_stats", "scaled_dot_product_attention",
           "set_num_threads", "stats", "tensordot"]
__version__ = _library.version()

# Annotations are evaluated: help() shows them as they are, and typing.get_type_hints needs no torch.
Array = TypeVar("Array", np.ndarray, "torch.Tensor")
Tensor = TypeVar("Tensor", bound="torch.Tensor")
Precision = Literal["fp32", "ieee", "tf32"]
Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
Device = Literal["cpu", "cuda"]


def _is_tensor(argument) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(argument, torch.Tensor)


def _numpy_module(names, arguments):
    """For arguments with at least one of NumPy's; the error names one of torch's."""
    for name, argument in zip(names, arguments):
        if _is_tensor(argument) or isinstance(argument, Packed) and not isinstance(argument, _numpy.Packed):
            array = next(n for n, x in zip(names, arguments) if isinstance(x, (np.ndarray, _numpy.Packed)))
            raise TypeError(f"{array} is NumPy's, but {name} is torch's: convert one of them, with "
                            f"torch.from_numpy({array}) or {name}.numpy()")
    return _numpy


def _check_tensors(torch, names, arguments) -> None:
    """Before the operator is loaded: that may take a minute, to compile it."""
    for name, argument in zip(names, arguments):
        if not isinstance(argument, (torch.Tensor, Packed)):
            raise TypeError(f"{name} must be a torch.Tensor or a numpy.ndarray, not {type(argument).__name__}")


def _chosen_module(names, arguments):
    for argument in arguments:
        if isinstance(argument, (np.ndarray, _numpy.Packed)):
            return _numpy_module(names, arguments)
    torch = sys.modules.get("torch")
    for argument in arguments if torch else ():
        if isinstance(argument, (torch.Tensor, Packed)):  # type: ignore[union-attr]
            _check_tensors(torch, names, arguments)
            return _torch_module()
    return _numpy


_modules: dict = {}  # by the arguments' types, which decide it: looking takes as long as a small product


def _module_for(casting, names, *arguments):
    """The implementation for these arguments: torch's for tensors, else NumPy's, which converts lists and the like."""
    types = tuple(map(type, arguments))
    module = _modules.get(types)
    if module is None:
        module = _chosen_module(names, arguments)
        if len(_modules) < 100:  # a program may make classes without end
            _modules[types] = module
    if casting != "equiv" and module is not _numpy:
        raise TypeError("casting is for NumPy arrays: convert a tensor with .float()")
    return module


def _torch_module(needs: str = "torch tensors need"):
    try:
        from . import _torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise TypeError(f"{needs} PyTorch, which is not installed") from None
    return _torch


# ---- Products -------------------------------------------------------------------------------------------------------

_ALWAYS_INVARIANT = os.environ.get("TESSERA_BATCH_INVARIANT") == "1"


def _arithmetic(precision: str, batch_invariant: bool) -> str:
    """Both in one word, which goes all the way down to the library's contexts."""
    if batch_invariant or _ALWAYS_INVARIANT:
        return f"{precision}{_library.BATCH_INVARIANT}"
    return precision


def matmul(a: Union[Array, Packed], b: Union[Array, Packed], *, precision: Precision = "fp32",
           out: Optional[Array] = None, casting: Casting = "equiv",
           batch_invariant: bool = False) -> Array:
    """The matrix product of two float32 arrays, with the semantics of torch.matmul.

    1-D arguments are vectors, leading dimensions broadcast, and any strides are taken as they are: transposes, slices
    and expanded views are not copied. One argument may be a matrix from `pack`. On torch tensors it is differentiable,
    and runs on the current CUDA stream without synchronising.

    precision: "fp32" is float32-accurate, on tensor cores where there are any; "ieee" is IEEE float32 arithmetic;
    "tf32" is as accurate as TF32.
    out: where to write the result; it must have the result's shape and may not overlap an argument.
    casting: which NumPy arrays of other types are converted to float32, by numpy.can_cast's rules.
    batch_invariant: a row of the result has the same bits however many other rows and products are computed with it;
    always so if TESSERA_BATCH_INVARIANT is 1 in the environment when tessera is imported.
    """
    module = _module_for(casting, ("a", "b"), a, b)
    return module.matmul(a, b, precision=_arithmetic(precision, batch_invariant), out=out, casting=casting)


def bmm(a: Array, b: Array, *, precision: Precision = "fp32", out: Optional[Array] = None,
        casting: Casting = "equiv", batch_invariant: bool = False) -> Array:
    """Products of two batches: a (batch, m, k), b (batch, k, n), as torch.bmm."""
    module = _module_for(casting, ("a", "b"), a, b)
    return module.bmm(a, b, precision=_arithmetic(precision, batch_invariant), out=out, casting=casting)


def addmm(input: Array, a: Array, b: Array, *, beta: float = 1, alpha: float = 1, precision: Precision = "fp32",
          out: Optional[Array] = None, casting: Casting = "equiv", batch_invariant: bool = False) -> Array:
    """beta * input + alpha * a @ b for matrices, as torch.addmm; input broadcasts and is added in the same kernel. With
    beta = 0 it is not read. out may be input itself."""
    module = _module_for(casting, ("input", "a", "b"), input, a, b)
    return module.addmm(input, a, b, beta=beta, alpha=alpha, precision=_arithmetic(precision, batch_invariant), out=out,
                        casting=casting)


def baddbmm(input: Array, a: Array, b: Array, *, beta: float = 1, alpha: float = 1, precision: Precision = "fp32",
            out: Optional[Array] = None, casting: Casting = "equiv", batch_invariant: bool = False) -> Array:
    """addmm for batches of matrices, as torch.baddbmm."""
    module = _module_for(casting, ("input", "a", "b"), input, a, b)
    return module.baddbmm(input, a, b, beta=beta, alpha=alpha, precision=_arithmetic(precision, batch_invariant),
                          out=out, casting=casting)


def linear(input: Array, weight: Union[Array, Packed], bias: Optional[Array] = None, *,
           precision: Precision = "fp32", casting: Casting = "equiv", batch_invariant: bool = False) -> Array:
    """input @ weight.T + bias, as torch.nn.functional.linear. weight, (out_features, in_features), may be packed."""
    names, arguments = ("input", "weight", "bias"), (input, weight) if bias is None else (input, weight, bias)
    module = _module_for(casting, names, *arguments)
    return module.linear(input, weight, bias, precision=_arithmetic(precision, batch_invariant),
                         casting=casting)


def pack(matrix: Array) -> Packed:
    """A matrix prepared for use in many products, as either argument of `matmul` or the weight of `linear`.

    What is prepared depends on the use, so it happens at the first one. A torch tensor may be written to: it is then
    prepared again. A NumPy array must not change."""
    return _module_for("equiv", ("matrix",), matrix).pack(matrix)


# ---- More products of NumPy arrays ----------------------------------------------------------------------------------

def _refuse_tensors(function: str, *arguments) -> None:
    if any(_is_tensor(argument) for argument in arguments):
        raise TypeError(f"tessera.{function} is for NumPy arrays: for tensors use torch.{function}, whose products "
                        "tessera.enable() takes")


def dot(a: np.ndarray, b: np.ndarray, *, precision: Precision = "fp32", casting: Casting = "equiv") -> np.ndarray:
    """As numpy.dot: sums over the last axis of a and the last but one of b."""
    _refuse_tensors("dot", a, b)
    return _numpy.dot(a, b, precision=precision, casting=casting)


def tensordot(a: np.ndarray, b: np.ndarray, axes: Union[int, Sequence] = 2, *, precision: Precision = "fp32",
              casting: Casting = "equiv") -> np.ndarray:
    """As numpy.tensordot: sums over the last `axes` of a and the first of b, or over pairs of axes."""
    _refuse_tensors("tensordot", a, b)
    return _numpy.tensordot(a, b, axes, precision=precision, casting=casting)


def einsum(subscripts: str, *operands: np.ndarray, precision: Precision = "fp32",
           casting: Casting = "equiv") -> np.ndarray:
    """As numpy.einsum: operands are contracted in pairs, each pair by one product of matrices or a batch of them."""
    _refuse_tensors("einsum", *operands)
    return _numpy.einsum(subscripts, *operands, precision=precision, casting=casting)


# ---- Threads --------------------------------------------------------------------------------------------------------

def set_num_threads(threads: int) -> None:
    """How many threads products of NumPy arrays use, in all Python threads. Tensors use torch's."""
    _numpy.set_num_threads(threads)


def get_num_threads() -> int:
    """The number for NumPy arrays: what was set, else TESSERA_NUM_THREADS, else OMP_NUM_THREADS, else all cores."""
    return _numpy.get_num_threads()


# ---- Attention ------------------------------------------------------------------------------------------------------

def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, *, scale: Optional[float] = None,
                                 enable_gqa: bool = False) -> Tensor:
    """softmax(scale * query @ key.T + mask) @ value, with the semantics of torch's function of this name.

    float32 tensors on the CPU or on CUDA, of any strides, are attended to by Tessera, without writing out the weights;
    it is differentiable once. Other types, values of another dimension than the queries, dimensions over 256, masks
    that need a gradient, and dropout in a CUDA graph are left to torch."""
    return _torch_module("tessera.scaled_dot_product_attention needs").scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


# ---- The drop-in for torch ------------------------------------------------------------------------------------------

def enable(precision: Precision = "fp32", devices: Union[Device, Sequence[Device]] = ("cuda",),
           always: bool = False, batch_invariant: bool = False) -> None:
    """From now on torch's float32 products (aten::mm, addmm, bmm, baddbmm, and so nn.Linear, einsum and their backward
    passes) on these devices ("cuda", "cpu"), and scaled_dot_product_attention on CUDA, run on Tessera, in all threads.

    Products of other types are left to torch, and so are those that torch is expected to run faster, unless `always` or
    `batch_invariant`, as in matmul: which of the two runs them must not depend on the batch then. May be called again
    to change the settings. It warns once if there is no GPU for it. The environment variable TESSERA_ENABLE=1 calls it
    when tessera is imported, and from torch 2.5 on when torch is; TESSERA_PRECISION and TESSERA_DEVICES set its
    arguments."""
    _torch_module("tessera.enable needs").enable(_arithmetic(precision, batch_invariant), devices, always)


def disable() -> None:
    """All products are torch's again."""
    if f"{__name__}._torch" in sys.modules:
        _torch_module().disable()


def enabled(precision: Precision = "fp32", devices: Union[Device, Sequence[Device]] = ("cuda",),
            always: bool = False, batch_invariant: bool = False) -> ContextManager[None]:
    """`with tessera.enabled(): ...` enables it inside the block and restores the former setting afterwards. The setting
    belongs to the process, not to the thread, because backward passes run in threads of their own."""
    return _torch_module("tessera.enabled needs").enabled(_arithmetic(precision, batch_invariant), devices, always)


def stats() -> Stats:
    """What the drop-in did since the start or reset_stats(): how many products and attentions it took, by shape and
    precision, and how many it left to torch, by reason; if it took nothing, why, and what would. Printable."""
    return _torch_module("tessera.stats needs").stats()


def reset_stats() -> None:
    """Starts counting anew."""
    _torch_module("tessera.reset_stats needs").reset_stats()


# ---- What is here ---------------------------------------------------------------------------------------------------

def info() -> str:
    """What this machine and build offer, as text."""
    lines = [*_library.info().splitlines(), f"library: {_library.PATH}",
             f"python: {sys.version.split()[0]}, numpy {np.__version__}"]
    try:
        import torch

        from . import _build
        cuda = f", CUDA {torch.version.cuda}" if torch.version.cuda else ", no CUDA"
        lines.append(f"torch: {torch.__version__}{cuda}")
        lines.append(f"operator: {_build.state()}")
    except ModuleNotFoundError:
        lines.append("torch: not installed")
    return "\n".join(lines)


def _enable_by_environment() -> None:
    """A program that does not know about tessera goes on without it."""
    if not is_set(os.environ):
        return
    try:
        devices = [device.strip() for device in os.environ.get("TESSERA_DEVICES", "cuda").split(",")]
        enable(os.environ.get("TESSERA_PRECISION", "fp32").strip(), devices)  # type: ignore[arg-type]
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        warnings.warn(f"TESSERA_ENABLE is set, but tessera cannot be enabled: {error}", RuntimeWarning, stacklevel=2)


_enable_by_environment()
