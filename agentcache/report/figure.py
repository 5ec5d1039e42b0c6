"""Sets how every plot looks (size, palette, legend), and renders figures as SVG that an HTML page can hold."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

_P = ParamSpec("_P")

WIDTH_IN = 11.0
# These two stand for the page's own text and grid colours, which change with the reader's colour scheme.
INK = "#010203"
GRID = "#c1c2c3"
# Okabe and Ito's colours, safe for the colour-blind, without the yellow that vanishes on white.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
GREY = "#999999"
_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, INK)
_LINE_STYLES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
# What is drawn as single shapes up to here is drawn as one picture beyond, or the page would grow by megabytes.
MAX_VECTOR_SHAPES = 8_000

# Any: matplotlib's own stubs type the keys of its settings as one literal of hundreds.
_STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    # Names are text, not formulas, whatever signs they hold.
    "text.parse_math": False,
    "svg.fonttype": "none",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """The look of one policy in every plot: colour, line style and marker all tell it apart."""

    colour: str
    line_style: str
    marker: str


def pick_mark(index: int) -> Mark:
    """Pick the mark of the policy in place `index`; no two are the same among the first 28."""
    return Mark(
        _COLOURS[index % len(_COLOURS)], _LINE_STYLES[index % len(_LINE_STYLES)], _MARKERS[index % len(_MARKERS)]
    )


def in_style(draw: Callable[_P, Figure]) -> Callable[_P, Figure]:
    """Draw with the style of all plots, and leave matplotlib's settings as they were."""

    @wraps(draw)
    def drawn(*args: _P.args, **kwargs: _P.kwargs) -> Figure:
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return drawn


def create_figure(height_in: float) -> Figure:
    """Create an empty figure as wide as the page."""
    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained")


def add_legend(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Add one legend below all panels, in as many columns as the longest name leaves room for."""
    short = [shorten(label, 60) for label in labels]
    fitting = max(1, min(len(short), 125 // (max(map(len, short), default=0) + 8)))
    rows = math.ceil(len(short) / fitting)
    columns = math.ceil(len(short) / max(1, rows))
    figure.set_figheight(figure.get_figheight() + 0.22 * rows)
    figure.legend(handles, short, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2)


def say_empty(axes: Axes, text: str) -> None:
    """Say on the plot why it is empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")


def count_format() -> FuncFormatter:
    """Write tick labels as 12,000; without exponents, also on a logarithmic axis."""
    return FuncFormatter(lambda value, _: f"{value:,.10g}")


def shorten(text: str, length: int) -> str:
    """Shorten to `length` characters, cut in the middle, as names differ at their start or at their end."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[-tail:]}"


def render_svg(figure: Figure, name: str) -> str:
    """Render an <svg> element: the same bytes for the same data, ids unique to `name`, all in the page's colours."""
    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    text = buffer.getvalue()
    svg = _prefix_ids(text[text.index("<svg") :], name)
    return svg.replace(INK, "currentColor").replace(GRID, "var(--grid)")


def _prefix_ids(svg: str, name: str) -> str:
    return re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
