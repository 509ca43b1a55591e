"""Threads, forks, repeats: the same bits, whoever calls and however many at once."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from at_once import at_once
from binding import CPU, TF32, gemm
from engine import Engine
from layouts import assert_guards, column_major, filled, multiply_exactly, row_major
from reference import assert_exact, integers
from toolchain import PATIENCE, run_python


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 16, 64, 1024])
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (300, 200, 400), (2, 3000, 50), (3000, 2, 50), (20, 20, 5000),
                                     (30, 5000, 90)])
def test_thread_counts(cpu, rng, threads, m, n, k):
    context = cpu.new_context(threads=threads)
    a, b, c = integers(rng, m, k), integers(rng, k, n), row_major(m, n)
    multiply_exactly(cpu, a, b, c, context=context)


def test_two_hundred_threads_at_once(engine, rng):
    """On one shared context, all released together, each with shapes of its own."""
    count = 200
    shapes = [(1 + i % 70, 1 + (7 * i) % 90, 1 + (13 * i) % 150) for i in range(count)]
    shapes[::4] = [(150 + i, 200 - i, 170) for i in range(count // 4)]  # large enough to be shared by several threads
    operands = [(integers(rng, m, k), integers(rng, k, n)) for m, n, k in shapes]
    results = [row_major(m, n) for m, n, _ in shapes]
    with engine.resident(*(x for pair in operands for x in pair), changed=results):

        def work(i):
            for _ in range(3):
                engine.multiply(*operands[i], results[i])

        at_once(work, count, released_together=True)
    for (a, b), c in zip(operands, results):
        assert_exact(c, a, b)
        assert_guards(c)


def test_contexts_come_and_go_while_others_work(engine, rng):
    a, b = integers(rng, 120, 130), integers(rng, 130, 110)
    results = [row_major(120, 110) for _ in range(16)]
    with engine.resident(a, b, changed=results):

        def work(i):
            for round_ in range(4):
                options = {"threads": 1 + (i + round_) % 4} if engine.device == CPU else {}
                engine.multiply(a, b, results[i], context=engine.new_context(**options))

        at_once(work, 16)
    for c in results:
        assert_exact(c, a, b)


@pytest.mark.parametrize("m, n, k", [(7, 5, 3), (257, 300, 511), (16, 16, 10000), (1, 2000, 2000), (1000, 1000, 100)])
def test_same_bits_every_time(engine, rng, m, n, k):
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    first = engine.product(a, b)
    for _ in range(5):
        assert np.array_equal(engine.product(a, b), first)
    assert np.array_equal(engine.product(a, b, context=engine.new_context()), first)
    by = 4 if engine.precision == TF32 else 3  # the kernels of tf32 that copy 16 bytes at a time need alignment
    moved = np.empty(a.size + by, np.float32)[by:].reshape(a.shape)
    moved[...] = a
    assert np.array_equal(engine.product(moved, b), first), "other addresses, other bits"


@pytest.mark.parametrize("m, n, k", [(64, 64, 64), (97, 101, 103), (130, 33, 65), (20, 600, 300), (250, 250, 250)])
@pytest.mark.parametrize("transposed", [False, True], ids=["row_major", "column_major"])
def test_small_products_in_a_row(cpu, rng, m, n, k, transposed):
    """Other threads are called for them only where they follow each other closely."""
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32).T
    if transposed:
        a, b = filled(column_major, a), np.ascontiguousarray(b)
    first = cpu.product(a, b, context=cpu.new_context(threads=1))
    for threads in (2, 3, 8):
        context, results = cpu.new_context(threads=threads), [row_major(m, n) for _ in range(20)]
        products = [(cpu.operand(a), cpu.operand(b), cpu.result(c)) for c in results]
        for product in products:
            gemm(context, *product)
        for c in results:
            assert np.array_equal(c, first)
            assert_guards(c)


@pytest.mark.parametrize("alpha", [1.0, 3.0])
@pytest.mark.parametrize("layout", [row_major, column_major])
@pytest.mark.parametrize("batch, m, n, k", [(5, 12, 300, 1500), (7, 200, 12, 1500), (11, 130, 140, 150),
                                            (6, 1, 5000, 300), (6, 3, 900, 700), (20, 90, 80, 300)])
def test_batches_of_a_few_products(cpu, rng, batch, m, n, k, layout, alpha):
    """Members take columns or rows of them, or whole ones."""
    a, b = filled(layout, integers(rng, batch, m, k)), filled(layout, integers(rng, batch, k, n))
    before = integers(rng, batch, m, n)
    for threads in (3, 8, 50):
        multiply_exactly(cpu, a, b, filled(layout, before), alpha, -1.0, context=cpu.new_context(threads=threads))


@pytest.mark.parametrize("room", [0, 200_000, 60_000])
@pytest.mark.parametrize("batch", [1, 3])
def test_few_rows_that_must_be_packed(cpu, rng, batch, room):
    """Threads take slices of columns, and pack A's rows once for each product: not where they are several panels for
    want of room."""
    context = cpu.new_context(threads=2, max_workspace=room)
    a, b, c = integers(rng, batch, 40, 90), integers(rng, batch, 90, 4200), row_major(batch, 40, 4200)
    cpu.multiply(filled(column_major, a), b, c, context=context)
    assert np.array_equal(c, a.astype(np.float64) @ b)
    assert_guards(c)


@pytest.mark.parametrize("strides", [(1, 0), (0, 1), (1, 2)], ids=["columns repeated", "rows repeated", "overlapping"])
def test_rows_that_share_memory(cpu, rng, strides):
    """Threads take slices of the rows of an A whose parts may lie at one address."""
    m, n, k = 520, 530, 1300
    memory = integers(rng, 1, m + 2 * k, largest=4)[0]
    a = np.lib.stride_tricks.as_strided(memory, (m, k), [4 * stride for stride in strides])
    b, c = integers(rng, k, n, largest=4), row_major(m, n)
    cpu.multiply(a, b, c, context=cpu.new_context(threads=2))
    assert_exact(c, a, b)


def test_same_bits_while_the_machine_is_busy(cpu, rng):
    """Which thread takes which part must not decide the order of a sum."""
    context = cpu.new_context(threads=4)
    a, b = rng.standard_normal((200, 700), np.float32), rng.standard_normal((700, 150), np.float32)
    first = cpu.product(a, b, context=context)
    results = [[] for _ in range(8)]

    def work(i):
        for _ in range(6):
            results[i].append(np.array_equal(cpu.product(a, b, context=context), first))

    at_once(work, 8)
    assert all(len(some) == 6 and all(some) for some in results)


def in_child(work):
    """Forks; the child runs work() and reports by its exit code. A child that hangs is ended by its alarm."""
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE)
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return child


def ended_well(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_fork(cpu, rng):
    """A child multiplies after its parent has used the pool, its own child too, and the parent goes on."""
    context = cpu.new_context(threads=3)
    a, b = integers(rng, 300, 250), integers(rng, 250, 200)
    expected = cpu.product(a, b, context=context)

    def multiplies():
        return np.array_equal(cpu.product(a, b, context=context), expected)

    def child_and_grandchild():
        return multiplies() and ended_well(in_child(multiplies)) and multiplies()

    children = [in_child(child_and_grandchild) for _ in range(3)]
    assert multiplies()
    assert [ended_well(child) for child in children] == [True] * 3
    assert multiplies()


def test_fork_while_others_multiply(cpu, rng):
    """The pool is busy, perhaps inside a lock, at the moment of the fork."""
    context = cpu.new_context(threads=3)
    a, b = integers(rng, 150, 150), integers(rng, 150, 150)
    expected = cpu.product(a, b, context=context)
    stop = threading.Event()
    wrong = []

    def work():
        while not stop.is_set():
            if not np.array_equal(cpu.product(a, b, context=context), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        children = []
        for _ in range(10):
            time.sleep(0.01)
            children.append(in_child(lambda: np.array_equal(cpu.product(a, b, context=context), expected)))
        assert [ended_well(child) for child in children] == [True] * 10
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong


def test_idle_threads_sleep(cpu, rng):
    """No busy waiting between calls: sooner or later, of half a second of doing nothing the process uses next to
    nothing. How soon is the machine's affair, which may let threads wait before they go to sleep."""
    a = integers(rng, 300, 300)
    cpu.product(a, a, context=cpu.new_context(threads=4))
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        before = time.process_time()
        time.sleep(0.5)
        if time.process_time() - before < 0.05:
            return
    raise AssertionError("threads without work keep a processor busy")


AFFINITY = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import binding
x = binding.Operand(None, 1000, 1000, 1000, 1, 0)
print(binding.Plan(binding.Context(), x, x, binding.Result(None, 1000, 1000, 1000, 1, 0)).text())
"""


def test_default_threads_respect_affinity():
    assert "\nthreads: 1," in run_python(AFFINITY)


def test_a_context_may_have_more_threads_than_work(rng):
    engine = Engine(CPU, 1)
    context = engine.new_context(threads=1024)
    for _ in range(50):
        a, b = integers(rng, 3, 2), integers(rng, 2, 3)
        assert_exact(engine.product(a, b, context=context), a, b)
