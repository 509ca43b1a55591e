"""Locks that a forked child finds free: the thread that held one in the parent is not there to release it."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """For `with`. What it guards must be consistent between any two bytecodes, because a fork may come there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _renew() -> None:
    for lock in _locks:
        lock._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew)
