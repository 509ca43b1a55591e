"""Float32 attention: Tessera's operator beside torch's efficient attention on one GPU, interleaved in one process.

    TESSERA_LIBRARY=build/libtessera.so PYTHONPATH=python python3 bench/gpu/attention.py --sweep 60 --save

Forward passes keep the log-sum-exp, as in training; backward passes make all three gradients. Both libraries get the
same tensors, normal data in torch's usual layout (batch, heads, length, dim), and are called as torch calls them, one
operator each; TF32 is off. Times are medians of CUDA event pairs; short calls are timed several to a pair, from a CUDA
graph. Errors are relative Frobenius errors against float64 on a few heads, the largest of the three for gradients.

The sweep draws shapes on logarithmic scales: heads 1 to 64, lengths 1 to 8192, dimensions 16 to 256. `taken` says
whether the drop-in would take the attention or leave it to torch.
"""

import argparse
import math
import pathlib
import random
import statistics
import sys

import torch

from products import about, interleaved  # first: it lets Python find harness
from harness import results

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import tessera  # noqa: E402

DEVICE = "cuda"
# batch, heads, length, dim, causal: of models' sizes.
BARS = [(8, 12, 1024, 64, True), (32, 12, 256, 64, False), (64, 12, 197, 64, False), (4, 16, 4096, 64, True),
        (2, 16, 4096, 128, True), (8, 8, 2048, 128, False)]
MOST_HEADS, MOST_LENGTH, LEAST_DIM, MOST_DIM = 64, 8192, 16, 256
MOST_ELEMENTS, MOST_FLOPS = 1 << 26, 3e11  # of a tensor; of a forward pass: milliseconds of torch's
BACKWARD = 2.5  # five products to the forward pass's two
CHECKED_HEADS, CHECKED_ROWS = 2, 1024
BEHIND = 0.95


def flops_of(shape):
    """Of a forward pass, counting the scores that are seen."""
    _, batch, heads, queries, keys, dim, causal = shape
    seen = queries * keys
    if causal:
        full = min(queries, keys)
        seen = full * (full + 1) // 2 + (queries - full) * keys
    return 4.0 * batch * heads * seen * dim


def drawn_shapes(count, seed):
    """Shapes of bounded memory and time, the same for a seed."""
    numbers = random.Random(seed)

    def drawn(least, most):
        return round(least * (most / least)**numbers.random())

    shapes = []
    while len(shapes) < count:
        heads, queries = drawn(1, MOST_HEADS), drawn(1, MOST_LENGTH)
        keys = queries if numbers.random() < 0.6 else drawn(1, MOST_LENGTH)
        dim = 4 * round(drawn(LEAST_DIM, MOST_DIM) / 4)  # torch has no fused kernel for others
        shape = ("sweep", drawn(1, 64), heads, queries, keys, dim, numbers.random() < 0.5)
        elements = shape[1] * heads * max(queries, keys) * dim
        if elements <= MOST_ELEMENTS and flops_of(shape) <= MOST_FLOPS:
            shapes.append(shape)
    return shapes


# ---- What is timed --------------------------------------------------------------------------------------------------

def torch_forward(query, key, value, causal):
    return torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, None, True, 0.0, causal)


def torch_backward(gradient, query, key, value, saved, causal):
    return torch.ops.aten._scaled_dot_product_efficient_attention_backward(gradient, query, key, value, None, *saved,
                                                                           0.0, [True, True, True, False], causal)


def tessera_forward(query, key, value, causal):
    return torch.ops.tessera.attention(query, key, value, None, True, 0.0, causal)


def tessera_backward(gradient, query, key, value, saved, causal):
    return torch.ops.tessera.attention_backward(gradient, query, key, value, None, *saved, 0.0,
                                                [True, True, True, False], causal)


def is_taken(query, key, value, causal):
    """Whether the drop-in takes it."""
    tessera.reset_stats()
    with tessera.enabled():
        torch_forward(query, key, value, causal)
    return tessera.stats().attention_taken > 0


# ---- Errors ---------------------------------------------------------------------------------------------------------

def exact_head(query, key, value, gradient, causal):
    """Output and gradients of one head in float64, by blocks of queries, so that the weights stay small."""
    q, k, v, g = (tensor.double() for tensor in (query, key, value, gradient))
    (queries, dim), keys = q.shape, k.shape[0]
    scale = 1 / math.sqrt(dim)
    output, by_query, by_key, by_value = (torch.zeros_like(tensor) for tensor in (q, q, k, v))
    for begin in range(0, queries, CHECKED_ROWS):
        rows = slice(begin, min(begin + CHECKED_ROWS, queries))
        scores = scale * (q[rows] @ k.t())
        if causal:
            row = torch.arange(rows.start, rows.stop, device=q.device)[:, None]
            scores = scores.masked_fill(torch.arange(keys, device=q.device) > row, -math.inf)
        weights = torch.softmax(scores, 1)
        output[rows] = weights @ v
        by_value += weights.t() @ g[rows]
        by_weights = g[rows] @ v.t()
        by_scores = scale * weights * (by_weights - (weights * by_weights).sum(1, keepdim=True))
        by_query[rows] = by_scores @ k
        by_key += by_scores.t() @ q[rows]
    return output, by_query, by_key, by_value


def measured_errors(tensors, gradient, causal, found):
    """Of each library's (output, gradients by query, key and value): (forward error, backward error)."""
    batch, heads = tensors[0].shape[:2]
    chosen = sorted({(0, 0), (batch - 1, heads - 1)})[:CHECKED_HEADS]
    squares = [[0.0] * 4 for _ in found]
    reference = [0.0] * 4
    for item, head in chosen:
        exact = exact_head(*(tensor[item, head] for tensor in (*tensors, gradient)), causal)
        for i, value in enumerate(exact):
            reference[i] += value.square().sum().item()
            for of_library, results_of in zip(squares, found):
                of_library[i] += (results_of[i][item, head].double() - value).square().sum().item()
    # A single key has a weight of 1 and scores without gradient: nothing to be relative to.
    relative = [[math.sqrt(square / of) if of else math.sqrt(square) for square, of in zip(of_library, reference)]
                for of_library in squares]
    return [(errors[0], max(errors[1:])) for errors in relative]


# ---- Measuring ------------------------------------------------------------------------------------------------------

def measure(seconds, shape):
    problem, batch, heads, queries, keys, dim, causal = shape
    query = torch.randn(batch, heads, queries, dim, device=DEVICE)
    key, value = (torch.randn(batch, heads, keys, dim, device=DEVICE) for _ in range(2))
    gradient = torch.randn(batch, heads, queries, dim, device=DEVICE)
    taken = is_taken(query, key, value, causal)
    tensors = query, key, value
    ours, theirs = tessera_forward(*tensors, causal), torch_forward(*tensors, causal)
    our_gradients = tessera_backward(gradient, *tensors, ours, causal)
    their_gradients = torch_backward(gradient, *tensors, theirs, causal)
    errors = measured_errors(tensors, gradient, causal, [[ours[0], *our_gradients[:3]],
                                                         [theirs[0], *their_gradients[:3]]])
    flops = flops_of(shape)
    timed = {
        "forward": (flops, [lambda: tessera_forward(*tensors, causal), lambda: torch_forward(*tensors, causal)]),
        "backward": (BACKWARD * flops, [lambda: tessera_backward(gradient, *tensors, ours, causal),
                                        lambda: torch_backward(gradient, *tensors, theirs, causal)]),
    }
    records, said = [], []
    for i, (direction, (work, functions)) in enumerate(timed.items()):
        (tessera_time, torch_time), state = interleaved(functions, seconds, work)
        (error, torch_error) = errors[0][i], errors[1][i]
        speedup = torch_time.median / tessera_time.median
        records.append({
            "what": "attention", "problem": problem, "batch": batch, "heads": heads, "kv_heads": heads,
            "q_length": queries, "k_length": keys, "dim": dim, "causal": causal, "mask": "none",
            "direction": direction, "taken": taken, "torch_us": round(1e6 * torch_time.median, 2),
            "tessera_us": round(1e6 * tessera_time.median, 2), "speedup": round(speedup, 3),
            "tflops": round(work / tessera_time.median / 1e12, 2), "error": float(f"{error:.3e}"),
            "torch_error": float(f"{torch_error:.3e}"), "samples": len(tessera_time.samples),
            "spread": round(tessera_time.spread, 4), **state
        })
        said.append(f"{direction} {records[-1]['tessera_us']:9.1f} us, torch {records[-1]['torch_us']:9.1f} us, "
                    f"{speedup:5.2f} x, error {error:.1e} ({torch_error:.1e})")
    name = f"{batch} x {heads} x {queries}" + (f" / {keys}" if keys != queries else "") + f" x {dim}"
    line = f"{problem:5s} {name:26s} {'causal' if causal else '':6s} {'taken' if taken else 'left':5s} "
    return records, line + "; ".join(said)


def summary(records):
    for direction in ("forward", "backward"):
        of = [r for r in records if r["direction"] == direction]
        for problem in ("bars", "sweep"):
            speedups = [r["speedup"] for r in of if r["problem"] == problem]
            if speedups:
                print(f"{problem}, {direction}: geometric mean {statistics.geometric_mean(speedups):.2f} x, least "
                      f"{min(speedups):.2f} x, {sum(s < BEHIND for s in speedups)} of {len(speedups)} below {BEHIND} x")
        wrong = [r for r in of if r["taken"] and r["speedup"] < BEHIND]
        missed = [r for r in of if not r["taken"] and r["speedup"] > 1 / BEHIND]
        print(f"{direction}: {len(wrong)} taken and below {BEHIND} x, {len(missed)} left and above {1 / BEHIND:.2f} x")
        for r in of:
            if r["error"] > r["torch_error"]:
                print(f"less accurate than torch: {direction} {r['batch']} x {r['heads']} x {r['q_length']} x "
                      f"{r['k_length']} x {r['dim']}: {r['error']} > {r['torch_error']}")


def main():
    parser = argparse.ArgumentParser(description="float32 attention beside torch's on this machine's GPU")
    parser.add_argument("--sweep", type=int, default=0, metavar="N", help="so many random shapes, too")
    parser.add_argument("--seed", type=int, default=1, help="of the random shapes")
    parser.add_argument("--seconds", type=float, default=0.15, help="time to spend on each measurement (default 0.15)")
    parser.add_argument("--save", metavar="FILE", nargs="?", const="",
                        help="write the records there as JSON; without FILE to bench/results/attention-MACHINE.json")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    tessera.reset_stats()  # which loads the operators
    here = about()
    save = results.default_path("attention", here["gpu"]) if options.save == "" else options.save
    jobs = [("bars", batch, heads, length, length, dim, causal) for batch, heads, length, dim, causal in BARS]
    jobs += drawn_shapes(options.sweep, options.seed)
    run = results.Run(save, here, vars(options))
    records = run.measure(jobs, lambda job: 1.0, lambda job: measure(options.seconds, job))
    summary(records)
    run.finish(records)


if __name__ == "__main__":
    main()
