"""What a long run gets: each library alone on the GPU, product after product, until the power limit has set the clock.

bench/gpu/compare.py measures libraries in turns of one product: what a call among other work gets. A run of large
products on tensor cores draws all the power that the GPU is allowed, the clock falls, and every product takes longer.
This program measures that, for torch.matmul in float32, Tessera's fp32, the same with B packed beforehand, and cuBLAS's
fp16 product of that size. The last one's time is tripled: what the power limit allows three products to take.

Each is warmed up, then runs for --seconds; its time is the median between the CUDA events that follow each product.
Clock and power are read through NVML meanwhile. All rows take about 70 seconds.

    bench/gpu/run BUILD --sustained [--seconds 1.0] [--save [FILE]]
"""

import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import machine, results  # noqa: E402
from harness.data import REFERENCE  # noqa: E402

LARGE = ("8192 cubed", 8192, 8192, 8192, "nn")
DATA = ("rand", "randn")
WARM_UP_SECONDS = 0.35  # the clock settles within a tenth of a second
QUEUED = 8  # products queued at most: the GPU never waits for the host, and the host ends in time
READ_EVERY_SECONDS = 0.05  # clock and power
FP16_MULTIPLE = 8  # cuBLAS's fp16 product of other sizes is slow by itself


def gaps(events):
    """Microseconds between one event and the next."""
    return [1e3 * first.elapsed_time(second) for first, second in zip(events, events[1:])]


def run_for(function, seconds):
    """Queues products for that many seconds; returns the event after each of them, and the GPU's states meanwhile."""
    import torch

    events, states, begin, read = [], [], time.monotonic(), 0.0
    while time.monotonic() - begin < seconds or len(events) < 3:
        function()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        events.append(event)
        if len(events) > QUEUED:
            events[-1 - QUEUED].synchronize()
        if time.monotonic() - read >= READ_EVERY_SECONDS:
            states.append(machine.first_gpu().state())
            read = time.monotonic()
    torch.cuda.synchronize()
    return events, states


def sustained(function, seconds):
    """The median microseconds of a product, the median clock, and the last power: NVML averages it over a second."""
    run_for(function, WARM_UP_SECONDS)
    events, states = run_for(function, seconds)
    clock = round(statistics.median(state["clock_mhz"] for state in states))
    return round(statistics.median(gaps(events)), 1), {"clock_mhz": clock, "watts": states[-1]["power_w"]}


def fp16_product(m, n, k, layout, data):
    import torch
    from products import make

    m, n, k = (-(-size // FP16_MULTIPLE) * FP16_MULTIPLE for size in (m, n, k))
    a, b = (operand.half() for operand in make(m, n, k, layout, data))
    out = torch.empty(m, n, dtype=torch.float16, device="cuda")
    return lambda: torch.matmul(a, b, out=out)


def measure(seconds, problem, m, n, k, layout, data):
    import torch
    from peers import Tessera, binding, context, torch_float32
    from products import make

    a, b = make(m, n, k, layout, data)
    c = torch.empty(m, n, device="cuda")
    torch_us, torch_state = sustained(torch_float32(a, b, c), seconds)
    tessera_us, state = sustained(Tessera(context("fp32"), a, b, c), seconds)
    packed_us, packed_state = sustained(Tessera(context("fp32"), a, b, c, binding.RIGHT), seconds)
    fp16_us, fp16_state = sustained(fp16_product(m, n, k, layout, data), seconds)
    record = {
        "what": "sustained",
        "problem": problem,
        **{"m": m, "n": n, "k": k, "layout": layout, "data": data},
        **{"torch_us": torch_us, "tessera_us": tessera_us, "packed_us": packed_us},
        "fp16_third_us": round(3 * fp16_us, 1),
        **state,  # of Tessera's fp32
        **{f"torch_{name}": value for name, value in torch_state.items()},
        **{f"packed_{name}": value for name, value in packed_state.items()},
        **{f"fp16_{name}": value for name, value in fp16_state.items()},
    }
    return [record], (
        f"{problem:16s} {m:5d} {n:5d} {k:5d} {layout} {data:5s}  torch {torch_us:8.1f} us  fp32 {tessera_us:7.1f} us, "
        f"{torch_us / tessera_us:.2f} x  packed {packed_us:7.1f} us  three fp16 products {3 * fp16_us:7.1f} us  "
        f"{state['clock_mhz']} MHz  {state['watts']} W"
    )


def main():
    parser = argparse.ArgumentParser(description="What a long run gets: each library alone on this machine's GPU")
    parser.add_argument("--seconds", type=float, default=1.0, help="time to measure each library for (default 1.0)")
    place = "write the records there as JSON; without FILE to bench/results/sustained-MACHINE.json"
    parser.add_argument("--save", metavar="FILE", nargs="?", const="", help=place)
    options = parser.parse_args()
    if not {"clock_mhz", "power_w"} <= set(machine.first_gpu().state()):
        sys.exit("bench/gpu/sustained: this needs a GPU whose clock and power NVML tells")
    from products import about

    here = about()
    save = results.default_path("sustained", here["gpu"]) if options.save == "" else options.save
    jobs = [[*problem, data] for problem in [*REFERENCE, LARGE] for data in DATA]
    run = results.Run(save, here, options.seconds)
    run.finish(run.measure(jobs, lambda job: 1.0, lambda job: measure(options.seconds, *job)))


if __name__ == "__main__":
    main()
