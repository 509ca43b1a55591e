"""Children forked while other threads of the parent hold locks find them free, and what they guard whole."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch

import tessera
from tessera._locks import Lock


def assert_child_finishes(work):
    """Forks; the child does the work and must end well. One that hangs is ended by its alarm."""
    child = os.fork()
    if child == 0:
        signal.alarm(600)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, "the child failed, or hung"


def test_a_lock_that_another_thread_holds():
    lock, held, done = Lock(), threading.Event(), threading.Event()

    def hold():
        with lock.held:
            held.set()
            done.wait()

    def take():
        with lock.held:
            pass

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        assert_child_finishes(take)
    finally:
        done.set()
        holder.join()
    take()


def numpy_matrices():
    rng = np.random.default_rng(20260)
    return [rng.integers(-8, 9, shape).astype(np.float32) for shape in ((3, 3000), (3000, 3000))]


def tensors():
    return [torch.from_numpy(matrix) for matrix in numpy_matrices()]


@pytest.mark.parametrize("make", [numpy_matrices, tensors], ids=lambda make: make.__name__)
@pytest.mark.parametrize("attempt", range(5))
def test_fork_while_another_thread_packs(make, attempt):
    x, weight = make()
    expected = (x @ weight).tolist()
    assert tessera.matmul(x, weight).tolist() == expected
    packed = tessera.pack(weight)
    packer = threading.Thread(target=tessera.matmul, args=(x, packed))
    packer.start()
    time.sleep(0.002 * attempt)  # packing takes some milliseconds

    def use():
        for _ in range(2):
            assert tessera.matmul(x, packed).tolist() == expected

    try:
        assert_child_finishes(use)
    finally:
        packer.join()
    use()


def test_fork_while_other_threads_use_the_drop_in():
    """They make contexts, plans and counts all the time."""
    a, b = torch.ones(40, 40), torch.ones(40, 40)
    done = threading.Event()

    def multiply(seed):
        size = 20
        while not done.is_set():
            size = size + 1 if size < 60 else 20
            a[:size, :size] @ b[:size, :size - seed]

    def child():
        product = a @ b
        assert product.eq(40).all() and tessera.stats().taken
        tessera.disable()

    with tessera.enabled(devices="cpu"):
        threads = [threading.Thread(target=multiply, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                assert_child_finishes(child)
        finally:
            done.set()
            for thread in threads:
                thread.join()
