"""What the drop-in did, as tessera.stats() tells it."""

from __future__ import annotations

from typing import NamedTuple, Optional


class ProductCount(NamedTuple):
    """How often a product was taken: `calls` times `batch` products of (m, k) by (k, n)."""
    device: str
    precision: str
    batch: int
    m: int
    n: int
    k: int
    calls: int
    gain: Optional[float]  # how many times as long torch would have taken on the GPU, as estimated; None on the CPU


class AttentionCount(NamedTuple):
    """How often an attention was taken: `direction` is "forward" or "backward"."""
    device: str
    precision: str
    direction: str
    batch: int
    heads: int
    queries: int
    keys: int
    dim: int
    calls: int


def _counted(taken: int, what: str, passed: dict[str, int]) -> str:
    left = ", ".join(f"{count} ({reason})" for reason, count in passed.items() if count)
    return f"{taken} {what} taken; left to torch: {left or 'none'}"


class Stats(NamedTuple):
    """What the drop-in did: how many products it took, how many it left to torch and why, and the former by kind, most
    calls first; then the same of attention."""
    taken: int
    passed: dict[str, int]
    products: list[ProductCount]
    attention_taken: int
    attention_passed: dict[str, int]
    attention: list[AttentionCount]
    advice: str  # if nothing was taken: why, and what would be

    def __str__(self) -> str:
        lines = [_counted(self.taken, "products", self.passed)]
        for p in self.products:
            batch = f"{p.batch} of " if p.batch != 1 else ""
            gain = f", about {p.gain:.2g} x torch's speed" if p.gain else ""
            lines.append(f"{p.calls:8} x {p.device} {p.precision} {batch}{p.m} x {p.n} x {p.k}{gain}")
        if self.attention_taken or any(self.attention_passed.values()):
            lines.append(_counted(self.attention_taken, "attentions", self.attention_passed))
        for a in self.attention:
            lines.append(f"{a.calls:8} x {a.device} {a.precision} {a.direction} {a.batch} x {a.heads} heads, "
                         f"{a.queries} queries, {a.keys} keys, dimension {a.dim}")
        lines += [self.advice] if self.advice else []
        return "\n".join(lines)
