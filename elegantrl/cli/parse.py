"""Command-line flags from dataclasses by tyro, with every mistake as one sentence."""

from __future__ import annotations

import contextlib
import io
from typing import TypeVar

import tyro

from ..errors import ConfigError, did_you_mean

T = TypeVar("T")


def parse(kind: type[T], argv: list[str], prog: str, default: T | None = None) -> T:
    """An instance of ``kind`` from ``argv``; exits with 0 after ``--help``."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            args, unknown = tyro.cli(kind, args=argv, prog=prog, default=default, return_unknown_args=True)
    except SystemExit as stop:
        if stop.code == 0:
            raise
        raise ConfigError(f"{_sentence(errors.getvalue())}; see {prog} --help") from None
    if unknown:
        suggestion = did_you_mean(unknown[0], _flags(kind, prog, default)) if unknown[0].startswith("-") else ""
        raise ConfigError(f"{prog} does not know {unknown[0]!r}; {suggestion or f'see {prog} --help'}")
    assert args is not None
    return args


def _sentence(boxed: str) -> str:
    """The first paragraph of tyro's box."""
    lines = [line.strip("\u2502 ") for line in boxed.splitlines()[1:]]
    paragraph: list[str] = []
    for line in lines:
        if line.startswith(("\u2500", "\u2570")):
            break
        paragraph.append(line)
    text = " ".join(" ".join(paragraph).split()).rstrip(".")
    # A setting's own error names it already.
    return text.split(": ", 1)[1] if text.startswith("Error parsing agent: ") else text


def _flags(kind: type[T], prog: str, default: T | None) -> list[str]:
    """Every flag that the help text of ``kind`` lists."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        tyro.cli(kind, args=["--help"], prog=prog, default=default)
    words = out.getvalue().replace(",", " ").split()
    return sorted({word for word in words if word.startswith("--")})
