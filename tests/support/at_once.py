"""Threads of a test."""

import threading

from toolchain import PATIENCE


def at_once(work, count, released_together=False):
    """work(0), work(1), ... on `count` threads, as soon as each is there or all together; what one raises is raised."""
    failures, barrier = [], threading.Barrier(count if released_together else 1)

    def guarded(index):
        try:
            barrier.wait()
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    for failure in failures:
        raise failure
