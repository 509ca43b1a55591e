"""What became slower or less accurate between two results of one machine, by ratio to the peers that were measured in
the same runs.

    python3 bench/regressions.py BASE [NEW] [--margin PERCENT]

BASE and NEW are result files, or REVISION:FILE for one in git; NEW is by default the file of BASE's name in
bench/results. By ratio, because machines, clocks and drivers differ from run to run and slow both sides alike. Noise is
what stays within the margin: 5 % for rates and errors, four times that for host times. Exits with 1 where something
became worse, with 2 where there is nothing to compare.
"""

import argparse
import math
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from harness import results  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOST_TIMES = 4  # times the margin
PROBLEM = ("problem", "m", "n", "k", "layout", "data", "threads")


def read(name):
    """The records of a file, or of one in git."""
    path = pathlib.Path(name)
    if ":" in name and not path.exists():
        shown = subprocess.run(["git", "-C", str(ROOT), "show", name], capture_output=True, text=True)
        if shown.returncode:
            raise results.BadResults(
                f"git has no {name}: give a result file, or REVISION:FILE with the file's path in the repository")
        return results.parse(shown.stdout, name)
    return results.load(path)


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def is_ours(record):
    return record["library"].startswith("tessera")


class Measured:
    """The ratios of one file: {(what was measured): (ratio to the peers, greater is better, margins it may differ
    by)}."""

    def __init__(self, records, peers_of):
        """peers_of: for each problem the libraries, other than Tessera, that count."""
        self.ratios, by_problem = {}, self.libraries(records)
        for r in records:
            kind = r["what"]
            if kind in ("product", "module"):
                key = tuple(str(r.get(name)) for name in (*PROBLEM, "precision", "packed", "peer"))
                self.ratios[("speed", *key)] = r["speedup"], 1
                theirs = r["peer_error"] if kind == "product" else r.get("torch_error")
                if r["error"] and theirs:
                    self.ratios[("accuracy", *key)] = theirs / r["error"], 1
            elif kind == "packing":
                self.ratios["speed", "packing", r["problem"], r["operand"]] = r["of_copy"], 1
            elif kind == "host":
                self.ratios["host time", "tessera.matmul", str(r["m"]),
                            r["precision"]] = r["torch_us"] / r["tessera_us"], HOST_TIMES
            elif kind == "reference":
                self.ratios["speed", "tessera.matmul", r["problem"], "beside the C library"] = r["of_c_library"], 1
            elif kind == "linear":
                self.ratios["speed", "nn.Linear", f"{r['batch']} x {r['in']} -> {r['out']}"] = r["speedup"], 1
            elif kind in ("library", "accuracy", "call") and is_ours(r):
                self.add(r, by_problem, peers_of)

    @staticmethod
    def problem_of(r):
        return (r["what"], *(str(r.get(name)) for name in PROBLEM))

    @classmethod
    def libraries(cls, records):
        """{problem: {library: record}}."""
        found = {}
        for r in records:
            if r["what"] in ("library", "accuracy", "call"):
                found.setdefault(cls.problem_of(r), {})[r["library"]] = r
        return found

    def add(self, r, by_problem, peers_of):
        problem = self.problem_of(r)
        peers = [by_problem[problem][name] for name in peers_of.get(problem, ())]
        if not peers:
            return
        key = (*problem[1:], r["library"])
        if r["what"] == "library":
            field = "gflops_best" if "threads" in r else "gflops_median"
            self.ratios[("speed", *key)] = r[field] / mean([peer[field] for peer in peers]), 1
        if r["what"] == "call":
            self.ratios[("host time", *key)] = mean([peer["host_us"] for peer in peers]) / r["host_us"], HOST_TIMES
        if "error" in r and r["error"] and all(peer["error"] for peer in peers):
            self.ratios[("accuracy", *key)] = mean([peer["error"] for peer in peers]) / r["error"], 1


def compare(base, new, margin):
    """Lines of what became worse, how many became better, how many were compared."""
    first, second = Measured.libraries(base), Measured.libraries(new)
    peers_of = {problem: [name for name in first[problem] if name in second[problem] and not name.startswith("tessera")]
                for problem in first if problem in second}
    before, after = Measured(base, peers_of).ratios, Measured(new, peers_of).ratios
    worse, better, common = [], 0, [key for key in before if key in after]
    for key in common:
        (was, times), (now, _) = before[key], after[key]
        change = now / was
        if change < 1 - times * margin:
            words = {"speed": "slower", "accuracy": "less accurate", "host time": "more host time"}[key[0]]
            where = " ".join(word for word in key[1:] if word not in ("None", "False")).replace("True", "packed")
            worse.append(f"{words}: {where}: {was:.3f} -> {now:.3f} of the peers ({100 * (change - 1):+.1f} %)")
        better += change > 1 + times * margin
    return worse, better, len(common)


def main():
    parser = argparse.ArgumentParser(description="what became slower or less accurate between two results")
    parser.add_argument("base", help="result file, or REVISION:FILE")
    parser.add_argument("new", nargs="?", help="the same; default: bench/results/ and BASE's name")
    parser.add_argument("--margin", type=float, default=5.0, metavar="PERCENT", help="what counts as noise (default 5)")
    options = parser.parse_args()
    if not options.base:
        raise results.BadResults(
            "BASE= must name the result to compare with, as in BASE=HEAD~1:bench/results/h200.json")
    new = options.new or str(ROOT / "bench/results" / pathlib.Path(options.base.split(":")[-1]).name)
    if pathlib.Path(new).resolve() == pathlib.Path(options.base).resolve():
        raise results.BadResults(
            f"{options.base} is both BASE and NEW: name the other with NEW=, or an older BASE as HEAD~1:bench/results/"
            f"{pathlib.Path(options.base).name}")
    records = [read(options.base), read(new)]
    machines = [{results.machine_of(r) for r in of_one if results.machine_of(r)} for of_one in records]
    if not machines[0] & machines[1]:
        first, second = (", ".join(sorted(names)) or "no machine" for names in machines)
        raise results.BadResults(
            f"{options.base} is of {first}, {new} of {second}: only results of one machine can be compared; "
            "measure BASE and NEW on the same one")
    worse, better, common = compare(*records, options.margin / 100)
    if not common:
        raise results.BadResults(
            f"{options.base} and {new} have no measurement in common: they must be of the same benchmark")
    print(*worse, sep="\n", end="\n" if worse else "")
    print(f"{common} measurements compared, by ratio to the peers; beyond {options.margin:g} % "
          f"({HOST_TIMES * options.margin:g} % for host times): {len(worse)} worse, {better} better")
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    try:
        main()
    except results.BadResults as error:
        print(f"bench-compare: {error}", file=sys.stderr)
        sys.exit(2)
