"""The machines that were measured: the result files of each, and what they come to."""

import json

import cpu
import figures
import gpu
from harness import machine as this_machine, results

# TOPIC-MACHINE.json
GPU_TOPICS = ("peers", "accuracy", "overhead", "ceilings", "sustained", "sweep", "attention", "models",
              "kernelbench")
OTHERS = ("amx", "blas", "torch", "gpt2")  # tables.py shows these


class Machine:
    """All results of one machine, and what its page says."""

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
        if self.of_gpu:
            versions = f"driver {about.get('driver', 'unknown')}, torch {about.get('torch', 'unknown')}"
        else:
            versions = f"{about.get('cores', 'unknown number of')} cores, {about.get('compiler', 'unknown compiler')}"
        self.description = f"{versions}; {when}, {what}" + (", a quick run" if about.get("effort") == "quick" else "")
        kind = gpu if self.of_gpu else cpu
        self.figures, self.losses, self.about_losses = (kind.figures(self.records), kind.losses(self.records),
                                                        kind.LOSSES)
        self.headlines = kind.headlines(self.records, training)
        self.verdict, self.method = kind.verdict(self.records), kind.METHOD

    def named(self, files):
        """The machine's name, which all its files must agree on, and a record that has it."""
        field = "gpu" if self.of_gpu else "machine"
        names = {}
        for path in files:
            for record in results.load(path):
                if field in record:
                    names.setdefault(record[field], (path.name, record))
        if len(names) > 1:
            (one, (first, _)), (other, (second, _)) = list(names.items())[:2]
            raise results.BadResults(
                f"{second} is of another machine ({other}) than {first} ({one}): a page has one machine; "
                f"name it after its own, as in {second.replace(self.slug, this_machine.slug(other))}"
            )
        if not names:
            raise results.BadResults(f"{files[0].name} does not say which machine it is of: measure again")
        ((name, (_, about)),) = names.items()
        return name, about


def grouped(folder):
    """The result files of each machine, by the name of the machine."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        topic, _, rest = path.stem.partition("-")
        if topic in OTHERS or path.stem == "sweep-cpu":
            continue
        found.setdefault(rest if topic in (*GPU_TOPICS, "cpu") and rest else path.stem, []).append(path)
    return found


def machines_of(folder, here=None):
    """The machines with results in a folder, and this very one, whose results are in the folder `here`."""
    found = []
    for slug, files in grouped(folder).items():
        training = folder / f"gpt2-{slug}.json"
        found.append(Machine(slug, files, json.loads(training.read_text()) if training.exists() else None))
    for slug, files in grouped(here).items() if here else ():
        found.append(Machine(f"here-{slug}", files, None))
        found[-1].name += " (this machine)"
    if not found:
        raise results.BadResults(
            f"there are no results in {folder} yet: `make bench-cpu` or `make bench-gpu` measures this machine"
        )
    found.sort(key=lambda m: (not m.of_gpu, m.slug))
    for machine in found:
        machine.others = [other for other in found if other is not machine]
    return found


def has_this_machine(folder):
    """Whether the folder's results are of this very machine, not of another of its model."""
    files = [path for found in grouped(folder).values() for path in found]
    return any(record.get("host") == this_machine.host() for path in files for record in results.load(path))
