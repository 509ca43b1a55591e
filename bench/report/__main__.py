"""From the saved results to what people read: docs/results/results.md, a page for each machine, and the picture and tables of the other documents.

    python3 bench/report [--check] [--results FOLDER] [--docs FOLDER] [--needs-this-machine]

With --check: says whether they are what the results make, and exits with 1 where not. With --needs-this-machine: exits with 3 where there
are no results of this machine yet, for `make report` to measure first.
"""

import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import cpu  # noqa: E402
import figures  # noqa: E402
import gpu  # noqa: E402
import page  # noqa: E402
from harness import machine as this_machine, results  # noqa: E402

ROOT = HERE.parents[1]
GPU_TOPICS = ("peers", "accuracy", "overhead", "ceilings", "threads", "kernelbench")  # TOPIC-MACHINE.json beside MACHINE.json
OTHERS = ("amx", "blas", "torch", "gpt2")  # shown elsewhere in docs/, not on a page of their own


class Machine:
    """All results of one machine, and what a page says of it."""

    def __init__(self, slug, files, training):
        self.slug, self.others = slug, []
        self.records = [record for path in files for record in results.load(path)]
        self.of_gpu = any("gpu" in r for r in self.records)
        self.name, about = self.named(files)
        self.absent = {r["library"]: r["why"] for r in figures.of(self.records, "absent")}
        commits = sorted({r["commit"] for r in self.records if "commit" in r})
        dates = sorted({r["date"][:10] for r in self.records if "date" in r})
        when = f"{dates[0]} to {dates[-1]}" if len(dates) > 1 else dates[0]
        what = f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}"
        kind = gpu if self.of_gpu else cpu
        if self.of_gpu:
            self.description = f"driver {about.get('driver', 'unknown')}, torch {about.get('torch', 'unknown')}; {when}, {what}"
        else:
            self.description = (f"{about.get('cores', 'unknown number of')} cores, {about.get('compiler', 'unknown compiler')}; {when}, {what}"
                                + (", a quick run" if about.get("effort") == "quick" else ""))
        self.figures, self.losses = kind.figures(self.records), kind.losses(self.records)
        self.about_losses = kind.LOSSES
        self.headlines, self.verdict, self.method = kind.headlines(self.records, training), kind.verdict(self.records), kind.METHOD

    def named(self, files):
        """The machine's name, which all its files must agree on."""
        field = "gpu" if self.of_gpu else "machine"
        names = {}
        for path in files:
            for record in results.load(path):
                if field in record:
                    names.setdefault(record[field], (path.name, record))
        if len(names) > 1:
            (one, (first, _)), (other, (second, _)) = list(names.items())[:2]
            raise results.BadResults(f"{second} is of another machine ({other}) than {first} ({one}): a page has one machine; name it after its own, "
                                     f"as in {second.replace(self.slug, this_machine.slug(other))}")
        if not names:
            raise results.BadResults(f"{files[0].name} does not say which machine it is of: measure again")
        ((name, (_, about)),) = names.items()
        return name, about


def grouped(folder):
    """The result files of each machine, by the name of the machine."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        topic, _, rest = path.stem.partition("-")
        if topic in OTHERS:
            continue
        found.setdefault(rest if topic in (*GPU_TOPICS, "cpu") and rest else path.stem, []).append(path)
    return found


def machines_of(folder):
    found = []
    for slug, files in grouped(folder).items():
        training = folder / f"gpt2-{slug}.json"
        found.append(Machine(slug, files, json.loads(training.read_text()) if training.exists() else None))
    if not found:
        raise results.BadResults(f"there are no results in {folder} yet: `make bench-cpu` or `make bench-gpu` measures this machine")
    found.sort(key=lambda m: (not m.of_gpu, m.slug))
    for machine in found:
        machine.others = [other for other in found if other is not machine]
    return found


# ---- What is written ----------------------------------------------------------------------------------------------------


def markdown_table(heads, rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heads, ["---"] * len(heads), *rows])


def markdown(machines):
    parts = ["# Results", "Made by `make report` from [bench/results](../bench/results); the pages have the same as charts, for a browser."]
    for machine in machines:
        parts += [f"## {machine.name}", machine.verdict, f"**[The page with all charts](results-{machine.slug}.html)**",
                  "\n".join(f"- **{value}** {what}" for value, what in machine.headlines)]
        if picture_of(machine):
            parts.append(f"![Speed and error of each library](results-{machine.slug}.svg)")
        for made in machine.figures:
            parts += [f"### {made.title}", " ".join(filter(None, [made.says, made.note])), markdown_table(*made.table)]
        if machine.losses:
            parts += ["### Where it loses", machine.about_losses, "\n".join(f"- {what}: {', '.join(where)}" for what, where in machine.losses.items())]
        if machine.absent:
            parts.append("Not on this machine: " + "; ".join(f"{name} ({why})" for name, why in machine.absent.items()) + ".")
        parts.append(f"{machine.description}.")
    return "\n\n".join(parts) + "\n"


def picture_of(machine):
    if not machine.of_gpu:
        return None
    means = gpu.library_means(gpu.library_points(machine.records))
    rows = sorted(((name, speed, error, error < gpu.FLOAT32_ACCURATE) for name, (speed, error) in means.items()), key=lambda row: (not row[3], row[1]))
    if not rows:
        return None
    dates = sorted({r["date"][:10] for r in machine.records if "date" in r})
    return page.picture(f"Float32 matrix multiplication on {machine.name}", rows,
                        f"Geometric means over five reference problems, uniform data, errors against float64; {dates[-1]}."
                        + (" Triton: its tutorial's kernel." if "Triton tf32x3" in means else ""))


def schema():
    """bench/results/README.md."""
    kinds = markdown_table(["`what`", "is", "fields"], [[f"`{kind}`", results.MEANINGS[kind], ", ".join(f"`{name}`" for name in fields)]
                                                        for kind, fields in results.KINDS.items()])
    fields = markdown_table(["field", "type", "meaning"], [[f"`{name}`", kind, meaning] for name, (kind, meaning) in results.FIELDS.items()])
    return f"""# Results

Made from `bench/harness/results.py`, which checks every file it reads against this.

A file is a JSON list of records, one for each thing measured; `what` names the kind of a record. `MACHINE.json` has the products measured
beside torch on a GPU, `peers-`, `accuracy-`, `overhead-`, `ceilings-`, `threads-` and `kernelbench-MACHINE.json` the rest of that machine's page, and
`cpu-MACHINE.json` all of a CPU's; `torch-`, `blas-` and `amx-` have what is shown in docs/guide/pytorch.md, docs/guide/blas.md and docs/internals/tuning.md. `make report` makes the pages of docs/ from them. A record may have more fields than these.

{kinds}

{fields}

`gpt2-MACHINE.json` is written by
`examples/train_gpt2.py` and has one object. `tessera bench --json` prints one of its own: docs/guide/command.md.
"""


def documents(folder, docs):
    """Everything that is made, by path."""
    machines = machines_of(folder)
    made = {docs / "results.md": markdown(machines)}
    for machine in machines:
        made[docs / f"results-{machine.slug}.html"] = page.page(machine)
        picture = picture_of(machine)
        if picture:
            made[docs / f"results-{machine.slug}.svg"] = picture
    if folder == ROOT / "bench/results":
        made[folder / "README.md"] = schema()
    return made


def has_this_machine(folder):
    """Whether there are results of this machine's GPU or of its CPU."""
    here = this_machine.first_gpu()
    names = [here.description()["gpu"]] if here else []
    return any(this_machine.slug(name) in grouped(folder) for name in [*names, this_machine.processor()])


def main():
    parser = argparse.ArgumentParser(description="docs/results/results.md and the pages of the results, from bench/results")
    parser.add_argument("--check", action="store_true", help="only say whether they are what the results make")
    parser.add_argument("--needs-this-machine", action="store_true", help="only say whether there are results of this machine: exit code 3 where not")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench/results", metavar="FOLDER")
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs/results", metavar="FOLDER")
    options = parser.parse_args()
    if options.needs_this_machine:
        sys.exit(0 if has_this_machine(options.results) else 3)
    made = documents(options.results.resolve(), options.docs.resolve())
    for path, text in made.items():
        if not options.check:
            results.write(path, text)
            print(path)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.name} is not what bench/results makes: run `make report`")


if __name__ == "__main__":
    try:
        main()
    except results.BadResults as error:
        sys.exit(f"report: {error}")
