"""What multiplies float32 matrices on a GPU: Tessera in its precisions, and its peers. Each is a function of tensors a,
b and out that makes one, `multiply()`, to be called as often as wanted; it queues a @ b into out on torch's current
stream.

LIBRARIES has all of them by name; `present()` says which are here, and why the others are not; `prepare()` compiles
beforehand what is compiled at first use.
"""

import concurrent.futures
import functools
import importlib.util
import multiprocessing
import sys
from ctypes import byref

import torch

from products import make  # first: it lets Python find harness, which lets it find binding
import binding

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if binding.lib is None:
    sys.exit("TESSERA_LIBRARY must name libtessera.so: call this through bench/gpu/run BUILD")


# ---- Tessera --------------------------------------------------------------------------------------------------------

def operand(kind, tensor):
    """A matrix, or a batch of them."""
    batch_stride = tensor.stride(0) if tensor.dim() > 2 else 0
    return kind(tensor.data_ptr(), *tensor.shape[-2:], *tensor.stride()[-2:], batch_stride)


class Tessera:
    """A product as the operator of a framework calls it: on torch's current stream, with workspace from torch's
    allocator."""

    def __init__(self, context, a, b, c, pack_side=None):
        self.context, self.tensors = context, (a, b, c)
        self.a, self.b, self.c = operand(binding.Operand, a), operand(binding.Operand, b), operand(binding.Result, c)
        self.launch = binding.Launch(torch.cuda.current_stream().cuda_stream, None, 0)
        if pack_side is not None:
            chosen = (self.a, self.b)[pack_side]
            self.packed = binding.Packed(context, pack_side, chosen, self.launch)
            chosen.packed = self.packed.handle
        self.batch = c.shape[0] if c.dim() > 2 else 1
        self.plan = plan = binding.Plan(context, self.a, self.b, self.c, self.batch)
        self.kernel = dict(line.split(": ", 1) for line in plan.text().splitlines() if ": " in line).get("kernel", "")
        self.workspace = torch.empty(max(1, plan.workspace()), dtype=torch.uint8, device="cuda")
        self.launch.workspace, self.launch.workspace_size = self.workspace.data_ptr(), self.workspace.numel()
        self.multiply = functools.partial(binding.lib.tsr_gemm_batch, context.handle, self.batch, 1.0, byref(self.a),
                                          byref(self.b), 0.0, byref(self.c), byref(self.launch))

    def __call__(self):
        self.launch.stream = torch.cuda.current_stream().cuda_stream
        binding.check(self.multiply())


class Packing:
    """The packing of one operand of a product, as that does it, into memory from torch's allocator."""

    def __init__(self, context, side, tensor):
        self.context, self.side, self.tensor, self.operand = context, side, tensor, operand(binding.Operand, tensor)
        self.memory = torch.empty(binding.lib.tsr_pack_size(context.handle, side, *tensor.shape), dtype=torch.uint8,
                                  device="cuda")
        self.launch = binding.Launch(None, self.memory.data_ptr(), self.memory.numel())

    def __call__(self):
        self.launch.stream = torch.cuda.current_stream().cuda_stream
        binding.Packed(self.context, self.side, self.operand, self.launch)


contexts = {}


def context(precision):
    if precision not in contexts:
        contexts[precision] = binding.Context(device=binding.CUDA, precision=binding.PRECISIONS.index(precision))
    return contexts[precision]


def tessera(precision):
    return lambda a, b, out: Tessera(context(precision), a, b, out)


# ---- torch ----------------------------------------------------------------------------------------------------------

def torch_product(tf32):
    def bind(a, b, out):
        def multiply():
            if torch.backends.cuda.matmul.allow_tf32 != tf32:  # changing it costs more than asking
                torch.backends.cuda.matmul.allow_tf32 = tf32
            torch.matmul(a, b, out=out)

        return multiply

    return bind


torch_float32, torch_tf32 = torch_product(False), torch_product(True)


# ---- Triton ---------------------------------------------------------------------------------------------------------

# The tiled product of its own tutorial, any strides and sizes, and each precision's best of a few tiles.

if triton:
    @triton.jit
    def product_kernel(a, b, c, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, layout,
                       precision: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
                       group: tl.constexpr):
        # Groups of tile rows, so that what blocks share stays in the L2 cache.
        block = tl.program_id(0)
        rows, columns = tl.cdiv(m, tile_m), tl.cdiv(n, tile_n)
        first = block // (group * columns) * group
        height = min(rows - first, group)
        tile_row = first + block % (group * columns) % height
        tile_column = block % (group * columns) // height

        i = (tile_row * tile_m + tl.arange(0, tile_m)).to(tl.int64)
        j = (tile_column * tile_n + tl.arange(0, tile_n)).to(tl.int64)
        p = tl.arange(0, tile_k).to(tl.int64)
        a_tile = a + (i % m)[:, None] * stride_am + p[None, :] * stride_ak
        b_tile = b + p[:, None] * stride_bk + (j % n)[None, :] * stride_bn
        total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
        for begin in range(0, k, tile_k):
            left = tl.load(a_tile, mask=p[None, :] < k - begin, other=0.0)
            right = tl.load(b_tile, mask=p[:, None] < k - begin, other=0.0)
            total = tl.dot(left, right, total, input_precision=precision)
            a_tile += tile_k * stride_ak
            b_tile += tile_k * stride_bk
        tl.store(c + i[:, None] * stride_cm + j[None, :] * stride_cn, total, mask=(i[:, None] < m) & (j[None, :] < n))

    def tuned(*tiles):
        """The kernel with the best of these tiles (m, n, k, warps, stages), found for each layout on the first product
        of it."""
        return triton.autotune([
            triton.Config({"tile_m": m, "tile_n": n, "tile_k": k, "group": 8}, num_warps=warps, num_stages=stages)
            for m, n, k, warps, stages in tiles
        ], key=["layout"])(product_kernel)

    TRITON = {"ieee": tuned((128, 128, 16, 8, 3), (64, 64, 16, 4, 3)),
              "tf32x3": tuned((128, 128, 32, 8, 3), (128, 64, 32, 4, 3), (128, 256, 32, 8, 3))}

    @triton.jit
    def fma_kernel(out, times, width: tl.constexpr):
        x = tl.arange(0, width).to(tl.float32) * 1e-9
        total = x
        for _ in range(times):
            for _ in tl.static_range(64):
                total = total * x + x
        tl.store(out + tl.program_id(0) * width + tl.arange(0, width), total)


def triton_numbers(m, n, k, a_strides, b_strides):
    """The kernel's arguments behind its pointers; C is contiguous."""
    return m, n, k, *a_strides, *b_strides, n, 1, 2 * (a_strides[1] == 1) + (b_strides[1] == 1)


def triton_product(precision):
    def bind(a, b, out):
        (m, k), n = a.shape, b.shape[1]
        numbers = triton_numbers(m, n, k, a.stride(), b.stride())

        def multiply():
            TRITON[precision][lambda tile: (triton.cdiv(m, tile["tile_m"]) * triton.cdiv(n, tile["tile_n"]), )](
                a, b, out, *numbers, precision=precision)

        return multiply

    return bind


def strides_of(m, n, k, layout):
    """Of A and B, as products.make makes them."""
    return (1, m) if layout[0] == "t" else (k, 1), (1, k) if layout[1] == "t" else (n, 1)


def triton_kinds(problems):
    """Of these problems one of each kind that Triton compiles apart: it looks whether a number is 1, and whether 16
    divides it."""
    kinds = {}
    for m, n, k, layout in problems:
        numbers = triton_numbers(m, n, k, *strides_of(m, n, k, layout))
        kinds.setdefault(tuple((number == 1, number % 16 == 0) for number in numbers), (m, n, k, layout))
    return kinds.values()


def compile_triton(precision, tile, m, n, k, layout):
    """Leaves the kernel with one of its tiles in Triton's cache of files."""
    tuned_kernel = TRITON[precision]
    tuned_kernel.fn.warmup(*[torch.float32] * 3, *triton_numbers(m, n, k, *strides_of(m, n, k, layout)),
                           precision=precision, **tuned_kernel.configs[tile].all_kwargs(), grid=(1, ))


# ---- CuPy and JAX ---------------------------------------------------------------------------------------------------

def cupy_float32(a, b, out):
    import cupy
    left, right, result = (cupy.from_dlpack(x) for x in (a, b, out))

    def multiply():
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            cupy.matmul(left, right, out=result)

    multiply.can_be_captured = False
    return multiply


class JaxProduct:
    """JAX has a stream of its own, which events on torch's do not see, so that it is timed by the host's clock. A
    transposed operand is one that the compiled function transposes."""

    compiled = {}

    def __init__(self, a, b, out):
        import jax
        transposes = not a.is_contiguous(), not b.is_contiguous()
        torch.cuda.synchronize()  # JAX does not wait for torch's stream
        self.operands = [
            jax.dlpack.from_dlpack(x.t() if transposed else x) for x, transposed in zip((a, b), transposes)
        ]
        self.out, self.function = out, self.compiled.setdefault(
            transposes,
            jax.jit(lambda x, y: jax.numpy.matmul(x.T if transposes[0] else x, y.T
                                                  if transposes[1] else y, precision="highest")))

    def __call__(self):
        self.result = self.function(*self.operands)

    def wait(self):
        self.result.block_until_ready()

    def synchronize(self):
        """Waits, and brings the result to where the others have theirs."""
        self.wait()
        self.out.copy_(torch.from_dlpack(self.result))


# ---- All of them ----------------------------------------------------------------------------------------------------

LIBRARIES = {
    "tessera fp32": tessera("fp32"), "tessera ieee": tessera("ieee"), "tessera tf32": tessera("tf32"),
    "torch float32": torch_float32, "torch TF32": torch_tf32,
    "Triton ieee": triton_product("ieee"), "Triton tf32x3": triton_product("tf32x3"),
    "CuPy": cupy_float32, "JAX highest": JaxProduct,
}
# m, n, k of the product that each library must get right first, and that Triton's tiles are tuned on.
TRIAL = (4096, 4096, 4096)
COMPILED_FOR_EACH_SHAPE = ("JAX highest",)  # which takes seconds: only on the reference problems
MODULES = {"Triton ieee": "triton", "Triton tf32x3": "triton", "CuPy": "cupy", "JAX highest": "jax"}


def multiply_once(name, m, n, k, layout):
    multiply = LIBRARIES[name](*make(m, n, k, layout, "rand"), torch.empty(m, n, device="cuda"))
    multiply()
    multiply.wait()


def prepare(names, problems):
    """Compiles for these problems (m, n, k, layout) what would be compiled at first use, on all cores at once: in turn
    it takes minutes. Triton's compiler does so in processes, JAX's in threads. What cannot be compiled says so when it
    is used."""
    names = [name for name in names if importlib.util.find_spec(MODULES.get(name, "torch"))]
    precisions = [precision for precision in ("tf32x3", "ieee") if "Triton " + precision in names]
    tiles = [(precision, tile, *kind) for kind in triton_kinds(problems) for precision in precisions
             for tile in range(len(TRITON[precision].configs))]
    shapes = [(name, *problem) for name in COMPILED_FOR_EACH_SHAPE if name in names for problem in problems]
    spawned = multiprocessing.get_context("spawn")  # for a process with CUDA cannot be forked
    with concurrent.futures.ProcessPoolExecutor(
            mp_context=spawned) as processes, concurrent.futures.ThreadPoolExecutor() as threads:
        for tile in tiles:
            processes.submit(compile_triton, *tile)
        for shape in shapes:
            threads.submit(multiply_once, *shape)


def present(names):
    """Those of the libraries that are here, and the reasons why others are not; names that are none are refused."""
    unknown = [name for name in names if name not in LIBRARIES]
    if unknown:
        sys.exit(f"there is no library called {unknown[0]!r} here; those known are: {', '.join(LIBRARIES)}")
    here, absent = [], {}
    m, n, k = TRIAL
    a, b = torch.rand(m, k, device="cuda"), torch.rand(k, n, device="cuda")
    exact = a.double() @ b.double()
    for name in names:
        out = torch.full((m, n), float("nan"), device="cuda")
        try:
            __import__(MODULES.get(name, "torch"))
            multiply = LIBRARIES[name](a, b, out)
            multiply()
            getattr(multiply, "synchronize", torch.cuda.synchronize)()
            if not torch.allclose(out.double(), exact, rtol=1e-2):
                raise ArithmeticError("its product is wrong")
            here.append(name)
        except Exception as error:  # whatever a library does when it cannot work here
            absent[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
    return here, absent
