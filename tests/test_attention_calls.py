"""The calls of attention: the same bits, workspace, floating-point modes, nothing to do, and every refusal of
src/attention.c."""

import ctypes
from ctypes import byref

import numpy as np
import pytest

import binding
import engine as engines
from attention import Attention, Exact, check_all, data
from binding import CUDA, INVALID_ARGUMENT, Heads, HeadsResult, Launch, lib
from cuda_driver import Buffer
from engine import bits
from layouts import POISON, poisoned

# ---- The same bits, memory, modes -----------------------------------------------------------------------------------


def results_of(engine, a, grad_o, context=None):
    o, lse = a.forward(engine, context=context)
    return [bits(np.ascontiguousarray(x)) for x in (o, lse, *a.backward(engine, o, lse, grad_o, context=context))]


def assert_same_bits(x, y):
    assert all(np.array_equal(one, other) for one, other in zip(x, y))


@pytest.fixture
def sizable(rng):
    q, k, v, grad_o = data(rng, 2, 3, 3, 300, 270, 64)
    return Attention(q, k, v, causal=True, dropout=0.1), grad_o


def test_same_bits_every_time(attending, sizable):
    first = results_of(attending, *sizable)
    for _ in range(2):
        assert_same_bits(first, results_of(attending, *sizable))


def test_same_bits_for_any_number_of_threads(attending_cpu, sizable):
    alone = results_of(attending_cpu, *sizable, context=attending_cpu.new_context(threads=1))
    for threads in (2, 5):
        assert_same_bits(alone, results_of(attending_cpu, *sizable, context=attending_cpu.new_context(threads=threads)))


UPWARD = 0x800  # FE_UPWARD of x86-64


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "fesetround"), reason="the C library has no fesetround")
def test_rounding_mode_of_the_caller(attending_cpu, sizable):
    expected = results_of(attending_cpu, *sizable)
    a, grad_o = sizable
    fesetround = ctypes.CDLL(None).fesetround
    o, lse, grads = (np.empty_like(a.q), np.empty((*a.q.shape[:3], 1), np.float32),
                     [np.empty_like(x) for x in (a.q, a.k, a.v)])
    results = [binding.heads(HeadsResult, x) for x in (o, lse, *grads)]
    problem = a.problem(attending_cpu)
    gradients = binding.AttentionGradients(*(binding.heads(Heads, x) for x in (o, lse, grad_o)), *results[2:])
    fesetround(UPWARD)
    try:
        binding.attention(attending_cpu.context, problem, *results[:2])
        binding.attention_backward(attending_cpu.context, problem, gradients)
    finally:
        fesetround(0)
    assert_same_bits(expected, [bits(x) for x in (o, lse[..., 0], *grads)])


def test_workspace_of_the_caller(attending, sizable):
    """As many bytes as tsr_attention_workspace says, and no more are touched."""
    a, grad_o = sizable
    expected = results_of(attending, a, grad_o)
    guard = 4096
    with attending.resident(*a.inputs()):
        sizes = [lib.tsr_attention_workspace(attending.context.handle, byref(a.problem(attending)), pass_)
                 for pass_ in (0, 1)]
    memory = np.full(max(sizes) // 4 + guard, POISON, np.float32)
    if attending.device == CUDA:
        buffer = Buffer(engines.DRIVER, memory.nbytes).put(memory)
        address = buffer.address
    else:
        start = -memory.ctypes.data % 256 // 4
        address = memory.ctypes.data + 4 * start
    launches = [Launch(None, address, size) for size in sizes]
    o, lse = a.forward(attending, launch=launches[0])
    grads = a.backward(attending, o, lse, grad_o, launch=launches[1])
    assert_same_bits(expected, [bits(np.ascontiguousarray(x)) for x in (o, lse, *grads)])
    if attending.device == CUDA:
        memory, start = buffer.get(), 0
        buffer.free()
    assert (bits(memory)[start + max(sizes) // 4:] == bits(POISON.reshape(1))).all(), "more was written"


def test_limits_of_workspace(attending_cpu, sizable):
    """Fewer threads and smaller blocks; where nothing helps, a refusal that writes nothing."""
    a, grad_o = sizable
    exact = Exact(a, grad_o)
    for limit in (200_000, 50_000):
        context = attending_cpu.new_context(max_workspace=limit, threads=4)
        size = lib.tsr_attention_workspace(context.handle, byref(a.problem(attending_cpu)), 1)
        assert 0 < size <= limit
        o, lse = a.forward(attending_cpu, context=context)
        grads = a.backward(attending_cpu, o, lse, grad_o, context=context)
        exact.check(o=o, lse=lse, grad_q=grads[0], grad_k=grads[1], grad_v=grads[2])
    context, o = attending_cpu.new_context(max_workspace=1000), poisoned(*a.q.shape)
    with pytest.raises(binding.TesseraError, match="max_workspace is 1000; this attention needs at least") as error:
        binding.attention(context, a.problem(attending_cpu), binding.heads(HeadsResult, o))
    assert error.value.status == binding.OUT_OF_MEMORY
    assert (bits(o) == bits(POISON.reshape(1))).all()


def test_products_are_not_counted(attending, rng):
    q, k, v, grad_o = data(rng, 1, 1, 1, 20, 30, 8)
    before = attending.context.stats().products
    check_all(attending, Attention(q, k, v), grad_o)
    assert attending.context.stats().products == before


# ---- Nothing to do --------------------------------------------------------------------------------------------------


def test_without_keys(attending, rng):
    q, k, v, grad_o = data(rng, 2, 2, 1, 70, 0, 16)
    a = Attention(q, k, v)
    o, lse = a.forward(attending)
    assert (o == 0).all() and (lse == np.inf).all()
    grad_q, _, _ = a.backward(attending, o, lse, grad_o)
    assert (grad_q == 0).all()


def test_without_queries(attending, rng):
    q, k, v, grad_o = data(rng, 2, 2, 1, 0, 70, 16)
    a = Attention(q, k, v)
    o, lse = a.forward(attending)
    _, grad_k, grad_v = a.backward(attending, o, lse, grad_o)
    assert (grad_k == 0).all() and (grad_v == 0).all()


@pytest.mark.parametrize("batch, heads", [(0, 2), (2, 0), (0, 0)])
def test_without_heads(attending, batch, heads):
    problem = binding.AttentionProblem(batch=batch, heads=heads, kv_heads=heads, queries=3, keys=4, dim=5)
    nothing = HeadsResult()
    binding.attention(attending.context, problem, nothing, nothing)
    assert lib.tsr_attention_workspace(attending.context.handle, byref(problem), 1) == 0


def test_lse_is_optional(attending, rng):
    q, k, v, _ = data(rng, 1, 1, 1, 20, 30, 8)
    a = Attention(q, k, v)
    o = np.full_like(q, np.nan)
    with attending.resident(*a.inputs(), changed=[o]):
        binding.attention(attending.context, a.problem(attending),
                          binding.heads(HeadsResult, o, attending.address(o)))
    Exact(a).check(o=o)


# ---- Refusals -------------------------------------------------------------------------------------------------------

BIG = 2**62


def apart(array):
    """The same with so much memory around it that what overlaps it overlaps no other."""
    memory = poisoned(array.size + 1024)[512:-512].reshape(array.shape)
    memory[...] = array
    return memory


class Call:
    """A valid attention and its backward pass, to be spoiled in one place and then refused."""

    def __init__(self, engine):
        self.engine, self.launch = engine, Launch()
        rng = np.random.default_rng(1)
        q, k, v, grad_o = map(apart, data(rng, 2, 4, 2, 5, 6, 8))
        self.results = [apart(poisoned(*shape)) for shape in (q.shape, (2, 4, 5, 1), q.shape, k.shape, v.shape)]
        self.arrays = q, k, v, apart(np.zeros((2, 4, 5, 6), np.float32)), grad_o, *self.results
        o, lse, grad_q, grad_k, grad_v = self.results
        operands = [binding.heads(Heads, x) for x in self.arrays[:4]]
        self.problem = binding.AttentionProblem(2, 4, 2, 5, 6, 8, *operands, 0.5)
        self.o, self.lse = binding.heads(HeadsResult, o), binding.heads(HeadsResult, lse)
        grads = [binding.heads(HeadsResult, x) for x in (grad_q, grad_k, grad_v)]
        self.gradients = binding.AttentionGradients(*(binding.heads(Heads, x) for x in (o, lse, grad_o)), *grads)

    def forward(self):
        return lib.tsr_attention(self.engine.context.handle, byref(self.problem), byref(self.o), byref(self.lse),
                                 byref(self.launch))

    def backward(self):
        return lib.tsr_attention_backward(self.engine.context.handle, byref(self.problem), byref(self.gradients),
                                          byref(self.launch))

    def refused(self, *words, forward=True, backward=True):
        for call in [self.forward] * forward + [self.backward] * backward:
            refused(call(), *words)
        assert all((bits(x) == bits(POISON.reshape(1))).all() for x in self.results), "a refused call wrote something"


def refused(status, *words):
    message = lib.tsr_last_error().decode()
    assert status == INVALID_ARGUMENT, (lib.tsr_status_name(status), message)
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"


@pytest.fixture
def call(attending_cpu):
    return Call(attending_cpu)


def test_a_call_that_is_not_spoiled(call):
    binding.check(call.forward())
    binding.check(call.backward())


def test_null_arguments(call):
    context, launch = call.engine.context.handle, byref(call.launch)
    refused(lib.tsr_attention(None, byref(call.problem), byref(call.o), None, launch), "context is NULL")
    refused(lib.tsr_attention(context, None, byref(call.o), None, launch), "problem is NULL")
    refused(lib.tsr_attention(context, byref(call.problem), None, None, launch), "o is NULL")
    refused(lib.tsr_attention_backward(None, byref(call.problem), byref(call.gradients), launch), "context is NULL")
    refused(lib.tsr_attention_backward(context, None, byref(call.gradients), launch), "problem is NULL")
    refused(lib.tsr_attention_backward(context, byref(call.problem), None, launch), "gradients is NULL")
    for arguments in ((None, byref(call.problem)), (context, None)):
        assert lib.tsr_attention_workspace(*arguments, 0) == 0 and "is NULL" in lib.tsr_last_error().decode()


@pytest.mark.parametrize("size", ["batch", "heads", "queries", "keys"])
def test_sizes(call, size):
    for value, why in ((-1, "must not be negative"), (2**31, "must not exceed 2147483647")):
        setattr(call.problem, size, value)
        call.refused(f"problem.{size} is {value}", why)
        assert lib.tsr_attention_workspace(call.engine.context.handle, byref(call.problem), 0) == 0


def test_more_heads_than_numbers(call):
    call.problem.batch = call.problem.heads = call.problem.kv_heads = 65536
    call.refused("problem.batch * problem.heads is 4294967296")


@pytest.mark.parametrize("kv_heads", [-2, 0, 3, 8])
def test_heads_that_do_not_divide(call, kv_heads):
    call.problem.kv_heads = kv_heads
    call.refused(f"problem.kv_heads is {kv_heads}", "divide problem.heads (4)")


@pytest.mark.parametrize("dim", [-1, 0, 257])
def test_dimensions(call, dim):
    call.problem.dim = dim
    call.refused(f"problem.dim is {dim}: it must be 1 to 256")


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan"), float("inf")])
def test_probabilities(call, dropout):
    call.problem.dropout = dropout
    call.refused("problem.dropout is", "65535/65536")


OPERANDS = ["problem.q", "problem.k", "problem.v", "problem.mask"]
SAVED = ["gradients.o", "gradients.lse", "gradients.grad_o"]
RESULTS, GRADIENTS = ["o", "lse"], ["gradients.grad_q", "gradients.grad_k", "gradients.grad_v"]


def matrix_of(call, name):
    for part in name.split("."):
        call = getattr(call, part)
    return call


def passes(name):
    return {"forward": name in OPERANDS + RESULTS, "backward": name not in RESULTS}


@pytest.mark.parametrize("name", [*OPERANDS, *SAVED, *RESULTS, *GRADIENTS])
def test_strides_that_leave_the_address_space(call, name):
    for stride in ("batch_stride", "head_stride", "row_stride", "col_stride"):
        if name.endswith("lse") and stride == "col_stride":
            continue  # of a single column
        matrix = matrix_of(call, name)
        for value in (BIG, -BIG):
            before = getattr(matrix, stride)
            setattr(matrix, stride, value)
            call.refused(f"{name}.{stride} is {value}", "address space", **passes(name))
            setattr(matrix, stride, before)


@pytest.mark.parametrize("name", [*OPERANDS, *SAVED, *RESULTS, *GRADIENTS])
def test_pointers(call, name):
    matrix = matrix_of(call, name)
    matrix.data += 2
    call.refused(f"{name}.data is not aligned to a float (4 bytes)", **passes(name))
    if name in ("problem.mask", *GRADIENTS):
        return  # NULL: none
    matrix.data = None
    call.refused(f"{name}.data is NULL", **passes(name))


@pytest.mark.parametrize("name", [*RESULTS, *GRADIENTS])
@pytest.mark.parametrize("stride", ["batch_stride", "head_stride", "row_stride"])
def test_results_whose_elements_share_addresses(call, name, stride):
    setattr(matrix_of(call, name), stride, 0)
    call.refused(f"{name}'s strides", "share an address", **passes(name))


@pytest.mark.parametrize("result, other", [(result, other) for result in RESULTS for other in OPERANDS] +
                         [(result, other) for result in GRADIENTS for other in OPERANDS + SAVED] +
                         [("lse", "o"), *zip(GRADIENTS[1:], GRADIENTS)])
def test_results_that_overlap(call, result, other):
    matrix_of(call, result).data = matrix_of(call, other).data + 16
    call.refused(f"{result} overlaps {other}", "memory of its own", **passes(result))


def test_slices_that_interleave_do_not_overlap(call):
    """grad_k and grad_v as halves of one tensor; one float further they meet."""
    memory = poisoned(2, 6, 2, 2, 8)  # batch, keys, k or v, heads, dim
    halves = [binding.heads(HeadsResult, np.swapaxes(memory[:, :, half], 1, 2)) for half in (0, 1)]
    call.gradients.grad_k, call.gradients.grad_v = halves
    binding.check(call.backward())
    for step in (4, -4):
        call.gradients.grad_v.data += step
        refused(call.backward(), "gradients.grad_v overlaps gradients.grad_k")
        call.gradients.grad_v.data -= step


def test_workspaces(call):
    memory = np.zeros(1 << 20, np.float32)
    address = memory.ctypes.data + -memory.ctypes.data % 256
    call.launch = Launch(None, address, 100)
    call.refused("launch.workspace_size is 100; this attention needs")
    call.launch = Launch(None, address + 64, 1 << 21)
    call.refused("launch.workspace is not aligned to 256 bytes")
