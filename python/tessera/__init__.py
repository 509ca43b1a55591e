"""Tessera: float32 matrix multiplication for NumPy arrays and PyTorch tensors.

    import tessera
    c = tessera.matmul(a, b)      # torch.matmul's semantics, on torch tensors (CPU, CUDA) or NumPy arrays
    tessera.enable()              # from now on torch's float32 products run on Tessera, backward passes included

On a GPU with tensor cores operands are split into fp16 components, and products are accurate to float32 (precision
"fp32", the default). "ieee" is plain IEEE float32, "tf32" as accurate as TF32.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, ContextManager, Optional, Sequence, TypeVar, Union

import numpy as np

from tessera_autoload import is_set

from . import _library, _numpy

if TYPE_CHECKING:
    import torch

    from ._torch import Stats

    Array = TypeVar("Array", np.ndarray, torch.Tensor)
    Packed = Any

__all__ = ["addmm", "baddbmm", "bmm", "disable", "enable", "enabled", "info", "linear", "matmul", "pack", "reset_stats",
           "scaled_dot_product_attention", "stats"]
__version__ = _library.version()


def _module_for(*arguments):
    """The implementation for these arguments: NumPy's where one is of NumPy, else torch's."""
    for argument in arguments:
        if isinstance(argument, (np.ndarray, _numpy.Packed)):
            return _numpy
    return _torch_module()


def _torch_module(needs: str = "arguments must be numpy.ndarray: torch tensors need"):
    try:
        from . import _torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise TypeError(f"{needs} PyTorch, which is not installed") from None
    return _torch


# ---- Products -------------------------------------------------------------------------------------------------------

def matmul(a: "Union[Array, Packed]", b: "Union[Array, Packed]", *, precision: str = "fp32",
           out: "Optional[Array]" = None) -> "Array":
    """The matrix product of two float32 arrays, with the semantics of torch.matmul.

    1-D arguments are vectors, leading dimensions broadcast, and any strides are taken as they are: transposes, slices
    and expanded views are not copied. One argument may be a matrix from `pack`. On torch tensors it is differentiable,
    and runs on the current CUDA stream without synchronising.

    precision: "fp32" (float32-accurate, on tensor cores where there are any), "ieee" (IEEE float32 arithmetic), "tf32".
    out: where to write the result; it must have the result's shape and may not overlap an argument.
    """
    return _module_for(a, b).matmul(a, b, precision=precision, out=out)


def bmm(a: "Array", b: "Array", *, precision: str = "fp32", out: "Optional[Array]" = None) -> "Array":
    """Products of two batches: a (batch, m, k), b (batch, k, n), as torch.bmm."""
    return _module_for(a, b).bmm(a, b, precision=precision, out=out)


def addmm(input: "Array", a: "Array", b: "Array", *, beta: float = 1, alpha: float = 1, precision: str = "fp32",
          out: "Optional[Array]" = None) -> "Array":
    """beta * input + alpha * a @ b for matrices, as torch.addmm; input broadcasts and is added in the same kernel. With
    beta = 0 it is not read. out may be input itself."""
    return _module_for(input, a, b).addmm(input, a, b, beta=beta, alpha=alpha, precision=precision, out=out)


def baddbmm(input: "Array", a: "Array", b: "Array", *, beta: float = 1, alpha: float = 1, precision: str = "fp32",
            out: "Optional[Array]" = None) -> "Array":
    """addmm for batches of matrices, as torch.baddbmm."""
    return _module_for(input, a, b).baddbmm(input, a, b, beta=beta, alpha=alpha, precision=precision, out=out)


def linear(input: "Array", weight: "Union[Array, Packed]", bias: "Optional[Array]" = None, *,
           precision: str = "fp32") -> "Array":
    """input @ weight.T + bias, as torch.nn.functional.linear. weight, (out_features, in_features), may be packed."""
    return _module_for(input, weight).linear(input, weight, bias, precision=precision)


def pack(matrix: "Array") -> "Packed":
    """A matrix prepared for use in many products, as either argument of `matmul` or the weight of `linear`.

    What is prepared depends on the use, so it happens at the first one. A torch tensor may be written to: it is then
    prepared again. A NumPy array must not change."""
    return _module_for(matrix).pack(matrix)


# ---- Attention ------------------------------------------------------------------------------------------------------

def scaled_dot_product_attention(query: "torch.Tensor", key: "torch.Tensor", value: "torch.Tensor",
                                 attn_mask: "Optional[torch.Tensor]" = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, *, scale: Optional[float] = None,
                                 enable_gqa: bool = False) -> "torch.Tensor":
    """softmax(scale * query @ key.T + mask) @ value, with the semantics of torch's function of this name.

    float32 tensors on the CPU or on CUDA, of any strides, are attended to by Tessera, without writing out the weights;
    it is differentiable once. Other types, values of another dimension than the queries, dimensions over 256, masks
    that need a gradient, and dropout in a CUDA graph are left to torch."""
    return _torch_module("tessera.scaled_dot_product_attention needs").scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


# ---- The drop-in for torch ------------------------------------------------------------------------------------------

def enable(precision: str = "fp32", devices: Union[str, Sequence[str]] = ("cuda",), always: bool = False) -> None:
    """From now on torch's float32 products (aten::mm, addmm, bmm, baddbmm, and so nn.Linear, einsum and their backward
    passes) on these devices ("cuda", "cpu"), and scaled_dot_product_attention on CUDA, run on Tessera, in all threads.

    Products of other types are left to torch, and so are those that torch is expected to run faster, unless `always`.
    May be called again to change the settings. The environment variable TESSERA_ENABLE=1 calls it when tessera is
    imported, and from torch 2.5 on when torch is; TESSERA_PRECISION and TESSERA_DEVICES set its arguments."""
    _torch_module("tessera.enable needs").enable(precision, devices, always)


def disable() -> None:
    """All products are torch's again."""
    if f"{__name__}._torch" in sys.modules:
        _torch_module().disable()


def enabled(precision: str = "fp32", devices: Union[str, Sequence[str]] = ("cuda",),
            always: bool = False) -> ContextManager[None]:
    """`with tessera.enabled(): ...` enables it inside the block and restores the former setting afterwards. The setting
    belongs to the process, not to the thread, because backward passes run in threads of their own."""
    return _torch_module("tessera.enabled needs").enabled(precision, devices, always)


def stats() -> "Stats":
    """What the drop-in did since the start or reset_stats(): how many products and attentions it took, by shape and
    precision, and how many it left to torch, by reason. Printable."""
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
        enable(os.environ.get("TESSERA_PRECISION", "fp32").strip(), devices)
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        warnings.warn(f"TESSERA_ENABLE is set, but tessera cannot be enabled: {error}", RuntimeWarning, stacklevel=2)


_enable_by_environment()
