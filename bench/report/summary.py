"""docs/results/results.md, with everything that was measured in tables."""

import re
import textwrap

import page


def prose(*sentences, indent=""):
    """A paragraph of lines as long as the documents' own; a figure stays with its "x" or "%"."""
    text = re.sub(r"(\d) ([x%])(?!\w)", "\\1\0\\2", " ".join(filter(None, sentences)))
    lines = textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


def markdown_table(heads, rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heads, ["---"] * len(heads), *rows])


def anchor(title):
    """The anchor that a heading gets on the usual hosts of repositories."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")


# Figures that say more as charts than as tables, or whose rows another table has: on the HTML pages alone.
CHARTS_ALONE = ("The worst element", "Roofline", "Threads of the CPU engine")

# Figures that have only their sentence here, and where the rows are.
ROWS_ELSEWHERE = {
    "Accuracy against K": "The HTML page has every row.",
    "Transposes and odd sizes": "[cpu.md](cpu.md) has the range of the layouts, the HTML page each of them.",
    "The modules, as KernelBench measures them": "[modules.md](../guide/modules.md#speed) has every row.",
}


def tabled(machine):
    return [figure for figure in machine.figures if figure.title not in CHARTS_ALONE]


def contents(machines):
    """A line for each machine: its heading and those below. A heading that comes again has another anchor."""
    seen, lines = {}, []
    for machine in machines:
        titles = [made.title for made in tabled(machine)] + ["Where it loses"] * bool(machine.losses)
        links = []
        for title in [machine.name, *titles]:
            place = anchor(title)
            seen[place] = seen.get(place, -1) + 1
            links.append(f"[{title}](#{place}{f'-{seen[place]}' if seen[place] else ''})")
        lines.append(prose(f"- **{links[0]}**: {', '.join(links[1:])}", indent="  "))
    return "\n".join(lines)


def results_page(machines):
    parts = [
        "# Results",
        prose("Made by `make report` from [bench/results](../../bench/results), which also draws the figures as "
              "charts: an HTML page for each machine, in `build/report`."),
        contents(machines),
    ]
    for machine in machines:
        parts += [
            f"## {machine.name}",
            prose(machine.verdict),
            "\n".join(f"- **{value}** {what}" for value, what in machine.headlines),
        ]
        if page.picture_of(machine):
            parts.append(f"![Speed and error of each library](results-{machine.slug}.svg)")
        for made in tabled(machine):
            parts += [f"### {made.title}", prose(made.says, made.note, ROWS_ELSEWHERE.get(made.title))]
            if made.title not in ROWS_ELSEWHERE:
                parts.append(markdown_table(*made.table))
        if machine.losses:
            rows = [[what, "; ".join(f"{where} ({how})" for where, how in found)]
                    for what, found in machine.losses.items()]
            parts += ["### Where it loses", machine.about_losses, markdown_table(["in what", "where"], rows)]
        if machine.absent:
            missing = "; ".join(f"{name} ({why})" for name, why in machine.absent.items())
            parts.append(prose(f"Not on this machine: {missing}."))
        parts.append(prose(f"{machine.description}."))
    return "\n\n".join(parts) + "\n"
