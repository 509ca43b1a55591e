"""Locks that a forked child finds free: the thread that held one in the parent is not there to release it."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """`with lock.held:`. What it guards must be consistent between any two bytecodes, because a fork may come there.

    It is threading's own lock that `with` takes: an __enter__ written in Python could be interrupted (Ctrl-C) when it
    has the lock and has not returned, and then nobody would release it."""

    def __init__(self) -> None:
        self.held = threading.Lock()
        _locks.add(self)


def _renew() -> None:
    for lock in _locks:
        lock.held = threading.Lock()


os.register_at_fork(after_in_child=_renew)
