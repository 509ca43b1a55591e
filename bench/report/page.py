"""A machine's page, one HTML file that needs nothing else, and the README's picture."""

import html
import pathlib
import re

import charts
import gpu

HERE = pathlib.Path(__file__).resolve().parent
WIDE, NARROW = 880, 344  # pixels of a chart


def escape(text):
    """As HTML; a figure stays with its "x" or "%"."""
    return re.sub(r"(\d) ([x%])(?![\w ]*\d)", "\\1\u00a0\\2", html.escape(text))


def table(heads, rows):
    def row(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    return f'<div class="scroll"><table><thead>{row(heads, "th")}</thead><tbody>{body}</tbody></table></div>'


def panel(caption, draw, count):
    head = f"<h3>{escape(caption)}</h3>" if caption else ""
    if count > 1:  # narrow enough for a phone as they are
        return f"<div>{head}{draw((WIDE - 22 * (count - 1)) // count)}</div>"
    return f'<div>{head}<div class="wide">{draw(WIDE)}</div><div class="narrow">{draw(NARROW)}</div></div>'


def figure(made):
    several = len(made.panels) > 1
    panels = "".join(panel(caption, draw, len(made.panels)) for caption, draw in made.panels)
    legend = charts.legend(made.series) if made.series else ""
    return (
        f'<figure id="{made.name}"><h2>{escape(made.title)}</h2><p class="says">{escape(made.says)}</p>'
        f'<div class="{"several" if several else "one"}">{legend}<div class="panels '
        f'{"" if several else "one"}">{panels}</div></div>'
        f'<p class="note">{escape(" ".join(filter(None, [made.reading, made.note])))}</p><details><summary>The '
        f"numbers</summary>{table(*made.table)}</details></figure>"
    )


def losses(said, about):
    if not said:
        return ""
    rows = [[what * (not i), *loss] for what, found in said.items() for i, loss in enumerate(found)]
    made = table(["in what", "where", "by how much: Tessera's speed, or both errors or times"], rows)
    return f'<section class="losses" id="losses"><h2>Where it loses</h2><p>{escape(about)}</p>{made}</section>'


def page(machine):
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>'
        for value, what in machine.headlines
    )
    others = "".join(f' · <a href="{other.slug}.html">{escape(other.name)}</a>' for other in machine.others)
    absent = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in machine.absent.items())
    links = [f'<a href="#{made.name}">{escape(made.title)}</a>' for made in machine.figures]
    links += ['<a href="#losses">Where it loses</a>'] * bool(machine.losses)
    style = charts.style_sheet() + (HERE / "page.css").read_text()
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tessera on {escape(machine.name)}</title><link rel="icon" href="data:,">
<style>{style}</style></head><body><main>
<h1>Tessera on {escape(machine.name)}</h1>
<p class="machine">{escape(machine.description)}{others}</p>
<p class="verdict">{escape(machine.verdict)}</p>
<nav>{" · ".join(links)}</nav>
<div class="tiles">{tiles}</div>
{"".join(figure(made) for made in machine.figures)}
{losses(machine.losses, machine.about_losses)}
<section class="method"><h2>How this was measured</h2>
<p>All libraries take turns on the same matrices in one run, each called once before it is timed;
{escape(machine.method)} Errors are against float64. Every number is in <code>bench/results/</code> as JSON, with
the commit it was measured at.</p>
{f"<p>Not on this machine, and so not compared:</p><ul>{absent}</ul>" if absent else ""}
<p>The same page for your machine:</p><pre>make report</pre></section>
</main><div id="tip" role="status" hidden></div><script>{(HERE / "page.js").read_text()}</script></body></html>
"""


PICTURE_STYLE = """
svg { color-scheme: light dark }
.paper { fill: #ffffff } text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1c1d26 }
.bar { fill: var(--colour) } .title { font-size: 17px; font-weight: 700 } .ours { font-weight: 700 }
.quiet { fill: #5d6072 }
@media (prefers-color-scheme: dark) { .paper { fill: #14151c } text { fill: #e9e9f2 } .quiet { fill: #a0a3b5 } }
"""


def picture(title, rows, note):
    """Bars of speed with the error beside each. rows: (series, rate in TFLOP/s, error, whether float32-accurate)."""
    width, bar, gap, top, left, right = 880, 26, 10, 74, 150, 240
    high = max(speed for _, speed, _, _ in rows)
    parts = [
        f'<rect class="paper" width="{width}" height="100%" rx="10"/>',
        charts.text(24, 34, title, "title"),
        charts.text(24, 60, "float32-accurate", "quiet"),
        charts.text(width - 110, 60, "relative error", "quiet"),
    ]
    y, accurate = top, True
    for series, speed, error, is_accurate in rows:
        if accurate and not is_accurate:
            y += 12
            parts.append(charts.text(24, y + 12, "TF32: 11 bits of each operand", "quiet"))
            y += 24
            accurate = False
        length = (width - left - right) * speed / high
        ours = " ours" if series.startswith("tessera") else ""
        parts.append(charts.text(left - 10, y + 18, charts.shown(series), ours, "end"))
        parts.append(
            f'<rect class="bar {charts.class_of(series)}" x="{left}" y="{y}" width="{charts.number(length)}" '
            f'height="{bar}" rx="3"/>'
        )
        parts.append(charts.text(left + length + 9, y + 18, f"{speed:.0f} TFLOP/s", ours))
        parts.append(charts.text(width - 110, y + 18, f"{error:.1e}", ours))
        y += bar + gap
    height = y + 34
    parts.append(charts.text(24, height - 16, note, "quiet"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{html.escape(title)}"><style>'
        f"{charts.style_sheet()}{PICTURE_STYLE}</style>" + "".join(parts) + "</svg>\n"
    )


def picture_of(machine):
    """The picture of a GPU's results; None where they have no products beside other libraries."""
    means = gpu.library_means(gpu.library_points(machine.records)) if machine.of_gpu else {}
    if not means:
        return None
    rows = [(name, speed, error, error < gpu.FLOAT32_ACCURATE) for name, (speed, error) in means.items()]
    rows.sort(key=lambda row: (not row[3], row[1]))
    date = max(r["date"][:10] for r in machine.records if "date" in r)
    note = f"Geometric means over five reference problems, uniform data, errors against float64; {date}."
    note += " Triton: its tutorial's kernel." if "Triton tf32x3" in means else ""
    return picture(f"Float32 matrix multiplication on {machine.name}", rows, note)
