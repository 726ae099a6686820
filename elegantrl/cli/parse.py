"""Command-line flags from dataclasses by tyro, with every mistake as one sentence."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any, TypeVar, get_origin

import tyro
import yaml
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ..config.names import suggest_name
from ..errors import ConfigError

T = TypeVar("T")

REPHRASED = (
    (
        r"Error parsing (?:agent|env|train|execute|eval|checkpoint|population|[A-Z]\w*): (.*)",
        r"\1",
    ),  # a setting's own error
    (r"Error parsing (--\S+): .*invalid literal for int\(\) with base 10: (.*)", r"\1 \2 is not a whole number"),
    (r"Error parsing (--\S+): .*could not convert string to float: (.*)", r"\1 \2 is not a number"),
    (r"Error parsing (--\S+): Could not find valid parse for arguments: \[(.*)\]", r"\1 cannot be \2"),
    (r"Error parsing (--\S+): (--\S+ .*)", r"\2"),
    (r"invalid choice (.*) for argument '(--\S+)'\. Expected one of \((.*)\)", r"\2 \1 is not one of \3"),
    (r"Missing value for argument '(--\S+)'.*", r"\1 needs a value"),
    (r"Missing from .*?: (\S+).*", r"\1 is missing"),
)
"""Messages of tyro as regular expressions, and the sentences that replace them."""

registry = ConstructorRegistry()
"""Parsers of flag values that replace those of tyro."""


@registry.primitive_rule
def whole_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Reads whole numbers, also in the form ``1e5``."""
    if info.type is not int:
        return None

    def read(words: list[str]) -> int:
        try:
            return int(words[0])
        except ValueError:
            with contextlib.suppress(ValueError, OverflowError):
                if (number := float(words[0])) == int(number):
                    return int(number)
            raise

    return PrimitiveConstructorSpec(1, "INT", read, lambda x: isinstance(x, int), lambda x: [str(x)])


@registry.primitive_rule
def named_values(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    """Reads keyword arguments from words ``name=value``."""
    if get_origin(info.type) is not dict:
        return None
    return PrimitiveConstructorSpec(
        "*",
        "NAME=VALUE ...",
        parse_kwargs,
        lambda x: isinstance(x, dict),
        lambda values: [f"{name}={value}" for name, value in values.items()],
    )


def parse_kwargs(pairs: list[str], flag: str = "--env-kwargs") -> dict[str, Any]:
    """``["gravity=-5"]`` -> ``{"gravity": -5}``; values are read as YAML, and errors name ``flag``."""
    result: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"{flag} {pair!r} is not name=value")
        if name in ("num_envs", "device", "frame_stack", "masks"):
            raise ValueError(f"{flag} {pair!r} is a setting of the run; use --{name.replace('_', '-')} {value}")
        try:
            result[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"{flag} {pair!r} has a value that is not YAML; put text into quotes") from None
    return result


def parse(kind: type[T], argv: list[str], prog: str, default: T | None = None) -> T:
    """An instance of ``kind`` from ``argv``; exits with 0 after ``--help``."""
    if "" in argv:  # "$RUN" where RUN is not set; an empty path would mean the current folder
        raise ConfigError(f"an argument of {prog} is empty; check quotes and variables")
    message = io.StringIO()
    try:
        # Into a string, because tyro draws a coloured box around its message on a terminal.
        with contextlib.redirect_stdout(message), contextlib.redirect_stderr(message), registry:
            args, unknown = tyro.cli(kind, args=argv, prog=prog, default=default, return_unknown_args=True)
    except SystemExit as stop:
        if stop.code == 0:  # again, in the colours and the width of the terminal
            with registry:
                tyro.cli(kind, args=argv, prog=prog, default=default, return_unknown_args=True)
        raise ConfigError(f"{_sentence(message.getvalue())}; see {prog} --help") from None
    if unknown:
        flag, see_help = unknown[0].split("=")[0], f"see {prog} --help"
        if not flag.startswith("-"):
            raise ConfigError(f"{unknown[0]!r} belongs to no option; {see_help}")
        raise ConfigError(f"there is no option {flag!r}; {_suggestion(flag, _flags(kind, prog, default)) or see_help}")
    assert args is not None
    return args


def _sentence(text: str) -> str:
    """The message of tyro, which stands between two lines of dashes, rephrased."""
    lines = [line.strip() for line in text.splitlines()]
    rules = [i for i, line in enumerate(lines) if set(line) == {"-"}]
    paragraph = lines[rules[0] + 1 : rules[1]] if len(rules) > 1 else lines
    sentence = " ".join(" ".join(paragraph).split()).rstrip(".")
    for theirs, ours in REPHRASED:
        if match := re.fullmatch(theirs, sentence):
            return match.expand(ours)
    return sentence


def _suggestion(flag: str, known: list[str]) -> str:
    """``did you mean`` with the flags of similar names; empty if there are none."""
    names = {name.lstrip("-").replace("-", "_"): name for name in known}
    advice = suggest_name(flag.lstrip("-").replace("-", "_"), names)
    for name in sorted(names, key=len, reverse=True):
        advice = advice.replace(f"'{name}'", f"'{names[name]}'")
    return advice if advice.startswith("did you mean") else ""


def _flags(kind: type[T], prog: str, default: T | None) -> list[str]:
    """Every flag that the help text of ``kind`` lists."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit), registry:
        tyro.cli(kind, args=["--help"], prog=prog, default=default)
    return sorted(set(re.findall(r"(?<!\S)--[a-z][\w.-]*", out.getvalue())))
