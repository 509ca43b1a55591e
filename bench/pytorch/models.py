"""Training steps of models beside torch: the products they do, one by one, and whole steps.

    TESSERA_LIBRARY=build/libtessera.so PYTHONPATH=python python3 bench/pytorch/models.py --save [options]

Products    a step is recorded: the shape and layout of each matrix product, how often it comes, and the data of the
            first of its kind. Each distinct one is then replayed from CUDA graphs, torch float32 and Tessera's fp32 in
            turns (with --tf32 torch TF32 and Tessera's tf32, too), without biases. A model's sum counts each as often
            as it came. The limit is the larger of what the tensor cores and the copy rate allow, and two microseconds.
            With --yardstick, copies of both operands, which read and write as much as packing does, and three of
            cuBLAS's fp16 products of that size are timed beside them
            --alone adds such rows for products that are not a model's: squares, long k, a batch, few columns
Steps       torch float32, torch TF32 and tessera.enable() in turns, from the same weights on the same batch, with the
            optimizer; eager, and with --compile under torch.compile

Models are built from configurations, never downloaded: from transformers and torchvision where these are installed, the
PINN and the encoder layer by torch alone. What cannot be built is left out, and said.
"""

import argparse
import copy
import pathlib
import statistics
import sys
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))
from peers import LIBRARIES  # noqa: E402
from products import Rounds, about  # noqa: E402
from harness import results, timing  # noqa: E402

import tessera  # noqa: E402

DEVICE = "cuda"
COPY_RATE, SPLIT_RATE, LAUNCH_SECONDS = 4.3e12, 263e12, 2e-6  # of an H200 at most
YARDSTICK, FP16_MULTIPLE = "yardstick", 8  # cuBLAS's fp16 product of other sizes is slow by itself
PRODUCTS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}


# ---- Models: each returns one, and a function of it that computes its loss on a fixed batch -------------------------

def tokens_of(vocabulary, batch, length):
    return torch.randint(vocabulary, (batch, length)).to(DEVICE)


def language_model(kind, config, batch, length):
    import transformers
    settings = getattr(transformers, config[0])(**config[1])
    tokens = tokens_of(settings.vocab_size, batch, length)
    return getattr(transformers, kind)(settings), lambda model: model(input_ids=tokens, labels=tokens).loss


def image_model(name, images):
    import torchvision
    batch, labels = torch.randn(images, 3, 224, 224).to(DEVICE), tokens_of(1000, 1, images)[0]
    made = getattr(torchvision.models, name)(weights=None)
    for part in made.modules():  # no layer is skipped at random
        if isinstance(part, torchvision.ops.StochasticDepth):
            part.p = 0.0
    return made, lambda model: torch.nn.functional.cross_entropy(model(batch), labels)


def pinn(width, depth, points):
    """Poisson's equation in the plane: second derivatives of the network by its two inputs."""
    layers = [torch.nn.Linear(2, width), torch.nn.Tanh()]
    for _ in range(depth - 1):
        layers += [torch.nn.Linear(width, width), torch.nn.Tanh()]
    places = torch.rand(points, 2).to(DEVICE)

    def loss(model):
        x = places.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        seconds = [torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(2)]
        return (seconds[0] + seconds[1] - 1).square().mean()

    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 1)), loss


def encoder_layer(width, heads, batch, length):
    x = torch.randn(batch, length, width).to(DEVICE)
    return (torch.nn.TransformerEncoderLayer(width, heads, dropout=0.0, batch_first=True),
            lambda model: (model(x) - x.roll(1, 1)).square().mean())


# (batch, m, n, k, layout) of normal data.
ALONE = [(1, 1024, 1024, 1024, "nn"), (1, 1536, 1536, 1536, "nn"), (1, 2048, 2048, 2048, "nn"),
         (1, 4096, 4096, 4096, "nn"), (1, 768, 3072, 8192, "tn"), (1, 3072, 768, 8192, "tn"),
         (1, 768, 768, 8192, "tn"), (128, 512, 1024, 2048, "nn"), (1, 8192, 50257, 768, "nt"),
         (1, 200704, 96, 384, "nn"), (1, 384, 96, 200704, "tn"), (1, 512, 512, 20000, "tn")]

NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
NO_BERT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LLAMA_160M = {"vocab_size": 32000, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
              "num_attention_heads": 12, "max_position_embeddings": 1024}
MODELS = {
    "GPT-2 124M, 8 x 1024": (language_model, "GPT2LMHeadModel", ("GPT2Config", NO_DROPOUT), 8, 1024),
    "BERT-base, 32 x 256": (language_model, "BertForMaskedLM", ("BertConfig", NO_BERT_DROPOUT), 32, 256),
    "Llama 160M, 8 x 1024": (language_model, "LlamaForCausalLM", ("LlamaConfig", LLAMA_160M), 8, 1024),
    "ViT-B/16, 64 images": (image_model, "vit_b_16", 64),
    "Swin-T, 64 images": (image_model, "swin_t", 64),
    "PINN, 6 layers of 512, 20,000 points": (pinn, 512, 6, 20000),
    "encoder layer of 256, 8 x 128": (encoder_layer, 256, 4, 8, 128),
}


# ---- Products -------------------------------------------------------------------------------------------------------

def same_layout(tensor):
    """A copy with the same strides, as far as its elements have places of their own."""
    try:
        return tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor)
    except RuntimeError:  # of elements that share one
        return tensor.clone()


class Recorder(TorchDispatchMode):
    """Counts the float32 products done while it is active, by their shapes and strides; keeps the first's operands."""

    def __init__(self):
        super().__init__()
        self.counts, self.operands = {}, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        places = PRODUCTS.get(function._schema.name)
        if places:
            a, b = (args[i] for i in places)
            key = (tuple(a.shape), a.stride(), tuple(b.shape), b.stride())
            if a.dtype == torch.float32 and a.numel() and b.numel():
                self.counts[key] = self.counts.get(key, 0) + 1
                if key not in self.operands:
                    self.operands[key] = [same_layout(a), same_layout(b)]
        return function(*args, **(kwargs or {}))


def limit_seconds(batch, m, n, k):
    elements = batch * (m * k + k * n + m * n)
    return max(2.0 * batch * m * n * k / SPLIT_RATE, 4.0 * elements / COPY_RATE) + LAUNCH_SECONDS


def layout_of(tensor):
    """n: rows are contiguous; t: columns are; s: neither."""
    rows, columns = tensor.stride()[-2:]
    return "n" if columns == 1 else "t" if rows == 1 else "s"


def copies_and_fp16_products(a, b, out):
    """Copies of both operands and three fp16 products of such a size, rounded up, of normal data in the same layout."""
    def fp16_like(matrix):
        rows, columns = (-(-size // FP16_MULTIPLE) * FP16_MULTIPLE for size in matrix.shape[-2:])
        stored = (columns, rows) if layout_of(matrix) == "t" else (rows, columns)
        made = torch.randn(*matrix.shape[:-2], *stored, device=DEVICE, dtype=torch.float16)
        return made.transpose(-1, -2) if layout_of(matrix) == "t" else made

    x, y = fp16_like(a), fp16_like(b)
    product = torch.matmul(x, y)
    copies = [(torch.empty_like(matrix), matrix) for matrix in (a, b)]

    def run():
        for copied, matrix in copies:
            copied.copy_(matrix)
        for _ in range(3):
            torch.matmul(x, y, out=product)

    return run


def measure_products(recorder, libraries, seconds, least):
    """A row for each distinct product: how often it came, and the microseconds that each library takes for it."""
    make, rows = {**LIBRARIES, YARDSTICK: copies_and_fp16_products}, []
    for key, count in recorder.counts.items():
        a, b = recorder.operands.pop(key)
        batch, (m, k), n = a.shape[0] if a.dim() > 2 else 1, a.shape[-2:], b.shape[-1]
        outs = [torch.empty(*a.shape[:-1], n, device=DEVICE) for _ in libraries]
        rounds = Rounds([make[name](a, b, out) for name, out in zip(libraries, outs)], 2.0 * batch * m * n * k)
        timings = timing.interleaved(rounds, seconds, least)
        rows.append({"count": count, "batch": batch, "m": m, "n": n, "k": k, "layout": layout_of(a) + layout_of(b),
                     "limit_us": round(1e6 * limit_seconds(batch, m, n, k), 2),
                     **{name: round(1e6 * measured.median, 2) for name, measured in zip(libraries, timings)}})
        del a, b, outs, rounds
    return rows


def sums(rows, libraries):
    """A step's milliseconds in products: of each library, and of the limit."""
    totals = {name: sum(row["count"] * row[name] for row in rows) / 1e3 for name in [*libraries, "limit_us"]}
    fields = {"torch float32": "products_torch_ms", "tessera fp32": "products_tessera_ms",
              "torch TF32": "products_torch_tf32_ms", "tessera tf32": "products_tessera_tf32_ms",
              YARDSTICK: "products_yardstick_ms", "limit_us": "products_limit_ms"}
    return {fields[name]: round(total, 3) for name, total in totals.items()}


# ---- Whole steps ----------------------------------------------------------------------------------------------------

class Training:
    """One way to train: a copy of the model with an optimizer of its own, and the setting its steps run under."""

    def __init__(self, model, loss, name, compiled):
        self.model, self.name = copy.deepcopy(model), name
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
        forward = torch.compile(self.model) if compiled else self.model
        self.loss, self.losses, self.seconds = lambda: loss(forward), [], []

    def step(self):
        torch.backends.cuda.matmul.allow_tf32 = self.name == "tf32"
        if self.name == "tessera":
            tessera.enable(devices=(DEVICE,), always=DEVICE == "cpu")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - begin)
        self.losses.append(loss.item())
        tessera.disable()
        torch.backends.cuda.matmul.allow_tf32 = False


def measure_steps(model, loss, compiled, steps, warm_up):
    """The milliseconds of a step and the furthest that losses are from torch float32's."""
    ways = [Training(model, loss, name, compiled) for name in ("torch", "tf32", "tessera")]
    for _ in range(warm_up + steps):
        for way in ways:
            way.step()
    record = {}
    for way in ways:
        record[f"step_{way.name}_ms"] = round(1e3 * statistics.median(way.seconds[warm_up:]), 3)
        if way is not ways[0]:
            furthest = max(abs(x - y) / abs(x) for x, y in zip(ways[0].losses, way.losses))
            record[f"loss_difference_{way.name}"] = float(f"{furthest:.2e}")
    return record


def measure_alone(options):
    """Those of ALONE, a record each."""
    recorder = Recorder()
    for batch, m, n, k, layout in ALONE:
        a, b = (torch.randn(*[batch] * (batch > 1), *(shape[::-1] if of == "t" else shape), device=DEVICE)
                for shape, of in zip(((m, k), (k, n)), layout))
        a, b = (x.transpose(-1, -2) if of == "t" else x for x, of in zip((a, b), layout))
        key = (tuple(a.shape), a.stride(), tuple(b.shape), b.stride())
        recorder.counts[key], recorder.operands[key] = 1, [a, b]
    rows = measure_products(recorder, ["torch float32", "tessera fp32", YARDSTICK], options.seconds,
                            3 if options.quick else 7)
    records = [{"what": "product alone", **{field: row[field] for field in ("batch", "m", "n", "k", "layout")},
                "torch_us": row["torch float32"], "tessera_us": row["tessera fp32"], "yardstick_us": row[YARDSTICK]}
               for row in rows]
    return records, "products alone" + "".join(
        f"\n  {r['batch']} of {r['m']} x {r['n']} x {r['k']} {r['layout']}: {r['tessera_us']:.1f} us, torch "
        f"{r['torch_us']:.1f}, {r['torch_us'] / r['tessera_us']:.2f} x; {r['yardstick_us'] / r['tessera_us']:.2f} "
        "of the yardstick" for r in records)


def measure(name, compiled, libraries, options):
    """A model's record, with its products if eager; without a name, that of ALONE."""
    if name is None:
        return measure_alone(options)
    torch.manual_seed(0)
    build, *sizes = MODELS[name]
    model, loss = build(*sizes)
    model = model.to(DEVICE).train()
    record, rows = {"what": "model", "model": name, "compiled": compiled}, []
    if not compiled and options.only != "steps":
        first = Training(model, loss, "torch", False)
        first.step()  # so that biases are no longer zero
        with Recorder() as recorder:
            first.step()
        del first
        rows = measure_products(recorder, libraries, options.seconds, 3 if options.quick else 7)
        record.update(sums(rows, libraries))
    if options.only != "products":
        record.update(measure_steps(model, loss, compiled, 3 if options.quick else 9, 2 if options.quick else 3))
    line = f"{name:38s}{' compiled' if compiled else ''} " + ", ".join(
        f"{field.removesuffix('_ms').replace('_', ' ')} {value:.2f}" for field, value in record.items()
        if field.endswith("_ms"))
    if rows:
        line += f"; products {record['products_torch_ms'] / record['products_tessera_ms']:.2f} x"
    if "step_torch_ms" in record:
        line += f"; step {record['step_torch_ms'] / record['step_tessera_ms']:.2f} x"
    if options.products:
        rows.sort(key=lambda row: -row["count"] * row["tessera fp32"])
        line += "".join("\n  " + " ".join(f"{value}" for value in row.values()) for row in rows)
    return [{**record, **({"products": rows} if rows else {})}], line


def can_be_built(name):
    needs = {language_model: "transformers", image_model: "torchvision"}.get(MODELS[name][0])
    try:
        if needs:
            __import__(needs)
        return True
    except ImportError as error:
        print(f"{name} is left out: {error}")
        return False


def main():
    parser = argparse.ArgumentParser(description="Training steps of models, with torch and with Tessera")
    parser.add_argument("--model", action="append", metavar="NAME",
                        help="only those whose names contain this, in any case (may be repeated)")
    parser.add_argument("--tf32", action="store_true", help="products with tf32 beside torch TF32, too")
    parser.add_argument("--yardstick", action="store_true", help="copies and three fp16 products, too")
    parser.add_argument("--alone", action="store_true", help="products that are not a model's, too")
    parser.add_argument("--compile", action="store_true", help="steps under torch.compile, too")
    parser.add_argument("--products", action="store_true", help="print each distinct product, costliest first")
    parser.add_argument("--only", choices=("products", "steps"), help="which is then not saved")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and steps")
    parser.add_argument("--seconds", type=float, default=0.03, help="time to spend on each product (default 0.03)")
    place = "write the records there as JSON; without FILE to bench/results/models-MACHINE.json"
    parser.add_argument("--save", metavar="FILE", nargs="?", const="", help=place)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    if options.only and options.save is not None:
        parser.error("--save needs products and steps")
    chosen = [name for name in MODELS if not options.model or any(part.lower() in name.lower()
                                                                   for part in options.model)]
    if not chosen and not options.alone:
        parser.error(f"no model is called so; there are: {'; '.join(MODELS)}")
    chosen = [name for name in chosen if can_be_built(name)]
    libraries = ["torch float32", "tessera fp32"] + ["torch TF32", "tessera tf32"] * options.tf32
    libraries += [YARDSTICK] * options.yardstick
    here = about()
    save = results.default_path("models", here["gpu"]) if options.save == "" else options.save
    # torch.compile has no second derivatives
    jobs = [[name, compiled] for compiled in [False] + [True] * options.compile for name in chosen
            if not (compiled and MODELS[name][0] is pinn)]
    jobs += [[None, False]] * options.alone
    run = results.Run(save, here, vars(options))
    run.finish(run.measure(jobs, lambda job: 5.0, lambda job: measure(*job, libraries, options)))


if __name__ == "__main__":
    main()
