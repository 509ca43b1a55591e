"""Trains a GPT-2-size transformer in float32 three times: torch float32, torch TF32, and float32 on Tessera.

    python3 examples/train_gpt2.py                        # GPT-2 small on a GPU
    python3 examples/train_gpt2.py --save results.json    # and keeps what it measured
    python3 examples/train_gpt2.py --tiny                 # seconds, on any machine

All three start from the same random weights and see the same batches, and take turns of a few steps, so that they share
whatever the machine does meanwhile. Text is a synthetic language with structure to learn: each token depends on the one
before.
"""

import argparse
import dataclasses
import datetime
import json
import math
import os
import pathlib
import statistics
import subprocess
import time

import torch
from torch.nn import functional as F

import tessera


@dataclasses.dataclass
class Config:
    layers: int = 12
    heads: int = 12
    width: int = 768
    vocabulary: int = 50257
    context: int = 1024
    batch: int = 8
    dropout: float = 0.0


# Small enough for a CPU and a test.
TINY = Config(layers=2, heads=2, width=64, vocabulary=256, context=32, batch=4)


class Block(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.norm1, self.norm2 = torch.nn.LayerNorm(config.width), torch.nn.LayerNorm(config.width)
        self.attention_in = torch.nn.Linear(config.width, 3 * config.width)
        self.attention_out = torch.nn.Linear(config.width, config.width)
        self.up, self.down = torch.nn.Linear(config.width, 4 * config.width), torch.nn.Linear(
            4 * config.width, config.width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.attention_in(self.norm1(x)).split(width, dim=2))
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        x = x + F.dropout(self.attention_out(attended.transpose(1, 2).reshape(batch, length, width)), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")), self.dropout)


class Gpt(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = torch.nn.Embedding(config.vocabulary, config.width)
        self.positions = torch.nn.Embedding(config.context, config.width)
        self.dropout = torch.nn.Dropout(config.dropout)
        self.blocks = torch.nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = torch.nn.LayerNorm(config.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                last = name.endswith(("attention_out.weight", "down.weight"))
                torch.nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers) if last else 0.02)
            elif name.endswith("bias"):
                torch.nn.init.zeros_(parameter)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        return self.norm(self.blocks(self.dropout(x))) @ self.tokens.weight.t()


class Language:
    """Tokens of a fixed random language: of a few words, each is followed by the same one nine times of ten."""

    WORDS = 1000

    def __init__(self, config, device):
        self.config, self.device = config, device
        self.random = torch.Generator(device="cpu").manual_seed(5)
        self.words = min(self.WORDS, config.vocabulary)
        self.successor = torch.randperm(self.words, generator=self.random)

    def batch(self):
        shape = (self.config.batch, self.config.context + 1)
        tokens = torch.randint(self.words, shape, generator=self.random)
        follows = torch.rand(shape, generator=self.random) < 0.9
        for i in range(1, shape[1]):
            tokens[:, i] = torch.where(follows[:, i], self.successor[tokens[:, i - 1]], tokens[:, i])
        return tokens.to(self.device)


class Run:
    """One way to train: its own model and optimizer, and the setting its steps run under."""

    RISE = 20  # steps until the learning rate is what it stays: at once would throw the loss about

    def __init__(self, name, config, device, options, tf32=False, precision=None):
        torch.manual_seed(0)
        self.name, self.device, self.tf32, self.precision = name, device, tf32, precision
        self.model = Gpt(config).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.rate, weight_decay=0.1,
                                           fused=device == "cuda")
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / self.RISE))
        self.losses, self.seconds, self.always = [], [], options.tiny

    def step(self, tokens):
        logits = self.model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def turn(self, batches, timed):
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        if self.precision:
            tessera.enable(self.precision, devices=(self.device,), always=self.always)
        for tokens in batches:
            self.synchronize()
            begin = time.perf_counter()
            loss = self.step(tokens)
            self.synchronize()
            if timed:
                self.seconds.append(time.perf_counter() - begin)
            self.losses.append(loss.item())
        tessera.disable()
        torch.backends.cuda.matmul.allow_tf32 = False

    def synchronize(self):
        if self.device == "cuda":
            torch.cuda.synchronize()


def machine(device):
    commit = os.environ.get("TESSERA_COMMIT") or subprocess.run(
        ["git", "-C", str(pathlib.Path(__file__).parent), "rev-parse", "--short=12", "HEAD"], capture_output=True,
        text=True).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None, "torch": torch.__version__,
        "commit": commit or "unknown", "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a model and a few steps for any machine")
    parser.add_argument("--steps", type=int, default=40, help="steps of each way to train (default 40)")
    parser.add_argument("--warm-up", type=int, default=3, help="of these, how many are not timed (default 3)")
    parser.add_argument("--batch", type=int, help="sequences in a batch (default 8)")
    parser.add_argument("--dropout", type=float, default=0.0,
                        help="share of GPT-2's dropouts (0.1 in the original); runs then drop different elements, and "
                        "their losses differ by more than rounding (default 0)")
    parser.add_argument("--rate", type=float, default=6e-4, help="learning rate")
    parser.add_argument("--save", metavar="FILE", help="write what was measured there as JSON")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = TINY if options.tiny else Config()
    config = dataclasses.replace(config, batch=options.batch or config.batch, dropout=options.dropout)
    runs = [
        Run("torch float32", config, device, options),
        Run("Tessera fp32", config, device, options, precision="fp32")
    ]
    if device == "cuda":
        runs.insert(1, Run("torch TF32", config, device, options, tf32=True))
    language = Language(config, device)
    tessera.reset_stats()
    done, turn = 0, max(1, options.warm_up)
    while done < options.steps:
        batches = [language.batch() for _ in range(min(turn, options.steps - done))]
        for run in runs:
            run.turn(batches, timed=done >= options.warm_up)
        done += len(batches)
        print(f"step {done:4d}  " + "  ".join(f"{run.name}: {run.losses[-1]:.5f}" for run in runs), flush=True)

    parameters = sum(parameter.numel() for parameter in runs[0].model.parameters())
    tokens = config.batch * config.context
    records = []
    for run in runs:
        seconds = statistics.median(run.seconds)
        records.append({
            "name": run.name, "ms_per_step": round(seconds * 1e3, 3), "tokens_per_second": round(tokens / seconds),
            "speedup": round(statistics.median(runs[0].seconds) / seconds, 3),
            "loss": [round(loss, 6) for loss in run.losses]
        })
        furthest = max(abs(x - y) / x for x, y in zip(runs[0].losses, run.losses))
        records[-1]["furthest_from_float32"] = float(f"{furthest:.2e}")
        print(
            f"{run.name:14s} {seconds * 1e3:8.1f} ms a step, {tokens / seconds:9,.0f} tokens/s, "
            f"{records[-1]['speedup']:.2f} x, loss {run.losses[-1]:.5f}, at most {furthest:.1e} from torch float32's")
    stats = tessera.stats()
    print(f"{parameters / 1e6:.0f}M parameters, {tokens} tokens a step, {device}; "
          f"{stats.taken} products taken, left to torch: {dict((k, v) for k, v in stats.passed.items() if v)}; "
          f"{stats.attention_taken} attentions taken, left: "
          f"{dict((k, v) for k, v in stats.attention_passed.items() if v)}")
    if options.save:
        result = {**machine(device), "parameters": parameters, **dataclasses.asdict(config), "runs": records}
        pathlib.Path(options.save).write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
