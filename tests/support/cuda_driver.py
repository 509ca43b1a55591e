"""The CUDA driver API through ctypes, as much of it as the tests use: memory, streams, contexts and graphs."""

import ctypes
import threading
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p

import numpy as np

STREAM_NON_BLOCKING = 1
CAPTURE_MODE_THREAD_LOCAL = 1
MEM_ATTACH_GLOBAL = 1


class CudaError(Exception):
    pass


class Driver:
    """libcuda with the primary context of GPU 0 current on the thread that made it. Raises OSError without a driver."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.kept = {}
        self.call("cuInit", c_uint(0))
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        self.count = count.value
        if not self.count:
            raise CudaError("no GPU")
        device = c_int()
        self.call("cuDeviceGet", byref(device), c_int(0))
        self.device = device
        self.context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(self.context), device)
        self.use(self.context)

    def call(self, name, *arguments):
        code = getattr(self.lib, name)(*arguments)
        if code:
            text = c_char_p()
            self.lib.cuGetErrorString(c_int(code), byref(text))
            raise CudaError(f"{name}: {(text.value or b'unknown').decode()} ({code})")

    def use(self, context):
        self.call("cuCtxSetCurrent", context)

    def capability(self):
        major, minor = c_int(), c_int()
        self.call("cuDeviceGetAttribute", byref(major), c_int(75), self.device)
        self.call("cuDeviceGetAttribute", byref(minor), c_int(76), self.device)
        return major.value, minor.value

    def synchronize(self):
        self.call("cuCtxSynchronize")

    def free_memory(self):
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    # Memory. Addresses are plain integers.

    def allocate(self, size):
        """Memory that was freed before with the same size comes back without asking the driver: its own allocator takes
        longer than most products of the tests."""
        if self.kept.get(size):
            return self.kept[size].pop()
        address = c_void_p()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(max(size, 1)))
        return address.value

    def allocate_managed(self, size):
        address = c_void_p()
        self.call("cuMemAllocManaged", byref(address), c_size_t(size), c_uint(MEM_ATTACH_GLOBAL))
        return address.value

    def keep(self, address, size):
        """Gives memory of allocate back for the next that asks for as much; much memory goes to the driver at once."""
        if size > 2**24:
            self.free(address)
        else:
            self.kept.setdefault(size, []).append(address)

    def free(self, address):
        self.call("cuMemFree_v2", c_void_p(address))

    def free_kept(self):
        for addresses in self.kept.values():
            for address in addresses:
                self.free(address)
        self.kept = {}

    def allocate_pinned(self, size):
        address = c_void_p()
        self.call("cuMemHostAlloc", byref(address), c_size_t(size), c_uint(0))
        return address.value

    def free_pinned(self, address):
        self.call("cuMemFreeHost", c_void_p(address))

    def upload(self, address, array):
        """A C-contiguous array's bytes to the device. A copy from pageable memory may return before they are there, and
        a stream that does not wait for the default one would not see them."""
        assert array.flags.c_contiguous
        if array.nbytes:
            self.call("cuMemcpyHtoD_v2", c_void_p(address), c_void_p(array.ctypes.data), c_size_t(array.nbytes))
            self.call("cuStreamSynchronize", None)

    def download(self, address, array):
        assert array.flags.c_contiguous
        if array.nbytes:
            self.call("cuMemcpyDtoH_v2", c_void_p(array.ctypes.data), c_void_p(address), c_size_t(array.nbytes))

    # Streams and graphs.

    def stream(self):
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), c_uint(STREAM_NON_BLOCKING))
        return stream

    def stream_synchronize(self, stream):
        self.call("cuStreamSynchronize", stream)

    def stream_destroy(self, stream):
        self.call("cuStreamDestroy_v2", stream)

    def hold(self, stream):
        """Keeps what is queued on the stream from now on waiting, until the function that this returns is called, or
        for a minute: whoever waits for the stream by mistake shall fail rather than hang."""
        released = threading.Event()
        self.held = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: released.wait(60) and None)
        self.call("cuLaunchHostFunc", stream, self.held, None)
        return released.set

    def event(self):
        event = c_void_p()
        self.call("cuEventCreate", byref(event), c_uint(0))
        return event

    def record(self, event, stream):
        self.call("cuEventRecord", event, stream)

    def stream_wait(self, stream, event):
        self.call("cuStreamWaitEvent", stream, event, c_uint(0))

    def event_destroy(self, event):
        self.call("cuEventDestroy_v2", event)

    def capture(self, stream, work):
        """An executable graph of what work() queues on the stream."""
        self.call("cuStreamBeginCapture_v2", stream, c_int(CAPTURE_MODE_THREAD_LOCAL))
        graph, executable = c_void_p(), c_void_p()
        try:
            work()
        finally:
            self.call("cuStreamEndCapture", stream, byref(graph))
        self.call("cuGraphInstantiateWithFlags", byref(executable), graph, ctypes.c_ulonglong(0))
        self.call("cuGraphDestroy", graph)
        return executable

    def replay(self, executable, stream):
        self.call("cuGraphLaunch", executable, stream)

    def graph_destroy(self, executable):
        self.call("cuGraphExecDestroy", executable)

    def new_context(self):
        """A context of its own on GPU 0, left off the thread. CUDA 13 and 12 name the function differently."""
        context = c_void_p()
        if hasattr(self.lib, "cuCtxCreate_v2"):
            self.call("cuCtxCreate_v2", byref(context), c_uint(0), self.device)
        else:
            self.call("cuCtxCreate_v4", byref(context), None, c_uint(0), self.device)
        popped = c_void_p()
        self.call("cuCtxPopCurrent_v2", byref(popped))
        self.use(self.context)
        return context

    def context_destroy(self, context):
        self.call("cuCtxDestroy_v2", context)


class Buffer:
    """Device memory with guard bytes on both sides. `size` bytes at `address`, which is 256-byte aligned plus
    `shift`."""

    GUARD = 4096
    PATTERN = 0xA5

    def __init__(self, driver, size, shift=0):
        self.driver, self.size = driver, size
        self.front = self.GUARD + shift
        self.whole = np.full(self.front + size + self.GUARD, self.PATTERN, np.uint8)
        self.base = driver.allocate(self.whole.nbytes)
        self.address = self.base + self.front
        driver.upload(self.base, self.whole)

    def put(self, array):
        assert array.nbytes == self.size
        self.driver.upload(self.address, np.ascontiguousarray(array))
        return self

    def get(self, dtype=np.float32):
        """The contents; fails if a guard byte has changed."""
        self.driver.download(self.base, self.whole)
        assert (self.whole[:self.front] == self.PATTERN).all(), "guard bytes in front of a buffer were written"
        assert (self.whole[self.front + self.size:] == self.PATTERN).all(), "guard bytes behind a buffer were written"
        return self.whole[self.front:self.front + self.size].copy().view(dtype)

    def free(self):
        if self.base:
            self.driver.keep(self.base, self.whole.nbytes)
            self.base = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.free()
