"""interrupts.py: Ctrl-C at each point of a product of NumPy arrays where Python looks for signals. Afterwards every
product works: no lock is held, nothing half-made is kept.

Python looks where a function begins and after each call, so that is where a trace function raises KeyboardInterrupt.
"""

import dis
import faulthandler
import functools
import os
import signal
import sys

import numpy as np
import tessera

PACKAGE = os.path.dirname(tessera.__file__)
A, B = (np.arange(size, dtype=np.float32).reshape(shape) % 5 for size, shape in ((60, (6, 10)), (80, (10, 8))))


def products():
    packed = tessera.pack(B)
    for operand in (B, packed):
        assert np.array_equal(tessera.matmul(A, operand), A @ B)


@functools.lru_cache(None)
def looks_after(code):
    """The instructions after which it looks, by their offsets."""
    names = ("RESUME", "CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
    return {instruction.offset for instruction in dis.get_instructions(code) if instruction.opname.startswith(names)}


class Interrupt:
    """Raises at the point with this number."""
    def __init__(self, number):
        self.left, self.last = number, {}

    def trace(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name == "__del__":
            return None  # Python ignores what is raised in __del__
        frame.f_trace_opcodes = True
        if event == "call":
            self.last.pop(id(frame), None)
            self.reach()
        elif event == "opcode":
            last, self.last[id(frame)] = self.last.get(id(frame)), frame.f_lasti
            if last in looks_after(frame.f_code):
                self.reach()
        return self.trace

    def reach(self):
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt


def interrupted(number):
    """Whether there is a point with this number."""
    tessera._numpy._contexts.clear()  # as in a process that begins
    interrupt = Interrupt(number)
    try:
        sys.settrace(interrupt.trace)
        products()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    assert interrupt.left > 0, "the interrupt was swallowed"
    return False


faulthandler.register(signal.SIGALRM, chain=True)
number = 1
while True:
    signal.alarm(600)
    was_interrupted = interrupted(number)
    products()
    if not was_interrupted:
        break
    number += 1
print(number - 1)
