"""Writes the self-contained modules of this folder from the library's own sources, or with --check says which of them are not
what it would write.

    python3 kernelbench/generate.py [--check]

A module is module.py.in, filled with a problem of the table below, with host.cpp.in and with kernels of src/cuda. Sources are taken
word for word, comments included, but for: includes of the project's own headers, which stand before what includes them; sections and
functions that no kernel of the module uses; and words that KernelBench's checker refuses wherever they stand (WORDS). A line
"@from FILE: NAMES" of host.cpp.in is replaced by the definitions of those names; "[Title]" stands for a whole section, "-NAME" behind
it for what to leave out of it.
"""

import pathlib
import re
import sys
import textwrap
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
CUDA = ROOT / "src/cuda"

# KernelBench takes these for Python's statements, also in comments and in CUDA text.
WORDS = {"pass": "sweep"}
REFUSED = [r"\bpass\b", r"\btry\s*:", r"\bexcept\s*:", r"\bexcept\s+\w+"]

IEEE_SOURCES = ["ieee_tile_128x128.cu", "ieee_tile_128x64.cu", "ieee_tile_64x64.cu"]
IEEE_MMA_SOURCE = "ieee_mma_sm90.cu"  # instead of those, on Hopper
IEEE_COMMON = ["ieee_slab.cuh", "ieee_reduce.cu"]
PACK_SOURCES = ["pack.cu", "split_reduce.cu"]
IEEE_KERNELS = ["IEEE_TILE_128X128", "IEEE_TILE_128X64", "IEEE_TILE_64X64"]
IEEE_MMA_KERNELS = ["IEEE_MMA_64X128", "IEEE_MMA_64X64", "IEEE_MMA_32X64", "IEEE_MMA_32X32", "IEEE_MMA_SHORT_K"]
PACK_KERNELS = ["PACK_SAMPLE", "PACK_SPLIT", "SPLIT_REDUCE"]

# Sources of the kernels that multiply split operands, and the section of each of their kernels.
WGMMA = ("split_wgmma_sm90.cu", {"SPLIT_FP32_SM90": "fp32, 384 threads", "SPLIT_FP32_SM90_T128": "fp32, 128 threads",
                                 "SPLIT_TF32_SM90": "tf32, 384 threads"})
MMA = ("split_mma_sm80.cu", {"SPLIT_FP32_MMA_SM80": "fp32", "SPLIT_TF32_MMA_SM80": "tf32"})


# ---- The problems ---------------------------------------------------------------------------------------------------------

@dataclass
class Problem:
    number: int
    name: str
    title: str
    formula: str
    shapes: str
    inputs: str  # lines of get_inputs
    transposed: tuple = (False, False)
    kind: str = "matrix"  # matrix, batch, rows: A's leading dimensions are rows, upper, lower: of C the triangle
    wgmma: str = "SPLIT_FP32_SM90"
    mma: str = "SPLIT_FP32_MMA_SM80"  # "" for none

    @property
    def file(self):
        return f"{self.number}_{self.name}"

    @property
    def forward(self):
        if self.kind == "rows":
            return ("        if A.dim() < 2 or B.dim() != 2 or A.shape[-1] != B.shape[0]:\n"
                    f'            raise RuntimeError("{self.mismatch}"\n'
                    '                               f"{tuple(A.shape)} and {tuple(B.shape)}")\n'
                    "        rows = product(A.flatten(0, -2), False, B, False, self.ieee)\n"
                    "        return rows.view(A.shape[:-1] + B.shape[-1:])\n")
        call = "product(A, {}, B, {}, self.ieee)".format(*self.transposed)
        return f"        return {call}" + {"upper": ".triu_()", "lower": ".tril_()"}.get(self.kind, "") + "\n"

    @property
    def mismatch(self):
        inner = ("rows" if self.transposed[0] else "columns", "columns" if self.transposed[1] else "rows")
        if self.kind == "batch":
            return "A and B must have as many matrices, and A as many columns as B has rows, but have shapes "
        return "A must have as many {} as B has {}, but they have shapes ".format(*inner)


def rand(*shapes):
    return "    return [" + ", ".join(f"torch.rand({shape})" for shape in shapes) + "]"


MATRICES = "A: (M, K), B: (K, N), C: (M, N)"
SQUARES = "A, B, C: (N, N)"
PROBLEMS = [
    Problem(1, "square", "Product of square matrices", "A @ B", SQUARES, rand("4096, 4096", "4096, 4096")),
    Problem(2, "standard", "Matrix product", "A @ B", MATRICES, rand("2048, 8192", "8192, 4096")),
    Problem(3, "batched", "Products of a batch of matrices", "A @ B", "A: (batch, M, K), B: (batch, K, N), C: (batch, M, N)",
            rand("128, 512, 1024", "128, 1024, 2048"), kind="batch"),
    Problem(6, "large_k", "Matrix product with large K", "A @ B", MATRICES, rand("256, 524288", "524288, 256")),
    Problem(7, "small_k", "Matrix product with small K", "A @ B", MATRICES, rand("32768, 64", "64, 32768")),
    Problem(8, "irregular", "Product of matrices of irregular sizes", "A @ B", MATRICES, rand("8205, 2949", "2949, 5921")),
    Problem(9, "tall_skinny", "Product of tall and skinny matrices", "A @ B", MATRICES, rand("32768, 32", "32, 32768")),
    Problem(10, "tensor_3d", "Product of a 3-D tensor and a matrix", "A @ B", "A: (N, M, K), B: (K, L), C: (N, M, L)",
            rand("16, 1024, 2048", "2048, 768"), kind="rows"),
    Problem(11, "tensor_4d", "Product of a 4-D tensor and a matrix", "A @ B", "A: (b, i, j, l), B: (l, k), C: (b, i, j, k)",
            rand("8, 256, 512, 256", "256, 768"), kind="rows"),
    Problem(13, "symmetric", "Product of symmetric matrices", "A @ B", SQUARES,
            "    A, B = torch.rand(4096, 4096), torch.rand(4096, 4096)\n    return [(A + A.T) / 2, (B + B.T) / 2]"),
    Problem(14, "upper_triangular", "Product of upper triangular matrices", "triu(A @ B)", SQUARES,
            "    return [torch.triu(torch.rand(4096, 4096)), torch.triu(torch.rand(4096, 4096))]", kind="upper"),
    Problem(15, "lower_triangular", "Product of lower triangular matrices", "tril(A @ B)", SQUARES,
            "    return [torch.tril(torch.rand(4096, 4096)), torch.tril(torch.rand(4096, 4096))]", kind="lower"),
    Problem(16, "transposed_a", "Matrix product, A transposed", "A.T @ B", "A: (K, M), B: (K, N), C: (M, N)",
            rand("8192, 2048", "8192, 4096"), transposed=(True, False)),
    Problem(17, "transposed_b", "Matrix product, B transposed", "A @ B.T", "A: (M, K), B: (N, K), C: (M, N)",
            rand("2048, 8192", "4096, 8192"), transposed=(False, True)),
    Problem(18, "transposed_both", "Matrix product, both transposed", "A.T @ B.T", "A: (K, M), B: (N, K), C: (M, N)",
            rand("8192, 2048", "4096, 8192"), transposed=(True, True), wgmma="SPLIT_FP32_SM90_T128", mma=""),
]


# ---- Taking sources apart ---------------------------------------------------------------------------------------------------

class NotFound(Exception):
    pass


SECTION = re.compile(r"^/\* ---- (.+?) -+ \*/\n", re.M)
COMMENT_BEFORE = r"(?:^/\*(?:(?!\*/).)*?\*/\n)?"


def find(text, pattern, what):
    found = re.search(pattern, text, re.M | re.S)
    if not found:
        raise NotFound(what)
    return found


def definition(text, name):
    """A function, struct or enumeration at the start of a line, with the comment before it."""
    if re.search(rf"^typedef (struct|enum) {name} \{{", text, re.M):
        pattern = rf"{COMMENT_BEFORE}^typedef (?:struct|enum) {name} \{{.*?^\}} {name};\n"
    else:
        pattern = rf"{COMMENT_BEFORE}^(?:template <[^\n]*> )?(?:[A-Za-z_][\w ]*[ *]){name}\([^;{{]*?\) \{{(?:[^\n]*\}}\n|.*?^\}}\n)"
    return find(text, pattern, name).group()


def section(text, title):
    """What stands under a section's headline, up to the next."""
    for match in SECTION.finditer(text):
        if match[1] == title:
            following = SECTION.search(text, match.end())
            return text[match.end():following.start() if following else len(text)]
    raise NotFound(f"section {title}")


def without(text, part):
    assert part in text
    return text.replace(part, "")


def without_section(text, title):
    headline = find(text, rf"^/\* ---- {re.escape(title)} -+ \*/\n", title).group()
    return without(without(text, section(text, title)), headline)


def source(path, seen, unused=()):
    """A file of src/cuda without its unused sections, before it the headers of the project that it includes, each once."""
    text = path.read_text()
    for title in unused:
        text = without_section(text, title)
    before = ""
    for include in re.findall(r'^#include "(?:cuda/)?([\w./]+)"\n', text, re.M):
        if include not in seen:
            seen.add(include)
            before += source(CUDA / include, seen)
    text = re.sub(r'^#include "[\w./]+"\n', "", text, flags=re.M)
    text = re.sub(r"^#ifndef (TESSERA_\w+_(?:H|CUH))\n#define \1\n(.*)^#endif\n", r"\2", text, flags=re.M | re.S)
    text = re.sub(r"^#pragma once\n", "", text, flags=re.M)
    if path.suffix == ".cu":
        # Each .cu is a file of its own in the library, and so are its names here; the kernels' are C's and known everywhere.
        headers = "".join(re.findall(r"^#include <[^\n]*\n", text, re.M))
        text = re.sub(r"^#include <[^\n]*\n", "", text, flags=re.M)
        text = f"{headers}namespace {path.stem} {{\n{text.strip()}\n}} // namespace {path.stem}\n"
    return f"{before}\n{tidy(text)}\n"


def tidy(text):
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


# ---- Putting modules together -------------------------------------------------------------------------------------------------

def kernel_row(name):
    """A row of kernels.c as one of host.cpp.in's table, which has the function behind the name."""
    row = find((CUDA / "kernels.c").read_text(), rf"^\[{name}\] =\n\s*\{{([^}}]*)\}},\n", name)[1]
    symbol, *rest = [column.strip() for column in row.split(",")]
    assert len(rest) == 14, f"{name}: kernels.c has other columns than host.cpp.in"
    return f"    {{{symbol}, (const void *){symbol.strip(chr(34))}, {', '.join(rest)}}},\n"


def by_target(problem, of):
    """Lines for the kernels that are there for any GPU, and inside of conditions for those that TESSERA_SPLIT brings along."""
    mma = f"#if TESSERA_SPLIT == 80\n{of([problem.mma])}#endif\n" if problem.mma else ""
    return (f"{of(['IEEE_REDUCE'])}#if TESSERA_SPLIT == 90\n{of([*IEEE_MMA_KERNELS, problem.wgmma])}#else\n{of(IEEE_KERNELS)}{mma}#endif\n"
            f"#if TESSERA_SPLIT\n{of(PACK_KERNELS)}#endif\n")


def kernel_table(problem):
    names = by_target(problem, lambda kernels: "    " + ", ".join(kernels) + ",\n")
    rows = by_target(problem, lambda kernels: "".join(map(kernel_row, kernels)))
    return (f"enum cuda_kernel_id {{\n{names}    CUDA_KERNELS\n}};\n\n"
            "/* The rows of src/cuda/kernels.c, each with its function behind the name. */\n"
            f"const cuda_kernel cuda_kernels[CUDA_KERNELS] = {{\n{rows}}};\n")


def prototypes(problem):
    """The kernels as the host compiler sees them: functions whose addresses name them."""
    sources = "".join((CUDA / name).read_text() for name in [*IEEE_COMMON, *IEEE_SOURCES, IEEE_MMA_SOURCE, *PACK_SOURCES, WGMMA[0], MMA[0]])
    attributes = r"(?:__\w+__\([^)]*\)\s+)*"
    kernels = dict(re.findall(rf'extern "C" __global__ void {attributes}(\w+)\(const __grid_constant__ (\w+) \w+\)', sources))
    return by_target(problem, lambda names: "".join(f'extern "C" void {name.lower()}({kernels[name.lower()]});\n' for name in names))


def host(problem):
    text = (HERE / "host.cpp.in").read_text()

    def taken(match):
        path, names = match[1], re.findall(r"\[[^\]]*\]|\S+", match[2])
        of = (ROOT / path).read_text()
        parts = []
        for name in names:
            if name[0] == "[":
                parts.append(section(of, name[1:-1]))
            elif name[0] == "-":
                parts[-1] = without(parts[-1], definition(of, name[1:]))
            else:
                parts.append(definition(of, name))
        return f"/* From {path}. */\n\n" + "\n".join(tidy(part) for part in parts) + "\n"

    text = re.sub(r"^@from (\S+): (.*)\n", taken, text, flags=re.M)
    text = text.replace("@prototypes", prototypes(problem)).replace("@kernels", kernel_table(problem))
    return text.replace("@dimensions", "3" if problem.kind == "batch" else "2").replace("@mismatch", problem.mismatch)


def guarded(condition, text):
    """The host's side of a kernel is compiled whatever the GPU."""
    return f"#if !defined(__CUDA_ARCH__) || {condition}\n\n{text}\n#endif\n"


def multiply_kernel(name, of, seen):
    """One of the kernels that multiply split operands."""
    path, sections = of
    return source(CUDA / path, set(seen), [title for kernel, title in sections.items() if kernel != name])


def wrapped(text):
    """Paragraphs filled to 120 columns, but for those that are indented."""
    paragraphs = text.strip("\n").split("\n\n")
    return "\n\n".join(p if p[0] == " " else textwrap.fill(p, 120, break_on_hyphens=False) for p in paragraphs) + "\n"


# What module.py.in has only where there is a kernel for Ampere and newer.
AMPERE = """\
    elif capability >= (8, 0):
        target, kernels = 80, [IEEE_TILE_KERNELS, PACK_KERNELS, MMA_KERNEL]
"""
MMA_PART = '''
# ---- The kernel that multiplies split operands on Ampere and newer, CUDA --------------------------------------------

MMA_KERNEL = r"""
@mma_kernel"""
'''


def module(problem):
    seen = {"args.h", *IEEE_COMMON}
    parts = {
        "host": host(problem),
        "arguments": source(CUDA / "args.h", seen),
        "ieee_common": "".join(source(CUDA / name, seen) for name in IEEE_COMMON),
        "ieee_tile_kernels": "".join(source(CUDA / name, seen) for name in IEEE_SOURCES),
        "ieee_mma_kernels": guarded("__CUDA_ARCH__ >= 900", source(CUDA / IEEE_MMA_SOURCE, seen)),
        "pack_kernels": guarded("__CUDA_ARCH__ >= 800", "".join(source(CUDA / name, seen) for name in PACK_SOURCES)),
    }
    wgmma = multiply_kernel(problem.wgmma, WGMMA, seen)
    if problem.wgmma != "SPLIT_FP32_SM90_T128":
        wgmma = without_section(wgmma, "Clusters")
    parts["wgmma_kernel"] = guarded("defined(__CUDA_ARCH_FEAT_SM90_ALL)", without(wgmma, definition(wgmma, "wgmma_64x256x16")))
    parts["mma_kernel"] = guarded("__CUDA_ARCH__ >= 800", multiply_kernel(problem.mma, MMA, seen)) if problem.mma else ""
    text = (HERE / "module.py.in").read_text()
    words = {
        "where": "on Hopper (compute capability 9.0, CUDA 12 or newer) through wgmma" +
                 (", on other GPUs from 8.0 on through mma.sync where that is quicker" if problem.mma else ""),
        "steps": re.search(r"\bSPLIT_SUM_K = (\d+)", parts["arguments"])[1],
        "threads": " Every kernel has blocks of exactly 128 threads." if problem.wgmma.endswith("_T128") else "",
        **{name: str(getattr(problem, name)) for name in ("number", "file", "title", "formula", "shapes", "inputs", "forward")},
    }
    for word, value in words.items():
        text = text.replace("@" + word, value)
    docstring, rest = text[3:].split('"""', 1)
    text = '"""' + wrapped(docstring) + '"""' + rest
    text = text.replace("@ampere", AMPERE if problem.mma else "").replace("@mma_part", MMA_PART if problem.mma else "")
    for part, value in parts.items():
        text = text.replace("@" + part, tidy(value))
    for word, other in WORDS.items():
        text = re.sub(rf"\b{word}\b", other, text)
    for pattern in REFUSED:
        assert not re.search(pattern, text), f"{problem.file}: KernelBench refuses {pattern}"
    return text


def main():
    different = []
    for problem in PROBLEMS:
        path, text = HERE / f"{problem.file}.py", module(problem)
        if not path.exists() or path.read_text() != text:
            different.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if "--check" in sys.argv:
        sys.exit("not what kernelbench/generate.py writes: " + ", ".join(different) + "; run make modules" if different else 0)
    print(f"kernelbench: {len(different)} of {len(PROBLEMS)} modules written anew")


if __name__ == "__main__":
    main()
