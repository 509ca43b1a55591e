"""numpy_products.py [KIND once|+]...: products of NumPy arrays while a call of a kind fails in libtessera. Each must
give the right result, or MemoryError with a sentence and `out` as it was; and everything must work afterwards."""

import sys

import numpy as np
import tessera

from each import each_fault, only_from

rng = np.random.default_rng(19)


def integers(*shape):
    return rng.integers(-4, 5, shape).astype(np.float32)


A, B, BIAS = integers(3, 150, 420), integers(3, 420, 170), integers(170)
WEIGHT = np.asfortranarray(integers(170, 420))
PRODUCTS = {
    "small": (A[0, :9, :9] @ B[0, :9, :9], lambda out: tessera.matmul(A[0, :9, :9], B[0, :9, :9], out=out)),
    "large": (A[0] @ B[0], lambda out: tessera.matmul(A[0], B[0], out=out)),
    "ieee": (A[0] @ B[0], lambda out: tessera.matmul(A[0], B[0], precision="ieee", out=out)),
    "batch": (A @ B, lambda out: tessera.bmm(A, B, out=out)),
    "addend": (2 * (A[1] @ B[1]) + BIAS, lambda out: tessera.addmm(BIAS, A[1], B[1], alpha=2, out=out)),
    "several calls": (A.transpose(0, 2, 1)[:, None] @ A[:, :, :30],
                      lambda out: tessera.matmul(A.transpose(0, 2, 1)[:, None], A[:, :, :30], out=out)),
}


def check(name, call, expected, faulty):
    try:
        result = call()
    except MemoryError as error:
        assert faulty, f"{name}: failed without a fault: {error}"
        assert str(error).startswith("tessera: ") and len(str(error)) > 20, f"{name}: no sentence, but {error!r}"
        return False
    assert np.array_equal(result, expected), f"{name}: wrong"
    return True


def scenario(faulty):
    for name, (expected, multiply) in PRODUCTS.items():
        out = np.full(expected.shape, 7, np.float32)
        succeeded = check(name, lambda multiply=multiply, out=out: multiply(out), expected, faulty)
        assert succeeded or name == "several calls" or (out == 7).all(), f"{name}: failed, and wrote to out"
    packed = tessera.pack(WEIGHT)
    for _ in range(2):
        check("packed, right", lambda: tessera.linear(A[2], packed, BIAS), A[2] @ WEIGHT.T + BIAS, faulty)
        check("packed, left", lambda: tessera.matmul(packed, B[2]), WEIGHT @ B[2], faulty)


only_from("libtessera.so")
for kind, after in zip(sys.argv[1::2], sys.argv[2::2]):
    print(each_fault(kind, after, scenario), flush=True)
