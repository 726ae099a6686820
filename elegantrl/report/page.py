"""One HTML page for runs or a population: facts, tables, charts, videos and a lineage, in one file without the network.

``page.html`` draws the page in the browser. Its data are either inside the file, or fetched again every few seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any

from .style import COLOURS

DEMO_FILES = ("demo.mp4", "demo.gif")
"""Names of the video in a run folder that its page shows."""
MAX_POINTS = 400
"""Points of a line; a page with more is slow to draw and shows no more."""


@dataclass(frozen=True)
class Line:
    """A curve, with the bounds of its band if it has one; without ``colour`` it takes the next of the palette.

    A ``thin`` line is one of several that another line summarises.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    colour: str | None = None
    thin: bool = False


@dataclass(frozen=True)
class Chart:
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    target: float | None = None
    """A value to reach, drawn as a dashed line."""


@dataclass(frozen=True)
class Table:
    """``colours`` has one for each row, as a mark before its first cell; ``marked`` rows stand out."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    colours: Sequence[str] = ()
    marked: bool = False


@dataclass(frozen=True)
class Film:
    """A video or an animation inside the page."""

    title: str
    uri: str
    """``data:video/mp4;base64,...`` or ``data:image/gif;base64,...``."""


@dataclass(frozen=True)
class Span:
    """A stretch of training of one member, from step ``start`` to ``end``; its colour is that of ``group``."""

    row: int
    start: float
    end: float
    group: str
    label: str


@dataclass(frozen=True)
class Copy:
    """A member in row ``row`` continued at ``step`` from the member in row ``source``."""

    step: float
    source: int
    row: int


@dataclass(frozen=True)
class Lineage:
    """Who was copied from whom: a row per member, from left to right by environment steps."""

    rows: Sequence[str]
    spans: Sequence[Span]
    copies: Sequence[Copy]


@dataclass(frozen=True)
class Page:
    """What a page shows, in this order."""

    title: str
    status: str
    facts: Mapping[str, str]
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    lineage: Lineage | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    films: Sequence[Film] = ()


def to_json(page: Page, with_films: bool = False) -> str:
    """The data of a page; a number that is not finite becomes null. Films are large: updates come without them."""
    films = {} if with_films else {"films": None}
    return json.dumps(_finite(asdict(page) | {"colours": COLOURS} | films), allow_nan=False)


def render(page: Page, updates: bool = False) -> str:
    """The HTML of a page; with ``updates`` the browser asks for ``data.json`` again and again."""
    # Inside a script element, only "<" can end the element or begin a comment.
    data = to_json(page, with_films=True).replace("<", "\\u003c")
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return template.replace("{{updates}}", str(updates).lower()).replace("{{data}}", data)


def thinned(values: Sequence[Any]) -> list[Any]:
    """At most ``MAX_POINTS`` of the values, evenly spaced, the last one included."""
    if len(values) <= MAX_POINTS:
        return list(values)
    step = (len(values) - 1) / (MAX_POINTS - 1)
    return [values[round(i * step)] for i in range(MAX_POINTS)]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
