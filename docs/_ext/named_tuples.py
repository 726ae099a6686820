"""Explains fields of named tuples by the comments beside them, which hold their shapes; autodoc reads docstrings."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any


def explain_field(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replace "Alias for field number 0" by the comment of the field; without one nothing is said."""
    if not lines or not lines[0].startswith("Alias for field number"):
        return
    path, _, field = name.rpartition(".")
    module, _, owner = path.rpartition(".")
    source = inspect.getsource(getattr(import_module(module), owner))
    match = re.search(rf"^    {field}: [^#\n]*#\s*(.+)$", source, re.M)
    # Shapes such as [N, ...] and words such as file:line are code: a star would begin an emphasis, a colon a link.
    lines[:] = [re.sub(r"\[[^\]]*\]|\b\w+:\w+\b", r"``\g<0>``", match[1])] if match else []


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", explain_field)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
