"""Runs a scenario in a child process once for each call that may fail, until none is left to fail: each.h in Python,
for programs that are started with LD_PRELOAD=libfaults.so."""

import ctypes
import os
import signal
import sys
import traceback

faults = ctypes.CDLL(None)
faults.faults_only_from.argtypes = [ctypes.c_char_p]
faults.faults_begin.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_bool]
faults.faults_end.restype = ctypes.c_long

NOTHING_FAILED, WRONG, SOMETHING_FAILED = 0, 1, 10
CHILD_SECONDS = 600


def only_from(*words):
    """Calls of these libraries alone fail: what Python and torch do without memory is their own affair."""
    assert faults.faults_only_from(":".join(words).encode()) >= len(words), f"not loaded: {words}"


def begin(kind, number, for_good):
    faults.faults_begin(faults.faults_kind(kind.encode()), number, for_good)


def _child(kind, number, for_good, scenario):
    try:
        signal.alarm(CHILD_SECONDS)
        begin(kind, number, for_good)
        scenario(True)
        failed = faults.faults_end()
        scenario(False)
        return SOMETHING_FAILED if failed else NOTHING_FAILED
    except BaseException:
        faults.faults_end()
        traceback.print_exc()
        return WRONG


def each_fault(kind, after, scenario):
    """scenario(True) while a call fails (after "+": and all after it), then scenario(False), when everything must
    succeed. How many times a call failed."""
    number = 1
    while True:
        child = os.fork()
        if not child:
            os._exit(_child(kind, number, after == "+", scenario))
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == NOTHING_FAILED:
            return number - 1
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != SOMETHING_FAILED:
            sys.exit(f"wrong where {kind} {number}{after} fails: wait status {status}")
        number += 1
