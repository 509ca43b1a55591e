"""What the results of training steps of models come to."""

from figures import bars_figure, mean, of, ratio, span


def eager(records):
    return of(records, "model", compiled=False)


def products_speedup(r):
    return r["products_torch_ms"] / r["products_tessera_ms"]


def step_speedup(r):
    return r["step_torch_ms"] / r["step_tessera_ms"]


def compiled_step(records, r):
    """Of the same model under torch.compile, where that was measured."""
    found = of(records, "model", compiled=True, model=r["model"])
    return f"{found[0]['step_torch_ms']:.1f} / {found[0]['step_tessera_ms']:.1f}, {ratio(step_speedup(found[0]))}" if (
        found) else ""


def tf32_products(r):
    return (ratio(r["products_torch_tf32_ms"] / r["products_tessera_tf32_ms"])
            if "products_tessera_tf32_ms" in r else "")


def of_yardstick(r):
    """The share that Tessera reaches of copies and three fp16 products."""
    return f"{r['products_yardstick_ms'] / r['products_tessera_ms']:.2f}" if "products_yardstick_ms" in r else ""


def alone(records):
    """Products that are not a model's."""
    groups, table = [], []
    for r in of(records, "product alone"):
        name = f"{r['batch']} of " * (r["batch"] > 1) + f"{r['m']} x {r['n']} x {r['k']} {r['layout']}"
        torch_us, ours, yardstick = r["torch_us"], r["tessera_us"], r["yardstick_us"]
        said = f"{name}: {torch_us:.1f} us with torch, {ours:.1f} with Tessera, {yardstick:.1f} the yardstick"
        groups.append((name, [("tessera fp32", torch_us / ours, ratio(torch_us / ours), said)]))
        table.append([name, f"{torch_us:.1f}", f"{ours:.1f}", ratio(torch_us / ours), f"{yardstick:.1f}",
                      f"{yardstick / ours:.2f}"])
    return table and bars_figure(
        "alone", "Products by themselves", "Some products beside a yardstick for what packs its operands: copies of "
        "both, which read and write what packing does, and three fp16 products of cuBLAS.", groups,
        (["product", "torch, us", "Tessera, us", "speedup", "the yardstick, us", "of the yardstick"], table),
        "Normal data, CUDA graphs, in turns. A product that is split as it is multiplied may take less.")


def figure(records):
    rows = eager(records)
    if not rows:
        return None
    groups, table = [], []
    for r in rows:
        said = (f"{r['model']}: products {r['products_torch_ms']:.2f} ms with torch, {r['products_tessera_ms']:.2f} "
                f"with Tessera; a step {r['step_torch_ms']:.1f} and {r['step_tessera_ms']:.1f}")
        groups.append((r["model"], [("tessera fp32", products_speedup(r), ratio(products_speedup(r)), said)]))
        table.append([
            r["model"], f"{r['products_torch_ms']:.2f}", f"{r['products_tessera_ms']:.2f}",
            ratio(products_speedup(r)), f"{r['products_limit_ms'] / r['products_tessera_ms']:.2f}", of_yardstick(r),
            tf32_products(r),
            *(f"{r[f'step_{name}_ms']:.1f}" for name in ("torch", "tf32", "tessera")), ratio(step_speedup(r)),
            compiled_step(records, r), f"{r['loss_difference_tf32']:.1e} / {r['loss_difference_tessera']:.1e}"
        ])
    return bars_figure(
        "models", "Training steps of models", f"The products of a step are {span([*map(products_speedup, rows)], 1)} "
        f"as fast as torch's float32, geometric mean {ratio(mean(map(products_speedup, rows)))}; whole steps "
        f"{span([*map(step_speedup, rows)], 1)}.", groups,
        (["model", "products: torch, ms", "Tessera, ms", "speedup", "share of the limit", "of the yardstick"] +
         ["tf32 beside TF32"] +
         ["step: torch, ms", "TF32, ms", "Tessera, ms", "speedup", "compiled: torch / Tessera, ms"] +
         ["loss difference, TF32 / Tessera"], table),
        "Products: recorded with their data, each distinct one replayed from CUDA graphs, in turns. The limit is the "
        "larger of operations at 263 TFLOP/s and bytes at 4.3 TB/s, and 2 us, for each product. The yardstick, timed "
        "beside them: copies of both operands, which read and write what packing does, and three fp16 products of "
        "cuBLAS. "
        "Steps: "
        "tessera.enable(), with attention, eager unless it says compiled. Loss difference: the largest relative one "
        "from torch float32's in the steps measured.")
