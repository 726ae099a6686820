"""Equations as MathML, which browsers draw themselves: no script, no picture, no network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.errors import ExtensionError

THIN = '<mspace width="0.17em"/>'
BETTER = {
    "<mi>log</mi>": f"{THIN}<mi>log</mi>{THIN}",  # without a space of its own it reads like a product of letters
    "<mi>&#x0007E;</mi>": "<mo>&#x0223C;</mo>",  # "is drawn from" is a relation, not the character on the keyboard
    "&#x000AF;": "&#x0203E;",  # a bar as wide as its letter; the macron of an index is hardly more than a dot
}
"""What the converter writes, and what reads better."""
PRIME = r"<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>"
PRIME_AND_INDEX = r"<msubsup>((?:(?!<msubsup>).)*?)<mi>&#x02032;</mi></msubsup>"
RAISED = '<mo lspace="0" rspace="0">&#x02032;</mo>'
"""A prime is raised by itself: as an exponent it becomes a dot in fonts without a glyph for that place."""


def mathml(latex: str, display: str) -> str:
    """One ``<math>`` element; LaTeX that the converter does not know is an error."""
    text = convert(latex, display=display)
    if "<mi>\\" in text or "<mi>&</mi>" in text:
        raise ExtensionError(f"latex2mathml cannot convert {latex!r}; write it without the unknown command")
    for theirs, ours in BETTER.items():
        text = text.replace(theirs, ours)
    text = re.sub(PRIME, rf"<mrow>\1{RAISED}</mrow>", text)
    return re.sub(PRIME_AND_INDEX, rf"<mrow><msub>\1</msub>{RAISED}</mrow>", text)


def visit_inline(self: Any, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="equation">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
