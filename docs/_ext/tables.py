"""Directives that fill in tables when the site is built, so that no figure and no default is copied by hand.

``settings NAME``: the settings of an agent, or of a section of a run's config, from the dataclass and its docstrings.
``scores AGENT``: the rows of an agent in ``results.md``, which ``benchmarks/learning.py`` writes; with ``:draw:`` the
curve of the first of them too.

The body of a directive is what a reader of the plain file sees instead of the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field
from itertools import takewhile
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.errors import ExtensionError
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

Cell = str | list[nodes.Node]


LEGEND = """\
*steps*: environment steps that the runs took, least and most over seeds. *fresh*: mean return of the best policies over
episodes that training never saw, \u00b1 the standard deviation over seeds, in brackets the worst seed. *bar*: the score
that was asked for, within so many steps. [Learning results](../results.md) has all of it."""


class FilledIn(SphinxDirective):
    """A directive with the name of what it shows and a body for readers of the plain file."""

    required_arguments = 1
    has_content = True


class SettingsDirective(FilledIn):
    def run(self) -> list[nodes.Node]:
        kind, values, form = described(self.arguments[0])
        shown: list[nodes.Node] = [paragraph(form)]
        for owner, fields in by_class(kind).items():
            rows = [row_of(f, owner, values) for f in fields]
            shown.append(nodes.rubric("", title_of(owner)))
            shown.append(table(("setting", "default", "meaning"), rows, (26, 14, 60), "settings"))
        names = [f.name for fields in by_class(kind).values() for f in fields if "tunable" in f.metadata]
        if names:
            shown.append(paragraph("Populations tune " + ", ".join(f"`{name}`" for name in names) + "."))
        return shown


class ScoresDirective(FilledIn):
    option_spec = {"draw": directives.flag}  # noqa: RUF012  as docutils declares it

    def run(self) -> list[nodes.Node]:
        page = Path(self.env.srcdir) / "results.md"
        self.env.note_dependency(str(page))
        head, rows = learning_rows(page.read_text(encoding="utf-8"))
        wanted = ("agent", "task", "seeds", "steps", "fresh (worst)", "bar", "reached")
        columns = [head.index(name) for name in wanted]
        found = [[row[i].replace("**", "") for i in columns] for row in rows if row[0].split()[0] == self.arguments[0]]
        if not found:
            return [paragraph(f"{self.arguments[0]} is not measured yet on the reference tasks.")]
        shown = table(wanted, found, (14, 24, 7, 18, 22, 20, 9), "scores")
        curve = self.curve(*found[0][:2]) if "draw" in self.options else []
        return [*curve, shown, *self.parse_text_to_nodes(LEGEND)]

    def curve(self, agent: str, task: str) -> list[nodes.Node]:
        """The measured curve of an agent on a task, if there is a picture of it."""
        name = f"{agent}_{task}".replace("/", "_")
        path = f"../../benchmarks/results/learning/{name}.png"
        exists = (Path(self.env.doc2path(self.env.docname)).parent / path).is_file()
        return [nodes.image("", uri=path, alt=f"{agent} on {task}")] if exists else []


def described(name: str) -> tuple[type[Any], Any, str]:
    """The dataclass of a name, an object that holds the defaults, and a sentence that says how settings are given."""
    from elegantrl.config.sections import SECTIONS
    from elegantrl.population.config import PopulationConfig
    from elegantrl.registry import find_agent

    if name == "population":
        return PopulationConfig, None, "Flags of `elegantrl evolve` and keywords of `elegantrl.evolve`."
    if name in ("eval", "checkpoint"):
        form = f"On the command line `--{name}.interval 1000`, in Python `{name}={{'interval': 1000}}`."
        return SECTIONS[name], None, form
    if name in SECTIONS:
        form = "Flags of `elegantrl train` and keywords of `elegantrl.train`"
        return SECTIONS[name], None, form + ("; `id` is its second word." if name == "env" else ".")
    entry = find_agent(name)
    form = (
        "On the command line `--agent.lr 1e-3`, in Python `lr=1e-3`; tuned settings for known tasks replace defaults."
    )
    return entry.config, entry.default_config(), form


def by_class(kind: type[Any]) -> dict[type[Any], list[Field[Any]]]:
    """The used settings of a dataclass, by the class that explains them; a subclass may only change the default."""
    from elegantrl.config.fields import used_fields

    found: dict[type[Any], list[Field[Any]]] = {}
    for f in used_fields(kind):
        owner = next((c for c in kind.__mro__ if doc_of(c, f.name)), None)
        if owner is None:
            raise ExtensionError(f"{kind.__name__}.{f.name} has no docstring")
        found.setdefault(owner, []).append(f)
    order = {c: i for i, c in enumerate(kind.__mro__)}
    return dict(sorted(found.items(), key=lambda item: order[item[0]]))


def doc_of(owner: type[Any], name: str) -> str:
    """The docstring of a field in the class itself; empty if there is none."""
    if not owner.__module__.startswith("elegantrl."):
        return ""
    docs = ModuleAnalyzer.for_module(owner.__module__).find_attr_docs()
    return " ".join(" ".join(docs.get((owner.__name__, name), [])).split())


def title_of(owner: type[Any]) -> str:
    return (owner.__doc__ or owner.__name__).strip().partition("\n")[0].rstrip(".")


def row_of(f: Field[Any], owner: type[Any], values: Any) -> list[Cell]:
    default = getattr(values, f.name) if values is not None else f.default
    if default is MISSING:
        default = "" if f.default_factory is MISSING else f.default_factory()
    return [
        [nodes.literal("", name_of(owner, f.name))],
        [nodes.literal("", shown_value(default))] if default != "" else "",
        doc_of(owner, f.name),
    ]


def name_of(owner: type[Any], name: str) -> str:
    """As a caller writes it: the arguments of the environment are ``env_kwargs``, not ``kwargs``."""
    from elegantrl.config.resolve import SHORT

    place = (getattr(owner, "section", ""), name)
    return next((short for short, there in SHORT.items() if there == place and place[0] == "env"), name)


def shown_value(value: Any) -> str:
    """A default as one would write it on the command line."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "()"
    if isinstance(value, float) and value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if value < 1 << 30 else "no limit"
    return str(value) if value != {} else "{}"


def learning_rows(text: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the first table of results.md."""
    lines = text[text.index("| agent | task | seeds |") :].splitlines()
    rows = [cells(line) for line in takewhile(lambda line: line.startswith("|"), lines)]
    return rows[0], rows[2:]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], widths: Sequence[int], name: str) -> nodes.Node:
    group = nodes.tgroup("", *[nodes.colspec(colwidth=width) for width in widths], cols=len(head))
    group += nodes.thead("", table_row(head))
    group += nodes.tbody("", *[table_row(row) for row in rows])
    return nodes.table("", group, classes=[name])


def table_row(values: Sequence[Cell]) -> nodes.row:
    return nodes.row("", *[nodes.entry("", paragraph(value)) for value in values])


def paragraph(value: Cell) -> nodes.paragraph:
    """Text in which single backticks mark code."""
    if not isinstance(value, str):
        return nodes.paragraph("", "", *value)
    parts = re.split(r"`([^`]+)`", value)
    return nodes.paragraph(
        "", "", *[nodes.literal("", part) if i % 2 else nodes.Text(part) for i, part in enumerate(parts)]
    )


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("settings", SettingsDirective)
    app.add_directive("scores", ScoresDirective)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
