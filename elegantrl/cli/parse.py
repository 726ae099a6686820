"""Command-line flags from dataclasses by tyro, with every mistake as one sentence."""

from __future__ import annotations

import contextlib
import io
import re
from typing import TypeVar

import tyro

from ..errors import ConfigError, did_you_mean

T = TypeVar("T")

REPHRASED = (
    (r"Error parsing (?:agent|eval|checkpoint): (.*)", r"\1"),  # a setting's own error names it already
    (r"Error parsing (--\S+): .*invalid literal for int\(\) with base 10: (.*)", r"\1 \2 is not a whole number"),
    (r"Error parsing (--\S+): .*could not convert string to float: (.*)", r"\1 \2 is not a number"),
    (r"Error parsing (--\S+): Could not find valid parse for arguments: \[(.*)\]", r"\1 cannot be \2"),
    (r"invalid choice (.*) for argument '(--\S+)'\. Expected one of \((.*)\)", r"\2 \1 is not one of \3"),
    (r"Missing value for argument '(--\S+)'.*", r"\1 needs a value"),
    (r"Missing from .*?: (\S+).*", r"\1 is missing"),
)
"""What tyro says, and the same in a user's words."""

OTHER_WORDS = {
    "--learning-rate": "--agent.lr",
    "--total-timesteps": "--max-steps",
    "--n-envs": "--num-envs",
    "--out-dir": "--run-dir",
}
"""What settings are called elsewhere."""


def parse(kind: type[T], argv: list[str], prog: str, default: T | None = None) -> T:
    """An instance of ``kind`` from ``argv``; exits with 0 after ``--help``."""
    if "" in argv:  # "$RUN" where RUN is not set; an empty path would mean the current folder
        raise ConfigError(f"an argument of {prog} is empty; check quotes and variables")
    message = io.StringIO()
    try:
        # Into a string, since on a terminal tyro draws a coloured box around its message.
        with contextlib.redirect_stdout(message), contextlib.redirect_stderr(message):
            args, unknown = tyro.cli(kind, args=argv, prog=prog, default=default, return_unknown_args=True)
    except SystemExit as stop:
        if stop.code == 0:  # once more, in the colours and the width of the reader's terminal
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
    """The paragraph between the first two rules that tyro draws, in a user's words."""
    lines = [line.strip() for line in text.splitlines()]
    rules = [i for i, line in enumerate(lines) if set(line) == {"-"}]
    paragraph = lines[rules[0] + 1 : rules[1]] if len(rules) > 1 else lines
    sentence = " ".join(" ".join(paragraph).split()).rstrip(".")
    for theirs, ours in REPHRASED:
        if match := re.fullmatch(theirs, sentence):
            return match.expand(ours)
    return sentence


def _suggestion(flag: str, known: list[str]) -> str:
    """The flags that somebody who wrote ``flag`` may have meant; empty if none is near."""
    # Whoever leaves out the section means the setting of that name.
    same = [name for name in known if name.rpartition(".")[2] == flag.lstrip("-")]
    if same:
        return f"did you mean {' or '.join(map(repr, same))}?"
    words = {name: name for name in known} | {word: name for word, name in OTHER_WORDS.items() if name in known}
    advice = did_you_mean(flag, words)
    for word, name in words.items():
        advice = advice.replace(f"'{word}'", f"'{name}'")
    return advice if advice.startswith("did you mean") else ""


def _flags(kind: type[T], prog: str, default: T | None) -> list[str]:
    """Every flag that the help text of ``kind`` lists."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        tyro.cli(kind, args=["--help"], prog=prog, default=default)
    return sorted(set(re.findall(r"(?<!\S)--[a-z][\w.-]*", out.getvalue())))
