"""An engine under test: a device, a precision and perhaps a forced kernel. Tests hand it NumPy views of any strides; on
CUDA the memory behind the views is copied to the GPU and back with every stride kept, so one test serves both."""

import contextlib
import functools
from dataclasses import dataclass, field

import numpy as np

import binding
import cuda_driver
from binding import CPU, CUDA, FP32, IEEE, PRECISIONS, TF32


def find_driver():
    """(driver, None), or (None, why there is none)."""
    if not binding.lib.tsr_has_cuda():
        return None, "the library was built without the CUDA engine"
    try:
        return cuda_driver.Driver(), None
    except (OSError, cuda_driver.CudaError) as error:
        return None, f"no usable GPU: {error}"


DRIVER, NO_GPU = find_driver()


def owner_of(array):
    """The C-contiguous array that owns the memory a view looks at."""
    found, at = array, array
    while at is not None:
        if isinstance(at, np.ndarray):
            found = at
        at = getattr(at, "base", None)
    return found if found.flags.c_contiguous else found.T


def bits(array):
    return array.view(np.uint32)


@dataclass
class Engine:
    device: int
    precision: int
    kernel: str = None
    resident_buffers: dict = field(default_factory=dict)
    made: binding.Context = None

    @property
    def name(self):
        parts = ["cuda" if self.device == CUDA else "cpu", PRECISIONS[self.precision], self.kernel]
        return "-".join(part for part in parts if part)

    @property
    def context(self):
        """One context for all tests of this engine: it is meant to be shared."""
        if self.made is None:
            self.made = self.new_context()
        return self.made

    def new_context(self, **options):
        return binding.Context(device=self.device, precision=self.precision, kernel=self.kernel, **options)

    # Where the memory behind a view is on the device.

    def address(self, view):
        if self.device == CPU:
            return view.ctypes.data
        owner = owner_of(view)
        return self.resident_buffers[id(owner)][1].address + view.ctypes.data - owner.ctypes.data

    def operand(self, view, packed=None):
        return binding.matrix(binding.Operand, view, self.address(view), packed)

    def result(self, view):
        return binding.matrix(binding.Result, view, self.address(view))

    @contextlib.contextmanager
    def resident(self, *views, changed=()):
        """Keeps the memory behind the views on the device, so that several products can use it. At the end what lies
        behind `changed` comes back; all the rest must be as it was, to the bit."""
        owners = {id(owner_of(view)): owner_of(view) for view in (*views, *changed)}
        owners = {key: owner for key, owner in owners.items() if key not in self.resident_buffers}
        outputs = {id(owner_of(view)) for view in changed}
        before = {key: owner.copy() for key, owner in owners.items() if key not in outputs}
        if self.device == CUDA:
            for key, owner in owners.items():
                self.resident_buffers[key] = owner, cuda_driver.Buffer(DRIVER, owner.nbytes).put(owner)
        try:
            yield
            for key, owner in owners.items():
                now = owner
                if self.device == CUDA:
                    now = self.resident_buffers[key][1].get().reshape(owner.shape)
                if key in outputs:
                    owner[...] = now
                else:
                    assert np.array_equal(bits(now), bits(before[key])), "an input was changed"
        finally:
            if self.device == CUDA:
                for key in owners:
                    self.resident_buffers.pop(key)[1].free()

    def multiply(self, a, b, c, alpha=1.0, beta=0.0, context=None, launch=None):
        """c = alpha*a*b + beta*c on views of two dimensions, or of three for a batch. Inputs are checked unchanged."""
        with self.resident(a, b, changed=[c]):
            batch = c.shape[0] if c.ndim == 3 else None
            binding.gemm(context or self.context, self.operand(a), self.operand(b), self.result(c), alpha, beta, batch,
                         launch)
        return c

    def product(self, a, b, alpha=1.0, context=None):
        """A new row-major a*b, poisoned beforehand."""
        c = np.full((*a.shape[:-1], b.shape[-1]), np.nan, np.float32)
        return self.multiply(a, b, c, alpha, context=context)


def kernel_names(device):
    """The kernels that tsr_info_print says run here: "cpu kernel: NAME, tile ..., runs here"."""
    prefix = {CPU: "cpu kernel: ", CUDA: "cuda kernel: "}[device]
    lines = [line[len(prefix):] for line in binding.info().splitlines() if line.startswith(prefix)]
    return [line.split(",")[0] for line in lines if line.endswith("runs here")]


def forced_cuda_engines():
    """Each CUDA kernel at the strictest precision it keeps. Kernels for thin results or short k alone take no general
    shape; the plan chooses them for those."""
    shape = (binding.Operand(None, 64, 100, 100, 1, 0), binding.Operand(None, 100, 64, 64, 1, 0),
             binding.Result(None, 64, 64, 64, 1, 0))
    for kernel in kernel_names(CUDA):
        for precision in (IEEE, FP32, TF32):
            engine = Engine(CUDA, precision, kernel)
            try:
                binding.Plan(engine.context, *shape)
            except binding.TesseraError as error:
                if error.status != binding.INVALID_ARGUMENT:
                    raise
            else:
                yield engine
                break


@functools.cache
def all_engines():
    """Every precision with the plan choosing, and every kernel this machine can run, forced. CPU first."""
    engines = [Engine(CPU, precision) for precision in (FP32, IEEE, TF32)]
    for kernel in kernel_names(CPU):
        engines += [Engine(CPU, precision, kernel) for precision in ((FP32, TF32) if kernel == "amx" else (IEEE,))]
    engines += [Engine(CUDA, precision) for precision in (FP32, IEEE, TF32)]
    return engines + list(forced_cuda_engines() if DRIVER else ())
