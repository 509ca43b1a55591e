"""Products of NumPy arrays on the CPU, through ctypes. Any strides are taken as they are; only what is not aligned to
floats is copied."""

from __future__ import annotations

import ctypes
import itertools
import operator
import os
import warnings
from typing import Any, Optional, Sequence

import numpy as np

try:
    from numpy.exceptions import TooHardError
except ImportError:  # before NumPy 1.25
    from numpy import TooHardError  # type: ignore[attr-defined, no-redef]

from . import _library
from ._library import LEFT, LIBRARY, RIGHT, Operand, Result, check, options_named
from ._locks import Lock

# ---- Contexts and threads -------------------------------------------------------------------------------------------

MOST_THREADS = 1024


def _threads_by_environment() -> int:
    """As libtessera_blas reads them: the first number of OMP_NUM_THREADS, which may be a list. 0: all cores."""
    for variable in ("TESSERA_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(variable, "")
        first = value.partition(",")[0] if variable == "OMP_NUM_THREADS" else value
        if first.strip().isdecimal() and 1 <= int(first) <= MOST_THREADS:
            return int(first)
        if value:
            warnings.warn(f"{variable} is {value!r}, which is not a number of threads from 1 to {MOST_THREADS}: "
                          "ignored", RuntimeWarning, stacklevel=2)
    return 0


_threads = _threads_by_environment()
_contexts: dict[tuple, ctypes.c_void_p] = {}
_contexts_lock = Lock()


def _context(precision: str) -> ctypes.c_void_p:
    """One context for each precision and number of threads, made when first asked for and kept as long as the
    process."""
    key = precision, _threads
    if key in _contexts:
        return _contexts[key]
    options = options_named(precision)
    with _contexts_lock.held:
        if key not in _contexts:
            made = ctypes.c_void_p()
            options.threads = key[1]
            check(LIBRARY.tsr_context_create(ctypes.byref(made), ctypes.byref(options)))
            _contexts[key] = made
        return _contexts[key]


def set_num_threads(threads: int) -> None:
    global _threads
    count = operator.index(threads)
    if not 1 <= count <= MOST_THREADS:
        raise ValueError(f"threads must be from 1 to {MOST_THREADS}, not {threads}")
    _threads = count


def get_num_threads() -> int:
    return LIBRARY.tsr_context_threads(_context("fp32"))


# ---- Arrays ---------------------------------------------------------------------------------------------------------

FLOAT32 = np.dtype(np.float32)


def _has_masked(value: Any) -> bool:
    """A masked array, or one in a list, which numpy.asarray would unmask without a word."""
    if isinstance(value, (list, tuple)):
        return any(_has_masked(element) for element in value if type(element) is not float)
    return isinstance(value, np.ma.MaskedArray)


def as_array(name: str, value: Any, casting: Optional[str] = "equiv") -> np.ndarray:
    """The argument as a float32 array, as numpy.matmul would take it. Python's numbers are floats of any size; an array
    of another type is converted if `casting` allows; None: the caller has no such option."""
    if type(value) is np.ndarray and value.dtype is FLOAT32:
        return value
    if _has_masked(value):
        what = "has masked arrays" if isinstance(value, (list, tuple)) else "is a masked array"
        raise TypeError(f"{name} {what}, whose masked elements have no product: fill them, as .filled(0) does, or use "
                        "numpy.ma.dot")
    if isinstance(value, _library.Packed):
        raise TypeError(f"{name} is a packed matrix, too: only one operand of a product can be packed")
    array = np.asarray(value)
    if array.dtype == FLOAT32:
        return array
    is_of_numbers = isinstance(value, (list, tuple, int, float)) and array.dtype.kind in "biuf"
    if is_of_numbers or np.can_cast(array.dtype, FLOAT32, casting or "equiv"):  # type: ignore[arg-type]
        return array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        instead = ": use numpy.matmul" if array.dtype.kind == "c" else ""
        raise TypeError(f"tessera multiplies float32 arrays, but {name} has dtype {array.dtype}{instead}")
    allowed = ", allow it with casting=\"same_kind\"" if casting else ""
    raise TypeError(f"tessera multiplies float32 arrays, but {name} has dtype {array.dtype}: convert it with "
                    f".astype(numpy.float32){allowed}, or use NumPy's own function")


def _strides(array: np.ndarray) -> Optional[list[int]]:
    """In floats; None for an array that is not aligned to floats, as a view of a record array may be."""
    if any(stride % 4 for stride in array.strides) or not array.flags.aligned:
        return None
    return [stride // 4 for stride in array.strides]


class Packed(_library.Packed):
    """A matrix with the panels made of it for each side and orientation it has been used with; tessera.pack makes it.
    The array must not change while this is in use."""

    def __init__(self, matrix: np.ndarray):
        matrix = as_array("the matrix to pack", matrix, None)
        if matrix.ndim != 2:
            raise ValueError(f"the matrix to pack must have 2 dimensions, but it has {matrix.ndim}")
        super().__init__(matrix.copy() if _strides(matrix) is None else matrix)
        self._panels: dict[tuple, ctypes.c_void_p] = {}
        self._lock = Lock()

    def panels(self, side: int, operand: Operand, precision: str) -> Optional[int]:
        context = _context(precision)
        key = (side, operand.row_stride, operand.col_stride, context.value)
        with self._lock.held:
            if key not in self._panels:
                made = ctypes.c_void_p()
                check(LIBRARY.tsr_pack(ctypes.byref(made), context, side, ctypes.byref(operand), None))
                self._panels[key] = made
            return self._panels[key].value

    def __del__(self):
        for panels in self.__dict__.get("_panels", {}).values():
            LIBRARY.tsr_packed_destroy(panels)

    def __repr__(self) -> str:
        return f"tessera.Packed(shape={self.shape}, numpy)"


# ---- Products -------------------------------------------------------------------------------------------------------

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
    arrays = [a, b, c] if s is None else [a, b, c, s]
    strides: Any = [_strides(array) for array in arrays]
    if None in strides:
        a, b, result, *addend = (array.copy() if found is None else array for array, found in zip(arrays, strides))
        _gemm(a, b, addend[0] if addend else None, result, beta, alpha, precision, packed, side)
        if result is not c:
            c[...] = result
        return
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
    s_matrix = ctypes.byref(matrices[3]) if s is not None else None
    for indices in itertools.product(*(range(size) for size, _ in loops)):
        for i, matrix in enumerate(matrices if loops else ()):
            offset = sum(index * steps[i] for index, (_, steps) in zip(indices, loops))
            matrix.data = (starts[i] or 0) + 4 * offset
        check(LIBRARY.tsr_gemm_add(context, batch, alpha, ctypes.byref(matrices[0]), ctypes.byref(matrices[1]), beta,
                                   s_matrix, ctypes.byref(matrices[2]), None))


def _overlap(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether they share an element; taken for granted where that is too hard to say."""
    try:
        return np.shares_memory(x, y, max_work=10000)  # type: ignore[arg-type]
    except TooHardError:
        return True


def _result(shape: tuple, out: Optional[np.ndarray], *inputs: np.ndarray) -> np.ndarray:
    if out is None:
        return np.empty(shape, np.float32)
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy.ndarray like the others, not {type(out).__name__}")
    if out.dtype != FLOAT32 or isinstance(out, np.ma.MaskedArray):
        what = "is a masked array" if isinstance(out, np.ma.MaskedArray) else f"has dtype {out.dtype}"
        raise TypeError(f"the product is a float32 array, but out {what}")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, but the product has {shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    if any(_overlap(out, array) for array in inputs if array is not out):
        raise ValueError("out overlaps an argument: the result needs memory of its own")
    return out


def _unpack(a, b, casting: str):
    """The arrays of two arguments, which of them is packed, and on which side."""
    if isinstance(a, Packed):
        return a.matrix, as_array("b", b, casting), a, LEFT
    if isinstance(b, Packed):
        return as_array("a", a, casting), b.matrix, b, RIGHT
    return as_array("a", a, casting), as_array("b", b, casting), None, RIGHT


def matmul(a, b, *, precision: str = "fp32", out: Optional[np.ndarray] = None, casting: str = "equiv") -> np.ndarray:
    a, b, packed, side = _unpack(a, b, casting)
    if not a.ndim or not b.ndim:
        raise ValueError(f"both arguments to matmul need to be at least 1D, but they are {a.ndim}D and {b.ndim}D")
    row, column = a.ndim == 1, b.ndim == 1
    left = a[np.newaxis] if row else a
    right = b[:, np.newaxis] if column else b
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(f"a and b shapes cannot be multiplied ({left.shape[-2]}x{left.shape[-1]} and "
                         f"{right.shape[-2]}x{right.shape[-1]})")
    leading = left.shape[:-2]
    if leading != right.shape[:-2]:
        leading = np.broadcast_shapes(leading, right.shape[:-2])
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
    return result if result.ndim or out is not None else result[()]  # of vectors a scalar, as NumPy has it


def _add(dims: int, input, a, b, beta: float, alpha: float, precision: str, out, casting: str) -> np.ndarray:
    input, a, b = as_array("input", input, casting), as_array("a", a, casting), as_array("b", b, casting)
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


def addmm(input, a, b, *, beta: float = 1, alpha: float = 1, precision: str = "fp32", out=None,
          casting: str = "equiv") -> np.ndarray:
    return _add(2, input, a, b, beta, alpha, precision, out, casting)


def baddbmm(input, a, b, *, beta: float = 1, alpha: float = 1, precision: str = "fp32", out=None,
            casting: str = "equiv") -> np.ndarray:
    return _add(3, input, a, b, beta, alpha, precision, out, casting)


def bmm(a, b, *, precision: str = "fp32", out=None, casting: str = "equiv") -> np.ndarray:
    a, b = as_array("a", a, casting), as_array("b", b, casting)
    if a.ndim != 3 or b.ndim != 3:
        raise ValueError(f"a and b must have 3 dimensions, but they have {a.ndim} and {b.ndim}")
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"a and b must have the same number of matrices, but they have {a.shape[0]} and {b.shape[0]}")
    return matmul(a, b, precision=precision, out=out)


def linear(input, weight, bias=None, *, precision: str = "fp32", casting: str = "equiv") -> np.ndarray:
    matrix = weight.matrix if isinstance(weight, Packed) else as_array("weight", weight, casting)
    input = as_array("input", input, casting)
    if matrix.ndim != 2 or not input.ndim or input.shape[-1] != matrix.shape[1]:
        raise ValueError(f"input and weight shapes cannot be multiplied ({input.shape} and {matrix.shape})")
    rows = input[np.newaxis] if input.ndim == 1 else input
    shape = rows.shape[:-1] + matrix.shape[:1]
    addend = None
    if bias is not None:
        bias = as_array("bias", bias, casting)
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


# ---- Contractions ---------------------------------------------------------------------------------------------------

def _contract(a: np.ndarray, b: np.ndarray, axes_a: Sequence[int], axes_b: Sequence[int], batch: int = 0,
              precision: str = "fp32") -> np.ndarray:
    """Sums over these axes of two arrays whose first `batch` axes go together: one product of matrices each."""
    free_a = [axis for axis in range(batch, a.ndim) if axis not in axes_a]
    free_b = [axis for axis in range(batch, b.ndim) if axis not in axes_b]
    lead, sizes_a, sizes_b = a.shape[:batch], [a.shape[i] for i in free_a], [b.shape[i] for i in free_b]
    depth = int(np.prod([a.shape[axis] for axis in axes_a], dtype=np.int64))
    rows, columns = (int(np.prod(sizes, dtype=np.int64)) for sizes in (sizes_a, sizes_b))
    left = a.transpose([*range(batch), *free_a, *axes_a]).reshape(*lead, rows, depth)
    right = b.transpose([*range(batch), *axes_b, *free_b]).reshape(*lead, depth, columns)
    return matmul(left, right, precision=precision).reshape([*lead, *sizes_a, *sizes_b])


def tensordot(a, b, axes: Any = 2, *, precision: str = "fp32", casting: str = "equiv") -> np.ndarray:
    a, b = as_array("a", a, casting), as_array("b", b, casting)
    if isinstance(axes, (int, np.integer)):
        axes = range(a.ndim - axes, a.ndim), range(axes)
    pair = [[axis] if isinstance(axis, (int, np.integer)) else list(axis) for axis in axes]
    summed = [[int(axis) + array.ndim * (axis < 0) for axis in chosen] for array, chosen in zip((a, b), pair)]
    for name, array, chosen in zip("ab", (a, b), summed):
        if any(not 0 <= axis < array.ndim for axis in chosen) or len(set(chosen)) < len(chosen):
            raise ValueError(f"axes {chosen} are not {len(chosen)} different axes of {name}, which has {array.ndim}")
    sizes = [[array.shape[axis] for axis in chosen] for array, chosen in zip((a, b), summed)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"the axes to be summed over have sizes {sizes[0]} in a, but {sizes[1]} in b")
    return _contract(a, b, summed[0], summed[1], precision=precision)[()]


def dot(a, b, *, precision: str = "fp32", casting: str = "equiv") -> np.ndarray:
    a, b = as_array("a", a, casting), as_array("b", b, casting)
    if not a.ndim or not b.ndim:
        return a * b
    return tensordot(a, b, ([-1], [-2 if b.ndim > 1 else -1]), precision=precision)


def _subscripts(text: str, arrays: Sequence[np.ndarray]) -> tuple[list[str], str]:
    """The letters of each operand's axes and of the result's; those that an ellipsis stands for are capitals that the
    text does not use."""
    inputs, arrow, output = text.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(arrays):
        raise ValueError(f"the subscripts {text!r} are for {len(terms)} operands, but there are {len(arrays)}")
    spare = [letter for letter in "ZYXWVUTSRQPONMLKJIHGFEDCBAzyxwvutsrqponmlkjihgfedcba" if letter not in text]
    hidden = [array.ndim - len(term.replace("...", "")) if "..." in term else 0 for term, array in zip(terms, arrays)]
    letters = "".join(spare[:max(hidden)][::-1])
    terms = [term.replace("...", letters[len(letters) - count:]) for term, count in zip(terms, hidden)]
    if arrow:
        output = output.replace("...", letters)
    else:
        every = "".join(terms)
        output = letters + "".join(sorted(letter for letter in set(every) - set(letters) if every.count(letter) == 1))
    for term, array in zip(terms, arrays):
        if len(term) != array.ndim or not term.isalpha() and term:
            raise ValueError(f"the subscripts {text!r} do not fit an operand of {array.ndim} dimensions")
    return terms, output


def _pair(x: np.ndarray, xs: str, y: np.ndarray, ys: str, kept: set[str], precision: str) -> tuple[np.ndarray, str]:
    """Two operands into one, with the axes of both that are in `kept`."""
    def alone(array, letters, others):
        """Summed over what nobody else has."""
        left = "".join(letter for letter in letters if letter in kept or letter in others)
        return (array, letters) if left == letters else (np.einsum(f"{letters}->{left}", array), left)

    x, xs = alone(x, xs, ys)
    y, ys = alone(y, ys, xs)
    batch = [letter for letter in xs if letter in ys and letter in kept]
    summed = [letter for letter in xs if letter in ys and letter not in kept]

    if not summed:  # each element is one product: nothing for matrices
        result = "".join(dict.fromkeys(xs + ys))
        return np.einsum(f"{xs},{ys}->{result}", x, y), result

    def leading(array, letters):
        order = [*batch, *(letter for letter in letters if letter not in batch)]
        return array.transpose([letters.index(letter) for letter in order]), order

    x, order_x = leading(x, xs)
    y, order_y = leading(y, ys)
    product = _contract(x, y, [order_x.index(letter) for letter in summed],
                        [order_y.index(letter) for letter in summed], len(batch), precision)
    return product, "".join(letter for letter in [*order_x, *order_y[len(batch):]] if letter not in summed)


def einsum(subscripts: str, *operands, precision: str = "fp32", casting: str = "equiv") -> np.ndarray:
    if not isinstance(subscripts, str):
        raise TypeError("subscripts must be a string, like \"ij,jk->ik\": for lists of axes use numpy.einsum")
    arrays = [as_array(f"operand {i}", operand, casting) for i, operand in enumerate(operands)]
    terms, output = _subscripts(subscripts, arrays)
    each_once = ["".join(dict.fromkeys(term)) for term in terms]
    arrays = [np.einsum(f"{term}->{once}", array) for term, once, array in zip(terms, each_once, arrays)]  # diagonals
    terms = each_once
    sizes: dict[str, int] = {}
    for term, array in zip(terms, arrays):
        for letter, size in zip(term, array.shape):
            sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
    # numpy itself checks the sizes, and chooses the order; an axis of size 1 goes with any.
    path = np.einsum_path(f"{','.join(terms)}->{output}", *arrays, optimize="greedy")[0][1:]
    waiting = [(np.broadcast_to(array, [sizes[letter] for letter in term]), term)
               for array, term in zip(arrays, terms)]
    for step in path:
        chosen = [waiting.pop(i) for i in sorted(step, reverse=True)]
        while len(chosen) > 1:
            kept = set(output).union(*(term for _, term in waiting), *(term for _, term in chosen[2:]))
            (x, xs), (y, ys), *rest = chosen
            chosen = [_pair(x, xs, y, ys, kept, precision), *rest]
        waiting += chosen
    (array, term), = waiting
    return np.einsum(f"{term}->{output}", array).astype(np.float32, copy=False)[()]
