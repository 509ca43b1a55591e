"""libtessera through ctypes: where it is, and as much of tessera.h as NumPy arrays need."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

LEFT, RIGHT = 0, 1  # tsr_side
PACKAGE = Path(__file__).resolve().parent


class Options(ctypes.Structure):
    _fields_ = [("device", c_int), ("device_index", c_int), ("precision", c_int), ("threads", c_int),
                ("max_workspace", c_size_t), ("kernel", c_char_p), ("batch_invariant", c_int)]


class Operand(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("rows", c_int64), ("cols", c_int64), ("row_stride", c_int64),
                ("col_stride", c_int64), ("batch_stride", c_int64), ("packed", c_void_p)]


class Result(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("rows", c_int64), ("cols", c_int64), ("row_stride", c_int64),
                ("col_stride", c_int64), ("batch_stride", c_int64)]


class Packed:
    """A matrix prepared for use in many products: what tessera.pack makes."""

    __module__ = "tessera"  # where people find it

    def __init__(self, matrix) -> None:
        self.matrix = matrix

    @property
    def shape(self) -> tuple:
        return self.matrix.shape


def library_path() -> Path:
    """TESSERA_LIBRARY where it is set, else the library in the package, else the one built in the source tree."""
    chosen = os.environ.get("TESSERA_LIBRARY")
    folders = sys.modules[__package__].__path__  # more than PACKAGE in an editable installation
    places = [*(Path(folder, "lib", "libtessera.so*") for folder in folders),
              PACKAGE.parents[1] / "build" / "libtessera.so"]
    if chosen:
        places = [Path(chosen)]
    for place in places:
        for found in [place] if place.exists() else sorted(place.parent.glob(place.name)):
            return found
    raise ImportError(f"tessera cannot find its library: looked for {' and '.join(map(str, places))}. Install the "
                      "package with pip, run `make` in the source tree, or set TESSERA_LIBRARY to a libtessera.so")


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, result, *arguments in (
            ("tsr_last_error", c_char_p),
            ("tsr_version", c_char_p),
            ("tsr_has_cuda", c_int),
            ("tsr_precision_name", c_char_p, c_int),
            ("tsr_info_print", c_size_t, c_char_p, c_size_t),
            ("tsr_context_create", c_int, POINTER(c_void_p), POINTER(Options)),
            ("tsr_context_threads", c_int, c_void_p),
            ("tsr_gemm_add", c_int, c_void_p, c_int64, c_float, POINTER(Operand), POINTER(Operand), c_float,
             POINTER(Operand), POINTER(Result), c_void_p),
            ("tsr_pack", c_int, POINTER(c_void_p), c_void_p, c_int, POINTER(Operand), c_void_p),
            ("tsr_packed_destroy", None, c_void_p)):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


PATH = library_path()
LIBRARY = _declare(ctypes.CDLL(str(PATH)))


def _precisions() -> tuple[str, ...]:
    """Their names, indexed by tsr_precision; for the first number that is none the library says so."""
    names = (LIBRARY.tsr_precision_name(number).decode() for number in itertools.count())
    return tuple(itertools.takewhile(lambda name: name != "unknown precision", names))


PRECISIONS = _precisions()


def check(status: int) -> None:
    if status == 0:
        return
    message = LIBRARY.tsr_last_error().decode()
    raise {1: ValueError, 2: MemoryError}.get(status, RuntimeError)(f"tessera: {message}")


BATCH_INVARIANT = " batch_invariant"  # behind the name of a precision


def options_named(arithmetic: str) -> Options:
    """Of a context with this precision, which " batch_invariant" may follow."""
    name, invariant, _ = arithmetic.partition(BATCH_INVARIANT)
    if name not in PRECISIONS:
        *others, last = map(repr, PRECISIONS)
        raise ValueError(f"precision must be {', '.join(others)} or {last}, not {name!r}")
    return Options(device_index=-1, precision=PRECISIONS.index(name), batch_invariant=bool(invariant))


def version() -> str:
    return LIBRARY.tsr_version().decode()


def info() -> str:
    size = LIBRARY.tsr_info_print(None, 0) + 1
    text = ctypes.create_string_buffer(size)
    LIBRARY.tsr_info_print(text, size)
    return text.value.decode()
