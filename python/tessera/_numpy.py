"""Products of NumPy arrays on the CPU, through ctypes. Any strides are taken as they are; nothing is copied."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, Optional, Sequence

import numpy as np

try:
    from numpy.exceptions import TooHardError
except ImportError:  # before NumPy 1.25
    from numpy import TooHardError  # type: ignore[attr-defined, no-redef]

from ._library import LEFT, LIBRARY, RIGHT, Operand, Options, Result, check, precision_number
from ._locks import Lock

_contexts: dict[int, ctypes.c_void_p] = {}
_contexts_lock = Lock()


def _context(precision: str) -> ctypes.c_void_p:
    """One context for each precision, made when first asked for and kept as long as the process."""
    number = precision_number(precision)
    with _contexts_lock.held:
        if number not in _contexts:
            made = ctypes.c_void_p()
            options = Options(device_index=-1, precision=number)
            check(LIBRARY.tsr_context_create(ctypes.byref(made), ctypes.byref(options)))
            _contexts[number] = made
        return _contexts[number]


class Packed:
    """A matrix with the panels made of it for each side and orientation it has been used with; tessera.pack makes it.
    The array must not change while this is in use."""

    def __init__(self, matrix: np.ndarray):
        _check_array("the matrix to pack", matrix)
        if matrix.ndim != 2:
            raise ValueError(f"the matrix to pack must have 2 dimensions, but it has {matrix.ndim}")
        self.matrix = matrix
        self._panels: dict[tuple, ctypes.c_void_p] = {}
        self._lock = Lock()

    @property
    def shape(self) -> tuple:
        return self.matrix.shape

    def panels(self, side: int, operand: Operand, precision: str) -> Optional[int]:
        key = (side, operand.row_stride, operand.col_stride, precision)
        with self._lock.held:
            if key not in self._panels:
                made = ctypes.c_void_p()
                check(LIBRARY.tsr_pack(ctypes.byref(made), _context(precision), side, ctypes.byref(operand), None))
                self._panels[key] = made
            return self._panels[key].value

    def __del__(self):
        for panels in self.__dict__.get("_panels", {}).values():
            LIBRARY.tsr_packed_destroy(panels)

    def __repr__(self) -> str:
        return f"tessera.Packed(shape={self.shape}, numpy)"


def _check_array(name: str, array: object) -> None:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a numpy.ndarray like the others, not {type(array).__name__}")
    if array.dtype != np.float32:
        raise TypeError(f"tessera multiplies float32 arrays, but {name} has dtype {array.dtype}: convert it with "
                        ".astype(numpy.float32), or use numpy.matmul")


def _strides(array: np.ndarray) -> list[int]:
    """In floats. A view of a record array may have others: such a view cannot be taken as it is."""
    if any(stride % 4 for stride in array.strides) or not array.flags.aligned:
        raise ValueError("an array's strides must be multiples of 4 bytes: copy it with numpy.ascontiguousarray")
    return [stride // 4 for stride in array.strides]


def _loops(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[tuple]:
    """Leading dimensions as (size, strides): those that continue each other in every array become one."""
    loops: list[tuple] = []
    for size, *steps in zip(sizes, *strides):
        if size == 1:
            continue
        if loops and all(outer == size * step for outer, step in zip(loops[-1][1], steps)):
            loops[-1] = (loops[-1][0] * size, steps)
        else:
            loops.append((size, steps))
    return loops


def _gemm(a: np.ndarray, b: np.ndarray, s: Optional[np.ndarray], c: np.ndarray, beta: float, alpha: float,
          precision: str, packed: Optional[Packed] = None, side: int = RIGHT) -> None:
    """c = alpha a @ b + beta s, for arrays with the same leading sizes."""
    context = _context(precision)
    if 0 in c.shape:
        return
    arrays = [a, b, c] + ([s] if s is not None else [])
    strides = [_strides(array) for array in arrays]
    loops = _loops(c.shape[:-2], [array_strides[:-2] for array_strides in strides])
    batch, batch_strides = 1, [0] * len(arrays)
    if loops:
        longest = max(range(len(loops)), key=lambda i: loops[i][0])
        batch, batch_strides = loops.pop(longest)
    kinds: list[type] = [Operand, Operand, Result, Operand]
    matrices: list[Any] = [kind(array.ctypes.data, *array.shape[-2:], *array_strides[-2:], batch_stride)
                           for kind, array, array_strides, batch_stride in zip(kinds, arrays, strides, batch_strides)]
    starts = [matrix.data for matrix in matrices]
    if packed is not None:  # one matrix for all products: its strides are 0 in every leading dimension
        matrices[side].packed = packed.panels(side, matrices[side], precision)
    addend = ctypes.byref(matrices[3]) if s is not None else None
    for indices in itertools.product(*(range(size) for size, _ in loops)):
        for i, matrix in enumerate(matrices):
            offset = sum(index * steps[i] for index, (_, steps) in zip(indices, loops))
            matrix.data = (starts[i] or 0) + 4 * offset
        check(LIBRARY.tsr_gemm_add(context, batch, alpha, ctypes.byref(matrices[0]), ctypes.byref(matrices[1]), beta,
                                   addend, ctypes.byref(matrices[2]), None))


def _overlap(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether they share an element; taken for granted where that is too hard to say."""
    try:
        return np.shares_memory(x, y, max_work=10000)  # type: ignore[arg-type]
    except TooHardError:
        return True


def _result(shape: tuple, out: Optional[np.ndarray], *inputs: np.ndarray) -> np.ndarray:
    if out is None:
        return np.empty(shape, np.float32)
    _check_array("out", out)
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, but the product has {shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    if any(_overlap(out, array) for array in inputs if array is not out):
        raise ValueError("out overlaps an argument: the result needs memory of its own")
    return out


def _unpack(a, b):
    """The arrays of two arguments, which of them is packed, and on which side."""
    if isinstance(a, Packed):
        return a.matrix, b, a, LEFT
    if isinstance(b, Packed):
        return a, b.matrix, b, RIGHT
    return a, b, None, RIGHT


def matmul(a, b, *, precision: str = "fp32", out: Optional[np.ndarray] = None) -> np.ndarray:
    a, b, packed, side = _unpack(a, b)
    _check_array("a", a)
    _check_array("b", b)
    if not a.ndim or not b.ndim:
        raise ValueError(f"both arguments to matmul need to be at least 1D, but they are {a.ndim}D and {b.ndim}D")
    row, column = a.ndim == 1, b.ndim == 1
    left = a[np.newaxis] if row else a
    right = b[:, np.newaxis] if column else b
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(f"a and b shapes cannot be multiplied ({left.shape[-2]}x{left.shape[-1]} and "
                         f"{right.shape[-2]}x{right.shape[-1]})")
    leading = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left = np.broadcast_to(left, leading + left.shape[-2:])
    right = np.broadcast_to(right, leading + right.shape[-2:])
    rows, columns = left.shape[-2], right.shape[-1]
    result = _result(leading + (() if row else (rows,)) + (() if column else (columns,)), out, a, b)
    matrices = result
    if row:
        matrices = np.expand_dims(matrices, -1 if column else -2)
    if column:
        matrices = np.expand_dims(matrices, -1)
    _gemm(left, right, None, matrices, 0, 1, precision, packed, side)
    return result


def _add(dims: int, input, a, b, beta: float, alpha: float, precision: str, out) -> np.ndarray:
    for name, array in (("input", input), ("a", a), ("b", b)):
        _check_array(name, array)
    if a.ndim != dims or b.ndim != dims:
        raise ValueError(f"a and b must have {dims} dimensions, but they have {a.ndim} and {b.ndim}")
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise ValueError(f"a and b shapes cannot be multiplied ({a.shape} and {b.shape})")
    shape = a.shape[:-1] + b.shape[-1:]
    try:
        np.broadcast_to(input, shape)
    except ValueError:
        raise ValueError(f"input of shape {input.shape} cannot be expanded to the product's {shape}") from None
    result = _result(shape, out, input, a, b)
    _gemm(a, b, np.broadcast_to(input, shape) if beta else None, result, beta, alpha, precision)
    return result


def addmm(input, a, b, *, beta: float = 1, alpha: float = 1, precision: str = "fp32", out=None) -> np.ndarray:
    return _add(2, input, a, b, beta, alpha, precision, out)


def baddbmm(input, a, b, *, beta: float = 1, alpha: float = 1, precision: str = "fp32", out=None) -> np.ndarray:
    return _add(3, input, a, b, beta, alpha, precision, out)


def bmm(a, b, *, precision: str = "fp32", out=None) -> np.ndarray:
    for name, array in (("a", a), ("b", b)):
        _check_array(name, array)
    if a.ndim != 3 or b.ndim != 3:
        raise ValueError(f"a and b must have 3 dimensions, but they have {a.ndim} and {b.ndim}")
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"a and b must have the same number of matrices, but they have {a.shape[0]} and {b.shape[0]}")
    return matmul(a, b, precision=precision, out=out)


def linear(input, weight, bias=None, *, precision: str = "fp32") -> np.ndarray:
    matrix = weight.matrix if isinstance(weight, Packed) else weight
    _check_array("input", input)
    _check_array("weight", matrix)
    if matrix.ndim != 2 or not input.ndim or input.shape[-1] != matrix.shape[1]:
        raise ValueError(f"input and weight shapes cannot be multiplied ({input.shape} and {matrix.shape})")
    rows = input[np.newaxis] if input.ndim == 1 else input
    shape = rows.shape[:-1] + matrix.shape[:1]
    addend = None
    if bias is not None:
        _check_array("bias", bias)
        if bias.ndim > 1 or bias.shape not in ((), (1,), shape[-1:]):
            raise ValueError(f"bias of shape {bias.shape} cannot be added to {matrix.shape[0]} outputs")
        addend = np.broadcast_to(bias, shape)
    result = np.empty(shape, np.float32)
    right = np.broadcast_to(matrix.T, shape[:-2] + matrix.T.shape)
    _gemm(rows, right, addend, result, 0 if bias is None else 1, 1, precision,
          weight if isinstance(weight, Packed) else None, RIGHT)
    return result[0] if input.ndim == 1 else result


def pack(matrix: np.ndarray) -> Packed:
    return Packed(matrix)
