"""From the saved results to what people read: the tables in README.md and docs/, docs/results/results.md, the README's
picture, and on demand an HTML page of charts for each machine.

    python3 bench/report [--check] [--pages FOLDER] [--here FOLDER] [--results FOLDER] [--docs FOLDER]
    python3 bench/report --measured FOLDER

With --check: exits with 1 where a document is not what the results make. With --measured: exits with 3 if the results
in the folder are not of this very machine, for `make report` to measure it. --here: a folder with results of this
machine, for a page beside the others. Where --results or --docs names another folder, only what depends on nothing else
is written: results.md, pictures and pages.
"""

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import machines  # noqa: E402
import page  # noqa: E402
import summary  # noqa: E402
import tables  # noqa: E402
from harness import results  # noqa: E402

ROOT = HERE.parents[1]
RESULTS, DOCS = ROOT / "bench/results", ROOT / "docs/results"


def documents(folder, docs):
    """Everything that is kept in the repository, by path."""
    found = machines.machines_of(folder)
    made = {docs / "results.md": summary.results_page(found)}
    for machine in found:
        picture = page.picture_of(machine)
        if picture:
            made[docs / f"results-{machine.slug}.svg"] = picture
    if (folder, docs) == (RESULTS, DOCS):
        made.update(tables.documents(ROOT))
    return made


def main():
    parser = argparse.ArgumentParser(description="the tables and pages of the results, from bench/results")
    parser.add_argument("--check", action="store_true", help="only say whether they are what the results make")
    parser.add_argument("--pages", type=pathlib.Path, metavar="FOLDER", help="write HTML pages with charts there, too")
    parser.add_argument("--here", type=pathlib.Path, metavar="FOLDER", help="results of this machine, for a page, too")
    parser.add_argument("--measured", type=pathlib.Path, metavar="FOLDER",
                        help="only say whether these results are of this very machine: exit code 3 where not")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--docs", type=pathlib.Path, default=DOCS, metavar="FOLDER")
    options = parser.parse_args()
    if options.measured:
        sys.exit(0 if machines.has_this_machine(options.measured) else 3)
    made = documents(options.results.resolve(), options.docs.resolve())
    if options.pages:
        found = machines.machines_of(options.results, options.here)
        made.update({options.pages / f"{machine.slug}.html": page.page(machine) for machine in found})
    for path, text in made.items():
        if not options.check:
            results.write(path, text)
            print(path)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.name} is not what bench/results makes: run `python3 bench/report`")


if __name__ == "__main__":
    try:
        main()
    except results.BadResults as error:
        sys.exit(f"report: {error}")
