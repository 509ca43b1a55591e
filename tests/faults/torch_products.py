"""torch_products.py [KIND once|+]...: products of torch tensors while a call of a kind fails in libtessera or in the
operator. Each must give the right result, or an error with a sentence and `out` as it was; the drop-in always the right
result, because torch needs no memory of ours; and everything must work afterwards."""

import sys

import torch

import tessera

from each import each_fault, only_from

torch.set_num_threads(1)  # OpenMP's threads would not survive the fork


def integers(*shape):
    return torch.randint(-4, 5, shape).float()


A, B, BIAS, WEIGHT = integers(3, 150, 420), integers(3, 420, 170), integers(170), integers(170, 420)
PRODUCTS = {
    "small": (A[0, :9, :9] @ B[0, :9, :9], lambda out: tessera.matmul(A[0, :9, :9], B[0, :9, :9], out=out)),
    "large": (A[0] @ B[0], lambda out: tessera.matmul(A[0], B[0], out=out)),
    "ieee": (A[0] @ B[0], lambda out: tessera.matmul(A[0], B[0], precision="ieee", out=out)),
    "batch": (A @ B, lambda out: tessera.bmm(A, B, out=out)),
    "addend": (2 * (A[1] @ B[1]) + BIAS, lambda out: tessera.addmm(BIAS, A[1], B[1], alpha=2, out=out)),
}
RIGHT, LEFT = A[2] @ WEIGHT.T + BIAS, WEIGHT @ B[2]
GRADIENT = torch.ones(150, 170) @ B[0].T


def check(name, call, expected, faulty):
    """Whether it succeeded."""
    try:
        result = call()
    except (MemoryError, RuntimeError) as error:
        said = str(error)
        assert faulty, f"{name}: failed without a fault: {said}"
        # C++'s own is what torch makes MemoryError of, and in a backward pass RuntimeError.
        assert said == "std::bad_alloc" or (said.startswith("tessera: ") and "memory" in said), f"{name}: {error!r}"
        return False
    assert torch.equal(result, expected), f"{name}: wrong"
    return True


def pack_if_possible():
    try:
        return tessera.pack(WEIGHT)
    except MemoryError:
        return WEIGHT


def gradient():
    a = A[0].clone().requires_grad_()
    tessera.matmul(a, B[0]).sum().backward()
    return a.grad


def multiply_by_drop_in():
    """Only entering it may fail."""
    with tessera.enabled(devices="cpu", always=True):
        try:
            for _ in range(2):
                assert torch.equal(torch.mm(A[0], B[0]), PRODUCTS["large"][0]), "mm is wrong"
                assert torch.equal(torch.bmm(A, B), PRODUCTS["batch"][0]), "bmm is wrong"
                assert torch.equal(torch.addmm(BIAS, A[1], B[1], alpha=2), PRODUCTS["addend"][0]), "addmm is wrong"
        except (MemoryError, RuntimeError) as error:
            raise AssertionError(f"torch's own product fails: {error!r}") from error
    return torch.tensor(True)


def scenario(faulty):
    torch.set_num_threads(3)
    if not faulty:
        taken_before = tessera.stats().taken
        torch.mm(A[0], B[0])
    for name, (expected, multiply) in PRODUCTS.items():
        out = torch.full(expected.shape, 7.0)
        if not check(name, lambda multiply=multiply, out=out: (multiply(out), out)[1], expected, faulty):
            assert (out == 7).all(), f"{name}: failed, and wrote to out"
    packed = pack_if_possible() if faulty else tessera.pack(WEIGHT)
    for _ in range(2):
        check("packed, right", lambda: tessera.linear(A[2], packed, BIAS), RIGHT, faulty)
        check("packed, left", lambda: tessera.matmul(packed, B[2]), LEFT, faulty)
    check("gradient", gradient, GRADIENT, faulty)
    check("the drop-in", multiply_by_drop_in, torch.tensor(True), faulty)
    if not faulty:
        torch.mm(A[0], B[0])
        assert tessera.stats().taken - taken_before == 6, "the drop-in leaves products to torch, or stays on"


tessera.disable()  # loads the operator
tessera.reset_stats()
only_from("libtessera.so", "/torch-")
for kind, after in zip(sys.argv[1::2], sys.argv[2::2]):
    print(each_fault(kind, after, scenario), flush=True)
