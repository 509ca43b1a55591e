"""Kernels on the CPU: a file of tests/emulator compiled, and its function called in a process of its own."""

import ctypes
import mmap
import os
import signal

import numpy as np

from toolchain import BUILD, ROOT, need, run


def emulated(name, *arguments, define=None):
    """The function `emulate` of tests/emulator/NAME.cpp, which takes these, with a macro defined."""
    compiler, folder = need("g++"), BUILD / "emulator"
    folder.mkdir(exist_ok=True)
    library = folder / f"{name}{define or ''}.so"
    macros = ["-DTESSERA_EMULATOR", *([f"-D{define}"] if define else [])]
    run(compiler, "-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-w", *macros, "-I",
        ROOT / "tests/emulator", "-I", ROOT / "src", "-o", library, ROOT / f"tests/emulator/{name}.cpp")
    function = ctypes.CDLL(str(library)).emulate
    function.argtypes, function.restype = arguments, None

    def in_a_process(*values):
        process = os.fork()
        if not process:
            signal.alarm(600)
            function(*values)
            os._exit(0)
        assert os.waitpid(process, 0)[1] == 0, "the emulated kernel crashed, or did not end"

    return in_a_process


def shared(shape, kind, value):
    """An array that another process may write."""
    array = np.frombuffer(mmap.mmap(-1, int(np.prod(shape)) * np.dtype(kind).itemsize), kind).reshape(shape)
    array[...] = value
    return array
