"""A soak of the CUDA engine on a real GPU: python3 tests/gpu_soak.py [--seconds 60] [--seed 1] [--largest N]

Needs TESSERA_LIBRARY, NumPy and a GPU; `make soak-gpu` runs it. Each part has its share of the time:

    kernels     every kernel that can be forced, random products; each computed again must have the same bits, and
                meets the contract's bound in float64
    threads     64 threads on 16 streams, contexts shared and of their own; the bits of the first run
    graphs      products captured and replayed; the same bits
    memory      free memory of the GPU after each round: it must not shrink
    exhausted   no memory left for the workspace: TSR_OUT_OF_MEMORY, and the next product is right
    interrupt   Ctrl-C (a signal to itself) in a Python loop of products: KeyboardInterrupt, then a right product

Prints a line for each and exits with 1 on any mismatch. It is a script, not a test: it measures nothing and waits for
nothing, but takes as long as it is told."""

import argparse
import os
import signal
import sys
import threading
import time
from ctypes import byref, c_void_p
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "support"), str(HERE.parent / "python" / "capi")]
os.environ.setdefault("TESSERA_LIBRARY", str(HERE.parent / "build" / "libtessera.so"))

import numpy as np  # noqa: E402

import binding  # noqa: E402
import cuda_driver  # noqa: E402
from binding import CUDA, FP32, IEEE, PRECISIONS, TF32, Context, Launch, Operand, Plan, Result  # noqa: E402

MIB = 1 << 20
UNIT = 2.0**-24


class Mismatch(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Mismatch(what)


class Product:
    """Random matrices on the GPU, made from a seed: shape, strides, data. `first` is C as it was computed first."""

    largest = 4096  # of m, n and k

    def __init__(self, driver, seed, shape=None):
        self.driver, self.seed = driver, seed
        rng = np.random.default_rng(seed)
        m, n, k = (min(size, Product.largest) for size in shape or (int(2 ** rng.uniform(0, 10.5)) for _ in range(3)))
        self.shape = m, n, k
        self.transposed = rng.integers(0, 2, 2).astype(bool)
        data = rng.choice(["uniform", "normal", "integers", "wide"])
        self.a, self.b = (self.values(rng, data, *size) for size in ((m, k), (k, n)))
        stored = [np.ascontiguousarray(x.T if t else x) for x, t in zip((self.a, self.b), self.transposed)]
        self.buffers = [cuda_driver.Buffer(driver, x.nbytes).put(x) for x in stored]
        self.poison = np.full((m, n), np.nan, np.float32)
        self.buffers.append(cuda_driver.Buffer(driver, self.poison.nbytes))
        self.operands = [Operand(buffer.address, rows, cols, *((1, rows) if t else (cols, 1)), 0)
                         for buffer, (rows, cols), t in zip(self.buffers, ((m, k), (k, n)), self.transposed)]
        self.result = Result(self.buffers[2].address, m, n, n, 1, 0)
        self.first = {}

    @staticmethod
    def values(rng, data, rows, cols):
        if data == "integers":
            return rng.integers(-8, 9, (rows, cols)).astype(np.float32)
        if data == "uniform":
            return rng.random((rows, cols), np.float32)
        x = rng.standard_normal((rows, cols), np.float32)
        return x * np.exp2(rng.integers(-20, 21, (rows, cols))).astype(np.float32) if data == "wide" else x

    def queue(self, context, stream=None):
        binding.gemm(context, *self.operands, self.result, launch=Launch(stream))

    def takes(self, context):
        try:
            Plan(context, *self.operands, self.result)
        except binding.TesseraError as error:
            if error.status != binding.INVALID_ARGUMENT:
                raise
            return False
        return True

    def clear(self):
        self.buffers[2].put(self.poison)

    def verify(self, key, precision):
        """The bits of the first run under this key, which itself keeps the bound."""
        got = self.buffers[2].get().reshape(self.poison.shape)
        if key not in self.first:
            self.first[key] = got
            if precision != TF32:
                a, b = self.a.astype(np.float64), self.b.astype(np.float64)
                bound = (self.shape[2] + 2) * UNIT * (np.abs(a) @ np.abs(b)) + self.shape[2] * 2.0**-149
                with np.errstate(invalid="ignore"):
                    wrong = ~(np.abs(got - a @ b) <= bound)
                self.expect_none(key, wrong, "is outside the bound")
        self.expect_none(key, got.view(np.uint32) != self.first[key].view(np.uint32), "has other bits than at first")

    def expect_none(self, key, wrong, what):
        at = np.argwhere(wrong)[:1].tolist()
        expect(not wrong.any(), f"{key}: product {self.seed} {self.shape}: element {at} {what}")

    def free(self):
        for buffer in self.buffers:
            buffer.free()


def kernels_here():
    lines = [line.split(": ", 1)[1] for line in binding.info().splitlines() if line.startswith("cuda kernel: ")]
    return [line.split(",")[0] for line in lines if line.endswith("runs here")]


def contexts_here():
    """{name: context}: each kernel at its strictest precision, and each precision with the plan choosing."""
    made = {f"{PRECISIONS[precision]}, by plan": Context(CUDA, precision) for precision in (FP32, IEEE, TF32)}
    for kernel in kernels_here():
        for precision in (IEEE, FP32, TF32):
            try:
                made[f"{kernel} at {PRECISIONS[precision]}"] = Context(CUDA, precision, kernel)
                break
            except binding.TesseraError as error:
                if error.status != binding.INVALID_ARGUMENT:
                    raise
    return made


def precision_of(name):
    return next(index for index, word in enumerate(PRECISIONS) if f" at {word}" in name or name.startswith(f"{word},"))


# ---- The parts: each returns what it has done, as a sentence --------------------------------------------------------

def soak_kernels(driver, contexts, products, seconds, random):
    deadline, count, used = time.monotonic() + seconds, 0, set()
    while time.monotonic() < deadline or len(used) < len(contexts):
        for name, context in contexts.items():
            product = products[int(random.integers(len(products)))]
            if name not in used:  # kernels for thin results or short sums take few of them
                product = next((one for one in products if one.takes(context)), None)
                expect(product, f"{name} takes none of {len(products)} products")
            elif not product.takes(context):
                continue
            product.clear()
            product.queue(context)
            driver.synchronize()
            product.verify(name, precision_of(name))
            used.add(name)
            count += 1
    return f"{count} products on {len(used)} kernels and plans, the same bits each time"


def run_threads(driver, seconds, work):
    """work(index, stream, lock, deadline) in 64 threads, on 16 streams."""
    streams = [(driver.stream(), threading.Lock()) for _ in range(16)]
    failures, deadline = [], time.monotonic() + seconds

    def guarded(index):
        try:
            driver.use(driver.context)
            work(index, *streams[index % 16], deadline)
        except BaseException as error:
            failures.append(f"thread {index}: {error}")

    threads = [threading.Thread(target=guarded, args=(index,), daemon=True) for index in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 300)
    expect(not any(thread.is_alive() for thread in threads), "a thread hangs")
    expect(not failures, failures[:3])
    for stream, _ in streams:
        driver.stream_destroy(stream)


def soak_threads(driver, seconds, seed, with_graphs):
    shared = {precision: Context(CUDA, precision) for precision in (FP32, IEEE, TF32)}
    own = [Product(driver, seed + index, (64 + 3 * index, 200 - index, 300 + 40 * index)) for index in range(64)]
    counts = [0] * 64

    def work(index, stream, lock, deadline):
        product, precision = own[index], index % 3
        context = Context(CUDA, precision) if index % 4 == 0 else shared[precision]
        key = PRECISIONS[precision]
        graph = None
        while not counts[index] or time.monotonic() < deadline:
            with lock:  # C is read back before another thread's work on the stream, and a capture is nobody else's
                if with_graphs and graph is None:
                    product.clear()
                    product.queue(context, stream)  # so that its modules are loaded
                    driver.stream_synchronize(stream)
                    product.verify(key, precision)
                    graph = driver.capture(stream, lambda: product.queue(context, stream))
                product.clear()
                if graph:
                    driver.replay(graph, stream)
                else:
                    product.queue(context, stream)
                driver.stream_synchronize(stream)
                product.verify(key, precision)
            counts[index] += 1
        if graph:
            driver.graph_destroy(graph)

    run_threads(driver, seconds, work)
    for product in own:
        product.free()
    return f"{sum(counts)} products by 64 threads on 16 streams{', replayed from graphs' if with_graphs else ''}"


def soak_memory(driver, seconds, seed):
    """Contexts, plans, packed operands and products come and go; the first rounds warm up pools and modules."""
    product, rounds, levels = Product(driver, seed, (900, 1100, 1000)), 0, []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or rounds < 12:
        context = Context(CUDA, FP32)
        packed = binding.Packed(context, binding.RIGHT, product.operands[1])
        product.clear()
        product.queue(context)
        driver.synchronize()
        product.verify("memory", FP32)
        del packed
        binding.check(binding.lib.tsr_trim(context.handle))
        del context
        levels.append(driver.free_memory())
        rounds += 1
    product.free()
    settled, last = max(levels[4:8]), max(levels[-4:])
    expect(last >= settled - 4 * MIB,
           f"free memory fell from {settled / MIB:.0f} to {last / MIB:.0f} MiB in {rounds} rounds")
    return f"{rounds} contexts made and destroyed, free memory {settled / MIB:.0f} then {last / MIB:.0f} MiB"


def exhaust_memory(driver, seed):
    """Nearly all memory is taken, so that a split product's workspace does not fit."""
    context, product = Context(CUDA, FP32), Product(driver, seed, (2000, 2000, 2000))
    kernel = next((name for name in kernels_here() if name.startswith("split_fp32")), None)
    expect(kernel, "no split kernel runs here")
    forced = Context(CUDA, FP32, kernel)
    product.queue(context)
    driver.synchronize()
    binding.check(binding.lib.tsr_trim(forced.handle))
    taken, size = [], driver.free_memory()
    while size >= MIB:
        address = c_void_p()
        if driver.lib.cuMemAlloc_v2(byref(address), cuda_driver.c_size_t(size)):
            size //= 2
        else:
            taken.append(address.value)
    try:
        status = binding.lib.tsr_gemm(forced.handle, 1.0, *map(byref, product.operands), 0.0, byref(product.result),
                                      None)
        message = binding.lib.tsr_last_error().decode()
    finally:
        for address in taken:
            driver.free(address)
    expect(status == binding.OUT_OF_MEMORY, f"without memory for the workspace the status is {status}: {message}")
    huge = Plan(forced, Operand(None, 1 << 20, 1 << 20, 1 << 20, 1, 0), Operand(None, 1 << 20, 1 << 20, 1 << 20, 1, 0),
                Result(None, 1 << 20, 1 << 20, 1 << 20, 1, 0))
    product.clear()
    product.queue(forced)
    driver.synchronize()
    product.verify("exhausted", FP32)
    product.free()
    return f"{message!r}; then a right product (the plan of 2^20 cubed asks for {huge.workspace() / 2**40:.1f} TiB)"


def interrupt(driver, context, seed):
    product, done = Product(driver, seed, (512, 512, 512)), 0
    caught = False
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            product.queue(context)
            done += 1
            if done % 64 == 0:
                driver.synchronize()
    except KeyboardInterrupt:
        caught = True
    finally:
        signal.signal(signal.SIGINT, previous)
        timer.join()
    expect(caught, "Ctrl-C did not end the loop")
    driver.synchronize()
    product.clear()
    product.queue(context)
    driver.synchronize()
    product.verify("interrupt", FP32)
    product.free()
    return f"Ctrl-C after {done} products, then a right one"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--largest", type=int, default=Product.largest,
                        help="of m, n and k, for a driver that computes slowly")
    arguments = parser.parse_args()
    Product.largest = arguments.largest
    try:
        driver = cuda_driver.Driver()
    except (OSError, cuda_driver.CudaError) as error:
        sys.exit(f"gpu_soak: no usable GPU: {error}")
    seed, share = 1000 * arguments.seed, arguments.seconds / 20
    random = np.random.default_rng(seed)
    shapes = [(1, 3000, 700), (2000, 3, 900), (5, 5, 4000), (300, 200, 17), (70, 60, 1), (1030, 1025, 1027),
              (2048, 2048, 2048)]
    products = [Product(driver, seed + index, shape) for index, shape in enumerate(shapes + [None] * 40)]
    contexts = contexts_here()
    by_plan = contexts["fp32, by plan"]
    parts = {
        "kernels": lambda: soak_kernels(driver, contexts, products, 8 * share, random),
        "threads": lambda: soak_threads(driver, 5 * share, seed + 100, False),
        "graphs": lambda: soak_threads(driver, 4 * share, seed + 200, True),
        "memory": lambda: soak_memory(driver, 2 * share, seed + 300),
        "exhausted": lambda: exhaust_memory(driver, seed + 301),
        "interrupt": lambda: interrupt(driver, by_plan, seed + 302),
    }
    failed = 0
    for name, part in parts.items():
        begun = time.monotonic()
        try:
            said, verdict = part(), "ok"
        except (Mismatch, AssertionError, binding.TesseraError, cuda_driver.CudaError) as error:
            said, verdict, failed = error, "FAILED", failed + 1
        print(f"{name:<10} {verdict:<7} {time.monotonic() - begun:6.1f} s  {said}", flush=True)
    verdict = f"{failed} of {len(parts)} parts FAILED" if failed else f"all {len(parts)} parts passed"
    print(f"soak: {verdict}, seed {arguments.seed}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
