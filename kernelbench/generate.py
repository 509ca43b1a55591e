"""Writes the self-contained PyTorch modules: module.py.in, filled with a problem of the table below and with kernels.

    python3 kernelbench/generate.py               the five that the repository keeps, into this folder
    python3 kernelbench/generate.py --check       says which of those are not what it would write
    python3 kernelbench/generate.py --all FOLDER  all fifteen, into FOLDER

Two things are replaced in a template. "@name@" stands for a value of the problem. A line "@include FILE" stands for
that file's lines; "@include FILE: NAME ..." for its regions of these names, in the file's order; "-NAME" leaves a
region out. A region is what stands between "// region: NAME" and "// endregion: NAME"; these markers are left out. A
#pragma that unrolls a loop joins the loop's line, where that leaves it short enough.

The loop of products (src/cuda/kernels/split/split_wgmma.cuh) and powers of two (split.cuh) are the library's own. All
else is in this folder: a module has no tf32, alpha, beta, split-K or strides of C, which saves two thirds of the lines.
"""

import pathlib
import sys
from dataclasses import asdict, dataclass

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
WIDTH = 120  # of a line
KEPT = (1, 2, 8, 16, 18)
REFUSED = {"pass", "try", "except"}  # KernelBench's checker takes these for Python's statements, in any language


# ---- The problems ---------------------------------------------------------------------------------------------------

@dataclass
class Problem:
    number: int
    name: str
    title: str
    shapes: str
    inputs: str  # what get_inputs returns
    formula: str = "A @ B"
    product: str = "product(A, B, self.ieee)"
    bad_dimensions: str = "A.dim() != 2 or B.dim() != 2"
    also_required: str = ""
    kernel: str = "multiply_sm90"

    @property
    def file(self):
        return f"{self.number}_{self.name}"

    def values(self):
        """What the templates' names stand for."""
        of_a = ("rows", -2) if "A.T" in self.formula else ("columns", -1)
        of_b = ("columns", -1) if "B.T" in self.formula else ("rows", -2)
        values = {
            "file": self.file,
            "mismatch": f"{self.bad_dimensions} or A.shape[{of_a[1]}] != B.shape[{of_b[1]}]",
            "requirement": f"{self.also_required}A must have as many {of_a[0]} as B has {of_b[0]}",
            "instructions": "hopper", "block_threads": "384", "cluster": "1", "shared": "217136", "threads": "",
        }
        if self.kernel == "multiply_sm90_t128":
            values.update(instructions="hopper clusters -arrive", block_threads="128", cluster="2", shared="108576",
                          threads="\nEvery kernel has thread blocks of exactly 128 threads.\n")
        return {**{name: str(value) for name, value in asdict(self).items()}, **values}


def rand(*shapes, of="{}"):
    return "[" + ", ".join(of.format(f"torch.rand({shape})") for shape in shapes) + "]"


MATRICES = "A: (M, K), B: (K, N), C: (M, N)"
SQUARES = "A, B, C: (N, N)"
LEADING = {  # A's leading dimensions are rows
    "product": "product(A.flatten(0, -2), B, self.ieee).view(A.shape[:-1] + B.shape[-1:])",
    "bad_dimensions": "A.dim() < 2 or B.dim() != 2"
}
PROBLEMS = [
    Problem(1, "square", "Product of square matrices", SQUARES, rand("4096, 4096", "4096, 4096")),
    Problem(2, "standard", "Matrix product", MATRICES, rand("2048, 8192", "8192, 4096")),
    Problem(3, "batched", "Products of a batch of matrices", "A: (batch, M, K), B: (batch, K, N), C: (batch, M, N)",
            rand("128, 512, 1024", "128, 1024, 2048"), also_required="A and B must have as many matrices, and ",
            bad_dimensions="A.dim() != 3 or B.dim() != 3 or A.shape[0] != B.shape[0]"),
    Problem(6, "large_k", "Matrix product with large K", MATRICES, rand("256, 524288", "524288, 256")),
    Problem(7, "small_k", "Matrix product with small K", MATRICES, rand("32768, 64", "64, 32768")),
    Problem(8, "irregular", "Product of matrices of irregular sizes", MATRICES, rand("8205, 2949", "2949, 5921")),
    Problem(9, "tall_skinny", "Product of tall and skinny matrices", MATRICES, rand("32768, 32", "32, 32768")),
    Problem(10, "tensor_3d", "Product of a 3-D tensor and a matrix", "A: (N, M, K), B: (K, L), C: (N, M, L)",
            rand("16, 1024, 2048", "2048, 768"), **LEADING),
    Problem(11, "tensor_4d", "Product of a 4-D tensor and a matrix", "A: (b, i, j, l), B: (l, k), C: (b, i, j, k)",
            rand("8, 256, 512, 256", "256, 768"), **LEADING),
    Problem(13, "symmetric", "Product of symmetric matrices", SQUARES,
            "[(x + x.T) / 2 for x in (torch.rand(4096, 4096), torch.rand(4096, 4096))]"),
    Problem(14, "upper_triangular", "Product of upper triangular matrices", SQUARES,
            rand("4096, 4096", "4096, 4096", of="torch.triu({})"), "triu(A @ B)", "product(A, B, self.ieee).triu_()"),
    Problem(15, "lower_triangular", "Product of lower triangular matrices", SQUARES,
            rand("4096, 4096", "4096, 4096", of="torch.tril({})"), "tril(A @ B)", "product(A, B, self.ieee).tril_()"),
    Problem(16, "transposed_a", "Matrix product, A transposed", "A: (K, M), B: (K, N), C: (M, N)",
            rand("8192, 2048", "8192, 4096"), "A.T @ B", "product(A.T, B, self.ieee)"),
    Problem(17, "transposed_b", "Matrix product, B transposed", "A: (M, K), B: (N, K), C: (M, N)",
            rand("2048, 8192", "4096, 8192"), "A @ B.T", "product(A, B.T, self.ieee)"),
    Problem(18, "transposed_both", "Matrix product, both transposed", "A: (K, M), B: (N, K), C: (M, N)",
            rand("8192, 2048", "4096, 8192"), "A.T @ B.T", "product(A.T, B.T, self.ieee)", kernel="multiply_sm90_t128"),
]


# ---- Putting modules together ---------------------------------------------------------------------------------------

def include(name, regions):
    """The lines of a file, of its `regions`, or with "-NAME" of all but those."""
    wanted = {region for region in regions if region[0] != "-"}
    unwanted = {region[1:] for region in regions if region[0] == "-"}
    lines, open_regions, seen = [], [], set()
    for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
        words = line.split()
        if words[:2] == ["//", "region:"]:
            open_regions.append(words[2])
            seen.add(words[2])
        elif words[:2] == ["//", "endregion:"]:
            if not open_regions or open_regions.pop() != words[2]:
                sys.exit(f"{name}:{number}: region {words[2]} is not open")
        elif (wanted.intersection(open_regions) or not wanted) and not unwanted.intersection(open_regions):
            lines.append(line)
    if open_regions:
        sys.exit(f"{name}: no end of region {open_regions[-1]}")
    if (wanted | unwanted) - seen:
        sys.exit(f"{name}: no region {', '.join((wanted | unwanted) - seen)}")
    for i in range(len(lines) - 1, 0, -1):
        pragma, loop = lines[i - 1].split(), lines[i].lstrip()
        joined = '{}_Pragma("{}") {}'.format(" " * (len(lines[i]) - len(loop)), " ".join(pragma[1:]), loop)
        if pragma[:2] == ["#pragma", "unroll"] and len(joined) <= WIDTH:
            lines[i - 1 : i + 1] = [joined]
    return lines


def fill(lines, values):
    """A template's lines, with everything replaced."""
    for line in lines:
        for name, value in values.items():
            line = line.replace(f"@{name}@", value)
        if line.startswith("@include "):
            name, _, regions = line[len("@include ") :].partition(":")
            yield from fill(include(name, regions.split()), values)
        else:
            yield line


def refused(text):
    """The first line, with its number, that KernelBench's checker would refuse. It ignores what follows # or //."""
    for number, line in enumerate(text.splitlines(), 1):
        code = line.split("#")[0].split("//")[0]
        words = "".join(c if c.isalnum() or c == "_" else " " for c in code).split()
        if REFUSED.intersection(words):
            return f"{number}: {line.strip()}"
    return None


def module(problem):
    text = "\n".join(fill((HERE / "module.py.in").read_text().splitlines(), problem.values())) + "\n"
    if refused(text):
        sys.exit(f"{problem.file}: KernelBench would refuse line {refused(text)}")
    return text


def main():
    everything = len(sys.argv) == 3 and sys.argv[1] == "--all"
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not everything and not check:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[2]) if everything else HERE
    folder.mkdir(parents=True, exist_ok=True)
    different = []
    for problem in PROBLEMS:
        if everything or problem.number in KEPT:
            path, text = folder / f"{problem.file}.py", module(problem)
            if not path.exists() or path.read_text() != text:
                different.append(path.name)
                if not check:
                    path.write_text(text)
    if check and different:
        sys.exit("not what kernelbench/generate.py writes: " + ", ".join(different) + "; run make modules")
    print(f"{folder}: {len(different)} modules " + ("differ" if check else "written"))


if __name__ == "__main__":
    main()
