"""Charts as SVG text. Colours and dashes are classes (`s-NAME`), which the page's style sheet sets for light and dark.
Every mark carries its numbers in a <title>, which a browser shows on hover by itself and page.js shows sooner.

A chart is drawn for a width in pixels: once wide, with its series named beside them, and once narrow, for a phone,
under a legend.
"""

import html
import math

# Of each series: its colour in light and in dark, and the shape of its marks, for eyes and printers that see no
# colours.
SERIES = {
    "tessera": ("#5a43e0", "#a596ff", "disc"), "tessera fp32": ("#5a43e0", "#a596ff", "disc"),
    "tessera ieee": ("#0f74c4", "#5fb4f5", "disc"), "tessera tf32": ("#0b8a72", "#3fcfae", "disc"),
    "torch float32": ("#6d7280", "#a3a9b8", "square"), "torch TF32": ("#b46a00", "#e8a33d", "square"),
    "Triton ieee": ("#b8407f", "#f08cc0", "triangle"), "Triton tf32x3": ("#c8402c", "#ff8a75", "triangle"),
    "CuPy": ("#6b7a12", "#bccb4e", "diamond"), "JAX highest": ("#8a5a36", "#d8a27b", "diamond"),
    "openblas": ("#b46a00", "#e8a33d", "square"), "blis": ("#b8407f", "#f08cc0", "triangle"),
    "onednn": ("#6d7280", "#a3a9b8", "diamond"), "mkl": ("#0b8a72", "#3fcfae", "square"),
    "tessera forward": ("#5a43e0", "#a596ff", "disc"), "tessera backward": ("#0f74c4", "#5fb4f5", "disc"),
    "nn": ("#5a43e0", "#a596ff", "disc"), "tn": ("#b46a00", "#e8a33d", "square"),
    "nt": ("#0b8a72", "#3fcfae", "triangle"), "tt": ("#b8407f", "#f08cc0", "diamond")
}
OTHER = ("#6d7280", "#a3a9b8", "square")
SHOWN = {"openblas": "OpenBLAS", "blis": "BLIS", "onednn": "oneDNN", "mkl": "MKL"}

CHARACTER, BOLD = 7.2, 8  # pixels of one in a label, at most on average
LABEL_HEIGHT = 15


def class_of(series):
    return "s-" + "".join(c if c.isalnum() else "-" for c in series.lower())


def shown(series):
    """A series' name as people read it."""
    return SHOWN.get(series, series.replace("tessera", "Tessera"))


def style_sheet():
    """The colours as variables, for light and for dark."""
    def variables(column):
        return "".join(f"--{class_of(name)}:{colours[column]};" for name, colours in SERIES.items())

    return f":root{{{variables(0)}}}@media(prefers-color-scheme:dark){{:root{{{variables(1)}}}}}" + "".join(
        f".{class_of(name)}{{--colour:var(--{class_of(name)})}}" for name in SERIES)


def number(x):
    return f"{x:.1f}".rstrip("0").rstrip(".")


def short(value):
    """A number as an axis has it."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    if exponent < -2 or exponent > 5:
        return f"{value / 10**exponent:.3g}e{exponent}"
    return f"{value:g}" if abs(value) < 1e4 else f"{value:,.0f}"


class Axis:
    """From values to pixels, linear or logarithmic, with the places where it is marked."""
    def __init__(self, label, values, base=None, zero=False, ticks=None, text=short, room=0.0):
        """base: of the logarithm, or None; room: what part of its length is added at each end of a logarithmic one."""
        self.label, self.base, self.text = label, base, text
        low, high = min(values), max(values)
        if base:
            margin = (high / low)**room if high > low else 2.0
            self.low, self.high = low / margin, high * margin
            self.ticks = ticks or self.powers()
        else:
            self.low, self.high = (0.0 if zero else low), high * 1.06 or 1.0
            self.ticks = ticks or self.steps()

    def steps(self):
        step = 10**math.floor(math.log10((self.high - self.low) / 3))
        step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (self.high - self.low) / (step * factor) <= 6)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def powers(self):
        """Of the base; of 10 also times 2 and 5, if these are few; even steps where the axis is short."""
        exponents = range(math.floor(math.log(self.low, self.base)), math.ceil(math.log(self.high, self.base)) + 1)
        for factors in ((1,), (1, 2, 5)) if self.base == 10 else ((1,),):
            found = [m * float(self.base)**e for e in exponents for m in factors]
            found = [value for value in found if self.low / 1.001 <= value <= self.high * 1.001]
            if len(found) > 2:
                return found
        return self.steps() if self.base == 10 else found

    def place(self, value, begin, end):
        if self.base:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return begin + part * (end - begin)


class Series:
    def __init__(self, name, points):
        """points: (x, y, what to say of it), in the order of x."""
        self.name, self.points = name, [point for point in points if point[1] is not None]


def text(x, y, words, kind="", anchor="start", extra=""):
    place = f'x="{number(x)}" y="{number(y)}"'
    return f'<text {place} class="{kind}" text-anchor="{anchor}"{extra}>{html.escape(words)}</text>'


def mark(x, y, series, words, size=4.0):
    """A point that can be pointed at."""
    x, y = round(x, 1), round(y, 1)
    shape = SERIES.get(series, OTHER)[2]
    if shape == "disc":
        drawn = f'<circle cx="{x}" cy="{y}" r="{size}"/>'
    elif shape == "square":
        corner, edge = f'x="{number(x - size + 0.5)}" y="{number(y - size + 0.5)}"', 2 * size - 1
        drawn = f'<rect {corner} width="{edge}" height="{edge}"/>'
    elif shape == "diamond":
        s = size + 0.8
        drawn = f'<path d="M{number(x)} {number(y - s)}l{s} {s}l{-s} {s}l{-s} {-s}z"/>'
    else:
        s = size + 0.5
        drawn = f'<path d="M{number(x)} {number(y - s)}l{s} {1.8 * s}h{-2 * s}z"/>'
    return (f'<g class="mark {class_of(series)}"><circle class="reach" cx="{x}" cy="{y}" r="9"/>{drawn}'
            f"<title>{html.escape(words)}</title></g>")


def svg(width, height, parts, label):
    return (f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
            f'aria-label="{html.escape(label)}">' + "".join(parts) + "</svg>")


def legend(names):
    keys = []
    for name in names:
        swatch = mark(11, 6, name, name).replace("mark ", "swatch ")
        keys.append(
            f'<span class="key {class_of(name)}"><svg width="22" height="12" aria-hidden="true"><path class="line" '
            f'd="M0 6h22"/>{swatch}</svg>'
            f"{html.escape(shown(name))}</span>")
    return '<div class="legend">' + "".join(keys) + "</div>"


def spread_apart(places, least, low, high):
    """Heights moved as little as needed for labels not to overlap; in the order given."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved, bottom = list(places), low
    for i in order:
        moved[i] = bottom = max(moved[i], bottom)
        bottom += least
    top = high
    for i in reversed(order):
        moved[i] = top = min(moved[i], top)
        top -= least
    return moved


class Frame:
    """The part of a chart that holds the marks, with its axes."""
    def __init__(self, width, height, x, y, right=14):
        self.width, self.height, self.x, self.y = width, height, x, y
        self.left = 14 + CHARACTER * max(len(y.text(tick)) for tick in y.ticks)
        self.right, self.top, self.bottom = width - right, 24, height - 40

    def at(self, x, y):
        return self.x.place(x, self.left, self.right), self.y.place(y, self.bottom, self.top)

    def axes(self):
        parts = [text(0, 11, self.y.label, "axis")]
        for tick in self.y.ticks:
            height = self.y.place(tick, self.bottom, self.top)
            parts.append(f'<path class="grid" d="M{number(self.left)} {number(height)}H{number(self.right)}"/>')
            parts.append(text(self.left - 6, height + 4, self.y.text(tick), "tick", "end"))
        end = -1e9
        for tick in self.x.ticks:
            across, words = self.x.place(tick, self.left, self.right), self.x.text(tick)
            half = len(words) * CHARACTER / 2
            parts.append(f'<path class="grid" d="M{number(across)} {number(self.bottom)}v4"/>')
            if across - half > end + 6:
                parts.append(text(min(across, self.width - half), self.bottom + 17, words, "tick", "middle"))
                end = across + half
        parts.append(f'<path class="base" d="M{number(self.left)} {number(self.bottom)}H{number(self.right)}"/>')
        parts.append(text(self.right, self.height - 6, self.x.label, "axis", "end"))
        return parts


def lines(series, x, y, width, height=None, named=None, rules=(), label="", joined=True):
    """Lines through points, or where not `joined` the points alone. rules: (name, [(x, y), ...]) are bounds and
    ceilings, drawn thin and named where they end."""
    named = width > 600 if named is None else named
    height = height or (360 if named else 280)
    longest = max((len(shown(s.name)) for s in series), default=0)
    frame = Frame(width, height, x, y, right=(18 + CHARACTER * longest) if named else 14)
    parts = frame.axes()
    for name, points in rules:
        places = [frame.at(px, py) for px, py in points]
        parts.append('<path class="rule" d="M' + "L".join(f"{number(px)} {number(py)}" for px, py in places) + '"/>')
        anchor = places[-1] if name else None
        if anchor:
            parts.append(text(anchor[0] - 4, max(anchor[1] - 6, 22), name, "rulename", "end"))
    drawn = sorted((s for s in series if s.points), key=lambda s: s.name.startswith("tessera"))
    for s in drawn:
        places = [frame.at(px, py) for px, py, _ in s.points]
        if joined:
            path = "L".join(f"{number(px)} {number(py)}" for px, py in places)
            parts.append(f'<path class="line {class_of(s.name)}" d="M{path}"/>')
        parts += [mark(px, py, s.name, said) for (px, py), (_, _, said) in zip(places, s.points)]
    if named:
        ends = [frame.at(*s.points[-1][:2]) for s in drawn]
        heights = spread_apart([py for _, py in ends], LABEL_HEIGHT, frame.top, frame.bottom)
        for s, (px, _), py in zip(drawn, ends, heights):
            parts.append(text(max(px, frame.right - 1) + 9, py + 4, shown(s.name), f"name {class_of(s.name)}"))
    return svg(width, height, parts, label)


def bars(groups, width, unit, label="", baseline=None):
    """Horizontal bars in groups: (group's name, [(series, value, label behind the bar, text on hover), ...])."""
    narrow = width <= 600
    bar, gap, between = 20, 4, 18
    names = {s for _, rows in groups for s, *_ in rows}
    left = 0 if narrow else 14 + BOLD * max([len(group) for group, _ in groups] + [0])
    longest = max(len(words) for _, rows in groups for _, _, words, _ in rows)
    inner = 0 if len(names) == 1 else CHARACTER * max(len(shown(name)) for name in names) + 10
    begin = left + inner
    right = width - 12 - BOLD * longest
    high = max(value for _, rows in groups for _, value, _, _ in rows)
    if baseline and baseline > high:  # the line shall be within, and no label on it
        high, right = baseline, right + BOLD * longest
    parts, y = [], 4
    for group, rows in groups:
        if narrow and group:
            parts.append(text(0, y + 12, group, "group"))
            y += 20
        elif group:
            parts.append(text(0, y + len(rows) * (bar + gap) / 2 + 3, group, "group"))
        for series, value, words, said in rows:
            length = max(2.0, (right - begin) * value / high)
            parts.append(
                f'<g class="mark bar {class_of(series)}"><rect x="{number(begin)}" y="{y}" width="{number(length)}" '
                f'height="{bar}" rx="2"/><title>{html.escape(said)}</title></g>')
            if inner:
                parts.append(text(begin - 8, y + 14, shown(series), "name", "end"))
            parts.append(
                text(begin + length + 7, y + 14, words, "value" + (" ours" if series.startswith("tessera") else "")))
            y += bar + gap
        y += between
    height = y - between + 20
    if baseline:
        across = begin + (right - begin) * baseline / high
        parts.insert(0, f'<path class="rule" d="M{number(across)} 0V{height - 16}"/>')
    parts.append(text(begin, height - 2, unit, "axis"))
    return svg(width, height, parts, label)


def dots(rows, x, width, label=""):
    """A line for each row with marks along it: (row's name, [(series, value, text on hover), ...])."""
    narrow = width <= 600
    height_of_row, top = (44 if narrow else 28), 8
    left = 4 if narrow else 14 + BOLD * max(len(name) for name, _ in rows)
    right, bottom = width - 20, top + height_of_row * len(rows)
    heights = [top + height_of_row * (i + 1) - 10 for i in range(len(rows))]
    parts = []
    for tick in x.ticks:
        across = x.place(tick, left, right)
        down = [(y - 9, y + 9) for y in heights] if narrow else [(top, bottom)]  # not through the names
        path = "".join(f"M{number(across)} {begin}V{end}" for begin, end in down)
        parts.append(f'<path class="{"rule" if tick == 1 else "grid"}" d="{path}"/>')
        parts.append(text(across, bottom + 16, x.text(tick), "tick", "middle"))
    for (name, marks), y in zip(rows, heights):
        parts.append(text(0, y - 14 if narrow else y + 4, name, "group"))
        parts.append(f'<path class="grid" d="M{number(left)} {y}H{right}"/>')
        parts += [mark(x.place(value, left, right), y, series, said, 5.0) for series, value, said in marks]
    parts.append(text(right, bottom + 32, x.label, "axis", "end"))
    return svg(width, bottom + 38, parts, label)


def crosses(box, others):
    return any(box[0] < o[2] and o[0] < box[2] and box[1] < o[3] and o[1] < box[3] for o in others)


def names_beside(marks, faint, frame):
    """Names of marks (series, x, y), each at the first free place: to the right, left, above, below, further off. They
    keep clear of the places of faint marks, too, if they can."""
    taken = [(x - 7, y - 7, x + 7, y + 7) for _, x, y in marks]
    dots = [(x - 4, y - 4, x + 4, y + 4) for x, y in faint]
    parts = []
    for series, x, y in marks:
        long = len(shown(series)) * CHARACTER
        places = [(x + 11, y + 4), (x - 11 - long, y + 4)]
        places += [(left, y + 4 + step * sign) for step in (15, 24, 36, 48, 60, 80) for sign in (-1, 1)
                   for left in (x - long / 2, x + 11, x - 11 - long)]
        boxes = [(left, base - 10, left + long, base + 3) for left, base in places]
        inside = [box for box in boxes if box[0] >= frame.left and box[2] <= frame.width and box[1] >= frame.top
                  and box[3] <= frame.bottom]
        free = [box for box in inside if not crosses(box, taken)] or boxes[:1]
        box = next((box for box in free if not crosses(box, dots)), free[0])
        taken.append(box)
        left, base = box[0], box[3] - 3
        if abs(base - y - 4) > 15:  # too far off to be seen as belonging together
            parts.append(f'<path class="leader" d="M{number(x)} {number(y)}L{number(min(max(x, left), left + long))} '
                         f'{number(base - 10 if base > y else base + 2)}"/>')
        parts.append(text(left, base, shown(series), f"name {class_of(series)}"))
    return parts


def scatter(points, x, y, width, frontier=(), label=""):
    """points: (series, x, y, what to say of it, whether it is named there). frontier: places to join."""
    height = 420 if width > 600 else 380
    frame = Frame(width, height, x, y, right=24)
    parts = frame.axes()
    if frontier:
        places = [frame.at(px, py) for px, py in frontier]
        parts.append('<path class="frontier" d="M' + "L".join(f"{number(px)} {number(py)}"
                                                              for px, py in places) + '"/>')
    places = [(point, frame.at(point[1], point[2])) for point in points]
    for (series, _, _, said, is_named), (across, up) in places:
        drawn = mark(across, up, series, said, 6.0 if is_named else 3.0)
        parts.append(drawn if is_named else drawn.replace('class="mark', 'class="mark faint'))
    parts += names_beside([(point[0], *at) for point, at in places if point[4]],
                          [at for point, at in places if not point[4]], frame)
    return svg(width, height, parts, label)
