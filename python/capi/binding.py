"""tessera.h through ctypes: the structs, the functions, and little more. For tests/ and bench/; the package tessera has
a smaller binding of its own, for it is installed without the rest of the repository.

TESSERA_LIBRARY names the library to load. Where it is not set `lib` is None, and only the constants can be used."""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p

OK, INVALID_ARGUMENT, OUT_OF_MEMORY, UNSUPPORTED, NO_DEVICE, DEVICE_ERROR = range(6)
CPU, CUDA = range(2)
PRECISIONS = ("fp32", "ieee", "tf32")  # indexed by tsr_precision
FP32, IEEE, TF32 = range(len(PRECISIONS))
LEFT, RIGHT = range(2)


class Options(ctypes.Structure):
    _fields_ = [("device", c_int), ("device_index", c_int), ("precision", c_int), ("threads", c_int),
                ("max_workspace", c_size_t), ("kernel", c_char_p), ("batch_invariant", c_int)]


class Operand(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("rows", c_int64), ("cols", c_int64), ("row_stride", c_int64),
                ("col_stride", c_int64), ("batch_stride", c_int64), ("packed", c_void_p)]


class Result(ctypes.Structure):
    _fields_ = Operand._fields_[:-1]


class Launch(ctypes.Structure):
    _fields_ = [("stream", c_void_p), ("workspace", c_void_p), ("workspace_size", c_size_t)]


class Heads(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("batch_stride", c_int64), ("head_stride", c_int64), ("row_stride", c_int64),
                ("col_stride", c_int64)]


class HeadsResult(ctypes.Structure):
    _fields_ = Heads._fields_


class AttentionProblem(ctypes.Structure):
    _fields_ = [("batch", c_int64), ("heads", c_int64), ("kv_heads", c_int64), ("queries", c_int64), ("keys", c_int64),
                ("dim", c_int64), ("q", Heads), ("k", Heads), ("v", Heads), ("mask", Heads), ("scale", c_float),
                ("causal", c_int), ("dropout", c_float), ("seed", c_uint64), ("offset", c_uint64)]


class AttentionGradients(ctypes.Structure):
    _fields_ = [("o", Heads), ("lse", Heads), ("grad_o", Heads), ("grad_q", HeadsResult), ("grad_k", HeadsResult),
                ("grad_v", HeadsResult)]


class Stats(ctypes.Structure):
    _fields_ = [("products", c_uint64), ("split_products", c_uint64), ("marked_panels", c_uint64),
                ("fallback_tiles", c_uint64)]


def load(path):
    library = ctypes.CDLL(path)

    def declare(name, result, *arguments):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments

    declare("tsr_status_name", c_char_p, c_int)
    declare("tsr_last_error", c_char_p)
    declare("tsr_version", c_char_p)
    declare("tsr_has_cuda", c_int)
    declare("tsr_context_create", c_int, POINTER(c_void_p), POINTER(Options))
    declare("tsr_context_destroy", None, c_void_p)
    declare("tsr_context_threads", c_int, c_void_p)
    declare("tsr_precision_name", c_char_p, c_int)
    declare("tsr_gemm", c_int, c_void_p, c_float, POINTER(Operand), POINTER(Operand), c_float, POINTER(Result),
            POINTER(Launch))
    declare("tsr_gemm_pointers", c_int, c_void_p, c_int64, c_float, POINTER(Operand), POINTER(c_void_p),
            POINTER(Operand), POINTER(c_void_p), c_float, POINTER(Result), POINTER(c_void_p), POINTER(Launch))
    declare("tsr_gemm_batch", c_int, c_void_p, c_int64, c_float, POINTER(Operand), POINTER(Operand), c_float,
            POINTER(Result), POINTER(Launch))
    declare("tsr_gemm_add", c_int, c_void_p, c_int64, c_float, POINTER(Operand), POINTER(Operand), c_float,
            POINTER(Operand), POINTER(Result), POINTER(Launch))
    declare("tsr_plan_create", c_int, POINTER(c_void_p), c_void_p, c_int64, POINTER(Operand), POINTER(Operand),
            POINTER(Result))
    declare("tsr_plan_destroy", None, c_void_p)
    declare("tsr_plan_workspace", c_size_t, c_void_p)
    declare("tsr_plan_seconds", c_double, c_void_p)
    declare("tsr_plan_is_split", c_int, c_void_p)
    declare("tsr_plan_print", c_size_t, c_void_p, c_char_p, c_size_t)
    declare("tsr_plan_execute", c_int, c_void_p, c_float, c_void_p, c_void_p, c_float, c_void_p, POINTER(Launch))
    declare("tsr_plan_execute_add", c_int, c_void_p, c_float, c_void_p, c_void_p, c_float, POINTER(Operand), c_void_p,
            POINTER(Launch))
    declare("tsr_pack", c_int, POINTER(c_void_p), c_void_p, c_int, POINTER(Operand), POINTER(Launch))
    declare("tsr_packed_destroy", None, c_void_p)
    declare("tsr_pack_size", c_size_t, c_void_p, c_int, c_int64, c_int64)
    declare("tsr_pack_at", c_int, POINTER(c_void_p), c_void_p, c_void_p, c_int, c_float, POINTER(Operand))
    declare("tsr_gemm_host", c_int, c_void_p, c_int64, c_float, POINTER(Operand), POINTER(Operand), c_float,
            POINTER(Result), POINTER(c_double))
    declare("tsr_gemm_host_seconds", c_double, c_void_p, c_int64, POINTER(Operand), POINTER(Operand), c_float,
            POINTER(Result))
    declare("tsr_packed_read", c_int, c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p)
    declare("tsr_attention", c_int, c_void_p, POINTER(AttentionProblem), POINTER(HeadsResult), POINTER(HeadsResult),
            POINTER(Launch))
    declare("tsr_attention_backward", c_int, c_void_p, POINTER(AttentionProblem), POINTER(AttentionGradients),
            POINTER(Launch))
    declare("tsr_attention_workspace", c_size_t, c_void_p, POINTER(AttentionProblem), c_int)
    declare("tsr_tuning_path", c_size_t, c_void_p, c_char_p, c_size_t)
    declare("tsr_tuning_print", c_size_t, c_void_p, c_char_p, c_size_t)
    declare("tsr_tuning_set", c_int, c_void_p, c_char_p, c_double)
    declare("tsr_info_print", c_size_t, c_char_p, c_size_t)
    declare("tsr_stats_read", c_int, c_void_p, POINTER(Stats))
    declare("tsr_trim", c_int, c_void_p)
    return library


lib = load(os.environ["TESSERA_LIBRARY"]) if "TESSERA_LIBRARY" in os.environ else None


class TesseraError(Exception):
    def __init__(self, status):
        self.status = status
        self.message = lib.tsr_last_error().decode()
        super().__init__(f"{lib.tsr_status_name(status).decode()}: {self.message}")


def check(status):
    if status != OK:
        raise TesseraError(status)


def printed(function, *leading):
    """The whole text of a function that prints in the manner of snprintf."""
    size = function(*leading, None, 0)
    text = ctypes.create_string_buffer(size + 1)
    assert function(*leading, text, size + 1) == size
    return text.value.decode()


def info():
    return printed(lib.tsr_info_print)


class Context:
    """A tsr_context, destroyed with this object."""

    def __init__(self, device=CPU, precision=FP32, kernel=None, threads=0, max_workspace=0, device_index=-1,
                 batch_invariant=0):
        self.handle = c_void_p()
        options = Options(device, device_index, precision, threads, max_workspace,
                          None if kernel is None else kernel.encode(), batch_invariant)
        check(lib.tsr_context_create(byref(self.handle), byref(options)))

    def __del__(self):
        lib.tsr_context_destroy(self.handle)

    def stats(self):
        stats = Stats()
        check(lib.tsr_stats_read(self.handle, byref(stats)))
        return stats


def strides_in_floats(array):
    assert array.dtype == "float32" and all(stride % 4 == 0 for stride in array.strides)
    return [stride // 4 for stride in array.strides]


def matrix(kind, array, address=None, packed=None):
    """An Operand or Result for a matrix (2-D) or batch of matrices (3-D), at the array's own address or another."""
    batch_stride = strides_in_floats(array)[0] if array.ndim == 3 else 0
    rows, cols = array.shape[-2:]
    row_stride, col_stride = strides_in_floats(array)[-2:]
    made = kind(array.ctypes.data if address is None else address, rows, cols, row_stride, col_stride, batch_stride)
    if packed is not None:
        made.packed = packed.handle
    made.keep = (array, packed)
    return made


def heads(kind, array, address=None):
    """Heads or HeadsResult for an array (batch, heads, rows, columns), at the array's own address or another; None for
    none."""
    if array is None:
        return kind()
    made = kind(array.ctypes.data if address is None else address, *strides_in_floats(array))
    made.keep = array
    return made


def attention(context, problem, o, lse=None, launch=None):
    check(lib.tsr_attention(context.handle, byref(problem), byref(o), lse and byref(lse), launch and byref(launch)))


def attention_backward(context, problem, gradients, launch=None):
    check(lib.tsr_attention_backward(context.handle, byref(problem), byref(gradients), launch and byref(launch)))


def gemm(context, a, b, c, alpha=1.0, beta=0.0, batch=None, launch=None):
    """One product of Operands a and b into Result c, or `batch` of them."""
    launch = launch and byref(launch)
    if batch is None:
        check(lib.tsr_gemm(context.handle, alpha, byref(a), byref(b), beta, byref(c), launch))
    else:
        check(lib.tsr_gemm_batch(context.handle, batch, alpha, byref(a), byref(b), beta, byref(c), launch))


def gemm_pointers(context, batch, a, a_data, b, b_data, c, c_data, alpha=1.0, beta=0.0, launch=None):
    """Products whose data are at these addresses, each a list or None."""
    arrays = [None if data is None else (c_void_p * len(data))(*data) for data in (a_data, b_data, c_data)]
    check(lib.tsr_gemm_pointers(context.handle, batch, alpha, byref(a), arrays[0], byref(b), arrays[1], beta, byref(c),
                                arrays[2], launch and byref(launch)))


def gemm_add(context, a, b, addend, c, alpha=1.0, beta=1.0, batch=1, launch=None):
    """c = alpha*a*b + beta*addend; addend may be None."""
    check(lib.tsr_gemm_add(context.handle, batch, alpha, byref(a), byref(b), beta, addend and byref(addend), byref(c),
                           launch and byref(launch)))


class Plan:
    def __init__(self, context, a, b, c, batch=1):
        self.handle, self.context = c_void_p(), context
        check(lib.tsr_plan_create(byref(self.handle), context.handle, batch, byref(a), byref(b), byref(c)))

    def __del__(self):
        lib.tsr_plan_destroy(self.handle)

    def workspace(self):
        return lib.tsr_plan_workspace(self.handle)

    def seconds(self):
        return lib.tsr_plan_seconds(self.handle)

    def is_split(self):
        return bool(lib.tsr_plan_is_split(self.handle))

    def text(self):
        return printed(lib.tsr_plan_print, self.handle)

    def execute(self, a, b, c, alpha=1.0, beta=0.0, launch=None):
        """a, b and c are addresses."""
        check(lib.tsr_plan_execute(self.handle, alpha, a, b, beta, c, launch and byref(launch)))

    def execute_add(self, a, b, addend, c, alpha=1.0, beta=1.0, launch=None):
        """a, b and c are addresses, addend is an Operand or None."""
        check(lib.tsr_plan_execute_add(self.handle, alpha, a, b, beta, addend and byref(addend), c,
                                       launch and byref(launch)))


class Packed:
    def __init__(self, context, side, operand, launch=None):
        self.handle, self.context, self.operand = c_void_p(), context, operand
        check(lib.tsr_pack(byref(self.handle), context.handle, side, byref(operand), launch and byref(launch)))

    def __del__(self):
        lib.tsr_packed_destroy(self.handle)
